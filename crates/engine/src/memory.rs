//! Budget, reservations and frames.
//!
//! Every activity reserves its floor before it starts, all or nothing; the sum of the floors never
//! exceeds the budget. Memory above its floor an activity may take while no other needs it, and
//! gives back as it goes on. Unused frames are kept for the next request of that size: as idle
//! blocks, whose bytes may be wanted again, or empty.

mod budget;
mod frames;
mod idle;
mod share;

use std::io;
use std::ops::Range;
use std::sync::Weak;

use outcore_device::{Buf, Driver, Shared};

pub use self::budget::{Budget, Reservation};
pub(crate) use self::frames::FrameUse;
use self::frames::Frames;
use self::idle::Idle;
pub(crate) use self::idle::IdleKey;
pub use self::share::{Cap, Share};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::frame_size::frame_bytes;
use crate::items::Items;
use crate::reclaimable::{PoolHandle, ReclaimablePools};
use crate::written::{Dated, Written};

/// Elastic memory of all streams together: the working set of transfers and consumers. With more,
/// streams would only use memory that has to be cleared first.
const SHARED_BYTES: u64 = 128 << 20;

/// Unused memory that is kept while the engine is idle: enough to begin with, and little compared
/// to the needs of other processes.
const RESTING_BYTES: u64 = 32 << 20;

/// What one activity may hold, and what it holds.
pub(crate) struct Account {
    pub(crate) reservation: Reservation,
    pub(crate) held: u64,
}

impl Account {
    pub(crate) fn new(reservation: Reservation) -> Account {
        Account {
            reservation,
            held: 0,
        }
    }

    fn above_floor(&self) -> u64 {
        self.held.saturating_sub(self.reservation.bytes())
    }
}

/// The frames of a session. Lives on the engine's thread.
pub(crate) struct Memory {
    budget: Budget,
    held: u64,
    above_floors: u64,
    /// Number of streams that have a quota of elastic memory.
    elastic_streams: usize,
    /// Memory has been returned since this flag was last cleared.
    pub(crate) released: bool,
    frames: Frames,
    items: Items,
    pools: ReclaimablePools,
    idle: Idle,
    written: Written,
}

impl Memory {
    pub(crate) fn new(budget: Budget) -> Memory {
        Memory {
            budget,
            held: 0,
            above_floors: 0,
            elastic_streams: 0,
            released: false,
            frames: Frames::default(),
            items: Items::default(),
            pools: ReclaimablePools::default(),
            idle: Idle::default(),
            written: Written::new(),
        }
    }

    /// Number of the engine, unique in the process.
    pub(crate) fn engine(&self) -> u64 {
        self.written.engine()
    }

    /// The date of what is read from an extent from here on.
    pub(crate) fn date(&mut self, extent: &Extent) -> u64 {
        let changed = self.written.by_others(extent);
        if !changed.is_empty() {
            self.begins_to_write();
            self.writes(extent, changed.into_iter());
        }
        self.written.now()
    }

    /// Something is written from now on, by the holder of its lock.
    pub(crate) fn begins_to_write(&mut self) {
        self.written.begin();
    }

    /// What is known of these bytes is forgotten: they are written from now on, by the holder
    /// of their lock, which has [begun](Memory::begins_to_write).
    pub(crate) fn writes(&mut self, extent: &Extent, all: impl Iterator<Item = Range<u64>>) {
        let mut all: Vec<Range<u64>> = all.collect();
        all.sort_unstable_by_key(|bytes| bytes.start);
        for block in self.idle.remove_touched(extent.id(), &all) {
            self.recycle(block);
        }
        let mut is_much = false;
        for bytes in all {
            is_much |= self.written.note(extent.id(), bytes);
        }
        if is_much {
            self.items.drop_stale(extent.id(), &self.written);
            self.written.forget(extent.id());
        }
    }

    /// Before transfers begin: registers frames with the driver. True if a registration has
    /// changed.
    pub(crate) fn register(&mut self, driver: &mut dyn Driver) -> bool {
        self.frames.register(driver)
    }

    /// A frame of at least `bytes` bytes, contents unspecified; `None` if the activity has to wait.
    ///
    /// # Errors
    /// The system's, when it has no memory although the budget has.
    pub(crate) fn take(
        &mut self,
        account: &mut Account,
        bytes: usize,
        for_use: FrameUse,
    ) -> io::Result<Option<Buf>> {
        let size = frame_bytes(bytes);
        let above = (account.held + size).saturating_sub(account.reservation.bytes())
            - account.above_floor();
        if above > spare(account) || self.held + size > self.total() {
            return Ok(None);
        }
        let frame = match self.used_frame(size, for_use) {
            Some(frame) => frame,
            None => {
                self.make_room(size);
                self.frames.fresh(size, self.room(), for_use)?
            }
        };
        self.charge(account, size as i64);
        Ok(Some(frame))
    }

    /// A frame whose pages are there already: an empty one, or of idle blocks that would have to
    /// go.
    fn used_frame(&mut self, size: u64, for_use: FrameUse) -> Option<Buf> {
        if !self.frames.has(size, for_use) {
            self.drop_dead();
        }
        while !self.frames.has(size, for_use) && self.held + self.idle.bytes + size > self.total() {
            let block = self
                .idle
                .pop_oldest_of(size as usize)
                .or_else(|| self.idle.pop_oldest())?;
            self.recycle(block);
        }
        self.frames.take(size, for_use)
    }

    /// Takes an idle block back into use.
    pub(crate) fn reuse(&mut self, account: &mut Account, key: &IdleKey) -> Option<Shared> {
        let size = self.idle.blocks.get(key)?.1.len() as u64;
        let above = (account.held + size).saturating_sub(account.reservation.bytes())
            - account.above_floor();
        if above > spare(account) || !self.has_room(size) {
            return None;
        }
        let block = self.idle.remove(key)?;
        self.charge(account, size as i64);
        Some(block)
    }

    /// Returns a frame.
    pub(crate) fn give(&mut self, account: &mut Account, frame: Buf) {
        self.charge(account, -(frame.len() as i64));
        self.frames.keep(frame);
    }

    /// Returns a frame whose bytes are kept as an idle block while its extent lives.
    pub(crate) fn give_idle(
        &mut self,
        account: &mut Account,
        key: IdleKey,
        date: u64,
        life: Weak<()>,
        block: Shared,
    ) {
        self.charge(account, -(block.len() as i64));
        if self
            .written
            .is_stale((key.0, date), key.1.offset..key.1.end())
        {
            return self.recycle(block);
        }
        self.idle.lives.insert(key.0, life);
        if let Some(old) = self.idle.insert(key, block) {
            self.recycle(old);
        }
    }

    /// The budget minus memory held outside the engine, bytes.
    pub(crate) fn total(&self) -> u64 {
        self.budget.inside()
    }

    /// Whether `bytes` more can be held now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.held + bytes <= self.total()
    }

    /// Refuses `bytes` more if they need memory that other activities hold above their floors.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub(crate) fn check_room(&self, account: &Account, what: &str, bytes: u64) -> Result<()> {
        if self.has_room(bytes) || self.above_floors == account.above_floor() {
            return Ok(());
        }
        let (budget, available) = (self.budget.total(), self.total().saturating_sub(self.held));
        Err(Error::OverBudget {
            what: what.to_owned(),
            needed: bytes,
            available,
            budget,
        })
    }

    /// Whether the memory that is counted as held exists: other activities have returned what they
    /// had above their floors.
    pub(crate) fn is_settled(&mut self) -> bool {
        let settled = self.has_room(0);
        if settled {
            self.make_room(0);
        }
        settled
    }

    /// Copies an item out that was gathered before; false where it is not known.
    pub(crate) fn recall(&mut self, extent: u64, offset: u64, destination: &mut [u8]) -> bool {
        self.items.get(extent, offset, destination, &self.written)
    }

    /// Caches a copy of an item in unused memory.
    pub(crate) fn remember(&mut self, extent: Dated, offset: u64, item: &[u8]) {
        let room = self.room();
        self.items.put(extent, offset, item, room, &self.written);
    }

    /// Adds a reclaimable pool.
    pub(crate) fn add_pool(&mut self, pool: PoolHandle) {
        self.pools.add_pool(pool);
    }

    /// Gives unused memory to the pools.
    pub(crate) fn fill_pools(&mut self) {
        self.pools.drop_dead();
        let room = self.room();
        self.pools.fill(room);
    }

    /// All mapped memory, bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.held + self.unused_bytes()
    }

    /// Memory that may still be mapped, bytes.
    fn room(&self) -> u64 {
        self.total().saturating_sub(self.mapped_bytes())
    }

    fn unused_bytes(&self) -> u64 {
        self.frames.empty_bytes() + self.items.bytes() + self.pools.bytes() + self.idle.bytes
    }

    /// Charges memory from elsewhere to the floor of the activity.
    pub(crate) fn hold(&mut self, account: &mut Account, bytes: u64) {
        self.make_room(bytes);
        self.charge(account, bytes as i64);
    }

    /// Raises the floor of a running activity.
    ///
    /// # Errors
    /// [`Error::OverBudget`] if others have reserved too much; the floor is then unchanged.
    pub(crate) fn raise_floor(
        &mut self,
        account: &mut Account,
        what: &str,
        bytes: u64,
    ) -> Result<()> {
        let raised = self.recount(account, |account| account.reservation.grow(what, bytes));
        // Activities above their floors were last asked when no other needed memory.
        self.released |= bytes > 0 && raised.is_ok() && account.reservation.budget().is_overdrawn();
        raised
    }

    /// Records a floor that its owner has raised.
    pub(crate) fn set_floor(&mut self, account: &mut Account, bytes: u64) {
        self.recount(account, |account| account.reservation.covers(bytes));
    }

    /// Changes an account, and what activities have above their floors with it.
    fn recount<T>(&mut self, account: &mut Account, change: impl FnOnce(&mut Account) -> T) -> T {
        let before = account.above_floor();
        let changed = change(account);
        let after = account.above_floor();
        self.above_floors = self.above_floors - before + after;
        account
            .reservation
            .budget()
            .count_above_floor(before, after);
        changed
    }

    /// Whether an activity holds memory above its floor that others have reserved since.
    pub(crate) fn is_owed(&self, account: &Account) -> bool {
        let budget = account.reservation.budget();
        account.above_floor() > 0 && budget.above_floors() > budget.elastic()
    }

    /// One more stream has a quota of elastic memory, or one fewer.
    pub(crate) fn count_elastic_stream(&mut self, joins: bool) {
        self.elastic_streams = if joins {
            self.elastic_streams + 1
        } else {
            self.elastic_streams - 1
        };
    }

    /// The quota of a stream, in frames of `frame_bytes` bytes, the same for all elastic streams:
    /// enough to keep any device busy, and at least two, if the budget has them, so that one can be
    /// filled or used while the other moves.
    pub(crate) fn quota(&self, frame_bytes: usize) -> usize {
        let of = |bytes: u64| {
            (bytes / (frame_bytes.max(1) * self.elastic_streams.max(1)) as u64) as usize
        };
        of(SHARED_BYTES).max(of(self.total()).min(2))
    }

    /// Whether memory that the account may have will come back from a run that goes on.
    pub(crate) fn has_runs(&self, account: &Account) -> bool {
        account.reservation.budget().has_runs()
    }

    /// Releases a frame to the caller, which owns it from now on.
    pub(crate) fn release(&mut self, account: &mut Account, frame: &[u8]) {
        self.frames.leaves(frame);
        self.uncharge(account, frame.len());
    }

    /// Stops charging bytes that are held elsewhere, or are freed with the engine.
    pub(crate) fn uncharge(&mut self, account: &mut Account, bytes: usize) {
        self.charge(account, -(bytes as i64));
    }

    /// Evicts idle blocks of extents without a handle.
    fn drop_dead(&mut self) {
        let lives = self.idle.lives.iter();
        let dead: Vec<u64> = lives
            .filter(|(_, life)| life.strong_count() == 0)
            .map(|(&extent, _)| extent)
            .collect();
        dead.into_iter().for_each(|extent| self.evict_idle(extent));
    }

    /// Evicts idle blocks of an extent.
    fn evict_idle(&mut self, extent_id: u64) {
        let all = 0..u64::MAX;
        for block in self
            .idle
            .remove_touched(extent_id, std::slice::from_ref(&all))
        {
            self.recycle(block);
        }
        self.idle.lives.remove(&extent_id);
    }

    fn recycle(&mut self, block: Shared) {
        match block.try_thaw() {
            Ok(frame) => self.frames.keep(frame),
            Err(block) => self.frames.leaves(&block),
        }
    }

    fn charge(&mut self, account: &mut Account, bytes: i64) {
        self.released |= bytes < 0;
        self.recount(account, |account| {
            account.held = account
                .held
                .checked_add_signed(bytes)
                .expect("a frame is given back once");
        });
        self.held = self
            .held
            .checked_add_signed(bytes)
            .expect("a frame is given back once");
    }

    /// Unmaps unused memory until `bytes` more stay within the budget.
    pub(crate) fn make_room(&mut self, bytes: u64) {
        while self.let_go(
            (self.mapped_bytes() + bytes).saturating_sub(self.total()),
            true,
        ) {}
    }

    /// Unmaps unused memory when the engine is idle, except for a small rest and the caches of open
    /// objects.
    pub(crate) fn rest(&mut self) {
        while self.let_go(
            (self.unused_bytes() - self.pools.bytes()).saturating_sub(RESTING_BYTES),
            false,
        ) {}
    }

    /// Unmaps some unused memory, if `missing` is not 0; false if there is none.
    fn let_go(&mut self, missing: u64, pools: bool) -> bool {
        missing > 0
            && (self.frames.give_back_units(missing)
                || self.frames.take_for_good(missing).is_some()
                || self.items.shrink()
                || (pools && self.pools.shrink())
                || self
                    .idle
                    .pop_oldest()
                    .map(|block| self.recycle(block))
                    .is_some())
    }
}

/// What an activity may take above its floor, bytes.
fn spare(account: &Account) -> u64 {
    let budget = account.reservation.budget();
    budget.elastic().saturating_sub(budget.above_floors())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::region::Region;

    #[test]
    fn the_frame_of_an_idle_block_that_has_to_go_is_used_again() {
        const SIZE: usize = 8 << 10;
        let budget = Budget::new(2 * SIZE as u64, None);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 2 * SIZE as u64).unwrap());
        let key = |index| (index, Region::span(crate::ExtentRef(0), 0, SIZE as u64));
        let mut take = |memory: &mut Memory| {
            memory
                .take(&mut account, SIZE, FrameUse::Internal)
                .unwrap()
                .unwrap()
        };
        let frames = [take(&mut memory), take(&mut memory)];
        let places = [frames[0].as_ptr(), frames[1].as_ptr()];
        let life = Arc::new(());
        for (index, frame) in frames.into_iter().enumerate() {
            memory.give_idle(
                &mut account,
                key(index as u64),
                0,
                Arc::downgrade(&life),
                frame.freeze(),
            );
        }
        let mut take = || {
            memory
                .take(&mut account, SIZE, FrameUse::Internal)
                .unwrap()
                .unwrap()
                .as_ptr()
        };
        assert_eq!([take(), take()], places);
        assert!(memory.idle.blocks.is_empty() && memory.idle.bytes == 0);
    }

    #[test]
    fn the_frame_of_an_idle_block_whose_extent_has_gone_is_used_again() {
        const SIZE: usize = 8 << 10;
        let budget = Budget::new(16 * SIZE as u64, None);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", SIZE as u64).unwrap());
        let key = (1, Region::span(crate::ExtentRef(0), 0, SIZE as u64));
        let frame = memory
            .take(&mut account, SIZE, FrameUse::Internal)
            .unwrap()
            .unwrap();
        let (place, life) = (frame.as_ptr(), Arc::new(()));
        memory.give_idle(&mut account, key, 0, Arc::downgrade(&life), frame.freeze());
        let other = memory
            .take(&mut account, SIZE, FrameUse::Internal)
            .unwrap()
            .unwrap();
        assert_ne!(other.as_ptr(), place);
        drop(life);
        assert_eq!(
            memory
                .take(&mut account, SIZE, FrameUse::Internal)
                .unwrap()
                .unwrap()
                .as_ptr(),
            place
        );
        assert!(memory.idle.blocks.is_empty() && memory.idle.lives.is_empty());
    }

    #[test]
    fn what_is_held_above_floors_is_within_the_part() {
        const SIZE: usize = 8 << 10;
        let frames = |count: usize| (count * SIZE) as u64;
        let budget = Budget::new(frames(16), None);
        let part = budget.part("part", frames(4)).unwrap();
        let mut memory = Memory::new(budget.clone());
        let floor =
            |budget: &Budget| Account::new(budget.reserve_floor("test", frames(1)).unwrap());
        let (mut first, mut second) = (floor(&part), floor(&part));
        let mut outside = floor(&budget);
        let mut take = |account: &mut Account, most: usize| -> Vec<Buf> {
            let mut frame = || memory.take(account, SIZE, FrameUse::Internal).unwrap();
            std::iter::from_fn(&mut frame).take(most).collect()
        };
        // The floor of the second is left, and no more.
        let mut held = take(&mut first, 99);
        assert_eq!(held.len(), 3);
        assert_eq!(take(&mut second, 99).len(), 1);
        // What is outside has what the part has not.
        let more = take(&mut outside, 99);
        assert_eq!(more.len(), 12);
        memory.give(&mut first, held.pop().unwrap());
        assert!(
            memory
                .take(&mut outside, SIZE, FrameUse::Internal)
                .unwrap()
                .is_none()
        );
        assert!(
            memory
                .take(&mut second, SIZE, FrameUse::Internal)
                .unwrap()
                .is_some()
        );
        // Another part is asked for: those outside owe, those inside do not.
        let other = budget.part("other", frames(2)).unwrap();
        let mut late = Account::new(other.for_run());
        memory.raise_floor(&mut late, "late", frames(1)).unwrap();
        assert!(memory.released && memory.is_owed(&outside));
        assert!(!memory.is_owed(&first) && !memory.is_owed(&second));
        assert!(
            memory
                .take(&mut late, SIZE, FrameUse::Internal)
                .unwrap()
                .is_none()
        );
        for frame in more.into_iter().take(1) {
            memory.give(&mut outside, frame);
        }
        assert!(
            memory
                .take(&mut late, SIZE, FrameUse::Internal)
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn frames_of_any_size_are_cut_from_the_same_pages() {
        const KIB: u64 = 1 << 10;
        let budget = Budget::new(8192 * KIB, None);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 8192 * KIB).unwrap());
        let (mut lowest, mut highest) = (usize::MAX, 0);
        let mut take = |kib: u64, count: usize| {
            let mut frames = Vec::new();
            for _ in 0..count {
                frames.extend(
                    memory
                        .take(&mut account, (kib * KIB) as usize, FrameUse::Internal)
                        .unwrap(),
                );
                assert!(memory.mapped_bytes() <= budget.total());
            }
            let held = (memory.held / KIB, memory.unused_bytes() / KIB);
            for frame in &mut frames {
                frame.fill(1);
                let start = frame.as_ptr() as usize;
                (lowest, highest) = (lowest.min(start), highest.max(start + frame.len()));
            }
            frames
                .into_iter()
                .for_each(|frame| memory.give(&mut account, frame));
            held
        };
        assert_eq!(take(256, 1), (256, 1792));
        // A step of a 16th of 1024.
        assert_eq!(take(700, 1), (704, 1344));
        assert_eq!(take(690, 2), (1408, 640));
        assert_eq!(take(4, 1), (4, 2044));
        assert_eq!(take(2048, 5), (4 * 2048, 0));
        assert_eq!(take(1000, 9), (8 * 1024, 0));
        assert_eq!(take(3000, 3), (2 * 3072, 2048));
        assert_eq!(take(8192, 1), (8192, 0));
        assert_eq!((highest - lowest) as u64, 8192 * KIB);
    }

    /// What one use has left empty makes room for the other, and goes back to its own.
    #[test]
    fn frames_of_both_uses_share_the_budget_and_no_page() {
        const MIB: u64 = 1 << 20;
        let budget = Budget::new(8 * MIB, None);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 8 * MIB).unwrap());
        let mut places = [Vec::new(), Vec::new()];
        for round in 0..4 {
            let for_use = [FrameUse::Internal, FrameUse::Lent][round % 2];
            let mut frames = Vec::new();
            while let Some(frame) = memory.take(&mut account, MIB as usize, for_use).unwrap() {
                assert_eq!(frame.is_inherited(), for_use == FrameUse::Lent);
                assert!(memory.mapped_bytes() <= budget.total());
                frames.push(frame);
            }
            assert_eq!(frames.len(), 8);
            places[round % 2].extend(frames.iter().map(|frame| frame.as_ptr() as usize));
            for frame in frames {
                memory.give(&mut account, frame);
            }
        }
        places.iter_mut().for_each(|places| {
            places.sort_unstable();
            places.dedup();
        });
        assert!(places[0].iter().all(|place| !places[1].contains(place)));
    }

    #[test]
    fn pages_that_went_back_are_made_anew() {
        const MIB: u64 = 1 << 20;
        let budget = Budget::new(8 * MIB, None);
        let mut memory = Memory::new(budget.clone());
        let mut account = Account::new(budget.reserve_floor("test", 2 * MIB).unwrap());
        let mut take = |memory: &mut Memory, mib: u64| {
            let mut frame = memory
                .take(&mut account, (mib * MIB) as usize, FrameUse::Internal)
                .unwrap()?;
            frame.fill(1);
            let place = frame.as_ptr();
            memory.give(&mut account, frame);
            Some(place)
        };
        let place = take(&mut memory, 8);
        assert!(place.is_some());
        let outside = budget.reserve("outside", 4 * MIB).unwrap();
        assert!(memory.is_settled());
        assert_eq!(memory.mapped_bytes(), 4 * MIB);
        assert_eq!((take(&mut memory, 3), take(&mut memory, 5)), (place, None));
        drop(outside);
        assert_eq!(take(&mut memory, 8), place);
    }
}
