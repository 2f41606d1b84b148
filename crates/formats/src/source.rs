//! Bytes of a file, decompressed as they are read. The format is recognized by the first bytes of
//! the file, not by its name.
//!
//! Gzip of several members, bzip2 and xz of several streams and zstd of several frames are read as
//! one stream, as their own tools do. A decompressor holds about 100 KiB, bzip2 4 MB, and zstd and
//! xz their window in addition: zstd up to 8 MiB at levels up to 19 and 32 MiB at level 20, xz 8
//! MiB at its level 6 and 32 MiB at level 8. Larger windows are refused, so that a file cannot make
//! memory grow further. Archives and unsupported compressions are recognized by their first bytes
//! too, and refused by name: read as text they would be a misleading error in line 1.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use zstd::stream::read::Decoder as ZstdDecoder;

use crate::bytes::ReadAt;
use crate::{Error, Result};

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None.
    Plain,
    /// RFC 1952.
    Gzip,
    /// The format of bzip2.
    Bzip2,
    /// The .xz format, version 1.
    Xz,
    /// RFC 8878.
    Zstd,
}

impl Compression {
    const MAGIC_BYTES: u64 = 10;

    fn of(first: &[u8]) -> Compression {
        match *first {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            // A level, and the number at the beginning of a block or at the end of the stream: text
            // may begin with BZh.
            [
                b'B',
                b'Z',
                b'h',
                b'1'..=b'9',
                0x31,
                0x41,
                0x59,
                0x26,
                0x53,
                0x59,
            ] => Compression::Bzip2,
            [
                b'B',
                b'Z',
                b'h',
                b'1'..=b'9',
                0x17,
                0x72,
                0x45,
                0x38,
                0x50,
                0x90,
            ] => Compression::Bzip2,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Compression::Plain => "plain",
            Compression::Gzip => "gzip",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
        }
    }
}

/// The name of an unsupported compression or archive, if it is one.
fn not_read(first: &[u8]) -> Option<&'static str> {
    match *first {
        [b'P', b'K', 3, 4, ..] => Some("a zip archive"),
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => Some("a 7z archive"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("compressed by lz4"),
        [0x1f, 0x9d, ..] => Some("compressed by compress (.Z)"),
        _ => None,
    }
}

/// Refuses a compressed file where random access is needed.
pub(crate) fn refuse_packed(object: &str, file: &dyn ReadAt) -> Result<()> {
    let mut first = [0; Compression::MAGIC_BYTES as usize];
    let read = file.read_at(&mut first, 0).map_err(Error::io(object))?;
    match Compression::of(&first[..read]) {
        Compression::Plain => Ok(()),
        packed => {
            let reason = format!(
                "it is compressed by {0} as a whole; unpack it first ({0} -d)",
                packed.name()
            );
            Err(Error::unsupported(object, reason))
        }
    }
}

/// 32 MiB.
const LARGEST_WINDOW_LOG: u32 = 25;

/// The window, and about 64 KiB of liblzma itself.
const LARGEST_XZ_BYTES: u64 = (1 << LARGEST_WINDOW_LOG) + (1 << 20);

type Stored<R> = Counted<BufReader<Chain<Cursor<Vec<u8>>, R>>>;

enum Unpacked<R: Read> {
    Plain(Stored<R>),
    Gzip(Box<MultiGzDecoder<Stored<R>>>),
    Bzip2(Box<MultiBzDecoder<Stored<R>>>),
    Xz(Box<XzDecoder<Stored<R>>>),
    Zstd(ZstdDecoder<'static, Stored<R>>),
}

/// A file read from its start to its end.
pub struct Source<R: Read> {
    object: String,
    unpacked: Unpacked<R>,
}

impl<R: Read> Source<R> {
    /// Recognizes the compression by the first bytes of `reader`. `object` is the file's name in
    /// errors.
    pub fn open(object: &str, mut reader: R) -> Result<Source<R>> {
        let mut first = Vec::new();
        reader
            .by_ref()
            .take(Compression::MAGIC_BYTES)
            .read_to_end(&mut first)
            .map_err(Error::io(object))?;
        if let Some(packed) = not_read(&first) {
            let reason = format!(
                "it is {packed}; text may be plain, or compressed by gzip, bzip2, xz or zstd"
            );
            return Err(Error::unsupported(object, reason));
        }
        let compression = Compression::of(&first);
        let stored = Counted {
            inner: BufReader::with_capacity(1 << 16, Cursor::new(first).chain(reader)),
            consumed: 0,
            failed: false,
        };
        let unpacked = match compression {
            Compression::Plain => Unpacked::Plain(stored),
            Compression::Gzip => Unpacked::Gzip(Box::new(MultiGzDecoder::new(stored))),
            Compression::Bzip2 => Unpacked::Bzip2(Box::new(MultiBzDecoder::new(stored))),
            Compression::Xz => {
                let stream = Stream::new_stream_decoder(LARGEST_XZ_BYTES, CONCATENATED);
                let stream = stream.map_err(|error| Error::io(object)(error.into()))?;
                Unpacked::Xz(Box::new(XzDecoder::new_stream(stored, stream)))
            }
            Compression::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(stored).map_err(Error::io(object))?;
                decoder
                    .window_log_max(LARGEST_WINDOW_LOG)
                    .map_err(Error::io(object))?;
                Unpacked::Zstd(decoder)
            }
        };
        Ok(Source {
            object: object.into(),
            unpacked,
        })
    }

    /// The file's name in errors.
    #[must_use]
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Compression of the file.
    #[must_use]
    pub fn compression(&self) -> Compression {
        match self.unpacked {
            Unpacked::Plain(_) => Compression::Plain,
            Unpacked::Gzip(_) => Compression::Gzip,
            Unpacked::Bzip2(_) => Compression::Bzip2,
            Unpacked::Xz(_) => Compression::Xz,
            Unpacked::Zstd(_) => Compression::Zstd,
        }
    }

    /// Bytes of the file consumed so far, as stored: compared with the file's length this is the
    /// progress.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored().consumed
    }

    fn stored(&self) -> &Stored<R> {
        match &self.unpacked {
            Unpacked::Plain(stored) => stored,
            Unpacked::Gzip(decoder) => decoder.get_ref(),
            Unpacked::Bzip2(decoder) => decoder.get_ref(),
            Unpacked::Xz(decoder) => decoder.get_ref(),
            Unpacked::Zstd(decoder) => decoder.get_ref(),
        }
    }

    /// Reads until `bytes` is full or the file ends; returns the number of bytes read. A file that
    /// ends in the middle of its compressed data is an error, not an end.
    pub fn read_full(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            let read = match &mut self.unpacked {
                Unpacked::Plain(stored) => stored.read(rest),
                Unpacked::Gzip(decoder) => decoder.read(rest),
                Unpacked::Bzip2(decoder) => decoder.read(rest),
                Unpacked::Xz(decoder) => decoder.read(rest),
                Unpacked::Zstd(decoder) => decoder.read(rest),
            };
            match read {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(filled)
    }

    fn failure(&self, error: io::Error) -> Error {
        let packed = self.compression();
        if packed == Compression::Plain || self.stored().failed {
            return Error::Io {
                object: self.object.clone(),
                source: error,
            };
        }
        if let Some(level) = window_is_larger(packed, &error) {
            let reason = format!(
                "its {} window is larger than 32 MiB; compress it again at a level up to {level}",
                packed.name()
            );
            return Error::unsupported(&self.object, reason);
        }
        let packed = packed.name();
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                format!("the {packed} data is truncated")
            }
            _ => format!("damaged {packed} data: {error}"),
        };
        Error::corrupt(&self.object, self.stored_bytes(), reason)
    }

    /// Skips decompressed bytes, to continue at the end of an earlier reader.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        let mut passed = vec![0; 1 << 16];
        let mut left = bytes;
        while left > 0 {
            let wanted = left.min(passed.len() as u64) as usize;
            let read = self.read_full(&mut passed[..wanted])?;
            left -= read as u64;
            if read < wanted {
                let reason = format!(
                    "the file ends at byte {} of its text, before byte {bytes} at which to continue",
                    bytes - left
                );
                return Err(Error::corrupt(&self.object, self.stored_bytes(), reason));
            }
        }
        Ok(())
    }
}

/// If an error says that a window exceeds the limit, the highest level whose windows do not.
fn window_is_larger(packed: Compression, error: &io::Error) -> Option<u32> {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<liblzma::stream::Error>());
    match packed {
        Compression::Xz if inner == Some(&liblzma::stream::Error::MemLimit) => Some(8),
        // zstd's own message for a frame with a larger window.
        Compression::Zstd if error.to_string().contains("too much memory") => Some(20),
        _ => None,
    }
}

/// Counts the consumed bytes, and records whether an error came from the device.
struct Counted<B> {
    inner: B,
    consumed: u64,
    failed: bool,
}

impl<B: BufRead> BufRead for Counted<B> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let Counted { inner, failed, .. } = self;
        inner
            .fill_buf()
            .inspect_err(|error| *failed |= error.kind() != io::ErrorKind::Interrupted)
    }

    fn consume(&mut self, bytes: usize) {
        self.consumed += bytes as u64;
        self.inner.consume(bytes);
    }
}

impl<B: BufRead> Read for Counted<B> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self
            .inner
            .read(bytes)
            .inspect_err(|error| self.failed |= error.kind() != io::ErrorKind::Interrupted)?;
        self.consumed += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::new(1));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn xz(bytes: &[u8]) -> Vec<u8> {
        liblzma::encode_all(bytes, 1).unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ::zstd::encode_all(bytes, 3).unwrap()
    }

    type Pack = fn(&[u8]) -> Vec<u8>;

    const PACKERS: [Pack; 4] = [gzip, bzip2, xz, zstd];

    fn text() -> Vec<u8> {
        (0..40_000)
            .flat_map(|line| format!("{line} {}\n", line * line).into_bytes())
            .collect()
    }

    fn read(stored: &[u8]) -> Result<Vec<u8>> {
        let mut source = Source::open("x", stored)?;
        let mut bytes = vec![0; 4 << 20];
        let read = source.read_full(&mut bytes)?;
        bytes.truncate(read);
        assert_eq!(source.stored_bytes(), stored.len() as u64);
        Ok(bytes)
    }

    #[test]
    fn several_members_or_frames_read_as_one_stream() {
        let text = text();
        let (left, right) = text.split_at(text.len() / 3);
        assert_eq!(read(&text).unwrap(), text);
        for pack in PACKERS {
            assert_eq!(
                read(&[pack(left), pack(b""), pack(right)].concat()).unwrap(),
                text
            );
            assert_eq!(read(&pack(b"")).unwrap(), b"");
        }
        // The padding that xz allows between streams and behind them.
        assert_eq!(
            read(&[xz(left), vec![0; 8], xz(right), vec![0; 4]].concat()).unwrap(),
            text
        );
        for short in [&b""[..], b"1", b"12\n", b"BZh9 is a word\n"] {
            assert_eq!(read(short).unwrap(), short);
        }
    }

    #[test]
    fn a_truncated_stream_is_an_error_that_names_the_offset() {
        for whole in PACKERS.map(|pack| pack(&text())) {
            for length in [whole.len() / 2, whole.len() - 1] {
                match read(&whole[..length]) {
                    Err(Error::Corrupt { offset, reason, .. }) => {
                        assert_eq!(offset, length as u64);
                        assert!(reason.contains("truncated"), "{reason}");
                    }
                    other => panic!("{length}: {:?}", other.map(|bytes| bytes.len())),
                }
            }
        }
    }

    #[test]
    fn damage_in_the_middle_is_an_error_near_its_offset() {
        for pack in PACKERS {
            let mut stored = pack(&text());
            let middle = stored.len() / 2;
            stored[middle..middle + 16].fill(0xff);
            match read(&stored) {
                Err(Error::Corrupt { offset, .. }) => {
                    assert!(offset <= stored.len() as u64 && offset > 0)
                }
                other => panic!("{:?}", other.map(|bytes| bytes.len())),
            }
            let trailing = [pack(b"1\n"), b"garbage".to_vec()].concat();
            assert!(matches!(read(&trailing), Err(Error::Corrupt { .. })));
        }
    }

    #[test]
    fn a_window_that_would_take_much_memory_is_refused() {
        let packed = |window_log| {
            let mut encoder = ::zstd::Encoder::new(Vec::new(), 3).unwrap();
            encoder.window_log(window_log).unwrap();
            encoder.write_all(&text()).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(read(&packed(25)).unwrap(), text());
        assert!(matches!(read(&packed(26)), Err(Error::Unsupported { .. })));
        let packed = |level| liblzma::encode_all(&text()[..], level).unwrap();
        assert_eq!(read(&packed(8)).unwrap(), text());
        match read(&packed(9)) {
            Err(Error::Unsupported { reason, .. }) => {
                assert!(reason.contains("level up to 8"), "{reason}")
            }
            other => panic!("{:?}", other.map(|bytes| bytes.len())),
        }
    }

    #[test]
    fn what_is_packed_otherwise_is_named() {
        for (first, named) in [
            (&b"PK\x03\x04"[..], "zip"),
            (b"\x04\x22\x4d\x18", "lz4"),
            (b"\x1f\x9d", "compress"),
        ] {
            match Source::open("x", [first, &[7; 20]].concat().as_slice()).map(drop) {
                Err(Error::Unsupported { reason, .. }) => {
                    assert!(reason.contains(named), "{reason}")
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_error_of_the_device_stays_one() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the cable is out"))
            }
        }
        let stored = gzip(&text());
        let mut source = Source::open("x", stored[..stored.len() / 2].chain(Failing)).unwrap();
        assert!(matches!(
            source.read_full(&mut vec![0; 4 << 20]),
            Err(Error::Io { .. })
        ));
    }

    #[test]
    fn skipping_beyond_the_end_is_an_error() {
        let mut source = Source::open("x", &b"12345"[..]).unwrap();
        source.skip(3).unwrap();
        let mut rest = [0; 8];
        assert_eq!(source.read_full(&mut rest).unwrap(), 2);
        assert!(Source::open("x", &b"12345"[..]).unwrap().skip(6).is_err());
    }
}
