//! C = alpha A B + beta C with operands on SSD: super tiles of C in memory, A and B passing by in layers.
//!
//! Shapes: A is m x k, B is k x n, C is m x n; transposes are views. Cost: 2mnk flops; bytes as
//! `tiling` says, near the lower bound for the budget. Super tiles are visited in a snake, and every
//! second one takes its layers backwards, so that what was used last is used first. Source:
//! BLAS-on-flash (NSDI 2019, section 4.1) for tasks and tiles, arXiv:1702.02017 for the shape of tiles.

use std::ops::Range;
use std::sync::atomic::Ordering;

use outcore_device::Buf;
use outcore_engine::{Context, Plan, Region, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, CALL_FLOPS, MatMut, MatRef, Real, gemm_flops, gemm_scratch_bytes, syrk_flops, view_mut};

use super::common_dtype;
use super::repack::{Ahead, Blocks};
use super::tiling::{Problem, Side, Tiling, bound_bytes, choose};
use crate::data::array::{Array, Operand, Output, Tile, cut};
use crate::data::format::Order;
use crate::data::format::with_real;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::{PARALLEL, Session};

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
        Gemm { alpha: 1.0, beta: 0.0, out: Output::Scratch }
    }
}

/// C = alpha A B + beta C.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`]; [`Error::Value`] for a `beta` without an `out` in place, or an `out` that shares
/// bytes with an operand; [`Error::OverBudget`]; what keeps the output from being made.
///
/// The cut, and with it the bits, depend on the memory that is free when it is planned, not on the number of threads; a BLAS of the user's own is outside this promise.
pub fn gemm(session: &Session, a: Operand, b: Operand, options: Gemm) -> Result<Job<Array>> {
    let dtype = common_dtype("gemm", &[&a, &b])?;
    check_shapes(&a, &b)?;
    let Gemm { alpha, beta, out } = options;
    match &out {
        Output::InPlace(_) => out.check_distinct(&[&a, &b])?,
        _ if beta != 0.0 => return Err(Error::value("gemm: beta needs a matrix in `out` to add to")),
        _ => {}
    }
    let mut plan = Plan::new("gemm");
    let order = match &out {
        Output::InPlace(c) => c.order(),
        _ => Order::Row,
    };
    let target = out.target(session, dtype, &[a.rows(), b.cols()], order, &mut plan)?;
    let c = Blocks::in_place(plan.extent(&target.extent), target.array.layout(), dtype.bytes());
    let c_dense = target.array.layout().is_dense_by_rows_across_blocks(dtype.bytes());
    with_real!(dtype, T => Product { session, a: &a, b: &b, alpha: T::of(alpha), beta: T::of(beta), c_dense }.plan(&mut plan, c))?;
    target.job(session, vec![plan])
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
            depth_contiguous: operand.layout().by_rows() == by_rows,
        };
        Problem {
            m: self.a.rows(),
            n: self.b.cols(),
            k: self.a.cols(),
            element,
            budget: self.session.memory_free(),
            threads: PARALLEL,
            blas: self.session.blas(),
            a: side(self.a, true),
            b: side(self.b, false),
            c_read: self.beta != T::ZERO,
            c_dense: self.c_dense,
        }
    }

    fn plan(&self, plan: &mut Plan, c: Blocks) -> Result<()> {
        let problem = self.problem();
        let tiling = choose(&problem);
        plan.bound(bound_bytes(&problem));
        note(plan, &tiling);
        let element = problem.element;
        let [mut a, mut b] = [self.a, self.b].map(|operand| Blocks::in_place(operand.extent(plan), operand.layout(), element));
        let share = problem.budget / (6 * (PARALLEL + 1));
        let layers = problem.k.div_ceil(tiling.depth).max(1);
        let mut fills = Vec::new();
        if tiling.repack_a {
            let (blocks, tasks) = Blocks::repacked::<T>(self.session, plan, a, tiling.block_rows, tiling.depth, share)?;
            let band_steps = problem.n.div_ceil(tiling.cols) * layers;
            fills.extend(needed(tasks, &problem.a, tiling.rows, band_steps, tiling.depth));
            a = blocks;
        }
        if tiling.repack_b {
            let (blocks, tasks) = Blocks::repacked::<T>(self.session, plan, b, tiling.depth, tiling.block_cols, share)?;
            fills.extend(needed(tasks, &problem.b, tiling.cols, layers, tiling.depth));
            b = blocks;
        }
        let mut fills = Ahead::new(fills);
        for (index, (rows, cols)) in (0..).zip(snake(problem.m, problem.n, tiling.rows, tiling.cols)) {
            plan.group();
            for layer in 0..layers {
                fills.of_step(plan, index * layers + layer);
                let at = tiling.depth * if index % 2 == 1 { layers - 1 - layer } else { layer };
                let beta = if layer == 0 { self.beta } else { T::ONE };
                self.layer(plan, &tiling, [&a, &b, &c], [&rows, &cols, &(at..problem.k.min(at + tiling.depth))], beta);
            }
        }
        Ok(())
    }

    /// The part of a super tile's product that comes from one layer of the operands.
    fn layer(&self, plan: &mut Plan, tiling: &Tiling, [a, b, c]: [&Blocks; 3], [rows, cols, depth]: [&Range<u64>; 3], beta: T) {
        for block_rows in cut(rows.clone(), tiling.block_rows) {
            for block_cols in cut(cols.clone(), tiling.block_cols) {
                let tiles = [
                    c.tile(block_rows.clone(), block_cols.clone()),
                    a.tile(block_rows.clone(), depth.clone()),
                    b.tile(depth.clone(), block_cols.clone()),
                ];
                plan.task(product_task(tiles, self.alpha, beta, self.session.blas().clone()));
            }
        }
    }
}

/// Bytes that the blocks of a product may take where a task holds `scratch` bytes: the engine keeps scratch for two tasks, or a
/// twelfth, and a sixteenth for shared sectors, and of the rest a sixth for blocks on their way.
pub(crate) fn memory_for_blocks(budget: u64, scratch: u64) -> u64 {
    budget.saturating_sub((2 * scratch).max(budget / 12) + budget / 16) * 5 / 6
}

/// Bytes that a task holds which multiplies blocks of these sides.
pub(crate) fn task_scratch_bytes<T: Real>(m: usize, n: usize, k: usize, blas: &Blas) -> usize {
    let (m, n) = (m.min(CALL_ROWS), n.min(CALL_COLS));
    gemm_scratch_bytes::<T>(m, n, k.min(call_depth(n)), blas)
}

/// Tasks that repack an operand with the step that needs each first: the one where its band begins, which are `band_steps` apart,
/// or its layer, of the first super tile.
fn needed(
    tasks: Vec<(u64, Task)>,
    side: &Side,
    band: u64,
    band_steps: u64,
    depth: u64,
) -> impl Iterator<Item = (u64, Task)> + use<> {
    let by_bands = side.depth_contiguous;
    tasks.into_iter().map(move |(first, task)| (if by_bands { first / band * band_steps } else { first / depth }, task))
}

/// One block: c = alpha a b + beta c.
pub(crate) fn product_task<T: Real>(tiles: [Tile; 3], alpha: T, beta: T, blas: Blas) -> Task {
    let [c, a, b] = tiles;
    let (m, n, k) = (c.rows, c.cols, a.cols);
    let task = Task::new("gemm").flops(gemm_flops(m, n, k));
    let task = if beta == T::ZERO { task.write(c.region) } else { task.update(c.region) };
    let scratch = task_scratch_bytes::<T>(m, n, k, &blas);
    task.read(a.region).read(b.region).held(scratch).run(move |cx| {
        let Context { blocks, cancelled, .. } = cx;
        let [c_block, a_block, b_block] = &mut **blocks else { unreachable!("three were declared") };
        let stop = || cancelled.load(Ordering::Relaxed);
        Ok(in_calls(c.of_mut::<T>(c_block)?, alpha, a.of::<T>(a_block)?, b.of::<T>(b_block)?, beta, &blas, stop)?)
    })
}

/// Sides of what one call of the kernel computes: large enough that packing the operands costs little.
const CALL_ROWS: usize = 2048;
const CALL_COLS: usize = 4096;

/// The depth of a call for so many columns. It does not depend on the rows, and neither do the bits of an element.
fn call_depth(cols: usize) -> usize {
    (CALL_FLOPS / gemm_flops(CALL_ROWS, cols.max(1), 1)) as usize
}

/// A product in calls short enough to be interrupted: cut in rows and columns first, then in depth.
pub(crate) fn in_calls<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    let (height, width) = (even(a.nrows(), CALL_ROWS), even(b.ncols(), CALL_COLS));
    let depth = call_depth(width);
    let sides = |end: usize, step: usize| (0..end).step_by(step).map(move |start| (start, step.min(end - start)));
    for (row, rows) in sides(a.nrows(), height) {
        for (col, cols) in sides(b.ncols(), width) {
            let mut at = 0;
            while !stop() {
                let length = depth.min(a.ncols() - at);
                let part = c.as_mut().submatrix_mut(row, col, rows, cols);
                let (left, right) = (a.submatrix(row, at, rows, length), b.submatrix(at, col, length, cols));
                kernels::gemm(part, alpha, left, right, if at == 0 { beta } else { T::ONE }, blas)?;
                at += length;
                if at >= a.ncols() {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The lower triangle of c = alpha a a^T + beta c in calls short enough to be interrupted, cut in depth.
pub(crate) fn syrk_in_calls<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    beta: T,
    blas: &Blas,
    stop: impl Fn() -> bool,
) -> Result<()> {
    let depth = (CALL_FLOPS / syrk_flops(c.nrows().max(1), 1)).max(1) as usize;
    let mut at = 0;
    while !stop() {
        let length = depth.min(a.ncols() - at);
        kernels::syrk(c.as_mut(), alpha, a.subcols(at, length), if at == 0 { beta } else { T::ONE }, blas)?;
        at += length;
        if at >= a.ncols() {
            break;
        }
    }
    Ok(())
}

/// The length of equal parts of at most `most`.
fn even(length: usize, most: usize) -> usize {
    length.div_ceil(length.div_ceil(most).max(1)).max(1)
}

/// Super tiles row by row, every second row backwards.
pub(crate) fn snake(m: u64, n: u64, rows: u64, cols: u64) -> Vec<(Range<u64>, Range<u64>)> {
    let mut tiles = Vec::new();
    for (index, row) in cut(0..m, rows).into_iter().enumerate() {
        let mut line: Vec<_> = cut(0..n, cols).into_iter().map(|col| (row.clone(), col)).collect();
        if index % 2 == 1 {
            line.reverse();
        }
        tiles.extend(line);
    }
    tiles
}

fn note(plan: &mut Plan, tiling: &Tiling) {
    plan.note("super tile", format!("{} x {}", tiling.rows, tiling.cols));
    plan.note("block", format!("{} x {} x {}", tiling.block_rows, tiling.block_cols, tiling.depth));
    let repacked =
        [("A", tiling.repack_a), ("B", tiling.repack_b)].into_iter().filter(|(_, repack)| *repack).map(|(name, _)| name);
    let repacked: Vec<&str> = repacked.collect();
    if !repacked.is_empty() {
        plan.note("repacked", repacked.join(" and "));
    }
}

/// A product of so few operations and bytes is done before anybody would want to interrupt it.
pub(super) const MOMENT_FLOPS: u64 = 1 << 31;
pub(super) const MOMENT_BYTES: u64 = 64 << 20;

/// C = alpha A B into the caller's memory, row after row: the way for results that fit.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`], [`Error::OverBudget`].
pub fn gemm_into(session: &Session, a: Operand, b: Operand, alpha: f64, into: Buf) -> Result<Job<Buf>> {
    let dtype = common_dtype("gemm", &[&a, &b])?;
    check_shapes(&a, &b)?;
    let bytes = a.rows().checked_mul(b.cols()).and_then(|elements| elements.checked_mul(dtype.bytes()));
    let bytes = bytes.ok_or_else(|| Error::shape(format!("gemm: a result of {} x {}", a.rows(), b.cols())))?;
    if (into.len() as u64) < bytes {
        return Err(Error::shape(format!("gemm: the result has {bytes} bytes, the memory for it {}", into.len())));
    }
    with_real!(dtype, T => plan_into::<T>(session, &a, &b, T::of(alpha), into))
}

fn plan_into<T: Real>(session: &Session, a: &Operand, b: &Operand, alpha: T, into: Buf) -> Result<Job<Buf>> {
    let (m, n, k, element) = (a.rows(), b.cols(), a.cols(), size_of::<T>() as u64);
    let mut plan = Plan::new("gemm");
    let [a_blocks, b_blocks] = [a, b].map(|operand| Blocks::in_place(operand.extent(&mut plan), operand.layout(), element));
    let room = session.memory_free() / (3 * (PARALLEL + 1));
    let depth = depth_that_fits(a, b, k, n, element, room);
    let bytes_of = |operand: &Operand| if operand.is_stored() { depth * element } else { 0 };
    let by_memory = if a.is_stored() { (room / bytes_of(a).max(1)).max(1) } else { m };
    let by_threads = rows_of_a_task(m, session.threads() as u64);
    let (whole, mut rest) = into.lend();
    for rows in cut(0..if n == 0 { 0 } else { m }, by_memory.min(by_threads).max(1)) {
        let height = (rows.end - rows.start) as usize;
        let piece = rest.split_to(height * (n * element) as usize);
        panel_tasks::<T>(&mut plan, session, [&a_blocks, &b_blocks], rows, n, cut(0..k, depth), alpha, piece);
    }
    drop(rest);
    let in_memory = !a.is_stored() && !b.is_stored();
    let momentary = in_memory && plan.flops() <= MOMENT_FLOPS && a.bytes() + b.bytes() + m * n * element <= MOMENT_BYTES;
    let lost = |_| Error::Failed { what: "a task still holds memory of the result".into() };
    let job = Job::new(session, vec![plan], move |_| whole.reclaim().map_err(lost))?;
    Ok(if momentary { job.momentary() } else { job })
}

/// Equal shares for all threads, since each packs all of B. Where their number depends on the threads, they have more rows than what
/// the kernels treat as narrow (256), which adds up in another order.
fn rows_of_a_task(m: u64, threads: u64) -> u64 {
    let tasks = (threads * m.div_ceil(threads * CALL_ROWS as u64)).min(m / 320).max(2);
    m.div_ceil(tasks)
}

/// All of the depth where the operands are in memory, else as much of B as fits.
fn depth_that_fits(a: &Operand, b: &Operand, k: u64, n: u64, element: u64, room: u64) -> u64 {
    let per_depth = if b.is_stored() { n * element } else { 0 } + if a.is_stored() { 64 * element } else { 0 };
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
    let layers = if layers.is_empty() { vec![no_depth] } else { layers };
    let turn = (layers.len() > 1).then(|| Region::span(plan.volatile("turn", 1), 0, 1));
    for (layer, depth) in layers.into_iter().enumerate() {
        let (a_tile, b_tile) = (a.tile(rows.clone(), depth.clone()), b.tile(depth, 0..n));
        let (blas, piece) = (session.blas().clone(), std::sync::Arc::clone(&piece));
        let beta = if layer == 0 { T::ZERO } else { T::ONE };
        let scratch = task_scratch_bytes::<T>(height, n as usize, a_tile.cols, &blas);
        let task = Task::new("gemm").flops(gemm_flops(height, n as usize, a_tile.cols)).held(scratch);
        let task = task.read(a_tile.region).read(b_tile.region);
        let task = if let Some(turn) = turn { task.update(turn) } else { task };
        plan.task(task.run(move |cx| {
            let mut piece = piece.lock().expect("no panic while held");
            let c = view_mut(bytemuck::cast_slice_mut::<u8, T>(&mut piece), height, n as usize, n as usize, 1)?;
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            Ok(in_calls(c, alpha, a_tile.of::<T>(&cx.blocks[0])?, b_tile.of::<T>(&cx.blocks[1])?, beta, &blas, stop)?)
        }));
    }
}
