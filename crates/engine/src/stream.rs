//! Sequences of blocks: what reading and writing have in common.
//!
//! A stream has as many frames as it runs ahead, reserved when it is made. A frame is with the
//! device, with the engine, or with the caller; it goes round. The engine's half is an activity,
//! the caller's half a handle, and between them is a small state under a lock.
//!
//! Where many streams share a budget, a stream reserves a part of its frames only
//! ([`Supply::Elastic`]). The others it has until their memory is reclaimed: blocks that were
//! prefetched and not yet handed out are evicted, and read again later.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use outcore_device::{Buf, Locked};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::extent::Extent;
use crate::memory::{Memory, frame_bytes};

/// How a stream moves.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks in memory at once: under way, waiting, or lent. At least 1; below 2 device and caller
    /// take turns.
    pub ahead: usize,
}

impl Default for StreamOptions {
    /// Some 8 MiB keep a fast SSD busy while the caller computes; with smaller blocks, have 4 MiB
    /// of them at least.
    fn default() -> StreamOptions {
        StreamOptions {
            block_bytes: 1 << 20,
            ahead: 8,
        }
    }
}

impl StreamOptions {
    pub(crate) fn checked(self) -> StreamOptions {
        StreamOptions {
            block_bytes: self.block_bytes.max(1),
            ahead: self.ahead.max(1),
        }
    }
}

/// Where the frames of a stream come from.
#[derive(Debug, Default)]
pub enum Supply {
    /// From the budget, which has them reserved.
    #[default]
    Reserved,
    /// From the budget: this many are reserved, at least 1; the others may be reclaimed.
    Elastic(usize),
    /// From the caller, as many as blocks are to be in memory at once: each is as long as a block
    /// and lies at an address that is a multiple of the device's block. The budget is charged for
    /// them. They are dropped when the stream is over.
    Given(Vec<Buf>),
}

/// What a stream reserves, and what it may have.
pub(crate) struct Frames {
    pub(crate) bytes: usize,
    /// That are reserved.
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) given: Vec<Buf>,
    /// Those above the least are shared with other streams.
    pub(crate) shares: Shares,
}

/// Whether a stream shares memory with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shares {
    Not,
    /// And has not said so yet.
    Will,
    Does,
}

impl Supply {
    /// Frames of `bytes` bytes, as many as `ahead` says at most.
    pub(crate) fn frames(self, bytes: usize, ahead: usize, extent: &Extent) -> Result<Frames> {
        Ok(match self {
            Supply::Reserved => Frames {
                bytes,
                least: ahead,
                most: ahead,
                given: Vec::new(),
                shares: Shares::Not,
            },
            Supply::Elastic(least) => Frames {
                bytes,
                least: least.clamp(1, ahead),
                most: ahead,
                given: Vec::new(),
                shares: Shares::Will,
            },
            Supply::Given(given) => {
                let unit = extent.block() as usize;
                let fits = |frame: &Buf| {
                    frame.len() >= bytes && (frame.as_ptr() as usize).is_multiple_of(unit)
                };
                if given.is_empty() || !given.iter().all(fits) {
                    return Err(Error::Frames {
                        object: extent.name().to_owned(),
                        bytes: bytes as u64,
                        unit,
                    });
                }
                // What is behind a block is of no use.
                let given: Vec<Buf> = given
                    .into_iter()
                    .map(|mut frame| frame.split_to(bytes))
                    .collect();
                Frames {
                    bytes,
                    least: given.len(),
                    most: given.len(),
                    given,
                    shares: Shares::Not,
                }
            }
        })
    }
}

impl Frames {
    /// At the start: the stream shares memory from now on, if it does at all.
    pub(crate) fn join(&mut self, memory: &mut Memory) {
        if self.shares == Shares::Will {
            self.shares = Shares::Does;
            memory.shares(true);
        }
    }

    /// At the end.
    pub(crate) fn leave(&mut self, memory: &mut Memory) {
        if self.shares == Shares::Does {
            self.shares = Shares::Not;
            memory.shares(false);
        }
    }

    /// Whether others have what this stream does not.
    pub(crate) fn is_shared(&self) -> bool {
        self.shares == Shares::Does
    }

    /// Frames that the stream may have now.
    pub(crate) fn allowed(&self, memory: &Memory) -> usize {
        if self.is_shared() {
            memory.share(self.bytes).clamp(self.least, self.most)
        } else {
            self.most
        }
    }

    /// Bytes that are reserved.
    pub(crate) fn floor_bytes(&self) -> u64 {
        (self.bytes as u64).saturating_mul(self.least as u64)
    }
}

/// Bytes of a frame for blocks that start anywhere.
pub(crate) fn frame_for(block_bytes: usize, extent: &Extent, start: u64) -> usize {
    let unit = extent.block() as usize;
    let aligned = start.is_multiple_of(unit as u64) && block_bytes.is_multiple_of(unit);
    let sectors = if aligned {
        block_bytes
    } else {
        block_bytes.next_multiple_of(unit) + unit
    };
    frame_bytes(sectors) as usize
}

/// State of which a caller may wait for something.
pub(crate) trait Awaited {
    /// Whether the caller can only wait.
    fn is_quiet(&self) -> bool;
}

/// State between the two halves of a stream, and what either waits for.
pub(crate) struct Between<T: Awaited> {
    state: Mutex<T>,
    changed: Condvar,
    /// Made on first request. Readable while the state is not quiet.
    event: OnceLock<Option<Event>>,
}

/// The state, locked. The descriptor follows it whoever changes it.
pub(crate) struct Guard<'a, T: Awaited> {
    state: MutexGuard<'a, T>,
    event: &'a OnceLock<Option<Event>>,
}

impl<T: Awaited> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: Awaited> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T: Awaited> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if let Some(Some(event)) = self.event.get() {
            event.set(!self.state.is_quiet());
        }
    }
}

impl<T: Awaited> Between<T> {
    pub(crate) fn new(state: T) -> Between<T> {
        Between {
            state: Mutex::new(state),
            changed: Condvar::new(),
            event: OnceLock::new(),
        }
    }

    fn guard<'a>(&'a self, state: MutexGuard<'a, T>) -> Guard<'a, T> {
        let event = &self.event;
        Guard { state, event }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.guard(self.state.locked())
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits while `quiet`.
    pub(crate) fn wait_while(&self, quiet: impl FnMut(&mut T) -> bool) -> Guard<'_, T> {
        let state = self
            .changed
            .wait_while(self.state.locked(), quiet)
            .expect("no panic while held");
        self.guard(state)
    }

    /// Waits for at most `timeout`; true when the caller need not wait.
    pub(crate) fn ready_within(&self, timeout: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state.locked(), timeout, |state| state.is_quiet())
            .expect("no panic while held");
        !state.is_quiet()
    }

    /// Readable while the caller need not wait; `None` when the system gave no descriptor.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        // Set when the lock is let go of: no change passes unseen.
        let _state = self.lock();
        let event = self.event.get_or_init(|| Event::new().ok());
        event.as_ref().map(Event::fd)
    }
}
