//! The bookkeeping of a ring: which requests wait, which parts of them the kernel has, and how results add up.
//!
//! A request becomes a *job*. A job is carried out in *flights*, each one transfer of at most the device's limit; the
//! flights of a long job run side by side. Nothing here touches the kernel, and after the tables have grown to the
//! depth in use, nothing here allocates.
//!
//! Invariant: a job's request, and with it the buffer and the descriptor, stays in `jobs` until the last of its flights
//! has landed. The ring's `unsafe` code leans on that.

use crate::transfer::{advance, needed};
use crate::{Completion, Op, OpKind, Request, Route};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The kernel counts one transfer's bytes in 31 bits.
const MAX_FLIGHT_BYTES: usize = 1 << 30;

/// How often one flight may be told "not now" before that counts as an error.
const MAX_RETRIES: u8 = 100;

struct Job {
    request: Request,
    descriptor: RawFd,
    kind: OpKind,
    block: u32,
    /// The longest flight.
    part: usize,
    /// Where the next flight begins.
    next: usize,
    /// Where the last flight may end.
    len: usize,
    /// The bytes from here on need not be moved.
    needed: usize,
    live_flights: u32,
    error: Option<io::Error>,
}

struct Flight {
    job: usize,
    position: usize,
    end: usize,
    retries: u8,
}

/// What the kernel is to do for one flight.
pub(crate) struct Transfer<'a> {
    /// Comes back with the result.
    pub(crate) flight: usize,
    pub(crate) descriptor: RawFd,
    pub(crate) offset: u64,
    pub(crate) action: Action<'a>,
}

/// The kernel's operation and its memory.
pub(crate) enum Action<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Flush,
    Discard { len: u64 },
}

/// What became of an admitted request.
pub(crate) enum Admission {
    /// It will fly.
    Queued,
    /// There is nothing to move.
    Done(Completion),
    /// Only blocking calls can do it.
    Blocking(Request),
}

/// The jobs and flights of one ring.
pub(crate) struct Flights {
    jobs: Slab<Job>,
    flights: Slab<Flight>,
    /// Jobs with flights that have not begun, oldest first.
    waiting: VecDeque<usize>,
    /// Flights that landed short and go on.
    again: Vec<usize>,
    depth: usize,
}

impl Flights {
    pub(crate) fn new(depth: usize) -> Flights {
        let flights = Slab::with_capacity(depth);
        Flights { jobs: Slab::new(), flights, waiting: VecDeque::new(), again: Vec::new(), depth }
    }

    /// Whether the kernel has nothing of ours and nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes a checked request.
    pub(crate) fn admit(&mut self, request: Request) -> Admission {
        let descriptor = match request.device.route() {
            Route::Descriptor(descriptor) if request.op.kind() != OpKind::Offload => descriptor.as_raw_fd(),
            _ => return Admission::Blocking(request),
        };
        let kind = request.op.kind();
        let limits = request.device.limits();
        let len = match &request.op {
            Op::Read(buf) => buf.len(),
            Op::Write(shared) => shared.len(),
            // One flight that moves no bytes.
            Op::Flush | Op::Discard { .. } | Op::Offload { .. } => 1,
        };
        let needed = needed(kind, request.device.len(), request.offset, len);
        let nothing_to_discard = kind == OpKind::Discard && request.op.is_empty();
        let mut job = Job {
            request,
            descriptor,
            kind,
            block: limits.block,
            part: limits.max_transfer.min(MAX_FLIGHT_BYTES) & !(limits.block as usize - 1),
            next: 0,
            len,
            needed,
            live_flights: 0,
            error: None,
        };
        job.part = job.part.max(limits.block as usize);
        if needed == 0 || nothing_to_discard {
            return Admission::Done(job.complete());
        }
        self.waiting.push_back(self.jobs.insert(job));
        Admission::Queued
    }

    /// The next transfer to hand to the kernel, if the depth leaves room for one.
    pub(crate) fn next(&mut self) -> Option<Transfer<'_>> {
        let flight = self.again.pop().or_else(|| self.begin_flight())?;
        let Flight { job, position, end, .. } = self.flights[flight];
        let job = &mut self.jobs[job];
        let offset = job.request.offset + position as u64;
        let action = match &mut job.request.op {
            Op::Read(buf) => Action::Read(&mut buf[position..end]),
            Op::Write(shared) => Action::Write(&shared[position..end]),
            Op::Discard { len } => Action::Discard { len: *len },
            Op::Flush | Op::Offload { .. } => Action::Flush,
        };
        Some(Transfer { flight, descriptor: job.descriptor, offset, action })
    }

    fn begin_flight(&mut self) -> Option<usize> {
        if self.flights.len() >= self.depth {
            return None;
        }
        let &index = self.waiting.front()?;
        let job = &mut self.jobs[index];
        let position = job.next;
        let end = job.len.min(position.saturating_add(job.part));
        job.next = end;
        job.live_flights += 1;
        if job.next >= job.needed {
            self.waiting.pop_front();
        }
        Some(self.flights.insert(Flight { job: index, position, end, retries: 0 }))
    }

    /// Notes what the kernel said of a flight: bytes moved, or a negative error number. The answer is there when that
    /// was the job's last flight.
    pub(crate) fn land(&mut self, flight: usize, result: i32) -> Option<Completion> {
        let state = &mut self.flights[flight];
        let index = state.job;
        let job = &mut self.jobs[index];
        match outcome(job, state, result) {
            Ok(Some(next)) => {
                state.position = next;
                self.again.push(flight);
                return None;
            }
            Ok(None) => {}
            Err(error) => {
                if job.next < job.needed {
                    // The rest of a failed job never begins.
                    job.next = job.len;
                    self.waiting.retain(|&waiting| waiting != index);
                }
                job.error.get_or_insert(error);
            }
        }
        self.flights.remove(flight);
        job.live_flights -= 1;
        let done = job.live_flights == 0 && job.next >= job.needed;
        done.then(|| self.jobs.remove(index).complete())
    }
}

/// Where a flight goes on, if it does.
fn outcome(job: &Job, flight: &mut Flight, result: i32) -> io::Result<Option<usize>> {
    if result < 0 {
        let error = io::Error::from_raw_os_error(-result);
        let passing = matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
        if passing && flight.retries < MAX_RETRIES {
            flight.retries += 1;
            return Ok(Some(flight.position));
        }
        return Err(error);
    }
    match job.kind {
        OpKind::Read | OpKind::Write => {
            let needed = job.needed.min(flight.end);
            advance(job.kind, flight.position, result as usize, needed, job.block)
        }
        _ => Ok(None),
    }
}

impl Job {
    fn complete(mut self) -> Completion {
        let result = self.error.take().map_or(Ok(()), Err);
        if let (Op::Read(buf), Ok(())) = (&mut self.request.op, &result) {
            // Only a read that runs past the device's end has anything here.
            buf[self.needed..].fill(0);
        }
        self.request.complete(result)
    }
}
