//! Speed of each parser on one core: `cargo run --release --example throughput -- libsvm a9a.gz xc
//! bibtex.xc.gz ...`.
//!
//! Arguments are pairs of a format and a file. The text is repeated to 100 MB in memory, cut into
//! chunks of 1 MiB, and parsed five times; the best counts. Seconds are processor time of the
//! thread, so that other work on the machine does not count.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use outcore_formats::libsvm::{Base, LabelKind};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{
    Batch, Chunk, Lines, Position, Precision, Source, Triplets, bag_of_words, libsvm,
    matrix_market, npz, parquet, xc,
};
use rustix::time::{ClockId, clock_gettime};

const TEXT_BYTES: usize = 100 << 20;
const CHUNK_BYTES: usize = 1 << 20;
const ROUNDS: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks_exact(2) {
        if let "npz" | "parquet" = &pair[0][..] {
            measure_binary(&pair[0], &pair[1])?;
            continue;
        }
        let mut source = Source::open(&pair[1], File::open(&pair[1])?)?;
        let mut bytes = vec![0; TEXT_BYTES];
        let read = source.read_full(&mut bytes)?;
        bytes.truncate(read);
        measure(&pair[0], &pair[1], &bytes)?;
    }
    Ok(())
}

fn measure(format: &str, object: &str, text: &[u8]) -> Result<(), Failure> {
    let (mut batch, mut triplets) = (Batch::default(), Triplets::default());
    let mut lines = Lines::new(
        Source::open(object, text)?,
        Position::START,
        CHUNK_BYTES,
        CHUNK_BYTES,
    );
    match format {
        "libsvm" => report(format, object, &chunks(lines)?, &mut |chunk| {
            libsvm::parse(chunk, Base::One, LabelKind::One, &mut batch)?;
            Ok(batch.indices.len())
        }),
        "xc" => {
            let header = xc::Header::read(&mut lines)?;
            report(format, object, &chunks(lines)?, &mut |chunk| {
                xc::parse(chunk, &header, Precision::Double, &mut batch)?;
                Ok(batch.indices.len())
            })
        }
        "bow" => {
            let header = bag_of_words::Header::read(&mut lines)?;
            report(format, object, &chunks(lines)?, &mut |chunk| {
                bag_of_words::parse(chunk, &header, &mut triplets)?;
                Ok(triplets.rows.len())
            })
        }
        "mtx" => {
            let header = matrix_market::Header::read(&mut lines)?;
            report(format, object, &chunks(lines)?, &mut |chunk| {
                matrix_market::parse(chunk, &header, Precision::Double, &mut triplets)?;
                Ok(triplets.rows.len())
            })
        }
        "libsvm-write" => report(format, object, &chunks(lines)?, &mut |chunk| {
            libsvm::parse(chunk, Base::One, LabelKind::One, &mut batch)?;
            let mut out = Vec::new();
            libsvm::write(&batch, Base::One, Precision::Single, &mut out)?;
            Ok(out.len())
        }),
        "text" => {
            let mut documents = Documents::default();
            let tokenizer = Tokenizer {
                text_column: Some(2),
                label_column: Some(1),
                ..Tokenizer::default()
            };
            report(format, object, &chunks(lines)?, &mut |chunk| {
                tokenizer.parse(chunk, &mut documents)?;
                Ok(documents.len())
            })
        }
        "lines" => {
            let (mut best, mut chunk) = (Duration::MAX, Chunk::default());
            for _ in 0..ROUNDS {
                let mut lines = Lines::new(
                    Source::open(object, File::open(object)?)?,
                    Position::START,
                    CHUNK_BYTES,
                    CHUNK_BYTES,
                );
                let start = processor_time();
                while lines.next(&mut chunk)? {}
                best = best.min(processor_time() - start);
            }
            print(format, object, text.len(), best, 0);
            Ok(())
        }
        _ => Err(format!(
            "{format}: libsvm, libsvm-write, xc, bow, mtx, text, lines, npz or parquet"
        )
        .into()),
    }
}

/// The text, over and over.
fn chunks(mut lines: Lines<&[u8]>) -> Result<Vec<Chunk>, Failure> {
    let mut once = Vec::new();
    let mut chunk = Chunk::default();
    while lines.next(&mut chunk)? {
        once.push(chunk.clone());
    }
    let bytes: usize = once.iter().map(|chunk| chunk.bytes.len()).sum();
    Ok(once
        .iter()
        .cycle()
        .take(once.len() * TEXT_BYTES.div_ceil(bytes))
        .cloned()
        .collect())
}

fn report(
    format: &str,
    object: &str,
    chunks: &[Chunk],
    parse: &mut dyn FnMut(&Chunk) -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let bytes: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
    let (mut best, mut entries) = (Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let start = processor_time();
        entries = 0;
        for chunk in chunks {
            entries += parse(chunk)?;
        }
        best = best.min(processor_time() - start);
    }
    print(format, object, bytes, best, entries);
    Ok(())
}

/// Bytes are those of the entries as numbers: 16 each.
fn measure_binary(format: &str, object: &str) -> Result<(), Failure> {
    const MOST: usize = 1 << 16;
    let file = Arc::new(File::open(object)?);
    let (mut batch, mut triplets, mut best, mut entries) =
        (Batch::default(), Triplets::default(), Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let start = processor_time();
        entries = 0;
        if format == "npz" {
            let mut reader = npz::Reader::open(object, file.clone())?;
            while reader.rows(MOST, &mut batch)? {
                entries += batch.indices.len();
            }
        } else {
            let reader = parquet::Reader::open(object, file.clone(), &parquet::Columns::First)?;
            for group in 0..reader.groups() {
                let mut group = reader.group(group)?;
                while group.entries(MOST, &mut triplets)? {
                    entries += triplets.rows.len();
                }
            }
        }
        best = best.min(processor_time() - start);
    }
    print(format, object, 16 * entries, best, entries);
    Ok(())
}

fn print(format: &str, object: &str, bytes: usize, best: Duration, entries: usize) {
    let seconds = best.as_secs_f64();
    let (megabytes, millions) = (bytes as f64 / 1e6, entries as f64 / 1e6);
    println!(
        "{format:8} {:5.0} MB/s  {:5.1} million entries/s  ({megabytes:.0} MB, {object})",
        megabytes / seconds,
        millions / seconds
    );
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
