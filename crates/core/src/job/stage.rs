//! Where a driven job carries out its plans: each one made from what those before it found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outcore_device::Locked;
use outcore_engine::{Outcome, Plan, Reservation, Ticket, Trace};

use crate::error::{Error, Result};
use crate::job::{Job, Segments};
use crate::session::Session;

/// Between two looks at whether the job has been cancelled, and how far it is.
const LOOK: Duration = Duration::from_millis(20);

/// What a job and its waiting callers tell each other.
#[derive(Default)]
pub(super) struct Watch {
    cancelled: AtomicBool,
    /// Bits of an f64.
    fraction: AtomicU64,
}

impl Watch {
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    fn reach(&self, fraction: f64) {
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
    }
}

/// A plan that is being run.
pub struct Begun {
    since: Instant,
    ticket: Ticket<Outcome>,
}

/// The sum of the traces of a job's runs, and when the first of them began.
#[derive(Default)]
pub(super) struct Traces(Option<(Instant, Trace)>);

impl Traces {
    /// Adds a run that began then.
    pub(super) fn add(&mut self, since: Instant, trace: &Trace, threads: usize) {
        match &mut self.0 {
            // Of two that went on at once, the one that began later may have ended first.
            Some((first, sum)) => sum.append(
                trace,
                since.saturating_duration_since(*first).as_secs_f64(),
                threads,
            ),
            None => self.0 = Some((since, trace.clone())),
        }
    }

    /// Makes the sum the session's last trace.
    pub(super) fn keep(&mut self, session: &Session) {
        if let Some((_, trace)) = self.0.take() {
            session.keep_trace(trace);
        }
    }
}

/// Runs plans and jobs, most of them one after another, and adds up their traces to that of the
/// job.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// # use outcore_core::Job;
/// use outcore_engine::{Plan, Task};
///
/// let plan = || {
///     let mut plan = Plan::new("part");
///     plan.task(Task::new("think").flops(10));
///     plan
/// };
/// let session_of_parts = session.clone();
/// let job = Job::driven(&session, vec![plan()], move |stage, plans| {
///     let held = stage.reserve("sums", 4096)?;
///     for first in plans {
///         let begun = stage.begin(first)?;
///         let beside = stage.beside().run(plan(), 0.0)?;
///         let flops = stage.end(begun, 0.5)?.trace.flops + beside.trace.flops;
///         assert_eq!((flops, stage.fraction()), (20, 0.5));
///     }
///     stage.reach(0.75);
///     assert!(!stage.is_cancelled() && stage.check().is_ok());
///     drop(held);
///     stage.complete(Job::new(&session_of_parts, vec![plan()], |_| Ok("done"))?)
/// })?;
/// assert_eq!(job.run()?, "done");
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Stage {
    session: Session,
    watch: Arc<Watch>,
    traces: Arc<Mutex<Traces>>,
    /// How much of the job is done before the part that goes on, and after it.
    span: [f64; 2],
}

impl Stage {
    pub(super) fn new(session: &Session, watch: Arc<Watch>) -> Stage {
        Stage {
            session: session.clone(),
            watch,
            traces: Arc::default(),
            span: [0.0, 1.0],
        }
    }

    /// Runs a plan to its end; the job is then done to `fraction`.
    ///
    /// # Errors
    /// Those of the run; [`Error::Cancelled`] once the job has been cancelled.
    pub fn run(&mut self, plan: Plan, fraction: f64) -> Result<Outcome> {
        let begun = self.begin(plan)?;
        self.end(begun, fraction)
    }

    /// Runs a plan of very many tasks in segments, as [`Job::in_segments`]; the job is then done to `fraction`.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_core::Job;
    /// use outcore_engine::{Plan, Task};
    ///
    /// let job = Job::driven(&session, vec![], |stage, _| {
    ///     stage.run_in_segments(Plan::new("many"), 1.0, |segments| {
    ///         for _ in 0..10_000 {
    ///             segments.plan().task(Task::new("one"));
    ///             segments.may_end()?;
    ///         }
    ///         Ok(())
    ///     })
    /// })?;
    /// job.run()?;
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](Stage::run).
    pub fn run_in_segments(
        &mut self,
        plan: Plan,
        fraction: f64,
        make: impl FnOnce(&mut Segments<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut run = |segment| {
            let reached = self.fraction();
            self.run(segment, reached).map(drop)
        };
        let mut segments = Segments::new(plan, &mut run);
        make(&mut segments)?;
        segments.end()?;
        self.reach(fraction);
        Ok(())
    }

    /// Carries out a job that writes no files as a part of this one, which stays as far as it is.
    ///
    /// # Errors
    /// Those of the job; [`Error::Cancelled`] once this one has been cancelled.
    pub fn complete<T: Send + 'static>(&mut self, job: Job<T>) -> Result<T> {
        self.part(self.fraction(), |stage| job.run_within(stage))
    }

    /// Begins to run a plan that depends on none that go on.
    ///
    /// # Errors
    /// As [`run`](Stage::run).
    pub fn begin(&self, plan: Plan) -> Result<Begun> {
        self.check()?;
        Ok(Begun {
            since: Instant::now(),
            ticket: self.session.engine().run(plan)?,
        })
    }

    /// Waits for a plan that has begun; the job is then done to `fraction`.
    ///
    /// # Errors
    /// As [`run`](Stage::run).
    pub fn end(&mut self, begun: Begun, fraction: f64) -> Result<Outcome> {
        let (done, fraction) = (self.watch.fraction(), self.of_job(fraction));
        let Begun { since, ticket } = begun;
        while !ticket.wait_timeout(LOOK) {
            if self.watch.is_cancelled() {
                ticket.cancel();
            }
            self.watch
                .reach(done + (fraction - done) * ticket.progress().fraction);
        }
        let outcome = ticket.wait()?;
        self.watch.reach(fraction);
        self.traces
            .locked()
            .add(since, &outcome.trace, self.session.threads());
        Ok(outcome)
    }

    /// Reserves memory for what outlasts single plans. Waits for runs that go on, as a plan would.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when there will not be so much; [`Error::Cancelled`].
    pub fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let engine = self.session.engine();
        loop {
            self.check()?;
            match engine.reserve(what, bytes) {
                Err(outcore_engine::Error::OverBudget { .. })
                    if engine.budget().will_have(bytes) =>
                {
                    std::thread::sleep(LOOK)
                }
                done => return Ok(done?),
            }
        }
    }

    /// Says how far the job is, where it is not a plan that says so.
    pub fn reach(&self, fraction: f64) {
        self.watch.reach(self.of_job(fraction));
    }

    /// The same job's stage for another's hands.
    pub fn beside(&self) -> Stage {
        Stage {
            session: self.session.clone(),
            watch: Arc::clone(&self.watch),
            traces: Arc::clone(&self.traces),
            span: self.span,
        }
    }

    /// How much of the job is done, between 0 and 1.
    pub fn fraction(&self) -> f64 {
        let [start, end] = self.span;
        if end > start {
            (self.watch.fraction() - start) / (end - start)
        } else {
            0.0
        }
    }

    /// Does a part of the job, which is then done to `fraction`; the part counts from 0 to 1.
    pub(super) fn part<T>(&mut self, fraction: f64, work: impl FnOnce(&mut Stage) -> T) -> T {
        let span = [self.watch.fraction(), self.of_job(fraction)];
        let outer = std::mem::replace(&mut self.span, span);
        let done = work(self);
        self.span = outer;
        done
    }

    fn of_job(&self, fraction: f64) -> f64 {
        let [start, end] = self.span;
        start + (end - start) * fraction
    }

    /// Whether the job has been cancelled; long ways between plans look at it now and then.
    pub fn is_cancelled(&self) -> bool {
        self.watch.is_cancelled()
    }

    /// # Errors
    /// [`Error::Cancelled`] when the job has been cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Makes what was run so far the session's last trace.
    pub(super) fn keep_trace(&self) {
        self.traces.locked().keep(&self.session);
    }
}

impl Session {
    /// Runs a plan that is part of no job, until `stop`, which is asked some times a second, says
    /// so.
    ///
    /// ```
    #[doc = include_str!("../setup.doctest")]
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("small");
    /// plan.task(Task::new("think").flops(10));
    /// assert_eq!(session.run_until(plan, &|| false)?.trace.flops, 10);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the run; [`Error::Cancelled`].
    pub fn run_until(&self, plan: Plan, stop: &dyn Fn() -> bool) -> Result<Outcome> {
        let ticket = self.engine().run(plan)?;
        while !ticket.wait_timeout(LOOK) {
            if stop() {
                ticket.cancel();
            }
        }
        Ok(ticket.wait()?)
    }
}

#[cfg(test)]
mod tests {
    use outcore_engine::{Region, Task};

    use super::*;
    use crate::session::Settings;

    fn session() -> Session {
        Session::new(Settings {
            memory_bytes: Some(1 << 20),
            ..Settings::default()
        })
        .expect("a budget is all it takes")
    }

    /// Leaves a number behind.
    fn number(value: u64) -> (Plan, Region) {
        let mut plan = Plan::new("number");
        let region = Region::span(plan.volatile("number", 8), 0, 8);
        plan.task(Task::new("number").flops(1).write(region).run(move |cx| {
            cx.blocks[0].slice_mut::<u64>()[0] = value;
            Ok(())
        }));
        (plan, region)
    }

    #[test]
    fn what_a_plan_finds_makes_the_next_and_the_trace_is_that_of_all() {
        let session = session();
        let job = Job::driven(&session, vec![number(0).0], |stage, plans| {
            assert_eq!(plans.len(), 1);
            let mut values = vec![1];
            for round in 1..=5 {
                let (plan, region) = number(3 * values[values.len() - 1]);
                let outcome = stage.run(plan, f64::from(round) / 5.0)?;
                values.push(bytemuck::pod_read_unaligned(
                    outcome.result(&region).expect("it was written"),
                ));
            }
            Ok(values)
        });
        assert_eq!(
            job.expect("it fits").run().expect("nothing can fail"),
            [1, 3, 9, 27, 81, 243]
        );
        let trace = session.last_trace().expect("something was run");
        assert_eq!(
            (trace.flops, trace.runs, trace.plan.as_str()),
            (5, 5, "number")
        );
        assert_eq!(trace.spans.len(), 5);
        assert!(
            trace
                .spans
                .windows(2)
                .all(|pair| pair[0].end_s <= pair[1].start_s)
        );
        assert!(trace.spans[4].end_s <= trace.wall_s);
    }

    #[test]
    fn the_trace_of_a_job_of_several_plans_is_that_of_all() {
        let session = session();
        let job = Job::new(
            &session,
            (0..3).map(|value| number(value).0).collect(),
            |outcomes| Ok(outcomes.len()),
        );
        assert_eq!(job.expect("it fits").run().expect("nothing can fail"), 3);
        let trace = session.last_trace().expect("something was run");
        assert_eq!((trace.runs, trace.flops, trace.spans.len()), (3, 3, 3));
    }

    #[test]
    fn a_cancelled_job_ends_with_what_it_makes_of_that() {
        let job = Job::driven(&session(), Vec::new(), |stage, _| {
            let mut rounds = 0;
            while stage.run(number(0).0, 0.5).is_ok() {
                rounds += 1;
            }
            assert!(matches!(stage.check(), Err(Error::Cancelled)));
            Ok(rounds)
        });
        let mut running = job.expect("it fits").start().expect("a thread can be had");
        while !running
            .wait_timeout(Duration::from_millis(1))
            .expect("nothing fails")
        {
            if running.progress().fraction > 0.0 {
                running.cancel();
            }
        }
        assert!(running.wait().expect("the job decides") > 0);
    }

    #[test]
    fn a_job_that_cannot_be_stopped_is_left_alone() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let job = Job::driven(&session(), Vec::new(), move |_, _| {
            _ = receiver.recv();
            Ok(())
        });
        let running = job.expect("it fits").start().expect("a thread can be had");
        running.cancel();
        assert!(matches!(running.wait(), Err(Error::Cancelled)));
        drop(sender);
    }

    #[test]
    fn what_is_made_of_the_result_is_left_alone_as_well() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel::<()>();
        let job = Job::driven(&session(), Vec::new(), |_, _| Ok(())).expect("it fits");
        let job = job.map(move |()| {
            begun.send(()).expect("it is waited for");
            Ok(receiver.recv().is_err())
        });
        let mut running = job.start().expect("a thread can be had");
        has_begun.recv().expect("the thread makes it");
        let is_over = running.wait_timeout(Duration::from_millis(1));
        assert!(!is_over.expect("nothing fails"));
        running.cancel();
        assert!(matches!(running.wait(), Err(Error::Cancelled)));
        drop(sender);
    }

    #[test]
    fn jobs_that_are_parts_of_one_share_its_progress() {
        let session = session();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let part = |name: u64| {
            let seen = Arc::clone(&seen);
            let plans = vec![number(name).0];
            let work = move |stage: &mut Stage, plans: Vec<Plan>| {
                for plan in plans {
                    stage.run(plan, 0.5)?;
                    seen.locked()
                        .push((stage.fraction(), stage.watch.fraction()));
                }
                stage.complete(Job::driven(
                    &stage.session.clone(),
                    Vec::new(),
                    |stage, _| {
                        stage.reach(1.0);
                        Ok(())
                    },
                )?)?;
                seen.locked()
                    .push((stage.fraction(), stage.watch.fraction()));
                stage.reach(1.0);
                Ok(name)
            };
            Job::driven(&session, plans, work).expect("it fits")
        };
        let given = Arc::new(Mutex::new(0));
        let kept = Arc::clone(&given);
        let both = part(1).feeding(move |found| *kept.locked() = found, part(2));
        assert_eq!(both.run().expect("nothing can fail"), 2);
        assert_eq!(*given.locked(), 1);
        let halves = [(0.5, 0.25), (0.5, 0.25), (0.5, 0.75), (0.5, 0.75)];
        assert_eq!(*seen.locked(), halves);
    }

    #[test]
    fn what_outlasts_plans_takes_from_the_budget_of_plans() {
        let job = Job::driven(&session(), Vec::new(), |stage, _| {
            let held = stage.reserve("the first half", 1 << 19)?;
            assert!(matches!(
                stage.reserve("more than is left", (1 << 19) + 1),
                Err(Error::OverBudget { .. })
            ));
            drop(held);
            stage.reserve("everything", 1 << 20).map(|all| all.bytes())
        });
        assert_eq!(job.expect("it fits").run().expect("it fits"), 1 << 20);
    }
}
