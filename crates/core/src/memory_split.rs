//! How the memory of an operation is divided: what it holds, a state for each lane, and panels of
//! rows that pass by.
//!
//! Where the order of sums follows from how rows are cut, they are cut by the whole budget, so that
//! bits do not depend on what else runs. What is only moved is cut by what is free of it now.

use crate::session::{PLAN_THREADS, Session};

/// Copies of a state, at most: a constant, since it decides in which order rows are added up.
const LANES: u64 = 8;

/// The division of a budget; see the module.
#[derive(Clone, Copy, Debug)]
pub struct MemorySplit {
    budget: u64,
    free: u64,
    held: u64,
    lanes: u64,
    state_bytes: u64,
}

impl MemorySplit {
    /// All of the budget, and what of it is free now.
    pub fn new(session: &Session) -> MemorySplit {
        MemorySplit {
            free: session.memory_free(),
            ..MemorySplit::of(session.memory_bytes())
        }
    }

    /// As much memory, all of it free: to ask what other memory would do.
    pub fn of(bytes: u64) -> MemorySplit {
        MemorySplit {
            budget: bytes,
            free: bytes,
            held: 0,
            lanes: 0,
            state_bytes: 0,
        }
    }

    /// What is left of the memory that is free now, as if it were all: for what changes no sum.
    pub fn of_free(&self) -> MemorySplit {
        MemorySplit::of(self.free())
    }

    /// Half of what is left, where others may have the rest.
    pub fn half(&self) -> MemorySplit {
        MemorySplit::of(self.left() / 2)
    }

    /// Half of what is left for blocks that stay, where others pass by: the engine keeps a twelfth for
    /// scratch, and a sixteenth for shared sectors.
    pub fn staying(&self) -> MemorySplit {
        MemorySplit::of(self.movable() / 2)
    }

    /// Three quarters of it, where what passes by is small.
    pub fn mostly_staying(&self) -> MemorySplit {
        MemorySplit::of(self.movable() / 4 * 3)
    }

    fn movable(&self) -> u64 {
        let kept = self.budget / 12 + self.budget / 16;
        self.left().saturating_sub(kept)
    }

    /// A third of what is left, for what passes by where the rest is held in parts.
    pub fn third(&self) -> MemorySplit {
        MemorySplit::of(self.left() / 3)
    }

    /// Sets aside what is held all the time.
    pub fn hold(self, bytes: u64) -> MemorySplit {
        MemorySplit {
            held: self.held + bytes,
            ..self
        }
    }

    /// A state for each lane: as many as a quarter of the budget has room for, one at least.
    pub fn states(self, state_bytes: u64) -> MemorySplit {
        assert_eq!(self.lanes, 0, "an operation has one kind of state");
        let lanes =
            (self.budget.saturating_sub(self.held) / 4 / state_bytes.max(1)).clamp(1, LANES);
        MemorySplit {
            state_bytes,
            lanes,
            ..self
        }
    }

    /// Copies of the state.
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// Bytes that the lanes of a state that is cut into parts take together: more than whole states
    /// get, since the wider a part is, the faster are products with rows.
    pub fn parts_bytes(&self) -> u64 {
        self.budget * 2 / 5
    }

    /// The same of the memory that is free now, for what changes no sum.
    pub fn free_parts_bytes(&self) -> u64 {
        self.parts_bytes().min(self.free * 2 / 5)
    }

    /// Bytes of a part of a state, at most: it leaves room for rows.
    pub fn part_bytes(&self) -> u64 {
        self.budget / 12
    }

    /// Bytes of a block of rows beside large states: all threads work on a few blocks, and a task
    /// may hold its rows once more, as its kernel takes them.
    pub fn block_of_rows_bytes(&self) -> u64 {
        self.budget / 16
    }

    /// Bytes of a block of rows that a state is kept for between passes: a smaller one, since passes
    /// leave out blocks of which nothing is wanted.
    pub fn block_of_rows_with_states_bytes(&self) -> u64 {
        self.budget / 96
    }

    /// Bytes of all slots of a ring: a quarter of the budget.
    pub fn ring_bytes(&self) -> u64 {
        self.free / 4
    }

    /// The budget of which the slots of a ring take `ring_bytes`.
    pub fn needed_for_ring(ring_bytes: u64) -> u64 {
        4 * ring_bytes
    }

    /// Bytes of what stays while blocks go round.
    pub fn ring_group_bytes(&self) -> u64 {
        self.free * 3 / 8
    }

    /// Bytes of what passes by while a slot is read into.
    pub fn ring_reading_bytes(&self) -> u64 {
        self.free / 8
    }

    /// Bytes of the products that each thread compares with what queries have found.
    pub fn ring_compared_bytes(&self, threads: u64) -> u64 {
        self.free / 8 / threads
    }

    /// Bytes of a piece that is read into a slot at a time.
    pub fn ring_piece_bytes(&self) -> u64 {
        self.budget / 64
    }

    /// Whether what is held all the time leaves half of the budget to what passes by.
    pub fn leaves_half(&self, bytes: u64) -> bool {
        bytes <= self.budget / 2
    }

    /// Whether it leaves all but an eighth of it.
    pub fn leaves_most(&self, bytes: u64) -> bool {
        bytes <= self.budget / 8
    }

    /// Whether it leaves an eighth of the budget, and beside what passes by at the least a
    /// sixteenth.
    pub fn leaves_room_for(&self, bytes: u64, passing_bytes: impl FnOnce() -> u64) -> bool {
        bytes <= self.budget / 8 * 7 && bytes + passing_bytes() <= self.budget / 16 * 15
    }

    /// Whether `bytes` leave a quarter of the budget.
    pub fn leaves_a_quarter(&self, bytes: u64) -> bool {
        bytes <= self.budget / 4 * 3
    }

    /// Whether what is held and the states leave a quarter of the budget to rows.
    pub fn has_room_for_rows(&self) -> bool {
        self.left() >= self.budget / 4
    }

    /// Whether the budget has room for it, if no other takes any.
    pub fn can_hold(&self, bytes: u64) -> bool {
        bytes <= self.budget
    }

    /// Whether all lanes of a state take half of what parts get, so that it need not be cut.
    pub fn has_room_for_all_lanes(&self, state_bytes: u64) -> bool {
        LANES * state_bytes <= self.parts_bytes() / 2
    }

    /// Lanes of a state that is cut into parts.
    pub fn lanes_in_parts(&self, state_bytes: u64) -> u64 {
        (self.parts_bytes() / state_bytes.max(1)).clamp(1, LANES)
    }

    /// What is left of half of the budget, of which others may have the rest.
    pub fn left_of_half(&self) -> u64 {
        (self.budget / 2).saturating_sub(self.held + self.lanes * self.state_bytes)
    }

    /// The budget.
    pub fn whole(&self) -> u64 {
        self.budget
    }

    /// What is left of the budget.
    pub fn left(&self) -> u64 {
        self.budget
            .saturating_sub(self.held + self.lanes * self.state_bytes)
    }

    /// What is left of the memory that is free now.
    pub fn free(&self) -> u64 {
        self.free
            .saturating_sub(self.held + self.lanes * self.state_bytes)
    }

    /// Bytes of a panel of rows that a state takes in: every thread works on one, and three more
    /// are on their way for it.
    pub fn panel_bytes(&self) -> u64 {
        self.left() / (4 * (PLAN_THREADS + 1))
    }

    /// A budget that has panels of this many bytes; of what it has beyond what is held, lanes take a quarter, or one of them does.
    pub fn needed_for_panels(&self, bytes: u64) -> u64 {
        let panels = bytes * 4 * (PLAN_THREADS + 1);
        self.held + (self.state_bytes + panels).max(panels / 3 * 4 + 4)
    }

    /// Tasks of a pass, at most: each takes about a kilobyte beside the budget.
    pub fn tasks_most(&self) -> u64 {
        (self.budget / (8 << 10)).max(1 << 15)
    }

    /// Bytes of a panel of rows that become rows of a result: every thread works on one, and two
    /// more are on their way for it.
    pub fn mapped_panel_bytes(&self) -> u64 {
        self.left() / (3 * (PLAN_THREADS + 1))
    }

    /// The same of rows that are only moved.
    pub fn moved_panel_bytes(&self) -> u64 {
        self.free() / (3 * (PLAN_THREADS + 1))
    }

    /// Bytes of a tile that is transposed on its way: every thread works on one, and one more is on
    /// its way for it. How an array is cut into these decides how long the runs of both sides are.
    pub fn transposed_tile_bytes(&self, threads: u64) -> u64 {
        self.free() / (2 * (threads + 1))
    }

    /// The same of rows that are read in one place and written in another.
    pub fn copied_panel_bytes(&self) -> u64 {
        self.moved_panel_bytes() / 2
    }

    /// Bytes of a panel of rows that go into parts of scratch, and of a part: three tasks are under
    /// way, each with a panel and its chunks or a part and its rows.
    pub fn scattered_panel_bytes(&self) -> u64 {
        self.free() / 6
    }

    /// The same where chunks are not whole blocks of a file, which takes up to half as much again.
    pub fn padded_panel_bytes(&self) -> u64 {
        self.free() / 8
    }

    /// Bytes of what tells where such chunks are.
    pub fn places_bytes(&self) -> u64 {
        self.free() / 16
    }

    /// Bytes that the blocks of a product of dense matrices take together, where a task holds
    /// `scratch_bytes`: the engine keeps scratch for two tasks, or a twelfth, and a sixteenth for
    /// shared sectors, and of the rest a sixth for blocks on their way.
    pub fn product_bytes(&self, scratch_bytes: u64) -> u64 {
        let kept = (2 * scratch_bytes).max(self.budget / 12) + self.budget / 16;
        self.budget.saturating_sub(kept) * 5 / 6
    }

    /// Bytes of that sixth.
    pub fn product_ahead_bytes(&self, scratch_bytes: u64) -> u64 {
        self.product_bytes(scratch_bytes) / 5
    }

    /// Bytes of what is copied at once of rows that wait in memory while others pass by.
    pub fn packed_bytes(&self) -> u64 {
        self.budget / 32
    }

    /// Bytes of a band of an operand, where a product has room for neither side: two of them take a
    /// third, the rows of the result a quarter, what passes by the rest.
    pub fn band_bytes(&self) -> u64 {
        self.budget / 6
    }

    /// Bytes of those rows of the result.
    pub fn beside_bands_bytes(&self) -> u64 {
        self.budget / 4
    }

    /// Bytes of what an operation learns of data that pass by, or sorts of it at once.
    pub fn collected_bytes(&self) -> u64 {
        self.budget / 4
    }

    /// The same of the memory that is free now.
    pub fn free_collected_bytes(&self) -> u64 {
        self.free() / 4
    }

    /// Bytes of a batch of entries that are decoded, a quarter of what is left: an entry with its row
    /// takes half as much again, and all of them are held once more while they are decoded.
    pub fn decoded_batch_bytes(&self) -> u64 {
        self.left() / 4
    }

    /// Bytes of the products that a task compares with what it has found.
    pub fn compared_bytes(&self) -> u64 {
        self.free() / 16
    }

    /// Bytes of the rounded operands of such products, which each thread makes; a task makes the
    /// products without where they have no room.
    pub fn rounded_bytes(&self, threads: u64) -> u64 {
        self.budget / 8 / threads
    }

    /// Bytes of a step of what is written as it comes in, or of the plan of such steps.
    pub fn step_bytes(&self) -> u64 {
        self.budget / 64
    }

    /// Bytes of entries that a sort by way of scratch holds, sorted or being sorted.
    pub fn sorted_bytes(&self) -> u64 {
        self.budget / 5 * 3
    }

    /// Bytes of a piece that such a sort reads, of which every thread works on one: a tenth in all.
    pub fn unsorted_piece_bytes(&self) -> u64 {
        self.budget / 10 / (PLAN_THREADS + 1)
    }

    /// Bytes of the groups that such a sort puts together: while one goes out the next comes in.
    pub fn group_bytes(&self) -> u64 {
        self.left() * 3 / 5
    }

    /// How many values a bucket of such a sort tells apart: of each it has an offset and a counter,
    /// as have the other buckets on their way in or out.
    pub fn bucket_width(&self) -> u64 {
        (self.budget / 512).next_power_of_two()
    }

    /// Bytes of a block of what is moved in order, one of some thirty: a page at least, and `most`.
    pub fn block_bytes(&self, most: u64) -> u64 {
        (self.free() / 32).clamp(4096, most)
    }

    /// The same of one of several streams that are open at a time, a power of two.
    pub fn side_block_bytes(&self, least: u64, most: u64) -> u64 {
        (self.free() / 128).next_power_of_two().clamp(least, most)
    }

    /// Bytes of rows of tables that stay in memory.
    pub fn kept_rows_bytes(&self) -> u64 {
        self.budget / 8
    }

    /// Bytes of what look-ups in tables read at a time: deep queues need no more than `most`.
    pub fn looked_up_bytes(&self, most: u64) -> u64 {
        (self.budget / 8).min(most)
    }

    /// Bytes of what is made ready ahead of its turn.
    pub fn ahead_bytes(&self) -> u64 {
        self.free() / 4
    }

    /// Bytes of chunks from which samples are drawn in random order: of the whole budget, since the
    /// order is to be the same whatever else goes on.
    pub fn drawn_chunks_bytes(&self) -> u64 {
        self.budget / 8
    }

    /// Bytes of a piece of memory from which a cache cuts its slots, and of the longest one.
    pub fn cache_piece_bytes(&self) -> [u64; 2] {
        [self.budget / 64, self.budget / 16]
    }

    /// Whether rows that are read in every round leave a quarter of what is left to what passes by.
    pub fn keeps_rows(&self, bytes: u64) -> bool {
        bytes <= self.left() / 4 * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_together_fits_the_budget() {
        for budget in [4096, 1 << 20, (3 << 20) + 1, 1 << 40] {
            let split = MemorySplit::of(budget);
            let lanes = split.hold(budget / 10).states(budget / 100);
            let panels = |bytes: u64| 4 * (PLAN_THREADS + 1) * bytes;
            let sorted = split.hold(split.sorted_bytes());
            let together = [
                budget / 10 + lanes.lanes() * (budget / 100) + panels(lanes.panel_bytes()),
                2 * split.band_bytes() + split.beside_bands_bytes() + split.third().left(),
                split.sorted_bytes() + (PLAN_THREADS + 1) * split.unsorted_piece_bytes(),
                split.sorted_bytes() + sorted.group_bytes() + 2 * split.step_bytes(),
                split.product_bytes(budget / 100) + split.product_ahead_bytes(budget / 100),
            ];
            assert!(
                together.iter().all(|&bytes| bytes <= budget),
                "{together:?} of {budget}"
            );
        }
    }

    #[test]
    fn what_others_have_leaves_sums_as_they_are() {
        let whole = MemorySplit::of(1 << 30);
        let part = MemorySplit {
            free: 1 << 20,
            ..whole
        };
        let cuts = |split: MemorySplit| {
            let states = split.states(1 << 20);
            [
                states.lanes(),
                states.panel_bytes(),
                split.mapped_panel_bytes(),
                split.band_bytes(),
                split.half().left(),
                split.product_bytes(1 << 20),
            ]
        };
        assert_eq!(cuts(part), cuts(whole));
        assert_eq!(part.of_free().left(), 1 << 20);
    }
}
