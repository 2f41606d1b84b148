//! Rows added up to a state.

use std::sync::Arc;

use bytemuck::Pod;
use outcore_core::{Error, Job, MemorySplit, Result, Session, Team};
use outcore_engine::{Plan, Task, go_on};
use outcore_kernels::{Lines, MatRef, Real};
use outcore_matrix::sparse::Piece;

use super::joined::{blocks_of, groups, joined_bytes, with_group};
use super::{Lanes, Rows, check_panels};
use crate::ranks::AllRows;

/// What rows come to. A state is flat memory with a merge: several are added to at once and merged
/// in order.
pub trait Fold<T: Real>: Send + Sync + 'static {
    /// What a state is made of.
    type Element: Pod + Send + Sync;

    /// Elements of a state.
    fn elements(&self) -> usize;

    /// Bytes that the fold itself holds.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// Bytes that a task holds besides its rows and a state.
    fn task_bytes(&self, rows: usize) -> usize {
        let _ = rows;
        0
    }

    /// Whether [`sparse`](Fold::sparse) needs all entries of a line at once. A line that is longer
    /// than a panel is then in memory whole.
    fn needs_whole_lines(&self) -> bool {
        false
    }

    /// Makes the state of no rows out of zeros.
    fn start(&self, _state: &mut [Self::Element]) {}

    /// Adds rows of a dense matrix; the first of them has this number.
    ///
    /// # Errors
    /// Those of the computation.
    fn dense(&self, state: &mut [Self::Element], first: u64, rows: MatRef<'_, T>) -> Result<()>;

    /// Adds lines of a sparse matrix; parts of a line may come one after another, unless they are to
    /// be whole.
    ///
    /// # Errors
    /// [`Error::Value`] for a fold of dense rows only; those of the computation.
    fn sparse(&self, state: &mut [Self::Element], first: u64, lines: impl Lines<T>) -> Result<()> {
        let _ = (state, first, lines);
        Err(Error::value("this takes dense rows"))
    }

    /// Adds what another state has come to, of rows that follow.
    fn merge(&self, into: &mut [Self::Element], other: &[Self::Element]);
}

/// Whether a fold with such a state, which itself holds `held_bytes`, gets some rows in parts.
pub(crate) fn cuts_rows(session: &Session, rows: &Rows, held_bytes: u64, state_bytes: u64) -> bool {
    let panel_bytes = MemorySplit::new(session)
        .hold(held_bytes)
        .states(state_bytes)
        .panel_bytes();
    matches!(rows, Rows::Sparse(a) if a.pieces(panel_bytes, |_| 0).iter().any(|piece| piece.breaks_off))
}

/// Adds up all rows. Cost: reads the matrix once; holds up to eight states.
///
/// Determinism: the bits depend on the data and the budget.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::pass::{Fold, fold};
/// use outcore_core::Result;
/// use outcore_kernels::MatRef;
///
/// struct Positive;
///
/// impl Fold<f32> for Positive {
///     type Element = u64;
///     fn elements(&self) -> usize {
///         1
///     }
///     fn dense(&self, count: &mut [u64], _first: u64, rows: MatRef<'_, f32>) -> Result<()> {
///         let columns = 0..rows.ncols();
///         count[0] += columns.map(|j| rows.col(j).iter().filter(|x| **x > 0.0).count() as u64).sum::<u64>();
///         Ok(())
///     }
///     fn merge(&self, into: &mut [u64], other: &[u64]) {
///         into[0] += other[0];
///     }
/// }
///
/// assert_eq!(fold(&session, "positive", &Rows::from(&x), Positive)?.run()?, [6]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`].
pub fn fold<T: Real, F: Fold<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    fold: F,
) -> Result<Job<Vec<F::Element>>> {
    planned(session, name, rows, Arc::new(fold))
}

/// Adds up the rows of all ranks; each has the same state in the end. A collective call: every rank
/// makes it, with a fold of as many elements, and runs the job. A row's number is that on its rank.
///
/// Cost: as [`fold`], and two states a rank sent.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::pass::{Fold, fold_over};
/// use outcore_core::{Result, Team, ThreadRanks};
/// use outcore_kernels::MatRef;
/// use std::sync::Arc;
///
/// struct Count;
///
/// impl Fold<f32> for Count {
///     type Element = u64;
///     fn elements(&self) -> usize {
///         1
///     }
///     fn dense(&self, count: &mut [u64], _first: u64, rows: MatRef<'_, f32>) -> Result<()> {
///         count[0] += rows.nrows() as u64;
///         Ok(())
///     }
///     fn merge(&self, into: &mut [u64], other: &[u64]) {
///         into[0] += other[0];
///     }
/// }
///
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// assert_eq!(fold_over(&session, "count", &Rows::from(&x), Count, &alone)?.run()?, [3]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fold`], of any rank; [`Error::Shape`] and [`Error::DType`] for ranks whose rows do not fit
/// together.
pub fn fold_over<T: Real, F: Fold<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    fold: F,
    team: &Team,
) -> Result<Job<Vec<F::Element>>> {
    AllRows::of(team, [rows.count(), rows.width()], rows.real(), name)?;
    let fold = Arc::new(fold);
    let own = team.agree(planned(session, name, rows, Arc::clone(&fold)))?;
    let bytes = 2 * (fold.elements() * size_of::<F::Element>()) as u64;
    Ok(own.over(team, bytes, move |state, team| {
        team.all_reduce(state, |into, other| fold.merge(into, other))
    }))
}

fn planned<T: Real, F: Fold<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    fold: Arc<F>,
) -> Result<Job<Vec<F::Element>>> {
    let len = fold.elements();
    let state_bytes = (len.max(1) * size_of::<F::Element>()) as u64;
    let split = MemorySplit::new(session)
        .hold(fold.held_bytes())
        .states(state_bytes);
    check_panels(name, rows, 0, &split, split.panel_bytes())?;
    let mut plan = Plan::new(name);
    plan.bound(rows.stored_bytes());
    plan.hold(fold.held_bytes());
    plan.note("lanes", split.lanes());
    let lanes = Lanes::new(&mut plan, "lane", split.lanes(), state_bytes);
    let task = |index: usize, flops: u64| lanes.add(index, Task::new(name).flops(flops));
    let begin = |fold: &F, state: &mut [F::Element], is_first: bool| {
        if is_first {
            state.fill(bytemuck::Zeroable::zeroed());
            fold.start(state);
        }
    };
    match rows {
        Rows::Dense(x) => {
            let (extent, layout) = (x.extent(&mut plan), x.layout());
            for (index, rows) in x.panels(split.panel_bytes()).into_iter().enumerate() {
                go_on()?;
                let (first, tile, fold) = (
                    rows.start,
                    layout.tile(extent, rows, 0..x.cols()),
                    Arc::clone(&fold),
                );
                let (task, is_first) = task(index, 2 * (tile.rows * tile.cols) as u64);
                let held = fold.task_bytes(tile.rows);
                // A kernel makes the numbers of a panel before they are added to the state.
                plan.task(
                    task.read(tile.region)
                        .held(state_bytes as usize + held)
                        .run(move |cx| {
                            let (lane, read) = cx.blocks.split_at_mut(1);
                            let state = &mut lane[0].slice_mut::<F::Element>()[..len];
                            begin(&fold, state, is_first);
                            Ok(fold.dense(state, first, tile.of::<T>(&read[0])?)?)
                        }),
                );
            }
        }
        Rows::Sparse(a) => {
            let whole = fold.needs_whole_lines();
            let groups = groups(a.pieces(split.panel_bytes(), |_| 0), whole);
            for (index, group) in groups.iter().enumerate() {
                go_on()?;
                let (pieces, fold, rows) =
                    (blocks_of(a, group), Arc::clone(&fold), group[0].lines());
                let entries: u64 = group.iter().map(Piece::entries).sum();
                let (task, is_first) = task(index, 2 * entries);
                let joined = if whole { joined_bytes::<T>(&pieces) } else { 0 };
                let held = fold.task_bytes((rows.end - rows.start) as usize) + joined;
                let task = group
                    .iter()
                    .flat_map(|piece| a.regions(&mut plan, piece))
                    .fold(task, Task::read);
                plan.task(task.held(held).run(move |cx| {
                    let (lane, read) = cx.blocks.split_at_mut(1);
                    let state = &mut lane[0].slice_mut::<F::Element>()[..len];
                    begin(&fold, state, is_first);
                    with_group!(pieces, read, whole, T, a => Ok(fold.sparse(state, rows.start, a)?))
                }));
            }
        }
    }
    // A fold of the caller's may take any time for a panel, and large states take some to merge:
    // the thread that waits for the job does neither.
    Job::driven(session, vec![plan], move |stage, plans| {
        let Ok([plan]) = <[Plan; 1]>::try_from(plans) else {
            unreachable!("a fold is one plan")
        };
        let outcome = stage.run(plan, 1.0)?;
        let mut states = lanes
            .results::<F::Element>(&outcome)
            .map(|state| &state[..len]);
        let Some(first) = states.next() else {
            let mut empty = vec![bytemuck::Zeroable::zeroed(); len];
            fold.start(&mut empty);
            return Ok(empty);
        };
        let mut all = first.to_vec();
        for state in states {
            stage.check()?;
            fold.merge(&mut all, state);
        }
        Ok(all)
    })
}
