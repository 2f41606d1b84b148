//! Foreign formats of sparse data.
#![forbid(unsafe_code)]

mod error;
mod lines;
mod number;
mod print;
mod rows;
mod sink;
mod source;

pub mod bag_of_words;
pub mod libsvm;
pub mod matrix_market;
pub mod xc;

pub use error::{Error, Result};
pub use lines::{Chunk, Lines, Position};
pub use print::Precision;
pub use rows::{Batch, Tally, Triplets};
pub use sink::Sink;
pub use source::{Compression, Source};
