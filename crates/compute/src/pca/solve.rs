//! From sums to components: the covariance put together, and its leading eigenvectors.
//!
//! All eigenvectors at once where few are left out or the matrix is small, else a block Krylov
//! search (`krylov.rs`) with products in memory or by way of scratch.
//!
//! Cost: some 4/3 d^3 to 9 d^3 flops at once; 2 d^2 for each column of the search.

use std::sync::{Arc, Mutex};

use outcore_core::{Error, MemorySplit, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Extent, Outcome, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Eigen, view, view_mut};

use super::covariance::Panels;
use super::operator::CovarianceOperator;
use super::stored::{StoredPanels, product_bytes};
use super::{Components, PASS_PART, Pca, Wanted};
use crate::krylov::Krylov;
use crate::pass::Lanes;

/// All eigenvectors at once for this many features or fewer.
const FEATURES_AT_ONCE: usize = 256;

/// What the pass has left.
pub(super) enum Products {
    /// A result of the run for each lane.
    InMemory(Lanes),
    /// In scratch, one lane.
    Stored(Extent),
}

/// What is to be found of an S.
pub(super) struct Solve {
    pub(super) session: Session,
    /// Of all ranks.
    pub(super) samples: u64,
    /// Rows that the pass has added up.
    pub(super) rows: u64,
    pub(super) features: usize,
    components: Components,
    pub(super) krylov: Krylov,
    pub(super) panels: Panels,
    /// Where s is.
    shift: Region,
    /// Of S in scratch.
    diagonal: Arc<Mutex<Vec<f64>>>,
}

impl Solve {
    pub(super) fn new(
        session: &Session,
        rows: u64,
        wanted: Wanted,
        panels: &Panels,
        shift: Region,
    ) -> Solve {
        let features = panels[0].height as usize;
        Solve {
            session: session.clone(),
            samples: wanted.samples,
            rows,
            features,
            components: wanted.components,
            krylov: Krylov::wide(wanted.seed),
            panels: panels.clone(),
            shift,
            diagonal: Arc::new(Mutex::new(vec![0.0; features])),
        }
    }

    /// Where the pass puts the diagonal of S.
    pub(super) fn diagonal(&self) -> &Arc<Mutex<Vec<f64>>> {
        &self.diagonal
    }

    pub(super) fn krylov_block(&self) -> usize {
        self.krylov.block()
    }

    /// Chooses a search that fits, with products by way of scratch.
    pub(super) fn shorten(&mut self, seed: u64) {
        let kept = self.kept().unwrap_or(self.features);
        self.krylov = Krylov::that_fits(&self.session, seed, kept, |krylov| {
            krylov.basis_bytes(self.features, kept)
                + self.stored_bytes(krylov.block())
                + 8 * (self.features * kept) as u64
        });
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

    /// What the solver holds, besides lanes.
    pub(super) fn bytes(&self, in_memory: bool) -> u64 {
        let d = self.features;
        let matrix = if in_memory {
            (8 * d * d) as u64
        } else {
            self.stored_bytes(self.krylov.block())
        };
        matrix + self.basis_bytes()
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

    fn stored_bytes(&self, columns: usize) -> u64 {
        product_bytes(&self.panels, self.features, columns, self.session.blas())
    }

    /// Refuses before any I/O what could not be solved after it.
    pub(super) fn check(&self, in_memory: bool) -> Result<()> {
        let available = MemorySplit::new(&self.session).free();
        // All eigenvectors at once need the matrix in memory, and the sums that it is made of.
        let needed = if self.at_once() {
            self.bytes(true) + self.panels.lane_bytes()
        } else {
            self.bytes(in_memory)
        };
        if needed <= available && (in_memory || !self.at_once()) {
            return Ok(());
        }
        // With more memory there are fewer panels, which hold more of what is above the diagonal.
        let (d, padding) = (self.features as u64, 4096 * self.panels.len() as u64);
        Err(Error::OverBudget {
            what: format!("the eigenvectors of a covariance of {d} features"),
            needed: needed.max(self.bytes(true) + 8 * d * (d + 1) + padding),
            available,
            budget: self.session.memory_bytes(),
        })
    }

    pub(super) fn run(
        self,
        outcome: Outcome,
        products: Products,
        stage: &mut Stage,
    ) -> Result<Pca> {
        match products {
            Products::Stored(extent) => self.solve_from_scratch(&outcome, &extent, stage),
            Products::InMemory(lanes) => self.run_in_memory(outcome, lanes, stage),
        }
    }

    /// The solver as a run of one task, so that all it holds is held by the engine meanwhile.
    fn run_in_memory(self, outcome: Outcome, lanes: Lanes, stage: &mut Stage) -> Result<Pca> {
        let mut plan = Plan::new("pca eigenvectors");
        plan.hold(self.bytes(true) + lanes.count() as u64 * self.panels.lane_bytes());
        let found = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&found);
        let mut beside = stage.beside();
        plan.task(Task::new("eigenvectors").run(move |_| {
            *slot.locked() = Some(self.solve_in_memory(&outcome, &lanes, &mut beside)?);
            Ok(())
        }));
        stage.run(plan, 1.0)?;
        let found = found.locked().take();
        found.ok_or(Error::Cancelled)
    }

    fn solve_in_memory(&self, outcome: &Outcome, lanes: &Lanes, stage: &mut Stage) -> Result<Pca> {
        let (sums, matrix) = self.assemble(outcome, lanes)?;
        let (delta, freedom) = self.moments(&sums);
        let (eigen, total) = self.leading(matrix, &delta, freedom, stage)?;
        Ok(self.model(eigen, self.mean(outcome, &delta), total))
    }

    fn solve_from_scratch(
        &self,
        outcome: &Outcome,
        extent: &Extent,
        stage: &mut Stage,
    ) -> Result<Pca> {
        assert!(!self.at_once(), "it was refused before the pass");
        let panels = self.stored(extent);
        let (delta, freedom) = self.moments(&panels.sums(stage)?);
        let samples = self.samples as f64;
        let covariance = CovarianceOperator::Stored {
            panels,
            samples,
            delta: &delta,
            freedom,
        };
        let kept = self.kept().unwrap_or(self.features);
        let eigen = self
            .krylov
            .largest(&self.session, &covariance, kept, stage)?;
        let diagonal = self.diagonal.locked();
        let total = diagonal
            .iter()
            .zip(&delta)
            .map(|(square, delta)| (square - samples * delta * delta) / freedom)
            .sum();
        Ok(self.model(eigen, self.mean(outcome, &delta), total))
    }

    pub(super) fn stored<'a>(&'a self, extent: &'a Extent) -> StoredPanels<'a> {
        StoredPanels {
            panels: &self.panels,
            extent,
            features: self.features,
            blas: self.session.blas(),
            held_bytes: self.basis_bytes(),
            fraction: PASS_PART,
        }
    }

    /// Mean of the shifted columns, and n - 1.
    fn moments(&self, sums: &[f64]) -> (Vec<f64>, f64) {
        let n = self.samples as f64;
        (sums.iter().map(|sum| sum / n).collect(), self.freedom())
    }

    pub(super) fn freedom(&self) -> f64 {
        (self.samples as f64 - 1.0).max(1.0)
    }

    pub(super) fn mean(&self, outcome: &Outcome, delta: &[f64]) -> Vec<f64> {
        let shift = outcome.result(&self.shift).expect("the plan names it");
        let shift: &[f64] = bytemuck::cast_slice(shift);
        shift
            .iter()
            .zip(delta)
            .map(|(shift, delta)| shift + delta)
            .collect()
    }

    /// Sums, and both triangles of S, from all lanes in order.
    pub(super) fn assemble(
        &self,
        outcome: &Outcome,
        lanes: &Lanes,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let d = self.features;
        let (mut sums, mut matrix) = (vec![0.0; d], vec![0.0; d * d]);
        for (number, panel) in self.panels.iter().enumerate() {
            let (first, width) = (panel.first(), panel.width());
            for values in lanes.results_of_part::<f64>(number, outcome) {
                assert_eq!(
                    values.len() as u64 * 8,
                    panel.bytes(),
                    "a panel as it was cut"
                );
                add(&mut sums[first..first + width], values);
                for (row, part) in values[width..].chunks(width).enumerate() {
                    let at = (first + row) * d + first;
                    add(&mut matrix[at..at + width], part);
                }
            }
        }
        kernels::mirror_lower(view_mut(&mut matrix, d, d, d, 1)?)?;
        Ok((sums, matrix))
    }

    fn leading(
        &self,
        mut matrix: Vec<f64>,
        delta: &[f64],
        freedom: f64,
        stage: &mut Stage,
    ) -> Result<(Eigen<f64>, f64)> {
        let (d, n) = (self.features, self.samples as f64);
        for (row, values) in matrix.chunks_mut(d).enumerate() {
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

fn add(sums: &mut [f64], values: &[f64]) {
    sums.iter_mut()
        .zip(values)
        .for_each(|(sum, value)| *sum += value);
}
