//! Look-ups against a plain model of them: all rows in memory, one bag after another.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::common::{Random, bits, session_with};
use outcore_core::format::{npy, safetensors};
use outcore_core::{DType, Error, Order, Session, WrapDevice};
use outcore_device::{Device, Faults, Faulty};
use outcore_tables::placement::{Placement, Queries};
use outcore_tables::{
    Bags, Failure, Feature, Ids, JaggedBatch, Opening, Out, PolicyKind, Pooling, RowEncoding,
    ScaleBias, Serving, Table, TableSet, TableWriter, write_packed,
};

fn session(folder: &Path) -> Session {
    session_with(folder, WrapDevice::default())
}

fn element(row: u64, column: usize) -> f32 {
    let mixed = (row * 1_000_003 + column as u64 * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as f32 / 65536.0 - 128.0
}

fn row(number: u64, dim: usize) -> Vec<f32> {
    (0..dim).map(|column| element(number, column)).collect()
}

/// A `.npy` file as NumPy writes it, with a short header.
fn write_npy(path: &Path, rows: u64, dim: usize) {
    let (_, header) = npy("test", DType::F32, &[rows, dim as u64], Order::Row).unwrap();
    let mut bytes = header;
    for number in 0..rows {
        row(number, dim)
            .iter()
            .for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    std::fs::write(path, bytes).unwrap();
}

fn write_safetensors(path: &Path, name: &str, rows: std::ops::Range<u64>, dim: usize) {
    let shape = [rows.end - rows.start, dim as u64];
    let tensors = [
        ("bias", DType::F32, &[3u64][..]),
        (name, DType::F32, &shape[..]),
    ];
    let mut bytes = safetensors::header(&tensors).unwrap();
    bytes.extend([0; 12]);
    for number in rows {
        row(number, dim)
            .iter()
            .for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    std::fs::write(path, bytes).unwrap();
}

fn write_rows(session: &Session, path: &Path, rows: u64, dim: usize, encoding: RowEncoding) {
    let numbers = (0..rows).map(|number| row(number, dim));
    write_packed(session, path, rows, dim, encoding, numbers).unwrap();
}

fn open(session: &Session, path: &Path) -> Table {
    Table::open(session, &[path.to_owned()], &Opening::default()).unwrap()
}

/// What is expected of a feature: each bag's rows in their order.
fn model(
    encoding: RowEncoding,
    dim: usize,
    bags: &[Vec<i64>],
    weights: Option<&[f32]>,
    mode: Pooling,
) -> Vec<f32> {
    let mut expected = Vec::new();
    let mut position = 0;
    for bag in bags {
        let mut sum = vec![0f32; dim];
        for (number, &id) in bag.iter().enumerate() {
            let mut stored = vec![0; encoding.row_bytes(dim).unwrap()];
            encoding.encode(&row(id as u64, dim), &mut stored);
            let mut decoded = vec![0f32; dim];
            encoding.decode(&stored, &mut decoded);
            let weight = weights.map(|weights| weights[position]);
            position += 1;
            for (sum, x) in sum.iter_mut().zip(decoded) {
                *sum = match (mode, weight) {
                    (Pooling::Max, _) if number > 0 => sum.max(x),
                    (Pooling::Max, _) => x,
                    (_, Some(weight)) => weight.mul_add(x, *sum),
                    (_, None) => *sum + x,
                };
            }
        }
        if mode == Pooling::Mean && !bag.is_empty() {
            sum.iter_mut().for_each(|x| *x /= bag.len() as f32);
        }
        expected.extend(sum);
    }
    expected
}

impl Random {
    /// Bags of skewed ids, some empty, some long.
    fn bags(&mut self, count: usize, rows: u64) -> Vec<Vec<i64>> {
        (0..count)
            .map(|_| {
                let len = match self.below(10) {
                    0 => 0,
                    1 => 300,
                    _ => 1 + self.below(20),
                };
                (0..len)
                    .map(|_| match self.below(2) {
                        0 => self.below(rows.min(50)) as i64,
                        _ => self.below(rows) as i64,
                    })
                    .collect()
            })
            .collect()
    }
}

fn flat(bags: &[Vec<i64>]) -> (Vec<i64>, Vec<i64>) {
    let mut offsets = Vec::new();
    let mut ids = Vec::new();
    for bag in bags {
        offsets.push(ids.len() as i64);
        ids.extend(bag);
    }
    (ids, offsets)
}

fn feature<'a>(
    table: usize,
    (ids, offsets): &'a (Vec<i64>, Vec<i64>),
    mode: Pooling,
) -> Feature<'a> {
    Feature {
        table,
        ids: Ids::I64(ids),
        bags: Bags::Offsets(Ids::I64(offsets)),
        mode,
        weights: None,
        padding: None,
    }
}

fn try_look_up(
    set: &TableSet,
    table: usize,
    bags: &[Vec<i64>],
    weights: Option<&[f32]>,
    mode: Pooling,
) -> (Vec<f32>, Vec<Failure>) {
    let flat = flat(bags);
    let dim = set.table(table).dim();
    let mut found = vec![f32::NAN; bags.len() * dim];
    let feature = Feature {
        weights,
        ..feature(table, &flat, mode)
    };
    let out = Out::of_f32(&mut found, bags.len(), dim).unwrap();
    let failed = set.look_up(&[feature], &mut [out], &mut || true).unwrap();
    (found, failed)
}

fn look_up(
    set: &TableSet,
    table: usize,
    bags: &[Vec<i64>],
    weights: Option<&[f32]>,
    mode: Pooling,
) -> Vec<f32> {
    let (found, failed) = try_look_up(set, table, bags, weights, mode);
    assert!(failed.is_empty(), "{failed:?}");
    found
}

const ENCODINGS: [RowEncoding; 8] = [
    RowEncoding::F32,
    RowEncoding::F16,
    RowEncoding::BF16,
    RowEncoding::F8E4M3,
    RowEncoding::F8E5M2,
    RowEncoding::I8(ScaleBias::First),
    RowEncoding::I8(ScaleBias::LastF32),
    RowEncoding::I4(ScaleBias::Last),
];

#[test]
fn packed_tables_of_every_encoding_give_the_bits_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    for (encoding, dim) in ENCODINGS.into_iter().zip([32, 7, 64, 100, 33, 32, 5, 1024]) {
        let dim = if encoding.row_bytes(dim).is_some() {
            dim
        } else {
            dim + 1
        };
        let path = folder.path().join("table");
        write_rows(&session, &path, 700, dim, encoding);
        let set = TableSet::new(&session, vec![open(&session, &path)], Serving::default()).unwrap();
        let mut random = Random(dim as u64);
        for mode in [Pooling::Sum, Pooling::Mean, Pooling::Max] {
            for _ in 0..2 {
                let bags = random.bags(40, 700);
                let expected = model(encoding, dim, &bags, None, mode);
                assert_eq!(
                    bits(&look_up(&set, 0, &bags, None, mode)),
                    bits(&expected),
                    "{encoding} {mode:?}"
                );
            }
        }
        let bags = random.bags(40, 700);
        let weights: Vec<f32> = (0..flat(&bags).0.len())
            .map(|at| at as f32 / 7.0 - 3.0)
            .collect();
        let expected = model(encoding, dim, &bags, Some(&weights), Pooling::Sum);
        let found = look_up(&set, 0, &bags, Some(&weights), Pooling::Sum);
        assert_eq!(bits(&found), bits(&expected), "{encoding}");
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_not_mixed_with_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = |name: &str| folder.path().join(name);
    let (at, done) = (path("table"), AtomicBool::new(false));
    write_safetensors(&at, "rows", 0..50, 8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                match number % 3 {
                    0 => write_npy(&path("next"), 100, 4),
                    1 => write_rows(&session, &path("next"), 70, 6, RowEncoding::F32),
                    _ => write_safetensors(&path("next"), "rows", 0..50, 8),
                }
                std::fs::rename(path("next"), &at).unwrap();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut opened = 0;
        for _ in 0..2000 {
            match Table::open(&session, std::slice::from_ref(&at), &Opening::default()) {
                Ok(table) => {
                    let (rows, dim) = (table.rows(), table.dim());
                    assert!([(100, 4), (70, 6), (50, 8)].contains(&(rows, dim)));
                    let set = TableSet::new(&session, vec![table], Serving::default()).unwrap();
                    let mut stored = vec![0; 4 * dim];
                    let last = [rows - 1];
                    set.read_stored(0, &last, &mut stored, &mut || true)
                        .unwrap();
                    let expected: Vec<u8> = row(rows - 1, dim)
                        .iter()
                        .flat_map(|x| x.to_le_bytes())
                        .collect();
                    assert_eq!(stored, expected);
                    opened += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("table"), "{text}");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(opened > 0);
    });
}

#[test]
fn the_ids_of_a_call_are_a_part_of_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table.npy");
    write_npy(&path, 100, 4);
    let set = TableSet::new(&session, vec![open(&session, &path)], Serving::default()).unwrap();
    let free = session.memory_free();
    let sum = |ids: usize| {
        let flat = (vec![7; ids], vec![0]);
        let mut found = vec![0.0; 4];
        let out = Out::of_f32(&mut found, 1, 4).unwrap();
        let failed = set.look_up(&[feature(0, &flat, Pooling::Max)], &mut [out], &mut || true)?;
        assert!(failed.is_empty());
        Ok::<_, Error>(found)
    };
    assert_eq!(sum(1_000_000).unwrap(), row(7, 4));
    match sum(3_000_000) {
        Err(Error::OverBudget { what, needed, .. }) => {
            assert_eq!((what.as_str(), needed), ("the ids of a call", 24_000_016));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.memory_free(), free);
}

#[test]
fn any_cache_and_any_window_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let (rows, dim) = (20_000, 32);
    let path = folder.path().join("table.npy");
    write_npy(&path, rows, dim);
    let bags = Random(1).bags(500, rows);
    let expected = bits(&model(RowEncoding::F32, dim, &bags, None, Pooling::Sum));
    for policy in PolicyKind::ALL {
        for cache_bytes in [0, 20_000, 200_000, 6 << 20] {
            let serving = Serving {
                cache_bytes: Some(cache_bytes),
                policy,
                reading_bytes: Some(1 << 20),
                readers: 2,
            };
            let set = TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
            for _ in 0..3 {
                assert_eq!(
                    bits(&look_up(&set, 0, &bags, None, Pooling::Sum)),
                    expected,
                    "{policy} {cache_bytes}"
                );
            }
            let known = set.statistics(0);
            assert_eq!(known.looked_up, 3 * flat(&bags).0.len() as u64);
            match cache_bytes {
                0 => assert_eq!((known.hits, known.cache_rows), (0, 0)),
                6_291_456 => {
                    let (mut distinct, _) = flat(&bags);
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(known.units_read, distinct.len() as u64);
                    assert!(3 * known.hits >= 2 * known.looked_up);
                }
                _ => assert!(known.cached_rows <= known.cache_rows),
            }
        }
    }
}

#[test]
fn shards_are_one_table_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let dim = 24;
    let paths: Vec<PathBuf> = [(0, 900), (900, 901), (901, 2000)]
        .into_iter()
        .enumerate()
        .map(|(number, (first, end))| {
            let path = folder
                .path()
                .join(format!("part-{}.safetensors", 9 + number));
            write_safetensors(&path, &format!("shard.{number}"), first..end, dim);
            path
        })
        .collect();
    let index = folder.path().join("model.safetensors.index.json");
    let opened = |paths: &[PathBuf], tensor: Option<&str>| {
        let opening = Opening {
            tensor: tensor.map(str::to_owned),
            ..Opening::default()
        };
        Table::open(&session, paths, &opening)
    };
    let mut tables = vec![
        opened(&paths, None).unwrap(),
        opened(&[folder.path().to_owned()], None).unwrap(),
        opened(&paths, Some("shard.*")).unwrap(),
    ];
    std::fs::write(
        &index,
        r#"{"weight_map": {"shard.1": "part-10.safetensors", "shard.0": "part-9.safetensors", "shard.2": "part-11.safetensors", "bias": "part-9.safetensors"}}"#,
    )
    .unwrap();
    tables.push(opened(&[folder.path().to_owned()], None).unwrap());
    tables.push(opened(&[index], Some("shard.*")).unwrap());
    let bags = Random(2).bags(100, 2000);
    let expected = bits(&model(RowEncoding::F32, dim, &bags, None, Pooling::Sum));
    for table in tables {
        assert_eq!(
            (table.rows(), table.dim(), table.is_packed()),
            (2000, dim, false)
        );
        let set = TableSet::new(&session, vec![table], Serving::default()).unwrap();
        assert_eq!(bits(&look_up(&set, 0, &bags, None, Pooling::Sum)), expected);
    }
    let error = |found: outcore_core::Result<Table>| found.err().unwrap().to_string();
    let several = folder.path().join("several.index.json");
    write_safetensors(&folder.path().join("users"), "user.0", 0..10, dim);
    std::fs::write(
        &several,
        r#"{"weight_map": {"shard.0": "part-9.safetensors", "user.0": "users"}}"#,
    )
    .unwrap();
    assert!(error(opened(&[several], None)).contains("several tables"));
    assert!(error(opened(&paths, Some("shard"))).contains("no tensor 'shard'"));
    assert!(error(opened(&paths[..1], Some("bias"))).contains("not of shape [3]"));
    let len = std::fs::metadata(&paths[2]).unwrap().len();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&paths[2])
        .unwrap()
        .set_len(len - 1)
        .unwrap();
    assert!(error(opened(&paths, None)).contains("part-11.safetensors: truncated"));
}

#[test]
fn several_features_and_tables_in_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let tables: Vec<Table> = (0..40)
        .map(|number| {
            let path = folder.path().join(format!("{number}"));
            let dim = 4 + number;
            write_rows(&session, &path, 300, dim, RowEncoding::F32);
            open(&session, &path)
        })
        .collect();
    let set = TableSet::new(&session, tables, Serving::default()).unwrap();
    let mut random = Random(3);
    let asked: Vec<(usize, Vec<Vec<i64>>)> = (0..60)
        .map(|number| (number * 7 % 40, random.bags(16, 300)))
        .collect();
    let flats: Vec<(Vec<i64>, Vec<i64>)> = asked.iter().map(|(_, bags)| flat(bags)).collect();
    let pitch: usize = asked.iter().map(|(table, _)| 4 + table).sum();
    // All results side by side: 16 rows of all features.
    let mut concatenated = vec![0f32; 16 * pitch];
    let mut starts = Vec::new();
    let mut sum = 0;
    for (table, _) in &asked {
        starts.push(sum);
        sum += 4 + table;
    }
    for (number, (table, bags)) in asked.iter().enumerate() {
        let feature = feature(*table, &flats[number], Pooling::Mean);
        let part = &mut concatenated[starts[number]..];
        let out = Out::new(
            bytemuck::cast_slice_mut(part),
            DType::F32,
            4 * pitch,
            16,
            4 + table,
        )
        .unwrap();
        assert!(
            set.look_up(&[feature], &mut [out], &mut || true)
                .unwrap()
                .is_empty()
        );
        let expected = model(RowEncoding::F32, 4 + table, bags, None, Pooling::Mean);
        for bag in 0..16 {
            let found = &concatenated[bag * pitch + starts[number]..][..4 + table];
            assert_eq!(found, &expected[bag * (4 + table)..][..4 + table]);
        }
    }
    let features: Vec<Feature<'_>> = asked
        .iter()
        .zip(&flats)
        .map(|((table, _), flat)| feature(*table, flat, Pooling::Mean))
        .collect();
    let mut results: Vec<Vec<f32>> = asked
        .iter()
        .map(|(table, _)| vec![0.0; 16 * (4 + table)])
        .collect();
    let mut outs: Vec<Out<'_>> = results
        .iter_mut()
        .zip(&asked)
        .map(|(result, (table, _))| Out::of_f32(result, 16, 4 + table).unwrap())
        .collect();
    assert!(
        set.look_up(&features, &mut outs, &mut || true)
            .unwrap()
            .is_empty()
    );
    for ((table, bags), result) in asked.iter().zip(&results) {
        assert_eq!(
            bits(result),
            bits(&model(
                RowEncoding::F32,
                4 + table,
                bags,
                None,
                Pooling::Mean
            ))
        );
    }

    let tables: Vec<usize> = asked.iter().map(|(table, _)| *table).collect();
    let all = || asked.iter().flat_map(|(_, bags)| bags);
    let ids: Vec<i64> = all().flatten().copied().collect();
    let lengths: Vec<i64> = all().map(|bag| bag.len() as i64).collect();
    let batch = JaggedBatch {
        tables: &tables,
        ids: Ids::I64(&ids),
        lengths: Ids::I64(&lengths),
        mode: Pooling::Mean,
        weights: None,
    };
    concatenated.fill(0.0);
    let bytes = bytemuck::cast_slice_mut(&mut concatenated);
    let out = Out::new(bytes, DType::F32, 4 * pitch, 16, pitch).unwrap();
    let failed = set.look_up(&batch.features().unwrap(), &mut [out], &mut || true);
    assert!(failed.unwrap().is_empty());
    for (result, (start, table)) in results.iter().zip(starts.iter().zip(&tables)) {
        let dim = 4 + table;
        for (bag, expected) in result.chunks_exact(dim).enumerate() {
            let found = &concatenated[bag * pitch + start..][..dim];
            assert_eq!(bits(found), bits(expected));
        }
    }
    for (rows, columns) in [(15, pitch), (16, pitch - 1)] {
        let bytes = bytemuck::cast_slice_mut(&mut concatenated);
        let out = Out::new(bytes, DType::F32, 4 * pitch, rows, columns).unwrap();
        let refused = set.look_up(&batch.features().unwrap(), &mut [out], &mut || true);
        assert!(matches!(refused, Err(Error::Shape { .. })));
    }
}

#[test]
fn what_makes_no_batch_is_refused() {
    let batch = JaggedBatch {
        tables: &[0, 1],
        ids: Ids::I32(&[1, 2, 3]),
        lengths: Ids::I32(&[1, 2]),
        mode: Pooling::Sum,
        weights: Some(&[1.0; 3]),
    };
    assert_eq!(batch.features().unwrap()[1].weights.unwrap().len(), 2);
    for lengths in [&[1, 1][..], &[1, 2, 0], &[2, 2], &[4, -1], &[i32::MAX; 2]] {
        let lengths = Ids::I32(lengths);
        assert!(JaggedBatch { lengths, ..batch }.features().is_err());
    }
    let weights = Some(&[1.0; 2][..]);
    assert!(JaggedBatch { weights, ..batch }.features().is_err());
    assert!(
        JaggedBatch {
            tables: &[],
            ..batch
        }
        .features()
        .is_err()
    );
}

#[test]
fn a_page_that_many_threads_need_is_read_by_few() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table");
    let dim = 32;
    write_rows(&session, &path, 60_000, dim, RowEncoding::F32);
    let serving = Serving {
        cache_bytes: Some(6 << 20),
        readers: 3,
        ..Serving::default()
    };
    let served = || TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
    let bags: Vec<Vec<i64>> = (0..400)
        .map(|bag| (0..50).map(|at| (bag * 37 + at * 151) % 20_000).collect())
        .collect();
    let expected = bits(&model(RowEncoding::F32, dim, &bags, None, Pooling::Sum));
    let alone = served();
    look_up(&alone, 0, &bags, None, Pooling::Sum);
    let of_one = alone.statistics(0).units_read;
    drop(alone);
    let set = served();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(bits(&look_up(&set, 0, &bags, None, Pooling::Sum)), expected);
                }
            });
        }
    });
    let of_six = set.statistics(0).units_read;
    assert!(
        of_six < 2 * of_one,
        "{of_six} units by six threads, {of_one} by one"
    );
}

#[test]
fn a_page_is_read_once_a_call_however_many_windows_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table");
    let (dim, rows) = (8, 20_000);
    write_rows(&session, &path, rows, dim, RowEncoding::F32);
    let bags = Random(5).bags(60, rows);
    let expected = bits(&model(RowEncoding::F32, dim, &bags, None, Pooling::Sum));
    let pages: HashSet<i64> = bags.iter().flatten().map(|row| row / 127).collect();
    for (cache_bytes, is_prefetched) in [(0, false), (100_000, false), (4 << 20, true)] {
        let serving = Serving {
            cache_bytes: Some(cache_bytes),
            reading_bytes: Some(8 << 20),
            ..Serving::default()
        };
        let set = TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
        if is_prefetched {
            let ids: Vec<i64> = bags.concat();
            let feature = Feature {
                table: 0,
                ids: Ids::I64(&ids),
                bags: Bags::Each,
                mode: Pooling::Sum,
                weights: None,
                padding: None,
            };
            set.load(&[feature], &mut || true).unwrap();
        }
        let found = look_up(&set, 0, &bags, None, Pooling::Sum);
        assert_eq!(bits(&found), expected);
        assert_eq!(set.statistics(0).units_read, pages.len() as u64);
    }
}

#[test]
fn a_page_that_cannot_be_read_fails_the_bags_that_need_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    let dim = 32;
    let good = session(folder.path());
    write_rows(&good, &path, 5000, dim, RowEncoding::F32);
    // A flipped bit in page 7: rows 217 to 247.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 * 8 + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let session = session(folder.path());
    let table = open(&session, &path);
    let set = TableSet::new(&session, vec![table], Serving::default()).unwrap();
    let bags: Vec<Vec<i64>> = vec![
        vec![1, 2],
        vec![216, 217],
        vec![],
        vec![230, 4000],
        vec![248, 4999],
        vec![240; 3],
    ];
    for _ in 0..2 {
        let (found, failed) = try_look_up(&set, 0, &bags, None, Pooling::Sum);
        let mut which: Vec<usize> = failed.iter().map(|failure| failure.bag).collect();
        which.sort_unstable();
        assert_eq!(which, [1, 3, 5]);
        let text = failed[0].error.to_string();
        assert!(
            text.contains("row 217 of")
                && text.contains("checksum of page 7")
                && text.contains("table"),
            "{text}"
        );
        let expected = model(RowEncoding::F32, dim, &bags, None, Pooling::Sum);
        for bag in [0, 2, 4] {
            assert_eq!(found[bag * dim..][..dim], expected[bag * dim..][..dim]);
        }
        assert!(found[dim..2 * dim].iter().all(|x| x.is_nan()));
    }
}

#[test]
fn a_device_that_fails_at_any_read_is_told_by_row_table_and_file() {
    let folder = tempfile::tempdir().unwrap();
    let (dim, half) = (32, 10_000);
    let shards =
        ["table-1.safetensors", "table-2.safetensors"].map(|name| folder.path().join(name));
    for (shard, rows) in shards.iter().zip([0..half, half..2 * half]) {
        write_safetensors(shard, "weight", rows, dim);
    }
    let bags: Vec<Vec<i64>> = (0..20).map(|bag| vec![bag * 997, bag * 31]).collect();
    let expected = model(RowEncoding::F32, dim, &bags, None, Pooling::Sum);
    let mut failures = 0;
    for rate in [0.1, 0.5, 1.0] {
        let wrap = WrapDevice::new(move |device: Arc<dyn Device>| -> Arc<dyn Device> {
            Faulty::new(
                device,
                Faults {
                    seed: 5,
                    read_error: rate,
                    ..Faults::default()
                },
            )
        });
        let good = session(folder.path());
        let session = session_with(folder.path(), wrap);
        let opening = Opening {
            tensor: Some("weight".into()),
            ..Opening::default()
        };
        let Ok(table) = Table::open(&session, &shards, &opening) else {
            continue;
        };
        drop(good);
        let set = TableSet::new(&session, vec![table], Serving::default()).unwrap();
        let (found, failed) = try_look_up(&set, 0, &bags, None, Pooling::Sum);
        for bag in 0..bags.len() {
            match failed.iter().find(|failure| failure.bag == bag) {
                Some(failure) => {
                    let text = failure.error.to_string();
                    let row = bags[bag]
                        .iter()
                        .find(|row| text.contains(&format!("row {row} of")));
                    let row = row.unwrap_or_else(|| panic!("{text}"));
                    let shard = 1 + usize::from(*row >= half as i64);
                    assert!(
                        text.contains("table-1") && text.contains(&format!("table-{shard}")),
                        "{text}"
                    );
                    failures += 1;
                }
                None => assert_eq!(found[bag * dim..][..dim], expected[bag * dim..][..dim]),
            }
        }
    }
    assert!(failures > 0);
}

#[test]
fn rows_that_are_announced_are_there_and_leave_when_they_are_over() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table.npy");
    let dim = 16;
    write_npy(&path, 30_000, dim);
    let serving = Serving {
        cache_bytes: Some(300_000),
        ..Serving::default()
    };
    let set = TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
    let batch = |number: i64| -> Vec<Vec<i64>> {
        (0..20)
            .map(|bag| {
                (0..30)
                    .map(|at| (number * 6151 + bag * 331 + at * 97) % 30_000)
                    .collect()
            })
            .collect()
    };
    let mut times = std::collections::VecDeque::new();
    for number in 0..12 {
        let (ids, offsets) = flat(&batch(number));
        let feature = Feature {
            table: 0,
            ids: Ids::I64(&ids),
            bags: Bags::Offsets(Ids::I64(&offsets)),
            mode: Pooling::Sum,
            weights: None,
            padding: None,
        };
        times.push_back((number, set.prefetch(&[feature], &mut || true).unwrap()));
        if times.len() < 2 {
            continue;
        }
        let (earlier, time) = times.pop_front().unwrap();
        let bags = batch(earlier);
        let (ids, offsets) = flat(&bags);
        let feature = Feature {
            ids: Ids::I64(&ids),
            bags: Bags::Offsets(Ids::I64(&offsets)),
            ..feature
        };
        let mut found = vec![0f32; bags.len() * dim];
        let before = set.statistics(0);
        let out = Out::of_f32(&mut found, bags.len(), dim).unwrap();
        assert!(
            set.look_up_at(&[feature], &mut [out], Some(time), &mut || true)
                .unwrap()
                .is_empty()
        );
        let after = set.statistics(0);
        assert_eq!(
            bits(&found),
            bits(&model(RowEncoding::F32, dim, &bags, None, Pooling::Sum))
        );
        assert_eq!(
            after.hits - before.hits,
            600,
            "batch {earlier} was announced"
        );
        assert_eq!(after.units_read, before.units_read);
    }
}

#[test]
fn hot_rows_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table.npy");
    write_npy(&path, 30_000, 16);
    let serving = Serving {
        cache_bytes: Some(100_000),
        ..Serving::default()
    };
    let set = TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
    let hot: Vec<u64> = (0..100).map(|number| number * 211).collect();
    assert_eq!(set.keep(0, &hot, &mut || true).unwrap(), 100);
    let cold: Vec<Vec<i64>> = (0..3000).map(|bag| vec![bag * 7 + 1]).collect();
    look_up(&set, 0, &cold, None, Pooling::Sum);
    let before = set.statistics(0).units_read;
    let bags: Vec<Vec<i64>> = hot.iter().map(|&row| vec![row as i64]).collect();
    let found = look_up(&set, 0, &bags, None, Pooling::Sum);
    assert_eq!(set.statistics(0).units_read, before);
    assert_eq!(
        bits(&found),
        bits(&model(RowEncoding::F32, 16, &bags, None, Pooling::Sum))
    );
}

#[test]
fn rows_lie_where_the_placement_says() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table");
    let (rows, dim) = (1000u64, 48);
    let slots: Vec<u32> = (0..rows as u32).map(|row| row * 389 % 1000).collect();
    let mut by_slot = vec![0u64; rows as usize];
    slots
        .iter()
        .enumerate()
        .for_each(|(row, &slot)| by_slot[slot as usize] = row as u64);
    let mut writer =
        TableWriter::create(&session, &path, rows, dim, RowEncoding::F16, Some(slots)).unwrap();
    by_slot
        .iter()
        .for_each(|&number| writer.write(&row(number, dim)).unwrap());
    writer.finish().unwrap();
    let set = TableSet::new(&session, vec![open(&session, &path)], Serving::default()).unwrap();
    let bags = Random(9).bags(100, rows);
    assert_eq!(
        bits(&look_up(&set, 0, &bags, None, Pooling::Sum)),
        bits(&model(RowEncoding::F16, dim, &bags, None, Pooling::Sum))
    );
}

#[test]
fn a_placement_that_is_written_is_a_part_of_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    // Of 16 MiB.
    let session = session(folder.path());
    let path = folder.path().join("table");
    let in_order = |rows: u32| Some((0..rows).collect());
    let is_refused = |writer: outcore_core::Result<TableWriter>| {
        let error = writer.err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::OverBudget { .. }), "{text}");
        assert!(
            text.contains("the placement of") && text.contains("table"),
            "{text}"
        );
        assert!(!path.exists());
    };
    let encoding = RowEncoding::I8(ScaleBias::First);
    is_refused(TableWriter::create(
        &session,
        &path,
        5_000_000,
        4,
        encoding,
        in_order(5_000_000),
    ));
    // Two rows a page, and six million slots for replicas.
    let placement = Placement::of_slots(2, vec![0, 1], (0..3_000_000).map(|_| vec![1])).unwrap();
    is_refused(TableWriter::create_placed(
        &session,
        &path,
        500,
        RowEncoding::F32,
        placement,
    ));

    let free = session.memory_free();
    let writer =
        TableWriter::create(&session, &path, 2_000_000, 4, encoding, in_order(2_000_000)).unwrap();
    assert!(session.memory_free() + 8_000_000 <= free);
    drop(writer);
    assert_eq!(session.memory_free(), free);
}

/// Bags of five rows of one of 100 groups of eight: rows next to each other, or as far apart as can be.
fn bags_of_groups(random: &mut Random, count: usize) -> Vec<Vec<i64>> {
    let bag = |_| {
        let (is_near, group) = (random.below(2) == 0, random.below(100));
        let mut rows: Vec<u64> = (0..8).collect();
        (0..5)
            .map(|_| rows.swap_remove(random.below(rows.len() as u64) as usize))
            .map(|number| match is_near {
                true => 8 * group + number,
                false => group + 100 * number,
            } as i64)
            .collect()
    };
    (0..count).map(bag).collect()
}

/// A placement for 800 rows of 512 bytes: 7 a page.
fn placed(random: &mut Random, ratio: f64) -> Placement {
    let log = bags_of_groups(random, 4000);
    let log = log.iter().map(|bag| bag.iter().map(|&row| row as u64));
    let log = Queries::new(800, log).unwrap();
    let placement = Placement::by_co_appearance(&log, 7, 2).unwrap();
    placement.with_replicas(&log, ratio, 2).unwrap()
}

fn write_placed(session: &Session, path: &Path, placement: &Placement) {
    let mut by_slot: Vec<u32> = vec![0; placement.slot_of_row().len()];
    for (row, &slot) in (0..).zip(placement.slot_of_row()) {
        by_slot[slot as usize] = row;
    }
    let encoding = RowEncoding::F32;
    let mut writer =
        TableWriter::create_placed(session, path, 128, encoding, placement.clone()).unwrap();
    for &number in placement.replicas().flatten() {
        by_slot.push(number);
    }
    for number in by_slot {
        writer.write(&row(u64::from(number), 128)).unwrap();
    }
    assert!(writer.write(&[0.0; 128]).is_err());
    writer.finish().unwrap();
}

#[test]
fn replicas_save_pages_and_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let mut random = Random(4);
    let all: Vec<u64> = (0..800).collect();
    let mut pages = Vec::new();
    for ratio in [0.0, 0.5, 1.0] {
        let path = folder.path().join(format!("replicas-{ratio}"));
        let placement = placed(&mut Random(3), ratio);
        assert_eq!(placement.replicas().count() > 0, ratio > 0.0);
        write_placed(&session, &path, &placement);
        for cache_bytes in [0, 100 << 10] {
            let serving = Serving {
                cache_bytes: Some(cache_bytes),
                ..Serving::default()
            };
            let tables = vec![open(&session, &path), open(&session, &path)];
            let set = TableSet::new(&session, tables, serving).unwrap();
            // One request a bag, and then many bags in one.
            let bags = bags_of_groups(&mut Random(5), 200);
            for bag in bags.chunks(1) {
                assert_eq!(
                    bits(&look_up(&set, 0, bag, None, Pooling::Sum)),
                    bits(&model(RowEncoding::F32, 128, bag, None, Pooling::Sum))
                );
            }
            let units_read = set.statistics(0).units_read;
            if cache_bytes == 0 {
                let log = bags.iter().map(|bag| bag.iter().map(|&row| row as u64));
                let touched = placement.pages_touched(&Queries::new(800, log).unwrap());
                assert_eq!(units_read, touched.pages);
                pages.push(units_read);
            }
            let bags = random.bags(200, 800);
            assert_eq!(
                bits(&look_up(&set, 1, &bags, None, Pooling::Mean)),
                bits(&model(RowEncoding::F32, 128, &bags, None, Pooling::Mean))
            );
            set.keep(1, &all[..100], &mut || true).unwrap();
            let mut stored = vec![0; 800 * 512];
            set.read_stored(1, &all, &mut stored, &mut || true).unwrap();
            let expected = all.iter().flat_map(|&number| row(number, 128));
            assert!(expected.flat_map(f32::to_le_bytes).eq(stored));
        }
    }
    assert!(
        pages[1] < pages[0] * 9 / 10 && pages[2] < pages[1],
        "{pages:?}"
    );
}

#[test]
fn replicas_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table");
    let placement = placed(&mut Random(3), 0.5);
    let other =
        TableWriter::create_placed(&session, &path, 64, RowEncoding::F32, placement.clone());
    let text = other.err().unwrap().to_string();
    assert!(
        text.contains("pages of 7 rows, where a page has 15"),
        "{text}"
    );
    let mut few =
        TableWriter::create_placed(&session, &path, 128, RowEncoding::F32, placement.clone())
            .unwrap();
    (0..800).for_each(|number| few.write(&row(number, 128)).unwrap());
    let text = few.finish().unwrap_err().to_string();
    assert!(text.contains("800 of "), "{text}");

    // Which row a slot has, damaged.
    write_placed(&session, &path, &placement);
    let mut bad = std::fs::read(&path).unwrap();
    let at = bad.len() - 5;
    bad[at] ^= 1;
    std::fs::write(&path, bad).unwrap();
    let damaged = Table::open(&session, std::slice::from_ref(&path), &Opening::default());
    let text = damaged.err().unwrap().to_string();
    assert!(text.contains("the placement of rows"), "{text}");
}

#[test]
fn rows_of_damaged_pages_of_replicas_are_read_from_their_own_pages() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table");
    let placement = placed(&mut Random(3), 0.5);
    write_placed(&session, &path, &placement);
    let bags = bags_of_groups(&mut Random(5), 50);
    let expected = model(RowEncoding::F32, 128, &bags, None, Pooling::Sum);
    let served = |cache_bytes| {
        let serving = Serving {
            cache_bytes: Some(cache_bytes),
            ..Serving::default()
        };
        TableSet::new(&session, vec![open(&session, &path)], serving).unwrap()
    };
    look_up(&served(0), 0, &bags, None, Pooling::Sum);

    // A flipped bit in every page of replicas.
    let mut stored = std::fs::read(&path).unwrap();
    let (own, of_replicas) = (
        placement.home_page_count() as usize,
        placement.replicas().count(),
    );
    let pages = stored[4096..].chunks_mut(4096);
    pages
        .skip(own)
        .take(of_replicas)
        .for_each(|page| page[0] ^= 1);
    std::fs::write(&path, &stored).unwrap();
    for cache_bytes in [0, 100 << 10] {
        let set = served(cache_bytes);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let found = look_up(&set, 0, &bags, None, Pooling::Sum);
                        assert_eq!(bits(&found), bits(&expected));
                    }
                });
            }
        });
        assert!(set.statistics(0).replicas_lost > 0);
    }

    // And one in the own page of a row that has a replica.
    let page_of = |row: u32| placement.slot_of_row()[row as usize] / 7;
    let replicas: Vec<u32> = placement.replicas().flatten().copied().collect();
    let mut asked = bags.iter().flatten().map(|&row| row as u32);
    let damaged = page_of(asked.find(|row| replicas.contains(row)).unwrap());
    stored[4096 * (1 + damaged as usize)] ^= 1;
    std::fs::write(&path, &stored).unwrap();
    let (found, failures) = try_look_up(&served(0), 0, &bags, None, Pooling::Sum);
    assert!(!failures.is_empty());
    for (number, bag) in bags.iter().enumerate() {
        let lost = bag.iter().find(|&&row| page_of(row as u32) == damaged);
        let failure = failures.iter().find(|failure| failure.bag == number);
        assert_eq!(failure.is_some(), lost.is_some(), "bag {number}");
        match failure.zip(lost) {
            None => {
                let range = number * 128..(number + 1) * 128;
                assert_eq!(bits(&found[range.clone()]), bits(&expected[range]));
            }
            Some((failure, row)) => {
                let text = failure.error.to_string();
                let file = path.display().to_string();
                let page = format!("the checksum of page {damaged} ");
                let row = format!("row {row} of {file}");
                assert!(
                    text.starts_with(&file) && text.contains(&page) && text.contains(&row),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn memory_is_reserved_when_tables_are_served_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table.npy");
    write_npy(&path, 1000, 16);
    let free = session.memory_free();
    let serving = Serving {
        cache_bytes: Some(4 << 20),
        reading_bytes: Some(2 << 20),
        ..Serving::default()
    };
    let set = TableSet::new(&session, vec![open(&session, &path)], serving).unwrap();
    assert_eq!(free - session.memory_free(), 6 << 20);
    let too_much = Serving {
        cache_bytes: Some(14 << 20),
        ..serving
    };
    let refused = TableSet::new(&session, vec![open(&session, &path)], too_much);
    assert!(matches!(refused.err(), Some(Error::OverBudget { .. })));
    look_up(&set, 0, &Random(1).bags(200, 1000), None, Pooling::Sum);
    drop(set);
    for _ in 0..100 {
        if session.memory_free() == free {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(session.memory_free(), free);
}

#[test]
fn memory_goes_to_the_table_where_it_saves_most() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let dim = 64;
    let tables: Vec<Table> = ["useless", "useful"]
        .map(|name| {
            let path = folder.path().join(format!("{name}.npy"));
            write_npy(&path, 60_000, dim);
            open(&session, &path)
        })
        .into();
    let serving = Serving {
        cache_bytes: Some(8 << 20),
        ..Serving::default()
    };
    let set = TableSet::new(&session, tables, serving).unwrap();
    let slots = |table| set.statistics(table).cache_rows;
    assert_eq!(slots(0), slots(1));
    let mut random = Random(8);
    // Ids of one table never come again soon, those of the other are among 20,000.
    let mut next = 0;
    let mut early = set.statistics(1);
    for step in 0..600 {
        if step == 400 {
            early = set.statistics(1);
        }
        let once: Vec<i64> = (0..1000)
            .map(|_| {
                next = (next + 1) % 60_000;
                next
            })
            .collect();
        let often: Vec<i64> = (0..1000).map(|_| random.below(20_000) as i64).collect();
        let mut results = [vec![0f32; 1000 * dim], vec![0f32; 1000 * dim]];
        let [one, other] = &mut results;
        let outs = &mut [
            Out::of_f32(one, 1000, dim).unwrap(),
            Out::of_f32(other, 1000, dim).unwrap(),
        ];
        let feature = |table, ids| Feature {
            table,
            ids: Ids::I64(ids),
            bags: Bags::Each,
            mode: Pooling::Sum,
            weights: None,
            padding: None,
        };
        set.look_up(&[feature(0, &once), feature(1, &often)], outs, &mut || true)
            .unwrap();
        assert_eq!(results[1][..dim], row(often[0] as u64, dim));
        assert_eq!(results[0][999 * dim..], row(once[999] as u64, dim));
    }
    assert!(2 * slots(1) > 3 * slots(0), "{} and {}", slots(1), slots(0));
    let late = set.statistics(1);
    let (hits, looked_up) = (late.hits - early.hits, late.looked_up - early.looked_up);
    assert!(
        hits as f64 > 0.85 * looked_up as f64,
        "{hits} of {looked_up}"
    );
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let path = folder.path().join("table.npy");
    write_npy(&path, 10, 4);
    let set = TableSet::new(&session, vec![open(&session, &path)], Serving::default()).unwrap();
    let asked = flat(&[vec![1], vec![2, 3]]);
    let refused = |table: usize, rows: usize, dim: usize| {
        let mut found = vec![0f32; rows * dim];
        let out = Out::of_f32(&mut found, rows, dim).unwrap();
        let asked = feature(table, &asked, Pooling::Sum);
        set.look_up(&[asked], &mut [out], &mut || true).unwrap_err()
    };
    for (rows, dim) in [(1, 4), (3, 4), (2, 3), (2, 5), (0, 0)] {
        let error = refused(0, rows, dim);
        let text = error.to_string();
        assert!(matches!(error, Error::Shape { .. }), "{text}");
        assert!(
            text.contains("table.npy") && text.contains("2 bags of 4"),
            "{text}"
        );
    }
    let go_on = &mut || true;
    let mut stored = [0; 16];
    let errors = [
        refused(1, 2, 4),
        set.keep(1, &[0], go_on).unwrap_err(),
        set.keep(0, &[10], go_on).unwrap_err(),
        set.read_stored(1, &[0], &mut stored, go_on).unwrap_err(),
        set.read_stored(0, &[10], &mut stored, go_on).unwrap_err(),
        set.prefetch(&[feature(1, &asked, Pooling::Sum)], go_on)
            .unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Value { .. }), "{error}");
    }
    assert_eq!(set.statistics(0).units_read, 0);
}

#[test]
fn a_table_without_rows_has_empty_bags_only() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let (plain, packed) = (
        folder.path().join("plain.npy"),
        folder.path().join("packed"),
    );
    write_npy(&plain, 0, 4);
    write_rows(&session, &packed, 0, 4, RowEncoding::F16);
    for path in [plain, packed] {
        let set = TableSet::new(&session, vec![open(&session, &path)], Serving::default()).unwrap();
        let found = look_up(&set, 0, &[vec![], vec![]], None, Pooling::Mean);
        assert_eq!(found, [0.0; 8]);
        let asked = flat(&[vec![0]]);
        let mut row = [0.0; 4];
        let out = Out::of_f32(&mut row, 1, 4).unwrap();
        let refused = set.look_up(&[feature(0, &asked, Pooling::Sum)], &mut [out], &mut || {
            true
        });
        assert!(refused.unwrap_err().to_string().contains("has 0 rows"));
    }
}
