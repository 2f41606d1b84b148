//! How wide blocks are, how long the basis grows, and where it lies: what fits the budget.

use std::cell::RefCell;
use std::collections::BTreeMap;

use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_engine::Plan;
use outcore_kernels as kernels;

use super::cost::{Problem, Shape};
use super::search::{Accuracy, Course, Found};
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

/// Columns of products that are made when the vectors are known.
const CHUNKS: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];

/// A search as it is going to be.
pub(super) struct Planned {
    pub(super) course: Course,
    /// Left singular vectors.
    pub(super) left: Option<TallLayout>,
    /// Columns of products for residuals and left singular vectors.
    pub(super) chunk: usize,
    /// What is held besides bases.
    blocks_bytes: u64,
    needed_bytes: u64,
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
    budget_bytes: u64,
    /// What the caller gave.
    given_bytes: u64,
    /// Of a product with this number of columns.
    products: &'a dyn Fn(usize) -> u64,
    /// Rows of left singular vectors, and the same of products that make them.
    left: Option<(usize, &'a dyn Fn(usize) -> u64)>,
}

impl Needs<'_> {
    /// While the basis grows.
    fn search(&self, layout: TallLayout, block: usize) -> Need {
        Need {
            bases: layout.held_bytes(layout.capacity),
            blocks: blocks_bytes(self.order, block)
                + small_bytes(layout.capacity, block)
                + self.given_bytes,
            passing: (self.products)(block).max(layout.passing_bytes(block)),
        }
    }

    /// When the basis has grown: for residuals, left vectors, and what both become.
    fn end(&self, layout: TallLayout, left: Option<TallLayout>, chunk: usize) -> Need {
        let count = self.count;
        let (rows, products) = match self.left {
            Some((rows, products)) => (rows, products(chunk)),
            None => (0, (self.products)(chunk)),
        };
        let bases: Vec<TallLayout> = std::iter::once(layout).chain(left).collect();
        let sum = |of: &dyn Fn(&TallLayout) -> u64| bases.iter().map(of).sum::<u64>();
        let passing = bases.iter().map(|layout| layout.passing_bytes(chunk));
        let finish = sum(&|layout| layout.finish_bytes(count, self.budget_bytes));
        Need {
            bases: sum(&|layout| layout.held_bytes(count)),
            blocks: blocks_bytes(self.order + rows, chunk) + small_bytes(count, chunk),
            passing: passing.fold(products, u64::max).max(finish),
        }
    }

    /// Where left vectors may lie, how many are made at once, and whether there must be room for
    /// more than one task; best first.
    fn ends(&self) -> impl Iterator<Item = (Option<TallLayout>, usize, bool)> + use<> {
        let count = self.count;
        let [in_memory, in_scratch] = [TallLayout::in_memory, TallLayout::in_scratch]
            .map(|layout| self.left.map(|(rows, _)| layout(rows, count)));
        let chunks = move |least: usize| {
            CHUNKS
                .into_iter()
                .filter(move |&chunk| least.min(count) <= chunk && chunk <= count.max(8))
                .map(move |chunk| chunk.min(count))
        };
        let in_memory = chunks(8).map(move |chunk| (in_memory, chunk, true));
        let at_ease = chunks(8).map(move |chunk| (in_scratch, chunk, true));
        let just = chunks(1).map(move |chunk| (in_scratch, chunk, false));
        in_memory.chain(at_ease).chain(just)
    }
}

/// Of a block there are what is multiplied, its image, and a copy in panels.
fn blocks_bytes(rows: usize, columns: usize) -> u64 {
    (3 * 8 * rows * columns) as u64
}

/// The operator as a basis sees it, its eigenpairs, and what a block is along the basis.
fn small_bytes(capacity: usize, block: usize) -> u64 {
    let seen = 3 * 8 * capacity * capacity + kernels::eigh_scratch_bytes::<f64>(capacity, capacity);
    (seen + 8 * SUMS * (capacity + block) * block) as u64
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
        let needs = Needs {
            order,
            count,
            budget_bytes: session.memory_bytes(),
            given_bytes: [&options.start, &options.known]
                .map(|given| given.as_ref().map_or(0, |given| 8 * given.len() as u64))
                .iter()
                .sum(),
            products: &products,
            left: left.map(|(rows, _)| (rows, &left_products as &dyn Fn(usize) -> u64)),
        };
        let refused = |needed| Error::OverBudget {
            what: format!("{count} pairs of {}, of order {order}", operator.name()),
            needed,
            available: split.free(),
            budget: session.memory_bytes(),
        };
        let mut least = u64::MAX;
        for shape in shapes(order, operator, options) {
            let Shape {
                block, in_memory, ..
            } = shape;
            let capacity = shape.capacity(order);
            let layout = match in_memory {
                true => TallLayout::in_memory(order, capacity),
                false => TallLayout::in_scratch(order, capacity),
            };
            let search = needs.search(layout, block);
            if !search.fits(&split, in_memory) {
                least = least.min(search.bytes());
                continue;
            }
            let mut least_end = u64::MAX;
            for (left, chunk, at_ease) in needs.ends() {
                let own = needs.end(layout, left, chunk);
                // Blocks are held from the beginning.
                let blocks = own.blocks.max(search.blocks);
                let [search, end] = [search, own].map(|need| Need { blocks, ..need });
                let needed = search.bytes().max(end.bytes());
                if !(search.fits(&split, in_memory) && end.fits(&split, at_ease)) {
                    least_end = least_end.min(needed);
                    continue;
                }
                if needed > split.free() {
                    return Err(refused(needed));
                }
                let widened = |layout: TallLayout, width, bases| {
                    layout.widened(&split.hold(bases + blocks + layout.passing_bytes(width)))
                };
                return Ok(Planned {
                    course: Course {
                        block,
                        layout: widened(layout, block, search.bases),
                        accuracy,
                        checks_symmetry: matches!(accuracy, Accuracy::Eigen(_)),
                    },
                    left: left.map(|layout| widened(layout, chunk, end.bases)),
                    chunk,
                    blocks_bytes: blocks,
                    needed_bytes: needed,
                });
            }
            least = least.min(least_end);
        }
        Err(refused(enough(least)))
    }

    /// What is held besides bases.
    pub(super) fn blocks_bytes(&self) -> u64 {
        self.blocks_bytes
    }

    /// What `explain` says.
    pub(super) fn note(
        &self,
        plan: &mut Plan,
        operator: &impl Operator,
        options: &SpectrumOptions,
        products_after: usize,
    ) {
        let Course { block, layout, .. } = self.course;
        plan.hold(self.needed_bytes);
        let after = products_after * options.count.div_ceil(self.chunk.max(1));
        let least = options.count.div_ceil(block) + after;
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
        if options.method == Method::Auto && options.block.is_none() {
            plan.note("method", reason(operator, options, &self.course));
        }
        plan.note("passes at least", least);
        plan.note("passes at most", cycle * (options.restarts_max + 1) + after);
        plan.note("bytes a pass", operator.pass_bytes());
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

/// A block of so many columns, and a basis in memory, of what the caller asked for or this; at least
/// three blocks longer than `least`.
fn shape(
    order: usize,
    options: &SpectrumOptions,
    block: usize,
    basis: usize,
    least: usize,
) -> Shape {
    let block = block.min(order);
    Shape {
        block,
        basis: options.basis.unwrap_or(basis).max(least + 3 * block),
        in_memory: true,
    }
}

fn narrow(order: usize, options: &SpectrumOptions, block: usize, beyond: usize) -> Shape {
    let count = options.count;
    shape(order, options, block, 2 * count + beyond * block, count)
}

/// Where memory is short of more: more restarts.
fn short(order: usize, options: &SpectrumOptions, block: usize) -> Shape {
    let count = options.count;
    shape(order, options, block, count + 6 * block, count)
}

fn wide(order: usize, options: &SpectrumOptions) -> Shape {
    let block = wide_block(options.count).min(order);
    shape(order, options, block, WIDE_BLOCKS * block, 0)
}

/// Shapes of a search, best first.
fn shapes<O: Operator>(order: usize, operator: &O, options: &SpectrumOptions) -> Vec<Shape> {
    let narrow = |block, beyond| narrow(order, options, block, beyond);
    let short = |block| short(order, options, block);
    let by_place = |shapes: Vec<Shape>| {
        let in_scratch: Vec<Shape> = shapes.iter().map(|shape| shape.in_scratch()).collect();
        [shapes, in_scratch].concat()
    };
    if let Some(block) = options.block {
        let all = [vec![narrow(block, BLOCKS_BEYOND)], vec![short(block)]];
        return all.map(by_place).concat();
    }
    let wide = wide(order, options);
    if options.method == Method::Randomized {
        return by_place(vec![wide]);
    }
    let mut all = vec![
        narrow(BLOCK, BLOCKS_BEYOND),
        narrow(8, BLOCKS_BEYOND),
        narrow(4, 3),
    ];
    if options.method == Method::Auto {
        all.push(wide);
    }
    let mut all = by_place(all);
    let problem = Problem::new(operator, options.count, options.tolerance);
    all.sort_by(|&a, &b| problem.seconds(a).total_cmp(&problem.seconds(b)));
    if options.method == Method::Auto && options.known.is_some() {
        // Vectors that are known save passes where a block has room for them.
        all.insert(0, wide);
    }
    all.extend(by_place(vec![short(8), short(4), short(2), short(1)]));
    all
}

/// What was chosen and what it was held against.
fn reason(operator: &impl Operator, options: &SpectrumOptions, course: &Course) -> String {
    let TallLayout {
        rows,
        capacity,
        in_memory,
        ..
    } = course.layout;
    let problem = Problem::new(operator, options.count, options.tolerance);
    let own = Shape {
        block: course.block,
        basis: capacity - course.block.min(capacity),
        in_memory,
    };
    let wide = wide(rows, options);
    let is_wide = (own.block, capacity) == (wide.block, wide.capacity(rows));
    let (name, other, others) = match is_wide {
        true => (
            "randomized",
            "krylov",
            narrow(rows, options, BLOCK, BLOCKS_BEYOND),
        ),
        false => ("krylov", "randomized", wide),
    };
    let [own, others] = [own, others].map(|shape| problem.told(shape));
    format!("{name}: {own}; {other}: {others}")
}

#[cfg(test)]
mod tests {
    use outcore_core::Stage;
    use outcore_kernels::{MatMut, MatRef};

    use super::*;

    const ORDER: usize = 80_000;

    /// A matrix that is known by what a pass over it takes.
    struct Passes {
        bytes: u64,
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

        fn flops(&self) -> f64 {
            2e8
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

    fn best(bytes: u64, options: &SpectrumOptions) -> Shape {
        shapes(ORDER, &Passes { bytes }, options)[0]
    }

    #[test]
    fn blocks_are_wide_where_passes_are_dear_and_the_caller_leaves_it_open() {
        let options = SpectrumOptions {
            tolerance: 1e-4,
            ..SpectrumOptions::new(100)
        };
        let with = |method| SpectrumOptions {
            method,
            ..options.clone()
        };
        assert!(best(400 << 20, &options).block <= BLOCK);
        assert_eq!(best(400 << 30, &options).block, wide_block(100));
        assert!(best(400 << 30, &with(Method::Krylov)).block <= BLOCK);
        assert_eq!(best(0, &with(Method::Randomized)).block, wide_block(100));
        let given = SpectrumOptions {
            block: Some(7),
            ..options.clone()
        };
        assert_eq!(best(400 << 30, &given).block, 7);
    }

    #[test]
    fn what_was_chosen_is_told_beside_what_it_was_held_against() {
        let options = SpectrumOptions::new(100);
        let course = |shape: Shape| Course {
            block: shape.block,
            layout: Layout::in_memory(ORDER, shape.capacity(ORDER)),
            accuracy: Accuracy::Eigen(options.tolerance),
            checks_symmetry: true,
        };
        for (bytes, name, other) in [
            (400 << 20, "krylov: some", "; randomized: some"),
            (400 << 30, "randomized: some", "; krylov: some"),
        ] {
            let course = course(best(bytes, &options));
            let told = reason(&Passes { bytes }, &options, &course);
            assert!(told.starts_with(name) && told.contains(other), "{told}");
        }
    }
}
