//! Entries in any order, put in order of rows and columns: an external merge sort.
//!
//! Entries fill a share of memory, are sorted, and go to scratch as a run; in the end all runs are
//! merged. Where there are more runs than memory has buffers for, neighbours are merged first.
//! Entries of one place keep the order that they came in, so what they add up to does not depend on
//! memory. Source: Knuth, The Art of Computer Programming 3, section 5.4.
//!
//! ```text
//!   a run in scratch:   row u64, column u64, value f64 | row ...        24 bytes an entry
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use outcore_core::{Result, Session, Stage, StoredFile};
use outcore_engine::{Lent, ReadStream, Reservation, StreamOptions};
use outcore_formats::Triplets;

/// An entry of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) row: u64,
    pub(super) column: u64,
    pub(super) value: f64,
}

const ENTRY_BYTES: u64 = 24;
/// Whole sectors and whole entries.
const UNIT_BYTES: u64 = 3 << 12;

struct Run {
    file: Arc<StoredFile>,
    entries: u64,
}

pub(super) struct Sorter {
    session: Session,
    entries: Vec<Entry>,
    most: usize,
    share: u64,
    held: Option<Reservation>,
    runs: Vec<Run>,
}

impl Sorter {
    /// In at most `share` bytes of memory.
    pub(super) fn new(session: &Session, stage: &Stage, share: u64) -> Result<Sorter> {
        let held = Some(stage.reserve("entries to be sorted", share)?);
        // Sorting takes as much memory again.
        let most = (share / (2 * ENTRY_BYTES)).max(1) as usize;
        Ok(Sorter {
            session: session.clone(),
            entries: Vec::new(),
            most,
            share,
            held,
            runs: Vec::new(),
        })
    }

    pub(super) fn push(&mut self, stage: &Stage, triplets: &Triplets) -> Result<()> {
        self.entries.reserve_exact(if self.entries.capacity() == 0 {
            self.most.min(1 << 16)
        } else {
            0
        });
        for ((&row, &column), &value) in triplets
            .rows
            .iter()
            .zip(&triplets.columns)
            .zip(&triplets.values)
        {
            if self.entries.len() == self.entries.capacity() {
                let more = self.entries.len().min(self.most - self.entries.len());
                match more {
                    0 => self.spill(stage)?,
                    _ => self.entries.reserve_exact(more),
                }
            }
            self.entries.push(Entry { row, column, value });
        }
        Ok(())
    }

    /// Sorts what is in memory, each thread a part of it.
    fn sort(&mut self) -> Vec<Cursor<'_>> {
        let part = self
            .entries
            .len()
            .div_ceil(self.session.threads())
            .max(1 << 12);
        let parts: Vec<Mutex<&mut [Entry]>> =
            self.entries.chunks_mut(part).map(Mutex::new).collect();
        let next = AtomicUsize::new(0);
        let sort = || {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                part.lock()
                    .expect("each is sorted once")
                    .sort_by_key(|entry| (entry.row, entry.column));
            }
        };
        std::thread::scope(|scope| {
            // Threads that the system refuses leave their parts to this one.
            (1..parts.len())
                .for_each(|_| _ = std::thread::Builder::new().spawn_scoped(scope, sort));
            sort();
        });
        self.entries.chunks(part).map(Cursor::Memory).collect()
    }

    fn spill(&mut self, stage: &Stage) -> Result<()> {
        let (session, entries) = (self.session.clone(), self.entries.len() as u64);
        let run = write_run(&session, stage, self.sort(), entries)?;
        self.runs.push(run);
        self.entries.clear();
        Ok(())
    }

    /// Entries so far.
    pub(super) fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.entries).sum::<u64>() + self.entries.len() as u64
    }

    /// Gives all entries in order.
    ///
    /// # Errors
    /// Those of scratch, and of `give`.
    pub(super) fn finish(
        mut self,
        stage: &Stage,
        give: impl FnMut(Entry) -> Result<()>,
    ) -> Result<()> {
        if self.runs.is_empty() {
            let sorted = self.sort();
            return merge(sorted, give);
        }
        if !self.entries.is_empty() {
            self.spill(stage)?;
        }
        self.entries = Vec::new();
        self.held = None;
        let most = (self.share / (4 * UNIT_BYTES)).max(2) as usize;
        while self.runs.len() > most {
            let mut merged = Vec::new();
            for runs in self.runs.chunks(most) {
                let entries = runs.iter().map(|run| run.entries).sum();
                merged.push(write_run(&self.session, stage, self.read(runs)?, entries)?);
            }
            self.runs = merged;
        }
        merge(self.read(&self.runs)?, give)
    }

    fn read(&self, runs: &[Run]) -> Result<Vec<Cursor<'static>>> {
        let bytes = (self.share / (2 * runs.len() as u64)).min(64 * UNIT_BYTES) / UNIT_BYTES;
        let options = StreamOptions {
            block_bytes: (bytes.max(1) * UNIT_BYTES) as usize,
            ahead: 2,
        };
        let open = |run: &Run| {
            let stream = self.session.engine().read_stream(
                run.file.extent(),
                0..run.entries * ENTRY_BYTES,
                options,
            )?;
            Ok(Cursor::Stored {
                stream,
                block: None,
                at: 0,
            })
        };
        runs.iter().map(open).collect()
    }
}

fn write_run(
    session: &Session,
    stage: &Stage,
    sources: Vec<Cursor<'_>>,
    entries: u64,
) -> Result<Run> {
    const SOME: usize = 1 << 9;
    let file = session.scratch_file(None, entries * ENTRY_BYTES)?;
    let options = StreamOptions {
        block_bytes: 64 << 10,
        ahead: 3,
    };
    let mut stream = session.engine().write_stream(file.extent(), 0, options)?;
    let mut some = Vec::with_capacity(SOME);
    merge(sources, |entry| {
        some.push(entry);
        if some.len() == SOME {
            stage.check()?;
            stream.write(bytemuck::cast_slice(&some))?;
            some.clear();
        }
        Ok(())
    })?;
    stream.write(bytemuck::cast_slice(&some))?;
    stream.finish()?;
    Ok(Run { file, entries })
}

/// Where sorted entries come from.
enum Cursor<'a> {
    Memory(&'a [Entry]),
    Stored {
        stream: ReadStream,
        block: Option<Lent>,
        at: usize,
    },
}

impl Cursor<'_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        match self {
            Cursor::Memory(rest) => Ok(rest.split_off_first().copied()),
            Cursor::Stored { stream, block, at } => loop {
                if let Some(bytes) = block
                    .as_deref()
                    .and_then(|bytes| bytes.get(*at..*at + ENTRY_BYTES as usize))
                {
                    *at += bytes.len();
                    return Ok(Some(bytemuck::pod_read_unaligned(bytes)));
                }
                *block = None;
                match stream.next() {
                    Some(next) => (*block, *at) = (Some(next?), 0),
                    None => return Ok(None),
                }
            },
        }
    }
}

/// Merges sorted sources; of entries of one place, those of earlier sources come first.
fn merge(mut sources: Vec<Cursor<'_>>, mut give: impl FnMut(Entry) -> Result<()>) -> Result<()> {
    let mut heads = Vec::with_capacity(sources.len());
    let mut heap = BinaryHeap::with_capacity(sources.len());
    for (number, source) in sources.iter_mut().enumerate() {
        let head = source.next()?;
        heap.extend(head.map(|entry| Reverse((entry.row, entry.column, number))));
        heads.push(head.map_or(0.0, |entry| entry.value));
    }
    while let Some(mut top) = heap.peek_mut() {
        let Reverse((row, column, number)) = *top;
        let value = heads[number];
        match sources[number].next()? {
            Some(next) => {
                *top = Reverse((next.row, next.column, number));
                heads[number] = next.value;
                drop(top);
            }
            None => _ = std::collections::binary_heap::PeekMut::pop(top),
        }
        give(Entry { row, column, value })?;
    }
    Ok(())
}
