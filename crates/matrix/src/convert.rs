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
    for (rows, cols) in convert_tiles(
        session,
        &layout,
        &out_layout,
        [size_of::<T>() as u64, dtype.bytes()],
    ) {
        go_on()?;
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

/// Panels where both sides agree on what lies next to each other, else squares as large as memory
/// allows.
fn convert_tiles(
    session: &Session,
    layout: &Layout,
    out: &Layout,
    [source, sink]: [u64; 2],
) -> Vec<(Range<u64>, Range<u64>)> {
    let (rows, cols) = (layout.rows, layout.cols);
    let share = MemorySplit::new(session).moved_panel_bytes();
    let both = source + sink;
    if layout.by_rows() == out.by_rows() {
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
    let (across, along) = sides_of_whole_sectors(share / both, source, sink);
    let (height, width) = if layout.by_rows() {
        (along, across)
    } else {
        (across, along)
    };
    let (rows, cols) = (cut(0..rows, height), cut(0..cols, width));
    // Along the runs of the sink, where each tile completes the sectors that the one before it has
    // begun.
    match out.by_rows() {
        true => pairs(&rows, &cols).collect(),
        false => pairs(&cols, &rows)
            .map(|(cols, rows)| (rows, cols))
            .collect(),
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

/// Sides of a tile of at most `elements` elements, the first along the runs of a source and the
/// second along those of a sink: near-square, and where there is room for any such, with runs of
/// whole sectors in both.
fn sides_of_whole_sectors(elements: u64, source_bytes: u64, sink_bytes: u64) -> (u64, u64) {
    const SECTOR_BYTES: u64 = 512;
    let (source, sink) = (SECTOR_BYTES / source_bytes, SECTOR_BYTES / sink_bytes);
    let side = ((elements as f64).sqrt() as u64).max(1);
    match elements >= source * sink {
        true => {
            let first = (side / source * source).max(source);
            (first, (elements / first / sink * sink).max(sink))
        }
        false => (side, side),
    }
}
