//! One row of a matrix made of each row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outcore_core::{Error, Job, MemorySplit, Order, Result, Session};
use outcore_engine::{Block, Plan, Region, Task, go_on};
use outcore_kernels as kernels;
use outcore_kernels::{Lines, MatMut, MatRef, Real};
use outcore_matrix::sparse::{Piece, PieceBlocks, each_piece, with_lines};
use outcore_matrix::{Array, Output};

use super::joined::{blocks_of, groups, joined_bytes, with_group};
use super::{Rows, check_panels};

/// What some rows take.
#[derive(Default)]
pub(crate) struct Cost {
    pub(crate) flops: u64,
    pub(crate) scratch: usize,
    /// Bytes that the computation holds besides its blocks and scratch.
    pub(crate) held: usize,
}

impl Cost {
    /// The task that takes it.
    pub(crate) fn of(&self, task: Task) -> Task {
        task.flops(self.flops).scratch(self.scratch).held(self.held)
    }
}

/// What a task has besides its rows and what they become.
pub(crate) struct TaskContext<'a> {
    /// Of what it reads besides rows.
    pub(crate) blocks: &'a [Block],
    pub(crate) scratch: &'a mut [u8],
    pub(crate) cancelled: &'a AtomicBool,
}

/// What each row becomes.
pub(crate) trait RowMap<T: Real>: Send + Sync + 'static {
    /// Elements of the result.
    type Element: Real;

    /// Columns of the result.
    fn width(&self) -> u64;

    /// Bytes that the map holds.
    fn held_bytes(&self) -> u64;

    /// What a task reads besides rows.
    fn reads(&self, plan: &mut Plan) -> Vec<Region> {
        let _ = plan;
        Vec::new()
    }

    fn cost(&self, rows: usize, entries: usize, by_rows: bool) -> Cost;

    /// Writes the rows of the result.
    fn dense(
        &self,
        y: MatMut<'_, Self::Element>,
        x: MatRef<'_, T>,
        work: TaskContext<'_>,
    ) -> Result<()>;

    /// Bytes of sparse rows that one call takes at most, since it cannot be interrupted.
    fn sparse_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Whether [`finish`](RowMap::finish) needs whole rows, else a row may be added to by several
    /// tasks.
    fn needs_whole_rows(&self) -> bool {
        false
    }

    /// Whether [`sparse`](RowMap::sparse) needs all entries of a row at once, too.
    fn joins_rows(&self) -> bool {
        false
    }

    /// Adds what sparse rows, or parts of them, have to rows of the result, which begin as zeros,
    /// and to a number for each row.
    fn sparse(
        &self,
        y: MatMut<'_, Self::Element>,
        numbers: &mut [f64],
        lines: impl Lines<T>,
        work: TaskContext<'_>,
    ) -> Result<()> {
        let _ = (y, numbers, lines, work);
        Err(Error::value("this takes dense rows"))
    }

    /// Makes rows of the result of what sparse rows have come to.
    fn finish(&self, y: MatMut<'_, Self::Element>, numbers: &[f64]) {
        let _ = (y, numbers);
    }
}

/// Bytes that [`map_into`] reserves with one task at a time, at most: the map, and a panel of rows
/// beside what it becomes, in frames that may be an eighth larger.
pub(crate) fn mapped_bytes<T: Real, M: RowMap<T>>(session: &Session, rows: &Rows, map: &M) -> u64 {
    let made = map.width() * size_of::<M::Element>() as u64;
    let element = size_of::<T>() as u64;
    let split = MemorySplit::new(session).hold(map.held_bytes());
    let panel = split.mapped_panel_bytes();
    let cost = |count: u64, entries: u64| {
        let cost = map.cost(count as usize, entries as usize, true);
        (cost.scratch + cost.held) as u64 + 8 * count
    };
    let (panel, task) = match rows {
        Rows::Dense(x) => {
            let panel = panel.max(x.cols() * element + made);
            let count = (panel / (x.cols() * element + made).max(1)).min(x.rows());
            (panel, cost(count, count * x.cols()))
        }
        Rows::Sparse(a) => {
            let smallest = a.pieces(0, |_| 0).into_iter();
            let bytes = |piece: Piece| a.bytes_of(&piece) + piece.lines().count() as u64 * made;
            let panel = panel.max(smallest.map(bytes).max().unwrap_or(0));
            (panel, cost(panel / made.max(1), panel / element))
        }
    };
    map.held_bytes() + panel + panel / 4 + task
}

/// A matrix with a row for each row. Cost: reads the rows once, writes the result once.
///
/// # Errors
/// [`Error::OverBudget`]; what keeps the output from being made.
pub(crate) fn map_into<T: Real, M: RowMap<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    map: M,
    out: Output,
) -> Result<Job<Array>> {
    if let Rows::Dense(x) = rows {
        out.check_distinct(&[x])?;
    }
    let (width, element) = (map.width(), size_of::<M::Element>() as u64);
    let split = MemorySplit::new(session).hold(map.held_bytes());
    let panel_bytes = split.mapped_panel_bytes();
    check_panels(name, rows, width * element, &split, panel_bytes)?;
    let mut plan = Plan::new(name);
    let target = out.target(
        session,
        M::Element::DTYPE.into(),
        &[rows.count(), width],
        Order::Row,
        &mut plan,
    )?;
    if target.array.order() != Order::Row && width > 1 {
        return Err(Error::value(format!(
            "{}: the result of a {name} is written by rows",
            target.array.name()
        )));
    }
    assert_eq!(
        [target.array.rows(), target.array.cols()],
        [rows.count(), width],
        "a row for each row"
    );
    plan.bound(rows.stored_bytes() + target.array.nbytes());
    plan.hold(map.held_bytes());
    let (into, layout) = (plan.extent(&target.extent), target.array.layout());
    let reads = map.reads(&mut plan);
    let map = Arc::new(map);
    match rows {
        Rows::Dense(x) => {
            let (extent, x_layout) = (x.extent(&mut plan), x.layout());
            for rows in x.panels_beside(width * element, panel_bytes) {
                go_on()?;
                let (y, map) = (layout.tile(into, rows.clone(), 0..width), Arc::clone(&map));
                let tile = x_layout.tile(extent, rows, 0..x.cols());
                let cost = map.cost(tile.rows, tile.rows * tile.cols, tile.is_by_rows());
                let task = cost.of(Task::new(name)).read(tile.region);
                let task = reads
                    .iter()
                    .fold(task, |task, region| task.read(*region))
                    .write(y.region);
                plan.task(task.run(move |cx| {
                    let Some((written, read)) = cx.blocks.split_last_mut() else {
                        unreachable!("the result is declared")
                    };
                    let work = TaskContext {
                        blocks: &read[1..],
                        scratch: cx.scratch,
                        cancelled: cx.cancelled,
                    };
                    Ok(map.dense(
                        y.of_mut::<M::Element>(written)?,
                        tile.of::<T>(&read[0])?,
                        work,
                    )?)
                }));
            }
        }
        Rows::Sparse(a) => {
            a.check_rows_together()?;
            let pieces = a.pieces(panel_bytes.min(map.sparse_bytes_max()), |lines| {
                lines * width * element
            });
            let joins = map.joins_rows();
            for group in groups(pieces, joins || map.needs_whole_rows()) {
                go_on()?;
                let (rows, is_first) = (group[0].lines(), !group[0].continues);
                let (count, entries) = (
                    (rows.end - rows.start) as usize,
                    group.iter().map(Piece::entries).sum::<u64>(),
                );
                let (y, map) = (layout.tile(into, rows, 0..width), Arc::clone(&map));
                let pieces = blocks_of(a, &group);
                let mut cost = map.cost(count, entries as usize, true);
                cost.held += 8 * count;
                if joins {
                    cost.held += joined_bytes::<T>(&pieces);
                }
                let task = group
                    .iter()
                    .flat_map(|piece| a.regions(&mut plan, piece))
                    .fold(cost.of(Task::new(name)), Task::read);
                let task = reads.iter().fold(task, |task, region| task.read(*region));
                let task = if is_first {
                    task.write(y.region)
                } else {
                    task.update(y.region)
                };
                let piece_blocks: usize = pieces.iter().map(PieceBlocks::count).sum();
                plan.task(task.run(move |cx| {
                    let Some((written, read)) = cx.blocks.split_last_mut() else { unreachable!("the result is declared") };
                    let (read, others) = read.split_at(piece_blocks);
                    let mut y = y.of_mut::<M::Element>(written)?;
                    if is_first {
                        kernels::scale_until(y.as_mut(), M::Element::ZERO, &|| cx.cancelled.load(Ordering::Relaxed));
                    }
                    let mut numbers = vec![0.0; count];
                    if joins {
                        let work = TaskContext { blocks: others, scratch: &mut *cx.scratch, cancelled: cx.cancelled };
                        with_group!(pieces, read, true, T, lines => map.sparse(y.as_mut(), &mut numbers, lines, work)?);
                        map.finish(y, &numbers);
                        return Ok(());
                    }
                    for (piece, blocks) in each_piece(&pieces, read) {
                        // A row of many pieces takes the time of all of them.
                        if cx.cancelled.load(Ordering::Relaxed) {
                            return Err(Error::Cancelled.into());
                        }
                        let work = TaskContext { blocks: others, scratch: &mut *cx.scratch, cancelled: cx.cancelled };
                        with_lines!(piece, blocks, T, lines => map.sparse(y.as_mut(), &mut numbers, lines, work)?);
                    }
                    map.finish(y, &numbers);
                    Ok(())
                }));
            }
        }
    }
    target.job(session, vec![plan])
}
