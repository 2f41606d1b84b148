//! A fold of your own: how many elements of each column of a matrix, dense or sparse, are in a bin.
//!
//! `cargo run --release -p outcore --example histogram -- X.npy LOW HIGH`

use outcore::kernels::{Lines, MatRef, Real};
use outcore::pass::{Fold, Rows, fold};
use outcore::{Array, Operand, Result, Session, Settings};

/// Counts for each column; the zeros of sparse rows that are not stored are not counted.
pub(crate) struct Histogram<const BINS: usize> {
    pub(crate) columns: usize,
    pub(crate) range: std::ops::Range<f64>,
}

impl<const BINS: usize> Histogram<BINS> {
    fn count(&self, state: &mut [u64], column: usize, value: f64) {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        if (0.0..1.0).contains(&part) {
            state[column * BINS + (part * BINS as f64) as usize] += 1;
        }
    }
}

impl<T: Real, const BINS: usize> Fold<T> for Histogram<BINS> {
    type Element = u64;
    fn elements(&self) -> usize {
        self.columns * BINS
    }

    fn dense(&self, state: &mut [u64], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        for column in 0..self.columns {
            (0..rows.nrows()).for_each(|row| self.count(state, column, rows[(row, column)].f64()));
        }
        Ok(())
    }

    fn sparse(&self, state: &mut [u64], _first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|_, row| row.each(|column, x| self.count(state, column, x.f64())));
        Ok(())
    }

    fn merge(&self, into: &mut [u64], other: &[u64]) {
        (0..into.len()).for_each(|bin| into[bin] += other[bin]);
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, low, high] = words.try_into().map_err(|_| "X.npy LOW HIGH")?;
    let session = Session::new(Settings::default())?;
    let x: Operand = Array::open(&session, path)?.into();
    let histogram = Histogram::<10> {
        columns: x.cols() as usize,
        range: low.parse()?..high.parse()?,
    };
    let counts = fold::<f32, _>(&session, "histogram", &Rows::Dense(x), histogram)?.run()?;
    counts.chunks(10).for_each(|column| println!("{column:?}"));
    Ok(())
}
