//! Plans that the calling thread computes with the threads of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use outcore_device::{Buf, Choice};
use outcore_engine::{Config, Engine, Error, Plan, Region, Task};

fn engine(threads: usize) -> Engine {
    Engine::new(Config {
        memory_bytes: 1 << 20,
        threads,
        driver: Choice::Auto,
    })
}

/// One task for each of some bytes in memory, which adds it to the sum.
fn sum_of(bytes: &[u8]) -> (Plan, Arc<AtomicU64>) {
    let mut buf = Buf::anonymous(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    let mut plan = Plan::new("sum");
    let (extent, sum) = (
        plan.resident("bytes", buf.freeze()),
        Arc::new(AtomicU64::new(0)),
    );
    for at in 0..bytes.len() as u64 {
        let sum = Arc::clone(&sum);
        plan.task(
            Task::new("add")
                .read(Region::span(extent, at, 1))
                .flops(1)
                .held(100)
                .run(move |cx| {
                    sum.fetch_add(u64::from(cx.blocks[0].bytes()[0]), Ordering::Relaxed);
                    Ok(())
                }),
        );
    }
    (plan, sum)
}

#[test]
fn every_task_is_carried_out_once() {
    for threads in [1, 2, 3] {
        let (engine, bytes) = (engine(threads), [1, 2, 3, 4, 5, 6, 7, 100]);
        for count in [0, 1, 8] {
            let (plan, sum) = sum_of(&bytes[..count]);
            let trace = engine.compute(plan).unwrap().trace;
            let expected: u64 = bytes[..count].iter().map(|&byte| u64::from(byte)).sum();
            assert_eq!(sum.load(Ordering::Relaxed), expected);
            assert_eq!(
                (trace.flops, trace.spans.len(), trace.plan.as_str()),
                (count as u64, count, "sum")
            );
            assert_eq!(
                (trace.actual, trace.actual.bytes_read),
                (trace.predicted, 0)
            );
            assert_eq!(engine.budget().available(), 1 << 20);
        }
    }
}

#[test]
fn a_caller_whose_threads_are_busy_computes_alone() {
    let engine = engine(2);
    let (done, wait) = channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let mut busy = Plan::new("busy");
    for _ in 0..2 {
        let wait = Arc::clone(&wait);
        busy.task(Task::new("wait").run(move |_| Ok(wait.lock().unwrap().recv()?)));
    }
    let ticket = engine.run(busy).unwrap();
    let (plan, sum) = sum_of(&[1, 2, 3]);
    engine.compute(plan).unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), 6);
    done.send(()).unwrap();
    done.send(()).unwrap();
    ticket.wait().unwrap();
}

#[test]
fn what_is_more_than_reading_memory_is_refused() {
    let write = |plan: &mut Plan| {
        let extent = plan.volatile("v", 8);
        Task::new("bad").write(Region::span(extent, 0, 8))
    };
    let scratch = |_: &mut Plan| Task::new("bad").scratch(8);
    let more = |_: &mut Plan| {
        Task::new("bad").run(|cx| {
            cx.more.push(Task::new("more"));
            Ok(())
        })
    };
    let makers: [&dyn Fn(&mut Plan) -> Task; 3] = [&write, &scratch, &more];
    for make in makers {
        let mut plan = Plan::new("plan");
        let task = make(&mut plan);
        plan.task(task);
        let error = engine(2).compute(plan).err().unwrap().to_string();
        assert!(error.contains("plan") && error.contains("bad"), "{error}");
    }
}

#[test]
fn a_failure_or_a_panic_is_an_error_that_names_the_task() {
    for panics in [false, true] {
        let (mut plan, sum) = sum_of(&[1, 2, 3]);
        plan.task(Task::new("last").run(move |_| {
            if panics {
                panic!("no luck")
            } else {
                Err("no luck".into())
            }
        }));
        match engine(2).compute(plan) {
            Err(Error::Task { task, source }) => {
                assert_eq!(task, "last of sum");
                assert!(source.to_string().contains("no luck"));
            }
            other => panic!("{:?}", other.map(|outcome| outcome.trace.plan)),
        }
        assert_eq!(sum.load(Ordering::Relaxed), 6);
    }
}

#[test]
fn memory_that_others_keep_is_not_taken() {
    let engine = engine(2);
    let _all = engine.budget().reserve("others", 1 << 20).unwrap();
    assert!(matches!(
        engine.compute(sum_of(&[1]).0),
        Err(Error::OverBudget { .. })
    ));
}

#[test]
fn a_run_that_waited_for_a_moment_goes_on() {
    let engine = engine(2);
    let (begun, wait) = channel();
    let mut inline = Plan::new("inline");
    inline.task(Task::new("long").held(1 << 19).run(move |_| {
        begun.send(())?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(())
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| engine.compute(inline).unwrap());
        wait.recv().unwrap();
        let mut plan = Plan::new("all memory");
        let extent = plan.volatile("v", 3 << 18);
        plan.task(Task::new("fill").write(Region::span(extent, 0, 3 << 18)));
        engine.run(plan).unwrap().wait().unwrap();
    });
    assert_eq!(engine.budget().available(), 1 << 20);
}
