//! The largest eigenpairs of a symmetric operator by a block Krylov iteration with restarts: what
//! principal components beyond small covariances come from.
//!
//! Cost: a product with a block of columns for each step, and n times the basis squared flops
//! beside it. The basis is in memory, in f64. Source: Zhou and Saad, "Block Krylov-Schur method for
//! large symmetric eigenvalue problems" (Numerical Algorithms 2008).

use outcore_core::{MemorySplit, Result, Session, Stage};
use outcore_kernels as kernels;
use outcore_kernels::{Eigen, TopOptions};

use crate::operator::Operator;

/// Columns that an operator is applied to at once, where memory is not short.
pub(crate) const BLOCK: usize = 16;

/// Residuals are not asked to be smaller than this many roundings of a product.
const ROUNDINGS: f64 = 16.0;

/// How wide blocks are, and how long the basis grows.
#[derive(Clone)]
pub(crate) struct Krylov {
    options: TopOptions,
}

impl Krylov {
    /// Blocks of `block` columns; narrow ones need more products.
    fn new(seed: u64, block: usize, basis: Option<usize>) -> Krylov {
        assert!(
            BLOCK.is_multiple_of(block),
            "products are counted in blocks"
        );
        let mut options = TopOptions::default();
        options.products_max *= BLOCK / block;
        (options.seed, options.block, options.basis) = (seed, block, basis);
        Krylov { options }
    }

    pub(crate) fn wide(seed: u64) -> Krylov {
        Krylov::new(seed, BLOCK, None)
    }

    /// The widest blocks and the longest basis that fit half of the budget, of which others may
    /// have the rest, or all of it, or the least there is. `bytes` says what the whole search
    /// holds.
    pub(crate) fn that_fits(
        session: &Session,
        seed: u64,
        count: usize,
        bytes: impl Fn(&Krylov) -> u64,
    ) -> Krylov {
        let split = MemorySplit::new(session);
        let shapes = [
            (BLOCK, None),
            (8, None),
            (8, Some(count + 40)),
            (4, Some(count + 20)),
        ];
        let all = shapes.map(|(block, basis)| Krylov::new(seed, block, basis));
        let mut fitting = all.iter().filter(|krylov| split.can_hold(bytes(krylov)));
        let first = fitting.clone().next();
        fitting
            .find(|krylov| split.leaves_half(bytes(krylov)))
            .or(first)
            .unwrap_or(&all[3])
            .clone()
    }

    pub(crate) fn block(&self) -> usize {
        self.options.block
    }

    /// Bytes of the basis and what goes with it, besides those of products.
    pub(crate) fn basis_bytes(&self, order: usize, count: usize) -> u64 {
        kernels::eigh_top_scratch_bytes::<f64>(order, count, &self.options) as u64
    }

    pub(crate) fn largest(
        &self,
        session: &Session,
        operator: &impl Operator,
        count: usize,
        stage: &mut Stage,
    ) -> Result<Eigen<f64>> {
        let [order, cols] = operator.shape();
        assert!(
            order == cols && count <= order,
            "{count} pairs of {order} x {cols}"
        );
        let mut options = self.options.clone();
        options.tolerance = options.tolerance.max(ROUNDINGS * operator.epsilon());
        kernels::eigh_top_with(
            order,
            count,
            |x, y| operator.apply(x, y, stage),
            &options,
            session.blas(),
        )
    }
}
