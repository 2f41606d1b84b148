//! The durable mark of an object that is being written in place.
//!
//! The mark is the extended attribute `user.outcore.writing` of the object's file, or, where the
//! file system has no attributes, a file `.name.outcore-writing` beside it. Its value is the
//! object's exact length in decimal, because direct writes may run past the end by less than one
//! block until the writer truncates. It is durable before the first write and cleared only after
//! the last one is durable; an object without a mark is whole.
//!
//! The mark belongs to the file, not to its bytes: a program that does not know it and rewrites the
//! file leaves the mark in place, and whether that program finished is unknown. The object stays
//! interrupted until it is created anew, written in place to the end, or accepted
//! (`Store::clear_mark`).

use std::fs::File;
use std::io;
use std::path::PathBuf;

use crate::faults::{Faults, Step};
use crate::lock::{self, ObjectPath};
use crate::os::{attribute, sync_folder};

/// Direct writes to common devices use blocks of at most this many bytes.
const LONGEST_BLOCK: u64 = 4096;
const ATTRIBUTE: &str = "user.outcore.writing";
pub(crate) const BESIDE_SUFFIX: &str = ".outcore-writing";

/// Content of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The object's exact length; `None` if the mark does not record it.
    pub(crate) len: Option<u64>,
}

impl Mark {
    /// The object's length, in a file of this length. The writer leaves the file as long as the
    /// object or less than a block longer; with any other length, another program has written the
    /// file since without changing the mark.
    pub(crate) fn len_of(self, file_len: u64) -> u64 {
        self.len
            .filter(|&len| (len..len.saturating_add(LONGEST_BLOCK)).contains(&file_len))
            .unwrap_or(file_len)
    }
}

fn beside(place: &ObjectPath) -> PathBuf {
    place.beside(BESIDE_SUFFIX)
}

/// The mark of an object, if it has one.
pub(crate) fn read(file: &File, place: &ObjectPath) -> io::Result<Option<Mark>> {
    if let Some(value) = attribute::get(file, ATTRIBUTE)? {
        return Ok(Some(parse(&value)));
    }
    match std::fs::read(beside(place)) {
        Ok(value) => Ok(Some(parse(&value))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(value: &[u8]) -> Mark {
    let len = std::str::from_utf8(value).ok();
    Mark {
        len: len.and_then(|text| text.trim().parse().ok()),
    }
}

/// Marks an object and waits until the mark is durable.
pub(crate) fn set(file: &File, place: &ObjectPath, len: u64, faults: &Faults) -> io::Result<()> {
    let value = len.to_string();
    let marked = faults
        .step(Step::Mark)
        .and_then(|()| attribute::set(file, ATTRIBUTE, value.as_bytes()));
    match marked {
        Ok(()) => {
            faults.step(Step::Sync)?;
            file.sync_all()
        }
        Err(error) if wants_a_file(&error) => set_beside(place, &value, faults),
        Err(error) => Err(error),
    }
}

/// Whether the mark has to be a file: no attributes at all, none on this kind of file, or no room
/// for one.
fn wants_a_file(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, StorageFull, Unsupported};
    matches!(
        error.kind(),
        Unsupported | PermissionDenied | StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Marks the name `place` before an object is renamed to it: an attribute is renamed with its file,
/// a mark beside it is not.
pub(crate) fn set_for_rename(
    file: &File,
    place: &ObjectPath,
    len: u64,
    faults: &Faults,
) -> io::Result<()> {
    match attribute::get(file, ATTRIBUTE)? {
        Some(_) => Ok(()),
        None => set_beside(place, &len.to_string(), faults),
    }
}

fn set_beside(place: &ObjectPath, value: &str, faults: &Faults) -> io::Result<()> {
    faults.step(Step::MarkBeside)?;
    let path = beside(place);
    std::fs::write(&path, value)?;
    faults.step(Step::Sync)?;
    File::open(&path)?.sync_all()?;
    faults.step(Step::SyncFolder)?;
    sync_folder(&place.folder)
}

/// Clears the mark, of either kind, and waits until that is durable.
pub(crate) fn clear(file: &File, place: &ObjectPath, faults: &Faults) -> io::Result<()> {
    faults.step(Step::Unmark)?;
    attribute::clear(file, ATTRIBUTE)?;
    faults.step(Step::Sync)?;
    file.sync_all()?;
    if clear_beside(place)? {
        faults.step(Step::SyncFolder)?;
        sync_folder(&place.folder)?;
    }
    Ok(())
}

/// Removes the file beside an object; false if there was none. The caller syncs the folder.
pub(crate) fn clear_beside(place: &ObjectPath) -> io::Result<bool> {
    match std::fs::remove_file(beside(place)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the file belongs to the store itself and is not an object.
pub(crate) fn is_own(file_name: &str) -> bool {
    lock::is_partial(file_name)
        || lock::is_unfinished(file_name)
        || (file_name.starts_with('.') && file_name.ends_with(BESIDE_SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked_object(faults: &Faults) -> (tempfile::TempDir, ObjectPath, File) {
        let folder = tempfile::tempdir().unwrap();
        let place = ObjectPath {
            object: "x".into(),
            path: folder.path().join("x"),
            folder: folder.path().to_owned(),
        };
        std::fs::write(&place.path, b"12345").unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .open(&place.path)
            .unwrap();
        assert_eq!(read(&file, &place).unwrap(), None);
        set(&file, &place, 5, faults).unwrap();
        (folder, place, file)
    }

    #[test]
    fn a_mark_carries_the_length_and_can_be_cleared() {
        let (_folder, place, file) = marked_object(&Faults::none());
        assert_eq!(read(&file, &place).unwrap(), Some(Mark { len: Some(5) }));
        clear(&file, &place, &Faults::none()).unwrap();
        assert_eq!(read(&file, &place).unwrap(), None);
    }

    #[test]
    fn without_attributes_the_mark_lies_beside_the_object() {
        let unsupported = Faults::hook(|_, step| match step {
            Step::Mark => Err(io::ErrorKind::Unsupported.into()),
            _ => Ok(()),
        });
        let (_folder, place, file) = marked_object(&unsupported);
        assert!(beside(&place).exists());
        assert_eq!(read(&file, &place).unwrap(), Some(Mark { len: Some(5) }));
        clear(&file, &place, &unsupported).unwrap();
        assert_eq!(read(&file, &place).unwrap(), None);
        assert!(!beside(&place).exists());
    }

    #[test]
    fn a_length_that_the_writer_cannot_have_left_is_another_programs() {
        let mark = Mark { len: Some(5000) };
        assert_eq!(
            [5000, 5001, 8192, 4999, 0, 9096].map(|file_len| mark.len_of(file_len)),
            [5000, 5000, 5000, 4999, 0, 9096]
        );
        assert_eq!(Mark { len: None }.len_of(7), 7);
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_still_a_mark() {
        assert_eq!(parse(b"\xff\xfe"), Mark { len: None });
        assert_eq!(parse(b""), Mark { len: None });
        assert_eq!(parse(b" 12\n"), Mark { len: Some(12) });
    }
}
