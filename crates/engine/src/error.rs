//! Errors of the engine, one variant for each action that a caller could take.

use std::io;

use outcore_device::DeviceError;

/// The cause that a task reports for its own failure.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Engine errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More memory is needed than the budget can grant; nothing was read or written.
    #[error(
        "{what} needs {needed} bytes of memory, but {available} of the budget of {budget} are free"
    )]
    OverBudget {
        /// The activity that needs the memory.
        what: String,
        /// Bytes that would be sufficient.
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
        /// The error of the device, with operation, offset and length.
        source: DeviceError,
    },
    /// A range is not inside its object.
    #[error("{object}: {len} bytes at offset {offset} are not inside its {object_len} bytes")]
    OutOfRange {
        /// Name of the object.
        object: String,
        /// First byte of the range.
        offset: u64,
        /// Length of the range.
        len: u64,
        /// Length of the object.
        object_len: u64,
    },
    /// The caller holds all memory of a stream; the stream continues once the caller has dropped
    /// some of it.
    #[error(
        "all {bytes} bytes of memory of the stream over {object} are lent to its caller; drop a block before the next is taken"
    )]
    Lent {
        /// Name of the object that is streamed.
        object: String,
        /// Bytes that the caller holds.
        bytes: u64,
    },
    /// Memory that the caller supplied for a stream has the wrong length or alignment.
    #[error(
        "the frames for the stream over {object} must have {bytes} bytes each, at addresses that are multiples of {unit}"
    )]
    Frames {
        /// Name of the object that is streamed.
        object: String,
        /// Bytes of a frame.
        bytes: u64,
        /// Required alignment of the addresses.
        unit: usize,
    },
    /// The system refused memory within the budget.
    #[error("the system has no {bytes} bytes of memory left: {source}")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The system refused a thread.
    #[error("outcore needs {what}, and the system refused it: {source}")]
    NoThread {
        /// Purpose of the thread.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A task failed.
    #[error("task {task}: {source}")]
    Task {
        /// Name of the task.
        task: String,
        /// The error of the task.
        source: TaskError,
    },
    /// A plan that cannot be carried out as it is declared.
    #[error("plan {plan}: {reason}")]
    Plan {
        /// Name of the plan.
        plan: String,
        /// What makes it invalid.
        reason: String,
    },
    /// The caller cancelled; the requests in flight have been drained.
    #[error("cancelled")]
    Cancelled,
    /// The session is closed, or belongs to the parent of this forked process.
    #[error("the session is closed")]
    Closed,
}

impl Error {
    /// The same error for another caller. Causes that cannot be cloned become text and keep their
    /// kinds.
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
