//! SciPy's sparse matrices: a zip archive of `.npy` arrays, as `scipy.sparse.save_npz` writes it.
//!
//! ```text
//!   format.npy   csr, csc or coo              shape.npy   rows, columns
//!   indptr.npy   indices.npy   data.npy       of csr and csc
//!   row.npy      col.npy       data.npy       of coo
//! ```
//!
//! All arrays are streamed at once, each by its own reader of the file, stored or deflated; an
//! archive of any size is read with about 600 KiB besides the requested rows. Checksums are
//! verified at the end of an array. Source: `scipy/sparse/_matrix_io.py`.

mod member;
mod writer;

use std::sync::Arc;

use self::member::{Members, Numbers};
pub use self::writer::Writer;
use crate::bytes::ReadAt;
use crate::error::shown;
use crate::{Batch, Error, Result, Triplets};

/// Layout of the entries in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Rows in compressed form: [`Reader::rows`].
    Csr,
    /// Columns in compressed form: [`Reader::rows`] returns columns.
    Csc,
    /// Single entries: [`Reader::entries`].
    Coo,
}

/// Reads an archive from its first entry to its last.
pub struct Reader {
    /// Layout of the entries in the file.
    pub layout: Layout,
    /// Rows.
    pub row_count: u64,
    /// Columns.
    pub column_count: u64,
    /// Entries.
    pub entry_count: u64,
    object: String,
    /// First entries (csr and csc), or rows (coo).
    places: Numbers,
    indices: Numbers,
    values: Numbers,
    next_line: u64,
    next_entry: u64,
    /// Ends of the next rows, read ahead; those before `end` are consumed.
    ends: Vec<u64>,
    end: usize,
}

impl Reader {
    /// Opens an archive. `object` is the file's name in errors.
    ///
    /// Errors: [`Error::Corrupt`], [`Error::Unsupported`] for bsr, dia and dense arrays.
    pub fn open(object: &str, file: Arc<dyn ReadAt>) -> Result<Reader> {
        let mut members = Members::open(object, file)?;
        let layout = match members.array("format")?.read_text()?.as_str() {
            "csr" => Layout::Csr,
            "csc" => Layout::Csc,
            "coo" => Layout::Coo,
            other => {
                return Err(Error::unsupported(
                    object,
                    format!(
                        "the sparse format '{}'; save X.tocsr() instead",
                        shown(other)
                    ),
                ));
            }
        };
        let mut shape = Vec::new();
        let mut shape_array = members.array("shape")?;
        if shape_array.length != 2 {
            return Err(Error::unsupported(
                object,
                format!(
                    "an array of {} dimensions; matrices have 2",
                    shape_array.length
                ),
            ));
        }
        shape_array.read_indices(2, &mut shape)?;
        let (places, indices) = match layout {
            Layout::Coo => ("row", "col"),
            _ => ("indptr", "indices"),
        };
        let (mut places, indices, values) = (
            members.array(places)?,
            members.array(indices)?,
            members.array("data")?,
        );
        let (row_count, column_count, entry_count) = (shape[0], shape[1], values.length);
        let expected_places = match layout {
            Layout::Csr => row_count + 1,
            Layout::Csc => column_count + 1,
            Layout::Coo => entry_count,
        };
        if indices.length != entry_count || places.length != expected_places {
            let reason = format!(
                "{} places and {} indices for {entry_count} values",
                places.length, indices.length
            );
            return Err(Error::corrupt(
                object,
                0,
                format!("{reason} in a matrix of {row_count} rows and {column_count} columns"),
            ));
        }
        if layout != Layout::Coo {
            let mut first = Vec::new();
            places.read_indices(1, &mut first)?;
            if first != [0] {
                return Err(Error::entry(
                    object,
                    0,
                    format!("indptr begins with {}, not with 0", first[0]),
                ));
            }
        }
        let object = object.to_string();
        let (ends, end, next_line, next_entry) = (Vec::new(), 0, 0, 0);
        Ok(Reader {
            layout,
            row_count,
            column_count,
            entry_count,
            object,
            places,
            indices,
            values,
            next_line,
            next_entry,
            ends,
            end,
        })
    }

    /// The next rows (columns of csc), as many as have at most `most` entries together, and at most
    /// `most`; false at the end. Unsorted rows are sorted.
    ///
    /// Errors: [`Error::Entry`] for an entry outside the matrix, twice in a row or not finite, and
    /// for a row of more than `most` entries.
    pub fn rows(&mut self, most: usize, batch: &mut Batch) -> Result<bool> {
        if self.layout == Layout::Coo {
            return Err(Error::unsupported(
                &self.object,
                "single entries (coo) have no rows",
            ));
        }
        batch.clear(0, 0);
        let first_line = self.next_line;
        self.take_rows(most, batch)?;
        let count = batch.offsets.last().map_or(0, |&count| count as usize);
        batch.indices.reserve_exact(count);
        batch.values.reserve_exact(count);
        self.indices.read_indices(count, &mut batch.indices)?;
        self.values.read_values(count, &mut batch.values)?;
        self.check_rows(first_line, batch)?;
        self.next_entry += count as u64;
        Ok(batch.rows() > 0)
    }

    /// Takes row ends while their entries number at most `most`.
    fn take_rows(&mut self, most: usize, batch: &mut Batch) -> Result<()> {
        const AHEAD: u64 = 1 << 13;
        let (_, lines, line) = self.words();
        let lines_left = self.places.length - 1;
        while self.next_line < lines_left && batch.rows() < most.max(1) {
            if self.end == self.ends.len() {
                self.end = 0;
                self.ends.clear();
                self.places.read_indices(
                    (lines_left - self.next_line).min(AHEAD) as usize,
                    &mut self.ends,
                )?;
            }
            let end = self.ends[self.end];
            let held = batch.offsets.last().copied().unwrap_or(0);
            if end < self.next_entry + held || end > self.entry_count {
                let reason = format!(
                    "indptr says that {line} {} ends at entry {end} of {}",
                    self.next_line, self.entry_count
                );
                return Err(Error::entry(&self.object, self.next_entry + held, reason));
            }
            if end - self.next_entry > most as u64 {
                if batch.rows() > 0 {
                    break;
                }
                let reason = format!(
                    "{line} {} has {} entries, {lines} of up to {most} fit",
                    self.next_line,
                    end - self.next_entry
                );
                return Err(Error::entry(&self.object, self.next_entry, reason));
            }
            batch.offsets.push(end - self.next_entry);
            self.end += 1;
            self.next_line += 1;
        }
        if self.next_line == lines_left
            && self.next_entry + batch.offsets.last().copied().unwrap_or(0) < self.entry_count
        {
            return Err(Error::entry(
                &self.object,
                self.entry_count,
                format!(
                    "indptr ends before the last of {} entries",
                    self.entry_count
                ),
            ));
        }
        Ok(())
    }

    fn check_rows(&self, first_line: u64, batch: &mut Batch) -> Result<()> {
        let (index_count, _, line) = self.words();
        if let Some(entry) = batch.indices.iter().position(|&index| index >= index_count) {
            let reason = format!(
                "the index {} in a matrix of {} rows and {} columns",
                batch.indices[entry], self.row_count, self.column_count
            );
            return Err(Error::entry(
                &self.object,
                self.next_entry + entry as u64,
                reason,
            ));
        }
        for row in 0..batch.rows() {
            let range = batch.offsets[row] as usize..batch.offsets[row + 1] as usize;
            if !batch.indices[range.clone()].is_sorted_by(|left, right| left < right) {
                batch.sort_row(range.clone()).map_err(|twice| {
                    let reason = format!(
                        "{line} {} has the index {twice} twice; call X.sum_duplicates() before saving",
                        first_line + row as u64
                    );
                    Error::entry(&self.object, self.next_entry + range.start as u64, reason)
                })?;
            }
        }
        Ok(())
    }

    /// Exclusive bound of the indices, and the name of a compressed line.
    fn words(&self) -> (u64, &'static str, &'static str) {
        match self.layout {
            Layout::Csc => (self.row_count, "columns", "column"),
            _ => (self.column_count, "rows", "row"),
        }
    }

    /// The next entries, at most `most`; false at the end.
    ///
    /// Errors: [`Error::Entry`] for an entry outside the matrix or not finite.
    pub fn entries(&mut self, most: usize, triplets: &mut Triplets) -> Result<bool> {
        if self.layout != Layout::Coo {
            return Err(Error::unsupported(
                &self.object,
                "compressed rows or columns (csr, csc) are not single entries",
            ));
        }
        let count = (self.entry_count - self.next_entry).min(most.max(1) as u64) as usize;
        triplets.clear(count);
        self.places.read_indices(count, &mut triplets.rows)?;
        self.indices.read_indices(count, &mut triplets.columns)?;
        self.values.read_values(count, &mut triplets.values)?;
        triplets.entries = count as u64;
        let outside =
            |(&row, &column): (&u64, &u64)| row >= self.row_count || column >= self.column_count;
        if let Some(entry) = triplets
            .rows
            .iter()
            .zip(&triplets.columns)
            .position(outside)
        {
            let (row, column) = (triplets.rows[entry], triplets.columns[entry]);
            let reason = format!(
                "row {row}, column {column} in a matrix of {} rows and {} columns",
                self.row_count, self.column_count
            );
            return Err(Error::entry(
                &self.object,
                self.next_entry + entry as u64,
                reason,
            ));
        }
        self.next_entry += count as u64;
        Ok(count > 0)
    }
}
