//! Random reads of one size at one depth, as `fio --rw=randread` does them, with what they cost.
//!
//! ```text
//! randread FILE [BLOCK] [DEPTH] [SECONDS] [io_uring|threads] [registered] [write]
//! ```
//!
//! FILE is made with 4 GiB if it does not exist. Prints one line: driver, operations a second, MB/s
//! and CPU use.

use outcore_device::{
    Buf, Choice, Completion, Device, Driver, FileDevice, Mode, Op, Options, Request,
};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 4 << 30;
const FILL_BYTES: usize = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("which file?")?;
    let number = |index: usize, default: u64| {
        arguments
            .get(index)
            .map_or(Ok(default), |text| text.parse())
    };
    let (block, depth, seconds) = (
        number(1, 4096)? as usize,
        number(2, 64)? as usize,
        number(3, 5)?,
    );
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let choice = match (has("threads"), has("io_uring")) {
        (true, _) => Choice::Threads,
        (_, true) => Choice::Uring,
        _ => Choice::Auto,
    };
    let options = Options {
        threads: depth,
        ..Options::default()
    };
    let mut driver = outcore_device::driver_with(choice, options)?;
    if !Path::new(path).exists() {
        fill(path, &mut *driver)?;
    }
    let mode = if has("write") {
        Mode::ReadWrite
    } else {
        Mode::Read
    };
    let device = outcore_device::open_file(path, mode)?;

    let mut memory = Buf::anonymous(block * depth)?;
    if has("registered") {
        driver.register(memory.anchor());
    }
    let mut random = Random(1);
    let mut requests = Vec::new();
    for _ in 0..depth {
        let buffer = memory.split_to(block);
        let op = if has("write") {
            Op::Write(buffer.freeze())
        } else {
            Op::Read(buffer)
        };
        requests.push(request(&device, &mut random, block, op));
    }
    let (start, cpu) = (Instant::now(), cpu_ticks());
    let mut operations = 0u64;
    let mut done: Vec<Completion> = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        driver.submit(&mut requests);
        driver.reap(None, &mut done)?;
        operations += done.len() as u64;
        for completion in done.drain(..) {
            completion.result?;
            requests.push(request(&device, &mut random, block, completion.op));
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let rate = operations as f64 / elapsed;
    println!(
        "{:9} block {block} depth {depth} registered {}: {rate:.0} IOPS, {:.1} MB/s, user {:.1} % system {:.1} %",
        driver.info().name,
        driver.info().registered_bytes,
        rate * block as f64 / 1e6,
        (cpu_ticks().0 - cpu.0) as f64 / elapsed,
        (cpu_ticks().1 - cpu.1) as f64 / elapsed,
    );
    Ok(())
}

fn request(device: &Arc<FileDevice>, random: &mut Random, block: usize, op: Op) -> Request {
    let blocks = device.len() / block as u64;
    Request {
        tag: 0,
        device: Arc::clone(device) as Arc<dyn Device>,
        offset: random.below(blocks) * block as u64,
        op,
    }
}

/// Bytes that are there: a hole would be read without the medium.
fn fill(path: &str, driver: &mut dyn Driver) -> Result<(), Box<dyn Error>> {
    let device = outcore_device::open_file(path, Mode::Create(FILE_BYTES))?;
    let mut buffer = Buf::anonymous(FILL_BYTES)?;
    let mut random = Random(2);
    buffer
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    let bytes = buffer.freeze();
    let mut requests: Vec<Request> = (0..FILE_BYTES / FILL_BYTES as u64)
        .map(|index| Request {
            tag: index,
            device: Arc::clone(&device) as Arc<dyn Device>,
            offset: index * FILL_BYTES as u64,
            op: Op::Write(bytes.clone()),
        })
        .collect();
    driver.submit(&mut requests);
    let mut done = Vec::new();
    while driver.in_flight() > 0 {
        driver.reap(None, &mut done)?;
    }
    done.into_iter()
        .try_for_each(|completion| completion.result)?;
    Ok(())
}

/// User and system time of this process in hundredths of a second; 0 where there is no `/proc`.
fn cpu_ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields are counted from the end of the command's name, which may hold spaces itself.
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let field = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0)
    };
    (field(11), field(12))
}

/// Splitmix64: good enough to scatter reads.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
