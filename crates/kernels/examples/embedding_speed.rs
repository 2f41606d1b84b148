//! Speed of sums of encoded rows on this machine, one thread, best runs: millions of rows a
//! second, and nanoseconds a row.
//!
//! `cargo run --release -p outcore-kernels --example embedding_speed [-- MIB]`
//!
//! Bags of 80 rows at random places of 16 KiB, which the first-level cache holds, and of MIB (256
//! if not said), which no cache holds. Bounds: two vectors are loaded a cycle where rows are in the
//! cache; random lines of memory elsewhere, which the last line shows as one load a row.

use std::hint::black_box;
use std::time::Instant;

use outcore_kernels::embedding::{Pooling, RowEncoding, Weights};

const NAMES: [&str; 8] = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int8_scale_last_f32",
    "int4",
];
/// Rows of a bag, and bags of a call: those of RMC1.
const BAG: usize = 80;
const BAGS: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(256), |mib| mib.parse())?;
    for dim in [32, 64, 128] {
        println!("\n{dim} elements: millions of rows a second, in brackets nanoseconds a row");
        println!(
            "{:<20}{:>18}{:>18}{:>18}{:>18}{:>18}{:>18}",
            "", "sum, cached", "weighted", "max", "row by row", "encode", "sum, memory"
        );
        for name in NAMES {
            let encoding: RowEncoding = name.parse()?;
            let bytes = encoding.row_bytes(dim).ok_or("no such rows")?;
            let row: Vec<f32> = (0..dim)
                .map(|j| (j * 7919 % 1009) as f32 / 1009.0)
                .collect();
            let mut slot = vec![0; bytes];
            encoding.encode(&row, &mut slot);
            let small = Table::new(&slot, 16 << 10);
            let large = Table::new(&slot, mib << 20);
            let weights = vec![0.5; BAG * BAGS];
            let cells = [
                small.rows_a_second(encoding, dim, Pooling::Sum, Weights::Equal),
                small.rows_a_second(encoding, dim, Pooling::Sum, Weights::Fused(&weights)),
                small.rows_a_second(encoding, dim, Pooling::Max, Weights::Equal),
                small.row_by_row(encoding, dim),
                1e3 / best(|| (0..1000).for_each(|_| encoding.encode(black_box(&row), &mut slot))),
                large.rows_a_second(encoding, dim, Pooling::Sum, Weights::Equal),
            ];
            let cells = cells.map(|rows| format!("{:>10.1} ({:>5.1})", rows / 1e6, 1e9 / rows));
            println!("{name:<20}{}", cells.concat());
        }
    }
    let large = Table::new(&[1; 64], mib << 20);
    let seconds = best(|| {
        _ = black_box(
            large
                .starts
                .iter()
                .map(|&start| u64::from(large.slots[start]))
                .sum::<u64>(),
        );
    });
    println!(
        "\none byte of each: {:.1}",
        large.starts.len() as f64 / seconds / 1e6
    );
    Ok(())
}

/// Equal rows one after another, and where the rows of bags begin.
struct Table {
    slots: Vec<u8>,
    bytes: usize,
    starts: Vec<usize>,
}

impl Table {
    fn new(slot: &[u8], bytes: usize) -> Table {
        let count = bytes / slot.len();
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % count * slot.len()
        };
        Table {
            slots: slot.repeat(count),
            bytes: slot.len(),
            starts: (0..BAG * BAGS).map(|_| random()).collect(),
        }
    }

    fn row(&self, number: usize) -> &[u8] {
        &self.slots[self.starts[number]..][..self.bytes]
    }

    fn rows_a_second(
        &self,
        encoding: RowEncoding,
        dim: usize,
        pooling: Pooling,
        weights: Weights<'_>,
    ) -> f64 {
        let ends: Vec<usize> = (1..=BAGS).map(|bag| bag * BAG).collect();
        let mut pooled = vec![0.0; BAGS * dim];
        let seconds = best(|| {
            encoding.pool_bags(
                pooling,
                |number| self.row(number),
                &ends,
                weights,
                black_box(&mut pooled).chunks_mut(dim),
            )
        });
        (BAG * BAGS) as f64 / seconds
    }

    fn row_by_row(&self, encoding: RowEncoding, dim: usize) -> f64 {
        let mut sum = vec![0.0; dim];
        let seconds = best(|| {
            (0..self.starts.len())
                .for_each(|number| encoding.add(self.row(number), black_box(&mut sum)))
        });
        (BAG * BAGS) as f64 / seconds
    }
}

/// Seconds of the best run of a tenth of a second.
fn best(mut work: impl FnMut()) -> f64 {
    let (begin, mut seconds) = (Instant::now(), f64::INFINITY);
    while begin.elapsed().as_secs_f64() < 0.1 {
        let start = Instant::now();
        work();
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    seconds
}
