//! A batch on its way: where each of its samples is, and how they are put side by side once all of
//! them are in memory.

use std::sync::Arc;
use std::time::Duration;

use outcore_core::{Error, Result};
use outcore_engine::{Gathered, Ticket};
use outcore_kernels::{crc32c_of_three, fetch_bytes};

use super::batch::{Batch, CancelPoll, shared};
use super::buffer_pool::BufferPool;
use super::dataset::Dataset;
use super::images::Decode;
use super::order::{Order, Positions};
use super::sample_cache::{CacheSlot, Guard, SampleCache, horizon};

/// Of pictures that are packed well.
const PIXELS_PER_BYTE: u64 = 10;

/// The sample so far behind the one that is copied is asked for from memory, and the checksum of
/// one farther behind.
const FETCH_AHEAD: usize = 1;
const SUMS_AHEAD: usize = 8;

/// This many samples have their checksums made at once, unless one is longer: it takes as long by
/// itself. Those `TOGETHER_AHEAD` behind are prefetched into the cache meanwhile.
const TOGETHER: usize = 3;
const TOGETHER_AHEAD: usize = 3 * TOGETHER;
const SHORT_BYTES: usize = 8 << 10;

/// A batch of which every sample is in memory, or on its way there.
pub(super) struct PendingBatch {
    dataset: Dataset,
    samples: Vec<u64>,
    places: Vec<SampleLocation>,
    /// Of all samples.
    bytes_of_all: u64,
    pool: Arc<BufferPool>,
    skip_damaged: bool,
    /// Those that samples are in.
    windows: Vec<Arc<Gathered>>,
    /// Some of these could not be read.
    is_unread: bool,
    /// Of samples that are read for it.
    pub(super) ticket: Option<Ticket<Gathered>>,
    pub(super) keeping: Option<Keeping>,
}

/// Where samples are kept between their uses.
pub(super) struct Keeping {
    pub(super) kept: Arc<SampleCache>,
    /// How many had gone when those of the batch were found there.
    pub(super) gone: u64,
    pub(super) future: Future,
}

/// Where a sample is.
#[derive(Clone, Copy)]
pub(super) enum SampleLocation {
    SampleCache(CacheSlot),
    Read {
        item: u32,
    },
    Window {
        window: u32,
        stretch: u32,
        start: u32,
        len: u32,
    },
}

/// What became of a batch.
pub(super) enum Made {
    Batch {
        batch: Batch,
        skipped: u64,
        first_skipped: Option<(u64, Error)>,
    },
    /// This sample is not what it should be.
    Refused(u64, Error),
    /// Samples that were kept have gone meanwhile, or cannot be read.
    Evicted(Vec<u64>),
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

impl PendingBatch {
    /// Of `samples` samples, which are not known yet.
    pub(super) fn new(
        dataset: &Dataset,
        samples: usize,
        pool: &Arc<BufferPool>,
        skip_damaged: bool,
    ) -> PendingBatch {
        let (dataset, pool) = (dataset.clone(), Arc::clone(pool));
        let (samples, places) = (
            vec![0; samples],
            vec![SampleLocation::Read { item: 0 }; samples],
        );
        PendingBatch {
            dataset,
            samples,
            places,
            bytes_of_all: 0,
            pool,
            skip_damaged,
            windows: Vec::new(),
            is_unread: false,
            ticket: None,
            keeping: None,
        }
    }

    /// Which sample one of the batch is, and where.
    pub(super) fn set(&mut self, number: u64, sample: u64, len: u64, place: SampleLocation) {
        (self.samples[number as usize], self.places[number as usize]) = (sample, place);
        self.bytes_of_all += len;
    }

    /// Adds a window, if it could be read, and returns its number.
    pub(super) fn add_window(&mut self, window: Option<&Arc<Gathered>>) -> u32 {
        self.is_unread |= window.is_none();
        self.windows.extend(window.cloned());
        self.windows.len().saturating_sub(1) as u32
    }

    /// Whether all samples that are read for it are there, after waiting for at most `timeout`.
    pub(super) fn is_there(&self, timeout: Duration) -> bool {
        self.ticket
            .as_ref()
            .is_none_or(|ticket| ticket.wait_timeout(timeout))
    }

    /// Bytes of the batch, as far as they are known before pictures of any size are decoded.
    pub(super) fn made_bytes(&self) -> u64 {
        let decoded =
            (0..self.dataset.fields().len()).filter_map(|field| self.dataset.decode_of(field));
        let each = decoded
            .clone()
            .filter_map(Decode::bytes)
            .fold(0, |sum: u64, bytes| sum.saturating_add(bytes as u64));
        let times = if decoded.clone().any(|decode| decode.size.is_none()) {
            PIXELS_PER_BYTE
        } else {
            1
        };
        (times * self.bytes_of_all).saturating_add(each.saturating_mul(self.samples.len() as u64))
    }

    /// Puts the samples side by side. Those that were read are compared with their checksums.
    /// `go_on` is asked now and then; its `false` ends the call.
    pub(super) fn make(mut self, go_on: impl FnMut() -> bool) -> Result<Made> {
        // The samples are then read one by one, which finds the one that cannot be read.
        let Ok(gathered) = self.ticket.take().map(Ticket::wait).transpose() else {
            return Ok(Made::Evicted(self.samples));
        };
        if self.is_unread {
            return Ok(Made::Evicted(self.samples));
        }
        let Some(keeping) = self.keeping.take() else {
            let bytes = self.bytes(gathered.as_ref(), |_, _| &[]);
            return Ok(self
                .side_by_side(&bytes, go_on)?
                .map_or_else(|| Made::Stopped(self.samples), Made::from));
        };
        let kept = keeping.kept.open();
        if kept.gone() != keeping.gone && !self.find_again(&kept) {
            return Ok(Made::Evicted(self.samples));
        }
        let made = if self.dataset.decoded.is_empty() {
            let bytes = self.bytes(gathered.as_ref(), |_, slot| kept.at(slot));
            let made = self.side_by_side(&bytes, go_on)?;
            drop(kept);
            made
        } else {
            // Decoding takes long: samples are copied, so that the cache is not locked meanwhile.
            let copy = |place: &SampleLocation| {
                if let SampleLocation::SampleCache(slot) = *place {
                    kept.at(slot).to_vec()
                } else {
                    Vec::new()
                }
            };
            let copies: Vec<Vec<u8>> = self.places.iter().map(copy).collect();
            drop(kept);
            self.side_by_side(
                &self.bytes(gathered.as_ref(), |number, _| &copies[number]),
                go_on,
            )?
        };
        let Some(made) = made else {
            return Ok(Made::Stopped(self.samples));
        };
        if made.refused.is_some() {
            return Ok(made.into());
        }
        self.keep(&keeping, gathered.as_ref(), &made.skipped);
        Ok(made.into())
    }

    /// Where kept samples are that were elsewhere; false if one is not there any more.
    fn find_again(&mut self, kept: &Guard<'_>) -> bool {
        kept.entries(&self.samples)
            .into_iter()
            .zip(&mut self.places)
            .all(|(entry, place)| match place {
                SampleLocation::SampleCache(slot) => kept
                    .slot(entry, slot.len)
                    .map(|found| *slot = found)
                    .is_some(),
                _ => true,
            })
    }

    /// The bytes of each sample. All at once: between two copies, tables have left the caches.
    fn bytes<'a>(
        &'a self,
        gathered: Option<&'a Gathered>,
        kept: impl Fn(usize, CacheSlot) -> &'a [u8],
    ) -> Vec<&'a [u8]> {
        let of = |(number, &place): (usize, &SampleLocation)| match place {
            SampleLocation::SampleCache(slot) => kept(number, slot),
            SampleLocation::Read { item } => {
                gathered.map_or(&[][..], |gathered| gathered.get(item as usize))
            }
            // A damaged index may say anything.
            SampleLocation::Window {
                window,
                stretch,
                start,
                len,
            } => {
                let stretch = self.windows[window as usize].get(stretch as usize);
                stretch
                    .get(start as usize..)
                    .and_then(|rest| rest.get(..len as usize))
                    .unwrap_or_default()
            }
        };
        self.places.iter().enumerate().map(of).collect()
    }

    /// None where it was not to go on.
    fn side_by_side(
        &self,
        bytes: &[&[u8]],
        go_on: impl FnMut() -> bool,
    ) -> Result<Option<SideBySide>> {
        let go_on = shared(go_on);
        let batch = Batch::with_room(
            &self.dataset,
            self.samples.len(),
            self.bytes_of_all as usize,
            |most| self.pool.bytes(most),
        )?;
        let mut made = SideBySide {
            batch,
            skipped: Vec::new(),
            first_skipped: None,
            refused: None,
        };
        let (mut poll, mut scratch, mut sums) = (CancelPoll::of(&self.dataset), Vec::new(), None);
        bytes
            .iter()
            .take(TOGETHER_AHEAD)
            .for_each(|bytes| fetch_bytes(bytes));
        for (number, (&sample, place)) in self.samples.iter().zip(&self.places).enumerate() {
            if poll.is_due(bytes[number].len()) && !go_on() {
                return Ok(None);
            }
            if number.is_multiple_of(TOGETHER) {
                sums = self.sums_of(number, bytes);
            }
            if sums.is_none() {
                bytes.get(number + FETCH_AHEAD).copied().map(fetch_bytes);
            }
            if let Some(&sample) = self
                .samples
                .get(number + SUMS_AHEAD)
                .filter(|_| !matches!(place, SampleLocation::SampleCache(_)))
            {
                self.dataset.fetch_sum(sample);
            }
            let sound = match (place, sums) {
                (SampleLocation::SampleCache(_), _) => Ok(true),
                (_, Some(sums)) => self
                    .dataset
                    .compare(sample, sums[number % TOGETHER])
                    .map(|()| true),
                (_, None) => Ok(false),
            };
            let pushed = sound.and_then(|is_sound| match is_sound {
                true => made
                    .batch
                    .push(&self.dataset, sample, bytes[number], &mut scratch, &go_on),
                false => {
                    let bytes = bytes[number];
                    made.batch
                        .push_verified(&self.dataset, sample, bytes, &mut scratch, &go_on)
                }
            });
            match pushed {
                Ok(()) => {}
                Err(Error::Cancelled) => return Ok(None),
                Err(error) if self.skip_damaged && error.is_damage() => {
                    made.skipped.push(number);
                    made.first_skipped.get_or_insert((sample, error));
                }
                Err(error) => {
                    made.refused = Some((sample, error));
                    return Ok(Some(made));
                }
            }
        }
        Ok(Some(made))
    }

    /// The checksums of the samples from one on, where they are made together.
    fn sums_of(&self, number: usize, bytes: &[&[u8]]) -> Option<[u32; TOGETHER]> {
        let some = number..number + TOGETHER;
        let pieces: [&[u8]; TOGETHER] = bytes.get(some.clone())?.try_into().expect("as many");
        let coming = std::array::from_fn(|piece| {
            bytes
                .get(number + TOGETHER_AHEAD + piece)
                .copied()
                .unwrap_or_default()
        });
        let is_short = pieces.iter().all(|piece| piece.len() <= SHORT_BYTES);
        let is_read = self.places[some]
            .iter()
            .any(|place| !matches!(place, SampleLocation::SampleCache(_)));
        (is_short && is_read)
            .then(|| crc32c_of_three(pieces, coming))
            .flatten()
    }

    /// Keeps samples that are wanted again soon, and lets go of others.
    fn keep(
        &self,
        Keeping { kept, future, .. }: &Keeping,
        gathered: Option<&Gathered>,
        skipped: &[usize],
    ) {
        let mut kept = kept.open();
        let soon = future.soon(kept.part(future.bytes, future.samples));
        for (number, (&sample, &place)) in self.samples.iter().zip(&self.places).enumerate() {
            match (place, soon(sample, number as u64)) {
                (SampleLocation::Read { item }, true)
                    if skipped.binary_search(&number).is_err() =>
                {
                    gathered
                        .into_iter()
                        .for_each(|read| kept.put(sample, read.get(item as usize)));
                }
                (SampleLocation::SampleCache(_), false) => kept.remove(sample),
                _ => {}
            }
        }
    }
}

/// Samples that were put side by side, and the places of those that were not.
struct SideBySide {
    batch: Batch,
    skipped: Vec<usize>,
    first_skipped: Option<(u64, Error)>,
    /// The one that it ends at.
    refused: Option<(u64, Error)>,
}

impl From<SideBySide> for Made {
    fn from(
        SideBySide {
            batch,
            skipped,
            first_skipped,
            refused,
        }: SideBySide,
    ) -> Made {
        match refused {
            Some((sample, error)) => Made::Refused(sample, error),
            None => Made::Batch {
                batch,
                skipped: skipped.len() as u64,
                first_skipped,
            },
        }
    }
}

impl Future {
    /// Whether the next use of the n-th sample of the batch is soon enough to keep it, where such a
    /// part of all can be kept.
    fn soon(&self, part: f64) -> impl Fn(u64, u64) -> bool + use<'_> {
        let (samples, ranks) = (self.samples as f64, self.ranks as f64);
        // A rank has its part of the samples in one epoch, and of those again its part in the next,
        // unless they come in the same order.
        let (horizon, first) = (
            horizon(part * ranks * ranks) * samples,
            part * ranks * samples,
        );
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
