//! Panels of a tall matrix as a task has them: where they lie, or made of rows that it reads.

use std::ops::Range;
use std::sync::Arc;

use outcore_core::{DType, Result};
use outcore_engine::{Block, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Mat, MatMut, MatRef};
use outcore_matrix::Tile;

/// Where a task finds its panel among its blocks.
pub(super) enum Source {
    Panel(Tile),
    Rows {
        tiles: Vec<(Tile, DType, Arc<[f64]>)>,
        turn: Option<Arc<Mat<f64>>>,
        blas: Blas,
    },
}

impl Source {
    /// The task reads them as its first blocks.
    pub(super) fn read_by(&self, task: Task) -> Task {
        match self {
            Source::Panel(tile) => task.read(tile.region),
            Source::Rows { tiles, .. } => tiles
                .iter()
                .fold(task, |task, (tile, ..)| task.read(tile.region)),
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Source::Panel(_) => 1,
            Source::Rows { tiles, .. } => tiles.len(),
        }
    }

    /// Some rows of the panel, where they lie or `made`.
    pub(super) fn rows<'a>(
        &self,
        blocks: &'a [Block],
        rows: Range<usize>,
        made: &'a mut Mat<f64>,
    ) -> Result<MatRef<'a, f64>> {
        let (first, count) = (rows.start, rows.len());
        let (tiles, turn, blas) = match self {
            Source::Panel(tile) => return Ok(tile.of(&blocks[0])?.subrows(first, count)),
            Source::Rows { tiles, turn, blas } => (tiles, turn, blas),
        };
        let depth = tiles.iter().map(|(tile, ..)| tile.cols).sum();
        let mut found = Mat::zeros(count, depth);
        let mut column = 0;
        for ((tile, dtype, offsets), block) in tiles.iter().zip(blocks) {
            let into = found.as_mut().subcols_mut(column, tile.cols);
            match dtype {
                DType::F32 => less(tile.of::<f32>(block)?.subrows(first, count), into, offsets),
                _ => less(tile.of::<f64>(block)?.subrows(first, count), into, offsets),
            }
            column += tile.cols;
        }
        *made = match turn {
            Some(turn) => {
                let mut turned = Mat::zeros(count, turn.ncols());
                kernels::gemm(
                    turned.as_mut(),
                    1.0,
                    found.as_ref(),
                    (**turn).as_ref(),
                    0.0,
                    blas,
                )?;
                turned
            }
            None => found,
        };
        Ok(made.as_ref())
    }
}

/// A panel that lies in memory, or in the blocks of a task.
pub(super) enum Panel<'a> {
    Memory(MatRef<'a, f64>),
    Read(&'a Source, &'a [Block]),
}

impl Panel<'_> {
    pub(super) fn rows<'a>(
        &'a self,
        rows: Range<usize>,
        made: &'a mut Mat<f64>,
    ) -> Result<MatRef<'a, f64>> {
        match self {
            Panel::Memory(panel) => Ok(panel.subrows(rows.start, rows.len())),
            Panel::Read(source, blocks) => source.rows(blocks, rows, made),
        }
    }
}

/// Rows less a number for each column.
fn less<T: kernels::Real>(rows: MatRef<'_, T>, mut into: MatMut<'_, f64>, offsets: &[f64]) {
    for (column, offset) in offsets.iter().enumerate() {
        for row in 0..rows.nrows() {
            into[(row, column)] = rows[(row, column)].f64() - offset;
        }
    }
}
