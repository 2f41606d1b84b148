//! Many small pieces at once, the other way: blocks of memory go to places all over the extents.
//!
//! The caller has filled one buffer with the blocks, one behind another; all requests are in flight at
//! once. Blocks that follow each other in memory and on the device are written by one request. The buffer
//! comes back when all is written, to be filled again.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_device::{Buf, Completion, Op, Shared};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::extent_locks::{Claim, ExtentLock};
use crate::pump::{Activity, Core};
use crate::ticket::{self, Ticket};

/// Longest request made of several blocks.
const REQUEST_BYTES: usize = 128 << 10;

impl Engine {
    /// Writes blocks of `block_bytes` to these offsets of an extent, in the order in which they lie in
    /// `blocks`, whose memory is the caller's and counted by it. What was written is durable once the
    /// device was flushed. No offset may occur twice.
    ///
    /// A request that fails does not end the others: the error is that of the first. Dropping the ticket
    /// withdraws what no device has started.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use outcore_device::{Buf, MemoryDevice};
    /// use outcore_engine::{Config, Engine, Extent};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let extent = Extent::new("pages", Arc::new(MemoryDevice::new("pages", 81920)));
    /// let mut blocks = Buf::anonymous(8192).unwrap();
    /// blocks[..4096].fill(1);
    /// blocks[4096..].fill(2);
    /// let blocks = engine.scatter(&extent, blocks, 4096, &[40960, 0])?.wait()?;
    /// assert_eq!(blocks.len(), 8192);
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Before any I/O: [`Error::OutOfRange`]. The ticket returns [`Error::Device`].
    ///
    /// # Panics
    /// Where blocks and offsets are not whole sectors of the device, or the memory is too short.
    pub fn scatter(
        &self,
        extent: &Extent,
        blocks: Buf,
        block_bytes: usize,
        offsets: &[u64],
    ) -> Result<Ticket<Buf>> {
        let sector = u64::from(extent.sector());
        assert!(
            (block_bytes as u64).is_multiple_of(sector)
                && block_bytes * offsets.len() <= blocks.len(),
            "{} blocks of {block_bytes} in {} bytes, by sectors of {sector}",
            offsets.len(),
            blocks.len()
        );
        for &offset in offsets {
            extent.check(offset, block_bytes as u64)?;
            assert!(offset.is_multiple_of(sector), "a block at {offset}");
        }
        let ranges = offsets.iter().map(|&at| at..at + block_bytes as u64);
        let shared = ticket::Shared::new();
        let requests = joined(block_bytes, offsets);
        shared.expect(requests.len() as u64);
        let scattering = Scattering {
            extent_lock: ExtentLock::new(std::iter::once(Claim::new(extent, true, ranges))),
            extent: extent.clone(),
            requests,
            bytes: Some(blocks.freeze()),
            ticket: Arc::clone(&shared),
            in_flight: 0,
            is_submitted: false,
            error: None,
            has_withdrawn: false,
        };
        self.with_handle(|handle, _| {
            handle.start(&handle.mailbox(), Box::new(scattering))?;
            Ok(Ticket::new(shared, handle.poller()))
        })
    }
}

/// Where a request is in the memory, and where it goes.
struct Request {
    bytes: Range<usize>,
    offset: u64,
}

fn joined(block_bytes: usize, offsets: &[u64]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::with_capacity(offsets.len());
    for (number, &offset) in offsets.iter().enumerate() {
        let bytes = number * block_bytes..(number + 1) * block_bytes;
        match requests.last_mut() {
            Some(last)
                if last.offset + last.bytes.len() as u64 == offset
                    && last.bytes.len() + block_bytes <= REQUEST_BYTES =>
            {
                last.bytes.end = bytes.end;
            }
            _ => requests.push(Request { bytes, offset }),
        }
    }
    requests
}

struct Scattering {
    extent: Extent,
    extent_lock: ExtentLock,
    requests: Vec<Request>,
    /// None once the caller has it back.
    bytes: Option<Shared>,
    ticket: Arc<ticket::Shared<Buf>>,
    in_flight: usize,
    is_submitted: bool,
    error: Option<Error>,
    has_withdrawn: bool,
}

impl Scattering {
    fn submit(&mut self, core: &mut Core<'_>) {
        if !core.extent_locks.acquire(&mut self.extent_lock) {
            return;
        }
        self.is_submitted = true;
        core.memory.begins_to_write();
        let written = self
            .requests
            .iter()
            .map(|request| request.offset..request.offset + request.bytes.len() as u64);
        core.memory.writes(&self.extent, written);
        let bytes = self.bytes.as_ref().expect("kept until the end");
        for (token, request) in (0..).zip(&self.requests) {
            let part = bytes.slice(request.bytes.clone());
            core.submit(token, self.extent.device(), request.offset, Op::Write(part));
        }
        self.in_flight = self.requests.len();
    }
}

impl Activity for Scattering {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        if self.ticket.cancelled.load(Ordering::Acquire) {
            self.error.get_or_insert(Error::Cancelled);
        }
        match &self.error {
            None if !self.is_submitted => self.submit(core),
            Some(Error::Cancelled | Error::Closed) if self.in_flight > 0 && !self.has_withdrawn => {
                self.has_withdrawn = true;
                core.withdraw();
            }
            _ => {}
        }
        if self.in_flight > 0 || (!self.is_submitted && self.error.is_none()) {
            return false;
        }
        core.extent_locks.leave_line(&mut self.extent_lock);
        core.extent_locks.release(&mut self.extent_lock);
        let bytes = self.bytes.take().expect("given back once").try_thaw();
        let bytes = bytes.unwrap_or_else(|_| unreachable!("every request has ended"));
        self.ticket.fill(self.error.take().map_or(Ok(bytes), Err));
        true
    }

    fn complete(&mut self, _: &mut Core<'_>, _: u32, completion: Completion) {
        self.in_flight -= 1;
        self.ticket.advance(1);
        let Completion { op, result, .. } = completion;
        drop(op);
        if let Err(source) = result {
            let object = self.extent.name().to_owned();
            self.error.get_or_insert(Error::Device { object, source });
        }
    }

    fn receive(&mut self, _: &mut Core<'_>, _: Box<dyn Any + Send>) {}

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// If the engine ends, or its thread panics, a waiting caller is told.
impl Drop for Scattering {
    fn drop(&mut self) {
        self.ticket.fill(Err(Error::Closed));
    }
}
