//! How wide blocks are, how long the basis grows, and where it lies.

use outcore_core::RealType;

use super::search::{Accuracy, CHECKED_STEPS, checked_steps};
use super::{Method, SpectrumOptions};
use crate::operator::Operator;

/// Columns of a product, where memory is not short.
const BLOCK: usize = 16;

/// Blocks by which the basis is longer than twice what is wanted.
const BLOCKS_BEYOND: usize = 6;

/// Blocks of the basis where a block is wider than what is wanted.
const WIDE_BLOCKS: usize = 5;

/// Columns of a wide block: a tenth more than are wanted, eight more at least.
fn wide_block(count: usize) -> usize {
    count + (count / 10).max(8)
}

/// Columns of a product where eight times as many pairs are wanted: A, and a basis in scratch, are read
/// fewer times.
const WIDER: [usize; 2] = [64, 32];

/// Tolerances from this one on are reached in few passes.
const LOOSE: f64 = 1e-4;

/// Of an SSD.
const READ_BYTES_PER_S: f64 = 2e9;

/// A way to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Columns of a product.
    pub(super) block: usize,
    /// Columns of the basis besides the newest block.
    pub(super) basis: usize,
    pub(super) in_memory: bool,
    /// Whether there must be room for more than one task.
    pub(super) at_ease: bool,
}

/// Best first.
pub(super) fn shapes<O: Operator>(
    order: usize,
    operator: &O,
    options: &SpectrumOptions,
    accuracy: Accuracy,
) -> Vec<Shape> {
    let all = Shapes {
        order,
        operator,
        options,
        accuracy,
    };
    let [first, mut long, short] = match (options.block, options.method) {
        (Some(block), Method::Randomized) => {
            let basis = WIDE_BLOCKS * block;
            [
                all.anywhere([all.shape(block, basis, options.count)]),
                vec![],
                vec![],
            ]
        }
        (Some(block), _) => [
            vec![],
            all.anywhere([all.long(block, BLOCKS_BEYOND)]),
            all.anywhere([all.short(block, 0)]),
        ],
        (None, Method::Randomized) => [all.anywhere([all.wide()]), vec![], vec![]],
        (None, method) => {
            let is_dear = options.tolerance >= LOOSE && takes_less_wide(operator, options);
            let is_wide = method == Method::Auto && (is_dear || options.known.is_some());
            let wide = is_wide.then(|| all.wide()).into_iter();
            [wide.collect(), all.long_ones(), all.short_ones()]
        }
    };
    // Stable: where it is not known what products take, the widest block in memory is the best.
    long.sort_by(|one, other| all.seconds(one).total_cmp(&all.seconds(other)));
    [first, long, short].concat()
}

struct Shapes<'a, O> {
    order: usize,
    operator: &'a O,
    options: &'a SpectrumOptions,
    accuracy: Accuracy,
}

impl<O: Operator> Shapes<'_, O> {
    /// In memory, with `basis` columns unless `options.basis` overrides it; at least `least` and three blocks.
    fn shape(&self, block: usize, basis: usize, least: usize) -> Shape {
        let block = block.min(self.order);
        Shape {
            block,
            basis: self.options.basis.unwrap_or(basis).max(least + 3 * block),
            in_memory: true,
            at_ease: true,
        }
    }

    fn long(&self, block: usize, beyond: usize) -> Shape {
        let count = self.options.count;
        let basis = 2 * count + beyond * block;
        self.shape(block, basis.max(self.checked_basis(block)), count)
    }

    /// Where a check goes on without a restart, after which less can be told.
    fn checked_basis(&self, block: usize) -> usize {
        let steps = match self.options.check {
            true => checked_steps(self.order, block, self.accuracy),
            false => 0,
        };
        self.options.count + steps * block
    }

    /// Where memory is short of more: more restarts.
    fn short(&self, block: usize, spare: usize) -> Shape {
        let count = self.options.count;
        let basis = count + spare + BLOCKS_BEYOND * block;
        self.shape(block, basis.max(self.checked_basis(block)), count)
    }

    fn wide(&self) -> Shape {
        let block = wide_block(self.options.count).min(self.order);
        self.shape(block, WIDE_BLOCKS * block, 0)
    }

    /// In memory, or else in scratch.
    fn anywhere(&self, shapes: impl IntoIterator<Item = Shape>) -> Vec<Shape> {
        let is_asked = self.options.method == Method::Randomized || self.options.block.is_some();
        let in_memory: Vec<Shape> = shapes.into_iter().collect();
        // Blocks that are wider than they need be are for where there is room.
        let in_scratch = in_memory.iter().map(|shape| Shape {
            in_memory: false,
            at_ease: shape.block > BLOCK && !is_asked,
            ..*shape
        });
        in_memory.iter().copied().chain(in_scratch).collect()
    }

    fn wider(&self) -> impl Iterator<Item = usize> + use<O> {
        let count = self.options.count;
        WIDER.into_iter().filter(move |block| 8 * block <= count)
    }

    fn long_ones(&self) -> Vec<Shape> {
        let wider = self.wider().map(|block| (block, BLOCKS_BEYOND));
        let all = wider.chain([(BLOCK, BLOCKS_BEYOND), (8, BLOCKS_BEYOND), (4, 3)]);
        self.anywhere(all.map(|(block, beyond)| self.long(block, beyond)))
    }

    /// What the square of the basis takes is much where pairs are many: there are lengths in between for them.
    fn short_ones(&self) -> Vec<Shape> {
        let count = self.options.count;
        let spares = [count / 2, count / 4].into_iter();
        let between = spares
            .filter(|spare| *spare >= 2 * WIDER[0])
            .flat_map(|spare| {
                let blocks = self.wider().chain([BLOCK, 8]);
                self.anywhere(blocks.map(move |block| self.short(block, spare)))
            });
        let least = self.anywhere([8, 4, 2, 1].map(|block| self.short(block, 0)));
        between.chain(least).collect()
    }

    /// Of products and of reading the basis.
    fn seconds(&self, shape: &Shape) -> f64 {
        let Shape {
            block,
            basis,
            in_memory,
            ..
        } = *shape;
        let products_s = products_s(self.operator, self.options, block);
        match in_memory {
            true => products_s,
            false => products_s + basis_s(self.operator, self.options, block, basis),
        }
    }
}

/// Passes of the matrix. Of corpora, 10 to 100 pairs in blocks of 4 to 110 columns to 1e-2 to 1e-6
/// took as many to within a seventh; where values are closer to each other there are more, of any
/// block.
fn passes(options: &SpectrumOptions, block: usize) -> f64 {
    let digits = -options.tolerance.clamp(1e-15, 1.0).log10();
    let blocks = options.count as f64 / block as f64;
    8.0 + 1.7 * digits + (1.4 + 0.5 * digits) * blocks
}

/// The same with the steps that a check takes.
pub(super) fn passes_of_corpus(options: &SpectrumOptions, block: usize, checked: usize) -> usize {
    let least = CHECKED_STEPS[0];
    (passes(options, block).ceil() as usize + checked).saturating_sub(least)
}

/// Seconds of products with as many columns. Rates are constants and no clock is looked at, since
/// widths decide on the bits.
fn products_s(operator: &impl Operator, options: &SpectrumOptions, block: usize) -> f64 {
    let reading_s = operator.pass_bytes() as f64 / READ_BYTES_PER_S;
    passes(options, block) * operator.computing_s(block).max(reading_s)
}

/// Whether fewer passes with wide blocks take less time than more with narrow ones.
fn takes_less_wide(operator: &impl Operator, options: &SpectrumOptions) -> bool {
    let seconds = |block| products_s(operator, options, block);
    operator.pass_bytes() > 0 && seconds(wide_block(options.count)) < seconds(BLOCK)
}

/// Seconds of reading a basis in scratch: it grows from what is wanted to its length, and each
/// product goes through it three times.
fn basis_s(operator: &impl Operator, options: &SpectrumOptions, block: usize, basis: usize) -> f64 {
    let columns = (options.count + basis) / 2 * operator.shape()[0];
    let bytes = (3 * stored(operator).bytes() * columns) as f64;
    passes(options, block) * bytes / READ_BYTES_PER_S
}

/// Bases have the digits that products have.
pub(super) fn stored(operator: &impl Operator) -> RealType {
    match operator.epsilon() < f64::from(f32::EPSILON) {
        true => RealType::F64,
        false => RealType::F32,
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! What tests of plans begin with.

    use outcore_core::{Result, Stage};
    use outcore_kernels::{MatMut, MatRef};

    use super::BLOCK;
    use crate::operator::Operator;

    pub(in super::super) const ORDER: usize = 80_000;

    /// A matrix that is known by what a pass over it takes.
    pub(in super::super) struct Passes {
        pub(in super::super) bytes: u64,
        pub(in super::super) column_s: f64,
    }

    impl Operator for Passes {
        fn shape(&self) -> [usize; 2] {
            [ORDER; 2]
        }

        fn held_bytes(&self, _columns: usize) -> u64 {
            0
        }

        fn pass_bytes(&self) -> u64 {
            self.bytes
        }

        fn computing_s(&self, columns: usize) -> f64 {
            self.column_s * (columns + BLOCK) as f64
        }

        fn apply(&self, _: MatRef<'_, f64>, _: MatMut<'_, f64>, _: &mut Stage) -> Result<()> {
            unreachable!("a search is planned without a product")
        }

        fn apply_transposed(
            &self,
            x: MatRef<'_, f64>,
            y: MatMut<'_, f64>,
            stage: &mut Stage,
        ) -> Result<()> {
            self.apply(x, y, stage)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{ORDER, Passes};
    use super::*;

    #[test]
    fn blocks_are_wide_where_passes_are_dearer_to_read_than_to_compute() {
        let block = |bytes, column_s, tolerance, method| {
            let options = SpectrumOptions {
                tolerance,
                method,
                ..SpectrumOptions::new(50)
            };
            let accuracy = Accuracy::Singular(tolerance);
            shapes(ORDER, &Passes { bytes, column_s }, &options, accuracy)[0].block
        };
        let (auto, wide) = (Method::Auto, wide_block(50));
        // 0.2 s to read, and 0.5 s to multiply with 16 columns.
        assert_eq!(block(400 << 20, 0.015, 1e-4, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.015, 1e-4, auto), wide);
        assert_eq!(block(400 << 20, 0.0, 1e-4, auto), wide);
        assert_eq!(block(0, 0.0, 1e-4, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.0, 1e-6, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.0, 1e-4, Method::Krylov), BLOCK);
        assert_eq!(block(0, 0.015, 1e-4, Method::Randomized), wide);
    }

    #[test]
    fn a_basis_lies_in_scratch_before_passes_become_many_if_these_are_dear() {
        let order = |bytes, column_s| {
            let options = SpectrumOptions {
                method: Method::Krylov,
                ..SpectrumOptions::new(50)
            };
            let accuracy = Accuracy::Singular(options.tolerance);
            let all = shapes(ORDER, &Passes { bytes, column_s }, &options, accuracy);
            let at = |wanted| {
                all.iter()
                    .position(|shape| (shape.block, shape.in_memory) == wanted)
            };
            at((BLOCK, false)) < at((4, true))
        };
        assert!(order(8 << 30, 0.015));
        assert!(!order(40 << 20, 0.0));
        assert!(!order(0, 0.0));
    }
}
