//! Blocks of a run in memory of the caller's: what lies there as on the device moves straight, the
//! rest by way of bounce buffers, whose bytes are copied here.
//!
//! The buffers are part of what the run holds from its beginning. Each transfer that waits for one
//! gets it once an earlier transfer has completed, and waits for nothing else.

use super::stores::sole;
use super::*;
use crate::given_block::{BounceBuffers, GivenLayout, Move};

/// Ranges of a device, in whole sectors.
type Ranges = Box<dyn Iterator<Item = Range<u64>> + Send>;

/// Transfers by way of bounce buffers.
#[derive(Default)]
pub(super) struct Bounces {
    spare: Vec<Buf>,
    /// Number of buffers, in use or not.
    count: usize,
    /// What is to be moved, by residency.
    waiting: VecDeque<(u32, Ranges)>,
    in_flight: HashMap<u32, Bounce>,
    next_token: u32,
    /// Of residencies that are loaded: the pieces of their memory that are copied to, by position.
    targets: HashMap<u32, Vec<(usize, Buf)>>,
}

struct Bounce {
    residency: u32,
    bytes: Range<u64>,
    /// The rest of the buffer, behind what is read.
    rest: Buf,
}

impl Bounces {
    /// Every piece of the memory of a residency may go back to it.
    pub(super) fn has_loaded(&mut self, residency: u32) {
        self.targets.remove(&residency);
    }

    /// A buffer, if one is free.
    fn take(&mut self, buffers: BounceBuffers) -> io::Result<Option<Buf>> {
        if self.spare.is_empty() && self.count < buffers.count {
            self.spare.push(Buf::not_inherited(buffers.len)?);
            self.count += 1;
        }
        Ok(self.spare.pop())
    }

    /// The next transfer that waits, with a buffer for it.
    fn next(&mut self, buffers: BounceBuffers) -> io::Result<Option<(u32, Range<u64>, Buf)>> {
        while !self.waiting.is_empty() {
            let Some(buffer) = self.take(buffers)? else {
                return Ok(None);
            };
            let (residency, ranges) = &mut self.waiting[0];
            match ranges.next() {
                Some(bytes) => return Ok(Some((*residency, bytes, buffer))),
                None => {
                    self.waiting.pop_front();
                    self.spare.push(buffer);
                }
            }
        }
        Ok(None)
    }

    fn send(&mut self, bounce: Bounce) -> u32 {
        let token = self.next_token;
        self.next_token = (token + 1) % BOUNCE_TOKENS;
        self.in_flight.insert(token, bounce);
        token
    }
}

/// Copies bytes of a device to their places. None of them crosses from one piece to the next: what
/// separates pieces is read straight.
fn scatter(place: &GivenLayout, bytes: &Range<u64>, read: &[u8], pieces: &mut [(usize, Buf)]) {
    for (part, at) in place.geometry.parts(bytes) {
        let from = (part.start - bytes.start) as usize;
        let len = (part.end - part.start) as usize;
        let piece = pieces.partition_point(|(start, _)| *start <= at) - 1;
        let (start, piece) = &mut pieces[piece];
        piece[at - *start..][..len].copy_from_slice(&read[from..from + len]);
    }
}

/// Copies bytes for a device from their places. What lies behind the end of the extent is zero.
fn collect(place: &GivenLayout, bytes: &Range<u64>, memory: &[u8], write: &mut [u8]) {
    write.fill(0);
    for (part, at) in place.geometry.parts(bytes) {
        let to = (part.start - bytes.start) as usize;
        let len = (part.end - part.start) as usize;
        write[to..to + len].copy_from_slice(&memory[at..at + len]);
    }
}

impl Run {
    /// Takes the memory that was given to the plan until the run ends.
    pub(super) fn take_given(&mut self) {
        if !self.schedule.given.begin() {
            self.error.get_or_insert(Error::Plan {
                plan: self.name.clone(),
                reason: "memory that it was given was taken back before it began".into(),
            });
        }
    }

    /// Admits a residency whose block has memory of its own; false while an earlier residency of
    /// the block is in it.
    pub(super) fn admit_given(&mut self, residency: u32) -> bool {
        let place = self.block_of(residency).given.as_ref();
        let Some(memory) = place.and_then(|place| place.borrow()) else {
            return false;
        };
        self.admitted += 1;
        self.residencies[residency as usize].state = State::Admitted(memory);
        self.to_load.push_back(residency);
        true
    }

    pub(super) fn start_given_load(
        &mut self,
        core: &mut Core<'_>,
        residency: u32,
        device: &Arc<dyn Device>,
        memory: Buf,
        place: &GivenLayout,
    ) {
        let (whole, mut rest) = memory.lend();
        let (mut at, mut straight, mut copies) = (0, 0, 0);
        let mut targets = Vec::new();
        for Move { bytes, is_direct } in place.geometry.loads() {
            if !is_direct {
                copies += 1;
                continue;
            }
            let (start, len) = (place.geometry.place(bytes.start), bytes.end - bytes.start);
            if start > at {
                targets.push((at, rest.split_to(start - at)));
            }
            at = start + len as usize;
            let piece = rest.split_to(len as usize);
            core.submit(residency, device, bytes.start, Op::Read(piece));
            straight += 1;
            self.count_moved(residency, len, 0);
        }
        self.begin_requests(straight);
        if copies > 0 {
            targets.push((at, rest));
            self.bounces.targets.insert(residency, targets);
            let copied = |step: Move| (!step.is_direct).then_some(step.bytes);
            let ranges = place.geometry.loads().filter_map(copied);
            self.bounces
                .waiting
                .push_back((residency, Box::new(ranges)));
        } else {
            drop((rest, targets));
        }
        if straight + copies == 0 {
            let memory = whole
                .reclaim()
                .unwrap_or_else(|_| unreachable!("no piece is out"));
            return self.becomes_ready(residency, memory.freeze());
        }
        self.residencies[residency as usize].state = State::Loading {
            whole,
            requests: straight + copies,
            since: Instant::now(),
        };
    }

    /// Has what cannot be stored straight from memory of the caller's wait for buffers; returns the
    /// number of requests.
    pub(super) fn bounce_store(&mut self, residency: u32) -> usize {
        let Some(place) = &self.block_of(residency).given else {
            return 0;
        };
        let ranges = || {
            let extent_bytes = self.area_of(residency).bytes;
            place.geometry.copied_stores(extent_bytes)
        };
        let (ranges, requests) = (ranges(), ranges().count());
        if requests > 0 {
            self.bounces
                .waiting
                .push_back((residency, Box::new(ranges)));
        }
        requests
    }

    /// Begins the transfers for which there are buffers.
    pub(super) fn bounce_what_may(&mut self, core: &mut Core<'_>) {
        let buffers = self.schedule.bounce_buffers;
        while self.error.is_none() {
            match self.bounces.next(buffers) {
                Ok(Some((residency, bytes, buffer))) => self.bounce(core, residency, bytes, buffer),
                Ok(None) => return,
                Err(source) => {
                    let bytes = buffers.len as u64;
                    self.error.get_or_insert(Error::NoMemory { bytes, source });
                }
            }
        }
    }

    fn bounce(&mut self, core: &mut Core<'_>, residency: u32, bytes: Range<u64>, mut buffer: Buf) {
        let block = self.block_of(residency);
        let (Backing::Device(extent), Some(place)) =
            (&self.area_of(residency).backing, &block.given)
        else {
            unreachable!("memory is given for blocks of devices")
        };
        let (device, offset) = (Arc::clone(extent.device()), bytes.start);
        let len = (bytes.end - bytes.start) as usize;
        let (op, rest) = match &self.residencies[residency as usize].state {
            State::Storing { bytes: memory, .. } => {
                collect(place, &bytes, memory, &mut buffer[..len]);
                (Op::Write(buffer.freeze().slice(0..len)), Buf::default())
            }
            _ => {
                let rest = buffer.split_off(len);
                (Op::Read(buffer), rest)
            }
        };
        match &op {
            Op::Read(_) => self.count_moved(residency, len as u64, 0),
            _ => self.count_moved(residency, 0, len as u64),
        }
        self.begin_requests(1);
        let token = self.bounces.send(Bounce {
            residency,
            bytes,
            rest,
        });
        core.submit(BOUNCE_TOKENS | token, &device, offset, op);
    }

    fn count_moved(&mut self, residency: u32, read: u64, written: u64) {
        let extent = self.block_of(residency).region.extent;
        let moved = &mut self.moved[extent.0 as usize];
        *moved = (moved.0 + read, moved.1 + written);
    }

    /// The residency that a request of a block is for.
    pub(super) fn residency_of(&self, token: u32) -> u32 {
        match token & BOUNCE_TOKENS {
            0 => token,
            _ => self.bounces.in_flight[&(token & !BOUNCE_TOKENS)].residency,
        }
    }

    /// The transfer of a bounce buffer has completed; returns its residency.
    pub(super) fn bounced(&mut self, token: u32, op: Op) -> u32 {
        let bounce = self.bounces.in_flight.remove(&token);
        let Bounce {
            residency,
            bytes,
            rest,
        } = bounce.expect("each completes once");
        let buffer = match op {
            Op::Read(mut read) => {
                // Not what an error has left.
                if self.error.is_none() {
                    let place = self.block_of(residency).given.clone();
                    let targets = self.bounces.targets.get_mut(&residency);
                    let (place, targets) = place.zip(targets).expect("it is loaded");
                    scatter(&place, &bytes, &read, targets);
                }
                read.try_join(rest)
                    .unwrap_or_else(|_| unreachable!("cut off above"));
                read
            }
            Op::Write(written) => sole(written),
            _ => unreachable!("blocks are read and written"),
        };
        self.bounces.spare.push(buffer);
        residency
    }

    /// At the end of the run: a residency gives the memory of its block back.
    pub(super) fn end_given(&mut self, residency: u32) {
        let state = &mut self.residencies[residency as usize].state;
        let memory = match std::mem::replace(state, State::Gone) {
            State::Admitted(memory) => memory,
            State::Ready(bytes) | State::Storing { bytes, .. } => sole(bytes),
            State::Loading { whole, .. } => {
                self.bounces.has_loaded(residency);
                whole
                    .reclaim()
                    .unwrap_or_else(|_| unreachable!("nothing is in flight"))
            }
            State::Away | State::Decoding | State::Lent | State::Gone => return,
        };
        if let Some(place) = &self.block_of(residency).given {
            place.put(memory);
        }
    }
}
