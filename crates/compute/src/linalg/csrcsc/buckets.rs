//! Minor indices cut into buckets of about equal entries, and buckets into groups that go through
//! scratch
//! together.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{Plan, Task};
use outcore_kernels::{Lines, Real};
use outcore_matrix::Sparse;
use outcore_matrix::sparse::with_lines;

use super::{GROUP, NARROW};

/// Minor indices that are looked at to find out how entries lie.
const SAMPLES: usize = 1 << 16;
/// Pieces that they are taken from: many, since minor indices may depend on lines; of a small matrix
/// fewer, since they are read for this only.
const SAMPLED: (usize, usize) = (64, 1024);
/// Entries of the table that says which bucket a minor index is in.
const TABLE_BITS: u32 = 20;

/// Which bucket a minor index is in.
pub(super) struct Buckets {
    /// First minor index of each, and the end of the last.
    starts: Vec<u64>,
    /// Which buckets each has.
    groups: Vec<Range<usize>>,
    table: Vec<u16>,
    shift: u32,
}

impl Buckets {
    /// Quantiles of the sample, at minor indices that are multiples of 2^shift; none wider than
    /// `widest`, if that is not less.
    pub(super) fn new(width: u64, wanted: u64, widest: u64, mut sample: Vec<u64>) -> Buckets {
        let shift = (64 - width.leading_zeros()).saturating_sub(TABLE_BITS);
        sample.sort_unstable();
        let widest = (widest >> shift << shift).max(1 << shift);
        let mut quantiles: Vec<u64> = (1..wanted)
            .filter_map(|part| {
                sample
                    .get(sample.len() * part as usize / wanted as usize)
                    .copied()
            })
            .collect();
        // A minor index that is met at two quantiles has a bucket to itself.
        let heavy: Vec<u64> = quantiles
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0] + (1 << shift))
            .collect();
        quantiles.extend(heavy);
        quantiles.sort_unstable();
        let mut starts = vec![0];
        for start in quantiles.into_iter().chain([width]) {
            let start = if start >= width {
                width
            } else {
                start >> shift << shift
            };
            while start.saturating_sub(*starts.last().expect("never empty")) > widest {
                starts.push(starts.last().expect("never empty") + widest);
            }
            if start > *starts.last().expect("never empty") || starts.len() == 1 && width == 0 {
                starts.push(start);
            }
        }
        let mut table = vec![0; (width >> shift) as usize + 1];
        for (bucket, pair) in starts.windows(2).enumerate() {
            table[(pair[0] >> shift) as usize..pair[1].div_ceil(1 << shift) as usize]
                .fill(bucket as u16);
        }
        Buckets {
            groups: groups(&starts, wanted, &sample),
            starts,
            table,
            shift,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// Whether a group is a bucket of one minor index, which needs no sorting.
    pub(super) fn is_one_index(&self, group: &Range<usize>) -> bool {
        group.len() == 1 && self.minor_bytes(group.start) == 0
    }

    #[inline]
    pub(super) fn of(&self, minor: u64) -> usize {
        usize::from(self.table[(minor >> self.shift) as usize])
    }

    pub(super) fn minors(&self, bucket: usize) -> Range<u64> {
        self.starts[bucket]..self.starts[bucket + 1]
    }

    pub(super) fn are_narrow(&self) -> bool {
        self.starts
            .windows(2)
            .all(|pair| pair[1] - pair[0] <= NARROW)
    }

    /// Bytes of a minor index in scratch; nothing where there is one only.
    pub(super) fn minor_bytes(&self, bucket: usize) -> usize {
        match self.starts[bucket + 1] - self.starts[bucket] {
            1 => 0,
            0..=0x100 => 1,
            0x101..=NARROW => 2,
            _ => 4,
        }
    }
}

/// Buckets next to each other, as many as are put together at once, or fewer that have as many
/// entries; a minor index by itself where it has.
fn groups(starts: &[u64], wanted: u64, sample: &[u64]) -> Vec<Range<usize>> {
    let weight = |bucket: usize| {
        let before = |minor| sample.partition_point(|&other| other < minor);
        before(starts[bucket + 1]) - before(starts[bucket])
    };
    let most = sample.len() * GROUP as usize / wanted as usize;
    let (mut groups, mut sum): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    for bucket in 0..starts.len() - 1 {
        let weight = weight(bucket);
        match groups.last_mut() {
            Some(group) if group.len() < GROUP as usize && sum + weight <= most + most / 8 => {
                group.end += 1;
                sum += weight;
            }
            _ => {
                groups.push(bucket..bucket + 1);
                sum = weight;
            }
        }
    }
    groups
}

/// Tasks that look at some pieces.
pub(super) fn sample_plan<T: Real>(plan: &mut Plan, a: &Sparse) -> Arc<Mutex<Vec<u64>>> {
    let sample = Arc::new(Mutex::new(Vec::new()));
    let turn = plan.serial();
    let sampled = a.sampled(SAMPLED.0, SAMPLED.1);
    let each = SAMPLES / sampled.len().max(1);
    for piece in sampled {
        let (lines, sample) = (a.blocks(&piece), Arc::clone(&sample));
        let task = Task::new("sample").update(turn);
        let task = a.regions(plan, &piece).into_iter().fold(task, Task::read);
        plan.task(task.run(move |cx| {
            let step = (lines.piece.entries() as usize).div_ceil(each).max(1);
            let mut sample = sample.locked();
            let mut seen = 0;
            with_lines!(lines, &cx.blocks[1..], T, a => a.each_line(|_, entries| entries.each(|minor, _| {
                if seen % step == 0 {
                    sample.push(minor as u64);
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
            let buckets = Buckets::new(width, 8, NARROW, vec![width - 1; 100]);
            assert_eq!(buckets.minors(buckets.count() - 1).end, width);
            assert_eq!(buckets.of(width - 1), buckets.count() - 1);
        }
    }

    #[test]
    fn groups_have_about_equal_entries_and_a_place_of_as_many_is_alone() {
        let even = Buckets::new(1000, 40, NARROW, (0..1000).collect());
        assert_eq!(even.groups().len(), 10);
        let heavy = Buckets::new(
            1000,
            40,
            NARROW,
            (0..500).chain([500; 500]).chain(500..1000).collect(),
        );
        let alone: Vec<_> = heavy
            .groups()
            .iter()
            .filter(|group| heavy.is_one_index(group))
            .collect();
        assert_eq!(alone.len(), 1);
        assert_eq!(heavy.minors(alone[0].start), 500..501);
        for buckets in [even, heavy] {
            assert!(
                buckets
                    .groups()
                    .windows(2)
                    .all(|pair| pair[0].end == pair[1].start && pair[0].len() <= GROUP as usize)
            );
            assert_eq!(
                buckets.groups().last().map(|group| group.end),
                Some(buckets.count())
            );
        }
    }
}
