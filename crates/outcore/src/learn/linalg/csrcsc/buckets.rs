//! Places cut into buckets of about equal entries.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_engine::{Plan, Region, Task};
use outcore_kernels::{Lines, Real};

use super::{BUCKETS_MOST, NARROW};
use crate::data::sparse::{Piece, Sparse, with_lines};

/// Places that are looked at to find out how entries lie.
const SAMPLES: usize = 1 << 16;
/// Entries of the table that says which bucket a place is in.
const TABLE_BITS: u32 = 20;

/// Which bucket a place is in.
pub(super) struct Buckets {
    /// First place of each, and the end of the last.
    starts: Vec<u64>,
    table: Vec<u16>,
    shift: u32,
}

impl Buckets {
    /// Quantiles of the sample, at places that are multiples of 2^shift.
    pub(super) fn new(width: u64, wanted: u64, mut sample: Vec<u64>) -> Buckets {
        let shift = (64 - width.leading_zeros()).saturating_sub(TABLE_BITS);
        sample.sort_unstable();
        let mut starts = vec![0];
        let widest = if width.div_ceil(NARROW) <= BUCKETS_MOST / 2 { NARROW } else { width.div_ceil(BUCKETS_MOST / 2) };
        let widest = (widest >> shift << shift).max(1 << shift);
        let mut quantiles: Vec<u64> =
            (1..wanted).filter_map(|part| sample.get(sample.len() * part as usize / wanted as usize).copied()).collect();
        // A place that is met at two quantiles has a bucket to itself.
        let heavy: Vec<u64> = quantiles.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0] + (1 << shift)).collect();
        quantiles.extend(heavy);
        quantiles.sort_unstable();
        for start in quantiles.into_iter().chain([width]) {
            let start = if start >= width { width } else { start >> shift << shift };
            while start.saturating_sub(*starts.last().expect("never empty")) > widest {
                starts.push(starts.last().expect("never empty") + widest);
            }
            if start > *starts.last().expect("never empty") || starts.len() == 1 && width == 0 {
                starts.push(start);
            }
        }
        let mut table = vec![0; (width >> shift) as usize + 1];
        for (bucket, pair) in starts.windows(2).enumerate() {
            table[(pair[0] >> shift) as usize..pair[1].div_ceil(1 << shift) as usize].fill(bucket as u16);
        }
        Buckets { starts, table, shift }
    }

    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    #[inline]
    pub(super) fn of(&self, place: u64) -> usize {
        usize::from(self.table[(place >> self.shift) as usize])
    }

    pub(super) fn places(&self, bucket: usize) -> Range<u64> {
        self.starts[bucket]..self.starts[bucket + 1]
    }

    pub(super) fn are_narrow(&self) -> bool {
        self.starts.windows(2).all(|pair| pair[1] - pair[0] <= NARROW)
    }

    /// Bytes of a place in scratch.
    pub(super) fn place_bytes(&self, bucket: usize) -> usize {
        match self.starts[bucket + 1] - self.starts[bucket] {
            0..=0x100 => 1,
            0x101..=NARROW => 2,
            _ => 4,
        }
    }
}

/// Tasks that look at some pieces.
pub(super) fn sample_plan<T: Real>(plan: &mut Plan, a: &Sparse, pieces: &[Piece]) -> Arc<Mutex<Vec<u64>>> {
    let sample = Arc::new(Mutex::new(Vec::new()));
    let turn = plan.volatile("turn", 1);
    let looked: Vec<&Piece> = pieces.iter().step_by(pieces.len().div_ceil(16).max(1)).collect();
    let each = SAMPLES / looked.len().max(1);
    for piece in looked {
        let (lines, sample) = (a.blocks(piece), Arc::clone(&sample));
        let task = Task::new("sample").update(Region::span(turn, 0, 1));
        let task = a.regions(plan, piece).into_iter().fold(task, Task::read);
        plan.task(task.run(move |cx| {
            let step = (lines.piece.entries() as usize).div_ceil(each).max(1);
            let mut sample = sample.lock().expect("no panic while held");
            let mut seen = 0;
            with_lines!(lines, &cx.blocks[1..], T, a => a.each_line(|_, entries| entries.each(|place, _| {
                if seen % step == 0 {
                    sample.push(place as u64);
                }
                seen += 1;
            })));
            Ok(())
        }));
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_last_place_ends_where_places_end() {
        for width in [1, 5, (1 << 21) + 1, (1 << 21) + 3] {
            let buckets = Buckets::new(width, 8, vec![width - 1; 100]);
            assert_eq!(buckets.places(buckets.count() - 1).end, width);
            assert_eq!(buckets.of(width - 1), buckets.count() - 1);
        }
    }
}
