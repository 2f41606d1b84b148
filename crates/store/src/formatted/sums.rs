//! Checksums of an object's bytes, and where its bytes lie.
//!
//! Every block has a CRC-32C; those of 1023 blocks make a block of their own, in order in runs of their own:
//!
//! ```text
//!      0  4  sum of the first block; 0: never written, reads as zeros
//!      ..
//!   4092  4  CRC-32C of the bytes before
//! ```
//!
//! A sum that would be 0 is stored as 1. Blocks of sums are read when they are first needed and written at the end of a write.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use outcore_device::{Buf, Device, read_now, write_now};

use super::layout::{BLOCK, Run, checksum};

/// Sums in a block of them.
pub(super) const SUMS: u64 = (BLOCK / 4 - 1) as u64;

/// Blocks of sums that an object of so many blocks has.
pub(super) fn sum_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(SUMS)
}

/// Where blocks of an object lie on the device.
#[derive(Default)]
pub(super) struct Places(BTreeMap<u64, Run>);

impl Places {
    pub(super) fn new(runs: &[Run]) -> Places {
        let mut places = Places::default();
        let mut first = 0;
        for &run in runs {
            places.put(first, run);
            first += run.blocks;
        }
        places
    }

    /// Says where blocks from `first` on lie, of which nothing was said before.
    pub(super) fn put(&mut self, first: u64, run: Run) {
        if run.blocks > 0 {
            self.0.insert(first, run);
        }
    }

    /// Where a block lies, and how many from it on lie together.
    pub(super) fn find(&self, block: u64) -> Option<Run> {
        let (&first, &run) = self.0.range(..=block).next_back()?;
        let inside = block - first;
        (inside < run.blocks).then(|| Run { start: run.start + inside, blocks: run.blocks - inside })
    }

    /// How many blocks from this one on have no place, of so many.
    pub(super) fn missing(&self, block: u64, most: u64) -> u64 {
        match self.find(block) {
            Some(_) => 0,
            None => self.0.range(block..).next().map_or(most, |(&first, _)| most.min(first - block)),
        }
    }

    /// All runs, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.0.values().copied()
    }

    /// All runs, in order, where those of `newer` count before these; and of these, what counts no longer.
    pub(super) fn with(&self, newer: &Places) -> (Vec<Run>, Vec<Run>) {
        let (mut runs, mut replaced) = (Vec::new(), Vec::new());
        for (&first, &run) in &self.0 {
            let mut block = first;
            while block < first + run.blocks {
                let (left, old) = (first + run.blocks - block, run.start + block - first);
                let (run, is_newer) = match newer.find(block) {
                    Some(found) => (Run { start: found.start, blocks: found.blocks.min(left) }, true),
                    None => (Run { start: old, blocks: newer.missing(block, left) }, false),
                };
                if is_newer {
                    replaced.push(Run { start: old, blocks: run.blocks });
                }
                block += run.blocks;
                match runs.last_mut() {
                    Some(last) if Run::end(*last) == run.start => last.blocks += run.blocks,
                    _ => runs.push(run),
                }
            }
        }
        (runs, replaced)
    }
}

/// Sums of one object, as far as they have been needed.
pub(super) struct Sums {
    places: Places,
    pages: Mutex<HashMap<u64, Page>>,
    /// None of them is on the device yet.
    are_new: bool,
    /// False while somebody writes in place, and of an object whose writer died: bytes and sums are old, new or both then.
    are_settled: AtomicBool,
}

#[derive(Clone)]
struct Page {
    sums: Box<[u32; SUMS as usize]>,
    is_changed: bool,
}

impl Sums {
    pub(super) fn new(runs: &[Run], are_new: bool, are_settled: bool) -> Sums {
        Sums { places: Places::new(runs), pages: Mutex::default(), are_new, are_settled: AtomicBool::new(are_settled) }
    }

    /// Whether bytes have to be what their sums say.
    pub(super) fn are_settled(&self) -> bool {
        self.are_settled.load(Ordering::Acquire)
    }

    pub(super) fn settle(&self, are_settled: bool) {
        self.are_settled.store(are_settled, Ordering::Release);
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<u64, Page>> {
        self.pages.lock().expect("no panic while held")
    }

    /// The sums of blocks from `first` on.
    pub(super) fn get(&self, device: &dyn Device, first: u64, count: usize) -> io::Result<Vec<u32>> {
        let mut pages = self.pages();
        let one = |block: u64| Ok(self.page(&mut pages, device, block / SUMS)?.sums[(block % SUMS) as usize]);
        (first..first + count as u64).map(one).collect()
    }

    pub(super) fn set(&self, device: &dyn Device, first: u64, sums: &[u32]) -> io::Result<()> {
        let mut pages = self.pages();
        for (block, &sum) in (first..).zip(sums) {
            let page = self.page(&mut pages, device, block / SUMS)?;
            page.sums[(block % SUMS) as usize] = sum;
            page.is_changed = true;
        }
        Ok(())
    }

    fn page<'a>(&self, pages: &'a mut HashMap<u64, Page>, device: &dyn Device, number: u64) -> io::Result<&'a mut Page> {
        Ok(match pages.entry(number) {
            Slot::Occupied(page) => page.into_mut(),
            Slot::Vacant(slot) => slot.insert(if self.are_new { Page::new() } else { self.load(device, number)? }),
        })
    }

    fn load(&self, device: &dyn Device, number: u64) -> io::Result<Page> {
        let place = place_of(&self.places, number)?;
        let mut buf = Buf::anonymous(BLOCK)?;
        read_now(device, &mut buf, place)?;
        let (sums, sum) = buf.split_at(BLOCK - 4);
        let mut page = Page::new();
        if checksum(sums).to_le_bytes() != sum {
            if self.are_settled() {
                return Err(wrong(format!("the block of checksums at byte {place} of the store is damaged")));
            }
            // Which blocks were ever written nobody knows: all of them, then.
            page.sums.fill(1);
            return Ok(page);
        }
        page.sums.iter_mut().zip(sums.as_chunks().0).for_each(|(to, &from)| *to = u32::from_le_bytes(from));
        page.is_changed = false;
        Ok(page)
    }

    /// Writes what has changed to where it belongs; of a new object, all.
    pub(super) fn write(&self, device: &dyn Device) -> io::Result<()> {
        let mut pages = self.pages();
        if self.are_new {
            let count = self.places.runs().map(|run| run.blocks).sum::<u64>();
            (0..count).for_each(|number| _ = pages.entry(number).or_insert_with(Page::new));
        }
        write_pages(device, &mut pages, &self.places)
    }
}

/// Sums of an object of which a new version is written: those that change, and where they go is decided at the end.
pub(super) struct NewSums(Mutex<HashMap<u64, Page>>);

impl NewSums {
    pub(super) fn new() -> NewSums {
        NewSums(Mutex::default())
    }

    pub(super) fn set(&self, old: &Sums, device: &dyn Device, first: u64, sums: &[u32]) -> io::Result<()> {
        let mut pages = self.0.lock().expect("no panic while held");
        for (block, &sum) in (first..).zip(sums) {
            let page = match pages.entry(block / SUMS) {
                Slot::Occupied(page) => page.into_mut(),
                Slot::Vacant(slot) => slot.insert(old.page(&mut old.pages(), device, block / SUMS)?.clone()),
            };
            page.sums[(block % SUMS) as usize] = sum;
            page.is_changed = true;
        }
        Ok(())
    }

    /// The sum of a block, if one near it was set.
    pub(super) fn get(&self, block: u64) -> Option<u32> {
        let pages = self.0.lock().expect("no panic while held");
        Some(pages.get(&(block / SUMS))?.sums[(block % SUMS) as usize])
    }

    /// Blocks of sums, in order.
    pub(super) fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.0.lock().expect("no panic while held").keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn write(&self, device: &dyn Device, places: &Places) -> io::Result<()> {
        write_pages(device, &mut self.0.lock().expect("no panic while held"), places)
    }
}

fn write_pages(device: &dyn Device, pages: &mut HashMap<u64, Page>, places: &Places) -> io::Result<()> {
    let mut buf = Buf::anonymous(BLOCK)?;
    for (&number, page) in pages.iter_mut().filter(|(_, page)| page.is_changed) {
        let (sums, sum) = buf.split_at_mut(BLOCK - 4);
        sums.as_chunks_mut().0.iter_mut().zip(page.sums.iter()).for_each(|(to, from)| *to = from.to_le_bytes());
        sum.copy_from_slice(&checksum(sums).to_le_bytes());
        write_now(device, &buf, place_of(places, number)?)?;
        page.is_changed = false;
    }
    Ok(())
}

fn place_of(places: &Places, number: u64) -> io::Result<u64> {
    let place = places.find(number).ok_or_else(|| wrong("its checksums are missing".into()))?;
    Ok(place.start * BLOCK as u64)
}

impl Page {
    fn new() -> Page {
        Page { sums: Box::new([0; SUMS as usize]), is_changed: true }
    }
}

/// The sum of a block as it is stored.
pub(super) fn sum_of(block: &[u8]) -> u32 {
    checksum(block).max(1)
}

/// Bytes are not what they were.
pub(super) fn wrong(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_device::MemoryDevice;

    #[test]
    fn a_block_is_found_in_its_run() {
        let places = Places::new(&[Run { start: 10, blocks: 3 }, Run { start: 2, blocks: 1 }, Run { start: 100, blocks: 2 }]);
        let found: Vec<_> = (0..7).map(|block| places.find(block).map(|run| (run.start, run.blocks))).collect();
        assert_eq!(found, [Some((10, 3)), Some((11, 2)), Some((12, 1)), Some((2, 1)), Some((100, 2)), Some((101, 1)), None]);
        assert!(Places::new(&[]).find(0).is_none());
    }

    #[test]
    fn newer_places_count_before_older_ones() {
        let run = |start, blocks| Run { start, blocks };
        let old = Places::new(&[run(10, 4), run(50, 4)]);
        let mut newer = Places::default();
        newer.put(2, run(100, 4));
        newer.put(7, run(200, 1));
        let (runs, replaced) = old.with(&newer);
        assert_eq!(runs, [run(10, 2), run(100, 4), run(52, 1), run(200, 1)]);
        assert_eq!(replaced, [run(12, 2), run(50, 2), run(53, 1)]);
        assert_eq!(old.with(&Places::default()), (vec![run(10, 4), run(50, 4)], vec![]));
    }

    #[test]
    fn sums_come_back_and_damage_is_seen() {
        let device = MemoryDevice::with_block("d", 1 << 20, 512);
        let runs = [Run { start: 9, blocks: 1 }, Run { start: 3, blocks: 2 }];
        let new = Sums::new(&runs, true, true);
        new.set(&device, SUMS - 1, &[5, 6, 7]).unwrap();
        new.write(&device).unwrap();
        let found = Sums::new(&runs, false, true);
        assert_eq!(found.get(&device, SUMS - 2, 5).unwrap(), [0, 5, 6, 7, 0]);
        assert_eq!(found.get(&device, 3 * SUMS - 1, 1).unwrap(), [0]);
        assert!(found.get(&device, 3 * SUMS, 1).is_err());
        let mut block = vec![0; BLOCK];
        read_now(&device, &mut block, 3 * BLOCK as u64).unwrap();
        block[17] ^= 1;
        write_now(&device, &block, 3 * BLOCK as u64).unwrap();
        let error = Sums::new(&runs, false, true).get(&device, SUMS, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(Sums::new(&runs, false, false).get(&device, SUMS, 2).unwrap(), [1, 1]);
    }
}
