//! Panels of a tall matrix as a task has them: where they lie, or made of what it reads. Elements are
//! stored in f32 or f64; what is computed with them is f64.

use std::ops::Range;
use std::sync::Arc;

use outcore_core::{RealType, Result, with_real};
use outcore_engine::{Block, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Mat, MatMut, MatRef, Real};
use outcore_matrix::Tile;

/// A panel in memory.
pub(super) enum Columns {
    Single(Mat<f32>),
    Double(Mat<f64>),
}

impl Columns {
    pub(super) fn zeros(real: RealType, rows: usize, columns: usize) -> Columns {
        match real {
            RealType::F32 => Columns::Single(Mat::zeros(rows, columns)),
            RealType::F64 => Columns::Double(Mat::zeros(rows, columns)),
        }
    }

    /// Some rows of some columns, where they lie or `made`.
    pub(super) fn part<'a>(
        &'a self,
        rows: Range<usize>,
        columns: Range<usize>,
        made: &'a mut Mat<f64>,
    ) -> MatRef<'a, f64> {
        let (row, column, height, width) = (rows.start, columns.start, rows.len(), columns.len());
        match self {
            Columns::Single(all) => {
                *made = in_f64(all.as_ref().submatrix(row, column, height, width));
                made.as_ref()
            }
            Columns::Double(all) => all.as_ref().submatrix(row, column, height, width),
        }
    }

    /// The part that begins at this row and column becomes `from`.
    pub(super) fn put(&mut self, row: usize, column: usize, from: MatRef<'_, f64>) {
        let (height, width) = from.shape();
        match self {
            Columns::Single(all) => {
                let into = all.as_mut().submatrix_mut(row, column, height, width);
                put(from, into);
            }
            Columns::Double(all) => {
                let mut into = all.as_mut().submatrix_mut(row, column, height, width);
                into.copy_from(from);
            }
        }
    }

    /// Gives back the memory of those after the first ones.
    pub(super) fn keep(&mut self, columns: usize) {
        match self {
            Columns::Single(all) => *all = all.as_ref().subcols(0, columns).to_owned(),
            Columns::Double(all) => *all = all.as_ref().subcols(0, columns).to_owned(),
        }
    }
}

/// Where a task finds its panel among its blocks.
pub(super) enum Source {
    Panel(Tile, RealType),
    Rows {
        tiles: Vec<(Tile, RealType, Arc<[f64]>)>,
        turn: Option<Arc<Mat<f64>>>,
        blas: Blas,
    },
}

impl Source {
    /// The task reads them as its first blocks.
    pub(super) fn read_by(&self, task: Task) -> Task {
        match self {
            Source::Panel(tile, _) => task.read(tile.region),
            Source::Rows { tiles, .. } => tiles
                .iter()
                .fold(task, |task, (tile, ..)| task.read(tile.region)),
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Source::Panel(..) => 1,
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
            Source::Panel(tile, RealType::F64) => {
                return Ok(tile.of(&blocks[0])?.subrows(first, count));
            }
            Source::Panel(tile, RealType::F32) => {
                *made = in_f64(tile.of::<f32>(&blocks[0])?.subrows(first, count));
                return Ok(made.as_ref());
            }
            Source::Rows { tiles, turn, blas } => (tiles, turn, blas),
        };
        let depth = tiles.iter().map(|(tile, ..)| tile.cols).sum();
        let mut found = Mat::zeros(count, depth);
        let mut column = 0;
        for ((tile, real, offsets), block) in tiles.iter().zip(blocks) {
            let into = found.as_mut().subcols_mut(column, tile.cols);
            with_real!(*real, T => less(tile.of::<T>(block)?.subrows(first, count), into, offsets));
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
    /// The first columns.
    Memory(&'a Columns, usize),
    Read(&'a Source, &'a [Block]),
}

impl Panel<'_> {
    pub(super) fn rows<'a>(
        &'a self,
        rows: Range<usize>,
        made: &'a mut Mat<f64>,
    ) -> Result<MatRef<'a, f64>> {
        match self {
            Panel::Memory(columns, used) => Ok(columns.part(rows, 0..*used, made)),
            Panel::Read(source, blocks) => source.rows(blocks, rows, made),
        }
    }
}

pub(super) fn in_f64<T: Real>(from: MatRef<'_, T>) -> Mat<f64> {
    let mut made = Mat::zeros(from.nrows(), from.ncols());
    for column in 0..from.ncols() {
        let pairs = made.col_mut(column).iter_mut().zip(from.col(column).iter());
        pairs.for_each(|(y, x)| *y = x.f64());
    }
    made
}

/// Rounded to the nearest.
pub(super) fn put<T: Real>(from: MatRef<'_, f64>, mut into: MatMut<'_, T>) {
    for column in 0..from.ncols() {
        let from = from.col(column);
        let pairs = into.as_mut().col_mut(column).iter_mut().zip(from.iter());
        pairs.for_each(|(y, x)| *y = T::of(*x));
    }
}

/// Rows less a number for each column.
fn less<T: Real>(rows: MatRef<'_, T>, mut into: MatMut<'_, f64>, offsets: &[f64]) {
    for (column, offset) in offsets.iter().enumerate() {
        for row in 0..rows.nrows() {
            into[(row, column)] = rows[(row, column)].f64() - offset;
        }
    }
}
