//! A computation that is planned: look at it, then run it.
//!
//! A job is one or more plans, carried out one after another, and what makes the result of them.
//! Files that it writes are opened for writing when it starts, and become whole when it ends.

use std::sync::Arc;
use std::time::Duration;

use outcore_engine::{Explanation, Outcome, Plan, Progress, Ticket};

use crate::data::file::{StoredFile, Writer};
use crate::error::Result;
use crate::session::Session;

type Finish<T> = Box<dyn FnOnce(Vec<Outcome>) -> Result<T> + Send>;

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

impl<T> Job<T> {
    /// Checks that each plan fits the memory that is free now.
    pub(crate) fn new(session: &Session, plans: Vec<Plan>, finish: impl FnOnce(Vec<Outcome>) -> Result<T> + Send + 'static) -> Result<Job<T>> {
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
        let mut plans = self.plans.into_iter();
        let count = plans.len();
        let ticket = plans.next().map(|plan| self.session.engine().run(plan)).transpose()?;
        Ok(Running {
            session: self.session,
            ticket,
            plans,
            count,
            outcomes: Vec::new(),
            writers: self.writers,
            unfinished: self.unfinished,
            finish: self.finish,
        })
    }

    /// Runs to the end, blocking.
    ///
    /// # Errors
    /// Those of the computation.
    pub fn run(self) -> Result<T> {
        self.start()?.wait()
    }

    /// The same job with a result made from its result.
    pub fn map<U>(self, make: impl FnOnce(T) -> Result<U> + Send + 'static) -> Job<U>
    where
        T: 'static,
    {
        let Job { session, plans, explanations, writers, unfinished, finish } = self;
        Job { session, plans, explanations, writers, unfinished, finish: Box::new(|outcomes| make(finish(outcomes)?)) }
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
    finish: Finish<T>,
}

impl<T> Running<T> {
    /// Blocks for at most `timeout`, going on to the next plan when one is done. True when only
    /// [`wait`](Running::wait) is left to do.
    ///
    /// # Errors
    /// Those of the plan that failed.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        let Some(ticket) = &self.ticket else { return Ok(true) };
        if !ticket.wait_timeout(timeout) {
            return Ok(false);
        }
        self.next()?;
        Ok(self.ticket.is_none())
    }

    fn next(&mut self) -> Result<()> {
        let Some(ticket) = self.ticket.take() else { return Ok(()) };
        let outcome = ticket.wait()?;
        self.session.keep_trace(outcome.trace.clone());
        self.outcomes.push(outcome);
        self.ticket = self.plans.next().map(|plan| self.session.engine().run(plan)).transpose()?;
        Ok(())
    }

    /// Blocks to the end: the plans that are left, what makes the result of them, and the files made whole.
    ///
    /// # Errors
    /// Those of the computation.
    pub fn wait(mut self) -> Result<T> {
        while self.ticket.is_some() {
            self.next()?;
        }
        let result = (self.finish)(self.outcomes)?;
        self.writers.into_iter().try_for_each(Writer::finish)?;
        self.unfinished.iter().try_for_each(|file| file.commit())?;
        Ok(result)
    }

    /// Asks it to stop; the result is then [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(&self) {
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
