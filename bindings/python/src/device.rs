//! Measures a folder's device through the engine: sequential writes and reads, random reads. For
//! `outcore bench-device`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outcore::device::{Mode, open_file};
use outcore::engine::{Engine, Extent, GatherOptions, Item, StreamOptions};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::error::to_python;
use crate::session::Session;

/// Blocks of this length are long enough for any device.
const BLOCK_BYTES: usize = 4 << 20;
/// Length of a random read.
const ITEM_BYTES: usize = 4096;
/// Random reads in a batch, and batches in flight.
const BATCH: usize = 256;
const BATCHES: usize = 3;
/// Interval between checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Writes a new file of `length` bytes in order; returns the seconds, flush included.
#[pyfunction]
pub(crate) fn device_write(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    length: u64,
) -> PyResult<f64> {
    let engine = session.get()?.engine();
    py.detach(|| {
        let extent = Extent::new(
            path.display().to_string(),
            open_file(&path, Mode::Create(length)).map_err(device)?,
        );
        let (start, mut look) = (Instant::now(), Look::new());
        let mut stream = engine
            .write_stream(&extent, 0, options())
            .map_err(engine_error)?;
        let mut block = 0;
        while stream.position() < length {
            let buffer = stream.buffer().map_err(engine_error)?;
            // Different content in every block, so that no device deduplicates it.
            block += 1;
            buffer
                .chunks_exact_mut(8)
                .enumerate()
                .for_each(|(at, word)| {
                    word.copy_from_slice(&scatter(block << 32 | at as u64).to_le_bytes())
                });
            let filled = buffer.len().min((length - stream.position()) as usize);
            stream.advance(filled).map_err(engine_error)?;
            look.at_signals()?;
        }
        stream.finish().map_err(engine_error)?;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Reads a file in order; returns the seconds.
#[pyfunction]
pub(crate) fn device_read(py: Python<'_>, session: &Session, path: PathBuf) -> PyResult<f64> {
    let engine = session.get()?.engine();
    py.detach(|| {
        let extent = opened(&path)?;
        let (start, mut look) = (Instant::now(), Look::new());
        for block in engine
            .read_stream(&extent, 0..extent.len(), options())
            .map_err(engine_error)?
        {
            block.map_err(engine_error)?;
            look.at_signals()?;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Reads pieces of 4 KiB at random offsets for `seconds`; returns reads a second.
#[pyfunction]
pub(crate) fn device_random(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    seconds: f64,
) -> PyResult<f64> {
    let engine = session.get()?.engine();
    let time = Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    py.detach(|| random_reads(engine, &opened(&path)?, time))
}

fn random_reads(engine: &Engine, extent: &Extent, time: Duration) -> PyResult<f64> {
    let places = (extent.len() / ITEM_BYTES as u64).max(1);
    let options = GatherOptions {
        gap_bytes: 0,
        cache: false,
        ..GatherOptions::default()
    };
    let (start, mut look, mut asked) = (Instant::now(), Look::new(), 0u64);
    let mut under_way = VecDeque::new();
    loop {
        while start.elapsed() < time && under_way.len() < BATCHES {
            let place = |index: u64| scatter(asked + index) % places * ITEM_BYTES as u64;
            let items: Vec<Item<'_>> = (0..BATCH as u64)
                .map(|index| Item {
                    extent,
                    offset: place(index),
                    len: ITEM_BYTES,
                })
                .collect();
            asked += BATCH as u64;
            under_way.push_back(engine.gather(&items, &options).map_err(engine_error)?);
        }
        let Some(ticket) = under_way.pop_front() else {
            break;
        };
        ticket.wait().map_err(engine_error)?;
        look.at_signals()?;
    }
    Ok(asked as f64 / start.elapsed().as_secs_f64())
}

fn options() -> StreamOptions {
    StreamOptions {
        block_bytes: BLOCK_BYTES,
        ahead: 4,
    }
}

fn opened(path: &PathBuf) -> PyResult<Extent> {
    Ok(Extent::new(
        path.display().to_string(),
        open_file(path, Mode::Read).map_err(device)?,
    ))
}

fn device(error: outcore::device::DeviceError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

fn engine_error(error: outcore::engine::Error) -> PyErr {
    to_python(error.into())
}

/// Checks for Python's signals periodically, from a thread without the GIL.
struct Look(Instant);

impl Look {
    fn new() -> Look {
        Look(Instant::now())
    }

    fn at_signals(&mut self) -> PyResult<()> {
        if self.0.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.0 = Instant::now();
        Python::attach(|py| py.check_signals())
    }
}

/// Splitmix64: a pseudo-random number.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
