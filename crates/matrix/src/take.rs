//! Rows of a matrix by their numbers, as another matrix.
//!
//! Rows are read where they are, neighbours together, as long as that is less work than to read all
//! of the matrix and to move what is wanted twice. Else, for many short rows in no order, a first
//! pass puts each row into a part of scratch, with those that are near it in the result; a second
//! one puts each part, which fits in memory, in order:
//!
//! ```text
//!   matrix    panel 0     panel 1     panel 2           read in order
//!               |  \        |  \        |  \
//!   scratch   part 0: chunks of panels 0, 1, 2 | part 1: chunks of panels 0, 1, 2
//!               |                                |
//!   result    rows 0..r                        rows r..2r             written in order
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use outcore_core::file::FILE_BLOCK_BYTES;
use outcore_core::panels::{cut, panels};
use outcore_core::{DType, Error, Job, MemorySplit, Order, Result, Session};
use outcore_engine::{Block, Extent, ExtentRef, GatherOptions, Item, Plan, Region, Task, go_on};

use crate::array::{Array, with_element};
use crate::layout::{Layout, Tile};
use crate::output::Output;

/// What a request costs, in bytes that are transferred: at 1 GB/s and 100,000 requests a second.
const REQUEST_COST_BYTES: u64 = 8192;

/// Rows that are copied between two looks at whether to go on.
const LOOK_ROWS: usize = 1 << 12;

/// Bytes of a panel, and of a part, at most: the longer they are, the longer are the chunks of both.
const PART_BYTES_MAX: u64 = 256 << 20;

/// Regions that a task reads, at most.
const REGIONS_MAX: usize = 1024;

impl Array {
    /// Rows by their numbers, in this order, as a new matrix; a number may come more than once.
    ///
    /// Cost: reads the rows and writes them; many short ones are moved twice, by way of scratch.
    /// Holds 8 bytes a row.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let y = x.take(&[2, 0, 2], Output::Scratch)?.run()?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    /// let part = session.part(4 << 20)?;
    /// assert_eq!(x.take_within(&part, &[1], Output::Scratch)?.run()?.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that is not there, [`Error::Value`] for an output that shares
    /// bytes with the matrix, [`Error::OverBudget`]; what keeps the output from being made.
    pub fn take(&self, rows: &[u64], out: Output) -> Result<Job<Array>> {
        self.take_within(self.session(), rows, out)
    }

    /// As [`take`](Array::take), within the budget of another session.
    ///
    /// # Errors
    /// As [`take`](Array::take).
    pub fn take_within(&self, session: &Session, rows: &[u64], out: Output) -> Result<Job<Array>> {
        self.check_rows(rows)?;
        out.check_distinct(&[&self.into()])?;
        let mut shape = self.shape();
        shape[0] = rows.len() as u64;
        let mut plan = Plan::new(format!("take rows of {}", self.name()));
        let target = out.target(session, self.dtype(), &shape, self.order(), &mut plan)?;
        if target.array.order() != self.order() && self.cols() > 1 && rows.len() > 1 {
            return Err(Error::value(format!(
                "{} lies by rows and {} by columns, or the other way; rows are taken to a matrix of the same order",
                self.name(),
                target.array.name()
            )));
        }
        let selection = Selection {
            session,
            x: self,
            rows,
            layout: target.array.layout(),
        };
        // What is read at least depends on how often a row comes.
        plan.bound(target.array.nbytes());
        let plans = selection.plans(plan, &target.extent)?;
        target.job(session, plans)
    }

    /// Plans that take rows to an extent, where they lie by rows as a matrix of this layout: for what
    /// writes its results in one order, and is to leave them in another.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let y = Array::temporary(&session, DType::F32, &[3, 2], Order::Row)?;
    /// for plan in x.take_plans(&session, &[2, 0, 1], (y.extent(), y.layout()))? {
    ///     session.run_until(plan, &|| false)?;
    /// }
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that is not there; those of scratch.
    pub fn take_plans(
        &self,
        session: &Session,
        rows: &[u64],
        (extent, layout): (&Extent, Layout),
    ) -> Result<Vec<Plan>> {
        self.check_rows(rows)?;
        let selection = Selection {
            session,
            x: self,
            rows,
            layout,
        };
        selection.plans(Plan::new(format!("take rows of {}", self.name())), extent)
    }

    /// Reads rows by their numbers, in this order, to the caller's memory, all in flight at once.
    /// Holds the result besides the budget. `go_on` is asked every 50 ms or so.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // x = [[1, 2], [3, 4], [5, 6]]
    /// let mut values = [0.0f32; 2];
    /// x.gather_rows(&[2, 0], 1..2, bytemuck::bytes_of_mut(&mut values), || true)?;
    /// assert_eq!(values, [6.0, 2.0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that is not there or too little memory, [`Error::Value`] for a
    /// matrix by columns, [`Error::Cancelled`] when `go_on` says no; [`Error::OverBudget`].
    pub fn gather_rows(
        &self,
        rows: &[u64],
        cols: Range<u64>,
        into: &mut [u8],
        go_on: impl FnMut() -> bool,
    ) -> Result<()> {
        self.check_rows(rows)?;
        let part = self.slice(0..self.rows(), cols)?;
        let layout = part.layout();
        if !layout.by_rows() && layout.cols > 1 {
            return Err(Error::value(format!(
                "{} lies by columns; rows are gathered from a matrix by rows",
                self.name()
            )));
        }
        let items: Vec<Item<'_>> = rows
            .iter()
            .map(|row| Item {
                extent: self.extent(),
                offset: layout.offset + row * layout.row_stride * layout.element,
                len: (layout.cols * layout.element) as usize,
            })
            .collect();
        if (into.len() as u64) < rows.len() as u64 * layout.cols * layout.element {
            return Err(Error::shape(format!(
                "{} rows of {} need more memory than {} bytes",
                rows.len(),
                self.name(),
                into.len()
            )));
        }
        let options = GatherOptions::default();
        let engine = self.session().engine();
        Ok(engine.gather_into(&items, into, &options, go_on)?)
    }

    fn check_rows(&self, rows: &[u64]) -> Result<()> {
        match rows.iter().find(|row| **row >= self.rows()) {
            Some(row) => Err(Error::shape(format!(
                "{} has {} rows, and none with the number {row}",
                self.name(),
                self.rows()
            ))),
            None => Ok(()),
        }
    }
}

/// Rows to take.
struct Selection<'a> {
    session: &'a Session,
    x: &'a Array,
    rows: &'a [u64],
    /// Of the result.
    layout: Layout,
}

impl Selection<'_> {
    fn row_bytes(&self) -> u64 {
        self.x.cols() * self.layout.element
    }

    fn split(&self) -> MemorySplit {
        MemorySplit::new(self.session).hold(8 * self.rows.len() as u64)
    }

    fn plans(&self, mut plan: Plan, target: &Extent) -> Result<Vec<Plan>> {
        if self.rows.is_empty() || self.row_bytes() == 0 {
            return Ok(vec![plan]);
        }
        let into = plan.extent(target);
        let from = plan.extent(self.x.extent());
        plan.hold(8 * self.rows.len() as u64);
        if self.x.order() == Order::Column && self.x.cols() > 1 {
            with_element!(self.x.dtype(), T => self.by_columns::<T>(&mut plan, from, into)?);
            return Ok(vec![plan]);
        }
        let in_place = self.cost_in_place();
        if let Some(runs) = self.runs_of_all().filter(|runs| self.cost(runs) < in_place) {
            for run in runs {
                go_on()?;
                plan.task(self.group_task(from, into, vec![run]));
            }
            return Ok(vec![plan]);
        }
        if let Some(parts) = Parts::of(self).filter(|parts| parts.cost < in_place) {
            let mut second = Plan::new(plan.name());
            second.hold(8 * self.rows.len() as u64);
            let into = second.extent(target);
            parts.add_to([&mut plan, &mut second], self, from, into)?;
            return Ok(vec![plan, second]);
        }
        self.add_groups(&mut plan, from, into)?;
        Ok(vec![plan])
    }

    /// Bytes that the rows of a run take in a frame.
    fn frame_bytes(&self, run: &Run) -> u64 {
        let stride = self.x.layout().row_stride * self.layout.element;
        let sector = u64::from(self.x.extent().sector());
        (run.source.end - run.source.start) * stride + 2 * sector
    }

    fn cost<'b>(&self, runs: impl IntoIterator<Item = &'b Run>) -> u64 {
        let cost = |run: &Run| self.frame_bytes(run) + REQUEST_COST_BYTES;
        runs.into_iter().map(cost).sum()
    }

    /// What it costs to read the rows where they are.
    fn cost_in_place(&self) -> u64 {
        let half = self.split().copied_panel_bytes();
        self.runs(half).map(|run| self.cost([&run])).sum()
    }

    /// Runs of consecutive rows of the result that each read all rows of the matrix, from the first
    /// wanted to the last; none where these do not fit a panel.
    fn runs_of_all(&self) -> Option<Vec<Run>> {
        let half = self.split().copied_panel_bytes();
        let source = *self.rows.iter().min()?..self.rows.iter().max()? + 1;
        let step = (half / self.row_bytes()).max(1) as usize;
        let run = |start| Run {
            source: source.clone(),
            taken: start..(start + step).min(self.rows.len()),
        };
        let runs: Vec<Run> = (0..self.rows.len()).step_by(step).map(run).collect();
        (self.frame_bytes(&runs[0]) <= half).then_some(runs)
    }

    /// Tasks that read rows where they are, as many as fit a panel.
    fn add_groups(&self, plan: &mut Plan, from: ExtentRef, into: ExtentRef) -> Result<()> {
        let (row_bytes, half) = (self.row_bytes(), self.split().copied_panel_bytes());
        let (mut group, mut written, mut read) = (Vec::<Run>::new(), 0, 0);
        for run in self.runs(half) {
            go_on()?;
            let (frame, bytes) = (self.frame_bytes(&run), run.taken.len() as u64 * row_bytes);
            let is_full = written + bytes > half || read + frame > half;
            if !group.is_empty() && (is_full || group.len() == REGIONS_MAX) {
                plan.task(self.group_task(from, into, std::mem::take(&mut group)));
                (written, read) = (0, 0);
            }
            (written, read) = (written + bytes, read + frame);
            group.push(run);
        }
        plan.task(self.group_task(from, into, group));
        Ok(())
    }

    /// Rows of the result whose sources are near each other, in order.
    fn runs(&self, longest_bytes: u64) -> impl Iterator<Item = Run> + '_ {
        let stride = self.x.layout().row_stride * self.layout.element;
        let longest = (longest_bytes / stride.max(1)).max(1);
        let gap = REQUEST_COST_BYTES / stride.max(1) + 1;
        let mut next = 0;
        std::iter::from_fn(move || {
            let (first, start) = (next, *self.rows.get(next)?);
            let mut last = start;
            next += 1;
            while let Some(&row) = self.rows.get(next)
                && (last..=last.saturating_add(gap)).contains(&row)
                && row - start < longest
                && ((next - first) as u64) < longest
            {
                last = row;
                next += 1;
            }
            Some(Run {
                source: start..last + 1,
                taken: first..next,
            })
        })
    }

    fn group_task(&self, from: ExtentRef, into: ExtentRef, group: Vec<Run>) -> Task {
        let (source, cols) = (self.x.layout(), self.x.cols());
        let result =
            group[0].taken.start as u64..group.last().map_or(0, |run| run.taken.end) as u64;
        let mut task = Task::new("take");
        let (mut moves, mut tiles) = (
            Vec::with_capacity(group.len()),
            Vec::with_capacity(group.len()),
        );
        for run in group {
            let local = |row: &u64| (row - run.source.start) as u32;
            moves.push(self.rows[run.taken].iter().map(local).collect::<Vec<u32>>());
            let tile = source.tile(from, run.source, 0..cols);
            task = task.read(tile.region);
            tiles.push(tile);
        }
        let row_bytes = self.row_bytes() as usize;
        let result = self.layout.tile(into, result, 0..cols);
        task.write(result.region).run(move |cx| {
            let Some((written, read)) = cx.blocks.split_last_mut() else {
                unreachable!("the result is declared")
            };
            let (to_pitch, mut to) = (pitch(&result, written, row_bytes), 0);
            for ((block, tile), rows) in read.iter().zip(&tiles).zip(&moves) {
                let into = &mut written.bytes_mut()[to * to_pitch..];
                let from = (block.bytes(), pitch(tile, block, row_bytes));
                copy_rows((into, to_pitch), from, rows, row_bytes, cx.cancelled);
                to += rows.len();
            }
            Ok(())
        })
    }

    /// Whole columns, some at a time.
    fn by_columns<T: Pod>(&self, plan: &mut Plan, from: ExtentRef, into: ExtentRef) -> Result<()> {
        let (first, last) = (self.rows.iter().min(), self.rows.iter().max());
        let (first, end) = (first.map_or(0, |row| *row), last.map_or(0, |row| row + 1));
        let element = self.layout.element;
        let share = self.split().moved_panel_bytes();
        let column_bytes = (end - first + self.rows.len() as u64) * element;
        if column_bytes > share {
            return Err(Error::value(format!(
                "{} lies by columns, and memory has no room for some of them at a time; convert it to order 'C' first",
                self.x.name()
            )));
        }
        let rows: Arc<[u64]> = self.rows.iter().map(|row| row - first).collect();
        let count = rows.len() as u64;
        for cols in panels(self.x.cols(), column_bytes, share) {
            go_on()?;
            let source = self.x.layout().tile(from, first..end, cols.clone());
            let result = self.layout.tile(into, 0..count, cols);
            let rows = Arc::clone(&rows);
            let task = Task::new("take").read(source.region).write(result.region);
            plan.task(task.run(move |cx| {
                let [read, written] = cx.blocks else {
                    unreachable!("two were declared")
                };
                let from = source.of::<T>(read)?;
                let mut to = result.of_mut::<T>(written)?;
                for column in 0..source.cols {
                    if cx.cancelled.load(Ordering::Relaxed) {
                        break;
                    }
                    for (place, &row) in rows.iter().enumerate() {
                        to[(place, column)] = from[(row as usize, column)];
                    }
                }
                Ok(())
            }));
        }
        Ok(())
    }
}

/// Bytes from one row of a block to the next; the elements of a vector are one run.
fn pitch(tile: &Tile, block: &Block, row_bytes: usize) -> usize {
    match tile.is_by_rows() {
        true => block.pitch::<u8>(),
        false => row_bytes,
    }
}

/// Rows by their numbers, behind each other; both sides with the bytes from a row to the next.
fn copy_rows(
    (to_bytes, to_pitch): (&mut [u8], usize),
    (from_bytes, from_pitch): (&[u8], usize),
    rows: &[u32],
    row_bytes: usize,
    cancelled: &AtomicBool,
) {
    for (place, &row) in rows.iter().enumerate() {
        if place.is_multiple_of(LOOK_ROWS) && cancelled.load(Ordering::Relaxed) {
            return;
        }
        let (from, to) = (row as usize * from_pitch, place * to_pitch);
        to_bytes[to..to + row_bytes].copy_from_slice(&from_bytes[from..from + row_bytes]);
    }
}

/// Rows that are read together.
struct Run {
    source: Range<u64>,
    /// Rows of the result.
    taken: Range<usize>,
}

/// How rows go to the result by way of scratch.
struct Parts {
    /// Of the matrix.
    panels: Vec<Range<u64>>,
    /// Rows of the result in a part.
    part_rows: u64,
    /// Bytes of a panel, of a part, and of the chunks that a task writes.
    share: u64,
    count: usize,
    cost: u64,
    moves: Moves,
}

/// What goes where: rows by the panel that they come from, those of a panel by their place in the
/// result.
struct Moves {
    /// Number of the row in its panel.
    sources: Vec<u32>,
    /// Place in the result.
    places: Vec<u32>,
    /// By panel and part, the first row of a chunk; one more at the end.
    chunks: Vec<u32>,
}

impl Parts {
    /// None where there is no way: too many rows, or too many chunks for the memory.
    fn of(selection: &Selection<'_>) -> Option<Parts> {
        let (rows, row_bytes) = (selection.rows, selection.row_bytes());
        let split = selection.split();
        // Chunks are long where both panels and parts are.
        let share = split.scattered_panel_bytes().min(PART_BYTES_MAX);
        let stride = selection.x.layout().row_stride * selection.layout.element;
        let panels = cut(0..selection.x.rows(), (share / stride.max(1)).max(1));
        let part_rows = (share / row_bytes).max(1);
        let count = (rows.len() as u64).div_ceil(part_rows);
        let chunks = panels.len() as u64 * count;
        let is_possible = u32::try_from(rows.len()).is_ok()
            && panels.iter().all(|panel| panel.end - panel.start < 1 << 32)
            && 16 * chunks < split.places_bytes();
        if !is_possible || count < 2 {
            return None;
        }
        let moved = rows.len() as u64 * row_bytes + chunks * FILE_BLOCK_BYTES / 2;
        // A panel is read once a share of rows that it gives.
        let cost = (selection.x.rows() * stride).max(moved)
            + 2 * (moved + chunks * REQUEST_COST_BYTES)
            + (panels.len() as u64 + count) * REQUEST_COST_BYTES;
        let moves = Moves::of(rows, &panels, part_rows, count as usize);
        Some(Parts {
            panels,
            part_rows,
            share,
            count: count as usize,
            cost,
            moves,
        })
    }

    fn add_to(
        self,
        [first, second]: [&mut Plan; 2],
        selection: &Selection<'_>,
        from: ExtentRef,
        into: ExtentRef,
    ) -> Result<()> {
        let Parts {
            panels,
            part_rows,
            share,
            count,
            moves,
            ..
        } = self;
        let (row_bytes, moves) = (selection.row_bytes(), Arc::new(moves));
        let (starts, bytes) = moves.chunk_starts(panels.len(), count, row_bytes);
        let bytes_of_scratch = bytes.last().map_or(0, |part| part.end);
        let scratch = Array::temporary(
            selection.session,
            DType::U8,
            &[bytes_of_scratch.max(1)],
            Order::Row,
        )?;
        first.note("parts", count);
        for plan in [&mut *first, &mut *second] {
            plan.hold(8 * starts.len() as u64 + 4 * moves.chunks.len() as u64);
        }
        let (put, get) = (
            first.extent(scratch.extent()),
            second.extent(scratch.extent()),
        );
        let (source, cols) = (selection.x.layout(), selection.x.cols());
        for (panel, rows) in panels.iter().enumerate() {
            go_on()?;
            let chunks = panel * count..(panel + 1) * count;
            let tile = source.tile(from, rows.clone(), 0..cols);
            for wanted in moves.chunks_at_once(chunks, row_bytes, share) {
                let task = Task::new("spread").read(tile.region);
                let task = wanted.iter().fold(task, |task, &chunk| {
                    let len = chunk_bytes(moves.rows_of(chunk).len(), row_bytes);
                    task.write(Region::span(put, starts[chunk], len))
                });
                let moves = Arc::clone(&moves);
                first.task(task.run(move |cx| {
                    let [read, written @ ..] = cx.blocks else {
                        unreachable!("the panel was declared first")
                    };
                    let pitch = pitch(&tile, read, row_bytes as usize);
                    for (chunk, into) in wanted.iter().zip(written) {
                        if cx.cancelled.load(Ordering::Relaxed) {
                            break;
                        }
                        let (rows, into) = (moves.rows_of(*chunk), into.bytes_mut());
                        let (kept, padding) = into.split_at_mut(rows.len() * row_bytes as usize);
                        padding.fill(0);
                        let sources = &moves.sources[rows];
                        for (to, &row) in kept.chunks_exact_mut(row_bytes as usize).zip(sources) {
                            to.copy_from_slice(&read.bytes()[row as usize * pitch..][..to.len()]);
                        }
                    }
                    Ok(())
                }));
            }
        }
        let (starts, panels) = (Arc::new(starts), panels.len());
        for (part, held) in bytes.into_iter().enumerate() {
            go_on()?;
            let rows = part as u64 * part_rows
                ..((part as u64 + 1) * part_rows).min(selection.rows.len() as u64);
            let result = selection.layout.tile(into, rows.clone(), 0..cols);
            let task = Task::new("order")
                .read(Region::span(get, held.start, held.end - held.start))
                .write(result.region);
            let (moves, starts) = (Arc::clone(&moves), Arc::clone(&starts));
            second.task(task.run(move |cx| {
                let [read, written] = cx.blocks else {
                    unreachable!("two were declared")
                };
                let len = row_bytes as usize;
                let pitch = pitch(&result, written, len);
                let (read, written) = (read.bytes(), written.bytes_mut());
                for panel in 0..panels {
                    if cx.cancelled.load(Ordering::Relaxed) {
                        break;
                    }
                    let chunk = panel * count + part;
                    let places = &moves.places[moves.rows_of(chunk)];
                    let at = (starts[chunk] - held.start) as usize;
                    for (row, &place) in places.iter().enumerate() {
                        let to = (u64::from(place) - rows.start) as usize * pitch;
                        let from = at + row * len;
                        written[to..to + len].copy_from_slice(&read[from..from + len]);
                    }
                }
                Ok(())
            }));
        }
        Ok(())
    }
}

/// Bytes of a chunk in scratch: whole blocks of the file system, so that none is shared.
fn chunk_bytes(rows: usize, row_bytes: u64) -> u64 {
    (rows as u64 * row_bytes).next_multiple_of(FILE_BLOCK_BYTES)
}

impl Moves {
    fn of(rows: &[u64], panels: &[Range<u64>], part_rows: u64, parts: usize) -> Moves {
        // All panels but the last have as many rows.
        let panel_rows = panels.first().map_or(1, |panel| panel.end - panel.start);
        let mut counts = vec![0u32; panels.len() * parts + 1];
        let chunk_of = |place: usize, row: u64| {
            (row / panel_rows) as usize * parts + (place as u64 / part_rows) as usize
        };
        for (place, &row) in rows.iter().enumerate() {
            counts[chunk_of(place, row) + 1] += 1;
        }
        for chunk in 1..counts.len() {
            counts[chunk] += counts[chunk - 1];
        }
        let mut next = counts.clone();
        let (mut sources, mut places) = (vec![0; rows.len()], vec![0; rows.len()]);
        for (place, &row) in rows.iter().enumerate() {
            let at = &mut next[chunk_of(place, row)];
            sources[*at as usize] = (row % panel_rows) as u32;
            places[*at as usize] = place as u32;
            *at += 1;
        }
        Moves {
            sources,
            places,
            chunks: counts,
        }
    }

    /// The chunks of a panel that are not empty, in groups that fit a share: a panel whose rows come
    /// often fills more than one.
    fn chunks_at_once(&self, chunks: Range<usize>, row_bytes: u64, share: u64) -> Vec<Vec<usize>> {
        let padding = chunks.len() as u64 * FILE_BLOCK_BYTES;
        let (mut groups, mut filled) = (Vec::<Vec<usize>>::new(), 0);
        for chunk in chunks.filter(|&chunk| !self.rows_of(chunk).is_empty()) {
            let bytes = chunk_bytes(self.rows_of(chunk).len(), row_bytes);
            match groups.last_mut() {
                Some(group) if filled + bytes <= share + padding => group.push(chunk),
                _ => {
                    groups.push(vec![chunk]);
                    filled = 0;
                }
            }
            filled += bytes;
        }
        groups
    }

    fn rows_of(&self, chunk: usize) -> Range<usize> {
        self.chunks[chunk] as usize..self.chunks[chunk + 1] as usize
    }

    /// Where each chunk begins in scratch, and the bytes of each part there.
    fn chunk_starts(
        &self,
        panels: usize,
        parts: usize,
        row_bytes: u64,
    ) -> (Vec<u64>, Vec<Range<u64>>) {
        let (mut starts, mut bytes, mut end) = (vec![0; panels * parts], Vec::new(), 0);
        for part in 0..parts {
            let begin = end;
            for panel in 0..panels {
                let chunk = panel * parts + part;
                starts[chunk] = end;
                end += chunk_bytes(self.rows_of(chunk).len(), row_bytes);
            }
            bytes.push(begin..end);
        }
        (starts, bytes)
    }
}
