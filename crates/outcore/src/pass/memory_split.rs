//! How a pass divides the budget.

use crate::session::{PLAN_THREADS, Session};

/// Copies of a state, at most. A constant, since it decides in which order rows are added up.
const LANES: u64 = 8;

/// Memory of a pass: a state for each lane, and panels of rows.
///
/// It divides the whole budget, not what is free of it: the order of sums follows from it.
pub(crate) struct MemorySplit {
    budget: u64,
    lanes: u64,
    state_bytes: u64,
}

impl MemorySplit {
    pub(crate) fn new(session: &Session) -> MemorySplit {
        MemorySplit { budget: session.memory_bytes(), lanes: 0, state_bytes: 0 }
    }

    /// A state for each lane: as many as a quarter of the budget has room for, one at least.
    pub(crate) fn states(self, state_bytes: u64) -> MemorySplit {
        MemorySplit { state_bytes, lanes: (self.budget / 4 / state_bytes.max(1)).clamp(1, LANES), ..self }
    }

    pub(crate) fn lanes(&self) -> u64 {
        self.lanes
    }

    /// Bytes of a panel of rows: every thread works on one, and three more are on their way for it.
    pub(crate) fn panel_bytes(&self) -> u64 {
        self.budget.saturating_sub(self.lanes * self.state_bytes) / (4 * (PLAN_THREADS + 1))
    }
}
