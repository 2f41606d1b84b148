//! Distances of rows to centres: what `transform` is. |x - c|^2 = |x|^2 - 2 x.c + |c|^2, by one
//! product of a few rows with all centres.
//!
//! Shapes: X is n x d, the centres k x d, the result n x k. Cost: reads X, writes the result; 2ndk
//! flops, k an entry of sparse rows; the centres wait in memory.

use std::sync::atomic::Ordering;

use outcore_core::{Error, Job, Result, Session, with_real};
use outcore_kernels as kernels;
use outcore_kernels::{
    Blas, Lines, MatMut, MatRef, Real, csrmm_flops, gemm_scratch_bytes, view, view_mut,
};
use outcore_matrix::{Array, Output};

use super::block::part_rows;
use crate::linalg::short_piece_bytes;
use crate::pass::{Cost, RowMap, Rows, TaskContext, map_into};

/// The distance of each row of x to each of some centres, k x d: n x k, of the element type of x.
/// Computed in f64 of dense rows; products of sparse ones in the element type of x.
///
/// Cost: reads x, writes the result, 2ndk flops (k an entry of sparse rows); the centres stay in
/// memory.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::kmeans::distances;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let y = distances(&session, x.into(), &[1.0, 2.0, 5.0, 2.0], Output::Scratch)?.run()?;
/// assert_eq!(y.slice(0..1, 0..2)?.to_vec::<f32>()?, [0.0, 4.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`]; [`Error::Value`] for a matrix in CSC; [`Error::OverBudget`]; what keeps the
/// output from being made.
pub fn distances(session: &Session, x: Rows, centers: &[f64], out: Output) -> Result<Job<Array>> {
    x.check_rows_together()?;
    let d = x.width() as usize;
    if d == 0 || centers.is_empty() || !centers.len().is_multiple_of(d) {
        return Err(Error::shape(format!(
            "{} has {d} columns, the centres {} elements",
            x.name(),
            centers.len()
        )));
    }
    let (real, blas) = (x.real()?, session.blas().clone());
    with_real!(real, T => match &x {
        Rows::Dense(_) => map_into::<T, _>(session, "distances", &x, Centered::new(centers, d, blas), out),
        Rows::Sparse(_) => map_into::<T, _>(session, "distances", &x, Across::new(centers, d), out),
    })
}

/// Centres of dense rows, about their mean, so that no digits are lost far from zero.
struct Centered {
    values: Vec<f64>,
    squares: Vec<f64>,
    shift: Vec<f64>,
    blas: Blas,
}

impl Centered {
    fn new(centers: &[f64], d: usize, blas: Blas) -> Centered {
        let k = centers.len() / d;
        let shift: Vec<f64> = (0..d)
            .map(|j| centers.iter().skip(j).step_by(d).sum::<f64>() / k as f64)
            .collect();
        let values: Vec<f64> = centers
            .iter()
            .zip(shift.iter().cycle())
            .map(|(value, shift)| value - shift)
            .collect();
        Centered {
            squares: squares(&values, d),
            values,
            shift,
            blas,
        }
    }

    /// -2 x.c for all centres, and |x|^2, of each row.
    fn products<'a, T: Real>(
        &self,
        x: MatRef<'_, T>,
        scratch: &'a mut [f64],
    ) -> Result<impl Iterator<Item = (&'a [f64], f64)> + use<'a, T>> {
        let (n, d, k) = (x.nrows(), x.ncols(), self.squares.len());
        let (rows, rest) = scratch.split_at_mut(n * d);
        let (products, rest) = rest.split_at_mut(n * k);
        let squares = &mut rest[..n];
        kernels::center_into(view_mut(rows, n, d, d, 1)?, x, &self.shift)?;
        let rows = view(rows, n, d, d, 1)?;
        kernels::row_squares(squares, rows)?;
        let centers = view(&self.values, k, d, d, 1)?.transpose();
        kernels::gemm(
            view_mut(products, n, k, k, 1)?,
            -2.0,
            rows,
            centers,
            0.0,
            &self.blas,
        )?;
        Ok(products.chunks_exact(k).zip(squares.iter().copied()))
    }
}

fn squares(centers: &[f64], d: usize) -> Vec<f64> {
    centers
        .chunks(d)
        .map(|center| center.iter().map(|c| c * c).sum())
        .collect()
}

impl<T: Real> RowMap<T> for Centered {
    type Element = T;

    fn width(&self) -> u64 {
        self.squares.len() as u64
    }

    fn held_bytes(&self) -> u64 {
        8 * (self.values.len() + self.squares.len() + self.shift.len()) as u64
    }

    fn cost(&self, rows: usize, _entries: usize, _by_rows: bool) -> Cost {
        let (d, k) = (self.shift.len(), self.squares.len());
        let part = rows.min(part_rows::<f64>(d));
        Cost {
            flops: kernels::gemm_flops(rows, k, d),
            scratch: 8 * part * (d + k + 1),
            held: gemm_scratch_bytes::<f64>(part, k, d, &self.blas),
        }
    }

    fn dense(&self, mut y: MatMut<'_, T>, x: MatRef<'_, T>, work: TaskContext<'_>) -> Result<()> {
        let (part, scratch) = (
            part_rows::<f64>(x.ncols()),
            bytemuck::cast_slice_mut(work.scratch),
        );
        for start in (0..x.nrows()).step_by(part) {
            if work.cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let count = part.min(x.nrows() - start);
            for (row, (products, square)) in
                self.products(x.subrows(start, count), scratch)?.enumerate()
            {
                for (column, (product, center)) in products.iter().zip(&self.squares).enumerate() {
                    y[(start + row, column)] = T::of((square + center + product).max(0.0).sqrt());
                }
            }
        }
        Ok(())
    }
}

/// Centres of sparse rows, d x k, as products take them.
struct Across<T> {
    values: Vec<T>,
    squares: Vec<f64>,
}

impl<T: Real> Across<T> {
    fn new(centers: &[f64], d: usize) -> Across<T> {
        let k = centers.len() / d;
        Across {
            values: (0..d * k)
                .map(|at| T::of(centers[at % k * d + at / k]))
                .collect(),
            squares: squares(centers, d),
        }
    }
}

impl<T: Real> RowMap<T> for Across<T> {
    type Element = T;

    fn width(&self) -> u64 {
        self.squares.len() as u64
    }

    fn held_bytes(&self) -> u64 {
        (self.values.len() * size_of::<T>() + 8 * self.squares.len()) as u64
    }

    fn cost(&self, _rows: usize, entries: usize, _by_rows: bool) -> Cost {
        Cost {
            flops: csrmm_flops(entries, self.squares.len()),
            ..Cost::default()
        }
    }

    fn dense(&self, _y: MatMut<'_, T>, _x: MatRef<'_, T>, _work: TaskContext<'_>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse_bytes_max(&self) -> u64 {
        short_piece_bytes(self.squares.len() as u64, size_of::<T>() as u64)
    }

    fn needs_whole_rows(&self) -> bool {
        true
    }

    /// The products, and |x|^2.
    fn sparse(
        &self,
        y: MatMut<'_, T>,
        numbers: &mut [f64],
        lines: impl Lines<T>,
        _work: TaskContext<'_>,
    ) -> Result<()> {
        let k = self.squares.len();
        lines.each_line(|line, entries| {
            entries.each(|_, value| numbers[line] += value.f64() * value.f64())
        });
        Ok(kernels::csrmm(
            y,
            T::ONE,
            lines,
            view(&self.values, self.values.len() / k, k, k, 1)?,
            0,
            T::ONE,
        )?)
    }

    fn finish(&self, mut y: MatMut<'_, T>, numbers: &[f64]) {
        for (row, square) in numbers.iter().enumerate() {
            for (column, center) in self.squares.iter().enumerate() {
                y[(row, column)] = T::of(
                    (square + center - 2.0 * y[(row, column)].f64())
                        .max(0.0)
                        .sqrt(),
                );
            }
        }
    }
}
