//! The store and the name of a path.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, shown};
use crate::{Access, Folder, Formatted, Store};

/// The store that a path leads into, and the name there: the surrounding folder, or, for a path
/// that continues behind a file or block device, the store on it. That store is opened once in this
/// process, and shared with other readers until it is changed.
///
/// # Errors
/// [`Error::Name`] for a path that cannot name an object, as [`Folder::new`], and as
/// [`Formatted::open_shared`].
pub fn locate(path: &Path) -> Result<(Arc<dyn Store>, String), Error> {
    let around = path
        .ancestors()
        .skip(1)
        .find_map(|around| Some((around, std::fs::metadata(around).ok()?)));
    match around {
        Some((around, found)) if found.is_file() || found.file_type().is_block_device() => {
            let name = path.strip_prefix(around).expect("it begins so").to_str();
            let name = name.ok_or_else(|| Error::Name {
                name: shown(path),
                reason: "its name is not valid UTF-8",
            })?;
            Ok((
                Arc::new(Formatted::open_shared(around, Access::AsNeeded)?),
                name.to_owned(),
            ))
        }
        _ => {
            let (folder, name) = Folder::split(path)?;
            Ok((Arc::new(folder), name))
        }
    }
}
