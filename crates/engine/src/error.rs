//! What can go wrong in the engine, by what a caller could do about it.

use outcore_device::DeviceError;

/// The cause that a task reports for its own failure.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Engine errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More memory is needed than the budget can give; nothing was read or written.
    #[error("{what} needs {needed} bytes of memory, but {available} of the budget of {budget} are free")]
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
    /// The system refused memory that the budget allows.
    #[error("the system has no {bytes} bytes of memory left: {source}")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
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

/// Engine results.
pub type Result<T> = std::result::Result<T, Error>;
