//! k-means against Lloyd's algorithm as the textbook has it, in f64.

use outcore::kmeans::{Columns, Options, assign, distances, fit, fit_columns, take_rows};
use outcore::linalg::{Scaling, scaled};
use outcore::{
    Array, Buf, Compressed, DType, Error, Order, Output, RealType, Session, Settings, Shared,
    Sparse,
};

struct Fixture {
    folder: tempfile::TempDir,
    session: Session,
}

fn place(memory_bytes: u64, threads: usize) -> Fixture {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let scratch = Some(folder.path().join("scratch"));
    let session = Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads,
        ..Settings::default()
    })
    .unwrap();
    Fixture { folder, session }
}

fn store(place: &Fixture, x: &[f64], cols: usize, dtype: DType, order: Order) -> Array {
    let rows = x.len() / cols;
    let path = place
        .folder
        .path()
        .join(format!("{rows} {cols} {dtype} {order:?}.npy"));
    let array = Array::create(
        &place.session,
        path,
        dtype,
        &[rows as u64, cols as u64],
        order,
    )
    .unwrap();
    let mut bytes = Buf::anonymous((x.len() * dtype.bytes() as usize).max(8)).unwrap();
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(&mut bytes)
            .iter_mut()
            .zip(x)
            .for_each(|(to, x)| *to = *x as f32),
        _ => bytemuck::cast_slice_mut::<u8, f64>(&mut bytes)
            .iter_mut()
            .zip(x)
            .for_each(|(to, x)| *to = *x),
    }
    array.write(bytes.freeze()).unwrap().run().unwrap();
    array
}

/// Numbers between -1 and 1, the same for the same seed.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 23) as f64 - 1.0
    };
    (0..count).map(|_| f64::from(next() as f32)).collect()
}

/// Overlapping clouds.
fn clouds(rows: usize, cols: usize, count: usize) -> Vec<f64> {
    let (middles, noise) = (numbers(count * cols, 1), numbers(rows * cols, 2));
    (0..rows * cols)
        .map(|at| f64::from((middles[at / cols * 7 % count * cols + at % cols] + noise[at]) as f32))
        .collect()
}

fn square(x: &[f64], center: &[f64]) -> f64 {
    x.iter().zip(center).map(|(x, c)| (x - c) * (x - c)).sum()
}

struct Reference {
    centers: Vec<f64>,
    labels: Vec<u32>,
    inertia: f64,
    rounds: u64,
}

/// Lloyd's algorithm, with the conventions of scikit-learn.
fn lloyd(x: &[f64], d: usize, start: &[f64], max_iter: u64) -> Reference {
    let k = start.len() / d;
    let nearest = |x: &[f64], centers: &[f64]| {
        (0..k as u32).min_by(|&a, &b| {
            let far = |c: u32| square(x, &centers[c as usize * d..][..d]);
            far(a).total_cmp(&far(b))
        })
    };
    let label = |centers: &[f64]| -> Vec<u32> {
        x.chunks(d).map(|x| nearest(x, centers).unwrap()).collect()
    };
    let (mut centers, mut labels, mut rounds) = (start.to_vec(), Vec::new(), 0);
    while rounds < max_iter {
        let new = label(&centers);
        let same = new == labels;
        labels = new;
        let mut sums = vec![0.0; k * d];
        let mut counts = vec![0.0; k];
        for (x, &label) in x.chunks(d).zip(&labels) {
            counts[label as usize] += 1.0;
            sums[label as usize * d..][..d]
                .iter_mut()
                .zip(x)
                .for_each(|(sum, x)| *sum += x);
        }
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum /= counts[at / d];
        }
        let stays = same || sums == centers;
        centers = sums;
        rounds += 1;
        if stays {
            break;
        }
    }
    labels = label(&centers);
    let inertia = x
        .chunks(d)
        .zip(&labels)
        .map(|(x, &label)| square(x, &centers[label as usize * d..][..d]))
        .sum();
    Reference {
        centers,
        labels,
        inertia,
        rounds,
    }
}

fn options(max_iter: u64) -> Options {
    Options {
        max_iter,
        tol: 0.0,
        weights: None,
    }
}

#[test]
fn labels_are_those_of_the_textbook_wherever_the_rows_lie() {
    for (rows, cols, k) in [(1, 1, 1), (5, 3, 5), (50_001, 16, 10), (100_000, 7, 3)] {
        let x = clouds(rows, cols, 11);
        let start = x[..k * cols].to_vec();
        let want = lloyd(&x, cols, &start, 12);
        for (dtype, order) in [
            (DType::F32, Order::Row),
            (DType::F32, Order::Column),
            (DType::F64, Order::Row),
            (DType::F64, Order::Column),
        ] {
            // The first budget holds the data, the second reads them from a copy.
            for memory in [64 << 20, 3 << 20] {
                let place = place(memory, 2);
                let array = store(&place, &x, cols, dtype, order);
                let found = fit(&place.session, array.into(), &start, options(12))
                    .unwrap()
                    .run()
                    .unwrap();
                let case = format!("{rows} x {cols}, {k} centres, {dtype}, {order:?}, {memory}");
                assert_eq!(found.labels, want.labels, "{case}");
                assert_eq!(found.rounds, want.rounds, "{case}");
                assert!(
                    (found.inertia - want.inertia).abs() <= 1e-5 * want.inertia + 1e-9,
                    "{case}"
                );
                for (found, want) in found.centers.iter().zip(&want.centers) {
                    assert!((found - want).abs() < 1e-5, "{case}");
                }
            }
        }
    }
}

#[test]
fn where_memory_is_short_rounds_read_a_copy_and_bounds_save_comparisons() {
    let (rows, cols, k) = (40_000, 32, 8);
    let x = clouds(rows, cols, 8);
    let place = place(4 << 20, 2);
    let array = store(&place, &x, cols, DType::F32, Order::Row);
    let job = fit(&place.session, (&array).into(), &x[..k * cols], options(50)).unwrap();
    let predicted: Vec<u64> = job
        .explain()
        .iter()
        .map(|plan| plan.predicted.bytes_read)
        .collect();
    assert_eq!(predicted.len(), 2);
    assert!(predicted[0] >= array.nbytes() && predicted[1] < array.nbytes() * 7 / 10);
    let found = job.run().unwrap();
    let trace = place.session.last_trace().unwrap();
    let passes = found.rounds + 1;
    assert!(trace.actual.bytes_read <= predicted[0] + passes * predicted[1]);
    assert!(trace.actual.bytes_written < array.nbytes() * 7 / 10);
    assert!(trace.actual.peak_bytes <= 4 << 20);
    assert!(found.compared_fraction < 0.9, "{}", found.compared_fraction);
}

#[test]
fn rows_that_cannot_be_packed_are_read_as_they_are() {
    let (rows, cols, k) = (60_000, 8, 4);
    let mut x = clouds(rows, cols, 4);
    // One element in each block takes all the steps of its column.
    x.iter_mut().step_by(500 * cols).for_each(|x| *x = 3e7);
    let start = x[cols..(k + 1) * cols].to_vec();
    let want = lloyd(&x, cols, &start, 10);
    let place = place(4 << 20, 2);
    let array = store(&place, &x, cols, DType::F64, Order::Row);
    let job = fit(&place.session, array.into(), &start, options(10)).unwrap();
    assert_eq!(job.explain().len(), 2);
    assert_eq!(job.run().unwrap().labels, want.labels);
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let x = clouds(40_000, 24, 30);
    let run = |threads| {
        let place = place(4 << 20, threads);
        let array = store(&place, &x, 24, DType::F32, Order::Row);
        fit(&place.session, array.into(), &x[..24 * 30], options(12))
            .unwrap()
            .run()
            .unwrap()
    };
    assert_eq!(run(1), run(5));
}

#[test]
fn a_cluster_without_rows_takes_the_farthest() {
    // Two centres lie far from everything: they go to the two rows farthest from the first.
    let x = [0.0, 1.0, -1.0, 10.0, -30.0, 2.0];
    let place = place(4 << 20, 2);
    let array = store(&place, &x, 1, DType::F64, Order::Row);
    let found = fit(&place.session, array.into(), &[0.0, 1e3, 2e3], options(10))
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(found.labels, [0, 0, 0, 2, 1, 0]);
    assert_eq!(found.centers[1..], [-30.0, 10.0]);
    assert!((found.inertia - 5.0).abs() < 1e-9);
}

#[test]
fn equal_rows_leave_clusters_empty() {
    let place = place(4 << 20, 2);
    let array = store(&place, &[3.0; 10], 2, DType::F32, Order::Row);
    let found = fit(
        &place.session,
        array.into(),
        &[3.0, 3.0, 3.0, 3.0],
        options(10),
    )
    .unwrap()
    .run()
    .unwrap();
    assert_eq!((found.labels, found.inertia), (vec![0; 5], 0.0));
    assert_eq!(found.centers, [3.0; 4]);
}

#[test]
fn a_row_of_weight_w_counts_like_w_rows() {
    let x = clouds(300, 4, 5);
    let weights: Vec<f64> = (0..300).map(|row| f64::from(row % 3)).collect();
    let repeated: Vec<f64> = x
        .chunks(4)
        .zip(&weights)
        .flat_map(|(x, weight)| x.repeat(*weight as usize))
        .collect();
    let place = place(4 << 20, 2);
    let start = x[..20].to_vec();
    let one = store(&place, &x, 4, DType::F64, Order::Row);
    let one = fit(
        &place.session,
        one.into(),
        &start,
        Options {
            weights: Some(weights),
            ..options(20)
        },
    );
    let other = store(&place, &repeated, 4, DType::F64, Order::Row);
    let (one, other) = (
        one.unwrap().run().unwrap(),
        fit(&place.session, other.into(), &start, options(20))
            .unwrap()
            .run()
            .unwrap(),
    );
    assert!((one.inertia - other.inertia).abs() < 1e-9 * other.inertia);
    one.centers
        .iter()
        .zip(&other.centers)
        .for_each(|(one, other)| assert!((one - other).abs() < 1e-9));
}

#[test]
fn nearest_centres_and_distances_are_found_for_other_rows() {
    let (x, centers) = (clouds(1000, 5, 3), numbers(15, 9));
    let place = place(2 << 20, 2);
    let array = store(&place, &x, 5, DType::F64, Order::Row);
    let found = assign(&place.session, (&array).into(), &centers, None)
        .unwrap()
        .run()
        .unwrap();
    let far = distances(&place.session, (&array).into(), &centers, Output::Scratch)
        .unwrap()
        .run()
        .unwrap();
    let far = far.read().unwrap().run().unwrap();
    let far = &bytemuck::cast_slice::<u8, f64>(&far)[..3000];
    let mut inertia = 0.0;
    for (row, x) in x.chunks(5).enumerate() {
        let want: Vec<f64> = centers.chunks(5).map(|center| square(x, center)).collect();
        let label = found.labels[row] as usize;
        assert!(want.iter().all(|other| *other >= want[label]));
        inertia += want[label];
        assert!(f64::from(found.distances[row]) >= want[label].sqrt());
        assert!(f64::from(found.distances[row]) <= want[label].sqrt() * 1.00001);
        want.iter()
            .zip(&far[row * 3..])
            .for_each(|(want, far)| assert!((want.sqrt() - far).abs() < 1e-7));
    }
    assert!((found.inertia - inertia).abs() < 1e-9 * inertia);
}

#[test]
fn rows_are_taken_by_number() {
    let x = numbers(70 * 3, 5);
    let place = place(1 << 20, 2);
    let array = store(&place, &x, 3, DType::F64, Order::Column);
    let rows: Vec<u64> = (0..70).filter(|row| row % 3 != 1).collect();
    let want: Vec<f64> = rows
        .iter()
        .flat_map(|&row| x[row as usize * 3..][..3].to_vec())
        .collect();
    assert_eq!(
        take_rows(&place.session, &(&array).into(), &rows)
            .unwrap()
            .run()
            .unwrap(),
        want
    );
    assert!(matches!(
        take_rows(&place.session, &(&array).into(), &[70]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        take_rows(&place.session, &(&array).into(), &[1, 1]),
        Err(Error::Shape { .. })
    ));
}

#[test]
fn what_is_not_finite_is_named() {
    for memory in [32 << 20, 3 << 20] {
        let mut x = clouds(60_000, 8, 3);
        x[12_345 * 8 + 6] = f64::NAN;
        let place = place(memory, 2);
        let array = store(&place, &x, 8, DType::F64, Order::Row);
        match fit(&place.session, array.into(), &x[..24], options(5))
            .unwrap()
            .run()
        {
            Err(Error::NotFinite { row, column, .. }) => assert_eq!((row, column), (12_345, 6)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_without_sense_are_refused() {
    let place = place(1 << 20, 2);
    let array = store(&place, &clouds(4, 2, 2), 2, DType::F64, Order::Row);
    let ask = |start: Vec<f64>, weights| {
        fit(
            &place.session,
            (&array).into(),
            &start,
            Options {
                weights,
                ..options(5)
            },
        )
        .map(|_| ())
    };
    assert!(matches!(ask(vec![0.0; 10], None), Err(Error::Value { .. })));
    assert!(matches!(ask(vec![0.0; 3], None), Err(Error::Shape { .. })));
    assert!(matches!(ask(vec![], None), Err(Error::Shape { .. })));
    assert!(matches!(
        ask(vec![f64::NAN; 4], None),
        Err(Error::Value { .. })
    ));
    assert!(matches!(
        ask(vec![0.0; 4], Some(vec![1.0])),
        Err(Error::Shape { .. })
    ));
    // 4 bytes a row are more than there is.
    let long = Array::create(
        &place.session,
        place.folder.path().join("long.npy"),
        DType::F32,
        &[400_000, 1],
        Order::Row,
    )
    .unwrap();
    let refused = fit(&place.session, long.into(), &[0.0, 1.0], options(5));
    match refused.map(|_| ()) {
        Err(Error::OverBudget { needed, .. }) => assert!(needed > 1_600_000),
        other => panic!("{other:?}"),
    }
}

/// Rows of some entries in CSR, all of a column alike, in two types, and as they are in full.
fn rows_of_equal_columns(
    session: &Session,
    rows: usize,
    values: &[f64],
) -> ([Sparse; 2], Vec<f64>) {
    let (cols, picks) = (values.len(), numbers(rows * 24, 3));
    let (mut offsets, mut indices, mut dense) = (vec![0i64], Vec::new(), vec![0.0; rows * cols]);
    for (row, picks) in picks.chunks(24).enumerate() {
        // Half of them are of a group of columns; a row has all of these.
        let group = row % 7 * (cols / 7);
        let place = |(at, pick): (usize, &f64)| match at % 2 {
            0 => (group + (pick.abs() * 20.0) as usize) % cols,
            _ => (pick.abs() * cols as f64) as usize % cols,
        };
        let mut places: Vec<usize> = match row {
            5 => (0..cols).collect(),
            _ => picks.iter().enumerate().map(place).collect(),
        };
        places.sort_unstable();
        places.dedup();
        (places.iter()).for_each(|&place| dense[row * cols + place] = values[place]);
        indices.extend(places.iter().map(|&place| place as i32));
        offsets.push(indices.len() as i64);
    }
    let made = |real: RealType| {
        let of = |place: &i32| values[*place as usize];
        let bytes = match real {
            RealType::F32 => {
                bytemuck::cast_slice(&indices.iter().map(|at| of(at) as f32).collect::<Vec<_>>())
                    .to_vec()
            }
            RealType::F64 => {
                bytemuck::cast_slice(&indices.iter().map(of).collect::<Vec<_>>()).to_vec()
            }
        };
        let offsets = (DType::I64, buf(bytemuck::cast_slice(&offsets)));
        let places = (DType::I32, buf(bytemuck::cast_slice(&indices)));
        let shape = [rows as u64, cols as u64];
        Sparse::in_memory(
            session,
            Compressed::Rows,
            shape,
            offsets,
            places,
            Some((real, buf(&bytes))),
        )
        .unwrap()
    };
    ([RealType::F32, RealType::F64].map(made), dense)
}

fn buf(bytes: &[u8]) -> Shared {
    let mut made = Buf::anonymous(bytes.len().max(8)).unwrap();
    made[..bytes.len()].copy_from_slice(bytes);
    made.freeze()
}

/// Orthonormal columns, d x r.
fn orthonormal(d: usize, r: usize) -> Vec<f64> {
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for at in 0..r {
        let mut column = numbers(d, at as u64 + 20);
        for other in &columns {
            let along: f64 = column.iter().zip(other).map(|(a, b)| a * b).sum();
            column
                .iter_mut()
                .zip(other)
                .for_each(|(a, b)| *a -= along * b);
        }
        let length = column.iter().map(|a| a * a).sum::<f64>().sqrt();
        columns.push(column.iter().map(|a| a / length).collect());
    }
    (0..d * r).map(|at| columns[at % r][at / r]).collect()
}

/// a, n x d, times b, d x r.
fn times(a: &[f64], d: usize, b: &[f64]) -> Vec<f64> {
    let r = b.len() / d;
    let entry = |a: &[f64], column: usize| (0..d).map(|at| a[at] * b[at * r + column]).sum::<f64>();
    a.chunks(d)
        .flat_map(|a| (0..r).map(move |column| entry(a, column)))
        .collect()
}

#[test]
fn rows_are_clustered_along_vectors_as_if_these_rows_had_been_made() {
    let (n, d, r, k) = (60_000, 70, 6, 9);
    let values: Vec<f64> = (0..d).map(|at| (1.0 + (at % 5) as f64).sqrt()).collect();
    let vectors = orthonormal(d, r);
    let across: Vec<f64> = (0..r * d).map(|at| vectors[at % d * r + at / d]).collect();
    // The first budget holds the rows and bounds, the second neither.
    for memory in [64 << 20, 1 << 20] {
        let place = place(memory, 2);
        let ([single, double], dense) = rows_of_equal_columns(&place.session, n, &values);
        let rows = times(&dense, d, &vectors);
        let start = rows[..k * r].to_vec();
        let want = lloyd(&rows, r, &start, 12);
        let centers = times(&want.centers, r, &across);
        for (x, is_exact) in [(single, false), (double, true)] {
            let path = place.folder.path().join(format!("{is_exact}"));
            let x = scaled(&place.session, &x, Scaling::default(), Some(path))
                .unwrap()
                .run()
                .unwrap();
            for values in [None, Some(values.clone())] {
                let case = format!("{memory}, {is_exact}, {}", values.is_some());
                let columns = Columns {
                    values,
                    along: Some(vectors.clone()),
                };
                let job = fit_columns(&place.session, &x, &start, options(12), columns).unwrap();
                let found = job.run().unwrap();
                let other = found
                    .labels
                    .iter()
                    .zip(&want.labels)
                    .filter(|(a, b)| a != b)
                    .count();
                assert!(
                    other == 0 || !is_exact && other < n / 500,
                    "{case}: {other}"
                );
                let accuracy = if is_exact { 1e-6 } else { 1e-3 };
                assert!(
                    (found.inertia - want.inertia).abs() < accuracy * want.inertia,
                    "{case}"
                );
                let most = if is_exact { 1e-9 } else { 0.02 };
                (found.centers.iter().zip(&centers))
                    .for_each(|(a, b)| assert!((a - b).abs() < most, "{case}"));
                let peak = place.session.last_trace().unwrap().actual.peak_bytes;
                assert!(peak <= memory, "{case}: {peak}");
            }
        }
    }
}

#[test]
fn a_cluster_without_rows_takes_the_farthest_along_the_vectors() {
    let place = place(4 << 20, 2);
    let ([_, x], dense) = rows_of_equal_columns(
        &place.session,
        50,
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0],
    );
    let vectors = orthonormal(10, 2);
    let start = [0.0, 0.0, 1e3, 1e3];
    let rows = store(
        &place,
        &times(&dense, 10, &vectors),
        2,
        DType::F64,
        Order::Row,
    );
    let want = fit(&place.session, rows.into(), &start, options(10))
        .unwrap()
        .run()
        .unwrap();
    let columns = Columns {
        along: Some(vectors),
        ..Columns::default()
    };
    let found = fit_columns(&place.session, &x, &start, options(10), columns)
        .unwrap()
        .run()
        .unwrap();
    assert!(want.labels.contains(&1));
    assert_eq!(found.labels, want.labels);
}

#[test]
fn columns_of_another_number_are_refused() {
    let place = place(4 << 20, 2);
    let ([x, _], _) = rows_of_equal_columns(&place.session, 50, &[1.0; 30]);
    let fit = |columns| fit_columns(&place.session, &x, &[0.0; 30], options(2), columns);
    let known = |values: Option<usize>, along: Option<usize>| Columns {
        values: values.map(|len| vec![1.0; len]),
        along: along.map(|len| vec![1.0; len]),
    };
    for columns in [
        known(Some(29), None),
        known(None, Some(31)),
        known(None, Some(0)),
        known(None, Some(31 * 30)),
    ] {
        assert!(matches!(fit(columns), Err(Error::Shape { .. })));
    }
}
