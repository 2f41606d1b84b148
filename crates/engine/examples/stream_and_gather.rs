//! What the two verbs beside `run` reach on a file, to be compared with `fio` on the same file.
//!
//! ```text
//! stream_and_gather stream FILE BLOCK AHEAD              the whole file in order
//! stream_and_gather gather FILE SIZE COUNT BATCH         COUNT random reads of SIZE bytes, BATCH at once
//! ```
//!
//! Prints one line of JSON: bytes, seconds, operations a second, and processor seconds of all
//! threads.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Instant;

use outcore_device::{Mode, open_file};
use outcore_engine::{Config, Engine, Extent, GatherOptions, Item, StreamOptions};

/// Batches under way at once: one is read while the next waits and the one before is used.
const BATCHES: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |index: usize| {
        arguments
            .get(index)
            .map(String::as_str)
            .ok_or("stream FILE BLOCK AHEAD | gather FILE SIZE COUNT BATCH")
    };
    let number = |index: usize| -> Result<usize, Box<dyn Error>> { Ok(text(index)?.parse()?) };
    let engine = Engine::new(Config {
        memory_bytes: 256 << 20,
        threads: 1,
        ..Config::default()
    });
    let extent = Extent::new(text(1)?, open_file(text(1)?, Mode::Read)?);
    engine.info()?;
    let start = Instant::now();
    let (operations, bytes) = match text(0)? {
        "stream" => stream(
            &engine,
            &extent,
            StreamOptions {
                block_bytes: number(2)?,
                ahead: number(3)?,
            },
        )?,
        "gather" => gather(&engine, &extent, number(2)?, number(3)?, number(4)?)?,
        other => return Err(format!("{other} is neither stream nor gather").into()),
    };
    let seconds = start.elapsed().as_secs_f64();
    let report = serde_json::json!({
        "bytes": bytes, "seconds": seconds, "iops": operations as f64 / seconds, "cpu_seconds": cpu_seconds(),
    });
    println!("{report}");
    Ok(())
}

fn stream(
    engine: &Engine,
    extent: &Extent,
    options: StreamOptions,
) -> Result<(usize, usize), outcore_engine::Error> {
    let mut moved = (0, 0);
    for block in engine.read_stream(extent, 0..extent.len(), options)? {
        moved = (moved.0 + 1, moved.1 + block?.len());
    }
    Ok(moved)
}

fn gather(
    engine: &Engine,
    extent: &Extent,
    size: usize,
    count: usize,
    batch: usize,
) -> Result<(usize, usize), outcore_engine::Error> {
    let places = (extent.len() / size as u64).max(1);
    // Neither cache nor neighbours: this asks what single requests cost.
    let options = GatherOptions {
        gap_bytes: 0,
        cache: false,
        ..GatherOptions::default()
    };
    let mut random = Random(std::process::id().into());
    let mut under_way = VecDeque::new();
    let (mut asked, mut bytes) = (0, 0);
    let mut items = Vec::with_capacity(batch);
    while asked < count || !under_way.is_empty() {
        while asked < count && under_way.len() < BATCHES {
            items.clear();
            items.extend((0..batch.min(count - asked)).map(|_| Item {
                extent,
                offset: random.below(places) * size as u64,
                len: size,
            }));
            asked += items.len();
            under_way.push_back(engine.gather(&items, &options)?);
        }
        let gathered = under_way.pop_front().expect("filled above").wait()?;
        bytes += gathered.iter().map(<[u8]>::len).sum::<usize>();
    }
    Ok((count, bytes))
}

/// Of this process so far; 0 where there is no `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields are counted from the end of the command's name, which may hold spaces itself.
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

/// Splitmix64: good enough to scatter reads.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(bound)) >> 64) as u64
    }
}
