//! How wide blocks are, how long the basis grows, and where it lies: what fits the budget.

use std::cell::RefCell;
use std::collections::BTreeMap;

use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_engine::Plan;
use outcore_kernels as kernels;

use super::search::{Accuracy, Course, Found};
use super::tall::Layout;
use super::{Method, SearchFacts, SpectrumOptions};
use crate::operator::Operator;

/// Columns of a product, where memory is not short.
const BLOCK: usize = 16;

/// Blocks by which the basis is longer than twice what is wanted.
const BLOCKS_BEYOND: usize = 6;

/// Blocks of the basis where a block is wider than what is wanted.
const WIDE_BLOCKS: usize = 5;

/// Wide blocks have so many columns more than are wanted.
fn wide_block(count: usize) -> usize {
    count + (count / 10).max(8)
}

/// Columns of products that are made when the vectors are known.
const CHUNKS: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];

/// Tolerances from this one on are reached in few passes.
const LOOSE: f64 = 1e-4;

/// A search as it is going to be.
pub(super) struct Planned {
    pub(super) course: Course,
    /// Left singular vectors.
    pub(super) left: Option<Layout>,
    /// Columns of products for residuals and left singular vectors.
    pub(super) chunk: usize,
    /// What is held besides bases.
    blocks_bytes: u64,
    products_bytes: u64,
}

impl Planned {
    /// `left` is the number of rows of left singular vectors, and the operator that makes them.
    pub(super) fn new<O: Operator>(
        session: &Session,
        operator: &O,
        options: &SpectrumOptions,
        accuracy: Accuracy,
        left: Option<(usize, &dyn Operator)>,
    ) -> Result<Planned> {
        let [order, _] = operator.shape();
        let (split, count) = (MemorySplit::new(session), options.count);
        // An operator may have to plan its passes to know: asked once for each width.
        let known = RefCell::new(BTreeMap::new());
        let products_bytes = |columns: usize| -> u64 {
            let mut known = known.borrow_mut();
            *known
                .entry(columns)
                .or_insert_with(|| operator.held_bytes(columns))
        };
        // Of a block there are what is multiplied, its image, and a copy in panels.
        let held = |elements: usize, capacity: usize| -> u64 {
            let seen = 3 * 8 * capacity * capacity
                + kernels::eigh_scratch_bytes::<f64>(capacity, capacity);
            (3 * 8 * elements + seen) as u64
        };
        let both = order + left.map_or(0, |(rows, _)| rows);
        let left_layout = |taken: u64| {
            let (rows, _) = left?;
            let layout = Layout::in_memory(rows, count);
            let fits = split.leaves_room_for(taken + layout.bytes(), || 0);
            Some(if fits {
                layout
            } else {
                Layout::in_scratch(&split, rows, count)
            })
        };
        let mut least: Option<u64> = None;
        for (block, basis, in_memory) in shapes(order, operator, options) {
            let capacity = (basis + block).min(order);
            let (blocks, products) = (held(order * block, capacity), products_bytes(block));
            let layout = match in_memory {
                true => Layout::in_memory(order, capacity),
                false => Layout::in_scratch(&split.hold(blocks + products), order, capacity),
            };
            let taken = blocks + products + layout.bytes();
            least = Some(least.map_or(taken, |least| least.min(taken)));
            if !(split.can_hold(taken) && taken <= split.free())
                || in_memory && !split.leaves_room_for(taken, || 0)
            {
                continue;
            }
            let left_layout = left_layout(taken);
            let chunk_fits = |chunk: &usize| {
                let products = match left {
                    Some((_, operator)) => operator.held_bytes(*chunk),
                    None => products_bytes(*chunk),
                };
                let bases = layout.bytes() + left_layout.map_or(0, |layout| layout.bytes());
                split.leaves_room_for(held(both * *chunk, capacity) + products + bases, || 0)
            };
            let chunk = CHUNKS
                .into_iter()
                .find(|chunk| *chunk <= count.max(8) && chunk_fits(chunk));
            let chunk = chunk.unwrap_or(1).min(count);
            return Ok(Planned {
                course: Course {
                    block,
                    layout,
                    accuracy,
                    checks_symmetry: matches!(accuracy, Accuracy::Eigen(_)),
                },
                left: left_layout,
                chunk,
                blocks_bytes: held((order * block).max(both * chunk), capacity),
                products_bytes: products,
            });
        }
        Err(Error::OverBudget {
            what: format!("{count} pairs of {}, of order {order}", operator.name()),
            needed: least.unwrap_or(0),
            available: split.free(),
            budget: session.memory_bytes(),
        })
    }

    /// What is held besides bases and what products take.
    pub(super) fn held_bytes(&self) -> u64 {
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
        plan.hold(self.blocks_bytes + self.products_bytes + layout.bytes());
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

/// Widths of blocks, lengths of the basis, and whether it is in memory, best first.
fn shapes<O: Operator>(
    order: usize,
    operator: &O,
    options: &SpectrumOptions,
) -> Vec<(usize, usize, bool)> {
    let count = options.count;
    let narrow = |block: usize, beyond: usize| {
        let block = block.min(order);
        let least = count + 3 * block;
        (
            block,
            options
                .basis
                .unwrap_or(2 * count + beyond * block)
                .max(least),
        )
    };
    let wide = || {
        let block = wide_block(count).min(order);
        (
            block,
            options.basis.unwrap_or(WIDE_BLOCKS * block).max(3 * block),
        )
    };
    let all = match (options.block, options.method) {
        (Some(block), _) => vec![narrow(block, BLOCKS_BEYOND)],
        (None, Method::Randomized) => vec![wide()],
        (None, method) => {
            let narrow = [
                narrow(BLOCK, BLOCKS_BEYOND),
                narrow(8, BLOCKS_BEYOND),
                narrow(4, 3),
            ];
            let reads = operator.pass_bytes() > 0;
            let is_wide = method == Method::Auto && reads && options.tolerance >= LOOSE;
            is_wide.then(wide).into_iter().chain(narrow).collect()
        }
    };
    let shapes = |in_memory| {
        all.iter()
            .map(move |&(block, basis)| (block, basis, in_memory))
    };
    // Wide blocks are for a basis in memory, unless they are asked for.
    let in_scratch = shapes(false).filter(|(block, ..)| {
        options.method == Method::Randomized || options.block.is_some() || *block <= BLOCK
    });
    shapes(true).chain(in_scratch.collect::<Vec<_>>()).collect()
}
