//! Things that live on SSD.

pub mod format;
