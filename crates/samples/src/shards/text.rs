//! The bytes of a file in order, decompressed where they are compressed: in memory only from where
//! they are kept.

use std::io::{Chain, Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outcore_core::bytes::Bytes;
use outcore_core::limits::memory_allowed;
use outcore_core::{Error, FormatError, MemorySplit, Result, Session, StoredFile};
use outcore_engine::{Reservation, StreamOptions};
use outcore_formats::{Compression, Source};

use super::kind::{self, HEAD, but_other};
use crate::Form;
use crate::record_format::tar::{self, Feed, has_magic, is_header};
use crate::record_format::{Fault, shown};

/// Added to memory at once, where nothing is known of what comes.
const PIECE: u64 = 1 << 20;
/// Memory that stays between samples, whatever they need.
const LEAST: usize = 64 << 10;

type Stored = Chain<Cursor<Vec<u8>>, Bytes>;

enum Reading {
    Plain(Stored),
    Packed(Box<Source<Stored>>),
}

/// See above.
pub(super) struct Text {
    session: Session,
    file: Arc<StoredFile>,
    form: Form,
    stop: Arc<AtomicBool>,
    options: StreamOptions,
    reading: Reading,
    /// The next byte to be read, decompressed.
    at: u64,
    kept: Vec<u8>,
    /// Of what is kept: where a run of bytes of the file begins, and which of the file that is.
    runs: Vec<(usize, u64)>,
    reserved: Vec<Reservation>,
}

impl Text {
    /// A file from a byte of its text on.
    pub(super) fn open(
        session: &Session,
        path: &Path,
        form: Form,
        in_place: bool,
        at: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<Text> {
        let file = session.file(path, false)?;
        let block_bytes = MemorySplit::new(session).side_block_bytes(32 << 10, 1 << 20) as usize;
        let options = StreamOptions {
            block_bytes,
            ahead: 4,
        };
        let (name, len) = (file.extent().name().to_owned(), file.extent().len());
        let mut bytes = Bytes::of(session, file.extent(), 0..len, options, stop)?;
        let mut head = Vec::new();
        bytes
            .by_ref()
            .take(HEAD as u64)
            .read_to_end(&mut head)
            .map_err(|error| failed(&name, error))?;
        let packed = kind::packed(&head).filter(|_| !form.is_sure(&head));
        let reading = match packed {
            Some(how) if in_place => {
                return Err(Error::value(format!(
                    "{name}: it is compressed ({how}), and index leaves bytes where they are; pack it, or decompress it"
                )));
            }
            Some(how) => {
                let mut source = Source::open(&name, Cursor::new(head).chain(bytes))?;
                if source.compression() == Compression::Plain {
                    let reason = format!("it is compressed by {how}, which is not read");
                    return Err(FormatError::Unsupported {
                        object: name,
                        reason,
                    }
                    .into());
                }
                source.skip(at)?;
                Reading::Packed(Box::new(source))
            }
            None if at == 0 => Reading::Plain(Cursor::new(head).chain(bytes)),
            None => {
                drop(bytes);
                let bytes = Bytes::of(session, file.extent(), at.min(len)..len, options, stop)?;
                Reading::Plain(Cursor::default().chain(bytes))
            }
        };
        let (session, stop) = (session.clone(), Arc::clone(stop));
        Ok(Text {
            session,
            file,
            form,
            stop,
            options,
            reading,
            at,
            kept: Vec::new(),
            runs: Vec::new(),
            reserved: Vec::new(),
        })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn name(&self) -> &str {
        self.file.extent().name()
    }

    /// How much of it has been read.
    pub(super) fn fraction(&self) -> f64 {
        let read = match &self.reading {
            Reading::Plain(_) => self.at,
            Reading::Packed(source) => source.stored_bytes(),
        };
        (read as f64 / self.file.extent().len().max(1) as f64).min(1.0)
    }

    /// Where it ends, if that is known.
    pub(super) fn end(&self) -> Option<u64> {
        matches!(self.reading, Reading::Plain(_)).then(|| self.file.extent().len())
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Which byte of the text one of what is kept is.
    pub(super) fn origin(&self, at: usize) -> u64 {
        let run = self
            .runs
            .partition_point(|&(start, _)| start <= at)
            .saturating_sub(1);
        self.runs
            .get(run)
            .map_or(0, |&(start, origin)| origin + (at - start.min(at)) as u64)
    }

    /// Lets go of what is kept before some byte of it.
    pub(super) fn forget(&mut self, before: usize) {
        let origin = self.origin(before);
        self.kept.drain(..before);
        self.runs.retain(|&(start, _)| start > before);
        self.runs.iter_mut().for_each(|(start, _)| *start -= before);
        self.runs.insert(0, (0, origin));
        let held: u64 = self.reserved.iter().map(Reservation::bytes).sum();
        if self.kept.capacity() as u64 > held + LEAST as u64 {
            // What was beside the budget is not held longer than it has to be.
            self.kept.shrink_to(LEAST);
        }
    }

    /// Lets go of what is kept from some byte of it on.
    pub(super) fn cut(&mut self, from: usize) {
        self.kept.truncate(from);
        self.runs.retain(|&(start, _)| start < from);
    }

    /// Keeps the next `bytes` bytes, or as many as there are; gives how many.
    pub(super) fn keep(&mut self, bytes: u64) -> Result<u64> {
        let mut left = bytes.min(
            self.end()
                .map_or(u64::MAX, |end| end.saturating_sub(self.at)),
        );
        let known = self.end().is_some();
        if self
            .runs
            .last()
            .is_none_or(|&(start, origin)| origin + (self.kept.len() - start) as u64 != self.at)
        {
            self.runs.push((self.kept.len(), self.at));
        }
        let mut kept = 0;
        while left > 0 {
            // Of a compressed file there may be less than it says: memory grows with what is there.
            let piece = if known {
                left
            } else {
                left.min(PIECE.max(self.kept.len() as u64))
            };
            self.make_room(piece)?;
            let start = self.kept.len();
            self.kept.resize(start + piece as usize, 0);
            let read = read(
                &mut self.reading,
                self.file.extent().name(),
                &mut self.kept[start..],
            )?;
            self.kept.truncate(start + read);
            (self.at, kept, left) = (
                self.at + read as u64,
                kept + read as u64,
                left - read as u64,
            );
            if (read as u64) < piece {
                break;
            }
        }
        Ok(kept)
    }

    /// Passes over bytes; gives how many there were.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<u64> {
        if let Some(end) = self.end() {
            let bytes = bytes.min(end.saturating_sub(self.at));
            if bytes > (self.options.block_bytes * self.options.ahead) as u64 {
                self.reopen(self.at + bytes)?;
                return Ok(bytes);
            }
        }
        let (mut passed, mut buffer) = (0, vec![0; bytes.min(64 << 10) as usize]);
        while passed < bytes {
            let len = buffer.len().min((bytes - passed) as usize);
            let read = read(
                &mut self.reading,
                self.file.extent().name(),
                &mut buffer[..len],
            )?;
            passed += read as u64;
            if read < len {
                break;
            }
        }
        self.at += passed;
        Ok(passed)
    }

    /// Goes to a byte further on, in a file that is not compressed.
    fn reopen(&mut self, at: u64) -> Result<()> {
        let (extent, options) = (self.file.extent(), self.options);
        let nothing = Bytes::of(
            &self.session,
            extent,
            0..0,
            StreamOptions {
                block_bytes: 1,
                ahead: 1,
            },
            &self.stop,
        )?;
        // What is read ahead goes before more is.
        self.reading = Reading::Plain(Cursor::default().chain(nothing));
        let bytes = Bytes::of(&self.session, extent, at..extent.len(), options, &self.stop)?;
        (self.reading, self.at) = (Reading::Plain(Cursor::default().chain(bytes)), at);
        Ok(())
    }

    /// Makes room for `bytes` more bytes.
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        let need = self.kept.len() as u64 + bytes;
        if need <= self.kept.capacity() as u64 {
            return Ok(());
        }
        let what = format!(
            "a sample of {}, before byte {},",
            self.name(),
            self.at + bytes
        );
        let held: u64 = self.reserved.iter().map(Reservation::bytes).sum();
        let reserve = |capacity: u64| {
            self.session
                .engine()
                .reserve(&what, capacity.saturating_sub(held))
        };
        let roomy = need.max(2 * self.kept.capacity() as u64).max(LEAST as u64);
        let (capacity, reserved) = match reserve(roomy) {
            Ok(reserved) => (roomy, Some(reserved)),
            Err(_) => match reserve(need) {
                Ok(reserved) => (need, Some(reserved)),
                Err(outcore_engine::Error::OverBudget { .. }) if need <= memory_allowed() / 2 => {
                    (need, None)
                }
                Err(error) => return Err(error.into()),
            },
        };
        let more = capacity as usize - self.kept.len();
        self.kept
            .try_reserve_exact(more)
            .map_err(|_| Error::NoMemory {
                bytes: capacity,
                source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, what),
            })?;
        self.reserved.extend(reserved);
        Ok(())
    }

    /// An error about the text itself.
    pub(super) fn damaged(&self, at: u64, reason: impl Into<String>) -> Error {
        FormatError::Corrupt {
            object: self.name().to_owned(),
            offset: at,
            reason: reason.into(),
        }
        .into()
    }

    /// The file is something else.
    pub(super) fn is_no(&self, what: &str, head: &[u8]) -> Error {
        let reason = format!("it is no {what}{}", but_other(head));
        FormatError::Unsupported {
            object: self.name().to_owned(),
            reason,
        }
        .into()
    }

    /// It ends before something does.
    pub(super) fn ends_within(&self, what: &str, expected: u64) -> Error {
        let object = format!("{}: {what}", self.name());
        FormatError::Truncated {
            object,
            expected,
            actual: self.at,
        }
        .into()
    }

    /// Refuses what is not a header, before anything is taken for one.
    fn check_first_block(&self) -> Result<()> {
        let head = &self.kept[..];
        match head.len() {
            0 => Err(self.damaged(0, "it is empty, and ends without the mark of an end")),
            HEAD.. if is_header(head) || has_magic(head) || head.iter().all(|&byte| byte == 0) => {
                Ok(())
            }
            HEAD.. => Err(self.is_no("tar archive: its first block is not a header", head)),
            _ if kind::other(head).is_some() || !head.contains(&0) => {
                Err(self.is_no("tar archive", head))
            }
            _ => Ok(()),
        }
    }

    /// Behind the mark of the end there are zeros only: what else there is would be lost without a
    /// word.
    fn check_end(&mut self) -> Result<()> {
        let start = self.kept.len();
        loop {
            let at = self.at;
            let read = self.keep(64 << 10)?;
            let found = self.kept[start..].iter().position(|&byte| byte != 0);
            self.cut(start);
            match found {
                Some(within) => {
                    let why = "there is more behind the mark of its end: a block of zeros, or another archive";
                    return Err(self.damaged(at + within as u64, why));
                }
                None if read == 0 => return Ok(()),
                None => {}
            }
        }
    }
}

fn read(reading: &mut Reading, name: &str, bytes: &mut [u8]) -> Result<usize> {
    match reading {
        Reading::Packed(source) => Ok(source.read_full(bytes)?),
        Reading::Plain(stored) => {
            let mut filled = 0;
            while filled < bytes.len() {
                match stored
                    .read(&mut bytes[filled..])
                    .map_err(|error| failed(name, error))?
                {
                    0 => break,
                    read => filled += read,
                }
            }
            Ok(filled)
        }
    }
}

fn failed(name: &str, source: std::io::Error) -> Error {
    match source.downcast::<Error>() {
        Ok(own) => own,
        Err(source) => Error::Device {
            object: name.to_owned(),
            source,
        },
    }
}

/// A tar archive, of which headers are kept, and members where that is asked for.
impl Feed for Text {
    type Error = Error;

    fn block(&mut self) -> Result<Option<Range<usize>>> {
        let padding = self.at.next_multiple_of(tar::BLOCK) - self.at;
        let (is_first, padded) = (self.at == 0 && self.form == Form::Tar, self.keep(padding)?);
        let (start, at) = (self.kept.len(), self.at);
        let read = if padded < padding {
            0
        } else {
            self.keep(tar::BLOCK)?
        };
        if is_first {
            self.check_first_block()?;
        }
        match read {
            0 => Err(self.damaged(at, "it ends without the mark of an end")),
            1..tar::BLOCK => Err(self.damaged(at, "it ends within a header")),
            _ if self.kept[start..].iter().all(|&byte| byte == 0) => {
                self.check_end()?;
                Ok(None)
            }
            _ => Ok(Some(start..self.kept.len())),
        }
    }

    fn take(&mut self, bytes: u64, what: &dyn Fn() -> String) -> Result<Range<usize>> {
        let (start, at) = (self.kept.len(), self.at);
        let is_there = self.end().is_none_or(|end| bytes <= end.saturating_sub(at));
        match is_there && self.keep(bytes)? == bytes {
            true => Ok(start..self.kept.len()),
            false => Err(self.damaged(at, format!("it ends within {}, of {bytes} bytes", what()))),
        }
    }

    fn get(&self, range: Range<usize>) -> &[u8] {
        &self.kept[range]
    }

    fn at(&self) -> u64 {
        self.at
    }

    fn fail(&self, fault: Fault) -> Error {
        super::wrong(self.name(), String::new(), self.at, fault)
    }
}

impl Text {
    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        &self.kept[range]
    }

    /// Passes over the bytes of a member that is not wanted.
    pub(super) fn pass_member(&mut self, bytes: u64, name: &[u8]) -> Result<()> {
        let at = self.at;
        match self.skip(bytes)? == bytes {
            // Where its padding is missing, so is what should be behind.
            true => self
                .skip(self.at.next_multiple_of(tar::BLOCK) - self.at)
                .map(drop),
            false => Err(self.damaged(
                at,
                format!("it ends within {}, of {bytes} bytes", shown(name)),
            )),
        }
    }
}
