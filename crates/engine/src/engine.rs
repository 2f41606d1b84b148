//! The engine's face: a budget, and the verbs on it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outcore_device::{Choice, DriverInfo, Locked};

use crate::error::{Error, Result};
use crate::inline;
use crate::memory::{Account, Budget, Reservation, Share};
use crate::plan::Plan;
use crate::pump::Handle;
use crate::run::{Outcome, Run};
use crate::schedule::{Explanation, concurrency};
use crate::ticket::{self, Ticket};
use crate::workers::in_task;

/// Who has more than it needs gives it back within this time, or counts against the next.
const MAKE_ROOM_WITHIN: Duration = Duration::from_millis(100);

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that it may hold.
    pub memory_bytes: u64,
    /// Compute threads; 0 for one for each core that the process may use.
    pub threads: usize,
    /// How bytes reach devices.
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

/// What an engine runs on.
#[derive(Clone, Debug)]
pub struct Info {
    /// The driver of its devices.
    pub driver: DriverInfo,
    /// Compute threads.
    pub threads: usize,
    /// Budget, bytes.
    pub memory_bytes: u64,
}

/// A budget, a driver, compute threads, and what goes on with them. Clones are the same engine.
/// Threads and rings come into being with the first call that needs them.
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
    /// Nothing starts yet.
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
    /// # Errors
    /// [`Error::OverBudget`] for more than the budget has.
    pub fn part(&self, what: &str, bytes: u64) -> Result<Engine> {
        Ok(Engine {
            inner: Arc::clone(&self.inner),
            budget: self.budget.part(what, bytes)?,
        })
    }

    /// The budget that everything here shares.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Number of compute threads.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// Starts the engine if need be and says what it runs on.
    ///
    /// # Errors
    /// [`Error::Device`] when no driver can be had.
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

    /// Reserves bytes for memory of the caller's own, all or nothing. Idle blocks are evicted for
    /// it.
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

    /// Predicts a run of the plan with the memory that it may have. No I/O.
    ///
    /// # Errors
    /// See [`Plan::explain`].
    pub fn explain(&self, plan: &Plan) -> Result<Explanation> {
        self.budget.check_around(plan.name())?;
        plan.explain(self.budget.plannable(), self.inner.threads)
    }

    /// Starts a plan. What it needs while other runs go on it gets when they end; from inside a
    /// task, which such a run may be waiting for, it fails instead.
    ///
    /// # Errors
    /// Before any I/O: [`Error::OverBudget`], [`Error::Plan`], [`Error::Closed`] in a forked child.
    /// The ticket has the others.
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

    /// Carries out a plan that moves nothing: its tasks read memory of the caller's and none waits
    /// for another or adds any. The caller computes with the compute threads, so that no thread has
    /// to be woken first; it cannot be cancelled. For work that ends in a moment.
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
            // An activity may have waited for what is free again.
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
        // Threads are not inherited by a forked child: there is nothing to join there.
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

    /// The session died with it: every call, then and later, said only that it was closed.
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
