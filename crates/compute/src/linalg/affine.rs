//! y = (x - before) W + after, row by row: what a transform of dense rows and its inverse are.
//!
//! Shapes: x is n x d, W d x k, y n x k. Cost: reads x, writes y, 2ndk flops; W stays in memory.

use std::sync::atomic::Ordering;

use outcore_core::{Error, Job, Result, Session, with_real};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatMut, MatRef, Real, gemm_scratch_bytes, view, view_mut};
use outcore_matrix::{Array, Operand, Output};

use super::gemm::in_calls;
use crate::pass::{Cost, RowMap, TaskContext, map_into};

/// An affine map.
#[derive(Clone, Debug)]
pub struct Affine {
    /// Taken off each row of x first, d; nothing when empty.
    pub before: Vec<f64>,
    /// d x k, row after row.
    pub matrix: Vec<f64>,
    /// Columns of `matrix`.
    pub columns: u64,
    /// Added to each row of y, k; nothing when empty.
    pub after: Vec<f64>,
}

/// Applies an affine map to the rows of x in one pass. The result has the type that x is
/// computed in.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Affine, affine};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let map = Affine { before: vec![3.0, 4.0], matrix: vec![1.0, 1.0], columns: 1, after: vec![0.5] };
/// let y = affine(&session, x.into(), map, Output::Scratch)?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [-3.5, 0.5, 4.5]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::OverBudget`]; what keeps the output from being made.
pub fn affine(session: &Session, x: Operand, map: Affine, out: Output) -> Result<Job<Array>> {
    let (d, k) = (x.cols(), map.columns);
    let fits = map.matrix.len() as u64 == d * k
        && [0, d].contains(&(map.before.len() as u64))
        && [0, k].contains(&(map.after.len() as u64));
    if !fits {
        let (name, taken) = (x.name(), map.matrix.len() as u64 / k.max(1));
        return Err(Error::shape(format!(
            "{name} has {d} columns, the map takes {taken} and gives {k}"
        )));
    }
    let real = x.real()?;
    with_real!(real, T => {
        let matrix: Vec<T> = map.matrix.iter().map(|&value| T::of(value)).collect();
        let Affine { before, after, .. } = map;
        let map = Prepared { features: d as usize, width: k as usize, matrix, before, after, blas: session.blas().clone() };
        map_into::<T, _>(session, "affine map", &x.into(), map, out)
    })
}

struct Prepared<T> {
    features: usize,
    width: usize,
    matrix: Vec<T>,
    before: Vec<f64>,
    after: Vec<f64>,
    blas: Blas,
}

impl<T: Real> RowMap<T> for Prepared<T> {
    type Element = T;

    fn width(&self) -> u64 {
        self.width as u64
    }

    fn held_bytes(&self) -> u64 {
        (self.matrix.len() * size_of::<T>() + 8 * (self.features + self.width)) as u64
    }

    fn cost(&self, rows: usize, entries: usize, _by_rows: bool) -> Cost {
        Cost {
            flops: kernels::gemm_flops(rows, self.width, self.features),
            scratch: if self.before.is_empty() {
                0
            } else {
                entries * size_of::<T>()
            },
            held: gemm_scratch_bytes::<T>(rows, self.width, self.features, &self.blas),
        }
    }

    fn dense(&self, mut y: MatMut<'_, T>, x: MatRef<'_, T>, work: TaskContext<'_>) -> Result<()> {
        let (rows, d, k) = (x.nrows(), self.features, self.width);
        let x = if self.before.is_empty() || rows * d == 0 {
            x
        } else {
            let centered = &mut bytemuck::cast_slice_mut::<u8, T>(work.scratch)[..rows * d];
            kernels::center_into(view_mut(centered, rows, d, d, 1)?, x, &self.before)?;
            view(centered, rows, d, d, 1)?
        };
        for (column, &after) in self.after.iter().enumerate() {
            kernels::fill(y.as_mut().subcols_mut(column, 1), T::of(after));
        }
        let beta = if self.after.is_empty() {
            T::ZERO
        } else {
            T::ONE
        };
        let stop = || work.cancelled.load(Ordering::Relaxed);
        in_calls(
            y,
            T::ONE,
            x,
            view(&self.matrix, d, k, k, 1)?,
            beta,
            &self.blas,
            stop,
        )
    }
}
