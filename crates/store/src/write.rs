//! The two ways to write an object of a folder, from the lock to the end.
//!
//! Both undo themselves when they are dropped early, but only in the process that began them: a
//! forked child inherits the descriptors, not the write.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outcore_device::{FileDevice, Mode};

use crate::Ending;
use crate::error::Error;
use crate::faults::{Faults, Step};
use crate::lock::{self, ObjectPath};
use crate::mark;
use crate::os;

/// A new object before it has its name.
pub(crate) struct Partial {
    place: ObjectPath,
    file: File,
    /// The object that has the name now, locked so that no writer changes it in place meanwhile.
    replaced: Option<File>,
    /// Whether the name must be free.
    is_new: bool,
    len: u64,
    faults: Arc<Faults>,
    owner: u32,
    renamed: bool,
}

impl Partial {
    pub(crate) fn claim(
        place: &ObjectPath,
        len: u64,
        faults: Arc<Faults>,
    ) -> Result<Partial, Error> {
        let mut partial = Partial::locked(place, len, false, faults)?;
        partial.replaced = partial.lock_replaced()?;
        Ok(partial)
    }

    /// The partial of an object that replaces none. An object that another writer is creating
    /// counts as existing.
    pub(crate) fn claim_new(
        place: &ObjectPath,
        len: u64,
        faults: Arc<Faults>,
    ) -> Result<Partial, Error> {
        let exists = || Error::Exists {
            object: place.object.clone(),
        };
        let partial = Partial::locked(place, len, true, faults).map_err(|error| match error {
            Error::Locked { .. } => exists(),
            error => error,
        })?;
        // Checked after the name is locked, so that of two concurrent creations one sees the other.
        if place.is_taken() {
            Err(exists())
        } else {
            Ok(partial)
        }
    }

    fn locked(
        place: &ObjectPath,
        len: u64,
        is_new: bool,
        faults: Arc<Faults>,
    ) -> Result<Partial, Error> {
        let (place, file, owner) = (
            place.clone(),
            lock::claim_partial(place, &faults)?,
            std::process::id(),
        );
        Ok(Partial {
            place,
            file,
            replaced: None,
            is_new,
            len,
            faults,
            owner,
            renamed: false,
        })
    }

    fn lock_replaced(&self) -> Result<Option<File>, Error> {
        match lock::lock_object(&self.place, &self.faults) {
            Ok(file) => Ok(Some(file)),
            Err(Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn allocate(&self, free: u64) -> Result<(), Error> {
        self.faults
            .step(Step::Allocate)
            .and_then(|()| os::allocate(&self.file, self.len).map(drop))
            .map_err(|error| Error::from_allocation(&self.place.object, self.len, free, error))
    }

    /// Sets the greatest possible length without allocating space.
    pub(crate) fn stretch(&self) -> Result<(), Error> {
        let stretched = self
            .faults
            .step(Step::Allocate)
            .and_then(|()| self.file.set_len(self.len));
        stretched.map_err(|error| Error::from_allocation(&self.place.object, self.len, 0, error))
    }

    pub(crate) fn metadata(&self) -> Result<Metadata, Error> {
        let found = self.file.metadata();
        found.map_err(|error| Error::from_io(&self.place.object, "look at", error))
    }

    /// The partial as a device, which errors call by the object's name.
    pub(crate) fn device(&self) -> Result<Arc<FileDevice>, Error> {
        let fail = |error| Error::from_io(&self.place.object, "open for writing", error);
        let file = self
            .faults
            .step(Step::Open)
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).open(self.place.partial())
            })
            .map_err(fail)?;
        FileDevice::from_file(file, self.place.object.clone(), Mode::ReadWrite)
            .map(Arc::new)
            .map_err(|error| fail(error.source))
    }

    fn seal(&self) -> Result<(), Error> {
        let place = &self.place;
        let sized = self
            .faults
            .step(Step::Truncate)
            .and_then(|()| self.file.set_len(self.len));
        sized.map_err(|error| Error::from_io(&place.object, "set its length", error))?;
        if let Some(replaced) = &self.replaced {
            let copied = replaced
                .metadata()
                .and_then(|old| self.file.set_permissions(old.permissions()));
            copied.map_err(|error| Error::from_io(&place.object, "keep its permissions", error))?;
        }
        let synced = self
            .faults
            .step(Step::Sync)
            .and_then(|()| self.file.sync_all());
        synced.map_err(|error| Error::from_io(&place.object, "make it durable", error))
    }
}

impl Ending for Partial {
    fn ends_at(&mut self, len: u64) {
        self.len = len;
    }

    fn end(&mut self) -> Result<(), Error> {
        self.seal()?;
        let place = &self.place;
        let rename = if self.is_new {
            os::rename_new
        } else {
            os::rename
        };
        let renamed = self
            .faults
            .step(Step::Rename)
            .and_then(|()| rename(&place.partial(), &place.path));
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists {
                object: place.object.clone(),
            },
            _ => Error::from_io(&place.object, "put it in place", error),
        })?;
        self.renamed = true;
        // A mark beside the name belonged to the object that was replaced. Until it is removed, a
        // complete object appears interrupted; the opposite order would be unsafe.
        let durable = mark::clear_beside(place)
            .and_then(|_| self.faults.step(Step::SyncFolder))
            .and_then(|()| os::sync_folder(&place.folder));
        durable.map_err(|error| Error::from_io(&place.object, "make its name durable", error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        if !self.renamed {
            let removed = self
                .faults
                .step(Step::Remove)
                .and_then(|()| std::fs::remove_file(self.place.partial()));
            if removed.is_err() {
                // The name is swept by the next creation in this folder; the space is freed now.
                let _ = self.file.set_len(0);
            }
        }
        lock::release(&self.file);
        if let Some(replaced) = &self.replaced {
            lock::release(replaced);
        }
    }
}

/// An object that is being changed in place.
pub(crate) struct Writing {
    place: ObjectPath,
    file: File,
    len: u64,
    faults: Arc<Faults>,
    owner: u32,
    marked: bool,
    /// Whether the content may differ from that before the mark.
    lent: AtomicBool,
    ended: bool,
}

impl Writing {
    /// A write in place of an object that the caller has locked.
    pub(crate) fn new(file: File, place: ObjectPath, len: u64, faults: Arc<Faults>) -> Writing {
        Writing {
            place,
            file,
            len,
            faults,
            owner: std::process::id(),
            marked: false,
            lent: AtomicBool::new(false),
            ended: false,
        }
    }

    /// Marks the object, unless an interrupted writer already did.
    pub(crate) fn mark(&mut self, already: bool) -> Result<(), Error> {
        // Set first: a mark that failed half-way has to be cleared as well.
        self.marked = true;
        if already {
            *self.lent.get_mut() = true;
            return Ok(());
        }
        mark::set(&self.file, &self.place, self.len, &self.faults)
            .map_err(|error| Error::from_io(&self.place.object, "mark it for writing", error))
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn cut(&self) -> io::Result<()> {
        self.faults.step(Step::Truncate)?;
        match self.file.metadata()?.len() > self.len {
            true => self.file.set_len(self.len),
            false => Ok(()),
        }
    }
}

impl Ending for Writing {
    fn lent(&self) {
        self.lent.store(true, Ordering::Relaxed);
    }

    fn end(&mut self) -> Result<(), Error> {
        let object = &self.place.object;
        let cut = self.cut();
        cut.map_err(|error| Error::from_io(object, "set its length", error))?;
        let synced = self
            .faults
            .step(Step::Sync)
            .and_then(|()| self.file.sync_all());
        synced.map_err(|error| Error::from_io(object, "make it durable", error))?;
        let cleared = mark::clear(&self.file, &self.place, &self.faults);
        cleared.map_err(|error| Error::from_io(object, "clear its mark", error))?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        if self.marked && !self.ended && !*self.lent.get_mut() {
            // A mark that cannot be cleared makes a complete object appear interrupted, which is
            // the safe side.
            let _ = mark::clear(&self.file, &self.place, &self.faults);
        }
        lock::release(&self.file);
    }
}
