//! A piece sorted by bucket.

use std::ops::Range;

use bytemuck::Zeroable;
use outcore_kernels::{Csr, Lines, Real};

use super::buckets::Buckets;
use super::part::gap_bytes;
use crate::data::sparse::in_lines;
use crate::error::Result;

/// Entries of one piece, sorted by bucket. Their memory is used again: pages would have to be cleared for every piece.
#[derive(Default)]
pub(super) struct Sorted<T> {
    /// Where each bucket begins.
    pub(super) starts: Vec<u32>,
    /// Bytes of gaps of each.
    pub(super) gaps: Vec<u32>,
    pub(super) places: PlacesOf,
    pub(super) values: Vec<T>,
    /// From the piece's first.
    pub(super) lines: Vec<u16>,
}

/// Places, from the first of their bucket.
pub(super) enum PlacesOf {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl PlacesOf {
    fn narrow(self) -> Vec<u16> {
        if let PlacesOf::Narrow(places) = self { places } else { Vec::new() }
    }

    fn wide(self) -> Vec<u32> {
        if let PlacesOf::Wide(places) = self { places } else { Vec::new() }
    }
}

impl Default for PlacesOf {
    fn default() -> Self {
        PlacesOf::Narrow(Vec::new())
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
pub(super) fn sort_tiles<T: Real>(a: impl Lines<T>, buckets: &Buckets, has_values: bool, used: Sorted<T>) -> Result<Sorted<T>> {
    let (mut places, mut values) = (vec![0i64; a.entries()], vec![T::ZERO; a.entries()]);
    let offsets = in_lines(a, |at, _, place, value| (places[at], values[at]) = (place as i64, value));
    let offsets: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
    let entries = *offsets.last().unwrap_or(&0) as usize;
    Ok(sort_piece(Csr::new(a.width(), &offsets, &places[..entries], &values[..entries])?, buckets, has_values, used))
}

/// Counts, then puts every entry behind the others of its bucket.
pub(super) fn sort_piece<T: Real>(a: impl Lines<T>, buckets: &Buckets, has_values: bool, used: Sorted<T>) -> Sorted<T> {
    let count = buckets.count();
    let mut starts = zeros(used.starts, count + 1);
    a.each_line(|_, row| row.each(|place, _| starts[buckets.of(place as u64) + 1] += 1));
    (0..count).for_each(|bucket| starts[bucket + 1] += starts[bucket]);
    let (all, mut next) = (starts[count] as usize, starts.clone());
    let (mut lines, mut values) = (zeros(used.lines, all), zeros(used.values, if has_values { all } else { 0 }));
    let put = |line: usize, place: u64, value: T| {
        let bucket = buckets.of(place);
        let at = next[bucket] as usize;
        next[bucket] += 1;
        lines[at] = line as u16;
        if has_values {
            values[at] = value;
        }
        (at, place - buckets.places(bucket).start)
    };
    let places = match buckets.are_narrow() {
        true => PlacesOf::Narrow(places_of(&a, zeros(used.places.narrow(), all), |place| place as u16, put)),
        false => PlacesOf::Wide(places_of(&a, zeros(used.places.wide(), all), |place| place as u32, put)),
    };
    let gaps = (0..count).map(|bucket| gap_bytes(&lines[starts[bucket] as usize..starts[bucket + 1] as usize])).collect();
    Sorted { starts, gaps, places, values, lines }
}

/// Puts every entry where `put` says, and its place, which `put` counts from the first of the bucket, into `places`.
fn places_of<T: Real, P>(
    a: &impl Lines<T>,
    mut places: Vec<P>,
    narrow: impl Fn(u64) -> P,
    mut put: impl FnMut(usize, u64, T) -> (usize, u64),
) -> Vec<P> {
    a.each_line(|line, row| {
        row.each(|place, value| {
            let (at, place) = put(line, place as u64, value);
            places[at] = narrow(place);
        });
    });
    places
}

/// So many zeros, in memory that was used before, if that was for nearly as many.
fn zeros<T: Zeroable + Copy>(mut used: Vec<T>, count: usize) -> Vec<T> {
    if used.capacity() > count + count / 4 {
        used = Vec::new();
    }
    used.clear();
    used.reserve_exact(count);
    used.resize(count, T::zeroed());
    used
}
