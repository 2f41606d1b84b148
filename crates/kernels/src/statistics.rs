//! Count, mean, variance and range of every column in one pass, and the merge of two such summaries.
//!
//! Blocks that fit the cache are summed twice (for the mean, then for the squares about it) and merged by the formula of Chan, Golub and
//! LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), which loses nothing when the
//! mean is large against the deviation. All accumulators are f64.
#![forbid(unsafe_code)]

use crate::view::row_slice;
use crate::{Error, Real};
use faer::MatRef;

/// Rows and columns of a block: 64 x 512 f32 are 128 KiB, half of a small second-level cache.
const BLOCK_ROWS: usize = 64;
const BLOCK_COLUMNS: usize = 512;

/// What is known of the columns of a matrix after some of its rows. NaN in a column makes its numbers NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnStatistics {
    /// Rows seen.
    pub count: u64,
    /// Mean of each column; 0 before the first row.
    pub mean: Vec<f64>,
    /// Sum of squared deviations from the mean of each column.
    pub m2: Vec<f64>,
    /// Smallest element of each column; infinity before the first row.
    pub min: Vec<f64>,
    /// Largest element of each column; minus infinity before the first row.
    pub max: Vec<f64>,
}

impl ColumnStatistics {
    /// Nothing seen yet of `columns` columns. Holds 32 bytes a column.
    pub fn new(columns: usize) -> Self {
        Self {
            count: 0,
            mean: vec![0.0; columns],
            m2: vec![0.0; columns],
            min: vec![f64::INFINITY; columns],
            max: vec![f64::NEG_INFINITY; columns],
        }
    }

    /// Takes in the rows of `x`.
    ///
    /// Shapes: x is rows x columns, any strides. Cost: reads x once from memory (a second time from cache); 16 KiB of stack.
    ///
    /// # Errors
    /// [`Error::Shape`] when x has another number of columns.
    ///
    /// Determinism: the bits depend on how the rows were split into calls, not on the CPU.
    pub fn update<T: Real>(&mut self, x: MatRef<'_, T>) -> Result<(), Error> {
        if x.ncols() != self.mean.len() {
            return Err(Error::shape("ColumnStatistics", &[("columns", &self.mean.len()), ("the rows", &x.shape())]));
        }
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || {
                let mut top = 0;
                while top < x.nrows() {
                    let rows = BLOCK_ROWS.min(x.nrows() - top);
                    let mut left = 0;
                    while left < x.ncols() {
                        let columns = BLOCK_COLUMNS.min(x.ncols() - left);
                        self.update_block(x.submatrix(top, left, rows, columns), left);
                        left += columns;
                    }
                    self.count += rows as u64;
                    top += rows;
                }
            },
        );
        Ok(())
    }

    /// The summary of both sets of rows. `a.merge(b)` and `b.merge(a)` may differ in the last bit: merge in a fixed order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the numbers of columns differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), Error> {
        if other.mean.len() != self.mean.len() {
            let (left, right) = (self.mean.len(), other.mean.len());
            return Err(Error::shape("ColumnStatistics", &[("columns", &left), ("the other's columns", &right)]));
        }
        for j in 0..self.mean.len() {
            self.merge_column(j, other.count, other.mean[j], other.m2[j], (other.min[j], other.max[j]));
        }
        self.count += other.count;
        Ok(())
    }

    /// Variance of column j with `ddof` degrees of freedom taken off (0: population, 1: sample); NaN when too few rows were seen.
    pub fn variance(&self, column: usize, ddof: u64) -> f64 {
        match self.count.checked_sub(ddof) {
            None | Some(0) => f64::NAN,
            Some(freedom) => self.m2[column] / freedom as f64,
        }
    }

    #[inline(always)]
    fn update_block<T: Real>(&mut self, x: MatRef<'_, T>, left: usize) {
        let columns = x.ncols();
        let (mut mean, mut m2) = ([0.0; BLOCK_COLUMNS], [0.0; BLOCK_COLUMNS]);
        let (mut min, mut max) = ([f64::INFINITY; BLOCK_COLUMNS], [f64::NEG_INFINITY; BLOCK_COLUMNS]);
        let (mean, m2) = (&mut mean[..columns], &mut m2[..columns]);
        let (min, max) = (&mut min[..columns], &mut max[..columns]);
        walk(
            x,
            #[inline(always)]
            |j, x| {
                mean[j] += x;
                min[j] = if x < min[j] || x.is_nan() { x } else { min[j] };
                max[j] = if x > max[j] || x.is_nan() { x } else { max[j] };
            },
        );
        mean.iter_mut().for_each(|mean| *mean /= x.nrows() as f64);
        walk(
            x,
            #[inline(always)]
            |j, x| m2[j] += (x - mean[j]) * (x - mean[j]),
        );
        for j in 0..columns {
            self.merge_column(left + j, x.nrows() as u64, mean[j], m2[j], (min[j], max[j]));
        }
    }

    #[inline(always)]
    fn merge_column(&mut self, j: usize, count: u64, mean: f64, m2: f64, (min, max): (f64, f64)) {
        if count == 0 {
            return;
        }
        let (mine, theirs) = (self.count as f64, count as f64);
        let delta = mean - self.mean[j];
        let share = theirs / (mine + theirs);
        self.mean[j] += delta * share;
        self.m2[j] += m2 + delta * delta * mine * share;
        self.min[j] = if min < self.min[j] || min.is_nan() { min } else { self.min[j] };
        self.max[j] = if max > self.max[j] || max.is_nan() { max } else { self.max[j] };
    }
}

/// f(column, element) along the rows where these lie in memory one after the other, along the columns otherwise.
#[inline(always)]
fn walk<T: Real>(x: MatRef<'_, T>, mut f: impl FnMut(usize, f64)) {
    if x.row_stride() == 1 && x.col_stride() != 1 {
        let columns = x.transpose();
        for j in 0..x.ncols() {
            row_slice(columns, j).into_iter().flatten().for_each(|x| f(j, x.f64()));
        }
        return;
    }
    for i in 0..x.nrows() {
        match row_slice(x, i) {
            Some(line) => line.iter().enumerate().for_each(|(j, x)| f(j, x.f64())),
            None => (0..x.ncols()).for_each(|j| f(j, x[(i, j)].f64())),
        }
    }
}
