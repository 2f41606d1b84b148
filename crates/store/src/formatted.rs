//! The formatted backend: all objects in one file, block device, or other device.
//!
//! ```text
//!   superblocks | catalog | next catalog | blocks of objects, and of their checksums, wherever they were free ...
//! ```
//!
//! `docs/format.md` draws it byte by byte. Every change is one change of the catalog, which is
//! atomic under a crash:
//!
//! ```text
//!   create          free blocks are taken, and nothing written that says so
//!   commit          checksums -> flush -> the name leads to the new object, and no longer to the old one
//!   update          what is written goes to free blocks;  commit: as above, all other blocks stay those of the old version
//!   open_in_place   the object is marked;   finish: checksums -> flush -> the mark is cleared
//! ```
//!
//! A store is open in one process that writes, or in any number that [read](Access). Blocks of a
//! removed object are reused once no handle has it open.

mod body;
mod catalog;
mod check;
mod claim;
mod layout;
mod space;
mod stream;
mod sums;
mod transaction;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outcore_device::{Device, Limits, Locked};

use self::body::{Body, Garbage, ObjectDevice, Returned};
use self::catalog::{Catalog, Found};
pub use self::check::{Fault, Findings};
use self::claim::Claim;
use self::layout::{BLOCK, Condition, Entry, Record, normal};
pub use self::layout::{STREAM_BLOCK_BYTES, checksum, checksum_on};
use self::space::Space;
pub use self::stream::{ExpectedBlock, NewStream, Stream, TRAILER_BYTES, Trailer, blocks_of};
use self::sums::Cache;
use self::transaction::End;
pub use self::transaction::Transaction;
use crate::error::{Error, shown};
use crate::folder::{Folder, check_name};
use crate::os::Identity;
use crate::{Ending, Faults, InPlace, NewObject, NewObjects, Object, Stat, State, Store};

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// To read, in parallel with other readers.
    Read,
    /// To read, in parallel with other readers, until the first change; from then on exclusively.
    AsNeeded,
    /// To read and write, exclusively.
    Write,
}

/// A formatted device of objects. Cloning it is cheap.
#[derive(Clone)]
pub struct Formatted(Arc<Inner>);

struct Inner {
    device: Arc<dyn Device>,
    owner: u32,
    /// Number of the device, for identities of objects.
    number: u64,
    state: Mutex<Inside>,
    returned: Returned,
    sums: Arc<Cache>,
}

struct Inside {
    access: Access,
    /// The claim of the file, if the device is one.
    claim: Option<Claim>,
    catalog: Catalog,
    /// Whether the log ends in an incomplete change.
    is_torn: bool,
    space: Space,
    /// Names that are being written, and whether in place.
    writers: HashMap<String, bool>,
    open: HashMap<u64, Held>,
}

/// A name of a store and its object.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// State of the object; for a stream, the length is the space that it takes on the device.
    pub stat: Stat,
    /// For a stream: bytes of a block, and metadata of its owner. `None` for other objects.
    pub stream: Option<(u32, Vec<u8>)>,
}

/// State shared by the handles of an open object, in this version or an earlier one.
struct Held {
    body: Weak<Body>,
    garbage: Weak<Garbage>,
}

impl Formatted {
    /// Formats a device; its content is lost.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for a device of less than some 40 KiB; that of the device.
    pub fn format_device(device: Arc<dyn Device>) -> Result<(), Error> {
        Catalog::format(device, draw())
    }

    /// Formats a new file of `len` bytes, which gets its name when it is complete; or, without a
    /// length, an existing file or block device. If that is interrupted, the existing content is
    /// unchanged, or opening it reports that it has to be formatted again.
    ///
    /// # Errors
    /// [`Error::Locked`] while it is open; [`Error::Exists`] for a length and an existing path;
    /// otherwise as [`format_device`](Formatted::format_device).
    pub fn format(path: impl AsRef<Path>, len: Option<u64>) -> Result<(), Error> {
        let path = path.as_ref();
        let Some(len) = len else {
            let (device, _claim) = Claim::open(path, Access::Write)?;
            return Catalog::format(device, draw());
        };
        Formatted::format_with_faults(path, len, Arc::new(Faults::none()))
    }

    /// Formats a new file, with injected faults.
    ///
    /// # Errors
    /// As [`format`](Formatted::format).
    pub fn format_with_faults(
        path: impl AsRef<Path>,
        len: u64,
        faults: Arc<Faults>,
    ) -> Result<(), Error> {
        let new = Folder::create_anew(path.as_ref(), len, faults)?;
        Catalog::format(new.device(), draw())?;
        new.commit().map(drop)
    }

    /// Opens a file or block device that was formatted.
    ///
    /// # Errors
    /// [`Error::Unformatted`], [`Error::Corrupt`]; [`Error::Locked`] while another process has the
    /// store open and one of the two writes.
    pub fn open_path(path: impl AsRef<Path>, access: Access) -> Result<Formatted, Error> {
        let (device, claim) = Claim::open(path.as_ref(), access)?;
        Formatted::begin(device, access, Some(claim))
    }

    /// As [`open_path`](Formatted::open_path), but shared in this process: while it is open,
    /// opening it again returns the same store.
    ///
    /// # Errors
    /// As [`open_path`](Formatted::open_path).
    pub fn open_shared(path: impl AsRef<Path>, access: Access) -> Result<Formatted, Error> {
        static OPEN: LazyLock<Mutex<HashMap<Identity, Weak<Inner>>>> =
            LazyLock::new(Mutex::default);
        let path = path.as_ref();
        let identity =
            Identity::of_path(path).map_err(|error| Error::from_io(&shown(path), "open", error))?;
        let mut open = OPEN.locked();
        match open
            .get(&identity)
            .and_then(Weak::upgrade)
            .filter(|store| store.is_mine())
        {
            Some(store) => {
                store.lock().allow(&store.device, access)?;
                Ok(Formatted(store))
            }
            None => {
                let store = patiently(
                    || Formatted::open_path(path, access),
                    |error| matches!(error, Error::Locked { .. }),
                )?;
                open.retain(|_, store| store.strong_count() > 0);
                open.insert(identity, Arc::downgrade(&store.0));
                Ok(store)
            }
        }
    }

    /// Opens a formatted device. The caller ensures that no other process writes it.
    ///
    /// # Errors
    /// [`Error::Unformatted`], [`Error::Corrupt`], or that of the device.
    pub fn open_device(device: Arc<dyn Device>, access: Access) -> Result<Formatted, Error> {
        Formatted::begin(device, access, None)
    }

    fn begin(
        device: Arc<dyn Device>,
        access: Access,
        claim: Option<Claim>,
    ) -> Result<Formatted, Error> {
        if device.limits().sector as usize > BLOCK {
            let reason = format!(
                "its device moves blocks of {} bytes, those of a store have {BLOCK}",
                device.limits().sector
            );
            return Err(Error::Unformatted {
                object: device.name().to_owned(),
                reason,
            });
        }
        let Found {
            catalog,
            space,
            is_torn,
            ..
        } = Catalog::open(Arc::clone(&device), draw())?;
        let store = Formatted::with(device, claim, catalog, space, is_torn);
        store.0.lock().allow(&store.0.device, access)?;
        Ok(store)
    }

    /// A store that has not been written yet.
    fn with(
        device: Arc<dyn Device>,
        claim: Option<Claim>,
        catalog: Catalog,
        space: Space,
        is_torn: bool,
    ) -> Formatted {
        let number = u64::from_le_bytes(
            catalog.superblock().identity[..8]
                .try_into()
                .expect("8 bytes"),
        );
        let (access, writers, open) = (Access::Read, HashMap::new(), HashMap::new());
        let state = Mutex::new(Inside {
            access,
            claim,
            catalog,
            is_torn,
            space,
            writers,
            open,
        });
        let (owner, sums) = (std::process::id(), Cache::new(&device));
        Formatted(Arc::new(Inner {
            device,
            owner,
            number,
            state,
            returned: Returned::default(),
            sums,
        }))
    }

    /// All names, in order.
    #[must_use]
    pub fn listing(&self) -> Vec<Listed> {
        let state = self.0.lock();
        let listed = |(_, entry): (&str, &Arc<Entry>)| state.listed(&self.0, entry);
        state.catalog.names().map(listed).collect()
    }

    /// The object of a name.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Name`].
    pub fn look_at(&self, name: &str) -> Result<Listed, Error> {
        let (state, name) = (self.0.lock(), named(name)?);
        Ok(state.listed(&self.0, &*state.entry(&self.0, &name)?))
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        let mut state = self.state.locked();
        let returned = std::mem::take(&mut *self.returned.locked());
        returned
            .into_iter()
            .for_each(|range| state.space.give(range));
        state
    }

    /// Locks the state for a change.
    fn lock_to_write(&self, name: &str) -> Result<MutexGuard<'_, Inside>, Error> {
        // A forked child has the parent's handles, but not its changes.
        if !self.is_mine() {
            return Err(Error::Locked {
                object: self.full(name),
            });
        }
        let mut state = self.lock();
        if state.access == Access::Read {
            return Err(Error::ReadOnly {
                object: self.full(name),
                action: "write",
            });
        }
        state.allow(&self.device, Access::Write)?;
        Ok(state)
    }

    fn is_mine(&self) -> bool {
        self.owner == std::process::id()
    }

    /// The full name of an object, for errors.
    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.device.name())
    }

    fn object(self: &Arc<Inner>, name: &str, body: Arc<Body>, may_write: bool) -> Object {
        let (object, len, identity) = (
            self.full(name),
            body.len,
            Identity::inside(self.number, body.id),
        );
        let device = Arc::new(ObjectDevice {
            body,
            name: object.clone(),
            may_write,
            _store: Arc::clone(self),
        });
        Object {
            object,
            device,
            len,
            identity,
        }
    }

    fn open(self: &Arc<Inner>, name: &str, also_interrupted: bool) -> Result<Object, Error> {
        let name = named(name)?;
        let body = {
            let mut state = self.lock();
            let entry = state.object_entry(self, &name)?;
            if state.state_of(&entry) == State::Interrupted && !also_interrupted {
                return Err(Error::Interrupted {
                    object: self.full(&name),
                });
            }
            state.body(self, &entry)
        };
        Ok(self.object(&name, body, false))
    }

    fn open_in_place(
        self: &Arc<Inner>,
        name: &str,
        also_interrupted: bool,
    ) -> Result<InPlace, Error> {
        let name = named(name)?;
        let (body, was_marked) = {
            let mut state = self.lock_to_write(&name)?;
            state.claim(self, &name, true, &[], |state| {
                state.begin_in_place(self, &name, also_interrupted)
            })?
        };
        let ending = Writing {
            store: Arc::clone(self),
            name: name.clone(),
            body: Arc::clone(&body),
            was_marked,
            lent: AtomicBool::new(was_marked),
            ended: false,
        };
        Ok(InPlace {
            object: self.object(&name, body, true),
            ending: Box::new(ending),
        })
    }
}

impl Inside {
    /// Raises the access; never lowers it.
    fn allow(&mut self, device: &Arc<dyn Device>, access: Access) -> Result<(), Error> {
        if access == Access::Write && self.access != Access::Write {
            self.claim.as_mut().map_or(Ok(()), Claim::raise)?;
            // A writer that was killed may not have made durable what was found here; later changes
            // rely on it.
            catalog::flush(device)?;
            if std::mem::take(&mut self.is_torn) {
                self.catalog
                    .begin_anew(&mut self.space, 0)
                    .inspect_err(|_| self.is_torn = true)?;
            }
        }
        self.access = self.access.max(access);
        Ok(())
    }

    fn entry(&self, store: &Inner, name: &str) -> Result<Arc<Entry>, Error> {
        self.catalog
            .find(name)
            .cloned()
            .ok_or_else(|| Error::Missing {
                object: store.full(name),
            })
    }

    fn object_entry(&self, store: &Inner, name: &str) -> Result<Arc<Entry>, Error> {
        let entry = self.entry(store, name)?;
        match entry.is_stream {
            true => Err(Error::NotAFile {
                object: store.full(name),
                kind: "a stream",
            }),
            false => Ok(entry),
        }
    }

    fn listed(&self, store: &Inner, entry: &Entry) -> Listed {
        let since = Duration::from_nanos(entry.changed_ns.unsigned_abs());
        let modified = if entry.changed_ns < 0 {
            UNIX_EPOCH.checked_sub(since)
        } else {
            UNIX_EPOCH.checked_add(since)
        };
        let (len, identity) = (entry.len, Identity::inside(store.number, entry.id));
        let stream = entry
            .about_stream()
            .map(|(form, about)| (form.block_bytes, about.to_vec()));
        Listed {
            name: entry.name.clone(),
            stat: Stat {
                len,
                modified,
                identity,
                state: self.state_of(entry),
            },
            stream,
        }
    }

    /// A handle that keeps the blocks of an object or stream from being reused.
    fn hold_open(&mut self, store: &Inner, entry: &Entry) -> Arc<Garbage> {
        if !entry.is_stream {
            return Arc::clone(&self.body(store, entry).garbage);
        }
        let held = self
            .open
            .get(&entry.id)
            .and_then(|held| held.garbage.upgrade());
        let garbage = held.unwrap_or_else(|| Arc::new(Garbage::new(Vec::new(), &store.returned)));
        self.open.retain(|_, held| held.garbage.strong_count() > 0);
        self.open.insert(
            entry.id,
            Held {
                body: Weak::new(),
                garbage: Arc::downgrade(&garbage),
            },
        );
        garbage
    }

    /// The state shared by all handles of an object.
    fn body(&mut self, store: &Inner, entry: &Entry) -> Arc<Body> {
        let held = self.open.get(&entry.id);
        if let Some(body) = held.and_then(|held| held.body.upgrade()) {
            return body;
        }
        let garbage = held.and_then(|held| held.garbage.upgrade());
        let garbage =
            garbage.unwrap_or_else(|| Arc::new(Garbage::new(Vec::new(), &store.returned)));
        let body = Arc::new(Body::new(&store.device, &store.sums, entry, false, garbage));
        self.open.retain(|_, held| held.garbage.strong_count() > 0);
        self.hold(&body);
        body
    }

    fn hold(&mut self, body: &Arc<Body>) {
        self.open.insert(
            body.id,
            Held {
                body: Arc::downgrade(body),
                garbage: Arc::downgrade(&body.garbage),
            },
        );
    }

    fn state_of(&self, entry: &Entry) -> State {
        match entry.condition {
            Condition::Whole => State::Whole,
            _ if self.writers.get(&entry.name) == Some(&true) => State::BeingWritten,
            _ => State::Interrupted,
        }
    }

    /// Locks a name, and unlocks it if `act` fails. `mine` are the names that its writer has
    /// locked.
    fn claim<T>(
        &mut self,
        store: &Inner,
        name: &str,
        in_place: bool,
        mine: &[String],
        act: impl FnOnce(&mut Inside) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check_lock(store, name, mine)?;
        let done = act(self)?;
        self.writers.insert(name.to_owned(), in_place);
        Ok(done)
    }

    /// Locking a name also locks all names above and below it.
    fn check_lock(&self, store: &Inner, name: &str, mine: &[String]) -> Result<(), Error> {
        let is_near = |other: &str| is_below(other, name) || is_below(name, other);
        let is_locked = |other: &String| other == name || (is_near(other) && !mine.contains(other));
        match self.writers.keys().any(is_locked) {
            true => Err(Error::Locked {
                object: store.full(name),
            }),
            false => Ok(()),
        }
    }

    /// Whether an object may have a name: no object may be above or below another, as in a folder.
    fn check_place(&self, store: &Inner, name: &str) -> Result<(), Error> {
        if let Some(above) = name
            .match_indices('/')
            .map(|(at, _)| &name[..at])
            .find(|above| self.catalog.find(above).is_some())
        {
            return Err(Error::NotAFolder {
                object: store.full(above),
            });
        }
        match self.catalog.has_below(name) {
            true => Err(Error::NotAFile {
                object: store.full(name),
                kind: "a folder",
            }),
            false => Ok(()),
        }
    }

    /// Marks an object; returns whether it was marked before.
    fn begin_in_place(
        &mut self,
        store: &Inner,
        name: &str,
        also_interrupted: bool,
    ) -> Result<(Arc<Body>, bool), Error> {
        let entry = self.object_entry(store, name)?;
        let was_marked = entry.condition != Condition::Whole;
        if was_marked && !also_interrupted {
            return Err(Error::Interrupted {
                object: store.full(name),
            });
        }
        let body = self.body(store, &entry);
        if Arc::strong_count(&body.garbage) > 1 {
            // A reader has an earlier version open, which shares blocks with this one.
            return Err(Error::Locked {
                object: store.full(name),
            });
        }
        if !was_marked {
            self.put(Entry {
                condition: Condition::Marked,
                ..Entry::clone(&entry)
            })?;
        }
        body.sums.settle(false);
        body.begin();
        Ok((body, was_marked))
    }

    fn put(&mut self, entry: Entry) -> Result<(), Error> {
        self.catalog
            .change(vec![Record::Put(entry)], &mut self.space)
    }

    /// Blocks of removed objects are freed once no handle has them open.
    fn end(&mut self, store: &Inner, end: End) {
        let (id, ranges, new) = match end {
            End::Begins(body) => return self.hold(&body),
            End::Gone(id, ranges) => (id, ranges, None),
            End::Replaced(id, ranges, new) => (id, ranges, Some(new)),
        };
        let Some(old) = self
            .open
            .remove(&id)
            .and_then(|held| held.garbage.upgrade())
        else {
            return ranges.into_iter().for_each(|range| self.space.give(range));
        };
        let next = new.map(|new| {
            let next = Arc::new(Garbage::new(Vec::new(), &store.returned));
            self.open.insert(
                new,
                Held {
                    body: Weak::new(),
                    garbage: Arc::downgrade(&next),
                },
            );
            next
        });
        old.leave(ranges, next);
    }
}

impl Store for Formatted {
    fn create(&self, name: &str, len: u64) -> Result<NewObject, Error> {
        let mut transaction = self.transaction();
        let object = transaction.create(name, len)?;
        Ok(NewObject {
            object,
            ending: Box::new(transaction),
        })
    }

    fn create_new(&self, name: &str, len: u64) -> Result<NewObject, Error> {
        let mut transaction = self.transaction();
        let object = transaction.create_new(name, len)?;
        Ok(NewObject {
            object,
            ending: Box::new(transaction),
        })
    }

    fn create_together(&self, name: &str, parts: &[&str]) -> Result<Box<dyn NewObjects>, Error> {
        Ok(Box::new(self.transaction().below(name, parts)?))
    }

    fn open(&self, name: &str) -> Result<Object, Error> {
        self.0.open(name, false)
    }

    fn open_interrupted(&self, name: &str) -> Result<Object, Error> {
        self.0.open(name, true)
    }

    fn open_in_place(&self, name: &str) -> Result<InPlace, Error> {
        self.0.open_in_place(name, false)
    }

    fn open_in_place_interrupted(&self, name: &str) -> Result<InPlace, Error> {
        self.0.open_in_place(name, true)
    }

    fn clear_mark(&self, name: &str) -> Result<(), Error> {
        let is_marked = self.stat(name)?.state != State::Whole;
        let writing = self.0.open_in_place(name, true)?;
        if is_marked { writing.finish() } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let mut transaction = self.transaction();
        transaction.remove(name)?;
        transaction.commit()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        if named(from)? == named(to)? {
            return self.stat(from).map(drop);
        }
        let mut transaction = self.transaction();
        transaction.rename(from, to)?;
        transaction.commit()
    }

    fn list(&self) -> Result<Vec<String>, Error> {
        Ok(self
            .0
            .lock()
            .catalog
            .names()
            .map(|(name, _)| name.to_owned())
            .collect())
    }

    fn stat(&self, name: &str) -> Result<Stat, Error> {
        self.look_at(name).map(|found| found.stat)
    }

    fn limits(&self) -> Option<Limits> {
        Some(ObjectDevice::LIMITS)
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        Ok(self.0.lock().space.blocks() * BLOCK as u64)
    }
}

/// An object that is being changed in place.
struct Writing {
    store: Arc<Inner>,
    name: String,
    body: Arc<Body>,
    was_marked: bool,
    lent: AtomicBool,
    ended: bool,
}

impl Writing {
    fn settle(&mut self) -> Result<(), Error> {
        let mut state = self.store.lock_to_write(&self.name)?;
        let entry = state.catalog.get(self.body.id).cloned();
        let entry = entry.ok_or_else(|| Error::Missing {
            object: self.store.full(&self.name),
        })?;
        let changed_ns = if *self.lent.get_mut() {
            now_ns()
        } else {
            entry.changed_ns
        };
        state.put(Entry {
            condition: Condition::Whole,
            changed_ns,
            ..Entry::clone(&entry)
        })?;
        self.ended = true;
        self.body.sums.settle(true);
        Ok(())
    }
}

impl Ending for Writing {
    fn lent(&self) {
        self.lent.store(true, Ordering::Relaxed);
    }

    fn end(&mut self) -> Result<(), Error> {
        self.body.end();
        let summed = if self.was_marked {
            self.body.sum_anew()
        } else {
            Ok(())
        };
        let written = summed.and_then(|()| self.body.write_sums());
        written.map_err(|error| {
            Error::from_io(&self.store.full(&self.name), "write its checksums", error)
        })?;
        self.settle()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.body.end();
        if !self.store.is_mine() {
            return;
        }
        if !self.ended && !*self.lent.get_mut() {
            // A mark that cannot be cleared makes a complete object appear interrupted, which is
            // the safe side.
            let _ = self.settle();
        }
        self.store.lock().writers.remove(&self.name);
    }
}

/// Retries for a moment: transfers in flight keep a dropped handle's resources for a short time.
fn patiently<T>(
    mut act: impl FnMut() -> Result<T, Error>,
    is_passing: impl Fn(&Error) -> bool,
) -> Result<T, Error> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let start = Instant::now();
    loop {
        match act() {
            Err(error) if is_passing(&error) && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1))
            }
            done => return done,
        }
    }
}

/// Whether one name is below another.
fn is_below(name: &str, above: &str) -> bool {
    name.strip_prefix(above)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// The normalized name of an object in the catalog.
fn named(name: &str) -> Result<String, Error> {
    check_name(name)?;
    Ok(normal(name))
}

fn now_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Draws unique random numbers.
fn draw() -> Box<dyn FnMut() -> u64 + Send> {
    let random = RandomState::new();
    let mut drawn = 0u64;
    Box::new(move || {
        drawn += 1;
        let mut hasher = random.build_hasher();
        hasher.write_u64(drawn);
        hasher.write_u128(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_nanos(),
        );
        hasher.finish()
    })
}
