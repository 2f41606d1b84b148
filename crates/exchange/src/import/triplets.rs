//! Single entries: MatrixMarket, bag of words, SciPy's coo, Parquet.
//!
//! Entries that come by rows, and in a row by columns, go to the matrix as they come; those of one
//! place that follow each other are added up. The first that comes out of order has everything
//! begun anew: all entries are then sorted. Symmetric text is sorted at once.

use outcore_core::{Error, Result, Stage};
use outcore_formats::{
    Chunk, Lines, Position, Precision, Tally, Triplets, WordLines, bag_of_words, matrix_market,
};

use super::chunks::{self, ChunkStages, ParsedChunk};
use super::lines::{Feed, Resumable};
use super::matrix::{Draft, NewMatrix};
use super::sort::{Entry, Sorter};
use super::source::Foreign;
use super::{Context, Format, Imported};

/// Entries and ends of rows that are handed over at once.
const SOME: usize = 1 << 12;

/// Entries in order on their way to the matrix.
#[derive(Default)]
struct Sink {
    /// The last entry: others of its place may follow.
    pending: Option<Entry>,
    /// The row that entries are of now: those before have ended.
    row: u64,
    columns: Vec<u64>,
    values: Vec<f64>,
}

impl Sink {
    /// Where an earlier import stopped.
    fn of(new: &NewMatrix) -> Sink {
        let pending = new.state.pending.map(|(row, column, bits)| Entry {
            row,
            column,
            value: f64::from_bits(bits),
        });
        Sink {
            pending,
            row: new.state.lines,
            ..Sink::default()
        }
    }

    /// Takes an entry; false if it is out of order.
    #[inline]
    fn push(&mut self, new: &mut NewMatrix, stage: &mut Stage, entry: Entry) -> Result<bool> {
        if let Some(last) = &mut self.pending {
            let (before, now) = ((last.row, last.column), (entry.row, entry.column));
            if before == now {
                last.value += entry.value;
                return Ok(true);
            }
            if before > now {
                return Ok(false);
            }
        }
        if let Some(last) = self.pending.replace(entry) {
            self.keep(new, stage, last)?;
        }
        Ok(true)
    }

    fn keep(&mut self, new: &mut NewMatrix, stage: &mut Stage, entry: Entry) -> Result<()> {
        if entry.row > self.row {
            self.end_rows(new, stage, entry.row)?;
        }
        self.columns.push(entry.column);
        self.values.push(entry.value);
        if self.columns.len() >= SOME {
            self.flush(new, stage)
        } else {
            Ok(())
        }
    }

    /// Rows before `row` have no further entries.
    fn end_rows(&mut self, new: &mut NewMatrix, stage: &mut Stage, row: u64) -> Result<()> {
        self.flush(new, stage)?;
        let end = new.state.entries;
        while self.row < row {
            stage.check()?;
            let count = (row - self.row).min(SOME as u64);
            new.line_ends((0..count).map(|_| end))?;
            self.row += count;
        }
        Ok(())
    }

    fn flush(&mut self, new: &mut NewMatrix, stage: &mut Stage) -> Result<()> {
        new.entries(stage, &self.columns, &self.values)?;
        self.columns.clear();
        self.values.clear();
        Ok(())
    }

    /// Has all but the last entry in the matrix, and remembers that one there.
    fn save(&mut self, new: &mut NewMatrix, stage: &mut Stage) -> Result<()> {
        self.flush(new, stage)?;
        new.state.pending = self
            .pending
            .map(|entry| (entry.row, entry.column, entry.value.to_bits()));
        Ok(())
    }

    /// No entry follows: ends the matrix after `rows` rows, or after the last with an entry.
    fn finish(mut self, new: &mut NewMatrix, stage: &mut Stage, rows: Option<u64>) -> Result<()> {
        let found = self.pending.map_or(self.row, |last| last.row + 1);
        if let Some(last) = self.pending.take() {
            self.keep(new, stage, last)?;
        }
        self.end_rows(new, stage, rows.unwrap_or(found))
    }
}

fn entries(triplets: &Triplets) -> impl Iterator<Item = Entry> {
    let places = triplets.rows.iter().zip(&triplets.columns);
    places
        .zip(&triplets.values)
        .map(|((&row, &column), &value)| Entry { row, column, value })
}

/// The header of either text.
#[derive(Clone, Copy)]
enum Header {
    MatrixMarket(matrix_market::Header),
    BagOfWords(bag_of_words::Header),
}

impl Header {
    fn read(format: &Format, feed: &mut Feed<'_>) -> Result<Header> {
        let lines: &mut Lines<_> = feed.lines();
        Ok(match format {
            Format::MatrixMarket => Header::MatrixMarket(matrix_market::Header::read(lines)?),
            _ => Header::BagOfWords(bag_of_words::Header::read(lines)?),
        })
    }

    fn shape(&self) -> (u64, u64) {
        match self {
            Header::MatrixMarket(header) => (header.rows, header.columns),
            Header::BagOfWords(header) => (header.rows, header.columns),
        }
    }

    /// Whether entries do not come by rows: both halves of a symmetric matrix, or columns.
    fn is_out_of_order(&self) -> bool {
        matches!(self, Header::MatrixMarket(header) if header.symmetry != matrix_market::Symmetry::General)
            || self.is_array()
    }

    fn is_array(&self) -> bool {
        matches!(self, Header::MatrixMarket(header) if header.layout == matrix_market::Layout::Array)
    }

    /// Entries that there are, as far as it tells: of arrays, none need be.
    fn entries(&self) -> Option<u64> {
        match self {
            Header::MatrixMarket(_) if self.is_array() => None,
            Header::MatrixMarket(header) => Some(header.entries),
            Header::BagOfWords(header) => Some(header.entries),
        }
    }

    fn least_line_bytes(&self) -> usize {
        match self {
            Header::MatrixMarket(header) => header.least_line_bytes(),
            Header::BagOfWords(_) => bag_of_words::LEAST_LINE_BYTES,
        }
    }

    fn bytes_to_parse(&self, chunk: &Chunk) -> usize {
        match self {
            Header::MatrixMarket(header) => header.bytes_to_parse(chunk),
            Header::BagOfWords(_) => bag_of_words::bytes_to_parse(chunk),
        }
    }

    /// Gives values of an array their places; `before` are in chunks before.
    fn place(&self, before: u64, triplets: &mut Triplets) {
        if let Header::MatrixMarket(header) = self
            && self.is_array()
        {
            matrix_market::place_values(header, before, triplets);
        }
    }

    fn tally(&self, object: &str) -> Tally {
        match self {
            Header::MatrixMarket(header) => header.tally(object),
            Header::BagOfWords(header) => header.tally(object),
        }
    }

    fn parse(
        &self,
        chunk: &Chunk,
        precision: Precision,
        triplets: &mut Triplets,
    ) -> outcore_formats::Result<()> {
        match self {
            Header::MatrixMarket(header) => {
                matrix_market::parse(chunk, header, precision, triplets)
            }
            Header::BagOfWords(header) => bag_of_words::parse(chunk, header, triplets),
        }
    }
}

pub(super) fn run_text(context: &Context, stage: &mut Stage) -> Result<Imported> {
    let mut feed = Feed::new(context, 0, Position::START)?;
    let header = Header::read(&context.options.format, &mut feed)?;
    feed.check_room(
        &header.tally(context.foreign[0].name()),
        header.least_line_bytes(),
    )?;
    let words = match &context.options.format {
        Format::BagOfWords {
            vocabulary: Some(path),
        } => Some(Foreign::open(&context.session, path)?),
        _ => None,
    };
    let (rows, columns) = header.shape();
    let (width, lines, entries) = (Some(columns), Some(rows), header.entries());
    let draft = Draft {
        width,
        lines,
        entries,
        words: words.is_some(),
        ..context.draft()
    };
    let mut import = Resumable::begin(context, draft)?;
    let done = (|| {
        let text = Text { context, header };
        if header.is_out_of_order() || !text.in_order(stage, &mut import, feed)? {
            context
                .stop
                .store(false, std::sync::atomic::Ordering::Relaxed);
            import.begin_anew()?;
            text.sorted(stage, &mut import.new)?;
        }
        assert_eq!(import.new.state.lines, rows, "every row is there");
        words.map_or(Ok(()), |words| {
            copy_words(context, stage, &words, columns, &mut import.new)
        })
    })();
    import.end(stage, done)
}

struct Text<'a> {
    context: &'a Context,
    header: Header,
}

impl Text<'_> {
    fn pass(
        &self,
        stage: &mut Stage,
        mut feed: Feed<'_>,
        mut take: impl FnMut(&mut Stage, &mut ParsedChunk<Triplets>, f64) -> Result<()>,
    ) -> Result<()> {
        let Context {
            session,
            memory,
            stop,
            ..
        } = self.context;
        let (header, total) = (self.header, self.context.source_bytes().max(1) as f64);
        let precision = self.context.options.precision();
        let work = ChunkStages {
            read: |slot: &mut ParsedChunk<Triplets>| feed.next(slot),
            need: |chunk: &Chunk| header.bytes_to_parse(chunk),
            parse: |chunk: &Chunk, triplets: &mut Triplets| {
                header.parse(chunk, precision, triplets)
            },
        };
        chunks::run(session, stage, memory.lanes, stop, work, |stage, slot| {
            let fraction = slot.stored as f64 / total;
            take(stage, slot, fraction)
        })
    }

    /// Entries as they come; false when one came out of order.
    fn in_order(
        &self,
        stage: &mut Stage,
        import: &mut Resumable<'_>,
        feed: Feed<'_>,
    ) -> Result<bool> {
        let mut tally = self.header.tally(self.context.foreign[0].name());
        tally.add(import.new.state.counted)?;
        let (part, from) = import.place();
        let feed = if from == Position::START {
            feed
        } else {
            Feed::new(self.context, part, from)?
        };
        let (mut sink, mut in_order) = (Sink::of(&import.new), true);
        let passed = self.pass(stage, feed, |stage, slot, fraction| {
            tally.add(slot.found.entries)?;
            import.new.state.counted += slot.found.entries;
            for entry in entries(&slot.found) {
                if !sink.push(&mut import.new, stage, entry)? {
                    in_order = false;
                    // Ends the pass.
                    return Err(Error::Cancelled);
                }
            }
            stage.reach(0.99 * fraction);
            if import.is_due(slot.chunk.bytes.len()) {
                sink.save(&mut import.new, stage)?;
                import.save(slot.part, slot.end)?;
            }
            Ok(())
        });
        if !in_order {
            return Ok(false);
        }
        passed?;
        tally.finish()?;
        sink.finish(&mut import.new, stage, Some(self.header.shape().0))?;
        Ok(true)
    }

    fn sorted(&self, stage: &mut Stage, new: &mut NewMatrix) -> Result<()> {
        let mut feed = Feed::new(self.context, 0, Position::START)?;
        Header::read(&self.context.options.format, &mut feed)?;
        let mut tally = self.header.tally(self.context.foreign[0].name());
        let mut sorter = Sorter::new(&self.context.session, stage, self.context.memory.sort)?;
        let mut before = 0;
        self.pass(stage, feed, |stage, slot, fraction| {
            tally.add(slot.found.entries)?;
            self.header.place(before, &mut slot.found);
            before += slot.found.entries;
            sorter.push(stage, &slot.found)?;
            stage.reach(0.6 * fraction);
            Ok(())
        })?;
        tally.finish()?;
        put_in(stage, new, sorter, Some(self.header.shape().0))
    }
}

/// Sorted entries to the matrix.
fn put_in(stage: &mut Stage, new: &mut NewMatrix, sorter: Sorter, rows: Option<u64>) -> Result<()> {
    let (mut sink, total, mut given) = (Sink::default(), sorter.len().max(1) as f64, 0_u64);
    let beside = stage.beside();
    let mut own = stage.beside();
    sorter.finish(&beside, |entry| {
        given += 1;
        if given.is_multiple_of(1 << 14) {
            own.check()?;
            own.reach(0.6 + 0.39 * given as f64 / total);
        }
        let in_order = sink.push(new, &mut own, entry)?;
        assert!(in_order, "they were sorted");
        Ok(())
    })?;
    sink.finish(new, stage, rows)
}

/// Entries of a binary file, given in batches by `next(begin, ..)`. It is asked to begin with a
/// number of entries that are passed over; those that it has not left out itself remain of that
/// number.
pub(super) fn run_batches(
    context: &Context,
    stage: &mut Stage,
    draft: Draft,
    rows: Option<u64>,
    next: impl FnMut(Option<&mut u64>, &mut Stage, &mut Triplets) -> Result<bool>,
) -> Result<Imported> {
    let mut import = Resumable::begin(context, draft)?;
    let done = batches(context, stage, &mut import, rows, next);
    import.end(stage, done)
}

fn batches(
    context: &Context,
    stage: &mut Stage,
    import: &mut Resumable<'_>,
    rows: Option<u64>,
    mut next: impl FnMut(Option<&mut u64>, &mut Stage, &mut Triplets) -> Result<bool>,
) -> Result<()> {
    let (mut triplets, mut sink, mut in_order) = (Triplets::default(), Sink::of(&import.new), true);
    let (mut read, mut begins) = (import.place().1.byte, true);
    let mut passed = read;
    'batches: while next(
        std::mem::take(&mut begins).then_some(&mut passed),
        stage,
        &mut triplets,
    )? {
        let done = passed.min(triplets.entries);
        passed -= done;
        triplets.drop_entries(done as usize);
        for entry in entries(&triplets) {
            if !sink.push(&mut import.new, stage, entry)? {
                in_order = false;
                break 'batches;
            }
        }
        read += triplets.entries;
        if import.is_due(size_of::<Entry>() * triplets.entries as usize) {
            sink.save(&mut import.new, stage)?;
            import.save(
                0,
                Position {
                    byte: read,
                    ..Position::START
                },
            )?;
        }
    }
    if in_order {
        return sink.finish(&mut import.new, stage, rows);
    }
    import.begin_anew()?;
    let mut sorter = Sorter::new(&context.session, stage, context.memory.sort)?;
    let mut begins = Some(0);
    while next(begins.take().as_mut(), stage, &mut triplets)? {
        sorter.push(stage, &triplets)?;
    }
    drop(triplets);
    put_in(stage, &mut import.new, sorter, rows)
}

/// The words of a bag, one a column.
fn copy_words(
    context: &Context,
    stage: &Stage,
    words: &Foreign,
    columns: u64,
    new: &mut NewMatrix,
) -> Result<()> {
    let Context {
        session,
        memory,
        stop,
        ..
    } = context;
    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    let source = words.text(session, memory.stream, stop, 0)?;
    let mut lines = Lines::new(
        source,
        Position::START,
        memory.lanes.chunk_bytes,
        memory.longest_line,
    );
    let mut found = WordLines::new(words.name(), columns);
    let (mut chunk, mut text) = (Chunk::default(), Vec::new());
    while lines.next(&mut chunk)? {
        stage.check()?;
        found.read(&chunk, &mut text)?;
        new.add_word_lines(&text)?;
    }
    Ok(found.finish()?)
}
