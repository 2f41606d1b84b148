//! Strided views of slices, checked once when they are made.
//!
//! One of the few files with `unsafe`: all other code works on the views made here and relies on
//! each element being inside its slice and, in a mutable view, on no two elements sharing memory.
#![allow(unsafe_code)]

use crate::Error;
use bytemuck::Pod;
use faer::{MatMut, MatRef};

/// Element (i, j) of the view is `data[i * row_stride + j * col_stride]`.
///
/// A stride of zero repeats a row or a column. Row-major data has `col_stride` 1, column-major
/// `row_stride` 1.
///
/// # Errors
/// [`Error::View`] when an element would lie outside `data`.
pub fn view<T: Pod>(
    data: &[T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
) -> Result<MatRef<'_, T>, Error> {
    check(data.len(), rows, cols, row_stride, col_stride)?;
    // SAFETY: `check` made sure that the last element lies inside `data`, that strides fit an
    // isize, and the others lie before the last one because strides are not negative. The borrow of
    // `data` lives as long as the view.
    Ok(unsafe {
        MatRef::from_raw_parts(
            data.as_ptr(),
            rows,
            cols,
            row_stride as isize,
            col_stride as isize,
        )
    })
}

/// As [`view`], mutable.
///
/// # Errors
/// [`Error::View`] if an element would be outside `data`, or if two elements would be the same: one
/// stride must be at least the extent of the other dimension.
pub fn view_mut<T: Pod>(
    data: &mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
) -> Result<MatMut<'_, T>, Error> {
    let len = data.len();
    check(len, rows, cols, row_stride, col_stride)?;
    let distinct = rows == 0
        || cols == 0
        || match (rows, cols) {
            (1, 1) => true,
            (1, _) => col_stride > 0,
            (_, 1) => row_stride > 0,
            _ => {
                (col_stride > 0 && row_stride > (cols - 1) * col_stride)
                    || (row_stride > 0 && col_stride > (rows - 1) * row_stride)
            }
        };
    if !distinct {
        let why = "two elements would share memory";
        return Err(Error::View {
            rows,
            cols,
            row_stride,
            col_stride,
            len,
            why,
        });
    }
    // SAFETY: inside the slice as in `view`; `data` is borrowed mutably for the life of the view,
    // and the test above makes all its elements distinct.
    Ok(unsafe {
        MatMut::from_raw_parts_mut(
            data.as_mut_ptr(),
            rows,
            cols,
            row_stride as isize,
            col_stride as isize,
        )
    })
}

fn check(
    len: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
) -> Result<(), Error> {
    let wrong = |why| Error::View {
        rows,
        cols,
        row_stride,
        col_stride,
        len,
        why,
    };
    if row_stride > isize::MAX as usize || col_stride > isize::MAX as usize {
        return Err(wrong("a stride is too large"));
    }
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((cols - 1).checked_mul(col_stride))
        .and_then(|(down, across)| down.checked_add(across));
    match last {
        Some(last) if last < len => Ok(()),
        _ => Err(wrong("it reaches beyond the slice")),
    }
}

/// The whole matrix as one slice, if its rows are contiguous without gaps.
#[inline(always)]
pub(crate) fn whole<T: Pod>(a: MatRef<'_, T>) -> Option<&[T]> {
    let (rows, cols) = a.shape();
    if rows == 0 || cols == 0 {
        return Some(&[]);
    }
    if (a.col_stride() != 1 && cols != 1) || (a.row_stride() != cols as isize && rows != 1) {
        return None;
    }
    // SAFETY: rows * cols elements lie one after the other from the first one, all of them elements
    // of the view.
    Some(unsafe { std::slice::from_raw_parts(a.as_ptr(), rows * cols) })
}

/// As `whole`, mutable.
#[inline(always)]
pub(crate) fn whole_mut<'a, T: Pod>(a: &'a mut MatMut<'_, T>) -> Option<&'a mut [T]> {
    let len = whole(a.as_ref())?.len();
    if len == 0 {
        return Some(&mut []);
    }
    // SAFETY: as in `whole`; `a` is borrowed mutably for the life of the slice and its elements are
    // distinct.
    Some(unsafe { std::slice::from_raw_parts_mut(a.as_ptr_mut(), len) })
}

/// The rows of a matrix as slices, if they are contiguous.
#[inline(always)]
pub(crate) fn row_slice<T: Pod>(a: MatRef<'_, T>, row: usize) -> Option<&[T]> {
    assert!(row < a.nrows());
    if a.ncols() == 0 {
        return Some(&[]);
    }
    if a.col_stride() != 1 && a.ncols() != 1 {
        return None;
    }
    // SAFETY: the row's elements are next to each other (or there is one), `row` is inside, and the
    // view promises that all its elements are readable for its lifetime.
    Some(unsafe { std::slice::from_raw_parts(a.ptr_at(row, 0), a.ncols()) })
}

/// As `row_slice`, mutable.
#[inline(always)]
pub(crate) fn row_slice_mut<'a, T: Pod>(
    a: &'a mut MatMut<'_, T>,
    row: usize,
) -> Option<&'a mut [T]> {
    assert!(row < a.nrows());
    if a.ncols() == 0 {
        return Some(&mut []);
    }
    if a.col_stride() != 1 && a.ncols() != 1 {
        return None;
    }
    // SAFETY: as in `row_slice`; `a` is borrowed mutably for the life of the slice and its elements
    // are distinct.
    Some(unsafe { std::slice::from_raw_parts_mut(a.ptr_at_mut(row, 0), a.ncols()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_reads_what_its_strides_say() {
        let data: Vec<f32> = (0..24).map(|x| x as f32).collect();
        let a = view(&data, 3, 4, 8, 2).unwrap();
        assert_eq!(a[(2, 3)], 22.0);
        assert_eq!(row_slice(a, 1), None);
        assert_eq!(
            row_slice(view(&data, 3, 4, 8, 1).unwrap(), 1),
            Some(&data[8..12])
        );
        assert_eq!(row_slice(a.subcols(1, 1), 1), Some(&data[10..11]));
    }

    #[test]
    fn views_that_reach_outside_or_overflow_are_refused() {
        let mut data = vec![0f64; 24];
        assert!(view(&data, 3, 4, 8, 3).is_err());
        assert!(view(&data, usize::MAX, 2, usize::MAX, 1).is_err());
        assert!(view(&data, 2, 2, 1 << 62, 1 << 63).is_err());
        assert!(view(&data, 0, 1000, 1, 1).is_ok());
        assert!(view_mut(&mut data, 6, 5, 4, 1).is_err());
    }

    #[test]
    fn a_mutable_view_never_has_two_names_for_one_element() {
        let mut data = vec![0f64; 64];
        assert!(view_mut(&mut data, 3, 3, 2, 1).is_err());
        assert!(view_mut(&mut data, 3, 3, 0, 1).is_err());
        assert!(view_mut(&mut data, 1, 3, 0, 0).is_err());
        assert!(view_mut(&mut data, 3, 3, 3, 1).is_ok());
        assert!(view_mut(&mut data, 3, 3, 1, 3).is_ok());
        assert!(view_mut(&mut data, 3, 3, 2, 6).is_ok());
        assert!(view_mut(&mut data, 1, 3, 0, 2).is_ok());
        assert!(view(&data, 3, 3, 0, 1).is_ok());
    }
}
