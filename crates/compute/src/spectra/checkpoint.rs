//! A search between two restarts, as a file: another process goes on with the same bits.

use std::path::Path;

use outcore_core::checkpoint::CheckpointFile;
use outcore_core::{Error, Result, Stage};
use outcore_kernels::Mat;
use serde::{Deserialize, Serialize};

use super::tall::Tall;

/// What a search is besides its basis.
pub(super) struct Kept {
    pub(super) columns: usize,
    pub(super) imaged: usize,
    pub(super) noise: u64,
    pub(super) norm: f64,
    pub(super) products: u64,
    pub(super) restarts: u64,
    pub(super) checked: Option<usize>,
    pub(super) checks: usize,
    pub(super) unbroken: usize,
    pub(super) is_contracted: bool,
    pub(super) asymmetry: f64,
    /// The wanted values when the check began.
    pub(super) wanted_before: Vec<f64>,
    /// Rows of the operator as these columns see it.
    pub(super) seen: Vec<f64>,
}

/// The line of the file. Numbers that are not whole are among the bytes after it.
#[derive(Serialize, Deserialize)]
struct State {
    /// What is searched for, and how.
    problem: String,
    rows: usize,
    columns: usize,
    imaged: usize,
    noise: u64,
    products: u64,
    restarts: u64,
    checked: Option<usize>,
    checks: usize,
    unbroken: usize,
    is_contracted: bool,
    wanted_before: usize,
}

/// Where a search leaves how far it is.
pub(super) struct Checkpoint {
    file: CheckpointFile,
    problem: String,
    /// Columns of the basis that are copied at once.
    block: usize,
}

impl Checkpoint {
    /// `problem` says all that decides on the bits of the result.
    pub(super) fn new(path: &Path, problem: String, block: usize) -> Checkpoint {
        Checkpoint {
            file: CheckpointFile::new(path),
            problem,
            block,
        }
    }

    /// Whether there is one to go on from.
    pub(super) fn exists(&self) -> bool {
        self.file.path().exists()
    }

    pub(super) fn save(&self, kept: &Kept, basis: &Tall, stage: &mut Stage) -> Result<()> {
        let state = State {
            problem: self.problem.clone(),
            rows: basis.rows(),
            columns: kept.columns,
            imaged: kept.imaged,
            noise: kept.noise,
            products: kept.products,
            restarts: kept.restarts,
            checked: kept.checked,
            checks: kept.checks,
            unbroken: kept.unbroken,
            is_contracted: kept.is_contracted,
            wanted_before: kept.wanted_before.len(),
        };
        self.file.save(&state, |write| {
            write(bytemuck::bytes_of(&[kept.norm, kept.asymmetry]))?;
            write(bytemuck::cast_slice(&kept.wanted_before))?;
            write(bytemuck::cast_slice(&kept.seen))?;
            for first in (0..kept.columns).step_by(self.block) {
                let columns = basis.columns(first..kept.columns.min(first + self.block), stage)?;
                for column in 0..columns.ncols() {
                    let values: Vec<f64> = columns.col(column).iter().copied().collect();
                    write(bytemuck::cast_slice(&values))?;
                }
            }
            Ok(())
        })
    }

    /// What there is to go on from; the basis gets its columns.
    ///
    /// # Errors
    /// [`Error::Value`] for the checkpoint of another search.
    pub(super) fn load(&self, basis: &mut Tall, stage: &mut Stage) -> Result<Option<Kept>> {
        self.file.load(|state: State, read| {
            let columns = state.columns;
            if state.problem != self.problem
                || state.rows != basis.rows()
                || columns > basis.capacity()
                || state.imaged > columns
                || state.wanted_before > columns
            {
                return Err(self.is_of_another(&format!(
                    "search, {}; this one is {}",
                    state.problem, self.problem
                )));
            }
            let mut numbers = [0.0f64; 2];
            read(bytemuck::bytes_of_mut(&mut numbers))?;
            let [norm, asymmetry] = numbers;
            let mut wanted_before = vec![0.0; state.wanted_before];
            read(bytemuck::cast_slice_mut(&mut wanted_before))?;
            let mut seen = vec![0.0; columns * columns];
            read(bytemuck::cast_slice_mut(&mut seen))?;
            let mut values = vec![0.0; basis.rows()];
            for first in (0..columns).step_by(self.block) {
                let width = self.block.min(columns - first);
                let mut block = Mat::zeros(basis.rows(), width);
                for column in 0..width {
                    read(bytemuck::cast_slice_mut(&mut values))?;
                    (0..values.len()).for_each(|row| block[(row, column)] = values[row]);
                }
                let block = basis.split(block.as_ref());
                basis.append(&block, stage)?;
            }
            Ok(Kept {
                columns,
                imaged: state.imaged,
                noise: state.noise,
                norm,
                products: state.products,
                restarts: state.restarts,
                checked: state.checked,
                checks: state.checks,
                unbroken: state.unbroken,
                is_contracted: state.is_contracted,
                asymmetry,
                wanted_before,
                seen,
            })
        })
    }

    /// The error where what it is of is not what is searched now.
    pub(super) fn is_of_another(&self, what: &str) -> Error {
        Error::value(format!(
            "{} is the checkpoint of another {what}. Remove it or name another path",
            self.file.path().display()
        ))
    }
}
