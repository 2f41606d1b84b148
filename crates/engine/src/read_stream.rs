//! Reading in order, ahead of the caller.
//!
//! Blocks are requested in order as far ahead as there are frames, may arrive in any order, and are
//! handed out in order, each in the frame that it was read into. When a frame is dropped, on any
//! thread, it is requested again for the next block. Frames that the caller holds are part of the
//! stream's reservation, which grows with them if the budget allows.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outcore_device::{Buf, Completion, Locked, Op, Whole};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::extent_locks::{Claim, ExtentLock};
use crate::memory::{Account, FrameUse, Reservation};
use crate::pump::{Activity, Core, Mailbox};
use crate::stream::{Awaited, Between, Frames, Quota, StreamOptions, Supply, frame_for};

struct State {
    /// Blocks ready for the caller.
    filled: VecDeque<Filled>,
    /// Frames that the caller has dropped.
    returned: Vec<Buf>,
    /// Number of frames that the caller holds.
    lent: usize,
    /// Number of frames that are reserved.
    least: usize,
    /// No block comes after those in `filled`.
    end: Option<Result<()>>,
    /// The caller has dropped the stream.
    closed: bool,
    /// The caller has dropped the stream, and no transfer to its frames is in flight.
    quiet: bool,
    /// Number of returned frames at which the engine is woken.
    wake_at: usize,
    /// The caller has something to go on with besides blocks.
    has_rest: bool,
}

struct Filled {
    frame: Whole,
    /// The sectors that were read to the frame.
    bytes: Buf,
    block: BlockRequest,
}

impl Filled {
    fn into_frame(self) -> Buf {
        reclaim(self.frame, self.bytes)
    }
}

fn reclaim(frame: Whole, bytes: Buf) -> Buf {
    drop(bytes);
    frame
        .reclaim()
        .unwrap_or_else(|_| unreachable!("a frame is read in one piece"))
}

/// The position of a block, and its part of the sectors that are read for it.
struct BlockRequest {
    part: u32,
    /// In the extent.
    offset: u64,
    /// In the sectors.
    range: Range<usize>,
}

/// Shared by the caller's half and its blocks.
struct Pool {
    between: Arc<Between<State>>,
    mailbox: Mailbox,
    floor: Mutex<Reservation>,
}

impl Pool {
    fn take_back(&self, frame: Buf) {
        let mut state = self.between.lock();
        state.lent -= 1;
        state.returned.push(frame);
        let wake = state.closed || state.returned.len() >= state.wake_at;
        drop(state);
        if wake {
            self.mailbox.wake();
        }
    }
}

/// Blocks of one or more extents, in order. Dropping it cancels the requests in flight.
pub struct ReadStream {
    pool: Arc<Pool>,
    names: Vec<String>,
    frame_bytes: usize,
    most: usize,
    /// Whether the frames are memory of the caller.
    has_given: bool,
    over: bool,
}

/// One block, in the memory that it was read into, which counts as lent until this is dropped. May
/// be moved to and dropped on any thread.
pub struct Lent {
    /// Taken by drop only.
    filled: Option<Filled>,
    pool: Arc<Pool>,
}

impl Lent {
    fn filled(&self) -> &Filled {
        self.filled.as_ref().expect("taken by drop only")
    }

    /// Offset of the block in its extent.
    pub fn offset(&self) -> u64 {
        self.filled().block.offset
    }

    /// Index of its extent in the stream.
    pub fn part(&self) -> usize {
        self.filled().block.part as usize
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let filled = self.filled();
        &filled.bytes[filled.block.range.clone()]
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Lent({} bytes at {} of part {})",
            self.len(),
            self.offset(),
            self.part()
        )
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.filled
            .take()
            .into_iter()
            .for_each(|filled| self.pool.take_back(filled.into_frame()));
    }
}

impl ReadStream {
    /// Waits for at most `timeout`; true if the next block, the end or an error is available.
    pub fn ready_within(&self, timeout: Duration) -> bool {
        self.over || self.pool.between.ready_within(timeout)
    }

    /// Readable while the next block, the end or an error can be had without waiting; `None` when
    /// the system gave no descriptor. It is the stream's: closed with it, and not to be read from.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pool.between.fd()
    }

    /// For a caller that makes several things of a block: while it has one of them left, the stream
    /// counts as ready for [`ready_within`](ReadStream::ready_within) and [`fd`](ReadStream::fd).
    pub fn has_rest(&self, has_rest: bool) {
        self.pool.between.lock().has_rest = has_rest;
    }

    /// The next block, if it is available and fits into the reservation beside those that the
    /// caller holds.
    pub fn next_if_ready(&mut self) -> Option<Lent> {
        let mut state = self.pool.between.lock();
        let filled = if state.lent < state.least {
            state.filled.pop_front()
        } else {
            None
        };
        state.lent += usize::from(filled.is_some());
        drop(state);
        filled.map(|filled| Lent {
            filled: Some(filled),
            pool: Arc::clone(&self.pool),
        })
    }

    fn take(&mut self) -> Result<Option<Lent>> {
        self.reserve_one_more()?;
        let mut state = self.pool.between.wait_while(|state| state.must_wait());
        if let Some(filled) = state.filled.pop_front() {
            state.lent += 1;
            return Ok(Some(Lent {
                filled: Some(filled),
                pool: Arc::clone(&self.pool),
            }));
        }
        let end = state.end.as_mut().expect("waited for");
        self.over = true;
        std::mem::replace(end, Ok(())).map(|()| None)
    }

    /// Reserves the frames that the caller holds, and one more for the next block.
    fn reserve_one_more(&self) -> Result<()> {
        let mut state = self.pool.between.lock();
        if state.lent < state.least || state.filled.is_empty() && state.end.is_some() {
            return Ok(());
        }
        let mut floor = self.pool.floor.locked();
        if state.least == self.most || floor.grow("a block", self.frame_bytes as u64).is_err() {
            let bytes = (self.frame_bytes * state.least) as u64;
            return Err(Error::Lent {
                object: self.names.join(", "),
                bytes,
            });
        }
        state.least += 1;
        drop((floor, state));
        self.pool.mailbox.wake();
        Ok(())
    }
}

impl State {
    /// True when the caller can only wait for the next block.
    fn must_wait(&self) -> bool {
        self.filled.is_empty() && self.end.is_none() && self.lent < self.least
    }

    /// From here on, this many returned frames wake the engine. False when as many are there
    /// already: their return woke no thread.
    fn wakes_at(&mut self, frames: usize) -> bool {
        self.wake_at = frames;
        self.returned.len() < frames
    }
}

impl Awaited for State {
    fn is_quiet(&self) -> bool {
        !self.has_rest && self.must_wait()
    }
}

/// An error ends it, except for [`Error::Lent`]: the caller holds all blocks for which the stream
/// has memory, and would wait for itself.
impl Iterator for ReadStream {
    type Item = Result<Lent>;

    fn next(&mut self) -> Option<Result<Lent>> {
        if self.over {
            None
        } else {
            self.take().transpose()
        }
    }
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        let mut state = self.pool.between.lock();
        state.closed = true;
        let unused: Vec<Buf> = state.filled.drain(..).map(Filled::into_frame).collect();
        state.returned.extend(unused);
        let lent_bytes = (state.lent * self.frame_bytes) as u64;
        drop(state);
        // Transfers in flight keep their memory charged until they are drained; lent blocks stay
        // reserved until they are dropped.
        self.pool.floor.locked().shrink(lent_bytes);
        self.pool.mailbox.wake();
        if self.has_given {
            // From here on the caller may reuse its frames.
            drop(self.pool.between.wait_while(|state| !state.quiet));
        }
    }
}

impl Engine {
    /// Reads a range in blocks, in order, ahead of the caller. Each block has exactly `block_bytes`
    /// bytes, except a shorter last one.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use outcore_device::MemoryDevice;
    /// use outcore_engine::{Config, Engine, Extent, StreamOptions};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let extent = Extent::new("zeros", Arc::new(MemoryDevice::new("zeros", 81920)));
    /// let options = StreamOptions { block_bytes: 8192, ahead: 2 };
    /// let mut bytes = 0;
    /// for block in engine.read_stream(&extent, 0..81920, options)? {
    ///     bytes += block?.len();
    /// }
    /// assert_eq!(bytes, 81920);
    /// let both = [(extent.clone(), 0..4096), (extent, 8192..12288)];
    /// assert_eq!(engine.read_streams(&both, options)?.count(), 2);
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Before any I/O: [`Error::OverBudget`] if the memory for `ahead` blocks is not free,
    /// [`Error::OutOfRange`]. The iterator returns [`Error::Device`], after the blocks before it.
    pub fn read_stream(
        &self,
        extent: &Extent,
        range: Range<u64>,
        options: StreamOptions,
    ) -> Result<ReadStream> {
        self.read_streams(&[(extent.clone(), range)], options)
    }

    /// As [`Engine::read_stream`], for ranges of several extents, one after another. No block has
    /// bytes of two.
    ///
    /// # Errors
    /// As [`Engine::read_stream`].
    pub fn read_streams(
        &self,
        parts: &[(Extent, Range<u64>)],
        options: StreamOptions,
    ) -> Result<ReadStream> {
        self.read_streams_with(parts, options, Supply::Reserved)
    }

    /// As [`Engine::read_streams`], with a choice of where frames come from.
    ///
    /// # Errors
    /// As [`Engine::read_stream`]; [`Error::Frames`].
    pub fn read_streams_with(
        &self,
        parts: &[(Extent, Range<u64>)],
        options: StreamOptions,
        supply: Supply,
    ) -> Result<ReadStream> {
        let StreamOptions { block_bytes, ahead } = options.checked();
        for (extent, range) in parts {
            extent.check(range.start, range.end.saturating_sub(range.start))?;
        }
        let mut names: Vec<String> = parts
            .iter()
            .map(|(extent, _)| extent.name().to_owned())
            .collect();
        names.dedup();
        let longest = parts
            .iter()
            .map(|(_, range)| range.end.saturating_sub(range.start))
            .max()
            .unwrap_or(0);
        // At most as much memory as there are bytes to read.
        let block_bytes = block_bytes.min(usize::try_from(longest).unwrap_or(usize::MAX).max(1));
        let blocks = |(_, range): &(Extent, Range<u64>)| {
            range
                .end
                .saturating_sub(range.start)
                .div_ceil(block_bytes as u64)
        };
        let ahead = ahead.min(
            usize::try_from(parts.iter().map(blocks).sum::<u64>())
                .unwrap_or(usize::MAX)
                .max(1),
        );
        let frame_bytes = parts
            .iter()
            .map(|(extent, range)| frame_for(block_bytes, extent, range.start))
            .max()
            .unwrap_or(0);
        let frames = match parts.first() {
            Some((extent, _)) => supply.frames(frame_bytes, ahead, extent)?,
            None => Frames {
                bytes: 0,
                least: 1,
                most: 1,
                given: Vec::new(),
                quota: Quota::None,
            },
        };
        let (least, most, has_given) = (frames.least, frames.most, !frames.given.is_empty());
        let what = || format!("a stream over {}", names.join(", "));
        let floor = self.budget().reserve_floor(&what(), frames.floor_bytes())?;
        let (filled, returned) = (VecDeque::new(), Vec::new());
        let state = State {
            filled,
            returned,
            lent: 0,
            least,
            end: None,
            closed: false,
            quiet: false,
            wake_at: 1,
            has_rest: false,
        };
        let between = Arc::new(Between::new(state));
        let reader = Reader {
            between: Arc::clone(&between),
            extent_lock: ExtentLock::new(Claim::of_ranges(
                parts.iter().map(|(extent, range)| (extent, range.clone())),
            )),
            parts: parts.to_vec(),
            part: 0,
            position: parts.first().map_or(0, |(_, range)| range.start),
            block_bytes,
            account: Account::new(floor.part(frames.floor_bytes())),
            has_given,
            over: false,
            frames,
            free: Vec::new(),
            taken: 0,
            blocks: VecDeque::new(),
            first_block: 0,
            loading: 0,
            error: None,
            closing: false,
        };
        self.with_handle(|handle, _| {
            let mailbox = handle.mailbox();
            handle.start(&mailbox, Box::new(reader))?;
            let pool = Arc::new(Pool {
                between,
                mailbox,
                floor: Mutex::new(floor),
            });
            Ok(ReadStream {
                pool,
                names,
                frame_bytes,
                most,
                has_given,
                over: false,
            })
        })
    }
}

enum BlockState {
    Loading(Whole, BlockRequest),
    Filled(Filled),
    Failed(Error),
}

/// The engine's half.
struct Reader {
    between: Arc<Between<State>>,
    parts: Vec<(Extent, Range<u64>)>,
    /// Start of the next block.
    part: usize,
    position: u64,
    block_bytes: usize,
    frames: Frames,
    /// Whether the frames are memory of the caller.
    has_given: bool,
    account: Account,
    extent_lock: ExtentLock,
    free: Vec<Buf>,
    /// Number of frames taken and not yet returned.
    taken: usize,
    /// Blocks under way or filled, beginning with the one that the caller gets next.
    blocks: VecDeque<BlockState>,
    /// Number of the first block; tokens are block numbers.
    first_block: u32,
    loading: usize,
    /// Nothing more is requested: a transfer failed, or the stream was dropped.
    over: bool,
    error: Option<Error>,
    closing: bool,
}

impl Reader {
    /// Moves on to the next part if the current one is finished. True if there is more to read.
    fn has_more(&mut self) -> bool {
        while let Some((_, range)) = self.parts.get(self.part) {
            if self.over {
                break;
            }
            if self.position < range.end {
                return true;
            }
            self.part += 1;
            self.position = self
                .parts
                .get(self.part)
                .map_or(0, |(_, range)| range.start);
        }
        false
    }

    fn request(&mut self, core: &mut Core<'_>) {
        // A waiting writer gets the extent once the reads in flight have completed.
        while self.has_more()
            && (self.loading == 0 || !core.extent_locks.is_wanted(&self.extent_lock))
        {
            let Some(frame) = self.frame(core) else { break };
            if !core.extent_locks.acquire(&mut self.extent_lock) {
                self.free.push(frame);
                break;
            }
            let (extent, range) = &self.parts[self.part];
            let unit = u64::from(extent.sector());
            let end = range.end.min(self.position + self.block_bytes as u64);
            let from = self.position / unit * unit;
            let lead = (self.position - from) as usize;
            let block = BlockRequest {
                part: self.part as u32,
                offset: self.position,
                range: lead..lead + (end - self.position) as usize,
            };
            let token = self.first_block.wrapping_add(self.blocks.len() as u32);
            let (frame, mut bytes) = frame.lend();
            let bytes = bytes.split_to((end.next_multiple_of(unit) - from) as usize);
            core.submit(token, extent.device(), from, Op::Read(bytes));
            self.blocks.push_back(BlockState::Loading(frame, block));
            self.position = end;
            self.loading += 1;
        }
        if self.loading == 0 {
            // Between two bursts of reads the lock is released, so that no writer waits for the
            // caller of this stream.
            core.extent_locks.release(&mut self.extent_lock);
        }
    }

    fn frame(&mut self, core: &mut Core<'_>) -> Option<Buf> {
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        if self.taken >= self.frames.allowed(core.memory) {
            return None;
        }
        let frame = match self.frames.given.pop() {
            Some(frame) => {
                core.memory.hold(&mut self.account, frame.len() as u64);
                Some(frame)
            }
            None => core
                .memory
                .take(&mut self.account, self.frames.bytes, FrameUse::Lent)
                .unwrap_or_else(|source| {
                    self.error = Some(Error::NoMemory {
                        bytes: self.frames.bytes as u64,
                        source,
                    });
                    self.over = true;
                    None
                }),
        };
        self.taken += usize::from(frame.is_some());
        frame
    }

    /// Releases memory that others have reserved: free frames first, then prefetched blocks from
    /// the last one on, which are read again later.
    fn shed(&mut self, core: &mut Core<'_>) {
        while core.memory.is_owed(&self.account) || self.taken > self.frames.allowed(core.memory) {
            let Some(frame) = self.free.pop().or_else(|| self.let_go()) else {
                break;
            };
            self.taken -= 1;
            core.memory.give(&mut self.account, frame);
        }
    }

    /// The frame of the last prefetched block, unless a block behind it is in flight.
    fn let_go(&mut self) -> Option<Buf> {
        let filled = match self.blocks.back() {
            Some(BlockState::Filled(_)) => match self.blocks.pop_back() {
                Some(BlockState::Filled(filled)) => filled,
                _ => unreachable!("looked at above"),
            },
            Some(_) => return None,
            None => {
                let mut state = self.between.lock();
                let filled = state.filled.pop_back()?;
                // A block before an error is dropped, and the error is reported earlier.
                state.end = state.end.take().filter(Result::is_err);
                filled
            }
        };
        (self.part, self.position) = (filled.block.part as usize, filled.block.offset);
        Some(filled.into_frame())
    }

    /// Hands over the blocks that are next in order, and takes back returned frames. True if the
    /// caller has dropped the stream.
    fn exchange(&mut self, core: &mut Core<'_>) -> bool {
        let mut state = self.between.lock();
        self.free.append(&mut state.returned);
        let least = state.least;
        let before = (state.filled.len(), state.end.is_some());
        while self
            .blocks
            .front()
            .is_some_and(|block| !matches!(block, BlockState::Loading(..)))
        {
            let block = self.blocks.pop_front().expect("looked at above");
            self.first_block = self.first_block.wrapping_add(1);
            match block {
                BlockState::Filled(filled) if state.end.is_none() && !state.closed => {
                    state.filled.push_back(filled)
                }
                BlockState::Filled(filled) => self.free.push(filled.into_frame()),
                BlockState::Failed(error) => _ = state.end.get_or_insert(Err(error)),
                BlockState::Loading(..) => unreachable!("not taken"),
            }
        }
        let closed = state.closed;
        if state.end.is_none()
            && self.blocks.is_empty()
            && (self.over || self.part == self.parts.len())
        {
            state.end = Some(self.error.take().map_or(Ok(()), Err));
        }
        let news = before != (state.filled.len(), state.end.is_some());
        drop(state);
        if news {
            self.between.notify();
        }
        if least > self.frames.least {
            self.frames.least = least;
            core.memory
                .set_floor(&mut self.account, self.frames.floor_bytes());
        }
        closed
    }

    /// Returns the frames that are no longer needed. True when none is left.
    fn give_back(&mut self, core: &mut Core<'_>) -> bool {
        self.taken -= self.free.len();
        for frame in self.free.drain(..) {
            match self.has_given {
                true => core.memory.uncharge(&mut self.account, frame.len()),
                false => core.memory.give(&mut self.account, frame),
            }
        }
        self.frames.given.clear();
        if self.closing {
            // The others are held by the caller, whose blocks may outlive the engine.
            let held = self.account.held as usize;
            core.memory.uncharge(&mut self.account, held);
            self.taken = 0;
        }
        self.taken == 0
    }
}

impl Activity for Reader {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        self.frames.join(core.memory);
        loop {
            if self.exchange(core) {
                if self.loading > 0 && !self.over {
                    core.withdraw();
                }
                self.over = true;
                if self.loading == 0 {
                    // Blocks that the caller still holds do not need the extents.
                    self.parts.clear();
                    self.part = 0;
                    self.between.lock().quiet = true;
                    self.between.notify();
                }
            }
            self.shed(core);
            self.request(core);
            // With few requests in flight every frame counts; with many, completions wake the
            // engine often enough.
            let ahead = self.frames.most;
            let wake_at = if self.loading > ahead / 2 {
                (ahead / 4).max(1)
            } else {
                1
            };
            if self.between.lock().wakes_at(wake_at) {
                break;
            }
        }
        if self.loading > 0 || self.has_more() {
            return false;
        }
        self.exchange(core);
        let over = self.give_back(core);
        if over || self.parts.is_empty() {
            self.frames.leave(core.memory);
        }
        over
    }

    fn complete(&mut self, _: &mut Core<'_>, token: u32, completion: Completion) {
        self.loading -= 1;
        let state = &mut self.blocks[token.wrapping_sub(self.first_block) as usize];
        let BlockState::Loading(frame, block) =
            std::mem::replace(state, BlockState::Failed(Error::Cancelled))
        else {
            unreachable!("a block is read once")
        };
        let Completion {
            op: Op::Read(bytes),
            result,
            ..
        } = completion
        else {
            unreachable!("only reads are submitted")
        };
        match result {
            Ok(()) => {
                *state = BlockState::Filled(Filled {
                    frame,
                    bytes,
                    block,
                })
            }
            Err(source) => {
                let object = self.parts[block.part as usize].0.name().to_owned();
                // A read that was withdrawn because the engine closes fails for that reason.
                let ending = self.error.as_ref().map(Error::again);
                let error = ending.unwrap_or(Error::Device { object, source });
                *state = BlockState::Failed(error);
                self.over = true;
                self.free.push(reclaim(frame, bytes));
            }
        }
    }

    fn receive(&mut self, _: &mut Core<'_>, _: Box<dyn Any + Send>) {}

    fn fail(&mut self, error: Error) {
        self.closing = true;
        self.over = true;
        self.error.get_or_insert(error);
    }
}

/// If the engine ends, or its thread panics, a waiting caller is told.
impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.between.lock();
        state.end.get_or_insert(Err(Error::Closed));
        state.quiet = true;
        drop(state);
        self.between.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame that came back after the engine had looked, and before it asked to be woken for
    /// every frame, woke no thread: the engine slept, the caller kept its other blocks and waited
    /// for the next, and neither ever went on.
    #[test]
    fn a_frame_that_came_back_unnoticed_is_noticed() {
        let mut state = State {
            filled: VecDeque::new(),
            returned: Vec::new(),
            lent: 7,
            least: 8,
            end: None,
            closed: false,
            quiet: false,
            wake_at: 2,
            has_rest: false,
        };
        state.returned.push(Buf::anonymous(4096).unwrap());
        assert!(state.wakes_at(2), "its wake is still to come");
        assert!(!state.wakes_at(1), "its wake would have been due");
        state.returned.clear();
        assert!(state.wakes_at(1));
    }
}
