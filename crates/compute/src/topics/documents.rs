//! Passes over documents.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use outcore_core::{DType, Error, Job, MemorySplit, Result, Session, with_real};
use outcore_engine::{Block, Plan, Task, go_on};
use outcore_kernels::{Entries, Index, Lines, MatRef, Real};
use outcore_matrix::sparse::{
    NewSparse, Piece, PieceBlocks, SparseShape, each_piece, whole_lines, with_lines,
};
use outcore_matrix::{Compressed, Sparse};

use super::{NONE, check};
use crate::pass::{Fold, Map, Rows, fold, map};

/// Bits of a digit of [`sum_digits`].
const DIGIT_BITS: u32 = 11;

/// What is left of an entry: the root of its word's threshold, if it reaches it.
struct Kept {
    scales: Arc<Vec<f64>>,
    thresholds: Vec<f64>,
}

impl Kept {
    #[inline]
    fn of(&self, document: usize, word: usize, value: f64) -> Option<f64> {
        let threshold = self.thresholds[word];
        ((value * self.scales[document]).round() >= threshold).then_some(threshold)
    }
}

/// What thresholds leave of a document.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct KeptWords {
    /// Its entries that reach the thresholds of their words.
    pub entries: u32,
    /// The sum of these thresholds.
    pub weight: f32,
}

/// What thresholds leave of each document. `x` is in CSR.
///
/// Cost: reads X once; holds 8 bytes a document and a word.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::{KeptWords, kept};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let found = kept(&session, &a, vec![1.0; 2], vec![2.0, 1.0, 2.0])?.run()?;
/// assert_eq!(found, [2.0, 1.0].map(|weight| KeptWords { entries: 1, weight }));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for scales or thresholds that are not as many as documents or words;
/// [`Error::Value`] for a matrix in CSC; [`Error::OverBudget`].
pub fn kept(
    session: &Session,
    x: &Sparse,
    scales: impl Into<Arc<Vec<f64>>>,
    thresholds: Vec<f64>,
) -> Result<Job<Vec<KeptWords>>> {
    let scales = scales.into();
    check(
        x,
        Compressed::Rows,
        Some(scales.len()),
        Some(thresholds.len()),
    )?;
    let rows = Rows::Sparse(x.clone());
    with_real!(x.real(), T => map::<T, _>(session, "kept words", &rows, Kept { scales, thresholds }))
}

impl<T: Real> Map<T> for Kept {
    type Element = KeptWords;

    fn held_bytes(&self) -> u64 {
        8 * (self.scales.len() + self.thresholds.len()) as u64
    }

    fn dense(&self, _into: &mut [KeptWords], _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse(&self, into: &mut [KeptWords], first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|line, entries| {
            entries.each(|word, value| {
                if let Some(threshold) = self.of(first as usize + line, word, value.f64()) {
                    into[line].entries += 1;
                    into[line].weight += threshold as f32;
                }
            });
        });
        Ok(())
    }

    fn merge(&self, into: &mut KeptWords, other: &KeptWords) {
        into.entries += other.entries;
        into.weight += other.weight;
    }
}

/// The matrix of what reaches the thresholds, in scratch: the root of its word's threshold in place
/// of each value. `entries` are those of each document, as [`kept`] has counted them; documents
/// with 0 are left out.
///
/// Cost: reads X, writes the result; holds 12 bytes a document and 8 a word.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::thresholded;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let b = thresholded(&session, &a, vec![1.0; 2], vec![2.0, 4.0, 2.0], vec![1, 0])?.run()?;
/// assert_eq!((b.shape(), b.nonzeros()), ([1, 3], 1));
/// assert_eq!(bytemuck::cast_slice::<u8, f32>(&b.read()?.run()?.values), [2f32.sqrt()]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`kept`].
pub fn thresholded(
    session: &Session,
    x: &Sparse,
    scales: impl Into<Arc<Vec<f64>>>,
    thresholds: Vec<f64>,
    entries: Vec<u32>,
) -> Result<Job<Sparse>> {
    let scales = scales.into();
    check(
        x,
        Compressed::Rows,
        Some(scales.len()),
        Some(thresholds.len()),
    )?;
    check(x, Compressed::Rows, Some(entries.len()), None)?;
    let kept = Kept { scales, thresholds };
    with_real!(x.real(), T => write::<T>(session, x, kept, entries))
}

fn write<T: Real>(
    session: &Session,
    x: &Sparse,
    kept: Kept,
    entries: Vec<u32>,
) -> Result<Job<Sparse>> {
    let shape = SparseShape {
        format: Compressed::Rows,
        lines: entries.iter().filter(|count| **count > 0).count() as u64,
        width: x.cols(),
        entries: sum(&entries),
        index: SparseShape::index_for(x.cols()),
        real: x.real(),
        has_values: true,
    };
    let mut plan = Plan::new("words above thresholds");
    let held = <Kept as Map<T>>::held_bytes(&kept) + 4 * entries.len() as u64;
    plan.hold(held);
    let new = NewSparse::make(session, None, shape, &mut plan)?;
    plan.bound(x.stored_bytes() + new.nbytes());
    let last = Task::new("end").write(new.offsets(&mut plan, shape.lines..shape.lines + 1));
    plan.task(last.run(move |cx| {
        cx.blocks[0].slice_mut::<i64>()[0] = shape.entries as i64;
        Ok(())
    }));
    // What is read is written too.
    let piece_bytes = MemorySplit::new(session).hold(held).moved_panel_bytes() / 2;
    let groups = whole_lines(&x.pieces(piece_bytes, |lines| 16 * lines));
    let (kept, entries) = (Arc::new(kept), Arc::new(entries));
    let (mut line, mut at) = (0, 0);
    for group in groups {
        go_on()?;
        let documents = group[0].lines();
        let own = &entries[documents.start as usize..documents.end as usize];
        let lines = line..line + own.iter().filter(|count| **count > 0).count() as u64;
        let places = at..at + sum(own);
        (line, at) = (lines.end, places.end);
        if lines.is_empty() {
            continue;
        }
        let task = Task::new("keep")
            .flops(2 * group.iter().map(Piece::entries).sum::<u64>())
            .held(16 * own.len());
        let task = group
            .iter()
            .flat_map(|piece| x.regions(&mut plan, piece))
            .fold(task, Task::read);
        let values = new
            .values(&mut plan, places.clone())
            .expect("there are values");
        let task = task
            .write(new.offsets(&mut plan, lines))
            .write(new.indices(&mut plan, places.clone()))
            .write(values);
        let documents = TaskDocuments {
            pieces: group.iter().map(|piece| x.blocks(piece)).collect(),
            documents,
            first_entry: places.start,
            kept: Arc::clone(&kept),
            entries: Arc::clone(&entries),
        };
        let index = shape.index;
        plan.task(task.run(move |cx| match index {
            DType::I32 => Ok(documents.fill::<T, i32>(cx.blocks, |word| word as i32)?),
            _ => Ok(documents.fill::<T, i64>(cx.blocks, |word| word as i64)?),
        }));
    }
    // To make files whole and to look at all offsets may take long.
    Job::driven(session, vec![plan], move |stage, plans| {
        for plan in plans {
            stage.run(plan, 0.99)?;
        }
        new.finish(&|| stage.is_cancelled())
    })
}

fn sum(entries: &[u32]) -> u64 {
    entries.iter().map(|count| u64::from(*count)).sum()
}

/// Documents of one task.
struct TaskDocuments {
    pieces: Vec<PieceBlocks>,
    documents: Range<u64>,
    /// In the new matrix.
    first_entry: u64,
    kept: Arc<Kept>,
    entries: Arc<Vec<u32>>,
}

impl TaskDocuments {
    fn fill<T: Real, I: Pod>(
        &self,
        blocks: &mut [Block],
        index: impl Fn(usize) -> I,
    ) -> Result<()> {
        let (read, written) = blocks.split_at_mut(blocks.len() - 3);
        let [offsets, indices, values] = written else {
            unreachable!("three parts are declared")
        };
        let (indices, values) = (indices.slice_mut::<I>(), values.slice_mut::<T>());
        let first = self.documents.start as usize;
        let mut at = 0;
        let mut next: Vec<usize> = Vec::new();
        let mut offsets = offsets.slice_mut::<i64>().iter_mut();
        for count in &self.entries[first..self.documents.end as usize] {
            next.push(at);
            if *count > 0 {
                let offset = offsets.next().expect("an offset a document that is kept");
                *offset = (self.first_entry + at as u64) as i64;
            }
            at += *count as usize;
        }
        let mut fits = true;
        for (piece, blocks) in each_piece(&self.pieces, read) {
            with_lines!(piece, blocks, T, lines => lines.each_line(|line, entries| {
                if self.entries[first + line] == 0 {
                    return;
                }
                entries.each(|word, value| {
                    if let Some(threshold) = self.kept.of(first + line, word, value.f64()) {
                        let place = next[line];
                        next[line] += 1;
                        if place < indices.len() {
                            indices[place] = index(word);
                            values[place] = T::of(threshold.sqrt());
                        } else {
                            fits = false;
                        }
                    }
                });
            }));
        }
        let ends = self.entries[first..self.documents.end as usize].iter();
        let all = next.iter().zip(ends.scan(0, |end, count| {
            *end += *count as usize;
            Some(*end)
        }));
        if fits && all.into_iter().all(|(next, end)| *next == end) {
            Ok(())
        } else {
            Err(Error::value(
                "the counts of entries are those of other thresholds",
            ))
        }
    }
}

/// The catchwords of topics, and what a document has of them.
#[derive(Clone)]
pub struct Catchwords {
    /// The topic of each word, or [`NONE`].
    pub of_words: Arc<Vec<u32>>,
    /// Topics.
    pub count: usize,
    /// Of documents.
    pub scales: Arc<Vec<f64>>,
}

/// Room for the sums of a document.
struct DocumentSums {
    sums: Vec<f64>,
    topics: Vec<u32>,
}

impl Catchwords {
    fn check(&self, x: &Sparse) -> Result<()> {
        check(
            x,
            Compressed::Rows,
            Some(self.scales.len()),
            Some(self.of_words.len()),
        )?;
        let beyond = |topic: &&u32| **topic != NONE && **topic as usize >= self.count;
        match self.of_words.iter().find(beyond) {
            Some(topic) => Err(Error::value(format!(
                "a catchword is of topic {topic}, of {}",
                self.count
            ))),
            None => Ok(()),
        }
    }

    fn held_bytes(&self) -> u64 {
        4 * self.of_words.len() as u64 + 8 * self.scales.len() as u64
    }

    fn task_bytes(&self) -> usize {
        12 * self.count
    }

    fn room(&self) -> DocumentSums {
        DocumentSums {
            sums: vec![0.0; self.count],
            topics: Vec::new(),
        }
    }

    /// Calls `take` with each topic of which a document has catchwords, in order, and their sum.
    fn each_sum<I: Index, T: Real>(
        &self,
        room: &mut DocumentSums,
        document: usize,
        entries: Entries<'_, I, T>,
        mut take: impl FnMut(u32, f32),
    ) {
        entries.each(|word, value| {
            let topic = self.of_words[word];
            if topic != NONE && value.f64() > 0.0 {
                let sum = &mut room.sums[topic as usize];
                if *sum == 0.0 {
                    room.topics.push(topic);
                }
                *sum += value.f64();
            }
        });
        room.topics.sort_unstable();
        for topic in room.topics.drain(..) {
            let sum = std::mem::take(&mut room.sums[topic as usize]);
            let sum = (sum * self.scales[document]) as f32;
            if sum > 0.0 {
                take(topic, sum);
            }
        }
    }
}

/// One digit of how much documents have of each topic's catchwords: how many documents have each value
/// of it, 2048 numbers a topic. A sum, as a float32, has three digits of 11 bits, those of twice its
/// bits; `digit` is 0 for the highest. Of the next ones only documents count whose higher digits are
/// those of the topic in `prefixes`.
///
/// Three such passes find the sum that a given number of documents reach: the bits of positive
/// numbers are ordered as they are. `x` is in CSR.
///
/// Cost: reads X once; holds 8 bytes a document and 4 a word, and 16 KiB a topic for each of up to
/// eight lanes.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::{Catchwords, sum_digits};
/// use std::sync::Arc;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let catchwords = Catchwords { of_words: Arc::new(vec![0, 1, 0]), count: 2, scales: Arc::new(vec![1.0; 2]) };
/// let found = sum_digits(&session, &a, catchwords, 0, vec![0; 2])?.run()?;
/// let digit = (3f32.to_bits() >> 21) as usize;
/// assert_eq!((found[digit], found[2048 + digit], found.iter().sum::<u64>()), (1, 1, 2));
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`kept`]; [`Error::Value`] for a topic beyond `count`.
pub fn sum_digits(
    session: &Session,
    x: &Sparse,
    catchwords: Catchwords,
    digit: u32,
    prefixes: Vec<u32>,
) -> Result<Job<Vec<u64>>> {
    catchwords.check(x)?;
    if prefixes.len() != catchwords.count || digit > 2 {
        let (given, count) = (prefixes.len(), catchwords.count);
        return Err(Error::shape(format!(
            "{given} prefixes of {count} topics for digit {digit}"
        )));
    }
    let digits = Digits {
        catchwords,
        shift: DIGIT_BITS * (2 - digit),
        prefixes,
    };
    let rows = Rows::Sparse(x.clone());
    with_real!(x.real(), T => fold::<T, _>(session, "sums of catchwords", &rows, digits))
}

struct Digits {
    catchwords: Catchwords,
    shift: u32,
    prefixes: Vec<u32>,
}

impl<T: Real> Fold<T> for Digits {
    type Element = u64;

    fn elements(&self) -> usize {
        self.catchwords.count << DIGIT_BITS
    }

    fn held_bytes(&self) -> u64 {
        self.catchwords.held_bytes()
    }

    fn task_bytes(&self, _rows: usize) -> usize {
        self.catchwords.task_bytes()
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _state: &mut [u64], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse(&self, state: &mut [u64], first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut room = self.catchwords.room();
        lines.each_line(|line, entries| {
            let document = first as usize + line;
            self.catchwords
                .each_sum(&mut room, document, entries, |topic, sum| {
                    let above = (u64::from(sum.to_bits()) << 1) >> self.shift;
                    if above >> DIGIT_BITS == u64::from(self.prefixes[topic as usize]) {
                        let digit = above as usize & ((1 << DIGIT_BITS) - 1);
                        state[((topic as usize) << DIGIT_BITS) + digit] += 1;
                    }
                });
        });
        Ok(())
    }

    fn merge(&self, into: &mut [u64], other: &[u64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}

/// Which documents make topics.
#[derive(Clone)]
pub struct Chosen {
    /// What a document has of a topic's catchwords at least, for each topic.
    pub sums: Vec<f32>,
    /// More than that, as in the code of ISLE.
    pub above: bool,
    /// The topic that each document is added to whatever words it has, or [`NONE`].
    pub clusters: Vec<u32>,
    /// Count pairs of topics too.
    pub pairs: bool,
}

/// The sum of the documents of each topic, `count` x d numbers; behind them, with `pairs`, `count` x
/// `count` numbers: of how many documents the one topic has the largest sum of catchwords, and the
/// other the second largest. `x` is in CSR.
///
/// Cost: reads X once; holds 12 bytes a document and 4 a word, and the result in each of up to
/// eight lanes.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::{Catchwords, Chosen, NONE, topic_sums};
/// use std::sync::Arc;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let catchwords = Catchwords { of_words: Arc::new(vec![0, 1, 1]), count: 2, scales: Arc::new(vec![2.0, 1.0]) };
/// let chosen = Chosen { sums: vec![1.0, 4.0], above: false, clusters: vec![NONE, 0], pairs: true };
/// let found = topic_sums(&session, &a, catchwords, chosen)?.run()?;
/// assert_eq!(found[..3], [2.0, 3.0, 4.0]);
/// assert_eq!(found[3..6], [2.0, 0.0, 4.0]);
/// assert_eq!(found[6..], [0.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`sum_digits`].
pub fn topic_sums(
    session: &Session,
    x: &Sparse,
    catchwords: Catchwords,
    chosen: Chosen,
) -> Result<Job<Vec<f64>>> {
    catchwords.check(x)?;
    check(x, Compressed::Rows, Some(chosen.clusters.len()), None)?;
    let (count, words) = (catchwords.count, catchwords.of_words.len());
    let beyond = |topic: &u32| *topic != NONE && *topic as usize >= count;
    if chosen.sums.len() != count || chosen.clusters.iter().any(beyond) {
        return Err(Error::shape(format!(
            "sums or clusters of other than {count} topics"
        )));
    }
    let sums = TopicSums {
        catchwords,
        chosen,
        words,
    };
    let rows = Rows::Sparse(x.clone());
    with_real!(x.real(), T => fold::<T, _>(session, "topics", &rows, sums))
}

struct TopicSums {
    catchwords: Catchwords,
    chosen: Chosen,
    words: usize,
}

impl TopicSums {
    fn has(&self, topic: u32, sum: f32) -> bool {
        let least = self.chosen.sums[topic as usize];
        sum > least || (sum == least && !self.chosen.above)
    }
}

impl<T: Real> Fold<T> for TopicSums {
    type Element = f64;

    fn elements(&self) -> usize {
        let count = self.catchwords.count;
        count * self.words + if self.chosen.pairs { count * count } else { 0 }
    }

    fn held_bytes(&self) -> u64 {
        self.catchwords.held_bytes() + 4 * self.chosen.clusters.len() as u64
    }

    fn task_bytes(&self, _rows: usize) -> usize {
        2 * self.catchwords.task_bytes()
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _state: &mut [f64], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse(&self, state: &mut [f64], first: u64, lines: impl Lines<T>) -> Result<()> {
        let (count, mut room, mut topics) =
            (self.catchwords.count, self.catchwords.room(), Vec::new());
        let (sums, pairs) = state.split_at_mut(count * self.words);
        lines.each_line(|line, entries| {
            let document = first as usize + line;
            let (mut largest, mut second) = ((NONE, 0.0), (NONE, 0.0));
            self.catchwords
                .each_sum(&mut room, document, entries, |topic, sum| {
                    if self.has(topic, sum) {
                        topics.push(topic);
                    }
                    if sum > largest.1 {
                        (largest, second) = ((topic, sum), largest);
                    } else if sum > second.1 {
                        second = (topic, sum);
                    }
                });
            if !pairs.is_empty() && second.0 != NONE {
                pairs[largest.0 as usize * count + second.0 as usize] += 1.0;
            }
            let cluster = self.chosen.clusters[document];
            topics.extend((cluster != NONE).then_some(cluster));
            let scale = self.catchwords.scales[document];
            for topic in topics.drain(..) {
                let sums = &mut sums[topic as usize * self.words..][..self.words];
                entries.each(|word, value| sums[word] += value.f64() * scale);
            }
        });
        Ok(())
    }

    fn merge(&self, into: &mut [f64], other: &[f64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}

/// In how many documents words of one list occur together: for each list of `length` words, of which
/// `lists` has one after the other, `length` x `length` numbers. `x` is in CSR.
///
/// Cost: reads X once; holds 4 bytes a word, and the result in each of up to eight lanes.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::co_occurrences;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let found = co_occurrences(&session, &a, &[0, 2, 1, 2], 2)?.run()?;
/// assert_eq!(found, [1, 1, 1, 1, 1, 0, 0, 1]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] for a word that is not there, lists of more than 64 words, and a matrix in CSC;
/// [`Error::OverBudget`].
pub fn co_occurrences(
    session: &Session,
    x: &Sparse,
    lists: &[u32],
    length: usize,
) -> Result<Job<Vec<u64>>> {
    check(x, Compressed::Rows, None, None)?;
    let words = x.cols() as usize;
    let is_there = |word: &u32| (*word as usize) < words;
    if !(1..=64).contains(&length) || !lists.len().is_multiple_of(length) {
        let count = lists.len();
        return Err(Error::value(format!("{count} words in lists of {length}")));
    }
    if let Some(word) = lists.iter().find(|word| !is_there(word)) {
        return Err(Error::value(format!("{} has no word {word}", x.name())));
    }
    let mut starts = vec![0u32; words + 1];
    lists
        .iter()
        .for_each(|word| starts[*word as usize + 1] += 1);
    for word in 0..words {
        starts[word + 1] += starts[word];
    }
    let (mut next, mut places) = (starts.clone(), vec![0; lists.len()]);
    for (place, word) in lists.iter().enumerate() {
        let at = &mut next[*word as usize];
        places[*at as usize] = place as u32;
        *at += 1;
    }
    let together = Together {
        starts,
        places,
        length,
    };
    let rows = Rows::Sparse(x.clone());
    with_real!(x.real(), T => fold::<T, _>(session, "words together", &rows, together))
}

struct Together {
    /// Where the places of each word in lists begin.
    starts: Vec<u32>,
    places: Vec<u32>,
    length: usize,
}

impl<T: Real> Fold<T> for Together {
    type Element = u64;

    fn elements(&self) -> usize {
        self.places.len() * self.length
    }

    fn held_bytes(&self) -> u64 {
        4 * (self.starts.len() + self.places.len()) as u64
    }

    fn task_bytes(&self, _rows: usize) -> usize {
        12 * self.places.len()
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _state: &mut [u64], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn sparse(&self, state: &mut [u64], _first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut masks = vec![0u64; self.places.len() / self.length];
        let mut seen = Vec::new();
        lines.each_line(|_, entries| {
            entries.each(|word, value| {
                if value.f64() == 0.0 {
                    return;
                }
                for place in
                    &self.places[self.starts[word] as usize..self.starts[word + 1] as usize]
                {
                    let (list, place) =
                        (*place as usize / self.length, *place as usize % self.length);
                    if masks[list] == 0 {
                        seen.push(list);
                    }
                    masks[list] |= 1 << place;
                }
            });
            for list in seen.drain(..) {
                let mask = std::mem::take(&mut masks[list]);
                let has = |place: &usize| (mask >> place) & 1 == 1;
                for one in (0..self.length).filter(has) {
                    let counts = &mut state[(list * self.length + one) * self.length..];
                    (0..self.length)
                        .filter(has)
                        .for_each(|other| counts[other] += 1);
                }
            }
        });
        Ok(())
    }

    fn merge(&self, into: &mut [u64], other: &[u64]) {
        into.iter_mut()
            .zip(other)
            .for_each(|(into, other)| *into += other);
    }
}
