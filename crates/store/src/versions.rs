//! An object whose content changes atomically, page by page, while others read it.
//!
//! ```text
//!   folder/pages     pages in places; no place that a version refers to is written over
//!   folder/map.7     of version 7: the place of each page, u32, and a CRC-32C of them, u32
//!   folder/version   which version is the last one; replaced by rename
//!   folder/group     where several objects are committed at once: which versions of which of them
//!   folder/writer    locked by the writer
//! ```
//!
//! A writer puts changed pages into free places. A commit makes them durable, then the map of the next
//! version, and then replaces `version`. Whenever a writer dies, the last version is whole, since none of
//! its places was written.
//!
//! Several objects are committed at once by a file `group` in the folder of each. Before it, all of the next
//! versions is durable, `version.new` included. The file of the first object comes last, by rename: once it is
//! there, the last version of each object that has the same group is its `version.new`. Then each gets
//! that name, and the files are removed. Until then a writer that opens one of the objects does what is left: of the
//! first one for all, of the others for itself.
//!
//! A reader holds a shared lock on the map of its version. The places of a version that is not the last
//! are free again once the writer has its map alone; then the map is removed.

mod commit;
mod group;
mod head;
mod reader;
mod writer;

pub use commit::{NextVersion, commit};
pub use reader::{Version, is_versioned};
pub use writer::VersionWriter;

use std::path::{Path, PathBuf};

/// The file of the pages.
pub const PAGES: &str = "pages";
const HEAD: &str = "version";
/// The head of the next version, until it is the last one.
const NEXT_HEAD: &str = "version.new";
const GROUP: &str = "group";
const WRITER: &str = "writer";

fn map_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("map.{number}"))
}
