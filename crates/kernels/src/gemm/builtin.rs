//! Chooses the kernel and the orientation of a product, and calls the `gemm` crate in parts, so
//! that its packing buffer is small.
//!
//! Both kernels write columns of C. The crate packs `depth` x `columns` of the right operand into
//! one buffer, with columns up to what the last-level cache holds: tens of MiB a thread. Cut into
//! panels of [`PANEL_COLUMNS`] columns and [`PANEL_DEPTH`] of depth it stays at 2 MiB (f32) and
//! runs as fast, because the left operand is packed block by block in the second-level cache
//! anyway.
#![allow(unsafe_code)]

use crate::Real;
use faer::reborrow::ReborrowMut;
use faer::{Mat, MatMut, MatRef};

/// Columns of the packed panel: 512 x 1024 elements are 2 MiB in f32, 4 MiB in f64.
const PANEL_COLUMNS: usize = 1024;
/// Depth of the packed panel.
const PANEL_DEPTH: usize = 512;
/// Rows of one call of the crate, which cannot be interrupted: 2^30 operations, 0.1 s on half a
/// core. The panel is packed for each.
const CALL_ROWS: usize = 1024;

/// From this side length of C on, packing both operands pays.
#[cfg(target_arch = "x86_64")]
const PACKED: usize = 64;

/// A product whose shorter side has at most this many columns is bound by reading the other
/// operand.
const NARROW: usize = 256;
/// Elements of the buffer through which a narrow product changes layout: 512 KiB in f64.
const NARROW_BUFFER: usize = 1 << 16;

pub(super) fn gemm<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    let (c, a, b) = if c.nrows() < c.ncols() {
        (c.transpose_mut(), b.transpose(), a.transpose())
    } else {
        (c, a, b)
    };
    if c.ncols() <= NARROW && c.nrows() > c.ncols() {
        narrow(c, alpha, a, b, beta, stop)
    } else {
        oriented(c, alpha, a, b, beta, stop)
    }
}

/// The tall operand is read fastest along its contiguous direction, which determines the layout
/// that C should have; a C of the other layout is written through a buffer. Otherwise reading is up
/// to five times slower.
fn narrow<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    let (m, n) = c.shape();
    let by_columns = a.row_stride().unsigned_abs() == 1;
    let column;
    let b = if n == 1 && b.row_stride() != 1 {
        column = b.to_owned();
        column.as_ref()
    } else {
        b
    };
    let fits = match (n, by_columns) {
        (1, true) => c.row_stride() == 1,
        (1, false) => true,
        _ => by_columns == (c.row_stride().unsigned_abs() <= c.col_stride().unsigned_abs()),
    };
    if fits || (!by_columns && a.col_stride().unsigned_abs() != 1) {
        return oriented(c, alpha, a, b, beta, stop);
    }
    let height = (NARROW_BUFFER / n).min(m);
    let mut buffer = Mat::<T>::zeros(
        if by_columns { height } else { n },
        if by_columns { n } else { height },
    );
    for top in (0..m).step_by(height) {
        let rows = height.min(m - top);
        let whole = buffer.as_mut();
        let mut part = if by_columns {
            whole
        } else {
            whole.transpose_mut()
        }
        .subrows_mut(0, rows);
        oriented(part.rb_mut(), alpha, a.subrows(top, rows), b, T::ZERO, stop);
        let c = c.rb_mut().subrows_mut(top, rows);
        crate::axpby(c, T::ONE, part.as_ref(), beta)
            .expect("two blocks of the same rows and columns");
    }
}

fn oriented<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    // The kernel writes columns of C; a row-major C is the transposed product.
    if c.col_stride().unsigned_abs() < c.row_stride().unsigned_abs() {
        columns(
            c.transpose_mut(),
            alpha,
            b.transpose(),
            a.transpose(),
            beta,
            stop,
        );
    } else {
        columns(c, alpha, a, b, beta, stop);
    }
}

fn columns<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    #[cfg(target_arch = "x86_64")]
    if c.row_stride() == 1 && c.nrows().min(c.ncols()) >= PACKED && super::avx512::available() {
        return super::avx512::gemm(c, alpha, a, b, beta, super::avx512::Triangle::Whole, stop);
    }
    panels(c, alpha, a, b, beta, stop);
}

/// The lower triangle of c = alpha a a^T + beta c, if there is a kernel that skips tiles above the
/// diagonal.
pub(crate) fn syrk<T: Real>(
    c: &mut MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) -> bool {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (c, alpha, a, beta, stop);
    #[cfg(target_arch = "x86_64")]
    if c.nrows() >= PACKED && a.ncols() > 0 && alpha != T::ZERO && super::avx512::available() {
        use super::avx512::{Triangle, gemm};
        let c = c.rb_mut();
        match (c.row_stride(), c.col_stride()) {
            (1, _) => gemm(c, alpha, a, a.transpose(), beta, Triangle::Lower, stop),
            (_, 1) => gemm(
                c.transpose_mut(),
                alpha,
                a,
                a.transpose(),
                beta,
                Triangle::Upper,
                stop,
            ),
            _ => return false,
        }
        return true;
    }
    false
}

fn panels<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    // Equal parts: a last part of a single row or column would be summed in another order.
    for (column, columns) in parts(n, PANEL_COLUMNS) {
        for depth in (0..k).step_by(PANEL_DEPTH) {
            let run = PANEL_DEPTH.min(k - depth);
            let beta = if depth == 0 { beta } else { T::ONE };
            let b = b.submatrix(depth, column, run, columns);
            for (row, rows) in parts(m, CALL_ROWS) {
                if stop() {
                    return;
                }
                call(
                    c.rb_mut().submatrix_mut(row, column, rows, columns),
                    alpha,
                    a.submatrix(row, depth, rows, run),
                    b,
                    beta,
                );
            }
        }
    }
}

/// Starts and lengths of as few parts as possible, of at most `most`, whose lengths differ by at
/// most one.
fn parts(length: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = length.div_ceil(most);
    let start = move |part: usize| length / count.max(1) * part + (length % count.max(1)).min(part);
    (0..count).map(move |part| (start(part), start(part + 1) - start(part)))
}

fn call<T: Real>(c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T) {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    assert!(a.nrows() == m && b.nrows() == k && b.ncols() == n);
    // SAFETY: the shapes agree (asserted), so the kernel stays inside the three views; the views
    // promise that their elements are readable, C's writable and disjoint from A and B (a mutable
    // borrow). T is f32 or f64. With beta 0 the kernel does not read C.
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

/// The crate packs the right panel. It packs the left operand as a whole if that is at most two
/// blocks of its rows, and otherwise block by block into a slab as large as the second-level cache,
/// of which it touches [`SLAB_BYTES`]. The kernel for AVX-512 packs less.
pub(super) fn scratch_bytes(m: usize, n: usize, k: usize, element: usize) -> usize {
    if m == 0 || n == 0 || k == 0 {
        return 0;
    }
    let long = m.max(n);
    let packed = (long.min(PANEL_COLUMNS) + long.min(2 * BLOCK_ROWS) + 2 * MARGIN)
        * k.min(PANEL_DEPTH)
        * element;
    let narrow = if m.min(n) <= NARROW {
        (NARROW_BUFFER + NARROW).min(m * n + NARROW) * element
    } else {
        0
    };
    let vector = if m.min(n) == 1 { k * element } else { 0 };
    SLAB_BYTES + packed + narrow + vector
}

/// Rows of a block of the left operand: eight micro-panels, of at most 48 rows (f32 on AVX-512).
const BLOCK_ROWS: usize = 8 * 48;
/// Micro-panels are rounded up, and buffers aligned.
const MARGIN: usize = 64;
/// 8 micro-panels x 512 of depth: 768 KiB whatever the type.
const SLAB_BYTES: usize = 1 << 20;
