//! Every step of every write fails once, and by seeds several at a time: existing objects are
//! intact, or marked.

use std::io::ErrorKind;
use std::sync::Arc;

use super::common::{assert_whole_or_marked, change, holds, leftovers, put};
use outcore_store::{Error, Faults, Folder, Step, Store};
use tempfile::TempDir;

const LEN: u64 = 5000;
const OLD: u8 = 1;
const NEW: u8 = 2;
const OTHER: ErrorKind = ErrorKind::Other;

fn with_old() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(&Folder::new(dir.path()).unwrap(), "x", LEN, OLD).unwrap();
    dir
}

/// Runs `work` on a folder that holds an old `x`, once for each of its steps, which then fails.
fn fail_each_step(
    no_attributes: bool,
    work: impl Fn(&Folder) -> Result<(), Error>,
    check: impl Fn(&TempDir, Option<Error>, Step),
) {
    for failing in 0.. {
        let dir = with_old();
        let faults = Arc::new(Faults::hook(move |number, step| match step {
            _ if number == failing => Err(OTHER.into()),
            Step::Mark if no_attributes => Err(ErrorKind::Unsupported.into()),
            _ => Ok(()),
        }));
        let result = work(&Folder::with_faults(dir.path(), Arc::clone(&faults)).unwrap());
        let log = faults.log();
        let Some(step) = log.get(failing as usize) else {
            assert!(failing >= 5, "only {failing} steps were seen");
            return result.unwrap();
        };
        check(&dir, result.err(), *step);
    }
}

fn assert_clean_after_next_create(dir: &TempDir) {
    put(&Folder::new(dir.path()).unwrap(), "next", 1, 0).unwrap();
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

#[test]
fn a_creation_that_fails_anywhere_leaves_the_old_object() {
    fail_each_step(
        false,
        |folder| put(folder, "x", LEN, NEW),
        |dir, error, step| {
            let error = error.unwrap_or_else(|| panic!("{step:?} failed unnoticed"));
            assert!(error.to_string().contains("/x: "), "{error}");
            // Only after the rename does the name lead to the new object.
            let value = if step == Step::SyncFolder { NEW } else { OLD };
            assert!(holds(&dir.path().join("x"), LEN, value), "{step:?}");
            assert!(Folder::new(dir.path()).unwrap().open("x").is_ok());
            assert_clean_after_next_create(dir);
        },
    );
}

#[test]
fn a_creation_that_is_given_up_and_cannot_clean_up_is_swept() {
    let dir = with_old();
    let cannot_remove = Faults::hook(|_, step| match step {
        Step::Remove => Err(OTHER.into()),
        _ => Ok(()),
    });
    let folder = Folder::with_faults(dir.path(), Arc::new(cannot_remove)).unwrap();
    drop(folder.create("x", LEN).unwrap());
    assert_eq!(leftovers(dir.path()), [".x.outcore-partial"]);
    assert_eq!(folder.list().unwrap(), ["x"]);
    assert_clean_after_next_create(&dir);
}

#[test]
fn a_write_in_place_that_fails_anywhere_leaves_a_whole_or_a_marked_object() {
    for no_attributes in [false, true] {
        fail_each_step(
            no_attributes,
            |folder| change(folder, "x", NEW),
            |dir, error, step| {
                let error = error.unwrap_or_else(|| panic!("{step:?} failed unnoticed"));
                assert!(error.to_string().contains("/x: "), "{error}");
                let folder = Folder::new(dir.path()).unwrap();
                let context = format!("{step:?}, attributes {}", !no_attributes);
                assert_whole_or_marked(&folder, "x", LEN, [OLD, NEW], &context);
                folder.clear_mark("x").unwrap();
                change(&folder, "x", 9).unwrap();
                assert!(holds(&dir.path().join("x"), LEN, 9), "{context}");
                assert_clean_after_next_create(dir);
            },
        );
    }
}

#[test]
fn a_rename_or_removal_that_fails_anywhere_loses_nothing() {
    fail_each_step(
        false,
        |folder| folder.rename("x", "y").and_then(|()| folder.remove("y")),
        |dir, error, step| {
            let folder = Folder::new(dir.path()).unwrap();
            let names = folder.list().unwrap();
            match error {
                // The claim on the new name is removed whether or not the step before it is
                // counted.
                None => assert_eq!(step, Step::Remove),
                Some(_) => assert!(names.len() <= 1, "{step:?}: {names:?}"),
            }
            for name in names {
                assert!(holds(&dir.path().join(name), LEN, OLD), "{step:?}");
            }
            assert_clean_after_next_create(dir);
        },
    );
}

#[test]
fn a_full_disk_is_called_one_at_each_step_that_meets_it() {
    for (full, kind) in [
        (Step::Space, ErrorKind::StorageFull),
        (Step::Allocate, ErrorKind::StorageFull),
        (Step::Allocate, ErrorKind::QuotaExceeded),
    ] {
        let dir = with_old();
        let faults = Faults::hook(move |_, step| match step == full {
            true => Err(kind.into()),
            false => Ok(()),
        });
        let folder = Folder::with_faults(dir.path(), Arc::new(faults)).unwrap();
        let error = put(&folder, "x", LEN, NEW).unwrap_err();
        assert!(
            matches!(error, Error::NoSpace { needed: LEN, .. }),
            "{full:?}: {error}"
        );
        assert!(holds(&dir.path().join("x"), LEN, OLD));
    }
}

#[test]
fn a_read_only_file_system_is_called_one() {
    let dir = with_old();
    let faults = Faults::hook(|_, step| match step {
        Step::Open => Err(ErrorKind::ReadOnlyFilesystem.into()),
        _ => Ok(()),
    });
    let folder = Folder::with_faults(dir.path(), Arc::new(faults)).unwrap();
    for error in [
        put(&folder, "x", LEN, NEW).unwrap_err(),
        change(&folder, "x", NEW).unwrap_err(),
    ] {
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
}

#[test]
fn under_seeded_faults_no_object_is_ever_silently_torn() {
    for seed in 0..150 {
        let dir = with_old();
        let faults = Arc::new(Faults::seeded(seed, 8));
        let folder = Folder::with_faults(dir.path(), faults).unwrap();
        let plain = Folder::new(dir.path()).unwrap();
        for round in 0..4 {
            let _ = put(&folder, "x", LEN, NEW);
            let _ = change(&folder, "x", OLD);
            let context = format!("seed {seed}, round {round}");
            assert_whole_or_marked(&plain, "x", LEN, [OLD, NEW], &context);
        }
        assert_clean_after_next_create_or_marked(&plain, &dir);
    }
}

fn assert_clean_after_next_create_or_marked(plain: &Folder, dir: &TempDir) {
    plain.clear_mark("x").unwrap();
    assert_clean_after_next_create(dir);
}
