//! A process is killed at each step of its writes; later processes find every object complete, or
//! marked.
//!
//! The test runs its own binary again as the child, on the one test that does the child's work. The
//! child stops at the given step, reports it, and is killed there.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::common::{
    assert_whole_or_marked, bytes_of, change, fill, holds, leftovers, put, value_of_stream,
    write_stream,
};
use outcore_store::{
    Access, CHECKPOINT, Error, Faults, Folder, Formatted, Scratch, State, Store, Tmpfs, Unfinished,
};

const LEN: u64 = 5000;
const OLD: u8 = 1;
const NEW: u8 = 2;

const WORK: &str = "OUTCORE_TEST_WORK";
const FOLDER: &str = "OUTCORE_TEST_FOLDER";
const STEP: &str = "OUTCORE_TEST_STEP";
const STOPPED: &str = "stopped";
const DONE: &str = "done";

/// The child's side. Does nothing when it runs among the other tests.
#[test]
fn child() {
    let Ok(work) = std::env::var(WORK) else {
        println!("skipped: the child of other tests is none itself");
        return;
    };
    let path = std::env::var(FOLDER).unwrap();
    let stop: u64 = std::env::var(STEP).unwrap().parse().unwrap();
    let faults = Arc::new(Faults::hook(move |number, _| {
        if number == stop {
            say_and_wait(STOPPED);
        }
        Ok(())
    }));
    if work == "formatted" {
        let store = Formatted::open_path(Path::new(&path).join("store"), Access::Write).unwrap();
        println!("\n{STOPPED}");
        for value in (0..=u8::MAX).cycle() {
            put(&store, "x", LEN, value).unwrap();
            change(&store, "y", value).unwrap();
            write_stream(
                store
                    .create_stream("z", 8192, value.is_multiple_of(2))
                    .unwrap(),
                5,
                value,
            )
            .unwrap();
            write_stream(store.create_stream("gone", 8192, true).unwrap(), 3, value).unwrap();
            store.open_stream("gone").unwrap().take().unwrap();
            if value.is_multiple_of(2) {
                store.remove("z").unwrap();
            }
        }
    }
    if work == "scratch" {
        let scratch = Scratch::with_faults(&path, Tmpfs::Allow, Arc::clone(&faults)).unwrap();
        let _object = scratch.create(LEN).unwrap();
        put(scratch.folder(), "named", LEN, NEW).unwrap();
        say_and_wait(DONE);
    }
    let folder = Folder::with_faults(&path, Arc::clone(&faults)).unwrap();
    match work.as_str() {
        "create" => put(&folder, "x", LEN, NEW).unwrap(),
        "folder" => put_folder(&folder, NEW),
        "unfinished" => go_on(&folder).unwrap(),
        "format" => {
            Formatted::format_with_faults(folder.path().join("new.store"), 1 << 20, faults).unwrap()
        }
        "change" => change(&folder, "x", NEW).unwrap(),
        "hold" => {
            let in_place = folder.open_in_place("x").unwrap();
            fill(&*in_place.device(), 4096, NEW);
            say_and_wait(DONE);
        }
        other => panic!("no work called {other}"),
    }
    say_and_wait(DONE);
}

/// A folder `group` of two objects.
fn put_folder(folder: &Folder, value: u8) {
    let mut new = folder
        .create_folder("group", Unfinished::Removed, &["a", "b"])
        .unwrap();
    for name in ["a", "b"] {
        fill(&*new.create(name, LEN).unwrap(), LEN, value);
    }
    new.commit().unwrap();
}

/// A group begun by an earlier writer, with files that must not appear in the folder.
fn leave_unfinished(folder: &Folder) {
    let mut new = folder
        .create_folder("group", Unfinished::Kept, &["a", "b"])
        .unwrap();
    for name in ["a", "b", "more"] {
        fill(&*new.create_growing(name).unwrap(), LEN, NEW);
    }
    new.sync().unwrap();
    std::fs::write(new.path().join(CHECKPOINT), "far").unwrap();
}

fn go_on(folder: &Folder) -> Result<(), Error> {
    let mut new = folder.create_folder("group", Unfinished::Kept, &["a", "b"])?;
    for name in ["a", "b", "more"] {
        new.create_growing(name)?;
        new.cut(name, LEN);
    }
    new.commit_without(&["more"])
}

fn say_and_wait(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// A child that has reached its step, or the end. Killed when it is dropped.
struct Stopped {
    child: Child,
    done: bool,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn run_to(work: &str, folder: &Path, step: u64) -> Stopped {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "killed::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(WORK, work)
        .env(FOLDER, folder)
        .env(STEP, step.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let word = lines
        .map(Result::unwrap)
        .find(|line| line == STOPPED || line == DONE);
    let done = word.expect("the child failed") == DONE;
    Stopped { child, done }
}

/// Kills a child at each of its steps, then checks what it left.
fn kill_at_each_step(work: &str, check: impl Fn(&Folder, bool, u64)) {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path()).unwrap();
        put(&folder, "x", LEN, OLD).unwrap();
        let stopped = run_to(work, dir.path(), step);
        let done = stopped.done;
        drop(stopped);
        check(&folder, done, step);
        put(&folder, "next", 1, 0).unwrap();
        folder.clear_mark("x").unwrap();
        assert_eq!(leftovers(dir.path()), [""; 0], "step {step}");
        if done {
            assert!(step >= 5, "only {step} steps were seen");
            return;
        }
    }
}

#[test]
fn killed_while_it_creates_a_process_leaves_the_old_object_or_the_new() {
    kill_at_each_step("create", |folder, done, step| {
        let path = folder.path().join("x");
        assert!(folder.open("x").is_ok(), "step {step}");
        assert!(
            holds(&path, LEN, OLD) || holds(&path, LEN, NEW),
            "step {step}"
        );
        assert!(!done || holds(&path, LEN, NEW));
        put(folder, "x", LEN, 3).unwrap();
        assert!(holds(&path, LEN, 3), "step {step}: its lock went with it");
    });
}

#[test]
fn killed_while_it_replaces_a_folder_a_process_leaves_all_of_the_old_one_or_all_of_the_new() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path()).unwrap();
        put_folder(&folder, OLD);
        let stopped = run_to("folder", dir.path(), step);
        let done = stopped.done;
        drop(stopped);
        let all = |value| {
            ["a", "b"]
                .iter()
                .all(|name| holds(&dir.path().join("group").join(name), LEN, value))
        };
        assert!(all(OLD) || all(NEW), "step {step}");
        assert!(!done || all(NEW));
        put_folder(&folder, 3);
        assert!(all(3), "step {step}: its lock went with it");
        assert_eq!(leftovers(dir.path()), [""; 0], "step {step}");
        if done {
            return;
        }
    }
}

#[test]
fn killed_while_it_commits_what_can_be_gone_on_with_a_process_loses_none_of_it() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path()).unwrap();
        put_folder(&folder, OLD);
        leave_unfinished(&folder);
        let stopped = run_to("unfinished", dir.path(), step);
        let done = stopped.done;
        drop(stopped);
        let all = |value| {
            ["a", "b"]
                .iter()
                .all(|name| holds(&dir.path().join("group").join(name), LEN, value))
        };
        assert!(all(OLD) || all(NEW), "step {step}");
        assert!(!done || all(NEW));
        // Creating another object sweeps the partials of dead processes.
        put(&folder, "next", 1, 0).unwrap();
        if all(OLD) {
            let new = folder
                .create_folder("group", Unfinished::Kept, &["a", "b"])
                .unwrap();
            assert!(
                new.has_checkpoint() && new.path().join("more").exists(),
                "step {step}"
            );
            drop(new);
            go_on(&folder).unwrap();
            assert!(all(NEW), "step {step}");
            assert_eq!(
                std::fs::read_dir(dir.path().join("group")).unwrap().count(),
                2,
                "step {step}"
            );
        }
        assert_eq!(leftovers(dir.path()), [""; 0], "step {step}");
        if done {
            assert!(step >= 15, "only {step} steps were seen");
            return;
        }
    }
}

#[test]
fn killed_while_it_formats_a_new_file_a_process_leaves_a_store_or_none() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.store");
        let stopped = run_to("format", dir.path(), step);
        let done = stopped.done;
        drop(stopped);
        assert!(!done || path.exists());
        if !path.exists() {
            Formatted::format(&path, Some(1 << 20)).unwrap();
        }
        assert_eq!(leftovers(dir.path()), [""; 0], "step {step}");
        let store = Formatted::open_path(&path, Access::Write).unwrap();
        put(&store, "x", LEN, NEW).unwrap();
        assert!(
            matches!(
                Formatted::format(&path, Some(1 << 20)),
                Err(Error::Exists { .. })
            ),
            "step {step}"
        );
        if done {
            assert!(step >= 5, "only {step} steps were seen");
            return;
        }
    }
}

#[test]
fn killed_while_it_writes_in_place_a_process_leaves_a_whole_or_a_marked_object() {
    kill_at_each_step("change", |folder, done, step| {
        assert_whole_or_marked(folder, "x", LEN, [OLD, NEW], &format!("step {step}"));
        assert!(!done || holds(&folder.path().join("x"), LEN, NEW));
        let again = folder.open_in_place_interrupted("x").unwrap();
        assert_eq!(again.len(), LEN, "step {step}: the exact length is known");
        fill(&*again.device(), LEN, 3);
        again.finish().unwrap();
        assert!(holds(&folder.path().join("x"), LEN, 3), "step {step}");
    });
}

#[test]
fn killed_at_any_moment_a_process_leaves_a_store_that_the_next_one_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    Formatted::format(&path, Some(1 << 20)).unwrap();
    let store = Formatted::open_path(&path, Access::Write).unwrap();
    put(&store, "x", LEN, OLD).unwrap();
    put(&store, "y", LEN, OLD).unwrap();
    let free = store.free_bytes().unwrap();
    drop(store);
    for round in 0..20 {
        let writer = run_to("formatted", dir.path(), u64::MAX);
        assert!(matches!(
            Formatted::open_path(&path, Access::Read),
            Err(Error::Locked { .. })
        ));
        std::thread::sleep(Duration::from_micros(round * 700));
        drop(writer);
        let store = Formatted::open_path(&path, Access::Write).unwrap();
        let faults = store.check(|_, _| true).unwrap().faults;
        let x = bytes_of(&store.open("x").unwrap()).unwrap();
        assert!(
            x.len() as u64 == LEN && x.iter().all(|byte| *byte == x[0]),
            "round {round}"
        );
        let mut interrupted = 0;
        if store.stat("y").unwrap().state == State::Interrupted {
            interrupted += 1;
            store.clear_mark("y").unwrap();
        }
        for stream in ["gone", "z"] {
            match store.stat(stream).map(|stat| stat.state) {
                Err(Error::Missing { .. }) => continue,
                Ok(State::Whole) => _ = value_of_stream(&store, stream).unwrap(),
                _ => {
                    interrupted += 1;
                    assert!(matches!(
                        store.open_stream(stream),
                        Err(Error::Unfinished { .. })
                    ));
                }
            }
            store.remove(stream).unwrap();
        }
        assert_eq!(faults.len(), interrupted, "round {round}: {faults:?}");
        assert_eq!(
            bytes_of(&store.open("y").unwrap()).unwrap().len() as u64,
            LEN
        );
        assert_eq!(
            (store.list().unwrap(), store.free_bytes().unwrap()),
            (vec!["x".into(), "y".into()], free)
        );
    }
}

#[test]
fn a_writer_in_another_process_is_respected_while_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(dir.path()).unwrap();
    put(&folder, "x", LEN, OLD).unwrap();
    let writer = run_to("hold", dir.path(), u64::MAX);
    assert!(matches!(folder.create("x", 1), Err(Error::Locked { .. })));
    assert!(matches!(
        folder.open_in_place("x"),
        Err(Error::Locked { .. })
    ));
    assert_eq!(folder.stat("x").unwrap().state, State::BeingWritten);
    assert!(folder.open("x").is_ok());
    drop(writer);
    assert_eq!(folder.stat("x").unwrap().state, State::Interrupted);
    assert!(matches!(folder.open("x"), Err(Error::Interrupted { .. })));
    put(&folder, "x", 1, NEW).unwrap();
}

#[test]
fn scratch_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let living = Scratch::new(dir.path(), Tmpfs::Allow).unwrap();
        let stopped = run_to("scratch", dir.path(), step);
        let done = stopped.done;
        drop(stopped);
        drop(Scratch::new(dir.path(), Tmpfs::Allow).unwrap());
        assert_eq!(count(), 1, "step {step}");
        drop(living);
        assert_eq!(count(), 0, "step {step}");
        if done {
            return;
        }
    }
}
