//! The rows farthest from the centres of their clusters: where centres go that have lost their last
//! row.

use std::sync::{Arc, Mutex};

use outcore_core::{Result, Stage};
use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::Real;

use super::{Lloyd, Over, Source, Weights};
use crate::ranks::{heard, told};

/// A row, less the shift, and how far it is from its centre.
pub(super) struct Far {
    /// Among those of all ranks.
    row: u64,
    pub(super) weight: f64,
    pub(super) label: u32,
    pub(super) x: Vec<f64>,
    distance: f64,
}

/// The farthest so far, by descending distance, then by row.
pub(super) struct Search {
    count: usize,
    weights: Weights,
    found: Mutex<Vec<Far>>,
}

impl Search {
    /// Keeps a row if it is among the farthest.
    pub(super) fn offer(&self, row: u64, label: u32, distance: f64, x: impl FnOnce() -> Vec<f64>) {
        let mut found = self.found.locked();
        assert!(found.len() <= self.count, "no more than are wanted");
        let at = found.partition_point(|far| {
            far.distance > distance || (far.distance == distance && far.row < row)
        });
        if distance > 0.0 && at < self.count {
            found.truncate(self.count - 1);
            found.insert(
                at,
                Far {
                    row,
                    weight: self.weights.of(row),
                    label,
                    x: x(),
                    distance,
                },
            );
        }
    }
}

/// One pass over all rows; `task` offers those of a block.
pub(super) fn find<T: Real, S: Source<T>>(
    stage: &mut Stage,
    mut plan: Plan,
    lloyd: &Lloyd<T, S>,
    count: usize,
    task: impl Fn(&mut Plan, usize, Arc<Search>) -> Task,
) -> Result<Vec<Far>> {
    let search = Arc::new(Search {
        count,
        weights: lloyd.weights.clone(),
        found: Mutex::default(),
    });
    plan.hold(((count * lloyd.shape.features + lloyd.shape.len()) * 8) as u64);
    for block in 0..lloyd.blocks.len() {
        let task = task(&mut plan, block, Arc::clone(&search));
        plan.task(task);
    }
    let reached = stage.fraction();
    stage.run(plan, reached)?;
    Ok(std::mem::take(&mut *search.found.locked()))
}

/// The farthest of all ranks, of what each has found of its own rows.
pub(super) fn of_all<T: Real, S: Source<T>>(
    lloyd: &Lloyd<T, S>,
    found: Result<Vec<Far>>,
    count: usize,
) -> Result<Vec<Far>> {
    let Some(Over { team, all }) = &lloyd.over else {
        return found;
    };
    let width = 4 + lloyd.shape.features;
    let numbers = |far: Far| {
        let row = (all.first + far.row) as f64;
        let head = [row, far.weight, f64::from(far.label), far.distance];
        head.into_iter().chain(far.x)
    };
    let sent = found.map(|found| told(&found.into_iter().flat_map(numbers).collect::<Vec<f64>>()));
    let heard = team
        .all_gather(sent)?
        .iter()
        .flat_map(|bytes| heard(bytes))
        .collect::<Vec<f64>>();
    let mut found: Vec<Far> = heard
        .chunks(width)
        .map(|far| Far {
            row: far[0] as u64,
            weight: far[1],
            label: far[2] as u32,
            distance: far[3],
            x: far[4..].to_vec(),
        })
        .collect();
    found.sort_by(|a, b| b.distance.total_cmp(&a.distance).then(a.row.cmp(&b.row)));
    found.truncate(count);
    Ok(found)
}
