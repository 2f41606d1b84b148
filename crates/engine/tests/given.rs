//! Gathers to memory of the caller's.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outcore_device::{Blocking, Buf, Choice, Device, Faults, Faulty, MemoryDevice};
use outcore_engine::{Config, Engine, Error, Extent, GatherOptions, Item};
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
    let memory = MemoryDevice::with_block("memory", len as u64, SECTOR as u32);
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
