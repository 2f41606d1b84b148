//! The largest eigenpairs of a symmetric operator by a block Krylov iteration with restarts: what
//! principal components beyond small covariances come from.
//!
//! Cost: a product with a block of columns for each step, and n times the basis squared flops
//! beside it. The basis is in memory, in f64. Source: Zhou and Saad, "Block Krylov-Schur method for
//! large symmetric eigenvalue problems" (Numerical Algorithms 2008).

use std::cell::RefCell;
use std::collections::BTreeMap;

use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage};
use outcore_engine::Plan;
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

/// The `count` largest eigenvalues of a symmetric operator, descending, and their vectors, n x
/// count.
///
/// Only products with it are used, so that the smallest ones of A are the largest of c I - A.
/// Residuals are at most 1e-10 of the largest value, or 16 times the operator's
/// [`epsilon`](Operator::epsilon) where that is more. The same seed gives the same bits.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::linalg::eigh_largest;
/// use outcore_compute::operator::Symmetric;
///
/// // diag(1, 2, ..., 100)
/// let diagonal = Symmetric::new(100, |x, mut y| {
///     (0..x.ncols()).for_each(|j| (0..100).for_each(|i| y[(i, j)] = (i + 1) as f64 * x[(i, j)]));
///     Ok(())
/// });
/// let found = eigh_largest(&session, diagonal, 2, 0)?.run()?;
/// assert!((found.values[0] - 100.0).abs() < 1e-6 && (found.values[1] - 99.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for an operator that is not square; [`Error::Value`] for more pairs than its
/// order; [`Error::OverBudget`]; [`Error::Failed`] when the search does not converge; what products
/// fail with.
pub fn eigh_largest(
    session: &Session,
    operator: impl Operator + Send + 'static,
    count: usize,
    seed: u64,
) -> Result<Job<Eigen<f64>>> {
    let [order, cols] = operator.shape();
    if order != cols {
        return Err(Error::shape(format!(
            "eigenpairs of an operator of {order} x {cols}"
        )));
    }
    if count > order {
        return Err(Error::value(format!(
            "{count} eigenpairs of an operator of order {order}"
        )));
    }
    // An operator may have to plan its passes to know: asked once for each width.
    let held = RefCell::new(BTreeMap::new());
    let held_bytes = |columns: usize| -> u64 {
        let mut held = held.borrow_mut();
        *held
            .entry(columns)
            .or_insert_with(|| operator.held_bytes(columns))
    };
    let bytes = |krylov: &Krylov| krylov.basis_bytes(order, count) + held_bytes(krylov.block());
    let krylov = Krylov::that_fits(session, seed, count, bytes);
    let (needed, available) = (bytes(&krylov), MemorySplit::new(session).free());
    if needed > available {
        let what = format!("{count} eigenpairs of an operator of order {order}");
        return Err(Error::OverBudget {
            what,
            needed,
            available,
            budget: session.memory_bytes(),
        });
    }
    let mut plan = Plan::new("eigenpairs");
    plan.hold(needed);
    plan.note("block", krylov.block());
    let own = session.clone();
    Job::driven(session, vec![plan], move |stage, _| {
        let _basis = stage.reserve(
            "the basis of eigenvectors",
            krylov.basis_bytes(order, count),
        )?;
        krylov.largest(&own, &operator, count, stage)
    })
}
