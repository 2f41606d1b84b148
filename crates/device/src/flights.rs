//! The bookkeeping of a ring: which requests wait, which parts of them the kernel has, and how the
//! results of the parts are combined.
//!
//! A request becomes a *job*. A job is carried out in *flights*, each one transfer of at most the
//! device's limit; the flights of a long job run in parallel. Nothing here calls the kernel, and
//! once the tables have grown to the depth in use, nothing here allocates.
//!
//! Invariant: a job's request, and with it the buffer and the descriptor, stays in `jobs` until the
//! last of its flights has landed. The `unsafe` code of the ring relies on it.

use crate::threads::cancelled;
use crate::transfer::{advance, needed};
use crate::{Completion, Op, OpKind, Request, Route};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The kernel counts the bytes of one transfer in 31 bits.
const MAX_FLIGHT_BYTES: usize = 1 << 30;

/// How often the kernel may answer one flight with EAGAIN or EINTR before it fails.
const MAX_RETRIES: u8 = 100;

/// Most bytes in flight: enough to keep any device busy, and few enough that a slow one (100 MB/s)
/// completes them before a caller that cancels has waited for long.
const MAX_BYTES: usize = 32 << 20;

struct Job {
    request: Request,
    descriptor: RawFd,
    kind: OpKind,
    sector: u32,
    /// Length of the longest flight.
    part: usize,
    /// Offset at which the next flight begins.
    next: usize,
    /// End of the last flight.
    len: usize,
    /// Length that must be moved; the bytes behind it need not be.
    needed: usize,
    live_flights: u32,
    error: Option<io::Error>,
    /// The ring was given up before all flights of the job had started.
    grounded: bool,
}

struct Flight {
    job: usize,
    start: usize,
    position: usize,
    end: usize,
    retries: u8,
}

/// One operation for the kernel.
pub(crate) struct Transfer<'a> {
    /// Returned with the result.
    pub(crate) flight: usize,
    pub(crate) descriptor: RawFd,
    pub(crate) offset: u64,
    pub(crate) action: Action<'a>,
}

/// The operation and its memory.
pub(crate) enum Action<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Flush,
    Discard { len: u64 },
}

/// The outcome of admitting a request.
pub(crate) enum Admission {
    /// It is queued.
    Queued,
    /// It has no bytes to move and is complete.
    Done(Completion),
    /// It needs blocking calls.
    Blocking(Request),
}

/// The jobs and flights of one ring.
pub(crate) struct Flights {
    jobs: Slab<Job>,
    flights: Slab<Flight>,
    /// Jobs with flights that have not begun, oldest first.
    waiting: VecDeque<usize>,
    /// Flights that ended short and continue.
    again: Vec<usize>,
    depth: usize,
    /// Bytes of all flights.
    bytes: usize,
    /// No further flight starts.
    closed: bool,
}

/// The outcome of a request after its last flight has landed.
pub(crate) enum Landed {
    Done(Completion),
    /// The ring was given up before the whole request was carried out: the thread pool repeats it
    /// from the start.
    Grounded(Request),
}

impl Flights {
    pub(crate) fn new(depth: usize) -> Flights {
        let flights = Slab::with_capacity(depth);
        Flights {
            jobs: Slab::new(),
            flights,
            waiting: VecDeque::new(),
            again: Vec::new(),
            depth,
            bytes: 0,
            closed: false,
        }
    }

    /// Whether the kernel has no flight and no job waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes a checked request.
    pub(crate) fn admit(&mut self, request: Request) -> Admission {
        let descriptor = match request.device.route() {
            Route::Descriptor(descriptor) if request.op.kind() != OpKind::Offload => {
                descriptor.as_raw_fd()
            }
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
            sector: limits.sector,
            part: limits.max_transfer.min(MAX_FLIGHT_BYTES) & !(limits.sector as usize - 1),
            next: 0,
            len,
            needed,
            live_flights: 0,
            error: None,
            grounded: false,
        };
        job.part = job.part.max(limits.sector as usize);
        if needed == 0 || nothing_to_discard {
            return Admission::Done(job.complete());
        }
        self.waiting.push_back(self.jobs.insert(job));
        Admission::Queued
    }

    /// The next transfer to hand to the kernel, if the depth leaves room for one.
    pub(crate) fn next(&mut self) -> Option<Transfer<'_>> {
        let flight = self.again.pop().or_else(|| self.begin_flight())?;
        let Flight {
            job, position, end, ..
        } = self.flights[flight];
        let job = &mut self.jobs[job];
        let offset = job.request.offset + position as u64;
        let action = match &mut job.request.op {
            Op::Read(buf) => Action::Read(&mut buf[position..end]),
            Op::Write(shared) => Action::Write(&shared[position..end]),
            Op::Discard { len } => Action::Discard { len: *len },
            Op::Flush | Op::Offload { .. } => Action::Flush,
        };
        Some(Transfer {
            flight,
            descriptor: job.descriptor,
            offset,
            action,
        })
    }

    fn begin_flight(&mut self) -> Option<usize> {
        let full = self.bytes >= MAX_BYTES || self.flights.len() >= self.depth;
        if full || self.closed {
            return None;
        }
        let &index = self.waiting.front()?;
        let job = &mut self.jobs[index];
        let position = job.next;
        let end = job.len.min(position.saturating_add(job.part));
        self.bytes += end - position;
        job.next = end;
        job.live_flights += 1;
        if job.next >= job.needed {
            self.waiting.pop_front();
        }
        Some(self.flights.insert(Flight {
            job: index,
            start: position,
            position,
            end,
            retries: 0,
        }))
    }

    fn end_flight(&mut self, flight: usize) {
        let Flight {
            job, start, end, ..
        } = self.flights.remove(flight);
        self.bytes -= end - start;
        self.jobs[job].live_flights -= 1;
    }

    /// The outcome of a job that has no flight and starts none.
    fn finish(&mut self, index: usize) -> Option<Landed> {
        let job = &self.jobs[index];
        let over = job.live_flights == 0 && job.next >= job.needed;
        over.then(|| {
            let job = self.jobs.remove(index);
            match job.grounded && job.error.is_none() {
                true => Landed::Grounded(job.request),
                false => Landed::Done(job.complete()),
            }
        })
    }

    /// Cancels the flights that have not started of the requests whose tags are `wanted`. The
    /// requests fail with "cancelled"; those with flights in the kernel fail when these have
    /// landed.
    pub(crate) fn cancel(&mut self, wanted: &dyn Fn(u64) -> bool, out: &mut Vec<Completion>) {
        let (jobs, waiting) = (&mut self.jobs, &mut self.waiting);
        let mut ended = Vec::new();
        waiting.retain(|&index| {
            let job = &mut jobs[index];
            let goes = wanted(job.request.tag);
            if goes {
                job.next = job.len;
                job.error.get_or_insert_with(cancelled);
                ended.push(index);
            }
            !goes
        });
        for index in ended {
            if let Some(Landed::Done(completion)) = self.finish(index) {
                out.push(completion);
            }
        }
    }

    /// Closes the ring: no further flight starts. `untaken` are the flights that the kernel has
    /// never seen. Requests without a flight in the kernel go to the thread pool at once, the
    /// others when their flights have landed.
    pub(crate) fn close(
        &mut self,
        untaken: impl IntoIterator<Item = usize>,
        out: &mut Vec<Completion>,
    ) -> Vec<Request> {
        self.closed = true;
        let mut grounded: Vec<usize> = self.waiting.drain(..).collect();
        let again = std::mem::take(&mut self.again);
        for flight in untaken.into_iter().chain(again) {
            grounded.push(self.flights[flight].job);
            self.end_flight(flight);
        }
        grounded.sort_unstable();
        grounded.dedup();
        let ground = |index: usize| {
            let job = &mut self.jobs[index];
            (job.grounded, job.next) = (true, job.len);
            match self.finish(index)? {
                Landed::Grounded(request) => return Some(request),
                Landed::Done(completion) => out.push(completion),
            }
            None
        };
        grounded.into_iter().filter_map(ground).collect()
    }

    /// Records the result of a flight: bytes moved, or a negative error number. Returns the outcome
    /// of the job after its last flight.
    pub(crate) fn land(&mut self, flight: usize, result: i32) -> Option<Landed> {
        let state = &mut self.flights[flight];
        let index = state.job;
        let job = &mut self.jobs[index];
        match outcome(job, state, result) {
            Ok(Some(_)) if self.closed => (job.grounded, job.next) = (true, job.len),
            Ok(Some(next)) => {
                state.position = next;
                self.again.push(flight);
                return None;
            }
            Ok(None) => {}
            Err(error) => {
                if job.next < job.needed {
                    // The rest of a failed job is not started.
                    job.next = job.len;
                    self.waiting.retain(|&waiting| waiting != index);
                }
                job.error.get_or_insert(error);
            }
        }
        self.end_flight(flight);
        self.finish(index)
    }
}

/// The offset at which a flight continues, if it does.
fn outcome(job: &Job, flight: &mut Flight, result: i32) -> io::Result<Option<usize>> {
    if result < 0 {
        let error = io::Error::from_raw_os_error(-result);
        let passing = matches!(
            error.kind(),
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
        );
        if passing && flight.retries < MAX_RETRIES {
            flight.retries += 1;
            return Ok(Some(flight.position));
        }
        return Err(error);
    }
    match job.kind {
        OpKind::Read | OpKind::Write => {
            let needed = job.needed.min(flight.end);
            advance(
                job.kind,
                flight.position,
                result as usize,
                needed,
                job.sector,
            )
        }
        _ => Ok(None),
    }
}

impl Job {
    fn complete(mut self) -> Completion {
        let result = self.error.take().map_or(Ok(()), Err);
        if let (Op::Read(buf), Ok(())) = (&mut self.request.op, &result) {
            // Has an effect only for a read that runs past the end of the device.
            buf[self.needed..].fill(0);
        }
        self.request.complete(result)
    }
}
