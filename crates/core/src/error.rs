//! The one error type of the library.

use std::io;

use outcore_device::OpKind;
use outcore_store as store;

use crate::format::FormatError;

/// What went wrong, by what a caller could do about it.
///
/// ```
/// use std::io;
/// use outcore_core::{Error, FormatError};
///
/// let shape = Error::shape("x has 3 columns, y has 4");
/// assert_eq!(shape.to_string(), "x has 3 columns, y has 4");
/// assert_eq!(Error::value("k is 0").to_string(), "k is 0");
/// let corrupt = FormatError::Corrupt { object: "x.npy".into(), offset: 6, reason: "no version".into() };
/// assert!(Error::from(corrupt).is_damage() && !shape.is_damage());
/// let full = Error::of_io("x.npy", io::ErrorKind::OutOfMemory.into());
/// println!("{full}");
/// let device = Error::of_io("x.npy", io::Error::from_raw_os_error(5));
/// assert!(matches!(device.again(), Error::Device { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operands whose shapes do not fit together, or to the operation.
    #[error("{what}")]
    Shape {
        /// The shapes in words.
        what: String,
    },
    /// Operands of different or unsuitable element types.
    #[error("{what}")]
    DType {
        /// The types in words.
        what: String,
    },
    /// An argument outside its range.
    #[error("{what}")]
    Value {
        /// Which, and what it may be.
        what: String,
    },
    /// The memory budget is too small for this; nothing was read or written.
    #[error(
        "{what} needs {needed} bytes of memory, but {available} of the budget of {budget} are free"
    )]
    OverBudget {
        /// The operation that asked for it.
        what: String,
        /// Bytes that would be enough.
        needed: u64,
        /// Bytes not yet reserved by others.
        available: u64,
        /// The session's whole budget, bytes.
        budget: u64,
    },
    /// A session wants more of the memory that the sessions of a process share than others have
    /// left of it.
    #[error(
        "a session of {needed} bytes does not fit: other sessions of this process have taken {taken} of the {cap} bytes that it may use; a session gives its memory back when it, and all that was opened with it, is closed"
    )]
    OverCap {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that other sessions have.
        taken: u64,
        /// Bytes that all sessions may have together.
        cap: u64,
    },
    /// A call wants more memory for itself than its session has.
    #[error(
        "a call may have a part of its session's memory: {needed} bytes are more than the session's budget of {budget}"
    )]
    OverPart {
        /// Bytes asked for.
        needed: u64,
        /// The session's whole budget, bytes.
        budget: u64,
    },
    /// A file that is no matrix, or not one that can be used here.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A line of foreign text that does not follow its format.
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
    /// A file or folder that cannot be opened, created, locked or found.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The device failed under an object.
    #[error("{object}: {source}")]
    Device {
        /// Name of the object that was read or written.
        object: String,
        /// What the device said.
        source: io::Error,
    },
    /// NaN or infinity where the result would be meaningless.
    #[error("{object} has a value that is not finite at row {row}, column {column}")]
    NotFinite {
        /// The matrix.
        object: String,
        /// Row, from 0.
        row: u64,
        /// Column, from 0.
        column: u64,
    },
    /// A BLAS library that cannot be used.
    #[error("{what}")]
    Blas {
        /// Which, and why.
        what: String,
    },
    /// The caller keeps all memory that a stream may have; it goes on once some of it was dropped.
    #[error("{what}")]
    Lent {
        /// Which stream, and how much.
        what: String,
    },
    /// The system refused memory that the budget allows.
    #[error("the system has no {bytes} bytes of memory left: {source}")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What it said.
        source: io::Error,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The session is closed, or belongs to the process that this one was forked from.
    #[error("the session is closed, or belongs to another process")]
    Closed,
    /// What a rank of a job has failed with; of another rank than this one, in words.
    #[error("rank {rank}: {source}")]
    Rank {
        /// Which, from 0.
        rank: usize,
        /// What it failed with.
        source: Box<Error>,
    },
    /// A computation failed.
    #[error("{what}")]
    Failed {
        /// What, and why.
        what: String,
    },
}

/// Results of the library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the system says of an object, by what a caller could do about it.
    pub fn of_io(object: impl Into<String>, source: io::Error) -> Error {
        let object = object.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Store(store::Error::full(&object, "write it", None, &source))
            }
            _ => Error::Device { object, source },
        }
    }

    /// The same error once more, for later callers of what has failed.
    pub fn again(&self) -> Error {
        let copy_of = |source: &io::Error| match source.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(source.kind(), source.to_string()),
        };
        match self {
            Error::Device { object, source } => Error::Device {
                object: object.clone(),
                source: copy_of(source),
            },
            Error::Store(store::Error::NoSpace {
                object,
                needed,
                free,
            }) => Error::Store(store::Error::NoSpace {
                object: object.clone(),
                needed: *needed,
                free: *free,
            }),
            Error::Store(store::Error::TooLarge {
                object,
                needed,
                limit,
            }) => Error::Store(store::Error::TooLarge {
                object: object.clone(),
                needed: *needed,
                limit: *limit,
            }),
            Error::Store(store::Error::Full {
                object,
                action,
                needed,
                free,
                is_quota,
            }) => Error::Store(store::Error::Full {
                object: object.clone(),
                action: action.clone(),
                needed: *needed,
                free: *free,
                is_quota: *is_quota,
            }),
            other => Error::Failed {
                what: format!("an earlier write has failed: {other}"),
            },
        }
    }

    /// Whether bytes on the device are not what was written, or cannot be read. What is sound but
    /// not of a kind that is used is not damaged.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::Format(FormatError::Corrupt { .. } | FormatError::Truncated { .. })
                | Error::Device { .. }
        )
    }

    /// A [`Error::Shape`] in these words.
    pub fn shape(what: impl Into<String>) -> Error {
        Error::Shape { what: what.into() }
    }

    /// A [`Error::Value`] in these words.
    pub fn value(what: impl Into<String>) -> Error {
        Error::Value { what: what.into() }
    }
}

impl From<outcore_engine::Error> for Error {
    fn from(error: outcore_engine::Error) -> Error {
        use outcore_engine::Error as Engine;
        match error {
            Engine::OverBudget {
                what,
                needed,
                available,
                budget,
            } => Error::OverBudget {
                what,
                needed,
                available,
                budget,
            },
            Engine::Device { object, source } => device(object, source),
            Engine::NoMemory { bytes, source } => Error::NoMemory { bytes, source },
            Engine::Task { task, source } => match source.downcast::<Error>() {
                Ok(own) => *own,
                Err(source) => Error::Failed {
                    what: format!("task {task}: {source}"),
                },
            },
            lent @ Engine::Lent { .. } => Error::Lent {
                what: lent.to_string(),
            },
            frames @ Engine::Frames { .. } => Error::value(frames.to_string()),
            Engine::Cancelled => Error::Cancelled,
            Engine::Closed => Error::Closed,
            other => Error::Failed {
                what: other.to_string(),
            },
        }
    }
}

fn device(object: String, source: outcore_device::DeviceError) -> Error {
    if source.op == OpKind::Drive {
        let object = if source.device == object {
            object
        } else {
            format!("{object} {}", source.device)
        };
        return Error::Device {
            object,
            source: source.source,
        };
    }
    if let Some(full) = full(&object, &source) {
        return Error::Store(full);
    }
    let text = match source.device == object {
        true => source
            .to_string()
            .trim_start_matches(&object)
            .trim_start_matches(": ")
            .to_owned(),
        false => source.to_string(),
    };
    Error::Device {
        object,
        source: io::Error::new(source.kind(), text),
    }
}

/// A disk that has run full under an object, or a file that was to become longer than files may be.
fn full(object: &str, source: &outcore_device::DeviceError) -> Option<store::Error> {
    let outcore_device::DeviceError {
        device,
        offset,
        len,
        source,
        ..
    } = source;
    // Scratch has no path but that of its device.
    let object = if object.contains('/') { object } else { device };
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let action = format!("write {len} bytes at offset {offset}");
            let mut full = store::Error::full(device, action, Some(*len), source);
            if let store::Error::Full { object: named, .. } = &mut full {
                object.clone_into(named);
            }
            Some(full)
        }
        io::ErrorKind::FileTooLarge => Some(store::Error::too_large(object, offset + len)),
        _ => None,
    }
}

impl From<outcore_kernels::Error> for Error {
    fn from(error: outcore_kernels::Error) -> Error {
        use outcore_kernels::Error as Kernels;
        let what = error.to_string();
        match error {
            Kernels::Shape { .. } | Kernels::View { .. } => Error::Shape { what },
            Kernels::BlasLoad { .. } | Kernels::BlasUnusable { .. } => Error::Blas { what },
            _ => Error::Failed { what },
        }
    }
}
