//! Sparse rows: the queries of a block lie as postings, by column, so that each row adds what its
//! entries have in common with all queries at once.

use hashbrown::HashMap;

use super::bounds::{Bounds, within};
use super::found::{Found, Nearest};
use super::{COMPARED, Metric, Neighbor, Within};
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

/// Queries whose products with a row are summed up together: these and what common columns have of
/// them stay in the caches of a core.
const GROUP: usize = 1024;
/// Queries whose sums stay in registers.
const SUMMED: usize = 32;
/// A column that one in this many queries has is common.
const COMMON: usize = 32;
/// Elements of dense columns, for each entry of the queries.
const DENSE: usize = 2;

/// The entries of some queries, by column.
pub struct Postings<T> {
    groups: Vec<Group<T>>,
}

/// Up to [`GROUP`] queries. The columns that most of them have are dense, so that a row adds them up
/// by vectors; of any other, the queries that have it are listed.
struct Group<T> {
    first: usize,
    count: usize,
    places: HashMap<u64, ColumnSpan>,
    queries: Vec<u32>,
    values: Vec<T>,
    /// Dense columns, one after another.
    dense: Vec<T>,
}

/// Where the entries of a column are: in the lists, or from `start` among the dense elements.
#[derive(Clone, Copy, Default)]
struct ColumnSpan {
    start: u32,
    end: u32,
}

impl ColumnSpan {
    const DENSE: u32 = u32::MAX;
}

impl<T: Real> Postings<T> {
    /// Of fewer than 2^31 entries.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows that do not fit their entries, and for more.
    pub fn new(rows: SparseNumberedRows<'_, T>) -> Result<Postings<T>, Error> {
        rows.check()?;
        let count = rows.starts.last().copied().unwrap_or(0);
        if count >= 1 << 31 {
            return Err(Error::shape("postings", &[("entries", &count)]));
        }
        let firsts = (0..rows.count()).step_by(GROUP);
        let groups = firsts.map(|first| Group::new(rows, first)).collect();
        Ok(Postings { groups })
    }

    /// Bytes that the postings of as many entries take.
    pub fn held_bytes(entries: usize) -> usize {
        entries * (4 + (1 + DENSE) * size_of::<T>() + 2 * (8 + 8 + 1))
    }

    fn count(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }
}

impl<T: Real> Group<T> {
    fn new(rows: SparseNumberedRows<'_, T>, first: usize) -> Group<T> {
        let count = GROUP.min(rows.count() - first);
        let stride = count.next_multiple_of(SUMMED);
        let entries = rows.starts[first]..rows.starts[first + count];
        let mut places: HashMap<u64, ColumnSpan> = HashMap::new();
        for column in &rows.columns[entries.clone()] {
            places.entry(*column).or_default().end += 1;
        }
        let common = common(&places, count, DENSE * entries.len() / stride);
        let mut end = 0;
        for place in places.values_mut() {
            let start = end;
            end += place.end;
            // `end` is how far the list is filled.
            *place = ColumnSpan { start, end: start };
        }
        for (at, column) in common.iter().enumerate() {
            let start = (at * stride) as u32;
            places.insert(
                *column,
                ColumnSpan {
                    start,
                    end: ColumnSpan::DENSE,
                },
            );
        }
        let mut group = Group {
            first,
            count,
            places,
            queries: vec![0; entries.len()],
            values: vec![T::ZERO; entries.len()],
            dense: vec![T::ZERO; common.len() * stride],
        };
        for query in 0..count {
            let (columns, values) = rows.row(first + query);
            for (column, value) in columns.iter().zip(values) {
                group.put(*column, query, *value);
            }
        }
        group
    }

    fn put(&mut self, column: u64, query: usize, value: T) {
        let Some(place) = self.places.get_mut(&column) else {
            unreachable!("every column was counted")
        };
        if place.end == ColumnSpan::DENSE {
            self.dense[place.start as usize + query] += value;
        } else {
            self.queries[place.end as usize] = query as u32;
            self.values[place.end as usize] = value;
            place.end += 1;
        }
    }

    /// `factor` times the products of a row with the queries, into `products`. `of_dense` and
    /// `listed` are room for the row's columns.
    fn multiply(
        &self,
        factor: T,
        (columns, values): (&[u64], &[T]),
        products: &mut [T; GROUP],
        of_dense: &mut Vec<(usize, T)>,
        listed: &mut Vec<(ColumnSpan, T)>,
    ) {
        of_dense.clear();
        listed.clear();
        for (column, value) in columns.iter().zip(values) {
            match self.places.get(column) {
                Some(place) if place.end == ColumnSpan::DENSE => {
                    of_dense.push((place.start as usize, factor * *value));
                }
                Some(place) => listed.push((*place, factor * *value)),
                None => (),
            }
        }
        let stride = self.count.next_multiple_of(SUMMED);
        add_columns(&mut products[..stride], &self.dense, of_dense);
        for (place, value) in listed {
            let range = place.start as usize..place.end as usize;
            for (query, other) in self.queries[range.clone()].iter().zip(&self.values[range]) {
                // A group is a power of two, so this is no check.
                products[*query as usize % GROUP] += *value * *other;
            }
        }
    }
}

/// The columns that most queries have, `most` at most.
fn common(places: &HashMap<u64, ColumnSpan>, queries: usize, most: usize) -> Vec<u64> {
    let mut common: Vec<(u32, u64)> = places
        .iter()
        .filter(|(_, place)| place.end as usize * COMMON >= queries)
        .map(|(column, place)| (place.end, *column))
        .collect();
    common.sort_unstable_by_key(|(count, column)| (std::cmp::Reverse(*count), *column));
    common.truncate(most);
    common.into_iter().map(|(_, column)| column).collect()
}

/// Sums of some dense columns, each with a factor; columns begin at the given elements.
fn add_columns<T: Real>(sums: &mut [T], dense: &[T], columns: &[(usize, T)]) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (part, sums) in sums.chunks_exact_mut(SUMMED).enumerate() {
                let mut sum = [T::ZERO; SUMMED];
                for (start, factor) in columns {
                    let column = &dense[start + part * SUMMED..][..SUMMED];
                    for (sum, value) in sum.iter_mut().zip(column) {
                        *sum += *factor * *value;
                    }
                }
                sums.copy_from_slice(&sum);
            }
        },
    );
}

/// Adds some sparse rows to the k nearest of each query, as [`add_neighbors`](super::add_neighbors)
/// does of dense ones: `scratch` has an element a query. Distances are sums in f64 in the order of
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
        _ => add(
            &mut found,
            None,
            metric,
            sides,
            leaves_out_itself,
            scratch,
            stop,
        ),
    }
}

/// Adds some sparse rows to the k nearest of each query, and the queries to the k nearest of each row,
/// as [`add_mutual_neighbors`](super::add_mutual_neighbors) does of dense ones; `scratch` has three
/// elements a query.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: as of [`add_sparse_neighbors`], whose lists these are.
pub fn add_mutual_sparse_neighbors<T: Real>(
    nearest: [&mut [Neighbor]; 2],
    metric: Metric,
    queries: SparseNumberedRows<'_, T>,
    postings: &Postings<T>,
    rows: SparseNumberedRows<'_, T>,
    scratch: &mut [T],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let counts = [queries.count(), rows.count()];
    let [mut found, mut found_back] =
        Nearest::mutual("add_mutual_sparse_neighbors", nearest, counts)?;
    let sides = (queries, postings, rows);
    match found.k {
        0 => Ok(()),
        _ => add(
            &mut found,
            Some(&mut found_back),
            metric,
            sides,
            false,
            scratch,
            stop,
        ),
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
    add(
        within,
        None,
        metric,
        sides,
        leaves_out_itself,
        scratch,
        stop,
    )
}

fn add<T: Real>(
    found: &mut impl Found,
    found_back: Option<&mut Nearest<'_>>,
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
    let each = if found_back.is_some() { 3 } else { 1 };
    if scratch.len() < each * m || postings.count() != m {
        return Err(Error::shape(
            "sparse neighbors",
            &[("queries", &m), ("scratch", &scratch.len())],
        ));
    }
    let longest = rows.squares.iter().copied().fold(0.0, f64::max).sqrt();
    let steepest = rows
        .squares
        .iter()
        .map(|square| T::of(metric.terms(*square)[0]).f64())
        .fold(0.0, f64::max);
    let bounds = Bounds {
        metric,
        terms: queries.longest() + rows.longest(),
        longest,
        steepest,
        is_rounded: false,
    };
    let limit = |last: f64, query: usize| T::of(bounds.limit::<T>(last, queries.squares[query]));
    let (least, of_queries) = scratch.split_at_mut(m);
    let mut back = found_back.map(|found| Back::new(found, bounds, queries, of_queries));
    for (query, least) in least.iter_mut().enumerate() {
        *least = limit(found.last(query), query);
    }
    let mut products = [T::ZERO; GROUP];
    let (mut of_dense, mut listed) = (Vec::new(), Vec::new());
    for group in &postings.groups {
        let least = &mut least[group.first..][..group.count];
        for row in 0..rows.count() {
            if row.is_multiple_of(64) && stop() {
                return Ok(());
            }
            let entries = rows.row(row);
            let factor = metric.factor::<T>();
            group.multiply(factor, entries, &mut products, &mut of_dense, &mut listed);
            let [scale, offset] = metric.terms(rows.squares[row]).map(T::of);
            let number = rows.first + row as u64;
            if let Some(back) = &mut back {
                back.add(
                    (queries, group.first),
                    &products[..group.count],
                    (rows, row),
                );
            }
            for start in (0..group.count).step_by(COMPARED) {
                let part = start..(start + COMPARED).min(group.count);
                if !is_any_within(&products[part.clone()], scale, offset, &least[part.clone()]) {
                    continue;
                }
                for at in part {
                    let query = group.first + at;
                    // What is not a number may be anything.
                    let is_beyond = products[at] * scale + offset > least[at];
                    let is_itself = leaves_out_itself && queries.first + query as u64 == number;
                    if is_beyond || is_itself {
                        continue;
                    }
                    let squares = [queries.squares[query], rows.squares[row]];
                    let neighbor = Neighbor {
                        distance: exact(metric, queries.row(query), entries, squares),
                        row: number,
                    };
                    if found.take(query, neighbor) {
                        least[at] = limit(found.last(query), query);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rows that look for queries, whose products with them are there.
struct Back<'a, 'b, T> {
    found: &'a mut Nearest<'b>,
    bounds: Bounds,
    /// Of the queries.
    scales: &'a [T],
    offsets: &'a [T],
}

impl<'a, 'b, T: Real> Back<'a, 'b, T> {
    fn new(
        found: &'a mut Nearest<'b>,
        bounds: Bounds,
        queries: SparseNumberedRows<'_, T>,
        scratch: &'a mut [T],
    ) -> Back<'a, 'b, T> {
        let (scales, rest) = scratch.split_at_mut(queries.count());
        let offsets = &mut rest[..queries.count()];
        let mut steepest = 0.0_f64;
        for ((scale, offset), square) in scales.iter_mut().zip(&mut *offsets).zip(queries.squares) {
            [*scale, *offset] = bounds.metric.terms(*square).map(T::of);
            steepest = steepest.max(scale.f64());
        }
        let longest = queries.squares.iter().copied().fold(0.0, f64::max).sqrt();
        Back {
            found,
            bounds: Bounds {
                longest,
                steepest,
                ..bounds
            },
            scales,
            offsets,
        }
    }

    /// Adds queries, from `first` on, to the nearest of a row.
    fn add(
        &mut self,
        (queries, first): (SparseNumberedRows<'_, T>, usize),
        products: &[T],
        (rows, row): (SparseNumberedRows<'_, T>, usize),
    ) {
        let (bounds, square) = (self.bounds, rows.squares[row]);
        let limit = |last: f64| T::of(bounds.limit::<T>(last, square));
        let mut least = limit(self.found.last(row));
        for start in (0..products.len()).step_by(COMPARED) {
            let part = start..(start + COMPARED).min(products.len());
            let of_part = first + part.start..first + part.end;
            let (scales, offsets) = (&self.scales[of_part.clone()], &self.offsets[of_part]);
            if within(&products[part.clone()], scales, offsets, least) == 0 {
                continue;
            }
            for at in part {
                let query = first + at;
                // What is not a number may be anything.
                if products[at] * self.scales[query] + self.offsets[query] > least {
                    continue;
                }
                let squares = [queries.squares[query], square];
                let neighbor = Neighbor {
                    distance: exact(bounds.metric, queries.row(query), rows.row(row), squares),
                    row: queries.first + query as u64,
                };
                if self.found.take(row, neighbor) {
                    least = limit(self.found.last(row));
                }
            }
        }
    }
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
        // Also rows below the normal numbers.
        let factor = prop_oneof![4 => Just(1.0), 1 => Just(1e-40)];
        let entries = prop::collection::btree_map(entry.0, entry.1, 0..8);
        let row = (entries, factor).prop_map(|(row, factor)| {
            row.into_iter()
                .map(|(column, value)| (column << 33, f32::from(value) * factor))
                .collect()
        });
        prop::collection::vec(row, 1..count)
    }

    /// Columns that all have, that a few have, and that one has; rows of no entries, and rows that
    /// are alike.
    fn uneven(count: u64, seed: u64) -> Vec<Vec<(u64, f32)>> {
        let row = |row: u64| {
            let chance = |at: u64| ((row * 31 + seed) * 2_654_435_761 + at * 40_503) >> 7;
            let value = |column: u64| (chance(column) % 5) as f32 - 1.5;
            let common = (0..12).filter(|column| chance(*column) % (column + 1) == 0);
            let rare = [20 + row % 97, 200 + row];
            match row % 7 {
                0 => Vec::new(),
                1 => vec![(3, 1.0)],
                _ => common
                    .chain(rare)
                    .map(|column| (column, value(column)))
                    .collect(),
            }
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn queries_of_several_groups_find_what_a_plain_search_finds() {
        let (queries, rows) = (uneven(2 * GROUP as u64 + 37, 1), uneven(60, 2));
        let (q, x, k) = (Rows::of(&queries), Rows::of(&rows), 4);
        let postings = Postings::new(q.numbered(0)).unwrap();
        assert!(postings.groups.iter().all(|group| !group.dense.is_empty()));
        for metric in [Metric::Euclidean, Metric::Cosine, Metric::InnerProduct] {
            for leaves_out_itself in [false, true] {
                let mut nearest = vec![Neighbor::NONE; k * queries.len()];
                let mut scratch = vec![0.0; queries.len()];
                add_sparse_neighbors(
                    &mut nearest,
                    metric,
                    q.numbered(0),
                    &postings,
                    x.numbered(0),
                    leaves_out_itself,
                    &mut scratch,
                    &|| false,
                )
                .unwrap();
                for query in 0..queries.len() {
                    let mut all: Vec<Neighbor> = (0..rows.len())
                        .filter(|row| !(leaves_out_itself && *row == query))
                        .map(|row| Neighbor {
                            distance: exact(
                                metric,
                                q.numbered(0).row(query),
                                x.numbered(0).row(row),
                                [q.squares[query], x.squares[row]],
                            ),
                            row: row as u64,
                        })
                        .collect();
                    all.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
                    assert_eq!(&nearest[query * k..][..k], &all[..k]);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn both_sides_find_what_they_find_alone(
            all in rows(150),
            k in 1usize..6,
            block in 1usize..60,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
        ) {
            let made = Rows::of(&all);
            let blocks: Vec<Rows> = all.chunks(block).map(Rows::of).collect();
            let postings: Vec<_> = blocks.iter().map(|part| Postings::new(part.numbered(0)).unwrap()).collect();
            let mut expected = vec![Neighbor::NONE; k * all.len()];
            let mut scratch = vec![0.0; 3 * all.len()];
            let whole = Postings::new(made.numbered(0)).unwrap();
            add_sparse_neighbors(&mut expected, metric, made.numbered(0), &whole, made.numbered(0), true, &mut scratch, &|| false).unwrap();
            let mut nearest = vec![Neighbor::NONE; k * all.len()];
            for one in 0..blocks.len() {
                let numbered = |at: usize| blocks[at].numbered((at * block) as u64);
                let of_one = k * blocks[one].squares.len();
                let own = &mut nearest[k * one * block..][..of_one];
                add_sparse_neighbors(own, metric, numbered(one), &postings[one], numbered(one), true, &mut scratch, &|| false).unwrap();
                for other in one + 1..blocks.len() {
                    let (before, after) = nearest.split_at_mut(k * other * block);
                    let lists = [&mut before[k * one * block..][..of_one], &mut after[..k * blocks[other].squares.len()]];
                    add_mutual_sparse_neighbors(lists, metric, numbered(one), &postings[one], numbered(other), &mut scratch, &|| false).unwrap();
                }
            }
            prop_assert_eq!(nearest, expected);
        }

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
