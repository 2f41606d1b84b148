//! The io_uring driver: one ring, many devices, one system call for a whole batch.
//!
//! Devices with a descriptor are served by the ring; blocking ones by the pool of `threads.rs`, whose outbox rings an
//! eventfd that the ring reads. So `reap` waits in one place for the hardware, the pool, and wakes.
//!
//! What the kernel is given, it may use until the flight's completion is seen. The invariant that makes this sound has
//! two halves: `Flights` keeps a request (its buffer, its descriptor) until its last flight has landed, and `Uring`
//! never drops `Flights`, nor the bell's buffer, before everything has landed; where the kernel refuses to say, it leaks
//! them instead.

use crate::flights::{Action, Admission, Flights, Transfer};
use crate::threads::{Outbox, Pool};
use crate::{Anchor, Buf, Completion, DeviceError, Driver, DriverInfo, Options, Request, Waker};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name that errors and reports use.
const NAME: &str = "io_uring";

/// Marks the completion of the read on the bell; flights are numbered from 0.
const BELL: u64 = u64::MAX;

/// An eventfd is read as one 64-bit number.
const BELL_BYTES: usize = 8;

/// The bell's own entry must find room beside a full depth of flights.
const SPARE_ENTRIES: u32 = 1;

/// A driver that owns one ring.
pub(crate) struct Uring {
    ring: ManuallyDrop<IoUring>,
    flights: ManuallyDrop<Flights>,
    bell: Arc<OwnedFd>,
    bell_buffer: ManuallyDrop<Buf>,
    bell_armed: bool,
    outbox: Arc<Outbox>,
    pool: Pool,
    /// Answers that needed no hardware.
    ready: Vec<Completion>,
    in_flight: usize,
    depth: u32,
    registered: Registered,
    /// A forked child must not touch its parent's ring.
    process: u32,
}

impl Uring {
    /// Makes a ring and proves that it works; the error says what does not.
    pub(crate) fn new(options: Options) -> io::Result<Uring> {
        let depth = options.depth.clamp(1, 4096).next_power_of_two();
        let mut ring = build_ring(depth + SPARE_ENTRIES)?;
        check_features(&ring)?;
        check_round_trip(&mut ring)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let outbox = Outbox::new(Some(Box::new({
            let bell = Arc::clone(&bell);
            move || ring_bell(&bell)
        })));
        Ok(Uring {
            ring: ManuallyDrop::new(ring),
            flights: ManuallyDrop::new(Flights::new(depth as usize)),
            bell,
            bell_buffer: ManuallyDrop::new(Buf::anonymous(BELL_BYTES)?),
            bell_armed: false,
            pool: Pool::new(options.threads, Arc::clone(&outbox)),
            outbox,
            ready: Vec::new(),
            in_flight: 0,
            depth,
            registered: Registered::default(),
            process: std::process::id(),
        })
    }

    /// Queues for the kernel whatever there is room for.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        if !self.bell_armed && !queue.is_full() {
            let pointer = self.bell_buffer.as_mut_ptr();
            let entry = opcode::Read::new(Fd(self.bell.as_raw_fd()), pointer, BELL_BYTES as u32).build();
            // SAFETY: the buffer and the eventfd stay until the bell's completion is seen, see `drop`.
            self.bell_armed = unsafe { queue.push(&entry.user_data(BELL)) }.is_ok();
        }
        while !queue.is_full()
            && let Some(transfer) = self.flights.next()
        {
            let entry = encode(transfer, &self.registered);
            // SAFETY: the entry's memory and descriptor belong to a job in `flights`, which keeps them until the flight
            // has landed, and `flights` is not dropped before that, see `drop`.
            unsafe { queue.push(&entry) }.expect("room was checked");
        }
    }

    /// Takes what the kernel finished, and what arrived in the outbox; whether there was anything, a wake included.
    fn collect(&mut self, out: &mut Vec<Completion>) -> bool {
        let before = out.len();
        out.append(&mut self.ready);
        let mut rung = false;
        for entry in self.ring.completion() {
            if entry.user_data() == BELL {
                rung = true;
            } else {
                out.extend(self.flights.land(entry.user_data() as usize, entry.result()));
            }
        }
        if rung {
            self.bell_armed = false;
            rung = self.outbox.take(out);
        }
        self.in_flight -= out.len() - before;
        rung || out.len() > before
    }

    /// Hands queued entries to the kernel, lets it finish its own work, and waits for a completion if asked to.
    fn enter(&self, wait: Wait) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = match wait {
            Wait::No => submitter.submit(),
            Wait::Forever => submitter.submit_and_wait(1),
            Wait::For(limit) => {
                let limit = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        match entered {
            // A signal came, the time is over, or the kernel wants completions taken first: all of them end this wait,
            // and the caller's loop goes on from what it finds.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            entered => entered.map(drop),
        }
    }

    fn enter_or_fail(&self, wait: Wait) -> Result<(), DeviceError> {
        self.enter(wait).map_err(|source| DeviceError::drive(NAME, source))
    }

    /// Whether entering the kernel without waiting would do anything.
    fn has_kernel_work(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }
}

/// How long to wait in the kernel.
#[derive(Clone, Copy)]
enum Wait {
    No,
    Forever,
    For(Duration),
}

impl Driver for Uring {
    fn submit(&mut self, requests: &mut Vec<Request>) {
        self.in_flight += requests.len();
        for request in requests.drain(..) {
            if let Err(error) = request.check() {
                self.ready.push(request.complete(Err(error)));
                continue;
            }
            match self.flights.admit(request) {
                Admission::Queued => {}
                Admission::Done(completion) => self.ready.push(completion),
                Admission::Blocking(request) => self.pool.push(request),
            }
        }
        self.fill();
        if self.has_kernel_work()
            && let Err(error) = self.enter(Wait::No)
        {
            // The entries stay queued, and the next `reap` meets the same error where it can be returned.
            log::debug!("io_uring_enter: {error}");
        }
    }

    fn reap(&mut self, wait: Option<Duration>, out: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let mut deadline = None;
        loop {
            let arrived = self.collect(out);
            self.fill();
            if arrived {
                // What waited for room starts now; whatever else the kernel has can be had at the next call.
                return if self.ring.submission().is_empty() { Ok(()) } else { self.enter_or_fail(Wait::No) };
            }
            let left = match wait {
                None => Wait::Forever,
                Some(Duration::ZERO) => Wait::No,
                Some(wait) => {
                    let now = Instant::now();
                    match *deadline.get_or_insert_with(|| now.checked_add(wait)) {
                        None => Wait::Forever,
                        Some(deadline) if deadline <= now => Wait::No,
                        Some(deadline) => Wait::For(deadline - now),
                    }
                }
            };
            if let Wait::No = left {
                if self.has_kernel_work() {
                    self.enter_or_fail(Wait::No)?;
                    self.collect(out);
                }
                return Ok(());
            }
            self.enter_or_fail(left)?;
        }
    }

    fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.outbox))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn info(&self) -> DriverInfo {
        DriverInfo { name: NAME, depth: self.depth as usize, registered_bytes: self.registered.bytes, fallback: None }
    }

    fn register(&mut self, memory: Anchor) -> usize {
        self.registered.add(&self.ring, memory)
    }

    fn unregister(&mut self) {
        // Even what it cannot let go of yet is not named any more: its addresses may get other pages.
        self.registered.pieces.clear();
        // What the kernel has not taken yet names registered memory by its number.
        let taken = self.ring.submission().is_empty() || self.enter(Wait::No).is_ok() && self.ring.submission().is_empty();
        if taken {
            self.registered.clear(&self.ring);
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The ring, its flights and its memory are the parent's.
            return;
        }
        let mut out = Vec::new();
        while !self.flights.is_empty() || self.bell_armed {
            out.clear();
            self.collect(&mut out);
            if self.flights.is_empty() && !self.bell_armed {
                break;
            }
            if self.flights.is_empty() {
                // The bell's read ends like everything else: by being answered.
                ring_bell(&self.bell);
            } else {
                self.fill();
            }
            if let Err(error) = self.enter(Wait::Forever) {
                log::error!("io_uring cannot be drained, its buffers are given up: {error}");
                return;
            }
        }
        // SAFETY: everything has landed, so the kernel has no claim on this memory; each is dropped once, here, and the
        // ring first.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.flights);
            ManuallyDrop::drop(&mut self.bell_buffer);
        }
    }
}

fn ring_bell(bell: &OwnedFd) {
    // It fails only when 2^64 - 2 rings are pending; then the bell has been heard already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// The entry for a transfer. It holds raw pointers; the caller keeps what they point to.
fn encode(transfer: Transfer<'_>, registered: &Registered) -> squeue::Entry {
    let Transfer { flight, descriptor, offset, action } = transfer;
    let descriptor = Fd(descriptor);
    let entry = match action {
        Action::Read(buffer) => {
            let (pointer, len) = (buffer.as_mut_ptr(), buffer.len() as u32);
            match registered.find(buffer) {
                Some(index) => opcode::ReadFixed::new(descriptor, pointer, len, index).offset(offset).build(),
                None => {
                    let entry = opcode::Read::new(descriptor, pointer, len).offset(offset).build();
                    if has_pages(buffer) { entry } else { entry.flags(squeue::Flags::ASYNC) }
                }
            }
        }
        Action::Write(buffer) => {
            let (pointer, len) = (buffer.as_ptr(), buffer.len() as u32);
            match registered.find(buffer) {
                Some(index) => opcode::WriteFixed::new(descriptor, pointer, len, index).offset(offset).build(),
                None => opcode::Write::new(descriptor, pointer, len).offset(offset).build(),
            }
        }
        Action::Flush => opcode::Fsync::new(descriptor).flags(FsyncFlags::DATASYNC).build(),
        Action::Discard { len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(descriptor, len).offset(offset).mode(mode).build()
        }
    };
    entry.user_data(flight as u64)
}

/// Whether a read finds memory to read into. The system has to clear it first where nobody has touched it, which a thread of the
/// kernel does while others of the queue get started.
fn has_pages(buffer: &[u8]) -> bool {
    const WORTH_A_LOOK_BYTES: usize = 64 << 10;
    let page = rustix::param::page_size();
    let start = buffer.as_ptr().wrapping_sub(buffer.as_ptr() as usize % page);
    let mut resident = 1;
    // SAFETY: it writes one byte for one page, and reads no memory.
    let looked = buffer.len() < WORTH_A_LOOK_BYTES || unsafe { libc::mincore(start.cast_mut().cast(), page, &mut resident) } != 0;
    looked || resident & 1 == 1
}

/// A ring with the cheapest ways of completion that the kernel knows: completions are finished in our own system calls
/// instead of by interrupting the thread, and a flag in shared memory says when there are any.
///
/// The ring is not bound to one thread (`SINGLE_ISSUER`): a driver may move between threads, and whichever drops it must
/// be able to drain it.
fn build_ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(entries)
        .or_else(|_| IoUring::builder().build(entries))
}

fn check_features(ring: &IoUring) -> io::Result<()> {
    let unsupported = |what: &str| Err(io::Error::new(io::ErrorKind::Unsupported, what.to_owned()));
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return unsupported("this kernel's io_uring is too old (Linux 5.11 is needed)");
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let codes = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if codes.iter().any(|&code| !probe.is_supported(code)) {
        return unsupported("this kernel's io_uring lacks an operation");
    }
    Ok(())
}

/// Sandboxes may allow a ring to be made and forbid its use.
fn check_round_trip(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: a no-op has no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.expect("the ring is empty");
    ring.submitter().submit_and_wait(1)?;
    match ring.completion().next() {
        Some(entry) if entry.result() >= 0 => Ok(()),
        Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
        None => Err(io::Error::other("the ring lost a completion")),
    }
}

/// Memory that the kernel has pinned, in pieces that it numbers.
#[derive(Default)]
struct Registered {
    /// Sorted by address.
    pieces: Vec<Piece>,
    anchors: Vec<Anchor>,
    bytes: usize,
    has_table: bool,
}

struct Piece {
    start: usize,
    end: usize,
    index: u16,
}

impl Registered {
    /// Room for 1 TiB in the largest pieces.
    const MAX_PIECES: u16 = 1024;
    /// The kernel's bound for one piece.
    const MAX_PIECE_BYTES: usize = 1 << 30;
    /// Smaller pieces are not worth their slot.
    const MIN_PIECE_BYTES: usize = 64 << 10;

    /// Registers as much of `memory` as the system allows, from the start; how many bytes.
    ///
    /// The kernel pins pages before it looks at the limit, so a try that is far too large would make memory resident
    /// for nothing. The first piece is what an unprivileged user may have; success doubles the next, refusal halves it.
    fn add(&mut self, ring: &IoUring, memory: Anchor) -> usize {
        if !self.has_table && ring.submitter().register_buffers_sparse(u32::from(Self::MAX_PIECES)).is_err() {
            return 0;
        }
        self.has_table = true;
        let mut piece = lockable_bytes().clamp(Self::MIN_PIECE_BYTES, Self::MAX_PIECE_BYTES);
        let (range, mut done) = (memory.range(), 0);
        while done < range.len() && self.pieces.len() < usize::from(Self::MAX_PIECES) {
            let len = piece.min(range.len() - done);
            if self.add_piece(ring, range.start + done, len) {
                done += len;
                piece = (piece * 2).min(Self::MAX_PIECE_BYTES);
            } else if piece > Self::MIN_PIECE_BYTES {
                piece /= 2;
            } else {
                break;
            }
        }
        if done > 0 {
            self.anchors.push(memory);
            self.bytes += done;
        }
        done
    }

    fn add_piece(&mut self, ring: &IoUring, start: usize, len: usize) -> bool {
        let index = self.pieces.len() as u16;
        let vector = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: len };
        // SAFETY: the kernel pins the pages themselves, and uses them only for transfers into pieces of this memory
        // that flights keep alive. `anchors` keep the addresses from being given to other memory while they are in use
        // here, which would send bytes to the wrong place.
        let added = unsafe { ring.submitter().register_buffers_update(u32::from(index), &[vector], None) };
        if let Err(error) = added {
            log::debug!("registering {len} bytes: {error}");
            return false;
        }
        let place = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(place, Piece { start, end: start + len, index });
        true
    }

    fn clear(&mut self, ring: &IoUring) {
        if self.has_table
            && let Err(error) = ring.submitter().unregister_buffers()
        {
            log::debug!("unregistering buffers: {error}");
            return;
        }
        *self = Registered::default();
    }

    /// The piece that the whole buffer lies in.
    fn find(&self, buffer: &[u8]) -> Option<u16> {
        let start = buffer.as_ptr() as usize;
        let after = self.pieces.partition_point(|piece| piece.start <= start);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        (start + buffer.len() <= piece.end).then_some(piece.index)
    }
}

/// What this user may pin at least.
fn lockable_bytes() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
