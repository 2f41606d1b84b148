//! Copies of a matrix with another element type, order or place.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use half::{bf16, f16};
use outcore_core::panels::{cut, panels};
use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session, with_real};
use outcore_engine::{ExtentRef, Plan, Task, go_on};
use outcore_kernels::{self as kernels, MatMut, MatRef, convert_until, copy_until, narrow_until};

use crate::array::{Array, with_element};
use crate::layout::Layout;
use crate::operand::Operand;
use crate::output::Output;

impl Array {
    /// A copy with another element type, order or place. Elements become float32, float64, float16 or
    /// bfloat16, or stay of the type that they are.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let y = x.convert(Output::Scratch, DType::F64, Order::Column)?.run()?;
    /// assert_eq!((y.dtype(), y.order()), (DType::F64, Order::Column));
    /// assert_eq!(y.to_vec::<f64>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`convert`].
    pub fn convert(&self, out: Output, dtype: DType, order: Order) -> Result<Job<Array>> {
        convert(self.session(), self.into(), out, dtype, order)
    }
}

/// A copy of an operand with another element type, order or place; of one in memory, the way to
/// store it. Elements become float32, float64, float16 or bfloat16, or stay of the type that they are.
///
/// Cost: reads x, writes the result.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let path = folder.path().join("y.npy");
/// let y = convert(&session, x.t().into(), Output::New(path), DType::F64, Order::Row)?.run()?;
/// assert_eq!((y.shape(), y.nbytes()), (vec![2, 3], 48));
/// let short = convert(&session, x.t().into(), Output::Scratch, DType::BF16, Order::Row)?.run()?;
/// assert_eq!((short.shape(), short.nbytes()), (vec![2, 3], 12));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Value`](outcore_core::Error::Value) when both share bytes,
/// [`OverBudget`](outcore_core::Error::OverBudget); what keeps the output from being
/// created.
pub fn convert(
    session: &Session,
    x: Operand,
    out: Output,
    dtype: DType,
    order: Order,
) -> Result<Job<Array>> {
    if let Operand::Stored(array) = &x
        && array.dtype() == dtype
    {
        let stored = |plan: &mut Plan| plan.extent(array.extent());
        return with_element!(dtype, T => {
            let step = |y: MatMut<'_, T>, x: MatRef<'_, T>, stop: Stop<'_>| copy_until(y, x, stop);
            convert_as::<T, T>(session, &x, out, dtype, order, stored, step)
        });
    }
    let decoded = |plan: &mut Plan| x.extent(plan);
    with_real!(x.real()?, T => match dtype {
        DType::F32 => convert_as(session, &x, out, dtype, order, decoded, convert_until::<T, f32>),
        DType::F64 => convert_as(session, &x, out, dtype, order, decoded, convert_until::<T, f64>),
        DType::F16 => convert_as(session, &x, out, dtype, order, decoded, narrow_until::<T, f16>),
        DType::BF16 => convert_as(session, &x, out, dtype, order, decoded, narrow_until::<T, bf16>),
        _ => Err(Error::DType {
            what: format!(
                "{} is converted to float32, float64, float16 or bfloat16, not to {dtype}",
                x.name()
            ),
        }),
    })
}

type Stop<'a> = &'a dyn Fn() -> bool;

/// `step` makes a part of the result of a part of `x`, which tasks find in the extent `from`.
fn convert_as<T: Pod, U: Pod>(
    session: &Session,
    x: &Operand,
    out: Output,
    dtype: DType,
    order: Order,
    from: impl FnOnce(&mut Plan) -> ExtentRef,
    step: impl Fn(MatMut<'_, U>, MatRef<'_, T>, Stop<'_>) -> std::result::Result<(), kernels::Error>
    + Copy
    + Send
    + 'static,
) -> Result<Job<Array>> {
    out.check_distinct(&[x])?;
    let mut plan = Plan::new(format!("convert {}", x.name()));
    let target = out.target(session, dtype, &x.shape(), order, &mut plan)?;
    // The way to write comes first: a file that is also read is read by the same way.
    let into = plan.extent(&target.extent);
    let from = from(&mut plan);
    let (layout, out_layout) = (x.layout(), target.array.layout());
    let sides = [
        (&layout, Side::source(x, size_of::<T>() as u64)),
        (&out_layout, Side::sink(&target.array)),
    ];
    let tiles = convert_tiles(session, sides);
    let sinks = tiles.iter().cloned();
    target.cleared_for(
        &mut plan,
        into,
        sinks.map(|(rows, cols)| out_layout.tile(into, rows, cols).region),
        MemorySplit::new(session).moved_panel_bytes(),
    );
    let lines = |(rows, cols): &(Range<u64>, Range<u64>)| match out_layout.by_rows() {
        true => rows.start,
        false => cols.start,
    };
    for (at, tile) in tiles.iter().enumerate() {
        go_on()?;
        // In the same lines of the sink, where each tile completes the sectors that the one before
        // it has begun.
        if at > 0 && lines(tile) != lines(&tiles[at - 1]) {
            plan.group();
        }
        let (rows, cols) = tile.clone();
        let source = layout.tile(from, rows.clone(), cols.clone());
        let sink = out_layout.tile(into, rows, cols);
        plan.task(
            Task::new("convert")
                .read(source.region)
                .write(sink.region)
                .run(move |cx| {
                    let [source_block, sink_block] = cx.blocks else {
                        unreachable!("two were declared")
                    };
                    // A row may be longer than a panel.
                    let stop = || cx.cancelled.load(Ordering::Relaxed);
                    let (y, x) = (sink.of_mut::<U>(sink_block)?, source.of::<T>(source_block)?);
                    Ok(step(y, x, &stop)?)
                }),
        );
    }
    plan.bound(target.array.nbytes() + if x.is_stored() { x.bytes() } else { 0 });
    target.job(session, vec![plan])
}

/// Panels where both sides agree on what lies next to each other, else tiles.
fn convert_tiles(
    session: &Session,
    [from, into]: [(&Layout, Side); 2],
) -> Vec<(Range<u64>, Range<u64>)> {
    let ((layout, source), (out, sink)) = (from, into);
    let (rows, cols) = (layout.rows, layout.cols);
    let memory = MemorySplit::new(session);
    let both = source.element + sink.element;
    if layout.by_rows() == out.by_rows() {
        let share = memory.moved_panel_bytes();
        return match out.by_rows() {
            true => panels(rows, cols * both, share)
                .into_iter()
                .map(|rows| (rows, 0..cols))
                .collect(),
            false => panels(cols, rows * both, share)
                .into_iter()
                .map(|cols| (0..rows, cols))
                .collect(),
        };
    }
    let share = memory.transposed_tile_bytes(session.threads() as u64);
    // Along the runs of the sink, where each tile completes the sectors that the one before it has
    // begun.
    match out.by_rows() {
        true => {
            let (height, width) = tile_sides(share, (source, rows), (sink, cols));
            let (rows, cols) = (cut(0..rows, height), cut(0..cols, width));
            pairs(&rows, &cols).collect()
        }
        false => {
            let (width, height) = tile_sides(share, (source, cols), (sink, rows));
            let (rows, cols) = (cut(0..rows, height), cut(0..cols, width));
            pairs(&cols, &rows)
                .map(|(cols, rows)| (rows, cols))
                .collect()
        }
    }
}

/// All pairs, those of one of the first ranges together.
fn pairs<'a>(
    first: &'a [Range<u64>],
    second: &'a [Range<u64>],
) -> impl Iterator<Item = (Range<u64>, Range<u64>)> + 'a {
    first
        .iter()
        .flat_map(move |one| second.iter().map(move |other| (one.clone(), other.clone())))
}

/// One side of a copy: what a run of its elements takes.
#[derive(Clone, Copy)]
struct Side {
    /// Bytes of an element.
    element: u64,
    /// Bytes of a sector of its device: the two ends of a run take whole ones.
    sector: u64,
    /// Time of a run beside that of its bytes, in parts of that of a read from SSD.
    cost: f64,
}

impl Side {
    /// What is read from SSD, or from memory.
    fn source(x: &Operand, element: u64) -> Side {
        let (sector, cost) = match x {
            Operand::Stored(array) => (array.extent().sector().into(), 1.0),
            Operand::Memory { .. } => (1, 0.02),
        };
        Side {
            element,
            sector,
            cost,
        }
    }

    /// What is written. Small writes are several times as slow as small reads, on most devices.
    fn sink(y: &Array) -> Side {
        Side {
            element: y.dtype().bytes(),
            sector: y.extent().sector().into(),
            cost: 6.0,
        }
    }

    fn run_bytes(&self, elements: u64) -> u64 {
        elements * self.element + 2 * (self.sector - 1)
    }
}

/// Sides of a tile of which both blocks take at most `share` bytes: the first along the runs of the
/// source, the second along those of the sink, each with the length of such a run. Of all that fit,
/// those whose runs take the least time an element; whole runs follow each other, and are one.
fn tile_sides(share: u64, source: (Side, u64), sink: (Side, u64)) -> (u64, u64) {
    let ((source, width), (sink, height)) = (source, sink);
    let of_whole_runs = share.saturating_sub(height * source.run_bytes(0))
        / (height * source.element + sink.run_bytes(height)).max(1);
    let doubled = std::iter::successors(Some(1), |first| Some(2 * first));
    doubled
        .take_while(|first| *first < width)
        .chain([of_whole_runs.clamp(1, width), width])
        .map(|first| {
            let left = share.saturating_sub(first * sink.run_bytes(0));
            let second = left / (source.run_bytes(first) + first * sink.element);
            let sector = (sink.sector / sink.element).max(1);
            let whole = match second < sector {
                true => second,
                false => second / sector * sector,
            };
            (first, if second >= height { height } else { whole })
        })
        .filter(|(_, second)| *second > 0)
        .min_by(|one, other| {
            let cost = |&(first, second): &(u64, u64)| {
                let runs = |side: u64, length: u64| match side == length {
                    true => (first * second) as f64,
                    false => side as f64,
                };
                source.cost / runs(first, width) + sink.cost / runs(second, height)
            };
            cost(one).total_cmp(&cost(other))
        })
        .unwrap_or((1, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn side(cost: f64) -> Side {
        Side {
            element: 4,
            sector: 512,
            cost,
        }
    }

    #[test]
    fn a_tile_is_all_that_fits() {
        let (source, sink) = (side(1.0), side(6.0));
        assert_eq!(
            tile_sides(64 * MIB, (source, 1000), (sink, 3000)),
            (1000, 3000)
        );
        assert_eq!(tile_sides(0, (source, 1000), (sink, 3000)), (1, 1));
        assert_eq!(tile_sides(MIB, (source, 1), (sink, 1 << 30)).0, 1);
    }

    #[test]
    fn runs_that_cost_more_are_longer() {
        for share in [64 << 10, MIB, 16 * MIB] {
            let sides = |cost| tile_sides(share, (side(cost), 1 << 20), (side(6.0), 1 << 20));
            let ((first, second), (loaded, written)) = (sides(1.0), sides(0.02));
            assert!(2 * first <= second && loaded < first && second < written);
            let bytes = second * side(1.0).run_bytes(first) + first * side(6.0).run_bytes(second);
            assert!(share / 2 < bytes && bytes <= share, "{bytes} of {share}");
        }
    }
}
