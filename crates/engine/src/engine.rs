//! The engine: a budget, and the operations on it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outcore_device::{Choice, DriverInfo, Locked};

use crate::error::{Error, Result};
use crate::inline;
use crate::memory::{Account, Budget, Reservation, Share};
use crate::plan::Plan;
use crate::pump::Handle;
use crate::reclaimable::ReclaimablePool;
use crate::run::{Outcome, Run};
use crate::schedule::{Explanation, concurrency};
use crate::ticket::{self, Ticket};
use crate::workers::in_task;

/// How long `reserve` waits for activities to return elastic memory, before it counts that memory
/// against the reservation.
const MAKE_ROOM_WITHIN: Duration = Duration::from_millis(100);

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget, bytes.
    pub memory_bytes: u64,
    /// Compute threads; 0 for one for each core that the process may use.
    pub threads: usize,
    /// The driver that carries requests to devices.
    pub driver: Choice,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes: 1 << 30,
            threads: 0,
            driver: Choice::Auto,
        }
    }
}

/// What an engine consists of.
#[derive(Clone, Debug)]
pub struct Info {
    /// The driver of its devices.
    pub driver: DriverInfo,
    /// Compute threads.
    pub threads: usize,
    /// Budget, bytes.
    pub memory_bytes: u64,
}

/// A budget, a driver and compute threads, with the activities on them. Clones are the same engine.
/// Threads and rings are created by the first call that needs them.
///
/// ```
/// use outcore_engine::{Config, Engine, Plan, Task};
///
/// let engine = Engine::new(Config { memory_bytes: 1 << 20, threads: 2, ..Config::default() });
/// assert_eq!((engine.budget().total(), engine.threads()), (1 << 20, 2));
/// println!("{:?}", engine.info()?.driver);
/// let think = || {
///     let mut plan = Plan::new("think");
///     plan.task(Task::new("all").flops(10));
///     plan
/// };
/// assert_eq!(engine.explain(&think())?.flops, 10);
/// assert_eq!(engine.run(think())?.wait()?.trace.flops, 10);
/// assert_eq!(engine.compute(think())?.trace.flops, 10);
/// # Ok::<(), outcore_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// That of the engine, or a part of it.
    budget: Budget,
}

struct Inner {
    /// All of it, whatever part of it a handle has.
    budget: Budget,
    threads: usize,
    driver: Choice,
    process: u32,
    started: Mutex<Option<(Handle, DriverInfo)>>,
}

impl Engine {
    /// An engine without threads; the first call that needs them creates them.
    pub fn new(config: Config) -> Engine {
        Engine::made(config, None)
    }

    /// An engine whose budget is a share of what several divide, which it keeps as long as anything
    /// of the budget may be in use. Nothing starts yet.
    pub fn sharing(config: Config, share: Share) -> Engine {
        let memory_bytes = share.bytes();
        Engine::made(
            Config {
                memory_bytes,
                ..config
            },
            Some(share),
        )
    }

    fn made(config: Config, share: Option<Share>) -> Engine {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let budget = Budget::new(config.memory_bytes, share);
        let inner = Arc::new(Inner {
            budget: budget.clone(),
            threads: if config.threads == 0 {
                cores()
            } else {
                config.threads
            },
            driver: config.driver,
            process: std::process::id(),
            started: Mutex::new(None),
        });
        Engine { inner, budget }
    }

    /// The same engine for a call that may have `bytes` bytes of its budget. They are taken from
    /// it, all or nothing, while anything is reserved through this handle: a run waits for them as
    /// it would for its own floor.
    ///
    /// ```
    /// use outcore_engine::{Config, Engine};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// assert_eq!(engine.part("a call", 1 << 18)?.budget().total(), 1 << 18);
    /// assert!(engine.part("a call", 1 << 21).is_err());
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] for more than the budget has.
    pub fn part(&self, what: &str, bytes: u64) -> Result<Engine> {
        Ok(Engine {
            inner: Arc::clone(&self.inner),
            budget: self.budget.part(what, bytes)?,
        })
    }

    /// The budget shared by all activities of this engine.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Number of compute threads.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// Starts the engine if necessary and describes it.
    ///
    /// # Errors
    /// [`Error::Device`] if no driver can be created.
    pub fn info(&self) -> Result<Info> {
        let (driver, threads) = self.with_handle(|handle, info| {
            let driver = handle.gauge().driver().unwrap_or_else(|| info.clone());
            let driver = DriverInfo {
                registered_bytes: handle.gauge().registered_bytes(),
                ..driver
            };
            Ok((driver, handle.workers().count()))
        })?;
        Ok(Info {
            driver,
            threads,
            memory_bytes: self.budget.total(),
        })
    }

    /// Reserves bytes for memory of the caller, all or nothing. Idle blocks are evicted if
    /// necessary.
    ///
    /// ```
    /// use outcore_engine::{Config, Engine};
    ///
    /// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
    /// let held = engine.reserve("a table", 1 << 19)?;
    /// assert!(engine.reserve("another table", 1 << 20).is_err());
    /// drop(held);
    /// assert!(engine.reserve("another table", 1 << 20).is_ok());
    /// # Ok::<(), outcore_engine::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`], naming `what` and the bytes.
    pub fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let reservation = self.budget.reserve(what, bytes)?;
        let (gauge, look) = self.with_handle(|handle, _| Ok((handle.gauge(), handle.poller())))?;
        look();
        let until = Instant::now() + MAKE_ROOM_WITHIN;
        while gauge.mapped_bytes() > self.inner.budget.inside() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(reservation)
    }

    /// Predicts a run of the plan within the memory available to it. No I/O.
    ///
    /// # Errors
    /// See [`Plan::explain`].
    pub fn explain(&self, plan: &Plan) -> Result<Explanation> {
        self.budget.check_around(plan.name())?;
        plan.explain(self.budget.plannable(), self.inner.threads)
    }

    /// A pool without pieces. Each piece counts as `piece_bytes` plus the bytes of the owner's
    /// tables.
    ///
    /// # Errors
    /// Those of an engine that cannot start.
    pub fn reclaimable_pool(
        &self,
        piece_bytes: usize,
        beside_bytes: u64,
    ) -> Result<ReclaimablePool> {
        self.with_handle(|handle, _| {
            ReclaimablePool::new(piece_bytes, beside_bytes, |pool| {
                handle.add_pool(pool)?;
                Ok(handle.poller())
            })
        })
    }

    /// Starts a plan. If it needs memory that other runs hold, it waits until they end. From inside
    /// a task it fails instead, because such a run may be waiting for that task.
    ///
    /// # Errors
    /// Before any I/O: [`Error::OverBudget`], [`Error::Plan`], [`Error::Closed`] in a forked child.
    /// All others are returned by the ticket.
    pub fn run(&self, mut plan: Plan) -> Result<Ticket<Outcome>> {
        self.budget.check_around(plan.name())?;
        let (memory_bytes, threads) = (self.budget.plannable(), self.inner.threads);
        let kept = plan.take_schedule(memory_bytes, threads);
        let schedule = kept.map_or_else(|| plan.schedule(memory_bytes, threads), Ok)?;
        let predicted = schedule.totals(memory_bytes);
        let shared = ticket::Shared::new();
        let run = Run::new(
            plan,
            schedule,
            Account::new(self.budget.for_run()),
            predicted,
            Arc::clone(&shared),
            !in_task(),
        );
        self.with_handle(|handle, _| {
            handle.start(&handle.mailbox(), Box::new(run))?;
            Ok(Ticket::new(shared, handle.poller()))
        })
    }

    /// Carries out a plan without I/O: its tasks read memory of the caller, do not depend on each
    /// other and add no tasks. The calling thread computes together with the compute threads, so
    /// that it need not wait for one to wake up. The call cannot be cancelled and is meant for work
    /// of less than a millisecond or so.
    ///
    /// # Errors
    /// [`Error::Plan`] for another plan, [`Error::Task`]; else those of [`run`](Engine::run).
    pub fn compute(&self, plan: Plan) -> Result<Outcome> {
        inline::check(&plan)?;
        let at_once = concurrency(
            self.budget.total(),
            inline::bytes(&plan, 1),
            self.inner.threads,
        );
        let (workers, gauge) =
            self.with_handle(|handle, _| Ok((handle.workers(), handle.gauge())))?;
        let bytes = inline::bytes(&plan, at_once);
        let reservation = self.budget.reserve_for_run(plan.name(), bytes);
        let (Ok(reservation), true) = (
            reservation,
            gauge.mapped_bytes() + bytes <= self.inner.budget.inside(),
        ) else {
            // It waits for memory that runs give back, or takes that of idle blocks.
            return self.run(plan)?.wait();
        };
        let outcome = inline::compute(plan, at_once, &workers);
        drop(reservation);
        if gauge.is_busy() {
            // An activity may be waiting for the memory that is free again.
            let look = self.with_handle(|handle, _| Ok(handle.poller()))?;
            look();
        }
        outcome
    }

    pub(crate) fn with_handle<T>(
        &self,
        act: impl FnOnce(&Handle, &DriverInfo) -> Result<T>,
    ) -> Result<T> {
        if std::process::id() != self.inner.process {
            return Err(Error::Closed);
        }
        let mut started = self.inner.started.locked();
        if started.is_none() {
            let driver =
                outcore_device::driver(self.inner.driver).map_err(|source| Error::Device {
                    object: "driver".into(),
                    source,
                })?;
            let info = driver.info();
            *started = Some((
                Handle::new(driver, self.inner.budget.clone(), self.inner.threads)?,
                info,
            ));
        }
        let (handle, info) = started.as_ref().expect("started above");
        act(handle, info)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child does not inherit threads: there is nothing to join.
        if std::process::id() != self.process {
            std::mem::forget(self.started.get_mut().ok().and_then(Option::take));
        }
    }
}

#[cfg(test)]
mod tests {
    use outcore_device::{Completion, DeviceError, Driver, MemoryDevice, OpKind, Request, Waker};

    use super::*;
    use crate::extent::Extent;
    use crate::plan::Task;
    use crate::region::Region;

    /// A driver whose first calls fail.
    struct Failing {
        inner: Box<dyn Driver>,
        times: usize,
    }

    impl Driver for Failing {
        fn submit(&mut self, requests: &mut Vec<Request>) {
            self.inner.submit(requests);
        }

        fn reap(
            &mut self,
            wait: Option<Duration>,
            out: &mut Vec<Completion>,
        ) -> std::result::Result<(), DeviceError> {
            if self.times > 0 && self.inner.in_flight() > 0 {
                self.times -= 1;
                let source = std::io::Error::from_raw_os_error(5);
                return Err(DeviceError {
                    device: "failing".into(),
                    op: OpKind::Drive,
                    offset: 0,
                    len: 0,
                    source,
                });
            }
            self.inner.reap(wait, out)
        }

        fn cancel(&mut self, wanted: &dyn Fn(u64) -> bool) {
            self.inner.cancel(wanted);
        }

        fn waker(&self) -> Waker {
            self.inner.waker()
        }

        fn in_flight(&self) -> usize {
            self.inner.in_flight()
        }

        fn info(&self) -> DriverInfo {
            self.inner.info()
        }
    }

    /// A failing driver closed the session: every later call reported only that it was closed.
    #[test]
    fn a_driver_that_fails_is_named_and_later_calls_go_on() {
        let engine = Engine::new(Config {
            memory_bytes: 1 << 20,
            threads: 1,
            driver: Choice::Threads,
        });
        let inner = outcore_device::driver(Choice::Threads).unwrap();
        let driver = Box::new(Failing { inner, times: 2 });
        let info = driver.info();
        *engine.inner.started.lock().unwrap() = Some((
            Handle::new(driver, engine.budget().clone(), 1).unwrap(),
            info,
        ));
        let device = Arc::new(MemoryDevice::new("memory", 8192));
        let read = || {
            let mut plan = Plan::new("read");
            let region = Region::span(
                plan.extent(&Extent::new("memory", Arc::clone(&device) as _)),
                0,
                8192,
            );
            plan.task(Task::new("read").read(region).run(|_| Ok(())));
            engine.run(plan).unwrap().wait()
        };
        let error = read().err().expect("its driver has failed");
        assert!(matches!(error, Error::Device { .. }), "{error}");
        assert!(error.to_string().contains("failing"), "{error}");
        let worked = (0..5).filter(|_| read().is_ok()).count();
        assert!(worked >= 4, "{worked} of 5 later runs");
    }
}
