//! How the memory of an operation is divided: what it holds, a state for each lane, and panels of
//! rows that pass by.
//!
//! Where the order of sums follows from how rows are cut, they are cut by the whole budget, so that
//! bits do not depend on what else runs. What is only moved is cut by what is free of it now.

use crate::session::{PLAN_THREADS, Session};

/// Copies of a state, at most: a constant, since it decides in which order rows are added up.
const LANES: u64 = 8;

/// The division of a budget; see the module.
#[derive(Clone, Copy)]
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
            budget: session.memory_bytes(),
            free: session.memory_free(),
            held: 0,
            lanes: 0,
            state_bytes: 0,
        }
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

    /// Whether what is held all the time leaves half of the budget to what passes by.
    pub fn leaves_half(&self, bytes: u64) -> bool {
        bytes <= self.budget / 2
    }

    /// Whether it leaves all but an eighth of it.
    pub fn leaves_most(&self, bytes: u64) -> bool {
        bytes <= self.budget / 8
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

    /// Bytes of a panel of rows that become rows of a result: every thread works on one, and two
    /// more are on their way for it.
    pub fn mapped_panel_bytes(&self) -> u64 {
        self.left() / (3 * (PLAN_THREADS + 1))
    }

    /// The same of rows that are only moved.
    pub fn moved_panel_bytes(&self) -> u64 {
        self.free() / (3 * (PLAN_THREADS + 1))
    }

    /// Bytes of a block of what is moved in order, one of some thirty: a page at least, and `most`.
    pub fn block_bytes(&self, most: u64) -> u64 {
        (self.free() / 32).clamp(4096, most)
    }
}
