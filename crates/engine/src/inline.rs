//! Short work on data in memory: the calling thread computes too.
//!
//! A run takes four messages between sleeping threads, a tenth of a millisecond in all: negligible
//! beside I/O, but not beside the product of two matrices of 512 x 512. Here the caller starts with
//! the first task while the compute threads wake up and take the others.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use outcore_device::Locked;

use crate::error::{Error, Result, TaskError};
use crate::plan::{Block, Mode, Plan, Task, check_task, held_bytes};
use crate::run::{Outcome, run_task};
use crate::schedule::Totals;
use crate::trace::{Recorder, Trace};
use crate::workers::Workers;

/// How long the caller polls for the results of other threads before it sleeps: waking up takes as
/// long.
const AWAKE: Duration = Duration::from_micros(100);

/// Tasks that no thread has started, with the blocks that they read.
type Tasks = Mutex<VecDeque<(Task, Vec<Block>)>>;

/// A finished task.
struct Done {
    name: &'static str,
    core: usize,
    since: Instant,
    until: Instant,
    result: std::result::Result<(), TaskError>,
}

/// Refuses a plan whose tasks do more than read memory of the caller.
pub(crate) fn check(plan: &Plan) -> Result<()> {
    plan.tasks
        .iter()
        .try_for_each(|task| check_task(&plan.name, &plan.areas, task))?;
    let reads = |task: &Task| {
        task.accesses.iter().all(|access| {
            access.mode == Mode::Read && plan.areas[access.region.extent.0 as usize].is_resident()
        })
    };
    match plan
        .tasks
        .iter()
        .find(|task| task.scratch > 0 || !reads(task))
    {
        Some(task) => Err(refusal(&plan.name, task.name)),
        None => Ok(()),
    }
}

fn refusal(plan: &str, task: &str) -> Error {
    Error::Plan {
        plan: plan.to_owned(),
        reason: format!(
            "task {task} does more than read memory of the caller: use `run` for this plan"
        ),
    }
}

/// Bytes that the plan holds with `at_once` concurrent tasks.
pub(crate) fn bytes(plan: &Plan, at_once: usize) -> u64 {
    held_bytes(&plan.tasks) * at_once as u64 + plan.held_bytes
}

/// Carries out a checked plan with `at_once` concurrent tasks.
pub(crate) fn compute(plan: Plan, at_once: usize, workers: &Workers) -> Result<Outcome> {
    let mut recorder = Recorder::new();
    let totals = Totals {
        peak_bytes: bytes(&plan, at_once),
        ..Totals::default()
    };
    let counted = Trace {
        predicted: totals,
        actual: totals,
        flops: plan.flops(),
        plan: plan.name,
        ..Trace::default()
    };
    let count = plan.tasks.len();
    let with_blocks = |task: Task| {
        let blocks = task
            .accesses
            .iter()
            .map(|access| Block::resident(&plan.areas, access.region))
            .collect();
        (task, blocks)
    };
    let tasks: Arc<Tasks> = Arc::new(Mutex::new(
        plan.tasks.into_iter().map(with_blocks).collect(),
    ));
    let (sender, receiver) = crossbeam_channel::unbounded();
    for core in 1..at_once.min(count) {
        let (tasks, sender) = (Arc::clone(&tasks), sender.clone());
        workers.run(move |_| work(core, &tasks, &sender));
    }
    work(0, &tasks, &sender);
    let mut outcome = Ok(());
    for _ in 0..count {
        let Done {
            name,
            core,
            since,
            until,
            result,
        } = next(&receiver);
        recorder.worked(core, name, since, until);
        let failed = |source| Error::Task {
            task: format!("{name} of {}", counted.plan),
            source,
        };
        outcome = outcome.and(result.map_err(failed));
    }
    outcome.map(|()| Outcome::computed(recorder.finish(workers.count(), counted)))
}

/// Takes tasks until there are none.
fn work(core: usize, tasks: &Tasks, done: &Sender<Done>) {
    let next = || tasks.locked().pop_front();
    while let Some((mut task, mut blocks)) = next() {
        let (since, mut more) = (Instant::now(), Vec::new());
        let result = run_task(
            task.work.take(),
            &mut [],
            &mut blocks,
            &AtomicBool::new(false),
            &mut more,
        );
        let result = if more.is_empty() {
            result
        } else {
            Err("adds tasks, which only a run can carry out".into())
        };
        // Dropped before the waiting caller is told, so that borrowed memory is free by then.
        drop(blocks);
        let _ = done.send(Done {
            name: task.name,
            core,
            since,
            until: Instant::now(),
            result,
        });
    }
}

fn next(done: &Receiver<Done>) -> Done {
    let since = Instant::now();
    loop {
        match done.try_recv() {
            Ok(done) => return done,
            Err(_) if since.elapsed() < AWAKE => std::hint::spin_loop(),
            Err(_) => return done.recv().expect("every task tells of its end"),
        }
    }
}
