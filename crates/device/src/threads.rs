//! Blocking calls on a bounded pool of threads.
//!
//! The pool serves devices with a blocking route under every driver, and is a whole driver where
//! there is no io_uring. A thread starts when a job finds none idle; all threads end with the pool,
//! after the queued jobs.
//!
//! Invariant: a queued job puts exactly one completion into the outbox, even if its device panics.

use crate::transfer::perform;
use crate::{Completion, DeviceError, Driver, DriverInfo, Options, Request, Waker};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Enough for `pread` and the bookkeeping of a device.
const STACK_BYTES: usize = 256 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section below keeps its state consistent at each step, so a panic of another
    // holder is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Completions of the pool, and wakes, for the one thread that reaps.
pub(crate) struct Outbox {
    state: Mutex<Arrived>,
    arrival: Condvar,
    bell: Bell,
}

#[derive(Default)]
struct Arrived {
    completions: Vec<Completion>,
    woken: bool,
}

/// Called when the outbox stops being empty, for a driver that waits on something else.
pub(crate) type Bell = Option<Box<dyn Fn() + Send + Sync>>;

impl Outbox {
    pub(crate) fn new(bell: Bell) -> Arc<Outbox> {
        Arc::new(Outbox {
            state: Mutex::default(),
            arrival: Condvar::new(),
            bell,
        })
    }

    fn put(&self, completion: Completion) {
        self.update(|state| state.completions.push(completion));
    }

    pub(crate) fn wake(&self) {
        self.update(|state| state.woken = true);
    }

    fn update(&self, change: impl FnOnce(&mut Arrived)) {
        let mut state = lock(&self.state);
        let was_quiet = !state.woken && state.completions.is_empty();
        change(&mut state);
        drop(state);
        self.arrival.notify_one();
        // Called once until the next `take`, so that a burst of completions costs one system call.
        if was_quiet && let Some(ring) = &self.bell {
            ring();
        }
    }

    /// Moves the completions into `out`, for a driver that waits on the bell; returns whether a
    /// completion or a wake had arrived.
    #[cfg(target_os = "linux")]
    pub(crate) fn take(&self, out: &mut Vec<Completion>) -> bool {
        drain(&mut lock(&self.state), out)
    }

    /// As `take`, after waiting until a completion or wake arrives or `wait` has passed.
    pub(crate) fn take_within(&self, wait: Option<Duration>, out: &mut Vec<Completion>) -> bool {
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        let mut state = lock(&self.state);
        while !drain(&mut state, out) {
            state = match deadline {
                None => self
                    .arrival
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.arrival
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        true
    }
}

fn drain(state: &mut Arrived, out: &mut Vec<Completion>) -> bool {
    let arrived = state.woken || !state.completions.is_empty();
    state.woken = false;
    out.append(&mut state.completions);
    arrived
}

/// A bounded pool of threads that carry out requests with blocking calls.
pub(crate) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    limit: usize,
    /// A forked child has none of its parent's threads.
    process: u32,
}

struct Queue {
    state: Mutex<Waiting>,
    work: Condvar,
    outbox: Arc<Outbox>,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Request>,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(limit: usize, outbox: Arc<Outbox>) -> Pool {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            work: Condvar::new(),
            outbox,
        });
        Pool {
            queue,
            threads: Vec::new(),
            limit: limit.max(1),
            process: std::process::id(),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Queues a checked request.
    pub(crate) fn push(&mut self, request: Request) {
        let mut state = lock(&self.queue.state);
        state.jobs.push_back(request);
        let wanted = state.jobs.len() > state.idle && self.threads.len() < self.limit;
        drop(state);
        self.queue.work.notify_one();
        if wanted {
            self.start_thread();
        }
    }

    fn start_thread(&mut self) {
        let queue = Arc::clone(&self.queue);
        let name = format!("outcore-io-{}", self.threads.len());
        let started = std::thread::Builder::new()
            .name(name)
            .stack_size(STACK_BYTES)
            .spawn(move || queue.serve());
        match started {
            Ok(thread) => self.threads.push(thread),
            // The existing threads will take the job.
            Err(error) if !self.threads.is_empty() => log::debug!("no further I/O thread: {error}"),
            Err(error) => self.fail_queued(&error),
        }
    }

    fn fail_queued(&self, error: &io::Error) {
        let jobs = std::mem::take(&mut lock(&self.queue.state).jobs);
        for request in jobs {
            let error = io::Error::new(
                error.kind(),
                format!("outcore needs a thread for I/O, and the system refused it: {error}"),
            );
            self.queue.outbox.put(request.complete(Err(error)));
        }
    }

    /// Cancels the requests whose tags are `wanted` and that no thread has started.
    pub(crate) fn cancel(&self, wanted: &dyn Fn(u64) -> bool) {
        let mut state = lock(&self.queue.state);
        let (ended, left): (Vec<Request>, _) = state
            .jobs
            .drain(..)
            .partition(|request| wanted(request.tag));
        state.jobs = left.into();
        drop(state);
        ended
            .into_iter()
            .for_each(|request| self.queue.outbox.put(request.complete(Err(cancelled()))));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The threads do not exist in this process: a join would wait forever, as would a lock
            // that another thread held during the fork.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        lock(&self.queue.state).closed = true;
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches panics of devices; if it has panicked all the same, the join has
            // nothing to report.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn serve(&self) {
        while let Some(request) = self.next() {
            self.outbox.put(carry_out(request));
        }
    }

    fn next(&self) -> Option<Request> {
        let mut state = lock(&self.state);
        loop {
            if let Some(request) = state.jobs.pop_front() {
                return Some(request);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// The error of a request that its caller has cancelled.
pub(crate) fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())
}

fn carry_out(mut request: Request) -> Completion {
    let result = catch_unwind(AssertUnwindSafe(|| perform(&mut request)))
        .unwrap_or_else(|_| Err(io::Error::other("the device panicked")));
    request.complete(result)
}

/// The driver that consists of the pool.
pub(crate) struct Threads {
    pool: Pool,
    outbox: Arc<Outbox>,
    in_flight: usize,
    fallback: String,
}

impl Threads {
    pub(crate) fn new(options: Options, fallback: String) -> Threads {
        let outbox = Outbox::new(None);
        Threads {
            pool: Pool::new(options.threads, Arc::clone(&outbox)),
            outbox,
            in_flight: 0,
            fallback,
        }
    }
}

impl Driver for Threads {
    fn submit(&mut self, requests: &mut Vec<Request>) {
        self.in_flight += requests.len();
        for request in requests.drain(..) {
            match request.check() {
                Ok(()) => self.pool.push(request),
                Err(error) => self.outbox.put(request.complete(Err(error))),
            }
        }
    }

    fn reap(
        &mut self,
        wait: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<(), DeviceError> {
        let before = out.len();
        self.outbox.take_within(wait, out);
        self.in_flight -= out.len() - before;
        Ok(())
    }

    fn cancel(&mut self, wanted: &dyn Fn(u64) -> bool) {
        self.pool.cancel(wanted);
    }

    fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.outbox))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn info(&self) -> DriverInfo {
        DriverInfo {
            name: "threads",
            depth: self.pool.limit(),
            registered_bytes: 0,
            fallback: Some(self.fallback.clone()),
        }
    }
}
