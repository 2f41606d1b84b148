//! The bytes of sectors that blocks share, on their way to the device.
//!
//! Each sector here collects parts; when it is complete it is written. If it must be written before
//! that, the device's bytes are read, the parts are copied over them, and the result is written. A
//! sector has at most one transfer in flight. All sectors together stay within the bytes that the
//! run reserved: a store asks for room first, and incomplete sectors are written a few at a time.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;

use outcore_device::{Buf, Op, Shared};

use crate::edges::{Coverage, Edge};
use crate::region::{ExtentRef, Region};

type Key = (ExtentRef, u64);

/// A transfer for the run to submit.
pub(crate) struct Transfer {
    pub(crate) token: u32,
    pub(crate) extent: ExtentRef,
    pub(crate) offset: u64,
    pub(crate) op: Op,
}

enum Step {
    Base { parts: Buf, ranges: Vec<Range<u32>> },
    Write,
}

/// Parts of a sector, and the age of the first of them.
struct Pending {
    age: u64,
    parts: Buf,
}

pub(crate) struct Sectors {
    coverage: Coverage,
    pending: BTreeMap<Key, Pending>,
    by_age: BTreeMap<u64, Key>,
    clock: u64,
    busy: HashMap<u32, (Key, Step)>,
    busy_keys: HashSet<Key>,
    queued: VecDeque<(Key, Shared)>,
    next_token: u32,
    spare: Vec<Buf>,
    /// Frames by the length of the sectors that are cut from them.
    frames: HashMap<usize, Buf>,
    /// Bytes of pending and moving sectors.
    used: usize,
    pending_bytes: usize,
    /// Bytes reserved for them.
    limit: usize,
    allocate: fn(usize) -> io::Result<Buf>,
}

impl Sectors {
    /// A table for at most `limit` bytes of sectors, pending and moving together.
    pub(crate) fn new(limit: u64) -> Sectors {
        Sectors {
            coverage: Coverage::default(),
            pending: BTreeMap::new(),
            by_age: BTreeMap::new(),
            clock: 0,
            busy: HashMap::new(),
            busy_keys: HashSet::new(),
            queued: VecDeque::new(),
            next_token: 0,
            spare: Vec::new(),
            frames: HashMap::new(),
            used: 0,
            pending_bytes: 0,
            limit: limit as usize,
            allocate: Buf::not_inherited,
        }
    }

    /// Raises the limit.
    pub(crate) fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit as usize);
    }

    /// Whether both ends of a row may be put now, with room left to write one sector. If not,
    /// sectors are moving or are sent, so that the answer changes.
    pub(crate) fn has_room(
        &mut self,
        block: u32,
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<bool> {
        if self.used == 0 || self.used + 3 * block as usize <= self.limit {
            return Ok(true);
        }
        if self.busy.is_empty() {
            self.flush_oldest(transfers)?;
        }
        Ok(false)
    }

    /// Takes a part of a sector; returns the transfer of the sector if that completes it.
    pub(crate) fn put(
        &mut self,
        extent: ExtentRef,
        block: u32,
        edge: &Edge,
        bytes: &[u8],
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        let key = (extent, edge.sector);
        if !self.pending.contains_key(&key) {
            let mut parts = self.sector(block as usize)?;
            parts.fill(0);
            self.clock += 1;
            self.by_age.insert(self.clock, key);
            self.pending_bytes += parts.len();
            self.pending.insert(
                key,
                Pending {
                    age: self.clock,
                    parts,
                },
            );
        }
        let sector = &mut self.pending.get_mut(&key).expect("put there above").parts;
        let from = edge.range.start as usize;
        sector[from..from + bytes.len()].copy_from_slice(bytes);
        if self
            .coverage
            .add(extent, edge.sector, block, edge.range.clone())
        {
            let sector = self.take_pending(key);
            self.write(key, sector.freeze(), transfers);
        }
        // A sector that is written before it is complete takes a second buffer, for the device's
        // content.
        if self.pending_bytes > self.limit / 2 && self.busy.is_empty() {
            self.flush_oldest(transfers)?;
        }
        Ok(())
    }

    fn take_pending(&mut self, key: Key) -> Buf {
        let Pending { age, parts } = self.pending.remove(&key).expect("known as pending");
        self.by_age.remove(&age);
        self.pending_bytes -= parts.len();
        parts
    }

    fn sector(&mut self, block: usize) -> io::Result<Buf> {
        let spare = self
            .spare
            .iter()
            .rposition(|spare| spare.len() == block)
            .map(|position| self.spare.swap_remove(position));
        let sector = match spare {
            Some(spare) => spare,
            None => {
                // Sectors of another device are cut from another frame, because the rest of this
                // frame may not have their alignment.
                let frame = self.frames.entry(block).or_default();
                if frame.len() < block {
                    *frame = (self.allocate)(FRAME_BYTES.max(block))?;
                }
                frame.split_to(block)
            }
        };
        self.used += block;
        Ok(sector)
    }

    fn recycle(&mut self, sector: Buf) {
        self.used -= sector.len();
        self.spare.push(sector);
    }

    fn write(&mut self, key: Key, sector: Shared, transfers: &mut Vec<Transfer>) {
        if !self.busy_keys.insert(key) {
            self.queued.push_back((key, sector));
            return;
        }
        let offset = key.1 * sector.len() as u64;
        let token = self.issue(key, Step::Write);
        transfers.push(Transfer {
            token,
            extent: key.0,
            offset,
            op: Op::Write(sector),
        });
    }

    fn issue(&mut self, key: Key, step: Step) -> u32 {
        self.next_token = (self.next_token + 1) & (i32::MAX as u32);
        self.busy.insert(self.next_token, (key, step));
        self.next_token
    }

    /// Sends incomplete sectors to the device: all, or those with parts that a region overlaps; as
    /// many as there is room for.
    pub(crate) fn flush(
        &mut self,
        region: Option<&Region>,
        transfers: &mut Vec<Transfer>,
    ) -> io::Result<()> {
        let keys = self.conflicting(region);
        self.send_on(keys, transfers)
    }

    /// Sends the older half: the neighbours of the newest parts are likely to come next.
    fn flush_oldest(&mut self, transfers: &mut Vec<Transfer>) -> io::Result<()> {
        let idle = self
            .by_age
            .values()
            .filter(|key| !self.busy_keys.contains(key));
        let keys = idle.take(self.pending.len().div_ceil(2)).copied().collect();
        self.send_on(keys, transfers)
    }

    fn send_on(&mut self, keys: Vec<Key>, transfers: &mut Vec<Transfer>) -> io::Result<()> {
        for key in keys {
            let length = self.pending[&key].parts.len();
            if self.used + length > self.limit && !self.busy.is_empty() {
                break;
            }
            let base = self.sector(length)?;
            let parts = self.take_pending(key);
            let ranges = self.coverage.take(key.0, key.1);
            self.busy_keys.insert(key);
            let token = self.issue(key, Step::Base { parts, ranges });
            transfers.push(Transfer {
                token,
                extent: key.0,
                offset: key.1 * length as u64,
                op: Op::Read(base),
            });
        }
        Ok(())
    }

    fn conflicting(&self, region: Option<&Region>) -> Vec<Key> {
        let keys = region.map_or_else(
            || self.pending.keys().copied().collect(),
            |region| self.coverage.touching(region),
        );
        keys.into_iter()
            .filter(|key| !self.busy_keys.contains(key))
            .collect()
    }

    /// True if no sector is pending or moving: at all, or with bytes of a region.
    pub(crate) fn is_clear(&self, region: Option<&Region>) -> bool {
        if self.pending.is_empty() && self.busy.is_empty() {
            return true;
        }
        region.is_some_and(|region| {
            let moving = self
                .busy_keys
                .iter()
                .any(|&(extent, _)| extent == region.extent);
            !moving && self.coverage.touching(region).is_empty()
        })
    }

    /// The next step of a sector whose transfer has completed.
    pub(crate) fn completed(&mut self, token: u32, op: Op, transfers: &mut Vec<Transfer>) {
        let (key, step) = self
            .busy
            .remove(&token)
            .expect("one completion for each transfer");
        match (step, op) {
            (Step::Base { parts, ranges }, Op::Read(mut base)) => {
                for range in ranges {
                    let range = range.start as usize..range.end as usize;
                    base[range.clone()].copy_from_slice(&parts[range]);
                }
                self.recycle(parts);
                self.busy_keys.remove(&key);
                self.write(key, base.freeze(), transfers);
            }
            (_, op) => {
                if let Op::Write(sector) = op {
                    sector
                        .try_thaw()
                        .into_iter()
                        .for_each(|sector| self.recycle(sector));
                }
                self.busy_keys.remove(&key);
                if let Some(position) = self.queued.iter().position(|(queued, _)| *queued == key) {
                    let (key, sector) = self.queued.remove(position).expect("found above");
                    self.write(key, sector, transfers);
                }
            }
        }
    }
}

const FRAME_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 512;

    fn first_byte(sector: u64) -> Edge {
        let start = sector * u64::from(BLOCK);
        Edge {
            sector,
            range: 0..1,
            bytes: start..start + 1,
        }
    }

    /// Ends every transfer, and those that follow.
    fn settle(sectors: &mut Sectors, transfers: &mut Vec<Transfer>, peak: &mut usize) -> Vec<u64> {
        let mut read = Vec::new();
        while let Some(Transfer {
            token, offset, op, ..
        }) = transfers.pop()
        {
            if matches!(op, Op::Read(_)) {
                read.push(offset / u64::from(BLOCK));
            }
            sectors.completed(token, op, transfers);
            *peak = (*peak).max(sectors.used);
        }
        read
    }

    /// A sector of a device with blocks of 4096 bytes was cut from the rest of a frame of sectors
    /// of 512, and the device refused its address.
    #[test]
    fn sectors_of_devices_with_different_blocks_are_aligned() {
        let mut sectors = Sectors::new(1 << 20);
        for round in 0..100 {
            let block = [512, 4096, 512, 1024][round % 4];
            let sector = sectors.sector(block).unwrap();
            assert!(sector.len() == block && (sector.as_ptr() as usize).is_multiple_of(block));
        }
    }

    /// Sectors that were written early took a second buffer each, all at once and on top of a table
    /// without a limit: they exceeded the reservation of the run.
    #[test]
    fn sectors_stay_within_their_share() {
        let (mut sectors, limit) = (Sectors::new(64 << 10), 64 << 10);
        let (mut transfers, mut peak, mut early) = (Vec::new(), 0, Vec::new());
        for sector in 0..5000 {
            while !sectors.has_room(BLOCK, &mut transfers).unwrap() {
                assert!(!transfers.is_empty(), "nothing moves, and there is no room");
                early.extend(settle(&mut sectors, &mut transfers, &mut peak));
            }
            sectors
                .put(
                    ExtentRef(0),
                    BLOCK,
                    &first_byte(sector),
                    &[7],
                    &mut transfers,
                )
                .unwrap();
            peak = peak.max(sectors.used);
        }
        // The oldest go first; the newest wait for their neighbours.
        assert!(!early.is_empty() && early.iter().all(|&sector| sector < 4980));
        while !sectors.is_clear(None) {
            sectors.flush(None, &mut transfers).unwrap();
            early.extend(settle(&mut sectors, &mut transfers, &mut peak));
        }
        early.sort_unstable();
        assert_eq!(early, (0..5000).collect::<Vec<_>>());
        assert!(peak <= limit, "{peak}");
        assert!(sectors.spare.len() * BLOCK as usize <= limit && sectors.used == 0);
    }

    /// A system that refused memory for a sector ended the engine's thread with a panic.
    #[test]
    fn a_refused_sector_is_an_error() {
        let mut sectors = Sectors::new(64 << 10);
        sectors.allocate = |_| Err(io::ErrorKind::OutOfMemory.into());
        let refused = sectors
            .put(ExtentRef(0), BLOCK, &first_byte(3), &[7], &mut Vec::new())
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
    }
}
