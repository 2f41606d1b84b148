//! Scratch is found, cleaned, and refused where it defeats its purpose.

use std::sync::Arc;

use super::common::{fill, put};
use outcore_store::{CHECKPOINT, Error, Faults, Scratch, Tmpfs};

fn count(path: &std::path::Path) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

#[test]
fn unnamed_objects_outlive_the_scratch_and_go_with_their_last_holder() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    let object = scratch.create(5000).unwrap();
    assert_eq!((object.len(), object.device().len()), (5000, 5000));
    assert_eq!(
        count(scratch.folder().path()),
        1,
        "only the lock has a name"
    );
    assert!(object.name().starts_with("scratch object "));
    put(scratch.folder(), "named", 10, 1).unwrap();
    drop(scratch);
    assert_eq!(count(dir.path()), 0);
    fill(&*object.device(), 5000, 3);
}

#[test]
fn scratch_in_memory_is_refused_unless_asked_for() {
    let shared_memory = std::path::Path::new("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(shared_memory) else {
        return;
    };
    match Scratch::new(dir.path(), Tmpfs::Refuse) {
        Err(Error::TmpfsScratch { folder }) => assert_eq!(folder, dir.path().to_str().unwrap()),
        other => panic!("{other:?}"),
    }
    let scratch = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    fill(&*scratch.create(10).unwrap().device(), 10, 1);
}

#[test]
fn two_scratches_of_one_process_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let first = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    let second = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    assert_ne!(first.folder().path(), second.folder().path());
    drop(first);
    assert!(second.create(10).is_ok());
}

#[test]
fn a_folder_left_before_it_was_locked_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("outcore-scratch-1-0000000000000000");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("3"), "bytes").unwrap();
    let scratch = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    assert!(!left.exists());
    drop(scratch);
    assert_eq!(count(dir.path()), 0);
}

#[test]
fn scratch_that_fails_anywhere_leaves_nothing() {
    for failing in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let faults = Arc::new(Faults::fail_nth(failing, std::io::ErrorKind::Other));
        let made = Scratch::with_faults(dir.path(), Tmpfs::Allow, Arc::clone(&faults));
        let result = made.and_then(|scratch| scratch.create(5000));
        assert_eq!(count(dir.path()), 0, "step {failing}");
        if faults.log().len() <= usize::try_from(failing).unwrap() {
            result.unwrap();
            return;
        }
        result.unwrap_err();
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::none().with_free_bytes(100));
    let scratch = Scratch::with_faults(dir.path(), Tmpfs::Allow, faults).unwrap();
    assert!(matches!(
        scratch.create(101),
        Err(Error::NoSpace {
            needed: 101,
            free: 100,
            ..
        })
    ));
    let gone = dir.path().join("no");
    assert!(matches!(
        Scratch::new(gone, Tmpfs::Allow),
        Err(Error::Missing { .. })
    ));
}

#[test]
fn a_sweep_removes_what_the_dead_have_left_and_nothing_of_the_living() {
    let dir = tempfile::tempdir().unwrap();
    Scratch::sweep(&dir.path().join("nothing"));
    let living = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
    let lasting = living.lasting().unwrap();
    let kept = lasting.path().join(".x.outcore-unfinished");
    for (folder, file) in [
        (
            dir.path().join("outcore-scratch-1-0000000000000000"),
            "lock",
        ),
        (kept.clone(), CHECKPOINT),
    ] {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(file), "").unwrap();
    }
    std::fs::create_dir(lasting.path().join(".y.outcore-unfinished")).unwrap();
    std::fs::create_dir(dir.path().join("of another user")).unwrap();
    Scratch::sweep(dir.path());
    assert_eq!(count(dir.path()), 3);
    assert_eq!(count(lasting.path()), 1);
    assert!(kept.exists() && living.create(10).is_ok());
}
