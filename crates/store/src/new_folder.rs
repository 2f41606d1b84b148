//! A new folder whose objects come into being together.
//!
//! ```text
//!   create_folder   .x.outcore-partial/ is made and locked; objects are made inside
//!   commit          each object: exact length -> fsync;   fsync of the folder -> rename to x, or exchange with the x that
//!                   was there -> fsync of the folder around it -> what was there is removed
//! ```
//!
//! A folder that is to be gone on with after a crash is made as `.x.outcore-unfinished/` instead:
//! as long as a [checkpoint](CHECKPOINT) is in it, it is not swept, and the next one to create x so
//! finds what is there. The checkpoint, and files that only those need who go on, must not be seen
//! in x and must not be lost before x is certain. They are put aside, inside, and go when the name
//! is durable:
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
use crate::folder::is_own;
use crate::lock::{self, Place};
use crate::{NewObjects, os};

/// The file of an unfinished folder that says how far it is: where it is, there is something to go
/// on with.
pub const CHECKPOINT: &str = "checkpoint.json";
/// The same on its way to its name.
const NEW_CHECKPOINT: &str = "checkpoint.json.new";
/// Where files are put aside.
const ASIDE: &str = lock::UNFINISHED_SUFFIX;

/// What becomes of a new folder whose writer dies or gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unfinished {
    /// It is removed.
    #[default]
    Removed,
    /// It stays if there is a [`CHECKPOINT`] in it, for the next one to go on with who creates the
    /// same folder.
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
    /// Bytes of objects that are to be there, and that the file system has not set aside.
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
    /// Claims the folder of a place that may be taken already by another folder.
    pub(crate) fn claim(
        place: Place,
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

    /// Whether there is something in it to go on with.
    #[must_use]
    pub fn has_checkpoint(&self) -> bool {
        self.partial.join(CHECKPOINT).exists()
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
        // First what the others would be counted by.
        let forgotten = remove_if_there(&self.partial.join(CHECKPOINT));
        forgotten.map_err(|error| Error::from_io(self.name(), "empty its partial", error))?;
        self.empty_but(&[])
    }

    /// Removes what an earlier writer has left besides these files, which its checkpoint counts.
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

    /// Puts files back that an earlier writer has put aside and then did not come to give the
    /// folder its name; the checkpoint last.
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

    /// Moves files to where they are not seen under the folder's name; those that cannot be resumed
    /// are removed.
    fn set_aside(&self, without: &[&str]) -> Result<(), Error> {
        let is_kept = self.unfinished == Unfinished::Kept && self.has_checkpoint();
        let aside = self.partial.join(ASIDE);
        let set = (|| {
            if is_kept {
                std::fs::create_dir(&aside)?;
            }
            // The checkpoint first: as long as it is in its place, what it counts is too.
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
            // What an earlier folder of this name has aside is nothing to go on with for this one,
            // with which it changes places.
            remove_all_if_there(&self.place.path.join(ASIDE))
        })();
        set.map_err(|error| Error::from_io(self.name(), "put it in place", error))
    }

    /// A new object of `len` zero bytes, whose space is set aside where the file system can. A
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

    /// Whether this many bytes more are free, besides those that its objects are going to take.
    ///
    /// # Errors
    /// [`Error::NoSpace`], which calls what does not fit `name`; or that of the file system.
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

    /// An object that grows as it is written, up to all the space that is free now;
    /// [`cut`](NewFolder::cut) says where it ends. What an earlier writer left of it stays.
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

    /// Gives an object its exact length at [`commit`](NewFolder::commit).
    pub fn cut(&mut self, name: &str, len: u64) {
        let object = self.object(name);
        self.parts
            .iter_mut()
            .filter(|part| part.object == object)
            .for_each(|part| part.len = len);
    }

    /// Makes what has been written so far durable.
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

    /// Gives all objects their exact lengths, and makes them durable.
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

    /// Gives all objects their exact lengths, makes them durable, and puts the folder under its
    /// name in one step, also where another folder has that name. All writes have completed before;
    /// none may follow.
    ///
    /// # Errors
    /// That of the file system. The name then leads to what it led to before.
    pub fn commit(self) -> Result<(), Error> {
        self.commit_without(&[])
    }

    /// As [`commit`](NewFolder::commit), without some of its files, and without its checkpoint.
    /// Where that fails, a kept folder can be gone on with: nothing of it goes before its name is
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
        // What cannot be removed now goes with the next folder of this name.
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

    /// Gives the folder up, also one that would be kept.
    pub fn discard(mut self) {
        self.unfinished = Unfinished::Removed;
        // First what the others would be counted by, should not all of it go.
        let _ = remove_if_there(&self.partial.join(CHECKPOINT));
    }

    fn object(&self, name: &str) -> String {
        shown(&self.place.path.join(name))
    }

    /// Bytes that are free where it is made.
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
fn check_parts(place: &Place, parts: &[String]) -> Result<(), Error> {
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

/// Whether a folder that was to be gone on with has nothing in it to go on with.
pub(crate) fn is_hopeless(unfinished: &Path) -> bool {
    !unfinished.join(CHECKPOINT).exists() && !unfinished.join(ASIDE).join(CHECKPOINT).exists()
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
                // The name is for the next one to sweep; the space comes back now.
                self.parts.iter().for_each(|part| _ = part.file.set_len(0));
            }
        }
        lock::release(&self.lock);
    }
}
