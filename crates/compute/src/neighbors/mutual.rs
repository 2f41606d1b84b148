//! The nearest rows of a matrix to each other: a product of two blocks of rows is made once, and
//! both find what it says.
//!
//! ```text
//!   group 0   0x0 0x1 0x2 0x3         blocks of the group meet each other, then all later blocks,
//!                 1x1 1x2 1x3         whose lists wait in scratch for their own group
//!   group 1           2x2 2x3
//!                         3x3
//! ```

use std::ops::Range;
use std::sync::Arc;

use outcore_core::{Result, Segments, Session, StoredFile};
use outcore_engine::{Plan, Region, Task, go_on};

use super::nearest::Into;
use super::{NEIGHBOR_BYTES, NeighborOptions, Side, Sought, Wanted, groups, state_regions};

/// Later blocks that are in memory together, so that tasks one after another have no list in common.
const LAYER: usize = 8;
/// Operations on numbers in the time in which a byte of a list moves.
const FLOPS_A_BYTE: u64 = 32;
/// Of a product of two blocks at least: to put more and smaller ones in order takes longer than they
/// save.
const FLOPS_A_TASK: u64 = 1 << 22;

/// Rows that look for each other, in groups.
pub(super) struct Join<S: Side> {
    side: S,
    options: NeighborOptions,
    groups: Vec<Vec<Block<S::RowRange>>>,
    /// Where lists wait for their group, if there are several.
    waiting: Option<Arc<StoredFile>>,
}

type Block<P> = (P, Range<u64>);

impl<S: Side> Join<S> {
    /// None where the rows are not looking for each other, or it does not pay.
    pub(super) fn of(
        session: &Session,
        side: &S,
        options: NeighborOptions,
    ) -> Result<Option<Join<S>>> {
        let list_bytes = options.k * NEIGHBOR_BYTES;
        let Some(blocks) = side.mutual_blocks(3 * list_bytes) else {
            return Ok(None);
        };
        let rows: Vec<_> = blocks
            .iter()
            .map(|(block, _)| side.numbers(block))
            .collect();
        let longest = rows.first().map_or(0, |rows| rows.end - rows.start);
        if blocks.len() > 1 && 2 * longest * longest * side.terms() < FLOPS_A_TASK {
            return Ok(None);
        }
        let with_lists = blocks.into_iter().zip(&rows).map(|((block, bytes), rows)| {
            let lists = 3 * list_bytes * (rows.end - rows.start);
            ((block, rows.clone()), bytes + lists)
        });
        let groups = groups(with_lists, side.staying(0).left());
        if groups.len() > 1 {
            // A later row's list comes and goes with each group, and saves half of its products.
            let of_group = rows.last().map_or(0, |last| last.end) / groups.len() as u64;
            if 2 * list_bytes * FLOPS_A_BYTE > of_group * side.terms() {
                return Ok(None);
            }
        }
        let waiting = match groups.len() {
            0 | 1 => None,
            _ => Some(session.scratch_file(None, list_bytes * side.rows())?),
        };
        Ok(Some(Join {
            side: side.clone(),
            options,
            groups,
            waiting,
        }))
    }

    /// How many groups.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// A plan for each group, one after another.
    pub(super) fn fill(&self, segments: &mut Segments<'_>, into: &Into) -> Result<()> {
        for (number, group) in self.groups.iter().enumerate() {
            if number > 0 {
                segments.split()?;
            }
            let later: Vec<&Block<S::RowRange>> =
                self.groups[number + 1..].iter().flatten().collect();
            self.add_group(segments.plan(), group, &later, number == 0, into)?;
        }
        Ok(())
    }

    fn add_group(
        &self,
        plan: &mut Plan,
        group: &[Block<S::RowRange>],
        later: &[&Block<S::RowRange>],
        is_first: bool,
        into: &Into,
    ) -> Result<()> {
        let ends = group.first().zip(group.last());
        let rows = ends.map_or(0..0, |((_, first), (_, last))| first.start..last.end);
        let found_bytes = (rows.end - rows.start) * self.options.k * NEIGHBOR_BYTES;
        plan.bound(self.side.stored_bytes(rows) + found_bytes);
        let sought: Vec<Sought> = group.iter().map(|(_, rows)| self.sought(rows)).collect();
        let states = state_regions(plan, sought.iter().copied());
        if !is_first {
            for ((_, rows), state) in group.iter().zip(&states) {
                let list = self.waiting_list(plan, rows);
                plan.task(Task::new("take").read(list).write(*state).run(|cx| {
                    let (list, state) = cx.blocks.split_at_mut(1);
                    state[0].bytes_mut().copy_from_slice(list[0].bytes());
                    Ok(())
                }));
            }
        }
        let mut is_begun = vec![!is_first; group.len()];
        for (one, other) in pairs(group.len()) {
            go_on()?;
            let begins = [one, other].map(|at| !std::mem::replace(&mut is_begun[at], true));
            let blocks = [&group[one], &group[other]];
            self.meet(plan, blocks, [states[one], states[other]], begins);
        }
        for layer in later.chunks(LAYER) {
            let lists: Vec<Region> = layer
                .iter()
                .map(|(_, rows)| self.waiting_list(plan, rows))
                .collect();
            let mut is_begun = vec![!is_first; layer.len()];
            for shift in 0..layer.len() {
                for (at, (block, state)) in group.iter().zip(&states).enumerate() {
                    go_on()?;
                    let other = (at + shift) % layer.len();
                    let begins = [false, !std::mem::replace(&mut is_begun[other], true)];
                    let blocks = [block, layer[other]];
                    self.meet(plan, blocks, [*state, lists[other]], begins);
                }
            }
        }
        for (((_, rows), sought), state) in group.iter().zip(sought).zip(states) {
            into.put(plan, rows.clone(), (sought, self.options.k), state);
        }
        Ok(())
    }
}

impl<S: Side> Join<S> {
    fn sought(&self, rows: &Range<u64>) -> Sought {
        let NeighborOptions { k, metric } = self.options;
        Sought::new(metric, Wanted::Nearest(k), rows.clone())
    }

    fn waiting_list(&self, plan: &mut Plan, rows: &Range<u64>) -> Region {
        let Some(file) = &self.waiting else {
            unreachable!("one group waits for none")
        };
        let bytes = self.options.k * NEIGHBOR_BYTES;
        let len = (rows.end - rows.start) * bytes;
        Region::span(plan.extent(file.extent()), rows.start * bytes, len)
    }

    /// Adds the task in which two blocks meet, or one itself; which lists begin with it is told.
    fn meet(
        &self,
        plan: &mut Plan,
        blocks: [&Block<S::RowRange>; 2],
        lists: [Region; 2],
        begins: [bool; 2],
    ) {
        let [one, other] = [0, 1].map(|at: usize| Sought {
            is_first: begins[at],
            ..self.sought(&blocks[at].1)
        });
        let add = |task: Task, at: usize| match begins[at] {
            true => task.write(lists[at]),
            false => task.update(lists[at]),
        };
        let parts = blocks.map(|(part, _)| part);
        let task = match blocks[0].1 == blocks[1].1 {
            true => add(self.side.compare(plan, parts[0], parts[1], one), 0),
            false => {
                let task = self.side.meet_each_other(plan, parts, [one, other]);
                add(add(task, 0), 1)
            }
        };
        plan.task(task);
    }
}

/// All pairs of `count` things, and each with itself: none of those that follow each other in a
/// round are in two of them.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |round| {
        (0..count)
            .map(move |one| (one, (round + count - one) % count))
            .filter(|(one, other)| one <= other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_comes_once_and_those_of_a_round_are_apart() {
        for count in 0..12 {
            let all: Vec<_> = pairs(count).collect();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(
                (all.len(), sorted.len()),
                (count * (count + 1) / 2, all.len())
            );
            for pair in all.windows(2).filter(|pair| pair[0].0 < pair[1].0) {
                assert!(pair[0].1 != pair[1].0 && pair[0].1 != pair[1].1);
            }
        }
    }
}
