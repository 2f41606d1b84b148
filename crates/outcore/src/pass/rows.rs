//! Rows of a matrix, wherever they are.

use std::ops::Range;

use crate::data::array::{Operand, panels_that_fit};
use crate::data::sparse::Sparse;

/// Rows to pass over.
pub enum Rows {
    /// Lines of a sparse matrix: its rows in CSR, its columns in CSC.
    Sparse(Sparse),
    /// On SSD or in memory.
    Dense(Operand),
}

impl Rows {
    pub(crate) fn stored_bytes(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.stored_bytes(),
            Rows::Dense(x) => x.stored_bytes(),
        }
    }
}

/// Rows of a dense matrix in panels that take at most `panel_bytes` bytes of frames, or one row.
pub(super) fn panels(x: &Operand, panel_bytes: u64) -> Vec<Range<u64>> {
    panels_that_fit(x.rows(), x.cols() * x.dtype().bytes(), panel_bytes, |rows| x.frame_bytes(rows))
}
