//! Sparse matrices on SSD, and views of them.
//!
//! A sparse matrix is compressed along its lines: rows (CSR) or columns (CSC). Its transpose is the same lines under the other
//! name, so a view costs nothing. Work on it goes in pieces: some lines with all their entries, or, where a line alone is too
//! long, a part of it. Where pieces may begin is found in one look at the offsets, when the matrix is opened.

mod create;
mod pieces;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_device::{Buf, Shared};
use outcore_engine::{ExtentRef, Plan, Region, Task};

use crate::data::array::cut;
use crate::data::file::{StoredFile, read_vector_head};
use crate::data::format::{self, Compressed, DType, Description, Element, FormatError, Vector};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::Session;

pub(crate) use create::{NewSparse, SparseShape};
use pieces::Cut;
pub(crate) use pieces::{Piece, PieceBlocks, with_lines};

/// File names of the parts of a sparse matrix in its folder.
pub(crate) mod names {
    pub(crate) const DESCRIPTION: &str = "matrix.json";
    pub(crate) const OFFSETS: &str = "indptr.npy";
    pub(crate) const INDICES: &str = "indices.npy";
    pub(crate) const VALUES: &str = "data.npy";
}

/// A sparse matrix on SSD or in memory, or a view of one: its transpose, or some of its lines. Clones share the files.
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
    dtype: DType,
    offsets: Part,
    indices: Part,
    /// `None` where all are one.
    values: Option<Part>,
    cuts: Vec<Cut>,
}

/// One of its arrays.
struct Part {
    vector: Vector,
    backing: Backing,
}

enum Backing {
    Stored(Arc<StoredFile>),
    Memory(Shared),
}

impl Part {
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
        Region::span(extent, self.vector.data_offset + range.start * size, (range.end - range.start) * size)
    }

    fn block(&self) -> u64 {
        match &self.backing {
            Backing::Stored(file) => u64::from(file.extent().block()),
            Backing::Memory(_) => 1,
        }
    }

    fn corrupt(&self, number: u64, reason: String) -> Error {
        let offset = self.vector.data_offset + number * self.vector.element.bytes();
        FormatError::Corrupt { object: self.name().to_owned(), offset, reason }.into()
    }
}

impl Sparse {
    /// A matrix of known parts, after a look at its offsets.
    fn new(session: &Session, mut parts: Parts, format: Compressed) -> Result<Sparse> {
        parts.check()?;
        parts.cuts = pieces::find_cuts(session, &parts)?;
        let (lines, entries) = (0..parts.lines, 0..parts.indices.vector.len);
        Ok(Sparse { session: session.clone(), parts: Arc::new(parts), lines, entries, format })
    }

    pub(crate) fn open(session: &Session, path: &Path) -> Result<Sparse> {
        let object = path.join(names::DESCRIPTION);
        let text = std::fs::read(&object).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                let reason = format!("a folder without {}, which says what matrix it holds", names::DESCRIPTION);
                Error::from(FormatError::Unsupported { object: path.display().to_string(), reason })
            }
            _ => Error::Device { object: object.display().to_string(), source },
        })?;
        let description = format::parse_description(&object.display().to_string(), &text)?;
        let part = |name| -> Result<Part> {
            let path = path.join(name);
            let file = session.file(&path, false)?;
            let vector = read_vector_head(&path, file.extent().name())?;
            Ok(Part { vector, backing: Backing::Stored(file) })
        };
        let (offsets, indices) = (part(names::OFFSETS)?, part(names::INDICES)?);
        let values = match path.join(names::VALUES).try_exists() {
            Ok(false) => None,
            _ => Some(part(names::VALUES)?),
        };
        let Description { format, shape, nonzeros, dtype } = description;
        let found = values.as_ref().map(|part| part.vector.element);
        let dtype = match (found, dtype) {
            (Some(Element::Real(found)), said) if said.is_none_or(|said| said == found) => found,
            (None, said) => said.unwrap_or(DType::F32),
            (Some(found), said) => {
                let said = said.map_or_else(
                    || "float32 or float64 is needed".to_owned(),
                    |said| format!("{} says {said}", names::DESCRIPTION),
                );
                let object = path.join(names::VALUES).display().to_string();
                return Err(FormatError::Unsupported { object, reason: format!("dtype {found}, where {said}") }.into());
            }
        };
        if nonzeros.is_some_and(|said| said != indices.vector.len) {
            let reason = format!("it says {} entries, {} has {}", nonzeros.unwrap_or(0), indices.name(), indices.vector.len);
            return Err(FormatError::Corrupt { object: object.display().to_string(), offset: 0, reason }.into());
        }
        let [lines, width] = format.lines_first(shape);
        let name = path.display().to_string();
        Sparse::new(
            session,
            Parts { name, path: Some(path.to_owned()), lines, width, dtype, offsets, indices, values, cuts: Vec::new() },
            format,
        )
    }

    /// A matrix in the caller's memory, as SciPy has it; `values` may be missing where all are one.
    ///
    /// # Errors
    /// [`Error::Shape`] for arrays that do not belong together.
    pub fn in_memory(
        session: &Session,
        format: Compressed,
        shape: [u64; 2],
        offsets: (Element, Shared),
        indices: (Element, Shared),
        values: Option<(DType, Shared)>,
    ) -> Result<Sparse> {
        let part = |(element, bytes): (Element, Shared)| {
            let vector = Vector { data_offset: 0, ..Vector::new(element, bytes.len() as u64 / element.bytes()) };
            Part { vector, backing: Backing::Memory(bytes) }
        };
        let dtype = values.as_ref().map_or(DType::F32, |(dtype, _)| *dtype);
        let [lines, width] = format.lines_first(shape);
        let parts = Parts {
            name: "sparse matrix in memory".into(),
            path: None,
            lines,
            width,
            dtype,
            offsets: part(offsets),
            indices: part(indices),
            values: values.map(|(dtype, bytes)| part((Element::Real(dtype), bytes))),
            cuts: Vec::new(),
        };
        Sparse::new(session, parts, format)
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Rows and columns.
    pub fn shape(&self) -> [u64; 2] {
        self.format.lines_first([self.lines.end - self.lines.start, self.parts.width])
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
        self.parts.dtype
    }

    /// Type of the column (or row) numbers.
    pub fn index_element(&self) -> Element {
        self.parts.indices.vector.element
    }

    /// Whether values are stored; else all entries are one.
    pub fn has_values(&self) -> bool {
        self.parts.values.is_some()
    }

    /// Whether the lines are rows or columns.
    pub fn format(&self) -> Compressed {
        self.format
    }

    /// Bytes of offsets, indices and values.
    pub fn nbytes(&self) -> u64 {
        let entry = self.index_element().bytes() + self.parts.values.as_ref().map_or(0, |part| part.vector.element.bytes());
        (self.lines.end - self.lines.start + 1) * self.parts.offsets.vector.element.bytes() + self.nonzeros() * entry
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
    #[must_use]
    pub fn t(&self) -> Sparse {
        Sparse { format: self.format.turned(), ..self.clone() }
    }

    /// Some rows, of a matrix whose lines are rows, as a view. Reads two offsets.
    ///
    /// # Errors
    /// [`Error::Shape`] when they are not all there; [`Error::Value`] where the lines are columns.
    pub fn slice(&self, rows: Range<u64>) -> Result<Sparse> {
        if self.format == Compressed::Columns {
            let what = format!(
                "{} is compressed by columns: its rows do not lie together; csrcsc makes a matrix whose rows do",
                self.name()
            );
            return Err(Error::value(what));
        }
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(Error::shape(format!("rows {rows:?} are not all in {}, which has {}", self.name(), self.rows())));
        }
        let lines = self.lines.start + rows.start..self.lines.start + rows.end;
        let at = |line| pieces::offset_of(&self.session, &self.parts, line);
        let entries = at(lines.start)?..at(lines.end)?;
        if entries.start > entries.end || entries.end > self.parts.indices.vector.len {
            return Err(self.parts.offsets.corrupt(lines.end, "offsets do not ascend".into()));
        }
        Ok(Sparse { lines, entries, ..self.clone() })
    }

    /// Lines, whatever they are.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.end - self.lines.start
    }

    /// Places in a line.
    pub(crate) fn width(&self) -> u64 {
        self.parts.width
    }

    /// Whether it is read from a device.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.parts.indices.backing, Backing::Stored(_))
    }

    /// Bytes that a pass over it reads.
    pub(crate) fn stored_bytes(&self) -> u64 {
        if self.is_stored() { self.nbytes() } else { 0 }
    }

    /// Reads the view into memory: offsets counted from its first entry (int64), indices as they are stored, and values, one
    /// where none are stored. Holds the results besides the budget.
    ///
    /// # Errors
    /// [`Error::OverBudget`]; those of reading.
    pub fn read(&self) -> Result<Job<SparseBufs>> {
        let lines = self.lines() as usize;
        let buf = |bytes: u64| Buf::anonymous(bytes as usize).map_err(|source| Error::NoMemory { bytes, source });
        let bufs = SparseBufs {
            offsets: buf(8 * (lines as u64 + 1))?,
            indices: buf(self.nonzeros() * self.index_element().bytes())?,
            values: buf(self.nonzeros() * self.dtype().bytes())?,
        };
        self.read_into(bufs)
    }

    /// The same into the caller's memory, of exactly the right lengths.
    ///
    /// # Errors
    /// [`Error::Shape`] for others.
    pub fn read_into(&self, into: SparseBufs) -> Result<Job<SparseBufs>> {
        let wanted =
            [8 * (self.lines() + 1), self.nonzeros() * self.index_element().bytes(), self.nonzeros() * self.dtype().bytes()];
        if [&into.offsets, &into.indices, &into.values].map(|buf| buf.len() as u64) != wanted {
            return Err(Error::shape(format!("{} needs arrays of {wanted:?} bytes", self.name())));
        }
        let mut plan = Plan::new(format!("read {}", self.name()));
        let [(offsets, mut offsets_rest), (indices, mut indices_rest), (values, mut values_rest)] =
            [into.offsets.lend(), into.indices.lend(), into.values.lend()];
        let base = self.entries.start;
        let (lines, entries) = (self.lines.start..self.lines.end + 1, self.entries.clone());
        self.copies(&mut plan, &self.parts.offsets, lines, 8, &mut offsets_rest, move |from, element, to| {
            let to = bytemuck::cast_slice_mut::<u8, i64>(to);
            match element {
                Element::I32 => {
                    to.iter_mut().zip(bytemuck::cast_slice::<u8, i32>(from)).for_each(|(to, &from)| *to = i64::from(from))
                }
                _ => to.copy_from_slice(bytemuck::cast_slice(from)),
            }
            to.iter_mut().for_each(|offset| *offset = offset.wrapping_sub(base as i64));
        });
        let plainly = |from: &[u8], _: Element, to: &mut [u8]| to.copy_from_slice(from);
        let size = self.index_element().bytes();
        self.copies(&mut plan, &self.parts.indices, entries.clone(), size, &mut indices_rest, plainly);
        match &self.parts.values {
            Some(part) => self.copies(&mut plan, part, entries, self.dtype().bytes(), &mut values_rest, plainly),
            None => match self.dtype() {
                DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(&mut values_rest).fill(1.0),
                DType::F64 => bytemuck::cast_slice_mut::<u8, f64>(&mut values_rest).fill(1.0),
            },
        }
        drop((offsets_rest, indices_rest, values_rest));
        plan.bound(self.stored_bytes());
        let taken = |_| Error::Failed { what: "a task still holds memory of the result".into() };
        Job::new(&self.session, vec![plan], move |_| {
            let [offsets, indices, values] = [offsets, indices, values].map(|whole| whole.reclaim().map_err(taken));
            Ok(SparseBufs { offsets: offsets?, indices: indices?, values: values? })
        })
    }

    /// Tasks that copy a range of an array into memory.
    fn copies(
        &self,
        plan: &mut Plan,
        part: &Part,
        range: Range<u64>,
        size: u64,
        into: &mut Buf,
        copy: impl Fn(&[u8], Element, &mut [u8]) + Clone + Send + 'static,
    ) {
        let (extent, element) = (part.extent(plan), part.vector.element);
        let at_once = (self.session.memory_free() / 32).clamp(4096, 1 << 20) / size;
        for range in cut(range, at_once).into_iter().filter(|range| !range.is_empty()) {
            let mut piece = into.split_to(((range.end - range.start) * size) as usize);
            let copy = copy.clone();
            plan.task(Task::new("read").read(part.region(extent, range)).run(move |cx| {
                copy(cx.blocks[0].bytes(), element, &mut piece);
                Ok(())
            }));
        }
    }
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
        write!(out, "Sparse({}: {} {rows} x {cols}, {} entries)", self.name(), self.format.name(), self.nonzeros())
    }
}

impl Parts {
    /// Whether the arrays have the types and lengths of one matrix.
    fn check(&self) -> Result<()> {
        let refuse =
            |part: &Part, reason: String| Err(Error::from(FormatError::Unsupported { object: part.name().to_owned(), reason }));
        let Parts { offsets, indices, values, lines, width, .. } = self;
        if !matches!(offsets.vector.element, Element::I32 | Element::I64) {
            return refuse(offsets, format!("dtype {}, where int32 or int64 is needed", offsets.vector.element));
        }
        if !matches!(indices.vector.element, Element::U16 | Element::I32 | Element::I64) {
            return refuse(indices, format!("dtype {}, where int32, int64 or uint16 is needed", indices.vector.element));
        }
        if offsets.vector.len != lines + 1 {
            return refuse(offsets, format!("{} numbers, where {lines} lines need {}", offsets.vector.len, lines + 1));
        }
        if let Some(values) = values
            && values.vector.len != indices.vector.len
        {
            return refuse(values, format!("{} values for {} indices", values.vector.len, indices.vector.len));
        }
        let most = match indices.vector.element {
            Element::U16 => 1 << 16,
            Element::I32 => 1 << 31,
            _ => 1 << 63,
        };
        match *width <= most {
            true => Ok(()),
            false => refuse(indices, format!("{} for numbers up to {width}", indices.vector.element)),
        }
    }
}
