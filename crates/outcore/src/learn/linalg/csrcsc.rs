//! The same matrix compressed along its other side: CSR to CSC, and back.
//!
//! Cost: with all entries in a part of the memory, reads A and writes the result. Else entries go by way of scratch, those that fit
//! memory left out: reads A, writes and reads six or seven bytes an entry, writes the result.
//!
//! Places (columns of CSR) are cut into buckets of about equal entries, by a sample. Rounds of pieces pass by; each piece is sorted by
//! bucket on its own, and while the next rounds are sorted, every bucket's part of it is written to scratch. The last three rounds stay
//! in memory. Then each bucket is put together and sorted by place: entries of a place come in the order of lines, so the result is the
//! same whatever the memory.
//!
//! ```text
//!   a bucket's part of a round:   (entries, bytes of gaps) of each piece, u32 | values | places, u8 to u32 | gaps, u8
//! ```
//!
//! A place counts from the bucket's first. A gap is how many lines an entry is behind the one before, from the piece's first line on; 255
//! says that more is to come. Source: the bucket partition of external sorting (Aggarwal and Vitter, 1988).

mod bucket;
mod buckets;
mod part;
mod sorted;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use outcore_engine::{Extent, Plan, Region, Task};
use outcore_kernels::Real;

use self::bucket::{Bucket, Source};
use self::buckets::{Buckets, sample_plan};
use self::part::fill_part;
use self::sorted::{Sorted, sort_piece, sort_tiles};
use crate::data::format::with_real;
use crate::data::sparse::{NewSparse, Piece, Sparse, SparseShape, with_csr, with_lines};
use crate::error::{Error, Result};
use crate::job::{Job, Stage};
use crate::session::{PARALLEL, Session};

/// In memory at once, sorted or being sorted or on their way to scratch.
const ROUNDS: usize = 3;
/// So that there is something to read when one of them is done.
const SORTED_AT_ONCE: usize = 2;
/// Buckets are wider than this only where there are too many places.
const NARROW: u64 = 1 << 16;
const BUCKETS_MOST: u64 = 1 << 14;

/// The matrix A in the other format, in a new folder or in scratch.
///
/// # Errors
/// [`Error::OverBudget`]; what keeps the output or scratch from being made.
pub fn csrcsc(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
    with_real!(a.dtype(), T => Transposition::<T>::plan(session, a, out))
}

/// What has been written to scratch.
type Pool<T> = Arc<Mutex<Vec<Sorted<T>>>>;

type Slot<T> = Arc<Mutex<Option<Sorted<T>>>>;

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
    parts: Arc<Vec<Part>>,
}

struct Transposition<T> {
    session: Session,
    a: Sparse,
    pieces: Arc<Vec<Piece>>,
    buckets: Arc<Buckets>,
    /// Pieces of each round.
    rounds: Vec<Range<usize>>,
    /// Bytes of sorted entries.
    held: u64,
    /// Bytes that go out at once.
    step: u64,
    new: NewSparse,
    pool: Pool<T>,
}

impl<T: Real> Transposition<T> {
    fn plan(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
        let memory = session.memory_free();
        // Sorted entries take three fifths; a piece on its way in a tenth, buckets on their way out the rest.
        let held = memory / 5 * 3;
        let share = memory / 10 / (PARALLEL + 1);
        let pieces = a.pieces(share, |lines| if lines > NARROW { share } else { 0 });
        if pieces.iter().any(|piece| piece.lines().end - piece.lines().start > NARROW) {
            return Err(Error::value(format!("{} has more lines than can be turned over", a.name())));
        }
        let key = if a.width().div_ceil(NARROW) <= BUCKETS_MOST / 2 { size_of::<u32>() } else { size_of::<u64>() };
        let record = (if a.has_values() { size_of::<T>() } else { 0 } + key) as u64;
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
        let rounds = rounds(&pieces, |piece| piece.entries() * record + 8 * wanted, held / ROUNDS as u64);
        plan.note("rounds", rounds.len());
        plan.note("buckets", wanted);
        if rounds.len() > ROUNDS {
            let first_kept = rounds[rounds.len() - ROUNDS].start;
            let entries = pieces[..first_kept].iter().map(Piece::entries).sum::<u64>();
            plan.note("entries by way of scratch", entries);
            // There an entry has its value, and its line as a gap of a byte at least.
            let least = if a.has_values() { size_of::<T>() as u64 } else { 0 } + 1;
            session.expect_scratch(&format!("csrcsc {}", a.name()), entries * least)?;
        }
        plan.bound(a.stored_bytes() + new.nbytes());
        let sample = sample_plan::<T>(&mut plan, a, &pieces);
        let (session, a, step) = (session.clone(), a.clone(), (memory / 64).max(4096));
        Job::driven(&session.clone(), vec![plan], move |stage, plans| {
            for plan in plans {
                stage.run(plan, 0.02)?;
            }
            let sample = std::mem::take(&mut *sample.lock().expect("no panic while held"));
            let buckets = Arc::new(Buckets::new(a.width(), wanted, sample));
            let pieces = Arc::new(pieces);
            Transposition::<T> { session, a, pieces, buckets, rounds, held, step, new, pool: Pool::default() }.run(stage)
        })
    }

    fn run(self, stage: &mut Stage) -> Result<Sparse> {
        let _held = stage.reserve("sorted entries", self.held)?;
        let rounds = self.rounds.len();
        let done_after = |number: usize| 0.02 + 0.5 * number as f64 / rounds as f64;
        let (mut spilled, mut sorting, mut leaving, mut kept) = (Vec::new(), VecDeque::new(), VecDeque::new(), Vec::new());
        for number in 0..rounds {
            while number + sorting.len() < rounds && sorting.len() < SORTED_AT_ONCE {
                if sorting.len() + leaving.len() + kept.len() >= ROUNDS {
                    let Some((begun, sorted)) = leaving.pop_front() else { break };
                    stage.end(begun, done_after(number))?;
                    let mut pool = self.pool.lock().expect("no panic while held");
                    pool.extend(Arc::into_inner(sorted).unwrap_or_default());
                    pool.truncate(self.rounds[number + sorting.len()].len());
                }
                let (plan, slots) = self.sort(number + sorting.len());
                sorting.push_back((stage.begin(plan)?, slots));
            }
            let (begun, slots) = sorting.pop_front().expect("begun above");
            stage.end(begun, done_after(number + 1))?;
            let sorted = slots.iter().map(|slot| slot.lock().expect("no panic while held").take().ok_or(Error::Cancelled));
            let sorted = Arc::new(sorted.collect::<Result<Vec<_>>>()?);
            if number + ROUNDS < rounds {
                let (plan, parts) = self.spill(self.rounds[number].clone(), &sorted)?;
                spilled.push(parts);
                leaving.push_back((stage.begin(plan)?, sorted));
            } else {
                kept.push(sorted);
            }
        }
        for (begun, _) in leaving {
            stage.end(begun, done_after(rounds))?;
        }
        self.pool.lock().expect("no panic while held").clear();
        let first_kept = self.rounds[rounds - kept.len()].start;
        let kept = kept.into_iter().flat_map(|sorted| Arc::into_inner(sorted).expect("nobody else has what stays")).collect();
        self.put_together(stage, &spilled, kept, first_kept)?;
        self.new.finish()
    }

    /// Sorts the pieces of a round by bucket.
    fn sort(&self, number: usize) -> (Plan, Vec<Slot<T>>) {
        let mut plan = Plan::new("csrcsc: sort by bucket");
        let round = self.rounds[number].clone();
        let slots: Vec<Slot<T>> = round.clone().map(|_| Slot::default()).collect();
        for (piece, slot) in self.pieces[round].iter().zip(&slots) {
            let (lines, slot, buckets) = (self.a.blocks(piece), Arc::clone(slot), Arc::clone(&self.buckets));
            let (has_values, pool) = (self.a.has_values(), Arc::clone(&self.pool));
            let task = self.a.regions(&mut plan, piece).into_iter().fold(Task::new("sort").flops(piece.entries()), Task::read);
            // Lines that come in parts are put together first.
            let whole =
                piece.entries() as usize * (8 + size_of::<T>()) + 8 * (piece.lines().end - piece.lines().start + 1) as usize;
            let task = if self.a.is_tiled() { task.held(whole) } else { task };
            plan.task(task.run(move |cx| {
                let used = pool.lock().expect("no panic while held").pop().unwrap_or_default();
                let sorted = match lines.index_element() {
                    Some(_) => with_csr!(lines, cx.blocks, T, a => sort_piece(a, &buckets, has_values, used)),
                    None => with_lines!(lines, cx.blocks, T, a => sort_tiles(a, &buckets, has_values, used)?),
                };
                *slot.lock().expect("no panic while held") = Some(sorted);
                Ok(())
            }));
        }
        (plan, slots)
    }

    /// Writes a round to scratch, bucket after bucket.
    fn spill(&self, pieces: Range<usize>, sorted: &Arc<Vec<Sorted<T>>>) -> Result<(Plan, Spilled)> {
        let mut plan = Plan::new("csrcsc: to scratch");
        let value_bytes = if self.a.has_values() { size_of::<T>() } else { 0 };
        let mut parts = Vec::new();
        let mut offset = 0;
        for bucket in 0..self.buckets.count() {
            let counts: Vec<[u32; 2]> = sorted.iter().map(|piece| piece.counts(bucket)).collect();
            let sum = |which: usize| counts.iter().map(|count| u64::from(count[which])).sum::<u64>();
            let (entries, gaps) = (sum(0), sum(1));
            let bytes = 8 * sorted.len() as u64 + entries * (value_bytes + self.buckets.place_bytes(bucket)) as u64 + gaps;
            // Whole sectors, so that parts do not wait for each other.
            let bytes = bytes.next_multiple_of(4096);
            let one_place = self.buckets.places(bucket).end - self.buckets.places(bucket).start == 1;
            parts.push(Part { offset, bytes, entries, counts: if one_place { counts } else { Vec::new() } });
            offset += bytes;
        }
        let file = self.session.scratch_file(None, offset)?;
        let extent = plan.extent(file.extent());
        let parts = Arc::new(parts);
        let mut first = 0;
        while first < parts.len() {
            let mut bytes = parts[first].bytes;
            let mut end = first + 1;
            while end < parts.len() && bytes + parts[end].bytes <= self.step {
                bytes += parts[end].bytes;
                end += 1;
            }
            let (sorted, parts, buckets, has_values) =
                (Arc::clone(sorted), Arc::clone(&parts), Arc::clone(&self.buckets), self.a.has_values());
            plan.task(Task::new("spill").write(Region::span(extent, parts[first].offset, bytes)).run(move |cx| {
                let mut block = cx.blocks[0].bytes_mut();
                for bucket in first..end {
                    let (part, rest) = block.split_at_mut(parts[bucket].bytes as usize);
                    fill_part(part, &sorted, bucket, has_values, &buckets);
                    block = rest;
                }
                Ok(())
            }));
            first = end;
        }
        Ok((plan, Spilled { extent: file.extent().clone(), pieces, parts }))
    }

    /// Sorts every bucket by place and writes it.
    fn put_together(&self, stage: &mut Stage, spilled: &[Spilled], kept: Vec<Sorted<T>>, first_kept: usize) -> Result<()> {
        let mut plan = Plan::new("csrcsc: sort by place");
        let kept = Arc::new(kept);
        let mut first_entry = 0;
        for bucket in 0..self.buckets.count() {
            let kept_entries: usize = kept.iter().map(|piece| piece.entries(bucket).len()).sum();
            let all = Source::Kept(first_kept..self.pieces.len(), first_kept);
            // A place alone needs no sorting: its entries go out as they come in.
            let one_place = self.buckets.places(bucket).end - self.buckets.places(bucket).start == 1;
            let sources = match one_place {
                true => self
                    .in_steps(bucket, spilled)
                    .chain(self.kept_steps(bucket, &kept, first_kept))
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
        kept: &Arc<Vec<Sorted<T>>>,
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
            place_bytes: self.buckets.place_bytes(bucket),
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
    fn kept_steps(&self, bucket: usize, kept: &[Sorted<T>], first: usize) -> Vec<(Source, u64, Vec<Span>)> {
        let counts: Vec<[u32; 2]> = kept.iter().map(|piece| [piece.counts(bucket)[0], 0]).collect();
        let steps = steps_of(&counts, self.step).into_iter();
        let source = |step: Range<usize>| {
            let entries = counts[step.clone()].iter().map(|count| u64::from(count[0])).sum();
            (Source::Kept(first + step.start..first + step.end, first), entries, Vec::new())
        };
        steps.map(source).collect()
    }

    /// What such a bucket has in scratch, likewise.
    fn in_steps<'a>(&self, bucket: usize, spilled: &'a [Spilled]) -> impl Iterator<Item = (Source, u64, Vec<Span>)> + use<'a, T> {
        let value_bytes = if self.a.has_values() { size_of::<T>() as u64 } else { 0 };
        let (place_bytes, most) = (self.buckets.place_bytes(bucket) as u64, self.step);
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
