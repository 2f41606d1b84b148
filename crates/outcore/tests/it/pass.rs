//! A fold that the library does not know, over dense and sparse rows.

#[allow(dead_code, reason = "the fold alone is used here")]
#[path = "../../examples/histogram.rs"]
mod histogram;

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use histogram::Histogram;
use outcore::kernels::{Lines, MatRef, Real};
use outcore::pass::{Fold, Rows, fold};
use outcore::sparse::compress;
use outcore::{
    Array, Buf, Compressed, DType, Error, Order, RealType, Result, Session, Settings, Shared,
    Sparse,
};

const ROWS: usize = 5_000;
const COLUMNS: usize = 300;

fn session(folder: &std::path::Path, threads: usize) -> Session {
    let settings = Settings {
        memory_bytes: Some(1 << 20),
        scratch: Some(folder.join("scratch")),
        threads,
        ..Settings::default()
    };
    Session::new(settings).unwrap()
}

fn shared<T: bytemuck::Pod>(values: &[T]) -> Shared {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut buf = Buf::anonymous(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    buf.freeze()
}

/// From 1 to 2, so that no element is a zero.
fn element(at: usize) -> f32 {
    1.0 + (at.wrapping_mul(2_654_435_761) % 1000) as f32 / 1000.0
}

#[test]
fn a_histogram_is_the_same_of_dense_and_sparse_rows_and_any_number_of_threads() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(element).collect();
    let path = folder.path().join("x.npy");
    let array = Array::create(
        &session(folder.path(), 2),
        &path,
        DType::F32,
        &[ROWS as u64, COLUMNS as u64],
        Order::Row,
    )
    .unwrap();
    array.write(shared(&values)).unwrap().run().unwrap();
    let mut expected = vec![0u64; COLUMNS * 7];
    for (at, value) in values.iter().enumerate() {
        let part = (f64::from(*value) - 1.1) / 0.8;
        if (0.0..1.0).contains(&part) {
            expected[at % COLUMNS * 7 + (part * 7.0) as usize] += 1;
        }
    }
    let offsets: Vec<i64> = (0..=ROWS).map(|row| (row * COLUMNS) as i64).collect();
    let places: Vec<i32> = (0..ROWS * COLUMNS)
        .map(|at| (at % COLUMNS) as i32)
        .collect();
    for threads in [1, 2, 5] {
        let session = session(folder.path(), threads);
        let sparse = Sparse::in_memory(
            &session,
            Compressed::Rows,
            [ROWS as u64, COLUMNS as u64],
            (DType::I64, shared(&offsets)),
            (DType::I32, shared(&places)),
            Some((RealType::F32, shared(&values))),
        );
        for rows in [
            Rows::Dense(Array::open(&session, &path).unwrap().into()),
            Rows::Sparse(sparse.unwrap()),
        ] {
            let histogram = Histogram::<7> {
                columns: COLUMNS,
                range: 1.1..1.9,
            };
            let job = fold::<f32, _>(&session, "histogram", &rows, histogram).unwrap();
            assert!(job.explain()[0].tasks > 8, "more panels than lanes");
            assert_eq!(job.run().unwrap(), expected);
        }
    }
}

#[test]
fn a_fold_of_no_rows_is_what_it_starts_from() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 1);
    let empty = Array::create(
        &session,
        folder.path().join("x.npy"),
        DType::F32,
        &[0, 5],
        Order::Row,
    )
    .unwrap();
    let histogram = Histogram::<2> {
        columns: 5,
        range: 0.0..1.0,
    };
    assert_eq!(
        fold::<f32, _>(&session, "histogram", &Rows::Dense(empty.into()), histogram)
            .unwrap()
            .run()
            .unwrap(),
        [0; 10]
    );
}

/// How often each line comes, and how many entries it has then.
struct WholeLines(usize);

impl<T: Real> Fold<T> for WholeLines {
    type Element = [u64; 2];

    fn elements(&self) -> usize {
        self.0
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _state: &mut [[u64; 2]], _first: u64, _rows: MatRef<'_, T>) -> Result<()> {
        unreachable!("lines are sparse")
    }

    fn sparse(&self, state: &mut [[u64; 2]], first: u64, lines: impl Lines<T>) -> Result<()> {
        lines.each_line(|line, entries| {
            let [times, sum] = &mut state[first as usize + line];
            *times += 1;
            entries.each(|place, value| *sum += place as u64 * value.f64() as u64);
        });
        Ok(())
    }

    fn merge(&self, into: &mut [[u64; 2]], other: &[[u64; 2]]) {
        for (into, other) in into.iter_mut().zip(other) {
            into[0] += other[0];
            into[1] += other[1];
        }
    }
}

#[test]
fn a_fold_that_needs_whole_lines_gets_each_once() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let settings = Settings {
        memory_bytes: Some(4 << 20),
        scratch: Some(folder.path().join("scratch")),
        ..Settings::default()
    };
    let session = Session::new(settings).unwrap();
    let lengths: Vec<usize> = (0..400)
        .map(|line| match line {
            7 => 40_000,
            8 => 25_000,
            _ => line * 13 % 50,
        })
        .collect();
    let mut offsets = vec![0i64];
    offsets.extend(lengths.iter().scan(0, |end, length| {
        *end += *length as i64;
        Some(*end)
    }));
    let places: Vec<i32> = lengths
        .iter()
        .flat_map(|length| 0..*length as i32)
        .collect();
    let values: Vec<f32> = (0..places.len()).map(|at| (at % 3) as f32).collect();
    let expected: Vec<[u64; 2]> = offsets
        .windows(2)
        .map(|ends| {
            let own = ends[0] as usize..ends[1] as usize;
            [1, own.map(|at| places[at] as u64 * values[at] as u64).sum()]
        })
        .collect();
    let arrays = Sparse::in_memory(
        &session,
        Compressed::Rows,
        [400, 40_000],
        (DType::I64, shared(&offsets)),
        (DType::I32, shared(&places)),
        Some((RealType::F32, shared(&values))),
    )
    .unwrap();
    assert!(arrays.has_cut_lines());
    let tiles = compress(&session, &arrays, None).unwrap().run().unwrap();
    for lines in [Some(arrays), tiles].into_iter().flatten() {
        let rows = Rows::Sparse(lines);
        let job = fold::<f32, _>(&session, "whole lines", &rows, WholeLines(400)).unwrap();
        assert_eq!(job.run().unwrap(), expected);
    }
}

/// Where a fold of the caller's takes for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    Rows,
    Merge,
}

struct Endless {
    slow: Slow,
    begun: Sender<()>,
    end: Mutex<Receiver<()>>,
}

impl Endless {
    fn wait_at(&self, here: Slow) {
        if here == self.slow {
            _ = self.begun.send(());
            _ = self.end.lock().unwrap().recv();
        }
    }
}

impl Fold<f32> for Endless {
    type Element = u64;

    fn elements(&self) -> usize {
        1
    }

    fn dense(&self, _state: &mut [u64], _first: u64, _rows: MatRef<'_, f32>) -> Result<()> {
        self.wait_at(Slow::Rows);
        Ok(())
    }

    fn merge(&self, _into: &mut [u64], _other: &[u64]) {
        self.wait_at(Slow::Merge);
    }
}

#[test]
fn a_fold_that_takes_for_ever_is_left_alone() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 1);
    let x = Array::create(
        &session,
        folder.path().join("x.npy"),
        DType::F32,
        &[ROWS as u64, COLUMNS as u64],
        Order::Row,
    )
    .unwrap();
    for slow in [Slow::Rows, Slow::Merge] {
        let ((begun, has_begun), (end, ended)) = (channel(), channel());
        let endless = Endless {
            slow,
            begun,
            end: Mutex::new(ended),
        };
        let rows = Rows::Dense((&x).into());
        let mut running = fold::<f32, _>(&session, "endless", &rows, endless)
            .unwrap()
            .start()
            .unwrap();
        has_begun.recv().unwrap();
        // The caller's thread is free to look at signals,
        assert!(!running.wait_timeout(Duration::from_millis(1)).unwrap());
        running.cancel();
        // and the wait ends although the step does not.
        assert!(matches!(running.wait(), Err(Error::Cancelled)), "{slow:?}");
        drop(end);
    }
}
