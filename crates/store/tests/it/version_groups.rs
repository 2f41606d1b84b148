//! Versions of several objects that are committed at once, with writers that die and fail at every step.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::versions::{PAGES, change, content, create, taken};
use outcore_store::versions::{self, Version, VersionWriter};
use outcore_store::{Error, Faults, Step};
use tempfile::TempDir;

/// Folders of objects, not all in the same one.
const NAMES: [&str; 3] = ["a", "deep/er/b", "c"];

/// In memory, where there is such a place: thousands of syncs take no time there.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

struct Set {
    paths: Vec<PathBuf>,
    writers: Vec<VersionWriter>,
    maps: Vec<Vec<u32>>,
}

impl Set {
    fn open(paths: &[PathBuf], faults: &Arc<Faults>) -> Result<Set, Error> {
        let mut set = Set {
            paths: paths.to_vec(),
            writers: Vec::new(),
            maps: Vec::new(),
        };
        for path in paths {
            let (writer, version) = VersionWriter::open_with(path, Arc::clone(faults))?;
            set.writers.push(writer);
            set.maps.push(taken(version));
        }
        Ok(set)
    }

    /// Changes all objects and commits them, as far as it comes. One that dies takes note of nothing.
    fn commit(&mut self, value: u8, dies: bool) -> Result<(), Error> {
        let mut next = Vec::new();
        for ((path, writer), map) in self.paths.iter().zip(&mut self.writers).zip(&mut self.maps) {
            change(path, writer, map, &[3, u64::from(value) % PAGES], value);
            next.push(writer.next(map.iter().copied(), vec![value]));
        }
        let outcome = versions::commit(&next);
        if outcome.is_ok() || !dies {
            for (writer, next) in self.writers.iter_mut().zip(next) {
                writer.settle(next, &outcome);
            }
        }
        outcome
    }
}

fn created(folder: &Path, count: usize) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = NAMES[..count]
        .iter()
        .map(|name| folder.join(name))
        .collect();
    for path in &paths {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        create(path);
    }
    paths
}

/// What all objects have in page 3, which every commit changes.
fn values(paths: &[PathBuf]) -> Vec<u8> {
    let value = |path: &PathBuf| content(&Version::open(path).unwrap())[3];
    paths.iter().map(value).collect()
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.append(&mut files(&path)),
            false => {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// The same files below another folder, as if it had been moved.
fn moved(files: &BTreeMap<PathBuf, Vec<u8>>, from: &Path) -> TempDir {
    let to = folder();
    for (path, bytes) in files {
        let path = to.path().join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    to
}

fn dead_from(failing: u64) -> Arc<Faults> {
    Arc::new(Faults::hook(move |step, _| match step >= failing {
        true => Err(io::Error::other("the writer is dead")),
        false => Ok(()),
    }))
}

/// Whichever step is its last one, a writer leaves all objects with the version before or all with the one
/// that it commits: for readers, and for writers of one of them or of all, in any order.
#[test]
fn a_writer_that_dies_leaves_one_version_of_all_objects() {
    let none = Arc::new(Faults::none());
    for count in 1..=3 {
        let mut seen = [false; 3];
        for failing in count as u64.. {
            let folder = folder();
            let paths = created(folder.path(), count);
            let mut set = Set::open(&paths, &dead_from(failing)).unwrap();
            let committed = (1..3)
                .take_while(|&value| set.commit(value, true).is_ok())
                .count() as u8;
            drop(set);
            let left = files(folder.path());
            let found = values(&paths)[0];
            assert!((committed..=committed + 1).contains(&found), "{failing}");
            assert_eq!(values(&paths), vec![found; count], "{count}, {failing}");
            assert!(files(folder.path()) == left, "readers change no file");
            seen[usize::from(found)] = true;

            // By the first writer: of one object, or of all in either order.
            for first in 0..count + 2 {
                let again = moved(&left, folder.path());
                let mut paths: Vec<PathBuf> = NAMES[..count]
                    .iter()
                    .map(|name| again.path().join(name))
                    .collect();
                if first == count {
                    paths.reverse();
                }
                let own = paths.get(first).map_or(&paths[..], std::slice::from_ref);
                let mut set = Set::open(own, &none).unwrap();
                assert_eq!(
                    values(&paths),
                    vec![found; count],
                    "{count}, {failing}, {first}"
                );
                set.commit(50, true).unwrap();
                let is_own = |path: &PathBuf| own.contains(path);
                let expected: Vec<u8> = paths
                    .iter()
                    .map(|path| if is_own(path) { 50 } else { found })
                    .collect();
                drop(set);
                assert_eq!(values(&paths), expected, "{count}, {failing}, {first}");
                let mut set = Set::open(&paths, &none).unwrap();
                set.commit(60, true).unwrap();
                assert_eq!(
                    values(&paths),
                    vec![60; count],
                    "{count}, {failing}, {first}"
                );
            }
            if committed == 2 {
                break;
            }
        }
        assert_eq!(seen, [true; 3]);
    }
}

/// A step that fails fails the commit of all objects, or what was committed is found by the next writer.
#[test]
fn a_commit_that_fails_is_one_of_no_object() {
    for count in 1..=3 {
        let mut lost = 0;
        for failing in count as u64.. {
            let folder = folder();
            let paths = created(folder.path(), count);
            let faults = Arc::new(Faults::fail_nth(failing, io::ErrorKind::StorageFull));
            let mut set = Set::open(&paths, &faults).unwrap();
            let outcome = set.commit(1, false);
            if faults.log().len() as u64 <= failing {
                break;
            }
            let found = values(&paths)[0];
            assert_eq!(values(&paths), vec![found; count], "{count}, {failing}");
            let is_known: Vec<bool> = (set.writers.iter())
                .map(|writer| writer.check().is_ok())
                .collect();
            match outcome {
                // Files that are of no use any more may stay.
                Ok(()) => assert_eq!((found, is_known), (1, vec![true; count])),
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "{error}");
                    assert_eq!(is_known, vec![found == 0; count], "{count}, {failing}");
                    lost += usize::from(found == 1);
                }
            }
            if !set.writers.iter().all(|writer| writer.check().is_ok()) {
                assert!(matches!(set.writers[0].take(1), Err(Error::Lost { .. })));
                drop(set);
                set = Set::open(&paths, &Arc::new(Faults::none())).unwrap();
            }
            for value in 2..5 {
                set.commit(value, false).unwrap();
                assert_eq!(values(&paths), vec![value; count], "{count}, {failing}");
            }
            let left = files(folder.path());
            assert!(left.keys().all(|path| !path.ends_with("group")));
        }
        assert!(lost >= count, "{lost} commits with an unknown end");
    }
}

#[test]
fn all_is_durable_before_the_file_that_decides() {
    use Step::{Remove, Rename, Sync, SyncFolder};
    let folder = folder();
    let faults = Arc::new(Faults::logged());
    let mut set = Set::open(&created(folder.path(), 2), &faults).unwrap();
    let begin = faults.log().len();
    set.commit(1, false).unwrap();
    let version = [Sync; 3];
    let of_second = [Sync, Rename, SyncFolder];
    let of_first = [SyncFolder, Sync, Rename, SyncFolder];
    let names = [Rename, SyncFolder, Rename, SyncFolder];
    // Of the group, and of the maps of the versions before.
    let unused = [Remove; 4];
    let expected = [
        &version[..],
        &version,
        &of_second,
        &of_first,
        &names,
        &unused,
    ];
    assert_eq!(faults.log()[begin..], expected.concat());
}

#[test]
fn what_a_dead_writer_left_may_be_damaged_or_moved_apart() {
    for failing in 2.. {
        let folder = folder();
        let paths = created(folder.path(), 2);
        let mut set = Set::open(&paths, &dead_from(failing)).unwrap();
        set.commit(1, true).unwrap_err();
        drop(set);
        let [first, second] = &paths[..] else {
            panic!()
        };
        if !first.join("group").exists() {
            continue;
        }
        let (group, head) = (second.join("group"), second.join("version.new"));
        let (good, next) = (
            std::fs::read(&group).unwrap(),
            std::fs::read(&head).unwrap(),
        );
        let mut bad = good.clone();
        bad[20] ^= 1;
        std::fs::write(&group, bad).unwrap();
        let text = Version::open(second).unwrap_err().to_string();
        assert!(text.contains("group: corrupt"), "{text}");
        std::fs::write(&group, good).unwrap();
        std::fs::copy(first.join("version"), &head).unwrap();
        for text in [
            Version::open(second).unwrap_err().to_string(),
            VersionWriter::open(second).err().unwrap().to_string(),
            VersionWriter::open(first).err().unwrap().to_string(),
        ] {
            assert!(text.contains("version.new: corrupt"), "{text}");
        }
        std::fs::write(&head, next).unwrap();
        assert_eq!(values(&paths), [1, 1]);
        let apart = folder.path().join("apart");
        std::fs::rename(second, &apart).unwrap();
        assert_eq!(values(&[first.clone(), apart.clone()]), [1, 0]);
        // An object that was moved away does not keep the writer of the first one from opening it.
        Set::open(&paths[..1], &Arc::new(Faults::none())).unwrap();
        assert!(!first.join("group").exists());
        return;
    }
}
