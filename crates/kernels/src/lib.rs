//! Arithmetic on slices in memory: knows shapes, element types and instruction sets; does not know
//! files, tasks or threads.
//!
//! Every function here works on views ([`MatRef`], [`MatMut`]) or slices of the caller, runs on the
//! calling thread, and either needs no scratch or reports its size ([`gemm_scratch_bytes`],
//! [`eigh_scratch_bytes`]), so that the caller's memory budget can count it. Instruction sets are
//! chosen at run time; the plain twin of each fast kernel is in [`reference`](mod@reference), and
//! the tests compare the two.
//!
//! | module | what |
//! |---|---|
//! | [`mod@view`] | checked strided views of slices |
//! | [`mod@gemm`] | matrix products on the built-in kernel or a BLAS of the user ([`Blas`]) |
//! | [`mod@syrk`] | symmetric products at half the cost |
//! | [`gram`] | exact symmetric products of 8-bit integers |
//! | [`elementwise`] | axpby, scale, fill, convert, center, accumulate in f64, transpose |
//! | [`reduce`] | sums, dots, extrema, norms, non-finite search |
//! | [`squares`] | sums of squares that neither overflow nor underflow |
//! | [`sparse`] | products of sparse matrices with dense ones |
//! | [`mod@nearest`] | the nearest two centres of each row |
//! | [`neighbors`] | the k nearest rows to queries, exactly |
//! | [`packed`] | rows in fewer bits |
//! | [`statistics`] | mean, variance and range of columns, mergeable |
//! | [`eigen`] | symmetric eigenproblems, thin orthonormal bases |
//! | [`mod@decode`] | numbers of few bits as f32 |
//! | [`embedding`] | encoded rows of embedding tables, and their sums |
//! | `bf16` | products of rows rounded to bf16, on AMX or AVX512-BF16 |
//! | `checksums` | CRC-32C of short pieces
//! | `caches` | prefetching, and writing around the caches
//!
//! Determinism: the same arguments on the same kind of CPU give the same bits, except on a BLAS of
//! the user, which may not be deterministic.
#![deny(unsafe_code)]

mod bf16;
pub mod blas;
mod caches;
mod checksums;
pub mod decode;
pub mod eigen;
pub mod elementwise;
pub mod embedding;
mod error;
pub mod gemm;
pub mod gram;
pub mod nearest;
pub mod neighbors;
pub mod packed;
mod real;
pub mod reduce;
pub mod reference;
pub mod sparse;
pub mod squares;
pub mod statistics;
pub mod syrk;
pub mod view;

pub use self::gemm::{gemm, gemm_flops, gemm_scratch_bytes, gemm_until};
pub use self::view::{view, view_mut};
pub use blas::Blas;
pub use caches::{append_past_caches, fetch_bytes, fetch_from};
pub use checksums::{append_with_crc32c, crc32c_of_three};
pub use eigen::{
    Eigen, Svd, TopOptions, eigh, eigh_scratch_bytes, eigh_top, eigh_top_scratch_bytes,
    eigh_top_with, orthonormalize, svd, svd_scratch_bytes, thread_bytes,
};
pub use elementwise::{
    Narrow, add_into_f64, axpby, axpby_until, center_into, convert_from_f64, convert_into,
    convert_to_f64, convert_until, copy_into, copy_until, fill, narrow_until, parts, scale,
    scale_until, transpose_into,
};
pub use error::Error;
pub use faer::perm::swap_cols_idx;
pub use faer::{Mat, MatMut, MatRef};
pub use gram::{Byte, byte_gram, byte_gram_held_bytes, byte_gram_scratch_bytes, byte_gram_until};
pub use nearest::{
    Nearest, PackedCenters, nearest, nearest_flops, nearest_held_bytes, nearest_of_products,
    nearest_scratch, nearest_until, row_squares,
};
pub use neighbors::{
    Comparison, KnownBlock, Metric, Neighbor, NeighborTile, NumberedRows, Numbers, Pair, Postings,
    RowCenters, SparseNumberedRows, Within, add_mutual_neighbors, add_mutual_sparse_neighbors,
    add_neighbors, add_neighbors_of, add_sparse_neighbors, add_sparse_within, add_within,
    gathered_bytes, neighbors_reference, squares_of_rows,
};
pub use packed::{Packing, packed_row_bytes, packing_held_bytes};
pub use real::{Real, RealType};
pub use reduce::{
    Norm, column_norms, column_sums, dot, first_non_finite, max, min, row_norms, sum,
    sum_of_squares,
};
pub use sparse::{
    CALL_FLOPS, Converted, Csr, Entries, Index, Lines, Picked, Tile, Tiles, csr_gram, csrmm,
    csrmm_flops, csrmm_transposed, csrmm_transposed_until, csrmm_until, dense_times_sparse,
    gram_rows, sparse_times_sparse,
};
pub use squares::Squares;
pub use statistics::ColumnStatistics;
pub use syrk::{mirror_lower, syrk, syrk_flops, syrk_until};
