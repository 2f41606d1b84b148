//! The k nearest rows of each query: groups of queries, one after another, and where what they have
//! found is written.

use std::ops::Range;
use std::path::PathBuf;

use outcore_core::{DType, Error, Job, Order, RealType, Result, Session, Stage};
use outcore_engine::{Block, Context, Plan, Region, Task, TaskError};
use outcore_kernels::{Metric, Neighbor};
use outcore_matrix::sparse::{NewSparse, SparseShape};
use outcore_matrix::{Array, Compressed, Output, Sparse, Target, Tile};

use super::{
    NEIGHBOR_BYTES, NeighborOptions, NeighborOutputs, Side, Sought, Targets, Wanted, groups, meet,
};
use super::{mutual, resumed};

pub(super) const NAME: &str = "nearest rows";

/// Where neighbours go.
pub(super) enum Into<'a> {
    /// Distances and numbers.
    Arrays(Targets),
    /// A row of each query.
    Graph(&'a NewSparse),
}

/// To two arrays, m x k.
pub(super) fn arrays<S: Side>(
    session: &Session,
    side: &S,
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<[Array; 2]>> {
    let mut first = Plan::new(NAME);
    let checkpoint = outputs.checkpoint.clone();
    let shape = [side.queries().end, options.k];
    let [distances, rows] = targets(session, shape, outputs, &mut first)?;
    if let Some(checkpoint) = checkpoint {
        let targets = [distances, rows];
        return resumed::arrays(session, side, first, options, targets, checkpoint);
    }
    let of = |target: &Target| (target.extent.clone(), target.array.layout());
    let into = Into::Arrays([of(&distances), of(&rows)]);
    let plans = plans(session, side, first, options, &into)?;
    distances.job_beside(rows, session, plans, run_all)
}

/// Both results, m x k.
pub(super) fn targets(
    session: &Session,
    [m, k]: [u64; 2],
    outputs: NeighborOutputs,
    first: &mut Plan,
) -> Result<[Target; 2]> {
    let mut target = |output: Output, dtype| {
        let target = output.target(session, dtype, &[m, k], Order::Row, first)?;
        match target.array.order() == Order::Row || k == 1 || m <= 1 {
            true => Ok(target),
            false => Err(Error::value(format!(
                "{}: neighbours are written by rows",
                target.array.name()
            ))),
        }
    };
    Ok([
        target(outputs.distances, DType::F64)?,
        target(outputs.rows, DType::I64)?,
    ])
}

/// To a sparse matrix, m x n.
pub(super) fn graph<S: Side>(
    session: &Session,
    side: &S,
    options: NeighborOptions,
    has_distances: bool,
    out: Option<PathBuf>,
) -> Result<Job<Sparse>> {
    let (m, n) = (side.queries().end, side.rows());
    let mut first = Plan::new(NAME);
    let shape = SparseShape {
        format: Compressed::Rows,
        lines: m,
        width: n,
        entries: m * options.k,
        index: SparseShape::index_for(n),
        real: RealType::F64,
        has_values: has_distances,
    };
    let new = NewSparse::make(session, out, shape, &mut first)?;
    let begin = new.offsets(&mut first, 0..1);
    first.task(Task::new("begin").write(begin).run(|cx| {
        cx.blocks[0].slice_mut::<i64>().fill(0);
        Ok(())
    }));
    let plans = plans(session, side, first, options, &Into::Graph(&new))?;
    Job::driven(session, plans, move |stage, plans| {
        run_all(stage, plans)?;
        new.finish(&|| stage.is_cancelled())
    })
}

/// What one group has found goes before the next begins.
fn run_all(stage: &mut Stage, plans: Vec<Plan>) -> Result<()> {
    let count = plans.len() as f64;
    let mut plans = plans.into_iter().enumerate();
    plans.try_for_each(|(number, plan)| {
        let reached = (number + 1) as f64 / count;
        stage.run(plan, reached).map(drop)
    })
}

/// A plan for each group of queries; the first begins with what there is already.
fn plans<S: Side>(
    session: &Session,
    side: &S,
    first: Plan,
    options: NeighborOptions,
    into: &Into<'_>,
) -> Result<Vec<Plan>> {
    let mut next = Some(first);
    if let Some(plans) = mutual::plans(session, side, &mut next, options, into)? {
        return Ok(plans);
    }
    let panels = side.panels(0);
    let mut plans = Vec::new();
    for group in groups_of(side, options.k) {
        let mut plan = next.take().unwrap_or_else(|| Plan::new(NAME));
        add_group(side, &mut plan, group, &panels, options, into)?;
        plans.push(plan);
    }
    plans.extend(next);
    Ok(plans)
}

/// Blocks of queries that meet all rows together.
pub(super) fn groups_of<S: Side>(side: &S, k: u64) -> Vec<Vec<S::RowRange>> {
    // Neighbours, and the results that they become.
    let beside = 3 * k * NEIGHBOR_BYTES;
    let blocks = side.blocks(beside).into_iter().map(|(block, bytes)| {
        let queries = side.numbers(&block);
        (block, bytes + beside * (queries.end - queries.start))
    });
    groups(blocks, side.staying(0).left())
}

pub(super) fn add_group<S: Side>(
    side: &S,
    plan: &mut Plan,
    group: Vec<S::RowRange>,
    panels: &[S::RowRange],
    options: NeighborOptions,
    into: &Into<'_>,
) -> Result<()> {
    let NeighborOptions { k, metric } = options;
    let blocks: Vec<(S::RowRange, Sought)> = group
        .into_iter()
        .map(|block| {
            let sought = Sought::new(metric, Wanted::Nearest(k), side.numbers(&block));
            (block, sought)
        })
        .collect();
    let ends = blocks.first().zip(blocks.last());
    let queries = ends.map_or(0..0, |((first, _), (last, _))| {
        side.numbers(first).start..side.numbers(last).end
    });
    let found_bytes = (queries.end - queries.start) * k * NEIGHBOR_BYTES;
    plan.bound(side.stored_bytes(queries) + found_bytes);
    let states = meet(side, plan, &blocks, panels)?;
    for ((block, sought), state) in blocks.iter().zip(states) {
        into.put(plan, side.numbers(block), (*sought, k), state);
    }
    Ok(())
}

impl Into<'_> {
    /// Adds the task that writes the neighbours of some queries.
    pub(super) fn put(
        &self,
        plan: &mut Plan,
        queries: Range<u64>,
        (sought, k): (Sought, u64),
        state: Region,
    ) {
        let task = Task::new("put").read(state);
        match self {
            Into::Arrays(targets) => {
                let tiles = [0, 1].map(|side: usize| {
                    let (extent, layout) = &targets[side];
                    let extent = plan.extent(extent);
                    layout.tile(extent, queries.clone(), 0..k)
                });
                let task = tiles
                    .iter()
                    .fold(task, |task, tile| task.write(tile.region));
                plan.task(task.run(move |cx| {
                    let Some((state, written)) = cx.blocks.split_first_mut() else {
                        unreachable!("the state is declared")
                    };
                    let nearest = state.slice::<Neighbor>();
                    put_arrays(nearest, (sought.metric, k as usize), &tiles, written)
                }));
            }
            Into::Graph(new) => {
                let entries = queries.start * k..queries.end * k;
                let task = task
                    .write(new.offsets(plan, queries.start + 1..queries.end + 1))
                    .write(new.indices(plan, entries.clone()));
                let values = new.values(plan, entries);
                let task = values.into_iter().fold(task, Task::write);
                let index = new.shape().index;
                plan.task(task.run(move |cx| {
                    put_graph(sought, k, (queries.start, index), cx);
                    Ok(())
                }));
            }
        }
    }
}

/// Writes the k neighbours of some queries to tiles of both results, which lie in these blocks.
pub(super) fn put_arrays(
    nearest: &[Neighbor],
    (metric, k): (Metric, usize),
    tiles: &[Tile; 2],
    blocks: &mut [Block],
) -> std::result::Result<(), TaskError> {
    let [distances, rows] = blocks else {
        unreachable!("two were declared")
    };
    let mut into = tiles[0].of_mut::<f64>(distances)?;
    for (at, neighbor) in nearest.iter().enumerate() {
        into[(at / k, at % k)] = metric.shown(neighbor.distance);
    }
    let mut into = tiles[1].of_mut::<i64>(rows)?;
    for (at, neighbor) in nearest.iter().enumerate() {
        into[(at / k, at % k)] = neighbor.row as i64;
    }
    Ok(())
}

fn put_graph(sought: Sought, k: u64, (first, index): (u64, DType), cx: &mut Context<'_>) {
    let Some((state, written)) = cx.blocks.split_first_mut() else {
        unreachable!("the state is declared")
    };
    let nearest = state.slice::<Neighbor>();
    for (end, at) in written[0].slice_mut::<i64>().iter_mut().zip(first + 1..) {
        *end = (at * k) as i64;
    }
    match index {
        DType::I32 => {
            let into = written[1].slice_mut::<i32>().iter_mut();
            into.zip(nearest)
                .for_each(|(into, neighbor)| *into = neighbor.row as i32);
        }
        _ => {
            let into = written[1].slice_mut::<i64>().iter_mut();
            into.zip(nearest)
                .for_each(|(into, neighbor)| *into = neighbor.row as i64);
        }
    }
    if let Some(values) = written.get_mut(2) {
        let into = values.slice_mut::<f64>().iter_mut();
        into.zip(nearest)
            .for_each(|(into, neighbor)| *into = sought.metric.shown(neighbor.distance));
    }
}
