//! New sparse matrices: their files, made together and named together, and the regions that plans
//! write.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use outcore_core::format::Vector;
use outcore_core::{DType, Error, RealType, Result, Session, StoredFile};
use outcore_engine::{Extent, ExtentRef, Plan, Region, Task};
use outcore_store::{NewObjects, locate};

use super::{Sparse, names};
use crate::sparse::format::{Compressed, Description, Entries};

/// What a new matrix is going to be.
#[derive(Clone, Copy, Debug)]
pub struct SparseShape {
    /// Rows or columns as lines.
    pub format: Compressed,
    /// Lines.
    pub lines: u64,
    /// Minor indices of a line.
    pub width: u64,
    /// Entries.
    pub entries: u64,
    /// The type of indices.
    pub index: DType,
    /// The type of values.
    pub real: RealType,
    /// Whether values are stored; else all are one.
    pub has_values: bool,
}

impl SparseShape {
    /// The shape of a matrix that is there.
    pub fn of(matrix: &Sparse) -> SparseShape {
        SparseShape {
            format: matrix.format(),
            lines: matrix.lines(),
            width: matrix.width(),
            entries: matrix.nonzeros(),
            index: matrix.index_element(),
            real: matrix.real(),
            has_values: matrix.has_values(),
        }
    }

    pub(super) fn description(&self) -> Description {
        let shape = self.format.lines_first([self.lines, self.width]);
        Description {
            format: self.format,
            shape,
            nonzeros: Some(self.entries),
            dtype: Some(self.real.into()),
            layout: Entries::Arrays,
        }
    }

    fn vectors(&self) -> [(&'static str, Vector); 3] {
        [
            (names::OFFSETS, Vector::new(DType::I64, self.lines + 1)),
            (names::INDICES, Vector::new(self.index, self.entries)),
            (names::VALUES, Vector::new(self.real.into(), self.entries)),
        ]
    }

    /// The least type for numbers below `width`.
    pub fn index_for(width: u64) -> DType {
        if width <= 1 << 31 {
            DType::I32
        } else {
            DType::I64
        }
    }
}

/// A matrix whose files are there but not yet written.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_engine::{Plan, Task};
/// use outcore_matrix::sparse::{NewSparse, SparseShape};
///
/// // As many entries as `a` has, and where they are, but all of them one.
/// let shape = SparseShape { has_values: false, index: SparseShape::index_for(3), ..SparseShape::of(&a) };
/// let mut plan = Plan::new("copy");
/// let new = NewSparse::make(&session, Some(folder.path().join("b")), shape, &mut plan)?;
/// assert_eq!((new.shape().entries, new.nbytes()), (3, 3 * 8 + 3 * 4));
/// let (offsets, indices) = (new.offsets(&mut plan, 0..3), new.indices(&mut plan, 0..3));
/// assert!(new.values(&mut plan, 0..3).is_none());
/// // For plans that are made later.
/// let arrays = new.arrays().clone();
/// assert_eq!((arrays.shape().lines, arrays.offsets(&mut plan, 0..3)), (2, offsets));
/// assert_eq!((arrays.indices(&mut plan, 0..3), arrays.values(&mut plan, 0..3)), (indices, None));
/// plan.task(Task::new("all").write(offsets).write(indices).run(|cx| {
///     cx.blocks[0].slice_mut::<i64>().copy_from_slice(&[0, 2, 3]);
///     cx.blocks[1].slice_mut::<i32>().copy_from_slice(&[0, 2, 1]);
///     Ok(())
/// }));
/// session.run_until(plan, &|| false)?;
/// assert_eq!(new.finish(&|| false)?.nonzeros(), 3);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct NewSparse {
    session: Session,
    path: Option<PathBuf>,
    objects: Option<Box<dyn NewObjects>>,
    arrays: NewArrays,
}

/// The arrays of a matrix that is being made, for the plans that write to them.
#[derive(Clone)]
pub struct NewArrays {
    shape: SparseShape,
    /// Offsets, indices and, where there are any, values.
    files: Vec<(Vector, Arc<StoredFile>)>,
}

impl NewSparse {
    /// Makes room, in a new folder or in scratch. The plan writes the headers.
    pub fn make(
        session: &Session,
        path: Option<PathBuf>,
        shape: SparseShape,
        plan: &mut Plan,
    ) -> Result<NewSparse> {
        let vectors = shape
            .vectors()
            .into_iter()
            .take(if shape.has_values { 3 } else { 2 });
        let mut objects = match &path {
            Some(path) if !session.plans_only() => {
                let (store, name) = locate(path)?;
                Some(store.create_together(&name, &names::ALL)?)
            }
            _ => None,
        };
        let mut files = Vec::new();
        for (name, vector) in vectors {
            let file = match (&mut objects, &path) {
                (Some(objects), Some(path)) => {
                    let device = objects.create(name, vector.file_bytes())?;
                    Arc::new(session.device_file(path.join(name).display().to_string(), device))
                }
                _ => session.scratch_file(path.as_deref(), vector.file_bytes())?,
            };
            header(plan, file.extent(), vector.header());
            files.push((vector, file));
        }
        if let (Some(objects), Some(path)) = (&mut objects, &path) {
            let text = shape.description().text().into_bytes();
            let device = objects.create(names::DESCRIPTION, text.len() as u64)?;
            let object = path.join(names::DESCRIPTION).display().to_string();
            header(plan, session.device_file(object, device).extent(), text);
        }
        Ok(NewSparse {
            session: session.clone(),
            path,
            objects,
            arrays: NewArrays { shape, files },
        })
    }

    /// Its arrays.
    pub fn arrays(&self) -> &NewArrays {
        &self.arrays
    }

    /// What it is going to be.
    pub fn shape(&self) -> &SparseShape {
        &self.arrays.shape
    }

    /// Bytes of its arrays.
    pub fn nbytes(&self) -> u64 {
        self.arrays
            .files
            .iter()
            .map(|(vector, _)| vector.len * vector.element.bytes())
            .sum()
    }

    /// Offsets (0), indices (1) or values (2): the extent, and where the first of them is.
    pub(super) fn column(&self, plan: &mut Plan, which: usize) -> (ExtentRef, u64) {
        let (vector, file) = &self.arrays.files[which];
        (plan.extent(file.extent()), vector.data_offset)
    }

    /// Offsets, int64, of which the number of lines and one more are.
    pub fn offsets(&self, plan: &mut Plan, range: Range<u64>) -> Region {
        self.arrays.offsets(plan, range)
    }

    /// Indices of some entries.
    pub fn indices(&self, plan: &mut Plan, entries: Range<u64>) -> Region {
        self.arrays.indices(plan, entries)
    }

    /// Values of some entries, where there are any.
    pub fn values(&self, plan: &mut Plan, entries: Range<u64>) -> Option<Region> {
        self.arrays.values(plan, entries)
    }

    /// The matrix, under its name if it is to have one, unless `stop` says that it is not
    /// wanted. All is written.
    ///
    /// # Errors
    /// What keeps it from being made whole; [`Error::Cancelled`].
    pub fn finish(self, stop: &dyn Fn() -> bool) -> Result<Sparse> {
        if stop() {
            return Err(Error::Cancelled);
        }
        let NewSparse {
            session,
            path,
            objects,
            arrays: NewArrays { shape, files },
        } = self;
        if let (Some(objects), Some(path)) = (objects, path) {
            objects.commit()?;
            return Sparse::open_until(&session, path, stop);
        }
        let SparseShape {
            lines,
            width,
            real,
            format,
            ..
        } = shape;
        Sparse::of_files(
            &session,
            "scratch".into(),
            format,
            [lines, width],
            real,
            files,
            stop,
        )
    }
}

impl NewArrays {
    /// What the matrix is going to be.
    pub fn shape(&self) -> &SparseShape {
        &self.shape
    }

    /// As [`NewSparse::offsets`].
    pub fn offsets(&self, plan: &mut Plan, range: Range<u64>) -> Region {
        self.region(plan, 0, range)
    }

    /// As [`NewSparse::indices`].
    pub fn indices(&self, plan: &mut Plan, entries: Range<u64>) -> Region {
        self.region(plan, 1, entries)
    }

    /// As [`NewSparse::values`].
    pub fn values(&self, plan: &mut Plan, entries: Range<u64>) -> Option<Region> {
        self.shape.has_values.then(|| self.region(plan, 2, entries))
    }

    fn region(&self, plan: &mut Plan, which: usize, range: Range<u64>) -> Region {
        let (vector, file) = &self.files[which];
        let (extent, size): (ExtentRef, u64) = (plan.extent(file.extent()), vector.element.bytes());
        Region::span(
            extent,
            vector.data_offset + range.start * size,
            (range.end - range.start) * size,
        )
    }
}

/// A task that writes bytes to the start of a file.
pub(super) fn header(plan: &mut Plan, extent: &Extent, bytes: Vec<u8>) {
    let region = Region::span(plan.extent(extent), 0, bytes.len() as u64);
    plan.task(Task::new("header").write(region).run(move |cx| {
        cx.blocks[0].bytes_mut().copy_from_slice(&bytes);
        Ok(())
    }));
}
