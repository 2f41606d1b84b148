//! A new folder whose objects come into being together.
//!
//! ```text
//!   create_folder   .x.outcore-partial/ is made and locked; objects are made inside
//!   commit          each object: exact length -> fsync;   fsync of the folder -> rename to x, or exchange with the x that
//!                   was there, which is then removed -> fsync of the folder around it
//! ```
//!
//! A folder that is to be gone on with after a crash is made as `.x.outcore-unfinished/` instead: nobody sweeps it, and the next
//! one to create x so finds what is there.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_device::{Device, FileDevice, Mode};

use crate::error::{Error, shown};
use crate::faults::{Faults, Step};
use crate::folder::is_own;
use crate::lock::{self, Place};
use crate::{NewObjects, os};

/// What becomes of a new folder whose writer dies or gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unfinished {
    /// It is removed.
    #[default]
    Removed,
    /// It stays, for whoever creates the same folder again to go on with.
    Kept,
}

/// A folder that is being written and has no name yet.
#[must_use = "dropping a new folder gives it up"]
pub struct NewFolder {
    place: Place,
    partial: PathBuf,
    lock: File,
    parts: Vec<Part>,
    /// Names of parts that the folder which it replaces may have.
    replaced: Vec<String>,
    faults: Arc<Faults>,
    unfinished: Unfinished,
    owner: u32,
    gone: bool,
}

struct Part {
    object: String,
    file: File,
    len: u64,
}

impl NewFolder {
    /// Claims the folder of a place that may be taken already by another folder.
    pub(crate) fn claim(
        place: Place,
        unfinished: Unfinished,
        replaced: &[&str],
        faults: Arc<Faults>,
    ) -> Result<NewFolder, Error> {
        if std::fs::metadata(&place.path).is_ok_and(|found| !found.is_dir()) {
            return Err(Error::NotAFolder { object: place.object });
        }
        let replaced: Vec<String> = replaced.iter().map(|&part| part.to_owned()).collect();
        check_parts(&place, &replaced)?;
        let partial = match unfinished {
            Unfinished::Removed => place.partial(),
            Unfinished::Kept => place.beside(lock::UNFINISHED_SUFFIX),
        };
        let lock = lock::claim_folder(&place, &partial, &faults)?;
        let (parts, owner) = (Vec::new(), std::process::id());
        let new = NewFolder { place, partial, lock, parts, replaced, faults, unfinished, owner, gone: false };
        if unfinished == Unfinished::Removed {
            new.empty()?;
        }
        Ok(new)
    }

    /// How errors call it: the full path that it will have.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.place.object
    }

    /// Where its objects lie until it has its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Removes every object that an earlier, unfinished writer left.
    ///
    /// # Errors
    /// That of the file system.
    pub fn empty(&self) -> Result<(), Error> {
        let emptied = std::fs::read_dir(&self.partial).and_then(|mut entries| {
            entries.try_for_each(|entry| {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    std::fs::remove_dir_all(entry.path())
                } else {
                    std::fs::remove_file(entry.path())
                }
            })
        });
        emptied.map_err(|error| Error::from_io(self.name(), "empty its partial", error))
    }

    /// A new object of `len` zero bytes, whose space is set aside where the file system can. A write may run past the end by less
    /// than one block.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or that of the file system.
    pub fn create(&mut self, name: &str, len: u64) -> Result<Arc<dyn Device>, Error> {
        let free = self.free_bytes()?;
        if free < len {
            return Err(Error::NoSpace { object: self.object(name), needed: len, free });
        }
        self.part(name, len, |file| os::allocate(file, len))
    }

    /// An object that grows as it is written, up to all the space that is free now; [`cut`](NewFolder::cut) says where it ends. What
    /// an earlier writer left of it stays.
    ///
    /// # Errors
    /// That of the file system.
    pub fn create_growing(&mut self, name: &str) -> Result<Arc<dyn Device>, Error> {
        let most = self.free_bytes()?;
        self.part(name, most, |file| {
            let len = file.metadata()?.len().max(most & !0xfff);
            file.set_len(len)
        })
    }

    fn part(&mut self, name: &str, len: u64, make_room: impl FnOnce(&File) -> io::Result<()>) -> Result<Arc<dyn Device>, Error> {
        let object = self.object(name);
        let fail = |error| Error::from_io(&object, "create", error);
        let path = self.partial.join(name);
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(&path)
        };
        let file = self.faults.step(Step::Open).and_then(|()| open()).map_err(fail)?;
        let roomy = self.faults.step(Step::Allocate).and_then(|()| make_room(&file));
        roomy.map_err(|error| Error::from_allocation(&object, len, os::free_bytes(&self.partial).unwrap_or(0), error))?;
        let device =
            FileDevice::from_file(open().map_err(fail)?, object.clone(), Mode::ReadWrite).map_err(|error| fail(error.source))?;
        self.parts.retain(|part| part.object != object);
        self.parts.push(Part { object, file, len });
        Ok(Arc::new(device))
    }

    /// Gives an object its exact length at [`commit`](NewFolder::commit).
    pub fn cut(&mut self, name: &str, len: u64) {
        let object = self.object(name);
        self.parts.iter_mut().filter(|part| part.object == object).for_each(|part| part.len = len);
    }

    /// Makes what has been written so far durable.
    ///
    /// # Errors
    /// That of the file system.
    pub fn sync(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| {
            let synced = self.faults.step(Step::Sync).and_then(|()| part.file.sync_all());
            synced.map_err(|error| Error::from_io(&part.object, "make it durable", error))
        })?;
        self.sync_names()
    }

    /// Gives all objects their exact lengths, and makes them durable.
    ///
    /// # Errors
    /// That of the file system.
    pub fn seal(&self) -> Result<(), Error> {
        for part in &self.parts {
            let sized = self.faults.step(Step::Truncate).and_then(|()| part.file.set_len(part.len));
            sized.map_err(|error| Error::from_io(&part.object, "set its length", error))?;
        }
        self.sync()
    }

    fn sync_names(&self) -> Result<(), Error> {
        let synced = self.faults.step(Step::SyncFolder).and_then(|()| os::sync_folder(&self.partial));
        synced.map_err(|error| Error::from_io(self.name(), "make its names durable", error))
    }

    /// Gives all objects their exact lengths, makes them durable, and puts the folder under its name in one step, also where
    /// another folder has that name. All writes have completed before; none may follow.
    ///
    /// # Errors
    /// That of the file system. The name then leads to what it led to before, with one exception: when the folder around cannot be
    /// made durable, the name already leads to the new one, which is whole.
    pub fn commit(mut self) -> Result<(), Error> {
        check_parts(&self.place, &self.replaced)?;
        self.seal()?;
        let placed = self.faults.step(Step::Rename).and_then(|()| os::put_folder(&self.partial, &self.place.path));
        let replaced = placed.map_err(|error| Error::from_io(self.name(), "put it in place", error))?;
        self.gone = true;
        if let Some(old) = replaced {
            // What cannot be removed now is swept later.
            let _ = self.faults.step(Step::Remove).and_then(|()| std::fs::remove_dir_all(old));
        }
        let durable = self.faults.step(Step::SyncFolder).and_then(|()| os::sync_folder(&self.place.folder));
        durable.map_err(|error| Error::from_io(self.name(), "make its name durable", error))
    }

    /// Says whether there is something in it to go on with; else it goes where it does not come to have its name.
    pub fn keep(&mut self, is_kept: bool) {
        self.unfinished = if is_kept { Unfinished::Kept } else { Unfinished::Removed };
    }

    /// Gives the folder up, also one that would be kept.
    pub fn discard(mut self) {
        self.unfinished = Unfinished::Removed;
    }

    fn object(&self, name: &str) -> String {
        shown(&self.place.path.join(name))
    }

    /// Bytes that are free where it is made.
    ///
    /// # Errors
    /// That of the file system.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let asked = self.faults.step(Step::Space).and_then(|()| os::free_bytes(&self.partial));
        let free = asked.map_err(|error| Error::from_io(self.name(), "ask for its free space", error))?;
        Ok(self.faults.free_bytes().unwrap_or(free))
    }
}

/// Refuses to replace a folder that has other parts than these.
fn check_parts(place: &Place, parts: &[String]) -> Result<(), Error> {
    let entries = match std::fs::read_dir(&place.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::from_io(&place.object, "list", error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Error::from_io(&place.object, "list", error))?.file_name();
        let name = name.to_string_lossy();
        if !parts.iter().any(|part| *part == name) && !is_own(&name) {
            return Err(Error::Foreign { object: place.object.clone(), part: name.into_owned() });
        }
    }
    Ok(())
}

impl NewObjects for NewFolder {
    fn create(&mut self, part: &str, len: u64) -> Result<Arc<dyn Device>, Error> {
        NewFolder::create(self, part, len)
    }

    fn commit(self: Box<Self>) -> Result<(), Error> {
        NewFolder::commit(*self)
    }
}

impl std::fmt::Debug for NewFolder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("NewFolder").field(&self.place.object).finish()
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        if !self.gone && self.unfinished == Unfinished::Removed && self.faults.step(Step::Remove).is_ok() {
            let _ = std::fs::remove_dir_all(&self.partial);
        }
        lock::release(&self.lock);
    }
}
