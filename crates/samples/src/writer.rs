//! A dataset that is being written: samples go to its files in order, and what finds them again
//! grows beside them.
//!
//! Memory does not depend on the number of samples until the end, when the table of names is made:
//! four bytes a name, and what is free for sorting them. Bytes are looked at once, for their
//! checksums.
//!
//! A writer makes what it has durable every 256 MB or ten seconds (checkpoint.rs). One that died or
//! failed goes on there with `resume`.

use std::collections::HashSet;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outcore_core::bytes::Bytes;
use outcore_core::growing::Growing;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, FormatError, Job, MemorySplit, Result, Session, Stage};
use outcore_engine::{Extent, Reservation, StreamOptions};
use outcore_store::{checksum, checksum_on};
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoints;
use super::clustering::Clustering;
use super::dataset::Dataset;
use super::manifest::{File, MANIFEST_BYTES, Manifest, parts};
use super::names::{Hash, Lookup, Unplaced, parts_of};
use super::packed::{GROUP, pack};
use super::sample_storage::{ExternalFiles, SourcePlace};
use super::schema::{Field, Schema};

/// Between two checkpoints, where there are not as many bytes sooner.
const CHECKPOINT_TIME: Duration = Duration::from_secs(10);
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// Samples of another dataset.
const COPIED_AT_ONCE: usize = 1024;
/// Of a name; longer ones are more likely a mistake.
const NAME_BYTES: usize = 1 << 20;

/// How a dataset is written.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// Go on where an earlier writer of this dataset died or failed.
    pub resume: bool,
    /// Bytes of samples from checkpoint to checkpoint; ten seconds are enough as well.
    pub checkpoint_bytes: u64,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            resume: false,
            checkpoint_bytes: CHECKPOINT_BYTES,
        }
    }
}

/// How far it is: all that is needed to go on, besides the files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    fields: Option<Vec<Field>>,
    named: bool,
    samples: u64,
    /// Bytes and checksum of each file.
    files: [File; parts::GROWING.len()],
    /// Where the samples of the last, open group begin, and end.
    group: Vec<(u64, u64)>,
    /// Of its names.
    names_sum: u32,
    /// Files of others that samples are in, and where among them the last one ends.
    elsewhere: Option<ExternalFiles>,
    end: u64,
    /// Up to where files of others have been read.
    #[serde(default)]
    place: Option<SourcePlace>,
    clustering: Clustering,
    #[serde(default)]
    classes: Option<Vec<String>>,
    /// What the caller noted for when it resumes.
    note: String,
}

/// A dataset that is being written. Dropped without [`finish`](DatasetWriter::finish), it never
/// was; what is durable of it can be gone on with.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let path = folder.path().join("pets");
/// let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
/// let label = Kind::Array { dtype: "<i8".into(), shape: vec![] };
/// writer.set_fields(vec![
///     Field { name: "image".into(), kind: Kind::Bytes },
///     Field { name: "label".into(), kind: label },
/// ])?;
/// writer.set_classes(vec!["cat".into(), "dog".into()])?;
/// writer.expect(1000)?;
/// assert!(writer.is_empty() && writer.fields().is_some() && writer.classes().is_some());
/// writer.write(Some(b"rex"), &[b"...", &1i64.to_le_bytes()])?;
/// assert_eq!(writer.len(), 1);
/// writer.finish()?.run()?;
/// assert_eq!(Dataset::open(&session, &path)?.find(b"rex")?, Some(0));
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct DatasetWriter {
    session: Session,
    path: PathBuf,
    checkpoints: Checkpoints,
    files: Vec<Growing>,
    schema: Option<Schema>,
    state: State,
    options: WriterOptions,
    saved: (u64, Instant),
    /// Where files of others begin, one behind another.
    starts: Vec<u64>,
    /// Scratch of one sample.
    lengths: Vec<u8>,
    /// What ended it.
    failure: Option<Error>,
}

impl DatasetWriter {
    /// Begins a dataset at a path: a folder, or below one in a formatted store. One that is there
    /// is replaced when this is finished.
    ///
    /// # Errors
    /// [`Error::Store`] where it cannot be written, or another writer has it.
    /// [`Error::OverBudget`].
    pub fn create(
        session: &Session,
        path: impl AsRef<Path>,
        options: WriterOptions,
    ) -> Result<DatasetWriter> {
        let path = path.as_ref().to_owned();
        let mut home = StagingFolder::claim(session, &path, &parts::all())?;
        let found: Option<State> = if options.resume { home.saved()? } else { None };
        match found {
            None => {
                home.forget()?;
                home.folder.empty()?;
            }
            Some(_) => home.folder.empty_but(&parts::GROWING)?,
        }
        let state = found.unwrap_or_default();
        let opened = open(session, &mut home, &path, &state);
        if opened.is_err() && state == State::default() {
            home.folder.discard();
            return Err(opened.err().expect("asked above"));
        }
        let schema = state
            .fields
            .clone()
            .map(Schema::new)
            .transpose()
            .map_err(Error::value)?;
        let files = opened?;
        for (part, file) in files
            .iter()
            .enumerate()
            .filter(|&(part, _)| part != parts::SAMPLES)
        {
            compare(session, file, state.files[part])?;
        }
        let starts = state
            .elsewhere
            .as_ref()
            .map(ExternalFiles::starts)
            .unwrap_or_default();
        let (session, saved) = (
            session.clone(),
            (state.files[parts::SAMPLES].bytes, Instant::now()),
        );
        let checkpoints = Checkpoints::new(home, state.samples);
        Ok(DatasetWriter {
            session,
            path,
            checkpoints,
            files,
            schema,
            state,
            options,
            saved,
            starts,
            lengths: Vec::new(),
            failure: None,
        })
    }

    /// Samples so far; after going on, those that are there already.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.state.samples
    }

    /// Samples that another writer can go on behind, should this one end here.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.checkpoints.durable()
    }

    /// Whether `bytes` more bytes of samples fit, which the caller knows to come.
    ///
    /// # Errors
    /// [`Error::Store`] where they do not.
    pub fn expect(&self, bytes: u64) -> Result<()> {
        self.checkpoints.home().check_space(&self.path, bytes)
    }

    /// Whether there is none so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the last [`note`](DatasetWriter::note) before the last checkpoint said; empty at first.
    #[must_use]
    pub fn noted(&self) -> &str {
        &self.state.note
    }

    /// Notes what a caller that resumes has to know, such as where the source was read to.
    pub fn note(&mut self, note: impl Into<String>) {
        self.state.note = note.into();
    }

    /// The fields of the samples, once they are known.
    #[must_use]
    pub fn fields(&self) -> Option<&[Field]> {
        self.schema.as_ref().map(|schema| &schema.fields[..])
    }

    /// Says what samples are made of; before the first of them.
    ///
    /// # Errors
    /// [`Error::Value`] for fields that cannot be, or are not those of samples that were written.
    pub fn set_fields(&mut self, fields: Vec<Field>) -> Result<()> {
        match &self.schema {
            Some(known) if known.fields == fields => Ok(()),
            Some(_) if self.state.samples > 0 => {
                Err(self.wrong("other fields than those of the samples before"))
            }
            _ => {
                self.schema = Some(Schema::new(fields.clone()).map_err(|why| self.wrong(why))?);
                self.state.fields = Some(fields);
                Ok(())
            }
        }
    }

    /// The names of the numbers of the field `label`, from 0 on, where they were told.
    #[must_use]
    pub fn classes(&self) -> Option<&[String]> {
        self.state.classes.as_deref()
    }

    /// Says what the numbers of the field `label` are called, from 0 on; before the first sample.
    ///
    /// # Errors
    /// [`Error::Value`] for a name that comes twice, and for others than those of samples that were
    /// written.
    pub fn set_classes(&mut self, classes: Vec<String>) -> Result<()> {
        if let Some(twin) = twin(&classes) {
            return Err(self.wrong(format!("two classes are called {twin:?}")));
        }
        if self.state.samples > 0 && self.state.classes.as_ref() != Some(&classes) {
            return Err(self.wrong("other classes than those of the samples before"));
        }
        self.state.classes = Some(classes);
        Ok(())
    }

    /// Appends a sample, given the bytes of its fields in order. Either all samples have names, or
    /// none.
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that does not have the fields; nothing of it was written.
    /// Those of the device, after which the writer cannot go on.
    pub fn write(&mut self, name: Option<&[u8]>, fields: &[&[u8]]) -> Result<()> {
        self.unless_failed(|writer| writer.push(name, fields))
    }

    /// Does what may leave files in the middle of something. After that nothing goes on, for the
    /// same reason, and nothing of it is ever taken for whole.
    fn unless_failed<T>(&mut self, act: impl FnOnce(&mut DatasetWriter) -> Result<T>) -> Result<T> {
        if let Some(first) = &self.failure {
            return Err(first.again());
        }
        let done = act(self);
        self.failure = done
            .as_ref()
            .err()
            .filter(|error| !matches!(error, Error::Value { .. } | Error::Cancelled))
            .map(Error::again);
        done
    }

    /// Appends samples of another dataset, in any order, with their names if they are to keep them,
    /// and its classes. `go_on` is asked now and then; its `false` ends the call.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // Samples "zero" to "three", of a text and a label.
    /// let path = folder.path().join("odd");
    /// let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// writer.set_fields(dataset.fields().to_vec())?;
    /// writer.copy(&dataset, &[3, 1], true, || true)?;
    /// writer.finish()?.run()?;
    /// assert_eq!(Dataset::open(&session, &path)?.name(0)?.as_deref(), Some(&b"three"[..]));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`write`](DatasetWriter::write); those of the other dataset; [`Error::Cancelled`], after
    /// which some of the samples are there.
    pub fn copy(
        &mut self,
        from: &Dataset,
        samples: &[u64],
        named: bool,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<()> {
        match self.fields() {
            None => self.set_fields(from.fields().to_vec())?,
            Some(fields) if fields == from.fields() => {}
            Some(_) => {
                return Err(self.wrong(format!(
                    "other fields than those of {}",
                    from.path().display()
                )));
            }
        }
        match (self.classes(), from.classes()) {
            (None, Some(classes)) => self.set_classes(classes.to_vec())?,
            (Some(classes), Some(others)) if classes != others => {
                return Err(self.wrong(format!(
                    "other classes than those of {}",
                    from.path().display()
                )));
            }
            _ => {}
        }
        for part in samples.chunks(COPIED_AT_ONCE) {
            let names = if named {
                from.names_of(part)?
            } else {
                Vec::new()
            };
            let mut names = names.iter().map(Vec::as_slice);
            from.each(part, &mut go_on, |_, found| {
                let fields = from.split(found?)?;
                self.write(
                    names.next(),
                    &fields.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>(),
                )
            })?;
        }
        Ok(())
    }

    fn push(&mut self, name: Option<&[u8]>, fields: &[&[u8]]) -> Result<()> {
        let Some(schema) = &self.schema else {
            return Err(self.wrong("its fields are not known yet"));
        };
        self.check(name)?;
        if self.state.elsewhere.is_some() {
            return Err(self.wrong("its samples are in files of others"));
        }
        let mut lengths = std::mem::take(&mut self.lengths);
        let pieces = schema
            .pieces(fields, &mut lengths)
            .map_err(|why| self.wrong(format!("sample {}: {why}", self.state.samples)))?;
        self.state.named = name.is_some();
        self.state.clustering.add(schema, fields);
        let start = self.state.files[parts::SAMPLES].bytes;
        let mut sum: u32 = 0;
        for piece in &pieces {
            sum = checksum_on(sum, piece);
            self.files[parts::SAMPLES].write(piece)?;
            self.state.files[parts::SAMPLES].bytes += piece.len() as u64;
        }
        drop(pieces);
        self.lengths = lengths;
        self.add(name, start, self.state.files[parts::SAMPLES].bytes, sum)
    }

    fn check(&self, name: Option<&[u8]>) -> Result<()> {
        if self.state.samples > 0 && self.state.named != name.is_some() {
            let what = if self.state.named {
                "a sample without a name, where others have one"
            } else {
                "a name, where other samples have none"
            };
            return Err(self.wrong(what));
        }
        match name.filter(|name| name.len() > NAME_BYTES) {
            Some(name) => Err(self.wrong(format!(
                "a name of {} bytes, where {NAME_BYTES} are the most",
                name.len()
            ))),
            None => Ok(()),
        }
    }

    /// Says that samples are in files of others, which stay as they are; before the first of them.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let shard = folder.path().join("0.tar");
    /// std::fs::write(&shard, [0; 1024]).unwrap();
    /// let path = folder.path().join("index");
    /// let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// writer.set_elsewhere(ExternalFiles::of(&path, Form::Tar, [(shard, 1024)]))?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for other files than those of samples before.
    pub fn set_elsewhere(&mut self, elsewhere: ExternalFiles) -> Result<()> {
        if self.state.samples > 0 && self.state.elsewhere.as_ref() != Some(&elsewhere) {
            return Err(
                self.wrong("other files than those of the samples before, or of another length")
            );
        }
        self.starts = elsewhere.starts();
        self.state.elsewhere = Some(elsewhere);
        Ok(())
    }

    /// Up to where files of others have been read for the samples so far.
    pub(super) fn place(&self) -> Option<SourcePlace> {
        self.state.place
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn schema(&self) -> Option<&Schema> {
        self.schema.as_ref()
    }

    /// Appends a sample of the files of others, which are read up to a place.
    pub(super) fn write_from(
        &mut self,
        name: Option<&[u8]>,
        fields: &[&[u8]],
        place: SourcePlace,
    ) -> Result<()> {
        self.at(place, |writer| writer.write(name, fields))
    }

    /// Appends a sample that is in one of the files of others, by its number, from some byte on,
    /// and has these fields; behind the samples before.
    ///
    /// # Errors
    /// As [`write`](DatasetWriter::write).
    pub(super) fn point(
        &mut self,
        name: Option<&[u8]>,
        file: usize,
        offset: u64,
        bytes: &[u8],
        fields: &[impl AsRef<[u8]>],
        place: SourcePlace,
    ) -> Result<()> {
        self.at(place, |writer| {
            writer.unless_failed(|writer| writer.push_place(name, file, offset, bytes, fields))
        })
    }

    /// Does what makes a sample durable together with the place behind it.
    fn at(
        &mut self,
        place: SourcePlace,
        act: impl FnOnce(&mut DatasetWriter) -> Result<()>,
    ) -> Result<()> {
        let before = self.state.place.replace(place);
        act(self).inspect_err(|_| self.state.place = before)
    }

    fn push_place(
        &mut self,
        name: Option<&[u8]>,
        file: usize,
        offset: u64,
        bytes: &[u8],
        fields: &[impl AsRef<[u8]>],
    ) -> Result<()> {
        let Some(schema) = &self.schema else {
            return Err(self.wrong("its fields are not known yet"));
        };
        self.check(name)?;
        let Some(len) = self
            .state
            .elsewhere
            .as_ref()
            .and_then(|there| Some(there.files.get(file)?.1))
        else {
            return Err(self.wrong(format!(
                "sample {}: there is no file {file}",
                self.state.samples
            )));
        };
        let is_inside = offset
            .checked_add(bytes.len() as u64)
            .is_some_and(|end| end <= len);
        let start = self.starts[file].saturating_add(offset);
        let end = start.saturating_add(bytes.len() as u64);
        if !is_inside || start < self.state.end {
            return Err(self.wrong(format!(
                "sample {}: it is not behind the one before, in its file",
                self.state.samples
            )));
        }
        self.state.named = name.is_some();
        self.state.clustering.add(schema, fields);
        self.state.end = end;
        self.add(name, start, end, checksum(bytes))
    }

    /// What finds a sample.
    fn add(&mut self, name: Option<&[u8]>, start: u64, end: u64, sum: u32) -> Result<()> {
        self.append(parts::SUMS, &sum.to_le_bytes())?;
        if let Some(name) = name {
            if self.state.group.is_empty() {
                let at = self.state.files[parts::NAMES].bytes;
                self.append(parts::NAME_GROUPS, &at.to_le_bytes())?;
            }
            for bytes in [&(name.len() as u32).to_le_bytes(), name] {
                self.append(parts::NAMES, bytes)?;
                self.state.names_sum = checksum_on(self.state.names_sum, bytes);
            }
        }
        self.state.group.push((start, end));
        self.state.samples += 1;
        if self.state.group.len() == GROUP {
            self.close_group()?;
        }
        self.save_if_due()
    }

    fn wrong(&self, why: impl std::fmt::Display) -> Error {
        Error::value(format!("{}: {why}", self.path.display()))
    }

    /// Appends to a file that is summed as a whole.
    fn append(&mut self, part: usize, bytes: &[u8]) -> Result<()> {
        self.files[part].write(bytes)?;
        let file = &mut self.state.files[part];
        file.crc32c = checksum_on(file.crc32c, bytes);
        file.bytes += bytes.len() as u64;
        Ok(())
    }

    fn close_group(&mut self) -> Result<()> {
        if self.state.named {
            let sum = std::mem::take(&mut self.state.names_sum);
            self.append(parts::NAME_SUMS, &sum.to_le_bytes())?;
        }
        let (starts, ends): (Vec<u64>, Vec<u64>) = self.state.group.drain(..).unzip();
        self.pack([parts::PLACES, parts::BITS], &starts)?;
        if self.state.elsewhere.is_some() {
            self.pack([parts::ENDS, parts::END_BITS], &ends)?;
        }
        Ok(())
    }

    fn pack(&mut self, [groups, bits]: [usize; 2], numbers: &[u64]) -> Result<()> {
        let (mut packed, words) = (Vec::new(), self.state.files[bits].bytes / 8);
        let group = pack(numbers, words, &mut packed);
        self.append(groups, bytemuck::cast_slice(&group.map(u64::to_le)))?;
        self.append(
            bits,
            bytemuck::cast_slice(&packed.iter().map(|word| word.to_le()).collect::<Vec<u64>>()),
        )
    }

    fn save_if_due(&mut self) -> Result<()> {
        let (bytes, since) = self.saved;
        let due = self.state.files[parts::SAMPLES].bytes - bytes >= self.options.checkpoint_bytes;
        // To look at the clock takes longer than to write a small sample.
        if (due || (self.state.samples.is_multiple_of(64) && since.elapsed() >= CHECKPOINT_TIME))
            && self.checkpoints.have_ended(Duration::ZERO)?
        {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Makes all samples so far durable, and says that they are there.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let path = folder.path().join("lines");
    /// let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// writer.set_fields(vec![Field { name: "line".into(), kind: Kind::Text }])?;
    /// writer.write(None, &[b"first"])?;
    /// writer.note("line 1 of the source");
    /// writer.save()?;
    /// assert_eq!(writer.durable(), 1);
    /// writer.write(None, &[b"second"])?;
    /// writer.save_until(|| true)?;
    /// drop(writer);
    /// let options = WriterOptions { resume: true, ..WriterOptions::default() };
    /// let resumed = DatasetWriter::create(&session, &path, options)?;
    /// assert_eq!((resumed.len(), resumed.noted()), (2, "line 1 of the source"));
    /// resumed.discard();
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device.
    pub fn save(&mut self) -> Result<()> {
        self.save_until(|| true)
    }

    /// As [`save`](DatasetWriter::save). `go_on` is asked some times a second; its `false` ends the
    /// wait, and the samples become durable all the same, while others are written or the writer is
    /// dropped. Until then no other writer has the place.
    ///
    /// # Errors
    /// Those of the device; [`Error::Cancelled`].
    pub fn save_until(&mut self, mut go_on: impl FnMut() -> bool) -> Result<()> {
        self.unless_failed(|writer| {
            writer.checkpoints.wait(&mut go_on)?;
            writer.checkpoint()?;
            writer.checkpoints.wait(&mut go_on)
        })
    }

    /// Begins to make all samples so far durable.
    fn checkpoint(&mut self) -> Result<()> {
        self.files.iter_mut().try_for_each(Growing::pause)?;
        self.saved = (self.state.files[parts::SAMPLES].bytes, Instant::now());
        self.checkpoints
            .begin(self.state.samples, self.state.clone());
        Ok(())
    }

    /// Gives the writer up, and what it has written.
    pub fn discard(self) {
        self.checkpoints.discard();
    }

    /// Makes the dataset whole: all samples durable, their names found, and then it is there.
    ///
    /// # Errors
    /// Of the job: [`Error::Value`] for a name that two samples have, [`Error::OverBudget`] for a
    /// table of names that memory is too small for.
    pub fn finish(mut self) -> Result<Job<()>> {
        self.unless_failed(|_| Ok(()))?;
        if self.schema.is_none() {
            self.set_fields(Vec::new())?;
        }
        let session = self.session.clone();
        Job::driven(&session, Vec::new(), move |stage, _| self.end(stage))
    }

    fn end(mut self, stage: &mut Stage) -> Result<()> {
        let made = self.complete(stage);
        let unused = self.unused();
        let DatasetWriter {
            session,
            path,
            checkpoints,
            ..
        } = self;
        let home = checkpoints.into_home();
        if let Err(error) = made {
            // A name that comes twice comes twice again.
            if matches!(error, Error::Value { .. }) || !home.is_saved() {
                home.folder.discard();
            }
            return Err(error);
        }
        home.commit(&session, stage, &path, &unused)
    }

    /// Files that such a dataset does not have.
    fn unused(&self) -> Vec<&'static str> {
        let unnamed: &[usize] = if self.state.named {
            &[]
        } else {
            &[parts::NAMES, parts::NAME_GROUPS, parts::NAME_SUMS]
        };
        let body: &[usize] = if self.state.elsewhere.is_some() {
            &[parts::SAMPLES]
        } else {
            &[parts::ENDS, parts::END_BITS]
        };
        unnamed
            .iter()
            .chain(body)
            .map(|&part| parts::GROWING[part])
            .collect()
    }

    /// All that is not there yet besides the samples.
    fn complete(&mut self, stage: &mut Stage) -> Result<()> {
        self.checkpoints.wait(&mut || !stage.is_cancelled())?;
        if !self.state.group.is_empty() {
            self.close_group()?;
        }
        let mut home = self.checkpoints.home();
        self.files
            .iter_mut()
            .try_for_each(|file| file.finish(stage, &mut home.folder))?;
        drop(home);
        let mut files: Vec<(String, File)> = parts::GROWING
            .iter()
            .map(|name| (*name).to_owned())
            .zip(self.state.files)
            .collect();
        let unused = self.unused();
        files.retain(|(name, _)| !unused.contains(&name.as_str()));
        if self.state.named {
            let (lookup, _reserved) = self.lookup(stage)?;
            let table = lookup.encode();
            self.put(parts::LOOKUP, &table)?;
            files.push((
                parts::LOOKUP.into(),
                File {
                    bytes: table.len() as u64,
                    crc32c: checksum(&table),
                },
            ));
        }
        let schema = self.schema.as_ref().expect("known at the end");
        let clustering = self.state.clustering.clone().found(schema);
        let mut manifest = Manifest::new(
            schema.fields.clone(),
            self.state.samples,
            self.state.named,
            files,
            self.state.elsewhere.clone(),
            clustering,
            self.state.classes.clone(),
        );
        let text = manifest.encode();
        if text.len() as u64 > MANIFEST_BYTES {
            return Err(self.wrong(format!(
                "what is told of its files takes {} bytes, where {MANIFEST_BYTES} are the most",
                text.len()
            )));
        }
        self.put(parts::MANIFEST, &text)
    }

    /// A file that is made in one go.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let device = self
            .checkpoints
            .home()
            .folder
            .create(name, bytes.len() as u64)?;
        let file = self
            .session
            .device_file(self.path.join(name).display().to_string(), device);
        let mut stream = self.session.engine().write_stream(
            file.extent(),
            0,
            StreamOptions {
                block_bytes: 64 << 10,
                ahead: 2,
            },
        )?;
        stream.write(bytes)?;
        Ok(stream.finish()?)
    }

    /// The table of names: those of some parts at a time, as many as memory is free for.
    fn lookup(&self, stage: &Stage) -> Result<(Lookup, Reservation)> {
        let parts = parts_of(self.state.samples);
        let mut seed = 0;
        loop {
            let mut counts = vec![0; parts as usize];
            self.each_name(stage, |_, name| {
                counts[Hash::of(name, seed).part(parts) as usize] += 1
            })?;
            // It, and its file.
            let reserved = stage.reserve("the table of names", 2 * Lookup::bytes_for(&counts))?;
            let mut lookup = Lookup::empty(seed, &counts);
            match self.fill(stage, &mut lookup, seed, &counts)? {
                None => return Ok((lookup, reserved)),
                Some(Unplaced::Twins(one, other)) => {
                    let mut names = Vec::new();
                    self.each_name(stage, |sample, name| {
                        names.extend([one, other].contains(&sample).then(|| name.to_vec()))
                    })?;
                    if names[0] == names[1] {
                        let name = String::from_utf8_lossy(&names[0]).into_owned();
                        return Err(self.wrong(format!(
                            "samples {one} and {other} are both called {name:?}"
                        )));
                    }
                }
                Some(Unplaced::Crowd) => {}
            }
            seed += 1;
        }
    }

    /// What stands against this seed, if anything.
    fn fill(
        &self,
        stage: &Stage,
        lookup: &mut Lookup,
        seed: u64,
        counts: &[u64],
    ) -> Result<Option<Unplaced>> {
        const NAME: u64 = size_of::<(Hash, u64)>() as u64;
        let most = counts.iter().copied().max().unwrap_or(0);
        let at_once = (MemorySplit::new(&self.session).free_collected_bytes() / NAME).max(most);
        let _names = stage.reserve("names to sort", at_once.min(self.state.samples) * NAME)?;
        let mut first = 0;
        while first < counts.len() {
            let mut sum = 0;
            let end = counts[first..].iter().position(|count| {
                sum += count;
                sum > at_once
            });
            let end = end.map_or(counts.len(), |within| first + within);
            let mut parts: Vec<Vec<(Hash, u64)>> = counts[first..end]
                .iter()
                .map(|&count| Vec::with_capacity(count as usize))
                .collect();
            self.each_name(stage, |sample, name| {
                let hash = Hash::of(name, seed);
                let part = hash.part(counts.len() as u64) as usize;
                if (first..end).contains(&part) {
                    parts[part - first].push((hash, sample));
                }
            })?;
            for (part, names) in parts.iter_mut().enumerate() {
                if let Err(unplaced) = lookup.fill(first + part, names) {
                    return Ok(Some(unplaced));
                }
            }
            first = end;
        }
        Ok(None)
    }

    /// Reads all names again.
    fn each_name(&self, stage: &Stage, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let names = &self.files[parts::NAMES];
        let options = StreamOptions {
            block_bytes: block_bytes(&self.session),
            ahead: 2,
        };
        let bytes = Bytes::of(
            &self.session,
            names.extent(),
            0..names.len(),
            options,
            &Arc::default(),
        )?;
        let mut read = BufReader::new(bytes);
        let failed = |source| failed(names.extent(), source);
        let mut name = Vec::new();
        for sample in 0..self.state.samples {
            if sample % (1 << 16) == 0 {
                stage.check()?;
            }
            let mut len = [0; 4];
            read.read_exact(&mut len).map_err(failed)?;
            name.resize(u32::from_le_bytes(len) as usize, 0);
            read.read_exact(&mut name).map_err(failed)?;
            f(sample, &name);
        }
        Ok(())
    }
}

/// A name that comes twice.
fn twin(names: &[String]) -> Option<&String> {
    let mut seen = HashSet::new();
    names.iter().find(|name| !seen.insert(*name))
}

/// Holds what an earlier writer left of a file against what it said of it.
fn compare(session: &Session, file: &Growing, told: File) -> Result<()> {
    let options = StreamOptions {
        block_bytes: block_bytes(session),
        ahead: 2,
    };
    let mut bytes = Bytes::of(
        session,
        file.extent(),
        0..told.bytes,
        options,
        &Arc::default(),
    )?;
    let (mut sum, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) if sum == told.crc32c => return Ok(()),
            Ok(0) => {
                let (object, reason) = (
                    file.extent().name().to_owned(),
                    "it is not what was written: its checksum differs".into(),
                );
                return Err(FormatError::Corrupt {
                    object,
                    offset: 0,
                    reason,
                }
                .into());
            }
            Ok(len) => sum = checksum_on(sum, &buffer[..len]),
            Err(error) => return Err(failed(file.extent(), error)),
        }
    }
}

/// An error of reading a file.
fn failed(extent: &Extent, source: io::Error) -> Error {
    match source.downcast::<Error>() {
        Ok(own) => own,
        Err(source) => Error::of_io(extent.name(), source),
    }
}

/// Of the streams beside that of the samples, which is four times as long.
fn block_bytes(session: &Session) -> usize {
    MemorySplit::new(session).side_block_bytes(16 << 10, 256 << 10) as usize
}

fn open(
    session: &Session,
    home: &mut StagingFolder,
    path: &Path,
    state: &State,
) -> Result<Vec<Growing>> {
    let block = block_bytes(session);
    let mut files = Vec::new();
    for (part, name) in parts::GROWING.iter().enumerate() {
        let options = match part {
            parts::SAMPLES => StreamOptions {
                block_bytes: 4 * block,
                ahead: 4,
            },
            _ => StreamOptions {
                block_bytes: block,
                ahead: 2,
            },
        };
        let mut file = Growing::open(
            session,
            &mut home.folder,
            path,
            name,
            None,
            state.files[part].bytes,
            options,
        )?;
        file.prepare()?;
        files.push(file);
    }
    Ok(files)
}
