//! A dataset that is being written: samples go to its files in order, and what finds them again
//! grows beside them.
//!
//! Memory does not depend on the number of samples until the end, when the table of names is made:
//! four bytes a name, and what is free for sorting them. Bytes are looked at once, for their
//! checksums.
//!
//! A writer makes what it has durable every 256 MB or ten seconds (checkpoint.rs). One that died or
//! failed goes on there with `resume`.

mod external;
mod finish;
mod index;
mod name_table;
mod state;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outcore_core::growing::Growing;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, Result, Session};
use outcore_store::checksum_on;

use self::state::State;
use super::checkpoint::Checkpoints;
use super::dataset::Dataset;
use super::manifest::parts;
use super::sample_storage::ExternalFiles;
use super::schema::{Field, Schema};

/// Between two checkpoints, where there are not as many bytes sooner.
const CHECKPOINT_TIME: Duration = Duration::from_secs(10);
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// Samples of another dataset that are copied at a time.
const COPIED_AT_ONCE: usize = 1024;
/// Bytes of a name at most; longer ones are more likely a mistake.
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
        let opened = state::open(session, &mut home, &path, &state);
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
            state::compare(session, file, state.files[part])?;
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn schema(&self) -> Option<&Schema> {
        self.schema.as_ref()
    }

    fn wrong(&self, why: impl std::fmt::Display) -> Error {
        Error::value(format!("{}: {why}", self.path.display()))
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
}

/// A name that comes twice.
fn twin(names: &[String]) -> Option<&String> {
    let mut seen = HashSet::new();
    names.iter().find(|name| !seen.insert(*name))
}
