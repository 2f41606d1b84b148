//! Writing in order, behind the caller.
//!
//! The caller fills frames; the engine writes them while the caller fills the next. When all are in
//! flight, the caller waits for the device. Blocks are cut at sectors of the device, so only the
//! first and the last sector of a stream can contain bytes of others; those two are merged with the
//! device's content.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use outcore_device::{Buf, Completion, Op, Shared};

use crate::edges::{Split, split};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::extent_locks::{Claim, ExtentLock};
use crate::memory::{Account, FrameUse, Reservation};
use crate::pump::{Activity, Core, Mailbox};
use crate::region::ExtentRef;
use crate::sectors::{Sectors, Transfer};
use crate::stream::{Awaited, Between, Frames, StreamOptions, Supply};

/// Bytes for shared sectors: the two at the ends, and the device's content to merge with.
const EDGE_BYTES: u64 = 64 << 10;

/// Token of requests for shared sectors.
const SECTOR_TOKENS: u32 = 1 << 31;

struct State {
    /// Frames to fill.
    free: Vec<Buf>,
    /// Blocks to write.
    full: VecDeque<Full>,
    /// The first error.
    error: Option<Error>,
    /// The caller has one that it fills.
    begun: bool,
    /// No block comes after those in `full`.
    finishing: bool,
    /// All blocks are written.
    done: bool,
    /// The caller has dropped the stream.
    closed: bool,
    /// The engine's half has ended.
    over: bool,
}

impl Awaited for State {
    fn is_quiet(&self) -> bool {
        let waits = if self.finishing {
            !self.done
        } else {
            !self.begun && self.free.is_empty()
        };
        waits && self.error.is_none()
    }
}

struct Full {
    frame: Buf,
    /// Position of the frame on the device.
    base: u64,
    /// First byte of it to write.
    from: usize,
    to: usize,
}

/// Writes to an extent, in order.
///
/// Dropping it waits for nothing: filled blocks are still written, the block in progress is
/// discarded.
pub struct WriteStream {
    between: Arc<Between<State>>,
    mailbox: Mailbox,
    floor: Option<Reservation>,
    extent: Extent,
    current: Option<Full>,
    frame_bytes: usize,
    position: u64,
    /// Whether the frames are memory of the caller.
    has_given: bool,
}

impl WriteStream {
    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Continues at another offset, and sends the bytes filled so far to the device.
    ///
    /// # Errors
    /// As [`buffer`](WriteStream::buffer).
    pub fn go_on_at(&mut self, position: u64) -> Result<()> {
        self.position = position;
        match self.current.take() {
            Some(current) if current.to > current.from => {
                self.current = Some(current);
                self.send(false)
            }
            Some(Full { frame, .. }) => {
                self.current = Some(self.full(frame));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Memory for the next bytes, at least one byte; [`advance`](WriteStream::advance) tells how
    /// many of them were filled. Waits if every frame is in flight.
    ///
    /// # Errors
    /// The first error of this stream, at this and every later call. [`Error::OutOfRange`] at the
    /// end of the extent.
    pub fn buffer(&mut self) -> Result<&mut [u8]> {
        self.extent.check(self.position, 1)?;
        let state = self.between.lock();
        if let Some(error) = &state.error {
            return Err(error.again());
        }
        if state.finishing {
            return Err(Error::Closed);
        }
        drop(state);
        if self.current.is_none() {
            self.current = Some(self.begin()?);
        }
        let left = self.extent.len() - self.position;
        let Full { frame, to, .. } = self.current.as_mut().expect("begun above");
        let end = frame
            .len()
            .min(to.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
        Ok(&mut frame[*to..end])
    }

    fn begin(&mut self) -> Result<Full> {
        let mut state = self.between.wait_while(|state| state.is_quiet());
        if let Some(error) = &state.error {
            return Err(error.again());
        }
        let frame = state.free.pop().expect("waited for");
        state.begun = true;
        drop(state);
        Ok(self.full(frame))
    }

    /// A frame ready to be written.
    fn full(&self, frame: Buf) -> Full {
        let lead = self.position % u64::from(self.extent.sector());
        Full {
            frame,
            base: self.position - lead,
            from: lead as usize,
            to: lead as usize,
        }
    }

    /// Counts the first `len` bytes of [`buffer`](WriteStream::buffer) as filled. A full block is
    /// sent to the device.
    ///
    /// # Errors
    /// As [`buffer`](WriteStream::buffer).
    ///
    /// # Panics
    /// When the buffer is shorter.
    pub fn advance(&mut self, len: usize) -> Result<()> {
        let room = if len == 0 { 0 } else { self.buffer()?.len() };
        assert!(len <= room, "{len} bytes of a buffer of {room}");
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.to += len;
        self.position += len as u64;
        if current.to < self.frame_bytes {
            return Ok(());
        }
        self.send(false)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`buffer`](WriteStream::buffer); [`Error::OutOfRange`] before any of them is copied.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.extent.check(self.position, bytes.len() as u64)?;
        while !bytes.is_empty() {
            let buffer = self.buffer()?;
            let len = buffer.len().min(bytes.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            self.advance(len)?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// Waits for at most `timeout`; true if [`buffer`](WriteStream::buffer) would not wait.
    pub fn ready_within(&self, timeout: Duration) -> bool {
        self.between.ready_within(timeout)
    }

    /// Readable while [`buffer`](WriteStream::buffer) would not wait or, after
    /// [`end`](WriteStream::end), [`finish`](WriteStream::finish); `None` when the system gave no
    /// descriptor. It is the stream's: closed with it, and not to be read from.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.between.fd()
    }

    fn send(&mut self, finishing: bool) -> Result<()> {
        let mut state = self.between.lock();
        state.finishing |= finishing;
        state.begun = false;
        state.full.extend(self.current.take());
        let result = state
            .error
            .as_ref()
            .map_or(Ok(()), |error| Err(error.again()));
        drop(state);
        self.mailbox.wake();
        result
    }

    /// Sends the rest on its way, and nothing comes after it: what is left is to
    /// [`finish`](WriteStream::finish), which need not wait once the stream is
    /// [ready](WriteStream::ready_within).
    ///
    /// # Errors
    /// The first one of this stream.
    pub fn end(&mut self) -> Result<()> {
        self.send(true)
    }

    /// Writes the rest and waits until the device has taken everything. It is durable once the
    /// device was flushed.
    ///
    /// # Errors
    /// The first error of this stream.
    pub fn finish(mut self) -> Result<()> {
        self.send(true)?;
        let state = self.between.wait_while(|state| state.is_quiet());
        state
            .error
            .as_ref()
            .map_or(Ok(()), |error| Err(error.again()))
    }
}

impl Drop for WriteStream {
    fn drop(&mut self) {
        let mut state = self.between.lock();
        state.closed = true;
        state
            .free
            .extend(self.current.take().map(|current| current.frame));
        drop(state);
        // Transfers in flight keep their memory charged until they are drained.
        self.floor = None;
        self.mailbox.wake();
        if self.has_given {
            // From here on the caller may reuse its frames.
            drop(self.between.wait_while(|state| !state.over));
        }
    }
}

impl Engine {
    /// Writes from an offset on, in order, behind the caller.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use outcore_device::MemoryDevice;
    /// use outcore_engine::{Config, Engine, Extent, StreamOptions};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let extent = Extent::new("numbers", Arc::new(MemoryDevice::new("numbers", 81920)));
    /// let mut stream = engine.write_stream(&extent, 0, StreamOptions { block_bytes: 8192, ahead: 2 })?;
    /// stream.write(&[7; 20_000])?;
    /// assert_eq!(stream.position(), 20_000);
    /// stream.finish()?;
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Before any I/O: [`Error::OverBudget`] if the memory for `ahead` blocks is not free,
    /// [`Error::OutOfRange`].
    pub fn write_stream(
        &self,
        extent: &Extent,
        offset: u64,
        options: StreamOptions,
    ) -> Result<WriteStream> {
        self.write_stream_with(extent, offset, options, Supply::Reserved)
    }

    /// As [`Engine::write_stream`], with a choice of where frames come from. A contiguous write
    /// then begins and ends at a block of the device.
    ///
    /// # Errors
    /// As [`Engine::write_stream`]; [`Error::Frames`].
    pub fn write_stream_with(
        &self,
        extent: &Extent,
        offset: u64,
        options: StreamOptions,
        supply: Supply,
    ) -> Result<WriteStream> {
        let StreamOptions { block_bytes, ahead } = options.checked();
        extent.check(offset, 0)?;
        let longest = usize::try_from(extent.len() - offset)
            .unwrap_or(usize::MAX)
            .max(1);
        // At most as much memory as there are bytes to write.
        let unit = extent.sector() as usize;
        let frame_bytes = block_bytes
            .min(longest.next_multiple_of(unit) + unit)
            .next_multiple_of(unit);
        let frame_bytes =
            (crate::frame_size::frame_bytes(frame_bytes) as usize).next_multiple_of(unit);
        let ahead = ahead.min(longest / frame_bytes + 2);
        let has_edges = unit > 1 && matches!(supply, Supply::Reserved);
        let beside_bytes = if has_edges {
            EDGE_BYTES.max(4 * unit as u64)
        } else {
            0
        };
        let mut frames = supply.frames(frame_bytes, ahead, extent)?;
        let needed = frames.floor_bytes().saturating_add(beside_bytes);
        let floor = self
            .budget()
            .reserve_floor(&format!("a stream to {}", extent.name()), needed)?;
        let given = std::mem::take(&mut frames.given);
        let given_bytes = given.iter().map(|frame| frame.len() as u64).sum();
        let state = State {
            free: given,
            full: VecDeque::new(),
            error: None,
            begun: false,
            finishing: false,
            done: false,
            closed: false,
            over: false,
        };
        let between = Arc::new(Between::new(state));
        let writer = Writer {
            between: Arc::clone(&between),
            extent: extent.clone(),
            taken: if given_bytes > 0 { frames.most } else { 0 },
            frames,
            beside_bytes,
            given_bytes,
            account: Account::new(floor.part(needed)),
            extent_lock: ExtentLock::new(std::iter::once(claim(extent, offset))),
            locked_from: offset,
            blocks: Vec::new(),
            sectors: Sectors::new(beside_bytes),
            requests: 0,
            started: false,
            error: None,
            closing: false,
        };
        self.with_handle(|handle, _| {
            let mailbox = handle.mailbox();
            handle.start(&mailbox, Box::new(writer))?;
            Ok(WriteStream {
                between,
                mailbox,
                floor: Some(floor),
                extent: extent.clone(),
                current: None,
                frame_bytes,
                position: offset,
                has_given: given_bytes > 0,
            })
        })
    }
}

/// All that a stream may write which begins at `from`.
fn claim(extent: &Extent, from: u64) -> Claim {
    Claim::new(extent, true, std::iter::once(from..extent.len()))
}

/// The engine's half.
struct Writer {
    between: Arc<Between<State>>,
    extent: Extent,
    frames: Frames,
    beside_bytes: u64,
    /// Bytes of frames that are memory of the caller.
    given_bytes: u64,
    /// Number of frames taken and not yet returned.
    taken: usize,
    account: Account,
    extent_lock: ExtentLock,
    /// The lock is for what lies from here on.
    locked_from: u64,
    /// Blocks on their way; tokens are places here.
    blocks: Vec<Option<Shared>>,
    sectors: Sectors,
    requests: usize,
    started: bool,
    error: Option<Error>,
    closing: bool,
}

impl Writer {
    fn take_frames(&mut self, core: &mut Core<'_>) {
        let beside_bytes = self.beside_bytes + self.given_bytes;
        if !self.started && core.memory.has_room(beside_bytes) {
            core.memory.hold(&mut self.account, beside_bytes);
            self.started = true;
        }
        self.frames.join(core.memory);
        let allowed = self.frames.allowed(core.memory);
        // Memory that others have reserved is returned as soon as it is free.
        while core.memory.is_owed(&self.account) || self.taken > allowed {
            let Some(frame) = self.between.lock().free.pop() else {
                break;
            };
            core.memory.give(&mut self.account, frame);
            self.taken -= 1;
        }
        // If memory is shared, takes another frame only when all others are in flight.
        let is_eager = !self.frames.has_quota();
        while self.started
            && self.taken < allowed
            && self.error.is_none()
            && (is_eager || self.between.lock().free.is_empty())
        {
            match core
                .memory
                .take(&mut self.account, self.frames.bytes, FrameUse::Lent)
            {
                Ok(Some(frame)) => {
                    self.taken += 1;
                    self.offer(frame);
                }
                Ok(None) => return,
                Err(source) => {
                    self.error = Some(Error::NoMemory {
                        bytes: self.frames.bytes as u64,
                        source,
                    })
                }
            }
        }
    }

    fn offer(&self, frame: Buf) {
        self.between.lock().free.push(frame);
        self.between.notify();
    }

    fn submit(&mut self, core: &mut Core<'_>) {
        loop {
            let next = self
                .between
                .lock()
                .full
                .front()
                .map(|full| full.base + full.from as u64);
            let Some(next) = next.filter(|_| self.error.is_none()) else {
                return;
            };
            if next < self.locked_from && self.extent_lock.is_held() {
                // The lock does not grow while others may wait for it: it is taken anew once what
                // is under way is done.
                return;
            }
            if next < self.locked_from {
                self.locked_from = 0;
                let all = claim(&self.extent, 0);
                core.extent_locks.widen(&mut self.extent_lock, all);
            }
            if !self.extent_lock.is_held() && !self.lock(core) {
                return;
            }
            let Some(full) = self.between.lock().full.pop_front() else {
                return;
            };
            self.submit_block(core, full);
        }
    }

    fn lock(&mut self, core: &mut Core<'_>) -> bool {
        let is_held = core.extent_locks.acquire(&mut self.extent_lock);
        if is_held {
            core.memory.begins_to_write();
        }
        is_held
    }

    fn submit_block(&mut self, core: &mut Core<'_>, full: Full) {
        let Full {
            mut frame,
            base,
            from,
            to,
        } = full;
        let unit = self.extent.sector();
        // The device writes whole sectors; bytes behind the end of the extent are zero.
        let whole = to.next_multiple_of(unit as usize);
        frame[to..whole].fill(0);
        let bytes = frame.freeze();
        let sectors = base..base + whole as u64;
        core.memory.writes(&self.extent, std::iter::once(sectors));
        let run = base + from as u64..base + to as u64;
        let Split { direct, edges } = split(&run, u64::from(unit), self.extent.len());
        let mut transfers = Vec::new();
        let put = edges.into_iter().flatten().try_for_each(|edge| {
            let part = &bytes[(edge.bytes.start - base) as usize..(edge.bytes.end - base) as usize];
            self.sectors
                .put(ExtentRef(0), unit, &edge, part, &mut transfers)
        });
        self.check_sectors(put);
        self.submit_sectors(core, transfers);
        if direct.is_empty() {
            return self.offer(thaw(bytes));
        }
        let place = self
            .blocks
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.blocks.push(None);
                self.blocks.len() - 1
            });
        let part = bytes.slice((direct.start - base) as usize..(direct.end - base) as usize);
        core.submit(
            place as u32,
            self.extent.device(),
            direct.start,
            Op::Write(part),
        );
        self.blocks[place] = Some(bytes);
        self.requests += 1;
    }

    fn submit_sectors(&mut self, core: &mut Core<'_>, transfers: Vec<Transfer>) {
        self.requests += transfers.len();
        for Transfer {
            token, offset, op, ..
        } in transfers
        {
            core.submit(SECTOR_TOKENS | token, self.extent.device(), offset, op);
        }
    }

    /// True if no shared sector is pending; otherwise sends them to the device, merged with its
    /// content.
    fn sectors_clear(&mut self, core: &mut Core<'_>) -> bool {
        if self.error.is_some() || self.sectors.is_clear(None) {
            return true;
        }
        let mut transfers = Vec::new();
        let flushed = self.sectors.flush(None, &mut transfers);
        self.check_sectors(flushed);
        self.submit_sectors(core, transfers);
        self.error.is_some()
    }

    fn check_sectors(&mut self, result: std::io::Result<()>) {
        if let Err(source) = result {
            self.error.get_or_insert(Error::NoMemory {
                bytes: self.beside_bytes,
                source,
            });
        }
    }

    /// Reports errors and the end. True if the caller has dropped the stream.
    fn report(&mut self) -> bool {
        let quiet = self.requests == 0;
        let mut state = self.between.lock();
        let done = quiet && state.finishing && state.full.is_empty();
        let news = (done && !state.done) || (self.error.is_some() && state.error.is_none());
        state.done |= done;
        if state.error.is_none() {
            state.error = self.error.as_ref().map(Error::again);
        }
        let closed = state.closed;
        drop(state);
        if news {
            self.between.notify();
        }
        closed
    }

    /// Returns all frames.
    fn give_back(&mut self, core: &mut Core<'_>) {
        let mut state = self.between.lock();
        let unsent: Vec<Buf> = state.full.drain(..).map(|full| full.frame).collect();
        for frame in unsent
            .into_iter()
            .chain(state.free.drain(..))
            .filter(|_| self.given_bytes == 0)
        {
            core.memory.give(&mut self.account, frame);
        }
        let held = self.account.held as usize;
        core.memory.uncharge(&mut self.account, held);
    }
}

impl Activity for Writer {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        self.take_frames(core);
        self.submit(core);
        let quiet = self.sectors_clear(core) && self.requests == 0;
        if quiet {
            // Between two bursts of writes the lock is free, so no run ever waits for this stream's
            // caller.
            core.extent_locks.release(&mut self.extent_lock);
        }
        if self.error.is_some() {
            core.extent_locks.leave_line(&mut self.extent_lock);
        }
        let closed = self.report();
        let unsent = self.error.is_none() && !self.between.lock().full.is_empty();
        let over = quiet && (closed && !unsent || self.closing);
        if over {
            self.give_back(core);
            self.frames.leave(core.memory);
        }
        over
    }

    fn complete(&mut self, core: &mut Core<'_>, token: u32, completion: Completion) {
        self.requests -= 1;
        let Completion { op, result, .. } = completion;
        if let Err(source) = result {
            let object = self.extent.name().to_owned();
            self.error.get_or_insert(Error::Device { object, source });
        }
        if token & SECTOR_TOKENS != 0 {
            let mut transfers = Vec::new();
            if self.error.is_none() {
                self.sectors
                    .completed(token & !SECTOR_TOKENS, op, &mut transfers);
            }
            return self.submit_sectors(core, transfers);
        }
        drop(op);
        let bytes = self.blocks[token as usize]
            .take()
            .expect("a block is written once");
        self.offer(thaw(bytes));
    }

    fn receive(&mut self, _: &mut Core<'_>, _: Box<dyn Any + Send>) {}

    fn fail(&mut self, error: Error) {
        self.closing = true;
        self.error.get_or_insert(error);
    }
}

fn thaw(bytes: Shared) -> Buf {
    bytes
        .try_thaw()
        .unwrap_or_else(|_| unreachable!("a block is written in one piece"))
}

/// If the engine ends, or its thread panics, a waiting caller is told.
impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.between.lock();
        state.error.get_or_insert(Error::Closed);
        state.over = true;
        drop(state);
        self.between.notify();
    }
}
