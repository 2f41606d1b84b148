//! How fast names are found: `look_up dataset PATH COUNT SECONDS` in the directory in memory,
//! `look_up find PATH COUNT SECONDS` where each name is also read and compared, or `look_up map
//! COUNT SECONDS` in a map of strings.
//!
//! Names are those that `bench/harness/samples.py` gives. Prints one line of JSON: look-ups, their
//! time, and the bytes of memory that finding takes.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use outcore::samples::Dataset;
use outcore::{Session, Settings};

/// Names that are made before the clock goes on, so that making them is not timed.
const AT_ONCE: usize = 10_000;
/// Of names that are read, one after another.
const FOUND_MOST: u64 = 20_000;

fn name(number: u64) -> String {
    format!("train/n{:08}/image_{number:012}.jpg", number % 1000)
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Look-ups until `most` are done or the seconds are over, and the seconds that they took.
fn timed(count: u64, most: u64, seconds: f64, find: impl Fn(&str) -> Option<u64>) -> (u64, f64) {
    let (mut state, mut found, mut spent) = (0, 0, 0.0);
    while found < most && spent < seconds {
        let wanted: Vec<u64> = (0..AT_ONCE).map(|_| random(&mut state) % count).collect();
        let names: Vec<String> = wanted.iter().map(|&number| name(number)).collect();
        let begin = Instant::now();
        let right = names
            .iter()
            .zip(&wanted)
            .filter(|(name, number)| black_box(find(name)) == Some(**number))
            .count();
        spent += begin.elapsed().as_secs_f64();
        assert_eq!(right, AT_ONCE, "every name is found");
        found += AT_ONCE as u64;
    }
    (found, spent)
}

/// Bytes of a map: its table of keys and values at seven eighths full, a power of two, and what the
/// keys point to.
fn bytes_of(map: &HashMap<String, u64>) -> u64 {
    let slots = (map.capacity() * 8 / 7).next_power_of_two() as u64;
    let strings: u64 = map
        .keys()
        .map(|name| (name.capacity() as u64 + 8).next_multiple_of(16))
        .sum();
    slots * (size_of::<(String, u64)>() as u64 + 1) + strings
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ((found, seconds), bytes, part) = match words[..] {
        [way @ ("dataset" | "find"), path, count, seconds] => {
            let session = Session::new(Settings {
                memory_bytes: Some(1 << 30),
                threads: 1,
                ..Settings::default()
            })?;
            let dataset = Dataset::open(&session, path)?;
            let count: u64 = count.parse()?;
            let strings = count * (name(0).len() as u64 + 8).next_multiple_of(16);
            let map = (count * 8 / 7).next_power_of_two() * (size_of::<(String, u64)>() as u64 + 1)
                + strings;
            let bytes = dataset.directory_bytes();
            let seconds = seconds.parse()?;
            let times = if way == "find" {
                timed(count, FOUND_MOST, seconds, |name| {
                    dataset.find(name.as_bytes()).expect("the name can be read")
                })
            } else {
                timed(count, u64::MAX, seconds, |name| {
                    dataset.candidate(name.as_bytes())
                })
            };
            (times, bytes, bytes as f64 / map as f64)
        }
        ["map", count, seconds] => {
            let count = count.parse()?;
            let map: HashMap<String, u64> =
                (0..count).map(|number| (name(number), number)).collect();
            (
                timed(count, u64::MAX, seconds.parse()?, |name| {
                    map.get(name).copied()
                }),
                bytes_of(&map),
                1.0,
            )
        }
        _ => {
            return Err(
                "look_up dataset|find PATH COUNT SECONDS | look_up map COUNT SECONDS".into(),
            );
        }
    };
    println!(
        r#"{{"work": {found}, "seconds": {seconds}, "bytes": {bytes}, "part_of_map": {part}}}"#
    );
    Ok(())
}
