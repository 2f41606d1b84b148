//! Linear algebra, dense and sparse: products, element-wise work, norms and statistics.

mod affine;
mod csrcsc;
mod csrmm;
mod elementwise;
mod gemm;
mod gram_product;
mod projection;
mod reduce;
mod repack;
mod scaled;
mod sparse_reduce;
mod syrk;
mod tiling;

pub use affine::{Affine, affine};
pub use csrcsc::csrcsc;
pub use csrmm::{Csrmm, csrmm, csrmm_into};
pub(crate) use csrmm::{numbers, short_piece_bytes};
pub use elementwise::{Axpby, axpby, scale};
pub use gemm::{Gemm, gemm, gemm_into};
pub(crate) use gemm::{in_calls, syrk_in_calls};
pub use gram_product::gram_product;
pub use projection::project;
pub use reduce::{
    Reduction, column_norms, column_statistics, column_statistics_over, reduce, row_norms,
};
pub use scaled::{Scaling, scaled};
pub use sparse_reduce::{
    SparseStatistics, sparse_column_statistics, sparse_column_statistics_over, sparse_row_norms,
};
pub use syrk::{Syrk, syrk};

use outcore_core::{DType, Error, RealType, Result};
use outcore_matrix::Operand;

/// Operands that no operation computes with together, by name.
pub(crate) fn of_two_types(
    what: &str,
    (a, a_type): (&str, DType),
    (b, b_type): (&str, DType),
) -> Error {
    Error::DType {
        what: format!(
            "{what}: {a} is {a_type}, {b} is {b_type}; outcore.convert(x, path, dtype='float64') makes a copy of a dense one that goes with any other of 64 bits, dtype='float32' with those of fewer"
        ),
    }
}

/// The type that an operation computes in: that of all its operands.
pub(crate) fn common_real(what: &str, operands: &[&Operand]) -> Result<RealType> {
    let first = operands[0].real()?;
    for other in operands {
        if other.real()? != first {
            let [a, b] = [operands[0], other].map(|x| (x.name(), x.dtype()));
            return Err(of_two_types(what, a, b));
        }
    }
    Ok(first)
}
