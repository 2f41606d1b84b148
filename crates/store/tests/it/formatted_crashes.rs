//! Promises of a formatted device after a crash at any point, and after damage: every prefix of the
//! writes of a long history.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::common::{bytes_of, fill, is_all, put, value_of_stream, write_stream};
use outcore_device::{Blocking, Device, Limits, MemoryDevice, Route, read_now, write_now};
use outcore_store::{Access, Error, Formatted, State, Store};

const SECTOR: usize = 512;
const BLOCKS: u64 = 256;
const LEN: u64 = BLOCKS * 4096;

/// A device that records the order of writes.
struct Recorder {
    medium: MemoryDevice,
    log: Mutex<Vec<Event>>,
    /// Flushes that succeed before one fails.
    fails_after: AtomicUsize,
}

enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

impl Recorder {
    fn new() -> Arc<Recorder> {
        Recorder::on(MemoryDevice::with_sector("store", LEN, SECTOR as u32))
    }

    fn on(medium: MemoryDevice) -> Arc<Recorder> {
        Arc::new(Recorder {
            medium,
            log: Mutex::default(),
            fails_after: AtomicUsize::new(usize::MAX),
        })
    }

    fn events(&self) -> usize {
        self.log.lock().unwrap().len()
    }
}

impl Device for Recorder {
    fn name(&self) -> &str {
        "store"
    }
    fn limits(&self) -> Limits {
        self.medium.limits()
    }
    fn len(&self) -> u64 {
        LEN
    }
    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for Recorder {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        self.medium.read_at(destination, offset)
    }
    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        self.log
            .lock()
            .unwrap()
            .push(Event::Write(offset, source.to_vec()));
        self.medium.write_at(source, offset)
    }
    fn flush(&self) -> io::Result<()> {
        if self.fails_after.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(io::Error::other("killed"));
        }
        self.log.lock().unwrap().push(Event::Flush);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.medium.discard(offset, len)
    }
}

/// Expected content of a name: a number of bytes of one value, or, `None`, an interrupted object.
type Model = BTreeMap<String, (u64, Option<u8>)>;

/// A history of changes, each of which is made or not.
struct History {
    device: Arc<Recorder>,
    store: Formatted,
    /// The state of the store after a number of events.
    states: Vec<(usize, Model)>,
}

impl History {
    fn new() -> History {
        let device = Recorder::new();
        Formatted::format_device(device.clone()).unwrap();
        let store = Formatted::open_device(device.clone(), Access::Write).unwrap();
        let states = vec![(device.events(), Model::new())];
        History {
            device,
            store,
            states,
        }
    }

    fn step<T>(&mut self, act: impl FnOnce(&Formatted) -> T, expect: impl FnOnce(&mut Model)) -> T {
        let done = act(&self.store);
        let mut model = self.states.last().unwrap().1.clone();
        expect(&mut model);
        self.states.push((self.device.events(), model));
        done
    }

    fn put(&mut self, name: &str, len: u64, value: u8) {
        self.step(
            |store| put(store, name, len, value).unwrap(),
            |model| _ = model.insert(name.into(), (len, Some(value))),
        );
    }

    /// The writer is killed after its change is written and before it is durable; the next writer
    /// finds it.
    fn killed(&mut self, name: &str, len: u64, value: u8) {
        let events = self.device.events();
        self.device.fails_after.store(1, Ordering::Relaxed);
        assert!(put(&self.store, name, len, value).is_err() && self.device.events() > events);
        assert!(matches!(
            put(&self.store, "lost", 1, 1),
            Err(Error::Lost { .. })
        ));
        self.store = Formatted::open_device(self.device.clone(), Access::Read).unwrap();
        let device = self.device.clone();
        let store = self.step(
            |_| Formatted::open_device(device, Access::Write).unwrap(),
            |model| _ = model.insert(name.into(), (len, Some(value))),
        );
        assert!(is_all(&store, name, len, value));
        self.store = store;
    }

    fn change(&mut self, name: &str, value: u8) {
        let len = self.states.last().unwrap().1[name].0;
        let in_place = self.step(
            |store| store.open_in_place(name).unwrap(),
            |model| model.get_mut(name).unwrap().1 = None,
        );
        fill(&*in_place.device(), len, value);
        self.step(
            |_| in_place.finish().unwrap(),
            |model| model.get_mut(name).unwrap().1 = Some(value),
        );
    }

    fn remove(&mut self, name: &str) {
        self.step(
            |store| store.remove(name).unwrap(),
            |model| _ = model.remove(name),
        );
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.step(
            |store| store.rename(from, to).unwrap(),
            |model| {
                let moved = model.remove(from).unwrap();
                model.insert(to.into(), moved);
            },
        );
    }

    /// Several changes at once, too many for one block of the log.
    fn transaction(&mut self, value: u8) {
        let names: Vec<String> = (0..20)
            .map(|number| format!("{number}{}", "t".repeat(225)))
            .collect();
        let mut transaction = self.store.transaction();
        let last = self.states.last().unwrap().1.clone();
        for name in &names {
            if last.contains_key(name) {
                let updated = transaction.update(name).unwrap();
                fill(&*updated.device(), updated.len(), value);
            } else {
                fill(
                    &*transaction.create(name, 100).unwrap().device(),
                    100,
                    value,
                );
            }
        }
        transaction.create("of the transaction", 0).unwrap();
        if last.contains_key("from") {
            transaction.rename("from", "to").unwrap();
        }
        self.step(
            |_| transaction.commit().unwrap(),
            |model| {
                names
                    .iter()
                    .for_each(|name| _ = model.insert(name.clone(), (100, Some(value))));
                model.insert("of the transaction".into(), (0, Some(0)));
                if let Some(moved) = model.remove("from") {
                    model.insert("to".into(), moved);
                }
            },
        );
    }

    /// A stream; its name says so.
    fn stream(&mut self, name: &str, blocks: u64, value: u8) {
        let is_new = !self.states.last().unwrap().1.contains_key(name);
        let new = self.step(
            |store| store.create_stream(name, 8192, true).unwrap(),
            |model| _ = model.entry(name.into()).or_insert((0, None)),
        );
        assert_eq!(
            self.store.stat(name).unwrap().state,
            if is_new {
                State::BeingWritten
            } else {
                State::Whole
            }
        );
        let len = if blocks == 0 { 0 } else { blocks * 8192 - 4096 };
        self.step(
            |_| write_stream(new, blocks, value).unwrap(),
            |model| _ = model.insert(name.into(), (len, Some(value))),
        );
    }

    /// New, replaced, changed, renamed and removed objects; streams; logs that are begun anew and
    /// outgrow their room.
    fn eventful() -> History {
        let mut history = History::new();
        history.put("a", 10_000, 1);
        history.put("b", 5000, 2);
        history.put("a", 20_000, 3);
        history.change("b", 4);
        history.rename("b", "c");
        history.rename("c", "a");
        for number in 0..12u8 {
            history.put(&format!("{number}{}", "x".repeat(220)), 100, number);
        }
        history.killed("last", 30_000, 13);
        history.put("overwrites", 60_000, 14);
        history.remove("overwrites");
        history.change("a", 5);
        (0..10).for_each(|number| history.remove(&format!("{number}{}", "x".repeat(220))));
        history.put("empty", 0, 0);
        history.transaction(7);
        history.put("from", 1, 8);
        (9..12).for_each(|value| history.transaction(value));
        history.stream("stream a", 3, 21);
        history.stream("stream b", 0, 22);
        history.stream("stream a", 5, 23);
        history.rename("stream b", "stream c");
        let given_up = history.step(
            |store| store.create_stream("stream d", 8192, false).unwrap(),
            |model| _ = model.insert("stream d".into(), (0, None)),
        );
        history.step(|_| drop(given_up), |model| _ = model.remove("stream d"));
        history.remove("stream c");
        history.stream("stream e", 4, 24);
        let mut taken = history.store.open_stream("stream e").unwrap();
        history.step(
            |_| taken.take().unwrap(),
            |model| _ = model.remove("stream e"),
        );
        taken.let_go(taken.ranges()[0].start..taken.ranges()[0].start + 8192);
        history.put("overwrites", 30_000, 25);
        drop(taken);
        history.remove("overwrites");
        history.remove("a");
        history.put("last", 40_000, 6);
        history
    }
}

/// Reproducible pseudo-random numbers.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher.finish()
    }
}

fn on_image(image: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::with_sector("store", LEN, SECTOR as u32);
    write_now(&device, image, 0).unwrap();
    Arc::new(device)
}

/// Calls `check` for each image that a crash after each event may leave: all sectors of the writes
/// since the last effective flush, none, or some. `is_lost` says which flushes have no effect.
fn crashes(
    history: &History,
    is_lost: impl Fn(usize) -> bool,
    seeds: u64,
    check: impl FnMut(usize, &str, Vec<u8>),
) {
    crashes_on(
        vec![0; LEN as usize],
        &history.device,
        is_lost,
        seeds,
        check,
    );
}

/// As `crashes`, for a device that held data before.
fn crashes_on(
    mut durable: Vec<u8>,
    device: &Recorder,
    is_lost: impl Fn(usize) -> bool,
    seeds: u64,
    mut check: impl FnMut(usize, &str, Vec<u8>),
) {
    let log = device.log.lock().unwrap();
    let mut pending: Vec<(u64, &[u8])> = Vec::new();
    let write = |image: &mut Vec<u8>, offset: u64, bytes: &[u8]| {
        image[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes)
    };
    for (number, event) in log.iter().enumerate() {
        match event {
            Event::Flush if is_lost(number) => {}
            Event::Flush => pending
                .drain(..)
                .for_each(|(offset, bytes)| write(&mut durable, offset, bytes)),
            Event::Write(offset, bytes) => pending.push((*offset, bytes)),
        }
        check(number + 1, "nothing since the last flush", durable.clone());
        let mut all = durable.clone();
        pending
            .iter()
            .for_each(|&(offset, bytes)| write(&mut all, offset, bytes));
        check(number + 1, "everything", all);
        let mut torn = durable.clone();
        pending
            .iter()
            .for_each(|&(offset, bytes)| write(&mut torn, offset, &bytes[..bytes.len().min(50)]));
        check(number + 1, "the first bytes of everything", torn);
        for seed in 0..if pending.is_empty() { 0 } else { seeds } {
            let mut chance = Chance((seed << 32 | number as u64) << 16);
            let mut some = durable.clone();
            for &(offset, bytes) in &pending {
                let (how, unit) = (
                    chance.next() % 5,
                    if chance.next().is_multiple_of(2) {
                        SECTOR
                    } else {
                        4096
                    },
                );
                for (part, bytes) in bytes.chunks(unit).enumerate() {
                    // All, none, some, or some of which were torn.
                    let end = match (how, chance.next() % 3) {
                        (0, _) | (2.., 0) => bytes.len(),
                        (1, _) | (2.., 1) | (2 | 3, _) => 0,
                        _ => chance.next() as usize % bytes.len().min(2 * SECTOR),
                    };
                    write(&mut some, offset + (part * unit) as u64, &bytes[..end]);
                }
            }
            check(number + 1, &format!("some sectors, seed {seed}"), some);
        }
    }
}

/// The content of a store opened after a crash, which has to work, too.
fn found(image: &[u8]) -> Result<Model, Error> {
    let device = on_image(image);
    let read = |store: &Formatted| -> Result<Model, Error> {
        let mut model = Model::new();
        for name in store.list()? {
            let stat = store.stat(&name)?;
            let value = match stat.state {
                State::Interrupted => None,
                _ if name.starts_with("stream") => Some(value_of_stream(store, &name)?),
                _ => {
                    let bytes = bytes_of(&store.open(&name)?).map_err(|source| Error::Io {
                        object: name.clone(),
                        action: "read",
                        source,
                    })?;
                    assert!(
                        bytes.windows(2).all(|pair| pair[0] == pair[1]),
                        "{name:?} is a mixture"
                    );
                    Some(bytes.first().copied().unwrap_or(0))
                }
            };
            model.insert(name, (stat.len, value));
        }
        Ok(model)
    };
    let looked = read(&Formatted::open_device(device.clone(), Access::Read)?)?;
    let store = Formatted::open_device(device.clone(), Access::Write)?;
    assert_eq!(read(&store)?, looked);
    put(&store, "after the crash", 9000, 99)?;
    drop(store);
    let store = Formatted::open_device(device, Access::Write)?;
    assert!(is_all(&store, "after the crash", 9000, 99));
    store.remove("after the crash")?;
    assert_eq!(read(&store)?, looked);
    for (name, _) in looked.iter().filter(|(_, (_, value))| value.is_none()) {
        if name.starts_with("stream") {
            assert!(matches!(
                store.open_stream(name),
                Err(Error::Unfinished { .. })
            ));
            write_stream(store.create_stream(name, 8192, true)?, 1, 1)?;
            assert_eq!(value_of_stream(&store, name)?, 1);
            store.remove(name)?;
            continue;
        }
        store.clear_mark(name)?;
        assert!(
            bytes_of(&store.open(name)?).is_ok(),
            "{name:?} was accepted"
        );
    }
    let sums = |name: &str, blocks: u64| {
        if name.starts_with("stream") {
            0
        } else {
            blocks.div_ceil(1023)
        }
    };
    let is_there = |&(name, &(_, value)): &(&String, &(u64, Option<u8>))| {
        !name.starts_with("stream") || value.is_some()
    };
    let used: u64 = looked
        .iter()
        .filter(is_there)
        .map(|(name, &(len, _))| len.div_ceil(4096) + sums(name, len.div_ceil(4096)))
        .sum();
    let free = store.free_bytes()? / 4096;
    assert!(
        (BLOCKS - used - free).is_multiple_of(2) && free + used < BLOCKS,
        "blocks are lost: {used} used, {free} free"
    );
    Ok(looked)
}

#[test]
fn after_a_crash_at_any_point_every_change_was_made_or_not() {
    let history = History::eventful();
    let mut seen = vec![0; history.states.len()];
    crashes(
        &history,
        |_| false,
        6,
        |events, how, image| {
            // The last change that had been reported, and the one after it.
            let last = history
                .states
                .partition_point(|(after, _)| *after <= events);
            match (last, found(&image)) {
                (0, Err(Error::Unformatted { .. })) => {}
                (_, Err(error)) => panic!("after {events} events, {how}: {error}"),
                (_, Ok(model)) => {
                    let allowed = last.saturating_sub(1)..(last + 1).min(history.states.len());
                    let which = allowed
                        .clone()
                        .find(|&state| history.states[state].1 == model);
                    let which = which.unwrap_or_else(|| {
                        panic!(
                            "after {events} events, {how}: {model:?} is none of {:?}",
                            &history.states[allowed]
                        )
                    });
                    seen[which] += 1;
                }
            }
        },
    );
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn a_flush_that_does_nothing_gives_an_error_or_an_older_state_and_no_wrong_bytes() {
    let history = History::eventful();
    let flushes: Vec<usize> = history
        .device
        .log
        .lock()
        .unwrap()
        .iter()
        .enumerate()
        .filter(|(_, event)| matches!(event, Event::Flush))
        .map(|(number, _)| number)
        .collect();
    let (mut errors, mut well) = (0, 0);
    for &lost in flushes.iter().step_by(3) {
        crashes(
            &history,
            |number| number == lost,
            1,
            |events, how, image| {
                if events < lost || events > lost + 12 {
                    return;
                }
                match found(&image) {
                    Ok(model) => {
                        well += 1;
                        assert!(
                            history.states.iter().any(|(_, state)| *state == model),
                            "after {events} events, {how}: {model:?}"
                        );
                    }
                    Err(Error::Corrupt { .. } | Error::Unformatted { .. }) => errors += 1,
                    Err(Error::Io { source, .. })
                        if source.kind() == io::ErrorKind::InvalidData =>
                    {
                        errors += 1
                    }
                    Err(error) => panic!("after {events} events, {how}: {error}"),
                }
            },
        );
    }
    assert!(well > 100, "{well} well, {errors} errors");
}

#[test]
fn a_damaged_bit_anywhere_is_seen_or_means_nothing() {
    let history = History::eventful();
    let expected = &history.states.last().unwrap().1;
    let image = last_image(&history);
    let mut chance = Chance(1);
    let mut errors = 0;
    for block in 0..BLOCKS as usize {
        let mut image = image.clone();
        let bit = chance.next() as usize % (4096 * 8);
        image[block * 4096 + bit / 8] ^= 1 << (bit % 8);
        match found(&image) {
            // The end of the log, which a crash may have left so, or unused blocks.
            Ok(model) => assert!(
                history
                    .states
                    .iter()
                    .rev()
                    .take(2)
                    .any(|(_, state)| *state == model),
                "block {block}: {model:?}, {expected:?}"
            ),
            Err(error) => {
                errors += 1;
                let told = error.to_string();
                assert!(
                    told.contains("checksum")
                        || told.contains("damaged")
                        || told.contains("corrupt"),
                    "block {block}: {told}"
                );
            }
        }
    }
    assert!(errors > 10, "{errors}");
}

/// The image that a history ends with.
fn last_image(history: &History) -> Vec<u8> {
    let mut image = vec![0; LEN as usize];
    read_now(&history.device.medium, &mut image, 0).unwrap();
    image
}

#[test]
fn a_check_names_what_is_damaged_and_a_repair_marks_it() {
    let history = History::eventful();
    let image = last_image(&history);
    let model = &history.states.last().unwrap().1;
    let store = Formatted::open_device(on_image(&image), Access::Read).unwrap();
    let mut told = 0;
    let findings = store
        .check(|done, all| {
            told = done;
            done <= all
        })
        .unwrap();
    let bytes = model.values().map(|(len, _)| len).sum();
    assert_eq!(
        (findings.objects, findings.bytes, told),
        (model.len() as u64, bytes, bytes)
    );
    assert_eq!(
        (findings.faults, findings.free_bytes),
        (vec![], store.free_bytes().unwrap())
    );
    let ended = store.check(|_, _| false).unwrap_err();
    assert!(
        matches!(ended, Error::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    );

    let mut chance = Chance(2);
    let (mut in_objects, mut in_catalog, mut all_kept) = (0, 0, 0);
    for block in 0..BLOCKS as usize {
        let mut image = image.clone();
        let bit = chance.next() as usize % (4096 * 8);
        image[block * 4096 + bit / 8] ^= 1 << (bit % 8);
        let device = on_image(&image);
        let checked = Formatted::open_device(device.clone(), Access::Read)
            .and_then(|store| store.check(|_, _| true));
        let repaired = Formatted::repair_device(device.clone(), |_, _| true).unwrap();
        match checked {
            Ok(findings) => {
                in_objects += findings.faults.len();
                assert_eq!(repaired, findings.faults, "block {block}");
            }
            Err(error) => {
                in_catalog += 1;
                assert!(
                    matches!(error, Error::Corrupt { .. }) && !repaired.is_empty(),
                    "block {block}: {error}"
                );
                let after = found(&image_of(&device)).unwrap();
                // One change is lost; that of a transaction may have been it.
                let kept = |of_one_change: bool| {
                    let names = model
                        .iter()
                        .filter(|(name, _)| name.contains("ttt") == of_one_change);
                    let kept = names
                        .clone()
                        .filter(|(name, content)| after.get(*name) == Some(content))
                        .count();
                    names.count() - kept
                };
                assert!(
                    kept(false) <= 3 && kept(true) <= 20,
                    "block {block}: {} and {} are lost",
                    kept(false),
                    kept(true)
                );
                all_kept += usize::from(kept(false) + kept(true) <= 1);
            }
        }
        let after =
            found(&image_of(&device)).unwrap_or_else(|error| panic!("block {block}: {error}"));
        for (name, (len, value)) in &after {
            if repaired.iter().any(|fault| fault.name == *name) {
                assert_eq!(*value, None, "{name:?} is marked");
            } else if repaired.is_empty() && !in_last_change(&history, &after) {
                assert_eq!(model.get(name), Some(&(*len, *value)), "block {block}");
            }
        }
    }
    assert!(
        in_objects > 20 && in_catalog > 2,
        "{in_objects} in objects, {in_catalog} in the catalog"
    );
    assert!(all_kept * 2 >= in_catalog, "{all_kept} of {in_catalog}");
}

/// Damage at the end of the log is indistinguishable from an uncommitted change.
fn in_last_change(history: &History, model: &Model) -> bool {
    history.states[history.states.len() - 2].1 == *model
}

fn image_of(device: &MemoryDevice) -> Vec<u8> {
    let mut image = vec![0; LEN as usize];
    read_now(device, &mut image, 0).unwrap();
    image
}

#[test]
fn without_its_superblocks_a_store_is_found_again() {
    let history = History::eventful();
    let mut image = last_image(&history);
    image[..8192].fill(7);
    let device = on_image(&image);
    assert!(matches!(
        Formatted::open_device(device.clone(), Access::Read),
        Err(Error::Unformatted { .. })
    ));
    let faults = Formatted::repair_device(device.clone(), |_, _| true).unwrap();
    assert!(
        faults.len() == 1 && faults[0].reason.contains("superblocks"),
        "{faults:?}"
    );
    assert_eq!(
        found(&image_of(&device)).unwrap(),
        history.states.last().unwrap().1
    );
    let empty = Arc::new(MemoryDevice::with_sector("store", LEN, 512));
    assert!(matches!(
        Formatted::repair_device(empty, |_, _| true),
        Err(Error::Unformatted { .. })
    ));
}

/// Interrupted formatting left a device that could not be identified.
#[test]
fn formatting_again_is_the_old_store_or_the_new_one_or_says_that_it_has_not_finished() {
    let history = History::eventful();
    let (before, old) = (last_image(&history), &history.states.last().unwrap().1);
    let medium = MemoryDevice::with_sector("store", LEN, SECTOR as u32);
    write_now(&medium, &before, 0).unwrap();
    let device = Recorder::on(medium);
    Formatted::format_device(device.clone()).unwrap();
    let mut seen = [0; 3];
    crashes_on(
        before,
        &device,
        |_| false,
        8,
        |number, what, image| {
            let context = format!("event {number}, {what}");
            match found(&image) {
                Ok(model) if model == *old => seen[0] += 1,
                Ok(model) if model.is_empty() => seen[1] += 1,
                Err(Error::Unformatted { reason, .. }) if reason.contains("format it again") => {
                    seen[2] += 1
                }
                other => panic!("{context}: {other:?}"),
            }
            let again = on_image(&image);
            Formatted::format_device(again.clone()).unwrap();
            assert_eq!(found(&image_of(&again)).unwrap(), Model::new(), "{context}");
        },
    );
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_store_that_is_formatted_again_is_not_the_old_one() {
    let history = History::eventful();
    let device = on_image(&last_image(&history));
    Formatted::format_device(device.clone()).unwrap();
    let store = Formatted::open_device(device.clone(), Access::Write).unwrap();
    put(&store, "new", 10, 1).unwrap();
    drop(store);
    write_now(&*device, &outcore_device::Buf::anonymous(8192).unwrap(), 0).unwrap();
    Formatted::repair_device(device.clone(), |_, _| true).unwrap();
    assert_eq!(
        Formatted::open_device(device, Access::Read)
            .unwrap()
            .list()
            .unwrap(),
        ["new"]
    );
}
