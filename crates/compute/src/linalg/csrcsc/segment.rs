//! What a group of buckets has of some pieces: into scratch, and out of it.

use std::ops::Range;

use bytemuck::cast_slice;
use outcore_kernels::Real;

use super::buckets::Buckets;
use super::sorted::{Key, Keys, Sorted};

/// Bytes that the form of a bucket's entries takes.
#[derive(Clone, Copy)]
struct Widths {
    value: usize,
    minor: usize,
}

impl Widths {
    fn new<T>(has_values: bool, minor: usize) -> Widths {
        Widths {
            value: if has_values { size_of::<T>() } else { 0 },
            minor,
        }
    }

    /// Of a bucket that has so much of each piece: entries and bytes of gaps.
    fn bytes(self, counts: impl Iterator<Item = [u32; 2]>) -> usize {
        let bytes = counts
            .map(|[entries, gaps]| entries as usize * (self.value + self.minor) + gaps as usize);
        bytes.sum::<usize>().next_multiple_of(8)
    }
}

/// Before the first bucket: where each begins, and what it has of each piece.
fn head_bytes(buckets: usize, pieces: usize) -> usize {
    (4 * buckets).next_multiple_of(8) + 8 * buckets * pieces
}

/// Bytes of a segment, in whole sectors, so that segments do not wait for each other.
pub(super) fn segment_bytes<T: Real>(
    sorted: &[Sorted<T>],
    group: &Range<usize>,
    buckets: &Buckets,
    has_values: bool,
) -> u64 {
    let bytes = |bucket| {
        let widths = Widths::new::<T>(has_values, buckets.minor_bytes(bucket));
        widths.bytes(sorted.iter().map(|piece| piece.counts(bucket)))
    };
    (head_bytes(group.len(), sorted.len()) + group.clone().map(bytes).sum::<usize>())
        .next_multiple_of(4096) as u64
}

/// A segment, as the head of the file above draws it. `stop` is asked for every piece, a few MiB;
/// when it says so the segment is of no use.
pub(super) fn fill_segment<T: Real>(
    bytes: &mut [u8],
    sorted: &[Sorted<T>],
    group: &Range<usize>,
    buckets: &Buckets,
    has_values: bool,
    stop: &dyn Fn() -> bool,
) {
    let (head, mut rest) = bytes.split_at_mut(head_bytes(group.len(), sorted.len()));
    let mut at = head.len();
    let (begins, counts) = head.split_at_mut(head.len() - 8 * group.len() * sorted.len());
    let counts = counts.chunks_exact_mut(8 * sorted.len());
    for ((bucket, begin), counts) in group.clone().zip(begins.as_chunks_mut().0).zip(counts) {
        *begin = (at as u32).to_ne_bytes();
        for (into, piece) in counts.as_chunks_mut::<8>().0.iter_mut().zip(sorted) {
            *into = bytemuck::cast(piece.counts(bucket));
        }
        let widths = Widths::new::<T>(has_values, buckets.minor_bytes(bucket));
        let len = widths.bytes(sorted.iter().map(|piece| piece.counts(bucket)));
        fill_bucket(
            rest.split_off_mut(..len).expect("as long as was counted"),
            sorted,
            bucket,
            buckets,
            widths,
            stop,
        );
        at += len;
    }
    rest.fill(0);
}

fn fill_bucket<T: Real>(
    mut rest: &mut [u8],
    sorted: &[Sorted<T>],
    bucket: usize,
    buckets: &Buckets,
    widths: Widths,
    stop: &dyn Fn() -> bool,
) {
    let first = buckets.minors(bucket).start;
    let mut next = |len: usize| rest.split_off_mut(..len).expect("as long as was counted");
    let pieces = || sorted.iter().take_while(|_| !stop());
    for piece in pieces().filter(|_| widths.value > 0) {
        let values: &[u8] = cast_slice(&piece.values[piece.entries(bucket)]);
        next(values.len()).copy_from_slice(values);
    }
    for piece in pieces().filter(|_| widths.minor > 0) {
        let entries = piece.entries(bucket);
        let into = next(entries.len() * widths.minor);
        match &piece.keys {
            Keys::Narrow(keys) => fill_minors(into, &keys[entries], first, widths.minor),
            Keys::Wide(keys) => fill_minors(into, &keys[entries], first, widths.minor),
        }
    }
    for piece in pieces() {
        let (entries, into) = (piece.entries(bucket), next(piece.gaps[bucket] as usize));
        match &piece.keys {
            Keys::Narrow(keys) => fill_gaps(into, &keys[entries]),
            Keys::Wide(keys) => fill_gaps(into, &keys[entries]),
        }
    }
    if !stop() {
        rest.fill(0);
    }
}

fn fill_minors(into: &mut [u8], keys: &[impl Key], first: u64, minor_bytes: usize) {
    let minors = keys.iter().map(|key| key.minor(first));
    match minor_bytes {
        1 => into
            .iter_mut()
            .zip(minors)
            .for_each(|(into, minor)| *into = minor as u8),
        2 => into
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(minors)
            .for_each(|(into, minor)| *into = (minor as u16).to_ne_bytes()),
        _ => into
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(minors)
            .for_each(|(into, minor)| *into = minor.to_ne_bytes()),
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
    let more = keys
        .windows(2)
        .map(|pair| u32::from((pair[1].line() - pair[0].line()) / 255))
        .sum::<u32>();
    keys.len() as u32
        + more
        + keys
            .first()
            .map_or(0, |first| u32::from(first.line()) / 255)
}

/// Entries of a bucket and of a piece.
pub(super) struct Fragment<'a, T> {
    pub(super) first_line: u64,
    pub(super) entries: Entries<'a>,
    pub(super) values: &'a [T],
}

/// Minor indices, from the first of their bucket, and lines, from the first of their piece.
#[derive(Clone, Copy)]
pub(super) enum Entries<'a> {
    /// Their number, all of one minor index, and gaps.
    OneIndex(usize, &'a [u8]),
    /// Minor indices and gaps.
    Bytes(&'a [u8], &'a [u8]),
    Narrow(&'a [u16], &'a [u8]),
    Wide(&'a [u32], &'a [u8]),
    /// Keys, and the first minor index of the bucket.
    NarrowKeys(&'a [u32], u64),
    WideKeys(&'a [u64], u64),
}

impl<T> Fragment<'_, T> {
    /// Calls `f` with the minor index of each entry.
    pub(super) fn each_minor(&self, mut f: impl FnMut(usize)) {
        match self.entries {
            Entries::OneIndex(count, _) => (0..count).for_each(|_| f(0)),
            Entries::Bytes(minors, _) => minors.iter().for_each(|&minor| f(usize::from(minor))),
            Entries::Narrow(minors, _) => minors.iter().for_each(|&minor| f(usize::from(minor))),
            Entries::Wide(minors, _) => minors.iter().for_each(|&minor| f(minor as usize)),
            Entries::NarrowKeys(keys, first) => {
                keys.iter().for_each(|key| f(key.minor(first) as usize))
            }
            Entries::WideKeys(keys, first) => {
                keys.iter().for_each(|key| f(key.minor(first) as usize))
            }
        }
    }

    /// Calls `f` with number, minor index and line of each.
    pub(super) fn each(&self, mut f: impl FnMut(usize, usize, u64)) {
        match self.entries {
            Entries::NarrowKeys(keys, first) => self.each_key(keys, first, f),
            Entries::WideKeys(keys, first) => self.each_key(keys, first, f),
            Entries::OneIndex(_, gaps)
            | Entries::Bytes(_, gaps)
            | Entries::Narrow(_, gaps)
            | Entries::Wide(_, gaps) => {
                let (mut at, mut line, mut gaps) = (0, self.first_line, gaps.iter());
                self.each_minor(|minor| {
                    for &gap in gaps.by_ref() {
                        line += u64::from(gap);
                        if gap < 255 {
                            break;
                        }
                    }
                    f(at, minor, line);
                    at += 1;
                });
            }
        }
    }

    fn each_key(&self, keys: &[impl Key], first: u64, mut f: impl FnMut(usize, usize, u64)) {
        let entries = keys.iter().enumerate();
        entries.for_each(|(at, key)| {
            f(
                at,
                key.minor(first) as usize,
                self.first_line + u64::from(key.line()),
            )
        });
    }
}

/// Takes a bucket of a segment apart again: entries and values of each piece. `bucket` is its
/// number of `buckets`.
pub(super) fn segment_fragments<T: Real>(
    segment: &[u8],
    (bucket, buckets): (usize, usize),
    pieces: Range<usize>,
    has_values: bool,
    minor_bytes: usize,
    mut f: impl FnMut(usize, Entries<'_>, &[T]),
) {
    let widths = Widths::new::<T>(has_values, minor_bytes);
    let counts_at = head_bytes(buckets, pieces.len()) - 8 * (buckets - bucket) * pieces.len();
    let begin = cast_slice::<u8, u32>(&segment[..4 * buckets])[bucket] as usize;
    let counts: &[[u32; 2]] = cast_slice(&segment[counts_at..counts_at + 8 * pieces.len()]);
    let entries: usize = counts.iter().map(|count| count[0] as usize).sum();
    let (values, rest) = segment[begin..].split_at(entries * widths.value);
    let (minors, mut gaps) = rest.split_at(entries * widths.minor);
    let values: &[T] = if values.is_empty() {
        &[]
    } else {
        cast_slice(values)
    };
    let mut at = 0;
    for (piece, &[count, gap_bytes]) in pieces.zip(counts) {
        let range = at..at + count as usize;
        at = range.end;
        let (these, rest) = gaps.split_at(gap_bytes as usize);
        gaps = rest;
        let minors = &minors[range.start * minor_bytes..range.end * minor_bytes];
        let entries = match minor_bytes {
            _ if minors.is_empty() => Entries::OneIndex(range.len(), these),
            1 => Entries::Bytes(minors, these),
            2 => Entries::Narrow(cast_slice(minors), these),
            _ => Entries::Wide(cast_slice(minors), these),
        };
        f(
            piece,
            entries,
            if has_values { &values[range] } else { &[] },
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use outcore_kernels::Csr;

    use super::super::NARROW;
    use super::super::sorted::sort_piece;
    use super::*;

    #[test]
    fn a_segment_is_filled_piece_by_piece_until_it_is_stopped() {
        let (width, pieces) = (100, 5);
        let offsets: Vec<i64> = (0..=40).map(|line| 10 * line).collect();
        let minors: Vec<i32> = (0..400).map(|at| at % 10 * 10 + at / 40).collect();
        let values: Vec<f32> = (0..400).map(|at| at as f32).collect();
        let a = Csr::new(width, &offsets, &minors, &values).unwrap();
        let buckets = Buckets::new(width as u64, 1, NARROW, (0..100).collect());
        let sorted: Vec<Sorted<f32>> = (0..pieces)
            .map(|_| sort_piece(a, &buckets, true, Sorted::default()))
            .collect();
        let bytes = segment_bytes(&sorted, &(0..1), &buckets, true) as usize;
        // What is written, and how often the flag is looked at, where it is set at a look.
        let written = |at: u32| {
            let (mut block, asked) = (vec![0xaa; bytes], Cell::new(0));
            let stop = || asked.replace(asked.get() + 1) >= at;
            fill_segment(&mut block, &sorted, &(0..1), &buckets, true, &stop);
            let left = block.iter().filter(|&&byte| byte == 0xaa);
            (left.count(), asked.get())
        };
        let (_, all) = written(u32::MAX);
        assert_eq!(
            all,
            3 * pieces + 1,
            "values, minor indices and gaps of every piece, and the end"
        );
        let left: Vec<usize> = (0..all - 1).map(|at| written(at).0).collect();
        assert!(left.windows(2).all(|pair| pair[0] > pair[1]), "{left:?}");
        assert!(written(0).1 <= 4, "nothing goes on after it");
    }
}
