//! A matrix whose columns are multiplied by numbers, which is never made.

use outcore_core::{Error, Result, Stage};
use outcore_kernels::{Mat, MatMut, MatRef};
use outcore_matrix::Array;

use super::{Operator, RowProduct, hash};

/// A D, m x n, for a diagonal D.
pub struct Scaled<O> {
    operator: O,
    factors: Vec<f64>,
}

impl<O: Operator> Scaled<O> {
    /// `factors` has an element for each column of A.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::{Matrix, Operator, Scaled};
    ///
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let scaled = Scaled::new(Matrix::new(&session, &a)?, vec![1.0, 1.0, 0.5])?;
    /// assert_eq!(scaled.shape(), [2, 3]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of elements.
    pub fn new(operator: O, factors: Vec<f64>) -> Result<Scaled<O>> {
        let columns = operator.shape()[1];
        if factors.len() != columns {
            return Err(Error::shape(format!(
                "an operator of {columns} columns, {} factors",
                factors.len()
            )));
        }
        Ok(Scaled { operator, factors })
    }

    /// D x.
    fn times(&self, x: MatRef<'_, f64>) -> Mat<f64> {
        Mat::from_fn(x.nrows(), x.ncols(), |row, column| {
            self.factors[row] * x[(row, column)]
        })
    }

    fn multiply(&self, mut y: MatMut<'_, f64>) {
        for column in 0..y.ncols() {
            for (row, factor) in self.factors.iter().enumerate() {
                y[(row, column)] *= factor;
            }
        }
    }

    /// Of the factors, and of D x.
    fn own_bytes(&self, columns: usize) -> u64 {
        8 * (self.factors.len() * (1 + columns)) as u64
    }
}

impl<O: Operator> Operator for Scaled<O> {
    fn shape(&self) -> [usize; 2] {
        self.operator.shape()
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        self.operator.held_bytes(columns) + self.own_bytes(columns)
    }

    fn gram_held_bytes(&self, columns: usize) -> u64 {
        self.operator.gram_held_bytes(columns) + self.own_bytes(columns)
    }

    fn name(&self) -> &str {
        self.operator.name()
    }

    fn identity(&self) -> String {
        format!(
            "{} with its columns multiplied, {:x}",
            self.operator.identity(),
            hash(&self.factors)
        )
    }

    fn pass_bytes(&self) -> u64 {
        self.operator.pass_bytes()
    }

    fn gram_pass_bytes(&self) -> u64 {
        self.operator.gram_pass_bytes()
    }

    fn computing_s(&self, columns: usize) -> f64 {
        self.operator.computing_s(columns)
    }

    fn by_rows(&self) -> Option<&dyn RowProduct> {
        self.operator.by_rows().map(|_| self as &dyn RowProduct)
    }

    fn epsilon(&self) -> f64 {
        self.operator.epsilon()
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        self.operator.apply(self.times(x).as_ref(), y, stage)
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        mut y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.operator.apply_transposed(x, y.as_mut(), stage)?;
        self.multiply(y);
        Ok(())
    }

    fn apply_gram(
        &self,
        x: MatRef<'_, f64>,
        mut y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.operator
            .apply_gram(self.times(x).as_ref(), y.as_mut(), stage)?;
        self.multiply(y);
        Ok(())
    }
}

impl<O: Operator> Scaled<O> {
    fn rows(&self) -> &dyn RowProduct {
        let rows = self.operator.by_rows();
        rows.expect("it was asked whether there are such products")
    }
}

impl<O: Operator> RowProduct for Scaled<O> {
    fn rows_held_bytes(&self, columns: usize) -> u64 {
        self.rows().rows_held_bytes(columns) + self.own_bytes(columns)
    }

    fn apply_rows(&self, x: MatRef<'_, f64>, stage: &mut Stage) -> Result<(Array, Vec<f64>)> {
        self.rows().apply_rows(self.times(x).as_ref(), stage)
    }
}
