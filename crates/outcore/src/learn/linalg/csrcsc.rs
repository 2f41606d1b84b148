//! The same matrix compressed along its other side: CSR to CSC, and back.
//!
//! Cost: with all entries in a part of the memory, reads A and writes the result. Else entries go by way of scratch, those that fit
//! memory left out: reads A, writes and reads about seven bytes an entry, writes the result.
//!
//! Places (columns of CSR) are cut into buckets of about equal entries, by a sample. Rounds of pieces pass by; each piece is sorted by
//! bucket on its own, and at the end of a round every bucket's part of it is written to scratch in one go. The last round stays in
//! memory. Then each bucket is put together and sorted by place: entries of a place come in the order of lines, so the result is the
//! same whatever the memory.
//!
//! ```text
//!   a bucket's part of a round:   (entries, bytes of gaps) of each piece, u32 | values | places, u16 or u32 | gaps, u8
//! ```
//!
//! A place counts from the bucket's first. A gap is how many lines an entry is behind the one before, from the piece's first line on; 255
//! says that more is to come. Source: the bucket partition of external sorting (Aggarwal and Vitter, 1988).

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use outcore_engine::{Block, Extent, Plan, Region, Task};
use outcore_kernels::{Csr, Lines, Real};

use super::with_real;
use crate::data::format::Element;
use crate::data::sparse::{NewSparse, Piece, Sparse, SparseShape, in_lines, with_csr, with_lines};
use crate::error::{Error, Result};
use crate::job::{Job, Stage};
use crate::session::{PARALLEL, Session};

/// Places that are looked at to find out how entries lie.
const SAMPLES: usize = 1 << 16;
/// Buckets are wider than this only where there are too many places.
const NARROW: u64 = 1 << 16;
const BUCKETS_MOST: u64 = 1 << 14;
/// Entries of the table that says which bucket a place is in.
const TABLE_BITS: u32 = 20;

/// The matrix A in the other format, in a new folder or in scratch.
///
/// # Errors
/// [`Error::OverBudget`]; what keeps the output or scratch from being made.
pub fn csrcsc(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
    with_real!(a.dtype(), T => Transposition::<T>::plan(session, a, out))
}

/// Entries of one piece, sorted by bucket.
struct Sorted<T> {
    /// Where each bucket begins: in entries, and in gaps.
    starts: Vec<[u32; 2]>,
    places: Vec<u32>,
    values: Vec<T>,
    gaps: Vec<u8>,
}

impl<T: Real> Sorted<T> {
    fn entries(&self, bucket: usize) -> Range<usize> {
        self.starts[bucket][0] as usize..self.starts[bucket + 1][0] as usize
    }

    fn gaps(&self, bucket: usize) -> Range<usize> {
        self.starts[bucket][1] as usize..self.starts[bucket + 1][1] as usize
    }
}

type Slot<T> = Arc<Mutex<Option<Arc<Sorted<T>>>>>;

/// Which bucket a place is in.
struct Buckets {
    /// First place of each, and the end of the last.
    starts: Vec<u64>,
    table: Vec<u16>,
    shift: u32,
}

impl Buckets {
    /// Quantiles of the sample, at places that are multiples of 2^shift.
    fn new(width: u64, wanted: u64, mut sample: Vec<u64>) -> Buckets {
        let shift = (64 - width.leading_zeros()).saturating_sub(TABLE_BITS);
        sample.sort_unstable();
        let mut starts = vec![0];
        let widest = if width.div_ceil(NARROW) <= BUCKETS_MOST / 2 { NARROW } else { width.div_ceil(BUCKETS_MOST / 2) };
        let widest = (widest >> shift << shift).max(1 << shift);
        let mut quantiles: Vec<u64> =
            (1..wanted).filter_map(|part| sample.get(sample.len() * part as usize / wanted as usize).copied()).collect();
        // A place that is met at two quantiles has a bucket to itself.
        let heavy: Vec<u64> = quantiles.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0] + (1 << shift)).collect();
        quantiles.extend(heavy);
        quantiles.sort_unstable();
        for start in quantiles.into_iter().chain([width]) {
            let start = if start == width { width } else { start >> shift << shift };
            while start.saturating_sub(*starts.last().expect("never empty")) > widest {
                starts.push(starts.last().expect("never empty") + widest);
            }
            if start > *starts.last().expect("never empty") || starts.len() == 1 && width == 0 {
                starts.push(start);
            }
        }
        let mut table = vec![0; (width >> shift) as usize + 1];
        for (bucket, pair) in starts.windows(2).enumerate() {
            table[(pair[0] >> shift) as usize..pair[1].div_ceil(1 << shift) as usize].fill(bucket as u16);
        }
        Buckets { starts, table, shift }
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }

    #[inline]
    fn of(&self, place: u64) -> usize {
        usize::from(self.table[(place >> self.shift) as usize])
    }

    fn places(&self, bucket: usize) -> Range<u64> {
        self.starts[bucket]..self.starts[bucket + 1]
    }

    fn are_narrow(&self) -> bool {
        self.starts.windows(2).all(|pair| pair[1] - pair[0] <= NARROW)
    }
}

/// A bucket's part of a round, in scratch.
struct Part {
    offset: u64,
    bytes: u64,
    entries: u64,
    /// Entries and bytes of gaps of each piece, of a bucket of one place.
    counts: Vec<[u32; 2]>,
}

/// Bytes of an extent.
struct Span {
    extent: Extent,
    offset: u64,
    bytes: u64,
}

/// A round that has been written to scratch.
struct Spilled {
    extent: Extent,
    /// First and one past the last of its pieces.
    pieces: Range<usize>,
    parts: Vec<Part>,
}

struct Transposition<T> {
    session: Session,
    a: Sparse,
    pieces: Arc<Vec<Piece>>,
    buckets: Arc<Buckets>,
    /// Pieces of each round.
    rounds: Vec<Range<usize>>,
    held: u64,
    new: NewSparse,
    element: std::marker::PhantomData<T>,
}

impl<T: Real> Transposition<T> {
    fn plan(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
        let memory = session.memory_free();
        // Sorted entries of a round take three fifths; a piece on its way in a tenth, buckets on their way out the rest.
        let held = memory / 5 * 3;
        let pieces = a.pieces(memory / 10 / (PARALLEL + 1), |_| 0);
        let record = if a.has_values() { size_of::<T>() as u64 } else { 0 } + 4 + 1;
        // Buckets that are put together need room for their entries twice.
        let room = memory / 5 / 4;
        let wanted = (a.nonzeros() * 3 / 2 * (2 * record + 8) / room.max(1)).clamp(1, BUCKETS_MOST / 2);
        let mut plan = Plan::new(format!("csrcsc {}", a.name()));
        let shape = SparseShape {
            format: a.format().turned(),
            lines: a.width(),
            width: a.lines(),
            index: SparseShape::index_for(a.lines()),
            ..SparseShape::of(a)
        };
        let new = NewSparse::make(session, out, shape, &mut plan)?;
        let rounds = rounds(&pieces, |piece| piece.entries() * record + 8 * wanted, held);
        plan.note("rounds", rounds.len());
        plan.note("buckets", wanted);
        plan.bound(a.stored_bytes() + new.nbytes());
        let sample = sample_plan::<T>(&mut plan, a, &pieces);
        let (session, a) = (session.clone(), a.clone());
        Job::driven(&session.clone(), vec![plan], move |stage, plans| {
            for plan in plans {
                stage.run(plan, 0.02)?;
            }
            let sample = std::mem::take(&mut *sample.lock().expect("no panic while held"));
            let buckets = Arc::new(Buckets::new(a.width(), wanted, sample));
            let pieces = Arc::new(pieces);
            Transposition::<T> { session, a, pieces, buckets, rounds, held, new, element: std::marker::PhantomData }.run(stage)
        })
    }

    fn run(self, stage: &mut Stage) -> Result<Sparse> {
        let (mut spilled, mut kept, mut kept_pieces) = (Vec::new(), Vec::new(), 0..0);
        let share = 0.5 / self.rounds.len().max(1) as f64;
        for (number, round) in self.rounds.iter().enumerate() {
            let begun = 0.02 + share * number as f64;
            let sorted = self.sort(stage, round.clone(), begun + share / 2.0)?;
            if number + 1 == self.rounds.len() {
                (kept, kept_pieces) = (sorted, round.clone());
            } else {
                spilled.push(self.spill(stage, round.clone(), &sorted, begun + share)?);
            }
        }
        self.put_together(stage, &spilled, kept, kept_pieces)?;
        self.new.finish()
    }

    /// Sorts the pieces of a round by bucket.
    fn sort(&self, stage: &mut Stage, round: Range<usize>, fraction: f64) -> Result<Vec<Arc<Sorted<T>>>> {
        let mut plan = Plan::new("csrcsc: sort by bucket");
        plan.hold(self.held);
        let slots: Vec<Slot<T>> = round.clone().map(|_| Slot::default()).collect();
        for (piece, slot) in self.pieces[round].iter().zip(&slots) {
            let (lines, slot, buckets) = (self.a.blocks(piece), Arc::clone(slot), Arc::clone(&self.buckets));
            let has_values = self.a.has_values();
            let task = self.a.regions(&mut plan, piece).into_iter().fold(Task::new("sort").flops(piece.entries()), Task::read);
            plan.task(task.run(move |cx| {
                let sorted = match lines.index_element() {
                    Some(_) => with_csr!(lines, cx.blocks, T, a => sort_piece(a, &buckets, has_values)),
                    None => with_lines!(lines, cx.blocks, T, a => sort_tiles(a, &buckets, has_values)?),
                };
                *slot.lock().expect("no panic while held") = Some(Arc::new(sorted));
                Ok(())
            }));
        }
        stage.run(plan, fraction)?;
        let taken = slots.into_iter().map(|slot| slot.lock().expect("no panic while held").take());
        taken.map(|sorted| sorted.ok_or(Error::Cancelled)).collect()
    }

    /// Writes a round to scratch, bucket after bucket.
    fn spill(&self, stage: &mut Stage, pieces: Range<usize>, sorted: &[Arc<Sorted<T>>], fraction: f64) -> Result<Spilled> {
        let place_bytes = self.place_bytes();
        let mut parts = Vec::new();
        let mut offset = 0;
        for bucket in 0..self.buckets.count() {
            let entries: usize = sorted.iter().map(|piece| piece.entries(bucket).len()).sum();
            let gaps: usize = sorted.iter().map(|piece| piece.gaps(bucket).len()).sum();
            let has_values = if self.a.has_values() { size_of::<T>() } else { 0 };
            let bytes = (8 * sorted.len() + entries * (has_values + place_bytes) + gaps) as u64;
            let places = self.buckets.places(bucket);
            let counts = match places.end - places.start {
                1 => sorted.iter().map(|piece| [piece.entries(bucket).len() as u32, piece.gaps(bucket).len() as u32]).collect(),
                _ => Vec::new(),
            };
            parts.push(Part { offset, bytes, entries: entries as u64, counts });
            offset += bytes.next_multiple_of(4096);
        }
        let file = self.session.scratch_file(None, offset)?;
        let mut plan = Plan::new("csrcsc: to scratch");
        plan.hold(self.held);
        let extent = plan.extent(file.extent());
        let sorted: Arc<Vec<Arc<Sorted<T>>>> = Arc::new(sorted.to_vec());
        for (bucket, part) in parts.iter().enumerate().filter(|(_, part)| part.bytes > 0) {
            let (sorted, has_values) = (Arc::clone(&sorted), self.a.has_values());
            plan.task(Task::new("spill").write(Region::span(extent, part.offset, part.bytes)).run(move |cx| {
                fill_part(cx.blocks[0].bytes_mut(), &sorted, bucket, has_values, place_bytes);
                Ok(())
            }));
        }
        stage.run(plan, fraction)?;
        Ok(Spilled { extent: file.extent().clone(), pieces, parts })
    }

    fn place_bytes(&self) -> usize {
        if self.buckets.are_narrow() { 2 } else { 4 }
    }

    /// Sorts every bucket by place and writes it.
    fn put_together(&self, stage: &mut Stage, spilled: &[Spilled], kept: Vec<Arc<Sorted<T>>>, last: Range<usize>) -> Result<()> {
        let mut plan = Plan::new("csrcsc: sort by place");
        plan.hold(self.held);
        let kept = Arc::new(kept);
        let mut first_entry = 0;
        for bucket in 0..self.buckets.count() {
            let kept_entries: usize = kept.iter().map(|piece| piece.entries(bucket).len()).sum();
            let all = Source::Kept(last.clone(), last.start);
            // A place alone needs no sorting: its entries go out as they come in.
            let one_place = self.buckets.places(bucket).end - self.buckets.places(bucket).start == 1;
            let sources = match one_place {
                true => self
                    .in_steps(bucket, spilled)
                    .chain(self.kept_steps(bucket, &kept, last.start))
                    .map(|one| vec![one])
                    .collect(),
                false => vec![self.in_parts(bucket, spilled).chain([(all, kept_entries as u64, Vec::new())]).collect::<Vec<_>>()],
            };
            for (step, sources) in sources.into_iter().enumerate() {
                let count: u64 = sources.iter().map(|(_, entries, _)| entries).sum();
                let entries = first_entry..first_entry + count;
                first_entry = entries.end;
                self.bucket_task(&mut plan, bucket, entries, step == 0, sources, &kept);
            }
        }
        let end = self.new.offsets(&mut plan, self.a.width()..self.a.width() + 1);
        plan.task(Task::new("end").write(end).run(move |cx| {
            cx.blocks[0].slice_mut::<i64>()[0] = first_entry as i64;
            Ok(())
        }));
        stage.run(plan, 1.0)?;
        Ok(())
    }

    fn bucket_task(
        &self,
        plan: &mut Plan,
        bucket: usize,
        entries: Range<u64>,
        begins: bool,
        sources: Vec<(Source, u64, Vec<Span>)>,
        kept: &Arc<Vec<Arc<Sorted<T>>>>,
    ) {
        let places = self.buckets.places(bucket);
        let held = 8 * (places.end - places.start + 1) as usize;
        let mut task = Task::new("bucket").flops(2 * (entries.end - entries.start)).held(held);
        for span in sources.iter().flat_map(|(_, _, spans)| spans) {
            task = task.read(Region::span(plan.extent(&span.extent), span.offset, span.bytes));
        }
        if begins {
            task = task.write(self.new.offsets(plan, places.clone()));
        }
        task = task.write(self.new.indices(plan, entries.clone()));
        task = self.new.values(plan, entries.clone()).into_iter().fold(task, Task::write);
        let work = Bucket {
            bucket,
            places,
            entries,
            begins,
            index: self.new.shape().index,
            has_values: self.a.has_values(),
            place_bytes: self.place_bytes(),
            pieces: Arc::clone(&self.pieces),
            sources: sources.into_iter().map(|(source, ..)| source).collect(),
            kept: Arc::clone(kept),
        };
        plan.task(task.run(move |cx| work.run(cx.blocks)));
    }

    /// What a bucket has in scratch, round by round.
    fn in_parts<'a>(&self, bucket: usize, spilled: &'a [Spilled]) -> impl Iterator<Item = (Source, u64, Vec<Span>)> + use<'a, T> {
        spilled.iter().map(move |round| {
            let part = &round.parts[bucket];
            let span = Span { extent: round.extent.clone(), offset: part.offset, bytes: part.bytes };
            (Source::Part(round.pieces.clone()), part.entries, vec![span])
        })
    }

    /// What a bucket of one place has in memory, some pieces at a time.
    fn kept_steps(&self, bucket: usize, kept: &[Arc<Sorted<T>>], first: usize) -> Vec<(Source, u64, Vec<Span>)> {
        let counts: Vec<[u32; 2]> = kept.iter().map(|piece| [piece.entries(bucket).len() as u32, 0]).collect();
        let steps = steps_of(&counts, self.step_bytes()).into_iter();
        let source = |step: Range<usize>| {
            let entries = counts[step.clone()].iter().map(|count| u64::from(count[0])).sum();
            (Source::Kept(first + step.start..first + step.end, first), entries, Vec::new())
        };
        steps.map(source).collect()
    }

    /// Bytes of entries of one place that go out at once.
    fn step_bytes(&self) -> u64 {
        (self.session.memory_free() / 64).max(4096)
    }

    /// What such a bucket has in scratch, likewise.
    fn in_steps<'a>(&self, bucket: usize, spilled: &'a [Spilled]) -> impl Iterator<Item = (Source, u64, Vec<Span>)> + use<'a, T> {
        let value_bytes = if self.a.has_values() { size_of::<T>() as u64 } else { 0 };
        let (place_bytes, most) = (self.place_bytes() as u64, self.step_bytes());
        spilled.iter().flat_map(move |round| {
            let part = &round.parts[bucket];
            let values_at = part.offset + 8 * round.pieces.len() as u64;
            let gaps_at = values_at + part.entries * (value_bytes + place_bytes);
            let (mut entries, mut gaps) = (0, 0);
            let mut steps = Vec::new();
            for step in steps_of(&part.counts, most) {
                let sum = |which: usize| part.counts[step.clone()].iter().map(|count| u64::from(count[which])).sum::<u64>();
                let (count, gap_bytes) = (sum(0), sum(1));
                let span = |offset, bytes| Span { extent: round.extent.clone(), offset, bytes };
                let values = (value_bytes > 0).then(|| span(values_at + entries * value_bytes, count * value_bytes));
                let spans = values.into_iter().chain([span(gaps_at + gaps, gap_bytes)]).collect();
                let pieces = round.pieces.start + step.start..round.pieces.start + step.end;
                steps.push((Source::OnePlace(pieces, part.counts[step].to_vec()), count, spans));
                (entries, gaps) = (entries + count, gaps + gap_bytes);
            }
            steps
        })
    }
}

/// Cuts pieces into steps of at most so many bytes of entries, or single pieces; at least one.
fn steps_of(counts: &[[u32; 2]], most: u64) -> Vec<Range<usize>> {
    let (mut steps, mut start, mut sum) = (Vec::new(), 0, 0);
    for (number, count) in counts.iter().enumerate() {
        let bytes = 16 * u64::from(count[0]);
        if number > start && sum + bytes > most {
            steps.push(start..number);
            (start, sum) = (number, 0);
        }
        sum += bytes;
    }
    steps.push(start..counts.len());
    steps
}

/// Pieces in order, as many in a round as fit; the last is as full as can be, because it stays.
fn rounds(pieces: &[Piece], bytes: impl Fn(&Piece) -> u64, most: u64) -> Vec<Range<usize>> {
    let mut rounds = Vec::new();
    let (mut end, mut sum) = (pieces.len(), 0);
    for (number, piece) in pieces.iter().enumerate().rev() {
        if sum + bytes(piece) > most && end > number + 1 {
            rounds.push(number + 1..end);
            (end, sum) = (number + 1, 0);
        }
        sum += bytes(piece);
    }
    rounds.push(0..end);
    rounds.reverse();
    rounds
}

/// Tasks that look at some pieces.
fn sample_plan<T: Real>(plan: &mut Plan, a: &Sparse, pieces: &[Piece]) -> Arc<Mutex<Vec<u64>>> {
    let sample = Arc::new(Mutex::new(Vec::new()));
    let turn = plan.volatile("turn", 1);
    let looked: Vec<&Piece> = pieces.iter().step_by(pieces.len().div_ceil(16).max(1)).collect();
    let each = SAMPLES / looked.len().max(1);
    for piece in looked {
        let (lines, sample) = (a.blocks(piece), Arc::clone(&sample));
        let task = Task::new("sample").update(Region::span(turn, 0, 1));
        let task = a.regions(plan, piece).into_iter().fold(task, Task::read);
        plan.task(task.run(move |cx| {
            let step = (lines.piece.entries() as usize).div_ceil(each).max(1);
            let mut sample = sample.lock().expect("no panic while held");
            let mut seen = 0;
            with_lines!(lines, &cx.blocks[1..], T, a => a.each_line(|_, entries| entries.each(|place, _| {
                if seen % step == 0 {
                    sample.push(place as u64);
                }
                seen += 1;
            })));
            Ok(())
        }));
    }
    sample
}

/// The same for lines that come in parts: first put together.
fn sort_tiles<T: Real>(a: impl Lines<T>, buckets: &Buckets, has_values: bool) -> Result<Sorted<T>> {
    let (mut places, mut values) = (vec![0i64; a.entries()], vec![T::ZERO; a.entries()]);
    let offsets = in_lines(a, |at, _, place, value| (places[at], values[at]) = (place as i64, value));
    let offsets: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
    let entries = *offsets.last().unwrap_or(&0) as usize;
    Ok(sort_piece(Csr::new(a.width(), &offsets, &places[..entries], &values[..entries])?, buckets, has_values))
}

/// Counts, then puts every entry behind the others of its bucket.
fn sort_piece<T: Real>(a: impl Lines<T>, buckets: &Buckets, has_values: bool) -> Sorted<T> {
    let count = buckets.count();
    let mut entries = vec![0u32; count + 1];
    let mut gaps = vec![0u32; count + 1];
    let mut last = vec![0usize; count];
    a.each_line(|line, row| {
        row.each(|place, _| {
            let bucket = buckets.of(place as u64);
            entries[bucket + 1] += 1;
            gaps[bucket + 1] += 1 + ((line - last[bucket]) / 255) as u32;
            last[bucket] = line;
        });
    });
    for bucket in 0..count {
        entries[bucket + 1] += entries[bucket];
        gaps[bucket + 1] += gaps[bucket];
    }
    let starts: Vec<[u32; 2]> = entries.iter().zip(&gaps).map(|(&entry, &gap)| [entry, gap]).collect();
    let mut sorted = Sorted {
        places: vec![0; entries[count] as usize],
        values: vec![T::ZERO; if has_values { entries[count] as usize } else { 0 }],
        gaps: vec![0; gaps[count] as usize],
        starts,
    };
    last.fill(0);
    a.each_line(|line, row| {
        row.each(|place, value| {
            let bucket = buckets.of(place as u64);
            let at = entries[bucket] as usize;
            sorted.places[at] = (place as u64 - buckets.starts[bucket]) as u32;
            if has_values {
                sorted.values[at] = value;
            }
            entries[bucket] += 1;
            let mut gap = line - last[bucket];
            last[bucket] = line;
            while gap >= 255 {
                sorted.gaps[gaps[bucket] as usize] = 255;
                (gaps[bucket], gap) = (gaps[bucket] + 1, gap - 255);
            }
            sorted.gaps[gaps[bucket] as usize] = gap as u8;
            gaps[bucket] += 1;
        });
    });
    sorted
}

/// A bucket's part of a round, as the head of this file draws it.
fn fill_part<T: Real>(bytes: &mut [u8], sorted: &[Arc<Sorted<T>>], bucket: usize, has_values: bool, place_bytes: usize) {
    let mut at = 0;
    let mut put = |from: &[u8]| {
        bytes[at..at + from.len()].copy_from_slice(from);
        at += from.len();
    };
    for piece in sorted {
        put(&(piece.entries(bucket).len() as u32).to_le_bytes());
        put(&(piece.gaps(bucket).len() as u32).to_le_bytes());
    }
    if has_values {
        sorted.iter().for_each(|piece| put(bytemuck::cast_slice(&piece.values[piece.entries(bucket)])));
    }
    for piece in sorted {
        let places = &piece.places[piece.entries(bucket)];
        match place_bytes {
            2 => places.iter().for_each(|&place| put(&(place as u16).to_le_bytes())),
            _ => put(bytemuck::cast_slice(places)),
        }
    }
    sorted.iter().for_each(|piece| put(&piece.gaps[piece.gaps(bucket)]));
}

/// All that makes one bucket of the result, or, of a bucket of one place, some of its entries.
struct Bucket<T> {
    bucket: usize,
    places: Range<u64>,
    /// Of the result.
    entries: Range<u64>,
    /// Whether its offsets are written.
    begins: bool,
    index: Element,
    has_values: bool,
    place_bytes: usize,
    pieces: Arc<Vec<Piece>>,
    sources: Vec<Source>,
    kept: Arc<Vec<Arc<Sorted<T>>>>,
}

/// Where entries of a bucket come from, in their order.
#[derive(Clone)]
enum Source {
    /// A block that is a part, of these pieces.
    Part(Range<usize>),
    /// Two blocks, values (where there are any) and gaps, of pieces with so many entries and bytes of gaps; places are all zero.
    OnePlace(Range<usize>, Vec<[u32; 2]>),
    /// Pieces in memory, of which the first has this number.
    Kept(Range<usize>, usize),
}

/// Places in a bucket.
#[derive(Clone, Copy)]
enum Places<'a> {
    Zero,
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl Places<'_> {
    #[inline]
    fn at(self, at: usize) -> usize {
        match self {
            Places::Zero => 0,
            Places::Narrow(places) => usize::from(places[at]),
            Places::Wide(places) => places[at] as usize,
        }
    }
}

/// Entries of a bucket and of a piece.
struct Fragment<'a, T> {
    first_line: u64,
    entries: usize,
    places: Places<'a>,
    values: &'a [T],
    gaps: &'a [u8],
}

impl<T: Real> Bucket<T> {
    fn run(&self, blocks: &mut [Block]) -> std::result::Result<(), outcore_engine::TaskError> {
        let read = self.sources.iter().map(|source| source.blocks(self.has_values)).sum();
        let (read, written) = blocks.split_at_mut(read);
        // Where the next entry of each place goes, from the bucket's first.
        let mut next = vec![0u64; (self.places.end - self.places.start) as usize + 1];
        self.fragments(read, |fragment| (0..fragment.entries).for_each(|at| next[fragment.places.at(at) + 1] += 1));
        (1..next.len()).for_each(|place| next[place] += next[place - 1]);
        let written = match self.begins {
            true => {
                let (offsets, rest) = written.split_at_mut(1);
                let into = offsets[0].slice_mut::<i64>();
                into.iter_mut().zip(&next).for_each(|(into, &at)| *into = (self.entries.start + at) as i64);
                rest
            }
            false => written,
        };
        let (indices, values) = written.split_at_mut(1);
        let values = values.first_mut().map_or(&mut [][..], |block| block.slice_mut::<T>());
        match self.index {
            Element::I32 => self.place(read, &mut next, indices[0].slice_mut::<i32>(), values, |line| line as i32),
            _ => self.place(read, &mut next, indices[0].slice_mut::<i64>(), values, |line| line as i64),
        }
        Ok(())
    }

    fn place<I: Pod>(&self, read: &[Block], next: &mut [u64], indices: &mut [I], values: &mut [T], index: impl Fn(u64) -> I) {
        self.fragments(read, |fragment| {
            let (mut line, mut gaps) = (fragment.first_line, fragment.gaps.iter());
            for at in 0..fragment.entries {
                for &gap in gaps.by_ref() {
                    line += u64::from(gap);
                    if gap < 255 {
                        break;
                    }
                }
                let place = fragment.places.at(at);
                let to = next[place] as usize;
                next[place] += 1;
                indices[to] = index(line);
                if let Some(&value) = fragment.values.get(at) {
                    values[to] = value;
                }
            }
        });
    }

    fn fragments(&self, read: &[Block], mut f: impl FnMut(Fragment<'_, T>)) {
        let first_line = |piece: usize| self.pieces[piece].lines().start;
        let mut read = read.iter();
        for source in &self.sources {
            match source {
                Source::Part(pieces) => {
                    let bytes = read.next().expect("declared").bytes();
                    part_fragments(
                        bytes,
                        pieces.clone(),
                        self.has_values,
                        self.place_bytes,
                        |piece, entries, places, values, gaps| {
                            f(Fragment { first_line: first_line(piece), entries, places, values, gaps });
                        },
                    );
                }
                Source::OnePlace(pieces, counts) => {
                    let mut values = if self.has_values { read.next().expect("declared").slice::<T>() } else { &[] };
                    let mut gaps = read.next().expect("declared").bytes();
                    for (piece, &[entries, gap_bytes]) in pieces.clone().zip(counts) {
                        let entries = entries as usize;
                        let (these, rest) = gaps.split_at(gap_bytes as usize);
                        let (those, others) = values.split_at(if self.has_values { entries } else { 0 });
                        (gaps, values) = (rest, others);
                        f(Fragment { first_line: first_line(piece), entries, places: Places::Zero, values: those, gaps: these });
                    }
                }
                Source::Kept(pieces, number) => {
                    for piece in pieces.clone() {
                        let sorted = &self.kept[piece - number];
                        let range = sorted.entries(self.bucket);
                        f(Fragment {
                            first_line: first_line(piece),
                            entries: range.len(),
                            places: Places::Wide(&sorted.places[range.clone()]),
                            values: if self.has_values { &sorted.values[range] } else { &[] },
                            gaps: &sorted.gaps[sorted.gaps(self.bucket)],
                        });
                    }
                }
            }
        }
    }
}

impl Source {
    fn blocks(&self, has_values: bool) -> usize {
        match self {
            Source::Part(_) => 1,
            Source::OnePlace(..) => 1 + usize::from(has_values),
            Source::Kept(..) => 0,
        }
    }
}

/// Takes a part apart again.
fn part_fragments<T: Real>(
    bytes: &[u8],
    pieces: Range<usize>,
    has_values: bool,
    place_bytes: usize,
    mut f: impl FnMut(usize, usize, Places<'_>, &[T], &[u8]),
) {
    let (head, rest) = bytes.split_at(8 * pieces.len());
    let counts: &[[u32; 2]] = bytemuck::cast_slice(head);
    let entries: usize = counts.iter().map(|count| count[0] as usize).sum();
    let (values, rest) = rest.split_at(if has_values { entries * size_of::<T>() } else { 0 });
    let (places, mut gaps) = rest.split_at(entries * place_bytes);
    let values: &[T] = if values.is_empty() { &[] } else { bytemuck::cast_slice(values) };
    let mut at = 0;
    for (piece, &[entries, gap_bytes]) in pieces.zip(counts) {
        let range = at..at + entries as usize;
        at = range.end;
        let (these, rest) = gaps.split_at(gap_bytes as usize);
        gaps = rest;
        let places = &places[range.start * place_bytes..range.end * place_bytes];
        let places = match place_bytes {
            _ if places.is_empty() => Places::Zero,
            2 => Places::Narrow(bytemuck::cast_slice(places)),
            _ => Places::Wide(bytemuck::cast_slice(places)),
        };
        let values = if has_values { &values[range.clone()] } else { &[] };
        f(piece, range.len(), places, values, these);
    }
}
