//! Rows of one table in memory.
//!
//! Rows are kept as they are stored, in slots of chunks that are added and taken away as the memory of the
//! cache changes. An index of row numbers and slots is searched for many rows at once, with the bytes of
//! those that come later asked for from memory meanwhile. Look-ups only read; what they have used is noted
//! afterwards, with the next change of the cache.
//!
//! Invariant: a slot is vacant, or has one row, which the index finds there.

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use outcore_device::{Buf, PANICKED};
use outcore_engine::cache::{LookAhead, Policy, PolicyKind};
use outcore_kernels::fetch_from;

/// Of the rows of a chunk, at most: huge pages, and little that is moved when memory is taken away.
const CHUNK_BYTES: u64 = 2 << 20;
/// Chunks of a small cache, so that memory is divided finely.
const CHUNKS_MIN: u64 = 8;
/// Of a cache that has grown: each is a mapping of its own. Where rows stay, chunks keep their length.
const CHUNKS_MAX: u64 = 4096;
/// An entry of a table that is half empty at least and three quarters at most, and the row number by slot.
const INDEX_BYTES: u64 = 4 * 8 + 8;
/// What is noted of a slot, what a look-up to come says of it, and its place in a list of those that are written.
const SLOT_BYTES: u64 = 28 + 4;
/// A slot that stands for none.
pub(crate) const NO_SLOT: u32 = u32::MAX;
const NO_ROW: u64 = u64::MAX;
/// Rows that are looked for while the bytes of earlier ones come from memory.
const AHEAD: usize = 32;

/// Rows of one table.
pub(crate) struct RowCache {
    row_bytes: usize,
    kind: PolicyKind,
    /// Rows of a chunk: two to the power of this.
    chunk_shift: u32,
    chunks: Vec<Buf>,
    /// By slot.
    rows: Vec<u64>,
    /// By slot: it stays whatever comes.
    is_hot: Vec<bool>,
    /// By slot: the step that changed it since it was written, 0 for none.
    changed_at: Vec<u32>,
    changed: u32,
    /// Slots whose rows [stay](RowCache::stays): none of them is evicted.
    pinned: u32,
    vacant: Vec<u32>,
    index: Index,
    policy: LookAhead<Box<dyn Policy>>,
    /// Changes when slots become vacant.
    epoch: u64,
    /// Which of the tables that were served under this number has these rows.
    served: u32,
}

/// A cache that many look up in, and some change.
pub(crate) struct SharedCache(RwLock<RowCache>);

impl SharedCache {
    pub(crate) fn new(cache: RowCache) -> SharedCache {
        SharedCache(RwLock::new(cache))
    }

    /// The cache, which does not change meanwhile.
    pub(crate) fn seen(&self) -> RwLockReadGuard<'_, RowCache> {
        self.0.read().expect(PANICKED)
    }

    /// The cache, to change it.
    pub(crate) fn changed(&self) -> RwLockWriteGuard<'_, RowCache> {
        self.0.write().expect(PANICKED)
    }

    /// The same, unless others use it now.
    pub(crate) fn changed_if_free(&self) -> Option<RwLockWriteGuard<'_, RowCache>> {
        self.0.try_write().ok()
    }
}

impl RowCache {
    /// For rows of a table that has `rows` of them; without memory yet.
    pub(crate) fn new(row_bytes: usize, rows: u64, kind: PolicyKind, served: u32) -> RowCache {
        RowCache {
            row_bytes,
            kind,
            chunk_shift: 0,
            chunks: Vec::new(),
            rows: Vec::new(),
            is_hot: Vec::new(),
            changed_at: Vec::new(),
            changed: 0,
            pinned: 0,
            vacant: Vec::new(),
            index: Index {
                entries: Buf::default(),
                shift: 0,
                is_wide: rows > 1 << 32,
            },
            policy: LookAhead::new(kind.policy(0)),
            epoch: 0,
            served,
        }
    }

    /// Bytes that a row takes with its part of all tables.
    pub(crate) fn row_cost(row_bytes: usize, kind: PolicyKind) -> u64 {
        row_bytes as u64 + INDEX_BYTES + kind.slot_bytes() + SLOT_BYTES
    }

    /// Rows that it has room for.
    pub(crate) fn slots(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Rows that are in it.
    pub(crate) fn len(&self) -> u32 {
        self.slots() - self.vacant.len() as u32
    }

    /// The least number of slots for the rows that stay.
    pub(crate) fn slots_min(&self) -> u64 {
        u64::from(self.pinned).next_multiple_of(1 << self.chunk_shift)
    }

    /// Whether the row of a slot may not go: it is to stay whatever comes, or is not written as it is.
    fn stays(&self, slot: usize) -> bool {
        self.is_hot[slot] || self.changed_at[slot] != 0
    }

    /// Gives it this much memory, its tables included, for at most `rows` rows, but room for those that stay in any
    /// case. Others that have no room any more go. Less memory than the system has left makes it smaller.
    pub(crate) fn set_bytes(&mut self, bytes: u64, rows: u64) {
        let slots = (bytes / RowCache::row_cost(self.row_bytes, self.kind))
            .min(rows)
            .min(u64::from(NO_SLOT - 1));
        let most = (CHUNK_BYTES / self.row_bytes as u64).max(1);
        let shift = (slots / CHUNKS_MIN).clamp(1, most).ilog2();
        let suits = (CHUNKS_MIN / 2..=CHUNKS_MAX).contains(&(slots >> self.chunk_shift));
        let slots_min = self.slots_min();
        if self.chunks.is_empty() || (!suits && shift != self.chunk_shift && slots_min == 0) {
            // Chunks of another length: too long for what is left, or too short for what was added.
            while !self.chunks.is_empty() {
                self.shrink();
            }
            self.chunk_shift = shift;
        }
        let count = (slots.max(slots_min) >> self.chunk_shift) as usize;
        self.keep_before(count << self.chunk_shift);
        while self.chunks.len() > count {
            self.shrink();
        }
        while self.chunks.len() < count {
            let Ok(chunk) = Buf::not_inherited(self.row_bytes << self.chunk_shift) else {
                break;
            };
            self.chunks.push(chunk);
        }
        self.grow();
    }

    /// Takes away the last chunk, from which rows that stay have moved.
    fn shrink(&mut self) {
        let left = self.chunks.len().saturating_sub(1) << self.chunk_shift;
        self.chunks.pop();
        self.epoch += 1;
        for slot in left..self.rows.len() {
            assert!(!self.stays(slot), "rows that stay have no room");
            if self.rows[slot] != NO_ROW {
                self.index.remove(self.rows[slot], &self.rows);
            }
        }
        self.rows.truncate(left);
        self.is_hot.truncate(left);
        self.changed_at.truncate(left);
        self.vacant.retain(|&slot| (slot as usize) < left);
        self.policy.resize(left as u32);
    }

    /// Moves the rows that stay to slots before `end`, as far as there are any that have none of these.
    fn keep_before(&mut self, end: usize) {
        let mut slots = 0..end;
        for from in end..self.rows.len() {
            if !self.stays(from) {
                continue;
            }
            let Some(to) = slots.find(|&slot| !self.stays(slot)) else {
                return;
            };
            let bytes = self.row(from as u32).to_vec();
            self.row_mut(to as u32).copy_from_slice(&bytes);
            if self.rows[to] != NO_ROW {
                self.index.remove(self.rows[to], &self.rows);
                self.policy.removed(to as u32);
            }
            let row = self.rows[from];
            self.index.remove(row, &self.rows);
            self.policy.removed(from as u32);
            (self.rows[from], self.rows[to]) = (NO_ROW, row);
            self.is_hot[to] = std::mem::take(&mut self.is_hot[from]);
            self.changed_at[to] = std::mem::take(&mut self.changed_at[from]);
            self.index.insert(row, to as u32);
            self.policy.admitted(to as u32, row);
        }
        let rows = &self.rows;
        (self.vacant).retain(|&slot| rows[slot as usize] == NO_ROW);
    }

    /// Slots for the chunks that were added, unless the system has no memory for the index of them.
    fn grow(&mut self) {
        let (before, mut slots) = (self.rows.len(), self.chunks.len() << self.chunk_shift);
        self.rows.resize(slots, NO_ROW);
        if !self.index.resize(slots, &self.rows) {
            slots = before;
            self.chunks.truncate(slots >> self.chunk_shift);
            self.rows.truncate(slots);
        }
        self.is_hot.resize(slots, false);
        self.changed_at.resize(slots, 0);
        self.vacant.extend((before as u32..slots as u32).rev());
        self.policy.resize(slots as u32);
    }

    /// The chunk of a slot, and where it begins there.
    fn find_slot(&self, slot: u32) -> (usize, usize) {
        let number = slot & ((1 << self.chunk_shift) - 1);
        (
            (slot >> self.chunk_shift) as usize,
            number as usize * self.row_bytes,
        )
    }

    /// The bytes of a slot's row.
    pub(crate) fn row(&self, slot: u32) -> &[u8] {
        let (chunk, at) = self.find_slot(slot);
        &self.chunks[chunk][at..at + self.row_bytes]
    }

    fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        let (chunk, at) = self.find_slot(slot);
        &mut self.chunks[chunk][at..at + self.row_bytes]
    }

    /// Whether it has rows of this table; a look-up that began before another one took its place finds none.
    pub(crate) fn is_of(&self, served: u32) -> bool {
        self.served == served
    }

    /// The slot of each row, [`NO_SLOT`] for one that is not here.
    pub(crate) fn find_all(&self, served: u32, rows: &[u64], slots: &mut Vec<u32>) {
        slots.clear();
        if self.rows.is_empty() || !self.is_of(served) {
            return slots.resize(rows.len(), NO_SLOT);
        }
        for &row in &rows[..AHEAD.min(rows.len())] {
            self.index.touch(row);
        }
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&later) = rows.get(at + AHEAD) {
                self.index.touch(later);
            }
            slots.push(self.index.find(row, &self.rows));
        }
    }

    pub(crate) fn find(&self, row: u64) -> u32 {
        match self.rows.is_empty() {
            true => NO_SLOT,
            false => self.index.find(row, &self.rows),
        }
    }

    /// What slots that are found now are good for: notes of their use.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes what was used, by slots as they were found at this epoch; one that has another row by now counts
    /// as used too.
    pub(crate) fn used(&mut self, epoch: u64, slots: &[u32]) {
        if epoch == self.epoch {
            self.policy.used_all(slots);
        }
    }

    /// Takes a row in, if there is room for it or one that is worth less.
    pub(crate) fn insert(&mut self, row: u64, bytes: &[u8]) {
        if self.find(row) != NO_SLOT {
            return;
        }
        if self.rows.is_empty() {
            return;
        }
        // To find that none may be evicted costs a look at every slot.
        if self.vacant.is_empty() && self.pinned == self.slots() {
            return;
        }
        let Some(slot) = self.vacant.pop().or_else(|| self.evict_for(row)) else {
            return;
        };
        self.row_mut(slot).copy_from_slice(bytes);
        self.rows[slot as usize] = row;
        self.index.insert(row, slot);
        self.policy.admitted(slot, row);
    }

    fn evict_for(&mut self, row: u64) -> Option<u32> {
        let (is_hot, changed_at) = (&self.is_hot, &self.changed_at);
        let slot = self.policy.evict_for(row, &mut |slot| {
            !is_hot[slot as usize] && changed_at[slot as usize] == 0
        })?;
        self.index.remove(self.rows[slot as usize], &self.rows);
        Some(slot)
    }

    /// Rows that are here stay whatever comes.
    pub(crate) fn keep(&mut self, row: u64) -> bool {
        let slot = self.find(row);
        if slot != NO_SLOT {
            let was_hot = std::mem::replace(&mut self.is_hot[slot as usize], true);
            self.pinned += u32::from(!was_hot && self.changed_at[slot as usize] == 0);
        }
        slot != NO_SLOT
    }

    /// The bytes of a slot's row, to change them in this step, counted from 1. They stay until they are
    /// [written](RowCache::written).
    pub(crate) fn change(&mut self, slot: u32, step: u32) -> &mut [u8] {
        let before = std::mem::replace(&mut self.changed_at[slot as usize], step);
        self.changed += u32::from(before == 0);
        self.pinned += u32::from(before == 0 && !self.is_hot[slot as usize]);
        self.row_mut(slot)
    }

    /// Rows that are not written as they are.
    pub(crate) fn changed(&self) -> u32 {
        self.changed
    }

    /// The slots of those of them that were changed longest ago, in the order of the rows' numbers.
    pub(crate) fn changed_first(&self, count: usize) -> Vec<u32> {
        let mut slots: Vec<u32> = (0..self.slots())
            .filter(|&slot| self.changed_at[slot as usize] != 0)
            .collect();
        if count < slots.len() {
            slots.select_nth_unstable_by_key(count, |&slot| self.changed_at[slot as usize]);
            slots.truncate(count);
        }
        slots.sort_unstable_by_key(|&slot| self.number(slot));
        slots
    }

    /// The number of a slot's row.
    pub(crate) fn number(&self, slot: u32) -> u64 {
        self.rows[slot as usize]
    }

    /// The row of a slot is stored as it is here.
    pub(crate) fn written(&mut self, slot: u32) {
        let before = std::mem::replace(&mut self.changed_at[slot as usize], 0);
        self.changed -= u32::from(before != 0);
        self.pinned -= u32::from(before != 0 && !self.is_hot[slot as usize]);
    }

    /// Has rows of this table from now on: those that it has now and that are the same there. Those that
    /// were to stay and are not the same.
    pub(crate) fn serve(&mut self, served: u32, is_same: &dyn Fn(u64) -> bool) -> Vec<u64> {
        let mut to_stay = Vec::new();
        self.served = served;
        self.epoch += 1;
        for slot in 0..self.rows.len() {
            let row = self.rows[slot];
            if row != NO_ROW && !is_same(row) {
                self.index.remove(row, &self.rows);
                self.rows[slot] = NO_ROW;
                if std::mem::take(&mut self.is_hot[slot]) {
                    to_stay.push(row);
                }
                self.policy.removed(slot as u32);
                self.vacant.push(slot as u32);
            }
        }
        let slots = self.is_hot.iter().zip(&self.changed_at);
        self.pinned = slots.filter(|(hot, at)| **hot || **at != 0).count() as u32;
        to_stay
    }

    /// A row is going to be used at this time.
    pub(crate) fn will_use(&mut self, row: u64, time: u64) {
        let slot = self.find(row);
        self.policy
            .will_use(row, (slot != NO_SLOT).then_some(slot), time);
    }

    /// What is used at this time is looked up now.
    pub(crate) fn begin(&mut self, time: u64) {
        self.policy.begin(time);
    }

    /// What was to be used at this time or before was used, or will not be.
    pub(crate) fn passed(&mut self, time: u64) {
        self.policy.passed(time);
    }
}

/// Slots by row numbers: open addressing with linear probing, at most half full. An entry is the lower half
/// of the row number and the slot; where a table has more rows than that can tell, the row of the slot
/// is compared too.
struct Index {
    /// As u64; of huge pages, where there are many.
    entries: Buf,
    shift: u32,
    is_wide: bool,
}

const EMPTY: u64 = u64::MAX;

fn entry(row: u64, slot: u32) -> u64 {
    u64::from(slot) << 32 | row & 0xFFFF_FFFF
}

fn slot_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

impl Index {
    /// Room for this many slots, with the rows that are in them; false where the system has no memory.
    fn resize(&mut self, slots: usize, rows: &[u64]) -> bool {
        let len = (2 * slots).next_power_of_two().max(2);
        if len == self.entries().len() {
            return true;
        }
        let Ok(entries) = Buf::not_inherited(len * size_of::<u64>()) else {
            return false;
        };
        self.entries = entries;
        self.shift = 64 - len.trailing_zeros();
        self.clear();
        for (slot, &row) in rows.iter().enumerate().filter(|(_, row)| **row != NO_ROW) {
            self.insert(row, slot as u32);
        }
        true
    }

    fn entries(&self) -> &[u64] {
        bytemuck::cast_slice(&self.entries)
    }

    fn entries_mut(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.entries)
    }

    fn clear(&mut self) {
        self.entries_mut().fill(EMPTY);
    }

    /// Fibonacci hashing: the upper bits of a product with 2^64 over the golden ratio.
    fn home(&self, row: u64) -> usize {
        (row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    fn touch(&self, row: u64) {
        fetch_from(self.entries(), self.home(row));
    }

    /// The place of a row's entry, or the empty one where it would be.
    fn place(&self, row: u64, rows: &[u64]) -> usize {
        let entries = self.entries();
        let mut at = self.home(row);
        loop {
            let found = entries[at];
            let is_same = found as u32 == row as u32
                && (!self.is_wide || found == EMPTY || rows[slot_of(found) as usize] == row);
            if found == EMPTY || is_same {
                return at;
            }
            at = (at + 1) & (entries.len() - 1);
        }
    }

    fn find(&self, row: u64, rows: &[u64]) -> u32 {
        slot_of(self.entries()[self.place(row, rows)])
    }

    /// A row that is not there yet.
    fn insert(&mut self, row: u64, slot: u32) {
        let mut at = self.home(row);
        let entries = self.entries_mut();
        while entries[at] != EMPTY {
            at = (at + 1) & (entries.len() - 1);
        }
        entries[at] = entry(row, slot);
    }

    /// Empties the place of a row, and moves up those behind it that would not be found any more.
    fn remove(&mut self, row: u64, rows: &[u64]) {
        let mut hole = self.place(row, rows);
        if self.entries()[hole] == EMPTY {
            return;
        }
        let mask = self.entries().len() - 1;
        let mut at = (hole + 1) & mask;
        loop {
            let next = self.entries()[at];
            if next == EMPTY {
                break;
            }
            let home = self.home(rows[slot_of(next) as usize]);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries_mut()[hole] = next;
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.entries_mut()[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const ROW: usize = 24;

    fn bytes_of(row: u64) -> Vec<u8> {
        (0..ROW as u64).map(|at| (row * 31 + at) as u8).collect()
    }

    fn cache(rows: u64, kind: PolicyKind) -> RowCache {
        let mut cache = RowCache::new(ROW, 1 << 40, kind, 0);
        cache.set_bytes(rows * RowCache::row_cost(ROW, kind), u64::MAX);
        cache
    }

    fn check(cache: &RowCache) -> HashMap<u64, u32> {
        let mut found = HashMap::new();
        for (slot, &row) in cache
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| **row != NO_ROW)
        {
            assert_eq!(cache.find(row), slot as u32);
            assert_eq!(cache.row(slot as u32), bytes_of(row));
            assert!(found.insert(row, slot as u32).is_none());
        }
        assert_eq!(found.len(), cache.len() as usize);
        found
    }

    proptest! {
        #[test]
        fn every_row_is_found_where_it_was_put(
            rows in proptest::collection::vec(0u64..200, 0..600),
            sizes in proptest::collection::vec(0u64..90, 1..5),
            kind in 0usize..2,
        ) {
            let mut cache = RowCache::new(ROW, 1 << (20 + 20 * kind), PolicyKind::ALL[kind], 0);
            let cost = RowCache::row_cost(ROW, PolicyKind::ALL[kind]);
            let part = rows.len() / sizes.len() + 1;
            for (rows, size) in rows.chunks(part).zip(sizes) {
                cache.set_bytes(size * cost, 1000);
                for &row in rows {
                    cache.insert(row * 1_000_003, &bytes_of(row * 1_000_003));
                    let slot = cache.find(row * 1_000_003);
                    if slot != NO_SLOT {
                        cache.used(cache.epoch(), &[slot]);
                    }
                }
                let found = check(&cache);
                prop_assert!(found.len() as u64 <= size);
            }
        }
    }

    #[test]
    fn a_share_that_changes_much_keeps_room() {
        let mut cache = RowCache::new(ROW, 1 << 40, PolicyKind::S3Fifo, 0);
        let cost = RowCache::row_cost(ROW, PolicyKind::S3Fifo);
        for rows in [1 << 20, 100, 1, 3 << 20, 7, 0, 50] {
            cache.set_bytes(rows * cost, u64::MAX);
            let slots = u64::from(cache.slots());
            assert!(
                slots <= rows && slots >= rows / 8 * 7,
                "{slots} slots for {rows} rows"
            );
            assert!(cache.chunks.len() as u64 <= CHUNKS_MAX);
            (0..200).for_each(|row| cache.insert(row, &bytes_of(row)));
            check(&cache);
        }
    }

    #[test]
    fn hot_rows_stay() {
        let mut cache = cache(64, PolicyKind::S3Fifo);
        (0..10).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..10).all(|row| cache.keep(row)));
        (10..10_000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..10).all(|row| cache.find(row) != NO_SLOT));
        // Where all of them stay, no other comes in.
        let all = check(&cache);
        assert!(all.keys().all(|&row| cache.keep(row)));
        (20_000..30_000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert_eq!(check(&cache), all);
        assert_eq!(cache.pinned, cache.slots());
    }

    #[test]
    fn rows_that_are_known_to_come_outlast_others() {
        let mut cache = cache(64, PolicyKind::Lru);
        (0..8).for_each(|row| cache.insert(row, &bytes_of(row)));
        (0..8).for_each(|row| cache.will_use(row, 5));
        (100..1000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..8).all(|row| cache.find(row) != NO_SLOT));
        cache.passed(5);
        (1000..2000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..8).all(|row| cache.find(row) == NO_SLOT));
    }

    #[test]
    fn changed_rows_stay_until_they_are_written() {
        let mut cache = cache(64, PolicyKind::S3Fifo);
        (0..10).for_each(|row| cache.insert(row, &bytes_of(row)));
        for row in 0..10 {
            let slot = cache.find(row);
            cache
                .change(slot, 10 - row as u32)
                .copy_from_slice(&bytes_of(row));
        }
        (10..1000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert_eq!(cache.changed(), 10);
        let oldest = cache.changed_first(3);
        let oldest: Vec<u64> = oldest.iter().map(|&slot| cache.number(slot)).collect();
        assert_eq!(oldest, [7, 8, 9]);
        for slot in cache.changed_first(100) {
            cache.written(slot);
        }
        assert_eq!(cache.changed(), 0);
        (1000..2000).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..10).all(|row| cache.find(row) == NO_SLOT));
        check(&cache);
    }

    #[test]
    fn changed_rows_stay_in_a_smaller_cache() {
        for kind in PolicyKind::ALL {
            let mut cache = cache(1000, kind);
            (0..1000).for_each(|row| cache.insert(row, &bytes_of(row)));
            let mut rows: Vec<(u32, u64)> = check(&cache)
                .into_iter()
                .map(|(row, slot)| (slot, row))
                .collect();
            rows.sort_unstable();
            // The last ones, two of which are to stay besides.
            let rows = rows.split_off(rows.len() - 30);
            for (step, &(slot, row)) in (1..).zip(&rows) {
                cache.change(slot, step).copy_from_slice(&bytes_of(row));
            }
            assert!(rows[..2].iter().all(|(_, row)| cache.keep(*row)));
            for size in [600, 20, 0, 900, 3] {
                cache.set_bytes(size * RowCache::row_cost(ROW, kind), u64::MAX);
                (2000..3000).for_each(|row| cache.insert(row, &bytes_of(row)));
                let found = check(&cache);
                assert!(found.len() as u64 <= size.max(cache.slots_min()));
                let mut changed: Vec<(u32, u64)> = (cache.changed_first(100).into_iter())
                    .map(|slot| (cache.changed_at[slot as usize], cache.number(slot)))
                    .collect();
                changed.sort_unstable();
                let expected = (1..).zip(rows.iter().map(|(_, row)| *row));
                assert!(changed.into_iter().eq(expected));
            }
            cache
                .changed_first(100)
                .into_iter()
                .for_each(|slot| cache.written(slot));
            cache.set_bytes(3 * RowCache::row_cost(ROW, kind), u64::MAX);
            assert_eq!(cache.pinned, 2);
            assert!(rows[..2].iter().all(|(_, row)| cache.find(*row) != NO_SLOT));
        }
    }

    #[test]
    fn another_table_keeps_what_is_the_same() {
        let mut cache = cache(64, PolicyKind::Lru);
        (0..40).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!((0..3).all(|row| cache.keep(row)));
        assert_eq!(cache.serve(1, &|row| row % 2 == 0), [1]);
        assert!(cache.is_of(1) && !cache.is_of(0));
        let found = check(&cache);
        assert_eq!(found.len(), 20);
        assert!(found.keys().all(|row| row % 2 == 0));
        (100..200).for_each(|row| cache.insert(row, &bytes_of(row)));
        check(&cache);
    }

    #[test]
    fn many_rows_are_found_at_once() {
        let mut cache = cache(100, PolicyKind::Lru);
        (0..50).for_each(|row| cache.insert(3 * row, &bytes_of(3 * row)));
        let rows: Vec<u64> = (0..200).collect();
        let mut slots = Vec::new();
        cache.find_all(0, &rows, &mut slots);
        assert!(
            rows.iter()
                .zip(&slots)
                .all(|(&row, &slot)| slot == cache.find(row))
        );
        assert_eq!(slots.iter().filter(|slot| **slot != NO_SLOT).count(), 50);
        RowCache::new(ROW, 1000, PolicyKind::Lru, 0).find_all(0, &rows, &mut slots);
        assert!(slots.iter().all(|slot| *slot == NO_SLOT));
    }

    #[test]
    fn rows_that_stay_do_so_in_a_smaller_cache() {
        for kind in PolicyKind::ALL {
            let mut cache = cache(1000, kind);
            (0..1000).for_each(|row| cache.insert(row, &bytes_of(row)));
            let mut hot: Vec<u64> = check(&cache).into_keys().collect();
            hot.sort_unstable_by_key(|&row| cache.find(row));
            let hot = hot.split_off(hot.len() - 7);
            assert!(hot.iter().all(|&row| cache.keep(row)));
            for size in [600, 20, 0, 900, 3] {
                cache.set_bytes(size * RowCache::row_cost(ROW, kind), u64::MAX);
                (2000..3000).for_each(|row| cache.insert(row, &bytes_of(row)));
                let found = check(&cache);
                assert!(hot.iter().all(|row| found.contains_key(row)));
                assert!(found.len() as u64 <= size.max(cache.slots_min()));
            }
        }
    }
}
