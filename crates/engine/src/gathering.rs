//! A gather in progress, on the engine's thread.
//!
//! Frames are taken as memory allows, each is cut into its requests, and all requests go to the
//! driver at once. After the last one the pieces go to the caller. The activity sleeps until the
//! caller has dropped them, because it has to return their frames.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_device::{Buf, Completion, Op, Whole};

use crate::error::{Error, Result};
use crate::extent_locks::{Claim, ExtentLock};
use crate::gather::Gathered;
use crate::gather_layout::GatherLayout;
use crate::memory::{Account, FrameUse, Reservation};
use crate::pump::{Activity, Core, Mailbox};
use crate::stream::{Awaited, Between};
use crate::ticket;
use crate::written::Dated;

/// Message: the caller has dropped its pieces.
struct Returned;

/// Bytes of requests, lent to the caller.
pub(crate) struct Pieces {
    /// Number of the request of the first piece.
    pub(crate) first_read: usize,
    pub(crate) bufs: Vec<Buf>,
    mailbox: Mailbox,
    floor: Option<Reservation>,
}

impl Pieces {
    pub(crate) fn new(
        first_read: usize,
        bufs: Vec<Buf>,
        mailbox: Mailbox,
        floor: Option<Reservation>,
    ) -> Pieces {
        Pieces {
            first_read,
            bufs,
            mailbox,
            floor,
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.bufs.clear();
        self.mailbox.send(Returned);
        self.floor = None;
    }
}

/// Where requests arrive one by one.
pub(crate) type Inbox = Between<Arrived>;

#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) pieces: Vec<(u32, Buf)>,
    /// Requests that failed alone.
    pub(crate) failed: Vec<(u32, Error)>,
    pub(crate) end: Option<Result<()>>,
    /// The caller has items that it has not looked at.
    pub(crate) has_fresh: bool,
}

impl Awaited for Arrived {
    fn is_quiet(&self) -> bool {
        !self.has_fresh && self.pieces.is_empty() && self.failed.is_empty() && self.end.is_none()
    }
}

fn deliver(inbox: &Inbox, fresh: &mut Vec<(u32, Buf)>, failed: &mut Vec<(u32, Error)>) {
    if !fresh.is_empty() || !failed.is_empty() {
        let mut arrived = inbox.lock();
        arrived.pieces.append(fresh);
        arrived.failed.append(failed);
        drop(arrived);
        inbox.notify();
    }
}

fn end(inbox: &Inbox, result: Result<()>) {
    inbox.lock().end.get_or_insert(result);
    inbox.notify();
}

/// Where results go.
pub(crate) enum Sink {
    /// Told once, of the whole batch. Emptied then, so that the result does not outlive a dropped
    /// ticket.
    Whole(Option<Arc<ticket::Shared<Gathered>>>),
    /// Told of each request as it completes.
    Each(Arc<Inbox>),
}

/// What a request that fails ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    EndsAll,
    /// Only its own items, of a gather whose requests arrive one by one.
    EndsItself,
}

pub(crate) struct Gathering {
    layout: Arc<GatherLayout>,
    /// The frames of the layout that this gather reads.
    frames: Range<usize>,
    reads: Range<usize>,
    account: Account,
    /// Bytes held besides the frames.
    beside_bytes: u64,
    /// Kept by the caller as long as the pieces.
    floor: Option<Reservation>,
    extent_lock: ExtentLock,
    cache: bool,
    for_use: FrameUse,
    sink: Sink,
    failure: Failure,
    started: bool,
    /// The extents of the layout with their versions before the first byte was read: bytes that
    /// change meanwhile are not cached under a new version.
    dated: Vec<Dated>,
    wholes: Vec<Whole>,
    bufs: Vec<Buf>,
    fresh: Vec<(u32, Buf)>,
    failed: Vec<(u32, Error)>,
    in_flight: usize,
    error: Option<Error>,
    /// Requests that no device had started were cancelled, because of the error.
    has_withdrawn: bool,
    /// The caller has the result or the error.
    settled: bool,
    /// The caller has dropped all pieces.
    returned: bool,
    closing: bool,
}

impl Gathering {
    pub(crate) fn new(
        layout: Arc<GatherLayout>,
        frames: Range<usize>,
        floor: Reservation,
        beside_bytes: u64,
        cache: bool,
        for_use: FrameUse,
        sink: Sink,
    ) -> Gathering {
        let reads = match layout.frames.get(frames.clone()) {
            Some([first, .., last]) => first.reads.start..last.reads.end,
            Some([only]) => only.reads.clone(),
            _ => 0..0,
        };
        let extent_lock = ExtentLock::new(Claim::of_reads(&layout, reads.clone()));
        let whole = matches!(sink, Sink::Whole(_));
        if let Sink::Whole(Some(ticket)) = &sink {
            ticket.expect(reads.len() as u64);
        }
        let mut bufs = Vec::new();
        bufs.resize_with(if whole { reads.len() } else { 0 }, Buf::default);
        Gathering {
            account: Account::new(floor.part(floor.bytes())),
            floor: whole.then_some(floor),
            layout,
            frames,
            reads,
            beside_bytes,
            extent_lock,
            cache,
            for_use,
            sink,
            failure: Failure::EndsAll,
            started: false,
            dated: Vec::new(),
            wholes: Vec::new(),
            bufs,
            fresh: Vec::new(),
            failed: Vec::new(),
            in_flight: 0,
            error: None,
            has_withdrawn: false,
            settled: false,
            returned: false,
            closing: false,
        }
    }

    pub(crate) fn failing(mut self, failure: Failure) -> Gathering {
        self.failure = failure;
        self
    }

    fn submit(&mut self, core: &mut Core<'_>) {
        if !self.started {
            if !core.memory.has_room(self.beside_bytes)
                || !core.extent_locks.acquire(&mut self.extent_lock)
            {
                return;
            }
            core.memory.hold(&mut self.account, self.beside_bytes);
            self.dated = self
                .layout
                .extents
                .iter()
                .map(|extent| (extent.id(), core.memory.date(extent)))
                .collect();
            self.started = true;
        }
        while !self.frames.is_empty() {
            let bytes = self.layout.frames[self.frames.start].bytes;
            match core.memory.take(&mut self.account, bytes, self.for_use) {
                Ok(Some(frame)) => self.submit_frame(core, frame),
                Ok(None) => return,
                Err(source) => {
                    self.error = Some(Error::NoMemory {
                        bytes: bytes as u64,
                        source,
                    });
                    return;
                }
            }
        }
    }

    fn submit_frame(&mut self, core: &mut Core<'_>, frame: Buf) {
        let layout = Arc::clone(&self.layout);
        let number = self.frames.next().expect("checked by the caller");
        let (whole, mut rest) = frame.lend();
        self.wholes.push(whole);
        let mut at = 0;
        for index in layout.frames[number].reads.clone() {
            let read = &layout.reads[index];
            drop(rest.split_to(read.at - at));
            at = read.at + read.len;
            let mut piece = rest.split_to(read.len);
            if self.cache && self.recall(core, index, &mut piece) {
                self.arrived(index, piece);
                continue;
            }
            let device = layout.extents[read.extent as usize].device();
            core.submit(
                (index - self.reads.start) as u32,
                device,
                read.offset,
                Op::Read(piece),
            );
            self.in_flight += 1;
        }
    }

    fn arrived(&mut self, read: usize, piece: Buf) {
        match &self.sink {
            Sink::Whole(ticket) => {
                self.bufs[read - self.reads.start] = piece;
                ticket.iter().for_each(|ticket| ticket.advance(1));
            }
            Sink::Each(_) => self.fresh.push((read as u32, piece)),
        }
    }

    /// Fills a request from cached items, if all of its items are cached.
    fn recall(&self, core: &mut Core<'_>, index: usize, piece: &mut [u8]) -> bool {
        self.layout.items_of(index).iter().all(|&item| {
            let (extent, offset, range) = self.find(index, item);
            core.memory.recall(extent.0, offset, &mut piece[range])
        })
    }

    fn remember(&self, core: &mut Core<'_>, index: usize, piece: &[u8]) {
        for &item in self.layout.items_of(index) {
            let (extent, offset, range) = self.find(index, item);
            core.memory.remember(extent, offset, &piece[range]);
        }
    }

    /// The extent of an item, its offset there, and its range in the request.
    fn find(&self, index: usize, item: u32) -> (Dated, u64, Range<usize>) {
        let read = &self.layout.reads[index];
        let (_, range) = self
            .layout
            .find(item as usize)
            .expect("items of a request are in it");
        (
            self.dated[read.extent as usize],
            read.offset + range.start as u64,
            range,
        )
    }

    fn is_cancelled(&self) -> bool {
        self.returned
            || matches!(&self.sink, Sink::Whole(Some(ticket)) if ticket.cancelled.load(Ordering::Acquire))
    }

    /// Delivers the result or the error to the caller.
    fn settle(&mut self, core: &mut Core<'_>) {
        self.settled = true;
        core.extent_locks.release(&mut self.extent_lock);
        let bufs = std::mem::take(&mut self.bufs);
        let result = self.error.take().map_or(Ok(()), Err);
        match &mut self.sink {
            Sink::Each(inbox) => end(inbox, result),
            Sink::Whole(ticket) => {
                // The reservation is released before the caller can see the error.
                let floor = self.floor.take().filter(|_| result.is_ok());
                self.returned |= result.is_err();
                let ticket = ticket.take().expect("settled once");
                ticket.fill(result.map(|()| {
                    let pieces = Pieces::new(self.reads.start, bufs, core.mailbox.clone(), floor);
                    Gathered::new(Arc::clone(&self.layout), pieces)
                }));
            }
        }
    }

    /// Returns the frames once no piece of them is referenced; true when that is done.
    fn take_back(&mut self, core: &mut Core<'_>) -> bool {
        if !self.returned {
            if self.closing {
                self.uncharge(core);
            }
            return self.closing;
        }
        if let Sink::Each(inbox) = &self.sink {
            inbox.lock().pieces.clear();
        }
        for whole in self.wholes.drain(..) {
            let frame = whole
                .reclaim()
                .unwrap_or_else(|_| unreachable!("every piece was dropped"));
            core.memory.give(&mut self.account, frame);
        }
        self.uncharge(core);
        true
    }

    fn uncharge(&mut self, core: &mut Core<'_>) {
        let held = self.account.held as usize;
        core.memory.uncharge(&mut self.account, held);
    }
}

impl Activity for Gathering {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        if self.settled {
            return self.take_back(core);
        }
        if self.is_cancelled() {
            self.error.get_or_insert(Error::Cancelled);
        }
        match self.error {
            None => self.submit(core),
            Some(_) if self.in_flight > 0 && !self.has_withdrawn => {
                self.has_withdrawn = true;
                core.withdraw();
            }
            Some(_) => {}
        }
        if let Sink::Each(inbox) = &self.sink {
            deliver(inbox, &mut self.fresh, &mut self.failed);
        }
        let over = self.error.is_some() || (self.started && self.frames.is_empty());
        if self.in_flight > 0 || !over {
            return false;
        }
        self.settle(core);
        self.take_back(core)
    }

    fn complete(&mut self, core: &mut Core<'_>, token: u32, completion: Completion) {
        self.in_flight -= 1;
        let index = self.reads.start + token as usize;
        let Completion {
            op: Op::Read(piece),
            result,
            ..
        } = completion
        else {
            unreachable!("only reads are submitted")
        };
        match result {
            Ok(()) => {
                if self.cache {
                    self.remember(core, index, &piece);
                }
                self.arrived(index, piece);
            }
            Err(source) => {
                let object = self.layout.extents[self.layout.reads[index].extent as usize]
                    .name()
                    .to_owned();
                let error = Error::Device { object, source };
                match self.failure {
                    Failure::EndsItself if !self.closing => {
                        self.failed.push((index as u32, error));
                    }
                    _ => _ = self.error.get_or_insert(error),
                }
            }
        }
    }

    fn receive(&mut self, _: &mut Core<'_>, message: Box<dyn Any + Send>) {
        self.returned |= message.is::<Returned>();
    }

    fn is_asleep(&self) -> bool {
        self.settled && !self.returned && !self.closing
    }

    fn fail(&mut self, error: Error) {
        self.closing = true;
        if !self.settled {
            self.error.get_or_insert(error);
        }
    }
}

/// If the engine ends, or its thread panics, a waiting caller is told.
impl Drop for Gathering {
    fn drop(&mut self) {
        match &self.sink {
            Sink::Whole(ticket) => ticket
                .iter()
                .for_each(|ticket| ticket.fill(Err(Error::Closed))),
            Sink::Each(inbox) => end(inbox, Err(Error::Closed)),
        }
    }
}
