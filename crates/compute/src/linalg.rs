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
pub use reduce::{Reduction, column_norms, column_statistics, reduce, row_norms};
pub use scaled::{Scaling, scaled};
pub use sparse_reduce::{SparseStatistics, sparse_column_statistics, sparse_row_norms};
pub use syrk::{Syrk, syrk};

pub use super::krylov::eigh_largest;
use outcore_core::{DType, Error, Result};
use outcore_matrix::Operand;

/// The element type that operands share.
pub(crate) fn common_dtype(what: &str, operands: &[&Operand]) -> Result<DType> {
    let first = operands[0].dtype();
    match operands.iter().find(|operand| operand.dtype() != first) {
        None => Ok(first),
        Some(other) => Err(Error::DType {
            what: format!(
                "{what}: {} is {first}, {} is {}; convert one of them",
                operands[0].name(),
                other.name(),
                other.dtype()
            ),
        }),
    }
}
