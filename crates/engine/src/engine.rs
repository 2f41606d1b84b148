//! The engine's face: a budget, and the verbs on it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outcore_device::{Choice, DriverInfo};

use crate::error::{Error, Result};
use crate::memory::{Account, Budget, Reservation};
use crate::moment;
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
        Config { memory_bytes: 1 << 30, threads: 0, driver: Choice::Auto }
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
pub struct Engine(Arc<Inner>);

struct Inner {
    budget: Budget,
    threads: usize,
    driver: Choice,
    process: u32,
    started: Mutex<Option<(Handle, DriverInfo)>>,
}

impl Engine {
    /// Nothing starts yet.
    pub fn new(config: Config) -> Engine {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Engine(Arc::new(Inner {
            budget: Budget::new(config.memory_bytes),
            threads: if config.threads == 0 { cores() } else { config.threads },
            driver: config.driver,
            process: std::process::id(),
            started: Mutex::new(None),
        }))
    }

    /// The budget that everything here shares.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Number of compute threads.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Starts the engine if need be and says what it runs on.
    ///
    /// # Errors
    /// [`Error::Device`] when no driver can be had.
    pub fn info(&self) -> Result<Info> {
        let driver = self
            .with_handle(|handle, info| Ok(DriverInfo { registered_bytes: handle.gauge().registered_bytes(), ..info.clone() }))?;
        Ok(Info { driver, threads: self.0.threads, memory_bytes: self.0.budget.total() })
    }

    /// Reserves bytes for memory of the caller's own, all or nothing. Blocks that nobody uses make room for it.
    ///
    /// # Errors
    /// [`Error::OverBudget`], naming `what` and the bytes.
    pub fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let reservation = self.0.budget.reserve(what, bytes)?;
        let (gauge, look) = self.with_handle(|handle, _| Ok((handle.gauge(), handle.looker())))?;
        look();
        let until = Instant::now() + MAKE_ROOM_WITHIN;
        while gauge.mapped_bytes() > self.0.budget.inside() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(reservation)
    }

    /// Predicts a run of the plan with the memory that it may have. No I/O.
    ///
    /// # Errors
    /// See [`Plan::explain`].
    pub fn explain(&self, plan: &Plan) -> Result<Explanation> {
        plan.explain(self.0.budget.plannable(), self.0.threads)
    }

    /// Starts a plan. What it needs while other runs go on it gets when they end; from inside a task, which such a run may
    /// be waiting for, it fails instead.
    ///
    /// # Errors
    /// Before any I/O: [`Error::OverBudget`], [`Error::Plan`], [`Error::Closed`] in a forked child. The ticket has the others.
    pub fn run(&self, plan: Plan) -> Result<Ticket<Outcome>> {
        let memory_bytes = self.0.budget.plannable();
        let schedule = plan.schedule(memory_bytes, self.0.threads)?;
        let predicted = schedule.totals(memory_bytes);
        let shared = ticket::Shared::new();
        let run = Run::new(plan, schedule, Account::new(self.0.budget.for_run()), predicted, Arc::clone(&shared), !in_task());
        self.with_handle(|handle, _| {
            handle.start(&handle.mailbox(), Box::new(run))?;
            Ok(Ticket::new(shared, handle.looker()))
        })
    }

    /// Carries out a plan that moves nothing: its tasks read memory of the caller's and none waits for another or adds any. The
    /// caller computes with the compute threads, so that nobody has to be woken first; it cannot be cancelled. For work that
    /// ends in a moment.
    ///
    /// # Errors
    /// [`Error::Plan`] for another plan, [`Error::Task`]; else those of [`run`](Engine::run).
    pub fn compute(&self, plan: Plan) -> Result<Outcome> {
        moment::check(&plan)?;
        let at_once = concurrency(self.0.budget.total(), moment::bytes(&plan, 1), self.0.threads);
        let (workers, gauge) = self.with_handle(|handle, _| Ok((handle.workers(), handle.gauge())))?;
        let (bytes, budget) = (moment::bytes(&plan, at_once), &self.0.budget);
        let reservation = budget.reserve_for_run(plan.name(), bytes);
        let (Ok(reservation), true) = (reservation, gauge.mapped_bytes() + bytes <= budget.inside()) else {
            // It waits for memory that runs give back, or takes that of idle blocks.
            return self.run(plan)?.wait();
        };
        let outcome = moment::compute(plan, at_once, &workers);
        drop(reservation);
        if gauge.is_busy() {
            // Somebody may have waited for what is free again.
            let look = self.with_handle(|handle, _| Ok(handle.looker()))?;
            look();
        }
        outcome
    }

    pub(crate) fn with_handle<T>(&self, act: impl FnOnce(&Handle, &DriverInfo) -> Result<T>) -> Result<T> {
        if std::process::id() != self.0.process {
            return Err(Error::Closed);
        }
        let mut started = self.0.started.lock().expect("no panic while held");
        if started.is_none() {
            let driver =
                outcore_device::driver(self.0.driver).map_err(|source| Error::Device { object: "driver".into(), source })?;
            let info = driver.info();
            *started = Some((Handle::new(driver, self.0.budget.clone(), self.0.threads)?, info));
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
