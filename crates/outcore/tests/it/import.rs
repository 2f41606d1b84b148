//! Imports and exports against plain readers, with faults at each I/O, full disks, and budgets
//! smaller than the text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outcore::export::{self, Labels, export};
use outcore::import::{Format, Imported, Libsvm, Options, Text, import};
use outcore::{Error, Result, Session, Settings, Sparse, WrapDevice};
use outcore_device::{Blocking, Device, Faults, Faulty, Limits, Route};
use outcore_store::Error as StoreError;
use proptest::prelude::*;

const MEMORY: u64 = 6 << 20;

/// Counts the I/O of all devices of a session and fails from the n-th on.
struct Counting {
    inner: Arc<dyn Device>,
    count: Arc<AtomicU64>,
    fail: u64,
    kind: std::io::ErrorKind,
}

impl Counting {
    fn next(&self) -> std::io::Result<&dyn Blocking> {
        if self.count.fetch_add(1, Ordering::SeqCst) >= self.fail {
            return Err(std::io::Error::new(self.kind, "injected"));
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

fn failing(count: &Arc<AtomicU64>, fail: u64, kind: std::io::ErrorKind) -> WrapDevice {
    let count = Arc::clone(count);
    WrapDevice::new(move |device| {
        let inner = Faulty::new(device, Faults::default());
        Arc::new(Counting {
            inner,
            count: Arc::clone(&count),
            fail,
            kind,
        })
    })
}

fn session(folder: &Path, memory_bytes: u64, wrap_device: WrapDevice) -> Session {
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

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn options(format: Format) -> Options {
    Options::new(format)
}

fn run(session: &Session, path: &Path, source: &Path, options: Options) -> Result<Imported> {
    import(session, path, &[source.to_owned()], options)?.run()
}

/// All entries of a matrix in CSR, by place.
fn entries(sparse: &Sparse) -> BTreeMap<(u64, u64), f32> {
    let bufs = sparse.read().unwrap().run().unwrap();
    let offsets: &[i64] = bytemuck::cast_slice(&bufs.offsets);
    let (indices, values): (&[i32], &[f32]) = (
        bytemuck::cast_slice(&bufs.indices),
        bytemuck::cast_slice(&bufs.values),
    );
    let rows = offsets.windows(2).zip(0..);
    let places =
        rows.flat_map(|(ends, row)| (ends[0]..ends[1]).map(move |entry| (row, entry as usize)));
    places
        .map(|(row, entry)| ((row, indices[entry] as u64), values[entry]))
        .collect()
}

/// LIBSVM text of rows that differ in length, some of them empty.
fn libsvm_text(rows: usize) -> String {
    let mut text = String::new();
    for row in 0..rows {
        write!(text, "{}", row % 5).unwrap();
        (0..row % 7).for_each(|entry| {
            write!(text, " {}:{}", 1 + entry * 3 + row % 3, entry as f32 + 0.5).unwrap()
        });
        text.push('\n');
    }
    text
}

fn left(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name != "scratch");
    names.sort();
    names
}

/// MatrixMarket text in any order, places possibly twice.
fn market(rows: u64, cols: u64, places: &[(u64, u64, i8)]) -> String {
    let mut text = format!(
        "%%MatrixMarket matrix coordinate real general\n{rows} {cols} {}\n",
        places.len()
    );
    places.iter().for_each(|(row, col, value)| {
        writeln!(text, "{} {} {value}", row % rows + 1, col % cols + 1).unwrap()
    });
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn entries_in_any_order_are_added_up(rows in 1u64..40, cols in 1u64..40, places in prop::collection::vec((any::<u64>(), any::<u64>(), any::<i8>()), 0..300), sorted: bool) {
        let folder = folder();
        let mut places: Vec<(u64, u64, i8)> = places.into_iter().map(|(row, col, value)| (row % rows, col % cols, value)).collect();
        if sorted {
            places.sort();
        }
        let source = folder.path().join("x.mtx");
        std::fs::write(&source, market(rows, cols, &places)).unwrap();
        let session = session(folder.path(), MEMORY, WrapDevice::default());
        let found = run(&session, &folder.path().join("x"), &source, options(Format::MatrixMarket)).unwrap().matrix;
        prop_assert_eq!(found.shape(), [rows, cols]);
        let mut expected = BTreeMap::new();
        places.iter().for_each(|&(row, col, value)| *expected.entry((row, col)).or_insert(0.0) += f32::from(value));
        prop_assert_eq!(entries(&found), expected);
    }
}

#[test]
fn sorting_by_way_of_scratch_gives_what_memory_gives() {
    let folder = folder();
    let count = 300_000;
    let place = |number: u64| {
        (
            number * 7919 % 2003,
            number * 104_729 % 997,
            (number % 17) as i8,
        )
    };
    let source = folder.path().join("x.mtx");
    std::fs::write(
        &source,
        market(2003, 997, &(0..count).map(place).collect::<Vec<_>>()),
    )
    .unwrap();
    let found = [3 << 20, 256 << 20].map(|memory| {
        let session = session(folder.path(), memory, WrapDevice::default());
        let path = folder.path().join(format!("x{memory}"));
        entries(
            &run(&session, &path, &source, options(Format::MatrixMarket))
                .unwrap()
                .matrix,
        )
    });
    assert!(found[0] == found[1]);
    let mut expected = BTreeMap::new();
    (0..count).map(place).for_each(|(row, col, value)| {
        *expected.entry((row, col)).or_insert(0.0) += f32::from(value)
    });
    assert!(found[0] == expected);
}

#[test]
fn what_is_exported_is_imported_again_in_every_text_format() {
    let folder = folder();
    let source = folder.path().join("x.svm");
    std::fs::write(&source, libsvm_text(3000)).unwrap();
    let session = session(folder.path(), MEMORY, WrapDevice::default());
    let libsvm = || Format::Libsvm(Libsvm::default());
    let a = run(
        &session,
        &folder.path().join("a"),
        &source,
        options(libsvm()),
    )
    .unwrap()
    .matrix;
    let expected = entries(&a);
    assert_eq!(a.shape(), [3000, 18]);
    let formats = [
        (
            export::Format::Libsvm {
                labels: Labels::One(vec![0.25; 3000]),
                queries: None,
            },
            libsvm(),
        ),
        (export::Format::MatrixMarket, Format::MatrixMarket),
        (export::Format::Xc(a.clone()), Format::Xc),
        (export::Format::Npz, Format::Npz),
        (export::Format::Parquet, Format::Parquet(Default::default())),
    ];
    for (number, (to, from)) in formats.into_iter().enumerate() {
        let target = folder.path().join(format!("{number}.gz"));
        export(&session, &a, &target, to).unwrap().run().unwrap();
        let path = folder.path().join(number.to_string());
        let back = run(&session, &path, &target, options(from)).unwrap().matrix;
        assert_eq!(entries(&back), expected, "format {number}");
    }
    assert_eq!(session.engine().budget().available(), MEMORY);
}

#[test]
fn a_fault_at_each_io_leaves_what_was_there_and_a_clear_error() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("x.svm"), libsvm_text(20_000)).unwrap();
    let places: Vec<_> = (0..60_000)
        .map(|number: u64| (number * 7919, number * 104_729, 1))
        .collect();
    std::fs::write(path("x.mtx"), market(500, 300, &places)).unwrap();
    std::fs::write(path("x.txt"), "some words of text\n".repeat(5000)).unwrap();
    let formats = [
        ("x.svm", Format::Libsvm(Libsvm::default())),
        ("x.mtx", Format::MatrixMarket),
        ("x.txt", Format::Text(Text::default())),
    ];
    for (source, format) in formats {
        let count = Arc::new(AtomicU64::new(0));
        let attempt = |fail| {
            count.store(0, Ordering::SeqCst);
            let session = session(
                folder.path(),
                3 << 20,
                failing(&count, fail, std::io::ErrorKind::Other),
            );
            let result = run(
                &session,
                &path("out"),
                &path(source),
                options(format.clone()),
            );
            (session, result.map(drop))
        };
        attempt(u64::MAX).1.unwrap();
        let total = count.load(Ordering::SeqCst);
        let old = std::fs::read(path("out/matrix.json")).unwrap();
        for fail in (0..total).step_by(total.div_ceil(30) as usize) {
            let (session, result) = attempt(fail);
            // Opening the new matrix, after it has its name, is I/O as well; so is merging of
            // sectors, whose number depends on timing.
            let Err(error) = result else { continue };
            assert!(
                matches!(&error, Error::Device { .. }),
                "{source}, fault {fail}: {error}"
            );
            assert!(
                error.to_string().contains("injected"),
                "{source}, fault {fail}: {error}"
            );
            assert_eq!(std::fs::read(path("out/matrix.json")).unwrap(), old);
            assert_eq!(
                left(folder.path()),
                ["out", "x.mtx", "x.svm", "x.txt"],
                "{source}, fault {fail}"
            );
            drop(session);
        }
    }
}

#[test]
fn an_import_that_failed_is_gone_on_with() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("x.svm"), libsvm_text(200_000)).unwrap();
    let asked = |resume| Options {
        resume,
        checkpoint_bytes: 300_000,
        ..options(Format::Libsvm(Libsvm::default()))
    };
    let plain = session(folder.path(), MEMORY, WrapDevice::default());
    run(&plain, &path("whole"), &path("x.svm"), asked(false)).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let whole = session(
        folder.path(),
        MEMORY,
        failing(&count, u64::MAX, std::io::ErrorKind::StorageFull),
    );
    run(&whole, &path("x"), &path("x.svm"), asked(false)).unwrap();
    let total = count.load(Ordering::SeqCst);
    std::fs::remove_dir_all(path("x")).unwrap();
    let mut resumed = 0;
    // The last ones are those of its end.
    let fails = (1..10)
        .map(|part| total * part / 10)
        .chain((1..6).map(|before| total - 4 * before));
    for (fail, kind) in fails.zip(
        [
            std::io::ErrorKind::StorageFull,
            std::io::ErrorKind::QuotaExceeded,
        ]
        .into_iter()
        .cycle(),
    ) {
        count.store(0, Ordering::SeqCst);
        let full = session(folder.path(), MEMORY, failing(&count, fail, kind));
        let Err(error) = run(&full, &path("x"), &path("x.svm"), asked(false)) else {
            continue;
        };
        let is_quota_used_up = kind == std::io::ErrorKind::QuotaExceeded;
        assert!(
            matches!(&error, Error::Store(StoreError::Full { is_quota, .. }) if *is_quota == is_quota_used_up),
            "fault {fail}: {error}"
        );
        if path("x").exists() {
            // It was the opening of the new matrix that failed.
            std::fs::remove_dir_all(path("x")).unwrap();
            continue;
        }
        let done = run(&plain, &path("x"), &path("x.svm"), asked(true)).unwrap();
        resumed += u64::from(done.resumed_at > 0);
        for name in [
            "matrix.json",
            "indptr.npy",
            "indices.npy",
            "data.npy",
            "labels.npy",
        ] {
            assert!(
                std::fs::read(path("x").join(name)).unwrap()
                    == std::fs::read(path("whole").join(name)).unwrap(),
                "{name}"
            );
        }
        assert_eq!(left(folder.path()), ["whole", "x", "x.svm"]);
        std::fs::remove_dir_all(path("x")).unwrap();
    }
    assert!(resumed > 3, "only {resumed} were gone on with");
    assert_eq!(plain.engine().budget().available(), MEMORY);
}

/// An import that had all its rows, and could not have its name in the end, forgot how far it was.
#[test]
fn an_import_that_cannot_have_its_name_is_gone_on_with() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("x.svm"), libsvm_text(100_000)).unwrap();
    let plain = session(folder.path(), MEMORY, WrapDevice::default());
    for tiled in [false, true] {
        let asked = |resume| Options {
            resume,
            tiled,
            checkpoint_bytes: 300_000,
            ..options(Format::Libsvm(Libsvm::default()))
        };
        run(&plain, &path("whole"), &path("x.svm"), asked(false)).unwrap();
        let there = path("x");
        let between = WrapDevice::new(move |device| {
            if device.name().ends_with("indptr.npy") && !there.exists() {
                std::fs::create_dir(&there).unwrap();
                std::fs::write(there.join("precious"), "bytes").unwrap();
            }
            device
        });
        let error = run(
            &session(folder.path(), MEMORY, between),
            &path("x"),
            &path("x.svm"),
            asked(false),
        )
        .unwrap_err();
        assert!(
            matches!(error, Error::Store(StoreError::Foreign { .. })),
            "{error}"
        );
        assert_eq!(std::fs::read(path("x/precious")).unwrap(), b"bytes");
        std::fs::remove_dir_all(path("x")).unwrap();
        let done = run(&plain, &path("x"), &path("x.svm"), asked(true)).unwrap();
        assert!(done.resumed_at > 0, "tiled: {tiled}");
        assert_eq!(left(&path("x")), left(&path("whole")));
        for name in left(&path("x")) {
            assert!(
                std::fs::read(path("x").join(&name)).unwrap()
                    == std::fs::read(path("whole").join(&name)).unwrap(),
                "{name}"
            );
        }
        assert_eq!(left(folder.path()), ["whole", "x", "x.svm"]);
        ["whole", "x"]
            .iter()
            .for_each(|name| std::fs::remove_dir_all(path(name)).unwrap());
    }
}

#[test]
fn a_line_longer_than_a_chunk_is_read_within_the_budget_or_refused() {
    let folder = folder();
    let source = folder.path().join("x.svm");
    let long = |entries: usize| {
        let mut text = String::from("1 1:1\n2");
        (1..=entries).for_each(|entry| write!(text, " {entry}:2").unwrap());
        text + "\n3 1:1\n"
    };
    std::fs::write(&source, long(50_000)).unwrap();
    let small = session(folder.path(), 12 << 20, WrapDevice::default());
    let libsvm = || options(Format::Libsvm(Libsvm::default()));
    let found = run(&small, &folder.path().join("x"), &source, libsvm())
        .unwrap()
        .matrix;
    assert_eq!((found.shape(), found.nonzeros()), ([3, 50_000], 50_002));
    std::fs::write(&source, long(300_000)).unwrap();
    let refused = run(&small, &folder.path().join("y"), &source, libsvm()).expect_err("too long");
    assert!(
        matches!(
            refused,
            Error::Line { line: 2, .. } | Error::OverBudget { .. }
        ),
        "{refused}"
    );
    assert_eq!(small.engine().budget().available(), 12 << 20);
    assert_eq!(left(folder.path()), ["x", "x.svm"]);
}

#[test]
fn an_export_at_a_fault_leaves_the_old_file() {
    let folder = folder();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    std::fs::write(path("x.svm"), libsvm_text(5000)).unwrap();
    let plain = session(folder.path(), MEMORY, WrapDevice::default());
    run(
        &plain,
        &path("a"),
        &path("x.svm"),
        options(Format::Libsvm(Libsvm::default())),
    )
    .unwrap();
    for format in [
        export::Format::MatrixMarket,
        export::Format::Npz,
        export::Format::Parquet,
    ] {
        let count = Arc::new(AtomicU64::new(0));
        let attempt = |fail| {
            count.store(0, Ordering::SeqCst);
            let session = session(
                folder.path(),
                MEMORY,
                failing(&count, fail, std::io::ErrorKind::Other),
            );
            let a = Sparse::open(&session, path("a"))?;
            export(&session, &a, path("out"), format.clone())?.run()
        };
        attempt(u64::MAX).unwrap();
        let total = count.load(Ordering::SeqCst);
        std::fs::write(path("out"), b"old").unwrap();
        for fail in (0..total.saturating_sub(1)).step_by(total.div_ceil(20) as usize) {
            let error = attempt(fail).expect_err("a fault");
            assert!(
                matches!(&error, Error::Device { .. }),
                "fault {fail}: {error}"
            );
            assert_eq!(std::fs::read(path("out")).unwrap(), b"old");
            assert_eq!(left(folder.path()), ["a", "out", "x.svm"]);
        }
    }
}
