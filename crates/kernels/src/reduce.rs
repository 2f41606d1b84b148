//! Reductions: sums, dots, extrema, norms of rows and columns, and the search for elements that are
//! not finite.
//!
//! Sums run in f64 over sixteen lanes that are added pairwise at the end: the order is fixed, so
//! the bits are the same on every CPU, and the error grows with n / 16. NaN anywhere makes the
//! result NaN, in extrema too.
//!
//! Cost: each reads every element once; no scratch. Norms neither overflow nor underflow if f64 can
//! represent them: if the plain sum of squares has left the range, the line is read again
//! ([`Squares`]). Other sums are plain: squares of f64 beyond 1e154 overflow.
#![forbid(unsafe_code)]

use crate::squares::{Squares, is_faithful};
use crate::view::{row_slice, whole};
use crate::{Error, Real, RealType};
use faer::MatRef;

/// Lanes of the accumulators: two AVX-512 or four AVX2 registers of f64, enough to hide the latency
/// of an addition.
const LANES: usize = 16;

/// Kind of the norm of a row or a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Sum of absolute values.
    L1,
    /// Root of the sum of squares.
    L2,
    /// Largest absolute value.
    Max,
}

/// Sum of all elements; 0 when there are none.
pub fn sum<T: Real>(x: MatRef<'_, T>) -> f64 {
    add_up(
        x,
        #[inline(always)]
        |x| x,
    )
}

/// Sum of the squares of all elements; infinite on overflow.
pub fn sum_of_squares<T: Real>(x: MatRef<'_, T>) -> f64 {
    add_up(
        x,
        #[inline(always)]
        |x| x * x,
    )
}

/// Smallest element, NaN if there is one; infinity when there are no elements.
pub fn min<T: Real>(x: MatRef<'_, T>) -> f64 {
    extreme(
        x,
        f64::INFINITY,
        #[inline(always)]
        |x| x,
        #[inline(always)]
        |x, best| x < best,
    )
}

/// Largest element, NaN if there is one; minus infinity when there are no elements.
pub fn max<T: Real>(x: MatRef<'_, T>) -> f64 {
    extreme(
        x,
        f64::NEG_INFINITY,
        #[inline(always)]
        |x| x,
        #[inline(always)]
        |x, best| x > best,
    )
}

/// Sum of the products of the elements of two matrices, in f64.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn dot<T: Real>(x: MatRef<'_, T>, y: MatRef<'_, T>) -> Result<f64, Error> {
    if x.shape() != y.shape() {
        return Err(Error::shape("dot", &[("x", &x.shape()), ("y", &y.shape())]));
    }
    let (x, y) = if x.row_stride() == 1 && x.col_stride() != 1 {
        (x.transpose(), y.transpose())
    } else {
        (x, y)
    };
    Ok(pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0.0; LANES];
            for i in 0..x.nrows() {
                match (row_slice(x, i), row_slice(y, i)) {
                    (Some(x), Some(y)) => dot_line(&mut lanes, x, y),
                    _ => (0..x.ncols())
                        .for_each(|j| lanes[j % LANES] += x[(i, j)].f64() * y[(i, j)].f64()),
                }
            }
            fold(lanes)
        },
    ))
}

/// The norm of each row. `out` has one entry a row.
///
/// # Errors
/// [`Error::Shape`] when `out` has another length.
pub fn row_norms<T: Real>(out: &mut [f64], x: MatRef<'_, T>, norm: Norm) -> Result<(), Error> {
    if out.len() != x.nrows() {
        return Err(Error::shape(
            "row_norms",
            &[("the result", &out.len()), ("the matrix", &x.shape())],
        ));
    }
    if x.row_stride() == 1 && x.col_stride() != 1 {
        return column_norms(out, x.transpose(), norm);
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = line_norm(x.subrows(i, 1), norm);
    }
    Ok(())
}

/// The norm of each column. `out` has one entry a column.
///
/// # Errors
/// [`Error::Shape`] when `out` has another length.
pub fn column_norms<T: Real>(out: &mut [f64], x: MatRef<'_, T>, norm: Norm) -> Result<(), Error> {
    if out.len() != x.ncols() {
        return Err(Error::shape(
            "column_norms",
            &[("the result", &out.len()), ("the matrix", &x.shape())],
        ));
    }
    if x.row_stride() == 1 && x.col_stride() != 1 {
        return row_norms(out, x.transpose(), norm);
    }
    out.fill(0.0);
    match norm {
        Norm::L1 => down(
            out,
            x,
            #[inline(always)]
            |sum, x| sum + x.abs(),
        ),
        Norm::L2 => down(
            out,
            x,
            #[inline(always)]
            |sum, x| sum + x * x,
        ),
        Norm::Max => down(
            out,
            x,
            #[inline(always)]
            |best, x| {
                if x.abs() > best || x.is_nan() {
                    x.abs()
                } else {
                    best
                }
            },
        ),
    }
    if norm == Norm::L2 {
        column_roots(out, x);
    }
    Ok(())
}

/// Replaces sums of squares of columns by their norms.
fn column_roots<T: Real>(sums: &mut [f64], x: MatRef<'_, T>) {
    /// Columns computed together: their sums are 8 KiB.
    const TOGETHER: usize = 256;
    for (group, sums) in sums.chunks_mut(TOGETHER).enumerate() {
        let x = x.subcols(group * TOGETHER, sums.len());
        let (mut doubtful, mut count) = ([(0, Squares::default()); TOGETHER], 0);
        for (j, sum) in sums.iter_mut().enumerate() {
            if is_plain::<T>(*sum, x.nrows()) {
                *sum = sum.sqrt();
            } else {
                doubtful[count].0 = j;
                count += 1;
            }
        }
        let doubtful = &mut doubtful[..count];
        let rows = if count > 0 { x.nrows() } else { 0 };
        for i in 0..rows {
            doubtful
                .iter_mut()
                .for_each(|(j, squares)| squares.add(x[(i, *j)].f64()));
        }
        doubtful
            .iter()
            .for_each(|(j, squares)| sums[*j] = squares.root());
    }
}

/// Whether a plain sum of `count` squares is accurate enough. Squares of f32 are always within the
/// range of f64.
fn is_plain<T: Real>(sum: f64, count: usize) -> bool {
    T::DTYPE == RealType::F32 || is_faithful(sum, count)
}

/// Adds the sum of column j to `sums[j]`.
///
/// # Errors
/// [`Error::Shape`] when `sums` has another length than a row.
pub fn column_sums<T: Real>(sums: &mut [f64], x: MatRef<'_, T>) -> Result<(), Error> {
    if sums.len() != x.ncols() {
        return Err(Error::shape(
            "column_sums",
            &[("the sums", &sums.len()), ("the matrix", &x.shape())],
        ));
    }
    if x.row_stride() == 1 && x.col_stride() != 1 {
        for (j, total) in sums.iter_mut().enumerate() {
            *total += sum(x.subcols(j, 1));
        }
    } else {
        down(
            sums,
            x,
            #[inline(always)]
            |sum, x| sum + x,
        );
    }
    Ok(())
}

/// Row and column of the first element, in row order, that is NaN or infinite.
pub fn first_non_finite<T: Real>(x: MatRef<'_, T>) -> Option<(usize, usize)> {
    // x * 0 is 0 for a finite x and NaN otherwise, so the sum of these products over a line shows
    // whether it has to be searched.
    let suspicious = |line: MatRef<'_, T>| {
        add_up(
            line,
            #[inline(always)]
            |x| x * 0.0,
        )
        .is_nan()
    };
    let search = |x: MatRef<'_, T>| {
        (0..x.nrows()).find_map(|i| {
            (0..x.ncols())
                .find(|&j| !x[(i, j)].finite())
                .map(|j| (i, j))
        })
    };
    if x.row_stride() == 1 && x.col_stride() != 1 {
        return if suspicious(x) { search(x) } else { None };
    }
    // Strips of about 64 KiB: still in cache if one has to be searched again, and long enough to
    // make the cost of the call negligible.
    let height = (65536 / size_of::<T>() / x.ncols().max(1)).max(1);
    let mut top = 0;
    while top < x.nrows() {
        let strip = x.subrows(top, height.min(x.nrows() - top));
        if suspicious(strip)
            && let Some((i, j)) = search(strip)
        {
            return Some((top + i, j));
        }
        top += height;
    }
    None
}

fn line_norm<T: Real>(x: MatRef<'_, T>, norm: Norm) -> f64 {
    match norm {
        Norm::L1 => add_up(
            x,
            #[inline(always)]
            |x| x.abs(),
        ),
        Norm::L2 => match sum_of_squares(x) {
            sum if is_plain::<T>(sum, x.nrows() * x.ncols()) => sum.sqrt(),
            _ => (0..x.nrows())
                .flat_map(|i| (0..x.ncols()).map(move |j| x[(i, j)].f64()))
                .collect::<Squares>()
                .root(),
        },
        Norm::Max => extreme(
            x,
            0.0,
            #[inline(always)]
            |x| x.abs(),
            #[inline(always)]
            |x, best| x > best,
        ),
    }
}

/// `out[j] = f(out[j], x[i, j])` for each row i in turn.
fn down<T: Real>(out: &mut [f64], x: MatRef<'_, T>, f: impl Fn(f64, f64) -> f64 + Copy) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let (rows, cols) = x.shape();
            let mut i = 0;
            // Four rows a pass: the accumulators are loaded and stored a quarter as often.
            while i + 4 <= rows {
                let lines = (
                    row_slice(x, i),
                    row_slice(x, i + 1),
                    row_slice(x, i + 2),
                    row_slice(x, i + 3),
                );
                let (Some(a), Some(b), Some(c), Some(d)) = lines else {
                    break;
                };
                for ((((out, &a), &b), &c), &d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    *out = f(f(f(f(*out, a.f64()), b.f64()), c.f64()), d.f64());
                }
                i += 4;
            }
            for i in i..rows {
                match row_slice(x, i) {
                    Some(line) => out
                        .iter_mut()
                        .zip(line)
                        .for_each(|(out, &x)| *out = f(*out, x.f64())),
                    None => (0..cols).for_each(|j| out[j] = f(out[j], x[(i, j)].f64())),
                }
            }
        },
    );
}

fn add_up<T: Real>(x: MatRef<'_, T>, f: impl Fn(f64) -> f64 + Copy) -> f64 {
    over_lines(
        x,
        [0.0; LANES],
        #[inline(always)]
        |sum, x| sum + f(x),
        fold,
    )
}

fn extreme<T: Real>(
    x: MatRef<'_, T>,
    start: f64,
    f: impl Fn(f64) -> f64 + Copy,
    better: impl Fn(f64, f64) -> bool + Copy,
) -> f64 {
    // A NaN is always taken and never replaced, since every comparison with it is false.
    let pick = move |best: f64, x: f64| {
        let x = f(x);
        if better(x, best) || x.is_nan() {
            x
        } else {
            best
        }
    };
    let fold = |lanes: [f64; LANES]| {
        lanes.into_iter().fold(start, |best, x| {
            if better(x, best) || x.is_nan() {
                x
            } else {
                best
            }
        })
    };
    over_lines(x, [start; LANES], pick, fold)
}

fn over_lines<T: Real>(
    x: MatRef<'_, T>,
    mut lanes: [f64; LANES],
    f: impl Fn(f64, f64) -> f64 + Copy,
    fold: impl Fn([f64; LANES]) -> f64,
) -> f64 {
    let x = if x.row_stride() == 1 && x.col_stride() != 1 {
        x.transpose()
    } else {
        x
    };
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            if let Some(line) = whole(x) {
                line_into(&mut lanes, line, f);
                return;
            }
            for i in 0..x.nrows() {
                match row_slice(x, i) {
                    Some(line) => line_into(&mut lanes, line, f),
                    None => (0..x.ncols())
                        .for_each(|j| lanes[j % LANES] = f(lanes[j % LANES], x[(i, j)].f64())),
                }
            }
        },
    );
    fold(lanes)
}

#[inline(always)]
fn line_into<T: Real>(lanes: &mut [f64; LANES], line: &[T], f: impl Fn(f64, f64) -> f64 + Copy) {
    let mut sums = *lanes;
    let (chunks, rest) = line.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] = f(sums[lane], chunk[lane].f64());
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        sums[lane] = f(sums[lane], x.f64());
    }
    *lanes = sums;
}

#[inline(always)]
fn dot_line<T: Real>(lanes: &mut [f64; LANES], x: &[T], y: &[T]) {
    let mut sums = *lanes;
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for lane in 0..LANES {
            sums[lane] += x[lane].f64() * y[lane].f64();
        }
    }
    for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
        sums[lane] += x.f64() * y.f64();
    }
    *lanes = sums;
}

/// Pairwise, in a fixed order.
#[inline(always)]
fn fold(mut lanes: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
