//! The pass over X of integers of 8 bits, as they lie in the file: products of bytes are exact and
//! cost a quarter of those of floats, and nothing is decoded.
//!
//! The state is that of [`covariance`](super::covariance), with a shift of zero: what a shift is good
//! for, the digits that large means would take, integers do not lose. Sums of products are exact up to
//! 2^53, which some 10^11 rows do not reach.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::{DType, MemorySplit, Order, Result};
use outcore_device::Locked;
use outcore_engine::{Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Byte, MatRef, byte_gram_held_bytes, byte_gram_scratch_bytes, view_mut};
use outcore_matrix::{Operand, Tile};

use super::covariance::{Panel, Panels, row_blocks_of};
use crate::pass::{Cost, PartFold, TaskContext};

/// Rows of X in a block, at most; products are added to the state once a block.
const BLOCK_ROWS: u64 = 1 << 15;

/// How the bytes of X are integers, where it is stored as such and rows lie together.
pub(super) fn bytes_of(x: &Operand) -> Option<Byte> {
    let Operand::Stored(array) = x else {
        return None;
    };
    match array.dtype() {
        _ if array.order() != Order::Row && array.cols() > 1 => None,
        DType::U8 | DType::Bool => Some(Byte::Unsigned),
        DType::I8 => Some(Byte::Signed),
        _ => None,
    }
}

/// Rows of X in blocks, of which each lane gets one at least.
pub(super) fn row_blocks(
    split: &MemorySplit,
    x: &Operand,
    lanes_max: u64,
) -> Vec<std::ops::Range<u64>> {
    row_blocks_of(split, x, lanes_max, 1, BLOCK_ROWS)
}

/// The fold. A panel is a part of its state.
pub(super) struct ByteCovariance {
    pub(super) panels: Panels,
    pub(super) byte: Byte,
    /// Where the shift of the state is, zeros.
    pub(super) shift: Region,
    /// Of S as one lane has it in the end.
    pub(super) diagonal: Arc<Mutex<Vec<f64>>>,
}

impl ByteCovariance {
    /// Products of a block of rows, in i64, and the sums of columns.
    fn product_bytes(panel: &Panel) -> usize {
        8 * panel.width() * (panel.height as usize + 1)
    }
}

impl PartFold<u8> for ByteCovariance {
    type Element = f64;

    fn first_task(&self, _rows: Tile) -> Option<Task> {
        // A result of the run is what a task has declared.
        Some(Task::new("shift").update(self.shift))
    }

    fn cost(&self, part: usize, rows: usize) -> Cost {
        let panel = &self.panels[part];
        let (height, width) = (panel.height as usize, panel.width());
        Cost {
            flops: kernels::syrk_flops(width, rows)
                + kernels::gemm_flops(height - width, width, rows),
            scratch: Self::product_bytes(panel) + byte_gram_scratch_bytes(rows, height, width),
            held: byte_gram_held_bytes(rows, height, width),
        }
    }

    fn dense(
        &self,
        part: usize,
        state: &mut [f64],
        _first: u64,
        rows: MatRef<'_, u8>,
        context: TaskContext<'_>,
    ) -> Result<()> {
        let panel = &self.panels[part];
        let (height, width) = (panel.height as usize, panel.width());
        let (products, scratch) = context.scratch.split_at_mut(Self::product_bytes(panel));
        let products: &mut [i64] = bytemuck::cast_slice_mut(products);
        products.fill(0);
        let (sums, gram) = products.split_at_mut(width);
        kernels::byte_gram_until(
            view_mut(gram, height, width, width, 1)?,
            sums,
            rows.subcols(panel.first(), height),
            self.byte,
            scratch,
            &|| context.cancelled.load(Ordering::Relaxed),
        )?;
        // The state has the sums first too.
        for (sum, &part) in state.iter_mut().zip(&*products) {
            *sum += part as f64;
        }
        Ok(())
    }

    fn end(&self, part: usize, state: &[f64]) {
        let panel = &self.panels[part];
        panel.put_diagonal(state, &mut self.diagonal.locked());
    }
}
