//! Lines in tiles, whose minor indices take 16 bits.

use std::ops::Range;

use super::lines::{Entries, Lines};
use crate::{Error, Real};

/// A tile: the entries of some lines in a band of 65,536 minor indices, each stored in 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a, T> {
    /// The line from which its lines are counted.
    first_line: usize,
    base: usize,
    lines: &'a [u16],
    /// Number of entries of each of its lines, minus one.
    counts: &'a [u16],
    places: &'a [u16],
    /// Empty where all entries are one.
    values: &'a [T],
}

impl<'a, T: Real> Tile<'a, T> {
    /// A tile of the band that begins at `base`, of a block of `block_lines` lines from
    /// `first_line` on, in a matrix of `width` minor indices; checks every number.
    ///
    /// # Errors
    /// [`Error::Sparse`] with the first invalid number.
    #[expect(clippy::too_many_arguments, reason = "what a tile is made of")]
    pub fn new(
        first_line: usize,
        block_lines: usize,
        base: usize,
        width: usize,
        lines: &'a [u16],
        counts: &'a [u16],
        places: &'a [u16],
        values: &'a [T],
    ) -> Result<Self, Error> {
        let wrong = |part, at, why: &str| {
            Err(Error::Sparse {
                part,
                at,
                why: why.to_owned(),
            })
        };
        if let Some(at) = lines.windows(2).position(|pair| pair[0] >= pair[1]) {
            return wrong("lines", at + 1, "lines do not ascend");
        }
        if lines
            .last()
            .is_some_and(|&last| usize::from(last) >= block_lines)
        {
            return wrong(
                "lines",
                lines.len() - 1,
                &format!("the block has {block_lines} lines"),
            );
        }
        let entries: usize = counts.iter().map(|&count| usize::from(count) + 1).sum();
        if counts.len() != lines.len()
            || entries != places.len()
            || ![0, entries].contains(&values.len())
        {
            return wrong("counts", 0, "they are not the number of entries");
        }
        let largest = places.iter().copied().max().map_or(0, usize::from);
        if base + largest >= width && !places.is_empty() {
            let at = places
                .iter()
                .position(|&place| base + usize::from(place) >= width)
                .expect("the largest is one");
            return wrong("places", at, &format!("the matrix has {width} places"));
        }
        Ok(Self {
            first_line,
            base,
            lines,
            counts,
            places,
            values,
        })
    }
}

/// Lines in tiles, of which a range from `first` on is visited.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a, T> {
    tiles: &'a [Tile<'a, T>],
    first: usize,
    lines: usize,
    width: usize,
}

impl<'a, T: Real> Tiles<'a, T> {
    /// The lines from `first` on, `lines` of them, of a matrix of `width` minor indices.
    pub fn new(tiles: &'a [Tile<'a, T>], first: usize, lines: usize, width: usize) -> Self {
        Self {
            tiles,
            first,
            lines,
            width,
        }
    }
}

impl<T: Real> Lines<T> for Tiles<'_, T> {
    type Index = u16;
    const WHOLE_LINES: bool = false;

    fn lines(&self) -> usize {
        self.lines
    }

    fn width(&self) -> usize {
        self.width
    }

    fn entries(&self) -> usize {
        self.tiles.iter().map(|tile| tile.places.len()).sum()
    }

    fn part(self, lines: Range<usize>) -> Self {
        assert!(lines.end <= self.lines, "lines {lines:?} of {}", self.lines);
        Self {
            first: self.first + lines.start,
            lines: lines.len(),
            ..self
        }
    }

    #[inline(always)]
    fn each_line(self, mut f: impl FnMut(usize, Entries<'_, u16, T>)) {
        for tile in self.tiles {
            let (mut places, mut values) = (tile.places, tile.values);
            for (&line, &count) in tile.lines.iter().zip(tile.counts) {
                let count = usize::from(count) + 1;
                let (indices, rest) = places.split_at(count);
                let (here, others) = values.split_at(if values.is_empty() { 0 } else { count });
                (places, values) = (rest, others);
                let line = (tile.first_line + usize::from(line)).wrapping_sub(self.first);
                if line < self.lines {
                    f(
                        line,
                        Entries {
                            indices,
                            values: here,
                            base: tile.base,
                        },
                    );
                }
            }
        }
    }
}
