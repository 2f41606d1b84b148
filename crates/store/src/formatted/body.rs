//! The bytes of an object as a device: its blocks lie anywhere on the underlying device, and each
//! is verified when it is read.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use outcore_device::{
    Blocking, Buf, Device, Limits, Locked, PANICKED, Route, discard_now, flush_now, read_now,
    write_now,
};

use super::Inner;
use super::layout::{BLOCK, BlockRange, Condition, Entry};
use super::sums::{Cache, Places, Sums, sum_of, wrong};

/// Pieces of a long transfer run in parallel.
const MAX_TRANSFER_BYTES: usize = 1 << 20;

/// Freed blocks, for the next search for free ones.
pub(super) type Returned = Arc<Mutex<Vec<BlockRange>>>;

/// Blocks of one version of an object that no later version has. They are freed when no handle has
/// this version or an earlier one open: each version holds the next, because earlier ones may share
/// blocks with it.
#[derive(Default)]
pub(super) struct Garbage {
    left: Mutex<(Vec<BlockRange>, Option<Arc<Garbage>>)>,
    returned: Returned,
}

impl Garbage {
    pub(super) fn new(ranges: Vec<BlockRange>, returned: &Returned) -> Garbage {
        Garbage {
            left: Mutex::new((ranges, None)),
            returned: Arc::clone(returned),
        }
    }

    /// Adds blocks to be freed.
    pub(super) fn add(&self, range: BlockRange) {
        self.left.locked().0.push(range);
    }

    /// Frees blocks now. They are the beginning of one of the ranges.
    pub(super) fn give(&self, range: BlockRange) {
        let mut left = self.left.locked();
        if let Some(first) = left
            .0
            .iter_mut()
            .find(|first| first.start == range.start && first.blocks >= range.blocks)
        {
            *first = BlockRange {
                start: range.end(),
                blocks: first.blocks - range.blocks,
            };
            self.returned.locked().push(range);
        }
    }

    /// Sets the blocks to be freed, and the next version.
    pub(super) fn leave(&self, ranges: Vec<BlockRange>, next: Option<Arc<Garbage>>) {
        *self.left.locked() = (ranges, next);
    }
}

impl Drop for Garbage {
    fn drop(&mut self) {
        let (mut ranges, mut next) = std::mem::take(self.left.get_mut().expect(PANICKED));
        // A loop, since the chain may be long.
        while let Some(mut after) = next.and_then(Arc::into_inner) {
            let (more, then) = std::mem::take(after.left.get_mut().expect(PANICKED));
            ranges.extend(more);
            next = then;
        }
        self.returned.locked().extend(ranges);
    }
}

/// State shared by all handles of one version of an object.
pub(super) struct Body {
    pub(super) device: Arc<dyn Device>,
    pub(super) id: u64,
    pub(super) len: u64,
    pub(super) places: Places,
    pub(super) sums: Sums,
    /// Whether it is being written: it is new, or changed in place.
    is_written: AtomicBool,
    pub(super) garbage: Arc<Garbage>,
}

impl Body {
    pub(super) fn new(
        device: &Arc<dyn Device>,
        sums: &Arc<Cache>,
        entry: &Entry,
        is_new: bool,
        garbage: Arc<Garbage>,
    ) -> Body {
        let device = Arc::clone(device);
        let sums = Sums::new(
            sums,
            &entry.sums,
            is_new,
            entry.condition == Condition::Whole,
        );
        let (places, is_written) = (Places::new(&entry.ranges), AtomicBool::new(is_new));
        Body {
            device,
            id: entry.id,
            len: entry.len,
            places,
            sums,
            is_written,
            garbage,
        }
    }

    pub(super) fn begin(&self) {
        self.is_written.store(true, Ordering::Release);
    }

    /// Ends writing.
    pub(super) fn end(&self) {
        self.is_written.store(false, Ordering::Release);
    }

    pub(super) fn read(&self, destination: &mut [u8], offset: u64) -> io::Result<()> {
        let device = &*self.device;
        let first = offset / BLOCK as u64;
        let sums = self.sums.get(first, destination.len() / BLOCK)?;
        for (place, part) in pieces(&self.places, offset, destination.len())? {
            read_now(device, &mut destination[part], place)?;
        }
        for (number, (block, &sum)) in destination.chunks_mut(BLOCK).zip(&sums).enumerate() {
            // It may have been written between the two reads.
            if differs(block, sum)
                && self.sums.are_settled()
                && self.sums.get(first + number as u64, 1)?[0] == sum
            {
                return Err(damaged(offset + (number * BLOCK) as u64));
            }
        }
        Ok(())
    }

    /// Calls `f` with the offset of each part of the bytes, the stored sums of its blocks, and the
    /// content of its blocks.
    pub(super) fn each_part(
        &self,
        mut f: impl FnMut(u64, &[u32], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buf = Buf::anonymous(MAX_TRANSFER_BYTES)?;
        let end = self.len.next_multiple_of(BLOCK as u64);
        for at in (0..end).step_by(MAX_TRANSFER_BYTES) {
            let part = &mut buf[..usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(MAX_TRANSFER_BYTES)];
            let sums = self.sums.get(at / BLOCK as u64, part.len() / BLOCK)?;
            for (place, range) in pieces(&self.places, at, part.len())? {
                read_now(&*self.device, &mut part[range], place)?;
            }
            f(at, &sums, part)?;
        }
        Ok(())
    }

    /// Recomputes the checksums of all bytes. There is no concurrent writer.
    pub(super) fn sum_anew(&self) -> io::Result<()> {
        self.each_part(|at, sums, bytes| {
            let new = bytes
                .chunks(BLOCK)
                .zip(sums)
                .map(|(block, &old)| if old == 0 { 0 } else { sum_of(block) });
            self.sums.set(at / BLOCK as u64, &new.collect::<Vec<u32>>())
        })
    }

    fn write(&self, source: &[u8], offset: u64) -> io::Result<()> {
        let sums: Vec<u32> = source.chunks(BLOCK).map(sum_of).collect();
        for (place, part) in pieces(&self.places, offset, source.len())? {
            write_now(&*self.device, &source[part], place)?;
        }
        self.sums.set(offset / BLOCK as u64, &sums)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let block = BLOCK as u64;
        let whole = offset.next_multiple_of(block)..(offset + len) / block * block;
        if whole.is_empty() {
            return Ok(());
        }
        let count = (whole.end - whole.start) / block;
        self.sums
            .set(whole.start / block, &vec![0; count as usize])?;
        let pieces = pieces(
            &self.places,
            whole.start,
            (whole.end - whole.start) as usize,
        )?;
        pieces
            .into_iter()
            .try_for_each(|(place, part)| discard_now(&*self.device, place, part.len() as u64))
    }

    /// Writes the sums to their blocks; a change of the catalog makes them durable together with
    /// the bytes.
    pub(super) fn write_sums(&self) -> io::Result<()> {
        self.sums.write()
    }
}

/// Contiguous pieces: the position of each on the underlying device, and its range of the bytes.
pub(super) fn pieces(
    places: &Places,
    offset: u64,
    len: usize,
) -> io::Result<Vec<(u64, Range<usize>)>> {
    let (mut found, mut at, block) = (Vec::new(), 0, BLOCK as u64);
    while at < len {
        let place = places
            .find((offset + at as u64) / block)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let end = len.min(at + usize::try_from(place.blocks * block).unwrap_or(usize::MAX));
        found.push((place.start * block, at..end));
        at = end;
    }
    Ok(found)
}

/// Blocks that do not match their sums.
pub(super) fn wrong_blocks(sums: &[u32], bytes: &[u8]) -> impl Iterator<Item = u64> {
    let blocks = bytes.chunks(BLOCK).zip(sums).enumerate();
    blocks
        .filter(|(_, (block, sum))| is_wrong(block, **sum))
        .map(|(number, _)| (number * BLOCK) as u64)
}

/// Whether a block does not match its sum. A block that was never written is filled with zeros.
pub(super) fn differs(block: &mut [u8], sum: u32) -> bool {
    if sum == 0 {
        block.fill(0);
    }
    is_wrong(block, sum)
}

fn is_wrong(block: &[u8], sum: u32) -> bool {
    sum != 0 && sum_of(block) != sum
}

pub(super) fn damaged(at: u64) -> io::Error {
    wrong(format!("the checksum of the block at byte {at} is wrong"))
}

/// A handle of an object.
pub(super) struct ObjectDevice {
    pub(super) body: Arc<Body>,
    pub(super) name: String,
    pub(super) may_write: bool,
    /// Keeps the store open as long as one of its objects is.
    pub(super) _store: Arc<Inner>,
}

impl ObjectDevice {
    pub(super) const LIMITS: Limits = Limits {
        sector: BLOCK as u32,
        max_transfer: MAX_TRANSFER_BYTES,
    };

    fn check_write(&self) -> io::Result<()> {
        let may_write = self.may_write && self.body.is_written.load(Ordering::Acquire);
        if may_write {
            Ok(())
        } else {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
    }
}

impl Device for ObjectDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        ObjectDevice::LIMITS
    }

    fn len(&self) -> u64 {
        self.body.len
    }

    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for ObjectDevice {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        self.body.read(destination, offset)?;
        Ok(destination.len())
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        self.check_write()?;
        self.body.write(source, offset)?;
        Ok(source.len())
    }

    fn flush(&self) -> io::Result<()> {
        self.body.write_sums()?;
        flush_now(&*self.body.device)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_write()?;
        self.body.discard(offset, len)
    }
}
