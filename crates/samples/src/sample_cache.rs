//! Samples that stay in memory until their next use, in a reclaimable pool.
//!
//! The order of the next epoch is known, so what is kept is what comes again soonest (Belady,
//! 1966): of a random order, the samples whose next use is less than d epochs away, where d is such
//! that they fill the memory. One that is kept has been compared with its checksum.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use outcore_core::{Error, MemorySplit, Result};
use outcore_device::{Buf, Locked};
use outcore_engine::{Pieces, ReclaimablePool, Reservation};

use super::dataset::Dataset;

/// Pieces of memory, of which there should be some dozens.
const PIECE_BYTES_MIN: u64 = 256 << 10;
const PIECE_BYTES_MAX: u64 = 2 << 20;
/// Slots of longer ones are not counted.
const PIECE_BYTES_LONGEST: u64 = 1 << 30;
/// Of a piece, a sample at most.
const OF_PIECE: u64 = 4;
/// A table that is looked up at random should not need many entries of a processor's table of
/// pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Slots are multiples of this.
const SLOT_BYTES_MIN: usize = 16;
/// What a slot takes besides its bytes: its place in a list of those that are free.
const SLOT_BYTES_BESIDE: u64 = 16;
/// Memory for a smaller part of the samples would be found to hold too few of those that are
/// wanted.
const PART_MIN: f64 = 1.0 / 64.0;

/// Samples in memory.
pub(super) struct SampleCache {
    pool: ReclaimablePool,
    piece_bytes: usize,
    table: Mutex<Table>,
    /// Of the table.
    _reserved: Reservation,
}

/// Where a sample is.
#[derive(Clone, Copy)]
pub(super) struct CacheSlot {
    piece: u32,
    number: u32,
    pub(super) len: u32,
}

/// A piece has slots of one size.
#[derive(Clone, Copy, Default)]
struct Slab {
    slot_bytes: usize,
    used: usize,
}

#[derive(Default)]
struct Table {
    /// By sample, as u32: its slot, among as many as every piece may have, and one more; none for
    /// one that is not kept.
    by_sample: Buf,
    slots_of_piece: u32,
    /// How often a sample went.
    gone: u64,
    pieces: Vec<Slab>,
    /// Pieces that have no sample.
    unused: usize,
    /// By size: piece and number.
    free: HashMap<usize, Vec<(u32, u32)>>,
}

/// A look at what is kept; nothing goes meanwhile.
pub(super) struct Guard<'a> {
    piece_bytes: usize,
    table: MutexGuard<'a, Table>,
    pieces: MutexGuard<'a, Pieces>,
}

/// Eight sizes between a power of two and the next waste a ninth at most.
fn slot_bytes(len: usize) -> usize {
    len.max(1)
        .next_multiple_of((len.next_power_of_two() / 16).max(SLOT_BYTES_MIN))
}

impl SampleCache {
    /// Nothing yet. None where samples are too long to be kept.
    pub(super) fn new(dataset: &Dataset) -> Result<Option<SampleCache>> {
        let (session, samples) = (dataset.session(), dataset.len().max(1));
        let mean = (dataset.bytes() / samples).max(1);
        let [piece_bytes, longest_bytes] = MemorySplit::new(session).cache_piece_bytes();
        let piece_bytes = piece_bytes
            .next_power_of_two()
            .clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        let piece_bytes = piece_bytes.max((OF_PIECE * mean).next_power_of_two());
        if piece_bytes > longest_bytes.min(PIECE_BYTES_LONGEST) {
            return Ok(None);
        }
        let table_bytes = match samples * size_of::<u32>() as u64 {
            bytes if bytes < HUGE_PAGE_BYTES / 4 => bytes,
            bytes => bytes.next_multiple_of(HUGE_PAGE_BYTES),
        };
        let reserved = match session
            .engine()
            .reserve("which samples are kept", table_bytes)
        {
            Err(outcore_engine::Error::OverBudget { .. }) => return Ok(None),
            found => found?,
        };
        let pool = session
            .engine()
            .reclaimable_pool(piece_bytes as usize, piece_bytes / mean * SLOT_BYTES_BESIDE)?;
        let (all, slots_of_piece) = (
            samples.saturating_mul(slot_bytes(mean as usize) as u64),
            piece_bytes as u32 / SLOT_BYTES_MIN as u32,
        );
        let most = u64::from(u32::MAX / slots_of_piece) - 1;
        pool.want((all.saturating_add(all / 4).div_ceil(piece_bytes) + 1).min(most) as usize);
        let by_sample =
            Buf::not_inherited(table_bytes as usize).map_err(|source| Error::NoMemory {
                bytes: table_bytes,
                source,
            })?;
        let table = Table {
            by_sample,
            slots_of_piece,
            ..Table::default()
        };
        Ok(Some(SampleCache {
            pool,
            piece_bytes: piece_bytes as usize,
            table: Mutex::new(table),
            _reserved: reserved,
        }))
    }

    pub(super) fn open(&self) -> Guard<'_> {
        let mut table = self.table.locked();
        let mut pieces = self.pool.pieces();
        let lost = pieces.lost_from();
        if lost < table.pieces.len() {
            table.lose(lost);
        }
        table.unused += pieces.bufs.len() - table.pieces.len();
        table.pieces.resize(pieces.bufs.len(), Slab::default());
        Guard {
            piece_bytes: self.piece_bytes,
            table,
            pieces,
        }
    }
}

impl Table {
    fn slots(&self) -> &[u32] {
        bytemuck::cast_slice(&self.by_sample)
    }

    fn slots_mut(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.by_sample)
    }

    /// Forgets pieces from one on.
    fn lose(&mut self, first: usize) {
        self.gone += 1;
        let end = first as u32 * self.slots_of_piece;
        self.slots_mut()
            .iter_mut()
            .filter(|slot| **slot > end)
            .for_each(|slot| *slot = 0);
        self.free
            .values_mut()
            .for_each(|free| free.retain(|&(piece, _)| (piece as usize) < first));
        self.pieces.truncate(first);
        self.unused = self.pieces.iter().filter(|piece| piece.used == 0).count();
    }

    /// One sample more, or less, in a piece.
    fn use_of(&mut self, piece: u32, change: isize) {
        let used = &mut self.pieces[piece as usize].used;
        self.unused -= usize::from(*used == 0);
        *used = used
            .checked_add_signed(change)
            .expect("no sample leaves that is not there");
        self.unused += usize::from(*used == 0);
    }

    /// A slot that is free, or a piece that is made into such.
    fn vacant(&mut self, slot_bytes: usize, piece_bytes: usize) -> Option<(u32, u32)> {
        if let Some(slot) = self.free.get_mut(&slot_bytes).and_then(Vec::pop) {
            return Some(slot);
        }
        if self.unused == 0 {
            return None;
        }
        let piece = self.pieces.iter().position(|piece| piece.used == 0)?;
        let old = self.pieces[piece].slot_bytes;
        self.free
            .entry(old)
            .and_modify(|free| free.retain(|&(of, _)| of as usize != piece));
        self.pieces[piece].slot_bytes = slot_bytes;
        let slots = (0..(piece_bytes / slot_bytes) as u32)
            .rev()
            .map(|number| (piece as u32, number));
        let free = self.free.entry(slot_bytes).or_default();
        free.extend(slots);
        free.pop()
    }
}

impl Guard<'_> {
    /// The part of `samples` samples, of `bytes` bytes together, that has room here.
    pub(super) fn part(&self, bytes: u64, samples: u64) -> f64 {
        let each = slot_bytes((bytes / samples.max(1)) as usize) as f64;
        (self.pieces.bufs.len() * self.piece_bytes) as f64 / (each * samples.max(1) as f64)
    }

    fn has(&self, sample: u64) -> bool {
        self.table.slots()[sample as usize] != 0
    }

    /// How often a sample went: where samples were is where they are while this is the same.
    pub(super) fn gone(&self) -> u64 {
        self.table.gone
    }

    /// What the table has of each of some samples. A processor looks up many at once, as long as
    /// nothing else is done with them.
    pub(super) fn entries(&self, samples: &[u64]) -> Vec<u32> {
        let slots = self.table.slots();
        samples
            .iter()
            .map(|&sample| slots[sample as usize])
            .collect()
    }

    /// Where a sample of `len` bytes with this entry is.
    pub(super) fn slot(&self, entry: u32, len: u32) -> Option<CacheSlot> {
        let slot = entry.checked_sub(1)?;
        let (piece, number) = (
            slot / self.table.slots_of_piece,
            slot % self.table.slots_of_piece,
        );
        Some(CacheSlot { piece, number, len })
    }

    pub(super) fn at(&self, CacheSlot { piece, number, len }: CacheSlot) -> &[u8] {
        let start = number as usize * self.table.pieces[piece as usize].slot_bytes;
        &self.pieces.bufs[piece as usize][start..start + len as usize]
    }

    /// Takes a sample in, if there is a place for it.
    pub(super) fn put(&mut self, sample: u64, bytes: &[u8]) {
        let slot_bytes = slot_bytes(bytes.len());
        if slot_bytes > self.piece_bytes || self.has(sample) {
            return;
        }
        let Some((piece, number)) = self.table.vacant(slot_bytes, self.piece_bytes) else {
            return;
        };
        self.table.use_of(piece, 1);
        self.pieces.bufs[piece as usize][number as usize * slot_bytes..][..bytes.len()]
            .copy_from_slice(bytes);
        let slot = piece * self.table.slots_of_piece + number + 1;
        self.table.slots_mut()[sample as usize] = slot;
    }

    /// Lets go of a sample.
    pub(super) fn remove(&mut self, sample: u64) {
        if let Some(CacheSlot { piece, number, .. }) =
            self.slot(self.table.slots()[sample as usize], 0)
        {
            self.table.slots_mut()[sample as usize] = 0;
            self.table.gone += 1;
            self.table.use_of(piece, -1);
            let slot_bytes = self.table.pieces[piece as usize].slot_bytes;
            self.table
                .free
                .entry(slot_bytes)
                .or_default()
                .push((piece, number));
        }
    }
}

/// How many epochs away the next use of a sample may be, if the samples of a random order that have
/// theirs sooner are to be such a part of all. Uses lie up to two epochs apart, x with density x up
/// to one, and 2 - x from there; a sample is held as long as that.
pub(super) fn horizon(part: f64) -> f64 {
    let held = |d: f64| {
        if d <= 1.0 {
            d.powi(3) / 3.0
        } else {
            d * d - d.powi(3) / 3.0 - 1.0 / 3.0
        }
    };
    match part {
        _ if part < PART_MIN => 0.0,
        _ if part >= 1.0 => 2.0,
        _ => {
            let (mut low, mut high) = (0.0, 2.0);
            for _ in 0..40 {
                let middle = (low + high) / 2.0;
                if held(middle) < part {
                    low = middle
                } else {
                    high = middle
                }
            }
            low
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::Permutation;
    use super::*;

    #[test]
    fn what_comes_again_within_the_horizon_fills_the_memory() {
        let samples = 20_000;
        for part in [0.05, 0.125, 0.4, 0.9] {
            let (order, next) = (
                Permutation::new(samples, 1, 0),
                Permutation::new(samples, 1, 1),
            );
            let limit = horizon(part) * samples as f64;
            let apart = |sample| samples - order.position_of(sample) + next.position_of(sample);
            let held: u64 = (0..samples)
                .map(apart)
                .filter(|&apart| apart as f64 <= limit)
                .sum();
            assert!(
                (held as f64 / (samples * samples) as f64 - part).abs() < 0.02,
                "{part}"
            );
        }
        assert_eq!((horizon(0.0), horizon(1.5)), (0.0, 2.0));
    }

    #[test]
    fn slots_waste_little() {
        for len in 1..=100_000 {
            let slot = slot_bytes(len);
            assert!(
                slot >= len && (slot < len + 16 || slot * 8 <= len * 9),
                "{len} {slot}"
            );
        }
    }
}
