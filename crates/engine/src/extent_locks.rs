//! Runs that go on at once on the same bytes: many may read them, one may write them.
//!
//! Inside a run, dependencies order accesses byte by byte. Between runs that go on at once this
//! table does, by ranges of whole sectors: a run starts when all that it declares is free. Two
//! ranges that share a sector overlap here, because a sector is moved in one piece.
//!
//! Writers stand in line: runs that come after a waiting writer wait behind it, so a sequence of
//! readers without a gap does not starve it. Only what a task starts passes the line, since the run
//! of that task may be what the line waits for.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::extent::Extent;
use crate::gather_layout::GatherLayout;
use crate::workers::in_task;

/// Bytes of one extent that a run reads or writes.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) extent: Extent,
    pub(crate) write: bool,
    spans: Spans,
}

/// Ranges of whole sectors: starts ascend, and so do ends.
#[derive(Clone)]
enum Spans {
    List(Vec<Range<u64>>),
    /// Requests of a gather.
    Reads(Arc<GatherLayout>, Range<usize>),
}

impl Spans {
    fn len(&self) -> usize {
        match self {
            Spans::List(list) => list.len(),
            Spans::Reads(_, reads) => reads.len(),
        }
    }

    fn get(&self, index: usize) -> Range<u64> {
        match self {
            Spans::List(list) => list[index].clone(),
            Spans::Reads(layout, reads) => {
                let read = &layout.reads[reads.start + index];
                read.offset..read.offset + read.len as u64
            }
        }
    }

    /// The first range that ends behind `at`.
    fn first_behind(&self, at: u64) -> Option<Range<u64>> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = (from + to) / 2;
            match self.get(middle).end <= at {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        (from < self.len()).then(|| self.get(from))
    }

    fn overlap(&self, other: &Spans) -> bool {
        let (few, many) = if self.len() <= other.len() {
            (self, other)
        } else {
            (other, self)
        };
        (0..few.len()).any(|index| {
            let one = few.get(index);
            many.first_behind(one.start)
                .is_some_and(|next| next.start < one.end)
        })
    }
}

impl Claim {
    /// Of bytes in any order; whole sectors with any of them are claimed.
    pub(crate) fn new(
        extent: &Extent,
        write: bool,
        bytes: impl Iterator<Item = Range<u64>>,
    ) -> Claim {
        let sector = u64::from(extent.sector());
        let whole =
            |bytes: Range<u64>| bytes.start / sector * sector..bytes.end.next_multiple_of(sector);
        let mut all: Vec<Range<u64>> = bytes.filter(|bytes| !bytes.is_empty()).map(whole).collect();
        all.sort_unstable_by_key(|bytes| bytes.start);
        all.dedup_by(|next, before| {
            let joins = next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        all.shrink_to_fit();
        Claim {
            extent: extent.clone(),
            write,
            spans: Spans::List(all),
        }
    }

    /// Of ranges that are read, an extent each for all of its ranges.
    pub(crate) fn of_ranges<'a>(
        ranges: impl Iterator<Item = (&'a Extent, Range<u64>)>,
    ) -> impl Iterator<Item = Claim> {
        let mut by_extent: BTreeMap<u64, (&Extent, Vec<Range<u64>>)> = BTreeMap::new();
        for (extent, range) in ranges {
            let (_, all) = by_extent.entry(extent.id()).or_insert((extent, Vec::new()));
            all.push(range);
        }
        let claim = |(extent, all): (&Extent, Vec<_>)| Claim::new(extent, false, all.into_iter());
        by_extent.into_values().map(claim)
    }

    /// Of what some requests of a gather read, an extent each.
    pub(crate) fn of_reads(
        layout: &Arc<GatherLayout>,
        reads: Range<usize>,
    ) -> impl Iterator<Item = Claim> {
        let mut next = reads.start;
        std::iter::from_fn(move || {
            let number = layout.reads.get(next).filter(|_| next < reads.end)?.extent;
            let rest = &layout.reads[next..reads.end];
            let end = next + rest.partition_point(|read| read.extent == number);
            let these = std::mem::replace(&mut next, end)..end;
            Some(Claim {
                extent: layout.extents[number as usize].clone(),
                write: false,
                spans: Spans::Reads(Arc::clone(layout), these),
            })
        })
    }

    /// The ranges.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.spans.len()).map(|index| self.spans.get(index))
    }

    fn conflicts(&self, other: &Claim) -> bool {
        (self.write || other.write)
            && self.extent.id() == other.extent.id()
            && self.spans.overlap(&other.spans)
    }

    /// Whether all of `other` is in here.
    fn covers(&self, other: &Claim) -> bool {
        (self.write || !other.write)
            && self.extent.id() == other.extent.id()
            && other.spans().all(|bytes| {
                self.spans
                    .first_behind(bytes.start)
                    .is_some_and(|own| own.start <= bytes.start && bytes.end <= own.end)
            })
    }
}

type Wanted = [Claim];

/// What a run wants. Dropping one that waits takes it out of the line.
pub(crate) struct ExtentLock {
    wanted: Arc<Wanted>,
    /// By which number it is held.
    held: Option<u64>,
    /// Since when it waits, in the order of arrival.
    place: Option<u64>,
    /// The lock that was in its way.
    behind: Option<u64>,
    passes: bool,
}

impl ExtentLock {
    /// Made on the thread that starts the run.
    pub(crate) fn new(wanted: impl Iterator<Item = Claim>) -> ExtentLock {
        ExtentLock {
            wanted: wanted.collect(),
            held: None,
            place: None,
            behind: None,
            passes: in_task(),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What of it is to be written.
    pub(crate) fn writes(&self) -> impl Iterator<Item = &Claim> {
        self.wanted.iter().filter(|claim| claim.write)
    }
}

/// How many read an extent and how many write to it.
#[derive(Default)]
struct Users {
    readers: usize,
    writers: usize,
}

/// The readers and writers of all extents.
#[derive(Default)]
pub(crate) struct ExtentLocks {
    /// The engine that writes.
    engine: u64,
    users: HashMap<u64, Users>,
    held: HashMap<u64, Arc<Wanted>>,
    /// Those that wait and want to write something.
    line: Vec<(u64, Weak<Wanted>)>,
    numbers: u64,
    /// Something was released since this was last read.
    pub(crate) released: bool,
}

impl ExtentLocks {
    pub(crate) fn new(engine: u64) -> ExtentLocks {
        ExtentLocks {
            engine,
            ..ExtentLocks::default()
        }
    }

    /// Takes all that a lock wants, or nothing.
    pub(crate) fn acquire(&mut self, extent_lock: &mut ExtentLock) -> bool {
        if extent_lock.is_held() {
            return true;
        }
        extent_lock.behind = match extent_lock
            .behind
            .filter(|other| self.held.contains_key(other))
        {
            Some(other) => Some(other),
            None => self.in_the_way(&extent_lock.wanted, None),
        };
        if extent_lock.behind.is_some() || self.is_wanted(extent_lock) {
            self.stand_in_line(extent_lock);
            return false;
        }
        self.leave_line(extent_lock);
        self.numbers += 1;
        self.count(&extent_lock.wanted, true);
        self.held
            .insert(self.numbers, Arc::clone(&extent_lock.wanted));
        extent_lock.held = Some(self.numbers);
        true
    }

    /// Adds to a lock that is held, where that is free; else changes nothing. It passes the line,
    /// which may wait for it.
    pub(crate) fn grow(&mut self, extent_lock: &mut ExtentLock, more: Vec<Claim>) -> bool {
        let has = |claim: &Claim| extent_lock.wanted.iter().any(|own| own.covers(claim));
        let more: Vec<Claim> = more.into_iter().filter(|claim| !has(claim)).collect();
        let Some(number) = extent_lock.held.filter(|_| !more.is_empty()) else {
            return more.is_empty();
        };
        if self.in_the_way(&more, Some(number)).is_some() {
            return false;
        }
        self.count(&more, true);
        extent_lock.wanted = extent_lock.wanted.iter().cloned().chain(more).collect();
        self.held.insert(number, Arc::clone(&extent_lock.wanted));
        true
    }

    /// Changes what a lock wants that is not held.
    pub(crate) fn widen(&mut self, extent_lock: &mut ExtentLock, wanted: Claim) {
        assert!(!extent_lock.is_held(), "others rely on what is held");
        self.leave_line(extent_lock);
        extent_lock.wanted = Arc::new([wanted]);
        extent_lock.behind = None;
    }

    /// A lock other than `own` that is held and excludes these.
    fn in_the_way(&self, wanted: &Wanted, own: Option<u64>) -> Option<u64> {
        let is_used = |claim: &Claim| {
            let users = self.users.get(&claim.extent.id());
            users.is_some_and(|users| users.writers > 0 || claim.write && users.readers > 0)
        };
        if !wanted.iter().any(is_used) {
            return None;
        }
        self.held
            .iter()
            .find(|(number, other)| Some(**number) != own && conflict(other, wanted))
            .map(|(number, _)| *number)
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

    /// Other engines learn of what was written, now that all of it is.
    pub(crate) fn release(&mut self, extent_lock: &mut ExtentLock) {
        let Some(number) = extent_lock.held.take() else {
            return;
        };
        self.released = true;
        self.held.remove(&number);
        self.count(&extent_lock.wanted, false);
        for claim in extent_lock.writes() {
            claim
                .spans()
                .for_each(|bytes| claim.extent.has_written(self.engine, bytes));
        }
    }

    fn count(&mut self, wanted: &Wanted, more: bool) {
        for claim in wanted {
            let users = self.users.entry(claim.extent.id()).or_default();
            let number = match claim.write {
                true => &mut users.writers,
                false => &mut users.readers,
            };
            *number = if more { *number + 1 } else { *number - 1 };
            if users.readers + users.writers == 0 {
                self.users.remove(&claim.extent.id());
            }
        }
    }

    fn stand_in_line(&mut self, extent_lock: &mut ExtentLock) {
        if extent_lock.place.is_some() {
            return;
        }
        self.numbers += 1;
        extent_lock.place = Some(self.numbers);
        if extent_lock.writes().next().is_some() {
            self.line.retain(|(_, wanted)| wanted.strong_count() > 0);
            self.line
                .push((self.numbers, Arc::downgrade(&extent_lock.wanted)));
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
    one.iter()
        .any(|claim| other.iter().any(|other| claim.conflicts(other)))
}

#[cfg(test)]
mod tests {
    use outcore_device::MemoryDevice;
    use proptest::prelude::*;

    use super::*;

    const SECTOR: u64 = 512;

    fn extent() -> Extent {
        let device = MemoryDevice::with_sector("memory", 100 * SECTOR, SECTOR as u32);
        Extent::new("memory", Arc::new(device))
    }

    /// Locks on all of some extents.
    fn maker() -> impl Fn(&[(usize, bool)]) -> ExtentLock {
        let extents = [extent(), extent(), extent()];
        move |wanted| {
            let all = 0..100 * SECTOR;
            let claim = |&(extent, write): &(usize, bool)| {
                Claim::new(&extents[extent], write, std::iter::once(all.clone()))
            };
            ExtentLock::new(wanted.iter().map(claim))
        }
    }

    fn of(extent: &Extent, write: bool, bytes: Range<u64>) -> ExtentLock {
        ExtentLock::new(std::iter::once(Claim::new(
            extent,
            write,
            std::iter::once(bytes),
        )))
    }

    proptest! {
        /// Whether two locks exclude each other is what sectors say, whatever the order.
        #[test]
        fn locks_exclude_each_other_exactly_when_they_share_a_sector(
            ranges in proptest::collection::vec((0u64..20_000, 0u64..3000, 0usize..2), 0..12), writes: [bool; 2],
        ) {
            let extent = extent();
            let mine = |owner: usize| ranges.iter().filter(move |range| range.2 == owner).map(|range| range.0..range.0 + range.1);
            let [mut one, mut other] = [0, 1].map(|owner| ExtentLock::new(std::iter::once(Claim::new(&extent, writes[owner], mine(owner)))));
            let sectors = |owner| mine(owner).filter(|range| !range.is_empty()).flat_map(|range| range.start / SECTOR..range.end.div_ceil(SECTOR)).collect::<std::collections::BTreeSet<u64>>();
            let free = sectors(0).is_disjoint(&sectors(1)) || writes == [false, false];
            let mut extent_locks = ExtentLocks::default();
            prop_assert!(extent_locks.acquire(&mut one));
            prop_assert_eq!(extent_locks.acquire(&mut other), free);
            extent_locks.release(&mut one);
            prop_assert!(extent_locks.acquire(&mut other));
            extent_locks.release(&mut other);
            prop_assert!(extent_locks.users.is_empty() && extent_locks.held.is_empty());
        }
    }

    #[test]
    fn a_lock_grows_where_that_is_free_and_else_stays_as_it_was() {
        let (extent, mut extent_locks) = (extent(), ExtentLocks::default());
        let claim = |write, bytes| vec![Claim::new(&extent, write, std::iter::once(bytes))];
        let mut first = of(&extent, true, 0..SECTOR);
        let mut second = of(&extent, false, 4 * SECTOR..5 * SECTOR);
        assert!(extent_locks.acquire(&mut first) && extent_locks.acquire(&mut second));
        assert!(
            extent_locks.grow(&mut first, claim(false, 10..20)),
            "it has that"
        );
        assert!(!extent_locks.grow(&mut first, claim(true, 0..5 * SECTOR)));
        assert!(
            extent_locks.grow(&mut first, claim(false, 0..5 * SECTOR)),
            "both read"
        );
        assert!(extent_locks.grow(&mut first, claim(true, 2 * SECTOR..3 * SECTOR)));
        let mut third = of(&extent, false, 2 * SECTOR..3 * SECTOR);
        assert!(!extent_locks.acquire(&mut third));
        extent_locks.release(&mut first);
        assert!(extent_locks.acquire(&mut third));
        extent_locks.release(&mut second);
        extent_locks.release(&mut third);
        assert!(extent_locks.users.is_empty());
    }

    #[test]
    fn a_writer_in_line_stops_only_who_wants_its_bytes() {
        let (extent, mut extent_locks) = (extent(), ExtentLocks::default());
        let mut reader = of(&extent, false, 0..SECTOR);
        let mut writer = of(&extent, true, SECTOR - 1..2 * SECTOR);
        assert!(extent_locks.acquire(&mut reader) && !extent_locks.acquire(&mut writer));
        let mut beside = of(&extent, false, 2 * SECTOR..3 * SECTOR);
        assert!(extent_locks.acquire(&mut beside));
        let mut behind = of(&extent, false, SECTOR..SECTOR + 1);
        assert!(!extent_locks.acquire(&mut behind));
    }

    #[test]
    fn readers_wait_behind_a_writer_that_waits() {
        let mut extent_locks = ExtentLocks::default();
        let extent_lock = maker();
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
        let extent_lock = maker();
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
    fn a_writer_that_gives_up_makes_way() {
        let mut extent_locks = ExtentLocks::default();
        let extent_lock = maker();
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
