//! Writes a table, row by row: a packed one, or one that changes.

use std::path::Path;
use std::sync::Arc;

use outcore_core::{Error, Result, Session, StoredFile};
use outcore_engine::{Extent, StreamOptions, WriteStream};
use outcore_kernels::embedding::RowEncoding;
use outcore_store::versions::VersionWriter;
use outcore_store::{Folder, NewFolder, Unfinished, locate};

use crate::optimizer::Optimizer;
use crate::packed::{Layout, PAGE_BYTES, is_permutation, seal};
use crate::versioned::Description;

const BLOCK_BYTES: usize = 1 << 20;

/// A table that is being written: it has its name when it is whole.
pub struct TableWriter {
    session: Session,
    name: String,
    layout: Layout,
    stream: WriteStream,
    becomes: Becomes,
    page: Vec<u8>,
    written: u64,
}

enum Becomes {
    /// A packed table, with the slots in which rows lie where that is not their order.
    File {
        file: Arc<StoredFile>,
        placement: Option<Vec<u32>>,
    },
    /// The first version of a table that changes.
    Folder(NewFolder),
}

impl TableWriter {
    /// Begins a table of `rows` rows of `dim` elements, which come in the order of their slots: that of
    /// their numbers, or that of `placement`, the slot of each row.
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
        if let Some(slots) = &placement
            && !is_permutation(slots.iter().map(|&slot| u64::from(slot)), rows as usize)
        {
            return Err(Error::value(format!(
                "{name}: a placement gives each of {rows} rows a slot of its own"
            )));
        }
        let file = session.new_file(path, layout.file_bytes(), false)?;
        let first_page = PAGE_BYTES as u64;
        let extent = file.extent().clone();
        let becomes = Becomes::File { file, placement };
        TableWriter::begin(session, name, layout, &extent, first_page, becomes)
    }

    /// Begins a table whose rows change: a folder of versions, in a folder of files. With an optimizer there
    /// is room for its state beside each row, zeros at first, and rows are of float32.
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
        layout: Layout,
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
        match self.written < self.layout.header.rows {
            true => Ok(self.layout.find(self.written).1),
            false => Err(Error::shape(format!(
                "{}: more rows than the {} that it has",
                self.name, self.layout.header.rows
            ))),
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.written += 1;
        let is_full = self.written.is_multiple_of(self.layout.header.rows_a_page);
        if is_full || self.written == self.layout.header.rows {
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
        let (rows, written) = (self.layout.header.rows, self.written);
        if written < rows {
            let name = &self.name;
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
        if let Some(slots) = placement {
            let mut bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
            bytes.extend([0; 4]);
            seal(&mut bytes);
            self.stream.write(&bytes)?;
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

fn layout_of(
    name: &str,
    rows: u64,
    dim: usize,
    encoding: RowEncoding,
    state_bytes: usize,
    has_placement: bool,
) -> Result<Layout> {
    Layout::new(rows, dim, encoding, state_bytes, has_placement).ok_or_else(|| {
        Error::value(format!(
            "{name}: no table of {encoding} has {rows} rows of {dim}"
        ))
    })
}

/// Writes a packed table of all rows that come, in the order of their numbers.
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
