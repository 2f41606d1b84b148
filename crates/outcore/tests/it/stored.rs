//! Matrices in a formatted store: what is computed from them is what is computed from files, bit by
//! bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore::export::{self, Labels, export};
use outcore::import::{Format, Libsvm, Options, import};
use outcore::linalg::{Axpby, Csrmm, Gemm, Scaling, axpby, csrcsc, csrmm, gemm, scaled};
use outcore::sparse::compress;
use outcore::{
    Array, Buf, DType, Error, Operand, Order, Output, Session, Settings, Sparse, StreamOptions,
    StreamStore,
};
use outcore_store::{Access, Error as StoreError, Formatted, State, Store};

const MEMORY: u64 = 8 << 20;

fn session(folder: &Path) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(MEMORY),
        scratch,
        threads: 2,
        ..Settings::default()
    })
    .unwrap()
}

/// A folder, and in it a store.
fn places() -> (tempfile::TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = folder.path().join("disk.store");
    Formatted::format(&disk, Some(64 << 20)).unwrap();
    let places = [folder.path().to_owned(), disk];
    (folder, places)
}

fn write(array: &Array, seed: u64) {
    let mut bytes = Buf::anonymous(array.nbytes() as usize).unwrap();
    let values = bytemuck::cast_slice_mut::<u8, f32>(&mut bytes)
        .iter_mut()
        .enumerate();
    // Small integers, so that sums are exact in any order.
    values.for_each(|(at, value)| *value = ((at as u64 * 7919 + seed) % 97) as f32 - 48.0);
    array.write(bytes.freeze()).unwrap().run().unwrap();
}

fn bytes(array: &Array) -> Vec<u8> {
    array.read().unwrap().run().unwrap().to_vec()
}

/// Offsets, indices and values.
fn parts(matrix: &Sparse) -> Vec<Vec<u8>> {
    let found = matrix.read().unwrap().run().unwrap();
    [found.offsets, found.indices, found.values]
        .iter()
        .map(|part| part.to_vec())
        .collect()
}

#[test]
fn dense_work_gives_the_same_bits_in_a_store() {
    let (folder, places) = places();
    let found = places.map(|place| {
        let session = session(folder.path());
        let (rows, cols) = (1500, 1100);
        let a = Array::create(
            &session,
            place.join("deep/down/a.npy").as_path(),
            DType::F32,
            &[rows, cols],
            Order::Row,
        );
        // A store has no folders that would have to be there.
        assert_eq!(a.is_ok(), place.is_file());
        let a = Array::create(
            &session,
            place.join("a.npy"),
            DType::F32,
            &[rows, cols],
            Order::Row,
        )
        .unwrap();
        write(&a, 1);
        drop(a);
        let a = Array::open(&session, place.join("a.npy")).unwrap();
        assert_eq!(a.path().unwrap(), place.join("a.npy"));
        let out = Output::New(place.join("c.npy"));
        let product = gemm(
            &session,
            a.t().into(),
            (&a).into(),
            Gemm {
                out,
                ..Gemm::default()
            },
        )
        .unwrap();
        let c = product.run().unwrap();
        let (upper, lower) = (
            c.slice(0..550, 0..cols).unwrap(),
            c.slice(550..1100, 0..cols).unwrap(),
        );
        axpby(&session, lower.into(), &upper, Axpby::default())
            .unwrap()
            .run()
            .unwrap();
        let columns = a
            .convert(Output::New(place.join("d.npy")), DType::F64, Order::Column)
            .unwrap()
            .run()
            .unwrap();
        [
            bytes(&c),
            bytes(&columns),
            bytes(&Array::open(&session, place.join("c.npy")).unwrap()),
        ]
    });
    assert!(
        found[0] == found[1],
        "not the same in a folder and in a store"
    );
    assert!(found[0][0] == found[0][2]);
}

#[test]
fn plans_predict_what_runs_in_a_store_move() {
    let (folder, [_, disk]) = places();
    let session = session(folder.path());
    let a = Array::create(
        &session,
        disk.join("a.npy"),
        DType::F32,
        &[3000, 700],
        Order::Row,
    )
    .unwrap();
    write(&a, 2);
    let job = |session: &Session, name| {
        let out = Output::New(disk.join(name));
        gemm(
            session,
            a.t().into(),
            (&a).into(),
            Gemm {
                out,
                ..Gemm::default()
            },
        )
        .unwrap()
    };
    let planned = job(&session.planner(), "never.npy");
    job(&session, "c.npy").run().unwrap();
    let predicted =
        |totals: &outcore_engine::Totals| (totals.bytes_read + totals.bytes_written) as f64;
    let run = session.last_trace().unwrap();
    let ratio = predicted(&planned.explain()[0].predicted) / predicted(&run.predicted);
    // Scratch files have blocks of their own, which a planner does not know.
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    let mut names = Formatted::open_shared(&disk, Access::Read)
        .unwrap()
        .list()
        .unwrap();
    names.sort();
    assert_eq!(names, ["a.npy", "c.npy"]);
}

#[test]
fn sparse_work_gives_the_same_bits_in_a_store() {
    let (folder, places) = places();
    let source = folder.path().join("rows.svm");
    let text: String = (0..4000_u64)
        .map(|row| {
            let features: Vec<String> = (0..row % 50)
                .map(|at| format!("{}:{}", 1 + at * 60 + row % 59, 1 + (row + at) % 7))
                .collect();
            format!("{},{} {}\n", row % 5, 5 + row % 3, features.join(" "))
        })
        .collect();
    std::fs::write(&source, text).unwrap();
    let found = places.map(|place| {
        let session = session(folder.path());
        for tiled in [true, false] {
            let libsvm = Libsvm {
                many_labels: true,
                ..Libsvm::default()
            };
            let options = Options {
                tiled,
                ..Options::new(Format::Libsvm(libsvm))
            };
            import(
                &session,
                place.join("a"),
                std::slice::from_ref(&source),
                options,
            )
            .unwrap()
            .run()
            .unwrap();
            assert_eq!(
                Sparse::open(&session, place.join("a")).unwrap().is_tiled(),
                tiled
            );
        }
        let a = Sparse::open(&session, place.join("a")).unwrap();
        assert!(Sparse::is_at(place.join("a")) && !Sparse::is_at(place.join("b")));
        let labels = Sparse::open(&session, place.join("a/labels")).unwrap();
        let turned = csrcsc(&session, &a, Some(place.join("turned")))
            .unwrap()
            .run()
            .unwrap();
        let scaled = scaled(&session, &a, Scaling::default(), Some(place.join("scaled")))
            .unwrap()
            .run()
            .unwrap();
        let tiled = compress(&session, &a, Some(place.join("tiled")))
            .unwrap()
            .run()
            .unwrap()
            .unwrap();
        let b = Array::create(
            &session,
            place.join("b.npy"),
            DType::F32,
            &[a.cols(), 20],
            Order::Row,
        )
        .unwrap();
        write(&b, 3);
        let out = Output::New(place.join("c.npy"));
        let c = csrmm(
            &session,
            &tiled,
            Operand::from(&b),
            Csrmm {
                out,
                ..Csrmm::default()
            },
        )
        .unwrap()
        .run()
        .unwrap();
        let target = folder.path().join("again.svm");
        export(
            &session,
            &a,
            &target,
            export::Format::Libsvm {
                labels: Labels::Many(labels.clone()),
                queries: None,
            },
        )
        .unwrap()
        .run()
        .unwrap();
        let exported = std::fs::read(&target).unwrap();
        (
            parts(&a),
            parts(&labels),
            parts(&turned),
            parts(&scaled),
            parts(&tiled),
            bytes(&c),
            exported,
        )
    });
    assert!(
        found[0] == found[1],
        "not the same in a folder and in a store"
    );
    assert_eq!(left_in_scratch(folder.path()), 0);
}

/// Folders of imports that may be gone on with.
fn left_in_scratch(folder: &Path) -> usize {
    let beside = std::fs::read_dir(folder.join("scratch"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let lasting = beside.filter(|path| path.to_string_lossy().contains("outcore-unfinished-"));
    lasting
        .map(|path| std::fs::read_dir(path).unwrap().count())
        .sum()
}

#[test]
fn an_import_into_a_full_store_leaves_nothing_or_what_can_be_gone_on_with() {
    let (folder, [_, disk]) = places();
    let session = session(folder.path());
    let rest = Formatted::open_shared(&disk, Access::Read)
        .unwrap()
        .free_bytes()
        .unwrap()
        / 4
        - 60_000;
    Array::create(
        &session,
        disk.join("rest.npy"),
        DType::F32,
        &[rest / 1024 * 1023],
        Order::Row,
    )
    .unwrap();
    let source = folder.path().join("rows.svm");
    std::fs::write(&source, "1 5:2 9:3\n".repeat(40_000)).unwrap();
    let run = |options: Options| {
        import(
            &session,
            disk.join("a"),
            std::slice::from_ref(&source),
            options,
        )
        .unwrap()
        .run()
    };
    let options = |checkpoint_bytes, resume| {
        let format = Format::Libsvm(Libsvm::default());
        Options {
            checkpoint_bytes,
            resume,
            ..Options::new(format)
        }
    };
    let is_full = |result: outcore::Result<_>| {
        matches!(
            result.map(drop),
            Err(Error::Store(StoreError::NoSpace { .. }))
        )
    };
    assert!(is_full(run(options(1 << 30, false))));
    assert_eq!(left_in_scratch(folder.path()), 0);
    assert!(is_full(run(options(1 << 10, false))));
    assert_eq!(left_in_scratch(folder.path()), 1);
    Formatted::open_shared(&disk, Access::Write)
        .unwrap()
        .remove("rest.npy")
        .unwrap();
    let found = run(options(1 << 30, true)).unwrap();
    assert!(found.resumed_at > 0 && found.matrix.nonzeros() == 80_000);
    assert_eq!(left_in_scratch(folder.path()), 0);
}

#[test]
fn a_matrix_in_a_store_is_whole_or_says_that_it_is_not() {
    let (folder, [_, disk]) = places();
    let session = session(folder.path());
    let path = disk.join("x.npy");
    let x = Array::create(&session, &path, DType::F32, &[500, 300], Order::Row).unwrap();
    write(&x, 4);
    let old = bytes(&x);
    let draft = Array::draft(&session, &path, DType::F32, &[500, 300], Order::Row).unwrap();
    write(&draft, 5);
    assert!(
        bytes(&Array::open(&session, &path).unwrap()) == old,
        "a draft has no name"
    );
    draft.finish().unwrap();
    assert!(bytes(&x) == old, "an open handle keeps the old matrix");
    assert!(bytes(&Array::open(&session, &path).unwrap()) != old);
    drop(x);

    let store = Formatted::open_shared(&disk, Access::Write).unwrap();
    drop(
        store
            .open_in_place("x.npy")
            .map(|writing| writing.device())
            .unwrap(),
    );
    assert_eq!(store.stat("x.npy").unwrap().state, State::Interrupted);
    assert!(matches!(
        Array::open(&session, &path),
        Err(Error::Store(StoreError::Interrupted { .. }))
    ));
    assert!(Array::open_interrupted(&session, &path).is_ok());
    session.accept(&path).unwrap();
    Array::open(&session, &path).unwrap();

    for (name, kind) in [("nothing.npy", "Missing"), ("../x.npy", "Name")] {
        let error = Array::open(&session, disk.join(name))
            .map(drop)
            .unwrap_err();
        assert!(format!("{error:?}").contains(kind), "{error:?}");
    }
    let error = Array::create(
        &session,
        disk.join("large.npy"),
        DType::F64,
        &[1 << 20, 100],
        Order::Row,
    )
    .map(drop)
    .unwrap_err();
    assert!(
        matches!(&error, Error::Store(StoreError::NoSpace { object, .. }) if object.ends_with("disk.store/large.npy"))
    );
    let streams = StreamStore::on(&session, store);
    streams
        .write("s", StreamOptions::default())
        .unwrap()
        .finish()
        .unwrap();
    let error = Array::open(&session, disk.join("s")).map(drop).unwrap_err();
    assert!(error.to_string().contains("a stream"), "{error}");
}

#[test]
fn damage_below_a_matrix_is_found_when_it_is_read() {
    let (folder, [_, disk]) = places();
    let x = Array::create(
        &session(folder.path()),
        disk.join("x.npy"),
        DType::F32,
        &[512, 512],
        Order::Row,
    )
    .unwrap();
    let mut noise = Buf::anonymous(x.nbytes() as usize).unwrap();
    bytemuck::cast_slice_mut::<u8, f32>(&mut noise)
        .iter_mut()
        .enumerate()
        .for_each(|(at, value)| *value = at as f32);
    x.write(noise.freeze()).unwrap().run().unwrap();
    let whole = bytes(&x);
    drop(x);
    let mut raw = std::fs::read(&disk).unwrap();
    let at = raw
        .windows(64)
        .position(|window| window == &whole[1 << 19..][..64])
        .unwrap();
    raw[at] ^= 1;
    std::fs::write(&disk, raw).unwrap();
    let x = Array::open(&session(folder.path()), disk.join("x.npy")).unwrap();
    let error = x.read().unwrap().run().map(drop).unwrap_err();
    assert!(
        error.to_string().contains("x.npy") && error.to_string().contains("checksum"),
        "{error}"
    );
    let shared = Arc::new(x);
    assert_eq!(
        shared
            .slice(0..2, 0..512)
            .unwrap()
            .read()
            .unwrap()
            .run()
            .unwrap()[..],
        whole[..4096]
    );
}
