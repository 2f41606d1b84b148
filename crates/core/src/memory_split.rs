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
