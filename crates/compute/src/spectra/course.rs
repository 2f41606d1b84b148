//! What a search takes of the budget, and the best shape of it that fits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use outcore_core::{Error, MemorySplit, RealType, Result, Session, Stage};
use outcore_engine::{Plan, Reservation};
use outcore_kernels as kernels;

use super::search::{Accuracy, Course, Found, checked_steps, checks_max};
use super::shapes::{Shape, passes_of_corpus, shapes, stored};
use super::tall::{SUMS, TallLayout};
use super::{SearchFacts, SpectrumOptions};
use crate::operator::Operator;

/// The square matrices that make left vectors orthonormal, at most.
const FACTORS: u64 = 6;

/// Left vectors that were not asked for are made row by row where they take more: blocks of their columns move through memory
/// several times.
const UNWANTED_BYTES: u64 = 64 << 20;

/// Columns of products that are made when the vectors are known.
const CHUNKS: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];

/// A search as it is going to be.
pub(super) struct Planned {
    pub(super) course: Course,
    /// What the search holds besides bases.
    pub(super) blocks_bytes: u64,
    /// What the thread keeps of memory that it has found eigenvectors in.
    pub(super) kept_bytes: u64,
    /// Left singular vectors.
    pub(super) left: Option<TallLayout>,
    /// Products for residuals and left singular vectors; none where these have room row by row only.
    pub(super) by_columns: Option<Chunks>,
    /// The same where left vectors go to scratch row by row, if more are made at once then.
    pub(super) by_rows: Option<Chunks>,
    /// Of products with the vectors that are given.
    pub(super) passes_before: usize,
    needed_bytes: u64,
}

/// What the caller gave a search to begin with.
#[derive(Clone, Copy, Default)]
pub(super) struct Given {
    /// And what is made of it.
    pub(super) bytes: u64,
    /// Vectors whose images a search begins with.
    pub(super) imaged: usize,
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
    /// And what the thread keeps.
    bases: u64,
    blocks: u64,
    /// Of operations, with one task at a time.
    passing: u64,
}

impl Need {
    fn held(&self) -> u64 {
        self.bases + self.blocks
    }

    fn bytes(&self) -> u64 {
        self.held() + self.passing
    }

    /// Whether it fits; at ease, with room for more than one task.
    fn fits(&self, split: &MemorySplit, at_ease: bool) -> bool {
        match at_ease {
            true => split.leaves_room_for(self.held(), || self.passing),
            false => split.can_hold(self.bytes()),
        }
    }
}

/// A search while its basis grows.
#[derive(Clone, Copy)]
struct Growing {
    /// Columns of a product.
    block: usize,
    layout: TallLayout,
    need: Need,
}

/// What a search takes, by how it goes.
struct Needs<'a> {
    split: &'a MemorySplit,
    accuracy: Accuracy,
    order: usize,
    count: usize,
    /// Of bases.
    real: RealType,
    budget_bytes: u64,
    given: Given,
    /// Of a product with this number of columns.
    products: &'a dyn Fn(usize) -> u64,
    /// Rows of left singular vectors, and the same of products that make them.
    left: Option<(usize, &'a dyn Fn(usize) -> u64)>,
    /// The same of products that make them row by row, if there are such.
    by_rows: Option<&'a dyn Fn(usize) -> u64>,
    /// Whether left vectors may lie in memory.
    may_keep_left: bool,
}

impl Needs<'_> {
    fn kept_bytes(&self, layout: TallLayout) -> u64 {
        kernels::thread_bytes::<f64>(layout.capacity.max(self.count)) as u64
    }

    /// A basis of this shape, or what it takes where that is too much.
    fn growing(&self, shape: Shape) -> std::result::Result<Growing, u64> {
        let Shape { block, basis, .. } = shape;
        let capacity = (basis + block).min(self.order);
        let layout = match shape.in_memory {
            true => TallLayout::in_memory(self.real, self.order, capacity),
            false => TallLayout::in_scratch(self.real, self.order, capacity),
        };
        let need = Need {
            bases: layout.held_bytes(layout.capacity) + self.kept_bytes(layout),
            blocks: blocks_bytes(self.order, block)
                + small_bytes(layout.capacity, block)
                + self.given.bytes,
            passing: (self.products)(block)
                .max(layout.passing_bytes(block))
                .max(ritz_bytes(layout.capacity))
                .max(self.imaging_bytes(block)),
        };
        match need.fits(self.split, shape.at_ease) {
            true => Ok(Growing {
                block,
                layout,
                need,
            }),
            false => Err(need.bytes()),
        }
    }

    /// Of products with the vectors that are given, before there is a basis.
    fn imaging_bytes(&self, block: usize) -> u64 {
        let columns = block.min(self.given.imaged);
        let products = self.left.filter(|_| columns > 0);
        products.map_or(0, |(_, products)| products(columns))
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
        let held = bases.iter().map(|layout| layout.held_bytes(count));
        let [small, found] = match self.left {
            // A factor and its singular vectors.
            Some(_) => [
                small_bytes(count, chunk),
                svd_bytes(count, 2 * square_bytes(count)),
            ],
            None => [0, 0],
        };
        let blocks = blocks_bytes(self.order + rows, chunk) + small;
        Need {
            bases: held.sum::<u64>() + self.kept_bytes(layout),
            blocks,
            passing: passing
                .fold(products, u64::max)
                .max(self.finish_bytes(&bases).saturating_sub(blocks))
                .max(found),
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
        // While A V is made, and residuals, of which left vectors are still to be multiplied; and what
        // makes these orthonormal.
        let products_blocks = blocks_bytes(self.order, chunk) + square_bytes(all);
        let blocks = products_blocks.max(FACTORS * square_bytes(all));
        let finish = self.finish_bytes(&[layout, left]) + square_bytes(all);
        Some(Need {
            bases: layout.held_bytes(count) + left.held_bytes(count) + self.kept_bytes(layout),
            blocks,
            passing: passing
                .into_iter()
                .fold(products, u64::max)
                .max(finish.saturating_sub(blocks))
                .max(svd_bytes(count, blocks - square_bytes(count))),
        })
    }

    /// The left vectors of a product where they go to scratch row by row, more than `by_columns` unless they are better made so: the
    /// largest number that leaves a quarter of the budget, or else the largest that fits.
    fn widest_by_rows(
        &self,
        layout: TallLayout,
        left: TallLayout,
        by_columns: Option<usize>,
    ) -> Option<(usize, Need)> {
        let is_only = by_columns.is_none();
        // The widest for each number of passes, as long as these are few.
        let few = (1..=CHUNKS.len()).map(|passes| self.count.div_ceil(passes));
        let least = self.count.div_ceil(CHUNKS.len());
        let many = CHUNKS.into_iter().filter(|&chunk| chunk < least);
        let all = few.filter(|&chunk| chunk <= CHUNKS[0]).chain(many);
        let all = all
            .filter(|&chunk| Some(chunk) > by_columns || !self.may_keep_left)
            .filter_map(|chunk| Some((chunk, self.end_by_rows(layout, left, chunk, is_only)?)))
            .filter(|(_, end)| end.fits(self.split, !is_only));
        let all: Vec<_> = all.collect();
        let modest = all
            .iter()
            .find(|(_, end)| self.split.leaves_a_quarter(end.bytes()));
        modest.or(all.first()).copied()
    }

    /// Where left vectors may lie, how many are made at once, and whether there must be room for
    /// more than one task; best first.
    fn ends(&self) -> impl Iterator<Item = (Option<TallLayout>, usize, bool)> + use<> {
        let (count, real, may_keep_left) = (self.count, self.real, self.may_keep_left);
        let [in_memory, in_scratch] = [TallLayout::in_memory, TallLayout::in_scratch]
            .map(|layout| self.left.map(|(rows, _)| layout(real, rows, count)));
        let chunks = move |least: usize| {
            CHUNKS
                .into_iter()
                .map(move |chunk| chunk.min(count))
                .filter(move |&chunk| least.min(count) <= chunk)
        };
        let in_memory = chunks(8)
            .filter(move |_| may_keep_left)
            .map(move |chunk| (in_memory, chunk, true));
        let at_ease = chunks(8).map(move |chunk| (in_scratch, chunk, true));
        let just = chunks(1).map(move |chunk| (in_scratch, chunk, false));
        in_memory.chain(at_ease).chain(just)
    }

    /// The search with the best end that fits, or what the least of them takes.
    fn with_an_end(&self, growing: Growing) -> std::result::Result<Planned, u64> {
        let mut least = u64::MAX;
        for (left, chunk, at_ease) in self.ends() {
            let end = self.end(growing.layout, left, chunk);
            if end.fits(self.split, at_ease) {
                let in_scratch = left.filter(|left| !left.in_memory);
                let by_rows = in_scratch
                    .and_then(|left| self.widest_by_rows(growing.layout, left, Some(chunk)));
                return Ok(self.planned(growing, left, Some((chunk, end)), by_rows));
            }
            least = least.min(growing.need.bytes().max(end.bytes()));
        }
        Err(least)
    }

    /// The search with left vectors that are made row by row only, where these fit.
    fn only_by_rows(&self, growing: Growing) -> Option<Planned> {
        let (rows, _) = self.left?;
        let left = TallLayout::in_scratch(self.real, rows, self.count);
        let by_rows = self.widest_by_rows(growing.layout, left, None)?;
        Some(self.planned(growing, Some(left), None, Some(by_rows)))
    }

    /// Panels take what all ends leave of the budget.
    fn planned(
        &self,
        growing: Growing,
        left: Option<TallLayout>,
        by_columns: Option<(usize, Need)>,
        by_rows: Option<(usize, Need)>,
    ) -> Planned {
        let Growing {
            block,
            layout,
            need,
        } = growing;
        let ends = || by_columns.into_iter().chain(by_rows).map(|(_, end)| end);
        let ends_held = ends().fold(0, |held, end| end.held().max(held));
        let widened = |layout: TallLayout, width, held| {
            let split = self.split.hold(held + layout.passing_bytes(width));
            layout.widened(&split)
        };
        let chunks = |(columns, end): (usize, Need)| Chunks {
            columns,
            blocks_bytes: end.blocks,
        };
        let left_columns = by_columns.map_or(self.count, |(columns, _)| columns);
        Planned {
            course: Course {
                block,
                layout: widened(layout, block, need.held().max(ends_held)),
                accuracy: self.accuracy,
            },
            blocks_bytes: need.blocks,
            kept_bytes: self.kept_bytes(layout),
            left: left.map(|left| widened(left, left_columns, ends_held)),
            by_columns: by_columns.map(chunks),
            by_rows: by_rows.map(chunks),
            passes_before: self.given.imaged.div_ceil(block),
            needed_bytes: ends().fold(need.bytes(), |needed, end| end.bytes().max(needed)),
        }
    }
}

/// Of a block there are what is multiplied and its image, or that and a copy in panels.
fn blocks_bytes(rows: usize, columns: usize) -> u64 {
    (2 * 8 * rows * columns) as u64
}

/// A square matrix of as many columns.
pub(super) fn square_bytes(columns: usize) -> u64 {
    (8 * columns * columns) as u64
}

/// The operator as a basis sees it, its eigenvectors, and the same as they are multiplied; and what a
/// block is along the basis.
fn small_bytes(capacity: usize, block: usize) -> u64 {
    let sums = 8 * SUMS * (capacity + block) * block;
    3 * square_bytes(capacity) + sums as u64
}

/// What eigenvectors of a basis of `columns` columns take while they are found, beyond two of the square
/// matrices that are held; where nothing passes by.
pub(super) fn ritz_bytes(columns: usize) -> u64 {
    let found = kernels::eigh_scratch_bytes::<f64>(columns, columns);
    let passing = (found - kernels::thread_bytes::<f64>(columns)) as u64;
    passing.saturating_sub(2 * square_bytes(columns))
}

/// The same of singular vectors of a factor, beyond bytes that are held for them.
pub(super) fn svd_bytes(count: usize, held: u64) -> u64 {
    let found = kernels::svd_scratch_bytes::<f64>(count);
    let passing = (found - kernels::thread_bytes::<f64>(count)) as u64;
    passing.saturating_sub(held)
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
    /// `left` is the number of rows of left singular vectors, the operator that makes them, and whether they are wanted.
    ///
    /// The budget decides, not the number of threads, nor what others hold of it.
    pub(super) fn new<O: Operator>(
        session: &Session,
        operator: &O,
        options: &SpectrumOptions,
        accuracy: Accuracy,
        left: Option<(usize, &dyn Operator, bool)>,
        given: Given,
    ) -> Result<Planned> {
        let [order, _] = operator.shape();
        let (split, count) = (MemorySplit::new(session), options.count);
        let products = known(|columns| operator.held_bytes(columns));
        let left_products =
            known(|columns| left.map_or(0, |(_, left, _)| left.held_bytes(columns)));
        let by_rows = left.and_then(|(_, left, _)| left.by_rows());
        let rows_held = known(|columns| by_rows.map_or(0, |rows| rows.rows_held_bytes(columns)));
        let real = stored(operator);
        let needs = Needs {
            split: &split,
            accuracy,
            order,
            count,
            real,
            budget_bytes: session.memory_bytes(),
            given,
            products: &products,
            left: left.map(|(rows, ..)| (rows, &left_products as &dyn Fn(usize) -> u64)),
            by_rows: by_rows.map(|_| &rows_held as &dyn Fn(usize) -> u64),
            may_keep_left: left.is_none_or(|(rows, _, is_wanted)| {
                is_wanted || by_rows.is_none() || (8 * rows * count) as u64 <= UNWANTED_BYTES
            }),
        };
        let refused = |needed| Error::OverBudget {
            what: format!("{count} pairs of {}, of order {order}", operator.name()),
            needed,
            available: split.free(),
            budget: session.memory_bytes(),
        };
        let granted = |planned: Planned| match planned.needed_bytes <= split.free() {
            true => Ok(planned),
            false => Err(refused(planned.needed_bytes)),
        };
        let (mut least, mut only_by_rows) = (u64::MAX, None);
        for shape in shapes(order, operator, options, accuracy) {
            let found = needs.growing(shape).and_then(|growing| {
                let found = needs.with_an_end(growing);
                if found.is_err() && only_by_rows.is_none() {
                    only_by_rows = needs.only_by_rows(growing);
                }
                found
            });
            match found {
                Ok(planned) => return granted(planned),
                Err(bytes) => least = least.min(bytes),
            }
        }
        only_by_rows.map_or_else(|| Err(refused(enough(least))), granted)
    }

    /// What `explain` says. For each vector that is found there are `products_after` passes of `own_bytes` more.
    pub(super) fn note(
        &self,
        plan: &mut Plan,
        operator: &impl Operator,
        options: &SpectrumOptions,
        (products_after, own_bytes): (usize, u64),
    ) {
        let Course {
            block,
            layout,
            accuracy,
        } = self.course;
        plan.hold(self.needed_bytes);
        let passes_after = |chunks: Option<Chunks>| {
            let of = |chunks: Chunks| products_after * options.count.div_ceil(chunks.columns);
            chunks.map_or(0, of)
        };
        let after = passes_after(self.by_columns) + passes_after(self.by_rows);
        let widest = self.by_rows.or(self.by_columns);
        let growing = options.count.div_ceil(block);
        let least = self.passes_before + growing + passes_after(widest);
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
        let checked = match options.check {
            true => checked_steps(layout.rows, block, accuracy),
            false => 0,
        };
        let expected = passes_of_corpus(options, block, checked) + self.passes_before;
        plan.note("passes of a corpus", expected + passes_after(widest));
        // A check whose block brings pairs goes on until the basis is full.
        let checks = match options.check {
            true => checks_max(options, block) * cycle.max(checked),
            false => 0,
        };
        let most = self.passes_before + cycle * (options.restarts_max + 1) + checks + after;
        plan.note("passes at most", most);
        plan.note("bytes a pass", operator.pass_bytes());
        plan.bound(own_bytes);
        plan.reads_later(
            growing as u64 * operator.pass_bytes()
                + (self.passes_before + passes_after(widest)) as u64 * own_bytes,
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
            may_miss: found.may_miss,
            epsilon: operator.epsilon(),
            largest: found.largest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spectra::shapes::testing::Passes;
    use crate::spectra::testing::session;

    #[test]
    fn a_basis_of_thousands_is_as_long_as_memory_has_room_for() {
        let passes = Passes {
            bytes: 400 << 20,
            column_s: 0.015,
        };
        let options = SpectrumOptions {
            tolerance: 1e-4,
            ..SpectrumOptions::new(2000)
        };
        let planned = |memory_bytes| {
            let (_folder, session) = session(memory_bytes, 2);
            Planned::new(
                &session,
                &passes,
                &options,
                Accuracy::Eigen(1e-4),
                None,
                Given::default(),
            )
        };
        let courses = [384, 512, 1024].map(|mib: u64| {
            let planned = planned(mib << 20).expect("it fits");
            assert!(planned.needed_bytes <= mib << 20);
            planned.course
        });
        let columns = courses.map(|course| (course.block, course.layout.capacity));
        let in_scratch = courses.iter().all(|course| !course.layout.in_memory);
        assert!(
            in_scratch && columns.iter().all(|(block, _)| *block >= 32),
            "{columns:?}"
        );
        assert!(
            columns.is_sorted_by_key(|(_, capacity)| *capacity),
            "{columns:?}"
        );
        assert!(columns[0].1 > 2500 && columns[2].1 > 4000, "{columns:?}");
    }

    #[test]
    fn what_others_hold_of_a_budget_changes_nothing_or_is_told() {
        let passes = Passes {
            bytes: 400 << 20,
            column_s: 0.015,
        };
        let options = SpectrumOptions::new(50);
        let (_folder, session) = session(256 << 20, 2);
        let needed = || {
            let accuracy = Accuracy::Eigen(1e-6);
            let planned = Planned::new(
                &session,
                &passes,
                &options,
                accuracy,
                None,
                Given::default(),
            );
            planned.map(|planned| planned.needed_bytes)
        };
        let alone = needed().expect("it fits");
        let mut held = session
            .engine()
            .reserve("what others hold", (256 << 20) - alone + 1)
            .expect("it is free");
        assert!(matches!(needed(), Err(Error::OverBudget { needed, .. }) if needed == alone));
        held.shrink((256 << 20) - alone);
        assert_eq!(needed().expect("it fits"), alone);
    }
}
