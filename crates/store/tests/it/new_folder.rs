//! Folders whose objects are created together: all of them or none, whatever fails.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::common::{self, fill, holds, leftovers};
use outcore_store::{CHECKPOINT, Error, Faults, Folder, Step, Store, Unfinished};

const LEN: u64 = 5000;

/// A folder of two objects of one byte value.
fn put(folder: &Folder, value: u8) -> Result<(), Error> {
    let mut new = folder.create_folder("x", Unfinished::Removed, &["a", "b"])?;
    for name in ["a", "b"] {
        fill(&*new.create(name, LEN)?, LEN, value);
    }
    new.commit()
}

fn whole(folder: &Path, value: u8) -> bool {
    ["a", "b"]
        .iter()
        .all(|name| holds(&folder.join("x").join(name), LEN, value))
}

#[test]
fn a_committed_folder_has_all_its_objects_at_their_exact_lengths() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    put(&folder, 1).unwrap();
    assert!(whole(root.path(), 1));
    assert_eq!(folder.list().unwrap(), ["x/a", "x/b"]);
    assert_eq!(leftovers(root.path()), [""; 0]);
}

/// A dataset once replaced a folder of photographs.
#[test]
fn a_folder_with_something_else_in_it_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    put(&folder, 1).unwrap();
    let foreign = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Foreign { .. })), "{result:?}")
    };
    let (file, deep) = (root.path().join("x/more"), root.path().join("x/deep"));
    std::fs::write(&file, b"precious").unwrap();
    foreign(put(&folder, 2));
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&deep).unwrap();
    foreign(put(&folder, 2));
    std::fs::remove_dir(&deep).unwrap();
    // Also files that have appeared meanwhile.
    let new = folder
        .create_folder("x", Unfinished::Removed, &["a", "b"])
        .unwrap();
    std::fs::write(&file, b"precious").unwrap();
    foreign(new.commit());
    assert!(whole(root.path(), 1) && file.exists());
    std::fs::remove_file(&file).unwrap();
    put(&folder, 2).unwrap();
    assert!(whole(root.path(), 2));
    assert_eq!(leftovers(root.path()), [""; 0]);
}

#[test]
fn a_folder_that_is_given_up_never_was() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let mut new = folder
        .create_folder("x", Unfinished::Removed, &["a", "b"])
        .unwrap();
    fill(&*new.create("a", LEN).unwrap(), LEN, 1);
    drop(new);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn whatever_step_fails_the_name_leads_to_the_old_folder_or_to_the_new_one() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::PermissionDenied] {
        for fails in 0.. {
            let root = tempfile::tempdir().unwrap();
            put(&Folder::new(root.path()).unwrap(), 1).unwrap();
            let faults = Arc::new(Faults::hook(move |number, _| {
                if number == fails {
                    Err(kind.into())
                } else {
                    Ok(())
                }
            }));
            let faulty = Folder::with_faults(root.path(), Arc::clone(&faults)).unwrap();
            let result = put(&faulty, 2);
            assert!(
                whole(root.path(), 1) || whole(root.path(), 2),
                "step {fails}"
            );
            assert!(result.is_err() || whole(root.path(), 2), "step {fails}");
            drop(faulty);
            // The next creation sweeps the rest.
            put(&Folder::new(root.path()).unwrap(), 3).unwrap();
            assert!(whole(root.path(), 3), "step {fails}");
            assert_eq!(leftovers(root.path()), [""; 0], "step {fails}");
            // The last one met no fault: there were no more steps.
            if faults.log().len() as u64 <= fails {
                assert!(result.is_ok());
                break;
            }
        }
    }
}

/// A folder that an earlier writer has left with a checkpoint: two objects, and one that is needed
/// only for resuming.
fn leave(folder: &Folder, value: u8) {
    let mut new = folder
        .create_folder("x", Unfinished::Kept, &["a", "b"])
        .unwrap();
    for name in ["a", "b", "more"] {
        fill(&*new.create_growing(name).unwrap(), LEN, value);
    }
    new.sync().unwrap();
    std::fs::write(new.path().join(CHECKPOINT), "far").unwrap();
}

/// Resumes it, and completes it.
fn go_on(folder: &Folder, value: u8) -> Result<(), Error> {
    let mut new = folder.create_folder("x", Unfinished::Kept, &["a", "b"])?;
    for name in ["a", "b", "more"] {
        let path = new.path().join(name);
        new.create_growing(name)?;
        new.cut(name, LEN);
        // It has its greatest possible length.
        let mut found = vec![0; LEN as usize];
        std::fs::File::open(path)
            .unwrap()
            .read_exact(&mut found)
            .unwrap();
        assert!(found.iter().all(|byte| *byte == value), "{name}");
    }
    new.commit_without(&["more"])
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Durable progress was lost with a commit that failed.
#[test]
fn whatever_step_of_a_commit_fails_a_checkpoint_is_lost_only_to_the_new_folder() {
    for (kind, is_there) in [
        (io::ErrorKind::Other, true),
        (io::ErrorKind::StorageFull, false),
    ] {
        for fails in 0.. {
            let root = tempfile::tempdir().unwrap();
            let plain = Folder::new(root.path()).unwrap();
            if is_there {
                put(&plain, 1).unwrap();
            }
            leave(&plain, 2);
            let faults = Arc::new(Faults::hook(move |number, _| {
                if number == fails {
                    Err(kind.into())
                } else {
                    Ok(())
                }
            }));
            let result = go_on(
                &Folder::with_faults(root.path(), Arc::clone(&faults)).unwrap(),
                2,
            );
            let log = faults.log();
            match &result {
                Ok(()) => assert!(whole(root.path(), 2), "step {fails}"),
                Err(error) => {
                    assert!(error.to_string().contains("/x"), "{error}");
                    assert_eq!(is_there, root.path().join("x").exists(), "step {fails}");
                    assert!(!is_there || whole(root.path(), 1), "step {fails}");
                    // Creating other objects meanwhile sweeps dead partials, but not this one.
                    common::put(&plain, "y", 1, 1).unwrap();
                    go_on(&plain, 2).unwrap();
                    assert!(whole(root.path(), 2), "step {fails}");
                    assert_eq!(names(&root.path().join("x")), ["a", "b"], "step {fails}");
                }
            }
            common::put(&plain, "y", 1, 1).unwrap();
            assert_eq!(leftovers(root.path()), [""; 0], "step {fails}");
            if log.len() as u64 <= fails {
                assert!(result.is_ok() && log.len() > 15, "{log:?}");
                assert_eq!(names(&root.path().join("x")), ["a", "b"]);
                break;
            }
        }
    }
}

#[test]
fn what_could_not_be_removed_goes_with_the_next_folder_of_the_name() {
    let root = tempfile::tempdir().unwrap();
    let plain = Folder::new(root.path()).unwrap();
    leave(&plain, 1);
    let cannot_remove = Faults::hook(|_, step| {
        if step == Step::Remove {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        }
    });
    go_on(
        &Folder::with_faults(root.path(), Arc::new(cannot_remove)).unwrap(),
        1,
    )
    .unwrap();
    assert!(whole(root.path(), 1));
    assert_eq!(plain.list().unwrap(), ["x/a", "x/b"]);
    // There is nothing to resume.
    let new = plain
        .create_folder("x", Unfinished::Kept, &["a", "b"])
        .unwrap();
    assert!(!new.has_checkpoint());
    drop(new);
    leave(&plain, 2);
    go_on(&plain, 2).unwrap();
    assert!(whole(root.path(), 2));
    assert_eq!(names(&root.path().join("x")), ["a", "b"]);
    assert_eq!(leftovers(root.path()), [""; 0]);
}

#[test]
fn two_writers_of_one_folder_exclude_each_other() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let held = folder
        .create_folder("x", Unfinished::Removed, &["a", "b"])
        .unwrap();
    assert!(matches!(
        folder.create_folder("x", Unfinished::Removed, &["a", "b"]),
        Err(Error::Locked { .. })
    ));
    assert!(matches!(
        folder.create("x", 1),
        Err(Error::Locked { .. } | Error::NotAFile { .. })
    ));
    drop(held);
    put(&folder, 1).unwrap();
    assert!(matches!(folder.create("x", 1), Err(Error::NotAFile { .. })));
    common::put(&folder, "y", 1, 1).unwrap();
    assert!(matches!(
        folder.create_folder("y", Unfinished::Removed, &["a", "b"]),
        Err(Error::NotAFolder { .. })
    ));
}

#[test]
fn an_unfinished_folder_that_is_kept_can_be_gone_on_with() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let mut new = folder
        .create_folder("x", Unfinished::Kept, &["a", "b"])
        .unwrap();
    fill(&*new.create_growing("a").unwrap(), LEN, 7);
    new.sync().unwrap();
    std::fs::write(new.path().join(CHECKPOINT), "far").unwrap();
    drop(new);
    assert_eq!(folder.list().unwrap(), [""; 0]);
    // Creating other objects meanwhile sweeps dead partials, but not this one.
    common::put(&folder, "y", 1, 1).unwrap();

    let mut again = folder
        .create_folder("x", Unfinished::Kept, &["a", "b"])
        .unwrap();
    let device = again.create_growing("a").unwrap();
    assert!(device.len() >= LEN);
    again.cut("a", LEN);
    again.commit().unwrap();
    assert!(holds(&root.path().join("x/a"), LEN, 7));
    assert_eq!(leftovers(root.path()), [""; 0]);

    let given_up = folder
        .create_folder("z", Unfinished::Kept, &["a", "b"])
        .unwrap();
    std::fs::write(given_up.path().join(CHECKPOINT), "far").unwrap();
    given_up.discard();
    assert_eq!(leftovers(root.path()), [""; 0]);
}

#[test]
fn an_unfinished_folder_without_a_checkpoint_is_swept() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let living = folder.create_folder("x", Unfinished::Kept, &["a"]).unwrap();
    let dead = root.path().join(".y.outcore-unfinished");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("a"), "bytes").unwrap();
    common::put(&folder, "z", 1, 1).unwrap();
    assert!(living.path().exists() && !dead.exists());
    drop(living);
    assert_eq!(leftovers(root.path()), [""; 0]);
}

#[test]
fn objects_of_a_folder_share_what_is_free() {
    let root = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::none().with_free_bytes(2 * LEN - 1));
    let folder = Folder::with_faults(root.path(), faults).unwrap();
    let mut new = folder
        .create_folder("x", Unfinished::Removed, &["a", "b"])
        .unwrap();
    new.check_space("a", 2 * LEN - 1).unwrap();
    assert!(
        matches!(new.check_space("a", 2 * LEN), Err(Error::NoSpace { needed, .. }) if needed == 2 * LEN)
    );
    new.create("a", LEN).unwrap();
}

#[test]
fn a_folder_that_does_not_fit_says_so_before_it_is_written() {
    let root = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::none().with_free_bytes(1000));
    let folder = Folder::with_faults(root.path(), faults).unwrap();
    let mut new = folder
        .create_folder("x", Unfinished::Removed, &["a", "b"])
        .unwrap();
    let error = new.create("a", LEN).err().unwrap();
    assert!(
        matches!(
            error,
            Error::NoSpace {
                needed: LEN,
                free: 1000,
                ..
            }
        ),
        "{error}"
    );
}
