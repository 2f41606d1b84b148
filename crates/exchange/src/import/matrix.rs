//! The matrix that an import makes: rows (or columns) in their order go to growing files, and what
//! is found on the way decides in the end what the files are.
//!
//! - Columns are int32 until one of 2^31 or more is seen; those before it are then written again as
//!   int64.
//! - Values are written from the first that is not one.
//! - Features of LIBSVM text whose base is to be found are taken for one-based until a feature 0 is
//!   seen; the columns before it are then raised by one.

use std::path::{Path, PathBuf};

use outcore_core::format::HEAD_BYTES;
use outcore_core::growing::{Growing, write_at};
use outcore_core::panels::cut;
use outcore_core::staging::{StagingFolder, remove, sync_folder};
use outcore_core::{DType, Error, FormatError, RealType, Result, Session, Stage};
use outcore_engine::{Plan, Region, StreamOptions, Task};
use outcore_formats::{Batch, Vocabulary};
use outcore_matrix::sparse::format::{Description, Entries};
use outcore_matrix::sparse::{SparseShape, compress_within, names};
use outcore_matrix::{Compressed, Sparse};
use outcore_store::NewFolder;
use serde::{Deserialize, Serialize};

/// What grows.
const GROWING: [&str; 8] = [
    names::OFFSETS,
    names::INDICES,
    names::VALUES,
    names::LABELS,
    names::LABEL_FOLDER,
    names::QUERIES,
    names::WORDS,
    names::CLASSES,
];

/// What lies beside the matrix, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelKind {
    None,
    One,
    Many,
}

/// What is found besides rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub(super) dtype: RealType,
    pub(super) format: Compressed,
    /// In tiles, where they pay.
    pub(super) tiled: bool,
    pub(super) labels: LabelKind,
    pub(super) words: bool,
    pub(super) classes: bool,
    /// Features are taken for one-based until a 0 is seen.
    pub(super) finds_base: bool,
    /// Columns (of CSC, rows), where they are known.
    pub(super) width: Option<u64>,
    /// Different labels of data with many, where they are known.
    pub(super) label_count: Option<u64>,
    /// Rows may have queries.
    pub(super) queries: bool,
    /// Lines and entries, where a header tells them: entries of one place may be fewer in the end.
    pub(super) lines: Option<u64>,
    pub(super) entries: Option<u64>,
}

impl Draft {
    /// Bytes that are written at least, as far as headers tell, before entries are put in tiles.
    fn least_bytes(&self) -> u64 {
        let lines = self
            .lines
            .unwrap_or(0)
            .saturating_mul(if self.labels == LabelKind::None {
                8
            } else {
                16
            });
        let index = SparseShape::index_for(self.width.unwrap_or(0)).bytes();
        lines.saturating_add(self.entries.unwrap_or(0).saturating_mul(index))
    }
}

/// How far it is: all that is needed to go on, besides the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) lines: u64,
    pub(super) entries: u64,
    /// One more than the largest column.
    pub(super) width: u64,
    /// Feature 0 was seen.
    pub(super) zero_based: bool,
    pub(super) has_values: bool,
    pub(super) wide: bool,
    pub(super) label_entries: u64,
    pub(super) label_width: u64,
    /// Rows with a query: all or none.
    #[serde(default)]
    pub(super) queries: u64,
    pub(super) words: u64,
    pub(super) word_bytes: u64,
    pub(super) classes: u64,
    pub(super) class_bytes: u64,
    /// Entries of the file, as its header counts them.
    pub(super) counted: u64,
    /// Row, column and bits of the value of the last entry, which is not in the matrix yet: others
    /// of its place may follow.
    pub(super) pending: Option<(u64, u64, u64)>,
}

pub(super) struct NewMatrix {
    session: Session,
    path: PathBuf,
    home: StagingFolder,
    /// What errors about entries name.
    source: String,
    draft: Draft,
    options: StreamOptions,
    pub(super) state: State,
    files: Files,
    is_tiled: bool,
    is_rewritten: bool,
}

impl State {
    /// Of a matrix that has nothing yet. How wide its columns are is known beforehand where their
    /// number is, so that they need not be written again.
    fn first(draft: Draft) -> State {
        State {
            wide: draft
                .width
                .is_some_and(|width| SparseShape::index_for(width) == DType::I64),
            ..State::default()
        }
    }
}

impl NewMatrix {
    /// Claims the folder, empty unless `go_on` finds something in it to go on with.
    pub(super) fn make(
        session: &Session,
        path: &Path,
        source: &str,
        draft: Draft,
        options: StreamOptions,
        go_on: impl FnOnce(&StagingFolder) -> Result<Option<State>>,
    ) -> Result<NewMatrix> {
        let mut home = StagingFolder::claim(session, path, &names::ALL)?;
        let state = go_on(&home)?;
        match state {
            None => home.folder.empty()?,
            Some(_) => home.folder.empty_but(&GROWING)?,
        }
        let begun = state.is_some();
        let state = state.unwrap_or_else(|| State::first(draft));
        let room = home.check_room(
            path,
            draft
                .least_bytes()
                .saturating_sub(8 * state.lines + 4 * state.entries),
        );
        match room
            .and_then(|()| Files::open(session, path, draft, options, &mut home.folder, &state))
        {
            Ok(files) => {
                let (session, path, source) = (session.clone(), path.to_owned(), source.to_owned());
                let (is_tiled, is_rewritten) = (false, false);
                Ok(NewMatrix {
                    session,
                    path,
                    home,
                    source,
                    draft,
                    options,
                    state,
                    files,
                    is_tiled,
                    is_rewritten,
                })
            }
            Err(error) => {
                if !begun {
                    home.folder.discard();
                }
                Err(error)
            }
        }
    }
}

/// The files of a matrix that is being made.
struct Files {
    offsets: Growing,
    indices: Growing,
    values: Growing,
    labels: Vec<Growing>,
    queries: Option<Growing>,
    words: Option<Growing>,
    classes: Option<Growing>,
}

impl Files {
    fn open(
        session: &Session,
        path: &Path,
        draft: Draft,
        options: StreamOptions,
        folder: &mut NewFolder,
        state: &State,
    ) -> Result<Files> {
        let mut open = |name: &str, element, len| {
            Growing::open(session, folder, path, name, element, len, options)
        };
        let index = if state.wide { DType::I64 } else { DType::I32 };
        let offset_bytes = |lines: u64| if lines > 0 { 8 * (lines + 1) } else { 0 };
        let offsets = open(names::OFFSETS, Some(DType::I64), offset_bytes(state.lines))?;
        let indices = open(names::INDICES, Some(index), state.entries * index.bytes())?;
        let value_bytes = if state.has_values {
            state.entries * draft.dtype.bytes() as u64
        } else {
            0
        };
        let values = open(names::VALUES, Some(draft.dtype.into()), value_bytes)?;
        let queries = draft
            .queries
            .then(|| open(names::QUERIES, Some(DType::I64), 8 * state.queries))
            .transpose()?;
        let words = draft
            .words
            .then(|| open(names::WORDS, None, state.word_bytes))
            .transpose()?;
        let classes = draft
            .classes
            .then(|| open(names::CLASSES, None, state.class_bytes))
            .transpose()?;
        let mut labels = Vec::new();
        match draft.labels {
            LabelKind::None => {}
            LabelKind::One => labels.push(open(names::LABELS, Some(DType::F64), 8 * state.lines)?),
            LabelKind::Many => {
                let inside = folder.path().join(names::LABEL_FOLDER);
                std::fs::create_dir_all(&inside)
                    .map_err(|source| Error::of_io(inside.display().to_string(), source))?;
                let part = |name: &str| format!("{}/{name}", names::LABEL_FOLDER);
                let mut open = |name: &str, element, len| {
                    Growing::open(
                        session,
                        folder,
                        path,
                        &part(name),
                        Some(element),
                        len,
                        options,
                    )
                };
                labels.push(open(names::OFFSETS, DType::I64, offset_bytes(state.lines))?);
                labels.push(open(names::INDICES, DType::I64, 8 * state.label_entries)?);
            }
        }
        let mut files = Files {
            offsets,
            indices,
            values,
            labels,
            queries,
            words,
            classes,
        };
        files.each(Growing::prepare)?;
        Ok(files)
    }

    fn each(&mut self, mut f: impl FnMut(&mut Growing) -> Result<()>) -> Result<()> {
        let Files {
            offsets,
            indices,
            values,
            labels,
            queries,
            words,
            classes,
        } = self;
        let rest = labels.iter_mut().chain(queries).chain(words).chain(classes);
        [offsets, indices, values]
            .into_iter()
            .chain(rest)
            .try_for_each(&mut f)
    }
}

impl NewMatrix {
    /// Begins anew: what was written will be written over. Columns stay as wide as the file has
    /// them.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.files.each(|file| file.restart(0))?;
        self.state = State {
            wide: self.state.wide,
            ..State::default()
        };
        Ok(())
    }

    /// Whether there was a checkpoint that had to go, because what it counted was written over.
    pub(super) fn is_rewritten(&mut self) -> bool {
        std::mem::take(&mut self.is_rewritten)
    }

    /// Appends whole lines, with their labels and queries. Values have to fit the type.
    pub(super) fn push(&mut self, stage: &mut Stage, batch: &Batch) -> Result<()> {
        if batch.rows() == 0 {
            return Ok(());
        }
        if let Some(file) = &mut self.files.queries {
            file.extend(&batch.queries, |query| (query as i64).to_le_bytes())?;
            self.state.queries += batch.queries.len() as u64;
        }
        let base = self.state.entries;
        self.entries(stage, &batch.indices, &batch.values)?;
        self.line_ends(batch.offsets[1..].iter().map(|end| base + end))?;
        match self.draft.labels {
            LabelKind::None => {}
            LabelKind::One if batch.labels.len() == batch.rows() => {
                self.files.labels[0].extend(&batch.labels, f64::to_le_bytes)?
            }
            LabelKind::One => {
                return Err(Error::Failed {
                    what: "rows without labels".into(),
                });
            }
            LabelKind::Many => self.many_labels(batch)?,
        }
        Ok(())
    }

    fn many_labels(&mut self, batch: &Batch) -> Result<()> {
        let base = self.state.label_entries;
        let [offsets, indices] = &mut self.files.labels[..] else {
            unreachable!("both were made")
        };
        if offsets.is_empty() {
            offsets.write(&0_i64.to_le_bytes())?;
        }
        offsets.extend(&batch.label_offsets[1..], |end| {
            ((base + end) as i64).to_le_bytes()
        })?;
        indices.extend(&batch.label_indices, |label| (label as i64).to_le_bytes())?;
        self.state.label_entries += batch.label_indices.len() as u64;
        let widest = batch
            .label_indices
            .iter()
            .max()
            .map_or(0, |&label| label + 1);
        self.state.label_width = self.state.label_width.max(widest);
        Ok(())
    }

    /// Appends where lines end.
    pub(super) fn line_ends(&mut self, ends: impl Iterator<Item = u64>) -> Result<()> {
        if self.files.offsets.is_empty() {
            self.files.offsets.write(&0_i64.to_le_bytes())?;
        }
        let mut some = [0_u64; 512];
        let mut ends = ends.peekable();
        while ends.peek().is_some() {
            let mut count = 0;
            for (into, end) in some.iter_mut().zip(&mut ends) {
                *into = end;
                count += 1;
            }
            self.files
                .offsets
                .extend(&some[..count], |end| (end as i64).to_le_bytes())?;
            self.state.lines += count as u64;
        }
        Ok(())
    }

    /// Appends entries of the line that goes on, or of several.
    ///
    /// # Errors
    /// [`Error::Format`] for values that float32 cannot hold, which are sums then: the line that
    /// goes on is named.
    pub(super) fn entries(
        &mut self,
        stage: &mut Stage,
        columns: &[u64],
        values: &[f64],
    ) -> Result<()> {
        let Some((least, most)) =
            columns
                .iter()
                .fold(None, |range: Option<(u64, u64)>, &column| {
                    Some(range.map_or((column, column), |(least, most)| {
                        (least.min(column), most.max(column))
                    }))
                })
        else {
            return Ok(());
        };
        if self.draft.finds_base && !self.state.zero_based && least == 0 {
            self.raise(stage)?;
        }
        let lowered = u64::from(self.draft.finds_base && !self.state.zero_based);
        self.state.width = self.state.width.max(most + 1 - lowered);
        self.check_width()?;
        if !self.state.wide && most - lowered > i32::MAX as u64 {
            self.widen(stage)?;
        }
        match self.state.wide {
            true => self
                .files
                .indices
                .extend(columns, |column| ((column - lowered) as i64).to_le_bytes())?,
            false => self
                .files
                .indices
                .extend(columns, |column| ((column - lowered) as i32).to_le_bytes())?,
        }
        self.append_values(stage, columns, values)?;
        self.state.entries += columns.len() as u64;
        Ok(())
    }

    fn check_width(&self) -> Result<()> {
        match self.draft.width {
            Some(width) if self.state.width > width => {
                let what = format!(
                    "{} is to have {width} columns, but a column {} (from 0) is there",
                    self.path.display(),
                    self.state.width - 1
                );
                Err(Error::Shape { what })
            }
            _ => Ok(()),
        }
    }

    fn append_values(&mut self, stage: &mut Stage, columns: &[u64], values: &[f64]) -> Result<()> {
        if !self.state.has_values {
            if values.iter().all(|&value| value == 1.0) {
                return Ok(());
            }
            self.fill_with_ones(stage)?;
        }
        match self.draft.dtype {
            RealType::F64 => self.files.values.extend(values, f64::to_le_bytes),
            RealType::F32 => {
                if let Some(at) = values
                    .iter()
                    .position(|&value| (value as f32).is_infinite())
                {
                    let (line, column, value) = (self.state.lines, columns[at], values[at]);
                    let reason = format!(
                        "the entries of row {line}, column {column} (from 0) are {value:e} together, beyond float32; import it as float64"
                    );
                    return Err(FormatError::Unsupported {
                        object: self.source.clone(),
                        reason,
                    }
                    .into());
                }
                self.files
                    .values
                    .extend(values, |value| (value as f32).to_le_bytes())
            }
        }
    }

    fn fill_with_ones(&mut self, stage: &mut Stage) -> Result<()> {
        let ones = [1.0_f64; 1 << 12];
        let mut left = self.state.entries;
        while left > 0 {
            stage.check()?;
            let now = left.min(ones.len() as u64) as usize;
            match self.draft.dtype {
                RealType::F32 => self
                    .files
                    .values
                    .extend(&ones[..now], |one| (one as f32).to_le_bytes())?,
                RealType::F64 => self.files.values.extend(&ones[..now], f64::to_le_bytes)?,
            }
            left -= now as u64;
        }
        self.state.has_values = true;
        Ok(())
    }

    /// Adds one to every column so far.
    fn raise(&mut self, stage: &mut Stage) -> Result<()> {
        self.state.zero_based = true;
        self.state.width += u64::from(self.state.entries > 0);
        if self.state.entries == 0 {
            return Ok(());
        }
        self.begin_rewriting()?;
        if !self.state.wide && self.state.width > 1 << 31 {
            self.widen(stage)?;
        }
        let wide = self.state.wide;
        let mut plan = Plan::new("features from 0 on");
        for range in self.pieces() {
            let extent = plan.extent(self.files.indices.extent());
            plan.task(
                Task::new("raise")
                    .update(numbers(extent, range, if wide { 8 } else { 4 }))
                    .run(move |cx| {
                        match wide {
                            true => cx.blocks[0]
                                .slice_mut::<i64>()
                                .iter_mut()
                                .for_each(|column| *column += 1),
                            false => cx.blocks[0]
                                .slice_mut::<i32>()
                                .iter_mut()
                                .for_each(|column| *column += 1),
                        }
                        Ok(())
                    }),
            );
        }
        self.files.indices.pause()?;
        run_beside(stage, plan)?;
        self.files.indices.prepare()
    }

    /// Makes every column so far an int64.
    fn widen(&mut self, stage: &mut Stage) -> Result<()> {
        const WIDE: &str = "indices.int64.npy";
        self.state.wide = true;
        self.begin_rewriting()?;
        self.files.indices.pause()?;
        let wide = Growing::open(
            &self.session,
            &mut self.home.folder,
            &self.path,
            WIDE,
            Some(DType::I64),
            8 * self.state.entries,
            self.options,
        )?;
        let mut plan = Plan::new("columns beyond int32");
        for range in self.pieces() {
            let (from, to) = (
                plan.extent(self.files.indices.extent()),
                plan.extent(wide.extent()),
            );
            let task = Task::new("widen")
                .read(numbers(from, range.clone(), 4))
                .write(numbers(to, range, 8));
            plan.task(task.run(|cx| {
                let (from, to) = cx.blocks.split_at_mut(1);
                let to = to[0].slice_mut::<i64>();
                to.iter_mut()
                    .zip(from[0].slice::<i32>())
                    .for_each(|(to, &from)| *to = i64::from(from));
                Ok(())
            }));
        }
        run_beside(stage, plan)?;
        let at = |name| self.home.folder.path().join(name);
        std::fs::rename(at(WIDE), at(names::INDICES)).map_err(|source| {
            Error::of_io(self.path.join(names::INDICES).display().to_string(), source)
        })?;
        self.files.indices = wide;
        self.files.indices.prepare()
    }

    fn pieces(&self) -> Vec<std::ops::Range<u64>> {
        cut(0..self.state.entries, 1 << 14)
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect()
    }

    /// What is about to be written over is nothing to go on with.
    fn begin_rewriting(&mut self) -> Result<()> {
        self.is_rewritten |= self.home.is_saved();
        self.home.forget()
    }

    /// Appends words of a vocabulary that are not there yet.
    pub(super) fn add_words(&mut self, vocabulary: &Vocabulary) -> Result<()> {
        let state = &mut self.state;
        if let Some(file) = &mut self.files.words {
            (state.words, state.word_bytes) = append(file, vocabulary, state.words)?;
        }
        Ok(())
    }

    /// The same of the names of classes.
    pub(super) fn add_classes(&mut self, classes: &Vocabulary) -> Result<()> {
        let state = &mut self.state;
        if let Some(file) = &mut self.files.classes {
            (state.classes, state.class_bytes) = append(file, classes, state.classes)?;
        }
        Ok(())
    }

    /// Appends text to the list of words, a word a line.
    pub(super) fn add_word_lines(&mut self, lines: &[u8]) -> Result<()> {
        let file = self.files.words.as_mut().expect("asked for");
        file.write(lines)?;
        self.state.words += lines.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.state.word_bytes = file.len();
        Ok(())
    }

    /// Has the device take all, durably. Goes on afterwards.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.files.each(Growing::pause)?;
        self.home.folder.sync()?;
        if self.draft.labels == LabelKind::Many {
            sync_folder(&self.home.folder.path().join(names::LABEL_FOLDER))?;
        }
        self.files.each(Growing::prepare)
    }

    /// Reads back the words of a file that an earlier writer left.
    pub(super) fn text_of(&self, name: &str) -> (&Growing, u64) {
        let file = [&self.files.words, &self.files.classes]
            .into_iter()
            .flatten()
            .find(|file| file.name == name)
            .expect("asked for");
        (file, file.len())
    }

    /// Where its files are until then.
    pub(super) fn home(&mut self) -> &mut StagingFolder {
        &mut self.home
    }

    /// Gives all of it up.
    pub(super) fn discard(self) {
        self.home.folder.discard();
    }

    /// The matrix, under its name. All is written.
    pub(super) fn finish(mut self, stage: &mut Stage) -> Result<Sparse> {
        if let Err(error) = self.complete(stage).and_then(|()| self.tile(stage)) {
            if !self.home.is_saved() {
                self.discard();
            }
            return Err(error);
        }
        let NewMatrix {
            session,
            path,
            home,
            state,
            is_tiled,
            ..
        } = self;
        let arrays = [names::OFFSETS, names::INDICES, names::VALUES];
        // Only now: an import that is gone on with needs them.
        let without = if is_tiled {
            &arrays[..2 + usize::from(state.has_values)]
        } else {
            &[]
        };
        home.commit(&session, stage, &path, without)?;
        Sparse::open_until(&session, path, &|| stage.is_cancelled())
    }

    /// Puts the finished arrays in tiles too, where they are asked for and pay.
    fn tile(&mut self, stage: &mut Stage) -> Result<()> {
        if !self.draft.tiled {
            return Ok(());
        }
        let Files {
            offsets,
            indices,
            values,
            ..
        } = &self.files;
        let arrays = [offsets, indices]
            .into_iter()
            .chain(self.state.has_values.then_some(values))
            .filter_map(Growing::vector);
        let sides = [
            self.state.lines,
            self.draft.width.unwrap_or(self.state.width),
        ];
        let name = self.path.display().to_string();
        let matrix = Sparse::of_files(
            &self.session,
            name,
            self.draft.format,
            sides,
            self.draft.dtype,
            arrays.collect(),
            &|| stage.is_cancelled(),
        )?;
        self.is_tiled = compress_within(
            &self.session,
            stage,
            &matrix,
            &mut self.home.folder,
            &self.path,
        )?;
        Ok(())
    }

    /// Headers, descriptions and lengths.
    fn complete(&mut self, stage: &mut Stage) -> Result<()> {
        self.line_ends(std::iter::empty())?;
        if let [offsets, _] = &mut self.files.labels[..]
            && offsets.is_empty()
        {
            offsets.write(&0_i64.to_le_bytes())?;
        }
        let width = self.draft.width.unwrap_or(self.state.width);
        if !self.state.wide && SparseShape::index_for(width) == DType::I64 {
            self.widen(stage)?;
        }
        if self.draft.labels == LabelKind::Many {
            let shape = [
                self.state.lines,
                self.draft.label_count.unwrap_or(self.state.label_width),
            ];
            let name = format!("{}/{}", names::LABEL_FOLDER, names::DESCRIPTION);
            self.describe(
                &name,
                Compressed::Rows,
                shape,
                self.state.label_entries,
                RealType::F32,
            )?;
        }
        let shape = self.draft.format.lines_first([self.state.lines, width]);
        self.describe(
            names::DESCRIPTION,
            self.draft.format,
            shape,
            self.state.entries,
            self.draft.dtype,
        )?;
        let NewMatrix {
            home: StagingFolder { folder, .. },
            files,
            state,
            draft,
            ..
        } = self;
        let Files {
            offsets,
            indices,
            values,
            labels,
            queries,
            words,
            classes,
        } = files;
        let rest = labels.iter_mut().chain(words).chain(classes);
        for file in [offsets, indices].into_iter().chain(rest) {
            file.finish(stage, folder)?;
        }
        match queries {
            Some(queries) if state.queries > 0 => queries.finish(stage, folder)?,
            Some(queries) => {
                queries.pause()?;
                remove(folder, names::QUERIES)?;
            }
            None => {}
        }
        values.pause()?;
        if state.has_values {
            values.finish(stage, folder)?;
        } else {
            remove(folder, names::VALUES)?;
        }
        match draft.labels {
            LabelKind::Many => sync_folder(&folder.path().join(names::LABEL_FOLDER)),
            _ => Ok(()),
        }
    }

    fn describe(
        &mut self,
        name: &str,
        format: Compressed,
        shape: [u64; 2],
        entries: u64,
        dtype: RealType,
    ) -> Result<()> {
        let layout = Entries::Arrays;
        let text = Description {
            format,
            shape,
            nonzeros: Some(entries),
            dtype: Some(dtype.into()),
            layout,
        }
        .text();
        let device = self.home.folder.create(name, text.len() as u64)?;
        let file = self
            .session
            .device_file(self.path.join(name).display().to_string(), device);
        write_at(
            &self.session,
            file.extent(),
            text.as_bytes(),
            self.home.folder.path(),
        )
    }
}

fn append(file: &mut Growing, words: &Vocabulary, from: u64) -> Result<(u64, u64)> {
    for number in from..words.len() {
        file.write(words.word(number).as_bytes())?;
        file.write(b"\n")?;
    }
    Ok((words.len(), file.len()))
}

fn numbers(extent: outcore_engine::ExtentRef, range: std::ops::Range<u64>, size: u64) -> Region {
    Region::span(
        extent,
        HEAD_BYTES as u64 + range.start * size,
        (range.end - range.start) * size,
    )
}

/// A plan in the middle of an import, whose progress it is not.
fn run_beside(stage: &mut Stage, plan: Plan) -> Result<()> {
    let fraction = stage.fraction();
    stage.run(plan, fraction).map(drop)
}
