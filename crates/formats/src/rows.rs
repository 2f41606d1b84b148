//! Results of parsers and input of writers: rows in compressed form, or single entries.
//!
//! ```text
//!   offsets  0        2     3                 row i has the entries offsets[i] .. offsets[i + 1]
//!   indices  4   9    0     1 ..              its columns, ascending, no two alike
//!   values   1.0 0.5  1.0   2.0 ..            finite
//! ```

use std::ops::Range;

use crate::{Error, Result};

/// Rows in compressed form. Reused from chunk to chunk: a parser empties it first and keeps its
/// memory.
///
/// Takes at most 32 bytes of memory for every byte of the largest chunk; with real data 3 to 5.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// First entry of every row, and the number of entries: rows + 1 numbers, the first is 0.
    pub offsets: Vec<u64>,
    /// Column of every entry: ascending within a row, no two alike, below 2^63.
    pub indices: Vec<u64>,
    /// Value of every entry, finite.
    pub values: Vec<f64>,
    /// One label a row; empty for data with many labels or none.
    pub labels: Vec<f64>,
    /// First label of every row, as `offsets`; empty for data with one label a row or none.
    pub label_offsets: Vec<u64>,
    /// Labels of a row, ascending, no two alike.
    pub label_indices: Vec<u64>,
    /// Query of every row (`qid:` in LIBSVM files); empty if no row of the chunk has one.
    pub queries: Vec<u64>,
}

impl Batch {
    /// Empties it, and reserves room for all rows and entries at once, so that it does not grow in
    /// steps.
    pub fn clear(&mut self, rows: usize, entries: usize) {
        let Batch {
            offsets,
            indices,
            values,
            labels,
            label_offsets,
            label_indices,
            queries,
        } = self;
        for list in [
            &mut *offsets,
            indices,
            label_offsets,
            label_indices,
            queries,
        ] {
            list.clear();
        }
        values.clear();
        labels.clear();
        offsets.reserve_exact(rows + 1);
        indices.reserve_exact(entries);
        values.reserve_exact(entries);
        offsets.push(0);
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Drops the first rows of a batch without labels. Panics if there are fewer.
    pub fn drop_rows(&mut self, count: usize) {
        let entries = self.offsets[count];
        self.offsets.drain(..count);
        self.offsets
            .iter_mut()
            .for_each(|offset| *offset -= entries);
        self.indices.drain(..entries as usize);
        self.values.drain(..entries as usize);
    }

    /// Columns and values of one row. Panics if there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> (&[u64], &[f64]) {
        let range = self.offsets[row] as usize..self.offsets[row + 1] as usize;
        (&self.indices[range.clone()], &self.values[range])
    }

    /// Labels of one row of data with many labels. Panics if there is no such row.
    #[must_use]
    pub fn row_labels(&self, row: usize) -> &[u64] {
        &self.label_indices[self.label_offsets[row] as usize..self.label_offsets[row + 1] as usize]
    }

    /// Whether every value is 1, so that values need not be stored.
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.values.iter().all(|&value| value == 1.0)
    }

    /// Smallest and largest column; `None` without entries.
    #[must_use]
    pub fn index_range(&self) -> Option<(u64, u64)> {
        let rows = self.offsets.windows(2).filter(|ends| ends[0] < ends[1]);
        rows.map(|ends| {
            (
                self.indices[ends[0] as usize],
                self.indices[ends[1] as usize - 1],
            )
        })
        .reduce(|(low, high), (first, last)| (low.min(first), high.max(last)))
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Batch {
            offsets,
            indices,
            values,
            labels,
            label_offsets,
            label_indices,
            queries,
        } = self;
        let eights = [offsets, indices, label_offsets, label_indices, queries]
            .iter()
            .map(|list| list.capacity())
            .sum::<usize>();
        8 * (eights + values.capacity() + labels.capacity())
    }

    /// Ends the row of the entries pushed since the last one. `ascending` says whether they are
    /// known to be sorted; if not, they are sorted, and a repeated column is returned.
    #[inline(always)]
    pub(crate) fn end_row(&mut self, ascending: bool) -> std::result::Result<(), u64> {
        let start = self.offsets.last().map_or(0, |&start| start as usize);
        self.offsets.push(self.indices.len() as u64);
        if ascending {
            Ok(())
        } else {
            self.sort_row(start..self.indices.len())
        }
    }

    /// Sorts entries; returns a repeated column.
    #[cold]
    pub(crate) fn sort_row(&mut self, entries: Range<usize>) -> std::result::Result<(), u64> {
        let (indices, values) = (
            &mut self.indices[entries.clone()],
            &mut self.values[entries],
        );
        let mut sorted: Vec<(u64, f64)> = indices
            .iter()
            .copied()
            .zip(values.iter().copied())
            .collect();
        sorted.sort_unstable_by_key(|entry| entry.0);
        for ((index, value), entry) in indices.iter_mut().zip(values).zip(&sorted) {
            (*index, *value) = *entry;
        }
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(pair[0].0),
            None => Ok(()),
        }
    }

    /// Ends the labels of a row, which are sorted and deduplicated, since they are a set.
    #[inline(always)]
    pub(crate) fn end_labels(&mut self) {
        let start = self.label_offsets.last().map_or(0, |&start| start as usize);
        if !self.label_indices[start..].is_sorted_by(|left, right| left < right) {
            let mut labels = self.label_indices.split_off(start);
            labels.sort_unstable();
            labels.dedup();
            self.label_indices.append(&mut labels);
        }
        self.label_offsets.push(self.label_indices.len() as u64);
    }
}

/// Single entries in the order of the file, rows and columns from 0. Reused from chunk to chunk.
///
/// Takes at most 12 bytes of memory for every byte of the largest chunk, 24 for symmetric text;
/// with real data 2 to 4.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Triplets {
    /// Row of every entry, below 2^63.
    pub rows: Vec<u64>,
    /// Column of every entry, below 2^63.
    pub columns: Vec<u64>,
    /// Value of every entry, finite.
    pub values: Vec<f64>,
    /// Entries read from the file; for a symmetric matrix fewer than those above.
    pub entries: u64,
}

impl Triplets {
    /// Empties it, and reserves room for all entries at once.
    pub fn clear(&mut self, entries: usize) {
        for list in [&mut self.rows, &mut self.columns] {
            list.clear();
            list.reserve_exact(entries);
        }
        self.values.clear();
        self.values.reserve_exact(entries);
        self.entries = 0;
    }

    /// Drops the first entries. Panics if there are fewer.
    pub fn drop_entries(&mut self, count: usize) {
        self.rows.drain(..count);
        self.columns.drain(..count);
        self.values.drain(..count);
        self.entries -= count as u64;
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, row: u64, column: u64, value: f64) {
        self.rows.push(row);
        self.columns.push(column);
        self.values.push(value);
    }

    /// Whether entries ascend by row, then column, without duplicates.
    #[must_use]
    pub fn is_ascending(&self) -> bool {
        let places = self.rows.iter().zip(&self.columns);
        places.is_sorted_by(|left, right| left < right)
    }

    /// Whether every value is 1.
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.values.iter().all(|&value| value == 1.0)
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        8 * (self.rows.capacity() + self.columns.capacity() + self.values.capacity())
    }
}

/// A count of rows or entries, compared with the header.
#[derive(Clone, Debug)]
pub struct Tally {
    object: String,
    what: &'static str,
    expected: u64,
    seen: u64,
}

impl Tally {
    pub(crate) fn new(object: &str, what: &'static str, expected: u64) -> Tally {
        Tally {
            object: object.into(),
            what,
            expected,
            seen: 0,
        }
    }

    /// Checks that a text of this length can hold all of them, each in a line of at least `least`
    /// bytes, of which the last may lack its end: a header that announces more is refused before
    /// anything is allocated.
    pub fn check_room(&self, text_bytes: u64, least: usize) -> Result<()> {
        let most = text_bytes.saturating_add(1) / least.max(1) as u64;
        match self.expected > most {
            true => Err(Error::Room {
                object: self.object.clone(),
                what: self.what,
                expected: self.expected,
                text_bytes,
                most,
            }),
            false => Ok(()),
        }
    }

    /// Adds those of one chunk; an error as soon as there are too many.
    pub fn add(&mut self, count: u64) -> Result<()> {
        self.seen = self.seen.saturating_add(count);
        if self.seen > self.expected {
            Err(self.error(true))
        } else {
            Ok(())
        }
    }

    /// Called at the end of the file; an error if there were too few.
    pub fn finish(self) -> Result<()> {
        if self.seen < self.expected {
            Err(self.error(false))
        } else {
            Ok(())
        }
    }

    fn error(&self, more: bool) -> Error {
        Error::Counts {
            object: self.object.clone(),
            what: self.what,
            expected: self.expected,
            seen: self.seen,
            more,
        }
    }
}
