//! The transpose of another operator.

use outcore_core::{Result, Stage};
use outcore_kernels::{MatMut, MatRef};

use super::Operator;

/// A^T, n x m.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::operator::{Matrix, Operator, Turned};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// assert_eq!(Turned(Matrix::new(&session, &a)?).shape(), [3, 2]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Turned<O>(pub O);

impl<O: Operator> Operator for Turned<O> {
    fn shape(&self) -> [usize; 2] {
        let [m, n] = self.0.shape();
        [n, m]
    }

    /// Those of A, and what is between its two products.
    fn held_bytes(&self, columns: usize) -> u64 {
        self.0.held_bytes(columns) + 8 * (self.0.shape()[1] * columns) as u64
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn identity(&self) -> String {
        format!("the transpose of {}", self.0.identity())
    }

    fn pass_bytes(&self) -> u64 {
        self.0.pass_bytes()
    }

    fn computing_s(&self, columns: usize) -> f64 {
        self.0.computing_s(columns)
    }

    fn epsilon(&self) -> f64 {
        self.0.epsilon()
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        self.0.apply_transposed(x, y, stage)
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.0.apply(x, y, stage)
    }
}
