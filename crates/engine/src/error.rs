//! What can go wrong in the engine, by what a caller could do about it.

use std::io;

use outcore_device::DeviceError;

/// The cause that a task reports for its own failure.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Engine errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More memory is needed than the budget can give; nothing was read or written.
    #[error(
        "{what} needs {needed} bytes of memory, but {available} of the budget of {budget} are free"
    )]
    OverBudget {
        /// Who asked.
        what: String,
        /// Bytes that would be enough.
        needed: u64,
        /// Bytes not yet reserved by others.
        available: u64,
        /// The session's whole budget, bytes.
        budget: u64,
    },
    /// The device failed under an object.
    #[error("{object}: {source}")]
    Device {
        /// Name of the object that was read or written.
        object: String,
        /// What the device said, with operation, offset and length.
        source: DeviceError,
    },
    /// Bytes were asked for that an object does not have.
    #[error("{object}: {len} bytes at offset {offset} are not inside its {object_len} bytes")]
    OutOfRange {
        /// Name of the object.
        object: String,
        /// The first byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes that there are.
        object_len: u64,
    },
    /// The caller keeps all memory of a stream; it goes on once some of it was dropped.
    #[error(
        "all {bytes} bytes of memory of the stream over {object} are lent to its caller; drop a block before the next is taken"
    )]
    Lent {
        /// Name of the object that is streamed.
        object: String,
        /// Bytes that the caller keeps.
        bytes: u64,
    },
    /// Memory that a caller has brought for a stream does not suit it.
    #[error(
        "the frames for the stream over {object} must have {bytes} bytes each, at addresses that are multiples of {unit}"
    )]
    Frames {
        /// Name of the object that is streamed.
        object: String,
        /// Bytes of a frame.
        bytes: u64,
        /// What addresses are multiples of.
        unit: usize,
    },
    /// The system refused memory that the budget allows.
    #[error("the system has no {bytes} bytes of memory left: {source}")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What it said.
        source: std::io::Error,
    },
    /// The system refused a thread.
    #[error("outcore needs {what}, and the system refused it: {source}")]
    NoThread {
        /// What for.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// A task failed.
    #[error("task {task}: {source}")]
    Task {
        /// Name of the task.
        task: String,
        /// Its own error.
        source: TaskError,
    },
    /// A plan that cannot be carried out as it is declared.
    #[error("plan {plan}: {reason}")]
    Plan {
        /// Name of the plan.
        plan: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller cancelled; what was in flight has been drained.
    #[error("cancelled")]
    Cancelled,
    /// The session is closed, or belongs to the process this one was forked from.
    #[error("the session is closed")]
    Closed,
}

impl Error {
    /// The same error for another caller. Causes that cannot be copied become text; their kinds
    /// stay.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::OverBudget {
                what,
                needed,
                available,
                budget,
            } => Error::OverBudget {
                what: what.clone(),
                needed: *needed,
                available: *available,
                budget: *budget,
            },
            Error::Device { object, source } => Error::Device {
                object: object.clone(),
                source: device_again(source),
            },
            Error::OutOfRange {
                object,
                offset,
                len,
                object_len,
            } => Error::OutOfRange {
                object: object.clone(),
                offset: *offset,
                len: *len,
                object_len: *object_len,
            },
            Error::Lent { object, bytes } => Error::Lent {
                object: object.clone(),
                bytes: *bytes,
            },
            Error::Frames {
                object,
                bytes,
                unit,
            } => Error::Frames {
                object: object.clone(),
                bytes: *bytes,
                unit: *unit,
            },
            Error::NoMemory { bytes, source } => Error::NoMemory {
                bytes: *bytes,
                source: io_again(source),
            },
            Error::NoThread { what, source } => Error::NoThread {
                what: what.clone(),
                source: io_again(source),
            },
            Error::Task { task, source } => Error::Task {
                task: task.clone(),
                source: source.to_string().into(),
            },
            Error::Plan { plan, reason } => Error::Plan {
                plan: plan.clone(),
                reason: reason.clone(),
            },
            Error::Cancelled => Error::Cancelled,
            Error::Closed => Error::Closed,
        }
    }
}

fn device_again(error: &DeviceError) -> DeviceError {
    let DeviceError {
        device,
        op,
        offset,
        len,
        source,
    } = error;
    DeviceError {
        device: device.clone(),
        op: *op,
        offset: *offset,
        len: *len,
        source: io_again(source),
    }
}

fn io_again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(
        || io::Error::new(error.kind(), error.to_string()),
        io::Error::from_raw_os_error,
    )
}

/// Engine results.
pub type Result<T> = std::result::Result<T, Error>;
