//! Writing a stream: data and ends of records into the memory of blocks, blocks into a chain.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use outcore_core::{Error, Result, Session};
use outcore_engine::{Extent, Reservation, WriteStream};
use outcore_store::{Formatted, NewStream, TRAILER_BYTES, Trailer};

use super::packed::{self, Compression, Packer};
use super::{About, StreamOptions};

/// Data is summed in steps of this many bytes, while it is still in the caches of the CPU.
const SUM_BYTES: usize = 64 << 10;

/// A stream that is being written. Dropped without [`finish`](StreamWriter::finish), it never was.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use std::time::Duration;
///
/// let mut writer = store.write("words", options())?;
/// writer.set_about(b"English");
/// writer.write_record(b"plan")?;
/// if !writer.put_record(b"run")? {
///     writer.write_record(b"run")?;
/// }
/// writer.write(b"write ")?;
/// writer.write(b"back")?;
/// writer.end_record()?;
/// while writer.write_records(&mut [&b"read"[..], b"sum"].into_iter())? {}
/// while !writer.ready_within(Duration::from_millis(50)) {}
/// println!("{}, polled by {:?}", writer.name(), writer.fd());
/// assert_eq!((writer.bytes(), writer.records()), (24, 5));
/// writer.finish()?;
/// assert_eq!(store.info("words")?.about, b"English");
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct StreamWriter {
    chain: Chain,
    /// Where data is compressed, it is written here first.
    packer: Option<(Packer, Reservation)>,
    piece: UnwrittenBlock,
    compression: Compression,
    bytes: u64,
    records: u64,
    about: Vec<u8>,
}

/// What is in memory of a stream that is being written: a block, or a chunk that is to be
/// compressed.
#[derive(Default)]
struct UnwrittenBlock {
    /// Bytes that it has room for, list included; 0 before it has begun.
    capacity: usize,
    data_bytes: usize,
    /// Where records end; where the first begins, if it does in this piece.
    ends: Vec<u32>,
    /// A record has bytes in earlier pieces.
    goes_on: bool,
    sum: u32,
    summed: usize,
}

impl UnwrittenBlock {
    /// Whether a record has bytes and no end.
    fn is_open(&self) -> bool {
        self.ends
            .last()
            .map_or(self.data_bytes > 0 || self.goes_on, |&end| {
                end as usize != self.data_bytes
            })
    }

    /// Bytes that are left for data and list.
    fn room(&self) -> usize {
        self.capacity
            .saturating_sub(self.data_bytes + 4 * self.ends.len())
    }

    /// Records that end in it.
    fn records(&self) -> usize {
        self.ends.len() - usize::from(!self.ends.is_empty() && !self.goes_on)
    }

    /// Bytes that the end of a record takes in the list.
    fn end_bytes(&self) -> usize {
        if self.ends.is_empty() && !self.goes_on {
            8
        } else {
            4
        }
    }

    fn end_record(&mut self) {
        if self.ends.is_empty() && !self.goes_on {
            self.ends.push(0);
        }
        self.ends.push(self.data_bytes as u32);
    }

    fn next(&mut self) {
        let goes_on = self.is_open();
        self.ends.clear();
        *self = UnwrittenBlock {
            goes_on,
            ends: std::mem::take(&mut self.ends),
            ..UnwrittenBlock::default()
        };
    }
}

impl StreamWriter {
    pub(super) fn begin(
        session: &Session,
        store: &Formatted,
        name: &str,
        options: StreamOptions,
    ) -> Result<StreamWriter> {
        let compression = options.compression;
        let packer = match compression {
            Compression::None => None,
            Compression::Lz4 | Compression::Zstd => {
                let most = options.block_bytes as usize - TRAILER_BYTES - packed::HEAD_BYTES;
                let chunk_bytes = packed::CHUNK_BYTES.min(most / 8 * 8);
                let reservation = session
                    .engine()
                    .reserve("compressing a stream", Packer::bytes(chunk_bytes) as u64)?;
                Some((Packer::new(compression, chunk_bytes)?, reservation))
            }
        };
        let chain = Chain::begin(session, store, name, options)?;
        Ok(StreamWriter {
            chain,
            packer,
            piece: UnwrittenBlock::default(),
            compression,
            bytes: 0,
            records: 0,
            about: Vec::new(),
        })
    }

    /// How errors call it: its full path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.chain.new.name()
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records ended so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Where the next byte lies in the memory that readers are lent, modulo 4096.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn alignment(&mut self) -> Result<usize> {
        Ok(if self.room()? == 0 {
            0
        } else {
            self.piece.data_bytes % 4096
        })
    }

    /// What [`info`](super::StreamStore::info) is to say of it.
    pub fn set_about(&mut self, about: &[u8]) {
        self.about = about.to_vec();
    }

    /// Waits for at most `timeout`; true when the next call would not wait for the device.
    pub fn ready_within(&self, timeout: Duration) -> bool {
        self.chain.stream.ready_within(timeout)
    }

    /// Readable while what [`ready_within`](StreamWriter::ready_within) tells is true, for poll and
    /// event loops; `None` when the system gave no descriptor. It is closed with the stream, and
    /// not to be read from.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.chain.stream.fd()
    }

    /// Memory for the next bytes, at least one: the block's own, or, of a compressed stream, the
    /// chunk's. What of it was filled is said by [`advance`](StreamWriter::advance).
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let mut writer = store.write("bytes", options())?;
    /// writer.buffer()?[0] = 7;
    /// writer.advance(1)?;
    /// writer.buffer_of(8)?[..8].copy_from_slice(&9u64.to_le_bytes());
    /// writer.advance(8)?;
    /// writer.finish()?;
    /// assert_eq!(store.info("bytes")?.bytes, 9);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] when the store is full; the first error of the device, at this and every
    /// later call.
    pub fn buffer(&mut self) -> Result<&mut [u8]> {
        self.buffer_of(1)
    }

    /// The same, of at least `least` bytes in one piece: in the next block, where the rest of this
    /// one is shorter.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer); [`Error::Value`] for more than a block has.
    pub fn buffer_of(&mut self, least: usize) -> Result<&mut [u8]> {
        let most = self.most();
        if least > most {
            return Err(Error::value(format!(
                "{}: a block has room for {most} bytes, not for {least}",
                self.name()
            )));
        }
        while self.room()? < least {
            self.next_piece()?;
        }
        let (from, room) = (self.piece.data_bytes, self.room()?);
        Ok(&mut self.memory()?[from..from + room])
    }

    /// Counts the first `len` bytes of [`buffer`](StreamWriter::buffer) as written.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    ///
    /// # Panics
    /// When the buffer is shorter.
    pub fn advance(&mut self, len: usize) -> Result<()> {
        let room = if len == 0 { 0 } else { self.room()? };
        assert!(len <= room, "{len} bytes of a buffer of {room}");
        self.piece.data_bytes += len;
        self.bytes += len as u64;
        if self.piece.data_bytes >= self.piece.summed + SUM_BYTES {
            self.sum()?;
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_units(bytes, 1)
    }

    /// Copies bytes in, of which each `unit` lies in one block.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let mut writer = store.write("pairs", options())?;
    /// writer.keep_together(16)?;
    /// assert_eq!(writer.alignment()? % 8, 0);
    /// writer.write_units(&[1; 16], 8)?;
    /// let written = writer.write_some(&[2; 800], 8)?;
    /// assert!(written > 0 && written % 8 == 0);
    /// writer.end_block()?;
    /// writer.write_units(&[2; 800][written..], 8)?;
    /// assert!(writer.finish_until(&|| false).is_ok());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`buffer_of`](StreamWriter::buffer_of); [`Error::Value`] for bytes that are no multiple
    /// of `unit`.
    pub fn write_units(&mut self, mut bytes: &[u8], unit: usize) -> Result<()> {
        while !bytes.is_empty() {
            let written = self.write_some(bytes, unit)?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Copies as many bytes in as go into one block, of which each `unit` lies in one block, and
    /// says how many. Waits for the device only where [`ready_within`](StreamWriter::ready_within)
    /// says so.
    ///
    /// # Errors
    /// As [`write_units`](StreamWriter::write_units).
    pub fn write_some(&mut self, bytes: &[u8], unit: usize) -> Result<usize> {
        let unit = unit.max(1);
        if !bytes.len().is_multiple_of(unit) {
            return Err(Error::value(format!(
                "{} bytes are no multiple of {unit}",
                bytes.len()
            )));
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = self.buffer_of(unit)?;
        let len = bytes.len().min(room.len() / unit * unit);
        let mut from = 0;
        // In steps, so that what is copied is summed at once.
        while from < len {
            let step = SUM_BYTES.min(len - from);
            let at = self.piece.data_bytes;
            self.memory()?[at..at + step].copy_from_slice(&bytes[from..from + step]);
            self.advance(step)?;
            from += step;
        }
        Ok(len)
    }

    /// The bytes since the last record are one. Mixed with bytes that are none, those before the
    /// first record count to it.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn end_record(&mut self) -> Result<()> {
        while self.room()? < self.piece.end_bytes() {
            self.next_piece()?;
        }
        self.piece.end_record();
        self.records += 1;
        Ok(())
    }

    /// A record.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn write_record(&mut self, record: &[u8]) -> Result<()> {
        let mut records = std::iter::once(record);
        while self.write_records(&mut records)? {}
        Ok(())
    }

    /// A record, if there is room for it at once: no wait, whatever the device does. False, and
    /// nothing happens, where there is none.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn put_record(&mut self, record: &[u8]) -> Result<bool> {
        let fits = self.piece.room() >= record.len() + self.piece.end_bytes();
        if fits {
            self.write_records(&mut std::iter::once(record))?;
        }
        Ok(fits)
    }

    /// Records, as many as go into one block; true when there are more. Waits for the device only
    /// where [`ready_within`](StreamWriter::ready_within) says so.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn write_records<'a>(
        &mut self,
        records: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool> {
        self.room()?;
        let (piece, is_summed) = (&mut self.piece, self.packer.is_none());
        let memory = match &mut self.packer {
            Some((packer, _)) => &mut *packer.raw,
            None => self.chain.block()?,
        };
        let (before, had) = (piece.data_bytes, piece.records());
        let mut unfit = None;
        for record in records {
            let (at, len) = (piece.data_bytes, record.len());
            if piece.room() < len + piece.end_bytes() {
                unfit = Some(record);
                break;
            }
            memory[at..at + len].copy_from_slice(record);
            piece.data_bytes += len;
            piece.end_record();
            if is_summed && piece.data_bytes >= piece.summed + SUM_BYTES {
                piece.sum = Trailer::sum(piece.sum, &memory[piece.summed..piece.data_bytes]);
                piece.summed = piece.data_bytes;
            }
        }
        self.bytes += (piece.data_bytes - before) as u64;
        self.records += (piece.records() - had) as u64;
        if let Some(record) = unfit {
            self.write(record)?;
            self.end_record()?;
        }
        Ok(unfit.is_some())
    }

    /// Begins a block if the next `len` bytes lie together in it, and not in this one, of which
    /// little is left: an eighth at most.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn keep_together(&mut self, len: usize) -> Result<()> {
        let (room, most) = (self.room()?, self.most());
        if room < len && len <= most && room <= most / 8 {
            self.next_piece()
        } else {
            Ok(())
        }
    }

    /// Ends the block, so that what comes next begins one.
    ///
    /// # Errors
    /// As [`buffer`](StreamWriter::buffer).
    pub fn end_block(&mut self) -> Result<()> {
        if self.piece.data_bytes == 0 {
            Ok(())
        } else {
            self.next_piece()
        }
    }

    /// Ends the last record and the stream, which is whole and durable when this returns.
    ///
    /// # Errors
    /// The first one of the device or store; then there is no stream.
    pub fn finish(self) -> Result<()> {
        self.finish_until(&|| false)
    }

    /// As [`finish`](StreamWriter::finish), unless `stop` says so before all of it is durable.
    ///
    /// # Errors
    /// As [`finish`](StreamWriter::finish); [`Error::Cancelled`], and then there is no stream.
    pub fn finish_until(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        if self.records > 0 && self.piece.is_open() {
            self.end_record()?;
        }
        if let Some((packer, _)) = &mut self.packer
            && (self.piece.data_bytes > 0 || !self.piece.ends.is_empty())
        {
            self.chain
                .append(packer.pack(self.piece.data_bytes, &self.piece.ends)?)?;
        }
        if self.packer.is_none() {
            self.sum()?;
            self.chain.packed = std::mem::take(&mut self.piece);
        } else {
            self.chain.sum()?;
        }
        let StreamWriter {
            chain,
            compression,
            bytes,
            records,
            about,
            ..
        } = self;
        chain.finish(
            &About {
                compression,
                bytes,
                records,
                about,
            }
            .encode(),
            stop,
        )
    }

    /// Bytes that the piece has room for.
    fn room(&mut self) -> Result<usize> {
        if self.piece.capacity == 0 {
            self.piece.capacity = match &self.packer {
                Some((packer, _)) => packer.room(),
                None => self.chain.block()?.len() - TRAILER_BYTES,
            };
        }
        Ok(self.piece.room())
    }

    /// Bytes that a whole piece has room for.
    fn most(&self) -> usize {
        self.packer.as_ref().map_or(
            self.chain.block_bytes as usize - TRAILER_BYTES,
            |(packer, _)| packer.room(),
        )
    }

    fn memory(&mut self) -> Result<&mut [u8]> {
        match &mut self.packer {
            Some((packer, _)) => Ok(&mut packer.raw),
            None => self.chain.block(),
        }
    }

    fn sum(&mut self) -> Result<()> {
        let (from, to) = (self.piece.summed, self.piece.data_bytes);
        if self.packer.is_none() && from < to {
            self.piece.sum = Trailer::sum(self.piece.sum, &self.chain.block()?[from..to]);
        }
        self.piece.summed = to;
        Ok(())
    }

    fn next_piece(&mut self) -> Result<()> {
        match &mut self.packer {
            Some((packer, _)) => self
                .chain
                .append(packer.pack(self.piece.data_bytes, &self.piece.ends)?)?,
            None => {
                self.sum()?;
                let UnwrittenBlock {
                    data_bytes,
                    sum,
                    ends,
                    ..
                } = &self.piece;
                self.chain.seal(*data_bytes, ends, *sum)?;
            }
        }
        self.piece.next();
        Ok(())
    }
}

/// Blocks that lead to each other.
struct Chain {
    new: NewStream,
    stream: WriteStream,
    /// What is left of the last space that was taken, the block that is being filled included.
    space: Range<u64>,
    block_bytes: u64,
    number: u64,
    /// What is in the block, where chunks are put there.
    packed: UnwrittenBlock,
}

impl Chain {
    fn begin(
        session: &Session,
        store: &Formatted,
        name: &str,
        options: StreamOptions,
    ) -> Result<Chain> {
        let block_bytes = options.block_bytes;
        let new = store.create_stream(name, block_bytes, options.replace)?;
        let extent = Extent::new(new.name(), session.wrap_device(new.device()));
        let ahead = options.ahead(block_bytes);
        let stream = session
            .engine()
            .write_stream_with(&extent, 0, ahead, options.supply(1))?;
        Ok(Chain {
            new,
            stream,
            space: 0..0,
            block_bytes: block_bytes.into(),
            number: 0,
            packed: UnwrittenBlock::default(),
        })
    }

    /// Bytes of the block that is being filled.
    fn len(&self) -> usize {
        self.block_bytes.min(self.space.end - self.space.start) as usize
    }

    /// Its memory.
    fn block(&mut self) -> Result<&mut [u8]> {
        if self.space.is_empty() {
            self.space = self.new.extend()?;
            self.stream.go_on_at(self.space.start)?;
        }
        let len = self.len();
        Ok(&mut self.stream.buffer()?[..len])
    }

    /// Puts bytes into the block, or into the next one that has room for all of them.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        while self.block()?.len() - TRAILER_BYTES < self.packed.data_bytes + bytes.len() {
            self.sum()?;
            self.seal(self.packed.data_bytes, &[], self.packed.sum)?;
            self.packed = UnwrittenBlock::default();
        }
        let at = self.packed.data_bytes;
        self.block()?[at..at + bytes.len()].copy_from_slice(bytes);
        self.packed.data_bytes += bytes.len();
        self.sum()
    }

    fn sum(&mut self) -> Result<()> {
        let UnwrittenBlock {
            summed,
            data_bytes,
            sum,
            ..
        } = self.packed;
        if summed < data_bytes {
            self.packed.sum = Trailer::sum(sum, &self.block()?[summed..data_bytes]);
            self.packed.summed = data_bytes;
        }
        Ok(())
    }

    /// Sends the block, which another one is to follow.
    fn seal(&mut self, data_bytes: usize, ends: &[u32], sum: u32) -> Result<()> {
        let after = self.space.start + self.len() as u64;
        let next = if after < self.space.end {
            after..self.space.end
        } else {
            self.new.extend()?
        };
        self.send(self.len(), Some(next.start), data_bytes, ends, sum)?;
        self.stream.go_on_at(next.start)?;
        self.space = next;
        Ok(())
    }

    fn send(
        &mut self,
        len: usize,
        next: Option<u64>,
        data_bytes: usize,
        ends: &[u32],
        sum: u32,
    ) -> Result<()> {
        let (stream, mark) = self.new.marks();
        let (number, data_bytes, listed) = (self.number, data_bytes as u32, ends.len() as u32);
        let trailer = Trailer {
            stream,
            number,
            data_bytes,
            ends: listed,
            next,
            mark,
        };
        trailer.seal(&mut self.block()?[..len], ends, sum);
        self.number += 1;
        Ok(self.stream.advance(len)?)
    }

    /// Sends the last block and ends the stream. The block's length is what it needs.
    fn finish(mut self, about: &[u8], stop: &dyn Fn() -> bool) -> Result<()> {
        let mut end = self.space.start;
        if !self.space.is_empty() {
            let UnwrittenBlock {
                data_bytes,
                ends,
                sum,
                ..
            } = std::mem::take(&mut self.packed);
            let len = (data_bytes + 4 * ends.len() + TRAILER_BYTES).next_multiple_of(4096);
            self.send(len, None, data_bytes, &ends, sum)?;
            end += len as u64;
        }
        let Chain { new, stream, .. } = self;
        stream.finish()?;
        if stop() {
            return Err(Error::Cancelled);
        }
        Ok(new.commit(end, about)?)
    }
}
