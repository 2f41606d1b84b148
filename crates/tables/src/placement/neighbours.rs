//! Which rows resemble a row: those that appear with it, more often than others do.
//!
//! A query of `n` rows counts `1 / sqrt(n)` for each pair of its rows, since two of many say little
//! of each other, and the sum for a pair is divided by the root of how often the other row occurs
//! (the cosine of the two, as far as it orders the neighbours of one row).

use super::lists::{Lists, in_ranges};

/// Rows of a long query that are looked at, evenly spaced.
const QUERY_ROWS_MOST: usize = 1000;

/// Rows, and the queries that have them.
pub(super) struct Neighbours<'a> {
    queries: &'a Lists,
    incident: Lists,
}

impl<'a> Neighbours<'a> {
    pub(super) fn new(queries: &'a Lists, row_count: usize) -> Neighbours<'a> {
        Neighbours {
            queries,
            incident: queries.transposed(row_count),
        }
    }

    /// For each of some rows, its nearest `count` among those that `admitted(row, other)` lets
    /// pass, nearest first. Of its queries `queries_most` are looked at, evenly spaced.
    pub(super) fn of_each(
        &self,
        rows: &[u32],
        count: usize,
        queries_most: usize,
        threads: usize,
        admitted: impl Fn(u32, u32) -> bool + Sync,
    ) -> Vec<Vec<u32>> {
        in_ranges(rows.len(), threads, |range| {
            let mut sums = vec![0.0; self.incident.len()];
            let nearest = |&row: &u32| {
                let mut near = self.near(row, queries_most, &mut sums);
                near.retain(|&(_, other)| other != row && admitted(row, other));
                let order =
                    |a: &(f64, u32), b: &(f64, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
                if near.len() > count {
                    near.select_nth_unstable_by(count, order);
                    near.truncate(count);
                }
                near.sort_by(order);
                near.into_iter().map(|(_, other)| other).collect()
            };
            rows[range].iter().map(nearest).collect()
        })
    }

    /// The rows that appear with a row, and how near they are; `sums` is zero before and after.
    fn near(&self, row: u32, queries_most: usize, sums: &mut [f64]) -> Vec<(f64, u32)> {
        let mut found = Vec::new();
        let incident = self.incident.get(row as usize);
        for &query in incident
            .iter()
            .step_by(incident.len().div_ceil(queries_most).max(1))
        {
            let rows = self.queries.get(query as usize);
            let weight = (rows.len() as f64).sqrt().recip();
            let step = rows.len().div_ceil(QUERY_ROWS_MOST);
            for &other in rows.iter().skip(row as usize % step).step_by(step) {
                let sum = &mut sums[other as usize];
                if *sum == 0.0 {
                    found.push(other);
                }
                *sum += weight;
            }
        }
        let mut nearness = |other: u32| {
            let occurs = self.incident.get(other as usize).len() as f64;
            (
                std::mem::take(&mut sums[other as usize]) / occurs.sqrt(),
                other,
            )
        };
        found.into_iter().map(&mut nearness).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_everywhere_is_less_near_than_one_that_comes_along() {
        let queries: Lists = [
            vec![0, 1, 2],
            vec![0, 1, 2],
            vec![0, 3],
            vec![0, 4],
            vec![0, 5],
        ]
        .into_iter()
        .collect();
        let neighbours = Neighbours::new(&queries, 6);
        let nearest = neighbours.of_each(&[1, 0], 1, 10, 1, |_, _| true);
        assert_eq!(nearest, [[2], [1]]);
        let others = neighbours.of_each(&[1], 5, 10, 1, |_, other| other != 2);
        assert_eq!(others, [[0]]);
        let none = neighbours.of_each(&[1], 0, 10, 1, |_, _| true);
        assert_eq!(none, [Vec::<u32>::new()]);
    }
}
