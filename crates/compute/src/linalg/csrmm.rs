//! C = alpha A B + beta C for a sparse A: A passes by once, in pieces, while dense rows wait in
//! memory.
//!
//! Shapes: A is m x n, B is n x d, C is m x d. Cost: 2 nnz d flops. Which of the two dense matrices
//! waits depends on the lines of A:
//!
//! - Rows (CSR): a row of C is a combination of rows of B. B waits in memory; where it does not
//!   fit, it passes by in bands for each block of C that does.
//! - Columns (CSC, or the transpose of CSR, which needs no transpose on disk): a row of B is added
//!   to many rows of C. C waits in memory in up to eight copies, summed in order at the end, or in
//!   windows of its rows that each pick their entries from A; where one copy does not fit, A and B
//!   pass by once for each part that does.
//!
//! Bytes: A + B + C where what waits fits the budget. Source: SEM-SpMM (Zheng et al., TPDS 2017)
//! for what to keep in memory.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::panels::{cut, panels_that_fit};
use outcore_core::{Error, Job, MemorySplit, Order, PLAN_THREADS, Result, Session, with_real};
use outcore_device::{Buf, Locked};
use outcore_engine::{Block, ExtentRef, Plan, Region, Task, go_on};
use outcore_kernels as kernels;
use outcore_kernels::{MatMut, MatRef, Real, csrmm_flops, view, view_mut};
use outcore_matrix::sparse::{Piece, with_lines};
use outcore_matrix::{Array, Compressed, Layout, Operand, Output, Sparse, Tile};

use super::gemm::{INLINE_BYTES, INLINE_FLOPS};
use super::of_two_types;

/// Scalars of a product, and where it goes.
#[derive(Clone)]
pub struct Csrmm {
    /// Factor of A B.
    pub alpha: f64,
    /// Factor of what is in `out`, which must then be there; 0 to overwrite it.
    pub beta: f64,
    /// Where C goes.
    pub out: Output,
}

impl Default for Csrmm {
    fn default() -> Csrmm {
        Csrmm {
            alpha: 1.0,
            beta: 0.0,
            out: Output::Scratch,
        }
    }
}

/// C = alpha A B + beta C. The transpose of A is `a.t()`.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::{Csrmm, csrmm};
///
/// // a = [[1, 0, 2], [0, 3, 0]], x = [[1, 2], [3, 4], [5, 6]]
/// let y = csrmm(&session, &a, x.into(), Csrmm::default())?.run()?;
/// assert_eq!(y.to_vec::<f32>()?, [11.0, 14.0, 9.0, 12.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`]; [`Error::Value`] for a `beta` without an `out` in place, or
/// an `out` that shares bytes with B; [`Error::OverBudget`]; what keeps the output from being made.
///
/// Determinism: the bits depend on the budget, not on what is free of it or on the number of
/// threads.
pub fn csrmm(session: &Session, a: &Sparse, b: Operand, options: Csrmm) -> Result<Job<Array>> {
    check(a, &b)?;
    let Csrmm { alpha, beta, out } = options;
    match &out {
        Output::InPlace(_) => out.check_distinct(&[&b])?,
        _ if beta != 0.0 => {
            return Err(Error::value(
                "csrmm: beta needs a matrix in `out` to add to",
            ));
        }
        _ => {}
    }
    let mut plan = Plan::new("csrmm");
    let order = match &out {
        Output::InPlace(c) => c.order(),
        _ => Order::Row,
    };
    let shape: &[u64] = if b.is_vector() {
        &[a.rows()]
    } else {
        &[a.rows(), b.cols()]
    };
    let target = out.target(session, a.dtype(), shape, order, &mut plan)?;
    let c = Sink::Stored(plan.extent(&target.extent), target.array.layout());
    with_real!(a.real(), T => Product::<T>::new(session, a, &b, alpha, beta).tasks(&mut plan, c))?;
    plan.bound(
        a.stored_bytes()
            + b.stored_bytes()
            + target.array.nbytes() * if beta == 0.0 { 1 } else { 2 },
    );
    target.job(session, vec![plan])
}

/// C = alpha A B into the caller's memory, row after row.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::csrmm_into;
///
/// // a = [[1, 0, 2], [0, 3, 0]], x = [[1, 2], [3, 4], [5, 6]]
/// let y = csrmm_into(&session, &a, x.into(), 1.0, Buf::anonymous(16)?)?.run()?;
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&y), [11.0, 14.0, 9.0, 12.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`csrmm`]; [`Error::Shape`] for memory that is not exactly m d elements.
pub fn csrmm_into(
    session: &Session,
    a: &Sparse,
    b: Operand,
    alpha: f64,
    into: Buf,
) -> Result<Job<Buf>> {
    check(a, &b)?;
    let bytes = a.rows() * b.cols() * a.dtype().bytes();
    if into.len() as u64 != bytes {
        return Err(Error::shape(format!(
            "csrmm: the result has {bytes} bytes, the memory for it {}",
            into.len()
        )));
    }
    let mut plan = Plan::new("csrmm");
    let (whole, rest) = into.lend();
    let c = Sink::memory(rest, b.cols());
    with_real!(a.real(), T => Product::<T>::new(session, a, &b, alpha, 0.0).tasks(&mut plan, c))?;
    plan.bound(a.stored_bytes() + b.stored_bytes());
    let lost = |_| Error::Failed {
        what: "a task still holds memory of the result".into(),
    };
    let small = !a.is_stored()
        && !b.is_stored()
        && plan.flops() <= INLINE_FLOPS
        && a.nbytes() + b.bytes() + bytes <= INLINE_BYTES;
    // Copies and turns make tasks wait for each other.
    let is_inline =
        small && a.format() == Compressed::Rows && b.layout().by_rows() && !a.has_cut_lines();
    let job = Job::new(session, vec![plan], move |_| whole.reclaim().map_err(lost))?;
    Ok(if is_inline { job.run_inline() } else { job })
}

/// The most bytes of a piece that meets `cols` columns of a dense matrix, so that it takes one call
/// of a kernel. The smallest pieces that there are may be longer; their products are cut.
pub(crate) fn short_piece_bytes(cols: u64, element: u64) -> u64 {
    kernels::CALL_FLOPS / (2 * cols.max(1)) * (4 + element)
}

pub(super) fn check(a: &Sparse, b: &Operand) -> Result<()> {
    if a.real() != b.real()? {
        let (a, b) = ((a.name(), a.dtype()), (b.name(), b.dtype()));
        return Err(of_two_types("csrmm", a, b));
    }
    match a.cols() == b.rows() {
        true => Ok(()),
        false => {
            let [rows, cols] = a.shape();
            let (name, other) = (a.name(), b.name());
            Err(Error::shape(format!(
                "csrmm: {name} is {rows} x {cols}, {other} is {} x {}: the inner dimensions differ",
                b.rows(),
                b.cols()
            )))
        }
    }
}

/// Where rows of C go.
pub(super) enum Sink {
    Stored(ExtentRef, Layout),
    Memory {
        /// What of the caller's memory has not been given out.
        rest: Buf,
        cols: u64,
        last: Option<Rows>,
    },
}

/// Some rows of C, as a task has them.
#[derive(Clone)]
pub(super) enum Rows {
    Stored(Tile),
    /// Several tasks that change them take turns.
    Memory {
        buf: Arc<Mutex<Buf>>,
        rows: usize,
        cols: usize,
        turn: Option<Region>,
    },
}

impl Sink {
    pub(super) fn memory(rest: Buf, cols: u64) -> Sink {
        Sink::Memory {
            rest,
            cols,
            last: None,
        }
    }

    /// The rows that a piece makes; to be asked for in order.
    fn rows_of(&mut self, plan: &mut Plan, piece: &Piece, shared: bool, element: u64) -> Rows {
        match self {
            Sink::Memory {
                last: Some(last), ..
            } if piece.continues => last.clone(),
            _ => self.rows(plan, piece.lines(), shared || piece.breaks_off, element),
        }
    }

    /// The next rows, in order; `shared` where several tasks are to change them.
    fn rows(&mut self, plan: &mut Plan, rows: Range<u64>, shared: bool, element: u64) -> Rows {
        match self {
            Sink::Stored(extent, layout) => {
                Rows::Stored(layout.tile(*extent, rows, 0..layout.cols))
            }
            Sink::Memory { rest, cols, last } => {
                let (rows, cols) = ((rows.end - rows.start) as usize, *cols as usize);
                let buf = Arc::new(Mutex::new(rest.split_to(rows * cols * element as usize)));
                let turn = shared.then(|| plan.serial());
                let given = Rows::Memory {
                    buf,
                    rows,
                    cols,
                    turn,
                };
                *last = Some(given.clone());
                given
            }
        }
    }
}

impl Rows {
    /// Declares them as the last access of a task.
    fn declare(&self, task: Task, fresh: bool) -> Task {
        match self {
            Rows::Stored(tile) if fresh => task.write(tile.region),
            Rows::Stored(tile) => task.update(tile.region),
            Rows::Memory { turn, .. } => turn.iter().fold(task, |task, turn| task.update(*turn)),
        }
    }

    /// Lends the rows to `f`, which sees them row by row; `beta` says what is to become of what
    /// they hold.
    fn change<T: Real>(
        &self,
        blocks: &mut [Block],
        scratch: &mut [u8],
        beta: T,
        stop: &dyn Fn() -> bool,
        f: impl FnOnce(MatMut<'_, T>, T) -> Result<()>,
    ) -> Result<()> {
        match self {
            Rows::Memory {
                buf, rows, cols, ..
            } => {
                let mut buf = buf.locked();
                f(
                    view_mut(numbers::<T>(&mut buf), *rows, *cols, *cols, 1)?,
                    beta,
                )
            }
            Rows::Stored(tile) => {
                let out = tile.of_mut::<T>(blocks.last_mut().expect("declared last"))?;
                if tile.is_by_rows() {
                    return f(out, beta);
                }
                // Columns lie together: the change is made on a copy.
                let copy = &mut numbers::<T>(scratch)[..tile.rows * tile.cols];
                let mut copy = view_mut(copy, tile.rows, tile.cols, tile.cols, 1)?;
                if beta != T::ZERO {
                    kernels::copy_until(copy.as_mut(), out.as_ref(), stop)?;
                }
                f(copy.as_mut(), beta)?;
                Ok(kernels::copy_until(out, copy.as_ref(), stop)?)
            }
        }
    }

    /// Scratch that [`change`](Rows::change) needs.
    fn scratch_bytes(&self, element: u64) -> usize {
        match self {
            Rows::Stored(tile) if !tile.is_by_rows() => tile.rows * tile.cols * element as usize,
            _ => 0,
        }
    }
}

/// Scratch as numbers; nothing has no alignment.
pub(crate) fn numbers<T: Real>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() {
        &mut []
    } else {
        bytemuck::cast_slice_mut(bytes)
    }
}

/// The same matrix with rows that lie together, copied if they do not.
pub(super) fn by_rows<'a, T: Real>(
    x: MatRef<'a, T>,
    packing: &'a mut [u8],
    stop: &dyn Fn() -> bool,
) -> Result<MatRef<'a, T>> {
    if x.col_stride() == 1 {
        return Ok(x);
    }
    let (rows, cols) = x.shape();
    let packed = &mut numbers::<T>(packing)[..rows * cols];
    kernels::copy_until(view_mut(packed, rows, cols, cols, 1)?, x, stop)?;
    Ok(view(packed, rows, cols, cols, 1)?)
}

pub(super) struct Product<'a, T> {
    a: &'a Sparse,
    b: &'a Operand,
    alpha: T,
    beta: T,
    element: u64,
    split: MemorySplit,
}

impl<'a, T: Real> Product<'a, T> {
    fn new(
        session: &'a Session,
        a: &'a Sparse,
        b: &'a Operand,
        alpha: f64,
        beta: f64,
    ) -> Product<'a, T> {
        let (alpha, beta) = (T::of(alpha), T::of(beta));
        Product {
            a,
            b,
            alpha,
            beta,
            element: size_of::<T>() as u64,
            split: MemorySplit::new(session),
        }
    }

    fn tasks(&self, plan: &mut Plan, mut c: Sink) -> Result<()> {
        match self.a.format() {
            Compressed::Rows => self.gather(plan, &mut c),
            Compressed::Columns => self.scatter(plan, &mut c),
        }
    }

    fn row_bytes(&self) -> u64 {
        self.b.cols() * self.element
    }

    /// Bytes of what a task reads of A and of as many rows of a dense matrix.
    fn share(&self, split: MemorySplit) -> u64 {
        split
            .mapped_panel_bytes()
            .min(short_piece_bytes(self.b.cols(), self.element))
    }

    /// Whether `bytes` can stay in memory while A and rows of the other dense matrix pass by, some
    /// pieces at a time.
    fn waits(&self, bytes: u64, split: &MemorySplit) -> bool {
        const ON_THE_WAY: u64 = 6;
        let row_bytes = self.row_bytes();
        let piece = |piece: &Piece| {
            self.a.bytes_of(piece) + (piece.lines().end - piece.lines().start) * row_bytes
        };
        let least = || self.a.pieces(0, |_| 0).iter().map(piece).max().unwrap_or(0);
        split.leaves_half(bytes) || split.leaves_room_for(bytes, || ON_THE_WAY * least())
    }

    /// Rows of C from rows of B.
    fn gather(&self, plan: &mut Plan, c: &mut Sink) -> Result<()> {
        let (n, row_bytes, split) = (self.a.cols(), self.row_bytes().max(1), self.split);
        let whole = self.b.waiting_bytes();
        if self.waits(whole, &split) {
            plan.note("B", "in memory");
            let band = Band::new(self.b, plan, 0..n, self.element, None);
            band.load::<T>(plan, self.b, split.packed_bytes());
            for piece in self
                .a
                .pieces(self.share(split.hold(whole)), |lines| lines * row_bytes)
            {
                go_on()?;
                let rows = c.rows_of(plan, &piece, false, self.element);
                self.gather_task(plan, &piece, &band, rows, true);
            }
            return Ok(());
        }
        let bands = cut(0..n, (split.band_bytes() / row_bytes).max(1));
        plan.note("bands of B", bands.len());
        let slots = Band::slots(self.b, plan, &bands, self.element);
        let slot = |number: usize| slots.as_ref().map(|slots| slots[number % 2]);
        let bands = bands
            .into_iter()
            .enumerate()
            .map(|(number, rows)| Band::new(self.b, plan, rows, self.element, slot(number)));
        let bands: Vec<Band> = bands.collect();
        let pieces = self
            .a
            .pieces(self.share(split.third()), |lines| lines * row_bytes);
        let mut backwards = false;
        let mut start = 0;
        while start < pieces.len() {
            let mut lines = 0;
            let more = pieces[start..].iter().take_while(|piece| {
                lines += piece.lines().end - piece.lines().start;
                lines * row_bytes <= split.beside_bands_bytes()
            });
            let end = start + more.count().max(1);
            let rows: Vec<Rows> = pieces[start..end]
                .iter()
                .map(|piece| c.rows_of(plan, piece, true, self.element))
                .collect();
            let order: Vec<&Band> = if backwards {
                bands.iter().rev().collect()
            } else {
                bands.iter().collect()
            };
            for (turn, band) in order.into_iter().enumerate() {
                band.load::<T>(plan, self.b, split.packed_bytes());
                for (piece, rows) in pieces[start..end].iter().zip(&rows) {
                    go_on()?;
                    self.gather_task(plan, piece, band, rows.clone(), turn == 0);
                }
            }
            (start, backwards) = (end, !backwards);
        }
        Ok(())
    }

    fn gather_task(&self, plan: &mut Plan, piece: &Piece, band: &Band, rows: Rows, first: bool) {
        let (alpha, beta) = (
            self.alpha,
            if first && !piece.continues {
                self.beta
            } else {
                T::ONE
            },
        );
        let (lines, from, b) = (self.a.blocks(piece), band.rows.start as usize, band.clone());
        let entries = piece.entries() * (band.rows.end - band.rows.start) / self.a.cols().max(1);
        let task = Task::new("csrmm").flops(csrmm_flops(entries as usize, self.b.cols() as usize));
        let task = self
            .a
            .regions(plan, piece)
            .into_iter()
            .fold(task, Task::read)
            .read(band.region());
        let task = rows
            .declare(task, beta == T::ZERO)
            .scratch(rows.scratch_bytes(self.element));
        plan.task(task.run(move |cx| {
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let (read, written) = cx.blocks.split_at_mut(lines.count() + 1);
            let b = b.of::<T>(&read[lines.count()])?;
            let product =
                |c: MatMut<'_, T>, beta| with_lines!(lines, read, T, a => Ok(kernels::csrmm_until(c, alpha, a, b, from, beta, &stop)?));
            Ok(rows.change(written, cx.scratch, beta, &stop, product)?)
        }));
    }

    /// Rows of B to rows of C.
    fn scatter(&self, plan: &mut Plan, c: &mut Sink) -> Result<()> {
        let (n, row_bytes) = (self.a.rows(), self.row_bytes().max(1));
        let one = n * row_bytes;
        let copies = self.split.states(one).lanes();
        let all = copies * one;
        // How rows of C are cut changes no sum.
        let free = self.split.of_free();
        let room = if !free.leaves_half(all) && self.waits(all, &free) {
            all
        } else {
            free.half().left()
        };
        let passes = cut(0..n, (room / (copies * row_bytes)).clamp(1, n.max(1)));
        plan.note("copies of C", copies);
        plan.note("passes over A", passes.len());
        // Which copy a piece goes to decides about sums.
        let share = if copies > 1 {
            self.share(self.split.half())
        } else {
            self.share(free.hold(room))
        };
        let pieces = self.a.pieces(share, |lines| lines * row_bytes);
        for pass in passes {
            let windows = cut(
                pass.clone(),
                (pass.end - pass.start).div_ceil(PLAN_THREADS / copies),
            );
            let windows: Vec<Vec<Lane>> = windows
                .into_iter()
                .map(|rows| Lane::of(plan, c, rows, copies, self.element, self.b.cols()))
                .collect();
            for (index, piece) in pieces.iter().enumerate() {
                go_on()?;
                for lanes in &windows {
                    let turn = index / lanes.len();
                    self.scatter_task(plan, piece, &lanes[index % lanes.len()], turn == 0);
                }
            }
            for lanes in &windows {
                self.gather_lanes(plan, lanes, pieces.len());
            }
        }
        Ok(())
    }

    fn scatter_task(&self, plan: &mut Plan, piece: &Piece, lane: &Lane, fresh: bool) {
        let (alpha, beta, element) = (
            self.alpha,
            if lane.is_result() { self.beta } else { T::ZERO },
            self.element,
        );
        let (lines, layout) = (self.a.blocks(piece), self.b.layout());
        let tile = layout.tile(self.b.extent(plan), piece.lines(), 0..self.b.cols());
        let entries = piece.entries() * (lane.rows.end - lane.rows.start) / self.a.rows().max(1);
        let task = Task::new("csrmm").flops(csrmm_flops(entries as usize, self.b.cols() as usize));
        let task = self
            .a
            .regions(plan, piece)
            .into_iter()
            .fold(task, Task::read)
            .read(tile.region);
        let packed = if tile.is_by_rows() {
            0
        } else {
            tile.rows * tile.cols * element as usize
        };
        let task = lane
            .declare(task, fresh && beta == T::ZERO)
            .scratch(packed + lane.scratch_bytes(element));
        let lane = lane.clone();
        plan.task(task.run(move |cx| {
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            let (read, written) = cx.blocks.split_at_mut(lines.count() + 1);
            let (packing, scratch) = cx.scratch.split_at_mut(packed);
            let b = by_rows(tile.of::<T>(&read[lines.count()])?, packing, &stop)?;
            let changed = lane.change(written, scratch, &stop, |mut c| {
                if fresh {
                    kernels::scale_until(c.as_mut(), beta, &stop);
                }
                with_lines!(lines, read, T, a => Ok(kernels::csrmm_transposed_until(c, alpha, a, b, lane.rows.start as usize, &stop)?))
            });
            Ok(changed?)
        }));
    }

    /// Adds the copies up, in order. Copies that no piece came to are left out.
    fn gather_lanes(&self, plan: &mut Plan, lanes: &[Lane], pieces: usize) {
        let result = &lanes[0];
        if pieces == 0 {
            let (beta, result) = (self.beta, result.clone());
            let task = result
                .declare(Task::new("no entries"), beta == T::ZERO)
                .scratch(result.scratch_bytes(self.element));
            plan.task(task.run(move |cx| {
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                let changed = result.change::<T>(cx.blocks, cx.scratch, &stop, |c| {
                    kernels::scale_until(c, beta, &stop);
                    Ok(())
                });
                Ok(changed?)
            }));
            return;
        }
        for lane in lanes[1..].iter().take(pieces.saturating_sub(1)) {
            let (from, result) = (lane.clone(), result.clone());
            let Destination::Volatile(region) = &lane.place else {
                continue;
            };
            let task = result
                .declare(Task::new("add").read(*region), false)
                .scratch(result.scratch_bytes(self.element));
            plan.task(task.run(move |cx| {
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                let (read, written) = cx.blocks.split_at_mut(1);
                let (rows, cols) = (
                    (from.rows.end - from.rows.start) as usize,
                    from.cols as usize,
                );
                let part = view(read[0].slice::<T>(), rows, cols, cols, 1)?;
                Ok(result.change(written, cx.scratch, &stop, |c| {
                    Ok(kernels::axpby_until(c, T::ONE, part, T::ONE, &stop)?)
                })?)
            }));
        }
    }
}

/// Some rows of B, waiting in memory.
#[derive(Clone)]
pub(super) struct Band {
    pub(super) rows: Range<u64>,
    cols: u64,
    place: BandPlace,
}

#[derive(Clone, Copy)]
enum BandPlace {
    /// As they lie.
    Direct(Tile),
    /// Copied so that rows lie together.
    Packed(Region),
}

impl Band {
    /// `slot` is where it is copied to, if it has to be; memory of its own, if there is none.
    pub(super) fn new(
        b: &Operand,
        plan: &mut Plan,
        rows: Range<u64>,
        element: u64,
        slot: Option<Region>,
    ) -> Band {
        let tile = b.layout().tile(b.extent(plan), rows.clone(), 0..b.cols());
        let place = match tile.is_by_rows() {
            true => BandPlace::Direct(tile),
            false => BandPlace::Packed(
                slot.unwrap_or_else(|| Band::slot(plan, &rows, b.cols() * element)),
            ),
        };
        Band {
            rows,
            cols: b.cols(),
            place,
        }
    }

    fn slot(plan: &mut Plan, rows: &Range<u64>, row_bytes: u64) -> Region {
        let bytes = (rows.end - rows.start) * row_bytes;
        Region::span(plan.volatile("B by rows", bytes), 0, bytes)
    }

    /// Two places that bands take in turn, the first of which is the longest, where they have to be
    /// copied.
    fn slots(
        b: &Operand,
        plan: &mut Plan,
        bands: &[Range<u64>],
        element: u64,
    ) -> Option<[Region; 2]> {
        let longest = bands.first().filter(|_| !b.layout().by_rows())?;
        Some([0, 1].map(|_| Band::slot(plan, longest, b.cols() * element)))
    }

    pub(super) fn region(&self) -> Region {
        match self.place {
            BandPlace::Direct(tile) => tile.region,
            BandPlace::Packed(region) => region,
        }
    }

    /// Tasks that copy it, some columns at a time, where it has to be copied.
    pub(super) fn load<T: Real>(&self, plan: &mut Plan, b: &Operand, share: u64) {
        let BandPlace::Packed(region) = self.place else {
            return;
        };
        let (height, width, element) = (
            (self.rows.end - self.rows.start) as usize,
            self.cols as usize,
            size_of::<T>() as u64,
        );
        let extent = b.extent(plan);
        let tile_of = |cols: Range<u64>| b.layout().tile(extent, self.rows.clone(), cols);
        let frame_bytes = |cols| b.frame_bytes(self.rows.clone(), cols);
        for cols in panels_that_fit(self.cols, height as u64 * element, share, frame_bytes) {
            let tile = tile_of(cols.clone());
            let task = Task::new("pack").read(tile.region);
            let task = if cols.start == 0 {
                task.write(region)
            } else {
                task.update(region)
            };
            plan.task(task.run(move |cx| {
                // A column may be longer than a panel.
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                let [from, into] = &mut *cx.blocks else {
                    unreachable!("two were declared")
                };
                let into = view_mut(into.slice_mut::<T>(), height, width, width, 1)?;
                Ok(kernels::copy_until(
                    into.subcols_mut(cols.start as usize, tile.cols),
                    tile.of::<T>(from)?,
                    &stop,
                )?)
            }));
        }
    }

    pub(super) fn of<'b, T: Real>(&self, block: &'b Block) -> Result<MatRef<'b, T>> {
        match self.place {
            BandPlace::Direct(tile) => tile.of::<T>(block),
            BandPlace::Packed(_) => {
                let (rows, cols) = (
                    (self.rows.end - self.rows.start) as usize,
                    self.cols as usize,
                );
                Ok(view(block.slice::<T>(), rows, cols, cols, 1)?)
            }
        }
    }
}

/// A copy of some rows of C, to which the entries of some pieces go.
#[derive(Clone)]
pub(super) struct Lane {
    rows: Range<u64>,
    cols: u64,
    place: Destination,
}

#[derive(Clone)]
enum Destination {
    /// C itself.
    Result(Rows),
    Volatile(Region),
}

impl Lane {
    /// The result, and further copies.
    fn of(
        plan: &mut Plan,
        c: &mut Sink,
        rows: Range<u64>,
        copies: u64,
        element: u64,
        cols: u64,
    ) -> Vec<Lane> {
        let bytes = (rows.end - rows.start) * cols * element;
        let result = Destination::Result(c.rows(plan, rows.clone(), true, element));
        let further = (1..copies).map(|copy| {
            Destination::Volatile(Region::span(
                plan.volatile(format!("copy {copy} of C"), bytes),
                0,
                bytes,
            ))
        });
        [result]
            .into_iter()
            .chain(further)
            .map(|place| Lane {
                rows: rows.clone(),
                cols,
                place,
            })
            .collect()
    }

    fn is_result(&self) -> bool {
        matches!(self.place, Destination::Result(_))
    }

    fn declare(&self, task: Task, fresh: bool) -> Task {
        match &self.place {
            Destination::Result(rows) => rows.declare(task, fresh),
            Destination::Volatile(region) if fresh => task.write(*region),
            Destination::Volatile(region) => task.update(*region),
        }
    }

    fn scratch_bytes(&self, element: u64) -> usize {
        if let Destination::Result(rows) = &self.place {
            rows.scratch_bytes(element)
        } else {
            0
        }
    }

    fn change<T: Real>(
        &self,
        blocks: &mut [Block],
        scratch: &mut [u8],
        stop: &dyn Fn() -> bool,
        f: impl FnOnce(MatMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        match &self.place {
            Destination::Result(rows) => rows.change(blocks, scratch, T::ONE, stop, |c, _| f(c)),
            Destination::Volatile(_) => {
                let (rows, cols) = (
                    (self.rows.end - self.rows.start) as usize,
                    self.cols as usize,
                );
                f(view_mut(
                    blocks.last_mut().expect("declared last").slice_mut::<T>(),
                    rows,
                    cols,
                    cols,
                    1,
                )?)
            }
        }
    }
}
