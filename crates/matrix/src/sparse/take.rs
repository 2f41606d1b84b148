//! Rows of a matrix in CSR by their numbers: read to memory, or copied to another matrix.
//!
//! Where the entries of each row begin is read first, in ascending order. From then on rows are
//! ranges of entries, and the result is these ranges one behind the other, of any row lengths:
//!
//! ```text
//!   matrix    . . [row 2] . . . . . [row 7] [row 8] . . . .
//!   result    [row 7] [row 8] | [row 2] | [row 7]                a run is read at once
//! ```
//!
//! To memory they are read in batches, as [`Engine::gather_into`](outcore_engine::Engine) does. A copy
//! reads them in the order of the result, neighbours together, or takes many short ones in no order
//! by way of scratch ([`Spread`]), within the budget. Entries in tiles have no place of their own, and
//! are copied to arrays first.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::panels::cut;
use outcore_core::{DType, Error, Job, MemorySplit, RealType, Result, Segments, Session};
use outcore_engine::{ExtentRef, GatherOptions, Item, Plan, Region, Task};

use super::spread::Spread;
use super::{BackedVector, Backing, Form, NewSparse, Sparse, SparseBufs, SparseShape, Stop};

/// Numbers of rows that are looked up at once.
const LOOKED_UP_ROWS: usize = 1 << 16;
/// Ranges of entries that are gathered at once: 40 MB of descriptions.
const BATCH_ITEMS: usize = 1 << 20;
/// Bytes of a range that is gathered, at most; a longer row is several.
const ITEM_BYTES: u64 = 128 << 10;
/// What a request costs, in bytes that are transferred: at 1 GB/s and 100,000 requests a second.
pub(super) const REQUEST_COST_BYTES: u64 = 8192;
/// Regions that a task reads, at most.
const REGIONS_MAX: usize = 256;
/// Entries of a result, at most: their bytes are counted in 64 bits.
const ENTRIES_MAX: u64 = 1 << 56;

/// Rows of a sparse matrix that have been looked up by their numbers. Holds 16 bytes a row.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_matrix::SparseBufs;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let rows = a.pick_rows(&[1, 0, 1], &|| false)?;
/// assert_eq!((rows.rows(), rows.nonzeros()), (3, 4));
/// let bytes = |count| Buf::anonymous(count).unwrap();
/// let into = SparseBufs { offsets: bytes(32), indices: bytes(16), values: bytes(16) };
/// let found = rows.read_into(into, &|| false)?;
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&found.values), [3.0, 1.0, 2.0, 3.0]);
/// let copy = rows.take(rows.session(), None)?.run()?;
/// assert_eq!((copy.rows(), copy.nonzeros()), (3, 4));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct SparseRows {
    sparse: Sparse,
    ranges: Arc<Ranges>,
}

/// Ranges of entries, one behind the other in the result.
pub(super) struct Ranges {
    /// The first entry of each, in the matrix.
    pub(super) starts: Vec<u64>,
    /// Where each begins in the result; one more at the end.
    pub(super) places: Vec<u64>,
}

/// Entries that are read at once.
struct Run {
    /// In the matrix.
    source: Range<u64>,
    /// In the result.
    taken: Range<u64>,
}

impl Sparse {
    /// Looks rows up by their numbers, in this order; a number may come more than once. Reads 16
    /// bytes a row, in ascending order, and holds 24 until it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that is not there, [`Error::Value`] for a matrix in CSC or in
    /// tiles; [`Error::Cancelled`] when `stop` says so.
    pub fn pick_rows(&self, rows: &[u64], stop: Stop<'_>) -> Result<SparseRows> {
        self.check_rows_together()?;
        if let Some(row) = rows.iter().find(|row| **row >= self.rows()) {
            let (name, count) = (self.name(), self.rows());
            return Err(Error::shape(format!(
                "{name} has {count} rows, and none with the number {row}"
            )));
        }
        let Form::Arrays { offsets, .. } = &self.parts.form else {
            let what = "is in tiles, of which rows are not read one by one; a copy in arrays has such rows";
            return Err(Error::value(format!("{} {what}", self.name())));
        };
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if !rows.is_sorted() {
            order.sort_unstable_by_key(|&place| rows[place]);
        }
        let (mut starts, mut places) = (vec![0; rows.len()], vec![0; rows.len() + 1]);
        for some in order.chunks(LOOKED_UP_ROWS) {
            let lines = || some.iter().map(|&place| self.lines.start + rows[place]);
            let found = offsets.pairs(&self.session, lines(), stop)?;
            for ((&place, line), [first, end]) in some.iter().zip(lines()).zip(found) {
                let range = u64::try_from(first).ok().zip(u64::try_from(end).ok());
                let Some((first, end)) =
                    range.filter(|&(first, end)| first <= end && end <= self.parts.entries)
                else {
                    let reason = format!("entries of line {line} are {first}..{end}");
                    return Err(offsets.corrupt(line, reason));
                };
                (starts[place], places[place + 1]) = (first, end - first);
            }
        }
        for row in 0..rows.len() {
            places[row + 1] += places[row];
            if places[row + 1] > ENTRIES_MAX {
                return Err(Error::shape("the rows have more entries than any file"));
            }
        }
        Ok(SparseRows {
            sparse: self.clone(),
            ranges: Arc::new(Ranges { starts, places }),
        })
    }
}

impl SparseRows {
    /// The session of their matrix.
    pub fn session(&self) -> &Session {
        &self.sparse.session
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.ranges.starts.len() as u64
    }

    /// Entries of them together.
    pub fn nonzeros(&self) -> u64 {
        self.ranges.places[self.ranges.starts.len()]
    }

    /// Reads them into the caller's memory, of exactly the right lengths, all in flight at once.
    /// Holds the result besides the budget.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory of other lengths; [`Error::Cancelled`] when `stop` says so;
    /// those of reading.
    pub fn read_into(&self, mut into: SparseBufs, stop: Stop<'_>) -> Result<SparseBufs> {
        let (sparse, entries) = (&self.sparse, self.nonzeros());
        let wanted = [
            8 * (self.rows() + 1),
            entries * sparse.index_element().bytes(),
            entries * sparse.dtype().bytes(),
        ];
        if [&into.offsets, &into.indices, &into.values].map(|buf| buf.len() as u64) != wanted {
            let name = sparse.name();
            return Err(Error::shape(format!(
                "rows of {name} need arrays of {wanted:?} bytes"
            )));
        }
        into.offsets
            .copy_from_slice(bytemuck::cast_slice(&self.ranges.places));
        let (_, indices, values) = sparse.arrays();
        let ranges = || self.ranges.of(0..entries);
        let sources = || ranges().map(|(first, len)| first..first + len);
        indices.gather(&sparse.session, sources(), &mut into.indices, stop)?;
        match (values, sparse.real()) {
            (Some(values), _) => {
                values.gather(&sparse.session, sources(), &mut into.values, stop)?;
            }
            // Bytes, since the memory need not be aligned.
            (None, RealType::F32) => fill(&mut into.values, &1f32.to_ne_bytes()),
            (None, RealType::F64) => fill(&mut into.values, &1f64.to_ne_bytes()),
        }
        Ok(into)
    }

    /// The rows as a new matrix in arrays, in a new folder or in scratch.
    ///
    /// Cost: reads the entries in the order of the result, neighbours together, and writes them; many
    /// short rows in no order are moved twice, by way of scratch.
    ///
    /// # Errors
    /// [`Error::OverBudget`], also for 16 bytes a row; what keeps the output from being made.
    pub fn take(&self, session: &Session, out: Option<PathBuf>) -> Result<Job<Sparse>> {
        let a = &self.sparse;
        let mut plan = Plan::new(format!("take rows of {}", a.name()));
        let shape = SparseShape {
            lines: self.rows(),
            entries: self.nonzeros(),
            ..SparseShape::of(a)
        };
        let new = NewSparse::make(session, out, shape, &mut plan)?;
        plan.bound(new.nbytes());
        let memory = MemorySplit::new(session).hold(self.held_bytes());
        let half = memory.copied_panel_bytes();
        let (_, indices, values) = a.arrays();
        let columns = [Some(indices), values].into_iter().flatten();
        let columns = columns.zip([1, 2]).map(|(part, which)| Column {
            from: part.extent(&mut plan),
            from_offset: part.vector.data_offset,
            into: new.column(&mut plan, which),
            size: part.vector.element.bytes(),
            sector: part.sector(),
            half,
        });
        let copy = RowCopy {
            ranges: Arc::clone(&self.ranges),
            columns: columns.collect(),
            offsets: new.column(&mut plan, 0),
            offsets_at_once: (half / 8).max(1),
        };
        let job = match copy.spread(memory) {
            Some(spread) => {
                let plans = self.spread(session, Arc::new(spread), &copy, plan, &new)?;
                Job::new(session, plans, |_| Ok(new))?
            }
            None => {
                plan.hold(self.held_bytes());
                Job::in_segments(session, plan, move |segments| copy.fill(segments), new)?
            }
        };
        Ok(job.map(|new| new.finish(&|| false)))
    }

    fn held_bytes(&self) -> u64 {
        16 * self.rows()
    }

    /// The plans of both passes by way of scratch.
    fn spread(
        &self,
        session: &Session,
        spread: Arc<Spread>,
        copy: &RowCopy,
        mut first: Plan,
        new: &NewSparse,
    ) -> Result<Vec<Plan>> {
        let mut second = Plan::new(first.name());
        for plan in [&mut first, &mut second] {
            plan.hold(self.held_bytes() + spread.held_bytes());
        }
        copy.offset_tasks().for_each(|task| first.task(task));
        for (column, which) in copy.columns.iter().zip(1..) {
            let (from, into) = (
                (column.from, column.from_offset),
                new.column(&mut second, which),
            );
            spread.add_to(session, [&mut first, &mut second], from, into, column.size)?;
        }
        Ok(vec![first, second])
    }
}

/// A range in parts of at most `longest`.
fn parts(range: Range<u64>, longest: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    let starts = range.step_by(longest as usize);
    starts.map(move |start| start..(start + longest).min(end))
}

fn fill(bytes: &mut [u8], with: &[u8]) {
    bytes
        .chunks_exact_mut(with.len())
        .for_each(|one| one.copy_from_slice(with));
}

impl Ranges {
    /// The parts of the matrix that make a part of the result, in order: first entries and lengths.
    fn of(&self, taken: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let after = self.places.partition_point(|&place| place <= taken.start);
        let (mut row, mut at) = (after.saturating_sub(1), taken.start);
        std::iter::from_fn(move || {
            while at < taken.end && self.places[row + 1] <= at {
                row += 1;
            }
            (at < taken.end).then(|| {
                let end = self.places[row + 1].min(taken.end);
                let first = self.starts[row] + (at - self.places[row]);
                (first, end - std::mem::replace(&mut at, end))
            })
        })
    }

    /// What is read at once: of ranges whose sources are near each other, `longest` entries at most.
    fn runs(&self, longest: u64, gap: u64) -> impl Iterator<Item = Run> + '_ {
        let entries = self.places[self.starts.len()];
        let mut pieces = self
            .of(0..entries)
            .flat_map(move |(first, len)| parts(first..first + len, longest))
            .peekable();
        let mut at = 0;
        std::iter::from_fn(move || {
            let mut source = pieces.next()?;
            let (begin, first) = (at, source.start);
            at += source.end - source.start;
            let fits = |piece: &Range<u64>, end: u64, at: u64| {
                (first..=end + gap).contains(&piece.start)
                    && piece.end.max(end) - first <= longest
                    && at + (piece.end - piece.start) - begin <= longest
            };
            while let Some(piece) = pieces.next_if(|piece| fits(piece, source.end, at)) {
                at += piece.end - piece.start;
                source.end = source.end.max(piece.end);
            }
            let taken = begin..at;
            Some(Run { source, taken })
        })
    }
}

/// An array of entries, and where it is copied to.
#[derive(Clone, Copy)]
struct Column {
    from: ExtentRef,
    from_offset: u64,
    into: (ExtentRef, u64),
    /// Of an entry.
    size: u64,
    sector: u64,
    /// Bytes that a task reads, and that it writes, at most.
    half: u64,
}

impl Column {
    /// Bytes that entries of the matrix take in a frame.
    fn frame_bytes(&self, source: &Range<u64>) -> u64 {
        (source.end - source.start) * self.size + 2 * self.sector
    }
}

/// What a plan is filled with.
struct RowCopy {
    ranges: Arc<Ranges>,
    columns: Vec<Column>,
    offsets: (ExtentRef, u64),
    offsets_at_once: u64,
}

impl RowCopy {
    /// The way through scratch, where it costs less than to read the rows where they are.
    fn spread(&self, memory: MemorySplit) -> Option<Spread> {
        if self.ranges.starts.is_sorted() {
            return None;
        }
        let sizes = || self.columns.iter().map(|column| column.size);
        let spread = Spread::of(&self.ranges, sizes().max()?, memory)?;
        let in_place: u64 = self.columns.iter().map(|column| self.cost(column)).sum();
        (sizes().map(|size| spread.cost(size)).sum::<u64>() < in_place).then_some(spread)
    }

    /// What it costs to read a column where it is, in bytes that are transferred.
    fn cost(&self, column: &Column) -> u64 {
        let cost = |run: Run| column.frame_bytes(&run.source) + REQUEST_COST_BYTES;
        self.runs(column).map(cost).sum()
    }

    fn runs(&self, column: &Column) -> impl Iterator<Item = Run> + '_ {
        let longest = column.half.saturating_sub(column.frame_bytes(&(0..0))) / column.size;
        self.ranges
            .runs(longest.max(1), REQUEST_COST_BYTES / column.size)
    }

    fn offset_tasks(&self) -> impl Iterator<Item = Task> + '_ {
        let all = cut(0..self.ranges.places.len() as u64, self.offsets_at_once);
        all.into_iter().map(|lines| {
            let (extent, offset) = self.offsets;
            let len = 8 * (lines.end - lines.start);
            let task =
                Task::new("offsets").write(Region::span(extent, offset + 8 * lines.start, len));
            let ranges = Arc::clone(&self.ranges);
            task.run(move |cx| {
                let places = &ranges.places[lines.start as usize..lines.end as usize];
                cx.blocks[0]
                    .bytes_mut()
                    .copy_from_slice(bytemuck::cast_slice(places));
                Ok(())
            })
        })
    }

    fn fill(&self, segments: &mut Segments<'_>) -> Result<()> {
        for task in self.offset_tasks() {
            segments.plan().task(task);
            segments.may_end()?;
        }
        for column in &self.columns {
            self.fill_column(column, segments)?;
        }
        Ok(())
    }

    fn fill_column(&self, column: &Column, segments: &mut Segments<'_>) -> Result<()> {
        let (mut group, mut read, mut written) = (Vec::<Run>::new(), 0, 0);
        for run in self.runs(column) {
            let bytes = (run.taken.end - run.taken.start) * column.size;
            let more = column.frame_bytes(&run.source);
            let is_full = written + bytes > column.half || read + more > column.half;
            if !group.is_empty() && (is_full || group.len() == REGIONS_MAX) {
                let task = self.task(column, std::mem::take(&mut group));
                segments.plan().task(task);
                segments.may_end()?;
                (read, written) = (0, 0);
            }
            (read, written) = (read + more, written + bytes);
            group.push(run);
        }
        if !group.is_empty() {
            segments.plan().task(self.task(column, group));
            segments.may_end()?;
        }
        Ok(())
    }

    fn task(&self, column: &Column, group: Vec<Run>) -> Task {
        let &Column {
            from,
            from_offset,
            into: (into, into_offset),
            size,
            ..
        } = column;
        let region = |extent, offset, range: &Range<u64>| {
            Region::span(
                extent,
                offset + range.start * size,
                (range.end - range.start) * size,
            )
        };
        let taken = group[0].taken.start..group[group.len() - 1].taken.end;
        let task = group.iter().fold(Task::new("take"), |task, run| {
            task.read(region(from, from_offset, &run.source))
        });
        let ranges = Arc::clone(&self.ranges);
        let task = task.write(region(into, into_offset, &taken));
        task.run(move |cx| {
            let Some((written, read)) = cx.blocks.split_last_mut() else {
                unreachable!("the result is declared")
            };
            let mut rest = written.bytes_mut();
            for (block, run) in read.iter().zip(&group) {
                if cx.cancelled.load(Ordering::Relaxed) {
                    break;
                }
                for (first, len) in ranges.of(run.taken.clone()) {
                    let from = ((first - run.source.start) * size) as usize;
                    let (head, tail) = rest.split_at_mut((len * size) as usize);
                    head.copy_from_slice(&block.bytes()[from..from + head.len()]);
                    rest = tail;
                }
            }
            Ok(())
        })
    }
}

impl Sparse {
    /// Of a matrix in arrays, which rows are picked from.
    fn arrays(&self) -> (&BackedVector, &BackedVector, Option<&BackedVector>) {
        match &self.parts.form {
            Form::Arrays {
                offsets,
                indices,
                values,
            } => (offsets, indices, values.as_ref()),
            Form::Tiled(_) => unreachable!("rows in tiles are not picked"),
        }
    }
}

impl BackedVector {
    /// The numbers at some places and behind them, in one batch.
    fn pairs(
        &self,
        session: &Session,
        places: impl Iterator<Item = u64>,
        stop: Stop<'_>,
    ) -> Result<Vec<[i64; 2]>> {
        let ranges: Vec<Range<u64>> = places.map(|place| place..place + 2).collect();
        let (size, count) = (self.vector.element.bytes() as usize, ranges.len());
        let mut bytes = vec![0; 2 * size * count];
        self.gather(session, ranges.into_iter(), &mut bytes, stop)?;
        let number = |bytes: &[u8]| match self.vector.element {
            DType::I32 => i64::from(bytemuck::pod_read_unaligned::<i32>(bytes)),
            _ => bytemuck::pod_read_unaligned(bytes),
        };
        let pair = |pair: &[u8]| [number(&pair[..size]), number(&pair[size..])];
        Ok(bytes.chunks_exact(2 * size).map(pair).collect())
    }

    /// Ranges of its numbers, one behind the other.
    fn gather(
        &self,
        session: &Session,
        ranges: impl Iterator<Item = Range<u64>>,
        mut into: &mut [u8],
        stop: Stop<'_>,
    ) -> Result<()> {
        let (size, first) = (self.vector.element.bytes(), self.vector.data_offset);
        let file = match &self.backing {
            Backing::Stored(file) => file,
            Backing::Memory(bytes) => {
                for range in ranges {
                    let range = (range.start * size) as usize..(range.end * size) as usize;
                    let (head, rest) = into.split_at_mut(range.len());
                    head.copy_from_slice(&bytes[range]);
                    into = rest;
                }
                return Ok(());
            }
        };
        let mut items = ranges
            .flat_map(|range| parts(range, ITEM_BYTES / size))
            .map(|range| Item {
                extent: file.extent(),
                offset: first + range.start * size,
                len: ((range.end - range.start) * size) as usize,
            });
        loop {
            let batch: Vec<Item<'_>> = items.by_ref().take(BATCH_ITEMS).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let (head, rest) = into.split_at_mut(batch.iter().map(|item| item.len).sum());
            let options = GatherOptions::default();
            session
                .engine()
                .gather_into(&batch, head, &options, || !stop())?;
            into = rest;
        }
    }
}
