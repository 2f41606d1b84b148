//! A^T A of another operator.

use outcore_core::{Result, Stage};
use outcore_kernels::{MatMut, MatRef};

use super::Operator;

/// A^T A, n x n, which is symmetric.
pub struct Gram<O>(pub O);

impl<O: Operator> Operator for Gram<O> {
    fn shape(&self) -> [usize; 2] {
        [self.0.shape()[1]; 2]
    }

    /// Those of A, and A X between its two products.
    fn held_bytes(&self, columns: usize) -> u64 {
        self.0.held_bytes(columns) + 8 * (self.0.shape()[0] * columns) as u64
    }

    fn epsilon(&self) -> f64 {
        self.0.epsilon()
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        self.0.apply_gram(x, y, stage)
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.0.apply_gram(x, y, stage)
    }
}
