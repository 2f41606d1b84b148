//! Keys that were dropped not long ago.
//!
//! ```text
//! ring:  | key | key | ...      by number of the drop, modulo a power of two
//! index: | number or EMPTY ...  twice as long; open addressing by the hash of the key
//! ```
//! Exact: the last `limit` drops, less those that returned. Invariant: every entry of the index is
//! the number of a drop among the last `limit`, and finding its key from the key's home meets no
//! empty place before it.

use super::keys::mix;

const EMPTY: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Ghosts {
    ring: Vec<u64>,
    index: Vec<u32>,
    limit: u32,
    /// Places of the ring that were written last, whether or not their keys returned.
    len: u32,
    /// Where the next key goes.
    next: u32,
}

impl Ghosts {
    /// Remembers this many drops from now on, as soon as there were so many.
    pub(super) fn resize(&mut self, limit: u32) {
        while self.len > limit {
            self.drop_oldest();
        }
        self.limit = limit;
        let places = (limit as usize).next_power_of_two();
        if places > self.ring.len() || places * 4 <= self.ring.len() {
            self.rebuild(places);
        }
    }

    pub(super) fn add(&mut self, key: u64) {
        if self.limit == 0 {
            return;
        }
        self.take(key);
        if self.len == self.limit {
            self.drop_oldest();
        }
        self.ring[self.next as usize] = key;
        let place = self.find(key);
        self.index[place] = self.next;
        self.next = self.after(self.next, 1);
        self.len += 1;
    }

    /// Forgets a key; whether it was known.
    pub(super) fn take(&mut self, key: u64) -> bool {
        if self.len == 0 {
            return false;
        }
        let place = self.find(key);
        let known = self.index[place] != EMPTY;
        if known {
            self.vacate(place);
        }
        known
    }

    fn drop_oldest(&mut self) {
        let oldest = self.oldest();
        let place = self.find(self.ring[oldest as usize]);
        // Its key may have returned, and have been dropped again.
        if self.index[place] == oldest {
            self.vacate(place);
        }
        self.len -= 1;
    }

    fn oldest(&self) -> u32 {
        self.after(self.next, self.ring.len() as u32 - self.len)
    }

    fn after(&self, place: u32, by: u32) -> u32 {
        ((place as usize + by as usize) & (self.ring.len() - 1)) as u32
    }

    fn home(&self, key: u64) -> usize {
        mix(key) as usize & (self.index.len() - 1)
    }

    /// The place of the key in the index, or the empty one where it would be.
    fn find(&self, key: u64) -> usize {
        let mut place = self.home(key);
        while self.index[place] != EMPTY && self.ring[self.index[place] as usize] != key {
            place = (place + 1) & (self.index.len() - 1);
        }
        place
    }

    /// Empties a place of the index, and moves up what would no longer be found (Knuth, TAOCP 3,
    /// 6.4, algorithm R).
    fn vacate(&mut self, mut hole: usize) {
        let mask = self.index.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let number = self.index[place];
            if number == EMPTY {
                break;
            }
            let home = self.home(self.ring[number as usize]);
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.index[hole] = number;
                hole = place;
            }
        }
        self.index[hole] = EMPTY;
    }

    fn rebuild(&mut self, places: usize) {
        let old = std::mem::replace(self, Ghosts::with_places(places, self.limit));
        for age in (1..=old.len).rev() {
            let number = old.after(old.next, old.ring.len() as u32 - age);
            let key = old.ring[number as usize];
            if old.index[old.find(key)] == number {
                self.add(key);
            }
        }
    }

    fn with_places(places: usize, limit: u32) -> Ghosts {
        Ghosts {
            ring: vec![0; places],
            index: vec![EMPTY; places * 2],
            limit,
            len: 0,
            next: 0,
        }
    }
}
