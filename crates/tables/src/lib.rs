//! Embedding tables on SSD: rows looked up by number, in bags that become one row each.
//!
//! A [`Table`] is rows of one length, in files that other programs write (`.npy`, safetensors) or packed
//! with checksums; a [`TableSet`] looks rows of several tables up, with the most useful ones in memory,
//! with the meaning of `torch.nn.EmbeddingBag` and `torch.nn.Embedding`.
//!
//! ```
//! use outcore_core::{Session, Settings};
//! use outcore_tables::{Bags, Feature, Ids, Opening, Out, Pooling, Serving, Table, TableSet, write_packed};
//! use outcore_kernels::embedding::RowEncoding;
//!
//! # fn main() -> outcore_core::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("table");
//! # let settings = Settings { memory_bytes: Some(64 << 20), ..Settings::default() };
//! let session = Session::new(settings)?;
//! let rows = (0..1000).map(|row| vec![row as f32, 0.5]);
//! write_packed(&session, &path, 1000, 2, RowEncoding::F32, rows)?;
//!
//! let table = Table::open(&session, &[path], &Opening::default())?;
//! let set = TableSet::new(&session, vec![table], Serving::default())?;
//! let bags = Feature {
//!     table: 0,
//!     ids: Ids::I32(&[3, 4, 999]),
//!     bags: Bags::Offsets(Ids::I32(&[0, 2])),
//!     mode: Pooling::Sum,
//!     weights: None,
//!     padding: None,
//! };
//! let mut sums = [0.0; 4];
//! let failed = set.look_up(&[bags], &mut [Out::of_f32(&mut sums, 2, 2)?], &mut || true)?;
//! assert!(failed.is_empty());
//! assert_eq!(sums, [7.0, 1.0, 999.0, 0.5]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod cache_split;
mod call;
mod carried;
mod division;
mod error;
mod gate;
mod in_flight;
mod jagged;
mod look_up;
mod one_moment;
mod optimizer;
mod packed;
mod pending;
pub mod placement;
mod pool;
mod readers;
mod reading;
mod replacing;
pub mod reuse;
mod rewriting;
mod row_cache;
mod served;
mod set;
mod table;
mod training;
mod versioned;
mod window;
mod writer;

pub use call::Failure;
pub use jagged::JaggedBatch;
pub use look_up::{Bags, Feature, Ids};
pub use optimizer::{Optimizer, UnknownOptimizer};
pub use outcore_engine::cache::PolicyKind;
pub use outcore_kernels::embedding::{Pooling, RowEncoding, ScaleBias};
pub use pending::Pending;
pub use pool::Out;
pub use set::{Serving, Statistics, TableSet};
pub use table::{Opening, Table};
pub use training::{Gradient, TrainingStep};
pub use writer::{TableWriter, write_packed};
