//! A batch on its way: where each of its samples is, and how they are put side by side once all of them are in memory.

use std::sync::Arc;
use std::time::Duration;

use outcore_engine::{Gathered, Ticket};
use outcore_kernels::fetch_bytes;

use super::Dataset;
use super::batch::{Asked, Batch};
use super::images::Decode;
use super::kept::{Kept, Slot, horizon};
use super::order::{Order, Positions};
use super::spare::Spare;
use crate::error::{Error, Result};

/// Of pictures that are packed well.
const PIXELS_PER_BYTE: u64 = 10;

/// The sample so far behind the one that is copied is asked for from memory.
const FETCH_AHEAD: usize = 1;

/// A batch of which every sample is in memory, or on its way there.
pub(super) struct Work {
    dataset: Dataset,
    samples: Vec<u64>,
    places: Vec<Place>,
    /// Of all samples.
    bytes: u64,
    spare: Arc<Spare>,
    skip_damaged: bool,
    /// Windows that samples are in.
    pub(super) sources: Vec<Arc<Gathered>>,
    /// Of samples that are read for it.
    pub(super) ticket: Option<Ticket<Gathered>>,
    pub(super) keeping: Option<Keeping>,
}

/// Where samples are kept between their uses.
pub(super) struct Keeping {
    pub(super) kept: Arc<Kept>,
    /// How many had gone when those of the batch were found there.
    pub(super) gone: u64,
    pub(super) future: Future,
}

/// Where a sample is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Kept(Slot),
    Read { item: u32 },
    Window { source: u32, stretch: u32, start: u32, len: u32 },
}

/// What became of a batch.
pub(super) enum Made {
    Batch {
        batch: Batch,
        skipped: u64,
        first_skipped: Option<Error>,
    },
    /// Samples that were kept have gone meanwhile.
    Lost(Vec<u64>),
    /// It was not to go on.
    Stopped(Vec<u64>),
}

/// When samples are wanted again.
pub(super) struct Future {
    /// Of the next epoch, if samples come in another order.
    pub(super) next: Order,
    /// Of the first sample of the batch, and how far the next ones are apart.
    pub(super) positions: Positions,
    pub(super) rank: u64,
    pub(super) ranks: u64,
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

impl Work {
    /// Without samples, and with room for so many.
    pub(super) fn new(dataset: &Dataset, samples: usize, spare: &Arc<Spare>, skip_damaged: bool) -> Work {
        let (dataset, spare) = (dataset.clone(), Arc::clone(spare));
        let (samples, places) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
        Work { dataset, samples, places, bytes: 0, spare, skip_damaged, sources: Vec::new(), ticket: None, keeping: None }
    }

    pub(super) fn add(&mut self, sample: u64, len: u64, place: Place) {
        self.samples.push(sample);
        self.places.push(place);
        self.bytes += len;
    }

    /// Whether all samples that are read for it are there, after waiting for at most `timeout`.
    pub(super) fn is_there(&self, timeout: Duration) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.wait_timeout(timeout))
    }

    /// Bytes of the batch, as far as they are known before pictures of any size are decoded.
    pub(super) fn made_bytes(&self) -> u64 {
        let decoded = (0..self.dataset.fields().len()).filter_map(|field| self.dataset.decode_of(field));
        let each = decoded.clone().filter_map(Decode::bytes).fold(0, |sum: u64, bytes| sum.saturating_add(bytes as u64));
        let times = if decoded.clone().any(|decode| decode.size.is_none()) { PIXELS_PER_BYTE } else { 1 };
        (times * self.bytes).saturating_add(each.saturating_mul(self.samples.len() as u64))
    }

    /// Puts the samples side by side. Those that were read are compared with their checksums. `go_on` is asked now and then; its `false`
    /// ends the call.
    pub(super) fn make(mut self, go_on: impl FnMut() -> bool) -> Result<Made> {
        let gathered = self.ticket.take().map(Ticket::wait).transpose()?;
        let memory = |capacity| self.spare.bytes(capacity);
        let mut batch = Batch::with_room(&self.dataset, self.samples.len(), self.bytes as usize, memory)?;
        let (mut skipped, mut first_skipped, mut scratch) = (Vec::new(), None, Vec::new());
        let mut kept = self.keeping.as_ref().map(|Keeping { kept, future, .. }| {
            let open = kept.open();
            let soon = future.soon(open.part(future.bytes, future.samples));
            (open, soon)
        });
        if let (Some((kept, _)), Some(Keeping { gone, .. })) = (&kept, &self.keeping)
            && kept.gone() != *gone
        {
            for (entry, place) in kept.entries(&self.samples).into_iter().zip(&mut self.places) {
                if let Place::Kept(slot) = place {
                    match kept.slot(entry, slot.len) {
                        Some(found) => *slot = found,
                        None => return Ok(Made::Lost(self.samples)),
                    }
                }
            }
        }
        let bytes_of = |&place: &Place| match place {
            Place::Kept(slot) => kept.as_ref().map_or(&[][..], |(kept, _)| kept.at(slot)),
            Place::Read { item } => gathered.as_ref().map_or(&[][..], |gathered| gathered.get(item as usize)),
            // A damaged index may say anything.
            Place::Window { source, stretch, start, len } => {
                let stretch = self.sources[source as usize].get(stretch as usize);
                stretch.get(start as usize..).and_then(|rest| rest.get(..len as usize)).unwrap_or_default()
            }
        };
        // All at once: between two copies, tables have left the caches.
        let bytes: Vec<&[u8]> = self.places.iter().map(bytes_of).collect();
        let mut asked = Asked::about(&self.dataset, go_on);
        for (number, (&sample, place)) in self.samples.iter().zip(&self.places).enumerate() {
            if !asked.goes_on(bytes[number].len()) {
                return Ok(Made::Stopped(self.samples));
            }
            bytes.get(number + FETCH_AHEAD).copied().map(fetch_bytes);
            let sound = if matches!(place, Place::Kept(_)) { Ok(()) } else { self.dataset.verify(sample, bytes[number]) };
            match sound.and_then(|()| batch.push(&self.dataset, sample, bytes[number], &mut scratch)) {
                Ok(()) => {}
                Err(error) if self.skip_damaged => {
                    skipped.push(number);
                    first_skipped.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some((kept, soon)) = &mut kept {
            for (number, (&sample, &place)) in self.samples.iter().zip(&self.places).enumerate() {
                match (place, soon(sample, number as u64)) {
                    (Place::Read { item }, true) if skipped.binary_search(&number).is_err() => {
                        gathered.iter().for_each(|read| kept.put(sample, read.get(item as usize)));
                    }
                    (Place::Kept(_), false) => kept.remove(sample),
                    _ => {}
                }
            }
        }
        Ok(Made::Batch { batch, skipped: skipped.len() as u64, first_skipped })
    }
}

impl Future {
    /// Whether the next use of the n-th sample of the batch is soon enough to keep it, where such a part of all can be kept.
    fn soon(&self, part: f64) -> impl Fn(u64, u64) -> bool + use<'_> {
        let (samples, ranks) = (self.samples as f64, self.ranks as f64);
        // A rank has its part of the samples in one epoch, and of those again its part in the next, unless they come in the same order.
        let (horizon, first) = (horizon(part * ranks * ranks) * samples, part * ranks * samples);
        move |sample, number| match &self.next {
            Order::Global(_) if horizon >= 2.0 * samples && self.ranks == 1 => true,
            Order::Global(_) if horizon == 0.0 => false,
            Order::Global(next) => {
                let again = next.position_of(sample);
                let apart = self.samples - self.positions.at(number) + again;
                again % self.ranks == self.rank && apart as f64 <= horizon
            }
            Order::Straight | Order::Chunked(_) => (sample as f64) < first,
        }
    }
}
