//! Rows as bytes that go round: what kernels take, in one piece of memory.
//!
//! ```text
//!   header | squares, 8 bytes a row | dense:  values, row by row
//!                                   | sparse: starts, 8 bytes a row and one more | columns, 8 bytes an entry | values
//! ```
//!
//! Numbers are of the processor's order of bytes: ranks have processors of one kind.

use std::marker::PhantomData;
use std::sync::Arc;

use outcore_core::panels::cut;
use outcore_core::ring::Slot;
use outcore_core::{Error, Result};
use outcore_engine::{Plan, Task};
use outcore_kernels as kernels;
use outcore_kernels::{
    Blas, Comparison, MatRef, Neighbor, NeighborTile, NumberedRows, Numbers, Postings, Real,
    SparseNumberedRows,
};
use outcore_matrix::sparse::{Piece, whole_lines};
use outcore_matrix::{Operand, Rows, Sparse};

use super::super::{dense, sparse};

/// Bytes of the header: eight numbers.
pub(super) const HEADER_BYTES: usize = 64;
/// Queries of a sparse block, at most: a row's products with them stay in the second-level cache.
const SPARSE_QUERIES: u64 = 1 << 14;
/// Queries of a dense block, at most.
const DENSE_QUERIES: u64 = 1024;
/// Queries and rows of a product, at most.
const TILE_QUERIES: usize = 512;
const TILE_ROWS: usize = 512;

/// What a block says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    bytes: u64,
    /// Rows in it.
    pub(super) rows: u64,
    entries: u64,
    width: u64,
    /// The number of its first row among those of all ranks.
    pub(super) first: u64,
    /// The number of the first row of its rank.
    pub(super) origin: u64,
    is_sparse: bool,
    /// The rank that it comes from has failed.
    pub(super) failed: bool,
}

impl Header {
    /// Of a block.
    pub(super) fn of(block: &[u8]) -> Result<Header> {
        let mut numbers = [0_u64; HEADER_BYTES / 8];
        bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(&block[..HEADER_BYTES]);
        let [
            bytes,
            rows,
            entries,
            width,
            first,
            origin,
            is_sparse,
            failed,
        ] = numbers;
        match bytes as usize <= block.len() {
            true => Ok(Header {
                bytes,
                rows,
                entries,
                width,
                first,
                origin,
                is_sparse: is_sparse != 0,
                failed: failed != 0,
            }),
            false => Err(Error::Failed {
                what: format!(
                    "a block of {bytes} bytes came into a slot of {}",
                    block.len()
                ),
            }),
        }
    }

    fn put(&self, block: &mut [u8]) {
        let numbers = [
            self.bytes,
            self.rows,
            self.entries,
            self.width,
            self.first,
            self.origin,
            u64::from(self.is_sparse),
            u64::from(self.failed),
        ];
        block[..HEADER_BYTES].copy_from_slice(bytemuck::cast_slice(&numbers));
    }
}

/// Leaves a block without rows in a slot.
pub(super) fn clear(slot: &dyn Slot, failed: bool) {
    let header = Header {
        bytes: HEADER_BYTES as u64,
        failed,
        ..Header::default()
    };
    slot.write(&mut |slot| header.put(slot));
}

/// The places of a block's arrays.
struct Places {
    squares: usize,
    starts: usize,
    columns: usize,
    values: usize,
    end: usize,
}

fn places<T>(is_sparse: bool, rows: usize, entries: usize) -> Places {
    let squares = HEADER_BYTES;
    let starts = squares + 8 * rows;
    let (columns, values) = match is_sparse {
        true => (starts + 8 * (rows + 1), starts + 8 * (rows + 1 + entries)),
        false => (starts, starts),
    };
    Places {
        squares,
        starts,
        columns,
        values,
        end: (values + entries * size_of::<T>()).next_multiple_of(8),
    }
}

/// The rows of a rank that make one block.
#[derive(Clone)]
pub(super) struct BlockRows {
    first: u64,
    rows: u64,
    entries: u64,
    /// Of sparse rows.
    lines: Vec<Vec<Piece>>,
}

impl BlockRows {
    /// How many.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// The number of the row after the last one.
    pub(super) fn end(&self) -> u64 {
        self.first + self.rows
    }
}

/// Rows of the block that has most.
fn longest(parts: &[BlockRows]) -> usize {
    parts.iter().map(BlockRows::rows).max().unwrap_or(0) as usize
}

/// The rows of a rank, to be cut into blocks.
#[derive(Clone)]
pub(super) struct Blocks<T> {
    source: Source,
    element: PhantomData<T>,
}

#[derive(Clone)]
enum Source {
    Dense(Operand),
    /// With its whole lines, in order.
    Sparse(Sparse, Arc<Vec<Vec<Piece>>>),
}

impl<T: Real> Blocks<T> {
    /// `share`: bytes of a piece that is read at a time.
    pub(super) fn new(rows: Rows, share: u64) -> Result<Blocks<T>> {
        rows.check_rows_together()?;
        let source = match rows {
            Rows::Dense(x) => Source::Dense(x),
            Rows::Sparse(x) => {
                let lines = whole_lines(&x.pieces(share, |lines| 64 * lines));
                Source::Sparse(x, Arc::new(lines))
            }
        };
        Ok(Blocks {
            source,
            element: PhantomData,
        })
    }

    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.source, Source::Sparse(..))
    }

    pub(super) fn count(&self) -> u64 {
        match &self.source {
            Source::Dense(x) => x.rows(),
            Source::Sparse(x, _) => x.lines(),
        }
    }

    pub(super) fn width(&self) -> u64 {
        match &self.source {
            Source::Dense(x) => x.cols(),
            Source::Sparse(x, _) => x.width(),
        }
    }

    /// Bytes of the longest lines that are not cut.
    pub(super) fn longest_bytes(&self) -> usize {
        match &self.source {
            Source::Dense(x) => self.size(1, x.cols()),
            Source::Sparse(_, lines) => {
                let bytes = lines.iter().map(|lines| {
                    let (rows, entries) = sparse::measures(lines);
                    self.size(rows, entries)
                });
                bytes.max().unwrap_or(0)
            }
        }
    }

    fn size(&self, rows: u64, entries: u64) -> usize {
        places::<T>(self.is_sparse(), rows as usize, entries as usize).end
    }

    /// Bytes of the block.
    pub(super) fn bytes(&self, part: &BlockRows) -> usize {
        self.size(part.rows, part.entries)
    }

    /// Bytes of a block of queries, and of what is prepared of it.
    pub(super) fn held_bytes(&self, part: &BlockRows) -> usize {
        let postings = match &self.source {
            Source::Sparse(..) => Postings::<T>::held_bytes(part.entries as usize),
            Source::Dense(_) => 0,
        };
        self.bytes(part) + postings
    }

    /// How dense rows are compared with one of these blocks of queries: products take about
    /// `compared_bytes`, the operands of rounded ones at most `rounded_bytes`.
    pub(super) fn tile(
        &self,
        parts: &[BlockRows],
        compared_bytes: u64,
        rounded_bytes: u64,
    ) -> NeighborTile {
        let queries = TILE_QUERIES.min(longest(parts).max(1));
        self.tile_of(queries, compared_bytes, rounded_bytes)
    }

    fn tile_of(&self, queries: usize, compared_bytes: u64, rounded_bytes: u64) -> NeighborTile {
        let elements = compared_bytes as usize / size_of::<T>();
        let tile = NeighborTile::within(queries, TILE_ROWS, elements);
        tile.rounded_within::<T>(self.width() as usize, rounded_bytes as usize)
    }

    /// The most that a thread holds while it compares blocks of no more queries than these have.
    pub(super) fn most_compared_bytes(
        &self,
        parts: &[BlockRows],
        [compared_bytes, rounded_bytes]: [u64; 2],
        blas: &Blas,
    ) -> u64 {
        let most = TILE_QUERIES.min(longest(parts).max(1));
        let bytes = NeighborTile::query_counts(most)
            .map(|queries| self.tile_of(queries, compared_bytes, rounded_bytes))
            .map(|tile| self.compared_bytes(parts, tile, blas));
        bytes.max().unwrap_or(0)
    }

    /// Bytes that a thread holds while it compares one of these blocks of queries.
    pub(super) fn compared_bytes(
        &self,
        parts: &[BlockRows],
        tile: NeighborTile,
        blas: &Blas,
    ) -> u64 {
        let bytes = match &self.source {
            Source::Sparse(..) => longest(parts) * size_of::<T>(),
            Source::Dense(x) => {
                tile.scratch() * size_of::<T>() + tile.held_bytes::<T>(x.cols() as usize, blas)
            }
        };
        bytes as u64
    }

    /// Parts of `bytes` bytes at most.
    pub(super) fn blocks(&self, bytes: usize) -> Vec<BlockRows> {
        self.cut(0, bytes, 0, u64::MAX)
    }

    /// The same of queries, each of which takes `beside` bytes more: those from `from` on. Sparse lines that
    /// lie in one piece with it come along.
    pub(super) fn blocks_beside(&self, from: u64, bytes: usize, beside: usize) -> Vec<BlockRows> {
        let most = match &self.source {
            Source::Dense(_) => DENSE_QUERIES,
            Source::Sparse(..) => SPARSE_QUERIES,
        };
        self.cut(from, bytes, beside, most)
    }

    fn cut(&self, from: u64, bytes: usize, beside: usize, most: u64) -> Vec<BlockRows> {
        match &self.source {
            Source::Dense(x) => {
                let each = self.size(1, x.cols()) - HEADER_BYTES + beside;
                let room = bytes.saturating_sub(HEADER_BYTES) / each.max(1);
                let parts = cut(from..x.rows(), (room as u64).clamp(1, most));
                parts
                    .into_iter()
                    .map(|rows| BlockRows {
                        first: rows.start,
                        rows: rows.end - rows.start,
                        entries: (rows.end - rows.start) * x.cols(),
                        lines: Vec::new(),
                    })
                    .collect()
            }
            Source::Sparse(_, lines) => {
                let mut parts = Vec::<BlockRows>::new();
                let is_left =
                    |group: &&Vec<Piece>| group.last().is_some_and(|last| last.lines().end > from);
                for group in lines.iter().filter(is_left) {
                    let (rows, entries) = sparse::measures(group);
                    match parts.last_mut() {
                        Some(part)
                            if self.size(part.rows + rows, part.entries + entries)
                                + (part.rows + rows) as usize * beside
                                <= bytes
                                && part.rows + rows <= most =>
                        {
                            part.rows += rows;
                            part.entries += entries;
                            part.lines.push(group.clone());
                        }
                        _ => parts.push(BlockRows {
                            first: group[0].lines().start,
                            rows,
                            entries,
                            lines: vec![group.clone()],
                        }),
                    }
                }
                parts
            }
        }
    }

    /// A plan that reads rows and leaves their block in a slot. `origin` is the number of the first row of
    /// the rank.
    pub(super) fn load(&self, part: &BlockRows, slot: Arc<dyn Slot>, origin: u64) -> Plan {
        let mut plan = Plan::new("read a block");
        let header = Header {
            bytes: self.bytes(part) as u64,
            rows: part.rows,
            entries: part.entries,
            width: self.width(),
            first: origin + part.first,
            origin,
            is_sparse: self.is_sparse(),
            failed: false,
        };
        slot.write(&mut |slot| header.put(slot));
        let places = places::<T>(self.is_sparse(), part.rows as usize, part.entries as usize);
        match &self.source {
            Source::Dense(x) => self.load_dense(&mut plan, x, part, slot, &places),
            Source::Sparse(x, _) => self.load_sparse(&mut plan, x, part, slot, &places),
        }
        plan
    }

    fn load_dense(
        &self,
        plan: &mut Plan,
        x: &Operand,
        part: &BlockRows,
        slot: Arc<dyn Slot>,
        places: &Places,
    ) {
        let d = x.cols() as usize;
        let row_bytes = x.cols() * size_of::<T>() as u64;
        let several = (LOAD_BYTES / row_bytes.max(1)).max(1);
        for rows in cut(part.first..part.first + part.rows, several) {
            let at = (rows.start - part.first) as usize;
            let piece = dense::SideRows::new(plan, x, rows.clone());
            let (squares_at, values_at) = (
                places.squares + 8 * at,
                places.values + at * d * size_of::<T>(),
            );
            let slot = Arc::clone(&slot);
            plan.task(Task::new("read").read(piece.tile.region).run(move |cx| {
                let values = piece.tile.of::<T>(&cx.blocks[0])?;
                let squares = piece.squares(values)?;
                slot.write(&mut |slot| {
                    put(slot, squares_at, &squares);
                    let into = &mut slot[values_at..][..values.nrows() * d * size_of::<T>()];
                    let into: &mut [T] = bytemuck::cast_slice_mut(into);
                    for (row, into) in into.chunks_exact_mut(d.max(1)).enumerate() {
                        for (into, value) in into.iter_mut().zip(values.row(row).iter()) {
                            *into = *value;
                        }
                    }
                });
                Ok(())
            }));
        }
    }

    fn load_sparse(
        &self,
        plan: &mut Plan,
        x: &Sparse,
        part: &BlockRows,
        slot: Arc<dyn Slot>,
        places: &Places,
    ) {
        let (mut row, mut entry) = (0, 0);
        for lines in &part.lines {
            let (rows, entries) = sparse::measures(lines);
            let piece = sparse::SideRows {
                name: x.name().into(),
                first: lines[0].lines().start,
                line: lines[0].lines().start,
                lines: rows as usize,
                pieces: lines.iter().map(|piece| x.blocks(piece)).collect(),
            };
            let at = [
                places.squares + 8 * row,
                places.starts + 8 * row,
                places.columns + 8 * entry,
                places.values + entry * size_of::<T>(),
            ];
            let regions = lines.iter().flat_map(|piece| x.regions(plan, piece));
            let task = regions.fold(Task::new("read"), Task::read);
            let slot = Arc::clone(&slot);
            let before = entry;
            plan.task(task.run(move |cx| {
                let read = piece.decode::<T>(cx.blocks)?;
                slot.write(&mut |slot| {
                    let starts: Vec<u64> = read
                        .starts
                        .iter()
                        .map(|start| (before + start) as u64)
                        .collect();
                    put(slot, at[0], &read.squares);
                    put(slot, at[1], &starts);
                    put(slot, at[2], &read.columns);
                    put(slot, at[3], &read.values);
                });
                Ok(())
            }));
            row += rows as usize;
            entry += entries as usize;
        }
    }
}

/// Bytes of dense rows that are read at a time.
const LOAD_BYTES: u64 = 1 << 20;

fn put<E: bytemuck::Pod>(slot: &mut [u8], at: usize, elements: &[E]) {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    slot[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The rows of a block.
enum View<'a, T: Real> {
    Dense(NumberedRows<'a, T>),
    Sparse(SparseNumberedRows<'a, T>),
}

fn view<T: Real>(block: &[u8]) -> Result<View<'_, T>> {
    let header = Header::of(block)?;
    let (rows, entries) = (header.rows as usize, header.entries as usize);
    let places = places::<T>(header.is_sparse, rows, entries);
    if places.end > block.len() {
        return Err(Error::Failed {
            what: format!(
                "a block of {rows} rows does not fit its {} bytes",
                block.len()
            ),
        });
    }
    let squares: &[f64] = bytemuck::cast_slice(&block[places.squares..places.starts]);
    let values: &[T] = bytemuck::cast_slice(&block[places.values..][..entries * size_of::<T>()]);
    Ok(match header.is_sparse {
        true => View::Sparse(SparseNumberedRows {
            starts: bytemuck::cast_slice(&block[places.starts..places.columns]),
            columns: bytemuck::cast_slice(&block[places.columns..places.values]),
            values,
            squares,
            first: header.first,
        }),
        false => View::Dense(NumberedRows {
            values: MatRef::from_row_major_slice(values, rows, header.width as usize),
            squares,
            numbers: Numbers::From(header.first),
        }),
    })
}

/// What is made of a block of queries once.
pub(super) enum Prepared<T> {
    Nothing,
    Postings(Postings<T>),
}

/// What comparisons need of a block of queries besides.
pub(super) fn prepared<T: Real>(queries: &[u8]) -> Result<Prepared<T>> {
    Ok(match view::<T>(queries)? {
        View::Dense(_) => Prepared::Nothing,
        View::Sparse(queries) => Prepared::Postings(Postings::new(queries)?),
    })
}

/// Adds the rows of a block to the nearest of each query.
pub(super) fn compare<T: Real>(
    queries: &[u8],
    prepared: &Prepared<T>,
    rows: &[u8],
    nearest: &mut [Neighbor],
    how: Comparison<'_>,
    scratch: &mut Vec<T>,
) -> Result<()> {
    match (view::<T>(queries)?, view::<T>(rows)?, prepared) {
        (View::Dense(queries), View::Dense(rows), _) => {
            scratch.resize(scratch.len().max(how.tile.scratch()), T::ZERO);
            kernels::add_neighbors(nearest, queries, rows, how, scratch)?;
        }
        (View::Sparse(queries), View::Sparse(rows), Prepared::Postings(postings)) => {
            scratch.resize(scratch.len().max(queries.count()), T::ZERO);
            kernels::add_sparse_neighbors(
                nearest,
                how.metric,
                queries,
                postings,
                rows,
                how.leaves_out_itself,
                scratch,
                how.stop,
            )?;
        }
        _ => {
            return Err(Error::Failed {
                what: "a block of another kind of rows came round".into(),
            });
        }
    }
    Ok(())
}
