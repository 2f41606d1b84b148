//! Rows of a matrix, wherever they are.

use std::ops::Range;

use crate::data::array::{Array, Operand, panels_that_fit};
use crate::data::format::DType;
use crate::data::sparse::Sparse;
use crate::error::Result;

/// Rows to pass over.
pub enum Rows {
    /// Lines of a sparse matrix: its rows in CSR, its columns in CSC.
    Sparse(Sparse),
    /// On SSD or in memory.
    Dense(Operand),
}

impl Rows {
    /// Rows; lines, of a sparse matrix.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.lines(),
            Rows::Dense(x) => x.rows(),
        }
    }

    /// Elements of a row, zeros among them.
    pub(crate) fn width(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.width(),
            Rows::Dense(x) => x.cols(),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Rows::Sparse(a) => a.dtype(),
            Rows::Dense(x) => x.dtype(),
        }
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Rows::Sparse(a) => a.name(),
            Rows::Dense(x) => x.name(),
        }
    }

    /// Refuses a matrix that is compressed by columns.
    pub(crate) fn check_rows_together(&self) -> Result<()> {
        match self {
            Rows::Sparse(a) => a.check_rows_together(),
            Rows::Dense(_) => Ok(()),
        }
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.stored_bytes(),
            Rows::Dense(x) => x.stored_bytes(),
        }
    }
}

/// Rows of a dense matrix in panels that take at most `panel_bytes` bytes of frames, or one row.
pub(super) fn panels(x: &Operand, panel_bytes: u64) -> Vec<Range<u64>> {
    panels_beside(x, 0, panel_bytes)
}

/// The same with `row_bytes` bytes of something else beside each row.
pub(super) fn panels_beside(x: &Operand, row_bytes: u64, panel_bytes: u64) -> Vec<Range<u64>> {
    let panels = panels_that_fit(
        x.rows(),
        x.cols() * x.dtype().bytes() + row_bytes,
        panel_bytes,
        |rows| x.frame_bytes(rows),
    );
    let rows = panels.last().map_or(0, |last| last.end);
    assert_eq!(rows, x.rows(), "every row is in a panel");
    panels
}

impl From<Operand> for Rows {
    fn from(x: Operand) -> Rows {
        Rows::Dense(x)
    }
}

impl From<Array> for Rows {
    fn from(x: Array) -> Rows {
        Rows::Dense(x.into())
    }
}

impl From<&Array> for Rows {
    fn from(x: &Array) -> Rows {
        Rows::Dense(x.into())
    }
}

impl From<&Sparse> for Rows {
    fn from(a: &Sparse) -> Rows {
        Rows::Sparse(a.clone())
    }
}

impl From<Sparse> for Rows {
    fn from(a: Sparse) -> Rows {
        Rows::Sparse(a)
    }
}
