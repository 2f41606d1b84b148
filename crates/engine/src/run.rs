//! A schedule carried out.
//!
//! Residencies are admitted in the order of the schedule, as far ahead as useful and as memory
//! allows. A residency is loaded once the stores that it must see have ended; a task is handed to a
//! free thread once its residencies are ready and the tasks before it are done; a residency whose
//! tasks are done is stored if it was changed, and its frame is reused. Nothing waits for anything
//! but I/O and tasks.

mod bounces;
mod loads;
mod stores;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use outcore_device::{Buf, Completion, Device, DeviceError, Locked, Op, Shared, Whole};

use crate::decoder::Decoder;
use crate::edges::{Split, split};
use crate::error::{Error, Result, TaskError};
use crate::extent_locks::{Claim, ExtentLock};
use crate::memory::{Account, FrameUse, IdleKey};
use crate::plan::{
    Access, Area, Backing, Block, Context, Data, Mode, Plan, Task, Work, check_task, held_bytes,
};
use crate::pump::{Activity, Core};
use crate::region::{ExtentRef, Region, pieces};
use crate::schedule::{Schedule, Totals, shared_sector_bytes};
use crate::sectors::{Sectors, Transfer};
use crate::ticket;
use crate::trace::{Recorder, Trace};
use bounces::Bounces;

/// The result of a run.
pub struct Outcome {
    /// Traffic and times of the run.
    pub trace: Trace,
    results: HashMap<Region, (Shared, usize)>,
}

impl Outcome {
    /// The result of work that leaves only a trace.
    pub(crate) fn computed(trace: Trace) -> Outcome {
        Outcome {
            trace,
            results: HashMap::new(),
        }
    }

    /// The bytes of a region of a volatile extent, rows one after another at the region's stride.
    /// `None` if no task declared exactly this region.
    pub fn result(&self, region: &Region) -> Option<&[u8]> {
        let (bytes, reach) = self.results.get(region)?;
        Some(&bytes[..*reach])
    }
}

enum State {
    /// Not in memory yet.
    Away,
    /// Has a frame; waits for stores of others before its load.
    Admitted(Buf),
    /// Load requests are in flight.
    Loading {
        whole: Whole,
        requests: usize,
        since: Instant,
    },
    /// A compute thread decodes what was loaded.
    Decoding,
    /// Usable.
    Ready(Shared),
    /// A task is changing it.
    Lent,
    /// Store requests are in flight; `rows` are still to be sent, once there is room for their
    /// shared sectors.
    Storing {
        bytes: Shared,
        requests: usize,
        since: Instant,
        rows: Range<u64>,
    },
    /// Evicted; its changes are on the device or in the shared sectors.
    Gone,
}

struct ResidencyState {
    state: State,
    /// Bytes admitted for it and not used yet.
    ahead: u64,
    uses_left: u32,
    users: Vec<u32>,
}

struct NodeState {
    waits_for: u32,
    missing: u32,
    position: u32,
    done: bool,
    /// Without duplicates.
    residencies: Vec<u32>,
    name: &'static str,
    weight: u64,
}

/// Message of a worker.
struct Done {
    node: u32,
    core: usize,
    blocks: Vec<Block>,
    more: Vec<Task>,
    since: Instant,
    until: Instant,
    result: std::result::Result<(), TaskError>,
}

/// Message of a worker that has decoded a block.
struct Decoded {
    residency: u32,
    core: usize,
    frame: Buf,
    since: Instant,
    until: Instant,
    result: std::result::Result<(), TaskError>,
}

/// Scratch memory of tasks, for as many as can run at once.
#[derive(Default)]
struct Scratch(Mutex<Vec<Buf>>);

impl Scratch {
    fn put(&self, buf: Buf) {
        self.0.locked().push(buf);
    }

    fn take(&self) -> Buf {
        self.0.locked().pop().expect("as many as tasks that run")
    }

    fn clear(&self) {
        self.0.locked().clear();
    }
}

pub(crate) struct Run {
    name: String,
    areas: Vec<Area>,
    tasks: Vec<Option<Task>>,
    schedule: Schedule,
    scratch_bytes: usize,
    /// Largest allocation of one task.
    task_bytes: u64,
    predicted: Totals,
    bound_bytes: u64,
    account: Account,
    extent_lock: ExtentLock,
    started: bool,
    /// Tasks were added whose memory other activities have yet to return.
    awaits_memory: bool,
    /// Nodes before this one have all the memory that they need besides their blocks.
    funded_nodes: usize,
    /// Of each area, when the run began.
    dates: Vec<u64>,
    /// Leaves blocks in memory even of what is larger than memory.
    keeps: bool,
    /// Whether it may wait for memory of other runs.
    may_wait: bool,
    written: BTreeSet<ExtentRef>,
    ticket: Arc<ticket::Shared<Outcome>>,
    recorder: Recorder,
    residencies: Vec<ResidencyState>,
    nodes: Vec<NodeState>,
    admitted: usize,
    to_load: VecDeque<u32>,
    to_store: VecDeque<u32>,
    ready: BTreeSet<(u32, u32)>,
    /// Number of tasks running on threads or queued for them.
    running: usize,
    /// Number of blocks being decoded.
    decoding: usize,
    tasks_left: usize,
    scratch: Arc<Scratch>,
    scratch_count: usize,
    sectors: Sectors,
    bounces: Bounces,
    requests: usize,
    /// Bytes of the known blocks of each area.
    covered: Vec<u64>,
    blocks_known: usize,
    /// Bytes admitted and not used by any task yet, and their limit.
    ahead: u64,
    ahead_most: u64,
    /// At some time no request was in flight, because the limit held further loads back.
    has_paused: bool,
    error: Option<Error>,
    /// Requests that no device had started were cancelled, because of the error.
    has_withdrawn: bool,
    moved: Vec<(u64, u64)>,
    peak: u64,
    reused: u64,
    flops: u64,
}

/// Token of requests that belong to shared sectors, not to a residency.
const SECTOR_TOKENS: u32 = 1 << 31;

/// Token of requests of bounce buffers.
const BOUNCE_TOKENS: u32 = 1 << 30;

impl Run {
    pub(crate) fn new(
        plan: Plan,
        schedule: Schedule,
        account: Account,
        predicted: Totals,
        ticket: Arc<ticket::Shared<Outcome>>,
        may_wait: bool,
    ) -> Run {
        let scratch_bytes = plan.scratch_bytes() as usize;
        let task_bytes = held_bytes(&plan.tasks);
        let flops = plan.flops();
        let written = schedule.accesses().chain(plan.locks.iter().copied());
        let written = written.filter(|access| access.mode != Mode::Read);
        let written = written.map(|access| access.region.extent).collect();
        let Plan {
            name,
            areas,
            tasks,
            bound_bytes,
            keeps,
            locks,
            ..
        } = plan;
        let declared = schedule.accesses().chain(locks.iter().copied());
        let extent_lock = ExtentLock::new(claims(&areas, declared).into_iter());
        let mut run = Run {
            moved: vec![(0, 0); areas.len()],
            covered: vec![0; areas.len()],
            blocks_known: 0,
            ahead: 0,
            ahead_most: loads::AHEAD_BYTES,
            has_paused: false,
            name,
            areas,
            tasks: tasks.into_iter().map(Some).collect(),
            scratch_bytes,
            task_bytes,
            predicted,
            bound_bytes,
            account,
            extent_lock,
            started: false,
            awaits_memory: false,
            funded_nodes: 0,
            dates: Vec::new(),
            keeps,
            may_wait,
            written,
            recorder: Recorder::new(),
            residencies: Vec::new(),
            nodes: Vec::new(),
            admitted: 0,
            to_load: VecDeque::new(),
            to_store: VecDeque::new(),
            ready: BTreeSet::new(),
            running: 0,
            decoding: 0,
            tasks_left: 0,
            scratch: Arc::default(),
            scratch_count: 0,
            sectors: Sectors::new(schedule.sector_bytes),
            bounces: Bounces::default(),
            requests: 0,
            error: None,
            has_withdrawn: false,
            peak: 0,
            reused: 0,
            flops,
            schedule,
            ticket,
        };
        run.adopt_new(0, 0);
        run
    }

    /// Adopts the tasks that were added to the schedule.
    fn adopt_new(&mut self, first_node: usize, first_position: usize) {
        for block in &self.schedule.blocks[self.blocks_known..] {
            self.covered[block.region.extent.0 as usize] += block.bytes;
        }
        self.blocks_known = self.schedule.blocks.len();
        self.residencies.extend(
            self.schedule.residencies[self.residencies.len()..]
                .iter()
                .map(|residency| ResidencyState {
                    state: State::Away,
                    ahead: 0,
                    uses_left: residency.uses,
                    users: Vec::new(),
                }),
        );
        for node in first_node..self.schedule.nodes.len() {
            let scheduled = &self.schedule.nodes[node];
            let distinct = scheduled.distinct_residencies();
            let done_before = |need: &&u32| {
                self.nodes
                    .get(**need as usize)
                    .is_some_and(|node| node.done)
            };
            let waits_for =
                scheduled.waits_for - scheduled.needs.iter().filter(done_before).count() as u32;
            let (name, weight) = self.tasks[node]
                .as_ref()
                .map_or(("", 0), |task| (task.name, weight(task)));
            self.nodes.push(NodeState {
                waits_for,
                missing: distinct.len() as u32,
                position: 0,
                done: false,
                residencies: distinct,
                name,
                weight,
            });
            self.ticket.expect(weight);
        }
        for position in first_position..self.schedule.order.len() {
            let node = self.schedule.order[position];
            self.nodes[node as usize].position = position as u32;
            for index in 0..self.nodes[node as usize].residencies.len() {
                let residency = self.nodes[node as usize].residencies[index] as usize;
                self.residencies[residency].users.push(node);
                if matches!(
                    self.residencies[residency].state,
                    State::Ready(_) | State::Lent
                ) {
                    self.nodes[node as usize].missing -= 1;
                }
            }
            self.enlist(node);
        }
        self.tasks_left += self.schedule.order.len() - first_position;
    }

    fn enlist(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        if state.waits_for == 0 && state.missing == 0 && !state.done {
            self.ready.insert((state.position, node));
        }
    }

    fn block_of(&self, residency: u32) -> &crate::schedule::BlockInfo {
        &self.schedule.blocks[self.schedule.residencies[residency as usize].block as usize]
    }

    fn area_of(&self, residency: u32) -> &Area {
        &self.areas[self.block_of(residency).region.extent.0 as usize]
    }

    fn begin_requests(&mut self, requests: usize) {
        self.requests += requests;
        self.recorder.device_begins(requests);
    }

    fn dispatch(&mut self, core: &mut Core<'_>) {
        if self.started && (!self.awaits_memory || core.memory.is_settled()) {
            (self.awaits_memory, self.funded_nodes) = (false, self.nodes.len());
            self.sectors.raise_limit(self.schedule.sector_bytes);
        }
        // Twice as many tasks as threads, so that the next one is at hand when a thread has
        // finished one, unless memory limits the concurrent tasks to fewer than threads.
        let (at_once, threads) = (self.schedule.concurrency, core.workers.count());
        let most = if at_once < threads {
            at_once
        } else {
            2 * threads
        };
        while self.running < most && self.error.is_none() {
            let funded_nodes = |&&(_, node): &&(u32, u32)| (node as usize) < self.funded_nodes;
            let Some(&(position, node)) = self.ready.iter().find(funded_nodes) else {
                return;
            };
            self.ready.remove(&(position, node));
            match self.provide_scratch(node) {
                Ok(()) => self.start_task(core, node),
                Err(source) => {
                    self.error.get_or_insert(Error::NoMemory {
                        bytes: self.scratch_bytes as u64,
                        source,
                    });
                }
            }
        }
    }

    /// Provides scratch for a task that needs it, in memory that was reserved when the run began.
    fn provide_scratch(&mut self, node: u32) -> io::Result<()> {
        let needs = self.tasks[node as usize]
            .as_ref()
            .is_some_and(|task| task.scratch > 0);
        if needs && self.scratch_count < self.schedule.concurrency {
            self.scratch.put(Buf::not_inherited(self.scratch_bytes)?);
            self.scratch_count += 1;
        }
        Ok(())
    }

    fn start_task(&mut self, core: &mut Core<'_>, node: u32) {
        let mut task = self.tasks[node as usize].take().expect("a task runs once");
        let uses: Vec<(u32, Mode, u32)> = {
            let scheduled = &self.schedule.nodes[node as usize];
            scheduled
                .blocks
                .iter()
                .zip(&scheduled.residencies)
                .map(|(&(block, mode), &residency)| (block, mode, residency))
                .collect()
        };
        let mut blocks: Vec<Block> = uses
            .into_iter()
            .map(|(block, mode, residency)| self.lend(block, mode, residency))
            .collect();
        self.running += 1;
        let (mailbox, cancelled, scratch) = (
            core.mailbox.clone(),
            Arc::clone(&self.ticket.cancelled),
            Arc::clone(&self.scratch),
        );
        core.workers.run(move |core| {
            let since = Instant::now();
            let mut more = Vec::new();
            let work = task
                .work
                .take()
                .filter(|_| !cancelled.load(Ordering::Acquire));
            let mut own = if task.scratch > 0 {
                scratch.take()
            } else {
                Buf::default()
            };
            let result = run_task(
                work,
                &mut own[..task.scratch],
                &mut blocks,
                &cancelled,
                &mut more,
            );
            if task.scratch > 0 {
                scratch.put(own);
            }
            mailbox.send(Done {
                node,
                core,
                blocks,
                more,
                since,
                until: Instant::now(),
                result,
            });
        });
    }

    fn lend(&mut self, block: u32, mode: Mode, residency: u32) -> Block {
        let info = &self.schedule.blocks[block as usize];
        let (region, layout) = (info.region, info.layout);
        let decoder = self.areas[region.extent.0 as usize].decoder;
        self.ahead -= std::mem::take(&mut self.residencies[residency as usize].ahead);
        let state = &mut self.residencies[residency as usize].state;
        let data = match (mode, std::mem::replace(state, State::Lent)) {
            (Mode::Read, State::Ready(bytes)) => {
                *state = State::Ready(bytes.clone());
                if self.areas[region.extent.0 as usize].is_resident() {
                    return Block::resident(&self.areas, region);
                }
                Data::Shared(bytes)
            }
            (_, State::Ready(bytes)) => Data::Owned(
                bytes
                    .try_thaw()
                    .unwrap_or_else(|_| unreachable!("dependencies leave one holder")),
            ),
            _ => unreachable!("a ready task has ready residencies"),
        };
        Block::new(data, layout, &region, decoder)
    }

    fn look_for_cancel(&mut self) {
        if self.ticket.cancelled.load(Ordering::Acquire) {
            self.error.get_or_insert(Error::Cancelled);
        }
    }

    fn task_done(&mut self, core: &mut Core<'_>, done: Done) {
        let Done {
            node,
            core: index,
            blocks,
            more,
            since,
            until,
            result,
        } = done;
        self.running -= 1;
        // The results of a skipped task are not stored.
        self.look_for_cancel();
        let residencies = self.schedule.nodes[node as usize].residencies.clone();
        for (block, &residency) in blocks.into_iter().zip(&residencies) {
            if let Data::Owned(buf) = block.data {
                self.residencies[residency as usize].state = State::Ready(buf.freeze());
            }
        }
        self.recorder
            .worked(index, self.nodes[node as usize].name, since, until);
        self.ticket.advance(self.nodes[node as usize].weight);
        self.nodes[node as usize].done = true;
        self.tasks_left -= 1;
        if let Err(source) = result {
            let task = format!("{} of {}", self.nodes[node as usize].name, self.name);
            self.error.get_or_insert(Error::Task { task, source });
        }
        if self.error.is_some() {
            // Nothing is started any more, and running tasks may stop. The schedule may contain
            // tasks that the run never adopted.
            self.ticket.cancelled.store(true, Ordering::Release);
            return;
        }
        for index in 0..self.nodes[node as usize].residencies.len() {
            let residency = self.nodes[node as usize].residencies[index];
            self.release_use(core, residency);
        }
        for index in 0..self.schedule.nodes[node as usize].then.len() {
            let then = self.schedule.nodes[node as usize].then[index];
            self.nodes[then as usize].waits_for -= 1;
            self.enlist(then);
        }
        self.extend(core, more);
    }

    /// Adds the tasks that a task has pushed.
    fn extend(&mut self, core: &mut Core<'_>, more: Vec<Task>) {
        if more.is_empty() || self.error.is_some() {
            return;
        }
        let (first_node, first_position) = (self.schedule.nodes.len(), self.schedule.order.len());
        let checked = more.iter().try_for_each(|task| self.check_addition(task));
        let checked = checked.and_then(|()| self.lock_more(core, &more));
        let extended =
            checked.and_then(|()| self.schedule.extend(&self.name, &self.areas, &more, &[0]));
        let extended = extended.and_then(|()| self.raise_floor(core, &more));
        if let Err(error) = extended {
            self.error.get_or_insert(error);
            return;
        }
        // What was left idle because nothing in the run overlapped it may now be changed.
        core.memory.begins_to_write();
        let accesses = more.iter().flat_map(|task| &task.accesses).copied();
        for claim in claims(&self.areas, accesses) {
            if claim.write {
                core.memory.writes(&claim.extent, claim.spans());
            }
        }
        self.flops += more.iter().map(|task| task.flops).sum::<u64>();
        self.tasks.extend(more.into_iter().map(Some));
        self.adopt_new(first_node, first_position);
    }

    /// Reserves the additional memory of the longer schedule above the first floor: the run must
    /// not depend on others to release it later.
    fn raise_floor(&mut self, core: &mut Core<'_>, more: &[Task]) -> Result<()> {
        let task_bytes = held_bytes(more);
        let shared =
            shared_sector_bytes(&self.areas, more, 0).saturating_sub(self.schedule.sector_bytes);
        let beside =
            task_bytes.saturating_sub(self.task_bytes) * self.schedule.concurrency as u64 + shared;
        let missing =
            (self.schedule.floor_bytes() + beside).saturating_sub(self.account.reservation.bytes());
        if !self.may_wait {
            core.memory.check_room(&self.account, &self.name, beside)?;
        }
        core.memory
            .raise_floor(&mut self.account, &self.name, missing)?;
        // Charged now, so that others take no more elastic memory; used once it is free.
        core.memory.hold(&mut self.account, beside);
        self.awaits_memory |= beside > 0;
        self.schedule.beside_bytes += beside;
        self.schedule.sector_bytes += shared;
        self.task_bytes = self.task_bytes.max(task_bytes);
        self.peak = self.peak.max(self.account.held);
        Ok(())
    }

    /// Locks what added tasks declare, if that is free: to wait for it while others may wait for
    /// this run would be no end.
    fn lock_more(&mut self, core: &mut Core<'_>, more: &[Task]) -> Result<()> {
        let accesses = more.iter().flat_map(|task| &task.accesses).copied();
        let more = claims(&self.areas, accesses);
        match core.extent_locks.grow(&mut self.extent_lock, more) {
            true => Ok(()),
            false => Err(Error::Plan {
                plan: self.name.clone(),
                reason: "a task was added to it for bytes that another run has locked; have the plan lock them"
                    .into(),
            }),
        }
    }

    /// A task that joins later must live with what the run has reserved and locked.
    fn check_addition(&self, task: &Task) -> Result<()> {
        check_task(&self.name, &self.areas, task)?;
        let refuse = |reason: String| {
            Err(Error::Plan {
                plan: self.name.clone(),
                reason: format!("task {}: {reason}", task.name),
            })
        };
        if task.scratch > self.scratch_bytes {
            return refuse(format!(
                "needs {} bytes of scratch, the run has {}",
                task.scratch, self.scratch_bytes
            ));
        }
        let written = |access: &&Access| {
            access.mode != Mode::Read && self.areas[access.region.extent.0 as usize].is_device()
        };
        match task
            .accesses
            .iter()
            .filter(written)
            .find(|access| !self.written.contains(&access.region.extent))
        {
            Some(access) => refuse(format!(
                "writes to {}, which the plan only reads",
                self.areas[access.region.extent.0 as usize].name
            )),
            None => Ok(()),
        }
    }

    fn release_use(&mut self, core: &mut Core<'_>, residency: u32) {
        let state = &mut self.residencies[residency as usize];
        state.uses_left = state.uses_left.saturating_sub(1);
        if state.uses_left > 0 || self.block_of(residency).pinned {
            return;
        }
        let State::Ready(bytes) =
            std::mem::replace(&mut self.residencies[residency as usize].state, State::Gone)
        else {
            unreachable!("its tasks have given it back")
        };
        match (
            &self.area_of(residency).backing,
            self.schedule.residencies[residency as usize].store,
        ) {
            (Backing::Device(_), true) => self.start_store(core, residency, bytes),
            (Backing::Device(_), false) => self.retire(core, residency, bytes),
            (Backing::Resident(_) | Backing::Volatile, _) => {}
        }
    }

    /// Reserves the floor. True if the memory that is held throughout the run is also free.
    fn reserve(&mut self, core: &mut Core<'_>) -> Result<bool> {
        let missing = self
            .schedule
            .floor_bytes()
            .saturating_sub(self.account.reservation.bytes());
        core.memory
            .raise_floor(&mut self.account, &self.name, missing)?;
        if !self.may_wait {
            core.memory
                .check_room(&self.account, &self.name, self.schedule.beside_bytes)?;
        }
        Ok(core.memory.has_room(self.schedule.beside_bytes))
    }

    fn begin(&mut self, core: &mut Core<'_>) {
        self.started = true;
        core.memory
            .hold(&mut self.account, self.schedule.beside_bytes);
        self.peak = self.peak.max(self.account.held);
        self.take_given();
        self.recorder = Recorder::new();
        self.forget_written(core);
        self.look_at_dates(core);
    }

    /// What is known of the bytes that the run writes is forgotten.
    fn forget_written(&self, core: &mut Core<'_>) {
        core.memory.begins_to_write();
        for claim in self.extent_lock.writes() {
            core.memory.writes(&claim.extent, claim.spans());
        }
    }

    /// Before the first byte is read: what changes meanwhile is not remembered.
    fn look_at_dates(&mut self, core: &mut Core<'_>) {
        let date = |area: &Area| match &area.backing {
            Backing::Device(extent) => core.memory.date(extent),
            _ => 0,
        };
        self.dates = self.areas.iter().map(date).collect();
    }

    /// Ends the run: hands back memory, extents and the result.
    fn finish(&mut self, core: &mut Core<'_>) {
        let mut results = HashMap::new();
        for residency in 0..self.residencies.len() as u32 {
            if self.block_of(residency).given.is_some() {
                self.end_given(residency);
                continue;
            }
            let (region, layout) = (
                self.block_of(residency).region,
                self.block_of(residency).layout,
            );
            let pinned = self.block_of(residency).pinned && self.error.is_none();
            let device = self.area_of(residency).is_device() || self.block_of(residency).pinned;
            match std::mem::replace(&mut self.residencies[residency as usize].state, State::Gone) {
                State::Admitted(frame) => core.memory.give(&mut self.account, frame),
                State::Ready(bytes) if pinned => {
                    core.memory.release(&mut self.account, &bytes);
                    results.insert(region, (bytes, layout.bytes));
                }
                State::Ready(bytes) | State::Storing { bytes, .. } if device => {
                    self.give(core, bytes)
                }
                _ => {}
            }
        }
        self.scratch.clear();
        self.bounces = Bounces::default();
        if self.error.is_some() && self.started {
            // Of blocks that were stored, sectors at their ends may not have been.
            self.forget_written(core);
        }
        if self.started {
            core.memory
                .uncharge(&mut self.account, self.schedule.beside_bytes as usize);
        }
        core.extent_locks.release(&mut self.extent_lock);
        let result = match self.error.take() {
            Some(error) => Err(error),
            None => Ok(Outcome {
                trace: self.trace(core.workers.count()),
                results,
            }),
        };
        // The reservation is released before the caller can see the end of the run.
        self.account.reservation.shrink(0);
        self.schedule.given.end();
        self.ticket.fill(result);
    }

    fn trace(&mut self, threads: usize) -> Trace {
        let recorder = std::mem::replace(&mut self.recorder, Recorder::new());
        let named = self
            .areas
            .iter()
            .zip(&self.moved)
            .filter(|(area, _)| area.is_device());
        let objects = named
            .map(|(area, &(read, written))| (area.name.clone(), read, written))
            .collect();
        let sum = |pick: fn(&(u64, u64)) -> u64| self.moved.iter().map(pick).sum();
        let counted = Trace {
            plan: self.name.clone(),
            predicted: self.predicted,
            actual: Totals {
                bytes_read: sum(|moved| moved.0),
                bytes_written: sum(|moved| moved.1),
                peak_bytes: self.peak,
            },
            bytes_reused: self.reused,
            bound_bytes: self.bound_bytes,
            flops: self.flops,
            objects,
            ..Trace::default()
        };
        recorder.finish(threads, counted)
    }
}

/// If the engine ends, or its thread panics, a waiting caller is told.
impl Drop for Run {
    fn drop(&mut self) {
        self.schedule.given.end();
        self.ticket.fill(Err(Error::Closed));
    }
}

impl Activity for Run {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        self.look_for_cancel();
        if !self.started && self.error.is_none() {
            if !core.extent_locks.acquire(&mut self.extent_lock) {
                return false;
            }
            match self.reserve(core) {
                Ok(true) => self.begin(core),
                Ok(false) => return false,
                Err(_) if self.may_wait && core.memory.has_runs(&self.account) => return false,
                Err(error) => self.error = Some(error),
            }
        }
        if self.error.is_some() && self.requests > 0 && !self.has_withdrawn {
            self.has_withdrawn = true;
            core.withdraw();
        }
        self.store_what_may(core);
        loop {
            self.admit(core);
            self.load_what_may(core);
            let ahead = self.ahead;
            self.dispatch(core);
            // The memory that the tasks have used makes room for further residencies.
            if self.ahead == ahead && !self.looks_further(core) {
                break;
            }
        }
        self.bounce_what_may(core);
        let quiet = self.running == 0 && self.decoding == 0 && self.requests == 0;
        let done =
            quiet && self.error.is_none() && self.tasks_left == 0 && self.to_store.is_empty();
        let over = done && self.sectors_clear(core, None) || quiet && self.error.is_some();
        if over {
            self.finish(core);
        }
        over
    }

    fn complete(&mut self, core: &mut Core<'_>, token: u32, completion: Completion) {
        self.requests -= 1;
        self.recorder.device_ends();
        let Completion { op, result, .. } = completion;
        if let Err(source) = result {
            let error = self.device_error(token, source);
            self.error.get_or_insert(error);
        }
        if token & SECTOR_TOKENS != 0 {
            let mut transfers = Vec::new();
            if self.error.is_none() {
                self.sectors
                    .completed(token & !SECTOR_TOKENS, op, &mut transfers);
            }
            self.submit_sectors(core, transfers);
            return;
        }
        let residency = match token & BOUNCE_TOKENS {
            0 => {
                drop(op);
                token
            }
            _ => self.bounced(token & !BOUNCE_TOKENS, op),
        };
        let (State::Loading { requests, .. } | State::Storing { requests, .. }) =
            &mut self.residencies[residency as usize].state
        else {
            unreachable!("only what moves completes")
        };
        *requests -= 1;
        if *requests == 0 {
            self.residency_moved(core, residency);
        }
    }

    fn receive(&mut self, core: &mut Core<'_>, message: Box<dyn Any + Send>) {
        match message.downcast::<Done>() {
            Ok(done) => self.task_done(core, *done),
            Err(other) => {
                if let Ok(decoded) = other.downcast::<Decoded>() {
                    self.decoded(*decoded);
                }
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// Runs a task's closure; a panic in it becomes its error.
pub(crate) fn run_task(
    work: Option<Work>,
    scratch: &mut [u8],
    blocks: &mut [Block],
    cancelled: &AtomicBool,
    more: &mut Vec<Task>,
) -> std::result::Result<(), TaskError> {
    let Some(work) = work else { return Ok(()) };
    let mut context = Context {
        blocks,
        scratch,
        cancelled,
        more,
    };
    caught(|| work(&mut context))
}

/// What `work` returns; a panic in it becomes an error.
fn caught(
    work: impl FnOnce() -> std::result::Result<(), TaskError>,
) -> std::result::Result<(), TaskError> {
    let run = std::panic::AssertUnwindSafe(work);
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.unwrap_or_default()).into())
    })
}

/// Weight of a task in the progress of its run.
fn weight(task: &Task) -> u64 {
    task.flops
        .max(
            task.accesses
                .iter()
                .map(|access| access.region.bytes())
                .sum(),
        )
        .max(1)
}

/// What accesses lock: all bytes from the first to the last of each region.
fn claims(areas: &[Area], accesses: impl Iterator<Item = Access>) -> Vec<Claim> {
    let mut by_extent: BTreeMap<(ExtentRef, bool), Vec<Range<u64>>> = BTreeMap::new();
    for Access { region, mode } in accesses {
        let bytes = by_extent
            .entry((region.extent, mode != Mode::Read))
            .or_default();
        bytes.push(region.offset..region.end());
    }
    let claim = |((extent, write), bytes): ((ExtentRef, bool), Vec<Range<u64>>)| match &areas
        [extent.0 as usize]
        .backing
    {
        Backing::Device(extent) => Some(Claim::new(extent, write, bytes.into_iter())),
        _ => None,
    };
    by_extent.into_iter().filter_map(claim).collect()
}
