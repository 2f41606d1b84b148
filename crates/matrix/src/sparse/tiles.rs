//! The tiled form: which bytes a tile is, and how blocks of them make lines in memory. The layout
//! is drawn in `format/sparse.rs`.

use std::ops::Range;
use std::sync::Arc;

use outcore_core::{Error, FormatError, RealType, Result, StoredFile};
use outcore_engine::{Block, Plan, Region};
use outcore_kernels::{Real, Tile};

use super::pieces::Cut;

/// Minor indices in a band.
pub(crate) const BAND: u64 = 1 << 16;
/// Numbers that describe a tile.
pub(crate) const NUMBERS: usize = 7;
/// Tiles begin at multiples of this many bytes.
pub(crate) const ALIGNMENT: u64 = 64;

/// One tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileSpec {
    pub first_line: u64,
    pub block_lines: u64,
    pub band: u64,
    pub offset: u64,
    pub lines: u64,
    pub entries: u64,
    pub has_values: bool,
}

impl TileSpec {
    pub(crate) fn numbers(&self) -> [i64; NUMBERS] {
        let TileSpec {
            first_line,
            block_lines,
            band,
            offset,
            lines,
            entries,
            has_values,
        } = *self;
        [
            first_line,
            block_lines,
            band,
            offset,
            lines,
            entries,
            u64::from(has_values),
        ]
        .map(|number| number as i64)
    }

    fn of(numbers: &[i64]) -> Option<TileSpec> {
        let mut found = [0; NUMBERS];
        for (found, &number) in found.iter_mut().zip(numbers) {
            *found = u64::try_from(number).ok()?;
        }
        let [
            first_line,
            block_lines,
            band,
            offset,
            lines,
            entries,
            has_values,
        ] = found;
        let fits = block_lines <= BAND
            && lines <= block_lines
            && entries < 1 << 40
            && has_values <= 1
            && offset < 1 << 60
            && band < 1 << 47;
        let has_values = has_values == 1;
        fits.then_some(TileSpec {
            first_line,
            block_lines,
            band,
            offset,
            lines,
            entries,
            has_values,
        })
    }

    /// Where values begin, from the tile's first byte.
    fn values_at(&self) -> u64 {
        (2 * (2 * self.lines + self.entries)).next_multiple_of(8)
    }

    pub(crate) fn bytes(&self, value_bytes: u64) -> u64 {
        if self.has_values {
            self.values_at() + self.entries * value_bytes
        } else {
            2 * (2 * self.lines + self.entries)
        }
    }

    pub(crate) fn end(&self, value_bytes: u64) -> u64 {
        (self.offset + self.bytes(value_bytes)).next_multiple_of(ALIGNMENT)
    }

    /// Its arrays in its bytes: lines, counts, minor indices, values.
    pub(crate) fn split_mut<'a>(&self, bytes: &'a mut [u8]) -> [&'a mut [u8]; 4] {
        let (numbers, values) = bytes.split_at_mut(if self.has_values {
            self.values_at() as usize
        } else {
            bytes.len()
        });
        let (lines, rest) = numbers.split_at_mut(2 * self.lines as usize);
        let (counts, rest) = rest.split_at_mut(2 * self.lines as usize);
        [
            lines,
            counts,
            &mut rest[..2 * self.entries as usize],
            values,
        ]
    }
}

/// All tiles of a matrix.
pub(super) struct Tiled {
    pub(super) file: Arc<StoredFile>,
    value_bytes: u64,
    tiles: Vec<TileSpec>,
    blocks: Vec<BlockSpec>,
}

/// Lines, of which the tiles lie together.
struct BlockSpec {
    first_line: u64,
    /// Entries before it.
    entry: u64,
    tiles: Range<usize>,
}

impl Tiled {
    /// From the numbers in `tiles.npy`, of a matrix with these lines and entries.
    pub(super) fn new(
        object: &str,
        numbers: &[i64],
        file: Arc<StoredFile>,
        real: RealType,
        sides: [u64; 2],
        entries: u64,
    ) -> Result<Tiled> {
        let wrong = |at: usize, reason: String| {
            Error::from(FormatError::Corrupt {
                object: object.to_owned(),
                offset: 4096 + 8 * (at * NUMBERS) as u64,
                reason,
            })
        };
        let ([lines, width], value_bytes) = (sides, real.bytes() as u64);
        let mut tiles: Vec<TileSpec> = Vec::with_capacity(numbers.len() / NUMBERS);
        let mut blocks: Vec<BlockSpec> = Vec::new();
        let mut entry = 0;
        for (at, numbers) in numbers.chunks(NUMBERS).enumerate() {
            let tile = TileSpec::of(numbers)
                .ok_or_else(|| wrong(at, format!("{numbers:?} describe no tile")))?;
            let last = tiles.last().copied();
            let goes_on = last.is_some_and(|last| last.first_line == tile.first_line);
            let ordered = last.is_none_or(|last| match goes_on {
                true => last.band < tile.band && last.block_lines == tile.block_lines,
                false => last.first_line + last.block_lines <= tile.first_line,
            });
            let apart = last.is_none_or(|last| last.end(value_bytes) <= tile.offset);
            let inside = tile.first_line + tile.block_lines <= lines && tile.band * BAND < width;
            if !(ordered && apart && inside && tile.offset.is_multiple_of(ALIGNMENT)) {
                return Err(wrong(
                    at,
                    "the tile is out of order, or reaches outside the matrix".into(),
                ));
            }
            match blocks.last_mut() {
                Some(block) if goes_on => block.tiles.end = at + 1,
                _ => blocks.push(BlockSpec {
                    first_line: tile.first_line,
                    entry,
                    tiles: at..at + 1,
                }),
            }
            entry += tile.entries;
            tiles.push(tile);
        }
        let needed = tiles
            .last()
            .map_or(0, |tile: &TileSpec| tile.offset + tile.bytes(value_bytes));
        if needed > file.extent().len() {
            let (object, actual) = (file.extent().name().to_owned(), file.extent().len());
            return Err(FormatError::Truncated {
                object,
                expected: needed,
                actual,
            }
            .into());
        }
        match entry == entries {
            true => Ok(Tiled {
                file,
                value_bytes,
                tiles,
                blocks,
            }),
            false => Err(wrong(
                tiles.len(),
                format!("the tiles have {entry} entries, the matrix {entries}"),
            )),
        }
    }

    pub(super) fn has_values(&self) -> bool {
        self.tiles.iter().any(|tile| tile.has_values)
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.file.extent().sector())
    }

    /// A cut before each block but the first.
    pub(super) fn cuts(&self) -> Vec<Cut> {
        self.blocks
            .iter()
            .filter(|block| block.first_line > 0)
            .map(|block| Cut::before(block.first_line, block.entry))
            .collect()
    }

    /// The tiles of all blocks with some of these lines.
    fn tiles_of(&self, lines: &Range<u64>) -> &[TileSpec] {
        let end = self
            .blocks
            .partition_point(|block| block.first_line < lines.end);
        let after = |block: &BlockSpec| {
            let tile = &self.tiles[block.tiles.start];
            tile.first_line + tile.block_lines <= lines.start
        };
        let start = self.blocks.partition_point(after);
        match (
            self.blocks.get(start),
            end.checked_sub(1).and_then(|last| self.blocks.get(last)),
        ) {
            (Some(first), Some(last)) if start < end && !lines.is_empty() => {
                &self.tiles[first.tiles.start..last.tiles.end]
            }
            _ => &[],
        }
    }

    /// Entries before a line, where its block begins, and the lines that are still to be counted.
    pub(super) fn entry_before(&self, line: u64) -> (u64, Range<u64>) {
        let after = self.blocks.partition_point(|block| block.first_line < line);
        match after.checked_sub(1).map(|last| &self.blocks[last]) {
            Some(block) => (block.entry, block.first_line..line),
            None => (0, line..line),
        }
    }

    fn span(&self, lines: &Range<u64>) -> Range<u64> {
        match self.tiles_of(lines) {
            [first, .., last] => first.offset..last.offset + last.bytes(self.value_bytes),
            [only] => only.offset..only.offset + only.bytes(self.value_bytes),
            [] => 0..0,
        }
    }

    pub(super) fn bytes_of(&self, lines: &Range<u64>) -> u64 {
        let span = self.span(lines);
        span.end - span.start
    }

    pub(super) fn region(&self, plan: &mut Plan, lines: &Range<u64>) -> Region {
        let span = self.span(lines);
        Region::span(
            plan.extent(self.file.extent()),
            span.start,
            span.end - span.start,
        )
    }

    /// The tiles in a block of memory that holds them, checked.
    pub(super) fn view<'a, T: Real>(
        &self,
        lines: &Range<u64>,
        width: usize,
        block: &'a Block,
    ) -> Result<Vec<Tile<'a, T>>> {
        let specs = self.tiles_of(lines);
        let Some(begin) = specs.first().map(|tile| tile.offset) else {
            return Ok(Vec::new());
        };
        let make = |tile: &TileSpec| {
            let at = (tile.offset - begin) as usize;
            let bytes = &block.bytes()[at..at + tile.bytes(self.value_bytes) as usize];
            let values = if tile.has_values {
                &bytes[tile.values_at() as usize..]
            } else {
                &[]
            };
            let values: &[T] = if values.is_empty() {
                &[]
            } else {
                bytemuck::cast_slice(values)
            };
            let numbers: &[u16] =
                bytemuck::cast_slice(&bytes[..2 * (2 * tile.lines + tile.entries) as usize]);
            let (of_lines, rest) = numbers.split_at(tile.lines as usize);
            let (counts, places) = rest.split_at(tile.lines as usize);
            let made = Tile::new(
                tile.first_line as usize,
                tile.block_lines as usize,
                (tile.band * BAND) as usize,
                width,
                of_lines,
                counts,
                places,
                values,
            );
            made.map_err(|error| match error {
                outcore_kernels::Error::Sparse { part, at, why } => {
                    let reason = format!("number {at} of the {part} of a tile: {why}");
                    FormatError::Corrupt {
                        object: self.file.extent().name().to_owned(),
                        offset: tile.offset,
                        reason,
                    }
                    .into()
                }
                other => Error::from(other),
            })
        };
        specs.iter().map(make).collect()
    }
}
