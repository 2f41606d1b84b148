//! A sparse matrix with other values of each sparse matrix: every entry keeps its place.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytemuck::Pod;
use outcore_core::{DType, Job, MemorySplit, Result, Session};
use outcore_engine::{Block, Plan, Region, Task, go_on};
use outcore_kernels::{Lines, Real};
use outcore_matrix::Sparse;
use outcore_matrix::sparse::{NewSparse, Piece, PieceBlocks, SparseShape, in_lines, with_lines};

/// What entries become.
pub(crate) trait EntryMap<T: Real>: Send + Sync + 'static {
    /// What a task finds out of its lines before their entries become something else.
    type OfLines;

    /// Bytes that the map holds.
    fn held_bytes(&self) -> u64;

    /// Bytes that a task holds for each line.
    fn line_bytes(&self) -> u64;

    /// Looks at lines, the first of which has this number. Where lines are cut these are parts of
    /// them.
    fn look(&self, first: usize, lines: impl Lines<T>) -> Self::OfLines;

    /// What becomes of a value of a line, which is counted from the first.
    fn value(
        &self,
        of_lines: &Self::OfLines,
        first: usize,
        line: usize,
        place: usize,
        value: f64,
    ) -> f64;
}

/// The pieces of such a pass, for a map that holds `held_bytes` in all and `line_bytes` for each
/// line of a piece.
pub(crate) fn entry_pieces(
    session: &Session,
    a: &Sparse,
    held_bytes: u64,
    line_bytes: u64,
) -> Vec<Piece> {
    // What is read is written too.
    let piece_bytes = MemorySplit::new(session)
        .hold(held_bytes)
        .moved_panel_bytes()
        / 2;
    a.pieces(piece_bytes, |lines| lines * line_bytes)
}

/// A matrix in a new folder or in scratch, with values of type U. `pieces` are those of
/// [`entry_pieces`].
///
/// Cost: reads A, writes as much.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget); what keeps the output from being made.
pub(crate) fn map_entries<T: Real, U: Real, M: EntryMap<T>>(
    session: &Session,
    name: &'static str,
    a: &Sparse,
    pieces: &[Piece],
    map: M,
    shape: SparseShape,
    out: Option<PathBuf>,
) -> Result<Job<Sparse>> {
    let mut plan = Plan::new(format!("{name} {}", a.name()));
    plan.hold(map.held_bytes());
    let new = NewSparse::make(session, out, shape, &mut plan)?;
    let last = Task::new("end").write(new.offsets(&mut plan, a.lines()..a.lines() + 1));
    let entries = a.nonzeros() as i64;
    plan.task(last.run(move |cx| {
        cx.blocks[0].slice_mut::<i64>()[0] = entries;
        Ok(())
    }));
    let (map, mut at) = (Arc::new(map), 0);
    for piece in pieces {
        go_on()?;
        let range = at..at + piece.entries();
        at = range.end;
        let written = Written::declare(&mut plan, &new, piece, range.clone());
        let lines = piece.lines().end - piece.lines().start;
        let task = Task::new(name)
            .flops(2 * piece.entries())
            .held((lines * map.line_bytes()) as usize);
        let regions = a.regions(&mut plan, piece).into_iter();
        let task = regions.fold(task, Task::read);
        let regions = written.regions.iter();
        let task = regions.fold(task, |task, region| task.write(*region));
        let (lines, map) = (a.blocks(piece), Arc::clone(&map));
        plan.task(task.run(move |cx| {
            let (read, blocks) = cx.blocks.split_at_mut(lines.count());
            Ok(written.fill::<T, U, M>(&lines, read, blocks, range.start, &map)?)
        }));
    }
    assert_eq!(at, a.nonzeros(), "pieces have every entry once");
    plan.bound(a.stored_bytes() + new.nbytes());
    // To make files whole and to look at all offsets may take long.
    Job::driven(session, vec![plan], move |stage, plans| {
        for plan in plans {
            stage.run(plan, 0.99)?;
        }
        new.finish(&|| stage.is_cancelled())
    })
}

/// What a task writes of a new matrix.
struct Written {
    regions: Vec<Region>,
    has_offsets: bool,
    has_values: bool,
    index: DType,
}

impl Written {
    /// The offsets of the lines that the piece begins, its indices and its values.
    fn declare(plan: &mut Plan, new: &NewSparse, piece: &Piece, entries: Range<u64>) -> Written {
        let offsets = (!piece.continues).then(|| new.offsets(plan, piece.lines()));
        let (has_offsets, indices) = (offsets.is_some(), new.indices(plan, entries.clone()));
        let values = new.values(plan, entries);
        let has_values = values.is_some();
        Written {
            regions: offsets.into_iter().chain([indices]).chain(values).collect(),
            has_offsets,
            has_values,
            index: new.shape().index,
        }
    }

    fn fill<T: Real, U: Real, M: EntryMap<T>>(
        &self,
        lines: &PieceBlocks,
        read: &[Block],
        blocks: &mut [Block],
        first_entry: u64,
        map: &M,
    ) -> Result<()> {
        let (offsets, rest) = blocks.split_at_mut(usize::from(self.has_offsets));
        let (indices, rest) = rest.split_at_mut(1);
        let indices = &mut indices[0];
        let values = if self.has_values {
            rest[0].slice_mut::<U>()
        } else {
            &mut []
        };
        let first = lines.piece.lines().start as usize;
        with_lines!(lines, read, T, a => {
            let of_lines = map.look(first, a);
            let put = |at: usize, line: usize, place: usize, value: T| {
                if let Some(into) = values.get_mut(at) {
                    *into = U::of(map.value(&of_lines, first, line, place, value.f64()));
                }
            };
            let found = match self.index {
                DType::U16 => fill_indices(a, indices.slice_mut(), |place| place as u16, put),
                DType::I32 => fill_indices(a, indices.slice_mut(), |place| place as i32, put),
                _ => fill_indices(a, indices.slice_mut(), |place| place as i64, put),
            };
            if let Some(offsets) = offsets.first_mut() {
                let into = offsets.slice_mut::<i64>().iter_mut();
                into.zip(found).for_each(|(into, at)| *into = (first_entry + at) as i64);
            }
        });
        Ok(())
    }
}

fn fill_indices<T: Real, I: Pod>(
    a: impl Lines<T>,
    indices: &mut [I],
    index: impl Fn(usize) -> I,
    mut put: impl FnMut(usize, usize, usize, T),
) -> Vec<u64> {
    in_lines(a, |at, line, place, value| {
        indices[at] = index(place);
        put(at, line, place, value);
    })
}
