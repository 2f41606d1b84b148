//! Principal components by one pass over the data, and one for each transform.
//!
//! X is n x d, samples in rows. The pass accumulates, in f64, the column sums and the lower
//! triangle of S = (X - s)^T (X - s), where the shift s is the mean of the first rows, so that data
//! far from zero lose no digits (Chan, Golub, LeVeque, 1983). With delta = sum(X - s) / n the
//! covariance is (S - n delta delta^T) / (n - 1); its leading eigenvectors are the components.
//!
//! - `covariance.rs`: the pass, a fold whose state is S in panels of columns. Where S is larger than
//!   memory its panels live in scratch, and X is read once for each group of panels that fits.
//! - `solve.rs`: from sums to components. Where S is in scratch, eigenvectors come from a block
//!   Krylov iteration with narrower blocks and a shorter basis where memory is short.
//! - `operator.rs`, `stored.rs`: the covariance as that iteration sees it, in memory or in scratch.
//!
//! Rows and panels are cut by the budget alone, so that the bits do not depend on the number of
//! threads, nor on who else has memory.
//!
//! Cost: n d^2 flops, reads X once (or once a group), 4 to 8 d^2 bytes of memory or scratch.

mod covariance;
mod operator;
mod solve;
mod stored;

use std::ops::Range;

use outcore_engine::{Plan, Region};
use outcore_kernels::Real;

use self::covariance::{Covariance, Panels, lanes_max, row_blocks};
use self::solve::{Products, Solve};
use crate::data::array::Operand;
use crate::data::format::with_real;
use crate::data::format::{DType, Order};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::memory_split::MemorySplit;
use crate::pass::Lanes;
use crate::session::Session;

/// How many components to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Components {
    /// min(n, d).
    All,
    /// This many.
    Count(u64),
    /// As few as explain more than this part of the variance, between 0 and 1.
    Variance(f64),
}

/// What `fit` finds. Components have unit length; the entry of largest magnitude of each is
/// positive, as scikit-learn has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pca {
    /// Rows of X.
    pub samples: u64,
    /// Columns of X.
    pub features: u64,
    /// Mean of each column, d.
    pub mean: Vec<f64>,
    /// Components in rows, k x d.
    pub components: Vec<f64>,
    /// Variance along each component, k, descending; n - 1 degrees of freedom.
    pub explained_variance: Vec<f64>,
    /// Sum of the variances of all columns.
    pub total_variance: f64,
}

/// The part of all work that the passes over X count for.
const PASS_PART: f64 = 0.95;

/// Finds the principal components of the rows of x.
///
/// # Errors
/// [`Error::Value`] for an empty x, or more components than min(n, d); [`Error::NotFinite`] for NaN
/// or infinity; [`Error::OverBudget`].
pub fn fit(session: &Session, x: Operand, components: Components, seed: u64) -> Result<Job<Pca>> {
    let (n, d) = (x.rows(), x.cols());
    if n == 0 || d == 0 {
        return Err(Error::value(format!(
            "principal components of {}: it is {n} x {d}",
            x.name()
        )));
    }
    match components {
        Components::Count(count) if count == 0 || count > n.min(d) => {
            return Err(Error::value(format!(
                "{count} components of {}: between 1 and {} are possible",
                x.name(),
                n.min(d)
            )));
        }
        Components::Variance(part) if !(part > 0.0 && part < 1.0) => {
            return Err(Error::value(format!(
                "the part of the variance to explain must be between 0 and 1, not {part}"
            )));
        }
        _ => {}
    }
    with_real!(x.dtype(), T => plan::<T>(session, x, components, seed))
}

/// How a fit divides memory: where S is, and what is added to at once.
struct Division {
    panels: Panels,
    /// Panels that are accumulated in one pass over X.
    groups: Vec<Range<usize>>,
    lanes: u64,
    blocks: Vec<Range<u64>>,
    in_memory: bool,
}

impl Division {
    /// Row blocks and panels follow from the budget alone. How many panels a pass has changes no
    /// sum, so that memory which others have counts there too.
    fn new<T: Real>(split: &MemorySplit, panels: Panels, x: &Operand, solve: &Solve) -> Division {
        let most = lanes_max(split, &panels, x.rows());
        let beside_solver = split.hold(solve.bytes(true));
        let one_group = panels.groups(split.parts_bytes()).len() == 1;
        let wanted = if solve.at_once() { 1 } else { most };
        let in_memory = one_group && beside_solver.left() / panels.lane_bytes() >= wanted;
        let lanes = beside_solver.left_of_half() / panels.lane_bytes();
        let share = if in_memory {
            u64::MAX
        } else {
            split.free_parts_bytes()
        };
        Division {
            groups: panels.groups(share),
            lanes: if in_memory { most.min(lanes.max(1)) } else { 1 },
            blocks: row_blocks::<T>(split, x, most),
            in_memory,
            panels,
        }
    }

    fn note(&self, plan: &mut Plan, krylov_block: Option<usize>) {
        plan.note("panels", self.panels.len());
        plan.note("passes", self.groups.len());
        plan.note("lanes", self.lanes);
        if let Some(block) = krylov_block {
            plan.note("krylov block", block);
        }
        plan.note(
            "covariance",
            if self.in_memory {
                "in memory"
            } else {
                "in scratch"
            },
        );
    }
}

fn plan<T: Real>(
    session: &Session,
    x: Operand,
    components: Components,
    seed: u64,
) -> Result<Job<Pca>> {
    let (d, split) = (x.cols(), MemorySplit::new(session));
    let mut plan = Plan::new("pca fit");
    plan.bound(x.stored_bytes());
    let shift = Region::span(plan.volatile("shift", 8 * d), 0, 8 * d);
    let panels = Panels::cut(&split, d);
    let mut solve = Solve::new(session, x.rows(), components, seed, &panels, shift);
    let division = Division::new::<T>(&split, panels, &x, &solve);
    let Division {
        panels, in_memory, ..
    } = &division;
    let searches_scratch = !in_memory && !solve.at_once();
    if searches_scratch {
        solve.shorten(seed);
    }
    division.note(&mut plan, searches_scratch.then(|| solve.krylov_block()));
    solve.check(*in_memory)?;
    let (lanes, stored) = if *in_memory {
        let lanes = Lanes::in_parts(&mut plan, "products", division.lanes, panels.ranges());
        (lanes, None)
    } else {
        let array = session.temporary(DType::F64, &[panels.lane_bytes() / 8], Order::Row)?;
        let extent = plan.extent(array.extent());
        (Lanes::stored(extent, panels.ranges()), Some(array))
    };
    let pass = Covariance::new(panels, shift, session.blas(), &x, solve.diagonal());
    pass.plan::<T>(&mut plan, &x, &division.blocks, &division.groups, &lanes);
    Job::driven(session, vec![plan], move |stage, mut plans| {
        let Some(pass) = plans.pop() else {
            return Err(Error::Closed);
        };
        let outcome = stage.run(pass, PASS_PART)?;
        let products = match &stored {
            Some(array) => Products::Stored(array.extent().clone()),
            None => Products::InMemory(lanes),
        };
        solve.run(outcome, products, stage)
    })
}
