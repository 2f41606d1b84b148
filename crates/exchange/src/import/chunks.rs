//! Chunks of text on their way: one thread reads (and decompresses), some parse, and the job's own
//! thread takes what they found, in the order of the text.
//!
//! ```text
//!   free slots -> reader: lines -> parsers: rows -> in order -> taken by the job -> free slots
//! ```
//!
//! The number of slots is fixed, and each has its share of memory from the beginning. A chunk that
//! needs more, because a line is long or entries are short, reserves the rest before it is parsed.
//! The reader alone fills slots, in order, so a chunk that waits for a slot waits only for chunks
//! before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use outcore_core::{Error, Result, Session, Stage};
use outcore_engine::{Budget, Reservation};
use outcore_formats::{Batch, Chunk, Position, Triplets, text};

const LOOK: Duration = Duration::from_millis(20);

/// A chunk's share of memory against its text: entries of eight bytes of text take four times as
/// much while they are sorted.
pub(super) const SHARE: u64 = 12;

/// What a chunk becomes.
pub(super) trait Parsed: Default + Send {
    /// Bytes of memory that it holds, used or not.
    fn bytes(&self) -> usize;
}

impl Parsed for Batch {
    fn bytes(&self) -> usize {
        Batch::bytes(self)
    }
}

impl Parsed for Triplets {
    fn bytes(&self) -> usize {
        Triplets::bytes(self)
    }
}

impl Parsed for text::Documents {
    fn bytes(&self) -> usize {
        text::Documents::bytes(self)
    }
}

/// A chunk with what was found in it.
#[derive(Default)]
pub(super) struct ParsedChunk<P> {
    pub(super) chunk: Chunk,
    pub(super) found: P,
    /// Which of the sources it is of, where in it the next chunk begins, and how many bytes of all
    /// sources were used until then.
    pub(super) part: usize,
    pub(super) end: Position,
    pub(super) stored: u64,
    beyond: Option<Reservation>,
}

/// How much goes on at once.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub(super) parsers: usize,
    pub(super) slots: usize,
    pub(super) chunk_bytes: usize,
}

impl Lanes {
    /// For `threads` threads and `bytes` bytes of memory.
    pub(super) fn new(threads: usize, bytes: u64) -> Lanes {
        const LEAST: u64 = 16 << 10;
        const MOST: u64 = 1 << 20;
        let each = |slots: u64| bytes / ((slots + 2) * (1 + SHARE));
        let wanted = threads.clamp(1, 32) as u64 + 2;
        // Fewer lanes with larger chunks, where memory is small.
        let slots = (3..=wanted)
            .rev()
            .find(|&slots| each(slots) >= 4 * LEAST)
            .unwrap_or(3.min(wanted));
        Lanes {
            parsers: (slots - 2) as usize,
            slots: slots as usize,
            chunk_bytes: each(slots).clamp(LEAST, MOST) as usize,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        // One more for the lines read ahead, and one for what the job makes of a chunk.
        (self.slots as u64 + 2) * self.share()
    }

    fn share(&self) -> u64 {
        self.chunk_bytes as u64 * (1 + SHARE)
    }
}

enum Message<P> {
    Parsed(ParsedChunk<P>),
    Failed(Error),
    End,
}

/// The sides of the work, besides the job's own.
pub(super) struct ChunkStages<R, N, F> {
    /// Fills the next chunk; false at the end.
    pub(super) read: R,
    /// Bytes of memory that the chunk takes while it is parsed.
    pub(super) need: N,
    pub(super) parse: F,
}

/// Has everything read and parsed, and hands it to `take`, in order.
///
/// # Errors
/// The first in the order of the text; [`Error::Cancelled`]; [`Error::OverBudget`] for a chunk that
/// memory is too small for.
pub(super) fn run<P, R, N, F>(
    session: &Session,
    stage: &mut Stage,
    lanes: Lanes,
    stop: &Arc<AtomicBool>,
    work: ChunkStages<R, N, F>,
    mut take: impl FnMut(&mut Stage, &mut ParsedChunk<P>) -> Result<()>,
) -> Result<()>
where
    P: Parsed,
    R: FnMut(&mut ParsedChunk<P>) -> Result<bool> + Send,
    N: Fn(&Chunk) -> usize + Sync,
    F: Fn(&Chunk, &mut P) -> outcore_formats::Result<()> + Sync,
{
    let _shares = stage.reserve("the chunks of an import", lanes.bytes())?;
    let ChunkStages {
        mut read,
        need,
        parse,
    } = work;
    let (free, idle) = bounded::<ParsedChunk<P>>(lanes.slots);
    let (submit, submitted) = bounded::<(u64, ParsedChunk<P>)>(lanes.slots);
    let (finish, finished) = bounded::<(u64, Message<P>)>(lanes.slots + 1);
    (0..lanes.slots).for_each(|_| _ = free.send(ParsedChunk::default()));
    let budget = session.engine().budget();
    std::thread::scope(|scope| {
        let result = (|| {
            for parser in 0..lanes.parsers {
                let (submitted, finish, parse, need) =
                    (submitted.clone(), finish.clone(), &parse, &need);
                let parsing = move || parse_all(&submitted, &finish, lanes, budget, need, parse);
                match spawn(scope, "outcore-parse", "a thread that parses", parsing) {
                    // Those that there are do it.
                    Err(_) if parser > 0 => break,
                    spawned => spawned?,
                }
            }
            drop(submitted);
            let ended = finish.clone();
            spawn(scope, "outcore-read", "a thread that reads", move || {
                read_all(&idle, &submit, &ended, &mut read)
            })?;
            drop(finish);
            take_all(stage, &finished, &free, lanes, &mut take)
        })();
        stop.store(true, Ordering::Relaxed);
        // Threads that still send or receive find their channels closed, and end.
        drop((free, finished));
        result
    })
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    what: &str,
    work: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    let thread = std::thread::Builder::new()
        .name(name.into())
        .spawn_scoped(scope, work);
    thread.map(drop).map_err(|source| {
        outcore_engine::Error::NoThread {
            what: what.into(),
            source,
        }
        .into()
    })
}

fn read_all<P: Parsed>(
    idle: &Receiver<ParsedChunk<P>>,
    submit: &Sender<(u64, ParsedChunk<P>)>,
    ended: &Sender<(u64, Message<P>)>,
    read: &mut (impl FnMut(&mut ParsedChunk<P>) -> Result<bool> + ?Sized),
) {
    for number in 0.. {
        let Ok(mut slot) = idle.recv() else { return };
        let last = match read(&mut slot) {
            Ok(true) if submit.send((number, slot)).is_ok() => continue,
            Ok(_) => Message::End,
            Err(error) => Message::Failed(error),
        };
        _ = ended.send((number, last));
        return;
    }
}

fn parse_all<P: Parsed>(
    submitted: &Receiver<(u64, ParsedChunk<P>)>,
    finish: &Sender<(u64, Message<P>)>,
    lanes: Lanes,
    budget: &Budget,
    need: &(impl Fn(&Chunk) -> usize + ?Sized),
    parse: &(impl Fn(&Chunk, &mut P) -> outcore_formats::Result<()> + ?Sized),
) {
    for (number, mut slot) in submitted {
        let done = reserve_beyond(budget, &mut slot, lanes.share(), need).and_then(|()| {
            parse(&slot.chunk, &mut slot.found)?;
            // Words and their n-grams are counted when they are there.
            let held = (slot.chunk.bytes.capacity() + slot.found.bytes()) as u64;
            hold(budget, &mut slot, held, lanes.share())
        });
        let message = match done {
            Ok(()) => Message::Parsed(slot),
            Err(error) => Message::Failed(error),
        };
        if finish.send((number, message)).is_err() {
            return;
        }
    }
}

fn reserve_beyond<P: Parsed>(
    budget: &Budget,
    slot: &mut ParsedChunk<P>,
    share: u64,
    need: impl Fn(&Chunk) -> usize,
) -> Result<()> {
    let text = slot.chunk.bytes.capacity() as u64;
    let wanted = text + need(&slot.chunk).max(slot.found.bytes()) as u64;
    hold(budget, slot, wanted, share)
}

fn hold<P>(budget: &Budget, slot: &mut ParsedChunk<P>, wanted: u64, share: u64) -> Result<()> {
    let held = share + slot.beyond.as_ref().map_or(0, Reservation::bytes);
    if wanted > held {
        slot.beyond = None;
        let what = format!(
            "a long line of {} (from line {} on)",
            slot.chunk.object, slot.chunk.position.line
        );
        slot.beyond = Some(budget.reserve(&what, wanted - share)?);
    }
    Ok(())
}

fn take_all<P: Parsed>(
    stage: &mut Stage,
    finished: &Receiver<(u64, Message<P>)>,
    free: &Sender<ParsedChunk<P>>,
    lanes: Lanes,
    take: &mut impl FnMut(&mut Stage, &mut ParsedChunk<P>) -> Result<()>,
) -> Result<()> {
    let (mut early, mut next) = (BTreeMap::new(), 0);
    loop {
        stage.check()?;
        match finished.recv_timeout(LOOK) {
            Ok((number, message)) => _ = early.insert(number, message),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Failed {
                    what: "a thread of the import ended too early".into(),
                });
            }
        }
        while let Some(message) = early.remove(&next) {
            next += 1;
            let mut slot = match message {
                Message::Parsed(slot) => slot,
                Message::Failed(error) => return Err(error),
                Message::End => return Ok(()),
            };
            take(stage, &mut slot)?;
            slot.beyond = None;
            if (slot.chunk.bytes.capacity() + slot.found.bytes()) as u64 > lanes.share() {
                (slot.chunk, slot.found) = Default::default();
            }
            _ = free.send(slot);
        }
    }
}
