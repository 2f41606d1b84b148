//! Principal components by one pass over the data, and one for each transform.
//!
//! X is n x d, samples in rows. The pass accumulates, in f64, the column sums and the lower
//! triangle of S = (X - s)^T (X - s), where the shift s is the mean of the first rows, so that data
//! far from zero lose no digits (Chan, Golub, LeVeque, 1983). With delta = sum(X - s) / n the
//! covariance is (S - n delta delta^T) / (n - 1); its leading eigenvectors are the components.
//!
//! S is cut into panels of columns, and rows of X into chains, both chosen from the budget alone,
//! so the bits do not depend on the number of threads, nor on who else has memory. Where S is
//! larger than memory its panels live in scratch, X is read once for each group of panels that
//! fits, and eigenvectors come from a block Krylov iteration that streams S, with narrower blocks
//! and a shorter basis where memory is short.
//!
//! Cost: n d^2 flops, reads X once (or once a group), 4 to 8 d^2 bytes of memory or scratch.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::panels::panels;
use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session, Stage, with_real};
use outcore_device::Locked;
use outcore_engine::{Extent, ExtentRef, Outcome, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Eigen, MatMut, MatRef, Real, gemm_scratch_bytes, view, view_mut};
use outcore_matrix::{Array, Operand, Tile};

use super::krylov::Krylov;
use super::linalg::{in_calls, syrk_in_calls};
use crate::operator::Operator;

/// How many components to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Components {
    /// min(n, d).
    All,
    /// This many.
    Count(u64),
    /// As few as explain more than this part of the variance, between 0 and 1.
    Variance(f64),
}

/// What `fit` finds. Components have unit length; the entry of largest magnitude of each is
/// positive, as scikit-learn has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pca {
    /// Rows of X.
    pub samples: u64,
    /// Columns of X.
    pub features: u64,
    /// Mean of each column, d.
    pub mean: Vec<f64>,
    /// Components in rows, k x d.
    pub components: Vec<f64>,
    /// Variance along each component, k, descending; n - 1 degrees of freedom.
    pub explained_variance: Vec<f64>,
    /// Sum of the variances of all columns.
    pub total_variance: f64,
}

/// Chains of rows that are accumulated side by side.
const LANES: u64 = 8;
/// Rows of X in a block, at most: their products are added up in the precision of X.
const BLOCK_ROWS: u64 = 4096;

/// The part of all work that the passes over X count for.
const PASS_PART: f64 = 0.95;

/// Finds the principal components of the rows of x.
///
/// # Errors
/// [`Error::Value`] for an empty x, or more components than min(n, d); [`Error::NotFinite`] for NaN
/// or infinity; [`Error::OverBudget`].
pub fn fit(session: &Session, x: Operand, components: Components, seed: u64) -> Result<Job<Pca>> {
    let (n, d) = (x.rows(), x.cols());
    if n == 0 || d == 0 {
        return Err(Error::value(format!(
            "principal components of {}: it is {n} x {d}",
            x.name()
        )));
    }
    match components {
        Components::Count(count) if count == 0 || count > n.min(d) => {
            return Err(Error::value(format!(
                "{count} components of {}: between 1 and {} are possible",
                x.name(),
                n.min(d)
            )));
        }
        Components::Variance(part) if !(part > 0.0 && part < 1.0) => {
            return Err(Error::value(format!(
                "the part of the variance to explain must be between 0 and 1, not {part}"
            )));
        }
        _ => {}
    }
    with_real!(x.dtype(), T => Fit::<T>::new(session, x, components, seed).job())
}

/// One panel of S: its columns, for all rows from the first of them on, and the sums of its
/// columns.
#[derive(Clone)]
struct Panel {
    columns: Range<u64>,
    offset: u64,
    height: u64,
}

impl Panel {
    fn width(&self) -> usize {
        (self.columns.end - self.columns.start) as usize
    }

    fn bytes(&self) -> u64 {
        8 * self.width() as u64 * (self.height + 1)
    }

    fn region(&self, extent: ExtentRef) -> Region {
        Region::span(extent, self.offset, self.bytes())
    }

    /// The sums, and the products by rows.
    fn split<'a>(&self, values: &'a mut [f64]) -> Result<(&'a mut [f64], MatMut<'a, f64>)> {
        let (sums, products) = values.split_at_mut(self.width());
        Ok((
            sums,
            view_mut(
                products,
                self.height as usize,
                self.width(),
                self.width(),
                1,
            )?,
        ))
    }
}

struct Fit<'a, T> {
    session: &'a Session,
    x: Operand,
    components: Components,
    seed: u64,
    panels: Vec<Panel>,
    /// Panels that are accumulated in one pass over X.
    groups: Vec<Range<usize>>,
    lanes: u64,
    block_rows: u64,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Real> Fit<'a, T> {
    fn new(session: &'a Session, x: Operand, components: Components, seed: u64) -> Fit<'a, T> {
        let (d, memory) = (x.cols(), session.memory_bytes());
        let share = memory * 2 / 5;
        // In one piece where that leaves memory for all lanes. Else quarters, of which several
        // threads take each one; a panel must leave room for blocks of X.
        let whole = d <= 2048 && LANES * 8 * d * (d + 1) <= share / 2;
        let quarter = d
            .div_ceil(4)
            .next_multiple_of(16)
            .min(2048)
            .min((memory / 12 / (8 * d)).max(1))
            .min(d);
        let width = if whole { d } else { quarter };
        let mut offset = 0;
        let cut = (0..d).step_by(width as usize).map(|start| {
            let panel = Panel {
                columns: start..(start + width).min(d),
                offset,
                height: d - start,
            };
            offset += panel.bytes().next_multiple_of(4096);
            panel
        });
        let panels: Vec<Panel> = cut.collect();
        // How many panels a pass has changes no sum.
        let groups = group(&panels, share.min(MemorySplit::new(session).free() * 2 / 5));
        let lanes = (share / offset).clamp(1, LANES).min(x.rows().div_ceil(256));
        let rows_share = memory / 16;
        let block_rows = (rows_share / (d * size_of::<T>() as u64))
            .clamp(32, BLOCK_ROWS)
            .min(x.rows().div_ceil(lanes))
            .max(1);
        Fit {
            session,
            x,
            components,
            seed,
            lanes,
            panels,
            groups,
            block_rows,
            element: std::marker::PhantomData,
        }
    }

    fn solve(&self, shift: Region, diagonal: Arc<Mutex<Vec<f64>>>) -> Solve {
        Solve {
            session: self.session.clone(),
            samples: self.x.rows(),
            features: self.x.cols() as usize,
            components: self.components,
            krylov: Krylov::wide(self.seed),
            panels: self.panels.clone(),
            shift,
            diagonal,
        }
    }

    fn job(mut self) -> Result<Job<Pca>> {
        let d = self.x.cols();
        let mut plan = Plan::new("pca fit");
        plan.bound(if self.x.is_stored() {
            self.x.bytes()
        } else {
            0
        });
        plan.note("panels", self.panels.len());
        plan.note("passes", self.groups.len());
        let shift = plan.volatile("shift", 8 * d);
        let mut solve = self.solve(
            Region::span(shift, 0, 8 * d),
            Arc::new(Mutex::new(vec![0.0; d as usize])),
        );
        let lane_bytes = lane_bytes(&self.panels);
        let room = |budget: u64| budget.saturating_sub(solve.bytes(true)) / lane_bytes;
        let budget = self.session.memory_bytes();
        let one_group = group(&self.panels, budget * 2 / 5).len() == 1;
        let in_memory = one_group && room(budget) >= if solve.at_once() { 1 } else { self.lanes };
        // As many as half of the budget has room for, of which others may have the rest, and one at
        // least.
        self.lanes = if in_memory {
            self.lanes.min(room(budget / 2).max(1))
        } else {
            1
        };
        if in_memory {
            self.groups = group(&self.panels, u64::MAX);
        }
        plan.note("lanes", self.lanes);
        if !in_memory && !solve.at_once() {
            solve.shorten(self.seed);
            plan.note("krylov block", solve.krylov.block());
        }
        solve.check(in_memory)?;
        plan.note(
            "covariance",
            if in_memory { "in memory" } else { "in scratch" },
        );
        let scratch = match in_memory {
            true => None,
            false => Some(Array::temporary(
                self.session,
                DType::F64,
                &[lane_bytes / 8],
                Order::Row,
            )?),
        };
        let sums = match &scratch {
            Some(array) => vec![plan.extent(array.extent())],
            None => (0..self.lanes)
                .map(|lane| plan.volatile(format!("products {lane}"), lane_bytes))
                .collect(),
        };
        self.tasks(&mut plan, &sums, shift, &solve.diagonal);
        let products = match scratch {
            Some(array) => Products::Stored(array.extent().clone()),
            None => Products::InMemory(sums),
        };
        Job::driven(self.session, vec![plan], move |stage, mut plans| {
            let Some(pass) = plans.pop() else {
                return Err(Error::Closed);
            };
            let outcome = stage.run(pass, PASS_PART)?;
            solve.run(outcome, products, stage)
        })
    }

    fn tasks(
        &self,
        plan: &mut Plan,
        sums: &[ExtentRef],
        shift: ExtentRef,
        diagonal: &Arc<Mutex<Vec<f64>>>,
    ) {
        let (n, d, element) = (self.x.rows(), self.x.cols(), size_of::<T>() as u64);
        let (extent, layout) = (self.x.extent(plan), self.x.layout());
        let shift_region = Region::span(shift, 0, 8 * d);
        let blocks = panels(n, 1, self.block_rows);
        let tile_of = |rows: &Range<u64>| layout.tile(extent, rows.clone(), 0..d, element);
        plan.task(shift_task::<T>(tile_of(&blocks[0]), shift_region));
        for group in &self.groups {
            plan.group();
            for (index, rows) in blocks.iter().enumerate() {
                let lane = index as u64 % self.lanes;
                for panel in &self.panels[group.clone()] {
                    let last = index + 1 == blocks.len();
                    plan.task(self.panel_task(
                        panel,
                        tile_of(rows),
                        rows.start,
                        shift_region,
                        sums[lane as usize],
                        index < self.lanes as usize,
                        last.then(|| Arc::clone(diagonal)),
                    ));
                }
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "what one block adds to one panel"
    )]
    fn panel_task(
        &self,
        panel: &Panel,
        tile: Tile,
        first_row: u64,
        shift: Region,
        sums: ExtentRef,
        first: bool,
        diagonal: Option<Arc<Mutex<Vec<f64>>>>,
    ) -> Task {
        let (panel, blas, object) = (
            panel.clone(),
            self.session.blas().clone(),
            self.x.name().to_owned(),
        );
        let (height, width) = (panel.height as usize, panel.width());
        let scratch = (tile.rows * height + height * width) * size_of::<T>();
        let region = panel.region(sums);
        let flops = kernels::syrk_flops(width, tile.rows)
            + kernels::gemm_flops(height - width, width, tile.rows);
        let task = Task::new("covariance").flops(flops).scratch(scratch);
        let task = task
            .held(gemm_scratch_bytes::<T>(height, width, tile.rows, &blas))
            .read(tile.region)
            .read(shift);
        let task = if first {
            task.write(region)
        } else {
            task.update(region)
        };
        task.run(move |cx| {
            let [x, shift, sums] = &mut *cx.blocks else {
                unreachable!("three were declared")
            };
            let values = sums.slice_mut::<f64>();
            if first {
                values.fill(0.0);
            }
            let (sums, products) = panel.split(values)?;
            let scratch = bytemuck::cast_slice_mut::<u8, T>(cx.scratch);
            let x = tile.of::<T>(x)?;
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            add_products(
                x,
                shift.slice::<f64>(),
                &panel,
                sums,
                products,
                scratch,
                &blas,
                stop,
            )
            .map_err(|error| locate(error, x, &object, first_row))?;
            if let Some(diagonal) = diagonal {
                let mut diagonal = diagonal.locked();
                (0..panel.width()).for_each(|column| {
                    diagonal[panel.columns.start as usize + column] =
                        values[width + column * width + column]
                });
            }
            Ok(())
        })
    }
}

/// Cuts panels into groups of at most `share` bytes.
fn group(panels: &[Panel], share: u64) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, panel) in panels.iter().enumerate() {
        if index > start && bytes + panel.bytes() > share {
            groups.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += panel.bytes();
    }
    groups.push(start..panels.len());
    groups
}

fn shift_task<T: Real>(tile: Tile, shift: Region) -> Task {
    Task::new("shift")
        .read(tile.region)
        .update(shift)
        .run(move |cx| {
            let [x, shift] = &mut *cx.blocks else {
                unreachable!("two were declared")
            };
            let means = shift.slice_mut::<f64>();
            kernels::column_sums(means, tile.of::<T>(x)?)?;
            means.iter_mut().for_each(|mean| *mean /= tile.rows as f64);
            // A shift that is not finite would hide which element is to blame.
            means
                .iter_mut()
                .filter(|mean| !mean.is_finite())
                .for_each(|mean| *mean = 0.0);
            Ok(())
        })
}

/// Adds one block of rows to the sums and products of a panel.
#[expect(
    clippy::too_many_arguments,
    reason = "what one block adds to one panel"
)]
fn add_products<T: Real>(
    x: MatRef<'_, T>,
    shift: &[f64],
    panel: &Panel,
    sums: &mut [f64],
    products: MatMut<'_, f64>,
    scratch: &mut [T],
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    let (first, height, width) = (
        panel.columns.start as usize,
        panel.height as usize,
        panel.width(),
    );
    let (centered, block) = scratch.split_at_mut(x.nrows() * height);
    kernels::center_into(
        view_mut(centered, x.nrows(), height, height, 1)?,
        x.subcols(first, height),
        &shift[first..],
    )?;
    let centered = view(centered, x.nrows(), height, height, 1)?;
    let mut part = vec![0.0; width];
    kernels::column_sums(&mut part, centered.subcols(0, width))?;
    if part.iter().any(|sum| !sum.is_finite()) {
        return Err(Error::NotFinite {
            object: String::new(),
            row: 0,
            column: 0,
        });
    }
    sums.iter_mut()
        .zip(part)
        .for_each(|(sum, part)| *sum += part);
    let mut block = view_mut(&mut block[..height * width], height, width, width, 1)?;
    let (square, below) = block.as_mut().split_at_row_mut(width);
    let (across, rest) = centered.split_at_col(width);
    // What is above the diagonal is never read.
    syrk_in_calls(square, T::ONE, across.transpose(), T::ZERO, blas, &stop)?;
    in_calls(below, T::ONE, rest.transpose(), across, T::ZERO, blas, stop)?;
    Ok(kernels::add_into_f64(products, block.as_ref())?)
}

/// Says which element is not finite.
fn locate<T: Real>(error: Error, x: MatRef<'_, T>, object: &str, first_row: u64) -> Error {
    match (error, kernels::first_non_finite(x)) {
        (Error::NotFinite { .. }, Some((row, column))) => Error::NotFinite {
            object: object.to_owned(),
            row: first_row + row as u64,
            column: column as u64,
        },
        (Error::NotFinite { .. }, None) => Error::Failed {
            what: format!("{object}: the sum of a column overflows its element type"),
        },
        (other, _) => other,
    }
}

enum Products {
    /// A result of the run for each lane.
    InMemory(Vec<ExtentRef>),
    /// In scratch, one lane.
    Stored(Extent),
}

/// From sums to components.
struct Solve {
    session: Session,
    samples: u64,
    features: usize,
    components: Components,
    krylov: Krylov,
    panels: Vec<Panel>,
    shift: Region,
    diagonal: Arc<Mutex<Vec<f64>>>,
}

impl Solve {
    /// Chooses a search that fits, with products by way of scratch.
    fn shorten(&mut self, seed: u64) {
        let kept = self.kept().unwrap_or(self.features);
        self.krylov = Krylov::that_fits(&self.session, seed, kept, |krylov| {
            krylov.basis_bytes(self.features, kept)
                + self.streamed_bytes(krylov.block())
                + 8 * (self.features * kept) as u64
        });
    }

    fn kept(&self) -> Option<usize> {
        let all = self.samples.min(self.features as u64) as usize;
        match self.components {
            Components::Count(count) => Some(count as usize),
            Components::All => Some(all),
            Components::Variance(_) => None,
        }
    }

    /// All eigenvectors at once where few are left out, or the matrix is small.
    fn at_once(&self) -> bool {
        self.kept()
            .is_none_or(|kept| self.features <= 256 || kept * 5 > self.features)
    }

    fn bytes(&self, in_memory: bool) -> u64 {
        let d = self.features;
        let matrix = if in_memory {
            (8 * d * d) as u64
        } else {
            self.streamed_bytes(self.krylov.block())
        };
        let kept = self.kept().unwrap_or(d);
        let solver = match self.at_once() {
            true => kernels::eigh_scratch_bytes::<f64>(d, kept) as u64,
            false => self.krylov.basis_bytes(d, kept),
        };
        matrix + solver + (8 * d * kept) as u64
    }

    /// What a product with S by way of scratch holds.
    fn streamed_bytes(&self, block: usize) -> u64 {
        let panel = self.panels.iter().map(Panel::bytes).max().unwrap_or(0);
        2 * panel + (16 * self.features * block + self.product_scratch(block)) as u64 + (1 << 20)
    }

    fn product_scratch(&self, columns: usize) -> usize {
        let width = self.panels.iter().map(Panel::width).max().unwrap_or(0);
        gemm_scratch_bytes::<f64>(self.features, columns, width, self.session.blas())
            + 8 * width * width
    }

    /// Refuses before any I/O what could not be solved after it.
    fn check(&self, in_memory: bool) -> Result<()> {
        let available = MemorySplit::new(&self.session).free();
        // All eigenvectors at once need the matrix in memory, and the sums that it is made of.
        let needed = if self.at_once() {
            self.bytes(true) + lane_bytes(&self.panels)
        } else {
            self.bytes(in_memory)
        };
        let what = format!(
            "the eigenvectors of a covariance of {} features",
            self.features
        );
        if needed > available || (!in_memory && self.at_once()) {
            // With more memory there are fewer panels, which hold more of what is above the
            // diagonal.
            let (d, padding) = (self.features as u64, 4096 * self.panels.len() as u64);
            let needed = needed.max(self.bytes(true) + 8 * d * (d + 1) + padding);
            return Err(Error::OverBudget {
                what,
                needed,
                available,
                budget: self.session.memory_bytes(),
            });
        }
        Ok(())
    }

    /// The solver as a run of one task, so that all it holds is held by the engine meanwhile.
    fn run(self, outcome: Outcome, products: Products, stage: &mut Stage) -> Result<Pca> {
        let lanes = match products {
            Products::Stored(extent) => return self.solve_from_scratch(&outcome, &extent, stage),
            Products::InMemory(lanes) => lanes,
        };
        let mut plan = Plan::new("pca eigenvectors");
        plan.hold(self.bytes(true) + lanes.len() as u64 * lane_bytes(&self.panels));
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

    fn solve_in_memory(
        &self,
        outcome: &Outcome,
        lanes: &[ExtentRef],
        stage: &mut Stage,
    ) -> Result<Pca> {
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
        let (delta, freedom) = self.moments(&self.stored_sums(extent, stage)?);
        let kept = self.kept().unwrap_or(self.features);
        let covariance = Streamed {
            solve: self,
            extent,
            delta: &delta,
            freedom,
        };
        let eigen = self
            .krylov
            .largest(&self.session, &covariance, kept, stage)?;
        let diagonal = self.diagonal.locked();
        let n = self.samples as f64;
        let total = diagonal
            .iter()
            .zip(&delta)
            .map(|(square, delta)| (square - n * delta * delta) / freedom)
            .sum();
        Ok(self.model(eigen, self.mean(outcome, &delta), total))
    }

    /// Mean of the shifted columns, and n - 1.
    fn moments(&self, sums: &[f64]) -> (Vec<f64>, f64) {
        let n = self.samples as f64;
        (sums.iter().map(|sum| sum / n).collect(), (n - 1.0).max(1.0))
    }

    fn mean(&self, outcome: &Outcome, delta: &[f64]) -> Vec<f64> {
        let shift: &[f64] =
            bytemuck::cast_slice(outcome.result(&self.shift).expect("the plan names it"));
        shift
            .iter()
            .zip(delta)
            .map(|(shift, delta)| shift + delta)
            .collect()
    }

    /// What the solver holds besides a product with S by way of scratch.
    fn basis_bytes(&self) -> u64 {
        self.bytes(false) - self.streamed_bytes(self.krylov.block())
    }

    /// Sums, and both triangles of S, from all lanes in order.
    fn assemble(&self, outcome: &Outcome, lanes: &[ExtentRef]) -> Result<(Vec<f64>, Vec<f64>)> {
        let d = self.features;
        let (mut sums, mut matrix) = (vec![0.0; d], vec![0.0; d * d]);
        for &lane in lanes {
            for panel in &self.panels {
                let Some(values) = outcome.result(&panel.region(lane)) else {
                    continue;
                };
                let values: &[f64] = bytemuck::cast_slice(values);
                let (first, width) = (panel.columns.start as usize, panel.width());
                sums[first..first + width]
                    .iter_mut()
                    .zip(values)
                    .for_each(|(sum, part)| *sum += part);
                for (row, part) in values[width..].chunks(width).enumerate() {
                    let at = (first + row) * d + first;
                    matrix[at..at + width]
                        .iter_mut()
                        .zip(part)
                        .for_each(|(sum, part)| *sum += part);
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
        let trace = (0..d).map(|at| matrix[at * d + at]).sum();
        let eigen = match (self.at_once(), self.kept()) {
            (true, kept) => kernels::eigh(view(&matrix, d, d, d, 1)?, kept)?,
            (false, kept) => {
                let covariance = InMemory {
                    matrix,
                    features: d,
                    blas: self.session.blas().clone(),
                };
                self.krylov
                    .largest(&self.session, &covariance, kept.unwrap_or(d), stage)?
            }
        };
        Ok((eigen, trace))
    }

    fn stored_sums(&self, extent: &Extent, stage: &mut Stage) -> Result<Vec<f64>> {
        let sums = Arc::new(Mutex::new(vec![0.0; self.features]));
        let mut plan = Plan::new("pca sums");
        let stored = plan.extent(extent);
        for panel in &self.panels {
            let (sums, first, width) = (
                Arc::clone(&sums),
                panel.columns.start as usize,
                panel.width(),
            );
            plan.task(
                Task::new("sums")
                    .read(Region::span(stored, panel.offset, 8 * width as u64))
                    .run(move |cx| {
                        sums.locked()[first..first + width].copy_from_slice(cx.blocks[0].slice());
                        Ok(())
                    }),
            );
        }
        stage.run(plan, PASS_PART)?;
        Ok(std::mem::take(&mut *sums.locked()))
    }

    /// S V, row after row, from the panels in scratch.
    fn product(&self, extent: &Extent, v: MatRef<'_, f64>, stage: &mut Stage) -> Result<Vec<f64>> {
        let (d, columns) = (self.features, v.ncols());
        let from: Arc<Vec<f64>> = Arc::new(
            (0..d)
                .flat_map(|row| (0..columns).map(move |column| v[(row, column)]))
                .collect(),
        );
        let result = Arc::new(Mutex::new(vec![0.0; d * columns]));
        let mut plan = Plan::new("pca product");
        plan.hold(self.basis_bytes() + 16 * (d * columns) as u64);
        let (stored, turn) = (plan.extent(extent), plan.serial());
        for panel in &self.panels {
            let (panel, from, result, blas) = (
                panel.clone(),
                Arc::clone(&from),
                Arc::clone(&result),
                self.session.blas().clone(),
            );
            let task = Task::new("product")
                .read(panel.region(stored))
                .update(turn)
                .held(self.product_scratch(columns));
            plan.task(task.run(move |cx| {
                let (values, cancelled) = (cx.blocks[0].slice::<f64>(), cx.cancelled);
                let (first, height, width) = (
                    panel.columns.start as usize,
                    panel.height as usize,
                    panel.width(),
                );
                let products = view(&values[width..], height, width, width, 1)?;
                let v = view(&from, d, columns, columns, 1)?;
                let mut result = result.locked();
                let mut y = view_mut(&mut result, d, columns, columns, 1)?;
                // Below and on the diagonal as it is stored, above it by symmetry.
                let (square, below) = products.split_at_row(width);
                let whole = symmetric(square);
                let stop = || cancelled.load(Ordering::Relaxed);
                in_calls(
                    y.as_mut().subrows_mut(first, width),
                    1.0,
                    view(&whole, width, width, width, 1)?,
                    v.subrows(first, width),
                    1.0,
                    &blas,
                    stop,
                )?;
                in_calls(
                    y.as_mut().subrows_mut(first + width, height - width),
                    1.0,
                    below,
                    v.subrows(first, width),
                    1.0,
                    &blas,
                    stop,
                )?;
                in_calls(
                    y.subrows_mut(first, width),
                    1.0,
                    below.transpose(),
                    v.subrows(first + width, height - width),
                    1.0,
                    &blas,
                    stop,
                )?;
                Ok(())
            }));
        }
        stage.run(plan, PASS_PART)?;
        Ok(std::mem::take(&mut *result.locked()))
    }

    fn model(&self, eigen: Eigen<f64>, mean: Vec<f64>, total: f64) -> Pca {
        let Eigen { values, vectors } = eigen;
        let mut values: Vec<f64> = values.into_iter().map(|value| value.max(0.0)).collect();
        if let Components::Variance(part) = self.components {
            let mut explained = 0.0;
            let enough = values.iter().position(|value| {
                explained += value;
                explained > part * total
            });
            values.truncate(
                enough
                    .map_or(values.len(), |last| last + 1)
                    .min(self.samples as usize),
            );
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

/// A covariance in memory.
struct InMemory {
    matrix: Vec<f64>,
    features: usize,
    blas: Blas,
}

impl Operator for InMemory {
    fn shape(&self) -> [usize; 2] {
        [self.features; 2]
    }

    fn held_bytes(&self, _columns: usize) -> u64 {
        8 * self.matrix.len() as u64
    }

    fn apply(&self, x: MatRef<'_, f64>, y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let d = self.features;
        in_calls(
            y,
            1.0,
            view(&self.matrix, d, d, d, 1)?,
            x,
            0.0,
            &self.blas,
            || stage.is_cancelled(),
        )?;
        stage.check()
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

/// The covariance of an S in scratch: each product reads S once.
struct Streamed<'a> {
    solve: &'a Solve,
    extent: &'a Extent,
    delta: &'a [f64],
    freedom: f64,
}

impl Operator for Streamed<'_> {
    fn shape(&self) -> [usize; 2] {
        [self.solve.features; 2]
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        self.solve.streamed_bytes(columns)
    }

    fn apply(&self, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>, stage: &mut Stage) -> Result<()> {
        let (n, columns) = (self.solve.samples as f64, x.ncols());
        let product = self.solve.product(self.extent, x, stage)?;
        for column in 0..columns {
            let along: f64 = self
                .delta
                .iter()
                .enumerate()
                .map(|(row, delta)| delta * x[(row, column)])
                .sum();
            for (row, delta) in self.delta.iter().enumerate() {
                y[(row, column)] =
                    (product[row * columns + column] - n * delta * along) / self.freedom;
            }
        }
        Ok(())
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

/// Bytes of all panels of one lane.
fn lane_bytes(panels: &[Panel]) -> u64 {
    panels.last().map_or(0, |panel| {
        panel.offset + panel.bytes().next_multiple_of(4096)
    })
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
