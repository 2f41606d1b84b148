//! Products of blocks of dense rows, and what they say of each row.

use faer::MatRef;

use super::bounds::{Bounds, within};
use super::found::{Found, Nearest, OfSome};
use super::rounded::Rounded;
use super::sparse::is_any_within;
use super::{COMPARED, Metric, Neighbor, NumberedRows, Numbers, Within};
use crate::bf16::{self, Operand};
use crate::{Blas, Error, Real, gemm, gemm_scratch_bytes, view, view_mut};

/// One of this many queries tells whether rounded products tell rows apart: at most one row of
/// [`AGAIN`] is compared again then, since that takes as long as a product in f32 with many rows.
const SAMPLED: usize = 8;
const AGAIN: usize = 64;
/// Rows that queries are packed for, at least.
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
    /// Rounded, where the operands of rows of d elements have room in some bytes: with fewer rows if
    /// need be, as long as packing the queries for them costs little.
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
        self.products() + 3 * self.rows
    }

    fn products(&self) -> usize {
        self.queries.next_multiple_of(bf16::BLOCK) * self.rows.next_multiple_of(bf16::BLOCK)
    }

    /// Bytes that a thread holds besides, for rows of d elements.
    pub fn held_bytes<T: Real>(&self, d: usize, blas: &Blas) -> usize {
        let rounded = match self.is_rounded {
            true => self.operand_rows(self.rows) * Operand::row_bytes(d),
            false => 0,
        };
        gemm_scratch_bytes::<T>(self.queries, self.rows, d, blas) + rounded
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
    let (products, of_rows) = scratch.split_at_mut(tile.products());
    let (scales, of_rows) = of_rows.split_at_mut(tile.rows);
    let (offsets, leasts) = of_rows.split_at_mut(tile.rows);
    for top in (0..n).step_by(tile.rows) {
        let count = tile.rows.min(n - top);
        let part = rows.part(top..top + count);
        let (scales, offsets) = (&mut scales[..count], &mut offsets[..count]);
        for ((scale, offset), square) in scales.iter_mut().zip(&mut *offsets).zip(part.squares) {
            [*scale, *offset] = metric.terms(*square).map(T::of);
        }
        let compared = Compared {
            bounds: Bounds {
                metric,
                terms: d,
                longest: part.squares.iter().copied().fold(0.0, f64::max).sqrt(),
                steepest: scales.iter().map(|scale| scale.f64()).fold(0.0, f64::max),
                is_rounded: false,
            },
            rows: part,
            scales,
            offsets,
        };
        if let Some(rounded) = &mut rounded {
            rounded.take_rows(part.values);
        }
        let stride = count.next_multiple_of(bf16::BLOCK);
        for left in (0..m).step_by(tile.queries) {
            if (how.stop)() {
                return Ok(());
            }
            let several = tile.queries.min(m - left);
            let some = queries.part(left..left + several);
            let mut compared = compared;
            if let Some(tile) = &mut rounded {
                tile.multiply(products, stride, some.values, metric.factor());
                compared.bounds.is_rounded = true;
                let is_told = compared.tells_apart((&*found, left), products, stride, some.squares);
                compared.bounds.is_rounded = is_told;
                if !tile.pays_after(is_told) {
                    rounded = None;
                }
            }
            if !compared.bounds.is_rounded {
                gemm(
                    view_mut(products, several, count, stride, 1)?,
                    metric.factor(),
                    some.values,
                    part.values.transpose(),
                    T::ZERO,
                    how.blas,
                )?;
            }
            let of_queries = || {
                products
                    .chunks(stride)
                    .take(several)
                    .map(|row| &row[..count])
            };
            if let Some(found) = &mut found_back {
                let leasts = &mut leasts[..count];
                compared.add_back((found, top), of_queries(), some, leasts);
            }
            for (query, products) in of_queries().enumerate() {
                compared.add_to(
                    (found, left + query),
                    products,
                    (some.values, query),
                    some.squares[query],
                    how.leaves_out_itself.then(|| some.numbers.of(query)),
                );
            }
        }
    }
    Ok(())
}

/// Rows whose products with queries are there.
#[derive(Clone, Copy)]
struct Compared<'a, T: Real> {
    bounds: Bounds,
    rows: NumberedRows<'a, T>,
    scales: &'a [T],
    offsets: &'a [T],
}

impl<T: Real> Compared<'_, T> {
    /// Whether products leave few rows to be compared again, by those of some queries, the first of
    /// which has the number `left`.
    fn tells_apart(
        &self,
        (found, left): (&impl Found, usize),
        products: &[T],
        stride: usize,
        squares: &[f64],
    ) -> bool {
        let (mut seen, mut again) = (0, 0);
        for query in (0..squares.len()).step_by(SAMPLED) {
            let least = self
                .bounds
                .limit::<T>(found.last(left + query), squares[query]);
            let products = &products[query * stride..][..self.scales.len()];
            again += within(products, self.scales, self.offsets, T::of(least));
            seen += products.len();
        }
        again * AGAIN <= seen
    }

    /// Adds the rows to what one query has found. What a product says of a row is
    /// `product * scale + offset`, which is small where the row is near.
    fn add_to(
        &self,
        (found, number): (&mut impl Found, usize),
        products: &[T],
        (queries, query): (MatRef<'_, T>, usize),
        square: f64,
        left_out: Option<u64>,
    ) {
        let limit = |last: f64| T::of(self.bounds.limit::<T>(last, square));
        let mut least = limit(found.last(number));
        for start in (0..products.len()).step_by(COMPARED) {
            let end = (start + COMPARED).min(products.len());
            let (scales, offsets) = (&self.scales[start..end], &self.offsets[start..end]);
            if within(&products[start..end], scales, offsets, least) == 0 {
                continue;
            }
            for (product, at) in products[start..end].iter().zip(start..) {
                // What is not a number may be anything.
                let is_beyond = *product * self.scales[at] + self.offsets[at] > least;
                let row = self.rows.numbers.of(at);
                if is_beyond || left_out == Some(row) {
                    continue;
                }
                let (q, x) = ((queries, query), (self.rows.values, at));
                let distance = self
                    .bounds
                    .metric
                    .exact(q, square, x, self.rows.squares[at]);
                if found.take(number, Neighbor { distance, row }) {
                    least = limit(found.last(number));
                }
            }
        }
    }
}

impl<T: Real> Compared<'_, T> {
    /// Adds queries to the nearest of each row, the first of which has the number `top`.
    fn add_back<'p>(
        &self,
        (found, top): (&mut Nearest<'_>, usize),
        products: impl Iterator<Item = &'p [T]>,
        queries: NumberedRows<'_, T>,
        leasts: &mut [T],
    ) {
        let metric = self.bounds.metric;
        let longest = queries.squares.iter().copied().fold(0.0, f64::max);
        let terms = queries.squares.iter().map(|square| metric.terms(*square));
        let bounds = Bounds {
            longest: longest.sqrt(),
            steepest: terms
                .map(|[scale, _]| T::of(scale).f64())
                .fold(0.0, f64::max),
            ..self.bounds
        };
        let limit = |found: &Nearest<'_>, at: usize| {
            T::of(bounds.limit::<T>(found.last(top + at), self.rows.squares[at]))
        };
        for (at, least) in leasts.iter_mut().enumerate() {
            *least = limit(found, at);
        }
        let count = leasts.len();
        for (query, products) in products.enumerate() {
            let square = queries.squares[query];
            let [scale, offset] = metric.terms(square).map(T::of);
            for start in (0..count).step_by(COMPARED) {
                let part = start..(start + COMPARED).min(count);
                let (some, least) = (&products[part.clone()], &leasts[part.clone()]);
                if !is_any_within(some, scale, offset, least) {
                    continue;
                }
                for at in part {
                    // What is not a number may be anything.
                    if products[at] * scale + offset > leasts[at] {
                        continue;
                    }
                    let (q, x) = ((queries.values, query), (self.rows.values, at));
                    let neighbor = Neighbor {
                        distance: metric.exact(q, square, x, self.rows.squares[at]),
                        row: queries.numbers.of(query),
                    };
                    if found.take(top + at, neighbor) {
                        leasts[at] = limit(found, at);
                    }
                }
            }
        }
    }
}
