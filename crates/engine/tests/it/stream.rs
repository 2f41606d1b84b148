//! Streams against a plain model of their bytes, on good devices and bad ones.

use std::sync::Arc;
use std::time::Duration;

use outcore_device::{Buf, Choice, Device, Faults, Faulty, MemoryDevice, Mode, open_file};
use outcore_engine::{
    Config, Engine, Error, Extent, GatherOptions, Item, Plan, Region, StreamOptions, Supply, Task,
};
use proptest::prelude::*;

const BUDGET: u64 = 1 << 20;

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: BUDGET,
        threads: 2,
        driver: Choice::Auto,
    })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 + at / 251 + seed * 7) as u8)
        .collect()
}

fn device(bytes: &[u8], block: u32) -> Arc<MemoryDevice> {
    use outcore_device::Blocking;
    let device = MemoryDevice::with_sector("memory", bytes.len() as u64, block);
    assert_eq!(device.write_at(bytes, 0).unwrap(), bytes.len());
    Arc::new(device)
}

fn faulty(bytes: &[u8], block: u32, faults: Faults) -> (Arc<MemoryDevice>, Arc<Faulty>) {
    let inner = device(bytes, block);
    (Arc::clone(&inner), Faulty::new(inner, faults))
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

fn read_all(
    engine: &Engine,
    extent: &Extent,
    range: std::ops::Range<u64>,
    options: StreamOptions,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for block in engine.read_stream(extent, range.clone(), options)? {
        let block = block?;
        assert_eq!(block.offset(), range.start + bytes.len() as u64);
        assert!(
            block.len() == options.block_bytes || block.offset() + block.len() as u64 == range.end
        );
        bytes.extend_from_slice(&block);
    }
    Ok(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_range_is_read_in_order(
        len in 0u64..9000, from in 0.0f64..1.0, to in 0.0f64..1.0,
        power in 0u32..10, block_bytes in 1usize..3000, ahead in 1usize..6,
    ) {
        let bytes = pattern(len as usize, 1);
        let extent = Extent::new("memory", device(&bytes, 1 << power));
        let (from, to) = ((from.min(to) * len as f64) as u64, (from.max(to) * len as f64) as u64);
        let engine = engine();
        let read = read_all(&engine, &extent, from..to, StreamOptions { block_bytes, ahead }).unwrap();
        prop_assert_eq!(&read, &bytes[from as usize..to as usize]);
        assert_all_back(&engine);
    }

    #[test]
    fn any_range_is_written_and_nothing_beside_it(
        len in 1u64..9000, at in 0.0f64..1.0, share in 0.0f64..=1.0,
        power in 0u32..10, block_bytes in 1usize..6000, ahead in 1usize..4, step in 1usize..2000,
    ) {
        let mut model = pattern(len as usize, 2);
        let memory = device(&model, 1 << power);
        let extent = Extent::new("memory", Arc::clone(&memory) as Arc<dyn Device>);
        let offset = (at * len as f64) as u64;
        let new = pattern(((len - offset) as f64 * share) as usize, 3);
        let engine = engine();
        let mut writer = engine.write_stream(&extent, offset, StreamOptions { block_bytes, ahead }).unwrap();
        for (index, part) in new.chunks(step).enumerate() {
            if index % 2 == 0 {
                writer.write(part).unwrap();
                continue;
            }
            let mut left = part;
            while !left.is_empty() {
                let buffer = writer.buffer().unwrap();
                let filled = buffer.len().min(left.len());
                buffer[..filled].copy_from_slice(&left[..filled]);
                writer.advance(filled).unwrap();
                left = &left[filled..];
            }
        }
        prop_assert_eq!(writer.position(), offset + new.len() as u64);
        writer.finish().unwrap();
        model[offset as usize..][..new.len()].copy_from_slice(&new);
        prop_assert_eq!(memory.to_bytes(), model);
        assert_all_back(&engine);
    }

    #[test]
    fn bad_days_change_no_byte(seed in 0u64..1000) {
        let (bytes, new) = (pattern(30_000, 4), pattern(25_000, 5));
        let latency = Some(Duration::ZERO..Duration::from_micros(300));
        let (_, device) = faulty(&bytes, 512, Faults { seed, short: 0.3, reorder: 0.2, latency, ..Faults::default() });
        let extent = Extent::new("slow", device as Arc<dyn Device>);
        let engine = engine();
        let options = StreamOptions { block_bytes: 4096, ahead: 4 };
        prop_assert_eq!(read_all(&engine, &extent, 100..29_999, options).unwrap(), &bytes[100..29_999]);
        let mut writer = engine.write_stream(&extent, 777, options).unwrap();
        writer.write(&new).unwrap();
        writer.finish().unwrap();
        let mut model = bytes.clone();
        model[777..25_777].copy_from_slice(&new);
        prop_assert_eq!(read_all(&engine, &extent, 0..30_000, options).unwrap(), model);
        assert_all_back(&engine);
    }
}

#[test]
fn extents_follow_one_another() {
    let parts: Vec<(Extent, std::ops::Range<u64>)> = (0..4)
        .map(|index| {
            (
                Extent::new(format!("part {index}"), device(&pattern(5000, index), 512)),
                10 * index as u64..(5000 - 700 * index) as u64,
            )
        })
        .chain([(Extent::new("empty", device(&[], 512)), 0..0)])
        .collect();
    let engine = engine();
    let mut read = vec![Vec::new(); 5];
    for block in engine
        .read_streams(
            &parts,
            StreamOptions {
                block_bytes: 1000,
                ahead: 3,
            },
        )
        .unwrap()
    {
        let block = block.unwrap();
        read[block.part()].extend_from_slice(&block);
    }
    for (index, (_, range)) in parts.iter().enumerate() {
        assert_eq!(
            read[index],
            &pattern(5000, index)[range.start as usize..range.end as usize],
            "part {index}"
        );
    }
    assert!(
        engine
            .read_streams(&[], StreamOptions::default())
            .unwrap()
            .next()
            .is_none()
    );
    assert_all_back(&engine);
}

#[test]
fn files_are_read_and_written_at_any_offset() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut model = pattern(300_001, 6);
    std::fs::write(folder.path().join("file"), &model).unwrap();
    let file = open_file(folder.path().join("file"), Mode::ReadWrite).unwrap();
    let extent = Extent::new("file", Arc::clone(&file) as Arc<dyn Device>);
    for choice in [Choice::Auto, Choice::Threads] {
        let engine = Engine::new(Config {
            memory_bytes: BUDGET,
            threads: 1,
            driver: choice,
        });
        let options = StreamOptions {
            block_bytes: 10_000,
            ahead: 4,
        };
        assert_eq!(
            read_all(&engine, &extent, 0..300_001, options).unwrap(),
            model
        );
        assert_eq!(
            read_all(&engine, &extent, 4097..300_000, options).unwrap(),
            &model[4097..300_000]
        );
        let mut writer = engine.write_stream(&extent, 123_457, options).unwrap();
        let new = pattern(300_001 - 123_457, 7 + choice as usize);
        writer.write(&new).unwrap();
        assert!(matches!(
            writer.write(&[1]),
            Err(Error::OutOfRange {
                offset: 300_001,
                ..
            })
        ));
        writer.finish().unwrap();
        model[123_457..].copy_from_slice(&new);
        file.set_len(300_001).unwrap();
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), model);
        assert_all_back(&engine);
    }
}

#[test]
fn a_reader_that_keeps_every_block_is_refused_instead_of_waiting_forever() {
    let bytes = pattern(20_000, 8);
    let extent = Extent::new("memory", device(&bytes, 512));
    let engine = engine();
    let mut stream = engine
        .read_stream(
            &extent,
            0..20_000,
            StreamOptions {
                block_bytes: 1024,
                ahead: 3,
            },
        )
        .unwrap();
    let mut kept: Vec<_> = (0..3).map(|_| stream.next().unwrap().unwrap()).collect();
    assert!(matches!(
        stream.next(),
        Some(Err(Error::Lent { bytes: 12_288, .. }))
    ));
    let fourth = kept.remove(1);
    // Any thread may give a block back, also while the stream waits for one.
    let helper = std::thread::spawn(move || drop(fourth));
    helper.join().unwrap();
    assert_eq!(*stream.next().unwrap().unwrap(), bytes[3072..4096]);
    kept.pop();
    let rest: usize = stream.by_ref().map(|block| block.unwrap().len()).sum();
    assert_eq!(rest, 20_000 - 4096);
    assert!(stream.next().is_none());
    assert_eq!(*kept[0], bytes[..1024]);
    // What is lent stays reserved, also without the stream.
    drop(stream);
    assert_eq!(engine.budget().available(), BUDGET - 4096);
    kept.clear();
    assert_all_back(&engine);
}

#[test]
fn blocks_outlive_stream_and_engine() {
    let bytes = pattern(20_000, 9);
    let extent = Extent::new("memory", device(&bytes, 512));
    let engine = engine();
    let mut stream = engine
        .read_stream(
            &extent,
            0..20_000,
            StreamOptions {
                block_bytes: 4096,
                ahead: 2,
            },
        )
        .unwrap();
    let mut writer = engine
        .write_stream(
            &extent,
            0,
            StreamOptions {
                block_bytes: 4096,
                ahead: 2,
            },
        )
        .unwrap();
    let block = stream.next().unwrap().unwrap();
    writer.buffer().unwrap()[0] = 1;
    drop(engine);
    let after = stream.map(|block| block.map(drop)).find(Result::is_err);
    assert!(
        matches!(after, None | Some(Err(Error::Closed))),
        "{after:?}"
    );
    assert!(matches!(writer.finish(), Err(Error::Closed)));
    assert_eq!(*block, bytes[..4096]);
}

#[test]
fn too_little_memory_is_said_before_any_io() {
    let (_, device) = faulty(&pattern(100_000, 1), 512, Faults::default());
    let extent = Extent::new("object", Arc::clone(&device) as Arc<dyn Device>);
    let engine = engine();
    let _other = engine.budget().reserve("other", BUDGET - 20_000).unwrap();
    let options = StreamOptions {
        block_bytes: 8192,
        ahead: 3,
    };
    for error in [
        engine.read_stream(&extent, 0..100_000, options).err(),
        engine.write_stream(&extent, 0, options).err(),
    ] {
        let Some(Error::OverBudget {
            what,
            needed,
            available,
            ..
        }) = error
        else {
            panic!("must be refused")
        };
        assert!(what.contains("object") && needed >= 24_576 && available == 20_000);
    }
    assert_eq!(device.operations(), 0);
}

#[test]
fn blocks_of_any_size_fit_what_their_stream_reserves() {
    let bytes = pattern(1_000_000, 6);
    for (block_bytes, ahead) in [(300_000, 1), (140_001, 2)] {
        let memory = device(&vec![0; bytes.len()], 1);
        let extent = Extent::new("memory", Arc::clone(&memory) as Arc<dyn Device>);
        let engine = engine();
        let budget = engine.budget();
        let options = StreamOptions { block_bytes, ahead };
        let mut writer = engine.write_stream(&extent, 0, options).unwrap();
        let _nothing_spare = budget.reserve("others", budget.available()).unwrap();
        writer.write(&bytes).unwrap();
        writer.finish().unwrap();
        assert_eq!(memory.to_bytes(), bytes);
    }
}

#[test]
fn ranges_outside_are_refused() {
    let extent = Extent::new("short", device(&pattern(1000, 1), 512));
    let engine = engine();
    assert!(matches!(
        engine.read_stream(&extent, 500..1001, StreamOptions::default()),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        engine.write_stream(&extent, 1001, StreamOptions::default()),
        Err(Error::OutOfRange { .. })
    ));
    let mut writer = engine
        .write_stream(&extent, 1000, StreamOptions::default())
        .unwrap();
    assert!(matches!(writer.buffer(), Err(Error::OutOfRange { .. })));
    writer.finish().unwrap();
}

#[test]
fn a_fault_at_each_read_comes_after_the_blocks_before_it() {
    let bytes = pattern(40_000, 2);
    for nth in 0.. {
        let (_, device) = faulty(
            &bytes,
            512,
            Faults {
                fail_nth: Some(nth),
                ..Faults::default()
            },
        );
        let extent = Extent::new("object", Arc::clone(&device) as Arc<dyn Device>);
        let engine = engine();
        let mut read = Vec::new();
        let mut errors = 0;
        for block in engine
            .read_stream(
                &extent,
                0..40_000,
                StreamOptions {
                    block_bytes: 4096,
                    ahead: 3,
                },
            )
            .unwrap()
        {
            match block {
                Ok(block) => read.extend_from_slice(&block),
                Err(error) => {
                    assert!(error.to_string().starts_with("object: read of "), "{error}");
                    errors += 1;
                }
            }
        }
        assert_eq!(read, &bytes[..read.len()]);
        assert_all_back(&engine);
        if device.operations() <= nth {
            assert_eq!((read.len(), errors), (40_000, 0));
            return;
        }
        assert_eq!(errors, 1);
    }
}

#[test]
fn a_fault_at_each_write_is_told_at_every_later_call() {
    let (old, new) = (pattern(40_000, 2), pattern(30_000, 3));
    for nth in 0.. {
        let (memory, device) = faulty(
            &old,
            512,
            Faults {
                fail_nth: Some(nth),
                ..Faults::default()
            },
        );
        let extent = Extent::new("object", Arc::clone(&device) as Arc<dyn Device>);
        let engine = engine();
        let mut writer = engine
            .write_stream(
                &extent,
                100,
                StreamOptions {
                    block_bytes: 4096,
                    ahead: 2,
                },
            )
            .unwrap();
        let written = writer.write(&new);
        if let Err(error) = &written {
            assert!(error.to_string().starts_with("object: "), "{error}");
            assert!(writer.write(&[1]).is_err() && writer.buffer().is_err());
        }
        let finished = writer.finish();
        assert_all_back(&engine);
        assert_eq!(&memory.to_bytes()[..100], &old[..100]);
        assert_eq!(&memory.to_bytes()[30_100..], &old[30_100..]);
        if device.operations() <= nth {
            assert!(written.is_ok() && finished.is_ok());
            assert_eq!(&memory.to_bytes()[100..30_100], &new);
            return;
        }
        let error = finished.unwrap_err();
        assert!(
            matches!(error, Error::Device { .. }) && error.to_string().starts_with("object: "),
            "{error}"
        );
    }
}

#[test]
fn a_full_medium_is_an_error_of_the_writer() {
    let (_, device) = faulty(
        &pattern(100_000, 1),
        512,
        Faults {
            space_bytes: Some(30_000),
            ..Faults::default()
        },
    );
    let extent = Extent::new("object", device as Arc<dyn Device>);
    let engine = engine();
    let mut writer = engine
        .write_stream(
            &extent,
            0,
            StreamOptions {
                block_bytes: 4096,
                ahead: 2,
            },
        )
        .unwrap();
    let result = writer.write(&[1; 100_000]).and_then(|()| writer.finish());
    let Err(Error::Device { source, .. }) = result else {
        panic!("must fail")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    assert_all_back(&engine);
}

#[test]
fn dropping_a_stream_early_gives_everything_back() {
    let latency = Some(Duration::from_millis(2)..Duration::from_millis(5));
    let (memory, device) = faulty(
        &pattern(100_000, 1),
        512,
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let extent = Extent::new("slow", device as Arc<dyn Device>);
    let engine = engine();
    // All of the budget each time, so the next one has to wait for what the one before left in
    // flight.
    let options = StreamOptions {
        block_bytes: 32 << 10,
        ahead: 4,
    };
    for blocks in 0..4 {
        let mut stream = engine.read_stream(&extent, 0..100_000, options).unwrap();
        assert!(!stream.ready_within(Duration::ZERO));
        for _ in 0..blocks {
            stream.next().unwrap().unwrap();
        }
        drop(stream);
        assert_eq!(engine.budget().available(), BUDGET);
        let mut writer = engine
            .write_stream(
                &extent,
                0,
                StreamOptions {
                    block_bytes: 8192,
                    ahead: 2,
                },
            )
            .unwrap();
        writer.write(&vec![9; 8192 * blocks + 10]).unwrap();
        drop(writer);
    }
    assert_all_back(&engine);
    for _ in 0..1000 {
        if memory.to_bytes()[..3 * 8192].iter().all(|&byte| byte == 9) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("full blocks are written even so");
}

#[test]
fn streams_gathers_and_a_run_share_a_small_budget() {
    let engine = engine();
    let bytes = pattern(200_000, 1);
    let shared = Extent::new("shared", device(&bytes, 512));
    let target = device(&vec![0; 200_000], 512);
    let written = Extent::new("written", Arc::clone(&target) as Arc<dyn Device>);
    let options = StreamOptions {
        block_bytes: 8192,
        ahead: 3,
    };
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (engine, shared, bytes) = (&engine, &shared, &bytes);
            scope.spawn(move || {
                for round in 0..5 {
                    let from = reader * 1000 + round;
                    assert_eq!(
                        read_all(engine, shared, from..200_000, options).unwrap(),
                        &bytes[from as usize..]
                    );
                }
            });
        }
        for offset in [3, 70_001, 140_010] {
            let (engine, written, bytes) = (&engine, &written, &bytes);
            scope.spawn(move || {
                let mut writer = engine.write_stream(written, offset, options).unwrap();
                bytes[offset as usize..][..59_000]
                    .chunks(777)
                    .for_each(|part| writer.write(part).unwrap());
                writer.finish().unwrap();
            });
        }
        for seed in 0..2usize {
            let (engine, shared, bytes) = (&engine, &shared, &bytes);
            scope.spawn(move || {
                for round in 0..20 {
                    let offsets: Vec<usize> = (0..100)
                        .map(|item| (item * 7919 + round * 104_729 + seed * 31) % 199_000)
                        .collect();
                    let items: Vec<Item<'_>> = offsets
                        .iter()
                        .map(|&offset| Item {
                            extent: shared,
                            offset: offset as u64,
                            len: 300,
                        })
                        .collect();
                    let mut packed = vec![0; 30_000];
                    engine
                        .gather_into(&items, &mut packed, &GatherOptions::default(), || true)
                        .unwrap();
                    for (offset, item) in offsets.iter().zip(packed.chunks(300)) {
                        assert_eq!(item, &bytes[*offset..offset + 300]);
                    }
                }
            });
        }
        let (engine, shared, bytes) = (&engine, &shared, &bytes);
        scope.spawn(move || {
            for _ in 0..5 {
                let mut plan = Plan::new("sum");
                let extent = plan.extent(shared);
                let sum = plan.volatile("sum", 8);
                for from in (0..200_000).step_by(40_000) {
                    plan.task(
                        Task::new("add")
                            .read(Region::span(extent, from, 40_000))
                            .update(Region::span(sum, 0, 8))
                            .run(|cx| {
                                let added: u64 = cx.blocks[0]
                                    .bytes()
                                    .iter()
                                    .map(|&byte| u64::from(byte))
                                    .sum();
                                cx.blocks[1].slice_mut::<u64>()[0] += added;
                                Ok(())
                            }),
                    );
                }
                let outcome = engine.run(plan).unwrap().wait().unwrap();
                let expected: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
                assert_eq!(
                    outcome.result(&Region::span(sum, 0, 8)).unwrap(),
                    expected.to_ne_bytes()
                );
            }
        });
    });
    let model = target.to_bytes();
    for offset in [3usize, 70_001, 140_010] {
        assert_eq!(
            &model[offset..offset + 59_000],
            &bytes[offset..offset + 59_000]
        );
    }
    assert_all_back(&engine);
}

#[test]
fn a_stream_reads_what_another_writes_beside_it_in_one_object() {
    let mut model = pattern(100_000, 1);
    let memory = device(&model, 512);
    let extent = Extent::new("memory", Arc::clone(&memory) as Arc<dyn Device>);
    let engine = engine();
    let options = StreamOptions {
        block_bytes: 3000,
        ahead: 3,
    };
    let mut writer = engine.write_stream(&extent, 0, options).unwrap();
    for block in engine.read_stream(&extent, 0..100_000, options).unwrap() {
        let block = block.unwrap();
        let changed: Vec<u8> = block.iter().map(|byte| byte.wrapping_add(1)).collect();
        writer.write(&changed).unwrap();
    }
    writer.finish().unwrap();
    model
        .iter_mut()
        .for_each(|byte| *byte = byte.wrapping_add(1));
    assert_eq!(memory.to_bytes(), model);
    assert_all_back(&engine);
}

/// The same missed wake from outside: a caller that keeps most blocks gives one back at a time, and
/// never waits for ever.
#[test]
fn a_caller_that_keeps_most_blocks_goes_on() {
    let bytes = pattern(256 << 10, 5);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let extent = Extent::new("memory", device(&bytes, 1));
        for _ in 0..50 {
            let mut kept = std::collections::VecDeque::new();
            for block in engine()
                .read_stream(
                    &extent,
                    0..256 << 10,
                    StreamOptions {
                        block_bytes: 4096,
                        ahead: 16,
                    },
                )
                .unwrap()
            {
                kept.push_back(block.unwrap());
                if kept.len() == 15 {
                    kept.pop_front();
                }
            }
        }
        sender.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
}

/// What happens to one of several streams that share a budget.
#[derive(Clone, Debug)]
enum Turn {
    Open { ahead: usize },
    Read,
    Keep,
    LetGo,
    Close,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        2 => (1usize..7).prop_map(|ahead| Turn::Open { ahead }),
        8 => Just(Turn::Read),
        2 => Just(Turn::Keep),
        1 => Just(Turn::LetGo),
        1 => Just(Turn::Close),
    ]
}

/// As many streams as the budget has blocks, each of which reserves one.
const SHARING: usize = 16;
const SHARED_BLOCK: usize = (BUDGET as usize) / SHARING;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A stream that has prefetched gives memory back to one that begins, and reads the same bytes
    /// again; none waits for a caller.
    #[test]
    fn streams_share_a_budget(turns in prop::collection::vec((0..SHARING, turn()), 1..200)) {
        let engine = engine();
        let contents: Vec<Vec<u8>> = (0..SHARING).map(|seed| pattern(9 * SHARED_BLOCK + 77 * seed, seed)).collect();
        let extents: Vec<Extent> = contents.iter().map(|bytes| Extent::new("x", device(bytes, 512))).collect();
        let mut streams: Vec<Option<(outcore_engine::ReadStream, usize)>> = (0..SHARING).map(|_| None).collect();
        let mut kept: Vec<Vec<outcore_engine::Lent>> = (0..SHARING).map(|_| Vec::new()).collect();
        for (which, turn) in turns {
            match turn {
                Turn::Open { ahead } => {
                    let (extent, len) = (&extents[which], contents[which].len() as u64);
                    // A block from anywhere takes a sector more: these begin at one.
                    let options = StreamOptions { block_bytes: SHARED_BLOCK, ahead };
                    match engine.read_streams_with(&[(extent.clone(), 0..len)], options, Supply::Elastic(1)) {
                        Ok(stream) => streams[which] = Some((stream, 0)),
                        Err(Error::OverBudget { .. }) => prop_assert!(kept.iter().any(|kept| !kept.is_empty())),
                        Err(error) => panic!("{error}"),
                    }
                }
                Turn::Read | Turn::Keep => {
                    let Some((stream, at)) = &mut streams[which] else { continue };
                    match stream.next() {
                        Some(Ok(block)) => {
                            prop_assert_eq!(block.offset() as usize, *at);
                            prop_assert!(*block == contents[which][*at..*at + block.len()]);
                            *at += block.len();
                            if matches!(turn, Turn::Keep) {
                                kept[which].push(block);
                            }
                        }
                        Some(Err(Error::Lent { .. })) => prop_assert!(!kept[which].is_empty()),
                        Some(Err(error)) => panic!("{error}"),
                        None => prop_assert_eq!(*at, contents[which].len()),
                    }
                }
                Turn::LetGo => kept[which].clear(),
                Turn::Close => streams[which] = None,
            }
        }
        drop((streams, kept));
        assert_all_back(&engine);
    }
}

#[test]
fn a_writer_goes_on_elsewhere_in_memory_that_it_shares() {
    let engine = engine();
    let target = device(&[0; 64 << 10], 4096);
    let extent = Extent::new("x", Arc::clone(&target) as Arc<dyn Device>);
    let options = StreamOptions {
        block_bytes: 8192,
        ahead: 3,
    };
    let mut writer = engine
        .write_stream_with(&extent, 0, options, Supply::Elastic(1))
        .unwrap();
    for (place, len) in [
        (32 << 10, 8192u64),
        (0, 4096),
        (12 << 10, 8192),
        (48 << 10, 4096),
    ] {
        writer.go_on_at(place).unwrap();
        // To go on twice is to go on once.
        writer.go_on_at(place).unwrap();
        let buffer = writer.buffer().unwrap();
        buffer[..len as usize].fill((place >> 12) as u8 + 1);
        writer.advance(len as usize).unwrap();
    }
    writer.finish().unwrap();
    let mut expected = vec![0; 64 << 10];
    for (place, len) in [
        (32 << 10, 8192),
        (0, 4096),
        (12 << 10, 8192),
        (48 << 10, 4096),
    ] {
        expected[place..place + len].fill((place >> 12) as u8 + 1);
    }
    assert!(
        read_all(
            &engine,
            &extent,
            0..64 << 10,
            StreamOptions {
                block_bytes: 64 << 10,
                ahead: 1
            }
        )
        .unwrap()
            == expected
    );
    assert_all_back(&engine);
}

#[test]
fn frames_of_the_caller_are_used_and_dropped() {
    let engine = engine();
    let content = pattern(50_000, 4);
    let extent = Extent::new("x", device(&content, 512));
    let options = StreamOptions {
        block_bytes: 4096,
        ahead: 9,
    };
    let frames = |count: usize, len: usize| -> Vec<Buf> {
        (0..count).map(|_| Buf::anonymous(len).unwrap()).collect()
    };
    for (count, len) in [(0, 4096), (2, 2048)] {
        let refused = engine.read_streams_with(
            &[(extent.clone(), 0..50_000)],
            options,
            Supply::Given(frames(count, len)),
        );
        assert!(matches!(refused, Err(Error::Frames { .. })));
    }
    let given = frames(3, 8192);
    let places: Vec<usize> = given.iter().map(|frame| frame.as_ptr() as usize).collect();
    let mut stream = engine
        .read_streams_with(
            &[(extent.clone(), 0..50_000)],
            options,
            Supply::Given(given),
        )
        .unwrap();
    let (kept, mut found): (Vec<_>, _) = (
        (0..3).map(|_| stream.next().unwrap().unwrap()).collect(),
        Vec::new(),
    );
    assert!(matches!(stream.next(), Some(Err(Error::Lent { .. }))));
    for block in kept.into_iter().map(Ok).chain(stream) {
        let block = block.unwrap();
        assert!(places.contains(&(block.as_ptr() as usize)));
        found.extend_from_slice(&block);
    }
    assert!(found == content);
    assert_all_back(&engine);
    let too_many = engine.read_streams_with(
        &[(extent, 0..50_000)],
        options,
        Supply::Given(frames(300, 4096)),
    );
    assert!(
        matches!(too_many, Err(Error::OverBudget { .. })),
        "the budget is charged"
    );
}

#[test]
fn streams_that_are_not_read_make_way_for_a_run() {
    let engine = engine();
    let content = pattern(BUDGET as usize, 2);
    let extents: Vec<Extent> = (0..4)
        .map(|_| Extent::new("x", device(&content, 512)))
        .collect();
    let options = StreamOptions {
        block_bytes: 64 << 10,
        ahead: 4,
    };
    let open = |extent: &Extent| {
        engine
            .read_streams_with(&[(extent.clone(), 0..BUDGET)], options, Supply::Elastic(1))
            .unwrap()
    };
    let streams: Vec<_> = extents.iter().map(open).collect();
    // All have read ahead as far as they may.
    streams
        .iter()
        .for_each(|stream| assert!(stream.ready_within(Duration::from_secs(10))));
    std::thread::sleep(Duration::from_millis(20));
    let target = Extent::new("target", device(&[0; 512 << 10], 512));
    let mut plan = Plan::new("fill");
    let part = plan.extent(&target);
    plan.task(
        Task::new("ones")
            .write(Region::span(part, 0, 512 << 10))
            .run(|cx| {
                cx.blocks[0].slice_mut::<u8>().fill(1);
                Ok(())
            }),
    );
    let ticket = engine.run(plan).unwrap();
    assert!(
        ticket.wait_timeout(Duration::from_secs(20)),
        "it waits for ever"
    );
    for stream in streams {
        let found: Vec<u8> = stream.flat_map(|block| block.unwrap().to_vec()).collect();
        assert!(found == content);
    }
    assert_all_back(&engine);
}
