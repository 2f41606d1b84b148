//! Idle blocks: in use by no task, kept in case their bytes are read again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Weak;

use outcore_device::Shared;

use crate::region::Region;

/// How many of the oldest blocks are searched for one of the wanted frame size.
const NEXT_TO_GO: usize = 64;

/// Extent and region.
pub(crate) type IdleKey = (u64, Region);

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

    /// The blocks of an extent with any of these bytes, which are in order.
    pub(super) fn remove_touched(&mut self, extent: u64, written: &[Range<u64>]) -> Vec<Shared> {
        if !self.lives.contains_key(&extent) {
            return Vec::new();
        }
        let is_touched = |region: &Region| {
            let first = written.partition_point(|bytes| bytes.end <= region.offset);
            let near = written[first..]
                .iter()
                .take_while(|bytes| bytes.start < region.end());
            region.is_empty() || near.into_iter().any(|bytes| region.touches(bytes))
        };
        let touched = |key: &&IdleKey| key.0 == extent && is_touched(&key.1);
        let keys: Vec<IdleKey> = self.blocks.keys().filter(touched).copied().collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The oldest of a length, if one is among those that are next to go.
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
