//! A piece sorted by bucket.

use std::ops::Range;

use bytemuck::Zeroable;
use outcore_core::Result;
use outcore_kernels::{Csr, Lines, Real};
use outcore_matrix::sparse::in_lines;

use super::buckets::Buckets;
use super::segment::gap_bytes;

/// Entries of one piece, sorted by bucket. Their memory is used again: pages would have to be
/// cleared for every piece.
#[derive(Default)]
pub(super) struct Sorted<T> {
    /// Where each bucket begins.
    pub(super) starts: Vec<u32>,
    /// Bytes of gaps of each.
    pub(super) gaps: Vec<u32>,
    pub(super) keys: Keys,
    pub(super) values: Vec<T>,
}

/// Minor index and line of each entry.
pub(super) enum Keys {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

/// A line, from the piece's first, in the low 16 bits, above it as much of a minor index as is
/// needed.
pub(super) trait Key: Copy + Zeroable {
    fn new(minor: usize, line: usize) -> Self;
    fn line(self) -> u16;
    /// From the first of its bucket.
    fn minor(self, first: u64) -> u32;
    /// Memory that was used before.
    fn used(keys: Keys) -> Vec<Self>;
}

/// Buckets of at most 2^16 minor indices.
impl Key for u32 {
    fn new(minor: usize, line: usize) -> u32 {
        (minor as u32) << 16 | line as u32
    }

    fn line(self) -> u16 {
        self as u16
    }

    fn minor(self, first: u64) -> u32 {
        u32::from(((self >> 16) as u16).wrapping_sub(first as u16))
    }

    fn used(keys: Keys) -> Vec<u32> {
        if let Keys::Narrow(keys) = keys {
            keys
        } else {
            Vec::new()
        }
    }
}

impl Key for u64 {
    fn new(minor: usize, line: usize) -> u64 {
        (minor as u64) << 16 | line as u64
    }

    fn line(self) -> u16 {
        self as u16
    }

    fn minor(self, first: u64) -> u32 {
        ((self >> 16) - first) as u32
    }

    fn used(keys: Keys) -> Vec<u64> {
        if let Keys::Wide(keys) = keys {
            keys
        } else {
            Vec::new()
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Keys::Narrow(Vec::new())
    }
}

impl<T: Real> Sorted<T> {
    pub(super) fn entries(&self, bucket: usize) -> Range<usize> {
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }

    /// Entries and bytes of gaps.
    pub(super) fn counts(&self, bucket: usize) -> [u32; 2] {
        [self.entries(bucket).len() as u32, self.gaps[bucket]]
    }
}

/// The same for lines that come in parts: first put together.
pub(super) fn sort_tiles<T: Real>(
    a: impl Lines<T>,
    buckets: &Buckets,
    has_values: bool,
    used: Sorted<T>,
) -> Result<Sorted<T>> {
    let (mut minors, mut values) = (vec![0i64; a.entries()], vec![T::ZERO; a.entries()]);
    let offsets = in_lines(a, |at, _, minor, value| {
        (minors[at], values[at]) = (minor as i64, value)
    });
    let offsets: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
    let entries = *offsets.last().unwrap_or(&0) as usize;
    Ok(sort_piece(
        Csr::new(a.width(), &offsets, &minors[..entries], &values[..entries])?,
        buckets,
        has_values,
        used,
    ))
}

/// Counts, then puts every entry behind the others of its bucket.
pub(super) fn sort_piece<T: Real>(
    a: impl Lines<T>,
    buckets: &Buckets,
    has_values: bool,
    used: Sorted<T>,
) -> Sorted<T> {
    assert!(a.lines() <= 1 << 16, "a key has 16 bits for the line");
    let count = buckets.count();
    let mut starts = zeros(used.starts, count + 1);
    a.each_line(|_, row| row.each(|minor, _| starts[buckets.of(minor as u64) + 1] += 1));
    (0..count).for_each(|bucket| starts[bucket + 1] += starts[bucket]);
    let mut values = zeros(
        used.values,
        if has_values {
            starts[count] as usize
        } else {
            0
        },
    );
    let (keys, gaps) = match buckets.are_narrow() {
        true => place_all(
            &a,
            buckets,
            &starts,
            u32::used(used.keys),
            &mut values,
            Keys::Narrow,
        ),
        false => place_all(
            &a,
            buckets,
            &starts,
            u64::used(used.keys),
            &mut values,
            Keys::Wide,
        ),
    };
    Sorted {
        starts,
        gaps,
        keys,
        values,
    }
}

/// The keys, and how many bytes the gaps of each bucket take.
fn place_all<T: Real, K: Key>(
    a: &impl Lines<T>,
    buckets: &Buckets,
    starts: &[u32],
    used: Vec<K>,
    values: &mut [T],
    of: fn(Vec<K>) -> Keys,
) -> (Keys, Vec<u32>) {
    let mut next = starts.to_vec();
    let mut keys = zeros(used, starts[buckets.count()] as usize);
    let into = &mut keys[..];
    a.each_line(|line, row| {
        row.each(|minor, value| {
            let next = &mut next[buckets.of(minor as u64)];
            let at = *next as usize;
            *next += 1;
            into[at] = K::new(minor, line);
            if let Some(into) = values.get_mut(at) {
                *into = value;
            }
        });
    });
    let gaps = starts
        .windows(2)
        .map(|pair| gap_bytes(&keys[pair[0] as usize..pair[1] as usize]))
        .collect();
    (of(keys), gaps)
}

/// `count` zeros, in memory that was used before, if that was for nearly as many.
fn zeros<T: Zeroable + Copy>(mut used: Vec<T>, count: usize) -> Vec<T> {
    if used.capacity() > count + count / 4 {
        used = Vec::new();
    }
    used.clear();
    used.reserve_exact(count);
    used.resize(count, T::zeroed());
    used
}
