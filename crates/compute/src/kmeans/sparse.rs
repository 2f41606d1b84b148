//! k-means of sparse rows: products of the lines of a piece with all centres at once, and sums by
//! the entries of what changes.
//!
//! Bounds settle rows as they do dense ones; a piece of which all rows are settled is not read.
//! Centres are dense: k d elements twice, and 8 k d bytes once and in each of at most eight lanes.
//! A lane may take much of a budget: rows are compared in one task and added up in another, which
//! is short, so that all cores compare where memory has room for one lane only.
//!
//! Values that are alike in each column are multiplied into the centres instead of being read. Of
//! rows along some vectors the products with these are looked at once, for their squares.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::{Error, MemorySplit, Result, Session, Stage};
use outcore_device::Locked;
use outcore_engine::{Block, Context, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Lines, Real, csrmm_flops, view, view_mut};
use outcore_matrix::Sparse;
use outcore_matrix::sparse::{Piece, PieceBlocks, each_piece, whole_lines, with_lines};

use super::along::Along;
use super::block::{BOUND_BYTES, RowStates, SQUARE_BYTES};
use super::centers::Centers;
use super::drive::AllStates;
use super::farthest::{self, Far};
use super::totals::{Shape, Totals};
use super::{Division, Lloyd, Round, Source, SumsPlan, Weights, checked, label_bytes};
use crate::linalg::numbers;
use crate::pass::Rows;

/// Of rows that a task reads, and what it holds of each: enough for requests that are no burden, and few tasks; more where a
/// plan would have more blocks than [`BLOCKS_MAX`].
const BLOCK_BYTES: u64 = 4 << 20;

/// Of rows that are compared together and their products with all centres, which are to stay in the processor's cache. Of tiles,
/// whose lines are not found one by one, a block is as small.
const PART_BYTES: u64 = 512 << 10;

/// Blocks of a plan whose two tasks, a kilobyte each, are little enough beside the budget. Of matrices from 64 GiB on, whose
/// pieces cannot be larger, there are more.
const BLOCKS_MAX: u64 = 1 << 14;

/// Blocks that may be compared before what they change is added up.
const AHEAD: usize = 8;

/// Bytes that the tasks take for each row, beside its products and what has changed.
const COMPARED_BYTES: u64 = 44;
const ADDED_BYTES: usize = 5;

/// Columns and values of one row.
type Entries = Vec<(usize, f64)>;

/// Centres in rows, and in columns; the vectors that they are along, twice.
fn centers_bytes<T: Real>(shape: Shape, along: Option<&Along<T>>) -> u64 {
    (2 * shape.clusters * shape.features * size_of::<T>()) as u64
        + along.map_or(0, |along| 2 * along.bytes())
}

/// Products of a row that are held at once: with the centres, or with the vectors that they are along.
fn products_of<T>(shape: Shape, along: Option<&Along<T>>) -> usize {
    along.map_or(0, |along| along.width).max(shape.clusters)
}

/// Rows of a matrix in CSR.
pub(super) struct SparseBlocks {
    x: Sparse,
    /// Of each block: some whole lines, or the parts of one.
    pieces: Vec<Vec<Piece>>,
    /// Lines that are compared together.
    part_lines: usize,
    values: Values,
}

/// The value of each column, or 1 where those of entries are read.
#[derive(Clone)]
struct Values(Option<Arc<Vec<f64>>>);

impl Values {
    /// Of an entry: what is read of it, times its column's.
    fn of<T: Real>(&self, place: usize, read: T) -> f64 {
        match &self.0 {
            Some(values) => values[place] * read.f64(),
            None => read.f64(),
        }
    }

    /// What products of rows with `across`, d x k, are products of what is read with.
    fn times<T: Real>(&self, mut across: Vec<T>, width: usize) -> Arc<Vec<T>> {
        if let Some(values) = &self.0 {
            for (row, value) in across.chunks_exact_mut(width).zip(&**values) {
                row.iter_mut().for_each(|x| *x = T::of(x.f64() * value));
            }
        }
        Arc::new(across)
    }
}

impl<T: Real> Lloyd<T, SparseBlocks> {
    pub(super) fn sparse(
        session: &Session,
        x: Sparse,
        start: &[f64],
        weights: Option<Vec<f64>>,
        values: Option<Vec<f64>>,
        along: Option<Along<T>>,
    ) -> Result<Lloyd<T, SparseBlocks>> {
        let (x, values) = match values.and_then(|values| Some((x.pattern()?, values))) {
            Some((pattern, values)) => (pattern, Some(values)),
            None => (x, None),
        };
        let width = along
            .as_ref()
            .map_or(x.cols() as usize, |along| along.width);
        let shape = checked(&Rows::Sparse(x.clone()), start, width, weights.as_ref())?;
        let (n, element) = (x.rows(), size_of::<T>() as u64);
        let centers = MemorySplit::new(session).hold(centers_bytes(shape, along.as_ref()));
        let fixed = label_bytes(n, weights.as_ref());
        let bounds = BOUND_BYTES + if along.is_some() { SQUARE_BYTES } else { 0 };
        let division = Division::new(centers, shape, n, fixed, Some(bounds));
        let k = products_of(shape, along.as_ref()) as u64;
        let panel_bytes = division.split.panel_bytes();
        let row_bytes = COMPARED_BYTES + (AHEAD * size_of::<Change>()) as u64;
        let part_lines = (PART_BYTES / (k * element + x.nbytes() / n.max(1))).max(1);
        let (part_lines, block_bytes) = match x.is_tiled() {
            true => (n.max(1), PART_BYTES),
            false => (part_lines, BLOCK_BYTES),
        };
        let beside = |lines: u64| lines * row_bytes + lines.min(part_lines) * k * element;
        // Pieces are half full at least.
        let wanted_bytes = 2 * (x.stored_bytes() + beside(n)) / BLOCKS_MAX;
        let block_bytes = panel_bytes.min(block_bytes.max(wanted_bytes));
        let pieces = whole_lines(&x.pieces(block_bytes, beside));
        if pieces.len() as u64 > BLOCKS_MAX && panel_bytes < wanted_bytes {
            return Err(Error::OverBudget {
                what: format!("{k} centres and pieces of {}", x.name()),
                needed: division.split.needed_for_panels(wanted_bytes),
                available: session.memory_bytes(),
                budget: session.memory_bytes(),
            });
        }
        Ok(Lloyd {
            session: session.clone(),
            name: x.name().to_owned(),
            shape,
            weights: Weights(weights.map(Arc::new)),
            shift: Arc::new(vec![0.0; shape.features]),
            start: start.iter().map(|&value| T::of(value)).collect(),
            blocks: pieces.iter().map(|block| block[0].lines()).collect(),
            division,
            along,
            over: None,
            source: SparseBlocks {
                x,
                pieces,
                part_lines: part_lines as usize,
                values: Values(values.map(Arc::new)),
            },
        })
    }

    fn empty_plan(&self) -> Plan {
        let mut plan = Plan::new("k-means round of sparse rows");
        plan.keeps();
        plan.bound(self.source.x.stored_bytes());
        plan.hold(centers_bytes(self.shape, self.along.as_ref()));
        plan
    }

    /// A plan of a round, and regions by which a block is compared before it is added up, and no
    /// more than [`AHEAD`] of them.
    fn round_plan(&self) -> (SumsPlan, Vec<Region>) {
        let mut plan = self.sums_plan(self.empty_plan());
        let longest = (0..self.blocks.len()).map(|block| self.len_of(block)).max();
        let changes = AHEAD * longest.unwrap_or(0) * size_of::<Change>();
        plan.plan.hold(changes as u64);
        let turns = (0..AHEAD).map(|_| plan.plan.serial()).collect();
        (plan, turns)
    }

    /// A task that reads a block and compares its rows; products go to scratch.
    fn task(&self, plan: &mut Plan, block: usize) -> Task {
        let lines = self.len_of(block);
        let flops = csrmm_flops(self.entries_of(block) as usize, self.shape.clusters);
        let task = Task::new("assign").flops(flops);
        let part_lines = lines.min(self.source.part_lines);
        let task = task
            .scratch(part_lines * products_of(self.shape, self.along.as_ref()) * size_of::<T>())
            .held(COMPARED_BYTES as usize * lines);
        self.reads(plan, block, task)
    }

    /// The one that adds up what has changed.
    fn adding_task(&self, plan: &mut Plan, block: usize) -> Task {
        let task = Task::new("add").held(ADDED_BYTES * self.len_of(block));
        self.reads(plan, block, task)
    }

    /// One that looks at some rows after others, entry by entry and in full.
    fn farthest_task(&self, plan: &mut Plan, block: usize) -> Task {
        let lines = self.len_of(block);
        let most = self.entries_of(block) as usize * size_of::<(usize, f64)>();
        let task = Task::new("farthest").held(2 * most + 8 * self.shape.features + lines);
        self.reads(plan, block, task)
    }

    fn entries_of(&self, block: usize) -> u64 {
        self.source.pieces[block].iter().map(Piece::entries).sum()
    }

    fn reads(&self, plan: &mut Plan, block: usize, task: Task) -> Task {
        self.source.pieces[block]
            .iter()
            .flat_map(|piece| self.source.x.regions(plan, piece))
            .fold(task, Task::read)
    }

    fn read(&self, block: usize) -> Vec<PieceBlocks> {
        self.source.pieces[block]
            .iter()
            .map(|piece| self.source.x.blocks(piece))
            .collect()
    }
}

impl<T: Real> Source<T> for SparseBlocks {
    fn explained(lloyd: &Lloyd<T, Self>) -> Vec<Plan> {
        let (mut plan, turns) = lloyd.round_plan();
        lloyd.explain_states(&mut plan.plan);
        for block in 0..lloyd.blocks.len() {
            let (task, turn) = (lloyd.task(&mut plan.plan, block), turns[block % AHEAD]);
            plan.plan.task(task.update(turn));
            let task = lloyd.adding_task(&mut plan.plan, block);
            plan.task(block, task.update(turn));
        }
        vec![plan.plan]
    }

    fn assign_pass(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        round: Round<'_, T>,
    ) -> Result<(u64, u64)> {
        let (states, moved) = (round.states, round.moved);
        let (mut plan, turns) = lloyd.round_plan();
        let settled = |block: &usize| {
            let states = &mut *states[*block].locked();
            moved.is_some_and(|moved| states.relax_bounds(moved) == 0)
        };
        let values = &lloyd.source.values;
        let across = values.times(round.centers.across(lloyd.shape), lloyd.shape.clusters);
        let along = (lloyd.along.as_ref()).map(|along| AlongRows {
            vectors: moved
                .is_none()
                .then(|| values.times(along.vectors.to_vec(), along.width)),
            width: along.width,
        });
        let found: Arc<[Mutex<Found>; AHEAD]> = Arc::default();
        let blocks = lloyd.order(round.passes).into_iter();
        for (turn, block) in (0..AHEAD)
            .cycle()
            .zip(blocks.filter(|block| !settled(block)))
        {
            let comparison = Arc::new(Comparison {
                shape: lloyd.shape,
                centers: Arc::clone(round.centers),
                across: Arc::clone(&across),
                along: along.clone(),
                values: values.clone(),
                states: Arc::clone(states),
                weights: lloyd.weights.clone(),
                object: lloyd.name.clone(),
                first: moved.is_none(),
                first_row: lloyd.blocks[block].start,
                lines: lloyd.len_of(block),
                part_lines: lloyd.source.part_lines,
                pieces: lloyd.read(block),
            });
            let (own, into) = (Arc::clone(&comparison), Arc::clone(&found));
            let compare = move |cx: &mut Context<'_>| {
                // The last one is that of the turn.
                let blocks = &cx.blocks[..cx.blocks.len() - 1];
                let (scores, stop) = (numbers::<T>(cx.scratch), || {
                    cx.cancelled.load(Ordering::Relaxed)
                });
                *into[turn].locked() = own.label(block, blocks, scores, &stop)?;
                Ok(())
            };
            let task = lloyd.task(&mut plan.plan, block).update(turns[turn]);
            plan.plan.task(task.run(compare));
            let found = Arc::clone(&found);
            let add = move |cx: &mut Context<'_>| {
                let (blocks, totals) = cx.blocks.split_at_mut(cx.blocks.len() - 1);
                let totals = &mut Totals::of(totals[0].slice_mut(), comparison.shape);
                let found = std::mem::take(&mut *found[turn].locked());
                Ok(comparison.add(&found, &blocks[..blocks.len() - 1], totals)?)
            };
            let task = lloyd.adding_task(&mut plan.plan, block).update(turns[turn]);
            plan.task(block, task.run(add));
        }
        plan.run(stage, round.sums, round.reached)
    }

    fn farthest(
        lloyd: &Lloyd<T, Self>,
        stage: &mut Stage,
        states: &AllStates<T>,
        centers: &Arc<Centers<T>>,
        count: usize,
    ) -> Result<Vec<Far>> {
        let along = lloyd.along.as_ref().map(|along| {
            let numbers = |center: &[T]| along.numbers(center.iter().map(|c| c.f64()).enumerate());
            let centers = centers.values.chunks(lloyd.shape.features);
            Arc::new((along.clone(), centers.map(numbers).collect::<Vec<_>>()))
        });
        farthest::find(
            stage,
            lloyd.empty_plan(),
            lloyd,
            count,
            |plan, block, search| {
                let (read, first_row, d) = (
                    lloyd.read(block),
                    lloyd.blocks[block].start,
                    lloyd.shape.features,
                );
                let (states, centers) = (Arc::clone(states), Arc::clone(centers));
                let (values, along) = (lloyd.source.values.clone(), along.clone());
                lloyd.farthest_task(plan, block).run(move |cx| {
                    let states = states[block].locked();
                    let all = states.labels.len();
                    for first in (0..all).step_by(AT_ONCE) {
                        let some = first..(first + AT_ONCE).min(all);
                        let rows = rows_of::<T>(&read, cx.blocks, some.clone(), &values)?;
                        for (line, entries) in some.zip(rows) {
                            if cx.cancelled.load(Ordering::Relaxed) {
                                return Err(Error::Cancelled.into());
                            }
                            let label = states.labels[line];
                            let center = &centers.values[label as usize * d..][..d];
                            let dense = || {
                                let mut x = vec![0.0; d];
                                entries
                                    .iter()
                                    .for_each(|&(column, value)| x[column] += value);
                                x
                            };
                            let square = match along.as_deref() {
                                Some((along, centers)) => {
                                    let numbers = along.numbers(entries.iter().copied());
                                    square(&numbers, centers[label as usize].iter().copied())
                                }
                                None => square(&dense(), center.iter().map(|c| c.f64())),
                            };
                            search.offer(first_row + line as u64, label, square.sqrt(), dense);
                        }
                    }
                    Ok(())
                })
            },
        )
    }
}

/// Of the distance of x from c.
fn square(x: &[f64], c: impl Iterator<Item = f64>) -> f64 {
    x.iter().zip(c).map(|(x, c)| (x - c).powi(2)).sum()
}

fn from_of(change: &Change) -> Option<u32> {
    (change.from != NONE).then_some(change.from)
}

/// Rows whose entries are listed at a time.
const AT_ONCE: usize = 1024;

/// The entries of some of the lines of a block.
fn rows_of<T: Real>(
    pieces: &[PieceBlocks],
    blocks: &[Block],
    some: Range<usize>,
    values: &Values,
) -> Result<Vec<Entries>> {
    let mut rows = vec![Entries::new(); some.len()];
    for (piece, blocks) in each_piece(pieces, blocks) {
        with_lines!(piece, blocks, T, a => a.part(some.clone()).each_line(|line, entries| {
            entries.each(|place, value| rows[line].push((place, values.of(place, value))));
        }));
    }
    Ok(rows)
}

/// A row that goes from a cluster, or none, to another.
struct Change {
    line: u32,
    /// [`NONE`] for none.
    from: u32,
    to: u32,
}

const NONE: u32 = u32::MAX;

/// What comparing a block has found.
#[derive(Default)]
struct Found {
    compared: usize,
    changes: Vec<Change>,
    /// Of rows that are seen for the first time: their squares, weighted and not.
    squares: [f64; 2],
}

/// What the lines of a block come to, as far as they have been multiplied.
struct Products<'a, T> {
    /// With all centres, of the lines of one part.
    scores: &'a mut [T],
    squares: Vec<f64>,
    /// Of what lines are along the space of centres; empty where those of lines do as well.
    squares_along: Vec<f64>,
    /// Of entries.
    counts: Vec<u32>,
}

/// How rows are along the space of centres.
#[derive(Clone)]
struct AlongRows<T> {
    /// d x r, times values, in the first round.
    vectors: Option<Arc<Vec<T>>>,
    width: usize,
}

/// What a round does with one block.
struct Comparison<T: Real> {
    shape: Shape,
    centers: Arc<Centers<T>>,
    across: Arc<Vec<T>>,
    along: Option<AlongRows<T>>,
    values: Values,
    states: AllStates<T>,
    weights: Weights,
    object: String,
    first: bool,
    first_row: u64,
    lines: usize,
    /// Lines that are compared together.
    part_lines: usize,
    pieces: Vec<PieceBlocks>,
}

impl<T: Real> Comparison<T> {
    fn weight(&self, line: usize) -> f64 {
        self.weights.of(self.first_row + line as u64)
    }

    fn label(
        &self,
        block: usize,
        blocks: &[Block],
        scores: &mut [T],
        stop: &dyn Fn() -> bool,
    ) -> Result<Found> {
        let states = &mut *self.states[block].locked();
        let n = self.lines;
        let mut picked = vec![self.first || !states.has_bounds(); n];
        if !picked.first().copied().unwrap_or(true) {
            states
                .active(&self.centers.gaps)
                .into_iter()
                .for_each(|row| picked[row as usize] = true);
        }
        let mut products = Products {
            scores,
            squares: vec![0.0; n],
            squares_along: Vec::new(),
            counts: vec![0; n],
        };
        match self
            .along
            .as_ref()
            .map(|along| (&along.vectors, along.width))
        {
            Some((Some(vectors), width)) => {
                self.measure_along(vectors, width, blocks, &mut products, stop)?
            }
            Some((None, _)) => products
                .squares_along
                .extend(states.squares.iter().map(|&square| f64::from(square))),
            None => {}
        }
        let mut found = Found::default();
        for (at, (piece, lines)) in each_piece(&self.pieces, blocks).enumerate() {
            with_lines!(piece, lines, T, a => for part in self.parts() {
                let lines = kernels::Picked::new(a.part(part.clone()), &picked[part.clone()]);
                self.measure(lines, &part, &mut products);
                self.multiply(lines, (&self.across, self.shape.clusters), &part, at == 0, &mut products, stop)?;
                // Blocks of several pieces are of one line.
                if at + 1 == self.pieces.len() && let Err(line) = self.keep_nearest(part, &picked, &products, states, &mut found) {
                    return Err(self.locate(blocks, line)?);
                }
            });
        }
        if self.first && states.has_bounds() {
            states.squares = products
                .squares_along
                .iter()
                .map(|&square| square as f32)
                .collect();
        }
        found.changes.shrink_to_fit();
        Ok(found)
    }

    /// Lines that are compared together.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (lines, step) = (self.lines, self.part_lines);
        let firsts = (0..lines).step_by(step);
        firsts.map(move |first| first..lines.min(first + step))
    }

    /// Squares of the lines of a block along the space of centres.
    fn measure_along(
        &self,
        vectors: &[T],
        width: usize,
        blocks: &[Block],
        products: &mut Products<'_, T>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        products.squares_along = vec![0.0; self.lines];
        for (at, (piece, lines)) in each_piece(&self.pieces, blocks).enumerate() {
            with_lines!(piece, lines, T, a => for part in self.parts() {
                self.multiply(a.part(part.clone()), (vectors, width), &part, at == 0, products, stop)?;
                let numbers = products.scores.chunks_exact(width);
                for (square, numbers) in products.squares_along[part].iter_mut().zip(numbers) {
                    *square = numbers.iter().map(|x| x.f64() * x.f64()).sum();
                }
            });
        }
        Ok(())
    }

    /// Multiplies what of a part's lines is in one piece, the first or another, with all columns of `across`.
    fn multiply(
        &self,
        lines: impl Lines<T>,
        (across, width): (&[T], usize),
        part: &Range<usize>,
        is_first: bool,
        products: &mut Products<'_, T>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let scores = &mut products.scores[..part.len() * width];
        if is_first {
            scores.fill(T::ZERO);
        }
        let scores = view_mut(scores, part.len(), width, width, 1)?;
        let across = view(across, self.shape.features, width, width, 1)?;
        kernels::csrmm_until(scores, T::ONE, lines, across, 0, T::ONE, stop)?;
        // Of what was stopped the scores are wrong. A row of many pieces takes the time of all.
        match stop() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// Counts the entries of what of a part's lines is in one piece, and adds up their squares.
    fn measure(&self, lines: impl Lines<T>, part: &Range<usize>, products: &mut Products<'_, T>) {
        let squares = &mut products.squares[part.clone()];
        let counts = &mut products.counts[part.clone()];
        lines.each_line(|line, entries| {
            counts[line] += entries.len() as u32;
            entries.each(|place, value| squares[line] += self.values.of(place, value).powi(2));
        });
    }

    /// Keeps the nearest centres of a part's lines; the first line without one, of which a distance is not finite.
    fn keep_nearest(
        &self,
        part: Range<usize>,
        picked: &[bool],
        products: &Products<'_, T>,
        states: &mut RowStates<T>,
        found: &mut Found,
    ) -> std::result::Result<(), usize> {
        let scores = products.scores.chunks_exact(self.shape.clusters);
        for (line, scores) in part.zip(scores).filter(|(line, _)| picked[*line]) {
            let (square, before) = (products.squares[line], states.labels[line]);
            let (label, first, second) =
                kernels::nearest_of_products(scores, &self.centers.squares, before);
            if !(square + first).is_finite() {
                return Err(line);
            }
            let count = f64::from(products.counts[line]);
            let (own, roundings) = match (&self.along, products.squares_along.get(line)) {
                // Each product that the square is made of is off by as much, in terms of its vector's part of the row's columns.
                (Some(along), Some(&own)) => (
                    own,
                    (count + 8.0) * (1.0 + count.min(along.width as f64).sqrt()),
                ),
                _ => (square, count + 8.0),
            };
            let error = roundings * T::EPSILON.f64() * (square.sqrt() + self.centers.reach).powi(2);
            states.keep(line, label, own + first, own + second, error, 0.0);
            found.compared += 1;
            if before != label || self.first {
                found.changes.push(Change {
                    line: line as u32,
                    from: if self.first { NONE } else { before },
                    to: label,
                });
            }
            if self.first {
                found.squares[0] += self.weight(line) * own;
                found.squares[1] += square;
            }
        }
        Ok(())
    }

    /// Adds the rows that have changed.
    fn add(&self, found: &Found, blocks: &[Block], totals: &mut Totals<'_>) -> Result<()> {
        totals.compared(found.compared);
        if self.first {
            totals.squares_seen(found.squares);
        }
        if found.changes.is_empty() {
            return Ok(());
        }
        let (mut changed, mut places) = (vec![false; self.lines], vec![0u32; self.lines]);
        for (place, change) in found.changes.iter().enumerate() {
            let line = change.line as usize;
            (changed[line], places[line]) = (true, place as u32);
            totals.relabeled(self.weight(line), from_of(change), change.to);
        }
        // A row may be in several pieces.
        for (piece, blocks) in each_piece(&self.pieces, blocks) {
            with_lines!(piece, blocks, T, a => kernels::Picked::new(a, &changed).each_line(|line, entries| {
                let change = &found.changes[places[line] as usize];
                let weight = self.weight(line);
                entries.each(|place, value| {
                    let value = self.values.of(place, value);
                    totals.entry_moved(place, weight * value, from_of(change), change.to);
                    if self.first {
                        totals.entry_seen(place, value);
                    }
                });
            }));
        }
        Ok(())
    }

    /// Which entry of a row is not finite.
    fn locate(&self, blocks: &[Block], line: usize) -> Result<Error> {
        let rows = rows_of::<T>(&self.pieces, blocks, line..line + 1, &self.values)?;
        let found = rows[0].iter().find(|(_, value)| !value.is_finite());
        Ok(match found {
            Some(&(place, _)) => Error::NotFinite {
                object: self.object.clone(),
                row: self.first_row + line as u64,
                column: place as u64,
            },
            None => Error::Failed {
                what: format!(
                    "{}: a squared distance overflows the element type",
                    self.object
                ),
            },
        })
    }
}
