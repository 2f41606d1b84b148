//! What lives on SSD.

pub mod array;
pub(crate) mod file;
pub mod format;
pub mod sparse;
