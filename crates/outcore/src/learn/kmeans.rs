//! k-means by Lloyd's algorithm, one pass over the rows a round, and as few bytes a pass as keep the labels right.
//!
//! X is n x d, k centres. A round gives each row the label of its nearest centre (the lowest among equals), then puts each centre in the
//! mean of its rows. Three things make a round cheap:
//!
//! - *Bounds* (Hamerly, 2010; a row that they settle is neither looked at nor, where its neighbours are settled too, read, as in knor,
//!   Mhembere et al., HPDC 2017): 8 bytes a row of memory, left out where there is none. See `block.rs`.
//! - *Sums by difference*, in f64: a row is added to a cluster's sum, and taken off another's, only when its label changes.
//! - *A copy in fewer bits*. In the first rounds nearly all rows are looked at whatever the bounds, so that where X is larger than memory
//!   a round takes as long as the bytes of a row. The first round reads X itself, and writes each block of it to scratch with 18 bits an
//!   element instead of 32 (32 instead of 64), which later rounds read: `kernels::packed`. A column of a block is then off by at most
//!   2^-18 (2^-32) of its range there, 2^-15 of its deviation for normal data. Rows that lie so near to the border between two clusters
//!   that this could matter, few in most data, are read from X once more, so that labels are those of X. Sums are those of X
//!   as it was labelled first, plus the copies of the rows that changed later: off at random, in a mean over n rows by some
//!   2^-16 / sqrt(n) of the deviation. Whole numbers of at most 18 bits, such as the bytes of images, are copied exactly. A block where packing
//!   would move rows by more than 2^-12 of the distance to their centre (outliers in it) is read from X instead.
//!
//! Rows are cut into blocks, and blocks into lanes, whose sums are added in order, by the budget and the shape alone: the bits do not
//! depend on the number of threads, nor on who else has memory. Odd rounds go backwards, so that they begin with what is still in memory.
//!
//! Cost: 2ndk flops a round at most; reads X once and then 9/16 (1/2) of it a round at most, or X each round if `max_iter` is below 3 or it
//! fits; 4 to 12 bytes of memory a row, and 16 (k + 1)(d + 2) for each of at most 8 lanes.

mod block;
mod centers;
mod distances;
mod drive;
mod farthest;
mod rows;
mod source;
mod sparse;
mod totals;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{ExtentRef, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{PackedCenters, Real, packed_row_bytes};

use self::block::{BOUND_BYTES, Known, LABEL_BYTES, Pass, Wanted, part_rows};
use self::centers::{Centers, Moved};
use self::drive::{AllKnown, Passes};
use self::farthest::Far;
use self::source::{Packed, Piece};
use self::totals::{Shape, Sums};
use crate::data::array::{Array, Operand, panels};
use crate::data::format::with_real;
use crate::data::format::{DType, Order};
use crate::error::{Error, Result};
use crate::job::{Job, Stage};
use crate::session::{PLAN_THREADS, Session};

pub use self::distances::distances;
pub use self::rows::take_rows;
pub use self::sparse::{assign_sparse, fit_sparse, sparse_distances, take_sparse_rows};

/// When to stop, and what rows count for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds at most.
    pub max_iter: u64,
    /// Stop when the squared distances that centres move add up to at most this part of the mean variance of the columns.
    pub tol: f64,
    /// A weight a row, none negative; `None` for 1.
    pub weights: Option<Vec<f64>>,
}

/// What `fit` finds.
#[derive(Clone, Debug, PartialEq)]
pub struct KMeans {
    /// Centres in rows, k x d.
    pub centers: Vec<f64>,
    /// The number of the nearest centre of each row, n; empty after an interrupt.
    pub labels: Vec<u32>,
    /// Weighted sum of the squared distances of rows to their centres.
    pub inertia: f64,
    /// Rounds that were carried out.
    pub rounds: u64,
    /// The centres are those of the last whole round before the job was cancelled.
    pub interrupted: bool,
    /// Part of the rows, over all passes, that was compared with all centres.
    pub looked: f64,
}

/// What [`assign`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    /// The number of the nearest centre of each row, n.
    pub labels: Vec<u32>,
    /// The distance to it, rounded up, n.
    pub distances: Vec<f32>,
    /// Weighted sum of the squared distances.
    pub inertia: f64,
}

/// Moves centres to the means of the rows that are nearest to them, from the k x d of `start` on.
///
/// A cluster that loses its last row gets that which is farthest from its centre, as in scikit-learn. A job that is cancelled after the
/// first round ends with the centres of the last one.
///
/// # Errors
/// [`Error::Shape`], [`Error::Value`] for fewer rows than centres; [`Error::NotFinite`] for NaN or infinity; [`Error::OverBudget`].
pub fn fit(session: &Session, x: Operand, start: Vec<f64>, options: Options) -> Result<Job<KMeans>> {
    let (n, d) = (x.rows(), x.cols());
    if options.max_iter == 0 || options.tol.is_nan() || options.tol < 0.0 {
        return Err(Error::value(format!(
            "max_iter={} must be 1 at least, and tol={} no less than 0",
            options.max_iter, options.tol
        )));
    }
    if d > 0 && n < start.len() as u64 / d {
        return Err(Error::value(format!("{} clusters of {}, which has {n} rows", start.len() as u64 / d, x.name())));
    }
    with_real!(x.dtype(), T => Lloyd::<T>::new(session, x, &start, options.weights, options.max_iter > 2, true)?.fit(options.max_iter, options.tol))
}

/// Finds the nearest of some centres, k x d, for each row.
///
/// Cost: reads x once, 2ndk flops, 12 bytes of memory a row besides what is returned.
///
/// # Errors
/// As [`fit`].
pub fn assign(session: &Session, x: Operand, centers: Vec<f64>, weights: Option<Vec<f64>>) -> Result<Job<Assigned>> {
    with_real!(x.dtype(), T => Lloyd::<T>::new(session, x, &centers, weights, false, true)?.assign())
}

/// The most rows of a block: 1 MiB of 64 f32, one request.
const BLOCK_ROWS: u64 = 4096;
/// A gap between rows to read that is shorter is read too: a request takes as long as this many bytes.
const GAP_BYTES: u64 = 16 << 10;
/// The most pieces that a block is read in.
const PIECES_MAX: usize = 32;

/// A fit as it is planned.
struct Lloyd<T> {
    session: Session,
    x: Operand,
    shape: Shape,
    weights: Option<Arc<Vec<f64>>>,
    shift: Arc<Vec<f64>>,
    start: Vec<T>,
    blocks: Vec<Range<u64>>,
    lanes: usize,
    bounds: bool,
    state_bytes: u64,
    /// Where the copy goes.
    copy: Option<Array>,
    element: PhantomData<T>,
}

impl<T: Real> Lloyd<T> {
    fn new(
        session: &Session,
        x: Operand,
        start: &[f64],
        weights: Option<Vec<f64>>,
        copied: bool,
        bounds: bool,
    ) -> Result<Lloyd<T>> {
        let (n, d, element) = (x.rows(), x.cols(), size_of::<T>() as u64);
        if n == 0 || d == 0 || start.is_empty() || !start.len().is_multiple_of(d as usize) {
            let (name, length) = (x.name(), start.len());
            return Err(Error::shape(format!("k-means of {name}, {n} x {d}, with centres of {length} elements")));
        }
        if weights.as_ref().is_some_and(|weights| weights.len() as u64 != n) {
            return Err(Error::shape(format!("{} has {n} rows, there is another number of weights", x.name())));
        }
        let shape = Shape { clusters: start.len() / d as usize, features: d as usize };
        let memory = session.memory_bytes();
        let block_rows = (memory / 96 / (d * element)).clamp(1, BLOCK_ROWS).min(n.div_ceil(PLAN_THREADS).max(256));
        let blocks = panels(n, 1, block_rows);
        // How a block was packed is known as long as the copy is; where that takes too much, X is read each time.
        let packings = blocks.len() as u64 * 3 * d * element;
        let copied = copied && x.is_stored() && packings <= memory / 8;
        let rows_known = n * (LABEL_BYTES + if weights.is_some() { 8 } else { 0 });
        let fixed = rows_known + blocks.len() as u64 * 256 + if copied { packings } else { 0 };
        let bounded = fixed + n * BOUND_BYTES;
        let left = memory.saturating_sub(if bounds && bounded <= memory / 2 { bounded } else { fixed });
        let lane_bytes = 8 * shape.len() as u64;
        let lanes = (left / 4 / lane_bytes).clamp(1, PLAN_THREADS) as usize;
        // Bounds change no bit.
        let room = session.memory_free().saturating_sub(lanes as u64 * lane_bytes + memory / 16);
        let bounds = bounds && bounded <= room.min(memory / 2);
        let state_bytes = if bounds { bounded } else { fixed };
        let shift: Vec<f64> = (0..shape.features)
            .map(|j| start.iter().skip(j).step_by(shape.features).sum::<f64>() / shape.clusters as f64)
            .collect();
        if shift.iter().any(|mean| !mean.is_finite()) {
            return Err(Error::value("the centres to start from are not all finite"));
        }
        let centered = start.iter().zip(shift.iter().cycle()).map(|(center, shift)| T::of(center - shift)).collect();
        let mut lloyd = Lloyd {
            session: session.clone(),
            shape,
            weights: weights.map(Arc::new),
            shift: Arc::new(shift),
            start: centered,
            blocks,
            lanes,
            bounds,
            state_bytes,
            copy: None,
            element: PhantomData,
            x,
        };
        if copied && lloyd.x.bytes() > left / 4 * 3 {
            // So it is without room in scratch.
            lloyd.copy = session.temporary(DType::F32, &[lloyd.copy_offset(lloyd.blocks.len()) / 4], Order::Row).ok();
        }
        Ok(lloyd)
    }

    fn fit(self, max_iter: u64, tol: f64) -> Result<Job<KMeans>> {
        let session = self.session.clone();
        let plans = self.explained()?;
        Job::driven(&session, plans, move |stage, _| drive::fit(&self, stage, max_iter, tol))
    }

    fn assign(self) -> Result<Job<Assigned>> {
        let session = self.session.clone();
        let plans = self.explained()?;
        Job::driven(&session, plans, move |stage, _| drive::assign(&self, stage))
    }

    /// Where a block of the copy begins.
    fn copy_offset(&self, block: usize) -> u64 {
        let rows = self.blocks[0].end - self.blocks[0].start;
        block as u64 * (rows * packed_row_bytes::<T>(self.shape.features) as u64).next_multiple_of(4096)
    }

    fn copy_region(&self, extent: ExtentRef, block: usize, rows: Range<usize>) -> Region {
        let width = packed_row_bytes::<T>(self.shape.features) as u64;
        Region::span(extent, self.copy_offset(block) + rows.start as u64 * width, rows.len() as u64 * width)
    }

    fn dense_piece(&self, extent: ExtentRef, block: usize, rows: Range<usize>) -> Piece<T> {
        let first = self.blocks[block].start;
        let global = first + rows.start as u64..first + rows.end as u64;
        let tile = self.x.layout().tile(extent, global, 0..self.shape.features as u64, size_of::<T>() as u64);
        Piece::dense(rows, tile)
    }

    /// The first round, and any further one in which all rows are read; nothing in them but what they move and hold.
    fn explained(&self) -> Result<Vec<Plan>> {
        let mut plans = Vec::new();
        for first in [true, false].into_iter().take(if self.copy.is_some() { 2 } else { 1 }) {
            let mut plan = self.empty_plan(first);
            plan.hold(self.state_bytes);
            plan.note("state", format!("{} bytes a row", self.state_bytes / self.x.rows()));
            plan.note(
                "copy",
                match &self.copy {
                    Some(copy) => format!("{:.1} MiB in scratch", copy.nbytes() as f64 / (1 << 20) as f64),
                    None => "none".into(),
                },
            );
            let x = self.x.extent(&mut plan);
            let lanes = self.lane_regions(&mut plan);
            let copy = self.copy.as_ref().map(|copy| plan.extent(copy.extent()));
            for (block, rows) in self.blocks.iter().enumerate() {
                let count = (rows.end - rows.start) as usize;
                let task = self.task(count);
                let dense = self.dense_piece(x, block, 0..count).region();
                let task = match (first, copy) {
                    (true, Some(copy)) => task.read(dense).write(self.copy_region(copy, block, 0..count)),
                    (false, Some(copy)) => task.read(self.copy_region(copy, block, 0..count)),
                    (_, None) => task.read(dense),
                };
                plan.task(task.update(lanes[block % self.lanes]));
            }
            plans.push(plan);
        }
        Ok(plans)
    }

    fn empty_plan(&self, first: bool) -> Plan {
        let mut plan = Plan::new(if first { "k-means first round" } else { "k-means round" });
        plan.bound(if self.x.is_stored() { self.x.bytes() } else { 0 });
        plan.keeps();
        let (k, d) = (self.shape.clusters as u64, self.shape.features as u64);
        // Centres of two rounds and their squares, and packed ones, of which there are up to seven more.
        plan.hold((2 * k * (d + 1) + (k + 7) * (d + 1)) * size_of::<T>() as u64);
        plan
    }

    fn lane_regions(&self, plan: &mut Plan) -> Vec<Region> {
        let bytes = 8 * self.shape.len() as u64;
        (0..self.lanes).map(|lane| Region::span(plan.volatile(format!("sums {lane}"), bytes), 0, bytes)).collect()
    }

    fn task(&self, rows: usize) -> Task {
        let (k, d) = (self.shape.clusters, self.shape.features);
        let part = part_rows::<T>(d);
        let packing = if self.copy.is_some() { kernels::packing_held_bytes::<T>(d) } else { 0 };
        let held = kernels::nearest_held_bytes::<T>(part, d, k, self.session.blas()).max(packing) + 32 * part + 4 * rows;
        Task::new("assign").flops(kernels::nearest_flops(rows, d, k)).scratch(Pass::<T>::scratch_bytes(self.shape)).held(held)
    }

    /// One pass over the rows that have to be looked at. `reached` is the number of passes before, and the part of the job that is done
    /// after this one. How many labels have changed, and how many rows were looked at.
    fn look_at_all(
        &self,
        stage: &mut Stage,
        known: &Arc<Vec<Mutex<Known<T>>>>,
        centers: &Arc<Centers<T>>,
        moved: Option<&Arc<Moved>>,
        sums: &mut Sums,
        (passes, reached): (u64, f64),
    ) -> Result<(u64, u64)> {
        let pass = Arc::new(Pass {
            shape: self.shape,
            centers: Arc::clone(centers),
            packed: PackedCenters::new(&centers.values, &centers.squares)?,
            shift: Arc::clone(&self.shift),
            known: Arc::clone(known),
            weights: self.weights.clone(),
            blas: self.session.blas().clone(),
            object: self.x.name().to_owned(),
            moved: moved.cloned(),
        });
        let forwards = 0..self.blocks.len();
        let order: Vec<usize> = if passes.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() };
        let settle = |block: usize| {
            let known = &mut *known[block].locked();
            // Where most rows had to be looked at before, that is found out when they are there, by all threads at once.
            let loosened = moved.filter(|_| !known.are_most_active());
            let active = loosened.map_or(known.labels.len(), |moved| known.loosen(moved));
            let runs = match loosened.filter(|_| active < known.labels.len() && self.x.is_stored()) {
                Some(moved) => self.runs(known, active, || known.active(&moved.gaps)),
                // In memory, or all of them.
                None => (active > 0).then_some(0..known.labels.len()).into_iter().collect(),
            };
            let wanted = if loosened.is_some() { Wanted::Active } else { Wanted::ActiveWhenLoosened };
            Todo { block, runs, packed: known.packing.clone(), wanted }
        };
        let (changed, looked) = self.look(stage, &pass, order.into_iter().map(settle), sums, reached)?;
        let unsure = known.iter().enumerate().filter_map(|(block, known)| {
            let known = &mut *known.locked();
            let rows = std::mem::take(&mut known.unsure);
            let runs = self.runs(known, rows.len(), || rows.clone());
            (!rows.is_empty()).then_some(Todo { block, runs, packed: None, wanted: Wanted::These(rows) })
        });
        let mut unsure = unsure.peekable();
        if unsure.peek().is_none() {
            return Ok((changed, looked));
        }
        let (more, _) = self.look(stage, &pass, unsure, sums, reached)?;
        Ok((changed + more, looked))
    }

    /// A run over some blocks.
    fn look(
        &self,
        stage: &mut Stage,
        pass: &Arc<Pass<T>>,
        todo: impl Iterator<Item = Todo<T>>,
        sums: &mut Sums,
        reached: f64,
    ) -> Result<(u64, u64)> {
        let mut plan = self.empty_plan(pass.is_first());
        let x = self.x.extent(&mut plan);
        let lanes = self.lane_regions(&mut plan);
        let copy = self.copy.as_ref().map(|copy| plan.extent(copy.extent()));
        for Todo { block, runs, packed, wanted } in todo.filter(|todo| !todo.runs.is_empty()) {
            let rows: usize = runs.iter().map(Range::len).sum();
            let piece = |rows: Range<usize>| match packed.as_ref().zip(copy) {
                Some((packed, copy)) => Piece::packed(rows.clone(), self.copy_region(copy, block, rows), Arc::clone(packed)),
                None => self.dense_piece(x, block, rows),
            };
            let pieces: Vec<Piece<T>> = runs.into_iter().map(piece).collect();
            let task = pieces.iter().fold(self.task(rows), |task, piece| task.read(piece.region()));
            let task = match copy {
                Some(copy) if pass.is_first() => task.write(self.copy_region(copy, block, 0..rows)),
                _ => task,
            };
            let (pass, first_row) = (Arc::clone(pass), self.blocks[block].start);
            // The same lane in every round, whichever blocks bounds settle.
            let task = task.update(lanes[block % self.lanes]);
            plan.task(task.run(move |cx| Ok(pass.look(block, first_row, &pieces, wanted, cx)?)));
        }
        let outcome = stage.run(plan, reached)?;
        let found = lanes.iter().filter_map(|lane| outcome.result(lane));
        Ok(sums.add(found.map(bytemuck::cast_slice)))
    }

    /// What has to be read for some rows of a block: runs of them, where gaps save a request's worth of bytes, else all.
    fn runs(&self, known: &Known<T>, count: usize, rows: impl FnOnce() -> Vec<u32>) -> Vec<Range<usize>> {
        let all = known.labels.len();
        let width = match known.packing {
            Some(_) => packed_row_bytes::<T>(self.shape.features),
            None => self.shape.features * size_of::<T>(),
        };
        let gap = (GAP_BYTES as usize / width).max(1);
        if count > PIECES_MAX && count * gap > all {
            return std::iter::once(0..all).collect();
        }
        let mut runs: Vec<Range<usize>> = Vec::new();
        for row in rows() {
            match runs.last_mut() {
                Some(run) if row as usize <= run.end + gap => run.end = row as usize + 1,
                _ => runs.push(row as usize..row as usize + 1),
            }
        }
        if runs.len() > PIECES_MAX { std::iter::once(0..all).collect() } else { runs }
    }
}

/// What a run has to do with a block.
struct Todo<T> {
    block: usize,
    /// Rows to read.
    runs: Vec<Range<usize>>,
    /// From the copy, if it is packed.
    packed: Option<Arc<Packed<T>>>,
    wanted: Wanted,
}

impl<T: Real> Passes<T> for Lloyd<T> {
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
        Arc::new(self.blocks.iter().map(|rows| Mutex::new(Known::new((rows.end - rows.start) as usize, self.bounds))).collect())
    }

    fn pass(
        &self,
        stage: &mut Stage,
        known: &AllKnown<T>,
        centers: &Arc<Centers<T>>,
        moved: Option<&Arc<Moved>>,
        sums: &mut Sums,
        place: (u64, f64),
    ) -> Result<(u64, u64)> {
        self.look_at_all(stage, known, centers, moved, sums, place)
    }

    fn farthest(&self, stage: &mut Stage, known: &AllKnown<T>, centers: &Arc<Centers<T>>, count: usize) -> Result<Vec<Far>> {
        self.look_for_farthest(stage, known, centers, count)
    }
}

#[cfg(test)]
mod tests {
    use outcore_device::Buf;

    use super::*;
    use crate::session::Settings;

    /// Rows around `clouds` middles, between which they overlap; numbers by a recurrence.
    fn rows(n: usize, d: usize, clouds: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let middles: Vec<f32> = (0..clouds * d).map(|_| 1.5 * next()).collect();
        (0..n * d).map(|at| middles[at / d * 7 % clouds * d + at % d] + next()).collect()
    }

    fn operand(x: &[f32], d: usize) -> Operand {
        let mut bytes = Buf::anonymous(size_of_val(x)).unwrap();
        bytes[..size_of_val(x)].copy_from_slice(bytemuck::cast_slice(x));
        let (rows, cols) = ((x.len() / d) as u64, d as u64);
        Operand::Memory { bytes: bytes.freeze(), dtype: DType::F32, rows, cols, row_stride: cols, col_stride: 1 }
    }

    #[test]
    fn bounds_change_nothing_but_the_work() {
        for (n, d, k) in [(1, 1, 1), (700, 3, 2), (20_000, 12, 40)] {
            let x = rows(n, d, 13);
            let start: Vec<f64> = x[..k * d].iter().map(|&x| f64::from(x)).collect();
            let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() }).unwrap();
            let run = |bounds| {
                let lloyd = Lloyd::<f32>::new(&session, operand(&x, d), &start, None, false, bounds).unwrap();
                lloyd.fit(60, 0.0).unwrap().run().unwrap()
            };
            let (pruned, plain) = (run(true), run(false));
            assert_eq!((&pruned.labels, pruned.rounds), (&plain.labels, plain.rounds));
            assert_eq!(pruned.centers, plain.centers);
            assert!(plain.looked == 1.0 && (n < 20_000 || pruned.looked < 0.7), "{}", pruned.looked);
        }
    }
}
