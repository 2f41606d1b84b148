//! Operators: one of the caller's own, and matrices that are passed over, against products in plain
//! loops.

#[allow(dead_code, reason = "its operator and options are used here")]
#[path = "../../examples/laplacian.rs"]
mod laplacian;

use std::f64::consts::PI;
use std::sync::{Arc, Mutex};

use outcore::kernels::{Mat, MatMut, MatRef, svd};
use outcore::operator::{Centred, Given, Gram, Matrix, Operator, Scaled, Symmetric};
use outcore::pass::Rows;
use outcore::spectra::{
    SpectrumOptions, Vectors, eigsh, svds, svds_of_equal_columns, svds_of_rows,
};
use outcore::{
    Array, Buf, Compressed, DType, Error, Job, Order, RealType, Result, Session, Settings, Shared,
    Sparse, Stage,
};

const ROWS: usize = 900;
const COLUMNS: usize = 70;

fn session(folder: &std::path::Path, memory_bytes: u64, threads: usize) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads,
        ..Settings::default()
    })
    .unwrap()
}

fn shared<T: bytemuck::Pod>(values: &[T]) -> Shared {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut buf = Buf::anonymous(bytes.len()).unwrap();
    buf[..bytes.len()].copy_from_slice(bytes);
    buf.freeze()
}

#[test]
fn a_drum_oscillates_as_the_textbook_says() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (side, count) = (40, 6);
    let mode = |number: usize| 2.0 - 2.0 * (number as f64 * PI / (side + 1) as f64).cos();
    let mut expected: Vec<f64> = (1..=side * side)
        .map(|at| mode((at - 1) / side + 1) + mode((at - 1) % side + 1))
        .collect();
    expected.sort_by(f64::total_cmp);
    let found: Vec<_> = [1, 3]
        .into_iter()
        .map(|threads| {
            let session = session(folder.path(), 64 << 20, threads);
            let operator = Symmetric::new(side * side, laplacian::drum(side));
            let options = laplacian::slowest(count);
            let job = eigsh(&session, operator, DType::F64, options).unwrap();
            let found = job.run().unwrap();
            assert!(found.facts.has_converged);
            match found.vectors {
                Vectors::Memory { values, .. } => (found.values, values),
                Vectors::Scratch(_) => panic!("there is room for them in memory"),
            }
        })
        .collect();
    assert!(found[0] == found[1]);
    let values = &found[0].0;
    assert_eq!(values.len(), count);
    for (value, expected) in values.iter().zip(&expected) {
        assert!((value - expected).abs() < 1e-8, "{value} for {expected}");
    }
}

/// Row i of a matrix of 300 x 120 has i + 1 in column i, and 1 in the next one.
#[test]
fn a_function_of_the_caller_has_singular_triplets() {
    let [m, n] = [300, 120];
    let element = move |i: usize, j: usize| match j {
        _ if i == j => (i + 1) as f64,
        _ if i + 1 == j => 1.0,
        _ => 0.0,
    };
    let given = move |transposed: bool, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>| {
        let near = |i: usize| i.saturating_sub(1)..(i + 2).min(n);
        for column in 0..x.ncols() {
            for i in 0..y.nrows() {
                let along = |j| match transposed {
                    true => element(j, i) * x[(j, column)],
                    false => element(i, j) * x[(j, column)],
                };
                y[(i, column)] = near(i).map(along).sum();
            }
        }
        Ok(())
    };
    let expected = svd(Mat::from_fn(n, n, element).as_ref()).unwrap().values;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 64 << 20, 2);
    let operator = Given::new("bidiagonal", [m, n], given);
    let found = svds(&session, operator, DType::F64, SpectrumOptions::new(3)).unwrap();
    let found = found.run().unwrap();
    for (value, expected) in found.values.iter().rev().zip(expected) {
        assert!(
            (value - expected).abs() < 1e-8 * expected,
            "{value} for {expected}"
        );
    }
    assert!(found.residuals.iter().all(|rest| *rest < 1e-6 * n as f64));
}

/// Keeps the widths that it is asked about, and holds so much that no block of columns fits.
struct Asked(Arc<Mutex<Vec<usize>>>);

impl Operator for Asked {
    fn shape(&self) -> [usize; 2] {
        [100; 2]
    }

    fn held_bytes(&self, columns: usize) -> u64 {
        self.0.lock().unwrap().push(columns);
        1 << 40
    }

    fn apply(&self, _x: MatRef<'_, f64>, _y: MatMut<'_, f64>, _stage: &mut Stage) -> Result<()> {
        Err(Error::Closed)
    }

    fn apply_transposed(
        &self,
        x: MatRef<'_, f64>,
        y: MatMut<'_, f64>,
        stage: &mut Stage,
    ) -> Result<()> {
        self.apply(x, y, stage)
    }
}

#[test]
fn an_operator_is_asked_once_for_each_width_what_it_holds() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let widths = Arc::default();
    let operator = Asked(Arc::clone(&widths));
    let session = session(folder.path(), 64 << 20, 1);
    let found = eigsh(&session, operator, DType::F64, SpectrumOptions::new(3)).err();
    assert!(matches!(found, Some(Error::OverBudget { .. })));
    let mut asked = widths.lock().unwrap().clone();
    asked.sort_unstable();
    assert!(
        asked.first() == Some(&1) && asked.is_sorted_by(|one, other| one < other),
        "{asked:?}"
    );
}

#[test]
fn a_search_that_has_no_room_or_no_sense_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = session(folder.path(), 1 << 20, 1);
    let search = |side: usize, count| {
        let operator = Symmetric::new(side * side, laplacian::drum(side));
        eigsh(&small, operator, DType::F64, laplacian::slowest(count)).err()
    };
    assert!(matches!(search(300, 6), Some(Error::OverBudget { .. })));
    assert!(matches!(search(2, 5), Some(Error::Value { .. })));
    let array = Array::create(
        &small,
        folder.path().join("x.npy"),
        DType::F64,
        &[5, 3],
        Order::Row,
    )
    .unwrap();
    let matrix = Matrix::new(&small, array).unwrap();
    assert!(matches!(
        eigsh(&small, matrix, DType::F64, SpectrumOptions::new(1)).err(),
        Some(Error::Shape { .. })
    ));
}

/// Some of them are zeros, which sparse matrices leave out.
fn element(row: usize, column: usize) -> f64 {
    let hash = (row * COLUMNS + column).wrapping_mul(2_654_435_761) % 1009;
    if hash.is_multiple_of(3) {
        0.0
    } else {
        hash as f64 / 500.0 - 0.3
    }
}

fn product(
    a: impl Fn(usize, usize) -> f64,
    [rows, depth]: [usize; 2],
    x: MatRef<'_, f64>,
) -> Mat<f64> {
    Mat::from_fn(rows, x.ncols(), |row, column| {
        (0..depth).map(|at| a(row, at) * x[(at, column)]).sum()
    })
}

fn close(found: &Mat<f64>, expected: &Mat<f64>, what: &str) {
    let scale = (0..expected.nrows())
        .map(|row| expected[(row, 0)].abs())
        .fold(1.0, f64::max);
    for column in 0..expected.ncols() {
        for row in 0..expected.nrows() {
            let off = (found[(row, column)] - expected[(row, column)]).abs();
            assert!(
                off < 1e-5 * scale,
                "{what}, ({row}, {column}): {} for {}",
                found[(row, column)],
                expected[(row, column)]
            );
        }
    }
}

/// A X, A^T X and A^T A X, as a job's stage computes them.
fn products<O: Operator + Send + 'static>(
    session: &Session,
    operator: O,
    width: usize,
) -> [Mat<f64>; 3] {
    let job = Job::driven(session, vec![], move |stage, _| {
        let [m, n] = operator.shape();
        let vectors = |height: usize| {
            Mat::from_fn(height, width, |row, column| {
                ((row * 7 + column * 3) % 11) as f64 - 5.0
            })
        };
        let [mut along, mut across, mut twice] = [
            Mat::zeros(m, width),
            Mat::zeros(n, width),
            Mat::zeros(n, width),
        ];
        operator.apply(vectors(n).as_ref(), along.as_mut(), stage)?;
        operator.apply_transposed(vectors(m).as_ref(), across.as_mut(), stage)?;
        operator.apply_gram(vectors(n).as_ref(), twice.as_mut(), stage)?;
        Ok([along, across, twice])
    });
    job.unwrap().run().unwrap()
}

#[test]
fn products_with_matrices_are_those_of_plain_loops_wherever_they_lie() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = session(folder.path(), 8 << 20, 2);
    let values: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|at| element(at / COLUMNS, at % COLUMNS) as f32)
        .collect();
    let shape = [ROWS as u64, COLUMNS as u64];
    let dense = Array::create(
        &place,
        folder.path().join("x.npy"),
        DType::F32,
        &shape,
        Order::Row,
    )
    .unwrap();
    dense.write(shared(&values)).unwrap().run().unwrap();
    let by_columns = Array::create(
        &place,
        folder.path().join("t.npy"),
        DType::F32,
        &shape,
        Order::Column,
    )
    .unwrap();
    by_columns.write(shared(&values)).unwrap().run().unwrap();
    let compressed = |format, lines: usize, width: usize| {
        let at = |line: usize, place: usize| {
            if format == Compressed::Rows {
                (line, place)
            } else {
                (place, line)
            }
        };
        let (mut offsets, mut indices, mut entries) = (vec![0i64], Vec::new(), Vec::new());
        for line in 0..lines {
            for place in 0..width {
                let (row, column) = at(line, place);
                if element(row, column) != 0.0 {
                    indices.push(place as i32);
                    entries.push(element(row, column) as f32);
                }
            }
            offsets.push(indices.len() as i64);
        }
        let (offsets, indices) = (
            (DType::I64, shared(&offsets)),
            (DType::I32, shared(&indices)),
        );
        Sparse::in_memory(
            &place,
            format,
            shape,
            offsets,
            indices,
            Some((RealType::F32, shared(&entries))),
        )
        .unwrap()
    };
    let mean: Vec<f64> = (0..COLUMNS)
        .map(|column| (0..ROWS).map(|row| element(row, column)).sum::<f64>() / ROWS as f64)
        .collect();
    for width in [1, 5] {
        let all: [(&str, Rows); 4] = [
            ("dense", dense.clone().into()),
            ("dense by columns", by_columns.clone().into()),
            ("rows", compressed(Compressed::Rows, ROWS, COLUMNS).into()),
            (
                "columns",
                compressed(Compressed::Columns, COLUMNS, ROWS).into(),
            ),
        ];
        for (what, rows) in all {
            let matrix = || {
                Matrix::new(
                    &place,
                    match &rows {
                        Rows::Dense(x) => Rows::Dense(x.clone()),
                        Rows::Sparse(a) => Rows::Sparse(a.clone()),
                    },
                )
                .unwrap()
            };
            for centred in [false, true] {
                let a = |row: usize, column: usize| {
                    element(row, column) - if centred { mean[column] } else { 0.0 }
                };
                let vectors = |height: usize| {
                    Mat::from_fn(height, width, |row, column| {
                        ((row * 7 + column * 3) % 11) as f64 - 5.0
                    })
                };
                let along = product(a, [ROWS, COLUMNS], vectors(COLUMNS).as_ref());
                let across = product(
                    |row, column| a(column, row),
                    [COLUMNS, ROWS],
                    vectors(ROWS).as_ref(),
                );
                let twice = product(
                    |row, column| a(column, row),
                    [COLUMNS, ROWS],
                    along.as_ref(),
                );
                let found = match centred {
                    true => products(&place, Centred::new(matrix(), mean.clone()).unwrap(), width),
                    false => products(&place, matrix(), width),
                };
                for (found, expected) in found.iter().zip([&along, &across, &twice]) {
                    close(found, expected, what);
                }
                if centred {
                    let far = Centred::new(matrix(), mean.clone()).unwrap().far(true);
                    for (found, expected) in products(&place, far, width)
                        .iter()
                        .zip([&along, &across, &twice])
                    {
                        close(found, expected, what);
                    }
                }
                if !centred {
                    close(&products(&place, Gram(matrix()), width)[0], &twice, what);
                    let factors: Vec<f64> = (0..COLUMNS).map(|at| 1.5 - at as f64 / 50.0).collect();
                    let scaled = Scaled::new(matrix(), factors.clone()).unwrap();
                    let b = |row: usize, column: usize| factors[column] * element(row, column);
                    let turned = |row, column| b(column, row);
                    let along = product(b, [ROWS, COLUMNS], vectors(COLUMNS).as_ref());
                    let across = product(turned, [COLUMNS, ROWS], vectors(ROWS).as_ref());
                    let twice = product(turned, [COLUMNS, ROWS], along.as_ref());
                    let found = products(&place, scaled, width);
                    for (found, expected) in found.iter().zip([&along, &across, &twice]) {
                        close(found, expected, what);
                    }
                }
            }
        }
    }
    assert!(matches!(
        Centred::new(Matrix::new(&place, &dense).unwrap(), vec![0.0]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        Scaled::new(Matrix::new(&place, &dense).unwrap(), vec![0.0]),
        Err(Error::Shape { .. })
    ));
}

/// Of long and of wide matrices, by rows and by columns: with the values, or without reading them.
#[test]
fn columns_of_one_value_each_need_not_be_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = session(folder.path(), 32 << 20, 2);
    for (format, [rows, columns]) in [Compressed::Rows, Compressed::Columns]
        .into_iter()
        .flat_map(|format| [[900u64, 70], [70, 900]].map(|shape| (format, shape)))
    {
        let factors: Vec<f64> = (0..columns).map(|at| (1 + at % 7) as f64).collect();
        let [lines, width] = format.lines_first([rows, columns]);
        let (mut offsets, mut indices, mut values) = (vec![0i64], Vec::new(), Vec::new());
        for line in 0..lines {
            for at in (0..width).filter(|at| (line * 31 + at * 17) % 11 < 2) {
                let [_, column] = format.lines_first([line, at]);
                indices.push(at as i32);
                values.push(factors[column as usize]);
            }
            offsets.push(indices.len() as i64);
        }
        let a = Sparse::in_memory(
            &place,
            format,
            [rows, columns],
            (DType::I64, shared(&offsets)),
            (DType::I32, shared(&indices)),
            Some((RealType::F64, shared(&values))),
        )
        .unwrap();
        let options = || SpectrumOptions {
            left: false,
            ..SpectrumOptions::new(4)
        };
        let expected = svds_of_rows(&place, &a, options()).unwrap().run().unwrap();
        let found = svds_of_equal_columns(&place, &a, factors, options()).unwrap();
        let found = found.run().unwrap();
        for (found, expected) in found.values.iter().zip(&expected.values) {
            assert!((found / expected - 1.0).abs() < 1e-10, "{format:?}");
        }
        let rest = |found: &f64| *found < 1e-6 * expected.values[3];
        assert!(found.residuals.iter().all(rest));
        let ones = vec![1.0; columns as usize];
        assert!(svds_of_equal_columns(&place, &a, ones[1..].to_vec(), options()).is_err());
    }
}

/// The basis takes most of the memory, and passes over the matrix what is left: a budget that is
/// said to be enough is.
#[test]
fn a_search_in_a_small_budget_ends_or_says_before_what_it_needs() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (rows, columns) = (4000usize, 600usize);
    let values: Vec<f32> = (0..rows * columns)
        .map(|at| (at.wrapping_mul(2_654_435_761) % 1013) as f32 / 500.0 - 1.0)
        .collect();
    let path = folder.path().join("x.npy");
    let place = session(folder.path(), 64 << 20, 2);
    let made = Array::create(
        &place,
        &path,
        DType::F32,
        &[rows as u64, columns as u64],
        Order::Row,
    )
    .unwrap();
    made.write(shared(&values)).unwrap().run().unwrap();
    let search = |memory_bytes: u64| {
        let session = session(folder.path(), memory_bytes, 2);
        let matrix = Matrix::new(&session, Array::open(&session, &path).unwrap()).unwrap();
        let options = SpectrumOptions::new(3);
        eigsh(&session, Gram(matrix), DType::F64, options)?.run()
    };
    let expected = search(64 << 20).unwrap().values;
    let (mut refused, mut done) = (0, 0);
    for memory_bytes in (1..=12).map(|mib| mib << 20) {
        match search(memory_bytes) {
            Ok(found) => {
                found
                    .values
                    .iter()
                    .zip(&expected)
                    .for_each(|(found, expected)| assert!((found / expected - 1.0).abs() < 1e-4));
                done += 1;
            }
            Err(Error::OverBudget { what, .. }) => {
                assert!(
                    what.starts_with("3 pairs of "),
                    "refused in the middle: {what}"
                );
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}
