//! Where rows of a block come from: a piece of X, or of a copy of it in fewer bits.

use std::ops::Range;
use std::sync::Arc;

use outcore_core::Result;
use outcore_engine::{Block, Region};
use outcore_kernels as kernels;
use outcore_kernels::{MatRef, Packing, Real, packed_row_bytes, view_mut};
use outcore_matrix::Tile;

/// How the copy of a block is packed.
pub(super) struct PackedBlock<T> {
    packing: Packing<T>,
    base: Vec<T>,
    /// The most that it moves a row.
    pub(super) error: f64,
}

impl<T: Real> PackedBlock<T> {
    /// Packs the rows of a block.
    pub(super) fn new(out: &mut [u8], x: MatRef<'_, T>, shift: &[f64]) -> Result<PackedBlock<T>> {
        let packing = Packing::of(x);
        packing.pack(out, x)?;
        Ok(PackedBlock {
            base: packing.base(shift),
            error: packing.error(out, x, shift)?,
            packing,
        })
    }
}

/// Some rows of a block, and what a task has to read for them. A further kind of matrix is a
/// further source.
pub(super) struct BlockPiece<T> {
    /// Counted from the first row of the block.
    pub(super) rows: Range<usize>,
    source: PieceSource<T>,
}

enum PieceSource<T> {
    Dense(Tile),
    Packed(Region, Arc<PackedBlock<T>>),
}

impl<T: Real> BlockPiece<T> {
    pub(super) fn dense(rows: Range<usize>, tile: Tile) -> BlockPiece<T> {
        BlockPiece {
            rows,
            source: PieceSource::Dense(tile),
        }
    }

    pub(super) fn packed(
        rows: Range<usize>,
        region: Region,
        packed: Arc<PackedBlock<T>>,
    ) -> BlockPiece<T> {
        BlockPiece {
            rows,
            source: PieceSource::Packed(region, packed),
        }
    }

    pub(super) fn region(&self) -> Region {
        match &self.source {
            PieceSource::Dense(tile) => tile.region,
            PieceSource::Packed(region, _) => *region,
        }
    }

    /// The rows, once they are in memory.
    pub(super) fn of<'a>(&'a self, block: &'a Block) -> Result<BlockRows<'a, T>> {
        Ok(match &self.source {
            PieceSource::Dense(tile) => BlockRows::Dense(tile.of::<T>(block)?),
            PieceSource::Packed(_, packed) => BlockRows::Packed(block.bytes(), packed),
        })
    }
}

/// Rows of a block in memory.
pub(super) enum BlockRows<'a, T> {
    Dense(MatRef<'a, T>),
    Packed(&'a [u8], &'a PackedBlock<T>),
}

impl<T: Real> BlockRows<'_, T> {
    /// The most that each row is away from where it is in X.
    pub(super) fn error(&self) -> f64 {
        match self {
            BlockRows::Dense(_) => 0.0,
            BlockRows::Packed(_, packed) => packed.error,
        }
    }

    /// Some of them less the shift, one after another.
    pub(super) fn take(&self, rows: Range<usize>, out: &mut [T], shift: &[f64]) -> Result<()> {
        let d = shift.len();
        match self {
            BlockRows::Dense(x) => {
                kernels::center_into(
                    view_mut(out, rows.len(), d, d, 1)?,
                    x.subrows(rows.start, rows.len()),
                    shift,
                )?;
            }
            BlockRows::Packed(bytes, packed) => {
                let width = packed_row_bytes::<T>(d);
                packed.packing.unpack(
                    out,
                    &bytes[rows.start * width..rows.end * width],
                    &packed.base,
                )?;
            }
        }
        Ok(())
    }
}
