//! A file whose elements do not begin at multiples of their size, read and written as if they did.
//!
//! Views of elements in memory need aligned addresses, and a frame has its bytes at the addresses,
//! modulo the sector, that they have in the file. So such a file is used by way of a device that
//! leaves out its first few bytes: address 0 here is byte `by` there. Transfers go by way of a
//! buffer of whole sectors, of which there is one for each call under way. Sectors that a write
//! covers in part are read first, one write at a time, so that no byte around it is lost.
//!
//! ```text
//!   file     |.......|.......|.......|      sectors
//!   here       |.......|.......|.....       the same from byte `by` on
//! ```

use std::io;
use std::sync::{Arc, Mutex};

use outcore_device::{
    Blocking, Buf, Device, Limits, Locked, Route, flush_now, read_now, write_now,
};

/// Bytes that one call moves.
const MOST_BYTES: usize = 128 << 10;

pub(crate) struct Shifted {
    inner: Arc<dyn Device>,
    by: u64,
    writing: Mutex<()>,
}

impl Shifted {
    /// The device without its first `by` bytes; itself where these are none.
    pub(crate) fn device(inner: Arc<dyn Device>, by: u64) -> Arc<dyn Device> {
        match by {
            0 => inner,
            _ => Arc::new(Shifted {
                inner,
                by,
                writing: Mutex::new(()),
            }),
        }
    }

    /// Whole sectors around some bytes of the file, and memory for them.
    fn around(&self, start: u64, end: u64) -> io::Result<(u64, Buf)> {
        let block = u64::from(self.inner.limits().sector);
        let from = start / block * block;
        Ok((
            from,
            Buf::anonymous((end.next_multiple_of(block) - from) as usize)?,
        ))
    }
}

impl Device for Shifted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn limits(&self) -> Limits {
        let Limits {
            sector,
            max_transfer,
        } = self.inner.limits();
        Limits {
            sector,
            max_transfer: max_transfer.min(MOST_BYTES).max(sector as usize),
        }
    }

    fn len(&self) -> u64 {
        self.inner.len().saturating_sub(self.by)
    }

    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for Shifted {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = destination.len().min(self.limits().max_transfer);
        let start = offset + self.by;
        let end = (start + len as u64).min(self.inner.len()).max(start);
        let there = (end - start) as usize;
        if there > 0 {
            let (from, mut buf) = self.around(start, end)?;
            read_now(&*self.inner, &mut buf, from)?;
            let skipped = (start - from) as usize;
            destination[..there].copy_from_slice(&buf[skipped..skipped + there]);
        }
        destination[there..len].fill(0);
        Ok(len)
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        let len = source.len().min(self.limits().max_transfer);
        let start = offset + self.by;
        // What is beyond the end would be cut off.
        let end = (start + len as u64).min(self.inner.len()).max(start);
        let there = (end - start) as usize;
        if there > 0 {
            let _one = self.writing.locked();
            let (from, mut buf) = self.around(start, end)?;
            let (block, bytes) = (self.inner.limits().sector as usize, buf.len());
            let skipped = (start - from) as usize;
            if skipped > 0 {
                read_now(&*self.inner, &mut buf[..block], from)?;
            }
            if skipped + there < bytes && (bytes > block || skipped == 0) {
                read_now(
                    &*self.inner,
                    &mut buf[bytes - block..],
                    from + (bytes - block) as u64,
                )?;
            }
            buf[skipped..skipped + there].copy_from_slice(&source[..there]);
            write_now(&*self.inner, &buf, from)?;
        }
        Ok(len)
    }

    fn flush(&self) -> io::Result<()> {
        flush_now(&*self.inner)
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use outcore_device::MemoryDevice;
    use proptest::prelude::*;

    use super::*;

    fn bytes(len: usize, seed: u8) -> Vec<u8> {
        (0..len)
            .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
            .collect()
    }

    proptest! {
        #[test]
        fn bytes_are_those_of_the_file_from_the_shift_on(
            len in 1_usize..5000, by in 1_u64..8, block in prop::sample::select(vec![512_u64, 1024]),
            first in 0_u64..10, count in 1_u64..10, write: bool,
        ) {
            let medium = Arc::new(MemoryDevice::with_sector("medium", len as u64, block as u32));
            let mut model = bytes(len, 1);
            let mut padded = model.clone();
            padded.resize(len.next_multiple_of(block as usize), 0);
            write_now(&*medium, &padded, 0).unwrap();
            let device = Shifted::device(Arc::clone(&medium) as Arc<dyn Device>, by);
            prop_assert_eq!(device.len(), (len as u64).saturating_sub(by));
            let blocks = device.len().div_ceil(block);
            prop_assume!(first < blocks);
            let count = count.min(blocks - first);
            let (offset, size) = (first * block, (count * block) as usize);
            let start = ((offset + by) as usize).min(len);
            let there = size.min(len - start);
            if write {
                let source = bytes(size, 77);
                write_now(&*device, &source, offset).unwrap();
                model[start..start + there].copy_from_slice(&source[..there]);
            }
            prop_assert_eq!(&medium.to_bytes()[..len], &model[..]);
            let mut found = vec![9; size];
            read_now(&*device, &mut found, offset).unwrap();
            prop_assert_eq!(&found[..there], &model[start..start + there]);
            prop_assert!(found[there..].iter().all(|&byte| byte == 0));
        }
    }
}
