//! Writes a table, row by row: a packed one, or one that changes.

use std::path::Path;
use std::sync::Arc;

use outcore_core::{Error, Result, Session, StoredFile};
use outcore_engine::{Extent, Reservation, StreamOptions, WriteStream};
use outcore_kernels::embedding::RowEncoding;
use outcore_store::versions::VersionWriter;
use outcore_store::{Folder, NewFolder, Unfinished, locate};

use crate::optimizer::Optimizer;
use crate::packed::{NO_ROW, PAGE_BYTES, TableLayout, is_permutation, placement_parts, seal};
use crate::placement::Placement;
use crate::versioned::Description;

const BLOCK_BYTES: usize = 1 << 20;

/// A table that is being written: it has its name when it is whole.
pub struct TableWriter {
    session: Session,
    name: String,
    layout: TableLayout,
    stream: WriteStream,
    becomes: Becomes,
    page: Vec<u8>,
    /// Of the next row.
    slot: u64,
    /// The row in each slot of the pages of replicas.
    replicas: Vec<u32>,
    written: u64,
}

enum Becomes {
    /// A packed table, with the slots in which rows lie where that is not their order.
    File {
        file: Arc<StoredFile>,
        placement: Option<Placed>,
    },
    /// The first version of a table that changes.
    Folder(NewFolder),
}

/// The slot of each row, and the memory for it and for the rows in the slots of replicas.
type Placed = (Vec<u32>, Reservation);

impl TableWriter {
    /// Begins a table of `rows` rows of `dim` elements, which come in the order of their slots: that of
    /// their numbers, or that of `placement`, the slot of each row, which is a part of the session's budget.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// // Row 0 lies behind row 1.
    /// let encoding = RowEncoding::F16;
    /// let mut writer = TableWriter::create(&session, &path, 2, 4, encoding, Some(vec![1, 0]))?;
    /// writer.write(&[1.0; 4])?;
    /// writer.write_stored(&[0; 8])?;
    /// writer.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a shape that no such table can have, [`Error::Store`] where it cannot be
    /// written or has no room, [`Error::OverBudget`].
    pub fn create(
        session: &Session,
        path: impl AsRef<Path>,
        rows: u64,
        dim: usize,
        encoding: RowEncoding,
        placement: Option<Vec<u32>>,
    ) -> Result<TableWriter> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let layout = layout_of(&name, rows, dim, encoding, 0, placement.is_some())?;
        let Some(slots) = placement else {
            return TableWriter::begin_file(session, path, layout, None, Vec::new());
        };
        let memory = memory_for(session, &name, &layout)?;
        let is_sound = {
            // A flag for each slot, while they are checked.
            let _flags = session
                .engine()
                .reserve(&format!("the placement of {name}"), rows)?;
            is_permutation(slots.iter().map(|&slot| u64::from(slot)), rows as usize)
        };
        if !is_sound {
            return Err(Error::value(format!(
                "{name}: a placement gives each of {rows} rows a slot of its own"
            )));
        }
        TableWriter::begin_file(session, path, layout, Some((slots, memory)), Vec::new())
    }

    /// Begins a table with all rows where a placement has them: they come in the order of their slots, then
    /// those of its [pages of replicas](Placement::replicas) in the order of these, once more.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// use outcore_tables::placement::Placement;
    /// use outcore_tables::{Opening, RowEncoding, Table, TableWriter};
    ///
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("table");
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// // Two rows of 500 elements a page; row 1 also lies beside row 2.
    /// let placement = Placement::of_slots(2, vec![0, 1, 2, 3], [vec![1, 2]])?;
    /// let mut writer =
    ///     TableWriter::create_placed(&session, &path, 500, RowEncoding::F32, placement)?;
    /// for row in [0.0, 1.0, 2.0, 3.0, 1.0, 2.0] {
    ///     writer.write(&[row; 500])?;
    /// }
    /// writer.finish()?;
    /// assert_eq!(Table::open(&session, &[path], &Opening::default())?.rows(), 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`create`](TableWriter::create); [`Error::Value`] for replicas in pages of another number of rows
    /// than the table has.
    pub fn create_placed(
        session: &Session,
        path: impl AsRef<Path>,
        dim: usize,
        encoding: RowEncoding,
        placement: Placement,
    ) -> Result<TableWriter> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let rows = placement.slot_of_row().len() as u64;
        let layout = layout_of(&name, rows, dim, encoding, 0, true)?;
        let rows_a_page = layout.header.rows_a_page as usize;
        let pages = placement.replicas().count();
        if pages > 0 && placement.rows_a_page() as usize != rows_a_page {
            return Err(Error::value(format!(
                "{name}: replicas in pages of {} rows, where a page has {rows_a_page}",
                placement.rows_a_page()
            )));
        }
        let layout = (layout.with_replicas(pages as u64))
            .ok_or_else(|| Error::value(format!("{name}: {pages} pages of replicas")))?;
        let memory = memory_for(session, &name, &layout)?;
        let mut replicas = vec![NO_ROW; pages * rows_a_page];
        for (slots, rows) in replicas
            .chunks_exact_mut(rows_a_page)
            .zip(placement.replicas())
        {
            slots[..rows.len()].copy_from_slice(rows);
        }
        let placed = (placement.into_slot_of_row(), memory);
        TableWriter::begin_file(session, path, layout, Some(placed), replicas)
    }

    fn begin_file(
        session: &Session,
        path: &Path,
        layout: TableLayout,
        placement: Option<Placed>,
        replicas: Vec<u32>,
    ) -> Result<TableWriter> {
        let name = path.display().to_string();
        let file = session.new_file(path, layout.file_bytes(), false)?;
        let (first_page, extent) = (PAGE_BYTES as u64, file.extent().clone());
        let becomes = Becomes::File { file, placement };
        let writer = TableWriter::begin(session, name, layout, &extent, first_page, becomes)?;
        Ok(TableWriter { replicas, ..writer })
    }

    /// Begins a table whose rows change: a folder of versions, in a folder of files. With an optimizer there
    /// is room for its state beside each row, zeros at first, and rows are of float32.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// let optimizer = Some(&Optimizer::RowwiseAdagrad { eps: 1e-8 });
    /// let mut writer =
    ///     TableWriter::create_versioned(&session, &path, 2, 4, RowEncoding::F32, optimizer)?;
    /// writer.write(&[0.0; 4])?;
    /// writer.write(&[1.0; 4])?;
    /// writer.finish()?;
    /// assert_eq!(Table::open(&session, &[path], &Opening::default())?.version(), Some(0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`create`](TableWriter::create).
    pub fn create_versioned(
        session: &Session,
        path: impl AsRef<Path>,
        rows: u64,
        dim: usize,
        encoding: RowEncoding,
        optimizer: Option<&Optimizer>,
    ) -> Result<TableWriter> {
        let path = path.as_ref();
        let name = path.display().to_string();
        if optimizer.is_some() && encoding != RowEncoding::F32 {
            return Err(Error::value(format!(
                "{name}: rows of float32 are trained, not of {encoding}"
            )));
        }
        let (store, _) = locate(path)?;
        if store.limits().is_some() {
            return Err(Error::value(format!(
                "{name}: a table that changes lies in a folder of files; a formatted store has packed tables"
            )));
        }
        let state_bytes = optimizer.map_or(0, |optimizer| optimizer.state_bytes(dim));
        let layout = layout_of(&name, rows, dim, encoding, state_bytes, false)?;
        let description = Description {
            header: layout.header.clone(),
            optimizer: optimizer.map(Optimizer::name).unwrap_or_default().into(),
            steps: 0,
            delta: 0,
        };
        let (around, last) = Folder::split(path)?;
        let mut folder = around.create_folder(&last, Unfinished::Removed, &[])?;
        let what = format!("the map of {name}");
        let _map = session.engine().reserve(&what, 4 * layout.pages())?;
        let device = VersionWriter::begin(
            &mut folder,
            layout.header.page_bytes as u64,
            layout.pages(),
            description.bytes(),
        )?;
        let pages = session.device_file(name.clone(), device);
        let becomes = Becomes::Folder(folder);
        TableWriter::begin(session, name, layout, pages.extent(), 0, becomes)
    }

    fn begin(
        session: &Session,
        name: String,
        layout: TableLayout,
        extent: &Extent,
        first_page: u64,
        becomes: Becomes,
    ) -> Result<TableWriter> {
        let options = StreamOptions {
            block_bytes: BLOCK_BYTES,
            ahead: 4,
        };
        Ok(TableWriter {
            session: session.clone(),
            name,
            stream: session.engine().write_stream(extent, first_page, options)?,
            page: vec![0; layout.header.page_bytes],
            layout,
            becomes,
            slot: 0,
            replicas: Vec::new(),
            written: 0,
        })
    }

    /// Appends a row of numbers.
    ///
    /// # Errors
    /// [`Error::Shape`] for a row of another length, or one too many; those of the device.
    pub fn write(&mut self, row: &[f32]) -> Result<()> {
        if row.len() != self.layout.header.dim {
            let (name, dim) = (&self.name, self.layout.header.dim);
            return Err(Error::shape(format!(
                "{name}: a row of {}, where rows have {dim}",
                row.len()
            )));
        }
        let at = self.next_place()?;
        let encoded = at..at + self.layout.row_bytes;
        self.layout.encoding.encode(row, &mut self.page[encoded]);
        self.advance()
    }

    /// Appends rows as they are stored, without gaps between them.
    ///
    /// # Errors
    /// As [`write`](TableWriter::write).
    pub fn write_stored(&mut self, rows: &[u8]) -> Result<()> {
        let row_bytes = self.layout.row_bytes;
        if !rows.len().is_multiple_of(row_bytes) {
            let (name, bytes) = (&self.name, rows.len());
            return Err(Error::shape(format!(
                "{name}: {bytes} bytes are no rows of {row_bytes}"
            )));
        }
        for row in rows.chunks_exact(row_bytes) {
            let at = self.next_place()?;
            self.page[at..at + row_bytes].copy_from_slice(row);
            self.advance()?;
        }
        Ok(())
    }

    fn next_place(&self) -> Result<usize> {
        match self.has_row(self.slot) {
            true => Ok(self.layout.find(self.slot).1),
            false => Err(Error::shape(format!(
                "{}: more rows than the {} that it has",
                self.name, self.written
            ))),
        }
    }

    /// Whether a row lies in a slot.
    fn has_row(&self, slot: u64) -> bool {
        let (first, _) = self.layout.replica_slots();
        let replica = slot
            .checked_sub(first)
            .and_then(|at| self.replicas.get(at as usize));
        slot < self.layout.header.rows || replica.is_some_and(|row| *row != NO_ROW)
    }

    fn advance(&mut self) -> Result<()> {
        let rows_a_page = self.layout.header.rows_a_page;
        self.written += 1;
        self.slot += 1;
        if self.slot.is_multiple_of(rows_a_page) || !self.has_row(self.slot) {
            self.slot = self.slot.next_multiple_of(rows_a_page);
            seal(&mut self.page);
            self.stream.write(&self.page)?;
            self.page.fill(0);
        }
        Ok(())
    }

    /// Makes the table durable, and gives it its name.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows that are missing; those of the device and the store.
    pub fn finish(mut self) -> Result<()> {
        if self.has_row(self.slot) {
            let of_replicas = self.replicas.iter().filter(|row| **row != NO_ROW);
            let rows = self.layout.header.rows + of_replicas.count() as u64;
            let (name, written) = (&self.name, self.written);
            return Err(Error::shape(format!(
                "{name}: {written} of {rows} rows were written"
            )));
        }
        let (file, placement) = match self.becomes {
            Becomes::File { file, placement } => (file, placement),
            Becomes::Folder(folder) => {
                self.stream.finish()?;
                return Ok(folder.commit()?);
            }
        };
        if let Some((slots, _memory)) = placement {
            for part in placement_parts(&slots, &self.replicas) {
                self.stream.write(&part)?;
            }
        }
        self.stream.finish()?;
        let options = StreamOptions {
            block_bytes: PAGE_BYTES,
            ahead: 1,
        };
        let engine = self.session.engine();
        let mut head = engine.write_stream(file.extent(), 0, options)?;
        head.write(&self.layout.header_page())?;
        head.finish()?;
        self.session.commit(&file)
    }
}

/// For the numbers of a placement: the slot of each row, and the row in each slot of the pages of replicas.
///
/// # Errors
/// [`Error::OverBudget`].
fn memory_for(session: &Session, name: &str, layout: &TableLayout) -> Result<Reservation> {
    let numbers = layout.header.rows + layout.replica_slots().1;
    let what = format!("the placement of {name}");
    Ok(session.engine().reserve(&what, 4 * numbers)?)
}

fn layout_of(
    name: &str,
    rows: u64,
    dim: usize,
    encoding: RowEncoding,
    state_bytes: usize,
    has_placement: bool,
) -> Result<TableLayout> {
    TableLayout::new(rows, dim, encoding, state_bytes, has_placement).ok_or_else(|| {
        Error::value(format!(
            "{name}: no table of {encoding} has {rows} rows of {dim}"
        ))
    })
}

/// Writes a packed table of all rows that come, in the order of their numbers.
///
/// ```
/// # use outcore_core::{Session, Settings};
/// # use outcore_tables::*;
/// # fn main() -> outcore_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
/// # let path = folder.path().join("table");
/// write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of a [`TableWriter`].
pub fn write_packed<R: AsRef<[f32]>>(
    session: &Session,
    path: impl AsRef<Path>,
    rows: u64,
    dim: usize,
    encoding: RowEncoding,
    numbers: impl IntoIterator<Item = R>,
) -> Result<()> {
    let mut writer = TableWriter::create(session, path, rows, dim, encoding, None)?;
    numbers
        .into_iter()
        .try_for_each(|row| writer.write(row.as_ref()))?;
    writer.finish()
}
