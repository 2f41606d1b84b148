//! The bits of a result depend on the data and the budget: not on half of the memory being
//! reserved by others, nor on the number of threads.

use std::path::{Path, PathBuf};

use outcore::kmeans::{Options, assign, distances, fit as cluster};
use outcore::linalg::{
    Csrmm, Gemm, Reduction, Scaling, Syrk, column_norms, column_statistics, csrmm, csrmm_into,
    gemm, gemm_into, gram_product, reduce, row_norms, scaled, sparse_column_statistics,
    sparse_row_norms, syrk,
};
use outcore::pca::{Components, fit};
use outcore::{
    Array, Buf, Compressed, DType, Norm, Order, Output, RealType, Session, Settings, Shared, Sparse,
};

const BUDGET: u64 = 8 << 20;

/// Matrices of numbers whose sums depend on the order in which they are added.
struct Fixture {
    folder: tempfile::TempDir,
}

fn session(folder: &Path, memory_bytes: u64, threads: usize) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads,
        ..Settings::default()
    })
    .unwrap()
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bytes<T: bytemuck::Pod>(values: &[T]) -> Shared {
    let from: &[u8] = bytemuck::cast_slice(values);
    let mut buf = Buf::anonymous(from.len()).unwrap();
    buf[..from.len()].copy_from_slice(from);
    buf.split_to(from.len()).freeze()
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn dense(&self, name: &str, rows: usize, cols: usize, order: Order) -> PathBuf {
        let array = Array::create(
            &session(self.folder.path(), BUDGET, 2),
            self.path(name),
            DType::F32,
            &[rows as u64, cols as u64],
            order,
        )
        .unwrap();
        array
            .write(bytes(&numbers(rows * cols, rows as u64)))
            .unwrap()
            .run()
            .unwrap();
        self.path(name)
    }

    /// Some entries a row, and one row of very many.
    fn sparse(&self, name: &str, rows: usize, cols: usize, per_row: usize) -> PathBuf {
        let mut state = 5u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let (mut offsets, mut indices) = (vec![0i64], Vec::new());
        for row in 0..rows {
            let count = if row == 3 {
                cols / 2
            } else {
                next() % (2 * per_row)
            };
            let mut places: Vec<i32> = (0..count).map(|_| (next() % cols) as i32).collect();
            places.sort_unstable();
            places.dedup();
            indices.extend(places);
            offsets.push(indices.len() as i64);
        }
        let session = session(self.folder.path(), 64 << 20, 2);
        let (offsets, places) = ((DType::I64, bytes(&offsets)), (DType::I32, bytes(&indices)));
        let values = Some((RealType::F32, bytes(&numbers(indices.len(), 9))));
        let shape = [rows as u64, cols as u64];
        let made =
            Sparse::in_memory(&session, Compressed::Rows, shape, offsets, places, values).unwrap();
        scaled(&session, &made, Scaling::default(), Some(self.path(name)))
            .unwrap()
            .run()
            .unwrap();
        self.path(name)
    }

    /// Compares what `run` finds alone with what it finds while another has a part of the memory,
    /// with several numbers of threads.
    fn check<R: PartialEq>(&self, what: &str, budget: u64, run: impl Fn(&Session) -> R) {
        let alone = run(&session(self.folder.path(), budget, 2));
        for (threads, part) in [(1, 4), (2, 2), (5, 2)] {
            let session = session(self.folder.path(), budget, threads);
            let held =
                (part > 0).then(|| session.engine().reserve("another", budget / part).unwrap());
            assert!(
                run(&session) == alone,
                "{what}: other bits with {threads} threads where another has 1/{part}"
            );
            drop(held);
        }
        let whole = session(self.folder.path(), 5 * budget, 2);
        let held = whole.engine().reserve("another", 3 * budget).unwrap();
        assert!(
            run(&whole.part(budget).unwrap()) == alone,
            "{what}: other bits in a part of a larger budget"
        );
        drop(held);
    }
}

/// The bits of all elements; a matrix may be larger than what is free.
fn bits(array: &Array) -> Vec<u32> {
    let reader = Session::new(Settings {
        memory_bytes: Some(64 << 20),
        ..Settings::default()
    })
    .unwrap();
    let again = array.path().map(|path| Array::open(&reader, path).unwrap());
    let read = again
        .as_ref()
        .unwrap_or(array)
        .read()
        .unwrap()
        .run()
        .unwrap();
    bytemuck::pod_collect_to_vec(&read[..array.nbytes() as usize])
}

fn doubles(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn into(elements: usize) -> Buf {
    Buf::anonymous(elements * 4).unwrap().split_to(elements * 4)
}

#[test]
fn products() {
    let place = Fixture::new();
    let shapes = [
        (700, 900, 800),
        (300, 6000, 200),
        (3000, 40, 700),
        (50, 20_000, 30),
        (2100, 2100, 90),
    ];
    for (number, (m, k, n)) in shapes.into_iter().enumerate() {
        for (a_order, b_order) in [
            (Order::Row, Order::Row),
            (Order::Column, Order::Row),
            (Order::Row, Order::Column),
        ] {
            let name = |operand: &str| format!("{operand} {number} {a_order:?} {b_order:?}.npy");
            let (a, b) = (
                place.dense(&name("a"), m, k, a_order),
                place.dense(&name("b"), k, n, b_order),
            );
            place.check(&format!("gemm {m} x {k} x {n}"), BUDGET, |session| {
                let operands = [&a, &b].map(|path| Array::open(session, path).unwrap());
                let [a, b] = operands.map(Into::into);
                bits(
                    &gemm(
                        session,
                        a,
                        b,
                        Gemm {
                            alpha: 0.7,
                            ..Gemm::default()
                        },
                    )
                    .unwrap()
                    .run()
                    .unwrap(),
                )
            });
            if n < 300 {
                place.check(
                    &format!("gemm into memory {m} x {k} x {n}"),
                    BUDGET,
                    |session| {
                        let operands = [&a, &b].map(|path| Array::open(session, path).unwrap());
                        let [a, b] = operands.map(Into::into);
                        gemm_into(session, a, b, 0.7, into(m * n))
                            .unwrap()
                            .run()
                            .unwrap()
                            .to_vec()
                    },
                );
            }
            for path in [a, b] {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

#[test]
fn symmetric_products() {
    let place = Fixture::new();
    for (n, k) in [(700, 900), (1300, 70), (70, 9000)] {
        let a = place.dense(&format!("{n}.npy"), n, k, Order::Row);
        for transposed in [false, true] {
            place.check(
                &format!("syrk of {n} x {k}, transposed: {transposed}"),
                BUDGET,
                |session| {
                    let a = Array::open(session, &a).unwrap();
                    let a = if transposed { a.t() } else { a };
                    if a.rows() > 3000 {
                        return Vec::new();
                    }
                    bits(
                        &syrk(
                            session,
                            a.into(),
                            Syrk {
                                alpha: 0.7,
                                ..Syrk::default()
                            },
                        )
                        .unwrap()
                        .run()
                        .unwrap(),
                    )
                },
            );
        }
    }
}

#[test]
fn numbers_about_a_matrix() {
    let place = Fixture::new();
    for (rows, cols, order) in [
        (40_000, 50, Order::Row),
        (3000, 1000, Order::Row),
        (20_000, 100, Order::Column),
    ] {
        let x = place.dense(&format!("{rows} {order:?}.npy"), rows, cols, order);
        place.check(
            &format!("numbers of {rows} x {cols} {order:?}"),
            BUDGET,
            |session| {
                let x = || Array::open(session, &x).unwrap().into();
                let sum = reduce(session, x(), Reduction::Sum).unwrap().run().unwrap();
                let squares = reduce(session, x(), Reduction::SumOfSquares)
                    .unwrap()
                    .run()
                    .unwrap();
                let columns = column_norms(session, x(), Norm::L2).unwrap().run().unwrap();
                let rows = row_norms(session, x(), Norm::L1).unwrap().run().unwrap();
                let found = column_statistics(session, x()).unwrap().run().unwrap();
                [vec![sum, squares], columns, rows, found.mean, found.m2]
                    .map(|values| doubles(&values))
            },
        );
    }
}

#[test]
fn principal_components() {
    let place = Fixture::new();
    // One panel with lanes, several panels, a covariance in scratch.
    for (rows, cols, count, budget) in [
        (9000, 60, 10, BUDGET),
        (3000, 300, 12, 2 * BUDGET),
        (1500, 1600, 8, 4 * BUDGET),
    ] {
        let x = place.dense(&format!("{rows}.npy"), rows, cols, Order::Row);
        place.check(
            &format!("components of {rows} x {cols}"),
            budget,
            |session| {
                let x = Array::open(session, &x).unwrap().into();
                let found = fit(session, x, Components::Count(count), 3)
                    .unwrap()
                    .run()
                    .unwrap();
                [found.components, found.explained_variance, found.mean]
                    .map(|values| doubles(&values))
            },
        );
    }
}

#[test]
fn clusters() {
    let place = Fixture::new();
    // X in memory, and a copy in fewer bits; bounds for all rows, and none where memory is short.
    for (rows, cols, k) in [(6000, 40, 12), (60_000, 40, 12), (200_000, 12, 5)] {
        let x = place.dense(&format!("{rows}.npy"), rows, cols, Order::Row);
        let start: Vec<f64> = numbers(k * cols, 77).into_iter().map(f64::from).collect();
        place.check(
            &format!("{k} clusters of {rows} x {cols}"),
            BUDGET,
            |session| {
                let x = || Array::open(session, &x).unwrap().into();
                let options = Options {
                    max_iter: 6,
                    tol: 0.0,
                    weights: None,
                };
                let found = cluster(session, x(), &start, options)
                    .unwrap()
                    .run()
                    .unwrap();
                (
                    doubles(&found.centers),
                    found.labels,
                    found.inertia.to_bits(),
                )
            },
        );
        if rows < 10_000 {
            place.check(&format!("labels of {rows} x {cols}"), BUDGET, |session| {
                let x = || Array::open(session, &x).unwrap().into();
                let found = assign(session, x(), &start, None).unwrap().run().unwrap();
                let far = distances(session, x(), &start, Output::Scratch)
                    .unwrap()
                    .run()
                    .unwrap();
                (found.labels, found.inertia.to_bits(), bits(&far))
            });
        }
    }
}

#[test]
fn sparse_matrices() {
    let place = Fixture::new();
    let (rows, cols, d) = (20_000, 9000, 16);
    let a = place.sparse("a", rows, cols, 12);
    let (b, c) = (
        place.dense("b.npy", cols, d, Order::Row),
        place.dense("c.npy", rows, d, Order::Row),
    );
    let budget = 2 * BUDGET;
    let open = |session: &Session, path: &Path| Array::open(session, path).unwrap();
    place.check("csrmm", budget, |session| {
        let (a, b) = (Sparse::open(session, &a).unwrap(), open(session, &b));
        bits(
            &csrmm(
                session,
                &a,
                b.into(),
                Csrmm {
                    alpha: 0.7,
                    ..Csrmm::default()
                },
            )
            .unwrap()
            .run()
            .unwrap(),
        )
    });
    place.check("csrmm of a transpose", budget, |session| {
        let (a, c) = (Sparse::open(session, &a).unwrap(), open(session, &c));
        bits(
            &csrmm(
                session,
                &a.t(),
                c.into(),
                Csrmm {
                    alpha: 0.7,
                    ..Csrmm::default()
                },
            )
            .unwrap()
            .run()
            .unwrap(),
        )
    });
    let wide = place.dense("wide.npy", cols, 64, Order::Row);
    place.check("csrmm in bands", BUDGET / 4, |session| {
        let (a, b) = (Sparse::open(session, &a).unwrap(), open(session, &wide));
        bits(
            &csrmm(session, &a, b.into(), Csrmm::default())
                .unwrap()
                .run()
                .unwrap(),
        )
    });
    for transposed in [false, true] {
        place.check(
            &format!("csrgemv, transposed: {transposed}"),
            budget,
            |session| {
                let a = Sparse::open(session, &a).unwrap();
                let a = if transposed { a.t() } else { a };
                let x = numbers(a.cols() as usize, 4);
                let x = outcore::Operand::Memory {
                    bytes: bytes(&x),
                    dtype: RealType::F32,
                    rows: a.cols(),
                    cols: 1,
                    row_stride: 1,
                    col_stride: 1,
                };
                csrmm_into(session, &a, x, 1.0, into(a.rows() as usize))
                    .unwrap()
                    .run()
                    .unwrap()
                    .to_vec()
            },
        );
    }
    place.check("A^T A X", budget, |session| {
        let (a, b) = (Sparse::open(session, &a).unwrap(), open(session, &b));
        bits(
            &gram_product(session, &a, b.into(), Output::Scratch)
                .unwrap()
                .run()
                .unwrap(),
        )
    });
    place.check("numbers about a sparse matrix", budget, |session| {
        let a = Sparse::open(session, &a).unwrap();
        let along = sparse_row_norms(session, &a, Norm::L2)
            .unwrap()
            .run()
            .unwrap();
        let across = sparse_row_norms(session, &a.t(), Norm::L1)
            .unwrap()
            .run()
            .unwrap();
        let found = sparse_column_statistics(session, &a)
            .unwrap()
            .run()
            .unwrap();
        [along, across, found.columns.mean, found.columns.m2].map(|values| doubles(&values))
    });
}

#[test]
fn clusters_of_sparse_rows() {
    let place = Fixture::new();
    let (rows, cols, k) = (8000, 500, 6);
    let a = place.sparse("a", rows, cols, 10);
    let start: Vec<f64> = numbers(k * cols, 77).into_iter().map(f64::from).collect();
    place.check("clusters of sparse rows", BUDGET, |session| {
        let a = Sparse::open(session, &a).unwrap();
        let options = Options {
            max_iter: 5,
            tol: 0.0,
            weights: None,
        };
        let found = cluster(session, (&a).into(), &start, options)
            .unwrap()
            .run()
            .unwrap();
        let far = distances(session, (&a).into(), &start, Output::Scratch)
            .unwrap()
            .run()
            .unwrap();
        (
            doubles(&found.centers),
            found.labels,
            found.inertia.to_bits(),
            bits(&far),
        )
    });
}
