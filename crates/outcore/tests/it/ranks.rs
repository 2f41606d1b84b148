//! Rows over ranks: what they come to is what one process makes of all of them, on every rank.

use std::sync::Arc;

use outcore::kmeans::{self, KMeans, Options};
use outcore::linalg::{column_statistics, column_statistics_over};
use outcore::pca::{self, Components, Pca};
use outcore::{Array, DType, Error, Order, Result, Session, Settings, Team, ThreadRanks};

const ROW_COUNTS: [&[usize]; 5] = [&[50], &[37, 13], &[20, 0, 30], &[0, 50], &[1, 17, 9, 0, 23]];

fn session(folder: &tempfile::TempDir, memory_bytes: u64, threads: usize) -> Session {
    let settings = Settings {
        memory_bytes: Some(memory_bytes),
        scratch: Some(folder.path().to_owned()),
        threads,
        ..Settings::default()
    };
    Session::new(settings).unwrap()
}

/// Numbers between -1 and 1, the same for the same seed.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = 2 * seed + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 23) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Rows whose columns differ in deviation, and whose means go from rank to rank.
fn rows(count: usize, d: usize) -> Vec<f64> {
    let noise = numbers(count * d, 3).into_iter().enumerate();
    let drift = |row: usize, column: usize| (row * (column % 3)) as f64 / count as f64;
    noise
        .map(|(at, x)| x * (2.0 + (at % d) as f64) + 100.0 + drift(at / d, at % d))
        .collect()
}

fn array(session: &Session, x: &[f64], d: usize, dtype: DType, order: Order) -> Array {
    let array = Array::temporary(session, dtype, &[(x.len() / d) as u64, d as u64], order).unwrap();
    match dtype {
        _ if x.is_empty() => {}
        DType::F64 => array.copy_from_slice(x).unwrap(),
        _ => {
            let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            array.copy_from_slice(&single).unwrap();
        }
    }
    array
}

/// What each of as many ranks makes of its part of the work.
fn on_ranks<T: Send + 'static>(
    size: usize,
    work: impl Fn(usize, &Team) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let work = Arc::new(work);
    let ranks = ThreadRanks::new(size).into_iter().enumerate();
    let threads: Vec<_> = ranks
        .map(|(rank, ranks)| {
            let (team, work) = (Team::new(Arc::new(ranks)), Arc::clone(&work));
            std::thread::spawn(move || work(rank, &team))
        })
        .collect();
    let joined = threads.into_iter().map(|thread| thread.join().unwrap());
    joined.collect()
}

/// The same of rows cut into ranks, each with a session of its own.
fn over<T: Send + 'static>(
    x: &[f64],
    d: usize,
    counts: &[usize],
    (memory_of, dtype, order): (fn(usize) -> u64, DType, Order),
    work: impl Fn(&Session, Array, &Team) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (x, counts) = (x.to_vec(), counts.to_vec());
    on_ranks(counts.len(), move |rank, team| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let session = session(&folder, memory_of(rank), 1 + rank % 2);
        let first: usize = counts[..rank].iter().sum();
        let own = &x[d * first..d * (first + counts[rank])];
        work(&session, array(&session, own, d, dtype, order), team)
    })
}

fn close(found: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        let most = tolerance * (1.0 + wanted.abs());
        assert!(
            (found - wanted).abs() <= most,
            "{what}: {found} for {wanted}"
        );
    }
}

fn check_pca(all: &[Pca], one: &Pca, tolerance: f64, what: &str) {
    assert!(
        all.iter().all(|found| found == &all[0]),
        "{what}: one model on all ranks"
    );
    let found = &all[0];
    assert_eq!(
        (found.samples, found.features),
        (one.samples, one.features),
        "{what}"
    );
    close(&found.mean, &one.mean, tolerance, what);
    close(
        &found.explained_variance,
        &one.explained_variance,
        tolerance,
        what,
    );
    close(
        &[found.total_variance],
        &[one.total_variance],
        tolerance,
        what,
    );
    close(&found.components, &one.components, 100.0 * tolerance, what);
}

#[test]
fn components_over_ranks_are_those_of_one_process() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for counts in ROW_COUNTS {
        let (d, x) = (7, rows(50, 7));
        for (dtype, order, tolerance) in [
            (DType::F64, Order::Row, 1e-12),
            (DType::F64, Order::Column, 1e-12),
            (DType::F32, Order::Row, 1e-5),
        ] {
            for wanted in [
                Components::Count(3),
                Components::All,
                Components::Variance(0.7),
            ] {
                let one = session(&folder, 64 << 20, 2);
                let one = pca::fit(&one, array(&one, &x, d, dtype, order).into(), wanted, 0);
                let one = one.unwrap().run().unwrap();
                let all = over(
                    &x,
                    d,
                    counts,
                    (|_| 64 << 20, dtype, order),
                    move |session, x, team| {
                        let job = pca::fit_over(session, x.into(), wanted, 0, team).unwrap();
                        job.run().unwrap()
                    },
                );
                check_pca(
                    &all,
                    &one,
                    tolerance,
                    &format!("{counts:?} {dtype} {order:?}"),
                );
            }
        }
    }
}

#[test]
fn a_covariance_in_scratch_is_searched_by_all_ranks() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (n, d) = (2100, 301);
    let x = rows(n, d);
    let one = session(&folder, 64 << 20, 2);
    let one = pca::fit(
        &one,
        array(&one, &x, d, DType::F64, Order::Row).into(),
        Components::Count(5),
        1,
    );
    let one = one.unwrap().run().unwrap();
    for counts in [&[2100][..], &[900, 1200], &[0, 1000, 1100]] {
        // The second has memory for its covariance, but does as the others.
        let memory_of = |rank| if rank == 1 { 64 << 20 } else { 5 << 20 };
        let all = over(
            &x,
            d,
            counts,
            (memory_of, DType::F64, Order::Row),
            |session, x, team| {
                let job = pca::fit_over(session, x.into(), Components::Count(5), 1, team).unwrap();
                assert!(job.explain()[0].to_string().contains("in scratch"));
                job.run().unwrap()
            },
        );
        check_pca(&all, &one, 1e-9, &format!("{counts:?}"));
    }
}

fn check_kmeans(all: Vec<KMeans>, one: &KMeans, counts: &[usize], what: &str) {
    let shared = |found: &KMeans| (found.centers.clone(), found.inertia, found.rounds);
    assert!(
        all.iter().all(|found| shared(found) == shared(&all[0])),
        "{what}"
    );
    let lengths: Vec<usize> = all.iter().map(|found| found.labels.len()).collect();
    assert_eq!(
        (lengths.as_slice(), all[0].rounds),
        (counts, one.rounds),
        "{what}"
    );
    close(&all[0].centers, &one.centers, 1e-6, what);
    close(&[all[0].inertia], &[one.inertia], 1e-6, what);
    let labels: Vec<u32> = all.into_iter().flat_map(|found| found.labels).collect();
    assert_eq!(labels, one.labels, "{what}");
}

#[test]
fn centres_over_ranks_are_those_of_one_process() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (n, d) = (50, 3);
    let x = rows(n, d);
    let options = |n: usize, weighted: bool| Options {
        max_iter: 12,
        tol: 0.0,
        weights: weighted.then(|| (0..n).map(|row| (row % 3) as f64).collect()),
    };
    // The second beginning has a centre that no row is nearest to: it gets the farthest row.
    let far = [&x[..2 * d], &[1e4; 3], &[2e4; 3]].concat();
    for start in [x[..4 * d].to_vec(), far] {
        for (dtype, weighted) in [(DType::F64, false), (DType::F64, true), (DType::F32, false)] {
            let one = session(&folder, 64 << 20, 2);
            let own = array(&one, &x, d, dtype, Order::Row);
            let one = kmeans::fit(&one, own.into(), &start, options(n, weighted)).unwrap();
            let one = one.run().unwrap();
            for counts in ROW_COUNTS {
                let what = format!("{counts:?} {dtype} {weighted} from {start:?}");
                let begun = start.clone();
                let starts = counts.to_vec();
                let all = over(
                    &x,
                    d,
                    counts,
                    (|_| 64 << 20, dtype, Order::Row),
                    move |session, x, team| {
                        let first: usize = starts[..team.rank()].iter().sum();
                        let mut own = options(n, weighted);
                        own.weights = own
                            .weights
                            .map(|all| all[first..][..starts[team.rank()]].to_vec());
                        // Those of rank 0 count.
                        let begun: Vec<f64> =
                            begun.iter().map(|x| x + team.rank() as f64).collect();
                        kmeans::fit_over(session, x.into(), &begun, own, team)
                            .unwrap()
                            .run()
                            .unwrap()
                    },
                );
                check_kmeans(all, &one, counts, &what);
            }
        }
    }
}

#[test]
fn statistics_over_ranks_are_those_of_one_process() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (d, x) = (5, rows(50, 5));
    let one = session(&folder, 64 << 20, 2);
    let one = column_statistics(&one, array(&one, &x, d, DType::F64, Order::Row).into());
    let one = one.unwrap().run().unwrap();
    for order in [Order::Row, Order::Column] {
        for counts in ROW_COUNTS {
            let all = over(
                &x,
                d,
                counts,
                (|_| 64 << 20, DType::F64, order),
                |session, x, team| {
                    let job = column_statistics_over(session, x.into(), team).unwrap();
                    job.run().unwrap()
                },
            );
            assert!(all.iter().all(|found| found == &all[0]), "{counts:?}");
            assert_eq!(
                (all[0].count, &all[0].min, &all[0].max),
                (50, &one.min, &one.max)
            );
            close(&all[0].mean, &one.mean, 1e-13, "mean");
            close(&all[0].m2, &one.m2, 1e-12, "m2");
        }
    }
}

/// Clusters and components of what a rank has; the first error.
fn fitted(session: &Session, x: Array, k: usize, team: &Team) -> Result<()> {
    let start = vec![0.5; k * x.cols() as usize];
    let options = Options {
        max_iter: 5,
        tol: 0.0,
        weights: None,
    };
    kmeans::fit_over(session, x.into(), &start, options, team)?
        .run()
        .map(drop)
}

#[test]
fn every_rank_fails_where_one_does_and_none_waits() {
    type Change = fn(usize, &mut Vec<f64>, &mut usize, &mut DType, &mut usize, &mut u64);
    let cases: [(Change, &str); 5] = [
        (
            |rank, x, _, _, _, _| {
                if rank == 1 {
                    x[7] = f64::NAN
                }
            },
            "rank 1: ",
        ),
        (
            |rank, x, d, _, _, _| {
                if rank == 2 {
                    x.truncate(40);
                    *d = 4
                }
            },
            "rank 2 has rows of 4 columns, rank 0 of 5",
        ),
        (
            |rank, _, _, dtype, _, _| {
                if rank == 1 {
                    *dtype = DType::F32
                }
            },
            "rank 1 computes in float32, rank 0 in float64",
        ),
        (
            |rank, _, _, _, k, _| *k += rank,
            "rank 1 was asked for 15 elements",
        ),
        (
            |rank, _, _, _, _, held| {
                if rank == 0 {
                    *held = 8 << 20
                }
            },
            "rank 0: ",
        ),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let errors: Vec<Error> = on_ranks(3, move |rank, team| {
            let (mut x, mut d, mut dtype, mut k, mut held) = (rows(10, 5), 5, DType::F64, 2, 0);
            change(rank, &mut x, &mut d, &mut dtype, &mut k, &mut held);
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let session = session(&folder, 8 << 20, 1);
            let x = array(&session, &x, d, dtype, Order::Row);
            let _held = session.engine().reserve("other things", held).unwrap();
            fitted(&session, x, k, team).unwrap_err()
        });
        for error in &errors {
            assert!(
                error.to_string().starts_with(expected),
                "{number}: {errors:?}"
            );
        }
    }
}
