//! The io_uring driver: one ring, many devices, one system call for a whole batch.
//!
//! Devices with a descriptor are served by the ring; blocking ones by the pool of `threads.rs`,
//! whose outbox signals an eventfd that the ring reads. So `reap` waits in one place for the
//! hardware, the pool, and wakes.
//!
//! The kernel may use the memory of a flight until its completion is seen. The invariant that makes
//! this sound has two halves: `Flights` keeps a request (its buffer, its descriptor) until its last
//! flight has landed, and `Uring` never drops `Flights`, nor the buffer of the bell, before
//! everything has landed; if it cannot wait for that, it leaks them.
//!
//! If the kernel refuses `io_uring_enter` permanently, the session continues: the ring is given up,
//! the pool carries out the requests that the kernel has not taken, the others are drained by
//! polling the shared completion queue, and every later request goes to the pool.

use crate::flights::{Action, Admission, Flights, Landed, Transfer};
use crate::threads::{Outbox, Pool};
use crate::{Anchor, Buf, Completion, DeviceError, Driver, DriverInfo, Options, Request, Waker};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name in errors and reports.
const NAME: &str = "io_uring";

/// Marks the completion of the read on the bell; flights are numbered from 0.
const BELL: u64 = u64::MAX;

/// An eventfd is read as one 64-bit number.
const BELL_BYTES: usize = 8;

/// Room for the entry of the bell beside a full depth of flights.
const SPARE_ENTRIES: u32 = 1;

/// How long the kernel may refuse requests before the ring is given up: a shortage of memory can be
/// temporary.
const REFUSED_MAX: Duration = Duration::from_millis(300);
/// Pause between two tries, and between two polls of a ring that has been given up.
const PAUSE: Duration = Duration::from_millis(1);
/// How long a ring that was given up is drained before the memory of its flights is leaked.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// A driver that owns one ring.
pub(crate) struct Uring {
    ring: ManuallyDrop<IoUring>,
    flights: ManuallyDrop<Flights>,
    bell: Arc<OwnedFd>,
    bell_buffer: ManuallyDrop<Buf>,
    bell_armed: bool,
    outbox: Arc<Outbox>,
    pool: Pool,
    /// Completions that needed no hardware.
    ready: Vec<Completion>,
    in_flight: usize,
    depth: u32,
    registered: Registered,
    /// A forked child must not touch its parent's ring.
    process: u32,
    /// Entries in the queue that the kernel has not taken, in order.
    untaken: VecDeque<u64>,
    /// Since when the kernel has refused every try.
    refused_since: Option<Instant>,
    /// Why the ring was given up.
    given_up: Option<String>,
    /// Error injected into `io_uring_enter`, in tests.
    #[cfg(test)]
    fault: Option<Box<dyn FnMut() -> Option<i32> + Send>>,
}

impl Uring {
    /// Makes a ring and checks that it works; the error says what does not.
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
            bell_buffer: ManuallyDrop::new(Buf::not_inherited(BELL_BYTES)?),
            bell_armed: false,
            pool: Pool::new(options.threads, Arc::clone(&outbox)),
            outbox,
            ready: Vec::new(),
            in_flight: 0,
            depth,
            registered: Registered::default(),
            process: std::process::id(),
            untaken: VecDeque::new(),
            refused_since: None,
            given_up: None,
            #[cfg(test)]
            fault: None,
        })
    }

    /// Queues flights for the kernel while there is room.
    fn fill(&mut self) {
        if self.given_up.is_some() {
            return;
        }
        let mut queue = self.ring.submission();
        if !self.bell_armed && !queue.is_full() {
            let pointer = self.bell_buffer.as_mut_ptr();
            let entry =
                opcode::Read::new(Fd(self.bell.as_raw_fd()), pointer, BELL_BYTES as u32).build();
            // SAFETY: the buffer and the eventfd stay until the bell's completion is seen, see
            // `drop`.
            self.bell_armed = unsafe { queue.push(&entry.user_data(BELL)) }.is_ok();
            self.untaken.extend(self.bell_armed.then_some(BELL));
        }
        while !queue.is_full()
            && let Some(transfer) = self.flights.next()
        {
            self.untaken.push_back(transfer.flight as u64);
            let entry = encode(transfer, &self.registered);
            // SAFETY: the entry's memory and descriptor belong to a job in `flights`, which keeps
            // them until the flight has landed, and `flights` is not dropped before that, see
            // `drop`.
            unsafe { queue.push(&entry) }.expect("room was checked");
        }
    }

    /// Collects the completions of the kernel and of the outbox; returns whether a completion or a
    /// wake had arrived.
    fn collect(&mut self, out: &mut Vec<Completion>) -> bool {
        let before = out.len();
        out.append(&mut self.ready);
        let mut rung = false;
        for entry in self.ring.completion() {
            if entry.user_data() == BELL {
                rung = true;
                continue;
            }
            match self
                .flights
                .land(entry.user_data() as usize, entry.result())
            {
                Some(Landed::Done(completion)) => out.push(completion),
                Some(Landed::Grounded(request)) => self.pool.push(request),
                None => {}
            }
        }
        if rung {
            self.bell_armed = false;
        }
        if rung || self.given_up.is_some() {
            rung = self.outbox.take(out);
        }
        self.in_flight -= out.len() - before;
        rung || out.len() > before
    }

    /// Submits queued entries to the kernel, lets it finish completions, and waits for one if asked
    /// to. An error means that the kernel refuses permanently.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let entered = self.try_enter(wait);
        let left = self.ring.submission().len();
        self.untaken.drain(..self.untaken.len() - left);
        let Err(error) = entered else {
            self.refused_since = None;
            return Ok(());
        };
        let is_first = self.refused_since.is_none();
        match error.raw_os_error() {
            // A signal or the timeout ends this wait; the caller's loop continues.
            Some(libc::EINTR | libc::ETIME) => Ok(()),
            // The completion queue is full, or the kernel is short of memory.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                if self
                    .refused_since
                    .get_or_insert_with(Instant::now)
                    .elapsed()
                    < REFUSED_MAX =>
            {
                if !is_first && !matches!(wait, Wait::No) {
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn try_enter(&mut self, wait: Wait) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(errno) = self.fault.as_mut().and_then(|fault| fault()) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let submitter = self.ring.submitter();
        match wait {
            Wait::No => submitter.submit(),
            Wait::Forever => submitter.submit_and_wait(1),
            Wait::For(limit) => {
                let limit = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        }
    }

    /// Continues without the ring.
    fn give_up(&mut self, error: &io::Error) {
        log::warn!("io_uring_enter: {error}; going on with threads");
        self.given_up = Some(format!("io_uring failed: {error}"));
        // The kernel reads the submission queue only in `io_uring_enter`, which is not called any
        // more.
        let untaken = std::mem::take(&mut self.untaken);
        if untaken.contains(&BELL) {
            self.bell_armed = false;
        }
        let flights = untaken
            .into_iter()
            .filter(|&data| data != BELL)
            .map(|data| data as usize);
        for request in self.flights.close(flights, &mut self.ready) {
            self.pool.push(request);
        }
    }

    fn reap_ring(&mut self, wait: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        let mut deadline = None;
        loop {
            let arrived = self.collect(out);
            self.fill();
            if arrived {
                // Requests that waited for room start now; further completions can be collected at
                // the next call.
                return if self.ring.submission().is_empty() {
                    Ok(())
                } else {
                    self.enter(Wait::No)
                };
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
                    self.enter(Wait::No)?;
                    self.collect(out);
                }
                return Ok(());
            }
            self.enter(left)?;
        }
    }

    /// Collects the completions of the pool and those of the ring that was given up.
    fn reap_pool(&mut self, wait: Option<Duration>, out: &mut Vec<Completion>) {
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            if self.collect(out) {
                return;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let look = if self.flights.is_empty() {
                left
            } else {
                Some(left.map_or(PAUSE, |left| left.min(PAUSE)))
            };
            let before = out.len();
            let arrived = self.outbox.take_within(look, out);
            self.in_flight -= out.len() - before;
            if arrived || left == Some(Duration::ZERO) {
                return;
            }
        }
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
            if self.given_up.is_some() {
                self.pool.push(request);
                continue;
            }
            match self.flights.admit(request) {
                Admission::Queued => {}
                Admission::Done(completion) => self.ready.push(completion),
                Admission::Blocking(request) => self.pool.push(request),
            }
        }
        self.fill();
        if self.given_up.is_none()
            && self.has_kernel_work()
            && let Err(error) = self.enter(Wait::No)
        {
            self.give_up(&error);
        }
    }

    fn reap(
        &mut self,
        wait: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<(), DeviceError> {
        let before = out.len();
        if self.given_up.is_none() {
            match self.reap_ring(wait, out) {
                Ok(()) => return Ok(()),
                Err(error) => self.give_up(&error),
            }
        }
        if out.len() == before {
            self.reap_pool(wait, out);
        }
        Ok(())
    }

    fn cancel(&mut self, wanted: &dyn Fn(u64) -> bool) {
        self.flights.cancel(wanted, &mut self.ready);
        self.pool.cancel(wanted);
        if !self.ready.is_empty() {
            // These are ready for a `reap` that would otherwise wait for the kernel.
            self.outbox.wake();
        }
    }

    fn has_fallen_back(&self) -> bool {
        self.given_up.is_some()
    }

    fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.outbox))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn info(&self) -> DriverInfo {
        match &self.given_up {
            None => DriverInfo {
                name: NAME,
                depth: self.depth as usize,
                registered_bytes: self.registered.bytes,
                fallback: None,
            },
            Some(why) => DriverInfo {
                name: "threads",
                depth: self.pool.limit(),
                registered_bytes: self.registered.bytes,
                fallback: Some(why.clone()),
            },
        }
    }

    fn register(&mut self, memory: Anchor) -> usize {
        if self.given_up.is_some() {
            0
        } else {
            self.registered.add(&self.ring, memory)
        }
    }

    fn unregister(&mut self) {
        // Pieces that cannot be unregistered yet are not used any more either: their addresses may
        // get other pages.
        self.registered.pieces.clear();
        // Entries that the kernel has not taken refer to registered memory by its number. The queue
        // of a ring that was given up is never read.
        let taken = self.given_up.is_some()
            || self.ring.submission().is_empty()
            || self.enter(Wait::No).is_ok() && self.ring.submission().is_empty();
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
        let (mut out, until) = (Vec::new(), Instant::now() + DRAIN_MAX);
        while !self.flights.is_empty() || self.bell_armed {
            out.clear();
            self.collect(&mut out);
            if self.flights.is_empty() && !self.bell_armed {
                break;
            }
            if self.flights.is_empty() {
                // Like any other operation, the read of the bell ends by completing.
                ring_bell(&self.bell);
            } else {
                self.fill();
            }
            if self.given_up.is_some() {
                std::thread::sleep(PAUSE);
                if Instant::now() > until {
                    log::error!("io_uring cannot be drained, its buffers are given up");
                    return;
                }
            } else if let Err(error) = self.enter(Wait::Forever) {
                self.give_up(&error);
            }
        }
        // SAFETY: everything has landed, so the kernel has no claim on this memory; each is dropped
        // once, here, and the ring first.
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
    let Transfer {
        flight,
        descriptor,
        offset,
        action,
    } = transfer;
    let descriptor = Fd(descriptor);
    let entry = match action {
        Action::Read(buffer) => {
            let (pointer, len) = (buffer.as_mut_ptr(), buffer.len() as u32);
            match registered.find(buffer) {
                Some(index) => opcode::ReadFixed::new(descriptor, pointer, len, index)
                    .offset(offset)
                    .build(),
                None => {
                    let entry = opcode::Read::new(descriptor, pointer, len)
                        .offset(offset)
                        .build();
                    if has_pages(buffer) {
                        entry
                    } else {
                        entry.flags(squeue::Flags::ASYNC)
                    }
                }
            }
        }
        Action::Write(buffer) => {
            let (pointer, len) = (buffer.as_ptr(), buffer.len() as u32);
            match registered.find(buffer) {
                Some(index) => opcode::WriteFixed::new(descriptor, pointer, len, index)
                    .offset(offset)
                    .build(),
                None => opcode::Write::new(descriptor, pointer, len)
                    .offset(offset)
                    .build(),
            }
        }
        Action::Flush => opcode::Fsync::new(descriptor)
            .flags(FsyncFlags::DATASYNC)
            .build(),
        Action::Discard { len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(descriptor, len)
                .offset(offset)
                .mode(mode)
                .build()
        }
    };
    entry.user_data(flight as u64)
}

/// Whether the pages to read into are resident. Untouched ones have to be cleared first, which a
/// thread of the kernel does while other requests of the queue are started.
fn has_pages(buffer: &[u8]) -> bool {
    const WORTH_A_LOOK_BYTES: usize = 64 << 10;
    let page = rustix::param::page_size();
    let start = buffer
        .as_ptr()
        .wrapping_sub(buffer.as_ptr() as usize % page);
    let mut resident = 1;
    // SAFETY: it writes one byte for one page, and reads no memory.
    let looked = buffer.len() < WORTH_A_LOOK_BYTES
        || unsafe { libc::mincore(start.cast_mut().cast(), page, &mut resident) } != 0;
    looked || resident & 1 == 1
}

/// A ring with the cheapest ways of completion that the kernel knows: completions are finished in
/// our own system calls instead of by interrupting the thread, and a flag in shared memory says
/// when there are any.
///
/// The ring is not bound to one thread (`SINGLE_ISSUER`): a driver may move between threads, and
/// whichever drops it must be able to drain it.
fn build_ring(entries: u32) -> io::Result<IoUring> {
    // A child has no use for the ring, which stays its parent's.
    IoUring::builder()
        .dontfork()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(entries)
        .or_else(|_| IoUring::builder().dontfork().build(entries))
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
    /// The kernel pins pages before it looks at the limit, so a try that is far too large would
    /// make memory resident for nothing. The first piece is what an unprivileged user may have;
    /// success doubles the next, refusal halves it.
    fn add(&mut self, ring: &IoUring, memory: Anchor) -> usize {
        if !self.has_table
            && ring
                .submitter()
                .register_buffers_sparse(u32::from(Self::MAX_PIECES))
                .is_err()
        {
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
        let vector = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(start),
            iov_len: len,
        };
        // SAFETY: the kernel pins the pages themselves, and uses them only for transfers into
        // pieces of this memory that flights keep alive. `anchors` keep the addresses from being
        // given to other memory while they are in use here, which would send bytes to the wrong
        // place.
        let added = unsafe {
            ring.submitter()
                .register_buffers_update(u32::from(index), &[vector], None)
        };
        if let Err(error) = added {
            log::debug!("registering {len} bytes: {error}");
            return false;
        }
        let place = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(
            place,
            Piece {
                start,
                end: start + len,
                index,
            },
        );
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
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Mode, Op, open_file};

    const BLOCK: usize = 64 << 10;
    const BLOCKS: usize = 200;

    fn pattern(block: usize) -> Vec<u8> {
        (0..BLOCK).map(|at| (at / 7 + block * 31) as u8).collect()
    }

    fn ring() -> Option<Uring> {
        Uring::new(Options {
            depth: 8,
            threads: 3,
        })
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
    }

    fn request(device: &Arc<dyn Device>, block: usize, op: Op) -> Request {
        Request {
            tag: block as u64,
            device: Arc::clone(device),
            offset: (block * BLOCK) as u64,
            op,
        }
    }

    fn reap_all(driver: &mut Uring) -> Vec<Completion> {
        let mut out = Vec::new();
        while driver.in_flight() > 0 {
            let before = driver.in_flight();
            driver
                .reap(Some(Duration::from_secs(60)), &mut out)
                .unwrap();
            assert!(driver.in_flight() < before, "{before} requests hang");
        }
        out
    }

    /// Writes blocks and reads them again; the calls of `io_uring_enter` that `fault` says fail.
    fn write_and_read(driver: &mut Uring) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blocks");
        let device: Arc<dyn Device> =
            open_file(&path, Mode::Create((BLOCK * BLOCKS) as u64)).unwrap();
        let writes = (0..BLOCKS).map(|block| {
            let mut buf = Buf::anonymous(BLOCK).unwrap();
            buf.copy_from_slice(&pattern(block));
            request(&device, block, Op::Write(buf.freeze()))
        });
        driver.submit(&mut writes.collect());
        let done = reap_all(driver);
        assert_eq!(done.len(), BLOCKS);
        done.into_iter().for_each(|done| done.result.unwrap());
        let reads = (0..BLOCKS)
            .map(|block| request(&device, block, Op::Read(Buf::anonymous(BLOCK).unwrap())));
        driver.submit(&mut reads.collect());
        let mut done = reap_all(driver);
        done.sort_by_key(|done| done.tag);
        assert_eq!(done.len(), BLOCKS);
        for (block, done) in done.into_iter().enumerate() {
            done.result.unwrap();
            let Op::Read(bytes) = done.op else {
                panic!("a read came back as something else")
            };
            assert!(bytes[..] == pattern(block)[..], "block {block}");
        }
    }

    /// `fault` fails the calls of these numbers.
    fn fails(driver: &mut Uring, errno: i32, calls: std::ops::Range<usize>) {
        let mut call = 0;
        driver.fault = Some(Box::new(move || {
            call += 1;
            calls.contains(&(call - 1)).then_some(errno)
        }));
    }

    #[test]
    fn what_the_kernel_refuses_for_a_moment_is_tried_again() {
        for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM] {
            let Some(mut driver) = ring() else { return };
            fails(&mut driver, errno, 3..20);
            write_and_read(&mut driver);
            assert_eq!(
                (driver.info().name, driver.has_fallen_back()),
                (NAME, false),
                "errno {errno}"
            );
        }
    }

    #[test]
    fn a_ring_that_the_kernel_refuses_for_good_is_replaced_by_threads() {
        for first in [0, 1, 2, 5, 11, 30] {
            for errno in [libc::EIO, libc::ENOMEM, libc::EBADF] {
                let Some(mut driver) = ring() else { return };
                fails(&mut driver, errno, first..usize::MAX);
                write_and_read(&mut driver);
                let info = driver.info();
                assert!(
                    driver.has_fallen_back(),
                    "errno {errno} from call {first} on"
                );
                assert_eq!(info.name, "threads");
                assert!(info.fallback.is_some_and(|why| why.contains("io_uring")));
                // A later call goes on, too.
                driver.unregister();
                write_and_read(&mut driver);
            }
        }
    }

    #[test]
    fn a_ring_that_is_given_up_can_be_woken_and_dropped_with_requests_in_flight() {
        let Some(mut driver) = ring() else { return };
        fails(&mut driver, libc::EIO, 2..usize::MAX);
        write_and_read(&mut driver);
        let waker = driver.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        driver.reap(None, &mut Vec::new()).unwrap();
        thread.join().unwrap();
        let Some(mut other) = ring() else { return };
        fails(&mut other, libc::EIO, 3..usize::MAX);
        let device: Arc<dyn Device> =
            Arc::new(crate::MemoryDevice::new("memory", (BLOCK * BLOCKS) as u64));
        let reads = (0..BLOCKS)
            .map(|block| request(&device, block, Op::Read(Buf::anonymous(BLOCK).unwrap())));
        other.submit(&mut reads.collect());
        drop(other);
    }

    #[test]
    fn cancelled_requests_that_have_not_begun_end_at_once() {
        let Some(mut driver) = ring() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blocks");
        let device: Arc<dyn Device> =
            open_file(&path, Mode::Create((BLOCK * BLOCKS) as u64)).unwrap();
        let reads = (0..BLOCKS)
            .map(|block| request(&device, block, Op::Read(Buf::anonymous(BLOCK).unwrap())));
        driver.submit(&mut reads.collect());
        driver.cancel(&|tag| tag % 2 == 1);
        let done = reap_all(&mut driver);
        assert_eq!(done.len(), BLOCKS);
        let failed = done
            .iter()
            .filter(|done| done.result.is_err())
            .collect::<Vec<_>>();
        assert!(
            failed.len() >= BLOCKS / 2 - 8,
            "{} of {BLOCKS}",
            failed.len()
        );
        assert!(failed.iter().all(|done| done.tag % 2 == 1));
    }
}
