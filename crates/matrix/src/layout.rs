//! How the elements of a dense matrix lie in an extent, and blocks of them.
//!
//! A layout says where element (0, 0) is, and how far it is to the next row and the next column.
//! One of the two is a single element away, so every block of it is a strided region.

use std::ops::Range;

use bytemuck::Pod;
use outcore_core::file::FILE_BLOCK_BYTES;
use outcore_core::format::Dense;
use outcore_core::{Order, Result};
use outcore_engine::{Block, ExtentRef, Region};
use outcore_kernels::{MatMut, MatRef, view, view_mut};

/// What writing a row by itself costs, in bytes that are read and written in order: the sectors at
/// its ends are read and written too, each by a request.
const ROW_COST_BYTES: u64 = 16 << 10;

/// Element (i, j) is `i * row_stride + j * col_stride` elements behind `offset` bytes.
///
/// ```
/// use outcore_core::format::{DType, Order, npy};
/// use outcore_engine::{Extent, Plan};
/// use outcore_matrix::Layout;
/// # use std::sync::Arc;
/// # use outcore_device::MemoryDevice;
///
/// let (dense, _) = npy("x.npy", DType::F32, &[300, 200], Order::Row)?;
/// let layout = Layout::of(&dense);
/// assert!(layout.by_rows() && !layout.transposed().by_rows());
/// assert!(layout.is_dense_by_rows_across_blocks());
/// # let device = Arc::new(MemoryDevice::new("x", dense.file_bytes()));
/// let mut plan = Plan::new("look");
/// let extent = plan.extent(&Extent::new("x", device));
/// let tile = layout.tile(extent, 10..20, 0..5);
/// assert_eq!((tile.rows, tile.cols, tile.transposed().rows), (10, 5, 5));
/// # Ok::<(), outcore_core::FormatError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before element (0, 0).
    pub offset: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Elements from one row to the next.
    pub row_stride: u64,
    /// Elements from one column to the next.
    pub col_stride: u64,
    /// Bytes of an element.
    pub element: u64,
}

impl Layout {
    /// Rows follow each other without a gap, and not all of them begin where a block of the file
    /// system does.
    pub fn is_dense_by_rows_across_blocks(&self) -> bool {
        let aligned = |bytes: u64| bytes.is_multiple_of(FILE_BLOCK_BYTES);
        let aligned = aligned(self.offset) && aligned(self.row_stride * self.element);
        self.col_stride == 1 && self.row_stride == self.cols && !aligned
    }

    /// In a file without the bytes that [`Dense::shift`] says.
    pub fn of(dense: &Dense) -> Layout {
        let (row_stride, col_stride) = match dense.order {
            Order::Row => (dense.leading_dimension, 1),
            Order::Column => (1, dense.leading_dimension),
        };
        let offset = dense.data_offset - dense.shift();
        Layout {
            offset,
            rows: dense.rows,
            cols: dense.cols,
            row_stride,
            col_stride,
            element: dense.dtype.bytes(),
        }
    }

    /// Rows as columns.
    pub fn transposed(&self) -> Layout {
        Layout {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..*self
        }
    }

    /// Some of its rows and columns.
    pub(crate) fn sliced(&self, rows: Range<u64>, cols: Range<u64>) -> Layout {
        let skipped = rows.start * self.row_stride + cols.start * self.col_stride;
        Layout {
            offset: self.offset + skipped * self.element,
            rows: rows.end - rows.start,
            cols: cols.end - cols.start,
            ..*self
        }
    }

    /// Whether the elements of a row lie next to each other (else those of a column do).
    pub fn by_rows(&self) -> bool {
        match (self.col_stride == 1, self.row_stride == 1) {
            (true, true) => self.cols > 1 || self.rows == 1,
            (by_rows, _) => by_rows,
        }
    }

    /// A block of it, as a region of an extent.
    pub fn tile(&self, extent: ExtentRef, rows: Range<u64>, cols: Range<u64>) -> Tile {
        let part = self.sliced(rows, cols);
        let by_rows = self.by_rows();
        let (runs, length, stride) = match by_rows {
            true => (part.rows, part.cols, part.row_stride),
            false => (part.cols, part.rows, part.col_stride),
        };
        let row_bytes = length * self.element;
        let stride = if runs <= 1 {
            row_bytes
        } else {
            (stride * self.element).max(row_bytes)
        };
        let region = Region {
            extent,
            offset: part.offset,
            row_bytes,
            stride,
            rows: runs,
        };
        Tile {
            region,
            rows: part.rows as usize,
            cols: part.cols as usize,
            by_rows,
        }
    }
}

/// A block of a matrix: which bytes, and how they are rows and columns once in memory.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_engine::{Plan, Task};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let mut plan = Plan::new("doubles");
/// let target = Output::Scratch.target(&session, DType::F32, &[3, 2], Order::Row, &mut plan)?;
/// let from = x.region(&mut plan, 0..3, 0..2)?;
/// let into = target.region(&mut plan, 0..3, 0..2)?;
/// assert!(from.is_by_rows());
/// plan.task(Task::new("double").read(from.region).write(into.region).run(move |cx| {
///     let [read, written] = cx.blocks else { unreachable!("two were declared") };
///     let (x, mut y) = (from.of::<f32>(read)?, into.of_mut::<f32>(written)?);
///     (0..3).for_each(|row| (0..2).for_each(|column| y[(row, column)] = 2.0 * x[(row, column)]));
///     Ok(())
/// }));
/// let y = target.job(&session, vec![plan])?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// Its bytes.
    pub region: Region,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    by_rows: bool,
}

impl Tile {
    /// Whether rows are runs of memory.
    pub fn is_by_rows(&self) -> bool {
        self.by_rows || self.cols <= 1 && self.rows <= 1
    }

    /// All bytes from the first to the last, to be read and written as one where rows are short and
    /// not far apart: a request a row costs more than the bytes between them.
    pub(crate) fn short_rows_as_one(&self) -> Option<Region> {
        let Region {
            row_bytes,
            stride,
            rows,
            ..
        } = self.region;
        let is_cheaper = rows > 1 && stride > row_bytes && stride <= ROW_COST_BYTES + row_bytes;
        is_cheaper.then(|| {
            let bytes = (rows - 1) * stride + row_bytes;
            Region::span(self.region.extent, self.region.offset, bytes)
        })
    }

    /// The block's elements, in a block of all bytes from the first to the last.
    pub(crate) fn within_mut<'a, T: Pod>(&self, block: &'a mut Block) -> Result<MatMut<'a, T>> {
        let apart = self.region.stride as usize / size_of::<T>();
        let (row_stride, col_stride) = if self.by_rows { (apart, 1) } else { (1, apart) };
        let (rows, cols) = (self.rows, self.cols);
        Ok(view_mut(
            block.slice_mut::<T>(),
            rows,
            cols,
            row_stride,
            col_stride,
        )?)
    }

    /// The same bytes as the transposed block.
    pub fn transposed(self) -> Tile {
        Tile {
            rows: self.cols,
            cols: self.rows,
            by_rows: !self.by_rows,
            ..self
        }
    }

    fn strides<T>(&self, block: &Block) -> (usize, usize) {
        if self.by_rows {
            (block.pitch::<T>(), 1)
        } else {
            (1, block.pitch::<T>())
        }
    }

    /// The block's elements.
    pub fn of<'a, T: Pod>(&self, block: &'a Block) -> Result<MatRef<'a, T>> {
        let (row_stride, col_stride) = self.strides::<T>(block);
        Ok(view(
            block.slice::<T>(),
            self.rows,
            self.cols,
            row_stride,
            col_stride,
        )?)
    }

    /// The block's elements, to be changed.
    pub fn of_mut<'a, T: Pod>(&self, block: &'a mut Block) -> Result<MatMut<'a, T>> {
        let (row_stride, col_stride) = self.strides::<T>(block);
        Ok(view_mut(
            block.slice_mut::<T>(),
            self.rows,
            self.cols,
            row_stride,
            col_stride,
        )?)
    }
}
