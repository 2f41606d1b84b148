//! C = alpha A B + beta C with operands on SSD: super tiles of C in memory, A and B passing by in
//! layers.
//!
//! Shapes: A is m x k, B is k x n, C is m x n; transposes are views. Cost: 2mnk flops; bytes as
//! `tiling` says, near the lower bound for the budget. Super tiles are visited in a snake, and
//! every second one takes its layers backwards, so that what was used last is used first. Source:
//! BLAS-on-flash (NSDI 2019, section 4.1) for tasks and tiles, arXiv:1702.02017 for the shape of
//! tiles.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use outcore_core::panels::cut;
use outcore_core::{
    DType, Error, Job, MemorySplit, Order, PLAN_THREADS, Result, Segments, Session, with_real,
};
use outcore_device::{Buf, Locked};
use outcore_engine::{Context, Plan, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, MatMut, MatRef, Real, gemm_flops, gemm_scratch_bytes, view_mut};
use outcore_matrix::{Array, Operand, Output, Tile};

use super::common_real;
use super::repack::{Ahead, Blocks, Repack};
use super::tiling::{Problem, Side, Tiling, bound_bytes, choose, fit, layer_of};

/// Scalars of a product, and where it goes.
#[derive(Clone)]
pub struct Gemm {
    /// Factor of A B.
    pub alpha: f64,
    /// Factor of what is in `out`, which must then be there; 0 to overwrite it.
    pub beta: f64,
    /// Where C goes.
    pub out: Output,
}

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            alpha: 1.0,
            beta: 0.0,
            out: Output::Scratch,
        }
    }
}

/// C = alpha A B + beta C.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Gemm, gemm};
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let options = Gemm { alpha: 10.0, ..Gemm::default() };
/// let y = gemm(&session, x.t().into(), x.clone().into(), options)?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [350.0, 440.0, 440.0, 560.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`]; [`Error::Value`] for a `beta` without an `out` in place, or
/// an `out` that shares bytes with an operand; [`Error::OverBudget`]; what keeps the output from
/// being made.
///
/// Determinism: the bits depend on the budget, not on what is free of it or on the number of
/// threads; a BLAS of the user's own is outside this promise.
pub fn gemm(session: &Session, a: Operand, b: Operand, options: Gemm) -> Result<Job<Array>> {
    let real = common_real("gemm", &[&a, &b])?;
    let dtype = DType::from(real);
    check_shapes(&a, &b)?;
    let Gemm { alpha, beta, out } = options;
    match &out {
        Output::InPlace(_) => out.check_distinct(&[&a, &b])?,
        _ if beta != 0.0 => {
            return Err(Error::value("gemm: beta needs a matrix in `out` to add to"));
        }
        _ => {}
    }
    let mut plan = Plan::new("gemm");
    let order = match &out {
        Output::InPlace(c) => c.order(),
        _ => Order::Row,
    };
    let target = out.target(session, dtype, &[a.rows(), b.cols()], order, &mut plan)?;
    let c = Blocks::in_place(
        plan.extent(&target.extent),
        target.array.layout(),
        dtype.bytes(),
    );
    let c_dense = target.array.layout().is_dense_by_rows_across_blocks();
    with_real!(real, T => {
        let product = Product { session, a: &a, b: &b, alpha: T::of(alpha), beta: T::of(beta), c_dense };
        let steps = product.steps(&mut plan, c)?;
        target.job_in_segments(session, plan, move |segments| steps.fill(segments))
    })
}

fn check_shapes(a: &Operand, b: &Operand) -> Result<()> {
    match a.cols() == b.rows() {
        true => Ok(()),
        false => Err(Error::shape(format!(
            "gemm: {} is {} x {}, {} is {} x {}: the inner dimensions differ",
            a.name(),
            a.rows(),
            a.cols(),
            b.name(),
            b.rows(),
            b.cols()
        ))),
    }
}

struct Product<'a, T> {
    session: &'a Session,
    a: &'a Operand,
    b: &'a Operand,
    alpha: T,
    beta: T,
    c_dense: bool,
}

impl<T: Real> Product<'_, T> {
    fn problem(&self) -> Problem<'_> {
        let element = size_of::<T>() as u64;
        let side = |operand: &Operand, by_rows: bool| Side {
            stored: operand.is_stored(),
            element: operand.layout().element,
            depth_contiguous: operand.layout().by_rows() == by_rows,
        };
        Problem {
            m: self.a.rows(),
            n: self.b.cols(),
            k: self.a.cols(),
            element,
            memory: MemorySplit::new(self.session),
            threads: PLAN_THREADS,
            blas: self.session.blas(),
            a: side(self.a, true),
            b: side(self.b, false),
            c_read: self.beta != T::ZERO,
            c_dense: self.c_dense,
            shared: shared_bytes(self.a, self.b),
        }
    }

    fn steps(&self, plan: &mut Plan, c: Blocks) -> Result<Steps<T>> {
        let problem = self.problem();
        let tiling = choose(&problem);
        plan.bound(bound_bytes(&problem));
        note(plan, &tiling);
        let element = problem.element;
        let [mut a, mut b] = [self.a, self.b]
            .map(|operand| Blocks::in_place(operand.extent(plan), operand.layout(), element));
        let share = problem.memory.copied_panel_bytes();
        let layers = problem.k.div_ceil(tiling.depth).max(1);
        let parts = parts_of_super_tiles(&problem, &tiling);
        let (mut repacks, mut fills) = (Vec::new(), Vec::new());
        if tiling.repack_a {
            let (blocks, repack) = Blocks::repacked(
                self.session,
                plan,
                a,
                tiling.block_rows,
                tiling.depth,
                share,
            )?;
            let first = first_parts(parts.iter().map(|part| &part.rows));
            fills.extend(needed(
                &repack,
                repacks.len(),
                &problem.a,
                layers,
                tiling.depth,
                first,
            ));
            repacks.push(repack);
            a = blocks;
        }
        if tiling.repack_b {
            let (blocks, repack) = Blocks::repacked(
                self.session,
                plan,
                b,
                tiling.depth,
                tiling.block_cols,
                share,
            )?;
            let first = first_parts(parts.iter().map(|part| &part.cols));
            fills.extend(needed(
                &repack,
                repacks.len(),
                &problem.b,
                layers,
                tiling.depth,
                first,
            ));
            repacks.push(repack);
            b = blocks;
        }
        let (alpha, beta, blas) = (self.alpha, self.beta, self.session.blas().clone());
        Ok(Steps {
            tiling,
            parts,
            k: problem.k,
            blocks: [a, b, c],
            repacks,
            fills: Ahead::new(fills),
            alpha,
            beta,
            blas,
        })
    }
}

/// What a product does, in order: super tile after super tile, layer after layer.
struct Steps<T> {
    tiling: Tiling,
    parts: Vec<ResidentTile>,
    k: u64,
    /// Of A, B and C.
    blocks: [Blocks; 3],
    repacks: Vec<Repack>,
    /// Which of those has which panel to be there before a step.
    fills: Ahead<Fill>,
    alpha: T,
    beta: T,
    blas: Blas,
}

impl<T: Real> Steps<T> {
    fn fill(&self, out: &mut Segments<'_>) -> Result<()> {
        let depth = self.tiling.depth;
        let layers = self.k.div_ceil(depth).max(1);
        let mut fills = self.fills.clone();
        for (index, part) in (0..).zip(&self.parts) {
            out.group()?;
            for layer in 0..layers {
                out.may_end()?;
                fills.of_step(out.plan(), index * layers + layer, |(of, panel)| {
                    self.repacks[of].task::<T>(panel)
                });
                let depth = layer_of(self.k, depth, layer, part.backwards);
                let beta = if layer == 0 { self.beta } else { T::ONE };
                self.layer(out.plan(), [&part.rows, &part.cols, &depth], beta);
            }
        }
        Ok(())
    }

    /// The part of a super tile's product that comes from one layer of the operands.
    fn layer(&self, plan: &mut Plan, [rows, cols, depth]: [&Range<u64>; 3], beta: T) {
        let [a, b, c] = &self.blocks;
        for block_rows in cut(rows.clone(), self.tiling.block_rows) {
            for block_cols in cut(cols.clone(), self.tiling.block_cols) {
                let tiles = [
                    c.tile(block_rows.clone(), block_cols.clone()),
                    a.tile(block_rows.clone(), depth.clone()),
                    b.tile(depth.clone(), block_cols.clone()),
                ];
                plan.task(product_task(tiles, self.alpha, beta, self.blas.clone()));
            }
        }
    }
}

/// As much of a super tile as stays in memory at once: all of it, unless part of the budget is
/// reserved.
struct ResidentTile {
    rows: Range<u64>,
    cols: Range<u64>,
    /// Layers come in the order of the super tile, whatever its parts: each element is added up in
    /// that order.
    backwards: bool,
}

fn parts_of_super_tiles(problem: &Problem<'_>, tiling: &Tiling) -> Vec<ResidentTile> {
    let [high, wide] = fit(problem, tiling, &problem.memory.of_free());
    let mut parts = Vec::new();
    for (index, (rows, cols)) in snake(0..problem.m, 0..problem.n, tiling.rows, tiling.cols)
        .into_iter()
        .enumerate()
    {
        let inside = snake(rows, cols, high, wide).into_iter();
        parts.extend(inside.map(|(rows, cols)| ResidentTile {
            rows,
            cols,
            backwards: index % 2 == 1,
        }));
    }
    parts
}

/// Says which part is the first to have a row, or a column: all parts are cut at the same ones.
fn first_parts<'a>(parts: impl Iterator<Item = &'a Range<u64>>) -> impl Fn(u64) -> Option<usize> {
    let mut firsts = BTreeMap::new();
    for (number, part) in parts.enumerate() {
        firsts.entry(part.start).or_insert(number);
    }
    move |at| firsts.range(..=at).next_back().map(|(_, &first)| first)
}

/// Bytes that two operands on a device have in common.
fn shared_bytes(a: &Operand, b: &Operand) -> u64 {
    let mut plan = Plan::new("operands");
    let mut whole = |operand: &Operand| {
        let (extent, layout) = (operand.extent(&mut plan), operand.layout());
        layout.tile(extent, 0..layout.rows, 0..layout.cols).region
    };
    if a.is_stored() && b.is_stored() {
        whole(a).shared_bytes(&whole(b))
    } else {
        0
    }
}

/// A panel of an operand to be repacked.
type Fill = (usize, Range<u64>);

/// Panels of an operand with the step that needs each first: the one where its band begins, in the
/// first part that has it, or its layer of the first part.
fn needed(
    repack: &Repack,
    number: usize,
    side: &Side,
    layers: u64,
    depth: u64,
    first_part: impl Fn(u64) -> Option<usize>,
) -> impl Iterator<Item = (u64, Fill)> {
    let by_bands = side.depth_contiguous;
    let step = move |first: u64| {
        if by_bands {
            first_part(first).unwrap_or(0) as u64 * layers
        } else {
            first / depth
        }
    };
    repack
        .panels()
        .into_iter()
        .map(move |panel| (step(panel.start), (number, panel)))
}

/// One block: c = alpha a b + beta c.
pub(crate) fn product_task<T: Real>(tiles: [Tile; 3], alpha: T, beta: T, blas: Blas) -> Task {
    let [c, a, b] = tiles;
    let (m, n, k) = (c.rows, c.cols, a.cols);
    let task = Task::new("gemm").flops(gemm_flops(m, n, k));
    let task = if beta == T::ZERO {
        task.write(c.region)
    } else {
        task.update(c.region)
    };
    let scratch = gemm_scratch_bytes::<T>(m, n, k, &blas);
    task.read(a.region)
        .read(b.region)
        .held(scratch)
        .run(move |cx| {
            let Context {
                blocks, cancelled, ..
            } = cx;
            let [c_block, a_block, b_block] = &mut **blocks else {
                unreachable!("three were declared")
            };
            let stop = || cancelled.load(Ordering::Relaxed);
            Ok(in_calls(
                c.of_mut::<T>(c_block)?,
                alpha,
                a.of::<T>(a_block)?,
                b.of::<T>(b_block)?,
                beta,
                &blas,
                stop,
            )?)
        })
}

/// A product that ends soon after `stop` says so; c is then of no use.
pub(crate) fn in_calls<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    Ok(kernels::gemm_until(c, alpha, a, b, beta, blas, &stop)?)
}

/// The lower triangle of c = alpha a a^T + beta c, likewise.
pub(crate) fn syrk_in_calls<T: Real>(
    c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    Ok(kernels::syrk_until(c, alpha, a, beta, blas, &stop)?)
}

/// Super tiles row by row, every second row backwards.
fn snake(
    rows: Range<u64>,
    cols: Range<u64>,
    height: u64,
    width: u64,
) -> Vec<(Range<u64>, Range<u64>)> {
    let mut tiles = Vec::new();
    for (index, row) in cut(rows, height).into_iter().enumerate() {
        let mut line: Vec<_> = cut(cols.clone(), width)
            .into_iter()
            .map(|col| (row.clone(), col))
            .collect();
        if index % 2 == 1 {
            line.reverse();
        }
        tiles.extend(line);
    }
    tiles
}

fn note(plan: &mut Plan, tiling: &Tiling) {
    plan.note("super tile", format!("{} x {}", tiling.rows, tiling.cols));
    plan.note(
        "block",
        format!(
            "{} x {} x {}",
            tiling.block_rows, tiling.block_cols, tiling.depth
        ),
    );
    let repacked = [("A", tiling.repack_a), ("B", tiling.repack_b)]
        .into_iter()
        .filter(|(_, repack)| *repack)
        .map(|(name, _)| name);
    let repacked: Vec<&str> = repacked.collect();
    if !repacked.is_empty() {
        plan.note("repacked", repacked.join(" and "));
    }
}

/// A product of fewer operations and bytes ends too soon for an interrupt to matter.
pub(super) const INLINE_FLOPS: u64 = 1 << 31;
pub(super) const INLINE_BYTES: u64 = 64 << 20;

/// C = alpha A B into the caller's memory, row after row: the way for results that fit.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::gemm_into;
///
/// // x = [[1, 2], [3, 4], [5, 6]]
/// let y = gemm_into(&session, x.t().into(), x.clone().into(), 1.0, Buf::anonymous(16)?)?.run()?;
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&y), [35.0, 44.0, 44.0, 56.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`], [`Error::OverBudget`].
pub fn gemm_into(
    session: &Session,
    a: Operand,
    b: Operand,
    alpha: f64,
    into: Buf,
) -> Result<Job<Buf>> {
    let real = common_real("gemm", &[&a, &b])?;
    let dtype = DType::from(real);
    check_shapes(&a, &b)?;
    let bytes = a
        .rows()
        .checked_mul(b.cols())
        .and_then(|elements| elements.checked_mul(dtype.bytes()));
    let bytes = bytes
        .ok_or_else(|| Error::shape(format!("gemm: a result of {} x {}", a.rows(), b.cols())))?;
    if (into.len() as u64) < bytes {
        return Err(Error::shape(format!(
            "gemm: the result has {bytes} bytes, the memory for it {}",
            into.len()
        )));
    }
    with_real!(real, T => plan_into::<T>(session, &a, &b, T::of(alpha), into))
}

fn plan_into<T: Real>(
    session: &Session,
    a: &Operand,
    b: &Operand,
    alpha: T,
    into: Buf,
) -> Result<Job<Buf>> {
    let (m, n, k, element) = (a.rows(), b.cols(), a.cols(), size_of::<T>() as u64);
    let mut plan = Plan::new("gemm");
    let [a_blocks, b_blocks] = [a, b]
        .map(|operand| Blocks::in_place(operand.extent(&mut plan), operand.layout(), element));
    plan.bound(a.stored_bytes() + b.stored_bytes() - shared_bytes(a, b));
    let room = MemorySplit::new(session).mapped_panel_bytes();
    let depth = depth_that_fits(a, b, k, n, element, room);
    let bytes_of = |operand: &Operand| {
        if operand.is_stored() {
            depth * element
        } else {
            0
        }
    };
    let by_memory = if a.is_stored() {
        (room / bytes_of(a).max(1)).max(1)
    } else {
        m
    };
    let by_threads = rows_of_a_task(m, session.threads() as u64);
    let (whole, mut rest) = into.lend();
    for rows in cut(
        0..if n == 0 { 0 } else { m },
        by_memory.min(by_threads).max(1),
    ) {
        let height = (rows.end - rows.start) as usize;
        let piece = rest.split_to(height * (n * element) as usize);
        panel_tasks::<T>(
            &mut plan,
            session,
            [&a_blocks, &b_blocks],
            rows,
            n,
            cut(0..k, depth),
            alpha,
            piece,
        );
    }
    drop(rest);
    let in_memory = !a.is_stored() && !b.is_stored();
    let is_inline = in_memory
        && plan.flops() <= INLINE_FLOPS
        && a.bytes() + b.bytes() + m * n * element <= INLINE_BYTES;
    let lost = |_| Error::Failed {
        what: "a task still holds memory of the result".into(),
    };
    let job = Job::new(session, vec![plan], move |_| whole.reclaim().map_err(lost))?;
    Ok(if is_inline { job.run_inline() } else { job })
}

/// Rows of a task, at most.
const TASK_ROWS: u64 = 2048;

/// Equal shares for all threads, since each packs all of B. Where their number depends on the
/// threads, they have more rows than what the kernels treat as narrow (256), which adds up in
/// another order.
fn rows_of_a_task(m: u64, threads: u64) -> u64 {
    let tasks = (threads * m.div_ceil(threads * TASK_ROWS))
        .min(m / 320)
        .max(2);
    m.div_ceil(tasks)
}

/// All of the depth where the operands are in memory, else as much of B as fits.
fn depth_that_fits(a: &Operand, b: &Operand, k: u64, n: u64, element: u64, room: u64) -> u64 {
    let per_depth =
        if b.is_stored() { n * element } else { 0 } + if a.is_stored() { 64 * element } else { 0 };
    room.checked_div(per_depth).unwrap_or(k).clamp(1, k.max(1))
}

/// A panel of rows of C in the caller's memory: one task a layer, handing the memory on.
#[expect(clippy::too_many_arguments, reason = "the names of a product")]
fn panel_tasks<T: Real>(
    plan: &mut Plan,
    session: &Session,
    [a, b]: [&Blocks; 2],
    rows: Range<u64>,
    n: u64,
    layers: Vec<Range<u64>>,
    alpha: T,
    piece: Buf,
) {
    let height = (rows.end - rows.start) as usize;
    let piece = std::sync::Arc::new(std::sync::Mutex::new(piece));
    let no_depth = 0..0;
    let layers = if layers.is_empty() {
        vec![no_depth]
    } else {
        layers
    };
    let turn = (layers.len() > 1).then(|| plan.serial());
    for (layer, depth) in layers.into_iter().enumerate() {
        let (a_tile, b_tile) = (a.tile(rows.clone(), depth.clone()), b.tile(depth, 0..n));
        let (blas, piece) = (session.blas().clone(), std::sync::Arc::clone(&piece));
        let beta = if layer == 0 { T::ZERO } else { T::ONE };
        let scratch = gemm_scratch_bytes::<T>(height, n as usize, a_tile.cols, &blas);
        let task = Task::new("gemm")
            .flops(gemm_flops(height, n as usize, a_tile.cols))
            .held(scratch);
        let task = task.read(a_tile.region).read(b_tile.region);
        let task = if let Some(turn) = turn {
            task.update(turn)
        } else {
            task
        };
        plan.task(task.run(move |cx| {
            let mut piece = piece.locked();
            let c = view_mut(
                bytemuck::cast_slice_mut::<u8, T>(&mut piece),
                height,
                n as usize,
                n as usize,
                1,
            )?;
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            Ok(in_calls(
                c,
                alpha,
                a_tile.of::<T>(&cx.blocks[0])?,
                b_tile.of::<T>(&cx.blocks[1])?,
                beta,
                &blas,
                stop,
            )?)
        }));
    }
}
