//! Calls that differ between operating systems or file systems, each with a fallback.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Prefix of an unnamed object in errors, before its former path.
pub(crate) const SCRATCH_OBJECT: &str = "scratch object ";

/// Identity of a file, independent of its path: two names with the same identity are the same
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    file_system: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Identity {
        Identity {
            file_system: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Identity of an object inside a store.
    pub(crate) fn inside(store: u64, object: u64) -> Identity {
        Identity {
            file_system: store,
            inode: object,
        }
    }

    /// Identity of the file or folder at a path.
    ///
    /// # Errors
    /// That of the file system.
    pub fn of_path(path: &Path) -> io::Result<Identity> {
        std::fs::metadata(path).map(|metadata| Identity::of(&metadata))
    }

    /// Whether both are on one file system.
    #[must_use]
    pub fn is_near(&self, other: &Identity) -> bool {
        self.file_system == other.file_system
    }
}

/// Whether `path` leads to the open file.
pub(crate) fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(there) => Ok(Identity::of(&there) == Identity::of(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks an open file, shared or exclusively. The lock belongs to the open file description, in
/// every process that inherits it. Raising a held lock does not release it. False if other locks
/// conflict; a lock held before is then kept.
#[cfg(target_os = "linux")]
pub(crate) fn lock_open(file: &File, alone: bool) -> io::Result<bool> {
    set_lock(
        file,
        if alone {
            nix::libc::F_WRLCK
        } else {
            nix::libc::F_RDLCK
        },
    )
}

/// Releases the lock.
#[cfg(target_os = "linux")]
pub(crate) fn unlock_open(file: &File) -> io::Result<bool> {
    set_lock(file, nix::libc::F_UNLCK)
}

#[cfg(target_os = "linux")]
fn set_lock(file: &File, kind: nix::libc::c_int) -> io::Result<bool> {
    use nix::fcntl::{FcntlArg, fcntl};
    // The whole file, whatever its length.
    let (l_type, l_whence) = (
        kind as nix::libc::c_short,
        nix::libc::SEEK_SET as nix::libc::c_short,
    );
    let lock = nix::libc::flock {
        l_type,
        l_whence,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Other systems would release a lock to raise it, so every lock is exclusive from the beginning.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lock_open(file: &File, _: bool) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Releases the lock.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unlock_open(file: &File) -> io::Result<bool> {
    file.unlock().map(|()| true)
}

/// Bytes that this user may still write on the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// As `free_bytes`, for the longest existing part of the path in an object's name.
pub(crate) fn free_bytes_near(name: &str) -> Option<u64> {
    let path = Path::new(name.strip_prefix(SCRATCH_OBJECT).unwrap_or(name));
    path.ancestors()
        .find(|there| there.exists())
        .and_then(|there| free_bytes(there).ok())
}

/// Bytes to which a file in `folder` may grow: the free space, limited by the longest file that
/// this process may write.
pub(crate) fn most_bytes(free: u64) -> u64 {
    free.min(file_size_limit().unwrap_or(u64::MAX))
}

/// The longest file that this process may write, if limited.
pub(crate) fn file_size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Sets the length of `file` and allocates its space; false if the file system cannot allocate and
/// the file has a hole instead.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<bool> {
    if len == 0 {
        return Ok(true);
    }
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len) {
        Ok(()) => return Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    file.set_len(len).map(|()| false)
}

/// Renames a file, also to the name of another file.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)
}

/// Renames a file to a name that must be free. If the system cannot do that atomically, the name is
/// checked just before: writers of this library hold the lock of the name, so only another program
/// could create it in between.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if to.symlink_metadata().is_ok() => {
            Err(io::ErrorKind::AlreadyExists.into())
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Renames a folder. If another folder has the name, the two are exchanged, and the new path of the
/// other one is returned. If the system cannot exchange names, the other folder is renamed first,
/// and a crash in between leaves the name free.
pub(crate) fn put_folder(from: &Path, to: &Path) -> io::Result<Option<PathBuf>> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if !to.try_exists()? {
        return std::fs::rename(from, to).map(|()| None);
    }
    match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(Some(from.to_owned())),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let mut aside = from.as_os_str().to_owned();
            aside.push(".outcore-partial");
            std::fs::rename(to, &aside)?;
            match std::fs::rename(from, to) {
                Ok(()) => Ok(Some(aside.into())),
                Err(error) => std::fs::rename(&aside, to).and(Err(error)),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Undoes [`put_folder`]: `replaced` is its return value.
pub(crate) fn take_folder_back(from: &Path, to: &Path, replaced: Option<&Path>) -> io::Result<()> {
    match replaced {
        Some(replaced) if replaced == from => put_folder(from, to).map(drop),
        Some(replaced) => {
            std::fs::rename(to, from)?;
            std::fs::rename(replaced, to)
        }
        None => std::fs::rename(to, from),
    }
}

/// Makes the names in a folder durable. File systems that cannot sync a folder return `EINVAL`,
/// which is ignored.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        result => result,
    }
}

/// Whether files in `folder` are in memory.
#[cfg(target_os = "linux")]
pub(crate) fn in_memory(folder: &Path) -> io::Result<bool> {
    // Magic numbers of `man 2 statfs`.
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // The field's type differs between architectures and may be signed 32 bits.
    let magic = rustix::fs::statfs(folder)?.f_type as u64 & 0xffff_ffff;
    Ok(magic == TMPFS || magic == RAMFS)
}

/// Known on Linux only; on other systems the user's choice is trusted.
#[cfg(not(target_os = "linux"))]
pub(crate) fn in_memory(_folder: &Path) -> io::Result<bool> {
    Ok(false)
}

/// An extended attribute of an open file.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) mod attribute {
    use super::{Errno, File, io};
    use rustix::fs::XattrFlags;

    /// Longest value that is ever written: a decimal `u64`.
    const VALUE_BYTES: usize = 32;

    /// The value; `None` if there is none or the file system has no attributes.
    pub(crate) fn get(file: &File, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut value = [0u8; VALUE_BYTES];
        match rustix::fs::fgetxattr(file, name, &mut value) {
            Ok(len) => Ok(Some(value[..len].to_vec())),
            // A value too long for the buffer was not written by this library, but the attribute
            // exists.
            Err(Errno::RANGE) => Ok(Some(Vec::new())),
            Err(error) if is_absent(error) || !is_supported(error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn set(file: &File, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(
            file,
            name,
            value,
            XattrFlags::empty(),
        )?)
    }

    pub(crate) fn clear(file: &File, name: &str) -> io::Result<()> {
        match rustix::fs::fremovexattr(file, name) {
            Err(error) if is_absent(error) || !is_supported(error) => Ok(()),
            result => Ok(result?),
        }
    }

    #[cfg(target_os = "linux")]
    fn is_absent(error: Errno) -> bool {
        error == Errno::NODATA
    }

    #[cfg(not(target_os = "linux"))]
    fn is_absent(error: Errno) -> bool {
        error == Errno::NOATTR
    }

    fn is_supported(error: Errno) -> bool {
        !matches!(error, Errno::NOTSUP | Errno::NOSYS)
    }
}

/// On other systems the mark is always a file beside the object.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) mod attribute {
    use super::{File, io};

    pub(crate) fn get(_file: &File, _name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    pub(crate) fn set(_file: &File, _name: &str, _value: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn clear(_file: &File, _name: &str) -> io::Result<()> {
        Ok(())
    }
}
