//! What lives on SSD.

pub mod array;
pub(crate) mod bytes;
pub mod export;
pub(crate) mod file;
pub mod format;
pub(crate) mod growing;
pub mod import;
pub mod reader;
pub mod samples;
pub(crate) mod shifted;
pub mod sparse;
pub(crate) mod staging;
pub mod stream;
