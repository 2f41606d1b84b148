//! A device in memory: for tests, and for objects that need no disk.

use crate::{Blocking, Device, Limits, Route};
use std::io;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

/// A device whose bytes live in memory, zeroed at first.
pub struct MemoryDevice {
    name: String,
    len: u64,
    sector: u32,
    /// Whole sectors, so that a transfer may run past the end by less than a sector.
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `len` zero bytes without constraints on its requests.
    pub fn new(name: impl Into<String>, len: u64) -> MemoryDevice {
        MemoryDevice::with_sector(name, len, 1)
    }

    /// As [`new`](MemoryDevice::new), with requests restricted to multiples of `sector`, as on
    /// hardware.
    ///
    /// # Panics
    /// If `sector` is not a power of two or the memory cannot be allocated.
    pub fn with_sector(name: impl Into<String>, len: u64, sector: u32) -> MemoryDevice {
        assert!(
            sector.is_power_of_two(),
            "sector {sector} is not a power of two"
        );
        let room =
            usize::try_from(len.next_multiple_of(sector.into())).expect("fits the address space");
        MemoryDevice {
            name: name.into(),
            len,
            sector,
            bytes: RwLock::new(vec![0; room]),
        }
    }

    /// A device that holds these bytes.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> MemoryDevice {
        MemoryDevice {
            name: name.into(),
            len: bytes.len() as u64,
            sector: 1,
            bytes: RwLock::new(bytes),
        }
    }

    /// A copy of all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)[..self.len as usize].to_vec()
    }

    /// The part of `len` bytes at `offset` that exists.
    fn range(room: usize, offset: u64, len: u64) -> Range<usize> {
        let start = usize::try_from(offset).map_or(room, |offset| offset.min(room));
        let end = usize::try_from(offset.saturating_add(len)).map_or(room, |end| end.min(room));
        start..end
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn limits(&self) -> Limits {
        Limits {
            sector: self.sector,
            max_transfer: usize::MAX,
        }
    }
    fn len(&self) -> u64 {
        self.len
    }
    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for MemoryDevice {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let source = &bytes[Self::range(bytes.len(), offset, destination.len() as u64)];
        destination[..source.len()].copy_from_slice(source);
        Ok(source.len())
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let range = Self::range(bytes.len(), offset, source.len() as u64);
        let len = range.len();
        bytes[range].copy_from_slice(&source[..len]);
        Ok(len)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let range = Self::range(bytes.len(), offset, len);
        bytes[range].fill(0);
        Ok(())
    }
}
