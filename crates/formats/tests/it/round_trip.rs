//! The output of each writer is read back by the parser of the same format.

use std::sync::Arc;

use outcore_formats::libsvm::{self, Base, LabelKind};
use outcore_formats::matrix_market::{self, Field, Layout, Symmetry};
use outcore_formats::parquet::{self, Columns};
use outcore_formats::{Batch, Chunk, Precision, Triplets, bag_of_words, npz, xc};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::common::{for_each_chunk, lines};

const COLUMNS: u64 = 50;
const LABELS: u64 = 9;

/// Ragged rows, empty ones too, in the order of the file.
fn rows(value: impl Strategy<Value = f64>) -> impl Strategy<Value = Batch> {
    vec(btree_map(0..COLUMNS, value, 0..6), 0..12).prop_map(|rows| {
        let mut batch = Batch {
            offsets: vec![0],
            ..Batch::default()
        };
        for row in rows {
            batch.indices.extend(row.keys());
            batch.values.extend(row.values());
            batch.offsets.push(batch.indices.len() as u64);
        }
        batch
    })
}

fn finite() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |value| value.is_finite())
}

fn with_labels(batch: Batch) -> impl Strategy<Value = Batch> {
    vec(btree_set(0..LABELS, 0..4), batch.rows()).prop_map(move |labels| {
        let mut batch = Batch {
            label_offsets: vec![0],
            ..batch.clone()
        };
        for row in labels {
            batch.label_indices.extend(row);
            batch.label_offsets.push(batch.label_indices.len() as u64);
        }
        batch
    })
}

/// All chunks in one.
fn joined(text: &[u8], mut parse: impl FnMut(&Chunk, &mut Batch)) -> Batch {
    let (mut whole, mut batch) = (
        Batch {
            offsets: vec![0],
            ..Batch::default()
        },
        Batch::default(),
    );
    for_each_chunk(&mut lines(text), |chunk| {
        parse(chunk, &mut batch);
        append(&mut whole, &batch);
        Ok(())
    })
    .unwrap();
    whole
}

fn append(whole: &mut Batch, batch: &Batch) {
    let shifted = |offsets: &[u64], by: usize| {
        offsets
            .iter()
            .skip(1)
            .map(|offset| offset + by as u64)
            .collect::<Vec<_>>()
    };
    whole
        .offsets
        .extend(shifted(&batch.offsets, whole.indices.len()));
    if whole.label_offsets.is_empty() && !batch.label_offsets.is_empty() {
        whole.label_offsets.push(0);
    }
    whole
        .label_offsets
        .extend(shifted(&batch.label_offsets, whole.label_indices.len()));
    whole.indices.extend(&batch.indices);
    whole.values.extend(&batch.values);
    whole.labels.extend(&batch.labels);
    whole.label_indices.extend(&batch.label_indices);
    whole.queries.extend(&batch.queries);
}

fn entries(batch: &Batch, first_row: u64) -> Vec<(u64, u64, f64)> {
    let row = |row: usize| {
        let (indices, values) = batch.row(row);
        indices
            .iter()
            .zip(values)
            .map(move |(&index, &value)| (first_row + row as u64, index, value))
    };
    (0..batch.rows()).flat_map(row).collect()
}

fn triplets(triplets: &Triplets) -> Vec<(u64, u64, f64)> {
    (0..triplets.rows.len())
        .map(|entry| {
            (
                triplets.rows[entry],
                triplets.columns[entry],
                triplets.values[entry],
            )
        })
        .collect()
}

proptest! {
    #[test]
    fn libsvm_with_one_label(mut batch in rows(finite()), labels in vec(finite(), 12), queries in vec(any::<u32>(), 12), ranked: bool, one: bool) {
        batch.labels = labels[..batch.rows()].to_vec();
        if ranked {
            batch.queries = queries[..batch.rows()].iter().map(|&query| query.into()).collect();
        }
        let base = if one { Base::One } else { Base::Zero };
        let mut text = Vec::new();
        libsvm::write(&batch, base, Precision::Double, &mut text).unwrap();
        let back = joined(&text, |chunk, back| libsvm::parse(chunk, base, LabelKind::One, back).unwrap());
        prop_assert_eq!(back, batch);
    }

    #[test]
    fn single_precision_text_reads_back_as_the_same_float32(mut batch in rows(any::<f32>().prop_filter("finite", |value| value.is_finite()).prop_map(f64::from))) {
        batch.labels = vec![1.0; batch.rows()];
        let mut text = Vec::new();
        libsvm::write(&batch, Base::One, Precision::Single, &mut text).unwrap();
        let mut back = joined(&text, |chunk, back| libsvm::parse(chunk, Base::One, LabelKind::One, back).unwrap());
        back.values.iter_mut().for_each(|value| *value = f64::from(*value as f32));
        prop_assert_eq!(back, batch);
    }

    #[test]
    fn xc_with_many_labels(batch in rows(finite()).prop_flat_map(with_labels)) {
        let header = xc::Header { rows: batch.rows() as u64, columns: COLUMNS, labels: LABELS };
        let mut text = Vec::new();
        header.write(&mut text);
        xc::write(&batch, Precision::Double, &mut text).unwrap();
        let mut lines = lines(&text);
        prop_assert_eq!(xc::Header::read(&mut lines).unwrap(), header);
        let (mut whole, mut back) = (Batch { offsets: vec![0], label_offsets: vec![0], ..Batch::default() }, Batch::default());
        let mut tally = header.tally("x");
        for_each_chunk(&mut lines, |chunk| {
            xc::parse(chunk, &header, Precision::Double, &mut back)?;
            append(&mut whole, &back);
            tally.add(back.rows() as u64)
        }).unwrap();
        tally.finish().unwrap();
        prop_assert_eq!(whole, batch);
    }

    #[test]
    fn libsvm_with_many_labels_keeps_all_but_rows_of_nothing(batch in rows(finite()).prop_flat_map(with_labels)) {
        let mut text = Vec::new();
        let lost = (0..batch.rows()).any(|row| batch.row(row).0.is_empty() && batch.row_labels(row).is_empty());
        prop_assert_eq!(libsvm::write(&batch, Base::One, Precision::Double, &mut text).is_err(), lost);
        if !lost && batch.rows() > 0 {
            let back = joined(&text, |chunk, back| libsvm::parse(chunk, Base::One, LabelKind::Many, back).unwrap());
            prop_assert_eq!(back, batch);
        }
    }

    #[test]
    fn matrix_market(batch in rows(finite()), first_row in 0_u64..10) {
        let header = matrix_market::Header {
            layout: Layout::Coordinate, field: Field::Real, symmetry: Symmetry::General, rows: first_row + batch.rows() as u64, columns: COLUMNS, entries: batch.indices.len() as u64,
        };
        let mut text = Vec::new();
        header.write(&mut text);
        matrix_market::write(&batch, first_row, header.field, Precision::Double, &mut text);
        let mut lines = lines(&text);
        prop_assert_eq!(matrix_market::Header::read(&mut lines).unwrap(), header);
        let (mut back, mut whole) = (Triplets::default(), Vec::new());
        for_each_chunk(&mut lines, |chunk| {
            matrix_market::parse(chunk, &header, Precision::Double, &mut back)?;
            assert!(back.is_ascending());
            whole.extend(triplets(&back));
            Ok(())
        }).unwrap();
        prop_assert_eq!(whole, entries(&batch, first_row));
    }

    #[test]
    fn arrays_of_matrix_market(side in 0_u64..9, columns in 0_u64..9, whole: bool, symmetry in 0_usize..3, seed: u64) {
        let symmetry = [Symmetry::General, Symmetry::Symmetric, Symmetry::SkewSymmetric][symmetry];
        let (field, columns) = (if whole { Field::Integer } else { Field::Real }, if symmetry == Symmetry::General { columns } else { side });
        let value = |row: u64, column: u64| match (seed.wrapping_mul(row * 31 + column * 7 + 1) >> 13) % 5 {
            0 | 1 => 0.0,
            number => number as f64 + if whole { 0.0 } else { 0.5 },
        };
        let (mut text, mut expected) = (Vec::new(), Vec::new());
        let mut stored = 0;
        for column in 0..columns {
            let first = match symmetry { Symmetry::General => 0, Symmetry::Symmetric => column, Symmetry::SkewSymmetric => column + 1 };
            for row in first..side {
                let value = value(row, column);
                text.extend_from_slice(format!("{value}\n").as_bytes());
                stored += 1;
                if value != 0.0 {
                    expected.push((row, column, value));
                    match symmetry {
                        Symmetry::Symmetric if row != column => expected.push((column, row, value)),
                        Symmetry::SkewSymmetric => expected.push((column, row, -value)),
                        _ => {}
                    }
                }
            }
        }
        let header = matrix_market::Header { layout: Layout::Array, field, symmetry, rows: side, columns, entries: stored };
        let mut whole_text = Vec::new();
        header.write(&mut whole_text);
        whole_text.extend_from_slice(&text);
        let mut lines = lines(&whole_text);
        prop_assert_eq!(matrix_market::Header::read(&mut lines).unwrap(), header);
        let (mut back, mut found, mut before) = (Triplets::default(), Vec::new(), 0);
        for_each_chunk(&mut lines, |chunk| {
            matrix_market::parse(chunk, &header, Precision::Single, &mut back)?;
            let count = back.entries;
            matrix_market::place_values(&header, before, &mut back);
            before += count;
            found.extend(triplets(&back));
            Ok(())
        }).unwrap();
        prop_assert_eq!(before, stored);
        let key = |entry: &(u64, u64, f64)| (entry.0, entry.1);
        found.sort_by_key(key);
        expected.sort_by_key(key);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn bag_of_words(batch in rows((0_u32..100_000).prop_map(f64::from)), first_row in 0_u64..10) {
        let header = bag_of_words::Header { rows: first_row + batch.rows() as u64, columns: COLUMNS, entries: batch.indices.len() as u64 };
        let mut text = Vec::new();
        header.write(&mut text);
        bag_of_words::write(&batch, first_row, &mut text).unwrap();
        let mut lines = lines(&text);
        prop_assert_eq!(bag_of_words::Header::read(&mut lines).unwrap(), header);
        let (mut back, mut whole, mut tally) = (Triplets::default(), Vec::new(), header.tally("x"));
        for_each_chunk(&mut lines, |chunk| {
            bag_of_words::parse(chunk, &header, &mut back)?;
            whole.extend(triplets(&back));
            tally.add(back.entries)
        }).unwrap();
        tally.finish().unwrap();
        prop_assert_eq!(whole, entries(&batch, first_row));
    }

    #[test]
    fn scipy_archive(batch in rows(prop_oneof![9 => -1e38..1e38_f64, 1 => finite()]), single: bool, wide: bool) {
        let precision = if single { Precision::Single } else { Precision::Double };
        let columns = if wide { 1 << 40 } else { COLUMNS };
        let mut writer = npz::Writer::new("x", Vec::new(), npz::Layout::Csr, batch.rows() as u64, columns, batch.indices.len() as u64, precision).unwrap();
        let too_large = single && batch.values.iter().any(|&value| (value as f32).is_infinite());
        let written = batch.values.chunks(3).try_for_each(|piece| writer.values(piece));
        prop_assert_eq!(written.is_err(), too_large);
        if too_large {
            return Ok(());
        }
        batch.offsets.chunks(2).for_each(|piece| writer.offsets(piece).unwrap());
        batch.indices.chunks(5).for_each(|piece| writer.indices(piece).unwrap());
        let stored = writer.finish().unwrap();
        let mut reader = npz::Reader::open("x", Arc::new(stored)).unwrap();
        prop_assert_eq!((reader.layout, reader.row_count, reader.column_count), (npz::Layout::Csr, batch.rows() as u64, columns));
        let (mut whole, mut back) = (Batch { offsets: vec![0], ..Batch::default() }, Batch::default());
        while reader.rows(7, &mut back).unwrap() {
            append(&mut whole, &back);
        }
        let mut expected = batch;
        if single {
            expected.values.iter_mut().for_each(|value| *value = f64::from(*value as f32));
        }
        prop_assert_eq!(whole, expected);
    }

    #[test]
    fn parquet_file(batches in vec(rows(finite()), 0..3)) {
        let (mut writer, mut first_row, mut expected) = (parquet::Writer::new("x", Vec::new()).unwrap(), 0, Vec::new());
        for batch in &batches {
            writer.write(batch, first_row).unwrap();
            expected.extend(entries(batch, first_row));
            first_row += batch.rows() as u64;
        }
        let reader = parquet::Reader::open("x", Arc::new(writer.finish().unwrap()), &Columns::First).unwrap();
        prop_assert_eq!(reader.entries(), expected.len() as u64);
        let (mut back, mut whole) = (Triplets::default(), Vec::new());
        for group in 0..reader.groups() {
            let mut group = reader.group(group).unwrap();
            while group.entries(4, &mut back).unwrap() {
                whole.extend(triplets(&back));
            }
        }
        prop_assert_eq!(whole, expected);
    }
}

#[test]
fn an_archive_that_was_not_filled_is_refused() {
    let begin = || {
        npz::Writer::new(
            "x",
            Vec::new(),
            npz::Layout::Csr,
            2,
            3,
            4,
            Precision::Double,
        )
        .unwrap()
    };
    let mut writer = begin();
    writer.offsets(&[0, 1, 4]).unwrap();
    assert!(writer.offsets(&[4]).is_err());
    let mut writer = begin();
    writer.offsets(&[0, 1]).unwrap();
    assert!(writer.values(&[1.0]).is_err());
    let mut writer = begin();
    writer.values(&[1.0; 4]).unwrap();
    assert!(writer.finish().is_err());
}
