//! Products of a sparse matrix with dense ones.
//!
//! A sparse matrix lies in compressed rows (CSR): `offsets` say where the entries of each row begin, `indices` in which column an
//! entry is, `values` what it is; without values every entry is one. A matrix in compressed columns is the transpose of one in
//! compressed rows. All work goes row after row: for A X the rows of X that a row of A names are added up in registers, for A^T X
//! a row of X is added to the rows of the result that a row of A names, and A^T (A X) does one after the other, so that each row of
//! A is looked at once.
//!
//! Dense operands lie by rows: a row of X is what an entry moves, and it is one run of memory. Cost: 2 nnz d operations and nnz rows of
//! X, of which those in cache are free; no scratch but where it is said. Determinism: entries are added up in their order.
#![forbid(unsafe_code)]

use crate::view::{row_slice, row_slice_mut};
use crate::{Error, Real};
use bytemuck::Pod;
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// The type of column numbers: 32 or 64 bits, signed as SciPy has them, or 16 where columns are counted from a tile's first.
pub trait Index: sealed::Sealed + Pod + Ord + Send + Sync + 'static {
    /// The column; of a negative number, one that no matrix has.
    fn column(self) -> usize;
}

impl Index for u16 {
    #[inline(always)]
    fn column(self) -> usize {
        usize::from(self)
    }
}

impl Index for i32 {
    #[inline(always)]
    fn column(self) -> usize {
        self as u32 as usize
    }
}

impl Index for i64 {
    #[inline(always)]
    fn column(self) -> usize {
        self as u64 as usize
    }
}

/// Some rows of a sparse matrix. The entries of row i are those from `offsets[i] - offsets[0]` up to `offsets[i + 1] - offsets[0]`.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a, I, T> {
    cols: usize,
    offsets: &'a [i64],
    indices: &'a [I],
    /// Empty where all entries are one.
    values: &'a [T],
}

impl<'a, I: Index, T: Real> Csr<'a, I, T> {
    /// Rows of a matrix with `cols` columns; checks every number, so that nothing later can reach outside. `offsets` has one more
    /// than there are rows, and may count from any number.
    ///
    /// # Errors
    /// [`Error::Sparse`] with the first number that is wrong.
    pub fn new(cols: usize, offsets: &'a [i64], indices: &'a [I], values: &'a [T]) -> Result<Self, Error> {
        let wrong = |part, at, why: &str| Err(Error::Sparse { part, at, why: why.to_owned() });
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
            return wrong("offsets", 0, "there are none");
        };
        if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return wrong("offsets", at + 1, "it is less than the one before");
        }
        if last.checked_sub(*first) != i64::try_from(indices.len()).ok() {
            return wrong("offsets", offsets.len() - 1, "it is not the number of entries");
        }
        if !values.is_empty() && values.len() != indices.len() {
            return wrong("values", values.len(), "there are not as many as column numbers");
        }
        let largest = indices.iter().fold(0, |largest, index| index.column().max(largest));
        if largest >= cols && !indices.is_empty() {
            let at = indices.iter().position(|index| index.column() >= cols).expect("the largest is one");
            return wrong("indices", at, &format!("the matrix has {cols} columns"));
        }
        Ok(Self { cols, offsets, indices, values })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Columns of the whole matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Entries.
    pub fn entries(&self) -> usize {
        self.indices.len()
    }

    /// Column numbers and values of a row; no values where all are one.
    #[inline(always)]
    fn row(&self, row: usize) -> Row<'a, I, T> {
        let range = (self.offsets[row] - self.offsets[0]) as usize..(self.offsets[row + 1] - self.offsets[0]) as usize;
        let values = if self.values.is_empty() { &[] } else { &self.values[range.clone()] };
        Row { indices: &self.indices[range], values }
    }
}

#[derive(Clone, Copy)]
struct Row<'a, I, T> {
    indices: &'a [I],
    values: &'a [T],
}

impl<I: Index, T: Real> Row<'_, I, T> {
    /// Calls `f` with column and value of each entry.
    #[inline(always)]
    fn each(self, mut f: impl FnMut(usize, T)) {
        if self.values.is_empty() {
            self.indices.iter().for_each(|index| f(index.column(), T::ONE));
        } else {
            self.indices.iter().zip(self.values).for_each(|(index, &value)| f(index.column(), value));
        }
    }
}

/// Operations of a product of `entries` entries with `width` dense columns.
pub fn csrmm_flops(entries: usize, width: usize) -> u64 {
    2 * (entries as u64).saturating_mul(width as u64)
}

/// c = alpha A x + beta c.
///
/// Shapes: A is m x n, x is n x d, c is m x d; x and c by rows. When `beta` is 0, c is only written.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm<I: Index, T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: Csr<'_, I, T>,
    x: MatRef<'_, T>,
    beta: T,
) -> Result<(), Error> {
    if c.nrows() != a.rows() || x.nrows() != a.cols() || c.ncols() != x.ncols() || !by_rows(c.as_ref()) || !by_rows(x) {
        return Err(shapes("csrmm", (a.rows(), a.cols()), x, c.as_ref()));
    }
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for i in 0..a.rows() {
                let c = row_slice_mut(&mut c, i).expect("by rows (checked)");
                combine(a.row(i), x, c, alpha, beta);
            }
        },
    );
    Ok(())
}

/// c += alpha A^T x.
///
/// Shapes: A is m x n, x is m x d, c is n x d; x and c by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csrmm_transposed<I: Index, T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: Csr<'_, I, T>,
    x: MatRef<'_, T>,
) -> Result<(), Error> {
    if c.nrows() != a.cols() || x.nrows() != a.rows() || c.ncols() != x.ncols() || !by_rows(c.as_ref()) || !by_rows(x) {
        return Err(shapes("csrmm of a transpose", (a.cols(), a.rows()), x, c.as_ref()));
    }
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for i in 0..a.rows() {
                scatter(a.row(i), row_slice(x, i).expect("by rows (checked)"), &mut c, alpha);
            }
        },
    );
    Ok(())
}

/// c += A^T (A x), looking at each row of A once. `between` has room for a row of A x, d elements.
///
/// Shapes: A is m x n, x and c are n x d, by rows.
///
/// # Errors
/// [`Error::Shape`], also for operands that do not lie by rows.
pub fn csr_gram<I: Index, T: Real>(
    mut c: MatMut<'_, T>,
    a: Csr<'_, I, T>,
    x: MatRef<'_, T>,
    between: &mut [T],
) -> Result<(), Error> {
    let fits = x.nrows() == a.cols() && c.shape() == x.shape() && between.len() == x.ncols();
    if !fits || !by_rows(c.as_ref()) || !by_rows(x) {
        return Err(shapes("A^T A x", (a.rows(), a.cols()), x, c.as_ref()));
    }
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for i in 0..a.rows() {
                combine(a.row(i), x, between, T::ONE, T::ZERO);
                scatter(a.row(i), between, &mut c, T::ONE);
            }
        },
    );
    Ok(())
}

/// y = alpha A x + beta y, for vectors: m entries of y, n of x.
///
/// # Errors
/// [`Error::Shape`].
pub fn csrgemv<I: Index, T: Real>(y: &mut [T], alpha: T, a: Csr<'_, I, T>, x: &[T], beta: T) -> Result<(), Error> {
    if y.len() != a.rows() || x.len() != a.cols() {
        return Err(Error::shape("csrgemv", &[("A", &(a.rows(), a.cols())), ("x", &x.len()), ("y", &y.len())]));
    }
    for (i, y) in y.iter_mut().enumerate() {
        let mut sum = T::ZERO;
        a.row(i).each(|k, value| sum += value * x[k]);
        *y = if beta == T::ZERO { alpha * sum } else { alpha * sum + beta * *y };
    }
    Ok(())
}

/// y += alpha A^T x, for vectors: n entries of y, m of x.
///
/// # Errors
/// [`Error::Shape`].
pub fn csrgemv_transposed<I: Index, T: Real>(y: &mut [T], alpha: T, a: Csr<'_, I, T>, x: &[T]) -> Result<(), Error> {
    if y.len() != a.cols() || x.len() != a.rows() {
        return Err(Error::shape("csrgemv of a transpose", &[("A", &(a.cols(), a.rows())), ("x", &x.len()), ("y", &y.len())]));
    }
    for (i, &x) in x.iter().enumerate() {
        a.row(i).each(|k, value| y[k] += alpha * x * value);
    }
    Ok(())
}

/// c = alpha (a x) + beta c, for one row a of the sparse matrix: as many columns at a time as sums fit the registers.
#[inline(always)]
fn combine<I: Index, T: Real>(a: Row<'_, I, T>, x: MatRef<'_, T>, c: &mut [T], alpha: T, beta: T) {
    let mut at = 0;
    while at < c.len() {
        at += match c.len() - at {
            128.. => sums::<128, I, T>(a, x, at, &mut c[at..at + 128], alpha, beta),
            64.. => sums::<64, I, T>(a, x, at, &mut c[at..at + 64], alpha, beta),
            32.. => sums::<32, I, T>(a, x, at, &mut c[at..at + 32], alpha, beta),
            16.. => sums::<16, I, T>(a, x, at, &mut c[at..at + 16], alpha, beta),
            _ => sums::<1, I, T>(a, x, at, &mut c[at..at + 1], alpha, beta),
        };
    }
}

/// `W` columns of a x, from column `at` on.
#[inline(always)]
fn sums<const W: usize, I: Index, T: Real>(
    a: Row<'_, I, T>,
    x: MatRef<'_, T>,
    at: usize,
    c: &mut [T],
    alpha: T,
    beta: T,
) -> usize {
    let mut sums = [T::ZERO; W];
    a.each(
        #[inline(always)]
        |k, value| {
            let x = row_slice(x, k).expect("by rows (checked)");
            sums.iter_mut().zip(&x[at..at + W]).for_each(|(sum, &x)| *sum += value * x);
        },
    );
    if beta == T::ZERO {
        c.iter_mut().zip(&sums).for_each(|(c, &sum)| *c = alpha * sum);
    } else {
        c.iter_mut().zip(&sums).for_each(|(c, &sum)| *c = alpha * sum + beta * *c);
    }
    W
}

/// Adds alpha times a row of x to the rows of c that a row of the sparse matrix names, each times its entry.
#[inline(always)]
fn scatter<I: Index, T: Real>(a: Row<'_, I, T>, x: &[T], c: &mut MatMut<'_, T>, alpha: T) {
    a.each(
        #[inline(always)]
        |k, value| {
            let (factor, mut c) = (alpha * value, c.rb_mut());
            let c = row_slice_mut(&mut c, k).expect("by rows (checked)");
            c.iter_mut().zip(x).for_each(|(c, &x)| *c += factor * x);
        },
    );
}

/// Rows are runs of memory.
fn by_rows<T: Real>(a: MatRef<'_, T>) -> bool {
    a.col_stride() == 1 || a.ncols() <= 1
}

fn shapes<T: Real>(operation: &'static str, a: (usize, usize), x: MatRef<'_, T>, c: MatRef<'_, T>) -> Error {
    let strides = |of: MatRef<'_, T>| format!("{:?} with strides ({}, {})", of.shape(), of.row_stride(), of.col_stride());
    Error::shape(operation, &[("the sparse matrix", &a), ("the operand", &strides(x)), ("the result", &strides(c))])
}
