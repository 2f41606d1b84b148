//! Files that are changed in place while other things happen to them.

use std::path::Path;

use outcore::linalg::{Affine, Gemm, affine, axpby, gemm};
use outcore_device::write_now;
use outcore_store::{Folder, Store};

use outcore::{Array, Buf, DType, Error, Order, Output, Session, Settings};

fn session(folder: &Path, memory_bytes: u64) -> Session {
    let scratch = Some(folder.join("scratch"));
    Session::new(Settings {
        memory_bytes: Some(memory_bytes),
        scratch,
        threads: 2,
        ..Settings::default()
    })
    .unwrap()
}

fn write(array: &Array, value: f32) -> outcore::Result<()> {
    let mut bytes = Buf::anonymous(array.nbytes() as usize).unwrap();
    bytemuck::cast_slice_mut::<u8, f32>(&mut bytes).fill(value);
    array.write(bytes.freeze())?.run()
}

fn first(array: &Array) -> f32 {
    let bytes = array.read().unwrap().run().unwrap();
    f32::from_ne_bytes(bytes[..4].try_into().unwrap())
}

/// An array that was opened again after a write in place had a cache of its own, and showed what
/// was there before.
#[test]
fn arrays_of_one_file_see_each_others_writes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let path = folder.path().join("x.npy");
    let a = Array::create(&session, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    write(&a, 1.0).unwrap();
    let b = Array::open(&session, &path).unwrap();
    assert_eq!(first(&a), 1.0);
    write(&b, 2.0).unwrap();
    assert_eq!((first(&a), first(&b)), (2.0, 2.0));
    let clash = gemm(
        &session,
        (&a).into(),
        (&a).into(),
        Gemm {
            out: Output::InPlace(b),
            ..Gemm::default()
        },
    );
    assert!(matches!(clash, Err(Error::Value { .. })));
}

/// What a job had made was written in place without a mark or a lock, and kept blocks of its own in
/// memory.
#[test]
fn a_result_is_changed_in_place_as_any_file() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let a = Array::create(
        &session,
        folder.path().join("a.npy"),
        DType::F32,
        &[64, 64],
        Order::Row,
    )
    .unwrap();
    write(&a, 1.0).unwrap();
    let out = || Output::New(folder.path().join("c.npy"));
    let c = gemm(
        &session,
        (&a).into(),
        (&a).into(),
        Gemm {
            out: out(),
            ..Gemm::default()
        },
    )
    .unwrap()
    .run()
    .unwrap();
    assert_eq!(first(&c), 64.0);
    let again = Array::open(&session, folder.path().join("c.npy")).unwrap();
    write(&again, 2.0).unwrap();
    assert_eq!((first(&c), first(&again)), (2.0, 2.0));
    write(&c, 3.0).unwrap();
    assert_eq!((first(&c), first(&again)), (3.0, 3.0));
    let held = Folder::new(folder.path())
        .unwrap()
        .open_in_place("c.npy")
        .unwrap();
    assert!(matches!(
        write(&c, 4.0),
        Err(Error::Store(outcore_store::Error::Locked { .. }))
    ));
    drop(held);
    let newer = a
        .convert(out(), DType::F32, Order::Row)
        .unwrap()
        .run()
        .unwrap();
    assert!(
        matches!(write(&c, 5.0), Err(Error::Value { .. })),
        "another file has its name"
    );
    assert_eq!((first(&c), first(&newer)), (3.0, 1.0));
}

/// A write that was planned while the file had no name went to it unmarked when it had one.
#[test]
fn a_write_that_was_planned_for_a_draft_is_not_for_the_file() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let draft = Array::draft(
        &session,
        folder.path().join("x.npy"),
        DType::F32,
        &[64, 64],
        Order::Row,
    )
    .unwrap();
    let late = draft
        .write(Buf::anonymous(draft.nbytes() as usize).unwrap().freeze())
        .unwrap();
    write(&draft, 1.0).unwrap();
    let x = draft.clone().finish().unwrap();
    assert!(matches!(late.run(), Err(Error::Value { .. })));
    write(&draft, 2.0).unwrap();
    assert_eq!((first(&x), first(&draft)), (2.0, 2.0));
}

/// Two sessions have two handles of one file, and an operand opened by one was not known as the
/// output opened by the other.
#[test]
fn an_output_that_another_session_has_opened_as_an_operand_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (one, other) = (
        session(folder.path(), 8 << 20),
        session(folder.path(), 8 << 20),
    );
    let path = folder.path().join("x.npy");
    let a = Array::create(&one, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    let b = Array::open(&other, &path).unwrap();
    let clash = gemm(
        &one,
        (&a).into(),
        (&a).into(),
        Gemm {
            out: Output::InPlace(b.clone()),
            ..Gemm::default()
        },
    );
    assert!(matches!(clash, Err(Error::Value { .. })));
    assert!(matches!(
        a.t()
            .convert(Output::InPlace(b.clone()), DType::F32, Order::Row),
        Err(Error::Value { .. })
    ));
    // Halves that share no element may be one the operand and the other the output.
    let (left, right) = (
        a.slice(0..64, 0..32).unwrap(),
        b.slice(0..64, 32..64).unwrap(),
    );
    left.convert(Output::InPlace(right), DType::F32, Order::Row)
        .unwrap()
        .run()
        .unwrap();
}

/// A write went to whatever file had the name now, at the offsets of the one that had been opened.
#[test]
fn a_file_that_took_the_name_is_not_written_to() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let path = folder.path().join("x.npy");
    let a = Array::create(&session, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    std::fs::write(folder.path().join("other"), vec![7; 30_000]).unwrap();
    std::fs::rename(folder.path().join("other"), &path).unwrap();
    let error = write(&a, 1.0).err().unwrap();
    assert!(error.to_string().contains("x.npy"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; 30_000]);
}

/// A write to a file that had been cut short reported success, and the data was gone.
#[test]
fn a_file_that_was_cut_short_is_not_written_to() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let path = folder.path().join("x.npy");
    let a = Array::create(&session, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5000)
        .unwrap();
    assert!(matches!(write(&a, 1.0), Err(Error::Format(_))));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000);
}

/// A job that ended before it had written anything left its file marked as half written.
#[test]
fn a_job_that_never_wrote_leaves_no_mark() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let path = folder.path().join("x.npy");
    let a = Array::create(&session, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    let job = axpby(
        &session,
        Array::create(
            &session,
            folder.path().join("y.npy"),
            DType::F32,
            &[64, 64],
            Order::Row,
        )
        .unwrap()
        .into(),
        &a,
        outcore::linalg::Axpby::default(),
    )
    .unwrap();
    let taken = session.engine().budget().reserve("all", 8 << 20).unwrap();
    assert!(matches!(job.run(), Err(Error::OverBudget { .. })));
    drop((taken, a));
    Array::open(&session, &path).unwrap();
}

/// What was left half written could not be written again by any means.
#[test]
fn what_was_interrupted_can_be_written_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("x.npy");
    let first_session = session(folder.path(), 8 << 20);
    drop(Array::create(&first_session, &path, DType::F32, &[64, 64], Order::Row).unwrap());
    let (store, name) = outcore_store::Folder::split(&path).unwrap();
    let object = outcore_store::Store::open_in_place(&store, &name).unwrap();
    drop((object.device(), object));
    let session = session(folder.path(), 8 << 20);
    assert!(Array::open(&session, &path).is_err());
    write(&Array::open_interrupted(&session, &path).unwrap(), 3.0).unwrap();
    assert_eq!(first(&Array::open(&session, &path).unwrap()), 3.0);
}

/// Later panels of an affine map read rows that earlier ones had overwritten.
#[test]
fn a_map_or_copy_onto_its_own_source_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let a = Array::create(
        &session,
        folder.path().join("x.npy"),
        DType::F32,
        &[150, 4],
        Order::Row,
    )
    .unwrap();
    let (source, out) = (
        a.slice(0..100, 0..4).unwrap(),
        a.slice(50..150, 0..4).unwrap(),
    );
    let map = Affine {
        before: Vec::new(),
        matrix: vec![1.0; 16],
        columns: 4,
        after: Vec::new(),
    };
    assert!(matches!(
        affine(
            &session,
            (&source).into(),
            map,
            Output::InPlace(out.clone())
        ),
        Err(Error::Value { .. })
    ));
    assert!(matches!(
        source.convert(Output::InPlace(out), DType::F32, Order::Row),
        Err(Error::Value { .. })
    ));
    write(&a.slice(0..50, 0..4).unwrap(), 4.0).unwrap();
    let beside = a.slice(100..150, 0..4).unwrap();
    a.slice(0..50, 0..4)
        .unwrap()
        .convert(Output::InPlace(beside.clone()), DType::F32, Order::Row)
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(first(&beside), 4.0);
}

/// A session went on showing what it remembered of a file that another session of the process had
/// written to.
#[test]
fn sessions_see_each_others_writes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (one, two) = (
        session(folder.path(), 8 << 20),
        session(folder.path(), 8 << 20),
    );
    let path = folder.path().join("x.npy");
    let a = Array::create(&one, &path, DType::F32, &[64, 64], Order::Row).unwrap();
    write(&a, 1.0).unwrap();
    assert_eq!(first(&a), 1.0);
    write(&Array::open(&two, &path).unwrap(), 2.0).unwrap();
    assert_eq!(first(&a), 2.0);
    let c = gemm(
        &one,
        (&a).into(),
        (&a).into(),
        Gemm {
            out: Output::New(folder.path().join("c.npy")),
            ..Gemm::default()
        },
    );
    let c = c.unwrap().run().unwrap();
    assert_eq!(first(&c), 256.0);
    write(
        &Array::open(&two, folder.path().join("c.npy")).unwrap(),
        5.0,
    )
    .unwrap();
    assert_eq!(first(&c), 5.0);
}

/// A file that another writer has run past its end of was opened as long as that, by a caller
/// that accepts what is interrupted.
#[test]
fn a_file_that_is_being_written_is_opened_at_its_exact_length() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let session = session(folder.path(), 8 << 20);
    let path = folder.path().join("x.bin");
    std::fs::write(&path, vec![0; 5004]).unwrap();
    std::fs::write(
        folder.path().join("x.bin.json"),
        r#"{"dtype": "float32", "shape": [1251], "order": "C"}"#,
    )
    .unwrap();
    let whole = Array::open(&session, &path).unwrap();
    let writer = Folder::new(folder.path())
        .unwrap()
        .open_in_place("x.bin")
        .unwrap();
    let block = Buf::anonymous(8192).unwrap();
    write_now(&*writer.device(), &block, 0).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    for opened in [
        Array::open(&session, &path).unwrap(),
        Array::open_interrupted(&session, &path).unwrap(),
    ] {
        assert_eq!(
            (opened.shape(), opened.read().unwrap().run().unwrap().len()),
            (whole.shape(), 5004)
        );
        assert!(matches!(
            write(&opened, 1.0),
            Err(Error::Store(outcore_store::Error::Locked { .. }))
        ));
    }
    drop(writer);
    let left = Array::open_interrupted(&session, &path).unwrap();
    write(&left, 1.0).unwrap();
    assert_eq!(
        (
            std::fs::metadata(&path).unwrap().len(),
            first(&Array::open(&session, &path).unwrap())
        ),
        (5004, 1.0)
    );
}
