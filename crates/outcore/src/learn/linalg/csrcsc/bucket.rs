//! A bucket put together.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use outcore_engine::{Block, TaskError};
use outcore_kernels::Real;

use super::part::{Entries, Fragment, part_fragments};
use super::sorted::{Keys, Sorted};
use crate::data::format::Element;
use crate::data::sparse::Piece;

/// All that makes one bucket of the result, or, of a bucket of one place, some of its entries.
pub(super) struct Bucket<T> {
    pub(super) bucket: usize,
    pub(super) places: Range<u64>,
    /// Of the result.
    pub(super) entries: Range<u64>,
    /// Whether its offsets are written.
    pub(super) begins: bool,
    pub(super) index: Element,
    pub(super) has_values: bool,
    pub(super) place_bytes: usize,
    pub(super) pieces: Arc<Vec<Piece>>,
    pub(super) sources: Vec<Source>,
    pub(super) kept: Arc<Vec<Sorted<T>>>,
}

/// Where entries of a bucket come from, in their order.
#[derive(Clone)]
pub(super) enum Source {
    /// A block that is a part, of these pieces.
    Part(Range<usize>),
    /// Two blocks, values (where there are any) and gaps, of pieces with so many entries and bytes of gaps; places are all zero.
    OnePlace(Range<usize>, Vec<[u32; 2]>),
    /// Pieces in memory, of which the first has this number.
    Kept(Range<usize>, usize),
}

impl<T: Real> Bucket<T> {
    pub(super) fn run(&self, blocks: &mut [Block]) -> std::result::Result<(), TaskError> {
        let read = self.sources.iter().map(|source| source.blocks(self.has_values)).sum();
        let (read, written) = blocks.split_at_mut(read);
        // Where the next entry of each place goes, from the bucket's first.
        let mut next = vec![0u64; (self.places.end - self.places.start) as usize + 1];
        self.fragments(read, |fragment| fragment.each_place(|place| next[place + 1] += 1));
        (1..next.len()).for_each(|place| next[place] += next[place - 1]);
        let written = match self.begins {
            true => {
                let (offsets, rest) = written.split_at_mut(1);
                let into = offsets[0].slice_mut::<i64>();
                into.iter_mut().zip(&next).for_each(|(into, &at)| *into = (self.entries.start + at) as i64);
                rest
            }
            false => written,
        };
        let (indices, values) = written.split_at_mut(1);
        let values = values.first_mut().map_or(&mut [][..], |block| block.slice_mut::<T>());
        match self.index {
            Element::I32 => self.place(read, &mut next, indices[0].slice_mut::<i32>(), values, |line| line as i32),
            _ => self.place(read, &mut next, indices[0].slice_mut::<i64>(), values, |line| line as i64),
        }
        Ok(())
    }

    fn place<I: Pod>(&self, read: &[Block], next: &mut [u64], indices: &mut [I], values: &mut [T], index: impl Fn(u64) -> I) {
        self.fragments(read, |fragment| {
            fragment.each(|at, place, line| {
                let to = next[place] as usize;
                next[place] += 1;
                indices[to] = index(line);
                if let Some(&value) = fragment.values.get(at) {
                    values[to] = value;
                }
            });
        });
    }

    fn fragments(&self, read: &[Block], mut f: impl FnMut(Fragment<'_, T>)) {
        let first_line = |piece: usize| self.pieces[piece].lines().start;
        let mut read = read.iter();
        for source in &self.sources {
            match source {
                Source::Part(pieces) => {
                    let bytes = read.next().expect("declared").bytes();
                    part_fragments(bytes, pieces.clone(), self.has_values, self.place_bytes, |piece, entries, values| {
                        f(Fragment { first_line: first_line(piece), entries, values });
                    });
                }
                Source::OnePlace(pieces, counts) => {
                    let mut values = if self.has_values { read.next().expect("declared").slice::<T>() } else { &[] };
                    let mut gaps = read.next().expect("declared").bytes();
                    for (piece, &[entries, gap_bytes]) in pieces.clone().zip(counts) {
                        let entries = entries as usize;
                        let (these, rest) = gaps.split_at(gap_bytes as usize);
                        let (those, others) = values.split_at(if self.has_values { entries } else { 0 });
                        (gaps, values) = (rest, others);
                        f(Fragment { first_line: first_line(piece), entries: Entries::OnePlace(entries, these), values: those });
                    }
                }
                Source::Kept(pieces, number) => {
                    for piece in pieces.clone() {
                        let sorted = &self.kept[piece - number];
                        let range = sorted.entries(self.bucket);
                        let entries = match &sorted.keys {
                            Keys::Narrow(keys) => Entries::NarrowKeys(&keys[range.clone()], self.places.start),
                            Keys::Wide(keys) => Entries::WideKeys(&keys[range.clone()], self.places.start),
                        };
                        let values = if self.has_values { &sorted.values[range] } else { &[] };
                        f(Fragment { first_line: first_line(piece), entries, values });
                    }
                }
            }
        }
    }
}

impl Source {
    fn blocks(&self, has_values: bool) -> usize {
        match self {
            Source::Part(_) => 1,
            Source::OnePlace(..) => 1 + usize::from(has_values),
            Source::Kept(..) => 0,
        }
    }
}
