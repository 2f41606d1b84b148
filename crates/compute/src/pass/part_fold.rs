//! Dense rows added up to a state that is cut into parts.
//!
//! A state that is too large for a copy a thread is cut, and threads take its parts: every block of
//! rows is read once for all parts of a group, by one task a part. Parts that are not in memory
//! together make several groups, for each of which all rows pass by.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use outcore_core::Result;
use outcore_engine::{ExtentRef, Plan, Region, Task};
use outcore_kernels::MatRef;
use outcore_matrix::{Operand, Tile};

use super::{Cost, Lanes, TaskContext};

/// What rows come to, part by part.
pub(crate) trait PartFold<T: Pod>: Send + Sync + 'static {
    /// What a state is made of; it begins as zeros.
    type Element: Pod + Send + Sync;

    /// What a task reads besides rows.
    fn reads(&self) -> Vec<Region> {
        Vec::new()
    }

    /// A task that makes of the first block of rows what the others read.
    fn first_task(&self, rows: Tile) -> Option<Task> {
        let _ = rows;
        None
    }

    /// What some rows take for a part.
    fn cost(&self, part: usize, rows: usize) -> Cost;

    /// Adds rows, the first of which has this number, to a part.
    fn dense(
        &self,
        part: usize,
        state: &mut [Self::Element],
        first: u64,
        rows: MatRef<'_, T>,
        context: TaskContext<'_>,
    ) -> Result<()>;

    /// Looks at a part that the last rows were added to.
    fn end(&self, part: usize, state: &[Self::Element]) {
        let _ = (part, state);
    }
}

/// Rows that pass by.
pub(crate) struct PassedRows<'a> {
    pub(crate) x: &'a Operand,
    /// All rows, in order.
    pub(crate) blocks: &'a [Range<u64>],
    /// Parts of the state that are added to in one pass.
    pub(crate) groups: &'a [Range<usize>],
}

/// Adds the tasks of a pass to a plan: the blocks of rows, which tasks find in `extent` as elements
/// of type T, to the parts of each group, by turns to the lanes.
pub(crate) fn fold_parts<T: Pod, F: PartFold<T>>(
    plan: &mut Plan,
    name: &'static str,
    extent: ExtentRef,
    &PassedRows { x, blocks, groups }: &PassedRows<'_>,
    lanes: &Lanes,
    fold: &Arc<F>,
) {
    let rows = blocks.last().map_or(0, |last| last.end);
    assert_eq!(rows, x.rows(), "{name}: every row is in a block");
    assert!(
        groups.windows(2).all(|pair| pair[0].end == pair[1].start),
        "{name}: every part is in one group"
    );
    let layout = x.layout();
    let tile_of = |rows: &Range<u64>| layout.tile(extent, rows.clone(), 0..x.cols());
    if let Some(task) = blocks
        .first()
        .and_then(|rows| fold.first_task(tile_of(rows)))
    {
        plan.task(task);
    }
    for group in groups {
        plan.group();
        for (index, rows) in blocks.iter().enumerate() {
            let tile = tile_of(rows);
            let (first, is_last) = (rows.start, index + 1 == blocks.len());
            for part in group.clone() {
                let cost = fold.cost(part, tile.rows);
                let task = cost.of(Task::new(name)).read(tile.region);
                let task = fold.reads().into_iter().fold(task, Task::read);
                let (task, is_first) = lanes.add_to_part(index, part, task);
                let fold = Arc::clone(fold);
                plan.task(task.run(move |cx| {
                    let Some((state, read)) = cx.blocks.split_last_mut() else {
                        unreachable!("the state is declared")
                    };
                    let state = state.slice_mut::<F::Element>();
                    if is_first {
                        state.fill(bytemuck::Zeroable::zeroed());
                    }
                    let context = TaskContext {
                        blocks: &read[1..],
                        scratch: cx.scratch,
                        cancelled: cx.cancelled,
                    };
                    fold.dense(part, state, first, tile.of::<T>(&read[0])?, context)?;
                    if is_last {
                        fold.end(part, state);
                    }
                    Ok(())
                }));
            }
        }
    }
}
