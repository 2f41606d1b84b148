//! Files written by SciPy, scikit-learn and PyArrow (`golden/make_golden.py`) are read back
//! correctly.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use outcore_formats::libsvm::{self, Base, LabelKind};
use outcore_formats::matrix_market::{self, Field, Layout, Symmetry};
use outcore_formats::parquet::{self, Columns};
use outcore_formats::text::{Documents, Tokenizer};
use outcore_formats::{Batch, Chunk, Error, Precision, Result, Triplets, Vocabulary, npz};

use super::common::{bytes, file, for_each_chunk, lines};

type Matrix = BTreeMap<(u64, u64), f64>;

fn expected() -> Matrix {
    BTreeMap::from([
        ((0, 1), 1.5),
        ((0, 4), -2.0),
        ((2, 0), 3.0),
        ((2, 5), 0.25),
        ((3, 2), 7.0),
    ])
}

fn mapped(value: impl Fn(f64) -> f64) -> Matrix {
    expected()
        .into_iter()
        .map(|(place, old)| (place, value(old)))
        .filter(|&(_, value)| value != 0.0)
        .collect()
}

fn add_rows(matrix: &mut Matrix, first_row: u64, batch: &Batch) {
    for row in 0..batch.rows() {
        let (indices, values) = batch.row(row);
        matrix.extend(
            indices
                .iter()
                .zip(values)
                .map(|(&index, &value)| ((first_row + row as u64, index), value)),
        );
    }
}

fn add_entries(matrix: &mut Matrix, triplets: &Triplets) {
    let places = triplets
        .rows
        .iter()
        .copied()
        .zip(triplets.columns.iter().copied());
    matrix.extend(places.zip(triplets.values.iter().copied()));
}

fn open_npz(name: &str) -> Result<npz::Reader> {
    npz::Reader::open(
        name,
        Arc::new(File::open(file(&format!("golden/{name}.npz"))).unwrap()),
    )
}

/// The matrix read in batches of at most `most` entries, and the number of batches.
fn read_npz(name: &str, most: usize) -> Result<(Matrix, usize)> {
    let (mut matrix, mut batch, mut triplets, mut count) =
        (Matrix::new(), Batch::default(), Triplets::default(), 0);
    let mut reader = open_npz(name)?;
    let mut first_row = 0;
    loop {
        let more = match reader.layout {
            npz::Layout::Coo => reader.entries(most, &mut triplets)?,
            _ => reader.rows(most, &mut batch)?,
        };
        if !more {
            break;
        }
        count += 1;
        match reader.layout {
            npz::Layout::Coo => add_entries(&mut matrix, &triplets),
            _ => add_rows(&mut matrix, first_row, &batch),
        }
        first_row += batch.rows() as u64;
    }
    if reader.layout == npz::Layout::Csc {
        matrix = matrix
            .into_iter()
            .map(|((column, row), value)| ((row, column), value))
            .collect();
    }
    Ok((matrix, count))
}

#[test]
fn scipy_archives_of_every_layout_and_type_are_read_in_batches_of_any_size() {
    for name in [
        "csr",
        "csr_stored_f32",
        "csc",
        "coo",
        "csr_array",
        "int64_indices",
    ] {
        let reader = open_npz(name).unwrap();
        assert_eq!(
            (reader.row_count, reader.column_count, reader.entry_count),
            (4, 6, 5),
            "{name}"
        );
        for most in [2, 3, 1000] {
            let (matrix, batches) = read_npz(name, most).unwrap();
            assert_eq!(matrix, expected(), "{name}, {most}");
            assert!(most == 1000 || batches > 1, "{name}, {most}");
        }
    }
    assert_eq!(read_npz("bool", 2).unwrap().0, mapped(|_| 1.0));
    let whole = read_npz("int16", 1000).unwrap().0;
    assert_eq!(
        whole
            .into_iter()
            .filter(|&(_, value)| value != 0.0)
            .collect::<Matrix>(),
        mapped(f64::trunc)
    );
    assert_eq!(read_npz("empty", 10).unwrap().0, Matrix::new());
    assert_eq!(
        read_npz("unsorted", 10).unwrap().0,
        BTreeMap::from([((0, 1), 1.0), ((0, 4), 2.0), ((1, 0), 5.0)])
    );
}

#[test]
fn scipy_archives_that_cannot_be_rows_say_why() {
    let error = |name, most| read_npz(name, most).unwrap_err().to_string();
    assert!(
        error("twice", 10).contains("sum_duplicates"),
        "{}",
        error("twice", 10)
    );
    assert!(error("bsr", 10).contains("tocsr"), "{}", error("bsr", 10));
    assert!(error("csr", 1).contains("2 entries"), "{}", error("csr", 1));
    let whole = bytes("golden/csr.npz");
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        let result = npz::Reader::open("cut", Arc::new(whole[..length].to_vec()));
        assert!(
            matches!(result.err(), Some(Error::Corrupt { .. })),
            "{length}"
        );
    }
}

#[test]
fn an_archive_with_a_flipped_bit_in_its_numbers_is_an_error() {
    let mut stored = bytes("golden/csr_stored_f32.npz");
    let position = stored
        .windows(4)
        .position(|bytes| bytes == 1.5_f32.to_le_bytes())
        .unwrap();
    stored[position] ^= 1;
    let mut reader = npz::Reader::open("flipped", Arc::new(stored)).unwrap();
    let error = reader
        .rows(100, &mut Batch::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("checksum"), "{error}");
}

fn read_mtx(name: &str) -> Result<(matrix_market::Header, Matrix)> {
    let text = bytes(&format!("golden/{name}.mtx"));
    let mut lines = lines(&text);
    let header = matrix_market::Header::read(&mut lines)?;
    let (mut matrix, mut triplets, mut tally) =
        (Matrix::new(), Triplets::default(), header.tally(name));
    let mut before = 0;
    for_each_chunk(&mut lines, |chunk| {
        matrix_market::parse(chunk, &header, Precision::Double, &mut triplets)?;
        tally.add(triplets.entries)?;
        if header.layout == Layout::Array {
            matrix_market::place_values(&header, before, &mut triplets);
            before += triplets.entries;
        }
        add_entries(&mut matrix, &triplets);
        Ok(())
    })?;
    tally.finish()?;
    Ok((header, matrix))
}

#[test]
fn matrix_market_files_of_every_field_and_symmetry_are_read() {
    let (header, matrix) = read_mtx("general").unwrap();
    assert_eq!(
        (header.rows, header.columns, header.entries, header.field),
        (4, 6, 5, Field::Real)
    );
    assert_eq!(matrix, expected());
    let whole: Matrix = read_mtx("integer")
        .unwrap()
        .1
        .into_iter()
        .filter(|&(_, value)| value != 0.0)
        .collect();
    assert_eq!(whole, mapped(f64::trunc));
    assert_eq!(read_mtx("pattern").unwrap().1, mapped(|_| 1.0));
    let (header, matrix) = read_mtx("symmetric").unwrap();
    assert_eq!(header.symmetry, Symmetry::Symmetric);
    assert_eq!(
        matrix,
        BTreeMap::from([
            ((0, 0), 1.0),
            ((0, 1), 2.0),
            ((1, 0), 2.0),
            ((1, 2), -3.0),
            ((2, 1), -3.0),
            ((2, 2), 4.0)
        ])
    );
    assert_eq!(
        read_mtx("skew").unwrap().1,
        BTreeMap::from([((0, 1), 2.0), ((1, 0), -2.0), ((1, 2), -3.0), ((2, 1), 3.0)])
    );
    let (header, matrix) = read_mtx("array").unwrap();
    assert_eq!((header.layout, header.entries), (Layout::Array, 24));
    assert_eq!(matrix, expected());
}

#[test]
fn files_of_dump_svmlight_file_are_read() {
    let mut batch = Batch::default();
    libsvm::parse(
        &Chunk::new("x", bytes("golden/one_label.svmlight")),
        Base::One,
        LabelKind::One,
        &mut batch,
    )
    .unwrap();
    let mut matrix = Matrix::new();
    add_rows(&mut matrix, 0, &batch);
    assert_eq!(matrix, expected());
    assert_eq!(batch.labels, [1.0, -1.0, 2.5, 0.0]);
    assert_eq!(batch.queries, [1, 1, 2, 2]);

    libsvm::parse(
        &Chunk::new("x", bytes("golden/many_labels.svmlight")),
        Base::Zero,
        LabelKind::Many,
        &mut batch,
    )
    .unwrap();
    let mut matrix = Matrix::new();
    add_rows(&mut matrix, 0, &batch);
    assert_eq!(matrix, expected());
    assert_eq!(
        (0..4)
            .map(|row| batch.row_labels(row).to_vec())
            .collect::<Vec<_>>(),
        [vec![0, 2], vec![1], vec![], vec![0, 1, 2]]
    );
    assert!(batch.labels.is_empty() && batch.queries.is_empty());
}

fn read_parquet(name: &str, columns: &Columns) -> Result<(Matrix, usize)> {
    let reader = parquet::Reader::open(
        name,
        Arc::new(File::open(file(&format!("golden/{name}.parquet"))).unwrap()),
        columns,
    )?;
    let (mut matrix, mut triplets, mut entries) = (Matrix::new(), Triplets::default(), 0);
    for group in 0..reader.groups() {
        let mut group = reader.group(group)?;
        while group.entries(2, &mut triplets)? {
            assert!(triplets.rows.len() <= 2);
            entries += triplets.entries;
            add_entries(&mut matrix, &triplets);
        }
    }
    assert_eq!(entries, reader.entries());
    Ok((matrix, reader.groups()))
}

#[test]
fn parquet_files_of_every_type_packing_and_order_of_columns_are_read() {
    assert_eq!(
        read_parquet("entries", &Columns::First).unwrap(),
        (expected(), 3)
    );
    assert_eq!(
        read_parquet("snappy_f32", &Columns::First).unwrap().0,
        expected()
    );
    assert_eq!(
        read_parquet("ones", &Columns::First).unwrap().0,
        mapped(|_| 1.0)
    );
    assert_eq!(
        read_parquet("unsigned", &Columns::First).unwrap().0,
        BTreeMap::from([(((1 << 32) - 1, 65535), u64::MAX as f64)])
    );
    let named = |value: Option<&str>| Columns::Named {
        row: "i".into(),
        column: "u".into(),
        value: value.map(Into::into),
    };
    assert_eq!(
        read_parquet("zstd_other_order", &named(Some("value")))
            .unwrap()
            .0,
        expected()
    );
    assert_eq!(
        read_parquet("zstd_other_order", &named(None)).unwrap().0,
        mapped(|_| 1.0)
    );
}

#[test]
fn parquet_columns_that_cannot_be_entries_say_why() {
    let error = |name, columns: &Columns| read_parquet(name, columns).unwrap_err();
    assert!(matches!(
        error("null", &Columns::First),
        Error::Entry { entry: 1, .. }
    ));
    assert!(matches!(
        error("negative", &Columns::First),
        Error::Entry { entry: 1, .. }
    ));
    assert!(
        error("too_large", &Columns::First)
            .to_string()
            .contains("entry 1: 9223372036854775808 is larger")
    );
    assert!(
        error("strings", &Columns::First)
            .to_string()
            .contains("'row'")
    );
    let missing = Columns::Named {
        row: "row".into(),
        column: "col".into(),
        value: None,
    };
    let message = error("entries", &missing).to_string();
    assert!(
        message.contains("no column 'col'; there are row, column, value"),
        "{message}"
    );
    let whole = bytes("golden/entries.parquet");
    let cut = parquet::Reader::open(
        "cut",
        Arc::new(whole[..whole.len() - 9].to_vec()),
        &Columns::First,
    );
    assert!(matches!(cut.err(), Some(Error::Corrupt { .. })));
}

/// Rows of `golden/*.tsv`: a document, a word and a count.
fn counted(tokenizer: &Tokenizer) -> String {
    let text = bytes("golden/documents.txt");
    let (mut documents, mut batch) = (Documents::default(), Batch::default());
    let (mut vocabulary, mut numbers, mut counted, mut first_row) =
        (Vocabulary::default(), Vec::new(), Vec::new(), 0);
    for_each_chunk(&mut lines(&text), |chunk| {
        tokenizer.parse(chunk, &mut documents)?;
        vocabulary.merge(documents.words(), &mut numbers)?;
        documents.rows(&numbers, &[], &mut batch);
        for row in 0..batch.rows() {
            let (indices, values) = batch.row(row);
            counted.extend(indices.iter().zip(values).map(|(&index, value)| {
                format!("{}\t{}\t{value}\n", first_row + row, vocabulary.word(index))
            }));
        }
        first_row += batch.rows();
        Ok(())
    })
    .unwrap();
    assert_eq!(first_row, 5);
    counted.sort();
    counted.concat()
}

#[test]
fn words_are_those_of_count_vectorizer() {
    assert_eq!(
        counted(&Tokenizer::default()).as_bytes(),
        bytes("golden/words.tsv")
    );
    let stop_words = ["the", "straße"].into_iter().collect();
    assert_eq!(
        counted(&Tokenizer {
            ngrams: 1..=2,
            stop_words,
            ..Tokenizer::default()
        })
        .as_bytes(),
        bytes("golden/pairs.tsv")
    );
}
