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

/// Runs `$step` with `$N` vectors from column `$at` on, as many at a time as fit into registers, and with
/// `$LAST` with the columns behind these, which are fewer than a vector has. Each `$N` is compiled by
/// itself: six vectors and a part of one are the hundred columns that many ask for.
macro_rules! in_vectors {
    ($len:expr, $lanes:expr, $at:ident, $N:ident, $LAST:ident => $step:expr) => {{
        let (len, lanes, mut $at) = ($len, $lanes, 0);
        while $at < len {
            let step = match ((len - $at) / lanes, (len - $at) % lanes > 0) {
                (16.., _) if S::REGISTER_COUNT >= 32 => in_vectors!(@ 16, false, $N, $LAST => $step),
                (8.., _) => in_vectors!(@ 8, false, $N, $LAST => $step),
                (6, true) => in_vectors!(@ 6, true, $N, $LAST => $step),
                (4, true) => in_vectors!(@ 4, true, $N, $LAST => $step),
                (4.., _) => in_vectors!(@ 4, false, $N, $LAST => $step),
                (2, true) => in_vectors!(@ 2, true, $N, $LAST => $step),
                (2.., _) => in_vectors!(@ 2, false, $N, $LAST => $step),
                (1, true) => in_vectors!(@ 1, true, $N, $LAST => $step),
                (1, false) => in_vectors!(@ 1, false, $N, $LAST => $step),
                (0, _) => in_vectors!(@ 0, true, $N, $LAST => $step),
            };
            $at += step * lanes;
        }
    }};
    (@ $count:literal, $last:literal, $N:ident, $LAST:ident => $step:expr) => {{
        const $N: usize = $count;
        const $LAST: bool = $last;
        $step;
        $N + $LAST as usize
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
    in_vectors!(c.len(), T::lanes::<S>(), at, N, LAST => {
        let behind = at + N * T::lanes::<S>();
        let (mut sums, mut last) = ([zero; N], zero);
        a.each_ahead(
            window,
            N == FETCHED,
            #[inline(always)]
            |k| x.fetch(k, at, N * T::lanes::<S>()),
            #[inline(always)]
            |k, value| {
                let (value, row) = (T::splat(simd, value), x.row(k));
                let x: &[T::Vector<S>; N] = T::vectors(simd, &row[at..]);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = T::fma(simd, value, *x, *sum);
                }
                if LAST {
                    last = T::fma(simd, value, T::load(simd, &row[behind..]), last);
                }
            },
        );
        let kept = |c| if beta == T::ZERO { zero } else { T::times(simd, before, c) };
        let vectors: &mut [T::Vector<S>; N] = T::vectors_mut(simd, &mut c[at..]);
        for (vector, sum) in vectors.iter_mut().zip(sums) {
            *vector = T::fma(simd, factor, sum, kept(*vector));
        }
        if LAST {
            let c = &mut c[behind..];
            T::store(simd, c, T::fma(simd, factor, last, kept(T::load(simd, c))));
        }
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
    in_vectors!(x.len(), T::lanes::<S>(), at, N, LAST => {
        let behind = at + N * T::lanes::<S>();
        let mut scaled: [T::Vector<S>; N] = *T::vectors(simd, &x[at..]);
        for value in &mut scaled {
            *value = T::times(simd, factor, *value);
        }
        let last = match LAST {
            true => T::times(simd, factor, T::load(simd, &x[behind..])),
            false => factor,
        };
        a.each_in(
            window,
            #[inline(always)]
            |k, value| {
                let mut c = c.rb_mut();
                let row = row_slice_mut(&mut c, k).expect("by rows (checked)");
                let value = T::splat(simd, value);
                let vectors: &mut [T::Vector<S>; N] = T::vectors_mut(simd, &mut row[at..]);
                for (vector, scaled) in vectors.iter_mut().zip(scaled) {
                    *vector = T::fma(simd, value, scaled, *vector);
                }
                if LAST {
                    let row = &mut row[behind..];
                    T::store(simd, row, T::fma(simd, value, last, T::load(simd, row)));
                }
            },
        );
    });
}
