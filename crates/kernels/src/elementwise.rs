//! One result an element: scale, fill, axpby, conversion, centering, accumulation in f64,
//! transposition.
//!
//! Each function is one plain loop over lines that lie in memory one after the other, compiled for
//! every instruction set and chosen at run time. Operands whose layouts differ are walked in blocks
//! that fit the first-level cache.
//!
//! Cost: each reads and writes every element once; no scratch. Determinism: the same bits on every
//! CPU.
#![forbid(unsafe_code)]

use crate::view::{row_slice, row_slice_mut, whole, whole_mut};
use crate::{Error, Real};
use bytemuck::Pod;
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

/// Rows and columns of the blocks in which operands of different layout are walked: 2 x 32 x 32 f64
/// are 16 KiB.
const BLOCK: usize = 32;

/// y = alpha x + beta y; y is only written when `beta` is 0, x only read when `alpha` is not 0.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn axpby<T: Real>(y: MatMut<'_, T>, alpha: T, x: MatRef<'_, T>, beta: T) -> Result<(), Error> {
    same("axpby", y.shape(), x.shape())?;
    if alpha == T::ZERO {
        scale(y, beta);
    } else if beta == T::ZERO {
        zip(
            y,
            x,
            #[inline(always)]
            |_, x| alpha * x,
        );
    } else {
        zip(
            y,
            x,
            #[inline(always)]
            |y, x| alpha * x + beta * y,
        );
    }
    Ok(())
}

/// x = alpha x; 0 fills with zeros, even in place of NaN.
pub fn scale<T: Real>(x: MatMut<'_, T>, alpha: T) {
    if alpha == T::ZERO {
        fill(x, T::ZERO);
    } else if alpha != T::ONE {
        map(
            x,
            #[inline(always)]
            |x| alpha * x,
        );
    }
}

/// Every element becomes `value`.
pub fn fill<T: Real>(x: MatMut<'_, T>, value: T) {
    map(
        x,
        #[inline(always)]
        |_| value,
    );
}

/// y = x between any two layouts and types: f64 to f32 rounds to nearest; overflow becomes
/// infinity.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn convert_into<T: Real, U: Real>(y: MatMut<'_, U>, x: MatRef<'_, T>) -> Result<(), Error> {
    same("convert_into", y.shape(), x.shape())?;
    zip(
        y,
        x,
        #[inline(always)]
        |_, x| U::of(x.f64()),
    );
    Ok(())
}

/// y = x between any two layouts, of elements of any type.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn copy_into<T: Pod>(y: MatMut<'_, T>, x: MatRef<'_, T>) -> Result<(), Error> {
    same("copy_into", y.shape(), x.shape())?;
    zip(
        y,
        x,
        #[inline(always)]
        |_, x| x,
    );
    Ok(())
}

/// Elements between two looks at `stop`: 64 MiB of f64 at most are read and written, which takes
/// some 50 ms where memory moves 1 to 3 GB/s for one thread.
const LOOK_ELEMENTS: usize = 1 << 22;
/// Lines are cut no shorter than this while both sides are longer.
const LOOK_LINE: usize = 1 << 11;

/// Parts of a matrix of this shape, of at most `LOOK_ELEMENTS` elements each: first row and
/// column, rows and columns. One that is little longer is a part by itself.
pub fn parts((rows, cols): (usize, usize)) -> impl Iterator<Item = [usize; 4]> {
    let (width, height) = match rows.saturating_mul(cols) <= 2 * LOOK_ELEMENTS {
        true => (cols, rows),
        false => {
            let width = cols.min((LOOK_ELEMENTS / rows).max(LOOK_LINE));
            (width, LOOK_ELEMENTS / width)
        }
    };
    (0..rows).step_by(height.max(1)).flat_map(move |row| {
        (0..cols)
            .step_by(width.max(1))
            .map(move |col| [row, col, height.min(rows - row), width.min(cols - col)])
    })
}

/// Calls `f` for parts of y, until `stop` says so; y is then of no use.
fn until<U: Pod>(
    mut y: MatMut<'_, U>,
    stop: &dyn Fn() -> bool,
    mut f: impl FnMut(MatMut<'_, U>, [usize; 4]) -> Result<(), Error>,
) -> Result<(), Error> {
    for part in parts(y.shape()) {
        if stop() {
            return Ok(());
        }
        let [row, col, rows, cols] = part;
        f(y.rb_mut().submatrix_mut(row, col, rows, cols), part)?;
    }
    Ok(())
}

/// [`axpby`] that ends soon after `stop` says so; y is then of no use.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn axpby_until<T: Real>(
    y: MatMut<'_, T>,
    alpha: T,
    x: MatRef<'_, T>,
    beta: T,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    same("axpby", y.shape(), x.shape())?;
    until(y, stop, |y, [row, col, rows, cols]| {
        axpby(y, alpha, x.submatrix(row, col, rows, cols), beta)
    })
}

/// [`scale`] that ends soon after `stop` says so; x is then of no use.
pub fn scale_until<T: Real>(x: MatMut<'_, T>, alpha: T, stop: &dyn Fn() -> bool) {
    let scaled = until(x, stop, |x, _| {
        scale(x, alpha);
        Ok(())
    });
    debug_assert!(scaled.is_ok(), "one operand has one shape");
}

/// [`convert_into`] that ends soon after `stop` says so; y is then of no use.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn convert_until<T: Real, U: Real>(
    y: MatMut<'_, U>,
    x: MatRef<'_, T>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    same("convert_into", y.shape(), x.shape())?;
    until(y, stop, |y, [row, col, rows, cols]| {
        convert_into(y, x.submatrix(row, col, rows, cols))
    })
}

/// A type of 16 bits that elements are rounded to: to nearest, ties to even; overflow becomes
/// infinity.
pub trait Narrow {
    /// The bits of the number.
    fn bits_of(x: f64) -> u16;
}

impl Narrow for half::bf16 {
    /// By way of f32, as `ml_dtypes` rounds.
    #[inline(always)]
    fn bits_of(x: f64) -> u16 {
        half::bf16::from_f32(x as f32).to_bits()
    }
}

impl Narrow for half::f16 {
    /// By way of an f32 that is rounded to odd, so that the second rounding sees on which side of a tie
    /// x is.
    #[inline(always)]
    fn bits_of(x: f64) -> u16 {
        let near = x as f32;
        let is_odd_or_exact = near.to_bits() & 1 == 1 || f64::from(near) == x || x.is_nan();
        let odd = match is_odd_or_exact {
            true => near,
            false if f64::from(near).abs() < x.abs() => f32::from_bits(near.to_bits() + 1),
            false => f32::from_bits(near.to_bits() - 1),
        };
        half::f16::from_f32(odd).to_bits()
    }
}

/// y = x, of elements of 16 bits, between any two layouts; ends soon after `stop` says so, and y is
/// then of no use.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn narrow_until<T: Real, N: Narrow>(
    y: MatMut<'_, u16>,
    x: MatRef<'_, T>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    same("narrow", y.shape(), x.shape())?;
    until(y, stop, |y, [row, col, rows, cols]| {
        zip(
            y,
            x.submatrix(row, col, rows, cols),
            #[inline(always)]
            |_, x| N::bits_of(x.f64()),
        );
        Ok(())
    })
}

/// [`copy_into`] that ends soon after `stop` says so; y is then of no use.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn copy_until<T: Pod>(
    y: MatMut<'_, T>,
    x: MatRef<'_, T>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    same("copy_into", y.shape(), x.shape())?;
    until(y, stop, |y, [row, col, rows, cols]| {
        copy_into(y, x.submatrix(row, col, rows, cols))
    })
}

/// y = x^T: y is n x m where x is m x n, any layouts.
///
/// # Errors
/// [`Error::Shape`].
pub fn transpose_into<T: Pod>(y: MatMut<'_, T>, x: MatRef<'_, T>) -> Result<(), Error> {
    same("transpose_into", y.shape(), (x.ncols(), x.nrows()))?;
    zip(
        y,
        x.transpose(),
        #[inline(always)]
        |_, x| x,
    );
    Ok(())
}

/// Slice version of [`convert_into`], exact.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn convert_to_f64<T: Real>(y: &mut [f64], x: &[T]) -> Result<(), Error> {
    let (y, x) = as_rows("convert_to_f64", y, x)?;
    convert_into(y, x)
}

/// Slice version of [`convert_into`], rounding to nearest.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn convert_from_f64<T: Real>(y: &mut [T], x: &[f64]) -> Result<(), Error> {
    let (y, x) = as_rows("convert_from_f64", y, x)?;
    convert_into(y, x)
}

/// sum += x, with an exact conversion: accumulates products computed in T over many blocks.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn add_into_f64<T: Real>(sum: MatMut<'_, f64>, x: MatRef<'_, T>) -> Result<(), Error> {
    same("add_into_f64", sum.shape(), x.shape())?;
    zip(
        sum,
        x,
        #[inline(always)]
        |sum, x| sum + x.f64(),
    );
    Ok(())
}

/// out = x - shift, row by row: `shift` has one entry a column. Subtracted in f64, rounded once.
///
/// # Errors
/// [`Error::Shape`] when the shapes differ.
pub fn center_into<T: Real, U: Real>(
    out: MatMut<'_, U>,
    x: MatRef<'_, T>,
    shift: &[f64],
) -> Result<(), Error> {
    same("center_into", out.shape(), x.shape())?;
    same("center_into", (1, shift.len()), (1, x.ncols()))?;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || center(out, x, shift),
    );
    Ok(())
}

#[inline(always)]
fn center<T: Real, U: Real>(mut out: MatMut<'_, U>, x: MatRef<'_, T>, shift: &[f64]) {
    let (rows, cols) = x.shape();
    if by_columns(out.as_ref()) {
        let (mut out, x) = (out.transpose_mut(), x.transpose());
        for (j, &shift) in shift.iter().enumerate() {
            let (mut out, x) = (out.rb_mut().subrows_mut(j, 1), x.subrows(j, 1));
            each_line(
                &mut out,
                x,
                #[inline(always)]
                |_, x| U::of(x.f64() - shift),
            );
        }
        return;
    }
    for i in 0..rows {
        if let (Some(out), Some(x)) = (row_slice_mut(&mut out, i), row_slice(x, i)) {
            for ((out, &x), &shift) in out.iter_mut().zip(x).zip(shift) {
                *out = U::of(x.f64() - shift);
            }
        } else {
            for j in 0..cols {
                out[(i, j)] = U::of(x[(i, j)].f64() - shift[j]);
            }
        }
    }
}

fn same(operation: &'static str, left: (usize, usize), right: (usize, usize)) -> Result<(), Error> {
    if left == right {
        Ok(())
    } else {
        Err(Error::shape(
            operation,
            &[("the result", &left), ("the operand", &right)],
        ))
    }
}

fn as_rows<'a, T: Real, U: Real>(
    operation: &'static str,
    y: &'a mut [U],
    x: &'a [T],
) -> Result<(MatMut<'a, U>, MatRef<'a, T>), Error> {
    same(operation, (1, y.len()), (1, x.len()))?;
    Ok((
        crate::view_mut(y, 1, x.len(), x.len(), 1)?,
        crate::view(x, 1, x.len(), x.len(), 1)?,
    ))
}

/// Columns lie one after the other and rows do not.
fn by_columns<T: Pod>(a: MatRef<'_, T>) -> bool {
    a.row_stride() == 1 && a.col_stride() != 1
}

fn map<T: Real>(x: MatMut<'_, T>, f: impl Fn(T) -> T + Copy) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut x = if by_columns(x.as_ref()) {
                x.transpose_mut()
            } else {
                x
            };
            if let Some(x) = whole_mut(&mut x) {
                x.iter_mut().for_each(|x| *x = f(*x));
                return;
            }
            for i in 0..x.nrows() {
                if let Some(x) = row_slice_mut(&mut x, i) {
                    x.iter_mut().for_each(|x| *x = f(*x));
                } else {
                    (0..x.ncols()).for_each(|j| x[(i, j)] = f(x[(i, j)]));
                }
            }
        },
    );
}

/// y = f(y, x) for every element.
fn zip<T: Pod, U: Pod>(y: MatMut<'_, U>, x: MatRef<'_, T>, f: impl Fn(U, T) -> U + Copy) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let (mut y, x) = if by_columns(y.as_ref()) {
                (y.transpose_mut(), x.transpose())
            } else {
                (y, x)
            };
            let lines =
                (y.col_stride() == 1 || y.ncols() == 1) && (x.col_stride() == 1 || x.ncols() == 1);
            if lines {
                each_line(&mut y, x, f)
            } else {
                each_block(&mut y, x, f)
            }
        },
    );
}

/// Rows of both lie in memory one after the other; falls back to blocks where they do not.
#[inline(always)]
fn each_line<T: Pod, U: Pod>(
    y: &mut MatMut<'_, U>,
    x: MatRef<'_, T>,
    f: impl Fn(U, T) -> U + Copy,
) {
    if let (Some(y), Some(x)) = (whole_mut(y), whole(x)) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x));
        return;
    }
    for i in 0..x.nrows() {
        match (row_slice_mut(y, i), row_slice(x, i)) {
            (Some(y), Some(x)) => y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x)),
            _ => each_block(&mut y.rb_mut().subrows_mut(i, 1), x.subrows(i, 1), f),
        }
    }
}

/// Any strides, in blocks that keep both operands in the first-level cache. A block of `x` is
/// copied first, along its lines: lines whose distance is a power of two share few sets of the
/// cache and would evict each other before they are used up.
#[inline(always)]
fn each_block<T: Pod, U: Pod>(
    y: &mut MatMut<'_, U>,
    x: MatRef<'_, T>,
    f: impl Fn(U, T) -> U + Copy,
) {
    const PITCH: usize = BLOCK + 1;
    let (rows, cols) = x.shape();
    let mut local = [[T::zeroed(); PITCH]; BLOCK];
    for i0 in (0..rows).step_by(BLOCK) {
        for j0 in (0..cols).step_by(BLOCK) {
            let (height, width) = (BLOCK.min(rows - i0), BLOCK.min(cols - j0));
            let columns = x.submatrix(i0, j0, height, width).transpose();
            for (j, place) in local.iter_mut().enumerate().take(width) {
                match row_slice(columns, j) {
                    Some(column) => place[..height].copy_from_slice(column),
                    None => (0..height).for_each(|i| place[i] = columns[(j, i)]),
                }
            }
            let mut y = y.rb_mut().submatrix_mut(i0, j0, height, width);
            for i in 0..height {
                match row_slice_mut(&mut y, i) {
                    Some(y) => {
                        for (j, y) in y.iter_mut().enumerate() {
                            *y = f(*y, local[j][i]);
                        }
                    }
                    None => (0..width).for_each(|j| y[(i, j)] = f(y[(i, j)], local[j][i])),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn parts_cover_every_element_once_and_none_is_long() {
        let long = 5 * LOOK_ELEMENTS / 2 + 7;
        let square = 5000;
        for (rows, cols) in [
            (0, 5),
            (5, 0),
            (3, 4),
            (1, long),
            (long, 1),
            (long / 3, 3),
            (square, square + 9),
        ] {
            let (mut sum, mut next) = (0, (0, 0));
            for [row, col, height, width] in parts((rows, cols)) {
                // Row of parts after row of parts, each from the first column to the last.
                assert_eq!((row, col), next);
                assert!(height > 0 && width > 0 && height * width <= 2 * LOOK_ELEMENTS);
                next = if col + width == cols {
                    (row + height, 0)
                } else {
                    (row, col + width)
                };
                sum += height * width;
            }
            assert_eq!(sum, rows * cols, "{rows} x {cols}");
        }
    }

    #[test]
    fn long_work_ends_where_it_is_stopped_and_is_else_that_of_one_call() {
        let count = 3 * LOOK_ELEMENTS;
        for (rows, cols) in [(1, count), (count, 1)] {
            let (x, mut y) = (vec![2f32; count], vec![1f32; count]);
            let asked = Cell::new(0);
            let second = || asked.replace(asked.get() + 1) == 1;
            let view_of = |x| crate::view(x, rows, cols, cols, 1).unwrap();
            let into = crate::view_mut(&mut y, rows, cols, cols, 1).unwrap();
            axpby_until(into, 3.0, view_of(&x), 1.0, &second).unwrap();
            assert_eq!(y.iter().filter(|&&y| y == 7.0).count(), LOOK_ELEMENTS);
            assert_eq!(
                y.iter().filter(|&&y| y == 1.0).count(),
                count - LOOK_ELEMENTS
            );
            let into = crate::view_mut(&mut y, rows, cols, cols, 1).unwrap();
            copy_until(into, view_of(&x), &|| false).unwrap();
            assert_eq!(x, y);
            let into = crate::view_mut(&mut y, rows, cols, cols, 1).unwrap();
            scale_until(into, 0.5, &|| false);
            assert!(y.iter().all(|&y| y == 1.0));
        }
    }
}
