//! Decoding that can be left.
//!
//! Decoders are others' code, which knows nothing of cancellation, and a picture may take seconds.
//! Most of them read their bytes bit by bit, and end soon after a read fails. Those of WebP and TIFF
//! compute when they have read a picture, or a strip of it, and the last pass of a progressive JPEG
//! reads nothing: these go on to their end.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// Bytes of a file from one question to the next: some ten milliseconds of decoding.
const ASK_BYTES: usize = 64 << 10;

/// Whether a picture is wanted any longer.
pub(super) struct Wanted<'a> {
    go_on: &'a dyn Fn() -> bool,
    is_given_up: Cell<bool>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(go_on: &'a dyn Fn() -> bool) -> Wanted<'a> {
        Wanted {
            go_on,
            is_given_up: Cell::new(false),
        }
    }

    /// Whether it turned out that it is not.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    fn ask(&self) -> bool {
        if !self.is_given_up() {
            self.is_given_up.set(!(self.go_on)());
        }
        !self.is_given_up()
    }
}

/// Asks whether a picture is wanted, each time some more of its bytes have been read.
pub(super) struct Poll<'a> {
    wanted: &'a Wanted<'a>,
    ask_at: usize,
}

impl<'a> Poll<'a> {
    /// From a byte on.
    pub(super) fn new(wanted: &'a Wanted<'a>, at: usize) -> Poll<'a> {
        Poll {
            wanted,
            ask_at: at + ASK_BYTES,
        }
    }

    /// Whether to go on; bytes have been read up to this one.
    #[inline(always)]
    pub(super) fn go_on(&mut self, at: usize) -> bool {
        at < self.ask_at || self.ask(at)
    }

    #[cold]
    fn ask(&mut self, at: usize) -> bool {
        let is_wanted = self.wanted.ask();
        if is_wanted {
            self.ask_at = at + ASK_BYTES;
        }
        is_wanted
    }
}

/// The bytes of a file for a decoder; reads fail once the picture is not wanted.
pub(super) struct Bytes<'a> {
    bytes: Cow<'a, [u8]>,
    at: usize,
    poll: Poll<'a>,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: impl Into<Cow<'a, [u8]>>, wanted: &'a Wanted<'a>) -> Bytes<'a> {
        Bytes {
            bytes: bytes.into(),
            at: 0,
            poll: Poll::new(wanted, 0),
        }
    }

    #[inline(always)]
    fn rest(&mut self) -> io::Result<&[u8]> {
        match self.poll.go_on(self.at) {
            true => Ok(self.bytes.get(self.at..).unwrap_or_default()),
            false => Err(io::Error::other("the picture is not wanted any longer")),
        }
    }
}

impl Read for Bytes<'_> {
    #[inline(always)]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.rest()?;
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        self.at += len;
        Ok(len)
    }
}

impl BufRead for Bytes<'_> {
    #[inline(always)]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let rest = self.rest()?;
        Ok(&rest[..rest.len().min(ASK_BYTES)])
    }

    #[inline(always)]
    fn consume(&mut self, len: usize) {
        self.at += len;
    }
}

impl Seek for Bytes<'_> {
    #[inline(always)]
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => usize::try_from(at).ok(),
            SeekFrom::End(by) => self.bytes.len().checked_add_signed(by as isize),
            SeekFrom::Current(by) => self.at.checked_add_signed(by as isize),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at as u64)
    }
}

#[cfg(test)]
mod tests {
    use image::{ImageFormat, RgbImage};

    use super::super::{Channels, Decode, Wrong};
    use super::*;

    const SIDE: u32 = 1500;

    /// Decoders that read as they go ask often; one of TIFF reads a strip at once.
    #[test]
    fn decoding_ends_soon_after_the_picture_is_not_wanted_any_longer() {
        let noise = |x: u32, y: u32| (x * 7919 + y * 104_729).wrapping_mul(2_654_435_761) >> 8;
        let picture = RgbImage::from_fn(SIDE, SIDE, |x, y| {
            let [red, green, blue, _] = noise(x, y).to_le_bytes();
            image::Rgb([red, green, blue])
        });
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp] {
            let mut file = io::Cursor::new(Vec::new());
            picture.write_to(&mut file, format).unwrap();
            let decode = Decode {
                field: "image".into(),
                channels: Channels::Rgb,
                size: None,
                turned: false,
            };
            let asked_until = |stop_at: usize| {
                let asked = Cell::new(0);
                let go_on = || asked.replace(asked.get() + 1) != stop_at;
                let done = decode.decode(file.get_ref(), u64::MAX, &mut Vec::new(), &go_on);
                (asked.get(), done)
            };
            let (all, done) = asked_until(usize::MAX);
            assert!(
                done.is_ok() && all >= 10,
                "{format:?}: {all} questions, {done:?}"
            );
            for stop_at in [0, 3, all - 1] {
                let (asked, done) = asked_until(stop_at);
                assert!(matches!(done, Err(Wrong::GivenUp)), "{format:?}: {done:?}");
                assert_eq!(asked, stop_at + 1, "{format:?}");
            }
        }
    }
}
