//! Numbers about the rows and columns of a sparse matrix in one pass: norms and statistics.
//!
//! What is asked of the lines of A is a map of them, what is asked across them a fold with a state
//! of one element a minor index. Zeros that are not stored count. Two entries of one minor index
//! count as two.
//!
//! Shapes: A is m x n. Cost: reads A; a few operations an entry; a tally a line, or up to eight a
//! minor index. Sources: Welford (1962) for means and variances, Chan, Golub and LeVeque (1979) for
//! their merge.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use outcore_core::{Error, Job, Result, Session, Team, with_real};
use outcore_kernels::{ColumnStatistics, Lines, MatRef, Norm, Real, Squares};
use outcore_matrix::{Compressed, Rows, Sparse};

use super::reduce::Statistics;
use crate::pass::{Fold, Map, fold, map};
use crate::ranks::AllRows;

/// The norm of each row, in f64. The columns' are the rows' of `a.t()`.
///
/// Cost: reads A; 24 bytes a row, eight times that where the lines of A are columns and memory
/// allows.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::sparse_row_norms;
/// use outcore_kernels::Norm;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// assert_eq!(sparse_row_norms(&session, &a, Norm::L1)?.run()?, [3.0, 3.0]);
/// assert_eq!(sparse_row_norms(&session, &a.t(), Norm::L1)?.run()?, [1.0, 3.0, 2.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn sparse_row_norms(session: &Session, a: &Sparse, norm: Norm) -> Result<Job<Vec<f64>>> {
    Ok(match norm {
        Norm::L1 => entries::<Sum>(session, "row norms", a, true)?
            .map(|all| Ok(all.iter().map(|sum| sum.0).collect())),
        Norm::L2 => entries::<Squares>(session, "row norms", a, true)?
            .map(|all| Ok(all.iter().map(Squares::root).collect())),
        Norm::Max => entries::<Largest>(session, "row norms", a, true)?
            .map(|all| Ok(all.iter().map(|most| most.0).collect())),
    })
}

/// Statistics of columns, and how many entries each has.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseStatistics {
    /// Of all elements, zeros included.
    pub columns: ColumnStatistics,
    /// Entries that are stored.
    pub nonzeros: Vec<u64>,
}

/// Count, mean, variance, least and greatest element of each column, in f64, and its entries. Cost:
/// reads A; 40 bytes a column, eight times that where the lines of A are rows and memory allows.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::sparse_column_statistics;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let statistics = sparse_column_statistics(&session, &a)?.run()?;
/// assert_eq!((statistics.columns.mean, statistics.nonzeros), (vec![0.5, 1.5, 1.0], vec![1, 1, 1]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`](outcore_core::Error::OverBudget).
pub fn sparse_column_statistics(session: &Session, a: &Sparse) -> Result<Job<SparseStatistics>> {
    let rows = a.rows();
    Ok(
        entries::<Moments>(session, "column statistics", a, false)?.map(move |all| {
            let nonzeros = all.iter().map(|column| column.count).collect();
            let all: Vec<Moments> = all
                .into_iter()
                .map(|column| column.with_zeros(rows))
                .collect();
            let part = |of: fn(&Moments) -> f64| all.iter().map(of).collect();
            let columns = ColumnStatistics {
                count: rows,
                mean: part(|column| column.mean),
                m2: part(|column| column.m2),
                min: part(|column| column.min),
                max: part(|column| column.max),
            };
            Ok(SparseStatistics { columns, nonzeros })
        }),
    )
}

/// The same of the rows of all ranks, on each. A collective call; a rank may have no rows.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::sparse_column_statistics_over;
/// use outcore_core::{Team, ThreadRanks};
/// use std::sync::Arc;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let statistics = sparse_column_statistics_over(&session, &a, &alone)?.run()?;
/// assert_eq!((statistics.columns.count, statistics.nonzeros), (2, vec![1, 1, 1]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`fold_over`](crate::pass::fold_over).
pub fn sparse_column_statistics_over(
    session: &Session,
    a: &Sparse,
    team: &Team,
) -> Result<Job<SparseStatistics>> {
    AllRows::of(
        team,
        [a.rows(), a.cols()],
        Ok(a.real()),
        "column statistics",
    )?;
    let own = team.agree(sparse_column_statistics(session, a))?;
    let bytes = Statistics::merge_bytes(a.cols()) + 16 * a.cols();
    Ok(own.over(team, bytes, |found, team| {
        let found = team.agree(found)?;
        let columns = Statistics::over(Ok(found.columns), team)?;
        let nonzeros = team.all_reduce(Ok(found.nonzeros), |into, other| {
            into.iter_mut()
                .zip(other)
                .for_each(|(count, other)| *count += other);
        })?;
        Ok(SparseStatistics { columns, nonzeros })
    }))
}

/// What entries come to.
trait Tally: Pod + Default + Send + Sync {
    fn add(&mut self, value: f64);
    fn merge(&mut self, other: &Self);
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Sum(f64);

impl Tally for Sum {
    fn add(&mut self, value: f64) {
        self.0 += value.abs();
    }
    fn merge(&mut self, other: &Sum) {
        self.0 += other.0;
    }
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Largest(f64);

impl Tally for Largest {
    fn add(&mut self, value: f64) {
        // NaN stays.
        self.0 = if value.is_nan() || self.0.is_nan() {
            f64::NAN
        } else {
            self.0.max(value.abs())
        };
    }
    fn merge(&mut self, other: &Largest) {
        self.add(other.0);
    }
}

impl Tally for Squares {
    fn add(&mut self, value: f64) {
        Squares::add(self, value);
    }
    fn merge(&mut self, other: &Squares) {
        Squares::merge(self, other);
    }
}

/// Welford's, of the entries alone.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Moments {
    count: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments {
            count: 0,
            mean: 0.0,
            m2: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }
}

impl Tally for Moments {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.m2 += delta * (value - self.mean);
        self.range(value, value);
    }

    /// Chan, Golub and LeVeque (1979).
    fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        let (here, there, all) = (
            self.count as f64,
            other.count as f64,
            (self.count + other.count) as f64,
        );
        let delta = other.mean - self.mean;
        self.mean += delta * (there / all);
        self.m2 += other.m2 + delta * delta * (here / all) * there;
        self.count += other.count;
        self.range(other.min, other.max);
    }
}

impl Moments {
    fn range(&mut self, min: f64, max: f64) {
        if min.is_nan() || max.is_nan() {
            (self.min, self.max) = (f64::NAN, f64::NAN);
        } else if !self.min.is_nan() {
            (self.min, self.max) = (self.min.min(min), self.max.max(max));
        }
    }

    /// Of `rows` elements, of which those that were not seen are zero.
    fn with_zeros(mut self, rows: u64) -> Moments {
        let zeros = rows.saturating_sub(self.count);
        if zeros > 0 {
            self.merge(&Moments {
                count: zeros,
                mean: 0.0,
                m2: 0.0,
                min: 0.0,
                max: 0.0,
            });
        }
        self
    }
}

/// One tally for each row, or each column.
fn entries<F: Tally>(
    session: &Session,
    name: &'static str,
    a: &Sparse,
    of_rows: bool,
) -> Result<Job<Vec<F>>> {
    let along = of_rows == (a.format() == Compressed::Rows);
    let width = usize::try_from(a.width())
        .map_err(|_| Error::shape(format!("{} minor indices", a.width())))?;
    let lines = Rows::Sparse(a.clone());
    with_real!(a.real(), T => match along {
        true => map::<T, _>(session, name, &lines, OfLines::<F>(PhantomData)),
        false => fold::<T, _>(session, name, &lines, OfMinors::<F>(width, PhantomData)),
    })
}

struct OfLines<F>(PhantomData<F>);

impl<T: Real, F: Tally> Map<T> for OfLines<F> {
    type Element = F;

    fn start(&self) -> F {
        F::default()
    }

    fn dense(&self, _into: &mut [F], _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, into: &mut [F], _first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|line, entries| entries.each(|_, value| into[line].add(value.f64())));
        Ok(())
    }

    fn merge(&self, into: &mut F, other: &F) {
        into.merge(other);
    }
}

struct OfMinors<F>(usize, PhantomData<F>);

impl<T: Real, F: Tally> Fold<T> for OfMinors<F> {
    type Element = F;

    fn elements(&self) -> usize {
        self.0
    }

    fn start(&self, state: &mut [F]) {
        state.fill(F::default());
    }

    fn dense(&self, _state: &mut [F], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, state: &mut [F], _first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|_, entries| entries.each(|minor, value| state[minor].add(value.f64())));
        Ok(())
    }

    fn merge(&self, into: &mut [F], other: &[F]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| into.merge(other));
    }
}
