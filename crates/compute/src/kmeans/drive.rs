//! Lloyd's rounds, whatever the rows are: a pass that labels them, then centres in the means of
//! their rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outcore_core::{Error, Result, Stage};
use outcore_device::Locked;
use outcore_kernels::Real;

use super::block::RowStates;
use super::centers::{Centers, distance};
use super::totals::Sums;
use super::{Assigned, KMeans, Lloyd, Over, Round, Source, farthest};

/// What is known of the rows of all blocks.
pub(super) type AllStates<T> = Arc<Vec<Mutex<RowStates<T>>>>;

/// The nearest centre of each row.
pub(super) fn assign<T: Real, S: Source<T>>(
    lloyd: &Lloyd<T, S>,
    start: Vec<T>,
    stage: &mut Stage,
) -> Result<Assigned> {
    let _state = stage.reserve("labels", lloyd.division.state_bytes)?;
    let states = lloyd.states();
    let centers = Arc::new(Centers::new(start, lloyd.shape, &|| stage.is_cancelled()));
    let mut sums = Sums::new(lloyd.shape);
    let round = Round {
        states: &states,
        centers: &centers,
        moved: None,
        sums: &mut sums,
        passes: 0,
        reached: 1.0,
    };
    S::assign_pass(lloyd, stage, round)?;
    sums.clear_empty();
    let inertia = sums.inertia(&centers.values);
    let labels = labels_of(&states);
    assert_eq!(labels.len() as u64, lloyd.rows(), "every row has a label");
    let distances = states
        .iter()
        .flat_map(|states| states.locked().upper().to_vec())
        .collect();
    Ok(Assigned {
        labels,
        distances,
        inertia,
    })
}

/// Rounds until nothing changes, or there have been enough.
pub(super) fn fit<T: Real, S: Source<T>>(
    lloyd: &Lloyd<T, S>,
    start: Vec<T>,
    stage: &mut Stage,
    max_iter: u64,
    tol: f64,
) -> Result<KMeans> {
    let (shape, n) = (lloyd.shape, lloyd.all_rows());
    let _state = stage.reserve(
        "the labels and bounds of k-means",
        lloyd.division.state_bytes + lloyd.merge_bytes(),
    )?;
    let states = lloyd.states();
    let mut sums = Sums::new(shape);
    let mut centers = Arc::new(Centers::new(start, shape, &|| stage.is_cancelled()));
    let mut moved = None;
    let (mut rounds, mut passes, mut all_compared, mut is_last) = (0, 0, 0, false);
    loop {
        let round = Round {
            states: &states,
            centers: &centers,
            moved: moved.as_ref(),
            sums: &mut sums,
            passes,
            reached: (passes + 1) as f64 / (max_iter + 1) as f64,
        };
        let (changed, compared) = match pass(lloyd, stage, round) {
            Err(Error::Cancelled) if rounds > 0 => {
                return Ok(model(&lloyd.shift, &centers, &sums, None, rounds, 0.0));
            }
            found => found?,
        };
        (passes, all_compared) = (passes + 1, all_compared + compared);
        if is_last {
            break;
        }
        let next = Arc::new(Centers::new(
            means(lloyd, stage, &states, &centers, &sums)?,
            shape,
            &|| stage.is_cancelled(),
        ));
        let pairs = next
            .values
            .chunks(shape.features)
            .zip(centers.values.chunks(shape.features));
        let total: f64 = pairs.map(|(to, from)| distance(to, from).powi(2)).sum();
        moved = Some(Arc::new(next.moved_from(&centers, shape)));
        (centers, rounds) = (next, rounds + 1);
        if rounds > 1 && changed == 0 {
            break;
        }
        is_last = rounds == max_iter || total <= tol * sums.variance(n as f64);
    }
    let compared = all_compared as f64 / (n * passes) as f64;
    Ok(model(
        &lloyd.shift,
        &centers,
        &sums,
        Some(labels_of(&states)),
        rounds,
        compared,
    ))
}

/// One pass over the rows, those of the other ranks too.
fn pass<T: Real, S: Source<T>>(
    lloyd: &Lloyd<T, S>,
    stage: &mut Stage,
    round: Round<'_, T>,
) -> Result<(u64, u64)> {
    let Some(Over { team, .. }) = &lloyd.over else {
        let sums = &mut *round.sums;
        let found = S::assign_pass(lloyd, stage, Round { sums, ..round })?;
        round.sums.clear_empty();
        return Ok(found);
    };
    let mut own = Sums::new(lloyd.shape);
    let sums = &mut own;
    let found = S::assign_pass(lloyd, stage, Round { sums, ..round });
    let lane = team.sum(found.map(|found| own.into_lane(found)))?;
    let found = round.sums.add(std::iter::once(&lane[..]));
    round.sums.clear_empty();
    Ok(found)
}

fn labels_of<T: Real>(states: &[Mutex<RowStates<T>>]) -> Vec<u32> {
    let mut labels = Vec::with_capacity(
        states
            .iter()
            .map(|states| states.locked().labels.len())
            .sum(),
    );
    states
        .iter()
        .for_each(|states| labels.extend_from_slice(&states.locked().labels));
    labels
}

fn model<T: Real>(
    shift: &[f64],
    centers: &Centers<T>,
    sums: &Sums,
    labels: Option<Vec<u32>>,
    rounds: u64,
    compared_fraction: f64,
) -> KMeans {
    KMeans {
        centers: centers
            .values
            .iter()
            .zip(shift.iter().cycle())
            .map(|(center, shift)| center.f64() + shift)
            .collect(),
        inertia: sums.inertia(&centers.values),
        interrupted: labels.is_none(),
        labels: labels.unwrap_or_default(),
        rounds,
        compared_fraction,
    }
}

/// The mean of each cluster, in the space that centres stay in; one that is empty gets the farthest row of another.
fn means<T: Real, S: Source<T>>(
    lloyd: &Lloyd<T, S>,
    stage: &mut Stage,
    states: &AllStates<T>,
    centers: &Arc<Centers<T>>,
    sums: &Sums,
) -> Result<Vec<T>> {
    let k = lloyd.shape.clusters;
    // Of clusters that get or lose a row here.
    let mut changed: BTreeMap<usize, (Vec<f64>, f64)> = BTreeMap::new();
    let known = |cluster: usize| (sums.cluster(cluster).to_vec(), sums.weight(cluster));
    let empty: Vec<usize> = (0..k)
        .filter(|&cluster| sums.weight(cluster) == 0.0)
        .collect();
    let empty_count = empty.len();
    if empty_count > 0 {
        let found = S::farthest(lloyd, stage, states, centers, empty_count);
        for (cluster, far) in empty
            .into_iter()
            .zip(farthest::of_all(lloyd, found, empty_count)?)
        {
            let (weight, label) = (far.weight, far.label as usize);
            let (sum, left) = changed.entry(label).or_insert_with(|| known(label));
            sum.iter_mut()
                .zip(&far.x)
                .for_each(|(sum, x)| *sum -= weight * x);
            *left -= weight;
            let sum = far.x.iter().map(|x| weight * x).collect();
            changed.insert(cluster, (sum, weight));
        }
    }
    let of = |cluster: usize| match changed.get(&cluster) {
        Some((sum, weight)) => (&sum[..], *weight),
        None => (sums.cluster(cluster), sums.weight(cluster)),
    };
    let largest = (0..k).fold(0, |most, at| if of(at).1 > of(most).1 { at } else { most });
    let mean = |cluster: usize| {
        // A cluster without rows gets the centre of the largest.
        let (sum, weight) = of(if of(cluster).1 > 0.0 {
            cluster
        } else {
            largest
        });
        sum.iter().map(move |sum| T::of(sum / weight))
    };
    let mut found = (0..k).flat_map(mean).collect::<Vec<T>>();
    if let Some(along) = &lloyd.along {
        along.project(&mut found)?;
    }
    Ok(found)
}
