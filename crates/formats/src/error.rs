//! The one error type of the crate, and the position at which a parser stopped.

use std::io;

/// What is wrong with a file, one variant for each action that its owner could take.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line of text that does not follow its format.
    #[error("{object}, line {line}, column {column}: {reason}")]
    Line {
        /// The file.
        object: String,
        /// From 1.
        line: u64,
        /// Byte of the line, from 1.
        column: u64,
        /// What was found, and what was expected.
        reason: String,
    },
    /// An entry of a binary file that is invalid in a sparse matrix.
    #[error("{object}, entry {entry}: {reason}")]
    Entry {
        /// The file.
        object: String,
        /// Counted from 0, in the order of the file.
        entry: u64,
        /// What was found, and what was expected.
        reason: String,
    },
    /// The file ends too early, or its container is damaged.
    #[error("{object}: corrupt at byte {offset}: {reason}")]
    Corrupt {
        /// The file.
        object: String,
        /// Byte of the file as it is stored (compressed, if it is).
        offset: u64,
        /// What was found.
        reason: String,
    },
    /// More or fewer rows or entries than the header says.
    #[error("{object}: the header says {expected} {what}, the file has {}{seen}", if *.more { "at least " } else { "" })]
    Counts {
        /// The file.
        object: String,
        /// Rows or entries.
        what: &'static str,
        /// Number in the header.
        expected: u64,
        /// Number found.
        seen: u64,
        /// Whether counting ended before the end of the file.
        more: bool,
    },
    /// A header that announces more than the file has room for.
    #[error(
        "{object}: the header says {expected} {what}, but {text_bytes} bytes of text have room for {most} at most"
    )]
    Room {
        /// The file.
        object: String,
        /// Rows or entries.
        what: &'static str,
        /// Number in the header.
        expected: u64,
        /// Bytes of the file.
        text_bytes: u64,
        /// Most rows or entries that fit into these bytes.
        most: u64,
    },
    /// A valid file that is not a supported sparse matrix, or rows that a format cannot hold.
    #[error("{object}: not supported: {reason}")]
    Unsupported {
        /// The file.
        object: String,
        /// The unsupported property, and an alternative.
        reason: String,
    },
    /// The file could not be read or written.
    #[error("{object}: {source}")]
    Io {
        /// The file.
        object: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// Results of the crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(object: &str) -> impl FnOnce(io::Error) -> Error + '_ {
        |source| Error::Io {
            object: object.into(),
            source,
        }
    }

    pub(crate) fn unsupported(object: &str, reason: impl Into<String>) -> Error {
        Error::Unsupported {
            object: object.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn corrupt(object: &str, offset: u64, reason: impl Into<String>) -> Error {
        Error::Corrupt {
            object: object.into(),
            offset,
            reason: reason.into(),
        }
    }

    pub(crate) fn entry(object: &str, entry: u64, reason: impl Into<String>) -> Error {
        Error::Entry {
            object: object.into(),
            entry,
            reason: reason.into(),
        }
    }
}

/// Position in a chunk at which a parser stopped, and the reason. Lines are counted only for an
/// error, not by the parsers.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Byte of the chunk.
    pub(crate) at: usize,
    pub(crate) reason: String,
}

impl Fault {
    #[cold]
    pub(crate) fn new(at: usize, reason: impl Into<String>) -> Fault {
        Fault {
            at,
            reason: reason.into(),
        }
    }
}

/// Content of a foreign file for errors; long text is shortened.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}
