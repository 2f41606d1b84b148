//! Y = X R for a sparse R in memory: random projection, and any other sparse map.
//!
//! Shapes: X is m x n, sparse with rows that lie together or dense; R is n x k, in CSR, and stays
//! in memory; Y is m x k, dense. Cost: reads X, writes Y; two operations for each entry of X and
//! each entry of the row of R that it meets. Source: Li, Hastie and Church, "Very Sparse Random
//! Projections" (KDD 2006), for what R may look like.

use std::sync::atomic::Ordering;

use outcore_core::{Error, Job, Result, Session, with_real};
use outcore_engine::{Plan, Region};
use outcore_kernels as kernels;
use outcore_kernels::{Lines, MatMut, MatRef, Real, csrmm_flops};
use outcore_matrix::sparse::{PieceBlocks, with_csr};
use outcore_matrix::{Array, Compressed, Output, Sparse};

use super::csrmm::{by_rows, short_piece_bytes};
use super::of_two_types;
use crate::pass::{Cost, RowMap, Rows, TaskContext, map_into};

/// Y = X R.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::project;
///
/// // x = [[1, 2], [3, 4], [5, 6]], a = [[1, 0, 2], [0, 3, 0]]
/// let y = project(&session, Rows::from(&x), &a, Output::Scratch)?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 6.0, 2.0, 3.0, 12.0, 6.0, 5.0, 18.0, 10.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`]; [`Error::Value`] for an X in CSC or an R that is not in
/// memory in CSR; [`Error::OverBudget`]; what keeps the output from being made.
pub fn project(session: &Session, x: Rows, r: &Sparse, out: Output) -> Result<Job<Array>> {
    let (real, name) = (x.real()?, x.name());
    if real != r.real() {
        return Err(of_two_types(
            "project",
            (name, real.into()),
            ("the map", r.dtype()),
        ));
    }
    let cols = x.width();
    x.check_rows_together()?;
    if cols != r.rows() {
        return Err(Error::shape(format!(
            "{name} has {cols} columns, the map takes {}",
            r.rows()
        )));
    }
    if r.format() != Compressed::Rows || r.is_stored() {
        return Err(Error::value("the map must be a matrix in memory in CSR"));
    }
    let density = (r.nonzeros() as f64 / r.rows().max(1) as f64).ceil() as usize;
    with_real!(real, T => map_into::<T, _>(session, "projection", &x, Projection { map: r.blocks(&r.whole()), r: r.clone(), density }, out))
}

struct Projection {
    r: Sparse,
    map: PieceBlocks,
    /// Entries of a row of R, on average.
    density: usize,
}

impl<T: Real> RowMap<T> for Projection {
    type Element = T;

    fn width(&self) -> u64 {
        self.r.cols()
    }

    /// R is memory of the caller's.
    fn held_bytes(&self) -> u64 {
        0
    }

    fn reads(&self, plan: &mut Plan) -> Vec<Region> {
        self.r.regions(plan, &self.map.piece)
    }

    fn cost(&self, _rows: usize, entries: usize, by_rows: bool) -> Cost {
        let packed = if by_rows { 0 } else { entries * size_of::<T>() };
        Cost {
            flops: csrmm_flops(entries, self.density),
            scratch: packed,
            held: 0,
        }
    }

    fn dense(&self, mut y: MatMut<'_, T>, x: MatRef<'_, T>, work: TaskContext<'_>) -> Result<()> {
        let stop = || work.cancelled.load(Ordering::Relaxed);
        let x = by_rows(x, work.scratch, &stop)?;
        kernels::fill(y.as_mut(), T::ZERO);
        let of_row = csrmm_flops(x.ncols(), self.density).max(1);
        let step = (kernels::CALL_FLOPS / of_row).max(1) as usize;
        with_csr!(self.map, work.blocks, T, r => {
            for start in (0..x.nrows()).step_by(step).take_while(|_| !stop()) {
                let count = step.min(x.nrows() - start);
                let y = y.as_mut().subrows_mut(start, count);
                kernels::dense_times_sparse(y, x.subrows(start, count), r)?;
            }
            Ok(())
        })
    }

    fn sparse_bytes_max(&self) -> u64 {
        short_piece_bytes(self.density as u64, size_of::<T>() as u64)
    }

    fn sparse(
        &self,
        y: MatMut<'_, T>,
        _numbers: &mut [f64],
        lines: impl Lines<T>,
        work: TaskContext<'_>,
    ) -> Result<()> {
        with_csr!(self.map, work.blocks, T, r => Ok(kernels::sparse_times_sparse(y, lines, r)?))
    }
}
