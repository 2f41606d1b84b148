//! A computation that is planned: look at it, then run it.
//!
//! A job is one or more plans, carried out one after another, and what makes the result of them.
//! Files that it writes are opened for writing when it starts, and become whole when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outcore_engine::{Explanation, Outcome, Plan, Progress, Ticket};

use crate::data::file::{StoredFile, Writer};
use crate::error::{Error, Result};
use crate::session::Session;

type Finish<T> = Box<dyn FnOnce(Vec<Outcome>, &AtomicBool) -> Result<T> + Send>;

/// Planned work with a result of type `T`. Nothing has moved yet.
#[must_use = "a job does nothing until it is run"]
pub struct Job<T> {
    session: Session,
    plans: Vec<Plan>,
    explanations: Vec<Explanation>,
    writers: Vec<Writer>,
    unfinished: Vec<Arc<StoredFile>>,
    finish: Finish<T>,
}

impl<T: Send + 'static> Job<T> {
    /// Checks that each plan fits the memory that is free now.
    pub(crate) fn new(
        session: &Session,
        plans: Vec<Plan>,
        finish: impl FnOnce(Vec<Outcome>) -> Result<T> + Send + 'static,
    ) -> Result<Job<T>> {
        Job::cancellable(session, plans, |outcomes, _| finish(outcomes))
    }

    /// The same, with a long way from outcomes to result that looks at a flag now and then.
    pub(crate) fn cancellable(
        session: &Session,
        plans: Vec<Plan>,
        finish: impl FnOnce(Vec<Outcome>, &AtomicBool) -> Result<T> + Send + 'static,
    ) -> Result<Job<T>> {
        let explanations = plans.iter().map(|plan| session.engine().explain(plan)).collect::<std::result::Result<_, _>>()?;
        let (writers, unfinished, finish) = (Vec::new(), Vec::new(), Box::new(finish));
        Ok(Job { session: session.clone(), plans, explanations, writers, unfinished, finish })
    }

    /// Adds a file that the plans write.
    pub(crate) fn writes(mut self, writer: Option<Writer>, file: Option<Arc<StoredFile>>) -> Job<T> {
        self.writers.extend(writer);
        self.unfinished.extend(file);
        self
    }

    /// What each plan is going to read, write and hold.
    pub fn explain(&self) -> &[Explanation] {
        &self.explanations
    }

    /// Begins.
    ///
    /// # Errors
    /// When a file cannot be opened for writing, or memory has been taken since it was planned.
    pub fn start(mut self) -> Result<Running<T>> {
        self.writers.iter_mut().try_for_each(Writer::begin)?;
        let count = self.plans.len();
        let mut running = Running {
            session: self.session,
            ticket: None,
            plans: self.plans.into_iter(),
            count,
            outcomes: Vec::new(),
            writers: self.writers,
            unfinished: self.unfinished,
            finish: Some(self.finish),
            finishing: None,
            cancelled: Arc::default(),
        };
        running.next()?;
        Ok(running)
    }

    /// Runs to the end, blocking.
    ///
    /// # Errors
    /// Those of the computation.
    pub fn run(self) -> Result<T> {
        self.start()?.wait()
    }

    /// The same job with a result made from its result.
    pub fn map<U: Send + 'static>(self, make: impl FnOnce(T) -> Result<U> + Send + 'static) -> Job<U> {
        let Job { session, plans, explanations, writers, unfinished, finish } = self;
        Job {
            session,
            plans,
            explanations,
            writers,
            unfinished,
            finish: Box::new(|outcomes, cancelled| make(finish(outcomes, cancelled)?)),
        }
    }
}

/// Work that has begun. Dropping it cancels it.
pub struct Running<T> {
    session: Session,
    ticket: Option<Ticket<Outcome>>,
    plans: std::vec::IntoIter<Plan>,
    count: usize,
    outcomes: Vec<Outcome>,
    writers: Vec<Writer>,
    unfinished: Vec<Arc<StoredFile>>,
    finish: Option<Finish<T>>,
    finishing: Option<JoinHandle<Result<T>>>,
    cancelled: Arc<AtomicBool>,
}

impl<T: Send + 'static> Running<T> {
    /// Blocks for at most `timeout`, going on to what comes next when something is done. True when
    /// [`wait`](Running::wait) has nothing left to wait for.
    ///
    /// # Errors
    /// Those of the plan that failed.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        if let Some(thread) = &self.finishing {
            let deadline = Instant::now() + timeout;
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1).min(timeout));
            }
            return Ok(thread.is_finished());
        }
        if self.ticket.as_ref().is_some_and(|ticket| ticket.wait_timeout(timeout)) {
            self.next()?;
        }
        Ok(false)
    }

    /// Takes what a plan has left behind and begins what follows it.
    fn next(&mut self) -> Result<()> {
        if let Some(ticket) = self.ticket.take() {
            let outcome = ticket.wait()?;
            self.session.keep_trace(outcome.trace.clone());
            self.outcomes.push(outcome);
        }
        if let Some(plan) = self.plans.next() {
            self.ticket = Some(self.session.engine().run(plan)?);
        } else if let Some(finish) = self.finish.take() {
            let (outcomes, cancelled) = (std::mem::take(&mut self.outcomes), Arc::clone(&self.cancelled));
            let thread = std::thread::Builder::new().name("outcore-finish".into()).spawn(move || finish(outcomes, &cancelled));
            self.finishing = Some(thread.map_err(|source| Error::NoMemory { bytes: 0, source })?);
        }
        Ok(())
    }

    /// Blocks to the end: the plans that are left, what makes the result of them, and the files made whole.
    ///
    /// # Errors
    /// Those of the computation.
    pub fn wait(mut self) -> Result<T> {
        while self.finishing.is_none() {
            self.next()?;
        }
        let finishing = self.finishing.take().expect("begun above");
        let result = finishing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        std::mem::take(&mut self.writers).into_iter().try_for_each(Writer::finish)?;
        self.unfinished.iter().try_for_each(|file| file.commit())?;
        Ok(result)
    }
}

impl<T> Running<T> {
    /// Asks it to stop; the result is then [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(ticket) = &self.ticket {
            ticket.cancel();
        }
    }

    /// How far it is; plans count alike.
    pub fn progress(&self) -> Progress {
        let done = self.outcomes.len() as f64;
        let now = self.ticket.as_ref().map(Ticket::progress);
        let fraction = (done + now.map_or(0.0, |now| now.fraction)) / self.count.max(1) as f64;
        let elapsed = now.map_or(Duration::ZERO, |now| now.elapsed);
        Progress { fraction, elapsed, eta: now.and_then(|now| now.eta) }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.ticket = None;
        // Whatever it holds is let go before the files are.
        if let Some(thread) = self.finishing.take() {
            let _ = thread.join();
        }
    }
}
