//! Sparse rows: the queries of a block lie as postings, by column, so that each row adds what its
//! entries have in common with all queries at once.

use hashbrown::HashMap;

use super::{Bounds, COMPARED, Found, Metric, Nearest, Neighbor, Within};
use crate::{Error, Real};

/// Some rows of a sparse matrix, each with its columns in order.
#[derive(Clone, Copy)]
pub struct SparseNumberedRows<'a, T: Real> {
    /// Where the entries of each row begin; one more at the end.
    pub starts: &'a [usize],
    /// Columns of the entries.
    pub columns: &'a [u64],
    /// Values of the entries.
    pub values: &'a [T],
    /// |x|^2 of each row, finite.
    pub squares: &'a [f64],
    /// The number of the first.
    pub first: u64,
}

impl<'a, T: Real> SparseNumberedRows<'a, T> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.squares.len()
    }

    fn row(&self, row: usize) -> (&'a [u64], &'a [T]) {
        let entries = self.starts[row]..self.starts[row + 1];
        (&self.columns[entries.clone()], &self.values[entries])
    }

    fn longest(&self) -> usize {
        let lengths = self.starts.windows(2).map(|pair| pair[1] - pair[0]);
        lengths.max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), Error> {
        let entries = self.starts.last().copied().unwrap_or(0);
        let fits = self.starts.len() == self.count() + 1
            && self.starts.is_sorted()
            && entries <= self.columns.len().min(self.values.len());
        match fits {
            true => Ok(()),
            false => Err(Error::shape(
                "sparse rows",
                &[
                    ("starts", &self.starts.len()),
                    ("rows", &self.count()),
                    ("columns", &self.columns.len()),
                    ("values", &self.values.len()),
                ],
            )),
        }
    }
}

/// The entries of some queries, by column.
pub struct Postings<T> {
    /// Where the entries of a column are.
    places: HashMap<u64, (u32, u32)>,
    queries: Vec<u32>,
    values: Vec<T>,
}

impl<T: Real> Postings<T> {
    /// Of at most 2^32 entries.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows that do not fit their entries, and for more.
    pub fn new(rows: SparseNumberedRows<'_, T>) -> Result<Postings<T>, Error> {
        rows.check()?;
        let count = rows.starts.last().copied().unwrap_or(0);
        if u32::try_from(count).is_err() || u32::try_from(rows.count()).is_err() {
            return Err(Error::shape("postings", &[("entries", &count)]));
        }
        let mut places: HashMap<u64, (u32, u32)> = HashMap::new();
        for column in &rows.columns[..count] {
            places.entry(*column).or_default().1 += 1;
        }
        // Where a column begins, and how many entries it has so far.
        let mut end = 0;
        for place in places.values_mut() {
            let start = end;
            end += place.1;
            *place = (start, start);
        }
        let (mut queries, mut values) = (vec![0; count], vec![T::ZERO; count]);
        for query in 0..rows.count() {
            let (columns, of_query) = rows.row(query);
            for (column, value) in columns.iter().zip(of_query) {
                let Some(place) = places.get_mut(column) else {
                    unreachable!("every column was counted")
                };
                queries[place.1 as usize] = query as u32;
                values[place.1 as usize] = *value;
                place.1 += 1;
            }
        }
        Ok(Postings {
            places,
            queries,
            values,
        })
    }

    /// Bytes that the postings of as many entries take.
    pub fn held_bytes(entries: usize) -> usize {
        entries * (4 + size_of::<T>() + 2 * (8 + 8 + 1))
    }

    fn of(&self, column: u64) -> impl Iterator<Item = (usize, T)> + '_ {
        let (start, end) = self.places.get(&column).copied().unwrap_or_default();
        let range = start as usize..end as usize;
        let queries = self.queries[range.clone()].iter();
        queries
            .zip(&self.values[range])
            .map(|(query, value)| (*query as usize, *value))
    }
}

/// Adds some sparse rows to the k nearest of each query, as [`add_neighbors`](super::add_neighbors)
/// does of dense ones: `scratch` has two elements a query. Distances are sums in f64 in the order of
/// the columns.
///
/// Cost: the columns that a row and a query have in common, and m n comparisons.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the bits depend on the values only.
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what to find, and where to work"
)]
pub fn add_sparse_neighbors<T: Real>(
    nearest: &mut [Neighbor],
    metric: Metric,
    queries: SparseNumberedRows<'_, T>,
    postings: &Postings<T>,
    rows: SparseNumberedRows<'_, T>,
    leaves_out_itself: bool,
    scratch: &mut [T],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Some(mut found) = Nearest::new(nearest, queries.count()) else {
        let (m, nearest) = (queries.count(), nearest.len());
        return Err(Error::shape(
            "add_sparse_neighbors",
            &[("queries", &m), ("nearest", &nearest)],
        ));
    };
    let sides = (queries, postings, rows);
    match found.k {
        0 => Ok(()),
        _ => add(&mut found, metric, sides, leaves_out_itself, scratch, stop),
    }
}

/// Adds the rows within a radius of each query, as [`add_within`](super::add_within) does of dense
/// ones.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the pairs depend on the values only.
pub fn add_sparse_within<T: Real>(
    within: &mut Within<'_>,
    queries: SparseNumberedRows<'_, T>,
    postings: &Postings<T>,
    rows: SparseNumberedRows<'_, T>,
    leaves_out_itself: bool,
    scratch: &mut [T],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    if within.counts.len() != queries.count() {
        return Err(Error::shape(
            "add_sparse_within",
            &[
                ("queries", &queries.count()),
                ("counts", &within.counts.len()),
            ],
        ));
    }
    let (metric, sides) = (within.metric, (queries, postings, rows));
    add(within, metric, sides, leaves_out_itself, scratch, stop)
}

fn add<T: Real>(
    found: &mut impl Found,
    metric: Metric,
    (queries, postings, rows): (
        SparseNumberedRows<'_, T>,
        &Postings<T>,
        SparseNumberedRows<'_, T>,
    ),
    leaves_out_itself: bool,
    scratch: &mut [T],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    queries.check()?;
    rows.check()?;
    let m = queries.count();
    if scratch.len() < 2 * m {
        return Err(Error::shape(
            "sparse neighbors",
            &[("queries", &m), ("scratch", &scratch.len())],
        ));
    }
    let longest = rows.squares.iter().copied().fold(0.0, f64::max).sqrt();
    let steepest = rows
        .squares
        .iter()
        .map(|square| metric.terms(*square)[0])
        .fold(0.0, f64::max);
    let bounds = Bounds {
        metric,
        terms: queries.longest() + rows.longest(),
        longest,
        steepest,
    };
    let limit = |last: f64, query: usize| T::of(bounds.limit::<T>(last, queries.squares[query]));
    let (products, least) = scratch[..2 * m].split_at_mut(m);
    for (query, least) in least.iter_mut().enumerate() {
        *least = limit(found.last(query), query);
    }
    let factor = metric.factor::<T>();
    for row in 0..rows.count() {
        if row.is_multiple_of(64) && stop() {
            return Ok(());
        }
        let (columns, values) = rows.row(row);
        products.fill(T::ZERO);
        for (column, value) in columns.iter().zip(values) {
            let value = factor * *value;
            for (query, other) in postings.of(*column) {
                products[query] += value * other;
            }
        }
        let [scale, offset] = metric.terms(rows.squares[row]).map(T::of);
        let number = rows.first + row as u64;
        for start in (0..m).step_by(COMPARED) {
            let part = start..(start + COMPARED).min(m);
            if !is_any_within(&products[part.clone()], scale, offset, &least[part.clone()]) {
                continue;
            }
            for query in part {
                // What is not a number may be anything.
                let is_beyond = products[query] * scale + offset > least[query];
                let is_itself = leaves_out_itself && queries.first + query as u64 == number;
                if is_beyond || is_itself {
                    continue;
                }
                let squares = [queries.squares[query], rows.squares[row]];
                let neighbor = Neighbor {
                    distance: exact(metric, queries.row(query), (columns, values), squares),
                    row: number,
                };
                if found.take(query, neighbor) {
                    least[query] = limit(found.last(query), query);
                }
            }
        }
    }
    Ok(())
}

/// Whether a row may be as near to one of some queries as their limits.
pub(super) fn is_any_within<T: Real>(products: &[T], scale: T, offset: T, least: &[T]) -> bool {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let beyond = |(product, least): (&T, &T)| u32::from(*product * scale + offset > *least);
            let count: u32 = products.iter().zip(least).map(beyond).sum();
            count < products.len() as u32
        },
    )
}

/// The distance in f64, summed up in the order of the columns.
fn exact<T: Real>(
    metric: Metric,
    (q_columns, q): (&[u64], &[T]),
    (x_columns, x): (&[u64], &[T]),
    [q_square, x_square]: [f64; 2],
) -> f64 {
    let (mut at_q, mut at_x, mut sum) = (0, 0, 0.0);
    while at_q < q.len() || at_x < x.len() {
        let q_column = q_columns.get(at_q).copied().unwrap_or(u64::MAX);
        let x_column = x_columns.get(at_x).copied().unwrap_or(u64::MAX);
        let mut pair = [0.0; 2];
        if q_column <= x_column && at_q < q.len() {
            pair[0] = q[at_q].f64();
            at_q += 1;
        }
        if x_column <= q_column && at_x < x.len() {
            pair[1] = x[at_x].f64();
            at_x += 1;
        }
        sum += match metric {
            Metric::Euclidean => (pair[0] - pair[1]) * (pair[0] - pair[1]),
            _ => pair[0] * pair[1],
        };
    }
    metric.of_sum(sum, q_square, x_square)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Rows {
        starts: Vec<usize>,
        columns: Vec<u64>,
        values: Vec<f32>,
        squares: Vec<f64>,
    }

    impl Rows {
        fn of(rows: &[Vec<(u64, f32)>]) -> Rows {
            let mut made = Rows {
                starts: vec![0],
                columns: Vec::new(),
                values: Vec::new(),
                squares: Vec::new(),
            };
            for row in rows {
                made.columns.extend(row.iter().map(|entry| entry.0));
                made.values.extend(row.iter().map(|entry| entry.1));
                made.starts.push(made.columns.len());
                let square = |entry: &(u64, f32)| f64::from(entry.1) * f64::from(entry.1);
                made.squares.push(row.iter().map(square).sum());
            }
            made
        }

        fn numbered(&self, first: u64) -> SparseNumberedRows<'_, f32> {
            SparseNumberedRows {
                starts: &self.starts,
                columns: &self.columns,
                values: &self.values,
                squares: &self.squares,
                first,
            }
        }
    }

    fn rows(count: usize) -> impl Strategy<Value = Vec<Vec<(u64, f32)>>> {
        let entry = (0u64..30, prop_oneof![-3i8..4, Just(100)]);
        let row = prop::collection::btree_map(entry.0, entry.1, 0..8).prop_map(|row| {
            row.into_iter()
                .map(|(column, value)| (column << 33, f32::from(value)))
                .collect()
        });
        prop::collection::vec(row, 1..count)
    }

    proptest! {
        #[test]
        fn sparse_neighbors_are_those_of_a_plain_search(
            queries in rows(90),
            rows in rows(60),
            k in 1usize..6,
            block in 1usize..40,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
        ) {
            let (k, q, x) = (k.min(rows.len()), Rows::of(&queries), Rows::of(&rows));
            let postings = Postings::new(q.numbered(0)).unwrap();
            let mut nearest = vec![Neighbor::NONE; k * queries.len()];
            for (number, part) in rows.chunks(block).enumerate().rev() {
                let part = Rows::of(part);
                let numbered = part.numbered((number * block) as u64);
                let mut scratch = vec![0.0; 2 * queries.len()];
                add_sparse_neighbors(&mut nearest, metric, q.numbered(0), &postings, numbered, false, &mut scratch, &|| false).unwrap();
            }
            for query in 0..queries.len() {
                let mut all: Vec<Neighbor> = (0..rows.len())
                    .map(|row| Neighbor {
                        distance: exact(metric, q.numbered(0).row(query), x.numbered(0).row(row), [q.squares[query], x.squares[row]]),
                        row: row as u64,
                    })
                    .collect();
                all.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
                prop_assert_eq!(&nearest[query * k..][..k], &all[..k]);
            }
        }
    }
}
