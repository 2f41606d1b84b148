//! Whole runs on one extent: many may read it, one may write it.
//!
//! Inside a run, dependencies order accesses byte by byte. Between runs that go on at once this
//! table does, extent by extent: a run starts when all its extents are free for what it declares.

use std::collections::HashMap;

/// What a run wants: extents by id, and whether it writes them.
pub(crate) struct Lease {
    wanted: Vec<(u64, bool)>,
    held: bool,
}

impl Lease {
    pub(crate) fn new(wanted: impl Iterator<Item = (u64, bool)>) -> Lease {
        Lease { wanted: wanted.collect(), held: false }
    }
}

/// Who reads (their number) and who writes.
#[derive(Default)]
pub(crate) struct Leases {
    readers: HashMap<u64, usize>,
    writers: HashMap<u64, ()>,
    /// Something was released since somebody last asked.
    pub(crate) released: bool,
}

impl Leases {
    /// Takes all that a lease wants, or nothing.
    pub(crate) fn acquire(&mut self, lease: &mut Lease) -> bool {
        let free = |&(id, write): &(u64, bool)| !(self.writers.contains_key(&id) || write && self.readers.contains_key(&id));
        if lease.held || !lease.wanted.iter().all(free) {
            return lease.held;
        }
        for &(id, write) in &lease.wanted {
            match write {
                true => _ = self.writers.insert(id, ()),
                false => *self.readers.entry(id).or_default() += 1,
            }
        }
        lease.held = true;
        true
    }

    pub(crate) fn release(&mut self, lease: &mut Lease) {
        if !std::mem::take(&mut lease.held) {
            return;
        }
        self.released = true;
        for &(id, write) in &lease.wanted {
            match (write, self.readers.get_mut(&id)) {
                (true, _) => _ = self.writers.remove(&id),
                (false, Some(count)) if *count > 1 => *count -= 1,
                (false, _) => _ = self.readers.remove(&id),
            }
        }
    }
}
