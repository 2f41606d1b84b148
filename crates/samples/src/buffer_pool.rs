//! Memory of batches that were used up, for those that come: pages that are there need not be
//! cleared.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use outcore_core::{Error, Result};
use outcore_device::Locked;

/// Less comes from the allocator as fast.
const BYTES_MIN: usize = 64 << 10;

/// A cache line. What is copied to the address behind such a one is copied at a quarter of the
/// speed where what it is copied from lies at the beginning of a page: processors take the low
/// twelve bits of addresses for the whole.
const ALIGN: usize = 64;

/// Bytes of a batch, at an address that is a multiple of 64. Their memory goes back to where it
/// came from.
#[derive(Debug, Default)]
pub struct Bytes {
    /// The first `start` of them are padding, for the alignment.
    bytes: Vec<u8>,
    start: usize,
    pool: Weak<BufferPool>,
}

/// Memory that waits for the next batch.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    /// Bytes that it may have.
    most: AtomicU64,
    waiting: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    /// From now on it has `most` bytes at most; if it has more, it frees them all.
    pub(super) fn set_most(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
        let mut waiting = self.waiting.locked();
        if waiting.iter().map(Vec::capacity).sum::<usize>() as u64 > most {
            waiting.clear();
        }
    }

    /// No bytes, with room for `capacity`.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn bytes(self: &Arc<BufferPool>, capacity: usize) -> Result<Bytes> {
        let mut waiting = self.waiting.locked();
        let fits = |bytes: &Vec<u8>| {
            bytes.capacity() >= capacity + ALIGN && bytes.capacity() / 2 <= capacity + ALIGN
        };
        // What came last may be in a processor's cache still.
        let found = (capacity >= BYTES_MIN)
            .then(|| waiting.iter().rposition(fits))
            .flatten();
        let found = found.map(|found| waiting.remove(found));
        drop(waiting);
        Ok(Bytes::aligned(
            found.map_or_else(|| allocated(capacity), Ok)?,
            Arc::downgrade(self),
        ))
    }
}

/// Room for `capacity` bytes at an aligned address.
fn allocated(capacity: usize) -> Result<Vec<u8>> {
    let (mut bytes, wanted) = (Vec::new(), capacity.saturating_add(ALIGN));
    let refused = |source| Error::NoMemory {
        bytes: wanted as u64,
        source: io::Error::other(source),
    };
    bytes.try_reserve_exact(wanted).map_err(refused)?;
    Ok(bytes)
}

impl Bytes {
    /// No bytes, with room for `capacity`.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn with_capacity(capacity: usize) -> Result<Bytes> {
        Ok(Bytes::aligned(allocated(capacity)?, Weak::new()))
    }

    fn aligned(mut bytes: Vec<u8>, pool: Weak<BufferPool>) -> Bytes {
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        bytes.resize(start, 0);
        Bytes { bytes, start, pool }
    }

    /// Where more is appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.start + len);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        let Some(pool) = self
            .pool
            .upgrade()
            .filter(|_| self.bytes.capacity() >= BYTES_MIN)
        else {
            return;
        };
        // A forked child must not wait for a thread that it does not have.
        let Ok(mut waiting) = pool.waiting.try_lock() else {
            return;
        };
        let held: usize = waiting.iter().map(Vec::capacity).sum();
        if (held + self.bytes.capacity()) as u64 <= pool.most.load(Ordering::Relaxed) {
            self.bytes.clear();
            waiting.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_up_to_a_limit() {
        let pool = Arc::new(BufferPool::default());
        let place = |bytes: &Bytes| bytes.bytes.as_ptr();
        let held = || pool.waiting.lock().unwrap().len();
        drop(pool.bytes(BYTES_MIN).unwrap());
        assert_eq!(held(), 0);
        pool.set_most(2 * (BYTES_MIN + ALIGN) as u64);
        let mut bytes = pool.bytes(BYTES_MIN).unwrap();
        bytes.tail().extend([1; 100]);
        let was = place(&bytes);
        drop(bytes);
        assert_eq!(held(), 1);
        let again = pool.bytes(BYTES_MIN).unwrap();
        assert!(
            place(&again) == was && again.is_empty() && again.as_ptr().align_offset(ALIGN) == 0
        );
        drop([
            Ok(again),
            pool.bytes(BYTES_MIN),
            pool.bytes(BYTES_MIN),
            Bytes::with_capacity(1 << 20),
        ]);
        assert_eq!(held(), 2);
        assert!(pool.bytes(4 * BYTES_MIN).unwrap().is_empty() && held() == 2);
        assert!(matches!(
            Bytes::with_capacity(usize::MAX),
            Err(Error::NoMemory { .. })
        ));
    }
}
