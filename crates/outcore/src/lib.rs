//! Machine learning on data and models bigger than memory.
//!
//! The SSD is working memory, within a memory budget that holds. An [`Array`] or [`Sparse`] is a
//! matrix on SSD, [`linalg`], [`kmeans`] and [`pca`] are what is computed from it, [`Session`] is
//! the budget and the threads. Every computation is first a [`Job`]: planned, not yet begun, able
//! to say what it will read, write and hold.
//!
//! This crate only re-exports: `outcore-core` has sessions and jobs, `outcore-matrix` matrices,
//! `outcore-compute` algorithms, `outcore-samples` training samples, `outcore-streams` streams,
//! `outcore-tables` embedding tables, and `outcore-exchange` foreign formats.
//!
//! ```
//! use outcore::linalg::{Gemm, gemm};
//! use outcore::{Array, DType, Order, Output, Session, Settings};
//!
//! # fn main() -> outcore::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let scratch = Some(folder.path().join("scratch"));
//! let session = Session::new(Settings { memory_bytes: Some(64 << 20), scratch, ..Settings::default() })?;
//! let a = Array::create(&session, folder.path().join("a.npy"), DType::F32, &[300, 200], Order::Row)?;
//! let job = gemm(&session, a.clone().into(), a.t().into(), Gemm { out: Output::Scratch, ..Gemm::default() })?;
//! println!("{}", job.explain()[0]);
//! assert_eq!(job.run()?.shape(), [300, 300]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub use outcore_compute::{kmeans, linalg, neighbors, operator, pass, pca, spectra, topics};
pub use outcore_core::limits::{memory_allowed, memory_cap};
pub use outcore_core::{
    DType, Error, FormatError, Info, Job, Order, Ranks, RealType, Result, Running, Session,
    Settings, Stage, Team, ThreadRanks, WrapDevice, format, ranks, reader, ring,
};
pub use outcore_device as device;
pub use outcore_device::{Buf, Choice, Memory, Shared};
pub use outcore_engine as engine;
pub use outcore_engine::{Explanation, Progress, Span, Totals, Trace};
pub use outcore_exchange::{export, import};
pub use outcore_kernels as kernels;
pub use outcore_kernels::{Blas, ColumnStatistics, Norm};
pub use outcore_matrix::{
    Array, Compressed, Element, Operand, Output, Rows, Sparse, SparseBufs, SparseRows, Target,
    Tile, convert, sparse,
};
pub use outcore_ranks as mpi;
pub use outcore_samples as samples;
pub use outcore_store as store;
pub use outcore_streams as streams;
pub use outcore_streams::{
    Compression, StreamInfo, StreamOptions, StreamReader, StreamStore, StreamWriter,
};
pub use outcore_tables as tables;
