//! Partial results.

use bytemuck::Pod;
use outcore_engine::{Outcome, Plan, Region, Task};

/// States that are added to side by side, each by one task at a time, and merged in order at the
/// end.
pub(crate) struct Lanes {
    regions: Vec<Region>,
}

impl Lanes {
    pub(crate) fn new(plan: &mut Plan, name: &str, count: u64, bytes: u64) -> Lanes {
        let lane = |lane| Region::span(plan.volatile(format!("{name} {lane}"), bytes), 0, bytes);
        Lanes {
            regions: (0..count).map(lane).collect(),
        }
    }

    /// The task that is the `index`-th to add something, and whether it is the first of its lane,
    /// which finds no state there.
    pub(crate) fn add(&self, index: usize, task: Task) -> (Task, bool) {
        let (lane, is_first) = (
            self.regions[index % self.regions.len()],
            index < self.regions.len(),
        );
        (
            if is_first {
                task.write(lane)
            } else {
                task.update(lane)
            },
            is_first,
        )
    }

    /// A task that adds to the same lane in every plan. A state begins as zeros.
    pub(crate) fn add_to_zeros(&self, index: usize, task: Task) -> Task {
        task.update(self.regions[index % self.regions.len()])
    }

    /// A task that reads all states.
    pub(crate) fn read_by(&self, task: Task) -> Task {
        self.regions
            .iter()
            .fold(task, |task, lane| task.read(*lane))
    }

    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// What a run has left in the lanes, in order.
    pub(crate) fn results<'a, E: Pod>(
        &'a self,
        outcome: &'a Outcome,
    ) -> impl Iterator<Item = &'a [E]> {
        self.regions
            .iter()
            .filter_map(|lane| Some(bytemuck::cast_slice(outcome.result(lane)?)))
    }
}
