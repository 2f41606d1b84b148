//! Passes over the rows of a matrix, dense or sparse: one place divides the budget, cuts the rows,
//! and merges partial results.
//!
//! A [`Fold`] adds rows up to a state; where a copy of it a thread is too much, it is cut into parts
//! that threads take. A map makes an element of each row, a row of another matrix, or other values
//! of its entries. They are told how a few rows are worked on; the plan, its memory and the order
//! of merging are made here. The bits of a result follow from the data and the budget, not from the
//! number of threads.

mod entry_map;
mod fold;
mod joined;
mod lanes;
mod map;
mod part_fold;
mod row_map;

use outcore_core::{Error, MemorySplit, Result};

pub(crate) use entry_map::{EntryMap, entry_pieces, map_entries};
pub(crate) use fold::cuts_rows;
pub use fold::{Fold, fold, fold_over};
pub(crate) use lanes::Lanes;
pub(crate) use map::{Map, map};
pub use outcore_matrix::Rows;
pub(crate) use part_fold::{PartFold, PassedRows, fold_parts};
pub(crate) use row_map::{Cost, RowMap, TaskContext, map_into, mapped_bytes};

/// Refuses a pass over more panels than a plan may have tasks, before any task is made: where an
/// operation holds all of the budget, each row would be a panel. A row takes `made` bytes beside
/// its stored ones.
///
/// # Errors
/// [`Error::OverBudget`].
pub(crate) fn check_panels(
    name: &str,
    rows: &Rows,
    made: u64,
    split: &MemorySplit,
    panel_bytes: u64,
) -> Result<()> {
    let (bytes, most) = (
        rows.stored_bytes() + rows.count() * made,
        split.tasks_most(),
    );
    let panels = bytes / panel_bytes.max(1);
    let panels = match rows {
        // A row is not cut.
        Rows::Dense(_) => panels.min(rows.count()),
        Rows::Sparse(_) => panels,
    };
    if panels <= most {
        return Ok(());
    }
    Err(Error::OverBudget {
        what: format!("{name} of {}", rows.name()),
        needed: split.needed_for_panels(bytes / most),
        available: split.whole(),
        budget: split.whole(),
    })
}
