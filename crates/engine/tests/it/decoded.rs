//! Blocks that are decoded: what tasks find is what the device holds, made larger.

use std::sync::{Arc, Mutex};

use outcore_device::MemoryDevice;
use outcore_engine::{Config, Decoder, Engine, Extent, Plan, Region, Task};
use proptest::prelude::*;

fn wide(stored: &[u8], decoded: &mut [u8]) {
    for (four, &byte) in decoded.chunks_exact_mut(4).zip(stored) {
        four.copy_from_slice(&u32::from(byte).to_le_bytes());
    }
}

const WIDE: Decoder = Decoder {
    form: 7,
    factor: 4,
    decode: wide,
};

fn engine() -> Engine {
    Engine::new(Config {
        memory_bytes: 4 << 20,
        ..Config::default()
    })
}

fn extent(bytes: &[u8], block: u32) -> Extent {
    let device = MemoryDevice::with_sector("numbers", bytes.len() as u64, block);
    let extent = Extent::new("numbers", Arc::new(device));
    let mut plan = Plan::new("fill");
    let into = plan.extent(&extent);
    let held = bytes.to_vec();
    plan.task(
        Task::new("fill")
            .write(Region::span(into, 0, held.len() as u64))
            .run(move |cx| {
                cx.blocks[0].bytes_mut().copy_from_slice(&held);
                Ok(())
            }),
    );
    engine().run(plan).unwrap().wait().unwrap();
    extent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Rows of any length and distance, at any offset, however their sectors lie.
    #[test]
    fn tasks_find_decoded_rows_one_behind_the_other(
        offset in 0u64..5000, row_bytes in 1u64..9000, gap in 0u64..9000, rows in 1u64..9, power in 0u32..13,
    ) {
        let len = offset + (row_bytes + gap) * rows;
        let stored: Vec<u8> = (0..len).map(|byte| (byte * 31 % 253) as u8).collect();
        let extent = extent(&stored, 1 << power);
        let mut plan = Plan::new("read");
        let from = plan.decoded(&extent, WIDE);
        let region = Region { extent: from, offset, row_bytes, stride: row_bytes + gap, rows };
        let found = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&found);
        plan.task(Task::new("look").read(region).run(move |cx| {
            let block = &cx.blocks[0];
            assert_eq!(block.columns::<u32>(), block.pitch::<u32>());
            sink.lock().unwrap().extend_from_slice(block.slice::<u32>());
            Ok(())
        }));
        let outcome = engine().run(plan).unwrap().wait().unwrap();
        prop_assert_eq!(outcome.trace.predicted.bytes_read, outcome.trace.actual.bytes_read);
        let expected: Vec<u32> = (0..rows)
            .flat_map(|row| {
                let start = (offset + row * (row_bytes + gap)) as usize;
                stored[start..start + row_bytes as usize].iter().map(|&byte| u32::from(byte))
            })
            .collect();
        prop_assert_eq!(&*found.lock().unwrap(), &expected);
    }
}

/// A block that one run leaves idle is found by the next one in the same form only.
#[test]
fn idle_blocks_are_found_in_their_own_form() {
    let stored: Vec<u8> = (0..8192u32).map(|byte| byte as u8).collect();
    let (engine, extent) = (engine(), extent(&stored, 512));
    let sum = |decoder: Option<Decoder>| {
        let mut plan = Plan::new("sum");
        let from = match decoder {
            Some(decoder) => plan.decoded(&extent, decoder),
            None => plan.extent(&extent),
        };
        let found = Arc::new(Mutex::new(0u64));
        let sink = Arc::clone(&found);
        plan.task(
            Task::new("sum")
                .read(Region::span(from, 0, 8192))
                .run(move |cx| {
                    let block = &cx.blocks[0];
                    *sink.lock().unwrap() = match decoder {
                        Some(_) => block.slice::<u32>().iter().map(|&x| u64::from(x)).sum(),
                        None => block.bytes().iter().map(|&x| u64::from(x)).sum(),
                    };
                    Ok(())
                }),
        );
        let trace = engine.run(plan).unwrap().wait().unwrap().trace;
        let sum = *found.lock().unwrap();
        (sum, trace.bytes_reused)
    };
    let expected: u64 = stored.iter().map(|&byte| u64::from(byte)).sum();
    assert_eq!(sum(Some(WIDE)), (expected, 0));
    assert_eq!(sum(None), (expected, 0));
    assert_eq!(sum(Some(WIDE)), (expected, 8192));
    assert_eq!(sum(None), (expected, 8192));
}

/// Also a decoder's panic is an error of the run, and the engine goes on.
#[test]
fn a_decoder_that_panics_ends_the_run_with_an_error() {
    fn broken(_: &[u8], _: &mut [u8]) {
        panic!("no such number");
    }
    let (engine, extent) = (engine(), extent(&[1; 4096], 512));
    let mut plan = Plan::new("read");
    let from = plan.decoded(
        &extent,
        Decoder {
            decode: broken,
            ..WIDE
        },
    );
    plan.task(Task::new("look").read(Region::span(from, 0, 4096)));
    let error = engine.run(plan).unwrap().wait().err().unwrap().to_string();
    assert!(
        error.contains("decode of numbers") && error.contains("no such number"),
        "{error}"
    );
    let mut plan = Plan::new("read");
    let from = plan.decoded(&extent, WIDE);
    plan.task(Task::new("look").read(Region::span(from, 0, 4096)));
    engine.run(plan).unwrap().wait().unwrap();
}

/// Bytes that are decoded for one task are not written by another of the same plan.
#[test]
fn a_plan_that_writes_what_it_decodes_is_refused() {
    let extent = extent(&[1; 4096], 512);
    for decoded_first in [true, false] {
        let mut plan = Plan::new("both");
        let read = plan.decoded(&extent, WIDE);
        let write = plan.extent(&extent);
        let read = Task::new("look").read(Region::span(read, 0, 512));
        let write = Task::new("change").update(Region::span(write, 1024, 512));
        let tasks = if decoded_first {
            [read, write]
        } else {
            [write, read]
        };
        tasks.into_iter().for_each(|task| plan.task(task));
        let error = engine().run(plan).and_then(|run| run.wait()).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("writes to numbers, which is decoded"),
            "{error}"
        );
    }
}
