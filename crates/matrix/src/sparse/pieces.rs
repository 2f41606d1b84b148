//! A sparse matrix in pieces: where they may begin, which bytes they are, and how those make lines
//! in memory.
//!
//! A cut is a place between two entries. Cuts are found once, about [`CUT_ENTRIES`] entries or
//! [`CUT_LINES`] lines apart, by going through the offsets in order; what lies between two cuts is
//! the smallest piece there is. Where lines are short, cuts come before every [`EVEN_LINES`]th:
//! pieces then differ little in size, and one's memory can be used for the next. A line longer than
//! what lies between cuts is cut inside, and makes pieces of its own.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_core::panels::cut;
use outcore_core::{DType, Error, MemorySplit, Result, Session, with_real};
use outcore_device::Locked;
use outcore_engine::{Block, Plan, Region, Task};
use outcore_kernels::{Csr, Index, Lines, Real, Tile, Tiles};

use super::tiles::Tiled;
use super::{BackedVector, Backing, Form, Parts, Sparse, Stop};

/// Entries between cuts, in matrices of up to [`CUTS`] times as many.
const CUT_ENTRIES: u64 = 1 << 12;
/// Lines between cuts, likewise.
const CUT_LINES: u64 = 1 << 8;
/// A multiple of this many lines is cut as soon as half of the entries between cuts are there.
const EVEN_LINES: u64 = 64;
/// No more than about three times as many cuts are kept, 24 bytes each.
const CUTS: u64 = 1 << 17;
/// The most bytes of a piece: enough that the device is busy with one. It has a million entries of
/// four bytes at most, and 20 ns for each end within 20 ms of a cancellation. Where the smallest
/// pieces are longer, those of a matrix of 10^11 entries have 1.5 million.
const PIECE_BYTES: u64 = 4 << 20;

/// What is not worth cutting.
const MIN_PIECE_BYTES: u64 = 1 << 17;

/// A place between two entries: before the first of a line, or `inside` it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    line: u64,
    entry: u64,
    inside: bool,
}

impl Cut {
    pub(super) fn before(line: u64, entry: u64) -> Cut {
        Cut {
            line,
            entry,
            inside: false,
        }
    }
}

/// Some whole lines, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// In the file.
    lines: Range<u64>,
    entries: Range<u64>,
    /// Whether it goes on with the line that the piece before has begun.
    pub continues: bool,
    /// Whether the piece after goes on with its line.
    pub breaks_off: bool,
    /// The first line of the view that it is a piece of.
    origin: u64,
}

impl Piece {
    /// Its lines, as the view counts them.
    pub fn lines(&self) -> Range<u64> {
        self.lines.start - self.origin..self.lines.end - self.origin
    }

    /// Entries of it.
    pub fn entries(&self) -> u64 {
        self.entries.end - self.entries.start
    }

    /// The number of its first entry in the file.
    pub(super) fn first_entry(&self) -> u64 {
        self.entries.start
    }

    fn between(from: Cut, to: Cut, origin: u64) -> Piece {
        let lines = from.line..to.line + u64::from(to.inside);
        Piece {
            lines,
            entries: from.entry..to.entry,
            continues: from.inside,
            breaks_off: to.inside,
            origin,
        }
    }
}

impl Sparse {
    /// All of it in pieces whose bytes, and what `beside(lines)` says that they need besides, are
    /// at most `share`, or the smallest that there are.
    pub fn pieces(&self, share: u64, beside: impl Fn(u64) -> u64) -> Vec<Piece> {
        let bytes = |piece: &Piece| {
            let lines = piece.lines.end - piece.lines.start;
            self.bytes_of(piece) + beside(lines)
        };
        // What fits in memory is still cut for all threads.
        let share = share
            .min(PIECE_BYTES)
            .min((self.nbytes() / 32).max(MIN_PIECE_BYTES));
        let origin = self.lines.start;
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut from, end) = self.ends();
        let mut last = from;
        for cut in self.parts.cuts[self.inner_cuts()]
            .iter()
            .copied()
            .chain([end])
        {
            // Parts of a line stay by themselves.
            let parted = from.inside || last.inside || cut.inside;
            if last != from && (parted || bytes(&Piece::between(from, cut, origin)) > share) {
                pieces.push(Piece::between(from, last, origin));
                from = last;
            }
            last = cut;
        }
        if from.line < end.line {
            pieces.push(Piece::between(from, end, origin));
        }
        pieces
    }

    /// Some of the smallest pieces that there are, spread over all: a 32nd of them, but between
    /// `least` and `most`.
    pub fn sampled(&self, least: usize, most: usize) -> Vec<Piece> {
        let (from, to) = self.ends();
        let cuts = &self.parts.cuts[self.inner_cuts()];
        let at = |number: usize| match number.checked_sub(1) {
            None => from,
            Some(inner) => cuts.get(inner).copied().unwrap_or(to),
        };
        let count = cuts.len() + 1;
        let step = count.div_ceil((count / 32).clamp(least, most));
        // One of every `step`, but not the same of each: what repeats itself at the distance of a
        // step would be met at one phase only.
        let mut random = 1u64;
        let sampled = (0..count).step_by(step).map(|first| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = first + (random >> 33) as usize % step.min(count - first);
            Piece::between(at(number), at(number + 1), from.line)
        });
        sampled.collect()
    }

    /// Where the view begins and ends.
    fn ends(&self) -> (Cut, Cut) {
        let (Range { start, end }, entries) = (self.lines.clone(), &self.entries);
        (
            Cut::before(start, entries.start),
            Cut::before(end, entries.end),
        )
    }

    /// The cuts within the view.
    fn inner_cuts(&self) -> Range<usize> {
        let (from, to) = self.ends();
        let cuts = &self.parts.cuts;
        let first = cuts
            .partition_point(|cut| (cut.line, cut.entry) <= (from.line, from.entry) && !cut.inside);
        first..first + cuts[first..].partition_point(|cut| cut.line < to.line)
    }

    /// Whether some line is cut into several pieces.
    pub fn has_cut_lines(&self) -> bool {
        self.parts.cuts.iter().any(|cut| cut.inside)
    }

    /// All of it as one piece.
    pub fn whole(&self) -> Piece {
        let (from, to) = self.ends();
        Piece::between(from, to, from.line)
    }

    /// Bytes of the budget that a piece takes: its numbers, and the sectors around them.
    pub fn bytes_of(&self, piece: &Piece) -> u64 {
        match &self.parts.form {
            Form::Tiled(tiled) => tiled.bytes_of(&piece.lines) + 2 * tiled.sector(),
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                let bytes = |part: &BackedVector, numbers: u64| {
                    numbers * part.vector.element.bytes() + 2 * part.sector()
                };
                let (lines, entries) = (piece.lines.end - piece.lines.start, piece.entries());
                bytes(offsets, lines + 1)
                    + bytes(indices, entries)
                    + values.as_ref().map_or(0, |part| bytes(part, entries))
            }
        }
    }

    /// What a task declares to read a piece, in this order.
    pub fn regions(&self, plan: &mut Plan, piece: &Piece) -> Vec<Region> {
        let region = |plan: &mut Plan, part: &BackedVector, range| {
            let extent = part.extent(plan);
            part.region(extent, range)
        };
        match &self.parts.form {
            Form::Tiled(tiled) => vec![tiled.region(plan, &piece.lines)],
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                let offsets = region(plan, offsets, piece.lines.start..piece.lines.end + 1);
                let indices = region(plan, indices, piece.entries.clone());
                let values = values
                    .as_ref()
                    .map(|part| region(plan, part, piece.entries.clone()));
                [offsets, indices].into_iter().chain(values).collect()
            }
        }
    }

    /// How a task makes lines of the blocks that it declared.
    pub fn blocks(&self, piece: &Piece) -> PieceBlocks {
        PieceBlocks {
            parts: Arc::clone(&self.parts),
            piece: piece.clone(),
        }
    }
}

/// Pieces by themselves, but those of one line together: for what can only be said of whole lines.
pub fn whole_lines(pieces: &[Piece]) -> Vec<Vec<Piece>> {
    let mut groups: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        match groups.last_mut() {
            Some(group) if piece.continues => group.push(piece.clone()),
            _ => groups.push(vec![piece.clone()]),
        }
    }
    groups
}

/// Each of some pieces that a task reads, with its blocks.
pub fn each_piece<'a>(
    pieces: &'a [PieceBlocks],
    mut blocks: &'a [Block],
) -> impl Iterator<Item = (&'a PieceBlocks, &'a [Block])> {
    pieces.iter().map(move |piece| {
        let (here, rest) = blocks.split_at(piece.count());
        blocks = rest;
        (piece, here)
    })
}

/// A piece, and what its blocks are.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_engine::{Plan, Task};
/// use outcore_kernels::Lines;
/// use outcore_matrix::sparse::{each_piece, whole_lines};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let pieces = a.pieces(1 << 20, |_| 0);
/// assert_eq!((pieces.len(), pieces[0].lines(), pieces[0].entries()), (1, 0..2, 3));
/// assert!(!a.has_cut_lines() && whole_lines(&pieces).len() == 1);
/// assert_eq!((a.sampled(1, 1), a.whole()), (pieces.clone(), pieces[0].clone()));
/// let blocks = a.blocks(&pieces[0]);
/// assert_eq!((blocks.count(), blocks.index_element()), (3, Some(DType::I32)));
/// let mut plan = Plan::new("look");
/// let regions = a.regions(&mut plan, &pieces[0]);
/// let task = regions.into_iter().fold(Task::new("piece"), |task, region| task.read(region));
/// plan.task(task.held(a.bytes_of(&pieces[0]) as usize).run(move |cx| {
///     for (piece, blocks) in each_piece(std::slice::from_ref(&blocks), cx.blocks) {
///         let offsets = piece.offsets(blocks)?;
///         let csr = piece.csr::<i32, f32>(&offsets, blocks)?;
///         assert_eq!(csr.entries(), 3);
///     }
///     Ok(())
/// }));
/// session.run_until(plan, &|| false)?;
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct PieceBlocks {
    parts: Arc<Parts>,
    /// The piece.
    pub piece: Piece,
}

impl PieceBlocks {
    /// Blocks that a piece has.
    pub fn count(&self) -> usize {
        match &self.parts.form {
            Form::Tiled(_) => 1,
            Form::Arrays { values, .. } => 2 + usize::from(values.is_some()),
        }
    }

    /// The type of indices in arrays; nothing for tiles.
    pub fn index_element(&self) -> Option<DType> {
        match &self.parts.form {
            Form::Tiled(_) => None,
            Form::Arrays { indices, .. } => Some(indices.vector.element),
        }
    }

    /// The tiles of the piece, checked.
    pub fn tiles<'a, T: Real>(&self, blocks: &'a [Block]) -> Result<Vec<Tile<'a, T>>> {
        let Form::Tiled(tiled) = &self.parts.form else {
            unreachable!("asked for before")
        };
        tiled.view(&self.piece.lines, self.width(), &blocks[0])
    }

    /// They as lines.
    pub fn lines_of<'a, T: Real>(&self, tiles: &'a [Tile<'a, T>]) -> Tiles<'a, T> {
        let Range { start, end } = self.piece.lines;
        Tiles::new(tiles, start as usize, (end - start) as usize, self.width())
    }

    fn width(&self) -> usize {
        usize::try_from(self.parts.width).unwrap_or(usize::MAX)
    }

    fn arrays(&self) -> (&BackedVector, &BackedVector, Option<&BackedVector>) {
        let Form::Arrays {
            offsets,
            indices,
            values,
        } = &self.parts.form
        else {
            unreachable!("asked for before")
        };
        (offsets, indices, values.as_ref())
    }

    /// Offsets of the piece alone: where the first or last line is there in part, they stop where
    /// the piece does.
    pub fn offsets<'a>(&self, blocks: &'a [Block]) -> Result<Cow<'a, [i64]>> {
        let Piece {
            entries,
            lines,
            continues,
            breaks_off,
            ..
        } = &self.piece;
        let (part, ..) = self.arrays();
        let mut offsets: Cow<'a, [i64]> = match part.vector.element {
            DType::I32 => blocks[0]
                .slice::<i32>()
                .iter()
                .map(|&offset| i64::from(offset))
                .collect(),
            _ => Cow::Borrowed(blocks[0].slice::<i64>()),
        };
        let (first, last) = (entries.start as i64, entries.end as i64);
        let end = offsets.len() - 1;
        // Only offsets that have changed since the matrix was opened can be others.
        let known = |found: i64, inside: bool, expected: i64, outwards: bool| {
            found == expected || (inside && outwards)
        };
        if !known(offsets[0], *continues, first, offsets[0] < first) {
            return Err(part.corrupt(
                lines.start,
                format!(
                    "{} is not where entries began when it was opened ({first})",
                    offsets[0]
                ),
            ));
        }
        if !known(offsets[end], *breaks_off, last, offsets[end] > last) {
            return Err(part.corrupt(
                lines.end,
                format!(
                    "{} is not where entries ended when it was opened ({last})",
                    offsets[end]
                ),
            ));
        }
        if offsets[0] != first || offsets[end] != last {
            let offsets = offsets.to_mut();
            (offsets[0], offsets[end]) = (first, last);
        }
        Ok(offsets)
    }

    /// The lines in CSR, checked.
    pub fn csr<'a, I: Index, T: Real>(
        &self,
        offsets: &'a [i64],
        blocks: &'a [Block],
    ) -> Result<Csr<'a, I, T>> {
        let values = if self.arrays().2.is_some() {
            blocks[2].slice::<T>()
        } else {
            &[]
        };
        Csr::new(self.width(), offsets, blocks[1].slice::<I>(), values)
            .map_err(|error| self.located(error))
    }

    /// The same error by the name of the file and the place in it.
    fn located(&self, error: outcore_kernels::Error) -> Error {
        let outcore_kernels::Error::Sparse { part, at, why } = error else {
            return error.into();
        };
        let (offsets, indices, values) = self.arrays();
        let (part, first) = match part {
            "offsets" => (offsets, self.piece.lines.start),
            "values" => (values.unwrap_or(indices), self.piece.entries.start),
            _ => (indices, self.piece.entries.start),
        };
        part.corrupt(first + at as u64, why)
    }
}

/// Runs `$body` with `$lines` standing for the lines of a piece in memory, of values of type `$T`.
#[macro_export]
#[doc(hidden)]
macro_rules! with_lines {
    ($piece:expr, $blocks:expr, $T:ty, $lines:ident => $body:expr) => {{
        let (piece, blocks): (&$crate::sparse::PieceBlocks, &[outcore_engine::Block]) = (&$piece, $blocks);
        match piece.index_element() {
            None => {
                let tiles = piece.tiles::<$T>(blocks)?;
                let $lines = piece.lines_of(&tiles);
                $body
            }
            Some(_) => $crate::with_csr!(piece, blocks, $T, $lines => $body),
        }
    }};
}

/// The same for a piece that is known to lie in arrays.
#[macro_export]
#[doc(hidden)]
macro_rules! with_csr {
    ($piece:expr, $blocks:expr, $T:ty, $lines:ident => $body:expr) => {{
        let (piece, blocks): (&$crate::sparse::PieceBlocks, &[outcore_engine::Block]) =
            (&$piece, $blocks);
        let offsets = piece.offsets(blocks)?;
        match piece.index_element() {
            Some(outcore_core::DType::U16) => {
                let $lines = piece.csr::<u16, $T>(&offsets, blocks)?;
                $body
            }
            Some(outcore_core::DType::I32) => {
                let $lines = piece.csr::<i32, $T>(&offsets, blocks)?;
                $body
            }
            _ => {
                let $lines = piece.csr::<i64, $T>(&offsets, blocks)?;
                $body
            }
        }
    }};
}

/// Goes through offsets in order and decides where to cut.
struct Cutter {
    /// Entries and lines from cut to cut.
    step: u64,
    lines: u64,
    cuts: Vec<Cut>,
    last: Cut,
    line: u64,
    entry: u64,
}

impl Cutter {
    fn new(lines: u64, entries: u64) -> Cutter {
        let start = Cut {
            line: 0,
            entry: 0,
            inside: false,
        };
        let (step, lines) = (CUT_ENTRIES.max(entries / CUTS), CUT_LINES.max(lines / CUTS));
        Cutter {
            step,
            lines,
            cuts: Vec::new(),
            last: start,
            line: 0,
            entry: 0,
        }
    }

    /// The next line ends at `end`.
    fn line(&mut self, end: u64) {
        let full = end - self.last.entry > self.step || self.line - self.last.line >= self.lines;
        let even =
            self.line.is_multiple_of(EVEN_LINES) && self.entry - self.last.entry >= self.step / 2;
        if (full || even) && self.line > self.last.line {
            self.cut(Cut {
                line: self.line,
                entry: self.entry,
                inside: false,
            });
        }
        while end - self.last.entry > 2 * self.step {
            let entry = self.last.entry + self.step;
            self.cut(Cut {
                line: self.line,
                entry,
                inside: true,
            });
        }
        (self.line, self.entry) = (self.line + 1, end);
    }

    fn cut(&mut self, cut: Cut) {
        self.cuts.push(cut);
        self.last = cut;
    }

    /// All the offsets from number `first` on; the error is a number and a reason.
    fn numbers(
        &mut self,
        first: u64,
        offsets: impl Iterator<Item = i64>,
        entries: u64,
    ) -> std::result::Result<(), (u64, String)> {
        for (number, offset) in (first..).zip(offsets) {
            let found = u64::try_from(offset).ok().filter(|found| {
                (self.entry..=entries).contains(found) && (number > 0 || *found == 0)
            });
            let Some(offset) = found else {
                let most = if number == 0 { 0 } else { entries };
                return Err((
                    number,
                    format!("offset {offset} is not between {} and {most}", self.entry),
                ));
            };
            if number > 0 {
                self.line(offset);
            }
        }
        Ok(())
    }
}

/// Where a matrix may be cut; reads all its offsets once.
pub(super) fn find_cuts(session: &Session, parts: &Parts, stop: Stop<'_>) -> Result<Vec<Cut>> {
    let (part, entries) = match &parts.form {
        Form::Tiled(tiled) => return Ok(tiled.cuts()),
        Form::Arrays { offsets, .. } => (offsets, parts.entries),
    };
    let cutter = Arc::new(Mutex::new(Cutter::new(parts.lines, entries)));
    if let Backing::Memory(bytes) = &part.backing {
        let found = match part.vector.element {
            DType::I32 => {
                let offsets = bytemuck::cast_slice::<u8, i32>(bytes)
                    .iter()
                    .map(|&offset| i64::from(offset));
                cutter.locked().numbers(0, offsets, entries)
            }
            _ => cutter.locked().numbers(
                0,
                bytemuck::cast_slice::<u8, i64>(bytes).iter().copied(),
                entries,
            ),
        };
        found.map_err(|(number, reason)| part.corrupt(number, reason))?;
    } else {
        let mut plan = Plan::new("open a sparse matrix");
        let (extent, turn) = (part.extent(&mut plan), plan.serial());
        let at_once = MemorySplit::new(session).block_bytes(1 << 20) / part.vector.element.bytes();
        for range in cut(0..part.vector.len, at_once) {
            let (cutter, element, object) = (
                Arc::clone(&cutter),
                part.vector.element,
                part.name().to_owned(),
            );
            let (first, size, begin) = (range.start, element.bytes(), part.vector.data_offset);
            let task = Task::new("cuts")
                .read(part.region(extent, range))
                .update(turn);
            plan.task(task.run(move |cx| {
                let mut cutter = cutter.locked();
                let found = match element {
                    DType::I32 => cutter.numbers(
                        first,
                        cx.blocks[0]
                            .slice::<i32>()
                            .iter()
                            .map(|&offset| i64::from(offset)),
                        entries,
                    ),
                    _ => {
                        cutter.numbers(first, cx.blocks[0].slice::<i64>().iter().copied(), entries)
                    }
                };
                Ok(found.map_err(|(number, reason)| {
                    let offset = begin + number * size;
                    Error::from(outcore_core::FormatError::Corrupt {
                        object,
                        offset,
                        reason,
                    })
                })?)
            }));
        }
        session.run_until(plan, stop)?;
    }
    let found = std::mem::replace(&mut *cutter.locked(), Cutter::new(0, 0));
    match found.entry == entries {
        true => Ok(found.cuts),
        false => Err(part.corrupt(
            parts.lines,
            format!(
                "the last offset is {}, there are {entries} entries",
                found.entry
            ),
        )),
    }
}

/// Entries before a line.
pub(super) fn offset_of(session: &Session, parts: &Arc<Parts>, line: u64) -> Result<u64> {
    if line == 0 || line == parts.lines {
        return Ok(if line == 0 { 0 } else { parts.entries });
    }
    let part = match &parts.form {
        Form::Tiled(tiled) => return counted(session, parts, tiled, line),
        Form::Arrays { offsets, .. } => offsets,
    };
    let mut plan = Plan::new("look an offset up");
    let extent = part.extent(&mut plan);
    let (found, element) = (Arc::new(Mutex::new(0)), part.vector.element);
    let slot = Arc::clone(&found);
    plan.task(
        Task::new("offset")
            .read(part.region(extent, line..line + 1))
            .run(move |cx| {
                *slot.locked() = match element {
                    DType::I32 => i64::from(cx.blocks[0].slice::<i32>()[0]),
                    _ => cx.blocks[0].slice::<i64>()[0],
                };
                Ok(())
            }),
    );
    session.engine().run(plan)?.wait()?;
    let found = *found.locked();
    u64::try_from(found).map_err(|_| part.corrupt(line, format!("offset {found}")))
}

/// The same of tiles, of which those around the line are looked at.
fn counted(session: &Session, parts: &Arc<Parts>, tiled: &Tiled, line: u64) -> Result<u64> {
    let (before, lines) = tiled.entry_before(line);
    let mut plan = Plan::new("count entries");
    let piece = Piece {
        origin: lines.start,
        lines,
        entries: before..before,
        continues: false,
        breaks_off: false,
    };
    let (region, blocks) = (
        tiled.region(&mut plan, &piece.lines),
        PieceBlocks {
            parts: Arc::clone(parts),
            piece,
        },
    );
    let found = Arc::new(Mutex::new(0));
    let slot = Arc::clone(&found);
    let real = parts.real;
    plan.task(Task::new("count").read(region).run(move |cx| {
        let mut count = 0;
        with_real!(real, T => {
            let tiles = blocks.tiles::<T>(cx.blocks)?;
            blocks.lines_of(&tiles).each_line(|_, entries| count += entries.len() as u64);
        });
        *slot.locked() = count;
        Ok(())
    }));
    session.engine().run(plan)?.wait()?;
    let count = *found.locked();
    Ok(before + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(step: u64, lengths: &[u64]) -> Vec<(u64, u64, bool)> {
        let mut cutter = Cutter {
            step,
            ..Cutter::new(0, 0)
        };
        let mut end = 0;
        for length in lengths {
            end += length;
            cutter.line(end);
        }
        cutter
            .cuts
            .iter()
            .map(|cut| (cut.line, cut.entry, cut.inside))
            .collect()
    }

    #[test]
    fn lines_are_kept_together_until_they_are_as_many_entries_as_a_step() {
        assert_eq!(
            cuts(10, &[4, 4, 4, 4, 0, 0, 4]),
            [(2, 8, false), (6, 16, false)]
        );
        assert_eq!(cuts(10, &[]), []);
        assert_eq!(cuts(10, &[10]), []);
    }

    #[test]
    fn a_long_line_is_cut_inside() {
        assert_eq!(
            cuts(10, &[3, 35, 2]),
            [(1, 3, false), (1, 13, true), (1, 23, true), (2, 38, false)]
        );
    }

    #[test]
    fn many_empty_lines_are_cut_too() {
        let found = cuts(10, &vec![0; 3 * CUT_LINES as usize]);
        assert_eq!(found, [(CUT_LINES, 0, false), (2 * CUT_LINES, 0, false)]);
    }
}
