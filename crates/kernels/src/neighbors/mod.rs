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
mod bounds;
mod dense;
mod found;
mod marks;
mod metric;
mod rounded;
mod sparse;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use faer::MatRef;

use crate::Real;

pub use blocks::{KnownBlock, RowCenters};
pub use dense::{
    Comparison, NeighborTile, add_mutual_neighbors, add_neighbors, add_neighbors_of, add_within,
    gathered_bytes,
};
pub use found::{Pair, Within};
pub use metric::{Metric, squares_of_rows};
pub use sparse::{
    Postings, SparseNumberedRows, add_mutual_sparse_neighbors, add_sparse_neighbors,
    add_sparse_within,
};

/// Columns of a product that are compared with the limit together.
const COMPARED: usize = 64;

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
    use crate::{Blas, view};

    fn how(metric: Metric, leaves_out_itself: bool, tile: NeighborTile) -> Comparison<'static> {
        Comparison {
            metric,
            leaves_out_itself,
            tile,
            blas: &Blas::Builtin,
            stop: &|| false,
        }
    }

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
                how(metric, false, tile),
                &mut vec![T::ZERO; tile.scratch()],
            )
            .unwrap();
        }
        nearest
    }

    /// Some of the rows of a matrix, by their places in it.
    fn numbered<'a>(
        x: &'a [f32],
        squares: &'a [f64],
        d: usize,
        rows: Range<usize>,
    ) -> NumberedRows<'a, f32> {
        NumberedRows {
            values: view(&x[rows.start * d..rows.end * d], rows.len(), d, d, 1).unwrap(),
            squares: &squares[rows.clone()],
            numbers: Numbers::From(rows.start as u64),
        }
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
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Where these tell rows apart, where they never do, and where some rows are too long.
        #[test]
        fn rounded_products_change_nothing(
            seed in any::<u64>(),
            (m, n, d, k) in (16usize..700, 65usize..400, 24usize..80, 1usize..12),
            kind in prop_oneof![Just(0u8), Just(1), Just(2), Just(6)],
            longer in prop_oneof![Just(1.0f32), Just(1e15), Just(1e30)],
            (queries, rows) in (1usize..700, 1usize..400),
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
        ) {
            let drawn = values(seed, (m + n) * d, kind);
            let length = |at: usize| if (at / d).is_multiple_of(97) { longer } else { 1.0 };
            let both: Vec<f32> = drawn.iter().enumerate().map(|(at, x)| *x as f32 * length(at)).collect();
            let mut squares = vec![0.0; m + n];
            squares_of_rows(&mut squares, view(&both, m + n, d, d, 1).unwrap()).unwrap();
            let part = |rows| numbered(&both, &squares, d, rows);
            let (q, x) = (part(0..m), part(m..m + n));
            let [one, other] = [false, true].map(|is_rounded| {
                let tile = NeighborTile { queries, rows, is_rounded };
                let (how, scratch) = (how(metric, false, tile), &mut vec![0.0; tile.scratch()]);
                let mut lists = [vec![Neighbor::NONE; m * k], vec![Neighbor::NONE; n * k]];
                let [of_queries, of_rows] = &mut lists;
                add_mutual_neighbors([of_queries, of_rows], q, x, how, scratch).unwrap();
                let mut alone = vec![Neighbor::NONE; m * k];
                add_neighbors(&mut alone, q, x, how, scratch).unwrap();
                assert_eq!(alone, lists[0]);
                // As far as the middle one of the nearest.
                let radius = metric.shown(alone[m / 2 * k].distance);
                let (mut counts, mut found) = (vec![0; m], 0);
                let mut pairs = vec![Pair { query: 0, neighbor: Neighbor::NONE }; m * n];
                let mut within = Within { metric, radius, counts: &mut counts, found: &mut found, pairs: &mut pairs };
                add_within(&mut within, q, x, how, scratch).unwrap();
                pairs.truncate(found as usize);
                pairs.sort_by_key(|pair| (pair.query, pair.neighbor.row));
                (lists, counts, pairs)
            });
            prop_assert_eq!(one, other);
        }
    }

    proptest! {
        #[test]
        fn some_of_the_queries_find_what_they_find_with_all(
            seed in any::<u64>(),
            (m, n, d, k) in (1usize..160, 1usize..200, 1usize..80, 1usize..12),
            kind in 0u8..7,
            (every, queries, rows, is_rounded) in (1usize..9, 1usize..150, 1usize..200, any::<bool>()),
        ) {
            let tile = NeighborTile { queries, rows, is_rounded };
            let both: Vec<f32> = values(seed, (m + n) * d, kind).iter().map(|x| *x as f32).collect();
            let mut squares = vec![0.0; m + n];
            squares_of_rows(&mut squares, view(&both, m + n, d, d, 1).unwrap()).unwrap();
            let part = |rows| numbered(&both, &squares, d, rows);
            let scratch = &mut vec![0.0; tile.scratch()];
            let (how, q, x) = (how(Metric::Euclidean, true, tile), part(0..m), part(m..m + n));
            let seekers: Vec<usize> = (0..m).step_by(every).collect();
            let mut all = vec![Neighbor::NONE; m * k];
            add_neighbors(&mut all, q, x, how, scratch).unwrap();
            let mut some = vec![Neighbor::NONE; m * k];
            add_neighbors_of(&seekers, &mut some, q, x, how, scratch).unwrap();
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
            (n, d) in (2usize..300, 1usize..80),
            k in 1usize..12,
            kind in 0u8..7,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
            (block, queries, rows, is_rounded) in (1usize..150, 1usize..150, 1usize..200, any::<bool>()),
        ) {
            let (k, tile) = (k.min(n - 1), NeighborTile { queries, rows, is_rounded });
            let x: Vec<f32> = values(seed, n * d, kind).iter().map(|x| *x as f32).collect();
            let mut squares = vec![0.0; n];
            squares_of_rows(&mut squares, view(&x, n, d, d, 1).unwrap()).unwrap();
            let part = |rows| numbered(&x, &squares, d, rows);
            let mut nearest = vec![Neighbor::NONE; n * k];
            let (how, scratch) = (how(metric, true, tile), &mut vec![0.0; tile.scratch()]);
            let blocks: Vec<_> = (0..n).step_by(block).map(|start| start..(start + block).min(n)).collect();
            for (number, one) in blocks.iter().enumerate() {
                let own = &mut nearest[one.start * k..one.end * k];
                add_neighbors(own, part(one.clone()), part(one.clone()), how, scratch).unwrap();
                for other in &blocks[number + 1..] {
                    let (before, after) = nearest.split_at_mut(other.start * k);
                    let lists = [&mut before[one.start * k..one.end * k], &mut after[..other.len() * k]];
                    add_mutual_neighbors(lists, part(one.clone()), part(other.clone()), how, scratch).unwrap();
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
            (m, n, d) in (1usize..160, 1usize..250, 1usize..80),
            k in 1usize..12,
            kind in 0u8..7,
            metric in prop_oneof![Just(Metric::Euclidean), Just(Metric::Cosine), Just(Metric::InnerProduct)],
            (block, queries, rows, is_rounded) in (1usize..250, 1usize..150, 1usize..200, any::<bool>()),
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
