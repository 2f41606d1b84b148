//! What lives on SSD.

pub mod array;
pub mod export;
pub(crate) mod file;
pub mod format;
pub mod import;
pub mod sparse;
pub mod stream;
