//! Scattered writes against a plain model of the bytes, on good devices and bad ones.

use std::sync::Arc;

use outcore_device::{Blocking, Buf, Faults, Faulty, MemoryDevice};
use outcore_engine::{Config, Engine, Error, Extent, StreamOptions};
use proptest::prelude::*;

const BLOCK: usize = 4096;

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: 1 << 20,
        threads: 1,
        ..Config::default()
    })
}

fn filled(blocks: usize, seed: usize) -> Buf {
    let mut buf = Buf::anonymous((blocks * BLOCK).max(BLOCK)).unwrap();
    for (number, block) in buf.chunks_exact_mut(BLOCK).enumerate() {
        block.fill((number * 31 + seed) as u8);
    }
    buf
}

proptest! {
    #[test]
    fn every_block_lies_where_it_was_sent(
        places in proptest::collection::hash_set(0u64..200, 0..120),
        seed in 0usize..100,
    ) {
        let device = Arc::new(MemoryDevice::new("pages", 200 * BLOCK as u64));
        let (engine, extent) = (engine(), Extent::new("pages", device.clone()));
        let mut expected = vec![0; 200 * BLOCK];
        let mut buf = filled(places.len(), seed);
        let offsets: Vec<u64> = places.iter().map(|place| place * BLOCK as u64).collect();
        for _ in 0..2 {
            for (block, &offset) in buf.chunks_exact(BLOCK).zip(&offsets) {
                expected[offset as usize..][..BLOCK].copy_from_slice(block);
            }
            buf = engine.scatter(&extent, buf, BLOCK, &offsets).unwrap().wait().unwrap();
        }
        let mut found = vec![1; expected.len()];
        prop_assert_eq!(device.read_at(&mut found, 0).unwrap(), found.len());
        prop_assert!(found == expected);
    }
}

#[test]
fn a_stream_that_reads_sees_all_of_a_write_or_nothing_of_it() {
    let extent = Extent::new(
        "pages",
        Arc::new(MemoryDevice::new("pages", 64 * BLOCK as u64)),
    );
    let engine = engine();
    let offsets: Vec<u64> = (0..64).rev().map(|place| place * BLOCK as u64).collect();
    for seed in 0..20 {
        let mut buf = Buf::anonymous(64 * BLOCK).unwrap();
        buf.fill(seed);
        let ticket = engine.scatter(&extent, buf, BLOCK, &offsets).unwrap();
        let options = StreamOptions {
            block_bytes: 64 * BLOCK,
            ahead: 1,
        };
        let mut seen = Vec::new();
        for block in engine
            .read_stream(&extent, 0..extent.len(), options)
            .unwrap()
        {
            seen.extend_from_slice(&block.unwrap());
        }
        assert!(seen.iter().all(|byte| *byte == seen[0]));
        ticket.wait().unwrap();
    }
}

#[test]
fn a_device_that_fails_is_told_and_blocks_outside_are_refused() {
    let memory = MemoryDevice::new("pages", 16 * BLOCK as u64);
    let faulty = Faulty::new(
        Arc::new(memory),
        Faults {
            fail_nth: Some(3),
            ..Faults::default()
        },
    );
    let (engine, extent) = (engine(), Extent::new("pages", faulty));
    let offsets: Vec<u64> = (0..8).map(|place| place * 2 * BLOCK as u64).collect();
    let failed = engine
        .scatter(&extent, filled(8, 1), BLOCK, &offsets)
        .unwrap()
        .wait();
    assert!(matches!(failed.err(), Some(Error::Device { object, .. }) if object == "pages"));
    let beyond = engine.scatter(&extent, filled(1, 1), BLOCK, &[extent.len()]);
    assert!(matches!(beyond.err(), Some(Error::OutOfRange { .. })));
    let again = engine
        .scatter(&extent, filled(8, 1), BLOCK, &offsets)
        .unwrap();
    assert_eq!(again.wait().unwrap().len(), 8 * BLOCK);
    let nothing = engine.scatter(&extent, filled(0, 1), BLOCK, &[]).unwrap();
    assert_eq!(nothing.wait().unwrap().len(), BLOCK);
}
