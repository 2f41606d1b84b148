//! One session of outcore: its memory budget, its open files, its jobs, and the one error.
//!
//! A [`Session`] has a budget, threads and a scratch folder. Everything that is computed in one is
//! first a [`Job`]: planned, not yet begun, able to say what it will read, write and hold.
//! [`MemorySplit`] is the one place where the budget of an operation is divided. A [`StoredFile`]
//! is a file that the session has open, and its writers; [`mod@format`] says how the bytes of
//! one make a matrix. What is computed, and what matrices, samples and streams are, is not known
//! here.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod checkpoint;
mod error;
pub mod file;
#[cfg(feature = "foreign")]
mod foreign;
pub mod format;
pub mod growing;
mod job;
pub mod limits;
mod memory_split;
pub mod panels;
pub mod ranks;
pub mod reader;
pub mod ring;
mod session;
mod shifted;
pub mod staging;

pub use error::{Error, Result};
pub use file::{StoredFile, WrapDevice};
pub use format::{DType, FormatError, Order};
pub use job::{Job, Running, Segments, Stage};
pub use memory_split::MemorySplit;
pub use outcore_kernels::RealType;
pub use ranks::{Ranks, Team, ThreadRanks};
pub use session::{Info, PLAN_THREADS, Session, Settings};
