//! Streams: written once, in order, and read in order.
//!
//! ```text
//!   create        the name is taken by a stream that is not finished and has no blocks
//!   extend        free blocks are taken; nothing is written that says so
//!   commit        flush -> the name leads to the stream, with its blocks
//!   take          a reader has it for itself: the name leads nowhere; blocks come back one after another, as they are read
//! ```
//!
//! A stream is a chain of blocks of a fixed length, several MiB; the last block of a range of free
//! space may be shorter. Each ends with a trailer: the number of its stream, the length of its
//! data, the position of the next block, and a checksum of the whole block. So a block is moved in
//! one transfer between the device and the memory where it is made or used, without other reads or
//! writes. A stream whose writer died has no blocks, and is known by its name.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf as _, BufMut};
use outcore_device::{Device, Limits, Route};

use super::body::Garbage;
use super::layout::{
    BLOCK, BlockRange, Condition, Entry, Form, Record, STREAM_BLOCK_BYTES, Wrong, checksum,
    checksum_on,
};
use super::transaction::End;
use super::{Formatted, Inner, Inside, named, now_ns, patiently};
use crate::error::Error;

/// Bytes of the trailer of a block.
pub const TRAILER_BYTES: usize = 64;
/// Most bytes of free space taken at once.
const MOST_AT_ONCE: u64 = 64 << 20;

/// The trailer of a block of a stream.
///
/// ```text
///    0  8  number of the stream            8  8  number of the block, from 0
///   16  4  bytes of data, from the start of the block
///   20  4  how many ends of records are listed before the trailer, 4 bytes each
///   24  4  bytes of the block              28  4  1 in the last block of the stream, else 0
///   32  8  where the next block begins, in blocks of 4096; 0 in the last
///   40  8  mark of the stream, drawn when it was begun
///   48 12  zero
///   60  4  CRC-32C of everything before in the block
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Number of the stream.
    pub stream: u64,
    /// Number of the block, from 0.
    pub number: u64,
    /// Bytes of data.
    pub data_bytes: u32,
    /// Number of listed ends of records.
    pub ends: u32,
    /// Offset of the next block on the device, bytes; `None` for the last.
    pub next: Option<u64>,
    /// Mark of the stream, drawn when it was begun: it distinguishes its blocks from those that
    /// another store has left behind.
    pub mark: u64,
}

impl Trailer {
    /// Completes a block whose data is in place: `data_sum` is the [`sum`](Trailer::sum) of the
    /// data.
    ///
    /// # Panics
    /// If data and ends do not fit.
    pub fn seal(&self, block: &mut [u8], ends: &[u32], data_sum: u32) {
        let (data, listed) = (self.data_bytes as usize, 4 * ends.len());
        let trailer_at = block.len() - TRAILER_BYTES;
        let list_at = trailer_at
            .checked_sub(listed)
            .filter(|&at| at >= data)
            .expect("data and ends fit the block");
        block[data..list_at].fill(0);
        block[list_at..trailer_at]
            .chunks_exact_mut(4)
            .zip(ends)
            .for_each(|(at, end)| at.copy_from_slice(&end.to_le_bytes()));
        let block_bytes = block.len() as u32;
        let mut trailer = &mut block[trailer_at..];
        trailer.put_u64_le(self.stream);
        trailer.put_u64_le(self.number);
        trailer.put_u32_le(self.data_bytes);
        trailer.put_u32_le(ends.len() as u32);
        trailer.put_u32_le(block_bytes);
        trailer.put_u32_le(self.next.is_none().into());
        trailer.put_u64_le(self.next.unwrap_or(0) / BLOCK as u64);
        trailer.put_u64_le(self.mark);
        trailer.put_bytes(0, 12);
        let sum_at = block.len() - 4;
        let sum = checksum_on(data_sum, &block[data..sum_at]);
        block[sum_at..].copy_from_slice(&sum.to_le_bytes());
    }

    /// The checksum of data, of which the beginning has the checksum `before`; that of no data is
    /// 0.
    #[must_use]
    pub fn sum(before: u32, data: &[u8]) -> u32 {
        checksum_on(before, data)
    }

    /// Verifies a block and returns its trailer.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn of(block: &[u8]) -> Result<Trailer, String> {
        let sum_at = block
            .len()
            .checked_sub(4)
            .filter(|at| at + 4 >= TRAILER_BYTES)
            .ok_or("the block is cut")?;
        if checksum(&block[..sum_at]).to_le_bytes() != block[sum_at..] {
            return Err("the checksum of the block is wrong".into());
        }
        let mut bytes = &block[block.len() - TRAILER_BYTES..];
        let (stream, number) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (data_bytes, ends) = (bytes.get_u32_le(), bytes.get_u32_le());
        let (block_bytes, is_last) = (bytes.get_u32_le(), bytes.get_u32_le() == 1);
        let (next, mark) = (bytes.get_u64_le(), bytes.get_u64_le());
        let taken = TRAILER_BYTES as u64 + 4 * u64::from(ends) + u64::from(data_bytes);
        if block_bytes as usize != block.len() || taken > block.len() as u64 {
            return Err("the block is of another length".into());
        }
        let next = (!is_last).then_some(next.wrapping_mul(BLOCK as u64));
        Ok(Trailer {
            stream,
            number,
            data_bytes,
            ends,
            next,
            mark,
        })
    }

    /// Position of the list of ends of records in a block.
    #[must_use]
    pub fn list(&self, block_bytes: usize) -> Range<usize> {
        let end = block_bytes - TRAILER_BYTES;
        end - 4 * self.ends as usize..end
    }
}

/// Begin and end of each block of a stream on the device, bytes.
pub fn blocks_of(ranges: &[Range<u64>], block_bytes: u32) -> impl Iterator<Item = Range<u64>> + '_ {
    let step = u64::from(block_bytes);
    ranges.iter().flat_map(move |range| {
        range
            .clone()
            .step_by(step as usize)
            .map(move |at| at..range.end.min(at + step))
    })
}

/// The device, limited to one stream, whose blocks are kept while a transfer is in flight.
struct StreamDevice {
    name: String,
    store: Arc<Inner>,
    garbage: Arc<Garbage>,
}

impl Device for StreamDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.store.device.limits()
    }

    fn len(&self) -> u64 {
        self.store.device.len()
    }

    fn route(&self) -> Route<'_> {
        self.store.device.route()
    }
}

/// A stream that is being written. Dropped without [`NewStream::commit`], it is removed.
#[must_use = "dropping a new stream removes it"]
pub struct NewStream {
    store: Arc<Inner>,
    name: String,
    device: Arc<StreamDevice>,
    number: u64,
    form: Form,
    ranges: Vec<BlockRange>,
    /// Whether the catalog has it, as an unfinished stream.
    is_recorded: bool,
    is_over: bool,
}

/// A stream to read.
pub struct Stream {
    device: Arc<StreamDevice>,
    number: u64,
    form: Form,
    ranges: Vec<Range<u64>>,
    about: Vec<u8>,
    /// Whether no other handle reads it or ever will.
    is_taken: bool,
}

impl Formatted {
    /// Begins a stream of blocks of `block_bytes`, a multiple of 4096. With `replace`, an existing
    /// stream keeps the name until the new one is complete.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Locked`], [`Error::Name`]; [`Error::NoSpace`] of the catalog;
    /// that of the device.
    ///
    /// # Panics
    /// For a block length outside [`STREAM_BLOCK_BYTES`], or not a multiple of 4096.
    pub fn create_stream(
        &self,
        name: &str,
        block_bytes: u32,
        replace: bool,
    ) -> Result<NewStream, Error> {
        assert!(
            STREAM_BLOCK_BYTES.contains(&block_bytes) && block_bytes.is_multiple_of(BLOCK as u32)
        );
        let (store, name) = (&self.0, named(name)?);
        let mut state = store.lock_to_write(&name)?;
        state.check_lock(store, &name, &[])?;
        state.check_place(store, &name)?;
        let old = state.catalog.find(&name).cloned();
        // An unfinished stream will not be read.
        let is_recorded = old
            .as_deref()
            .is_none_or(|old| old.is_stream && old.condition == Condition::Unfinished);
        if !is_recorded && !replace {
            return Err(Error::Exists {
                object: store.full(&name),
            });
        }
        let number = state.catalog.draw_id();
        let form = Form {
            block_bytes,
            mark: state.catalog.draw(),
        };
        if is_recorded {
            let gone = old.iter().map(|old| Record::Gone(old.id));
            let entry = entry(
                number,
                &name,
                Condition::Unfinished,
                form.encode(&[]),
                Vec::new(),
            );
            let Inside { catalog, space, .. } = &mut *state;
            catalog.change(gone.chain([Record::Put(entry)]).collect(), space)?;
            old.into_iter()
                .for_each(|old| state.end(store, End::gone(&old)));
        }
        state.writers.insert(name.clone(), is_recorded);
        drop(state);
        let garbage = Arc::new(Garbage::new(Vec::new(), &store.returned));
        let device = Arc::new(StreamDevice {
            name: store.full(&name),
            store: Arc::clone(store),
            garbage,
        });
        let store = Arc::clone(store);
        Ok(NewStream {
            store,
            name,
            device,
            number,
            form,
            ranges: Vec::new(),
            is_recorded,
            is_over: false,
        })
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`Error::Unfinished`], [`Error::Missing`], [`Error::NotAStream`].
    pub fn open_stream(&self, name: &str) -> Result<Stream, Error> {
        let name = named(name)?;
        let mut state = self.0.lock();
        let entry = state.stream_entry(&self.0, &name)?;
        let garbage = state.hold_open(&self.0, &entry);
        Ok(self.0.stream(&entry, garbage))
    }
}

impl Inner {
    fn stream(self: &Arc<Inner>, entry: &Entry, garbage: Arc<Garbage>) -> Stream {
        let device = Arc::new(StreamDevice {
            name: self.full(&entry.name),
            store: Arc::clone(self),
            garbage,
        });
        let (form, about) = entry
            .about_stream()
            .expect("checked when the catalog was read");
        let ranges = entry
            .ranges
            .iter()
            .map(|range| range.start * BLOCK as u64..range.end() * BLOCK as u64)
            .collect();
        Stream {
            device,
            number: entry.id,
            form,
            ranges,
            about: about.to_vec(),
            is_taken: false,
        }
    }
}

impl Inside {
    fn stream_entry(&self, store: &Inner, name: &str) -> Result<Arc<Entry>, Error> {
        let entry = self.entry(store, name)?;
        match entry.condition {
            _ if !entry.is_stream => Err(Error::NotAStream {
                object: store.full(name),
            }),
            Condition::Whole => Ok(entry),
            _ => Err(Error::Unfinished {
                object: store.full(name),
            }),
        }
    }
}

fn entry(
    id: u64,
    name: &str,
    condition: Condition,
    about: Vec<u8>,
    ranges: Vec<BlockRange>,
) -> Entry {
    let len = ranges.iter().map(|range| range.blocks * BLOCK as u64).sum();
    let (name, changed_ns) = (name.to_owned(), now_ns());
    Entry {
        id,
        len,
        changed_ns,
        condition,
        is_stream: true,
        name,
        about,
        ranges,
        sums: Vec::new(),
    }
}

impl NewStream {
    /// The full path that it will have, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The device to which its blocks are written.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    /// Number and mark for the trailers of its blocks.
    #[must_use]
    pub fn marks(&self) -> (u64, u64) {
        (self.number, self.form.mark)
    }

    /// Takes more free space: bytes of the device that follow those it has, in the order of the
    /// stream. Blocks are cut from its start.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn extend(&mut self) -> Result<Range<u64>, Error> {
        let block = self.form.blocks();
        let had: u64 = self.ranges.iter().map(|range| range.blocks).sum();
        let take = || {
            let mut state = self.store.lock_to_write(&self.name)?;
            let free = state.space.blocks();
            // Whole stream blocks, a quarter of the present length: this keeps ranges few and the
            // reserve small, above all when little space is free.
            let wanted = (had / 4).min(MOST_AT_ONCE / BLOCK as u64).min(free / 64) / block * block;
            let needed = u64::from(self.form.block_bytes);
            let no_space = || Error::NoSpace {
                object: self.device.name.clone(),
                needed,
                free: free * BLOCK as u64,
            };
            state
                .space
                .take_some(wanted.max(block), block)
                .ok_or_else(no_space)
        };
        let range = patiently(take, |error| matches!(error, Error::NoSpace { .. }))?;
        self.device.garbage.add(range);
        self.ranges.push(range);
        Ok(range.start * BLOCK as u64..range.end() * BLOCK as u64)
    }

    /// Ends the stream at a byte of the device, in the last range, at the end of its last block;
    /// `about` is metadata of its owner. Durable on return. All writes have completed before.
    ///
    /// # Errors
    /// [`Error::NoSpace`] of the catalog, in which case there is no stream; that of the device,
    /// after which the outcome is unknown until the store is opened again.
    pub fn commit(mut self, end: u64, about: &[u8]) -> Result<(), Error> {
        let store = Arc::clone(&self.store);
        let end = end / BLOCK as u64;
        let mut ranges = std::mem::take(&mut self.ranges);
        let spare = ranges.last_mut().map(|last| {
            let spare = BlockRange {
                start: end,
                blocks: last.end() - end,
            };
            last.blocks = end - last.start;
            spare
        });
        let ranges = joined(ranges, self.form.blocks());
        let entry = entry(
            self.number,
            &self.name,
            Condition::Whole,
            self.form.encode(about),
            ranges,
        );
        let mut state = store.lock_to_write(&self.name)?;
        let old = state
            .catalog
            .find(&self.name)
            .filter(|old| old.id != self.number)
            .cloned();
        let gone = old.iter().map(|old| Record::Gone(old.id));
        let Inside { catalog, space, .. } = &mut *state;
        let changed = catalog.change(gone.chain([Record::Put(entry)]).collect(), space);
        if matches!(changed, Err(Error::NoSpace { .. })) {
            return changed;
        }
        // After another error the owners of blocks are unknown until the store is opened again.
        self.is_over = true;
        self.device.garbage.leave(Vec::new(), None);
        if changed.is_ok() {
            old.into_iter()
                .for_each(|old| state.end(&store, End::gone(&old)));
            spare.into_iter().for_each(|range| state.space.give(range));
        }
        changed
    }
}

/// Merges adjacent ranges, unless that would change how blocks of the stream are cut.
fn joined(ranges: Vec<BlockRange>, block: u64) -> Vec<BlockRange> {
    let mut joined: Vec<BlockRange> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.blocks > 0) {
        match joined.last_mut() {
            Some(last) if last.end() == range.start && last.blocks.is_multiple_of(block) => {
                last.blocks += range.blocks
            }
            _ => joined.push(range),
        }
    }
    joined
}

impl Drop for NewStream {
    fn drop(&mut self) {
        if !self.store.is_mine() {
            return;
        }
        let mut state = self.store.lock();
        if !self.is_over && self.is_recorded {
            // If the removal fails, an unfinished stream remains.
            let Inside { catalog, space, .. } = &mut *state;
            let _ = catalog.change(vec![Record::Gone(self.number)], space);
        }
        state.writers.remove(&self.name);
    }
}

impl Stream {
    /// The full path, for errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The device of its blocks.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    /// Bytes of a block; the last of a range may be shorter.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.form.block_bytes
    }

    /// Ranges of the device with its blocks, in order.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Metadata of its owner.
    #[must_use]
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// The expected block at a position, for the reader to compare.
    #[must_use]
    pub fn expected(&self, number: u64, place: &Range<u64>, next: Option<u64>) -> ExpectedBlock {
        let expected = Expected {
            stream: self.number,
            mark: self.form.mark,
            number,
            next,
        };
        ExpectedBlock {
            expected,
            object: self.device.name.clone(),
            offset: place.start,
        }
    }

    /// Takes the stream for its last reading: it cannot be opened any more, and its blocks are
    /// reused as they are [released](Stream::let_go).
    ///
    /// # Errors
    /// [`Error::Locked`] while another handle has it open or writes one of its name;
    /// [`Error::Missing`] if it has been removed; that of the device.
    pub fn take(&mut self) -> Result<(), Error> {
        patiently(
            || self.try_take(),
            |error| matches!(error, Error::Locked { .. }),
        )
    }

    fn try_take(&mut self) -> Result<(), Error> {
        let store = &self.device.store;
        let around = format!("{}/", store.device.name());
        let mut state = store.lock_to_write(self.device.name.trim_start_matches(&around))?;
        let object = || self.device.name.clone();
        let entry = state
            .catalog
            .get(self.number)
            .cloned()
            .ok_or_else(|| Error::Missing { object: object() })?;
        if Arc::strong_count(&self.device.garbage) > 1 || state.writers.contains_key(&entry.name) {
            return Err(Error::Locked { object: object() });
        }
        let Inside { catalog, space, .. } = &mut *state;
        catalog.change(vec![Record::Gone(entry.id)], space)?;
        state.open.remove(&entry.id);
        self.device.garbage.leave(entry.ranges.clone(), None);
        self.is_taken = true;
        Ok(())
    }

    /// Releases a range, or the beginning of one, of a stream that was [taken](Stream::take). The
    /// range will not be read again.
    pub fn let_go(&self, bytes: Range<u64>) {
        if self.is_taken {
            let start = bytes.start / BLOCK as u64;
            self.device.garbage.give(BlockRange {
                start,
                blocks: bytes.end / BLOCK as u64 - start,
            });
        }
    }

    /// Whether no other handle reads it or ever will.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.is_taken
    }
}

/// A block of a stream to be read.
#[derive(Debug)]
pub struct ExpectedBlock {
    expected: Expected,
    object: String,
    offset: u64,
}

impl ExpectedBlock {
    /// Whether this is the expected block, intact.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check(&self, block: &[u8]) -> Result<Trailer, Error> {
        self.expected.check(block).map_err(|reason| {
            let reason = format!("block {} of the stream: {reason}", self.expected.number);
            Error::Corrupt {
                object: self.object.clone(),
                offset: self.offset,
                reason,
            }
        })
    }
}

/// The expected block at a position.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) stream: u64,
    pub(super) mark: u64,
    pub(super) number: u64,
    pub(super) next: Option<u64>,
}

impl Expected {
    pub(super) fn check(&self, block: &[u8]) -> Result<Trailer, Wrong> {
        let trailer = Trailer::of(block)?;
        if (trailer.stream, trailer.mark, trailer.number) != (self.stream, self.mark, self.number) {
            return Err(format!(
                "found block {} of stream {} in its place",
                trailer.number, trailer.stream
            ));
        }
        match trailer.next == self.next {
            true => Ok(trailer),
            false => Err("the chain of blocks is broken behind it".into()),
        }
    }
}

/// Calls `f` with each block of a stream, in order: the bytes read so far, and what is wrong with
/// the block, if anything.
pub(super) fn each_block(
    store: &Inner,
    entry: &Entry,
    mut f: impl FnMut(u64, Result<Trailer, Wrong>) -> io::Result<()>,
) -> io::Result<()> {
    let Some((form, _)) = entry.about_stream() else {
        return Ok(());
    };
    let ranges: Vec<Range<u64>> = entry
        .ranges
        .iter()
        .map(|range| range.start * BLOCK as u64..range.end() * BLOCK as u64)
        .collect();
    let mut places = blocks_of(&ranges, form.block_bytes).peekable();
    let (mut number, mut done) = (0, 0);
    let mut buf = outcore_device::Buf::default();
    while let Some(place) = places.next() {
        let len = (place.end - place.start) as usize;
        if buf.len() < len {
            buf = outcore_device::Buf::anonymous(len)?;
        }
        outcore_device::read_now(&*store.device, &mut buf[..len], place.start)?;
        let next = places.peek().map(|next| next.start);
        let expected = Expected {
            stream: entry.id,
            mark: form.mark,
            number,
            next,
        };
        done += len as u64;
        f(done, expected.check(&buf[..len]))?;
        number += 1;
    }
    Ok(())
}
