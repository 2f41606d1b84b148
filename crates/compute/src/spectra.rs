//! The largest or smallest eigenpairs of a symmetric operator, and the largest singular triplets of
//! any, from products with a few columns at a time.
//!
//! - `search.rs`: the restarted block Krylov-Schur iteration. Of A it needs A X; for singular
//!   triplets A^T A X, which is one pass over one copy of a matrix whose rows lie together.
//! - `tall.rs`, `panel.rs`, `orthonormal.rs`: the basis, in memory or in scratch, and what is appended to it.
//! - `triplets.rs`: from right singular vectors to triplets, and what is left of each pair.
//! - `shapes.rs`: widths of blocks and lengths of bases, best first; `course.rs`: which of them fits a budget.
//! - `checkpoint.rs`: a search between two restarts, in a file.
//!
//! Cost: a pass over the matrix for each product with a block, n times the columns of the basis
//! squared flops beside it, and three passes over the basis a block where that is in scratch.
//! Determinism: the bits depend on the data and the options, and on the budget as far as it decides
//! on the widths of blocks and on how passes are cut; neither on the number of threads nor on where
//! the basis lies.

mod checkpoint;
mod course;
mod orthonormal;
mod panel;
mod search;
mod shapes;
mod tall;
mod triplets;

use std::path::PathBuf;

use outcore_core::checkpoint::CheckpointFile;
use outcore_core::{DType, Error, Job, RealType, Result, Session, Stage};
use outcore_engine::Plan;
use outcore_kernels::{Mat, MatRef};
use outcore_matrix::{Compressed, Rows, Sparse};

use self::checkpoint::Checkpoint;
use self::course::{Given, Planned};
use self::search::{Accuracy, Search};
use self::tall::Tall;
pub use self::tall::Vectors;
use crate::operator::{Centred, Gram, Matrix, Operator, Scaled, Turned, hash};

/// Products in f32 are accurate enough for tolerances from this one on.
const SINGLE_FROM: f64 = 1e-4;

/// Which eigenvalues are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of largest magnitude.
    LargestMagnitude,
    /// The largest.
    Largest,
    /// The smallest.
    Smallest,
}

/// How they are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// What takes less time: wide blocks where a pass over the matrix is dear and the tolerance is
    /// not small.
    Auto,
    /// Narrow blocks: the fewest operations.
    Krylov,
    /// Blocks wider than what is wanted: the fewest passes.
    Randomized,
}

/// What to search for.
#[derive(Clone, Debug)]
pub struct SpectrumOptions {
    /// Pairs.
    pub count: usize,
    /// Which of them; of singular values always the largest.
    pub which: Which,
    /// A pair may have this residual, relative to the largest value.
    pub tolerance: f64,
    /// How to search.
    pub method: Method,
    /// Columns of a product.
    pub block: Option<usize>,
    /// Columns at which the basis is contracted.
    pub basis: Option<usize>,
    /// Contractions at most.
    pub restarts_max: usize,
    /// Seed of the first block.
    pub seed: u64,
    /// The first vector of the first block.
    pub start: Option<Vec<f64>>,
    /// Vectors that are near those that are searched for, one after another, best first: of
    /// singular triplets right ones. A search begins with them, or with sums of them where a block
    /// has fewer columns; with their images where the basis is of the other side.
    pub known: Option<Vec<f64>>,
    /// Whether to look for pairs that were missed.
    pub check: bool,
    /// Whether left singular vectors are wanted, which may be much longer than right ones.
    pub left: bool,
    /// A file that tells, after each contraction, how far the search is. The caller removes it, when
    /// the results have a place.
    pub checkpoint: Option<PathBuf>,
}

impl SpectrumOptions {
    /// The `count` largest, to 1e-6.
    ///
    /// ```
    /// use outcore_compute::spectra::SpectrumOptions;
    ///
    /// let options = SpectrumOptions { tolerance: 1e-4, ..SpectrumOptions::new(50) };
    /// assert_eq!(options.count, 50);
    /// ```
    pub fn new(count: usize) -> SpectrumOptions {
        SpectrumOptions {
            count,
            which: Which::Largest,
            tolerance: 1e-6,
            method: Method::Auto,
            block: None,
            basis: None,
            restarts_max: 300,
            seed: 0,
            start: None,
            known: None,
            check: true,
            left: true,
            checkpoint: None,
        }
    }

    /// `known` is the length of known vectors.
    fn check(&self, what: &str, most: usize, order: usize, known_order: usize) -> Result<()> {
        if self.count == 0 || self.count > most {
            return Err(Error::value(format!(
                "{} {what}: between 1 and {most} are possible",
                self.count
            )));
        }
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return Err(Error::value(format!(
                "the tolerance must be a number from 0 on, not {}",
                self.tolerance
            )));
        }
        if self.block == Some(0) {
            return Err(Error::value("a block has one column at least"));
        }
        if let Some(basis) = self
            .basis
            .filter(|&basis| basis <= self.count && basis < order)
        {
            return Err(Error::value(format!(
                "a basis of {basis} columns for {} pairs: it must be longer",
                self.count
            )));
        }
        let known = self.known.as_deref().unwrap_or_default();
        if !known.len().is_multiple_of(known_order.max(1)) {
            return Err(Error::shape(format!(
                "known vectors of {} elements for vectors of {known_order}",
                known.len()
            )));
        }
        if !known.iter().all(|x| x.is_finite()) {
            return Err(Error::value("known vectors are not finite"));
        }
        let Some(start) = &self.start else {
            return Ok(());
        };
        if start.len() != order {
            return Err(Error::shape(format!(
                "a start vector of {} elements for {order}",
                start.len()
            )));
        }
        match start.iter().all(|x| x.is_finite()) && start.iter().any(|&x| x != 0.0) {
            true => Ok(()),
            false => Err(Error::value("the start vector is zero or not finite")),
        }
    }

    fn given_bytes(&self) -> u64 {
        let given = [&self.start, &self.known].into_iter().flatten();
        given.map(|given| 8 * given.len() as u64).sum()
    }
}

/// How the sides of a matrix whose triplets are searched for are those of what was given.
#[derive(Clone, Copy)]
struct Sides {
    /// It is the transpose.
    is_turned: bool,
    /// Its left vectors have the signs.
    signs_by_left: bool,
}

/// How a search went.
#[derive(Clone, Debug)]
pub struct SearchFacts {
    /// Products with a block, those for the residuals included.
    pub products: u64,
    /// Contractions of the basis.
    pub restarts: u64,
    /// Columns of a product.
    pub block: usize,
    /// Columns at which the basis is contracted.
    pub basis: usize,
    /// Whether the basis was in memory, else in scratch.
    pub in_memory: bool,
    /// Whether the search ended because all pairs had converged.
    pub has_converged: bool,
    /// Beyond this value nothing is missing, with a probability of 1 - 1e-6; nothing where that was
    /// not looked at, or where no pair can be left.
    pub missed_beyond: Option<f64>,
    /// Pairs may be missing: the last check has found further ones, as those before it have.
    pub may_miss: bool,
    /// What products are rounded to.
    pub epsilon: f64,
    /// The largest magnitude of an eigenvalue that was seen, the norm of the operator; the largest
    /// singular value.
    pub largest: f64,
}

/// Eigenpairs, ascending.
pub struct Spectrum {
    /// The eigenvalues.
    pub values: Vec<f64>,
    /// n x k.
    pub vectors: Vectors,
    /// |A v - w v| of each pair.
    pub residuals: Vec<f64>,
    /// How the search went.
    pub facts: SearchFacts,
}

/// Singular triplets, ascending. Of what is centred, and without left vectors, signs are those that make
/// the entry of largest magnitude of each right vector positive.
pub struct Triplets {
    /// m x k, if they were wanted.
    pub left: Option<Vectors>,
    /// The singular values.
    pub values: Vec<f64>,
    /// n x k.
    pub right: Vectors,
    /// |A^T u - s v| of each; A v is s u up to rounding.
    pub residuals: Vec<f64>,
    /// How the search went.
    pub facts: SearchFacts,
}

/// Eigenpairs of a symmetric operator. `dtype` is what vectors in scratch become.
///
/// The entry of largest magnitude of each vector is positive.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::operator::Symmetric;
/// use outcore_compute::spectra::{SpectrumOptions, eigsh};
///
/// // diag(1, 2, ..., 100)
/// let diagonal = Symmetric::new(100, |x, mut y| {
///     (0..x.ncols()).for_each(|j| (0..100).for_each(|i| y[(i, j)] = (i + 1) as f64 * x[(i, j)]));
///     Ok(())
/// });
/// let found = eigsh(&session, diagonal, DType::F64, SpectrumOptions::new(2))?.run()?;
/// assert!((found.values[0] - 99.0).abs() < 1e-6 && (found.values[1] - 100.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for an operator that is not square; [`Error::Value`] for one that is not
/// symmetric, whose products are not finite, and for more pairs than its order;
/// [`Error::OverBudget`]; what products fail with.
pub fn eigsh(
    session: &Session,
    operator: impl Operator + Send + 'static,
    dtype: DType,
    mut options: SpectrumOptions,
) -> Result<Job<Spectrum>> {
    let [order, cols] = operator.shape();
    if order != cols {
        return Err(Error::shape(format!(
            "eigenpairs of {}, which is {order} x {cols}: it must be square",
            operator.name()
        )));
    }
    let what = format!("eigenpairs of {}", operator.name());
    options.check(&what, order, order, order)?;
    let accuracy = Accuracy::Eigen(options.tolerance);
    let given = Given {
        bytes: options.given_bytes(),
        imaged: 0,
    };
    let planned = Planned::new(session, &operator, &options, accuracy, None, given)?;
    let mut plan = Plan::new("eigenpairs");
    planned.note(&mut plan, &operator, &options, (1, operator.pass_bytes()));
    let own = session.clone();
    Job::driven(session, vec![plan], move |stage, _| {
        let _kept = stage.reserve("what a thread keeps", planned.kept_bytes)?;
        let held = stage.reserve("blocks of vectors", planned.blocks_bytes)?;
        let checkpoint = checkpoint(&options, &planned, &operator, "eigenpairs");
        let search = Search::new(&own, &operator, &options, &planned.course, stage)?;
        let mut found = search.run(checkpoint.as_ref(), stage)?;
        (options.start, options.known) = (None, None);
        drop(held);
        let chunks = planned.by_columns.expect("eigenvectors have no other way");
        let residuals = triplets::eigen_residuals(&operator, &mut found, chunks, stage)?;
        let facts = planned.facts(&found, &operator, options.count);
        let signs = found.vectors.signs(stage)?;
        let (vectors, _held) = found.vectors.finish(signs, dtype, stage)?;
        Ok(Spectrum {
            values: found.values,
            vectors,
            residuals,
            facts,
        })
    })
}

/// Singular triplets of an operator. `dtype` is what vectors in scratch become.
///
/// The entry of largest magnitude of each left vector is positive.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::operator::Matrix;
/// use outcore_compute::spectra::{SpectrumOptions, svds};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let found = svds(&session, Matrix::new(&session, &a)?.in_f64(), DType::F64, SpectrumOptions::new(2))?.run()?;
/// assert!((found.values[0] - 5f64.sqrt()).abs() < 1e-6 && (found.values[1] - 3.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for more triplets than min(m, n), and where products are not finite;
/// [`Error::OverBudget`]; what products fail with.
pub fn svds(
    session: &Session,
    operator: impl Operator + Send + 'static,
    dtype: DType,
    options: SpectrumOptions,
) -> Result<Job<Triplets>> {
    let [m, n] = operator.shape();
    let sides = Sides {
        is_turned: m < n,
        signs_by_left: m >= n,
    };
    match sides.is_turned {
        true => svds_tall(session, Turned(operator), dtype, options, sides),
        false => svds_tall(session, operator, dtype, options, sides),
    }
}

/// By A^T A of this operator, whichever side is longer.
fn svds_tall(
    session: &Session,
    operator: impl Operator + Send + 'static,
    dtype: DType,
    mut options: SpectrumOptions,
    sides: Sides,
) -> Result<Job<Triplets>> {
    let [m, n] = operator.shape();
    options.which = Which::Largest;
    let what = format!("singular triplets of {}", operator.name());
    let known_order = if sides.is_turned { m } else { n };
    options.check(&what, m.min(n), n, known_order)?;
    let gram = Gram(operator);
    let accuracy = Accuracy::Singular(options.tolerance);
    let imaged = match &options.known {
        Some(known) if sides.is_turned => known.len() / m.max(1),
        _ => 0,
    };
    let given = Given {
        bytes: options.given_bytes() + (8 * imaged * n) as u64,
        imaged,
    };
    let left = Some((m, &gram.0 as &dyn Operator, options.left || sides.is_turned));
    let planned = Planned::new(session, &gram, &options, accuracy, left, given)?;
    let mut plan = Plan::new("singular triplets");
    planned.note(&mut plan, &gram, &options, (2, gram.0.pass_bytes()));
    let own = session.clone();
    Job::driven(session, vec![plan], move |stage: &mut Stage, _| {
        let _kept = stage.reserve("what a thread keeps", planned.kept_bytes)?;
        let held = stage.reserve("blocks of vectors", planned.blocks_bytes)?;
        let checkpoint = checkpoint(&options, &planned, &gram, "singular triplets");
        if let Some(known) = options.known.take_if(|_| sides.is_turned) {
            // One that goes on from a checkpoint has begun.
            if !checkpoint.as_ref().is_some_and(Checkpoint::exists) {
                options.known = Some(images(&gram.0, &known, planned.course.block, stage)?);
            }
        }
        let search = Search::new(&own, &gram, &options, &planned.course, stage)?;
        let mut found = search.run(checkpoint.as_ref(), stage)?;
        found.products += planned.passes_before as u64;
        (options.start, options.known) = (None, None);
        drop(held);
        let triplets = triplets::triplets(&own, &gram.0, &mut found, &planned, stage)?;
        let least = f64::from(f32::MIN_POSITIVE) / f64::from(f32::EPSILON);
        let is_single = gram.epsilon() >= f64::from(f32::EPSILON);
        if is_single && found.largest < least && triplets.values.iter().any(|value| *value > 0.0) {
            return Err(Error::value(format!(
                "the elements of {} are too small to be squared in float32",
                gram.0.name()
            )));
        }
        let mut facts = planned.facts(&found, &gram, options.count);
        facts.largest = facts.largest.sqrt();
        facts.missed_beyond = facts.missed_beyond.map(|square| square.max(0.0).sqrt());
        // Where sides are turned, the caller's left vectors are those of the basis.
        let (with_left, with_right) = (
            options.left || sides.is_turned,
            options.left || !sides.is_turned,
        );
        let signs = match with_left && (sides.signs_by_left || !with_right) {
            true => triplets.left.signs(stage)?,
            false => found.vectors.signs(stage)?,
        };
        let finish = |vectors: Tall, is_wanted: bool, stage: &mut Stage| match is_wanted {
            true => vectors.finish(signs.clone(), dtype, stage).map(Some),
            false => Ok(None),
        };
        let left = finish(triplets.left, with_left, stage)?;
        drop(triplets.held);
        let right = finish(found.vectors, with_right, stage)?;
        let (left, right) = match sides.is_turned {
            true => (right, left),
            false => (left, right),
        };
        let (right, _right_held) = right.expect("right vectors are always wanted");
        let (left, _left_held) = left.unzip();
        Ok(Triplets {
            left,
            values: triplets.values,
            right,
            residuals: triplets.residuals,
            facts,
        })
    })
}

/// A^T x of vectors that lie one after another, `width` in one product; each as a unit vector, and none
/// of those without an image.
fn images(
    operator: &impl Operator,
    vectors: &[f64],
    width: usize,
    stage: &mut Stage,
) -> Result<Vec<f64>> {
    let [m, n] = operator.shape();
    let mut images = Vec::with_capacity(vectors.len() / m.max(1) * n);
    for some in vectors.chunks((width * m).max(1)) {
        let x = MatRef::from_column_major_slice(some, m, some.len() / m);
        let mut image = Mat::zeros(n, x.ncols());
        operator.apply_transposed(x, image.as_mut(), stage)?;
        for column in image.col_iter() {
            let length = column.norm_l2();
            if length > 0.0 && length.is_finite() {
                images.extend(column.iter().map(|element| element / length));
            }
        }
    }
    Ok(images)
}

/// Removes the checkpoint of a search whose results have a place, if there is one.
///
/// ```
/// use outcore_compute::spectra::forget_checkpoint;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let checkpoint = folder.path().join("search");
/// std::fs::write(&checkpoint, "how far it is").unwrap();
/// forget_checkpoint(&checkpoint)?;
/// assert!(!checkpoint.exists());
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Store`] for what cannot be removed.
pub fn forget_checkpoint(path: impl Into<PathBuf>) -> Result<()> {
    CheckpointFile::new(path).forget()
}

/// Eigenpairs of a symmetric matrix.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::spectra::{SpectrumOptions, eigsh_of_rows};
///
/// let y = Array::temporary(&session, DType::F64, &[2, 2], Order::Row)?;
/// y.copy_from_slice(&[2.0, 1.0, 1.0, 2.0])?;
/// let found = eigsh_of_rows(&session, y, SpectrumOptions::new(1))?.run()?;
/// assert!((found.values[0] - 3.0).abs() < 1e-12);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`eigsh`].
pub fn eigsh_of_rows(
    session: &Session,
    rows: impl Into<Rows>,
    options: SpectrumOptions,
) -> Result<Job<Spectrum>> {
    let rows = rows.into();
    let dtype = rows.real()?.into();
    eigsh(session, matrix(session, rows, &options)?, dtype, options)
}

/// Singular triplets of a matrix less the means of its columns, which stays sparse: what principal
/// components come from. `is_far`: the means are longer than [`Centred::far`] allows in one product.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::spectra::{SpectrumOptions, svds_of_centred_rows};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let found = svds_of_centred_rows(&session, &x, vec![3.0, 4.0], false, SpectrumOptions::new(1))?.run()?;
/// assert!((found.values[0] - 4.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`svds`]; [`Error::Shape`] for another number of means.
pub fn svds_of_centred_rows(
    session: &Session,
    rows: impl Into<Rows>,
    mean: Vec<f64>,
    is_far: bool,
    options: SpectrumOptions,
) -> Result<Job<Triplets>> {
    let rows = rows.into();
    let dtype = rows.real()?.into();
    let centred = Centred::new(matrix(session, rows, &options)?, mean)?.far(is_far);
    let [m, n] = centred.shape();
    // Far more columns than rows: the basis is of rows then.
    let is_turned = n > 4 * m;
    let sides = Sides {
        is_turned,
        signs_by_left: is_turned,
    };
    match is_turned {
        true => svds_tall(session, Turned(centred), dtype, options, sides),
        false => svds_tall(session, centred, dtype, options, sides),
    }
}

/// Singular triplets of a matrix.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::spectra::{SpectrumOptions, svds_of_rows};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let found = svds_of_rows(&session, &x, SpectrumOptions::new(1))?.run()?;
/// assert!((found.values[0] - 9.525518).abs() < 1e-5);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`svds`].
pub fn svds_of_rows(
    session: &Session,
    rows: impl Into<Rows>,
    options: SpectrumOptions,
) -> Result<Job<Triplets>> {
    let rows = rows.into();
    let dtype = rows.real()?.into();
    let is_turned = is_turned(&rows);
    let sides = Sides {
        is_turned,
        signs_by_left: !is_turned,
    };
    let rows = match rows {
        Rows::Sparse(a) if is_turned => Rows::Sparse(a.t()),
        Rows::Dense(x) if is_turned => Rows::Dense(x.t()),
        rows => rows,
    };
    let matrix = matrix(session, rows, &options)?;
    svds_tall(session, matrix, dtype, options, sides)
}

/// Whether triplets of a matrix are searched for along its rows.
fn is_turned(rows: &Rows) -> bool {
    // What is used twice in one pass is a line; the other side may be longer by so much.
    let (lines, width) = (rows.count(), rows.width());
    let by_columns = matches!(rows, Rows::Sparse(a) if a.format() == Compressed::Columns);
    by_columns != (width > 4 * lines)
}

/// Singular triplets of a sparse matrix of which all entries of a column are one number: where a search
/// is along columns it does not read them, which are half of the matrix.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::spectra::{SpectrumOptions, svds_of_equal_columns};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let found = svds_of_equal_columns(&session, &a, vec![1.0, 3.0, 2.0], SpectrumOptions::new(2))?.run()?;
/// assert!((found.values[0] - 5f64.sqrt()).abs() < 1e-6 && (found.values[1] - 3.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`svds`]; [`Error::Shape`] for another number of columns.
pub fn svds_of_equal_columns(
    session: &Session,
    a: &Sparse,
    values: Vec<f64>,
    options: SpectrumOptions,
) -> Result<Job<Triplets>> {
    if values.len() as u64 != a.cols() {
        return Err(Error::shape(format!(
            "{} has {} columns, there is another number of values",
            a.name(),
            a.cols()
        )));
    }
    let rows = Rows::from(a);
    let Some(pattern) = a.pattern().filter(|_| !is_turned(&rows)) else {
        return svds_of_rows(session, rows, options);
    };
    let sides = Sides {
        is_turned: false,
        signs_by_left: true,
    };
    let operator = Scaled::new(matrix(session, pattern.into(), &options)?, values)?;
    svds_tall(session, operator, a.dtype(), options, sides)
}

fn matrix(session: &Session, rows: Rows, options: &SpectrumOptions) -> Result<Matrix> {
    let is_single = rows.real()? == RealType::F32 && options.tolerance >= SINGLE_FROM;
    let matrix = Matrix::new(session, rows)?;
    Ok(if is_single { matrix } else { matrix.in_f64() })
}

fn checkpoint(
    options: &SpectrumOptions,
    planned: &Planned,
    operator: &impl Operator,
    what: &str,
) -> Option<Checkpoint> {
    let path = options.checkpoint.as_ref()?;
    let SpectrumOptions {
        count,
        which,
        tolerance,
        seed,
        start,
        known,
        check,
        ..
    } = options;
    let (block, columns) = (planned.course.block, planned.course.layout.capacity);
    let start = [start, known].map(|given| given.as_ref().map_or(0, |given| hash(given)));
    let problem = format!(
        "{count} {what} ({which:?}) of {} ({}), to {tolerance:e}, seed {seed}, start {start:x?}, check {check}, block {block}, basis {columns}",
        operator.name(),
        operator.identity()
    );
    Some(Checkpoint::new(path, problem, block))
}

#[cfg(test)]
mod testing {
    //! What tests of searches begin with.

    use outcore_core::{Session, Settings};
    use outcore_kernels::Mat;

    use super::Vectors;
    use super::orthonormal::Noise;

    /// A session with its scratch folder.
    pub(super) fn session(memory_bytes: u64, threads: usize) -> (tempfile::TempDir, Session) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let session = Session::new(Settings {
            memory_bytes: Some(memory_bytes),
            scratch: Some(folder.path().to_owned()),
            allow_tmpfs_scratch: true,
            threads,
            ..Settings::default()
        });
        (folder, session.expect("a budget is all it takes"))
    }

    /// All elements, column after column.
    pub(super) fn by_columns(found: &Vectors) -> Vec<f64> {
        match found {
            Vectors::Memory { values, .. } => values.clone(),
            Vectors::Scratch(array) => array.t().to_vec().expect("it can be read"),
        }
    }

    pub(super) fn noise(rows: usize, columns: usize, seed: u64) -> Mat<f64> {
        Noise { seed, made: 0 }.block(rows, columns)
    }
}

#[cfg(test)]
mod tests {
    use outcore_core::Order;
    use outcore_matrix::Array;

    use super::testing::{by_columns, noise, session};
    use super::*;
    use crate::operator::Symmetric;

    /// Its last rows are those of what it is multiplied with times 1, 1/2, 1/3 and so on, from the end.
    fn diagonal(order: usize) -> impl Operator + Send + 'static {
        Symmetric::new(order, move |x, mut y| {
            for column in 0..x.ncols() {
                (0..order)
                    .for_each(|row| y[(row, column)] = x[(row, column)] / (order - row) as f64);
            }
            Ok(())
        })
    }

    #[test]
    fn restarts_find_the_same_bits_wherever_the_basis_lies() {
        let order = 20_000;
        let options = SpectrumOptions {
            block: Some(4),
            basis: Some(24),
            ..SpectrumOptions::new(5)
        };
        let found = |memory_bytes, threads| {
            let (_folder, session) = session(memory_bytes, threads);
            let job = eigsh(&session, diagonal(order), DType::F64, options.clone());
            let found = job.expect("it fits").run().expect("nothing can fail");
            (by_columns(&found.vectors), found)
        };
        let (bits, first) = found(64 << 20, 1);
        assert!(first.facts.in_memory && first.facts.has_converged && first.facts.restarts > 0);
        for (at, value) in first.values.iter().enumerate() {
            let expected = 1.0 / (5 - at) as f64;
            assert!((value - expected).abs() < 1e-9, "{value} for {expected}");
            assert!((bits[at * order + order - 5 + at] - 1.0).abs() < 1e-4);
        }
        for (memory_bytes, threads, in_memory) in [
            (64 << 20, 3, true),
            (6 << 20, 1, false),
            (6 << 20, 4, false),
        ] {
            let (other, found) = found(memory_bytes, threads);
            assert_eq!(found.facts.in_memory, in_memory);
            assert_eq!(
                (found.values, found.residuals),
                (first.values.clone(), first.residuals.clone())
            );
            assert!(other == bits, "{memory_bytes} bytes, {threads} threads");
        }
    }

    #[test]
    fn without_left_vectors_right_ones_are_the_same_but_for_signs() {
        let (_folder, session) = session(64 << 20, 2);
        for shape in [[300, 20], [20, 300]] {
            let [m, n] = shape.map(|side| side as u64);
            let x =
                Array::temporary(&session, DType::F64, &[m, n], Order::Row).expect("there is room");
            let values: Vec<f64> = noise(shape[0], shape[1], 1)
                .col_iter()
                .flat_map(|x| x.iter().copied().collect::<Vec<_>>())
                .collect();
            x.copy_from_slice(&values).expect("it can be written");
            let [with, without] = [true, false].map(|left| {
                let options = SpectrumOptions {
                    left,
                    ..SpectrumOptions::new(3)
                };
                let job = svds_of_rows(&session, &x, options);
                job.expect("it fits").run().expect("nothing can fail")
            });
            assert!(with.left.is_some() && without.left.is_none());
            assert_eq!(
                (&with.values, &with.residuals),
                (&without.values, &without.residuals)
            );
            let [one, other] = [with, without].map(|found| by_columns(&found.right));
            for (one, other) in one.chunks(shape[1]).zip(other.chunks(shape[1])) {
                let largest = other
                    .iter()
                    .fold(0.0f64, |a, b| if b.abs() > a.abs() { *b } else { a });
                assert!(largest > 0.0, "the entry of largest magnitude is positive");
                assert!(one.iter().zip(other).all(|(a, b)| a.abs() == b.abs()));
            }
        }
    }

    #[test]
    fn a_search_is_refused_before_its_first_product_or_finds_what_it_is_to_find() {
        let order = 900;
        let run = |memory_bytes: u64, threads| {
            let (_folder, session) = session(memory_bytes, threads);
            let job = eigsh(
                &session,
                diagonal(order),
                DType::F64,
                SpectrumOptions::new(6),
            );
            match job {
                Err(Error::OverBudget { needed, .. }) => Err(needed),
                job => {
                    let found = job
                        .expect("nothing else can fail")
                        .run()
                        .expect("what fits runs");
                    assert!((found.values[5] - 1.0).abs() < 1e-9);
                    Ok(by_columns(&found.vectors))
                }
            }
        };
        let mut admitted = 0;
        for memory_bytes in (4..16).map(|quarters| quarters << 18) {
            let all = [1, 2, 5].map(|threads| run(memory_bytes, threads));
            assert!(
                all[1..].iter().all(|other| *other == all[0]),
                "{memory_bytes} bytes"
            );
            match &all[0] {
                Ok(_) => admitted += 1,
                Err(needed) => {
                    assert!(*needed > memory_bytes && admitted == 0);
                    assert!(run(*needed, 2).is_ok(), "{needed} bytes are enough");
                }
            }
        }
        assert!((1..12).contains(&admitted), "{admitted} budgets");
    }
}
