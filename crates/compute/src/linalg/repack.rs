//! An operand cut into blocks that are contiguous in scratch.
//!
//! Reading a block of a row-major matrix takes one request a row. Where blocks are read many times
//! it is cheaper to read the matrix once in whole rows and write it as blocks, each a single run:
//!
//! ```text
//!   on the device          in scratch
//!   0 0 1 1 2 2            0 0 / 0 0   1 1 / 1 1   2 2 / 2 2   3 3 / ...
//!   0 0 1 1 2 2            (block 0)   (block 1)   (block 2)
//!   3 3 4 4 5 5
//! ```
//!
//! This is done while the product goes on: what its first step needs comes before it, all else in
//! time for the steps that do. Elements that are decoded on the way from the device lie in scratch as
//! they are computed with.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use outcore_core::file::FILE_BLOCK_BYTES;
use outcore_core::panels::panels;
use outcore_core::{DType, Order, Result, Session};
use outcore_engine::{ExtentRef, Plan, Region, Task};
use outcore_kernels::{Real, copy_until, view_mut};
use outcore_matrix::{Array, Layout, Tile};

/// Where the blocks of an operand are: in its own file, or repacked.
#[derive(Clone)]
pub(crate) struct Blocks {
    extent: ExtentRef,
    layout: Layout,
    /// Bytes of an element as it is computed with.
    element: u64,
    packed: Option<PackedLayout>,
}

#[derive(Clone)]
struct PackedLayout {
    block_rows: u64,
    block_cols: u64,
    /// From one block to the next.
    slot_bytes: u64,
}

impl Blocks {
    /// Blocks where they are.
    pub(crate) fn in_place(extent: ExtentRef, layout: Layout, element: u64) -> Blocks {
        Blocks {
            extent,
            layout,
            element,
            packed: None,
        }
    }

    /// The operand as blocks of `block_rows` x `block_cols` in scratch, and what fills them.
    pub(crate) fn repacked(
        session: &Session,
        plan: &mut Plan,
        source: Blocks,
        block_rows: u64,
        block_cols: u64,
        share_bytes: u64,
    ) -> Result<(Blocks, Repack)> {
        let (element, layout) = (source.element, source.layout);
        let slot_bytes = (block_rows * block_cols * element).next_multiple_of(FILE_BLOCK_BYTES);
        let count = layout.rows.div_ceil(block_rows) * layout.cols.div_ceil(block_cols);
        let dtype = if element == 4 { DType::F32 } else { DType::F64 };
        let scratch = Array::temporary(
            session,
            dtype,
            &[(slot_bytes / element * count).max(1)],
            Order::Row,
        )?;
        let extent = plan.extent(scratch.extent());
        let packed = PackedLayout {
            block_rows,
            block_cols,
            slot_bytes,
        };
        let target = Blocks {
            extent,
            layout,
            element,
            packed: Some(packed),
        };
        // Panels as large as blocks: what one has left, the other can use.
        Ok((
            target.clone(),
            Repack {
                source,
                target,
                share_bytes: share_bytes.min(slot_bytes),
            },
        ))
    }

    /// One task: whole rows (or columns) in, the part of each block that they are out.
    fn repack_panel<T: Real>(&self, source: &Blocks, outer: Range<u64>) -> Task {
        let by_rows = self.layout.by_rows();
        let packed = self
            .packed
            .as_ref()
            .expect("only repacked operands have panels");
        let short = if by_rows {
            self.layout.cols
        } else {
            self.layout.rows
        };
        let block_short = if by_rows {
            packed.block_cols
        } else {
            packed.block_rows
        };
        let (rows, cols) = if by_rows {
            (outer.clone(), 0..short)
        } else {
            (0..short, outer.clone())
        };
        let from = source.layout.tile(source.extent, rows, cols);
        let (whole, rest) = (short / block_short, short % block_short);
        let mut task = Task::new("repack").read(from.region);
        let mut cuts = Vec::with_capacity(2);
        for (start, count, length) in [
            (0, whole, block_short),
            (whole * block_short, u64::from(rest > 0), rest),
        ] {
            if count > 0 {
                task = task.write(self.parts(&outer, start, count, length));
                cuts.push((start as usize, length as usize));
            }
        }
        task.run(move |cx| {
            let [source, targets @ ..] = cx.blocks else {
                unreachable!("the source was declared first")
            };
            // A row may be longer than a panel.
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let source = from.of::<T>(source)?;
            let source = if by_rows { source } else { source.transpose() };
            for (target, (start, length)) in targets.iter_mut().zip(cuts) {
                let pitch = target.pitch::<T>();
                for (index, part) in target.slice_mut::<T>().chunks_mut(pitch).enumerate() {
                    let values = source.subcols(start + index * length, length);
                    copy_until(
                        view_mut(part, values.nrows(), length, length, 1)?,
                        values,
                        &stop,
                    )?;
                }
            }
            Ok(())
        })
    }

    /// The part that some rows (or columns, where these are contiguous) are of each of `count`
    /// neighbouring blocks, which are `length` long in the other direction; contiguous in each
    /// block because it spans it.
    fn parts(&self, outer: &Range<u64>, start: u64, count: u64, length: u64) -> Region {
        let packed = self
            .packed
            .as_ref()
            .expect("only repacked operands have parts");
        let (block, slot, next) = match self.layout.by_rows() {
            true => (
                packed.block_rows,
                self.slot_of(outer.start, start),
                self.slot_of(0, packed.block_cols),
            ),
            false => (
                packed.block_cols,
                self.slot_of(start, outer.start),
                self.slot_of(packed.block_rows, 0),
            ),
        };
        let line = length * self.element;
        let row_bytes = (outer.end - outer.start) * line;
        let stride = if count > 1 { next } else { row_bytes };
        Region {
            extent: self.extent,
            offset: slot + outer.start % block * line,
            row_bytes,
            stride,
            rows: count,
        }
    }

    fn slot_of(&self, row: u64, col: u64) -> u64 {
        let packed = self
            .packed
            .as_ref()
            .expect("only repacked operands have slots");
        (row / packed.block_rows * self.layout.cols.div_ceil(packed.block_cols)
            + col / packed.block_cols)
            * packed.slot_bytes
    }

    /// A block, as a region and its shape. Of a repacked operand it must be one of its blocks.
    pub(crate) fn tile(&self, rows: Range<u64>, cols: Range<u64>) -> Tile {
        if self.packed.is_none() {
            return self.layout.tile(self.extent, rows, cols);
        }
        let (height, width) = (rows.end - rows.start, cols.end - cols.start);
        let by_rows = self.layout.by_rows();
        let (row_stride, col_stride) = if by_rows { (width, 1) } else { (1, height) };
        let block = Layout {
            offset: self.slot_of(rows.start, cols.start),
            rows: height,
            cols: width,
            row_stride,
            col_stride,
            element: self.element,
        };
        block.tile(self.extent, 0..height, 0..width)
    }
}

/// What fills the blocks of an operand, panel by panel.
pub(crate) struct Repack {
    source: Blocks,
    target: Blocks,
    share_bytes: u64,
}

impl Repack {
    /// The rows that each task is about, or the columns where these are what is contiguous; in
    /// order.
    pub(crate) fn panels(&self) -> Vec<Range<u64>> {
        let (layout, packed) = (
            self.target.layout,
            self.target.packed.as_ref().expect("it is repacked"),
        );
        let (long, short, cut_every) = match layout.by_rows() {
            true => (layout.rows, layout.cols, packed.block_rows),
            false => (layout.cols, layout.rows, packed.block_cols),
        };
        let mut all = Vec::new();
        for start in (0..long).step_by(cut_every as usize) {
            let parts = panels(
                cut_every.min(long - start),
                short * self.target.element,
                self.share_bytes,
            );
            all.extend(
                parts
                    .into_iter()
                    .map(|part| start + part.start..start + part.end),
            );
        }
        all
    }

    pub(crate) fn task<T: Real>(&self, panel: Range<u64>) -> Task {
        self.target.repack_panel::<T>(&self.source, panel)
    }
}

/// What steps of a computation wait for, spread over the steps before, so that device and cores
/// have both something to do.
#[derive(Clone)]
pub(crate) struct Ahead<P>(VecDeque<(u64, P)>);

impl<P> Ahead<P> {
    /// Of parts with the first step that needs each.
    pub(crate) fn new(mut parts: Vec<(u64, P)>) -> Ahead<P> {
        parts.sort_by_key(|(needed, _)| *needed);
        let mut from = 0;
        for together in parts.chunk_by_mut(|(one, _), (other, _)| one == other) {
            let (count, to) = (together.len() as u64, together[0].0);
            for (index, (step, _)) in (0..).zip(together) {
                *step = to.min(from + 1 + index * (to - from) / count);
            }
            from = to;
        }
        Ahead(parts.into())
    }

    /// Adds to the plan what comes before a step.
    pub(crate) fn of_step(&mut self, plan: &mut Plan, step: u64, task: impl Fn(P) -> Task) {
        if !self.0.is_empty() {
            plan.group();
        }
        let due = self.0.partition_point(|(before, _)| *before <= step);
        self.0
            .drain(..due)
            .for_each(|(_, part)| plan.task(task(part)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_needs_comes_before_it_and_little_by_little() {
        let needed = [0, 8, 0, 8, 8, 8, 20, 9];
        let mut ahead = Ahead::new(needed.map(|step| (step, ())).into());
        let mut counts = Vec::new();
        for step in 0..=20 {
            let mut plan = Plan::new("plan");
            ahead.of_step(&mut plan, step, |()| Task::new("fill"));
            counts.push(plan.len());
        }
        assert_eq!(
            counts,
            [
                2, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }
}
