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

    fn held_bytes(&self, columns: usize) -> u64 {
        self.0.gram_held_bytes(columns)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn pass_bytes(&self) -> u64 {
        self.0.gram_pass_bytes()
    }

    fn computing_s(&self, columns: usize) -> f64 {
        2.0 * self.0.computing_s(columns)
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
