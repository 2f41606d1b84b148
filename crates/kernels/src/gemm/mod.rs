//! C = alpha A B + beta C for every layout, on the built-in kernel or on a BLAS of the user.
//!
//! One call runs on one thread: the engine keeps the cores busy with one call each. Transposes are
//! views (`a.transpose()`), so nothing here has transpose flags.
//!
//! Source of the blocking: Goto and van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication", ACM TOMS 34(3), 2008. The micro-kernels are our own on AVX-512, and those of
//! the `gemm` crate elsewhere.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod builtin;

use crate::blas::Loaded;
use crate::{Blas, Error, Real};
use faer::{MatMut, MatRef};
use std::mem::size_of;

/// Sides of one call of a user's library: 2^30 operations, 0.1 s on half a core. Such a call cannot
/// be interrupted.
const CALL_SIDES: [usize; 3] = [1024, 1024, 512];

/// c = alpha a b + beta c.
///
/// Shapes: c is m x n, a is m x k, b is k x n, any strides. When `beta` is 0, c is only written:
/// NaN in it is gone. When `alpha` is 0 or k is 0, a and b are not read.
///
/// Cost: 2mnk flops, scratch [`gemm_scratch_bytes`].
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the same shapes, strides and CPU give the same bits on the built-in kernel.
pub fn gemm<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
) -> Result<(), Error> {
    gemm_until(c, alpha, a, b, beta, blas, &|| false)
}

/// As [`gemm`](crate::gemm()), until `stop` returns true; it is called at least every 0.1 s or so.
/// The content of c is then unspecified.
///
/// # Errors
/// [`Error::Shape`].
pub fn gemm_until<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    if a.nrows() != m || b.nrows() != k || b.ncols() != n {
        let (a, b) = (a.shape(), b.shape());
        return Err(Error::shape(
            "gemm",
            &[("c", &(m, n)), ("a", &a), ("b", &b)],
        ));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 || alpha == T::ZERO {
        crate::scale(c, beta);
        return Ok(());
    }
    // Buffered layouts of narrow products belong to the built-in kernel; a BLAS gets the strides
    // that it can express.
    if let Blas::Loaded(library) = blas
        && library.plan_gemm(c.as_ref(), a, b).is_some()
    {
        in_calls(library, c, alpha, a, b, beta, stop);
    } else {
        builtin::gemm(c, alpha, a, b, beta, stop);
    }
    Ok(())
}

/// A product by a library of the user, in calls short enough to check `stop` between them.
fn in_calls<T: Real>(
    library: &Loaded,
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    let [rows, cols, depths] = CALL_SIDES;
    let cut = |end: usize, step: usize| {
        (0..end)
            .step_by(step)
            .map(move |start| (start, step.min(end - start)))
    };
    for (row, rows) in cut(a.nrows(), rows) {
        for (col, cols) in cut(b.ncols(), cols) {
            for (depth, depths) in cut(a.ncols(), depths) {
                if stop() {
                    return;
                }
                let part = c.as_mut().submatrix_mut(row, col, rows, cols);
                let (a, b) = (
                    a.submatrix(row, depth, rows, depths),
                    b.submatrix(depth, col, depths, cols),
                );
                let beta = if depth == 0 { beta } else { T::ONE };
                match library.plan_gemm(part.as_ref(), a, b) {
                    Some(call) => call.run(part, alpha, a, b, beta),
                    // BLAS may be able to express a single row or column of a product that it
                    // cannot express as a whole.
                    None => builtin::gemm(part, alpha, a, b, beta, stop),
                }
            }
        }
    }
}

/// 2mnk, the flops of a product.
pub fn gemm_flops(m: usize, n: usize, k: usize) -> u64 {
    2 * (m as u64).saturating_mul(n as u64).saturating_mul(k as u64)
}

/// Bytes that a thread holds while it runs [`gemm`](crate::gemm()) on these shapes, whatever the
/// layout: packed panels and the slab that the thread keeps. For a library of the user it is an
/// estimate, since the library does not report it.
pub fn gemm_scratch_bytes<T: Real>(m: usize, n: usize, k: usize, blas: &Blas) -> usize {
    match blas {
        Blas::Builtin => builtin::scratch_bytes(m, n, k, size_of::<T>()),
        Blas::Loaded(library) => {
            let [rows, cols, depths] = CALL_SIDES;
            let called =
                library.scratch_bytes(m.min(rows), n.min(cols), k.min(depths), size_of::<T>());
            builtin::scratch_bytes(m, n, k, size_of::<T>()).max(called)
        }
    }
}
