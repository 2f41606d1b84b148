//! Samples side by side: a column for each field, as a step of training wants them.

use std::cell::RefCell;
use std::ops::Range;

use outcore_core::Result;
use outcore_kernels::{append_past_caches, append_with_crc32c};
use outcore_store::checksum_on;

use super::buffer_pool::Bytes;
use super::dataset::Dataset;

/// Bytes that are copied or decoded between two cancellation polls: some milliseconds.
const COPIED_BYTES: usize = 16 << 20;
const DECODED_BYTES: usize = 64 << 10;
/// A shorter sample takes as long as one of these.
const SHORT_BYTES: usize = 1 << 10;

/// Larger batches fall out of the cache before the caller reads them: their long samples are
/// written around it.
const PAST_CACHES_BYTES: usize = 2 << 20;
const LONG_BYTES: usize = 4 << 10;
/// From here on, one pass pays.
const ONE_PASS_BYTES: usize = 32 << 10;

fn append(list: &mut Vec<u8>, bytes: &[u8]) {
    if goes_past_caches(list, bytes) {
        append_past_caches(list, bytes);
    } else {
        list.extend_from_slice(bytes);
    }
}

/// The same; returns the checksum of bytes behind those of such a checksum.
fn append_summed(list: &mut Vec<u8>, bytes: &[u8], before: u32) -> u32 {
    let at_once = if goes_past_caches(list, bytes) {
        append_with_crc32c(list, bytes, before)
    } else {
        None
    };
    at_once.unwrap_or_else(|| {
        list.extend_from_slice(bytes);
        checksum_on(before, bytes)
    })
}

fn goes_past_caches(list: &Vec<u8>, bytes: &[u8]) -> bool {
    bytes.len() >= LONG_BYTES && list.capacity() >= PAST_CACHES_BYTES
}

/// When work on samples looks at whether it has been cancelled: after some bytes, so that a poll
/// costs little.
pub(super) struct CancelPoll {
    every: usize,
    since: usize,
}

impl CancelPoll {
    pub(super) fn of(dataset: &Dataset) -> CancelPoll {
        CancelPoll {
            every: if dataset.decoded.is_empty() {
                COPIED_BYTES
            } else {
                DECODED_BYTES
            },
            since: 0,
        }
    }

    /// Whether a poll is due, before a sample of `bytes` bytes.
    pub(super) fn is_due(&mut self, bytes: usize) -> bool {
        self.since += bytes.max(SHORT_BYTES);
        let is_due = self.since >= self.every;
        self.since = if is_due { 0 } else { self.since };
        is_due
    }
}

/// A question that several may ask by turns.
pub(super) fn shared(go_on: impl FnMut() -> bool) -> impl Fn() -> bool {
    let go_on = RefCell::new(go_on);
    move || (go_on.borrow_mut())()
}

/// Samples, field by field.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // Samples "zero" to "three", of a text and a label.
/// let batch = dataset.load(&[3, 1], || true)?;
/// assert!(batch.len() == 2 && !batch.is_empty());
/// assert_eq!((batch.samples(), batch.columns().len()), (&[3, 1][..], 2));
/// let columns = batch.into_columns();
/// assert_eq!((columns[0].get(1), columns[1].get(0)), (&b"one"[..], &[3][..]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    samples: Vec<u64>,
    columns: Vec<Column>,
}

/// A field of all samples of a batch.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let batch = dataset.load(&[3, 1], || true)?;
/// let labels = &batch.columns()[1];
/// assert!(matches!(labels, Column::Fixed { each: 1, .. }));
/// assert_eq!((labels.get(0), labels.get(1)), (&[3][..], &[1][..]));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Debug)]
pub enum Column {
    /// Of one length, one after another.
    Fixed {
        /// All of them.
        bytes: Bytes,
        /// Bytes of one.
        each: usize,
    },
    /// Of any length, one after another.
    Varying {
        /// All of them.
        bytes: Bytes,
        /// Where each ends.
        ends: Vec<usize>,
    },
}

impl Column {
    /// The bytes of one sample's field.
    ///
    /// # Panics
    /// Without such a sample.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        match self {
            Column::Fixed { bytes, each } => &bytes[index * each..(index + 1) * each],
            Column::Varying { bytes, ends } => {
                &bytes[if index == 0 { 0 } else { ends[index - 1] }..ends[index]]
            }
        }
    }

    /// Has the field of one more sample appended.
    fn push(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
        match self {
            Column::Fixed { bytes, .. } => append(bytes.tail()),
            Column::Varying { bytes, ends } => {
                append(bytes.tail())?;
                ends.push(bytes.len());
                Ok(())
            }
        }
    }

    /// Keeps the fields of the first `samples` samples.
    fn truncate(&mut self, samples: usize) {
        match self {
            Column::Fixed { bytes, each } => bytes.truncate(samples * *each),
            Column::Varying { bytes, ends } => {
                ends.truncate(samples);
                bytes.truncate(ends.last().copied().unwrap_or(0));
            }
        }
    }
}

impl Batch {
    /// Without samples, and with room for `samples` of `bytes` bytes together, which `memory`
    /// provides.
    ///
    /// # Errors
    /// Those of `memory`.
    pub(super) fn with_room(
        dataset: &Dataset,
        samples: usize,
        bytes: usize,
        memory: impl Fn(usize) -> Result<Bytes>,
    ) -> Result<Batch> {
        let schema = dataset.schema();
        let fixed_of =
            |(number, place): (usize, &Option<Range<usize>>)| match dataset.decode_of(number) {
                Some(decode) => decode.bytes(),
                None => place.as_ref().map(Range::len),
            };
        let alone = |number: usize| match schema.varying() {
            1 if dataset.decode_of(number).is_none() => {
                bytes.saturating_sub(samples.saturating_mul(schema.head()))
            }
            _ => 0,
        };
        let column = |(number, place)| match fixed_of((number, place)) {
            Some(each) => Ok(Column::Fixed {
                bytes: memory(samples.saturating_mul(each))?,
                each,
            }),
            None => Ok(Column::Varying {
                bytes: memory(alone(number))?,
                ends: Vec::with_capacity(samples),
            }),
        };
        let columns = schema
            .places()
            .iter()
            .enumerate()
            .map(column)
            .collect::<Result<_>>()?;
        Ok(Batch {
            samples: Vec::with_capacity(samples),
            columns,
        })
    }

    /// Appends a sample; `places` is scratch. `go_on` is asked while a picture is decoded.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) for bytes that are no sample, or a field that is not
    /// what it is to be decoded from; [`Error::OverBudget`](outcore_core::Error::OverBudget) for a picture
    /// that is too large; [`Error::Cancelled`](outcore_core::Error::Cancelled). Nothing is appended then.
    pub(super) fn push(
        &mut self,
        dataset: &Dataset,
        sample: u64,
        bytes: &[u8],
        places: &mut Vec<Range<usize>>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        if let Some(form) = dataset.form() {
            let fields = form
                .fields(bytes, dataset.schema())
                .map_err(|reason| dataset.wrong(sample, reason))?;
            return self.put(dataset, sample, |number| &fields[number], go_on);
        }
        dataset
            .schema()
            .split(bytes, places)
            .map_err(|reason| dataset.wrong(sample, reason))?;
        self.put(
            dataset,
            sample,
            |number| &bytes[places[number].clone()],
            go_on,
        )
    }

    /// Appends a sample that has not been compared with its checksum: long ones in one pass over
    /// their bytes.
    ///
    /// # Errors
    /// As [`push`](Batch::push), and those of the comparison.
    pub(super) fn push_verified(
        &mut self,
        dataset: &Dataset,
        sample: u64,
        bytes: &[u8],
        places: &mut Vec<Range<usize>>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let is_plain = dataset.form().is_none() && dataset.decoded.is_empty();
        if !is_plain
            || bytes.len() < ONE_PASS_BYTES
            || dataset.schema().split(bytes, places).is_err()
        {
            dataset.verify(sample, bytes)?;
            return self.push(dataset, sample, bytes, places, go_on);
        }
        let mut fields: Vec<usize> = (0..places.len()).collect();
        fields.sort_unstable_by_key(|&field| (places[field].start, places[field].end));
        let (mut sum, mut at) = (0, 0);
        for field in fields {
            let Range { start, end } = places[field];
            sum = checksum_on(sum, &bytes[at..start]);
            let push = |list: &mut Vec<u8>| {
                sum = append_summed(list, &bytes[start..end], sum);
                Ok(())
            };
            self.columns[field].push(push)?;
            at = end;
        }
        dataset
            .compare(sample, checksum_on(sum, &bytes[at..]))
            .inspect_err(|_| self.leave_out())?;
        self.samples.push(sample);
        Ok(())
    }

    /// Leaves out what columns have of a sample that is none.
    fn leave_out(&mut self) {
        self.columns
            .iter_mut()
            .for_each(|column| column.truncate(self.samples.len()));
    }

    /// Appends a sample of which the bytes of each field are known.
    fn put<'a>(
        &mut self,
        dataset: &Dataset,
        sample: u64,
        field: impl Fn(usize) -> &'a [u8],
        go_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let most = dataset.session().memory_bytes();
        let done =
            self.columns
                .iter_mut()
                .enumerate()
                .try_for_each(|(number, column)| match dataset.decode_of(number) {
                    Some(decode) => column.push(|bytes| {
                        decode
                            .decode(field(number), most, bytes, go_on)
                            .map_err(|wrong| dataset.undecoded(sample, decode, wrong))
                    }),
                    None => column.push(|bytes| {
                        append(bytes, field(number));
                        Ok(())
                    }),
                });
        if let Err(error) = done {
            self.leave_out();
            return Err(error);
        }
        self.samples.push(sample);
        Ok(())
    }

    /// How many samples it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether it has none: all that it had were damaged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The numbers of its samples.
    #[must_use]
    pub fn samples(&self) -> &[u64] {
        &self.samples
    }

    /// Its columns, in the order of the fields.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Its columns, owned by the caller.
    #[must_use]
    pub fn into_columns(self) -> Vec<Column> {
        self.columns
    }
}
