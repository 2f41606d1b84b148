//! Distances of rows to centres: what `transform` is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_engine::{Plan, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatRef, Real, gemm_scratch_bytes, view, view_mut};

use super::block::part_rows;
use crate::data::array::{Array, Operand, Output, Tile, panels_that_fit};
use crate::data::format::Order;
use crate::data::format::with_real;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::{PLAN_THREADS, Session};

/// The distance of each row of x to each of some centres, k x d: n x k, of the element type of x. Computed in f64.
///
/// Cost: reads x, writes the result, 2ndk flops; the centres stay in memory.
///
/// # Errors
/// [`Error::Shape`], [`Error::OverBudget`]; what keeps the output from being made.
pub fn distances(session: &Session, x: Operand, centers: Vec<f64>, out: Output) -> Result<Job<Array>> {
    if x.cols() == 0 || centers.is_empty() || !centers.len().is_multiple_of(x.cols() as usize) {
        return Err(Error::shape(format!("{} has {} columns, the centres {} elements", x.name(), x.cols(), centers.len())));
    }
    with_real!(x.dtype(), T => distances_as::<T>(session, x, centers, out))
}

/// Centres about their mean, so that no digits are lost far from zero.
struct Centers {
    values: Vec<f64>,
    squares: Vec<f64>,
    shift: Vec<f64>,
}

fn distances_as<T: Real>(session: &Session, x: Operand, mut values: Vec<f64>, out: Output) -> Result<Job<Array>> {
    let (n, d, element) = (x.rows(), x.cols(), size_of::<T>() as u64);
    let k = values.len() as u64 / d;
    out.check_distinct(&[&x])?;
    let mut plan = Plan::new("distances");
    let target = out.target(session, x.dtype(), &[n, k], Order::Row, &mut plan)?;
    let (into, y) = (plan.extent(&target.extent), target.array.layout());
    let (extent, layout) = (x.extent(&mut plan), x.layout());
    let width = d as usize;
    let shift: Vec<f64> = (0..width).map(|j| values.iter().skip(j).step_by(width).sum::<f64>() / k as f64).collect();
    values.iter_mut().zip(shift.iter().cycle()).for_each(|(value, shift)| *value -= shift);
    let squares = values.chunks(width).map(|center| center.iter().map(|x| x * x).sum()).collect();
    let centers = Arc::new(Centers { values, squares, shift });
    plan.hold(16 * d * (k + 1));
    plan.bound(target.array.nbytes() + if x.is_stored() { x.bytes() } else { 0 });
    let share = (session.memory_bytes() / 2).saturating_sub(16 * d * k) / (3 * PLAN_THREADS);
    for rows in panels_that_fit(n, (d + k) * element, share, |rows| x.frame_bytes(rows)) {
        let (from, to) = (layout.tile(extent, rows.clone(), 0..d, element), y.tile(into, rows, 0..k, element));
        plan.task(task::<T>(from, to, Arc::clone(&centers), session.blas().clone()));
    }
    target.job(session, vec![plan])
}

fn task<T: Real>(x: Tile, y: Tile, centers: Arc<Centers>, blas: Blas) -> Task {
    let (d, k, part) = (x.cols, y.cols, part_rows::<f64>(x.cols));
    let rows = x.rows.min(part);
    let task = Task::new("distances").flops(kernels::gemm_flops(x.rows, k, d)).scratch(8 * rows * (d + k + 1));
    task.held(gemm_scratch_bytes::<f64>(rows, k, d, &blas)).read(x.region).write(y.region).run(move |cx| {
        let [x_block, y_block] = &mut *cx.blocks else { unreachable!("two were declared") };
        let (from, mut to) = (x.of::<T>(x_block)?, y.of_mut::<T>(y_block)?);
        for start in (0..x.rows).step_by(part) {
            if cx.cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled.into());
            }
            let count = part.min(x.rows - start);
            let products = products(from.subrows(start, count), &centers, bytemuck::cast_slice_mut(cx.scratch), &blas)?;
            for (row, (products, square)) in products.enumerate() {
                for (column, (product, center)) in products.iter().zip(&centers.squares).enumerate() {
                    to[(start + row, column)] = T::of((square + center + product).max(0.0).sqrt());
                }
            }
        }
        Ok(())
    })
}

/// -2 x.c for all centres, and |x|^2, of each row.
fn products<'a, T: Real>(
    x: MatRef<'_, T>,
    centers: &Centers,
    scratch: &'a mut [f64],
    blas: &Blas,
) -> Result<impl Iterator<Item = (&'a [f64], f64)> + use<'a, T>> {
    let (n, d, k) = (x.nrows(), x.ncols(), centers.squares.len());
    let (rows, rest) = scratch.split_at_mut(n * d);
    let (products, rest) = rest.split_at_mut(n * k);
    let squares = &mut rest[..n];
    kernels::center_into(view_mut(rows, n, d, d, 1)?, x, &centers.shift)?;
    let rows = view(rows, n, d, d, 1)?;
    kernels::row_squares(squares, rows)?;
    kernels::gemm(view_mut(products, n, k, k, 1)?, -2.0, rows, view(&centers.values, k, d, d, 1)?.transpose(), 0.0, blas)?;
    Ok(products.chunks_exact(k).zip(squares.iter().copied()))
}
