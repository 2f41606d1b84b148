//! The handle of a call in progress: wait for it, poll it, cancel it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use outcore_device::{Locked, PANICKED};

use crate::error::{Error, Result};
use crate::event::Event;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Between 0 and 1.
    pub fraction: f64,
    /// Since the start.
    pub elapsed: Duration,
    /// Expected time to the end; `None` while it is unknown.
    pub eta: Option<Duration>,
}

/// State shared by both ends.
pub(crate) struct Shared<T> {
    slot: Mutex<Slot<T>>,
    filled: Condvar,
    pub(crate) cancelled: Arc<AtomicBool>,
    done: AtomicU64,
    total: AtomicU64,
    start: Instant,
    /// Created on first request, under the lock of the slot.
    event: OnceLock<Option<Event>>,
}

enum Slot<T> {
    Empty,
    Full(Result<T>),
    Taken,
}

impl<T> Shared<T> {
    pub(crate) fn new() -> Arc<Shared<T>> {
        Arc::new(Shared {
            slot: Mutex::new(Slot::Empty),
            filled: Condvar::new(),
            cancelled: Arc::new(AtomicBool::new(false)),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            start: Instant::now(),
            event: OnceLock::new(),
        })
    }

    pub(crate) fn expect(&self, total: u64) {
        self.total.fetch_add(total, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    pub(crate) fn fill(&self, result: Result<T>) {
        let mut slot = self.slot.locked();
        if matches!(*slot, Slot::Empty) {
            *slot = Slot::Full(result);
            self.filled.notify_all();
            if let Some(Some(event)) = self.event.get() {
                event.set(true);
            }
        }
    }
}

/// A call in progress. Dropping it cancels the call.
pub struct Ticket<T> {
    shared: Arc<Shared<T>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl<T> Ticket<T> {
    pub(crate) fn new(
        shared: Arc<Shared<T>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Ticket<T> {
        Ticket {
            shared,
            wake: Box::new(wake),
        }
    }

    /// Blocks until the result is available.
    ///
    /// # Errors
    /// The run's.
    pub fn wait(self) -> Result<T> {
        let mut slot = self.shared.slot.locked();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Full(result) => return result,
                Slot::Taken => return Err(Error::Closed),
                Slot::Empty => *slot = Slot::Empty,
            }
            slot = self.shared.filled.wait(slot).expect(PANICKED);
        }
    }

    /// Blocks for at most `timeout`; true if the result is available to [`wait`](Ticket::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let slot = self.shared.slot.locked();
        let empty = |slot: &mut Slot<T>| matches!(slot, Slot::Empty);
        let (slot, _) = self
            .shared
            .filled
            .wait_timeout_while(slot, timeout, empty)
            .expect(PANICKED);
        !matches!(*slot, Slot::Empty)
    }

    /// True if the result is available.
    pub fn poll(&self) -> bool {
        self.wait_timeout(Duration::ZERO)
    }

    /// Cancels the run. It drains the requests in flight; the result is then [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Release);
        (self.wake)();
    }

    /// Progress of the run.
    pub fn progress(&self) -> Progress {
        let (done, total) = (
            self.shared.done.load(Ordering::Relaxed),
            self.shared.total.load(Ordering::Relaxed),
        );
        let elapsed = self.shared.start.elapsed();
        let fraction = if total == 0 {
            0.0
        } else {
            (done as f64 / total as f64).min(1.0)
        };
        let eta = (done > 0).then(|| elapsed.mul_f64((1.0 - fraction) / fraction));
        Progress {
            fraction,
            elapsed,
            eta,
        }
    }

    /// A descriptor that becomes readable when the result is available; `None` if the system
    /// refused one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let slot = self.shared.slot.locked();
        let made = || {
            let event = Event::new().ok()?;
            if !matches!(*slot, Slot::Empty) {
                event.set(true);
            }
            Some(event)
        };
        self.shared.event.get_or_init(made).as_ref().map(Event::fd)
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        if !self.poll() {
            self.cancel();
        }
    }
}
