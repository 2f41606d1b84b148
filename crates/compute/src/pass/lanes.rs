//! Partial results.

use std::ops::Range;

use bytemuck::Pod;
use outcore_engine::{ExtentRef, Outcome, Plan, Region, Task};

/// States that are added to side by side, each part of one by one task at a time, and merged in
/// order at the end.
pub(crate) struct Lanes {
    extents: Vec<ExtentRef>,
    /// The bytes of each part of a state; most states have one.
    parts: Vec<Range<u64>>,
}

impl Lanes {
    /// In memory, as long as the run.
    pub(crate) fn new(plan: &mut Plan, name: &str, count: u64, bytes: u64) -> Lanes {
        Lanes::in_parts(plan, name, count, std::iter::once(0..bytes).collect())
    }

    /// The same of states in parts.
    pub(crate) fn in_parts(
        plan: &mut Plan,
        name: &str,
        count: u64,
        parts: Vec<Range<u64>>,
    ) -> Lanes {
        assert!(are_apart(&parts), "{name}: parts that share no byte");
        let bytes = parts.last().map_or(0, |last| last.end);
        let lane = |lane| plan.volatile(format!("{name} {lane}"), bytes);
        Lanes {
            extents: (0..count).map(lane).collect(),
            parts,
        }
    }

    /// One lane, in scratch.
    pub(crate) fn stored(extent: ExtentRef, parts: Vec<Range<u64>>) -> Lanes {
        assert!(are_apart(&parts), "parts that share no byte");
        Lanes {
            extents: vec![extent],
            parts,
        }
    }

    fn region(&self, extent: ExtentRef, part: usize) -> Region {
        let bytes = &self.parts[part];
        Region::span(extent, bytes.start, bytes.end - bytes.start)
    }

    fn region_of(&self, index: usize, part: usize) -> Region {
        self.region(self.extents[index % self.extents.len()], part)
    }

    /// The task that is the `index`-th to add something, and whether it is the first of its lane,
    /// which finds no state there.
    pub(crate) fn add(&self, index: usize, task: Task) -> (Task, bool) {
        self.add_to_part(index, 0, task)
    }

    /// The same of one part of the state.
    pub(crate) fn add_to_part(&self, index: usize, part: usize, task: Task) -> (Task, bool) {
        let (region, is_first) = (self.region_of(index, part), index < self.extents.len());
        (
            if is_first {
                task.write(region)
            } else {
                task.update(region)
            },
            is_first,
        )
    }

    /// A task that adds to the same lane in every plan. A state begins as zeros.
    pub(crate) fn add_to_zeros(&self, index: usize, task: Task) -> Task {
        task.update(self.region_of(index, 0))
    }

    /// A task that reads all states.
    pub(crate) fn read_by(&self, task: Task) -> Task {
        self.extents
            .iter()
            .fold(task, |task, lane| task.read(self.region(*lane, 0)))
    }

    pub(crate) fn count(&self) -> usize {
        self.extents.len()
    }

    /// What a run has left in the lanes, in order.
    pub(crate) fn results<'a, E: Pod>(
        &'a self,
        outcome: &'a Outcome,
    ) -> impl Iterator<Item = &'a [E]> {
        self.results_of_part(0, outcome)
    }

    /// What a run has left of one part, in the order of lanes.
    pub(crate) fn results_of_part<'a, E: Pod>(
        &'a self,
        part: usize,
        outcome: &'a Outcome,
    ) -> impl Iterator<Item = &'a [E]> {
        self.extents.iter().filter_map(move |lane| {
            Some(bytemuck::cast_slice(
                outcome.result(&self.region(*lane, part))?,
            ))
        })
    }
}

fn are_apart(parts: &[Range<u64>]) -> bool {
    parts.windows(2).all(|pair| pair[0].end <= pair[1].start)
}
