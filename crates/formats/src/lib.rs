//! Foreign formats of sparse data.
#![forbid(unsafe_code)]

mod bytes;
mod error;
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
pub mod text;
pub mod xc;

pub use bytes::ReadAt;
pub use error::{Error, Result};
pub use lines::{Chunk, Lines, Position};
pub use print::Precision;
pub use rows::{Batch, Tally, Triplets};
pub use sink::Sink;
pub use source::{Compression, Source};
pub use vocabulary::Vocabulary;
