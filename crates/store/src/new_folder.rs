//! A new folder whose objects are created together.
//!
//! ```text
//!   create_folder   .x.outcore-partial/ is made and locked; objects are made inside
//!   commit          each object: exact length -> fsync;   fsync of the folder -> rename to x, or exchange with the x that
//!                   was there -> fsync of the folder around it -> what was there is removed
//! ```
//!
//! A folder that can be resumed after a crash is made as `.x.outcore-unfinished/` instead: as long
//! as a [checkpoint](CHECKPOINT) is in it, it is not swept, and the next writer that creates x in
//! this way finds its content. The checkpoint, and files needed only for resuming, must neither
//! appear in x nor be lost before x is durable. They are set aside, inside the folder, and removed
//! when the name is durable:
//!
//! ```text
//!   .x.outcore-unfinished/{a, b, checkpoint}
//!   .x.outcore-unfinished/{a, .outcore-unfinished/{b, checkpoint}}         put aside; brought back by the next to create x
//!   x/{a, .outcore-unfinished/{b, checkpoint}}                             renamed, in one step with what counts its bytes
//!   x/{a}                                                                  the name is durable
//! ```

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_device::{Device, FileDevice, Mode};

use crate::error::{Error, shown};
use crate::faults::{Faults, Step};
use crate::lock::{self, ASIDE, CHECKPOINT, ObjectPath, is_hopeless};
use crate::mark::is_own;
use crate::{NewObjects, os};

/// The checkpoint while it is being written.
const NEW_CHECKPOINT: &str = "checkpoint.json.new";

/// What happens to a new folder whose writer dies or drops it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unfinished {
    /// It is removed.
    #[default]
    Removed,
    /// It is kept if there is a [`CHECKPOINT`] in it, and resumed by the next writer that creates
    /// the same folder.
    Kept,
}

/// A folder that is being written and has no name yet.
#[must_use = "dropping a new folder gives it up"]
pub struct NewFolder {
    place: ObjectPath,
    partial: PathBuf,
    lock: File,
    parts: Vec<Part>,
    /// Names of parts that the folder to be replaced may have.
    replaced: Vec<String>,
    /// Bytes of objects that will be written, and for which the file system has not allocated
    /// space.
    promised: u64,
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
    /// Claims the folder of a place where another folder may exist.
    pub(crate) fn claim(
        place: ObjectPath,
        unfinished: Unfinished,
        replaced: &[&str],
        faults: Arc<Faults>,
    ) -> Result<NewFolder, Error> {
        if std::fs::metadata(&place.path).is_ok_and(|found| !found.is_dir()) {
            return Err(Error::NotAFolder {
                object: place.object,
            });
        }
        let replaced: Vec<String> = replaced.iter().map(|&part| part.to_owned()).collect();
        check_parts(&place, &replaced)?;
        let partial = match unfinished {
            Unfinished::Removed => place.partial(),
            Unfinished::Kept => place.beside(lock::UNFINISHED_SUFFIX),
        };
        let lock = lock::claim_folder(&place, &partial, &faults)?;
        let (parts, owner) = (Vec::new(), std::process::id());
        let new = NewFolder {
            place,
            partial,
            lock,
            parts,
            replaced,
            promised: 0,
            faults,
            unfinished,
            owner,
            gone: false,
        };
        match unfinished {
            Unfinished::Removed => new.empty()?,
            Unfinished::Kept => new.bring_back()?,
        }
        Ok(new)
    }

    /// Whether it contains something to resume.
    #[must_use]
    pub fn has_checkpoint(&self) -> bool {
        self.partial.join(CHECKPOINT).exists()
    }

    /// The full path that it will have, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.place.object
    }

    /// The folder of its objects until it has its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Removes all objects of an earlier, unfinished writer.
    ///
    /// # Errors
    /// That of the file system.
    pub fn empty(&self) -> Result<(), Error> {
        // The checkpoint first, since it counts the others.
        let forgotten = remove_if_there(&self.partial.join(CHECKPOINT));
        forgotten.map_err(|error| Error::from_io(self.name(), "empty its partial", error))?;
        self.empty_but(&[])
    }

    /// Removes all files of an earlier writer except these, which its checkpoint counts.
    ///
    /// # Errors
    /// That of the file system.
    pub fn empty_but(&self, counted: &[&str]) -> Result<(), Error> {
        let stays =
            |name: &OsStr| name == CHECKPOINT || counted.iter().any(|counted| name == *counted);
        let emptied = std::fs::read_dir(&self.partial).and_then(|mut entries| {
            entries.try_for_each(|entry| {
                let entry = entry?;
                if stays(&entry.file_name()) {
                    Ok(())
                } else if entry.file_type()?.is_dir() {
                    std::fs::remove_dir_all(entry.path())
                } else {
                    std::fs::remove_file(entry.path())
                }
            })
        });
        emptied.map_err(|error| Error::from_io(self.name(), "empty its partial", error))
    }

    /// Brings back files that an earlier writer has set aside before it failed to give the folder
    /// its name; the checkpoint last.
    fn bring_back(&self) -> Result<(), Error> {
        let aside = self.partial.join(ASIDE);
        let back = |name: &OsStr| {
            self.faults.step(Step::SetAside)?;
            std::fs::rename(aside.join(name), self.partial.join(name))
        };
        let brought = (|| {
            let entries = match std::fs::read_dir(&aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                entries => entries?,
            };
            let names = entries
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<Vec<_>>>()?;
            names
                .iter()
                .filter(|name| *name != CHECKPOINT)
                .try_for_each(|name| back(name))?;
            names
                .iter()
                .filter(|name| *name == CHECKPOINT)
                .try_for_each(|name| back(name))?;
            std::fs::remove_dir(&aside)
        })();
        brought.map_err(|error| Error::from_io(self.name(), "go on with its partial", error))
    }

    /// Hides files so that they do not appear under the folder's name; files that cannot be used
    /// for resuming are removed.
    fn set_aside(&self, without: &[&str]) -> Result<(), Error> {
        let is_kept = self.unfinished == Unfinished::Kept && self.has_checkpoint();
        let aside = self.partial.join(ASIDE);
        let set = (|| {
            if is_kept {
                std::fs::create_dir(&aside)?;
            }
            // The checkpoint first: as long as it is in place, the files that it counts are too.
            for name in [CHECKPOINT, NEW_CHECKPOINT].iter().chain(without) {
                self.faults.step(Step::SetAside)?;
                let from = self.partial.join(name);
                let moved = if is_kept {
                    std::fs::rename(from, aside.join(name))
                } else {
                    std::fs::remove_file(from)
                };
                moved.or_else(|error| {
                    if error.kind() == io::ErrorKind::NotFound {
                        Ok(())
                    } else {
                        Err(error)
                    }
                })?;
            }
            if is_kept {
                self.faults.step(Step::SyncFolder)?;
                os::sync_folder(&aside)?;
            }
            // Files set aside by an earlier folder of this name do not belong to this one, with
            // which it changes places.
            remove_all_if_there(&self.place.path.join(ASIDE))
        })();
        set.map_err(|error| Error::from_io(self.name(), "put it in place", error))
    }

    /// A new object of `len` zero bytes, with its space allocated if the file system supports it. A
    /// write may run past the end by less than one block.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or that of the file system.
    pub fn create(&mut self, name: &str, len: u64) -> Result<Arc<dyn Device>, Error> {
        self.check_space(name, len)?;
        let mut is_set_aside = true;
        let device = self.part(name, len, |file| {
            is_set_aside = os::allocate(file, len)?;
            Ok(())
        })?;
        self.promised += if is_set_aside { 0 } else { len };
        Ok(device)
    }

    /// Checks that this many bytes are free, besides those that its objects are going to take.
    ///
    /// # Errors
    /// [`Error::NoSpace`], which names `name` as the object that does not fit; or that of the file
    /// system.
    pub fn check_space(&self, name: &str, needed: u64) -> Result<(), Error> {
        let free = self.free_bytes()?.saturating_sub(self.promised);
        match free < needed {
            true => Err(Error::NoSpace {
                object: self.object(name),
                needed,
                free,
            }),
            false => Ok(()),
        }
    }

    /// An object that grows as it is written, up to the space that is free at its start;
    /// [`cut`](NewFolder::cut) sets its length. Content of an earlier writer is kept.
    ///
    /// # Errors
    /// That of the file system.
    pub fn create_growing(&mut self, name: &str) -> Result<Arc<dyn Device>, Error> {
        let most = os::most_bytes(self.free_bytes()?);
        self.part(name, most, |file| {
            let len = file.metadata()?.len().max(most & !0xfff);
            file.set_len(len)
        })
    }

    fn part(
        &mut self,
        name: &str,
        len: u64,
        make_room: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<Arc<dyn Device>, Error> {
        let object = self.object(name);
        let fail = |error| Error::from_io(&object, "create", error);
        let path = self.partial.join(name);
        let open = || {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        };
        let file = self
            .faults
            .step(Step::Open)
            .and_then(|()| open())
            .map_err(fail)?;
        let roomy = self
            .faults
            .step(Step::Allocate)
            .and_then(|()| make_room(&file));
        roomy.map_err(|error| {
            Error::from_allocation(
                &object,
                len,
                os::free_bytes(&self.partial).unwrap_or(0),
                error,
            )
        })?;
        let device = FileDevice::from_file(open().map_err(fail)?, object.clone(), Mode::ReadWrite)
            .map_err(|error| fail(error.source))?;
        self.parts.retain(|part| part.object != object);
        self.parts.push(Part { object, file, len });
        Ok(Arc::new(device))
    }

    /// Sets the exact length that an object gets at [`commit`](NewFolder::commit).
    pub fn cut(&mut self, name: &str, len: u64) {
        let object = self.object(name);
        self.parts
            .iter_mut()
            .filter(|part| part.object == object)
            .for_each(|part| part.len = len);
    }

    /// Makes the bytes written so far durable.
    ///
    /// # Errors
    /// That of the file system.
    pub fn sync(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| {
            let synced = self
                .faults
                .step(Step::Sync)
                .and_then(|()| part.file.sync_all());
            synced.map_err(|error| Error::from_io(&part.object, "make it durable", error))
        })?;
        self.sync_names()
    }

    /// Sets the exact lengths of all objects and makes them durable.
    ///
    /// # Errors
    /// That of the file system.
    pub fn seal(&self) -> Result<(), Error> {
        for part in &self.parts {
            let sized = self
                .faults
                .step(Step::Truncate)
                .and_then(|()| part.file.set_len(part.len));
            sized.map_err(|error| Error::from_io(&part.object, "set its length", error))?;
        }
        self.sync()
    }

    fn sync_names(&self) -> Result<(), Error> {
        let synced = self
            .faults
            .step(Step::SyncFolder)
            .and_then(|()| os::sync_folder(&self.partial));
        synced.map_err(|error| Error::from_io(self.name(), "make its names durable", error))
    }

    /// Sets the exact lengths of all objects, makes them durable, and gives the folder its name
    /// atomically, also if another folder has that name. All writes have completed before; none may
    /// follow.
    ///
    /// # Errors
    /// That of the file system. The name then leads to the same folder as before.
    pub fn commit(self) -> Result<(), Error> {
        self.commit_without(&[])
    }

    /// As [`commit`](NewFolder::commit), without some of its files, and without its checkpoint. If
    /// that fails, a kept folder can be resumed: its files are removed only after its name is
    /// durable.
    ///
    /// # Errors
    /// As [`commit`](NewFolder::commit).
    pub fn commit_without(mut self, names: &[&str]) -> Result<(), Error> {
        check_parts(&self.place, &self.replaced)?;
        self.set_aside(names)?;
        self.seal()?;
        let placed = self
            .faults
            .step(Step::Rename)
            .and_then(|()| os::put_folder(&self.partial, &self.place.path));
        let replaced =
            placed.map_err(|error| Error::from_io(self.name(), "put it in place", error))?;
        let durable = self
            .faults
            .step(Step::SyncFolder)
            .and_then(|()| os::sync_folder(&self.place.folder));
        if let Err(error) = durable {
            self.gone =
                os::take_folder_back(&self.partial, &self.place.path, replaced.as_deref()).is_err();
            return Err(Error::from_io(self.name(), "make its name durable", error));
        }
        self.gone = true;
        // Files that cannot be removed now are removed with the next folder of this name.
        let _ = self
            .faults
            .step(Step::Remove)
            .and_then(|()| remove_all_if_there(&self.place.path.join(ASIDE)));
        if let Some(old) = replaced {
            let _ = self
                .faults
                .step(Step::Remove)
                .and_then(|()| std::fs::remove_dir_all(old));
        }
        Ok(())
    }

    /// Discards the folder, also one that would be kept.
    pub fn discard(mut self) {
        self.unfinished = Unfinished::Removed;
        // The checkpoint first, since it counts the others, in case not all can be removed.
        let _ = remove_if_there(&self.partial.join(CHECKPOINT));
    }

    fn object(&self, name: &str) -> String {
        shown(&self.place.path.join(name))
    }

    /// Free bytes on the file system of the folder.
    ///
    /// # Errors
    /// That of the file system.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let asked = self
            .faults
            .step(Step::Space)
            .and_then(|()| os::free_bytes(&self.partial));
        let free =
            asked.map_err(|error| Error::from_io(self.name(), "ask for its free space", error))?;
        Ok(self.faults.free_bytes().unwrap_or(free))
    }
}

/// Refuses to replace a folder that has other parts than these.
fn check_parts(place: &ObjectPath, parts: &[String]) -> Result<(), Error> {
    let entries = match std::fs::read_dir(&place.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::from_io(&place.object, "list", error)),
    };
    for entry in entries {
        let name = entry
            .map_err(|error| Error::from_io(&place.object, "list", error))?
            .file_name();
        let name = name.to_string_lossy();
        if !parts.iter().any(|part| *part == name) && !is_own(&name) {
            return Err(Error::Foreign {
                object: place.object.clone(),
                part: name.into_owned(),
            });
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path).or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
}

fn remove_all_if_there(path: &Path) -> io::Result<()> {
    std::fs::remove_dir_all(path).or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
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
        out.debug_tuple("NewFolder")
            .field(&self.place.object)
            .finish()
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        let is_kept = self.unfinished == Unfinished::Kept && !is_hopeless(&self.partial);
        if !self.gone && !is_kept {
            let removed = self
                .faults
                .step(Step::Remove)
                .and_then(|()| std::fs::remove_dir_all(&self.partial));
            if removed.is_err() {
                // The name is left for the next sweep; the space is freed now.
                self.parts.iter().for_each(|part| _ = part.file.set_len(0));
            }
        }
        lock::release(&self.lock);
    }
}
