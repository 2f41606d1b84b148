//! C = alpha A A^T + beta C on the lower triangle: half the flops of the general product.
//!
//! On AVX-512 the tiles above the diagonal are skipped. Elsewhere the triangle is halved
//! recursively: the square below the diagonal is a [`gemm`](crate::gemm()), the two triangles are
//! smaller problems, and a triangle of at most 64 rows is computed as a full square in scratch, of
//! which the lower part is added. The additional flops are 64 nk, compared to n^2 k.
#![forbid(unsafe_code)]

use crate::{Blas, Error, Real, gemm_until, view_mut};
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

/// Rows of the triangle that is computed as a square: 64 x 64 f64 are 32 KiB of stack.
const LEAF: usize = 64;
/// Most flops of one call of a user's library: 0.1 s on half a core. Longer ones are halved first.
const CALL_FLOPS: u64 = 1 << 30;

/// Lower triangle of c (diagonal included) = alpha a a^T + beta c; the strict upper triangle is
/// neither read nor written.
///
/// Shapes: c is n x n, a is n x k, any strides; `a.transpose()` gives a^T a. When `beta` is 0, c is
/// only written.
///
/// Cost: at most n(n + 64)k flops, scratch [`gemm_scratch_bytes`](crate::gemm_scratch_bytes)(n, n,
/// k) and 32 KiB of stack.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: as [`gemm`](crate::gemm()).
pub fn syrk<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
) -> Result<(), Error> {
    syrk_until(c, alpha, a, beta, blas, &|| false)
}

/// As [`syrk`](crate::syrk()), until `stop` returns true; it is called at least every 0.1 s or so.
/// The content of c is then unspecified.
///
/// # Errors
/// [`Error::Shape`].
pub fn syrk_until<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let n = c.nrows();
    if c.ncols() != n || a.nrows() != n {
        return Err(Error::shape(
            "syrk",
            &[("c", &c.shape()), ("a", &a.shape())],
        ));
    }
    if let Blas::Loaded(library) = blas
        && n > 0
        && a.ncols() > 0
        && let Some(call) = library.plan_syrk(c.as_ref(), a)
        && syrk_flops(n, a.ncols()) <= CALL_FLOPS
    {
        call.run(c, alpha, a, beta);
        return Ok(());
    }
    if matches!(blas, Blas::Builtin) && crate::gemm::builtin::syrk(&mut c, alpha, a, beta, stop) {
        return Ok(());
    }
    halves(c, alpha, a, beta, blas, stop)
}

/// n(n+1)k, the flops of the lower triangle.
pub fn syrk_flops(n: usize, k: usize) -> u64 {
    (n as u64)
        .saturating_mul(n as u64 + 1)
        .saturating_mul(k as u64)
}

fn halves<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let n = c.nrows();
    if stop() {
        return Ok(());
    }
    if n <= LEAF {
        return leaf(c, alpha, a, beta, blas, stop);
    }
    // Split on a multiple of the leaf, so that the leaves are full.
    let half = (n / 2).next_multiple_of(LEAF).min(n - 1);
    let (top, _, below, bottom) = c.split_at_mut(half, half);
    let (a_top, a_bottom) = a.split_at_row(half);
    gemm_until(below, alpha, a_bottom, a_top.transpose(), beta, blas, stop)?;
    smaller(top, alpha, a_top, beta, blas, stop)?;
    smaller(bottom, alpha, a_bottom, beta, blas, stop)
}

/// A smaller triangle, by the user's library if there is one.
fn smaller<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    match blas {
        Blas::Builtin => halves(c, alpha, a, beta, blas, stop),
        Blas::Loaded(_) => syrk_until(c, alpha, a, beta, blas, stop),
    }
}

fn leaf<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let n = c.nrows();
    let mut square = [T::ZERO; LEAF * LEAF];
    let mut square = view_mut(&mut square, n, n, 1, LEAF)?;
    gemm_until(
        square.rb_mut(),
        alpha,
        a,
        a.transpose(),
        T::ZERO,
        blas,
        stop,
    )?;
    for j in 0..n {
        for i in j..n {
            let old = if beta == T::ZERO {
                T::ZERO
            } else {
                beta * c[(i, j)]
            };
            c[(i, j)] = square[(i, j)] + old;
        }
    }
    Ok(())
}

/// Copies the strict lower triangle of a square matrix onto the upper one.
///
/// Cost: reads and writes n^2 / 2 elements, in blocks so that both directions stay in cache.
///
/// # Errors
/// [`Error::Shape`].
pub fn mirror_lower<T: Real>(mut c: MatMut<'_, T>) -> Result<(), Error> {
    const BLOCK: usize = 32;
    let n = c.nrows();
    if c.ncols() != n {
        return Err(Error::shape("mirror_lower", &[("c", &c.shape())]));
    }
    for i0 in (0..n).step_by(BLOCK) {
        for j0 in (0..=i0).step_by(BLOCK) {
            for i in i0..n.min(i0 + BLOCK) {
                for j in j0..i.min(j0 + BLOCK) {
                    c[(j, i)] = c[(i, j)];
                }
            }
        }
    }
    Ok(())
}
