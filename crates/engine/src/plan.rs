//! A plan: tasks that declare the strided bytes they read and write. Pure; no I/O.
//!
//! Dependencies are derived from the declarations, in the order in which tasks were added: a read
//! waits for the write before it (RAW), a write for the reads (WAR) and the write (WAW) before it,
//! wherever bytes overlap. The idea is from BLAS-on-flash (section 3.2 of the paper), whose code
//! leaves the hazards to its users.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use outcore_device::{Buf, Shared};

use crate::decoder::Decoder;
use crate::error::{Error, Result, TaskError};
use crate::extent::Extent;
use crate::given_block::{GivenBlock, GivenBlocks};
use crate::region::{ExtentRef, FrameLayout, Region};
use crate::schedule::Schedule;

/// How a task uses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bytes are read.
    Read,
    /// Every byte is overwritten; the old content is not loaded.
    Write,
    /// Bytes are read and may be changed.
    Update,
}

/// One declared use of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The bytes.
    pub region: Region,
    /// How they are used.
    pub mode: Mode,
}

pub(crate) type Work =
    Box<dyn FnOnce(&mut Context<'_>) -> std::result::Result<(), TaskError> + Send>;

/// The view of a running task.
pub struct Context<'a> {
    /// One block for each declared access, in the order of declaration.
    pub blocks: &'a mut [Block],
    /// The scratch that the task asked for; its contents are unspecified. Aligned to 4096 bytes.
    pub scratch: &'a mut [u8],
    /// Set when the run has been cancelled; long tasks poll it.
    pub cancelled: &'a AtomicBool,
    /// Tasks pushed here join the run, ordered behind all its other tasks.
    pub more: &'a mut Vec<Task>,
}

/// A unit of computation.
pub struct Task {
    pub(crate) name: &'static str,
    pub(crate) accesses: Vec<Access>,
    pub(crate) flops: u64,
    pub(crate) scratch: usize,
    pub(crate) held: usize,
    pub(crate) work: Option<Work>,
}

impl Task {
    /// A task without accesses and without a closure.
    pub fn new(name: &'static str) -> Task {
        Task {
            name,
            accesses: Vec::new(),
            flops: 0,
            scratch: 0,
            held: 0,
            work: None,
        }
    }

    /// Declares a read.
    pub fn read(self, region: Region) -> Task {
        self.access(region, Mode::Read)
    }

    /// Declares that every byte is overwritten.
    pub fn write(self, region: Region) -> Task {
        self.access(region, Mode::Write)
    }

    /// Declares a read and a write.
    pub fn update(self, region: Region) -> Task {
        self.access(region, Mode::Update)
    }

    /// Declares an access.
    pub fn access(mut self, region: Region, mode: Mode) -> Task {
        self.accesses.push(Access { region, mode });
        self
    }

    /// Arithmetic operations, for progress and prediction.
    pub fn flops(mut self, flops: u64) -> Task {
        self.flops = flops;
        self
    }

    /// Bytes of scratch memory that the task needs while it runs.
    pub fn scratch(mut self, bytes: usize) -> Task {
        self.scratch = bytes;
        self
    }

    /// Bytes that the task itself allocates while it runs, such as the packing buffers of a
    /// product.
    pub fn held(mut self, bytes: usize) -> Task {
        self.held = bytes;
        self
    }

    /// Sets the closure.
    pub fn run(
        mut self,
        work: impl FnOnce(&mut Context<'_>) -> std::result::Result<(), TaskError> + Send + 'static,
    ) -> Task {
        self.work = Some(Box::new(work));
        self
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("name", &self.name)
            .field("accesses", &self.accesses)
            .finish_non_exhaustive()
    }
}

/// The largest allocation of one of the tasks, bytes.
pub(crate) fn held_bytes(tasks: &[Task]) -> u64 {
    tasks.iter().map(|task| task.held as u64).max().unwrap_or(0)
}

/// The bytes of one access while a task runs.
pub struct Block {
    pub(crate) data: Data,
    pub(crate) layout: FrameLayout,
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
}

pub(crate) enum Data {
    Shared(Shared),
    Owned(Buf),
}

impl Block {
    pub(crate) fn new(
        data: Data,
        layout: FrameLayout,
        region: &Region,
        decoder: Option<Decoder>,
    ) -> Block {
        let factor = decoder.map_or(1, |decoder| decoder.factor);
        Block {
            data,
            layout,
            rows: region.rows as usize,
            row_bytes: region.row_bytes as usize * factor,
        }
    }

    /// From the first byte of the first row to the last byte of the last; the bytes between rows
    /// are unspecified.
    pub fn bytes(&self) -> &[u8] {
        let bytes: &[u8] = match &self.data {
            Data::Shared(shared) => shared,
            Data::Owned(buf) => buf,
        };
        &bytes[self.layout.lead..self.layout.lead + self.reach()]
    }

    /// As [`bytes`](Block::bytes), mutable. Writes between rows have no effect.
    ///
    /// # Panics
    /// If the access was declared as a read.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (lead, reach) = (self.layout.lead, self.reach());
        match &mut self.data {
            Data::Shared(_) => panic!("a task writes to a region that it declared as read"),
            Data::Owned(buf) => &mut buf[lead..lead + reach],
        }
    }

    /// The content of a region of the caller's memory.
    ///
    /// # Panics
    /// If the region is not in the caller's memory.
    pub(crate) fn resident(areas: &[Area], region: Region) -> Block {
        let Backing::Resident(all) = &areas[region.extent.0 as usize].backing else {
            unreachable!("checked before")
        };
        let data = Data::Shared(all.slice(region.offset as usize..region.end() as usize));
        Block::new(data, region.in_place(), &region, None)
    }

    fn reach(&self) -> usize {
        match self.rows == 0 || self.row_bytes == 0 {
            true => 0,
            false => self.layout.pitch * (self.rows - 1) + self.row_bytes,
        }
    }

    /// The elements of the block, [`pitch`](Block::pitch) apart from row to row.
    pub fn slice<T: bytemuck::Pod>(&self) -> &[T] {
        let bytes = self.bytes();
        // An empty slice may have any alignment.
        if bytes.is_empty() {
            &[]
        } else {
            bytemuck::cast_slice(bytes)
        }
    }

    /// As [`slice`](Block::slice), mutable.
    pub fn slice_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let bytes = self.bytes_mut();
        if bytes.is_empty() {
            &mut []
        } else {
            bytemuck::cast_slice_mut(bytes)
        }
    }

    /// Elements of `T` from one row to the next.
    pub fn pitch<T>(&self) -> usize {
        self.layout.pitch / size_of::<T>()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of `T` in a row.
    pub fn columns<T>(&self) -> usize {
        self.row_bytes / size_of::<T>()
    }
}

/// Backing of an extent of a plan.
#[derive(Clone)]
pub(crate) enum Backing {
    /// Bytes on a device.
    Device(Extent),
    /// Memory that lives as long as the run, zero at first.
    Volatile,
    /// Memory of the caller; read only.
    Resident(Shared),
}

#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) backing: Backing,
    /// What makes the bytes that tasks find, if those are not the bytes of the device.
    pub(crate) decoder: Option<Decoder>,
}

impl Area {
    pub(crate) fn sector(&self) -> u64 {
        match &self.backing {
            Backing::Device(extent) => u64::from(extent.sector()),
            _ => 1,
        }
    }

    pub(crate) fn is_device(&self) -> bool {
        matches!(self.backing, Backing::Device(_))
    }

    /// The form of its blocks in memory; 0 for the bytes of the device.
    pub(crate) fn form(&self) -> u32 {
        self.decoder.map_or(0, |decoder| decoder.form)
    }

    /// Whether it is a device's, decoded, and another area has the same bytes.
    fn decodes(&self, other: &Area) -> bool {
        let (Backing::Device(extent), Backing::Device(other)) = (&self.backing, &other.backing)
        else {
            return false;
        };
        self.decoder.is_some() && extent.id() == other.id()
    }

    pub(crate) fn is_resident(&self) -> bool {
        matches!(self.backing, Backing::Resident(_))
    }
}

/// A graph of tasks over extents.
pub struct Plan {
    pub(crate) name: String,
    pub(crate) areas: Vec<Area>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) group_starts: Vec<usize>,
    pub(crate) bound_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) later_bytes: u64,
    pub(crate) keeps: bool,
    /// Beyond what its tasks declare.
    pub(crate) locks: Vec<Access>,
    pub(crate) notes: Vec<(String, String)>,
    pub(crate) given: GivenBlocks,
    /// By extent and form.
    by_id: HashMap<(u64, u32), ExtentRef>,
    /// The schedule found by [`explain`](Plan::explain), for the run that follows it; dropped by
    /// the next change.
    explained: OnceLock<Explained>,
}

/// A schedule, and the memory and threads for which it was made.
pub(crate) struct Explained {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) schedule: Schedule,
}

impl Plan {
    /// An empty plan.
    pub fn new(name: impl Into<String>) -> Plan {
        Plan {
            name: name.into(),
            areas: Vec::new(),
            tasks: Vec::new(),
            group_starts: vec![0],
            bound_bytes: 0,
            held_bytes: 0,
            later_bytes: 0,
            keeps: false,
            locks: Vec::new(),
            notes: Vec::new(),
            given: GivenBlocks::default(),
            by_id: HashMap::new(),
            explained: OnceLock::new(),
        }
    }

    /// Keeps the schedule of the plan in its present state.
    pub(crate) fn keep_schedule(&self, explained: Explained) {
        _ = self.explained.set(explained);
    }

    /// The kept schedule, if it is for this much memory and this number of threads.
    pub(crate) fn take_schedule(&mut self, memory_bytes: u64, threads: usize) -> Option<Schedule> {
        let explained = self.explained.take()?;
        (explained.memory_bytes == memory_bytes && explained.threads == threads)
            .then_some(explained.schedule)
    }

    /// A plan without tasks in which references to extents of this one are valid.
    pub fn of_the_same_extents(&self) -> Plan {
        let (areas, by_id) = (self.areas.clone(), self.by_id.clone());
        Plan {
            areas,
            by_id,
            held_bytes: self.held_bytes,
            ..Plan::new(self.name.clone())
        }
    }

    /// Names an extent on a device. The same extent gets the same reference.
    pub fn extent(&mut self, extent: &Extent) -> ExtentRef {
        self.extent_in_form(extent, None)
    }

    /// Names an extent whose bytes are decoded before tasks read them. Regions are told in bytes of
    /// the extent; a [`Block`] has `factor` times as many, its rows one behind the other. A plan that
    /// writes to the extent too is refused.
    pub fn decoded(&mut self, extent: &Extent, decoder: Decoder) -> ExtentRef {
        self.extent_in_form(extent, Some(decoder))
    }

    fn extent_in_form(&mut self, extent: &Extent, decoder: Option<Decoder>) -> ExtentRef {
        let key = (extent.id(), decoder.map_or(0, |decoder| decoder.form));
        if let Some(&known) = self.by_id.get(&key) {
            return known;
        }
        let reference = self.area(
            extent.name().to_owned(),
            extent.len(),
            Backing::Device(extent.clone()),
        );
        self.areas[reference.0 as usize].decoder = decoder;
        self.by_id.insert(key, reference);
        reference
    }

    /// Memory that lives as long as the run, zero at first; its regions are results of the run.
    /// Regions of it may be equal or disjoint, and are never written to a device.
    pub fn volatile(&mut self, name: impl Into<String>, bytes: u64) -> ExtentRef {
        self.area(name.into(), bytes, Backing::Volatile)
    }

    /// An empty region whose only purpose is that tasks which update it run one after another, in
    /// order.
    pub fn serial(&mut self) -> Region {
        Region::span(self.volatile("order", 1), 0, 1)
    }

    /// Memory of the caller, read in place.
    pub fn resident(&mut self, name: impl Into<String>, bytes: Shared) -> ExtentRef {
        self.area(name.into(), bytes.len() as u64, Backing::Resident(bytes))
    }

    /// Has the block of a region of a device live in `memory`, in place of a frame: loads read to it,
    /// tasks find the bytes in it, stores write from it. Rows begin `pitch` bytes apart, the first
    /// with the first byte; bytes between them are left as they are. The budget is charged for all
    /// of the memory while the plan runs. What the block holds last is in the memory when the run
    /// has ended, and [`GivenBlock::take`] returns it, after an error too.
    ///
    /// The first task to use the block may be one that [writes](Task::write) it: it finds what the
    /// memory held before, so bytes that are there already are stored by a task that does nothing.
    ///
    /// Any address and pitch will do. What lies in memory as it does on the device, address by
    /// address modulo the sector, is not copied ([`GivenBlock::direct_bytes`]); the rest is, on the
    /// engine's thread, by way of buffers that the plan reserves and predicts. Tasks see the memory
    /// at its address: one that takes `f32`s from the block needs it aligned for them.
    ///
    /// A plan is refused when it is explained or run if the region is not on a device or not inside
    /// it, if it has memory already, or if the memory is too short.
    pub fn given(&mut self, region: Region, pitch: usize, memory: Buf) -> GivenBlock {
        self.explained.take();
        self.given.add(&self.areas, region, pitch, memory)
    }

    fn area(&mut self, name: String, bytes: u64, backing: Backing) -> ExtentRef {
        self.explained.take();
        self.areas.push(Area {
            name,
            bytes,
            backing,
            decoder: None,
        });
        ExtentRef(self.areas.len() as u32 - 1)
    }

    /// Adds a task after the existing ones.
    pub fn task(&mut self, task: Task) {
        self.explained.take();
        self.tasks.push(task);
    }

    /// Orders tasks added from here on after those added before.
    pub fn group(&mut self) {
        self.explained.take();
        if *self.group_starts.last().expect("never empty") < self.tasks.len() {
            self.group_starts.push(self.tasks.len());
        }
    }

    /// Declares a lower bound of the bytes that any plan for this work moves.
    pub fn bound(&mut self, bytes: u64) {
        self.bound_bytes = bytes;
    }

    /// Declares bytes that are read by plans which are made later, for what `explain` says.
    pub fn reads_later(&mut self, bytes: u64) {
        self.later_bytes += bytes;
    }

    /// Charges memory that tasks bring with them, bytes, to the budget while the plan runs.
    pub fn hold(&mut self, bytes: u64) {
        self.explained.take();
        self.held_bytes += bytes;
    }

    /// Locks bytes beyond those that the tasks declare, from the start to the end of the run: for
    /// tasks that are added to it later. Without it, a task that is added for bytes which another
    /// run has locked meanwhile ends the run.
    pub fn lock(&mut self, region: Region, mode: Mode) {
        self.locks.push(Access { region, mode });
    }

    /// Says that another run begins where this one ends: blocks stay in memory even of extents that
    /// are larger.
    pub fn keeps(&mut self) {
        self.keeps = true;
    }

    /// Adds a line to what `explain` prints.
    pub fn note(&mut self, what: impl Into<String>, value: impl fmt::Display) {
        self.notes.push((what.into(), value.to_string()));
    }

    /// The plan's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True without tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Total arithmetic operations.
    pub fn flops(&self) -> u64 {
        self.tasks.iter().map(|task| task.flops).sum()
    }
}

/// Checks that a task stays within its extents and does not overlap itself where it writes.
pub(crate) fn check_task(plan: &str, areas: &[Area], task: &Task) -> Result<()> {
    let refuse = |reason: String| {
        Err(Error::Plan {
            plan: plan.to_owned(),
            reason: format!("task {}: {reason}", task.name),
        })
    };
    for (index, access) in task.accesses.iter().enumerate() {
        let Some(area) = areas.get(access.region.extent.0 as usize) else {
            return refuse("names an extent of another plan".into());
        };
        if access.region.stride < access.region.row_bytes {
            return refuse(format!("rows of {} overlap each other", area.name));
        }
        if access.region.end() > area.bytes && !access.region.is_empty() {
            return refuse(format!(
                "reaches byte {} of {}, which has {}",
                access.region.end(),
                area.name,
                area.bytes
            ));
        }
        if access.mode != Mode::Read && matches!(area.backing, Backing::Resident(_)) {
            return refuse(format!("writes to {}, which is read only", area.name));
        }
        let decoded = || areas.iter().any(|other| other.decodes(area));
        if access.mode != Mode::Read && decoded() {
            return refuse(format!("writes to {}, which is decoded", area.name));
        }
        // Equal regions are one block, which cannot be lent twice, even if it is empty.
        let shares =
            |other: &Access| access.region == other.region || access.region.overlaps(&other.region);
        let clash = |other: &Access| {
            (access.mode != Mode::Read || other.mode != Mode::Read) && shares(other)
        };
        if task.accesses[..index].iter().any(clash) {
            return refuse(format!(
                "writes bytes of {} that another of its accesses also declares",
                area.name
            ));
        }
    }
    Ok(())
}
