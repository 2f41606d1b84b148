//! Which blocks of rows may hold a neighbour of some queries.
//!
//! Rows of a block are near one centre b, queries near another one, a. Of the rows x it is known how
//! far they are from b, and how far they reach from b towards each other centre. A query q is at
//! least as far from them as it is beyond that:
//!
//! ```text
//!       b . . . x - - - - - - q          |q - x| >= |q - b| - outer  and  inner - |q - b|
//!       |------>|             :
//!        reach               (q - b).u   |q - x| >= (q - b).u - reach,   u from b to a, of length 1
//! ```
//!
//! All of this is computed in f64, by one product of rows, less their own centre, with the way from
//! there to each other centre. What rounding may have added is taken off, so that a block that is
//! left out holds no neighbour, nor one that is as near as the last.

use std::ops::Range;

use faer::MatRef;

use crate::{
    Blas, Error, Real, center_into, gemm, gemm_scratch_bytes, row_squares, view, view_mut,
};

/// Rows of a product.
const PART: usize = 128;
/// A square below it may have lost all of its digits.
const SMALLEST: f64 = 1e-290;

/// Centres that rows are near.
pub struct RowCenters {
    values: Vec<f64>,
    count: usize,
    width: usize,
}

/// What is known of the rows of a block.
pub struct KnownBlock {
    /// The number of the centre that they are near.
    pub center: usize,
    /// How far they are from it, at least.
    pub inner: f64,
    /// And at most.
    pub outer: f64,
    /// How far they reach from there towards each centre; empty where that is not known.
    pub reach: Vec<f32>,
}

impl KnownBlock {
    /// No more than `bytes` where the reach is known, too, towards k centres.
    pub fn bytes(k: usize, has_reach: bool) -> usize {
        size_of::<KnownBlock>() + if has_reach { 4 * k } else { 0 }
    }
}

impl RowCenters {
    /// From k centres of d elements, one after another.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there are whole ones.
    pub fn new(values: Vec<f64>, width: usize) -> Result<RowCenters, Error> {
        if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
            let shape = [
                ("centers", &values.len() as &dyn std::fmt::Debug),
                ("columns", &width),
            ];
            return Err(Error::shape("row centers", &shape));
        }
        Ok(RowCenters {
            count: values.len() / width,
            values,
            width,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Their elements.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The centres, that which is nearest to one of them first.
    pub fn nearest_to(&self, center: usize) -> Vec<usize> {
        let of = |number: usize| &self.values[number * self.width..][..self.width];
        let square = |number: usize| -> f64 {
            let pairs = of(number).iter().zip(of(center));
            pairs.map(|(x, y)| (x - y) * (x - y)).sum()
        };
        let mut all: Vec<(f64, usize)> = (0..self.count)
            .map(|number| (square(number), number))
            .collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        all.into_iter().map(|(_, number)| number).collect()
    }

    /// Elements of scratch of [`know`](RowCenters::know) and [`may_hold`](RowCenters::may_hold).
    pub fn scratch(&self) -> usize {
        (self.count + PART) * (self.width + 1) + PART * self.count
    }

    /// Bytes that a thread holds besides, where as many blocks may be left out.
    pub fn held_bytes(&self, blocks: usize, blas: &Blas) -> usize {
        blocks * size_of::<Toward>() + gemm_scratch_bytes::<f64>(PART, self.count, self.width, blas)
    }

    /// Operations with this number of rows.
    pub fn flops(&self, rows: usize) -> u64 {
        crate::gemm_flops(rows, self.count, self.width)
    }

    /// What there is to know of some rows, the reach towards other centres too or not. `stop` is
    /// asked at least every 0.1 s or so; the result is then unspecified.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn know<T: Real>(
        &self,
        center: usize,
        rows: MatRef<'_, T>,
        has_reach: bool,
        scratch: &mut [f64],
        blas: &Blas,
        stop: &dyn Fn() -> bool,
    ) -> Result<KnownBlock, Error> {
        let slack = self.slack();
        let (mut inner, mut outer) = (f64::INFINITY, 0.0_f64);
        let mut farthest = vec![f64::NEG_INFINITY; if has_reach { self.count } else { 0 }];
        let mut from = self.from(center, scratch)?;
        for part in parts(rows.nrows()) {
            if stop() {
                break;
            }
            for (square, products) in from.rows(rows.subrows(part.start, part.len()), blas)? {
                inner = inner.min((square * (1.0 - slack)).sqrt());
                outer = outer.max((square * (1.0 + slack)).sqrt());
                for (farthest, product) in farthest.iter_mut().zip(products) {
                    *farthest = farthest.max(*product);
                }
            }
        }
        let reach = farthest.iter().zip(from.apart);
        let reach = reach.map(|(product, apart)| match *apart > 0.0 {
            true => no_less(product / apart.sqrt() + slack * outer),
            false => f32::INFINITY,
        });
        Ok(KnownBlock {
            center,
            inner,
            outer,
            reach: reach.collect(),
        })
    }

    /// Marks the blocks that may hold a row as near to one of some queries as its limit, which is
    /// the square of a distance; they are near `center`. `stop` is asked at least every 0.1 s or so;
    /// the result is then unspecified.
    ///
    /// # Errors
    /// [`Error::Shape`].
    #[expect(clippy::too_many_arguments, reason = "two operands, and where to work")]
    pub fn may_hold<T: Real>(
        &self,
        marks: &mut [u8],
        blocks: &[KnownBlock],
        center: usize,
        queries: MatRef<'_, T>,
        limits: &[f64],
        scratch: &mut [f64],
        blas: &Blas,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        if marks.len() != blocks.len() || limits.len() != queries.nrows() {
            return Err(Error::shape(
                "may_hold",
                &[
                    ("marks", &marks.len()),
                    ("blocks", &blocks.len()),
                    ("queries", &queries.shape()),
                    ("limits", &limits.len()),
                ],
            ));
        }
        let slack = self.slack();
        let mut from = self.from(center, scratch)?;
        let toward: Vec<Toward> = blocks
            .iter()
            .map(|block| Toward::new(block, center, from.apart[block.center]))
            .collect();
        for part in parts(queries.nrows()) {
            if stop() {
                break;
            }
            let limits = &limits[part.clone()];
            let rows = from.rows(queries.subrows(part.start, part.len()), blas)?;
            for ((square, products), limit) in rows.zip(limits) {
                let query = Seeker::new(square, *limit, slack);
                for ((mark, block), toward) in marks.iter_mut().zip(blocks).zip(&toward) {
                    if *mark == 0 {
                        let is_beyond = block.is_beyond(&query, toward, products[block.center]);
                        *mark = u8::from(!is_beyond);
                    }
                }
            }
        }
        Ok(())
    }

    /// Which of some queries may have a row of a block as near as their limits, which are squares of
    /// distances; the queries are near `center`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn seekers<T: Real>(
        &self,
        block: &KnownBlock,
        center: usize,
        queries: MatRef<'_, T>,
        limits: &[f64],
    ) -> Result<Vec<usize>, Error> {
        let d = self.width;
        let is_known = center.max(block.center) < self.count;
        if !is_known || queries.shape() != (limits.len(), d) {
            return Err(Error::shape(
                "seekers",
                &[
                    ("centers", &(self.count, d)),
                    ("queries", &queries.shape()),
                    ("limits", &limits.len()),
                ],
            ));
        }
        let slack = self.slack();
        let [from, to] = [center, block.center].map(|center| &self.values[center * d..][..d]);
        let way: Vec<f64> = to.iter().zip(from).map(|(to, from)| to - from).collect();
        let toward = Toward::new(block, center, way.iter().map(|x| x * x).sum());
        let mut seekers = Vec::new();
        for part in parts(limits.len()) {
            let queries = queries.subrows(part.start, part.len());
            // What each has of a square and a product, from all columns.
            let mut sums = [[0.0; 2]; PART];
            for (column, (way, from)) in queries.col_iter().zip(way.iter().zip(from)) {
                for ([square, product], x) in sums.iter_mut().zip(column.iter()) {
                    let x = x.f64() - from;
                    *square += x * x;
                    *product += x * way;
                }
            }
            seekers.extend(part.zip(&sums).filter_map(|(query, [square, product])| {
                let seeker = Seeker::new(*square, limits[query], slack);
                (!block.is_beyond(&seeker, &toward, *product)).then_some(query)
            }));
        }
        Ok(seekers)
    }

    /// Of sums of d terms, each of a difference: more than all roundings of one together.
    fn slack(&self) -> f64 {
        4.0 * (self.width + 16) as f64 * f64::EPSILON
    }

    fn from<'a>(&'a self, center: usize, scratch: &'a mut [f64]) -> Result<From<'a>, Error> {
        if center >= self.count || scratch.len() < self.scratch() {
            let shape = (self.count, self.width);
            return Err(Error::shape(
                "row centers",
                &[
                    ("centers", &shape),
                    ("center", &center),
                    ("scratch", &scratch.len()),
                ],
            ));
        }
        let (k, d) = (self.count, self.width);
        let center = &self.values[center * d..][..d];
        let (ways, rest) = scratch.split_at_mut(k * d);
        let (apart, rest) = rest.split_at_mut(k);
        center_into(
            view_mut(ways, k, d, d, 1)?,
            view(&self.values, k, d, d, 1)?,
            center,
        )?;
        row_squares(apart, view(ways, k, d, d, 1)?)?;
        Ok(From {
            center,
            ways,
            apart,
            rest,
        })
    }
}

/// A query that is near the centre a.
struct Seeker {
    /// |q - a|^2, and its root.
    square: f64,
    long: f64,
    /// The square of a distance.
    limit: f64,
    slack: f64,
}

impl Seeker {
    fn new(square: f64, limit: f64, slack: f64) -> Seeker {
        Seeker {
            square,
            long: square.sqrt(),
            // Squares below the normal numbers have no relative error.
            limit: limit * (1.0 + slack) + SMALLEST,
            slack,
        }
    }

    /// Whether what is at least this far off may be within its limit. What is not a number may be anything.
    fn is_within(&self, least: f64) -> bool {
        !(least > 0.0 && least * least * (1.0 - self.slack) > self.limit)
    }
}

/// A block whose rows are near the centre b, for queries that are near a.
struct Toward {
    /// |b - a|^2, and its root.
    apart: f64,
    way: f64,
    /// How far the rows reach from b towards a.
    reach: f64,
}

impl Toward {
    fn new(block: &KnownBlock, center: usize, apart: f64) -> Toward {
        let reach = block.reach.get(center).copied();
        Toward {
            apart,
            way: apart.sqrt(),
            reach: reach.unwrap_or(f32::INFINITY).into(),
        }
    }
}

impl KnownBlock {
    /// Whether no row of it is within the limit of a query; `product` is that of q - a and b - a.
    fn is_beyond(&self, query: &Seeker, toward: &Toward, product: f64) -> bool {
        let Toward { apart, way, reach } = toward;
        let off = query.slack * (query.long + way);
        if !query.is_within(way - product / way - off - reach) {
            return true;
        }
        let to_center = query.square + apart - 2.0 * product;
        let off_square = off * (query.long + way);
        let near = (to_center - off_square).max(0.0).sqrt() - self.outer;
        let far = self.inner - (to_center + off_square).sqrt();
        !query.is_within(near.max(far))
    }
}

/// The ways from one centre to all.
struct From<'a> {
    center: &'a [f64],
    ways: &'a [f64],
    /// The squares of their lengths.
    apart: &'a [f64],
    rest: &'a mut [f64],
}

impl From<'_> {
    /// The square of each row less the centre, and its products with the ways.
    fn rows<T: Real>(
        &mut self,
        rows: MatRef<'_, T>,
        blas: &Blas,
    ) -> Result<impl Iterator<Item = (f64, &[f64])>, Error> {
        let (n, d, k) = (rows.nrows(), self.center.len(), self.apart.len());
        let (centered, rest) = self.rest.split_at_mut(PART * d);
        let (squares, products) = rest.split_at_mut(PART);
        let (squares, products) = (&mut squares[..n], &mut products[..n * k]);
        center_into(view_mut(centered, n, d, d, 1)?, rows, self.center)?;
        let centered = view(centered, n, d, d, 1)?;
        row_squares(squares, centered)?;
        gemm(
            view_mut(products, n, k, k, 1)?,
            1.0,
            centered,
            view(self.ways, k, d, d, 1)?.transpose(),
            0.0,
            blas,
        )?;
        Ok(squares.iter().copied().zip(products.chunks_exact(k)))
    }
}

fn parts(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows)
        .step_by(PART)
        .map(move |start| start..rows.min(start + PART))
}

fn no_less(x: f64) -> f32 {
    let near = x as f32;
    match f64::from(near) < x {
        true => near.next_up(),
        false => near,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(seed: u64, count: usize, spread: f64) -> Vec<f64> {
        let drawn = crate::neighbors::tests::values(seed, count, 0);
        drawn.into_iter().map(|value| spread * value).collect()
    }

    /// Rows about their centres.
    fn about(centers: &[f64], d: usize, seed: u64, rows: usize, spread: f64) -> Vec<f64> {
        let noise = values(seed, rows * d, spread);
        let center = |at: usize| centers[at / d % (centers.len() / d) * d + at % d];
        (0..rows * d).map(|at| noise[at] + center(at)).collect()
    }

    fn square(x: &[f64], y: &[f64]) -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum()
    }

    proptest! {
        #[test]
        fn a_block_that_is_left_out_holds_no_row_within_the_limit(
            seed in any::<u64>(),
            (k, d) in (1usize..9, 1usize..12),
            (rows, queries) in (1usize..150, 1usize..150),
            far in prop_oneof![Just(0.0), Just(1.0), Just(1e6)],
            part in 0.0..1.2f64,
            has_reach in any::<bool>(),
        ) {
            let centers: Vec<f64> = values(seed, k * d, 4.0).iter().map(|x| x + far).collect();
            let around = RowCenters::new(centers.clone(), d).unwrap();
            let scratch = &mut vec![0.0; around.scratch()];
            let stop = || false;
            // What belongs to a centre need not be nearest to it.
            let mut blocks = Vec::new();
            let mut all = Vec::new();
            for center in 0..k {
                let own = &centers[center * d..][..d];
                let x = about(own, d, seed ^ center as u64, rows, 1.0);
                let seen = view(&x, rows, d, d, 1).unwrap();
                blocks.push(around.know(center, seen, has_reach, scratch, &Blas::Builtin, &stop).unwrap());
                all.push(x);
            }
            for center in 0..k {
                let own = &centers[center * d..][..d];
                let q = about(own, d, seed ^ (77 + center as u64), queries, 2.0);
                let nearest = |query: usize, x: &[f64]| {
                    let query = &q[query * d..][..d];
                    x.chunks_exact(d).map(|row| square(query, row)).fold(f64::INFINITY, f64::min)
                };
                // Just within, and just beyond, what one of the blocks holds.
                let limits: Vec<f64> = (0..queries).map(|query| part * nearest(query, &all[query % k])).collect();
                let mut marks = vec![0; k];
                let seen = view(&q, queries, d, d, 1).unwrap();
                around.may_hold(&mut marks, &blocks, center, seen, &limits, scratch, &Blas::Builtin, &stop).unwrap();
                for (block, mark) in marks.iter().enumerate() {
                    let holds: Vec<usize> = (0..queries)
                        .filter(|query| nearest(*query, &all[block]) <= limits[*query])
                        .collect();
                    prop_assert!(*mark == 1 || holds.is_empty(), "block {block} of queries near {center}");
                    let seekers = around.seekers(&blocks[block], center, seen, &limits).unwrap();
                    prop_assert!(holds.iter().all(|query| seekers.contains(query)), "{block} {center}");
                }
            }
        }
    }

    #[test]
    fn clusters_that_are_apart_are_told_apart_and_the_reach_tells_more() {
        let d = 16;
        let centers: Vec<f64> = (0..8 * d)
            .map(|at| if at / d == at % d { 6.0 } else { 0.0 })
            .collect();
        let around = RowCenters::new(centers.clone(), d).unwrap();
        let scratch = &mut vec![0.0; around.scratch()];
        let marked = [false, true].map(|has_reach| {
            let mut count = 0;
            let of = |center: usize| &centers[center * d..][..d];
            let blocks: Vec<KnownBlock> = (0..8)
                .map(|center| {
                    let x = about(of(center), d, 5 + center as u64, 300, 1.5);
                    let x = view(&x, 300, d, d, 1).unwrap();
                    around
                        .know(center, x, has_reach, scratch, &Blas::Builtin, &|| false)
                        .unwrap()
                })
                .collect();
            for center in 0..8 {
                let q = about(of(center), d, 99 + center as u64, 20, 1.5);
                let q = view(&q, 20, d, d, 1).unwrap();
                let mut marks = [0; 8];
                around
                    .may_hold(
                        &mut marks,
                        &blocks,
                        center,
                        q,
                        &[16.0; 20],
                        scratch,
                        &Blas::Builtin,
                        &|| false,
                    )
                    .unwrap();
                assert_eq!(marks[center], 1);
                count += marks.iter().filter(|mark| **mark == 1).count();
            }
            count
        });
        assert_eq!(marked[1], 8);
        assert!(marked[0] > marked[1], "{marked:?}");
    }
}
