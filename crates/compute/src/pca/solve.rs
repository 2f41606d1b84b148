//! From sums to components: the covariance put together, and its leading eigenvectors.
//!
//! S in memory is put together from all lanes; of S in scratch, the search takes products.

use std::sync::{Arc, Mutex};

use outcore_core::{Error, MemorySplit, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Extent, Outcome, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::view_mut;

use super::covariance::Panels;
use super::operator::CovarianceOperator;
use super::search::Search;
use super::stored::{StoredPanels, product_bytes};
use super::{PASS_PART, Pca, Wanted};
use crate::krylov::Krylov;
use crate::pass::Lanes;

/// What the pass has left.
pub(super) enum Products {
    /// A result of the run for each lane.
    InMemory(Lanes),
    /// In scratch, one lane.
    Stored(Extent),
}

/// What is to be found of an S.
pub(super) struct Solve {
    pub(super) search: Search,
    /// Rows that the pass has added up.
    pub(super) rows: u64,
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
            search: Search::new(session, wanted, features),
            rows,
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
        self.search.krylov.block()
    }

    /// Chooses a search that fits, with products by way of scratch.
    pub(super) fn shorten(&mut self, seed: u64) {
        let kept = self.search.kept().unwrap_or(self.search.features);
        self.search.krylov = Krylov::that_fits(&self.search.session, seed, kept, |krylov| {
            krylov.basis_bytes(self.search.features, kept)
                + self.stored_bytes(krylov.block())
                + 8 * (self.search.features * kept) as u64
        });
    }

    /// What the solver holds, besides lanes.
    pub(super) fn bytes(&self, in_memory: bool) -> u64 {
        let d = self.search.features;
        let matrix = if in_memory {
            (8 * d * d) as u64
        } else {
            self.stored_bytes(self.search.krylov.block())
        };
        matrix + self.search.basis_bytes()
    }

    fn stored_bytes(&self, columns: usize) -> u64 {
        product_bytes(
            &self.panels,
            self.search.features,
            columns,
            self.search.session.blas(),
        )
    }

    /// Refuses before any I/O what could not be solved after it.
    pub(super) fn check(&self, in_memory: bool) -> Result<()> {
        let available = MemorySplit::new(&self.search.session).free();
        // All eigenvectors at once need the matrix in memory, and the sums that it is made of.
        let needed = if self.search.at_once() {
            self.bytes(true) + self.panels.lane_bytes()
        } else {
            self.bytes(in_memory)
        };
        if needed <= available && (in_memory || !self.search.at_once()) {
            return Ok(());
        }
        // With more memory there are fewer panels, which hold more of what is above the diagonal.
        let (d, padding) = (self.search.features as u64, 4096 * self.panels.len() as u64);
        Err(Error::OverBudget {
            what: format!("the eigenvectors of a covariance of {d} features"),
            needed: needed.max(self.bytes(true) + 8 * d * (d + 1) + padding),
            available,
            budget: self.search.session.memory_bytes(),
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
        let (delta, _) = self.moments(&sums);
        let (eigen, total) = self.search.leading(matrix, &delta, stage)?;
        Ok(self.search.model(eigen, self.mean(outcome, &delta), total))
    }

    fn solve_from_scratch(
        &self,
        outcome: &Outcome,
        extent: &Extent,
        stage: &mut Stage,
    ) -> Result<Pca> {
        assert!(!self.search.at_once(), "it was refused before the pass");
        let panels = self.stored(extent);
        let (delta, freedom) = self.moments(&panels.sums(stage)?);
        let samples = self.search.samples as f64;
        let covariance = CovarianceOperator::Stored {
            panels,
            samples,
            delta: &delta,
            freedom,
        };
        let kept = self.search.kept().unwrap_or(self.search.features);
        let eigen = self
            .search
            .krylov
            .largest(&self.search.session, &covariance, kept, stage)?;
        let diagonal = self.diagonal.locked();
        let total = diagonal
            .iter()
            .zip(&delta)
            .map(|(square, delta)| (square - samples * delta * delta) / freedom)
            .sum();
        Ok(self.search.model(eigen, self.mean(outcome, &delta), total))
    }

    pub(super) fn stored<'a>(&'a self, extent: &'a Extent) -> StoredPanels<'a> {
        StoredPanels {
            panels: &self.panels,
            extent,
            features: self.search.features,
            blas: self.search.session.blas(),
            held_bytes: self.search.basis_bytes(),
            fraction: PASS_PART,
        }
    }

    /// Mean of the shifted columns, and n - 1.
    fn moments(&self, sums: &[f64]) -> (Vec<f64>, f64) {
        let n = self.search.samples as f64;
        (
            sums.iter().map(|sum| sum / n).collect(),
            self.search.freedom(),
        )
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
        let d = self.search.features;
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
}

fn add(sums: &mut [f64], values: &[f64]) {
    sums.iter_mut()
        .zip(values)
        .for_each(|(sum, value)| *sum += value);
}
