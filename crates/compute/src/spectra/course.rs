//! How wide blocks are, how long the basis grows, and where it lies: what fits the budget.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use outcore_core::{Error, MemorySplit, RealType, Result, Session, Stage};
use outcore_engine::{Plan, Reservation};
use outcore_kernels as kernels;

use super::search::{Accuracy, CHECKED_STEPS, Course, Found, checks_max};
use super::tall::{SUMS, TallLayout};
use super::{Method, SearchFacts, SpectrumOptions};
use crate::operator::Operator;

/// Columns of a product, where memory is not short.
const BLOCK: usize = 16;

/// Blocks by which the basis is longer than twice what is wanted.
const BLOCKS_BEYOND: usize = 6;

/// Blocks of the basis where a block is wider than what is wanted.
const WIDE_BLOCKS: usize = 5;

/// Columns of a wide block: a tenth more than are wanted, eight more at least.
fn wide_block(count: usize) -> usize {
    count + (count / 10).max(8)
}

/// Columns of a product where the basis lies in scratch and is as much longer: it is read for each.
const WIDER: [usize; 2] = [64, 32];

/// The square matrices that make left vectors orthonormal, at most.
pub(super) const FACTORS: u64 = 6;

/// Columns of products that are made when the vectors are known.
const CHUNKS: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];

/// Tolerances from this one on are reached in few passes.
const LOOSE: f64 = 1e-4;

/// Of an SSD.
const READ_BYTES_PER_S: f64 = 2e9;

/// A search as it is going to be.
pub(super) struct Planned {
    pub(super) course: Course,
    /// What the search holds besides bases.
    pub(super) blocks_bytes: u64,
    /// Left singular vectors.
    pub(super) left: Option<TallLayout>,
    /// Products for residuals and left singular vectors; none where these have room row by row only.
    pub(super) by_columns: Option<Chunks>,
    /// The same where left vectors go to scratch row by row, if more are made at once then.
    pub(super) by_rows: Option<Chunks>,
    needed_bytes: u64,
}

/// Products when the vectors are known.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    /// Columns of one.
    pub(super) columns: usize,
    /// What is held besides bases.
    pub(super) blocks_bytes: u64,
}

impl Chunks {
    pub(super) fn reserve(self, stage: &Stage) -> Result<Reservation> {
        stage.reserve("blocks of vectors", self.blocks_bytes)
    }

    /// The columns of each product.
    pub(super) fn of(self, count: usize) -> impl Iterator<Item = Range<usize>> {
        let first = (0..count).step_by(self.columns);
        first.map(move |first| first..count.min(first + self.columns))
    }
}

/// What a part of a search takes.
#[derive(Clone, Copy)]
struct Need {
    bases: u64,
    blocks: u64,
    /// Of operations, with one task at a time.
    passing: u64,
}

impl Need {
    fn bytes(&self) -> u64 {
        self.bases + self.blocks + self.passing
    }

    /// Whether it fits; at ease, with room for more than one task.
    fn fits(&self, split: &MemorySplit, at_ease: bool) -> bool {
        match at_ease {
            true => split.leaves_room_for(self.bases + self.blocks, || self.passing),
            false => split.can_hold(self.bytes()),
        }
    }
}

/// What a search takes, by how it goes.
struct Needs<'a> {
    order: usize,
    count: usize,
    /// Of bases.
    real: RealType,
    budget_bytes: u64,
    /// What the caller gave.
    given_bytes: u64,
    /// Of a product with this number of columns.
    products: &'a dyn Fn(usize) -> u64,
    /// Rows of left singular vectors, and the same of products that make them.
    left: Option<(usize, &'a dyn Fn(usize) -> u64)>,
    /// The same of products that make them row by row, if there are such.
    by_rows: Option<&'a dyn Fn(usize) -> u64>,
}

impl Needs<'_> {
    /// While the basis grows.
    fn search(&self, layout: TallLayout, block: usize) -> Need {
        Need {
            bases: layout.held_bytes(layout.capacity),
            blocks: blocks_bytes(self.order, block)
                + small_bytes(layout.capacity, block)
                + self.given_bytes,
            passing: (self.products)(block)
                .max(layout.passing_bytes(block))
                .max(ritz_bytes(layout.capacity)),
        }
    }

    /// What vectors become, when blocks are given back: those in memory stay there, of others one
    /// matrix after another is written.
    fn finish_bytes(&self, bases: &[TallLayout]) -> u64 {
        let bytes = |in_memory| {
            let those = bases
                .iter()
                .filter(move |layout| layout.in_memory == in_memory);
            those.map(|layout| layout.finish_bytes(self.count, self.budget_bytes))
        };
        bytes(true).sum::<u64>() + bytes(false).max().unwrap_or(0)
    }

    /// When the basis has grown: for residuals and left vectors.
    fn end(&self, layout: TallLayout, left: Option<TallLayout>, chunk: usize) -> Need {
        let count = self.count;
        let (rows, products) = match self.left {
            Some((rows, products)) => (rows, products(chunk)),
            None => (0, (self.products)(chunk)),
        };
        let bases: Vec<TallLayout> = std::iter::once(layout).chain(left).collect();
        let passing = bases.iter().map(|layout| layout.passing_bytes(chunk));
        let blocks = blocks_bytes(self.order + rows, chunk) + small_bytes(count, chunk);
        Need {
            bases: bases.iter().map(|layout| layout.held_bytes(count)).sum(),
            blocks,
            passing: passing
                .fold(products, u64::max)
                .max(self.finish_bytes(&bases).saturating_sub(blocks))
                .max(self.left.map_or(0, |_| svd_bytes(count, 2))),
        }
    }

    /// The same where left vectors go to scratch row by row: beside the images of right ones, and
    /// with the products of all left ones, or of twice as many where noise may have to take the place
    /// of all of them.
    fn end_by_rows(
        &self,
        layout: TallLayout,
        left: TallLayout,
        chunk: usize,
        is_only: bool,
    ) -> Option<Need> {
        let (count, rows) = (self.count, self.by_rows?(chunk));
        let all = if is_only { 2 * count } else { count };
        let images = TallLayout::in_scratch(self.real, self.order, count);
        let made = match is_only {
            true => TallLayout::in_scratch(self.real, left.rows, all),
            false => left,
        };
        let passing = [layout, made, images].map(|layout| layout.passing_bytes(all));
        let products = rows.max((self.products)(chunk));
        let blocks = blocks_bytes(self.order, chunk) + factors_bytes(all);
        Some(Need {
            bases: layout.held_bytes(count) + left.held_bytes(count),
            blocks,
            passing: passing
                .into_iter()
                .fold(products, u64::max)
                .max(self.finish_bytes(&[layout, left]).saturating_sub(blocks))
                .max(svd_bytes(count, FACTORS - 3)),
        })
    }

    /// How many left vectors are made at once where they go to scratch row by row.
    fn widest_by_rows(
        &self,
        layout: TallLayout,
        left: TallLayout,
        split: &MemorySplit,
        is_only: bool,
    ) -> Option<(usize, Need)> {
        // The widest for each number of passes, as long as these are few.
        let few = (1..=CHUNKS.len()).map(|passes| self.count.div_ceil(passes));
        let least = self.count.div_ceil(CHUNKS.len());
        let many = CHUNKS.into_iter().filter(|&chunk| chunk < least);
        few.filter(|&chunk| chunk <= CHUNKS[0])
            .chain(many)
            .filter_map(|chunk| Some((chunk, self.end_by_rows(layout, left, chunk, is_only)?)))
            .find(|(_, end)| end.fits(split, !is_only) && end.bytes() <= split.free())
    }

    /// Where left vectors may lie, how many are made at once, and whether there must be room for
    /// more than one task; best first.
    fn ends(&self) -> impl Iterator<Item = (Option<TallLayout>, usize, bool)> + use<> {
        let (count, real) = (self.count, self.real);
        let [in_memory, in_scratch] = [TallLayout::in_memory, TallLayout::in_scratch]
            .map(|layout| self.left.map(|(rows, _)| layout(real, rows, count)));
        let chunks = move |least: usize| {
            CHUNKS
                .into_iter()
                .map(move |chunk| chunk.min(count))
                .filter(move |&chunk| least.min(count) <= chunk)
        };
        let in_memory = chunks(8).map(move |chunk| (in_memory, chunk, true));
        let at_ease = chunks(8).map(move |chunk| (in_scratch, chunk, true));
        let just = chunks(1).map(move |chunk| (in_scratch, chunk, false));
        in_memory.chain(at_ease).chain(just)
    }
}

/// Of a block there are what is multiplied and its image, or that and a copy in panels.
fn blocks_bytes(rows: usize, columns: usize) -> u64 {
    (2 * 8 * rows * columns) as u64
}

/// Bases have the digits that products have.
fn stored(operator: &impl Operator) -> RealType {
    match operator.epsilon() < f64::from(f32::EPSILON) {
        true => RealType::F64,
        false => RealType::F32,
    }
}

/// A square matrix of as many columns.
fn square_bytes(columns: usize) -> u64 {
    (8 * columns * columns) as u64
}

/// The operator as a basis sees it, its eigenvectors, and the same as they are multiplied; and what a
/// block is along the basis.
fn small_bytes(capacity: usize, block: usize) -> u64 {
    let sums = 8 * SUMS * (capacity + block) * block;
    3 * square_bytes(capacity) + (sums + kernels::thread_bytes::<f64>(capacity)) as u64
}

/// What finding these takes beside them, where nothing passes by.
pub(super) fn ritz_bytes(columns: usize) -> u64 {
    let packed = kernels::thread_bytes::<f64>(columns);
    let found = kernels::eigh_scratch_bytes::<f64>(columns, columns) - packed;
    (found as u64).saturating_sub(2 * square_bytes(columns))
}

/// What makes left vectors orthonormal, at most: sums of lanes, or factors and their singular vectors.
fn factors_bytes(columns: usize) -> u64 {
    FACTORS * square_bytes(columns) + kernels::thread_bytes::<f64>(columns) as u64
}

/// What singular vectors of a factor take beside `held` square matrices of those, where nothing passes
/// by.
pub(super) fn svd_bytes(count: usize, held: u64) -> u64 {
    let found = kernels::svd_scratch_bytes::<f64>(count) - kernels::thread_bytes::<f64>(count);
    (found as u64).saturating_sub(held * square_bytes(count))
}

/// Budgets beyond this one have larger states and panels of passes: what is enough for these too.
fn enough(least: u64) -> u64 {
    // States take up to a quarter of a budget, a panel and what is made of it up to a ninth.
    least + least / 16 * 9
}

/// An operator may have to plan its passes to know what they take: asked once for each width.
fn known(bytes: impl Fn(usize) -> u64) -> impl Fn(usize) -> u64 {
    let known = RefCell::new(BTreeMap::new());
    move |columns| {
        *known
            .borrow_mut()
            .entry(columns)
            .or_insert_with(|| bytes(columns))
    }
}

impl Planned {
    /// `left` is the number of rows of left singular vectors, and the operator that makes them.
    ///
    /// The budget decides, not the number of threads, nor what others hold of it.
    pub(super) fn new<O: Operator>(
        session: &Session,
        operator: &O,
        options: &SpectrumOptions,
        accuracy: Accuracy,
        left: Option<(usize, &dyn Operator)>,
    ) -> Result<Planned> {
        let [order, _] = operator.shape();
        let (split, count) = (MemorySplit::new(session), options.count);
        let products = known(|columns| operator.held_bytes(columns));
        let left_products = known(|columns| left.map_or(0, |(_, left)| left.held_bytes(columns)));
        let by_rows = left.and_then(|(_, left)| left.by_rows());
        let rows_held = known(|columns| by_rows.map_or(0, |rows| rows.rows_held_bytes(columns)));
        let real = stored(operator);
        let needs = Needs {
            order,
            count,
            real,
            budget_bytes: session.memory_bytes(),
            given_bytes: [&options.start, &options.known]
                .map(|given| given.as_ref().map_or(0, |given| 8 * given.len() as u64))
                .iter()
                .sum(),
            products: &products,
            left: left.map(|(rows, _)| (rows, &left_products as &dyn Fn(usize) -> u64)),
            by_rows: by_rows.map(|_| &rows_held as &dyn Fn(usize) -> u64),
        };
        let refused = |needed| Error::OverBudget {
            what: format!("{count} pairs of {}, of order {order}", operator.name()),
            needed,
            available: split.free(),
            budget: session.memory_bytes(),
        };
        let widened = |layout: TallLayout, width, held| {
            layout.widened(&split.hold(held + layout.passing_bytes(width)))
        };
        let chunks = |(columns, end): (usize, Need)| Chunks {
            columns,
            blocks_bytes: end.blocks,
        };
        let (mut least, mut only_by_rows) = (u64::MAX, None);
        for shape in shapes(order, operator, options) {
            let Shape {
                block,
                basis,
                in_memory,
                at_ease,
            } = shape;
            let capacity = (basis + block).min(order);
            let layout = match in_memory {
                true => TallLayout::in_memory(real, order, capacity),
                false => TallLayout::in_scratch(real, order, capacity),
            };
            let search = needs.search(layout, block);
            if !search.fits(&split, at_ease) {
                least = least.min(search.bytes());
                continue;
            }
            let course = Course {
                block,
                layout: widened(layout, block, search.bases + search.blocks),
                accuracy,
            };
            let mut least_end = u64::MAX;
            for (left, chunk, at_ease) in needs.ends() {
                let end = needs.end(layout, left, chunk);
                let needed = search.bytes().max(end.bytes());
                if !end.fits(&split, at_ease) {
                    least_end = least_end.min(needed);
                    continue;
                }
                if needed > split.free() {
                    return Err(refused(needed));
                }
                let by_rows = left
                    .filter(|left| !left.in_memory)
                    .and_then(|left| needs.widest_by_rows(layout, left, &split, false))
                    .filter(|(wider, _)| *wider > chunk);
                let by_rows_bytes = by_rows.map_or(0, |(_, end)| end.bytes());
                return Ok(Planned {
                    course,
                    blocks_bytes: search.blocks,
                    left: left.map(|layout| widened(layout, chunk, end.bases + end.blocks)),
                    by_columns: Some(chunks((chunk, end))),
                    by_rows: by_rows.map(chunks),
                    needed_bytes: needed.max(by_rows_bytes),
                });
            }
            let left = needs
                .left
                .map(|(rows, _)| TallLayout::in_scratch(real, rows, count));
            let by_rows = left.and_then(|left| {
                let found = needs.widest_by_rows(layout, left, &split, true);
                found.map(|(chunk, end)| (left, chunk, end))
            });
            if let (None, Some((left, chunk, end))) = (&only_by_rows, by_rows)
                && search.bytes() <= split.free()
            {
                only_by_rows = Some(Planned {
                    course,
                    blocks_bytes: search.blocks,
                    left: Some(widened(left, count, end.bases + end.blocks)),
                    by_columns: None,
                    by_rows: Some(chunks((chunk, end))),
                    needed_bytes: search.bytes().max(end.bytes()),
                });
            }
            least = least.min(least_end);
        }
        only_by_rows.ok_or_else(|| refused(enough(least)))
    }

    /// What `explain` says. For each vector that is found there are `products_after` passes of `own_bytes` more.
    pub(super) fn note(
        &self,
        plan: &mut Plan,
        operator: &impl Operator,
        options: &SpectrumOptions,
        (products_after, own_bytes): (usize, u64),
    ) {
        let Course { block, layout, .. } = self.course;
        plan.hold(self.needed_bytes);
        let passes = |chunks: Option<Chunks>| {
            let of = |chunks: Chunks| products_after * options.count.div_ceil(chunks.columns);
            chunks.map_or(0, of)
        };
        let after = passes(self.by_columns) + passes(self.by_rows);
        let widest = self.by_rows.or(self.by_columns);
        let growing = options.count.div_ceil(block);
        let least = growing + passes(widest);
        let cycle = layout.capacity.div_ceil(block);
        plan.note("block", block);
        plan.note("basis", format!("{} columns", layout.capacity));
        plan.note(
            "basis lies",
            if layout.in_memory {
                "in memory"
            } else {
                "in scratch"
            },
        );
        if let Some(Chunks { columns, .. }) = self.by_rows {
            plan.note("left vectors", format!("row by row, {columns} at once"));
        }
        plan.note("passes at least", least);
        // A check whose block brings pairs goes on until the basis is full.
        let checks = if options.check {
            checks_max(options, block) * cycle.max(CHECKED_STEPS[1])
        } else {
            0
        };
        let most = cycle * (options.restarts_max + 1) + checks + after;
        plan.note("passes at most", most);
        plan.note("bytes a pass", operator.pass_bytes());
        plan.bound(own_bytes);
        plan.reads_later(
            growing as u64 * operator.pass_bytes() + passes(widest) as u64 * own_bytes,
        );
        if !layout.in_memory {
            plan.note("bytes of the basis", layout.pass_bytes());
        }
    }

    pub(super) fn facts(
        &self,
        found: &Found,
        operator: &impl Operator,
        count: usize,
    ) -> SearchFacts {
        SearchFacts {
            products: found.products,
            restarts: found.restarts,
            block: self.course.block,
            basis: self.course.layout.capacity,
            in_memory: self.course.layout.in_memory,
            has_converged: found.has_converged,
            missed_beyond: found
                .missed_beyond
                .filter(|_| count < self.course.layout.rows),
            epsilon: operator.epsilon(),
            largest: found.largest,
        }
    }
}

/// Passes of the matrix. Of corpora, 10 to 100 pairs in blocks of 4 to 110 columns to 1e-2 to 1e-6
/// took as many to within a seventh; where values are closer to each other there are more, of any
/// block.
fn passes(options: &SpectrumOptions, block: usize) -> f64 {
    let digits = -options.tolerance.clamp(1e-15, 1.0).log10();
    let blocks = options.count as f64 / block as f64;
    8.0 + 1.7 * digits + (1.4 + 0.5 * digits) * blocks
}

/// Seconds of products with as many columns. Rates are constants and no clock is looked at, since
/// widths decide on the bits.
fn products_s(operator: &impl Operator, options: &SpectrumOptions, block: usize) -> f64 {
    let reading_s = operator.pass_bytes() as f64 / READ_BYTES_PER_S;
    passes(options, block) * operator.computing_s(block).max(reading_s)
}

/// Whether fewer passes with wide blocks take less time than more with narrow ones.
fn takes_less_wide(operator: &impl Operator, options: &SpectrumOptions) -> bool {
    let seconds = |block| products_s(operator, options, block);
    operator.pass_bytes() > 0 && seconds(wide_block(options.count)) < seconds(BLOCK)
}

/// Seconds of reading a basis in scratch: it grows from what is wanted to its length, and each
/// product goes through it three times.
fn basis_s(operator: &impl Operator, options: &SpectrumOptions, block: usize, basis: usize) -> f64 {
    let columns = (options.count + basis) / 2 * operator.shape()[0];
    let bytes = (3 * stored(operator).bytes() * columns) as f64;
    passes(options, block) * bytes / READ_BYTES_PER_S
}

/// How wide blocks are, how long the basis is besides the newest one, where it lies, and whether there
/// must be room for more than one task.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block: usize,
    basis: usize,
    in_memory: bool,
    at_ease: bool,
}

/// Best first.
fn shapes<O: Operator>(order: usize, operator: &O, options: &SpectrumOptions) -> Vec<Shape> {
    let count = options.count;
    let shape = |block: usize, basis: usize, least: usize| {
        let block = block.min(order);
        Shape {
            block,
            basis: options.basis.unwrap_or(basis).max(least + 3 * block),
            in_memory: true,
            at_ease: true,
        }
    };
    let narrow = |block: usize, beyond: usize| shape(block, 2 * count + beyond * block, count);
    // Where memory is short of more: more restarts.
    let short = |block: usize, spare: usize| shape(block, count + spare + 6 * block, count);
    let wide = || {
        let block = wide_block(count).min(order);
        shape(block, WIDE_BLOCKS * block, 0)
    };
    let in_scratch = |shape: Shape| Shape {
        in_memory: false,
        at_ease: false,
        ..shape
    };
    let places = |shapes: Vec<Shape>| {
        // Wide blocks are for a basis in memory, unless they are asked for.
        let is_asked = options.method == Method::Randomized || options.block.is_some();
        let narrow = shapes.clone().into_iter();
        let narrow = narrow.filter(move |shape| is_asked || shape.block <= BLOCK);
        shapes.into_iter().chain(narrow.map(in_scratch))
    };
    // What the square of the basis takes is much only where pairs are many.
    let wider = WIDER
        .into_iter()
        .filter(|block| 8 * block <= count)
        .map(|block| (block, BLOCKS_BEYOND));
    let (mut all, last): (Vec<Shape>, Vec<Shape>) = match (options.block, options.method) {
        (Some(block), Method::Randomized) => (
            places(vec![shape(block, WIDE_BLOCKS * block, count)]).collect(),
            Vec::new(),
        ),
        (Some(block), _) => (
            places(vec![narrow(block, BLOCKS_BEYOND)]).collect(),
            places(vec![short(block, 0)]).collect(),
        ),
        (None, Method::Randomized) => (places(vec![wide()]).collect(), Vec::new()),
        (None, method) => {
            let widths = [(BLOCK, BLOCKS_BEYOND), (8, BLOCKS_BEYOND), (4, 3)];
            let is_dear = options.tolerance >= LOOSE && takes_less_wide(operator, options);
            let is_wide = method == Method::Auto && (is_dear || options.known.is_some());
            let of = |(block, beyond)| narrow(block, beyond);
            let all = is_wide.then(wide).into_iter().chain(widths.map(of));
            let wider_in_scratch = |shape: Shape| Shape {
                in_memory: false,
                ..shape
            };
            let all = places(all.collect())
                .chain(wider.clone().map(of).map(wider_in_scratch))
                .collect();
            let spares = [count / 2, count / 4]
                .into_iter()
                .filter(|spare| spare >= &(2 * WIDER[0]));
            let shorter = spares.flat_map(|spare| {
                let in_scratch = wider
                    .clone()
                    .map(move |(block, _)| wider_in_scratch(short(block, spare)));
                in_scratch.chain(places(vec![short(BLOCK, spare), short(8, spare)]))
            });
            let last = [8, 4, 2, 1].map(|block| short(block, 0));
            (all, shorter.chain(places(last.into())).collect())
        }
    };
    let seconds = |shape: &Shape| {
        let Shape { block, basis, .. } = *shape;
        let scratch_s = match shape.in_memory {
            true => 0.0,
            false => basis_s(operator, options, block, basis),
        };
        // Wide blocks are there where they are best.
        let is_wide = block > BLOCK && shape.in_memory;
        scratch_s
            + if is_wide {
                0.0
            } else {
                products_s(operator, options, block)
            }
    };
    // Stable: where it is not known what products take, the widest block in memory is the best.
    all.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    all.into_iter().chain(last).collect()
}

#[cfg(test)]
mod tests {
    use outcore_kernels::{MatMut, MatRef};

    use super::*;

    const ORDER: usize = 80_000;

    /// A matrix that is known by what a pass over it takes.
    struct Passes {
        bytes: u64,
        column_s: f64,
    }

    impl Operator for Passes {
        fn shape(&self) -> [usize; 2] {
            [ORDER; 2]
        }

        fn held_bytes(&self, _columns: usize) -> u64 {
            0
        }

        fn pass_bytes(&self) -> u64 {
            self.bytes
        }

        fn computing_s(&self, columns: usize) -> f64 {
            self.column_s * (columns + BLOCK) as f64
        }

        fn apply(&self, _: MatRef<'_, f64>, _: MatMut<'_, f64>, _: &mut Stage) -> Result<()> {
            unreachable!("a search is planned without a product")
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

    #[test]
    fn blocks_are_wide_where_passes_are_dearer_to_read_than_to_compute() {
        let block = |bytes, column_s, tolerance, method| {
            let options = SpectrumOptions {
                tolerance,
                method,
                ..SpectrumOptions::new(50)
            };
            shapes(ORDER, &Passes { bytes, column_s }, &options)[0].block
        };
        let (auto, wide) = (Method::Auto, wide_block(50));
        // 0.2 s to read, and 0.5 s to multiply with 16 columns.
        assert_eq!(block(400 << 20, 0.015, 1e-4, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.015, 1e-4, auto), wide);
        assert_eq!(block(400 << 20, 0.0, 1e-4, auto), wide);
        assert_eq!(block(0, 0.0, 1e-4, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.0, 1e-6, auto), BLOCK);
        assert_eq!(block(40 << 30, 0.0, 1e-4, Method::Krylov), BLOCK);
        assert_eq!(block(0, 0.015, 1e-4, Method::Randomized), wide);
    }

    #[test]
    fn a_basis_lies_in_scratch_before_passes_become_many_if_these_are_dear() {
        let order = |bytes, column_s| {
            let options = SpectrumOptions {
                method: Method::Krylov,
                ..SpectrumOptions::new(50)
            };
            let all = shapes(ORDER, &Passes { bytes, column_s }, &options);
            let at = |wanted| {
                all.iter()
                    .position(|shape| (shape.block, shape.in_memory) == wanted)
            };
            at((BLOCK, false)) < at((4, true))
        };
        assert!(order(8 << 30, 0.015));
        assert!(!order(40 << 20, 0.0));
        assert!(!order(0, 0.0));
    }
}
