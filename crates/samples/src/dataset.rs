//! An open dataset: its samples by number and by name, each checked.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outcore_core::{Error, FormatError, MemorySplit, Result, Session};
use outcore_engine::{Item, Reservation};
use outcore_kernels::fetch_from;
use outcore_store::checksum;

use super::clustering::CHUNK_BYTES;
use super::images::{Decode, Wrong};
use super::manifest::Manifest;
use super::opening::Names;
use super::order::{Chunks, ORDER_BYTES, Shuffle};
use super::packed::GROUP;
use super::record_format::Form;
use super::sample_storage::SampleStorage;
use super::schema::{Field, Kind, Schema};

/// Chunks of a chunk shuffle in memory, at most.
const CHUNKS_AT_ONCE: u64 = 144;
/// Its lanes: numbers that many numbers of ranks divide.
const LANES: [u64; 8] = [48, 24, 16, 12, 8, 6, 4, 2];
/// Of a name, in an error.
const SHOWN_CHARACTERS: usize = 80;
/// The cancellation poll interval of a thread that waits.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Samples, open to be read. Clones are the same; it may be used from any thread.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // Samples "zero" to "three", of a text and a label.
/// assert!(dataset.len() == 4 && !dataset.is_empty() && dataset.is_named());
/// assert_eq!((dataset.fields()[1].name.as_str(), dataset.is_array(1)), ("label", true));
/// assert_eq!((dataset.path(), dataset.bytes()), (&*path, 4 + 3 + 3 + 5 + 4));
/// assert_eq!((dataset.form(), dataset.classes()), (None, None));
/// println!("{} bytes of memory, digest {:x}", dataset.directory_bytes(), dataset.digest());
/// println!("{:?}, {:?}", dataset.clustering(), dataset.chunk_shuffle(None));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Dataset {
    pub(super) inner: Arc<Inner>,
    /// By field, if it is decoded; empty where none is.
    pub(super) decoded: Arc<[Option<Decode>]>,
}

impl fmt::Debug for Dataset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Dataset")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

pub(super) struct Inner {
    pub(super) session: Session,
    pub(super) path: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) schema: Schema,
    pub(super) digest: u64,
    pub(super) storage: SampleStorage,
    pub(super) sums: Vec<u32>,
    pub(super) names: Option<Names>,
    /// Bytes of `places`, `sums` and `names`.
    pub(super) directory: Reservation,
}

impl Dataset {
    /// The same samples, of which some fields are decoded where they are put side by side
    /// ([`Batch`](crate::Batch)).
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # let path = folder.path().join("images");
    /// # let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// # writer.set_fields(vec![Field { name: "image".into(), kind: Kind::Bytes }])?;
    /// # writer.write(None, &[b"P5 2 1 255 \x00\xff"])?;
    /// # writer.finish()?.run()?;
    /// # let images = Dataset::open(&session, &path)?;
    /// let decode = Decode { field: "image".into(), channels: Channels::Gray, size: None, turned: false };
    /// let pixels = images.decoding(vec![decode])?;
    /// assert!(pixels.is_array(0) && !images.is_array(0));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a field that is not there, or is not bytes.
    pub fn decoding(&self, fields: Vec<Decode>) -> Result<Dataset> {
        let mut decoded = vec![
            None;
            if fields.is_empty() {
                0
            } else {
                self.fields().len()
            }
        ];
        for decode in fields {
            let is_it = |field: &Field| field.name == decode.field && field.kind == Kind::Bytes;
            let Some(field) = self.fields().iter().position(is_it) else {
                return Err(Error::value(format!(
                    "{}: {:?} is no field of bytes",
                    self.path().display(),
                    decode.field
                )));
            };
            decoded[field] = Some(decode);
        }
        Ok(Dataset {
            inner: Arc::clone(&self.inner),
            decoded: decoded.into(),
        })
    }

    /// How a field is decoded.
    pub(super) fn decode_of(&self, field: usize) -> Option<&Decode> {
        self.decoded.get(field)?.as_ref()
    }

    /// Whether a field, by its number, comes as numbers: it is an array, or decoded.
    #[must_use]
    pub fn is_array(&self, field: usize) -> bool {
        matches!(self.fields()[field].kind, Kind::Array { .. }) || self.decode_of(field).is_some()
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
        self.storage().bytes()
    }

    /// What samples are in files of others, which the dataset only points to.
    #[must_use]
    pub fn form(&self) -> Option<Form> {
        self.storage().form
    }

    /// Bytes of memory that it takes while it is open.
    #[must_use]
    pub fn directory_bytes(&self) -> u64 {
        self.inner.directory.bytes()
    }

    /// For each field with a whole number in it: how much more alike neighbours are than samples
    /// far apart, as the variance of the means of chunks of 256 KiB over that of as many samples
    /// taken anywhere. About 1 for samples in no order; samples of a chunk, where it is sorted.
    #[must_use]
    pub fn clustering(&self) -> &[(String, f64)] {
        &self.inner.manifest.clustering
    }

    /// A chunk shuffle of this dataset: of chunks of 256 KiB, `at_once` of them in memory. Their
    /// number is part of the order; `None` for as many as an eighth of the memory has room for,
    /// while as many are on their way: 144 at most, which is as good as a global shuffle for data
    /// that is not sorted. Where most chunks would have one sample it is a global shuffle, which
    /// needs no windows for the same.
    #[must_use]
    pub fn chunk_shuffle(&self, at_once: Option<u64>) -> Shuffle {
        let mean = (self.bytes() / self.len().max(1)).max(1);
        let samples = CHUNK_BYTES / mean;
        if samples < 2 {
            return Shuffle::Global;
        }
        // Not of what is free: the order is to be the same whatever else goes on.
        // Of the shortest samples, their order takes more than they do.
        let fit = || {
            let drawn = MemorySplit::new(self.session()).drawn_chunks_bytes();
            (drawn / (samples * mean.max(2 * ORDER_BYTES))).min(CHUNKS_AT_ONCE)
        };
        let at_once = at_once.unwrap_or_else(fit).max(1);
        let lanes = LANES
            .into_iter()
            .find(|lanes| 2 * lanes <= at_once)
            .unwrap_or(1);
        Shuffle::Chunks(Chunks {
            samples,
            window: at_once / lanes,
            lanes,
        })
    }

    /// The names of the numbers of the field `label`, from 0 on, where the writer of the dataset
    /// has told them.
    #[must_use]
    pub fn classes(&self) -> Option<&[String]> {
        self.inner.manifest.classes.as_deref()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    pub(super) fn storage(&self) -> &SampleStorage {
        &self.inner.storage
    }

    /// Which bytes a sample is: the first, and their number.
    pub(super) fn place(&self, sample: u64) -> (u64, u64) {
        self.storage().place(sample)
    }

    /// The bytes of a sample in their file.
    ///
    /// # Errors
    /// [`Error::Format`] for a place that is none.
    pub(super) fn item(&self, sample: u64) -> Result<Item<'_>> {
        let (start, len) = self.place(sample);
        let item = self.storage().item(start, len);
        item.extent.check(item.offset, len)?;
        Ok(item)
    }

    /// Bytes of a sample, as it is stored.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // Samples "zero" to "three", of a text and a label.
    /// let sample = dataset.read(&[3])?.wait()?;
    /// assert_eq!(dataset.bytes_of(3)?, sample.get(0)?.len() as u64);
    /// assert_eq!(dataset.split(sample.get(0)?)?[0], &b"three"[..]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for one that is not there.
    pub fn bytes_of(&self, sample: u64) -> Result<u64> {
        self.check(sample)?;
        Ok(self.place(sample).1)
    }

    pub(super) fn check(&self, sample: u64) -> Result<()> {
        if sample < self.len() {
            return Ok(());
        }
        Err(Error::value(format!(
            "{}: sample {sample} of {}",
            self.inner.path.display(),
            self.len()
        )))
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    pub(super) fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Tells datasets apart.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.inner.digest
    }

    /// Which sample has a name.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // Samples "zero" to "three", of a text and a label.
    /// assert_eq!((dataset.find(b"two")?, dataset.find(b"ten")?), (Some(2), None));
    /// assert_eq!(dataset.candidate(b"two"), Some(2));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device: the name of the one sample that may have it is read and compared.
    pub fn find(&self, name: &[u8]) -> Result<Option<u64>> {
        let Some(names) = &self.inner.names else {
            return Ok(None);
        };
        let Some(sample) = names.lookup.find(name) else {
            return Ok(None);
        };
        Ok((self.name(sample)?.as_deref() == Some(name)).then_some(sample))
    }

    /// The sample that has a name if any has; another one, or none, for a name that no sample has.
    #[must_use]
    pub fn candidate(&self, name: &[u8]) -> Option<u64> {
        self.inner.names.as_ref()?.lookup.find(name)
    }

    /// The name of a sample, where samples have names.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // Samples "zero" to "three", of a text and a label.
    /// assert_eq!(dataset.name(1)?.as_deref(), Some(&b"one"[..]));
    /// assert_eq!(dataset.names_of(&[3, 0])?, [&b"three"[..], b"zero"]);
    /// assert_eq!(dataset.names(0..1)?[0].len(), 4);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::Format`] for a damaged file, those
    /// of the device.
    pub fn name(&self, sample: u64) -> Result<Option<Vec<u8>>> {
        self.check(sample)?;
        let (group, within) = (sample / GROUP as u64, (sample % GROUP as u64) as usize);
        Ok(self
            .names(group..group + 1)?
            .into_iter()
            .flatten()
            .nth(within))
    }

    /// The names of some groups of 64 samples, group by group; none where samples have none.
    ///
    /// # Errors
    /// As [`name`](Dataset::name).
    pub fn names(&self, groups: Range<u64>) -> Result<Vec<Vec<Vec<u8>>>> {
        let Some(names) = &self.inner.names else {
            return Ok(Vec::new());
        };
        let all = self.len().div_ceil(GROUP as u64);
        let groups: Vec<usize> = (groups.start..groups.end.min(all))
            .map(|group| group as usize)
            .collect();
        names.of_groups(self.session(), &groups, self.len())
    }

    /// The names of some samples, by one batch of reads; none where samples have none.
    ///
    /// # Errors
    /// As [`name`](Dataset::name).
    pub fn names_of(&self, samples: &[u64]) -> Result<Vec<Vec<u8>>> {
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        let Some(names) = &self.inner.names else {
            return Ok(Vec::new());
        };
        let mut groups: Vec<usize> = samples
            .iter()
            .map(|&sample| sample as usize / GROUP)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        let found = names.of_groups(self.session(), &groups, self.len())?;
        let name = |&sample: &u64| {
            let group = groups
                .binary_search(&(sample as usize / GROUP))
                .expect("it is among them");
            found[group][sample as usize % GROUP].clone()
        };
        Ok(samples.iter().map(name).collect())
    }
}

impl Dataset {
    /// The bytes of each field of a sample.
    ///
    /// # Errors
    /// [`Error::Format`] for bytes that are no sample.
    pub fn split<'a>(&self, sample: &'a [u8]) -> Result<Vec<Cow<'a, [u8]>>> {
        let split = match self.form() {
            Some(form) => form
                .fields(sample, self.schema())
                .map_err(|fault| fault.to_string()),
            None => {
                let mut places = Vec::new();
                let split = self.schema().split(sample, &mut places);
                split.map(|()| {
                    places
                        .into_iter()
                        .map(|place| Cow::Borrowed(&sample[place]))
                        .collect()
                })
            }
        };
        split.map_err(|reason| {
            FormatError::Corrupt {
                object: self.path().display().to_string(),
                offset: 0,
                reason: format!("a sample: {reason}"),
            }
            .into()
        })
    }

    /// Says what is wrong with a sample.
    pub(super) fn wrong(&self, sample: u64, reason: impl std::fmt::Display) -> Error {
        let item = self.storage().item(self.place(sample).0, 0);
        let (object, reason) = (
            item.extent.name().to_owned(),
            format!("sample {sample}: {reason}"),
        );
        FormatError::Corrupt {
            object,
            offset: item.offset,
            reason,
        }
        .into()
    }

    /// Says why a field of a sample is not decoded.
    pub(super) fn undecoded(&self, sample: u64, decode: &Decode, wrong: Wrong) -> Error {
        let field = format!("field {:?}", decode.field);
        match wrong {
            Wrong::GivenUp => Error::Cancelled,
            Wrong::Damaged(what) => self.wrong(sample, format!("{field} is {what}")),
            Wrong::Size { height, width } => {
                let (high, wide) = decode.size.unwrap_or_default();
                let asked = format!("where {high} by {wide} were asked for");
                self.wrong(
                    sample,
                    format!("{field} is a picture of {height} by {width} pixels, {asked}"),
                )
            }
            Wrong::Unsupported(kind) => {
                let object = self
                    .storage()
                    .item(self.place(sample).0, 0)
                    .extent
                    .name()
                    .to_owned();
                FormatError::Unsupported {
                    object,
                    reason: format!("sample {sample}: {field} is {kind}, which is not decoded"),
                }
                .into()
            }
            Wrong::TooLarge {
                height,
                width,
                needed,
            } => {
                let object = self
                    .storage()
                    .item(self.place(sample).0, 0)
                    .extent
                    .name()
                    .to_owned();
                let budget = self.session().memory_bytes();
                let size = if height == 0 {
                    String::new()
                } else {
                    format!(" of {height} by {width} pixels")
                };
                let what = format!("{object}: sample {sample}: {field}, a picture{size},");
                Error::OverBudget {
                    what,
                    needed,
                    available: budget,
                    budget,
                }
            }
        }
    }

    /// The same error with the name of the sample that it is about, where that has one and it can
    /// be read.
    pub(super) fn named(&self, sample: u64, error: Error) -> Error {
        let Ok(Some(name)) = self.name(sample) else {
            return error;
        };
        let name = shown(&name);
        let number = format!("sample {sample}");
        let told = |what: &str| match what.rfind(&number) {
            Some(at) => format!(
                "{} ({name}){}",
                &what[..at + number.len()],
                &what[at + number.len()..]
            ),
            None => what.to_owned(),
        };
        match error {
            Error::Format(FormatError::Corrupt {
                object,
                offset,
                reason,
            }) => FormatError::Corrupt {
                object,
                offset,
                reason: told(&reason),
            }
            .into(),
            Error::Format(FormatError::Unsupported { object, reason }) => {
                FormatError::Unsupported {
                    object,
                    reason: told(&reason),
                }
                .into()
            }
            Error::OverBudget {
                what,
                needed,
                available,
                budget,
            } => Error::OverBudget {
                what: told(&what),
                needed,
                available,
                budget,
            },
            Error::Device { object, source } => Error::Device {
                object: told(&object),
                source,
            },
            other => other,
        }
    }

    /// Says which sample cannot be read.
    pub(super) fn unreadable(&self, sample: u64, error: Error) -> Error {
        match error {
            Error::Device { object, source } => Error::Device {
                object: format!("{object}: sample {sample}"),
                source,
            },
            Error::Format(damage) => self.wrong(sample, damage),
            other => other,
        }
    }

    /// Asks for the checksum of a sample from memory, without waiting for it.
    pub(super) fn fetch_sum(&self, sample: u64) {
        fetch_from(&self.inner.sums, sample as usize);
    }

    /// Compares a sample with its checksum.
    pub(super) fn verify(&self, sample: u64, bytes: &[u8]) -> Result<()> {
        self.compare(sample, checksum(bytes))
    }

    pub(super) fn compare(&self, sample: u64, sum: u32) -> Result<()> {
        if sum == self.inner.sums[sample as usize] {
            return Ok(());
        }
        Err(self.wrong(sample, "it is not what was written: its checksum differs"))
    }
}

/// A name in an error: what there is room for.
pub(super) fn shown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let end = name
        .char_indices()
        .nth(SHOWN_CHARACTERS)
        .map_or(name.len(), |(at, _)| at);
    format!(
        "{:?}{}",
        &name[..end],
        if end < name.len() { "..." } else { "" }
    )
}
