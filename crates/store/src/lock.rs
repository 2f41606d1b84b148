//! Locks of writers on a path, across processes and within one.
//!
//! Two locks make up the lock of a path, each a `flock` on a file of its own:
//!
//! ```text
//!   folder/x                      the object: locked by a writer in place, and to replace, rename or remove it
//!   folder/.x.outcore-partial     the next object x: locked by its creator; there is at most one
//! ```
//!
//! The partial has a fixed name so that two creations of one name conflict on it, even if no object
//! exists yet. A lock ends with its process, however that ends; so a partial without a lock belongs
//! to a dead process, and process numbers, which are reused, need not be trusted. Since a name may
//! lead to another file by the time its file is locked, each lock is followed by a check of where
//! the name leads. Readers do not lock.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::faults::{Faults, Step};
use crate::os;

const PARTIAL_SUFFIX: &str = ".outcore-partial";
/// Suffix of a new folder that is kept when its writer dies.
pub(crate) const UNFINISHED_SUFFIX: &str = ".outcore-unfinished";

/// The file of an unfinished folder that records its progress. A folder with this file can be
/// resumed.
pub const CHECKPOINT: &str = "checkpoint.json";
/// The folder in it for files that are set aside.
pub(crate) const ASIDE: &str = UNFINISHED_SUFFIX;

/// Sweeping, and reading an object's state, hold a lock for microseconds. Writers wait that long; a
/// lock held longer belongs to a writer.
const PATIENCE: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);

/// Path of an object: its path with links followed, its folder, and its name in errors.
#[derive(Clone, Debug)]
pub(crate) struct ObjectPath {
    pub(crate) object: String,
    pub(crate) path: PathBuf,
    pub(crate) folder: PathBuf,
}

impl ObjectPath {
    /// The hidden file beside the object, named after the object with `suffix`.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(suffix);
        self.folder.join(name)
    }

    pub(crate) fn partial(&self) -> PathBuf {
        self.beside(PARTIAL_SUFFIX)
    }

    /// Whether the name exists.
    pub(crate) fn is_taken(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok()
    }
}

/// Whether `file_name` is that of a new folder that is kept when its writer dies.
pub(crate) fn is_unfinished(file_name: &str) -> bool {
    file_name.starts_with('.') && file_name.ends_with(UNFINISHED_SUFFIX)
}

/// Whether `file_name` is one of the store's own partials.
pub(crate) fn is_partial(file_name: &str) -> bool {
    file_name.starts_with('.') && file_name.ends_with(PARTIAL_SUFFIX)
}

/// Locks a file for its writer; false if another writer holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    outwait(|| match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    })
}

/// Retries the lock until it succeeds or the patience is over.
pub(crate) fn outwait(mut lock: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        match lock() {
            Ok(false) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            tried => return tried,
        }
    }
}

/// Locks a file against its writers while its state is read; false if a writer holds it.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Unlocks explicitly: a forked child may hold the same lock open for as long as it lives.
pub(crate) fn release(file: &File) {
    // If unlocking fails, the descriptor is closed next, which ends the lock.
    let _ = file.unlock();
}

pub(crate) fn require_file(metadata: &Metadata, place: &ObjectPath) -> Result<(), Error> {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        _ => "a device, pipe or socket",
    };
    Err(Error::NotAFile {
        object: place.object.clone(),
        kind,
    })
}

/// Opens and locks the existing object. Its file must be writable: without permission to write an
/// object, a process may not replace it either.
pub(crate) fn lock_object(place: &ObjectPath, faults: &Faults) -> Result<File, Error> {
    let found = std::fs::metadata(&place.path);
    let found = found.map_err(|error| Error::from_io(&place.object, "open for writing", error))?;
    require_file(&found, place)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    lock_path(place, &place.path, &options, faults)
}

/// Creates the partial of an object, or takes it over from a dead process, empty and locked.
pub(crate) fn claim_partial(place: &ObjectPath, faults: &Faults) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let partial = place.partial();
    let file = lock_path(place, &partial, &options, faults)?;
    // Only now is it certain that no other process is writing it.
    let emptied = file.set_len(0);
    emptied.map_err(|error| Error::from_io(&place.object, "empty its partial", error))?;
    Ok(file)
}

/// Creates the partial of a folder, or takes it over from a dead process, locked.
pub(crate) fn claim_folder(
    place: &ObjectPath,
    partial: &Path,
    faults: &Faults,
) -> Result<File, Error> {
    loop {
        let made = faults
            .step(Step::Open)
            .and_then(|()| std::fs::create_dir(partial))
            .or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists if partial.is_dir() => Ok(()),
                io::ErrorKind::AlreadyExists => Err(io::ErrorKind::WouldBlock.into()),
                _ => Err(error),
            });
        match made {
            // The partial of a file of this name, held by a running writer: those of dead processes
            // have been swept.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Error::Locked {
                    object: place.object.clone(),
                });
            }
            made => made.map_err(|error| Error::from_io(&place.object, "create", error))?,
        }
        let mut options = OpenOptions::new();
        match lock_path(place, partial, options.read(true), faults) {
            // It was swept in between.
            Err(Error::Missing { .. }) if place.folder.is_dir() => {}
            locked => return locked,
        }
    }
}

/// Opens `path` and locks it; repeated until the name still leads to the file after locking.
fn lock_path(
    place: &ObjectPath,
    path: &Path,
    options: &OpenOptions,
    faults: &Faults,
) -> Result<File, Error> {
    loop {
        let file = faults
            .step(Step::Open)
            .and_then(|()| options.open(path))
            .map_err(|error| Error::from_io(&place.object, "open for writing", error))?;
        let locked = faults.step(Step::Lock).and_then(|()| try_lock(&file));
        let locked = locked.and_then(|locked| Ok((locked, os::leads_to(path, &file)?)));
        match locked.map_err(|error| Error::from_io(&place.object, "lock", error))? {
            (true, true) => return Ok(file),
            (false, true) => {
                return Err(Error::Locked {
                    object: place.object.clone(),
                });
            }
            (_, false) => {}
        }
    }
}

/// Removes the partials of dead processes in `folder`, and unfinished folders that cannot be
/// resumed. Errors are ignored.
pub(crate) fn sweep_partials(folder: &Path, faults: &Faults) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_partial(&name) || is_unfinished(&name) {
            let _ = sweep_partial(&entry.path(), is_unfinished(&name), faults);
        }
    }
}

fn sweep_partial(path: &Path, may_be_kept: bool, faults: &Faults) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_file() && !found.is_dir() {
        return Ok(());
    }
    let file = OpenOptions::new()
        .read(true)
        .write(found.is_file())
        .open(path)?;
    if file.try_lock().is_ok() && os::leads_to(path, &file)? && (!may_be_kept || is_hopeless(path))
    {
        faults.step(Step::Remove)?;
        if found.is_file() {
            std::fs::remove_file(path)?
        } else {
            std::fs::remove_dir_all(path)?
        }
    }
    Ok(())
}

/// Whether an unfinished folder has no checkpoint to resume from.
pub(crate) fn is_hopeless(unfinished: &Path) -> bool {
    !unfinished.join(CHECKPOINT).exists() && !unfinished.join(ASIDE).join(CHECKPOINT).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path, name: &str) -> ObjectPath {
        ObjectPath {
            object: name.to_owned(),
            path: folder.join(name),
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn a_sweep_spares_partials_that_someone_holds() {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults::none();
        let live = place(folder.path(), "live");
        let _held = claim_partial(&live, &faults).unwrap();
        let dead = place(folder.path(), "dead");
        std::fs::write(dead.partial(), b"left behind").unwrap();

        sweep_partials(folder.path(), &faults);

        assert!(live.partial().exists());
        assert!(!dead.partial().exists());
    }

    #[test]
    fn two_claims_of_one_name_meet_even_when_the_name_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults::none();
        let x = place(folder.path(), "x");
        let held = claim_partial(&x, &faults).unwrap();
        assert!(matches!(
            claim_partial(&x, &faults),
            Err(Error::Locked { .. })
        ));
        drop(held);
        assert!(claim_partial(&x, &faults).is_ok());
    }

    #[test]
    fn a_lock_on_a_file_that_was_replaced_meanwhile_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let x = place(folder.path(), "x");
        std::fs::write(&x.path, b"old").unwrap();
        let old = File::open(&x.path).unwrap();
        std::fs::write(folder.path().join("y"), b"new").unwrap();
        std::fs::rename(folder.path().join("y"), &x.path).unwrap();
        assert!(!os::leads_to(&x.path, &old).unwrap());
        assert!(lock_object(&x, &Faults::none()).is_ok());
    }
}
