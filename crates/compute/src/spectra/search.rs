//! The restarted block Krylov-Schur iteration.
//!
//! A V = V H + W R: V is an orthonormal basis of a growing Krylov space, H the operator seen from
//! it, W the newest block, which has no image yet. A step images W and appends what is new. When
//! the basis is full it is contracted to the best Ritz vectors and W, from which H follows, so that
//! no image is kept beside the basis. The residual of a Ritz pair is what R makes of the last rows
//! of its vector in the basis, and costs nothing.
//!
//! A block that is not there any more, since the space is invariant, becomes noise: pairs of any
//! multiplicity are found, and zeros where the rank is lower. When all wanted pairs have converged
//! a fresh block of noise is put in the place of W for some steps: pairs that no earlier start
//! vector had a part of show up, and how few steps say what can still be missing
//! (Kuczynski and Wozniakowski, "Estimating the largest eigenvalue by the power and Lanczos
//! algorithms with a random start", SIAM J. Matrix Anal. Appl. 1992).
//!
//! Source: Zhou and Saad, "Block Krylov-Schur method for large symmetric eigenvalue problems"
//! (Numer. Algorithms 2008); with blocks wider than what is wanted it is the randomized block
//! Krylov method (Musco and Musco, NeurIPS 2015), which needs the fewest passes.

use outcore_core::{Error, RealType, Result, Session, Stage};
use outcore_kernels as kernels;
use outcore_kernels::{Eigen, Mat, MatRef, swap_cols_idx};

use super::checkpoint::{Checkpoint, Kept};
use super::course::ritz_bytes;
use super::orthonormal::{Appended, Noise, append};
use super::tall::{Tall, TallLayout};
use super::{SpectrumOptions, Which};
use crate::operator::Operator;

/// Residuals of this many roundings of a product are small enough once the basis is full, which may not
/// make them smaller.
const ROUNDINGS: f64 = 16.0;

/// And of so few at any time. Squares of small values are small: in f32 a tolerance of 1e-4 asks for as
/// little of those that are some thousandths of the largest.
const FEW_ROUNDINGS: f64 = 2.0;

/// The part of the tolerance at which a search ends.
const SHARE: f64 = 0.5;

/// Steps from a fresh block of noise that look for missed pairs, at least: where one end of the spectrum
/// is known, and where none is.
pub(super) const CHECKED_STEPS: [usize; 2] = [5, 8];

/// They may leave out this part of the spectrum, at both ends together.
const UNSEEN: f64 = 0.75;

/// With this probability nothing above the bound is missing.
const CERTAINTY: f64 = 1.0 - 1e-6;

/// Steps of a check: more with narrow blocks and long vectors, since each vector of a block may have next
/// to no part of a pair.
pub(super) fn checked_steps(order: usize, block: usize, accuracy: Accuracy) -> usize {
    let ends = accuracy.unknown_ends();
    let steps = |part: f64| (unseen_exponent(order, block, ends) / part.sqrt() + 1.0) / 2.0;
    let needed = steps(UNSEEN / ends as f64).ceil() as usize;
    needed.max(CHECKED_STEPS[ends - 1])
}

/// Over 2 steps - 1, this is the root of the part of the spectrum that may be unseen at each end.
fn unseen_exponent(order: usize, block: usize, ends: usize) -> f64 {
    // Each vector of the block fails by itself, and so does each end.
    let failing = (1.0 - CERTAINTY) / ends as f64;
    let each = failing.powf(1.0 / block as f64);
    (1.648 * (order as f64).sqrt() / each).ln()
}

/// Fresh blocks at most: each finds as many copies of a value as it has columns. A search whose last one has found new
/// pairs has not converged.
pub(super) fn checks_max(options: &SpectrumOptions, block: usize) -> usize {
    4 + options.count.div_ceil(block)
}

/// Of an image, whose products with others are added up in f64.
const LONGEST: f64 = 1e150;

/// A symmetric operator's images differ by less from what symmetry says, relative to its norm.
const ASYMMETRY: f64 = 1e-7;

/// And those of A^T A by less than this, if A^T is the transpose of A.
const NOT_TRANSPOSED: f64 = 1e-3;

/// How accurate a pair must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Accuracy {
    /// |A v - w v| up to this part of the largest |w|.
    Eigen(f64),
    /// Of pairs of A^T A, whose values are squares: |A^T u - s v| up to this part of s_1.
    Singular(f64),
}

impl Accuracy {
    /// A^T A has no value below zero; of others neither the largest nor the smallest is known.
    fn unknown_ends(self) -> usize {
        match self {
            Accuracy::Singular(_) => 1,
            Accuracy::Eigen(_) => 2,
        }
    }

    /// The residual that a pair with this value may have: `rounding` is relative to the largest.
    fn allowed(self, value: f64, largest: f64, rounding: f64) -> f64 {
        let wanted = match self {
            Accuracy::Eigen(tolerance) => tolerance * largest,
            Accuracy::Singular(tolerance) => {
                let (first, own) = (largest.sqrt(), value.max(0.0).sqrt());
                tolerance * first * own.max(tolerance * first)
            }
        };
        // The check keeps pairs as they are, and adds to what is left of them.
        (SHARE * wanted).max(rounding * largest)
    }
}

/// What a search is to do, found out before it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    /// Columns of a product.
    pub(super) block: usize,
    pub(super) layout: TallLayout,
    pub(super) accuracy: Accuracy,
}

/// What a search has found, ascending; vectors are the columns of the basis.
pub(super) struct Found {
    pub(super) values: Vec<f64>,
    pub(super) vectors: Tall,
    pub(super) products: u64,
    pub(super) restarts: u64,
    /// The largest magnitude of a value that was seen: the norm of the operator.
    pub(super) largest: f64,
    /// Whether the last residuals of all wanted pairs were small enough.
    pub(super) has_converged: bool,
    /// No pair with a value beyond this one is missing, most probably.
    pub(super) missed_beyond: Option<f64>,
    /// The last check has found further pairs, as those before it have.
    pub(super) may_miss: bool,
}

pub(super) struct Search<'a, O> {
    session: &'a Session,
    operator: &'a O,
    options: &'a SpectrumOptions,
    course: &'a Course,
    basis: Tall,
    /// The operator as the basis sees it; the newest block has a part in it only by its coupling.
    seen: Mat<f64>,
    /// Columns that have images.
    imaged: usize,
    noise: Noise,
    /// The longest image of a unit vector so far.
    norm: f64,
    products: u64,
    restarts: u64,
    /// Steps since the newest fresh block, while one is looked at, and how many there were.
    checked: Option<usize>,
    checks: usize,
    /// Steps of the check before the basis was contracted, for which a bound holds, and whether it was.
    unbroken: usize,
    is_contracted: bool,
    /// The wanted values when the newest check began.
    wanted_before: Vec<f64>,
    /// By how much an image was off what symmetry says, at most.
    asymmetry: f64,
}

impl<'a, O: Operator> Search<'a, O> {
    pub(super) fn new(
        session: &'a Session,
        operator: &'a O,
        options: &'a SpectrumOptions,
        course: &'a Course,
        stage: &mut Stage,
    ) -> Result<Search<'a, O>> {
        let capacity = course.layout.capacity;
        Ok(Search {
            session,
            operator,
            options,
            course,
            basis: Tall::new(session, course.layout, stage)?,
            seen: Mat::zeros(capacity, capacity),
            imaged: 0,
            noise: Noise {
                seed: options.seed,
                made: 0,
            },
            norm: 0.0,
            products: 0,
            restarts: 0,
            checked: None,
            checks: 0,
            unbroken: 0,
            is_contracted: false,
            wanted_before: Vec::new(),
            asymmetry: 0.0,
        })
    }

    fn order(&self) -> usize {
        self.basis.rows()
    }

    pub(super) fn run(
        mut self,
        checkpoint: Option<&Checkpoint>,
        stage: &mut Stage,
    ) -> Result<Found> {
        let kept = checkpoint.map(|at| at.load(&mut self.basis, stage));
        let mut begun_by = match kept.transpose()?.flatten() {
            Some(kept) => {
                self.go_on_from(kept);
                self.check_sight(checkpoint, stage)?;
                checkpoint
            }
            None => {
                self.begin(stage)?;
                None
            }
        };
        let mut looked_at = 0;
        let steps_wanted = checked_steps(self.order(), self.course.block, self.course.accuracy);
        loop {
            let (before, coupling) = (self.imaged, self.step(begun_by.take(), stage)?);
            let columns = self.imaged;
            let is_full = self.is_full();
            let grown = columns - looked_at.min(columns);
            let is_due =
                columns >= self.options.count && grown >= self.course.block.max(columns / 10);
            let is_checked = self.checked.is_some_and(|steps| steps >= steps_wanted);
            if !(is_full || is_due || is_checked) {
                continue;
            }
            looked_at = columns;
            let ritz = self.ritz(stage)?;
            let last = coupling.as_ref() * ritz.vectors.subrows(before, columns - before);
            let wanted = self.options.count.min(columns);
            let residual = |at: usize| last.col(at).norm_l2();
            let largest = ritz.values.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            let roundings = if is_full { ROUNDINGS } else { FEW_ROUNDINGS };
            let rounding = roundings * self.operator.epsilon();
            let allowed = |value| self.course.accuracy.allowed(value, largest, rounding);
            let converged = (0..wanted).filter(|&at| residual(at) <= allowed(ritz.values[at]));
            let converged = converged.count();
            stage.reach(0.9 * converged as f64 / self.options.count.max(1) as f64);
            let has_converged = converged == self.options.count;
            let is_whole = columns == self.order();
            let is_last = self.restarts >= self.options.restarts_max as u64
                && is_full
                && columns >= self.options.count;
            // A block of noise finds as many copies of a value as it has columns.
            let has_brought = is_checked && self.has_brought(&ritz, largest);
            let is_last = is_last
                || has_brought && self.checks >= checks_max(self.options, self.course.block);
            let may_end = is_whole || !self.options.check || is_checked && !has_brought;
            if is_whole || is_last || has_converged && may_end {
                let may_miss = has_brought && !is_whole;
                let mut found = self.end(&ritz, has_converged && !may_miss, is_whole, stage)?;
                found.may_miss = may_miss;
                return Ok(found);
            }
            if has_converged && (is_checked || self.checked.is_none()) {
                self.check_anew(&ritz, stage)?;
            } else if is_full {
                self.restart(&ritz, &last, stage)?;
                if is_checked {
                    self.checked = None;
                }
            } else {
                continue;
            }
            looked_at = 0;
            if let Some(checkpoint) = checkpoint {
                checkpoint.save(&self.kept(), &self.basis, stage)?;
            }
        }
    }

    /// Whether the check has found pairs that are wanted and were not there when it began.
    fn has_brought(&self, ritz: &Eigen<f64>, largest: f64) -> bool {
        let rounding = ROUNDINGS * self.operator.epsilon();
        let allowed = |value| self.course.accuracy.allowed(value, largest, rounding);
        (self.wanted_before.iter().zip(&ritz.values))
            .any(|(before, value)| (before - value).abs() > 2.0 * allowed(*value))
    }

    /// The first block: the caller's vectors, if there are any, and noise. Of more vectors than columns it has sums, which have a
    /// part of each.
    fn begin(&mut self, stage: &mut Stage) -> Result<()> {
        let n = self.order();
        let mut first = self.noise.block(n, self.course.block.min(n));
        if let Some(known) = &self.options.known {
            let width = first.ncols();
            for (at, known) in known.chunks(n).enumerate() {
                let mut column = first.col_mut(at % width);
                if at < width {
                    column.fill(0.0);
                }
                (0..n).for_each(|row| column[row] += known[row]);
            }
        }
        if let Some(start) = &self.options.start {
            (0..n).for_each(|row| first[(row, 0)] = start[row]);
        }
        self.append(first, None, 0.0, stage)?;
        Ok(())
    }

    fn append(
        &mut self,
        w: Mat<f64>,
        known: Option<Mat<f64>>,
        negligible: f64,
        stage: &mut Stage,
    ) -> Result<Appended> {
        let (basis, noise) = (&mut self.basis, &mut self.noise);
        append(self.session, basis, w, known, negligible, noise, stage)
    }

    /// What the images of the newest block are along the basis, as far as symmetry tells: of earlier
    /// vectors, what their images are along the block. What they had beyond the basis when a check
    /// began is not in it.
    fn along_basis(&self, x: MatRef<'_, f64>, image: MatRef<'_, f64>) -> Result<Mat<f64>> {
        let (from, width) = (self.imaged, x.ncols());
        let mut along = Mat::from_fn(from + width, width, |row, column| match row < from {
            true => self.seen[(row, from + column)],
            false => 0.0,
        });
        let own = along.as_mut().subrows_mut(from, width);
        kernels::gemm(own, 1.0, x.transpose(), image, 0.0, self.session.blas())?;
        Ok(along)
    }

    /// Whether there is no room for what another step would append.
    fn is_full(&self) -> bool {
        let used = self.basis.used();
        let appended = self.course.block.min(self.order() - used);
        used == self.imaged || used + appended > self.basis.capacity()
    }

    /// Images the newest block and appends what is new, and returns R. What the basis saw of the
    /// operator before must be what it sees of this one, if it comes from a checkpoint too.
    fn step(&mut self, from_file: Option<&Checkpoint>, stage: &mut Stage) -> Result<Mat<f64>> {
        let (from, to) = (self.imaged, self.basis.used());
        let x = self.basis.columns(from..to, stage)?;
        let mut image = Mat::zeros(self.order(), to - from);
        self.operator.apply(x.as_ref(), image.as_mut(), stage)?;
        self.products += 1;
        let known = match self.course.layout.real {
            RealType::F32 => Some(self.along_basis(x.as_ref(), image.as_ref())?),
            RealType::F64 => None,
        };
        drop(x);
        for column in 0..image.ncols() {
            let length = image.col(column).norm_l2();
            if length.is_nan() || length > LONGEST {
                return Err(Error::value(format!(
                    "products with {} are not finite: it has NaN or infinity, or its elements are too large to be squared",
                    self.operator.name()
                )));
            }
            self.norm = self.norm.max(length);
        }
        let negligible = 4.0 * self.operator.epsilon() * self.norm;
        let appended = self.append(image, known, negligible, stage)?;
        let seen = &appended.coefficients;
        if self.checks == 0 {
            let off = self.asymmetry_of(seen.as_ref(), from);
            match from_file.filter(|_| off > self.known_asymmetry()) {
                Some(file) => return Err(file.is_of_another("matrix")),
                None => {
                    let own = (from..to).map(|at| seen[(at, at - from)]);
                    self.check_symmetry(off, own.fold(0.0, f64::min))?;
                }
            }
            self.asymmetry = self.asymmetry.max(off);
        }
        for column in from..to {
            for row in 0..to {
                let value = seen[(row, column - from)];
                self.seen[(row, column)] = value;
                self.seen[(column, row)] = value;
            }
        }
        for row in to..self.basis.used() {
            for column in 0..to {
                let value = match column >= from {
                    true => appended.coupling[(row - to, column - from)],
                    false => 0.0,
                };
                self.seen[(row, column)] = value;
                self.seen[(column, row)] = value;
            }
        }
        self.imaged = to;
        if let Some(steps) = &mut self.checked {
            *steps += 1;
            self.unbroken += usize::from(!self.is_contracted);
        }
        Ok(appended.coupling)
    }

    /// What the first vectors of a checkpoint see of the operator must be what they saw. Before a check
    /// the next step finds that out.
    fn check_sight(&self, file: Option<&Checkpoint>, stage: &mut Stage) -> Result<()> {
        let width = self.course.block.min(self.imaged);
        let Some(file) = file.filter(|_| self.checks > 0 && width > 0) else {
            return Ok(());
        };
        let x = self.basis.columns(0..width, stage)?;
        let mut image = Mat::zeros(self.order(), width);
        self.operator.apply(x.as_ref(), image.as_mut(), stage)?;
        let mut seen = Mat::zeros(width, width);
        let (x, image) = (x.as_ref().transpose(), image.as_ref());
        kernels::gemm(seen.as_mut(), 1.0, x, image, 0.0, self.session.blas())?;
        let most = self.known_asymmetry();
        let is_off = |at: usize| {
            let (row, column) = (at / width, at % width);
            let off = (seen[(row, column)] - self.seen[(row, column)]).abs();
            off > most || off.is_nan()
        };
        match (0..width * width).any(is_off) {
            true => Err(file.is_of_another("matrix")),
            false => Ok(()),
        }
    }

    /// By how much images may be off what symmetry says.
    fn rounding(&self) -> f64 {
        self.norm * ASYMMETRY.max(1e3 * self.operator.epsilon())
    }

    /// The same of a matrix that is to be that of a checkpoint, whose products may have been off by more.
    fn known_asymmetry(&self) -> f64 {
        self.rounding().max(4.0 * self.asymmetry)
    }

    /// By how much the newest block and the earlier ones see each other differently.
    fn asymmetry_of(&self, seen: MatRef<'_, f64>, from: usize) -> f64 {
        let mut most = 0.0f64;
        for column in 0..seen.ncols() {
            for row in 0..seen.nrows() {
                let mirrored = match row < from {
                    true => self.seen[(row, from + column)],
                    false => seen[(from + column, row - from)],
                };
                most = most.max((seen[(row, column)] - mirrored).abs());
            }
        }
        most
    }

    /// # Errors
    /// [`Error::Value`], but not where A^T A is as far from symmetric as rounding of a centred matrix may leave it.
    fn check_symmetry(&self, off: f64, least: f64) -> Result<()> {
        let (name, norm) = (self.operator.name(), self.norm);
        let is_wrong = match self.course.accuracy {
            // Products of few digits are good enough for pairs of fewer.
            Accuracy::Eigen(tolerance) => off > self.rounding().max(self.norm * tolerance / 10.0),
            Accuracy::Singular(_) => off.max(-least) > NOT_TRANSPOSED * norm,
        };
        match self.course.accuracy {
            _ if !is_wrong => Ok(()),
            Accuracy::Eigen(_) => Err(Error::value(format!(
                "{name} is not symmetric: x^T A y and y^T A x differ by {off:.1e} for two unit vectors, where |A x| is {norm:.1e}"
            ))),
            Accuracy::Singular(_) => Err(Error::value(format!(
                "{name}: its products with A^T are not those of the transpose of A, for A^T A is not symmetric, or not positive: \
                 x^T A^T (A y) and y^T A^T (A x) differ by {off:.1e} for two unit vectors, the least of x^T A^T (A x) is \
                 {least:.1e}, where |A^T A x| is {norm:.1e}"
            ))),
        }
    }

    /// All eigenpairs of what the basis sees, the wanted ones first.
    fn ritz(&self, stage: &Stage) -> Result<Eigen<f64>> {
        let columns = self.imaged;
        let held = stage.reserve("eigenvectors of what the basis sees", ritz_bytes(columns))?;
        let mut eigen = kernels::eigh(self.seen.as_ref().submatrix(0, 0, columns, columns), None)?;
        drop(held);
        let mut order: Vec<usize> = (0..columns).collect();
        match self.options.which {
            Which::Largest => {}
            Which::Smallest => order.reverse(),
            Which::LargestMagnitude => order.sort_by(|&a, &b| {
                let [a, b] = [a, b].map(|at| eigen.values[at].abs());
                b.total_cmp(&a)
            }),
        }
        // In place, pair after pair: one that was wanted earlier has made room where it was.
        for at in 0..columns {
            let mut from = order[at];
            while from < at {
                from = order[from];
            }
            if from != at {
                eigen.values.swap(at, from);
                swap_cols_idx(eigen.vectors.as_mut(), at, from);
            }
        }
        Ok(eigen)
    }

    /// Contracts the basis to `keep` Ritz vectors and the newest block; `last` are the residuals in
    /// terms of that.
    fn restart(&mut self, ritz: &Eigen<f64>, last: &Mat<f64>, stage: &mut Stage) -> Result<()> {
        let (columns, used, block) = (self.imaged, self.basis.used(), self.course.block);
        // Vectors beyond the wanted ones speed up the last of these.
        let most = self.basis.capacity() - 2 * block;
        let spare = (columns - self.options.count.min(columns)) / 2;
        let keep = (self.options.count + spare.max(2 * block))
            .min(most)
            .min(columns);
        self.contract(ritz, keep, columns..used, stage)?;
        for column in 0..keep {
            for row in 0..used - columns {
                let value = last[(row, column)];
                self.seen[(keep + row, column)] = value;
                self.seen[(column, keep + row)] = value;
            }
        }
        self.restarts += 1;
        self.is_contracted = true;
        Ok(())
    }

    fn contract(
        &mut self,
        ritz: &Eigen<f64>,
        keep: usize,
        newest: std::ops::Range<usize>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.basis
            .rotate(ritz.vectors.subcols(0, keep), newest, stage)?;
        self.seen.fill(0.0);
        (0..keep).for_each(|at| self.seen[(at, at)] = ritz.values[at]);
        self.imaged = keep;
        Ok(())
    }

    /// Keeps the wanted pairs, and puts noise in the place of the newest block.
    fn check_anew(&mut self, ritz: &Eigen<f64>, stage: &mut Stage) -> Result<()> {
        let keep = self.options.count.min(self.imaged);
        self.contract(ritz, keep, 0..0, stage)?;
        let fresh = self
            .noise
            .block(self.order(), self.course.block.min(self.order()));
        self.append(fresh, None, 0.0, stage)?;
        (self.checked, self.checks) = (Some(0), self.checks + 1);
        (self.unbroken, self.is_contracted) = (0, false);
        self.wanted_before = ritz.values[..keep].to_vec();
        Ok(())
    }

    fn end(
        mut self,
        ritz: &Eigen<f64>,
        has_converged: bool,
        is_whole: bool,
        stage: &mut Stage,
    ) -> Result<Found> {
        let count = self.options.count;
        assert!(
            count <= self.imaged,
            "a search ends with as many pairs as are wanted"
        );
        let missed_beyond = match self.checked {
            _ if is_whole => {
                let next = ritz.values.get(count).copied();
                next.map(|next| match self.options.which {
                    Which::LargestMagnitude => next.abs(),
                    Which::Largest | Which::Smallest => next,
                })
            }
            Some(_) if has_converged => self.missed_beyond(ritz, self.unbroken),
            _ => None,
        };
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| ritz.values[a].total_cmp(&ritz.values[b]));
        self.seen = Mat::new();
        let ascending = Mat::from_fn(self.imaged, count, |row, at| ritz.vectors[(row, order[at])]);
        self.basis.rotate(ascending.as_ref(), 0..0, stage)?;
        self.basis.shrink();
        Ok(Found {
            values: order.iter().map(|&at| ritz.values[at]).collect(),
            vectors: self.basis,
            products: self.products,
            restarts: self.restarts,
            largest: ritz.values.iter().fold(0.0, |a: f64, b| a.max(b.abs())),
            has_converged,
            missed_beyond,
            may_miss: false,
        })
    }

    /// What the operator can have beside the wanted pairs, most probably, after `steps` steps from a block
    /// of noise.
    fn missed_beyond(&self, ritz: &Eigen<f64>, steps: usize) -> Option<f64> {
        let others = ritz.values.get(self.options.count..)?;
        let next = *others.first()?;
        let ends = self.course.accuracy.unknown_ends();
        let exponent = unseen_exponent(self.order(), self.course.block, ends);
        // An end is at most this part of the width of the spectrum away from what was seen of it.
        let part = (exponent / (2 * steps).checked_sub(1)? as f64).powi(2);
        let seen = 1.0 - ends as f64 * part;
        (seen > 0.0).then(|| match self.course.accuracy {
            Accuracy::Singular(_) => next / seen,
            Accuracy::Eigen(_) => {
                let lowest = others.iter().copied().fold(next, f64::min);
                let highest = others.iter().copied().fold(next, f64::max);
                let distance = part * (highest - lowest) / seen;
                match self.options.which {
                    Which::LargestMagnitude => (highest + distance).max(distance - lowest),
                    Which::Largest => highest + distance,
                    Which::Smallest => lowest - distance,
                }
            }
        })
    }

    fn kept(&self) -> Kept {
        let columns = self.basis.used();
        Kept {
            columns,
            imaged: self.imaged,
            noise: self.noise.made,
            norm: self.norm,
            products: self.products,
            restarts: self.restarts,
            checked: self.checked,
            checks: self.checks,
            unbroken: self.unbroken,
            is_contracted: self.is_contracted,
            asymmetry: self.asymmetry,
            wanted_before: self.wanted_before.clone(),
            seen: (0..columns * columns)
                .map(|at| self.seen[(at / columns, at % columns)])
                .collect(),
        }
    }

    fn go_on_from(&mut self, kept: Kept) {
        let columns = kept.columns;
        for (at, value) in kept.seen.iter().enumerate() {
            self.seen[(at / columns, at % columns)] = *value;
        }
        self.imaged = kept.imaged;
        self.noise.made = kept.noise;
        self.norm = kept.norm;
        self.products = kept.products;
        self.restarts = kept.restarts;
        (self.checked, self.checks) = (kept.checked, kept.checks);
        (self.unbroken, self.is_contracted) = (kept.unbroken, kept.is_contracted);
        (self.asymmetry, self.wanted_before) = (kept.asymmetry, kept.wanted_before);
    }
}
