//! Dense rows: read from X, or from a copy of it in fewer bits.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use outcore_core::panels::panels;
use outcore_core::{DType, MemorySplit, Order, PLAN_THREADS, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Context, ExtentRef, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{PackedCenters, Real, packed_row_bytes};
use outcore_matrix::{Array, Operand};

use super::block::{BOUND_BYTES, Pass, RowStates, Wanted, part_rows};
use super::centers::{Centers, distance};
use super::drive::AllStates;
use super::farthest::{self, Far};
use super::piece::{BlockPiece, PackedBlock};
use super::totals::Sums;
use super::{Division, Lloyd, Round, Source, SumsPlan, Weights, checked, label_bytes};
use crate::pass::Rows;

/// The most rows of a block: 1 MiB of 64 f32, one request.
const BLOCK_ROWS: u64 = 4096;
/// A gap between rows to read that is shorter is read too: a request takes as long as this many
/// bytes.
const GAP_BYTES: u64 = 16 << 10;
/// The most pieces that a block is read in.
const PIECES_MAX: usize = 32;

/// Rows of a dense matrix.
pub(super) struct Dense<T> {
    x: Operand,
    /// Where the copy goes.
    copy: Option<Array>,
    element: PhantomData<T>,
}

impl<T: Real> Lloyd<T, Dense<T>> {
    pub(super) fn dense(
        session: &Session,
        x: Operand,
        start: &[f64],
        weights: Option<Vec<f64>>,
        copied: bool,
        bounds: bool,
    ) -> Result<Lloyd<T, Dense<T>>> {
        let rows = Rows::Dense(x.clone());
        let shape = checked(&rows, start, rows.width() as usize, weights.as_ref())?;
        let (n, d, element) = (x.rows(), x.cols(), size_of::<T>() as u64);
        let split = MemorySplit::new(session);
        let block_rows = (split.block_of_rows_with_states_bytes() / (d * element))
            .clamp(1, BLOCK_ROWS)
            .min(n.div_ceil(PLAN_THREADS).max(256));
        let blocks = panels(n, 1, block_rows);
        // How a block was packed is known as long as the copy is; where that takes too much, X is
        // read each time.
        let packings = blocks.len() as u64 * 3 * d * element;
        let copied = copied && x.is_stored() && split.leaves_most(packings);
        let fixed = label_bytes(n, weights.as_ref())
            + blocks.len() as u64 * 256
            + if copied { packings } else { 0 };
        let division = Division::new(split, shape, n, fixed, bounds.then_some(BOUND_BYTES));
        let mean =
            |j| start.iter().skip(j).step_by(shape.features).sum::<f64>() / shape.clusters as f64;
        let shift: Vec<f64> = (0..shape.features).map(mean).collect();
        let centered = start
            .iter()
            .zip(shift.iter().cycle())
            .map(|(center, shift)| T::of(center - shift))
            .collect();
        let mut lloyd = Lloyd {
            session: session.clone(),
            name: x.name().to_owned(),
            shape,
            weights: Weights(weights.map(Arc::new)),
            shift: Arc::new(shift),
            along: None,
            start: centered,
            blocks,
            division,
            over: None,
            source: Dense {
                x,
                copy: None,
                element: PhantomData,
            },
        };
        if copied && !lloyd.division.split.keeps_rows(lloyd.source.x.bytes()) {
            // So it is without room in scratch.
            lloyd.source.copy = Array::temporary(
                session,
                DType::F32,
                &[lloyd.copy_offset(lloyd.blocks.len()) / 4],
                Order::Row,
            )
            .ok();
        }
        Ok(lloyd)
    }

    /// Where a block of the copy begins.
    fn copy_offset(&self, block: usize) -> u64 {
        let rows = self.blocks[0].end - self.blocks[0].start;
        block as u64
            * (rows * packed_row_bytes::<T>(self.shape.features) as u64).next_multiple_of(4096)
    }

    fn copy_region(&self, extent: ExtentRef, block: usize, rows: Range<usize>) -> Region {
        let width = packed_row_bytes::<T>(self.shape.features) as u64;
        Region::span(
            extent,
            self.copy_offset(block) + rows.start as u64 * width,
            rows.len() as u64 * width,
        )
    }

    fn dense_piece(&self, extent: ExtentRef, block: usize, rows: Range<usize>) -> BlockPiece<T> {
        let first = self.blocks[block].start;
        let global = first + rows.start as u64..first + rows.end as u64;
        let features = 0..self.shape.features as u64;
        let tile = self.source.x.layout().tile(extent, global, features);
        BlockPiece::dense(rows, tile)
    }

    fn empty_plan(&self, first: bool) -> Plan {
        let mut plan = Plan::new(if first {
            "k-means first round"
        } else {
            "k-means round"
        });
        plan.bound(self.source.x.stored_bytes());
        plan.keeps();
        let (k, d) = (self.shape.clusters as u64, self.shape.features as u64);
        // Centres of two rounds and their squares, and packed ones, of which there are up to seven
        // more.
        plan.hold((2 * k * (d + 1) + (k + 7) * (d + 1)) * size_of::<T>() as u64);
        plan
    }

    fn task(&self, rows: usize) -> Task {
        let (k, d) = (self.shape.clusters, self.shape.features);
        let part = part_rows::<T>(d);
        let packing = if self.source.copy.is_some() {
            kernels::packing_held_bytes::<T>(d)
        } else {
            0
        };
        let held = kernels::nearest_held_bytes::<T>(part, d, k, self.session.blas()).max(packing)
            + 32 * part
            + 4 * rows;
        Task::new("assign")
            .flops(kernels::nearest_flops(rows, d, k))
            .scratch(Pass::<T>::scratch_bytes(self.shape))
            .held(held)
    }

    /// A run over some blocks.
    fn compare(
        &self,
        stage: &mut Stage,
        pass: &Arc<Pass<T>>,
        todo: impl Iterator<Item = Todo<T>>,
        sums: &mut Sums,
        reached: f64,
    ) -> Result<(u64, u64)> {
        let mut plan = self.empty_plan(pass.is_first());
        let (x, mut plan) = (self.source.x.extent(&mut plan), self.sums_plan(plan));
        let copy = self.copy_extent(&mut plan);
        for Todo {
            block,
            runs,
            packed,
            wanted,
        } in todo.filter(|todo| !todo.runs.is_empty())
        {
            let rows: usize = runs.iter().map(Range::len).sum();
            let piece = |rows: Range<usize>| match packed.as_ref().zip(copy) {
                Some((packed, copy)) => BlockPiece::packed(
                    rows.clone(),
                    self.copy_region(copy, block, rows),
                    Arc::clone(packed),
                ),
                None => self.dense_piece(x, block, rows),
            };
            let pieces: Vec<BlockPiece<T>> = runs.into_iter().map(piece).collect();
            let task = pieces
                .iter()
                .fold(self.task(rows), |task, piece| task.read(piece.region()));
            let task = match copy {
                Some(copy) if pass.is_first() => task.write(self.copy_region(copy, block, 0..rows)),
                _ => task,
            };
            let (pass, first_row) = (Arc::clone(pass), self.blocks[block].start);
            let compare = move |cx: &mut Context<'_>| {
                Ok(pass.compare(block, first_row, &pieces, wanted, cx)?)
            };
            plan.task(block, task.run(compare));
        }
        plan.run(stage, sums, reached)
    }

    fn copy_extent(&self, plan: &mut SumsPlan) -> Option<ExtentRef> {
        let copy = self.source.copy.as_ref()?;
        Some(plan.plan.extent(copy.extent()))
    }

    /// What has to be read for some rows of a block: runs of them, where gaps save a request's
    /// worth of bytes, else all.
    fn runs(
        &self,
        states: &RowStates<T>,
        count: usize,
        rows: impl FnOnce() -> Vec<u32>,
    ) -> Vec<Range<usize>> {
        let all = states.labels.len();
        let width = match states.packing {
            Some(_) => packed_row_bytes::<T>(self.shape.features),
            None => self.shape.features * size_of::<T>(),
        };
        let gap = (GAP_BYTES as usize / width).max(1);
        if count > PIECES_MAX && count * gap > all {
            return std::iter::once(0..all).collect();
        }
        let mut runs: Vec<Range<usize>> = Vec::new();
        for row in rows() {
            match runs.last_mut() {
                Some(run) if row as usize <= run.end + gap => run.end = row as usize + 1,
                _ => runs.push(row as usize..row as usize + 1),
            }
        }
        if runs.len() > PIECES_MAX {
            std::iter::once(0..all).collect()
        } else {
            runs
        }
    }
}

impl<T: Real> Source<T> for Dense<T> {
    fn explained(lloyd: &Lloyd<T, Self>) -> Vec<Plan> {
        let mut plans = Vec::new();
        for first in [true, false]
            .into_iter()
            .take(if lloyd.source.copy.is_some() { 2 } else { 1 })
        {
            let mut plan = lloyd.empty_plan(first);
            lloyd.explain_states(&mut plan);
            plan.note(
                "copy",
                match &lloyd.source.copy {
                    Some(copy) => format!(
                        "{:.1} MiB in scratch",
                        copy.nbytes() as f64 / (1 << 20) as f64
                    ),
                    None => "none".into(),
                },
            );
            let (x, mut plan) = (lloyd.source.x.extent(&mut plan), lloyd.sums_plan(plan));
            let copy = lloyd.copy_extent(&mut plan);
            for (block, rows) in lloyd.blocks.iter().enumerate() {
                let count = (rows.end - rows.start) as usize;
                let task = lloyd.task(count);
                let dense = lloyd.dense_piece(x, block, 0..count).region();
                let task = match (first, copy) {
                    (true, Some(copy)) => {
                        task.read(dense)
                            .write(lloyd.copy_region(copy, block, 0..count))
                    }
                    (false, Some(copy)) => task.read(lloyd.copy_region(copy, block, 0..count)),
                    (_, None) => task.read(dense),
                };
                plan.task(block, task);
            }
            plans.push(plan.plan);
        }
        plans
    }

    fn assign_pass(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        round: Round<'_, T>,
    ) -> Result<(u64, u64)> {
        let (states, moved, sums) = (round.states, round.moved, round.sums);
        let pass = Arc::new(Pass {
            shape: lloyd.shape,
            centers: Arc::clone(round.centers),
            packed: PackedCenters::new(&round.centers.values, &round.centers.squares)?,
            shift: Arc::clone(&lloyd.shift),
            states: Arc::clone(states),
            weights: lloyd.weights.clone(),
            blas: lloyd.session.blas().clone(),
            object: lloyd.name.clone(),
            moved: moved.cloned(),
        });
        let settle = |block: usize| {
            let states = &mut *states[block].locked();
            // Where most rows had to be compared before, that is found out when they are there, by
            // all threads at once.
            let relaxed = moved.filter(|_| !states.are_most_active());
            let active = relaxed.map_or(states.labels.len(), |moved| states.relax_bounds(moved));
            let runs = match relaxed
                .filter(|_| active < states.labels.len() && lloyd.source.x.is_stored())
            {
                Some(moved) => lloyd.runs(states, active, || states.active(&moved.gaps)),
                // In memory, or all of them.
                None => (active > 0)
                    .then_some(0..states.labels.len())
                    .into_iter()
                    .collect(),
            };
            let wanted = if relaxed.is_some() {
                Wanted::Active
            } else {
                Wanted::ActiveOnceRelaxed
            };
            Todo {
                block,
                runs,
                packed: states.packing.clone(),
                wanted,
            }
        };
        let (changed, compared) = lloyd.compare(
            stage,
            &pass,
            lloyd.order(round.passes).into_iter().map(settle),
            sums,
            round.reached,
        )?;
        let unsure = states.iter().enumerate().filter_map(|(block, states)| {
            let states = &mut *states.locked();
            let rows = std::mem::take(&mut states.unsure);
            let runs = lloyd.runs(states, rows.len(), || rows.clone());
            (!rows.is_empty()).then_some(Todo {
                block,
                runs,
                packed: None,
                wanted: Wanted::These(rows),
            })
        });
        let mut unsure = unsure.peekable();
        if unsure.peek().is_none() {
            return Ok((changed, compared));
        }
        let (more, _) = lloyd.compare(stage, &pass, unsure, sums, round.reached)?;
        Ok((changed + more, compared))
    }

    fn farthest(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        states: &AllStates<T>,
        centers: &Arc<Centers<T>>,
        count: usize,
    ) -> Result<Vec<Far>> {
        let mut plan = lloyd.empty_plan(false);
        let x = lloyd.source.x.extent(&mut plan);
        farthest::find(stage, plan, lloyd, count, |_, block, search| {
            let (piece, first_row) = (
                lloyd.dense_piece(x, block, 0..lloyd.len_of(block)),
                lloyd.blocks[block].start,
            );
            let (states, centers, shift) = (
                Arc::clone(states),
                Arc::clone(centers),
                Arc::clone(&lloyd.shift),
            );
            lloyd
                .task(piece.rows.len())
                .read(piece.region())
                .run(move |cx| {
                    let (rows, mut x) = (piece.of(&cx.blocks[0])?, vec![T::ZERO; shift.len()]);
                    for (at, &label) in states[block].locked().labels.iter().enumerate() {
                        rows.take(at..at + 1, &mut x, &shift)?;
                        let distance = distance(
                            &x,
                            &centers.values[label as usize * shift.len()..][..shift.len()],
                        );
                        search.offer(first_row + at as u64, label, distance, || {
                            x.iter().map(|x| x.f64()).collect()
                        });
                    }
                    Ok(())
                })
        })
    }
}

/// What a run has to do with a block.
struct Todo<T> {
    block: usize,
    /// Rows to read.
    runs: Vec<Range<usize>>,
    /// From the copy, if it is packed.
    packed: Option<Arc<PackedBlock<T>>>,
    wanted: Wanted,
}
