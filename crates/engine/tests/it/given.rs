//! Gathers to memory of the caller's, and blocks of runs in it.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outcore_device::{Blocking, Buf, Choice, Device, Faults, Faulty, MemoryDevice};
use outcore_engine::{
    Config, Context, Engine, Error, Extent, ExtentRef, GatherOptions, GivenBlock, Item, Mode,
    Outcome, Plan, Region, Task, TaskError,
};
use proptest::prelude::*;

const BUDGET: u64 = 1 << 20;
const SECTOR: usize = 512;

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: BUDGET,
        threads: 1,
        driver: Choice::Auto,
    })
}

fn table(len: usize, faults: Faults) -> (Vec<u8>, Extent, Arc<Faulty>) {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 251) as u8).collect();
    let memory = MemoryDevice::with_sector("memory", len as u64, SECTOR as u32);
    memory.write_at(&bytes, 0).unwrap();
    let device = Faulty::new(Arc::new(memory), faults);
    let extent = Extent::new("table", Arc::clone(&device) as Arc<dyn Device>);
    (bytes, extent, device)
}

fn items<'a>(extent: &'a Extent, ranges: &[Range<usize>]) -> Vec<Item<'a>> {
    let item = |range: &Range<usize>| Item {
        extent,
        offset: range.start as u64,
        len: range.len(),
    };
    ranges.iter().map(item).collect()
}

/// Memory that begins `lead` bytes behind a page.
fn destination(lead: usize, len: usize) -> Buf {
    let mut memory = Buf::anonymous(lead + len).unwrap();
    drop(memory.split_to(lead));
    memory
}

fn concat(bytes: &[u8], ranges: &[Range<usize>]) -> Vec<u8> {
    ranges
        .iter()
        .flat_map(|range| bytes[range.clone()].to_vec())
        .collect()
}

#[test]
fn what_lies_alike_is_not_copied() {
    let (bytes, extent, device) = table(100_000, Faults::default());
    let engine = engine();
    let run = |ranges: &[Range<usize>], lead: usize| {
        let items = items(&extent, ranges);
        let len = ranges.iter().map(|range| range.len()).sum();
        let memory = destination(lead, len);
        let place = memory.as_ptr();
        let planned = engine.plan_gather_given(&items, place as usize);
        let before = device.operations();
        let given = engine
            .gather_given(&items, memory, &GatherOptions::default(), || true)
            .unwrap();
        assert_eq!(given.memory.as_ptr(), place, "it is the caller's memory");
        assert_eq!(given.memory[..], concat(&bytes, ranges));
        assert_eq!((given.direct_bytes, given.copied_bytes), planned);
        assert_eq!(engine.budget().available(), BUDGET);
        (planned, device.operations() - before)
    };
    assert_eq!(run(&[1024..5120, 20_480..24_576], 0), ((8192, 0), 2));
    // Rows of 100 bytes are no sectors, but follow each other.
    let rows: Vec<Range<usize>> = (0..512).map(|row| row * 100..row * 100 + 100).collect();
    assert_eq!(run(&rows, 0), ((51_200, 0), 1));
    // The ends of what is not whole sectors are copied.
    assert_eq!(run(&[700..5000], 700), ((3584, 716), 2));
    // Nothing lies alike.
    assert_eq!(run(&[700..5000], 0).0, (0, 4300));
    assert_eq!(run(&[], 0), ((0, 0), 0));
}

#[test]
fn the_budget_is_charged_for_given_memory() {
    let (bytes, extent, device) = table(2 << 20, Faults::default());
    let engine = engine();
    let whole = [0..2 << 20];
    let error = engine
        .gather_given(
            &items(&extent, &whole),
            destination(0, 2 << 20),
            &GatherOptions::default(),
            || true,
        )
        .unwrap_err();
    assert!(
        matches!(error, Error::OverBudget { needed, .. } if needed >= 2 << 20),
        "{error}"
    );
    assert!(
        error.to_string().contains("a gather to given memory"),
        "{error}"
    );
    assert_eq!(device.operations(), 0, "before any I/O");
    let half = [0..BUDGET as usize / 2];
    let mut asked = 0;
    let slow = Faults {
        latency: Some(Duration::from_millis(120)..Duration::from_millis(121)),
        ..Faults::default()
    };
    let (_, slow, _) = table(1 << 20, slow);
    let given = engine
        .gather_given(
            &items(&slow, &half),
            destination(0, half[0].len()),
            &GatherOptions::default(),
            || {
                asked += 1;
                assert!(engine.budget().available() <= BUDGET / 2);
                true
            },
        )
        .unwrap();
    assert!(asked > 0, "it is asked while the device takes its time");
    assert_eq!(given.memory[..], bytes[half[0].clone()]);
    assert_eq!(engine.budget().available(), BUDGET);
    let short = engine.gather_given(
        &items(&extent, &half),
        destination(0, 5),
        &GatherOptions::default(),
        || true,
    );
    assert!(matches!(short, Err(Error::OutOfRange { .. })));
}

#[test]
fn a_gather_that_is_left_lets_go_of_everything() {
    let slow = Faults {
        latency: Some(Duration::from_millis(120)..Duration::from_millis(121)),
        ..Faults::default()
    };
    let (_, extent, _) = table(1 << 20, slow);
    let engine = engine();
    let result = engine.gather_given(
        &items(&extent, &[0..1 << 19]),
        destination(0, 1 << 19),
        &GatherOptions::default(),
        || false,
    );
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(engine.budget().available(), BUDGET);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// On bad days too the bytes are right, or the error names the table.
    #[test]
    fn given_memory_has_the_bytes_of_the_items(
        seed in 0u64..1000, lead in 0usize..1500, fails: bool,
        wanted in proptest::collection::vec((0usize..60_000, 0usize..5000, any::<bool>()), 0..20),
    ) {
        let read_error = if fails { 0.2 } else { 0.0 };
        let (bytes, extent, _) = table(70_000, Faults { seed, short: 0.3, reorder: 0.3, read_error, ..Faults::default() });
        let alike = |&(start, len, alike): &(usize, usize, bool)| if alike { start / SECTOR * SECTOR..start / SECTOR * SECTOR + len / SECTOR * SECTOR } else { start..start + len };
        let ranges: Vec<Range<usize>> = wanted.iter().map(alike).collect();
        let (engine, expected) = (engine(), concat(&bytes, &ranges));
        let result = engine.gather_given(&items(&extent, &ranges), destination(lead, expected.len()), &GatherOptions::default(), || true);
        match result {
            Ok(given) => prop_assert!(given.memory[..] == expected),
            Err(Error::Device { object, .. }) => prop_assert!(fails && object == "table"),
            Err(other) => prop_assert!(false, "{other}"),
        }
        prop_assert_eq!(engine.budget().available(), BUDGET);
    }
}

/// The bytes between rows, which no run touches.
const GAP: u8 = 0xa5;

fn contents(device: &Faulty) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    let mut at = 0;
    while at < bytes.len() {
        at += Blocking::read_at(device, &mut bytes[at..], at as u64).unwrap();
    }
    bytes
}

/// The bytes of a region, row by row.
fn of_region(bytes: &[u8], region: &Region) -> Vec<u8> {
    let (offset, stride) = (region.offset as usize, region.stride as usize);
    let row = |row: usize| {
        let start = offset + row * stride;
        bytes[start..start + region.row_bytes as usize].to_vec()
    };
    (0..region.rows as usize).flat_map(row).collect()
}

/// The rows of memory whose rows are `pitch` bytes apart, if what lies between them is as it was.
fn rows(memory: &[u8], region: &Region, pitch: usize) -> Vec<u8> {
    let (count, len) = (region.rows as usize, region.row_bytes as usize);
    let is_row = |at: usize| at % pitch.max(1) < len && at / pitch.max(1) < count;
    let gaps = memory.iter().enumerate().filter(|(at, _)| !is_row(*at));
    assert!(gaps.into_iter().all(|(_, &byte)| byte == GAP));
    let row = |row: usize| memory[row * pitch..row * pitch + len].to_vec();
    (0..count).flat_map(row).collect()
}

fn untouched(lead: usize, len: usize) -> Buf {
    let mut memory = destination(lead, len);
    memory.fill(GAP);
    memory
}

fn rows_of(extent: ExtentRef, offset: u64, row_bytes: u64, stride: u64, rows: u64) -> Region {
    Region {
        extent,
        offset,
        row_bytes,
        stride,
        rows,
    }
}

/// A plan with one task on one region, and the way to its memory.
fn one_task(
    extent: &Extent,
    at: impl Fn(ExtentRef) -> Region,
    mode: Mode,
    given: (usize, Buf),
) -> (Plan, GivenBlock, Region) {
    let mut plan = Plan::new("plan");
    let region = at(plan.extent(extent));
    let block = plan.given(region, given.0, given.1);
    plan.task(Task::new("add").access(region, mode).run(move |cx| {
        let block = &mut cx.blocks[0];
        if mode != Mode::Read {
            let (pitch, columns) = (block.pitch::<u8>(), block.columns::<u8>());
            for row in 0..block.rows() {
                let row = &mut block.bytes_mut()[row * pitch..row * pitch + columns];
                row.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            }
        }
        Ok(())
    }));
    (plan, block, region)
}

fn plus(bytes: &[u8], more: u8) -> Vec<u8> {
    bytes.iter().map(|byte| byte.wrapping_add(more)).collect()
}

fn as_predicted(outcome: &Outcome) {
    let trace = &outcome.trace;
    assert_eq!(trace.actual, trace.predicted);
    assert_eq!(trace.bytes_reused, 0);
}

#[test]
fn a_block_is_loaded_to_given_memory() {
    let (bytes, extent, device) = table(100_000, Faults::default());
    let engine = engine();
    let load = |offset: usize, len: usize, lead: usize| {
        let memory = untouched(lead, len);
        let place = memory.as_ptr() as usize;
        let mut plan = Plan::new("plan");
        let region = Region::span(plan.extent(&extent), offset as u64, len as u64);
        let given = plan.given(region, len, memory);
        let (expected, budget) = (
            bytes[offset..offset + len].to_vec(),
            engine.budget().clone(),
        );
        for _ in 0..3 {
            let (expected, budget) = (expected.clone(), budget.clone());
            plan.task(Task::new("look").read(region).run(move |cx| {
                assert_eq!(cx.blocks[0].bytes().as_ptr() as usize, place);
                assert!(budget.available() <= BUDGET - len as u64);
                match cx.blocks[0].bytes() == expected {
                    true => Ok(()),
                    false => Err("other bytes".into()),
                }
            }));
        }
        let before = device.operations();
        let outcome = engine.run(plan).unwrap().wait().unwrap();
        as_predicted(&outcome);
        assert_eq!(engine.budget().available(), BUDGET);
        let memory = given.take().expect("the run has ended");
        assert_eq!(
            (memory.as_ptr() as usize, &memory[..]),
            (place, &expected[..])
        );
        assert!(given.take().is_none(), "there is one");
        let moved = outcome.trace.actual.bytes_read;
        (
            given.direct_bytes(),
            given.copied_bytes(),
            moved,
            device.operations() - before,
        )
    };
    assert_eq!(load(1024, 8192, 0), (8192, 0, 8192, 1));
    // The ends of what is not whole sectors are copied.
    assert_eq!(load(700, 5000, 700), (4608, 392, 5632, 3));
    // Nothing lies alike.
    assert_eq!(load(700, 5000, 0), (0, 5000, 5632, 1));
    assert_eq!(load(700, 0, 0), (0, 0, 0, 0));
}

#[test]
fn a_block_in_given_memory_is_stored() {
    for (offset, lead, len) in [
        (1024, 0, 8192),
        (700, 700, 5000),
        (700, 0, 5000),
        (95_000, 0, 5000),
        (95_000, 280, 5000),
    ] {
        let (bytes, extent, device) = table(100_000, Faults::default());
        let engine = engine();
        let at = |extent| Region::span(extent, offset as u64, len as u64);
        // What the memory holds is what a task finds that overwrites the block.
        let (plan, given, _) = one_task(&extent, at, Mode::Write, (len, untouched(lead, len)));
        let outcome = engine.run(plan).unwrap().wait().unwrap();
        as_predicted(&outcome);
        let mut expected = bytes.clone();
        expected[offset..offset + len].fill(GAP + 1);
        assert!(contents(&device) == expected);
        assert!(given.take().unwrap().iter().all(|&byte| byte == GAP + 1));
        // A block that is changed is loaded before.
        let (plan, given, _) = one_task(&extent, at, Mode::Update, (len, untouched(lead, len)));
        as_predicted(&engine.run(plan).unwrap().wait().unwrap());
        expected[offset..offset + len].fill(GAP + 2);
        assert!(contents(&device) == expected);
        assert!(given.take().unwrap().iter().all(|&byte| byte == GAP + 2));
        assert_eq!(engine.budget().available(), BUDGET);
    }
}

#[test]
fn what_is_longer_than_a_bounce_buffer_goes_piece_by_piece() {
    const LEN: usize = 3 << 20;
    let engine = Engine::new(Config {
        memory_bytes: 8 << 20,
        threads: 1,
        driver: Choice::Auto,
    });
    let (bytes, extent, device) = table(LEN + 1000, Faults::default());
    let at = |extent| Region::span(extent, 100, LEN as u64);
    let (plan, given, _) = one_task(&extent, at, Mode::Update, (LEN, untouched(0, LEN)));
    assert_eq!(
        (given.direct_bytes(), given.copied_bytes()),
        (0, LEN as u64)
    );
    let outcome = engine.run(plan).unwrap().wait().unwrap();
    as_predicted(&outcome);
    assert!(
        outcome.trace.actual.peak_bytes >= (LEN + (1 << 20)) as u64,
        "buffers are counted"
    );
    let expected = plus(&bytes[100..100 + LEN], 1);
    assert!(contents(&device)[100..100 + LEN] == expected);
    assert!(given.take().unwrap()[..] == expected);
}

#[test]
fn ragged_rows_lie_in_given_memory_as_the_caller_wants_them() {
    // Packed, as on the device, and further apart; short and long rows; what is direct of a load.
    let cases = [
        (300, 700, 1000, 20, 700, 0, false),
        (300, 700, 1000, 20, 1000, 300, false),
        (512, 5000, 5120, 9, 5632, 0, true),
        (300, 5000, 7000, 9, 5000, 0, false),
        (300, 5000, 7000, 9, 7000, 300, true),
        (0, 100, 100, 300, 100, 0, true),
        (0, 100, 100, 300, 128, 0, false),
    ];
    for (offset, row_bytes, stride, count, pitch, lead, is_direct) in cases {
        for mode in [Mode::Read, Mode::Update, Mode::Write] {
            let (bytes, extent, device) = table(70_000, Faults::default());
            let at = |extent| rows_of(extent, offset, row_bytes, stride, count);
            let memory = untouched(lead, pitch * count as usize + 77);
            let (plan, given, region) = one_task(&extent, at, mode, (pitch, memory));
            assert_eq!(given.direct_bytes() > 0, is_direct);
            assert_eq!(given.direct_bytes() + given.copied_bytes(), region.bytes());
            as_predicted(&engine().run(plan).unwrap().wait().unwrap());
            let before = of_region(&bytes, &region);
            let expected = match mode {
                Mode::Read => before,
                Mode::Update => plus(&before, 1),
                Mode::Write => vec![GAP + 1; before.len()],
            };
            assert_eq!(rows(&given.take().unwrap(), &region, pitch), expected);
            let after = contents(&device);
            assert_eq!(of_region(&after, &region), expected);
            let outside = |at: &usize| {
                let from = at.checked_sub(offset as usize);
                from.is_none_or(|from| {
                    from % stride as usize >= row_bytes as usize
                        || from / stride as usize >= count as usize
                })
            };
            assert!(
                (0..bytes.len())
                    .filter(outside)
                    .all(|at| after[at] == bytes[at])
            );
        }
    }
}

/// One block is read in given memory, one is written there, one has a frame; and a block whose bytes
/// another one changes leaves its memory and comes back to it.
#[test]
fn given_blocks_and_frames_are_used_by_one_plan() {
    let (bytes, extent, device) = table(100_000, Faults::default());
    let mut plan = Plan::new("plan");
    let on = plan.extent(&extent);
    let (source, target) = (
        Region::span(on, 0, 10_000),
        Region::span(on, 20_000, 10_000),
    );
    let (plain, across) = (
        Region::span(on, 40_000, 10_000),
        Region::span(on, 25_000, 10_000),
    );
    let reads = plan.given(source, 0, untouched(0, 10_000));
    let writes = plan.given(target, 0, untouched(0, 10_000));
    fn add(cx: &mut Context<'_>) -> Result<(), TaskError> {
        let [from @ .., to] = &mut *cx.blocks else {
            unreachable!("it has blocks")
        };
        for (at, byte) in to.bytes_mut().iter_mut().enumerate() {
            *byte = from
                .iter()
                .fold(*byte, |sum, from| sum.wrapping_add(from.bytes()[at]));
        }
        Ok(())
    }
    let sum = |regions: &[Region], to: Region| {
        let task = regions
            .iter()
            .fold(Task::new("sum"), |task, &region| task.read(region));
        task.update(to).run(add)
    };
    plan.task(sum(&[source, plain], target));
    plan.task(sum(&[source], across));
    plan.task(sum(&[source, plain], target));
    let outcome = engine().run(plan).unwrap().wait().unwrap();
    let Outcome { trace, .. } = &outcome;
    assert_eq!(
        trace.actual.bytes_read + trace.bytes_reused,
        trace.predicted.bytes_read
    );
    assert_eq!(trace.actual.bytes_written, trace.predicted.bytes_written);
    assert!(trace.actual.peak_bytes <= trace.predicted.peak_bytes);
    let mut model = bytes;
    for (from, to) in [
        (&[0, 40_000][..], 20_000),
        (&[0], 25_000),
        (&[0, 40_000], 20_000),
    ] {
        for at in 0..10_000 {
            model[to + at] = from.iter().fold(model[to + at], |sum, &from| {
                sum.wrapping_add(model[from + at])
            });
        }
    }
    assert!(contents(&device) == model);
    assert!(reads.take().unwrap()[..] == model[..10_000]);
    assert!(writes.take().unwrap()[..] == model[20_000..30_000]);
}

/// To evict a given block would free nothing; and tasks that join the run find it where it is.
#[test]
fn given_blocks_are_not_evicted_for_frames() {
    const LEN: u64 = 256 << 10;
    let (bytes, extent, device) = table(4 << 20, Faults::default());
    let mut plan = Plan::new("plan");
    let on = plan.extent(&extent);
    let kept = Region::span(on, 0, LEN);
    let given = plan.given(kept, 0, untouched(0, LEN as usize));
    let add = move |region: Region| {
        Task::new("add").read(region).update(kept).run(|cx| {
            let [from, to] = &mut *cx.blocks else {
                unreachable!("it has two")
            };
            let pairs = to.bytes_mut().iter_mut().zip(from.bytes());
            pairs.for_each(|(to, from)| *to = to.wrapping_add(*from));
            Ok(())
        })
    };
    // It is used at first and at last; between, more is used twice than there is memory for.
    let block = |at: u64| Region::span(on, at * LEN, LEN);
    plan.task(add(block(1)));
    for at in (2..6).chain(2..6) {
        plan.group();
        plan.task(Task::new("read").read(block(at)));
    }
    plan.group();
    plan.task(add(block(11)));
    let last = block(12);
    let task = Task::new("last").update(kept).run(move |cx| {
        cx.more.push(add(last));
        Ok(())
    });
    plan.task(task);
    let outcome = engine().run(plan).unwrap().wait().unwrap();
    // Once for the plan, once for the task that joined it.
    assert_eq!(outcome.trace.actual.bytes_written, 2 * LEN);
    let sum = |at: u64| {
        [0, 1, 11, 12].into_iter().fold(0u8, |sum, block| {
            sum.wrapping_add(bytes[(block * LEN + at) as usize])
        })
    };
    let expected: Vec<u8> = (0..LEN).map(sum).collect();
    assert!(given.take().unwrap()[..] == expected);
    assert!(contents(&device)[..LEN as usize] == expected);
}

/// As far as the system does direct I/O, by way of the kernel.
#[test]
fn a_block_of_a_file_lives_in_given_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut expected: Vec<u8> = (0..200_000)
        .map(|at: usize| (at * 7 + at / 251) as u8)
        .collect();
    std::fs::write(&path, &expected).unwrap();
    let file = outcore_device::open_file(&path, outcore_device::Mode::ReadWrite).unwrap();
    let extent = Extent::new("file", file);
    let engine = engine();
    for (offset, lead) in [(8192, 0), (5000, 5000), (5000, 0)] {
        let at = |extent| Region::span(extent, offset as u64, 100_000);
        let (plan, given, _) = one_task(&extent, at, Mode::Update, (0, untouched(lead, 100_000)));
        as_predicted(&engine.run(plan).unwrap().wait().unwrap());
        let changed = plus(&expected[offset..offset + 100_000], 1);
        expected[offset..offset + 100_000].copy_from_slice(&changed);
        assert!(given.take().unwrap()[..] == changed);
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}

/// As a ring does that passes one buffer on and on.
#[test]
fn memory_that_came_back_is_given_again() {
    let (bytes, extent, device) = table(100_000, Faults::default());
    let engine = engine();
    let mut slot = untouched(0, 8192);
    let place = slot.as_ptr();
    for round in 0..10 {
        let at = |extent| Region::span(extent, round * 8192 + round % 3 * 100, 8192);
        let mode = [Mode::Read, Mode::Update][round as usize % 2];
        let (plan, given, region) = one_task(&extent, at, mode, (0, slot));
        as_predicted(&engine.run(plan).unwrap().wait().unwrap());
        slot = given.take().unwrap();
        assert_eq!(slot.as_ptr(), place);
        assert_eq!(slot[..], of_region(&contents(&device), &region));
        assert_eq!(engine.budget().available(), BUDGET);
    }
    assert!(contents(&device) != bytes);
}

#[test]
fn given_memory_beyond_the_budget_is_refused_before_any_io() {
    let (_, extent, device) = table(4 << 20, Faults::default());
    let engine = engine();
    let refused = |plan: Plan, given: &GivenBlock, least: u64| {
        let explained = engine.explain(&plan).err();
        let error = engine.run(plan).err().expect("it is too much");
        for error in [&error, &explained.expect("it is too much")] {
            assert!(
                matches!(error, Error::OverBudget { needed, .. } if *needed >= least),
                "{error}"
            );
        }
        assert_eq!(device.operations(), 0);
        assert!(given.take().is_some(), "it comes back");
        assert_eq!(engine.budget().available(), BUDGET);
    };
    let at = |extent| Region::span(extent, 0, 2 << 20);
    let (plan, given, _) = one_task(&extent, at, Mode::Read, (0, untouched(0, 2 << 20)));
    refused(plan, &given, 2 << 20);
    // Memory beyond the region counts.
    let at = |extent| Region::span(extent, 0, 512);
    let (plan, given, _) = one_task(&extent, at, Mode::Read, (0, untouched(0, 2 << 20)));
    refused(plan, &given, 2 << 20);
    // So do frames beside it.
    let at = |extent| Region::span(extent, 0, 600 << 10);
    let (mut plan, given, _) = one_task(&extent, at, Mode::Read, (0, untouched(0, 600 << 10)));
    let on = plan.extent(&extent);
    plan.task(Task::new("more").read(Region::span(on, 1 << 20, 600 << 10)));
    refused(plan, &given, 1200 << 10);
}

#[test]
fn memory_that_does_not_fit_is_refused_and_comes_back() {
    let (_, extent, device) = table(10_000, Faults::default());
    let refused = |at: &dyn Fn(&mut Plan) -> Region, pitch: usize, len: usize, says: &str| {
        let mut plan = Plan::new("plan");
        let region = at(&mut plan);
        let given = plan.given(region, pitch, untouched(0, len));
        plan.task(Task::new("read").read(region));
        let error = engine()
            .run(plan)
            .err()
            .expect("it does not fit")
            .to_string();
        assert!(
            error.starts_with("plan plan: ") && error.contains(says),
            "{error}"
        );
        assert_eq!(given.take().unwrap().len(), len);
    };
    let span = |plan: &mut Plan| Region::span(plan.extent(&extent), 0, 1000);
    let ragged = |plan: &mut Plan| rows_of(plan.extent(&extent), 0, 100, 200, 5);
    refused(&span, 0, 999, "table, 0 bytes apart, are given 999 bytes");
    refused(&ragged, 100, 499, "5 rows of 100 bytes of table");
    refused(&ragged, 99, 1000, "every 99 bytes");
    refused(&ragged, usize::MAX, 1000, "are given 1000 bytes");
    refused(
        &|plan| Region::span(plan.extent(&extent), 9500, 501),
        0,
        1000,
        "not inside the 10000 bytes of table",
    );
    refused(
        &|plan| rows_of(plan.extent(&extent), 1, 1, u64::MAX, 9),
        1,
        1000,
        "not inside",
    );
    refused(
        &|plan| Region::span(plan.volatile("sums", 8), 0, 8),
        0,
        8,
        "sums, which is in memory",
    );
    // Twice for one region; taken back before the run.
    let (mut plan, first, region) = one_task(
        &extent,
        |on| Region::span(on, 0, 8),
        Mode::Read,
        (0, untouched(0, 8)),
    );
    let second = plan.given(region, 0, untouched(0, 8));
    assert!(matches!(engine().run(plan), Err(Error::Plan { .. })));
    assert!(first.take().is_some() && second.take().is_some());
    let (plan, given, _) = one_task(
        &extent,
        |on| Region::span(on, 0, 8),
        Mode::Read,
        (0, untouched(0, 8)),
    );
    assert!(given.take().is_some());
    let error = engine().run(plan).unwrap().wait().err().unwrap();
    assert!(error.to_string().contains("taken back"), "{error}");
    assert_eq!(device.operations(), 0);
}

#[test]
fn a_run_has_its_given_memory_from_its_beginning_to_its_end() {
    let (_, extent, _) = table(10_000, Faults::default());
    let (has_begun, begun) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let mut plan = Plan::new("plan");
    let region = Region::span(plan.extent(&extent), 0, 512);
    let (given, serial) = (plan.given(region, 0, untouched(0, 512)), plan.serial());
    plan.task(Task::new("read").read(region).update(serial));
    plan.task(Task::new("wait").update(serial).run(move |_| {
        has_begun.send(())?;
        Ok(goes_on.recv()?)
    }));
    let engine = engine();
    let ticket = engine.run(plan).unwrap();
    // The only task on the block has ended.
    begun.recv().unwrap();
    let taken = given.take();
    go_on.send(()).unwrap();
    assert!(taken.is_none());
    ticket.wait().unwrap();
    assert!(given.take().is_some());
}

#[test]
fn a_cancelled_run_gives_memory_back_when_nothing_uses_it() {
    let engine = engine();
    // While a task has it.
    let (_, extent, device) = table(100_000, Faults::default());
    let (has_begun, begun) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let mut plan = Plan::new("plan");
    let region = Region::span(plan.extent(&extent), 700, 5000);
    let given = plan.given(region, 0, untouched(0, 5000));
    plan.task(Task::new("wait").update(region).run(move |cx| {
        cx.blocks[0].bytes_mut().fill(1);
        has_begun.send(())?;
        Ok(goes_on.recv()?)
    }));
    let ticket = engine.run(plan).unwrap();
    begun.recv().unwrap();
    ticket.cancel();
    assert!(given.take().is_none(), "a task has it");
    go_on.send(()).unwrap();
    assert!(matches!(ticket.wait(), Err(Error::Cancelled)));
    assert!(given.take().unwrap().iter().all(|&byte| byte == 1));
    assert!(
        contents(&device)[700..5700].iter().any(|&byte| byte != 1),
        "it is not stored"
    );
    // While reads to it and to bounce buffers are in flight, for a caller that has left.
    let slow = Faults {
        latency: Some(Duration::from_millis(50)..Duration::from_millis(51)),
        ..Faults::default()
    };
    let (_, extent, device) = table(1 << 20, slow);
    for lead in [0, 100] {
        let at = |extent| Region::span(extent, 0, 300_000);
        let (plan, given, _) = one_task(&extent, at, Mode::Read, (0, untouched(lead, 300_000)));
        let before = device.operations();
        let ticket = engine.run(plan).unwrap();
        while device.operations() == before {
            std::thread::yield_now();
        }
        drop(ticket);
        let memory = std::iter::repeat_with(|| given.take()).find_map(|memory| memory);
        assert_eq!(memory.unwrap().len(), 300_000);
    }
    assert_eq!(engine.budget().available(), BUDGET);
}

/// Whatever has been moved by then, and whatever still waits for a buffer.
#[test]
fn a_fault_at_each_transfer_gives_memory_back() {
    const LEN: usize = 3 << 20;
    for lead in [0, 100] {
        let at = |extent| Region::span(extent, 100, LEN as u64);
        let ends = (0..).find(|&nth| {
            let engine = Engine::new(Config {
                memory_bytes: 8 << 20,
                threads: 1,
                driver: Choice::Auto,
            });
            let faults = Faults {
                fail_nth: Some(nth),
                ..Faults::default()
            };
            let (_, extent, _) = table(LEN + 1000, faults);
            let memory = untouched(lead, LEN);
            let place = memory.as_ptr();
            let (plan, given, _) = one_task(&extent, at, Mode::Update, (LEN, memory));
            let result = engine.run(plan).unwrap().wait();
            assert_eq!(given.take().unwrap().as_ptr(), place);
            assert_eq!(engine.budget().available(), 8 << 20);
            match result {
                Ok(_) => true,
                Err(Error::Device { .. }) => false,
                Err(other) => panic!("{other}"),
            }
        });
        // Three pieces at least are read and written.
        assert!(ends.is_some_and(|ends| ends >= 6), "{ends:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// On bad days too the bytes are right, or the error names the table or its device,
    /// and the memory comes back.
    #[test]
    fn a_run_with_given_memory_is_one_without(
        seed in 0u64..1000, lead in 0usize..1500, alike: bool, fails: bool, group: bool,
        offset in 0u64..3000, row_bytes in 0u64..6000, gap in 0u64..2000, count in 0u64..6,
        apart in 0usize..1500, to_end: bool, mode in prop_oneof![Just(Mode::Read), Just(Mode::Update), Just(Mode::Write)],
    ) {
        let error = if fails { 0.1 } else { 0.0 };
        let stride = row_bytes + gap * u64::from(group);
        let end = offset + stride * count.saturating_sub(1) + row_bytes;
        let len = if to_end { end.max(1) as usize } else { 70_000 };
        let (bytes, extent, device) = table(len, Faults { seed, short: 0.3, reorder: 0.3, read_error: error, write_error: error, ..Faults::default() });
        let (pitch, lead) = match alike {
            true => (stride as usize + apart / SECTOR * SECTOR, offset as usize % SECTOR),
            false => (row_bytes as usize + apart, lead),
        };
        let at = |extent| rows_of(extent, offset, row_bytes, stride, count);
        let (engine, memory) = (engine(), untouched(lead, pitch * count as usize + row_bytes as usize));
        let place = memory.as_ptr();
        let (plan, given, region) = one_task(&extent, at, mode, (pitch, memory));
        let result = engine.run(plan).unwrap().wait();
        let memory = given.take().unwrap();
        prop_assert_eq!(memory.as_ptr(), place);
        let found = rows(&memory, &region, pitch);
        match result {
            Ok(outcome) => {
                as_predicted(&outcome);
                let before = of_region(&bytes, &region);
                let expected = match mode {
                    Mode::Read => before,
                    Mode::Update => plus(&before, 1),
                    Mode::Write => vec![GAP + 1; before.len()],
                };
                prop_assert_eq!(&found, &expected);
                if !fails {
                    let mut model = bytes.clone();
                    for (row, new) in expected.chunks(row_bytes.max(1) as usize).enumerate() {
                        let start = (offset + row as u64 * stride) as usize;
                        model[start..start + new.len()].copy_from_slice(new);
                    }
                    prop_assert!(contents(&device) == model);
                }
            }
            Err(Error::Device { object, .. }) => {
                // A sector that rows share is named by its device.
                prop_assert!(fails && ["table", "memory"].contains(&object.as_str()));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
        prop_assert_eq!(engine.budget().available(), BUDGET);
    }
}
