//! A fault at each I/O of each operation: one error that names the object, the old output intact,
//! nothing left behind, and the session still usable.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outcore::kmeans::{self, Options};
use outcore::linalg::{
    Affine, Axpby, Csrmm, Gemm, Reduction, Scaling, Syrk, affine, axpby, column_norms,
    column_statistics, csrcsc, csrmm, gemm, gemm_into, gram_product, reduce, row_norms, scale,
    scaled, syrk,
};
use outcore::pca::{Components, fit};
use outcore::samples::{Dataset, DatasetWriter, Field, Kind, WriterOptions};
use outcore::sparse::compress;
use outcore::{
    Array, Buf, Compressed, DType, Error, Norm, Operand, Order, Output, RealType, Result, Session,
    Settings, Sparse, WrapDevice,
};
use outcore_device::{Blocking, Device, Faults, Faulty, Limits, Route};
use outcore_store::{Error as StoreError, Formatted};

const MEMORY: u64 = 10 << 20;
const ROWS: u64 = 300;
const COLS: u64 = 213;

/// Counts the I/O of all devices of a session and fails the n-th.
struct Counting {
    inner: Arc<dyn Device>,
    count: Arc<AtomicU64>,
    fail: u64,
}

impl Counting {
    fn next(&self) -> std::io::Result<&dyn Blocking> {
        if self.count.fetch_add(1, Ordering::SeqCst) == self.fail {
            return Err(std::io::Error::other("injected"));
        }
        match self.inner.route() {
            Route::Blocking(blocking) => Ok(blocking),
            Route::Descriptor(_) => unreachable!("faulty devices block"),
        }
    }
}

impl Device for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for Counting {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.next()?.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        self.next()?.write_at(buf, offset)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.next()?.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.next()?.discard(offset, len)
    }
}

fn session(folder: &Path, wrap_device: WrapDevice) -> Session {
    session_of(folder, MEMORY, wrap_device)
}

fn session_of(folder: &Path, memory_bytes: u64, wrap_device: WrapDevice) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads: 2,
        wrap_device,
        ..Settings::default()
    })
    .unwrap()
}

fn failing(count: &Arc<AtomicU64>, fail: u64) -> WrapDevice {
    let count = Arc::clone(count);
    WrapDevice::new(move |device| {
        Arc::new(Counting {
            inner: Faulty::new(device, Faults::default()),
            count: Arc::clone(&count),
            fail,
        })
    })
}

fn fill(array: &Array) {
    let mut bytes = Buf::anonymous(array.nbytes() as usize).unwrap();
    for (at, value) in bytemuck::cast_slice_mut::<u8, f32>(&mut bytes)
        .iter_mut()
        .enumerate()
    {
        *value = (at * 7 % 13) as f32 - 6.0;
    }
    array.write(bytes.freeze()).unwrap().run().unwrap();
}

type Operation = fn(&Session, &Array, PathBuf) -> Result<()>;

fn operations() -> Vec<(&'static str, Operation)> {
    fn new(path: PathBuf) -> Output {
        Output::New(path)
    }
    vec![
        ("gemm", |session, a, out| {
            gemm(
                session,
                a.into(),
                a.t().into(),
                Gemm {
                    out: new(out),
                    ..Gemm::default()
                },
            )?
            .run()
            .map(drop)
        }),
        ("syrk", |session, a, out| {
            syrk(
                session,
                a.into(),
                Syrk {
                    out: new(out),
                    ..Syrk::default()
                },
            )?
            .run()
            .map(drop)
        }),
        ("convert", |_, a, out| {
            a.convert(new(out), DType::F64, Order::Column)?
                .run()
                .map(drop)
        }),
        ("affine", |session, a, out| {
            let map = Affine {
                before: vec![1.0; COLS as usize],
                matrix: vec![1.0; 3 * COLS as usize],
                columns: 3,
                after: Vec::new(),
            };
            affine(session, a.into(), map, new(out))?.run().map(drop)
        }),
        ("reduce", |session, a, _| {
            reduce(session, a.into(), Reduction::Sum)?.run().map(drop)
        }),
        ("row norms", |session, a, _| {
            row_norms(session, a.into(), Norm::L1)?.run().map(drop)
        }),
        ("column norms", |session, a, _| {
            column_norms(session, a.into(), Norm::L2)?.run().map(drop)
        }),
        ("column statistics", |session, a, _| {
            column_statistics(session, a.into())?.run().map(drop)
        }),
        ("gemm into memory", |session, a, _| {
            let into = Buf::anonymous((ROWS * ROWS * 4) as usize).unwrap();
            gemm_into(session, a.into(), a.t().into(), 1.0, into)?
                .run()
                .map(drop)
        }),
        ("pca", |session, a, _| {
            fit(session, a.into(), Components::Count(2), 0)?
                .run()
                .map(drop)
        }),
        ("read", |_, a, _| a.read()?.run().map(drop)),
    ]
}

#[test]
fn a_fault_at_each_io_leaves_the_old_output_and_a_clear_error() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let input = folder.path().join("a.npy");
    fill(
        &Array::create(
            &session(folder.path(), WrapDevice::default()),
            &input,
            DType::F32,
            &[ROWS, COLS],
            Order::Row,
        )
        .unwrap(),
    );
    for (name, operation) in operations() {
        let output = folder.path().join("out.npy");
        let count = Arc::new(AtomicU64::new(0));
        let whole = session(folder.path(), failing(&count, u64::MAX));
        operation(
            &whole,
            &Array::open(&whole, &input).unwrap(),
            output.clone(),
        )
        .unwrap();
        let total = count.load(Ordering::SeqCst);
        assert!(total > 0, "{name} does no I/O");
        // Every I/O of short operations, about forty of the long ones, the first and the last among
        // them.
        for fail in (0..total)
            .step_by(total.div_ceil(40) as usize)
            .chain([total - 1])
        {
            std::fs::write(&output, b"old").unwrap();
            count.store(0, Ordering::SeqCst);
            let session = session(folder.path(), failing(&count, fail));
            let result = operation(
                &session,
                &Array::open(&session, &input).unwrap(),
                output.clone(),
            );
            // How often shared sectors are merged depends on timing, so the last I/O of one run may
            // not be in another.
            if result.is_ok() && count.load(Ordering::SeqCst) <= fail {
                continue;
            }
            let error = result.expect_err(name);
            let Error::Device { object, source } = &error else {
                panic!("{name}, fault {fail}: {error}")
            };
            assert!(
                object.ends_with("a.npy")
                    || object.ends_with("out.npy")
                    || object.contains("scratch"),
                "{name}: {error}"
            );
            assert!(source.to_string().contains("injected"), "{name}: {error}");
            assert_eq!(
                std::fs::read(&output).unwrap(),
                b"old",
                "{name}, fault {fail}"
            );
            let left: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert!(left.len() <= 3, "{name} leaves {left:?}");
            // The session goes on: its memory is free again and the next call succeeds.
            assert_eq!(session.engine().budget().available(), MEMORY);
            operation(
                &session,
                &Array::open(&session, &input).unwrap(),
                output.clone(),
            )
            .unwrap();
        }
    }
}

type SparseOperation = fn(&Session, &Sparse, PathBuf) -> Result<()>;

const SPARSE_MEMORY: u64 = 1 << 20;
const WORDS: u64 = 3000;

fn sparse_operations() -> Vec<(&'static str, SparseOperation)> {
    fn dense(rows: u64, cols: u64) -> Operand {
        let mut bytes = Buf::anonymous((4 * rows * cols) as usize).unwrap();
        bytemuck::cast_slice_mut::<u8, f32>(&mut bytes).fill(1.0);
        let bytes = bytes.freeze();
        Operand::Memory {
            bytes,
            dtype: RealType::F32,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }
    vec![
        ("csrmm", |session, a, out| {
            csrmm(
                session,
                a,
                dense(WORDS, 8),
                Csrmm {
                    out: Output::New(out),
                    ..Csrmm::default()
                },
            )?
            .run()
            .map(drop)
        }),
        ("csrmm of the transpose", |session, a, out| {
            csrmm(
                session,
                &a.t(),
                dense(a.rows(), 8),
                Csrmm {
                    out: Output::New(out),
                    ..Csrmm::default()
                },
            )?
            .run()
            .map(drop)
        }),
        ("gram product", |session, a, out| {
            gram_product(session, a, dense(WORDS, 4), Output::New(out))?
                .run()
                .map(drop)
        }),
        ("csrcsc", |session, a, out| {
            csrcsc(session, a, Some(out))?.run().map(drop)
        }),
        ("tiles", |session, a, out| {
            compress(session, a, Some(out))?.run().map(drop)
        }),
        ("k-means", |session, a, _| {
            let start: Vec<f64> = (0..4 * WORDS)
                .map(|at| (at * 7 % 13) as f64 / 100.0)
                .collect();
            kmeans::fit(
                session,
                a.into(),
                &start,
                Options {
                    max_iter: 3,
                    tol: 0.0,
                    weights: None,
                },
            )?
            .run()
            .map(drop)
        }),
    ]
}

/// With more entries than memory, by way of scratch where there is one.
#[test]
fn a_fault_at_each_io_of_sparse_work_leaves_nothing_and_a_clear_error() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (input, output) = (folder.path().join("a"), folder.path().join("out"));
    let plain = session(folder.path(), WrapDevice::default());
    {
        let (lines, per_line) = (5000, 40);
        let (mut offsets, mut indices) = (
            Buf::anonymous(8 * (lines + 1)).unwrap(),
            Buf::anonymous(4 * lines * per_line).unwrap(),
        );
        let offset = |(line, into): (usize, &mut i64)| *into = (line * per_line) as i64;
        bytemuck::cast_slice_mut::<u8, i64>(&mut offsets)
            .iter_mut()
            .enumerate()
            .for_each(offset);
        let index = |(at, into): (usize, &mut i32)| {
            *into = (at % per_line * 75 + at / per_line * 31 % 75) as i32
        };
        bytemuck::cast_slice_mut::<u8, i32>(&mut indices)
            .iter_mut()
            .enumerate()
            .for_each(index);
        let mut values = Buf::anonymous(4 * lines * per_line).unwrap();
        bytemuck::cast_slice_mut::<u8, f32>(&mut values)
            .iter_mut()
            .enumerate()
            .for_each(|(at, into)| *into = (at % 7) as f32 - 3.0);
        let (offsets, indices) = (
            (DType::I64, offsets.freeze()),
            (DType::I32, indices.freeze()),
        );
        let shape = [lines as u64, WORDS];
        let values = Some((RealType::F32, values.freeze()));
        let a =
            Sparse::in_memory(&plain, Compressed::Rows, shape, offsets, indices, values).unwrap();
        scaled(&plain, &a, Scaling::default(), Some(input.clone()))
            .unwrap()
            .run()
            .unwrap();
    }
    let remove = || _ = std::fs::remove_dir_all(&output).or_else(|_| std::fs::remove_file(&output));
    for (name, operation) in sparse_operations() {
        let count = Arc::new(AtomicU64::new(0));
        let run = |fail| {
            let session = session_of(folder.path(), SPARSE_MEMORY, failing(&count, fail));
            // Not a fault at what comes before.
            count.store(u64::MAX / 2, Ordering::SeqCst);
            let a = Sparse::open(&session, &input).unwrap();
            count.store(0, Ordering::SeqCst);
            (operation(&session, &a, output.clone()), a, session)
        };
        run(u64::MAX).0.unwrap();
        remove();
        let total = count.load(Ordering::SeqCst);
        assert!(total > 0, "{name} does no I/O");
        for fail in (0..total)
            .step_by(total.div_ceil(30) as usize)
            .chain([total - 1])
        {
            let (result, a, session) = run(fail);
            if result.is_ok() && count.load(Ordering::SeqCst) <= fail {
                remove();
                continue;
            }
            let error = result.expect_err(name);
            assert!(
                matches!(&error, Error::Device { .. }),
                "{name}, fault {fail}: {error}"
            );
            assert!(
                error.to_string().contains("injected"),
                "{name}, fault {fail}: {error}"
            );
            // Whole where it was the reading of it that failed.
            assert!(
                !output.exists() || Sparse::open(&plain, &output).is_ok(),
                "{name}, fault {fail}"
            );
            remove();
            let left: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert!(left.len() <= 2, "{name} leaves {left:?}");
            // Runs that were cancelled give their memory back in a moment.
            for _ in 0..1000 {
                if session.engine().budget().available() == SPARSE_MEMORY {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(
                session.engine().budget().available(),
                SPARSE_MEMORY,
                "{name}, fault {fail}"
            );
            operation(&session, &a, output.clone()).unwrap();
            remove();
        }
    }
}

/// Progress that was durable went with a close that failed.
#[test]
fn a_dataset_whose_close_fails_anywhere_is_gone_on_with() {
    const SAVED: u64 = 400;
    const ALL: u64 = 450;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = folder.path().join("disk.store");
    Formatted::format(&disk, Some(32 << 20)).unwrap();
    let plain = session(folder.path(), WrapDevice::default());
    let begin = |session: &Session, path: &Path, resume| {
        let mut writer = DatasetWriter::create(
            session,
            path,
            WriterOptions {
                resume,
                ..WriterOptions::default()
            },
        )?;
        writer.set_fields(vec![Field {
            name: "x".into(),
            kind: Kind::Bytes,
        }])?;
        Ok::<_, Error>(writer)
    };
    let write = |writer: &mut DatasetWriter, samples: std::ops::Range<u64>| {
        samples.into_iter().try_for_each(|sample| {
            writer.write(
                Some(format!("{sample}").as_bytes()),
                &[&sample.to_le_bytes()],
            )
        })
    };
    let len = |path: &Path| Dataset::open(&plain, path).unwrap().len();
    for path in [folder.path().join("data"), disk.join("data")] {
        let count = Arc::new(AtomicU64::new(0));
        let close = |fail| {
            // Not a fault at what comes before.
            count.store(u64::MAX / 2, Ordering::SeqCst);
            let session = session(folder.path(), failing(&count, fail));
            let mut writer = begin(&session, &path, false)?;
            write(&mut writer, 0..SAVED)?;
            writer.save()?;
            assert_eq!(writer.durable(), SAVED);
            write(&mut writer, SAVED..ALL)?;
            count.store(0, Ordering::SeqCst);
            writer.finish()?.run()
        };
        close(u64::MAX).unwrap();
        let total = count.load(Ordering::SeqCst);
        assert!(total > 5, "closing does no I/O");
        for fail in (0..total).step_by(total.div_ceil(30) as usize) {
            let mut old = begin(&plain, &path, false).unwrap();
            write(&mut old, 0..3).unwrap();
            old.finish().unwrap().run().unwrap();
            let result = close(fail);
            if result.is_ok() && count.load(Ordering::SeqCst) <= fail {
                continue;
            }
            let error = result.expect_err("a fault");
            assert!(
                matches!(&error, Error::Device { .. }),
                "fault {fail}: {error}"
            );
            assert_eq!(len(&path), 3, "fault {fail}");
            let mut again = begin(&plain, &path, true).unwrap();
            assert_eq!(
                (again.len(), again.durable()),
                (SAVED, SAVED),
                "fault {fail}"
            );
            write(&mut again, SAVED..ALL).unwrap();
            again.finish().unwrap().run().unwrap();
            assert_eq!(len(&path), ALL, "fault {fail}");
            assert_eq!(
                Dataset::open(&plain, &path).unwrap().find(b"449").unwrap(),
                Some(449)
            );
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.len() <= 3, "{left:?}");
}

/// The first error was hidden by that of the call which came after it.
#[test]
fn a_writer_that_has_failed_says_why_each_time() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let full = WrapDevice::new(|device| {
        let fails = |device| Counting {
            inner: Faulty::new(device, Faults::default()),
            count: Arc::default(),
            fail: u64::MAX,
        };
        Arc::new(Full(fails(device)))
    });
    let session = session(folder.path(), full);
    let mut writer = DatasetWriter::create(
        &session,
        folder.path().join("data"),
        WriterOptions::default(),
    )
    .unwrap();
    writer
        .set_fields(vec![Field {
            name: "x".into(),
            kind: Kind::Bytes,
        }])
        .unwrap();
    let is_full = |error: &Error| matches!(error, Error::Store(StoreError::Full { object, .. }) if object.contains("data/"));
    let first = (0..1000)
        .find_map(|_| writer.write(None, &[&[1; 100_000]]).err())
        .expect("the disk is full");
    assert!(is_full(&first), "{first}");
    for error in [
        writer.write(None, &[b"x"]).unwrap_err(),
        writer.save().unwrap_err(),
        writer.finish().err().unwrap(),
    ] {
        assert!(
            is_full(&error) && error.to_string() == first.to_string(),
            "{error}"
        );
    }
}

/// A device on a disk that is full.
struct Full(Counting);

impl Device for Full {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for Full {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, _: &[u8], _: u64) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
}

/// An error of each kind of write on a disk that is full, which calls the object by its name.
#[test]
fn a_disk_that_fills_while_it_is_written_is_called_so_by_all_who_write() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let input = folder.path().join("a.npy");
    fill(
        &Array::create(
            &session(folder.path(), WrapDevice::default()),
            &input,
            DType::F32,
            &[ROWS, COLS],
            Order::Row,
        )
        .unwrap(),
    );
    let output = folder.path().join("out.npy");
    for (name, operation) in operations() {
        std::fs::write(&output, b"old").unwrap();
        let full = WrapDevice::new(|device| {
            Arc::new(Full(Counting {
                inner: Faulty::new(device, Faults::default()),
                count: Arc::default(),
                fail: u64::MAX,
            }))
        });
        let session = session(folder.path(), full);
        let Err(error) = operation(
            &session,
            &Array::open(&session, &input).unwrap(),
            output.clone(),
        ) else {
            continue;
        };
        let Error::Store(StoreError::Full { object, needed, .. }) = &error else {
            panic!("{name}: {error}")
        };
        assert!(
            object.ends_with("out.npy") || object.contains("scratch"),
            "{name}: {error}"
        );
        assert!(
            needed.is_some() && error.to_string().contains("no space is left"),
            "{name}: {error}"
        );
        assert_eq!(std::fs::read(&output).unwrap(), b"old", "{name}");
    }
}

type Change = fn(&Session, &Array, &Array) -> Result<()>;

fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("axpby", |session, x, y| {
            axpby(session, x.into(), y, Axpby::default())?
                .run()
                .map(drop)
        }),
        ("scale", |session, _, y| {
            scale(session, y, 2.0)?.run().map(drop)
        }),
        ("write", |_, _, y| {
            y.write(Buf::anonymous(y.nbytes() as usize).unwrap().freeze())?
                .run()
        }),
        ("convert", |_, x, y| {
            x.convert(Output::InPlace(y.clone()), DType::F32, Order::Row)?
                .run()
                .map(drop)
        }),
        ("gemm", |session, x, y| {
            let out = Output::InPlace(y.slice(0..COLS, 0..COLS)?);
            gemm(
                session,
                x.t().into(),
                x.into(),
                Gemm {
                    alpha: 1.0,
                    beta: 2.0,
                    out,
                },
            )?
            .run()
            .map(drop)
        }),
    ]
}

#[test]
fn a_fault_at_each_io_in_place_leaves_a_mark_that_open_names() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name);
    let make = |name: &str| {
        fill(
            &Array::create(
                &session(folder.path(), WrapDevice::default()),
                path(name),
                DType::F32,
                &[ROWS, COLS],
                Order::Row,
            )
            .unwrap(),
        );
    };
    make("x.npy");
    for (name, change) in changes() {
        make("y.npy");
        let old = std::fs::read(path("y.npy")).unwrap();
        let count = Arc::new(AtomicU64::new(0));
        let run = |fail| {
            count.store(0, Ordering::SeqCst);
            let session = session(folder.path(), failing(&count, fail));
            let result = change(
                &session,
                &Array::open(&session, path("x.npy"))?,
                &Array::open(&session, path("y.npy"))?,
            );
            assert_eq!(session.engine().budget().available(), MEMORY);
            result
        };
        run(u64::MAX).unwrap();
        let total = count.load(Ordering::SeqCst);
        assert!(total > 0, "{name} does no I/O");
        for fail in (0..total)
            .step_by(total.div_ceil(40) as usize)
            .chain([total - 1])
        {
            make("y.npy");
            let result = run(fail);
            if result.is_ok() && count.load(Ordering::SeqCst) <= fail {
                continue;
            }
            let error = result.expect_err(name);
            assert!(
                matches!(&error, Error::Device { .. }),
                "{name}, fault {fail}: {error}"
            );
            let plain = session(folder.path(), WrapDevice::default());
            match Array::open(&plain, path("y.npy")) {
                // Nothing had been written yet.
                Ok(_) => assert!(
                    std::fs::read(path("y.npy")).unwrap() == old,
                    "{name}, fault {fail}"
                ),
                Err(error) => {
                    assert!(
                        error.to_string().contains("y.npy"),
                        "{name}, fault {fail}: {error}"
                    );
                    Array::open_interrupted(&plain, path("y.npy")).unwrap();
                }
            }
            Array::open(&plain, path("x.npy")).unwrap();
        }
    }
}

#[test]
fn short_torn_late_and_reordered_transfers_do_not_change_a_result() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let input = folder.path().join("a.npy");
    let plain = session(folder.path(), WrapDevice::default());
    fill(&Array::create(&plain, &input, DType::F32, &[ROWS, COLS], Order::Row).unwrap());
    let product = |session: &Session| {
        let a = Array::open(session, &input).unwrap();
        let c = gemm(session, (&a).into(), a.t().into(), Gemm::default())
            .unwrap()
            .run()
            .unwrap();
        c.read().unwrap().run().unwrap().to_vec()
    };
    let expected = product(&plain);
    let seeds = Arc::new(Mutex::new(0));
    for _ in 0..5 {
        let seeds = Arc::clone(&seeds);
        let nervous = WrapDevice::new(move |device| {
            let mut seed = seeds.lock().unwrap();
            *seed += 1;
            let latency = Some(std::time::Duration::ZERO..std::time::Duration::from_micros(300));
            Faulty::new(
                device,
                Faults {
                    seed: *seed,
                    short: 0.2,
                    reorder: 0.2,
                    latency,
                    ..Faults::default()
                },
            )
        });
        assert!(product(&session(folder.path(), nervous)) == expected);
    }
}
