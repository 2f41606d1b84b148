//! Principal components by one pass over the data, and one for each transform.
//!
//! X is n x d, samples in rows. The pass accumulates, in f64, the column sums and the lower
//! triangle of S = (X - s)^T (X - s), where the shift s is the mean of the first rows, so that data
//! far from zero lose no digits (Chan, Golub, LeVeque, 1983). With delta = sum(X - s) / n the
//! covariance is (S - n delta delta^T) / (n - 1); its leading eigenvectors are the components.
//!
//! - `covariance.rs`: the pass, a fold whose state is S in panels of columns. Where S is larger than
//!   memory its panels live in scratch, and X is read once for each group of panels that fits.
//! - `search.rs`, `solve.rs`: from sums to components. Where S is in scratch, eigenvectors come from a
//!   block Krylov iteration with narrower blocks and a shorter basis where memory is short.
//! - `sparse.rs`: the same of sparse rows, by the products of their entries.
//! - `over.rs`: the same of the rows of several ranks.
//! - `operator.rs`, `stored.rs`: the covariance as that iteration sees it, in memory or in scratch.
//!
//! Rows and panels are cut by the budget alone, so that the bits do not depend on the number of
//! threads, nor on memory that others have reserved.
//!
//! Cost: n d^2 flops, reads X once (or once a group), 4 to 8 d^2 bytes of memory or scratch.

mod bytes;
mod covariance;
mod operator;
mod over;
mod search;
mod solve;
mod sparse;
mod stored;

use std::ops::Range;
use std::sync::Arc;

use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session, Team, with_real};
use outcore_engine::{Plan, Region};
use outcore_kernels::Real;
use outcore_matrix::{Array, Operand};

use self::bytes::{ByteCovariance, bytes_of};
use self::covariance::{Covariance, Panels, lanes_max, row_blocks};
use self::solve::{Products, Solve};
use crate::pass::{Lanes, PassedRows, fold_parts};
use crate::ranks::AllRows;

pub use self::sparse::{fit_sparse, fit_sparse_over};

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
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::pca::{Components, fit};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let found = fit(&session, x.into(), Components::Count(1), 0)?.run()?;
/// assert_eq!(found.mean, [3.0, 4.0]);
/// assert!((found.components[0] - 0.5f64.sqrt()).abs() < 1e-6);
/// assert!((found.explained_variance[0] - found.total_variance).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for an empty x, or more components than min(n, d); [`Error::NotFinite`] for NaN
/// or infinity; [`Error::OverBudget`].
pub fn fit(session: &Session, x: Operand, components: Components, seed: u64) -> Result<Job<Pca>> {
    let wanted = Wanted {
        samples: x.rows(),
        components,
        seed,
    };
    wanted.check(x.name(), x.cols())?;
    with_real!(x.real()?, T => plan::<T>(session, x, wanted, None))
}

/// The same of the rows of all ranks, on each; `samples` are all of them. A collective call: every
/// rank makes it, and runs the job. A rank may have no rows.
///
/// Each rank adds up its own rows about their mean; S of all is the sum of these, and of n m m^T
/// for each rank's n rows with a mean m off that of all (Chan, Golub, LeVeque, 1983). Rank 0 searches
/// for the components. Where S is larger than the memory of any rank, it stays where it was made, and
/// products with it are summed.
///
/// Cost: as [`fit`] of the rank's own rows; 8 d^2 bytes a rank sent, twice; or 24 d bytes for each
/// column of the search.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::pca::{Components, fit_over};
/// use outcore_core::{Team, ThreadRanks};
/// use std::sync::Arc;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let found = fit_over(&session, x.into(), Components::Count(1), 0, &alone)?.run()?;
/// assert_eq!((found.samples, found.mean), (3, vec![3.0, 4.0]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit`], of any rank; [`Error::Shape`], [`Error::DType`] and [`Error::Value`] for ranks whose
/// rows or parameters do not fit together.
pub fn fit_over(
    session: &Session,
    x: Operand,
    components: Components,
    seed: u64,
    team: &Team,
) -> Result<Job<Pca>> {
    let asked = format!("{components:?} with the seed {seed}");
    let all = AllRows::of(team, [x.rows(), x.cols()], x.real(), &asked)?;
    let wanted = Wanted {
        samples: all.count,
        components,
        seed,
    };
    team.alike(wanted.check(x.name(), x.cols()))?;
    let plan = || with_real!(x.real()?, T => plan::<T>(session, x, wanted, Some(team)));
    team.agree(plan())
}

/// What is to be found.
#[derive(Clone, Copy)]
struct Wanted {
    /// Rows, of all ranks.
    samples: u64,
    components: Components,
    seed: u64,
}

impl Wanted {
    /// Of rows with d columns.
    fn check(self, name: &str, d: u64) -> Result<()> {
        let n = self.samples;
        if n == 0 || d == 0 {
            return Err(Error::value(format!(
                "principal components of {name}: it is {n} x {d}"
            )));
        }
        match self.components {
            Components::Count(count) if count == 0 || count > n.min(d) => {
                Err(Error::value(format!(
                    "{count} components of {name}: between 1 and {} are possible",
                    n.min(d)
                )))
            }
            Components::Variance(part) if !(part > 0.0 && part < 1.0) => Err(Error::value(
                format!("the part of the variance to explain must be between 0 and 1, not {part}"),
            )),
            _ => Ok(()),
        }
    }
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
    /// Where one rank has no memory for S, none has it there.
    fn new<T: Real>(
        split: &MemorySplit,
        panels: Panels,
        x: &Operand,
        solve: &Solve,
        team: Option<&Team>,
    ) -> Result<Division> {
        let most = lanes_max(split, &panels, x.rows()).max(1);
        let beside_solver = split.hold(solve.bytes(true));
        let one_group = panels.groups(split.parts_bytes()).len() == 1;
        let wanted = if solve.search.at_once() { 1 } else { most };
        let in_memory = one_group && beside_solver.left() / panels.lane_bytes() >= wanted;
        let in_memory = match team {
            Some(team) => {
                let all = team.all_gather(Ok(vec![u8::from(in_memory)]))?;
                all.iter().all(|rank| rank[..] == [1])
            }
            None => in_memory,
        };
        let lanes = beside_solver.left_of_half() / panels.lane_bytes();
        let share = if in_memory {
            u64::MAX
        } else {
            split.free_parts_bytes()
        };
        Ok(Division {
            groups: panels.groups(share),
            lanes: if in_memory { most.min(lanes.max(1)) } else { 1 },
            blocks: match bytes_of(x) {
                Some(_) => bytes::row_blocks(split, x, most),
                None => row_blocks::<T>(split, x, most),
            },
            in_memory,
            panels,
        })
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
    wanted: Wanted,
    team: Option<&Team>,
) -> Result<Job<Pca>> {
    let (d, split) = (x.cols(), MemorySplit::new(session));
    let mut plan = Plan::new("pca fit");
    plan.bound(x.stored_bytes());
    let shift = Region::span(plan.volatile("shift", 8 * d), 0, 8 * d);
    let panels = Panels::cut(&split, d);
    let mut solve = Solve::new(session, x.rows(), wanted, &panels, shift);
    let division = Division::new::<T>(&split, panels, &x, &solve, team)?;
    let Division {
        panels, in_memory, ..
    } = &division;
    let searches_scratch = !in_memory && !solve.search.at_once();
    if searches_scratch {
        solve.shorten(wanted.seed);
    }
    division.note(&mut plan, searches_scratch.then(|| solve.krylov_block()));
    solve.check(*in_memory)?;
    let (lanes, stored) = if *in_memory {
        let lanes = Lanes::in_parts(&mut plan, "products", division.lanes, panels.ranges());
        (lanes, None)
    } else {
        let array = Array::temporary(session, DType::F64, &[panels.lane_bytes() / 8], Order::Row)?;
        let extent = plan.extent(array.extent());
        (Lanes::stored(extent, panels.ranges()), Some(array))
    };
    let (blocks, groups) = (&division.blocks, &division.groups);
    let rows = PassedRows {
        x: &x,
        blocks,
        groups,
    };
    if let (Some(byte), Operand::Stored(array)) = (bytes_of(&x), &x) {
        let pass = Arc::new(ByteCovariance {
            panels: panels.clone(),
            byte,
            shift,
            diagonal: Arc::clone(solve.diagonal()),
        });
        let extent = plan.extent(array.extent());
        fold_parts(&mut plan, "covariance", extent, &rows, &lanes, &pass);
    } else {
        let pass = Covariance::new(panels, shift, session.blas(), &x, solve.diagonal());
        let (extent, pass) = (x.extent(&mut plan), Arc::new(pass));
        fold_parts::<T, _>(&mut plan, "covariance", extent, &rows, &lanes, &pass);
    }
    let team = team.cloned();
    Job::driven(session, vec![plan], move |stage, mut plans| {
        let Some(pass) = plans.pop() else {
            return Err(Error::Closed);
        };
        let products = match &stored {
            Some(array) => Products::Stored(array.extent().clone()),
            None => Products::InMemory(lanes),
        };
        match team {
            None => {
                let outcome = stage.run(pass, PASS_PART)?;
                solve.run(outcome, products, stage)
            }
            Some(team) => team.drive(|| {
                let outcome = team.agree(stage.run(pass, PASS_PART))?;
                solve.run_over(&team, &outcome, products, stage)
            }),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, operand};
    use outcore_core::{RealType, Settings};

    /// What principal components are, by plain loops: the means, and the covariance.
    fn reference(x: &[f64], d: usize) -> (Vec<f64>, Vec<f64>) {
        let n = x.len() / d;
        let mean: Vec<f64> = (0..d)
            .map(|j| (0..n).map(|i| x[i * d + j]).sum::<f64>() / n as f64)
            .collect();
        let element = |at: usize| {
            let (j, k) = (at / d, at % d);
            let product = |i: usize| (x[i * d + j] - mean[j]) * (x[i * d + k] - mean[k]);
            (0..n).map(product).sum::<f64>() / (n as f64 - 1.0).max(1.0)
        };
        let covariance = (0..d * d).map(element).collect();
        (mean, covariance)
    }

    /// Checks what was found against the covariance: C v = lambda v for orthonormal v, in
    /// descending order.
    fn check(found: &Pca, mean: &[f64], covariance: &[f64], tolerance: f64, what: &str) {
        let d = mean.len();
        let total: f64 = (0..d).map(|j| covariance[j * d + j]).sum();
        let close = |a: f64, b: f64, scale: f64| {
            assert!((a - b).abs() <= tolerance * scale, "{what}: {a} for {b}");
        };
        close(found.total_variance, total, total);
        let largest = mean.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        for (found, mean) in found.mean.iter().zip(mean) {
            close(*found, *mean, 1.0 + largest);
        }
        let components: Vec<&[f64]> = found.components.chunks(d).collect();
        assert_eq!(components.len(), found.explained_variance.len(), "{what}");
        for (number, (v, &value)) in components.iter().zip(&found.explained_variance).enumerate() {
            for (other, w) in components.iter().enumerate() {
                let product: f64 = v.iter().zip(*w).map(|(v, w)| v * w).sum();
                close(product, f64::from(u8::from(number == other)), 1.0);
            }
            for (row, &element) in covariance.chunks(d).zip(*v) {
                let product: f64 = row.iter().zip(*v).map(|(c, v)| c * v).sum();
                close(product, value * element, total);
            }
        }
        let mut values = found.explained_variance.windows(2);
        assert!(values.all(|pair| pair[0] >= pair[1]), "{what}");
    }

    #[test]
    fn components_are_those_of_plain_loops_whatever_the_shape() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        // One row, one column, fewer rows than columns, several blocks and lanes, several panels,
        // and a covariance in scratch.
        for (n, d, count, memory_bytes) in [
            (1, 1, 1, 64 << 20),
            (1, 5, 1, 64 << 20),
            (9, 1, 1, 64 << 20),
            (5, 33, 5, 64 << 20),
            (4099, 7, 7, 4 << 20),
            (2500, 130, 9, 8 << 20),
            (700, 301, 5, 5 << 20),
        ] {
            let mut next = numbers(n as u64);
            let x: Vec<f64> = (0..n * d)
                .map(|at| f64::from(next()) * (2.0 + (at % d) as f64) + 100.0)
                .collect();
            let (mean, covariance) = reference(&x, d);
            let what = format!("{count} components of {n} x {d} in {memory_bytes}");
            let settings = Settings {
                memory_bytes: Some(memory_bytes),
                scratch: Some(folder.path().to_owned()),
                allow_tmpfs_scratch: true,
                ..Settings::default()
            };
            let session = Session::new(settings).expect("a budget is all it takes");
            let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            for (x, epsilon) in [
                (operand(&x, d, RealType::F64), f64::EPSILON),
                (operand(&single, d, RealType::F32), f64::from(f32::EPSILON)),
            ] {
                let job = fit(&session, x, Components::Count(count), 1).expect(&what);
                let found = job.run().expect(&what);
                // Rows are rounded to their type, some hundred times their deviation away from
                // zero, and the search ends at 1e-10.
                let tolerance = 1e-9 + 100.0 * epsilon * (n as f64).sqrt();
                check(&found, &mean, &covariance, tolerance, &what);
            }
        }
    }

    #[test]
    fn panels_are_all_of_the_lower_triangle_whatever_the_budget() {
        for memory_bytes in [1 << 20, 5 << 20, 64 << 20, 4 << 30] {
            let settings = Settings {
                memory_bytes: Some(memory_bytes),
                ..Settings::default()
            };
            let session = Session::new(settings).expect("a budget is all it takes");
            let split = MemorySplit::new(&session);
            for d in [1, 15, 64, 100, 1000, 4099] {
                let panels = Panels::cut(&split, d);
                let (mut next, mut end) = (0, 0);
                for (panel, range) in panels.iter().zip(panels.ranges()) {
                    assert_eq!((panel.columns.start, panel.height), (next, d - next));
                    assert!(range.start >= end && range.start.is_multiple_of(4096));
                    assert_eq!(range.end - range.start, panel.bytes());
                    (next, end) = (panel.columns.end, range.end);
                }
                assert_eq!(next, d, "every column is in a panel");
                assert!(end <= panels.lane_bytes());
                for share in [0, memory_bytes / 5, u64::MAX] {
                    let groups = panels.groups(share);
                    let all: Vec<usize> = groups.iter().cloned().flatten().collect();
                    assert!(all.into_iter().eq(0..panels.len()), "{groups:?}");
                    let bytes = |group: &Range<usize>| -> u64 {
                        panels[group.clone()]
                            .iter()
                            .map(|panel| panel.bytes())
                            .sum()
                    };
                    assert!(
                        groups
                            .iter()
                            .all(|group| group.len() == 1 || bytes(group) <= share)
                    );
                }
            }
        }
    }
}
