//! Sparse rows: what the entries of each have in common with a block of queries.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_engine::{Block, Context, Plan, Task, TaskError};
use outcore_kernels as kernels;
use outcore_kernels::{Lines, Postings, Real, SparseNumberedRows};
use outcore_matrix::Sparse;
use outcore_matrix::sparse::{Piece, PieceBlocks, each_piece, whole_lines, with_lines};

use super::{Side, Sought, Wanted, staying};

/// Queries of a task, at most.
const BLOCK_QUERIES: u64 = 1 << 14;

#[derive(Clone)]
pub(super) struct SparseSearch<T> {
    session: Session,
    rows: Sparse,
    /// The queries that are looked for.
    queries: Sparse,
    /// The number of the first.
    first: u64,
    /// The queries are the rows.
    of_themselves: bool,
    element: PhantomData<T>,
}

impl<T: Real> SparseSearch<T> {
    pub(super) fn new(session: &Session, rows: &Sparse, queries: Option<&Sparse>) -> Self {
        SparseSearch {
            session: session.clone(),
            rows: rows.clone(),
            queries: queries.unwrap_or(rows).clone(),
            first: 0,
            of_themselves: queries.is_none(),
            element: PhantomData,
        }
    }

    /// Bytes of a part in the memory of a task.
    fn decoded_bytes((lines, entries): (u64, u64)) -> u64 {
        24 * lines + (8 + size_of::<T>() as u64) * entries
    }

    /// Bytes of queries in the memory of a task, as rows and as postings.
    fn posted_bytes((lines, entries): (u64, u64)) -> u64 {
        let postings = Postings::<T>::held_bytes(entries as usize) as u64;
        Self::decoded_bytes((lines, entries)) + postings
    }

    /// Pieces of some bytes and lines together, in whole lines; `held`: what a task holds of as many
    /// lines and entries.
    fn parts(
        x: &Sparse,
        share: u64,
        most_lines: u64,
        held: fn((u64, u64)) -> u64,
    ) -> Vec<Vec<Piece>> {
        let decoded = |pieces: &[Piece]| {
            let stored = pieces.iter().map(|piece| x.bytes_of(piece)).sum::<u64>();
            stored + held(measures(pieces))
        };
        let mut parts = Vec::<Vec<Piece>>::new();
        for lines in whole_lines(&x.pieces(share / 4, |lines| 64 * lines)) {
            let fits = parts.last().is_some_and(|part| {
                let all = [&part[..], &lines].concat();
                decoded(&all) <= share && measures(&all).0 <= most_lines
            });
            match parts.last_mut() {
                Some(part) if fits => part.extend(lines),
                _ => parts.push(lines),
            }
        }
        parts
    }

    fn share(&self) -> u64 {
        self.staying(0).left() / 8
    }

    /// Blocks of queries that take at most `share` bytes each, and `bytes_beside` a query as many.
    fn blocks_within(&self, share: u64, bytes_beside: u64) -> Vec<(Vec<Piece>, u64)> {
        let most = (share / bytes_beside.max(1)).clamp(1, BLOCK_QUERIES);
        let parts = Self::parts(&self.queries, share, most, Self::posted_bytes).into_iter();
        parts
            .map(|pieces| {
                let bytes = pieces
                    .iter()
                    .map(|piece| self.queries.bytes_of(piece))
                    .sum();
                (pieces, bytes)
            })
            .collect()
    }

    /// A task that reads queries and rows, with some elements of scratch a query.
    fn meeting(
        &self,
        plan: &mut Plan,
        name: &'static str,
        queries: &[Piece],
        rows: &[Piece],
        scratch: usize,
    ) -> ([SideRows; 2], Task) {
        let sides = [
            Self::side_rows(&self.queries, self.first, queries),
            Self::side_rows(&self.rows, 0, rows),
        ];
        let [q, x] = [queries, rows].map(measures);
        let held = Self::posted_bytes(q) + Self::decoded_bytes(x);
        let mut task = Task::new(name)
            .flops(q.0 * x.0)
            .scratch(scratch * q.0 as usize * size_of::<T>())
            .held(held as usize);
        for (of, pieces) in [(&self.queries, queries), (&self.rows, rows)] {
            let regions = pieces.iter().flat_map(|piece| of.regions(plan, piece));
            task = regions.fold(task, Task::read);
        }
        (sides, task)
    }

    fn side_rows(of: &Sparse, first: u64, pieces: &[Piece]) -> SideRows {
        SideRows {
            name: of.name().into(),
            first: first + pieces[0].lines().start,
            line: pieces[0].lines().start,
            lines: measures(pieces).0 as usize,
            pieces: pieces.iter().map(|piece| of.blocks(piece)).collect(),
        }
    }
}

/// Lines and entries of consecutive pieces.
pub(super) fn measures(pieces: &[Piece]) -> (u64, u64) {
    let first = pieces.first().map_or(0, |piece| piece.lines().start);
    let end = pieces.last().map_or(0, |piece| piece.lines().end);
    (end - first, pieces.iter().map(Piece::entries).sum())
}

impl<T: Real> Side for SparseSearch<T> {
    type RowRange = Vec<Piece>;

    fn queries(&self) -> Range<u64> {
        self.first..self.first + self.queries.rows()
    }

    fn rows(&self) -> u64 {
        self.rows.rows()
    }

    /// Entries of a row, in the mean.
    fn terms(&self) -> u64 {
        1 + self.rows.nonzeros() / self.rows.rows().max(1)
    }

    fn of_queries(&self, range: Range<u64>) -> Result<Self> {
        let lines = range.start - self.first..range.end - self.first;
        Ok(SparseSearch {
            queries: self.queries.slice(lines)?,
            first: range.start,
            ..self.clone()
        })
    }

    fn staying(&self, held_bytes: u64) -> MemorySplit {
        staying(&self.session, 0, held_bytes)
    }

    fn blocks(&self, bytes_beside: u64) -> Vec<(Vec<Piece>, u64)> {
        self.blocks_within(self.share(), bytes_beside)
    }

    fn panels(&self, bytes_beside: u64) -> Vec<Vec<Piece>> {
        let most = self.share().checked_div(bytes_beside).unwrap_or(u64::MAX);
        Self::parts(&self.rows, self.share(), most.max(1), Self::decoded_bytes)
    }

    fn numbers(&self, block: &Vec<Piece>) -> Range<u64> {
        let lines = Self::rows_of(block);
        self.first + lines.start..self.first + lines.end
    }

    fn rows_of(panel: &Vec<Piece>) -> Range<u64> {
        panel[0].lines().start..panel[panel.len() - 1].lines().end
    }

    fn stored_bytes(&self, queries: Range<u64>) -> u64 {
        let others = match self.of_themselves {
            true => 0,
            false => self.queries.stored_bytes() / self.queries.rows().max(1),
        };
        self.rows.stored_bytes() + others * (queries.end - queries.start)
    }

    fn mutual_blocks(&self, bytes_beside: u64) -> Option<Vec<(Vec<Piece>, u64)>> {
        // A group, and as much again of blocks that it meets.
        let share = self.share() / 2;
        self.of_themselves
            .then(|| self.blocks_within(share, bytes_beside))
    }

    fn meet_each_other(
        &self,
        plan: &mut Plan,
        [one, other]: [&Vec<Piece>; 2],
        sought: [Sought; 2],
    ) -> Task {
        let (sides, task) = self.meeting(plan, "meet", one, other, 3);
        task.run(move |cx| meet::<T>(&sides, sought, cx))
    }

    fn compare(
        &self,
        plan: &mut Plan,
        queries: &Vec<Piece>,
        rows: &Vec<Piece>,
        sought: Sought,
    ) -> Task {
        let (sides, task) = self.meeting(plan, "compare", queries, rows, 1);
        let leaves_out_itself = self.of_themselves;
        task.run(move |cx| compare::<T>(&sides, sought, leaves_out_itself, cx))
    }
}

/// Rows of one side.
pub(super) struct SideRows {
    pub(super) name: Arc<str>,
    pub(super) first: u64,
    /// The first line, as pieces count them.
    pub(super) line: u64,
    pub(super) lines: usize,
    pub(super) pieces: Vec<PieceBlocks>,
}

fn compare<T: Real>(
    sides: &[SideRows; 2],
    sought: Sought,
    leaves_out_itself: bool,
    cx: &mut Context<'_>,
) -> std::result::Result<(), TaskError> {
    let Some((state, read)) = cx.blocks.split_last_mut() else {
        unreachable!("the state is declared")
    };
    let of_queries = sides[0].pieces.iter().map(PieceBlocks::count).sum();
    let (queries, rows) = read.split_at(of_queries);
    let queries = sides[0].decode::<T>(queries)?;
    let rows = sides[1].decode::<T>(rows)?;
    let postings = Postings::new(queries.numbered(sides[0].first))?;
    let bytes = sought.queries * size_of::<T>();
    let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..bytes]);
    let stop = || cx.cancelled.load(Ordering::Relaxed);
    let (queries, rows) = (
        queries.numbered(sides[0].first),
        rows.numbered(sides[1].first),
    );
    Ok(match sought.wanted {
        Wanted::Nearest(_) => kernels::add_sparse_neighbors(
            sought.nearest(state),
            sought.metric,
            queries,
            &postings,
            rows,
            leaves_out_itself,
            scratch,
            &stop,
        ),
        Wanted::Within { .. } => kernels::add_sparse_within(
            &mut sought.within(state),
            queries,
            &postings,
            rows,
            leaves_out_itself,
            scratch,
            &stop,
        ),
    }?)
}

/// Two blocks of rows that look for each other.
fn meet<T: Real>(
    sides: &[SideRows; 2],
    sought: [Sought; 2],
    cx: &mut Context<'_>,
) -> std::result::Result<(), TaskError> {
    let Some((read, [of_one, of_other])) = cx.blocks.split_last_chunk_mut::<2>() else {
        unreachable!("two lists are declared")
    };
    let (one, other) = read.split_at(sides[0].pieces.iter().map(PieceBlocks::count).sum());
    let (one, other) = (sides[0].decode::<T>(one)?, sides[1].decode::<T>(other)?);
    let one = one.numbered(sides[0].first);
    let bytes = 3 * sought[0].queries * size_of::<T>();
    Ok(kernels::add_mutual_sparse_neighbors(
        [sought[0].nearest(of_one), sought[1].nearest(of_other)],
        sought[0].metric,
        one,
        &Postings::new(one)?,
        other.numbered(sides[1].first),
        bytemuck::cast_slice_mut(&mut cx.scratch[..bytes]),
        &|| cx.cancelled.load(Ordering::Relaxed),
    )?)
}

/// Rows in memory, each with its columns in order.
pub(super) struct Decoded<T> {
    pub(super) starts: Vec<usize>,
    pub(super) columns: Vec<u64>,
    pub(super) values: Vec<T>,
    pub(super) squares: Vec<f64>,
}

impl<T: Real> Decoded<T> {
    fn numbered(&self, first: u64) -> SparseNumberedRows<'_, T> {
        SparseNumberedRows {
            starts: &self.starts,
            columns: &self.columns,
            values: &self.values,
            squares: &self.squares,
            first,
        }
    }
}

impl SideRows {
    pub(super) fn decode<T: Real>(&self, blocks: &[Block]) -> Result<Decoded<T>> {
        let mut starts = vec![0; self.lines + 1];
        for (piece, blocks) in each_piece(&self.pieces, blocks) {
            let first = (piece.piece.lines().start - self.line) as usize;
            with_lines!(piece, blocks, T, lines => lines.each_line(|line, entries| {
                entries.each(|_, _| starts[first + line + 1] += 1);
            }));
        }
        for line in 0..self.lines {
            starts[line + 1] += starts[line];
        }
        let (mut next, count) = (starts.clone(), starts[self.lines]);
        let (mut columns, mut values) = (vec![0; count], vec![T::ZERO; count]);
        for (piece, blocks) in each_piece(&self.pieces, blocks) {
            let first = (piece.piece.lines().start - self.line) as usize;
            with_lines!(piece, blocks, T, lines => lines.each_line(|line, entries| {
                let at = &mut next[first + line];
                entries.each(|column, value| {
                    (columns[*at], values[*at]) = (column as u64, value);
                    *at += 1;
                });
            }));
        }
        let mut squares = vec![0.0; self.lines];
        for (row, square) in squares.iter_mut().enumerate() {
            let entries = starts[row]..starts[row + 1];
            let (columns, values) = (&mut columns[entries.clone()], &mut values[entries]);
            if !columns.is_sorted() {
                let mut pairs: Vec<(u64, T)> = columns
                    .iter()
                    .copied()
                    .zip(values.iter().copied())
                    .collect();
                pairs.sort_by_key(|pair| pair.0);
                for (at, pair) in pairs.into_iter().enumerate() {
                    (columns[at], values[at]) = pair;
                }
            }
            *square = values.iter().map(|x| x.f64() * x.f64()).sum();
            if !square.is_finite() {
                return Err(self.not_finite(row, columns, values));
            }
        }
        Ok(Decoded {
            starts,
            columns,
            values,
            squares,
        })
    }

    fn not_finite<T: Real>(&self, row: usize, columns: &[u64], values: &[T]) -> Error {
        let row = self.first + row as u64;
        match values.iter().position(|value| !value.finite()) {
            Some(at) => Error::NotFinite {
                object: self.name.to_string(),
                row,
                column: columns[at],
            },
            None => Error::Failed {
                what: format!("the square of row {row} of {} overflows", self.name),
            },
        }
    }
}
