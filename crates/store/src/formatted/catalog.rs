//! The catalog of a formatted device: all objects in memory, and a log of their changes.
//!
//! ```text
//!   superblock -> | all objects, as one change | change | change | ... |            and room for the next log
//! ```
//!
//! Each of two steps is atomic under a crash:
//!
//! * a change is appended: its blocks, then a flush. Blocks of an incomplete change are at the end
//!   of the log, where they have no effect;
//! * before that, if the log is full, a new log is begun in the other room: a snapshot of all
//!   objects, a flush, then the superblock that leads to it, a flush. Every log has an id of its
//!   own, which distinguishes its blocks from those of an older log.
//!
//! Invariant: the superblock with the highest generation leads to the catalog in its state after
//! some change, and not before the last change that was reported. After an error it is unknown
//! which; then nothing is changed until the device is opened again.

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_device::{Buf, Device, flush_now, read_now, write_now};

use super::layout::{
    BLOCK, BlockRange, ENTRY_BYTES, Entry, RUN_BYTES, Record, SUPERBLOCKS, Superblock, Wrong,
    decode, encode, epoch_of, from_log, log_blocks, to_log,
};
use super::space::Space;
use crate::error::Error;

/// Blocks of the first log, unless they would be more than a 16th of a small device.
const LOG_BLOCKS: u64 = 256;
const LOG_BLOCKS_MIN: u64 = 4;
/// Blocks that are read at once.
const READ_BLOCKS: u64 = 256;

/// Metadata of a formatted device.
pub(super) struct Catalog {
    device: Arc<dyn Device>,
    superblock: Superblock,
    /// Blocks of the log in use.
    used: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    names: BTreeMap<String, u64>,
    next_id: u64,
    /// Bytes of all objects as records.
    bytes: usize,
    /// A change failed, and whether it was made is unknown.
    is_lost: bool,
    /// Draws the lower halves of ids.
    random: Random,
}

pub(super) type Random = Box<dyn FnMut() -> u64 + Send>;

/// The result of opening a catalog.
pub(super) struct Found {
    pub(super) catalog: Catalog,
    pub(super) space: Space,
    /// The last writer ended during a change.
    pub(super) is_torn: bool,
    /// Logs of a catalog that was salvaged: they are kept until the new one is written, if there is
    /// enough room without them.
    pub(super) old_logs: Vec<BlockRange>,
}

impl Catalog {
    /// Formats a device; its content is lost.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for a device that is too small; that of the device.
    pub(super) fn format(device: Arc<dyn Device>, mut random: Random) -> Result<(), Error> {
        let blocks = device.len() / BLOCK as u64;
        let log = LOG_BLOCKS.min(blocks / 32).max(LOG_BLOCKS_MIN);
        if blocks < SUPERBLOCKS + 2 * log {
            let needed = (SUPERBLOCKS + 2 * LOG_BLOCKS_MIN) * BLOCK as u64;
            return Err(Error::NoSpace {
                object: device.name().to_owned(),
                needed,
                free: device.len(),
            });
        }
        let identity = identity(&mut random);
        let catalog = BlockRange {
            start: SUPERBLOCKS,
            blocks: log,
        };
        let spare = BlockRange {
            start: catalog.end(),
            blocks: log,
        };
        // The new generation is higher than any that an older store has left here.
        let found = generations(&device)?;
        let generation = found.iter().flatten().max().map_or(1, |last| last + 1);
        let log_id = log_id(generation, random());
        let superblock = Superblock {
            identity,
            generation,
            blocks,
            catalog,
            spare,
            log_id,
        };
        // The old superblocks are overwritten first, the valid one last: until the new ones are
        // written, the device is a store that is being formatted.
        let counts = u64::from(found[1] > found[0]);
        for place in [SUPERBLOCKS - 1 - counts, counts] {
            write(&device, place, &superblock.encode_begun())?;
            flush(&device)?;
        }
        write(
            &device,
            spare.start,
            &vec![0; spare.blocks as usize * BLOCK],
        )?;
        write(
            &device,
            catalog.start,
            &to_log(&encode(&[Record::Gone(0)]), superblock.log_id, 0),
        )?;
        flush(&device)?;
        write_superblocks(&device, &superblock)
    }

    /// Reads the catalog without writing.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unformatted`], or that of the device.
    pub(super) fn open(device: Arc<dyn Device>, random: Random) -> Result<Found, Error> {
        let (superblock, differ) = read_superblock(&device)?;
        let corrupt = |place: u64, reason: Wrong| {
            let (object, offset) = (device.name().to_owned(), place * BLOCK as u64);
            Err(Error::Corrupt {
                object,
                offset,
                reason,
            })
        };
        let mut space = match superblock.space(device.len()) {
            Ok(space) => space,
            Err(reason) => return corrupt(0, reason),
        };
        let log = Log::read(&device, superblock.catalog, superblock.log_id)?;
        if let Some((place, reason)) = log.damage {
            return corrupt(place, reason);
        }
        let catalog = Catalog::new(device.clone(), superblock, log.used, log.records, random);
        let checked = catalog.entries.values().try_for_each(|entry| {
            entry.check()?;
            if catalog.names.get(&entry.name) != Some(&entry.id) {
                return Err(format!("{:?} is the name of two objects", entry.name));
            }
            match entry
                .ranges
                .iter()
                .chain(&entry.sums)
                .find(|&&range| !space.claim(range))
            {
                Some(range) => Err(format!(
                    "{:?} has {} blocks from {}, which are not its own",
                    entry.name, range.blocks, range.start
                )),
                None => Ok(()),
            }
        });
        if let Err(reason) = checked {
            return corrupt(catalog.superblock.catalog.start, reason);
        }
        Ok(Found {
            catalog,
            space,
            is_torn: log.is_torn || differ,
            old_logs: Vec::new(),
        })
    }

    /// The remains of a catalog that cannot be opened, and a list of losses. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Unformatted`] if nothing remains; that of the device.
    pub(super) fn salvage(
        device: Arc<dyn Device>,
        mut random: Random,
    ) -> Result<(Found, Vec<String>), Error> {
        let mut lost = Vec::new();
        let read = match read_superblock(&device) {
            Ok((superblock, _)) => {
                Some(superblock).filter(|found| found.space(device.len()).is_ok())
            }
            Err(Error::Unformatted { .. }) => None,
            Err(error) => return Err(error),
        };
        if read.is_none() {
            lost.push("the superblocks; the latest catalog was looked for".to_owned());
        }
        // The log of the superblock is the latest that was begun.
        let latest = read
            .as_ref()
            .map_or(u64::MAX, |superblock| superblock.log_id);
        let mut logs: Vec<(u64, BlockRange, Log)> = Vec::new();
        for (log_id, range) in find_logs(&device)?
            .into_iter()
            .filter(|&(log_id, _)| log_id <= latest)
        {
            logs.push((log_id, range, Log::read(&device, range, log_id)?));
        }
        let Some(base) = logs.iter().rposition(|(_, _, log)| log.begins_whole) else {
            let reason = "nothing is left of its catalog".to_owned();
            return Err(Error::Unformatted {
                object: device.name().to_owned(),
                reason,
            });
        };
        let (mut records, mut old_logs, mut last) = (Vec::new(), Vec::new(), 0);
        for (log_id, range, log) in logs.drain(base..) {
            if let Some((place, reason)) = log.damage {
                lost.push(format!(
                    "changes of the catalog at byte {}: {reason}",
                    place * BLOCK as u64
                ));
            }
            // A log begins with a snapshot of the log before it.
            records.extend(log.records);
            last = log_id.max(last);
            old_logs.push(range);
        }
        let blocks = device.len() / BLOCK as u64;
        let nothing = BlockRange {
            start: SUPERBLOCKS,
            blocks: 0,
        };
        let superblock = read.unwrap_or_else(|| {
            let identity = identity(&mut random);
            Superblock {
                identity,
                generation: last >> 32,
                blocks,
                catalog: nothing,
                spare: nothing,
                log_id: last,
            }
        });
        let superblock = Superblock {
            catalog: nothing,
            spare: nothing,
            ..superblock
        };
        let mut space = superblock
            .space(device.len())
            .expect("no position is outside the device");
        let mut catalog = Catalog::new(device, superblock, 0, records, random);
        // If two objects claim the same blocks, the later one is right.
        let ids: Vec<u64> = catalog.entries.keys().rev().copied().collect();
        for id in ids {
            let entry = Arc::clone(&catalog.entries[&id]);
            let mut claimed = Vec::new();
            let is_free = |range: BlockRange| {
                let is_free = space.claim(range);
                claimed.extend(is_free.then_some(range));
                is_free
            };
            let is_named = catalog.names.get(&entry.name) == Some(&id);
            if !is_named
                || entry.check().is_err()
                || !entry.ranges.iter().chain(&entry.sums).copied().all(is_free)
            {
                claimed.into_iter().for_each(|range| space.give(range));
                catalog.apply(Record::Gone(id));
                lost.push(format!(
                    "object {id}, {:?}, whose blocks or name another one has",
                    entry.name
                ));
            }
        }
        old_logs.retain(|&range| space.claim(range));
        Ok((
            Found {
                catalog,
                space,
                is_torn: true,
                old_logs,
            },
            lost,
        ))
    }

    fn new(
        device: Arc<dyn Device>,
        superblock: Superblock,
        used: u64,
        records: Vec<Record>,
        random: Random,
    ) -> Catalog {
        let (entries, names) = (BTreeMap::new(), BTreeMap::new());
        let mut catalog = Catalog {
            device,
            superblock,
            used,
            entries,
            names,
            next_id: 1,
            bytes: 0,
            is_lost: false,
            random,
        };
        records.into_iter().for_each(|record| catalog.apply(record));
        catalog
    }

    fn apply(&mut self, record: Record) {
        let (id, new) = match record {
            Record::Gone(id) => (id, None),
            Record::Put(entry) => (entry.id, Some(entry)),
        };
        if let Some(old) = self.entries.remove(&id) {
            self.bytes -= bytes_of(&old);
            if self.names.get(&old.name) == Some(&id) {
                self.names.remove(&old.name);
            }
        }
        self.next_id = self.next_id.max(id.saturating_add(1));
        if let Some(entry) = new {
            self.bytes += bytes_of(&entry);
            self.names.insert(entry.name.clone(), id);
            self.entries.insert(id, Arc::new(entry));
        }
    }

    pub(super) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// All names and their objects, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &Arc<Entry>)> {
        self.names
            .iter()
            .map(|(name, id)| (name.as_str(), &self.entries[id]))
    }

    /// Whether any name is below this one.
    pub(super) fn has_below(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.names
            .range(below.clone()..)
            .next()
            .is_some_and(|(name, _)| name.starts_with(&below))
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

    /// A unique random number.
    pub(super) fn draw(&mut self) -> u64 {
        (self.random)()
    }

    /// Makes a change durable, atomically. Everything that the caller wrote before is made durable
    /// first.
    ///
    /// # Errors
    /// [`Error::NoSpace`] without any change; that of the device, after which the outcome is
    /// unknown until the device is opened again.
    pub(super) fn change(&mut self, records: Vec<Record>, space: &mut Space) -> Result<(), Error> {
        self.check_lost()?;
        let bytes = encode(&records);
        let blocks = log_blocks(bytes.len());
        // A change that adds something leaves room for one that removes something, in either log.
        let (is_new, BlockRange { blocks: room, .. }) = (
            records
                .iter()
                .any(|record| matches!(record, Record::Put(_))),
            self.superblock.catalog,
        );
        let after = log_blocks(self.bytes + bytes.len()) + 1;
        if self.used + blocks > room || is_new && after > room {
            self.begin_anew(space, blocks + u64::from(is_new))?;
        }
        let log = self.superblock.catalog;
        self.is_lost = true;
        // Data to which the change refers comes first.
        flush(&self.device)?;
        write(
            &self.device,
            log.start + self.used,
            &to_log(&bytes, self.superblock.log_id, self.used),
        )?;
        flush(&self.device)?;
        self.is_lost = false;
        self.used += blocks;
        records.into_iter().for_each(|record| self.apply(record));
        Ok(())
    }

    /// Begins a new log with a snapshot of all objects, with room for `more` further blocks.
    ///
    /// # Errors
    /// As [`change`](Catalog::change).
    pub(super) fn begin_anew(&mut self, space: &mut Space, more: u64) -> Result<(), Error> {
        self.check_lost()?;
        // The first record keeps the highest number used.
        let mut records = vec![Record::Gone(self.next_id - 1)];
        records.extend(
            self.entries
                .values()
                .map(|entry| Record::Put(Entry::clone(entry))),
        );
        let records = encode(&records);
        let blocks = log_blocks(records.len());
        let old = [self.superblock.catalog, self.superblock.spare];
        // Half of a log is left for changes, so that not every change begins a new one.
        let least = blocks + more;
        let wanted = if blocks * 2 + more > old[1].blocks {
            Some([4, 2, 1])
        } else {
            None
        };
        let larger = wanted
            .into_iter()
            .flatten()
            .find_map(|times| space.take_one(least * 2 * times));
        if larger.is_none() && least > old[1].blocks {
            let (object, free) = (self.device.name().to_owned(), space.blocks() * BLOCK as u64);
            return Err(Error::NoSpace {
                object,
                needed: least * 2 * BLOCK as u64,
                free,
            });
        }
        let [catalog, spare] = match larger {
            Some(BlockRange { start, blocks }) => [
                BlockRange {
                    start,
                    blocks: blocks / 2,
                },
                BlockRange {
                    start: start + blocks / 2,
                    blocks: blocks / 2,
                },
            ],
            None => [old[1], old[0]],
        };
        let generation = self.superblock.generation + 1;
        let log_id = log_id(generation, (self.random)());
        let superblock = Superblock {
            generation,
            catalog,
            spare,
            log_id,
            ..self.superblock.clone()
        };
        self.is_lost = true;
        write(&self.device, catalog.start, &to_log(&records, log_id, 0))?;
        flush(&self.device)?;
        write_superblocks(&self.device, &superblock)?;
        self.is_lost = false;
        if larger.is_some() {
            old.into_iter().for_each(|range| space.give(range));
        }
        self.superblock = superblock;
        self.used = blocks;
        Ok(())
    }

    fn check_lost(&self) -> Result<(), Error> {
        match self.is_lost {
            true => Err(Error::Lost {
                object: self.device.name().to_owned(),
            }),
            false => Ok(()),
        }
    }
}

fn bytes_of(entry: &Entry) -> usize {
    ENTRY_BYTES
        + entry.name.len()
        + entry.about.len()
        + RUN_BYTES * (entry.ranges.len() + entry.sums.len())
}

/// The content of a log.
struct Log {
    /// Records of all committed changes.
    records: Vec<Record>,
    /// Blocks up to the end of the last of them.
    used: u64,
    /// Whether blocks of an uncommitted change follow.
    is_torn: bool,
    /// Whether its first change, the snapshot, is complete.
    begins_whole: bool,
    /// Damage that no crash can have caused.
    damage: Option<(u64, Wrong)>,
}

impl Log {
    fn read(device: &Arc<dyn Device>, range: BlockRange, log_id: u64) -> Result<Log, Error> {
        let mut log = Log {
            records: Vec::new(),
            used: 0,
            is_torn: false,
            begins_whole: false,
            damage: None,
        };
        let (mut change, mut first, mut first_wrong, mut number) = (Vec::new(), None, None, 0);
        while number < range.blocks {
            let count = READ_BLOCKS.min(range.blocks - number);
            let blocks = read(device, range.start + number, count)?;
            for block in blocks.chunks(BLOCK) {
                let place = range.start + number;
                let Some(found) = from_log(block, log_id, number) else {
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
                        log.begins_whole |= found.first == 0;
                        log.records.extend(records);
                        // A crash leaves blocks of at most one uncommitted change, at the end.
                        let follow =
                            |wrong| (wrong, "a block is damaged, and changes follow it".into());
                        log.damage = log.damage.or_else(|| wrong.map(follow));
                    }
                    (Err(wrong), _) => log.damage = log.damage.or(Some((place, wrong))),
                }
                (log.used, log.is_torn, first) = (number, false, None);
            }
        }
        if !log.begins_whole {
            log.damage = Some((range.start, "the catalog is damaged".into()));
        }
        Ok(log)
    }
}

/// All logs that begin anywhere on the device, complete or not, by id.
fn find_logs(device: &Arc<dyn Device>) -> Result<BTreeMap<u64, BlockRange>, Error> {
    let blocks = device.len() / BLOCK as u64;
    let mut logs: BTreeMap<u64, BlockRange> = BTreeMap::new();
    let mut place = SUPERBLOCKS;
    while place < blocks {
        let count = READ_BLOCKS.min(blocks - place);
        for (at, block) in (place..).zip(read(device, place, count)?.chunks(BLOCK)) {
            // Its first block may be the damaged one.
            if let Some((log_id, number)) =
                epoch_of(block).filter(|&(_, number)| number <= at - SUPERBLOCKS)
            {
                let range = logs.entry(log_id).or_insert(BlockRange {
                    start: at - number,
                    blocks: 0,
                });
                if range.start + number == at {
                    range.blocks = range.blocks.max(number + 1);
                }
            }
        }
        place += count;
    }
    Ok(logs)
}

fn identity(random: &mut Random) -> [u8; 16] {
    (u128::from(random()) << 64 | u128::from(random())).to_le_bytes()
}

/// Later logs have higher ids; no two logs have the same.
fn log_id(generation: u64, random: u64) -> u64 {
    generation << 32 | random & 0xffff_ffff
}

/// The valid superblock, and whether the other one differs.
fn read_superblock(device: &Arc<dyn Device>) -> Result<(Superblock, bool), Error> {
    let object = || device.name().to_owned();
    if device.len() < SUPERBLOCKS * BLOCK as u64 {
        return Err(Error::Unformatted {
            object: object(),
            reason: "it is too short".into(),
        });
    }
    // Read one at a time: a bad sector affects only one of them.
    let blocks: Vec<Result<Buf, Error>> = (0..SUPERBLOCKS)
        .map(|place| read(device, place, 1))
        .collect();
    if let Some(block) = blocks
        .iter()
        .flatten()
        .find(|block| Superblock::is_of_another_version(block))
    {
        let reason = Superblock::decode(block).expect_err("it is of another version");
        return Err(Error::Unformatted {
            object: object(),
            reason,
        });
    }
    if blocks.iter().all(Result::is_err) {
        return Err(blocks.into_iter().find_map(Result::err).expect("all are"));
    }
    let decode = |block: Result<Buf, Error>| {
        block
            .map_err(|error| error.to_string())
            .and_then(|block| Superblock::decode(&block))
    };
    let begun = blocks
        .iter()
        .flatten()
        .position(|block| Superblock::is_begun(block))
        .unwrap_or(0);
    let found: Vec<Result<Superblock, Wrong>> = blocks.into_iter().map(decode).collect();
    let best = found
        .iter()
        .flatten()
        .max_by_key(|superblock| superblock.generation)
        .cloned();
    match best {
        Some(best) => {
            let differ = found.iter().any(|other| other.as_ref() != Ok(&best));
            Ok((best, differ))
        }
        None => {
            let reason = found
                .into_iter()
                .skip(begun)
                .find_map(Result::err)
                .expect("none is well");
            Err(Error::Unformatted {
                object: object(),
                reason,
            })
        }
    }
}

/// Generations of the superblocks, including those of unfinished formatting.
fn generations(device: &Arc<dyn Device>) -> Result<[Option<u64>; SUPERBLOCKS as usize], Error> {
    let mut found = [None; SUPERBLOCKS as usize];
    for (place, generation) in (0..).zip(&mut found) {
        // A block that cannot be read is overwritten.
        *generation = read(device, place, 1)
            .ok()
            .and_then(|block| Superblock::generation_of(&block));
    }
    Ok(found)
}

/// Written one after the other, so that one of them is intact at any time.
fn write_superblocks(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<(), Error> {
    let bytes = superblock.encode();
    let first = superblock.generation % SUPERBLOCKS;
    for place in [first, SUPERBLOCKS - 1 - first] {
        write(device, place, &bytes)?;
        flush(device)?;
    }
    Ok(())
}

/// Reads blocks of a device.
pub(super) fn read(device: &Arc<dyn Device>, start: u64, blocks: u64) -> Result<Buf, Error> {
    let found = Buf::anonymous(blocks as usize * BLOCK).and_then(|mut buf| {
        read_now(&**device, &mut buf, start * BLOCK as u64)?;
        Ok(buf)
    });
    found.map_err(|error| Error::from_io(device.name(), "read", error))
}

/// Writes whole blocks of a device.
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
