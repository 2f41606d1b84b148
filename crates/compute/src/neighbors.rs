//! The nearest rows of a matrix to each of some queries, exactly: every query is compared with every
//! row by products of blocks, and what may be near is compared again in f64.
//!
//! Shapes: the rows are n x d, the queries m x d, both dense or both sparse; both results m x k.
//! Cost: as many queries as half of the memory takes meet all rows at a time, so the rows are read
//! once for each of these groups; 2mnd flops of dense rows, of sparse ones what they have in common.
//! Rows that look for each other do so in half of that: see `mutual`. Nothing of the size m x n
//! is held or written.
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

mod clusters;
mod dense;
mod grown;
mod mutual;
mod nearest;
mod resumed;
mod ring;
mod sparse;
mod within;

use std::ops::Range;
use std::path::PathBuf;

use outcore_core::{Error, Job, MemorySplit, Result, Session, with_real};
use outcore_engine::{Block, Extent, Plan, Region, Task, go_on};
use outcore_kernels::{Metric, Neighbor, Pair, Within};
use outcore_matrix::{Array, Layout, Output, Sparse};

use self::dense::DenseSearch;
use self::sparse::SparseSearch;
use crate::linalg::of_two_types;
use crate::pass::Rows;

pub use self::clusters::nearest_rows_by_centers;
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
    /// Where a search that was interrupted is gone on with.
    pub checkpoint: Option<Checkpoint>,
}

impl NeighborOutputs {
    /// Whether results are written elsewhere than rows and queries are read.
    fn check_distinct(&self, rows: &Rows, queries: Option<&Rows>) -> Result<()> {
        for x in [Some(rows), queries].into_iter().flatten() {
            if let Rows::Dense(x) = x {
                self.distances.check_distinct(&[x])?;
                self.rows.check_distinct(&[x])?;
            }
        }
        Ok(())
    }
}

/// How far a search is, and what it has found: kept after each group of queries, durably. What is there of the same
/// search is gone on with, to the same bytes. It stays until [`remove`](Checkpoint::remove).
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder, which is there under another name. Over ranks, each has one [of its own](Checkpoint::of_rank).
    pub path: PathBuf,
    /// What the rows and queries are: one of others is refused.
    pub search: String,
}

/// What a sparse matrix of neighbours is to be.
#[derive(Clone, Debug, Default)]
pub struct GraphOutput {
    /// Whether entries are distances, else all are one.
    pub has_distances: bool,
    /// A new folder; without one the matrix is in scratch.
    pub out: Option<PathBuf>,
    /// Where a search that was interrupted is gone on with.
    pub checkpoint: Option<Checkpoint>,
}

/// What is looked for within a radius.
#[derive(Clone, Copy, Debug)]
pub struct RadiusOptions {
    /// The largest distance.
    pub radius: f64,
    /// What is small.
    pub metric: Metric,
}

/// Goes on with rows and queries of one kind and type.
macro_rules! with_side {
    ($session:expr, $rows:expr, $queries:expr, $side:ident => $body:expr) => {{
        let real = $rows.real()?;
        match (&$rows, $queries) {
            (Rows::Dense(x), Some(Rows::Dense(q))) => with_real!(real, T => {
                let $side = DenseSearch::<T>::new($session, x, Some(q));
                $body
            }),
            (Rows::Dense(x), None) => with_real!(real, T => {
                let $side = DenseSearch::<T>::new($session, x, None);
                $body
            }),
            (Rows::Sparse(x), Some(Rows::Sparse(q))) => with_real!(real, T => {
                let $side = SparseSearch::<T>::new($session, x, Some(q));
                $body
            }),
            (Rows::Sparse(x), None) => with_real!(real, T => {
                let $side = SparseSearch::<T>::new($session, x, None);
                $body
            }),
            (x, Some(q)) => Err(not_alike(x, q)),
        }
    }};
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
/// [`Error::Value`] for more neighbours than there are rows, and for a checkpoint of another search;
/// [`Error::NotFinite`];
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
    check_nearest(&rows, queries, options)?;
    outputs.check_distinct(&rows, queries)?;
    with_side!(session, rows, queries, side => nearest::arrays(session, &side, options, outputs))
}

/// The same as a sparse matrix, m x n: a row a query, its k entries nearest first, distances in float64 or
/// all one.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::neighbors::{NeighborOptions, nearest_rows_graph};
/// use outcore_kernels::Metric;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = NeighborOptions { k: 1, metric: Metric::Euclidean };
/// let graph = nearest_rows_graph(&session, (&x).into(), None, options, Default::default())?.run()?;
/// assert_eq!((graph.shape(), graph.nonzeros(), graph.has_values()), ([3, 3], 3, false));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`nearest_rows`].
pub fn nearest_rows_graph(
    session: &Session,
    rows: Rows,
    queries: Option<Rows>,
    options: NeighborOptions,
    output: GraphOutput,
) -> Result<Job<Sparse>> {
    let queries = queries.as_ref();
    check_nearest(&rows, queries, options)?;
    with_side!(session, rows, queries, side => nearest::graph(session, &side, options, output))
}

/// The rows within a radius of each query, as a sparse matrix, m x n: a row a query, its entries in
/// the order of the rows. They are distances, float64, or all one. Without queries, those of the rows
/// themselves, each without itself.
///
/// Cost: as of [`nearest_rows`], where what a group of queries finds has the memory that it is given
/// by what groups before it found. Of what finds more, the rows are read again for as much as fits.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::neighbors::{GraphOutput, RadiusOptions, rows_within};
/// use outcore_kernels::Metric;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = RadiusOptions { radius: 3.0, metric: Metric::Euclidean };
/// let out = Some(folder.path().join("near"));
/// let output = GraphOutput { has_distances: true, out, checkpoint: None };
/// let graph = rows_within(&session, (&x).into(), None, options, output)?.run()?;
/// assert_eq!((graph.shape(), graph.nonzeros()), ([3, 3], 4));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for a radius that is no number and for a checkpoint of another search, [`Error::NotFinite`]; [`Error::Shape`],
/// [`Error::DType`], [`Error::OverBudget`]; what keeps the folder from being made.
pub fn rows_within(
    session: &Session,
    rows: Rows,
    queries: Option<Rows>,
    options: RadiusOptions,
    output: GraphOutput,
) -> Result<Job<Sparse>> {
    let queries = queries.as_ref();
    check(&rows, queries)?;
    if options.radius.is_nan() {
        return Err(Error::value("the radius is NaN"));
    }
    with_side!(session, rows, queries, side => within::graph(session, side, options, output))
}

fn check_nearest(rows: &Rows, queries: Option<&Rows>, options: NeighborOptions) -> Result<()> {
    let others = check(rows, queries)?;
    if options.k == 0 || options.k > others {
        return Err(Error::value(format!(
            "{} neighbours of each query are looked for among {others} rows of {}",
            options.k,
            rows.name()
        )));
    }
    Ok(())
}

fn not_alike(x: &Rows, q: &Rows) -> Error {
    Error::value(format!(
        "{} is {}, the queries in {} are {}: both must be dense, or both sparse",
        x.name(),
        kind(x),
        q.name(),
        kind(q)
    ))
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

/// Where distances and numbers of rows go.
type Targets = [(Extent, Layout); 2];

/// Rows and queries of one kind: how they are cut, and how a block of queries is compared with a
/// panel of rows.
trait Side: Clone + Send + 'static {
    /// Consecutive rows.
    type RowRange: Clone + Send + 'static;

    /// The numbers of the queries.
    fn queries(&self) -> Range<u64>;

    /// How many rows there are.
    fn rows(&self) -> u64;

    /// Terms of a product of two.
    fn terms(&self) -> u64;

    /// Some of the queries by themselves, under the same numbers.
    fn of_queries(&self, range: Range<u64>) -> Result<Self>;

    /// What blocks of queries may take together, beside `held_bytes`.
    fn staying(&self, held_bytes: u64) -> MemorySplit;

    /// Blocks of queries, in order: the numbers of their rows, and the bytes that one takes while it
    /// waits. Each query has `bytes_beside` besides.
    fn blocks(&self, bytes_beside: u64) -> Vec<(Self::RowRange, u64)>;

    /// Panels of rows, whose bytes and `bytes_beside` a row have room together.
    fn panels(&self, bytes_beside: u64) -> Vec<Self::RowRange>;

    /// The numbers of the queries of a block.
    fn numbers(&self, block: &Self::RowRange) -> Range<u64>;

    /// The numbers of the rows of a panel.
    fn rows_of(panel: &Self::RowRange) -> Range<u64>;

    /// Bytes on SSD of all rows, and of some queries if these are others.
    fn stored_bytes(&self, queries: Range<u64>) -> u64;

    /// A task that compares the two; its last block is for what is found.
    fn compare(
        &self,
        plan: &mut Plan,
        queries: &Self::RowRange,
        rows: &Self::RowRange,
        sought: Sought,
    ) -> Task;

    /// Where rows look for each other: their blocks, of which two can meet in one task. Else none.
    fn mutual_blocks(&self, _bytes_beside: u64) -> Option<Vec<(Self::RowRange, u64)>> {
        None
    }

    /// A task in which two of these blocks meet; its last blocks are for what each finds.
    fn meet_each_other(&self, _: &mut Plan, _: [&Self::RowRange; 2], _: [Sought; 2]) -> Task {
        unreachable!("there are no such blocks")
    }
}

/// As many of some blocks, from the first on, as may take `most` bytes together, at least one.
fn groups<P>(blocks: impl IntoIterator<Item = (P, u64)>, most: u64) -> Vec<Vec<P>> {
    let (mut groups, mut filled) = (Vec::<Vec<P>>::new(), 0);
    for (block, bytes) in blocks {
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

/// Has blocks of queries meet panels of rows, in their order; what each block finds is its region.
fn meet<S: Side>(
    side: &S,
    plan: &mut Plan,
    blocks: &[(S::RowRange, Sought)],
    panels: &[S::RowRange],
) -> Result<Vec<Region>> {
    let states = state_regions(plan, blocks.iter().map(|(_, sought)| *sought));
    for (number, panel) in panels.iter().enumerate() {
        for ((queries, sought), state) in blocks.iter().zip(&states) {
            go_on()?;
            let sought = Sought {
                is_first: number == 0,
                ..*sought
            };
            let task = side.compare(plan, queries, panel, sought);
            plan.task(match number {
                0 => task.write(*state),
                _ => task.update(*state),
            });
        }
    }
    Ok(states)
}

/// Memory for what blocks of queries find.
fn state_regions(plan: &mut Plan, sought: impl Iterator<Item = Sought>) -> Vec<Region> {
    sought
        .enumerate()
        .map(|(number, sought)| {
            let bytes = sought.bytes();
            Region::span(plan.volatile(format!("found {number}"), bytes), 0, bytes)
        })
        .collect()
}

/// What queries may take that meet all rows together, beside what tasks and others hold; as much is
/// for rows that pass by. However little that is, some queries do.
fn staying(session: &Session, task_bytes: u64, held_bytes: u64) -> MemorySplit {
    let split = MemorySplit::new(session);
    let staying = beside(session, task_bytes, held_bytes).staying();
    MemorySplit::of(staying.left().max(split.compared_bytes()))
}

fn beside(session: &Session, task_bytes: u64, held_bytes: u64) -> MemorySplit {
    let held = session.threads() as u64 * task_bytes + held_bytes;
    MemorySplit::new(session).hold(held)
}

/// What each query of a block wants.
#[derive(Clone, Copy)]
enum Wanted {
    /// As many neighbours.
    Nearest(u64),
    /// All rows within a radius, and room for as many pairs in all.
    Within { radius: f64, pairs: u64 },
}

/// What a block of queries is looking for.
#[derive(Clone, Copy)]
struct Sought {
    metric: Metric,
    wanted: Wanted,
    queries: usize,
    /// Nothing has been compared yet.
    is_first: bool,
}

impl Sought {
    fn new(metric: Metric, wanted: Wanted, queries: Range<u64>) -> Sought {
        Sought {
            metric,
            wanted,
            queries: (queries.end - queries.start) as usize,
            is_first: false,
        }
    }

    /// Of what is found.
    fn bytes(&self) -> u64 {
        match self.wanted {
            Wanted::Nearest(k) => self.queries as u64 * k * NEIGHBOR_BYTES,
            Wanted::Within { pairs, .. } => 8 * (1 + self.queries as u64) + pairs * PAIR_BYTES,
        }
    }

    /// The neighbours so far.
    fn nearest<'a>(&self, state: &'a mut Block) -> &'a mut [Neighbor] {
        let nearest = state.slice_mut::<Neighbor>();
        if self.is_first {
            nearest.fill(Neighbor::NONE);
        }
        nearest
    }

    /// How far the last neighbour of each query is, as distances are compared.
    fn limits(&self, state: &Block) -> Vec<f64> {
        let nearest = state.slice::<Neighbor>();
        let lists = nearest.chunks_exact(nearest.len() / self.queries.max(1));
        lists.map(|list| list[list.len() - 1].distance).collect()
    }

    /// The pairs so far, behind their number and the number of each query.
    fn within<'a>(&self, state: &'a mut Block) -> Within<'a> {
        let Wanted::Within { radius, .. } = self.wanted else {
            unreachable!("neighbours within a radius are wanted")
        };
        let (counts, pairs) = state.bytes_mut().split_at_mut(8 * (1 + self.queries));
        let counts: &mut [u64] = bytemuck::cast_slice_mut(counts);
        if self.is_first {
            counts.fill(0);
        }
        let Some((found, counts)) = counts.split_first_mut() else {
            unreachable!("the number of pairs comes first")
        };
        Within {
            metric: self.metric,
            radius,
            counts,
            found,
            pairs: bytemuck::cast_slice_mut(pairs),
        }
    }
}

const NEIGHBOR_BYTES: u64 = size_of::<Neighbor>() as u64;
const PAIR_BYTES: u64 = size_of::<Pair>() as u64;
