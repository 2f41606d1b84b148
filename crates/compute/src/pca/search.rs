//! The leading eigenvectors of a covariance.
//!
//! All eigenvectors at once where few are left out or the matrix is small, else a block Krylov search
//! (`krylov.rs`).
//!
//! Cost: some 4/3 d^3 to 9 d^3 flops at once; 2 d^2 for each column of the search.

use outcore_core::{Result, Session, Stage};
use outcore_kernels as kernels;
use outcore_kernels::{Eigen, view};

use super::operator::CovarianceOperator;
use super::{Components, Pca, Wanted};
use crate::krylov::Krylov;

/// All eigenvectors at once for this many features or fewer.
const FEATURES_AT_ONCE: usize = 256;

/// What is to be found of a covariance.
pub(super) struct Search {
    pub(super) session: Session,
    /// Of all ranks.
    pub(super) samples: u64,
    pub(super) features: usize,
    components: Components,
    pub(super) krylov: Krylov,
}

impl Search {
    pub(super) fn new(session: &Session, wanted: Wanted, features: usize) -> Search {
        Search {
            session: session.clone(),
            samples: wanted.samples,
            features,
            components: wanted.components,
            krylov: Krylov::wide(wanted.seed),
        }
    }

    pub(super) fn kept(&self) -> Option<usize> {
        let all = self.samples.min(self.features as u64) as usize;
        match self.components {
            Components::Count(count) => Some(count as usize),
            Components::All => Some(all),
            Components::Variance(_) => None,
        }
    }

    /// All eigenvectors at once where few are left out, or the matrix is small.
    pub(super) fn at_once(&self) -> bool {
        self.kept()
            .is_none_or(|kept| self.features <= FEATURES_AT_ONCE || kept * 5 > self.features)
    }

    /// What the solver holds besides the matrix, or a product with S by way of scratch.
    pub(super) fn basis_bytes(&self) -> u64 {
        let d = self.features;
        let kept = self.kept().unwrap_or(d);
        let solver = match self.at_once() {
            true => kernels::eigh_scratch_bytes::<f64>(d, kept) as u64,
            false => self.krylov.basis_bytes(d, kept),
        };
        solver + (8 * d * kept) as u64
    }

    pub(super) fn freedom(&self) -> f64 {
        (self.samples as f64 - 1.0).max(1.0)
    }

    /// The leading eigenpairs of the covariance of rows whose sums of products are this matrix and whose mean, where
    /// products were taken about another point, is this far from it; and its trace.
    pub(super) fn leading(
        &self,
        mut matrix: Vec<f64>,
        delta: &[f64],
        stage: &mut Stage,
    ) -> Result<(Eigen<f64>, f64)> {
        let (n, freedom) = (self.samples as f64, self.freedom());
        for (row, values) in matrix.chunks_mut(self.features).enumerate() {
            values
                .iter_mut()
                .zip(delta)
                .for_each(|(value, other)| *value = (*value - n * delta[row] * other) / freedom);
        }
        self.eigen(matrix, stage)
    }

    /// The leading eigenpairs of a covariance, and its trace.
    pub(super) fn eigen(&self, matrix: Vec<f64>, stage: &mut Stage) -> Result<(Eigen<f64>, f64)> {
        let d = self.features;
        let trace = (0..d).map(|at| matrix[at * d + at]).sum();
        if self.at_once() {
            let eigen = kernels::eigh(view(&matrix, d, d, d, 1)?, self.kept())?;
            return Ok((eigen, trace));
        }
        let blas = self.session.blas();
        let covariance = CovarianceOperator::InMemory { matrix, blas };
        let kept = self.kept().unwrap_or(d);
        let eigen = self
            .krylov
            .largest(&self.session, &covariance, kept, stage)?;
        Ok((eigen, trace))
    }

    pub(super) fn model(&self, eigen: Eigen<f64>, mean: Vec<f64>, total: f64) -> Pca {
        let Eigen { values, vectors } = eigen;
        let mut values: Vec<f64> = values.into_iter().map(|value| value.max(0.0)).collect();
        if let Components::Variance(part) = self.components {
            let mut explained = 0.0;
            let enough = values.iter().position(|value| {
                explained += value;
                explained > part * total
            });
            let enough = enough.map_or(values.len(), |last| last + 1);
            values.truncate(enough.min(self.samples as usize));
        }
        let mut components = Vec::with_capacity(values.len() * self.features);
        for column in 0..values.len() {
            let largest = (0..self.features)
                .map(|row| vectors[(row, column)])
                .fold(0.0f64, |a, b| if b.abs() > a.abs() { b } else { a });
            let sign = if largest < 0.0 { -1.0 } else { 1.0 };
            components.extend((0..self.features).map(|row| sign * vectors[(row, column)]));
        }
        Pca {
            samples: self.samples,
            features: self.features as u64,
            mean,
            components,
            explained_variance: values,
            total_variance: total.max(0.0),
        }
    }
}
