//! Folders whose objects come into being together: all of them or none, whatever fails on the way.

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;

use common::{fill, holds, leftovers};
use outcore_store::{Error, Faults, Folder, Store, Unfinished};

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
    ["a", "b"].iter().all(|name| holds(&folder.join("x").join(name), LEN, value))
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

/// A dataset that was written to a folder of photographs once took their place.
#[test]
fn a_folder_with_something_else_in_it_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    put(&folder, 1).unwrap();
    let foreign = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Foreign { .. })), "{result:?}");
    let (file, deep) = (root.path().join("x/more"), root.path().join("x/deep"));
    std::fs::write(&file, b"precious").unwrap();
    foreign(put(&folder, 2));
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&deep).unwrap();
    foreign(put(&folder, 2));
    std::fs::remove_dir(&deep).unwrap();
    // Also what has come meanwhile.
    let new = folder.create_folder("x", Unfinished::Removed, &["a", "b"]).unwrap();
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
    let mut new = folder.create_folder("x", Unfinished::Removed, &["a", "b"]).unwrap();
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
            let faults = Arc::new(Faults::hook(move |number, _| if number == fails { Err(kind.into()) } else { Ok(()) }));
            let faulty = Folder::with_faults(root.path(), Arc::clone(&faults)).unwrap();
            let result = put(&faulty, 2);
            assert!(whole(root.path(), 1) || whole(root.path(), 2), "step {fails}");
            assert!(result.is_err() || whole(root.path(), 2), "step {fails}");
            drop(faulty);
            // The next one sweeps what was left.
            put(&Folder::new(root.path()).unwrap(), 3).unwrap();
            assert!(whole(root.path(), 3), "step {fails}");
            assert_eq!(leftovers(root.path()), [""; 0], "step {fails}");
            // The last one failed nothing: there were no more steps.
            if faults.log().len() as u64 <= fails {
                assert!(result.is_ok());
                break;
            }
        }
    }
}

#[test]
fn two_writers_of_one_folder_exclude_each_other() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let held = folder.create_folder("x", Unfinished::Removed, &["a", "b"]).unwrap();
    assert!(matches!(folder.create_folder("x", Unfinished::Removed, &["a", "b"]), Err(Error::Locked { .. })));
    assert!(matches!(folder.create("x", 1), Err(Error::Locked { .. } | Error::NotAFile { .. })));
    drop(held);
    put(&folder, 1).unwrap();
    assert!(matches!(folder.create("x", 1), Err(Error::NotAFile { .. })));
    common::put(&folder, "y", 1, 1).unwrap();
    assert!(matches!(folder.create_folder("y", Unfinished::Removed, &["a", "b"]), Err(Error::NotAFolder { .. })));
}

#[test]
fn an_unfinished_folder_that_is_kept_can_be_gone_on_with() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::new(root.path()).unwrap();
    let mut new = folder.create_folder("x", Unfinished::Kept, &["a", "b"]).unwrap();
    fill(&*new.create_growing("a").unwrap(), LEN, 7);
    new.sync().unwrap();
    drop(new);
    assert_eq!(folder.list().unwrap(), [""; 0]);
    // Others that are created meanwhile sweep the dead, not this.
    common::put(&folder, "y", 1, 1).unwrap();

    let mut again = folder.create_folder("x", Unfinished::Kept, &["a", "b"]).unwrap();
    let device = again.create_growing("a").unwrap();
    assert!(device.len() >= LEN);
    again.cut("a", LEN);
    again.commit().unwrap();
    assert!(holds(&root.path().join("x/a"), LEN, 7));
    assert_eq!(leftovers(root.path()), [""; 0]);

    let given_up = folder.create_folder("z", Unfinished::Kept, &["a", "b"]).unwrap();
    given_up.discard();
    assert_eq!(leftovers(root.path()), [""; 0]);
}

#[test]
fn a_folder_that_does_not_fit_says_so_before_it_is_written() {
    let root = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::none().with_free_bytes(1000));
    let folder = Folder::with_faults(root.path(), faults).unwrap();
    let mut new = folder.create_folder("x", Unfinished::Removed, &["a", "b"]).unwrap();
    let error = new.create("a", LEN).err().unwrap();
    assert!(matches!(error, Error::NoSpace { needed: LEN, free: 1000, .. }), "{error}");
}
