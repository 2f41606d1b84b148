//! An element, or a few, made of each row, in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use outcore_core::{Error, Job, MemorySplit, Result, Session};
use outcore_device::Locked;
use outcore_engine::{Plan, Task, go_on};
use outcore_kernels::{Lines, MatRef, Real};
use outcore_matrix::sparse::Piece;

use super::joined::{blocks_of, groups, joined_bytes, with_group};
use super::{Rows, check_panels};

/// Elements of the result whose pages come into being between two looks at whether the job has been
/// cancelled.
const STARTED_ELEMENTS: usize = 1 << 20;

/// What each row comes to.
pub(crate) trait Map<T: Real>: Send + Sync + 'static {
    type Element: Pod + Send;

    /// Elements of a row.
    fn width(&self) -> usize {
        1
    }

    /// Bytes that the map holds all the time.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// Bytes that a task holds besides its rows and their elements.
    fn task_bytes(&self, rows: usize) -> usize {
        let _ = rows;
        0
    }

    /// Bytes that a task holds for each entry of its rows.
    fn entry_bytes(&self) -> usize {
        0
    }

    /// Whether all entries of a line are needed at once.
    fn needs_whole_lines(&self) -> bool {
        false
    }

    /// What a row without entries is, or a part of a line before anything was added.
    fn start(&self) -> Self::Element {
        Zeroable::zeroed()
    }

    /// The elements of some rows, one row after another.
    fn dense(&self, into: &mut [Self::Element], rows: MatRef<'_, T>) -> Result<()>;

    /// Adds what some lines have to the elements of each; the first of them has this number.
    fn sparse(&self, into: &mut [Self::Element], first: u64, lines: impl Lines<T>) -> Result<()> {
        let _ = (into, first, lines);
        Err(Error::value("this takes dense rows"))
    }

    /// Adds the next part of a line that was cut.
    fn merge(&self, into: &mut Self::Element, other: &Self::Element);
}

/// The element of each row, in order. Cost: reads the matrix once; the result is held besides the
/// budget.
///
/// # Errors
/// [`Error::OverBudget`].
pub(crate) fn map<T: Real, M: Map<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    map: M,
) -> Result<Job<Vec<M::Element>>> {
    let split = MemorySplit::new(session).hold(map.held_bytes());
    check_panels(name, rows, 0, &split, split.panel_bytes())?;
    let mut plan = Plan::new(name);
    plan.bound(rows.stored_bytes());
    plan.hold(map.held_bytes());
    let (width, row_bytes) = (map.width(), (map.width() * size_of::<M::Element>()) as u64);
    let map = Arc::new(map);
    let count = rows.count() as usize * width;
    // Allocated by the first task: a plan holds nothing.
    let found = Arc::new(Mutex::new(Vec::new()));
    let put = move |found: &Mutex<Vec<M::Element>>,
                    map: &M,
                    first: u64,
                    part: &[M::Element],
                    cancelled: &AtomicBool| {
        let mut found = found.locked();
        if found.is_empty() {
            found.reserve_exact(count);
        }
        while found.len() < count {
            if cancelled.load(Ordering::Relaxed) {
                return;
            }
            let more = count.min(found.len() + STARTED_ELEMENTS);
            found.resize_with(more, || map.start());
        }
        assert_eq!(part.len() % width.max(1), 0, "elements of whole rows");
        found[first as usize * width..][..part.len()]
            .iter_mut()
            .zip(part)
            .for_each(|(all, part)| map.merge(all, part));
    };
    match rows {
        Rows::Dense(x) => {
            let (extent, layout) = (x.extent(&mut plan), x.layout());
            for rows in x.panels(split.panel_bytes()) {
                go_on()?;
                let (first, count) = (rows.start, (rows.end - rows.start) as usize);
                let (tile, map, found) = (
                    layout.tile(extent, rows, 0..x.cols()),
                    Arc::clone(&map),
                    Arc::clone(&found),
                );
                let task = Task::new(name)
                    .flops(2 * (tile.rows * tile.cols) as u64)
                    .held(count * row_bytes as usize + map.task_bytes(count));
                plan.task(task.read(tile.region).run(move |cx| {
                    let mut part = vec![map.start(); count * width];
                    map.dense(&mut part, tile.of::<T>(&cx.blocks[0])?)?;
                    put(&found, &map, first, &part, cx.cancelled);
                    Ok(())
                }));
            }
        }
        Rows::Sparse(a) => {
            let order = plan.serial();
            let whole = map.needs_whole_lines();
            let pieces = a.pieces(split.panel_bytes(), |lines| lines * row_bytes);
            for group in groups(pieces, whole) {
                go_on()?;
                let (pieces, map, found) =
                    (blocks_of(a, &group), Arc::clone(&map), Arc::clone(&found));
                let rows = group[0].lines();
                let (first, count) = (rows.start, (rows.end - rows.start) as usize);
                let joined = if whole { joined_bytes::<T>(&pieces) } else { 0 };
                let entries: u64 = group.iter().map(Piece::entries).sum();
                let held = joined + map.task_bytes(count) + map.entry_bytes() * entries as usize;
                let task = Task::new(name)
                    .flops(2 * entries)
                    .held(count * row_bytes as usize + held);
                let task = group
                    .iter()
                    .flat_map(|piece| a.regions(&mut plan, piece))
                    .fold(task, Task::read);
                // The parts of a line are merged in order.
                let is_part = group.len() == 1 && (group[0].continues || group[0].breaks_off);
                let task = if is_part { task.update(order) } else { task };
                plan.task(task.run(move |cx| {
                    let mut part = vec![map.start(); count * width];
                    with_group!(pieces, cx.blocks, whole, T, a => map.sparse(&mut part, first, a)?);
                    put(&found, &map, first, &part, cx.cancelled);
                    Ok(())
                }));
            }
        }
    }
    // As of a fold: the thread that waits for the job makes nothing of the rows.
    Job::driven(session, vec![plan], move |stage, plans| {
        for plan in plans {
            stage.run(plan, 1.0)?;
        }
        let mut found = std::mem::take(&mut *found.locked());
        found.resize_with(count, || map.start());
        Ok(found)
    })
}
