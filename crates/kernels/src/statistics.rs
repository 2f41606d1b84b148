//! Count, mean, variance and range of every column in one pass, and the merge of two such
//! summaries.
//!
//! Blocks that fit the cache are read twice (for the mean, then for the squared deviations) and
//! merged by the formula of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm
//! for Computing Sample Variances" (1979), which loses no precision if the mean is large compared
//! to the deviation. All accumulators are f64.
#![forbid(unsafe_code)]

use crate::view::row_slice;
use crate::{Error, Real};
use faer::MatRef;

/// Rows and columns of a block: 64 x 512 f32 are 128 KiB, half of a small second-level cache.
const BLOCK_ROWS: usize = 64;
const BLOCK_COLUMNS: usize = 512;

/// Summary of the columns of a matrix after some of its rows. A NaN in a column makes its numbers
/// NaN.
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
    /// An empty summary of `columns` columns. Holds 32 bytes a column.
    pub fn new(columns: usize) -> Self {
        Self {
            count: 0,
            mean: vec![0.0; columns],
            m2: vec![0.0; columns],
            min: vec![f64::INFINITY; columns],
            max: vec![f64::NEG_INFINITY; columns],
        }
    }

    /// Adds the rows of `x`.
    ///
    /// Shapes: x is rows x columns, any strides. Cost: reads x once from memory (a second time from
    /// cache); 16 KiB of stack.
    ///
    /// # Errors
    /// [`Error::Shape`] when x has another number of columns.
    ///
    /// Determinism: the bits depend on how the rows were split into calls, not on the CPU.
    pub fn update<T: Real>(&mut self, x: MatRef<'_, T>) -> Result<(), Error> {
        if x.ncols() != self.mean.len() {
            return Err(Error::shape(
                "ColumnStatistics",
                &[("columns", &self.mean.len()), ("the rows", &x.shape())],
            ));
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

    /// The summary of both sets of rows. `a.merge(b)` and `b.merge(a)` may differ in the last bit:
    /// merge in a fixed order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the numbers of columns differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), Error> {
        if other.mean.len() != self.mean.len() {
            let (left, right) = (self.mean.len(), other.mean.len());
            return Err(Error::shape(
                "ColumnStatistics",
                &[("columns", &left), ("the other's columns", &right)],
            ));
        }
        for j in 0..self.mean.len() {
            self.merge_column(
                j,
                other.count,
                other.mean[j],
                other.m2[j],
                (other.min[j], other.max[j]),
            );
        }
        self.count += other.count;
        Ok(())
    }

    /// Appends columns, of which the same number of rows has been seen.
    pub fn append(&mut self, other: &Self) {
        self.mean.extend(&other.mean);
        self.m2.extend(&other.m2);
        self.min.extend(&other.min);
        self.max.extend(&other.max);
    }

    /// Variance of column j with `ddof` degrees of freedom subtracted (0: population, 1: sample);
    /// NaN after too few rows.
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
        let (mut min, mut max) = (
            [T::of(f64::INFINITY); BLOCK_COLUMNS],
            [T::of(f64::NEG_INFINITY); BLOCK_COLUMNS],
        );
        let mean = &mut mean[..columns];
        fold_columns(
            mean,
            x,
            #[inline(always)]
            |sum, x: T, _| sum + x.f64(),
        );
        mean.iter_mut().for_each(|mean| *mean /= x.nrows() as f64);
        let mean = &*mean;
        fold_columns(
            &mut m2[..columns],
            x,
            #[inline(always)]
            |sum, x: T, j| {
                let deviation = x.f64() - mean[j];
                sum + deviation * deviation
            },
        );
        fold_columns(
            &mut min[..columns],
            x,
            #[inline(always)]
            |best, x: T, _| if x < best { x } else { best },
        );
        fold_columns(
            &mut max[..columns],
            x,
            #[inline(always)]
            |best, x: T, _| if x > best { x } else { best },
        );
        for j in 0..columns {
            // Comparisons with NaN are false, so the extrema skipped it; the squares did not.
            let nan = m2[j].is_nan() && (0..x.nrows()).any(|i| x[(i, j)].f64().is_nan());
            let range = if nan {
                (f64::NAN, f64::NAN)
            } else {
                (min[j].f64(), max[j].f64())
            };
            self.merge_column(left + j, x.nrows() as u64, mean[j], m2[j], range);
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
        self.min[j] = if min < self.min[j] || min.is_nan() {
            min
        } else {
            self.min[j]
        };
        self.max[j] = if max > self.max[j] || max.is_nan() {
            max
        } else {
            self.max[j]
        };
    }
}

/// `out[j] = f(out[j], x[i, j], j)` for each row in turn, along the lines in which `x` lies.
#[inline(always)]
fn fold_columns<T: Real, U: Real>(
    out: &mut [U],
    x: MatRef<'_, T>,
    f: impl Fn(U, T, usize) -> U + Copy,
) {
    let (rows, cols) = x.shape();
    if x.row_stride() == 1 && x.col_stride() != 1 {
        return fold_lines(out, x.transpose(), f);
    }
    let mut i = 0;
    // Four rows a pass: the accumulators are loaded and stored a quarter as often.
    while i + 4 <= rows {
        let lines = (
            row_slice(x, i),
            row_slice(x, i + 1),
            row_slice(x, i + 2),
            row_slice(x, i + 3),
        );
        let (Some(a), Some(b), Some(c), Some(d)) = lines else {
            break;
        };
        for (j, ((((out, &a), &b), &c), &d)) in
            out.iter_mut().zip(a).zip(b).zip(c).zip(d).enumerate()
        {
            *out = f(f(f(f(*out, a, j), b, j), c, j), d, j);
        }
        i += 4;
    }
    for i in i..rows {
        match row_slice(x, i) {
            Some(line) => out
                .iter_mut()
                .zip(line)
                .enumerate()
                .for_each(|(j, (out, &x))| *out = f(*out, x, j)),
            None => (0..cols).for_each(|j| out[j] = f(out[j], x[(i, j)], j)),
        }
    }
}

/// As `down`, if each column is contiguous: eight columns advance together, to hide the latency of
/// additions.
#[inline(always)]
fn fold_lines<T: Real, U: Real>(
    out: &mut [U],
    columns: MatRef<'_, T>,
    f: impl Fn(U, T, usize) -> U + Copy,
) {
    const TOGETHER: usize = 8;
    let mut first = 0;
    while first + TOGETHER <= out.len() {
        let lines: [&[T]; TOGETHER] =
            std::array::from_fn(|lane| row_slice(columns, first + lane).unwrap_or_default());
        let mut state: [U; TOGETHER] = std::array::from_fn(|lane| out[first + lane]);
        let lines = lines.map(|line| &line[..columns.ncols()]);
        for i in 0..columns.ncols() {
            for (lane, (state, line)) in state.iter_mut().zip(lines).enumerate() {
                *state = f(*state, line[i], first + lane);
            }
        }
        out[first..first + TOGETHER].copy_from_slice(&state);
        first += TOGETHER;
    }
    for (j, out) in out.iter_mut().enumerate().skip(first) {
        row_slice(columns, j)
            .into_iter()
            .flatten()
            .for_each(|&x| *out = f(*out, x, j));
    }
}
