//! Writes a packed table, row by row.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_core::{Error, Result, Session, StoredFile};
use outcore_engine::{StreamOptions, WriteStream};
use outcore_kernels::embedding::RowEncoding;

use crate::packed::{Layout, PAGE_BYTES, seal};

const BLOCK_BYTES: usize = 1 << 20;

/// A packed table that is being written: it has its name when it is whole.
pub struct TableWriter {
    session: Session,
    path: PathBuf,
    file: Arc<StoredFile>,
    layout: Layout,
    stream: WriteStream,
    /// Rows by the slots in which they lie.
    placement: Option<Vec<u32>>,
    page: Vec<u8>,
    written: u64,
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
        let object = path.display();
        let layout = Layout::new(rows, dim, encoding, 0, placement.is_some()).ok_or_else(|| {
            Error::value(format!(
                "{object}: no table of {encoding} has {rows} rows of {dim}"
            ))
        })?;
        if let Some(slots) = &placement
            && (slots.len() as u64 != rows || !is_permutation(slots))
        {
            return Err(Error::value(format!(
                "{object}: a placement gives each of {rows} rows a slot of its own"
            )));
        }
        let file = session.new_file(path, layout.file_bytes(), false)?;
        let options = StreamOptions {
            block_bytes: BLOCK_BYTES,
            ahead: 4,
        };
        let stream = session
            .engine()
            .write_stream(file.extent(), PAGE_BYTES as u64, options)?;
        Ok(TableWriter {
            session: session.clone(),
            path: path.to_owned(),
            file,
            page: vec![0; layout.header.page_bytes],
            layout,
            stream,
            placement,
            written: 0,
        })
    }

    /// Appends a row of numbers.
    ///
    /// # Errors
    /// [`Error::Shape`] for a row of another length, or one too many; those of the device.
    pub fn write(&mut self, row: &[f32]) -> Result<()> {
        if row.len() != self.layout.header.dim {
            let (path, dim) = (self.path.display(), self.layout.header.dim);
            return Err(Error::shape(format!(
                "{path}: a row of {}, where rows have {dim}",
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
            let (path, bytes) = (self.path.display(), rows.len());
            return Err(Error::shape(format!(
                "{path}: {bytes} bytes are no rows of {row_bytes}"
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
                self.path.display(),
                self.layout.header.rows
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
            let path = self.path.display();
            return Err(Error::shape(format!(
                "{path}: {written} of {rows} rows were written"
            )));
        }
        if let Some(slots) = self.placement.take() {
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
        let mut head = self
            .session
            .engine()
            .write_stream(self.file.extent(), 0, options)?;
        head.write(&self.layout.header_page())?;
        head.finish()?;
        self.session.commit(&self.file)
    }
}

fn is_permutation(slots: &[u32]) -> bool {
    let mut seen = vec![false; slots.len()];
    slots.iter().all(|&slot| {
        seen.get_mut(slot as usize)
            .is_some_and(|seen| !std::mem::replace(seen, true))
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
