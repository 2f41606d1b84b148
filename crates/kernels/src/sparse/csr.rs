//! Rows in CSR: arrays of offsets, column numbers and values.

use std::ops::Range;

use super::lines::{Entries, Index, Lines};
use crate::{Error, Real};

/// Some rows of a sparse matrix. The entries of row i are those from `offsets[i] - offsets[0]` up
/// to `offsets[i + 1] - offsets[0]`.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a, I, T> {
    cols: usize,
    offsets: &'a [i64],
    indices: &'a [I],
    /// Empty where all entries are one.
    values: &'a [T],
}

impl<'a, I: Index, T: Real> Csr<'a, I, T> {
    /// Rows of a matrix with `cols` columns; checks every number, so that later accesses are
    /// inside. `offsets` has one more element than there are rows, and may start at any number.
    ///
    /// # Errors
    /// [`Error::Sparse`] with the first invalid number.
    pub fn new(
        cols: usize,
        offsets: &'a [i64],
        indices: &'a [I],
        values: &'a [T],
    ) -> Result<Self, Error> {
        let wrong = |part, at, why: &str| {
            Err(Error::Sparse {
                part,
                at,
                why: why.to_owned(),
            })
        };
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return wrong("offsets", 0, "there are none");
        };
        if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return wrong("offsets", at + 1, "it is less than the one before");
        }
        if last.checked_sub(*first) != i64::try_from(indices.len()).ok() {
            return wrong(
                "offsets",
                offsets.len() - 1,
                "it is not the number of entries",
            );
        }
        if !values.is_empty() && values.len() != indices.len() {
            return wrong(
                "values",
                values.len(),
                "there are not as many as column numbers",
            );
        }
        let largest = indices
            .iter()
            .fold(0, |largest, index| index.column().max(largest));
        if largest >= cols && !indices.is_empty() {
            let at = indices
                .iter()
                .position(|index| index.column() >= cols)
                .expect("the largest is one");
            return wrong("indices", at, &format!("the matrix has {cols} columns"));
        }
        Ok(Self {
            cols,
            offsets,
            indices,
            values,
        })
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> Entries<'a, I, T> {
        let (indices, values) = self.entries_of(row..row + 1);
        Entries {
            indices,
            values,
            base: 0,
        }
    }

    #[inline(always)]
    fn entries_of(&self, rows: Range<usize>) -> (&'a [I], &'a [T]) {
        let [from, to] = [rows.start, rows.end].map(|row| self.offsets[row] - self.offsets[0]);
        let range = from as usize..to as usize;
        let values = if self.values.is_empty() {
            &[]
        } else {
            &self.values[range.clone()]
        };
        (&self.indices[range], values)
    }
}

impl<I: Index, T: Real> Lines<T> for Csr<'_, I, T> {
    type Index = I;
    const WHOLE_LINES: bool = true;

    fn lines(&self) -> usize {
        self.offsets.len() - 1
    }

    fn width(&self) -> usize {
        self.cols
    }

    fn entries(&self) -> usize {
        self.indices.len()
    }

    fn part(self, lines: Range<usize>) -> Self {
        let (indices, values) = self.entries_of(lines.clone());
        Self {
            offsets: &self.offsets[lines.start..=lines.end],
            indices,
            values,
            ..self
        }
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, I, T>)) {
        for row in 0..self.lines() {
            f(row, self.row(row));
        }
    }
}
