//! Many short rows in no order, to another matrix by way of scratch.
//!
//! A first pass puts the entries of each row into a part of scratch, with those that are near them in
//! the result; a second one puts each part, which fits in memory, in order:
//!
//! ```text
//!   matrix    panel 0     panel 1     panel 2           read in order
//!               |  \        |  \        |  \
//!   scratch   part 0: chunks of panels 0, 1, 2 | part 1: chunks of panels 0, 1, 2
//!               |                                |
//!   result    rows 0..r                        rows r..s             written in order
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::file::FILE_BLOCK_BYTES;
use outcore_core::{MemorySplit, Result, Session};
use outcore_engine::{ExtentRef, Plan, Region, Task};

use super::take::{REQUEST_COST_BYTES, Ranges};

/// Bytes of a panel, and of a part, at most: the longer they are, the longer are the chunks of both.
const PART_BYTES_MAX: u64 = 256 << 20;

/// Rows that are read together.
struct Panel {
    /// Places in the order of the matrix.
    rows: Range<usize>,
    /// Entries of the matrix from the first to the last.
    span: Range<u64>,
}

/// What goes where: rows by the panel that they come from and the part that they go to.
pub(super) struct Spread {
    ranges: Arc<Ranges>,
    panels: Vec<Panel>,
    /// Rows of the result.
    parts: Vec<Range<usize>>,
    /// Rows of the result, chunk by chunk.
    rows: Vec<u32>,
    /// By panel and part, the first row of a chunk; one more at the end.
    chunks: Vec<usize>,
}

impl Spread {
    /// Of entries of at most `size` bytes. None where there is no way, or no need: a row that is too
    /// long, too many chunks for the memory, or one part.
    pub(super) fn of(ranges: &Arc<Ranges>, size: u64, memory: MemorySplit) -> Option<Spread> {
        let share = memory.padded_panel_bytes().min(PART_BYTES_MAX);
        let longest = share / size;
        if u32::try_from(ranges.count()).is_err()
            || (0..ranges.count()).any(|row| ranges.len(row) > longest)
        {
            return None;
        }
        let parts = ranges.parts(longest);
        let (order, panels) = ranges.panels(longest);
        let chunks = (panels.len() * parts.len()) as u64;
        let padding = panels.len().max(parts.len()) as u64 * FILE_BLOCK_BYTES;
        if parts.len() < 2 || padding > share / 2 || 16 * chunks > memory.places_bytes() {
            return None;
        }
        let mut spread = Spread {
            ranges: Arc::clone(ranges),
            panels,
            parts,
            rows: vec![0; order.len()],
            chunks: Vec::with_capacity(chunks as usize + 1),
        };
        let ends: Vec<usize> = spread.parts.iter().map(|rows| rows.end).collect();
        let part_of = |row: u32| ends.partition_point(|&end| end <= row as usize);
        for panel in &spread.panels {
            let (mut next, order) = (vec![0; ends.len() + 1], &order[panel.rows.clone()]);
            order.iter().for_each(|&row| next[part_of(row) + 1] += 1);
            next[0] = panel.rows.start;
            for part in 0..ends.len() {
                next[part + 1] += next[part];
            }
            spread.chunks.extend(&next[..ends.len()]);
            for &row in order {
                let at = &mut next[part_of(row)];
                spread.rows[*at] = row;
                *at += 1;
            }
        }
        spread.chunks.push(order.len());
        Some(spread)
    }

    /// Bytes that are held until the second pass is over.
    pub(super) fn held_bytes(&self) -> u64 {
        (4 * self.rows.len() + 24 * self.chunks.len()) as u64
    }

    /// What it costs to move entries of `size` bytes, in bytes that are transferred.
    pub(super) fn cost(&self, size: u64) -> u64 {
        let spans: u64 = self
            .panels
            .iter()
            .map(|panel| panel.span.end - panel.span.start)
            .sum();
        let chunks = self.chunks.len() as u64;
        let requests = chunks + (self.panels.len() + self.parts.len()) as u64;
        (spans + 2 * self.ranges.entries()) * size
            + chunks * FILE_BLOCK_BYTES
            + requests * REQUEST_COST_BYTES
    }

    fn rows_of(&self, chunk: usize) -> &[u32] {
        &self.rows[self.chunks[chunk]..self.chunks[chunk + 1]]
    }

    /// Bytes of a chunk in scratch: whole blocks of the file system, so that none is shared.
    fn chunk_bytes(&self, chunk: usize, size: u64) -> u64 {
        let entries: u64 = self
            .rows_of(chunk)
            .iter()
            .map(|&row| self.ranges.len(row as usize))
            .sum();
        (entries * size).next_multiple_of(FILE_BLOCK_BYTES)
    }

    /// Where chunks begin in scratch, and where parts end there.
    fn places(&self, size: u64) -> (Vec<u64>, Vec<u64>) {
        let (panels, parts) = (self.panels.len(), self.parts.len());
        let (mut starts, mut ends, mut end) = (vec![0; panels * parts], Vec::new(), 0);
        for part in 0..parts {
            for chunk in (part..panels * parts).step_by(parts) {
                starts[chunk] = end;
                end += self.chunk_bytes(chunk, size);
            }
            ends.push(end);
        }
        (starts, ends)
    }

    /// Adds both passes over an array of entries: where these are, and where they go.
    pub(super) fn add_to(
        self: &Arc<Spread>,
        session: &Session,
        [first, second]: [&mut Plan; 2],
        from: (ExtentRef, u64),
        into: (ExtentRef, u64),
        size: u64,
    ) -> Result<()> {
        let (starts, ends) = self.places(size);
        let scratch = session.scratch_file(None, ends[ends.len() - 1])?;
        let (put, get) = (
            first.extent(scratch.extent()),
            second.extent(scratch.extent()),
        );
        for panel in 0..self.panels.len() {
            first.task(self.spread(panel, from, (put, &starts), size));
        }
        let starts = Arc::new(starts);
        for (part, &end) in ends.iter().enumerate() {
            let held = starts[part]..end;
            second.task(self.order(part, (get, held, &starts), into, size));
        }
        Ok(())
    }

    fn spread(
        self: &Arc<Spread>,
        panel: usize,
        (from, offset): (ExtentRef, u64),
        (put, starts): (ExtentRef, &[u64]),
        size: u64,
    ) -> Task {
        let (count, span) = (self.parts.len(), self.panels[panel].span.clone());
        let wanted: Vec<usize> = (panel * count..(panel + 1) * count)
            .filter(|&chunk| !self.rows_of(chunk).is_empty())
            .collect();
        let task = Task::new("spread").read(region(from, offset, &span, size));
        let task = wanted.iter().fold(task, |task, &chunk| {
            task.write(Region::span(
                put,
                starts[chunk],
                self.chunk_bytes(chunk, size),
            ))
        });
        let spread = Arc::clone(self);
        task.run(move |cx| {
            let [read, written @ ..] = cx.blocks else {
                unreachable!("the panel was declared first")
            };
            for (&chunk, into) in wanted.iter().zip(written) {
                if cx.cancelled.load(Ordering::Relaxed) {
                    break;
                }
                let mut rest = into.bytes_mut();
                for &row in spread.rows_of(chunk) {
                    let first = spread.ranges.first(row as usize) - span.start;
                    let (head, tail) =
                        rest.split_at_mut((spread.ranges.len(row as usize) * size) as usize);
                    head.copy_from_slice(&read.bytes()[(first * size) as usize..][..head.len()]);
                    rest = tail;
                }
                rest.fill(0);
            }
            Ok(())
        })
    }

    fn order(
        self: &Arc<Spread>,
        part: usize,
        (get, held, starts): (ExtentRef, Range<u64>, &Arc<Vec<u64>>),
        (into, offset): (ExtentRef, u64),
        size: u64,
    ) -> Task {
        let rows = self.parts[part].clone();
        let taken = self.ranges.place(rows.start)..self.ranges.place(rows.end);
        let task = Task::new("order")
            .read(Region::span(get, held.start, held.end - held.start))
            .write(region(into, offset, &taken, size));
        let (spread, starts) = (Arc::clone(self), Arc::clone(starts));
        task.run(move |cx| {
            let [read, written] = cx.blocks else {
                unreachable!("two were declared")
            };
            for chunk in (part..starts.len()).step_by(spread.parts.len()) {
                if cx.cancelled.load(Ordering::Relaxed) {
                    break;
                }
                let mut rest = &read.bytes()[(starts[chunk] - held.start) as usize..];
                for &row in spread.rows_of(chunk) {
                    let to = (spread.ranges.place(row as usize) - taken.start) * size;
                    let (head, tail) =
                        rest.split_at((spread.ranges.len(row as usize) * size) as usize);
                    written.bytes_mut()[to as usize..][..head.len()].copy_from_slice(head);
                    rest = tail;
                }
            }
            Ok(())
        })
    }
}

fn region(extent: ExtentRef, offset: u64, entries: &Range<u64>, size: u64) -> Region {
    let len = entries.end - entries.start;
    Region::span(extent, offset + entries.start * size, len * size)
}

impl Ranges {
    fn count(&self) -> usize {
        self.places.len() - 1
    }

    fn entries(&self) -> u64 {
        self.place(self.count())
    }

    fn first(&self, row: usize) -> u64 {
        self.starts[row]
    }

    fn place(&self, row: usize) -> u64 {
        self.places[row]
    }

    fn len(&self, row: usize) -> u64 {
        self.places[row + 1] - self.places[row]
    }

    /// Rows in the order of the result, cut where they have more than `longest` entries.
    fn parts(&self, longest: u64) -> Vec<Range<usize>> {
        let (mut found, mut first) = (Vec::new(), 0);
        for row in 0..self.count() {
            if self.place(row + 1) - self.place(first) > longest {
                found.push(first..row);
                first = row;
            }
        }
        found.push(first..self.count());
        found
    }

    /// Rows that are not empty in the order of the matrix, cut where they span, or have, more than
    /// `longest` entries: a row may come many times.
    fn panels(&self, longest: u64) -> (Vec<u32>, Vec<Panel>) {
        let wanted = (0..self.count()).filter(|&row| self.len(row) > 0);
        let mut order: Vec<u32> = wanted.map(|row| row as u32).collect();
        order.sort_unstable_by_key(|&row| (self.starts[row as usize], row));
        let mut panels: Vec<Panel> = Vec::new();
        let mut taken = 0;
        for (at, &row) in order.iter().enumerate() {
            let (start, len) = (self.first(row as usize), self.len(row as usize));
            match panels.last_mut() {
                Some(Panel { rows, span })
                    if start + len - span.start <= longest && taken + len <= longest =>
                {
                    (rows.end, span.end, taken) = (at + 1, start + len, taken + len);
                }
                _ => {
                    panels.push(Panel {
                        rows: at..at + 1,
                        span: start..start + len,
                    });
                    taken = len;
                }
            }
        }
        (order, panels)
    }
}
