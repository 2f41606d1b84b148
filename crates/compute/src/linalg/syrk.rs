//! C = alpha A A^T + beta C: half the arithmetic of a product, and less than half its reads.
//!
//! Only blocks on and below the diagonal are computed. The lower triangle is cut into super tiles
//! that stay in memory while layers of A pass by; a super tile reads each row of A that it touches
//! once, whichever side of the product it is on. Bands of whole rows move fewest bytes while there
//! are few, squares when there are many; the bound is n^2 k / sqrt(2 M) elements (Beaumont,
//! Eyraud-Dubois, Verite, Langou, SPAA 2022, arXiv:2202.10217).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use outcore_core::{
    DType, Error, Job, MemorySplit, Order, PLAN_THREADS, Result, Segments, Session, with_real,
};
use outcore_engine::{Plan, Task, go_on};
use outcore_kernels::{Blas, Real, gemm_scratch_bytes, mirror_lower, syrk_flops, transpose_into};
use outcore_matrix::{Array, Operand, Output, Tile};

use super::gemm::{product_task, syrk_in_calls};
use super::repack::{Ahead, Blocks, Repack};
use super::tiling::{CutCost, HARDLY_LONGER, WRITE_REQUESTS, layer_of};

/// Scalars of a symmetric product, and where it goes.
#[derive(Clone)]
pub struct Syrk {
    /// Factor of A A^T.
    pub alpha: f64,
    /// Factor of what is in `out`; 0 to overwrite it. Only the lower triangle of `out` is read.
    pub beta: f64,
    /// Where C goes.
    pub out: Output,
    /// Fill the upper triangle too; else it is left as it is (zero in a new matrix).
    pub full: bool,
}

impl Default for Syrk {
    fn default() -> Syrk {
        Syrk {
            alpha: 1.0,
            beta: 0.0,
            out: Output::Scratch,
            full: true,
        }
    }
}

/// C = alpha A A^T + beta C; with `a.t()`, A^T A.
///
/// Shapes: A is n x k, C is n x n. Cost: n(n + 1)k flops; bytes near the bound above, and C.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Syrk, syrk};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let y = syrk(&session, x.t().into(), Syrk { full: true, ..Syrk::default() })?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [35.0, 44.0, 44.0, 56.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`gemm`](super::gemm()); [`Error::Shape`] when `out` is not square.
pub fn syrk(session: &Session, a: Operand, options: Syrk) -> Result<Job<Array>> {
    let real = a.real()?;
    let dtype = DType::from(real);
    let Syrk {
        alpha,
        beta,
        out,
        full,
    } = options;
    match &out {
        Output::InPlace(_) => out.check_distinct(&[&a])?,
        _ if beta != 0.0 => {
            return Err(Error::value("syrk: beta needs a matrix in `out` to add to"));
        }
        _ => {}
    }
    let mut plan = Plan::new("syrk");
    let target = out.target(session, dtype, &[a.rows(), a.rows()], Order::Row, &mut plan)?;
    let c = Blocks::in_place(
        plan.extent(&target.extent),
        target.array.layout(),
        dtype.bytes(),
    );
    with_real!(real, T => {
        let steps = Symmetric { session, a: &a, alpha: T::of(alpha), beta: T::of(beta), full }.steps(&mut plan, c)?;
        target.job_in_segments(session, plan, move |segments| steps.fill(segments))
    })
}

struct Symmetric<'a, T> {
    session: &'a Session,
    a: &'a Operand,
    alpha: T,
    beta: T,
    full: bool,
}

/// Blocks of the lower triangle, as (row, column) of the grid.
type SuperTile = Vec<(u64, u64)>;

struct Cut {
    block: u64,
    depth: u64,
    /// And whether layers pass by backwards, as they do for every second one.
    super_tiles: Vec<(SuperTile, bool)>,
    /// Rows of A that are read, all super tiles together.
    rows_read: u64,
}

impl Cut {
    /// The first super tile that needs a row of blocks of A.
    fn first_tile(&self, index: u64) -> u64 {
        let needs = |(tile, _): &(SuperTile, bool)| {
            tile.iter().any(|&(row, col)| row == index || col == index)
        };
        self.super_tiles.iter().position(needs).unwrap_or(0) as u64
    }

    /// Parts super tiles so that each fits `room` bytes, as far as single blocks do. Blocks, layers
    /// and their order stay as they are, and with them the order of sums.
    fn shrink(&mut self, element: u64, room: u64) {
        let held = |blocks: u64, touched: u64| {
            held_bytes(blocks, touched, self.block, self.depth, element)
        };
        let mut parts: Vec<(SuperTile, bool)> = Vec::new();
        for (tile, backwards) in self.super_tiles.drain(..) {
            let (mut part, mut touched) = (SuperTile::new(), BTreeSet::new());
            for block in tile {
                let with = touched
                    .iter()
                    .copied()
                    .chain([block.0, block.1])
                    .collect::<BTreeSet<u64>>();
                if !part.is_empty() && held(part.len() as u64 + 1, with.len() as u64) > room {
                    parts.push((std::mem::take(&mut part), backwards));
                    touched = BTreeSet::from([block.0, block.1]);
                } else {
                    touched = with;
                }
                part.push(block);
            }
            parts.push((part, backwards));
        }
        self.super_tiles = parts;
    }
}

impl<T: Real> Symmetric<'_, T> {
    fn steps(&self, plan: &mut Plan, c: Blocks) -> Result<Steps<T>> {
        let (n, k, element) = (self.a.rows(), self.a.cols(), size_of::<T>() as u64);
        let split = MemorySplit::new(self.session);
        let free = split.of_free();
        let blas = self.session.blas();
        let scratch = |block: u64, depth: u64| {
            gemm_scratch_bytes::<T>(block as usize, block as usize, depth as usize, blas) as u64
        };
        let room = |split: MemorySplit| {
            move |block: u64, depth: u64| split.product_bytes(scratch(block, depth))
        };
        let mut cut_ = choose(n, k, element, room(split), room(split.half()));
        if free.left() < split.left() {
            cut_.shrink(element, room(free)(cut_.block, cut_.depth));
        }
        plan.bound(self.bound_bytes(split.left()));
        plan.note("super tiles", cut_.super_tiles.len());
        plan.note("block", format!("{0} x {0} x {1}", cut_.block, cut_.depth));
        let stored = self.a.layout().element;
        let mut a = Blocks::in_place(self.a.extent(plan), self.a.layout(), element);
        let short_runs = if self.a.layout().by_rows() {
            cut_.depth < k && cut_.depth * stored < 8192
        } else {
            cut_.block * stored < 8192
        };
        let layers = k.div_ceil(cut_.depth).max(1);
        let (mut repack, mut fills) = (None, Vec::new());
        if self.a.is_stored() && short_runs && cut_.rows_read > 3 * n {
            plan.note("repacked", "A");
            let share = split.copied_panel_bytes();
            let (blocks, filled) =
                Blocks::repacked(self.session, plan, a, cut_.block, cut_.depth, share)?;
            let step = |first: u64| match self.a.layout().by_rows() {
                true => cut_.first_tile(first / cut_.block) * layers,
                false => first / cut_.depth,
            };
            fills = filled
                .panels()
                .into_iter()
                .map(|panel| go_on().map(|()| (step(panel.start), panel)))
                .collect::<std::result::Result<_, _>>()?;
            (a, repack) = (blocks, Some(filled));
        }
        let (alpha, beta, full, blas) = (self.alpha, self.beta, self.full, blas.clone());
        Ok(Steps {
            cut: cut_,
            n,
            k,
            blocks: [a, c],
            repack,
            fills: Ahead::new(fills),
            alpha,
            beta,
            full,
            blas,
        })
    }

    fn bound_bytes(&self, budget: u64) -> u64 {
        let (n, k, element) = (
            self.a.rows() as f64,
            self.a.cols() as f64,
            size_of::<T>() as f64,
        );
        let result = if self.full {
            n * n
        } else {
            n * (n + 1.0) / 2.0
        };
        let compulsory = if self.a.is_stored() { n * k } else { 0.0 }
            + result
            + if self.beta != T::ZERO {
                n * (n + 1.0) / 2.0
            } else {
                0.0
            };
        let memory = budget as f64 / element;
        let streamed = if self.a.is_stored() && n * k + result > memory {
            n * n * k / (2.0 * memory).sqrt() + result
        } else {
            0.0
        };
        (compulsory.max(streamed) * element) as u64
    }
}

/// What a symmetric product does, in order: super tile after super tile, layer after layer.
struct Steps<T> {
    cut: Cut,
    n: u64,
    k: u64,
    /// Of A and C.
    blocks: [Blocks; 2],
    repack: Option<Repack>,
    /// Which panels of A are to be there before a step.
    fills: Ahead<Range<u64>>,
    alpha: T,
    beta: T,
    full: bool,
    blas: Blas,
}

impl<T: Real> Steps<T> {
    fn fill(&self, out: &mut Segments<'_>) -> Result<()> {
        let depth = self.cut.depth;
        let layers = self.k.div_ceil(depth).max(1);
        let mut fills = self.fills.clone();
        for (index, (tile, backwards)) in (0..).zip(&self.cut.super_tiles) {
            out.group()?;
            for layer in 0..layers {
                out.may_end()?;
                let repack = |panel| {
                    self.repack
                        .as_ref()
                        .expect("only what is repacked has panels")
                        .task::<T>(panel)
                };
                fills.of_step(out.plan(), index * layers + layer, repack);
                let depth = layer_of(self.k, depth, layer, *backwards);
                let beta = if layer == 0 { self.beta } else { T::ONE };
                self.layer(out.plan(), tile, depth, beta, layer + 1 == layers);
            }
        }
        Ok(())
    }

    /// The part of a super tile's product that comes from one layer of A; the last one fills the
    /// upper triangle, too.
    fn layer(&self, plan: &mut Plan, tile: &SuperTile, depth: Range<u64>, beta: T, last: bool) {
        let ([a, c], block) = (&self.blocks, self.cut.block);
        let range = |index: u64| index * block..((index + 1) * block).min(self.n);
        for &(row, col) in tile {
            let c_tile = c.tile(range(row), range(col));
            let a_tile = a.tile(range(row), depth.clone());
            plan.task(match row == col {
                true => self.diagonal_task(c_tile, a_tile, beta, last),
                false => {
                    let across = a.tile(range(col), depth.clone()).transposed();
                    product_task(
                        [c_tile, a_tile, across],
                        self.alpha,
                        beta,
                        self.blas.clone(),
                    )
                }
            });
            if self.full && row != col && last {
                plan.task(mirror_task::<T>(c_tile, c.tile(range(col), range(row))));
            }
        }
    }

    fn diagonal_task(&self, c: Tile, a: Tile, beta: T, last: bool) -> Task {
        let (alpha, blas, full) = (self.alpha, self.blas.clone(), self.full);
        let task = Task::new("syrk")
            .flops(syrk_flops(c.rows, a.cols))
            .held(gemm_scratch_bytes::<T>(c.rows, c.rows, a.cols, &blas));
        // Above the diagonal stands what was there before, or what the mirror puts there.
        let overwrites = beta == T::ZERO && full;
        let task = if overwrites {
            task.write(c.region)
        } else {
            task.update(c.region)
        };
        task.read(a.region).run(move |cx| {
            let [c_block, a_block] = &mut *cx.blocks else {
                unreachable!("two were declared")
            };
            let mut out = c.of_mut::<T>(c_block)?;
            syrk_in_calls(
                out.as_mut(),
                alpha,
                a.of::<T>(a_block)?,
                beta,
                &blas,
                || cx.cancelled.load(Ordering::Relaxed),
            )?;
            if full && last {
                mirror_lower(out)?;
            }
            Ok(())
        })
    }
}

/// The block above the diagonal, from the one below.
fn mirror_task<T: Real>(below: Tile, above: Tile) -> Task {
    Task::new("mirror")
        .read(below.region)
        .write(above.region)
        .run(move |cx| {
            let [below_block, above_block] = &mut *cx.blocks else {
                unreachable!("two were declared")
            };
            Ok(transpose_into(
                above.of_mut::<T>(above_block)?,
                below.of::<T>(below_block)?,
            )?)
        })
}

/// How the triangle is cut into super tiles.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Bands(u64),
    Squares(u64),
}

impl Shape {
    fn super_tiles(self, grid: u64) -> Vec<SuperTile> {
        match self {
            Shape::Bands(count) => bands(grid, count),
            Shape::Squares(side) => squares(grid, side),
        }
    }

    /// Of each super tile, or of the largest of its kind: how many there are, its blocks, and the
    /// rows of blocks of A it touches.
    fn sizes(self, grid: u64) -> Vec<(u64, u64, u64)> {
        match self {
            Shape::Bands(count) => {
                let bounds: Vec<u64> = (0..=count)
                    .map(|index| boundary(grid, count, index))
                    .collect();
                let triangle = |end: u64| end * (end + 1) / 2;
                bounds
                    .windows(2)
                    .map(|band| (1, triangle(band[1]) - triangle(band[0]), band[1]))
                    .filter(|size| size.1 > 0)
                    .collect()
            }
            Shape::Squares(side) => {
                let count = grid.div_ceil(side);
                let below = (count * count.saturating_sub(1) / 2, side * side, 2 * side);
                [(count, side * (side + 1) / 2, side), below]
                    .into_iter()
                    .filter(|size| size.0 > 0)
                    .collect()
            }
        }
    }
}

/// Bytes that a super tile of `blocks` blocks holds, which touches `touched` rows of blocks of A;
/// some are on their way.
fn held_bytes(blocks: u64, touched: u64, block: u64, depth: u64, element: u64) -> u64 {
    (blocks * block + (touched + 4) * depth) * block * element
}

/// Among the cuts that fit and take hardly longer than the fastest, the one that reads fewest rows
/// of A. Single blocks fit half of the memory, of which others may have the rest.
fn choose(
    n: u64,
    k: u64,
    element: u64,
    memory: impl Fn(u64, u64) -> u64,
    half: impl Fn(u64, u64) -> u64,
) -> Cut {
    let mut judged: Vec<(f64, u64, u64, Shape, u64)> = Vec::new();
    for block in [2048u64, 1024, 512, 256, 128, 64] {
        let block = block.min(n.max(1));
        let grid = n.div_ceil(block);
        for shape in (1..=8)
            .map(Shape::Bands)
            .chain((1..=grid.min(32)).map(Shape::Squares))
        {
            let sizes = shape.sizes(grid);
            let rows_read = sizes
                .iter()
                .map(|(count, _, touched)| count * touched)
                .sum::<u64>()
                * block;
            for depth in [4096u64, 2048, 1024, 512, 256, 128, 64] {
                let depth = depth.min(k.max(1));
                let held = |&(_, blocks, touched): &(u64, u64, u64)| {
                    held_bytes(blocks, touched, block, depth, element)
                };
                let room = memory(block, depth);
                let alone = (1, 1, if grid > 1 { 2 } else { 1 });
                if sizes.iter().any(|size| held(size) > room) || held(&alone) > half(block, depth) {
                    continue;
                }
                let bytes = rows_read as f64 * (k * element) as f64;
                let elements = n as f64 * n as f64;
                let flops = elements
                    * k as f64
                    * (element as f64 / 4.0)
                    * (1.0 + block as f64 / n.max(1) as f64 / 2.0);
                let requests =
                    bytes / (depth * element) as f64 + WRITE_REQUESTS * elements / block as f64;
                let work = CutCost {
                    flops,
                    block: [block, block, depth],
                    bytes,
                    requests,
                    threads: PLAN_THREADS,
                };
                judged.push((work.seconds(), block, depth, shape, rows_read));
            }
        }
    }
    let fastest = judged
        .iter()
        .map(|judged| judged.0)
        .fold(f64::INFINITY, f64::min);
    let near = judged
        .into_iter()
        .filter(|judged| judged.0 <= HARDLY_LONGER * fastest);
    let (_, block, depth, shape, rows_read) =
        near.min_by_key(|judged| judged.4).unwrap_or_else(|| {
            let side = 64.min(n.max(1));
            (0.0, side, 64.min(k.max(1)), Shape::Squares(1), n * n)
        });
    let super_tiles = shape.super_tiles(n.div_ceil(block)).into_iter().enumerate();
    Cut {
        block,
        depth,
        super_tiles: super_tiles
            .map(|(index, tile)| (tile, index % 2 == 1))
            .collect(),
        rows_read,
    }
}

/// The triangle in `count` bands of rows with about the same number of blocks.
fn bands(grid: u64, count: u64) -> Vec<SuperTile> {
    let rows = |index: u64| boundary(grid, count, index)..boundary(grid, count, index + 1);
    let band = |index: u64| {
        rows(index)
            .flat_map(|row| (0..=row).map(move |col| (row, col)))
            .collect()
    };
    (0..count)
        .map(band)
        .filter(|tile: &SuperTile| !tile.is_empty())
        .collect()
}

/// The row of blocks where a band begins.
fn boundary(grid: u64, count: u64, index: u64) -> u64 {
    ((index as f64 / count as f64).sqrt() * grid as f64).round() as u64
}

/// The triangle in squares of `side` blocks, cut off at the diagonal, in a snake.
fn squares(grid: u64, side: u64) -> Vec<SuperTile> {
    let count = grid.div_ceil(side);
    let square = |row: u64, col: u64| -> SuperTile {
        let rows = row * side..((row + 1) * side).min(grid);
        rows.flat_map(|i| (col * side..((col + 1) * side).min(i + 1)).map(move |j| (i, j)))
            .collect()
    };
    (0..count)
        .flat_map(|row| {
            let mut line: Vec<SuperTile> = (0..=row).map(|col| square(row, col)).collect();
            if row % 2 == 1 {
                line.reverse();
            }
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_covers_the_triangle_once() {
        for grid in 0..12u64 {
            let shapes = (1..=8)
                .map(|count| bands(grid, count))
                .chain((1..=grid.max(1)).map(|side| squares(grid, side)));
            for super_tiles in shapes {
                let mut blocks: Vec<_> = super_tiles.into_iter().flatten().collect();
                blocks.sort_unstable();
                let all: Vec<_> = (0..grid)
                    .flat_map(|row| (0..=row).map(move |col| (row, col)))
                    .collect();
                assert_eq!(blocks, all);
            }
        }
    }

    #[test]
    fn hardly_more_than_half_the_reads_of_a_product() {
        let cut_ = choose(16384, 16384, 4, |_, _| 400 << 20, |_, _| 200 << 20);
        assert!(cut_.rows_read <= 5 * 16384 / 2, "{} rows", cut_.rows_read);
    }

    #[test]
    fn parts_of_super_tiles_are_all_of_them_in_their_order() {
        let whole = choose(9000, 9000, 4, |_, _| 100 << 20, |_, _| 50 << 20);
        for room in [0, 10 << 20, 50 << 20] {
            let mut parted = choose(9000, 9000, 4, |_, _| 100 << 20, |_, _| 50 << 20);
            parted.shrink(4, room);
            let blocks = |cut_: &Cut| -> Vec<((u64, u64), bool)> {
                cut_.super_tiles
                    .iter()
                    .flat_map(|(tile, backwards)| tile.iter().map(|&block| (block, *backwards)))
                    .collect()
            };
            assert_eq!(blocks(&parted), blocks(&whole));
            let fits = |tile: &SuperTile| {
                let touched: BTreeSet<u64> =
                    tile.iter().flat_map(|&(row, col)| [row, col]).collect();
                held_bytes(
                    tile.len() as u64,
                    touched.len() as u64,
                    parted.block,
                    parted.depth,
                    4,
                ) <= room
            };
            assert!(
                parted
                    .super_tiles
                    .iter()
                    .all(|(tile, _)| tile.len() == 1 || fits(tile))
            );
        }
    }
}
