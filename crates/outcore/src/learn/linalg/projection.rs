//! Y = X R for a sparse R in memory: random projection, and any other sparse map.
//!
//! Shapes: X is m x n, sparse with rows that lie together or dense; R is n x k, in CSR, and stays in memory; Y is m x k, dense. Cost: reads
//! X, writes Y; two operations for each entry of X and each entry of the row of R that it meets. Source: Li, Hastie and Church, "Very
//! Sparse Random Projections" (KDD 2006), for what R may look like.

use outcore_engine::{Plan, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Real, csrmm_flops};

use super::csrmm::by_rows;
use crate::data::array::{Array, Output, panels_that_fit};
use crate::data::format::with_real;
use crate::data::format::{Compressed, Order};
use crate::data::sparse::{Sparse, with_csr, with_lines};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::pass::Rows;
use crate::session::{PLAN_THREADS, Session};

/// Y = X R.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`]; [`Error::Value`] for an X in CSC or an R that is not in memory in CSR; [`Error::OverBudget`]; what
/// keeps the output from being made.
pub fn project(session: &Session, x: Rows, r: &Sparse, out: Output) -> Result<Job<Array>> {
    let (dtype, name) = match &x {
        Rows::Sparse(x) => (x.dtype(), x.name()),
        Rows::Dense(x) => (x.dtype(), x.name()),
    };
    if dtype != r.dtype() {
        return Err(Error::DType { what: format!("{name} is {dtype}, the map {}; convert one of them", r.dtype()) });
    }
    let [rows, cols] = match &x {
        Rows::Sparse(x) => x.shape(),
        Rows::Dense(x) => [x.rows(), x.cols()],
    };
    if cols != r.rows() {
        return Err(Error::shape(format!("{name} has {cols} columns, the map takes {}", r.rows())));
    }
    if r.format() != Compressed::Rows || r.is_stored() {
        return Err(Error::value("the map must be a matrix in memory in CSR"));
    }
    if let Rows::Sparse(x) = &x {
        x.check_rows_together()?;
    }
    if let Rows::Dense(x) = &x {
        out.check_distinct(&[x])?;
    }
    let mut plan = Plan::new("projection");
    let target = out.target(session, dtype, &[rows, r.cols()], Order::Row, &mut plan)?;
    if target.array.order() != Order::Row && r.cols() > 1 {
        return Err(Error::value(format!("{}: a projection is written by rows", target.array.name())));
    }
    plan.bound(x.stored_bytes() + target.array.nbytes());
    let share = session.memory_bytes() / (3 * (PLAN_THREADS + 1));
    let (into, layout, element) = (plan.extent(&target.extent), target.array.layout(), dtype.bytes());
    let density = r.nonzeros() as f64 / r.rows().max(1) as f64;
    let y_of = |rows| layout.tile(into, rows, 0..r.cols(), element);
    let whole = r.whole();
    let (map, map_regions) = (r.blocks(&whole), r.regions(&mut plan, &whole));
    with_real!(dtype, T => match &x {
        Rows::Sparse(x) => for piece in x.pieces(share, |lines| lines * r.cols() * element) {
            let (y, lines, map, fresh) = (y_of(piece.lines()), x.blocks(&piece), map.clone(), !piece.continues);
            let task = Task::new("project").flops(csrmm_flops(piece.entries() as usize, density.ceil() as usize));
            let regions = x.regions(&mut plan, &piece);
            let task = regions.into_iter().chain(map_regions.iter().copied()).fold(task, Task::read);
            let task = if fresh { task.write(y.region) } else { task.update(y.region) };
            plan.task(task.run(move |cx| {
                let (read, rest) = cx.blocks.split_at_mut(lines.count());
                let (map_blocks, written) = rest.split_at_mut(map.count());
                let mut y = y.of_mut::<T>(&mut written[0])?;
                if fresh {
                    kernels::fill(y.as_mut(), T::ZERO);
                }
                with_csr!(map, map_blocks, T, r => {
                    with_lines!(lines, read, T, x => kernels::sparse_times_sparse(y.as_mut(), x, r)?);
                });
                Ok(())
            }));
        },
        Rows::Dense(x) => {
            let (extent, x_layout) = (x.extent(&mut plan), x.layout());
            for rows in panels_that_fit(x.rows(), (x.cols() + r.cols()) * element, share, |rows| x.frame_bytes(rows)) {
                let (tile, y, map) = (x_layout.tile(extent, rows.clone(), 0..x.cols(), element), y_of(rows), map.clone());
                let packed = if tile.is_by_rows() { 0 } else { tile.rows * tile.cols * element as usize };
                let task = Task::new("project").flops(csrmm_flops(tile.rows * tile.cols, density.ceil() as usize));
                let task = map_regions.iter().fold(task.read(tile.region), |task, region| task.read(*region));
                plan.task(task.write(y.region).scratch(packed).run(move |cx| {
                    let (read, written) = cx.blocks.split_at_mut(1 + map.count());
                    let x = by_rows::<T>(&tile, &read[0], &mut cx.scratch[..packed])?;
                    let mut y = y.of_mut::<T>(&mut written[0])?;
                    kernels::fill(y.as_mut(), T::ZERO);
                    with_csr!(map, &read[1..], T, r => kernels::dense_times_sparse(y.as_mut(), x, r)?);
                    Ok(())
                }));
            }
        }
    });
    target.job(session, vec![plan])
}
