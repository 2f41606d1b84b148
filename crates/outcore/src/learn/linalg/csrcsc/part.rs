//! What a bucket has of a round: into scratch, and out of it.

use std::ops::Range;

use outcore_kernels::Real;

use super::buckets::Buckets;
use super::sorted::{Key, Keys, Sorted};

/// A bucket's part of a round, as the head of this file draws it.
pub(super) fn fill_part<T: Real>(bytes: &mut [u8], sorted: &[Sorted<T>], bucket: usize, has_values: bool, buckets: &Buckets) {
    let (first, place_bytes) = (buckets.places(bucket).start, buckets.place_bytes(bucket));
    let mut rest = bytes;
    let mut next = |len: usize| rest.split_off_mut(..len).expect("as long as was counted");
    for piece in sorted {
        next(8).copy_from_slice(bytemuck::bytes_of(&piece.counts(bucket)));
    }
    for piece in sorted.iter().filter(|_| has_values) {
        let values: &[u8] = bytemuck::cast_slice(&piece.values[piece.entries(bucket)]);
        next(values.len()).copy_from_slice(values);
    }
    for piece in sorted {
        let entries = piece.entries(bucket);
        let into = next(entries.len() * place_bytes);
        match &piece.keys {
            Keys::Narrow(keys) => fill_places(into, &keys[entries], first, place_bytes),
            Keys::Wide(keys) => fill_places(into, &keys[entries], first, place_bytes),
        }
    }
    for piece in sorted {
        let (entries, into) = (piece.entries(bucket), next(piece.gaps[bucket] as usize));
        match &piece.keys {
            Keys::Narrow(keys) => fill_gaps(into, &keys[entries]),
            Keys::Wide(keys) => fill_gaps(into, &keys[entries]),
        }
    }
    rest.fill(0);
}

fn fill_places(into: &mut [u8], keys: &[impl Key], first: u64, place_bytes: usize) {
    let places = keys.iter().map(|key| key.place(first));
    match place_bytes {
        1 => into.iter_mut().zip(places).for_each(|(into, place)| *into = place as u8),
        2 => into.as_chunks_mut().0.iter_mut().zip(places).for_each(|(into, place)| *into = (place as u16).to_ne_bytes()),
        _ => into.as_chunks_mut().0.iter_mut().zip(places).for_each(|(into, place)| *into = place.to_ne_bytes()),
    }
}

fn fill_gaps(into: &mut [u8], keys: &[impl Key]) {
    let (mut into, mut last) = (into.iter_mut(), 0);
    let mut put = |gap: u16| *into.next().expect("as many as were counted") = gap as u8;
    for key in keys {
        let mut gap = key.line() - last;
        last = key.line();
        while gap >= 255 {
            put(255);
            gap -= 255;
        }
        put(gap);
    }
}

/// One for each line, and one more for each 255 that it is behind the one before.
pub(super) fn gap_bytes(keys: &[impl Key]) -> u32 {
    let more = keys.windows(2).map(|pair| u32::from((pair[1].line() - pair[0].line()) / 255)).sum::<u32>();
    keys.len() as u32 + more + keys.first().map_or(0, |first| u32::from(first.line()) / 255)
}

/// Entries of a bucket and of a piece.
pub(super) struct Fragment<'a, T> {
    pub(super) first_line: u64,
    pub(super) entries: Entries<'a>,
    pub(super) values: &'a [T],
}

/// Places, from the first of their bucket, and lines, from the first of their piece.
#[derive(Clone, Copy)]
pub(super) enum Entries<'a> {
    /// So many of one place, and gaps.
    OnePlace(usize, &'a [u8]),
    /// Places and gaps.
    Bytes(&'a [u8], &'a [u8]),
    Narrow(&'a [u16], &'a [u8]),
    Wide(&'a [u32], &'a [u8]),
    /// Keys, and the first place of the bucket.
    NarrowKeys(&'a [u32], u64),
    WideKeys(&'a [u64], u64),
}

impl<T> Fragment<'_, T> {
    /// Calls `f` with the place of each entry.
    pub(super) fn each_place(&self, mut f: impl FnMut(usize)) {
        match self.entries {
            Entries::OnePlace(count, _) => (0..count).for_each(|_| f(0)),
            Entries::Bytes(places, _) => places.iter().for_each(|&place| f(usize::from(place))),
            Entries::Narrow(places, _) => places.iter().for_each(|&place| f(usize::from(place))),
            Entries::Wide(places, _) => places.iter().for_each(|&place| f(place as usize)),
            Entries::NarrowKeys(keys, first) => keys.iter().for_each(|key| f(key.place(first) as usize)),
            Entries::WideKeys(keys, first) => keys.iter().for_each(|key| f(key.place(first) as usize)),
        }
    }

    /// Calls `f` with number, place and line of each.
    pub(super) fn each(&self, mut f: impl FnMut(usize, usize, u64)) {
        match self.entries {
            Entries::NarrowKeys(keys, first) => self.each_key(keys, first, f),
            Entries::WideKeys(keys, first) => self.each_key(keys, first, f),
            Entries::OnePlace(_, gaps) | Entries::Bytes(_, gaps) | Entries::Narrow(_, gaps) | Entries::Wide(_, gaps) => {
                let (mut at, mut line, mut gaps) = (0, self.first_line, gaps.iter());
                self.each_place(|place| {
                    for &gap in gaps.by_ref() {
                        line += u64::from(gap);
                        if gap < 255 {
                            break;
                        }
                    }
                    f(at, place, line);
                    at += 1;
                });
            }
        }
    }

    fn each_key(&self, keys: &[impl Key], first: u64, mut f: impl FnMut(usize, usize, u64)) {
        let entries = keys.iter().enumerate();
        entries.for_each(|(at, key)| f(at, key.place(first) as usize, self.first_line + u64::from(key.line())));
    }
}

/// Takes a part apart again: entries and values of each piece.
pub(super) fn part_fragments<T: Real>(
    bytes: &[u8],
    pieces: Range<usize>,
    has_values: bool,
    place_bytes: usize,
    mut f: impl FnMut(usize, Entries<'_>, &[T]),
) {
    let (head, rest) = bytes.split_at(8 * pieces.len());
    let counts: &[[u32; 2]] = bytemuck::cast_slice(head);
    let entries: usize = counts.iter().map(|count| count[0] as usize).sum();
    let (values, rest) = rest.split_at(if has_values { entries * size_of::<T>() } else { 0 });
    let (places, mut gaps) = rest.split_at(entries * place_bytes);
    let values: &[T] = if values.is_empty() { &[] } else { bytemuck::cast_slice(values) };
    let mut at = 0;
    for (piece, &[entries, gap_bytes]) in pieces.zip(counts) {
        let range = at..at + entries as usize;
        at = range.end;
        let (these, rest) = gaps.split_at(gap_bytes as usize);
        gaps = rest;
        let places = &places[range.start * place_bytes..range.end * place_bytes];
        let entries = match place_bytes {
            _ if places.is_empty() => Entries::OnePlace(0, these),
            1 => Entries::Bytes(places, these),
            2 => Entries::Narrow(bytemuck::cast_slice(places), these),
            _ => Entries::Wide(bytemuck::cast_slice(places), these),
        };
        f(piece, entries, if has_values { &values[range] } else { &[] });
    }
}
