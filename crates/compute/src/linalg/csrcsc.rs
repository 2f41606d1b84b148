//! The same matrix compressed along its other side: CSR to CSC, and back.
//!
//! Shapes: A is m x n, as is the result. Cost: with all entries in a part of the memory, reads A and
//! writes the result. Else entries go by way of scratch, of a matrix little larger than memory those
//! left out that fit it: reads A, writes and reads six or seven bytes an entry, writes the result.
//! What is known of scratch takes 20 bytes for each group of buckets and round, entries squared over
//! memory squared: a matrix of 100 times the budget needs a quarter of it for that.
//!
//! Minor indices (columns of CSR) are cut into buckets of about equal entries, by a sample. Rounds
//! of pieces pass by; each piece is sorted by bucket on its own, and while the next rounds are
//! sorted, what every group of buckets has of it is written to scratch, a segment each. Then group
//! after group is read, and each of its buckets put together and sorted by minor index: entries of
//! one come in the order of lines, so the result is the same whatever the memory.
//!
//! ```text
//!   a segment:   where each bucket begins, u32 | (entries, bytes of gaps) of each bucket and piece, u32 | buckets
//!   a bucket:    values | minor indices, nothing to u32 | gaps, u8
//! ```
//!
//! A minor index counts from the bucket's first. A gap is how many lines an entry is behind the one
//! before, from the piece's first line on; 255 says that more is to come. A bucket of one minor
//! index stores none, and is a group by itself, which goes out as it comes in. Source: the bucket
//! partition of external sorting (Aggarwal and Vitter, 1988).

mod bucket;
mod buckets;
mod segment;
mod sorted;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::{Error, Job, MemorySplit, Result, Session, Stage, with_real};
use outcore_device::Locked;
use outcore_engine::{Extent, Plan, Region, Task};
use outcore_kernels::Real;
use outcore_matrix::Sparse;
use outcore_matrix::sparse::{NewSparse, Piece, SparseShape, with_csr, with_lines};

use self::bucket::{Bucket, Source};
use self::buckets::{Buckets, sample_plan};
use self::segment::{fill_segment, segment_bytes};
use self::sorted::{Sorted, sort_piece, sort_tiles};

/// In memory at once, sorted or being sorted or on their way to scratch.
const ROUNDS: usize = 3;
/// So that there is something to read when one of them is done.
const SORTED_AT_ONCE: usize = 2;
/// Of more rounds the last do not stay in memory: they would save little, and groups can use the
/// memory.
const KEEPS_WITHIN: u64 = 32;
/// Buckets are wider than this only where there are too many minor indices.
const NARROW: u64 = 1 << 16;
const BUCKETS_MOST: u64 = 1 << 15;
/// Buckets that go through scratch together: enough for some threads to put them together at once.
const GROUP: u64 = 4;
const SECTOR: u64 = 4096;
/// Bytes of an entry on its way in or out, of a bucket of one minor index.
const ENTRY_BYTES: u64 = 16;
/// Bytes of a plan for each block that a task of it uses.
const PLANNED_BYTES: u64 = 512;

/// The matrix A in the other format, in a new folder or in scratch.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::csrcsc;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let by_columns = csrcsc(&session, &a, Some(folder.path().join("b")))?.run()?;
/// assert_eq!(by_columns.format(), Compressed::Columns);
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&by_columns.read()?.run()?.values), [1.0, 3.0, 2.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::OverBudget`]; what keeps the output or scratch from being made.
pub fn csrcsc(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
    with_real!(a.real(), T => Transposition::<T>::plan(session, a, out))
}

/// What has been written to scratch.
type Pool<T> = Arc<Mutex<Vec<Sorted<T>>>>;

type SharedSorted<T> = Arc<Mutex<Option<Sorted<T>>>>;

/// How a matrix is cut to memory.
struct Sizes {
    /// Bytes of a sorted entry.
    record: u64,
    /// Bytes of sorted entries.
    held: u64,
    /// Whether the last rounds stay in memory.
    keeps: bool,
    /// Groups of buckets.
    groups: u64,
    /// Minor indices of a bucket, at most.
    widest: u64,
}

impl Sizes {
    /// `None` where memory has no room for what is to be known of scratch.
    fn new(split: MemorySplit, a: &Sparse) -> Option<Sizes> {
        let value = if a.has_values() { a.dtype().bytes() } else { 0 };
        let index = SparseShape::index_for(a.lines()).bytes();
        let narrow = NARROW.min(split.bucket_width());
        let is_narrow = a.width().div_ceil(narrow) <= BUCKETS_MOST / 2;
        let widest = if is_narrow {
            narrow
        } else {
            a.width().div_ceil(BUCKETS_MOST / 2)
        };
        let record = value + if widest <= NARROW { 4 } else { 8 };
        let held = split.sorted_bytes();
        let rounds = (a.nonzeros() * record).div_ceil((held / ROUNDS as u64).max(1));
        let keeps = rounds <= KEEPS_WITHIN;
        let room = split.hold(if keeps { held } else { 0 }).group_bytes();
        let groups = (a.nonzeros() * 2 * (value + 4 + value + index))
            .div_ceil(room.max(1))
            .max(1);
        // Fewer where memory is short, but half of them: then nothing comes in meanwhile.
        let described = if rounds > ROUNDS as u64 {
            rounds * size_of::<Segment>() as u64
        } else {
            0
        };
        let most = split
            .collected_bytes()
            .checked_div(described)
            .unwrap_or(u64::MAX)
            .min(BUCKETS_MOST / 2 / GROUP);
        let groups = groups.min(most.max(groups / 2));
        (groups <= most).then_some(Sizes {
            record,
            held,
            keeps,
            groups,
            widest,
        })
    }

    /// # Errors
    /// [`Error::OverBudget`].
    fn within(split: MemorySplit, a: &Sparse, what: &str) -> Result<Sizes> {
        Sizes::new(split, a).ok_or_else(|| {
            let memory = split.left();
            let needed = (1..32)
                .map(|more| memory + memory / 4 * more)
                .find(|&memory| Sizes::new(MemorySplit::of(memory), a).is_some());
            let needed = needed.unwrap_or(u64::MAX);
            outcore_engine::Error::OverBudget {
                what: what.to_owned(),
                needed,
                available: memory,
                budget: memory,
            }
            .into()
        })
    }
}

/// What a group has of some pieces, in scratch: up to where the next begins.
struct Segment {
    group: u32,
    /// From the round's first.
    pieces: Range<u32>,
    /// In scratch, of 4096 bytes.
    sector: u32,
    entries: u32,
}

/// A round that has been written to scratch.
struct Spilled {
    extent: Extent,
    /// First and one past the last of its pieces.
    pieces: Range<usize>,
    /// Group after group.
    segments: Arc<Vec<Segment>>,
    bytes: u64,
}

impl Spilled {
    /// Where a segment is.
    fn region(&self, plan: &mut Plan, number: usize) -> Region {
        let begin = |segment: &Segment| SECTOR * u64::from(segment.sector);
        let (begin, end) = (
            begin(&self.segments[number]),
            self.segments.get(number + 1).map_or(self.bytes, begin),
        );
        Region::span(plan.extent(&self.extent), begin, end - begin)
    }

    /// Its pieces.
    fn pieces(&self, number: usize) -> Range<usize> {
        let Range { start, end } = self.segments[number].pieces;
        self.pieces.start + start as usize..self.pieces.start + end as usize
    }
}

/// Rounds that stay in memory.
struct Kept<T> {
    sorted: Arc<Vec<Sorted<T>>>,
    /// The number of the first piece.
    first: usize,
}

/// A task that puts a bucket together, or a part of a bucket of one minor index.
struct BucketTask<'a> {
    bucket: usize,
    /// Which round's, and which of its segments.
    segments: &'a [(usize, usize)],
    /// Pieces that stay in memory.
    kept: Range<usize>,
    entries: u64,
}

struct Transposition<T> {
    session: Session,
    a: Sparse,
    pieces: Arc<Vec<Piece>>,
    buckets: Arc<Buckets>,
    /// Pieces of each round.
    rounds: Vec<Range<usize>>,
    sizes: Sizes,
    /// Bytes that go out at once.
    step: u64,
    /// Blocks that tasks of one plan use, at most: plans are made as groups come in.
    planned: u64,
    new: NewSparse,
    pool: Pool<T>,
}

impl<T: Real> Transposition<T> {
    fn plan(session: &Session, a: &Sparse, out: Option<PathBuf>) -> Result<Job<Sparse>> {
        let what = format!("csrcsc {}", a.name());
        let split = MemorySplit::new(session).of_free();
        let sizes = Sizes::within(split, a, &what)?;
        let share = split.unsorted_piece_bytes();
        let pieces = a.pieces(share, |lines| if lines > NARROW { share } else { 0 });
        if pieces
            .iter()
            .any(|piece| piece.lines().end - piece.lines().start > NARROW)
        {
            return Err(Error::value(format!(
                "{} has more lines than can be turned over",
                a.name()
            )));
        }
        let mut plan = Plan::new(what.clone());
        let shape = SparseShape {
            format: a.format().turned(),
            lines: a.width(),
            width: a.lines(),
            index: SparseShape::index_for(a.lines()),
            ..SparseShape::of(a)
        };
        let new = NewSparse::make(session, out, shape, &mut plan)?;
        let buckets = sizes.groups * GROUP;
        let rounds = rounds(
            &pieces,
            |piece| piece.entries() * sizes.record + 8 * buckets,
            sizes.held / ROUNDS as u64,
        );
        plan.note("rounds", rounds.len());
        plan.note("groups", sizes.groups);
        if rounds.len() > ROUNDS {
            let spilled = rounds[..kept_from(rounds.len(), sizes.keeps)]
                .iter()
                .flat_map(|round| &pieces[round.clone()]);
            let entries = spilled.map(Piece::entries).sum::<u64>();
            plan.note("entries by way of scratch", entries);
            // There an entry has its value, and its line as a gap of a byte at least.
            let least = if a.has_values() {
                size_of::<T>() as u64
            } else {
                0
            } + 1;
            session.expect_scratch(&what, entries * least)?;
        }
        plan.bound(a.stored_bytes() + new.nbytes());
        let sample = sample_plan::<T>(&mut plan, a);
        let (session, a, step) = (session.clone(), a.clone(), split.step_bytes().max(SECTOR));
        let planned = split.step_bytes() / PLANNED_BYTES;
        Job::driven(&session.clone(), vec![plan], move |stage, plans| {
            for plan in plans {
                stage.run(plan, 0.02)?;
            }
            let sample = std::mem::take(&mut *sample.locked());
            let buckets = Arc::new(Buckets::new(a.width(), buckets, sizes.widest, sample));
            let pieces = Arc::new(pieces);
            Transposition::<T> {
                session,
                a,
                pieces,
                buckets,
                rounds,
                sizes,
                step,
                planned,
                new,
                pool: Pool::default(),
            }
            .run(stage)
        })
    }

    fn run(self, stage: &mut Stage) -> Result<Sparse> {
        let held = stage.reserve("sorted entries", self.sizes.held)?;
        let rounds = self.rounds.len();
        let kept_from = kept_from(rounds, self.sizes.keeps);
        let described = (kept_from * self.buckets.groups().len() * size_of::<Segment>()) as u64;
        let _described = stage.reserve("what is known of scratch", described)?;
        let done_after = |number: usize| 0.02 + 0.5 * number as f64 / rounds as f64;
        let (mut spilled, mut sorting, mut leaving, mut kept) =
            (Vec::new(), VecDeque::new(), VecDeque::new(), Vec::new());
        let mut entries = vec![0; self.buckets.count()];
        for number in 0..rounds {
            while number + sorting.len() < rounds && sorting.len() < SORTED_AT_ONCE {
                if sorting.len() + leaving.len() + kept.len() >= ROUNDS {
                    let Some((begun, sorted)) = leaving.pop_front() else {
                        break;
                    };
                    stage.end(begun, done_after(number))?;
                    let mut pool = self.pool.locked();
                    pool.extend(Arc::into_inner(sorted).unwrap_or_default());
                    pool.truncate(self.rounds[number + sorting.len()].len());
                }
                let (plan, slots) = self.sort(number + sorting.len());
                sorting.push_back((stage.begin(plan)?, slots));
            }
            let (begun, slots) = sorting.pop_front().expect("begun above");
            stage.end(begun, done_after(number + 1))?;
            let sorted = slots
                .iter()
                .map(|slot| slot.locked().take().ok_or(Error::Cancelled));
            let sorted = Arc::new(sorted.collect::<Result<Vec<_>>>()?);
            for piece in sorted.iter() {
                entries
                    .iter_mut()
                    .enumerate()
                    .for_each(|(bucket, sum)| *sum += piece.entries(bucket).len() as u64);
            }
            if number < kept_from {
                let (plan, round) = self.spill(self.rounds[number].clone(), &sorted)?;
                spilled.push(round);
                leaving.push_back((stage.begin(plan)?, sorted));
            } else {
                kept.push(sorted);
            }
        }
        for (begun, _) in leaving {
            stage.end(begun, done_after(rounds))?;
        }
        self.pool.locked().clear();
        let held = (!kept.is_empty()).then_some(held);
        let first_kept = self
            .rounds
            .get(kept_from)
            .map_or(self.pieces.len(), |round| round.start);
        let kept: Vec<_> = kept
            .into_iter()
            .flat_map(|sorted| Arc::into_inner(sorted).expect("its tasks have ended"))
            .collect();
        self.put_together(
            stage,
            &spilled,
            &Kept {
                sorted: Arc::new(kept),
                first: first_kept,
            },
            &entries,
        )?;
        drop(held);
        self.new.finish(&|| stage.is_cancelled())
    }

    /// Sorts the pieces of a round by bucket.
    fn sort(&self, number: usize) -> (Plan, Vec<SharedSorted<T>>) {
        let mut plan = Plan::new("csrcsc: sort by bucket");
        let round = self.rounds[number].clone();
        let slots: Vec<SharedSorted<T>> = round.clone().map(|_| SharedSorted::default()).collect();
        for (piece, slot) in self.pieces[round].iter().zip(&slots) {
            let (lines, slot, buckets) = (
                self.a.blocks(piece),
                Arc::clone(slot),
                Arc::clone(&self.buckets),
            );
            let (has_values, pool) = (self.a.has_values(), Arc::clone(&self.pool));
            let task = self
                .a
                .regions(&mut plan, piece)
                .into_iter()
                .fold(Task::new("sort").flops(piece.entries()), Task::read);
            // Lines that come in parts are put together first.
            let whole = piece.entries() as usize * (8 + size_of::<T>())
                + 8 * (piece.lines().end - piece.lines().start + 1) as usize;
            let task = if self.a.is_tiled() {
                task.held(whole)
            } else {
                task
            };
            plan.task(task.run(move |cx| {
                let used = pool.locked().pop().unwrap_or_default();
                let sorted = match lines.index_element() {
                    Some(_) => with_csr!(lines, cx.blocks, T, a => sort_piece(a, &buckets, has_values, used)),
                    None => with_lines!(lines, cx.blocks, T, a => sort_tiles(a, &buckets, has_values, used)?),
                };
                *slot.locked() = Some(sorted);
                Ok(())
            }));
        }
        (plan, slots)
    }

    /// Writes a round to scratch, group after group.
    fn spill(&self, pieces: Range<usize>, sorted: &Arc<Vec<Sorted<T>>>) -> Result<(Plan, Spilled)> {
        let mut plan = Plan::new("csrcsc: to scratch");
        let mut segments = Vec::new();
        let mut offset = 0;
        for (group, buckets) in self.buckets.groups().iter().enumerate() {
            let bytes = |piece: &Sorted<T>| ENTRY_BYTES * piece.entries(buckets.start).len() as u64;
            let parts = match self.buckets.is_one_index(buckets) {
                true => in_steps(sorted.iter().map(bytes), self.step),
                false => std::iter::once(0..sorted.len()).collect(),
            };
            for part in parts {
                let sorted = &sorted[part.clone()];
                let of_bucket = |bucket: usize| {
                    sorted
                        .iter()
                        .map(move |piece| piece.entries(bucket).len())
                        .sum::<usize>()
                };
                segments.push(Segment {
                    group: group as u32,
                    pieces: part.start as u32..part.end as u32,
                    sector: (offset / SECTOR) as u32,
                    entries: buckets.clone().map(of_bucket).sum::<usize>() as u32,
                });
                offset += segment_bytes(sorted, buckets, &self.buckets, self.a.has_values());
            }
        }
        segments.shrink_to_fit();
        let file = self.session.scratch_file(None, offset)?;
        let round = Spilled {
            extent: file.extent().clone(),
            pieces,
            segments: Arc::new(segments),
            bytes: offset,
        };
        let extent = plan.extent(&round.extent);
        let bytes: Vec<u64> = (0..round.segments.len())
            .map(|number| round.region(&mut plan, number).bytes())
            .collect();
        let mut offset = 0;
        for step in in_steps(bytes.iter().copied(), self.step) {
            let bytes = bytes[step.clone()].to_vec();
            let region = Region::span(extent, offset, bytes.iter().sum());
            offset = region.end();
            let (sorted, segments, buckets) = (
                Arc::clone(sorted),
                Arc::clone(&round.segments),
                Arc::clone(&self.buckets),
            );
            let has_values = self.a.has_values();
            plan.task(Task::new("spill").write(region).run(move |cx| {
                let stop = || cx.cancelled.load(Ordering::Relaxed);
                let mut rest = cx.blocks[0].bytes_mut();
                for (segment, &bytes) in segments[step].iter().zip(&bytes) {
                    let block = rest
                        .split_off_mut(..bytes as usize)
                        .expect("as long as was counted");
                    let pieces = segment.pieces.start as usize..segment.pieces.end as usize;
                    fill_segment(
                        block,
                        &sorted[pieces],
                        &buckets.groups()[segment.group as usize],
                        &buckets,
                        has_values,
                        &stop,
                    );
                }
                Ok(())
            }));
        }
        Ok((plan, round))
    }

    /// Sorts every bucket by minor index and writes it.
    fn put_together(
        &self,
        stage: &mut Stage,
        spilled: &[Spilled],
        kept: &Kept<T>,
        entries: &[u64],
    ) -> Result<()> {
        let new_plan = || Plan::new("csrcsc: sort by minor index");
        let groups = self.buckets.groups();
        let mut plan = new_plan();
        let mut next = vec![0; spilled.len()];
        let (mut first_entry, mut planned) = (0, 0);
        for (group, buckets) in groups.iter().enumerate() {
            let segments = segments_of(group, spilled, &mut next);
            let parts = match self.buckets.is_one_index(buckets) {
                true => self.parts_of_one_index(buckets.start, &segments, spilled, kept),
                false => {
                    let all = kept.first..self.pieces.len();
                    let part = |bucket| BucketTask {
                        bucket,
                        segments: &segments,
                        kept: all.clone(),
                        entries: entries[bucket],
                    };
                    buckets.clone().map(part).collect()
                }
            };
            // A plan ends where no other task needs the same segments.
            let (count, alone) = (parts.len(), self.buckets.is_one_index(buckets));
            for (number, part) in (1..).zip(parts) {
                let begins = number == 1 || part.bucket > buckets.start;
                let entries = first_entry..first_entry + part.entries;
                (first_entry, planned) = (entries.end, planned + part.segments.len() as u64 + 3);
                self.bucket_task(&mut plan, part, buckets, entries, begins, spilled, kept);
                if planned >= self.planned && (alone || number == count) {
                    plan.hold(std::mem::take(&mut planned) * PLANNED_BYTES);
                    let done = (group as f64 + number as f64 / count as f64) / groups.len() as f64;
                    stage.run(std::mem::replace(&mut plan, new_plan()), 0.52 + 0.48 * done)?;
                }
            }
        }
        let end = self
            .new
            .offsets(&mut plan, self.a.width()..self.a.width() + 1);
        plan.task(Task::new("end").write(end).run(move |cx| {
            cx.blocks[0].slice_mut::<i64>()[0] = first_entry as i64;
            Ok(())
        }));
        stage.run(plan, 1.0)?;
        Ok(())
    }

    /// A bucket of one minor index in parts: entries go out as they come in.
    fn parts_of_one_index<'a>(
        &self,
        bucket: usize,
        segments: &'a [(usize, usize)],
        spilled: &[Spilled],
        kept: &Kept<T>,
    ) -> Vec<BucketTask<'a>> {
        let entries =
            |&(round, number): &(usize, usize)| u64::from(spilled[round].segments[number].entries);
        let from_scratch = in_steps(
            segments
                .iter()
                .map(|segment| ENTRY_BYTES * entries(segment)),
            self.step,
        )
        .into_iter()
        .map(|step| {
            let segments = &segments[step];
            BucketTask {
                bucket,
                segments,
                kept: 0..0,
                entries: segments.iter().map(entries).sum(),
            }
        });
        let sorted = |piece: &Sorted<T>| piece.entries(bucket).len() as u64;
        let from_memory = in_steps(
            kept.sorted.iter().map(|piece| ENTRY_BYTES * sorted(piece)),
            self.step,
        )
        .into_iter()
        .map(|step| {
            let entries = kept.sorted[step.clone()].iter().map(sorted).sum();
            BucketTask {
                bucket,
                segments: &[],
                kept: kept.first + step.start..kept.first + step.end,
                entries,
            }
        });
        from_scratch.chain(from_memory).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "all that makes a task")]
    fn bucket_task(
        &self,
        plan: &mut Plan,
        part: BucketTask<'_>,
        group: &Range<usize>,
        entries: Range<u64>,
        begins: bool,
        spilled: &[Spilled],
        kept: &Kept<T>,
    ) {
        let (bucket, minors) = (part.bucket, self.buckets.minors(part.bucket));
        let held = 8 * (minors.end - minors.start + 1) as usize;
        let mut task = Task::new("bucket")
            .flops(2 * (entries.end - entries.start))
            .held(held);
        let mut sources = Vec::with_capacity(part.segments.len() + 1);
        for &(round, number) in part.segments {
            task = task.read(spilled[round].region(plan, number));
            sources.push(Source::Segment(spilled[round].pieces(number)));
        }
        if !part.kept.is_empty() {
            sources.push(Source::Kept(part.kept, kept.first));
        }
        if begins {
            task = task.write(self.new.offsets(plan, minors.clone()));
        }
        task = task.write(self.new.indices(plan, entries.clone()));
        task = self
            .new
            .values(plan, entries.clone())
            .into_iter()
            .fold(task, Task::write);
        let work = Bucket {
            bucket,
            of_group: (bucket - group.start, group.len()),
            minors,
            entries,
            begins,
            index: self.new.shape().index,
            has_values: self.a.has_values(),
            minor_bytes: self.buckets.minor_bytes(bucket),
            pieces: Arc::clone(&self.pieces),
            sources,
            kept: Arc::clone(&kept.sorted),
        };
        plan.task(task.run(move |cx| {
            let stop = || cx.cancelled.load(Ordering::Relaxed);
            work.run(cx.blocks, &stop)
        }));
    }
}

/// The segments of a group, where those of the groups before have been taken.
fn segments_of(group: usize, spilled: &[Spilled], next: &mut [usize]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (round, (spilled, next)) in spilled.iter().zip(next).enumerate() {
        let count = spilled.segments[*next..]
            .iter()
            .take_while(|segment| segment.group as usize == group)
            .count();
        found.extend((*next..*next + count).map(|number| (round, number)));
        *next += count;
    }
    found
}

/// Cuts items that take `bytes` each into steps of at most `most` bytes, or of one; at least one
/// step.
fn in_steps(bytes: impl Iterator<Item = u64>, most: u64) -> Vec<Range<usize>> {
    let (mut steps, mut start, mut sum, mut end) = (Vec::new(), 0, 0, 0);
    for (number, bytes) in bytes.enumerate() {
        if bytes > 0 && number > start && sum + bytes > most {
            steps.push(start..number);
            (start, sum) = (number, 0);
        }
        sum += bytes;
        end = number + 1;
    }
    steps.push(start..end);
    steps
}

/// The first round that stays in memory.
fn kept_from(rounds: usize, keeps: bool) -> usize {
    if keeps || rounds <= ROUNDS {
        rounds.saturating_sub(ROUNDS)
    } else {
        rounds
    }
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
