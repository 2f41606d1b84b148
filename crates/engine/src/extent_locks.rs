//! Whole runs on one extent: many may read it, one may write it.
//!
//! Inside a run, dependencies order accesses byte by byte. Between runs that go on at once this
//! table does, extent by extent: a run starts when all its extents are free for what it declares.
//! Writers stand in line: runs that come after a waiting writer wait behind it, so a sequence of
//! readers without a gap does not starve it. Only what a task starts passes the line, since the run
//! of that task may be what the line waits for.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::workers::in_task;

/// Extents by id, and whether they are written.
type Wanted = [(u64, bool)];

/// What a run wants. Dropping one that waits takes it out of the line.
pub(crate) struct ExtentLock {
    wanted: Arc<Wanted>,
    held: bool,
    /// Since when it waits, in the order of arrival.
    place: Option<u64>,
    passes: bool,
}

impl ExtentLock {
    /// Made on the thread that starts the run.
    pub(crate) fn new(wanted: impl Iterator<Item = (u64, bool)>) -> ExtentLock {
        ExtentLock {
            wanted: wanted.collect(),
            held: false,
            place: None,
            passes: in_task(),
        }
    }
}

/// Who reads (their number) and who writes.
#[derive(Default)]
pub(crate) struct ExtentLocks {
    readers: HashMap<u64, usize>,
    writers: HashMap<u64, ()>,
    /// Those that wait and want to write something.
    line: Vec<(u64, Weak<Wanted>)>,
    places: u64,
    /// Something was released since this was last read.
    pub(crate) released: bool,
}

impl ExtentLocks {
    /// Takes all that a lock wants, or nothing.
    pub(crate) fn acquire(&mut self, extent_lock: &mut ExtentLock) -> bool {
        if extent_lock.held {
            return true;
        }
        let free = |&(id, write): &(u64, bool)| {
            !(self.writers.contains_key(&id) || write && self.readers.contains_key(&id))
        };
        let is_free = extent_lock.wanted.iter().all(free);
        if !is_free || self.is_wanted(extent_lock) {
            self.stand_in_line(extent_lock);
            return false;
        }
        self.leave_line(extent_lock);
        for &(id, write) in extent_lock.wanted.iter() {
            match write {
                true => _ = self.writers.insert(id, ()),
                false => *self.readers.entry(id).or_default() += 1,
            }
        }
        extent_lock.held = true;
        true
    }

    /// Whether a lock has to make way: a writer stands in line for something of it, before it if it
    /// waits itself.
    pub(crate) fn is_wanted(&self, extent_lock: &ExtentLock) -> bool {
        let before =
            |place: u64| !extent_lock.passes && extent_lock.place.is_none_or(|own| place < own);
        let mut earlier = self
            .line
            .iter()
            .filter(|(place, _)| before(*place))
            .filter_map(|(_, wanted)| wanted.upgrade());
        earlier.any(|earlier| conflict(&earlier, &extent_lock.wanted))
    }

    pub(crate) fn release(&mut self, extent_lock: &mut ExtentLock) {
        if !std::mem::take(&mut extent_lock.held) {
            return;
        }
        self.released = true;
        for &(id, write) in extent_lock.wanted.iter() {
            match (write, self.readers.get_mut(&id)) {
                (true, _) => _ = self.writers.remove(&id),
                (false, Some(count)) if *count > 1 => *count -= 1,
                (false, _) => _ = self.readers.remove(&id),
            }
        }
    }

    fn stand_in_line(&mut self, extent_lock: &mut ExtentLock) {
        if extent_lock.place.is_some() {
            return;
        }
        self.places += 1;
        extent_lock.place = Some(self.places);
        if extent_lock.wanted.iter().any(|&(_, write)| write) {
            self.line.retain(|(_, wanted)| wanted.strong_count() > 0);
            self.line
                .push((self.places, Arc::downgrade(&extent_lock.wanted)));
        }
    }

    /// For a lock that waits and does not want anything any more.
    pub(crate) fn leave_line(&mut self, extent_lock: &mut ExtentLock) {
        if let Some(own) = extent_lock.place.take() {
            let before = self.line.len();
            self.line.retain(|&(place, _)| place != own);
            self.released |= self.line.len() < before;
        }
    }
}

fn conflict(one: &Wanted, other: &Wanted) -> bool {
    one.iter().any(|&(id, write)| {
        other
            .iter()
            .any(|&(other, other_write)| id == other && (write || other_write))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent_lock(wanted: &[(u64, bool)]) -> ExtentLock {
        ExtentLock::new(wanted.iter().copied())
    }

    #[test]
    fn readers_wait_behind_a_writer_that_waits() {
        let mut extent_locks = ExtentLocks::default();
        let [mut first, mut second, mut third] = [0; 3].map(|_| extent_lock(&[(1, false)]));
        let (mut writer, mut elsewhere) = (
            extent_lock(&[(1, true), (2, false)]),
            extent_lock(&[(2, false)]),
        );
        assert!(extent_locks.acquire(&mut first) && !extent_locks.is_wanted(&first));
        assert!(!extent_locks.acquire(&mut writer) && extent_locks.is_wanted(&first));
        assert!(!extent_locks.acquire(&mut second) && extent_locks.acquire(&mut elsewhere));
        extent_locks.release(&mut first);
        assert!(
            !extent_locks.acquire(&mut second)
                && extent_locks.acquire(&mut writer)
                && !extent_locks.acquire(&mut third)
        );
        let mut next = extent_lock(&[(1, true)]);
        assert!(!extent_locks.acquire(&mut next));
        extent_locks.release(&mut writer);
        assert!(
            extent_locks.acquire(&mut second) && extent_locks.acquire(&mut third),
            "they came before the second writer"
        );
        assert!(
            !extent_locks.acquire(&mut first),
            "it comes again, behind the second writer"
        );
        drop(next);
        assert!(extent_locks.acquire(&mut first));
    }

    #[test]
    fn what_a_task_starts_passes_the_line() {
        let mut extent_locks = ExtentLocks::default();
        let (mut parent, mut writer) = (extent_lock(&[(1, false)]), extent_lock(&[(1, true)]));
        let mut child = ExtentLock {
            passes: true,
            ..extent_lock(&[(1, false)])
        };
        assert!(extent_locks.acquire(&mut parent) && !extent_locks.acquire(&mut writer));
        assert!(
            extent_locks.is_wanted(&parent)
                && extent_locks.acquire(&mut child)
                && !extent_locks.is_wanted(&child)
        );
    }

    #[test]
    fn whoever_gives_up_makes_way() {
        let mut extent_locks = ExtentLocks::default();
        let [mut first, mut second] = [0; 2].map(|_| extent_lock(&[(1, false)]));
        let mut writer = extent_lock(&[(1, true)]);
        assert!(
            extent_locks.acquire(&mut first)
                && !extent_locks.acquire(&mut writer)
                && !extent_locks.acquire(&mut second)
        );
        extent_locks.leave_line(&mut writer);
        assert!(std::mem::take(&mut extent_locks.released) && extent_locks.acquire(&mut second));
    }
}
