//! Slots in memory of a library's.

use std::sync::{Arc, RwLock};

use outcore_core::ring::Slot;

/// Bytes that a library writes into by itself: not while they are lent, since rounds take turns.
pub(crate) struct RawSlot {
    start: *mut u8,
    bytes: usize,
    /// Whether the memory is still there.
    is_open: RwLock<bool>,
}

// SAFETY: the memory is that of the process, and it is lent by the lock.
unsafe impl Send for RawSlot {}
// SAFETY: as above.
unsafe impl Sync for RawSlot {}

impl RawSlot {
    /// Slots that follow each other.
    ///
    /// # Safety
    /// As many bytes are there until [`close`](RawSlot::close).
    pub(crate) unsafe fn several(start: *mut u8, count: usize, bytes: usize) -> Vec<Arc<RawSlot>> {
        let slot = |number| {
            Arc::new(RawSlot {
                // SAFETY: the caller says so.
                start: unsafe { start.add(number * bytes) },
                bytes,
                is_open: RwLock::new(true),
            })
        };
        (0..count).map(slot).collect()
    }

    /// Where it is.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Lends nothing from now on.
    pub(crate) fn close(&self) {
        *self
            .is_open
            .write()
            .unwrap_or_else(|lock| lock.into_inner()) = false;
    }
}

impl Slot for RawSlot {
    fn read(&self, look: &mut dyn FnMut(&[u8])) {
        let is_open = self.is_open.read().unwrap_or_else(|lock| lock.into_inner());
        match *is_open {
            // SAFETY: the memory is there, and others only read.
            true => look(unsafe { std::slice::from_raw_parts(self.start, self.bytes) }),
            false => look(&[]),
        }
    }

    fn write(&self, change: &mut dyn FnMut(&mut [u8])) {
        let is_open = self
            .is_open
            .write()
            .unwrap_or_else(|lock| lock.into_inner());
        match *is_open {
            // SAFETY: the memory is there, and no other has it.
            true => change(unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }),
            false => change(&mut []),
        }
    }
}
