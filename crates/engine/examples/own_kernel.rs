//! A kernel of your own: histogram of a file of f32 values, larger than the memory it may use.
//!
//! The engine knows nothing of histograms. Each task declares the bytes that it reads and the
//! counts that it updates; order, prefetch, eviction and the memory limit follow from that.
//!
//! `cargo run --release -p outcore-engine --example own_kernel -- FILE LOW HIGH`

use std::error::Error;

use outcore_device::{Mode, open_file};
use outcore_engine::{Config, Engine, Extent, Plan, Region, Task};

const BINS: usize = 20;
const CHUNK_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, low, high] = arguments.as_slice() else {
        return Err("usage: own_kernel FILE LOW HIGH".into());
    };
    let (low, high): (f32, f32) = (low.parse()?, high.parse()?);
    let engine = Engine::new(Config {
        memory_bytes: 64 << 20,
        ..Config::default()
    });
    let values = Extent::new(file.as_str(), open_file(file, Mode::Read)?);

    let mut plan = Plan::new("histogram");
    let (numbers, counts) = (
        plan.extent(&values),
        plan.volatile("counts", 8 * BINS as u64),
    );
    let counts = Region::span(counts, 0, 8 * BINS as u64);
    let whole = values.len() / 4 * 4;
    for start in (0..whole).step_by(CHUNK_BYTES as usize) {
        let chunk = Region::span(numbers, start, CHUNK_BYTES.min(whole - start));
        plan.task(
            Task::new("count")
                .read(chunk)
                .update(counts)
                .run(move |cx| {
                    let [chunk, counts] = &mut *cx.blocks else {
                        unreachable!("two were declared")
                    };
                    let counts = counts.slice_mut::<u64>();
                    for value in chunk
                        .slice::<f32>()
                        .iter()
                        .filter(|value| (low..high).contains(*value))
                    {
                        counts[((value - low) / (high - low) * BINS as f32) as usize % BINS] += 1;
                    }
                    Ok(())
                }),
        );
    }
    plan.bound(whole);
    println!("{}", engine.explain(&plan)?);

    let outcome = engine.run(plan)?.wait()?;
    let counts: &[u8] = outcome
        .result(&counts)
        .ok_or("an empty file has no histogram")?;
    let counts: Vec<u64> = counts
        .chunks_exact(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
        .collect();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    for (bin, count) in counts.iter().enumerate() {
        let start = low + (high - low) * bin as f32 / BINS as f32;
        println!(
            "{start:12.4} {count:12} {}",
            "#".repeat((60 * count / most) as usize)
        );
    }
    println!(
        "{:.2} s, device busy {:.2} s, cores busy {:.2} s",
        outcome.trace.wall_s, outcome.trace.device_busy_s, outcome.trace.cores_busy_s
    );
    Ok(())
}
