//! Next versions of one object or several become the last ones, all of them at once.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result as IoResult, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::group::{Group, Member};
use super::head::Head;
use super::reader::{decided, is_versioned, next_head, read_group, read_head};
use super::{GROUP, HEAD, NEXT_HEAD, PAGES, WRITER, map_path};
use crate::error::Error;
use crate::faults::{Faults, Step};
use crate::{lock, os};

/// A version that is being made.
pub struct NextVersion {
    pub(super) folder: PathBuf,
    pub(super) faults: Arc<Faults>,
    pub(super) head: Head,
    pub(super) map: Vec<u8>,
    /// Places of the version before that this one has no use for.
    pub(super) retired: Vec<u32>,
}

/// Makes versions of several objects durable, and all of them the last ones at once: whenever the writer
/// dies, either none of them is the last one or all are.
///
/// # Errors
/// Those of the file system, such as [`Error::Full`].
pub fn commit(versions: &[NextVersion]) -> Result<(), Error> {
    let [first, others @ ..] = versions else {
        return Ok(());
    };
    versions.iter().try_for_each(NextVersion::write)?;
    if !others.is_empty() {
        let members = versions.iter().map(NextVersion::member);
        let members = members.collect::<Result<Vec<Member>, Error>>()?;
        for (other, own) in others.iter().zip(1..) {
            other.put(GROUP, &Group::seen_from(&members, own).bytes())?;
            other.sync_folder()?;
        }
        first.sync_folder()?;
        // From here on all are the last versions; a crash may still bring back those before them.
        first.put(GROUP, &Group::seen_from(&members, 0).bytes())?;
    }
    first.sync_folder()?;
    for version in versions {
        take_name(&version.folder, &version.faults)?;
    }
    if !others.is_empty() {
        // Nothing depends on these files any more; one that stays says nothing.
        let remove = |version: &NextVersion| remove_group(&version.folder, &version.faults);
        let _ = versions.iter().try_for_each(remove);
    }
    Ok(())
}

impl NextVersion {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.head.number
    }

    /// Makes what it consists of durable, but for the names in the folder.
    fn write(&self) -> Result<(), Error> {
        let pages = self.folder.join(PAGES);
        step(&self.faults, Step::Sync, &pages, || {
            File::open(&pages)?.sync_all()
        })?;
        let map = map_path(&self.folder, self.head.number);
        self.write_file(&map, &self.map)?;
        self.write_file(&self.folder.join(NEXT_HEAD), &self.head.bytes())
    }

    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        step(&self.faults, Step::Sync, path, || {
            let mut file = File::create(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        })
    }

    /// Puts a file in its place, whole.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let new = self.folder.join(format!("{name}.new"));
        self.write_file(&new, bytes)?;
        rename(&new, &self.folder.join(name), &self.faults)
    }

    fn sync_folder(&self) -> Result<(), Error> {
        sync_folder(&self.folder, &self.faults)
    }

    fn member(&self) -> Result<Member, Error> {
        let found = std::fs::canonicalize(&self.folder);
        let failed = |error| Error::from_io(&self.folder.display().to_string(), "find", error);
        Ok(Member {
            number: self.head.number,
            sum: self.head.sum(),
            path: found.map_err(failed)?,
        })
    }
}

/// Takes the lock of an object's writer, if no other has it.
pub(super) fn lock_writer(folder: &Path, faults: &Faults) -> Result<Option<File>, Error> {
    let failed = |error| Error::from_io(&folder.display().to_string(), "lock", error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let lock = faults
        .step(Step::Lock)
        .and_then(|()| options.open(folder.join(WRITER)))
        .map_err(failed)?;
    Ok(lock::try_lock(&lock).map_err(failed)?.then_some(lock))
}

/// Does what is left of a commit of several objects whose writer has died. The caller is the writer of this
/// one.
pub(super) fn finish_group(folder: &Path, faults: &Faults) -> Result<(), Error> {
    let Some(group) = read_group(folder)? else {
        return Ok(());
    };
    let first = folder.join(&group.members[0].path);
    if is_versioned(&first) {
        // What decides may not be durable yet, and must outlast what follows from it.
        sync_folder(&first, faults)?;
    }
    finish(folder, faults)?;
    if group.decides(&group) {
        for other in &group.members[1..] {
            finish_other(&folder.join(&other.path), &group, faults)?;
        }
    }
    remove_group(folder, faults)
}

/// Gives the last version its name, where it has it not yet.
fn finish(folder: &Path, faults: &Faults) -> Result<(), Error> {
    match decided(folder, &read_head(folder, HEAD)?)? {
        Some(own) => {
            next_head(folder, &own)?;
            take_name(folder, faults)
        }
        // It may have got it from a writer that died before this was durable.
        None => sync_folder(folder, faults),
    }
}

/// The same of another object, if it is still there and of this group.
fn finish_other(folder: &Path, first: &Group, faults: &Faults) -> Result<(), Error> {
    if !is_versioned(folder) {
        return Ok(());
    }
    let Some(group) = read_group(folder)?.filter(|group| first.decides(group)) else {
        return Ok(());
    };
    match lock_writer(folder, faults)? {
        Some(lock) => {
            let finished = finish(folder, faults);
            lock::release(&lock);
            finished
        }
        // Its writer has done it.
        None if read_head(folder, HEAD)?.number >= group.own().number => {
            sync_folder(folder, faults)
        }
        None => Err(Error::Locked {
            object: folder.display().to_string(),
        }),
    }
}

fn take_name(folder: &Path, faults: &Faults) -> Result<(), Error> {
    rename(&folder.join(NEXT_HEAD), &folder.join(HEAD), faults)?;
    sync_folder(folder, faults)
}

fn remove_group(folder: &Path, faults: &Faults) -> Result<(), Error> {
    let path = folder.join(GROUP);
    step(faults, Step::Remove, &path, || {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    })
}

fn rename(from: &Path, to: &Path, faults: &Faults) -> Result<(), Error> {
    step(faults, Step::Rename, to, || os::rename(from, to))
}

fn sync_folder(folder: &Path, faults: &Faults) -> Result<(), Error> {
    step(faults, Step::SyncFolder, folder, || os::sync_folder(folder))
}

fn step(
    faults: &Faults,
    step: Step,
    path: &Path,
    act: impl FnOnce() -> IoResult<()>,
) -> Result<(), Error> {
    let done = faults.step(step).and_then(|()| act());
    done.map_err(|error| {
        Error::from_io(&path.display().to_string(), "commit a version of it", error)
    })
}
