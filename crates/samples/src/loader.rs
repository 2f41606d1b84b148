//! Batches of samples, in the order of an epoch, prefetched and made before the caller takes them.
//!
//! Ranks take turns: of a global batch of `ranks` times `batch` positions, rank r has every
//! `ranks`th, from the r-th on. The union over all ranks is one order, whatever their number. How
//! far an epoch is, is one number, and to go on there takes no time: the order is a function of
//! seed, epoch and position.
//!
//! ```text
//!   begun      positions -> samples; what is not in memory is read, completed in any order
//!   there      samples are compared with their checksums and put side by side (pending_batch.rs), by a compute thread that has nothing else to do
//!   taken      by the caller, which does that itself where no thread has
//! ```
//!
//! A global shuffle keeps samples until their next use as far as memory allows (sample_cache.rs). A
//! chunk shuffle keeps the windows that its lanes are in, and reads the next one of each
//! (lanes.rs).

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outcore_core::{Error, MemorySplit, Result};
use outcore_engine::{Deferred, Reservation};
use serde::{Deserialize, Serialize};

use super::batch::{Batch, shared};
use super::buffer_pool::{BufferPool, Bytes};
use super::dataset::{Dataset, LOOK_EVERY};
use super::lanes::Lanes;
use super::order::{Chunks, Order, Positions, Shuffle};
use super::pending_batch::{Future, Keeping, Made, PendingBatch, SampleLocation};
use super::sample_cache::SampleCache;

/// What batches ahead have together, unless the caller says how many they are: enough for the queue
/// of any device.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_SAMPLES: u64 = 4096;
/// Batches that are ahead in any case, so that one is used while another is made.
const AHEAD_MIN: u64 = 2;

/// Of a chunk shuffle: so that positions, and a list of lanes, stay within what numbers and memory
/// have.
const CHUNK_SAMPLES_MOST: u64 = 1 << 40;
const WINDOW_CHUNKS_MOST: u64 = 1 << 20;
const LANES_MOST: u64 = 1 << 16;

/// How ranks end an epoch whose samples do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All have equally many: what is left over is left out.
    Drop,
    /// All have equally many: the epoch's first samples come again.
    Pad,
    /// Some have one more; their last batch may be one that others do not have.
    Uneven,
}

/// How a dataset is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoaderOptions {
    /// Samples of a batch of one rank.
    pub batch: u64,
    /// How samples are shuffled.
    pub shuffle: Shuffle,
    /// Which order, of all there are.
    pub seed: u64,
    /// Which rank this is, from 0.
    pub rank: u64,
    /// How many there are.
    pub ranks: u64,
    /// How they end.
    pub end: End,
    /// Leave out the last batch where it has fewer samples.
    pub drop_last: bool,
    /// Batches that are made ready ahead; none for as many as keep any device busy.
    pub ahead: Option<usize>,
    /// Leave out samples that are damaged, and count them. Pictures of kinds that are not decoded,
    /// or that are larger than memory, are not.
    pub skip_damaged: bool,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        let (shuffle, end) = (Shuffle::No, End::Pad);
        LoaderOptions {
            batch: 1,
            shuffle,
            seed: 0,
            rank: 0,
            ranks: 1,
            end,
            drop_last: false,
            ahead: None,
            skip_damaged: false,
        }
    }
}

/// Where a loader is: the same for all ranks, and enough to go on with any number of them.
/// Serialized, it is nine whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Numbers", try_from = "Numbers")]
pub struct LoaderState {
    /// Of this form.
    pub version: u32,
    /// Tells datasets apart.
    pub dataset: u64,
    /// Which order.
    pub seed: u64,
    /// From 0.
    pub epoch: u64,
    /// Of the epoch: samples that all ranks together have had.
    pub position: u64,
    /// How samples are shuffled.
    pub shuffle: Shuffle,
}

/// A state as others keep it.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Numbers {
    version: u32,
    dataset: u64,
    seed: u64,
    epoch: u64,
    position: u64,
    /// Not at all, globally, by chunks.
    shuffle: u8,
    chunk_samples: u64,
    window_chunks: u64,
    lanes: u64,
}

impl From<LoaderState> for Numbers {
    fn from(
        LoaderState {
            version,
            dataset,
            seed,
            epoch,
            position,
            shuffle,
        }: LoaderState,
    ) -> Numbers {
        let (
            shuffle,
            Chunks {
                samples,
                window,
                lanes,
            },
        ) = match shuffle {
            Shuffle::No => (0, Chunks::default()),
            Shuffle::Global => (1, Chunks::default()),
            Shuffle::Chunks(shape) => (2, shape),
        };
        Numbers {
            version,
            dataset,
            seed,
            epoch,
            position,
            shuffle,
            chunk_samples: samples,
            window_chunks: window,
            lanes,
        }
    }
}

impl TryFrom<Numbers> for LoaderState {
    type Error = String;

    fn try_from(numbers: Numbers) -> std::result::Result<LoaderState, String> {
        let Numbers {
            version,
            dataset,
            seed,
            epoch,
            position,
            shuffle,
            chunk_samples,
            window_chunks,
            lanes,
        } = numbers;
        let shuffle = match shuffle {
            0 => Shuffle::No,
            1 => Shuffle::Global,
            2 => Shuffle::Chunks(Chunks {
                samples: chunk_samples,
                window: window_chunks,
                lanes,
            }),
            other => return Err(format!("there is no shuffle {other}")),
        };
        Ok(LoaderState {
            version,
            dataset,
            seed,
            epoch,
            position,
            shuffle,
        })
    }
}

/// A place in all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    epoch: u64,
    position: u64,
}

impl Cursor {
    /// After the last epoch that a number has comes the first.
    fn next_epoch(self) -> Cursor {
        Cursor {
            epoch: self.epoch.wrapping_add(1),
            position: 0,
        }
    }
}

/// Batches of one epoch after another; [`next_batch`](Loader::next_batch) returns none between two
/// of them.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use std::time::Duration;
///
/// // Samples "zero" to "three", of a text and a label.
/// let options = LoaderOptions { batch: 2, shuffle: Shuffle::Global, seed: 1, ..LoaderOptions::default() };
/// let mut loader = Loader::new(&dataset, options)?;
/// assert!(loader.len() == 2 && !loader.is_empty());
/// let mut seen = Vec::new();
/// while let Some(batch) = loader.next_batch(|| true)? {
///     println!("{} batches left", loader.left());
///     seen.extend_from_slice(batch.samples());
/// }
/// seen.sort_unstable();
/// assert_eq!((seen, loader.epoch()), (vec![0, 1, 2, 3], 1));
/// loader.set_batch(1)?;
/// loader.set_epoch(5);
/// while !loader.ready_within(Duration::from_millis(50))? {}
/// assert_eq!((loader.epoch(), loader.skipped().0, loader.dataset().len()), (5, 0, 4));
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Loader {
    dataset: Dataset,
    options: LoaderOptions,
    ahead: usize,
    /// Behind the last batch that was taken.
    here: Cursor,
    /// Behind the last that was begun.
    begun: Cursor,
    /// Of the epoch in which batches are begun.
    order: Order,
    lanes: Lanes,
    queue: VecDeque<Ahead>,
    kept: Option<Arc<SampleCache>>,
    /// For batches that are ready.
    room: Room,
    /// Set when the batches that are being made are discarded: the loader is dropped, or goes
    /// elsewhere.
    given_up: Arc<AtomicBool>,
    skipped: u64,
    first_skipped: Option<Error>,
}

/// What comes next.
enum Ahead {
    Batch {
        end: u64,
        stage: Stage,
    },
    /// Of an epoch.
    End,
}

/// How far a batch is.
enum Stage {
    Coming(Box<PendingBatch>),
    Deferred(Deferred<Box<PendingBatch>, Result<Made>>, u64),
    /// Too long to be in memory beside others.
    Alone(Vec<u64>),
}

/// Memory for batches that are ready and not yet taken: one half, and one for what those leave that
/// were used up.
#[derive(Default)]
struct Room {
    reserved: Option<Reservation>,
    used: u64,
    pool: Arc<BufferPool>,
    /// More was not to be had.
    refused: bool,
}

impl Loader {
    /// A loader at the beginning of epoch 0.
    ///
    /// # Errors
    /// [`Error::Value`] for options that cannot be.
    pub fn new(dataset: &Dataset, options: LoaderOptions) -> Result<Loader> {
        check(&options)?;
        let (ahead, kept) = (ahead(dataset, &options), kept(dataset, options.shuffle)?);
        let start = Cursor {
            epoch: 0,
            position: 0,
        };
        let mut loader = Loader {
            dataset: dataset.clone(),
            options,
            ahead,
            here: start,
            begun: start,
            order: Order::Straight,
            lanes: Lanes::default(),
            queue: VecDeque::new(),
            kept,
            room: Room::default(),
            given_up: Arc::default(),
            skipped: 0,
            first_skipped: None,
        };
        loader.go_to(start);
        Ok(loader)
    }

    /// Where its samples are from.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Goes on with batches of `batch` samples.
    ///
    /// # Errors
    /// [`Error::Value`] for none.
    pub fn set_batch(&mut self, batch: u64) -> Result<()> {
        let options = LoaderOptions {
            batch,
            ..self.options
        };
        check(&options)?;
        (self.ahead, self.options) = (ahead(&self.dataset, &options), options);
        self.go_to(self.here);
        Ok(())
    }

    /// Goes to the beginning of an epoch.
    pub fn set_epoch(&mut self, epoch: u64) {
        let there = Cursor { epoch, position: 0 };
        if self.here != there {
            self.go_to(there);
        }
    }

    fn go_to(&mut self, cursor: Cursor) {
        mem::take(&mut self.given_up).store(true, Ordering::Relaxed);
        self.queue.clear();
        (self.here, self.room.used, self.room.refused) = (cursor, 0, false);
        self.begin_at(cursor);
    }

    /// Batches that are begun from now on are from here on.
    fn begin_at(&mut self, cursor: Cursor) {
        self.begun = cursor;
        self.order = self.order_of(cursor.epoch);
        self.lanes = Lanes::of(&self.order);
    }

    fn order_of(&self, epoch: u64) -> Order {
        Order::new(
            self.dataset.len(),
            self.options.shuffle,
            self.options.seed,
            epoch,
        )
    }

    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.here.epoch
    }

    /// Where it is: behind the last batch that was taken.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        let (LoaderOptions { seed, shuffle, .. }, Cursor { epoch, position }) =
            (self.options, self.here);
        LoaderState {
            version: 1,
            dataset: self.dataset.digest(),
            seed,
            epoch,
            position,
            shuffle,
        }
    }

    /// Goes on where another loader of the same dataset was, whatever its rank, batch and number of
    /// ranks.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let options = LoaderOptions { batch: 2, shuffle: Shuffle::Global, seed: 1, ..LoaderOptions::default() };
    /// let mut first = Loader::new(&dataset, options)?;
    /// first.next_batch(|| true)?;
    /// let mut second = Loader::new(&dataset, options)?;
    /// second.restore(&first.state())?;
    /// let next = |loader: &mut Loader| loader.next_batch(|| true).map(|batch| batch.unwrap().samples().to_vec());
    /// assert_eq!(next(&mut first)?, next(&mut second)?);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for the state of another dataset or version.
    pub fn restore(&mut self, state: &LoaderState) -> Result<()> {
        if state.version != 1
            || state.dataset != self.dataset.digest()
            || state.position > self.dataset.len()
        {
            let path = self.dataset.path().display();
            return Err(Error::value(format!(
                "{path}: the state is that of a loader of another dataset, or of another version"
            )));
        }
        check_shape(state.shuffle)?;
        if state.shuffle != self.options.shuffle {
            self.kept = kept(&self.dataset, state.shuffle)?;
        }
        (self.options.seed, self.options.shuffle) = (state.seed, state.shuffle);
        self.go_to(Cursor {
            epoch: state.epoch,
            position: state.position,
        });
        Ok(())
    }

    /// Batches of this rank in a whole epoch.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.batches_from(0)
    }

    /// Whether an epoch has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Batches of this rank that are left of the epoch.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.batches_from(self.here.position)
    }

    fn batches_from(&self, position: u64) -> u64 {
        let LoaderOptions {
            batch,
            rank,
            ranks,
            end,
            drop_last,
            ..
        } = self.options;
        let left = self.dataset.len() - position;
        let mine = match end {
            End::Drop => left / ranks,
            End::Pad => left.div_ceil(ranks),
            End::Uneven => left.saturating_sub(rank).div_ceil(ranks),
        };
        if drop_last {
            mine / batch
        } else {
            mine.div_ceil(batch)
        }
    }

    /// Samples that were left out because they were damaged, and what was wrong with the first of
    /// them.
    #[must_use]
    pub fn skipped(&self) -> (u64, Option<&Error>) {
        (self.skipped, self.first_skipped.as_ref())
    }

    /// The positions of the batch that begins at one; none where the epoch has no more.
    fn positions(&self, from: u64) -> Option<Positions> {
        let LoaderOptions {
            batch,
            rank,
            ranks,
            end,
            drop_last,
            ..
        } = self.options;
        let samples = self.dataset.len();
        let left = samples - from;
        let full = left / ranks >= batch;
        let count = match end {
            _ if full => batch,
            _ if left == 0 => return None,
            End::Drop => left / ranks,
            End::Pad => left.div_ceil(ranks),
            End::Uneven => left.saturating_sub(rank).div_ceil(ranks).min(batch),
        };
        if count == 0 || (drop_last && count < batch) {
            return None;
        }
        let end = samples.min(from.saturating_add(batch.saturating_mul(ranks)));
        Some(Positions {
            first: from + rank,
            apart: ranks,
            count,
            samples,
            end,
        })
    }
}

fn check(options: &LoaderOptions) -> Result<()> {
    let LoaderOptions {
        batch,
        rank,
        ranks,
        shuffle,
        ..
    } = *options;
    if batch == 0 || rank >= ranks {
        return Err(Error::value(format!(
            "batches of {batch} samples for rank {rank} of {ranks}: there is none"
        )));
    }
    check_shape(shuffle)
}

fn check_shape(shuffle: Shuffle) -> Result<()> {
    let Shuffle::Chunks(Chunks {
        samples,
        window,
        lanes,
    }) = shuffle
    else {
        return Ok(());
    };
    let fits = |number: u64, most: u64| (1..=most).contains(&number);
    if fits(samples, CHUNK_SAMPLES_MOST)
        && fits(window, WINDOW_CHUNKS_MOST)
        && fits(lanes, LANES_MOST)
    {
        return Ok(());
    }
    Err(Error::value(format!(
        "a chunk shuffle of {lanes} lanes of {window} chunks of {samples} samples: there is none"
    )))
}

/// How many batches are made ready ahead.
fn ahead(dataset: &Dataset, options: &LoaderOptions) -> usize {
    let enough = || {
        let bytes = (dataset.bytes() / dataset.len().max(1))
            .saturating_mul(options.batch)
            .max(1);
        let busy = (AHEAD_BYTES / bytes)
            .max(AHEAD_MIN)
            .min((AHEAD_SAMPLES / options.batch).max(AHEAD_MIN));
        busy.min(MemorySplit::new(dataset.session()).ahead_bytes() / bytes) as usize
    };
    options.ahead.unwrap_or_else(enough)
}

fn kept(dataset: &Dataset, shuffle: Shuffle) -> Result<Option<Arc<SampleCache>>> {
    match shuffle {
        Shuffle::Chunks(_) => Ok(None),
        Shuffle::No | Shuffle::Global => Ok(SampleCache::new(dataset)?.map(Arc::new)),
    }
}

impl Loader {
    /// Begins batches until more than `ahead` are queued. All but one of them give way where memory
    /// is short, and all where one has been taken and is not made yet.
    fn begin(&mut self, has_taken: bool) -> Result<()> {
        while self.queue.len() <= self.ahead {
            match self.positions(self.begun.position) {
                Some(positions) => {
                    let must = self.queue.is_empty() && !has_taken;
                    let Some(stage) = self.stage(positions, must)? else {
                        break;
                    };
                    self.push(positions, stage);
                }
                // Prefetches past one end of an epoch only: the next epoch may be as short.
                None if self.queue.iter().any(|ahead| matches!(ahead, Ahead::End)) => break,
                None => {
                    self.queue.push_back(Ahead::End);
                    self.begin_at(self.begun.next_epoch());
                }
            }
        }
        Ok(())
    }

    /// Has batches made that are there and come soon after the first, which the caller makes: what
    /// is made long before it is taken has left the caches.
    fn make_early(&mut self) {
        let threads = self.dataset.session().threads();
        for ahead in self.queue.iter_mut().take(threads).skip(1) {
            if let Ahead::Batch { stage, .. } = ahead {
                stage.make_early(&self.dataset, &mut self.room, threads, &self.given_up);
            }
        }
    }

    fn push(&mut self, positions: Positions, stage: Stage) {
        self.queue.push_back(Ahead::Batch {
            end: positions.end,
            stage,
        });
        self.begun.position = positions.end;
    }

    /// A batch on its way; none where there is no memory for it now, or where its windows are still
    /// on theirs.
    fn stage(&mut self, positions: Positions, must: bool) -> Result<Option<Stage>> {
        let samples: Vec<u64> = match &self.order {
            Order::Chunked(_) => return self.stage_of_windows(positions, Duration::ZERO, must),
            Order::Straight => positions.all().collect(),
            Order::Global(order) => positions.all().map(|position| order.at(position)).collect(),
        };
        // A sample that comes twice in a batch may have gone from where it was kept when it comes
        // again.
        let kept = self
            .kept
            .as_ref()
            .filter(|_| positions.are_different())
            .map(|kept| kept.open());
        let entries = kept
            .as_ref()
            .map_or_else(|| vec![0; samples.len()], |kept| kept.entries(&samples));
        let (mut work, mut wanted) = (self.work(positions), Vec::new());
        for (number, (&sample, entry)) in (0..).zip(samples.iter().zip(entries)) {
            let (_, len) = self.dataset.place(sample);
            if let Some(slot) = kept.as_ref().and_then(|kept| kept.slot(entry, len as u32)) {
                work.set(number, sample, len, SampleLocation::SampleCache(slot));
            } else {
                work.set(
                    number,
                    sample,
                    len,
                    SampleLocation::Read {
                        item: wanted.len() as u32,
                    },
                );
                wanted.push(sample);
            }
        }
        let gone = kept.map_or(0, |kept| kept.gone());
        if !wanted.is_empty() {
            match self.dataset.gather(&wanted) {
                Ok(ticket) => work.ticket = Some(ticket),
                Err(Error::OverBudget { .. }) if !must => return Ok(None),
                Err(Error::OverBudget { .. }) => return Ok(Some(Stage::Alone(samples))),
                Err(error) => return Err(error),
            }
        }
        work.keeping = self.kept.clone().map(|kept| Keeping {
            kept,
            gone,
            future: self.future(positions),
        });
        Ok(Some(Stage::Coming(Box::new(work))))
    }

    fn stage_of_windows(
        &mut self,
        positions: Positions,
        patience: Duration,
        must: bool,
    ) -> Result<Option<Stage>> {
        let Order::Chunked(order) = &self.order else {
            return Ok(None);
        };
        let mut lanes = mem::take(&mut self.lanes);
        let work = loop {
            match lanes.gather(&self.dataset, order, positions, patience, must, || {
                self.work(positions)
            }) {
                Err(Error::OverBudget { .. }) if must && self.room.leave() => {}
                gathered => break gathered,
            }
        };
        self.lanes = lanes;
        Ok(work?.map(|work| Stage::Coming(Box::new(work))))
    }

    fn work(&self, positions: Positions) -> PendingBatch {
        PendingBatch::new(
            &self.dataset,
            positions.count as usize,
            &self.room.pool,
            self.options.skip_damaged,
        )
    }

    fn future(&self, positions: Positions) -> Future {
        let LoaderOptions { rank, ranks, .. } = self.options;
        let next = self.order_of(self.begun.next_epoch().epoch);
        Future {
            next,
            positions,
            rank,
            ranks,
            samples: self.dataset.len(),
            bytes: self.dataset.bytes(),
        }
    }

    /// Waits for at most `timeout`; true when the next batch can be had without waiting, as far as
    /// that is known.
    ///
    /// # Errors
    /// As [`next_batch`](Loader::next_batch).
    pub fn ready_within(&mut self, timeout: Duration) -> Result<bool> {
        self.begin(false)?;
        self.make_early();
        match self.queue.front() {
            Some(Ahead::Batch {
                stage: Stage::Coming(work),
                ..
            }) => Ok(work.is_there(timeout)),
            Some(Ahead::Batch {
                stage: Stage::Deferred(deferred, _),
                ..
            }) => Ok(deferred.wait_timeout(timeout)),
            Some(_) => Ok(true),
            None => {
                if let Some(positions) = self.positions(self.begun.position)
                    && let Some(stage) = self.stage_of_windows(positions, timeout, true)?
                {
                    self.push(positions, stage);
                }
                Ok(!self.queue.is_empty())
            }
        }
    }

    /// The next batch; none at the end of an epoch, after which the next one begins. `go_on` is
    /// asked now and then; its `false` ends the call, and the batch is the next one again.
    ///
    /// # Errors
    /// [`Error::OverBudget`] for windows, and pictures, that do not fit in memory;
    /// [`Error::Format`] for a damaged sample, unless those are left out, and for a picture of a
    /// kind that is not decoded; [`Error::Device`]; [`Error::Cancelled`].
    pub fn next_batch(&mut self, mut go_on: impl FnMut() -> bool) -> Result<Option<Batch>> {
        while !self.ready_within(LOOK_EVERY)? {
            if !go_on() {
                return Err(Error::Cancelled);
            }
        }
        let Some(Ahead::Batch { end, stage }) = self.queue.pop_front() else {
            self.here = self.here.next_epoch();
            return Ok(None);
        };
        // The device is to have work while this one is made.
        let begun = if self.ahead > 0 {
            self.begin(true)
        } else {
            Ok(())
        };
        if let Err(error) = begun {
            self.queue.push_front(Ahead::Batch { end, stage });
            return Err(error);
        }
        let made = match stage {
            Stage::Coming(work) => {
                // It leaves its memory to those that come.
                self.room.grow(
                    &self.dataset,
                    work.made_bytes(),
                    self.dataset.session().threads() as u64,
                );
                work.make(&mut go_on)?
            }
            Stage::Deferred(deferred, bytes) => {
                self.room.used -= bytes;
                deferred
                    .get()
                    .unwrap_or_else(|work| work.make(&mut go_on))?
            }
            Stage::Alone(samples) => Made::Evicted(samples),
        };
        match if let Made::Evicted(samples) = made {
            self.read_alone(samples, go_on)?
        } else {
            made
        } {
            Made::Batch {
                batch,
                skipped,
                first_skipped,
            } => {
                self.skipped += skipped;
                if self.first_skipped.is_none()
                    && let Some((sample, error)) = first_skipped
                {
                    self.first_skipped = Some(self.dataset.named(sample, error));
                }
                self.here.position = end;
                Ok(Some(batch))
            }
            Made::Refused(sample, error) => Err(self.dataset.named(sample, error)),
            Made::Stopped(samples) => {
                self.queue.push_front(Ahead::Batch {
                    end,
                    stage: Stage::Alone(samples),
                });
                Err(Error::Cancelled)
            }
            Made::Evicted(_) => unreachable!("what is read alone is not lost"),
        }
    }

    /// Reads a batch into memory of the caller's, as many samples at once as memory is free for.
    fn read_alone(&self, samples: Vec<u64>, go_on: impl FnMut() -> bool) -> Result<Made> {
        let mut batch = Batch::with_room(&self.dataset, samples.len(), 0, Bytes::with_capacity)?;
        let (mut skipped, mut first_skipped, mut refused, mut places) = (0, None, None, Vec::new());
        let go_on = shared(go_on);
        let done = self.dataset.each(&samples, &go_on, |sample, found| {
            match found
                .and_then(|bytes| batch.push(&self.dataset, sample, bytes, &mut places, &go_on))
            {
                Err(error) if self.options.skip_damaged && error.is_damage() => {
                    skipped += 1;
                    first_skipped.get_or_insert((sample, error));
                    Ok(())
                }
                done => done.inspect_err(|_| refused = Some(sample)),
            }
        });
        match done {
            Ok(()) => Ok(Made::Batch {
                batch,
                skipped,
                first_skipped,
            }),
            Err(Error::Cancelled) => Ok(Made::Stopped(samples)),
            Err(error) => match refused {
                Some(sample) => Ok(Made::Refused(sample, error)),
                None => Err(error),
            },
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

impl Stage {
    /// Has a thread make the batch, if all its samples are there and memory is.
    fn make_early(
        &mut self,
        dataset: &Dataset,
        room: &mut Room,
        batches: usize,
        given_up: &Arc<AtomicBool>,
    ) {
        let Stage::Coming(work) = self else { return };
        if !work.is_there(Duration::ZERO) {
            return;
        }
        let bytes = work.made_bytes();
        if room.take(dataset, bytes, batches as u64) {
            let Stage::Coming(work) = mem::replace(self, Stage::Alone(Vec::new())) else {
                unreachable!("looked above")
            };
            let given_up = Arc::clone(given_up);
            let make =
                move |work: Box<PendingBatch>| work.make(|| !given_up.load(Ordering::Relaxed));
            *self = Stage::Deferred(dataset.session().engine().defer(work, make), bytes);
        }
    }
}

impl Room {
    /// Reserves room for `bytes` more, and as much for each of `batches` batches, if memory is
    /// free.
    fn grow(&mut self, dataset: &Dataset, bytes: u64, batches: u64) {
        if self.has(bytes) || self.refused {
            return;
        }
        let ready = bytes.saturating_mul(batches);
        let wanted = [bytes, ready, ready / 4]
            .into_iter()
            .fold(self.used, u64::saturating_add);
        self.refused = true;
        if let Ok(reserved) = dataset
            .session()
            .engine()
            .reserve("batches that are ready", wanted.saturating_mul(2))
        {
            self.pool.set_most(wanted);
            (self.reserved, self.refused) = (Some(reserved), false);
        }
    }

    /// Gives up all memory, if it has any and no batch is in it.
    fn leave(&mut self) -> bool {
        let leaves = self.used == 0 && self.reserved.is_some();
        if leaves {
            self.pool.set_most(0);
            (self.reserved, self.refused) = (None, true);
        }
        leaves
    }

    fn has(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.reserved.as_ref().map_or(0, Reservation::bytes) / 2
    }

    fn take(&mut self, dataset: &Dataset, bytes: u64, batches: u64) -> bool {
        self.grow(dataset, bytes, batches);
        let has = self.has(bytes);
        self.used += if has { bytes } else { 0 };
        has
    }
}
