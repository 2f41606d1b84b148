//! S where it is larger than memory: panels in scratch, which products read once.
//!
//! Cost of a product with c columns: reads 4 d^2 bytes, 2 d^2 c flops; holds two panels and 16 d c
//! bytes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::{Result, Stage};
use outcore_device::Locked;
use outcore_engine::{Extent, Plan, Region, Task};
use outcore_kernels::{Blas, MatMut, MatRef, gemm_scratch_bytes, view, view_mut};

use super::covariance::{Panel, Panels};
use crate::linalg::in_calls;

/// Bytes that a product holds besides panels and columns.
const PRODUCT_BYTES: u64 = 1 << 20;

/// S in scratch, d x d.
pub(super) struct StoredPanels<'a> {
    pub(super) panels: &'a Panels,
    pub(super) extent: &'a Extent,
    pub(super) features: usize,
    pub(super) blas: &'a Blas,
    /// What the search holds besides a product.
    pub(super) held_bytes: u64,
    /// The part of the job that is done already.
    pub(super) fraction: f64,
}

/// What a product with `columns` columns holds.
pub(super) fn product_bytes(panels: &Panels, features: usize, columns: usize, blas: &Blas) -> u64 {
    let scratch = scratch_bytes(panels, features, columns, blas);
    2 * panels.largest_bytes() + (16 * features * columns + scratch) as u64 + PRODUCT_BYTES
}

fn scratch_bytes(panels: &Panels, features: usize, columns: usize, blas: &Blas) -> usize {
    let width = panels.widest();
    gemm_scratch_bytes::<f64>(features, columns, width, blas) + 8 * width * width
}

impl StoredPanels<'_> {
    /// The sums of all columns.
    pub(super) fn sums(&self, stage: &mut Stage) -> Result<Vec<f64>> {
        let sums = Arc::new(Mutex::new(vec![0.0; self.features]));
        let mut plan = Plan::new("pca sums");
        let stored = plan.extent(self.extent);
        for panel in self.panels.iter() {
            let (sums, first, width) = (Arc::clone(&sums), panel.first(), panel.width());
            let region = Region::span(stored, panel.offset, 8 * width as u64);
            plan.task(Task::new("sums").read(region).run(move |cx| {
                sums.locked()[first..first + width].copy_from_slice(cx.blocks[0].slice());
                Ok(())
            }));
        }
        stage.run(plan, self.fraction)?;
        Ok(std::mem::take(&mut *sums.locked()))
    }

    /// S V, row after row.
    pub(super) fn product(&self, v: MatRef<'_, f64>, stage: &mut Stage) -> Result<Vec<f64>> {
        let (d, columns) = (self.features, v.ncols());
        assert_eq!(v.nrows(), d, "a row for each feature");
        let from: Arc<Vec<f64>> = Arc::new(
            (0..d)
                .flat_map(|row| (0..columns).map(move |column| v[(row, column)]))
                .collect(),
        );
        let result = Arc::new(Mutex::new(vec![0.0; d * columns]));
        let mut plan = Plan::new("pca product");
        plan.hold(self.held_bytes + 16 * (d * columns) as u64);
        let (stored, turn) = (plan.extent(self.extent), plan.serial());
        for panel in self.panels.iter() {
            let (panel, blas) = (panel.clone(), self.blas.clone());
            let (from, result) = (Arc::clone(&from), Arc::clone(&result));
            let task = Task::new("product")
                .read(Region::span(stored, panel.offset, panel.bytes()))
                .update(turn)
                .held(scratch_bytes(self.panels, d, columns, self.blas));
            plan.task(task.run(move |cx| {
                let (values, cancelled) = (cx.blocks[0].slice::<f64>(), cx.cancelled);
                let v = view(&from, d, columns, columns, 1)?;
                let mut result = result.locked();
                let y = view_mut(&mut result, d, columns, columns, 1)?;
                let stop = || cancelled.load(Ordering::Relaxed);
                Ok(add_product(
                    &panel,
                    panel.products(values)?,
                    v,
                    y,
                    &blas,
                    stop,
                )?)
            }));
        }
        stage.run(plan, self.fraction)?;
        Ok(std::mem::take(&mut *result.locked()))
    }
}

/// Adds what a panel and its mirror image make of v to y: below and on the diagonal as it is
/// stored, above it by symmetry.
fn add_product(
    panel: &Panel,
    products: MatRef<'_, f64>,
    v: MatRef<'_, f64>,
    mut y: MatMut<'_, f64>,
    blas: &Blas,
    stop: impl Fn() -> bool + Copy,
) -> Result<()> {
    let (first, height, width) = (panel.first(), panel.height as usize, panel.width());
    let (square, below) = products.split_at_row(width);
    let whole = symmetric(square);
    let square = view(&whole, width, width, width, 1)?;
    let (here, rest) = (
        v.subrows(first, width),
        v.subrows(first + width, height - width),
    );
    let mut add = |from, rows, matrix, v| {
        let y = y.as_mut().subrows_mut(from, rows);
        in_calls(y, 1.0, matrix, v, 1.0, blas, stop)
    };
    add(first, width, square, here)?;
    add(first + width, height - width, below, here)?;
    add(first, width, below.transpose(), rest)
}

/// Both triangles of a square of which the lower one is right.
fn symmetric(square: MatRef<'_, f64>) -> Vec<f64> {
    let n = square.nrows();
    (0..n * n)
        .map(|at| (at / n, at % n))
        .map(|(i, j)| {
            if i >= j {
                square[(i, j)]
            } else {
                square[(j, i)]
            }
        })
        .collect()
}
