//! A cache of gathered items, in memory that no activity needs.
//!
//! Slots of like size lie in chunks, so that memory goes back to the budget a chunk at a time and
//! is counted to the byte. Each size follows S3-FIFO, so one scan displaces a tenth at most.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use outcore_device::Buf;

use crate::cache::{Policy, S3Fifo};
use crate::written::{Dated, Written};

/// Long enough to make slots out of, short enough to be given back without losing much.
const CHUNK_BYTES: usize = 256 << 10;
/// Longer items cost the device little more than one request each.
const ITEM_BYTES_MAX: usize = CHUNK_BYTES / 8;
/// A key in the slot and one in the index (40 bytes each), what the policy takes (50), and the slack
/// of all of them.
const SLOT_OVERHEAD_BYTES: usize = 256;

/// Extent, offset, length.
type Key = (u64, u64, usize);

fn is_stale(written: &Written, key: &Key, date: u64) -> bool {
    written.is_stale((key.0, date), key.1..key.1 + key.2 as u64)
}

#[derive(Default)]
pub(crate) struct Items {
    classes: BTreeMap<usize, Class>,
    bytes: u64,
}

impl Items {
    /// Held in chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies an item out; false where it is not known, or was written since.
    pub(crate) fn get(
        &mut self,
        extent: u64,
        offset: u64,
        destination: &mut [u8],
        written: &Written,
    ) -> bool {
        let Some(class) = self.classes.get_mut(&slot_bytes(destination.len())) else {
            return false;
        };
        class.get((extent, offset, destination.len()), destination, written)
    }

    /// Takes an item in, unless it was written since its date; grows by a chunk at most, and only
    /// within `room` bytes.
    pub(crate) fn put(
        &mut self,
        (extent, date): Dated,
        offset: u64,
        item: &[u8],
        room: u64,
        written: &Written,
    ) {
        let key = (extent, offset, item.len());
        if item.is_empty() || item.len() > ITEM_BYTES_MAX || is_stale(written, &key, date) {
            return;
        }
        let slot_bytes = slot_bytes(item.len());
        let class = self
            .classes
            .entry(slot_bytes)
            .or_insert_with(|| Class::new(slot_bytes));
        if class.free.is_empty() && room >= class.chunk_cost() && class.grow() {
            self.bytes += class.chunk_cost();
        }
        class.put(key, item, date, written);
    }

    /// Gives a chunk back to the system; false where there is none.
    pub(crate) fn shrink(&mut self) -> bool {
        let largest = self
            .classes
            .values_mut()
            .max_by_key(|class| class.chunks.len());
        let Some(class) = largest else { return false };
        let shrunk = class.shrink();
        if shrunk {
            self.bytes -= class.chunk_cost();
        }
        shrunk
    }

    /// Drops the items of an extent that were written since they were read; the others are as
    /// good as new.
    pub(crate) fn drop_stale(&mut self, extent: u64, written: &Written) {
        self.classes
            .values_mut()
            .for_each(|class| class.drop_stale(extent, written));
    }
}

/// Four sizes between a power of two and the next waste a fifth at most.
fn slot_bytes(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(16);
    len.next_multiple_of(step)
}

#[derive(Clone)]
struct Slot {
    key: Option<Key>,
    /// Not stale by what was written before this.
    date: u64,
}

/// Items of about one size.
struct Class {
    slot_bytes: usize,
    chunks: Vec<Buf>,
    slots: Vec<Slot>,
    index: HashMap<Key, u32>,
    free: Vec<u32>,
    policy: S3Fifo,
}

impl Class {
    fn new(slot_bytes: usize) -> Class {
        Class {
            slot_bytes,
            chunks: Vec::new(),
            slots: Vec::new(),
            index: HashMap::new(),
            free: Vec::new(),
            policy: S3Fifo::new(0),
        }
    }

    fn slots_in_chunk(&self) -> usize {
        CHUNK_BYTES / self.slot_bytes
    }

    /// Bytes that a chunk takes with its part of the tables.
    fn chunk_cost(&self) -> u64 {
        (CHUNK_BYTES + self.slots_in_chunk() * SLOT_OVERHEAD_BYTES) as u64
    }

    fn bytes_of(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let (chunk, within) = (
            slot as usize / self.slots_in_chunk(),
            slot as usize % self.slots_in_chunk(),
        );
        &mut self.chunks[chunk][within * self.slot_bytes..][..len]
    }

    fn get(&mut self, key: Key, destination: &mut [u8], written: &Written) -> bool {
        let Some(&slot) = self.index.get(&key) else {
            return false;
        };
        let state = &mut self.slots[slot as usize];
        if is_stale(written, &key, state.date) {
            return false;
        }
        state.date = written.now();
        self.policy.used(slot);
        destination.copy_from_slice(self.bytes_of(slot, key.2));
        true
    }

    fn put(&mut self, key: Key, item: &[u8], date: u64, written: &Written) {
        if let Some(&slot) = self.index.get(&key) {
            if is_stale(written, &key, self.slots[slot as usize].date) {
                self.bytes_of(slot, item.len()).copy_from_slice(item);
                self.slots[slot as usize].date = date;
            }
            return;
        }
        let Some(slot) = self.free.pop().or_else(|| self.evict()) else {
            return;
        };
        self.bytes_of(slot, item.len()).copy_from_slice(item);
        self.slots[slot as usize] = Slot {
            key: Some(key),
            date,
        };
        self.policy
            .admitted(slot, self.index.hasher().hash_one(key));
        self.index.insert(key, slot);
    }

    fn evict(&mut self) -> Option<u32> {
        let slot = self.policy.evict(&mut |_| true)?;
        Some(self.vacate(slot))
    }

    fn vacate(&mut self, slot: u32) -> u32 {
        if let Some(key) = self.slots[slot as usize].key.take() {
            self.index.remove(&key);
        }
        slot
    }

    fn grow(&mut self) -> bool {
        let Ok(chunk) = Buf::not_inherited(CHUNK_BYTES) else {
            return false;
        };
        self.chunks.push(chunk);
        let first = self.slots.len() as u32;
        self.slots.resize(
            self.chunks.len() * self.slots_in_chunk(),
            Slot { key: None, date: 0 },
        );
        self.policy.resize(self.slots.len() as u32);
        self.free.extend((first..self.slots.len() as u32).rev());
        true
    }

    fn shrink(&mut self) -> bool {
        if self.chunks.pop().is_none() {
            return false;
        }
        let left = self.chunks.len() * self.slots_in_chunk();
        for slot in left..self.slots.len() {
            self.vacate(slot as u32);
        }
        self.slots.truncate(left);
        self.policy.resize(left as u32);
        self.free.retain(|&slot| (slot as usize) < left);
        if self.index.capacity() > 3 * self.index.len() {
            self.index.shrink_to_fit();
        }
        true
    }

    fn drop_stale(&mut self, extent: u64, written: &Written) {
        for slot in 0..self.slots.len() as u32 {
            let state = &mut self.slots[slot as usize];
            let Some(key) = state.key.filter(|key| key.0 == extent) else {
                continue;
            };
            if is_stale(written, &key, state.date) {
                self.policy.removed(slot);
                self.vacate(slot);
                self.free.push(slot);
            } else {
                state.date = written.now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = (CHUNK_BYTES + CHUNK_BYTES / LEN * SLOT_OVERHEAD_BYTES) as u64;
    const LEN: usize = 4096;

    fn put(items: &mut Items, key: u64, room: u64) {
        items.put((1, 0), key, &vec![key as u8; LEN], room, &Written::new());
    }

    fn holds(items: &mut Items, key: u64) -> bool {
        let mut bytes = vec![0; LEN];
        let found = items.get(1, key, &mut bytes, &Written::new());
        assert!(!found || bytes == vec![key as u8; LEN]);
        found
    }

    #[test]
    fn a_scan_leaves_what_is_wanted_often() {
        let mut items = Items::default();
        for key in 0..40 {
            put(&mut items, key, ROOM);
        }
        (0..40).for_each(|key| assert!(holds(&mut items, key)));
        for key in 1000..3000 {
            put(&mut items, key, 0);
        }
        assert!((0..40).all(|key| holds(&mut items, key)));
        assert_eq!(items.bytes(), ROOM);
    }

    #[test]
    fn chunks_go_back_with_their_items() {
        let mut items = Items::default();
        (0..200).for_each(|key| put(&mut items, key, ROOM));
        assert_eq!(items.bytes(), 4 * ROOM);
        assert!(items.shrink() && items.shrink());
        let left = (0..200).filter(|&key| holds(&mut items, key)).count();
        assert!(left > 0 && left <= 2 * CHUNK_BYTES / LEN);
        while items.shrink() {}
        assert_eq!(items.bytes(), 0);
        put(&mut items, 5, 0);
        assert!(!holds(&mut items, 5));
    }

    #[test]
    fn a_write_throws_away_the_items_that_it_touches() {
        let device = std::sync::Arc::new(outcore_device::MemoryDevice::new("memory", 1 << 20));
        let extent = crate::extent::Extent::new("memory", device);
        let (mut items, mut written, id) = (Items::default(), Written::new(), extent.id());
        let at = |number: u64| number * LEN as u64;
        let put = |items: &mut Items, written: &Written, number, byte, date| {
            items.put((id, date), at(number), &[byte; LEN], ROOM, written);
        };
        let get = |items: &mut Items, written: &Written, number| {
            let mut bytes = [0; LEN];
            items
                .get(id, at(number), &mut bytes, written)
                .then_some(bytes[0])
        };
        (0..20).for_each(|number| put(&mut items, &written, number, 1, 0));
        written.by_others(&extent);
        written.begin();
        written.note(id, at(3) + 1..at(5) - 1);
        let known = |items: &mut Items, written: &Written| {
            (0..20)
                .filter_map(|number| get(items, written, number))
                .sum::<u8>()
        };
        assert_eq!(known(&mut items, &written), 18);
        assert_eq!(
            [3, 4].map(|number| get(&mut items, &written, number)),
            [None; 2]
        );
        put(&mut items, &written, 3, 1, 0);
        assert_eq!(
            get(&mut items, &written, 3),
            None,
            "it was read before the write"
        );
        put(&mut items, &written, 3, 2, 1);
        assert_eq!(get(&mut items, &written, 3), Some(2));
        items.drop_stale(id, &written);
        written.forget(id);
        assert_eq!(known(&mut items, &written), 20);
        assert_eq!(get(&mut items, &written, 4), None);
    }

    #[test]
    fn slots_waste_little() {
        for len in 1..=ITEM_BYTES_MAX {
            let slot = slot_bytes(len);
            assert!(
                slot >= len && (slot < len + 16 || slot * 4 <= len * 5),
                "{len} {slot}"
            );
        }
    }
}
