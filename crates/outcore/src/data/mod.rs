//! What lives on SSD.

pub mod array;
pub(crate) mod bytes;
pub mod export;
pub(crate) mod file;
pub mod format;
pub(crate) mod growing;
pub(crate) mod home;
pub mod import;
pub mod reader;
pub mod samples;
pub(crate) mod shifted;
pub mod sparse;
pub mod stream;
