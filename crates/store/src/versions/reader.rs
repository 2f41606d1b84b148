//! A version that stays as it is for as long as it is held.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::group::{Group, Member};
use super::head::{Head, corrupt, parse_map};
use super::{GROUP, HEAD, NEXT_HEAD, PAGES, map_path};
use crate::error::Error;
use crate::lock;

/// Whether a folder is an object with versions.
#[must_use]
pub fn is_versioned(path: &Path) -> bool {
    path.join(HEAD).is_file()
}

/// One version of an object: where each of its pages lies. Its places are not written over for as long as
/// this exists, in any process.
#[derive(Debug)]
pub struct Version {
    /// Counted from 0.
    pub number: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// What its writer says of it.
    pub description: Vec<u8>,
    /// The place of each page, in pages from the beginning of the file.
    pub map: Vec<u32>,
    folder: PathBuf,
    lock: File,
}

impl Version {
    /// The last version.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Corrupt`], and those of the file system.
    pub fn open(folder: &Path) -> Result<Version, Error> {
        loop {
            let head = last_head(folder)?;
            let path = map_path(folder, head.number);
            let object = path.display().to_string();
            let opened = match File::open(&path) {
                // Removed since, with a version that is the last one no more.
                Err(error) if error.kind() == ErrorKind::NotFound && !is_last(folder, &head)? => {
                    continue;
                }
                opened => opened,
            };
            let failed = |error| Error::from_io(&object, "open", error);
            let lock = opened.map_err(failed)?;
            if !lock::try_lock_shared(&lock).map_err(failed)? || !is_last(folder, &head)? {
                continue;
            }
            let bytes = std::fs::read(&path).map_err(failed)?;
            return Ok(Version {
                map: parse_map(&object, &bytes, &head)?,
                number: head.number,
                page_bytes: head.page_bytes,
                description: head.description,
                folder: folder.to_owned(),
                lock,
            });
        }
    }

    /// The number of the last version in a folder.
    ///
    /// # Errors
    /// As [`open`](Version::open).
    pub fn last_number(folder: &Path) -> Result<u64, Error> {
        Ok(last_head(folder)?.number)
    }

    /// Whether it is still the last version.
    ///
    /// # Errors
    /// As [`open`](Version::open).
    pub fn is_last(&self) -> Result<bool, Error> {
        Ok(Version::last_number(&self.folder)? == self.number)
    }

    /// Bytes that [`open`](Version::open) takes for the map of the last version, and beside it while it reads
    /// it.
    ///
    /// # Errors
    /// As [`open`](Version::open).
    pub fn map_bytes(folder: &Path) -> Result<(u64, u64), Error> {
        let Head { pages, places, .. } = last_head(folder)?;
        Ok((4 * pages, 4 * pages + places))
    }

    /// The file of the pages.
    #[must_use]
    pub fn pages_path(&self) -> PathBuf {
        self.folder.join(PAGES)
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        lock::release(&self.lock);
    }
}

/// The head of the last version, also while it is `version.new`.
pub(super) fn last_head(folder: &Path) -> Result<Head, Error> {
    loop {
        let head = read_head(folder, HEAD)?;
        let next = decided(folder, &head)?.map(|own| next_head(folder, &own));
        // Files of a group go after the name has changed, so all that was read counts unless it has.
        if read_head(folder, HEAD)?.number == head.number {
            return next.unwrap_or(Ok(head));
        }
    }
}

/// The version after that of this head, where a group has made it the last one.
pub(super) fn decided(folder: &Path, head: &Head) -> Result<Option<Member>, Error> {
    let Some(group) = read_group(folder)? else {
        return Ok(None);
    };
    let own = group.own().clone();
    if own.number.checked_sub(1) != Some(head.number) {
        return Ok(None);
    }
    let is_decided = group.decides(&group)
        || read_group(&folder.join(&group.members[0].path))?
            .is_some_and(|first| first.decides(&group));
    Ok(is_decided.then_some(own))
}

/// The head that has not its name yet, of what an object has of a group.
pub(super) fn next_head(folder: &Path, own: &Member) -> Result<Head, Error> {
    let head = read_head(folder, NEXT_HEAD)?;
    match (head.number, head.sum()) == (own.number, own.sum) {
        true => Ok(head),
        false => {
            let object = folder.join(NEXT_HEAD).display().to_string();
            Err(corrupt(&object, "it is not the version of its group"))
        }
    }
}

pub(super) fn read_head(folder: &Path, name: &str) -> Result<Head, Error> {
    let path = folder.join(name);
    let object = path.display().to_string();
    let bytes = std::fs::read(&path).map_err(|error| Error::from_io(&object, "open", error))?;
    Head::parse(&object, &bytes)
}

/// What is in a folder of a group, if anything is.
pub(super) fn read_group(folder: &Path) -> Result<Option<Group>, Error> {
    let path = folder.join(GROUP);
    let object = path.display().to_string();
    match std::fs::read(&path) {
        Ok(bytes) => Group::parse(&object, &bytes).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Error::from_io(&object, "open", error)),
    }
}

fn is_last(folder: &Path, head: &Head) -> Result<bool, Error> {
    Ok(last_head(folder)?.number == head.number)
}
