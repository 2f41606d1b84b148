//! Mapped memory that is not in use.
//!
//! Fresh pages have to be cleared, which can cost more than reading into them. So frames are cut
//! from ranges that are as long as possible, and are merged with their neighbours when they return:
//! resident pages serve frames of any size. Pages are allocated and returned in units of one huge
//! page, which is contiguous for a device.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use outcore_device::{Anchor, Buf, Driver};

const UNIT: usize = 2 << 20;
/// Bytes of address space that are mapped at once.
const ADDRESSES: usize = 256 << 20;
/// Shorter frames are cut from existing units only.
const UNIT_FRAME_BYTES_MIN: usize = 64 << 10;

/// What uses the bytes of a frame, which decides whether a forked child has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameUse {
    /// The engine and its tasks: a child gets no such frame, so that a fork neither copies it nor
    /// takes its pages from under a transfer.
    Internal,
    /// A caller too, whose child may read what the caller was lent.
    Lent,
}

/// Frames of both uses come from maps of their own, since advice on a part of a map splits it, and
/// huge pages with it.
#[derive(Default)]
pub(super) struct Frames {
    internal: Pages,
    lent: Pages,
    registered: Registered,
}

#[derive(Default)]
struct Pages {
    /// Pages are there, or may be.
    empty: Ranges,
    /// Whole units of address space without pages.
    bare: Ranges,
}

impl Frames {
    fn of(&mut self, for_use: FrameUse) -> &mut Pages {
        match for_use {
            FrameUse::Internal => &mut self.internal,
            FrameUse::Lent => &mut self.lent,
        }
    }

    fn of_frame(&mut self, frame: &Buf) -> &mut Pages {
        self.of(match frame.is_inherited() {
            true => FrameUse::Lent,
            false => FrameUse::Internal,
        })
    }

    /// Those with more bytes that are unused.
    fn fuller(&mut self) -> &mut Pages {
        match self.internal.empty.bytes >= self.lent.empty.bytes {
            true => &mut self.internal,
            false => &mut self.lent,
        }
    }

    /// Bytes of unused frames.
    pub(super) fn empty_bytes(&self) -> u64 {
        self.internal.empty.bytes + self.lent.empty.bytes
    }

    /// Whether there is an empty frame of `size` bytes.
    pub(super) fn has(&mut self, size: u64, for_use: FrameUse) -> bool {
        self.of(for_use).empty.shortest(size as usize).is_some()
    }

    /// An empty frame.
    pub(super) fn take(&mut self, size: u64, for_use: FrameUse) -> Option<Buf> {
        self.of(for_use).empty.take(size as usize)
    }

    /// A frame of untouched pages. What is left of its last unit becomes an empty frame, if there
    /// is `room` for it.
    pub(super) fn fresh(&mut self, size: u64, room: u64, for_use: FrameUse) -> io::Result<Buf> {
        let map = match for_use {
            FrameUse::Internal => Buf::not_inherited,
            FrameUse::Lent => Buf::anonymous,
        };
        let (size, room) = (size as usize, room as usize);
        let units = size.next_multiple_of(UNIT);
        if size < UNIT_FRAME_BYTES_MIN || units > room {
            return map(size);
        }
        let pages = self.of(for_use);
        let mut frame = match pages.bare.take(units) {
            Some(range) => range,
            None => {
                let mut range =
                    map(units.max(room.min(ADDRESSES) / UNIT * UNIT)).or_else(|_| map(units))?;
                let frame = range.split_to(units);
                pages.bare.put(range);
                frame
            }
        };
        pages.empty.put(frame.split_off(size));
        if size < UNIT {
            self.registered
                .untouched
                .insert(frame.as_ptr() as usize, frame.anchor());
        }
        Ok(frame)
    }

    /// Takes an unused frame back.
    pub(super) fn keep(&mut self, frame: Buf) {
        self.registered.touched(&frame);
        self.of_frame(&frame).empty.put(frame);
    }

    /// Returns pages of adjacent empty frames to the system: up to `bytes` bytes in whole units.
    /// False if there is no whole unit.
    pub(super) fn give_back_units(&mut self, bytes: u64) -> bool {
        let range = self
            .fuller()
            .take_units(bytes)
            .or_else(|| self.internal.take_units(bytes))
            .or_else(|| self.lent.take_units(bytes));
        let Some(mut range) = range else {
            return false;
        };
        self.registered.leaves(&range);
        range.give_back();
        let bare = &mut self.of_frame(&range).bare;
        bare.put(range);
        // Address space without pages has page tables: what is too short for the frames of later runs
        // would grow with their number.
        while bare.bytes > ADDRESSES as u64 {
            drop(bare.take_whole(usize::MAX));
        }
        true
    }

    /// An empty frame to unmap: the shortest of at least `bytes` bytes, or else the longest.
    pub(super) fn take_for_good(&mut self, bytes: u64) -> Option<Buf> {
        let frame = self.fuller().empty.take_whole(bytes as usize)?;
        self.registered.leaves(&frame);
        Some(frame)
    }

    /// The caller owns its memory from now on.
    pub(super) fn leaves(&mut self, frame: &[u8]) {
        self.registered.leaves(frame);
    }

    /// Before transfers begin: registers new units with the driver, or unregisters all, if one has
    /// left whose pages must be freed. True if a registration has changed.
    pub(super) fn register(&mut self, driver: &mut dyn Driver) -> bool {
        self.registered.tell(driver)
    }
}

impl Pages {
    /// Whole units of the longest empty range that has any, up to `bytes` bytes.
    fn take_units(&mut self, bytes: u64) -> Option<Buf> {
        let (start, mut units) = self.empty.longest_first().find_map(|range| {
            let units = range.start.next_multiple_of(UNIT)..range.end / UNIT * UNIT;
            (!units.is_empty()).then_some((range.start, units))
        })?;
        units.start = units.start.max(
            units
                .end
                .saturating_sub((bytes as usize).next_multiple_of(UNIT)),
        );
        let mut head = self.empty.remove(start);
        let mut range = head.split_off(units.start - start);
        self.empty.put(range.split_off(units.len()));
        self.empty.put(head);
        Some(range)
    }
}

/// Units that the driver knows. It keeps their pages, so that it has to forget them when a frame of
/// one leaves.
#[derive(Default)]
struct Registered {
    /// Units to register: they have been used once, so their pages are resident and need not be
    /// cleared by the registration.
    fresh: Vec<Anchor>,
    /// Units that have not been used, by start address.
    untouched: BTreeMap<usize, Anchor>,
    known: Vec<Range<usize>>,
    /// The system refuses further registrations.
    is_full: bool,
    /// A frame has left a registered unit.
    has_left: bool,
}

impl Registered {
    /// Marks the units of a frame as used.
    fn touched(&mut self, frame: &[u8]) {
        self.fresh.extend(
            self.untouched
                .remove(&(frame.as_ptr() as usize / UNIT * UNIT)),
        );
    }

    fn leaves(&mut self, frame: &[u8]) {
        let frame = frame.as_ptr_range();
        let (start, end) = (frame.start as usize, frame.end as usize);
        let overlaps = |unit: &Range<usize>| unit.start < end && start < unit.end;
        self.fresh.retain(|unit| !overlaps(&unit.range()));
        self.untouched.retain(|_, unit| !overlaps(&unit.range()));
        self.has_left |= self.known.iter().any(overlaps);
    }

    fn tell(&mut self, driver: &mut dyn Driver) -> bool {
        let Registered {
            fresh,
            known,
            is_full,
            has_left,
            ..
        } = self;
        let changes = *has_left || !fresh.is_empty();
        if *has_left {
            driver.unregister();
            *has_left = driver.info().registered_bytes > 0;
            *is_full = *has_left;
            known.clear();
        }
        for unit in fresh.drain(..) {
            let range = unit.range();
            let registered = if *is_full { 0 } else { driver.register(unit) };
            *is_full |= registered < range.len();
            known.extend((registered > 0).then_some(range));
        }
        changes
    }
}

/// Ranges of memory; adjacent ones in the same map are merged.
#[derive(Default)]
struct Ranges {
    by_start: BTreeMap<usize, Buf>,
    /// Length and start of each.
    by_len: BTreeSet<(usize, usize)>,
    bytes: u64,
}

impl Ranges {
    fn put(&mut self, mut range: Buf) {
        if range.is_empty() {
            return;
        }
        let bounds = bounds(&range);
        let before = self
            .by_start
            .range(..bounds.start)
            .next_back()
            .map(|(&start, before)| start..start + before.len());
        if let Some(before) = before.filter(|before| before.end == bounds.start) {
            let mut before = self.remove(before.start);
            match before.try_join(range) {
                Ok(()) => range = before,
                Err(alone) => {
                    range = alone;
                    self.insert(before);
                }
            }
        }
        if self.by_start.contains_key(&bounds.end) {
            let next = self.remove(bounds.end);
            if let Err(next) = range.try_join(next) {
                self.insert(next);
            }
        }
        self.insert(range);
    }

    /// The first `bytes` bytes of the shortest range that is long enough.
    fn take(&mut self, bytes: usize) -> Option<Buf> {
        let mut range = self.remove(self.shortest(bytes)?);
        let taken = range.split_to(bytes);
        self.put(range);
        Some(taken)
    }

    /// The shortest range of at least `bytes` bytes, or else the longest.
    fn take_whole(&mut self, bytes: usize) -> Option<Buf> {
        let start = self
            .shortest(bytes)
            .or_else(|| self.longest_first().next().map(|range| range.start))?;
        Some(self.remove(start))
    }

    /// Start of the shortest range of at least `bytes` bytes.
    fn shortest(&self, bytes: usize) -> Option<usize> {
        Some(self.by_len.range((bytes, 0)..).next()?.1)
    }

    fn longest_first(&self) -> impl Iterator<Item = Range<usize>> {
        self.by_len
            .iter()
            .rev()
            .map(|&(len, start)| start..start + len)
    }

    fn insert(&mut self, range: Buf) {
        let Range { start, .. } = bounds(&range);
        self.bytes += range.len() as u64;
        self.by_len.insert((range.len(), start));
        self.by_start.insert(start, range);
    }

    fn remove(&mut self, start: usize) -> Buf {
        let range = self.by_start.remove(&start).expect("a range begins here");
        self.by_len.remove(&(range.len(), start));
        self.bytes -= range.len() as u64;
        range
    }
}

/// Addresses.
fn bounds(range: &Buf) -> Range<usize> {
    let start = range.as_ptr() as usize;
    start..start + range.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_space_without_pages_does_not_grow_with_the_number_of_frames() {
        let mut frames = Frames::default();
        for number in 0..300u64 {
            // Of units that are longer each time, so that no earlier range is long enough.
            let size = UNIT as u64 * (1 + number);
            let frame = frames
                .fresh(size, size, FrameUse::Internal)
                .expect("there is address space");
            assert_eq!(frame.len() as u64, size);
            frames.keep(frame);
            while frames.give_back_units(size) {}
            assert!(frames.internal.bare.bytes <= ADDRESSES as u64);
        }
        assert_eq!(frames.empty_bytes(), 0);
    }
}
