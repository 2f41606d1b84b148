//! The nearest rows of a matrix to each of some queries, exactly: every query is compared with every
//! row by products of blocks, and what may be near is compared again in f64.
//!
//! Shapes: the rows are n x d, the queries m x d, both results m x k. Cost: as many queries as half
//! of the memory takes meet all rows at a time, so the rows are read once for each of these groups;
//! 2mnd flops. Nothing of the size m x n is held or written.
//!
//! ```text
//!   group of queries   block 0   block 1   ...      in memory, with the k nearest of each so far
//!                         |    x    |
//!   rows               panel 0, panel 1, ...        pass by
//! ```
//!
//! Determinism: neighbours are in the order of (distance, number of the row), and distances are sums
//! in f64 in a fixed order, so the result has the same bits for every budget, number of threads and
//! processor.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::panels::cut;
use outcore_core::{DType, Error, Job, MemorySplit, Order, RealType, Result, Session, with_real};
use outcore_engine::{Context, ExtentRef, Plan, Region, Task, TaskError, go_on};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatRef, Metric, Neighbor, NeighborTile, NumberedRows, Real};
use outcore_matrix::{Array, Layout, Operand, Output, Target, Tile};

use crate::linalg::of_two_types;

/// Queries of a task, at most: products of so many with a panel take some 30 ms.
const BLOCK_QUERIES: u64 = 512;
/// Rows of a product: with as many queries, its result stays in the third-level cache.
const TILE_ROWS: u64 = 1024;

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct NeighborOptions {
    /// Neighbours of each query.
    pub k: u64,
    /// What is small.
    pub metric: Metric,
}

/// Where the results go: distances in f64, and numbers of rows as i64.
#[derive(Clone, Default)]
pub struct NeighborOutputs {
    /// By the metric.
    pub distances: Output,
    /// Numbers of the rows.
    pub rows: Output,
}

/// The k nearest rows to each query, nearest first: distances and numbers of rows, m x k. Without
/// queries, those of the rows themselves, each without itself.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::neighbors::{NeighborOptions, nearest_rows};
/// use outcore_kernels::Metric;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = NeighborOptions { k: 1, metric: Metric::Euclidean };
/// let [_, rows] = nearest_rows(&session, (&x).into(), None, options, Default::default())?.run()?;
/// assert_eq!(rows.to_vec::<i64>()?, [1, 0, 1]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for more neighbours than there are rows, [`Error::NotFinite`];
/// [`Error::Shape`], [`Error::DType`], [`Error::OverBudget`]; what keeps the outputs from being
/// made.
pub fn nearest_rows(
    session: &Session,
    rows: Operand,
    queries: Option<Operand>,
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<[Array; 2]>> {
    let of_themselves = queries.is_none();
    let queries = queries.unwrap_or_else(|| rows.clone());
    if queries.cols() != rows.cols() {
        return Err(Error::shape(format!(
            "{} has {} columns, the queries in {} have {}",
            rows.name(),
            rows.cols(),
            queries.name(),
            queries.cols()
        )));
    }
    let (real, of_queries) = (rows.real()?, queries.real()?);
    if real != of_queries {
        let named = |x: &Operand| (x.name().to_owned(), x.dtype());
        let ((a, a_type), (b, b_type)) = (named(&rows), named(&queries));
        return Err(of_two_types("neighbors", (&a, a_type), (&b, b_type)));
    }
    let others = rows.rows() - u64::from(of_themselves && rows.rows() > 0);
    if options.k == 0 || options.k > others {
        return Err(Error::value(format!(
            "{} neighbours of each query are looked for among {others} rows of {}",
            options.k,
            rows.name()
        )));
    }
    for output in [&outputs.distances, &outputs.rows] {
        output.check_distinct(&[&rows, &queries])?;
    }
    let search = Search {
        session,
        rows,
        queries,
        of_themselves,
        options,
        real,
    };
    search.job(outputs)
}

struct Search<'a> {
    session: &'a Session,
    rows: Operand,
    queries: Operand,
    of_themselves: bool,
    options: NeighborOptions,
    real: RealType,
}

/// Where the results of a plan go.
struct Results {
    extents: [ExtentRef; 2],
    layouts: [Layout; 2],
}

impl Search<'_> {
    fn job(&self, outputs: NeighborOutputs) -> Result<Job<[Array; 2]>> {
        let (m, k) = (self.queries.rows(), self.options.k);
        let mut first = Plan::new("nearest rows");
        let session = self.session;
        let mut target = |output: Output, dtype| {
            let target = output.target(session, dtype, &[m, k], Order::Row, &mut first)?;
            match target.array.order() == Order::Row || k == 1 || m <= 1 {
                true => Ok(target),
                false => Err(Error::value(format!(
                    "{}: neighbours are written by rows",
                    target.array.name()
                ))),
            }
        };
        let distances = target(outputs.distances, DType::F64)?;
        let rows = target(outputs.rows, DType::I64)?;
        let mut plans = Vec::new();
        let mut next = Some(first);
        for group in self.groups() {
            let mut plan = next.take().unwrap_or_else(|| Plan::new("nearest rows"));
            self.add_group(&mut plan, group, [&distances, &rows])?;
            plans.push(plan);
        }
        plans.extend(next);
        distances.job_beside(rows, session, plans)
    }

    /// What queries may take that meet all rows together, beside what tasks hold; half of the rest is
    /// for rows that pass by. However little that is, some queries do.
    fn staying(&self) -> MemorySplit {
        let tile = self.tile(BLOCK_QUERIES);
        let (d, element) = (self.rows.cols() as usize, self.real.bytes());
        let held = with_real!(self.real, T => tile.held_bytes::<T>(d, self.session.blas()));
        let task_bytes = (tile.scratch() * element + held) as u64;
        let split = MemorySplit::new(self.session);
        let staying = split
            .hold(self.session.threads() as u64 * task_bytes)
            .staying();
        MemorySplit::of(staying.left().max(split.compared_bytes()))
    }

    /// Bytes of a query and its neighbours, so far and as they are written.
    fn query_bytes(&self) -> u64 {
        self.queries.cols() * self.real.bytes() as u64 + 3 * self.state_bytes()
    }

    /// Queries that meet all rows together.
    fn groups(&self) -> Vec<Range<u64>> {
        let count = self.staying().left() / self.query_bytes();
        cut(0..self.queries.rows(), count)
    }

    fn state_bytes(&self) -> u64 {
        size_of::<Neighbor>() as u64 * self.options.k
    }

    /// Queries and rows of a product.
    fn tile(&self, queries: u64) -> NeighborTile {
        let elements = MemorySplit::new(self.session).compared_bytes() / self.real.bytes() as u64;
        let queries = queries.min(BLOCK_QUERIES);
        let rows = (elements / (queries + 2)).clamp(16, TILE_ROWS);
        NeighborTile {
            queries: queries as usize,
            rows: rows.min(self.rows.rows().max(1)) as usize,
        }
    }

    fn add_group(&self, plan: &mut Plan, group: Range<u64>, targets: [&Target; 2]) -> Result<()> {
        let k = self.options.k;
        plan.bound(
            self.rows.stored_bytes()
                + (group.end - group.start)
                    * (self.queries.stored_bytes() / self.queries.rows().max(1)
                        + self.state_bytes()),
        );
        let x = self.rows.extent(plan);
        let q = self.queries.extent(plan);
        let results = Results {
            extents: targets.map(|target| plan.extent(&target.extent)),
            layouts: targets.map(|target| target.array.layout()),
        };
        let share = self.staying();
        let panels = self.rows.panels(share.moved_panel_bytes());
        let block_rows = (share.left() / 8 / self.query_bytes()).clamp(1, BLOCK_QUERIES);
        let blocks: Vec<(Range<u64>, Region)> = cut(group, block_rows)
            .into_iter()
            .enumerate()
            .map(|(number, queries)| {
                let bytes = (queries.end - queries.start) * self.state_bytes();
                let state = plan.volatile(format!("nearest {number}"), bytes);
                (queries, Region::span(state, 0, bytes))
            })
            .collect();
        let found = |queries: &Range<u64>| Found {
            k: k as usize,
            queries: (queries.end - queries.start) as usize,
        };
        for (number, panel) in panels.iter().enumerate() {
            for (queries, state) in &blocks {
                go_on()?;
                let part = [
                    self.part(q, &self.queries, queries.clone()),
                    self.part(x, &self.rows, panel.clone()),
                ];
                let task = Task::new("compare")
                    .read(part[0].tile.region)
                    .read(part[1].tile.region);
                let task = match number {
                    0 => task.write(*state),
                    _ => task.update(*state),
                };
                plan.task(self.compare(task, part, number == 0, found(queries)));
            }
        }
        for (queries, state) in blocks {
            let found = found(&queries);
            let tiles: Vec<Tile> = results
                .extents
                .iter()
                .zip(&results.layouts)
                .map(|(extent, layout)| layout.tile(*extent, queries.clone(), 0..k))
                .collect();
            let (metric, task) = (self.options.metric, Task::new("put").read(state));
            let task = tiles
                .iter()
                .fold(task, |task, tile| task.write(tile.region));
            plan.task(task.run(move |cx| found.put(metric, &tiles, cx)));
        }
        Ok(())
    }

    fn part(&self, extent: ExtentRef, of: &Operand, rows: Range<u64>) -> Part {
        Part {
            name: of.name().into(),
            first: rows.start,
            tile: of.layout().tile(extent, rows, 0..of.cols()),
        }
    }

    fn compare(&self, task: Task, parts: [Part; 2], is_first: bool, found: Found) -> Task {
        let (metric, blas) = (self.options.metric, self.session.blas().clone());
        let leaves_out_itself = self.of_themselves;
        let [m, n] = [found.queries, parts[1].tile.rows];
        let d = parts[1].tile.cols;
        let tile = self.tile(m as u64);
        with_real!(self.real, T => {
            let held = tile.held_bytes::<T>(d, &blas) + 8 * (m + n);
            let task = task
                .flops(kernels::gemm_flops(m, n, d))
                .scratch(tile.scratch() * size_of::<T>())
                .held(held);
            task.run(move |cx| {
                let compare = Compare { metric, leaves_out_itself, tile, blas };
                compare.run::<T>(&parts, is_first, found, cx)
            })
        })
    }
}

/// Rows of one side.
struct Part {
    name: Arc<str>,
    first: u64,
    tile: Tile,
}

impl Part {
    /// |x|^2 of each row.
    fn squares<T: Real>(&self, x: MatRef<'_, T>) -> Result<Vec<f64>> {
        let mut squares = vec![0.0; x.nrows()];
        kernels::squares_of_rows(&mut squares, x)?;
        let bad = squares.iter().position(|square| !square.is_finite());
        match (
            bad,
            bad.and_then(|row| kernels::first_non_finite(x.subrows(row, 1))),
        ) {
            (None, _) => Ok(squares),
            (Some(row), Some((_, column))) => Err(Error::NotFinite {
                object: self.name.to_string(),
                row: self.first + row as u64,
                column: column as u64,
            }),
            (Some(row), None) => Err(Error::Failed {
                what: format!(
                    "the square of row {} of {} overflows",
                    self.first + row as u64,
                    self.name
                ),
            }),
        }
    }
}

/// How blocks are compared.
struct Compare {
    metric: Metric,
    leaves_out_itself: bool,
    tile: NeighborTile,
    blas: Blas,
}

impl Compare {
    fn run<T: Real>(
        &self,
        parts: &[Part; 2],
        is_first: bool,
        found: Found,
        cx: &mut Context<'_>,
    ) -> std::result::Result<(), TaskError> {
        let [queries, rows, state] = cx.blocks else {
            unreachable!("three were declared")
        };
        let nearest = &mut state.slice_mut::<Neighbor>()[..found.queries * found.k];
        if is_first {
            nearest.fill(Neighbor::NONE);
        }
        let views = [
            parts[0].tile.of::<T>(queries)?,
            parts[1].tile.of::<T>(rows)?,
        ];
        let squares = [parts[0].squares(views[0])?, parts[1].squares(views[1])?];
        let [queries, rows] = [0, 1].map(|side| NumberedRows {
            values: views[side],
            squares: &squares[side],
            first: parts[side].first,
        });
        let elements = self.tile.scratch() * size_of::<T>();
        let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..elements]);
        let cancelled = || cx.cancelled.load(Ordering::Relaxed);
        Ok(kernels::add_neighbors(
            nearest,
            self.metric,
            queries,
            rows,
            self.leaves_out_itself,
            self.tile,
            scratch,
            &self.blas,
            &cancelled,
        )?)
    }
}

/// The neighbours of a block of queries.
#[derive(Clone, Copy)]
struct Found {
    queries: usize,
    k: usize,
}

impl Found {
    /// Writes them to the results.
    fn put(
        &self,
        metric: Metric,
        tiles: &[Tile],
        cx: &mut Context<'_>,
    ) -> std::result::Result<(), TaskError> {
        let [state, distances, rows] = cx.blocks else {
            unreachable!("three were declared")
        };
        let nearest = state.slice::<Neighbor>();
        let mut into = tiles[0].of_mut::<f64>(distances)?;
        for (at, neighbor) in nearest[..self.queries * self.k].iter().enumerate() {
            into[(at / self.k, at % self.k)] = metric.shown(neighbor.distance);
        }
        let mut into = tiles[1].of_mut::<i64>(rows)?;
        for (at, neighbor) in nearest[..self.queries * self.k].iter().enumerate() {
            into[(at / self.k, at % self.k)] = neighbor.row as i64;
        }
        Ok(())
    }
}
