//! Dense matrices on SSD, and views of them: arithmetic on a [`Layout`].

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::file::Writer;
use outcore_core::panels::panels_that_fit;
use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session, StoredFile};
use outcore_device::{Buf, Locked, Shared};
use outcore_engine::{Extent, Plan, Region, Task};
use outcore_kernels::{Real, copy_until, view, view_mut};

use crate::layout::Layout;

/// A dense matrix or vector on SSD, or a view of one. Clones share the file.
#[derive(Clone)]
pub struct Array {
    session: Session,
    pub(crate) file: Arc<StoredFile>,
    layout: Layout,
    dtype: DType,
    ndim: u8,
}

impl Array {
    /// The matrix of this layout in an open file.
    pub fn new(
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

    /// The bytes of its file as the engine sees them.
    pub fn extent(&self) -> &Extent {
        self.file.extent()
    }

    /// How its elements lie in the file.
    pub fn layout(&self) -> Layout {
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
            self.clone().transposed()
        }
    }

    /// The transpose, also of a vector, which is then a row.
    pub(crate) fn transposed(self) -> Array {
        Array {
            layout: self.layout.transposed(),
            ..self
        }
    }

    /// Whether some element of one is an element of the other.
    pub(crate) fn shares_bytes(&self, other: &Array) -> bool {
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
                    let stop = || cx.cancelled.load(Ordering::Relaxed);
                    Ok(copy_until(
                        out.subcols_mut(left, tile.cols),
                        tile.of::<T>(&cx.blocks[0])?,
                        &stop,
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
                    // A row may be longer than a panel.
                    let stop = || cx.cancelled.load(Ordering::Relaxed);
                    Ok(copy_until(out, tile.of::<T>(&cx.blocks[0])?, &stop)?)
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
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                Ok(copy_until(
                    tile.of_mut::<T>(&mut cx.blocks[0])?,
                    values,
                    &stop,
                )?)
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
    pub fn is_cut_by_columns(&self, share: u64) -> bool {
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

    /// Gives a [`draft`](Array::draft) its name and opens it; any other matrix is itself.
    ///
    /// # Errors
    /// [`Error::Store`] when it cannot be made durable or put in place; the file that had the name
    /// is then what it was.
    pub fn finish(self) -> Result<Array> {
        match (self.file.is_draft(), self.file.path()) {
            (true, Some(path)) => {
                self.session.commit(&self.file)?;
                Array::open(&self.session, path)
            }
            _ => Ok(self),
        }
    }

    /// As [`finish`](Array::finish), unless `stop` says so before all bytes are durable.
    ///
    /// # Errors
    /// As [`finish`](Array::finish); [`Error::Cancelled`].
    pub fn finish_until(self, stop: &dyn Fn() -> bool) -> Result<Array> {
        if self.file.is_draft() {
            let device = self.extent().device();
            outcore_device::flush_now(&**device).map_err(|source| Error::Device {
                object: device.name().to_owned(),
                source,
            })?;
            if stop() {
                return Err(Error::Cancelled);
            }
        }
        self.finish()
    }

    /// Removes a draft, even while views of it exist.
    pub fn discard(&self) {
        self.file.discard();
    }
}
