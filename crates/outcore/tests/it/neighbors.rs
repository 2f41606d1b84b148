//! Nearest rows: those of the plain twin, for every metric, budget and number of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outcore::kernels::{Metric, neighbors_reference, view};
use outcore::neighbors::{
    Checkpoint, GraphOutput, NeighborOptions, NeighborOutputs, RadiusOptions, nearest_rows,
    nearest_rows_by_centers, nearest_rows_graph, nearest_rows_over_ranks, rows_within,
};
use outcore::ranks::Ranks;
use outcore::ring::Messages;
use outcore::{
    Array, Buf, DType, Error, Job, Order, Output, Result, Session, Settings, Team, ThreadRanks,
};

const WIDTH: usize = 24;

fn stored(memory_bytes: u64, threads: usize, rows: usize) -> (tempfile::TempDir, Array, Vec<f32>) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch: Some(folder.path().join("scratch")),
        threads,
        ..Settings::default()
    })
    .unwrap();
    let shape = [rows as u64, WIDTH as u64];
    let path = folder.path().join("x.npy");
    let x = Array::create(&session, path, DType::F32, &shape, Order::Row).unwrap();
    let mut state = 1u32;
    // Few values: many distances are equal.
    let values: Vec<f32> = (0..rows * WIDTH)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 30) as f32
        })
        .collect();
    let mut buf = Buf::anonymous(values.len() * 4).unwrap();
    buf[..values.len() * 4].copy_from_slice(bytemuck::cast_slice(&values));
    x.write(buf.freeze()).unwrap().run().unwrap();
    (folder, x, values)
}

#[test]
fn neighbors_do_not_depend_on_the_budget() {
    for metric in [Metric::Euclidean, Metric::Cosine, Metric::InnerProduct] {
        let mut all = Vec::new();
        for (memory, threads) in [(3 << 20, 1), (4 << 20, 2), (64 << 20, 2)] {
            let (_folder, x, values) = stored(memory, threads, 9000);
            let options = NeighborOptions { k: 6, metric };
            let job = nearest_rows(
                x.session(),
                (&x).into(),
                None,
                options,
                NeighborOutputs::default(),
            )
            .unwrap();
            let [distances, rows] = job.run().unwrap();
            let (distances, rows) = (
                distances.to_vec::<f64>().unwrap(),
                rows.to_vec::<i64>().unwrap(),
            );
            let rows_of = view(&values, 9000, WIDTH, WIDTH, 1).unwrap();
            for query in [0, 1, 4500, 8999] {
                let one = rows_of.subrows(query, 1);
                let near = neighbors_reference(one, rows_of, 6, metric, Some(query as u64));
                let expected: Vec<i64> = near.iter().map(|near| near.row as i64).collect();
                assert_eq!(rows[query * 6..][..6], expected);
                let expected: Vec<f64> = near
                    .iter()
                    .map(|near| metric.shown(near.distance))
                    .collect();
                assert_eq!(distances[query * 6..][..6], expected);
            }
            all.push((distances, rows));
        }
        assert!(all.iter().all(|found| *found == all[0]), "{metric:?}");
    }
}

fn groups(job: &Job<[Array; 2]>) -> u64 {
    let notes = &job.explain()[0].notes;
    let (_, count) = notes.iter().find(|(what, _)| what == "groups").unwrap();
    count.parse().unwrap()
}

#[test]
fn rows_are_read_once_a_group_of_queries() {
    let (_folder, x, _) = stored(16 << 20, 2, 200_000);
    let options = NeighborOptions {
        k: 3,
        metric: Metric::Euclidean,
    };
    let queries = x.slice(0..40_000, 0..WIDTH as u64).unwrap();
    let outputs = NeighborOutputs::default();
    let job = nearest_rows(
        x.session(),
        (&x).into(),
        Some((&queries).into()),
        options,
        outputs,
    )
    .unwrap();
    let groups = groups(&job);
    let read: u64 = job
        .explain()
        .iter()
        .map(|plan| plan.predicted.bytes_read)
        .sum();
    assert!(groups > 1);
    let least = groups * x.nbytes() + queries.nbytes();
    assert!(
        read <= least + least / 20,
        "{read} bytes of {groups} groups"
    );
}

#[test]
fn rows_that_look_for_each_other_are_multiplied_once() {
    let (_folder, x, _) = stored(16 << 20, 2, 60_000);
    let options = NeighborOptions {
        k: 3,
        metric: Metric::Euclidean,
    };
    let flops = |queries: Option<&Array>| {
        let (queries, outputs) = (queries.map(Into::into), NeighborOutputs::default());
        let job = nearest_rows(x.session(), (&x).into(), queries, options, outputs).unwrap();
        assert!(groups(&job) > 1, "there are several groups");
        job.explain().iter().map(|plan| plan.flops).sum::<u64>()
    };
    let (own, queries) = (flops(None), flops(Some(&x)));
    assert!(own < queries / 100 * 52, "{own} of {queries}");
}

#[test]
fn a_search_by_clusters_finds_the_same_bytes() {
    // More neighbours than some clusters have rows; many distances are equal.
    for k in [1, 300] {
        let metric = Metric::Euclidean;
        let options = NeighborOptions { k, metric };
        let mut all = Vec::new();
        for (memory, threads) in [(4 << 20, 1), (6 << 20, 2), (64 << 20, 2)] {
            let (_folder, x, values) = stored(memory, threads, 7000);
            let centers: Vec<f64> = values[..40 * WIDTH].iter().map(|x| f64::from(*x)).collect();
            let some = x.slice(1000..1700, 0..WIDTH as u64).unwrap();
            for queries in [None, Some(&some)] {
                let (rows, queries) = ((&x).into(), queries.map(Into::into));
                let job = nearest_rows_by_centers(
                    x.session(),
                    rows,
                    queries,
                    &centers,
                    options,
                    NeighborOutputs::default(),
                );
                let found = job.unwrap().run().unwrap();
                let [distances, rows] = &found;
                all.push((
                    distances.to_vec::<f64>().unwrap(),
                    rows.to_vec::<i64>().unwrap(),
                ));
            }
        }
        let (_folder, x, _) = stored(64 << 20, 2, 7000);
        let some = x.slice(1000..1700, 0..WIDTH as u64).unwrap();
        let expected = [None, Some(&some)].map(|queries| {
            let (rows, queries) = ((&x).into(), queries.map(Into::into));
            let job = nearest_rows(x.session(), rows, queries, options, Default::default());
            let [distances, rows] = job.unwrap().run().unwrap();
            (
                distances.to_vec::<f64>().unwrap(),
                rows.to_vec::<i64>().unwrap(),
            )
        });
        for (number, found) in all.iter().enumerate() {
            assert!(*found == expected[number % 2], "k = {k}, search {number}");
        }
    }
}

#[test]
fn what_clusters_cannot_tell_is_refused() {
    let (_folder, x, _) = stored(16 << 20, 2, 100);
    let refused = |metric, centers: &[f64]| {
        let options = NeighborOptions { k: 1, metric };
        let outputs = NeighborOutputs::default();
        nearest_rows_by_centers(x.session(), (&x).into(), None, centers, options, outputs)
            .map(drop)
            .unwrap_err()
    };
    let center = [0.0; WIDTH];
    assert!(matches!(
        refused(Metric::Cosine, &center),
        Error::Value { .. }
    ));
    assert!(matches!(
        refused(Metric::Euclidean, &[f64::NAN; WIDTH]),
        Error::Value { .. }
    ));
    assert!(matches!(
        refused(Metric::Euclidean, &center[1..]),
        Error::Shape { .. }
    ));
    // Twenty bytes a row do not fit.
    let (_folder, x, _) = stored(1 << 20, 1, 60_000);
    let options = NeighborOptions {
        k: 1,
        metric: Metric::Euclidean,
    };
    let outputs = NeighborOutputs::default();
    let job = nearest_rows_by_centers(x.session(), (&x).into(), None, &center, options, outputs);
    assert!(matches!(
        job.map(drop).unwrap_err(),
        Error::OverBudget { .. }
    ));
}

#[test]
fn rows_within_a_radius_do_not_depend_on_the_budget() {
    let options = RadiusOptions {
        radius: 3.0,
        metric: Metric::Euclidean,
    };
    let mut all = Vec::new();
    for (memory, threads) in [(3 << 20, 1), (4 << 20, 2), (64 << 20, 2)] {
        let (folder, x, values) = stored(memory, threads, 6000);
        let checkpoint = Checkpoint {
            path: folder.path().join("so_far"),
            search: "of today".into(),
        };
        let output = GraphOutput {
            has_distances: true,
            out: None,
            checkpoint: (threads == 1).then_some(checkpoint),
        };
        let job = rows_within(x.session(), (&x).into(), None, options, output).unwrap();
        let found = job.run().unwrap().read().unwrap().run().unwrap();
        let offsets: &[i64] = bytemuck::cast_slice(&found.offsets);
        let rows: &[i32] = bytemuck::cast_slice(&found.indices);
        let rows_of = view(&values, 6000, WIDTH, WIDTH, 1).unwrap();
        for query in [0, 1, 3000, 5999] {
            let one = rows_of.subrows(query, 1);
            let metric = options.metric;
            let near = neighbors_reference(one, rows_of, 5999, metric, Some(query as u64));
            let mut expected: Vec<i32> = near
                .iter()
                .filter(|near| metric.shown(near.distance) <= options.radius)
                .map(|near| near.row as i32)
                .collect();
            expected.sort_unstable();
            assert_eq!(
                rows[offsets[query] as usize..offsets[query + 1] as usize],
                expected
            );
        }
        all.push([&found.offsets, &found.indices, &found.values].map(|part| part.to_vec()));
    }
    assert!(all.iter().all(|found| *found == all[0]));
}

#[test]
fn graphs_have_the_rows_of_lists() {
    let (folder, x, _) = stored(4 << 20, 2, 3000);
    let options = NeighborOptions {
        k: 4,
        metric: Metric::Cosine,
    };
    let checkpoint = Checkpoint {
        path: folder.path().join("so_far"),
        search: "x".into(),
    };
    let outputs = NeighborOutputs {
        checkpoint: Some(checkpoint.clone()),
        ..NeighborOutputs::default()
    };
    let job = nearest_rows(x.session(), (&x).into(), None, options, outputs).unwrap();
    let [distances, rows] = job.run().unwrap();
    let kept = || {
        let names = std::fs::read_dir(folder.path()).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.contains("so_far"))
    };
    assert!(kept());
    checkpoint.remove(x.session()).unwrap();
    assert!(!kept());
    for checkpoint in [None, Some(checkpoint)] {
        let output = GraphOutput {
            has_distances: true,
            out: Some(folder.path().join("graph")),
            checkpoint,
        };
        let job = nearest_rows_graph(x.session(), (&x).into(), None, options, output).unwrap();
        let graph = job.run().unwrap().read().unwrap().run().unwrap();
        let indices: &[i32] = bytemuck::cast_slice(&graph.indices);
        let expected: Vec<i32> = rows
            .to_vec::<i64>()
            .unwrap()
            .iter()
            .map(|row| *row as i32)
            .collect();
        assert_eq!(indices, expected);
        let values: &[f64] = bytemuck::cast_slice(&graph.values);
        assert_eq!(values, distances.to_vec::<f64>().unwrap());
    }
}

#[test]
fn what_cannot_be_found_is_refused() {
    let (folder, x, _) = stored(4 << 20, 2, 10);
    let search = |k, queries: Option<&Array>, outputs| {
        let options = NeighborOptions {
            k,
            metric: Metric::Euclidean,
        };
        let queries = queries.map(Into::into);
        nearest_rows(x.session(), (&x).into(), queries, options, outputs)?.run()
    };
    let none = NeighborOutputs::default;
    assert!(matches!(search(10, None, none()), Err(Error::Value { .. })));
    assert!(matches!(search(0, None, none()), Err(Error::Value { .. })));
    let narrow = x.slice(0..3, 0..5).unwrap();
    assert!(matches!(
        search(1, Some(&narrow), none()),
        Err(Error::Shape { .. })
    ));
    let wide = Array::temporary(x.session(), DType::F64, &[3, WIDTH as u64], Order::Row).unwrap();
    assert!(matches!(
        search(1, Some(&wide), none()),
        Err(Error::DType { .. })
    ));
    let empty = x.slice(0..0, 0..WIDTH as u64).unwrap();
    let [distances, _] = search(2, Some(&empty), none()).unwrap();
    assert_eq!(distances.shape(), [0, 2]);
    let [_, rows] = search(
        10,
        Some(&x),
        NeighborOutputs {
            rows: Output::New(folder.path().join("rows.npy")),
            ..none()
        },
    )
    .unwrap();
    assert_eq!(rows.path(), Some(&*folder.path().join("rows.npy")));
    assert_eq!(rows.to_vec::<i64>().unwrap()[..1], [0]);
}

/// Ranks that cannot be reached any more once some blocks have come.
struct Fragile {
    ranks: ThreadRanks,
    left: AtomicUsize,
}

impl Fragile {
    fn check(&self, other: usize, bytes: usize) -> Result<()> {
        let one = usize::from(bytes > 4096);
        let before = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                Some(left.saturating_sub(one))
            });
        match before {
            Ok(0) => Err(Error::Failed {
                what: format!("rank {other}: gone"),
            }),
            _ => Ok(()),
        }
    }
}

impl Ranks for Fragile {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.check(to, 0)?;
        self.ranks.send(to, bytes)
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(from, bytes.len())?;
        self.ranks.receive(from, bytes)
    }
}

#[test]
fn a_rank_that_is_gone_ends_the_search_of_the_others() {
    for blocks in [1, 2, 5] {
        let threads: Vec<_> = ThreadRanks::new(2)
            .into_iter()
            .map(|ranks| {
                std::thread::spawn(move || {
                    let (_folder, x, _) = stored(4 << 20, 2, 20_000);
                    let left = AtomicUsize::new(if ranks.rank() == 0 {
                        blocks
                    } else {
                        usize::MAX
                    });
                    let fragile: Arc<dyn Ranks> = Arc::new(Fragile { ranks, left });
                    let (team, ring) =
                        (Team::new(Arc::clone(&fragile)), Arc::new(Messages(fragile)));
                    let options = NeighborOptions {
                        k: 2,
                        metric: Metric::Euclidean,
                    };
                    let outputs = NeighborOutputs::default();
                    let job = nearest_rows_over_ranks(
                        x.session(),
                        &team,
                        ring,
                        (&x).into(),
                        None,
                        options,
                        outputs,
                    );
                    job.and_then(Job::run).map(drop)
                })
            })
            .collect();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let error = ended[0].as_ref().unwrap_err().to_string();
        assert!(error.contains("gone"), "{error}");
        assert!(ended[1].is_err());
    }
}
