//! Checksums of an object's bytes, and the positions of its blocks.
//!
//! Every block has a CRC-32C. The checksums of 1023 blocks make a block of checksums; these are in
//! order, in ranges of their own:
//!
//! ```text
//!      0  4  sum of the first block; 0: never written, reads as zeros
//!      ..
//!   4092  4  CRC-32C of the bytes before
//! ```
//!
//! A checksum of 0 is stored as 1. Blocks of checksums are read when they are needed and
//! [cached](Cache). They are written at the end of a write, or before, when the cache evicts them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use outcore_device::{Buf, Device, Locked, read_now, write_now};

use super::layout::{BLOCK, BlockRange, SUMS, checksum};

/// Blocks of checksums that the cache of a store holds, 4 MiB: the checksums of 4 GiB.
const CACHED_PAGES: usize = 1024;

/// Positions of the blocks of an object on the device.
#[derive(Default)]
pub(super) struct Places(BTreeMap<u64, BlockRange>);

impl Places {
    pub(super) fn new(ranges: &[BlockRange]) -> Places {
        let mut places = Places::default();
        let mut first = 0;
        for &range in ranges {
            places.put(first, range);
            first += range.blocks;
        }
        places
    }

    /// Sets the position of blocks from `first` on, which had none before.
    pub(super) fn put(&mut self, first: u64, range: BlockRange) {
        if range.blocks > 0 {
            self.0.insert(first, range);
        }
    }

    /// The position of a block, and the number of contiguous blocks from it on.
    pub(super) fn find(&self, block: u64) -> Option<BlockRange> {
        let (&first, &range) = self.0.range(..=block).next_back()?;
        let inside = block - first;
        (inside < range.blocks).then(|| BlockRange {
            start: range.start + inside,
            blocks: range.blocks - inside,
        })
    }

    /// The number of blocks from this one on without a position, up to `most`.
    pub(super) fn missing(&self, block: u64, most: u64) -> u64 {
        match self.find(block) {
            Some(_) => 0,
            None => self
                .0
                .range(block..)
                .next()
                .map_or(most, |(&first, _)| most.min(first - block)),
        }
    }

    /// All ranges, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = BlockRange> {
        self.0.values().copied()
    }

    /// All ranges, in order, with those of `newer` in place of these; and the parts of these that are
    /// replaced.
    pub(super) fn with(&self, newer: &Places) -> (Vec<BlockRange>, Vec<BlockRange>) {
        let (mut ranges, mut replaced) = (Vec::new(), Vec::new());
        for (&first, &range) in &self.0 {
            let mut block = first;
            while block < first + range.blocks {
                let (left, old) = (first + range.blocks - block, range.start + block - first);
                let (range, is_newer) = match newer.find(block) {
                    Some(found) => (
                        BlockRange {
                            start: found.start,
                            blocks: found.blocks.min(left),
                        },
                        true,
                    ),
                    None => (
                        BlockRange {
                            start: old,
                            blocks: newer.missing(block, left),
                        },
                        false,
                    ),
                };
                if is_newer {
                    replaced.push(BlockRange {
                        start: old,
                        blocks: range.blocks,
                    });
                }
                block += range.blocks;
                match ranges.last_mut() {
                    Some(last) if BlockRange::end(*last) == range.start => {
                        last.blocks += range.blocks
                    }
                    _ => ranges.push(range),
                }
            }
        }
        (ranges, replaced)
    }
}

/// Cached blocks of checksums, of all objects of a store: a bounded number, whatever the size of
/// the objects.
pub(super) struct Cache {
    device: Arc<dyn Device>,
    most: usize,
    owner: u32,
    inside: Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    /// By their block on the device.
    pages: HashMap<u64, Page>,
    /// In the order of arrival; a page that was used since is moved to the end.
    order: VecDeque<u64>,
    /// Pages that are being read: number of readers, and how often the page was put or written
    /// since the first of them began.
    reading: HashMap<u64, (usize, u64)>,
}

impl Cached {
    /// Makes concurrent reads of the page stale.
    fn outdate(&mut self, place: u64) {
        if let Some((_, changes)) = self.reading.get_mut(&place) {
            *changes += 1;
        }
    }
}

#[derive(Clone)]
struct Page {
    sums: Box<[u32; SUMS as usize]>,
    is_changed: bool,
    is_used: bool,
}

impl Cache {
    /// A cache for the last few GiB used.
    pub(super) fn new(device: &Arc<dyn Device>) -> Arc<Cache> {
        Cache::of(device, CACHED_PAGES)
    }

    fn of(device: &Arc<dyn Device>, most: usize) -> Arc<Cache> {
        Arc::new(Cache {
            device: Arc::clone(device),
            most,
            owner: std::process::id(),
            inside: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Cached> {
        self.inside.locked()
    }

    /// Calls a function on a page that is on the device or was [put](Cache::put) here. A page that
    /// may be damaged is all ones then, since it is unknown which blocks were ever written.
    fn with<T>(
        &self,
        place: u64,
        may_be_damaged: bool,
        act: impl FnOnce(&mut Page) -> T,
    ) -> io::Result<T> {
        loop {
            let seen = {
                let mut cached = self.lock();
                if let Some(page) = cached.pages.get_mut(&place) {
                    page.is_used = true;
                    return Ok(act(page));
                }
                let (readers, changes) = cached.reading.entry(place).or_default();
                *readers += 1;
                *changes
            };
            // The lock is released during the read.
            let page = self.read(place, may_be_damaged);
            let mut cached = self.lock();
            let (readers, changes) = cached
                .reading
                .get_mut(&place)
                .expect("as long as it is being read");
            let is_old = *changes != seen;
            *readers -= 1;
            if *readers == 0 {
                cached.reading.remove(&place);
            }
            if !is_old && !cached.pages.contains_key(&place) {
                self.keep(&mut cached, place, page?)?;
            }
        }
    }

    /// Adds a page that is not on the device yet.
    fn put(&self, place: u64, page: Page) -> io::Result<()> {
        let mut cached = self.lock();
        cached.outdate(place);
        self.keep(
            &mut cached,
            place,
            Page {
                is_changed: true,
                ..page
            },
        )
    }

    fn keep(&self, cached: &mut Cached, place: u64, page: Page) -> io::Result<()> {
        while cached.pages.len() >= self.most {
            let oldest = cached.order.pop_front().expect("every page is in it");
            let page = cached
                .pages
                .get_mut(&oldest)
                .expect("it is there as long as it is in order");
            if std::mem::take(&mut page.is_used) {
                cached.order.push_back(oldest);
                continue;
            }
            // A forked child has the parent's pages, but must not write them.
            if page.is_changed && self.owner == std::process::id() {
                if let Err(error) = page.write(&*self.device, oldest) {
                    cached.order.push_back(oldest);
                    return Err(io::Error::new(
                        error.kind(),
                        format!("write of checksums of the store: {error}"),
                    ));
                }
                cached.outdate(oldest);
            }
            cached.pages.remove(&oldest);
        }
        if cached.pages.insert(place, page).is_none() {
            cached.order.push_back(place);
        }
        Ok(())
    }

    /// Writes a page to its block, if it was changed.
    fn settle(&self, place: u64) -> io::Result<()> {
        let mut cached = self.lock();
        match cached.pages.get_mut(&place) {
            Some(page) if page.is_changed => page.write(&*self.device, place)?,
            _ => return Ok(()),
        }
        cached.outdate(place);
        Ok(())
    }

    /// The blocks of these ranges are no checksums any longer, or are not read any more.
    fn forget(&self, ranges: impl Iterator<Item = BlockRange>) {
        let mut cached = self.lock();
        let before = cached.pages.len();
        ranges
            .flat_map(|range| range.start..range.end())
            .for_each(|place| _ = cached.pages.remove(&place));
        if cached.pages.len() < before {
            let Cached { pages, order, .. } = &mut *cached;
            order.retain(|place| pages.contains_key(place));
        }
    }

    fn read(&self, place: u64, may_be_damaged: bool) -> io::Result<Page> {
        let mut buf = Buf::anonymous(BLOCK)?;
        read_now(&*self.device, &mut buf, place * BLOCK as u64)?;
        let (sums, sum) = buf.split_at(BLOCK - 4);
        let mut page = Page::of(1);
        if checksum(sums).to_le_bytes() == sum {
            page.sums
                .iter_mut()
                .zip(sums.as_chunks().0)
                .for_each(|(to, &from)| *to = u32::from_le_bytes(from));
        } else if !may_be_damaged {
            let at = place * BLOCK as u64;
            return Err(wrong(format!(
                "the block of checksums at byte {at} of the store is damaged"
            )));
        }
        Ok(page)
    }
}

impl Page {
    fn of(sum: u32) -> Page {
        Page {
            sums: Box::new([sum; SUMS as usize]),
            is_changed: false,
            is_used: false,
        }
    }

    fn write(&mut self, device: &dyn Device, place: u64) -> io::Result<()> {
        let mut buf = Buf::anonymous(BLOCK)?;
        let (sums, sum) = buf.split_at_mut(BLOCK - 4);
        sums.as_chunks_mut()
            .0
            .iter_mut()
            .zip(self.sums.iter())
            .for_each(|(to, from)| *to = from.to_le_bytes());
        sum.copy_from_slice(&checksum(sums).to_le_bytes());
        write_now(device, &buf, place * BLOCK as u64)?;
        self.is_changed = false;
        Ok(())
    }
}

/// Checksums of one object.
pub(super) struct Sums {
    cache: Arc<Cache>,
    places: Places,
    /// Which blocks of checksums of a new object were begun; the others are not on the device.
    begun: Option<Mutex<Vec<bool>>>,
    /// False while a writer changes it in place, and for an object whose writer died: bytes and
    /// checksums may then be old or new.
    are_settled: AtomicBool,
}

impl Sums {
    pub(super) fn new(
        cache: &Arc<Cache>,
        ranges: &[BlockRange],
        are_new: bool,
        are_settled: bool,
    ) -> Sums {
        let count = ranges.iter().map(|range| range.blocks).sum::<u64>() as usize;
        let begun = are_new.then(|| Mutex::new(vec![false; count]));
        if are_new {
            // Pages of an object that had these blocks before may still be cached.
            cache.forget(ranges.iter().copied());
        }
        Sums {
            cache: Arc::clone(cache),
            places: Places::new(ranges),
            begun,
            are_settled: AtomicBool::new(are_settled),
        }
    }

    /// Whether bytes have to match their checksums.
    pub(super) fn are_settled(&self) -> bool {
        self.are_settled.load(Ordering::Acquire)
    }

    pub(super) fn settle(&self, are_settled: bool) {
        self.are_settled.store(are_settled, Ordering::Release);
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// The checksums of blocks from `first` on.
    pub(super) fn get(&self, first: u64, count: usize) -> io::Result<Vec<u32>> {
        let mut sums = vec![0; count];
        for (number, here, part) in pages(first, count) {
            if self.is_begun(number) {
                self.page(number, |page| sums[part].copy_from_slice(&page.sums[here]))?;
            }
        }
        Ok(sums)
    }

    pub(super) fn set(&self, first: u64, sums: &[u32]) -> io::Result<()> {
        for (number, here, part) in pages(first, sums.len()) {
            self.begin(number)?;
            self.page(number, |page| page.set(here, &sums[part]))?;
        }
        Ok(())
    }

    fn begin(&self, number: u64) -> io::Result<()> {
        let (Some(begun), place) = (&self.begun, place_of(&self.places, number)?) else {
            return Ok(());
        };
        let mut begun = begun.locked();
        if !begun[number as usize] {
            self.cache.put(place, Page::of(0))?;
            begun[number as usize] = true;
        }
        Ok(())
    }

    fn is_begun(&self, number: u64) -> bool {
        let is_begun =
            |begun: &Mutex<Vec<bool>>| begun.locked().get(number as usize) != Some(&false);
        self.begun.as_ref().is_none_or(is_begun)
    }

    fn page<T>(&self, number: u64, act: impl FnOnce(&mut Page) -> T) -> io::Result<T> {
        self.cache
            .with(place_of(&self.places, number)?, !self.are_settled(), act)
    }

    /// Writes changed pages to their blocks; for a new object, all.
    pub(super) fn write(&self) -> io::Result<()> {
        for (number, place) in self
            .places
            .ranges()
            .flat_map(|range| range.start..range.end())
            .enumerate()
        {
            if let Some(begun) = &self.begun {
                let mut begun = begun.locked();
                if !begun[number] {
                    Page::of(0).write(&*self.cache.device, place)?;
                    begun[number] = true;
                    continue;
                }
            }
            self.cache.settle(place)?;
        }
        Ok(())
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.cache.forget(self.places.ranges());
    }
}

/// Checksums of an object while a new version is written: the changed blocks of checksums, and
/// their new positions.
pub(super) struct NewSums {
    cache: Arc<Cache>,
    places: Mutex<Places>,
}

impl NewSums {
    pub(super) fn new(old: &Sums) -> NewSums {
        NewSums {
            cache: Arc::clone(&old.cache),
            places: Mutex::default(),
        }
    }

    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        self.places.locked()
    }

    /// Allocates new blocks for the checksums of these blocks, as far as they were not changed yet.
    pub(super) fn begin(
        &self,
        old: &Sums,
        first: u64,
        count: usize,
        mut take: impl FnMut() -> io::Result<Vec<BlockRange>>,
    ) -> io::Result<()> {
        let mut places = self.places();
        for (number, ..) in pages(first, count) {
            if places.find(number).is_none() {
                let page = old.page(number, |page| page.clone())?;
                take()?
                    .into_iter()
                    .for_each(|range| places.put(number, range));
                self.cache.put(place_of(&places, number)?, page)?;
            }
        }
        Ok(())
    }

    /// Sets checksums after [`begin`](NewSums::begin).
    pub(super) fn set(&self, first: u64, sums: &[u32]) -> io::Result<()> {
        for (number, here, part) in pages(first, sums.len()) {
            let place = place_of(&self.places(), number)?;
            self.cache
                .with(place, false, |page| page.set(here, &sums[part]))?;
        }
        Ok(())
    }

    /// The checksum of a block that was written.
    pub(super) fn get(&self, block: u64) -> io::Result<u32> {
        let place = place_of(&self.places(), block / SUMS)?;
        self.cache
            .with(place, false, |page| page.sums[(block % SUMS) as usize])
    }

    /// Writes all pages to their blocks.
    pub(super) fn write(&self) -> io::Result<()> {
        self.places()
            .ranges()
            .flat_map(|range| range.start..range.end())
            .try_for_each(|place| self.cache.settle(place))
    }

    /// Gives up, and returns the blocks that were taken.
    pub(super) fn abandon(&self) -> Places {
        let places = std::mem::take(&mut *self.places());
        self.cache.forget(places.ranges());
        places
    }
}

impl Page {
    fn set(&mut self, here: Range<usize>, sums: &[u32]) {
        self.sums[here].copy_from_slice(sums);
        self.is_changed = true;
    }
}

/// The blocks of checksums for these blocks, each with the range of its checksums and the range of
/// these blocks.
fn pages(first: u64, count: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = first + count as u64;
    (first / SUMS..end.div_ceil(SUMS))
        .filter(move |_| count > 0)
        .map(move |number| {
            let (start, stop) = (first.max(number * SUMS), end.min((number + 1) * SUMS));
            let range = |base: u64| (start - base) as usize..(stop - base) as usize;
            (number, range(number * SUMS), range(first))
        })
}

fn place_of(places: &Places, number: u64) -> io::Result<u64> {
    places
        .find(number)
        .map(|range| range.start)
        .ok_or_else(|| wrong("its checksums are missing".into()))
}

/// The checksum of a block as it is stored.
pub(super) fn sum_of(block: &[u8]) -> u32 {
    checksum(block).max(1)
}

/// An error for bytes that do not match.
pub(super) fn wrong(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_device::MemoryDevice;

    #[test]
    fn a_block_is_found_in_its_range() {
        let places = Places::new(&[
            BlockRange {
                start: 10,
                blocks: 3,
            },
            BlockRange {
                start: 2,
                blocks: 1,
            },
            BlockRange {
                start: 100,
                blocks: 2,
            },
        ]);
        let found: Vec<_> = (0..7)
            .map(|block| places.find(block).map(|range| (range.start, range.blocks)))
            .collect();
        assert_eq!(
            found,
            [
                Some((10, 3)),
                Some((11, 2)),
                Some((12, 1)),
                Some((2, 1)),
                Some((100, 2)),
                Some((101, 1)),
                None
            ]
        );
        assert!(Places::new(&[]).find(0).is_none());
    }

    #[test]
    fn newer_places_count_before_older_ones() {
        let range = |start, blocks| BlockRange { start, blocks };
        let old = Places::new(&[range(10, 4), range(50, 4)]);
        let mut newer = Places::default();
        newer.put(2, range(100, 4));
        newer.put(7, range(200, 1));
        let (ranges, replaced) = old.with(&newer);
        assert_eq!(
            ranges,
            [range(10, 2), range(100, 4), range(52, 1), range(200, 1)]
        );
        assert_eq!(replaced, [range(12, 2), range(50, 2), range(53, 1)]);
        assert_eq!(
            old.with(&Places::default()),
            (vec![range(10, 4), range(50, 4)], vec![])
        );
    }

    fn device() -> Arc<dyn Device> {
        Arc::new(MemoryDevice::with_sector("d", 1 << 20, 512))
    }

    #[test]
    fn sums_come_back_and_damage_is_seen() {
        let device = device();
        let ranges = [
            BlockRange {
                start: 9,
                blocks: 1,
            },
            BlockRange {
                start: 3,
                blocks: 2,
            },
        ];
        let new = Sums::new(&Cache::new(&device), &ranges, true, true);
        new.set(SUMS - 1, &[5, 6, 7]).unwrap();
        assert_eq!(new.get(SUMS - 2, 5).unwrap(), [0, 5, 6, 7, 0]);
        new.write().unwrap();
        let found = |are_settled| Sums::new(&Cache::new(&device), &ranges, false, are_settled);
        assert_eq!(found(true).get(SUMS - 2, 5).unwrap(), [0, 5, 6, 7, 0]);
        assert_eq!(found(true).get(3 * SUMS - 1, 1).unwrap(), [0]);
        assert!(found(true).get(3 * SUMS, 1).is_err());
        let mut block = vec![0; BLOCK];
        read_now(&*device, &mut block, 3 * BLOCK as u64).unwrap();
        block[17] ^= 1;
        write_now(&*device, &block, 3 * BLOCK as u64).unwrap();
        let error = found(true).get(SUMS, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(found(false).get(SUMS, 2).unwrap(), [1, 1]);
    }

    #[test]
    fn sums_that_had_to_leave_memory_are_what_they_were() {
        for most in [1, 2, 3] {
            let device = device();
            let cache = Cache::of(&device, most);
            let sums = Sums::new(
                &cache,
                &[BlockRange {
                    start: 10,
                    blocks: 8,
                }],
                true,
                true,
            );
            let mut expected = vec![0; 8 * SUMS as usize];
            for step in 0..200_u64 {
                let (first, count) = (step * 7919 % (7 * SUMS), (step * 613 % 1500) as usize);
                let count = count.min(expected.len() - first as usize);
                let new: Vec<u32> = (0..count as u32).map(|at| at + step as u32).collect();
                expected[first as usize..][..count].copy_from_slice(&new);
                sums.set(first, &new).unwrap();
                assert_eq!(
                    sums.get(first / 2, 100).unwrap(),
                    expected[first as usize / 2..][..100]
                );
                assert!(cache.lock().pages.len() <= most);
            }
            assert_eq!(sums.get(0, expected.len()).unwrap(), expected);
            sums.write().unwrap();
            drop(sums);
            assert!(cache.lock().pages.is_empty() && cache.lock().order.is_empty());
            let found = Sums::new(
                &cache,
                &[BlockRange {
                    start: 10,
                    blocks: 8,
                }],
                false,
                true,
            );
            assert_eq!(found.get(0, expected.len()).unwrap(), expected);
        }
    }

    /// When two threads read a block of checksums at once, the second overwrote changes of the
    /// first.
    #[test]
    fn sums_that_two_threads_read_at_once_are_one() {
        let (device, ranges) = (
            device(),
            [BlockRange {
                start: 10,
                blocks: 1,
            }],
        );
        Sums::new(&Cache::new(&device), &ranges, true, true)
            .write()
            .unwrap();
        for round in 1..300 {
            let sums = Sums::new(&Cache::new(&device), &ranges, false, true);
            let begin = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (sums, begin) = (&sums, &begin);
                    scope.spawn(move || {
                        begin.wait();
                        sums.set(thread, &[round]).unwrap();
                    });
                }
            });
            assert_eq!(sums.get(0, 4).unwrap(), [round; 4]);
        }
    }

    #[test]
    fn threads_do_not_lose_each_others_sums() {
        let device = device();
        let sums = Sums::new(
            &Cache::of(&device, 2),
            &[BlockRange {
                start: 10,
                blocks: 6,
            }],
            true,
            true,
        );
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sums = &sums;
                scope.spawn(move || {
                    for round in 1..50 {
                        for block in (thread..6 * SUMS).step_by(341) {
                            sums.set(block, &[round]).unwrap();
                            assert_eq!(sums.get(block, 1).unwrap(), [round]);
                        }
                    }
                });
            }
        });
    }
}
