//! All parsers on foreign bytes, for property tests and fuzzing.

use std::sync::Arc;

use crate::libsvm::{Base, LabelKind};
use crate::text::{Documents, Tokenizer};
use crate::{
    Batch, Chunk, Lines, Position, Precision, Result, Source, Triplets, Vocabulary, WordLines,
};
use crate::{bag_of_words, libsvm, matrix_market, npz, parquet, xc};

const CHUNK_BYTES: usize = 64;
const LONGEST_LINE: usize = 1 << 12;

/// Reads `bytes` in every format. Nothing may panic, and each result must keep the promises of
/// [`Batch`].
pub fn read_as_everything(bytes: &[u8]) {
    let _ = [
        read_libsvm(bytes, LabelKind::One),
        read_libsvm(bytes, LabelKind::Many),
        read_xc(bytes),
        read_matrix_market(bytes),
        read_bag_of_words(bytes),
        read_text(bytes),
        read_words(bytes),
        Vocabulary::read(&mut lines(bytes)).map(drop),
        read_npz(bytes),
        read_parquet(bytes),
    ];
}

fn lines(bytes: &[u8]) -> Lines<&[u8]> {
    // Input compressed in an unsupported way is read as empty.
    let source = Source::open("fuzz", bytes)
        .or_else(|_| Source::open("fuzz", &[][..]))
        .expect("memory can be read");
    Lines::new(source, Position::START, CHUNK_BYTES, LONGEST_LINE)
}

fn check(batch: &Batch) {
    assert_eq!(batch.offsets[0], 0);
    assert_eq!(batch.offsets[batch.rows()], batch.indices.len() as u64);
    assert_eq!(batch.indices.len(), batch.values.len());
    for row in 0..batch.rows() {
        let (indices, values) = batch.row(row);
        assert!(indices.is_sorted_by(|left, right| left < right));
        assert!(values.iter().all(|value| value.is_finite()));
    }
    for labels in [&batch.labels[..], &[]] {
        assert!(labels.is_empty() || labels.len() == batch.rows());
    }
    assert!(batch.label_offsets.is_empty() || batch.label_offsets.len() == batch.offsets.len());
    assert!(batch.queries.is_empty() || batch.queries.len() == batch.rows());
}

fn read_libsvm(bytes: &[u8], labels: LabelKind) -> Result<()> {
    let (mut lines, mut chunk, mut batch, mut largest) =
        (lines(bytes), Chunk::default(), Batch::default(), 0);
    while lines.next(&mut chunk)? {
        libsvm::parse(&chunk, Base::One, labels, &mut batch)?;
        check(&batch);
        largest = largest.max(chunk.bytes.len());
        assert!(
            batch.bytes() <= 32 * largest + 128,
            "{} bytes for {largest} of text",
            batch.bytes()
        );
        let mut out = Vec::new();
        libsvm::write(&batch, Base::One, Precision::Double, &mut out)?;
        let mut again = Batch::default();
        libsvm::parse(&Chunk::new("written", out), Base::One, labels, &mut again)?;
        assert_eq!(again, batch);
    }
    Ok(())
}

fn read_xc(bytes: &[u8]) -> Result<()> {
    let (mut lines, mut chunk, mut batch, mut largest) =
        (lines(bytes), Chunk::default(), Batch::default(), 0);
    let header = xc::Header::read(&mut lines)?;
    while lines.next(&mut chunk)? {
        xc::parse(&chunk, &header, Precision::Single, &mut batch)?;
        check(&batch);
        largest = largest.max(chunk.bytes.len());
        assert!(
            batch.bytes() <= 32 * largest + 128,
            "{} bytes for {largest} of text",
            batch.bytes()
        );
    }
    Ok(())
}

fn read_matrix_market(bytes: &[u8]) -> Result<()> {
    let (mut lines, mut chunk, mut triplets, mut largest) =
        (lines(bytes), Chunk::default(), Triplets::default(), 0);
    let header = matrix_market::Header::read(&mut lines)?;
    let (mut tally, mut before) = (header.tally("fuzz"), 0);
    while lines.next(&mut chunk)? {
        matrix_market::parse(&chunk, &header, Precision::Single, &mut triplets)?;
        tally.add(triplets.entries)?;
        if header.layout == matrix_market::Layout::Array {
            matrix_market::place_values(&header, before, &mut triplets);
            before += triplets.entries;
        }
        largest = largest.max(header.bytes_to_parse(&chunk));
        assert!(
            triplets.bytes() <= largest + 128,
            "{} bytes for {largest}",
            triplets.bytes()
        );
        assert!(
            triplets.rows.iter().all(|&row| row < header.rows)
                && triplets
                    .columns
                    .iter()
                    .all(|&column| column < header.columns)
        );
    }
    tally.finish()
}

fn read_bag_of_words(bytes: &[u8]) -> Result<()> {
    let (mut lines, mut chunk, mut triplets, mut largest) =
        (lines(bytes), Chunk::default(), Triplets::default(), 0);
    let header = bag_of_words::Header::read(&mut lines)?;
    while lines.next(&mut chunk)? {
        bag_of_words::parse(&chunk, &header, &mut triplets)?;
        largest = largest.max(chunk.bytes.len());
        assert!(
            triplets.bytes() <= 12 * largest + 128,
            "{} bytes for {largest} of text",
            triplets.bytes()
        );
        assert!(
            triplets.rows.iter().all(|&row| row < header.rows)
                && triplets
                    .columns
                    .iter()
                    .all(|&column| column < header.columns)
        );
    }
    Ok(())
}

fn read_text(bytes: &[u8]) -> Result<()> {
    let tokenizer = Tokenizer {
        ngrams: 1..=3,
        stop_words: ["the"].into_iter().collect(),
        ..Tokenizer::default()
    };
    let (mut lines, mut chunk, mut documents) =
        (lines(bytes), Chunk::default(), Documents::default());
    let (mut vocabulary, mut numbers, mut batch) =
        (Vocabulary::default(), Vec::new(), Batch::default());
    while lines.next(&mut chunk)? {
        tokenizer.parse(&chunk, &mut documents)?;
        vocabulary.merge(documents.words(), &mut numbers)?;
        documents.rows(&numbers, &[], &mut batch);
        check(&batch);
    }
    Ok(())
}

fn read_words(bytes: &[u8]) -> Result<()> {
    let (mut lines, mut chunk, mut out) = (lines(bytes), Chunk::default(), Vec::new());
    let mut words = WordLines::new("fuzz", 3);
    while lines.next(&mut chunk)? {
        words.read(&chunk, &mut out)?;
        assert!(std::str::from_utf8(&out).is_ok() && out.len() <= chunk.bytes.len() + 1);
    }
    words.finish()
}

fn read_npz(bytes: &[u8]) -> Result<()> {
    const MOST: usize = 1000;
    let (mut batch, mut triplets) = (Batch::default(), Triplets::default());
    let mut reader = npz::Reader::open("fuzz", Arc::new(bytes.to_vec()))?;
    match reader.layout {
        npz::Layout::Coo => while reader.entries(MOST, &mut triplets)? {},
        _ => {
            while reader.rows(MOST, &mut batch)? {
                check(&batch);
            }
        }
    }
    Ok(())
}

fn read_parquet(bytes: &[u8]) -> Result<()> {
    const MOST: usize = 1000;
    let mut triplets = Triplets::default();
    let reader = parquet::Reader::open("fuzz", Arc::new(bytes.to_vec()), &parquet::Columns::First)?;
    for group in 0..reader.groups() {
        let mut group = reader.group(group)?;
        while group.entries(MOST, &mut triplets)? {}
    }
    Ok(())
}
