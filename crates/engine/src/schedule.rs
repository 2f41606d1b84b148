//! From a plan to a schedule: the order of tasks, and when each block comes into memory and leaves
//! it.
//!
//! All accesses are known before the first byte moves, so eviction is decided here, by next use
//! (Belady), and the run only carries it out. A *residency* is the time of a block in memory: it
//! begins with a load (or empty, if its first task overwrites it) and ends, written back if it was
//! changed, when the tasks that share it are done. The run admits residencies in order and
//! prefetches as far as useful and as memory allows. It can always proceed, since the sum of the
//! residencies at any one task is at most `floor_bytes`.
//!
//! Within a group, the next task is the ready one with the fewest bytes that are not in memory
//! (BLAS-on-flash, section 3.3); ties go to the one added first.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::edges::Coverage;
use crate::error::{Error, Result};
use crate::frame_size::frame_bytes;
use crate::given_block::{BounceBuffers, GivenBlocks, GivenLayout};
use crate::plan::{Access, Area, Backing, Explained, Mode, Plan, Task, check_task, held_bytes};
use crate::planning::go_on;
use crate::region::{ExtentRef, FrameLayout, Region};

/// Number of ready tasks that the ordering compares.
const WINDOW: usize = 48;
const NEVER: usize = usize::MAX;

/// Predicted or measured traffic and memory of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Bytes from devices.
    pub bytes_read: u64,
    /// Bytes to devices.
    pub bytes_written: u64,
    /// Most bytes of blocks, sectors and scratch held at once; predicted as an upper bound.
    pub peak_bytes: u64,
}

impl Totals {
    /// Adds the totals of a later run.
    pub(crate) fn append(&mut self, next: &Totals) {
        self.bytes_read += next.bytes_read;
        self.bytes_written += next.bytes_written;
        self.peak_bytes = self.peak_bytes.max(next.peak_bytes);
    }
}

pub(crate) struct Residency {
    pub(crate) block: u32,
    pub(crate) load: bool,
    pub(crate) store: bool,
    /// Number of tasks that use it.
    pub(crate) uses: u32,
    /// Residencies whose bytes must have reached the device before this one begins.
    pub(crate) after: Vec<u32>,
}

pub(crate) struct BlockInfo {
    pub(crate) region: Region,
    /// As tasks find it.
    pub(crate) layout: FrameLayout,
    /// As it is loaded; another layout only of what is decoded then.
    pub(crate) loaded: FrameLayout,
    /// Where it lives, if that is memory of the caller's.
    pub(crate) given: Option<Arc<GivenLayout>>,
    /// Bytes charged to the budget; 0 for memory of the caller.
    pub(crate) bytes: u64,
    pub(crate) pinned: bool,
    pub(crate) overlapping: Vec<u32>,
    last_writer: Option<u32>,
    readers: Vec<u32>,
    last_store: Option<u32>,
    uses: VecDeque<usize>,
    residency: Option<u32>,
    dirty: bool,
}

impl BlockInfo {
    /// Number of runs of bytes that are stored one by one.
    pub(crate) fn run_count(&self) -> u64 {
        match &self.given {
            None => self.region.run_count(),
            Some(place) => place.geometry.rows(),
        }
    }

    /// One of the runs.
    pub(crate) fn run(&self, index: u64) -> Range<u64> {
        match &self.given {
            None => self.region.run(index),
            Some(place) => place.geometry.row(index),
        }
    }

    /// Bytes that a load moves from a device with this sector.
    fn load_bytes(&self, unit: u64) -> u64 {
        match &self.given {
            None => self.region.load_bytes(unit),
            Some(place) => place.load_bytes,
        }
    }
}

#[derive(Default)]
pub(crate) struct Node {
    pub(crate) waits_for: u32,
    pub(crate) then: Vec<u32>,
    pub(crate) blocks: Vec<(u32, Mode)>,
    pub(crate) residencies: Vec<u32>,
    pub(crate) needs: Vec<u32>,
}

impl Node {
    /// The residencies of the task, without duplicates.
    pub(crate) fn distinct_residencies(&self) -> Vec<u32> {
        let mut residencies = self.residencies.clone();
        residencies.sort_unstable();
        residencies.dedup();
        residencies
    }
}

/// Ends of blocks by offset and index, one map for each power of two that bounds their lengths, so
/// that one long block does not make all short ones its neighbours.
type ByOffset = BTreeMap<u64, BTreeMap<(u64, u32), u64>>;

/// Order, residencies and totals; grows when tasks are added.
#[derive(Default)]
pub(crate) struct Schedule {
    capacity: u64,
    retained: u64,
    pub(crate) blocks: Vec<BlockInfo>,
    by_region: HashMap<Region, u32>,
    by_offset: HashMap<ExtentRef, ByOffset>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) order: Vec<u32>,
    pub(crate) residencies: Vec<Residency>,
    held: u64,
    pinned: u64,
    blocks_at_once: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// Bytes that the run holds besides the frames of its blocks: scratch, shared sectors, memory of
    /// the caller's.
    pub(crate) beside_bytes: u64,
    pub(crate) sector_bytes: u64,
    /// Blocks in memory of the caller's, and the buffers for what is copied there.
    pub(crate) given: GivenBlocks,
    pub(crate) bounce_buffers: BounceBuffers,
    /// Most concurrent tasks: scratch for more would reduce the memory for blocks.
    pub(crate) concurrency: usize,
    residency_bytes: u64,
    coverage: Coverage,
    /// Blocks in memory when the next group begins.
    recent: Recent,
}

impl Schedule {
    /// A schedule for blocks of at most `capacity` bytes together.
    pub(crate) fn new(capacity: u64) -> Schedule {
        // The rest is for blocks that are loaded while others are in use.
        let retained = capacity - capacity / 6;
        Schedule {
            capacity,
            retained,
            recent: Recent {
                capacity: retained,
                ..Recent::default()
            },
            ..Schedule::default()
        }
    }

    /// Adds tasks after the existing ones. `group_starts` are indices into `tasks`.
    pub(crate) fn extend(
        &mut self,
        plan: &str,
        areas: &[Area],
        tasks: &[Task],
        group_starts: &[usize],
    ) -> Result<()> {
        let first = self.nodes.len();
        for task in tasks {
            go_on()?;
            self.add_node(areas, task);
        }
        let ordered_before = self.order.len();
        for (index, &start) in group_starts.iter().enumerate() {
            let end = group_starts.get(index + 1).copied().unwrap_or(tasks.len());
            self.order_group(areas, first + start, first + end)?;
        }
        self.place(plan, areas, ordered_before)
    }

    /// Bytes that the run reserves.
    pub(crate) fn floor_bytes(&self) -> u64 {
        self.blocks_at_once + self.beside_bytes
    }

    /// Traffic, and the most memory that the run can hold within `memory_bytes` when it prefetches.
    pub(crate) fn totals(&self, memory_bytes: u64) -> Totals {
        let merged = self.coverage.incomplete_bytes();
        let all = self.residency_bytes + self.beside_bytes;
        Totals {
            bytes_read: self.bytes_read + merged,
            bytes_written: self.bytes_written + merged,
            peak_bytes: all.min(memory_bytes).max(self.floor_bytes()),
        }
    }

    /// What the tasks declare, each region once: as changed or as read.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = Access> {
        let mut modes = vec![[false; 2]; self.blocks.len()];
        for (block, mode) in self.nodes.iter().flat_map(|node| &node.blocks) {
            modes[*block as usize][usize::from(*mode != Mode::Read)] = true;
        }
        let of = |(block, [read, changed]): (&BlockInfo, [bool; 2])| {
            let region = block.region;
            let read = (read && !changed).then_some(Access {
                region,
                mode: Mode::Read,
            });
            let mode = Mode::Update;
            read.or_else(|| changed.then_some(Access { region, mode }))
        };
        self.blocks.iter().zip(modes).filter_map(of)
    }

    fn add_node(&mut self, areas: &[Area], task: &Task) {
        let index = self.nodes.len() as u32;
        let mut needs = BTreeSet::new();
        let mut blocks = Vec::with_capacity(task.accesses.len());
        for access in &task.accesses {
            let block = self.intern(areas, access.region);
            blocks.push((block, access.mode));
            let touched = std::iter::once(block)
                .chain(self.blocks[block as usize].overlapping.iter().copied());
            for other in touched {
                let other = &self.blocks[other as usize];
                needs.extend(other.last_writer);
                if access.mode != Mode::Read {
                    needs.extend(other.readers.iter().copied());
                }
            }
        }
        for &(block, mode) in &blocks {
            let block = &mut self.blocks[block as usize];
            match mode {
                Mode::Read => block.readers.push(index),
                Mode::Write | Mode::Update => {
                    block.last_writer = Some(index);
                    block.readers.clear();
                }
            }
        }
        needs.remove(&index);
        for &need in &needs {
            self.nodes[need as usize].then.push(index);
        }
        let needs: Vec<u32> = needs.into_iter().collect();
        self.nodes.push(Node {
            waits_for: needs.len() as u32,
            blocks,
            needs,
            ..Node::default()
        });
    }

    fn intern(&mut self, areas: &[Area], region: Region) -> u32 {
        if let Some(&known) = self.by_region.get(&region) {
            return known;
        }
        let id = self.blocks.len() as u32;
        let area = &areas[region.extent.0 as usize];
        let given = self.given.get(&region).cloned();
        let alike = |layout: FrameLayout| [layout, layout];
        let [loaded, layout] = match (&given, area.decoder) {
            (Some(place), _) => alike(place.geometry.layout()),
            (None, Some(decoder)) => decoder.layouts(&region, area.sector()),
            (None, None) if area.is_device() => alike(region.layout(area.sector())),
            (None, None) => alike(region.in_place()),
        };
        let by_offset = self.by_offset.entry(region.extent).or_default();
        let near = by_offset.iter().flat_map(|(&longest, blocks)| {
            blocks
                .range((region.offset.saturating_sub(longest), 0)..(region.end(), 0))
                .filter(|&(_, &end)| end > region.offset)
        });
        let mut overlapping: Vec<u32> = near
            .map(|(&(_, id), _)| id)
            .filter(|&other| self.blocks[other as usize].region.overlaps(&region))
            .collect();
        overlapping.sort_unstable();
        let longest = (region.end() - region.offset).next_power_of_two();
        by_offset
            .entry(longest)
            .or_default()
            .insert((region.offset, id), region.end());
        for &other in &overlapping {
            self.blocks[other as usize].overlapping.push(id);
        }
        let has_memory = given.is_some() || area.is_resident();
        self.blocks.push(BlockInfo {
            region,
            layout,
            loaded,
            given,
            bytes: if has_memory {
                0
            } else {
                frame_bytes(loaded.bytes)
            },
            pinned: matches!(area.backing, Backing::Volatile),
            overlapping,
            last_writer: None,
            readers: Vec::new(),
            last_store: None,
            uses: VecDeque::new(),
            residency: None,
            dirty: false,
        });
        self.by_region.insert(region, id);
        id
    }

    /// Picks the task with the fewest missing bytes, against an LRU cache.
    fn order_group(&mut self, areas: &[Area], start: usize, end: usize) -> Result<()> {
        let mut waiting: HashMap<u32, u32> = HashMap::new();
        let mut ready = BTreeSet::new();
        for node in start..end {
            let count = self.nodes[node]
                .needs
                .iter()
                .filter(|&&need| need as usize >= start)
                .count() as u32;
            match count {
                0 => _ = ready.insert(node as u32),
                _ => _ = waiting.insert(node as u32, count),
            }
        }
        let mut recent = std::mem::take(&mut self.recent);
        while let Some(next) = self.fewest_missing(areas, &ready, &recent) {
            go_on()?;
            ready.remove(&next);
            self.order.push(next);
            for &(block, _) in &self.nodes[next as usize].blocks {
                recent.touch(block, self.blocks[block as usize].bytes);
            }
            for &then in &self.nodes[next as usize].then {
                if let Some(count) = waiting.get_mut(&then) {
                    *count -= 1;
                    if *count == 0 {
                        waiting.remove(&then);
                        ready.insert(then);
                    }
                }
            }
        }
        self.recent = recent;
        Ok(())
    }

    fn fewest_missing(
        &self,
        areas: &[Area],
        ready: &BTreeSet<u32>,
        recent: &Recent,
    ) -> Option<u32> {
        let missing = |node: u32| -> u64 {
            let blocks = self.nodes[node as usize]
                .blocks
                .iter()
                .filter(|(_, mode)| *mode != Mode::Write);
            let absent = blocks
                .map(|(block, _)| *block)
                .filter(|block| !recent.holds(*block))
                .map(|block| &self.blocks[block as usize]);
            absent
                .filter(|block| areas[block.region.extent.0 as usize].is_device())
                .map(|block| block.bytes)
                .sum()
        };
        ready
            .iter()
            .take(WINDOW)
            .map(|&node| (missing(node), node))
            .min()
            .map(|(_, node)| node)
    }

    /// Belady over the order from position `from` on.
    fn place(&mut self, plan: &str, areas: &[Area], from: usize) -> Result<()> {
        for position in from..self.order.len() {
            let node = self.order[position] as usize;
            for index in 0..self.nodes[node].blocks.len() {
                let block = self.nodes[node].blocks[index].0 as usize;
                if self.blocks[block].uses.back() != Some(&position) {
                    self.blocks[block].uses.push_back(position);
                }
            }
        }
        // Blocks that may be evicted, by next use.
        let mut evictable: BTreeSet<(usize, u32)> = BTreeSet::new();
        for position in from..self.order.len() {
            go_on()?;
            let node = self.order[position] as usize;
            let mut blocks = self.nodes[node].blocks.clone();
            self.check_fits(plan, &blocks)?;
            for &(block, mode) in &blocks {
                self.end_overlapping(areas, block, mode, &mut evictable);
                if self.blocks[block as usize].residency.is_some() {
                    evictable.remove(&(position, block));
                }
            }
            for &(block, mode) in &blocks {
                if self.blocks[block as usize].residency.is_none() {
                    self.make_room(areas, self.blocks[block as usize].bytes, &mut evictable);
                    self.begin(areas, block, mode);
                }
                self.blocks[block as usize].dirty |= mode != Mode::Read;
            }
            self.blocks_at_once = self.blocks_at_once.max(self.held);
            blocks.iter().for_each(|&(block, _)| {
                self.nodes[node]
                    .residencies
                    .push(self.blocks[block as usize].residency.expect("begun above"))
            });
            blocks.sort_by_key(|&(block, _)| block);
            blocks.dedup_by_key(|&mut (block, _)| block);
            for (block, _) in blocks {
                self.used(areas, block, position, &mut evictable);
            }
        }
        Ok(())
    }

    fn check_fits(&self, plan: &str, blocks: &[(u32, Mode)]) -> Result<()> {
        let new = |block: &BlockInfo| !(block.pinned && block.residency.is_some());
        if self.pinned + self.distinct_bytes(blocks, new) <= self.capacity {
            return Ok(());
        }
        let needed = self.enough_bytes();
        Err(Error::OverBudget {
            what: plan.to_owned(),
            needed,
            available: self.capacity,
            budget: self.capacity,
        })
    }

    /// Bytes of the wanted blocks, each counted once.
    fn distinct_bytes(&self, blocks: &[(u32, Mode)], wanted: impl Fn(&BlockInfo) -> bool) -> u64 {
        let mut distinct: Vec<u32> = blocks.iter().map(|&(block, _)| block).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let blocks = distinct.iter().map(|&id| &self.blocks[id as usize]);
        blocks
            .filter(|&block| wanted(block))
            .map(|block| block.bytes)
            .sum()
    }

    /// Bytes of all pinned blocks and of the largest task beside them.
    fn enough_bytes(&self) -> u64 {
        let pinned: u64 = self
            .blocks
            .iter()
            .filter(|block| block.pinned)
            .map(|block| block.bytes)
            .sum();
        let largest = self
            .nodes
            .iter()
            .map(|node| self.distinct_bytes(&node.blocks, |block| !block.pinned))
            .max();
        pinned + largest.unwrap_or(0)
    }

    /// Ends the residencies that overlap a block: no byte may be in memory in two layouts once one
    /// of them is changed.
    fn end_overlapping(
        &mut self,
        areas: &[Area],
        block: u32,
        mode: Mode,
        evictable: &mut BTreeSet<(usize, u32)>,
    ) {
        for index in 0..self.blocks[block as usize].overlapping.len() {
            let other = self.blocks[block as usize].overlapping[index];
            let info = &self.blocks[other as usize];
            if info.residency.is_some() && (mode != Mode::Read || info.dirty) {
                evictable.remove(&(info.uses.front().copied().unwrap_or(NEVER), other));
                self.end(areas, other);
            }
        }
    }

    fn make_room(&mut self, areas: &[Area], bytes: u64, evictable: &mut BTreeSet<(usize, u32)>) {
        while self.held + bytes > self.retained {
            let Some((_, victim)) = evictable.pop_last() else {
                break;
            };
            self.end(areas, victim);
        }
    }

    fn begin(&mut self, areas: &[Area], block: u32, mode: Mode) {
        let info = &self.blocks[block as usize];
        let touched = info.overlapping.iter().chain(std::iter::once(&block));
        let after: Vec<u32> = touched
            .filter_map(|&other| self.blocks[other as usize].last_store)
            .collect();
        let area = &areas[info.region.extent.0 as usize];
        let load = mode != Mode::Write && area.is_device();
        if load || !after.is_empty() {
            let merged = self.coverage.merge(&info.region);
            self.bytes_read += merged;
            self.bytes_written += merged;
        }
        if load {
            self.bytes_read += info.load_bytes(area.sector());
        }
        self.held += info.bytes;
        self.residency_bytes += info.bytes;
        self.pinned += if info.pinned { info.bytes } else { 0 };
        let info = &mut self.blocks[block as usize];
        info.residency = Some(self.residencies.len() as u32);
        info.dirty = false;
        self.residencies.push(Residency {
            block,
            load,
            store: false,
            uses: 0,
            after,
        });
    }

    /// After a task has used a block: keeps it for the next use, or ends its residency.
    fn used(
        &mut self,
        areas: &[Area],
        block: u32,
        position: usize,
        evictable: &mut BTreeSet<(usize, u32)>,
    ) {
        let info = &mut self.blocks[block as usize];
        assert_eq!(info.uses.front(), Some(&position), "uses come in order");
        info.uses.pop_front();
        let residency = info.residency.expect("in use");
        self.residencies[residency as usize].uses += 1;
        match (info.pinned, info.uses.front()) {
            (true, _) => {}
            // To evict it would free no memory of the budget.
            (false, Some(_)) if info.given.is_some() => {}
            (false, Some(&next)) => _ = evictable.insert((next, block)),
            (false, None) => self.end(areas, block),
        }
    }

    fn end(&mut self, areas: &[Area], block: u32) {
        let info = &mut self.blocks[block as usize];
        let residency = info
            .residency
            .take()
            .expect("only what is in memory leaves it");
        self.held -= info.bytes;
        let area = &areas[info.region.extent.0 as usize];
        if std::mem::take(&mut info.dirty) && area.is_device() {
            self.residencies[residency as usize].store = true;
            info.last_store = Some(residency);
            self.bytes_written += self.coverage.store(info.region, area.sector(), area.bytes);
        }
    }
}

/// The blocks used last, up to a number of bytes.
#[derive(Default)]
struct Recent {
    capacity: u64,
    held: u64,
    clock: u64,
    stamps: HashMap<u32, (u64, u64)>,
    by_stamp: BTreeMap<u64, u32>,
}

impl Recent {
    fn holds(&self, block: u32) -> bool {
        self.stamps.contains_key(&block)
    }

    fn touch(&mut self, block: u32, bytes: u64) {
        self.clock += 1;
        match self.stamps.insert(block, (self.clock, bytes)) {
            Some((stamp, _)) => _ = self.by_stamp.remove(&stamp),
            None => self.held += bytes,
        }
        self.by_stamp.insert(self.clock, block);
        while self.held > self.capacity {
            let Some((_, oldest)) = self.by_stamp.pop_first() else {
                break;
            };
            self.held -= self.stamps.remove(&oldest).map_or(0, |(_, bytes)| bytes);
        }
    }
}

/// Bytes to reserve for sectors of which some tasks store parts: `wanted` within bounds, 0 if there
/// are none.
pub(crate) fn shared_sector_bytes(areas: &[Area], tasks: &[Task], wanted: u64) -> u64 {
    let stored = tasks
        .iter()
        .flat_map(|task| &task.accesses)
        .filter(|access| access.mode != Mode::Read);
    let shared = stored.filter_map(|access| {
        let (
            area,
            Region {
                offset,
                row_bytes,
                stride,
                ..
            },
        ) = (&areas[access.region.extent.0 as usize], access.region);
        let whole = access.region.end() == area.bytes && stride == row_bytes;
        let parts =
            !(offset | stride | if whole { 0 } else { row_bytes }).is_multiple_of(area.sector());
        parts.then_some(area.sector())
    });
    // At least eight sectors: the two ends of a row, the device's content of both, and some that
    // wait for their neighbours.
    shared
        .max()
        .map_or(0, |block| wanted.clamp(128 << 10, 32 << 20).max(8 * block))
}

/// The number of threads whose scratch fits into a twelfth of the memory, at least two if there are
/// two.
pub(crate) fn concurrency(memory_bytes: u64, scratch_bytes: u64, threads: usize) -> usize {
    ((memory_bytes / 12) / scratch_bytes.max(1))
        .clamp(2, threads.max(2) as u64)
        .min(threads as u64) as usize
}

/// The result of `explain`: a plan's prediction for one budget.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explanation {
    /// Name of the plan.
    pub plan: String,
    /// Number of tasks.
    pub tasks: usize,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes that the plan may use, including scratch.
    pub memory_bytes: u64,
    /// Bytes that it reserves before it starts.
    pub floor_bytes: u64,
    /// Predicted traffic and peak.
    pub predicted: Totals,
    /// Least traffic known for this work and budget, bytes.
    pub bound_bytes: u64,
    /// Choices of the planner, by name and value.
    pub notes: Vec<(String, String)>,
}

impl Explanation {
    /// Adds a plan that runs after this one: sums of operations and traffic, the maximum of memory.
    pub fn append(&mut self, next: &Explanation) {
        self.tasks += next.tasks;
        self.flops += next.flops;
        self.floor_bytes = self.floor_bytes.max(next.floor_bytes);
        self.predicted.append(&next.predicted);
        self.bound_bytes += next.bound_bytes;
        self.notes.extend(next.notes.iter().cloned());
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
        let moved = self.predicted.bytes_read + self.predicted.bytes_written;
        writeln!(
            f,
            "plan        {} ({} tasks, {:.3} Gflop)",
            self.plan,
            self.tasks,
            self.flops as f64 / 1e9
        )?;
        writeln!(
            f,
            "memory      {} allowed, {} reserved, {} at peak",
            mib(self.memory_bytes),
            mib(self.floor_bytes),
            mib(self.predicted.peak_bytes)
        )?;
        writeln!(f, "read        {}", mib(self.predicted.bytes_read))?;
        writeln!(f, "written     {}", mib(self.predicted.bytes_written))?;
        if self.bound_bytes > 0 {
            writeln!(
                f,
                "bound       {} ({:.3} of it moved)",
                mib(self.bound_bytes),
                moved as f64 / self.bound_bytes as f64
            )?;
        }
        self.notes
            .iter()
            .try_for_each(|(what, value)| writeln!(f, "{what:<11} {value}"))
    }
}

impl Plan {
    /// Bytes of scratch for each thread.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.tasks
            .iter()
            .map(|task| task.scratch as u64)
            .max()
            .unwrap_or(0)
    }

    /// Order, residencies and the bytes that the run reserves besides its blocks.
    pub(crate) fn schedule(&self, memory_bytes: u64, threads: usize) -> Result<Schedule> {
        if let Some(reason) = self.given.refused() {
            return Err(Error::Plan {
                plan: self.name.clone(),
                reason: reason.to_owned(),
            });
        }
        self.tasks
            .iter()
            .try_for_each(|task| check_task(&self.name, &self.areas, task))?;
        let sectors = shared_sector_bytes(&self.areas, &self.tasks, memory_bytes / 16);
        let held = held_bytes(&self.tasks);
        let scratch = self.scratch_bytes().next_multiple_of(4096);
        let bounce_buffers = self.given.bounce_buffers(memory_bytes / 16);
        let brought = self.held_bytes + self.given.bytes();
        let at_once = |concurrency: usize| {
            let tasks = (scratch + held) * concurrency as u64;
            let beside = tasks + sectors + brought + bounce_buffers.bytes();
            let mut schedule = Schedule::new(memory_bytes.saturating_sub(beside));
            schedule.sector_bytes = sectors;
            schedule.beside_bytes = beside;
            schedule.concurrency = concurrency;
            schedule.given = self.given.clone();
            schedule.bounce_buffers = bounce_buffers;
            schedule
                .extend(&self.name, &self.areas, &self.tasks, &self.group_starts)
                .map_err(|error| match error {
                    Error::OverBudget { what, needed, .. } => Error::OverBudget {
                        what,
                        needed: needed + beside,
                        available: memory_bytes,
                        budget: memory_bytes,
                    },
                    other => other,
                })?;
            // What no block is counted for may be more than there is: memory that is given or held, and
            // tasks without blocks, of which fewer may fit.
            match schedule.floor_bytes() {
                needed if needed > memory_bytes => Err(Error::OverBudget {
                    what: self.name.clone(),
                    needed,
                    available: memory_bytes,
                    budget: memory_bytes,
                }),
                _ => Ok(schedule),
            }
        };
        // Memory that is too small for several concurrent tasks may suffice for one.
        match at_once(concurrency(memory_bytes, scratch + held, threads)) {
            Err(Error::OverBudget { .. }) => at_once(1),
            other => other,
        }
    }

    /// Predicts a run within `memory_bytes` on `threads` threads. Nothing is read or written. The
    /// plan keeps the schedule, so that a run under the same conditions does not compute it again.
    ///
    /// # Errors
    /// [`Error::OverBudget`] with the bytes that would be sufficient, [`Error::Plan`] for a task
    /// outside its extents.
    pub fn explain(&self, memory_bytes: u64, threads: usize) -> Result<Explanation> {
        let schedule = self.schedule(memory_bytes, threads)?;
        let mut predicted = schedule.totals(memory_bytes);
        predicted.bytes_read += self.later_bytes;
        let explanation = Explanation {
            plan: self.name.clone(),
            tasks: self.tasks.len(),
            flops: self.flops(),
            memory_bytes,
            floor_bytes: schedule.floor_bytes(),
            predicted,
            bound_bytes: self.bound_bytes,
            notes: self.notes.clone(),
        };
        self.keep_schedule(Explained {
            memory_bytes,
            threads,
            schedule,
        });
        Ok(explanation)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use outcore_device::MemoryDevice;

    use super::*;
    use crate::extent::Extent;
    use crate::planning::plan_until;

    /// Each residency that is loaded examined every incomplete shared sector: 100,000 tasks on
    /// unaligned rows made 5,000,000,000 comparisons before the first byte moved.
    #[test]
    fn unaligned_rows_are_scheduled_in_linear_work() {
        const TASKS: u64 = 100_000;
        let mut plan = Plan::new("plan");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::new(MemoryDevice::with_sector("memory", TASKS * 1000, 512)),
        ));
        for row in 0..TASKS {
            plan.task(Task::new("step").update(Region::span(extent, row * 1000 + 100, 700)));
        }
        let schedule = plan.schedule(8 << 20, 2).unwrap();
        assert_eq!(schedule.residencies.len() as u64, TASKS);
        assert!(
            schedule.coverage.looked_at.get() <= 4 * TASKS,
            "{}",
            schedule.coverage.looked_at.get()
        );
    }

    /// A plan of a million tasks took seconds to schedule, on the thread that was to look at Ctrl-C.
    #[test]
    fn scheduling_ends_once_the_plan_is_no_longer_wanted() {
        let mut plan = Plan::new("plan");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::new(MemoryDevice::new("memory", 1 << 20)),
        ));
        for task in 0..1_000_000 {
            plan.task(Task::new("step").update(Region::span(extent, 4096 * (task % 256), 4096)));
        }
        let begin = Instant::now();
        let scheduled = plan_until(|| true, || plan.schedule(8 << 20, 2));
        assert!(matches!(scheduled, Err(Error::Cancelled)));
        assert!(begin.elapsed() < Duration::from_millis(500));
    }

    /// A job explained its plan and then scheduled it again.
    #[test]
    fn a_plan_keeps_the_schedule_that_it_was_explained_with_until_it_changes() {
        let mut plan = reads(&[0, 1, 0], false);
        plan.explain(8 << 20, 2).unwrap();
        assert!(
            plan.take_schedule(8 << 20, 2)
                .is_some_and(|schedule| schedule.residencies.len() == 2)
        );
        plan.explain(8 << 20, 2).unwrap();
        assert!(
            plan.take_schedule(4 << 20, 2).is_none(),
            "memory has been taken since"
        );
        plan.explain(8 << 20, 2).unwrap();
        plan.hold(1 << 20);
        assert!(plan.take_schedule(8 << 20, 2).is_none());
    }

    /// A plan whose tasks each read one block of 1 MiB.
    fn reads(blocks: &[u64], in_order: bool) -> Plan {
        const MIB: u64 = 1 << 20;
        let mut plan = Plan::new("plan");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::new(MemoryDevice::new("memory", 4 * MIB)),
        ));
        for &block in blocks {
            if in_order {
                plan.group();
            }
            plan.task(Task::new("read").read(Region::span(extent, block * MIB, MIB)));
        }
        plan
    }

    #[test]
    fn the_block_whose_next_use_is_farthest_leaves_first() {
        // Room for two blocks. LRU reads nine times; six is the minimum.
        let plan = reads(&[0, 1, 2, 0, 1, 2, 0, 1, 2], true);
        let schedule = plan.schedule((5 << 20) / 2, 1).unwrap();
        assert_eq!(schedule.bytes_read, 6 << 20);
    }

    #[test]
    fn of_ready_tasks_the_one_with_fewest_bytes_missing_is_next() {
        let plan = reads(&[0, 1, 2, 1, 0, 0], false);
        let schedule = plan.schedule((3 << 20) / 2, 1).unwrap();
        assert_eq!(schedule.order, [0, 4, 5, 1, 3, 2]);
        assert_eq!(schedule.bytes_read, 3 << 20);
    }
}
