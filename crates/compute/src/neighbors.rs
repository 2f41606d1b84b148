//! The nearest rows of a matrix to each of some queries, exactly: every query is compared with every
//! row by products of blocks, and what may be near is compared again in f64.
//!
//! Shapes: the rows are n x d, the queries m x d, both dense or both sparse; both results m x k.
//! Cost: as many queries as half of the memory takes meet all rows at a time, so the rows are read
//! once for each of these groups; 2mnd flops of dense rows, of sparse ones what they have in common.
//! Nothing of the size m x n is held or written.
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

mod dense;
mod ring;
mod sparse;

use std::ops::Range;

use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session, with_real};
use outcore_engine::{Context, ExtentRef, Plan, Region, Task, TaskError, go_on};
use outcore_kernels::{Metric, Neighbor};
use outcore_matrix::{Array, Layout, Output, Target, Tile};

use self::dense::DenseSearch;
use self::sparse::SparseSearch;
use crate::linalg::of_two_types;
use crate::pass::Rows;

pub use self::ring::{RingTimes, nearest_rows_over_ranks};

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
    rows: Rows,
    queries: Option<Rows>,
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<[Array; 2]>> {
    let queries = queries.as_ref();
    let others = check(&rows, queries)?;
    if options.k == 0 || options.k > others {
        return Err(Error::value(format!(
            "{} neighbours of each query are looked for among {others} rows of {}",
            options.k,
            rows.name()
        )));
    }
    for x in [Some(&rows), queries].into_iter().flatten() {
        if let Rows::Dense(x) = x {
            outputs.distances.check_distinct(&[x])?;
            outputs.rows.check_distinct(&[x])?;
        }
    }
    let real = rows.real()?;
    match (&rows, queries.unwrap_or(&rows)) {
        (Rows::Dense(x), Rows::Dense(q)) => with_real!(real, T => {
            let search = DenseSearch::<T>::new(session, x, q, queries.is_none(), options);
            Search { session, options, side: &search }.job(outputs)
        }),
        (Rows::Sparse(x), Rows::Sparse(q)) => with_real!(real, T => {
            let search = SparseSearch::<T>::new(session, x, q, queries.is_none(), options);
            Search { session, options, side: &search }.job(outputs)
        }),
        (x, q) => Err(Error::value(format!(
            "{} is {}, the queries in {} are {}: both must be dense, or both sparse",
            x.name(),
            kind(x),
            q.name(),
            kind(q)
        ))),
    }
}

fn kind(x: &Rows) -> &'static str {
    match x {
        Rows::Dense(_) => "dense",
        Rows::Sparse(_) => "sparse",
    }
}

/// Whether queries and rows go together; how many rows may be a query's neighbours.
fn check(rows: &Rows, queries: Option<&Rows>) -> Result<u64> {
    rows.check_rows_together()?;
    let Some(queries) = queries else {
        return Ok(rows.count().saturating_sub(1));
    };
    queries.check_rows_together()?;
    if queries.width() != rows.width() {
        return Err(Error::shape(format!(
            "{} has {} columns, the queries in {} have {}",
            rows.name(),
            rows.width(),
            queries.name(),
            queries.width()
        )));
    }
    let (real, of_queries) = (rows.real()?, queries.real()?);
    if real != of_queries {
        let [a, b] = [(rows.name(), real), (queries.name(), of_queries)];
        return Err(of_two_types(
            "neighbors",
            (a.0, a.1.into()),
            (b.0, b.1.into()),
        ));
    }
    Ok(rows.count())
}

/// Rows and queries of one kind: how they are cut, and how a block of queries is compared with a
/// panel of rows.
trait Side {
    /// Some rows.
    type Part: Clone;

    /// What blocks of queries may take together.
    fn staying(&self) -> MemorySplit;

    /// Blocks of queries, in order: the numbers of their rows, and the bytes that one takes while it
    /// waits, its neighbours left out.
    fn blocks(&self) -> Vec<(Self::Part, u64)>;

    /// Panels of rows.
    fn panels(&self) -> Vec<Self::Part>;

    /// The numbers of the rows of a part.
    fn numbers(part: &Self::Part) -> Range<u64>;

    /// Bytes on SSD of all rows, and of some queries if these are others.
    fn stored_bytes(&self, queries: Range<u64>) -> u64;

    /// A task that compares the two; its last block is for what is found.
    fn compare(
        &self,
        plan: &mut Plan,
        queries: &Self::Part,
        rows: &Self::Part,
        found: Found,
    ) -> Task;
}

struct Search<'a, S> {
    session: &'a Session,
    options: NeighborOptions,
    side: &'a S,
}

/// Blocks of queries that meet all rows together.
type Group<P> = Vec<P>;

impl<S: Side> Search<'_, S> {
    fn job(&self, outputs: NeighborOutputs) -> Result<Job<[Array; 2]>> {
        let (blocks, k) = (self.side.blocks(), self.options.k);
        let m = blocks.last().map_or(0, |(last, _)| S::numbers(last).end);
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
        let panels = self.side.panels();
        let mut plans = Vec::new();
        let mut next = Some(first);
        for group in self.groups(blocks) {
            let mut plan = next.take().unwrap_or_else(|| Plan::new("nearest rows"));
            self.add_group(&mut plan, &group, &panels, [&distances, &rows])?;
            plans.push(plan);
        }
        plans.extend(next);
        distances.job_beside(rows, session, plans)
    }

    /// As many blocks as may stay in memory, at least one.
    fn groups(&self, blocks: Vec<(S::Part, u64)>) -> Vec<Group<S::Part>> {
        let most = self.side.staying().left();
        let (mut groups, mut filled) = (Vec::<Group<S::Part>>::new(), 0);
        for (block, bytes) in blocks {
            let numbers = S::numbers(&block);
            let bytes = bytes + 3 * state_bytes(self.options.k) * (numbers.end - numbers.start);
            match groups.last_mut() {
                Some(group) if filled + bytes <= most => group.push(block),
                _ => {
                    groups.push(vec![block]);
                    filled = 0;
                }
            }
            filled += bytes;
        }
        groups
    }

    fn add_group(
        &self,
        plan: &mut Plan,
        group: &Group<S::Part>,
        panels: &[S::Part],
        targets: [&Target; 2],
    ) -> Result<()> {
        let k = self.options.k;
        let ends = group.first().zip(group.last());
        let queries = ends.map_or(0..0, |(first, last)| {
            S::numbers(first).start..S::numbers(last).end
        });
        plan.bound(
            self.side.stored_bytes(queries.clone()) + 16 * k * (queries.end - queries.start),
        );
        let extents = targets.map(|target| plan.extent(&target.extent));
        let layouts = targets.map(|target| target.array.layout());
        let states: Vec<Region> = group
            .iter()
            .enumerate()
            .map(|(number, block)| {
                let queries = S::numbers(block);
                let bytes = (queries.end - queries.start) * state_bytes(k);
                Region::span(plan.volatile(format!("nearest {number}"), bytes), 0, bytes)
            })
            .collect();
        for (number, panel) in panels.iter().enumerate() {
            for (queries, state) in group.iter().zip(&states) {
                go_on()?;
                let found = Found {
                    is_first: number == 0,
                    ..self.found(S::numbers(queries))
                };
                let task = self.side.compare(plan, queries, panel, found);
                plan.task(match number {
                    0 => task.write(*state),
                    _ => task.update(*state),
                });
            }
        }
        for (queries, state) in group.iter().zip(states) {
            let (queries, task) = (S::numbers(queries), Task::new("put").read(state));
            let found = self.found(queries.clone());
            let tiles = put_tiles(extents, &layouts, queries, k);
            let task = tiles
                .iter()
                .fold(task, |task, tile| task.write(tile.region));
            plan.task(task.run(move |cx| found.put(&tiles, cx)));
        }
        Ok(())
    }

    fn found(&self, queries: Range<u64>) -> Found {
        Found {
            metric: self.options.metric,
            k: self.options.k as usize,
            queries: (queries.end - queries.start) as usize,
            is_first: false,
        }
    }
}

fn put_tiles(
    extents: [ExtentRef; 2],
    layouts: &[Layout; 2],
    queries: Range<u64>,
    k: u64,
) -> [Tile; 2] {
    [0, 1].map(|side: usize| layouts[side].tile(extents[side], queries.clone(), 0..k))
}

fn state_bytes(k: u64) -> u64 {
    size_of::<Neighbor>() as u64 * k
}

/// What queries may take that meet all rows together, beside what tasks hold; as much is for rows
/// that pass by. However little that is, some queries do.
fn staying(session: &Session, task_bytes: u64) -> MemorySplit {
    let split = MemorySplit::new(session);
    let staying = split.hold(session.threads() as u64 * task_bytes).staying();
    MemorySplit::of(staying.left().max(split.compared_bytes()))
}

/// The neighbours of a block of queries.
#[derive(Clone, Copy)]
struct Found {
    metric: Metric,
    k: usize,
    queries: usize,
    /// Nothing has been compared yet.
    is_first: bool,
}

impl Found {
    /// The neighbours so far.
    fn nearest<'a>(&self, state: &'a mut outcore_engine::Block) -> &'a mut [Neighbor] {
        let nearest = &mut state.slice_mut::<Neighbor>()[..self.queries * self.k];
        if self.is_first {
            nearest.fill(Neighbor::NONE);
        }
        nearest
    }

    /// Writes them to the results.
    fn put(&self, tiles: &[Tile; 2], cx: &mut Context<'_>) -> std::result::Result<(), TaskError> {
        let [state, distances, rows] = cx.blocks else {
            unreachable!("three were declared")
        };
        let nearest = &state.slice::<Neighbor>()[..self.queries * self.k];
        let mut into = tiles[0].of_mut::<f64>(distances)?;
        for (at, neighbor) in nearest.iter().enumerate() {
            into[(at / self.k, at % self.k)] = self.metric.shown(neighbor.distance);
        }
        let mut into = tiles[1].of_mut::<i64>(rows)?;
        for (at, neighbor) in nearest.iter().enumerate() {
            into[(at / self.k, at % self.k)] = neighbor.row as i64;
        }
        Ok(())
    }
}
