//! Some rows of a matrix: what centres are chosen from.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::Real;

use crate::data::array::Operand;
use crate::data::format::with_real;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::Session;

/// Rows that one task reads.
const TASK_ROWS: usize = 64;

/// Rows of x by number, ascending, one after another, in f64.
///
/// Cost: reads them, each by itself; 8 bytes an element besides the budget.
///
/// # Errors
/// [`Error::Shape`] for a row that there is not, or one that does not follow; [`Error::OverBudget`].
pub fn take_rows(session: &Session, x: Operand, rows: Vec<u64>) -> Result<Job<Vec<f64>>> {
    if rows.windows(2).any(|pair| pair[0] >= pair[1]) || rows.last().is_some_and(|&last| last >= x.rows()) {
        return Err(Error::shape(format!("rows to take of {} have to ascend below {}", x.name(), x.rows())));
    }
    with_real!(x.dtype(), T => take_as::<T>(session, &x, &rows))
}

fn take_as<T: Real>(session: &Session, x: &Operand, rows: &[u64]) -> Result<Job<Vec<f64>>> {
    let (d, element) = (x.cols() as usize, size_of::<T>() as u64);
    let mut plan = Plan::new("take rows");
    let (extent, layout) = (x.extent(&mut plan), x.layout());
    let taken: Arc<Mutex<Vec<f64>>> = Arc::new(Mutex::new(vec![0.0; rows.len() * d]));
    for (number, some) in rows.chunks(TASK_ROWS).enumerate() {
        let tiles: Vec<_> = some.iter().map(|&row| layout.tile(extent, row..row + 1, 0..d as u64, element)).collect();
        let taken = Arc::clone(&taken);
        let task = tiles.iter().fold(Task::new("take"), |task, tile| task.read(tile.region));
        plan.task(task.run(move |cx| {
            let mut taken = taken.locked();
            for (at, (tile, block)) in tiles.iter().zip(&*cx.blocks).enumerate() {
                let (row, start) = (tile.of::<T>(block)?, (number * TASK_ROWS + at) * d);
                (0..d).for_each(|j| taken[start + j] = row[(0, j)].f64());
            }
            Ok(())
        }));
    }
    Job::new(session, vec![plan], move |_| Ok(std::mem::take(&mut *taken.locked())))
}
