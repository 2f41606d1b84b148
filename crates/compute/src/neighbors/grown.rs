//! A sparse matrix of float64 whose rows come one after another, however many entries they have:
//! its files grow in a staging folder until it is whole, or for good in scratch. With a checkpoint they
//! grow in the folder of that, and are copied when they are whole.

use std::path::{Path, PathBuf};

use outcore_core::growing::{Growing, write_at};
use outcore_core::panels::cut;
use outcore_core::staging::StagingFolder;
use outcore_core::{DType, MemorySplit, RealType, Result, Session, Stage};
use outcore_engine::{Plan, Region, StreamOptions, Task};
use outcore_matrix::sparse::format::{Description, Entries};
use outcore_matrix::sparse::{NewSparse, SparseShape, names};
use outcore_matrix::{Compressed, Sparse};

use super::GraphOutput;
use super::resumed::{COPIED_BYTES, State, other_search};

/// Blocks of each file in memory.
const AHEAD: usize = 2;

pub(super) struct Grown {
    session: Session,
    path: Option<PathBuf>,
    /// Of what is kept: what the search is, in words.
    kept: Option<String>,
    home: StagingFolder,
    /// Offsets, indices and, where there are any, values.
    files: Vec<Growing>,
    width: u64,
    rows: u64,
    entries: u64,
}

impl Grown {
    fn options(session: &Session) -> StreamOptions {
        let block = MemorySplit::new(session).side_block_bytes(4096, 1 << 20);
        StreamOptions {
            block_bytes: block as usize,
            ahead: AHEAD,
        }
    }

    /// Bytes that it holds while it grows.
    pub(super) fn held_bytes(session: &Session) -> u64 {
        3 * (Self::options(session).block_bytes * AHEAD) as u64
    }

    /// Claims the folder; without a path, one in scratch. With a checkpoint of the same search, it has the rows
    /// of that.
    pub(super) fn make(
        session: &Session,
        output: &GraphOutput,
        width: u64,
        search: &str,
    ) -> Result<Grown> {
        let path = output.out.as_deref();
        let grows_at = output.checkpoint.as_ref().map(|kept| kept.path.as_path());
        let grows_at = grows_at.or(path);
        let mut home = match grows_at {
            Some(path) => StagingFolder::claim(session, path, &names::ALL)?,
            None => StagingFolder::unnamed(session, &names::ALL)?,
        };
        let (mut kept, mut done) = (None, None);
        if let Some(checkpoint) = &output.checkpoint {
            let name = format!("{search}: {}", checkpoint.search);
            done = match home.saved::<State>()? {
                Some((saved, _)) if saved != name => {
                    return Err(other_search(&checkpoint.path, &home));
                }
                saved => saved.map(|(_, done)| done),
            };
            kept = Some(name);
            // What may not be there is refused now, not when the search is over.
            if let Some(path) = path {
                StagingFolder::claim(session, path, &names::ALL)?
                    .folder
                    .discard();
            }
        }
        let parts = [
            (names::OFFSETS, DType::I64),
            (names::INDICES, SparseShape::index_for(width)),
            (names::VALUES, DType::F64),
        ];
        let parts = &parts[..2 + usize::from(output.has_distances)];
        match done {
            Some(_) => home.folder.empty_but(&names::ALL)?,
            None => home.folder.empty()?,
        }
        let [rows, entries] = done.unwrap_or_default();
        let options = Self::options(session);
        let at = grows_at.unwrap_or(Path::new("scratch"));
        let counts = [done.map_or(0, |_| rows + 1), entries, entries];
        let mut files = parts
            .iter()
            .zip(counts)
            .map(|(&(name, element), count)| {
                let (folder, len) = (&mut home.folder, count * element.bytes());
                Growing::open(session, folder, at, name, Some(element), len, options)
            })
            .collect::<Result<Vec<_>>>()?;
        files.iter_mut().try_for_each(Growing::prepare)?;
        if done.is_none() {
            files[0].write(&0_i64.to_le_bytes())?;
        }
        Ok(Grown {
            session: session.clone(),
            path: path.map(Path::to_owned),
            kept,
            home,
            files,
            width,
            rows,
            entries,
        })
    }

    /// Rows that are whole.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// With a checkpoint: makes the rows so far durable, and says so.
    pub(super) fn keep(&mut self) -> Result<()> {
        let Some(name) = &self.kept else {
            return Ok(());
        };
        self.files.iter_mut().try_for_each(Growing::pause)?;
        self.home.folder.sync()?;
        self.home.save(&(name, [self.rows, self.entries]))?;
        self.files.iter_mut().try_for_each(Growing::prepare)
    }

    /// Appends entries of the row that goes on.
    pub(super) fn extend(&mut self, entries: &[(u64, f64)]) -> Result<()> {
        let indices = &mut self.files[1];
        match SparseShape::index_for(self.width) {
            DType::I32 => indices.extend(entries, |(column, _)| (column as i32).to_le_bytes())?,
            _ => indices.extend(entries, |(column, _)| (column as i64).to_le_bytes())?,
        }
        if let Some(values) = self.files.get_mut(2) {
            values.extend(entries, |(_, value)| value.to_le_bytes())?;
        }
        self.entries += entries.len() as u64;
        Ok(())
    }

    /// The row is whole.
    pub(super) fn end_row(&mut self) -> Result<()> {
        self.rows += 1;
        self.files[0].write(&(self.entries as i64).to_le_bytes())
    }

    /// The matrix, under its name if it is to have one.
    pub(super) fn finish(mut self, stage: &mut Stage) -> Result<Sparse> {
        if self.kept.is_some() {
            return self.copy(stage);
        }
        for file in &mut self.files {
            file.finish(stage, &mut self.home.folder)?;
        }
        let (session, shape) = (self.session.clone(), [self.rows, self.width]);
        let Some(path) = self.path.clone() else {
            let files = self.files.iter().filter_map(Growing::vector).collect();
            let (name, rows, real) = ("scratch".into(), Compressed::Rows, RealType::F64);
            let stop = || stage.is_cancelled();
            return Sparse::of_files(&session, name, rows, shape, real, files, &stop);
        };
        self.describe(&path, shape)?;
        self.home.commit(&session, stage, &path, &[])?;
        Sparse::open_until(&session, path, &|| stage.is_cancelled())
    }

    /// A copy of what is kept.
    fn copy(&mut self, stage: &mut Stage) -> Result<Sparse> {
        self.files.iter_mut().try_for_each(Growing::pause)?;
        let shape = SparseShape {
            format: Compressed::Rows,
            lines: self.rows,
            width: self.width,
            entries: self.entries,
            index: SparseShape::index_for(self.width),
            real: RealType::F64,
            has_values: self.files.len() > 2,
        };
        let mut plan = Plan::new("put rows within a radius");
        let new = NewSparse::make(&self.session, self.path.clone(), shape, &mut plan)?;
        let piece = MemorySplit::new(&self.session).block_bytes(COPIED_BYTES);
        let vectors = self.files.iter().filter_map(Growing::vector);
        for (which, (vector, file)) in vectors.enumerate() {
            let element = vector.element.bytes();
            for range in cut(0..vector.len, piece / element) {
                let (start, len) = (range.start * element, (range.end - range.start) * element);
                let extent = plan.extent(file.extent());
                let read = Region::span(extent, vector.data_offset + start, len);
                let write = match which {
                    0 => Some(new.offsets(&mut plan, range)),
                    1 => Some(new.indices(&mut plan, range)),
                    _ => new.values(&mut plan, range),
                };
                let task = Task::new("copy").read(read);
                let task = write.into_iter().fold(task, Task::write);
                plan.task(task.run(|cx| {
                    let (from, to) = cx.blocks.split_at_mut(1);
                    to[0].bytes_mut().copy_from_slice(from[0].bytes());
                    Ok(())
                }));
            }
        }
        stage.run(plan, 1.0)?;
        new.finish(&|| stage.is_cancelled())
    }

    fn describe(&mut self, path: &Path, shape: [u64; 2]) -> Result<()> {
        let text = Description {
            format: Compressed::Rows,
            shape,
            nonzeros: Some(self.entries),
            dtype: Some(RealType::F64.into()),
            layout: Entries::Arrays,
        }
        .text();
        let folder = &mut self.home.folder;
        let device = folder.create(names::DESCRIPTION, text.len() as u64)?;
        let object = path.join(names::DESCRIPTION).display().to_string();
        let file = self.session.device_file(object, device);
        write_at(&self.session, file.extent(), text.as_bytes(), folder.path())
    }

    /// Gives up all that is not kept.
    pub(super) fn discard(self) {
        if self.kept.is_none() {
            self.home.folder.discard();
        }
    }
}
