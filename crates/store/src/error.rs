//! Errors of named objects, one variant for each action that a caller could take.
//!
//! Every variant names the object by its full path, as the caller gave it.

use std::io;
use std::path::Path;

use crate::os;

/// An error of the store. `object` is the full path of the object, as its user would write it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be the name of an object: absolute, empty, outside the folder, too long.
    #[error("{name:?} cannot name an object: {reason}")]
    Name {
        /// The given name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// There is no such object or folder.
    #[error("{object}: no such file or folder")]
    Missing {
        /// The missing object or folder.
        object: String,
    },
    /// The name exists, but does not lead to a regular file.
    #[error("{object}: not a regular file, but {kind}")]
    NotAFile {
        /// The name.
        object: String,
        /// What it leads to.
        kind: &'static str,
    },
    /// A folder was needed, and this is none.
    #[error("{object}: not a folder")]
    NotAFolder {
        /// The path that is not a folder.
        object: String,
    },
    /// The permissions of the file or of its folder do not allow it.
    #[error("{object}: no permission to {action}")]
    Denied {
        /// The object or folder.
        object: String,
        /// What was attempted.
        action: &'static str,
    },
    /// The file system is mounted read-only.
    #[error("{object}: cannot {action}, the file system is read-only")]
    ReadOnly {
        /// The object or folder.
        object: String,
        /// What was attempted.
        action: &'static str,
    },
    /// The object does not fit; found before its first byte was written.
    #[error("{object}: needs {needed} bytes on disk, {free} are free")]
    NoSpace {
        /// The object to be written.
        object: String,
        /// Its length in bytes.
        needed: u64,
        /// Bytes that this user may still write on that file system.
        free: u64,
    },
    /// The disk, or the quota of this user, is full; found during a write.
    #[error("{object}: cannot {action}: {}", what_is_full(*is_quota, free))]
    Full {
        /// The object that was written.
        object: String,
        /// What was attempted.
        action: String,
        /// Bytes that the write would take, if known.
        needed: Option<u64>,
        /// Free bytes on that file system, if known.
        free: Option<u64>,
        /// Whether it is the quota that is exhausted.
        is_quota: bool,
    },
    /// The object is longer than the longest possible file; found before its first byte was
    /// written.
    #[error("{object}: needs {needed} bytes, and {}", what_limits(limit))]
    TooLarge {
        /// The object to be written.
        object: String,
        /// Its length in bytes.
        needed: u64,
        /// The limit of this process (`RLIMIT_FSIZE`); `None` if the file system imposes the limit.
        limit: Option<u64>,
    },
    /// Another writer, in this process or in another, holds the object.
    #[error("{object}: another writer holds it")]
    Locked {
        /// The object.
        object: String,
    },
    /// A write in place did not finish, so the content is neither the old nor the new one.
    #[error(
        "{object}: a write in place was interrupted, so its content is partly old and partly new; \
         write it again, or accept it if another program has rewritten it"
    )]
    Interrupted {
        /// The object.
        object: String,
    },
    /// The name is in use.
    #[error("{object}: already exists")]
    Exists {
        /// The object.
        object: String,
    },
    /// A folder that was to be replaced contains a file that is no part of its replacement.
    #[error("{object}: contains {part:?}, which would be lost; choose another name, or remove it")]
    Foreign {
        /// The folder.
        object: String,
        /// The file that would be lost.
        part: String,
    },
    /// The object is not a stream.
    #[error("{object}: not a stream")]
    NotAStream {
        /// The object.
        object: String,
    },
    /// A stream whose writer ended before it was complete, or that is damaged.
    #[error("{object}: the stream is incomplete or damaged; write it again")]
    Unfinished {
        /// The stream.
        object: String,
    },
    /// A file or device that is no store, or whose version is unknown to this program.
    #[error("{object}: not a store: {reason}")]
    Unformatted {
        /// The file or device.
        object: String,
        /// Why it is not one.
        reason: String,
    },
    /// Metadata of a store, or bytes of an object, do not match their checksums or are
    /// inconsistent.
    #[error("{object}: corrupt at byte {offset}: {reason}")]
    Corrupt {
        /// The store or object.
        object: String,
        /// Offset in bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A change of a store failed; whether it was made is known only after opening the store again.
    #[error("{object}: an earlier change failed; open the store again")]
    Lost {
        /// The store.
        object: String,
    },
    /// The scratch folder is in memory, which defeats its purpose.
    #[error("{folder}: scratch on tmpfs takes the memory that it is meant to save")]
    TmpfsScratch {
        /// The chosen folder.
        folder: String,
    },
    /// Any other failure of the operating system.
    #[error("{object}: cannot {action}: {source}")]
    Io {
        /// The object or folder.
        object: String,
        /// What was attempted.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// Maps an error of the operating system to the variant that a caller can act on.
    pub(crate) fn from_io(object: &str, action: &'static str, source: io::Error) -> Error {
        let object = object.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Error::Missing { object },
            io::ErrorKind::PermissionDenied => Error::Denied { object, action },
            io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly { object, action },
            io::ErrorKind::NotADirectory => Error::NotAFolder { object },
            io::ErrorKind::IsADirectory => Error::NotAFile {
                object,
                kind: "a folder",
            },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::full(&object, action, None, &source)
            }
            _ => Error::Io {
                object,
                action,
                source,
            },
        }
    }

    /// The error of writing `object` on a full disk or with an exhausted quota; `object` is a path,
    /// or a name that ends in one. Free bytes are determined only if the operating system refused
    /// the write, not if a device counts its own space.
    #[must_use]
    pub fn full(
        object: &str,
        action: impl Into<String>,
        needed: Option<u64>,
        source: &io::Error,
    ) -> Error {
        let is_quota = source.kind() == io::ErrorKind::QuotaExceeded;
        let is_of_system = source.raw_os_error().is_some() && !is_quota;
        let free = if is_of_system {
            os::free_bytes_near(object)
        } else {
            None
        };
        Error::Full {
            object: object.to_owned(),
            action: action.into(),
            needed,
            free,
            is_quota,
        }
    }

    /// The error of an object that grows in the folder `at` and has reached the free space at its
    /// start, or the longest possible file.
    #[must_use]
    pub fn no_room(object: &str, at: &Path, needed: u64) -> Error {
        let object = object.to_owned();
        // Direct writes are of whole blocks.
        match os::file_size_limit().filter(|&limit| limit < needed.next_multiple_of(4096)) {
            Some(limit) => Error::TooLarge {
                object,
                needed,
                limit: Some(limit),
            },
            None => Error::NoSpace {
                object,
                needed,
                free: os::free_bytes(at).unwrap_or(0),
            },
        }
    }

    /// The error of a file of `needed` bytes or more, which is longer than the longest possible
    /// file.
    #[must_use]
    pub fn too_large(object: &str, needed: u64) -> Error {
        let limit = os::file_size_limit().filter(|limit| *limit < needed);
        Error::TooLarge {
            object: object.to_owned(),
            needed,
            limit,
        }
    }

    /// As [`Error::from_io`]; a full disk or an exhausted quota is reported with the bytes needed.
    pub(crate) fn from_allocation(
        object: &str,
        needed: u64,
        free: u64,
        source: io::Error,
    ) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                object: object.to_owned(),
                needed,
                free,
            },
            io::ErrorKind::FileTooLarge => Error::too_large(object, needed),
            _ => Error::from_io(object, "allocate", source),
        }
    }
}

fn what_is_full(is_quota: bool, free: &Option<u64>) -> String {
    match (is_quota, free) {
        (true, _) => "the disk quota is used up".to_owned(),
        (false, Some(free)) => format!("no space is left on the disk, {free} bytes are free"),
        (false, None) => "no space is left on the disk".to_owned(),
    }
}

fn what_limits(limit: &Option<u64>) -> String {
    match limit {
        Some(limit) => format!("this process may write files of {limit} bytes at most (ulimit -f)"),
        None => "the file system has no files that long".to_owned(),
    }
}

/// A path as shown in errors.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_become_variants_that_name_the_object() {
        let cases = [
            (io::ErrorKind::NotFound, "d/x: no such file or folder"),
            (
                io::ErrorKind::PermissionDenied,
                "d/x: no permission to create",
            ),
            (
                io::ErrorKind::ReadOnlyFilesystem,
                "d/x: cannot create, the file system is read-only",
            ),
            (io::ErrorKind::NotADirectory, "d/x: not a folder"),
            (
                io::ErrorKind::IsADirectory,
                "d/x: not a regular file, but a folder",
            ),
        ];
        for (kind, text) in cases {
            assert_eq!(
                Error::from_io("d/x", "create", kind.into()).to_string(),
                text
            );
        }
    }

    #[test]
    fn what_is_too_long_says_who_limits_it() {
        let error = |limit| {
            Error::TooLarge {
                object: "d/x".into(),
                needed: 100,
                limit,
            }
            .to_string()
        };
        assert_eq!(
            error(Some(9)),
            "d/x: needs 100 bytes, and this process may write files of 9 bytes at most (ulimit -f)"
        );
        assert_eq!(
            error(None),
            "d/x: needs 100 bytes, and the file system has no files that long"
        );
        let found = Error::from_allocation("d/x", 100, 7, io::ErrorKind::FileTooLarge.into());
        assert!(
            matches!(found, Error::TooLarge { limit: None, .. }),
            "{found}"
        );
    }

    #[test]
    fn a_disk_that_runs_full_is_told_from_a_quota_and_says_what_is_free() {
        let full = Error::from_io("d/x", "make it durable", io::ErrorKind::StorageFull.into());
        assert_eq!(
            full.to_string(),
            "d/x: cannot make it durable: no space is left on the disk"
        );
        let quota = Error::from_io("d/x", "mark it", io::ErrorKind::QuotaExceeded.into());
        assert_eq!(
            quota.to_string(),
            "d/x: cannot mark it: the disk quota is used up"
        );
        let folder = tempfile::tempdir().unwrap();
        let of_system = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        for name in [
            shown(&folder.path().join("deep/x")),
            format!("scratch object {}", shown(&folder.path().join("3"))),
        ] {
            let Error::Full { free, needed, .. } = Error::full(&name, "write", Some(7), &of_system)
            else {
                panic!()
            };
            assert!(free.is_some() && needed == Some(7), "{name}");
        }
    }

    #[test]
    fn a_full_disk_says_how_much_was_needed() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let error = Error::from_allocation("d/x", 100, 7, kind.into());
            assert_eq!(
                error.to_string(),
                "d/x: needs 100 bytes on disk, 7 are free"
            );
        }
    }
}
