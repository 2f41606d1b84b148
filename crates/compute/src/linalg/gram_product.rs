//! Y = A^T (A X): each row of A is looked at once, to make a row of A X and to add it to the rows
//! of Y at once.
//!
//! Shapes: A is m x n, X and Y are n x d. Cost: 4 nnz d flops; reads A and X, writes Y: one pass
//! over A. X and up to eight copies of Y, summed in order at the end, wait in memory. Where the
//! lines of A are columns, or X and Y do not fit, A X is made in scratch first, and A passes by
//! twice.

use std::sync::atomic::Ordering;

use outcore_core::{Job, MemorySplit, Order, Result, Session, with_real};
use outcore_engine::{Plan, Task};
use outcore_kernels as kernels;
use outcore_kernels::{Real, csrmm_flops, view, view_mut};
use outcore_matrix::sparse::{Piece, whole_lines, with_lines};
use outcore_matrix::{Array, Compressed, Operand, Output, Sparse};

use super::csrmm::{Band, Csrmm, check, csrmm, numbers, short_piece_bytes};
use crate::pass::Lanes;

/// Y = A^T (A X).
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::gram_product;
///
/// // a = [[1, 0, 2], [0, 3, 0]], x = [[1, 2], [3, 4], [5, 6]]
/// let y = gram_product(&session, &a, x.into(), Output::Scratch)?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [11.0, 14.0, 27.0, 36.0, 22.0, 28.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As [`csrmm`].
pub fn gram_product(session: &Session, a: &Sparse, x: Operand, out: Output) -> Result<Job<Array>> {
    check(a, &x)?;
    out.check_distinct(&[&x])?;
    let element = a.dtype().bytes();
    let state_bytes = x.rows() * x.cols() * element;
    // X, the sum, and their padding.
    let split = MemorySplit::new(session)
        .hold(x.waiting_bytes() + state_bytes + 2 * 4096)
        .states(state_bytes);
    let panel_bytes = split
        .panel_bytes()
        .min(short_piece_bytes(2 * x.cols(), element));
    let groups = whole_lines(&a.pieces(panel_bytes, |_| 0));
    let too_long = groups
        .iter()
        .any(|group| group.iter().map(|piece| a.bytes_of(piece)).sum::<u64>() > 3 * panel_bytes);
    if a.format() == Compressed::Columns || !split.has_room_for_rows() || too_long {
        return in_two_products(session, a, x, out);
    }
    let mut plan = Plan::new("A^T A X");
    let shape = x.shape();
    let target = out.target(session, a.dtype(), &shape, Order::Row, &mut plan)?;
    let into = plan.extent(&target.extent);
    let result = target.array.layout().tile(into, 0..x.rows(), 0..x.cols());
    plan.note("lanes", split.lanes());
    with_real!(a.real(), T => {
        let lanes = add_pieces::<T>(&mut plan, a, &x, &split, &groups);
        let task = lanes.read_by(Task::new("add").write(result.region));
        let (rows, cols, count) = (x.rows() as usize, x.cols() as usize, lanes.count());
        plan.task(task.run(move |cx| {
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let (into, parts) = cx.blocks.split_at_mut(1);
            let mut y = result.of_mut::<T>(&mut into[0])?;
            kernels::scale_until(y.as_mut(), T::ZERO, &stop);
            for part in &parts[..count] {
                let part = view(part.slice::<T>(), rows, cols, cols, 1)?;
                kernels::axpby_until(y.as_mut(), T::ONE, part, T::ONE, &stop)?;
            }
            Ok(())
        }));
    });
    plan.bound(a.stored_bytes() + x.stored_bytes() + target.array.nbytes());
    target.job(session, vec![plan])
}

/// Adds every piece to a lane.
fn add_pieces<T: Real>(
    plan: &mut Plan,
    a: &Sparse,
    x: &Operand,
    split: &MemorySplit,
    groups: &[Vec<Piece>],
) -> Lanes {
    let element = size_of::<T>() as u64;
    let band = Band::new(x, plan, 0..x.rows(), element, None);
    band.load::<T>(plan, x, split.of_free().block_of_rows_bytes());
    let lanes = Lanes::new(
        plan,
        "Y",
        split.lanes().min(groups.len() as u64),
        x.rows() * x.cols() * element,
    );
    let (rows, cols) = (x.rows() as usize, x.cols() as usize);
    for (index, group) in groups.iter().enumerate() {
        let lines: Vec<_> = group.iter().map(|piece| a.blocks(piece)).collect();
        let entries: u64 = group.iter().map(|piece| piece.entries()).sum();
        let rows_between = if a.is_tiled() {
            group[0].lines().end - group[0].lines().start
        } else {
            1
        };
        let between_bytes = (rows_between * element) as usize * cols;
        let task = Task::new("gram")
            .flops(2 * csrmm_flops(entries as usize, cols))
            .scratch(between_bytes);
        let task = group
            .iter()
            .flat_map(|piece| a.regions(plan, piece))
            .fold(task, Task::read)
            .read(band.region());
        let (task, is_first) = lanes.add(index, task);
        let band = band.clone();
        plan.task(task.run(move |cx| {
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let count: usize = lines.iter().map(|piece| piece.count()).sum();
            let (read, written) = cx.blocks.split_at_mut(count + 1);
            let x = band.of::<T>(&read[count])?;
            let mut y = view_mut(written[0].slice_mut::<T>(), rows, cols, cols, 1)?;
            if is_first {
                kernels::scale_until(y.as_mut(), T::ZERO, &stop);
            }
            let between = numbers::<T>(&mut cx.scratch[..between_bytes]);
            if let [piece] = lines.as_slice() {
                return with_lines!(piece, &read[..count], T, a => Ok(kernels::csr_gram(y, a, x, between)?));
            }
            // The parts of one long line: first its product, then what that adds.
            between.fill(T::ZERO);
            let mut at = 0;
            for piece in lines.iter().take_while(|_| !stop()) {
                let blocks = &read[at..at + piece.count()];
                let between = view_mut(between, 1, cols, cols, 1)?;
                with_lines!(piece, blocks, T, a => kernels::csrmm(between, T::ONE, a, x, 0, T::ONE)?);
                at += piece.count();
            }
            at = 0;
            for piece in lines.iter().take_while(|_| !stop()) {
                let blocks = &read[at..at + piece.count()];
                let between = view(between, 1, cols, cols, 1)?;
                with_lines!(piece, blocks, T, a => kernels::csrmm_transposed(y.as_mut(), T::ONE, a, between, 0)?);
                at += piece.count();
            }
            Ok(())
        }));
    }
    lanes
}

fn in_two_products(session: &Session, a: &Sparse, x: Operand, out: Output) -> Result<Job<Array>> {
    let between = Array::temporary(session, a.dtype(), &[a.rows(), x.cols()], Order::Row)?;
    let first = csrmm(
        session,
        a,
        x,
        Csrmm {
            out: Output::InPlace(between.clone()),
            ..Csrmm::default()
        },
    )?;
    let second = csrmm(
        session,
        &a.t(),
        between.into(),
        Csrmm {
            out,
            ..Csrmm::default()
        },
    )?;
    Ok(first.then(second))
}
