//! Calls that have a part of an engine's budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outcore_device::{Choice, Device, MemoryDevice};
use outcore_engine::{Config, Engine, Error, Extent, Outcome, Plan, Region, StreamOptions, Task};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 * KIB;

fn engine(memory_bytes: u64) -> Engine {
    Engine::new(Config {
        memory_bytes,
        threads: 2,
        driver: Choice::Threads,
    })
}

fn extent(bytes: u64) -> Extent {
    let device = Arc::new(MemoryDevice::new("memory", bytes));
    Extent::new("memory", device as Arc<dyn Device>)
}

/// Reads an extent in blocks; tasks bring `scratch` bytes with them.
fn reads(extent: &Extent, scratch: u64, each: impl Fn() + Send + Sync + 'static) -> Plan {
    let mut plan = Plan::new("reads");
    let at = plan.extent(extent);
    let each = Arc::new(each);
    for block in 0..extent.len() / BLOCK {
        let each = Arc::clone(&each);
        let task = Task::new("read").read(Region::span(at, block * BLOCK, BLOCK));
        plan.task(task.scratch(scratch as usize).run(move |_| {
            each();
            Ok(())
        }));
    }
    plan
}

fn run(engine: &Engine, plan: Plan) -> Outcome {
    engine.run(plan).unwrap().wait().unwrap()
}

fn over_budget(result: Result<(), Error>) -> (u64, u64, u64) {
    match result {
        Err(Error::OverBudget {
            needed,
            available,
            budget,
            ..
        }) => (needed, available, budget),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_plan_is_that_of_an_engine_with_such_a_budget() {
    let (whole, own) = (engine(64 * MIB), engine(2 * MIB));
    let part = whole.part("part", 2 * MIB).unwrap();
    let extent = extent(8 * MIB);
    let held = whole.reserve("another", 32 * MIB).unwrap();
    let explained = |engine: &Engine| {
        let found = engine.explain(&reads(&extent, KIB, || ())).unwrap();
        (found.memory_bytes, found.floor_bytes, found.predicted)
    };
    assert_eq!(explained(&part), explained(&own));
    assert_ne!(explained(&part), explained(&whole));
    drop(held);
    let outcome = run(&part, reads(&extent, KIB, || ()));
    let peak = outcome.trace.actual.peak_bytes;
    assert!(peak <= 2 * MIB, "{peak} bytes");
    assert_eq!(whole.budget().available(), 64 * MIB);
}

#[test]
fn blocks_that_the_engine_has_kept_are_used() {
    let whole = engine(16 * MIB);
    let extent = extent(4 * MIB);
    assert_eq!(
        run(&whole, reads(&extent, 0, || ()))
            .trace
            .actual
            .bytes_read,
        4 * MIB
    );
    let part = whole.part("part", 8 * MIB).unwrap();
    assert_eq!(
        run(&part, reads(&extent, 0, || ())).trace.actual.bytes_read,
        0
    );
}

#[test]
fn more_than_the_budget_is_refused_with_both_numbers() {
    let refused = engine(4 * MIB).part("part", 5 * MIB).map(drop);
    assert_eq!(over_budget(refused), (5 * MIB, 4 * MIB, 4 * MIB));
}

/// A stream is ended by its caller, for whom the engine must not wait.
#[test]
fn a_part_that_a_stream_leaves_no_room_for_is_refused_before_anything_moves() {
    let whole = engine(4 * MIB);
    let part = whole.part("part", 3 * MIB).unwrap();
    let (streamed, extent) = (extent(4 * MIB), extent(MIB));
    let options = StreamOptions {
        block_bytes: MIB as usize,
        ahead: 2,
    };
    let stream = whole
        .read_stream(&streamed, 0..streamed.len(), options)
        .unwrap();
    let has_run = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&has_run);
    let plan = reads(&extent, 0, move || mark.store(true, Ordering::Relaxed));
    let left = whole.budget().available();
    assert!(left < 3 * MIB);
    let refused = over_budget(part.explain(&plan).map(drop));
    assert_eq!(refused, (3 * MIB, left, 4 * MIB));
    assert_eq!(over_budget(part.run(plan).map(drop)), refused);
    drop(stream);
    assert!(!has_run.load(Ordering::Relaxed));
    while whole.budget().available() < 4 * MIB {
        std::thread::yield_now();
    }
    run(&part, reads(&extent, 0, || ()));
}

/// Each waits for the runs of the others, which end by themselves; the sum is never above the whole.
#[test]
fn parts_that_do_not_fit_together_take_turns() {
    let whole = engine(4 * MIB);
    let in_use = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (whole, in_use) = (&whole, Arc::clone(&in_use));
            scope.spawn(move || {
                let bytes = [3 * MIB, 2 * MIB, MIB, 4 * MIB][thread as usize % 4];
                let part = whole.part("part", bytes).unwrap();
                let extent = extent(MIB);
                for _ in 0..25 {
                    let whole = whole.clone();
                    let in_use = Arc::clone(&in_use);
                    // While the first task of a run goes on, its part is taken.
                    let plan = reads(&extent, KIB, move || {
                        assert!(whole.budget().available() <= 4 * MIB - bytes);
                        in_use.fetch_add(1, Ordering::Relaxed);
                    });
                    run(&part, plan);
                }
            });
        }
        // One that has no part, beside them.
        scope.spawn(|| {
            let extent = extent(2 * MIB);
            for _ in 0..25 {
                run(&whole, reads(&extent, KIB, || ()));
            }
        });
    });
    assert_eq!(in_use.load(Ordering::Relaxed), 8 * 25 * MIB / BLOCK);
    assert_eq!(whole.budget().available(), 4 * MIB);
}

/// What such a run may be waiting for is the task that asks: it cannot wait for itself.
#[test]
fn a_part_asked_for_inside_a_task_is_had_at_once_or_refused() {
    let whole = engine(4 * MIB);
    let extent = extent(BLOCK);
    let (small, large) = (
        whole.part("small", MIB).unwrap(),
        whole.part("large", 4 * MIB).unwrap(),
    );
    let inside = extent.clone();
    let plan = reads(&extent, 0, move || {
        run(&small, reads(&inside, 0, || ()));
        let refused = large.run(reads(&inside, 0, || ())).unwrap().wait();
        assert!(matches!(refused, Err(Error::OverBudget { .. })));
    });
    run(&whole, plan);
    assert_eq!(whole.budget().available(), 4 * MIB);
}

#[test]
fn memory_of_the_callers_own_counts_in_the_part_and_in_the_whole() {
    let whole = engine(4 * MIB);
    let part = whole.part("part", 2 * MIB).unwrap();
    let held = part.reserve("held", MIB).unwrap();
    assert_eq!(
        (whole.budget().available(), part.budget().available()),
        (2 * MIB, MIB)
    );
    let beyond = part.reserve("more", MIB + 1).map(drop);
    assert_eq!(over_budget(beyond), (MIB + 1, MIB, 2 * MIB));
    drop(held);
    assert_eq!(whole.budget().available(), 4 * MIB);
}
