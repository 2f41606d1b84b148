//! Samples from the device into memory: those that are asked for, each compared with its checksum,
//! however many and long they are.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::Duration;

use outcore_core::{Error, Result};
use outcore_engine::{GatherOptions, Gathered, Item, Ticket};

use super::batch::{Batch, CancelPoll, Column, shared};
use super::buffer_pool::Bytes;
use super::dataset::{Dataset, LOOK_EVERY};
use super::packed::GROUP;

/// Of a long sample, read at once.
const PIECE_BYTES: usize = 256 << 10;
/// A check for faults reads this many bytes of samples at once, unless one is longer, and
/// `CHECKED_AHEAD` such pieces ahead.
const CHECKED_AT_ONCE: u64 = 2 << 20;
const CHECKED_AHEAD: usize = 3;
/// Of names that are looked at for faults.
const GROUPS_AT_ONCE: u64 = 64;

impl Dataset {
    /// Begins to read samples, in any order, also some of them several times.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use std::time::Duration;
    ///
    /// // Samples "zero" to "three", of a text and a label.
    /// let reading = dataset.read(&[2, 0])?;
    /// while !reading.wait_timeout(Duration::from_millis(50)) {
    ///     println!("still waiting");
    /// }
    /// let samples = reading.wait()?;
    /// assert!(samples.len() == 2 && !samples.is_empty());
    /// assert_eq!(samples.dataset().split(samples.get(0)?)?[0], &b"two"[..]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::OverBudget`] for a batch that does
    /// not fit in memory.
    pub fn read(&self, samples: &[u64]) -> Result<Reading> {
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        Ok(Reading {
            dataset: self.clone(),
            samples: samples.to_vec(),
            ticket: self.gather(samples)?,
        })
    }

    /// Samples side by side, in memory of the caller's, however many and long they are. `go_on` is
    /// asked every 50 ms or so; its `false` ends the call.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // Samples "zero" to "three", of a text and a label.
    /// let batch = dataset.load(&[3, 1], || true)?;
    /// assert_eq!((batch.samples(), batch.columns()[0].get(0)), (&[3, 1][..], &b"three"[..]));
    /// assert_eq!(batch.columns()[1].get(1), [1]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for a sample that is not there, [`Error::Format`] for one that is not what
    /// was written, [`Error::Device`], [`Error::Cancelled`].
    pub fn load(&self, samples: &[u64], go_on: impl FnMut() -> bool) -> Result<Batch> {
        let go_on = shared(go_on);
        samples.iter().try_for_each(|&sample| self.check(sample))?;
        let mut bytes = 0;
        for &sample in samples {
            bytes += self.item(sample)?.len;
        }
        let mut batch = Batch::with_room(self, samples.len(), bytes, Bytes::with_capacity)?;
        let mut places = Vec::new();
        self.each(samples, &go_on, |sample, found| {
            let pushed =
                found.and_then(|bytes| batch.push(self, sample, bytes, &mut places, &go_on));
            pushed.map_err(|error| self.named(sample, error))
        })?;
        Ok(batch)
    }

    /// The sample with a name, which is on its way while the name is read and compared.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let batch = dataset.load_named(b"two", || true)?.expect("it is there");
    /// assert_eq!(batch.samples(), [2]);
    /// assert!(dataset.load_named(b"ten", || true)?.is_none());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`find`](Dataset::find) and [`load`](Dataset::load).
    pub fn load_named(&self, name: &[u8], go_on: impl FnMut() -> bool) -> Result<Option<Batch>> {
        let Some(sample) = self.candidate(name) else {
            return Ok(None);
        };
        let ahead = self.gather(&[sample]);
        if self.name(sample)?.as_deref() != Some(name) {
            return Ok(None);
        }
        let Ok(gathered) = ahead.and_then(|ticket| Ok(ticket.wait()?)) else {
            return self.load(&[sample], go_on).map(Some);
        };
        let (bytes, mut batch) = (gathered.get(0), self.batch_of_one()?);
        let pushed = self
            .verify(sample, bytes)
            .and_then(|()| batch.push(self, sample, bytes, &mut Vec::new(), &shared(go_on)));
        pushed.map_err(|error| self.named(sample, error))?;
        Ok(Some(batch))
    }

    /// Samples one after another, whatever memory they take. `take` gets the bytes of each, or what
    /// is wrong with it, which it may pass over.
    pub(super) fn each(
        &self,
        samples: &[u64],
        mut go_on: impl FnMut() -> bool,
        mut take: impl FnMut(u64, Result<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let (mut rest, mut at_once, mut poll) = (samples, samples.len(), CancelPoll::of(self));
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(at_once.min(rest.len()));
            match self
                .read(part)
                .and_then(|reading| reading.wait_unless(&mut go_on))
            {
                Ok(found) => {
                    for (&sample, bytes) in part.iter().zip(found.gathered.iter()) {
                        if poll.is_due(bytes.len()) && !go_on() {
                            return Err(Error::Cancelled);
                        }
                        take(sample, self.verify(sample, bytes).map(|()| bytes))?;
                    }
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                // They do not fit together; or one cannot be read, and by itself it is known which.
                Err(_) if part.len() > 1 => {
                    at_once = part.len().div_ceil(2);
                    continue;
                }
                Err(Error::OverBudget { .. }) => match self.read_long(part[0], &mut go_on) {
                    Ok(bytes) => take(part[0], self.verify(part[0], &bytes).map(|()| &bytes[..]))?,
                    Err(Error::Cancelled) => return Err(Error::Cancelled),
                    Err(error) => take(part[0], Err(self.unreadable(part[0], error)))?,
                },
                Err(error) => take(part[0], Err(self.unreadable(part[0], error)))?,
            }
            rest = behind;
            if !rest.is_empty() && !go_on() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Samples side by side in memory that is there: by field, as many bytes as all of them have.
    /// Where samples have one field, they go there without a batch between. After an error it holds
    /// anything.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # let path = folder.path().join("numbers");
    /// # let mut writer = DatasetWriter::create(&session, &path, WriterOptions::default())?;
    /// # let kind = Kind::Array { dtype: "<u2".into(), shape: vec![Some(2)] };
    /// # writer.set_fields(vec![Field { name: "pair".into(), kind }])?;
    /// # (0..9).try_for_each(|number| writer.write(None, &[&[number; 4]]))?;
    /// # writer.finish()?.run()?;
    /// # let dataset = Dataset::open(&session, &path)?;
    /// // One field, of four bytes.
    /// let mut pairs = [0; 8];
    /// dataset.load_into(&[7, 2], &mut [&mut pairs], || true)?;
    /// assert_eq!(pairs, [7, 7, 7, 7, 2, 2, 2, 2]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`load`](Dataset::load); [`Error::Value`] also for memory of another length, and for
    /// fields that vary.
    pub fn load_into(
        &self,
        samples: &[u64],
        columns: &mut [&mut [u8]],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<()> {
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
            return Err(Error::value(format!(
                "{}: memory that does not have the length of its fields",
                self.path().display()
            )));
        }
        if let [column] = columns
            && self.form().is_none()
            && self.decoded.is_empty()
        {
            let items = samples
                .iter()
                .map(|&sample| self.item(sample))
                .collect::<Result<Vec<_>>>()?;
            let options = GatherOptions {
                cache: false,
                ..GatherOptions::default()
            };
            let len = column.len() / samples.len().max(1);
            if items.iter().all(|item| item.len == len) {
                self.session()
                    .engine()
                    .gather_into(&items, column, &options, go_on)?;
                return samples
                    .iter()
                    .zip(column.chunks(len.max(1)))
                    .try_for_each(|(&sample, bytes)| self.verify(sample, bytes));
            }
        }
        let batch = self.load(samples, &mut go_on)?;
        for (column, found) in columns.iter_mut().zip(batch.columns()) {
            let Column::Fixed { bytes, .. } = found else {
                unreachable!("none of them varies")
            };
            column.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// What is wrong with some samples and their names, all of which are read. Fields that are
    /// decoded must be pictures.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// assert!(dataset.faults(0..dataset.len(), || true)?.is_empty());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for samples that are not there; [`Error::Cancelled`] when `go_on`, which is
    /// asked now and then, says `false`.
    pub fn faults(
        &self,
        samples: Range<u64>,
        go_on: impl FnMut() -> bool,
    ) -> Result<Vec<(u64, Error)>> {
        let go_on = shared(go_on);
        // What ends the call is no fault.
        let fault = |sound: Result<()>| match sound {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            sound => Ok(sound.err()),
        };
        self.check(samples.end.saturating_sub(1).max(samples.start))?;
        let mut faults = self.faults_of_names(samples.clone(), &go_on)?;
        let mut rest = samples;
        let mut pieces = iter::from_fn(|| self.split_off(&mut rest));
        let (mut coming, mut poll) = (VecDeque::new(), CancelPoll::of(self));
        loop {
            while coming.len() < CHECKED_AHEAD
                && let Some(piece) = pieces.next()
            {
                let reading = self.read(&piece.clone().collect::<Vec<_>>());
                coming.push_back((piece, reading));
            }
            let Some((piece, reading)) = coming.pop_front() else {
                break;
            };
            match reading.and_then(|reading| reading.wait_unless(&go_on)) {
                Ok(found) => {
                    for (sample, at) in piece.zip(0..) {
                        if poll.is_due(self.place(sample).1 as usize) && !go_on() {
                            return Err(Error::Cancelled);
                        }
                        faults.extend(fault(found.sound(at, &go_on))?.map(|error| (sample, error)));
                    }
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                // One by one: some of them may be sound, and long ones are read in parts.
                Err(_) => {
                    let (mut batch, mut places) = (self.batch_of_one()?, Vec::new());
                    self.each(&piece.collect::<Vec<_>>(), &go_on, |sample, found| {
                        let sound = found
                            .and_then(|bytes| batch.push(self, sample, bytes, &mut places, &go_on));
                        faults.extend(fault(sound)?.map(|error| (sample, error)));
                        batch = self.batch_of_one()?;
                        Ok(())
                    })?;
                }
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
        while samples.start < samples.end && bytes + self.place(samples.start).1 <= CHECKED_AT_ONCE
        {
            bytes += self.place(samples.start).1;
            samples.start += 1;
        }
        Some(start..samples.start)
    }

    fn batch_of_one(&self) -> Result<Batch> {
        Batch::with_room(self, 1, 0, Bytes::with_capacity)
    }

    fn faults_of_names(
        &self,
        samples: Range<u64>,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Vec<(u64, Error)>> {
        let (mut faults, group) = (Vec::new(), GROUP as u64);
        let groups = if self.is_named() {
            samples.start / group..samples.end.div_ceil(group)
        } else {
            0..0
        };
        let (mut rest, mut at_once) = (groups, GROUPS_AT_ONCE);
        while !rest.is_empty() {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            let part = rest.start..rest.end.min(rest.start + at_once);
            match self.names(part.clone()) {
                Ok(names) => {
                    let found = (part.start * group..).zip(names.into_iter().flatten());
                    let is_lost = |(sample, name): &(u64, Vec<u8>)| {
                        samples.contains(sample) && self.candidate(name) != Some(*sample)
                    };
                    let lost = found.filter(is_lost);
                    faults.extend(lost.map(|(sample, _)| {
                        (sample, self.wrong(sample, "it is not found by its name"))
                    }));
                    at_once = GROUPS_AT_ONCE;
                }
                // By itself it is known which.
                Err(_) if part.end > part.start + 1 => {
                    at_once = 1;
                    continue;
                }
                Err(error) => faults.push(((part.start * group).max(samples.start), error)),
            }
            rest.start = part.end;
        }
        Ok(faults)
    }

    /// A sample that is longer than what is free, piece by piece into memory of the caller's.
    fn read_long(&self, sample: u64, go_on: impl FnMut() -> bool) -> Result<Vec<u8>> {
        let whole = self.item(sample)?;
        let mut bytes = vec![0; whole.len];
        let options = GatherOptions {
            cache: false,
            ..GatherOptions::default()
        };
        let piece = |at: usize| Item {
            offset: whole.offset + at as u64,
            len: PIECE_BYTES.min(whole.len - at),
            extent: whole.extent,
        };
        let items: Vec<Item<'_>> = (0..bytes.len()).step_by(PIECE_BYTES).map(piece).collect();
        self.session()
            .engine()
            .gather_into(&items, &mut bytes, &options, go_on)?;
        Ok(bytes)
    }

    pub(super) fn gather(&self, samples: &[u64]) -> Result<Ticket<Gathered>> {
        let item = |&sample: &u64| {
            let (start, len) = self.place(sample);
            self.storage().item(start, len)
        };
        let items: Vec<Item<'_>> = samples.iter().map(item).collect();
        let options = GatherOptions {
            cache: false,
            ..GatherOptions::default()
        };
        Ok(self.inner.session.engine().gather(&items, &options)?)
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
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.ticket.wait_timeout(timeout)
    }

    fn wait_unless(self, mut go_on: impl FnMut() -> bool) -> Result<Samples> {
        while !self.wait_timeout(LOOK_EVERY) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
        }
        self.wait()
    }

    /// Waits for the samples.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait(self) -> Result<Samples> {
        Ok(Samples {
            gathered: self.ticket.wait()?,
            dataset: self.dataset,
            samples: self.samples,
        })
    }
}

/// Samples in memory, in the order in which they were asked for. Their memory counts against the
/// budget until this is dropped.
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
    fn sound(&self, index: usize, go_on: &dyn Fn() -> bool) -> Result<()> {
        let mut batch = self.dataset.batch_of_one()?;
        batch.push(
            &self.dataset,
            self.samples[index],
            self.get(index)?,
            &mut Vec::new(),
            go_on,
        )
    }

    /// The dataset.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }
}
