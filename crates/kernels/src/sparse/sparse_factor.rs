//! Products with a sparse matrix on the right, added to a dense result.

use faer::{MatMut, MatRef};

use super::csr::Csr;
use super::lines::{Index, Lines};
use super::{by_rows, shapes};
use crate::view::{row_slice, row_slice_mut};
use crate::{Error, Real};

/// y += X R for a sparse X and a sparse R.
///
/// Shapes: X is m x n, R is n x k, y is m x k, by rows. Cost: two operations for each entry of X
/// and each of the row of R it meets.
///
/// # Errors
/// [`Error::Shape`], also for a y that does not lie by rows.
pub fn sparse_times_sparse<T: Real>(
    mut y: MatMut<'_, T>,
    x: impl Lines<T>,
    r: Csr<'_, impl Index, T>,
) -> Result<(), Error> {
    if y.nrows() != x.lines()
        || x.width() != r.lines()
        || y.ncols() != r.width()
        || !by_rows(y.as_ref())
    {
        return Err(Error::shape(
            "sparse times sparse",
            &[
                ("y", &y.shape()),
                ("X", &(x.lines(), x.width())),
                ("R", &(r.lines(), r.width())),
            ],
        ));
    }
    x.each_line(|i, entries| {
        let y = row_slice_mut(&mut y, i).expect("by rows (checked)");
        entries.each(|k, value| r.row(k).each(|j, weight| y[j] += value * weight));
    });
    Ok(())
}

/// y += x R for a dense x and a sparse R.
///
/// Shapes: x is m x n, R is n x k, y is m x k; x and y by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn dense_times_sparse<T: Real>(
    mut y: MatMut<'_, T>,
    x: MatRef<'_, T>,
    r: Csr<'_, impl Index, T>,
) -> Result<(), Error> {
    if y.nrows() != x.nrows()
        || x.ncols() != r.lines()
        || y.ncols() != r.width()
        || !by_rows(y.as_ref())
        || !by_rows(x)
    {
        return Err(shapes(
            "dense times sparse",
            (r.lines(), r.width()),
            x,
            y.as_ref(),
        ));
    }
    for i in 0..x.nrows() {
        let (x, y) = (
            row_slice(x, i).expect("by rows (checked)"),
            row_slice_mut(&mut y, i).expect("by rows (checked)"),
        );
        for (k, &value) in x.iter().enumerate() {
            r.row(k).each(|j, weight| y[j] += value * weight);
        }
    }
    Ok(())
}
