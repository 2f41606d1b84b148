//! Products of blocks of dense rows, and what they say of each row.

use std::ops::Range;

use super::bounds::Bounds;
use super::found::{Found, Nearest, OfSome};
use super::marks::{SIDE, each, is_beyond, rows_for_queries, rows_of_queries};
use super::rounded::Rounded;
use super::{Metric, Neighbor, NumberedRows, Numbers, Within};
use crate::bf16::{self, Operand};
use crate::{Blas, Error, Real, gemm, gemm_scratch_bytes, view, view_mut};

/// Rounded products tell rows apart if at most one distance is computed for nothing for this many
/// products: about as many in f32 take as long as it.
const IN_VAIN: usize = 32;
/// Tiles of fewer rows take longer to be limited than to be multiplied.
const LEAST_ROWS: usize = 128;

/// Queries and rows of a product that is compared at a time.
#[derive(Clone, Copy, Debug)]
pub struct NeighborTile {
    /// Queries.
    pub queries: usize,
    /// Rows.
    pub rows: usize,
    /// Products of f32 are rounded to bf16 where that is faster and tells rows apart.
    pub is_rounded: bool,
}

impl NeighborTile {
    /// Of these queries and at most as many rows, where scratch has about `elements` elements.
    pub fn within(queries: usize, rows: usize, elements: usize) -> NeighborTile {
        // Few queries are filled up to a square: what they take is not to grow by that.
        let elements = if queries < SIDE {
            elements / 4
        } else {
            elements
        };
        let of_sides = 3 * (padded(queries) + SIDE);
        let fitting = elements.saturating_sub(of_sides) / (stride(queries) + 3);
        let fitting = fitting / bf16::BLOCK * bf16::BLOCK;
        NeighborTile {
            queries,
            rows: fitting.max(bf16::BLOCK).min(rows.max(1)),
            is_rounded: false,
        }
    }

    /// Numbers of queries, up to this one, whose tiles differ in what they take: with fewer queries a
    /// tile may have more rows, and take more.
    pub fn query_counts(most: usize) -> impl Iterator<Item = usize> {
        (0..most)
            .step_by(bf16::BLOCK)
            .map(move |fewer| most - fewer)
    }

    /// Rounded, where the operands of rows of d elements have room in some bytes: with fewer rows if
    /// need be, but not with very few.
    pub fn rounded_within<T: Real>(self, d: usize, bytes: usize) -> NeighborTile {
        let fitting = (bytes / Operand::row_bytes(d)).saturating_sub(self.operand_rows(0));
        let fitting = fitting / bf16::BLOCK * bf16::BLOCK;
        let is_rounded =
            Rounded::suits::<T>(self.queries, d) && fitting >= self.rows.min(LEAST_ROWS);
        NeighborTile {
            rows: if is_rounded {
                self.rows.min(fitting)
            } else {
                self.rows
            },
            is_rounded,
            ..self
        }
    }

    /// Elements of scratch.
    pub fn scratch(&self) -> usize {
        self.products() + 3 * (padded(self.queries) + padded(self.rows))
    }

    fn products(&self) -> usize {
        self.rows.next_multiple_of(bf16::BLOCK) * stride(self.queries)
    }

    /// Bytes that a thread holds besides, for rows of d elements.
    pub fn held_bytes<T: Real>(&self, d: usize, blas: &Blas) -> usize {
        let rounded = match self.is_rounded {
            true => self.operand_rows(self.rows) * Operand::row_bytes(d),
            false => 0,
        };
        let of = |queries: usize| gemm_scratch_bytes::<T>(self.rows, queries, d, blas);
        // Strips of some queries are multiplied alone only where rounded products told too little of them.
        let strip = if self.is_rounded {
            of(self.queries.min(SIDE))
        } else {
            0
        };
        of(self.queries).max(strip) + rounded
    }

    /// Rows of both operands, and of the block that is being packed.
    fn operand_rows(&self, rows: usize) -> usize {
        let [queries, rows] = [self.queries, rows].map(|rows| rows.next_multiple_of(bf16::BLOCK));
        queries + rows + bf16::BLOCK
    }
}

/// How queries and rows are compared.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    /// What is small.
    pub metric: Metric,
    /// A query is not its own neighbour, where both have the same number.
    pub leaves_out_itself: bool,
    /// Of one product.
    pub tile: NeighborTile,
    /// Multiplies.
    pub blas: &'a Blas,
    /// Asked at least every 0.1 s or so; after `true` the result is unspecified.
    pub stop: &'a dyn Fn() -> bool,
}

/// Adds some rows to the k nearest of each query, all of which begin as [`Neighbor::NONE`].
///
/// Shapes: `nearest` is m x k, each query's in order; queries are m x d, rows n x d, any strides.
///
/// Cost: 2mnd flops; scratch of [`NeighborTile::scratch`] elements.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the bits depend on the values only.
pub fn add_neighbors<T: Real>(
    nearest: &mut [Neighbor],
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    how: Comparison<'_>,
    scratch: &mut [T],
) -> Result<(), Error> {
    let m = queries.values.nrows();
    let Some(mut found) = Nearest::new(nearest, m) else {
        let (m, nearest) = (queries.values.shape(), nearest.len());
        return Err(Error::shape(
            "add_neighbors",
            &[("queries", &m), ("nearest", &nearest)],
        ));
    };
    match found.k {
        0 => Ok(()),
        _ => add(&mut found, None, queries, rows, how, scratch),
    }
}

/// Adds some rows to the k nearest of some of the queries, as [`add_neighbors`] does to those of all.
///
/// Cost: [`gathered_bytes`] besides.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: as of [`add_neighbors`].
pub fn add_neighbors_of<T: Real>(
    seekers: &[usize],
    nearest: &mut [Neighbor],
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    how: Comparison<'_>,
    scratch: &mut [T],
) -> Result<(), Error> {
    let (m, d) = queries.values.shape();
    let is_there = seekers.iter().all(|query| *query < m);
    let (true, Some(mut found)) = (is_there, Nearest::new(nearest, m)) else {
        return Err(Error::shape(
            "add_neighbors_of",
            &[("queries", &m), ("seekers", &seekers)],
        ));
    };
    if found.k == 0 {
        return Ok(());
    }
    let mut values = Vec::with_capacity(seekers.len() * d);
    for query in seekers {
        values.extend(queries.values.row(*query).iter());
    }
    let squares: Vec<f64> = seekers
        .iter()
        .map(|query| queries.squares[*query])
        .collect();
    let numbers: Vec<u64> = seekers
        .iter()
        .map(|query| queries.numbers.of(*query))
        .collect();
    let some = NumberedRows {
        values: view(&values, seekers.len(), d, d, 1)?,
        squares: &squares,
        numbers: Numbers::Listed(&numbers),
    };
    let mut found = OfSome {
        found: &mut found,
        queries: seekers,
    };
    add(&mut found, None, some, rows, how, scratch)
}

/// Bytes that some of m queries of d elements take by themselves.
pub fn gathered_bytes<T: Real>(m: usize, d: usize) -> usize {
    m * (d * size_of::<T>() + size_of::<f64>() + size_of::<u64>())
}

/// Adds some rows to the k nearest of each query, and the queries to the k nearest of each row, of
/// one product: both are rows of one matrix, none of them in both, so that none is left out.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: as of [`add_neighbors`], whose lists these are.
pub fn add_mutual_neighbors<T: Real>(
    nearest: [&mut [Neighbor]; 2],
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    how: Comparison<'_>,
    scratch: &mut [T],
) -> Result<(), Error> {
    let counts = [queries.values.nrows(), rows.values.nrows()];
    let [mut found, mut found_back] = Nearest::mutual("add_mutual_neighbors", nearest, counts)?;
    match found.k {
        0 => Ok(()),
        _ => add(
            &mut found,
            Some(&mut found_back),
            queries,
            rows,
            how,
            scratch,
        ),
    }
}

/// Adds the rows within a radius of each query to a list of pairs, as [`add_neighbors`] does the
/// nearest, by the metric of the list. Pairs of a query come in the order of the rows.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the pairs depend on the values only.
pub fn add_within<T: Real>(
    within: &mut Within<'_>,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    how: Comparison<'_>,
    scratch: &mut [T],
) -> Result<(), Error> {
    if within.counts.len() != queries.values.nrows() {
        return Err(Error::shape(
            "add_within",
            &[
                ("queries", &queries.values.shape()),
                ("counts", &within.counts.len()),
            ],
        ));
    }
    let how = Comparison {
        metric: within.metric,
        ..how
    };
    add(within, None, queries, rows, how, scratch)
}

/// Compares some rows with some queries, tile by tile; and queries with rows, where these look for
/// them.
fn add<T: Real>(
    found: &mut impl Found,
    mut found_back: Option<&mut Nearest<'_>>,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    how: Comparison<'_>,
    scratch: &mut [T],
) -> Result<(), Error> {
    let Comparison { metric, tile, .. } = how;
    let ((m, d), n) = (queries.values.shape(), rows.values.nrows());
    let fits = rows.values.ncols() == d
        && (queries.squares.len(), rows.squares.len()) == (m, n)
        && queries.numbers.are_of(m)
        && rows.numbers.are_of(n)
        && scratch.len() >= tile.scratch();
    if !fits {
        return Err(Error::shape(
            "neighbors",
            &[
                ("queries", &queries.values.shape()),
                ("rows", &rows.values.shape()),
                ("scratch", &scratch.len()),
            ],
        ));
    }
    let mut rounded = Rounded::new::<T>(m, d).filter(|_| tile.is_rounded);
    let (products, of_sides) = scratch.split_at_mut(tile.products());
    let (of_queries, of_rows) = of_sides.split_at_mut(3 * padded(tile.queries));
    for left in (0..m).step_by(tile.queries) {
        let some = queries.part(left..m.min(left + tile.queries));
        let mut some = Side::new(metric, (left, some), of_queries);
        for top in (0..n).step_by(tile.rows) {
            if (how.stop)() {
                return Ok(());
            }
            let part = rows.part(top..n.min(top + tile.rows));
            let mut meeting = Meeting {
                how,
                rows: Side::new(metric, (top, part), of_rows),
                queries: &mut some,
                found,
                found_back: found_back.as_deref_mut(),
                rows_limited: None,
            };
            meeting.run(&mut rounded, products)?;
        }
    }
    Ok(())
}

/// Elements for a number of queries or rows, so that squares end with them.
fn padded(count: usize) -> usize {
    count.next_multiple_of(SIDE)
}

/// Elements between products of one row and those of the next: a line more than there are, so that
/// those of one query are not all in the same set of a cache.
fn stride(queries: usize) -> usize {
    padded(queries) + 16
}

/// The queries or the rows of a tile. What a product says of one is `product * scale + offset`, which
/// is small where it is near.
struct Side<'a, T: Real> {
    rows: NumberedRows<'a, T>,
    /// The place of the first among all.
    first: usize,
    scales: &'a mut [T],
    offsets: &'a mut [T],
    /// The most that products may say of the others that these look for.
    limits: &'a mut [T],
    /// How far off products with these may be.
    bounds: Bounds,
}

impl<'a, T: Real> Side<'a, T> {
    fn new(
        metric: Metric,
        (first, rows): (usize, NumberedRows<'a, T>),
        scratch: &'a mut [T],
    ) -> Side<'a, T> {
        let count = padded(rows.squares.len());
        let (scales, rest) = scratch.split_at_mut(count);
        let (offsets, rest) = rest.split_at_mut(count);
        for ((scale, offset), square) in scales.iter_mut().zip(&mut *offsets).zip(rows.squares) {
            [*scale, *offset] = metric.terms(*square).map(T::of);
        }
        let limits = &mut rest[..count];
        // What only fills up a square looks for nothing.
        limits[rows.squares.len()..].fill(T::of(f64::NEG_INFINITY));
        let squares = rows.squares.iter().copied();
        let steepest = scales[..rows.squares.len()].iter().map(|scale| scale.f64());
        let bounds = Bounds {
            metric,
            terms: rows.values.ncols(),
            longest: squares.fold(0.0, f64::max).sqrt(),
            steepest: steepest.fold(0.0, f64::max),
            is_rounded: false,
        };
        Side {
            rows,
            first,
            scales,
            offsets,
            limits,
            bounds,
        }
    }

    fn count(&self) -> usize {
        self.rows.squares.len()
    }

    /// Limits some of them by what they have found.
    fn limit(&mut self, bounds: Bounds, some: Range<usize>, last: impl Fn(usize) -> f64) {
        for at in some {
            let last = last(self.first + at);
            self.limits[at] = T::of(bounds.limit::<T>(last, self.rows.squares[at]));
        }
    }
}

/// Queries and rows of a tile, and what they find.
struct Meeting<'a, 'b, 'n, T: Real, F> {
    how: Comparison<'a>,
    queries: &'b mut Side<'a, T>,
    rows: Side<'b, T>,
    found: &'b mut F,
    /// What rows find, where these look for queries.
    found_back: Option<&'b mut Nearest<'n>>,
    /// Whether rows are limited for rounded products; nothing as long as they are not limited.
    rows_limited: Option<bool>,
}

impl<T: Real, F: Found> Meeting<'_, '_, '_, T, F> {
    /// Compares all of them; `rounded` becomes `None` where it does not pay.
    fn run(&mut self, rounded: &mut Option<Rounded>, products: &mut [T]) -> Result<(), Error> {
        let (m, n) = (self.queries.count(), self.rows.count());
        // Strips that are multiplied together in f32.
        let mut waiting = 0..0;
        for start in (0..m).step_by(SIDE) {
            let strip = start..m.min(start + SIDE);
            let told = match rounded {
                Some(tiles) => self.add_rounded(tiles, strip.clone(), products),
                None => None,
            };
            let Some(told) = told else {
                let first = if waiting.is_empty() {
                    start
                } else {
                    waiting.start
                };
                waiting = first..strip.end;
                continue;
            };
            self.add_products(std::mem::take(&mut waiting), 0..n, products)?;
            self.add_products(strip, told..n, products)?;
            if rounded.as_ref().is_some_and(|tiles| !tiles.pays()) {
                *rounded = None;
            }
        }
        self.add_products(waiting, 0..n, products)
    }

    /// Limits queries by the rows, and rows by the queries.
    fn limit(&mut self, queries: Range<usize>, is_rounded: bool) -> [Bounds; 2] {
        let [of_rows, of_queries] = [self.rows.bounds, self.queries.bounds].map(|bounds| Bounds {
            is_rounded,
            ..bounds
        });
        (self.queries).limit(of_rows, queries, |query| self.found.last(query));
        if let Some(found) = &self.found_back
            && self.rows_limited != Some(is_rounded)
        {
            let all = 0..self.rows.count();
            self.rows.limit(of_queries, all, |row| found.last(row));
            self.rows_limited = Some(is_rounded);
        }
        [of_rows, of_queries]
    }

    /// Adds rows to some queries by products in f32 or f64.
    fn add_products(
        &mut self,
        queries: Range<usize>,
        rows: Range<usize>,
        products: &mut [T],
    ) -> Result<(), Error> {
        if queries.is_empty() || rows.is_empty() {
            return Ok(());
        }
        let bounds = self.limit(queries.clone(), false);
        let of_rows = self.rows.rows.part(rows.clone()).values;
        let of_queries = self.queries.rows.part(queries.clone()).values;
        let stride = stride(queries.len());
        gemm(
            view_mut(products, rows.len(), queries.len(), stride, 1)?,
            self.how.metric.factor(),
            of_rows,
            of_queries.transpose(),
            T::ZERO,
            self.how.blas,
        )?;
        for left in queries.clone().step_by(SIDE) {
            for top in rows.clone().step_by(SIDE) {
                let square = &products[(top - rows.start) * stride + left - queries.start..];
                let of_rows = top..rows.end.min(top + SIDE);
                let mut unlimited = usize::MAX;
                self.add((left, of_rows), bounds, square, stride, &mut unlimited);
            }
        }
        Ok(())
    }

    /// Adds rows to a strip of queries by rounded products, until these tell too little: up to which
    /// row they told enough. Of queries that have found too few rows they tell nothing.
    fn add_rounded(
        &mut self,
        rounded: &mut Rounded,
        strip: Range<usize>,
        products: &mut [T],
    ) -> Option<usize> {
        let bounds = self.limit(strip.clone(), true);
        let limits = &self.queries.limits[strip.clone()];
        if !limits.iter().all(|limit| limit.f64() < f64::INFINITY) {
            return None;
        }
        let (left, n) = (strip.start, self.rows.count());
        rounded.take(
            (self.queries.first, self.queries.rows.values),
            self.how.metric.factor::<T>(),
            (self.rows.first, self.rows.rows.values),
        );
        let of_strip = rounded.products(strip.clone());
        let mut in_vain = 0;
        for top in (0..n).step_by(SIDE) {
            let rows = top..n.min(top + SIDE);
            of_strip.of(products, rows.clone());
            let mut allowed = (rows.end * strip.len() / IN_VAIN).saturating_sub(in_vain);
            let before = allowed;
            let told = self.add((left, rows.clone()), bounds, products, SIDE, &mut allowed);
            in_vain += before - allowed;
            if told < rows.end || allowed == 0 {
                rounded.has_told(false, strip.len());
                return Some(told);
            }
        }
        rounded.has_told(true, strip.len());
        Some(n)
    }

    /// Adds what a square of products tells of queries from `left` on, row by row, until more distances
    /// are computed for nothing than are allowed: up to which row.
    fn add(
        &mut self,
        (left, rows): (usize, Range<usize>),
        [of_rows, of_queries]: [Bounds; 2],
        products: &[T],
        stride: usize,
        allowed: &mut usize,
    ) -> usize {
        let queries = left..self.queries.count().min(left + SIDE);
        let [scales, offsets] = [&self.rows.scales, &self.rows.offsets].map(|x| &x[rows.clone()]);
        let limits = square(self.queries.limits, left);
        let found = rows_for_queries(products, stride, (scales, offsets), limits);
        let found_back = match self.found_back {
            Some(_) => {
                let [scales, offsets] =
                    [&self.queries.scales, &self.queries.offsets].map(|x| square(x, left));
                let limits = &self.rows.limits[rows.clone()];
                rows_of_queries(products, stride, (scales, offsets), limits)
            }
            None => 0,
        };
        for at in each(found | found_back) {
            if *allowed == 0 {
                return rows.start + at;
            }
            let (row, products) = (rows.start + at, &products[at * stride..]);
            let of_queries = (queries.clone(), of_queries);
            let in_vain = self.add_row(row, (queries.clone(), of_rows), products)
                + self.add_to_row(row, of_queries, products);
            *allowed = allowed.saturating_sub(in_vain);
        }
        rows.end
    }

    /// Adds a row to what queries find: how many distances were computed for nothing.
    fn add_row(
        &mut self,
        row: usize,
        (queries, bounds): (Range<usize>, Bounds),
        products: &[T],
    ) -> usize {
        let [scale, offset] = [self.rows.scales[row], self.rows.offsets[row]];
        let number = self.rows.rows.numbers.of(row);
        let mut in_vain = 0;
        for (product, query) in products.iter().zip(queries) {
            let is_itself =
                self.how.leaves_out_itself && self.queries.rows.numbers.of(query) == number;
            if is_beyond(*product, scale, offset, self.queries.limits[query]) || is_itself {
                continue;
            }
            let neighbor = Neighbor {
                distance: distance(self.how.metric, (self.queries, query), (&self.rows, row)),
                row: number,
            };
            let (found, place) = (&mut *self.found, self.queries.first + query);
            match found.take(place, neighbor) {
                true => (self.queries).limit(bounds, query..query + 1, |_| found.last(place)),
                false => in_vain += 1,
            }
        }
        in_vain
    }

    /// Adds queries to what a row finds, if it looks for them: how many distances were computed for
    /// nothing.
    fn add_to_row(
        &mut self,
        row: usize,
        (queries, bounds): (Range<usize>, Bounds),
        products: &[T],
    ) -> usize {
        let Some(found) = &mut self.found_back else {
            return 0;
        };
        let mut in_vain = 0;
        for (product, query) in products.iter().zip(queries) {
            let [scale, offset] = [self.queries.scales[query], self.queries.offsets[query]];
            if is_beyond(*product, scale, offset, self.rows.limits[row]) {
                continue;
            }
            let neighbor = Neighbor {
                distance: distance(self.how.metric, (self.queries, query), (&self.rows, row)),
                row: self.queries.rows.numbers.of(query),
            };
            let place = self.rows.first + row;
            match found.take(place, neighbor) {
                true => (self.rows).limit(bounds, row..row + 1, |_| found.last(place)),
                false => in_vain += 1,
            }
        }
        in_vain
    }
}

/// The exact distance of a query and a row.
fn distance<T: Real>(
    metric: Metric,
    (queries, query): (&Side<'_, T>, usize),
    (rows, row): (&Side<'_, T>, usize),
) -> f64 {
    let [q, x] = [&queries.rows, &rows.rows];
    metric.exact(
        (q.values, query),
        q.squares[query],
        (x.values, row),
        x.squares[row],
    )
}

/// What a square has of the elements of a side.
fn square<T>(side: &[T], first: usize) -> &[T; SIDE] {
    side[first..].first_chunk().expect("sides are filled up")
}
