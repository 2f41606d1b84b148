//! Dense rows: products of blocks.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::panels::cut;
use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_engine::{Context, Plan, Region, Task, TaskError};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Comparison, MatRef, NeighborTile, NumberedRows, Numbers, Real};
use outcore_matrix::{Array, Operand, Tile};

use super::{Side, Sought, Wanted, beside, staying};

/// Queries of a task: products of 512 with a panel take some 30 ms. Where there are many, tasks are
/// longer, so that a plan has fewer.
const BLOCK_QUERIES: [u64; 2] = [512, 4096];
/// Queries and rows of a tile: of products in f32 or f64, the result stays in the third-level cache.
const TILE_QUERIES: u64 = 512;
const TILE_ROWS: u64 = 1024;

#[derive(Clone)]
pub(super) struct DenseSearch<T> {
    session: Session,
    rows: Operand,
    queries: Operand,
    /// The numbers of both, where they are in another order.
    numbers: [Option<Array>; 2],
    /// The queries that are looked for.
    range: Range<u64>,
    /// The queries are the rows.
    of_themselves: bool,
    element: PhantomData<T>,
}

impl<T: Real> DenseSearch<T> {
    pub(super) fn new(session: &Session, rows: &Operand, queries: Option<&Operand>) -> Self {
        let of_themselves = queries.is_none();
        let queries = queries.unwrap_or(rows);
        DenseSearch {
            session: session.clone(),
            rows: rows.clone(),
            queries: queries.clone(),
            numbers: [None, None],
            range: 0..queries.rows(),
            of_themselves,
            element: PhantomData,
        }
    }

    /// The same of rows and queries that have these numbers.
    pub(super) fn numbered(self, rows: &Array, queries: &Array) -> Self {
        let numbers = [queries, rows].map(|numbers| Some(numbers.clone()));
        DenseSearch { numbers, ..self }
    }

    fn side_rows(&self, plan: &mut Plan, side: usize, rows: &Range<u64>) -> SideRows {
        let of = [&self.queries, &self.rows][side];
        let numbers = self.numbers[side].as_ref().map(|numbers| {
            let extent = plan.extent(numbers.extent());
            numbers.layout().tile(extent, rows.clone(), 0..1).region
        });
        SideRows {
            numbers,
            ..SideRows::new(plan, of, rows.clone())
        }
    }

    /// Queries and rows of a product.
    fn tile(&self, queries: u64) -> NeighborTile {
        let split = MemorySplit::new(&self.session);
        let elements = split.compared_bytes() as usize / size_of::<T>();
        let rows = self.rows.rows().min(TILE_ROWS) as usize;
        let tile = NeighborTile::within(queries.min(TILE_QUERIES) as usize, rows, elements);
        let rounded = split.rounded_bytes(self.session.threads() as u64);
        tile.rounded_within::<T>(self.rows.cols() as usize, rounded as usize)
    }
}

impl<T: Real> Side for DenseSearch<T> {
    type RowRange = Range<u64>;

    fn queries(&self) -> Range<u64> {
        self.range.clone()
    }

    fn rows(&self) -> u64 {
        self.rows.rows()
    }

    fn terms(&self) -> u64 {
        self.rows.cols()
    }

    fn of_queries(&self, range: Range<u64>) -> Result<Self> {
        Ok(DenseSearch {
            range,
            ..self.clone()
        })
    }

    fn staying(&self, held_bytes: u64) -> MemorySplit {
        staying(&self.session, self.task_bytes(), held_bytes)
    }

    fn blocks(&self, bytes_beside: u64) -> Vec<(Range<u64>, u64)> {
        let row_bytes = self.queries.cols() * size_of::<T>() as u64;
        let each = row_bytes + bytes_beside;
        let [least, most] = BLOCK_QUERIES;
        let count = (self.queries.rows() / 64).clamp(least, most);
        let count = (self.staying(0).left() / 4 / each.max(1)).clamp(1, count);
        cut(self.range.clone(), count)
            .into_iter()
            .map(|rows| (rows.clone(), row_bytes * (rows.end - rows.start)))
            .collect()
    }

    fn panels(&self, bytes_beside: u64) -> Vec<Range<u64>> {
        let share = self.staying(0).left() / 4;
        self.rows.panels_beside(bytes_beside, share)
    }

    fn numbers(&self, block: &Range<u64>) -> Range<u64> {
        block.clone()
    }

    fn rows_of(panel: &Range<u64>) -> Range<u64> {
        panel.clone()
    }

    fn stored_bytes(&self, queries: Range<u64>) -> u64 {
        let others = match self.of_themselves {
            true => 0,
            false => self.queries.stored_bytes() / self.queries.rows().max(1),
        };
        self.rows.stored_bytes() + others * (queries.end - queries.start)
    }

    fn mutual_blocks(&self, bytes_beside: u64) -> Option<Vec<(Range<u64>, u64)>> {
        let row_bytes = self.queries.cols() * size_of::<T>() as u64;
        let count = (self.queries.rows() / 64).max(BLOCK_QUERIES[0]);
        // A group, and as much again of blocks that it meets, many of them at a time.
        let most = self.staying(0).left() / 16 / (row_bytes + bytes_beside).max(1);
        let cut = cut(self.range.clone(), most.clamp(1, count)).into_iter();
        let blocks = cut.map(|rows| (rows.clone(), row_bytes * (rows.end - rows.start)));
        self.of_themselves.then(|| blocks.collect())
    }

    fn meet_each_other(
        &self,
        plan: &mut Plan,
        [one, other]: [&Range<u64>; 2],
        sought: [Sought; 2],
    ) -> Task {
        let sides = [one, other].map(|rows| SideRows::new(plan, &self.rows, rows.clone()));
        let (m, n, d) = (sought[0].queries, sought[1].queries, sides[0].tile.cols);
        let (tile, blas) = (self.tile(m as u64), self.session.blas().clone());
        let task = Task::new("meet")
            .read(sides[0].tile.region)
            .read(sides[1].tile.region)
            .flops(kernels::gemm_flops(m, n, d))
            .scratch(tile.scratch() * size_of::<T>())
            .held(tile.held_bytes::<T>(d, &blas) + 8 * (m + n));
        task.run(move |cx| meet::<T>(&sides, sought, tile, &blas, cx))
    }

    fn compare(
        &self,
        plan: &mut Plan,
        queries: &Range<u64>,
        rows: &Range<u64>,
        sought: Sought,
    ) -> Task {
        self.compare_seekers(plan, [queries, rows], sought, None)
    }
}

impl<T: Real> DenseSearch<T> {
    /// What is left of the budget, beside what tasks take and this.
    pub(super) fn beside(&self, held_bytes: u64) -> MemorySplit {
        beside(&self.session, self.task_bytes(), held_bytes)
    }

    /// What a task takes beside its blocks.
    fn task_bytes(&self) -> u64 {
        let (d, blas) = (self.rows.cols() as usize, self.session.blas());
        let bytes = NeighborTile::query_counts(TILE_QUERIES as usize)
            .map(|queries| self.tile(queries as u64))
            .map(|tile| tile.scratch() * size_of::<T>() + tile.held_bytes::<T>(d, blas));
        bytes.max().unwrap_or(0) as u64
    }

    /// A task that compares rows with queries, of those that look for their nearest only with those
    /// that `seekers` tells.
    pub(super) fn compare_seekers(
        &self,
        plan: &mut Plan,
        [queries, rows]: [&Range<u64>; 2],
        sought: Sought,
        seekers: Option<Seekers<T>>,
    ) -> Task {
        let sides = [
            self.side_rows(plan, 0, queries),
            self.side_rows(plan, 1, rows),
        ];
        let (m, n, d) = (sought.queries, sides[1].tile.rows, sides[1].tile.cols);
        let (tile, blas) = (self.tile(m as u64), self.session.blas().clone());
        let compare = Compare {
            sought,
            leaves_out_itself: self.of_themselves,
            tile,
            blas: blas.clone(),
            seekers,
        };
        let gathered = match &compare.seekers {
            Some(_) => kernels::gathered_bytes::<T>(m, d),
            None => 0,
        };
        let numbers = sides.iter().filter_map(|side| side.numbers);
        let task = Task::new("compare")
            .read(sides[0].tile.region)
            .read(sides[1].tile.region);
        numbers
            .fold(task, Task::read)
            .flops(kernels::gemm_flops(m, n, d))
            .scratch(tile.scratch() * size_of::<T>())
            .held(tile.held_bytes::<T>(d, &blas) + 8 * (m + n) + gathered)
            .run(move |cx| compare.run(&sides, cx))
    }
}

/// Rows of one side.
pub(super) struct SideRows {
    name: Arc<str>,
    first: u64,
    pub(super) tile: Tile,
    /// Where the numbers of the rows are, if they do not follow each other.
    numbers: Option<Region>,
}

impl SideRows {
    pub(super) fn new(plan: &mut Plan, of: &Operand, rows: Range<u64>) -> SideRows {
        SideRows {
            name: of.name().into(),
            first: rows.start,
            tile: of.layout().tile(of.extent(plan), rows, 0..of.cols()),
            numbers: None,
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

/// Two blocks of rows that look for each other.
fn meet<T: Real>(
    sides: &[SideRows; 2],
    sought: [Sought; 2],
    tile: NeighborTile,
    blas: &Blas,
    cx: &mut Context<'_>,
) -> std::result::Result<(), TaskError> {
    let [one, other, of_one, of_other] = cx.blocks else {
        unreachable!("four were declared")
    };
    let views = [sides[0].tile.of::<T>(one)?, sides[1].tile.of::<T>(other)?];
    let squares = [sides[0].squares(views[0])?, sides[1].squares(views[1])?];
    let [one, other] = [0, 1].map(|side: usize| NumberedRows {
        values: views[side],
        squares: &squares[side],
        numbers: Numbers::From(sides[side].first),
    });
    let bytes = tile.scratch() * size_of::<T>();
    Ok(kernels::add_mutual_neighbors(
        [sought[0].nearest(of_one), sought[1].nearest(of_other)],
        one,
        other,
        Comparison {
            metric: sought[0].metric,
            leaves_out_itself: false,
            tile,
            blas,
            stop: &|| cx.cancelled.load(Ordering::Relaxed),
        },
        bytemuck::cast_slice_mut(&mut cx.scratch[..bytes]),
    )?)
}

/// Which of some queries may find what they seek, by their rows and how far off their last neighbours
/// are.
pub(super) type Seekers<T> =
    Box<dyn Fn(MatRef<'_, T>, &[f64]) -> std::result::Result<Vec<usize>, kernels::Error> + Send>;

/// How blocks are compared.
struct Compare<T> {
    sought: Sought,
    leaves_out_itself: bool,
    tile: NeighborTile,
    blas: Blas,
    seekers: Option<Seekers<T>>,
}

impl<T: Real> Compare<T> {
    fn run(
        &self,
        sides: &[SideRows; 2],
        cx: &mut Context<'_>,
    ) -> std::result::Result<(), TaskError> {
        let Some((state, read)) = cx.blocks.split_last_mut() else {
            unreachable!("the state is declared")
        };
        let views = [
            sides[0].tile.of::<T>(&read[0])?,
            sides[1].tile.of::<T>(&read[1])?,
        ];
        let mut listed = read[2..].iter();
        let numbers = [0, 1].map(|side: usize| {
            let block = sides[side].numbers.and_then(|_| listed.next());
            block.map_or(Numbers::From(sides[side].first), |block| {
                Numbers::Listed(block.slice::<u64>())
            })
        });
        let seekers = match &self.seekers {
            None => None,
            Some(seekers) => Some(seekers(views[0], &self.sought.limits(state))?),
        };
        if seekers.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let squares = [sides[0].squares(views[0])?, sides[1].squares(views[1])?];
        let [queries, rows] = [0, 1].map(|side: usize| NumberedRows {
            values: views[side],
            squares: &squares[side],
            numbers: numbers[side],
        });
        let bytes = self.tile.scratch() * size_of::<T>();
        let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..bytes]);
        let how = Comparison {
            metric: self.sought.metric,
            leaves_out_itself: self.leaves_out_itself,
            tile: self.tile,
            blas: &self.blas,
            stop: &|| cx.cancelled.load(Ordering::Relaxed),
        };
        Ok(match (self.sought.wanted, &seekers) {
            (Wanted::Nearest(_), Some(seekers)) => {
                let nearest = self.sought.nearest(state);
                kernels::add_neighbors_of(seekers, nearest, queries, rows, how, scratch)
            }
            (Wanted::Nearest(_), None) => {
                kernels::add_neighbors(self.sought.nearest(state), queries, rows, how, scratch)
            }
            (Wanted::Within { .. }, _) => {
                kernels::add_within(&mut self.sought.within(state), queries, rows, how, scratch)
            }
        }?)
    }
}
