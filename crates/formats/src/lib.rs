//! Foreign formats of sparse data: bytes in, rows out; rows in, bytes out.
//!
//! This crate knows text and containers; it does not know the destination of rows: no engine, no
//! budget, no formats of this project. Three kinds of files:
//!
//! - **Text of whole lines**: [`libsvm`], [`xc`], [`matrix_market`], [`bag_of_words`], and raw
//!   [`text`]. [`Source`] decompresses, [`Lines`] cuts chunks at line ends, and a parser is a pure
//!   function of one chunk: any number of threads parse at once, and what they give, put in the
//!   order of the chunks, does not depend on them.
//! - **Archives** of arrays, [`npz`], read from start to end in batches.
//! - **Tables**, [`parquet`], read row group by row group, at once if need be.
//!
//! Memory is bounded by the size of chunks, or the entries of a batch, that the caller asks for.
//! Values are finite `f64`, rows and columns `u64` below 2^63. Invalid bytes are an [`Error`] with
//! a position; nothing panics.
//!
//! ```
//! use outcore_formats::libsvm::{self, Base, LabelKind};
//! use outcore_formats::{Batch, Chunk, Lines, Position, Source};
//!
//! let file = &b"+1 3:0.5 7:1\n-1 1:2 # short\n"[..];                      // anything that reads, packed or not
//! let mut lines = Lines::new(Source::open("demo", file)?, Position::START, 1 << 20, 1 << 24);
//! let (mut chunk, mut batch) = (Chunk::default(), Batch::default());      // used again and again
//! while lines.next(&mut chunk)? {
//!     libsvm::parse(&chunk, Base::One, LabelKind::One, &mut batch)?;      // here or in another thread
//!     assert_eq!(batch.offsets, [0, 2, 3]);
//!     assert_eq!(batch.indices, [2, 6, 0]);
//!     assert_eq!(batch.values, [0.5, 1.0, 2.0]);
//!     assert_eq!(batch.labels, [1.0, -1.0]);
//! }
//! # Ok::<(), outcore_formats::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod foreign;
mod lines;
mod number;
mod print;
mod rows;
mod sink;
mod source;
mod vocabulary;

pub mod bag_of_words;
pub mod libsvm;
pub mod matrix_market;
pub mod npz;
pub mod parquet;
pub mod text;
pub mod xc;

pub use bytes::ReadAt;
pub use error::{Error, Result};
#[doc(hidden)]
pub use foreign::read_as_everything;
pub use lines::{Chunk, Lines, Position};
pub use print::Precision;
pub use rows::{Batch, Tally, Triplets};
pub use sink::Sink;
pub use source::{Compression, Source};
pub use vocabulary::{Vocabulary, WordLines};
