//! A fold of your own: how many elements of each column fall between two numbers, of a matrix on
//! SSD, dense or sparse.
//!
//! `cargo run --release -p outcore --example histogram -- X.npy LOW HIGH`

use outcore::pass::{Fold, Rows, fold};
use outcore::{
    Array, Operand, Result, Session, Settings, kernels::Lines, kernels::MatRef, kernels::Real,
};

/// Counts for each column; the zeros of sparse rows that are not stored are not counted.
pub(crate) struct Histogram {
    pub(crate) columns: usize,
    pub(crate) bins: usize,
    pub(crate) range: std::ops::Range<f64>,
}

impl Histogram {
    fn count(&self, state: &mut [u64], column: usize, value: f64) {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        if (0.0..1.0).contains(&part) {
            state[column * self.bins + (part * self.bins as f64) as usize] += 1;
        }
    }
}

impl<T: Real> Fold<T> for Histogram {
    type Element = u64;

    fn elements(&self) -> usize {
        self.columns * self.bins
    }

    fn dense(&self, state: &mut [u64], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        for row in 0..rows.nrows() {
            (0..self.columns)
                .for_each(|column| self.count(state, column, rows[(row, column)].f64()));
        }
        Ok(())
    }

    fn sparse(&self, state: &mut [u64], _first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|_, entries| {
            entries.each(|column, value| self.count(state, column, value.f64()))
        });
        Ok(())
    }

    fn merge(&self, into: &mut [u64], other: &[u64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}

#[allow(dead_code, reason = "tests use the fold alone")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let [path, low, high] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "X.npy LOW HIGH")?;
    let session = Session::new(Settings::default())?;
    let x: Operand = Array::open(&session, path)?.into();
    let histogram = Histogram {
        columns: x.cols() as usize,
        bins: 10,
        range: low.parse()?..high.parse()?,
    };
    let counts = fold::<f32, _>(&session, "histogram", &Rows::Dense(x), histogram)?.run()?;
    counts.chunks(10).for_each(|column| println!("{column:?}"));
    Ok(())
}
