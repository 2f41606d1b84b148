//! Whole runs on one extent: many may read it, one may write it.
//!
//! Inside a run, dependencies order accesses byte by byte. Between runs that go on at once this
//! table does, extent by extent: a run starts when all its extents are free for what it declares.
//! Writers stand in line: whoever comes after one that waits lets it go first, so readers who
//! follow each other without a gap do not keep it out. Only what a task starts passes the line,
//! since the run of that task may be what the line waits for.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::workers::in_task;

/// Extents by id, and whether they are written.
type Wanted = [(u64, bool)];

/// What a run wants. Dropping one that waits takes it out of the line.
pub(crate) struct Lease {
    wanted: Arc<Wanted>,
    held: bool,
    /// Since when it waits, in the order of arrival.
    place: Option<u64>,
    passes: bool,
}

impl Lease {
    /// Made on the thread of whoever starts the run.
    pub(crate) fn new(wanted: impl Iterator<Item = (u64, bool)>) -> Lease {
        Lease { wanted: wanted.collect(), held: false, place: None, passes: in_task() }
    }
}

/// Who reads (their number) and who writes.
#[derive(Default)]
pub(crate) struct Leases {
    readers: HashMap<u64, usize>,
    writers: HashMap<u64, ()>,
    /// Those that wait and want to write something.
    line: Vec<(u64, Weak<Wanted>)>,
    places: u64,
    /// Something was released since somebody last asked.
    pub(crate) released: bool,
}

impl Leases {
    /// Takes all that a lease wants, or nothing.
    pub(crate) fn acquire(&mut self, lease: &mut Lease) -> bool {
        if lease.held {
            return true;
        }
        let free = |&(id, write): &(u64, bool)| !(self.writers.contains_key(&id) || write && self.readers.contains_key(&id));
        let is_free = lease.wanted.iter().all(free);
        if !is_free || self.is_wanted(lease) {
            self.stand_in_line(lease);
            return false;
        }
        self.leave_line(lease);
        for &(id, write) in lease.wanted.iter() {
            match write {
                true => _ = self.writers.insert(id, ()),
                false => *self.readers.entry(id).or_default() += 1,
            }
        }
        lease.held = true;
        true
    }

    /// Whether a lease has to make way: a writer stands in line for something of it, before it if it waits itself.
    pub(crate) fn is_wanted(&self, lease: &Lease) -> bool {
        let before = |place: u64| !lease.passes && lease.place.is_none_or(|own| place < own);
        let mut earlier = self.line.iter().filter(|(place, _)| before(*place)).filter_map(|(_, wanted)| wanted.upgrade());
        earlier.any(|earlier| conflict(&earlier, &lease.wanted))
    }

    pub(crate) fn release(&mut self, lease: &mut Lease) {
        if !std::mem::take(&mut lease.held) {
            return;
        }
        self.released = true;
        for &(id, write) in lease.wanted.iter() {
            match (write, self.readers.get_mut(&id)) {
                (true, _) => _ = self.writers.remove(&id),
                (false, Some(count)) if *count > 1 => *count -= 1,
                (false, _) => _ = self.readers.remove(&id),
            }
        }
    }

    fn stand_in_line(&mut self, lease: &mut Lease) {
        if lease.place.is_some() {
            return;
        }
        self.places += 1;
        lease.place = Some(self.places);
        if lease.wanted.iter().any(|&(_, write)| write) {
            self.line.retain(|(_, wanted)| wanted.strong_count() > 0);
            self.line.push((self.places, Arc::downgrade(&lease.wanted)));
        }
    }

    /// For a lease that waits and does not want anything any more.
    pub(crate) fn leave_line(&mut self, lease: &mut Lease) {
        if let Some(own) = lease.place.take() {
            let before = self.line.len();
            self.line.retain(|&(place, _)| place != own);
            self.released |= self.line.len() < before;
        }
    }
}

fn conflict(one: &Wanted, other: &Wanted) -> bool {
    one.iter().any(|&(id, write)| other.iter().any(|&(other, other_write)| id == other && (write || other_write)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(wanted: &[(u64, bool)]) -> Lease {
        Lease::new(wanted.iter().copied())
    }

    #[test]
    fn readers_wait_behind_a_writer_that_waits() {
        let mut leases = Leases::default();
        let [mut first, mut second, mut third] = [0; 3].map(|_| lease(&[(1, false)]));
        let (mut writer, mut elsewhere) = (lease(&[(1, true), (2, false)]), lease(&[(2, false)]));
        assert!(leases.acquire(&mut first) && !leases.is_wanted(&first));
        assert!(!leases.acquire(&mut writer) && leases.is_wanted(&first));
        assert!(!leases.acquire(&mut second) && leases.acquire(&mut elsewhere));
        leases.release(&mut first);
        assert!(!leases.acquire(&mut second) && leases.acquire(&mut writer) && !leases.acquire(&mut third));
        let mut next = lease(&[(1, true)]);
        assert!(!leases.acquire(&mut next));
        leases.release(&mut writer);
        assert!(leases.acquire(&mut second) && leases.acquire(&mut third), "they came before the second writer");
        assert!(!leases.acquire(&mut first), "it comes again, behind the second writer");
        drop(next);
        assert!(leases.acquire(&mut first));
    }

    #[test]
    fn what_a_task_starts_passes_the_line() {
        let mut leases = Leases::default();
        let (mut parent, mut writer) = (lease(&[(1, false)]), lease(&[(1, true)]));
        let mut child = Lease { passes: true, ..lease(&[(1, false)]) };
        assert!(leases.acquire(&mut parent) && !leases.acquire(&mut writer));
        assert!(leases.is_wanted(&parent) && leases.acquire(&mut child) && !leases.is_wanted(&child));
    }

    #[test]
    fn whoever_gives_up_makes_way() {
        let mut leases = Leases::default();
        let [mut first, mut second] = [0; 2].map(|_| lease(&[(1, false)]));
        let mut writer = lease(&[(1, true)]);
        assert!(leases.acquire(&mut first) && !leases.acquire(&mut writer) && !leases.acquire(&mut second));
        leases.leave_line(&mut writer);
        assert!(std::mem::take(&mut leases.released) && leases.acquire(&mut second));
    }
}
