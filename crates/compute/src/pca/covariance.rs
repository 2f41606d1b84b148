//! The pass over X: column sums, and the lower triangle of S = (X - s)^T (X - s), in f64.
//!
//! The state of the fold is S in panels of columns, each for all rows from its first column on:
//!
//! ```text
//!   d | \        panel 0: sums of its columns, then d rows of `width` products
//!     | 0 \      panel 1: the same, of the rows below panel 0's square
//!     | 0  1 \   what is above the diagonal in the square of a panel is never read
//!     | 0  1  2 \
//! ```
//!
//! S is one panel where all lanes of it fit, else quarters or narrower ones, by the budget alone,
//! so that the order of sums depends on nothing else.
//!
//! Cost: n d^2 flops; reads X once for each group of panels; 4 to 8 d^2 bytes a lane. Source: Chan,
//! Golub and LeVeque, "Algorithms for computing the sample variance" (The American Statistician
//! 1983), for the shift.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::panels::panels as rows_in_panels;
use outcore_core::{Error, MemorySplit, Result};
use outcore_device::Locked;
use outcore_engine::{Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatMut, MatRef, Real, gemm_scratch_bytes, view, view_mut};
use outcore_matrix::{Operand, Tile};

use crate::linalg::{in_calls, syrk_in_calls};
use crate::pass::{Cost, PartFold, TaskContext};

/// Rows of X in a block, at most: their products are added up in the precision of X.
const BLOCK_ROWS: u64 = 4096;
/// Rows of X that a lane should have at least, for its state to be worth its memory.
const LANE_ROWS: u64 = 256;
/// Columns of S in one panel, at most: wider ones are no faster.
const PANEL_COLUMNS: u64 = 2048;
/// Panels begin at multiples of this many bytes, as blocks of devices do.
const PANEL_ALIGN: u64 = 4096;

/// One panel of S: its columns, for all rows from the first of them on, and the sums of its
/// columns.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) columns: Range<u64>,
    /// Where it begins in a lane.
    pub(super) offset: u64,
    pub(super) height: u64,
}

impl Panel {
    pub(super) fn first(&self) -> usize {
        self.columns.start as usize
    }

    pub(super) fn width(&self) -> usize {
        (self.columns.end - self.columns.start) as usize
    }

    pub(super) fn bytes(&self) -> u64 {
        8 * self.width() as u64 * (self.height + 1)
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes()
    }

    /// Puts the diagonal of what it holds where that of S is.
    pub(super) fn put_diagonal(&self, values: &[f64], diagonal: &mut [f64]) {
        let width = self.width();
        (0..width).for_each(|column| {
            diagonal[self.first() + column] = values[width + column * width + column];
        });
    }

    /// The sums, and the products by rows.
    fn split<'a>(&self, values: &'a mut [f64]) -> Result<(&'a mut [f64], MatMut<'a, f64>)> {
        let (height, width) = (self.height as usize, self.width());
        let (sums, products) = values.split_at_mut(width);
        Ok((sums, view_mut(products, height, width, width, 1)?))
    }

    /// The products of what it holds, by rows.
    pub(super) fn products<'a>(&self, values: &'a [f64]) -> Result<MatRef<'a, f64>> {
        let (height, width) = (self.height as usize, self.width());
        Ok(view(&values[width..], height, width, width, 1)?)
    }
}

/// S as it is cut into panels.
#[derive(Clone)]
pub(super) struct Panels(Arc<[Panel]>);

impl std::ops::Deref for Panels {
    type Target = [Panel];

    fn deref(&self) -> &[Panel] {
        &self.0
    }
}

impl Panels {
    /// In one piece where that leaves memory for all lanes, else in quarters, of which several
    /// threads take each one.
    pub(super) fn cut(split: &MemorySplit, d: u64) -> Panels {
        assert!(d > 0, "a matrix without columns has no covariance");
        let is_whole = d <= PANEL_COLUMNS && split.has_room_for_all_lanes(8 * d * (d + 1));
        let quarter = d
            .div_ceil(4)
            .next_multiple_of(16)
            .min(PANEL_COLUMNS)
            .min((split.part_bytes() / (8 * d)).max(1))
            .min(d);
        let width = if is_whole { d } else { quarter };
        let mut offset = 0;
        let panel = |start| {
            let panel = Panel {
                columns: start..(start + width).min(d),
                offset,
                height: d - start,
            };
            offset += panel.bytes().next_multiple_of(PANEL_ALIGN);
            panel
        };
        Panels((0..d).step_by(width as usize).map(panel).collect())
    }

    /// Bytes of all panels of one lane.
    pub(super) fn lane_bytes(&self) -> u64 {
        self.0.last().map_or(0, |panel| {
            panel.offset + panel.bytes().next_multiple_of(PANEL_ALIGN)
        })
    }

    pub(super) fn widest(&self) -> usize {
        self.0.iter().map(Panel::width).max().unwrap_or(0)
    }

    pub(super) fn largest_bytes(&self) -> u64 {
        self.0.iter().map(Panel::bytes).max().unwrap_or(0)
    }

    /// What each takes of a lane.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.0.iter().map(Panel::range).collect()
    }

    /// Groups of at most `share` bytes, or one panel: what is accumulated in one pass over X.
    pub(super) fn groups(&self, share: u64) -> Vec<Range<usize>> {
        let mut groups = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for (index, panel) in self.0.iter().enumerate() {
            if index > start && bytes + panel.bytes() > share {
                groups.push(start..index);
                (start, bytes) = (index, 0);
            }
            bytes += panel.bytes();
        }
        groups.push(start..self.0.len());
        groups
    }
}

/// Lanes of an X with `rows` rows, at most.
pub(super) fn lanes_max(split: &MemorySplit, panels: &Panels, rows: u64) -> u64 {
    split
        .lanes_in_parts(panels.lane_bytes())
        .min(rows.div_ceil(LANE_ROWS))
}

/// Rows of X in blocks, of which each lane gets one at least.
pub(super) fn row_blocks<T: Real>(
    split: &MemorySplit,
    x: &Operand,
    lanes_max: u64,
) -> Vec<Range<u64>> {
    row_blocks_of(split, x, lanes_max, size_of::<T>() as u64, BLOCK_ROWS)
}

/// The same of elements of `element` bytes, `most` rows at most.
pub(super) fn row_blocks_of(
    split: &MemorySplit,
    x: &Operand,
    lanes_max: u64,
    element: u64,
    most: u64,
) -> Vec<Range<u64>> {
    let block_rows = (split.block_of_rows_bytes() / (x.cols() * element))
        .clamp(32, most)
        .min(x.rows().div_ceil(lanes_max))
        .max(1);
    rows_in_panels(x.rows(), 1, block_rows)
}

/// The fold. A panel is a part of its state.
pub(super) struct Covariance {
    panels: Panels,
    /// Where s is.
    shift: Region,
    blas: Blas,
    /// What errors call X.
    object: String,
    /// Of S as one lane has it in the end.
    diagonal: Arc<Mutex<Vec<f64>>>,
}

impl Covariance {
    pub(super) fn new(
        panels: &Panels,
        shift: Region,
        blas: &Blas,
        x: &Operand,
        diagonal: &Arc<Mutex<Vec<f64>>>,
    ) -> Covariance {
        Covariance {
            panels: panels.clone(),
            shift,
            blas: blas.clone(),
            object: x.name().to_owned(),
            diagonal: Arc::clone(diagonal),
        }
    }
}

impl<T: Real> PartFold<T> for Covariance {
    type Element = f64;

    fn reads(&self) -> Vec<Region> {
        vec![self.shift]
    }

    fn first_task(&self, rows: Tile) -> Option<Task> {
        Some(shift_task::<T>(rows, self.shift))
    }

    fn cost(&self, part: usize, rows: usize) -> Cost {
        let panel = &self.panels[part];
        let (height, width) = (panel.height as usize, panel.width());
        Cost {
            flops: kernels::syrk_flops(width, rows)
                + kernels::gemm_flops(height - width, width, rows),
            scratch: (rows * height + height * width) * size_of::<T>(),
            held: gemm_scratch_bytes::<T>(height, width, rows, &self.blas),
        }
    }

    fn dense(
        &self,
        part: usize,
        state: &mut [f64],
        first: u64,
        rows: MatRef<'_, T>,
        context: TaskContext<'_>,
    ) -> Result<()> {
        let panel = &self.panels[part];
        let shift = &context.blocks[0].slice::<f64>()[panel.first()..];
        let scratch = bytemuck::cast_slice_mut::<u8, T>(context.scratch);
        let stop = || context.cancelled.load(Ordering::Relaxed);
        add_products(rows, shift, panel, state, scratch, &self.blas, stop)
            .map_err(|error| locate(error, rows, &self.object, first))
    }

    fn end(&self, part: usize, state: &[f64]) {
        self.panels[part].put_diagonal(state, &mut self.diagonal.locked());
    }
}

/// s is the mean of the first rows.
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

/// Adds one block of rows to the sums and products of a panel; `shift` is that of its columns on.
fn add_products<T: Real>(
    x: MatRef<'_, T>,
    shift: &[f64],
    panel: &Panel,
    state: &mut [f64],
    scratch: &mut [T],
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    let (rows, height, width) = (x.nrows(), panel.height as usize, panel.width());
    let (sums, products) = panel.split(state)?;
    let (centered, block) = scratch.split_at_mut(rows * height);
    kernels::center_into(
        view_mut(centered, rows, height, height, 1)?,
        x.subcols(panel.first(), height),
        shift,
    )?;
    let centered = view(centered, rows, height, height, 1)?;
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
