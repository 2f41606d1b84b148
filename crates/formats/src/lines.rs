//! Text cut into chunks of whole lines, which are parsed independently of each other.

use std::io::Read;
use std::sync::Arc;

use crate::error::Fault;
use crate::number::{Cursor, Parsed};
use crate::{Error, Result, Source};

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Decompressed bytes before it.
    pub byte: u64,
    /// Number of the line that begins here, from 1.
    pub line: u64,
}

impl Position {
    /// The beginning of every text.
    pub const START: Position = Position { byte: 0, line: 1 };
}

impl Default for Position {
    fn default() -> Position {
        Position::START
    }
}

/// Whole lines of a text. The last line of the text may lack its end.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The file's name in errors.
    pub object: Arc<str>,
    /// Where it begins.
    pub position: Position,
    /// The lines.
    pub bytes: Vec<u8>,
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk {
            object: "".into(),
            position: Position::START,
            bytes: Vec::new(),
        }
    }
}

impl Chunk {
    /// A whole text in memory.
    #[must_use]
    pub fn new(object: &str, bytes: Vec<u8>) -> Chunk {
        Chunk {
            object: object.into(),
            position: Position::START,
            bytes,
        }
    }

    /// Number of occurrences of a byte, to size the result of a parser.
    pub(crate) fn count(&self, byte: u8) -> usize {
        memchr::memchr_iter(byte, &self.bytes).count()
    }

    pub(crate) fn line_count(&self) -> usize {
        self.count(b'\n') + usize::from(self.bytes.last().is_some_and(|&byte| byte != b'\n'))
    }

    /// Most lines of at least `least_bytes` bytes, with their ends, in this chunk: sizing for more
    /// would only be for blank lines.
    pub(crate) fn lines_of(&self, least_bytes: usize) -> usize {
        self.line_count().min((self.bytes.len() + 1) / least_bytes)
    }

    /// Runs a parser on the bytes, and adds the line number to its error. A byte order mark of
    /// UTF-8 is skipped.
    pub(crate) fn parsed<T>(&self, parser: impl FnOnce(Cursor) -> Parsed<T>) -> Result<T> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let marked = self.position == Position::START && self.bytes.starts_with(MARK);
        parser(Cursor::new(
            &self.bytes,
            if marked { MARK.len() } else { 0 },
        ))
        .map_err(|fault| self.error(fault))
    }

    #[cold]
    fn error(&self, Fault { at, reason }: Fault) -> Error {
        let before = &self.bytes[..at.min(self.bytes.len())];
        let start = memchr::memrchr(b'\n', before).map_or(0, |end| end + 1);
        Error::Line {
            object: self.object.to_string(),
            line: self.position.line + memchr::memchr_iter(b'\n', before).count() as u64,
            column: (before.len() - start) as u64 + 1,
            reason,
        }
    }
}

/// Cuts a text into chunks at line ends. Holds, besides the source, the beginning of the next line;
/// a chunk and that beginning have at most `max(chunk_bytes, longest_line)` bytes each.
pub struct Lines<R: Read> {
    source: Source<R>,
    object: Arc<str>,
    position: Position,
    /// Bytes read from the source and not returned yet, from `position` on.
    ahead: Vec<u8>,
    chunk_bytes: usize,
    longest_line: usize,
    ended: bool,
    /// Whether the text was returned as a whole.
    given: bool,
}

impl<R: Read> Lines<R> {
    /// Chunks of about `chunk_bytes`, longer only for a single longer line; a line that does not
    /// fit a chunk and has more than `longest_line` bytes is refused. `position` is that of the
    /// source in the text: [`Position::START`], or the end of an earlier reader. To get there,
    /// [`Source::skip`] the bytes; a plain file may be opened at that byte.
    #[must_use]
    pub fn new(
        source: Source<R>,
        position: Position,
        chunk_bytes: usize,
        longest_line: usize,
    ) -> Lines<R> {
        let object = source.object().into();
        let chunk_bytes = chunk_bytes.max(1);
        Lines {
            source,
            object,
            position,
            ahead: Vec::new(),
            chunk_bytes,
            longest_line: longest_line.max(chunk_bytes),
            ended: false,
            given: false,
        }
    }

    /// The file's name in errors.
    #[must_use]
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Position of the next chunk.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The source of the bytes.
    #[must_use]
    pub fn source(&self) -> &Source<R> {
        &self.source
    }

    /// Reads the next lines; false at the end of the text. The content of `chunk` is replaced and
    /// its memory is reused.
    pub fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        let bytes = &mut chunk.bytes;
        bytes.clear();
        bytes.append(&mut self.ahead);
        let mut wanted = self.chunk_bytes;
        let mut searched = 0;
        let length = loop {
            self.fill(bytes, wanted)?;
            if self.ended {
                break bytes.len();
            }
            if let Some(end) = memchr::memrchr(b'\n', &bytes[searched..]) {
                break searched + end + 1;
            }
            searched = bytes.len();
            if wanted >= self.longest_line {
                return Err(self.too_long(wanted));
            }
            wanted = (2 * wanted).min(self.longest_line);
        };
        self.ahead.extend_from_slice(&bytes[length..]);
        bytes.truncate(length);
        chunk.object = self.object.clone();
        chunk.position = self.position;
        self.position.byte += length as u64;
        self.position.line += chunk.line_count() as u64;
        Ok(length > 0)
    }

    /// Reads a whole text at once; false if it was read already, so that an empty text is also
    /// returned once.
    ///
    /// Errors: [`Error::Line`] for a text longer than the longest line.
    pub fn whole(&mut self, chunk: &mut Chunk) -> Result<bool> {
        if std::mem::replace(&mut self.given, true) {
            return Ok(false);
        }
        let bytes = &mut chunk.bytes;
        bytes.clear();
        bytes.append(&mut self.ahead);
        let mut wanted = self.chunk_bytes;
        loop {
            self.fill(bytes, wanted)?;
            if self.ended {
                break;
            }
            if wanted >= self.longest_line {
                let reason = format!(
                    "the text has more than {wanted} bytes, the longest document for this memory; give it more memory"
                );
                return Err(Error::Line {
                    object: self.object.to_string(),
                    line: self.position.line,
                    column: 1,
                    reason,
                });
            }
            wanted = (2 * wanted).min(self.longest_line);
        }
        chunk.object = self.object.clone();
        chunk.position = self.position;
        self.position.byte += bytes.len() as u64;
        self.position.line += chunk.line_count() as u64;
        Ok(true)
    }

    /// The next line, with its end; `None` at the end of the text. For headers.
    pub fn line(&mut self) -> Result<Option<Chunk>> {
        const STEP: usize = 1 << 12;
        let length = loop {
            if let Some(end) = memchr::memchr(b'\n', &self.ahead) {
                break end + 1;
            }
            if self.ended {
                break self.ahead.len();
            }
            if self.ahead.len() >= self.longest_line {
                return Err(self.too_long(self.ahead.len()));
            }
            let mut ahead = std::mem::take(&mut self.ahead);
            let wanted = (2 * ahead.len()).clamp(STEP, self.longest_line.max(STEP));
            let filled = self.fill(&mut ahead, wanted);
            self.ahead = ahead;
            filled?;
        };
        let rest = self.ahead.split_off(length);
        let bytes = std::mem::replace(&mut self.ahead, rest);
        let line = Chunk {
            object: self.object.clone(),
            position: self.position,
            bytes,
        };
        self.position.byte += length as u64;
        self.position.line += line.line_count() as u64;
        Ok((length > 0).then_some(line))
    }

    /// Reads until `bytes` has `wanted`, or the text ends.
    fn fill(&mut self, bytes: &mut Vec<u8>, wanted: usize) -> Result<()> {
        let held = bytes.len();
        if held < wanted && !self.ended {
            bytes.reserve_exact(wanted - held);
            bytes.resize(wanted, 0);
            let read = self.source.read_full(&mut bytes[held..])?;
            bytes.truncate(held + read);
            self.ended = held + read < wanted;
        }
        Ok(())
    }

    fn too_long(&self, bytes: usize) -> Error {
        let reason = format!(
            "the line has more than {bytes} bytes, the most that is allowed; is this a text of short lines?"
        );
        Error::Line {
            object: self.object.to_string(),
            line: self.position.line,
            column: 1,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(text: &[u8], chunk_bytes: usize, longest: usize) -> Lines<&[u8]> {
        Lines::new(
            Source::open("x", text).unwrap(),
            Position::START,
            chunk_bytes,
            longest,
        )
    }

    #[test]
    fn a_whole_text_is_given_once_also_an_empty_one() {
        for text in [&b""[..], b"1", b"1\n22\n\n333333333333333\n"] {
            let (mut lines, mut chunk) = (lines(text, 4, 40), Chunk::default());
            assert!(lines.whole(&mut chunk).unwrap());
            assert_eq!(
                (
                    chunk.bytes.as_slice(),
                    chunk.position,
                    lines.position().byte
                ),
                (text, Position::START, text.len() as u64)
            );
            assert!(!lines.whole(&mut chunk).unwrap());
        }
        let error = lines(b"123456789", 4, 8)
            .whole(&mut Chunk::default())
            .unwrap_err();
        assert!(error.to_string().contains("more than 8 bytes"), "{error}");
    }

    #[test]
    fn a_line_beyond_the_longest_is_named() {
        let mut lines = lines(b"1\n22\n0123456789\n3\n", 4, 8);
        let mut chunk = Chunk::default();
        assert!(lines.next(&mut chunk).unwrap());
        let error = loop {
            match lines.next(&mut chunk) {
                Ok(more) => assert!(more),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Line { line: 3, .. }), "{error}");
    }

    proptest! {
        #[test]
        fn chunks_are_whole_lines_and_all_of_them(text in "[a\n]{0,200}", chunk_bytes in 1_usize..40, headers in 0_usize..4) {
            let mut lines = lines(text.as_bytes(), chunk_bytes, 1000);
            let (mut chunk, mut whole) = (Chunk::default(), Vec::new());
            for _ in 0..headers {
                let Some(line) = lines.line().unwrap() else { break };
                prop_assert_eq!(line.position.byte, whole.len() as u64);
                prop_assert!(line.line_count() == 1);
                whole.extend(line.bytes);
            }
            while lines.next(&mut chunk).unwrap() {
                let line = 1 + memchr::memchr_iter(b'\n', &whole).count() as u64;
                prop_assert_eq!(chunk.position, Position { byte: whole.len() as u64, line });
                whole.extend(&chunk.bytes);
                prop_assert!(whole.ends_with(b"\n") || whole.len() == text.len());
            }
            prop_assert_eq!(whole, text.as_bytes());
        }

        #[test]
        fn reading_goes_on_where_it_stopped(text in "[a\n]{0,200}", chunk_bytes in 1_usize..40) {
            let mut first = lines(text.as_bytes(), chunk_bytes, 1000);
            let mut chunk = Chunk::default();
            first.next(&mut chunk).unwrap();
            let position = first.position();
            let mut source = Source::open("x", text.as_bytes()).unwrap();
            source.skip(position.byte).unwrap();
            let mut second = Lines::new(source, position, chunk_bytes, 1000);
            let mut other = Chunk::default();
            loop {
                prop_assert_eq!(first.next(&mut chunk).unwrap(), second.next(&mut other).unwrap());
                prop_assert_eq!((chunk.position, &chunk.bytes), (other.position, &other.bytes));
                if chunk.bytes.is_empty() { break }
            }
        }
    }
}
