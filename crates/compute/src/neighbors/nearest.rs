//! The k nearest rows of each query: groups of queries, one after another, and where what they have
//! found is written.

use std::ops::Range;

use outcore_core::{DType, Error, Job, Order, RealType, Result, Segments, Session};
use outcore_engine::{Block, Plan, Region, Task, TaskError};
use outcore_kernels::{Metric, Neighbor};
use outcore_matrix::sparse::{NewArrays, NewSparse, SparseShape};
use outcore_matrix::{Array, Compressed, Output, Sparse, Target, Tile};

use super::mutual::Join;
use super::resumed;
use super::{
    GraphOutput, NEIGHBOR_BYTES, NeighborOptions, NeighborOutputs, Side, Sought, Targets, Wanted,
    groups, meet,
};

pub(super) const NAME: &str = "nearest rows";

/// Where neighbours go.
#[derive(Clone)]
pub(super) enum Into {
    /// Distances and numbers.
    Arrays(Targets),
    /// A row of each query.
    Graph(NewArrays),
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
    let groups = Groups::of(session, side, options)?;
    first.note("groups", groups.count());
    distances.both_in_segments(rows, session, first, move |segments| {
        groups.fill(segments, &into)
    })
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
    output: GraphOutput,
) -> Result<Job<Sparse>> {
    let GraphOutput {
        has_distances,
        out,
        checkpoint,
    } = output;
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
    if let Some(checkpoint) = checkpoint {
        return resumed::graph(session, side, first, options, new, checkpoint);
    }
    let groups = Groups::of(session, side, options)?;
    first.note("groups", groups.count());
    let into = Into::Graph(new.arrays().clone());
    let make = move |segments: &mut Segments<'_>| groups.fill(segments, &into);
    Job::in_segments_then(session, first, make, move |stage| {
        new.finish(&|| stage.is_cancelled())
    })
}

/// Groups of queries, of each of which there is a plan when its turn comes: all of them together could take more
/// memory than rows.
enum Groups<S: Side> {
    /// Queries that meet all panels of rows.
    Apart {
        side: S,
        options: NeighborOptions,
        groups: Vec<Vec<S::RowRange>>,
        panels: Vec<S::RowRange>,
    },
    /// Rows that look for each other.
    Mutual(Join<S>),
}

impl<S: Side> Groups<S> {
    fn of(session: &Session, side: &S, options: NeighborOptions) -> Result<Groups<S>> {
        Ok(match Join::of(session, side, options)? {
            Some(join) => Groups::Mutual(join),
            None => Groups::Apart {
                side: side.clone(),
                options,
                groups: groups_of(side, options.k),
                panels: side.panels(0),
            },
        })
    }

    fn count(&self) -> usize {
        match self {
            Groups::Apart { groups, .. } => groups.len(),
            Groups::Mutual(join) => join.groups(),
        }
    }

    /// What one group has found goes before the next begins.
    fn fill(&self, segments: &mut Segments<'_>, into: &Into) -> Result<()> {
        match self {
            Groups::Mutual(join) => join.fill(segments, into),
            Groups::Apart {
                side,
                options,
                groups,
                panels,
            } => groups.iter().enumerate().try_for_each(|(number, group)| {
                if number > 0 {
                    segments.split()?;
                }
                add_group(side, segments.plan(), group.clone(), panels, *options, into)
            }),
        }
    }
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
    into: &Into,
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

impl Into {
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
                let task = graph_rows(new, plan, queries.clone(), k, task);
                let index = new.shape().index;
                plan.task(task.run(move |cx| {
                    let Some((state, written)) = cx.blocks.split_first_mut() else {
                        unreachable!("the state is declared")
                    };
                    let nearest = state.slice::<Neighbor>().iter();
                    let found = nearest.map(|one| (one.row, sought.metric.shown(one.distance)));
                    put_graph(found, k, (queries.start, index), written);
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

/// Adds to a task the rows of a graph that it writes: ends, indices, and values if there are any.
pub(super) fn graph_rows(
    new: &NewArrays,
    plan: &mut Plan,
    queries: Range<u64>,
    k: u64,
    task: Task,
) -> Task {
    let entries = queries.start * k..queries.end * k;
    let task = task
        .write(new.offsets(plan, queries.start + 1..queries.end + 1))
        .write(new.indices(plan, entries.clone()));
    new.values(plan, entries)
        .into_iter()
        .fold(task, Task::write)
}

/// Writes rows of a graph, from the query `first` on: the number and the distance of each neighbour.
pub(super) fn put_graph(
    found: impl Iterator<Item = (u64, f64)> + Clone,
    k: u64,
    (first, index): (u64, DType),
    written: &mut [Block],
) {
    for (end, at) in written[0].slice_mut::<i64>().iter_mut().zip(first + 1..) {
        *end = (at * k) as i64;
    }
    let rows = found.clone().map(|(row, _)| row);
    match index {
        DType::I32 => {
            let into = written[1].slice_mut::<i32>().iter_mut();
            into.zip(rows).for_each(|(into, row)| *into = row as i32);
        }
        _ => {
            let into = written[1].slice_mut::<i64>().iter_mut();
            into.zip(rows).for_each(|(into, row)| *into = row as i64);
        }
    }
    if let Some(values) = written.get_mut(2) {
        let into = values.slice_mut::<f64>().iter_mut();
        into.zip(found)
            .for_each(|(into, (_, distance))| *into = distance);
    }
}
