//! Machine learning on data and models bigger than memory.
//!
//! The SSD is working memory, within a memory budget that holds. [`data`] is what lives there,
//! [`learn`] what is computed from it, [`Session`] the budget and the threads. Every computation is
//! first a
//! [`Job`]: planned, not yet begun, able to say what it will read, write and hold.
//!
//! ```
//! use outcore::learn::linalg::{Gemm, gemm};
//! use outcore::{DType, Order, Output, Session, Settings};
//!
//! # fn main() -> outcore::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let scratch = Some(folder.path().join("scratch"));
//! let session = Session::new(Settings { memory_bytes: Some(64 << 20), scratch, ..Settings::default() })?;
//! let a = session.create(folder.path().join("a.npy"), DType::F32, &[300, 200], Order::Row)?;
//! let job = gemm(&session, a.clone().into(), a.t().into(), Gemm { out: Output::Scratch, ..Gemm::default() })?;
//! println!("{}", job.explain()[0]);
//! assert_eq!(job.run()?.shape(), [300, 300]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod data;
mod error;
mod job;
pub mod learn;
mod limits;
mod memory_split;
pub mod operator;
pub mod pass;
mod session;

pub use data::array::{Array, Operand, Output, convert};
pub use data::file::WrapDevice;
pub use data::format::{Compressed, DType, Element, Order};
pub use data::sparse::{Sparse, SparseBufs};
pub use data::stream::{
    Compression, StreamInfo, StreamOptions, StreamReader, StreamStore, StreamWriter,
};
pub use error::{Error, Result};
pub use job::{Job, Running, Stage};
pub use limits::{memory_allowed, memory_cap};
pub use outcore_device as device;
pub use outcore_device::{Buf, Choice, Memory, Shared};
pub use outcore_engine as engine;
pub use outcore_engine::{Explanation, Progress, Span, Totals, Trace};
pub use outcore_kernels as kernels;
pub use outcore_kernels::{Blas, ColumnStatistics, Norm};
pub use outcore_store as store;
pub use session::{Info, Session, Settings};
