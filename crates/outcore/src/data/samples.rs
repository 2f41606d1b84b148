//! Samples: many small pieces of training data in one place, each found at once by number or by name.
//!
//! A dataset is a folder, or objects below a name in a formatted store:
//!
//! ```text
//!   dataset.json          what samples are made of, how many there are, and length and checksum of every other file
//!   samples               their bytes, one after another, nothing between them
//!   places, places.bits   where each begins, in few bits (packed.rs)
//!   sums                  CRC-32C of each, u32
//!   names, names.groups   of each, length u32 and bytes; where every 64th begins, u64
//!   lookup                which sample has a name (names.rs)
//!   ends, ends.bits       where each ends, instead of `samples`, where samples are in files of others (body.rs, form.rs)
//! ```
//!
//! All but `samples` and `names` is in memory while a dataset is open: 4 bytes a sample for its checksum, up to 4 for its place (none where
//! all are of one length), 4 more for its end in files of others, and 4 where samples have names. Whoever asks for samples gets them by one batch of reads, deduplicated, sorted and
//! completed in any order, each checked.
//!
//! After Zhu et al., Efficient User-Level Storage Disaggregation for Deep Learning (CLUSTER 2019).

mod batch;
mod body;
mod clustering;
mod form;
mod images;
mod kept;
mod lanes;
mod loader;
mod names;
mod order;
mod packed;
mod schema;
mod spare;
mod work;
mod writer;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use outcore_device::{Buf, read_now};
use outcore_engine::{GatherOptions, Gathered, Item, Reservation, Ticket};
use outcore_store::{checksum, checksum_on};
use serde::{Deserialize, Serialize};

use self::body::Body;
use self::clustering::CHUNK_BYTES;
use self::names::Lookup;
use self::packed::{GROUP, Group, Packed};
use self::schema::Schema;
use super::file::{StoredFile, read_text};
use super::format::FormatError;
use crate::error::{Error, Result};
use crate::session::Session;

use self::batch::Asked;
pub use self::batch::{Batch, Column};
pub use self::body::Elsewhere;
pub use self::form::Form;
pub use self::images::{Channels, Decode};
pub use self::loader::{End, Loader, LoaderOptions, LoaderState};
pub use self::order::{Chunks, Shuffle};
pub use self::schema::{Field, Kind, elements, item_bytes};
pub use self::spare::Bytes;
pub use self::writer::{DatasetWriter, WriterOptions};

const FORMAT: &str = "outcore dataset";
const VERSION: u32 = 1;
/// Chunks of a chunk shuffle in memory, at most.
const CHUNKS_AT_ONCE: u64 = 128;
/// Who waits asks so often whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Read at once while a dataset is opened.
const LOAD_BYTES: usize = 1 << 20;
/// Of a long sample, read at once.
const PIECE_BYTES: usize = 256 << 10;
/// Of samples that are looked at for faults: read at once, unless one is longer, and so many of these ahead.
const CHECKED_AT_ONCE: u64 = 2 << 20;
const CHECKED_AHEAD: usize = 3;

/// The files of a dataset.
mod parts {
    pub(super) const MANIFEST: &str = "dataset.json";
    pub(super) const LOOKUP: &str = "lookup";
    /// Those that grow with the samples, by number.
    pub(super) const GROWING: [&str; 8] =
        ["samples", "places", "places.bits", "sums", "ends", "ends.bits", "names", "names.groups"];
    pub(super) const SAMPLES: usize = 0;
    pub(super) const PLACES: usize = 1;
    pub(super) const BITS: usize = 2;
    pub(super) const SUMS: usize = 3;
    pub(super) const ENDS: usize = 4;
    pub(super) const END_BITS: usize = 5;
    pub(super) const NAMES: usize = 6;
    pub(super) const NAME_GROUPS: usize = 7;
}

/// Length and checksum of a file. That of the samples has none as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct File {
    bytes: u64,
    crc32c: u32,
}

/// `dataset.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    samples: u64,
    named: bool,
    fields: Vec<Field>,
    files: Vec<(String, File)>,
    /// Where the bytes of samples are, if not in `samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    elsewhere: Option<Elsewhere>,
    /// By field with a whole number in it: how much more alike neighbours are than samples far apart; 1 where they are not.
    clustering: Vec<(String, f64)>,
}

/// Samples, open to be read. Clones are the same; it may be used from any thread.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
    /// By field, if it is decoded; empty where none is.
    decoded: Arc<[Option<Decode>]>,
}

struct Inner {
    session: Session,
    path: PathBuf,
    manifest: Manifest,
    schema: Schema,
    digest: u64,
    body: Body,
    sums: Vec<u32>,
    names: Option<Names>,
    /// Bytes of `places`, `sums` and `names`.
    directory: Reservation,
}

struct Names {
    lookup: Lookup,
    groups: Vec<u64>,
    file: Arc<StoredFile>,
}

impl Session {
    /// Opens a dataset, and reads what finds its samples.
    ///
    /// # Errors
    /// [`Error::Store`] for one that is not there, [`Error::Format`] for one that is damaged or of another version, [`Error::OverBudget`] when
    /// what finds its samples does not fit.
    pub fn open_dataset(&self, path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        loop {
            // A dataset that another takes the place of meanwhile would give some files of one, some of the other.
            let text = read_text(&path.join(parts::MANIFEST), 1 << 24)?;
            let opened = Dataset::open(self, path, &text);
            if read_text(&path.join(parts::MANIFEST), 1 << 24).is_ok_and(|now| now == text) {
                return opened;
            }
        }
    }
}

impl Dataset {
    fn open(session: &Session, path: &Path, text: &[u8]) -> Result<Dataset> {
        let object = path.join(parts::MANIFEST).display().to_string();
        let corrupt = |reason: String| FormatError::Corrupt { object: object.clone(), offset: 0, reason };
        let manifest: Manifest = serde_json::from_slice(text).map_err(|error| corrupt(error.to_string()))?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let reason = format!("{} of version {}, where version {VERSION} is read", manifest.format, manifest.version);
            return Err(FormatError::Unsupported { object, reason }.into());
        }
        let schema = Schema::new(manifest.fields.clone()).map_err(&corrupt)?;
        let part = |name: &str| manifest.files.iter().find(|(other, _)| other == name).map(|(_, file)| *file);
        let need = |name: &str| part(name).ok_or_else(|| Error::from(corrupt(format!("it does not tell of {name}"))));
        let of = |part: usize| parts::GROWING[part];
        let (indexed, ends) = ([of(parts::PLACES), of(parts::BITS), of(parts::SUMS)], [of(parts::ENDS), of(parts::END_BITS)]);
        let named = [of(parts::NAME_GROUPS), parts::LOOKUP];
        let loaded = indexed.iter().chain(if manifest.named { &named[..] } else { &[] });
        let loaded = loaded.chain(if manifest.elsewhere.is_some() { &ends[..] } else { &[] });
        let bytes = loaded.map(|name| Ok(need(name)?.bytes)).sum::<Result<u64>>()?;
        let directory = session.engine().reserve("the directory of a dataset", bytes)?;
        let load = Load { session, path };
        let samples = manifest.samples;
        let packed = |groups: &str, bits: &str| {
            let found = Packed::new(samples, load.list::<Group>(groups, need(groups)?)?, load.list(bits, need(bits)?)?);
            found.ok_or_else(|| Error::from(corrupt(format!("{groups} does not have its places"))))
        };
        let places = packed(indexed[0], indexed[1])?;
        let sums: Vec<u32> = load.list(indexed[2], need(indexed[2])?)?;
        if sums.len() as u64 != samples {
            return Err(corrupt(format!("{} checksums of {samples} samples", sums.len())).into());
        }
        let names = match manifest.named {
            true => Some(Names::load(&load, named, need, samples)?),
            false => None,
        };
        let body = match &manifest.elsewhere {
            None => Body::own(load.file(of(parts::SAMPLES), need(of(parts::SAMPLES))?.bytes)?, samples, places),
            Some(Elsewhere { form, files }) => {
                // A relative path begins at the folder that the dataset lies in.
                let around = Load { session, path: path.parent().unwrap_or(Path::new("")) };
                let files = files.iter().map(|(file, bytes)| around.file(file, *bytes)).collect::<Result<_>>()?;
                Body::elsewhere(files, samples, places, packed(ends[0], ends[1])?, *form)
            }
        };
        let inner = Inner {
            session: session.clone(),
            path: path.to_owned(),
            schema,
            digest: u64::from(checksum(text)) << 32 | u64::from(checksum_on(1, text)),
            body,
            sums,
            names,
            directory,
            manifest,
        };
        Ok(Dataset { inner: Arc::new(inner), decoded: Arc::new([]) })
    }

    /// The same samples, of which some fields are decoded where they are put side by side ([`Batch`]).
    ///
    /// # Errors
    /// [`Error::Value`] for a field that is not there, or is not bytes.
    pub fn decoding(&self, fields: Vec<Decode>) -> Result<Dataset> {
        let mut decoded = vec![None; self.fields().len()];
        for decode in fields {
            let is_it = |field: &Field| field.name == decode.field && field.kind == Kind::Bytes;
            let Some(field) = self.fields().iter().position(is_it) else {
                return Err(Error::value(format!("{}: {:?} is no field of bytes", self.path().display(), decode.field)));
            };
            decoded[field] = Some(decode);
        }
        Ok(Dataset { inner: Arc::clone(&self.inner), decoded: decoded.into() })
    }

    /// How a field is decoded.
    fn decode_of(&self, field: usize) -> Option<&Decode> {
        self.decoded.get(field)?.as_ref()
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.manifest.samples
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What samples are made of.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.inner.manifest.fields
    }

    /// Whether samples have names.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.inner.manifest.named
    }

    /// Bytes of all samples; of the files that they are in, where those are others'.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.body().bytes()
    }

    /// What samples are in files of others, which the dataset only points to.
    #[must_use]
    pub fn form(&self) -> Option<Form> {
        self.body().form
    }

    /// Bytes of memory that it takes while it is open.
    #[must_use]
    pub fn directory_bytes(&self) -> u64 {
        self.inner.directory.bytes()
    }

    /// For each field with a whole number in it: how much more alike neighbours are than samples far apart, as the variance of the means of
    /// chunks of 256 KiB over that of as many samples taken anywhere. About 1 for samples in no order; samples of a chunk, where it is sorted.
    #[must_use]
    pub fn clustering(&self) -> &[(String, f64)] {
        &self.inner.manifest.clustering
    }

    /// The shape of a chunk shuffle for this dataset: chunks of 256 KiB, or of a sample that is longer, and so many in memory at a time. Their
    /// number is part of the order; none for as many as an eighth of the memory has room for, while as many are on their way: 128 at most,
    /// which is as good as a global shuffle for data that is not sorted.
    #[must_use]
    pub fn chunks(&self, at_once: Option<u64>) -> Chunks {
        let mean = (self.bytes() / self.len().max(1)).max(1);
        let samples = (CHUNK_BYTES / mean).max(1);
        // Not of what is free: the order is to be the same whatever else goes on.
        let fit = || (self.session().memory_bytes() / 8 / (samples * mean)).min(CHUNKS_AT_ONCE);
        let at_once = at_once.unwrap_or_else(fit).max(1);
        let lanes = (at_once / 4).clamp(1, 16);
        Chunks { samples, window: at_once / lanes, lanes }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    fn body(&self) -> &Body {
        &self.inner.body
    }

    /// Which bytes a sample is: the first, and their number.
    fn place(&self, sample: u64) -> (u64, u64) {
        self.body().place(sample)
    }

    /// The bytes of a sample in their file.
    ///
    /// # Errors
    /// [`Error::Format`] for a place that is none.
    fn item(&self, sample: u64) -> Result<Item<'_>> {
        let (start, len) = self.place(sample);
        let item = self.body().item(start, len);
        item.extent.check(item.offset, len)?;
        Ok(item)
    }

    /// Bytes of a sample, as it is stored.
    ///
    /// # Errors
    /// [`Error::Value`] for one that is not there.
    pub fn bytes_of(&self, sample: u64) -> Result<u64> {
        self.check(sample)?;
        Ok(self.place(sample).1)
    }

    fn check(&self, sample: u64) -> Result<()> {
        if sample < self.len() {
            return Ok(());
        }
        Err(Error::value(format!("{}: sample {sample} of {}", self.inner.path.display(), self.len())))
    }

    /// Begins to read samples, in any order, also some of them several times.
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::OverBudget`] for a batch that does not fit in memory.
    pub fn read(&self, samples: &[u64]) -> Result<Reading> {
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        Ok(Reading { dataset: self.clone(), samples: samples.to_vec(), ticket: self.gather(samples)? })
    }

    /// Samples side by side, in memory of the caller's, however many and long they are. `go_on` is asked every 50 ms or so; its `false` ends
    /// the call.
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::Format`] for one that is not what was written, [`Error::Device`],
    /// [`Error::Cancelled`].
    pub fn load(&self, samples: &[u64], mut go_on: impl FnMut() -> bool) -> Result<Batch> {
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        let mut bytes = 0;
        for &sample in samples {
            bytes += self.item(sample)?.len;
        }
        let mut batch = Batch::with_room(self, samples.len(), bytes, Bytes::with_capacity)?;
        let mut places = Vec::new();
        let (mut rest, mut at_once) = (samples, samples.len());
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(at_once.min(rest.len()));
            match self.gather(part) {
                Ok(ticket) => {
                    while !ticket.wait_timeout(LOOK_EVERY) {
                        if !go_on() {
                            return Err(Error::Cancelled);
                        }
                    }
                    let gathered = ticket.wait()?;
                    let mut asked = Asked::about(self, &mut go_on);
                    for (&sample, bytes) in part.iter().zip(gathered.iter()) {
                        if !asked.goes_on(bytes.len()) {
                            return Err(Error::Cancelled);
                        }
                        self.verify(sample, bytes)?;
                        batch.push(self, sample, bytes, &mut places)?;
                    }
                }
                Err(Error::OverBudget { .. }) if part.len() > 1 => {
                    at_once = part.len().div_ceil(2);
                    continue;
                }
                Err(Error::OverBudget { .. }) => {
                    let bytes = self.read_long(part[0], &mut go_on)?;
                    self.verify(part[0], &bytes)?;
                    batch.push(self, part[0], &bytes, &mut places)?;
                }
                Err(error) => return Err(error),
            }
            rest = behind;
        }
        Ok(batch)
    }

    /// Samples side by side in memory that is there: by field, as many bytes as all of them have. Where samples have one field, they are
    /// put there straight from the device. After an error it holds anything.
    ///
    /// # Errors
    /// As [`load`](Dataset::load); [`Error::Value`] also for memory of another length, and for fields that vary.
    pub fn load_into(&self, samples: &[u64], columns: &mut [&mut [u8]], mut go_on: impl FnMut() -> bool) -> Result<()> {
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        let each = |(number, place): (usize, &Option<Range<usize>>)| match self.decode_of(number) {
            Some(decode) => decode.bytes(),
            None => place.as_ref().map(Range::len),
        };
        let wanted = self.schema().places().iter().enumerate().map(each);
        let fit = wanted
            .clone()
            .zip(columns.iter())
            .all(|(each, column)| each.is_some_and(|each| each * samples.len() == column.len()));
        if columns.len() != wanted.len() || !fit {
            return Err(Error::value(format!("{}: memory that does not have the length of its fields", self.path().display())));
        }
        if let [column] = columns
            && self.form().is_none()
            && self.decoded.is_empty()
        {
            let items = samples.iter().map(|&sample| self.item(sample)).collect::<Result<Vec<_>>>()?;
            let options = GatherOptions { cache: false, ..GatherOptions::default() };
            let len = column.len() / samples.len().max(1);
            if items.iter().all(|item| item.len == len) {
                self.session().engine().gather_into(&items, column, &options, go_on)?;
                return samples.iter().zip(column.chunks(len.max(1))).try_for_each(|(&sample, bytes)| self.verify(sample, bytes));
            }
        }
        let batch = self.load(samples, &mut go_on)?;
        for (column, found) in columns.iter_mut().zip(batch.columns()) {
            let Column::Fixed { bytes, .. } = found else { unreachable!("none of them varies") };
            column.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// What is wrong with some samples and their names, all of which are read. Fields that are decoded must be pictures.
    ///
    /// # Errors
    /// [`Error::Value`] for samples that are not there.
    pub fn faults(&self, samples: Range<u64>) -> Result<Vec<(u64, Error)>> {
        self.check(samples.end.saturating_sub(1).max(samples.start))?;
        let mut faults = self.faults_of_names(samples.clone());
        let mut rest = samples;
        let mut pieces = iter::from_fn(|| self.split_off(&mut rest));
        let mut coming = VecDeque::new();
        loop {
            while coming.len() < CHECKED_AHEAD
                && let Some(piece) = pieces.next()
            {
                let reading = self.read(&piece.clone().collect::<Vec<_>>());
                coming.push_back((piece, reading));
            }
            let Some((piece, reading)) = coming.pop_front() else { break };
            match reading.and_then(Reading::wait) {
                Ok(found) => faults.extend(piece.zip(0..).filter_map(|(sample, at)| Some((sample, found.sound(at).err()?)))),
                // One by one: some of them may be sound, and long ones are read in parts.
                Err(_) => faults.extend(piece.filter_map(|sample| Some((sample, self.load(&[sample], || true).err()?)))),
            }
        }
        faults.sort_by_key(|&(sample, _)| sample);
        Ok(faults)
    }

    /// The first samples of some, as many as are read at once.
    fn split_off(&self, samples: &mut Range<u64>) -> Option<Range<u64>> {
        let start = samples.start;
        let first = samples.next()?;
        let mut bytes = self.place(first).1;
        while samples.start < samples.end && bytes + self.place(samples.start).1 <= CHECKED_AT_ONCE {
            bytes += self.place(samples.start).1;
            samples.start += 1;
        }
        Some(start..samples.start)
    }

    fn faults_of_names(&self, samples: Range<u64>) -> Vec<(u64, Error)> {
        let mut faults = Vec::new();
        if !self.is_named() {
            return faults;
        }
        let group = GROUP as u64;
        for number in samples.start / group..samples.end.div_ceil(group) {
            let of_group = number * group..self.len().min((number + 1) * group);
            match self.names(number) {
                Ok(names) => faults.extend(of_group.zip(names.into_iter().flatten()).filter_map(|(sample, name)| {
                    let lost = samples.contains(&sample) && self.candidate(&name) != Some(sample);
                    lost.then(|| (sample, self.wrong(sample, "it is not found by its name")))
                })),
                Err(error) => faults.push((of_group.start.max(samples.start), error)),
            }
        }
        faults
    }

    /// A sample that is longer than what is free, piece by piece into memory of the caller's.
    fn read_long(&self, sample: u64, go_on: impl FnMut() -> bool) -> Result<Vec<u8>> {
        let whole = self.item(sample)?;
        let mut bytes = vec![0; whole.len];
        let options = GatherOptions { cache: false, ..GatherOptions::default() };
        let piece =
            |at: usize| Item { offset: whole.offset + at as u64, len: PIECE_BYTES.min(whole.len - at), extent: whole.extent };
        let items: Vec<Item<'_>> = (0..bytes.len()).step_by(PIECE_BYTES).map(piece).collect();
        self.session().engine().gather_into(&items, &mut bytes, &options, go_on)?;
        Ok(bytes)
    }

    fn gather(&self, samples: &[u64]) -> Result<Ticket<Gathered>> {
        let item = |&sample: &u64| {
            let (start, len) = self.place(sample);
            self.body().item(start, len)
        };
        let items: Vec<Item<'_>> = samples.iter().map(item).collect();
        let options = GatherOptions { cache: false, ..GatherOptions::default() };
        Ok(self.inner.session.engine().gather(&items, &options)?)
    }

    fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Tells datasets apart.
    fn digest(&self) -> u64 {
        self.inner.digest
    }

    /// Which sample has a name.
    ///
    /// # Errors
    /// Those of the device: the name of the one sample that may have it is read and compared.
    pub fn find(&self, name: &[u8]) -> Result<Option<u64>> {
        let Some(names) = &self.inner.names else { return Ok(None) };
        let Some(sample) = names.lookup.find(name) else { return Ok(None) };
        Ok((self.name(sample)?.as_deref() == Some(name)).then_some(sample))
    }

    /// The sample that has a name if any has; another one, or none, for a name that no sample has.
    #[must_use]
    pub fn candidate(&self, name: &[u8]) -> Option<u64> {
        self.inner.names.as_ref()?.lookup.find(name)
    }

    /// The name of a sample, where samples have names.
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::Format`] for a damaged file, those of the device.
    pub fn name(&self, sample: u64) -> Result<Option<Vec<u8>>> {
        self.check(sample)?;
        let first = sample / GROUP as u64;
        Ok(self.names(first)?.and_then(|mut names| {
            let within = (sample - first * GROUP as u64) as usize;
            (within < names.len()).then(|| names.swap_remove(within))
        }))
    }

    /// The names of a group of 64 samples.
    ///
    /// # Errors
    /// As [`name`](Dataset::name).
    pub fn names(&self, group: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(names) = &self.inner.names else { return Ok(None) };
        names.group(&self.inner.session, group as usize, self.len()).map(Some)
    }
}

/// Samples on their way.
pub struct Reading {
    dataset: Dataset,
    samples: Vec<u64>,
    ticket: Ticket<Gathered>,
}

impl Reading {
    /// Waits for at most `timeout`; true when they are there, or have failed.
    #[must_use]
    pub fn wait_timeout(&self, timeout: std::time::Duration) -> bool {
        self.ticket.wait_timeout(timeout)
    }

    /// Waits for the samples.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait(self) -> Result<Samples> {
        Ok(Samples { gathered: self.ticket.wait()?, dataset: self.dataset, samples: self.samples })
    }
}

/// Samples in memory, in the order in which they were asked for. Their memory counts against the budget until this is dropped.
pub struct Samples {
    dataset: Dataset,
    samples: Vec<u64>,
    gathered: Gathered,
}

impl Samples {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The bytes of one, which are compared with its checksum.
    ///
    /// # Errors
    /// [`Error::Format`] for a sample that is not what was written.
    pub fn get(&self, index: usize) -> Result<&[u8]> {
        let bytes = self.gathered.get(index);
        self.dataset.verify(self.samples[index], bytes)?;
        Ok(bytes)
    }

    /// Whether one is what was written, and all that is in it what it should be.
    fn sound(&self, index: usize) -> Result<()> {
        let mut batch = Batch::with_room(&self.dataset, 1, 0, Bytes::with_capacity)?;
        batch.push(&self.dataset, self.samples[index], self.get(index)?, &mut Vec::new())
    }

    /// The dataset.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }
}

impl Dataset {
    /// The bytes of each field of a sample.
    ///
    /// # Errors
    /// [`Error::Format`] for bytes that are no sample.
    pub fn split<'a>(&self, sample: &'a [u8]) -> Result<Vec<Cow<'a, [u8]>>> {
        let split = match self.form() {
            Some(form) => form.fields(sample, self.schema()),
            None => {
                let mut places = Vec::new();
                let split = self.schema().split(sample, &mut places);
                split.map(|()| places.into_iter().map(|place| Cow::Borrowed(&sample[place])).collect())
            }
        };
        split.map_err(|reason| {
            FormatError::Corrupt { object: self.path().display().to_string(), offset: 0, reason: format!("a sample: {reason}") }
                .into()
        })
    }

    /// Says what is wrong with a sample.
    fn wrong(&self, sample: u64, reason: impl std::fmt::Display) -> Error {
        let item = self.body().item(self.place(sample).0, 0);
        let (object, reason) = (item.extent.name().to_owned(), format!("sample {sample}: {reason}"));
        FormatError::Corrupt { object, offset: item.offset, reason }.into()
    }

    /// Compares a sample with its checksum.
    fn verify(&self, sample: u64, bytes: &[u8]) -> Result<()> {
        if checksum(bytes) == self.inner.sums[sample as usize] {
            return Ok(());
        }
        Err(self.wrong(sample, "it is not what was written: its checksum differs"))
    }
}

impl Manifest {
    fn new(
        fields: Vec<Field>,
        samples: u64,
        named: bool,
        files: Vec<(String, File)>,
        elsewhere: Option<Elsewhere>,
        clustering: Vec<(String, f64)>,
    ) -> Manifest {
        Manifest { format: FORMAT.into(), version: VERSION, samples, named, fields, files, elsewhere, clustering }
    }
}

/// Files of a dataset that is being opened.
struct Load<'a> {
    session: &'a Session,
    path: &'a Path,
}

impl Load<'_> {
    fn file(&self, name: impl AsRef<Path>, bytes: u64) -> Result<Arc<StoredFile>> {
        let file = self.session.file(&self.path.join(name), false)?;
        match (file.extent().name().to_owned(), file.extent().len()) {
            (_, actual) if actual == bytes => Ok(file),
            (object, actual) if actual < bytes => Err(FormatError::Truncated { object, expected: bytes, actual }.into()),
            (object, actual) => {
                Err(FormatError::Corrupt { object, offset: bytes, reason: format!("{actual} bytes, where {bytes} were written") }
                    .into())
            }
        }
    }

    /// All of a file, checked.
    fn list<T: Pod>(&self, name: &str, File { bytes, crc32c }: File) -> Result<Vec<T>> {
        let file = self.file(name, bytes)?;
        let object = || file.extent().name().to_owned();
        let failed = |source| Error::Device { object: object(), source };
        let count = (bytes / size_of::<T>() as u64) as usize;
        let mut list = vec![T::zeroed(); count];
        let into: &mut [u8] = bytemuck::cast_slice_mut(&mut list);
        let mut buffer = Buf::anonymous(LOAD_BYTES).map_err(failed)?;
        let (mut at, mut sum) = (0, 0);
        while at < into.len() {
            let len = LOAD_BYTES.min(into.len() - at);
            let sectors = len.next_multiple_of(file.extent().block() as usize);
            read_now(&**file.extent().device(), &mut buffer[..sectors], at as u64).map_err(failed)?;
            into[at..at + len].copy_from_slice(&buffer[..len]);
            sum = checksum_on(sum, &buffer[..len]);
            at += len;
        }
        if into.len() as u64 != bytes || sum != crc32c {
            let reason = "it is not what was written: its checksum differs".into();
            return Err(FormatError::Corrupt { object: object(), offset: 0, reason }.into());
        }
        Ok(list)
    }
}

impl Names {
    fn load(load: &Load<'_>, [groups, lookup]: [&str; 2], need: impl Fn(&str) -> Result<File>, samples: u64) -> Result<Names> {
        let table: Vec<u8> = load.list(lookup, need(lookup)?)?;
        let lookup = Lookup::decode(&table);
        let groups: Vec<u64> = load.list(groups, need(groups)?)?;
        let file = load.file(parts::GROWING[parts::NAMES], need(parts::GROWING[parts::NAMES])?.bytes)?;
        match lookup {
            Some(lookup) if lookup.len() == samples && groups.len() as u64 == samples.div_ceil(GROUP as u64) => {
                Ok(Names { lookup, groups, file })
            }
            _ => {
                let object = load.path.join(parts::LOOKUP).display().to_string();
                Err(FormatError::Corrupt { object, offset: 0, reason: format!("it is no table of {samples} names") }.into())
            }
        }
    }

    /// The names of a group.
    fn group(&self, session: &Session, group: usize, samples: u64) -> Result<Vec<Vec<u8>>> {
        let extent = self.file.extent();
        let (start, end) = (self.groups[group], self.groups.get(group + 1).copied().unwrap_or(extent.len()));
        let corrupt = || {
            let reason = format!("the names of samples from {} on end elsewhere", group * GROUP);
            Error::from(FormatError::Corrupt { object: extent.name().to_owned(), offset: start, reason })
        };
        let len = end.checked_sub(start).ok_or_else(corrupt)?;
        let options = GatherOptions::default();
        let gathered = session.engine().gather(&[Item { extent, offset: start, len: len as usize }], &options)?.wait()?;
        let count = (samples - (group * GROUP) as u64).min(GROUP as u64);
        let names = split_names(gathered.get(0), count as usize);
        names.map(|names| names.into_iter().map(<[u8]>::to_vec).collect()).ok_or_else(corrupt)
    }
}

/// So many names, which take all the bytes.
fn split_names(mut bytes: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, rest) = bytes.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        names.push(name);
        bytes = rest;
    }
    bytes.is_empty().then_some(names)
}
