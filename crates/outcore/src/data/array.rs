//! Dense matrices on SSD, and views of them.
//!
//! A view is arithmetic on a layout: where element (0, 0) is, and how far it is to the next row
//! and the next column. One of the two is a single element away, so every block of a view is a
//! strided region of its file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outcore_device::{Buf, Locked, Shared};
use outcore_engine::{Block, Extent, ExtentRef, Plan, Region, Task};
use outcore_kernels::{MatMut, MatRef, Real, convert_into, copy_into, view, view_mut};

use crate::data::file::{StoredFile, Writer};
use crate::data::format::{DType, Dense, Order};
use crate::error::{Error, Result};
use crate::job::{Job, Segments};
use crate::memory_split::MemorySplit;
use crate::session::Session;

/// What file systems map, mark as written and lock at a time.
pub(crate) const FILE_BLOCK_BYTES: u64 = 4096;

/// Element (i, j) is `i * row_stride + j * col_stride` elements behind `offset` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) offset: u64,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    pub(crate) row_stride: u64,
    pub(crate) col_stride: u64,
}

impl Layout {
    /// Rows follow each other without a gap, and not all of them begin where a block of the file
    /// system does.
    pub(crate) fn is_dense_by_rows_across_blocks(&self, element: u64) -> bool {
        let aligned = |bytes: u64| bytes.is_multiple_of(FILE_BLOCK_BYTES);
        let aligned = aligned(self.offset) && aligned(self.row_stride * element);
        self.col_stride == 1 && self.row_stride == self.cols && !aligned
    }

    /// In a file without the bytes that [`Dense::shift`] says.
    pub(crate) fn of(dense: &Dense) -> Layout {
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
        }
    }

    pub(crate) fn transposed(&self) -> Layout {
        Layout {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..*self
        }
    }

    fn sliced(&self, rows: Range<u64>, cols: Range<u64>, element: u64) -> Layout {
        let skipped = rows.start * self.row_stride + cols.start * self.col_stride;
        Layout {
            offset: self.offset + skipped * element,
            rows: rows.end - rows.start,
            cols: cols.end - cols.start,
            ..*self
        }
    }

    /// Whether the elements of a row lie next to each other (else those of a column do).
    pub(crate) fn by_rows(&self) -> bool {
        match (self.col_stride == 1, self.row_stride == 1) {
            (true, true) => self.cols > 1 || self.rows == 1,
            (by_rows, _) => by_rows,
        }
    }

    /// A block of it, as a region of an extent.
    pub(crate) fn tile(
        &self,
        extent: ExtentRef,
        rows: Range<u64>,
        cols: Range<u64>,
        element: u64,
    ) -> Tile {
        let part = self.sliced(rows, cols, element);
        let by_rows = self.by_rows();
        let (runs, length, stride) = match by_rows {
            true => (part.rows, part.cols, part.row_stride),
            false => (part.cols, part.rows, part.col_stride),
        };
        let row_bytes = length * element;
        let stride = if runs <= 1 {
            row_bytes
        } else {
            (stride * element).max(row_bytes)
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) region: Region,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    by_rows: bool,
}

impl Tile {
    /// Whether rows are runs of memory.
    pub(crate) fn is_by_rows(&self) -> bool {
        self.by_rows || self.cols <= 1 && self.rows <= 1
    }

    /// The same bytes as the transposed block.
    pub(crate) fn transposed(self) -> Tile {
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
    pub(crate) fn of<'a, T: Real>(&self, block: &'a Block) -> Result<MatRef<'a, T>> {
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
    pub(crate) fn of_mut<'a, T: Real>(&self, block: &'a mut Block) -> Result<MatMut<'a, T>> {
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

/// A dense matrix or vector on SSD, or a view of one. Clones share the file.
#[derive(Clone)]
pub struct Array {
    session: Session,
    file: Arc<StoredFile>,
    layout: Layout,
    dtype: DType,
    ndim: u8,
}

impl Array {
    pub(crate) fn new(
        session: Session,
        file: Arc<StoredFile>,
        layout: Layout,
        dtype: DType,
        ndim: u8,
    ) -> Array {
        Array {
            session,
            file,
            layout,
            dtype,
            ndim,
        }
    }

    pub(crate) fn extent(&self) -> &Extent {
        self.file.extent()
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The same array for calls that may have all of its session's budget, where a
    /// [part](Session::part) of it made the array.
    #[must_use]
    pub fn with_whole_budget(self) -> Array {
        let session = self.session.whole();
        Array { session, ..self }
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// One number for a vector, two for a matrix.
    pub fn shape(&self) -> Vec<u64> {
        if self.ndim == 1 {
            vec![self.layout.rows]
        } else {
            vec![self.layout.rows, self.layout.cols]
        }
    }

    /// 1 or 2.
    pub fn ndim(&self) -> usize {
        usize::from(self.ndim)
    }

    /// Rows; of a vector, its elements.
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// Columns; of a vector, 1.
    pub fn cols(&self) -> u64 {
        self.layout.cols
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of the elements, gaps left out.
    pub fn nbytes(&self) -> u64 {
        self.layout.rows * self.layout.cols * self.dtype.bytes()
    }

    /// Which elements lie next to each other.
    pub fn order(&self) -> Order {
        if self.layout.by_rows() {
            Order::Row
        } else {
            Order::Column
        }
    }

    /// The file; `None` for an unnamed result.
    pub fn path(&self) -> Option<&Path> {
        self.file.path()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        self.extent().name()
    }

    /// The transpose, a view. A vector is its own.
    pub fn t(&self) -> Array {
        if self.ndim == 1 {
            self.clone()
        } else {
            Array {
                layout: self.layout.transposed(),
                ..self.clone()
            }
        }
    }

    /// Whether some element of one is an element of the other.
    fn shares_bytes(&self, other: &Array) -> bool {
        if !self.file.is_same(&other.file) {
            return false;
        }
        let extent = Plan::new("overlap").extent(self.extent());
        let whole = |array: &Array| {
            let region = array
                .layout
                .tile(
                    extent,
                    0..array.rows(),
                    0..array.cols(),
                    array.dtype.bytes(),
                )
                .region;
            Region {
                offset: region.offset + array.file.shift(),
                ..region
            }
        };
        whole(self).overlaps(&whole(other))
    }

    /// Some rows and columns, a view. Of a vector, `cols` is `0..1`.
    ///
    /// # Errors
    /// [`Error::Shape`] when they are not all there.
    pub fn slice(&self, rows: Range<u64>, cols: Range<u64>) -> Result<Array> {
        let inside = |range: &Range<u64>, end: u64| range.start <= range.end && range.end <= end;
        if !inside(&rows, self.rows()) || !inside(&cols, self.cols()) {
            return Err(Error::shape(format!(
                "rows {rows:?} and columns {cols:?} are not all in {}, which is {:?}",
                self.name(),
                self.shape()
            )));
        }
        Ok(Array {
            layout: self.layout.sliced(rows, cols, self.dtype.bytes()),
            ..self.clone()
        })
    }

    /// Reads the view into memory, row after row, native-endian. Holds the result besides the
    /// budget.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when not even one row fits the budget.
    pub fn read(&self) -> Result<Job<Buf>> {
        let buf = Buf::anonymous(self.nbytes() as usize).map_err(|source| Error::NoMemory {
            bytes: self.nbytes(),
            source,
        })?;
        self.read_into(buf)
    }

    /// Reads the view into the caller's memory, row after row: the first [`nbytes`](Array::nbytes)
    /// bytes of it.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is too little memory; [`Error::OverBudget`].
    pub fn read_into(&self, into: Buf) -> Result<Job<Buf>> {
        if (into.len() as u64) < self.nbytes() {
            return Err(Error::shape(format!(
                "{} has {} bytes, the memory to read it into {}",
                self.name(),
                self.nbytes(),
                into.len()
            )));
        }
        match self.dtype {
            DType::F32 => self.read_as::<f32>(into),
            DType::F64 => self.read_as::<f64>(into),
        }
    }

    fn read_as<T: Real>(&self, into: Buf) -> Result<Job<Buf>> {
        let mut plan = Plan::new(format!("read {}", self.name()));
        let extent = plan.extent(self.extent());
        let (whole, mut rest) = into.lend();
        let pitch = self.cols() as usize;
        if self.is_cut_by_columns(self.share()) {
            // Columns lie between each other: one task at a time puts some in their place.
            let all = Arc::new(Mutex::new(rest));
            for (rows, cols) in self.whole_runs() {
                let (all, left) = (Arc::clone(&all), cols.start as usize);
                let tile = self.layout.tile(extent, rows, cols, self.dtype.bytes());
                plan.task(Task::new("read").read(tile.region).run(move |cx| {
                    let mut all = all.locked();
                    let out = view_mut(
                        bytemuck::cast_slice_mut::<u8, T>(&mut all),
                        tile.rows,
                        pitch,
                        pitch,
                        1,
                    )?;
                    Ok(copy_into(
                        out.subcols_mut(left, tile.cols),
                        tile.of::<T>(&cx.blocks[0])?,
                    )?)
                }));
            }
        } else {
            for (rows, cols) in self.whole_runs() {
                let tile = self.layout.tile(extent, rows, cols, self.dtype.bytes());
                let mut piece = rest.split_to(tile.rows * pitch * size_of::<T>());
                plan.task(Task::new("read").read(tile.region).run(move |cx| {
                    let out = view_mut(
                        bytemuck::cast_slice_mut::<u8, T>(&mut piece),
                        tile.rows,
                        pitch,
                        pitch,
                        1,
                    )?;
                    Ok(copy_into(out, tile.of::<T>(&cx.blocks[0])?)?)
                }));
            }
            drop(rest);
        }
        plan.bound(self.nbytes());
        let taken = |_| Error::Failed {
            what: "a task still holds memory of the result".into(),
        };
        Job::new(&self.session, vec![plan], move |_| {
            whole.reclaim().map_err(taken)
        })
    }

    /// Writes the whole view in place from memory, row after row, native-endian.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are too few bytes; [`Error::OverBudget`]; at the start, what
    /// keeps the file from being written.
    pub fn write(&self, from: Shared) -> Result<Job<()>> {
        if (from.len() as u64) < self.nbytes() {
            return Err(Error::shape(format!(
                "{} has {} bytes, the memory to write {}",
                self.name(),
                self.nbytes(),
                from.len()
            )));
        }
        match self.dtype {
            DType::F32 => self.write_as::<f32>(from),
            DType::F64 => self.write_as::<f64>(from),
        }
    }

    fn write_as<T: Real>(&self, from: Shared) -> Result<Job<()>> {
        let writer = Writer::plan(&self.file);
        let mut plan = Plan::new(format!("write {}", self.name()));
        let extent = plan.extent(&writer.extent());
        let pitch = self.cols();
        for (rows, cols) in self.whole_runs() {
            let (first, last) = (
                rows.start * pitch + cols.start,
                (rows.end - 1) * pitch + cols.end,
            );
            let piece = from.slice(first as usize * size_of::<T>()..last as usize * size_of::<T>());
            let tile = self.layout.tile(extent, rows, cols, self.dtype.bytes());
            plan.task(Task::new("write").write(tile.region).run(move |cx| {
                let values = view(
                    bytemuck::cast_slice::<u8, T>(&piece),
                    tile.rows,
                    tile.cols,
                    pitch as usize,
                    1,
                )?;
                Ok(copy_into(tile.of_mut::<T>(&mut cx.blocks[0])?, values)?)
            }));
        }
        plan.bound(self.nbytes());
        Ok(Job::new(&self.session, vec![plan], |_| Ok(()))?.writes(Some(writer), None))
    }

    /// Rows, or columns, cut so that several cuts fit the memory that is free.
    fn whole_runs(&self) -> Vec<(Range<u64>, Range<u64>)> {
        let (rows, cols) = (self.rows(), self.cols());
        match self.is_cut_by_columns(self.share()) {
            true => self
                .row_panels(self.layout.transposed())
                .into_iter()
                .map(|cols| (0..rows, cols))
                .collect(),
            false => self
                .row_panels(self.layout)
                .into_iter()
                .map(|rows| (rows, 0..cols))
                .collect(),
        }
    }

    /// Whether columns are what lies in one piece in the file, and no longer than `share` bytes, so
    /// that they are moved whole.
    pub(crate) fn is_cut_by_columns(&self, share: u64) -> bool {
        !self.layout.by_rows() && self.rows() * self.dtype.bytes() <= share
    }

    /// Bytes of a block of which all threads have one in use, and some are on their way.
    fn share(&self) -> u64 {
        MemorySplit::new(&self.session).moved_panel_bytes()
    }

    fn row_panels(&self, layout: Layout) -> Vec<Range<u64>> {
        if self.nbytes() == 0 {
            return Vec::new();
        }
        let (extent, element) = (
            Plan::new("panels").extent(self.extent()),
            self.dtype.bytes(),
        );
        let block = u64::from(self.extent().block());
        panels_that_fit(layout.rows, layout.cols * element, self.share(), |rows| {
            layout
                .tile(extent, rows, 0..layout.cols, element)
                .region
                .frame_bytes(block)
        })
    }

    /// Gives a [`draft`](Session::draft) its name and opens it; any other matrix is itself.
    ///
    /// # Errors
    /// [`Error::Store`] when it cannot be made durable or put in place; the file that had the name
    /// is then what it was.
    pub fn finish(self) -> Result<Array> {
        match (self.file.is_draft(), self.file.path()) {
            (true, Some(path)) => {
                self.session.commit(&self.file)?;
                self.session.open(path)
            }
            _ => Ok(self),
        }
    }

    /// Removes a draft, even while views of it exist.
    pub fn discard(&self) {
        self.file.discard();
    }

    /// A copy with another element type, order or place.
    ///
    /// # Errors
    /// As [`convert`].
    pub fn convert(&self, out: Output, dtype: DType, order: Order) -> Result<Job<Array>> {
        convert(&self.session, self.into(), out, dtype, order)
    }
}

/// A copy of an operand with another element type, order or place; of one in memory, the way to
/// store it.
///
/// Cost: reads x, writes the result.
///
/// # Errors
/// [`Error::Value`] when both share bytes, [`Error::OverBudget`]; what keeps the output from being
/// created.
pub fn convert(
    session: &Session,
    x: Operand,
    out: Output,
    dtype: DType,
    order: Order,
) -> Result<Job<Array>> {
    match (x.dtype(), dtype) {
        (DType::F32, DType::F32) => convert_as::<f32, f32>(session, &x, out, dtype, order),
        (DType::F32, DType::F64) => convert_as::<f32, f64>(session, &x, out, dtype, order),
        (DType::F64, DType::F32) => convert_as::<f64, f32>(session, &x, out, dtype, order),
        (DType::F64, DType::F64) => convert_as::<f64, f64>(session, &x, out, dtype, order),
    }
}

fn convert_as<T: Real, U: Real>(
    session: &Session,
    x: &Operand,
    out: Output,
    dtype: DType,
    order: Order,
) -> Result<Job<Array>> {
    out.check_distinct(&[x])?;
    let mut plan = Plan::new(format!("convert {}", x.name()));
    let target = out.target(session, dtype, &x.shape(), order, &mut plan)?;
    // The way to write comes first: a file that is also read is read by the same way.
    let into = plan.extent(&target.extent);
    let from = x.extent(&mut plan);
    let (layout, out_layout) = (x.layout(), target.array.layout);
    for (rows, cols) in convert_tiles(
        session,
        &layout,
        &out_layout,
        [x.dtype().bytes(), dtype.bytes()],
    ) {
        let source = layout.tile(from, rows.clone(), cols.clone(), x.dtype().bytes());
        let sink = out_layout.tile(into, rows, cols, dtype.bytes());
        plan.task(
            Task::new("convert")
                .read(source.region)
                .write(sink.region)
                .run(move |cx| {
                    let [source_block, sink_block] = cx.blocks else {
                        unreachable!("two were declared")
                    };
                    Ok(convert_into(
                        sink.of_mut::<U>(sink_block)?,
                        source.of::<T>(source_block)?,
                    )?)
                }),
        );
    }
    plan.bound(target.array.nbytes() + if x.is_stored() { x.bytes() } else { 0 });
    target.job(session, vec![plan])
}

/// Panels where both sides agree on what lies next to each other, else squares as large as memory
/// allows.
fn convert_tiles(
    session: &Session,
    layout: &Layout,
    out: &Layout,
    [source, sink]: [u64; 2],
) -> Vec<(Range<u64>, Range<u64>)> {
    let (rows, cols) = (layout.rows, layout.cols);
    let share = MemorySplit::new(session).moved_panel_bytes();
    let both = source + sink;
    if layout.by_rows() == out.by_rows() {
        return match out.by_rows() {
            true => panels(rows, cols * both, share)
                .into_iter()
                .map(|rows| (rows, 0..cols))
                .collect(),
            false => panels(cols, rows * both, share)
                .into_iter()
                .map(|cols| (0..rows, cols))
                .collect(),
        };
    }
    let (across, along) = sides_of_whole_sectors(share / both, source, sink);
    let (height, width) = if layout.by_rows() {
        (along, across)
    } else {
        (across, along)
    };
    cut(0..rows, height)
        .into_iter()
        .flat_map(|rows| {
            cut(0..cols, width)
                .into_iter()
                .map(move |cols| (rows.clone(), cols))
        })
        .collect()
}

/// The most bytes of a panel: enough that the device is busy with one, few enough that many are
/// under way.
const PANEL_BYTES: u64 = 8 << 20;

/// Cuts `0..end` as [`panels`] does, into ranges short enough that also the frame of one, padding
/// included, is within budget.
pub(crate) fn panels_that_fit(
    end: u64,
    bytes_each: u64,
    budget: u64,
    frame_bytes: impl Fn(Range<u64>) -> u64,
) -> Vec<Range<u64>> {
    let mut all = panels(end, bytes_each, budget);
    while let Some(first) = all.first().filter(|first| first.end > 1).cloned() {
        let (half, bytes) = (panels(end, 1, first.end / 2), frame_bytes(first));
        // Pieces of sectors take whole ones: from some length on, shorter pieces save nothing.
        if bytes <= budget.min(2 * PANEL_BYTES) || frame_bytes(half[0].clone()) >= bytes {
            break;
        }
        all = half;
    }
    all
}

/// Cuts `0..end` into ranges of equal length whose `bytes_each` add up to at most `budget`, at
/// least one each.
pub(crate) fn panels(end: u64, bytes_each: u64, budget: u64) -> Vec<Range<u64>> {
    let longest = (budget.min(PANEL_BYTES) / bytes_each.max(1)).clamp(1, end.max(1));
    let count = end.div_ceil(longest);
    let length = end.div_ceil(count.max(1)).max(1);
    (0..count)
        .map(|index| index * length..((index + 1) * length).min(end))
        .filter(|range| !range.is_empty())
        .collect()
}

/// Sides of a tile of at most `elements` elements, the first along the runs of a source and the
/// second along those of a sink: near-square, and where there is room for any such, with runs of
/// whole sectors in both.
fn sides_of_whole_sectors(elements: u64, source_bytes: u64, sink_bytes: u64) -> (u64, u64) {
    const SECTOR_BYTES: u64 = 512;
    let (source, sink) = (SECTOR_BYTES / source_bytes, SECTOR_BYTES / sink_bytes);
    let side = ((elements as f64).sqrt() as u64).max(1);
    match elements >= source * sink {
        true => {
            let first = (side / source * source).max(source);
            (first, (elements / first / sink * sink).max(sink))
        }
        false => (side, side),
    }
}

/// A range in steps; the last may be shorter.
pub(crate) fn cut(range: Range<u64>, step: u64) -> Vec<Range<u64>> {
    range
        .clone()
        .step_by(step.max(1) as usize)
        .map(|start| start..(start + step).min(range.end))
        .collect()
}

/// A matrix that an operation reads: on SSD, or in memory where it fits.
#[derive(Clone)]
pub enum Operand {
    /// On SSD.
    Stored(Array),
    /// In the caller's memory.
    Memory {
        /// The bytes from the first to the last element.
        bytes: Shared,
        /// Element type.
        dtype: DType,
        /// Rows.
        rows: u64,
        /// Columns.
        cols: u64,
        /// Elements from one row to the next.
        row_stride: u64,
        /// Elements from one column to the next; this or `row_stride` is 1.
        col_stride: u64,
    },
}

impl From<Array> for Operand {
    fn from(array: Array) -> Operand {
        Operand::Stored(array)
    }
}

impl From<&Array> for Operand {
    fn from(array: &Array) -> Operand {
        Operand::Stored(array.clone())
    }
}

impl Operand {
    /// Rows.
    pub fn rows(&self) -> u64 {
        self.layout().rows
    }

    /// Columns.
    pub fn cols(&self) -> u64 {
        self.layout().cols
    }

    /// As of an array; what is in memory is a matrix.
    pub fn shape(&self) -> Vec<u64> {
        match self {
            Operand::Stored(array) => array.shape(),
            Operand::Memory { rows, cols, .. } => vec![*rows, *cols],
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Operand::Stored(array) => array.dtype,
            Operand::Memory { dtype, .. } => *dtype,
        }
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        match self {
            Operand::Stored(array) => array.name(),
            Operand::Memory { .. } => "array in memory",
        }
    }

    /// The transpose.
    #[must_use]
    pub fn t(&self) -> Operand {
        match self.clone() {
            Operand::Stored(array) => Operand::Stored(Array {
                layout: array.layout.transposed(),
                ..array
            }),
            Operand::Memory {
                bytes,
                dtype,
                rows,
                cols,
                row_stride,
                col_stride,
            } => Operand::Memory {
                bytes,
                dtype,
                rows: cols,
                cols: rows,
                row_stride: col_stride,
                col_stride: row_stride,
            },
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        match self {
            Operand::Stored(array) => array.layout,
            &Operand::Memory {
                rows,
                cols,
                row_stride,
                col_stride,
                ..
            } => Layout {
                offset: 0,
                rows,
                cols,
                row_stride,
                col_stride,
            },
        }
    }

    /// Bytes of the budget that some rows of it take.
    pub(crate) fn frame_bytes(&self, rows: Range<u64>) -> u64 {
        let Operand::Stored(array) = self else {
            return 0;
        };
        let extent = Plan::new("frame").extent(array.extent());
        array
            .layout
            .tile(extent, rows, 0..array.cols(), array.dtype.bytes())
            .region
            .frame_bytes(u64::from(array.extent().block()))
    }

    pub(crate) fn is_stored(&self) -> bool {
        matches!(self, Operand::Stored(_))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rows() * self.cols() * self.dtype().bytes()
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        if self.is_stored() { self.bytes() } else { 0 }
    }

    /// Bytes of the budget that all of it takes, row by row.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        if self.layout().by_rows() {
            self.frame_bytes(0..self.rows())
        } else {
            self.bytes()
        }
    }

    /// Whether it has one dimension.
    pub(crate) fn is_vector(&self) -> bool {
        self.shape().len() == 1
    }

    /// The operand as an extent of a plan.
    pub(crate) fn extent(&self, plan: &mut Plan) -> ExtentRef {
        match self {
            Operand::Stored(array) => plan.extent(array.extent()),
            Operand::Memory { bytes, .. } => plan.resident("array in memory", bytes.clone()),
        }
    }
}

/// Where a result goes.
#[derive(Clone, Default)]
pub enum Output {
    /// The session's scratch folder; it goes with its last view.
    #[default]
    Scratch,
    /// A new `.npy` file, there when it is whole.
    New(PathBuf),
    /// A matrix that is there, changed in place.
    InPlace(Array),
}

/// An output that a plan writes to.
pub(crate) struct Target {
    pub(crate) array: Array,
    pub(crate) extent: Extent,
    writer: Option<Writer>,
    unfinished: Option<Arc<StoredFile>>,
}

impl Output {
    /// Refuses an output in place that an operand may still be read from.
    pub(crate) fn check_distinct(&self, operands: &[&Operand]) -> Result<()> {
        let Output::InPlace(out) = self else {
            return Ok(());
        };
        let shares = |operand: &&&Operand| matches!(operand, Operand::Stored(array) if out.shares_bytes(array));
        match operands.iter().find(shares) {
            Some(_) => Err(Error::value(format!(
                "{} is both an operand and the output; write to another matrix",
                out.name()
            ))),
            None => Ok(()),
        }
    }

    /// Makes room for a result, or checks what is there.
    pub(crate) fn target(
        self,
        session: &Session,
        dtype: DType,
        shape: &[u64],
        order: Order,
        plan: &mut Plan,
    ) -> Result<Target> {
        match self {
            Output::Scratch => {
                let array = session.temporary(dtype, shape, order)?;
                Ok(Target {
                    extent: array.extent().clone(),
                    array,
                    writer: None,
                    unfinished: None,
                })
            }
            Output::New(path) => {
                let array = session.unfinished(&path, dtype, shape, order, plan)?;
                Ok(Target {
                    extent: array.extent().clone(),
                    unfinished: Some(Arc::clone(&array.file)),
                    array,
                    writer: None,
                })
            }
            Output::InPlace(array) => {
                if array.dtype != dtype {
                    return Err(Error::DType {
                        what: format!("the result is {dtype}, {} is {}", array.name(), array.dtype),
                    });
                }
                if array.shape() != shape {
                    return Err(Error::shape(format!(
                        "the result is {shape:?}, {} is {:?}",
                        array.name(),
                        array.shape()
                    )));
                }
                let writer = Writer::plan(&array.file);
                Ok(Target {
                    extent: writer.extent(),
                    array,
                    writer: Some(writer),
                    unfinished: None,
                })
            }
        }
    }
}

impl Target {
    /// The job that fills it; its result is the array.
    pub(crate) fn job(self, session: &Session, plans: Vec<Plan>) -> Result<Job<Array>> {
        let array = self.array.clone();
        let job = Job::new(session, plans, move |_| Ok(array))?;
        self.filled_by(session, job)
    }

    /// The same, in segments.
    pub(crate) fn job_in_segments(
        self,
        session: &Session,
        plan: Plan,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Job<Array>> {
        let job = Job::in_segments(session, plan, make, self.array.clone())?;
        self.filled_by(session, job)
    }

    fn filled_by(self, session: &Session, job: Job<Array>) -> Result<Job<Array>> {
        let Target {
            writer, unfinished, ..
        } = self;
        let (new, session_of) = (unfinished.is_some(), session.clone());
        let job = job.writes(writer, unfinished);
        Ok(match new {
            // Opened like any other, it is written in place like any other.
            true => job.map(move |array| {
                array
                    .path()
                    .map_or_else(|| Ok(array.clone()), |path| session_of.open(path))
            }),
            false => job,
        })
    }
}
