//! Idle blocks: in use by no task, kept in case their bytes are read again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;

use outcore_device::Shared;

use crate::region::Region;

/// How many of the oldest blocks are searched for one of the wanted frame size.
const NEXT_TO_GO: usize = 64;

/// Extent, its version, and region.
pub(crate) type IdleKey = (u64, u64, Region);

/// Clean idle blocks, evicted oldest first.
#[derive(Default)]
pub(super) struct Idle {
    pub(super) blocks: HashMap<IdleKey, (u64, Shared)>,
    /// Handles of the extents that have blocks here.
    pub(super) lives: HashMap<u64, Weak<()>>,
    by_age: BTreeMap<u64, IdleKey>,
    clock: u64,
    pub(super) bytes: u64,
}

impl Idle {
    pub(super) fn insert(&mut self, key: IdleKey, block: Shared) -> Option<Shared> {
        let old = self.remove(&key);
        self.clock += 1;
        self.bytes += block.len() as u64;
        self.by_age.insert(self.clock, key);
        self.blocks.insert(key, (self.clock, block));
        old
    }

    pub(super) fn remove(&mut self, key: &IdleKey) -> Option<Shared> {
        let (age, block) = self.blocks.remove(key)?;
        self.by_age.remove(&age);
        self.bytes -= block.len() as u64;
        Some(block)
    }

    /// The oldest block of a length among those that are evicted next.
    pub(super) fn pop_oldest_of(&mut self, len: usize) -> Option<Shared> {
        let key = self
            .by_age
            .values()
            .take(NEXT_TO_GO)
            .find(|key| self.blocks[key].1.len() == len)
            .copied()?;
        self.remove(&key)
    }

    pub(super) fn pop_oldest(&mut self) -> Option<Shared> {
        let (_, key) = self.by_age.first_key_value()?;
        self.remove(&{ *key })
    }
}
