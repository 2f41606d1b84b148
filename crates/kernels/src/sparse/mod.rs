//! Products of a sparse matrix with dense ones.
//!
//! A sparse matrix is in compressed rows (CSR): `offsets` of the entries of each row, `indices`
//! with the column of each entry, and `values`; without values every entry is one. A matrix in
//! compressed columns is the transpose of one in compressed rows. All work proceeds row by row: for
//! A X the rows of X named by a row of A are summed in registers, for A^T X a row of X is added to
//! the rows of the result named by a row of A, and A^T (A X) does both in turn, so that each row of
//! A is read once.
//!
//! Dense operands are row-major: an entry moves a contiguous row of X. An operand may be a window,
//! the rows from `first` on of one that is not all in memory; entries outside it are skipped. Cost:
//! 2 nnz d operations and nnz rows of X, of which cached ones are free; no scratch unless stated.
//! Determinism: entries are added in their order.
#![forbid(unsafe_code)]

mod adapters;
mod csr;
mod csrmm;
mod lines;
mod sparse_factor;
mod tiles;
mod vectors;

use faer::MatRef;

use crate::{Error, Real};

pub use adapters::{Converted, Picked};
pub use csr::Csr;
pub use csrmm::{
    CALL_FLOPS, csr_gram, csrmm, csrmm_flops, csrmm_transposed, csrmm_transposed_until,
    csrmm_until, gram_rows,
};
pub use lines::{Entries, Index, Lines};
pub use sparse_factor::{dense_times_sparse, sparse_times_sparse};
pub use tiles::{Tile, Tiles};

/// Rows are runs of memory.
fn by_rows<T: Real>(a: MatRef<'_, T>) -> bool {
    a.col_stride() == 1 || a.ncols() <= 1
}

fn shapes<T: Real>(
    operation: &'static str,
    a: (usize, usize),
    x: MatRef<'_, T>,
    c: MatRef<'_, T>,
) -> Error {
    let strides = |of: MatRef<'_, T>| {
        format!(
            "{:?} with strides ({}, {})",
            of.shape(),
            of.row_stride(),
            of.col_stride()
        )
    };
    Error::shape(
        operation,
        &[
            ("the sparse matrix", &a),
            ("the operand", &strides(x)),
            ("the result", &strides(c)),
        ],
    )
}
