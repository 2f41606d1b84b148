//! Numbers about a matrix in one pass: norms, statistics of columns, sums and extremes.
//!
//! Partial results are combined in the order of the matrix, whichever is ready first, and panels are cut by the budget, so the bits do
//! not depend on the number of threads or on who else has memory.

use std::sync::{Arc, LazyLock, Mutex};

use outcore_device::Locked;
use outcore_engine::{Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{ColumnStatistics, MatRef, Norm, Real};

use crate::data::array::{Operand, panels_that_fit};
use crate::data::format::with_real;
use crate::error::Result;
use crate::job::Job;
use crate::session::{PLAN_THREADS, Session};

/// Chains of partial results. A constant, so that results do not depend on the machine.
const LANES: usize = 8;

/// What to reduce a matrix to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum of all elements.
    Sum,
    /// Sum of their squares.
    SumOfSquares,
    /// The smallest; infinity of an empty matrix.
    Min,
    /// The largest; minus infinity of an empty matrix.
    Max,
}

/// Reduces all elements to one number, in f64. NaN propagates. Cost: reads x.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn reduce(session: &Session, x: Operand, reduction: Reduction) -> Result<Job<f64>> {
    let (start, join): (f64, fn(f64, f64) -> f64) = match reduction {
        Reduction::Sum | Reduction::SumOfSquares => (0.0, |a, b| a + b),
        Reduction::Min => (f64::INFINITY, |a, b| if a.is_nan() || a < b { a } else { b }),
        Reduction::Max => (f64::NEG_INFINITY, |a, b| if a.is_nan() || a > b { a } else { b }),
    };
    let x = if better_turned(session, &x) { x.t() } else { x };
    with_real!(x.dtype(), T => {
        let part: fn(MatRef<'_, T>) -> f64 = match reduction {
            Reduction::Sum => kernels::sum,
            Reduction::SumOfSquares => kernels::sum_of_squares,
            Reduction::Min => kernels::min,
            Reduction::Max => kernels::max,
        };
        let lanes = over_panels::<T, f64>(session, "reduce", &x, move || start, 0, move |state, _, block| {
            *state = join(*state, part(block));
            Ok(())
        })?;
        Ok(lanes.map(move |lanes| Ok(lanes.into_iter().fold(start, join))))
    })
}

/// The norm of each row, in f64. Cost: reads x; holds 8 bytes a row besides the budget (they are the result).
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn row_norms(session: &Session, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    match better_turned(session, &x) {
        true => accumulated_norms(session, "row norms", x.t(), norm),
        false => separate_norms(session, "row norms", x, norm),
    }
}

/// The norm of each column, in f64. Cost: reads x.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn column_norms(session: &Session, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    match better_turned(session, &x) {
        true => separate_norms(session, "column norms", x.t(), norm),
        false => accumulated_norms(session, "column norms", x, norm),
    }
}

/// The norm of each row, from whole rows.
fn separate_norms(session: &Session, name: &'static str, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    let rows = x.rows() as usize;
    with_real!(x.dtype(), T => {
        let norms = Arc::new(Mutex::new(vec![0.0; rows]));
        let result = Arc::clone(&norms);
        let lanes = over_panels::<T, ()>(session, name, &x, || (), 0, move |(), at, block| {
            let mut part = vec![0.0; block.nrows()];
            kernels::row_norms(&mut part, block, norm)?;
            norms.locked()[at..at + part.len()].copy_from_slice(&part);
            Ok(())
        })?;
        Ok(lanes.map(move |_| Ok(std::mem::take(&mut *result.locked()))))
    })
}

/// The norm of each column, from one panel of rows after the other.
fn accumulated_norms(session: &Session, name: &'static str, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    let columns = x.cols() as usize;
    // `hypot` squares nothing that leaves the range; of infinity and NaN it makes infinity.
    let root_of_both = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.hypot(b) };
    let join = move |sums: &mut [f64], part: &[f64]| {
        for (sum, &part) in sums.iter_mut().zip(part) {
            *sum = match norm {
                Norm::L1 => *sum + part,
                Norm::L2 => root_of_both(*sum, part),
                Norm::Max if sum.is_nan() || *sum > part => *sum,
                Norm::Max => part,
            };
        }
    };
    with_real!(x.dtype(), T => {
        let start = move || vec![0.0; columns];
        let lanes = over_panels::<T, Vec<f64>>(session, name, &x, start, 8 * columns, move |state, _, block| {
            let mut part = vec![0.0; block.ncols()];
            kernels::column_norms(&mut part, block, norm)?;
            join(state, &part);
            Ok(())
        })?;
        Ok(lanes.map(move |lanes| Ok(lanes.into_iter().fold(start(), |mut sums, part| {
            join(&mut sums, &part);
            sums
        }))))
    })
}

/// Count, mean, variance, least and greatest element of each column, in f64. Cost: reads x.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn column_statistics(session: &Session, x: Operand) -> Result<Job<ColumnStatistics>> {
    let columns = x.cols() as usize;
    if better_turned(session, &x) {
        return separate_statistics(session, x.t());
    }
    with_real!(x.dtype(), T => {
        let lanes = over_panels::<T, ColumnStatistics>(session, "column statistics", &x, move || ColumnStatistics::new(columns), 32 * columns, |state, _, block| {
            Ok(state.update(block)?)
        })?;
        Ok(lanes.map(move |lanes| {
            let mut all = ColumnStatistics::new(columns);
            lanes.iter().try_for_each(|lane| all.merge(lane))?;
            Ok(all)
        }))
    })
}

/// The statistics of each row, from whole rows.
fn separate_statistics(session: &Session, x: Operand) -> Result<Job<ColumnStatistics>> {
    let (bytes, count) = (32 * x.rows() as usize, x.cols());
    with_real!(x.dtype(), T => {
        let lanes = over_panels::<T, Vec<(usize, ColumnStatistics)>>(session, "column statistics", &x, Vec::new, bytes, |state, at, block| {
            let mut part = ColumnStatistics::new(block.nrows());
            part.update(block.transpose())?;
            state.push((at, part));
            Ok(())
        })?;
        Ok(lanes.map(move |lanes| {
            let mut parts: Vec<_> = lanes.into_iter().flatten().collect();
            parts.sort_unstable_by_key(|&(at, _)| at);
            let mut all = ColumnStatistics { count, ..ColumnStatistics::new(0) };
            parts.iter().for_each(|(_, part)| all.append(part));
            Ok(all)
        }))
    })
}

/// Whether rows of x would be short pieces of its file, where whole columns fit.
fn better_turned(session: &Session, x: &Operand) -> bool {
    matches!(x, Operand::Stored(array) if array.is_cut_by_columns(session.memory_bytes() / (4 * (PLAN_THREADS + 1))))
}

/// What one chain has come to.
type LazyState<S> = LazyLock<Mutex<S>, Box<dyn FnOnce() -> Mutex<S> + Send>>;

/// Folds panels of rows into [`LANES`] states, each in order; the result is the states.
fn over_panels<T: Real, S: Clone + Send + 'static>(
    session: &Session,
    name: &'static str,
    x: &Operand,
    start: impl Fn() -> S + Clone + Send + 'static,
    state_bytes: usize,
    fold: impl Fn(&mut S, usize, MatRef<'_, T>) -> Result<()> + Send + Sync + 'static,
) -> Result<Job<Vec<S>>> {
    let element = size_of::<T>() as u64;
    let mut plan = Plan::new(name);
    let (extent, layout) = (x.extent(&mut plan), x.layout());
    let turns = plan.volatile("turns", LANES as u64);
    let states_bytes = (LANES * state_bytes) as u64;
    plan.hold(states_bytes);
    // Made when they are needed: a plan holds nothing.
    let states: Vec<Arc<LazyState<S>>> = (0..LANES)
        .map(|_| {
            let start = start.clone();
            Arc::new(LazyLock::new(Box::new(move || Mutex::new(start())) as Box<_>))
        })
        .collect();
    let fold = Arc::new(fold);
    let share = session.memory_bytes().saturating_sub(states_bytes + state_bytes as u64) / (4 * (PLAN_THREADS + 1));
    for (index, rows) in panels_that_fit(x.rows(), x.cols() * element, share, |rows| x.frame_bytes(rows)).into_iter().enumerate()
    {
        let at = rows.start as usize;
        let tile = layout.tile(extent, rows, 0..x.cols(), element);
        let lane = index % LANES;
        let (state, fold) = (Arc::clone(&states[lane]), Arc::clone(&fold));
        let task = Task::new(name).flops(2 * tile.region.bytes() / element).held(state_bytes);
        plan.task(
            task.read(tile.region)
                .update(Region::span(turns, lane as u64, 1))
                .run(move |cx| Ok(fold(&mut state.locked(), at, tile.of::<T>(&cx.blocks[0])?)?)),
        );
    }
    plan.bound(if x.is_stored() { x.bytes() } else { 0 });
    Job::new(session, vec![plan], move |_| Ok(states.iter().map(|state| state.locked().clone()).collect()))
}
