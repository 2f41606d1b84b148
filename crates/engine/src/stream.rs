//! Sequences of blocks: what reading and writing have in common.
//!
//! A stream has as many frames as it runs ahead, reserved when it is made. A frame is with the
//! device, with the engine, or with the caller; it goes round. The engine's half is an activity, the
//! caller's half a handle, and between them is a small state under a lock.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::extent::Extent;
use crate::memory::frame_bytes;

/// How a stream moves.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks in memory at once: under way, waiting, or lent. At least 1; below 2 device and caller take turns.
    pub ahead: usize,
}

impl Default for StreamOptions {
    /// Some 8 MiB keep a fast SSD busy while the caller computes; with smaller blocks, have 4 MiB of them at least.
    fn default() -> StreamOptions {
        StreamOptions { block_bytes: 1 << 20, ahead: 8 }
    }
}

impl StreamOptions {
    pub(crate) fn checked(self) -> StreamOptions {
        StreamOptions { block_bytes: self.block_bytes.max(1), ahead: self.ahead.max(1) }
    }
}

/// Bytes of a frame for blocks that start anywhere.
pub(crate) fn frame_for(block_bytes: usize, extent: &Extent, start: u64) -> usize {
    let unit = extent.block() as usize;
    let aligned = start.is_multiple_of(unit as u64) && block_bytes.is_multiple_of(unit);
    let sectors = if aligned { block_bytes } else { block_bytes.next_multiple_of(unit) + unit };
    frame_bytes(sectors) as usize
}

/// State between the two halves of a stream, and what either waits for.
pub(crate) struct Between<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Between<T> {
    pub(crate) fn new(state: T) -> Between<T> {
        Between { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().expect("no panic while held")
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits while `quiet`.
    pub(crate) fn wait_while(&self, quiet: impl FnMut(&mut T) -> bool) -> MutexGuard<'_, T> {
        self.changed.wait_while(self.lock(), quiet).expect("no panic while held")
    }

    /// The same for at most `timeout`; true when it is over.
    pub(crate) fn ready_within(&self, timeout: Duration, mut quiet: impl FnMut(&mut T) -> bool) -> bool {
        let (mut state, _) = self.changed.wait_timeout_while(self.lock(), timeout, &mut quiet).expect("no panic while held");
        !quiet(&mut state)
    }
}
