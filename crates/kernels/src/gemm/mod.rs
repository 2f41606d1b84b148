//! C = alpha A B + beta C for every layout, on the built-in kernel or on a BLAS that the user brings.
//!
//! One call runs on one thread: the engine keeps the cores busy with one call each. Transposes are views
//! (`a.transpose()`), so nothing here has transpose flags.
//!
//! Source of the blocking: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
//! 2008; the micro-kernels are our own on AVX-512, which most of the time goes to on machines that have it, and those of the `gemm`
//! crate elsewhere.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod builtin;

use crate::{Blas, Error, Real};
use faer::{MatMut, MatRef};
use std::mem::size_of;

/// Floating point operations that one call should not exceed, so that it ends within half a second (the longest that
/// an interrupt waits) on a core that reaches 16 GFLOP/s, a tenth of what AVX2 gives in f32.
pub const CALL_FLOPS: u64 = 1 << 33;

/// c = alpha a b + beta c.
///
/// Shapes: c is m x n, a is m x k, b is k x n, any strides. When `beta` is 0, c is only written: NaN in it is gone. When
/// `alpha` is 0 or k is 0, a and b are not read.
///
/// Cost: 2mnk flops, scratch [`gemm_scratch_bytes`]; keep to [`CALL_FLOPS`] a call.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the same shapes, strides and CPU give the same bits on the built-in kernel.
pub fn gemm<T: Real>(c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T, blas: &Blas) -> Result<(), Error> {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    if a.nrows() != m || b.nrows() != k || b.ncols() != n {
        let (a, b) = (a.shape(), b.shape());
        return Err(Error::shape("gemm", &[("c", &(m, n)), ("a", &a), ("b", &b)]));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 || alpha == T::ZERO {
        crate::scale(c, beta);
        return Ok(());
    }
    // Element-wise orders of a narrow product are the built-in kernel's business; a BLAS takes what its strides can say.
    if let Blas::Loaded(library) = blas
        && let Some(call) = library.plan_gemm(c.as_ref(), a, b)
    {
        call.run(c, alpha, a, b, beta);
        return Ok(());
    }
    builtin::gemm(c, alpha, a, b, beta);
    Ok(())
}

/// 2mnk, the flops of a product.
pub fn gemm_flops(m: usize, n: usize, k: usize) -> u64 {
    2 * (m as u64).saturating_mul(n as u64).saturating_mul(k as u64)
}

/// Bytes that a thread holds while it runs [`gemm`](crate::gemm()) on these shapes, whatever the layout: packed panels and the slab that the
/// thread keeps. For a library that the user brings it is an allowance, since the library does not tell.
pub fn gemm_scratch_bytes<T: Real>(m: usize, n: usize, k: usize, blas: &Blas) -> usize {
    match blas {
        Blas::Builtin => builtin::scratch_bytes(m, n, k, size_of::<T>()),
        Blas::Loaded(library) => {
            builtin::scratch_bytes(m, n, k, size_of::<T>()).max(library.scratch_bytes(m, n, k, size_of::<T>()))
        }
    }
}
