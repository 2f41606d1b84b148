//! Batches of samples, in the order of an epoch, made ready ahead of whoever takes them.
//!
//! Ranks take turns: of a global batch of `ranks` times `batch` positions, rank r has those at r, r + ranks, and so on. The union over all
//! ranks is one order, whatever their number. How far an epoch is, is one number, and to go on there takes no time: the order is a function
//! of seed, epoch and position.
//!
//! ```text
//!   begun      positions -> samples; what is not in memory is read, completed in any order
//!   there      samples are compared with their checksums and put side by side, by a compute thread that has nothing else to do
//!   taken      by the caller, who does that itself where no thread has
//! ```
//!
//! A global shuffle keeps samples until their next use as far as memory allows (kept.rs). A chunk shuffle keeps the windows that its lanes
//! are in and reads the next one of each (order.rs); a sample is then a piece of memory that is there already.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outcore_engine::{Early, GatherOptions, Gathered, Reservation, Ticket};
use outcore_kernels::fetch_bytes;
use serde::{Deserialize, Serialize};

use super::Dataset;
use super::batch::Batch;
use super::images::Decode;
use super::kept::{Kept, Slot, horizon};
use super::order::{Chunked, Order, Shuffle, Window};
use super::spare::{Bytes, Spare};
use crate::error::{Error, Result};

/// What batches ahead have together, unless the caller says how many they are: enough for the queue of any device.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_SAMPLES: u64 = 4096;
/// Of the memory that is free, at most.
const AHEAD_PART: u64 = 4;
/// Batches that are ahead in any case, so that one is used while another is made.
const AHEAD_MIN: u64 = 2;

/// Of pictures that are packed well.
const PIXELS_PER_BYTE: u64 = 10;

/// The sample so far behind the one that is copied is asked for from memory.
const FETCH_AHEAD: usize = 2;

/// How ranks end an epoch whose samples do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Leave out samples that are damaged, and count them.
    pub skip_damaged: bool,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        let (shuffle, end) = (Shuffle::No, End::Pad);
        LoaderOptions { batch: 1, shuffle, seed: 0, rank: 0, ranks: 1, end, drop_last: false, ahead: None, skip_damaged: false }
    }
}

/// Where a loader is: the same for all ranks, and enough to go on with any number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A place in all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    epoch: u64,
    position: u64,
}

/// Batches of one epoch after another; [`next_batch`](Loader::next_batch) returns none between two of them.
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
    lanes: Vec<Lane>,
    /// A batch of which some samples are found.
    part: Option<Part>,
    queue: VecDeque<Ahead>,
    kept: Option<Arc<Kept>>,
    /// For batches that are ready.
    room: Room,
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
    Coming(Box<Work>),
    Early(Early<Result<Made>>, u64),
    /// Too long to be in memory beside others.
    Alone(Vec<u64>),
}

/// A batch of which every sample is in memory, or on its way there.
struct Work {
    dataset: Dataset,
    samples: Vec<u64>,
    places: Vec<Place>,
    sources: Vec<Arc<Gathered>>,
    ticket: Option<Ticket<Gathered>>,
    kept: Option<(Arc<Kept>, Future)>,
    spare: Arc<Spare>,
    skip_damaged: bool,
}

/// Where a sample is.
#[derive(Clone, Copy)]
enum Place {
    Kept,
    Read { item: u32 },
    Window { source: u32, stretch: u32, start: u32, len: u32 },
}

/// A sample in memory.
#[derive(Clone, Copy)]
enum Found<'a> {
    Kept(Slot),
    Read(&'a [u8]),
}

/// What became of a batch.
enum Made {
    Batch {
        batch: Batch,
        skipped: u64,
        first_skipped: Option<Error>,
    },
    /// Samples that were kept have gone meanwhile.
    Lost(Vec<u64>),
}

/// A batch of a chunk shuffle, as far as it is.
struct Part {
    done: u64,
    work: Work,
    /// By lane: a window, and its number among the sources.
    by_lane: Vec<Option<(u64, u32)>>,
}

/// Positions of a batch: some of an epoch's, evenly apart, and after its last its first.
#[derive(Clone, Copy)]
struct Positions {
    first: u64,
    apart: u64,
    count: u64,
    samples: u64,
    /// Position behind the batch of all ranks.
    end: u64,
}

impl Positions {
    fn at(&self, number: u64) -> u64 {
        (self.first + number * self.apart) % self.samples
    }

    fn are_different(&self) -> bool {
        self.first + (self.count - 1) * self.apart < self.samples
    }

    fn all(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |number| self.at(number))
    }
}

/// When samples are wanted again.
struct Future {
    /// Of the next epoch, if samples come in another order.
    next: Order,
    /// Of the first sample of the batch, and how far the next ones are apart.
    positions: Positions,
    rank: u64,
    ranks: u64,
    samples: u64,
    bytes: u64,
}

/// Windows of a lane.
#[derive(Default)]
struct Lane {
    here: Option<(Stretches, Arc<Gathered>)>,
    next: Option<(Stretches, Ticket<Gathered>)>,
}

/// A window, and the stretches of files that are read of it: one a chunk, more where it goes on in another file.
struct Stretches {
    shape: Window,
    /// First sample of each, and where its bytes begin.
    begins: Vec<(u64, u64)>,
    /// Number of each chunk's first; none where each has one.
    of_chunks: Vec<u32>,
}

impl Stretches {
    /// The stretch with a sample of a chunk, and where its bytes begin.
    fn stretch_of(&self, chunk: u32, sample: u64) -> (u32, u64) {
        let mut stretch = self.of_chunks.get(chunk as usize).copied().unwrap_or(chunk);
        if !self.of_chunks.is_empty() {
            let end = self.of_chunks.get(chunk as usize + 1).copied().unwrap_or(self.begins.len() as u32);
            while stretch + 1 < end && self.begins[stretch as usize + 1].0 <= sample {
                stretch += 1;
            }
        }
        (stretch, self.begins[stretch as usize].1)
    }
}

/// Memory for batches that are ready and not yet taken: one half, and one for what those leave that were used up.
#[derive(Default)]
struct Room {
    reserved: Option<Reservation>,
    used: u64,
    spare: Arc<Spare>,
    /// More was not to be had.
    refused: bool,
}

impl Loader {
    /// A loader at the beginning of epoch 0.
    ///
    /// # Errors
    /// [`Error::Value`] for options that cannot be.
    pub fn new(dataset: &Dataset, options: LoaderOptions) -> Result<Loader> {
        if options.batch == 0 || options.ranks == 0 || options.rank >= options.ranks {
            let LoaderOptions { batch, rank, ranks, .. } = options;
            return Err(Error::value(format!("batches of {batch} samples for rank {rank} of {ranks}: there is none")));
        }
        check_shape(options.shuffle)?;
        let (ahead, kept) = (ahead(dataset, &options), kept(dataset, options.shuffle)?);
        let start = Cursor { epoch: 0, position: 0 };
        let mut loader = Loader {
            dataset: dataset.clone(),
            options,
            ahead,
            here: start,
            begun: start,
            order: Order::Straight,
            lanes: Vec::new(),
            part: None,
            queue: VecDeque::new(),
            kept,
            room: Room::default(),
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

    /// Goes to the beginning of an epoch.
    pub fn set_epoch(&mut self, epoch: u64) {
        let there = Cursor { epoch, position: 0 };
        if self.here != there {
            self.go_to(there);
        }
    }

    fn go_to(&mut self, cursor: Cursor) {
        self.queue.clear();
        (self.here, self.room.used, self.room.refused) = (cursor, 0, false);
        self.begin_at(cursor);
    }

    /// Batches that are begun from now on are from here on.
    fn begin_at(&mut self, cursor: Cursor) {
        self.begun = cursor;
        self.order = self.order_of(cursor.epoch);
        self.part = None;
        self.lanes.clear();
        if let Order::Chunked(order) = &self.order {
            self.lanes.resize_with(order.lanes() as usize, Lane::default);
        }
    }

    fn order_of(&self, epoch: u64) -> Order {
        Order::new(self.dataset.len(), self.options.shuffle, self.options.seed, epoch)
    }

    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.here.epoch
    }

    /// Where it is: behind the last batch that was taken.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        let (LoaderOptions { seed, shuffle, .. }, Cursor { epoch, position }) = (self.options, self.here);
        LoaderState { version: 1, dataset: self.dataset.digest(), seed, epoch, position, shuffle }
    }

    /// Goes on where another loader of the same dataset was, whatever its rank, batch and number of ranks.
    ///
    /// # Errors
    /// [`Error::Value`] for the state of another dataset or version.
    pub fn restore(&mut self, state: &LoaderState) -> Result<()> {
        if state.version != 1 || state.dataset != self.dataset.digest() || state.position > self.dataset.len() {
            let path = self.dataset.path().display();
            return Err(Error::value(format!("{path}: the state is that of a loader of another dataset, or of another version")));
        }
        check_shape(state.shuffle)?;
        if state.shuffle != self.options.shuffle {
            self.kept = kept(&self.dataset, state.shuffle)?;
        }
        (self.options.seed, self.options.shuffle) = (state.seed, state.shuffle);
        self.go_to(Cursor { epoch: state.epoch, position: state.position });
        Ok(())
    }

    /// Batches of this rank that are left of the epoch.
    #[must_use]
    pub fn len(&self) -> u64 {
        let LoaderOptions { batch, rank, ranks, end, drop_last, .. } = self.options;
        let left = self.dataset.len() - self.here.position;
        let mine = match end {
            End::Drop => left / ranks,
            End::Pad => left.div_ceil(ranks),
            End::Uneven => left.saturating_sub(rank).div_ceil(ranks),
        };
        if drop_last { mine / batch } else { mine.div_ceil(batch) }
    }

    /// Whether there is no batch left of the epoch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that were left out because they were damaged, and what was wrong with the first of them.
    #[must_use]
    pub fn skipped(&self) -> (u64, Option<&Error>) {
        (self.skipped, self.first_skipped.as_ref())
    }

    /// The positions of the batch that begins at one; none where the epoch has no more.
    fn positions(&self, from: u64) -> Option<Positions> {
        let LoaderOptions { batch, rank, ranks, end, drop_last, .. } = self.options;
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
        Some(Positions { first: from + rank, apart: ranks, count, samples, end })
    }
}

fn check_shape(shuffle: Shuffle) -> Result<()> {
    match shuffle {
        Shuffle::Chunks(shape) if shape.samples == 0 || shape.window == 0 || shape.lanes == 0 => Err(Error::value(
            "a chunk shuffle needs chunks of at least one sample, in windows of at least one chunk, in at least one lane",
        )),
        _ => Ok(()),
    }
}

/// How many batches are made ready ahead.
fn ahead(dataset: &Dataset, options: &LoaderOptions) -> usize {
    let enough = || {
        let bytes = (dataset.bytes() / dataset.len().max(1)).saturating_mul(options.batch).max(1);
        let busy = (AHEAD_BYTES / bytes).max(AHEAD_MIN).min((AHEAD_SAMPLES / options.batch).max(AHEAD_MIN));
        busy.min(dataset.session().memory_free() / AHEAD_PART / bytes) as usize
    };
    options.ahead.unwrap_or_else(enough)
}

fn kept(dataset: &Dataset, shuffle: Shuffle) -> Result<Option<Arc<Kept>>> {
    match shuffle {
        Shuffle::Chunks(_) => Ok(None),
        Shuffle::No | Shuffle::Global => Ok(Kept::new(dataset)?.map(Arc::new)),
    }
}

impl Loader {
    /// Begins batches until so many are under way, and makes those ready that are there. Those after the first give way where memory is
    /// short.
    fn begin(&mut self) -> Result<()> {
        while self.queue.len() <= self.ahead {
            match self.positions(self.begun.position) {
                Some(positions) => {
                    let Some(stage) = self.stage(positions)? else { break };
                    self.queue.push_back(Ahead::Batch { end: positions.end, stage });
                    self.begun.position = positions.end;
                }
                // Whoever comes to the end of an epoch goes on with the next, which may be as short.
                None if self.queue.iter().any(|ahead| matches!(ahead, Ahead::End)) => break,
                None => {
                    self.queue.push_back(Ahead::End);
                    self.begin_at(Cursor { epoch: self.begun.epoch + 1, position: 0 });
                }
            }
        }
        // Those that come soon: what is made long before it is taken has left the caches.
        let threads = self.dataset.session().threads();
        for ahead in self.queue.iter_mut().take(threads) {
            if let Ahead::Batch { stage, .. } = ahead {
                stage.make_early(&self.dataset, &mut self.room, threads);
            }
        }
        Ok(())
    }

    /// A batch on its way; none where there is no memory for it now, or where its windows are still on theirs.
    fn stage(&mut self, positions: Positions) -> Result<Option<Stage>> {
        let samples: Vec<u64> = match &self.order {
            Order::Chunked(_) => {
                return Ok(self.gather_from_windows(positions, Duration::ZERO)?.map(|work| Stage::Coming(Box::new(work))));
            }
            Order::Straight => positions.all().collect(),
            Order::Global(order) => positions.all().map(|position| order.at(position)).collect(),
        };
        let mut work = Work::new(self, samples.len());
        let mut wanted = Vec::new();
        // A sample that comes twice in a batch may have gone from where it was kept when it comes again.
        match self.kept.as_ref().filter(|_| positions.are_different()) {
            Some(kept) => {
                let kept = kept.open();
                for &sample in &samples {
                    work.places.push(if kept.has(sample) { Place::Kept } else { read(&mut wanted, sample) });
                }
            }
            None => work.places.extend(samples.iter().map(|&sample| read(&mut wanted, sample))),
        }
        if !wanted.is_empty() {
            match self.dataset.gather(&wanted) {
                Ok(ticket) => work.ticket = Some(ticket),
                Err(Error::OverBudget { .. }) if !self.queue.is_empty() => return Ok(None),
                Err(Error::OverBudget { .. }) => return Ok(Some(Stage::Alone(samples))),
                Err(error) => return Err(error),
            }
        }
        work.samples = samples;
        work.kept = self.kept.as_ref().map(|kept| (Arc::clone(kept), self.future(positions)));
        Ok(Some(Stage::Coming(Box::new(work))))
    }

    fn future(&self, positions: Positions) -> Future {
        let LoaderOptions { rank, ranks, .. } = self.options;
        let next = self.order_of(self.begun.epoch + 1);
        Future { next, positions, rank, ranks, samples: self.dataset.len(), bytes: self.dataset.bytes() }
    }

    /// Waits for at most `timeout`; true when the next batch can be had without waiting, as far as that is known.
    ///
    /// # Errors
    /// As [`next_batch`](Loader::next_batch).
    pub fn ready_within(&mut self, timeout: Duration) -> Result<bool> {
        self.begin()?;
        match self.queue.front() {
            Some(Ahead::Batch { stage: Stage::Coming(work), .. }) => {
                Ok(work.ticket.as_ref().is_none_or(|ticket| ticket.wait_timeout(timeout)))
            }
            Some(_) => Ok(true),
            None => {
                if let Some(positions) = self.positions(self.begun.position)
                    && let Some(work) = self.gather_from_windows(positions, timeout)?
                {
                    self.queue.push_back(Ahead::Batch { end: positions.end, stage: Stage::Coming(Box::new(work)) });
                    self.begun.position = positions.end;
                }
                Ok(!self.queue.is_empty())
            }
        }
    }

    /// The next batch; none at the end of an epoch, after which the next one begins.
    ///
    /// # Errors
    /// [`Error::OverBudget`] for windows that do not fit in memory; [`Error::Format`] for a damaged sample, unless those are left out;
    /// [`Error::Device`].
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        while !self.ready_within(Duration::from_secs(1))? {}
        let Some(Ahead::Batch { end, stage }) = self.queue.pop_front() else {
            self.here = Cursor { epoch: self.here.epoch + 1, position: 0 };
            return Ok(None);
        };
        let made = match stage {
            Stage::Coming(work) => work.make()?,
            Stage::Early(early, bytes) => {
                self.room.used -= bytes;
                early.get()?
            }
            Stage::Alone(samples) => Made::Lost(samples),
        };
        let Made::Batch { batch, skipped, first_skipped } = (match made {
            Made::Lost(samples) => self.read_alone(&samples)?,
            made => made,
        }) else {
            unreachable!("what is read alone is not lost")
        };
        self.skipped += skipped;
        self.first_skipped = self.first_skipped.take().or(first_skipped);
        self.here.position = end;
        Ok(Some(batch))
    }

    /// Reads a batch into memory of the caller's, sample by sample.
    fn read_alone(&self, samples: &[u64]) -> Result<Made> {
        let mut batch = Batch::with_room(&self.dataset, samples.len(), 0, Bytes::with_capacity);
        let (mut skipped, mut first_skipped, mut places) = (0, None, Vec::new());
        for &sample in samples {
            let bytes = self.dataset.read_long(sample, || true)?;
            let sound = self.dataset.verify(sample, &bytes);
            match sound.and_then(|()| batch.push(&self.dataset, sample, &bytes, &mut places)) {
                Ok(()) => {}
                Err(error) if self.options.skip_damaged => {
                    skipped += 1;
                    first_skipped.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Made::Batch { batch, skipped, first_skipped })
    }
}

/// The place of a sample that is to be read.
fn read(wanted: &mut Vec<u64>, sample: u64) -> Place {
    wanted.push(sample);
    Place::Read { item: wanted.len() as u32 - 1 }
}

impl Stage {
    /// Has a thread make the batch, if all its samples are there and memory is.
    fn make_early(&mut self, dataset: &Dataset, room: &mut Room, batches: usize) {
        let Stage::Coming(work) = self else { return };
        if work.ticket.as_ref().is_some_and(|ticket| !ticket.wait_timeout(Duration::ZERO)) {
            return;
        }
        let bytes = work.made_bytes();
        if room.take(dataset, bytes, batches as u64) {
            let Stage::Coming(work) = std::mem::replace(self, Stage::Alone(Vec::new())) else { unreachable!("looked above") };
            *self = Stage::Early(dataset.session().engine().early(move || work.make()), bytes);
        }
    }
}

impl Room {
    fn take(&mut self, dataset: &Dataset, bytes: u64, batches: u64) -> bool {
        let has = |room: &Room| room.used + bytes <= room.reserved.as_ref().map_or(0, Reservation::bytes) / 2;
        if !has(self) && !self.refused {
            let wanted = self.used + bytes + bytes * batches + bytes * batches / 4;
            self.refused = true;
            if let Ok(reserved) = dataset.session().engine().reserve("batches that are ready", 2 * wanted) {
                self.spare.set_most(wanted);
                (self.reserved, self.refused) = (Some(reserved), false);
            }
        }
        let has = has(self);
        self.used += if has { bytes } else { 0 };
        has
    }
}

impl Work {
    fn new(loader: &Loader, samples: usize) -> Work {
        let (places, sources, skip_damaged) = (Vec::with_capacity(samples), Vec::new(), loader.options.skip_damaged);
        let (dataset, spare) = (loader.dataset.clone(), Arc::clone(&loader.room.spare));
        Work { dataset, samples: Vec::new(), places, sources, ticket: None, kept: None, spare, skip_damaged }
    }

    fn bytes(&self) -> u64 {
        self.samples.iter().map(|&sample| self.dataset.place(sample).1).sum()
    }

    /// Bytes of the batch, as far as they are known before pictures of any size are decoded.
    fn made_bytes(&self) -> u64 {
        let decoded = (0..self.dataset.fields().len()).filter_map(|field| self.dataset.decode_of(field));
        let each: u64 = decoded.clone().filter_map(Decode::bytes).map(|bytes| bytes as u64).sum();
        let packed = self.bytes();
        let guessed = if decoded.clone().any(|decode| decode.size.is_none()) { PIXELS_PER_BYTE * packed } else { packed };
        guessed + each * self.samples.len() as u64
    }

    /// Puts the samples side by side. Those that were read are compared with their checksums.
    fn make(mut self) -> Result<Made> {
        let gathered = self.ticket.take().map(Ticket::wait).transpose()?;
        let memory = |capacity| self.spare.bytes(capacity);
        let mut batch = Batch::with_room(&self.dataset, self.samples.len(), self.bytes() as usize, memory);
        let (mut skipped, mut first_skipped, mut scratch) = (0, None, Vec::new());
        let mut kept = self.kept.as_ref().map(|(kept, future)| {
            let open = kept.open();
            let soon = future.soon(open.part(future.bytes, future.samples));
            (open, soon)
        });
        let find = |(&sample, place): (&u64, &Place)| match *place {
            Place::Kept => kept.as_ref().and_then(|(kept, _)| kept.slot(sample, self.dataset.place(sample).1)).map(Found::Kept),
            Place::Read { item } => Some(Found::Read(gathered.as_ref().expect("read for it").get(item as usize))),
            Place::Window { source, stretch, start, len } => {
                let stretch = self.sources[source as usize].get(stretch as usize);
                // A damaged index may say anything.
                Some(Found::Read(stretch.get(start as usize..).and_then(|rest| rest.get(..len as usize)).unwrap_or_default()))
            }
        };
        let found: Option<Vec<Found<'_>>> = self.samples.iter().zip(&self.places).map(find).collect();
        let Some(found) = found else { return Ok(Made::Lost(self.samples)) };
        for (number, (&sample, &place)) in self.samples.iter().zip(&found).enumerate() {
            let bytes_of = |place| match place {
                Found::Read(bytes) => bytes,
                Found::Kept(slot) => kept.as_ref().map_or(&[][..], |(kept, _)| kept.at(slot)),
            };
            if let Some(&later) = found.get(number + FETCH_AHEAD) {
                fetch_bytes(bytes_of(later));
            }
            let (found, is_read) = (bytes_of(place), matches!(place, Found::Read(_)));
            let sound = if is_read { self.dataset.verify(sample, found) } else { Ok(()) };
            match sound.and_then(|()| batch.push(&self.dataset, sample, found, &mut scratch)) {
                Ok(()) => {}
                Err(error) if self.skip_damaged => {
                    skipped += 1;
                    first_skipped.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some((kept, soon)) = &mut kept {
                match (place, soon(sample, number as u64)) {
                    (Found::Read(bytes), true) => kept.put(sample, bytes),
                    (Found::Kept(_), false) => kept.remove(sample),
                    _ => {}
                }
            }
        }
        Ok(Made::Batch { batch, skipped, first_skipped })
    }
}

impl Future {
    /// Whether the next use of the n-th sample of the batch is soon enough to keep it, where such a part of all can be kept.
    fn soon(&self, part: f64) -> impl Fn(u64, u64) -> bool + use<'_> {
        let (samples, ranks) = (self.samples as f64, self.ranks as f64);
        // A rank has its part of the samples in one epoch, and of those again its part in the next, unless they come in the same order.
        let (horizon, first) = (horizon(part * ranks * ranks) * samples, part * ranks * samples);
        move |sample, number| match &self.next {
            Order::Global(_) if horizon >= 2.0 * samples && self.ranks == 1 => true,
            Order::Global(_) if horizon == 0.0 => false,
            Order::Global(next) => {
                let again = next.position_of(sample);
                let apart = self.samples - self.positions.at(number) + again;
                again % self.ranks == self.rank && apart as f64 <= horizon
            }
            Order::Straight | Order::Chunked(_) => (sample as f64) < first,
        }
    }
}

impl Loader {
    /// A batch whose samples are all in windows that are in memory; none while one of these is on its way, after waiting for `patience`.
    fn gather_from_windows(&mut self, positions: Positions, patience: Duration) -> Result<Option<Work>> {
        let Order::Chunked(order) = &self.order else { unreachable!("others are read by batch") };
        let mut part = match self.part.take() {
            Some(part) => part,
            None => {
                let work = Work::new(self, positions.count as usize);
                let part = Part { done: 0, work, by_lane: vec![None; self.lanes.len()] };
                // All lanes at once, if memory allows, and not one after the other.
                for position in positions.all().take(self.lanes.len()) {
                    let (number, at) = order.in_sequence(position);
                    self.lanes[number as usize].begin(&self.dataset, order, at, false)?;
                }
                part
            }
        };
        while part.done < positions.count {
            let (number, at) = order.in_sequence(positions.at(part.done));
            let lane = &mut self.lanes[number as usize];
            let Some((window, gathered)) = lane.window(&self.dataset, order, number, at, patience, self.queue.is_empty())? else {
                self.part = Some(part);
                return Ok(None);
            };
            let source = match part.by_lane[number as usize] {
                Some((of, source)) if of == window.shape.number => source,
                _ => {
                    part.work.sources.push(Arc::clone(gathered));
                    let source = part.work.sources.len() as u32 - 1;
                    part.by_lane[number as usize] = Some((window.shape.number, source));
                    source
                }
            };
            let (chunk, within) = window.shape.order[(at - window.shape.positions.start) as usize];
            let sample = window.shape.chunks[chunk as usize].0 + u64::from(within);
            let (offset, len) = self.dataset.place(sample);
            let (stretch, begin) = window.stretch_of(chunk, sample);
            // A damaged index may say anything.
            let start = offset.wrapping_sub(begin) as u32;
            part.work.places.push(Place::Window { source, stretch, start, len: len as u32 });
            part.work.samples.push(sample);
            part.done += 1;
        }
        Ok(Some(part.work))
    }
}

impl Lane {
    /// Has the window with a position of the sequence here or on its way; without `must`, only if there is memory for it.
    fn begin(&mut self, dataset: &Dataset, order: &Chunked, at: u64, must: bool) -> Result<()> {
        let wanted = order.window_of(at);
        let is_it = |number: u64| number == wanted;
        let known = self.here.as_ref().is_some_and(|(window, _)| is_it(window.shape.number))
            || self.next.as_ref().is_some_and(|(window, _)| is_it(window.shape.number));
        if !known {
            self.next = None;
            self.next = match begun(dataset, order.window(wanted)) {
                Err(Error::OverBudget { .. }) if !must => None,
                found => Some(found?),
            };
        }
        Ok(())
    }

    /// The window with a position of the sequence. The one after it is read from then on, if the lane has it and memory is free.
    fn window(
        &mut self,
        dataset: &Dataset,
        order: &Chunked,
        number: u64,
        at: u64,
        patience: Duration,
        must: bool,
    ) -> Result<Option<(&Stretches, &Arc<Gathered>)>> {
        let wanted = order.window_of(at);
        if self.here.as_ref().is_none_or(|(window, _)| window.shape.number != wanted) {
            self.begin(dataset, order, at, false)?;
            if self.next.is_none() && must {
                // What was here is nobody's any more.
                self.here = None;
                self.begin(dataset, order, at, true)?;
            }
            if !self.next.as_ref().is_some_and(|(_, ticket)| ticket.wait_timeout(patience)) {
                return Ok(None);
            }
            let (window, ticket) = self.next.take().expect("asked above");
            self.here = None;
            self.here = Some((window, Arc::new(ticket.wait()?)));
            if order.has_more(number, wanted) {
                self.next = begun(dataset, order.window(wanted + 1)).ok();
            }
        }
        Ok(self.here.as_ref().map(|(window, gathered)| (window, gathered)))
    }
}

/// Begins to read a window.
fn begun(dataset: &Dataset, shape: Window) -> Result<(Stretches, Ticket<Gathered>)> {
    let (mut begins, mut of_chunks, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for &(first, count) in &shape.chunks {
        of_chunks.push(begins.len() as u32);
        for (first, start, len) in dataset.body().stretches(first, count) {
            begins.push((first, start));
            items.push(dataset.body().item(start, len));
        }
    }
    if begins.len() == shape.chunks.len() {
        of_chunks.clear();
    }
    let options = GatherOptions { cache: false, gap_bytes: 0, ..GatherOptions::default() };
    let ticket = dataset.session().engine().gather(&items, &options)?;
    Ok((Stretches { shape, begins, of_chunks }, ticket))
}
