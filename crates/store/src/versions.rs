//! An object whose content changes atomically, page by page, while others read it.
//!
//! ```text
//!   folder/pages     pages in places; no place that a version refers to is written over
//!   folder/map.7     of version 7: the place of each page, u32, and a CRC-32C of them, u32
//!   folder/version   which version is the last one; replaced by rename
//!   folder/writer    locked by the writer
//! ```
//!
//! A writer puts changed pages into free places. A commit makes them durable, then the map of the next
//! version, and then replaces `version`. Whenever a writer dies, the last version is whole, since none of
//! its places was written.
//!
//! A reader holds a shared lock on the map of its version. The places of a version that is not the last
//! are free again once the writer has its map alone; then the map is removed.

mod head;
mod reader;
mod writer;

pub use reader::{Version, is_versioned};
pub use writer::{NextVersion, VersionWriter};

use std::path::{Path, PathBuf};

/// The file of the pages.
pub const PAGES: &str = "pages";
const HEAD: &str = "version";
const WRITER: &str = "writer";

fn map_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("map.{number}"))
}
