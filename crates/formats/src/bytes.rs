//! Files that are read at several positions at once.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Random access to bytes, by several readers at a time.
pub trait ReadAt: Send + Sync {
    /// Reads up to `bytes.len()` bytes at `offset`; may read fewer, and 0 only at the end.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Bytes in all.
    fn length(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        (&self[start..]).read(bytes)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// One reader, with its own position.
#[derive(Clone)]
pub(crate) struct SeekingReader {
    pub(crate) file: Arc<dyn ReadAt>,
    pub(crate) offset: u64,
}

impl Read for SeekingReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Seek for SeekingReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.file.length()?.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.offset.checked_add_signed(distance),
        };
        self.offset = offset.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.offset)
    }
}
