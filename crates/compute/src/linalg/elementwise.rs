//! y = alpha x + beta y, and scaling: one pass, in place.
//!
//! Shapes: x and y are m x n. Cost: reads both, writes y; three operations an element. Blocks of a
//! few rows or columns, whichever are contiguous in y, pass by, and none waits for another.

use std::sync::atomic::Ordering;

use outcore_core::panels::panels;
use outcore_core::{Error, Job, MemorySplit, RealType, Result, Session, with_real};
use outcore_engine::{Plan, Task, go_on};
use outcore_kernels as kernels;
use outcore_kernels::Real;
use outcore_matrix::{Array, Operand, Output};

use super::common_real;

/// Scalars of a sum.
#[derive(Clone, Copy, Debug)]
pub struct Axpby {
    /// Factor of x.
    pub alpha: f64,
    /// Factor of y.
    pub beta: f64,
}

impl Default for Axpby {
    fn default() -> Axpby {
        Axpby {
            alpha: 1.0,
            beta: 1.0,
        }
    }
}

/// y = alpha x + beta y, in place. With beta 0, y is only written.
///
/// Shapes: x and y are m x n. Cost: reads x and y, writes y, 3mn flops.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Axpby, axpby};
///
/// let y = Array::temporary(&session, DType::F32, &[3, 2], Order::Row)?;
/// y.copy_from_slice(&[1.0f32; 6])?;
/// axpby(&session, (&x).into(), &y, Axpby { alpha: 2.0, beta: -1.0 })?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`], [`Error::OverBudget`]; [`Error::Value`] when x and y share
/// bytes.
pub fn axpby(session: &Session, x: Operand, y: &Array, scalars: Axpby) -> Result<Job<Array>> {
    let real = common_real("axpby", &[&x, &Operand::from(y)])?;
    check_written("axpby", y)?;
    if (x.rows(), x.cols()) != (y.rows(), y.cols()) {
        return Err(Error::shape(format!(
            "axpby: {} is {} x {}, {} is {} x {}",
            x.name(),
            x.rows(),
            x.cols(),
            y.name(),
            y.rows(),
            y.cols()
        )));
    }
    Output::InPlace(y.clone()).check_distinct(&[&x])?;
    with_real!(real, T => in_place::<T>(session, "axpby", Some(&x), y, scalars))
}

/// x = alpha x, in place.
///
/// Cost: reads and writes x.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::scale;
///
/// scale(&session, &x, 0.5)?.run()?;
/// assert_eq!(x.to_vec::<f32>()?, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`]; what keeps x from being written.
pub fn scale(session: &Session, x: &Array, alpha: f64) -> Result<Job<Array>> {
    let real = check_written("scale", x)?;
    with_real!(real, T => in_place::<T>(session, "scale", None, x, Axpby { alpha: 0.0, beta: alpha }))
}

/// What is changed in place is of a type that is computed with as it is.
fn check_written(what: &str, y: &Array) -> Result<RealType> {
    RealType::try_from(y.dtype()).map_err(|reason| Error::DType {
        what: format!("{what}: {}: {reason}", y.name()),
    })
}

fn in_place<T: Real>(
    session: &Session,
    name: &'static str,
    x: Option<&Operand>,
    y: &Array,
    scalars: Axpby,
) -> Result<Job<Array>> {
    let element = size_of::<T>() as u64;
    let (alpha, beta) = (T::of(scalars.alpha), T::of(scalars.beta));
    let mut plan = Plan::new(name);
    let target =
        Output::InPlace(y.clone()).target(session, y.dtype(), &y.shape(), y.order(), &mut plan)?;
    let extent = plan.extent(&target.extent);
    let other = x.map(|x| (x.extent(&mut plan), x.layout()));
    let share = MemorySplit::new(session).copied_panel_bytes();
    let by_rows = y.layout().by_rows();
    let (long, short) = if by_rows {
        (y.rows(), y.cols())
    } else {
        (y.cols(), y.rows())
    };
    for outer in panels(long, short * element, share) {
        go_on()?;
        let (rows, cols) = if by_rows {
            (outer, 0..short)
        } else {
            (0..short, outer)
        };
        let y_tile = y.layout().tile(extent, rows.clone(), cols.clone());
        let x_tile = other.map(|(extent, layout)| layout.tile(extent, rows, cols));
        let task = Task::new(name).flops(3 * y_tile.region.bytes() / element);
        let task = if beta == T::ZERO {
            task.write(y_tile.region)
        } else {
            task.update(y_tile.region)
        };
        let task = x_tile
            .map_or_else(Vec::new, |tile| vec![tile.region])
            .into_iter()
            .fold(task, Task::read);
        plan.task(task.run(move |cx| {
            // A row may be longer than a panel.
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let (y_block, x_block) = cx.blocks.split_at_mut(1);
            let out = y_tile.of_mut::<T>(&mut y_block[0])?;
            match x_tile {
                Some(tile) => Ok(kernels::axpby_until(
                    out,
                    alpha,
                    tile.of::<T>(&x_block[0])?,
                    beta,
                    &stop,
                )?),
                None => {
                    kernels::scale_until(out, beta, &stop);
                    Ok(())
                }
            }
        }));
    }
    plan.bound(
        y.nbytes() * if beta == T::ZERO { 1 } else { 2 }
            + x.filter(|x| x.is_stored()).map_or(0, Operand::bytes),
    );
    target.job(session, vec![plan])
}
