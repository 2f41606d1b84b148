//! Dense matrices on SSD, and views of them: arithmetic on a [`Layout`].

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use outcore_core::file::Writer;
use outcore_core::panels::panels_that_fit;
use outcore_core::{DType, Error, Job, MemorySplit, Order, RealType, Result, Session, StoredFile};
use outcore_device::{Buf, Locked, Shared};
use outcore_engine::{Extent, Plan, Region, Task, go_on};
use outcore_kernels::{copy_until, view, view_mut};

use crate::decoders::decoder_of;
use crate::layout::Layout;

/// Runs `$body` with `$T` standing for a type of the size of a [`DType`]: elements are moved and not
/// looked at.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.bytes() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = f32;
                $body
            }
            8 => {
                type $T = f64;
                $body
            }
            _ => {
                type $T = [f64; 2];
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// A dense matrix or vector on SSD, or a view of one. Clones share the file.
///
/// An array of more dimensions is one of rows too: `cols` counts the elements of all dimensions but
/// the first.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let x = Array::temporary(&session, DType::F32, &[3, 2], Order::Row)?;
/// x.copy_from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!((x.rows(), x.cols(), x.ndim(), x.shape()), (3, 2, 2, vec![3, 2]));
/// assert_eq!((x.dtype(), x.real()?, x.nbytes()), (DType::F32, RealType::F32, 24));
/// assert_eq!((x.order(), x.t().order()), (Order::Row, Order::Column));
/// println!("{} at {:?}, of {} bytes of memory", x.name(), x.path(), x.session().memory_bytes());
/// println!("{:?} of {} bytes", x.layout(), x.extent().len());
/// assert!(x.t().is_cut_by_columns(1 << 20));
/// let whole = Array::temporary(&session.part(4 << 20)?, DType::U8, &[4], Order::Row)?.with_whole_budget();
/// assert_eq!(whole.session().memory_bytes(), 16 << 20);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Array {
    session: Session,
    pub(crate) file: Arc<StoredFile>,
    layout: Layout,
    dtype: DType,
    /// Extents of a row: none of a vector, one of a matrix.
    row_shape: Arc<[u64]>,
}

impl Array {
    /// The matrix of this layout in an open file.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_core::format::npy;
    /// use outcore_matrix::Layout;
    ///
    /// let path = folder.path().join("x.npy");
    /// let (dense, head) = npy("x.npy", DType::U8, &[2, 2], Order::Row)?;
    /// std::fs::write(&path, [&head[..], &[1, 2, 3, 4]].concat()).unwrap();
    /// let file = session.file(&path, false)?;
    /// let x = Array::new(session.clone(), file, Layout::of(&dense), DType::U8, &[2, 2]);
    /// assert_eq!(x.to_vec::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn new(
        session: Session,
        file: Arc<StoredFile>,
        layout: Layout,
        dtype: DType,
        shape: &[u64],
    ) -> Array {
        Array {
            session,
            file,
            layout,
            dtype,
            row_shape: shape[1..].into(),
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

    /// One number for a vector, two for a matrix, more for an array of more dimensions.
    pub fn shape(&self) -> Vec<u64> {
        match self.row_shape.len() {
            // Of a slice or a transpose, the layout knows.
            1 => vec![self.layout.rows, self.layout.cols],
            _ => [&[self.layout.rows], &*self.row_shape].concat(),
        }
    }

    /// Number of dimensions, 1 or more.
    pub fn ndim(&self) -> usize {
        1 + self.row_shape.len()
    }

    /// Rows; of a vector, its elements.
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// Columns; of a vector, 1.
    pub fn cols(&self) -> u64 {
        self.layout.cols
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The type that operations compute in with its elements, which are decoded on the way from the
    /// device where they are stored in fewer bits.
    ///
    /// # Errors
    /// [`Error::DType`] for elements that operations do not take.
    pub fn real(&self) -> Result<RealType> {
        self.dtype.real().ok_or_else(|| Error::DType {
            what: format!(
                "{} is {}, which is not computed with; {}",
                self.name(),
                self.dtype,
                self.dtype.conversion()
            ),
        })
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

    /// The transpose, a view. A vector is its own; of an array of more dimensions, its matrix of
    /// rows is transposed.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// assert_eq!(x.t().to_vec::<f32>()?, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn t(&self) -> Array {
        if self.row_shape.is_empty() {
            self.clone()
        } else {
            self.clone().transposed()
        }
    }

    /// The transpose, also of a vector, which is then a row.
    pub(crate) fn transposed(self) -> Array {
        // Of more dimensions, the matrix of rows is.
        let row_shape = match self.row_shape.len() {
            0 | 1 => Arc::clone(&self.row_shape),
            _ => [self.rows()].into(),
        };
        Array {
            layout: self.layout.transposed(),
            row_shape,
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
                .tile(extent, 0..array.rows(), 0..array.cols())
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
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let last_column = x.slice(1..3, 1..2)?;
    /// assert_eq!(last_column.to_vec::<f32>()?, [4.0, 6.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
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
        // A part of the columns has no more dimensions than a matrix.
        let row_shape = match cols == (0..self.cols()) {
            true => Arc::clone(&self.row_shape),
            false => self.row_shape[..self.row_shape.len().min(1)].into(),
        };
        Ok(Array {
            layout: self.layout.sliced(rows, cols),
            row_shape,
            ..self.clone()
        })
    }

    /// The same elements with other dimensions behind the first, a view: `[n, a, b]` as `[n, a b]`.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let images = Array::temporary(&session, DType::U8, &[10, 3, 8, 8], Order::Row)?;
    /// assert_eq!(images.reshaped(&[10, 192])?.shape(), [10, 192]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of elements or of rows, and for a matrix by columns that
    /// has more than one.
    pub fn reshaped(&self, shape: &[u64]) -> Result<Array> {
        let row = shape.get(1..).unwrap_or_default();
        let cols = row.iter().try_fold(1, |cols: u64, n| cols.checked_mul(*n));
        let alike = shape.first() == Some(&self.rows()) && cols == Some(self.cols());
        let follow = self.layout.by_rows() || cols == Some(1);
        match alike && (follow || row.len() == self.row_shape.len()) {
            true => Ok(Array {
                row_shape: row.into(),
                ..self.clone()
            }),
            false => Err(Error::shape(format!(
                "{} of shape {:?} by {} cannot be seen as {shape:?}: rows stay, and their elements follow each other",
                self.name(),
                self.shape(),
                if self.layout.by_rows() {
                    "rows"
                } else {
                    "columns"
                },
            ))),
        }
    }

    /// Bytes of the budget that a part takes while operations compute with it.
    pub(crate) fn frame_bytes(&self, rows: Range<u64>, cols: Range<u64>) -> u64 {
        let extent = Plan::new("frame").extent(self.extent());
        let region = self.layout.tile(extent, rows, cols).region;
        let block = u64::from(self.extent().sector());
        match decoder_of(self.dtype) {
            Some(decoder) => region.decoded_frame_bytes(block, &decoder),
            None => region.frame_bytes(block),
        }
    }

    /// Reads the view into memory, row after row, native-endian. Holds the result besides the
    /// budget.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let bytes = x.read()?.run()?;
    /// assert_eq!(bytes[..4], 1.0f32.to_ne_bytes());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
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
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let memory = Buf::anonymous(4096)?;
    /// let memory = x.read_into(memory)?.run()?;
    /// assert_eq!(memory[20..24], 6.0f32.to_ne_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        with_element!(self.dtype, T => self.read_as::<T>(into))
    }

    fn read_as<T: Pod>(&self, into: Buf) -> Result<Job<Buf>> {
        let mut plan = Plan::new(format!("read {}", self.name()));
        let extent = plan.extent(self.extent());
        let (whole, mut rest) = into.lend();
        let pitch = self.cols() as usize;
        if self.is_cut_by_columns(self.share()) {
            // Columns lie between each other: one task at a time puts some in their place.
            let all = Arc::new(Mutex::new(rest));
            for (rows, cols) in self.whole_runs() {
                go_on()?;
                let (all, left) = (Arc::clone(&all), cols.start as usize);
                let tile = self.layout.tile(extent, rows, cols);
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
                go_on()?;
                let tile = self.layout.tile(extent, rows, cols);
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
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let y = Array::temporary(&session, DType::U8, &[2, 2], Order::Row)?;
    /// let mut memory = Buf::anonymous(4)?;
    /// memory.copy_from_slice(&[1, 2, 3, 4]);
    /// y.write(memory.freeze())?.run()?;
    /// assert_eq!(y.to_vec::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        with_element!(self.dtype, T => self.write_as::<T>(from))
    }

    fn write_as<T: Pod>(&self, from: Shared) -> Result<Job<()>> {
        let writer = Writer::plan(&self.file);
        let mut plan = Plan::new(format!("write {}", self.name()));
        let extent = plan.extent(&writer.extent());
        let pitch = self.cols();
        for (rows, cols) in self.whole_runs() {
            go_on()?;
            let (first, last) = (
                rows.start * pitch + cols.start,
                (rows.end - 1) * pitch + cols.end,
            );
            let piece = from.slice(first as usize * size_of::<T>()..last as usize * size_of::<T>());
            let tile = self.layout.tile(extent, rows, cols);
            let span = tile.short_rows_as_one();
            let task = match span {
                Some(span) => Task::new("write").update(span),
                None => Task::new("write").write(tile.region),
            };
            plan.task(task.run(move |cx| {
                let values = view(
                    bytemuck::cast_slice::<u8, T>(&piece),
                    tile.rows,
                    tile.cols,
                    pitch as usize,
                    1,
                )?;
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                let block = &mut cx.blocks[0];
                let into = match span {
                    Some(_) => tile.within_mut::<T>(block)?,
                    None => tile.of_mut::<T>(block)?,
                };
                Ok(copy_until(into, values, &stop)?)
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
        let extent = Plan::new("panels").extent(self.extent());
        let block = u64::from(self.extent().sector());
        let row_bytes = layout.cols * layout.element;
        panels_that_fit(layout.rows, row_bytes, self.share(), |rows| {
            layout
                .tile(extent, rows, 0..layout.cols)
                .region
                .frame_bytes(block)
        })
    }

    /// Gives a [`draft`](Array::draft) its name and opens it; any other matrix is itself.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// let draft = Array::draft(&session, &path, DType::U8, &[2], Order::Row)?;
    /// draft.copy_from_slice(&[1u8, 2])?;
    /// assert!(!path.exists());
    /// let y = draft.finish()?;
    /// assert_eq!(Array::open(&session, &path)?.to_vec::<u8>()?, y.to_vec::<u8>()?);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
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
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// let draft = Array::draft(&session, &path, DType::U8, &[2], Order::Row)?;
    /// assert_eq!(draft.finish_until(&|| false)?.path(), Some(&*path));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
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
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("y.npy");
    /// let draft = Array::draft(&session, &path, DType::U8, &[2], Order::Row)?;
    /// draft.discard();
    /// assert!(!path.exists());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn discard(&self) {
        self.file.discard();
    }
}
