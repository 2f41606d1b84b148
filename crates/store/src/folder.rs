//! The folder backend: an object is a plain file, readable by every other tool.
//!
//! ```text
//!   create          .x.outcore-partial is locked, sized, written
//!   commit          exact length -> fsync -> rename over x -> fsync of the folder
//!   open_in_place   x is locked -> mark -> fsync;   finish: exact length -> fsync -> mark cleared -> fsync
//! ```
//!
//! Invariant: at every instant, a name without a mark leads to the complete bytes of one committed
//! write. Symbolic links are followed first, so the link is kept and its target is replaced.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use outcore_device::{FileDevice, Mode};

use crate::error::{Error, shown};
use crate::faults::{Faults, Step};
use crate::lock::{self, ObjectPath};
use crate::mark::{self, Mark, is_own};
use crate::new_folder::{NewFolder, Unfinished};
use crate::os::{self, Identity};
use crate::write::{Partial, Writing};
use crate::{Ending, InPlace, NewObject, NewObjects, Object, Stat, State, Store};

/// A folder of objects. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    faults: Arc<Faults>,
}

impl Folder {
    /// The objects in the existing folder `root`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::NotAFolder`], or that of the file system.
    pub fn new(root: impl Into<PathBuf>) -> Result<Folder, Error> {
        Folder::with_faults(root, Arc::new(Faults::none()))
    }

    /// As [`Folder::new`], with injected faults.
    ///
    /// # Errors
    /// As [`Folder::new`].
    pub fn with_faults(root: impl Into<PathBuf>, faults: Arc<Faults>) -> Result<Folder, Error> {
        let mut root = root.into();
        if root.as_os_str().is_empty() {
            root.push(".");
        }
        let found = std::fs::metadata(&root);
        let found = found.map_err(|error| Error::from_io(&shown(&root), "look at", error))?;
        if !found.is_dir() {
            return Err(Error::NotAFolder {
                object: shown(&root),
            });
        }
        Ok(Folder { root, faults })
    }

    /// The folder of `path`, and its name there.
    ///
    /// # Errors
    /// [`Error::Name`] for a path that cannot name an object; otherwise as [`Folder::new`].
    pub fn split(path: &Path) -> Result<(Folder, String), Error> {
        let refuse = |reason| Error::Name {
            name: shown(path),
            reason,
        };
        let name = path.file_name().ok_or(refuse("it has no last part"))?;
        let name = name
            .to_str()
            .ok_or(refuse("its last part is not valid UTF-8"))?;
        let folder = Folder::new(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, name.to_owned()))
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    fn place(&self, name: &str) -> Result<ObjectPath, Error> {
        check_name(name)?;
        let path = match self.root == Path::new(".") {
            true => PathBuf::from(name),
            false => self.root.join(name),
        };
        let object = shown(&path);
        let linked = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        let path = match linked {
            true => std::fs::canonicalize(&path)
                .map_err(|error| Error::from_io(&object, "follow the link", error))?,
            false => path,
        };
        let folder = folder_of(&path).to_owned();
        Ok(ObjectPath {
            object,
            path,
            folder,
        })
    }

    /// Creates the folders between the root and the object, durably.
    fn make_folders(&self, place: &ObjectPath) -> Result<(), Error> {
        let missing: Vec<&Path> = place
            .folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        for folder in missing.into_iter().rev() {
            let parent = folder_of(folder);
            let made = std::fs::create_dir(folder)
                .or_else(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                })
                .and_then(|()| self.faults.step(Step::SyncFolder))
                .and_then(|()| os::sync_folder(parent));
            made.map_err(|error| Error::from_io(&shown(folder), "make the folder", error))?;
        }
        Ok(())
    }

    /// Begins a folder of objects, which gets its name when it is [committed](NewFolder::commit).
    /// Until then another folder may have the name, if it contains no parts other than these.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a folder with other parts; [`Error::Locked`] while another writer
    /// holds the name, [`Error::NotAFolder`] for the name of a file, or that of the file system.
    pub fn create_folder(
        &self,
        name: &str,
        unfinished: Unfinished,
        parts: &[&str],
    ) -> Result<NewFolder, Error> {
        let place = self.place(name)?;
        self.make_folders(&place)?;
        lock::sweep_partials(&place.folder, &self.faults);
        NewFolder::claim(place, unfinished, parts, Arc::clone(&self.faults))
    }

    /// Begins an object that grows as it is written, up to the space that is free at its start;
    /// [`NewObject::cut`] sets its length.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create_growing(&self, name: &str) -> Result<NewObject, Error> {
        let place = self.place(name)?;
        self.make_folders(&place)?;
        lock::sweep_partials(&place.folder, &self.faults);
        let most = os::most_bytes(self.check_space(&place, 0)?) & !0xfff;
        let partial = Partial::claim(&place, most, Arc::clone(&self.faults))?;
        partial.stretch()?;
        self.begun(place, partial, most)
    }

    fn allocated(&self, place: ObjectPath, partial: Partial, len: u64) -> Result<NewObject, Error> {
        let free = self.check_space(&place, len)?;
        partial.allocate(free)?;
        self.begun(place, partial, len)
    }

    /// Begins a file of any name at a path that does not exist.
    ///
    /// # Errors
    /// [`Error::Exists`], and as [`Store::create`].
    pub(crate) fn create_anew(
        path: &Path,
        len: u64,
        faults: Arc<Faults>,
    ) -> Result<NewObject, Error> {
        let place = ObjectPath {
            object: shown(path),
            path: path.to_owned(),
            folder: folder_of(path).to_owned(),
        };
        let folder = Folder::with_faults(&place.folder, faults)?;
        lock::sweep_partials(&place.folder, &folder.faults);
        let partial = Partial::claim_new(&place, len, Arc::clone(&folder.faults))?;
        folder.allocated(place, partial, len)
    }

    fn begun(&self, place: ObjectPath, partial: Partial, len: u64) -> Result<NewObject, Error> {
        let device = partial.device()?;
        let identity = Identity::of(&partial.metadata()?);
        let object = Object {
            object: place.object,
            device,
            len,
            identity,
        };
        Ok(NewObject {
            object,
            ending: Box::new(partial),
        })
    }

    /// Checks the free space early, while the caller can still react; the allocation that follows
    /// is decisive.
    fn check_space(&self, place: &ObjectPath, needed: u64) -> Result<u64, Error> {
        let asked = self
            .faults
            .step(Step::Space)
            .and_then(|()| os::free_bytes(&place.folder));
        let free =
            asked.map_err(|error| Error::from_allocation(&place.object, needed, 0, error))?;
        let free = self.faults.free_bytes().unwrap_or(free);
        match free < needed {
            true => Err(Error::NoSpace {
                object: place.object.clone(),
                needed,
                free,
            }),
            false => Ok(free),
        }
    }

    /// Opens an object for reading, with the state of its mark. Repeated if the name leads to
    /// another file meanwhile.
    fn open_with_mark(&self, place: &ObjectPath) -> Result<(Object, State), Error> {
        loop {
            let file = self.open_to_read(place)?;
            let stat = stat(&file, place)?;
            let device = device(&file, place, Mode::Read, stat.len)?;
            if let Some(device) = device {
                let object = object(place, device, &stat);
                return Ok((object, stat.state));
            }
        }
    }

    fn open_to_read(&self, place: &ObjectPath) -> Result<File, Error> {
        let fail = |error| Error::from_io(&place.object, "open", error);
        // Checked before it is opened: opening a pipe would wait for its writer.
        lock::require_file(&std::fs::metadata(&place.path).map_err(fail)?, place)?;
        self.faults
            .step(Step::Open)
            .and_then(|()| File::open(&place.path))
            .map_err(fail)
    }

    fn begin_in_place(&self, name: &str, accept_interrupted: bool) -> Result<InPlace, Error> {
        let place = self.place(name)?;
        let file = lock::lock_object(&place, &self.faults)?;
        let (mut stat, mark) = stat_locked(&file, &place)?;
        if mark.is_some() && !accept_interrupted {
            return Err(Error::Interrupted {
                object: place.object,
            });
        }
        stat.state = State::BeingWritten;
        let mut writing = Writing::new(file, place.clone(), stat.len, Arc::clone(&self.faults));
        writing.mark(mark.is_some())?;
        let device =
            device(writing.file(), &place, Mode::ReadWrite, stat.len)?.ok_or(Error::Locked {
                object: place.object.clone(),
            })?;
        let object = object(&place, device, &stat);
        let ending: Box<dyn Ending> = Box::new(writing);
        Ok(InPlace { object, ending })
    }
}

impl Store for Folder {
    fn create(&self, name: &str, len: u64) -> Result<NewObject, Error> {
        let place = self.place(name)?;
        self.make_folders(&place)?;
        lock::sweep_partials(&place.folder, &self.faults);
        let partial = Partial::claim(&place, len, Arc::clone(&self.faults))?;
        self.allocated(place, partial, len)
    }

    fn create_new(&self, name: &str, len: u64) -> Result<NewObject, Error> {
        let place = self.place(name)?;
        if place.is_taken() {
            return Err(Error::Exists {
                object: place.object,
            });
        }
        self.make_folders(&place)?;
        lock::sweep_partials(&place.folder, &self.faults);
        let partial = Partial::claim_new(&place, len, Arc::clone(&self.faults))?;
        self.allocated(place, partial, len)
    }

    fn create_together(&self, name: &str, parts: &[&str]) -> Result<Box<dyn NewObjects>, Error> {
        Ok(Box::new(self.create_folder(
            name,
            Unfinished::Removed,
            parts,
        )?))
    }

    fn open(&self, name: &str) -> Result<Object, Error> {
        match self.open_with_mark(&self.place(name)?)? {
            (object, State::Interrupted) => Err(Error::Interrupted {
                object: object.object,
            }),
            (object, _) => Ok(object),
        }
    }

    fn open_interrupted(&self, name: &str) -> Result<Object, Error> {
        Ok(self.open_with_mark(&self.place(name)?)?.0)
    }

    fn open_in_place(&self, name: &str) -> Result<InPlace, Error> {
        self.begin_in_place(name, false)
    }

    fn open_in_place_interrupted(&self, name: &str) -> Result<InPlace, Error> {
        self.begin_in_place(name, true)
    }

    fn clear_mark(&self, name: &str) -> Result<(), Error> {
        let place = self.place(name)?;
        let file = lock::lock_object(&place, &self.faults)?;
        let (stat, mark) = stat_locked(&file, &place)?;
        match mark {
            None => Ok(()),
            Some(_) => Writing::new(file, place, stat.len, Arc::clone(&self.faults)).end(),
        }
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let place = self.place(name)?;
        let _lock = lock::lock_object(&place, &self.faults)?;
        let removed = self
            .faults
            .step(Step::Remove)
            .and_then(|()| std::fs::remove_file(&place.path))
            .and_then(|()| mark::clear_beside(&place).map(drop))
            .and_then(|()| self.faults.step(Step::SyncFolder))
            .and_then(|()| os::sync_folder(&place.folder));
        removed.map_err(|error| Error::from_io(&place.object, "remove", error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        if from.path == to.path {
            return self.open_to_read(&from).map(drop);
        }
        let source = lock::lock_object(&from, &self.faults)?;
        self.make_folders(&to)?;
        lock::sweep_partials(&to.folder, &self.faults);
        // Claimed for its locks only; dropping it removes it.
        let claim = Partial::claim(&to, 0, Arc::clone(&self.faults))?;
        let (stat, mark) = stat_locked(&source, &from)?;
        let moved = self.move_with_mark(&source, &from, &to, mark.map(|_| stat.len));
        drop(claim);
        moved.map_err(|error| Error::from_io(&from.object, "rename", error))
    }

    fn list(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        let mut folders = vec![(self.root.clone(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            let fail = |error| Error::from_io(&shown(&folder), "list", error);
            for entry in std::fs::read_dir(&folder).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let Ok(file_name) = entry.file_name().into_string() else {
                    continue;
                };
                if is_own(&file_name) {
                    continue;
                }
                let name = format!("{prefix}{file_name}");
                // Links to folders are not followed, so that no folder is visited twice.
                match entry.file_type().map_err(fail)? {
                    kind if kind.is_dir() => folders.push((entry.path(), format!("{name}/"))),
                    kind if kind.is_file() || entry.path().is_file() => names.push(name),
                    _ => {}
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn stat(&self, name: &str) -> Result<Stat, Error> {
        let place = self.place(name)?;
        let file = self.open_to_read(&place)?;
        stat(&file, &place)
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        if let Some(free) = self.faults.free_bytes() {
            return Ok(free);
        }
        let fail = |error| Error::from_io(&shown(&self.root), "ask for its free space", error);
        os::free_bytes(&self.root).map_err(fail)
    }
}

impl Folder {
    /// A mark beside the object cannot be renamed in the same step; the new name is marked first,
    /// so that the object is never without a mark.
    fn move_with_mark(
        &self,
        source: &File,
        from: &ObjectPath,
        to: &ObjectPath,
        marked_len: Option<u64>,
    ) -> io::Result<()> {
        self.faults.step(Step::Rename)?;
        if let Some(len) = marked_len {
            mark::set_for_rename(source, to, len, &self.faults)?;
        }
        std::fs::rename(&from.path, &to.path)?;
        mark::clear_beside(from)?;
        if marked_len.is_none() {
            mark::clear_beside(to)?;
        }
        self.faults.step(Step::SyncFolder)?;
        os::sync_folder(&to.folder)?;
        match from.folder == to.folder {
            true => Ok(()),
            false => os::sync_folder(&from.folder),
        }
    }
}

/// The folder of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    // The longest file name of common file systems, minus the dot and the longest suffix.
    const LONGEST_BYTES: usize = 255 - ".".len() - ".outcore-unfinished".len();
    let refuse = |reason| {
        Err(Error::Name {
            name: name.to_owned(),
            reason,
        })
    };
    if name.is_empty() || name.ends_with('/') {
        return refuse("it has no last part");
    }
    if name.contains('\0') {
        return refuse("it contains a zero byte");
    }
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) if part.len() > LONGEST_BYTES => {
                return refuse("a part of it is longer than 235 bytes");
            }
            Component::Normal(part) if part.to_str().is_some_and(is_own) => {
                return refuse("names like this are the store's own");
            }
            Component::Normal(_) => {}
            Component::CurDir => return refuse("it contains '.'"),
            Component::ParentDir => return refuse("it contains '..'"),
            Component::RootDir | Component::Prefix(_) => return refuse("it is not relative"),
        }
    }
    Ok(())
}

/// The state of an open object whose lock the caller holds.
fn stat_locked(file: &File, place: &ObjectPath) -> Result<(Stat, Option<Mark>), Error> {
    let found = file
        .metadata()
        .and_then(|metadata| Ok((metadata, mark::read(file, place)?)));
    let (metadata, mark) =
        found.map_err(|error| Error::from_io(&place.object, "look at", error))?;
    let stat = Stat {
        len: mark.map_or(metadata.len(), |mark| mark.len_of(metadata.len())),
        modified: metadata.modified().ok(),
        identity: Identity::of(&metadata),
        state: match mark {
            None => State::Whole,
            Some(_) => State::Interrupted,
        },
    };
    Ok((stat, mark))
}

/// The state of an open object that a writer may be changing. A mark alone does not tell a running
/// writer from a dead one; a shared lock does.
fn stat(file: &File, place: &ObjectPath) -> Result<Stat, Error> {
    let (mut stat, mark) = stat_settled(file, place)?;
    if mark.is_none() {
        return Ok(stat);
    }
    let alone = lock::try_lock_shared(file)
        .map_err(|error| Error::from_io(&place.object, "look for its writer", error))?;
    if !alone {
        stat.state = State::BeingWritten;
        return Ok(stat);
    }
    let looked = stat_locked(file, place);
    lock::release(file);
    Ok(looked?.0)
}

/// Repeats until length and mark are consistent: a length read while a writer had extended the
/// file, combined with a mark read after it had finished, would be wrong.
fn stat_settled(file: &File, place: &ObjectPath) -> Result<(Stat, Option<Mark>), Error> {
    let mut last = stat_locked(file, place)?;
    while last.1.is_none() {
        let next = stat_locked(file, place)?;
        if next.1.is_none() && next.0.len == last.0.len {
            break;
        }
        last = next;
    }
    Ok(last)
}

fn object(place: &ObjectPath, device: Arc<FileDevice>, stat: &Stat) -> Object {
    Object {
        object: place.object.clone(),
        device,
        len: stat.len,
        identity: stat.identity,
    }
}

/// The file as a device with a descriptor of its own, so that its flags and lifetime are
/// independent of the lock. It has the object's length, since a writer in place may have extended
/// the file. `None` if the name leads to another file meanwhile.
fn device(
    file: &File,
    place: &ObjectPath,
    mode: Mode,
    len: u64,
) -> Result<Option<Arc<FileDevice>>, Error> {
    let opened = OpenOptions::new()
        .read(true)
        .write(mode == Mode::ReadWrite)
        .open(&place.path)
        .and_then(|device| {
            let same = Identity::of(&device.metadata()?) == Identity::of(&file.metadata()?);
            Ok(same.then_some(device))
        });
    match opened {
        Ok(None) => Ok(None),
        Ok(Some(file)) => FileDevice::from_file(file, place.object.clone(), mode)
            .map(|device| Some(Arc::new(device.sized(len))))
            .map_err(|error| Error::from_io(&place.object, "open", error.source)),
        Err(error) => Err(Error::from_io(&place.object, "open", error)),
    }
}
