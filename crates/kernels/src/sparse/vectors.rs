//! The loops of products with dense operands, for the vectors of the processor at hand.
//!
//! They are functions compiled for that processor, not closures: a closure that is too long to be
//! inlined would be compiled for the baseline processor.

use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};
use pulp::{Simd, WithSimd};

use super::lines::{Entries, Index, Lines, Window};
use crate::Real;
use crate::caches::fetch;
use crate::view::{row_slice, row_slice_mut, whole};

/// Most vectors of a row that are prefetched by software; hardware fetches the others in time.
const FETCHED: usize = 16;

/// c = alpha A x + beta c.
pub(super) struct Combine<'a, A, T: Real> {
    pub(super) c: MatMut<'a, T>,
    pub(super) alpha: T,
    pub(super) a: A,
    pub(super) window: Window,
    pub(super) x: MatRef<'a, T>,
    pub(super) beta: T,
}

impl<A: Lines<T>, T: Real> WithSimd for Combine<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Combine {
            mut c,
            alpha,
            a,
            window,
            x,
            beta,
        } = self;
        match whole(x) {
            Some(all) => {
                let x = Whole {
                    all,
                    width: x.ncols(),
                };
                a.each_line(
                    #[inline(always)]
                    |i, entries| {
                        combine(
                            simd,
                            entries,
                            window,
                            x,
                            row_slice_mut(&mut c, i).expect("by rows (checked)"),
                            alpha,
                            beta,
                        )
                    },
                );
            }
            None => a.each_line(
                #[inline(always)]
                |i, entries| {
                    combine(
                        simd,
                        entries,
                        window,
                        x,
                        row_slice_mut(&mut c, i).expect("by rows (checked)"),
                        alpha,
                        beta,
                    )
                },
            ),
        }
    }
}

/// c += alpha A^T x.
pub(super) struct Scatter<'a, A, T: Real> {
    pub(super) c: MatMut<'a, T>,
    pub(super) alpha: T,
    pub(super) a: A,
    pub(super) window: Window,
    pub(super) x: MatRef<'a, T>,
}

impl<A: Lines<T>, T: Real> WithSimd for Scatter<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Scatter {
            mut c,
            alpha,
            a,
            window,
            x,
        } = self;
        a.each_line(
            #[inline(always)]
            |i, entries| {
                scatter(
                    simd,
                    entries,
                    window,
                    row_slice(x, i).expect("by rows (checked)"),
                    &mut c,
                    alpha,
                )
            },
        );
    }
}

/// c += A^T (A x); `between` has room for a row of A x.
pub(super) struct Both<'a, A, T: Real> {
    pub(super) c: MatMut<'a, T>,
    pub(super) a: A,
    pub(super) all: Window,
    pub(super) x: MatRef<'a, T>,
    pub(super) between: &'a mut [T],
}

impl<A: Lines<T>, T: Real> WithSimd for Both<'_, A, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Both {
            mut c,
            a,
            all,
            x,
            between,
        } = self;
        a.each_line(
            #[inline(always)]
            |_, entries| {
                combine(simd, entries, all, x, between, T::ONE, T::ZERO);
                scatter(simd, entries, all, between, &mut c, T::ONE);
            },
        );
    }
}

/// Runs `$step` with `$N` vectors from column `$at` on, as many at a time as fit into registers,
/// until fewer than one is left; then `$rest`.
macro_rules! in_vectors {
    ($len:expr, $lanes:expr, $at:ident, $N:ident => $step:expr, $rest:expr) => {{
        let (len, lanes, mut $at) = ($len, $lanes, 0);
        while len - $at >= lanes {
            $at += lanes
                * match (len - $at) / lanes {
                    16.. if S::REGISTER_COUNT >= 32 => in_vectors!(@ 16, $N => $step),
                    8.. => in_vectors!(@ 8, $N => $step),
                    4.. => in_vectors!(@ 4, $N => $step),
                    2.. => in_vectors!(@ 2, $N => $step),
                    _ => in_vectors!(@ 1, $N => $step),
                };
        }
        if $at < len {
            $rest;
        }
    }};
    (@ $count:literal, $N:ident => $step:expr) => {{
        const $N: usize = $count;
        $step;
        $N
    }};
}

/// Contiguous rows.
trait Rows<T: Real>: Copy {
    /// Row `k`.
    fn row(&self, k: usize) -> &[T];

    /// Address of row `k`.
    fn place(&self, k: usize) -> *const T;

    /// Prefetches `len` elements of row `k` from `at` on.
    #[inline(always)]
    fn fetch(&self, k: usize, at: usize, len: usize) {
        let start = self.place(k).wrapping_add(at);
        for line in (0..len).step_by(64 / size_of::<T>()) {
            fetch(start.wrapping_add(line));
        }
    }
}

impl<T: Real> Rows<T> for MatRef<'_, T> {
    #[inline(always)]
    fn row(&self, k: usize) -> &[T] {
        row_slice(*self, k).expect("by rows (checked)")
    }

    #[inline(always)]
    fn place(&self, k: usize) -> *const T {
        self.as_ptr()
            .wrapping_offset((k as isize).wrapping_mul(self.row_stride()))
    }
}

/// Rows without gaps, whose addresses take one multiplication.
#[derive(Clone, Copy)]
struct Whole<'a, T> {
    all: &'a [T],
    width: usize,
}

impl<T: Real> Rows<T> for Whole<'_, T> {
    #[inline(always)]
    fn row(&self, k: usize) -> &[T] {
        &self.all[k * self.width..][..self.width]
    }

    #[inline(always)]
    fn place(&self, k: usize) -> *const T {
        self.all.as_ptr().wrapping_add(k.wrapping_mul(self.width))
    }
}

/// c = alpha (a x) + beta c, for one line a of the sparse matrix: sums stay in registers.
#[inline(always)]
fn combine<S: Simd, I: Index, T: Real>(
    simd: S,
    a: Entries<'_, I, T>,
    window: Window,
    x: impl Rows<T>,
    c: &mut [T],
    alpha: T,
    beta: T,
) {
    let (zero, factor, before) = (
        T::splat(simd, T::ZERO),
        T::splat(simd, alpha),
        T::splat(simd, beta),
    );
    in_vectors!(c.len(), T::lanes::<S>(), at, N => {
        let mut sums = [zero; N];
        a.each_ahead(
            window,
            N >= FETCHED,
            #[inline(always)]
            |k| x.fetch(k, at, N * T::lanes::<S>()),
            #[inline(always)]
            |k, value| {
                let (value, x): (_, &[T::Vector<S>; N]) = (T::splat(simd, value), T::vectors(simd, &x.row(k)[at..]));
                for j in 0..N {
                    sums[j] = T::fma(simd, value, x[j], sums[j]);
                }
            },
        );
        let c: &mut [T::Vector<S>; N] = T::vectors_mut(simd, &mut c[at..]);
        for j in 0..N {
            let kept = if beta == T::ZERO { zero } else { T::times(simd, before, c[j]) };
            c[j] = T::fma(simd, factor, sums[j], kept);
        }
    }, {
        let mut sum = zero;
        a.each_in(
            window,
            #[inline(always)]
            |k, value| sum = T::fma(simd, T::splat(simd, value), T::load(simd, &x.row(k)[at..]), sum),
        );
        let c = &mut c[at..];
        let kept = if beta == T::ZERO { zero } else { T::times(simd, before, T::load(simd, c)) };
        T::store(simd, c, T::fma(simd, factor, sum, kept));
    });
}

/// Adds alpha times a row of x to the rows of c named by a line of the sparse matrix, each times
/// its entry.
#[inline(always)]
fn scatter<S: Simd, I: Index, T: Real>(
    simd: S,
    a: Entries<'_, I, T>,
    window: Window,
    x: &[T],
    c: &mut MatMut<'_, T>,
    alpha: T,
) {
    let factor = T::splat(simd, alpha);
    in_vectors!(x.len(), T::lanes::<S>(), at, N => {
        let mut scaled: [T::Vector<S>; N] = *T::vectors(simd, &x[at..]);
        for value in &mut scaled {
            *value = T::times(simd, factor, *value);
        }
        a.each_in(
            window,
            #[inline(always)]
            |k, value| {
                let mut c = c.rb_mut();
                let row = row_slice_mut(&mut c, k).expect("by rows (checked)");
                let (value, c): (_, &mut [T::Vector<S>; N]) = (T::splat(simd, value), T::vectors_mut(simd, &mut row[at..]));
                for j in 0..N {
                    c[j] = T::fma(simd, value, scaled[j], c[j]);
                }
            },
        );
    }, {
        let scaled = T::times(simd, factor, T::load(simd, &x[at..]));
        a.each_in(
            window,
            #[inline(always)]
            |k, value| {
                let mut c = c.rb_mut();
                let c = &mut row_slice_mut(&mut c, k).expect("by rows (checked)")[at..];
                let sum = T::fma(simd, T::splat(simd, value), scaled, T::load(simd, c));
                T::store(simd, c, sum);
            },
        );
    });
}
