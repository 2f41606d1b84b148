//! Lloyd's rounds, whatever the rows are: a pass that labels them, then centres in the means of their rows.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_kernels::Real;

use super::block::Known;
use super::centers::{Centers, Moved, distance};
use super::farthest::Far;
use super::totals::{Shape, Sums};
use super::{Assigned, KMeans};
use crate::error::{Error, Result};
use crate::job::Stage;

/// What is known of the rows of all blocks.
pub(super) type AllKnown<T> = Arc<Vec<Mutex<Known<T>>>>;

/// Rows of some kind that can be passed over.
pub(super) trait Passes<T: Real> {
    fn shape(&self) -> Shape;
    fn rows(&self) -> u64;
    /// What a row counts for.
    fn weight(&self, row: u64) -> f64;
    /// Taken off all rows and centres.
    fn shift(&self) -> &[f64];
    /// Centres to start from, less the shift.
    fn start(&self) -> Vec<T>;
    fn state_bytes(&self) -> u64;
    /// Nothing yet.
    fn unknown(&self) -> AllKnown<T>;

    /// One pass over the rows that have to be looked at. The last argument is the number of passes before, and the part of the job that is
    /// done after this one. How many labels have changed, and how many rows were looked at.
    fn pass(
        &self,
        stage: &mut Stage,
        known: &AllKnown<T>,
        centers: &Arc<Centers<T>>,
        moved: Option<&Arc<Moved>>,
        sums: &mut Sums,
        place: (u64, f64),
    ) -> Result<(u64, u64)>;

    /// The `count` rows farthest from their centres, fewer where others lie in theirs.
    fn farthest(&self, stage: &mut Stage, known: &AllKnown<T>, centers: &Arc<Centers<T>>, count: usize) -> Result<Vec<Far>>;
}

/// The nearest centre of each row.
pub(super) fn assign<T: Real>(rows: &impl Passes<T>, stage: &mut Stage) -> Result<Assigned> {
    let _state = stage.reserve("labels", rows.state_bytes())?;
    let known = rows.unknown();
    let centers = Arc::new(Centers::new(rows.start(), rows.shape()));
    let mut sums = Sums::new(rows.shape());
    rows.pass(stage, &known, &centers, None, &mut sums, (0, 1.0))?;
    let inertia = sums.inertia(&centers.values);
    let labels = labels_of(&known);
    let distances = known.iter().flat_map(|known| known.locked().upper().to_vec()).collect();
    Ok(Assigned { labels, distances, inertia })
}

/// Rounds until nothing changes, or there have been enough.
pub(super) fn fit<T: Real>(rows: &impl Passes<T>, stage: &mut Stage, max_iter: u64, tol: f64) -> Result<KMeans> {
    let (shape, n) = (rows.shape(), rows.rows());
    let _state = stage.reserve("the labels and bounds of k-means", rows.state_bytes())?;
    let known = rows.unknown();
    let mut sums = Sums::new(shape);
    let mut centers = Arc::new(Centers::new(rows.start(), shape));
    let mut moved = None;
    let (mut rounds, mut passes, mut all_looked, mut is_last) = (0, 0, 0, false);
    loop {
        let reached = (passes + 1) as f64 / (max_iter + 1) as f64;
        let (changed, looked) = match rows.pass(stage, &known, &centers, moved.as_ref(), &mut sums, (passes, reached)) {
            Err(Error::Cancelled) if rounds > 0 => return Ok(model(rows.shift(), &centers, &sums, None, rounds, 0.0)),
            found => found?,
        };
        (passes, all_looked) = (passes + 1, all_looked + looked);
        if is_last {
            break;
        }
        let next = Arc::new(Centers::new(means(rows, stage, &known, &centers, &sums)?, shape));
        let pairs = next.values.chunks(shape.features).zip(centers.values.chunks(shape.features));
        let total: f64 = pairs.map(|(to, from)| distance(to, from).powi(2)).sum();
        moved = Some(Arc::new(next.moved_from(&centers, shape)));
        (centers, rounds) = (next, rounds + 1);
        if rounds > 1 && changed == 0 {
            break;
        }
        is_last = rounds == max_iter || total <= tol * sums.variance(n as f64);
    }
    let looked = all_looked as f64 / (n * passes) as f64;
    Ok(model(rows.shift(), &centers, &sums, Some(labels_of(&known)), rounds, looked))
}

fn labels_of<T: Real>(known: &[Mutex<Known<T>>]) -> Vec<u32> {
    let mut labels = Vec::with_capacity(known.iter().map(|known| known.locked().labels.len()).sum());
    known.iter().for_each(|known| labels.extend_from_slice(&known.locked().labels));
    labels
}

fn model<T: Real>(
    shift: &[f64],
    centers: &Centers<T>,
    sums: &Sums,
    labels: Option<Vec<u32>>,
    rounds: u64,
    looked: f64,
) -> KMeans {
    KMeans {
        centers: centers.values.iter().zip(shift.iter().cycle()).map(|(center, shift)| center.f64() + shift).collect(),
        inertia: sums.inertia(&centers.values),
        interrupted: labels.is_none(),
        labels: labels.unwrap_or_default(),
        rounds,
        looked,
    }
}

/// The mean of each cluster; one that is empty gets the farthest row of another.
fn means<T: Real>(
    rows: &impl Passes<T>,
    stage: &mut Stage,
    known: &AllKnown<T>,
    centers: &Arc<Centers<T>>,
    sums: &Sums,
) -> Result<Vec<T>> {
    let k = rows.shape().clusters;
    let mut all: Vec<(Vec<f64>, f64)> = (0..k).map(|cluster| (sums.cluster(cluster).to_vec(), sums.weight(cluster))).collect();
    let empty: Vec<usize> = (0..k).filter(|&cluster| all[cluster].1 == 0.0).collect();
    let empty_count = empty.len();
    if empty_count > 0 {
        for (cluster, far) in empty.into_iter().zip(rows.farthest(stage, known, centers, empty_count)?) {
            let weight = rows.weight(far.row);
            for (j, x) in far.x.iter().enumerate() {
                all[far.label as usize].0[j] -= weight * x;
                all[cluster].0[j] = weight * x;
            }
            all[far.label as usize].1 -= weight;
            all[cluster].1 = weight;
        }
    }
    let largest = (0..k).fold(0, |most, at| if all[at].1 > all[most].1 { at } else { most });
    let mean = |cluster: usize| {
        // A cluster without rows gets the centre of the largest.
        let (sum, weight) = if all[cluster].1 > 0.0 { &all[cluster] } else { &all[largest] };
        sum.iter().map(move |sum| T::of(sum / weight))
    };
    Ok((0..k).flat_map(mean).collect())
}
