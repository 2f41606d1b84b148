//! Errors of the arithmetic: a shape mismatch, an unusable library, no convergence.

use std::fmt::Debug;

/// An error of the kernels. Values are never an error here: NaN and infinity propagate as in IEEE
/// 754.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operands whose shapes do not fit together.
    #[error("{operation}: {what}")]
    Shape {
        /// The function that was called.
        operation: &'static str,
        /// The shapes, as text.
        what: String,
    },
    /// A view that would exceed its slice, or whose elements would share memory.
    #[error(
        "view of {rows} x {cols} elements with strides ({row_stride}, {col_stride}) in a slice of {len}: {why}"
    )]
    View {
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
        /// Elements from one row to the next.
        row_stride: usize,
        /// Elements from one column to the next.
        col_stride: usize,
        /// Elements in the slice.
        len: usize,
        /// The reason.
        why: &'static str,
    },
    /// A sparse matrix with an invalid number.
    #[error("{part} of a sparse matrix, number {at}: {why}")]
    Sparse {
        /// `offsets`, `indices` or `values`.
        part: &'static str,
        /// Which of them, counted from 0.
        at: usize,
        /// The reason.
        why: String,
    },
    /// A BLAS library that cannot be loaded.
    #[error("cannot load the BLAS library {library}: {source}")]
    BlasLoad {
        /// Path or name as the caller gave it.
        library: String,
        /// The error of the dynamic loader.
        source: libloading::Error,
    },
    /// A library that was loaded but is not a BLAS that can be used here.
    #[error("{library} cannot be used as a BLAS: {why}")]
    BlasUnusable {
        /// Path or name as the caller gave it.
        library: String,
        /// The missing symbol, or the failed check.
        why: String,
    },
    /// A decomposition that did not converge; NaN or infinity in the matrix is the usual cause.
    #[error("{operation} did not converge: {why}")]
    NotConverged {
        /// The function that was called.
        operation: &'static str,
        /// The residual that was reached.
        why: String,
    },
}

impl Error {
    /// A shape error with a text of the named shapes.
    pub(crate) fn shape(operation: &'static str, shapes: &[(&str, &dyn Debug)]) -> Self {
        let parts: Vec<String> = shapes
            .iter()
            .map(|(name, shape)| format!("{name} is {shape:?}"))
            .collect();
        Self::Shape {
            operation,
            what: format!("shapes do not fit: {}", parts.join(", ")),
        }
    }
}
