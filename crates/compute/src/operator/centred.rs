//! A matrix less the means of its columns, which is never made: sparse rows stay sparse.

use outcore_core::{Error, Result, Stage};
use outcore_kernels::{MatMut, MatRef};
use outcore_matrix::Array;

use super::{Operator, RowProduct, gram_of_two_products, hash};

/// A - 1 mean^T, m x n.
pub struct Centred<O> {
    operator: O,
    mean: Vec<f64>,
    is_far: bool,
}

impl<O: Operator> Centred<O> {
    /// `mean` has an element for each column of A.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::{Centred, Matrix, Operator};
    ///
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let centred = Centred::new(Matrix::new(&session, &a)?, vec![0.5, 1.5, 1.0])?;
    /// assert_eq!(centred.shape(), [2, 3]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of elements.
    pub fn new(operator: O, mean: Vec<f64>) -> Result<Centred<O>> {
        let columns = operator.shape()[1];
        if mean.len() != columns {
            return Err(Error::shape(format!(
                "an operator of {columns} columns, {} means",
                mean.len()
            )));
        }
        Ok(Centred {
            operator,
            mean,
            is_far: false,
        })
    }

    /// Whether the means are so long that A^T A less theirs would lose too many digits: products with it are
    /// two then, of which each has lost few.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_compute::operator::{Centred, Matrix, Operator};
    ///
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let centred = Centred::new(Matrix::new(&session, &a)?, vec![0.5, 1.5, 1.0])?.far(true);
    /// assert_eq!(centred.gram_pass_bytes(), 2 * centred.pass_bytes());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    #[must_use]
    pub fn far(self, is_far: bool) -> Centred<O> {
        Centred { is_far, ..self }
    }

    /// mean^T x, for each column of x.
    fn along_mean(&self, x: MatRef<'_, f64>) -> Vec<f64> {
        let product = |column| {
            (0..x.nrows())
                .map(|row| self.mean[row] * x[(row, column)])
                .sum()
        };
        (0..x.ncols()).map(product).collect()
    }

    /// Takes `factors` times the mean off the columns of y.
    fn take_off_mean(&self, mut y: MatMut<'_, f64>, factors: &[f64]) {
        for (column, factor) in factors.iter().enumerate() {
            (0..y.nrows()).for_each(|row| y[(row, column)] -= factor * self.mean[row]);
        }
    }
}

impl<O: Operator> Operator for Centred<O> {
    fn shape(&self) -> [usize; 2] {
        self.operator.shape()
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        self.operator.held_bytes(columns) + 8 * (self.mean.len() + columns) as u64
    }

    fn gram_held_bytes(&self, columns: usize) -> u64 {
        if self.is_far {
            return self.held_bytes(columns) + 8 * (self.shape()[0] * columns) as u64;
        }
        self.operator.gram_held_bytes(columns) + 8 * (self.mean.len() + columns) as u64
    }

    fn name(&self) -> &str {
        self.operator.name()
    }

    fn identity(&self) -> String {
        format!(
            "{} less the means of its columns, {:x}",
            self.operator.identity(),
            hash(&self.mean)
        )
    }

    fn pass_bytes(&self) -> u64 {
        self.operator.pass_bytes()
    }

    fn gram_pass_bytes(&self) -> u64 {
        if self.is_far {
            return 2 * self.pass_bytes();
        }
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

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        self.operator.apply(x, y.as_mut(), stage)?;
        for (column, along) in self.along_mean(x).into_iter().enumerate() {
            (0..y.nrows()).for_each(|row| y[(row, column)] -= along);
        }
        Ok(())
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        mut y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.operator.apply_transposed(x, y.as_mut(), stage)?;
        let sums: Vec<f64> = (0..x.ncols())
            .map(|column| (0..x.nrows()).map(|row| x[(row, column)]).sum())
            .collect();
        self.take_off_mean(y, &sums);
        Ok(())
    }

    /// With the true means A^T 1 is m times them, so that one pass over A is enough.
    fn apply_gram(
        &self,
        x: MatRef<'_, f64>,
        mut y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        if self.is_far {
            return gram_of_two_products(self, x, y, stage);
        }
        self.operator.apply_gram(x, y.as_mut(), stage)?;
        let rows = self.shape()[0] as f64;
        let factors: Vec<f64> = self
            .along_mean(x)
            .into_iter()
            .map(|along| rows * along)
            .collect();
        self.take_off_mean(y, &factors);
        Ok(())
    }
}

impl<O: Operator> Centred<O> {
    fn rows(&self) -> &dyn RowProduct {
        let rows = self.operator.by_rows();
        rows.expect("it was asked whether there are such products")
    }
}

impl<O: Operator> RowProduct for Centred<O> {
    fn rows_held_bytes(&self, columns: usize) -> u64 {
        self.rows().rows_held_bytes(columns) + 8 * (self.mean.len() + columns) as u64
    }

    fn apply_rows(&self, x: MatRef<'_, f64>, stage: &mut Stage) -> Result<(Array, Vec<f64>)> {
        let (rows, offsets) = self.rows().apply_rows(x, stage)?;
        let along = self.along_mean(x).into_iter().zip(offsets);
        Ok((rows, along.map(|(along, offset)| along + offset).collect()))
    }
}
