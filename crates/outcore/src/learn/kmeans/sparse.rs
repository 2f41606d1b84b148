//! k-means of sparse rows: products of the lines of a piece with all centres at once, and sums by the entries of what changes.
//!
//! Bounds settle rows as they do dense ones; a piece of which all rows are settled is not read. Centres are dense: k d elements three
//! times, and 8 k d bytes in each of at most eight lanes.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{Block, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Lines, Real, csrmm_flops, view, view_mut};

use super::block::{BOUND_BYTES, Known, LABEL_BYTES};
use super::centers::{Centers, Moved};
use super::drive::{self, AllKnown, Passes};
use super::farthest::{Far, Found, offer};
use super::totals::{Shape, Sums, Totals};
use super::{Assigned, KMeans, Options};
use crate::data::array::{Array, Output};
use crate::data::format::Order;
use crate::data::format::with_real;
use crate::data::sparse::{Piece, PieceBlocks, Sparse, whole_lines, with_lines};
use crate::error::{Error, Result};
use crate::job::{Job, Stage};
use crate::learn::linalg::{numbers, short_piece_bytes};
use crate::session::{PLAN_THREADS, Session};

/// As [`fit`](super::fit), of sparse rows in CSR.
///
/// # Errors
/// As [`fit`](super::fit); [`Error::Value`] for a matrix in CSC.
pub fn fit_sparse(session: &Session, x: &Sparse, start: &[f64], options: Options) -> Result<Job<KMeans>> {
    let Options { max_iter, tol, weights } = options;
    if max_iter == 0 || tol.is_nan() || tol < 0.0 {
        return Err(Error::value(format!("max_iter={max_iter} must be 1 at least, and tol={tol} no less than 0")));
    }
    if x.cols() > 0 && x.rows() < start.len() as u64 / x.cols() {
        return Err(Error::value(format!(
            "{} clusters of {}, which has {} rows",
            start.len() as u64 / x.cols(),
            x.name(),
            x.rows()
        )));
    }
    with_real!(x.dtype(), T => {
        let rows = SparseRows::<T>::new(session, x, start, weights)?;
        let plans = vec![rows.explained()];
        Job::driven(session, plans, move |stage, _| drive::fit(&rows, stage, max_iter, tol))
    })
}

/// As [`assign`](super::assign), of sparse rows in CSR.
///
/// # Errors
/// As [`fit_sparse`].
pub fn assign_sparse(session: &Session, x: &Sparse, centers: &[f64], weights: Option<Vec<f64>>) -> Result<Job<Assigned>> {
    with_real!(x.dtype(), T => {
        let rows = SparseRows::<T>::new(session, x, centers, weights)?;
        let plans = vec![rows.explained()];
        Job::driven(session, plans, move |stage, _| drive::assign(&rows, stage))
    })
}

/// Places and values of one row.
type Entries = Vec<(usize, f64)>;

/// Rows of x by number, ascending, with all their zeros, one after another, in f64.
///
/// Cost: reads the pieces that they are in; 8 bytes an element besides the budget.
///
/// # Errors
/// [`Error::Shape`] for a row that there is not, or one that does not follow; [`Error::OverBudget`].
pub fn take_sparse_rows(session: &Session, x: &Sparse, rows: &[u64]) -> Result<Job<Vec<f64>>> {
    x.check_rows_together()?;
    if rows.windows(2).any(|pair| pair[0] >= pair[1]) || rows.last().is_some_and(|&last| last >= x.rows()) {
        return Err(Error::shape(format!("rows to take of {} have to ascend below {}", x.name(), x.rows())));
    }
    let (mut plan, d) = (Plan::new("take rows"), x.cols() as usize);
    let taken = Arc::new(Mutex::new(vec![0.0; rows.len() * d]));
    for piece in x.pieces(session.memory_free() / (4 * (PLAN_THREADS + 1)), |_| 0) {
        let range = piece.lines();
        let (from, to) = (rows.partition_point(|&row| row < range.start), rows.partition_point(|&row| row < range.end));
        if from == to {
            continue;
        }
        let wanted: Vec<usize> = rows[from..to].iter().map(|row| (row - range.start) as usize).collect();
        let (lines, taken) = (x.blocks(&piece), Arc::clone(&taken));
        let task = x.regions(&mut plan, &piece).into_iter().fold(Task::new("take"), Task::read);
        plan.task(task.run(move |cx| {
            let mut taken = taken.locked();
            with_real!(lines.dtype(), T => with_lines!(lines, cx.blocks, T, a => a.each_line(|line, entries| {
                if let Ok(at) = wanted.binary_search(&line) {
                    let out = &mut taken[(from + at) * d..][..d];
                    entries.each(|place, value| out[place] += value.f64());
                }
            })));
            Ok(())
        }));
    }
    Job::new(session, vec![plan], move |_| Ok(std::mem::take(&mut *taken.locked())))
}

/// As [`distances`](super::distances), of sparse rows in CSR.
///
/// # Errors
/// As [`distances`](super::distances); [`Error::Value`] for a matrix in CSC.
pub fn sparse_distances(session: &Session, x: &Sparse, centers: &[f64], out: Output) -> Result<Job<Array>> {
    x.check_rows_together()?;
    if x.cols() == 0 || centers.is_empty() || !centers.len().is_multiple_of(x.cols() as usize) {
        return Err(Error::shape(format!("{} has {} columns, the centres {} elements", x.name(), x.cols(), centers.len())));
    }
    with_real!(x.dtype(), T => distances_as::<T>(session, x, centers, out))
}

fn distances_as<T: Real>(session: &Session, x: &Sparse, centers: &[f64], out: Output) -> Result<Job<Array>> {
    let (d, element) = (x.cols() as usize, size_of::<T>() as u64);
    let k = centers.len() / d;
    let mut plan = Plan::new("distances of sparse rows");
    let target = out.target(session, x.dtype(), &[x.rows(), k as u64], Order::Row, &mut plan)?;
    let (into, layout) = (plan.extent(&target.extent), target.array.layout());
    let squares: Arc<Vec<f64>> = Arc::new(centers.chunks(d).map(|center| center.iter().map(|c| c * c).sum()).collect());
    let across: Arc<Vec<T>> = Arc::new((0..d * k).map(|at| T::of(centers[at % k * d + at / k])).collect());
    let fixed = 2 * centers.len() as u64 * element;
    plan.hold(fixed);
    plan.bound(x.stored_bytes() + target.array.nbytes());
    let share =
        (session.memory_bytes().saturating_sub(fixed) / (3 * (PLAN_THREADS + 1))).min(short_piece_bytes(k as u64, element));
    for block in whole_lines(&x.pieces(share, |lines| 2 * lines * k as u64 * element)) {
        let lines = block[0].lines();
        let count = (lines.end - lines.start) as usize;
        let tile = layout.tile(into, lines, 0..k as u64, element);
        let read: Vec<PieceBlocks> = block.iter().map(|piece| x.blocks(piece)).collect();
        let entries: u64 = block.iter().map(Piece::entries).sum();
        let task =
            Task::new("distances").flops(csrmm_flops(entries as usize, k)).scratch(count * k * size_of::<T>()).held(8 * count);
        let task = block.iter().flat_map(|piece| x.regions(&mut plan, piece)).fold(task, Task::read).write(tile.region);
        let (squares, across) = (Arc::clone(&squares), Arc::clone(&across));
        plan.task(task.run(move |cx| {
            let (blocks, written) = cx.blocks.split_at_mut(cx.blocks.len() - 1);
            let scores = &mut numbers::<T>(cx.scratch)[..count * k];
            scores.fill(T::ZERO);
            let mut norms = vec![0.0; count];
            for (piece, blocks) in each_piece(&read, blocks) {
                with_lines!(piece, blocks, T, a => {
                    kernels::csrmm(view_mut(scores, count, k, k, 1)?, T::ONE, a, view(&across, d, k, k, 1)?, 0, T::ONE)?;
                    a.each_line(|line, entries| entries.each(|_, value| norms[line] += value.f64() * value.f64()));
                });
            }
            let mut out = tile.of_mut::<T>(&mut written[0])?;
            for (line, scores) in scores.chunks_exact(k).enumerate() {
                for (cluster, score) in scores.iter().enumerate() {
                    out[(line, cluster)] = T::of((norms[line] + squares[cluster] - 2.0 * score.f64()).max(0.0).sqrt());
                }
            }
            Ok(())
        }));
    }
    target.job(session, vec![plan])
}

struct SparseRows<T> {
    x: Sparse,
    shape: Shape,
    weights: Option<Arc<Vec<f64>>>,
    start: Vec<T>,
    shift: Vec<f64>,
    /// Pieces of each block: some whole lines, or the parts of one.
    blocks: Vec<Vec<Piece>>,
    lanes: usize,
    bounds: bool,
    state_bytes: u64,
    element: PhantomData<T>,
}

impl<T: Real> SparseRows<T> {
    fn new(session: &Session, x: &Sparse, start: &[f64], weights: Option<Vec<f64>>) -> Result<SparseRows<T>> {
        x.check_rows_together()?;
        let (n, d, element) = (x.rows(), x.cols(), size_of::<T>() as u64);
        if n == 0 || d == 0 || start.is_empty() || !start.len().is_multiple_of(d as usize) {
            let (name, length) = (x.name(), start.len());
            return Err(Error::shape(format!("k-means of {name}, {n} x {d}, with centres of {length} elements")));
        }
        if weights.as_ref().is_some_and(|weights| weights.len() as u64 != n) {
            return Err(Error::shape(format!("{} has {n} rows, there is another number of weights", x.name())));
        }
        if start.iter().any(|value| !value.is_finite()) {
            return Err(Error::value("the centres to start from are not all finite"));
        }
        let shape = Shape { clusters: start.len() / d as usize, features: d as usize };
        let memory = session.memory_bytes();
        let fixed = n * (LABEL_BYTES + if weights.is_some() { 8 } else { 0 });
        let bounded = fixed + n * BOUND_BYTES;
        let centers = 4 * start.len() as u64 * element;
        let left = memory.saturating_sub(centers + if bounded <= memory / 2 { bounded } else { fixed });
        // Half of the budget has room for them, of which others may have the rest.
        let lane_bytes = 8 * shape.len() as u64;
        let lanes = (left / 4 / lane_bytes).clamp(1, PLAN_THREADS) as usize;
        // Bounds change no bit.
        let room = session.memory_free().saturating_sub(centers + lanes as u64 * lane_bytes + memory / 16);
        let bounds = bounded <= room.min(memory / 2);
        let state_bytes = if bounds { bounded } else { fixed };
        let k = shape.clusters as u64;
        let share = (left / 2 / (3 * (PLAN_THREADS + 1))).min(short_piece_bytes(k, element));
        let pieces = x.pieces(share, |lines| lines * (k * element + 48));
        Ok(SparseRows {
            x: x.clone(),
            shape,
            weights: weights.map(Arc::new),
            start: start.iter().map(|&value| T::of(value)).collect(),
            shift: vec![0.0; d as usize],
            blocks: whole_lines(&pieces),
            lanes,
            bounds,
            state_bytes,
            element: PhantomData,
        })
    }

    fn lines(&self, block: usize) -> (u64, usize) {
        let lines = self.blocks[block][0].lines();
        (lines.start, (lines.end - lines.start) as usize)
    }

    fn empty_plan(&self) -> Plan {
        let mut plan = Plan::new("k-means round of sparse rows");
        plan.keeps();
        plan.bound(self.x.stored_bytes());
        plan.hold(3 * self.start.len() as u64 * size_of::<T>() as u64);
        plan
    }

    fn lane_regions(&self, plan: &mut Plan) -> Vec<Region> {
        let bytes = 8 * self.shape.len() as u64;
        (0..self.lanes).map(|lane| Region::span(plan.volatile(format!("sums {lane}"), bytes), 0, bytes)).collect()
    }

    /// A task that reads a block; its products go to scratch.
    fn task(&self, plan: &mut Plan, block: usize) -> Task {
        let (_, lines) = self.lines(block);
        let entries: u64 = self.blocks[block].iter().map(Piece::entries).sum();
        let task = Task::new("assign").flops(csrmm_flops(entries as usize, self.shape.clusters));
        let task = task.scratch(lines * self.shape.clusters * size_of::<T>()).held(48 * lines);
        self.blocks[block].iter().flat_map(|piece| self.x.regions(plan, piece)).fold(task, Task::read)
    }

    fn read(&self, block: usize) -> Vec<PieceBlocks> {
        self.blocks[block].iter().map(|piece| self.x.blocks(piece)).collect()
    }

    /// A round that reads all rows; nothing in it but what it moves and holds.
    fn explained(&self) -> Plan {
        let mut plan = self.empty_plan();
        plan.hold(self.state_bytes);
        plan.note("state", format!("{} bytes a row", self.state_bytes / self.x.rows()));
        let lanes = self.lane_regions(&mut plan);
        for block in 0..self.blocks.len() {
            let task = self.task(&mut plan, block);
            plan.task(task.update(lanes[block % self.lanes]));
        }
        plan
    }
}

/// The pieces of a block, one after another.
fn each_piece<'a>(pieces: &'a [PieceBlocks], blocks: &'a [Block]) -> impl Iterator<Item = (&'a PieceBlocks, &'a [Block])> {
    let mut rest = blocks;
    pieces.iter().map(move |piece| {
        let (here, others) = rest.split_at(piece.count());
        rest = others;
        (piece, here)
    })
}

impl<T: Real> Passes<T> for SparseRows<T> {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn rows(&self) -> u64 {
        self.x.rows()
    }

    fn weight(&self, row: u64) -> f64 {
        self.weights.as_ref().map_or(1.0, |weights| weights[row as usize])
    }

    fn shift(&self) -> &[f64] {
        &self.shift
    }

    fn start(&self) -> Vec<T> {
        self.start.clone()
    }

    fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    fn unknown(&self) -> AllKnown<T> {
        Arc::new((0..self.blocks.len()).map(|block| Mutex::new(Known::new(self.lines(block).1, self.bounds))).collect())
    }

    fn pass(
        &self,
        stage: &mut Stage,
        known: &AllKnown<T>,
        centers: &Arc<Centers<T>>,
        moved: Option<&Arc<Moved>>,
        sums: &mut Sums,
        (passes, reached): (u64, f64),
    ) -> Result<(u64, u64)> {
        let mut plan = self.empty_plan();
        let lanes = self.lane_regions(&mut plan);
        let forwards = 0..self.blocks.len();
        let order: Vec<usize> = if passes.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() };
        let settled = |block: &usize| {
            let known = &mut *known[*block].locked();
            moved.is_some_and(|moved| known.loosen(moved) == 0)
        };
        let across = Arc::new(centers.across(self.shape));
        for block in order.into_iter().filter(|block| !settled(block)) {
            let look = Look {
                shape: self.shape,
                centers: Arc::clone(centers),
                across: Arc::clone(&across),
                known: Arc::clone(known),
                weights: self.weights.clone(),
                object: self.x.name().to_owned(),
                first: moved.is_none(),
                first_row: self.lines(block).0,
            };
            let (read, task) = (self.read(block), self.task(&mut plan, block));
            // The same lane in every round, whichever blocks bounds settle.
            plan.task(task.update(lanes[block % self.lanes]).run(move |cx| {
                let (blocks, totals) = cx.blocks.split_at_mut(cx.blocks.len() - 1);
                let totals = &mut Totals::of(totals[0].slice_mut(), look.shape);
                Ok(look.label(block, &read, blocks, numbers::<T>(cx.scratch), totals)?)
            }));
        }
        let outcome = stage.run(plan, reached)?;
        let found = lanes.iter().filter_map(|lane| outcome.result(lane));
        Ok(sums.add(found.map(bytemuck::cast_slice)))
    }

    fn farthest(&self, stage: &mut Stage, known: &AllKnown<T>, centers: &Arc<Centers<T>>, count: usize) -> Result<Vec<Far>> {
        let found: Arc<Found> = Arc::default();
        let mut plan = self.empty_plan();
        plan.hold((count * self.shape.features * 8) as u64);
        for block in 0..self.blocks.len() {
            let (read, first_row, d) = (self.read(block), self.lines(block).0, self.shape.features);
            let (known, centers, found) = (Arc::clone(known), Arc::clone(centers), Arc::clone(&found));
            let task = self.task(&mut plan, block);
            plan.task(task.run(move |cx| {
                let known = known[block].locked();
                for (line, entries) in rows_of::<T>(&read, cx.blocks, known.labels.len())?.into_iter().enumerate() {
                    let label = known.labels[line];
                    let center = &centers.values[label as usize * d..][..d];
                    let dense = || {
                        let mut x = vec![0.0; d];
                        entries.iter().for_each(|&(place, value)| x[place] += value);
                        x
                    };
                    let square: f64 = dense().iter().zip(center).map(|(x, c)| (x - c.f64()).powi(2)).sum();
                    offer(&found, count, first_row + line as u64, label, square.sqrt(), dense);
                }
                Ok(())
            }));
        }
        let reached = stage.fraction();
        stage.run(plan, reached)?;
        Ok(std::mem::take(&mut *found.locked()))
    }
}

/// The entries of each line of a block.
fn rows_of<T: Real>(pieces: &[PieceBlocks], blocks: &[Block], lines: usize) -> Result<Vec<Entries>> {
    let mut rows = vec![Entries::new(); lines];
    for (piece, blocks) in each_piece(pieces, blocks) {
        with_lines!(piece, blocks, T, a => {
            a.each_line(|line, entries| entries.each(|place, value| rows[line].push((place, value.f64()))));
        });
    }
    Ok(rows)
}

/// What a round does with one block.
struct Look<T: Real> {
    shape: Shape,
    centers: Arc<Centers<T>>,
    across: Arc<Vec<T>>,
    known: AllKnown<T>,
    weights: Option<Arc<Vec<f64>>>,
    object: String,
    first: bool,
    first_row: u64,
}

impl<T: Real> Look<T> {
    fn label(
        &self,
        block: usize,
        pieces: &[PieceBlocks],
        blocks: &[Block],
        scores: &mut [T],
        totals: &mut Totals<'_>,
    ) -> Result<()> {
        let known = &mut *self.known[block].locked();
        let (n, k, d) = (known.labels.len(), self.shape.clusters, self.shape.features);
        let mut picked = vec![self.first || !known.has_bounds(); n];
        if !picked.first().copied().unwrap_or(true) {
            known.active(&self.centers.gaps).into_iter().for_each(|row| picked[row as usize] = true);
        }
        let scores = &mut scores[..n * k];
        scores.fill(T::ZERO);
        let (mut squares, mut counts) = (vec![0.0; n], vec![0u32; n]);
        for (piece, blocks) in each_piece(pieces, blocks) {
            with_lines!(piece, blocks, T, a => {
                let some = kernels::Picked::new(a, &picked);
                kernels::csrmm(view_mut(scores, n, k, k, 1)?, T::ONE, some, view(&self.across, d, k, k, 1)?, 0, T::ONE)?;
                some.each_line(|line, entries| {
                    counts[line] += entries.len() as u32;
                    entries.each(|_, value| squares[line] += value.f64() * value.f64());
                });
            });
        }
        let mut changes: Vec<Option<(Option<u32>, u32)>> = vec![None; n];
        for (line, scores) in scores.chunks_exact(k).enumerate().filter(|(line, _)| picked[*line]) {
            let (mut label, mut first, mut second) = (0, f64::INFINITY, f64::INFINITY);
            for (cluster, (score, square)) in scores.iter().zip(&self.centers.squares).enumerate() {
                let value = square.f64() - 2.0 * score.f64();
                if value < first {
                    (label, first, second) = (cluster as u32, value, first);
                } else {
                    second = second.min(value);
                }
            }
            let (square, before) = (squares[line], known.labels[line]);
            if !(square + first).is_finite() {
                return Err(self.locate(pieces, blocks, line, n)?);
            }
            let error = (f64::from(counts[line]) + 8.0) * T::EPSILON.f64() * (square.sqrt() + self.centers.reach).powi(2);
            known.keep(line, label, square + first, square + second, error, 0.0);
            if before != label || self.first {
                changes[line] = Some(((!self.first).then_some(before), label));
            }
        }
        totals.looked(picked.iter().filter(|picked| **picked).count());
        let changed: Vec<bool> = changes.iter().map(Option::is_some).collect();
        let mut rows = vec![Entries::new(); n];
        for (piece, blocks) in each_piece(pieces, blocks) {
            with_lines!(piece, blocks, T, a => kernels::Picked::new(a, &changed).each_line(|line, entries| {
                entries.each(|place, value| rows[line].push((place, value.f64())));
            }));
        }
        for (line, change) in changes.into_iter().enumerate() {
            let Some((from, to)) = change else { continue };
            let weight = self.weights.as_ref().map_or(1.0, |weights| weights[self.first_row as usize + line]);
            totals.moved_sparse(&rows[line], weight, from, to);
            if self.first {
                totals.seen_sparse(&rows[line], weight, squares[line]);
            }
        }
        Ok(())
    }

    /// Which entry of a row is not finite.
    fn locate(&self, pieces: &[PieceBlocks], blocks: &[Block], line: usize, lines: usize) -> Result<Error> {
        let rows = rows_of::<T>(pieces, blocks, lines)?;
        let found = rows[line].iter().find(|(_, value)| !value.is_finite());
        Ok(match found {
            Some(&(place, _)) => {
                Error::NotFinite { object: self.object.clone(), row: self.first_row + line as u64, column: place as u64 }
            }
            None => Error::Failed { what: format!("{}: a squared distance overflows the element type", self.object) },
        })
    }
}
