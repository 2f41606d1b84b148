//! Access to the file or block device of a store: any number of processes that read it, or one that
//! writes it.
//!
//! A lock on the file enforces this. It ends with its process, however that ends (and with its
//! forked children), and can be raised from a reader's to a writer's lock without releasing it, so
//! that nothing changes in between. A shared `flock` excludes processes that would write the file
//! as an [object](crate::Folder).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_device::{Device, FileDevice, Mode};

use super::Access;
use crate::error::{Error, shown};
use crate::{lock, os};

/// The right to use a store, for as long as it is held.
pub(super) struct Claim {
    path: PathBuf,
    lock: File,
    /// Why it can only be read.
    refused: Option<io::Error>,
    /// A block device opened exclusively: the system refuses that for a mounted one.
    alone: Option<File>,
    owner: u32,
}

impl Claim {
    /// Opens a file or block device: exclusively to write it, else shared with other readers.
    pub(super) fn open(path: &Path, access: Access) -> Result<(Arc<dyn Device>, Claim), Error> {
        let fail = |error| Error::from_io(&shown(path), "open", error);
        let open = |write| OpenOptions::new().read(true).write(write).open(path);
        let (lock, refused) = match open(true) {
            Ok(file) => (file, None),
            Err(error) if access != Access::Write && is_refusal(&error) => {
                (open(false).map_err(fail)?, Some(error))
            }
            Err(error) => return Err(failed(path, error)),
        };
        let mode = if refused.is_none() {
            Mode::ReadWrite
        } else {
            Mode::Read
        };
        let mut claim = Claim {
            path: path.to_owned(),
            lock,
            refused,
            alone: None,
            owner: std::process::id(),
        };
        if !lock::try_lock_shared(&claim.lock).map_err(fail)? {
            return Err(Error::Locked {
                object: shown(path),
            });
        }
        match access {
            Access::Write => claim.raise()?,
            Access::Read | Access::AsNeeded => claim.lock(false)?,
        }
        let device = FileDevice::open(path, mode).map_err(|error| fail(error.source))?;
        Ok((Arc::new(device), claim))
    }

    /// Raises the claim to writing; no other process reads from then on.
    pub(super) fn raise(&mut self) -> Result<(), Error> {
        if let Some(refused) = &self.refused {
            return Err(Error::from_io(
                &shown(&self.path),
                "write",
                refused.kind().into(),
            ));
        }
        let about = self
            .lock
            .metadata()
            .map_err(|error| failed(&self.path, error))?;
        if about.file_type().is_block_device() && self.alone.is_none() {
            let mut options = OpenOptions::new();
            let alone = options
                .read(true)
                .write(true)
                .custom_flags(rustix::fs::OFlags::EXCL.bits() as i32)
                .open(&self.path);
            self.alone = Some(alone.map_err(|error| failed(&self.path, error))?);
        }
        self.lock(true).inspect_err(|_| self.alone = None)
    }

    fn lock(&self, alone: bool) -> Result<(), Error> {
        match lock::outwait(|| os::lock_open(&self.lock, alone)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Locked {
                object: shown(&self.path),
            }),
            Err(error) => Err(failed(&self.path, error)),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // Unlocked explicitly: a forked child may hold the same lock open for as long as it
            // lives. If unlocking fails, the file is closed next.
            let _ = os::unlock_open(&self.lock);
            lock::release(&self.lock);
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(
        error.kind(),
        PermissionDenied | ReadOnlyFilesystem | ResourceBusy
    )
}

fn failed(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => Error::Locked {
            object: shown(path),
        },
        _ => Error::from_io(&shown(path), "open", error),
    }
}
