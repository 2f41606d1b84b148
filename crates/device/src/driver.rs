//! The interface of a driver.
//!
//! A driver multiplexes many devices: whole batches go in, completions come out in any order, each
//! request exactly once. `submit` never blocks; `reap` is the only place to wait, and a [`Waker`]
//! ends that wait from any thread.

use crate::threads::Outbox;
use crate::{Anchor, Completion, DeviceError, Request};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Carries requests to devices. One session has one driver, used by one thread at a time.
///
/// Dropping a driver waits for the requests in flight, so that no memory is freed under a running
/// transfer.
pub trait Driver: Send {
    /// Takes all requests and starts as many as the depth allows; the others are queued inside.
    /// Never blocks. A request that violates the limits of its device is answered by a completion
    /// like any other.
    fn submit(&mut self, requests: &mut Vec<Request>);

    /// Appends completions to `out`. Returns as soon as there is one, a [`Waker`] was used since
    /// the last call, or `wait` has passed; `None` waits without limit, `Some(Duration::ZERO)` only
    /// polls.
    ///
    /// An error means that the driver itself has failed; requests in flight stay in flight.
    fn reap(
        &mut self,
        wait: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<(), DeviceError>;

    /// Cancels the requests whose tags are `wanted` and that have not started: each completes with
    /// an error. Requests that have started run to their end.
    fn cancel(&mut self, wanted: &dyn Fn(u64) -> bool);

    /// Whether the driver has fallen back to threads since it was made; [`info`](Driver::info)
    /// gives the reason.
    fn has_fallen_back(&self) -> bool {
        false
    }

    /// A handle that ends a waiting [`reap`](Driver::reap), or the next one if none is waiting.
    fn waker(&self) -> Waker;

    /// How many requests were submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Name, depth and state of this driver.
    fn info(&self) -> DriverInfo;

    /// Registers memory that many transfers will use, so that the driver can prepare it once
    /// instead of at each transfer. Returns the number of bytes, from the start, that were
    /// prepared: as many as the system allows, possibly none. They stay resident, even after their
    /// pieces are dropped, until [`unregister`](Driver::unregister) or drop.
    fn register(&mut self, memory: Anchor) -> usize {
        let _ = memory;
        0
    }

    /// Undoes every [`register`](Driver::register), unless the kernel is too busy to take the
    /// submitted requests; [`info`](Driver::info) shows what is still registered.
    fn unregister(&mut self) {}
}

/// Name, depth and state of a driver, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// `io_uring` or `threads`.
    pub name: &'static str,
    /// Most transfers in flight.
    pub depth: usize,
    /// How many bytes of memory are registered with the kernel.
    pub registered_bytes: usize,
    /// Why io_uring is not used, where it is not.
    pub fallback: Option<String>,
}

/// Bounds of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most transfers that io_uring keeps in flight; rounded up to a power of two.
    pub depth: u32,
    /// Most threads that serve blocking calls; they are started on demand.
    pub threads: usize,
}

impl Default for Options {
    /// 128 transfers keep today's SSDs busy; those for which the kernel has no tag, of which a device
    /// may have 256, wait and take processor time. Blocking calls need one thread a transfer; one SSD
    /// comes close to its best with 16, and the stacks of 16 threads are cheap.
    fn default() -> Self {
        Options {
            depth: 128,
            threads: 16,
        }
    }
}

/// Ends the wait of a driver's [`reap`](Driver::reap) from any thread.
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<Outbox>);

impl Waker {
    /// Ends the wait that is in progress, or else the next one. Several calls may end one wait
    /// only.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Waker")
    }
}
