//! The covariance as an operator, for the search of its largest eigenpairs.
//!
//! Cost of a product with c columns: 2 d^2 c flops; from scratch, see `stored.rs`.

use outcore_core::{Result, Stage};
use outcore_kernels::{Blas, MatMut, MatRef, view};

use super::stored::{StoredPanels, product_bytes};
use crate::linalg::in_calls;
use crate::operator::Operator;

/// A covariance, d x d.
pub(super) enum CovarianceOperator<'a> {
    /// Row after row.
    InMemory { matrix: Vec<f64>, blas: &'a Blas },
    /// (S - n delta delta^T) / freedom, with S in scratch.
    Stored {
        panels: StoredPanels<'a>,
        samples: f64,
        delta: &'a [f64],
        freedom: f64,
    },
}

impl Operator for CovarianceOperator<'_> {
    fn shape(&self) -> [usize; 2] {
        [match self {
            CovarianceOperator::InMemory { matrix, .. } => matrix.len().isqrt(),
            CovarianceOperator::Stored { delta, .. } => delta.len(),
        }; 2]
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        match self {
            CovarianceOperator::InMemory { matrix, .. } => 8 * matrix.len() as u64,
            CovarianceOperator::Stored { panels, delta, .. } => {
                product_bytes(panels.panels, delta.len(), columns, panels.blas)
            }
        }
    }

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let [d, _] = self.shape();
        match self {
            CovarianceOperator::InMemory { matrix, blas } => {
                let matrix = view(matrix, d, d, d, 1)?;
                in_calls(y, 1.0, matrix, x, 0.0, blas, || stage.is_cancelled())?;
                stage.check()
            }
            CovarianceOperator::Stored {
                panels,
                samples,
                delta,
                freedom,
            } => {
                let product = panels.product(x, stage)?;
                for column in 0..x.ncols() {
                    let along = |(row, delta): (usize, &f64)| delta * x[(row, column)];
                    let along: f64 = delta.iter().enumerate().map(along).sum();
                    for (row, delta) in delta.iter().enumerate() {
                        let product = product[row * x.ncols() + column];
                        y[(row, column)] = (product - samples * delta * along) / freedom;
                    }
                }
                Ok(())
            }
        }
    }

    /// It is symmetric.
    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.apply(x, y, stage)
    }
}
