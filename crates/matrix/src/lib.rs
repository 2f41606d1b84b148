//! Dense and sparse matrices on SSD.
//!
//! An [`Array`] is a dense matrix in a file, or a view of one; a [`Sparse`] is a folder of arrays.
//! [`Operand`] is what an operation reads, on SSD or in memory; [`Output`] where its result goes;
//! [`Rows`] the rows of either kind of matrix. What is computed from them is not known here.

#![forbid(unsafe_code)]

mod array;
mod convert;
mod decoders;
mod layout;
mod opening;
mod operand;
mod output;
mod rows;
pub mod sparse;
mod take;
mod typed;

pub use array::Array;
pub use convert::convert;
pub use layout::{Layout, Tile};
pub use operand::Operand;
pub use output::{Output, Target};
pub use rows::Rows;
pub use sparse::{Compressed, Sparse, SparseBufs, SparseRows};
pub use typed::Element;
