//! Sparse matrices on SSD against plain loops over all their numbers, within small budgets.

use std::path::PathBuf;

use outcore::linalg::{
    Csrmm, Scaling, csrcsc, csrmm, csrmm_into, gram_product, project, scaled,
    sparse_column_statistics, sparse_row_norms,
};
use outcore::pass::Rows;
use outcore::sparse::compress;
use outcore::{
    Array, Buf, Compressed, DType, Error, Norm, Operand, Order, Output, RealType, Session,
    Settings, Shared, Sparse, SparseBufs,
};
use proptest::prelude::*;

struct Fixture {
    folder: tempfile::TempDir,
    session: Session,
}

fn place(memory_bytes: u64) -> Fixture {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let scratch = Some(folder.path().join("scratch"));
    let session = Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads: 2,
        ..Settings::default()
    })
    .unwrap();
    Fixture { folder, session }
}

fn bytes<T: bytemuck::Pod>(values: &[T]) -> Shared {
    let from: &[u8] = bytemuck::cast_slice(values);
    let mut buf = Buf::anonymous(from.len().max(1)).unwrap();
    buf[..from.len()].copy_from_slice(from);
    let keep = buf.split_to(from.len());
    keep.freeze()
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed
        .wrapping_mul(2862933555777941757)
        .wrapping_add(3037000493);
    move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        state >> 33
    }
}

/// Small integers, so that sums are exact in any order.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut next = random(seed);
    (0..count).map(|_| (next() % 9) as f32 - 4.0).collect()
}

/// Compressed by rows, and the same with all its zeros.
struct Made {
    rows: usize,
    cols: usize,
    offsets: Vec<i64>,
    indices: Vec<i32>,
    values: Vec<f32>,
    dense: Vec<f32>,
}

/// Every fifth row is empty, and row 3 has as many entries as half of all.
fn made(rows: usize, cols: usize, per_row: usize, seed: u64) -> Made {
    let mut next = random(seed);
    let (mut offsets, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    let mut dense = vec![0.0; rows * cols];
    for row in 0..rows {
        let count = match row {
            _ if cols == 0 || row % 5 == 4 => 0,
            3 => rows * per_row / 2,
            _ => next() as usize % (2 * per_row + 1),
        };
        for _ in 0..count {
            let (col, value) = (next() as usize % cols, (next() % 9) as f32 - 4.0);
            dense[row * cols + col] += value;
            indices.push(col as i32);
            values.push(value);
        }
        offsets.push(indices.len() as i64);
    }
    Made {
        rows,
        cols,
        offsets,
        indices,
        values,
        dense,
    }
}

impl Made {
    /// The same places with one entry each, in order.
    fn canonical(&self) -> Made {
        let Made { rows, cols, .. } = *self;
        let (mut offsets, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        let mut dense = vec![0.0; rows * cols];
        for row in 0..rows {
            let mut places: Vec<i32> =
                self.indices[self.offsets[row] as usize..self.offsets[row + 1] as usize].to_vec();
            places.sort_unstable();
            places.dedup();
            for place in places {
                let value = ((row + 3 * place as usize) % 9) as f32 - 4.0;
                dense[row * cols + place as usize] = value;
                indices.push(place);
                values.push(value);
            }
            offsets.push(indices.len() as i64);
        }
        Made {
            rows,
            cols,
            offsets,
            indices,
            values,
            dense,
        }
    }

    fn in_memory(&self, session: &Session) -> Sparse {
        let shape = [self.rows as u64, self.cols as u64];
        let (offsets, indices) = (
            (DType::I64, bytes(&self.offsets)),
            (DType::I32, bytes(&self.indices)),
        );
        Sparse::in_memory(
            session,
            Compressed::Rows,
            shape,
            offsets,
            indices,
            Some((RealType::F32, bytes(&self.values))),
        )
        .unwrap()
    }
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self, made: &Made) -> Sparse {
        let stored = scaled(
            &self.session,
            &made.in_memory(&self.session),
            Scaling::default(),
            Some(self.path("a")),
        )
        .unwrap();
        stored.run().unwrap()
    }

    /// In tiles where these are smaller.
    fn tiled(&self, made: &Made) -> Sparse {
        let tiled = compress(
            &self.session,
            &made.in_memory(&self.session),
            Some(self.path("tiled")),
        )
        .unwrap()
        .run()
        .unwrap();
        tiled.unwrap_or_else(|| self.store(made))
    }

    fn dense(&self, name: &str, rows: usize, cols: usize, order: Order, values: &[f32]) -> Array {
        let array = Array::create(
            &self.session,
            self.path(name),
            DType::F32,
            &[rows as u64, cols as u64],
            order,
        )
        .unwrap();
        array.write(bytes(values)).unwrap().run().unwrap();
        array
    }
}

fn of(array: &Array) -> Vec<f32> {
    let found = array.read().unwrap().run().unwrap();
    if array.nbytes() == 0 {
        Vec::new()
    } else {
        bytemuck::cast_slice(&found[..array.nbytes() as usize]).to_vec()
    }
}

fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
    c
}

fn transposed(a: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols)
        .flat_map(|j| (0..rows).map(move |i| a[i * cols + j]))
        .collect()
}

fn order(by_rows: bool) -> Order {
    if by_rows { Order::Row } else { Order::Column }
}

fn operand(values: &[f32], rows: usize, cols: usize, by_rows: bool) -> Operand {
    let values = if by_rows {
        values.to_vec()
    } else {
        transposed(values, rows, cols)
    };
    let (row_stride, col_stride) = if by_rows {
        (cols as u64, 1)
    } else {
        (1, rows as u64)
    };
    Operand::Memory {
        bytes: bytes(&values),
        dtype: RealType::F32,
        rows: rows as u64,
        cols: cols as u64,
        row_stride,
        col_stride,
    }
}

#[derive(Clone, Copy, Debug)]
struct Shapes {
    rows: usize,
    cols: usize,
    per_row: usize,
    width: usize,
    memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    Memory,
    Arrays,
    Tiles,
}

fn check_products(
    Shapes {
        rows,
        cols,
        per_row,
        width,
        memory,
    }: Shapes,
    [b_rows, c_rows]: [bool; 2],
    lies: Lies,
    seed: u64,
) {
    let place = place(memory);
    let mut made = made(rows, cols, per_row, seed);
    if lies == Lies::Tiles {
        made = made.canonical();
    }
    let stored = lies != Lies::Memory;
    let a = match lies {
        Lies::Memory => made.in_memory(&place.session),
        Lies::Arrays => place.store(&made),
        Lies::Tiles => place.tiled(&made),
    };
    for turned in [false, true] {
        let (dense, m, n) = match turned {
            false => (made.dense.clone(), rows, cols),
            true => (transposed(&made.dense, rows, cols), cols, rows),
        };
        let a = if turned { a.t() } else { a.clone() };
        let b = numbers(n * width, seed + 1);
        let expected = product(&dense, &b, [m, n, width]);
        let b = match stored {
            true => place.dense("b.npy", n, width, order(b_rows), &b).into(),
            false => operand(&b, n, width, b_rows),
        };
        let c = csrmm(&place.session, &a, b.clone(), Csrmm::default())
            .unwrap()
            .run()
            .unwrap();
        assert_eq!(of(&c), expected, "A B, turned {turned}");

        let before = numbers(m * width, seed + 2);
        let c = place.dense("c.npy", m, width, order(c_rows), &before);
        let options = Csrmm {
            alpha: 2.0,
            beta: -3.0,
            out: Output::InPlace(c),
        };
        let c = csrmm(&place.session, &a, b.clone(), options)
            .unwrap()
            .run()
            .unwrap();
        let sums: Vec<f32> = expected
            .iter()
            .zip(&before)
            .map(|(ab, c)| 2.0 * ab - 3.0 * c)
            .collect();
        assert_eq!(of(&c), sums, "2 A B - 3 C, turned {turned}");

        let into = Buf::anonymous((m * width * 4).max(1))
            .unwrap()
            .split_to(m * width * 4);
        let found = csrmm_into(&place.session, &a, b.clone(), 0.5, into)
            .unwrap()
            .run()
            .unwrap();
        let halves: Vec<f32> = expected.iter().map(|value| 0.5 * value).collect();
        let found: Vec<f32> = if found.is_empty() {
            Vec::new()
        } else {
            bytemuck::cast_slice(&found).to_vec()
        };
        assert_eq!(found, halves, "into memory, turned {turned}");

        let gram = gram_product(&place.session, &a, b, Output::Scratch)
            .unwrap()
            .run()
            .unwrap();
        assert_eq!(
            of(&gram),
            product(&transposed(&dense, m, n), &expected, [n, m, width]),
            "A^T A B, turned {turned}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_every_shape(
        rows in 0usize..120, cols in 0usize..90, per_row in 0usize..6, width in 0usize..40,
        by_rows in any::<[bool; 2]>(), lies in prop_oneof![Just(Lies::Memory), Just(Lies::Arrays), Just(Lies::Tiles)],
        seed in 0u64..1000,
    ) {
        check_products(Shapes { rows, cols, per_row, width, memory: 8 << 20 }, by_rows, lies, seed);
    }
}

#[test]
fn products_whose_operands_do_not_fit_the_budget() {
    // B and C take 4 MB each, the long row 2.4 MB, the budget is 2 MiB.
    for (by_rows, lies) in [
        ([true; 2], Lies::Arrays),
        ([false, true], Lies::Arrays),
        ([true, false], Lies::Tiles),
    ] {
        check_products(
            Shapes {
                rows: 5_000,
                cols: 4_000,
                per_row: 60,
                width: 1,
                memory: 1 << 20,
            },
            by_rows,
            lies,
            5,
        );
    }
}

#[test]
fn wide_products_pass_by_in_bands() {
    let place = place(2 << 20);
    let made = made(700, 900, 5, 3);
    let a = place.store(&made);
    for turned in [false, true] {
        let (a, dense, m, n) = match turned {
            false => (a.clone(), made.dense.clone(), 700, 900),
            true => (a.t(), transposed(&made.dense, 700, 900), 900, 700),
        };
        let b = numbers(n * 1000, 4);
        // The other way, columns of B would be read in pieces of sectors.
        for by_rows in [true, false].into_iter().take(if turned { 1 } else { 2 }) {
            let operand = place.dense("b.npy", n, 1000, order(by_rows), &b);
            let job = csrmm(&place.session, &a, operand.into(), Csrmm::default()).unwrap();
            let predicted = job.explain()[0].clone();
            assert_eq!(of(&job.run().unwrap()), product(&dense, &b, [m, n, 1000]));
            assert!(predicted.predicted.peak_bytes <= 2 << 20, "{predicted}");
        }
    }
}

#[test]
fn what_is_stored_is_read_back_whole_and_in_slices() {
    let place = place(4 << 20);
    let made = made(500, 300, 4, 9);
    let a = place.store(&made);
    assert_eq!(
        (a.shape(), a.nonzeros()),
        ([500, 300], made.indices.len() as u64)
    );
    for rows in [0..500u64, 0..0, 3..4, 100..333, 499..500] {
        let part = a.slice(rows.clone()).unwrap();
        let found = part.read().unwrap().run().unwrap();
        let (first, last) = (
            made.offsets[rows.start as usize],
            made.offsets[rows.end as usize],
        );
        let expected: Vec<i64> = made.offsets[rows.start as usize..=rows.end as usize]
            .iter()
            .map(|at| at - first)
            .collect();
        assert_eq!(
            bytemuck::cast_slice::<u8, i64>(&found.offsets)[..expected.len()],
            expected
        );
        let entries = (last - first) as usize;
        assert_eq!(part.nonzeros(), entries as u64);
        if entries > 0 {
            let (first, last) = (first as usize, last as usize);
            assert_eq!(
                bytemuck::cast_slice::<u8, i32>(&found.indices)[..entries],
                made.indices[first..last]
            );
            assert_eq!(
                bytemuck::cast_slice::<u8, f32>(&found.values)[..entries],
                made.values[first..last]
            );
        }
        let x = numbers(300, 2);
        let y = csrmm(
            &place.session,
            &part,
            operand(&x, 300, 1, true),
            Csrmm::default(),
        )
        .unwrap()
        .run()
        .unwrap();
        let range = rows.start as usize * 300..rows.end as usize * 300;
        assert_eq!(
            of(&y),
            product(
                &made.dense[range],
                &x,
                [(rows.end - rows.start) as usize, 300, 1]
            )
        );
    }
    assert!(matches!(a.slice(3..501), Err(Error::Shape { .. })));
    assert!(matches!(a.t().slice(0..3), Err(Error::Value { .. })));
}

#[test]
fn values_are_scaled_by_rows_and_columns_dampened_and_normalised() {
    for turned in [false, true] {
        let place = place(4 << 20);
        let mut made = made(60, 40, 3, 11);
        made.values
            .iter_mut()
            .for_each(|value| *value = value.abs() + 1.0);
        let a = place.store(&made);
        let a = if turned { a.t() } else { a };
        let [rows, cols] = a.shape().map(|side| side as usize);
        let (by_rows, by_cols): (Vec<f64>, Vec<f64>) = (
            (0..rows).map(|at| 1.0 + at as f64 / 7.0).collect(),
            (0..cols).map(|at| 2.0 - at as f64 / 90.0).collect(),
        );
        let mut triplets: Vec<(usize, usize, f64)> = (0..made.rows)
            .flat_map(|row| {
                (made.offsets[row] as usize..made.offsets[row + 1] as usize)
                    .map(move |at| (row, at))
            })
            .map(|(row, at)| {
                let (row, col) = if turned {
                    (made.indices[at] as usize, row)
                } else {
                    (row, made.indices[at] as usize)
                };
                (
                    row,
                    col,
                    (1.0 + f64::from(made.values[at]).ln()) * by_rows[row] * by_cols[col],
                )
            })
            .collect();
        let mut squares = vec![0.0; rows];
        triplets
            .iter()
            .for_each(|&(row, _, value)| squares[row] += value * value);
        triplets
            .iter_mut()
            .for_each(|(row, _, value)| *value /= f64::sqrt(squares[*row]));
        let scaling = Scaling {
            logarithm: true,
            rows: Some(by_rows),
            cols: Some(by_cols),
            unit_rows: true,
            dtype: Some(RealType::F64),
        };
        let job = scaled(&place.session, &a, scaling, Some(place.path("scaled"))).unwrap();
        let b = job.run().unwrap();
        assert_eq!(
            (b.shape(), b.dtype(), b.format()),
            (a.shape(), DType::F64, a.format())
        );
        let found = b.read().unwrap().run().unwrap();
        for (found, (_, _, expected)) in bytemuck::cast_slice::<u8, f64>(&found.values)
            .iter()
            .zip(&triplets)
        {
            assert!(
                (found - expected).abs() <= 8.0 * f64::EPSILON * expected.abs(),
                "{found} is not {expected}"
            );
        }
    }
}

#[test]
fn rows_longer_than_a_piece_are_normalised_as_a_whole() {
    let place = place(1 << 20);
    let made = made(3, 90_000, 60_000, 5);
    let unit = Scaling {
        unit_rows: true,
        dtype: Some(RealType::F64),
        ..Scaling::default()
    };
    let job = scaled(&place.session, &place.store(&made), unit, None).unwrap();
    let plans = job.explain();
    assert_eq!(plans.len(), 2, "norms come first");
    assert!(plans.iter().all(|plan| plan.tasks > 3), "rows are cut");
    let found = job.run().unwrap().read().unwrap().run().unwrap();
    let found: &[f64] = &bytemuck::cast_slice(&found.values)[..made.values.len()];
    for row in 0..made.rows {
        let entries = made.offsets[row] as usize..made.offsets[row + 1] as usize;
        let values: Vec<f64> = made.values[entries.clone()]
            .iter()
            .map(|&x| x.into())
            .collect();
        let norm = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        for (found, value) in found[entries].iter().zip(values) {
            assert!((found - value / norm).abs() <= 1e-12 * value.abs() / norm);
        }
    }
}

/// Offsets, indices and values along the other side; entries of a column in the order of rows.
fn turned_over(made: &Made) -> (Vec<i64>, Vec<i32>, Vec<f32>) {
    let mut columns = vec![Vec::new(); made.cols];
    for row in 0..made.rows {
        for at in made.offsets[row] as usize..made.offsets[row + 1] as usize {
            columns[made.indices[at] as usize].push((row as i32, made.values[at]));
        }
    }
    let mut offsets = vec![0];
    columns
        .iter()
        .for_each(|column| offsets.push(offsets[offsets.len() - 1] + column.len() as i64));
    let (rows, values) = columns.into_iter().flatten().unzip();
    (offsets, rows, values)
}

fn check_turned(made: &Made, memory: u64) {
    let place = place(memory);
    let a = place.store(made);
    let b = csrcsc(&place.session, &a, Some(place.path("b")))
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(
        (b.shape(), b.format(), b.nonzeros()),
        (a.shape(), Compressed::Columns, a.nonzeros())
    );
    let found = b.read().unwrap().run().unwrap();
    let (offsets, rows, values) = turned_over(made);
    let count = values.len();
    assert_eq!(
        bytemuck::cast_slice::<u8, i64>(&found.offsets)[..offsets.len()],
        offsets
    );
    if count > 0 {
        assert_eq!(
            bytemuck::cast_slice::<u8, i32>(&found.indices)[..count],
            rows
        );
        assert_eq!(
            bytemuck::cast_slice::<u8, f32>(&found.values)[..count],
            values
        );
        // Back again, by way of the scratch folder, it is what it was but for the order in rows.
        let again = csrcsc(&place.session, &b, None).unwrap().run().unwrap();
        let found = again.read().unwrap().run().unwrap();
        assert_eq!(
            bytemuck::cast_slice::<u8, i64>(&found.offsets)[..made.offsets.len()],
            made.offsets
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_matrix_is_compressed_along_its_other_side(
        rows in 0usize..200, cols in 0usize..150, per_row in 0usize..8, seed in 0u64..1000,
    ) {
        check_turned(&made(rows, cols, per_row, seed), 4 << 20);
    }
}

#[test]
fn what_does_not_fit_memory_is_turned_over_by_way_of_scratch() {
    // 4.8 MB in 1 MiB; a row, and seen the other way a column, has half of all entries.
    let few_columns = made(20_000, 50, 20, 1);
    check_turned(&few_columns, 1 << 20);
    let mut many_columns = made(300, 90, 1000, 2);
    // As many columns as make the table of buckets coarse, most of them empty.
    many_columns.cols = 3 << 20;
    many_columns
        .indices
        .iter_mut()
        .for_each(|index| *index = *index * 30_011 % (3 << 20));
    check_turned(&many_columns, 40 << 20);
}

/// Three bands of places, blocks of many lines and of one, values that are all one and others.
fn wide(seed: u64) -> Made {
    let mut next = random(seed);
    let (rows, cols) = (3_000, 150_000);
    let (mut offsets, mut indices) = (vec![0], Vec::new());
    for row in 0..rows {
        let count = if row == 7 { 60_000 } else { 100 + next() % 40 };
        let mut places: Vec<i32> = (0..count).map(|_| (next() % cols as u64) as i32).collect();
        places.sort_unstable();
        places.dedup();
        indices.extend(places);
        offsets.push(indices.len() as i64);
    }
    let value = |(at, place): (usize, &i32)| {
        if *place > 65_536 || at < 9_000 {
            1.0
        } else {
            (at % 7) as f32
        }
    };
    let values = indices.iter().enumerate().map(value).collect();
    Made {
        rows,
        cols,
        offsets,
        indices,
        values,
        dense: Vec::new(),
    }
}

#[test]
fn tiles_hold_the_same_in_fewer_bytes() {
    let place = place(8 << 20);
    let made = wide(3);
    let stored = place.store(&made);
    let tiled = compress(&place.session, &stored, Some(place.path("tiled")))
        .unwrap()
        .run()
        .unwrap()
        .expect("it pays");
    assert!(tiled.is_tiled() && tiled.has_values());
    assert!(
        tiled.nbytes() * 5 < stored.nbytes() * 4,
        "{} of {}",
        tiled.nbytes(),
        stored.nbytes()
    );
    let in_scratch = compress(&place.session, &stored, None)
        .unwrap()
        .run()
        .unwrap()
        .expect("it pays");
    for tiled in [&tiled, &in_scratch] {
        assert_eq!(
            (tiled.shape(), tiled.nonzeros()),
            (stored.shape(), stored.nonzeros())
        );
        for rows in [0..3_000u64, 5..9, 7..8, 8..8, 1_000..2_345, 2_999..3_000] {
            let [found, expected] = [tiled, &stored].map(|a| {
                a.slice(rows.clone())
                    .unwrap()
                    .read()
                    .unwrap()
                    .run()
                    .unwrap()
            });
            assert_eq!(found.offsets[..], expected.offsets[..]);
            assert_eq!(found.indices[..], expected.indices[..]);
            assert_eq!(found.values[..], expected.values[..]);
        }
    }
    let x = operand(&numbers(150_000, 1), 150_000, 1, true);
    let [found, expected] = [&tiled, &stored].map(|a| {
        let y = csrmm(&place.session, a, x.clone(), Csrmm::default())
            .unwrap()
            .run()
            .unwrap();
        let back = csrmm(&place.session, &a.t(), y.clone().into(), Csrmm::default())
            .unwrap()
            .run()
            .unwrap();
        let gram = gram_product(&place.session, a, x.clone(), Output::Scratch)
            .unwrap()
            .run()
            .unwrap();
        assert_eq!(of(&back), of(&gram));
        let statistics = sparse_column_statistics(&place.session, a)
            .unwrap()
            .run()
            .unwrap();
        let norms = sparse_row_norms(&place.session, a, Norm::L1)
            .unwrap()
            .run()
            .unwrap();
        (of(&y), of(&back), statistics.nonzeros, norms)
    });
    assert!(found == expected);
    let turned = csrcsc(&place.session, &tiled, None)
        .unwrap()
        .run()
        .unwrap()
        .read()
        .unwrap()
        .run()
        .unwrap();
    let expected = csrcsc(&place.session, &stored, None)
        .unwrap()
        .run()
        .unwrap()
        .read()
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(turned.indices[..], expected.indices[..]);
    assert_eq!(turned.values[..], expected.values[..]);
    let unit = Scaling {
        unit_rows: true,
        ..Scaling::default()
    };
    let [found, expected] = [&tiled, &stored].map(|a| {
        let unit = scaled(&place.session, a, unit.clone(), None)
            .unwrap()
            .run()
            .unwrap();
        unit.read().unwrap().run().unwrap()
    });
    assert_eq!(found.values[..], expected.values[..]);
    // Two entries of one place have no tile.
    let doubled = self::made(100, 10, 9, 1).in_memory(&place.session);
    assert!(
        compress(&place.session, &doubled, None)
            .unwrap()
            .run()
            .unwrap()
            .is_none()
    );
}

#[test]
fn damaged_tiles_are_refused_by_name() {
    let place = place(8 << 20);
    let made = wide(4);
    let path = place.path("tiled");
    let write = |name: &str, at: u64, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        std::fs::File::options()
            .write(true)
            .open(path.join(name))
            .unwrap()
            .write_all_at(bytes, at)
            .unwrap();
    };
    let cases: [(&dyn Fn(), &str); 5] = [
        (
            &|| write("tiles.npy", 4096 + 8 * 3, &(1i64 << 50).to_le_bytes()),
            "tiles.npy: corrupt at byte 4152",
        ),
        (
            &|| write("tiles.npy", 4096 + 8 * 7, &(-1i64).to_le_bytes()),
            "tiles.npy: corrupt at byte 4152",
        ),
        (
            &|| write("tiles.npy", 4096 + 8 * 5, &1i64.to_le_bytes()),
            "entries",
        ),
        (
            &|| write("tiles.bin", 0, &[255, 255]),
            "of the lines of a tile",
        ),
        (
            &|| {
                std::fs::File::options()
                    .write(true)
                    .open(path.join("tiles.bin"))
                    .unwrap()
                    .set_len(5000)
                    .unwrap()
            },
            "tiles.bin: ",
        ),
    ];
    for (damage, expected) in cases {
        assert!(place.tiled(&made).is_tiled());
        damage();
        let found = Sparse::open(&place.session, &path)
            .and_then(|a| sparse_row_norms(&place.session, &a, Norm::L1)?.run());
        let found = found.expect_err("refused").to_string();
        assert!(
            found.contains(expected),
            "{found:?} does not say {expected:?}"
        );
    }
}

#[test]
fn norms_and_statistics_count_the_zeros_that_are_not_stored() {
    for (stored, memory) in [(true, 1 << 20), (false, 4 << 20)] {
        let place = place(memory);
        // Row 3 is cut into pieces of its own. Entries of one place would count as two.
        let mut made = made(4_000, 50, 4, 7);
        for row in 0..made.rows {
            let range = made.offsets[row] as usize..made.offsets[row + 1] as usize;
            made.indices[range]
                .iter_mut()
                .enumerate()
                .for_each(|(at, index)| *index = (at % 50) as i32);
        }
        let a = if stored {
            place.store(&made)
        } else {
            made.in_memory(&place.session)
        };
        for turned in [false, true] {
            let a = if turned { a.t() } else { a.clone() };
            let [rows, cols] = a.shape().map(|side| side as usize);
            let entries = |of_rows: bool| {
                let mut all = vec![Vec::new(); if of_rows { rows } else { cols }];
                for row in 0..made.rows {
                    for at in made.offsets[row] as usize..made.offsets[row + 1] as usize {
                        let place = made.indices[at] as usize;
                        all[if turned == of_rows { place } else { row }]
                            .push(f64::from(made.values[at]));
                    }
                }
                all
            };
            for norm in [Norm::L1, Norm::L2, Norm::Max] {
                let found = sparse_row_norms(&place.session, &a, norm)
                    .unwrap()
                    .run()
                    .unwrap();
                assert_eq!(found.len(), rows);
                for (found, entries) in found.iter().zip(entries(true)) {
                    let expected = match norm {
                        Norm::L1 => entries.iter().map(|value| value.abs()).sum::<f64>(),
                        Norm::L2 => entries
                            .iter()
                            .map(|value| value * value)
                            .sum::<f64>()
                            .sqrt(),
                        Norm::Max => entries
                            .iter()
                            .fold(0.0, |most, value| value.abs().max(most)),
                    };
                    assert!(
                        (found - expected).abs() <= 1e-12 * expected.max(1.0),
                        "{found} is not {expected}"
                    );
                }
            }
            let found = sparse_column_statistics(&place.session, &a)
                .unwrap()
                .run()
                .unwrap();
            assert_eq!(found.columns.count, rows as u64);
            for (col, entries) in entries(false).iter().enumerate() {
                assert_eq!(found.nonzeros[col], entries.len() as u64);
                let zeros = rows.saturating_sub(entries.len());
                let n = (zeros + entries.len()) as f64;
                let mean = entries.iter().sum::<f64>() / n;
                let m2: f64 = entries
                    .iter()
                    .map(|value| (value - mean).powi(2))
                    .sum::<f64>()
                    + zeros as f64 * mean * mean;
                let zero = if zeros > 0 { Some(0.0) } else { None };
                let least = entries
                    .iter()
                    .copied()
                    .chain(zero)
                    .fold(f64::INFINITY, f64::min);
                let expected = [mean, m2, least];
                let got = [
                    found.columns.mean[col],
                    found.columns.m2[col],
                    found.columns.min[col],
                ];
                for (got, expected) in got.into_iter().zip(expected) {
                    assert!(
                        (got - expected).abs() <= 1e-9 * expected.abs().max(1.0),
                        "column {col}: {got} is not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn sparse_and_dense_rows_are_projected_by_a_sparse_map() {
    let place = place(2 << 20);
    let (x, r) = (made(900, 70, 4, 3), made(70, 200, 6, 4));
    let expected = product(&x.dense, &r.dense, [900, 70, 200]);
    let map = r.in_memory(&place.session);
    let sparse = Rows::Sparse(place.store(&x));
    let found = project(&place.session, sparse, &map, Output::Scratch)
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(of(&found), expected);
    for by_rows in [true, false] {
        let dense = Rows::Dense(
            place
                .dense("x.npy", 900, 70, order(by_rows), &x.dense)
                .into(),
        );
        let found = project(
            &place.session,
            dense,
            &map,
            Output::New(place.path("y.npy")),
        )
        .unwrap()
        .run()
        .unwrap();
        assert_eq!(of(&found), expected);
    }
    assert!(matches!(
        project(
            &place.session,
            Rows::Dense(operand(&x.dense, 900, 70, true)),
            &map.t(),
            Output::Scratch
        ),
        Err(Error::Shape { .. })
    ));
}

#[test]
fn damaged_folders_are_refused_by_the_name_of_the_file() {
    let place = place(4 << 20);
    let made = made(50, 40, 3, 1);
    let path = place.path("a");
    let reason = |damage: &dyn Fn()| {
        place.store(&made);
        damage();
        let found = Sparse::open(&place.session, &path).and_then(|a| {
            csrmm(
                &place.session,
                &a,
                operand(&numbers(40, 1), 40, 1, true),
                Csrmm::default(),
            )?
            .run()
        });
        found
            .err()
            .map_or_else(String::new, |error| error.to_string())
    };
    let write = |name: &str, at: u64, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        std::fs::File::options()
            .write(true)
            .open(path.join(name))
            .unwrap()
            .write_all_at(bytes, at)
            .unwrap();
    };
    let cases: [(&dyn Fn(), &str); 8] = [
        (
            &|| write("indptr.npy", 4096 + 8 * 20, &(-5i64).to_le_bytes()),
            "indptr.npy: corrupt at byte 4256: offset -5",
        ),
        (
            &|| write("indptr.npy", 4096, &1i64.to_le_bytes()),
            "indptr.npy: corrupt at byte 4096: offset 1",
        ),
        (
            &|| write("indptr.npy", 4096 + 8 * 50, &2i64.to_le_bytes()),
            "indptr.npy: corrupt at byte 4496",
        ),
        (
            &|| write("indices.npy", 4096 + 4 * 7, &40i32.to_le_bytes()),
            "indices.npy: corrupt at byte 4124: the matrix has 40 columns",
        ),
        (
            &|| write("indices.npy", 4096, &(-1i32).to_le_bytes()),
            "indices.npy: corrupt at byte 4096",
        ),
        (
            &|| {
                std::fs::File::options()
                    .write(true)
                    .open(path.join("data.npy"))
                    .unwrap()
                    .set_len(4100)
                    .unwrap()
            },
            "data.npy: truncated",
        ),
        (
            &|| std::fs::write(path.join("matrix.json"), b"{\"format\": \"coo\"}").unwrap(),
            "matrix.json: corrupt",
        ),
        (
            &|| std::fs::remove_file(path.join("matrix.json")).unwrap(),
            "a folder without matrix.json",
        ),
    ];
    for (damage, expected) in cases {
        let found = reason(damage);
        assert!(
            found.contains(expected),
            "{found:?} does not say {expected:?}"
        );
    }
}

#[test]
fn operands_that_do_not_fit_together_are_refused() {
    let place = place(4 << 20);
    let a = made(5, 4, 2, 1).in_memory(&place.session);
    let refused = |b: Operand, options: Csrmm| {
        csrmm(&place.session, &a, b, options)
            .err()
            .expect("refused")
    };
    assert!(matches!(
        refused(operand(&[0.0; 15], 5, 3, true), Csrmm::default()),
        Error::Shape { .. }
    ));
    assert!(matches!(
        refused(
            operand(&[0.0; 12], 4, 3, true),
            Csrmm {
                beta: 1.0,
                ..Csrmm::default()
            }
        ),
        Error::Value { .. }
    ));
    let b = place.dense("b.npy", 4, 3, Order::Row, &[0.0; 12]);
    let out = Output::InPlace(b.clone());
    assert!(matches!(
        refused(
            b.into(),
            Csrmm {
                out,
                ..Csrmm::default()
            }
        ),
        Error::Value { .. }
    ));
}

/// In order, in no order, again and again, none; a row that is longer than a panel is among them.
#[test]
fn rows_taken_are_those_of_the_matrix() {
    for seed in 0..4 {
        let (place, made) = (place(1 << 20), made(3000, 900, 12, seed));
        let mut next = random(seed);
        let mixed: Vec<u64> = (0..2000).map(|_| next() % 3000).collect();
        let mut sorted = mixed.clone();
        sorted.sort_unstable();
        for a in [place.store(&made), made.in_memory(&place.session)] {
            for rows in [&mixed[..], &sorted, &[3, 7, 3], &[]] {
                let expected = made.picked(rows);
                let picked = a.pick_rows(rows, &|| false).unwrap();
                assert_eq!(picked.nonzeros() as usize, expected.1.len(), "seed {seed}");
                for out in [None, Some(place.path("taken"))] {
                    let taken = picked.take(&place.session, out).unwrap().run().unwrap();
                    assert_eq!(taken.shape(), [rows.len() as u64, 900]);
                    let found = taken.read().unwrap().run().unwrap();
                    assert_eq!(
                        numbers_of(&found),
                        expected,
                        "seed {seed}, in place or in scratch"
                    );
                }
                let buf = |bytes: usize| Buf::anonymous(bytes.max(1)).unwrap().split_to(bytes);
                let into = SparseBufs {
                    offsets: buf(8 * expected.0.len()),
                    indices: buf(4 * expected.1.len()),
                    values: buf(4 * expected.1.len()),
                };
                let found = picked.read_into(into, &|| false).unwrap();
                assert_eq!(numbers_of(&found), expected, "seed {seed}, to memory");
            }
            assert!(matches!(
                a.pick_rows(&[3000], &|| false),
                Err(Error::Shape { .. })
            ));
            assert!(matches!(
                a.t().pick_rows(&[1], &|| false),
                Err(Error::Value { .. })
            ));
        }
    }
}

/// A row by itself would cost a request for its indices and one for its values.
#[test]
fn many_short_rows_in_no_order_go_by_way_of_scratch() {
    let (place, made) = (place(8 << 20), made(20_000, 50, 12, 7));
    let (a, mut next) = (place.store(&made), random(7));
    let mut shuffled: Vec<u64> = (0..20_000).collect();
    shuffled.sort_by_cached_key(|_| next());
    // Without the row that is longer than others: of the rest, each comes some 600 times.
    let repeated = (0..60_000).map(|_| 5 + next() % 100 * 199).collect();
    for rows in [shuffled, repeated] {
        let picked = a.pick_rows(&rows, &|| false).unwrap();
        let job = picked.take(&place.session, None).unwrap();
        assert_eq!(job.explain().len(), 2, "a pass to scratch, and one from it");
        let found = job.run().unwrap().read().unwrap().run().unwrap();
        assert_eq!(numbers_of(&found), made.picked(&rows));
    }
    let few = a.pick_rows(&[9, 5, 7], &|| false).unwrap();
    assert_eq!(few.take(&place.session, None).unwrap().explain().len(), 1);
}

type Numbers = (Vec<i64>, Vec<i32>, Vec<f32>);

fn numbers_of(found: &SparseBufs) -> Numbers {
    (
        bytemuck::pod_collect_to_vec(&found.offsets),
        bytemuck::pod_collect_to_vec(&found.indices),
        bytemuck::pod_collect_to_vec(&found.values),
    )
}

impl Made {
    fn picked(&self, rows: &[u64]) -> Numbers {
        let (mut offsets, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for &row in rows {
            let entries =
                self.offsets[row as usize] as usize..self.offsets[row as usize + 1] as usize;
            indices.extend_from_slice(&self.indices[entries.clone()]);
            values.extend_from_slice(&self.values[entries]);
            offsets.push(indices.len() as i64);
        }
        (offsets, indices, values)
    }
}
