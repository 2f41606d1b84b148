//! Many rows, decoded or pooled: in groups that the instructions of this processor take at a time,
//! and prefetched before they come up.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::{RowEncoding, plain};
use crate::caches::{FETCHED_BYTES, LINE, fetch};

/// What becomes of the rows of a bag. The result of an empty bag is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their sum, weighted if there are weights.
    Sum,
    /// Their sum, divided by their number.
    Mean,
    /// The greatest of each element.
    Max,
}

/// The weights of rows in a sum, one for each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights<'a> {
    /// All are 1.
    Equal,
    /// The product is added with one rounding, as in `torch.nn.EmbeddingBag` without `padding_idx`.
    Fused(&'a [f32]),
    /// The product is rounded, then the sum, as in `torch.nn.EmbeddingBag` with `padding_idx`.
    Rounded(&'a [f32]),
}

/// What a row does to the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Takes their place.
    Copy,
    /// Adds the row.
    Add,
    /// Adds the product with the weight, in one rounding.
    AddWeighted,
    /// Adds the product with the weight, which is rounded first.
    AddProduct,
    /// Takes their place where it is greater.
    Max,
}

/// Rows between a load and a store of the results.
pub(super) const GROUP: usize = 16;
/// A row is prefetched when this many before it come up; of long rows fewer, so that no more than
/// [`AHEAD_BYTES`] wait in the first-level cache.
const AHEAD: usize = 16;
const AHEAD_BYTES: usize = 8192;

/// Instructions that carry out an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// The best of this processor.
    pub(super) fn best() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        return match (super::x86::serves_avx512(), super::x86::serves_avx2()) {
            (true, _) => Instructions::Avx512,
            (false, true) => Instructions::Avx2,
            (false, false) => Instructions::Plain,
        };
        #[cfg(not(target_arch = "x86_64"))]
        Instructions::Plain
    }
}

/// Rows of one call: `rows[i]` has the number of elements of the results, and `weights[i]`.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) encoding: RowEncoding,
    pub(super) operation: Operation,
    pub(super) rows: &'a [&'a [u8]],
    pub(super) weights: &'a [f32],
}

impl Group<'_> {
    /// Carries out the operation for each row, in order.
    ///
    /// # Panics
    /// A row has another length than one of `out.len()` elements.
    #[inline]
    pub(super) fn run(self, instructions: Instructions, out: &mut [f32]) {
        let bytes = self.encoding.row_bytes(out.len());
        assert!(
            self.rows.iter().all(|row| Some(row.len()) == bytes),
            "rows of {} elements in {}",
            out.len(),
            self.encoding
        );
        match instructions {
            Instructions::Plain => plain::run(self, out),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => super::x86::run_avx2(self, out),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => super::x86::run_avx512(self, out),
        }
    }
}

/// Carries out an operation for one row.
pub(super) fn one(
    encoding: RowEncoding,
    operation: Operation,
    row: &[u8],
    weight: f32,
    out: &mut [f32],
) {
    let (rows, weights) = (&[row], &[weight]);
    Group {
        encoding,
        operation,
        rows,
        weights,
    }
    .run(Instructions::best(), out);
}

impl RowEncoding {
    /// Decodes rows one after another: `out` is n x `dim`.
    ///
    /// `row` gives the bytes of a row by its number, wherever they are; it is called again, some rows
    /// ahead, for what to prefetch.
    ///
    /// # Panics
    /// `out` is no number of rows, a row has another length than one of `dim` elements.
    pub fn decode_rows<'a>(self, row: impl Fn(usize) -> &'a [u8], dim: usize, out: &mut [f32]) {
        let count = out.len() / dim.max(1);
        assert_eq!(out.len(), count * dim, "elements of rows of {dim}");
        let rows = Rows::new(self, row, count, dim, Weights::Equal);
        for (number, out) in out.chunks_exact_mut(dim.max(1)).enumerate() {
            rows.pool(Operation::Copy, number..number + 1, out);
        }
    }

    /// sum += the rows that begin at `starts` in `slots`, in this order, by their weights if there
    /// are any.
    ///
    /// Cost: a row of 32 f32 in the first-level cache takes some 2 ns. Rows are prefetched before
    /// they come up.
    ///
    /// # Panics
    /// A row is not within `slots`, there is another number of weights, or no row has so many
    /// elements.
    pub fn pool_sum(self, slots: &[u8], starts: &[usize], weights: Weights<'_>, sum: &mut [f32]) {
        self.pool_slots(Operation::Add, slots, starts, weights, sum);
    }

    /// As [`pool_sum`](Self::pool_sum): most = row where row > most, of each of the rows. A maximum
    /// begins with its first row [decoded](Self::decode).
    ///
    /// # Panics
    /// As there.
    pub fn pool_max(self, slots: &[u8], starts: &[usize], most: &mut [f32]) {
        self.pool_slots(Operation::Max, slots, starts, Weights::Equal, most);
    }

    fn pool_slots(
        self,
        operation: Operation,
        slots: &[u8],
        starts: &[usize],
        weights: Weights<'_>,
        out: &mut [f32],
    ) {
        let bytes = self
            .row_bytes(out.len())
            .expect("there are rows of so many elements");
        let row = |number: usize| &slots[starts[number]..][..bytes];
        Rows::new(self, row, starts.len(), out.len(), weights).pool(
            operation,
            0..starts.len(),
            out,
        );
    }

    /// Pools bags of rows: bag i has the rows from `ends[i - 1]` (0 for the first) up to `ends[i]`,
    /// and row i of `pooled`, which is n x dim for n `ends`, gets the result.
    ///
    /// `row` gives the bytes of a row by its number, wherever they are; it is called again, some rows
    /// ahead, for what to prefetch, across the ends of bags.
    ///
    /// Cost: as [`pool_sum`](Self::pool_sum), and some 10 ns a bag.
    ///
    /// # Panics
    /// `ends` decrease; weights are for another number of rows, or not for a sum; a row has another
    /// length than one of dim elements; `pooled` is no number of rows.
    pub fn pool_bags<'a>(
        self,
        pooling: Pooling,
        row: impl Fn(usize) -> &'a [u8],
        ends: &[usize],
        weights: Weights<'_>,
        pooled: &mut [f32],
    ) {
        let (count, dim) = (
            ends.last().copied().unwrap_or(0),
            pooled.len() / ends.len().max(1),
        );
        assert_eq!(
            pooled.len(),
            dim * ends.len(),
            "elements of {} bags",
            ends.len()
        );
        assert!(
            weights == Weights::Equal || pooling == Pooling::Sum,
            "weights are for sums"
        );
        let rows = Rows::new(self, row, count, dim, weights);
        let mut start = 0;
        for (&end, out) in ends.iter().zip(pooled.chunks_exact_mut(dim.max(1))) {
            assert!(start <= end && end <= count, "ends of bags decrease");
            rows.pool_bag(pooling, start..end, out);
            start = end;
        }
    }
}

/// Rows by number, some with weights.
struct Rows<'w, F> {
    encoding: RowEncoding,
    instructions: Instructions,
    row: F,
    count: usize,
    /// How many rows ahead one is prefetched.
    ahead: usize,
    weights: Weights<'w>,
}

impl<'a, 'w, F: Fn(usize) -> &'a [u8]> Rows<'w, F> {
    /// Prefetches the first rows.
    fn new(encoding: RowEncoding, row: F, count: usize, dim: usize, weights: Weights<'w>) -> Self {
        if let Weights::Fused(weights) | Weights::Rounded(weights) = weights {
            assert_eq!(weights.len(), count, "a weight for each row");
        }
        let bytes = encoding.row_bytes(dim).unwrap_or(1).min(FETCHED_BYTES);
        let ahead = (AHEAD_BYTES / bytes).clamp(1, AHEAD);
        (0..ahead.min(count)).for_each(|number| fetch_row(row(number)));
        let instructions = Instructions::best();
        Rows {
            encoding,
            instructions,
            row,
            count,
            ahead,
            weights,
        }
    }

    fn pool_bag(&self, pooling: Pooling, bag: Range<usize>, out: &mut [f32]) {
        match pooling {
            Pooling::Max if !bag.is_empty() => {
                self.pool(Operation::Copy, bag.start..bag.start + 1, out);
                self.pool(Operation::Max, bag.start + 1..bag.end, out);
            }
            _ => {
                out.fill(0.0);
                self.pool(Operation::Add, bag.clone(), out);
            }
        }
        if pooling == Pooling::Mean && bag.len() > 1 {
            let count = bag.len() as f32;
            out.iter_mut().for_each(|x| *x /= count);
        }
    }

    fn pool(&self, operation: Operation, range: Range<usize>, out: &mut [f32]) {
        let (operation, weights) = match (operation, self.weights) {
            (Operation::Add, Weights::Fused(weights)) => (Operation::AddWeighted, weights),
            (Operation::Add, Weights::Rounded(weights)) => (Operation::AddProduct, weights),
            _ => (operation, &[][..]),
        };
        let mut group: [&[u8]; GROUP] = [&[]; GROUP];
        for first in range.clone().step_by(GROUP) {
            let numbers = first..range.end.min(first + GROUP);
            let rows = &mut group[..numbers.len()];
            for (row, number) in rows.iter_mut().zip(numbers.clone()) {
                *row = (self.row)(number);
                if number + self.ahead < self.count {
                    fetch_row((self.row)(number + self.ahead));
                }
            }
            let weights = match operation {
                Operation::AddWeighted | Operation::AddProduct => &weights[numbers],
                _ => &[1.0; GROUP][..rows.len()],
            };
            Group {
                encoding: self.encoding,
                operation,
                rows,
                weights,
            }
            .run(self.instructions, out);
        }
    }
}

/// Prefetches the lines of a row, or the first of a long one: hardware prefetchers follow.
#[inline(always)]
fn fetch_row(row: &[u8]) {
    let offset = row.as_ptr().addr() % LINE;
    let bytes = (offset + row.len()).min(FETCHED_BYTES);
    for line in (0..bytes).step_by(LINE) {
        fetch(row.as_ptr().wrapping_sub(offset).wrapping_add(line));
    }
}
