//! What a search takes by its shape, as far as that is known before it begins: what [`Method::Auto`]
//! goes by.
//!
//! A pass reads the matrix and multiplies it with a block, and takes as long as the longer of both.
//! Beside it the block is made orthonormal against the basis, which is read from scratch where it
//! lies there. Rates are constants and no clock is looked at: the shape decides on the bits, so the
//! same call has the same shape everywhere. On a device that is far slower than they say,
//! [`Method::Randomized`] is the better choice.
//!
//! [`Method::Auto`]: super::Method::Auto
//! [`Method::Randomized`]: super::Method::Randomized

use crate::operator::Operator;

/// Of an SSD.
const READ_BYTES_PER_S: f64 = 2e9;

/// Of dense products with the basis, on two cores.
const FLOPS_PER_S: f64 = 2e10;

/// For each operation with one column: what a pass takes whatever the width of the block, and for
/// each column. Measured of a sparse A^T A in f32 on two cores: 13 GFLOP/s for 16 columns, 25 for
/// 200.
const PASS_S_PER_FLOP: f64 = 0.65e-9;
const COLUMN_S_PER_FLOP: f64 = 0.036e-9;

/// Operations with the basis, for each of its rows and pairs of a column of it and one of the block:
/// two projections of two products each.
const FLOPS_PER_ROW: f64 = 8.0;

/// The same of eigenpairs of what the basis sees, each time that a tenth of it is new.
const FLOPS_PER_COLUMN: f64 = 100.0;

/// Times that a basis in scratch is read in a pass.
const READINGS: f64 = 3.0;

/// What is searched for, in which operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    order: usize,
    count: usize,
    tolerance: f64,
    pass_bytes: f64,
    /// Of a product with one column, in f32.
    flops: f64,
}

/// Widths of blocks, the length of the basis, and whether it is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) block: usize,
    /// At which it is contracted.
    pub(super) basis: usize,
    pub(super) in_memory: bool,
}

impl Shape {
    pub(super) fn in_scratch(self) -> Shape {
        Shape {
            in_memory: false,
            ..self
        }
    }

    /// Columns of the basis with the newest block.
    pub(super) fn capacity(&self, order: usize) -> usize {
        (self.basis + self.block).min(order)
    }
}

impl Problem {
    pub(super) fn new(operator: &impl Operator, count: usize, tolerance: f64) -> Problem {
        let epsilon = operator.epsilon();
        // Elements in f64 are twice as many bytes.
        let width = if epsilon < 1e-10 { 2.0 } else { 1.0 };
        Problem {
            order: operator.shape()[0],
            count,
            tolerance: tolerance.max(epsilon).min(1.0),
            pass_bytes: operator.pass_bytes() as f64,
            flops: width * operator.flops(),
        }
    }

    /// Passes of the matrix. Of corpora, 10 to 100 pairs in blocks of 4 to 110 columns to 1e-2 to
    /// 1e-6 took as many to within a seventh; where values are closer to each other there are more,
    /// of any block.
    pub(super) fn passes(&self, block: usize) -> f64 {
        let digits = -self.tolerance.log10();
        let blocks = self.count as f64 / block as f64;
        8.0 + 1.7 * digits + (1.4 + 0.5 * digits) * blocks
    }

    pub(super) fn seconds(&self, shape: Shape) -> f64 {
        let (rows, block) = (self.order as f64, shape.block as f64);
        let columns = shape.capacity(self.order) as f64;
        let reading = self.pass_bytes / READ_BYTES_PER_S;
        let computing = self.flops * (PASS_S_PER_FLOP + COLUMN_S_PER_FLOP * block);
        let flops = (FLOPS_PER_ROW * rows + FLOPS_PER_COLUMN * columns) * columns * block;
        let basis_bytes = match shape.in_memory {
            true => 0.0,
            false => READINGS * 8.0 * rows * columns,
        };
        let beside = flops / FLOPS_PER_S + basis_bytes / READ_BYTES_PER_S;
        self.passes(shape.block) * (reading.max(computing) + beside)
    }

    /// What `explain` says.
    pub(super) fn told(&self, shape: Shape) -> String {
        let (passes, seconds) = (self.passes(shape.block), self.seconds(shape));
        let block = shape.block;
        format!("some {passes:.0} passes with {block} columns, {seconds:.2} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARSE: Problem = Problem {
        order: 80_000,
        count: 100,
        tolerance: 1e-4,
        pass_bytes: 4e8,
        flops: 2e8,
    };
    const NARROW: Shape = Shape {
        block: 16,
        basis: 296,
        in_memory: true,
    };
    const WIDE: Shape = Shape {
        block: 110,
        basis: 550,
        in_memory: true,
    };

    #[test]
    fn wide_blocks_are_for_passes_that_are_dear_to_read() {
        assert!(SPARSE.seconds(NARROW) < SPARSE.seconds(WIDE));
        let dear = Problem {
            pass_bytes: 100.0 * SPARSE.pass_bytes,
            ..SPARSE
        };
        assert!(dear.seconds(WIDE) < dear.seconds(NARROW));
    }

    #[test]
    fn passes_are_more_for_narrow_blocks_and_small_tolerances() {
        // 1,000,000 entries, 20,000 documents x 8,000 words: what was counted.
        for (count, tolerance, block, counted) in [
            (10, 1e-4, 8, 19.0),
            (40, 1e-2, 16, 19.0),
            (40, 1e-4, 48, 20.0),
            (40, 1e-6, 4, 57.0),
            (100, 1e-4, 16, 38.0),
            (100, 1e-4, 4, 106.0),
        ] {
            let problem = Problem {
                count,
                tolerance,
                ..SPARSE
            };
            let share = problem.passes(block) / counted;
            assert!((0.86..1.16).contains(&share), "{count}, {block}: {share}");
        }
    }

    #[test]
    fn a_basis_in_scratch_is_chosen_where_memory_would_make_blocks_too_narrow() {
        let in_scratch = NARROW.in_scratch();
        assert!(SPARSE.seconds(NARROW) < SPARSE.seconds(in_scratch));
        let dear = Problem {
            pass_bytes: 10.0 * SPARSE.pass_bytes,
            ..SPARSE
        };
        let narrowest = Shape {
            block: 4,
            basis: 212,
            in_memory: true,
        };
        assert!(dear.seconds(in_scratch) < dear.seconds(narrowest));
    }
}
