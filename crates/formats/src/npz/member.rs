//! One array of an archive, as a stream of numbers.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Take};
use std::sync::Arc;

use flate2::Crc;
use flate2::bufread::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::bytes::{ReadAt, SeekingReader};
use crate::error::shown;
use crate::source::refuse_packed;
use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 16;

enum Packed {
    Stored(BufReader<Take<SeekingReader>>),
    Deflated(DeflateDecoder<BufReader<Take<SeekingReader>>>),
}

/// The bytes of one file in the archive. Its length and checksum are verified at its last byte.
struct Member {
    object: String,
    start: u64,
    packed: Packed,
    left: u64,
    crc: Crc,
    expected_crc: u32,
}

impl Member {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        if self.left < bytes.len() as u64 {
            return Err(self.corrupt("the array ends too early"));
        }
        let read = match &mut self.packed {
            Packed::Stored(reader) => reader.read_exact(bytes),
            Packed::Deflated(reader) => reader.read_exact(bytes),
        };
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData => {
                self.corrupt(format!("the archive is truncated or damaged: {error}"))
            }
            _ => Error::Io {
                object: self.object.clone(),
                source: error,
            },
        })?;
        self.crc.update(bytes);
        self.left -= bytes.len() as u64;
        if self.left == 0 {
            self.check_end()
        } else {
            Ok(())
        }
    }

    fn check_end(&mut self) -> Result<()> {
        let more = match &mut self.packed {
            Packed::Stored(reader) => reader.fill_buf().map(|rest| !rest.is_empty()),
            Packed::Deflated(reader) => reader.read(&mut [0]).map(|read| read > 0),
        };
        match more {
            Ok(false) if self.crc.sum() == self.expected_crc => Ok(()),
            Ok(false) => Err(self.corrupt("the checksum is wrong")),
            _ => Err(self.corrupt("the array does not end where the archive says")),
        }
    }

    fn corrupt(&self, reason: impl Into<String>) -> Error {
        let stored = match &self.packed {
            Packed::Stored(reader) => {
                reader.get_ref().get_ref().offset - reader.buffer().len() as u64
            }
            Packed::Deflated(reader) => self.start + reader.total_in(),
        };
        Error::corrupt(&self.object, stored, reason)
    }
}

/// The files of an archive.
pub(super) struct Members {
    object: String,
    archive: ZipArchive<SeekingReader>,
}

impl Members {
    pub(super) fn open(object: &str, file: Arc<dyn ReadAt>) -> Result<Members> {
        refuse_packed(object, &*file)?;
        let length = file.length().map_err(Error::io(object))?;
        let archive =
            ZipArchive::new(SeekingReader { file, offset: 0 }).map_err(|error| match error {
                zip::result::ZipError::Io(source) if source.raw_os_error().is_some() => Error::Io {
                    object: object.into(),
                    source,
                },
                error => Error::corrupt(object, length, format!("no whole zip archive: {error}")),
            })?;
        Ok(Members {
            object: object.into(),
            archive,
        })
    }

    /// The array `name`, at its first number.
    pub(super) fn array(&mut self, name: &str) -> Result<Numbers> {
        let object = format!("{}, array {name}", self.object);
        let file = self.archive.index_for_name(&format!("{name}.npy"));
        let file = file.ok_or_else(|| {
            Error::unsupported(
                &self.object,
                format!("no array '{name}': not written by scipy.sparse.save_npz"),
            )
        })?;
        let file = self
            .archive
            .by_index_raw(file)
            .map_err(|error| Error::corrupt(&self.object, 0, error.to_string()))?;
        let (method, stored, left, expected_crc) = (
            file.compression(),
            file.compressed_size(),
            file.size(),
            file.crc32(),
        );
        let (encrypted, start) = (file.encrypted(), file.data_start().unwrap_or(0));
        drop(file);
        let mut place = self.archive.clone().into_inner();
        place
            .seek(SeekFrom::Start(start))
            .map_err(Error::io(&self.object))?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, place.take(stored));
        let packed = match method {
            _ if encrypted => return Err(Error::unsupported(&object, "it is encrypted")),
            CompressionMethod::Stored => Packed::Stored(reader),
            CompressionMethod::Deflated => Packed::Deflated(DeflateDecoder::new(reader)),
            other => {
                return Err(Error::unsupported(
                    &object,
                    format!("it is packed by {other}; NumPy writes stored or deflated arrays"),
                ));
            }
        };
        Numbers::open(Member {
            object,
            start,
            packed,
            left,
            crc: Crc::new(),
            expected_crc,
        })
    }
}

/// Type of the numbers in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
    Bool,
    Text,
    WideText,
}

/// A one-dimensional array, read from its start to its end.
pub(super) struct Numbers {
    member: Member,
    kind: Kind,
    item_bytes: usize,
    big_endian: bool,
    pub(super) length: u64,
    next: u64,
    buffer: Vec<u8>,
}

impl Numbers {
    fn open(mut member: Member) -> Result<Numbers> {
        let mut prefix = [0; 8];
        member.fill(&mut prefix)?;
        let length_bytes = match prefix {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => 2,
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => 4,
            _ => return Err(member.corrupt("no .npy array")),
        };
        let mut length = [0; 4];
        member.fill(&mut length[..length_bytes])?;
        let length = u32::from_le_bytes(length) as usize;
        if length > 1 << 16 {
            return Err(member.corrupt(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length];
        member.fill(&mut header)?;
        // Python accepts either quote.
        let header = String::from_utf8_lossy(&header).replace('"', "'");
        let (kind, item_bytes, big_endian) = match descr(&header) {
            Some(descr) => number_kind(descr).ok_or_else(|| {
                Error::unsupported(
                    &member.object,
                    format!("numbers of the type {}", shown(descr)),
                )
            })?,
            None => return Err(member.corrupt("the .npy header has no simple descr")),
        };
        let length = shape(&header)
            .ok_or_else(|| member.corrupt("the .npy header has no shape of one dimension"))?;
        if length.checked_mul(item_bytes as u64) != Some(member.left) {
            return Err(member.corrupt(format!(
                "the header says {length} numbers of {item_bytes} bytes, {} bytes follow",
                member.left
            )));
        }
        Ok(Numbers {
            member,
            kind,
            item_bytes,
            big_endian,
            length,
            next: 0,
            buffer: Vec::new(),
        })
    }

    /// Appends the next `count` numbers, which must be integers from 0 to 2^63 - 1.
    pub(super) fn read_indices(&mut self, count: usize, out: &mut Vec<u64>) -> Result<()> {
        let at = self.next;
        match self.kind {
            Kind::Signed => self.read(count, signed, |value, entry| {
                out.push(
                    u64::try_from(value).map_err(|_| (entry, format!("{value} is negative")))?,
                );
                Ok(())
            }),
            Kind::Unsigned => self.read(count, unsigned, |value, entry| {
                out.push(
                    i64::try_from(value)
                        .map_err(|_| (entry, format!("{value} is larger than 2^63 - 1")))?
                        as u64,
                );
                Ok(())
            }),
            _ => Err(self.entry(at, "the numbers have to be whole")),
        }
    }

    /// Appends the next `count` numbers, which must be finite.
    pub(super) fn read_values(&mut self, count: usize, out: &mut Vec<f64>) -> Result<()> {
        let at = self.next;
        match self.kind {
            Kind::Signed => self.read(count, signed, |value, _| {
                out.push(value as f64);
                Ok(())
            }),
            Kind::Unsigned => self.read(count, unsigned, |value, _| {
                out.push(value as f64);
                Ok(())
            }),
            Kind::Bool => self.read(count, unsigned, |value, _| {
                out.push(f64::from(u8::from(value != 0)));
                Ok(())
            }),
            Kind::Float => self.read(count, float, |value, entry| {
                out.push(value);
                if value.is_finite() {
                    Ok(())
                } else {
                    Err((entry, format!("the value {value} is not finite")))
                }
            }),
            Kind::Text | Kind::WideText => Err(self.entry(at, "the values have to be numbers")),
        }
    }

    /// A short string, as in `format.npy`.
    pub(super) fn read_text(mut self) -> Result<String> {
        let step = match self.kind {
            Kind::Text => 1,
            Kind::WideText => 4,
            _ => return Err(self.entry(0, "text is expected")),
        };
        let mut bytes = vec![0; self.item_bytes.min(1 << 10)];
        self.member.fill(&mut bytes)?;
        Ok(bytes
            .iter()
            .step_by(step)
            .filter(|&&byte| byte != 0)
            .map(|&byte| char::from(byte))
            .collect())
    }

    /// `decode` converts a number of up to eight bytes, little-endian, of which `bytes` are used.
    #[inline(always)]
    fn read<T>(
        &mut self,
        mut count: usize,
        decode: impl Fn([u8; 8], usize) -> T,
        mut give: impl FnMut(T, u64) -> std::result::Result<(), (u64, String)>,
    ) -> Result<()> {
        let item = self.item_bytes;
        while count > 0 {
            let now = count.min(BUFFER_BYTES / 8);
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(now * item, 0);
            self.member.fill(&mut buffer)?;
            for (position, stored) in buffer.chunks_exact(item).enumerate() {
                let mut bytes = [0; 8];
                bytes[..item].copy_from_slice(stored);
                if self.big_endian {
                    bytes[..item].reverse();
                }
                give(decode(bytes, item), self.next + position as u64)
                    .map_err(|(entry, reason)| self.entry(entry, reason))?;
            }
            self.next += now as u64;
            self.buffer = buffer;
            count -= now;
        }
        Ok(())
    }

    fn entry(&self, entry: u64, reason: impl Into<String>) -> Error {
        Error::entry(&self.member.object, entry, reason)
    }
}

fn signed(bytes: [u8; 8], used: usize) -> i64 {
    let unused = 64 - 8 * used;
    i64::from_le_bytes(bytes) << unused >> unused
}

fn unsigned(bytes: [u8; 8], _: usize) -> u64 {
    u64::from_le_bytes(bytes)
}

fn float(bytes: [u8; 8], used: usize) -> f64 {
    match used {
        4 => f64::from(f32::from_bits(u64::from_le_bytes(bytes) as u32)),
        _ => f64::from_le_bytes(bytes),
    }
}

/// The value of `'descr':`.
fn descr(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("'descr':")?;
    after.trim_start().strip_prefix('\'')?.split('\'').next()
}

/// The number of elements of an array of one dimension, 1 of a scalar.
fn shape(header: &str) -> Option<u64> {
    let (_, after) = header.split_once("'shape':")?;
    let inside = after
        .trim_start()
        .strip_prefix('(')?
        .split(')')
        .next()?
        .trim()
        .trim_end_matches(',')
        .trim_end();
    // Python 2 wrote long integers with an L.
    if inside.is_empty() {
        Some(1)
    } else {
        inside.strip_suffix('L').unwrap_or(inside).parse().ok()
    }
}

fn number_kind(descr: &str) -> Option<(Kind, usize, bool)> {
    let (order, rest) = match descr.get(..1)? {
        "<" | "|" | "=" | ">" => (descr.get(..1)?, descr.get(1..)?),
        _ => ("=", descr),
    };
    let big_endian = order == ">";
    let size: usize = rest.get(1..)?.parse().ok()?;
    let (kind, item_bytes) = match (rest.get(..1)?, size) {
        ("i", 1 | 2 | 4 | 8) => (Kind::Signed, size),
        ("u", 1 | 2 | 4 | 8) => (Kind::Unsigned, size),
        ("f", 4 | 8) => (Kind::Float, size),
        ("b", 1) => (Kind::Bool, size),
        ("S", 1..=64) => (Kind::Text, size),
        ("U", 1..=64) => (Kind::WideText, 4 * size),
        _ => return None,
    };
    Some((kind, item_bytes, big_endian))
}
