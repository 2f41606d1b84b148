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
#[derive(Clone, Copy, Debug)]
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

/// Rows between a load and a store of the results, and rows that are prefetched ahead of them.
pub(super) const GROUP: usize = 16;

/// Instructions that carry out an [`Operation`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Instructions {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2(super::x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(super::x86::Avx512),
}

impl Instructions {
    /// The best of this processor.
    #[inline]
    pub(super) fn best() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx512) = super::x86::Avx512::new() {
            return Instructions::Avx512(avx512);
        } else if let Some(avx2) = super::x86::Avx2::new() {
            return Instructions::Avx2(avx2);
        }
        Instructions::Plain
    }
}

/// Rows, each with the number of elements of the results, and a weight for each.
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
    /// A row has another length than one of `out.len()` elements, or there are fewer weights.
    #[inline]
    pub(super) fn run(&self, instructions: Instructions, out: &mut [f32]) {
        match instructions {
            Instructions::Plain => plain::run(self, out),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(avx2) => avx2.run(self, out),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(avx512) => avx512.run(self, out),
        }
    }

    /// Bytes that each of the rows has to have.
    ///
    /// # Panics
    /// No row has `dim` elements, or there are fewer weights than rows.
    #[inline]
    pub(super) fn row_bytes(&self, dim: usize) -> usize {
        assert!(
            self.weights.len() >= self.rows.len(),
            "a weight for each row"
        );
        let bytes = self.encoding.row_bytes(dim);
        bytes.unwrap_or_else(|| panic!("no row in {} has {dim} elements", self.encoding))
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
    /// `row` gives the bytes of a row by its number, wherever they are. It is called once for each,
    /// in order, and some rows ahead: they are prefetched.
    ///
    /// # Panics
    /// `out` is no number of rows, a row has another length than one of `dim` elements.
    pub fn decode_rows<'a>(self, row: impl Fn(usize) -> &'a [u8], dim: usize, out: &mut [f32]) {
        let count = out.len() / dim.max(1);
        assert_eq!(out.len(), count * dim, "elements of rows of {dim}");
        let mut rows = Rows::new(self, row, count, Weights::Equal);
        for (number, out) in out.chunks_exact_mut(dim.max(1)).enumerate() {
            rows.pool(Operation::Copy, number..number + 1, out);
        }
    }

    /// sum += the rows that begin at `starts` in `slots`, in this order, by their weights if there
    /// are any.
    ///
    /// Cost: some 4 ns for a row of 32 f32 in the first-level cache, and what its lines take to
    /// come from memory; rows are prefetched. No scratch.
    ///
    /// # Panics
    /// A row is not within `slots`, there is another number of weights, or no row has `sum.len()`
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
            .expect("this encoding has rows of the output's length");
        let row = |number: usize| &slots[starts[number]..][..bytes];
        Rows::new(self, row, starts.len(), weights).pool(operation, 0..starts.len(), out);
    }

    /// Goes on with a bag whose first rows are in `out`: adds `count` more to the sum, which a mean
    /// is before its division, or takes them into the maximum, in this order.
    ///
    /// `row` is called as by [`pool_bags`](Self::pool_bags).
    ///
    /// # Panics
    /// There is another number of weights, or a row has another length than one of `out.len()`
    /// elements.
    pub fn pool_more<'a>(
        self,
        pooling: Pooling,
        row: impl Fn(usize) -> &'a [u8],
        count: usize,
        weights: Weights<'_>,
        out: &mut [f32],
    ) {
        let operation = match pooling {
            Pooling::Max => Operation::Max,
            Pooling::Sum | Pooling::Mean => Operation::Add,
        };
        Rows::new(self, row, count, weights).pool(operation, 0..count, out);
    }

    /// Pools bags of rows: bag i has the rows from `ends[i - 1]` (0 for the first) up to `ends[i]`,
    /// and the i-th of `pooled` gets the result.
    ///
    /// `row` gives the bytes of a row by its number, wherever they are. It is called once for each,
    /// in order, and some rows ahead, across the ends of bags: they are prefetched.
    ///
    /// Cost: as [`pool_sum`](Self::pool_sum), and some 10 ns a bag.
    ///
    /// # Panics
    /// `ends` decrease; weights are for another number of rows, or not for a sum; a row has another
    /// length than one of its bag's result; there are fewer results than bags.
    pub fn pool_bags<'a, 'o>(
        self,
        pooling: Pooling,
        row: impl Fn(usize) -> &'a [u8],
        ends: &[usize],
        weights: Weights<'_>,
        mut pooled: impl Iterator<Item = &'o mut [f32]>,
    ) {
        let count = ends.last().copied().unwrap_or(0);
        assert!(
            matches!(weights, Weights::Equal) || pooling == Pooling::Sum,
            "weights are for sums"
        );
        let mut rows = Rows::new(self, row, count, weights);
        let mut start = 0;
        for &end in ends {
            let out = pooled.next().expect("a result for each bag");
            assert!(start <= end && end <= count, "ends of bags decrease");
            rows.pool_bag(pooling, start..end, out);
            start = end;
        }
    }
}

/// Rows by number, which come up in order, some with weights.
struct Rows<'a, 'w, F> {
    encoding: RowEncoding,
    instructions: Instructions,
    row: F,
    count: usize,
    weights: Weights<'w>,
    /// Rows up to `fetched`, at their number modulo the length.
    ring: [&'a [u8]; 2 * GROUP],
    fetched: usize,
}

impl<'a, 'w, F: Fn(usize) -> &'a [u8]> Rows<'a, 'w, F> {
    fn new(encoding: RowEncoding, row: F, count: usize, weights: Weights<'w>) -> Self {
        if let Weights::Fused(weights) | Weights::Rounded(weights) = weights {
            assert_eq!(weights.len(), count, "a weight for each row");
        }
        Rows {
            encoding,
            instructions: Instructions::best(),
            row,
            count,
            weights,
            ring: [&[]; 2 * GROUP],
            fetched: 0,
        }
    }

    fn pool_bag(&mut self, pooling: Pooling, bag: Range<usize>, out: &mut [f32]) {
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

    /// Carries out an operation for the rows that are next.
    fn pool(&mut self, operation: Operation, mut range: Range<usize>, out: &mut [f32]) {
        let (operation, all) = match (operation, self.weights) {
            (Operation::Add, Weights::Fused(weights)) => (Operation::AddWeighted, weights),
            (Operation::Add, Weights::Rounded(weights)) => (Operation::AddProduct, weights),
            _ => (operation, &[][..]),
        };
        while !range.is_empty() {
            let next = (range.start / GROUP + 1) * GROUP;
            self.fetch(next + GROUP);
            let numbers = range.start..next.min(range.end);
            range.start = numbers.end;
            let rows = &self.ring[numbers.start % (2 * GROUP)..][..numbers.len()];
            let weights = if all.is_empty() {
                &[1.0; GROUP]
            } else {
                &all[numbers]
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

    /// Prefetches rows up to a number.
    #[inline(always)]
    fn fetch(&mut self, end: usize) {
        for number in self.fetched..end.min(self.count) {
            let row = (self.row)(number);
            fetch_row(row);
            self.ring[number % (2 * GROUP)] = row;
        }
        self.fetched = end;
    }
}

/// Prefetches the lines of a row, or the first of a long one: hardware prefetchers follow.
#[inline(always)]
fn fetch_row(row: &[u8]) {
    for line in (0..row.len().min(FETCHED_BYTES)).step_by(LINE) {
        fetch(row.as_ptr().wrapping_add(line));
    }
    row.last().into_iter().for_each(|last| fetch(last));
}
