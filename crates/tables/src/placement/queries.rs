//! Queries of a training log: which rows are asked for together.

use outcore_core::{Error, Result};

use super::lists::Lists;

/// Lists of row numbers: the bags or samples of a log, in its order. A row that a query names
/// twice counts once, since its page is read once; a query of no rows counts for nothing.
///
/// ```
/// use outcore_tables::placement::Queries;
///
/// let queries = Queries::new(6, [vec![4, 0, 4], vec![], vec![1]])?;
/// assert_eq!((queries.len(), queries.look_ups()), (2, 3));
/// assert_eq!((queries.row_count(), queries.is_empty()), (6, false));
/// assert_eq!(queries.get(0), [0, 4]);
/// assert_eq!(queries.windows(2, 1).get(0), [0, 1, 4]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queries {
    row_count: u32,
    /// The rows of each query, in order.
    pub(super) lists: Lists,
}

impl Queries {
    /// Queries of a table of `row_count` rows. 4 bytes a look-up, 8 a query.
    ///
    /// # Errors
    ///
    /// `Value` for a table of 2^32 - 1 rows or more, and for a row that it does not have.
    pub fn new<Q: IntoIterator<Item = u64>>(
        row_count: u64,
        queries: impl IntoIterator<Item = Q>,
    ) -> Result<Queries> {
        let too_many = || Error::Value {
            what: format!(
                "a placement is of fewer than {} rows, not {row_count}",
                u32::MAX
            ),
        };
        let narrow = u32::try_from(row_count)
            .ok()
            .filter(|&count| count < u32::MAX);
        let row_count = narrow.ok_or_else(too_many)?;
        let mut lists = Lists::new();
        let mut rows = Vec::new();
        for (number, query) in queries.into_iter().enumerate() {
            rows.clear();
            for row in query {
                let outside = || Error::Value {
                    what: format!("query {number} asks for row {row} of {row_count}"),
                };
                let narrow = u32::try_from(row).ok().filter(|&row| row < row_count);
                rows.push(narrow.ok_or_else(outside)?);
            }
            push_rows(&mut lists, &mut rows);
        }
        Ok(Queries { row_count, lists })
    }

    /// Rows of the table.
    pub fn row_count(&self) -> u32 {
        self.row_count
    }

    /// Queries with at least one row.
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of all queries, each counted once a query.
    pub fn look_ups(&self) -> usize {
        self.lists.item_count()
    }

    /// The rows of a query, in order.
    pub fn get(&self, query: usize) -> &[u32] {
        self.lists.get(query)
    }

    /// Queries in the order of the log.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.lists.iter()
    }

    /// The rows of `size` queries at once, as a batch asks for them, beginning at every `step`-th
    /// query; `step` is `size` for batches one after another. A last one that is shorter is left
    /// out unless it is the only one. A size or step of 0 counts as 1.
    ///
    /// ```
    /// let log = outcore_tables::placement::Queries::new(9, [vec![1], vec![2], vec![1, 8]])?;
    /// let batches = log.windows(2, 1);
    /// assert_eq!(batches.iter().collect::<Vec<_>>(), [&[1, 2][..], &[1, 2, 8]]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn windows(&self, size: usize, step: usize) -> Queries {
        let size = size.clamp(1, self.len().max(1));
        let mut lists = Lists::new();
        let mut rows = Vec::new();
        for first in (0..(self.len() + 1).saturating_sub(size)).step_by(step.max(1)) {
            rows.clear();
            (first..first + size).for_each(|query| rows.extend(self.get(query)));
            push_rows(&mut lists, &mut rows);
        }
        Queries {
            row_count: self.row_count,
            lists,
        }
    }

    /// How many queries each row is in.
    pub(super) fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.row_count as usize];
        for &row in self.lists.items() {
            counts[row as usize] += 1;
        }
        counts
    }
}

fn push_rows(lists: &mut Lists, rows: &mut Vec<u32>) {
    rows.sort_unstable();
    rows.dedup();
    if !rows.is_empty() {
        lists.push(rows.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_outside_the_table_is_named() {
        let wrong = Queries::new(3, [vec![0], vec![1, 3]]).unwrap_err();
        assert_eq!(wrong.to_string(), "query 1 asks for row 3 of 3");
        assert!(Queries::new(u64::from(u32::MAX), [vec![0]]).is_err());
    }

    #[test]
    fn windows_hold_each_row_once() {
        let queries = Queries::new(9, [vec![1, 2], vec![2, 3], vec![8], vec![1]]).unwrap();
        let windows = |size, step| -> Vec<Vec<u32>> {
            queries
                .windows(size, step)
                .iter()
                .map(<[u32]>::to_vec)
                .collect()
        };
        assert_eq!(windows(2, 2), [vec![1, 2, 3], vec![1, 8]]);
        assert_eq!(windows(2, 1), [vec![1, 2, 3], vec![2, 3, 8], vec![1, 8]]);
        assert_eq!(windows(3, 3), [vec![1, 2, 3, 8]]);
        assert_eq!(windows(99, 1), [vec![1, 2, 3, 8]]);
        assert_eq!(windows(0, 0).len(), 4);
        assert!(Queries::new(9, [vec![]]).unwrap().windows(2, 2).is_empty());
    }
}
