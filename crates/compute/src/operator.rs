//! Linear maps that are known by what they do to a few columns at once: what iterations need of a
//! matrix.
//!
//! Columns and results are in memory, in f64; what a matrix on SSD reads for a product goes through
//! passes in its own element type.

mod centred;
mod converted;
mod gram;
mod laplacian;
mod matrix;
mod scaled;
mod turned;

use outcore_kernels::{Mat, MatMut, MatRef};

pub use centred::Centred;
pub use gram::Gram;
pub use laplacian::{Degrees, GraphForm, Laplacian};
pub use matrix::Matrix;
pub use scaled::Scaled;
pub use turned::Turned;

use outcore_core::{Error, Result, Stage};
use outcore_matrix::Array;

/// A linear map A, m x n.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_compute::operator::{Centred, Matrix, Operator};
/// use outcore_core::Job;
/// use outcore_kernels::Mat;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let centred = Centred::new(Matrix::new(&session, &x)?, vec![3.0, 4.0])?;
/// let job = Job::driven(&session, vec![], move |stage, _| {
///     let mut y = Mat::zeros(3, 1);
///     centred.apply(Mat::from_fn(2, 1, |_, _| 1.0).as_ref(), y.as_mut(), stage)?;
///     Ok([y[(0, 0)], y[(1, 0)], y[(2, 0)]])
/// })?;
/// assert_eq!(job.run()?, [-4.0, 0.0, 4.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub trait Operator {
    /// m and n.
    fn shape(&self) -> [usize; 2];

    /// Bytes that a product with a block of columns holds, besides the columns and the result.
    fn held_bytes(&self, columns: usize) -> u64;

    /// What errors call it.
    fn name(&self) -> &str {
        "the operator"
    }

    /// What tells it from another one without a product: what a checkpoint is of.
    fn identity(&self) -> String {
        let [rows, cols] = self.shape();
        format!("{rows} x {cols}")
    }

    /// Bytes that a pass of a product reads.
    fn pass_bytes(&self) -> u64 {
        0
    }

    /// Bytes that a product with A^T A reads: twice those of a pass, unless a row of A can be used twice.
    fn gram_pass_bytes(&self) -> u64 {
        2 * self.pass_bytes()
    }

    /// Seconds that two cores compute for a product, estimated for choices made before it; 0 where
    /// reading takes longer.
    fn computing_s(&self, columns: usize) -> f64 {
        let _ = columns;
        0.0
    }

    /// Bytes that a product with A^T A holds, as [`held_bytes`](Operator::held_bytes).
    fn gram_held_bytes(&self, columns: usize) -> u64 {
        self.held_bytes(columns) + 8 * (self.shape()[0] * columns) as u64
    }

    /// Products whose rows are made one after another, if it has them.
    fn by_rows(&self) -> Option<&dyn RowProduct> {
        None
    }

    /// What products are rounded to: the machine epsilon of the type that they are computed in.
    fn epsilon(&self) -> f64 {
        f64::EPSILON
    }

    /// Y = A X, for X of n x c and Y of m x c; reads what it needs in the stage.
    ///
    /// # Errors
    /// Those of the computation; [`Error::Cancelled`].
    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()>;

    /// Y = A^T X, for X of m x c and Y of n x c.
    ///
    /// # Errors
    /// As [`apply`](Operator::apply); [`Error::Value`] where it is not known.
    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()>;

    /// Y = A^T A X, for X and Y of n x c: by two products, or in one pass where a row of A can be
    /// used twice.
    ///
    /// # Errors
    /// As [`apply_transposed`](Operator::apply_transposed).
    fn apply_gram(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        gram_of_two_products(self, x, y, stage)
    }
}

/// Products that are as tall as memory has no room for: each row goes to scratch as it is made.
pub trait RowProduct {
    /// Bytes that a product with a block of columns holds, besides the columns.
    fn rows_held_bytes(&self, columns: usize) -> u64;

    /// A X for X of n x c: an array of m x c, row after row, and what is to be taken off each of its
    /// columns. One pass.
    ///
    /// # Errors
    /// As [`apply`](Operator::apply); what keeps the array from being made.
    fn apply_rows(&self, x: MatRef<'_, f64>, stage: &mut Stage) -> Result<(Array, Vec<f64>)>;
}

/// A number that other vectors have not, most probably: FNV-1a.
pub(crate) fn hash(vector: &[f64]) -> u64 {
    let bytes = vector.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn gram_of_two_products<O: Operator + ?Sized>(
    operator: &O,
    x: MatRef<'_, f64>,
    y: MatMut<'_, f64>,
    stage: &mut Stage,
) -> Result<()> {
    let mut between = Mat::zeros(operator.shape()[0], x.ncols());
    operator.apply(x, between.as_mut(), stage)?;
    operator.apply_transposed(between.as_ref(), y, stage)
}

/// A map of any shape that is a function of the caller's.
pub struct Given<F> {
    name: String,
    shape: [usize; 2],
    apply: F,
}

impl<F: Fn(bool, MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()>> Given<F> {
    /// `apply(transposed, x, y)` writes A x to y, or A^T x; both have some columns.
    ///
    /// ```
    /// use outcore_compute::operator::{Given, Operator};
    ///
    /// // Row i of A x is element i of x.
    /// let first = Given::new("the first rows", [2, 3], |transposed, x, mut y| {
    ///     let rows = if transposed { 3 } else { 2 };
    ///     (0..x.ncols()).for_each(|j| (0..rows).for_each(|i| y[(i, j)] = if i < 2 { x[(i, j)] } else { 0.0 }));
    ///     Ok(())
    /// });
    /// assert_eq!((first.name(), first.shape()), ("the first rows", [2, 3]));
    /// ```
    pub fn new(name: impl Into<String>, shape: [usize; 2], apply: F) -> Given<F> {
        Given {
            name: name.into(),
            shape,
            apply,
        }
    }
}

impl<F: Fn(bool, MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()>> Operator for Given<F> {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// What a function may need beside both blocks: copies of them.
    fn held_bytes(&self, columns: usize) -> u64 {
        let [rows, width] = self.shape;
        (8 * (rows + width) * columns) as u64
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        stage.check()?;
        (self.apply)(false, x, y)
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        stage.check()?;
        (self.apply)(true, x, y)
    }
}

/// A symmetric map that is a function of the caller's.
pub struct Symmetric<F> {
    order: usize,
    apply: F,
}

impl<F: Fn(MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()>> Symmetric<F> {
    /// `apply(x, y)` writes A x to y, both of `order` rows and some columns.
    ///
    /// ```
    /// use outcore_compute::operator::{Operator, Symmetric};
    ///
    /// let twice = Symmetric::new(100, |x, mut y| {
    ///     (0..x.ncols()).for_each(|j| (0..100).for_each(|i| y[(i, j)] = 2.0 * x[(i, j)]));
    ///     Ok(())
    /// });
    /// assert_eq!(twice.shape(), [100, 100]);
    /// ```
    pub fn new(order: usize, apply: F) -> Symmetric<F> {
        Symmetric { order, apply }
    }
}

impl<F: Fn(MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()>> Operator for Symmetric<F> {
    fn shape(&self) -> [usize; 2] {
        [self.order; 2]
    }

    fn held_bytes(&self, _columns: usize) -> u64 {
        0
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        if stage.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            (self.apply)(x, y)
        }
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.apply(x, y, stage)
    }
}
