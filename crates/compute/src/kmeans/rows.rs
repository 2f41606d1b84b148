//! Some rows of a matrix: what centres are chosen from.
//!
//! Shapes: X is n x d, the result r x d in memory. Cost: reads the rows of a dense X, a request
//! each, or the pieces of a sparse one that they are in.

use std::sync::{Arc, Mutex};

use outcore_core::{Error, Job, MemorySplit, Result, Session, with_real};
use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::{Lines, Real};
use outcore_matrix::sparse::with_lines;
use outcore_matrix::{Operand, Rows, Sparse};

/// Rows of a dense matrix that one task reads.
const TASK_ROWS: usize = 64;

/// Rows of x by number, ascending, one after another, with all their zeros, in f64.
///
/// Cost: reads them, each by itself, of a dense matrix; the pieces that they are in, of a sparse
/// one; 8 bytes an element besides the budget.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::kmeans::take_rows;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// assert_eq!(take_rows(&session, &Rows::from(&a), &[1])?.run()?, [0.0, 3.0, 0.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for a row that there is not, or one that does not follow; [`Error::Value`] for
/// a matrix in CSC; [`Error::OverBudget`].
pub fn take_rows(session: &Session, x: &Rows, rows: &[u64]) -> Result<Job<Vec<f64>>> {
    x.check_rows_together()?;
    if rows.windows(2).any(|pair| pair[0] >= pair[1])
        || rows.last().is_some_and(|&last| last >= x.count())
    {
        return Err(Error::shape(format!(
            "rows to take of {} have to ascend below {}",
            x.name(),
            x.count()
        )));
    }
    let mut plan = Plan::new("take rows");
    let taken = Arc::new(Mutex::new(vec![0.0; rows.len() * x.width() as usize]));
    with_real!(x.real()?, T => match x {
        Rows::Dense(x) => take_dense::<T>(&mut plan, x, rows, &taken),
        Rows::Sparse(x) => take_sparse::<T>(&mut plan, x, MemorySplit::new(session).panel_bytes(), rows, &taken),
    });
    Job::new(session, vec![plan], move |_| {
        Ok(std::mem::take(&mut *taken.locked()))
    })
}

type Taken = Arc<Mutex<Vec<f64>>>;

fn take_dense<T: Real>(plan: &mut Plan, x: &Operand, rows: &[u64], taken: &Taken) {
    let d = x.cols() as usize;
    let (extent, layout) = (x.extent(plan), x.layout());
    for (number, some) in rows.chunks(TASK_ROWS).enumerate() {
        let tiles: Vec<_> = some
            .iter()
            .map(|&row| layout.tile(extent, row..row + 1, 0..d as u64))
            .collect();
        let taken = Arc::clone(taken);
        let task = tiles
            .iter()
            .fold(Task::new("take"), |task, tile| task.read(tile.region));
        plan.task(task.run(move |cx| {
            let mut taken = taken.locked();
            for (at, (tile, block)) in tiles.iter().zip(&*cx.blocks).enumerate() {
                let (row, start) = (tile.of::<T>(block)?, (number * TASK_ROWS + at) * d);
                (0..d).for_each(|j| taken[start + j] = row[(0, j)].f64());
            }
            Ok(())
        }));
    }
}

fn take_sparse<T: Real>(
    plan: &mut Plan,
    x: &Sparse,
    piece_bytes: u64,
    rows: &[u64],
    taken: &Taken,
) {
    let d = x.cols() as usize;
    for piece in x.pieces(piece_bytes, |_| 0) {
        let range = piece.lines();
        let (from, to) = (
            rows.partition_point(|&row| row < range.start),
            rows.partition_point(|&row| row < range.end),
        );
        if from == to {
            continue;
        }
        let wanted: Vec<usize> = rows[from..to]
            .iter()
            .map(|row| (row - range.start) as usize)
            .collect();
        let (lines, taken) = (x.blocks(&piece), Arc::clone(taken));
        let task = x
            .regions(plan, &piece)
            .into_iter()
            .fold(Task::new("take"), Task::read);
        plan.task(task.run(move |cx| {
            let mut taken = taken.locked();
            with_lines!(lines, cx.blocks, T, a => a.each_line(|line, entries| {
                if let Ok(at) = wanted.binary_search(&line) {
                    let out = &mut taken[(from + at) * d..][..d];
                    entries.each(|column, value| out[column] += value.f64());
                }
            }));
            Ok(())
        }));
    }
}
