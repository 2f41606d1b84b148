//! The k nearest rows of a matrix to each of some queries, exactly.
//!
//! A product of blocks gives every distance to within a known error: of f32 rounded to bf16, where the
//! processor multiplies that faster and it tells rows apart, or of the elements as they are. A row whose distance may be
//! among the k smallest, the error counted, has it computed again in f64 from the two rows; what is
//! kept is decided by that number alone, and by the row's own number where two are equal. So the
//! result depends on the rows only: not on blocks, on their order, on the processor, or on the
//! library that makes the products.
#![forbid(unsafe_code)]

mod blocks;
mod found;
mod rounded;
mod sparse;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use faer::MatRef;

use crate::bf16::{self, Operand};
use crate::view::row_slice;
use crate::{Blas, Error, Real, gemm, gemm_scratch_bytes, view, view_mut};

use found::{Found, Nearest, OfSome};
use rounded::Rounded;

pub use blocks::{KnownBlock, RowCenters};
pub use found::{Pair, Within};
pub use sparse::{
    Postings, SparseNumberedRows, add_mutual_sparse_neighbors, add_sparse_neighbors,
    add_sparse_within,
};

/// Columns of a product that are compared with the limit together.
const COMPARED: usize = 64;
/// One of this many queries tells whether rounded products tell rows apart: at most one row of
/// [`AGAIN`] is compared again then, since that takes as long as a product in f32 with many rows.
const SAMPLED: usize = 8;
const AGAIN: usize = 64;
/// Rows that queries are packed for, at least.
const LEAST_ROWS: usize = 128;
/// Sums of a distance: their order is that of the result, whatever the processor has.
const LANES: usize = 16;

/// What is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// |q - x|; compared as its square.
    Euclidean,
    /// 1 - q.x / (|q| |x|); 1 where one of the two is zero.
    Cosine,
    /// -q.x: the largest product is nearest.
    InnerProduct,
}

/// A row, and how far it is; as ordered by the distance, then by the number.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Neighbor {
    /// By the metric; of the Euclidean one, its square: the largest with the same root.
    pub distance: f64,
    /// The number of the row.
    pub row: u64,
}

impl Neighbor {
    /// Farther than any row.
    pub const NONE: Neighbor = Neighbor {
        distance: f64::INFINITY,
        row: u64::MAX,
    };

    fn is_before(&self, other: &Neighbor) -> bool {
        match self.distance.total_cmp(&other.distance) {
            std::cmp::Ordering::Equal => self.row < other.row,
            order => order.is_lt(),
        }
    }

    /// Puts it among the nearest, which are in order, if it is nearer than the last.
    #[inline]
    fn put_into(self, nearest: &mut [Neighbor]) -> bool {
        let is_nearer = nearest.last().is_some_and(|last| self.is_before(last));
        if is_nearer {
            let place = nearest.partition_point(|other| other.is_before(&self));
            let end = nearest.len() - 1;
            nearest.copy_within(place..end, place + 1);
            nearest[place] = self;
        }
        is_nearer
    }
}

/// Some rows of a matrix.
#[derive(Clone, Copy)]
pub struct NumberedRows<'a, T: Real> {
    /// The rows.
    pub values: MatRef<'a, T>,
    /// |x|^2 of each, finite, as of [`squares_of_rows`].
    pub squares: &'a [f64],
    /// The number of each.
    pub numbers: Numbers<'a>,
}

impl<'a, T: Real> NumberedRows<'a, T> {
    fn part(&self, rows: Range<usize>) -> NumberedRows<'a, T> {
        NumberedRows {
            values: self.values.subrows(rows.start, rows.len()),
            squares: &self.squares[rows.clone()],
            numbers: self.numbers.part(rows),
        }
    }
}

/// The numbers of some rows.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// This one, and those that follow it.
    From(u64),
    /// One by one.
    Listed(&'a [u64]),
}

impl Numbers<'_> {
    fn of(&self, row: usize) -> u64 {
        match self {
            Numbers::From(first) => first + row as u64,
            Numbers::Listed(numbers) => numbers[row],
        }
    }

    fn part(self, rows: Range<usize>) -> Self {
        match self {
            Numbers::From(first) => Numbers::From(first + rows.start as u64),
            Numbers::Listed(numbers) => Numbers::Listed(&numbers[rows]),
        }
    }

    fn are_of(&self, rows: usize) -> bool {
        match self {
            Numbers::From(_) => true,
            Numbers::Listed(numbers) => numbers.len() == rows,
        }
    }
}

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

/// Adds some rows to the k nearest of each query, all of which begin as [`Neighbor::NONE`].
///
/// Shapes: `nearest` is m x k, each query's in order; queries are m x d, rows n x d, any strides.
/// `leaves_out_itself`: a query is not its own neighbour, where both have the same number. `stop`
/// is asked at least every 0.1 s or so; the result is then unspecified.
///
/// Cost: 2mnd flops; scratch of [`NeighborTile::scratch`] elements.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the bits depend on the values only.
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what to find, and where to work"
)]
pub fn add_neighbors<T: Real>(
    nearest: &mut [Neighbor],
    metric: Metric,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    leaves_out_itself: bool,
    tile: NeighborTile,
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
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
        _ => add(
            &mut found,
            None,
            metric,
            (queries, rows, leaves_out_itself),
            tile,
            scratch,
            (blas, stop),
        ),
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
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, some of one, what to find, and where to work"
)]
pub fn add_neighbors_of<T: Real>(
    seekers: &[usize],
    nearest: &mut [Neighbor],
    metric: Metric,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    leaves_out_itself: bool,
    tile: NeighborTile,
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
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
    let sides = (some, rows, leaves_out_itself);
    add(&mut found, None, metric, sides, tile, scratch, (blas, stop))
}

/// Bytes that some of m queries of d elements take by themselves.
pub fn gathered_bytes<T: Real>(m: usize, d: usize) -> usize {
    m * (d * size_of::<T>() + size_of::<f64>() + size_of::<u64>())
}

/// Adds some rows to the k nearest of each query, and the queries to the k nearest of each row, of
/// one product: both are rows of one matrix, none of them in both.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: as of [`add_neighbors`], whose lists these are.
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what both find, and where to work"
)]
pub fn add_mutual_neighbors<T: Real>(
    nearest: [&mut [Neighbor]; 2],
    metric: Metric,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    tile: NeighborTile,
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let counts = [queries.values.nrows(), rows.values.nrows()];
    let [mut found, mut found_back] = Nearest::mutual("add_mutual_neighbors", nearest, counts)?;
    match found.k {
        0 => Ok(()),
        _ => add(
            &mut found,
            Some(&mut found_back),
            metric,
            (queries, rows, false),
            tile,
            scratch,
            (blas, stop),
        ),
    }
}

/// Adds the rows within a radius of each query to a list of pairs, as [`add_neighbors`] does the
/// nearest. Pairs of a query come in the order of the rows.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the pairs depend on the values only.
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what to find, and where to work"
)]
pub fn add_within<T: Real>(
    within: &mut Within<'_>,
    queries: NumberedRows<'_, T>,
    rows: NumberedRows<'_, T>,
    leaves_out_itself: bool,
    tile: NeighborTile,
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
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
    let metric = within.metric;
    add(
        within,
        None,
        metric,
        (queries, rows, leaves_out_itself),
        tile,
        scratch,
        (blas, stop),
    )
}

/// Compares some rows with some queries, tile by tile; and queries with rows, where these look for
/// them.
fn add<T: Real>(
    found: &mut impl Found,
    mut found_back: Option<&mut Nearest<'_>>,
    metric: Metric,
    (queries, rows, leaves_out_itself): (NumberedRows<'_, T>, NumberedRows<'_, T>, bool),
    tile: NeighborTile,
    scratch: &mut [T],
    (blas, stop): (&Blas, &dyn Fn() -> bool),
) -> Result<(), Error> {
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
            if stop() {
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
                    blas,
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
                    leaves_out_itself.then(|| some.numbers.of(query)),
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
                if !sparse::is_any_within(some, scale, offset, least) {
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

/// How far off products may be.
#[derive(Clone, Copy)]
struct Bounds {
    metric: Metric,
    /// Of a product, at most.
    terms: usize,
    /// The largest |x|.
    longest: f64,
    /// The largest scale, as products are scaled with it: it may be beyond their type.
    steepest: f64,
    /// Products are of elements rounded to bf16.
    is_rounded: bool,
}

impl Bounds {
    /// The most that a product can say of a row that is as near as `last`, all errors of rounding
    /// counted: a sum of d products is off by up to d roundings of |q| |x|, in whatever order it is
    /// added up, and by d of the smallest numbers. Where both factors were rounded before, it is off
    /// by two of their roundings besides, and what is smallest is taken for zero.
    fn limit<T: Real>(&self, last: f64, square: f64) -> f64 {
        let (query, longest) = (square.sqrt(), self.longest);
        let (large, small) = match size_of::<T>() {
            4 => (1e37, 1e-44),
            _ => (1e300, 1e-323),
        };
        let lengths = query.max(1.0) * longest.max(1.0);
        if last == f64::INFINITY || 2.0 * lengths > large || longest * longest > large {
            return f64::INFINITY;
        }
        let roundings = (self.terms + 16) as f64;
        let of_products = roundings * T::EPSILON.f64();
        let exact = 2.0 * roundings * f64::EPSILON;
        let (of_factors, small) = match self.is_rounded {
            true => (
                (2.0 + bf16::ROUNDING) * bf16::ROUNDING + 0.01 * of_products,
                bf16::SMALLEST * (1.0 + query + longest),
            ),
            false => (0.0, small),
        };
        let limit = match self.metric {
            Metric::Euclidean => {
                let products = 2.0 * query * longest;
                let of_products = of_products * (products + longest * longest);
                last * (1.0 + exact) - square + of_factors * products + of_products + exact * square
            }
            Metric::Cosine => {
                (last - 1.0) * query + (of_factors + of_products + 2.0 * exact) * query
            }
            Metric::InnerProduct => last + (of_factors + of_products + exact) * query * longest,
        };
        limit + limit.abs() * T::EPSILON.f64() + 4.0 * roundings * small * self.steepest.max(1.0)
    }
}

/// How many of some rows may be as near as `least`.
fn within<T: Real>(products: &[T], scales: &[T], offsets: &[T], least: T) -> usize {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let terms = scales.iter().zip(offsets);
            let beyond = |(product, (scale, offset)): (&T, (&T, &T))| {
                u32::from(*product * *scale + *offset > least)
            };
            let count: u32 = products.iter().zip(terms).map(beyond).sum();
            products.len() - count as usize
        },
    )
}

impl Metric {
    /// What products are multiplied by.
    fn factor<T: Real>(self) -> T {
        T::of(if self == Metric::Euclidean {
            -2.0
        } else {
            -1.0
        })
    }

    /// Scale and offset of the products of a row.
    fn terms(self, square: f64) -> [f64; 2] {
        match self {
            Metric::Euclidean => [1.0, square],
            Metric::Cosine if square == 0.0 => [0.0, 0.0],
            Metric::Cosine => [1.0 / square.sqrt(), 0.0],
            Metric::InnerProduct => [1.0, 0.0],
        }
    }

    /// The distance in f64.
    fn exact<T: Real>(
        self,
        (queries, query): (MatRef<'_, T>, usize),
        query_square: f64,
        (rows, row): (MatRef<'_, T>, usize),
        row_square: f64,
    ) -> f64 {
        let term = |q: T, x: T| match self {
            Metric::Euclidean => (q.f64() - x.f64()) * (q.f64() - x.f64()),
            _ => q.f64() * x.f64(),
        };
        let sum = match (row_slice(queries, query), row_slice(rows, row)) {
            (Some(q), Some(x)) => summed(q.len(), |j| term(q[j], x[j])),
            _ => summed(queries.ncols(), |j| {
                term(queries[(query, j)], rows[(row, j)])
            }),
        };
        self.of_sum(sum, query_square, row_square)
    }

    /// The distance, of the sum of its terms and the squares of both. Distances that are shown alike are equal.
    fn of_sum(self, sum: f64, query_square: f64, row_square: f64) -> f64 {
        match self {
            Metric::Euclidean => largest_of_root(sum),
            // A sum without terms is the same zero as one of products.
            Metric::InnerProduct => 0.0 - sum,
            Metric::Cosine if query_square == 0.0 || row_square == 0.0 => 1.0,
            Metric::Cosine => {
                (1.0 - sum / (query_square.sqrt() * row_square.sqrt())).clamp(0.0, 2.0)
            }
        }
    }

    /// What users call the distance of a neighbour.
    pub fn shown(self, distance: f64) -> f64 {
        match self {
            Metric::Euclidean => distance.sqrt(),
            Metric::Cosine | Metric::InnerProduct => distance,
        }
    }
}

/// The largest number whose root is rounded as that of this one, which is not negative: at most four numbers have the
/// same. [`Bounds::limit`] allows for more than that.
fn largest_of_root(square: f64) -> f64 {
    let (root, mut largest) = (square.sqrt(), square);
    while largest.next_up().sqrt() == root {
        largest = largest.next_up();
    }
    largest
}

/// |x|^2 of each row, in the same order of sums wherever its elements lie.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn squares_of_rows<T: Real>(out: &mut [f64], x: MatRef<'_, T>) -> Result<(), Error> {
    if out.len() != x.nrows() {
        return Err(Error::shape(
            "squares_of_rows",
            &[("x", &x.shape()), ("out", &out.len())],
        ));
    }
    for (row, out) in out.iter_mut().enumerate() {
        *out = match row_slice(x, row) {
            Some(x) => summed(x.len(), |j| x[j].f64() * x[j].f64()),
            None => summed(x.ncols(), |j| x[(row, j)].f64() * x[(row, j)].f64()),
        };
    }
    Ok(())
}

/// The sum of d terms, in sixteen sums that are added up in order.
#[inline(always)]
fn summed(d: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    for start in (0..d - d % LANES).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for (lane, j) in (d - d % LANES..d).enumerate() {
        sums[lane] += term(j);
    }
    sums.iter().sum()
}

/// The plain twin of [`add_neighbors`]: the k nearest rows of one query.
pub fn neighbors_reference<T: Real>(
    query: MatRef<'_, T>,
    rows: MatRef<'_, T>,
    k: usize,
    metric: Metric,
    left_out: Option<u64>,
) -> Vec<Neighbor> {
    let square = |x: MatRef<'_, T>, row| {
        let mut out = [0.0];
        squares_of_rows(&mut out, x.subrows(row, 1)).map(|()| out[0])
    };
    let of_query = square(query, 0).unwrap_or(f64::NAN);
    let mut all: Vec<Neighbor> = (0..rows.nrows())
        .filter(|&row| left_out != Some(row as u64))
        .map(|row| Neighbor {
            distance: metric.exact(
                (query, 0),
                of_query,
                (rows, row),
                square(rows, row).unwrap_or(f64::NAN),
            ),
            row: row as u64,
        })
        .collect();
    all.sort_by(|a, b| match a.is_before(b) {
        true => std::cmp::Ordering::Less,
        false => std::cmp::Ordering::Greater,
    });
    all.truncate(k);
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<T: Real>(
        q: &[T],
        x: &[T],
        d: usize,
        k: usize,
        metric: Metric,
        blocks: (usize, NeighborTile),
    ) -> Vec<Neighbor> {
        let (m, n) = (q.len() / d, x.len() / d);
        let (block, tile) = blocks;
        let mut nearest = vec![Neighbor::NONE; m * k];
        let squares = |x: &[T], n| {
            let mut out = vec![0.0; n];
            squares_of_rows(&mut out, view(x, n, d, d, 1).unwrap()).unwrap();
            out
        };
        let queries = squares(q, m);
        // The order of blocks is of no account.
        for first in (0..n).step_by(block).rev() {
            let part = &x[first * d..((first + block) * d).min(x.len())];
            let squares = squares(part, part.len() / d);
            add_neighbors(
                &mut nearest,
                metric,
                NumberedRows {
                    values: view(q, m, d, d, 1).unwrap(),
                    squares: &queries,
                    numbers: Numbers::From(0),
                },
                NumberedRows {
                    values: view(part, part.len() / d, d, d, 1).unwrap(),
                    squares: &squares,
                    numbers: Numbers::From(first as u64),
                },
                false,
                tile,
                &mut vec![T::ZERO; tile.scratch()],
                &Blas::Builtin,
                &|| false,
            )
            .unwrap();
        }
        nearest
    }

    pub(super) fn values(seed: u64, count: usize, kind: u8) -> Vec<f64> {
        let mut state = seed | 1;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        };
        (0..count)
            .map(|_| match kind {
                0 => next(),
                // Many ties.
                1 => (next() * 2.0).round(),
                // Far from zero, close to each other: products cancel.
                2 => 1e4 + next() * 1e-2,
                // Products overflow, or vanish.
                3 => next() * 1e19,
                4 => next() * 1e-30,
                // Below the normal numbers of f32.
                5 => next() * 1e-40,
                _ => {
                    if next() > 0.0 {
                        0.0
                    } else {
                        next() * 1e3
                    }
                }
            })
            .collect()
    }

    /// 1 and the next number have the same root, and the row with the larger one comes first.
    #[test]
    fn of_distances_that_are_shown_alike_the_first_row_is_nearest() {
        let rows = [1.0, f64::EPSILON.sqrt(), 1.0, 0.0, 2.0, 0.0];
        let found = found(
            &[0.0, 0.0],
            &rows,
            2,
            2,
            Metric::Euclidean,
            (
                1,
                NeighborTile {
                    queries: 1,
                    rows: 1,
                    is_rounded: false,
                },
            ),
        );
        assert_eq!([found[0].row, found[1].row], [0, 1]);
        let [one, other] = [0, 1].map(|at: usize| Metric::Euclidean.shown(found[at].distance));
        assert_eq!((one, other), (1.0, 1.0));
    }

    proptest! {
        #[test]
        fn squares_of_one_root_become_the_largest(root in prop_oneof![0.0..1e-150, 0.5..4.0, 1e100..1e150]) {
            let largest = largest_of_root(root * root);
            let expected = f64::sqrt(root * root);
            let has_root = |square: f64| square.sqrt() == expected;
            prop_assert!(has_root(largest) && !has_root(largest.next_up()));
            let all: Vec<f64> = std::iter::successors(Some(largest), |square| Some(square.next_down()))
                .take_while(|square| *square >= 0.0 && has_root(*square))
                .collect();
            prop_assert!(all.len() <= 4, "{all:?}");
            prop_assert!(all.iter().all(|square| largest_of_root(*square) == largest));
        }

        #[test]
        fn some_of_the_queries_find_what_they_find_with_all(
            seed in any::<u64>(),
            (m, n, d, k) in (1usize..60, 1usize..200, 1usize..80, 1usize..12),
            kind in 0u8..7,
            (every, queries, rows, is_rounded) in (1usize..9, 1usize..50, 1usize..200, any::<bool>()),
        ) {
            let tile = NeighborTile { queries, rows, is_rounded };
            let both: Vec<f32> = values(seed, (m + n) * d, kind).iter().map(|x| *x as f32).collect();
            let mut squares = vec![0.0; m + n];
            squares_of_rows(&mut squares, view(&both, m + n, d, d, 1).unwrap()).unwrap();
            let part = |rows: Range<usize>| NumberedRows {
                values: view(&both[rows.start * d..rows.end * d], rows.len(), d, d, 1).unwrap(),
                squares: &squares[rows.clone()],
                numbers: Numbers::From(rows.start as u64),
            };
            let scratch = &mut vec![0.0; tile.scratch()];
            let (metric, q, x) = (Metric::Euclidean, part(0..m), part(m..m + n));
            let seekers: Vec<usize> = (0..m).step_by(every).collect();
            let mut all = vec![Neighbor::NONE; m * k];
            add_neighbors(&mut all, metric, q, x, true, tile, scratch, &Blas::Builtin, &|| false).unwrap();
            let mut some = vec![Neighbor::NONE; m * k];
            add_neighbors_of(&seekers, &mut some, metric, q, x, true, tile, scratch, &Blas::Builtin, &|| false).unwrap();
            for query in 0..m {
                let own = query * k..(query + 1) * k;
                match seekers.contains(&query) {
                    true => prop_assert_eq!(&some[own.clone()], &all[own]),
                    false => prop_assert_eq!(&some[own], &vec![Neighbor::NONE; k][..]),
                }
            }
        }

        #[test]
        fn both_sides_of_a_product_find_what_they_find_alone(
            seed in any::<u64>(),
            (n, d) in (2usize..200, 1usize..80),
            k in 1usize..12,
            kind in 0u8..7,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
            (block, queries, rows, is_rounded) in (1usize..90, 1usize..50, 1usize..200, any::<bool>()),
        ) {
            let (k, tile) = (k.min(n - 1), NeighborTile { queries, rows, is_rounded });
            let x: Vec<f32> = values(seed, n * d, kind).iter().map(|x| *x as f32).collect();
            let mut squares = vec![0.0; n];
            squares_of_rows(&mut squares, view(&x, n, d, d, 1).unwrap()).unwrap();
            let part = |rows: Range<usize>| NumberedRows {
                values: view(&x[rows.start * d..rows.end * d], rows.len(), d, d, 1).unwrap(),
                squares: &squares[rows.clone()],
                numbers: Numbers::From(rows.start as u64),
            };
            let mut nearest = vec![Neighbor::NONE; n * k];
            let scratch = &mut vec![0.0; tile.scratch()];
            let blocks: Vec<_> = (0..n).step_by(block).map(|start| start..(start + block).min(n)).collect();
            for (number, one) in blocks.iter().enumerate() {
                let own = &mut nearest[one.start * k..one.end * k];
                add_neighbors(own, metric, part(one.clone()), part(one.clone()), true, tile, scratch, &Blas::Builtin, &|| false).unwrap();
                for other in &blocks[number + 1..] {
                    let (before, after) = nearest.split_at_mut(other.start * k);
                    let lists = [&mut before[one.start * k..one.end * k], &mut after[..other.len() * k]];
                    add_mutual_neighbors(lists, metric, part(one.clone()), part(other.clone()), tile, scratch, &Blas::Builtin, &|| false).unwrap();
                }
            }
            for query in 0..n {
                let one = view(&x[query * d..][..d], 1, d, d, 1).unwrap();
                let all = view(&x, n, d, d, 1).unwrap();
                prop_assert_eq!(&nearest[query * k..][..k], &neighbors_reference(one, all, k, metric, Some(query as u64))[..]);
            }
        }

        #[test]
        fn neighbors_are_those_of_the_plain_twin(
            seed in any::<u64>(),
            (m, n, d) in (1usize..40, 1usize..250, 1usize..80),
            k in 1usize..12,
            kind in 0u8..7,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
            (block, queries, rows, is_rounded) in (1usize..250, 1usize..50, 1usize..200, any::<bool>()),
        ) {
            let k = k.min(n);
            let tile = NeighborTile { queries, rows, is_rounded };
            let all = values(seed, (m + n) * d, kind);
            let (q, x) = all.split_at(m * d);
            let (q32, x32): (Vec<f32>, Vec<f32>) = (q.iter().map(|x| *x as f32).collect(), x.iter().map(|x| *x as f32).collect());
            let found64 = found(q, x, d, k, metric, (block, tile));
            let found32 = found(&q32, &x32, d, k, metric, (block, tile));
            for query in 0..m {
                let one = view(&q[query * d..][..d], 1, d, d, 1).unwrap();
                prop_assert_eq!(&found64[query * k..][..k], &neighbors_reference(one, view(x, n, d, d, 1).unwrap(), k, metric, None)[..]);
                let one = view(&q32[query * d..][..d], 1, d, d, 1).unwrap();
                prop_assert_eq!(&found32[query * k..][..k], &neighbors_reference(one, view(&x32, n, d, d, 1).unwrap(), k, metric, None)[..]);
            }
        }
    }
}
