//! Passes over the rows of a matrix, dense or sparse: one place divides the budget, cuts the rows,
//! and merges partial results.
//!
//! A [`Fold`] adds rows up to a state; a map makes one element of each row, or a row of another
//! matrix. They are told how a few rows are worked on; the plan, its memory and the order of
//! merging are made here. The bits of a result follow from the data and the budget, not from the
//! number of threads.

mod fold;
mod lanes;
mod map;
mod row_map;

pub(crate) use fold::cuts_rows;
pub use fold::{Fold, fold};
pub(crate) use lanes::Lanes;
pub(crate) use map::{Map, map};
pub use outcore_matrix::Rows;
pub(crate) use row_map::{Cost, RowMap, Work, map_into};
