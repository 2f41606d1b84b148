//! Unnamed results: a folder of this process inside a folder that its user chose.
//!
//! ```text
//!   chosen/outcore-scratch-<pid>-<random>/lock     locked for the life of the process
//! ```
//!
//! Unnamed objects lose their file name as soon as they are open, so the space is freed with the
//! last handle of the device, however that ends. It is freed on a separate thread: a file system
//! takes a while to free written blocks.
//!
//! Folders of dead processes are recognized by their lock, which ends with its holder; the process
//! number in the name is informative. The random part distinguishes two folders of one process.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outcore_device::{FileDevice, Locked, Mode};

use crate::error::{Error, shown};
use crate::faults::{Faults, Step};
use crate::folder::folder_of;
use crate::os::{self, Identity, SCRATCH_OBJECT};
use crate::{Folder, Object, lock};

const PREFIX: &str = "outcore-scratch-";
const LOCK: &str = "lock";
/// Longest wait for space to be freed.
const FREE_WITHIN: Duration = Duration::from_secs(60);

/// Whether scratch may be in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tmpfs {
    /// Refused: it would take the memory that scratch is meant to save.
    #[default]
    Refuse,
    /// Allowed on request of the user.
    Allow,
}

/// The scratch folder of a process. Removed when it is dropped; its unnamed objects live as long as
/// they are held.
#[derive(Debug)]
pub struct Scratch {
    folder: Folder,
    lock: File,
    faults: Arc<Faults>,
    made: AtomicU64,
    freeing: Arc<Freeing>,
    owner: u32,
}

/// Number of unnamed objects that are being freed.
#[derive(Debug, Default)]
struct Freeing {
    objects: Mutex<usize>,
    ended: Condvar,
}

impl Freeing {
    /// Waits until all of them are freed. A forked child has none of the threads that free them,
    /// hence the limit.
    fn wait(&self) {
        let objects = self.objects.locked();
        drop(
            self.ended
                .wait_timeout_while(objects, FREE_WITHIN, |objects| *objects > 0),
        );
    }
}

/// Counts as being freed as long as it lives.
struct BeingFreed(Arc<Freeing>);

impl BeingFreed {
    fn new(freeing: Arc<Freeing>) -> BeingFreed {
        *freeing.objects.locked() += 1;
        BeingFreed(freeing)
    }
}

impl Drop for BeingFreed {
    fn drop(&mut self) {
        *self.0.objects.locked() -= 1;
        self.0.ended.notify_all();
    }
}

/// Closes the last handle of an unnamed object, on a separate thread.
fn free_aside(file: File, freeing: Arc<Freeing>) {
    // Dropped in this order; on this thread if no other can be started.
    let freed = (file, BeingFreed::new(freeing));
    drop(
        std::thread::Builder::new()
            .name("outcore-scratch".into())
            .spawn(move || drop(freed)),
    );
}

impl Scratch {
    /// Makes a scratch folder inside the existing folder `chosen`, after sweeping those of dead
    /// processes.
    ///
    /// # Errors
    /// [`Error::TmpfsScratch`], [`Error::Missing`], [`Error::NotAFolder`], or that of the file
    /// system.
    pub fn new(chosen: impl AsRef<Path>, tmpfs: Tmpfs) -> Result<Scratch, Error> {
        Scratch::with_faults(chosen, tmpfs, Arc::new(Faults::none()))
    }

    /// As [`Scratch::new`], with injected faults.
    ///
    /// # Errors
    /// As [`Scratch::new`].
    pub fn with_faults(
        chosen: impl AsRef<Path>,
        tmpfs: Tmpfs,
        faults: Arc<Faults>,
    ) -> Result<Scratch, Error> {
        let chosen = Folder::new(chosen.as_ref())?;
        let fail = |error| Error::from_io(&shown(chosen.path()), "make scratch in", error);
        if tmpfs == Tmpfs::Refuse && os::in_memory(chosen.path()).map_err(fail)? {
            return Err(Error::TmpfsScratch {
                folder: shown(chosen.path()),
            });
        }
        sweep(chosen.path(), &faults);
        let (path, lock) = make_locked(chosen.path(), &faults).map_err(fail)?;
        Ok(Scratch {
            folder: Folder::with_faults(path, Arc::clone(&faults))?,
            lock,
            faults,
            made: AtomicU64::new(0),
            freeing: Arc::default(),
            owner: std::process::id(),
        })
    }

    /// The folder, for intermediate objects that need a name; it is removed when the scratch is
    /// dropped.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Removes the scratch of dead processes in a chosen folder, if it exists, as [`Scratch::new`]
    /// does too.
    pub fn sweep(chosen: &Path) {
        sweep(chosen, &Faults::none());
        lock::sweep_partials(&lasting_in(chosen), &Faults::none());
    }

    /// A folder beside it for objects that this user may resume after the process has died; no
    /// other user may read it.
    ///
    /// # Errors
    /// [`Error::Denied`] if another user has made a folder of its name; that of the file system.
    pub fn lasting(&self) -> Result<Folder, Error> {
        let user = rustix::process::getuid().as_raw();
        let path = lasting_in(folder_of(self.folder.path()));
        let made = DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            });
        let found = made
            .and_then(|()| std::fs::symlink_metadata(&path))
            .and_then(|found| {
                let is_ours = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
                if is_ours {
                    Ok(())
                } else {
                    Err(io::ErrorKind::PermissionDenied.into())
                }
            });
        found
            .map_err(|error| Error::from_io(&shown(&path), "make a folder of one's own", error))?;
        Folder::new(path)
    }

    /// An unnamed object of `len` zero bytes, removed with the last handle of its device. A write
    /// may run past the end by less than one block.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or that of the file system.
    pub fn create(&self, len: u64) -> Result<Object, Error> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.path().join(format!("{number}"));
        let name = format!("{SCRATCH_OBJECT}{}", shown(&path));
        self.check_space(&name, len)?;
        let fail = |error| Error::from_io(&name, "create", error);
        let file = self
            .faults
            .step(Step::Open)
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).open(&path)
            })
            .map_err(fail)?;
        // From here on nothing is left behind after an error.
        let unnamed = self.faults.step(Step::Remove);
        let unnamed = std::fs::remove_file(&path).and(unnamed);
        unnamed.map_err(fail)?;
        self.faults
            .step(Step::Allocate)
            .and_then(|()| os::allocate(&file, len).map(drop))
            .map_err(|error| {
                let free = os::free_bytes(self.folder.path()).unwrap_or(0);
                Error::from_allocation(&name, len, free, error)
            })?;
        let identity = Identity::of(&file.metadata().map_err(fail)?);
        let freeing = Arc::clone(&self.freeing);
        let device = FileDevice::from_file(file, name.clone(), Mode::ReadWrite)
            .map_err(|error| fail(error.source))?;
        let device = device.closed_by(move |file| free_aside(file, freeing));
        Ok(Object {
            object: name,
            device: Arc::new(device),
            len,
            identity,
        })
    }

    /// Checks that this many bytes are free, for an object that will grow in steps; errors call it
    /// `name`.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or that of the file system.
    pub fn check_space(&self, name: &str, needed: u64) -> Result<(), Error> {
        let ask = || {
            os::free_bytes(self.folder.path())
                .map_err(|error| Error::from_allocation(name, needed, 0, error))
        };
        self.faults
            .step(Step::Space)
            .map_err(|error| Error::from_allocation(name, needed, 0, error))?;
        let mut free = ask()?;
        if free < needed {
            self.freeing.wait();
            free = ask()?;
        }
        let free = self.faults.free_bytes().unwrap_or(free);
        match free < needed {
            true => Err(Error::NoSpace {
                object: name.to_owned(),
                needed,
                free,
            }),
            false => Ok(()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        // A folder that cannot be removed now is swept by the next process that makes scratch here.
        let _ = std::fs::remove_dir_all(self.folder.path());
        let _ = self.lock.unlock();
    }
}

fn lasting_in(chosen: &Path) -> PathBuf {
    chosen.join(format!(
        "outcore-unfinished-{}",
        rustix::process::getuid().as_raw()
    ))
}

/// A fresh folder and its lock, held. A sweep may remove the folder before it is locked; then
/// another is made.
fn make_locked(chosen: &Path, faults: &Faults) -> io::Result<(PathBuf, File)> {
    loop {
        let random = RandomState::new().build_hasher().finish();
        let name = format!("{PREFIX}{}-{random:016x}", std::process::id());
        let path = chosen.join(name);
        faults.step(Step::Open)?;
        std::fs::create_dir(&path)?;
        match lock_inside(&path, faults) {
            Ok(Some(lock)) => return Ok((path, lock)),
            Ok(None) => {}
            Err(error) => {
                let _ = std::fs::remove_dir_all(&path);
                return Err(error);
            }
        }
    }
}

/// The folder's lock, held; `None` if the folder was swept in between.
fn lock_inside(folder: &Path, faults: &Faults) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    let Some(file) = open_lock(&path)? else {
        return Ok(None);
    };
    faults.step(Step::Lock)?;
    let held = lock::try_lock(&file)? && os::leads_to(&path, &file)?;
    Ok(held.then_some(file))
}

fn open_lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    match options.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the scratch folders of dead processes. Folders that cannot be removed belong to other
/// users.
fn sweep(chosen: &Path, faults: &Faults) {
    let Ok(entries) = std::fs::read_dir(chosen) else {
        return;
    };
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = sweep_folder(&entry.path(), faults);
        }
    }
}

fn sweep_folder(folder: &Path, faults: &Faults) -> io::Result<()> {
    let Some(lock) = open_lock(&folder.join(LOCK))? else {
        return Ok(());
    };
    if lock.try_lock().is_ok() {
        faults.step(Step::Remove)?;
        std::fs::remove_dir_all(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_goes_is_freed_and_counts_until_then() {
        let chosen = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let scratch = Scratch::new(chosen.path(), Tmpfs::Allow).unwrap();
        let object = scratch.create(1 << 20).unwrap();
        let last = BeingFreed::new(Arc::clone(&scratch.freeing));
        drop(object);
        assert!(*scratch.freeing.objects.lock().unwrap() >= 1);
        drop(last);
        scratch.freeing.wait();
        assert_eq!(*scratch.freeing.objects.lock().unwrap(), 0);
        // The device that had the counter is dropped, and the thread that had it will end soon.
        (0..1000)
            .take_while(|_| Arc::strong_count(&scratch.freeing) > 1)
            .for_each(|_| std::thread::sleep(FREE_WITHIN / 60_000));
        assert_eq!(Arc::strong_count(&scratch.freeing), 1);
    }
}
