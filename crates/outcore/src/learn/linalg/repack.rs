//! An operand cut into blocks that are contiguous in scratch.
//!
//! Reading a block of a row-major matrix takes one request a row. Where blocks are read many times it
//! is cheaper to read the matrix once in whole rows and write it as blocks, each a single run:
//!
//! ```text
//!   on the device          in scratch
//!   0 0 1 1 2 2            0 0 / 0 0   1 1 / 1 1   2 2 / 2 2   3 3 / ...
//!   0 0 1 1 2 2            (block 0)   (block 1)   (block 2)
//!   3 3 4 4 5 5
//! ```

use std::ops::Range;

use outcore_engine::{ExtentRef, Plan, Region, Task};
use outcore_kernels::{Real, copy_into, view_mut};

use crate::data::array::{Layout, Tile, panels};
use crate::data::format::{DType, Order};
use crate::error::Result;
use crate::session::Session;

/// Where the blocks of an operand are: in its own file, or repacked.
pub(crate) struct Blocks {
    extent: ExtentRef,
    layout: Layout,
    element: u64,
    packed: Option<Packed>,
}

struct Packed {
    block_rows: u64,
    block_cols: u64,
}

impl Blocks {
    /// Blocks where they are.
    pub(crate) fn in_place(extent: ExtentRef, layout: Layout, element: u64) -> Blocks {
        Blocks { extent, layout, element, packed: None }
    }

    /// Adds tasks that write the operand as blocks of `block_rows` x `block_cols` to scratch.
    pub(crate) fn repack<T: Real>(
        session: &Session,
        plan: &mut Plan,
        source: Blocks,
        block_rows: u64,
        block_cols: u64,
        share_bytes: u64,
    ) -> Result<Blocks> {
        let element = size_of::<T>() as u64;
        let layout = source.layout;
        let slot = (block_rows * block_cols * element).next_multiple_of(4096) / element;
        let count = layout.rows.div_ceil(block_rows) * layout.cols.div_ceil(block_cols);
        let dtype = if element == 4 { DType::F32 } else { DType::F64 };
        let scratch = session.temporary(dtype, &[(slot * count).max(1)], Order::Row)?;
        let extent = plan.extent(scratch.extent());
        let packed = Packed { block_rows, block_cols };
        let target = Blocks { extent, layout, element, packed: Some(packed) };
        let by_rows = layout.by_rows();
        let (long, short) = if by_rows { (layout.rows, layout.cols) } else { (layout.cols, layout.rows) };
        let (cut_every, block_short) = if by_rows { (block_rows, block_cols) } else { (block_cols, block_rows) };
        for block_start in (0..long).step_by(cut_every as usize) {
            let length = cut_every.min(long - block_start);
            for part in panels(length, short * element, share_bytes) {
                let outer = block_start + part.start..block_start + part.end;
                let inner = (0..short).step_by(block_short as usize).map(|start| start..(start + block_short).min(short));
                target.repack_panel::<T>(plan, &source, outer, inner.collect(), by_rows);
            }
        }
        plan.group();
        Ok(target)
    }

    /// One task: whole rows (or columns) in, the part of each block that they are out.
    fn repack_panel<T: Real>(&self, plan: &mut Plan, source: &Blocks, outer: Range<u64>, inner: Vec<Range<u64>>, by_rows: bool) {
        let whole = 0..inner.last().map_or(0, |range| range.end);
        let place = |inner: Range<u64>| if by_rows { (outer.clone(), inner) } else { (inner, outer.clone()) };
        let (rows, cols) = place(whole);
        let from = source.layout.tile(source.extent, rows, cols, self.element);
        let mut task = Task::new("repack").read(from.region);
        let mut lengths = Vec::with_capacity(inner.len());
        for range in inner {
            lengths.push((range.end - range.start) as usize);
            let (rows, cols) = place(range);
            task = task.write(self.part(rows, cols));
        }
        plan.task(task.run(move |cx| {
            let [source, targets @ ..] = cx.blocks else { unreachable!("the source was declared first") };
            let source = from.of::<T>(source)?;
            let source = if by_rows { source } else { source.transpose() };
            let mut at = 0;
            for (target, &length) in targets.iter_mut().zip(&lengths) {
                let values = source.subcols(at, length);
                copy_into(view_mut(target.slice_mut::<T>(), values.nrows(), length, length, 1)?, values)?;
                at += length;
            }
            Ok(())
        }));
    }

    /// The bytes of some rows and columns inside one block, contiguous because they span it one way.
    fn part(&self, rows: Range<u64>, cols: Range<u64>) -> Region {
        let (start, by_rows) = (self.slot_of(rows.start, cols.start), self.layout.by_rows());
        let packed = self.packed.as_ref().expect("only repacked operands have parts");
        let skipped = match by_rows {
            true => (rows.start % packed.block_rows) * (cols.end - cols.start),
            false => (cols.start % packed.block_cols) * (rows.end - rows.start),
        };
        let elements = (rows.end - rows.start) * (cols.end - cols.start);
        Region::span(self.extent, start + skipped * self.element, elements * self.element)
    }

    fn slot_of(&self, row: u64, col: u64) -> u64 {
        let packed = self.packed.as_ref().expect("only repacked operands have slots");
        let slot = (packed.block_rows * packed.block_cols * self.element).next_multiple_of(4096);
        (row / packed.block_rows * self.layout.cols.div_ceil(packed.block_cols) + col / packed.block_cols) * slot
    }

    /// A block, as a region and its shape. Of a repacked operand it must be one of its blocks.
    pub(crate) fn tile(&self, rows: Range<u64>, cols: Range<u64>) -> Tile {
        if self.packed.is_none() {
            return self.layout.tile(self.extent, rows, cols, self.element);
        }
        let (height, width) = (rows.end - rows.start, cols.end - cols.start);
        let by_rows = self.layout.by_rows();
        let (row_stride, col_stride) = if by_rows { (width, 1) } else { (1, height) };
        let block = Layout { offset: self.slot_of(rows.start, cols.start), rows: height, cols: width, row_stride, col_stride };
        block.tile(self.extent, 0..height, 0..width, self.element)
    }
}
