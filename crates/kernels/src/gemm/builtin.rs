//! The call into the `gemm` crate, cut so that its packing buffer stays small.
//!
//! The crate packs `depth` x `columns` of the right operand into one buffer, with columns up to what the last-level
//! cache holds: tens of MiB a thread. Cut into panels of [`PANEL_COLUMNS`] columns and [`PANEL_DEPTH`] of depth it
//! stays at 2 MiB (f32) and runs as fast, because the left operand is packed block by block in the second-level cache anyway.
#![allow(unsafe_code)]

use crate::Real;
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

/// Columns of the packed panel: 512 x 1024 elements are 2 MiB in f32, 4 MiB in f64.
const PANEL_COLUMNS: usize = 1024;
/// Depth of the packed panel.
const PANEL_DEPTH: usize = 512;

pub(super) fn gemm<T: Real>(c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T) {
    // The kernel writes columns of C; a row-major C is the transposed product.
    if c.col_stride().unsigned_abs() < c.row_stride().unsigned_abs() {
        panels(c.transpose_mut(), alpha, b.transpose(), a.transpose(), beta);
    } else {
        panels(c, alpha, a, b, beta);
    }
}

fn panels<T: Real>(mut c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T) {
    let (n, k) = (c.ncols(), a.ncols());
    let mut column = 0;
    while column < n {
        let columns = PANEL_COLUMNS.min(n - column);
        let mut depth = 0;
        while depth < k {
            let run = PANEL_DEPTH.min(k - depth);
            let beta = if depth == 0 { beta } else { T::ONE };
            let b = b.submatrix(depth, column, run, columns);
            call(c.rb_mut().subcols_mut(column, columns), alpha, a.subcols(depth, run), b, beta);
            depth += run;
        }
        column += columns;
    }
}

fn call<T: Real>(c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T) {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    assert!(a.nrows() == m && b.nrows() == k && b.ncols() == n);
    // SAFETY: the shapes agree (asserted), so the kernel stays inside the three views; the views promise that their
    // elements are readable, C's writable and disjoint from A and B (a mutable borrow). T is f32 or f64. With beta 0
    // the kernel does not read C.
    unsafe {
        ::gemm::gemm(
            m,
            n,
            k,
            c.as_ptr_mut(),
            c.col_stride(),
            c.row_stride(),
            beta != T::ZERO,
            a.as_ptr(),
            a.col_stride(),
            a.row_stride(),
            b.as_ptr(),
            b.col_stride(),
            b.row_stride(),
            beta,
            alpha,
            false,
            false,
            false,
            ::gemm::Parallelism::None,
        );
    }
}

pub(super) fn scratch_bytes(m: usize, n: usize, k: usize, element: usize) -> usize {
    let wide = m.max(n).min(PANEL_COLUMNS) + 64;
    2 * wide * k.min(PANEL_DEPTH) * element + (1 << 20)
}
