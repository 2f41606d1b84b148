//! Many writers and readers of few names at once. Threads stand for processes: their locks exclude
//! each other in the same way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::common::{change, holds, leftovers, put};
use outcore_store::{Error, Folder, Scratch, Store, Tmpfs};

const LEN: u64 = 5000;

fn for_a_while(mut work: impl FnMut()) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        work();
    }
}

#[test]
fn creations_in_one_folder_only_ever_meet_on_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let folder = Folder::new(dir.path()).unwrap();
            let written = &written;
            scope.spawn(move || {
                let own = format!("own-{thread}");
                for_a_while(|| {
                    put(&folder, &own, LEN, thread).unwrap();
                    match put(&folder, "shared", LEN, thread) {
                        Ok(()) => drop(written.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::Locked { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                });
            });
        }
    });
    assert!(written.into_inner() > 0);
    assert_eq!(leftovers(dir.path()), [""; 0]);
    let shared = dir.path().join("shared");
    assert!((0..4).any(|thread| holds(&shared, LEN, thread)));
}

#[test]
fn a_reader_never_takes_a_living_writer_for_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(dir.path()).unwrap();
    put(&folder, "x", LEN, 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(folder.open("x").unwrap().len(), LEN);
                }
            });
        }
        for_a_while(|| {
            change(&folder, "x", 1).unwrap();
            put(&folder, "x", LEN, 2).unwrap();
        });
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn scratch_folders_made_at_once_do_not_sweep_each_other() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for_a_while(|| {
                    let scratch = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
                    scratch.create(LEN).unwrap();
                });
            });
        }
    });
    drop(Scratch::new(dir.path(), Tmpfs::Allow).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
