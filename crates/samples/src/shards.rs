//! Samples out of the files of others, one after the other: the one reader behind packing them and
//! pointing to them.
//!
//! It walks files through the engine, decompressed where they may be (nothing of them stays in the
//! page cache), and holds one sample at a time: its name, where it is, and its bytes, of which
//! [`Form`] makes the fields. `shards/text.rs` is the bytes of a file, `shards/walk.rs` finds
//! samples in them, `shards/kind.rs` tells what a file is.
//!
//! Memory is that of the sample in hand: of the budget where that has room, else beside it, as for
//! a sample that is read, but never more than half of what the process may have.

mod kind;
mod text;
mod walk;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outcore_core::{Error, FormatError, Result, Session};

use self::text::Text;
use self::walk::{Sample, Walk};
use super::record_format::{Fault, Form, shown, tensors};
use super::sample_storage::SourcePlace;
use super::schema::{Field, Schema};
use super::writer::DatasetWriter;

/// A call that takes samples ends after this long, so that others may look at how far it is.
const TAKE_TIME: Duration = Duration::from_millis(100);

/// How samples are taken.
#[derive(Clone, Debug, Default)]
pub struct ShardOptions {
    /// They stay where they are: files may not be compressed, and all bytes of a sample are looked
    /// at.
    pub in_place: bool,
    /// The only fields that are looked at; none: those that the first sample has, and a sample with
    /// others is refused.
    pub fields: Option<Vec<String>>,
}

/// Files of a form, and the sample in hand.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// # fn tar(name: &str, data: &[u8]) -> Vec<u8> {
/// #     let mut header = vec![0; 512];
/// #     header[..name.len()].copy_from_slice(name.as_bytes());
/// #     header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
/// #     header[148..156].fill(b' ');
/// #     header[156..157].copy_from_slice(b"0");
/// #     header[257..265].copy_from_slice(b"ustar\x0000");
/// #     let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
/// #     header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
/// #     [&header[..], data, &vec![0; 1536 - data.len()]].concat()
/// # }
/// let shard = folder.path().join("0.tar");
/// std::fs::write(&shard, tar("one.txt", b"first")).unwrap();
/// let form = Form::of_file(&shard)?.expect("its magic number says so");
/// let mut shards = Shards::new(&session, form, vec![shard], ShardOptions::default())?;
/// let mut writer = DatasetWriter::create(&session, folder.path().join("packed"), WriterOptions::default())?;
/// writer.set_fields(shards.fields()?)?;
/// while shards.take(&mut writer, true, 100)? {
///     println!("{:.0}%, stopped: {}", 100.0 * shards.fraction(), shards.stop().load(std::sync::atomic::Ordering::Relaxed));
/// }
/// writer.finish()?.run()?;
/// assert_eq!(Dataset::open(&session, folder.path().join("packed"))?.find(b"one")?, Some(0));
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Shards {
    session: Session,
    form: Form,
    files: Vec<PathBuf>,
    options: ShardOptions,
    stop: Arc<AtomicBool>,
    place: SourcePlace,
    open: Option<(Text, Walk)>,
    sample: Option<Sample>,
}

impl Shards {
    /// Nothing is opened yet.
    ///
    /// # Errors
    /// [`Error::Value`] for fields that the form cannot have.
    pub fn new(
        session: &Session,
        form: Form,
        files: Vec<PathBuf>,
        options: ShardOptions,
    ) -> Result<Shards> {
        let upper = options
            .fields
            .iter()
            .flatten()
            .find(|name| form == Form::Tar && name.to_lowercase() != **name);
        if let Some(name) = upper {
            let (name, lower) = (
                shown(name.as_bytes()),
                shown(name.to_lowercase().as_bytes()),
            );
            return Err(Error::value(format!(
                "field {name}: fields of tar archives are in lower case, {lower}, as WebDataset has it"
            )));
        }
        let (session, stop) = (session.clone(), Arc::default());
        Ok(Shards {
            session,
            form,
            files,
            options,
            stop,
            place: SourcePlace::default(),
            open: None,
            sample: None,
        })
    }

    /// What others set to end a call that goes on; it then ends with [`Error::Cancelled`].
    #[must_use]
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// How much of the files has been read, between 0 and 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        let within = self.open.as_ref().map_or(0.0, |(text, _)| text.fraction());
        (self.place.file as f64 + within) / self.files.len().max(1) as f64
    }

    /// What the first sample is made of; of tensors, what all have in common, where an axis varies
    /// that is not the same in all.
    ///
    /// # Errors
    /// [`Error::Value`] where there are no samples, or they are not of fields by themselves; those
    /// of [`take`](Shards::take).
    pub fn fields(&mut self) -> Result<Vec<Field>> {
        let fields = match self.form {
            Form::Safetensors => self.field_of_tensors()?.into_iter().collect(),
            Form::Tar | Form::TfRecord => match self.find()? {
                false => Vec::new(),
                true => self
                    .form
                    .guess(self.bytes())
                    .map_err(|fault| self.wrong(fault))?,
            },
        };
        match fields.is_empty() {
            false => Ok(fields),
            true => {
                let files = self
                    .files
                    .first()
                    .map(|file| file.display().to_string())
                    .unwrap_or_default();
                Err(Error::value(format!(
                    "{files}: no samples with fields; a dataset of no samples needs fields="
                )))
            }
        }
    }

    fn field_of_tensors(&mut self) -> Result<Option<Field>> {
        let mut common = tensors::Common::default();
        for file in &self.files {
            let mut text = Text::open(
                &self.session,
                file,
                self.form,
                self.options.in_place,
                0,
                &self.stop,
            )?;
            for tensor in &walk::tensors(&mut text)?.0 {
                common
                    .add(tensor)
                    .map_err(|fault| wrong(text.name(), String::new(), tensor.first, fault))?;
            }
        }
        let first = self
            .files
            .first()
            .map(|file| file.display().to_string())
            .unwrap_or_default();
        common
            .field(self.options.in_place)
            .map_err(|fault| wrong(&first, String::new(), 0, fault))
    }

    /// Puts samples behind those of a dataset, `most` at most, for a moment; false when there are
    /// no more. With another one in hand it goes on behind the last sample that the writer has.
    ///
    /// # Errors
    /// [`Error::Format`] for damage and for what is not read, [`Error::Value`] for samples that do
    /// not have the fields; both name file, sample and place. [`Error::OverBudget`] for a sample
    /// that memory is too small for, [`Error::Cancelled`], those of device and writer.
    pub fn take(&mut self, writer: &mut DatasetWriter, named: bool, most: u64) -> Result<bool> {
        self.go_on_behind(writer)?;
        let (start, mut taken) = (Instant::now(), 0);
        while taken < most {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if !self.find()? {
                return Ok(false);
            }
            self.put(writer, named)?;
            taken += 1;
            if start.elapsed() >= TAKE_TIME {
                break;
            }
        }
        Ok(true)
    }

    fn go_on_behind(&mut self, writer: &DatasetWriter) -> Result<()> {
        let place = match writer.place() {
            _ if writer.is_empty() => SourcePlace::default(),
            Some(place) => place,
            None => {
                let path = writer.path().display();
                return Err(Error::value(format!(
                    "{path}: it was begun by another version of outcore; begin anew without resume"
                )));
            }
        };
        if place != self.place {
            (self.place, self.open, self.sample) = (place, None, None);
        }
        Ok(())
    }

    fn put(&mut self, writer: &mut DatasetWriter, named: bool) -> Result<()> {
        let fields = self.checked(
            writer
                .schema()
                .ok_or_else(|| Error::value("its fields are not known yet"))?,
        )?;
        let sample = self.sample.as_ref().expect("found before");
        let name = sample.name.as_deref().filter(|_| named);
        let behind = SourcePlace {
            file: self.place.file,
            byte: sample.behind,
            number: self.place.number + 1,
        };
        let put = match self.options.in_place {
            true => writer.point(
                name,
                self.place.file,
                sample.first,
                self.bytes(),
                &fields,
                behind,
            ),
            false => writer.write_from(
                name,
                &fields.iter().map(|field| &field[..]).collect::<Vec<_>>(),
                behind,
            ),
        };
        put.map_err(|error| match error {
            Error::Value { what } => self.wrong(Fault::Unfit(what)),
            other => other,
        })?;
        drop(fields);
        (self.place, self.sample) = (behind, None);
        Ok(())
    }

    /// The fields of the sample in hand.
    fn checked(&self, schema: &Schema) -> Result<Vec<Cow<'_, [u8]>>> {
        let (bytes, sample) = (self.bytes(), self.sample.as_ref().expect("found before"));
        let fields = match &sample.tensor {
            None => self.form.fields(bytes, schema),
            Some(tensor) => {
                let value = |field| tensors::value(tensor, field, bytes, self.options.in_place);
                schema.fields.iter().map(value).collect()
            }
        };
        let fields = fields.map_err(|fault| self.wrong(fault))?;
        if self.options.fields.is_none()
            && let Some(name) = self
                .form
                .beyond(bytes, &schema.fields)
                .map_err(|fault| self.wrong(fault))?
        {
            let name = shown(name.as_bytes());
            return Err(self.wrong(Fault::Unfit(format!(
                "it has {name}, which samples before have not; fields= tells those to be read"
            ))));
        }
        Ok(fields)
    }

    fn bytes(&self) -> &[u8] {
        let (Some((text, _)), Some(sample)) = (&self.open, &self.sample) else {
            return &[];
        };
        text.get(sample.bytes.clone())
    }

    /// Has the next sample in hand; false at the end.
    fn find(&mut self) -> Result<bool> {
        while self.sample.is_none() {
            let Some(file) = self.files.get(self.place.file) else {
                return Ok(false);
            };
            if self.open.is_none() {
                let mut text = Text::open(
                    &self.session,
                    file,
                    self.form,
                    self.options.in_place,
                    self.place.byte,
                    &self.stop,
                )?;
                let walk = Walk::begin(self.form, &mut text, self.place.number)?;
                self.open = Some((text, walk));
            }
            let (text, walk) = self.open.as_mut().expect("opened above");
            self.sample = walk.next(text, &self.options, self.place.number)?;
            if self.sample.is_none() {
                self.open = None;
                self.place = SourcePlace {
                    file: self.place.file + 1,
                    byte: 0,
                    number: 0,
                };
            }
        }
        Ok(true)
    }

    /// Says what is wrong with the sample in hand.
    fn wrong(&self, fault: Fault) -> Error {
        let (Some((text, _)), Some(sample)) = (&self.open, &self.sample) else {
            return Error::Failed {
                what: fault.to_string(),
            };
        };
        let which = match &sample.name {
            Some(name) => format!("sample {}", shown(name)),
            None => format!("record {}", self.place.number),
        };
        let fault = match fault {
            Fault::Damaged { why, .. } if self.form == Form::TfRecord => Fault::Damaged {
                at: sample.shown_at,
                why,
            },
            Fault::Damaged { at, why } => Fault::Damaged {
                at: text.origin(sample.bytes.start + at as usize),
                why,
            },
            other => other,
        };
        wrong(text.name(), which, sample.shown_at, fault)
    }
}

/// An error about something in a file, from a byte on; damage is told with its own.
fn wrong(file: &str, which: String, at: u64, fault: Fault) -> Error {
    let object = file.to_owned();
    let of = |why: &str| {
        if which.is_empty() {
            why.to_owned()
        } else {
            format!("{which}: {why}")
        }
    };
    let of_place = |why: &str| {
        if which.is_empty() {
            why.to_owned()
        } else {
            format!("{which}, at byte {at}: {why}")
        }
    };
    match fault {
        Fault::Damaged { at, why } => FormatError::Corrupt {
            object,
            offset: at,
            reason: of(&why),
        }
        .into(),
        Fault::Unsupported(why) => FormatError::Unsupported {
            object,
            reason: of_place(&why),
        }
        .into(),
        Fault::Unfit(why) => Error::value(format!("{object}: {}", of_place(&why))),
    }
}
