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

use super::{Found, NeighborOptions, Side, state_bytes, staying};

/// Queries of a task, at most.
const BLOCK_QUERIES: u64 = 1 << 14;

pub(super) struct SparseSearch<'a, T> {
    session: &'a Session,
    rows: &'a Sparse,
    queries: &'a Sparse,
    /// The queries are the rows.
    of_themselves: bool,
    options: NeighborOptions,
    element: PhantomData<T>,
}

impl<'a, T: Real> SparseSearch<'a, T> {
    pub(super) fn new(
        session: &'a Session,
        rows: &'a Sparse,
        queries: &'a Sparse,
        of_themselves: bool,
        options: NeighborOptions,
    ) -> SparseSearch<'a, T> {
        SparseSearch {
            session,
            rows,
            queries,
            of_themselves,
            options,
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
        self.staying().left() / 8
    }

    fn part(&self, of: &Sparse, pieces: &[Piece]) -> Part {
        Part {
            name: of.name().into(),
            first: pieces[0].lines().start,
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

impl<T: Real> Side for SparseSearch<'_, T> {
    type Part = Vec<Piece>;

    fn staying(&self) -> MemorySplit {
        staying(self.session, 0)
    }

    fn blocks(&self) -> Vec<(Vec<Piece>, u64)> {
        let most = self.share() / (3 * state_bytes(self.options.k));
        let most = most.clamp(1, BLOCK_QUERIES);
        Self::parts(self.queries, self.share(), most, Self::posted_bytes)
            .into_iter()
            .map(|pieces| {
                let bytes = pieces
                    .iter()
                    .map(|piece| self.queries.bytes_of(piece))
                    .sum();
                (pieces, bytes)
            })
            .collect()
    }

    fn panels(&self) -> Vec<Vec<Piece>> {
        Self::parts(self.rows, self.share(), u64::MAX, Self::decoded_bytes)
    }

    fn numbers(part: &Vec<Piece>) -> Range<u64> {
        part[0].lines().start..part[part.len() - 1].lines().end
    }

    fn stored_bytes(&self, queries: Range<u64>) -> u64 {
        let others = match self.of_themselves {
            true => 0,
            false => self.queries.stored_bytes() / self.queries.rows().max(1),
        };
        self.rows.stored_bytes() + others * (queries.end - queries.start)
    }

    fn compare(
        &self,
        plan: &mut Plan,
        queries: &Vec<Piece>,
        rows: &Vec<Piece>,
        found: Found,
    ) -> Task {
        let parts = [self.part(self.queries, queries), self.part(self.rows, rows)];
        let (m, [q, x]) = (found.queries, [measures(queries), measures(rows)]);
        let held = Self::posted_bytes(q) + Self::decoded_bytes(x);
        let mut task = Task::new("compare")
            .flops(m as u64 * x.0)
            .scratch(m * size_of::<T>())
            .held(held as usize);
        for (of, pieces) in [(self.queries, queries), (self.rows, rows)] {
            let regions = pieces.iter().flat_map(|piece| of.regions(plan, piece));
            task = regions.fold(task, Task::read);
        }
        let leaves_out_itself = self.of_themselves;
        task.run(move |cx| compare::<T>(&parts, found, leaves_out_itself, cx))
    }
}

/// Rows of one side.
pub(super) struct Part {
    pub(super) name: Arc<str>,
    pub(super) first: u64,
    pub(super) lines: usize,
    pub(super) pieces: Vec<PieceBlocks>,
}

fn compare<T: Real>(
    parts: &[Part; 2],
    found: Found,
    leaves_out_itself: bool,
    cx: &mut Context<'_>,
) -> std::result::Result<(), TaskError> {
    let Some((state, read)) = cx.blocks.split_last_mut() else {
        unreachable!("the state is declared")
    };
    let of_queries = parts[0].pieces.iter().map(PieceBlocks::count).sum();
    let (queries, rows) = read.split_at(of_queries);
    let queries = parts[0].decode::<T>(queries)?;
    let rows = parts[1].decode::<T>(rows)?;
    let postings = Postings::new(queries.numbered(parts[0].first))?;
    let bytes = found.queries * size_of::<T>();
    Ok(kernels::add_sparse_neighbors(
        found.nearest(state),
        found.metric,
        queries.numbered(parts[0].first),
        &postings,
        rows.numbered(parts[1].first),
        leaves_out_itself,
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

impl Part {
    pub(super) fn decode<T: Real>(&self, blocks: &[Block]) -> Result<Decoded<T>> {
        let mut starts = vec![0; self.lines + 1];
        for (piece, blocks) in each_piece(&self.pieces, blocks) {
            let first = (piece.piece.lines().start - self.first) as usize;
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
            let first = (piece.piece.lines().start - self.first) as usize;
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
