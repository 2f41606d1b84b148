//! Plans carried out against a plain model of their bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outcore_device::{Choice, Device, Faults, Faulty, MemoryDevice};
use outcore_engine::{
    Access, Config, Engine, Error, Extent, GatherOptions, Item, Mode, Outcome, Plan, Region, Task,
    Ticket,
};
use proptest::prelude::*;

fn engine(memory_bytes: u64) -> Engine {
    Engine::new(Config {
        memory_bytes,
        threads: 2,
        driver: Choice::Auto,
    })
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    device.to_bytes()
}

/// Task `i` adds the sum of what it reads, and `i`, to what it updates, and fills what it writes.
fn step(index: u8, mode: Mode, before: &[u8], sum: u8) -> Vec<u8> {
    match mode {
        Mode::Read => before.to_vec(),
        Mode::Update => before
            .iter()
            .map(|byte| byte.wrapping_mul(3).wrapping_add(sum).wrapping_add(index))
            .collect(),
        Mode::Write => before
            .iter()
            .enumerate()
            .map(|(at, _)| (at as u8).wrapping_add(sum).wrapping_add(index))
            .collect(),
    }
}

#[derive(Clone, Debug)]
struct Step {
    accesses: Vec<(usize, u64, u64, u64, u64, Mode)>,
}

const LENGTH: u64 = 3000;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![Just(Mode::Read), Just(Mode::Update), Just(Mode::Write)];
    let access = (0usize..2, 0u64..2000, 1u64..300, 0u64..200, 1u64..5, mode)
        .prop_map(|(extent, offset, row, gap, rows, mode)| {
            (extent, offset, row, row + gap, rows, mode)
        })
        .prop_filter("inside", |&(_, offset, row, stride, rows, _)| {
            offset + stride * (rows - 1) + row <= LENGTH
        });
    proptest::collection::vec(
        proptest::collection::vec(access, 1..4).prop_map(|accesses| Step { accesses }),
        1..25,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever overlaps whatever, the bytes are those of running the tasks one after another.
    #[test]
    fn a_run_equals_its_tasks_in_order(steps in steps(), group_every in 1usize..9, power in 0u32..8) {
        let devices: Vec<Arc<MemoryDevice>> = (0..2).map(|index| Arc::new(MemoryDevice::with_sector(format!("memory {index}"), LENGTH, 1 << power))).collect();
        let mut model = vec![vec![0u8; LENGTH as usize]; 2];
        let mut plan = Plan::new("property");
        let extents: Vec<_> = devices.iter().map(|device| plan.extent(&Extent::new("memory", Arc::clone(device) as Arc<dyn Device>))).collect();
        for (index, step_) in steps.iter().enumerate() {
            let mut task = Task::new("step");
            let mut kept: Vec<(usize, Region, Mode)> = Vec::new();
            for &(extent, offset, row_bytes, stride, rows, mode) in &step_.accesses {
                let region = Region { extent: extents[extent], offset, row_bytes, stride, rows };
                if kept.iter().all(|(_, other, other_mode)| (mode == Mode::Read && *other_mode == Mode::Read) || !region.overlaps(other)) {
                    kept.push((extent, region, mode));
                    task = task.access(region, mode);
                }
            }
            let gathered: Vec<Vec<u8>> = kept.iter().map(|(extent, region, _)| region.runs().flatten().map(|at| model[*extent][at as usize]).collect()).collect();
            let sum = gathered.iter().zip(&kept).filter(|(_, kept)| kept.2 != Mode::Write).flat_map(|(bytes, _)| bytes).fold(0u8, |a, &b| a.wrapping_add(b));
            for (bytes, (extent, region, mode)) in gathered.iter().zip(&kept) {
                let after = step(index as u8, *mode, bytes, sum);
                region.runs().flatten().zip(after).for_each(|(at, byte)| model[*extent][at as usize] = byte);
            }
            let modes: Vec<Mode> = kept.iter().map(|kept| kept.2).collect();
            plan.task(task.scratch(64).run(move |cx| {
                let gather = |block: &outcore_engine::Block| -> Vec<u8> {
                    let (pitch, columns) = (block.pitch::<u8>(), block.columns::<u8>());
                    (0..block.rows()).flat_map(|row| block.bytes()[row * pitch..row * pitch + columns].to_vec()).collect()
                };
                cx.scratch.fill(7);
                let all: Vec<Vec<u8>> = cx.blocks.iter().map(gather).collect();
                let sum = all.iter().zip(&modes).filter(|(_, mode)| **mode != Mode::Write).flat_map(|(bytes, _)| bytes).fold(0u8, |a, &b| a.wrapping_add(b));
                for ((block, bytes), mode) in cx.blocks.iter_mut().zip(&all).zip(&modes) {
                    if *mode != Mode::Read {
                        let after = step(index as u8, *mode, bytes, sum);
                        let (pitch, columns) = (block.pitch::<u8>(), block.columns::<u8>());
                        for (row, values) in after.chunks(columns).enumerate() {
                            block.bytes_mut()[row * pitch..row * pitch + columns].copy_from_slice(values);
                        }
                    }
                }
                Ok(())
            }));
            if index % group_every == 0 {
                plan.group();
            }
        }
        // Little memory for many blocks, so that some leave and return.
        let engine = engine(300 << 10);
        let trace = engine.run(plan).unwrap().wait().unwrap().trace;
        for (device, model) in devices.iter().zip(&model) {
            prop_assert_eq!(&contents(device.as_ref()), model);
        }
        if power == 0 {
            prop_assert_eq!(trace.actual.bytes_read + trace.bytes_reused, trace.predicted.bytes_read);
            prop_assert_eq!(trace.actual.bytes_written, trace.predicted.bytes_written);
        }
        prop_assert!(trace.actual.peak_bytes <= 300 << 10);
        prop_assert_eq!(engine.budget().available(), 300 << 10);
    }
}

#[test]
fn a_task_that_fails_names_itself_and_ends_the_run() {
    let engine = engine(1 << 20);
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::new(MemoryDevice::new("memory", 4096)),
    ));
    plan.task(Task::new("good").write(Region::span(extent, 0, 100)));
    plan.task(
        Task::new("bad")
            .update(Region::span(extent, 0, 100))
            .run(|_| Err("no luck".into())),
    );
    plan.task(
        Task::new("late")
            .update(Region::span(extent, 0, 100))
            .run(|_| panic!("must not run")),
    );
    let error = engine.run(plan).unwrap().wait().err().unwrap();
    assert_eq!(error.to_string(), "task bad of plan: no luck");
    assert_eq!(engine.budget().available(), 1 << 20);
}

#[test]
fn a_panic_in_a_task_becomes_its_error() {
    let mut plan = Plan::new("plan");
    plan.task(Task::new("loud").run(|_| panic!("boom")));
    let error = engine(1 << 20).run(plan).unwrap().wait().err().unwrap();
    assert_eq!(error.to_string(), "task loud of plan: panicked: boom");
}

#[test]
fn too_little_memory_is_said_before_any_io() {
    let mut plan = Plan::new("big");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::new(MemoryDevice::new("memory", 1 << 20)),
    ));
    plan.task(Task::new("all").read(Region::span(extent, 0, 1 << 20)));
    let small = engine(1 << 19);
    let Err(Error::OverBudget { needed, .. }) = small.run(plan) else {
        panic!("must be refused")
    };
    assert_eq!(needed, 1 << 20);
}

#[test]
fn tasks_may_add_tasks_while_the_run_goes_on() {
    fn countdown(extent: outcore_engine::ExtentRef, left: u8) -> Task {
        Task::new("countdown")
            .update(Region::span(extent, 0, 1))
            .run(move |cx| {
                cx.blocks[0].bytes_mut()[0] += 1;
                if left > 0 {
                    cx.more.push(countdown(extent, left - 1));
                }
                Ok(())
            })
    }
    let device = Arc::new(MemoryDevice::new("memory", 4096));
    let mut plan = Plan::new("extensible");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::clone(&device) as Arc<dyn Device>,
    ));
    plan.task(countdown(extent, 99));
    let outcome = engine(1 << 20).run(plan).unwrap().wait().unwrap();
    assert_eq!(contents(device.as_ref())[0], 100);
    assert!(outcome.trace.spans.len() >= 100);
}

#[test]
fn volatile_memory_starts_at_zero_and_is_a_result() {
    let mut plan = Plan::new("sum");
    let sums = plan.volatile("sums", 8);
    let region = Region::span(sums, 0, 8);
    for value in 1..=10u64 {
        plan.task(Task::new("add").update(region).run(move |cx| {
            cx.blocks[0].slice_mut::<u64>()[0] += value;
            Ok(())
        }));
    }
    let outcome = engine(1 << 20).run(plan).unwrap().wait().unwrap();
    assert_eq!(outcome.result(&region).unwrap(), 55u64.to_ne_bytes());
}

#[test]
fn cancel_ends_a_run_and_gives_its_memory_back() {
    let engine = engine(1 << 20);
    let mut plan = Plan::new("long");
    for _ in 0..1000 {
        plan.task(Task::new("nap").run(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Ok(())
        }));
    }
    let ticket = engine.run(plan).unwrap();
    ticket.cancel();
    assert!(matches!(ticket.wait(), Err(Error::Cancelled)));
    assert_eq!(engine.budget().available(), 1 << 20);
}

#[test]
fn a_ticket_tells_how_far_its_run_is_and_when_it_ends() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let mut plan = Plan::new("gated");
    let turn = plan.serial();
    plan.task(Task::new("first").flops(300).update(turn).run(|_| Ok(())));
    plan.task(
        Task::new("second")
            .flops(100)
            .update(turn)
            .run(move |_| Ok(gate.recv()?)),
    );
    let engine = engine(1 << 20);
    let ticket = engine.run(plan).unwrap();
    while ticket.progress().fraction == 0.0 {
        assert!(!ticket.poll(), "the second task waits");
        std::thread::yield_now();
    }
    let progress = ticket.progress();
    assert!(progress.fraction < 1.0, "{progress:?}");
    assert!(
        progress.eta.unwrap() <= progress.elapsed,
        "more than half is done: {progress:?}"
    );
    let readable = |ticket: &Ticket<Outcome>, wait_s| {
        let fd = ticket.fd().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: wait_s,
                tv_nsec: 0,
            }),
        )
        .unwrap()
            == 1
    };
    assert!(!readable(&ticket, 0) && !ticket.poll());
    go.send(()).unwrap();
    assert!(readable(&ticket, 60) && ticket.poll());
    let over = engine.run(Plan::new("nothing")).unwrap();
    while !over.poll() {
        std::thread::yield_now();
    }
    assert!(readable(&over, 0), "also when it is asked for afterwards");
    assert_eq!(ticket.progress().fraction, 1.0);
    ticket.wait().unwrap();
}

#[test]
fn a_task_that_overlaps_itself_is_refused() {
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::new(MemoryDevice::new("memory", 4096)),
    ));
    plan.task(
        Task::new("knot")
            .access(
                Access {
                    region: Region::span(extent, 0, 10),
                    mode: Mode::Read,
                }
                .region,
                Mode::Read,
            )
            .write(Region::span(extent, 5, 10)),
    );
    assert!(matches!(engine(1 << 20).run(plan), Err(Error::Plan { .. })));
}

#[test]
fn blocks_stay_known_from_one_run_to_the_next() {
    let engine = engine(1 << 20);
    let numbers = Extent::new("memory", Arc::new(MemoryDevice::new("memory", 4096)));
    let read = || {
        let mut plan = Plan::new("read");
        let extent = plan.extent(&numbers);
        plan.task(
            Task::new("look")
                .read(Region::span(extent, 0, 4096))
                .run(|_| Ok(())),
        );
        engine.run(plan).unwrap().wait().unwrap().trace
    };
    assert_eq!(
        (read().actual.bytes_read, read().actual.bytes_read),
        (4096, 0)
    );
}

/// A task that asked for a task which does not fit left it among the successors of one that was
/// still running; the end of that one then looked it up in the run, which had never taken it over,
/// and the engine's thread panicked.
#[test]
fn a_task_that_does_not_fit_ends_the_run_not_the_engine() {
    let engine = engine(1 << 20);
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::new(MemoryDevice::new("memory", 4 << 20)),
    ));
    let failed = Arc::new(std::sync::Barrier::new(2));
    let seen = Arc::clone(&failed);
    plan.task(
        Task::new("asks")
            .write(Region::span(extent, 0, 512))
            .run(move |cx| {
                cx.more
                    .push(Task::new("too large").update(Region::span(extent, 512, 2 << 20)));
                seen.wait();
                Ok(())
            }),
    );
    plan.task(
        Task::new("goes on")
            .write(Region::span(extent, 512, 512))
            .run(move |_| {
                failed.wait();
                std::thread::sleep(std::time::Duration::from_millis(50));
                Ok(())
            }),
    );
    assert!(matches!(
        engine.run(plan).unwrap().wait(),
        Err(Error::OverBudget { .. })
    ));
    assert_eq!(engine.budget().available(), 1 << 20);
    let mut next = Plan::new("next");
    next.task(Task::new("works").run(|_| Ok(())));
    engine.run(next).unwrap().wait().unwrap();
}

/// Empty regions overlap nothing, not even themselves: a task could declare one twice, the run then
/// lent one block twice, and the engine's thread panicked.
#[test]
fn an_empty_region_that_is_declared_twice_is_refused() {
    for modes in [
        [Mode::Write, Mode::Write],
        [Mode::Read, Mode::Update],
        [Mode::Write, Mode::Read],
    ] {
        let mut plan = Plan::new("plan");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::new(MemoryDevice::new("memory", 4096)),
        ));
        let empty = Region::span(extent, 5, 0);
        plan.task(
            Task::new("knot")
                .access(empty, modes[0])
                .access(empty, modes[1]),
        );
        assert!(matches!(engine(1 << 20).run(plan), Err(Error::Plan { .. })));
    }
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::new(MemoryDevice::new("memory", 4096)),
    ));
    plan.task(
        Task::new("reads")
            .read(Region::span(extent, 5, 0))
            .read(Region::span(extent, 5, 0)),
    );
    engine(1 << 20).run(plan).unwrap().wait().unwrap();
}

/// A block that nothing overlapped stayed known after its last use; a task that was added later
/// then wrote some of its bytes by another region, and the next run was given what had been there
/// before.
#[test]
fn blocks_that_an_added_task_overlaps_are_not_known_any_more() {
    let engine = engine(1 << 20);
    let device = Arc::new(MemoryDevice::new("memory", 16384));
    let numbers = Extent::new("memory", Arc::clone(&device) as Arc<dyn Device>);
    let mut plan = Plan::new("extensible");
    let extent = plan.extent(&numbers);
    plan.task(
        Task::new("looks")
            .read(Region::span(extent, 0, 8192))
            .write(Region::span(extent, 8192, 4096))
            .run(move |cx| {
                cx.more.push(
                    Task::new("writes")
                        .write(Region::span(extent, 0, 4096))
                        .run(|cx| {
                            cx.blocks[0].bytes_mut().fill(9);
                            Ok(())
                        }),
                );
                Ok(())
            }),
    );
    engine.run(plan).unwrap().wait().unwrap();
    let mut plan = Plan::new("read");
    let extent = plan.extent(&numbers);
    plan.task(
        Task::new("looks")
            .read(Region::span(extent, 0, 8192))
            .run(|cx| {
                let expected: Vec<u8> = [[9; 4096], [0; 4096]].concat();
                if cx.blocks[0].bytes() == expected {
                    Ok(())
                } else {
                    Err("stale".into())
                }
            }),
    );
    engine.run(plan).unwrap().wait().unwrap();
}

/// A run reserved what its first tasks needed and checked added ones against the memory that was
/// free when it was planned: one that needed more waited for a reservation made since to be
/// released, perhaps for ever. What an added task allocates itself was not counted at all.
#[test]
fn added_tasks_reserve_what_they_need_or_end_the_run() {
    const BUDGET: u64 = 1 << 20;
    let run = |others: u64, bytes: u64, held: usize| {
        let engine = engine(BUDGET);
        let mut plan = Plan::new("extensible");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::new(MemoryDevice::new("memory", BUDGET)),
        ));
        let budget = engine.budget().clone();
        let taken = Arc::new(std::sync::Mutex::new(None));
        let (keep, seen) = (
            Arc::clone(&taken),
            Arc::new(std::sync::atomic::AtomicU64::new(0)),
        );
        let free = Arc::clone(&seen);
        plan.task(
            Task::new("asks")
                .read(Region::span(extent, 0, 4096))
                .run(move |cx| {
                    *keep.lock().unwrap() = Some(budget.reserve("others", others)?);
                    cx.more.push(
                        Task::new("large")
                            .held(held)
                            .read(Region::span(extent, 0, bytes))
                            .run(move |_| {
                                free.store(
                                    budget.available(),
                                    std::sync::atomic::Ordering::Relaxed,
                                );
                                Ok(())
                            }),
                    );
                    Ok(())
                }),
        );
        let ticket = engine.run(plan).unwrap();
        assert!(
            ticket.wait_timeout(std::time::Duration::from_secs(20)),
            "waits for a caller"
        );
        let result = ticket
            .wait()
            .map(|_| seen.load(std::sync::atomic::Ordering::Relaxed));
        *taken.lock().unwrap() = None;
        assert_eq!(engine.budget().available(), BUDGET);
        result
    };
    assert_eq!(run(256 << 10, 512 << 10, 0).unwrap(), 256 << 10);
    assert!(matches!(
        run(768 << 10, 512 << 10, 0),
        Err(Error::OverBudget { .. })
    ));
    assert!(run(256 << 10, 4096, 64 << 10).unwrap() <= (768 - 64 - 4) << 10);
    assert!(matches!(
        run(256 << 10, 4096, 800 << 10),
        Err(Error::OverBudget { .. })
    ));
}

/// The ends of a region's rows all went into the table of shared sectors at once, however many
/// there were. Now a store waits for room in it, and goes on where it was.
#[test]
fn many_rows_that_share_sectors_are_stored_a_part_at_a_time() {
    const ROWS: u64 = 3000;
    let device = Arc::new(MemoryDevice::with_sector("memory", ROWS * 5000, 512));
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::clone(&device) as Arc<dyn Device>,
    ));
    for part in 0..2 {
        let region = Region {
            extent,
            offset: 100 + part * 2000,
            row_bytes: 700,
            stride: 5000,
            rows: ROWS,
        };
        plan.task(Task::new("fill").write(region).run(move |cx| {
            cx.blocks[0].bytes_mut().fill(1 + part as u8);
            Ok(())
        }));
    }
    let engine = engine(20 << 20);
    engine.run(plan).unwrap().wait().unwrap();
    let expected: Vec<u8> = (0..ROWS * 5000)
        .map(|at| match at % 5000 {
            100..800 => 1,
            2100..2800 => 2,
            _ => 0,
        })
        .collect();
    assert!(contents(&device) == expected);
    assert_eq!(engine.budget().available(), 20 << 20);
}

/// Memory that another run had taken above its floor was counted twice for a while: by that run,
/// and by the one that had since reserved it for what its tasks hold. Now they start when it is
/// there.
#[test]
fn what_tasks_hold_waits_for_memory_that_others_have_above_their_floors() {
    const BUDGET: u64 = 4 << 20;
    for added in [true, false] {
        let engine = engine(BUDGET);
        let (started, was_started) = std::sync::mpsc::channel();
        let large = move || {
            Task::new("large")
                .held(if added { 1 << 20 } else { 0 })
                .run(move |_| {
                    started.send(())?;
                    Ok(())
                })
        };
        let mut plan = Plan::new("holds");
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        if added {
            plan.task(Task::new("asks").run(move |cx| {
                asked.recv()?;
                cx.more.push(large());
                Ok(())
            }));
        } else {
            plan.hold(1 << 20);
            plan.task(large());
        }
        let mut holds = Some(plan);
        let early = added.then(|| engine.run(holds.take().unwrap()).unwrap());
        let device = Faulty::new(
            Arc::new(MemoryDevice::new("memory", BUDGET)),
            Faults::default(),
        );
        let mut plan = Plan::new("runs ahead");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::clone(&device) as Arc<dyn Device>,
        ));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let first = Region::span(extent, 0, 1 << 18);
        plan.task(
            Task::new("waits")
                .update(first)
                .run(move |_| Ok(gate.recv()?)),
        );
        for index in 1..13 {
            plan.task(
                Task::new("follows")
                    .read(first)
                    .read(Region::span(extent, index << 18, 1 << 18))
                    .run(|_| Ok(())),
            );
        }
        let ahead = engine.run(plan).unwrap();
        for _ in 0..2000 {
            if device.operations() == 13 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let holds = early.unwrap_or_else(|| engine.run(holds.take().unwrap()).unwrap());
        let _ = ask.send(());
        assert!(
            was_started
                .recv_timeout(std::time::Duration::from_millis(200))
                .is_err(),
            "more is held than there is"
        );
        open.send(()).unwrap();
        was_started
            .recv_timeout(std::time::Duration::from_secs(20))
            .expect("there is room now");
        ahead.wait().unwrap();
        holds.wait().unwrap();
        assert_eq!(engine.budget().available(), BUDGET);
    }
}

/// Tasks that were added could store parts of sectors in a run that had reserved nothing for that.
#[test]
fn added_tasks_may_share_sectors() {
    let device = Arc::new(MemoryDevice::with_sector("memory", 1 << 20, 512));
    let engine = engine(4 << 20);
    let mut plan = Plan::new("plan");
    let extent = plan.extent(&Extent::new(
        "memory",
        Arc::clone(&device) as Arc<dyn Device>,
    ));
    let budget = engine.budget().clone();
    plan.task(
        Task::new("asks")
            .write(Region::span(extent, 0, 512))
            .run(move |cx| {
                cx.blocks[0].bytes_mut().fill(1);
                let before = budget.available();
                let rows = Region {
                    extent,
                    offset: 700,
                    row_bytes: 100,
                    stride: 1000,
                    rows: 1000,
                };
                cx.more.push(Task::new("fill").write(rows).run(move |cx| {
                    cx.blocks[0].bytes_mut().fill(2);
                    if before - budget.available() >= 128 << 10 {
                        Ok(())
                    } else {
                        Err("nothing was reserved".into())
                    }
                }));
                Ok(())
            }),
    );
    engine.run(plan).unwrap().wait().unwrap();
    let bytes = contents(&device);
    let filled = |at: usize| at >= 700 && (at - 700) % 1000 < 100 && at < 1_000_000;
    assert!((512..1 << 20).all(|at| bytes[at] == if filled(at) { 2 } else { 0 }));
}

/// Runs that waited for the same extent got it in any order, also before the one that was started
/// first. Those that wait go on when it is free, or are cancelled before.
#[test]
fn a_run_that_waits_for_an_extent_goes_on_or_is_cancelled() {
    let engine = engine(1 << 20);
    let device = Arc::new(MemoryDevice::new("memory", 4096));
    let numbers = Extent::new("memory", Arc::clone(&device) as Arc<dyn Device>);
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let run = |value: u8, gate: Option<std::sync::mpsc::Receiver<()>>| {
        let mut plan = Plan::new("plan");
        let extent = plan.extent(&numbers);
        plan.task(
            Task::new("fill")
                .write(Region::span(extent, 0, 4096))
                .run(move |cx| {
                    gate.map(|gate| gate.recv());
                    cx.blocks[0].bytes_mut().fill(value);
                    Ok(())
                }),
        );
        engine.run(plan).unwrap()
    };
    let (first, cancelled, waiting) = (run(1, Some(gate)), run(2, None), run(3, None));
    let soon = std::time::Duration::from_millis(50);
    assert!(!cancelled.wait_timeout(soon) && !waiting.poll());
    cancelled.cancel();
    assert!(matches!(cancelled.wait(), Err(Error::Cancelled)));
    assert!(!first.poll() && !waiting.wait_timeout(soon));
    open.send(()).unwrap();
    first.wait().unwrap();
    assert!(
        waiting.wait_timeout(std::time::Duration::from_secs(20)),
        "it was not woken"
    );
    waiting.wait().unwrap();
    assert_eq!(contents(&device), [3; 4096]);
    assert_eq!(engine.budget().available(), 1 << 20);
}

/// A writer waited for as long as readers followed each other without a gap.
#[test]
fn readers_that_never_pause_let_a_writer_in() {
    let engine = engine(1 << 20);
    let latency = Some(std::time::Duration::from_millis(1)..std::time::Duration::from_millis(3));
    let device = Faulty::new(
        Arc::new(MemoryDevice::new("memory", 1 << 16)),
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let numbers = Extent::new("memory", device as Arc<dyn Device>);
    let mut plan = Plan::new("fill");
    let extent = plan.extent(&numbers);
    plan.task(
        Task::new("fill")
            .write(Region::span(extent, 0, 4096))
            .run(|_| Ok(())),
    );
    let options = GatherOptions {
        cache: false,
        ..GatherOptions::default()
    };
    let written = AtomicBool::new(false);
    let read_on = || {
        while !written.load(Ordering::Relaxed) {
            engine
                .gather(
                    &[Item {
                        extent: &numbers,
                        offset: 0,
                        len: 4096,
                    }],
                    &options,
                )
                .unwrap()
                .wait()
                .unwrap();
        }
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|_| _ = scope.spawn(read_on));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let writer = engine.run(plan).unwrap();
        let had_its_turn = writer.wait_timeout(std::time::Duration::from_secs(3));
        written.store(true, Ordering::Relaxed);
        writer.wait().unwrap();
        assert!(had_its_turn);
    });
}

/// Calls from several threads failed at random, because the first run had planned with all memory
/// that was free.
#[test]
fn runs_that_do_not_fit_beside_each_other_follow_each_other() {
    let engine = engine(1 << 20);
    let plan = |value: u8| {
        let device = Arc::new(MemoryDevice::new("memory", 900 << 10));
        let mut plan = Plan::new("fill");
        let extent = plan.extent(&Extent::new(
            "memory",
            Arc::clone(&device) as Arc<dyn Device>,
        ));
        plan.task(
            Task::new("fill")
                .write(Region::span(extent, 0, 900 << 10))
                .run(move |cx| {
                    cx.blocks[0].bytes_mut().fill(value);
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    Ok(())
                }),
        );
        (plan, device)
    };
    let runs: Vec<_> = (1..9)
        .map(plan)
        .map(|(plan, device)| (engine.run(plan).unwrap(), device))
        .collect();
    for (index, (ticket, device)) in runs.into_iter().enumerate() {
        ticket.wait().unwrap();
        assert!(
            contents(&device)
                .iter()
                .all(|&byte| byte == index as u8 + 1)
        );
    }
    assert_eq!(engine.budget().available(), 1 << 20);
}

/// A task that starts a run waits for it; that run must not wait for the memory of the task's own
/// run.
#[test]
fn a_run_inside_a_task_fails_rather_than_wait_for_its_parent() {
    let engine = engine(1 << 20);
    let mut plan = Plan::new("parent");
    plan.hold(900 << 10);
    let inner = engine.clone();
    plan.task(Task::new("outer").run(move |_| {
        let mut plan = Plan::new("child");
        plan.hold(900 << 10);
        plan.task(Task::new("inner"));
        inner.run(plan)?.wait()?;
        Ok(())
    }));
    let error = engine.run(plan).unwrap().wait().err().unwrap();
    assert!(error.to_string().contains("child needs"), "{error}");
}
