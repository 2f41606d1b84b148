//! Promises of every store, whatever its backend.

use std::sync::Arc;

use super::common::{bytes_of, change, fill, is_all, put};
use outcore_device::MemoryDevice;
use outcore_store::{Access, Error, Folder, Formatted, State, Store, locate};

/// Runs a test on each kind of store, empty.
fn each(test: impl Fn(&dyn Store)) {
    let dir = tempfile::tempdir().unwrap();
    test(&Folder::new(dir.path()).unwrap());
    let path = dir.path().join("formatted");
    Formatted::format(&path, Some(1 << 20)).unwrap();
    test(&Formatted::open_path(&path, Access::Write).unwrap());
    for block in [1, 512, 4096] {
        let device = Arc::new(MemoryDevice::with_sector("memory", 1 << 20, block));
        Formatted::format_device(device.clone()).unwrap();
        test(&Formatted::open_device(device, Access::Write).unwrap());
    }
}

#[test]
fn what_is_written_is_read() {
    each(|store| {
        for len in [0, 1, 511, 4096, 4097, 100_000] {
            put(store, "x", len, 7).unwrap();
            assert!(is_all(store, "x", len, 7), "{len} bytes");
            assert_eq!(store.open("x").unwrap().len(), len);
            let stat = store.stat("x").unwrap();
            assert_eq!(
                (stat.len, stat.state, stat.identity),
                (len, State::Whole, store.open("x").unwrap().identity())
            );
        }
    });
}

#[test]
fn what_was_not_written_is_zero() {
    each(|store| {
        for value in [1, 2] {
            put(store, "old", 50_000, value).unwrap();
            store.remove("old").unwrap();
        }
        store.create("x", 50_000).unwrap().commit().unwrap();
        assert!(is_all(store, "x", 50_000, 0));
        let half = store.create("y", 50_000).unwrap();
        fill(&*half.device(), 20_480, 3);
        assert_eq!(
            bytes_of(&half.commit().unwrap()).unwrap(),
            [vec![3; 20_480], vec![0; 50_000 - 20_480]].concat()
        );
    });
}

#[test]
fn until_the_commit_the_name_leads_to_the_old_object() {
    each(|store| {
        put(store, "x", 5000, 1).unwrap();
        let new = store.create("x", 9000).unwrap();
        fill(&*new.device(), 9000, 2);
        assert!(is_all(store, "x", 5000, 1));
        drop(new);
        assert!(is_all(store, "x", 5000, 1));
        assert_eq!(store.list().unwrap(), ["x"]);
    });
}

#[test]
fn who_has_the_old_object_open_keeps_it() {
    each(|store| {
        put(store, "x", 4096, 1).unwrap();
        let old = store.open("x").unwrap();
        put(store, "x", 8192, 2).unwrap();
        assert_eq!((old.len(), old.device().len()), (4096, 4096));
        assert_ne!(old.identity(), store.open("x").unwrap().identity());
        store.remove("x").unwrap();
        put(store, "y", 100_000, 3).unwrap();
        assert_eq!(bytes_of(&old).unwrap(), [1; 4096]);
    });
}

#[test]
fn writers_of_one_name_exclude_each_other() {
    each(|store| {
        let locked = |result: Result<(), Error>| matches!(result, Err(Error::Locked { .. }));
        put(store, "x", 10, 1).unwrap();
        put(store, "y", 10, 1).unwrap();

        let in_place = store.open_in_place("x").unwrap();
        assert!(locked(store.open_in_place("x").map(drop)));
        assert!(locked(store.create("x", 10).map(drop)));
        assert!(locked(store.remove("x")));
        assert!(locked(store.rename("x", "z")));
        assert!(locked(store.rename("y", "x")));
        assert!(locked(store.clear_mark("x")));
        assert!(store.open("x").is_ok(), "a reader may look on");
        assert_eq!(store.stat("x").unwrap().state, State::BeingWritten);
        in_place.finish().unwrap();

        let new = store.create("x", 10).unwrap();
        assert!(locked(store.create("x", 10).map(drop)));
        assert!(locked(store.open_in_place("x").map(drop)));
        assert!(locked(store.remove("x")));
        assert!(locked(store.rename("y", "x")));
        new.commit().unwrap();
        assert!(store.open_in_place("x").is_ok());
    });
}

#[test]
fn a_new_object_takes_no_name_that_another_has() {
    each(|store| {
        let exists = |result: Result<(), Error>| match result {
            Err(Error::Exists { object }) => object.ends_with("/x"),
            _ => false,
        };
        store.create_new("x", 5000).unwrap().commit().unwrap();
        assert!(is_all(store, "x", 5000, 0));
        assert!(exists(store.create_new("x", 10).map(drop)));
        let in_place = store.open_in_place("x").unwrap();
        assert!(
            exists(store.create_new("x", 10).map(drop)),
            "also while it is written"
        );
        in_place.finish().unwrap();
        assert!(is_all(store, "x", 5000, 0));

        store.remove("x").unwrap();
        put(store, "x/below", 10, 1).unwrap();
        assert!(
            exists(store.create_new("x", 10).map(drop)),
            "what has parts is there too"
        );
        store.remove("x/below").unwrap();
        assert_eq!(store.list().unwrap(), [""; 0]);
    });
}

#[test]
fn of_two_that_take_a_free_name_one_does() {
    each(|store| {
        for replaces in [false, true] {
            let first = if replaces {
                store.create("x", 10).unwrap()
            } else {
                store.create_new("x", 10).unwrap()
            };
            assert!(matches!(
                store.create_new("x", 10),
                Err(Error::Exists { .. })
            ));
            drop(first);
            store.create_new("x", 10).unwrap().commit().unwrap();
            store.remove("x").unwrap();
        }
    });
}

#[test]
fn a_writer_of_one_name_does_not_hinder_writers_of_others() {
    each(|store| {
        let x = store.create("x", 10).unwrap();
        put(store, "y", 10, 2).unwrap();
        fill(&*x.device(), 10, 1);
        x.commit().unwrap();
        assert_eq!(store.list().unwrap(), ["x", "y"]);
    });
}

#[test]
fn a_write_in_place_that_is_given_up_stays_marked_until_it_is_accepted_or_done_again() {
    each(|store| {
        put(store, "x", 5000, 1).unwrap();
        let give_up = || {
            let in_place = store.open_in_place("x").unwrap();
            fill(&*in_place.device(), 4096, 2);
        };
        let interrupted = |result: Result<(), Error>| match result {
            Err(Error::Interrupted { object }) => object.ends_with("/x"),
            _ => false,
        };

        give_up();
        assert!(interrupted(store.open("x").map(drop)));
        assert!(interrupted(store.open_in_place("x").map(drop)));
        assert_eq!(store.stat("x").unwrap().state, State::Interrupted);
        assert_eq!(store.open_interrupted("x").unwrap().len(), 5000);
        store.clear_mark("x").unwrap();
        assert_eq!(
            bytes_of(&store.open("x").unwrap()).unwrap(),
            [vec![2; 4096], vec![1; 904]].concat()
        );
        store.clear_mark("x").unwrap();

        give_up();
        drop(store.open_in_place_interrupted("x").unwrap());
        assert!(interrupted(store.open("x").map(drop)), "still marked");
        let again = store.open_in_place_interrupted("x").unwrap();
        fill(&*again.device(), again.len(), 3);
        again.finish().unwrap();
        assert!(is_all(store, "x", 5000, 3));

        give_up();
        put(store, "x", 10, 4).unwrap();
        assert!(is_all(store, "x", 10, 4), "a new object has no mark");
    });
}

#[test]
fn a_write_in_place_that_touched_nothing_leaves_no_mark() {
    each(|store| {
        put(store, "x", 10, 1).unwrap();
        drop(store.open_in_place("x").unwrap());
        assert_eq!(store.stat("x").unwrap().state, State::Whole);
        change(store, "x", 2).unwrap();
        assert!(is_all(store, "x", 10, 2));
    });
}

#[test]
fn rename_takes_the_name_and_the_mark_along() {
    each(|store| {
        put(store, "x", 10, 1).unwrap();
        put(store, "a/b/y", 10, 2).unwrap();
        store.rename("x", "a/b/y").unwrap();
        assert!(is_all(store, "a/b/y", 10, 1));
        assert_eq!(store.list().unwrap(), ["a/b/y"]);
        let in_place = store.open_in_place("a/b/y").unwrap();
        fill(&*in_place.device(), 10, 3);
        drop(in_place);
        store.rename("a/b/y", "z").unwrap();
        assert!(matches!(store.open("z"), Err(Error::Interrupted { .. })));
        store.rename("z", "z").unwrap();
        store.remove("z").unwrap();
        assert!(matches!(store.remove("z"), Err(Error::Missing { .. })));
        assert!(matches!(store.rename("z", "y"), Err(Error::Missing { .. })));
    });
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_byte() {
    each(|store| {
        put(store, "x", 10, 1).unwrap();
        for len in [1 << 60, u64::MAX / 2] {
            match store.create("x", len) {
                Err(Error::NoSpace {
                    object,
                    needed,
                    free,
                }) => assert!(object.ends_with("/x") && needed >= len && free < len),
                Err(Error::TooLarge { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(is_all(store, "x", 10, 1));
    });
}

#[test]
fn names_that_are_none_are_refused() {
    each(|store| {
        let long = "x".repeat(239);
        for name in [
            "",
            "a/",
            "/etc/x",
            "../x",
            "a/../b",
            "./a",
            "a\0b",
            ".x.outcore-partial",
            &long,
        ] {
            let error = store.create(name, 1).unwrap_err();
            assert!(matches!(error, Error::Name { .. }), "{name:?}: {error}");
        }
        put(store, &"x".repeat(235), 1, 1).unwrap();
    });
}

#[test]
fn what_is_missing_is_named() {
    each(|store| {
        for error in [
            store.open("no").unwrap_err(),
            store.open_in_place("no").unwrap_err(),
            store.stat("no").unwrap_err(),
            store.clear_mark("no").unwrap_err(),
        ] {
            assert!(
                error.to_string().ends_with("/no: no such file or folder"),
                "{error}"
            );
        }
    });
}

const PARTS: [&str; 3] = ["a", "b", "c"];

#[test]
fn objects_come_into_being_together() {
    each(|store| {
        let make = |parts: &[(&str, u8)]| {
            let mut new = store.create_together("x", &PARTS).unwrap();
            for &(part, value) in parts {
                fill(&*new.create(part, 5000).unwrap(), 5000, value);
            }
            new
        };
        put(store, "y", 10, 9).unwrap();
        let new = make(&[("a", 1), ("b", 2)]);
        assert_eq!(store.list().unwrap(), ["y"]);
        assert!(matches!(
            store.create_together("x", &PARTS).map(drop),
            Err(Error::Locked { .. })
        ));
        new.commit().unwrap();
        assert_eq!(store.list().unwrap(), ["x/a", "x/b", "y"]);
        assert!(is_all(store, "x/a", 5000, 1) && is_all(store, "x/b", 5000, 2));

        let old = store.open("x/a").unwrap();
        drop(make(&[("a", 3), ("c", 3)]));
        assert_eq!(store.list().unwrap(), ["x/a", "x/b", "y"]);
        make(&[("b", 4), ("c", 5)]).commit().unwrap();
        assert_eq!(store.list().unwrap(), ["x/b", "x/c", "y"]);
        assert!(
            is_all(store, "x/b", 5000, 4)
                && is_all(store, "x/c", 5000, 5)
                && is_all(store, "y", 10, 9)
        );
        assert_eq!(bytes_of(&old).unwrap(), [1; 5000]);

        assert!(matches!(
            store.create_together("y", &PARTS).map(drop),
            Err(Error::NotAFolder { .. })
        ));
        store
            .create_together("empty", &PARTS)
            .unwrap()
            .commit()
            .unwrap();
        assert!(store.create_together("../x", &PARTS).is_err());

        // Objects that are no part of it would be lost.
        for part in ["precious", "deep/precious"] {
            put(store, &format!("x/{part}"), 10, 7).unwrap();
            let refused = store.create_together("x", &PARTS).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Foreign { .. }), "{refused}");
            store.remove(&format!("x/{part}")).unwrap();
        }
    });
}

#[test]
fn no_object_has_another_above_or_below_it() {
    each(|store| {
        put(store, "x", 10, 1).unwrap();
        put(store, "y/a", 10, 1).unwrap();
        for result in [
            put(store, "x/a", 10, 2),
            put(store, "y", 10, 2),
            store.rename("y/a", "x/b"),
            store.rename("x", "y"),
            store.create_together("x", &PARTS).map(drop),
            store.create_together("x/c", &PARTS).map(drop),
        ] {
            assert!(result.is_err());
        }
        let new = store.create_together("z", &PARTS).unwrap();
        assert!(put(store, "z", 10, 2).is_err(), "it is to be above others");
        drop(new);
        assert_eq!(store.list().unwrap(), ["x", "y/a"]);
        assert!(is_all(store, "x", 10, 1) && is_all(store, "y/a", 10, 1));
    });
}

#[test]
fn a_path_leads_into_a_folder_or_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk.store");
    Formatted::format(&disk, Some(1 << 20)).unwrap();
    for path in ["x.npy", "disk.store/x.npy", "disk.store/far/down/x.npy"] {
        let (store, name) = locate(&dir.path().join(path)).unwrap();
        put(&*store, &name, 5000, 7).unwrap();
        assert!(is_all(&*store, &name, 5000, 7));
        assert!(store.stat(&name).is_ok());
    }
    assert!(dir.path().join("x.npy").is_file());
    assert_eq!(
        Formatted::open_shared(&disk, Access::Read)
            .unwrap()
            .list()
            .unwrap(),
        ["far/down/x.npy", "x.npy"]
    );
    let fails = |path: &str| locate(&dir.path().join(path)).map(drop).unwrap_err();
    assert!(matches!(fails("x.npy/y"), Error::Unformatted { .. }));
    assert!(matches!(fails("nowhere/y"), Error::Missing { .. }));
    let (store, name) = locate(&disk.join("../y")).unwrap();
    assert!(matches!(store.create(&name, 1), Err(Error::Name { .. })));
}
