//! Symmetric eigenproblems in memory, and orthonormal bases of tall matrices.
//!
//! [`eigh`] is the dense decomposition (Householder tridiagonalisation, then divide and conquer;
//! faer). [`eigh_top`] and [`eigh_top_with`] find the few largest eigenvalues from products with
//! the matrix only, which may live anywhere: block Krylov with full reorthogonalisation,
//! Rayleigh-Ritz and thick restart (Wu and Simon, "Thick-Restart Lanczos Method for Large Symmetric
//! Eigenvalue Problems", SIAM J. Matrix Anal. Appl. 22(2), 2000; the blocks as in Zhou and Saad,
//! "Block Krylov-Schur method", Numer. Algorithms 47, 2008). Every result carries residuals that
//! were checked.
#![forbid(unsafe_code)]

use crate::{Blas, Error, Real, RealType, first_non_finite, gemm};
use faer::diag::{Diag, DiagMut};
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::tridiag::tridiag_in_place;
use faer::linalg::evd::{
    ComputeEigenvectors, EvdError, self_adjoint_evd_scratch, tridiagonal_self_adjoint_evd,
};
use faer::linalg::householder::apply_block_householder_sequence_on_the_left_in_place_with_conj;
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::linalg::svd::{ComputeSvdVectors, SvdError, SvdParams};
use faer::linalg::{self, temp_mat_zeroed};
use faer::mat::AsMatMut;
use faer::traits::math_utils;
use faer::{Auto, Conj, Mat, MatMut, MatRef, Par, Spec};

/// Most memory that faer packs into: it reserves twice the last-level cache a thread and touches at
/// most half of that.
const FAER_THREAD_BYTES: usize = 64 << 20;

/// Eigenvalues, largest first, and their orthonormal eigenvectors as columns.
#[derive(Clone, Debug)]
pub struct Eigen<T> {
    /// k values, descending.
    pub values: Vec<T>,
    /// n x k, column j belongs to value j. Signs are arbitrary but deterministic.
    pub vectors: Mat<T>,
}

/// How [`eigh_top`] searches.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TopOptions {
    /// A pair has converged if |C v - lambda v| <= tolerance * lambda_1. Raised to the precision of
    /// the type.
    pub tolerance: f64,
    /// Seed of the first block.
    pub seed: u64,
    /// Columns of a product with C.
    pub block: usize,
    /// Columns at which the basis is contracted, no fewer than k and three blocks; `None` for 2k
    /// and four blocks. Fewer take less memory and more products.
    pub basis: Option<usize>,
    /// Products with a block before the search ends without convergence.
    pub products_max: usize,
}

impl Default for TopOptions {
    /// Tolerance 1e-10, seed 0, blocks of 16, the usual basis, at most 600 products.
    fn default() -> Self {
        Self {
            tolerance: 1e-10,
            seed: 0,
            block: 16,
            basis: None,
            products_max: 600,
        }
    }
}

/// Eigenvalues and eigenvectors of the symmetric matrix whose lower triangle is `c`; the `k`
/// largest, or all.
///
/// Shapes: c is n x n; the result holds k values and n x k vectors.
///
/// Cost: about 9 n^3 flops (not interruptible: seconds from n = 3000 on), scratch
/// [`eigh_scratch_bytes`], whatever k.
///
/// # Errors
/// [`Error::Shape`]; [`Error::NotConverged`] when the lower triangle holds NaN or infinity.
///
/// Determinism: the same bits on the same kind of CPU.
pub fn eigh<T: Real>(c: MatRef<'_, T>, k: Option<usize>) -> Result<Eigen<T>, Error> {
    let n = c.nrows();
    let k = k.unwrap_or(n);
    if c.ncols() != n || k > n {
        return Err(Error::shape("eigh", &[("c", &c.shape()), ("k", &k)]));
    }
    let not_converged = |why: String| Error::NotConverged {
        operation: "eigh",
        why,
    };
    for i in 0..n {
        if let Some((_, j)) = first_non_finite(c.submatrix(i, 0, 1, i + 1)) {
            return Err(not_converged(format!(
                "element ({i}, {j}) is {}",
                c[(i, j)]
            )));
        }
    }
    if n == 0 {
        return Ok(Eigen {
            values: Vec::new(),
            vectors: Mat::new(),
        });
    }
    let (mut values, mut vectors) = (Diag::<T>::zeros(n), Mat::<T>::zeros(n, n));
    let mut memory = MemBuffer::new(evd_scratch::<T>(n));
    ascending(
        c,
        values.as_mut(),
        vectors.as_mut(),
        MemStack::new(&mut memory),
    )
    .map_err(|error| not_converged(format!("{error:?}")))?;
    drop(memory);
    let ascending = values.column_vector();
    let values = (0..k).map(|j| ascending[n - 1 - j]).collect();
    Ok(Eigen {
        values,
        vectors: vectors.as_ref().subcols(n - k, k).reverse_cols().to_owned(),
    })
}

/// All eigenvalues, the smallest first, and their vectors. Between its two halves, the matrix is scaled as
/// LAPACK's `dstedc` does: divide and conquer in faer leaves out couplings by what they are beside 1.
fn ascending<T: Real>(
    c: MatRef<'_, T>,
    mut values: DiagMut<'_, T>,
    mut vectors: MatMut<'_, T>,
    stack: &mut MemStack,
) -> Result<(), EvdError> {
    let n = c.nrows();
    let width = recommended_block_size::<T>(n, n);
    let (mut reduced, stack) = temp_mat_zeroed::<T, _, _>(n, n, stack);
    let (mut reflectors, stack) = temp_mat_zeroed::<T, _, _>(width, n - 1, stack);
    let (mut reduced, mut reflectors) = (reduced.as_mat_mut(), reflectors.as_mat_mut());
    reduced.copy_from_triangular_lower(c);
    let parameters = Default::default();
    tridiag_in_place(
        reduced.as_mut(),
        reflectors.as_mut(),
        Par::Seq,
        stack,
        parameters,
    );
    let (mut diagonal, mut below) = (Diag::<T>::zeros(n), Diag::<T>::zeros(n));
    for i in 0..n {
        diagonal[i] = reduced[(i, i)];
        below[i] = if i + 1 < n {
            reduced[(i + 1, i)]
        } else {
            T::ZERO
        };
    }
    let largest = [&diagonal, &below].map(|part| part.column_vector().norm_max().f64());
    let exponent = exponent::<T>(largest[0].max(largest[1]));
    let scale = |part: DiagMut<'_, T>, exponent: f64| {
        let power = T::of(exponent.exp2());
        let elements = part.column_vector_mut();
        elements.iter_mut().for_each(|element| *element *= power);
    };
    scale(diagonal.as_mut(), -exponent);
    scale(below.as_mut(), -exponent);
    tridiagonal_self_adjoint_evd(
        diagonal.as_ref(),
        below.as_ref(),
        values.as_mut(),
        Some(vectors.as_mut()),
        Par::Seq,
        stack,
        Default::default(),
    )?;
    scale(values, exponent);
    apply_block_householder_sequence_on_the_left_in_place_with_conj(
        reduced.as_ref().submatrix(1, 0, n - 1, n - 1),
        reflectors.as_ref(),
        Conj::No,
        vectors.subrows_mut(1, n - 1),
        Par::Seq,
        stack,
    );
    Ok(())
}

/// A number lies between 2 to this and twice that, as far as the type has both powers.
fn exponent<T: Real>(number: f64) -> f64 {
    let most = match T::DTYPE {
        RealType::F32 => 120.0,
        RealType::F64 => 1000.0,
    };
    number.log2().floor().clamp(-most, most)
}

/// Bytes that [`eigh`] allocates at its peak for an n x n matrix and k pairs, the result included.
pub fn eigh_scratch_bytes<T: Real>(n: usize, k: usize) -> usize {
    // faer rounds columns up to whole cache lines of the longest size.
    let column = (n + 16) * size_of::<T>();
    let square = n * column + 3 * column;
    let result = k * column;
    square + result.max(evd_scratch::<T>(n).unaligned_bytes_required()) + thread_bytes::<T>(n)
}

/// Bytes of those of [`eigh_scratch_bytes`] and [`svd_scratch_bytes`] that the thread keeps afterwards.
pub fn thread_bytes<T: Real>(n: usize) -> usize {
    // faer's own products pack both operands, 512 deep.
    (2 * n * n.min(512) * size_of::<T>()).min(FAER_THREAD_BYTES)
}

fn evd_scratch<T: Real>(n: usize) -> faer::dyn_stack::StackReq {
    self_adjoint_evd_scratch::<T>(n, ComputeEigenvectors::Yes, Par::Seq, Default::default())
}

/// The k largest eigenvalues of a symmetric matrix with their vectors, by products with it; the
/// dense [`eigh`] if these do not converge or k is not small.
///
/// Shapes: c is n x n, both triangles filled.
///
/// Cost: some 20 to 100 products of c with 16 columns; scratch [`eigh_top_scratch_bytes`], or
/// [`eigh_scratch_bytes`] after a fall-back.
///
/// # Errors
/// As [`eigh`].
///
/// Determinism: the same seed gives the same bits on the same kind of CPU.
pub fn eigh_top<T: Real>(
    c: MatRef<'_, T>,
    k: usize,
    options: &TopOptions,
    blas: &Blas,
) -> Result<Eigen<T>, Error> {
    let n = c.nrows();
    if c.ncols() != n || k > n {
        return Err(Error::shape("eigh_top", &[("c", &c.shape()), ("k", &k)]));
    }
    if basis_columns(k, options) * 2 > n {
        return eigh(c, Some(k));
    }
    let apply = |v: MatRef<'_, T>, cv: MatMut<'_, T>| gemm(cv, T::ONE, c, v, T::ZERO, blas);
    match eigh_top_with(n, k, apply, options, blas) {
        Err(Error::NotConverged { .. }) => eigh(c, Some(k)),
        other => other,
    }
}

/// Bytes that [`eigh_top_with`] holds at its peak.
pub fn eigh_top_scratch_bytes<T: Real>(n: usize, k: usize, options: &TopOptions) -> usize {
    let block = options.block.max(1);
    let columns = basis_columns(k, options) + block;
    let shapes = [
        (columns, columns, n),
        (n, columns, columns),
        (n, block, columns),
    ];
    let product = shapes.map(|(rows, cols, depth)| {
        crate::gemm_scratch_bytes::<T>(rows, cols, depth, &Blas::Builtin)
    });
    // Basis and image; a block on its way into the basis; the problem seen from the basis; rows
    // that a restart rotates.
    let elements = 2 * n * columns + 5 * n * block + 6 * columns * columns + ROTATED_ROWS * columns;
    elements * size_of::<T>() + product.into_iter().fold(0, usize::max)
}

/// As [`eigh_top`], for a matrix that is given by `apply(v, cv)`, which writes C v into cv; both
/// are n x block at most. `apply` may fail, which ends the search: a caller cancels this way.
///
/// # Errors
/// Those of `apply`; [`Error::Shape`] if k > n; [`Error::NotConverged`] after `products_max`
/// products or if numbers are not finite.
pub fn eigh_top_with<T: Real, E: From<Error>>(
    n: usize,
    k: usize,
    mut apply: impl FnMut(MatRef<'_, T>, MatMut<'_, T>) -> Result<(), E>,
    options: &TopOptions,
    blas: &Blas,
) -> Result<Eigen<T>, E> {
    if k > n {
        return Err(Error::shape("eigh_top", &[("n", &n), ("k", &k)]).into());
    }
    if k == 0 {
        return Ok(Eigen {
            values: Vec::new(),
            vectors: Mat::zeros(n, 0),
        });
    }
    let mut basis = Basis::<T>::new(n, k, options, blas);
    let mut worst = f64::INFINITY;
    for _product in 0..options.products_max.max(1) {
        basis.extend(&mut apply)?;
        if !basis.full() {
            continue;
        }
        let ritz = basis.rayleigh_ritz()?;
        worst = basis.restart(&ritz)?;
        if worst <= basis.tolerance(options) {
            return Ok(basis.result(ritz, k));
        }
        if worst.is_nan() {
            break;
        }
    }
    let why = format!("the largest residual is {worst:.1e} of the largest eigenvalue");
    Err(Error::NotConverged {
        operation: "eigh_top",
        why,
    }
    .into())
}

/// Columns at which the space is contracted: the kept ones and several blocks.
fn basis_columns(k: usize, options: &TopOptions) -> usize {
    let block = options.block.max(1);
    options
        .basis
        .unwrap_or(2 * k + 4 * block)
        .max(k + 3 * block)
        .next_multiple_of(block)
}

/// Rows of the basis that a restart rotates at once.
const ROTATED_ROWS: usize = 256;

/// An orthonormal basis V of a growing Krylov space with its image CV.
struct Basis<'a, T> {
    n: usize,
    wanted: usize,
    /// Columns in use of `v`; the last `block` of them have no image yet.
    used: usize,
    block: usize,
    v: Mat<T>,
    cv: Mat<T>,
    blas: &'a Blas,
    random: SplitMix,
}

impl<'a, T: Real> Basis<'a, T> {
    fn new(n: usize, k: usize, options: &TopOptions, blas: &'a Blas) -> Self {
        let block = options.block.clamp(1, n);
        let capacity = (basis_columns(k, options) + block).min(n);
        let mut random = SplitMix(options.seed);
        let mut v = Mat::zeros(n, capacity);
        for j in 0..block {
            for i in 0..n {
                v[(i, j)] = T::of(random.normal_like());
            }
        }
        let first = thin_q(v.as_ref().subcols(0, block));
        v.as_mut().subcols_mut(0, block).copy_from(&first);
        Self {
            n,
            wanted: k,
            used: block,
            block,
            v,
            cv: Mat::zeros(n, capacity),
            blas,
            random,
        }
    }

    fn full(&self) -> bool {
        self.used + self.block > self.v.ncols() || self.imaged() == self.n
    }

    /// Columns whose image is known.
    fn imaged(&self) -> usize {
        self.used - self.block
    }

    fn tolerance(&self, options: &TopOptions) -> f64 {
        // Rounding of C v alone leaves about eps * sqrt(n) of lambda_1.
        options
            .tolerance
            .max(4.0 * T::EPSILON.f64() * (self.n as f64).sqrt())
    }

    /// Applies C to the newest block and appends the new directions of the result as the next
    /// block.
    fn extend<E: From<Error>>(
        &mut self,
        apply: &mut impl FnMut(MatRef<'_, T>, MatMut<'_, T>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (newest, block) = (self.imaged(), self.block);
        apply(
            self.v.as_ref().subcols(newest, block),
            self.cv.as_mut().subcols_mut(newest, block),
        )?;
        let image = self.cv.as_ref().subcols(newest, block).to_owned();
        self.append(image)?;
        Ok(())
    }

    /// Makes `w` orthonormal to the basis and appends it, unless the basis spans the whole space.
    fn append(&mut self, mut w: Mat<T>) -> Result<(), Error> {
        let room = self.v.ncols() - self.used;
        let block = self.block.min(room);
        let old = self.v.as_ref().subcols(0, self.used);
        let mut coefficients = Mat::<T>::zeros(self.used, w.ncols());
        // Classical Gram-Schmidt against the basis, three times with a QR between: twice is enough
        // (Giraud et al.), the third is for columns without a new direction, which are replaced by
        // noise.
        for _pass in 0..3 {
            gemm(
                coefficients.as_mut(),
                T::ONE,
                old.transpose(),
                w.as_ref(),
                T::ZERO,
                self.blas,
            )?;
            gemm(
                w.as_mut(),
                T::of(-1.0),
                old,
                coefficients.as_ref(),
                T::ONE,
                self.blas,
            )?;
            for j in 0..w.ncols() {
                if w.col(j).norm_l2().f64() == 0.0 {
                    (0..self.n).for_each(|i| w[(i, j)] = T::of(self.random.normal_like()));
                }
            }
            w = thin_q(w.as_ref());
        }
        self.v
            .as_mut()
            .subcols_mut(self.used, block)
            .copy_from(w.as_ref().subcols(0, block));
        self.used += block;
        self.block = block;
        Ok(())
    }

    /// The eigenpairs of C projected on the imaged part of the basis.
    fn rayleigh_ritz(&self) -> Result<Eigen<T>, Error> {
        let columns = self.imaged();
        let (v, cv) = (
            self.v.as_ref().subcols(0, columns),
            self.cv.as_ref().subcols(0, columns),
        );
        let mut h = Mat::<T>::zeros(columns, columns);
        gemm(h.as_mut(), T::ONE, v.transpose(), cv, T::ZERO, self.blas)?;
        for j in 0..columns {
            for i in j..columns {
                h[(i, j)] = (h[(i, j)] + h[(j, i)]) * T::of(0.5);
            }
        }
        eigh(h.as_ref(), None)
    }

    /// Contracts the basis to the best Ritz vectors and the newest block. Returns the largest
    /// residual of the wanted pairs, relative to the largest value.
    fn restart(&mut self, ritz: &Eigen<T>) -> Result<f64, Error> {
        let (columns, newest) = (self.imaged(), self.block);
        // Vectors beyond the wanted ones speed up the last of these.
        let keep = (self.wanted + 2 * newest)
            .min(columns)
            .max(self.wanted.min(columns));
        let y = ritz.vectors.as_ref().subcols(0, keep);
        let next = self.v.as_ref().subcols(columns, newest).to_owned();
        rotate(self.v.as_mut(), y, self.blas)?;
        rotate(self.cv.as_mut(), y, self.blas)?;
        let largest = ritz
            .values
            .iter()
            .map(|x| x.f64().abs())
            .fold(0.0, f64::max);
        let worst = (0..self.wanted.min(keep))
            .map(|j| residual(&self.v, &self.cv, ritz.values[j], j))
            .fold(0.0, nan_max);
        self.v.as_mut().subcols_mut(keep, newest).copy_from(&next);
        self.used = keep + newest;
        Ok(if largest == 0.0 {
            worst
        } else {
            worst / largest
        })
    }

    /// The pairs after a restart.
    fn result(self, ritz: Eigen<T>, k: usize) -> Eigen<T> {
        let Basis { v, cv, .. } = self;
        drop(cv);
        Eigen {
            values: ritz.values[..k].to_vec(),
            vectors: v.as_ref().subcols(0, k).to_owned(),
        }
    }
}

/// The first columns of `v` become V Y, in place: rows do not depend on each other.
fn rotate<T: Real>(mut v: MatMut<'_, T>, y: MatRef<'_, T>, blas: &Blas) -> Result<(), Error> {
    let mut rotated = Mat::<T>::zeros(ROTATED_ROWS.min(v.nrows()), y.ncols());
    for first in (0..v.nrows()).step_by(ROTATED_ROWS) {
        let rows = ROTATED_ROWS.min(v.nrows() - first);
        let mut part = rotated.as_mut().subrows_mut(0, rows);
        gemm(
            part.as_mut(),
            T::ONE,
            v.as_ref().submatrix(first, 0, rows, y.nrows()),
            y,
            T::ZERO,
            blas,
        )?;
        v.as_mut()
            .submatrix_mut(first, 0, rows, y.ncols())
            .copy_from(part);
    }
    Ok(())
}

fn residual<T: Real>(v: &Mat<T>, cv: &Mat<T>, value: T, j: usize) -> f64 {
    let squares = (0..v.nrows())
        .map(|i| cv[(i, j)].f64() - value.f64() * v[(i, j)].f64())
        .map(|r| r * r);
    squares.sum::<f64>().sqrt()
}

/// The larger, or NaN if either is.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// An orthonormal basis of the columns of `a`, by Householder QR: column j of the result spans,
/// with those before it, the first j columns of `a`. Dependent columns get directions of their own,
/// so the result is orthonormal always.
///
/// Shapes: a is m x n with m >= n; the result is m x n. Cost: 4mn^2 flops, allocates 2 mn elements.
///
/// # Errors
/// [`Error::Shape`] when m < n.
pub fn orthonormalize<T: Real>(a: MatRef<'_, T>) -> Result<Mat<T>, Error> {
    if a.nrows() < a.ncols() {
        return Err(Error::shape("orthonormalize", &[("a", &a.shape())]));
    }
    Ok(thin_q(a))
}

/// A = U diag(s) V^T.
#[derive(Clone, Debug)]
pub struct Svd<T> {
    /// n values, descending.
    pub values: Vec<T>,
    /// n x n, left singular vectors as columns.
    pub left: Mat<T>,
    /// n x n, right singular vectors as columns.
    pub right: Mat<T>,
}

/// The singular values and vectors of a square matrix.
///
/// Shapes: a is n x n. Cost: about 20 n^3 flops, a few times as many for some matrices of many equal values, not interruptible;
/// allocates some 8 n^2 elements.
///
/// # Errors
/// [`Error::Shape`]; [`Error::NotConverged`] for NaN or infinity, and where U S V^T is not a.
pub fn svd<T: Real>(a: MatRef<'_, T>) -> Result<Svd<T>, Error> {
    let n = a.nrows();
    if a.ncols() != n {
        return Err(Error::shape("svd", &[("a", &a.shape())]));
    }
    let not_converged = |why| Error::NotConverged {
        operation: "svd",
        why,
    };
    if let Some((i, j)) = first_non_finite(a) {
        return Err(not_converged(format!(
            "element ({i}, {j}) is {}",
            a[(i, j)]
        )));
    }
    if n == 0 {
        return Ok(Svd {
            values: Vec::new(),
            left: Mat::new(),
            right: Mat::new(),
        });
    }
    // Divide and conquer, or else QR iteration throughout: slower, where there are many different values.
    let usual = <SvdParams as Auto<T>>::auto();
    for recursion_threshold in [usual.recursion_threshold, n + 1] {
        let params = SvdParams {
            recursion_threshold,
            ..usual
        };
        let found = decomposed(a, params).map_err(|error| not_converged(format!("{error:?}")))?;
        if found.makes(a) {
            return Ok(found);
        }
    }
    Err(not_converged("U S V^T is not A".into()))
}

/// Of at least one column.
fn decomposed<T: Real>(a: MatRef<'_, T>, params: SvdParams) -> Result<Svd<T>, SvdError> {
    let (n, params) = (a.nrows(), Spec::<SvdParams, T>::new(params));
    let (mut left, mut right, mut values) = (Mat::zeros(n, n), Mat::zeros(n, n), Diag::zeros(n));
    let full = ComputeSvdVectors::Full;
    let scratch = linalg::svd::svd_scratch::<T>(n, n, full, full, Par::Seq, params);
    linalg::svd::svd(
        a,
        values.as_mut(),
        Some(left.as_mut()),
        Some(right.as_mut()),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        params,
    )?;
    let values = values.column_vector();
    Ok(Svd {
        values: (0..n).map(|j| values[j]).collect(),
        left,
        right,
    })
}

impl<T: Real> Svd<T> {
    /// Whether U S V^T is this matrix, but for rounding. Of one in six matrices whose values are zero or one and the same, divide
    /// and conquer as faer 0.24 has it finds a ten-thousandth of this value in the place of a zero.
    fn makes(&self, a: MatRef<'_, T>) -> bool {
        let n = a.nrows();
        let scaled = Mat::from_fn(n, n, |i, j| self.left[(i, j)] * self.values[j]);
        let rest = (scaled * self.right.transpose() - a).norm_max().f64();
        let least = math_utils::min_positive::<T>().f64();
        rest <= 16.0 * n as f64 * (T::EPSILON.f64() * self.values[0].f64() + least)
    }
}

/// Bytes that [`svd`] allocates at its peak, the result included.
pub fn svd_scratch_bytes<T: Real>(n: usize) -> usize {
    let column = (n + 16) * size_of::<T>();
    10 * n * column + thread_bytes::<T>(n)
}

fn thin_q<T: Real>(a: MatRef<'_, T>) -> Mat<T> {
    if a.ncols() == 0 {
        Mat::zeros(a.nrows(), 0)
    } else {
        a.qr().compute_thin_Q()
    }
}

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The sum of four uniform numbers, centred: close enough to a normal distribution for a start
    /// vector, and the same on every CPU.
    fn normal_like(&mut self) -> f64 {
        let uniform = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (0..4).map(|_| uniform(self.next())).sum()
    }
}
