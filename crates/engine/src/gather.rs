//! Many small pieces at once: look-ups in a table, samples of an epoch, rows of a sparse matrix.
//!
//! A batch is planned on the caller's thread and read by the engine's thread, with all requests in
//! flight at once and completed in any order; the caller is woken once. To keep a device busy from
//! one batch to the next, start the next batch before waiting for the first.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gather_layout::{GatherLayout, Item, Shape};
use crate::gathering::{Arrived, Failure, Gathering, Inbox, Pieces, Sink};
use crate::memory::{FrameUse, Reservation};
use crate::stream::Awaited;
use crate::ticket::{self, Ticket};

/// Bytes of the frames of [`Engine::gather_into`] in flight at once: a full queue of 4 KiB reads
/// takes 1 MiB; of 64 KiB reads, fewer saturate a device.
const WINDOW_BYTES: u64 = 8 << 20;

/// Enough to fill a device's queue, in 16 KiB of tables.
const ITEMS_MIN: usize = 128;

/// How often [`Engine::gather_into`] calls `go_on` while it waits.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Options of a gather.
#[derive(Clone, Copy, Debug)]
pub struct GatherOptions {
    /// Items with at most this many unwanted bytes between them are read by one request.
    pub gap_bytes: u64,
    /// Longest request made of several items.
    pub request_bytes: u64,
    /// Keep items in unused memory, and look them up there first.
    pub cache: bool,
}

impl Default for GatherOptions {
    /// Up to about 8 KiB, reading a gap costs less than another request; at 128 KiB the cost of a
    /// request is negligible.
    fn default() -> GatherOptions {
        GatherOptions {
            gap_bytes: 8 << 10,
            request_bytes: 128 << 10,
            cache: true,
        }
    }
}

/// The bytes of a batch. Its memory counts against the budget until it is dropped.
pub struct Gathered {
    layout: Arc<GatherLayout>,
    pieces: Pieces,
}

impl Gathered {
    pub(crate) fn new(layout: Arc<GatherLayout>, pieces: Pieces) -> Gathered {
        Gathered { layout, pieces }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// True without items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of an item, in the frame into which they were read. Their address has the
    /// alignment of the item's offset, up to 64.
    ///
    /// # Panics
    /// Without such an item.
    pub fn get(&self, item: usize) -> &[u8] {
        match self.layout.find(item) {
            Some((read, range)) => &self.pieces.bufs[read - self.pieces.first_read][range],
            None => &[],
        }
    }

    /// All items, in the order of the call.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|item| self.get(item))
    }

    /// Copies all items, one after another.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they do not fit.
    pub fn copy_to(&self, mut destination: &mut [u8]) -> Result<()> {
        check_destination(self.iter().map(<[u8]>::len).sum(), destination)?;
        for item in self.iter() {
            let (head, rest) = destination.split_at_mut(item.len());
            head.copy_from_slice(item);
            destination = rest;
        }
        Ok(())
    }

    /// Hands out the items that came with these pieces.
    fn scatter(&self, mut put: impl FnMut(usize, &[u8])) {
        for (index, piece) in self.pieces.bufs.iter().enumerate() {
            for &item in self.layout.items_of(self.pieces.first_read + index) {
                let (_, range) = self
                    .layout
                    .find(item as usize)
                    .expect("items of a request are in it");
                put(item as usize, &piece[range]);
            }
        }
    }
}

pub(crate) fn total_len(items: &[Item<'_>]) -> usize {
    items
        .iter()
        .map(|item| item.len)
        .fold(0, usize::saturating_add)
}

/// Bytes of tables that [`Engine::gather_into`] holds for `items` items.
fn table_bytes(items: usize) -> u64 {
    GatherLayout::overhead_bytes(items) + (items * size_of::<usize>()) as u64
}

pub(crate) fn check_destination(len: usize, destination: &[u8]) -> Result<()> {
    match len <= destination.len() {
        true => Ok(()),
        false => {
            let (len, object_len) = (len as u64, destination.len() as u64);
            Err(Error::OutOfRange {
                object: "the destination of a gather".into(),
                offset: 0,
                len,
                object_len,
            })
        }
    }
}

/// A batch whose items are used as they arrive. Iterates over the indices of items, each once, in
/// the order of arrival, and ends after an error. Dropping it cancels the items that have not
/// arrived.
pub struct Arrivals {
    layout: Arc<GatherLayout>,
    /// Dropped before `inbox`, which then holds the last references to its pieces.
    pieces: Pieces,
    inbox: Arc<Inbox>,
    fresh: VecDeque<usize>,
    /// Requests that failed alone.
    failed: HashMap<usize, Error>,
    over: bool,
}

impl Arrivals {
    /// Number of items of the batch.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// True without items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of an item; `None` before the iterator has returned it, or another item of the
    /// same request.
    ///
    /// # Panics
    /// Without such an item.
    pub fn get(&self, item: usize) -> Option<&[u8]> {
        match self.layout.find(item) {
            Some((read, range)) => self.pieces.bufs[read].get(range),
            None => Some(&[]),
        }
    }

    /// Why the request of an item failed, in a gather whose requests fail alone; `None` for an item
    /// that has arrived or has yet to arrive.
    ///
    /// # Panics
    /// Without such an item.
    pub fn failure(&self, item: usize) -> Option<&Error> {
        let (read, _) = self.layout.find(item)?;
        self.failed.get(&read)
    }

    /// Waits for at most `timeout`; true if the next item, the end or an error is available.
    pub fn ready_within(&self, timeout: Duration) -> bool {
        self.over || !self.fresh.is_empty() || self.inbox.ready_within(timeout)
    }

    /// Readable while the next item, the end or an error can be had without waiting; `None` when
    /// the system gave no descriptor. It is the batch's: closed with it, and not to be read from.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inbox.lock().has_fresh = !self.fresh.is_empty();
        self.inbox.fd()
    }

    /// Waits for further items; false at the end.
    fn receive(&mut self) -> Result<bool> {
        // There is nothing fresh, or this would not be asked for.
        let mut state = self.inbox.wait_while(|state| {
            state.has_fresh = false;
            state.is_quiet()
        });
        let items_of = |read: u32| self.layout.items_of(read as usize).iter();
        for (read, piece) in state.pieces.drain(..) {
            self.pieces.bufs[read as usize] = piece;
            self.fresh.extend(items_of(read).map(|&item| item as usize));
        }
        for (read, error) in state.failed.drain(..) {
            self.failed.insert(read as usize, error);
            self.fresh.extend(items_of(read).map(|&item| item as usize));
        }
        state.has_fresh = !self.fresh.is_empty();
        match state.end.as_mut() {
            Some(end) if self.fresh.is_empty() => std::mem::replace(end, Ok(())).map(|()| false),
            _ => Ok(true),
        }
    }
}

impl Iterator for Arrivals {
    type Item = Result<usize>;

    fn next(&mut self) -> Option<Result<usize>> {
        if let Some(item) = self.fresh.pop_front() {
            if self.fresh.is_empty() {
                self.inbox.lock().has_fresh = false;
            }
            return Some(Ok(item));
        }
        if self.over {
            return None;
        }
        match self.receive() {
            Ok(true) => self.next(),
            Ok(false) => {
                self.over = true;
                None
            }
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}

impl Engine {
    /// Reads a batch of items: deduplicated, sorted, with neighbours in one request.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use outcore_device::MemoryDevice;
    /// use outcore_engine::{Config, Engine, Extent, GatherOptions, Item};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let extent = Extent::new("zeros", Arc::new(MemoryDevice::new("zeros", 8192)));
    /// let items = [7000, 10].map(|offset| Item { extent: &extent, offset, len: 100 });
    /// let gathered = engine.gather(&items, &GatherOptions::default())?.wait()?;
    /// assert_eq!((gathered.len(), gathered.get(1)), (2, &[0; 100][..]));
    /// let mut destination = [1; 200];
    /// engine.gather_into(&items, &mut destination, &GatherOptions::default(), || true)?;
    /// assert_eq!(destination, [0; 200]);
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Before any I/O: [`Error::OutOfRange`] for an item outside its extent, [`Error::OverBudget`]
    /// for a batch that does not fit into memory at once (see [`Engine::gather_into`]). The ticket
    /// returns [`Error::Device`].
    pub fn gather(&self, items: &[Item<'_>], options: &GatherOptions) -> Result<Ticket<Gathered>> {
        let (layout, floor, beside) = self.lay_out(items, options)?;
        let frames = 0..layout.frames.len();
        self.start_gather(
            &layout,
            frames,
            floor,
            beside,
            options.cache,
            FrameUse::Lent,
        )
    }

    /// As [`Engine::gather`], for items that are used as they arrive.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use outcore_device::MemoryDevice;
    /// use outcore_engine::{Config, Engine, Extent, GatherOptions, Item};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let extent = Extent::new("zeros", Arc::new(MemoryDevice::new("zeros", 8192)));
    /// let items = [7000, 10].map(|offset| Item { extent: &extent, offset, len: 100 });
    /// let arrivals = engine.gather_each(&items, &GatherOptions::default())?;
    /// assert_eq!(arrivals.len(), 2);
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::gather`].
    pub fn gather_each(&self, items: &[Item<'_>], options: &GatherOptions) -> Result<Arrivals> {
        self.gather_failing(items, options, Failure::EndsAll)
    }

    /// As [`Engine::gather_each`], but a request that fails ends only its own items: the iterator
    /// returns them too, and [`Arrivals::failure`] says why they are not there.
    ///
    /// # Errors
    /// As [`Engine::gather`], but for those of single requests.
    pub fn gather_alone(&self, items: &[Item<'_>], options: &GatherOptions) -> Result<Arrivals> {
        self.gather_failing(items, options, Failure::EndsItself)
    }

    fn gather_failing(
        &self,
        items: &[Item<'_>],
        options: &GatherOptions,
        failure: Failure,
    ) -> Result<Arrivals> {
        let (layout, floor, beside) = self.lay_out(items, options)?;
        let inbox = Arc::new(Inbox::new(Arrived::default()));
        let part = floor.part(floor.bytes());
        let frames = 0..layout.frames.len();
        let gathering = Gathering::new(
            Arc::clone(&layout),
            frames,
            part,
            beside,
            options.cache,
            FrameUse::Lent,
            Sink::Each(Arc::clone(&inbox)),
        )
        .failing(failure);
        let mut bufs = Vec::new();
        bufs.resize_with(layout.reads.len(), Default::default);
        self.with_handle(|handle, _| {
            let mailbox = handle.mailbox();
            handle.start(&mailbox, Box::new(gathering))?;
            let pieces = Pieces::new(0, bufs, mailbox, Some(floor));
            let fresh = layout.empty_items().collect();
            Ok(Arrivals {
                pieces,
                inbox,
                fresh,
                failed: HashMap::new(),
                layout: Arc::clone(&layout),
                over: false,
            })
        })
    }

    /// Reads items, one after another, into memory of the caller. The batch may be larger than the
    /// memory: the free budget limits only the part in flight at once.
    ///
    /// `go_on` is called every 50 ms or so; if it returns `false`, the call ends with
    /// [`Error::Cancelled`]. After an error the contents of `destination` are unspecified.
    ///
    /// # Errors
    /// As [`Engine::gather`]; [`Error::OutOfRange`] also if `destination` is too short,
    /// [`Error::OverBudget`] if the longest item does not fit.
    pub fn gather_into(
        &self,
        items: &[Item<'_>],
        destination: &mut [u8],
        options: &GatherOptions,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<()> {
        items
            .iter()
            .try_for_each(|item| item.extent.check(item.offset, item.len as u64))?;
        check_destination(total_len(items), destination)?;
        let start =
            |end: &mut usize, item: &Item<'_>| Some(std::mem::replace(end, *end + item.len));
        let mut rest = destination;
        for part in items.chunks(self.items_at_once()) {
            let (head, tail) = rest.split_at_mut(total_len(part));
            let starts: Vec<usize> = part.iter().scan(0, start).collect();
            self.gather_part(part, options, &mut go_on, |item, bytes| {
                head[starts[item]..][..bytes.len()].copy_from_slice(bytes);
            })?;
            rest = tail;
        }
        Ok(())
    }

    /// Reads items that are inside their extents, a part at a time, and hands out each.
    pub(crate) fn gather_parts(
        &self,
        items: &[Item<'_>],
        options: &GatherOptions,
        go_on: &mut dyn FnMut() -> bool,
        mut put: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut first = 0;
        for part in items.chunks(self.items_at_once()) {
            self.gather_part(part, options, go_on, |item, bytes| put(first + item, bytes))?;
            first += part.len();
        }
        Ok(())
    }

    /// A quarter of the memory for tables; the rest is for bytes.
    fn items_at_once(&self) -> usize {
        let at_once = self.budget().available() / 4 / table_bytes(1);
        usize::try_from(at_once)
            .unwrap_or(usize::MAX)
            .max(ITEMS_MIN)
    }

    fn gather_part(
        &self,
        items: &[Item<'_>],
        options: &GatherOptions,
        go_on: &mut dyn FnMut() -> bool,
        mut put: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let beside = table_bytes(items.len());
        drop(self.budget().reserve_floor("gather", beside)?);
        let window = (self.budget().available().saturating_sub(beside) / 2).min(WINDOW_BYTES);
        let mut shape = Shape::new(options.gap_bytes, options.request_bytes);
        shape.frame_bytes =
            ((window / 16).next_power_of_two() as usize).clamp(4096, shape.frame_bytes);
        shape.request_bytes = shape.request_bytes.min(shape.frame_bytes as u64);
        let layout = Arc::new(GatherLayout::new(items, shape)?);
        let longest = layout
            .frames
            .iter()
            .map(|frame| frame.bytes as u64)
            .max()
            .unwrap_or(0);
        let window = window.max(longest).min(layout.frames_bytes());
        let floor = self.budget().reserve_floor("gather", beside + window)?;
        // Frames that do not exist have nothing to wait for: this one only holds what the tables
        // take.
        let internal = FrameUse::Internal;
        let _tables =
            self.start_gather(&layout, 0..0, floor.part(beside), beside, false, internal)?;
        let (mut rounds, mut under_way, mut next) = (VecDeque::new(), 0, 0);
        let mut asked = Instant::now();
        loop {
            while let Some(frame) = layout
                .frames
                .get(next)
                .filter(|frame| under_way + frame.bytes as u64 <= window)
            {
                let part = floor.part(frame.bytes as u64);
                rounds.push_back((
                    frame.bytes as u64,
                    self.start_gather(&layout, next..next + 1, part, 0, options.cache, internal)?,
                ));
                under_way += frame.bytes as u64;
                next += 1;
            }
            let Some((bytes, ticket)) = rounds.pop_front() else {
                return Ok(());
            };
            while !ticket.wait_timeout(CHECK_EVERY) || asked.elapsed() > CHECK_EVERY {
                asked = Instant::now();
                if !go_on() {
                    return Err(Error::Cancelled);
                }
            }
            ticket.wait()?.scatter(&mut put);
            under_way -= bytes;
        }
    }

    /// The layout of a whole batch, its reservation, and the part of that for tables.
    fn lay_out(
        &self,
        items: &[Item<'_>],
        options: &GatherOptions,
    ) -> Result<(Arc<GatherLayout>, Reservation, u64)> {
        let beside = GatherLayout::overhead_bytes(items.len());
        // Tables that do not fit are not allocated.
        drop(self.budget().reserve_floor("gather", beside)?);
        let layout =
            GatherLayout::new(items, Shape::new(options.gap_bytes, options.request_bytes))?;
        let floor = self
            .budget()
            .reserve_floor("gather", beside + layout.frames_bytes())?;
        Ok((Arc::new(layout), floor, beside))
    }

    fn start_gather(
        &self,
        layout: &Arc<GatherLayout>,
        frames: std::ops::Range<usize>,
        floor: Reservation,
        beside: u64,
        cache: bool,
        for_use: FrameUse,
    ) -> Result<Ticket<Gathered>> {
        let shared = ticket::Shared::new();
        let gathering = Gathering::new(
            Arc::clone(layout),
            frames,
            floor,
            beside,
            cache,
            for_use,
            Sink::Whole(Some(Arc::clone(&shared))),
        );
        self.with_handle(|handle, _| {
            handle.start(&handle.mailbox(), Box::new(gathering))?;
            Ok(Ticket::new(shared, handle.poller()))
        })
    }
}
