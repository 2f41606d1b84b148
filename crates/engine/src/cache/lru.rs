//! Least recently used.

use super::Policy;
use super::lists::Lists;

/// Evicts the slot whose last use is longest ago.
pub struct Lru {
    order: Lists<1>,
}

impl Lru {
    /// For this many slots, all vacant.
    pub fn new(slots: u32) -> Lru {
        Lru {
            order: Lists::new(slots),
        }
    }
}

impl Policy for Lru {
    fn admitted(&mut self, slot: u32, _key: u64) {
        self.order.push(0, slot);
    }

    fn used(&mut self, slot: u32) {
        self.order.renew(0, slot);
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..self.order.len(0) {
            let slot = self.order.first(0)?;
            if may_evict(slot) {
                self.order.unlink(0, slot);
                return Some(slot);
            }
            self.order.renew(0, slot);
        }
        None
    }

    fn removed(&mut self, slot: u32) {
        self.order.unlink(0, slot);
    }

    fn resize(&mut self, slots: u32) {
        for slot in slots..self.order.slots() {
            if self.order.is_linked(slot) {
                self.removed(slot);
            }
        }
        self.order.resize(slots);
    }
}
