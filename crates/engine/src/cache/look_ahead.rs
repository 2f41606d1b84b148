//! Eviction by known next use (Belady, IBM Systems Journal 1966).
//!
//! Where the next accesses are known, what has no known use goes first, in the order of another
//! policy; then what is used last. With all accesses known this is optimal. Slots with a known use
//! are taken out of the other policy, and return to it as new when their last known use has passed,
//! so that each call costs O(log n) amortised, whatever part of the slots is known.

use std::collections::{BinaryHeap, VecDeque};

use super::Policy;
use super::keys::KeyMap;

/// The time of the next use of a slot whose use is not known.
const UNKNOWN: u64 = u64::MAX;
/// Of the number of a use: there is none.
const NO_USE: u64 = u64::MAX;
const NO_SLOT: u32 = u32::MAX;
/// More uses of a known slot than the policy of the unknown ones is told of.
const USES_MAX: u8 = 4;

/// Announcements whose memory is kept.
const KEPT: usize = 1 << 12;

/// A policy that is told of accesses before they happen.
///
/// Times are the caller's: numbers of batches, or of single accesses.
///
/// ```
/// use outcore_engine::cache::{LookAhead, Lru, Policy};
///
/// let mut policy = LookAhead::new(Lru::new(3));
/// for (slot, key) in [(0, 70), (1, 71), (2, 72)] {
///     policy.admitted(slot, key);
/// }
/// policy.will_use(70, Some(0), 1);
/// policy.will_use(71, Some(1), 2);
/// assert_eq!(policy.evict(&mut |_| true), Some(2), "has no known use");
/// assert_eq!(policy.evict(&mut |_| true), Some(1), "is used last");
/// assert_eq!(policy.next_use(71), Some(2));
/// policy.passed(2);
/// assert_eq!(policy.next_use(71), None);
/// ```
pub struct LookAhead<P> {
    unknown: P,
    slots: Vec<Slot>,
    /// Announced uses in the order of their times; the number of the front is `first`.
    uses: VecDeque<Use>,
    first: u64,
    keys: KeyMap<Known>,
    /// Uses at this time and before are going on or over.
    begun: Option<u64>,
    /// Next uses of known slots. An entry is stale unless it is what its slot says.
    farthest: BinaryHeap<(u64, u32)>,
    known_slots: usize,
}

struct Use {
    time: u64,
    key: u64,
    /// Number of the next use of this key.
    next: u64,
}

/// A key with uses to come.
struct Known {
    /// Numbers of its first and last use.
    first: u64,
    last: u64,
    slot: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    next_use: u64,
    /// Since its use is known, beyond the one that it was admitted for.
    uses: u8,
    is_new: bool,
}

const VACANT: Slot = Slot {
    key: 0,
    next_use: UNKNOWN,
    uses: 0,
    is_new: false,
};

impl<P: Policy> LookAhead<P> {
    /// The policy of slots with no known use; all its slots are vacant.
    pub fn new(unknown: P) -> LookAhead<P> {
        LookAhead {
            unknown,
            slots: Vec::new(),
            uses: VecDeque::new(),
            first: 0,
            keys: KeyMap::default(),
            begun: None,
            farthest: BinaryHeap::new(),
            known_slots: 0,
        }
    }

    /// A key will be used at this time; `slot` is where it is, if it is in the cache.
    ///
    /// Uses are announced in the order of their times; an earlier time counts as that of the last
    /// announcement. Several uses of a key at one time are one.
    pub fn will_use(&mut self, key: u64, slot: Option<u32>, time: u64) {
        let time = self.uses.back().map_or(time, |last| last.time.max(time));
        let time = time.min(UNKNOWN - 1);
        let number = self.first + self.uses.len() as u64;
        if let Some(known) = self.keys.get_mut(&key) {
            let last = &mut self.uses[(known.last - self.first) as usize];
            if last.time == time {
                return;
            }
            last.next = number;
            known.last = number;
        } else {
            let slot = slot.unwrap_or(NO_SLOT);
            self.keys.insert(
                key,
                Known {
                    first: number,
                    last: number,
                    slot,
                },
            );
            if slot != NO_SLOT {
                self.unknown.removed(slot);
                self.know(slot, key, time, false);
            }
        }
        self.uses.push_back(Use {
            time,
            key,
            next: NO_USE,
        });
    }

    /// The uses at this time are going on: what a newcomer is worth to them is over once it is read.
    pub fn begin(&mut self, time: u64) {
        self.begun = self.begun.max(Some(time));
    }

    /// The uses at this time and before are over, or will not happen; called after
    /// [`used`](Policy::used) for those of that time.
    pub fn passed(&mut self, time: u64) {
        while self.uses.front().is_some_and(|first| first.time <= time) {
            let Some(over) = self.uses.pop_front() else {
                break;
            };
            self.first += 1;
            let Some(known) = self.keys.get_mut(&over.key) else {
                continue;
            };
            let slot = known.slot;
            if over.next == NO_USE {
                self.keys.remove(&over.key);
                if slot != NO_SLOT {
                    self.forget(slot);
                }
            } else {
                known.first = over.next;
                if slot != NO_SLOT {
                    let next_use = self.uses[(over.next - self.first) as usize].time;
                    self.slots[slot as usize].next_use = next_use;
                    self.farthest.push((next_use, slot));
                }
            }
        }
        if self.farthest.len() > 2 * self.known_slots + 64 {
            let slots = &self.slots;
            self.farthest
                .retain(|&(time, slot)| slots[slot as usize].next_use == time);
        }
        self.give_back();
    }

    /// Memory goes with the announcements that took it, but not in every round of some that come and go.
    fn give_back(&mut self) {
        let is_much = |capacity: usize, len: usize| capacity > 4 * len + KEPT;
        if is_much(self.uses.capacity(), self.uses.len()) {
            self.uses.shrink_to(2 * self.uses.len());
        }
        if is_much(self.keys.capacity(), self.keys.len()) {
            self.keys.shrink_to(2 * self.keys.len());
        }
        if is_much(self.farthest.capacity(), self.farthest.len()) {
            self.farthest.shrink_to(2 * self.farthest.len());
        }
    }

    /// When a key is used next, if that is known.
    pub fn next_use(&self, key: u64) -> Option<u64> {
        let known = self.keys.get(&key)?;
        Some(self.uses[(known.first - self.first) as usize].time)
    }

    /// The time of the first use of a key after those that are going on.
    fn use_to_come(&self, key: u64) -> u64 {
        let mut number = self.keys.get(&key).map_or(NO_USE, |known| known.first);
        while number != NO_USE {
            let found = &self.uses[(number - self.first) as usize];
            if Some(found.time) > self.begun {
                return found.time;
            }
            number = found.next;
        }
        UNKNOWN
    }

    /// [`evict`](Policy::evict) for a newcomer: `None` also where every slot that could be evicted
    /// is used before the newcomer, which then is better not admitted.
    pub fn evict_for(&mut self, key: u64, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let next_use = self.use_to_come(key);
        self.unknown
            .evict(may_evict)
            .or_else(|| self.evict_known(Some(next_use), may_evict))
    }

    /// Of the slots whose next use is after `after`, the one that is used last.
    fn evict_known(
        &mut self,
        after: Option<u64>,
        may_evict: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut passed_over = Vec::new();
        let mut found = None;
        while let Some(entry) = self.farthest.pop() {
            let (time, slot) = entry;
            if self.slots[slot as usize].next_use != time {
                continue;
            }
            let is_before = Some(time) <= after;
            if !is_before && may_evict(slot) {
                found = Some(slot);
                break;
            }
            passed_over.push(entry);
            if is_before {
                break;
            }
        }
        self.farthest.extend(passed_over);
        self.vacate(found?);
        found
    }

    fn know(&mut self, slot: u32, key: u64, next_use: u64, is_new: bool) {
        self.known_slots += 1;
        self.farthest.push((next_use, slot));
        *self.slot(slot) = Slot {
            key,
            next_use,
            uses: 0,
            is_new,
        };
    }

    /// The last known use of a slot is over.
    fn forget(&mut self, slot: u32) {
        let Slot { key, uses, .. } = std::mem::replace(self.slot(slot), VACANT);
        self.known_slots -= 1;
        self.unknown.admitted(slot, key);
        (0..uses).for_each(|_| self.unknown.used(slot));
    }

    /// A slot with a known use is emptied; the uses of its key stay known.
    fn vacate(&mut self, slot: u32) {
        let Slot { key, .. } = std::mem::replace(self.slot(slot), VACANT);
        self.known_slots -= 1;
        if let Some(known) = self.keys.get_mut(&key) {
            known.slot = NO_SLOT;
        }
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, VACANT);
        }
        &mut self.slots[slot]
    }

    fn is_known(&self, slot: u32) -> bool {
        let state = self.slots.get(slot as usize);
        state.is_some_and(|state| state.next_use != UNKNOWN)
    }
}

impl<P: Policy> Policy for LookAhead<P> {
    fn admitted(&mut self, slot: u32, key: u64) {
        match self.keys.get_mut(&key) {
            Some(known) => {
                known.slot = slot;
                let next_use = self.uses[(known.first - self.first) as usize].time;
                self.know(slot, key, next_use, true);
            }
            None => self.unknown.admitted(slot, key),
        }
    }

    fn used_all(&mut self, slots: &[u32]) {
        match self.known_slots {
            0 => self.unknown.used_all(slots),
            _ => slots.iter().for_each(|&slot| self.used(slot)),
        }
    }

    fn used(&mut self, slot: u32) {
        if !self.is_known(slot) {
            return self.unknown.used(slot);
        }
        let state = self.slot(slot);
        if state.is_new {
            state.is_new = false;
        } else if state.uses < USES_MAX {
            state.uses += 1;
        }
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        self.unknown
            .evict(may_evict)
            .or_else(|| self.evict_known(None, may_evict))
    }

    fn removed(&mut self, slot: u32) {
        if self.is_known(slot) {
            self.vacate(slot);
        } else {
            self.unknown.removed(slot);
        }
    }

    fn resize(&mut self, slots: u32) {
        for slot in slots..self.slots.len() as u32 {
            if self.is_known(slot) {
                self.vacate(slot);
            }
        }
        self.slots.truncate(slots as usize);
        self.farthest.retain(|&(_, slot)| slot < slots);
        self.unknown.resize(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Lru;

    #[test]
    fn memory_of_announcements_goes_with_them() {
        let mut policy = LookAhead::new(Lru::new(0));
        (0..100_000).for_each(|key| policy.will_use(key, None, key / 1000));
        policy.passed(1000);
        assert!(policy.uses.capacity() + policy.keys.capacity() < 4 * KEPT);
    }
}
