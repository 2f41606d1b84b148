//! Promises of a folder of objects without faults of the system.

use std::fs;
use std::sync::Arc;

use super::common::{change, fill, holds, leftovers, put};
use outcore_store::{Error, Faults, Folder, State, Step, Store};
use tempfile::TempDir;

fn folder() -> (TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(dir.path()).unwrap();
    (dir, folder)
}

#[test]
fn a_new_object_has_its_exact_length_and_leaves_nothing_beside_it() {
    for len in [0, 1, 511, 4096, 4097, 100_000] {
        let (dir, folder) = folder();
        put(&folder, "x", len, 7).unwrap();
        assert!(holds(&dir.path().join("x"), len, 7), "{len} bytes");
        assert_eq!(leftovers(dir.path()), [""; 0]);
        assert_eq!(folder.open("x").unwrap().len(), len);
        assert_eq!(folder.stat("x").unwrap().state, State::Whole);
    }
}

#[test]
fn errors_of_a_device_call_a_new_object_by_its_own_name() {
    let (dir, folder) = folder();
    let new = folder.create("x", 10).unwrap();
    assert_eq!(new.device().name(), dir.path().join("x").to_str().unwrap());
}

#[test]
fn bytes_become_durable_before_the_name_and_the_mark_before_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let steps = |work: &dyn Fn(&Folder)| {
        let faults = Arc::new(Faults::logged());
        work(&Folder::with_faults(dir.path(), Arc::clone(&faults)).unwrap());
        faults.log()
    };
    let created = steps(&|folder| put(folder, "x", 10, 1).unwrap());
    let end = &created[created.len() - 5..];
    assert_eq!(
        end,
        [
            Step::Open,
            Step::Truncate,
            Step::Sync,
            Step::Rename,
            Step::SyncFolder
        ]
    );
    let changed = steps(&|folder| change(folder, "x", 2).unwrap());
    assert_eq!(
        changed,
        [
            Step::Open,
            Step::Lock,
            Step::Mark,
            Step::Sync,
            Step::Truncate,
            Step::Sync,
            Step::Unmark,
            Step::Sync
        ]
    );
}

#[test]
fn marks_beside_the_object_work_as_marks_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let no_attributes = Faults::hook(|_, step| match step {
        Step::Mark => Err(std::io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    });
    let folder = Folder::with_faults(dir.path(), Arc::new(no_attributes)).unwrap();
    put(&folder, "x", 10, 1).unwrap();
    put(&folder, "y", 10, 1).unwrap();
    let in_place = folder.open_in_place("x").unwrap();
    fill(&*in_place.device(), 10, 2);
    drop(in_place);
    assert!(matches!(folder.open("x"), Err(Error::Interrupted { .. })));
    assert_eq!(folder.list().unwrap(), ["x", "y"], "a mark is no object");

    folder.rename("x", "y").unwrap();
    assert!(matches!(folder.open("y"), Err(Error::Interrupted { .. })));
    put(&folder, "y", 10, 3).unwrap();
    assert!(folder.open("y").is_ok());
    change(&folder, "y", 4).unwrap();
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::logged().with_free_bytes(1000));
    let folder = Folder::with_faults(dir.path(), Arc::clone(&faults)).unwrap();
    put(&folder, "x", 10, 1).unwrap();
    match folder.create("x", 1001) {
        Err(Error::NoSpace {
            object,
            needed,
            free,
        }) => {
            assert!(object.ends_with("/x"));
            assert_eq!((needed, free), (1001, 1000));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(faults.log().last(), Some(&Step::Remove));
    assert!(holds(&dir.path().join("x"), 10, 1));
    assert_eq!(leftovers(dir.path()), [""; 0]);
    // The true disk is finite as well.
    let folder = Folder::new(dir.path()).unwrap();
    assert!(matches!(
        folder.create("y", 1 << 60),
        Err(Error::NoSpace { .. })
    ));
}

#[test]
fn what_is_not_a_file_is_named_and_left_alone() {
    let (dir, folder) = folder();
    fs::create_dir(dir.path().join("d")).unwrap();
    let not_a_file = |result: Result<(), Error>| matches!(result, Err(Error::NotAFile { .. }));
    assert!(not_a_file(folder.open("d").map(drop)));
    assert!(not_a_file(folder.create("d", 1).map(drop)));
    assert!(not_a_file(folder.open_in_place("d").map(drop)));
    assert!(not_a_file(folder.remove("d")));
    let dev = Folder::new("/dev").unwrap();
    assert!(not_a_file(dev.open("null").map(drop)));
    assert_eq!(leftovers(dir.path()), [""; 0]);
    fs::write(dir.path().join("f"), "x").unwrap();
    assert!(matches!(
        Folder::new(dir.path().join("f")),
        Err(Error::NotAFolder { .. })
    ));
    assert!(matches!(folder.open("f/x"), Err(Error::NotAFolder { .. })));
    assert!(matches!(
        Folder::new(dir.path().join("no")),
        Err(Error::Missing { .. })
    ));
}

#[test]
fn what_is_missing_is_named() {
    let (dir, folder) = folder();
    let path = dir.path().join("no").display().to_string();
    for error in [
        folder.open("no").unwrap_err(),
        folder.open_in_place("no").unwrap_err(),
        folder.stat("no").unwrap_err(),
        folder.clear_mark("no").unwrap_err(),
    ] {
        assert_eq!(error.to_string(), format!("{path}: no such file or folder"));
    }
}

#[test]
fn a_folder_or_object_that_may_not_be_written_is_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, folder) = folder();
    put(&folder, "x", 10, 1).unwrap();
    let set_mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&dir.path().join("x"), 0o444);
    // A superuser is not bound by permissions and cannot test them.
    if fs::File::options()
        .write(true)
        .open(dir.path().join("x"))
        .is_ok()
    {
        return;
    }
    let denied = |result: Result<(), Error>| matches!(result, Err(Error::Denied { .. }));
    assert!(denied(folder.create("x", 1).map(drop)));
    assert!(denied(folder.open_in_place("x").map(drop)));
    set_mode(dir.path(), 0o555);
    assert!(denied(folder.create("y", 1).map(drop)));
    assert!(denied(folder.remove("x")));
    assert!(folder.open("x").is_ok());
    set_mode(dir.path(), 0o755);
}

#[test]
fn a_new_object_replaces_nothing_that_another_program_has_put_there_meanwhile() {
    let (dir, folder) = folder();
    let new = folder.create_new("x", 5000).unwrap();
    fill(&*new.device(), 5000, 1);
    fs::write(dir.path().join("x"), b"of others").unwrap();
    assert!(matches!(new.commit(), Err(Error::Exists { .. })));
    assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"of others");
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

#[test]
fn a_new_object_takes_the_place_of_nothing_at_all() {
    let (dir, folder) = folder();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("file"), b"old").unwrap();
    std::os::unix::fs::symlink(dir.path().join("file"), dir.path().join("link")).unwrap();
    for name in ["folder", "file", "link"] {
        assert!(
            matches!(folder.create_new(name, 10), Err(Error::Exists { .. })),
            "{name}"
        );
    }
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    assert!(
        folder
            .create_new("no/folder/yet", 10)
            .unwrap()
            .commit()
            .is_ok()
    );
}

#[test]
fn a_replaced_object_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, folder) = folder();
    put(&folder, "x", 10, 1).unwrap();
    let path = dir.path().join("x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    put(&folder, "x", 10, 2).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let (dir, folder) = folder();
    put(&folder, "real/x", 10, 1).unwrap();
    std::os::unix::fs::symlink(dir.path().join("real/x"), dir.path().join("link")).unwrap();
    put(&folder, "link", 10, 2).unwrap();
    assert!(
        fs::symlink_metadata(dir.path().join("link"))
            .unwrap()
            .is_symlink()
    );
    assert!(holds(&dir.path().join("real/x"), 10, 2));
    assert_eq!(
        folder.stat("link").unwrap().identity,
        folder.stat("real/x").unwrap().identity
    );
}

#[test]
fn a_user_path_splits_into_folder_and_name() {
    let (dir, _) = folder();
    let (folder, name) = Folder::split(&dir.path().join("x.npy")).unwrap();
    assert_eq!((folder.path(), name.as_str()), (dir.path(), "x.npy"));
    assert!(matches!(
        Folder::split("/".as_ref()),
        Err(Error::Name { .. })
    ));
    assert!(matches!(
        Folder::split(&dir.path().join("no/x.npy")),
        Err(Error::Missing { .. })
    ));
    assert_eq!(
        Folder::split("x.npy".as_ref()).unwrap().0.path(),
        std::path::Path::new(".")
    );
}

/// A file that is being written is as long as whole blocks of its device; that was taken for the
/// length of the object.
#[test]
fn an_object_that_is_written_past_its_end_has_its_exact_length_for_those_who_open_it() {
    let (_dir, folder) = folder();
    put(&folder, "x", 5000, 1).unwrap();
    let in_place = folder.open_in_place("x").unwrap();
    fill(&*in_place.device(), 5000, 2);
    assert_eq!(folder.stat("x").unwrap().state, State::BeingWritten);
    for object in [
        folder.open("x").unwrap(),
        folder.open_interrupted("x").unwrap(),
    ] {
        assert_eq!((object.len(), object.device().len()), (5000, 5000));
    }
    assert!(matches!(
        folder.open_in_place_interrupted("x"),
        Err(Error::Locked { .. })
    ));
    drop(in_place);
    let object = folder.open_interrupted("x").unwrap();
    assert_eq!((object.len(), object.device().len()), (5000, 5000));
    let again = folder.open_in_place_interrupted("x").unwrap();
    assert_eq!((again.len(), again.device().len()), (5000, 5000));
}
