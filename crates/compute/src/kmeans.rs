//! k-means by Lloyd's algorithm, one pass over the rows a round, and as few bytes a pass as keep
//! the labels right.
//!
//! X is n x d, k centres. A round gives each row the label of its nearest centre (the lowest among
//! equals), then puts each centre in the mean of its rows. Three things make a round cheap:
//!
//! - *Bounds* (Hamerly, 2010; a row that they settle is neither looked at nor, where its neighbours
//!   are settled too, read, as in knor, Mhembere et al., HPDC 2017): 8 bytes a row of memory, left
//!   out where there is none. See `block.rs`.
//! - *Sums by difference*, in f64: a row is added to a cluster's sum, and taken off another's, only
//!   when its label changes.
//! - *A copy in fewer bits*. In the first rounds nearly all rows are looked at whatever the bounds,
//!   so that where X is larger than memory a round takes as long as the bytes of a row. The first
//!   round reads X itself, and writes each block of it to scratch with 18 bits an element instead
//!   of 32 (32 instead of 64), which later rounds read: `kernels::packed`. A column of a block is
//!   then off by at most 2^-18 (2^-32) of its range there, 2^-15 of its deviation for normal data.
//!   Rows that lie so near to the border between two clusters that this could matter, few in most
//!   data, are read from X once more, so that labels are those of X. Sums are those of X as it was
//!   labelled first, plus the copies of the rows that changed later: off at random, in a mean over
//!   n rows by some 2^-16 / sqrt(n) of the deviation. Whole numbers of at most 18 bits, such as the
//!   bytes of images, are copied exactly. A block where packing would move rows by more than 2^-12
//!   of the distance to their centre (outliers in it) is read from X instead.
//!
//! Rows are cut into blocks, and blocks into lanes, whose sums are added in order, by the budget
//! and the shape alone: the bits do not depend on the number of threads, nor on memory that
//! others have reserved. Odd rounds go backwards, so that they begin with what is still in memory.
//!
//! Cost: 2ndk flops a round at most; reads X once and then 9/16 (1/2) of it a round at most, or X
//! each round if `max_iter` is below 3 or it fits; 4 to 12 bytes of memory a row, and 8 (k + 1)(d
//! + 2) once and for each of at most 8 lanes, and as much for centres.

mod along;
mod block;
mod centers;
mod dense;
mod distances;
mod drive;
mod farthest;
mod piece;
mod rows;
mod sparse;
mod totals;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage, Team, with_real};
use outcore_engine::{Plan, Task};
use outcore_kernels::Real;
use outcore_matrix::Sparse;

use self::along::Along;
use self::block::{LABEL_BYTES, RowStates};
use self::centers::{Centers, Moved};
use self::drive::AllStates;
use self::farthest::Far;
use self::totals::{Shape, Sums};
use crate::pass::{Lanes, Rows};
use crate::ranks::{AllRows, heard, told};

pub use self::distances::distances;
pub use self::rows::take_rows;

/// When to stop, and what rows count for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds at most.
    pub max_iter: u64,
    /// Stop when the squared distances that centres move add up to at most this part of the mean
    /// variance of the columns.
    pub tol: f64,
    /// A weight a row, none negative; `None` for 1.
    pub weights: Option<Vec<f64>>,
}

/// What is known of the columns of sparse rows.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// The value of all entries of each column, where these are alike: their places alone are read.
    pub values: Option<Vec<f64>>,
    /// Orthonormal columns, d x r, row after row: rows are clustered as they are along these.
    pub along: Option<Vec<f64>>,
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
    pub compared_fraction: f64,
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
/// A cluster that loses its last row gets that which is farthest from its centre, as in
/// scikit-learn. A job that is cancelled after the first round ends with the centres of the last
/// one.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::kmeans::{Options, fit};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = Options { max_iter: 10, tol: 0.0, weights: None };
/// let found = fit(&session, x.into(), &[1.0, 2.0, 6.0, 6.0], options)?.run()?;
/// assert_eq!(found.labels, [0, 0, 1]);
/// assert_eq!(found.centers, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::Value`] for fewer rows than centres, or rows in CSC;
/// [`Error::NotFinite`] for NaN or infinity; [`Error::OverBudget`].
pub fn fit(session: &Session, x: Rows, start: &[f64], options: Options) -> Result<Job<KMeans>> {
    check(&x, x.count(), start.len(), x.width(), &options)?;
    plan(session, x, start, options, None)
}

/// The same of sparse rows that may be clustered along some vectors only, and may have values that
/// are alike in each column. Rows along the vectors, V^T x, are not made: |V^T x - V^T c| is told
/// by the products of x with c, for centres in the space of V, to which means are projected.
///
/// `start`, and what is found, are k x d; along vectors `start` is k x r, numbers of these. The
/// inertia is that of rows along the vectors, `tol` goes by the variance of all of x.
///
/// Cost: as [`fit`] of the places alone, where values are known; 4dr bytes (8dr) and 2dr flops a
/// centre each round, and 4 bytes a row, for r vectors.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::kmeans::{Columns, Options, fit_columns};
///
/// // a = [[1, 0, 2], [0, 3, 0]], of which the second column alone is looked at
/// let known = Columns { values: Some(vec![1.0, 3.0, 2.0]), along: Some(vec![0.0, 1.0, 0.0]) };
/// let options = Options { max_iter: 10, tol: 0.0, weights: None };
/// let found = fit_columns(&session, &a, &[0.0, 1.0], options, known)?.run()?;
/// assert_eq!(found.centers, [0.0, 0.0, 0.0, 0.0, 3.0, 0.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit`].
pub fn fit_columns(
    session: &Session,
    x: &Sparse,
    start: &[f64],
    options: Options,
    columns: Columns,
) -> Result<Job<KMeans>> {
    let d = x.cols() as usize;
    if columns
        .values
        .as_ref()
        .is_some_and(|values| values.len() != d)
    {
        return Err(Error::shape(format!(
            "{} has {d} columns, there is another number of values",
            x.name()
        )));
    }
    let Options {
        max_iter,
        tol,
        weights,
    } = options.clone();
    with_real!(x.real(), T => {
        let along = columns.along.map(|along| Along::<T>::new(along, d, session)).transpose()?;
        let width = along.as_ref().map_or(d, |along| along.width);
        check(&Rows::from(x), x.rows(), start.len(), width as u64, &options)?;
        Lloyd::<T, _>::sparse(session, x.clone(), start, weights, columns.values, along)?.fit(max_iter, tol)
    })
}

/// The same of the rows of all ranks: labels are those of the rank's own rows, all else is the same
/// on each. Rank 0 says where centres begin. A collective call: every rank makes it, and runs the
/// job. A rank may have no rows.
///
/// Cost: as [`fit`] of the rank's own rows; 16 (k + 1)(d + 2) bytes a rank sent each round. A rank
/// whose job is cancelled ends with the centres of the last round, all others with an error.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::kmeans::{Options, fit_over};
/// use outcore_core::{Team, ThreadRanks};
/// use std::sync::Arc;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let alone = Team::new(Arc::new(ThreadRanks::new(1).remove(0)));
/// let options = Options { max_iter: 10, tol: 0.0, weights: None };
/// let found = fit_over(&session, x.into(), &[1.0, 2.0, 6.0, 6.0], options, &alone)?.run()?;
/// assert_eq!(found.centers, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit`], of any rank; [`Error::Shape`], [`Error::DType`] and [`Error::Value`] for ranks whose
/// rows or parameters do not fit together.
pub fn fit_over(
    session: &Session,
    x: Rows,
    start: &[f64],
    options: Options,
    team: &Team,
) -> Result<Job<KMeans>> {
    let asked = format!(
        "{} elements of centres, max_iter={} and tol={}",
        start.len(),
        options.max_iter,
        options.tol
    );
    let all = AllRows::of(team, [x.count(), x.width()], x.real(), &asked)?;
    team.alike(check(&x, all.count, start.len(), x.width(), &options))?;
    let start = heard(&team.broadcast(Ok(told(start)))?);
    let over = Over {
        team: team.clone(),
        all,
    };
    team.agree(plan(session, x, &start, options, Some(over)))
}

/// The ranks whose rows are clustered together.
struct Over {
    team: Team,
    all: AllRows,
}

/// Of n rows, and numbers of centres of some width.
fn check(x: &Rows, n: u64, numbers: usize, width: u64, options: &Options) -> Result<()> {
    let Options { max_iter, tol, .. } = *options;
    if max_iter == 0 || tol.is_nan() || tol < 0.0 {
        return Err(Error::value(format!(
            "max_iter={max_iter} must be 1 at least, and tol={tol} no less than 0"
        )));
    }
    if width > 0 && n < numbers as u64 / width {
        return Err(Error::value(format!(
            "{} clusters of {}, which has {n} rows",
            numbers as u64 / width,
            x.name()
        )));
    }
    if n == 0 {
        let d = x.width();
        return Err(Error::shape(format!("k-means of {}, {n} x {d}", x.name())));
    }
    Ok(())
}

fn plan(
    session: &Session,
    x: Rows,
    start: &[f64],
    options: Options,
    over: Option<Over>,
) -> Result<Job<KMeans>> {
    let Options {
        max_iter,
        tol,
        weights,
    } = options;
    with_real!(x.real()?, T => match x {
        Rows::Dense(x) => Lloyd::<T, _>::dense(session, x, start, weights, max_iter > 2, true)?.over(over).fit(max_iter, tol),
        Rows::Sparse(x) => Lloyd::<T, _>::sparse(session, x, start, weights, None, None)?.over(over).fit(max_iter, tol),
    })
}

/// Finds the nearest of some centres, k x d, for each row.
///
/// Cost: reads x once, 2ndk flops, 12 bytes of memory a row besides what is returned.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::kmeans::assign;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let found = assign(&session, x.into(), &[1.0, 2.0, 5.0, 5.0], None)?.run()?;
/// assert_eq!(found.labels, [0, 1, 1]);
/// assert!((found.distances[1] - 5f32.sqrt()).abs() < 1e-4);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`fit`].
pub fn assign(
    session: &Session,
    x: Rows,
    centers: &[f64],
    weights: Option<Vec<f64>>,
) -> Result<Job<Assigned>> {
    if x.count() == 0 {
        return Err(Error::shape(format!(
            "nearest centres of {}, which has no rows",
            x.name()
        )));
    }
    with_real!(x.real()?, T => match x {
        Rows::Dense(x) => Lloyd::<T, _>::dense(session, x, centers, weights, false, true)?.assign(),
        Rows::Sparse(x) => Lloyd::<T, _>::sparse(session, x, centers, weights, None, None)?.assign(),
    })
}

/// A fit as it is planned; how rows are read and compared is its source's.
struct Lloyd<T, S> {
    session: Session,
    /// What errors call the rows.
    name: String,
    shape: Shape,
    weights: Weights,
    /// Taken off all rows and centres.
    shift: Arc<Vec<f64>>,
    /// The space that centres stay in, along which rows are clustered; `None` for all of theirs.
    along: Option<Along<T>>,
    /// Centres to start from, less the shift, or their numbers along the space; those of the first round, once it begins.
    start: Vec<T>,
    /// Rows of each block.
    blocks: Vec<Range<u64>>,
    division: Division,
    /// The ranks that have other rows.
    over: Option<Over>,
    source: S,
}

/// A weight a row, or 1 for all.
#[derive(Clone)]
struct Weights(Option<Arc<Vec<f64>>>);

impl Weights {
    fn of(&self, row: u64) -> f64 {
        self.0.as_ref().map_or(1.0, |weights| weights[row as usize])
    }
}

/// What a pass over the rows starts from and adds to.
struct Round<'a, T> {
    states: &'a AllStates<T>,
    centers: &'a Arc<Centers<T>>,
    /// What has become of the centres since the pass before; `None` while nothing is known of the
    /// rows.
    moved: Option<&'a Arc<Moved>>,
    sums: &'a mut Sums,
    /// The number of passes before.
    passes: u64,
    /// The part of the job that is done after this one.
    reached: f64,
}

/// A plan whose tasks add what they find to the sums.
struct SumsPlan {
    plan: Plan,
    lanes: Lanes,
}

impl SumsPlan {
    /// A block adds to the same lane in every round, whichever blocks bounds settle.
    fn task(&mut self, block: usize, task: Task) {
        self.plan.task(self.lanes.add_to_zeros(block, task));
    }

    /// How many labels have changed, and how many rows were compared with all centres.
    fn run(self, stage: &mut Stage, sums: &mut Sums, reached: f64) -> Result<(u64, u64)> {
        let outcome = stage.run(self.plan, reached)?;
        Ok(sums.add(self.lanes.results(&outcome)))
    }
}

/// Dense or sparse rows, block by block.
trait Source<T: Real>: Sized + Send + Sync + 'static {
    /// What the job shows of itself: rounds that read all rows, with nothing in them but what they
    /// move and hold.
    fn explained(lloyd: &Lloyd<T, Self>) -> Vec<Plan>;

    /// One pass over the rows that bounds do not settle. How many labels have changed, and how
    /// many rows were compared with all centres.
    fn assign_pass(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        round: Round<'_, T>,
    ) -> Result<(u64, u64)>;

    /// The `count` rows farthest from their centres, fewer where others lie in theirs.
    fn farthest(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        states: &AllStates<T>,
        centers: &Arc<Centers<T>>,
        count: usize,
    ) -> Result<Vec<Far>>;
}

/// How a fit divides memory.
struct Division {
    split: MemorySplit,
    bounds: bool,
    state_bytes: u64,
}

impl Division {
    /// `fixed_bytes` are held whatever is known of rows, and so are the sums of all lanes. Bounds, of some bytes a row, are left out
    /// where they have no room; they change no bit, so that memory which others have counts too.
    fn new(
        split: MemorySplit,
        shape: Shape,
        n: u64,
        fixed_bytes: u64,
        bounds: Option<u64>,
    ) -> Division {
        let lane_bytes = 8 * shape.len() as u64;
        let split = split.hold(lane_bytes);
        let bounded_bytes = fixed_bytes + n * bounds.unwrap_or(0);
        let bounded = split.hold(bounded_bytes).states(lane_bytes);
        let may_bound = bounds.is_some()
            && split.leaves_half(bounded_bytes)
            && bounded.left() >= split.block_of_rows_bytes();
        let held = split
            .hold(if may_bound {
                bounded_bytes
            } else {
                fixed_bytes
            })
            .states(lane_bytes);
        let beside = held.lanes() * lane_bytes + split.block_of_rows_bytes();
        let room = split.hold(beside).free();
        let bounds = may_bound && bounded_bytes <= room;
        Division {
            split: held,
            bounds,
            state_bytes: if bounds { bounded_bytes } else { fixed_bytes },
        }
    }
}

/// Checks what is to be clustered, from centres of some numbers each.
fn checked(x: &Rows, start: &[f64], width: usize, weights: Option<&Vec<f64>>) -> Result<Shape> {
    x.check_rows_together()?;
    let (n, d, name) = (x.count(), x.width(), x.name());
    if width == 0 || start.is_empty() || !start.len().is_multiple_of(width) {
        return Err(Error::shape(format!(
            "k-means of {name}, {n} x {d}, with centres of {} elements of {width} each",
            start.len()
        )));
    }
    if weights.is_some_and(|weights| weights.len() as u64 != n) {
        return Err(Error::shape(format!(
            "{name} has {n} rows, there is another number of weights"
        )));
    }
    if start.iter().any(|value| !value.is_finite()) {
        return Err(Error::value("the centres to start from are not all finite"));
    }
    Ok(Shape {
        clusters: start.len() / width,
        features: d as usize,
    })
}

/// Bytes of labels and weights.
fn label_bytes(n: u64, weights: Option<&Vec<f64>>) -> u64 {
    n * (LABEL_BYTES + if weights.is_some() { 8 } else { 0 })
}

impl<T: Real, S: Source<T>> Lloyd<T, S> {
    fn fit(mut self, max_iter: u64, tol: f64) -> Result<Job<KMeans>> {
        let (session, plans) = (self.session.clone(), S::explained(&self));
        let start = std::mem::take(&mut self.start);
        Job::driven(&session, plans, move |stage, explained| {
            // A task a piece takes memory.
            drop(explained);
            let start = match &self.along {
                Some(along) => along.lifted(&start)?,
                None => start,
            };
            match &self.over {
                None => drive::fit(&self, start, stage, max_iter, tol),
                Some(over) => over
                    .team
                    .drive(|| drive::fit(&self, start, stage, max_iter, tol)),
            }
        })
    }

    fn over(self, over: Option<Over>) -> Self {
        Lloyd { over, ..self }
    }

    fn assign(mut self) -> Result<Job<Assigned>> {
        let (session, plans) = (self.session.clone(), S::explained(&self));
        let start = std::mem::take(&mut self.start);
        Job::driven(&session, plans, move |stage, explained| {
            drop(explained);
            drive::assign(&self, start, stage)
        })
    }

    fn rows(&self) -> u64 {
        assert!(
            self.blocks
                .windows(2)
                .all(|pair| pair[0].end == pair[1].start),
            "blocks follow each other"
        );
        self.blocks.last().map_or(0, |last| last.end)
    }

    /// Rows of all ranks.
    fn all_rows(&self) -> u64 {
        match &self.over {
            Some(over) => over.all.count,
            None => self.rows(),
        }
    }

    /// What a merge over ranks holds: what a round has changed, and as much of another rank.
    fn merge_bytes(&self) -> u64 {
        match &self.over {
            Some(_) => 16 * self.shape.len() as u64,
            None => 0,
        }
    }

    /// Rows of a block.
    fn len_of(&self, block: usize) -> usize {
        let rows = &self.blocks[block];
        (rows.end - rows.start) as usize
    }

    /// Nothing is known of any row.
    fn states(&self) -> AllStates<T> {
        let states = |rows: &Range<u64>| {
            Mutex::new(RowStates::new(
                (rows.end - rows.start) as usize,
                self.division.bounds,
                self.along.is_some(),
            ))
        };
        Arc::new(self.blocks.iter().map(states).collect())
    }

    /// Nothing is in it yet but the lanes.
    fn sums_plan(&self, mut plan: Plan) -> SumsPlan {
        let (lanes, bytes) = (self.division.split.lanes(), 8 * self.shape.len() as u64);
        plan.hold(bytes);
        let lanes = Lanes::new(&mut plan, "sums", lanes, bytes);
        SumsPlan { plan, lanes }
    }

    /// What the plan of a round shows that holds all states.
    fn explain_states(&self, plan: &mut Plan) {
        plan.hold(self.division.state_bytes);
        let row_bytes = self.division.state_bytes / self.rows().max(1);
        plan.note("state", format!("{row_bytes} bytes a row"));
    }

    /// The order of blocks in a pass: odd ones go backwards, so that they begin with what is still
    /// in memory.
    fn order(&self, passes: u64) -> Vec<usize> {
        let forwards = 0..self.blocks.len();
        if passes.is_multiple_of(2) {
            forwards.collect()
        } else {
            forwards.rev().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, operand};
    use outcore_core::RealType;
    use outcore_core::Settings;

    /// Rows around `clouds` middles, between which they overlap.
    fn rows(n: usize, d: usize, clouds: usize) -> Vec<f32> {
        let mut next = numbers(1);
        let middles: Vec<f32> = (0..clouds * d).map(|_| 1.5 * next()).collect();
        (0..n * d)
            .map(|at| middles[at / d * 7 % clouds * d + at % d] + next())
            .collect()
    }

    #[test]
    fn bounds_change_nothing_but_the_work() {
        for (n, d, k) in [(1, 1, 1), (700, 3, 2), (20_000, 12, 40)] {
            let x = rows(n, d, 13);
            let start: Vec<f64> = x[..k * d].iter().map(|&x| f64::from(x)).collect();
            let x = operand(&x, d, RealType::F32);
            let session = Session::new(Settings {
                memory_bytes: Some(64 << 20),
                ..Settings::default()
            })
            .unwrap();
            let run = |bounds| {
                let lloyd =
                    Lloyd::<f32, _>::dense(&session, x.clone(), &start, None, false, bounds)
                        .unwrap();
                lloyd.fit(60, 0.0).unwrap().run().unwrap()
            };
            let (pruned, plain) = (run(true), run(false));
            assert_eq!(
                (&pruned.labels, pruned.rounds),
                (&plain.labels, plain.rounds)
            );
            assert_eq!(pruned.centers, plain.centers);
            assert!(
                plain.compared_fraction == 1.0 && (n < 20_000 || pruned.compared_fraction < 0.7),
                "{}",
                pruned.compared_fraction
            );
        }
    }
}
