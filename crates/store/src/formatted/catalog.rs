//! The catalog of a formatted device: all objects in memory, every change of them in a log.
//!
//! ```text
//!   superblock -> | all objects, as one change | change | change | ... |            and room for the next log
//! ```
//!
//! A change is made in one of two ways, each of which a crash undoes or leaves whole:
//!
//! * it is appended: its blocks, then a flush. Blocks of a change that is not whole are at the end of the log, where they count for
//!   nothing;
//! * the log is begun anew in the other room, where it is full: all objects as they are to be, a flush, then the superblock that leads
//!   there, a flush. Every log has an epoch of its own, so that no block of an older one is taken for its.
//!
//! The invariant: what the superblock with the highest generation leads to is the catalog as it was after some change, and no earlier
//! one than the last that was reported. After an error nobody knows which; then nothing is changed until the device is opened again.

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_device::{Buf, Device, flush_now, read_now, write_now};

use super::layout::{
    BLOCK, Entry, Record, Run, SUPERBLOCKS, Superblock, Wrong, decode, encode, epoch_of, from_log, log_blocks, to_log,
};
use super::space::Space;
use crate::error::Error;

/// Blocks of the first log, where the device is not so small that they would be more than a 16th of it.
const LOG_BLOCKS: u64 = 256;
const LOG_BLOCKS_MIN: u64 = 4;
/// Blocks that are read at once.
const READ_BLOCKS: u64 = 256;

/// Metadata of a formatted device.
pub(super) struct Catalog {
    device: Arc<dyn Device>,
    superblock: Superblock,
    /// Blocks of the log that are written.
    used: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    names: BTreeMap<String, u64>,
    next_id: u64,
    /// A change failed, and whether it was made nobody knows.
    is_lost: bool,
    /// Draws the lower halves of epochs.
    random: Random,
}

pub(super) type Random = Box<dyn FnMut() -> u64 + Send>;

/// How the catalog was found.
pub(super) struct Found {
    pub(super) catalog: Catalog,
    pub(super) space: Space,
    /// A change was under way when the last writer ended.
    pub(super) is_torn: bool,
}

impl Catalog {
    /// Formats a device: whatever was on it is gone.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for a device that is too small; that of the device.
    pub(super) fn format(device: Arc<dyn Device>, mut random: Random) -> Result<(), Error> {
        let blocks = device.len() / BLOCK as u64;
        let log = LOG_BLOCKS.min(blocks / 32).max(LOG_BLOCKS_MIN);
        if blocks < SUPERBLOCKS + 2 * log {
            let needed = (SUPERBLOCKS + 2 * LOG_BLOCKS_MIN) * BLOCK as u64;
            return Err(Error::NoSpace { object: device.name().to_owned(), needed, free: device.len() });
        }
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&random().to_le_bytes());
        identity[8..].copy_from_slice(&random().to_le_bytes());
        let catalog = Run { start: SUPERBLOCKS, blocks: log };
        let spare = Run { start: catalog.end(), blocks: log };
        let superblock = Superblock { identity, generation: 1, blocks, catalog, spare, epoch: epoch(1, random()) };
        // The old superblocks go first: until the new ones are there, it is no store.
        write(&device, 0, &vec![0; SUPERBLOCKS as usize * BLOCK])?;
        write(&device, catalog.start, &to_log(&encode(&[Record::Gone(0)]), superblock.epoch, 0))?;
        flush(&device)?;
        write_superblocks(&device, &superblock)
    }

    /// Reads the catalog; writes nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unformatted`], or that of the device.
    pub(super) fn open(device: Arc<dyn Device>, random: Random) -> Result<Found, Error> {
        let (superblock, differ) = read_superblock(&device)?;
        let corrupt = |place: u64, reason: Wrong| {
            let (object, offset) = (device.name().to_owned(), place * BLOCK as u64);
            Err(Error::Corrupt { object, offset, reason })
        };
        let log = Log::read(&device, superblock.catalog, superblock.epoch)?;
        if let Some((place, reason)) = log.damage {
            return corrupt(place, reason);
        }
        let mut space = match superblock.space(device.len()) {
            Ok(space) => space,
            Err(reason) => return corrupt(0, reason),
        };
        let catalog = Catalog::new(device.clone(), superblock, log.used, log.records, random);
        for entry in catalog.entries.values() {
            if let Some(run) = entry.runs.iter().chain(&entry.sums).find(|&&run| !space.claim(run)) {
                let reason = format!("{:?} has {} blocks from {}, which are not its own", entry.name, run.blocks, run.start);
                return corrupt(catalog.superblock.catalog.start, reason);
            }
        }
        Ok(Found { catalog, space, is_torn: log.is_torn || differ })
    }

    /// What is left of a catalog that cannot be opened, and what was lost of it. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Unformatted`] where nothing is left; that of the device.
    pub(super) fn salvage(device: Arc<dyn Device>, mut random: Random) -> Result<(Found, Vec<String>), Error> {
        let mut lost = Vec::new();
        let read = read_superblock(&device).map(|(superblock, _)| superblock);
        let usable = |found: &Superblock| found.space(device.len()).is_ok();
        let found = match read {
            Ok(superblock)
                if usable(&superblock) && !Log::read(&device, superblock.catalog, superblock.epoch)?.records.is_empty() =>
            {
                superblock
            }
            Err(error @ (Error::Io { .. } | Error::Denied { .. })) => return Err(error),
            _ => {
                lost.push("the superblocks; the latest catalog was looked for".to_owned());
                find_log(&device, &mut random)?
            }
        };
        let log = Log::read(&device, found.catalog, found.epoch)?;
        if let Some((place, reason)) = log.damage {
            lost.push(format!("changes of the catalog at byte {}: {reason}", place * BLOCK as u64));
        }
        let mut space = found.space(device.len()).expect("looked at above");
        let mut catalog = Catalog::new(device.clone(), found, log.used, log.records, random);
        // Of two that have the same blocks the later one is right.
        let ids: Vec<u64> = catalog.entries.keys().rev().copied().collect();
        for id in ids {
            let entry = Arc::clone(&catalog.entries[&id]);
            let mut claimed = Vec::new();
            let is_right = entry.runs.iter().chain(&entry.sums).all(|&run| {
                let is_free = space.claim(run);
                claimed.extend(is_free.then_some(run));
                is_free
            });
            if !is_right || catalog.names.get(&entry.name) != Some(&id) {
                claimed.into_iter().for_each(|run| space.give(run));
                catalog.apply(Record::Gone(id));
                lost.push(format!("an older object {:?}, whose blocks or name a later one has", entry.name));
            }
        }
        Ok((Found { catalog, space, is_torn: true }, lost))
    }

    fn new(device: Arc<dyn Device>, superblock: Superblock, used: u64, records: Vec<Record>, random: Random) -> Catalog {
        let (entries, names) = (BTreeMap::new(), BTreeMap::new());
        let mut catalog = Catalog { device, superblock, used, entries, names, next_id: 1, is_lost: false, random };
        records.into_iter().for_each(|record| catalog.apply(record));
        catalog
    }

    fn apply(&mut self, record: Record) {
        let (id, new) = match record {
            Record::Gone(id) => (id, None),
            Record::Put(entry) => (entry.id, Some(entry)),
        };
        if let Some(old) = self.entries.remove(&id)
            && self.names.get(&old.name) == Some(&id)
        {
            self.names.remove(&old.name);
        }
        self.next_id = self.next_id.max(id.saturating_add(1));
        if let Some(entry) = new {
            self.names.insert(entry.name.clone(), id);
            self.entries.insert(id, Arc::new(entry));
        }
    }

    pub(super) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// All names, in order, with the objects that have them.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &Arc<Entry>)> {
        self.names.iter().map(|(name, id)| (name.as_str(), &self.entries[id]))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Arc<Entry>> {
        self.names.get(name).map(|id| &self.entries[id])
    }

    pub(super) fn get(&self, id: u64) -> Option<&Arc<Entry>> {
        self.entries.get(&id)
    }

    /// A number that no object of this device has had.
    pub(super) fn draw_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Makes a change durable, all of it or nothing. What the caller wrote before is durable with it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; that of the device, and then nobody knows until it is opened again.
    pub(super) fn change(&mut self, records: Vec<Record>, space: &mut Space) -> Result<(), Error> {
        self.check_lost()?;
        let bytes = encode(&records);
        let blocks = log_blocks(bytes.len());
        let log = self.superblock.catalog;
        if self.used + blocks > log.blocks {
            let before = (self.entries.clone(), self.names.clone());
            records.into_iter().for_each(|record| self.apply(record));
            let begun = self.begin_anew(space);
            if matches!(begun, Err(Error::NoSpace { .. })) {
                (self.entries, self.names) = before;
            }
            return begun;
        }
        self.is_lost = true;
        // Data that the change speaks of come first.
        flush(&self.device)?;
        write(&self.device, log.start + self.used, &to_log(&bytes, self.superblock.epoch, self.used))?;
        flush(&self.device)?;
        self.is_lost = false;
        self.used += blocks;
        records.into_iter().for_each(|record| self.apply(record));
        Ok(())
    }

    /// Begins the log anew, with all objects as they are.
    ///
    /// # Errors
    /// As [`change`](Catalog::change).
    pub(super) fn begin_anew(&mut self, space: &mut Space) -> Result<(), Error> {
        self.check_lost()?;
        // The first says which numbers have been used.
        let mut records = vec![Record::Gone(self.next_id - 1)];
        records.extend(self.entries.values().map(|entry| Record::Put(Entry::clone(entry))));
        let records = encode(&records);
        let blocks = log_blocks(records.len());
        let old = [self.superblock.catalog, self.superblock.spare];
        // Half of a log is for changes, so that it is not begun anew with each.
        let larger = if blocks * 2 > old[1].blocks { space.take_one(blocks * 8) } else { None };
        if larger.is_none() && blocks > old[1].blocks {
            let (object, free) = (self.device.name().to_owned(), space.blocks() * BLOCK as u64);
            return Err(Error::NoSpace { object, needed: blocks * 8 * BLOCK as u64, free });
        }
        let [catalog, spare] = match larger {
            Some(Run { start, blocks }) => {
                [Run { start, blocks: blocks / 2 }, Run { start: start + blocks / 2, blocks: blocks / 2 }]
            }
            None => [old[1], old[0]],
        };
        let generation = self.superblock.generation + 1;
        let epoch = epoch(generation, (self.random)());
        let superblock = Superblock { generation, catalog, spare, epoch, ..self.superblock.clone() };
        self.is_lost = true;
        write(&self.device, catalog.start, &to_log(&records, epoch, 0))?;
        flush(&self.device)?;
        write_superblocks(&self.device, &superblock)?;
        self.is_lost = false;
        if larger.is_some() {
            old.into_iter().for_each(|run| space.give(run));
        }
        self.superblock = superblock;
        self.used = blocks;
        Ok(())
    }

    fn check_lost(&self) -> Result<(), Error> {
        match self.is_lost {
            true => Err(Error::Lost { object: self.device.name().to_owned() }),
            false => Ok(()),
        }
    }
}

/// What a log says.
struct Log {
    /// Of all changes that are whole.
    records: Vec<Record>,
    /// Blocks up to the end of the last of them.
    used: u64,
    /// Blocks of a change that is not whole follow.
    is_torn: bool,
    /// Something that no crash can have left so.
    damage: Option<(u64, Wrong)>,
}

impl Log {
    fn read(device: &Arc<dyn Device>, run: Run, epoch: u64) -> Result<Log, Error> {
        let mut log = Log { records: Vec::new(), used: 0, is_torn: false, damage: None };
        let (mut change, mut first, mut first_wrong, mut number) = (Vec::new(), None, None, 0);
        while number < run.blocks {
            let count = READ_BLOCKS.min(run.blocks - number);
            let blocks = read(device, run.start + number, count)?;
            for block in blocks.chunks(BLOCK) {
                let place = run.start + number;
                let Some(found) = from_log(block, epoch, number) else {
                    first_wrong.get_or_insert(place);
                    (first, number) = (None, number + 1);
                    continue;
                };
                log.is_torn = true;
                if found.first == number {
                    change.clear();
                    first = Some(number);
                }
                if first == Some(found.first) {
                    change.extend_from_slice(found.records);
                }
                number += 1;
                if !found.is_last || first != Some(found.first) {
                    continue;
                }
                match (decode(&change), first_wrong) {
                    (Ok(records), wrong) => {
                        log.records.extend(records);
                        // A crash leaves blocks of one change at most, at the end.
                        let follow = |wrong| (wrong, "a block is damaged, and changes follow it".into());
                        log.damage = log.damage.or_else(|| wrong.map(follow));
                    }
                    (Err(wrong), _) => log.damage = log.damage.or(Some((place, wrong))),
                }
                (log.used, log.is_torn, first) = (number, false, None);
            }
        }
        if log.used == 0 {
            log.damage = Some((run.start, "the catalog is damaged".into()));
        }
        Ok(log)
    }
}

/// Looks for the catalog with the latest epoch, where no superblock leads to one.
fn find_log(device: &Arc<dyn Device>, random: &mut Random) -> Result<Superblock, Error> {
    let blocks = device.len() / BLOCK as u64;
    let mut best: Option<Run> = None;
    let (mut epoch, mut place) = (0, SUPERBLOCKS);
    while place < blocks {
        let count = READ_BLOCKS.min(blocks - place);
        for (start, block) in (place..).zip(read(device, place, count)?.chunks(BLOCK)) {
            match epoch_of(block) {
                Some((found, 0)) if found > epoch => (best, epoch) = (Some(Run { start, blocks: 1 }), found),
                Some((found, number)) if found == epoch => {
                    best.iter_mut().filter(|run| run.start + number == start).for_each(|run| run.blocks = number + 1);
                }
                _ => {}
            }
        }
        place += count;
    }
    let reason = "it has neither a superblock nor a catalog".to_owned();
    let catalog = best.ok_or_else(|| Error::Unformatted { object: device.name().to_owned(), reason })?;
    let mut identity = [0; 16];
    identity[..8].copy_from_slice(&random().to_le_bytes());
    identity[8..].copy_from_slice(&random().to_le_bytes());
    let spare = Run { start: SUPERBLOCKS, blocks: 0 };
    Ok(Superblock { identity, generation: epoch >> 32, blocks, catalog, spare, epoch })
}

/// Later logs have higher ones, and no two the same.
fn epoch(generation: u64, random: u64) -> u64 {
    generation << 32 | random & 0xffff_ffff
}

/// The superblock that counts, and whether the other one says something else.
fn read_superblock(device: &Arc<dyn Device>) -> Result<(Superblock, bool), Error> {
    let object = || device.name().to_owned();
    if device.len() < SUPERBLOCKS * BLOCK as u64 {
        return Err(Error::Unformatted { object: object(), reason: "it is too short".into() });
    }
    let bytes = read(device, 0, SUPERBLOCKS)?;
    let found: Vec<Result<Superblock, Wrong>> = bytes.chunks(BLOCK).map(Superblock::decode).collect();
    let best = found.iter().flatten().max_by_key(|superblock| superblock.generation).cloned();
    match best {
        Some(best) => {
            let differ = found.iter().any(|other| other.as_ref() != Ok(&best));
            Ok((best, differ))
        }
        None => {
            let reason = found.into_iter().find_map(Result::err).expect("none is well");
            Err(Error::Unformatted { object: object(), reason })
        }
    }
}

/// One after the other, so that one of them is whole at any time.
fn write_superblocks(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<(), Error> {
    let bytes = superblock.encode();
    let first = superblock.generation % SUPERBLOCKS;
    for place in [first, SUPERBLOCKS - 1 - first] {
        write(device, place, &bytes)?;
        flush(device)?;
    }
    Ok(())
}

/// Blocks of a device.
pub(super) fn read(device: &Arc<dyn Device>, start: u64, blocks: u64) -> Result<Buf, Error> {
    let found = Buf::anonymous(blocks as usize * BLOCK).and_then(|mut buf| {
        read_now(&**device, &mut buf, start * BLOCK as u64)?;
        Ok(buf)
    });
    found.map_err(|error| Error::from_io(device.name(), "read", error))
}

/// Whole blocks of a device.
pub(super) fn write(device: &Arc<dyn Device>, start: u64, bytes: &[u8]) -> Result<(), Error> {
    let written = Buf::anonymous(bytes.len()).and_then(|mut buf| {
        buf.copy_from_slice(bytes);
        write_now(&**device, &buf, start * BLOCK as u64)
    });
    written.map_err(|error| Error::from_io(device.name(), "write", error))
}

pub(super) fn flush(device: &Arc<dyn Device>) -> Result<(), Error> {
    flush_now(&**device).map_err(|error| Error::from_io(device.name(), "flush", error))
}
