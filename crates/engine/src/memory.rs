//! Budget, reservations and frames.
//!
//! Every activity reserves its floor before it starts, all or nothing; the sum of the floors never
//! exceeds the budget. Memory above its floor an activity may take while nobody needs it, and gives
//! back as it goes on. Frames that nobody uses are kept for the next taker of that size: as idle
//! blocks, whose bytes may be wanted again, or empty.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use outcore_device::{Anchor, Buf, Driver, Shared};

use crate::error::{Error, Result};
use crate::items::{Dated, Items};
use crate::region::Region;

const PAGE: u64 = 4096;
/// Frames are made so many bytes at a time: a device moves what lies in one huge page in one piece.
const SLAB_BYTES: u64 = 2 << 20;
/// So many idle blocks are looked at for one whose frame can be used again.
const NEXT_TO_GO: usize = 64;
/// Longer frames are exact: there are few of them, and an eighth of them is much.
const ALIKE_BYTES_MAX: u64 = 16 << 20;
/// Shorter frames gain nothing.
const SLAB_FRAME_BYTES_MIN: u64 = 64 << 10;

/// A number of bytes that a session may hold, and who has reserved what of it.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    total: u64,
    reserved: Mutex<Reserved>,
}

#[derive(Default)]
struct Reserved {
    all: u64,
    /// The part of it that runs have, and give back without anybody's doing.
    runs: u64,
    /// The part of it that is for memory which the engine knows nothing of.
    outside: u64,
}

impl Budget {
    /// A budget of `total` bytes.
    pub(crate) fn new(total: u64) -> Budget {
        Budget(Arc::new(Inner { total, reserved: Mutex::default() }))
    }

    /// All of it, bytes.
    pub fn total(&self) -> u64 {
        self.0.total
    }

    /// What nobody has reserved, bytes.
    pub fn available(&self) -> u64 {
        self.0.total - self.0.reserved.lock().expect("no panic while held").all
    }

    /// What a run may have, if need be after those that go on now, bytes.
    pub fn plannable(&self) -> u64 {
        let reserved = self.0.reserved.lock().expect("no panic while held");
        self.0.total - (reserved.all - reserved.runs)
    }

    /// Whether a run goes on that will give memory back.
    pub(crate) fn has_runs(&self) -> bool {
        self.0.reserved.lock().expect("no panic while held").runs > 0
    }

    /// Nothing yet, for a run.
    pub(crate) fn for_run(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0, owned: 0, holder: Holder::Run }
    }

    /// Reserves bytes that come back without anybody's doing, as those of a run do.
    pub(crate) fn reserve_for_run(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.for_run();
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }

    /// Reserves bytes for memory of the caller's own, all or nothing.
    ///
    /// # Errors
    /// [`Error::OverBudget`], naming `what` and the bytes.
    pub fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0, owned: 0, holder: Holder::Caller };
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }

    /// What is left to the engine, bytes.
    pub(crate) fn inside(&self) -> u64 {
        self.0.total - self.0.reserved.lock().expect("no panic while held").outside
    }

    /// Reserves bytes for frames, all or nothing.
    ///
    /// # Errors
    /// As [`reserve`](Budget::reserve).
    pub(crate) fn reserve_floor(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0, owned: 0, holder: Holder::Activity };
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }
}

impl Reserved {
    /// The part of it that is counted apart.
    fn of(&mut self, holder: Holder) -> Option<&mut u64> {
        match holder {
            Holder::Activity => None,
            Holder::Run => Some(&mut self.runs),
            Holder::Caller => Some(&mut self.outside),
        }
    }
}

/// Whose memory it is.
#[derive(Clone, Copy)]
enum Holder {
    /// Frames of an activity that ends when somebody ends it.
    Activity,
    /// Of one that ends by itself.
    Run,
    /// Not the engine's.
    Caller,
}

/// Reserved bytes; free again when dropped.
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    /// What of it goes back to the budget from here.
    owned: u64,
    holder: Holder,
}

impl Reservation {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps at most `bytes` of them.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let mut reserved = self.budget.0.reserved.lock().expect("no panic while held");
        let back = self.owned - self.owned.min(bytes);
        reserved.all -= back;
        reserved.of(self.holder).into_iter().for_each(|part| *part -= back);
        self.owned = self.owned.min(bytes);
        self.bytes = self.bytes.min(bytes);
    }

    /// Adds bytes, all or nothing.
    fn grow(&mut self, what: &str, bytes: u64) -> Result<()> {
        let (mut reserved, total) = (self.budget.0.reserved.lock().expect("no panic while held"), self.budget.0.total);
        let available = total - reserved.all;
        if bytes > available {
            return Err(Error::OverBudget { what: what.to_owned(), needed: bytes, available, budget: total });
        }
        reserved.all += bytes;
        reserved.of(self.holder).into_iter().for_each(|part| *part += bytes);
        self.owned += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// A floor of `bytes` for an activity of whoever keeps this reservation. It may outlast it: what the activity then
    /// still holds keeps others waiting, not above the budget.
    pub(crate) fn part(&self, bytes: u64) -> Reservation {
        debug_assert!(bytes <= self.bytes);
        Reservation { budget: self.budget.clone(), bytes, owned: 0, holder: Holder::Activity }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// What one activity may hold and holds.
pub(crate) struct Account {
    pub(crate) reservation: Reservation,
    pub(crate) held: u64,
}

impl Account {
    pub(crate) fn new(reservation: Reservation) -> Account {
        Account { reservation, held: 0 }
    }

    fn above_floor(&self) -> u64 {
        self.held.saturating_sub(self.reservation.bytes)
    }
}

/// The frames of a session. Lives on the engine's thread.
pub(crate) struct Memory {
    budget: Budget,
    held: u64,
    above_floors: u64,
    /// Something was given back since somebody last asked.
    pub(crate) released: bool,
    empty: BTreeMap<usize, Vec<Buf>>,
    empty_bytes: u64,
    items: Items,
    idle: Idle,
    registered: Registered,
}

/// Slabs of several frames that the driver knows. It keeps their pages, so that it has to forget them when a frame of one leaves.
#[derive(Default)]
struct Registered {
    fresh: Vec<Anchor>,
    known: Vec<Range<usize>>,
    /// The system allows no more.
    is_full: bool,
    /// A frame has left.
    has_left: bool,
}

impl Registered {
    /// A frame is about to be unmapped, or is the caller's from now on.
    fn leaves(&mut self, frame: &[u8]) {
        let start = frame.as_ptr() as usize;
        self.fresh.retain(|slab| !slab.range().contains(&start));
        self.has_left |= self.known.iter().any(|slab| slab.contains(&start));
    }
}

impl Memory {
    pub(crate) fn new(budget: Budget) -> Memory {
        Memory {
            budget,
            held: 0,
            above_floors: 0,
            released: false,
            empty: BTreeMap::new(),
            empty_bytes: 0,
            items: Items::default(),
            idle: Idle::default(),
            registered: Registered::default(),
        }
    }

    /// Before transfers begin: tells the driver of new slabs, or to let go of all because a frame has left, whose pages are to go
    /// too. True when something has changed.
    pub(crate) fn register(&mut self, driver: &mut dyn Driver) -> bool {
        let Registered { fresh, known, is_full, has_left } = &mut self.registered;
        let changes = *has_left || !fresh.is_empty();
        if *has_left {
            driver.unregister();
            *has_left = driver.info().registered_bytes > 0;
            *is_full = *has_left;
            known.clear();
        }
        for slab in fresh.drain(..) {
            let range = slab.range();
            let registered = if *is_full { 0 } else { driver.register(slab) };
            *is_full |= registered < range.len();
            known.extend((registered > 0).then_some(range));
        }
        changes
    }

    /// A frame of at least `bytes` bytes, contents unspecified; `None` when it has to wait.
    ///
    /// # Errors
    /// The system's, when it has no memory although the budget has.
    pub(crate) fn take(&mut self, account: &mut Account, bytes: usize) -> io::Result<Option<Buf>> {
        let size = frame_bytes(bytes);
        let above = (account.held + size).saturating_sub(account.reservation.bytes) - account.above_floor();
        let spare = self.budget.available().saturating_sub(self.above_floors);
        if above > spare || self.held + size > self.total() {
            return Ok(None);
        }
        let frame = match self.used_frame(size) {
            Some(frame) => frame,
            None => {
                self.make_room(size);
                self.new_frame(size)?
            }
        };
        self.charge(account, size as i64);
        Ok(Some(frame))
    }

    /// A frame whose pages are there already, where fresh ones would have to be cleared: an empty one, or that of an idle block
    /// that would have to go.
    fn used_frame(&mut self, size: u64) -> Option<Buf> {
        if self.empty.get(&(size as usize)).is_none_or(Vec::is_empty) {
            self.bury();
        }
        let is_full = self.held + self.unused_bytes() + size > self.total();
        if is_full && self.empty.get(&(size as usize)).is_none_or(Vec::is_empty) {
            self.idle.pop_oldest_of(size as usize).into_iter().for_each(|block| self.recycle(block));
        }
        let frame = self.empty.get_mut(&(size as usize))?.pop()?;
        self.empty_bytes -= size;
        Some(frame)
    }

    /// A frame, and beside it in a slab others for whoever comes next, where there is room for them.
    fn new_frame(&mut self, size: u64) -> io::Result<Buf> {
        let others = SLAB_BYTES.div_ceil(size) - 1;
        let room = self.total().saturating_sub(self.held + self.unused_bytes());
        if size < SLAB_FRAME_BYTES_MIN || (others + 1) * size > room {
            return Buf::anonymous(size as usize);
        }
        let mut slab = Buf::anonymous(((others + 1) * size) as usize)?;
        self.registered.fresh.extend((others > 0).then(|| slab.anchor()));
        let frame = slab.split_to(size as usize);
        (0..others).for_each(|_| self.keep_empty(slab.split_to(size as usize)));
        Ok(frame)
    }

    /// Takes an idle block back into use.
    pub(crate) fn revive(&mut self, account: &mut Account, key: &IdleKey) -> Option<Shared> {
        let size = self.idle.blocks.get(key)?.1.len() as u64;
        let above = (account.held + size).saturating_sub(account.reservation.bytes) - account.above_floor();
        if above > self.budget.available().saturating_sub(self.above_floors) || !self.has_room(size) {
            return None;
        }
        let block = self.idle.remove(key)?;
        self.charge(account, size as i64);
        Some(block)
    }

    /// Gives a frame back.
    pub(crate) fn give(&mut self, account: &mut Account, frame: Buf) {
        self.charge(account, -(frame.len() as i64));
        self.keep_empty(frame);
    }

    /// Gives a frame back whose bytes may be wanted again while its extent lives.
    pub(crate) fn give_idle(&mut self, account: &mut Account, key: IdleKey, life: Weak<()>, block: Shared) {
        self.charge(account, -(block.len() as i64));
        self.idle.lives.insert(key.0, life);
        if let Some(old) = self.idle.insert(key, block) {
            self.recycle(old);
        }
    }

    /// The budget less what is held elsewhere, bytes.
    pub(crate) fn total(&self) -> u64 {
        self.budget.inside()
    }

    /// Whether `bytes` more can be held now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.held + bytes <= self.total()
    }

    /// Refuses `bytes` more that can be held only when other activities give back what they have above their floors.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub(crate) fn check_room(&self, account: &Account, what: &str, bytes: u64) -> Result<()> {
        if self.has_room(bytes) || self.above_floors == account.above_floor() {
            return Ok(());
        }
        let (budget, available) = (self.budget.total(), self.total().saturating_sub(self.held));
        Err(Error::OverBudget { what: what.to_owned(), needed: bytes, available, budget })
    }

    /// Whether everything that is counted as held is there: others have given back what they had above their floors.
    pub(crate) fn is_settled(&mut self) -> bool {
        let settled = self.has_room(0);
        if settled {
            self.make_room(0);
        }
        settled
    }

    /// Copies an item out that was gathered before; false where it is not known.
    pub(crate) fn recall(&mut self, extent: Dated, offset: u64, destination: &mut [u8]) -> bool {
        self.items.get(extent, offset, destination)
    }

    /// Keeps a copy of an item, in memory that nobody uses.
    pub(crate) fn remember(&mut self, extent: Dated, offset: u64, item: &[u8]) {
        let room = self.total().saturating_sub(self.held + self.unused_bytes());
        self.items.put(extent, offset, item, room);
    }

    /// Everything that is mapped, bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.held + self.unused_bytes()
    }

    fn unused_bytes(&self) -> u64 {
        self.empty_bytes + self.items.bytes() + self.idle.bytes
    }

    /// Counts memory that the activity has from elsewhere, within its floor.
    pub(crate) fn hold(&mut self, account: &mut Account, bytes: u64) {
        self.make_room(bytes);
        self.charge(account, bytes as i64);
    }

    /// Raises the floor of an activity that goes on.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when others have reserved too much; the floor is then what it was.
    pub(crate) fn raise_floor(&mut self, account: &mut Account, what: &str, bytes: u64) -> Result<()> {
        self.above_floors -= account.above_floor();
        let raised = account.reservation.grow(what, bytes);
        self.above_floors += account.above_floor();
        raised
    }

    /// Whether memory will come back from a run that goes on.
    pub(crate) fn has_runs(&self) -> bool {
        self.budget.has_runs()
    }

    /// Lets go of a frame that belongs to the caller from now on.
    pub(crate) fn part_with(&mut self, account: &mut Account, frame: &[u8]) {
        self.registered.leaves(frame);
        self.forfeit(account, frame.len());
    }

    /// Forgets bytes that are held elsewhere, or go with the engine.
    pub(crate) fn forfeit(&mut self, account: &mut Account, bytes: usize) {
        self.charge(account, -(bytes as i64));
    }

    /// Empties the frames of idle blocks that nobody can ask for any more.
    fn bury(&mut self) {
        let lives = self.idle.lives.iter();
        let dead: Vec<u64> = lives.filter(|(_, life)| life.strong_count() == 0).map(|(&extent, _)| extent).collect();
        dead.into_iter().for_each(|extent| self.forget(extent));
    }

    /// Forgets idle blocks and items of an extent.
    pub(crate) fn forget(&mut self, extent_id: u64) {
        self.items.forget(extent_id);
        self.idle.lives.remove(&extent_id);
        let stale: Vec<IdleKey> = self.idle.blocks.keys().filter(|key| key.0 == extent_id).copied().collect();
        for key in stale {
            let block = self.idle.remove(&key).expect("listed above");
            self.recycle(block);
        }
    }

    fn recycle(&mut self, block: Shared) {
        match block.try_thaw() {
            Ok(frame) => self.keep_empty(frame),
            Err(block) => self.registered.leaves(&block),
        }
    }

    fn keep_empty(&mut self, frame: Buf) {
        self.empty_bytes += frame.len() as u64;
        self.empty.entry(frame.len()).or_default().push(frame);
    }

    fn charge(&mut self, account: &mut Account, bytes: i64) {
        self.released |= bytes < 0;
        self.above_floors -= account.above_floor();
        account.held = account.held.checked_add_signed(bytes).expect("a frame is given back once");
        self.held = self.held.checked_add_signed(bytes).expect("a frame is given back once");
        self.above_floors += account.above_floor();
    }

    /// An empty frame to let go of: the smallest of at least `bytes`, or else the largest.
    fn empty_frame_of(&mut self, bytes: usize) -> Option<Buf> {
        self.empty.retain(|_, frames| !frames.is_empty());
        let size = *self.empty.range(bytes..).next().or_else(|| self.empty.last_key_value())?.0;
        self.empty.get_mut(&size)?.pop()
    }

    /// Unmaps what nobody uses until `bytes` more stay within the budget.
    pub(crate) fn make_room(&mut self, bytes: u64) {
        loop {
            let missing = (self.held + self.unused_bytes() + bytes).saturating_sub(self.total());
            if missing == 0 {
                break;
            }
            if let Some(frame) = self.empty_frame_of(missing as usize) {
                self.empty_bytes -= frame.len() as u64;
                self.registered.leaves(&frame);
            } else if !self.items.shrink() {
                match self.idle.pop_oldest() {
                    Some(block) => self.registered.leaves(&block),
                    None => break,
                }
            }
        }
    }
}

/// Bytes that a frame for `bytes` bytes takes. Frames of nearly the same size become equal, at most an eighth or a page larger, so
/// that one can be used after the other: fresh pages would have to be cleared.
pub(crate) fn frame_bytes(bytes: usize) -> u64 {
    let bytes = bytes.max(1) as u64;
    let step = if bytes <= ALIKE_BYTES_MAX { bytes.next_power_of_two() / 16 } else { PAGE };
    bytes.next_multiple_of(step.max(PAGE))
}

/// Extent, its version, and region.
pub(crate) type IdleKey = (u64, u64, Region);

/// Clean blocks that nobody uses now, oldest first out.
#[derive(Default)]
struct Idle {
    blocks: HashMap<IdleKey, (u64, Shared)>,
    /// Of the extents that have been seen here.
    lives: HashMap<u64, Weak<()>>,
    by_age: BTreeMap<u64, IdleKey>,
    clock: u64,
    bytes: u64,
}

impl Idle {
    fn insert(&mut self, key: IdleKey, block: Shared) -> Option<Shared> {
        let old = self.remove(&key);
        self.clock += 1;
        self.bytes += block.len() as u64;
        self.by_age.insert(self.clock, key);
        self.blocks.insert(key, (self.clock, block));
        old
    }

    fn remove(&mut self, key: &IdleKey) -> Option<Shared> {
        let (age, block) = self.blocks.remove(key)?;
        self.by_age.remove(&age);
        self.bytes -= block.len() as u64;
        Some(block)
    }

    /// The oldest of a length, if one is among those that are next to go.
    fn pop_oldest_of(&mut self, len: usize) -> Option<Shared> {
        let key = self.by_age.values().take(NEXT_TO_GO).find(|key| self.blocks[key].1.len() == len).copied()?;
        self.remove(&key)
    }

    fn pop_oldest(&mut self) -> Option<Shared> {
        let (_, key) = self.by_age.first_key_value()?;
        self.remove(&{ *key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_of_an_idle_block_that_has_to_go_is_used_again() {
        const SIZE: usize = 8 << 10;
        let budget = Budget::new(2 * SIZE as u64);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 2 * SIZE as u64).unwrap());
        let key = |index| (index, 0, Region::span(crate::ExtentRef(0), 0, SIZE as u64));
        let mut take = |memory: &mut Memory| memory.take(&mut account, SIZE).unwrap().unwrap();
        let frames = [take(&mut memory), take(&mut memory)];
        let places = [frames[0].as_ptr(), frames[1].as_ptr()];
        let life = Arc::new(());
        for (index, frame) in frames.into_iter().enumerate() {
            memory.give_idle(&mut account, key(index as u64), Arc::downgrade(&life), frame.freeze());
        }
        let mut take = || memory.take(&mut account, SIZE).unwrap().unwrap().as_ptr();
        assert_eq!([take(), take()], places);
        assert!(memory.idle.blocks.is_empty() && memory.idle.bytes == 0);
    }

    #[test]
    fn the_frame_of_an_idle_block_whose_extent_has_gone_is_used_again() {
        const SIZE: usize = 8 << 10;
        let budget = Budget::new(16 * SIZE as u64);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", SIZE as u64).unwrap());
        let key = (1, 0, Region::span(crate::ExtentRef(0), 0, SIZE as u64));
        let frame = memory.take(&mut account, SIZE).unwrap().unwrap();
        let (place, life) = (frame.as_ptr(), Arc::new(()));
        memory.give_idle(&mut account, key, Arc::downgrade(&life), frame.freeze());
        let other = memory.take(&mut account, SIZE).unwrap().unwrap();
        assert_ne!(other.as_ptr(), place);
        drop(life);
        assert_eq!(memory.take(&mut account, SIZE).unwrap().unwrap().as_ptr(), place);
        assert!(memory.idle.blocks.is_empty() && memory.idle.lives.is_empty());
    }

    #[test]
    fn frames_come_in_slabs_as_long_as_there_is_room() {
        const KIB: u64 = 1 << 10;
        let budget = Budget::new(8192 * KIB);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 8192 * KIB).unwrap());
        let mut take = |kib: u64, count: usize| {
            let mut frames = Vec::new();
            for _ in 0..count {
                frames.extend(memory.take(&mut account, (kib * KIB) as usize).unwrap());
                assert!(memory.held + memory.unused_bytes() <= budget.total());
            }
            let held = (memory.held, memory.unused_bytes());
            frames.iter_mut().for_each(|frame| frame.fill(1));
            frames.into_iter().for_each(|frame| memory.give(&mut account, frame));
            held
        };
        assert_eq!(take(256, 1), (256 * KIB, 1792 * KIB));
        // A step of a 16th of 1024.
        assert_eq!(take(700, 1), (704 * KIB, (2048 + 1408) * KIB));
        assert_eq!(take(690, 2), (1408 * KIB, (2048 + 704) * KIB));
        assert_eq!(take(4, 1), (4 * KIB, (2048 + 2112) * KIB));
        assert_eq!(take(2048, 5), (4 * 2048 * KIB, 0));
        assert_eq!(take(1000, 9), (8 * 1024 * KIB, 0));
    }
}
