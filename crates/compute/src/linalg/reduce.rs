//! Numbers about a matrix in one pass: norms, statistics of columns, sums and extremes.
//!
//! What is asked of columns is a fold of rows, what is asked of rows a map of them; a matrix whose
//! columns are what is contiguous is passed over by columns instead.
//!
//! Shapes: x is m x n. Cost: reads x; a few operations an element; up to eight states of 8 to 32
//! bytes a column. Sources: Chan, Golub and LeVeque (1979) for the merge of variances, Blue (TOMS
//! 1978) for sums of squares that neither overflow nor vanish.

use bytemuck::{Pod, Zeroable};
use outcore_core::{Job, MemorySplit, Result, Session, Team, with_real};
use outcore_kernels as kernels;
use outcore_kernels::{ColumnStatistics, MatRef, Norm, Real};
use outcore_matrix::{Operand, Rows};

use crate::pass::{Fold, Map, fold, map};
use crate::ranks::AllRows;

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
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Reduction, reduce};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// assert_eq!(reduce(&session, (&x).into(), Reduction::Sum)?.run()?, 21.0);
/// assert_eq!(reduce(&session, (&x).into(), Reduction::Max)?.run()?, 6.0);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn reduce(session: &Session, x: Operand, reduction: Reduction) -> Result<Job<f64>> {
    let x = if better_turned(session, &x) { x.t() } else { x };
    with_real!(x.real()?, T => {
        Ok(fold::<T, _>(session, "reduce", &Rows::Dense(x), reduction)?.map(|found| Ok(found[0])))
    })
}

impl<T: Real> Fold<T> for Reduction {
    type Element = f64;

    fn elements(&self) -> usize {
        1
    }

    fn start(&self, state: &mut [f64]) {
        state[0] = match self {
            Reduction::Sum | Reduction::SumOfSquares => 0.0,
            Reduction::Min => f64::INFINITY,
            Reduction::Max => f64::NEG_INFINITY,
        };
    }

    fn dense(&self, state: &mut [f64], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        let part = match self {
            Reduction::Sum => kernels::sum(rows),
            Reduction::SumOfSquares => kernels::sum_of_squares(rows),
            Reduction::Min => kernels::min(rows),
            Reduction::Max => kernels::max(rows),
        };
        Fold::<T>::merge(self, state, &[part]);
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        let (a, b) = (into[0], other[0]);
        into[0] = match self {
            Reduction::Sum | Reduction::SumOfSquares => a + b,
            Reduction::Min if a.is_nan() || a < b => a,
            Reduction::Max if a.is_nan() || a > b => a,
            Reduction::Min | Reduction::Max => b,
        };
    }
}

/// The norm of each row, in f64. Cost: reads x; holds 8 bytes a row besides the budget (they are
/// the result).
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::row_norms;
/// use outcore_kernels::Norm;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// assert_eq!(row_norms(&session, x.into(), Norm::L1)?.run()?, [3.0, 7.0, 11.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn row_norms(session: &Session, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    match better_turned(session, &x) {
        true => accumulated_norms(session, "row norms", x.t(), norm),
        false => separate_norms(session, "row norms", x, norm),
    }
}

/// The norm of each column, in f64. Cost: reads x.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::column_norms;
/// use outcore_kernels::Norm;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// assert_eq!(column_norms(&session, x.into(), Norm::Max)?.run()?, [5.0, 6.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn column_norms(session: &Session, x: Operand, norm: Norm) -> Result<Job<Vec<f64>>> {
    match better_turned(session, &x) {
        true => separate_norms(session, "column norms", x.t(), norm),
        false => accumulated_norms(session, "column norms", x, norm),
    }
}

/// The norm of each row, from whole rows.
fn separate_norms(
    session: &Session,
    name: &'static str,
    x: Operand,
    norm: Norm,
) -> Result<Job<Vec<f64>>> {
    with_real!(x.real()?, T => map::<T, _>(session, name, &Rows::Dense(x), RowNorms(norm)))
}

struct RowNorms(Norm);

impl<T: Real> Map<T> for RowNorms {
    type Element = f64;

    fn dense(&self, into: &mut [f64], rows: MatRef<'_, T>) -> Result<()> {
        Ok(kernels::row_norms(into, rows, self.0)?)
    }

    fn merge(&self, into: &mut f64, other: &f64) {
        *into = *other;
    }
}

/// The norm of each column, from one panel of rows after the other.
fn accumulated_norms(
    session: &Session,
    name: &'static str,
    x: Operand,
    norm: Norm,
) -> Result<Job<Vec<f64>>> {
    let columns = x.cols() as usize;
    with_real!(x.real()?, T => fold::<T, _>(session, name, &Rows::Dense(x), ColumnNorms { columns, norm }))
}

struct ColumnNorms {
    columns: usize,
    norm: Norm,
}

impl<T: Real> Fold<T> for ColumnNorms {
    type Element = f64;

    fn elements(&self) -> usize {
        self.columns
    }

    fn dense(&self, state: &mut [f64], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        let mut part = vec![0.0; self.columns];
        kernels::column_norms(&mut part, rows, self.norm)?;
        Fold::<T>::merge(self, state, &part);
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        // `hypot` squares nothing that leaves the range; of infinity and NaN it makes infinity.
        let root_of_both = |a: f64, b: f64| {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.hypot(b)
            }
        };
        for (sum, &part) in into.iter_mut().zip(other) {
            *sum = match self.norm {
                Norm::L1 => *sum + part,
                Norm::L2 => root_of_both(*sum, part),
                Norm::Max if sum.is_nan() || *sum > part => *sum,
                Norm::Max => part,
            };
        }
    }
}

/// Count, mean, variance, least and greatest element of each column, in f64. Cost: reads x.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::column_statistics;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let statistics = column_statistics(&session, x.into())?.run()?;
/// assert_eq!((statistics.mean, statistics.max), (vec![3.0, 4.0], vec![5.0, 6.0]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn column_statistics(session: &Session, x: Operand) -> Result<Job<ColumnStatistics>> {
    let columns = x.cols() as usize;
    if better_turned(session, &x) {
        return separate_statistics(session, x.t());
    }
    with_real!(x.real()?, T => {
        let found = fold::<T, _>(session, "column statistics", &Rows::Dense(x), Statistics { columns })?;
        Ok(found.map(|state| Ok(Statistics::read(&state))))
    })
}

/// The same of the rows of all ranks, on each. A collective call; a rank may have no rows.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::column_statistics_over;
/// use outcore_core::{Team, ThreadRanks};
/// use std::sync::Arc;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let statistics = column_statistics_over(&session, x.into(), &alone)?.run()?;
/// assert_eq!((statistics.count, statistics.mean), (3, vec![3.0, 4.0]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`fold_over`](crate::pass::fold_over).
pub fn column_statistics_over(
    session: &Session,
    x: Operand,
    team: &Team,
) -> Result<Job<ColumnStatistics>> {
    let shape = [x.rows(), x.cols()];
    AllRows::of(team, shape, x.real(), "column statistics")?;
    let own = team.agree(column_statistics(session, x))?;
    let bytes = Statistics::merge_bytes(shape[1]);
    Ok(own.over(team, bytes, Statistics::over))
}

/// Statistics of columns in one piece: how many rows there were, and the mean, squared deviation,
/// minimum and maximum of each column.
pub(super) struct Statistics {
    columns: usize,
}

impl Statistics {
    /// What a merge over ranks holds.
    pub(super) fn merge_bytes(columns: u64) -> u64 {
        16 * (1 + 4 * columns)
    }

    /// Merges those of all ranks.
    pub(super) fn over(found: Result<ColumnStatistics>, team: &Team) -> Result<ColumnStatistics> {
        let state = found.map(|found| {
            let mut state = vec![0.0; 1 + 4 * found.mean.len()];
            Statistics::write(&found, &mut state);
            state
        });
        let state = team.all_reduce(state, Statistics::merge)?;
        Ok(Statistics::read(&state))
    }

    fn merge(into: &mut [f64], other: &[f64]) {
        let mut all = Statistics::read(into);
        all.merge(&Statistics::read(other))
            .expect("states of one fold have the same columns");
        Statistics::write(&all, into);
    }

    fn read(state: &[f64]) -> ColumnStatistics {
        let (count, parts) = state.split_at(1);
        let columns = parts.len() / 4;
        let part = |number: usize| parts[number * columns..(number + 1) * columns].to_vec();
        ColumnStatistics {
            count: count[0] as u64,
            mean: part(0),
            m2: part(1),
            min: part(2),
            max: part(3),
        }
    }

    fn write(found: &ColumnStatistics, state: &mut [f64]) {
        state[0] = found.count as f64;
        let columns = found.mean.len();
        for (number, part) in [&found.mean, &found.m2, &found.min, &found.max]
            .into_iter()
            .enumerate()
        {
            state[1 + number * columns..][..columns].copy_from_slice(part);
        }
    }
}

impl<T: Real> Fold<T> for Statistics {
    type Element = f64;

    fn elements(&self) -> usize {
        1 + 4 * self.columns
    }

    fn start(&self, state: &mut [f64]) {
        Statistics::write(&ColumnStatistics::new(self.columns), state);
    }

    fn dense(&self, state: &mut [f64], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        let mut found = Statistics::read(state);
        found.update(rows)?;
        Statistics::write(&found, state);
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        Statistics::merge(into, other);
    }
}

/// The statistics of each row, from whole rows.
fn separate_statistics(session: &Session, x: Operand) -> Result<Job<ColumnStatistics>> {
    let count = x.cols();
    with_real!(x.real()?, T => {
        let found = map::<T, _>(session, "column statistics", &Rows::Dense(x), RowStatistics)?;
        Ok(found.map(move |rows| {
            let part = |of: fn(&Summary) -> f64| rows.iter().map(of).collect();
            Ok(ColumnStatistics { count, mean: part(|row| row.mean), m2: part(|row| row.m2), min: part(|row| row.min), max: part(|row| row.max) })
        }))
    })
}

struct RowStatistics;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Summary {
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl<T: Real> Map<T> for RowStatistics {
    type Element = Summary;

    fn dense(&self, into: &mut [Summary], rows: MatRef<'_, T>) -> Result<()> {
        let mut found = ColumnStatistics::new(rows.nrows());
        found.update(rows.transpose())?;
        for (row, into) in into.iter_mut().enumerate() {
            *into = Summary {
                mean: found.mean[row],
                m2: found.m2[row],
                min: found.min[row],
                max: found.max[row],
            };
        }
        Ok(())
    }

    fn merge(&self, into: &mut Summary, other: &Summary) {
        *into = *other;
    }
}

/// Whether rows of x would be short pieces of its file, where whole columns fit.
fn better_turned(session: &Session, x: &Operand) -> bool {
    matches!(x, Operand::Stored(array) if array.is_cut_by_columns(MemorySplit::new(session).panel_bytes()))
}
