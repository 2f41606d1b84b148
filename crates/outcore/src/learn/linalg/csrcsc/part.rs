//! What a bucket has of a round: into scratch, and out of it.

use std::ops::Range;

use outcore_kernels::Real;

use super::sorted::{PlacesOf, Sorted};

/// A bucket's part of a round, as the head of this file draws it.
pub(super) fn fill_part<T: Real>(bytes: &mut [u8], sorted: &[Sorted<T>], bucket: usize, has_values: bool, place_bytes: usize) {
    let mut at = 0;
    let mut put = |from: &[u8]| {
        bytes[at..at + from.len()].copy_from_slice(from);
        at += from.len();
    };
    sorted.iter().for_each(|piece| put(bytemuck::bytes_of(&piece.counts(bucket))));
    if has_values {
        sorted.iter().for_each(|piece| put(bytemuck::cast_slice(&piece.values[piece.entries(bucket)])));
    }
    for piece in sorted {
        match (&piece.places, place_bytes) {
            (PlacesOf::Narrow(places), 2) => put(bytemuck::cast_slice(&places[piece.entries(bucket)])),
            (PlacesOf::Narrow(places), _) => places[piece.entries(bucket)].iter().for_each(|&place| put(&[place as u8])),
            (PlacesOf::Wide(places), 1) => places[piece.entries(bucket)].iter().for_each(|&place| put(&[place as u8])),
            (PlacesOf::Wide(places), 2) => {
                places[piece.entries(bucket)].iter().for_each(|&place| put(&(place as u16).to_le_bytes()));
            }
            (PlacesOf::Wide(places), _) => put(bytemuck::cast_slice(&places[piece.entries(bucket)])),
        }
    }
    for piece in sorted {
        let mut last = 0;
        for &line in &piece.lines[piece.entries(bucket)] {
            let mut gap = line - last;
            last = line;
            while gap >= 255 {
                put(&[255]);
                gap -= 255;
            }
            put(&[gap as u8]);
        }
    }
    bytes[at..].fill(0);
}

/// One for each line, and one more for each 255 that it is behind the one before.
pub(super) fn gap_bytes(lines: &[u16]) -> u32 {
    let more = lines.windows(2).map(|pair| u32::from((pair[1] - pair[0]) / 255)).sum::<u32>();
    lines.len() as u32 + more + lines.first().map_or(0, |&first| u32::from(first) / 255)
}

/// Places in a bucket.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    Zero,
    Bytes(&'a [u8]),
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

/// Lines of entries, from the piece's first.
#[derive(Clone, Copy)]
pub(super) enum LinesOf<'a> {
    Gaps(&'a [u8]),
    Numbers(&'a [u16]),
}

/// Entries of a bucket and of a piece.
pub(super) struct Fragment<'a, T> {
    pub(super) first_line: u64,
    pub(super) entries: usize,
    pub(super) places: Places<'a>,
    pub(super) values: &'a [T],
    pub(super) lines: LinesOf<'a>,
}

impl<T> Fragment<'_, T> {
    /// Calls `f` with the place of each entry.
    pub(super) fn each_place(&self, mut f: impl FnMut(usize)) {
        match self.places {
            Places::Zero => (0..self.entries).for_each(|_| f(0)),
            Places::Bytes(places) => places.iter().for_each(|&place| f(usize::from(place))),
            Places::Narrow(places) => places.iter().for_each(|&place| f(usize::from(place))),
            Places::Wide(places) => places.iter().for_each(|&place| f(place as usize)),
        }
    }

    /// Calls `f` with number, place and line of each.
    pub(super) fn each(&self, mut f: impl FnMut(usize, usize, u64)) {
        let mut at = 0;
        match self.lines {
            LinesOf::Numbers(lines) => self.each_place(|place| {
                f(at, place, self.first_line + u64::from(lines[at]));
                at += 1;
            }),
            LinesOf::Gaps(gaps) => {
                let (mut line, mut gaps) = (self.first_line, gaps.iter());
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
}

/// Takes a part apart again.
pub(super) fn part_fragments<T: Real>(
    bytes: &[u8],
    pieces: Range<usize>,
    has_values: bool,
    place_bytes: usize,
    mut f: impl FnMut(usize, usize, Places<'_>, &[T], &[u8]),
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
        let places = match place_bytes {
            _ if places.is_empty() => Places::Zero,
            1 => Places::Bytes(places),
            2 => Places::Narrow(bytemuck::cast_slice(places)),
            _ => Places::Wide(bytemuck::cast_slice(places)),
        };
        let values = if has_values { &values[range.clone()] } else { &[] };
        f(piece, range.len(), places, values, these);
    }
}
