//! Excerpts of real data (`data/README.md`), compressed or not, against facts counted by other
//! tools.

use std::io::Write;

use outcore_formats::libsvm::{Base, LabelKind};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{
    Batch, Chunk, Lines, Position, Sink, Source, Triplets, Vocabulary, bag_of_words, libsvm,
};

use super::common::{bytes, for_each_chunk, lines};

#[test]
fn rows_of_a9a_are_read_from_any_packing() {
    let text = bytes("data/a9a");
    for name in ["a9a", "a9a.gz", "a9a.zst"] {
        let mut sink = Sink::new(name, Vec::new()).unwrap();
        sink.write_all(&text).unwrap();
        let stored = sink.finish().unwrap();
        let mut lines = Lines::new(
            Source::open(name, &stored[..]).unwrap(),
            Position::START,
            1 << 10,
            1 << 10,
        );
        let (mut chunk, mut batch, mut rows, mut entries, mut positive, mut sum, mut largest) =
            (Chunk::default(), Batch::default(), 0, 0, 0, 0, 0);
        while lines.next(&mut chunk).unwrap() {
            libsvm::parse(&chunk, Base::One, LabelKind::One, &mut batch).unwrap();
            assert!(batch.is_binary());
            rows += batch.rows();
            entries += batch.indices.len();
            positive += batch.labels.iter().filter(|&&label| label == 1.0).count();
            sum += batch.indices.iter().sum::<u64>();
            largest = largest.max(batch.index_range().unwrap().1);
        }
        assert_eq!((rows, entries, positive, sum, largest), A9A, "{name}");
    }
}

/// Rows, entries, positive labels, sum of the columns from 0, largest column from 0.
const A9A: (usize, usize, usize, u64, u64) = (60, 835, 15, 40690, 102);

#[test]
fn documents_of_kos_are_read() {
    let text = bytes("data/docword.kos.txt");
    let mut lines = lines(&text);
    let header = bag_of_words::Header::read(&mut lines).unwrap();
    assert_eq!(
        (header.rows, header.columns, header.entries),
        (40, 6906, 3957)
    );
    let (mut triplets, mut tally, mut words) = (Triplets::default(), header.tally("kos"), 0.0);
    for_each_chunk(&mut lines, |chunk| {
        bag_of_words::parse(chunk, &header, &mut triplets)?;
        assert!(triplets.is_ascending());
        words += triplets.values.iter().sum::<f64>();
        tally.add(triplets.entries)
    })
    .unwrap();
    tally.finish().unwrap();
    assert_eq!(words, KOS_WORDS);
}

const KOS_WORDS: f64 = 5381.0;

#[test]
fn words_of_package_descriptions_are_counted_with_their_sections() {
    let text = bytes("data/packages.tsv");
    let tokenizer = Tokenizer {
        text_column: Some(2),
        label_column: Some(1),
        ..Tokenizer::default()
    };
    let (mut vocabulary, mut sections) = (Vocabulary::default(), Vocabulary::default());
    let (mut documents, mut batch, mut words, mut section_numbers) = (
        Documents::default(),
        Batch::default(),
        Vec::new(),
        Vec::new(),
    );
    let (mut labels, mut entries, mut count) = (Vec::new(), 0, 0.0);
    let mut lines = Lines::new(
        Source::open("packages", &text[..]).unwrap(),
        Position::START,
        1000,
        10_000,
    );
    let mut chunk = Chunk::default();
    while lines.next(&mut chunk).unwrap() {
        tokenizer.parse(&chunk, &mut documents).unwrap();
        vocabulary.merge(documents.words(), &mut words).unwrap();
        sections
            .merge(documents.labels(), &mut section_numbers)
            .unwrap();
        documents.rows(&words, &section_numbers, &mut batch);
        labels.extend(
            batch
                .labels
                .iter()
                .map(|&label| sections.word(label as u64).to_string()),
        );
        entries += batch.indices.len();
        count += batch.values.iter().sum::<f64>();
    }
    assert_eq!(
        (labels, vocabulary.len(), entries, count),
        (
            PACKAGES.0.map(String::from).to_vec(),
            PACKAGES.1,
            PACKAGES.2,
            PACKAGES.3
        )
    );
}

/// Sections of the packages; words of `CountVectorizer`, its stored entries, and the sum of its
/// counts.
const PACKAGES: ([&str; 8], u64, usize, f64) = (
    [
        "utils", "utils", "utils", "devel", "python", "python", "utils", "utils",
    ],
    328,
    420,
    521.0,
);
