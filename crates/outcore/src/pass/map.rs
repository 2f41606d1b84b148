//! One element made of each row.

use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::{Lines, MatRef, Real};

use super::Rows;
use super::rows::panels;
use crate::data::sparse::with_lines;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::memory_split::MemorySplit;
use crate::session::Session;

/// What each row comes to.
pub(crate) trait Map<T: Real>: Send + Sync + 'static {
    type Element: Pod + Send;

    /// What a row without entries is, or a part of a line before anything was added.
    fn start(&self) -> Self::Element {
        Zeroable::zeroed()
    }

    /// One element for each of some rows.
    fn dense(&self, into: &mut [Self::Element], rows: MatRef<'_, T>) -> Result<()>;

    /// Adds what some lines have to the element of each.
    fn sparse(&self, into: &mut [Self::Element], lines: impl Lines<T>) -> Result<()> {
        let _ = (into, lines);
        Err(Error::value("this takes dense rows"))
    }

    /// Adds the next part of a line that was cut.
    fn merge(&self, into: &mut Self::Element, other: &Self::Element);
}

/// The element of each row, in order. Cost: reads the matrix once; the result is held besides the budget.
///
/// # Errors
/// [`Error::OverBudget`].
pub(crate) fn map<T: Real, M: Map<T>>(
    session: &Session,
    name: &'static str,
    rows: &Rows,
    map: M,
) -> Result<Job<Vec<M::Element>>> {
    let split = MemorySplit::new(session);
    let mut plan = Plan::new(name);
    plan.bound(rows.stored_bytes());
    let (map, element_bytes) = (Arc::new(map), size_of::<M::Element>() as u64);
    let count = rows.count() as usize;
    // Allocated by the first task: a plan holds nothing.
    let found = Arc::new(Mutex::new(Vec::new()));
    let put = move |found: &Mutex<Vec<M::Element>>, map: &M, first: u64, part: &[M::Element]| {
        let mut found = found.locked();
        found.resize_with(count, || map.start());
        found[first as usize..][..part.len()].iter_mut().zip(part).for_each(|(all, part)| map.merge(all, part));
    };
    match rows {
        Rows::Dense(x) => {
            let (extent, layout, element) = (x.extent(&mut plan), x.layout(), size_of::<T>() as u64);
            for rows in panels(x, split.panel_bytes()) {
                let (first, count) = (rows.start, (rows.end - rows.start) as usize);
                let (tile, map, found) = (layout.tile(extent, rows, 0..x.cols(), element), Arc::clone(&map), Arc::clone(&found));
                let task = Task::new(name).flops(2 * tile.region.bytes() / element).held(count * element_bytes as usize);
                plan.task(task.read(tile.region).run(move |cx| {
                    let mut part = vec![map.start(); count];
                    map.dense(&mut part, tile.of::<T>(&cx.blocks[0])?)?;
                    put(&found, &map, first, &part);
                    Ok(())
                }));
            }
        }
        Rows::Sparse(a) => {
            let order = plan.serial();
            for piece in a.pieces(split.panel_bytes(), |lines| lines * element_bytes) {
                let (lines, map, found) = (a.blocks(&piece), Arc::clone(&map), Arc::clone(&found));
                let (first, count) = (piece.lines().start, (piece.lines().end - piece.lines().start) as usize);
                let task = Task::new(name).flops(2 * piece.entries()).held(count * element_bytes as usize);
                let task = a.regions(&mut plan, &piece).into_iter().fold(task, Task::read);
                // The parts of a line are merged in order.
                let task = if piece.continues || piece.breaks_off { task.update(order) } else { task };
                plan.task(task.run(move |cx| {
                    let mut part = vec![map.start(); count];
                    with_lines!(lines, cx.blocks, T, a => map.sparse(&mut part, a)?);
                    put(&found, &map, first, &part);
                    Ok(())
                }));
            }
        }
    }
    Job::new(session, vec![plan], move |_| {
        let mut found = std::mem::take(&mut *found.locked());
        found.resize_with(count, || map.start());
        Ok(found)
    })
}
