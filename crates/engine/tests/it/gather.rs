//! Gathers against a plain model of their bytes, on good devices and bad ones.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outcore_device::{Blocking, Choice, Device, Faults, Faulty, MemoryDevice, Mode, open_file};
use outcore_engine::{Changes, Config, Engine, Error, Extent, GatherOptions, Item, StreamOptions};
use proptest::prelude::*;

const BUDGET: u64 = 1 << 20;
const COLD: GatherOptions = GatherOptions {
    gap_bytes: 0,
    request_bytes: 4096,
    cache: false,
};

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: BUDGET,
        threads: 1,
        driver: Choice::Auto,
    })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 + at / 251 + seed * 7) as u8)
        .collect()
}

fn faulty(bytes: &[u8], block: u32, faults: Faults) -> (Extent, Arc<Faulty>) {
    let device = MemoryDevice::with_sector("memory", bytes.len() as u64, block);
    assert_eq!(device.write_at(bytes, 0).unwrap(), bytes.len());
    let device = Faulty::new(Arc::new(device), faults);
    (
        Extent::new("table", Arc::clone(&device) as Arc<dyn Device>),
        device,
    )
}

/// Memory is given back by the engine's thread, soon.
fn assert_all_back(engine: &Engine) {
    for _ in 0..2000 {
        if engine.budget().available() == engine.budget().total() {
            // What the budget allows can then also be had.
            let nothing = Extent::new("nothing", Arc::new(MemoryDevice::new("nothing", BUDGET)));
            let options = StreamOptions {
                block_bytes: BUDGET as usize,
                ahead: 1,
            };
            assert!(
                engine
                    .read_stream(&nothing, 0..BUDGET, options)
                    .unwrap()
                    .all(|block| block.is_ok())
            );
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!(
        "{} of {} bytes are missing",
        engine.budget().total() - engine.budget().available(),
        engine.budget().total()
    );
}

fn items<'a>(extent: &'a Extent, ranges: &[Range<usize>]) -> Vec<Item<'a>> {
    ranges
        .iter()
        .map(|range| Item {
            extent,
            offset: range.start as u64,
            len: range.len(),
        })
        .collect()
}

/// By all three ways.
fn assert_gathers(
    engine: &Engine,
    items: &[Item<'_>],
    expected: &[&[u8]],
    options: &GatherOptions,
) {
    let packed: Vec<u8> = expected.concat();
    let gathered = engine.gather(items, options).unwrap().wait().unwrap();
    assert!(gathered.len() == expected.len() && gathered.iter().eq(expected.iter().copied()));
    let mut copy = vec![0; packed.len()];
    gathered.copy_to(&mut copy).unwrap();
    assert_eq!(copy, packed);
    drop(gathered);
    let mut arrivals = engine.gather_each(items, options).unwrap();
    let mut seen = vec![false; expected.len()];
    while let Some(item) = arrivals.next() {
        let item = item.unwrap();
        assert_eq!(arrivals.get(item), Some(expected[item]));
        assert!(!std::mem::replace(&mut seen[item], true));
    }
    assert!(seen.into_iter().all(|seen| seen));
    drop(arrivals);
    let mut copy = vec![0; packed.len()];
    engine
        .gather_into(items, &mut copy, options, || true)
        .unwrap();
    assert_eq!(copy, packed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn any_items_are_gathered(
        len in 1usize..40_000, wanted in proptest::collection::vec((0.0f64..=1.0, 0usize..3000, 0usize..2), 0..80),
        power in 0u32..10, gap_bytes in 0u64..3000, request_bytes in 1u64..9000, cache: bool,
    ) {
        let bytes = [pattern(len, 1), pattern(len / 2 + 1, 2)];
        let extents = bytes.each_ref().map(|bytes| faulty(bytes, 1 << power, Faults::default()).0);
        let place = |&(at, most, extent): &(f64, usize, usize)| {
            let from = (at * bytes[extent].len() as f64) as usize;
            (extent, from..bytes[extent].len().min(from + most))
        };
        let places: Vec<(usize, Range<usize>)> = wanted.iter().map(place).collect();
        let items: Vec<Item<'_>> = places.iter().map(|(extent, range)| Item { extent: &extents[*extent], offset: range.start as u64, len: range.len() }).collect();
        let expected: Vec<&[u8]> = places.iter().map(|(extent, range)| &bytes[*extent][range.clone()]).collect();
        let engine = engine();
        for _ in 0..2 {
            assert_gathers(&engine, &items, &expected, &GatherOptions { gap_bytes, request_bytes, cache });
        }
        assert_all_back(&engine);
    }

    #[test]
    fn bad_days_change_no_byte(seed in 0u64..500) {
        let bytes = pattern(50_000, 3);
        let latency = Some(Duration::ZERO..Duration::from_micros(200));
        let (extent, _) = faulty(&bytes, 512, Faults { seed, short: 0.3, reorder: 0.3, latency, ..Faults::default() });
        let ranges: Vec<_> = (0..60).map(|item| { let at = item * 7919 % 48_000; at..at + 10 + item * 29 % 1500 }).collect();
        let expected: Vec<&[u8]> = ranges.iter().map(|range| &bytes[range.clone()]).collect();
        let engine = engine();
        assert_gathers(&engine, &items(&extent, &ranges), &expected, &COLD);
        assert_all_back(&engine);
    }
}

#[test]
fn a_cold_file_is_gathered_to_its_last_byte() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = pattern(1_000_003, 4);
    std::fs::write(folder.path().join("file"), &bytes).unwrap();
    let extent = Extent::new(
        "file",
        open_file(folder.path().join("file"), Mode::Read).unwrap(),
    );
    let mut ranges: Vec<_> = (0..500)
        .map(|item| {
            let at = item * 104_729 % 999_000;
            at..at + 512
        })
        .collect();
    ranges.extend([
        1_000_002..1_000_003,
        1_000_003..1_000_003,
        0..0,
        999_424..1_000_003,
        0..300_000,
    ]);
    let expected: Vec<&[u8]> = ranges.iter().map(|range| &bytes[range.clone()]).collect();
    for driver in [Choice::Auto, Choice::Threads] {
        let engine = Engine::new(Config {
            memory_bytes: 4 << 20,
            threads: 1,
            driver,
        });
        assert_gathers(&engine, &items(&extent, &ranges), &expected, &COLD);
        assert_gathers(
            &engine,
            &items(&extent, &ranges),
            &expected,
            &GatherOptions::default(),
        );
    }
}

#[test]
fn a_batch_larger_than_memory_is_split_or_refused() {
    let bytes = pattern(400_000, 5);
    let (extent, device) = faulty(&bytes, 512, Faults::default());
    let ranges: Vec<_> = (0..400)
        .map(|item| {
            let at = item * 7919 % 396_000;
            at..at + 4000
        })
        .collect();
    let engine = Engine::new(Config {
        memory_bytes: 200 << 10,
        threads: 1,
        driver: Choice::Auto,
    });
    let Err(Error::OverBudget { what, needed, .. }) =
        engine.gather(&items(&extent, &ranges), &COLD)
    else {
        panic!("must be refused")
    };
    assert!(what == "gather" && needed > 200 << 10);
    assert_eq!(device.operations(), 0);
    let mut packed = vec![0; 1_600_000];
    engine
        .gather_into(&items(&extent, &ranges), &mut packed, &COLD, || true)
        .unwrap();
    for (range, item) in ranges.iter().zip(packed.chunks(4000)) {
        assert_eq!(item, &bytes[range.clone()]);
    }
    let huge = engine.gather_into(&items(&extent, &[0..300_000]), &mut packed, &COLD, || true);
    assert!(matches!(huge, Err(Error::OverBudget { .. })));
    assert_eq!(engine.budget().available(), 200 << 10);
}

#[test]
fn items_beyond_the_extent_are_refused_with_name_and_offset() {
    let (extent, device) = faulty(&pattern(1000, 1), 512, Faults::default());
    let engine = engine();
    for range in [990..1001, 1001..1001, usize::MAX - 3..usize::MAX] {
        let items = items(&extent, &[0..10, range.clone()]);
        let expected = format!(
            "table: {} bytes at offset {} are not inside its 1000 bytes",
            range.len(),
            range.start
        );
        let mut destination = [0; 100];
        let errors = [
            engine.gather(&items, &COLD).err().unwrap(),
            engine.gather_each(&items, &COLD).err().unwrap(),
            engine
                .gather_into(&items, &mut destination, &COLD, || true)
                .unwrap_err(),
        ];
        errors
            .iter()
            .for_each(|error| assert_eq!(error.to_string(), expected));
    }
    assert!(matches!(
        engine.gather_into(&items(&extent, &[0..10]), &mut [0; 9], &COLD, || true),
        Err(Error::OutOfRange { .. })
    ));
    assert!(
        engine
            .gather(&items(&extent, &[0..10]), &COLD)
            .unwrap()
            .wait()
            .unwrap()
            .copy_to(&mut [0; 9])
            .is_err()
    );
    assert_eq!(device.operations(), 1);
    assert_all_back(&engine);
}

#[test]
fn a_request_that_fails_alone_leaves_all_others() {
    let bytes = pattern(40_000, 2);
    let ranges: Vec<_> = (0..10).map(|item| item * 4000..item * 4000 + 100).collect();
    for nth in 0..10 {
        let faults = Faults {
            fail_nth: Some(nth),
            ..Faults::default()
        };
        let (extent, _) = faulty(&bytes, 512, faults);
        let engine = engine();
        let options = GatherOptions {
            gap_bytes: 0,
            ..COLD
        };
        let mut arrivals = engine
            .gather_alone(&items(&extent, &ranges), &options)
            .unwrap();
        let mut seen: Vec<usize> = arrivals.by_ref().map(Result::unwrap).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        let failed: Vec<_> = (0..10)
            .filter_map(|item| arrivals.failure(item))
            .map(ToString::to_string)
            .collect();
        assert!(
            failed.len() == 1 && failed[0].starts_with("table: read of "),
            "{failed:?}"
        );
        let there =
            (0..10).filter(|&item| arrivals.get(item) == Some(&bytes[ranges[item].clone()]));
        assert_eq!(there.count(), 9);
        drop(arrivals);
        assert_all_back(&engine);
    }
}

#[test]
fn a_fault_at_each_read_is_an_error_and_nothing_hangs() {
    let bytes = pattern(40_000, 2);
    let ranges: Vec<_> = (0..10).map(|item| item * 4000..item * 4000 + 100).collect();
    for nth in 0.. {
        let (extent, device) = faulty(
            &bytes,
            512,
            Faults {
                fail_nth: Some(nth),
                ..Faults::default()
            },
        );
        let engine = engine();
        let items = items(&extent, &ranges);
        let whole = engine.gather(&items, &COLD).unwrap().wait();
        let mut arrivals = engine.gather_each(&items, &COLD).unwrap();
        let each: Vec<_> = arrivals.by_ref().collect();
        assert!(arrivals.next().is_none());
        drop(arrivals);
        let into = engine.gather_into(&items, &mut [0; 1000], &COLD, || true);
        let errors: Vec<String> = [
            whole.err(),
            each.into_iter().find_map(Result::err),
            into.err(),
        ]
        .into_iter()
        .flatten()
        .map(|error| error.to_string())
        .collect();
        assert_all_back(&engine);
        if device.operations() <= nth {
            assert_eq!(errors.len(), 0);
            return;
        }
        assert!(
            errors.len() == 1 && errors[0].starts_with("table: read of "),
            "{errors:?}"
        );
    }
}

#[test]
fn known_items_cost_no_request_until_their_memory_is_needed() {
    let bytes = pattern(400_000, 3);
    let (extent, device) = faulty(&bytes, 512, Faults::default());
    let engine = engine();
    let options = GatherOptions {
        cache: true,
        ..COLD
    };
    let ranges: Vec<_> = (0..50)
        .map(|item| {
            let at = item * 7919 % 396_000;
            at..at + 500
        })
        .collect();
    let gather = || {
        let gathered = engine
            .gather(&items(&extent, &ranges), &options)
            .unwrap()
            .wait()
            .unwrap();
        assert!(
            gathered
                .iter()
                .eq(ranges.iter().map(|range| &bytes[range.clone()]))
        );
        device.operations()
    };
    let cold = gather();
    assert!(cold > 40);
    assert_eq!(gather(), cold);
    assert_eq!(engine.budget().available(), BUDGET);
    // The whole budget is reserved, and the items are gone.
    assert_all_back(&engine);
    assert_eq!(gather(), 2 * cold);
}

#[test]
fn what_was_written_is_gathered() {
    let (extent, _) = faulty(&pattern(100_000, 1), 512, Faults::default());
    let engine = engine();
    let options = GatherOptions::default();
    let ranges: Vec<_> = (0..20).map(|item| item * 4999..item * 4999 + 700).collect();
    for seed in 2..6 {
        engine
            .gather(&items(&extent, &ranges), &options)
            .unwrap()
            .wait()
            .unwrap();
        let new = pattern(90_000, seed);
        let mut writer = engine
            .write_stream(
                &extent,
                0,
                StreamOptions {
                    block_bytes: 4096,
                    ahead: 4,
                },
            )
            .unwrap();
        writer.write(&new).unwrap();
        writer.finish().unwrap();
        let gathered = engine
            .gather(&items(&extent, &ranges), &options)
            .unwrap()
            .wait()
            .unwrap();
        for (range, item) in ranges
            .iter()
            .zip(gathered.iter())
            .filter(|(range, _)| range.end <= 90_000)
        {
            assert_eq!(item, &new[range.clone()]);
        }
    }
    assert_all_back(&engine);
}

/// A gather found what it remembered although the extent had been written since.
#[test]
fn what_others_wrote_is_gathered() {
    let (before, after) = (pattern(100_000, 1), pattern(100_000, 2));
    let device = Arc::new(MemoryDevice::new("memory", 100_000));
    device.write_at(&before, 0).unwrap();
    let changes: Arc<Changes> = Arc::default();
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let device = Arc::clone(&device) as Arc<dyn Device>;
        Extent::with_changes(name, device, Arc::clone(&changes), 0)
    });
    let ranges: Vec<_> = (0..20).map(|item| item * 4999..item * 4999 + 700).collect();
    let items = items(&ours, &ranges);
    let engine = engine();
    let expect = |bytes: &[u8]| {
        let expected: Vec<&[u8]> = ranges.iter().map(|range| &bytes[range.clone()]).collect();
        assert_gathers(&engine, &items, &expected, &GatherOptions::default());
    };
    expect(&before);
    let other = self::engine();
    let mut writer = other
        .write_stream(
            &theirs,
            0,
            StreamOptions {
                block_bytes: 4096,
                ahead: 4,
            },
        )
        .unwrap();
    writer.write(&after).unwrap();
    writer.finish().unwrap();
    expect(&after);
    assert_all_back(&engine);
}

#[test]
fn cancel_ends_a_gather_and_gives_its_memory_back() {
    let latency = Some(Duration::from_millis(3)..Duration::from_millis(6));
    let bytes = pattern(400_000, 1);
    let (extent, _) = faulty(
        &bytes,
        512,
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let engine = engine();
    let ranges: Vec<_> = (0..100)
        .map(|item| item * 4000..item * 4000 + 100)
        .collect();
    let items = items(&extent, &ranges);
    let ticket = engine.gather(&items, &COLD).unwrap();
    assert!(!ticket.poll() && ticket.progress().fraction < 1.0);
    ticket.cancel();
    assert!(matches!(ticket.wait(), Err(Error::Cancelled)));
    drop(engine.gather(&items, &COLD).unwrap());
    let mut arrivals = engine.gather_each(&items, &COLD).unwrap();
    assert!(!arrivals.ready_within(Duration::ZERO));
    arrivals.next().unwrap().unwrap();
    drop(arrivals);
    let many: Vec<Item<'_>> = (0..100).flat_map(|_| items.iter().copied()).collect();
    let mut answers = [true, false].into_iter();
    let slow = GatherOptions {
        request_bytes: 1,
        ..COLD
    };
    let result = engine.gather_into(&many, &mut vec![0; 1_000_000], &slow, || {
        answers.next().unwrap_or(false)
    });
    assert!(matches!(result, Ok(()) | Err(Error::Cancelled)));
    assert_all_back(&engine);
}

#[test]
fn bytes_outlive_ticket_and_engine() {
    let bytes = pattern(10_000, 1);
    let (extent, _) = faulty(&bytes, 512, Faults::default());
    let engine = engine();
    let gathered = engine
        .gather(&items(&extent, &[5..700, 9000..9500]), &COLD)
        .unwrap()
        .wait()
        .unwrap();
    assert!(engine.budget().available() < BUDGET);
    let unread = engine.gather(&items(&extent, &[5..700]), &COLD).unwrap();
    let arrivals = engine
        .gather_each(&items(&extent, &[5..700]), &COLD)
        .unwrap();
    assert!(unread.wait_timeout(Duration::from_secs(10)));
    drop(engine);
    assert_eq!(
        (gathered.get(0), gathered.get(1)),
        (&bytes[5..700], &bytes[9000..9500])
    );
    drop((gathered, unread));
    assert!(
        arrivals
            .last()
            .is_none_or(|last| last.is_ok() || matches!(last, Err(Error::Closed)))
    );
}

#[test]
fn a_finished_batch_that_is_not_taken_is_given_back() {
    let (extent, _) = faulty(&pattern(10_000, 1), 512, Faults::default());
    let engine = engine();
    let ticket = engine.gather(&items(&extent, &[5..700]), &COLD).unwrap();
    assert!(ticket.wait_timeout(Duration::from_secs(10)));
    drop(ticket);
    assert_all_back(&engine);
}

#[test]
fn frames_are_registered_until_their_memory_is_wanted() {
    let engine = Engine::new(Config {
        memory_bytes: 16 << 20,
        threads: 1,
        driver: Choice::Auto,
    });
    let bytes = pattern(16 << 20, 1);
    let (extent, _) = faulty(&bytes, 512, Faults::default());
    let registered = || engine.info().unwrap().driver.registered_bytes;
    let ranges: Vec<_> = (0..512)
        .map(|index| index * 8192..index * 8192 + 4096)
        .collect();
    let gathered = || {
        engine
            .gather(&items(&extent, &ranges), &COLD)
            .unwrap()
            .wait()
            .unwrap()
    };
    for _ in 0..2 {
        // Once to touch the pages, once to find them known.
        for _ in 0..2 {
            assert!(
                gathered()
                    .iter()
                    .zip(&ranges)
                    .all(|(found, range)| found == &bytes[range.clone()])
            );
        }
        assert_eq!(
            registered() > 0,
            engine.info().unwrap().driver.name == "io_uring"
        );
        let options = StreamOptions {
            block_bytes: 16 << 20,
            ahead: 1,
        };
        assert!(
            engine
                .read_stream(&extent, 0..16 << 20, options)
                .unwrap()
                .all(|block| block.unwrap()[..] == bytes[..])
        );
        drop(engine.reserve("outside", 16 << 20).unwrap());
        assert_eq!(registered(), 0);
    }
}
