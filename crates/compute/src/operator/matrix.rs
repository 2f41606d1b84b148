//! A matrix on SSD or in memory, dense or sparse, as an operator: each product is a pass over its
//! rows.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use outcore_core::{Error, Job, RealType, Result, Session, Stage, with_real};
use outcore_device::{Buf, Shared};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Lines, MatMut, MatRef, Real, gemm_scratch_bytes, view, view_mut};
use outcore_matrix::{Array, Compressed, Output, Rows};

use super::converted::Converted;
use super::{Operator, RowProduct, gram_of_two_products};
use crate::linalg::{in_calls, short_piece_bytes};
use crate::pass::{
    Cost, Fold, Map, RowMap, TaskContext, cuts_rows, fold, map, map_into, mapped_bytes,
};

/// What an entry of a sparse matrix takes on two cores, and for each column that it is multiplied
/// with: measured of A^T A X in f32 with 16 and 200 columns.
const ENTRY_S: f64 = 1.3e-9;
const ENTRY_COLUMN_S: f64 = 0.075e-9;
/// The same of a byte of a dense matrix: measured of A^T A X in f32 and f64 with 16, 58 and 550 columns.
const BYTE_S: f64 = 0.15e-9;
const BYTE_COLUMN_S: f64 = 0.0014e-9;
/// Columns of a product whose bytes are told in advance.
const COLUMNS: u64 = 16;

/// A matrix; products are computed in its real type, or in f64.
pub struct Matrix {
    session: Session,
    rows: Rows,
    /// Of its elements.
    stored: RealType,
    /// Of products.
    real: RealType,
}

impl Matrix {
    /// Rows of a dense matrix, or the lines of a sparse one, whichever side they are on.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::{Gram, Matrix, Operator};
    ///
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let matrix = Matrix::new(&session, &a)?;
    /// assert_eq!(matrix.shape(), [2, 3]);
    /// assert_eq!(Gram(matrix).shape(), [3, 3]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for elements that operations do not take.
    pub fn new(session: &Session, rows: impl Into<Rows>) -> Result<Matrix> {
        let rows = rows.into();
        let stored = rows.real()?;
        Ok(Matrix {
            session: session.clone(),
            stored,
            real: stored,
            rows,
        })
    }

    /// The same matrix with products in f64: elements of fewer bits are converted block by block.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::{Matrix, Operator};
    ///
    /// let matrix = Matrix::new(&session, &a)?.in_f64();
    /// assert_eq!(matrix.epsilon(), f64::EPSILON);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    #[must_use]
    pub fn in_f64(self) -> Matrix {
        Matrix {
            real: RealType::F64,
            ..self
        }
    }

    fn is_by_columns(&self) -> bool {
        matches!(&self.rows, Rows::Sparse(a) if a.format() == Compressed::Columns)
    }

    /// Of zeros: what it holds counts, and no page of it is there.
    fn zeros<T: Real>(&self, height: u64, columns: usize) -> Result<Product<T>> {
        self.product_of(height as usize, columns, |_| ())
    }

    fn product<T: Real>(&self, x: MatRef<'_, f64>) -> Result<Product<T>> {
        let columns = x.ncols();
        self.product_of(x.nrows(), columns, |values| {
            for (row, values) in values.chunks_exact_mut(columns.max(1)).enumerate() {
                let columns = values.iter_mut().enumerate();
                columns.for_each(|(column, value)| *value = T::of(x[(row, column)]));
            }
        })
    }

    fn product_of<T: Real>(
        &self,
        height: usize,
        width: usize,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Product<T>> {
        let bytes = (height * width).max(1) * size_of::<T>();
        let mut x = Buf::not_inherited(bytes).map_err(|source| Error::NoMemory {
            bytes: bytes as u64,
            source,
        })?;
        fill(&mut bytemuck::cast_slice_mut(&mut x)[..height * width]);
        Ok(Product {
            x: x.freeze(),
            height,
            width,
            element: PhantomData,
            is_dense: matches!(self.rows, Rows::Dense(_)),
            blas: self.session.blas().clone(),
        })
    }

    /// Whether A^T A X cannot be made row by row.
    fn takes_two_passes(&self, state_bytes: u64) -> bool {
        self.is_by_columns() || cuts_rows(&self.session, &self.rows, state_bytes, state_bytes)
    }

    /// Elements of a row that are converted before it is used; of sparse ones, no more than a line.
    fn converted_width(&self) -> u64 {
        match &self.rows {
            Rows::Dense(x) => x.cols(),
            Rows::Sparse(_) => 0,
        }
    }

    /// A pass that makes a row of each row, in the type of products.
    fn map_job<T: Real>(
        &self,
        name: &'static str,
        rows: impl Map<T, Element = T>,
    ) -> Result<Job<Vec<T>>> {
        if self.stored == T::DTYPE {
            return map::<T, _>(&self.session, name, &self.rows, rows);
        }
        let rows = Converted::new(rows, self.converted_width());
        with_real!(self.stored, S => map::<S, _>(&self.session, name, &self.rows, rows))
    }

    /// A pass that adds rows up, in the type of products.
    fn fold_job<T: Real>(
        &self,
        name: &'static str,
        sums: impl Fold<T, Element = T>,
    ) -> Result<Job<Vec<T>>> {
        if self.stored == T::DTYPE {
            return fold::<T, _>(&self.session, name, &self.rows, sums);
        }
        let sums = Converted::new(sums, self.converted_width());
        with_real!(self.stored, S => fold::<S, _>(&self.session, name, &self.rows, sums))
    }

    /// The same for rows that go to scratch.
    fn rows_job<T: Real>(
        &self,
        rows: impl RowMap<T, Element = T>,
        stage: &mut Stage,
    ) -> Result<Array> {
        let (session, out) = (&self.session, Output::Scratch);
        stage.complete(match self.stored == T::DTYPE {
            true => map_into::<T, _>(session, "product", &self.rows, rows, out)?,
            false => {
                let rows = Converted::new(rows, self.converted_width());
                with_real!(self.stored, S => map_into::<S, _>(session, "product", &self.rows, rows, out)?)
            }
        })
    }

    /// Found out from the plans of the passes, which depend on the budget alone.
    fn floor_bytes<T: Real>(&self, columns: usize) -> u64 {
        let [count, width] = [self.rows.count(), self.rows.width()];
        let along = self.zeros::<T>(width, columns);
        let across = self.zeros::<T>(count, columns).map(|product| Across {
            product,
            height: width as usize,
        });
        let passes = [
            floor_bytes(along.and_then(|x| self.map_job("product", Along(x)))),
            floor_bytes(across.and_then(|across| self.fold_job("product", across))),
        ];
        passes.into_iter().fold(0, u64::max) + (count + width) * (columns * size_of::<T>()) as u64
    }

    /// A row of the result for each row: one pass.
    fn along_rows<T: Real>(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        let job = self.map_job("product", Along(self.product::<T>(x)?))?;
        put(&stage.complete(job)?, y);
        Ok(())
    }

    /// Rows times rows of x, added up: one pass.
    fn across_rows<T: Real>(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        let across = Across {
            product: self.product::<T>(x)?,
            height: y.nrows(),
        };
        let job = self.fold_job("product", across)?;
        put(&stage.complete(job)?, y);
        Ok(())
    }

    /// Each row used twice, in one pass; nothing where rows may be cut.
    fn twice<T: Real>(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<bool> {
        let state_bytes = (x.nrows() * x.ncols() * size_of::<T>()) as u64;
        if self.takes_two_passes(state_bytes) {
            return Ok(false);
        }
        let job = self.fold_job("Gram product", Twice(self.product::<T>(x)?))?;
        put(&stage.complete(job)?, y);
        Ok(true)
    }
}

impl Operator for Matrix {
    fn shape(&self) -> [usize; 2] {
        let [rows, cols] = match &self.rows {
            Rows::Dense(x) => [x.rows(), x.cols()],
            Rows::Sparse(a) => a.shape(),
        };
        [rows as usize, cols as usize]
    }

    /// The columns and the result in the matrix's element type, and what the passes reserve.
    fn held_bytes(&self, columns: usize) -> u64 {
        with_real!(self.real, T => self.floor_bytes::<T>(columns))
    }

    /// In one pass nothing is between the products.
    fn gram_held_bytes(&self, columns: usize) -> u64 {
        let element = self.real.bytes();
        let vectors = (self.rows.width() as usize * columns * element) as u64;
        if self.takes_two_passes(vectors) {
            return self.held_bytes(columns) + 8 * (self.shape()[0] * columns) as u64;
        }
        2 * vectors
            + with_real!(self.real, T => floor_bytes(self.zeros::<T>(self.rows.width(), columns).and_then(|x| self.fold_job("Gram product", Twice(x)))))
    }

    fn name(&self) -> &str {
        self.rows.name()
    }

    fn identity(&self) -> String {
        let [rows, cols] = self.shape();
        match &self.rows {
            Rows::Dense(_) => format!("{rows} x {cols} of {:?}", self.stored),
            Rows::Sparse(a) => format!(
                "{rows} x {cols}, {} entries of {:?}",
                a.nonzeros(),
                self.stored
            ),
        }
    }

    fn pass_bytes(&self) -> u64 {
        self.rows.stored_bytes()
    }

    /// Of a few columns; products with more may have to cut rows that these do not.
    fn gram_pass_bytes(&self) -> u64 {
        let vectors = self.rows.width() * COLUMNS * self.real.bytes() as u64;
        match self.takes_two_passes(vectors) {
            true => 2 * self.pass_bytes(),
            false => self.pass_bytes(),
        }
    }

    fn computing_s(&self, columns: usize) -> f64 {
        match &self.rows {
            // In memory, wide products keep up with it.
            Rows::Dense(_) if self.pass_bytes() == 0 => 0.0,
            Rows::Dense(_) => {
                let [m, n] = self.shape().map(|side| side as f64);
                self.real.bytes() as f64 * m * n * (BYTE_S + BYTE_COLUMN_S * columns as f64)
            }
            Rows::Sparse(a) => a.nonzeros() as f64 * (ENTRY_S + ENTRY_COLUMN_S * columns as f64),
        }
    }

    fn epsilon(&self) -> f64 {
        with_real!(self.real, T => T::EPSILON.f64())
    }

    fn by_rows(&self) -> Option<&dyn RowProduct> {
        (!self.is_by_columns()).then_some(self)
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        with_real!(self.real, T => match self.is_by_columns() {
            false => self.along_rows::<T>(x, y, stage),
            true => self.across_rows::<T>(x, y, stage),
        })
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        with_real!(self.real, T => match self.is_by_columns() {
            false => self.across_rows::<T>(x, y, stage),
            true => self.along_rows::<T>(x, y, stage),
        })
    }

    fn apply_gram(
        &self,
        x: MatRef<'_, f64>,
        mut y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        if with_real!(self.real, T => self.twice::<T>(x, y.as_mut(), stage)?) {
            return Ok(());
        }
        gram_of_two_products(self, x, y, stage)
    }
}

impl RowProduct for Matrix {
    fn rows_held_bytes(&self, columns: usize) -> u64 {
        let (session, rows, width) = (&self.session, &self.rows, self.rows.width());
        with_real!(self.real, T => {
            let Ok(map) = self.zeros::<T>(width, columns).map(Along) else {
                // More than any budget, and sums of it are numbers.
                return u64::MAX >> 8;
            };
            match self.stored == T::DTYPE {
                true => mapped_bytes::<T, _>(session, rows, &map),
                false => {
                    let map = Converted::new(map, self.converted_width());
                    with_real!(self.stored, S => mapped_bytes::<S, _>(session, rows, &map))
                }
            }
        })
    }

    fn apply_rows(&self, x: MatRef<'_, f64>, stage: &mut Stage) -> Result<(Array, Vec<f64>)> {
        let rows = with_real!(self.real, T => self.rows_job(Along(self.product::<T>(x)?), stage)?);
        Ok((rows, vec![0.0; x.ncols()]))
    }
}

/// What a planned pass reserves at the least, or would: whatever the number of threads, on which
/// nothing that is chosen by it may depend.
fn floor_bytes<R: Send + 'static>(job: Result<Job<R>>) -> u64 {
    match job.and_then(|job| job.least_bytes()) {
        Ok(bytes) => bytes,
        Err(Error::OverBudget { needed, .. }) => needed,
        Err(_) => 0,
    }
}

fn put<T: Real>(rows: &[T], mut y: MatMut<'_, f64>) {
    let columns = y.ncols();
    assert_eq!(rows.len(), y.nrows() * columns, "every element was made");
    for (at, value) in rows.iter().enumerate() {
        y[(at / columns, at % columns)] = value.f64();
    }
}

/// What rows are multiplied by, row after row.
struct Product<T> {
    /// A line of 64 bytes of one row, where it has as many, is one line of the caches.
    x: Shared,
    height: usize,
    width: usize,
    element: PhantomData<T>,
    /// Sparse rows are multiplied where they are, without packing.
    is_dense: bool,
    blas: Blas,
}

impl<T: Real> Product<T> {
    fn x(&self) -> Result<MatRef<'_, T>> {
        self.x_rows(0, self.height)
    }

    fn values(&self) -> &[T] {
        &bytemuck::cast_slice(&self.x)[..self.elements()]
    }

    fn elements(&self) -> usize {
        self.height * self.width
    }

    fn x_rows(&self, first: usize, count: usize) -> Result<MatRef<'_, T>> {
        Ok(view(
            &self.values()[first * self.width..],
            count,
            self.width,
            self.width,
            1,
        )?)
    }

    fn y<'a>(&self, elements: &'a mut [T]) -> Result<MatMut<'a, T>> {
        assert!(
            elements.len().is_multiple_of(self.width.max(1)),
            "whole rows"
        );
        Ok(view_mut(
            elements,
            elements.len() / self.width,
            self.width,
            self.width,
            1,
        )?)
    }

    fn bytes(&self) -> u64 {
        (self.elements() * size_of::<T>()) as u64
    }

    fn scratch_bytes(&self, rows: usize) -> usize {
        if !self.is_dense {
            return rows * self.width * size_of::<T>();
        }
        let shapes = [(rows, self.height), (self.height, rows)];
        let bytes = shapes
            .map(|(rows, depth)| gemm_scratch_bytes::<T>(rows, self.width, depth, &self.blas));
        rows * self.width * size_of::<T>() + bytes[0].max(bytes[1])
    }
}

struct Along<T>(Product<T>);

impl<T: Real> Map<T> for Along<T> {
    type Element = T;

    fn width(&self) -> usize {
        self.0.width
    }

    fn held_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn task_bytes(&self, rows: usize) -> usize {
        self.0.scratch_bytes(rows)
    }

    fn dense(&self, into: &mut [T], rows: MatRef<'_, T>) -> Result<()> {
        Ok(kernels::gemm(
            self.0.y(into)?,
            T::ONE,
            rows,
            self.0.x()?,
            T::ZERO,
            &self.0.blas,
        )?)
    }

    fn sparse(&self, into: &mut [T], _first: u64, lines: impl Lines<T>) -> Result<()> {
        Ok(kernels::csrmm(
            self.0.y(into)?,
            T::ONE,
            lines,
            self.0.x()?,
            0,
            T::ONE,
        )?)
    }

    fn merge(&self, into: &mut T, other: &T) {
        *into += *other;
    }
}

impl<T: Real> RowMap<T> for Along<T> {
    type Element = T;

    fn width(&self) -> u64 {
        self.0.width as u64
    }

    fn held_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn cost(&self, rows: usize, entries: usize, _by_rows: bool) -> Cost {
        let width = self.0.width;
        match self.0.is_dense {
            true => Cost {
                flops: kernels::gemm_flops(rows, width, self.0.height),
                held: self.0.scratch_bytes(rows),
                ..Cost::default()
            },
            false => Cost {
                flops: kernels::csrmm_flops(entries, width),
                ..Cost::default()
            },
        }
    }

    fn dense(&self, y: MatMut<'_, T>, x: MatRef<'_, T>, work: TaskContext<'_>) -> Result<()> {
        let stop = || work.cancelled.load(Ordering::Relaxed);
        in_calls(y, T::ONE, x, self.0.x()?, T::ZERO, &self.0.blas, stop)
    }

    fn sparse_bytes_max(&self) -> u64 {
        short_piece_bytes(self.0.width as u64, size_of::<T>() as u64)
    }

    fn sparse(
        &self,
        y: MatMut<'_, T>,
        _numbers: &mut [f64],
        lines: impl Lines<T>,
        _work: TaskContext<'_>,
    ) -> Result<()> {
        Ok(kernels::csrmm(y, T::ONE, lines, self.0.x()?, 0, T::ONE)?)
    }
}

struct Across<T> {
    product: Product<T>,
    /// Rows of the result.
    height: usize,
}

impl<T: Real> Fold<T> for Across<T> {
    type Element = T;

    fn elements(&self) -> usize {
        self.height * self.product.width
    }

    fn held_bytes(&self) -> u64 {
        self.product.bytes()
    }

    fn task_bytes(&self, rows: usize) -> usize {
        match self.product.is_dense {
            true => {
                gemm_scratch_bytes::<T>(self.height, self.product.width, rows, &self.product.blas)
            }
            false => 0,
        }
    }

    fn dense(&self, state: &mut [T], first: u64, rows: MatRef<'_, T>) -> Result<()> {
        let x = self.product.x_rows(first as usize, rows.nrows())?;
        Ok(kernels::gemm(
            self.product.y(state)?,
            T::ONE,
            rows.transpose(),
            x,
            T::ONE,
            &self.product.blas,
        )?)
    }

    fn sparse(&self, state: &mut [T], first: u64, lines: impl Lines<T>) -> Result<()> {
        let x = self.product.x_rows(first as usize, lines.lines())?;
        Ok(kernels::csrmm_transposed(
            self.product.y(state)?,
            T::ONE,
            lines,
            x,
            0,
        )?)
    }

    fn merge(&self, into: &mut [T], other: &[T]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += *other);
    }
}

struct Twice<T>(Product<T>);

impl<T: Real> Fold<T> for Twice<T> {
    type Element = T;

    fn elements(&self) -> usize {
        self.0.elements()
    }

    fn held_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn task_bytes(&self, rows: usize) -> usize {
        self.0.scratch_bytes(rows)
    }

    fn dense(&self, state: &mut [T], _first: u64, rows: MatRef<'_, T>) -> Result<()> {
        let (width, blas) = (self.0.width, &self.0.blas);
        let mut between = vec![T::ZERO; rows.nrows() * width];
        kernels::gemm(
            self.0.y(&mut between)?,
            T::ONE,
            rows,
            self.0.x()?,
            T::ZERO,
            blas,
        )?;
        let between = view(&between, rows.nrows(), width, width, 1)?;
        Ok(kernels::gemm(
            self.0.y(state)?,
            T::ONE,
            rows.transpose(),
            between,
            T::ONE,
            blas,
        )?)
    }

    fn sparse(&self, state: &mut [T], _first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut between = vec![T::ZERO; kernels::gram_rows(&lines) * self.0.width];
        Ok(kernels::csr_gram(
            self.0.y(state)?,
            lines,
            self.0.x()?,
            &mut between,
        )?)
    }

    fn merge(&self, into: &mut [T], other: &[T]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += *other);
    }
}
