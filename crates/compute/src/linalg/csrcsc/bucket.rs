//! A bucket put together.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use outcore_core::DType;
use outcore_engine::{Block, TaskError};
use outcore_kernels::Real;
use outcore_matrix::sparse::Piece;

use super::segment::{Entries, Fragment, segment_fragments};
use super::sorted::{Keys, Sorted};

/// All that makes one bucket of the result, or, of a bucket of one minor index, some of its entries.
pub(super) struct Bucket<T> {
    pub(super) bucket: usize,
    /// Its number in its group, and how many that has.
    pub(super) of_group: (usize, usize),
    pub(super) minors: Range<u64>,
    /// Of the result.
    pub(super) entries: Range<u64>,
    /// Whether its offsets are written.
    pub(super) begins: bool,
    pub(super) index: DType,
    pub(super) has_values: bool,
    pub(super) minor_bytes: usize,
    pub(super) pieces: Arc<Vec<Piece>>,
    pub(super) sources: Vec<Source>,
    pub(super) kept: Arc<Vec<Sorted<T>>>,
}

/// Where entries of a bucket come from, in their order.
pub(super) enum Source {
    /// A block that is a segment, of these pieces.
    Segment(Range<usize>),
    /// Pieces in memory, of which the first has this number.
    Kept(Range<usize>, usize),
}

impl<T: Real> Bucket<T> {
    /// `stop` is asked for every piece, whose entries are few MiB; when it says so what is written
    /// is of no use.
    pub(super) fn run(
        &self,
        blocks: &mut [Block],
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(), TaskError> {
        let read = self
            .sources
            .iter()
            .filter(|source| matches!(source, Source::Segment(_)))
            .count();
        let (read, written) = blocks.split_at_mut(read);
        // Where the next entry of each minor index goes, from the bucket's first.
        let mut next = vec![0u64; (self.minors.end - self.minors.start) as usize + 1];
        self.fragments(read, stop, |fragment| {
            fragment.each_minor(|minor| next[minor + 1] += 1)
        });
        if stop() {
            // Minor indices of what was not counted would be beyond the bucket.
            return Ok(());
        }
        (1..next.len()).for_each(|minor| next[minor] += next[minor - 1]);
        let written = match self.begins {
            true => {
                let (offsets, rest) = written.split_at_mut(1);
                let into = offsets[0].slice_mut::<i64>();
                into.iter_mut()
                    .zip(&next)
                    .for_each(|(into, &at)| *into = (self.entries.start + at) as i64);
                rest
            }
            false => written,
        };
        let (indices, values) = written.split_at_mut(1);
        let values = values
            .first_mut()
            .map_or(&mut [][..], |block| block.slice_mut::<T>());
        match self.index {
            DType::I32 => self.place(
                read,
                &mut next,
                indices[0].slice_mut::<i32>(),
                values,
                |line| line as i32,
                stop,
            ),
            _ => self.place(
                read,
                &mut next,
                indices[0].slice_mut::<i64>(),
                values,
                |line| line as i64,
                stop,
            ),
        }
        Ok(())
    }

    fn place<I: Pod>(
        &self,
        read: &[Block],
        next: &mut [u64],
        indices: &mut [I],
        values: &mut [T],
        index: impl Fn(u64) -> I,
        stop: &dyn Fn() -> bool,
    ) {
        self.fragments(read, stop, |fragment| {
            fragment.each(|at, minor, line| {
                let to = next[minor] as usize;
                next[minor] += 1;
                indices[to] = index(line);
                if let Some(&value) = fragment.values.get(at) {
                    values[to] = value;
                }
            });
        });
    }

    fn fragments(
        &self,
        read: &[Block],
        stop: &dyn Fn() -> bool,
        mut f: impl FnMut(Fragment<'_, T>),
    ) {
        let first_line = |piece: usize| self.pieces[piece].lines().start;
        let mut read = read.iter();
        for source in &self.sources {
            match source {
                Source::Segment(pieces) => {
                    let (bytes, pieces) = (read.next().expect("declared").bytes(), pieces.clone());
                    segment_fragments(
                        bytes,
                        self.of_group,
                        pieces,
                        self.has_values,
                        self.minor_bytes,
                        |piece, entries, values| {
                            if stop() {
                                return;
                            }
                            f(Fragment {
                                first_line: first_line(piece),
                                entries,
                                values,
                            });
                        },
                    );
                }
                Source::Kept(pieces, number) => {
                    for piece in pieces.clone().take_while(|_| !stop()) {
                        let sorted = &self.kept[piece - number];
                        let range = sorted.entries(self.bucket);
                        let entries = match &sorted.keys {
                            Keys::Narrow(keys) => {
                                Entries::NarrowKeys(&keys[range.clone()], self.minors.start)
                            }
                            Keys::Wide(keys) => {
                                Entries::WideKeys(&keys[range.clone()], self.minors.start)
                            }
                        };
                        let values = if self.has_values {
                            &sorted.values[range]
                        } else {
                            &[]
                        };
                        f(Fragment {
                            first_line: first_line(piece),
                            entries,
                            values,
                        });
                    }
                }
            }
        }
    }
}
