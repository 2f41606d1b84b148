//! What bytes mean: named objects, each complete or absent.
//!
//! A [`Store`] holds named objects and returns each as a device to read or write. There are three
//! ways to get one:
//!
//! * [`Store::open`] to read it,
//! * [`Store::create`] to write a new one: the object gets its name when it is complete and durable;
//!   until then an object that had the name before is unchanged,
//! * [`Store::open_in_place`] to change parts of it: a durable mark records that the content is
//!   partly old and partly new, in case the writer dies.
//!
//! Writers of one object exclude each other, in all processes. Readers take no lock: a reader
//! concurrent with a write in place sees old bytes, new bytes or both, and a reader of an object
//! that is replaced keeps reading the old one.
//!
//! [`Folder`] keeps objects as plain files that other tools read, [`Formatted`] keeps them in one
//! file or device; [`Scratch`] is a folder for unnamed results.

#![forbid(unsafe_code)]

mod error;
mod faults;
mod folder;
mod formatted;
mod locate;
mod lock;
mod mark;
mod new_folder;
mod os;
mod scratch;
pub mod versions;
mod write;

use std::sync::Arc;
use std::time::SystemTime;

use outcore_device::{Device, Limits};

pub use error::Error;
pub use faults::{Faults, Step};
pub use folder::Folder;
pub use formatted::{
    Access, ExpectedBlock, Fault, Findings, Formatted, Listed, NewStream, STREAM_BLOCK_BYTES,
    Stream, TRAILER_BYTES, Trailer, Transaction, blocks_of, checksum, checksum_on,
};
pub use locate::locate;
pub use lock::CHECKPOINT;
pub use new_folder::{NewFolder, Unfinished};
pub use os::Identity;
pub use scratch::{Scratch, Tmpfs};

/// Named objects. Names are relative paths with `/` between their parts.
pub trait Store: Send + Sync {
    /// Begins an object of `len` bytes, which gets its name at [`NewObject::commit`]. Free space is
    /// checked and, if the file system supports it, allocated before this returns. The bytes are
    /// zero until written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Locked`] while another writer holds the name, or that of the
    /// file system.
    fn create(&self, name: &str, len: u64) -> Result<NewObject, Error>;

    /// As [`Store::create`], for a name that is free: an object that has the name, or gets it
    /// before the commit, is never replaced.
    ///
    /// # Errors
    /// [`Error::Exists`] for a name that is in use, or that another writer is about to use; at the
    /// commit too, if a program without these locks has created it. Otherwise as [`Store::create`].
    fn create_new(&self, name: &str, len: u64) -> Result<NewObject, Error>;

    /// Begins objects whose names are `name`, `/`, and a part of their own. At
    /// [`NewObjects::commit`] they become the only objects below that name: until then, only
    /// objects with these names may exist there.
    ///
    /// # Errors
    /// [`Error::Foreign`] if there are other objects; [`Error::Locked`] while another writer holds
    /// the name, [`Error::NotAFolder`] for the name of an object, or that of the file system.
    fn create_together(&self, name: &str, parts: &[&str]) -> Result<Box<dyn NewObjects>, Error>;

    /// Opens an object to read it.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a writer in place died; [`Error::Missing`] and others.
    fn open(&self, name: &str) -> Result<Object, Error>;

    /// Opens an object to read it, complete or not. [`Store::stat`] returns its state.
    ///
    /// # Errors
    /// As [`Store::open`], without [`Error::Interrupted`].
    fn open_interrupted(&self, name: &str) -> Result<Object, Error>;

    /// Opens an object to change it in place, locked and durably marked until [`InPlace::finish`].
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Interrupted`], [`Error::Missing`] and others.
    fn open_in_place(&self, name: &str) -> Result<InPlace, Error>;

    /// As [`Store::open_in_place`], also if an earlier writer was interrupted: the way to write
    /// such an object again.
    ///
    /// # Errors
    /// As [`Store::open_in_place`], without [`Error::Interrupted`].
    fn open_in_place_interrupted(&self, name: &str) -> Result<InPlace, Error>;

    /// Accepts an interrupted object as it is: clears its mark.
    ///
    /// # Errors
    /// [`Error::Locked`] while a writer holds it, or that of the file system.
    fn clear_mark(&self, name: &str) -> Result<(), Error>;

    /// Removes an object. Open handles of it stay valid.
    ///
    /// # Errors
    /// [`Error::Locked`] while a writer holds it, [`Error::Missing`], or that of the file system.
    fn remove(&self, name: &str) -> Result<(), Error>;

    /// Renames an object atomically, also to a name that is in use.
    ///
    /// # Errors
    /// [`Error::Locked`] while a writer holds either name, [`Error::Missing`], or that of the file
    /// system.
    fn rename(&self, from: &str, to: &str) -> Result<(), Error>;

    /// The names of all objects, sorted.
    ///
    /// # Errors
    /// That of the file system.
    fn list(&self) -> Result<Vec<String>, Error>;

    /// State of an object, without opening it as a device.
    ///
    /// # Errors
    /// [`Error::Missing`] and others.
    fn stat(&self, name: &str) -> Result<Stat, Error>;

    /// Limits of the devices of its objects, if they are the same for all.
    fn limits(&self) -> Option<Limits> {
        None
    }

    /// Bytes that may still be written.
    ///
    /// # Errors
    /// That of the file system.
    fn free_bytes(&self) -> Result<u64, Error>;
}

/// Objects that are created together. Dropped without [`NewObjects::commit`], none of them is.
pub trait NewObjects: Send {
    /// A new object of `len` zero bytes, called `part` below the common name. A write may run past
    /// its end by less than one block.
    ///
    /// # Errors
    /// As [`Store::create`].
    fn create(&mut self, part: &str, len: u64) -> Result<Arc<dyn Device>, Error>;

    /// Makes all of them durable, and replaces the objects below the name atomically. All writes
    /// have completed before; none may follow.
    ///
    /// # Errors
    /// As [`NewObject::commit`].
    fn commit(self: Box<Self>) -> Result<(), Error>;
}

/// Whether an object's content can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No writer is changing it in place, and the last one has finished.
    Whole,
    /// A running writer is changing it in place.
    BeingWritten,
    /// A writer in place died or was dropped.
    Interrupted,
}

/// State of an object.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Its exact length in bytes.
    pub len: u64,
    /// When its content last changed, if known.
    pub modified: Option<SystemTime>,
    /// Equal for two names of the same bytes.
    pub identity: Identity,
    /// Whether its content can be relied on.
    pub state: State,
}

/// An object, as a device.
#[derive(Clone)]
pub struct Object {
    object: String,
    device: Arc<dyn Device>,
    len: u64,
    identity: Identity,
}

impl Object {
    /// Its full path, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.object
    }

    /// The address space of its bytes. Lives as long as it is held, even if the name is removed or
    /// replaced.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    /// Its exact length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Equal for two names of the same bytes.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Object")
            .field("object", &self.object)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// How a write ends; the backend of [`NewObject`] and [`InPlace`]. Dropped before `end` has
/// succeeded, it undoes what it can.
trait Ending: Send + Sync {
    /// The device was handed out, so from now on a write may have happened.
    fn lent(&self) {}
    /// Sets the length of the object.
    fn ends_at(&mut self, _len: u64) {}
    /// Makes the write durable and visible. All its I/O has completed.
    fn end(&mut self) -> Result<(), Error>;
}

/// An object that is being written and has no name yet. Dropped without [`NewObject::commit`], it
/// is removed.
#[must_use = "dropping a new object removes it"]
pub struct NewObject {
    object: Object,
    ending: Box<dyn Ending>,
}

impl NewObject {
    /// The full path that it will have, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object.name()
    }

    /// The device to write its bytes, or to read them back. A write may run past the end by less
    /// than one block.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        self.object.device()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.object.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Equal for two names of the same bytes, once it has one.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.object.identity()
    }

    /// Sets the length of an object [that grows](Folder::create_growing).
    pub fn cut(&mut self, len: u64) {
        self.object.len = len;
        self.ending.ends_at(len);
    }

    /// Sets the exact length of the object, makes its bytes durable, and then gives it its name,
    /// durably. All writes have completed before; none may follow.
    ///
    /// # Errors
    /// That of the file system. The name then leads to the same object as before, with one
    /// exception: if the folder cannot be made durable, the name already leads to the new object,
    /// which is complete.
    pub fn commit(mut self) -> Result<Object, Error> {
        self.ending.end()?;
        Ok(self.object.clone())
    }
}

impl std::fmt::Debug for NewObject {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("NewObject").field(&self.object).finish()
    }
}

/// An object that is being changed in place. Dropped without [`InPlace::finish`], it stays marked
/// as interrupted, unless its device was never requested.
#[must_use = "dropping a write in place interrupts it"]
pub struct InPlace {
    object: Object,
    ending: Box<dyn Ending>,
}

impl InPlace {
    /// Its full path, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object.name()
    }

    /// The device to read and write its bytes. A write may run past the end by less than one block.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        self.ending.lent();
        self.object.device()
    }

    /// Its exact length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.object.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Equal for two names of the same bytes.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.object.identity()
    }

    /// Truncates bytes past the end, makes the bytes durable and then clears the mark. All writes
    /// have completed before; none may follow.
    ///
    /// # Errors
    /// That of the file system; the object then stays marked as interrupted.
    pub fn finish(mut self) -> Result<(), Error> {
        self.ending.end()
    }
}

impl std::fmt::Debug for InPlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("InPlace").field(&self.object).finish()
    }
}
