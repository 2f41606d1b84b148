//! The nearest rows where rows are in clusters: blocks that cannot hold a neighbour are neither read
//! nor compared with.
//!
//! ```text
//!   rows     in scratch, by the nearest of some centres, with their numbers; cut into blocks
//!   blocks   how far the rows of each are from their centre, and reach towards others: in memory
//!   queries  in scratch, by their nearest centre
//!   group    1. each of its queries meets the rows of its own centre, and finds a limit
//!            2. blocks that may hold a row within the limit of one of them pass by, and are
//!               compared with the queries of which that is so
//!   results  in the order of scratch, then in that of the queries
//! ```
//!
//! What blocks may hold is told by `kernels::RowCenters`, with every rounding counted, and ties go to
//! the smaller number as ever: the bytes are those of a search that compares everything.
//!
//! Cost: 2 (n + m) c d flops for c centres, and n c d more for what blocks hold; the rows are read
//! once for their centres, moved by way of scratch, read once for what blocks hold, and then as far
//! as groups need. 20 bytes of memory a row or query meanwhile.

mod ordered;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::panels::cut;
use outcore_core::{
    DType, Error, Job, MemorySplit, Order, Result, Segments, Session, Stage, StoredFile, with_real,
};
use outcore_device::Locked;
use outcore_engine::{Extent, Plan, Region, Reservation, Task, go_on};
use outcore_kernels::{KnownBlock, Metric, Neighbor, Real, RowCenters};
use outcore_matrix::{Array, Layout, Operand};

use self::ordered::Ordered;
use super::dense::{DenseSearch, Seekers};
use super::nearest::{Into, NAME, targets};
use super::{
    NEIGHBOR_BYTES, NeighborOptions, NeighborOutputs, Side, Sought, Wanted, check_nearest, groups,
    nearest_rows,
};
use crate::pass::Rows;

/// Rows of a block, at most: the fewer, the more of them can be left out.
const BLOCK_ROWS: u64 = 4096;
/// Queries of a task, at most.
const BLOCK_QUERIES: u64 = 4096;

/// The k nearest rows to each query by Euclidean distance, as [`nearest_rows`] finds them, where rows
/// are in clusters: rows and queries are put in the order of the centre that is nearest to each, and
/// blocks of rows are left out that cannot hold a neighbour. `centers` are c x d, one after another,
/// as k-means finds them; any will do, and the result has the same bytes.
///
/// Cost: with c centres, 4ncd + 2mcd flops and some six passes over the rows to put them in order;
/// then what is near. It pays where there are many more queries than centres.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::neighbors::{NeighborOptions, nearest_rows_by_centers};
/// use outcore_kernels::Metric;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = NeighborOptions { k: 1, metric: Metric::Euclidean };
/// let (centers, outputs) = ([1.0, 2.0, 5.0, 5.0], Default::default());
/// let job = nearest_rows_by_centers(&session, (&x).into(), None, &centers, options, outputs)?;
/// let [_, rows] = job.run()?;
/// assert_eq!(rows.to_vec::<i64>()?, [1, 0, 1]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`nearest_rows`]; [`Error::Value`] for sparse rows, for another metric, for a checkpoint and
/// for centres that are not finite.
pub fn nearest_rows_by_centers(
    session: &Session,
    rows: Rows,
    queries: Option<Rows>,
    centers: &[f64],
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<[Array; 2]>> {
    check_nearest(&rows, queries.as_ref(), options)?;
    let is_empty = queries.as_ref().is_some_and(|queries| queries.count() == 0);
    if is_empty || rows.width() == 0 {
        return nearest_rows(session, rows, queries, options, outputs);
    }
    if options.metric != Metric::Euclidean {
        return Err(Error::value(
            "clusters are told apart by Euclidean distances",
        ));
    }
    if outputs.checkpoint.is_some() {
        return Err(Error::value("a search by clusters leaves no checkpoint"));
    }
    let (Rows::Dense(x), None | Some(Rows::Dense(_))) = (&rows, &queries) else {
        return Err(Error::value(format!(
            "{} is searched by clusters, which takes dense rows",
            rows.name()
        )));
    };
    outputs.check_distinct(&rows, queries.as_ref())?;
    let queries = match &queries {
        Some(Rows::Dense(queries)) => Some(queries.clone()),
        _ => None,
    };
    let centers = RowCenters::new(centers.to_vec(), x.cols() as usize)?;
    if !centers.values().iter().all(|value| value.is_finite()) {
        return Err(Error::value("the centres of rows are not all finite"));
    }
    with_real!(x.real()?, T => arrays::<T>(session, x, queries, centers, options, outputs))
}

fn arrays<T: Real>(
    session: &Session,
    rows: &Operand,
    queries: Option<Operand>,
    centers: RowCenters,
    options: NeighborOptions,
    outputs: NeighborOutputs,
) -> Result<Job<[Array; 2]>> {
    let m = queries.as_ref().unwrap_or(rows).rows();
    let mut first = Plan::new(NAME);
    let [distances, numbers] = targets(session, [m, options.k], outputs, &mut first)?;
    let into = [&distances, &numbers].map(|target| (target.extent.clone(), target.array.layout()));
    let centers = Arc::new(centers);
    // What does not fit is refused before anything is read.
    let order_bytes = Ordered::held_bytes(rows.rows().max(m));
    let blocks = centers.count() as u64 + rows.rows() / block_rows::<T>(session, rows.cols());
    first.hold(order_bytes.max(Search::<T>::held_bytes(session, blocks, &centers)));
    first.note(
        "rows",
        format!("by the nearest of {} centres", centers.count()),
    );
    let (within, rows) = (session.clone(), rows.clone());
    let work = move |stage: &mut Stage, plans: Vec<Plan>| {
        for plan in plans {
            stage.run(plan, 0.0)?;
        }
        let session = &within;
        let of_rows = Ordered::of(session, stage, &rows, &centers)?;
        stage.reach(1.0 / 16.0);
        let of_queries = queries.map(|queries| Ordered::of(session, stage, &queries, &centers));
        stage.reach(1.0 / 8.0);
        let sides = (of_rows, of_queries.transpose()?);
        let search = Search::<T>::begin(session, stage, sides, centers, options)?;
        search.run(stage)?;
        search.put_in_order(stage, into)
    };
    distances.job_beside(numbers, session, vec![first], work)
}

/// Rows that are near one centre.
#[derive(Clone)]
struct CenterRows {
    center: usize,
    rows: Range<u64>,
}

/// Those of each centre, cut.
fn parts(of: &Ordered, most: u64) -> Vec<CenterRows> {
    let of_center = |(center, ends): (usize, &[u64])| {
        let rows = cut(ends[0]..ends[1], most).into_iter();
        rows.map(move |rows| CenterRows { center, rows })
    };
    of.starts
        .windows(2)
        .enumerate()
        .flat_map(of_center)
        .collect()
}

struct Search<T> {
    session: Session,
    side: DenseSearch<T>,
    queries: Ordered,
    centers: Arc<RowCenters>,
    /// Of the rows, and what is known of each.
    blocks: Vec<CenterRows>,
    known: Arc<Vec<KnownBlock>>,
    options: NeighborOptions,
    /// What queries have found, in their order.
    lists: Arc<StoredFile>,
    /// The results, in their order.
    found: [Array; 2],
    held: Reservation,
}

impl<T: Real> Search<T> {
    /// Of centres, of what is known of blocks, and of tasks that find it out.
    fn held_bytes(session: &Session, blocks: u64, centers: &RowCenters) -> u64 {
        let k = centers.count() as u64;
        let of_block = KnownBlock::bytes(k as usize, has_reach(session, blocks, k)) as u64;
        let of_task = 8 * centers.scratch() + centers.held_bytes(blocks as usize, session.blas());
        let of_centers = 8 * centers.values().len() as u64;
        of_centers + blocks * of_block + (session.threads() * of_task) as u64
    }

    fn begin(
        session: &Session,
        stage: &mut Stage,
        (rows, queries): (Ordered, Option<Ordered>),
        centers: Arc<RowCenters>,
        options: NeighborOptions,
    ) -> Result<Search<T>> {
        let of = |ordered: &Ordered| Operand::from(&ordered.rows);
        let others = queries.as_ref().map(of);
        let side = DenseSearch::<T>::new(session, &of(&rows), others.as_ref());
        let queries = queries.unwrap_or_else(|| rows.clone());
        let (m, k) = (queries.rows.rows(), options.k);
        let blocks = parts(&rows, block_rows::<T>(session, rows.rows.cols()));
        let held = Self::held_bytes(session, blocks.len() as u64, &centers);
        let held = stage.reserve(NAME, held)?;
        let known = know::<T>(session, stage, &of(&rows), &blocks, &centers)?;
        let scratch = |dtype| Array::temporary(session, dtype, &[m, k], Order::Row);
        Ok(Search {
            session: session.clone(),
            side: side.numbered(&rows.numbers, &queries.numbers),
            queries,
            centers,
            blocks,
            known: Arc::new(known),
            options,
            lists: session.scratch_file(None, m * k * NEIGHBOR_BYTES)?,
            found: [scratch(DType::F64)?, scratch(DType::I64)?],
            held,
        })
    }

    fn run(&self, stage: &mut Stage) -> Result<()> {
        let m = self.queries.rows.rows() as f64;
        let (first, mut from) = (stage.fraction(), 0);
        for group in self.groups() {
            let until = group.last().map_or(0, |last| last.rows.end);
            let reached = |queries: u64| first + (0.9 - first) * queries as f64 / m;
            let met: Vec<Vec<usize>> = group.iter().map(|part| self.own_blocks(part)).collect();
            let (plan, marks) = self.own_plan(&group, &met)?;
            let outcome = stage.run(plan, reached(from + (until - from) / 4))?;
            let _marks = stage.reserve(NAME, group.len() as u64 * self.mark_bytes())?;
            let may_hold = |number: usize, block: usize| {
                let marks = outcome.result(&marks[number]);
                !met[number].contains(&block) && marks.is_none_or(|marks| marks[block] != 0)
            };
            stage.run_in_segments(Plan::new(NAME), reached(until), |segments| {
                self.meet_others(segments, &group, &may_hold)
            })?;
            from = until;
        }
        Ok(())
    }

    /// Of the marks of some queries, in whole pages.
    fn mark_bytes(&self) -> u64 {
        (self.blocks.len() as u64).next_multiple_of(4096)
    }

    /// Queries that meet blocks together.
    fn groups(&self) -> Vec<Vec<CenterRows>> {
        let row_bytes = self.queries.rows.cols() * size_of::<T>() as u64;
        // What they find; results are written in their place.
        let each = row_bytes + self.options.k * NEIGHBOR_BYTES;
        let most = self.side.beside(self.held.bytes()).mostly_staying().left();
        // However little that is, some queries meet blocks together.
        let most = most.max(MemorySplit::new(&self.session).compared_bytes());
        let parts = parts(&self.queries, (most / 32 / each).clamp(1, BLOCK_QUERIES));
        let with_bytes = parts.into_iter().map(|part| {
            let bytes = each * (part.rows.end - part.rows.start) + self.mark_bytes();
            (part, bytes)
        });
        groups(with_bytes, most)
    }

    /// Blocks of the queries' own centre, and of those that are nearest to it, until there are enough
    /// rows to find as many neighbours.
    fn own_blocks(&self, queries: &CenterRows) -> Vec<usize> {
        let of = |center: usize| {
            let first = self.blocks.partition_point(|block| block.center < center);
            let end = self.blocks.partition_point(|block| block.center <= center);
            first..end
        };
        let rows = |blocks: Range<usize>| -> u64 {
            let rows = self.blocks[blocks].iter();
            rows.map(|block| block.rows.end - block.rows.start).sum()
        };
        let own = of(queries.center);
        // A query may be one of the rows.
        let enough = self.options.k + 1;
        if rows(own.clone()) >= enough {
            return own.collect();
        }
        let (mut blocks, mut count) = (Vec::new(), 0);
        for center in self.centers.nearest_to(queries.center) {
            blocks.extend(of(center));
            count += rows(of(center));
            if count >= enough {
                break;
            }
        }
        blocks
    }

    fn sought(&self, queries: &CenterRows, is_first: bool) -> Sought {
        let NeighborOptions { k, metric } = self.options;
        Sought {
            is_first,
            ..Sought::new(metric, Wanted::Nearest(k), queries.rows.clone())
        }
    }

    fn list(&self, plan: &mut Plan, queries: &CenterRows) -> Region {
        let bytes = self.options.k * NEIGHBOR_BYTES;
        let len = (queries.rows.end - queries.rows.start) * bytes;
        Region::span(
            plan.extent(self.lists.extent()),
            queries.rows.start * bytes,
            len,
        )
    }

    /// Queries meet the blocks of their own; then blocks are marked that may hold a neighbour.
    fn own_plan(&self, group: &[CenterRows], met: &[Vec<usize>]) -> Result<(Plan, Vec<Region>)> {
        let mut plan = Plan::new(NAME);
        let mut marks = Vec::new();
        for (queries, met) in group.iter().zip(met) {
            go_on()?;
            let list = self.list(&mut plan, queries);
            for (number, block) in met.iter().enumerate() {
                let rows = &self.blocks[*block].rows;
                let sought = self.sought(queries, number == 0);
                let task = self.side.compare(&mut plan, &queries.rows, rows, sought);
                plan.task(match number {
                    0 => task.write(list),
                    _ => task.update(list),
                });
            }
            marks.push(self.mark(&mut plan, queries, list));
        }
        Ok((plan, marks))
    }

    fn mark(&self, plan: &mut Plan, queries: &CenterRows, list: Region) -> Region {
        let count = self.blocks.len() as u64;
        let marks = Region::span(plan.volatile("blocks", count), 0, count);
        let x = &self.queries.rows;
        let extent = Operand::from(x).extent(plan);
        let tile = x.layout().tile(extent, queries.rows.clone(), 0..x.cols());
        let (center, k, elements) = (queries.center, self.options.k, self.centers.scratch());
        let (centers, known) = (Arc::clone(&self.centers), Arc::clone(&self.known));
        let blas = self.session.blas().clone();
        let task = Task::new("mark").read(tile.region).read(list).write(marks);
        plan.task(
            task.flops(centers.flops(tile.rows))
                .scratch(8 * elements)
                .held(centers.held_bytes(self.blocks.len(), &blas) + 8 * tile.rows)
                .run(move |cx| {
                    let [x, list, marks] = cx.blocks else {
                        unreachable!("three were declared")
                    };
                    let lists = list.slice::<Neighbor>().chunks_exact(k as usize);
                    let limits: Vec<f64> =
                        lists.map(|list| list[k as usize - 1].distance).collect();
                    let marks = marks.bytes_mut();
                    marks.fill(0);
                    let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..8 * elements]);
                    let stop = || cx.cancelled.load(Ordering::Relaxed);
                    let x = tile.of::<T>(x)?;
                    Ok(centers
                        .may_hold(marks, &known, center, x, &limits, scratch, &blas, &stop)?)
                }),
        );
        marks
    }

    /// Blocks pass by; then what queries have found is put where results wait for their order. Of many groups and
    /// blocks, tasks would take more memory than what they work on.
    fn meet_others(
        &self,
        segments: &mut Segments<'_>,
        group: &[CenterRows],
        may_hold: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        for (block, rows) in self.blocks.iter().enumerate() {
            go_on()?;
            for (number, queries) in group.iter().enumerate() {
                if may_hold(number, block) {
                    let plan = segments.plan();
                    let list = self.list(plan, queries);
                    let sought = self.sought(queries, false);
                    let (both, seekers) =
                        ([&queries.rows, &rows.rows], self.seekers(queries, block));
                    let task = (self.side).compare_seekers(plan, both, sought, Some(seekers));
                    plan.task(task.update(list));
                    segments.may_end()?;
                }
            }
        }
        let into = self.found.each_ref();
        let into = Into::Arrays(into.map(|array| (array.extent().clone(), array.layout())));
        for queries in group {
            let plan = segments.plan();
            let list = self.list(plan, queries);
            let sought = (self.sought(queries, false), self.options.k);
            into.put(plan, queries.rows.clone(), sought, list);
        }
        Ok(())
    }

    /// Which of some queries look for rows of a block, by what they have found until then.
    fn seekers(&self, queries: &CenterRows, block: usize) -> Seekers<T> {
        let (center, centers, known) = (
            queries.center,
            Arc::clone(&self.centers),
            Arc::clone(&self.known),
        );
        Box::new(move |queries, limits| centers.seekers(&known[block], center, queries, limits))
    }

    /// Rows of the results in the order of the queries.
    fn put_in_order(self, stage: &mut Stage, into: [(Extent, Layout); 2]) -> Result<()> {
        let Search {
            session,
            queries,
            found,
            held,
            ..
        } = self;
        drop(held);
        let _held = stage.reserve(NAME, 16 * queries.rows.rows())?;
        let places = queries.places(stage)?;
        for (found, (extent, layout)) in found.iter().zip(&into) {
            for plan in found.take_plans(&session, &places, (extent, *layout))? {
                stage.run(plan, 1.0)?;
            }
        }
        Ok(())
    }
}

/// Whether there is memory for how far blocks reach.
fn has_reach(session: &Session, blocks: u64, k: u64) -> bool {
    4 * blocks * k <= MemorySplit::new(session).collected_bytes()
}

fn block_rows<T: Real>(session: &Session, d: u64) -> u64 {
    let bytes = MemorySplit::new(session).staying().left() / 16;
    (bytes / (d * size_of::<T>() as u64).max(1)).clamp(1, BLOCK_ROWS)
}

/// What there is to know of each block.
fn know<T: Real>(
    session: &Session,
    stage: &mut Stage,
    x: &Operand,
    blocks: &[CenterRows],
    centers: &Arc<RowCenters>,
) -> Result<Vec<KnownBlock>> {
    let has_reach = has_reach(session, blocks.len() as u64, centers.count() as u64);
    let known: Arc<Mutex<Vec<Option<KnownBlock>>>> = Arc::default();
    known.locked().resize_with(blocks.len(), || None);
    let mut plan = Plan::new(NAME);
    plan.bound(x.stored_bytes());
    let extent = x.extent(&mut plan);
    for (number, CenterRows { center, rows }) in blocks.iter().cloned().enumerate() {
        go_on()?;
        let tile = x.layout().tile(extent, rows, 0..x.cols());
        let (centers, known) = (Arc::clone(centers), Arc::clone(&known));
        let (blas, elements) = (session.blas().clone(), centers.scratch());
        let task = Task::new("know").read(tile.region);
        plan.task(
            task.flops(centers.flops(tile.rows))
                .scratch(8 * elements)
                .held(centers.held_bytes(0, &blas) + 8 * centers.count())
                .run(move |cx| {
                    let scratch = bytemuck::cast_slice_mut(&mut cx.scratch[..8 * elements]);
                    let stop = || cx.cancelled.load(Ordering::Relaxed);
                    let x = tile.of::<T>(&cx.blocks[0])?;
                    let found = centers.know(center, x, has_reach, scratch, &blas, &stop)?;
                    known.locked()[number] = Some(found);
                    Ok(())
                }),
        );
    }
    stage.run(plan, stage.fraction())?;
    let known = std::mem::take(&mut *known.locked());
    Ok(known.into_iter().flatten().collect())
}
