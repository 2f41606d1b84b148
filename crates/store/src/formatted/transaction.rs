//! Atomic changes of several objects.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outcore_device::{
    Blocking, Device, Limits, Locked, PANICKED, Route, flush_now, read_now, write_now,
};

use super::body::{Body, Garbage, ObjectDevice, damaged, differs, pieces};
use super::layout::{BLOCK, BlockRange, Condition, Entry, Record, sum_blocks};
use super::sums::{NewSums, Places, sum_of};
use super::{Formatted, Inner, Inside, named, now_ns};
use crate::error::Error;
use crate::os::Identity;
use crate::{Ending, NewObjects, Object};

/// Atomic changes of several objects of a [`Formatted`] store. Its names are locked until it ends;
/// dropped without [`Transaction::commit`], none of the changes is made.
#[must_use = "dropping a transaction gives it up"]
pub struct Transaction {
    store: Arc<Inner>,
    /// Names locked by this transaction.
    names: Vec<String>,
    changes: Vec<Change>,
}

enum Change {
    /// An object that gets its name, also from another object.
    New(Entry, Arc<Body>),
    /// The same object with other bytes.
    Updated(Arc<Entry>, Arc<NewVersion>),
    Removed(u64),
    Renamed(Arc<Entry>, String),
}

impl Formatted {
    /// Begins a transaction.
    pub fn transaction(&self) -> Transaction {
        Transaction {
            store: Arc::clone(&self.0),
            names: Vec::new(),
            changes: Vec::new(),
        }
    }
}

impl Transaction {
    /// A new object of `len` zero bytes.
    ///
    /// # Errors
    /// As [`Store::create`](crate::Store::create).
    pub fn create(&mut self, name: &str, len: u64) -> Result<Object, Error> {
        self.create_as(name, len, false)
    }

    /// As [`Transaction::create`], for a name that is free: it is locked from here on, so it stays
    /// free until the commit.
    ///
    /// # Errors
    /// As [`Store::create_new`](crate::Store::create_new).
    pub fn create_new(&mut self, name: &str, len: u64) -> Result<Object, Error> {
        self.create_as(name, len, true)
    }

    fn create_as(&mut self, name: &str, len: u64, is_new: bool) -> Result<Object, Error> {
        let name = named(name)?;
        let (entry, garbage) = self.claim_as(&name, is_new, |store, state| {
            state.check_place(store, &name)?;
            let blocks = len.div_ceil(BLOCK as u64);
            let sums = sum_blocks(blocks);
            let taken = blocks
                .checked_add(sums)
                .and_then(|blocks| state.space.take(blocks));
            let taken = taken.ok_or_else(|| {
                let needed = blocks.saturating_add(sums).saturating_mul(BLOCK as u64);
                no_space(store, &name, needed, state)
            })?;
            let garbage = Arc::new(Garbage::new(taken.clone(), &store.returned));
            let (id, condition, (ranges, sums)) = (
                state.catalog.draw_id(),
                Condition::Whole,
                cut(taken, blocks),
            );
            let (changed_ns, is_stream, name, about) = (0, false, name.clone(), Vec::new());
            Ok((
                Entry {
                    id,
                    len,
                    changed_ns,
                    condition,
                    is_stream,
                    name,
                    about,
                    ranges,
                    sums,
                },
                garbage,
            ))
        })?;
        let body = Arc::new(Body::new(
            &self.store.device,
            &self.store.sums,
            &entry,
            true,
            garbage,
        ));
        let object = self.store.object(&name, Arc::clone(&body), true);
        self.changes.push(Change::New(entry, body));
        Ok(object)
    }

    /// A new version of an object, of the same length: writes go to new blocks, all other blocks
    /// are those of the old version. Handles of the old version stay valid.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Interrupted`], [`Error::Locked`]. Writes fail if no space is
    /// free.
    pub fn update(&mut self, name: &str) -> Result<Object, Error> {
        let name = named(name)?;
        let (entry, old, id) = self.claim(&name, |store, state| {
            let entry = state.object_entry(store, &name)?;
            if entry.condition != Condition::Whole {
                return Err(Error::Interrupted {
                    object: store.full(&name),
                });
            }
            let old = state.body(store, &entry);
            Ok((entry, old, state.catalog.draw_id()))
        })?;
        let store = Arc::clone(&self.store);
        let (object, len, identity) = (
            store.full(&name),
            entry.len,
            Identity::inside(store.number, id),
        );
        let new = Arc::new(NewVersion {
            id,
            name: object.clone(),
            sums: NewSums::new(&old.sums),
            old,
            places: Mutex::default(),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            store,
        });
        self.changes.push(Change::Updated(entry, Arc::clone(&new)));
        Ok(Object {
            object,
            device: new,
            len,
            identity,
        })
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Locked`].
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        let name = named(name)?;
        let id = self.claim(&name, |store, state| Ok(state.entry(store, &name)?.id))?;
        self.changes.push(Change::Removed(id));
        Ok(())
    }

    /// Renames an object, also to a name that is in use.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Locked`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let (from, to) = (named(from)?, named(to)?);
        let entry = self.claim(&from, |store, state| state.entry(store, &from))?;
        let other = self.claim(&to, |store, state| state.check_place(store, &to));
        if let Err(error) = other {
            self.names.pop();
            self.store.lock().writers.remove(&from);
            return Err(error);
        }
        self.changes.push(Change::Renamed(entry, to));
        Ok(())
    }

    /// Makes all changes, durably. All writes have completed before; none may follow.
    ///
    /// # Errors
    /// [`Error::NoSpace`] without any change; that of the device, after which the outcome is
    /// unknown until the store is opened again.
    pub fn commit(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Locks a name until the end, unless `act` fails.
    fn claim<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&Inner, &mut Inside) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.claim_as(name, false, act)
    }

    /// As `claim`; with the flag, only a free name: one that is not that of an object, of a part of
    /// an object's name, or of an object that another writer is creating.
    fn claim_as<T>(
        &mut self,
        name: &str,
        is_new: bool,
        act: impl FnOnce(&Inner, &mut Inside) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let store = &self.store;
        let mut state = store.lock_to_write(name)?;
        if is_new
            && (state.writers.contains_key(name)
                || state.catalog.find(name).is_some()
                || state.catalog.has_below(name))
        {
            return Err(Error::Exists {
                object: store.full(name),
            });
        }
        let done = state.claim(store, name, false, &self.names, |state| act(store, state))?;
        drop(state);
        self.names.push(name.to_owned());
        Ok(done)
    }
}

/// New objects of a transaction that are to be the only ones below a name.
pub(super) struct Below {
    transaction: Transaction,
    name: String,
}

impl Transaction {
    pub(super) fn below(mut self, name: &str, parts: &[&str]) -> Result<Below, Error> {
        let name = named(name)?;
        self.claim(&name, |store, state| match state.catalog.find(&name) {
            Some(_) => Err(Error::NotAFolder {
                object: store.full(&name),
            }),
            None if state.catalog.has_below(&name) => {
                let below = format!("{name}/");
                let mut found = state
                    .catalog
                    .names()
                    .filter_map(|(name, _)| name.strip_prefix(&below)?.split('/').next());
                match found.find(|part| !parts.contains(part)) {
                    Some(part) => Err(Error::Foreign {
                        object: store.full(&name),
                        part: part.to_owned(),
                    }),
                    None => Ok(()),
                }
            }
            None => state.check_place(store, &name),
        })?;
        Ok(Below {
            transaction: self,
            name,
        })
    }
}

impl NewObjects for Below {
    fn create(&mut self, part: &str, len: u64) -> Result<Arc<dyn Device>, Error> {
        Ok(self
            .transaction
            .create(&format!("{}/{part}", self.name), len)?
            .device())
    }

    fn commit(mut self: Box<Self>) -> Result<(), Error> {
        let (transaction, below) = (&mut self.transaction, format!("{}/", self.name));
        let mut old = Vec::new();
        for (name, _) in transaction.store.lock().catalog.names() {
            if name.starts_with(&below) && !transaction.names.iter().any(|claimed| claimed == name)
            {
                old.push(name.to_owned());
            }
        }
        old.iter().try_for_each(|name| transaction.remove(name))?;
        transaction.end()
    }
}

fn no_space(store: &Inner, name: &str, needed: u64, state: &Inside) -> Error {
    Error::NoSpace {
        object: store.full(name),
        needed,
        free: state.space.blocks() * BLOCK as u64,
    }
}

impl Ending for Transaction {
    fn end(&mut self) -> Result<(), Error> {
        let store = Arc::clone(&self.store);
        let at =
            |name: &str, error| Error::from_io(&store.full(name), "write its checksums", error);
        for change in &self.changes {
            if let Change::New(entry, body) = change {
                body.end();
                body.write_sums().map_err(|error| at(&entry.name, error))?;
            }
        }
        let mut state = store.lock_to_write("")?;
        let (mut records, mut ends) = (Vec::new(), Vec::new());
        let changed_ns = now_ns();
        for change in &self.changes {
            match change {
                Change::New(entry, body) => {
                    let old = state.catalog.find(&entry.name).cloned();
                    records.extend(old.iter().map(|old| Record::Gone(old.id)));
                    ends.extend(old.map(|old| End::gone(&old)));
                    records.push(Record::Put(Entry {
                        changed_ns,
                        ..entry.clone()
                    }));
                    ends.push(End::Begins(Arc::clone(body)));
                }
                Change::Updated(old, new) => {
                    let (entry, replaced) = new.finish(old)?;
                    records.extend([
                        Record::Gone(old.id),
                        Record::Put(Entry {
                            changed_ns,
                            ..entry
                        }),
                    ]);
                    ends.push(End::Replaced(old.id, replaced, new.id));
                }
                Change::Removed(id) => {
                    let old = state
                        .catalog
                        .get(*id)
                        .cloned()
                        .expect("locked since it was found");
                    records.push(Record::Gone(*id));
                    ends.push(End::gone(&old));
                }
                Change::Renamed(entry, to) => {
                    let old = state.catalog.find(to).cloned();
                    records.extend(old.iter().map(|old| Record::Gone(old.id)));
                    ends.extend(old.map(|old| End::gone(&old)));
                    records.push(Record::Put(Entry {
                        name: to.clone(),
                        ..Entry::clone(entry)
                    }));
                }
            }
        }
        let Inside { catalog, space, .. } = &mut *state;
        let changed = catalog.change(records, space);
        match &changed {
            Err(Error::NoSpace { .. }) => return changed,
            // The owners of blocks are unknown until the store is opened again.
            Err(_) => {}
            Ok(()) => ends.into_iter().for_each(|end| state.end(&store, end)),
        }
        self.changes.iter().for_each(|change| match change {
            Change::New(_, body) => body.garbage.leave(Vec::new(), None),
            Change::Updated(_, new) => new.is_over.store(true, Ordering::Release),
            Change::Removed(_) | Change::Renamed(..) => {}
        });
        changed
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.store.is_mine() {
            return;
        }
        let mut state = self.store.lock();
        self.names
            .iter()
            .for_each(|name| _ = state.writers.remove(name));
    }
}

/// What happens to blocks after a change was made.
pub(super) enum End {
    /// They belong to a new object.
    Begins(Arc<Body>),
    /// The object of this number, with these blocks, was removed.
    Gone(u64, Vec<BlockRange>),
    /// These belonged to the old version only; number of the new one.
    Replaced(u64, Vec<BlockRange>, u64),
}

impl End {
    pub(super) fn gone(entry: &Entry) -> End {
        End::Gone(
            entry.id,
            entry.ranges.iter().chain(&entry.sums).copied().collect(),
        )
    }
}

/// A new version of an object that is being written.
struct NewVersion {
    id: u64,
    name: String,
    old: Arc<Body>,
    /// Positions of the blocks written.
    places: Mutex<Places>,
    sums: NewSums,
    /// It has become the object, or may have; nothing more is written, and its blocks are kept.
    is_over: AtomicBool,
    /// Whether a write did not reach the device completely.
    has_failed: AtomicBool,
    store: Arc<Inner>,
}

impl NewVersion {
    /// The entry of the new version, and blocks that only the old one has.
    fn finish(&self, old: &Entry) -> Result<(Entry, Vec<BlockRange>), Error> {
        let fail = |source| Error::from_io(&self.name, "write it", source);
        if self.has_failed.load(Ordering::Acquire) {
            return Err(fail(io::Error::other("an earlier write has failed")));
        }
        self.sums.write().map_err(fail)?;
        let (ranges, mut replaced) = self.old.places.with(&self.places.locked());
        let (sums, replaced_sums) = self.old.sums.places().with(&self.sums.places());
        replaced.extend(replaced_sums);
        Ok((
            Entry {
                id: self.id,
                ranges,
                sums,
                ..old.clone()
            },
            replaced,
        ))
    }

    fn write(&self, source: &[u8], offset: u64) -> io::Result<()> {
        let (device, first) = (&*self.old.device, offset / BLOCK as u64);
        self.place(first, (source.len() / BLOCK) as u64)?;
        let sums: Vec<u32> = source.chunks(BLOCK).map(sum_of).collect();
        let pieces = pieces(&self.places.locked(), offset, source.len())?;
        pieces
            .into_iter()
            .try_for_each(|(place, part)| write_now(device, &source[part], place))?;
        self.sums.set(first, &sums)
    }

    /// Allocates blocks that have no position yet.
    fn place(&self, first: u64, count: u64) -> io::Result<()> {
        // Locked in the same order as at the end.
        let mut state = self.store.lock();
        let mut places = self.places.locked();
        let mut block = first;
        while block < first + count {
            let missing = places.missing(block, first + count - block);
            if missing > 0 {
                let taken = state
                    .space
                    .take(missing)
                    .ok_or(io::ErrorKind::StorageFull)?;
                let mut at = block;
                for range in taken {
                    places.put(at, range);
                    at += range.blocks;
                }
            }
            block += missing + places.find(block + missing).map_or(0, |range| range.blocks);
        }
        let take = || {
            state
                .space
                .take(1)
                .ok_or_else(|| io::ErrorKind::StorageFull.into())
        };
        self.sums.begin(&self.old.sums, first, count as usize, take)
    }
}

impl Device for NewVersion {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        ObjectDevice::LIMITS
    }

    fn len(&self) -> u64 {
        self.old.len
    }

    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for NewVersion {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        self.old.read(destination, offset)?;
        let first = offset / BLOCK as u64;
        for (number, block) in (first..).zip(destination.chunks_mut(BLOCK)) {
            let Some(range) = self.places.locked().find(number) else {
                continue;
            };
            read_now(&*self.old.device, block, range.start * BLOCK as u64)?;
            if differs(block, self.sums.get(number)?) {
                return Err(damaged(number * BLOCK as u64));
            }
        }
        Ok(destination.len())
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        if self.is_over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if offset + source.len() as u64 > self.old.len.next_multiple_of(BLOCK as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let written = self.write(source, offset);
        self.has_failed.fetch_or(written.is_err(), Ordering::AcqRel);
        written.map(|()| source.len())
    }

    fn flush(&self) -> io::Result<()> {
        flush_now(&*self.old.device)
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for NewVersion {
    fn drop(&mut self) {
        if *self.is_over.get_mut() {
            return;
        }
        let places = std::mem::take(self.places.get_mut().expect(PANICKED));
        let sums = self.sums.abandon();
        self.store
            .returned
            .locked()
            .extend(places.ranges().chain(sums.ranges()));
    }
}

/// The first `blocks` blocks of ranges, and the rest.
fn cut(taken: Vec<BlockRange>, blocks: u64) -> (Vec<BlockRange>, Vec<BlockRange>) {
    let (mut first, mut rest, mut left) = (Vec::new(), Vec::new(), blocks);
    for range in taken {
        let here = range.blocks.min(left);
        left -= here;
        first.extend((here > 0).then_some(BlockRange {
            start: range.start,
            blocks: here,
        }));
        rest.extend((here < range.blocks).then_some(BlockRange {
            start: range.start + here,
            blocks: range.blocks - here,
        }));
    }
    (first, rest)
}
