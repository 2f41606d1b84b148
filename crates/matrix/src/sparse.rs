//! Sparse matrices on SSD, and views of them.
//!
//! A sparse matrix is compressed along its lines: rows (CSR) or columns (CSC). Its transpose is the
//! same lines under the other name, so a view costs nothing. Work on it goes in pieces: some lines
//! with all their entries, or, where a line alone is too long, a part of it. Where pieces may begin
//! is found in one look at the offsets, when the matrix is opened.

mod compress;
mod create;
pub mod format;
mod pieces;
mod spread;
mod take;
mod tiles;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outcore_core::file::{DESCRIPTION_BYTES, read_text, read_vector_head};
use outcore_core::format::Vector;
use outcore_core::panels::cut;
use outcore_core::{
    DType, Error, FormatError, Job, MemorySplit, RealType, Result, Session, StoredFile, with_real,
};
use outcore_device::{Buf, Locked, Shared};
use outcore_engine::{ExtentRef, Plan, Region, Task};
use outcore_kernels::{Lines, Real};
use outcore_store::{Error as StoreError, Identity, locate};

pub use format::Compressed;
use format::Description;

pub use crate::{with_csr, with_lines};
pub use compress::compress;
pub use compress::compress_within;
pub use create::{NewSparse, SparseShape};
use pieces::Cut;
pub use pieces::{Piece, PieceBlocks, each_piece, whole_lines};
pub use take::SparseRows;
use tiles::Tiled;

/// Whether what goes on is to end early; asked some times a second.
type Stop<'a> = &'a dyn Fn() -> bool;

/// File names of the parts of a sparse matrix in its folder.
pub mod names {
    /// The description.
    pub const DESCRIPTION: &str = "matrix.json";
    /// Where the entries of each line begin.
    pub const OFFSETS: &str = "indptr.npy";
    /// The minor index of each entry.
    pub const INDICES: &str = "indices.npy";
    /// The value of each entry.
    pub const VALUES: &str = "data.npy";
    pub(crate) const TILES: &str = "tiles.npy";
    pub(crate) const ENTRIES: &str = "tiles.bin";
    /// Beside it, of what was imported.
    pub const LABELS: &str = "labels.npy";
    /// The query of each row.
    pub const QUERIES: &str = "queries.npy";
    /// A matrix of labels.
    pub const LABEL_FOLDER: &str = "labels";
    /// The word of each column.
    pub const WORDS: &str = "vocabulary.txt";
    /// The names of classes.
    pub const CLASSES: &str = "classes.txt";
    /// All of them.
    pub const ALL: [&str; 11] = [
        DESCRIPTION,
        OFFSETS,
        INDICES,
        VALUES,
        TILES,
        ENTRIES,
        LABELS,
        QUERIES,
        LABEL_FOLDER,
        WORDS,
        CLASSES,
    ];
}

/// A sparse matrix on SSD or in memory, or a view of one: its transpose, or some of its lines.
/// Clones share the files.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // a = [[1, 0, 2], [0, 3, 0]]
/// assert_eq!((a.shape(), a.rows(), a.cols(), a.nonzeros()), ([2, 3], 2, 3, 3));
/// assert_eq!((a.dtype(), a.real(), a.index_element()), (DType::F32, RealType::F32, DType::I32));
/// assert_eq!((a.format(), a.lines(), a.width()), (Compressed::Rows, 2, 3));
/// assert!(a.has_values() && !a.is_tiled() && !a.is_stored());
/// println!("{}: {} bytes, {} of them on SSD", a.name(), a.nbytes(), a.stored_bytes());
/// assert_eq!((a.path(), a.session().memory_bytes()), (None, 16 << 20));
/// assert!(a.check_rows_together().is_ok() && a.t().check_rows_together().is_err());
/// assert_eq!(a.with_whole_budget().session().memory_bytes(), 16 << 20);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Sparse {
    session: Session,
    parts: Arc<Parts>,
    lines: Range<u64>,
    /// Of `lines`.
    entries: Range<u64>,
    format: Compressed,
}

/// What a matrix is made of.
struct Parts {
    name: String,
    path: Option<PathBuf>,
    lines: u64,
    width: u64,
    entries: u64,
    real: RealType,
    form: Form,
    cuts: Vec<Cut>,
}

/// How entries lie.
enum Form {
    Arrays {
        offsets: BackedVector,
        indices: BackedVector,
        /// `None` where all are one.
        values: Option<BackedVector>,
    },
    Tiled(Tiled),
}

/// One of its arrays.
struct BackedVector {
    vector: Vector,
    backing: Backing,
}

enum Backing {
    Stored(Arc<StoredFile>),
    Memory(Shared),
}

impl BackedVector {
    fn open(session: &Session, path: &Path) -> Result<BackedVector> {
        let file = session.file(path, false)?;
        let vector = read_vector_head(path, file.extent().name())?;
        Ok(match vector.shift() {
            0 => BackedVector {
                vector,
                backing: Backing::Stored(file),
            },
            shift => {
                let data_offset = vector.data_offset - shift;
                let file = session.file_from(path, false, shift)?;
                BackedVector {
                    vector: Vector {
                        data_offset,
                        ..vector
                    },
                    backing: Backing::Stored(file),
                }
            }
        })
    }

    fn name(&self) -> &str {
        match &self.backing {
            Backing::Stored(file) => file.extent().name(),
            Backing::Memory(_) => "array in memory",
        }
    }

    fn extent(&self, plan: &mut Plan) -> ExtentRef {
        match &self.backing {
            Backing::Stored(file) => plan.extent(file.extent()),
            Backing::Memory(bytes) => plan.resident("array in memory", bytes.clone()),
        }
    }

    fn region(&self, extent: ExtentRef, range: Range<u64>) -> Region {
        let size = self.vector.element.bytes();
        Region::span(
            extent,
            self.vector.data_offset + range.start * size,
            (range.end - range.start) * size,
        )
    }

    /// All its numbers, of 64 bits.
    fn numbers(&self, session: &Session, stop: Stop<'_>) -> Result<Vec<i64>> {
        let mut plan = Plan::new("read numbers");
        let (extent, found) = (
            self.extent(&mut plan),
            Arc::new(Mutex::new(vec![0; self.vector.len as usize])),
        );
        for range in cut(0..self.vector.len, 1 << 16) {
            let found = Arc::clone(&found);
            plan.task(
                Task::new("numbers")
                    .read(self.region(extent, range.clone()))
                    .run(move |cx| {
                        let mut found = found.locked();
                        found[range.start as usize..range.end as usize]
                            .copy_from_slice(cx.blocks[0].slice());
                        Ok(())
                    }),
            );
        }
        session.run_until(plan, stop)?;
        let numbers = std::mem::take(&mut *found.locked());
        Ok(numbers)
    }

    fn sector(&self) -> u64 {
        match &self.backing {
            Backing::Stored(file) => u64::from(file.extent().sector()),
            Backing::Memory(_) => 1,
        }
    }

    fn corrupt(&self, number: u64, reason: String) -> Error {
        let offset = self.vector.data_offset + number * self.vector.element.bytes();
        FormatError::Corrupt {
            object: self.name().to_owned(),
            offset,
            reason,
        }
        .into()
    }
}

/// Whole numbers of 64 bits that lie beside a matrix: the queries of its rows.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_matrix::sparse::Integers;
///
/// let path = folder.path().join("queries.npy");
/// Array::create(&session, &path, DType::I64, &[3], Order::Row)?.copy_from_slice(&[7i64, 7, 8])?;
/// let queries = Integers::open(&session, &path)?;
/// assert!(queries.len() == 3 && !queries.is_empty());
/// let read = queries.read_into(1..3, Buf::anonymous(16)?)?.run()?;
/// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read), [7, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Integers {
    session: Session,
    part: BackedVector,
}

impl Integers {
    /// # Errors
    /// [`Error::Store`] for a file that is not there, [`Error::Format`] for one that holds
    /// something else.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Integers> {
        let part = BackedVector::open(session, path.as_ref())?;
        match part.vector.element {
            DType::I64 => Ok(Integers {
                session: session.clone(),
                part,
            }),
            other => {
                let reason = format!("dtype {other}, where int64 is needed");
                Err(FormatError::Unsupported {
                    object: part.name().to_owned(),
                    reason,
                }
                .into())
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.part.vector.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads some of them into the caller's memory, of exactly the right length.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory of another length, and for numbers that are not all there;
    /// [`Error::OverBudget`].
    pub fn read_into(&self, range: Range<u64>, into: Buf) -> Result<Job<Buf>> {
        if range.start > range.end
            || range.end > self.len()
            || into.len() as u64 != 8 * (range.end - range.start)
        {
            let (name, len) = (self.part.name(), self.len());
            return Err(Error::shape(format!(
                "numbers {range:?} of {name}, which has {len}, into {} bytes",
                into.len()
            )));
        }
        let mut plan = Plan::new(format!("read {}", self.part.name()));
        let (extent, (whole, mut rest)) = (self.part.extent(&mut plan), into.lend());
        let at_once = MemorySplit::new(&self.session).block_bytes(1 << 20) / 8;
        for range in cut(range, at_once)
            .into_iter()
            .filter(|range| !range.is_empty())
        {
            let mut piece = rest.split_to(8 * (range.end - range.start) as usize);
            plan.task(
                Task::new("read")
                    .read(self.part.region(extent, range))
                    .run(move |cx| {
                        piece.copy_from_slice(cx.blocks[0].bytes());
                        Ok(())
                    }),
            );
        }
        drop(rest);
        let taken = |_| Error::Failed {
            what: "a task still holds memory of the result".into(),
        };
        Job::new(&self.session, vec![plan], move |_| {
            whole.reclaim().map_err(taken)
        })
    }
}

impl Sparse {
    /// A matrix of known parts, after a look at its offsets.
    fn new(
        session: &Session,
        mut parts: Parts,
        format: Compressed,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        parts.check()?;
        parts.cuts = pieces::find_cuts(session, &parts, stop)?;
        let (lines, entries) = (0..parts.lines, 0..parts.entries);
        Ok(Sparse {
            session: session.clone(),
            parts: Arc::new(parts),
            lines,
            entries,
            format,
        })
    }

    /// Which matrix lies at a path, if one does.
    pub fn identity(path: &Path) -> Option<Identity> {
        let (store, name) = locate(&path.join(names::DESCRIPTION)).ok()?;
        Some(store.stat(&name).ok()?.identity)
    }

    /// Opens a sparse matrix, a folder of arrays (see [`mod@format`]), and reads its offsets once.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("a");
    /// # std::fs::create_dir(&path).unwrap();
    /// # let create = |name, dtype, len| Array::create(&session, path.join(name), dtype, &[len], Order::Row);
    /// std::fs::write(path.join("matrix.json"), r#"{"format": "csr", "shape": [2, 3]}"#).unwrap();
    /// create("indptr.npy", DType::I64, 3)?.copy_from_slice(&[0i64, 2, 3])?;
    /// create("indices.npy", DType::I32, 3)?.copy_from_slice(&[0i32, 2, 1])?;
    /// create("data.npy", DType::F32, 3)?.copy_from_slice(&[1.0f32, 2.0, 3.0])?;
    /// let a = Sparse::open(&session, &path)?;
    /// assert_eq!((a.shape(), a.nonzeros()), ([2, 3], 3));
    /// assert!(Sparse::is_at(&path) && Sparse::identity(&path).is_some());
    /// assert!(Sparse::open_until(&session, &path, &|| false).is_ok());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for files that are not there, [`Error::Format`] for what is no sparse
    /// matrix.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<Sparse> {
        Sparse::open_until(session, path, &|| false)
    }

    /// As [`open`](Sparse::open), until `stop` says so.
    ///
    /// # Errors
    /// As [`open`](Sparse::open); [`Error::Cancelled`].
    pub fn open_until(session: &Session, path: impl AsRef<Path>, stop: Stop<'_>) -> Result<Sparse> {
        let path = path.as_ref();
        loop {
            // Another folder may take this one's name between the opening of two of its files.
            let before = Sparse::identity(path);
            let opened = Sparse::open_parts(session, path, stop);
            if Sparse::identity(path) == before {
                return opened;
            }
        }
    }

    /// Whether a sparse matrix may lie at a path: a folder is there, or a store has the
    /// description of a matrix under that name.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        match std::fs::metadata(path.as_ref()) {
            Ok(found) => found.is_dir(),
            Err(_) => Sparse::identity(path.as_ref()).is_some(),
        }
    }

    fn open_parts(session: &Session, path: &Path, stop: Stop<'_>) -> Result<Sparse> {
        let object = path.join(names::DESCRIPTION);
        let text = read_text(&object, DESCRIPTION_BYTES).map_err(|error| match error {
            Error::Store(StoreError::Missing { .. } | StoreError::NotAFolder { .. }) => {
                Error::from(StoreError::NotAFile {
                    object: path.display().to_string(),
                    kind: "a folder without matrix.json, which would say what matrix it holds",
                })
            }
            _ => error,
        })?;
        let description = format::parse_description(&object.display().to_string(), &text)?;
        if description.layout == format::Entries::Tiled {
            return Sparse::open_tiled(session, path, &description, stop);
        }
        let part = |name| BackedVector::open(session, &path.join(name));
        let (offsets, indices) = (part(names::OFFSETS)?, part(names::INDICES)?);
        let values = match part(names::VALUES) {
            Err(Error::Store(StoreError::Missing { .. })) => None,
            part => Some(part?),
        };
        let Description {
            format,
            shape,
            nonzeros,
            dtype,
            ..
        } = description;
        let found = values.as_ref().map(|part| part.vector.element);
        let real = match (found, dtype) {
            (Some(found), Some(said)) if said != found => Err(format!(
                "dtype {found}, where {} says {said}",
                names::DESCRIPTION
            )),
            (Some(either), _) | (None, Some(either)) => RealType::try_from(either),
            (None, None) => Ok(RealType::F32),
        };
        let real = real.map_err(|reason| {
            let name = if found.is_some() {
                names::VALUES
            } else {
                names::DESCRIPTION
            };
            let object = path.join(name).display().to_string();
            FormatError::Unsupported { object, reason }
        })?;
        if nonzeros.is_some_and(|said| said != indices.vector.len) {
            let reason = format!(
                "it says {} entries, {} has {}",
                nonzeros.unwrap_or(0),
                indices.name(),
                indices.vector.len
            );
            return Err(FormatError::Corrupt {
                object: object.display().to_string(),
                offset: 0,
                reason,
            }
            .into());
        }
        let [lines, width] = format.lines_first(shape);
        let name = path.display().to_string();
        Sparse::new(
            session,
            Parts {
                name,
                path: Some(path.to_owned()),
                lines,
                width,
                entries: indices.vector.len,
                real,
                form: Form::Arrays {
                    offsets,
                    indices,
                    values,
                },
                cuts: Vec::new(),
            },
            format,
            stop,
        )
    }

    /// A matrix of arrays that have no name yet: offsets, indices and, where there are any, values.
    pub fn of_files(
        session: &Session,
        name: String,
        format: Compressed,
        [lines, width]: [u64; 2],
        real: RealType,
        files: Vec<(Vector, Arc<StoredFile>)>,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        let mut parts = files.into_iter().map(|(vector, file)| BackedVector {
            vector,
            backing: Backing::Stored(file),
        });
        let (Some(offsets), Some(indices), values) = (parts.next(), parts.next(), parts.next())
        else {
            unreachable!("there are two or three")
        };
        let (entries, form) = (
            indices.vector.len,
            Form::Arrays {
                offsets,
                indices,
                values,
            },
        );
        Sparse::new(
            session,
            Parts {
                name,
                path: None,
                lines,
                width,
                entries,
                real,
                form,
                cuts: Vec::new(),
            },
            format,
            stop,
        )
    }

    fn open_tiled(
        session: &Session,
        path: &Path,
        description: &Description,
        stop: Stop<'_>,
    ) -> Result<Sparse> {
        let (object, tiles) = (
            path.join(names::DESCRIPTION).display().to_string(),
            path.join(names::TILES),
        );
        let (Some(entries), Some(dtype)) = (description.nonzeros, description.dtype) else {
            let reason = "a tiled matrix needs nonzeros and dtype".to_owned();
            return Err(FormatError::Corrupt {
                object,
                offset: 0,
                reason,
            }
            .into());
        };
        let real = RealType::try_from(dtype).map_err(|reason| FormatError::Unsupported {
            object: object.clone(),
            reason,
        })?;
        let numbers = BackedVector::open(session, &tiles)?;
        let vector = numbers.vector;
        if vector.element != DType::I64 || !vector.len.is_multiple_of(tiles::NUMBERS as u64) {
            let reason = format!("int64 in rows of {} is needed", tiles::NUMBERS);
            return Err(FormatError::Unsupported {
                object: tiles.display().to_string(),
                reason,
            }
            .into());
        }
        let numbers = numbers.numbers(session, stop)?;
        let sides = description.format.lines_first(description.shape);
        let entries_file = session.file(&path.join(names::ENTRIES), false)?;
        let tiled = Tiled::new(
            &tiles.display().to_string(),
            &numbers,
            entries_file,
            real,
            sides,
            entries,
        )?;
        Sparse::tiled(
            session,
            Some(path.to_owned()),
            description.format,
            sides,
            real,
            entries,
            tiled,
        )
    }

    fn tiled(
        session: &Session,
        path: Option<PathBuf>,
        format: Compressed,
        [lines, width]: [u64; 2],
        real: RealType,
        entries: u64,
        tiled: Tiled,
    ) -> Result<Sparse> {
        let name = path
            .as_ref()
            .map_or_else(|| "scratch".into(), |path| path.display().to_string());
        Sparse::new(
            session,
            Parts {
                name,
                path,
                lines,
                width,
                entries,
                real,
                form: Form::Tiled(tiled),
                cuts: Vec::new(),
            },
            format,
            // The cuts of tiles are known.
            &|| false,
        )
    }

    /// A matrix in the caller's memory, as SciPy has it; `values` may be missing where all are one.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // [[1, 0, 2], [0, 3, 0]]
    /// let offsets = (DType::I64, shared(&[0i64, 2, 3]));
    /// let indices = (DType::I32, shared(&[0i32, 2, 1]));
    /// let values = Some((RealType::F32, shared(&[1.0f32, 2.0, 3.0])));
    /// let a = Sparse::in_memory(&session, Compressed::Rows, [2, 3], offsets, indices, values)?;
    /// assert_eq!(a.nonzeros(), 3);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for arrays that do not belong together.
    pub fn in_memory(
        session: &Session,
        format: Compressed,
        shape: [u64; 2],
        offsets: (DType, Shared),
        indices: (DType, Shared),
        values: Option<(RealType, Shared)>,
    ) -> Result<Sparse> {
        let part = |(element, bytes): (DType, Shared)| {
            let vector = Vector {
                data_offset: 0,
                ..Vector::new(element, bytes.len() as u64 / element.bytes())
            };
            BackedVector {
                vector,
                backing: Backing::Memory(bytes),
            }
        };
        let real = values.as_ref().map_or(RealType::F32, |(real, _)| *real);
        let [lines, width] = format.lines_first(shape);
        let values = values.map(|(real, bytes)| part((real.into(), bytes)));
        let (offsets, indices) = (part(offsets), part(indices));
        let parts = Parts {
            name: "sparse matrix in memory".into(),
            path: None,
            lines,
            width,
            entries: indices.vector.len,
            real,
            form: Form::Arrays {
                offsets,
                indices,
                values,
            },
            cuts: Vec::new(),
        };
        Sparse::new(session, parts, format, &|| false)
    }

    /// The same matrix for calls that may have all of its session's budget, where a
    /// [part](Session::part) of it made the matrix.
    #[must_use]
    pub fn with_whole_budget(self) -> Sparse {
        let session = self.session.whole();
        Sparse { session, ..self }
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Rows and columns.
    pub fn shape(&self) -> [u64; 2] {
        self.format
            .lines_first([self.lines.end - self.lines.start, self.parts.width])
    }

    /// Rows.
    pub fn rows(&self) -> u64 {
        self.shape()[0]
    }

    /// Columns.
    pub fn cols(&self) -> u64 {
        self.shape()[1]
    }

    /// Entries that are stored.
    pub fn nonzeros(&self) -> u64 {
        self.entries.end - self.entries.start
    }

    /// Type of the values.
    pub fn dtype(&self) -> DType {
        self.real().into()
    }

    /// The type that operations compute in with its values: their own.
    pub fn real(&self) -> RealType {
        self.parts.real
    }

    /// Type of the column (or row) numbers; of tiles, that of arrays with the same numbers.
    pub fn index_element(&self) -> DType {
        match &self.parts.form {
            Form::Arrays { indices, .. } => indices.vector.element,
            Form::Tiled(_) => SparseShape::index_for(self.parts.width),
        }
    }

    /// Whether values are stored; else all entries are one.
    pub fn has_values(&self) -> bool {
        match &self.parts.form {
            Form::Arrays { values, .. } => values.is_some(),
            Form::Tiled(tiled) => tiled.has_values(),
        }
    }

    /// Whether entries lie in tiles.
    pub fn is_tiled(&self) -> bool {
        matches!(self.parts.form, Form::Tiled(_))
    }

    /// Whether the lines are rows or columns.
    pub fn format(&self) -> Compressed {
        self.format
    }

    /// Bytes of offsets, indices and values, or of tiles.
    pub fn nbytes(&self) -> u64 {
        match &self.parts.form {
            Form::Tiled(tiled) => tiled.bytes_of(&self.lines),
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                let bytes = |part: &BackedVector| part.vector.element.bytes();
                let entry = bytes(indices) + values.as_ref().map_or(0, bytes);
                (self.lines.end - self.lines.start + 1) * bytes(offsets) + self.nonzeros() * entry
            }
        }
    }

    /// Its folder; `None` for an unnamed result and for one in memory.
    pub fn path(&self) -> Option<&Path> {
        self.parts.path.as_deref()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The transpose, a view.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// assert_eq!((a.t().shape(), a.t().format()), ([3, 2], Compressed::Columns));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Sparse {
        Sparse {
            format: self.format.turned(),
            ..self.clone()
        }
    }

    /// Some rows, of a matrix whose lines are rows, as a view. Reads two offsets.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let last = a.slice(1..2)?;
    /// assert_eq!((last.shape(), last.nonzeros()), ([1, 3], 1));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] when they are not all there; [`Error::Value`] where the lines are columns.
    pub fn slice(&self, rows: Range<u64>) -> Result<Sparse> {
        self.check_rows_together()?;
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(Error::shape(format!(
                "rows {rows:?} are not all in {}, which has {}",
                self.name(),
                self.rows()
            )));
        }
        let lines = self.lines.start + rows.start..self.lines.start + rows.end;
        let at = |line| pieces::offset_of(&self.session, &self.parts, line);
        let entries = at(lines.start)?..at(lines.end)?;
        if entries.start > entries.end || entries.end > self.parts.entries {
            let (object, reason) = (
                self.name().to_owned(),
                format!("entries of lines {lines:?} are {entries:?}"),
            );
            return Err(FormatError::Corrupt {
                object,
                offset: 0,
                reason,
            }
            .into());
        }
        Ok(Sparse {
            lines,
            entries,
            ..self.clone()
        })
    }

    /// Refuses a matrix that is compressed by columns.
    pub fn check_rows_together(&self) -> Result<()> {
        match self.format {
            Compressed::Rows => Ok(()),
            Compressed::Columns => {
                let what = "is compressed by columns: its rows do not lie together; csrcsc makes a matrix whose rows do";
                Err(Error::value(format!("{} {what}", self.name())))
            }
        }
    }

    /// Lines, whatever they are.
    pub fn lines(&self) -> u64 {
        self.lines.end - self.lines.start
    }

    /// Minor indices in a line.
    pub fn width(&self) -> u64 {
        self.parts.width
    }

    /// Whether it is read from a device.
    pub fn is_stored(&self) -> bool {
        !matches!(&self.parts.form, Form::Arrays { indices, .. } if matches!(indices.backing, Backing::Memory(_)))
    }

    /// Bytes that a pass over it reads.
    pub fn stored_bytes(&self) -> u64 {
        if self.is_stored() { self.nbytes() } else { 0 }
    }

    /// Reads the view into memory: offsets counted from its first entry (int64), indices as they
    /// are stored, and values, one where none are stored. Holds the results besides the budget.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let read = a.read()?.run()?;
    /// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read.offsets), [0, 2, 3]);
    /// assert_eq!(bytemuck::cast_slice::<u8, i32>(&read.indices), [0, 2, 1]);
    /// assert_eq!(bytemuck::cast_slice::<u8, f32>(&read.values), [1.0, 2.0, 3.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`]; those of reading.
    pub fn read(&self) -> Result<Job<SparseBufs>> {
        let lines = self.lines() as usize;
        let buf = |bytes: u64| {
            Buf::anonymous(bytes as usize).map_err(|source| Error::NoMemory { bytes, source })
        };
        let bufs = SparseBufs {
            offsets: buf(8 * (lines as u64 + 1))?,
            indices: buf(self.nonzeros() * self.index_element().bytes())?,
            values: buf(self.nonzeros() * self.dtype().bytes())?,
        };
        self.read_into(bufs)
    }

    /// The same into the caller's memory, of exactly the right lengths.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_matrix::SparseBufs;
    ///
    /// let (offsets, indices, values) = (Buf::anonymous(24)?, Buf::anonymous(12)?, Buf::anonymous(12)?);
    /// let read = a.read_into(SparseBufs { offsets, indices, values })?.run()?;
    /// assert_eq!(bytemuck::cast_slice::<u8, i64>(&read.offsets), [0, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for others.
    pub fn read_into(&self, into: SparseBufs) -> Result<Job<SparseBufs>> {
        let wanted = [
            8 * (self.lines() + 1),
            self.nonzeros() * self.index_element().bytes(),
            self.nonzeros() * self.dtype().bytes(),
        ];
        if [&into.offsets, &into.indices, &into.values].map(|buf| buf.len() as u64) != wanted {
            return Err(Error::shape(format!(
                "{} needs arrays of {wanted:?} bytes",
                self.name()
            )));
        }
        let mut plan = Plan::new(format!("read {}", self.name()));
        let [
            (offsets, mut offsets_rest),
            (indices, mut indices_rest),
            (values, mut values_rest),
        ] = [into.offsets.lend(), into.indices.lend(), into.values.lend()];
        match &self.parts.form {
            Form::Tiled(_) => {
                with_real!(self.real(), T => {
                    self.decoded::<T>(&mut plan, [&mut offsets_rest, &mut indices_rest, &mut values_rest]);
                });
            }
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                self.copy_offsets(&mut plan, offsets, &mut offsets_rest);
                let size = self.index_element().bytes();
                let plainly = |from: &[u8], _: DType, to: &mut [u8]| to.copy_from_slice(from);
                self.copies(
                    &mut plan,
                    indices,
                    self.entries.clone(),
                    size,
                    &mut indices_rest,
                    plainly,
                );
                match (values, self.real()) {
                    (Some(part), real) => {
                        self.copies(
                            &mut plan,
                            part,
                            self.entries.clone(),
                            real.bytes() as u64,
                            &mut values_rest,
                            plainly,
                        );
                    }
                    _ if values_rest.is_empty() => {}
                    (None, RealType::F32) => {
                        bytemuck::cast_slice_mut::<u8, f32>(&mut values_rest).fill(1.0)
                    }
                    (None, RealType::F64) => {
                        bytemuck::cast_slice_mut::<u8, f64>(&mut values_rest).fill(1.0)
                    }
                }
            }
        }
        drop((offsets_rest, indices_rest, values_rest));
        plan.bound(self.stored_bytes());
        let taken = |_| Error::Failed {
            what: "a task still holds memory of the result".into(),
        };
        Job::new(&self.session, vec![plan], move |_| {
            let [offsets, indices, values] =
                [offsets, indices, values].map(|whole| whole.reclaim().map_err(taken));
            Ok(SparseBufs {
                offsets: offsets?,
                indices: indices?,
                values: values?,
            })
        })
    }

    /// Offsets, counted from the view's first entry.
    fn copy_offsets(&self, plan: &mut Plan, part: &BackedVector, into: &mut Buf) {
        let base = self.entries.start as i64;
        self.copies(
            plan,
            part,
            self.lines.start..self.lines.end + 1,
            8,
            into,
            move |from, element, to| {
                let to = bytemuck::cast_slice_mut::<u8, i64>(to);
                match element {
                    DType::I32 => {
                        to.iter_mut()
                            .zip(bytemuck::cast_slice::<u8, i32>(from))
                            .for_each(|(to, &from)| *to = i64::from(from));
                    }
                    _ => to.copy_from_slice(bytemuck::cast_slice(from)),
                }
                to.iter_mut()
                    .for_each(|offset| *offset = offset.wrapping_sub(base));
            },
        );
    }

    /// Tasks that put entries of tiles behind each other, line after line.
    fn decoded<T: Real>(&self, plan: &mut Plan, [offsets, indices, values]: [&mut Buf; 3]) {
        let (size, base) = (self.index_element().bytes() as usize, self.entries.start);
        for piece in self.pieces(MemorySplit::new(&self.session).block_bytes(u64::MAX), |_| 0) {
            let (lines, entries) = (piece.lines(), piece.entries() as usize);
            let last = lines.end == self.lines();
            let mut offsets =
                offsets.split_to(8 * (lines.end - lines.start + u64::from(last)) as usize);
            let (mut indices, mut values) = (
                indices.split_to(entries * size),
                values.split_to(entries * size_of::<T>()),
            );
            let (blocks, first) = (self.blocks(&piece), piece.first_entry() - base);
            let task = self
                .regions(plan, &piece)
                .into_iter()
                .fold(Task::new("decode"), Task::read);
            plan.task(task.run(move |cx| {
                let into = if values.is_empty() { &mut [] } else { bytemuck::cast_slice_mut::<u8, T>(&mut values) };
                let found = with_lines!(blocks, cx.blocks, T, a => in_lines(a, |at, _, place, value| {
                    let index = &mut indices[at * size..(at + 1) * size];
                    index.copy_from_slice(&(place as u64).to_le_bytes()[..size]);
                    into[at] = value;
                }));
                let offsets = bytemuck::cast_slice_mut::<u8, i64>(&mut offsets);
                offsets.iter_mut().zip(found).for_each(|(offset, at)| *offset = (first + at) as i64);
                Ok(())
            }));
        }
        if self.lines() == 0 {
            bytemuck::cast_slice_mut::<u8, i64>(offsets).fill(0);
        }
    }

    /// Tasks that copy a range of an array into memory.
    fn copies(
        &self,
        plan: &mut Plan,
        part: &BackedVector,
        range: Range<u64>,
        size: u64,
        into: &mut Buf,
        copy: impl Fn(&[u8], DType, &mut [u8]) + Clone + Send + 'static,
    ) {
        let (extent, element) = (part.extent(plan), part.vector.element);
        let at_once = MemorySplit::new(&self.session).block_bytes(1 << 20) / size;
        for range in cut(range, at_once)
            .into_iter()
            .filter(|range| !range.is_empty())
        {
            let mut piece = into.split_to(((range.end - range.start) * size) as usize);
            let copy = copy.clone();
            plan.task(
                Task::new("read")
                    .read(part.region(extent, range))
                    .run(move |cx| {
                        copy(cx.blocks[0].bytes(), element, &mut piece);
                        Ok(())
                    }),
            );
        }
    }
}

/// Calls `f` with the number, line, minor index and value of each entry, numbered line after line;
/// returns the number of the first of each line, and of all.
///
/// ```
/// use outcore_kernels::Csr;
/// use outcore_matrix::sparse::in_lines;
///
/// // [[1, 0, 2], [0, 3, 0]]
/// let a = Csr::<i32, f32>::new(3, &[0, 2, 3], &[0, 2, 1], &[1.0, 2.0, 3.0]).unwrap();
/// let mut entries = Vec::new();
/// let begins = in_lines(a, |_, line, place, value| entries.push((line, place, value)));
/// assert_eq!(begins, [0, 2, 3]);
/// assert_eq!(entries, [(0, 0, 1.0), (0, 2, 2.0), (1, 1, 3.0)]);
/// ```
pub fn in_lines<T: Real>(a: impl Lines<T>, mut f: impl FnMut(usize, usize, usize, T)) -> Vec<u64> {
    let mut offsets = vec![0; a.lines() + 1];
    a.each_line(|line, entries| offsets[line + 1] += entries.len() as u64);
    (0..a.lines()).for_each(|line| offsets[line + 1] += offsets[line]);
    let mut next = offsets.clone();
    a.each_line(|line, entries| {
        entries.each(|place, value| {
            f(next[line] as usize, line, place, value);
            next[line] += 1;
        });
    });
    offsets
}

/// The arrays of a sparse matrix in memory.
#[derive(Debug)]
pub struct SparseBufs {
    /// int64, lines + 1.
    pub offsets: Buf,
    /// As they are stored, one an entry.
    pub indices: Buf,
    /// One an entry.
    pub values: Buf,
}

impl fmt::Debug for Sparse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape();
        write!(
            out,
            "Sparse({}: {} {rows} x {cols}, {} entries)",
            self.name(),
            self.format.name(),
            self.nonzeros()
        )
    }
}

impl Parts {
    /// Whether the arrays have the types and lengths of one matrix.
    fn check(&self) -> Result<()> {
        let refuse = |part: &BackedVector, reason: String| {
            Err(Error::from(FormatError::Unsupported {
                object: part.name().to_owned(),
                reason,
            }))
        };
        let Parts { lines, width, .. } = self;
        let Form::Arrays {
            offsets,
            indices,
            values,
        } = &self.form
        else {
            return Ok(());
        };
        if !matches!(offsets.vector.element, DType::I32 | DType::I64) {
            return refuse(
                offsets,
                format!(
                    "dtype {}, where int32 or int64 is needed",
                    offsets.vector.element
                ),
            );
        }
        if !matches!(indices.vector.element, DType::U16 | DType::I32 | DType::I64) {
            return refuse(
                indices,
                format!(
                    "dtype {}, where int32, int64 or uint16 is needed",
                    indices.vector.element
                ),
            );
        }
        // Of a file, what it claims is what is not true.
        let disagree = |part: &BackedVector, reason: String| match part.backing {
            Backing::Stored(_) => Err(part.corrupt(0, reason)),
            Backing::Memory(_) => refuse(part, reason),
        };
        if offsets.vector.len != lines + 1 {
            return disagree(
                offsets,
                format!(
                    "{} numbers, where {lines} lines need {}",
                    offsets.vector.len,
                    lines + 1
                ),
            );
        }
        if let Some(values) = values
            && values.vector.len != indices.vector.len
        {
            return disagree(
                values,
                format!(
                    "{} values for {} indices",
                    values.vector.len, indices.vector.len
                ),
            );
        }
        let most = match indices.vector.element {
            DType::U16 => 1 << 16,
            DType::I32 => 1 << 31,
            _ => 1 << 63,
        };
        match *width <= most {
            true => Ok(()),
            false => refuse(
                indices,
                format!("{} for numbers up to {width}", indices.vector.element),
            ),
        }
    }
}
