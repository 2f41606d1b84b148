//! A sparse matrix of float64 whose rows come one after another, however many entries they have:
//! its files grow in a staging folder until it is whole, or for good in scratch.

use std::path::{Path, PathBuf};

use outcore_core::growing::{Growing, write_at};
use outcore_core::staging::StagingFolder;
use outcore_core::{DType, MemorySplit, RealType, Result, Session, Stage};
use outcore_engine::StreamOptions;
use outcore_matrix::sparse::format::{Description, Entries};
use outcore_matrix::sparse::{SparseShape, names};
use outcore_matrix::{Compressed, Sparse};

/// Blocks of each file in memory.
const AHEAD: usize = 2;

pub(super) struct Grown {
    session: Session,
    path: Option<PathBuf>,
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

    /// Claims the folder; without a path, one in scratch.
    pub(super) fn make(
        session: &Session,
        path: Option<&Path>,
        width: u64,
        has_values: bool,
    ) -> Result<Grown> {
        let mut home = match path {
            Some(path) => StagingFolder::claim(session, path, &names::ALL)?,
            None => StagingFolder::unnamed(session, &names::ALL)?,
        };
        home.folder.empty()?;
        let options = Self::options(session);
        let at = path.unwrap_or(Path::new("scratch"));
        let mut files = [
            (names::OFFSETS, DType::I64),
            (names::INDICES, SparseShape::index_for(width)),
            (names::VALUES, DType::F64),
        ]
        .into_iter()
        .take(2 + usize::from(has_values))
        .map(|(name, element)| {
            let folder = &mut home.folder;
            Growing::open(session, folder, at, name, Some(element), 0, options)
        })
        .collect::<Result<Vec<_>>>()?;
        files.iter_mut().try_for_each(Growing::prepare)?;
        files[0].write(&0_i64.to_le_bytes())?;
        Ok(Grown {
            session: session.clone(),
            path: path.map(Path::to_owned),
            home,
            files,
            width,
            rows: 0,
            entries: 0,
        })
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

    /// Gives all of it up.
    pub(super) fn discard(self) {
        self.home.folder.discard();
    }
}
