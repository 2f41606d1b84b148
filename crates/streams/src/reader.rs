//! Reading a stream: blocks ahead of the caller, each checked and lent in the memory that it was
//! read into.

use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use outcore_core::{Error, Result, Session};
use outcore_device::{Buf, Shared};
use outcore_engine::{Deferred, Engine, Extent, Lent, ReadStream, Reservation};
use outcore_store::{ExpectedBlock, Stream, Trailer, blocks_of};

use super::packed::{CHUNK_BYTES, Compression, Head, list_at};
use super::{About, StreamOptions};

/// Blocks that are reserved: one may still be in use when the next is asked for.
const READ_AT_ONCE: usize = 2;
/// Ends of records are numbers of 4 bytes.
const LONGEST_RECORD: usize = u32::MAX as usize;
/// To checksum this many bytes from memory takes 0.1 ms, ten times as long as to wake a worker for
/// it.
const CHECKED_EARLY_BYTES: usize = 1 << 20;

/// A block, and its trailer if it is what it should be.
type Checked = (Lent, Result<Trailer>);

/// A block, and what it should be.
struct Unchecked {
    lent: Lent,
    expected: ExpectedBlock,
}

impl Unchecked {
    fn check(self) -> Checked {
        let trailer = self.expected.check(&self.lent).map_err(Error::from);
        (self.lent, trailer)
    }
}

/// Blocks, chunks or records of a stream, in order.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use std::time::Duration;
///
/// # let mut writer = store.write("words", options())?;
/// # writer.set_about(b"English");
/// # writer.write_record(b"plan")?;
/// # writer.write_record(b"run")?;
/// # writer.finish()?;
/// let mut reader = store.read("words", options())?;
/// assert_eq!((reader.bytes(), reader.records(), reader.about()), (7, 2, &b"English"[..]));
/// println!("{}, polled by {:?}", reader.name().to_owned(), reader.fd());
/// while !reader.ready_within(Duration::from_millis(50)) {}
/// assert_eq!(reader.next_record()?, Some(&b"plan"[..]));
/// let rest = reader.next_records()?.unwrap();
/// assert!(rest.len() == 1 && !rest.is_empty());
/// assert_eq!(rest.get(0), b"run");
/// assert!(reader.next_block()?.is_none());
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct StreamReader {
    engine: Engine,
    stream: Stream,
    blocks: ReadStream,
    places: Vec<Range<u64>>,
    /// The next block.
    number: usize,
    /// It, where it was there before it was wanted.
    deferred: Option<Deferred<Unchecked, Checked>>,
    compression: Compression,
    bytes: u64,
    records: u64,
    about: Vec<u8>,
    /// A compressed block, where in it the next chunk begins, and where the last one ends.
    chunks: Option<(Lent, Range<usize>)>,
    /// The beginning of a record that goes on in the next block.
    begun: Option<Begun>,
    /// The records after one that was put together.
    waiting: Option<Records>,
    /// Where the next single record is.
    current: Option<(Records, usize)>,
    /// What of a stream that goes as it is read has not gone yet.
    over: Option<Range<u64>>,
    has_failed: bool,
    /// Its descriptor was asked for, and has to follow.
    is_polled: bool,
}

/// Bytes of a stream in the order in which they were written: a block, or a chunk of one that was
/// compressed. Its memory counts as lent until it is dropped, on whatever thread.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// # let mut writer = store.write("words", options())?;
/// # writer.write_record(b"plan")?;
/// # writer.write_record(b"run")?;
/// # writer.finish()?;
/// let block = store.read("words", options())?.next_block()?.unwrap();
/// assert_eq!((&*block, block.list().len() % 4), (&b"planrun"[..], 0));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct StreamBlock {
    memory: Arc<Memory>,
    data: Range<usize>,
    /// Where ends of records are listed.
    list: Range<usize>,
}

enum Memory {
    Lent(Lent),
    Own(
        Shared,
        #[expect(dead_code, reason = "held for its Drop")] Reservation,
    ),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Lent(lent) => lent,
            Memory::Own(bytes, _) => bytes,
        }
    }
}

impl Deref for StreamBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.data.clone()]
    }
}

impl StreamBlock {
    /// Where records end in it, as numbers of 4 bytes, little-endian; the first is where a record
    /// begins, after the end of one that goes on from the block before.
    #[must_use]
    pub fn list(&self) -> &[u8] {
        &self.memory[self.list.clone()]
    }

    fn end(&self, at: usize) -> usize {
        let at = self.list.start + 4 * at;
        u32::from_le_bytes(self.memory[at..at + 4].try_into().expect("four bytes")) as usize
    }

    fn ends(&self) -> usize {
        self.list.len() / 4
    }

    /// Whether the ends are in order and inside.
    fn is_in_order(&self) -> bool {
        let mut last = 0;
        self.list().chunks_exact(4).all(|end| {
            let end = u32::from_le_bytes(end.try_into().expect("four bytes")) as usize;
            std::mem::replace(&mut last, end) <= end && end <= self.data.len()
        })
    }
}

/// Records that lie one after another in memory: those of a block that begin and end in it, or one
/// that was put together.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// # let mut writer = store.write("words", options())?;
/// # writer.write_record(b"plan")?;
/// # writer.write_record(b"run")?;
/// # writer.finish()?;
/// let records = store.read("words", options())?.next_records()?.unwrap();
/// assert!(records.len() == 2 && !records.is_empty());
/// assert_eq!((records.get(0), records.get(1)), (&b"plan"[..], &b"run"[..]));
/// let ends = records.offsets().chunks(4).map(|end| u32::from_le_bytes(end.try_into().unwrap()) as usize);
/// let ends: Vec<usize> = ends.collect();
/// assert_eq!(&records.bytes()[ends[1]..ends[2]], b"run");
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Records {
    block: StreamBlock,
}

impl Records {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.ends().saturating_sub(1)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record with this number, from 0.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn get(&self, at: usize) -> &[u8] {
        &self.block[self.block.end(at)..self.block.end(at + 1)]
    }

    /// The bytes that hold them, and maybe others before and after them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.block
    }

    /// Where in [`bytes`](Records::bytes) they begin and end, one number more than there are
    /// records: 4 bytes each, little-endian, at an address that is a multiple of 4.
    #[must_use]
    pub fn offsets(&self) -> &[u8] {
        self.block.list()
    }
}

/// The beginning of a record.
struct Begun {
    bytes: Buf,
    from: usize,
    to: usize,
    reservation: Reservation,
}

impl Begun {
    /// Adds bytes. What was at an address modulo 64 when it was written lies at such a one.
    fn add(self, engine: &Engine, bytes: &[u8]) -> Result<Begun> {
        if self.to - self.from + bytes.len() > LONGEST_RECORD {
            return Err(Error::value(
                "a record of 4 GiB or more can only be read as bytes",
            ));
        }
        let needed = self.to + bytes.len() + 4 + 8;
        let mut begun = match needed <= self.bytes.len() {
            true => self,
            false => {
                let mut grown = Begun::empty(engine, needed.max(2 * self.bytes.len()), self.from)?;
                grown.bytes[self.from..self.to].copy_from_slice(&self.bytes[self.from..self.to]);
                Begun {
                    to: self.to,
                    ..grown
                }
            }
        };
        begun.bytes[begun.to..begun.to + bytes.len()].copy_from_slice(bytes);
        begun.to += bytes.len();
        Ok(begun)
    }

    fn empty(engine: &Engine, len: usize, from: usize) -> Result<Begun> {
        let len = (len + from).next_multiple_of(4096);
        let (bytes, reservation) = own(engine, len)?;
        Ok(Begun {
            bytes,
            from,
            to: from,
            reservation,
        })
    }

    fn into_records(mut self) -> Records {
        let (from, to, at) = (self.from, self.to, list_at(self.to));
        let ends = [0, (to - from) as u32].map(u32::to_le_bytes).concat();
        self.bytes[at..at + 8].copy_from_slice(&ends);
        let memory = Arc::new(Memory::Own(self.bytes.freeze(), self.reservation));
        Records {
            block: StreamBlock {
                memory,
                data: from..to,
                list: at..at + 8,
            },
        }
    }
}

/// Memory of one's own within the budget.
fn own(engine: &Engine, len: usize) -> Result<(Buf, Reservation)> {
    let reservation = engine.reserve("a record or chunk of a stream", len as u64)?;
    Ok((
        Buf::anonymous(len).map_err(|source| Error::NoMemory {
            bytes: len as u64,
            source,
        })?,
        reservation,
    ))
}

impl StreamReader {
    pub(super) fn begin(
        session: &Session,
        stream: Stream,
        options: StreamOptions,
    ) -> Result<StreamReader> {
        let block_bytes = stream.block_bytes();
        let Some(About {
            compression,
            bytes,
            records,
            about,
        }) = About::decode(stream.about())
        else {
            let (object, reason) = (
                stream.name().to_owned(),
                "what the catalog says of the stream is not understood".into(),
            );
            return Err(Error::Store(outcore_store::Error::Corrupt {
                object,
                offset: 0,
                reason,
            }));
        };
        let extent = Extent::new(stream.name(), session.wrap_device(stream.device()));
        let parts: Vec<(Extent, Range<u64>)> = stream
            .ranges()
            .iter()
            .map(|range| (extent.clone(), range.clone()))
            .collect();
        let ahead = options.ahead(block_bytes);
        let blocks =
            session
                .engine()
                .read_streams_with(&parts, ahead, options.supply(READ_AT_ONCE))?;
        Ok(StreamReader {
            engine: session.engine().clone(),
            places: blocks_of(stream.ranges(), block_bytes).collect(),
            stream,
            blocks,
            number: 0,
            deferred: None,
            compression,
            bytes,
            records,
            about,
            chunks: None,
            begun: None,
            waiting: None,
            current: None,
            over: None,
            has_failed: false,
            is_polled: false,
        })
    }

    /// From now on no other reader can open it.
    pub(super) fn take(&mut self) -> Result<()> {
        Ok(self.stream.take()?)
    }

    /// How errors call it: its full path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.stream.name()
    }

    /// Bytes of the whole stream.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records of the whole stream; 0 where it is bytes alone.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// What its writer said of it.
    #[must_use]
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// Waits for at most `timeout`; true when the next call would not wait for the device.
    pub fn ready_within(&self, timeout: Duration) -> bool {
        self.chunks.is_some() || self.deferred.is_some() || self.blocks.ready_within(timeout)
    }

    /// What was brought from the device already.
    fn has_rest(&self) -> bool {
        let records = self.waiting.is_some() || self.current.is_some();
        records || self.chunks.is_some() || self.deferred.is_some()
    }

    /// Readable while the next call would not wait for the device, for poll and event loops; `None`
    /// when the system gave no descriptor. It is closed with the stream, and not to be read from.
    pub fn fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.is_polled = true;
        self.blocks.has_rest(self.has_rest());
        self.blocks.fd()
    }

    /// The next bytes, as many as lie together in memory; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Store`] for a damaged block, [`Error::Device`]; [`Error::Lent`] when the caller
    /// keeps all the memory that the stream may have.
    pub fn next_block(&mut self) -> Result<Option<StreamBlock>> {
        self.unless_failed(StreamReader::take_block)
    }

    /// What was lost with an error is not passed over: after it there is nothing more.
    fn unless_failed<T>(&mut self, act: impl FnOnce(&mut StreamReader) -> Result<T>) -> Result<T> {
        if self.has_failed {
            return Err(Error::Failed {
                what: format!("{}: an earlier read of the stream has failed", self.name()),
            });
        }
        let done = act(self);
        if self.is_polled {
            self.blocks.has_rest(self.has_rest());
        }
        self.has_failed = matches!(&done, Err(error) if !matches!(error, Error::Lent { .. }));
        done
    }

    fn take_block(&mut self) -> Result<Option<StreamBlock>> {
        if self.compression == Compression::None {
            let Some((lent, data_bytes, list)) = self.lent()? else {
                return Ok(None);
            };
            return self
                .in_order(StreamBlock {
                    memory: Arc::new(Memory::Lent(lent)),
                    data: 0..data_bytes,
                    list,
                })
                .map(Some);
        }
        loop {
            if let Some(chunk) = self.chunk()? {
                return self.in_order(chunk).map(Some);
            }
            let Some((lent, data_bytes, _)) = self.lent()? else {
                return Ok(None);
            };
            self.chunks = Some((lent, 0..data_bytes));
        }
    }

    /// The next block of the chain, checked: its memory, bytes of data, and where the list is.
    fn lent(&mut self) -> Result<Option<(Lent, usize, Range<usize>)>> {
        self.over
            .take()
            .into_iter()
            .for_each(|place| self.stream.let_go(place));
        let (lent, trailer) = match self.deferred.take() {
            Some(deferred) => deferred.get().unwrap_or_else(Unchecked::check),
            None => match self.blocks.next().transpose()? {
                Some(lent) => self.unchecked(lent).check(),
                None => return Ok(None),
            },
        };
        let trailer = trailer?;
        self.over = self
            .stream
            .is_taken()
            .then(|| self.places[self.number].clone());
        self.number += 1;
        if lent.len() >= CHECKED_EARLY_BYTES {
            self.deferred = self
                .blocks
                .next_if_ready()
                .map(|next| self.engine.defer(self.unchecked(next), Unchecked::check));
        }
        let list = trailer.list(lent.len());
        Ok(Some((lent, trailer.data_bytes as usize, list)))
    }

    /// The next block, and what it should be.
    fn unchecked(&self, lent: Lent) -> Unchecked {
        let next = self.places.get(self.number + 1).map(|next| next.start);
        Unchecked {
            expected: self
                .stream
                .expected(self.number as u64, &self.places[self.number], next),
            lent,
        }
    }

    /// The next chunk of the block at hand.
    fn chunk(&mut self) -> Result<Option<StreamBlock>> {
        let Some((lent, left)) = self.chunks.as_mut().filter(|(_, left)| !left.is_empty()) else {
            self.chunks = None;
            return Ok(None);
        };
        let bytes = &lent[left.clone()];
        let wrong = |reason: String| {
            let object = self.stream.name().to_owned();
            Error::Store(outcore_store::Error::Corrupt {
                object,
                offset: lent.offset() + left.start as u64,
                reason,
            })
        };
        let head = Head::of(bytes).ok_or_else(|| wrong("not a chunk".into()))?;
        let (mut raw, reservation) = own(&self.engine, CHUNK_BYTES)?;
        head.unpack(self.compression, bytes, &mut raw)
            .map_err(wrong)?;
        left.start += head.end();
        let (data, list) = (0..head.data_bytes, list_at(head.data_bytes)..head.whole());
        Ok(Some(StreamBlock {
            memory: Arc::new(Memory::Own(raw.freeze(), reservation)),
            data,
            list,
        }))
    }

    fn in_order(&self, block: StreamBlock) -> Result<StreamBlock> {
        match block.is_in_order() {
            true => Ok(block),
            false => Err(self.corrupt("ends of records are not in order")),
        }
    }

    fn corrupt(&self, reason: &str) -> Error {
        let (object, reason) = (self.stream.name().to_owned(), reason.to_owned());
        Error::Store(outcore_store::Error::Corrupt {
            object,
            offset: self.places[self.number - 1].start,
            reason,
        })
    }

    /// The next records, as many as lie together in memory, at least one; `None` at the end.
    ///
    /// # Errors
    /// As [`next_block`](StreamReader::next_block); [`Error::OverBudget`] for a record over several
    /// blocks that there is no memory for; [`Error::Value`] for a stream that is bytes alone.
    pub fn next_records(&mut self) -> Result<Option<Records>> {
        self.unless_failed(StreamReader::take_records)
    }

    fn take_records(&mut self) -> Result<Option<Records>> {
        if let Some((records, at)) = self.current.take() {
            // What is left, where the caller took some of them one by one.
            let StreamBlock { memory, data, list } = records.block;
            let block = StreamBlock {
                memory,
                data,
                list: list.start + 4 * at..list.end,
            };
            if block.ends() > 1 {
                return Ok(Some(Records { block }));
            }
        }
        if let Some(records) = self.waiting.take() {
            return Ok(Some(records));
        }
        if self.records == 0 && self.bytes > 0 {
            return Err(Error::value(format!(
                "{}: the stream has bytes and no records",
                self.name()
            )));
        }
        loop {
            let Some(mut block) = self.take_block()? else {
                return if self.begun.is_some() {
                    Err(self.corrupt("the last record has no end"))
                } else {
                    Ok(None)
                };
            };
            if block.ends() == 0 {
                if !block.is_empty() {
                    self.begin_or_add(&block, 0)?;
                }
                continue;
            }
            let tail = block.end(block.ends() - 1);
            let finished = match self.begun.take() {
                Some(begun) => Some(
                    begun
                        .add(&self.engine, &block[..block.end(0)])?
                        .into_records(),
                ),
                None if block.end(0) > 0 => return Err(self.corrupt("a record has no beginning")),
                None => None,
            };
            if tail < block.len() {
                self.begin_or_add(&block, tail)?;
            }
            block.data.end = block.data.start + tail;
            let records = Records { block };
            match finished {
                Some(first) => {
                    self.waiting = (!records.is_empty()).then_some(records);
                    return Ok(Some(first));
                }
                None if records.is_empty() => continue,
                None => return Ok(Some(records)),
            }
        }
    }

    fn begin_or_add(&mut self, block: &StreamBlock, from: usize) -> Result<()> {
        let bytes = &block[from..];
        let begun = match self.begun.take() {
            Some(begun) => begun,
            None => Begun::empty(
                &self.engine,
                bytes.len() + 12,
                (block.data.start + from) % 64,
            )?,
        };
        self.begun = Some(begun.add(&self.engine, bytes)?);
        Ok(())
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// As [`next_records`](StreamReader::next_records).
    pub fn next_record(&mut self) -> Result<Option<&[u8]>> {
        if self
            .current
            .as_ref()
            .is_none_or(|(records, at)| *at >= records.len())
        {
            self.current = None;
            let Some(records) = self.next_records()? else {
                return Ok(None);
            };
            self.current = Some((records, 0));
        }
        let (records, at) = self.current.as_mut().expect("filled above");
        *at += 1;
        Ok(Some(records.get(*at - 1)))
    }
}
