//! A table: rows of one length, and where each of them is.
//!
//! Rows are read where they are, in `.npy`, safetensors and GGUF files, one or many that make one table, or in
//! a [packed](crate::packed) table, whose pages have checksums. What a row needs to be read is a *unit*:
//! the row itself, or its page.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_core::file::read_head;
use outcore_core::format::safetensors::Tensor;
use outcore_core::format::{Order, corrupt, gguf, safetensors, unsupported};
use outcore_core::reader::FileReader;
use outcore_core::{DType, Error, FormatError, Result, Session, StoredFile};
use outcore_engine::{Extent, Reservation};
use outcore_kernels::embedding::{RowEncoding, ScaleBias};
use outcore_store::versions::is_versioned;
use serde::Deserialize;

use crate::packed::{self, PAGE_BYTES, TableLayout};
use crate::placement::Slots;
use crate::versioned::Versioned;

/// Rows of one length on SSD. Clones are the same table; it may be used from any thread.
///
/// ```
/// # use outcore_core::{Session, Settings};
/// # use outcore_tables::*;
/// # fn main() -> outcore_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
/// # let path = folder.path().join("table");
/// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
/// let table = Table::open(&session, &[path.clone()], &Opening::default())?;
/// assert_eq!((table.name(), table.rows(), table.dim()), (path.to_str().unwrap(), 3, 1));
/// assert_eq!((table.encoding(), table.row_bytes(), table.nbytes()), (RowEncoding::F32, 4, 12));
/// assert_eq!((table.is_packed(), table.dtype().name()), (true, "float32"));
/// assert_eq!((table.version(), table.is_written()), (None, false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Table {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    rows: u64,
    dim: usize,
    encoding: RowEncoding,
    row_bytes: usize,
    storage: Storage,
}

enum Storage {
    InPlace(Vec<Shard>),
    Packed(Packed),
    Versioned(Box<Versioned>),
}

/// Rows that follow each other in one file.
struct Shard {
    first_row: u64,
    rows: u64,
    file: Arc<StoredFile>,
    /// Of its first row in the file's extent.
    offset: u64,
}

struct Packed {
    file: Arc<StoredFile>,
    layout: TableLayout,
    /// Where it is not the row's own number.
    slots: Option<(Slots, Reservation)>,
}

impl Packed {
    /// The page that has a slot, and where it is in the page.
    fn unit_of(&self, slot: u64) -> (Unit, usize) {
        let (page, at) = self.layout.find(slot);
        let unit = Unit {
            key: page,
            file: 0,
            offset: self.layout.page_offset(page),
            len: self.layout.header.page_bytes,
        };
        (unit, at)
    }
}

/// What is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Unique in its table: a row or a page.
    pub(crate) key: u64,
    /// Which of the table's files.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

/// How a table is opened.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// To train or update it: of one that [`TableWriter::create_versioned`](crate::TableWriter::create_versioned)
    /// has made, by one writer at a time.
    pub for_writing: bool,
    /// Which tensor of safetensors and GGUF files: a name, or names with `*` for any part. None is needed where a
    /// file has one matrix.
    pub tensor: Option<String>,
    /// What bytes of a matrix of uint8 are, where its rows are quantized.
    pub encoding: Option<RowEncoding>,
}

impl Table {
    /// Opens files as one table, with the rows of the first, then those of the second, and so on; what a
    /// folder or an index of safetensors names is in the order of the tensors' names, where numbers count as
    /// such.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// let opening = Opening { tensor: Some("item.weight".into()), ..Opening::default() };
    /// // A packed table has no tensors that would have to be named.
    /// assert_eq!(Table::open(&session, &[path], &opening)?.rows(), 3);
    /// assert!(Table::open(&session, &["missing.safetensors".into()], &opening).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] for what is not there, [`Error::Format`] for what is no table, or damaged,
    /// [`Error::Value`] where a tensor's name is missing or names none.
    pub fn open(session: &Session, paths: &[PathBuf], opening: &Opening) -> Result<Table> {
        let Some(first) = paths.first() else {
            return Err(Error::value("a table of no files"));
        };
        let name = first.display().to_string();
        if let [path] = paths
            && is_versioned(path)
        {
            return Table::open_versioned(session, path, opening.for_writing);
        }
        if opening.for_writing {
            return Err(Error::value(format!(
                "{name}: only a folder that was created for training can be written"
            )));
        }
        if let [path] = paths
            && is_paged(session, path)?
        {
            return Table::open_packed(session, path);
        }
        let mut matrices = Vec::new();
        for path in paths {
            if paths.len() > 1 && is_paged(session, path)? {
                return Err(Error::value(format!(
                    "{}: a packed table, or one that was created for training, is a table by itself; a list has .npy, \
                     safetensors and GGUF files",
                    path.display()
                )));
            }
            matrices.extend(matrices_at(session, path, opening)?);
        }
        Table::of_matrices(name, matrices, opening.encoding)
    }

    fn open_packed(session: &Session, path: &Path) -> Result<Table> {
        let object = path.display().to_string();
        let read = || {
            let reader = FileReader::open(session, path)?;
            let head = start_of(&reader, PAGE_BYTES as u64)?;
            let layout = TableLayout::parse(&object, &head, reader.len())?;
            let (offset, bytes) = layout.placement();
            if bytes == 0 {
                return Ok((layout, None));
            }
            let what = format!("the placement of {object}");
            let of_replicas = layout.replica_slots().1 * Slots::REPLICA_BYTES;
            let held = 4 * layout.header.rows + of_replicas;
            let held = session.engine().reserve(&what, held)?;
            // Its bytes, and a flag for each slot, while they are checked.
            let _stored = session.engine().reserve(&what, bytes + bytes / 4)?;
            let mut stored = vec![0; bytes as usize];
            reader.read(&[offset], stored.len(), &mut stored, || true)?;
            let slots = packed::parse_placement(&object, &stored, &layout)?;
            Ok((layout, Some((slots, held))))
        };
        let (file, (layout, slots)) = of_one_file(session, path, read)?;
        let inner = Inner {
            name: object,
            rows: layout.header.rows,
            dim: layout.header.dim,
            encoding: layout.encoding,
            row_bytes: layout.row_bytes,
            storage: Storage::Packed(Packed {
                file,
                layout,
                slots,
            }),
        };
        Ok(Table {
            inner: Arc::new(inner),
        })
    }

    fn open_versioned(session: &Session, path: &Path, for_writing: bool) -> Result<Table> {
        let versioned = Versioned::open(session, path, for_writing)?;
        let layout = &versioned.layout;
        Ok(Table {
            inner: Arc::new(Inner {
                name: path.display().to_string(),
                rows: layout.header.rows,
                dim: layout.header.dim,
                encoding: layout.encoding,
                row_bytes: layout.row_bytes,
                storage: Storage::Versioned(Box::new(versioned)),
            }),
        })
    }

    /// The version that was opened, of a table that changes; its last one, if it was opened for writing.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.versioned().map(Versioned::last_number)
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.versioned()
            .is_some_and(|versioned| versioned.writer.is_some())
    }

    /// Whether no newer version has been committed.
    ///
    /// # Errors
    /// Those of reading what the last version is.
    pub(crate) fn is_last(&self) -> Result<bool> {
        self.versioned().map_or(Ok(true), Versioned::is_last)
    }

    /// What changes, of a table that can be written or has been.
    pub(crate) fn versioned(&self) -> Option<&Versioned> {
        match &self.inner.storage {
            Storage::Versioned(versioned) => Some(versioned),
            _ => None,
        }
    }

    fn of_matrices(
        name: String,
        matrices: Vec<StoredMatrix>,
        encoding: Option<RowEncoding>,
    ) -> Result<Table> {
        let Some(first) = matrices.first() else {
            return Err(Error::value(format!("{name}: no matrix in it")));
        };
        let (dtype, cols) = (first.dtype, first.cols);
        if let Some(other) = matrices
            .iter()
            .find(|matrix| (matrix.dtype, matrix.cols) != (dtype, cols))
        {
            return Err(Error::shape(format!(
                "{} has rows of {cols} x {dtype}, {} of {} x {}: they are no one table",
                first.name, other.name, other.cols, other.dtype
            )));
        }
        let (encoding, dim) = encoding_of(&name, dtype, cols, encoding)?;
        let row_bytes = encoding.row_bytes(dim).expect("checked by encoding_of");
        let (mut shards, mut rows) = (Vec::with_capacity(matrices.len()), 0u64);
        for matrix in matrices {
            let shard = Shard {
                first_row: rows,
                rows: matrix.rows,
                file: matrix.file,
                offset: matrix.offset,
            };
            rows += matrix.rows;
            shards.push(shard);
        }
        shards.retain(|shard| shard.rows > 0);
        Ok(Table {
            inner: Arc::new(Inner {
                name,
                rows,
                dim,
                encoding,
                row_bytes,
                storage: Storage::InPlace(shards),
            }),
        })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.inner.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.inner.dim
    }

    /// How its rows are stored.
    #[must_use]
    pub fn encoding(&self) -> RowEncoding {
        self.inner.encoding
    }

    /// Bytes of a stored row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.inner.row_bytes
    }

    /// Bytes of all rows as they are stored.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        self.rows().saturating_mul(self.row_bytes() as u64)
    }

    /// Whether its pages have checksums.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        !matches!(self.inner.storage, Storage::InPlace(_))
    }

    /// Its type of floating-point numbers, or float32 for quantized rows: that of what is looked up, unless
    /// another one is asked for.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self.encoding() {
            RowEncoding::F16 => DType::F16,
            RowEncoding::BF16 => DType::BF16,
            _ => DType::F32,
        }
    }

    /// The unit that has a row, and where the row is in it.
    pub(crate) fn unit_of(&self, row: u64) -> (Unit, usize) {
        match &self.inner.storage {
            Storage::InPlace(shards) => {
                let file = match shards.len() {
                    1 => 0,
                    _ => shards.partition_point(|shard| shard.first_row <= row) - 1,
                };
                let shard = &shards[file];
                let unit = Unit {
                    key: row,
                    file,
                    offset: shard.offset + (row - shard.first_row) * self.row_bytes() as u64,
                    len: self.row_bytes(),
                };
                (unit, 0)
            }
            Storage::Packed(packed) => {
                let slot = match &packed.slots {
                    Some((slots, _)) => u64::from(slots.of_rows[row as usize]),
                    None => row,
                };
                packed.unit_of(slot)
            }
            Storage::Versioned(versioned) => versioned.unit_of(row),
        }
    }

    /// Where rows lie, if some of them lie in several pages.
    pub(crate) fn replicated(&self) -> Option<&Slots> {
        let Storage::Packed(Packed { slots, .. }) = &self.inner.storage else {
            return None;
        };
        let (slots, _) = slots.as_ref()?;
        slots.has_replicas().then_some(slots)
    }

    /// The unit that has a slot, of a packed table, and where the slot is in it.
    pub(crate) fn unit_of_slot(&self, slot: u32) -> (Unit, usize) {
        match &self.inner.storage {
            Storage::Packed(packed) => packed.unit_of(u64::from(slot)),
            _ => unreachable!("slots are of packed tables"),
        }
    }

    /// Bytes of a row as it lies in a unit, with what belongs to it besides its elements.
    pub(crate) fn record_bytes(&self) -> usize {
        match &self.inner.storage {
            Storage::InPlace(_) => self.row_bytes(),
            Storage::Packed(packed) => packed.layout.record_bytes(),
            Storage::Versioned(versioned) => versioned.layout.record_bytes(),
        }
    }

    /// Bytes of a unit.
    pub(crate) fn unit_len(&self) -> usize {
        match &self.inner.storage {
            Storage::InPlace(_) => self.row_bytes(),
            Storage::Packed(packed) => packed.layout.header.page_bytes,
            Storage::Versioned(versioned) => versioned.layout.header.page_bytes,
        }
    }

    /// The longest sector of the devices below.
    pub(crate) fn block_bytes(&self) -> u64 {
        let block = |file: &Arc<StoredFile>| u64::from(file.extent().sector());
        match &self.inner.storage {
            Storage::InPlace(shards) => shards
                .iter()
                .map(|shard| block(&shard.file))
                .max()
                .unwrap_or(1),
            Storage::Packed(packed) => block(&packed.file),
            Storage::Versioned(versioned) => block(&versioned.file),
        }
    }

    /// Whether a row is known to be the same in another version of this table.
    pub(crate) fn has_same(&self, other: &Table, row: u64) -> bool {
        // Another table may have taken the path.
        let is_one = (self.versioned().zip(other.versioned()))
            .is_some_and(|(one, other)| one.identity == other.identity);
        is_one && self.unit_of(row) == other.unit_of(row)
    }

    /// The bytes of one of its files.
    pub(crate) fn extent(&self, file: usize) -> &Extent {
        match &self.inner.storage {
            Storage::InPlace(shards) => shards[file].file.extent(),
            Storage::Packed(packed) => packed.file.extent(),
            Storage::Versioned(versioned) => versioned.file.extent(),
        }
    }

    /// Compares a unit that was read with its checksum.
    ///
    /// # Errors
    /// [`Error::Format`], naming the file and the place.
    pub(crate) fn verify(&self, unit: &Unit, bytes: &[u8]) -> Result<()> {
        match self.is_packed() && !packed::is_sound(bytes) {
            true => {
                let reason = format!("the checksum of page {} does not match", unit.key);
                let object = self.extent(unit.file).name();
                Err(corrupt(object, unit.offset as usize, reason).into())
            }
            false => Ok(()),
        }
    }
}

/// A matrix in a file.
struct StoredMatrix {
    /// For messages and for the order of those of one index.
    name: String,
    file: Arc<StoredFile>,
    dtype: DType,
    rows: u64,
    cols: u64,
    offset: u64,
}

fn start_of(reader: &FileReader, bytes: u64) -> Result<Vec<u8>> {
    let mut head = vec![0; bytes.min(reader.len()) as usize];
    reader.read(&[0], head.len(), &mut head, || true)?;
    Ok(head)
}

/// Whether it is a table of ours: packed, or of versions.
fn is_paged(session: &Session, path: &Path) -> Result<bool> {
    if path.is_dir() || is_index(path) {
        return Ok(is_versioned(path));
    }
    let head = FileReader::open(session, path)?;
    Ok(packed::is_packed(&start_of(&head, PAGE_BYTES as u64)?))
}

fn is_index(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".index.json")
}

/// The matrices that a path stands for.
fn matrices_at(session: &Session, path: &Path, opening: &Opening) -> Result<Vec<StoredMatrix>> {
    let object = path.display().to_string();
    if path.is_dir() {
        return matrices_in_folder(session, path, opening);
    }
    if is_index(path) {
        return matrices_of_index(session, path, opening);
    }
    let (file, head) = of_one_file(session, path, || read_head(path, &object))?;
    match head {
        Some(dense) => {
            let is_matrix =
                dense.shape.len() == 2 && (dense.order == Order::Row || dense.cols == 1);
            match is_matrix && dense.is_compact() {
                true => Ok(vec![StoredMatrix {
                    name: object,
                    file,
                    dtype: dense.dtype,
                    rows: dense.rows,
                    cols: dense.cols,
                    offset: dense.data_offset,
                }]),
                false => Err(unsupported(
                    &object,
                    format!(
                        "a table is a matrix by rows, not of shape {:?}{}",
                        dense.shape,
                        if dense.order == Order::Column {
                            " by columns"
                        } else {
                            ""
                        }
                    ),
                )
                .into()),
            }
        }
        None => {
            let tensors = tensors_of(session, path)?;
            chosen(&object, tensors, opening)
        }
    }
}

fn matrices_in_folder(
    session: &Session,
    path: &Path,
    opening: &Opening,
) -> Result<Vec<StoredMatrix>> {
    let listed = std::fs::read_dir(path)
        .map_err(|source| Error::of_io(path.display().to_string(), source))?;
    let mut files: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort_by_key(|file| natural(&file.to_string_lossy()));
    if let Some(index) = files.iter().find(|file| is_index(file)) {
        return matrices_of_index(session, index, opening);
    }
    let has_ending = |file: &&PathBuf| {
        file.extension()
            .is_some_and(|ending| ending == "safetensors" || ending == "npy" || ending == "gguf")
    };
    let mut matrices = Vec::new();
    for file in files.iter().filter(has_ending) {
        matrices.extend(matrices_at(session, file, opening)?);
    }
    match matrices.is_empty() {
        true => Err(unsupported(
            &path.display().to_string(),
            "a folder of a table has .npy, .safetensors or .gguf files, or an index of safetensors"
                .into(),
        )
        .into()),
        false => Ok(matrices),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// The tensors that an index names, in the order of their names.
fn matrices_of_index(
    session: &Session,
    path: &Path,
    opening: &Opening,
) -> Result<Vec<StoredMatrix>> {
    let object = path.display().to_string();
    let text = outcore_core::file::read_text(path, safetensors::HEADER_MOST)?;
    let Index { weight_map } = serde_json::from_slice(&text).map_err(|error| {
        corrupt(
            &object,
            error.column(),
            format!("the index of safetensors files: {error}"),
        )
    })?;
    let mut names: Vec<(&String, &String)> = weight_map
        .iter()
        .filter(|(name, _)| {
            opening
                .tensor
                .as_ref()
                .is_none_or(|wanted| matches(wanted, name))
        })
        .collect();
    names.sort_by_key(|(name, _)| natural(name));
    if let Some(wanted) = opening.tensor.as_ref().filter(|_| names.is_empty()) {
        return Err(Error::value(format!("{object} has no tensor '{wanted}'")));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut matrices: Vec<StoredMatrix> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    for (name, file) in names {
        let file = folder.join(file);
        let exact = Opening {
            tensor: Some(name.clone()),
            ..opening.clone()
        };
        let is_wanted = opening.tensor.is_some();
        let (stored, tensors) = tensors_of(session, &file)?;
        // Without a name, vectors and scalars are not meant.
        let is_matrix = tensors
            .iter()
            .any(|tensor| tensor.name == *name && tensor.shape.len() == 2);
        if is_wanted || is_matrix {
            kinds.push(name.chars().filter(|c| !c.is_ascii_digit()).collect());
            let object = file.display().to_string();
            matrices.extend(chosen(&object, (stored, tensors), &exact)?);
        }
    }
    kinds.dedup();
    match (&opening.tensor, kinds.as_slice()) {
        // Parts of one table are told apart by their numbers.
        (None, [_, other, ..]) => Err(Error::value(format!(
            "{object} has matrices of several tables; name the tensor of one: {}, {other}",
            kinds[0]
        ))),
        _ => Ok(matrices),
    }
}

/// What is read of a file, which is the one that rows are going to be read from: it may be replaced
/// while it is opened.
///
/// # Errors
/// [`Error::Failed`] where it was.
fn of_one_file<R>(
    session: &Session,
    path: &Path,
    read: impl FnOnce() -> Result<R>,
) -> Result<(Arc<StoredFile>, R)> {
    let file = session.file(path, false)?;
    let read = read()?;
    match Arc::ptr_eq(&file, &session.file(path, false)?) {
        true => Ok((file, read)),
        false => Err(Error::Failed {
            what: format!("{} was replaced while it was opened", path.display()),
        }),
    }
}

fn tensors_of(session: &Session, path: &Path) -> Result<(Arc<StoredFile>, Vec<Tensor>)> {
    of_one_file(session, path, || tensors_in(session, path))
}

fn tensors_in(session: &Session, path: &Path) -> Result<Vec<Tensor>> {
    let object = path.display().to_string();
    let reader = FileReader::open(session, path)?;
    let head = start_of(&reader, 8)?;
    let wrong = |reason: &str| Error::Format(corrupt(&object, 0, reason.to_owned()));
    if head.starts_with(&gguf::MAGIC) {
        return whole(
            &object,
            &reader,
            tensors_of_gguf(session, &object, &reader)?,
        );
    }
    let len = head
        .try_into()
        .map(u64::from_le_bytes)
        .map_err(|_| wrong("it is neither a .npy, a safetensors, a GGUF nor a packed file"))?;
    if len > safetensors::HEADER_MOST || len > reader.len().saturating_sub(8) {
        return Err(wrong(
            "it is neither a .npy, a whole safetensors, a GGUF nor a packed file",
        ));
    }
    // The text, and what it tells, for at most as long.
    let _held = (session.engine()).reserve(&format!("the header of {object}"), 2 * len)?;
    let mut header = vec![0; len as usize];
    reader.read(&[8], header.len(), &mut header, || true)?;
    let tensors = safetensors::parse(&header, 8 + len)
        .map_err(|reason| wrong(&format!("its header: {reason}")))?;
    whole(&object, &reader, tensors)
}

fn tensors_of_gguf(session: &Session, object: &str, reader: &FileReader) -> Result<Vec<Tensor>> {
    let mut bytes = 1 << 20;
    loop {
        let what = format!("the head of {object}");
        let _held = (session.engine()).reserve(&what, bytes.min(reader.len()))?;
        let head = start_of(reader, bytes)?;
        let found = gguf::parse(&head)
            .map_err(|reason| Error::Format(corrupt(object, 0, format!("its head: {reason}"))))?;
        match found {
            Some(tensors) => return Ok(tensors),
            None if (head.len() as u64) < bytes || bytes >= gguf::HEAD_MOST => {
                let reason = "its head: it ends before all tensors are told";
                return Err(Error::Format(corrupt(object, head.len(), reason.into())));
            }
            None => bytes *= 4,
        }
    }
}

/// The tensors of a file that has all of their bytes.
fn whole(object: &str, reader: &FileReader, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    match tensors.iter().map(|tensor| tensor.end).max() {
        Some(end) if end > reader.len() => Err(FormatError::Truncated {
            object: object.to_owned(),
            expected: end,
            actual: reader.len(),
        }
        .into()),
        _ => Ok(tensors),
    }
}

/// The tensors of a file that are meant.
fn chosen(
    object: &str,
    (file, tensors): (Arc<StoredFile>, Vec<Tensor>),
    opening: &Opening,
) -> Result<Vec<StoredMatrix>> {
    let mut found: Vec<Tensor> = match &opening.tensor {
        Some(wanted) => tensors
            .into_iter()
            .filter(|tensor| matches(wanted, &tensor.name))
            .collect(),
        None => tensors
            .into_iter()
            .filter(|tensor| tensor.shape.len() == 2)
            .collect(),
    };
    found.sort_by_key(|tensor| natural(&tensor.name));
    match (&opening.tensor, found.as_slice()) {
        (Some(wanted), []) => {
            return Err(Error::value(format!("{object} has no tensor '{wanted}'")));
        }
        (None, []) => {
            return Err(Error::value(format!(
                "{object} has no tensor of two dimensions"
            )));
        }
        (None, [_, _, ..]) => {
            let names: Vec<&str> = found
                .iter()
                .take(8)
                .map(|tensor| tensor.name.as_str())
                .collect();
            return Err(Error::value(format!(
                "{object} has {} matrices; name the tensor of the table: {}{}",
                found.len(),
                names.join(", "),
                if found.len() > 8 { ", ..." } else { "" }
            )));
        }
        _ => {}
    }
    found
        .into_iter()
        .map(|tensor| matrix_of(object, &file, &tensor))
        .collect()
}

fn matrix_of(object: &str, file: &Arc<StoredFile>, tensor: &Tensor) -> Result<StoredMatrix> {
    let name = format!("{object}, tensor {}", tensor.name);
    let &[rows, cols] = tensor.shape.as_slice() else {
        return Err(unsupported(
            &name,
            format!("a table is a matrix, not of shape {:?}", tensor.shape),
        )
        .into());
    };
    let dtype = safetensors::dtype(&tensor.dtype)
        .ok_or_else(|| unsupported(&name, format!("elements of type {}", tensor.dtype)))?;
    Ok(StoredMatrix {
        name,
        file: Arc::clone(file),
        dtype,
        rows,
        cols,
        offset: tensor.first,
    })
}

/// How rows of a matrix are encoded, and their elements.
fn encoding_of(
    name: &str,
    dtype: DType,
    cols: u64,
    wanted: Option<RowEncoding>,
) -> Result<(RowEncoding, usize)> {
    let refused = |reason: String| Err(unsupported(name, reason).into());
    let cols = usize::try_from(cols).unwrap_or(usize::MAX);
    let plain = match dtype {
        DType::F32 => Some(RowEncoding::F32),
        DType::F16 => Some(RowEncoding::F16),
        DType::BF16 => Some(RowEncoding::BF16),
        DType::F8E4M3FN => Some(RowEncoding::F8E4M3),
        DType::F8E5M2 => Some(RowEncoding::F8E5M2),
        _ => None,
    };
    let quantized =
        |encoding: &RowEncoding| matches!(encoding, RowEncoding::I8(_) | RowEncoding::I4(_));
    match (plain, wanted) {
        (_, _) if cols == 0 => refused("rows without elements".into()),
        (Some(plain), None) => Ok((plain, cols)),
        (Some(plain), Some(wanted)) if plain == wanted => Ok((plain, cols)),
        (None, Some(wanted)) if matches!(dtype, DType::U8 | DType::I8) && quantized(&wanted) => {
            let beside = match wanted {
                RowEncoding::I8(ScaleBias::LastF32) => 8,
                _ => 4,
            };
            let dim = cols.saturating_sub(beside) * if matches!(wanted, RowEncoding::I4(_)) { 2 } else { 1 };
            match wanted.row_bytes(dim) {
                Some(bytes) if bytes == cols && dim > 0 => Ok((wanted, dim)),
                _ => refused(format!("rows of {cols} bytes are no rows of {wanted}")),
            }
        }
        (None, None) if matches!(dtype, DType::U8) => refused(
            "elements of uint8; encoding= says how quantized rows are stored, and oc.convert makes others float32".into(),
        ),
        (_, Some(wanted)) => refused(format!("elements of {dtype} are no rows of {wanted}")),
        (None, None) => refused(format!("a table has elements of 32, 16 or 8 bits, not of {dtype}; oc.convert makes them float32")),
    }
}

/// Whether a name is one that a pattern with `*` stands for.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// A key by which names are in order with their numbers as numbers.
fn natural(name: &str) -> Vec<(String, Option<u128>)> {
    let mut key: Vec<(String, Option<u128>)> = vec![(String::new(), None)];
    for c in name.chars() {
        let (text, number) = key.last_mut().expect("begins with one");
        match (c.to_digit(10), &number) {
            (Some(digit), _) => {
                let before = number.unwrap_or(0).saturating_mul(10);
                *number = Some(before.saturating_add(u128::from(digit)));
            }
            (None, Some(_)) => key.push((c.to_string(), None)),
            (None, None) => text.push(c),
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["shard.10", "shard.9", "shard", "shard.9.b", "a100"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["a100", "shard", "shard.9", "shard.9.b", "shard.10"]);
    }

    #[test]
    fn patterns_stand_for_names() {
        for (pattern, name, expected) in [
            ("a.weight", "a.weight", true),
            ("a.weight", "a.weights", false),
            ("*.weight", "a.b.weight", true),
            ("shard_*_of_*", "shard_3_of_9", true),
            ("shard_*_of_*", "shard_3", false),
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "ba", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
