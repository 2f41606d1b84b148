//! Products, sums and statistics on SSD against plain loops in memory, within small budgets.

use std::path::PathBuf;

use outcore::linalg::{
    Affine, Axpby, Gemm, Reduction, Syrk, affine, axpby, column_norms, column_statistics, gemm,
    gemm_into, reduce, row_norms, scale, syrk,
};
use outcore::pca::{Components, fit};
use outcore::{
    Array, Buf, DType, Error, Job, Norm, Operand, Order, Output, RealType, Session, Settings,
    Shared,
};
use proptest::prelude::*;

struct Fixture {
    folder: tempfile::TempDir,
    session: Session,
}

fn in_memory_bytes(values: &[f32]) -> Shared {
    let mut bytes = Buf::anonymous(values.len() * 4).unwrap();
    bytes[..values.len() * 4].copy_from_slice(bytemuck::cast_slice(values));
    bytes.freeze()
}

fn in_memory(rows: usize, cols: usize, values: &[f32]) -> Operand {
    let bytes = in_memory_bytes(&values[..rows * cols]);
    let (rows, cols) = (rows as u64, cols as u64);
    Operand::Memory {
        bytes,
        dtype: RealType::F32,
        rows,
        cols,
        row_stride: cols,
        col_stride: 1,
    }
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

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self, name: &str, rows: usize, cols: usize, order: Order, values: &[f32]) -> Array {
        let array = Array::create(
            &self.session,
            self.path(name),
            DType::F32,
            &[rows as u64, cols as u64],
            order,
        )
        .unwrap();
        array.write(in_memory_bytes(values)).unwrap().run().unwrap();
        array
    }
}

fn values(array: &Array) -> Vec<f32> {
    let bytes = array.read().unwrap().run().unwrap();
    if array.nbytes() == 0 {
        return Vec::new();
    }
    bytemuck::cast_slice(&bytes[..array.nbytes() as usize]).to_vec()
}

/// Small integers, so that sums are exact in any order.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed
        .wrapping_mul(2862933555777941757)
        .wrapping_add(3037000493);
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 60) as f32) - 8.0
    };
    (0..count).map(|_| next()).collect()
}

fn product(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f32> {
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

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Row), Just(Order::Column)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn gemm_is_the_product(m in 0usize..70, k in 0usize..70, n in 0usize..70, orders in [order(), order(), order()],
                           transposes in any::<[bool; 2]>(), beta in 0i32..2, skip in 0usize..3, seed in any::<u64>()) {
        let place = place(12 << 20);
        let (a, b, c) = (numbers(m * k, seed), numbers(k * n, seed ^ 1), numbers((m + skip) * (n + skip), seed ^ 2));
        let stored = |name: &str, rows, cols, values: &[f32], order, transpose: bool| match transpose {
            false => place.store(name, rows, cols, order, values),
            true => place.store(name, cols, rows, order, &transposed(values, rows, cols)).t(),
        };
        let a_array = stored("a.npy", m, k, &a, orders[0], transposes[0]);
        let b_array = stored("b.npy", k, n, &b, orders[1], transposes[1]);
        let c_whole = place.store("c.npy", m + skip, n + skip, orders[2], &c);
        let c_array = c_whole.slice(skip as u64..(m + skip) as u64, skip as u64..(n + skip) as u64).unwrap();
        let job = gemm(&place.session, a_array.into(), b_array.into(), Gemm { alpha: 2.0, beta: f64::from(beta), out: Output::InPlace(c_array) }).unwrap();
        job.run().unwrap();
        let mut expected = c.clone();
        for (i, row) in product(&a, &b, m, k, n).chunks(n.max(1)).take(m).enumerate() {
            for (j, value) in row.iter().enumerate() {
                let cell = &mut expected[(i + skip) * (n + skip) + j + skip];
                *cell = 2.0 * value + beta as f32 * *cell;
            }
        }
        prop_assert_eq!(values(&c_whole), expected);
    }

    #[test]
    fn syrk_is_the_symmetric_product(n in 0usize..150, k in 0usize..60, by in order(), transpose in any::<bool>(), full in any::<bool>(), seed in any::<u64>()) {
        let place = place(12 << 20);
        let a = numbers(n * k, seed);
        let a_array = if transpose { place.store("a.npy", k, n, by, &transposed(&a, n, k)).t() } else { place.store("a.npy", n, k, by, &a) };
        let out = Output::New(place.path("c.npy"));
        let c = syrk(&place.session, a_array.into(), Syrk { out, full, ..Syrk::default() }).unwrap().run().unwrap();
        let mut expected = product(&a, &transposed(&a, n, k), n, k, n);
        if !full {
            (0..n).for_each(|i| expected[i * n + i + 1..(i + 1) * n].fill(0.0));
        }
        prop_assert_eq!(values(&Array::open(&place.session, place.path("c.npy")).unwrap()), expected);
        drop(c);
    }

    #[test]
    fn numbers_about_a_matrix(m in 1usize..80, n in 1usize..50, by in order(), seed in any::<u64>()) {
        let place = place(8 << 20);
        let x = numbers(m * n, seed);
        let array = place.store("x.npy", m, n, by, &x);
        let session = &place.session;
        let operand = || Operand::from(&array);
        let run = |reduction| reduce(session, operand(), reduction).unwrap().run().unwrap();
        prop_assert_eq!(run(Reduction::Sum), x.iter().map(|&x| f64::from(x)).sum::<f64>());
        prop_assert_eq!(run(Reduction::SumOfSquares), x.iter().map(|&x| f64::from(x * x)).sum::<f64>());
        prop_assert_eq!(run(Reduction::Min), x.iter().map(|&x| f64::from(x)).fold(f64::INFINITY, f64::min));
        prop_assert_eq!(run(Reduction::Max), x.iter().map(|&x| f64::from(x)).fold(f64::NEG_INFINITY, f64::max));
        let norms = row_norms(session, operand(), Norm::L1).unwrap().run().unwrap();
        prop_assert_eq!(norms, x.chunks(n).map(|row| row.iter().map(|&x| f64::from(x.abs())).sum::<f64>()).collect::<Vec<_>>());
        let columns = transposed(&x, m, n);
        let norms = column_norms(session, operand(), Norm::Max).unwrap().run().unwrap();
        prop_assert_eq!(norms, columns.chunks(m).map(|column| column.iter().map(|&x| f64::from(x.abs())).fold(0.0, f64::max)).collect::<Vec<_>>());
        let statistics = column_statistics(session, operand()).unwrap().run().unwrap();
        for (j, column) in columns.chunks(m).enumerate() {
            let mean = column.iter().map(|&x| f64::from(x)).sum::<f64>() / m as f64;
            prop_assert!((statistics.mean[j] - mean).abs() < 1e-12);
        }
    }

    #[test]
    fn sums_scales_and_conversions(m in 1usize..80, n in 1usize..50, orders in [order(), order()], seed in any::<u64>()) {
        let place = place(8 << 20);
        let (x, y) = (numbers(m * n, seed), numbers(m * n, seed ^ 5));
        let (x_array, y_array) = (place.store("x.npy", m, n, orders[0], &x), place.store("y.npy", m, n, orders[1], &y));
        axpby(&place.session, (&x_array).into(), &y_array, Axpby { alpha: 2.0, beta: -1.0 }).unwrap().run().unwrap();
        let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.0 * x - y).collect();
        prop_assert_eq!(&values(&y_array), &sum);
        scale(&place.session, &y_array, 0.5).unwrap().run().unwrap();
        let half: Vec<f32> = sum.iter().map(|sum| sum / 2.0).collect();
        prop_assert_eq!(&values(&y_array), &half);
        let double = y_array.convert(Output::Scratch, DType::F64, orders[0]).unwrap().run().unwrap();
        let back = double.convert(Output::New(place.path("back.npy")), DType::F32, orders[1]).unwrap().run().unwrap();
        prop_assert_eq!(values(&back), half);
    }
}

#[test]
fn a_product_larger_than_memory_moves_what_its_plan_says() {
    for (m, n, k, memory) in [
        (1000usize, 1100, 4001, 28 << 20),
        (768, 768, 2048, 12 << 20),
        (1, 900, 5001, 14 << 20),
    ] {
        let place = place(memory);
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let a_array = place.store("a.npy", m, k, Order::Row, &a);
        let b_array = place.store("b.npy", k, n, Order::Row, &b);
        let job = gemm(
            &place.session,
            a_array.into(),
            b_array.into(),
            Gemm {
                out: Output::New(place.path("c.npy")),
                ..Gemm::default()
            },
        )
        .unwrap();
        let predicted = job.explain()[0].predicted;
        let c = job.run().unwrap();
        let trace = place.session.last_trace().unwrap();
        assert_eq!(
            trace.actual.bytes_read + trace.bytes_reused,
            predicted.bytes_read
        );
        assert_eq!(trace.actual.bytes_written, predicted.bytes_written);
        assert!(
            trace.actual.peak_bytes <= memory,
            "{} of {memory}",
            trace.actual.peak_bytes
        );
        let (got, expected) = (values(&c), product(&a, &b, m, k, n));
        let wrong: Vec<_> = (0..m * n)
            .filter(|&at| got[at] != expected[at])
            .map(|at| (at / n, at % n, got[at], expected[at]))
            .collect();
        assert!(
            wrong.is_empty(),
            "{} elements of {m} x {n}, the first {:?}",
            wrong.len(),
            &wrong[..wrong.len().min(8)]
        );
    }
}

#[test]
fn products_of_very_many_tasks_run_in_segments() {
    let place = place(2 << 20);
    let (n, k) = (1000usize, 1000);
    let (left, right) = (numbers(n * k, 1), numbers(k * n, 2));
    let (a, b) = (
        place.store("a.npy", n, k, Order::Row, &left),
        place.store("b.npy", k, n, Order::Row, &right),
    );
    let gemm = gemm(
        &place.session,
        (&a).into(),
        (&b).into(),
        Gemm {
            out: Output::New(place.path("c.npy")),
            ..Gemm::default()
        },
    );
    let syrk = syrk(
        &place.session,
        (&a).into(),
        Syrk {
            out: Output::New(place.path("s.npy")),
            ..Syrk::default()
        },
    );
    for (job, right) in [(gemm, right), (syrk, transposed(&left, n, k))] {
        let job = job.unwrap();
        let explained = job.explain()[0].clone();
        let found = job.run().unwrap();
        let trace = place.session.last_trace().unwrap();
        assert!(explained.tasks > 2048 && trace.runs > 1, "{explained}");
        assert_eq!(trace.predicted, explained.predicted);
        assert!(
            values(&found) == product(&left, &right, n, k, n),
            "{}",
            explained.plan
        );
    }
}

/// What a job has read and written is what its plan said, and it held no more. Where parts of
/// sectors wait for each other some may have to leave early, which costs a read and a write of
/// each.
fn assert_predicted<T: Send + 'static>(
    place: &Fixture,
    what: &str,
    aligned: bool,
    job: Result<Job<T>, Error>,
) {
    let job = job.unwrap();
    let predicted = job.explain()[0].predicted;
    job.run().unwrap();
    let trace = place.session.last_trace().unwrap();
    assert_eq!(trace.predicted, predicted, "{what}: planned twice");
    let (read, written) = (
        trace.actual.bytes_read + trace.bytes_reused,
        trace.actual.bytes_written,
    );
    let (early, same) = (
        written.saturating_sub(predicted.bytes_written),
        written == predicted.bytes_written,
    );
    assert!(
        same || (!aligned && written > predicted.bytes_written && early <= written / 3),
        "{what}: {written} of {predicted:?}"
    );
    assert!(
        read.abs_diff(predicted.bytes_read + early) <= early,
        "{what}: {read} read of {predicted:?}"
    );
    assert!(
        trace.actual.peak_bytes <= predicted.peak_bytes,
        "{what}: held {:?} of {predicted:?}",
        trace.actual
    );
}

#[test]
fn every_operation_moves_what_its_plan_says() {
    for (m, n, order) in [
        (1024usize, 1024usize, Order::Row),
        (1501, 999, Order::Row),
        (1003, 1501, Order::Column),
    ] {
        let place = place(if m == 1024 { 7 << 20 } else { 9 << 20 });
        let values = numbers(m * n, 1);
        let (x, y) = (
            place.store("x.npy", m, n, order, &values),
            place.store("y.npy", m, n, Order::Row, &values),
        );
        let session = &place.session;
        let of = |array: &Array| Operand::from(array);
        let new = |name: &str| Output::New(place.path(name));
        assert_predicted(
            &place,
            "gemm",
            m == 1024,
            gemm(
                session,
                of(&x),
                of(&y.t()),
                Gemm {
                    out: new("c.npy"),
                    ..Gemm::default()
                },
            ),
        );
        assert_predicted(
            &place,
            "syrk",
            m == 1024,
            syrk(
                session,
                of(&x),
                Syrk {
                    out: new("s.npy"),
                    ..Syrk::default()
                },
            ),
        );
        assert_predicted(
            &place,
            "axpby",
            m == 1024,
            axpby(
                session,
                of(&x),
                &y,
                Axpby {
                    alpha: 2.0,
                    beta: -1.0,
                },
            ),
        );
        assert_predicted(&place, "scale", m == 1024, scale(session, &x, 0.5));
        assert_predicted(
            &place,
            "convert",
            m == 1024,
            x.convert(new("d.npy"), DType::F64, Order::Column),
        );
        assert_predicted(
            &place,
            "reduce",
            m == 1024,
            reduce(session, of(&x), Reduction::Sum),
        );
        assert_predicted(
            &place,
            "row norms",
            m == 1024,
            row_norms(session, of(&x), Norm::L2),
        );
        assert_predicted(
            &place,
            "column norms",
            m == 1024,
            column_norms(session, of(&x), Norm::Max),
        );
        assert_predicted(
            &place,
            "column statistics",
            m == 1024,
            column_statistics(session, of(&x)),
        );
        assert_predicted(
            &place,
            "read",
            m == 1024,
            x.slice(3..m as u64, 1..n as u64 - 1).unwrap().read(),
        );
        assert_predicted(
            &place,
            "write",
            m == 1024,
            x.write(in_memory_bytes(&values)),
        );
        let map = Affine {
            before: vec![0.0; n],
            matrix: vec![1.0; n * 3],
            columns: 3,
            after: vec![],
        };
        assert_predicted(
            &place,
            "affine",
            m == 1024,
            affine(session, of(&x), map, new("a.npy")),
        );
        let narrow = x.slice(0..m as u64, 0..100).unwrap();
        assert_predicted(
            &place,
            "pca",
            m == 1024,
            fit(session, of(&narrow), Components::Count(5), 0),
        );
    }
}

/// A plan that is only looked at made its output first: it took the name's lock and all the space.
#[test]
fn planning_makes_nothing() {
    let place = place(2 << 20);
    let values = numbers(900 * 800, 1);
    let (a, b) = (
        place.store("a.npy", 900, 800, Order::Row, &values),
        place.store("b.npy", 800, 900, Order::Row, &values),
    );
    let planner = place.session.planner();
    let there = || std::fs::read_dir(place.folder.path()).unwrap().count();
    let before = there();
    let product = |session: &Session, out| {
        gemm(
            session,
            (&a).into(),
            (&b).into(),
            Gemm {
                out,
                ..Gemm::default()
            },
        )
        .unwrap()
    };
    let planned = product(&planner, Output::New(place.path("c.npy")));
    let unnamed = product(&planner, Output::Scratch);
    assert_eq!(there(), before);
    let real = product(&place.session, Output::New(place.path("c.npy")));
    assert_eq!(planned.explain()[0].predicted, real.explain()[0].predicted);
    assert!(matches!(planned.run(), Err(Error::Value { .. })));
    assert!(matches!(unnamed.run(), Err(Error::Value { .. })));
    assert!(matches!(
        Array::create(&planner, place.path("d.npy"), DType::F32, &[3], Order::Row),
        Err(Error::Value { .. })
    ));
    real.run().unwrap();
}

#[test]
fn the_memory_that_an_error_asks_for_is_enough() {
    let place = place(64 << 20);
    let (m, n) = (3usize, 1usize << 19);
    let x = place.store("x.npy", m, n, Order::Row, &numbers(m * n, 1));
    let tall = place.store("tall.npy", 4000, 700, Order::Row, &numbers(4000 * 700, 2));
    let of = |session: &Session, array: &Array| {
        Operand::from(Array::open(session, array.path().unwrap()).unwrap())
    };
    type Work<'a> = &'a dyn Fn(&Session) -> outcore::Result<()>;
    let work: [(&str, Work<'_>); 8] = [
        ("column statistics", &|s| {
            column_statistics(s, of(s, &x))?.run().map(drop)
        }),
        ("column norms", &|s| {
            column_norms(s, of(s, &x), Norm::L2)?.run().map(drop)
        }),
        ("row norms", &|s| {
            row_norms(s, of(s, &x), Norm::L2)?.run().map(drop)
        }),
        ("syrk", &|s| {
            syrk(s, of(s, &x), Syrk::default())?.run().map(drop)
        }),
        ("gemm", &|s| {
            gemm(s, of(s, &x), of(s, &x).t(), Gemm::default())?
                .run()
                .map(drop)
        }),
        ("read", &|s| {
            Array::open(s, x.path().unwrap())?.read()?.run().map(drop)
        }),
        ("all components", &|s| {
            fit(s, of(s, &tall), Components::All, 0)?.run().map(drop)
        }),
        ("some components", &|s| {
            fit(s, of(s, &tall), Components::Count(20), 0)?
                .run()
                .map(drop)
        }),
    ];
    let session = |memory| {
        let scratch = Some(place.folder.path().join("scratch"));
        Session::new(Settings {
            memory_bytes: Some(memory),
            scratch,
            threads: 2,
            ..Settings::default()
        })
        .unwrap()
    };
    for (what, run) in work {
        match run(&session(1 << 20)) {
            Err(Error::OverBudget { needed, .. }) => {
                run(&session(needed)).unwrap_or_else(|error| {
                    panic!("{what} with the {needed} bytes asked for: {error}")
                });
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(()) => {}
        }
    }
}

#[test]
fn products_of_what_is_in_memory_and_what_is_not() {
    let place = place(16 << 20);
    let (m, k, n) = (300usize, 200, 100);
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    let a_array = place.store("a.npy", m, k, Order::Row, &a);
    let b_memory = in_memory(k, n, &b);
    let into = Buf::anonymous(m * n * 4).unwrap();
    let c = gemm_into(
        &place.session,
        (&a_array).into(),
        b_memory.clone(),
        1.0,
        into,
    )
    .unwrap()
    .run()
    .unwrap();
    let expected = product(&a, &b, m, k, n);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&c[..m * n * 4]), expected);
    let c = gemm(&place.session, (&a_array).into(), b_memory, Gemm::default())
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(values(&c), expected);
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let (m, k, n) = (500usize, 700, 300);
    let (a, b): (Vec<f32>, Vec<f32>) = (
        numbers(m * k, 1).iter().map(|x| x / 3.0).collect(),
        numbers(k * n, 2).iter().map(|x| x / 7.0).collect(),
    );
    let run = |threads| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings = Settings {
            memory_bytes: Some(24 << 20),
            scratch: Some(folder.path().join("scratch")),
            threads,
            ..Settings::default()
        };
        let place = Fixture {
            session: Session::new(settings).unwrap(),
            folder,
        };
        let (a_file, b_file) = (
            place.store("a.npy", m, k, Order::Row, &a),
            place.store("b.npy", k, n, Order::Row, &b),
        );
        let sums = column_statistics(&place.session, (&a_file).into())
            .unwrap()
            .run()
            .unwrap();
        let into = Buf::anonymous(m * n * 4).unwrap();
        let resident = gemm_into(
            &place.session,
            in_memory(m, k, &a),
            in_memory(k, n, &b),
            1.0,
            into,
        )
        .unwrap()
        .run()
        .unwrap();
        (
            values(
                &gemm(
                    &place.session,
                    a_file.into(),
                    b_file.into(),
                    Gemm::default(),
                )
                .unwrap()
                .run()
                .unwrap(),
            ),
            sums,
            resident.to_vec(),
        )
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3) && one == run(16));
}

/// Tasks take equal shares of the rows; those of few rows were multiplied another way, and added up
/// in another order.
#[test]
fn bits_of_a_product_in_memory_do_not_depend_on_the_number_of_threads() {
    let (m, k, n) = (1000usize, 6000, 600);
    let [a, b] = [(m * k, 3.0, 1), (k * n, 7.0, 2)].map(|(len, divisor, seed)| -> Vec<f32> {
        numbers(len, seed).iter().map(|x| x / divisor).collect()
    });
    let Operand::Memory { bytes, dtype, .. } = in_memory(k, n, &b) else {
        unreachable!()
    };
    let by_columns = Operand::Memory {
        bytes,
        dtype,
        rows: k as u64,
        cols: n as u64,
        row_stride: 1,
        col_stride: k as u64,
    };
    let run = |threads| {
        let session = Session::new(Settings {
            memory_bytes: Some(64 << 20),
            threads,
            ..Settings::default()
        })
        .unwrap();
        let into = Buf::anonymous(m * n * 4).unwrap();
        gemm_into(&session, in_memory(m, k, &a), by_columns.clone(), 1.0, into)
            .unwrap()
            .run()
            .unwrap()
            .to_vec()
    };
    let one = run(1);
    assert!(one == run(2) && one == run(5) && one == run(16));
}

#[test]
fn bad_operands_are_named() {
    let place = place(8 << 20);
    let a = place.store("a.npy", 3, 4, Order::Row, &[0.0; 12]);
    let wrong = gemm(&place.session, (&a).into(), (&a).into(), Gemm::default())
        .err()
        .unwrap();
    assert!(
        matches!(&wrong, Error::Shape { what } if what.contains("a.npy")),
        "{wrong}"
    );
    let other = Array::create(
        &place.session,
        place.path("d.npy"),
        DType::F64,
        &[4, 3],
        Order::Row,
    )
    .unwrap();
    assert!(matches!(
        gemm(
            &place.session,
            (&a).into(),
            (&other).into(),
            Gemm::default()
        ),
        Err(Error::DType { .. })
    ));
    let itself = gemm(
        &place.session,
        (&a).into(),
        a.t().into(),
        Gemm {
            out: Output::InPlace(a.slice(0..3, 0..3).unwrap()),
            ..Gemm::default()
        },
    );
    assert!(matches!(itself, Err(Error::Value { .. })));
    assert!(matches!(
        Array::open(&place.session, place.path("none.npy")),
        Err(Error::Store(_))
    ));
    let beta = gemm(
        &place.session,
        (&a).into(),
        a.t().into(),
        Gemm {
            beta: 1.0,
            ..Gemm::default()
        },
    );
    assert!(matches!(beta, Err(Error::Value { .. })));
}

/// Panels were cut by payload, and one column of a narrow matrix took a frame of a thousand bytes a
/// row.
#[test]
fn a_column_of_a_tall_matrix_fits_a_small_budget() {
    let place = place(8 << 20);
    let (m, n) = (200_000, 10);
    let x = place.store("x.npy", m, n, Order::Row, &numbers(m * n, 3));
    let column = x.slice(0..m as u64, 3..4).unwrap();
    let expected: f64 = numbers(m * n, 3)
        .chunks(n)
        .map(|row| f64::from(row[3]))
        .sum();
    assert_eq!(
        reduce(&place.session, (&column).into(), Reduction::Sum)
            .unwrap()
            .run()
            .unwrap(),
        expected
    );
    assert_eq!(values(&column).len(), m);
}
