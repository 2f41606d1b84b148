//! Dense rows: products of blocks.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::panels::cut;
use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_engine::{Context, Plan, Task, TaskError};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatRef, NeighborTile, NumberedRows, Real};
use outcore_matrix::{Operand, Tile};

use super::{Found, NeighborOptions, Side, state_bytes, staying};

/// Queries of a task: products of 512 with a panel take some 30 ms. Where there are many, tasks are
/// longer, so that a plan has fewer.
const BLOCK_QUERIES: [u64; 2] = [512, 4096];
/// Queries and rows of a product, whose result stays in the third-level cache.
const TILE_QUERIES: u64 = 512;
const TILE_ROWS: u64 = 1024;

pub(super) struct DenseSearch<'a, T> {
    session: &'a Session,
    rows: &'a Operand,
    queries: &'a Operand,
    /// The queries are the rows.
    of_themselves: bool,
    options: NeighborOptions,
    element: PhantomData<T>,
}

impl<'a, T: Real> DenseSearch<'a, T> {
    pub(super) fn new(
        session: &'a Session,
        rows: &'a Operand,
        queries: &'a Operand,
        of_themselves: bool,
        options: NeighborOptions,
    ) -> DenseSearch<'a, T> {
        DenseSearch {
            session,
            rows,
            queries,
            of_themselves,
            options,
            element: PhantomData,
        }
    }

    /// Queries and rows of a product.
    fn tile(&self, queries: u64) -> NeighborTile {
        let elements = MemorySplit::new(self.session).compared_bytes() / size_of::<T>() as u64;
        let queries = queries.min(TILE_QUERIES);
        let rows = (elements / (queries + 2)).clamp(16, TILE_ROWS);
        NeighborTile {
            queries: queries as usize,
            rows: rows.min(self.rows.rows().max(1)) as usize,
        }
    }
}

impl<T: Real> Side for DenseSearch<'_, T> {
    type Part = Range<u64>;

    fn staying(&self) -> MemorySplit {
        let tile = self.tile(TILE_QUERIES);
        let held = tile.held_bytes::<T>(self.rows.cols() as usize, self.session.blas());
        staying(
            self.session,
            (tile.scratch() * size_of::<T>() + held) as u64,
        )
    }

    fn blocks(&self) -> Vec<(Range<u64>, u64)> {
        let row_bytes = self.queries.cols() * size_of::<T>() as u64;
        let each = row_bytes + 3 * state_bytes(self.options.k);
        let [least, most] = BLOCK_QUERIES;
        let count = (self.queries.rows() / 64).clamp(least, most);
        let count = (self.staying().left() / 4 / each.max(1)).clamp(1, count);
        cut(0..self.queries.rows(), count)
            .into_iter()
            .map(|rows| (rows.clone(), row_bytes * (rows.end - rows.start)))
            .collect()
    }

    fn panels(&self) -> Vec<Range<u64>> {
        self.rows.panels(self.staying().left() / 4)
    }

    fn numbers(part: &Range<u64>) -> Range<u64> {
        part.clone()
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
        queries: &Range<u64>,
        rows: &Range<u64>,
        found: Found,
    ) -> Task {
        let parts = [
            Part::new(plan, self.queries, queries.clone()),
            Part::new(plan, self.rows, rows.clone()),
        ];
        let (m, n, d) = (found.queries, parts[1].tile.rows, parts[1].tile.cols);
        let (tile, blas) = (self.tile(m as u64), self.session.blas().clone());
        let compare = Compare {
            found,
            leaves_out_itself: self.of_themselves,
            tile,
            blas: blas.clone(),
        };
        Task::new("compare")
            .read(parts[0].tile.region)
            .read(parts[1].tile.region)
            .flops(kernels::gemm_flops(m, n, d))
            .scratch(tile.scratch() * size_of::<T>())
            .held(tile.held_bytes::<T>(d, &blas) + 8 * (m + n))
            .run(move |cx| compare.run::<T>(&parts, cx))
    }
}

/// Rows of one side.
pub(super) struct Part {
    name: Arc<str>,
    first: u64,
    pub(super) tile: Tile,
}

impl Part {
    pub(super) fn new(plan: &mut Plan, of: &Operand, rows: Range<u64>) -> Part {
        Part {
            name: of.name().into(),
            first: rows.start,
            tile: of.layout().tile(of.extent(plan), rows, 0..of.cols()),
        }
    }

    /// |x|^2 of each row.
    pub(super) fn squares<T: Real>(&self, x: MatRef<'_, T>) -> Result<Vec<f64>> {
        let mut squares = vec![0.0; x.nrows()];
        kernels::squares_of_rows(&mut squares, x)?;
        let Some(row) = squares.iter().position(|square| !square.is_finite()) else {
            return Ok(squares);
        };
        let number = self.first + row as u64;
        Err(match kernels::first_non_finite(x.subrows(row, 1)) {
            Some((_, column)) => Error::NotFinite {
                object: self.name.to_string(),
                row: number,
                column: column as u64,
            },
            None => Error::Failed {
                what: format!("the square of row {number} of {} overflows", self.name),
            },
        })
    }
}

/// How blocks are compared.
struct Compare {
    found: Found,
    leaves_out_itself: bool,
    tile: NeighborTile,
    blas: Blas,
}

impl Compare {
    fn run<T: Real>(
        &self,
        parts: &[Part; 2],
        cx: &mut Context<'_>,
    ) -> std::result::Result<(), TaskError> {
        let [queries, rows, state] = cx.blocks else {
            unreachable!("three were declared")
        };
        let views = [
            parts[0].tile.of::<T>(queries)?,
            parts[1].tile.of::<T>(rows)?,
        ];
        let squares = [parts[0].squares(views[0])?, parts[1].squares(views[1])?];
        let [queries, rows] = [0, 1].map(|side: usize| NumberedRows {
            values: views[side],
            squares: &squares[side],
            first: parts[side].first,
        });
        let bytes = self.tile.scratch() * size_of::<T>();
        let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..bytes]);
        Ok(kernels::add_neighbors(
            self.found.nearest(state),
            self.found.metric,
            queries,
            rows,
            self.leaves_out_itself,
            self.tile,
            scratch,
            &self.blas,
            &|| cx.cancelled.load(Ordering::Relaxed),
        )?)
    }
}
