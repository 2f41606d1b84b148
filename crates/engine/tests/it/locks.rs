//! What goes on at once on one extent, and what a write leaves known.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use outcore_device::{Blocking, Choice, Device, Faults, Faulty, MemoryDevice};
use outcore_engine::{
    Config, Engine, Error, Extent, GatherOptions, Item, Mode, Outcome, Plan, Region, StreamOptions,
    Task, Ticket,
};
use proptest::prelude::*;

const LEN: usize = 1 << 18;
const SECTOR: u32 = 512;
/// For what must not happen, however long one waits.
const A_WHILE: Duration = Duration::from_millis(50);
/// For what must happen.
const SOON: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: 4 << 20,
        threads: 2,
        driver: Choice::Auto,
    })
}

fn table(faults: Faults) -> (Extent, Arc<MemoryDevice>, Arc<Faulty>) {
    let memory = Arc::new(MemoryDevice::with_sector("memory", LEN as u64, SECTOR));
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    memory.write_at(&bytes, 0).unwrap();
    let device = Faulty::new(Arc::clone(&memory) as Arc<dyn Device>, faults);
    let extent = Extent::new("table", Arc::clone(&device) as Arc<dyn Device>);
    (extent, memory, device)
}

/// A run that changes bytes once it is told to, and how to tell it. It says when it has begun.
fn held_write(
    engine: &Engine,
    extent: &Extent,
    range: Range<u64>,
    value: u8,
) -> (Ticket<Outcome>, Receiver<()>, Sender<()>) {
    let ((begins, begun), (go, gone)) = (channel(), channel());
    let mut plan = Plan::new("held");
    let region = Region::span(plan.extent(extent), range.start, range.end - range.start);
    plan.task(Task::new("fill").update(region).run(move |cx| {
        let _ = begins.send(());
        let _ = gone.recv();
        cx.blocks[0].bytes_mut().fill(value);
        Ok(())
    }));
    (engine.run(plan).unwrap(), begun, go)
}

fn gather(
    engine: &Engine,
    extent: &Extent,
    ranges: &[Range<u64>],
) -> Ticket<outcore_engine::Gathered> {
    let item = |range: &Range<u64>| Item {
        extent,
        offset: range.start,
        len: (range.end - range.start) as usize,
    };
    let items: Vec<Item<'_>> = ranges.iter().map(item).collect();
    let options = GatherOptions {
        gap_bytes: 0,
        ..GatherOptions::default()
    };
    engine.gather(&items, &options).unwrap()
}

fn read_all(engine: &Engine, extent: &Extent, range: Range<u64>) -> outcore_engine::Trace {
    let mut plan = Plan::new("read");
    let reference = plan.extent(extent);
    for start in range.step_by(16 << 10) {
        plan.task(Task::new("look").read(Region::span(reference, start, 16 << 10)));
    }
    engine.run(plan).unwrap().wait().unwrap().trace
}

#[test]
fn a_gather_and_a_write_on_other_bytes_of_an_extent_go_on_at_once() {
    let (engine, (extent, memory, _)) = (engine(), table(Faults::default()));
    let (writer, begun, go) = held_write(&engine, &extent, 10_000..20_000, 1);
    begun.recv_timeout(SOON).unwrap();
    // On both sides of what is written.
    let beside = gather(&engine, &extent, &[100..300, 5000..9000, 30_000..31_000]);
    assert!(
        beside.wait_timeout(SOON),
        "it waits for bytes that it does not want"
    );
    assert_eq!(beside.wait().unwrap().get(0)[0], 100);
    let within = gather(&engine, &extent, &[100..300, 15_000..15_010]);
    assert!(
        !within.wait_timeout(A_WHILE),
        "it reads what is being written"
    );
    go.send(()).unwrap();
    assert_eq!(within.wait().unwrap().get(1), [1; 10]);
    writer.wait().unwrap();
    assert_eq!(memory.to_bytes()[10_000..20_000], [1; 10_000]);
}

#[test]
fn writes_beside_each_other_go_on_at_once_unless_they_share_a_sector() {
    let (engine, (extent, memory, _)) = (engine(), table(Faults::default()));
    let (first, begun, go) = held_write(&engine, &extent, 700..1200, 1);
    begun.recv_timeout(SOON).unwrap();
    let (apart, apart_begun, apart_go) = held_write(&engine, &extent, 2000..3000, 2);
    apart_begun.recv_timeout(SOON).unwrap();
    // Byte 1200 is in the sector from 1024 to 1536.
    let (shares, shares_begun, shares_go) = held_write(&engine, &extent, 1200..1300, 3);
    assert!(shares_begun.recv_timeout(A_WHILE).is_err());
    for go in [go, apart_go, shares_go] {
        go.send(()).unwrap();
    }
    for ticket in [first, apart, shares] {
        ticket.wait().unwrap();
    }
    let bytes = memory.to_bytes();
    let expected = |at: usize| match at {
        700..1200 => 1,
        1200..1300 => 3,
        2000..3000 => 2,
        _ => (at % 251) as u8,
    };
    assert!((0..LEN).all(|at| bytes[at] == expected(at)));
}

#[test]
fn a_write_stream_excludes_what_lies_behind_its_start_only() {
    let (engine, (extent, memory, _)) = (engine(), table(Faults::default()));
    let (reader, begun, go) = held_write(&engine, &extent, 0..4096, 1);
    begun.recv_timeout(SOON).unwrap();
    let options = StreamOptions {
        block_bytes: 4096,
        ahead: 2,
    };
    let mut stream = engine.write_stream(&extent, 8192, options).unwrap();
    stream.write(&[7; 10_000]).unwrap();
    // Back to bytes that it has not locked.
    stream.go_on_at(5000).unwrap();
    stream.write(&[8; 100]).unwrap();
    go.send(()).unwrap();
    stream.finish().unwrap();
    reader.wait().unwrap();
    let bytes = memory.to_bytes();
    assert_eq!(bytes[8192..18_192], [7; 10_000]);
    assert_eq!(bytes[5000..5100], [8; 100]);
    assert_eq!(bytes[..4096], [1; 4096]);
    assert_eq!(bytes[4999], (4999 % 251) as u8);
}

#[test]
fn a_stream_writes_behind_its_start_while_a_run_writes_before_it() {
    let (engine, (extent, memory, _)) = (engine(), table(Faults::default()));
    let (writer, begun, go) = held_write(&engine, &extent, 0..4096, 1);
    begun.recv_timeout(SOON).unwrap();
    let mut stream = engine
        .write_stream(&extent, 4096, StreamOptions::default())
        .unwrap();
    stream.write(&[7; 10_000]).unwrap();
    stream.finish().unwrap();
    assert_eq!(memory.to_bytes()[4096..14_096], [7; 10_000]);
    go.send(()).unwrap();
    writer.wait().unwrap();
}

#[test]
fn added_tasks_lock_what_is_free_and_what_the_plan_has_locked_for_them() {
    let run = |locks: bool| {
        let (engine, (extent, _, _)) = (engine(), table(Faults::default()));
        let mut plan = Plan::new("extensible");
        let reference = plan.extent(&extent);
        let ((begins, begun), (go, gone)) = (channel(), channel::<()>());
        plan.task(
            Task::new("asks")
                .write(Region::span(reference, 0, 4096))
                .run(move |cx| {
                    begins.send(())?;
                    let _ = gone.recv();
                    let more = Region::span(reference, 8192, 4096);
                    cx.more.push(Task::new("added").write(more).run(|cx| {
                        cx.blocks[0].bytes_mut().fill(9);
                        Ok(())
                    }));
                    Ok(())
                }),
        );
        if locks {
            plan.lock(Region::span(reference, 8192, 4096), Mode::Write);
        }
        let ticket = engine.run(plan).unwrap();
        begun.recv_timeout(SOON).unwrap();
        let (other, other_begun, other_go) = held_write(&engine, &extent, 8192..8193, 5);
        assert_eq!(other_begun.recv_timeout(A_WHILE).is_err(), locks);
        go.send(()).unwrap();
        let result = ticket.wait().map(|_| ());
        other_go.send(()).unwrap();
        other.wait().unwrap();
        result
    };
    run(true).unwrap();
    let error = run(false).unwrap_err();
    assert!(matches!(error, Error::Plan { .. }), "{error}");
    assert!(
        error.to_string().contains("another run has locked"),
        "{error}"
    );
}

#[test]
fn a_write_forgets_the_items_and_blocks_that_it_touches_and_no_others() {
    let (engine, (extent, _, device)) = (engine(), table(Faults::default()));
    let ranges: Vec<Range<u64>> = (0..100)
        .map(|item| item * 2048..item * 2048 + 300)
        .collect();
    let gathered = |ranges: &[Range<u64>]| {
        let before = device.operations();
        let first = gather(&engine, &extent, ranges).wait().unwrap();
        (device.operations() - before, first.get(0)[0])
    };
    assert_eq!(gathered(&ranges).0, 100);
    assert_eq!(gathered(&ranges).0, 0);
    let (writer, _, go) = held_write(&engine, &extent, 2048 * 10..2048 * 13, 1);
    go.send(()).unwrap();
    writer.wait().unwrap();
    assert_eq!(gathered(&ranges[..10]).0, 0);
    assert_eq!(gathered(&ranges[13..]).0, 0);
    assert_eq!(gathered(&ranges[10..13]), (3, 1));
    assert_eq!(gathered(&ranges).0, 0);
    // Blocks of 16 KiB: what is written touches the second and the third.
    let all = 0..64 << 10;
    assert_eq!(read_all(&engine, &extent, all.clone()).bytes_reused, 0);
    assert_eq!(
        read_all(&engine, &extent, all.clone()).bytes_reused,
        64 << 10
    );
    let (writer, _, go) = held_write(&engine, &extent, 32_000..33_000, 1);
    go.send(()).unwrap();
    writer.wait().unwrap();
    let trace = read_all(&engine, &extent, all);
    assert_eq!(
        (trace.bytes_reused, trace.actual.bytes_read),
        (32 << 10, 32 << 10)
    );
    // A stream touches what it writes, not all that it might.
    let mut stream = engine
        .write_stream(&extent, 2048 * 20, StreamOptions::default())
        .unwrap();
    stream.write(&[2; 2048]).unwrap();
    stream.finish().unwrap();
    assert_eq!(gathered(&ranges[21..]).0, 0);
    assert_eq!(gathered(&ranges[20..21]), (1, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Writes and gathers anywhere, several at once: each gather sees all of a write or nothing of
    /// it, and what is known is never stale.
    #[test]
    fn gathers_never_see_what_was_overwritten(
        seed in 0u64..1000, writes in proptest::collection::vec((0u64..12_000, 1u64..3000), 1..25),
    ) {
        let latency = Some(Duration::ZERO..Duration::from_micros(100));
        let (extent, memory, _) = table(Faults { seed, short: 0.2, reorder: 0.2, latency, ..Faults::default() });
        let engine = engine();
        let mut model = memory.to_bytes();
        let mut under_way = Vec::new();
        for (index, &(start, len)) in writes.iter().enumerate() {
            let value = 200 + index as u8;
            let (writer, _, go) = held_write(&engine, &extent, start..start + len, value);
            model[start as usize..(start + len) as usize].fill(value);
            // Some before the write is told to go on, which then has to wait for it.
            let ranges = [start..start + len, 14_000..16_000, start / 2..start / 2 + 700];
            let ticket = gather(&engine, &extent, &ranges);
            go.send(()).unwrap();
            under_way.push(writer);
            if index % 3 == 0 {
                let gathered = ticket.wait().unwrap();
                for (range, item) in ranges.iter().zip(gathered.iter()) {
                    prop_assert!(item == &model[range.start as usize..range.end as usize], "{range:?}");
                }
            }
        }
        for writer in under_way {
            writer.wait().unwrap();
        }
        prop_assert!(memory.to_bytes() == model);
        let gathered = gather(&engine, &extent, std::slice::from_ref(&(0..16_000))).wait().unwrap();
        prop_assert!(gathered.get(0) == &model[..16_000]);
    }
}
