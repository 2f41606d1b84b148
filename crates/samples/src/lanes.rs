//! Windows of a chunk shuffle: each lane has the one that it is in, and reads the next. A sample is
//! then a piece of memory that is there already.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outcore_core::{Error, Result};
use outcore_engine::{GatherOptions, Gathered, Reservation, Ticket};

use super::dataset::Dataset;
use super::order::{Chunked, Order, Positions, Turns, Window};
use super::pending_batch::{PendingBatch, SampleLocation};

/// The lanes of an epoch, and a batch of which some samples are found. None for an order that has
/// no lanes.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    part: Option<PartialBatch>,
}

/// A batch of a chunk shuffle, as far as it is.
struct PartialBatch {
    /// What is left of it. Lane by lane: what tells of one is in the caches then.
    turns: VecDeque<Turns>,
    work: PendingBatch,
}

/// A window that was read, and its bytes, unless they could not be.
type Here<'a> = (&'a Stretches, Option<&'a Arc<Gathered>>);

/// Windows of a lane.
#[derive(Default)]
struct Lane {
    /// Without bytes, if they could not be read.
    here: Option<(Stretches, Option<Arc<Gathered>>)>,
    next: Option<(Stretches, Ticket<Gathered>)>,
}

/// A window, and the stretches of files that are read of it: one a chunk, more where it goes on in
/// another file.
struct Stretches {
    shape: Window,
    /// First sample of each, and where its bytes begin.
    begins: Vec<(u64, u64)>,
    /// Number of each chunk's first; none where each has one.
    of_chunks: Vec<u32>,
    /// Of the order.
    _reserved: Reservation,
}

impl Stretches {
    /// The stretch with a sample of a chunk, and where its bytes begin.
    fn stretch_of(&self, chunk: u32, sample: u64) -> (u32, u64) {
        let mut stretch = self.of_chunks.get(chunk as usize).copied().unwrap_or(chunk);
        if !self.of_chunks.is_empty() {
            let end = self
                .of_chunks
                .get(chunk as usize + 1)
                .copied()
                .unwrap_or(self.begins.len() as u32);
            while stretch + 1 < end && self.begins[stretch as usize + 1].0 <= sample {
                stretch += 1;
            }
        }
        (stretch, self.begins[stretch as usize].1)
    }
}

impl Lanes {
    /// Without windows.
    pub(super) fn of(order: &Order) -> Lanes {
        let mut lanes = Lanes::default();
        if let Order::Chunked(order) = order {
            lanes
                .lanes
                .resize_with(order.lanes() as usize, Lane::default);
        }
        lanes
    }

    /// A batch whose samples are all in windows that are in memory; none while one of these is on
    /// its way, after waiting for `patience`. Without `must`, also where there is no memory for
    /// one.
    pub(super) fn gather(
        &mut self,
        dataset: &Dataset,
        order: &Chunked,
        positions: Positions,
        patience: Duration,
        must: bool,
        work: impl FnOnce() -> PendingBatch,
    ) -> Result<Option<PendingBatch>> {
        let mut part = match self.part.take() {
            Some(part) => part,
            None => {
                let turns: VecDeque<Turns> = order.by_lane(positions).into();
                // The first windows of all lanes at once, if memory allows, and not one after the
                // other.
                for turns in turns.iter().take(self.lanes.len()) {
                    self.lanes[turns.lane as usize].begin(dataset, order, turns.at, false)?;
                }
                PartialBatch {
                    turns,
                    work: work(),
                }
            }
        };
        while let Some(turns) = part.turns.front_mut() {
            let lane = &mut self.lanes[turns.lane as usize];
            let (window, gathered) =
                match lane.window(dataset, order, turns.lane, turns.at, patience, must) {
                    Ok(Some(here)) => here,
                    unready => {
                        self.part = Some(part);
                        return unready.map(|_| None);
                    }
                };
            let in_work = part.work.add_window(gathered);
            for (at, number) in turns.before(window.shape.positions.end) {
                let (chunk, sample) = window
                    .shape
                    .sample(at)
                    .expect("the position is in the window");
                let (offset, len) = dataset.place(sample);
                let (stretch, begin) = window.stretch_of(chunk, sample);
                // A damaged index may say anything.
                let start = offset.wrapping_sub(begin) as u32;
                part.work.set(
                    number,
                    sample,
                    len,
                    SampleLocation::Window {
                        window: in_work,
                        stretch,
                        start,
                        len: len as u32,
                    },
                );
            }
            // The other lanes' windows of this round come before this one's next.
            let rest = part.turns.pop_front().filter(|turns| !turns.is_over());
            part.turns.extend(rest);
        }
        Ok(Some(part.work))
    }
}

impl Lane {
    /// Has the window with a position of the sequence here or on its way; without `must`, only if
    /// there is memory for it.
    fn begin(&mut self, dataset: &Dataset, order: &Chunked, at: u64, must: bool) -> Result<()> {
        let wanted = order.window_of(at);
        let is_it = |number: u64| number == wanted;
        let known = self
            .here
            .as_ref()
            .is_some_and(|(window, _)| is_it(window.shape.number))
            || self
                .next
                .as_ref()
                .is_some_and(|(window, _)| is_it(window.shape.number));
        if !known {
            self.next = None;
            self.next = match begun(dataset, order, wanted) {
                Err(Error::OverBudget { .. }) if !must => None,
                Err(Error::OverBudget {
                    needed,
                    available,
                    budget,
                    ..
                }) => {
                    let what = format!("a chunk shuffle of {}", dataset.path().display());
                    return Err(Error::OverBudget {
                        what,
                        needed: needed * order.lanes(),
                        available,
                        budget,
                    });
                }
                found => Some(found?),
            };
        }
        Ok(())
    }

    /// The window with a position of the sequence. The one after it is read from then on, if the
    /// lane has it and memory is free.
    fn window(
        &mut self,
        dataset: &Dataset,
        order: &Chunked,
        number: u64,
        at: u64,
        patience: Duration,
        must: bool,
    ) -> Result<Option<Here<'_>>> {
        if self
            .here
            .as_ref()
            .is_none_or(|(window, _)| !window.shape.positions.contains(&at))
        {
            self.begin(dataset, order, at, false)?;
            if self.next.is_none() && must {
                // The lane has left the old window: its memory is for the next one.
                self.here = None;
                self.begin(dataset, order, at, true)?;
            }
            if !self
                .next
                .as_ref()
                .is_some_and(|(_, ticket)| ticket.wait_timeout(patience))
            {
                return Ok(None);
            }
            let (window, ticket) = self.next.take().expect("asked above");
            self.here = None;
            let here = window.shape.number;
            self.here = Some((window, ticket.wait().ok().map(Arc::new)));
            if order.has_more(number, here) {
                self.next = begun(dataset, order, here + 1).ok();
            }
        }
        Ok(self
            .here
            .as_ref()
            .map(|(window, gathered)| (window, gathered.as_ref())))
    }
}

/// Begins to read a window.
fn begun(dataset: &Dataset, order: &Chunked, window: u64) -> Result<(Stretches, Ticket<Gathered>)> {
    let reserved = dataset
        .session()
        .engine()
        .reserve("the order of a window", order.order_bytes(window))?;
    let shape = order.window(window);
    let (mut begins, mut of_chunks, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for &(first, count) in &shape.chunks {
        of_chunks.push(begins.len() as u32);
        for (first, start, len) in dataset.storage().stretches(first, count) {
            begins.push((first, start));
            items.push(dataset.storage().item(start, len));
        }
    }
    if begins.len() == shape.chunks.len() {
        of_chunks.clear();
    }
    let options = GatherOptions {
        cache: false,
        gap_bytes: 0,
        ..GatherOptions::default()
    };
    let ticket = dataset.session().engine().gather(&items, &options)?;
    Ok((
        Stretches {
            shape,
            begins,
            of_chunks,
            _reserved: reserved,
        },
        ticket,
    ))
}
