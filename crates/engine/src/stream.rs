//! Sequences of blocks: the common part of reading and writing.
//!
//! A stream has as many frames as blocks ahead, reserved when it is made. Each frame cycles between
//! the device, the engine and the caller. The engine's half is an activity, the caller's half a
//! handle, and they share a small state under a lock.
//!
//! If many streams share a budget, a stream reserves only a part of its frames
//! ([`Supply::Elastic`]). It keeps the others until their memory is reclaimed: prefetched blocks
//! that were not handed out are evicted, and read again later.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use outcore_device::{Buf, Locked, PANICKED};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::extent::Extent;
use crate::frame_size::frame_bytes;
use crate::memory::Memory;

/// Options of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks in memory at once: in flight, waiting, or lent. At least 1; below 2, device and
    /// caller alternate.
    pub ahead: usize,
}

impl Default for StreamOptions {
    /// About 8 MiB keep a fast SSD busy while the caller computes; with smaller blocks, use at
    /// least 4 MiB of them.
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

/// The source of the frames of a stream.
#[derive(Debug, Default)]
pub enum Supply {
    /// The budget, which reserves all of them.
    #[default]
    Reserved,
    /// The budget, which reserves this many, at least 1; the others may be reclaimed.
    Elastic(usize),
    /// The caller, which supplies as many as blocks are to be in memory at once: each as long as a
    /// block, at an address that is a multiple of the device's block. The budget is charged for
    /// them. They are dropped when the stream ends.
    Given(Vec<Buf>),
}

/// The frames that a stream reserves, and its limit.
pub(crate) struct Frames {
    pub(crate) bytes: usize,
    /// Number of reserved frames.
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) given: Vec<Buf>,
    /// Whether those above `least` come of a quota of elastic memory.
    pub(crate) quota: Quota,
}

/// Whether a stream has a quota of elastic memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    None,
    /// From its start on.
    Expected,
    Held,
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
                quota: Quota::None,
            },
            Supply::Elastic(least) => Frames {
                bytes,
                least: least.clamp(1, ahead),
                most: ahead,
                given: Vec::new(),
                quota: Quota::Expected,
            },
            Supply::Given(given) => {
                let unit = extent.sector() as usize;
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
                // Bytes behind a block are not used.
                let given: Vec<Buf> = given
                    .into_iter()
                    .map(|mut frame| frame.split_to(bytes))
                    .collect();
                Frames {
                    bytes,
                    least: given.len(),
                    most: given.len(),
                    given,
                    quota: Quota::None,
                }
            }
        })
    }
}

impl Frames {
    /// At the start: takes the quota that the stream is to have.
    pub(crate) fn join(&mut self, memory: &mut Memory) {
        if self.quota == Quota::Expected {
            self.quota = Quota::Held;
            memory.count_elastic_stream(true);
        }
    }

    /// At the end: gives it back.
    pub(crate) fn leave(&mut self, memory: &mut Memory) {
        if self.quota == Quota::Held {
            self.quota = Quota::None;
            memory.count_elastic_stream(false);
        }
    }

    /// Whether the frames above `least` come of a quota.
    pub(crate) fn has_quota(&self) -> bool {
        self.quota == Quota::Held
    }

    /// Number of frames that the stream may have now.
    pub(crate) fn allowed(&self, memory: &Memory) -> usize {
        if self.has_quota() {
            memory.quota(self.bytes).clamp(self.least, self.most)
        } else {
            self.most
        }
    }

    /// Reserved bytes.
    pub(crate) fn floor_bytes(&self) -> u64 {
        (self.bytes as u64).saturating_mul(self.least as u64)
    }
}

/// Bytes of a frame for blocks at any offset.
pub(crate) fn frame_for(block_bytes: usize, extent: &Extent, start: u64) -> usize {
    let unit = extent.sector() as usize;
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

/// The state, locked. Each change of it through this guard updates the descriptor.
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
            .expect(PANICKED);
        self.guard(state)
    }

    /// Waits for at most `timeout`; true when the caller need not wait.
    pub(crate) fn ready_within(&self, timeout: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state.locked(), timeout, |state| state.is_quiet())
            .expect(PANICKED);
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
