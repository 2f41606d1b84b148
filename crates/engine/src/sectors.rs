//! The bytes of sectors that blocks share, on their way to the device.
//!
//! Each sector here goes through: parts come in; when it is whole it is written; when it has to go
//! before that, the device's bytes are read, the parts laid over them, and the result is written.
//! One sector has at most one transfer under way.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;

use outcore_device::{Buf, Op, Shared};

use crate::edges::{Coverage, Edge};
use crate::region::{ExtentRef, Region};

type Key = (ExtentRef, u64);

/// A transfer that the run is to submit.
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

pub(crate) struct Sectors {
    coverage: Coverage,
    pending: BTreeMap<Key, Buf>,
    busy: HashMap<u32, (Key, Step)>,
    busy_keys: HashSet<Key>,
    queued: VecDeque<(Key, Shared)>,
    next_token: u32,
    spare: Vec<Buf>,
    frames: Vec<Buf>,
    /// Bytes of sectors that may wait.
    limit: usize,
}

impl Sectors {
    pub(crate) fn new(limit: u64) -> Sectors {
        Sectors {
            coverage: Coverage::default(),
            pending: BTreeMap::new(),
            busy: HashMap::new(),
            busy_keys: HashSet::new(),
            queued: VecDeque::new(),
            next_token: 0,
            spare: Vec::new(),
            frames: Vec::new(),
            limit: limit as usize,
        }
    }

    /// Takes a part of a sector; the transfer of the sector when that completes it.
    pub(crate) fn put(&mut self, extent: ExtentRef, block: u32, edge: &Edge, bytes: &[u8], transfers: &mut Vec<Transfer>) {
        let key = (extent, edge.sector);
        if !self.pending.contains_key(&key) {
            let mut sector = self.sector(block as usize);
            sector.fill(0);
            self.pending.insert(key, sector);
        }
        let sector = self.pending.get_mut(&key).expect("put there above");
        let from = edge.range.start as usize;
        sector[from..from + bytes.len()].copy_from_slice(bytes);
        if self.coverage.add(extent, edge.sector, block, edge.range.clone()) {
            let sector = self.pending.remove(&key).expect("put there above");
            self.write(key, sector.freeze(), transfers);
        }
        if self.pending.len() * block as usize > self.limit {
            self.flush(None, transfers);
        }
    }

    fn sector(&mut self, block: usize) -> Buf {
        if let Some(position) = self.spare.iter().position(|spare| spare.len() == block) {
            return self.spare.swap_remove(position);
        }
        let fits = |frame: &Buf| frame.len() >= block;
        if !self.frames.last().is_some_and(fits) {
            // The run's reservation covers these frames; a system without 64 KiB left ends the process anyhow.
            self.frames.push(Buf::anonymous(FRAME_BYTES.max(block)).expect("memory that was reserved"));
        }
        self.frames.last_mut().expect("pushed above").split_to(block)
    }

    fn write(&mut self, key: Key, sector: Shared, transfers: &mut Vec<Transfer>) {
        if !self.busy_keys.insert(key) {
            self.queued.push_back((key, sector));
            return;
        }
        let offset = key.1 * sector.len() as u64;
        let token = self.issue(key, Step::Write);
        transfers.push(Transfer { token, extent: key.0, offset, op: Op::Write(sector) });
    }

    fn issue(&mut self, key: Key, step: Step) -> u32 {
        self.next_token = (self.next_token + 1) & (i32::MAX as u32);
        self.busy.insert(self.next_token, (key, step));
        self.next_token
    }

    /// Sends sectors on that are not whole: all, or those with parts that a region overlaps.
    pub(crate) fn flush(&mut self, region: Option<&Region>, transfers: &mut Vec<Transfer>) {
        for key in self.conflicting(region) {
            let parts = self.pending.remove(&key).expect("listed as pending");
            let ranges = self.coverage.take(key.0, key.1);
            self.busy_keys.insert(key);
            let base = self.sector(parts.len());
            let offset = key.1 * parts.len() as u64;
            let token = self.issue(key, Step::Base { parts, ranges });
            transfers.push(Transfer { token, extent: key.0, offset, op: Op::Read(base) });
        }
    }

    fn conflicting(&self, region: Option<&Region>) -> Vec<Key> {
        let idle = self.pending.keys().filter(|key| !self.busy_keys.contains(key));
        match region {
            None => idle.copied().collect(),
            Some(region) => idle.filter(|key| self.coverage.touches(**key, region)).copied().collect(),
        }
    }

    /// True when nothing waits or moves: at all, or for the bytes of a region.
    pub(crate) fn is_clear(&self, region: Option<&Region>) -> bool {
        if self.pending.is_empty() && self.busy.is_empty() {
            return true;
        }
        region.is_some_and(|region| {
            let moving = self.busy_keys.iter().any(|&(extent, _)| extent == region.extent);
            !moving && !self.pending.keys().any(|key| self.coverage.touches(*key, region))
        })
    }

    /// The next step of a sector whose transfer has ended.
    pub(crate) fn completed(&mut self, token: u32, op: Op, transfers: &mut Vec<Transfer>) {
        let (key, step) = self.busy.remove(&token).expect("one completion for each transfer");
        match (step, op) {
            (Step::Base { parts, ranges }, Op::Read(mut base)) => {
                for range in ranges {
                    let range = range.start as usize..range.end as usize;
                    base[range.clone()].copy_from_slice(&parts[range]);
                }
                self.spare.push(parts);
                self.busy_keys.remove(&key);
                self.write(key, base.freeze(), transfers);
            }
            (_, op) => {
                if let Op::Write(sector) = op {
                    self.spare.extend(sector.try_thaw());
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
