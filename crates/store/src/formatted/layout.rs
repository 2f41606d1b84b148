//! Layout of a formatted device, byte by byte; `docs/format.md` draws it.
//!
//! Pure: converts bytes to values and back. Numbers are little-endian; positions and lengths count
//! blocks of 4096 bytes.

use std::ops::Range;

use bytes::{Buf, BufMut};
use crc_fast::{CrcAlgorithm, Digest};

use super::space::Space;
use crate::folder::check_name;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// Checksums in a block of them.
pub(super) const SUMS: u64 = (BLOCK / 4 - 1) as u64;
/// Allowed lengths of the blocks of a stream.
pub const STREAM_BLOCK_BYTES: Range<u32> = BLOCK as u32..(1 << 30) + 1;
/// Number of superblocks at the start of the device. They are equal, except after a crash between
/// the two writes.
pub(super) const SUPERBLOCKS: u64 = 2;
pub(super) const VERSION: u32 = 1;
/// The version in a superblock while the device is being formatted.
const BEGUN: u32 = 0;
/// Added to the state of a stream.
const STREAM: u8 = 16;
const MAGIC: &[u8; 8] = b"OUTCORE\n";
/// A superblock is one sector of any device, which is written atomically.
const SUPERBLOCK_BYTES: usize = 512;
/// Header of a block of the catalog.
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = BLOCK - HEADER_BYTES;

/// Bytes of the record of an object, without its name, metadata and ranges.
pub(super) const ENTRY_BYTES: usize = 1 + 8 + 8 + 8 + 1 + 2 + 4 + 4 + 4;
pub(super) const RUN_BYTES: usize = 16;

/// CRC-32C (Castagnoli), as in iSCSI.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    checksum_on(0, bytes)
}

/// The checksum of bytes that follow others with the checksum `before`.
#[must_use]
pub fn checksum_on(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

/// A contiguous range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) start: u64,
    pub(super) blocks: u64,
}

impl BlockRange {
    pub(super) fn end(self) -> u64 {
        self.start + self.blocks
    }
}

/// Why bytes are invalid.
pub(super) type Wrong = String;

/// The superblock: positions of everything else.
///
/// ```text
///     0   8  "OUTCORE\n"
///     8   4  version
///    12   4  bytes of a block: 4096
///    16  16  identity, drawn when the device was formatted
///    32   8  generation: of two superblocks, the one with the higher counts
///    40   8  blocks of the device that are used
///    48  16  catalog: first block, blocks
///    64  16  room for the next catalog: first block, blocks
///    80   8  id of the log: 4 drawn when it was begun, 4 of the generation
///    88 420  zero
///   508   4  CRC-32C of the bytes before
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) identity: [u8; 16],
    pub(super) generation: u64,
    pub(super) blocks: u64,
    pub(super) catalog: BlockRange,
    pub(super) spare: BlockRange,
    pub(super) log_id: u64,
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        self.encode_as(VERSION)
    }

    /// The block that replaces it while the device is being formatted: neither the old superblock
    /// nor the new one.
    pub(super) fn encode_begun(&self) -> Vec<u8> {
        self.encode_as(BEGUN)
    }

    fn encode_as(&self, version: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        bytes.put_slice(MAGIC);
        bytes.put_u32_le(version);
        bytes.put_u32_le(BLOCK as u32);
        bytes.put_slice(&self.identity);
        bytes.put_u64_le(self.generation);
        bytes.put_u64_le(self.blocks);
        put_range(&mut bytes, self.catalog);
        put_range(&mut bytes, self.spare);
        bytes.put_u64_le(self.log_id);
        bytes.resize(SUPERBLOCK_BYTES - 4, 0);
        bytes.put_u32_le(checksum(&bytes));
        bytes.resize(BLOCK, 0);
        bytes
    }

    /// Whether a block is the superblock of an unknown version of the format.
    pub(super) fn is_of_another_version(block: &[u8]) -> bool {
        version_of(block).is_some_and(|version| ![VERSION, BEGUN].contains(&version))
    }

    /// Whether a block says that the device is being formatted.
    pub(super) fn is_begun(block: &[u8]) -> bool {
        version_of(block) == Some(BEGUN)
    }

    /// The generation of a superblock, or of the block that replaces it during formatting.
    pub(super) fn generation_of(block: &[u8]) -> Option<u64> {
        let is_known = version_of(block).is_some_and(|version| [VERSION, BEGUN].contains(&version));
        is_known.then(|| (&block[32..]).get_u64_le())
    }

    pub(super) fn decode(block: &[u8]) -> Result<Superblock, Wrong> {
        let (covered, sum) = block[..SUPERBLOCK_BYTES].split_at(SUPERBLOCK_BYTES - 4);
        let mut bytes = covered;
        if bytes[..8] != MAGIC[..] {
            return Err("it does not begin with the signature of a store".into());
        }
        if checksum(covered).to_le_bytes() != sum {
            return Err("the checksum of its superblock is wrong".into());
        }
        bytes.advance(8);
        let (version, block_bytes) = (bytes.get_u32_le(), bytes.get_u32_le());
        if version == BEGUN {
            return Err("formatting it was interrupted; format it again".into());
        }
        if version != VERSION || block_bytes != BLOCK as u32 {
            return Err(format!(
                "it has version {version} of the format with blocks of {block_bytes} bytes; this program reads version {VERSION} with blocks of {BLOCK}"
            ));
        }
        let mut identity = [0; 16];
        bytes.copy_to_slice(&mut identity);
        let (generation, blocks) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (catalog, spare) = (get_range(&mut bytes)?, get_range(&mut bytes)?);
        Ok(Superblock {
            identity,
            generation,
            blocks,
            catalog,
            spare,
            log_id: bytes.get_u64_le(),
        })
    }
}

impl Superblock {
    /// The blocks available to objects on a device of `device_bytes` bytes.
    pub(super) fn space(&self, device_bytes: u64) -> Result<Space, Wrong> {
        if self.blocks > device_bytes / BLOCK as u64 {
            let formatted = self.blocks.saturating_mul(BLOCK as u64);
            return Err(format!(
                "it is truncated: {formatted} bytes were formatted, {device_bytes} are left"
            ));
        }
        let mut space = Space::new(BlockRange {
            start: SUPERBLOCKS,
            blocks: self.blocks.saturating_sub(SUPERBLOCKS),
        });
        match space.claim(self.catalog) && space.claim(self.spare) {
            true => Ok(space),
            false => Err("the superblock places the catalog outside the device".into()),
        }
    }
}

/// The version of a superblock, if the block is one.
fn version_of(block: &[u8]) -> Option<u32> {
    let (covered, sum) = block[..SUPERBLOCK_BYTES].split_at(SUPERBLOCK_BYTES - 4);
    let is_whole = covered[..8] == MAGIC[..] && checksum(covered).to_le_bytes() == sum;
    is_whole.then(|| (&covered[8..]).get_u32_le())
}

/// Whether the content of an object can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Whole,
    /// A writer in place has begun and has not finished.
    Marked,
    /// A stream that has its name and no blocks yet.
    Unfinished,
}

/// An object.
///
/// ```text
///   8  number, never used again     8  length in bytes     8  changed: nanoseconds since 1970
///   1  condition: 0 whole, 1 being written in place, 2 unfinished; and 16 more for a stream
///   2 + its name, UTF-8             4 + what its owner says of it
///   4 + ranges of its bytes, in order, 16 each               4 + ranges of their checksums
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) len: u64,
    pub(super) changed_ns: i64,
    pub(super) condition: Condition,
    /// Whether it is a stream, whose blocks carry their own checksums.
    pub(super) is_stream: bool,
    pub(super) name: String,
    pub(super) about: Vec<u8>,
    pub(super) ranges: Vec<BlockRange>,
    pub(super) sums: Vec<BlockRange>,
}

impl Entry {
    /// Checks that the entry is consistent.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let count = |ranges: &[BlockRange]| {
            ranges
                .iter()
                .try_fold(0u64, |sum, range| sum.checked_add(range.blocks))
        };
        let blocks = self.len.div_ceil(BLOCK as u64);
        if self.id >= u64::MAX / 2 {
            return Err(format!("object {} has an invalid number", self.id));
        }
        if check_name(&self.name).is_err() || normal(&self.name) != self.name {
            return Err(format!(
                "object {} has an invalid name, {:?}",
                self.id, self.name
            ));
        }
        let sum_blocks = if self.is_stream {
            0
        } else {
            sum_blocks(blocks)
        };
        if (count(&self.ranges), count(&self.sums)) != (Some(blocks), Some(sum_blocks)) {
            return Err(format!(
                "{:?} has {} bytes, which do not match its blocks",
                self.name, self.len
            ));
        }
        if self.is_stream && self.about_stream().is_none() {
            return Err(format!(
                "{:?} does not say how long its blocks are",
                self.name
            ));
        }
        Ok(())
    }

    /// Form of the blocks of a stream, and metadata of its owner.
    pub(super) fn about_stream(&self) -> Option<(Form, &[u8])> {
        Form::of(&self.about).filter(|_| self.is_stream)
    }
}

/// A normalized name: `a//b` and `a/./b` become `a/b`.
pub(super) fn normal(name: &str) -> String {
    name.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect::<Vec<_>>()
        .join("/")
}

/// A change of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// 1, then an entry, which replaces the one with its number.
    Put(Entry),
    /// 2, then 8: the number of a removed object.
    Gone(u64),
}

pub(super) fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        match record {
            Record::Gone(id) => {
                bytes.put_u8(2);
                bytes.put_u64_le(*id);
            }
            Record::Put(entry) => {
                bytes.put_u8(1);
                bytes.put_u64_le(entry.id);
                bytes.put_u64_le(entry.len);
                bytes.put_i64_le(entry.changed_ns);
                bytes.put_u8(entry.condition as u8 + if entry.is_stream { STREAM } else { 0 });
                bytes.put_u16_le(entry.name.len() as u16);
                bytes.put_slice(entry.name.as_bytes());
                bytes.put_u32_le(entry.about.len() as u32);
                bytes.put_slice(&entry.about);
                for ranges in [&entry.ranges, &entry.sums] {
                    bytes.put_u32_le(ranges.len() as u32);
                    ranges
                        .iter()
                        .for_each(|&range| put_range(&mut bytes, range));
                }
            }
        }
    }
    bytes
}

pub(super) fn decode(mut bytes: &[u8]) -> Result<Vec<Record>, Wrong> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let found = decode_one(&mut bytes);
        records.push(found.map_err(|wrong| {
            format!(
                "record {} of a change of the catalog: {wrong}",
                records.len()
            )
        })?);
    }
    Ok(records)
}

fn decode_one(bytes: &mut &[u8]) -> Result<Record, Wrong> {
    let short = |_| "it ends too early".to_owned();
    let kind = bytes.try_get_u8().map_err(short)?;
    let id = bytes.try_get_u64_le().map_err(short)?;
    match kind {
        2 => return Ok(Record::Gone(id)),
        1 => {}
        _ => return Err(format!("of an unknown kind, {kind}")),
    }
    let len = bytes.try_get_u64_le().map_err(short)?;
    let changed_ns = bytes.try_get_i64_le().map_err(short)?;
    let condition = bytes.try_get_u8().map_err(short)?;
    let is_stream = condition & STREAM != 0;
    let condition = match condition & !STREAM {
        0 => Condition::Whole,
        1 => Condition::Marked,
        2 => Condition::Unfinished,
        other => return Err(format!("object {id} is in an unknown condition, {other}")),
    };
    let name_bytes = bytes.try_get_u16_le().map_err(short)?.into();
    let name = take(bytes, name_bytes)?.to_vec();
    let name =
        String::from_utf8(name).map_err(|_| format!("the name of object {id} is not UTF-8"))?;
    let about_bytes = bytes.try_get_u32_le().map_err(short)? as usize;
    let about = take(bytes, about_bytes)?.to_vec();
    let mut ranges = || {
        let count = bytes.try_get_u32_le().map_err(short)? as usize;
        let mut part = take(
            bytes,
            count.checked_mul(RUN_BYTES).ok_or("it ends too early")?,
        )?;
        (0..count)
            .map(|_| get_range(&mut part))
            .collect::<Result<Vec<BlockRange>, Wrong>>()
    };
    Ok(Record::Put(Entry {
        id,
        len,
        changed_ns,
        condition,
        is_stream,
        name,
        about,
        ranges: ranges()?,
        sums: ranges()?,
    }))
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Wrong> {
    bytes
        .split_off(..count)
        .ok_or_else(|| "it ends too early".into())
}

fn put_range(bytes: &mut Vec<u8>, range: BlockRange) {
    bytes.put_u64_le(range.start);
    bytes.put_u64_le(range.blocks);
}

fn get_range(bytes: &mut &[u8]) -> Result<BlockRange, Wrong> {
    let (start, blocks) = (bytes.get_u64_le(), bytes.get_u64_le());
    match start.checked_add(blocks) {
        Some(_) => Ok(BlockRange { start, blocks }),
        None => Err("a range of blocks ends beyond every device".into()),
    }
}

/// Blocks of the catalog for records of `bytes` bytes.
pub(super) fn log_blocks(bytes: usize) -> u64 {
    bytes.div_ceil(RECORD_BYTES).max(1) as u64
}

/// A change as blocks of the catalog, of which it is to begin at number `first`.
///
/// ```text
///     0   4  CRC-32C of the rest of the block
///     4   2  bytes of records in this block
///     6   2  1 in the last block of a change, else 0
///     8   8  id of the log
///    16   8  number of this block, from 0
///    24   8  number of the first block of this change
///    32      records: those of a change go on from block to block
/// ```
pub(super) fn to_log(records: &[u8], log_id: u64, first: u64) -> Vec<u8> {
    let count = log_blocks(records.len());
    let mut log = Vec::with_capacity(count as usize * BLOCK);
    for (number, part) in (0..count).map(|number| (number, part_of(records, number))) {
        let start = log.len();
        log.put_u32_le(0);
        log.put_u16_le(part.len() as u16);
        log.put_u16_le((number + 1 == count).into());
        log.put_u64_le(log_id);
        log.put_u64_le(first + number);
        log.put_u64_le(first);
        log.put_slice(part);
        log.resize(start + BLOCK, 0);
        let sum = checksum(&log[start + 4..]);
        log[start..start + 4].copy_from_slice(&sum.to_le_bytes());
    }
    log
}

fn part_of(records: &[u8], number: u64) -> &[u8] {
    let start = number as usize * RECORD_BYTES;
    &records[start..records.len().min(start + RECORD_BYTES)]
}

/// A decoded block of the catalog.
pub(super) struct LogBlock<'a> {
    pub(super) first: u64,
    pub(super) is_last: bool,
    pub(super) records: &'a [u8],
}

/// Epoch and number of a block, if it is one of a catalog.
pub(super) fn epoch_of(block: &[u8]) -> Option<(u64, u64)> {
    let mut bytes = &block[8..];
    let (log_id, number) = (bytes.get_u64_le(), bytes.get_u64_le());
    from_log(block, log_id, number).map(|_| (log_id, number))
}

/// The block number `number` of the log with this id; `None` for anything else.
pub(super) fn from_log(block: &[u8], log_id: u64, number: u64) -> Option<LogBlock<'_>> {
    let mut bytes = block;
    let sum = bytes.get_u32_le();
    let (len, is_last) = (usize::from(bytes.get_u16_le()), bytes.get_u16_le() == 1);
    let found = (bytes.get_u64_le(), bytes.get_u64_le());
    let first = bytes.get_u64_le();
    if found != (log_id, number)
        || len > RECORD_BYTES
        || first > number
        || checksum(&block[4..]) != sum
    {
        return None;
    }
    Some(LogBlock {
        first,
        is_last,
        records: &bytes[..len],
    })
}

/// Blocks of checksums of an object of `blocks` blocks.
pub(super) fn sum_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(SUMS)
}

/// The form of a stream in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) block_bytes: u32,
    pub(super) mark: u64,
}

impl Form {
    /// Splits the metadata of an entry into the form and the owner's part.
    pub(super) fn of(about: &[u8]) -> Option<(Form, &[u8])> {
        let (block_bytes, rest) = about.split_first_chunk()?;
        let (mark, rest) = rest.split_first_chunk()?;
        let form = Form {
            block_bytes: u32::from_le_bytes(*block_bytes),
            mark: u64::from_le_bytes(*mark),
        };
        let is_right = STREAM_BLOCK_BYTES.contains(&form.block_bytes)
            && form.block_bytes.is_multiple_of(BLOCK as u32);
        is_right.then_some((form, rest))
    }

    pub(super) fn encode(self, about: &[u8]) -> Vec<u8> {
        [
            &self.block_bytes.to_le_bytes()[..],
            &self.mark.to_le_bytes(),
            about,
        ]
        .concat()
    }

    /// Blocks of 4096 bytes in a stream block.
    pub(super) fn blocks(self) -> u64 {
        u64::from(self.block_bytes) / BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = Vec<BlockRange>> {
        prop::collection::vec(
            (any::<u32>(), any::<u32>()).prop_map(|(a, b)| BlockRange {
                start: a.into(),
                blocks: b.into(),
            }),
            0..5,
        )
    }

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let condition = prop_oneof![
            Just(Condition::Whole),
            Just(Condition::Marked),
            Just(Condition::Unfinished)
        ];
        let about = prop::collection::vec(any::<u8>(), 0..9000);
        let entry = (
            any::<u64>(),
            any::<u64>(),
            any::<i64>(),
            (condition, any::<bool>()),
            ".{0,50}",
            about,
            ranges(),
            ranges(),
        );
        let entry = entry.prop_map(
            |(id, len, changed_ns, (condition, is_stream), name, about, ranges, sums)| {
                Record::Put(Entry {
                    id,
                    len,
                    changed_ns,
                    condition,
                    is_stream,
                    name,
                    about,
                    ranges,
                    sums,
                })
            },
        );
        prop::collection::vec(
            prop_oneof![entry, any::<u64>().prop_map(Record::Gone)],
            0..6,
        )
    }

    fn superblock() -> Superblock {
        let (catalog, spare) = (
            BlockRange {
                start: 2,
                blocks: 64,
            },
            BlockRange {
                start: 66,
                blocks: 64,
            },
        );
        Superblock {
            identity: *b"0123456789abcdef",
            generation: 7,
            blocks: 1000,
            catalog,
            spare,
            log_id: 9,
        }
    }

    proptest! {
        #[test]
        fn changes_come_back_from_the_log(records in records(), log_id: u64, first in 0u64..1000) {
            let bytes = encode(&records);
            let expected = records.iter().map(|record| match record {
                Record::Gone(_) => 9,
                Record::Put(entry) => ENTRY_BYTES + entry.name.len() + entry.about.len() + RUN_BYTES * (entry.ranges.len() + entry.sums.len()),
            });
            prop_assert_eq!(bytes.len(), expected.sum::<usize>());
            let log = to_log(&bytes, log_id, first);
            let mut found = Vec::new();
            for (number, block) in (first..).zip(log.chunks(BLOCK)) {
                let block = from_log(block, log_id, number).unwrap();
                prop_assert_eq!((block.first, block.is_last), (first, found.len() + block.records.len() == bytes.len()));
                found.extend_from_slice(block.records);
            }
            prop_assert_eq!(decode(&found).unwrap(), records);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_change_that_is_cut_is_seen(records in records(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&records);
            let cut = cut.index(bytes.len() + 1);
            let found = decode(&bytes[..cut]);
            prop_assert!(found.is_err() || found.unwrap().len() < records.len() || cut == bytes.len());
        }
    }

    #[test]
    fn every_bit_of_a_superblock_counts() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_bit_of_a_block_of_the_log_counts() {
        let log = to_log(&encode(&[Record::Gone(5)]), 3, 4);
        assert!(from_log(&log, 3, 4).is_some());
        assert!(from_log(&log, 2, 4).is_none() && from_log(&log, 3, 5).is_none());
        for bit in 0..BLOCK * 8 {
            let mut log = log.clone();
            log[bit / 8] ^= 1 << (bit % 8);
            assert!(from_log(&log, 3, 4).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_is_refused() {
        let entry = |id, len, name: &str, blocks, sums| {
            let range = |blocks| vec![BlockRange { start: 9, blocks }];
            let (condition, name) = (Condition::Whole, name.to_owned());
            Entry {
                id,
                len,
                changed_ns: 0,
                condition,
                is_stream: false,
                name,
                about: Vec::new(),
                ranges: range(blocks),
                sums: range(sums),
            }
            .check()
        };
        assert_eq!(entry(1, 5000, "a/b", 2, 1), Ok(()));
        assert_eq!(entry(1, 0, "a", 0, 0), Ok(()));
        for wrong in [
            entry(u64::MAX, 5000, "a", 2, 1),
            entry(1, 8193, "a", 2, 1),
            entry(1, u64::MAX, "a", 2, 1),
            entry(1, 5000, "a", u64::MAX, 1),
            entry(1, 5000, "a", 2, 0),
            entry(1, 5000, "../a", 2, 1),
            entry(1, 5000, "a//b", 2, 1),
        ] {
            assert!(wrong.is_err());
        }
    }

    #[test]
    fn another_version_is_told() {
        let mut bytes = superblock().encode();
        bytes[8] = 2;
        let sum = checksum(&bytes[..508]);
        bytes[508..512].copy_from_slice(&sum.to_le_bytes());
        assert!(
            Superblock::decode(&bytes)
                .unwrap_err()
                .contains("version 2")
        );
        assert!(
            Superblock::is_of_another_version(&bytes)
                && !Superblock::is_of_another_version(&superblock().encode())
        );
    }
}
