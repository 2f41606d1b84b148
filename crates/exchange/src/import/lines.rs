//! Rows of text, a line each: LIBSVM, XC, and words of raw text.

use std::time::{Duration, Instant};

use outcore_core::bytes::Bytes;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, Result, Stage};
use outcore_engine::Reservation;
use outcore_formats::libsvm::{self, LabelKind as Kind};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{Batch, Chunk, Compression, Lines, Position, Source, Tally, Vocabulary, xc};
use outcore_matrix::sparse::names;

use super::checkpoint::Checkpoint;
use super::chunks::{self, ChunkStages, ParsedChunk};
use super::matrix::{Draft, LabelKind, NewMatrix, State};
use super::{Base, Context, Format, Imported, Libsvm, Shares, Text};

/// Between two checkpoints, where there is not as much text sooner.
const CHECKPOINT_TIME: Duration = Duration::from_secs(10);

pub(super) fn run(context: &Context, stage: &mut Stage) -> Result<Imported> {
    match &context.options.format {
        Format::Libsvm(options) => libsvm(context, stage, options),
        Format::Text(options) => words(context, stage, options),
        _ => extreme(context, stage),
    }
}

/// An import that can be gone on with: its matrix, and where the sources are read from.
pub(super) struct Resumable<'a> {
    context: &'a Context,
    pub(super) new: NewMatrix,
    checkpoint: Checkpoint,
    resumed_at: u64,
    last: (u64, Instant),
}

impl<'a> Resumable<'a> {
    pub(super) fn begin(context: &'a Context, draft: Draft) -> Result<Resumable<'a>> {
        let sources = context
            .foreign
            .iter()
            .map(|foreign| foreign.identity.clone())
            .collect();
        let mut checkpoint = Checkpoint::new(sources, context.options.text());
        let memory = context.memory.stream;
        let go_on = |home: &StagingFolder| {
            match if context.options.resume {
                home.saved()?
            } else {
                None
            } {
                Some(found) => {
                    checkpoint.goes_on_with(&found, home.folder.path())?;
                    checkpoint = found;
                }
                None => home.forget()?,
            }
            Ok((checkpoint.byte > 0 || checkpoint.part > 0).then(|| checkpoint.state.clone()))
        };
        let source = context.foreign[0].name();
        let new = NewMatrix::make(
            &context.session,
            &context.path,
            source,
            draft,
            memory,
            go_on,
        )?;
        let resumed_at = checkpoint.byte;
        Ok(Resumable {
            context,
            new,
            checkpoint,
            resumed_at,
            last: (0, Instant::now()),
        })
    }

    /// Whether a checkpoint is due, after `bytes` more bytes.
    pub(super) fn is_due(&mut self, bytes: usize) -> bool {
        self.last.0 += bytes as u64;
        let is_far = self.last.0 >= self.context.options.checkpoint_bytes
            || self.last.1.elapsed() >= CHECKPOINT_TIME;
        // A checkpoint that had to go is to come again at once.
        self.new.is_rewritten() || is_far
    }

    /// Makes all up to a place in a source durable, and says that it is there.
    pub(super) fn save(&mut self, part: usize, end: Position) -> Result<()> {
        self.new.settle()?;
        let state = self.new.state.clone();
        self.checkpoint = Checkpoint {
            part,
            byte: end.byte,
            line: end.line,
            state,
            ..self.checkpoint.clone()
        };
        self.new.home().save(&self.checkpoint)?;
        self.last = (0, Instant::now());
        Ok(())
    }

    /// Forgets all that was done.
    pub(super) fn begin_anew(&mut self) -> Result<()> {
        self.new.home().forget()?;
        (
            self.checkpoint.part,
            self.checkpoint.byte,
            self.checkpoint.line,
        ) = (0, 0, 1);
        self.resumed_at = 0;
        self.new.restart()
    }

    /// Where to read on.
    pub(super) fn place(&self) -> (usize, Position) {
        (
            self.checkpoint.part,
            Position {
                byte: self.checkpoint.byte,
                line: self.checkpoint.line,
            },
        )
    }

    /// The matrix, or what was found wrong. What can be gone on with stays.
    pub(super) fn end(mut self, stage: &mut Stage, done: Result<()>) -> Result<Imported> {
        let resumed_at = self.resumed_at;
        match done {
            Ok(()) => Ok(Imported {
                matrix: self.new.finish(stage)?,
                resumed_at,
            }),
            Err(error) => {
                let hopeless = matches!(
                    error,
                    Error::Line { .. }
                        | Error::Format(_)
                        | Error::Shape { .. }
                        | Error::Value { .. }
                );
                if hopeless || !self.new.home().is_saved() {
                    self.new.discard();
                }
                Err(error)
            }
        }
    }
}

/// Chunks of all sources in order, from a place on.
pub(super) struct Feed<'a> {
    context: &'a Context,
    part: usize,
    lines: Option<Lines<Bytes>>,
    /// Every source is one chunk.
    whole: bool,
    /// Stored bytes of the sources before, and of this one where it was not read from its start.
    before: u64,
    /// Stored bytes of the sources up to the end of this one.
    end: u64,
}

impl<'a> Feed<'a> {
    pub(super) fn new(context: &'a Context, part: usize, from: Position) -> Result<Feed<'a>> {
        let bytes = |part: usize| {
            context.foreign[..part.min(context.foreign.len())]
                .iter()
                .map(|foreign| foreign.bytes())
                .sum::<u64>()
        };
        // An earlier import may have done them all.
        let lines = if part < context.foreign.len() {
            Some(open(context, part, from)?)
        } else {
            None
        };
        let passed = lines
            .as_ref()
            .is_some_and(|lines| lines.source().compression() == Compression::Plain);
        let before = bytes(part) + if passed { from.byte } else { 0 };
        Ok(Feed {
            context,
            part,
            lines,
            whole: false,
            before,
            end: bytes(part + 1),
        })
    }

    /// Has every source as one chunk, also an empty one.
    fn of_whole_files(self) -> Feed<'a> {
        Feed {
            whole: true,
            ..self
        }
    }

    /// The lines that come first, whose header is still to be taken off.
    pub(super) fn lines(&mut self) -> &mut Lines<Bytes> {
        self.lines.as_mut().expect("opened")
    }

    /// Whether what follows can be what a header says, where it is not compressed.
    pub(super) fn check_room(&mut self, tally: &Tally, least: usize) -> Result<()> {
        let all = self.context.foreign[self.part].bytes();
        let lines = self.lines();
        match lines.source().compression() {
            Compression::Plain => {
                Ok(tally.check_room(all.saturating_sub(lines.position().byte), least)?)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn next<P>(&mut self, slot: &mut ParsedChunk<P>) -> Result<bool> {
        loop {
            let Some(lines) = &mut self.lines else {
                if self.part + 1 >= self.context.foreign.len() {
                    return Ok(false);
                }
                self.part += 1;
                self.before = self.end;
                self.end += self.context.foreign[self.part].bytes();
                self.lines = Some(open(self.context, self.part, Position::START)?);
                continue;
            };
            if self.whole {
                if lines.whole(&mut slot.chunk)? {
                    (slot.part, slot.end, slot.stored) = (self.part + 1, Position::START, self.end);
                    return Ok(true);
                }
            } else if lines.next(&mut slot.chunk)? {
                slot.part = self.part;
                slot.end = lines.position();
                slot.stored = self.before + lines.source().stored_bytes();
                return Ok(true);
            }
            self.lines = None;
        }
    }
}

fn open(context: &Context, part: usize, from: Position) -> Result<Lines<Bytes>> {
    let Context {
        session,
        memory,
        stop,
        ..
    } = context;
    let source: Source<Bytes> =
        context.foreign[part].text(session, memory.stream, stop, from.byte)?;
    Ok(Lines::new(
        source,
        from,
        memory.lanes.chunk_bytes,
        memory.longest_line,
    ))
}

fn libsvm(context: &Context, stage: &mut Stage, options: &Libsvm) -> Result<Imported> {
    let Libsvm {
        many_labels,
        base,
        features,
    } = *options;
    let (labels, kind) = if many_labels {
        (LabelKind::Many, Kind::Many)
    } else {
        (LabelKind::One, Kind::One)
    };
    let finds_base = base == Base::Found;
    let draft = Draft {
        labels,
        finds_base,
        width: features,
        queries: true,
        ..context.draft()
    };
    let base = if base == Base::One {
        libsvm::Base::One
    } else {
        libsvm::Base::Zero
    };
    let precision = context.options.precision();
    let reading = libsvm::Options {
        base,
        labels: kind,
        columns: features,
        finds_base,
        precision,
    };
    let mut import = Resumable::begin(context, draft)?;
    let (part, from) = import.place();
    let done = Feed::new(context, part, from).and_then(|mut feed| {
        let total = context.source_bytes().max(1) as f64;
        let work = ChunkStages {
            read: |slot: &mut ParsedChunk<Batch>| feed.next(slot),
            need: libsvm::bytes_to_parse,
            parse: |chunk: &Chunk, batch: &mut Batch| libsvm::parse_as(chunk, &reading, batch),
        };
        chunks::run(
            &context.session,
            stage,
            context.memory.lanes,
            &context.stop,
            work,
            |stage, slot| {
                check_queries(&slot.chunk, &slot.found, &import.new.state)?;
                if let (true, Some(columns)) = (finds_base, features) {
                    check_columns(&slot.chunk, &slot.found, &import.new.state, columns)?;
                }
                import.new.push(stage, &slot.found)?;
                stage.reach(0.99 * slot.stored as f64 / total);
                if import.is_due(slot.chunk.bytes.len()) {
                    import.save(slot.part, slot.end)
                } else {
                    Ok(())
                }
            },
        )
    });
    import.end(stage, done)
}

/// All rows have queries, or none: each chunk does by itself.
fn check_queries(chunk: &Chunk, batch: &Batch, state: &State) -> Result<()> {
    let reason = match (batch.queries.is_empty(), state.queries > 0) {
        _ if batch.rows() == 0 || state.lines == 0 => return Ok(()),
        (true, true) => "this row has no qid, the rows before it have",
        (false, false) => "this row has a qid, the rows before it have none",
        _ => return Ok(()),
    };
    Err(bad_row(chunk, 0, reason.into()))
}

/// Whether features are below the number asked for, once one of them is 0. The parser lets a
/// feature of that number through, which is the last one where features begin with 1.
fn check_columns(chunk: &Chunk, batch: &Batch, state: &State, columns: u64) -> Result<()> {
    let Some((least, most)) = batch.index_range() else {
        return Ok(());
    };
    let row_of = |is_it: &dyn Fn(u64) -> bool| {
        (0..batch.rows()).find(|&row| batch.row(row).0.iter().any(|&index| is_it(index)))
    };
    if (state.zero_based || least == 0) && most >= columns {
        let row = row_of(&|index| index >= columns).unwrap_or(0);
        return Err(bad_row(
            chunk,
            row,
            format!("feature {most} in data with {columns} features, which begin with 0"),
        ));
    }
    // Columns are those of features from 1 so far.
    if !state.zero_based && least == 0 && state.width >= columns {
        let before = state.width;
        let reason = format!(
            "feature 0, so that feature {before} of a row before is too large in data with {columns} features"
        );
        return Err(bad_row(
            chunk,
            row_of(&|index| index == 0).unwrap_or(0),
            reason,
        ));
    }
    Ok(())
}

fn bad_row(chunk: &Chunk, row: usize, reason: String) -> Error {
    Error::Line {
        object: chunk.object.to_string(),
        line: libsvm::line_of(chunk, row),
        column: 1,
        reason,
    }
}

fn extreme(context: &Context, stage: &mut Stage) -> Result<Imported> {
    let mut feed = Feed::new(context, 0, Position::START)?;
    let header = xc::Header::read(feed.lines())?;
    let mut tally: Tally = header.tally(context.foreign[0].name());
    feed.check_room(&tally, "\n".len())?;
    let (width, label_count, lines) =
        (Some(header.columns), Some(header.labels), Some(header.rows));
    let mut import = Resumable::begin(
        context,
        Draft {
            labels: LabelKind::Many,
            width,
            label_count,
            lines,
            ..context.draft()
        },
    )?;
    tally.add(import.new.state.lines)?;
    let (part, from) = import.place();
    let feed = if from == Position::START {
        Ok(feed)
    } else {
        Feed::new(context, part, from)
    };
    let done = feed.and_then(|mut feed| {
        let total = context.source_bytes().max(1) as f64;
        let work = ChunkStages {
            read: |slot: &mut ParsedChunk<Batch>| feed.next(slot),
            need: libsvm::bytes_to_parse,
            parse: |chunk: &Chunk, batch: &mut Batch| {
                xc::parse(chunk, &header, context.options.precision(), batch)
            },
        };
        chunks::run(
            &context.session,
            stage,
            context.memory.lanes,
            &context.stop,
            work,
            |stage, slot| {
                tally.add(slot.found.rows() as u64)?;
                import.new.push(stage, &slot.found)?;
                stage.reach(0.99 * slot.stored as f64 / total);
                if import.is_due(slot.chunk.bytes.len()) {
                    import.save(slot.part, slot.end)
                } else {
                    Ok(())
                }
            },
        )?;
        Ok(tally.finish()?)
    });
    import.end(stage, done)
}

/// The words so far, and the memory that they take.
struct Growth<'a> {
    context: &'a Context,
    what: &'static str,
    vocabulary: Vocabulary,
    numbers: Vec<u64>,
    held: Vec<Reservation>,
    bytes: u64,
}

impl<'a> Growth<'a> {
    fn new(context: &'a Context, what: &'static str) -> Growth<'a> {
        Growth {
            context,
            what,
            vocabulary: Vocabulary::default(),
            numbers: Vec::new(),
            held: Vec::new(),
            bytes: 0,
        }
    }

    /// What an earlier import has written of it.
    fn read_back(&mut self, new: &NewMatrix, name: &str, words: u64) -> Result<()> {
        let (file, len) = new.text_of(name);
        if len == 0 {
            return Ok(());
        }
        // Text, 18 bytes a word besides, and twice as much while the list grows.
        self.hold(5 * len / 2 + 40 * words)?;
        let Context {
            session,
            memory,
            stop,
            ..
        } = self.context;
        let bytes = Bytes::of(session, file.extent(), 0..len, memory.stream, stop)?;
        let source = Source::open(file.extent().name(), bytes)?;
        let mut lines = Lines::new(
            source,
            Position::START,
            memory.lanes.chunk_bytes,
            memory.longest_line,
        );
        self.vocabulary = Vocabulary::read(&mut lines)?;
        drop(lines);
        self.held.clear();
        self.bytes = 0;
        self.hold(self.vocabulary.bytes() as u64)
    }

    fn hold(&mut self, needed: u64) -> Result<()> {
        if needed <= self.bytes {
            return Ok(());
        }
        let budget = self.context.session.engine().budget();
        let more = (needed - self.bytes).max(1 << 16);
        match budget.reserve(self.what, more) {
            Ok(reservation) => {
                self.held.push(reservation);
                self.bytes += more;
                Ok(())
            }
            Err(_) => {
                let (available, budget) = (budget.available(), budget.total());
                // With more memory two thirds of it are for chunks and streams, until those are as
                // large as they become.
                let needed = (7 * needed / 2 + (2 << 20))
                    .min(needed + Shares::most_bytes(&self.context.session));
                let what = format!("an import with {} so far", self.what);
                Err(Error::OverBudget {
                    what,
                    needed: needed.max(budget + 1),
                    available,
                    budget,
                })
            }
        }
    }

    fn merge(&mut self, words: &Vocabulary) -> Result<()> {
        self.hold(
            (self.vocabulary.bytes_to_merge(words)
                + 8 * self.numbers.capacity().max(words.len() as usize)) as u64,
        )?;
        Ok(self.vocabulary.merge(words, &mut self.numbers)?)
    }
}

fn words(context: &Context, stage: &mut Stage, options: &Text) -> Result<Imported> {
    let Text {
        documents,
        minimum_length,
        stop_words,
        ngrams,
        text_column,
        label_column,
        vocabulary,
    } = options.clone();
    let whole = documents == super::Documents::Files;
    let tokenizer = Tokenizer {
        minimum_length,
        stop_words: stop_words.iter().map(String::as_str).collect(),
        ngrams: ngrams.clone(),
        text_column,
        label_column,
        whole,
    };
    let labels = if label_column.is_some() {
        LabelKind::One
    } else {
        LabelKind::None
    };
    let given = vocabulary.is_some();
    let width = vocabulary.as_ref().map(|words| words.len() as u64);
    let draft = Draft {
        labels,
        words: true,
        classes: label_column.is_some(),
        width,
        ..context.draft()
    };
    let mut import = Resumable::begin(context, draft)?;
    let (mut words, mut classes) = (
        Growth::new(context, "the vocabulary"),
        Growth::new(context, "the names of classes"),
    );
    let mut batch = Batch::default();
    let (part, from) = import.place();
    let prepared = (|| {
        match &vocabulary {
            Some(list) => {
                words.hold(list.iter().map(|word| 64 + 2 * word.len() as u64).sum())?;
                words.vocabulary = list.iter().map(String::as_str).collect();
                if words.vocabulary.len() < list.len() as u64 {
                    return Err(Error::value("a word is in the vocabulary twice"));
                }
            }
            None => words.read_back(&import.new, names::WORDS, import.new.state.words)?,
        }
        if label_column.is_some() {
            classes.read_back(&import.new, names::CLASSES, import.new.state.classes)?;
        }
        let feed = Feed::new(context, part, from)?;
        Ok(if whole { feed.of_whole_files() } else { feed })
    })();
    let done = prepared.and_then(|mut feed| {
        let total = context.source_bytes().max(1) as f64;
        let times = *ngrams.end() - *ngrams.start() + 1;
        let work = ChunkStages {
            read: |slot: &mut ParsedChunk<Documents>| feed.next(slot),
            need: |chunk: &Chunk| (4 + 4 * times.min(8)) * chunk.bytes.len(),
            parse: |chunk: &Chunk, documents: &mut Documents| tokenizer.parse(chunk, documents),
        };
        chunks::run(
            &context.session,
            stage,
            context.memory.lanes,
            &context.stop,
            work,
            |stage, slot| {
                let documents = &slot.found;
                match given {
                    true => words
                        .vocabulary
                        .look_up(documents.words(), &mut words.numbers),
                    false => words.merge(documents.words())?,
                }
                classes.merge(documents.labels())?;
                documents.rows(&words.numbers, &classes.numbers, &mut batch);
                import.new.push(stage, &batch)?;
                stage.reach(0.99 * slot.stored as f64 / total);
                if !import.is_due(slot.chunk.bytes.len()) {
                    return Ok(());
                }
                import.new.add_words(&words.vocabulary)?;
                import.new.add_classes(&classes.vocabulary)?;
                import.save(slot.part, slot.end)
            },
        )?;
        import.new.add_words(&words.vocabulary)?;
        import.new.add_classes(&classes.vocabulary)
    });
    // Columns are the words, also those that no document has.
    import.new.state.width = import.new.state.width.max(words.vocabulary.len());
    import.end(stage, done)
}
