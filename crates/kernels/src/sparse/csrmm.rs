//! Products with dense operands: A X, A^T X and A^T (A X).

use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

use super::lines::{Lines, Window};
use super::vectors::{Both, Combine, Scatter};
use super::{by_rows, shapes};
use crate::view::{view, view_mut, whole, whole_mut};
use crate::{Error, Real, fill, scale};

/// Operations of a product of `entries` entries with `width` dense columns.
pub fn csrmm_flops(entries: usize, width: usize) -> u64 {
    2 * (entries as u64).saturating_mul(width as u64)
}

/// c = alpha A x + beta c, where x has the rows from `first` on of the whole operand.
///
/// Shapes: A is m x n, x is at most n x d, c is m x d; x and c by rows. When `beta` is 0, c is only
/// written.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    beta: T,
) -> Result<(), Error> {
    let window = Window::new(first, x.nrows(), a.width());
    let (Some(window), true) = (
        window,
        c.nrows() == a.lines() && c.ncols() == x.ncols() && by_rows(c.as_ref()) && by_rows(x),
    ) else {
        return Err(shapes("csrmm", (a.lines(), a.width()), x, c.as_ref()));
    };
    if !whole_lines(&a) && beta == T::ZERO {
        fill(c.rb_mut(), T::ZERO);
    } else if !whole_lines(&a) && beta != T::ONE {
        scale(c.rb_mut(), beta);
    }
    let beta = if whole_lines(&a) { beta } else { T::ONE };
    if x.ncols() == 1
        && let (Some(x), Some(c)) = (whole(x), whole_mut(&mut c))
    {
        a.each_line(
            #[inline(always)]
            |i, entries| {
                let mut sum = T::ZERO;
                entries.each_in(window, |k, value| sum += value * x[k]);
                c[i] = if beta == T::ZERO {
                    alpha * sum
                } else {
                    alpha * sum + beta * c[i]
                };
            },
        );
        return Ok(());
    }
    pulp::Arch::new().dispatch(Combine {
        c,
        alpha,
        a,
        window,
        x,
        beta,
    });
    Ok(())
}

/// Operations of a product between two looks at whether it is to end: some 0.1 s on half a core.
pub const CALL_FLOPS: u64 = 1 << 27;

/// Fewer columns are not cut: some vectors of either type.
const CALL_COLUMNS: usize = 64;

/// Columns of the dense operands of a product that take [`CALL_FLOPS`] with these lines, in whole
/// vectors; an element of the result that no entry meets costs an operation too.
fn call_columns<T: Real>(a: &impl Lines<T>) -> usize {
    let of_column = csrmm_flops(a.entries(), 1) + a.lines() as u64;
    ((CALL_FLOPS / of_column.max(1)) as usize / CALL_COLUMNS * CALL_COLUMNS).max(CALL_COLUMNS)
}

/// [`csrmm`] that ends soon after `stop` says so; c is then of no use.
///
/// # Errors
/// As [`csrmm`].
pub fn csrmm_until<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    beta: T,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let step = call_columns(&a);
    if x.ncols() <= step || c.ncols() != x.ncols() {
        return csrmm(c, alpha, a, x, first, beta);
    }
    for column in (0..x.ncols()).step_by(step) {
        if stop() {
            break;
        }
        let width = step.min(x.ncols() - column);
        let c = c.rb_mut().subcols_mut(column, width);
        csrmm(c, alpha, a, x.subcols(column, width), first, beta)?;
    }
    Ok(())
}

/// [`csrmm_transposed`] that ends soon after `stop` says so; c is then of no use.
///
/// # Errors
/// As [`csrmm_transposed`].
pub fn csrmm_transposed_until<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let step = call_columns(&a);
    if x.ncols() <= step || c.ncols() != x.ncols() {
        return csrmm_transposed(c, alpha, a, x, first);
    }
    for column in (0..x.ncols()).step_by(step) {
        if stop() {
            break;
        }
        let width = step.min(x.ncols() - column);
        let c = c.rb_mut().subcols_mut(column, width);
        csrmm_transposed(c, alpha, a, x.subcols(column, width), first)?;
    }
    Ok(())
}

/// c += alpha A^T x, where c has the rows from `first` on of the whole result.
///
/// Shapes: A is m x n, x is m x d, c is at most n x d; x and c by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm_transposed<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    first: usize,
) -> Result<(), Error> {
    let window = Window::new(first, c.nrows(), a.width());
    let (Some(window), true) = (
        window,
        x.nrows() == a.lines() && c.ncols() == x.ncols() && by_rows(c.as_ref()) && by_rows(x),
    ) else {
        return Err(shapes(
            "csrmm of a transpose",
            (a.width(), a.lines()),
            x,
            c.as_ref(),
        ));
    };
    if x.ncols() == 1
        && let (Some(x), Some(c)) = (whole(x), whole_mut(&mut c))
    {
        a.each_line(
            #[inline(always)]
            |i, entries| {
                let factor = alpha * x[i];
                entries.each_in(window, |k, value| c[k] += factor * value);
            },
        );
        return Ok(());
    }
    pulp::Arch::new().dispatch(Scatter {
        c,
        alpha,
        a,
        window,
        x,
    });
    Ok(())
}

/// c += A^T (A x), reading each row of A once if rows are whole. `between` has room for
/// [`gram_rows`] rows of A x.
///
/// Shapes: A is m x n, x and c are n x d, by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csr_gram<T: Real>(
    c: MatMut<'_, T>,
    a: impl Lines<T>,
    x: MatRef<'_, T>,
    between: &mut [T],
) -> Result<(), Error> {
    let rows = gram_rows(&a);
    let fits =
        x.nrows() == a.width() && c.shape() == x.shape() && between.len() == rows * x.ncols();
    if !fits || !by_rows(c.as_ref()) || !by_rows(x) {
        return Err(shapes("A^T A x", (a.lines(), a.width()), x, c.as_ref()));
    }
    if !whole_lines(&a) {
        let d = x.ncols();
        csrmm(view_mut(between, rows, d, d, 1)?, T::ONE, a, x, 0, T::ZERO)?;
        return csrmm_transposed(c, T::ONE, a, view(between, rows, d, d, 1)?, 0);
    }
    let all = Window::all(a.width());
    pulp::Arch::new().dispatch(Both {
        c,
        a,
        all,
        x,
        between,
    });
    Ok(())
}

/// Rows of A x that [`csr_gram`] keeps at once: one, or all if rows come in parts.
pub fn gram_rows<T: Real, A: Lines<T>>(a: &A) -> usize {
    if A::WHOLE_LINES { 1 } else { a.lines() }
}

fn whole_lines<T: Real, A: Lines<T>>(_: &A) -> bool {
    A::WHOLE_LINES
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Csr;

    #[test]
    fn long_products_end_where_they_are_stopped_and_are_else_those_of_one_call() {
        // One line, of which a column takes a bit more than a hundredth of a call.
        let (entries, places, d) = (600_000usize, 50, 3 * CALL_COLUMNS + 1);
        let offsets = [0, entries as i64];
        let indices: Vec<i32> = (0..entries).map(|at| (at / 12_000) as i32).collect();
        let values: Vec<f32> = (0..entries).map(|at| (at % 13) as f32 - 6.0).collect();
        let a = Csr::new(places, &offsets, &indices, &values).unwrap();
        assert_eq!(call_columns(&a), CALL_COLUMNS);
        let x: Vec<f32> = (0..places * d).map(|at| (at % 17) as f32 / 4.0).collect();
        let wide = view(&x, places, d, d, 1).unwrap();
        let line = view(&x[..d], 1, d, d, 1).unwrap();
        for is_transposed in [false, true] {
            let rows = if is_transposed { places } else { 1 };
            let product = |stop: Option<&dyn Fn() -> bool>| {
                let mut c = vec![1f32; rows * d];
                let into = view_mut(&mut c, rows, d, d, 1).unwrap();
                match (is_transposed, stop) {
                    (false, None) => csrmm(into, 1.5, a, wide, 0, 0.5),
                    (false, Some(stop)) => csrmm_until(into, 1.5, a, wide, 0, 0.5, stop),
                    (true, None) => csrmm_transposed(into, 1.5, a, line, 0),
                    (true, Some(stop)) => csrmm_transposed_until(into, 1.5, a, line, 0, stop),
                }
                .unwrap();
                c
            };
            let all = product(None);
            assert_eq!(product(Some(&|| false)), all);
            let asked = Cell::new(0);
            let part = product(Some(&|| asked.replace(asked.get() + 1) == 1));
            for (part, all) in part.chunks(d).zip(all.chunks(d)) {
                assert_eq!(part[..CALL_COLUMNS], all[..CALL_COLUMNS]);
                assert!(part[CALL_COLUMNS..].iter().all(|&c| c == 1.0));
            }
        }
    }
}
