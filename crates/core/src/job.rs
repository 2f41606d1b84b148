//! A computation that is planned: look at it, then run it.
//!
//! A job is one or more plans, carried out one after another, and what makes the result of them; or
//! it is driven, where each plan depends on what those before it found ([`Stage`]). Files that it
//! writes are opened for writing when it starts, and become whole when it ends.

mod over;
mod segments;
mod stage;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outcore_device::Locked;
use outcore_engine::{Explanation, Outcome, Plan, Progress, Ticket, plan_until};

use crate::error::{Error, Result};
use crate::file::{StoredFile, Writer};
use crate::session::Session;

pub use segments::Segments;
pub use stage::Stage;
use stage::{Traces, Watch};

/// What makes the result.
enum Finish<T> {
    /// Of the outcomes of all plans, in no time.
    Outcomes(Box<dyn FnOnce(Vec<Outcome>) -> Result<Made<T>> + Send>),
    /// Of the first plans, on a thread of its own, which runs what it needs.
    Driven(Driver<T>),
}

impl<T> Finish<T> {
    /// Runs the plans as a part of a driven job, and what makes the result of them.
    fn carry_out(self, stage: &mut Stage, plans: Vec<Plan>) -> Result<Made<T>> {
        match self {
            Finish::Driven(work) => work(stage, plans),
            Finish::Outcomes(finish) => {
                let count = plans.len() as f64;
                let run = |(number, plan)| stage.run(plan, (number + 1) as f64 / count);
                finish(
                    plans
                        .into_iter()
                        .enumerate()
                        .map(run)
                        .collect::<Result<_>>()?,
                )
            }
        }
    }
}

type Driver<T> = Box<dyn FnOnce(&mut Stage, Vec<Plan>) -> Result<Made<T>> + Send>;

/// The result, once the files are whole.
type Made<T> = Box<dyn FnOnce() -> Result<T> + Send>;

fn made<T: Send + 'static>(result: T) -> Made<T> {
    Box::new(move || Ok(result))
}

/// What is left of a running job.
enum Rest<T> {
    Plans(Finish<T>),
    Thread(JoinHandle<()>, Receiver<Result<Made<T>>>),
    /// The result is there, and a thread makes the files whole.
    Files(Made<T>, Receiver<Result<()>>),
    Result(Result<Made<T>>),
    /// A plan failed, and its error has been handed out.
    Failed,
}

/// A driven job that has been cancelled is waited for so long: what is in flight drains sooner, and
/// tasks check the flag every 0.1 s or so, but a dense decomposition, a function of the caller's, or
/// a file system that makes a file durable cannot be stopped, and is left alone. What it holds
/// counts until it ends.
const LEAVE_ALONE_AFTER: Duration = Duration::from_millis(300);

/// A driven job that took so long returns freed heap memory to the system, which takes a
/// millisecond or so.
const TRIM_AFTER: Duration = Duration::from_millis(100);

/// Planned work with a result of type `T`. Nothing has moved yet.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_core::Job;
/// use outcore_engine::{Plan, Region, Task};
///
/// let file = session.scratch_file(None, 8192)?;
/// let mut plan = Plan::new("look");
/// let extent = plan.extent(file.extent());
/// plan.task(Task::new("all").read(Region::span(extent, 0, 8192)));
/// let job = Job::new(&session, vec![plan], |outcomes| Ok(outcomes[0].trace.actual.bytes_read))?;
/// assert_eq!(job.explain()[0].predicted.bytes_read, 8192);
/// assert_eq!(job.map(|bytes| Ok(bytes / 1024)).run()?, 8);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[must_use = "a job does nothing until it is run"]
pub struct Job<T> {
    session: Session,
    plans: Vec<Plan>,
    /// The plans move nothing and take no longer than to wake a thread up for them.
    is_inline: bool,
    explanations: Vec<Explanation>,
    writers: Vec<Writer>,
    unfinished: Vec<Arc<StoredFile>>,
    finish: Finish<T>,
}

impl<T: Send + 'static> Job<T> {
    /// Checks that each plan fits the memory that is free now.
    pub fn new(
        session: &Session,
        plans: Vec<Plan>,
        finish: impl FnOnce(Vec<Outcome>) -> Result<T> + Send + 'static,
    ) -> Result<Job<T>> {
        Job::planned(
            session,
            plans,
            Finish::Outcomes(Box::new(|outcomes| finish(outcomes).map(made))),
        )
    }

    /// A job that decides as it goes: `work`, on a thread of its own, is handed these plans and
    /// runs them, or what it makes of them. They are what [`explain`](Job::explain) shows; each is
    /// checked to fit the memory that is free now.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_core::Job;
    /// use outcore_engine::{Plan, Task};
    ///
    /// let plan = |name| {
    ///     let mut plan = Plan::new(name);
    ///     plan.task(Task::new("think").flops(10));
    ///     plan
    /// };
    /// let job = Job::driven(&session, vec![plan("first")], move |stage, mut plans| {
    ///     stage.run(plans.remove(0), 0.5)?;
    ///     let outcome = stage.run(plan("second"), 1.0)?;
    ///     Ok(outcome.trace.flops)
    /// })?;
    /// assert_eq!(job.run()?, 10);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn driven(
        session: &Session,
        plans: Vec<Plan>,
        work: impl FnOnce(&mut Stage, Vec<Plan>) -> Result<T> + Send + 'static,
    ) -> Result<Job<T>> {
        Job::planned(
            session,
            plans,
            Finish::Driven(Box::new(|stage: &mut Stage, plans| {
                work(stage, plans).map(made)
            })),
        )
    }

    /// A job of one plan, which `make` fills: in segments where it is long, see [`Segments`].
    /// `plan` has its extents, perhaps tasks that come before, and no results.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_core::Job;
    /// use outcore_engine::{Plan, Region, Task};
    ///
    /// let file = session.scratch_file(None, 1 << 20)?;
    /// let mut plan = Plan::new("ones");
    /// let extent = plan.extent(file.extent());
    /// let job = Job::in_segments(&session, plan, move |segments| {
    ///     for block in 0..16 {
    ///         segments.group()?;
    ///         let task = Task::new("block").write(Region::span(extent, block << 16, 1 << 16));
    ///         segments.plan().task(task.run(|cx| {
    ///             cx.blocks[0].slice_mut::<f32>().fill(1.0);
    ///             Ok(())
    ///         }));
    ///     }
    ///     segments.may_end()
    /// }, "done")?;
    /// assert_eq!(job.run()?, "done");
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn in_segments(
        session: &Session,
        plan: Plan,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
        result: T,
    ) -> Result<Job<T>> {
        let looked = Looked::at(session, plan, &make)?;
        if looked.count == 1 {
            let Looked {
                first,
                explanations,
                ..
            } = looked;
            let finish = Finish::Outcomes(Box::new(|_| Ok(made(result))));
            return Ok(Job::explained(session, first, explanations, finish));
        }
        Ok(looked.job(session, make, |_| Ok(result)))
    }

    /// The same, and `then` comes to the result when all is carried out.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_core::Job;
    /// use outcore_engine::{Plan, Task};
    ///
    /// let job = Job::in_segments_then(&session, Plan::new("count"), |segments| {
    ///     segments.plan().task(Task::new("one").flops(1));
    ///     segments.split()?;
    ///     segments.plan().task(Task::new("two").flops(2));
    ///     Ok(())
    /// }, |_| Ok("done"))?;
    /// assert_eq!(job.explain()[0].flops, 3);
    /// assert_eq!(job.run()?, "done");
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`in_segments`](Job::in_segments).
    pub fn in_segments_then(
        session: &Session,
        plan: Plan,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
        then: impl FnOnce(&mut Stage) -> Result<T> + Send + 'static,
    ) -> Result<Job<T>> {
        Ok(Looked::at(session, plan, &make)?.job(session, make, then))
    }

    /// Carries out a job that writes no files as a part of another.
    fn run_within(self, stage: &mut Stage) -> Result<T> {
        assert!(
            self.writers.is_empty() && self.unfinished.is_empty(),
            "files become whole when the outer job ends"
        );
        self.finish.carry_out(stage, self.plans)?()
    }

    fn planned(session: &Session, plans: Vec<Plan>, finish: Finish<T>) -> Result<Job<T>> {
        let explanations = plans
            .iter()
            .map(|plan| session.engine().explain(plan))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Job::explained(session, plans, explanations, finish))
    }

    fn explained(
        session: &Session,
        plans: Vec<Plan>,
        explanations: Vec<Explanation>,
        finish: Finish<T>,
    ) -> Job<T> {
        assert_eq!(plans.len(), explanations.len(), "each plan is explained");
        let (writers, unfinished) = (Vec::new(), Vec::new());
        Job {
            session: session.clone(),
            plans,
            is_inline: false,
            explanations,
            writers,
            unfinished,
            finish,
        }
    }

    /// The thread that starts the job computes its plans, which read memory of the caller's and
    /// write nothing that the engine knows of.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use outcore_core::Job;
    /// # use outcore_engine::{Plan, Task};
    /// let mut plan = Plan::new("small");
    /// plan.task(Task::new("think").flops(10));
    /// let job = Job::new(&session, vec![plan], |outcomes| Ok(outcomes[0].trace.flops))?;
    /// assert_eq!(job.run_inline().run()?, 10);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn run_inline(mut self) -> Job<T> {
        self.is_inline = true;
        self
    }

    /// Adds a file that the plans write.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use outcore_core::Job;
    /// use outcore_core::file::Writer;
    /// use outcore_engine::{Plan, Region, Task};
    ///
    /// let path = folder.path().join("x.bin");
    /// let file = session.new_file(&path, 8192, false)?;
    /// let writer = Writer::plan(&file);
    /// let mut plan = Plan::new("ones");
    /// let extent = plan.extent(&writer.extent());
    /// plan.task(Task::new("all").write(Region::span(extent, 0, 8192)).run(|cx| {
    ///     cx.blocks[0].slice_mut::<u8>().fill(1);
    ///     Ok(())
    /// }));
    /// let job = Job::new(&session, vec![plan], |_| Ok(()))?;
    /// job.writes(Some(writer), Some(file)).run()?;
    /// assert_eq!(session.read_all(&path)?, [1; 8192]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn writes(mut self, writer: Option<Writer>, file: Option<Arc<StoredFile>>) -> Job<T> {
        self.writers.extend(writer);
        self.unfinished.extend(file);
        self
    }

    /// What each plan is going to read, write and hold.
    pub fn explain(&self) -> &[Explanation] {
        &self.explanations
    }

    /// Bytes of the session's budget that its plans need with one task at a time, however many
    /// threads there are: a run makes do with so little where no more is left.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use outcore_core::Job;
    /// use outcore_engine::{Plan, Task};
    ///
    /// let mut plan = Plan::new("think");
    /// (0..8).for_each(|_| plan.task(Task::new("think").held(1 << 16)));
    /// let job = Job::new(&session, vec![plan], |_| Ok(()))?;
    /// assert_eq!(job.least_bytes()?, 1 << 16);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] where that is more than the budget.
    pub fn least_bytes(&self) -> Result<u64> {
        let mut least = 0;
        for plan in &self.plans {
            let alone = plan.explain(self.session.memory_bytes(), 1)?;
            least = least.max(alone.floor_bytes);
        }
        Ok(least)
    }

    /// Begins.
    ///
    /// # Errors
    /// When a file cannot be opened for writing, or memory has been taken since it was planned;
    /// [`Error::Value`] for a job of a [`planner`](Session::planner).
    pub fn start(mut self) -> Result<Running<T>> {
        if self.session.plans_only() {
            return Err(Error::value("this job was planned to be looked at only"));
        }
        self.writers.iter_mut().try_for_each(Writer::begin)?;
        let count = self.plans.len();
        let mut running = Running {
            session: self.session,
            ticket: None,
            plans: self.plans.into_iter(),
            is_inline: self.is_inline,
            count,
            outcomes: Vec::new(),
            writers: self.writers,
            unfinished: self.unfinished,
            rest: Rest::Plans(self.finish),
            watch: Arc::default(),
            left_alone_at: None,
            started: Instant::now(),
            since: Instant::now(),
            traces: Traces::default(),
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

    /// The same job with a result made from its result, once the files are whole.
    pub fn map<U: Send + 'static>(
        self,
        make: impl FnOnce(T) -> Result<U> + Send + 'static,
    ) -> Job<U> {
        let Job {
            session,
            plans,
            is_inline,
            explanations,
            writers,
            unfinished,
            finish,
        } = self;
        let mapped = |result: Made<T>| -> Made<U> { Box::new(|| make(result()?)) };
        let finish =
            match finish {
                Finish::Outcomes(finish) => {
                    Finish::Outcomes(Box::new(|outcomes| finish(outcomes).map(mapped)) as Box<_>)
                }
                Finish::Driven(work) => Finish::Driven(Box::new(|stage: &mut Stage, plans| {
                    work(stage, plans).map(mapped)
                }) as Box<_>),
            };
        Job {
            session,
            plans,
            is_inline,
            explanations,
            writers,
            unfinished,
            finish,
        }
    }
}

impl<T: Send + 'static> Job<T> {
    /// Both jobs, one after the other, with the result of the second. Neither is driven.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use outcore_core::Job;
    /// # use outcore_engine::Plan;
    /// let first = Job::new(&session, vec![Plan::new("first")], |_| Ok(1))?;
    /// let second = Job::new(&session, vec![Plan::new("second")], |_| Ok(2))?;
    /// let both = first.then(second);
    /// assert_eq!(both.explain().len(), 2);
    /// assert_eq!(both.run()?, 2);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn then<U: Send + 'static>(mut self, next: Job<U>) -> Job<U> {
        let (Finish::Outcomes(first), Finish::Outcomes(second)) = (self.finish, next.finish) else {
            unreachable!("driven jobs run their own plans")
        };
        let count = self.plans.len();
        let finish = Finish::Outcomes(Box::new(move |mut outcomes: Vec<Outcome>| {
            let rest = outcomes.split_off(count);
            drop(first(outcomes)?);
            second(rest)
        }) as Box<_>);
        self.plans.extend(next.plans);
        self.explanations.extend(next.explanations);
        self.writers.extend(next.writers);
        self.unfinished.extend(next.unfinished);
        let Job {
            session,
            plans,
            explanations,
            writers,
            unfinished,
            ..
        } = self;
        Job {
            session,
            plans,
            is_inline: false,
            explanations,
            writers,
            unfinished,
            finish,
        }
    }
}

impl<T: Send + 'static> Job<T> {
    /// This job, whose result `take` keeps for the tasks of the next, then that one, with its
    /// result.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// # use outcore_core::Job;
    /// # use outcore_engine::Plan;
    /// use std::sync::{Arc, OnceLock};
    ///
    /// let sum = Arc::new(OnceLock::<i32>::new());
    /// let first = Job::new(&session, vec![Plan::new("first")], |_| Ok(20))?;
    /// let found = Arc::clone(&sum);
    /// let second = Job::new(&session, vec![Plan::new("second")], move |_| Ok(found.get().unwrap() + 1))?;
    /// assert_eq!(first.feeding(move |value| sum.set(value).unwrap(), second).run()?, 21);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn feeding<U: Send + 'static>(
        self,
        take: impl FnOnce(T) + Send + 'static,
        next: Job<U>,
    ) -> Job<U> {
        let (first, second, count) = (self.finish, next.finish, self.plans.len());
        let share = count as f64 / (count + next.plans.len()) as f64;
        let work = move |stage: &mut Stage, mut plans: Vec<Plan>| {
            let rest = plans.split_off(count);
            take(stage.part(share, |stage| first.carry_out(stage, plans))?()?);
            stage.part(1.0, |stage| second.carry_out(stage, rest))
        };
        Job {
            session: self.session,
            plans: self.plans.into_iter().chain(next.plans).collect(),
            is_inline: false,
            explanations: self
                .explanations
                .into_iter()
                .chain(next.explanations)
                .collect(),
            writers: self.writers.into_iter().chain(next.writers).collect(),
            unfinished: self.unfinished.into_iter().chain(next.unfinished).collect(),
            finish: Finish::Driven(Box::new(work)),
        }
    }
}

/// Work that has begun. Dropping it cancels it.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// # use outcore_core::{Error, Job};
/// # use outcore_engine::Plan;
/// use std::time::Duration;
///
/// let mut running = Job::new(&session, vec![Plan::new("nothing")], |_| Ok("done"))?.start()?;
/// while !running.wait_timeout(Duration::from_millis(50))? {
///     println!("{:.0}%", 100.0 * running.progress().fraction);
/// }
/// assert_eq!(running.wait()?, "done");
///
/// let running = Job::driven(&session, vec![], |stage, _| {
///     while !stage.is_cancelled() {
///         std::thread::yield_now();
///     }
///     stage.check()
/// })?.start()?;
/// running.cancel();
/// assert!(matches!(running.wait(), Err(Error::Cancelled)));
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Running<T> {
    session: Session,
    ticket: Option<Ticket<Outcome>>,
    plans: std::vec::IntoIter<Plan>,
    is_inline: bool,
    count: usize,
    outcomes: Vec<Outcome>,
    writers: Vec<Writer>,
    unfinished: Vec<Arc<StoredFile>>,
    rest: Rest<T>,
    watch: Arc<Watch>,
    left_alone_at: Option<Instant>,
    started: Instant,
    /// When the plan began that goes on.
    since: Instant,
    traces: Traces,
}

impl<T: Send + 'static> Running<T> {
    /// Blocks for at most `timeout`, going on to what comes next when something is done. True when
    /// [`wait`](Running::wait) has nothing left to wait for.
    ///
    /// # Errors
    /// Those of the plan that failed.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        self.wait_for_thread(timeout);
        self.wait_for_files(timeout);
        if self
            .ticket
            .as_ref()
            .is_some_and(|ticket| ticket.wait_timeout(timeout))
        {
            self.next()?;
        }
        self.begin_files();
        Ok(matches!(self.rest, Rest::Result(_) | Rest::Failed))
    }

    /// Has a thread make the files whole once the result is there: a file system may take long for
    /// that, and the caller may interrupt its wait.
    fn begin_files(&mut self) {
        if !matches!(self.rest, Rest::Result(Ok(_)))
            || (self.writers.is_empty() && self.unfinished.is_empty())
        {
            return;
        }
        let Rest::Result(Ok(result)) = std::mem::replace(&mut self.rest, Rest::Failed) else {
            unreachable!("looked at above")
        };
        let files = Files {
            session: self.session.clone(),
            writers: std::mem::take(&mut self.writers),
            unfinished: std::mem::take(&mut self.unfinished),
            watch: Arc::clone(&self.watch),
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        let files = Arc::new(Mutex::new(Some(files)));
        let theirs = Arc::clone(&files);
        let finish = move || {
            let files = theirs.locked().take();
            _ = sender.send(files.map_or(Ok(()), Files::finish));
        };
        if std::thread::Builder::new()
            .name("outcore-job".into())
            .spawn(finish)
            .is_ok()
        {
            self.rest = Rest::Files(result, receiver);
            return;
        }
        // No thread can be had: this one does it.
        let files = files.locked().take();
        self.rest = Rest::Result(files.map_or(Ok(()), Files::finish).map(|()| result));
    }

    fn wait_for_files(&mut self, timeout: Duration) {
        let Rest::Files(_, ended) = &self.rest else {
            return;
        };
        let ended = match ended.recv_timeout(timeout) {
            Ok(ended) => ended,
            Err(_) if self.is_left_alone() => Err(Error::Cancelled),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => Err(Error::Closed),
        };
        if let Rest::Files(result, _) = std::mem::replace(&mut self.rest, Rest::Failed) {
            self.rest = Rest::Result(ended.map(|()| result));
        }
    }

    fn wait_for_thread(&mut self, timeout: Duration) {
        let Rest::Thread(_, result) = &self.rest else {
            return;
        };
        let result = match result.recv_timeout(timeout) {
            Ok(result) => result,
            Err(_) if self.is_left_alone() => Err(Error::Cancelled),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => Err(Error::Closed),
        };
        if let Rest::Thread(thread, _) = std::mem::replace(&mut self.rest, Rest::Result(result))
            && thread.is_finished()
        {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }

    fn is_left_alone(&mut self) -> bool {
        self.watch.is_cancelled()
            && *self
                .left_alone_at
                .get_or_insert_with(|| Instant::now() + LEAVE_ALONE_AFTER)
                <= Instant::now()
    }

    /// Takes what a plan has left behind and begins what follows it.
    fn next(&mut self) -> Result<()> {
        self.follow().inspect_err(|_| self.rest = Rest::Failed)
    }

    fn follow(&mut self) -> Result<()> {
        if matches!(self.rest, Rest::Plans(Finish::Driven(_))) {
            return self.drive();
        }
        if let Some(ticket) = self.ticket.take() {
            self.keep(ticket.wait()?);
        }
        while let Some(plan) = self.plans.next() {
            self.since = Instant::now();
            if !self.is_inline {
                self.ticket = Some(self.session.engine().run(plan)?);
                return Ok(());
            }
            let outcome = self.session.engine().compute(plan)?;
            self.keep(outcome);
        }
        self.traces.keep(&self.session);
        if let Rest::Plans(Finish::Outcomes(finish)) =
            std::mem::replace(&mut self.rest, Rest::Failed)
        {
            assert_eq!(self.outcomes.len(), self.count, "every plan has ended");
            self.rest = Rest::Result(finish(std::mem::take(&mut self.outcomes)));
        }
        Ok(())
    }

    fn drive(&mut self) -> Result<()> {
        let Rest::Plans(Finish::Driven(work)) = std::mem::replace(&mut self.rest, Rest::Failed)
        else {
            return Ok(());
        };
        let mut stage = Stage::new(&self.session, Arc::clone(&self.watch));
        let plans = std::mem::take(&mut self.plans).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        // Without files before it, this thread also makes what is made of the result: the thread
        // that waits checks signals meanwhile.
        let has_files = !self.writers.is_empty() || !self.unfinished.is_empty();
        let watch = Arc::clone(&self.watch);
        let drive = move || {
            let begun = Instant::now();
            let work = || work(&mut stage, plans);
            let result = plan_until(move || watch.is_cancelled(), work);
            // What it held is in heaps, and the next job may take all of the budget for frames.
            if begun.elapsed() >= TRIM_AFTER {
                outcore_device::trim_heap();
            }
            let result = result.and_then(|result| match has_files {
                true => Ok(result),
                false => result().map(made),
            });
            stage.keep_trace();
            _ = sender.send(result);
        };
        let thread = std::thread::Builder::new()
            .name("outcore-job".into())
            .spawn(drive);
        let refused = |source| {
            Error::from(outcore_engine::Error::NoThread {
                what: "a thread for the job".into(),
                source,
            })
        };
        self.rest = Rest::Thread(thread.map_err(refused)?, receiver);
        Ok(())
    }

    fn keep(&mut self, outcome: Outcome) {
        self.traces
            .add(self.since, &outcome.trace, self.session.threads());
        self.outcomes.push(outcome);
    }

    /// Blocks to the end: the plans that are left, what makes the result of them, and the files
    /// made whole.
    ///
    /// # Errors
    /// Those of the computation; [`Error::Closed`] when [`wait_timeout`](Running::wait_timeout) has
    /// handed them out already.
    pub fn wait(mut self) -> Result<T> {
        while matches!(self.rest, Rest::Plans(_)) {
            self.next()?;
        }
        while matches!(self.rest, Rest::Thread(..)) {
            self.wait_for_thread(LEAVE_ALONE_AFTER);
        }
        self.begin_files();
        while matches!(self.rest, Rest::Files(..)) {
            self.wait_for_files(LEAVE_ALONE_AFTER);
        }
        match std::mem::replace(&mut self.rest, Rest::Failed) {
            Rest::Result(result) => result?(),
            _ => Err(Error::Closed),
        }
    }
}

/// What a job has written and what is left to do for it.
struct Files {
    session: Session,
    writers: Vec<Writer>,
    unfinished: Vec<Arc<StoredFile>>,
    watch: Arc<Watch>,
}

impl Files {
    /// Makes them whole; new ones get their names only if the job is not cancelled before all their
    /// bytes are durable.
    fn finish(self) -> Result<()> {
        for file in &self.unfinished {
            let device = file.extent().device();
            let failed = |source| Error::Device {
                object: device.name().to_owned(),
                source,
            };
            outcore_device::flush_now(&**device).map_err(failed)?;
        }
        if self.watch.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.writers.into_iter().try_for_each(Writer::finish)?;
        self.unfinished
            .iter()
            .try_for_each(|file| self.session.commit(file))
    }
}

impl<T> Running<T> {
    /// Asks it to stop; the result is then [`Error::Cancelled`](crate::Error::Cancelled), or what a
    /// job that can go on another time has until then.
    pub fn cancel(&self) {
        self.watch.cancel();
        if let Some(ticket) = &self.ticket {
            ticket.cancel();
        }
    }

    /// How far it is; plans count alike, where a driven job does not know better.
    pub fn progress(&self) -> Progress {
        let elapsed = self.started.elapsed();
        let (fraction, runs) = match &self.rest {
            Rest::Thread(..) => (self.watch.fraction(), true),
            _ => {
                let done =
                    (self.count - self.plans.len() - usize::from(self.ticket.is_some())) as f64;
                let now = self
                    .ticket
                    .as_ref()
                    .map_or(0.0, |ticket| ticket.progress().fraction);
                (
                    (done + now) / self.count.max(1) as f64,
                    self.ticket.is_some(),
                )
            }
        };
        let eta = (fraction > 0.0 && runs).then(|| elapsed.mul_f64((1.0 - fraction) / fraction));
        Progress {
            fraction,
            elapsed,
            eta,
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.watch.cancel();
        // Whatever it holds is let go before the files are.
        self.ticket = None;
        self.traces.keep(&self.session);
    }
}

/// A plan in segments that was looked at.
struct Looked {
    /// The plan before it was filled, without its tasks.
    head: Plan,
    /// The first segment, with these.
    first: Vec<Plan>,
    count: u32,
    explanations: Vec<Explanation>,
}

impl Looked {
    fn at(
        session: &Session,
        plan: Plan,
        make: &impl Fn(&mut Segments<'_>) -> Result<()>,
    ) -> Result<Looked> {
        let head = plan.of_the_same_extents();
        let (mut first, mut count, mut explanation): (Option<Plan>, _, Option<Explanation>) =
            (None, 0, None);
        let mut look = |segment: Plan| {
            let next = session.engine().explain(&segment)?;
            match &mut explanation {
                Some(sum) => sum.append(&next),
                None => explanation = Some(next),
            }
            count += 1;
            first.get_or_insert(segment);
            Ok(())
        };
        let mut segments = Segments::new(plan, &mut look);
        make(&mut segments)?;
        segments.end()?;
        Ok(Looked {
            head,
            first: first.into_iter().collect(),
            count,
            explanations: explanation.into_iter().collect(),
        })
    }

    fn job<T: Send + 'static>(
        self,
        session: &Session,
        make: impl Fn(&mut Segments<'_>) -> Result<()> + Send + 'static,
        then: impl FnOnce(&mut Stage) -> Result<T> + Send + 'static,
    ) -> Job<T> {
        let (head, count) = (self.head, self.count);
        let work = move |stage: &mut Stage, plans: Vec<Plan>| {
            // The first one is there, with what its plan had before it was filled.
            let (mut first, mut done) = (plans.into_iter(), 0);
            let mut run = |segment| {
                done += 1;
                let segment = first.next().unwrap_or(segment);
                stage
                    .run(segment, f64::from(done) / f64::from(count))
                    .map(drop)
            };
            let mut segments = Segments::new(head, &mut run);
            make(&mut segments)?;
            segments.end()?;
            assert_eq!(done, count, "what was explained is what was carried out");
            Ok(made(then(stage)?))
        };
        Job::explained(
            session,
            self.first,
            self.explanations,
            Finish::Driven(Box::new(work)),
        )
    }
}
