//! Compressed streams: a block holds whole chunks, each compressed by itself.
//!
//! ```text
//!   0  4  bytes that follow the head, without those that fill up to a multiple of 8
//!   4  4  bytes of data          8  4  ends of records that are listed behind it, 4 bytes each, after bytes to a multiple of 4
//!  12  4  1 where data and list are compressed, 0 where that would have made them longer
//! ```

use outcore_core::{Error, Result};
use outcore_device::Buf;

/// Bytes of the head of a chunk.
pub(super) const HEAD_BYTES: usize = 16;
/// Data and list of a chunk, at most: enough to compress well, little enough to be at hand in a
/// cache of the CPU.
pub(super) const CHUNK_BYTES: usize = 512 << 10;
const ZSTD_LEVEL: i32 = 1;

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: hundreds of MB a second and core.
    Lz4,
    /// Zstandard at its fastest common level: smaller, and slower.
    Zstd,
}

impl Compression {
    pub(super) fn of(number: u8) -> Option<Compression> {
        [Compression::None, Compression::Lz4, Compression::Zstd]
            .into_iter()
            .find(|&known| known as u8 == number)
    }
}

/// Where the list begins, after `data_bytes` bytes of data.
pub(super) fn list_at(data_bytes: usize) -> usize {
    data_bytes.next_multiple_of(4)
}

/// Compresses chunks into memory of its own.
pub(super) struct Packer {
    compression: Compression,
    /// Data of the chunk, then its list.
    pub(super) raw: Buf,
    packed: Buf,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Packer {
    /// Memory that it takes.
    pub(super) fn bytes(chunk_bytes: usize) -> usize {
        chunk_bytes + Packer::bound(chunk_bytes)
    }

    fn bound(chunk_bytes: usize) -> usize {
        HEAD_BYTES
            + lz4_flex::block::get_maximum_output_size(chunk_bytes)
                .max(zstd::zstd_safe::compress_bound(chunk_bytes))
    }

    pub(super) fn new(compression: Compression, chunk_bytes: usize) -> Result<Packer> {
        let memory = |bytes| {
            Buf::anonymous(bytes).map_err(|source| Error::NoMemory {
                bytes: bytes as u64,
                source,
            })
        };
        let zstd = match compression {
            Compression::Zstd => Some(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(failed)?),
            _ => None,
        };
        Ok(Packer {
            compression,
            raw: memory(chunk_bytes)?,
            packed: memory(Packer::bound(chunk_bytes))?,
            zstd,
        })
    }

    /// Bytes of data and list that a chunk has room for: before the list there are some to a
    /// multiple of 4.
    pub(super) fn room(&self) -> usize {
        self.raw.len() - 3
    }

    /// The chunk whose data is in `raw`, as it is to be stored.
    pub(super) fn pack(&mut self, data_bytes: usize, ends: &[u32]) -> Result<&[u8]> {
        let list = list_at(data_bytes);
        let whole = list + 4 * ends.len();
        self.raw[data_bytes..list].fill(0);
        let listed = self.raw[list..whole].chunks_exact_mut(4);
        listed
            .zip(ends)
            .for_each(|(at, end)| at.copy_from_slice(&end.to_le_bytes()));
        let (raw, room) = (&self.raw[..whole], &mut self.packed[HEAD_BYTES..]);
        let packed = match &mut self.zstd {
            Some(zstd) => zstd.compress_to_buffer(raw, room).map_err(failed)?,
            None => lz4_flex::block::compress_into(raw, room).map_err(|error| Error::Failed {
                what: format!("{:?}: {error}", self.compression),
            })?,
        };
        let is_packed = packed < whole;
        if !is_packed {
            room[..whole].copy_from_slice(raw);
        }
        let stored = if is_packed { packed } else { whole };
        let end = (HEAD_BYTES + stored).next_multiple_of(8);
        self.packed[HEAD_BYTES + stored..end].fill(0);
        let head = [
            stored as u32,
            data_bytes as u32,
            ends.len() as u32,
            is_packed.into(),
        ];
        self.packed[..HEAD_BYTES].copy_from_slice(&head.map(u32::to_le_bytes).concat());
        Ok(&self.packed[..end])
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::Failed {
        what: format!("zstd: {source}"),
    }
}

/// What the head of a chunk says.
pub(super) struct Head {
    stored: usize,
    is_packed: bool,
    pub(super) data_bytes: usize,
    pub(super) ends: usize,
}

impl Head {
    /// Of the chunk at the start of `bytes`; `None` for what cannot be one.
    pub(super) fn of(bytes: &[u8]) -> Option<Head> {
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")) as usize)
        };
        let head = Head {
            stored: word(0)?,
            data_bytes: word(4)?,
            ends: word(8)?,
            is_packed: word(12)? == 1,
        };
        (head.end() <= bytes.len() && head.whole() <= CHUNK_BYTES && head.stored <= head.whole())
            .then_some(head)
    }

    /// Bytes of data and list.
    pub(super) fn whole(&self) -> usize {
        list_at(self.data_bytes) + 4 * self.ends
    }

    /// Where the next chunk begins.
    pub(super) fn end(&self) -> usize {
        (HEAD_BYTES + self.stored).next_multiple_of(8)
    }

    /// Data and list, from the chunk at the start of `bytes`, to the start of `to`.
    pub(super) fn unpack(
        &self,
        compression: Compression,
        bytes: &[u8],
        to: &mut [u8],
    ) -> std::result::Result<(), String> {
        let (from, to) = (
            &bytes[HEAD_BYTES..HEAD_BYTES + self.stored],
            &mut to[..self.whole()],
        );
        let unpacked = match compression {
            _ if !self.is_packed && from.len() == to.len() => {
                to.copy_from_slice(from);
                to.len()
            }
            Compression::Zstd => {
                zstd::bulk::decompress_to_buffer(from, to).map_err(|error| error.to_string())?
            }
            _ => lz4_flex::block::decompress_into(from, to).map_err(|error| error.to_string())?,
        };
        if unpacked == to.len() {
            Ok(())
        } else {
            Err("a chunk is shorter than it says".into())
        }
    }
}
