//! Versions of an object, against a model, with writers that die at every step and readers that stay.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use outcore_store::versions::{self, Version, VersionWriter, is_versioned};
use outcore_store::{Error, Faults, Folder, Unfinished};

const PAGE: u64 = 512;
pub(super) const PAGES: u64 = 40;

/// Version 0, of zeros, as its first writer makes it.
pub(super) fn create(folder: &Path) {
    let (around, name) = Folder::split(folder).unwrap();
    let mut new = around
        .create_folder(&name, Unfinished::Removed, &[])
        .unwrap();
    VersionWriter::begin(&mut new, PAGE, PAGES, b"first".to_vec()).unwrap();
    new.commit().unwrap();
}

/// What a version has: the first byte of each page.
pub(super) fn content(version: &Version) -> Vec<u8> {
    let file = File::open(version.pages_path()).unwrap();
    let page = |&place: &u32| {
        let mut bytes = [0; PAGE as usize];
        file.read_exact_at(&mut bytes, u64::from(place) * PAGE)
            .unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    };
    version.map.iter().map(page).collect()
}

/// Changes pages as a writer of tables does.
pub(super) fn change(
    folder: &Path,
    writer: &mut VersionWriter,
    map: &mut [u32],
    pages: &[u64],
    value: u8,
) {
    let file = OpenOptions::new()
        .write(true)
        .open(folder.join("pages"))
        .unwrap();
    let places = writer.take(pages.len()).unwrap();
    for (&page, &place) in pages.iter().zip(&places) {
        file.write_all_at(&[value; PAGE as usize], u64::from(place) * PAGE)
            .unwrap();
        let before = std::mem::replace(&mut map[page as usize], place);
        writer.replaced(page, before);
    }
}

fn commit(writer: &mut VersionWriter, map: &[u32], text: &str) -> Result<(), Error> {
    let next = [writer.next(map.iter().copied(), text.as_bytes().to_vec())];
    let outcome = versions::commit(&next);
    next.into_iter()
        .for_each(|next| writer.settle(next, &outcome));
    outcome
}

/// The map of a version, whose places are the writer's from now on.
pub(super) fn taken(mut version: Version) -> Vec<u32> {
    std::mem::take(&mut version.map)
}

#[test]
fn readers_keep_their_version_and_places_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("object");
    create(&path);
    assert!(is_versioned(&path) && !is_versioned(folder.path()));
    let (mut writer, version) = VersionWriter::open(&path).unwrap();
    assert_eq!(
        (version.number, &version.description[..]),
        (0, &b"first"[..])
    );
    let mut map = taken(version);
    let mut held: HashMap<u64, (Version, Vec<u8>)> = HashMap::new();
    let mut now = vec![0u8; PAGES as usize];
    let mut seed = 7u64;
    for round in 1..200u64 {
        for _ in 0..2 {
            let pages: Vec<u64> = (0..PAGES)
                .filter(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    seed >> 62 == 0
                })
                .collect();
            change(&path, &mut writer, &mut map, &pages, round as u8);
            pages
                .iter()
                .for_each(|&page| now[page as usize] = round as u8);
        }
        commit(&mut writer, &map, "next").unwrap();
        let version = Version::open(&path).unwrap();
        assert_eq!((version.number, content(&version)), (round, now.clone()));
        if round % 3 == 0 {
            held.insert(round, (version, now.clone()));
        }
        held.retain(|&number, (version, expected)| {
            assert_eq!(
                content(version),
                *expected,
                "version {number} after {round}"
            );
            number + 10 > round
        });
    }
    drop(held);
    change(&path, &mut writer, &mut map, &[0], 1);
    commit(&mut writer, &map, "last").unwrap();
    let maps = std::fs::read_dir(&path).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("map.")
    });
    assert_eq!(maps.count(), 1);
    let bytes = std::fs::metadata(path.join("pages")).unwrap().len();
    assert!(bytes < 8 * PAGES * PAGE, "{bytes} bytes");
    assert!(matches!(
        VersionWriter::open(&path),
        Err(Error::Locked { .. })
    ));
    drop(writer);
    let (mut writer, version) = VersionWriter::open(&path).unwrap();
    let mut map = taken(version);
    let before = std::fs::metadata(path.join("pages")).unwrap().len();
    change(
        &path,
        &mut writer,
        &mut map,
        &(0..PAGES).collect::<Vec<_>>(),
        9,
    );
    assert_eq!(std::fs::metadata(path.join("pages")).unwrap().len(), before);
}

/// What a machine that stops may lose of writes that nothing has made durable: pages of no version are
/// garbage, and files of none are cut short. All others are durable before the file that decides.
fn lose_what_no_version_needs(path: &Path, version: &Version) {
    let pages = OpenOptions::new()
        .write(true)
        .open(version.pages_path())
        .unwrap();
    let places = pages.metadata().unwrap().len() / PAGE;
    for place in (0..places).filter(|&place| !version.map.contains(&(place as u32))) {
        pages
            .write_all_at(&[0xAB; PAGE as usize], place * PAGE)
            .unwrap();
    }
    let needed = [
        "version".into(),
        "pages".into(),
        format!("map.{}", version.number),
    ];
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let (name, len) = (entry.file_name(), entry.metadata().unwrap().len());
        if !needed.iter().any(|needed: &String| name == needed.as_str()) {
            let file = OpenOptions::new().write(true).open(entry.path()).unwrap();
            file.set_len(len / 2).unwrap();
        }
    }
}

/// A writer that stops at any step leaves the version before or the one that it commits, and the next
/// writer goes on from there.
#[test]
fn a_writer_may_die_at_every_step() {
    for failing in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        create(&path);
        let hook = move |step, _| match step >= failing {
            true => Err(io::Error::other("the writer is dead")),
            false => Ok(()),
        };
        let faults = Arc::new(Faults::hook(hook));
        let mut committed = 0;
        let mut is_over = false;
        if let Ok((mut writer, version)) = VersionWriter::open_with(&path, faults) {
            let mut map = taken(version);
            for value in 1..4 {
                change(
                    &path,
                    &mut writer,
                    &mut map,
                    &[3, 4, u64::from(value)],
                    value,
                );
                match commit(&mut writer, &map, "next") {
                    Ok(()) => committed = value,
                    Err(_) => break,
                }
                is_over = value == 3;
            }
        }
        let version = Version::open(&path).unwrap();
        let found = version.number as u8;
        assert!(
            found == committed || found == committed + 1,
            "{failing}: {found}, {committed}"
        );
        let whole = content(&version);
        assert_eq!(whole[4], found);
        lose_what_no_version_needs(&path, &version);
        drop(version);
        assert_eq!(content(&Version::open(&path).unwrap()), whole);
        let (mut writer, version) = VersionWriter::open(&path).unwrap();
        let mut map = taken(version);
        for value in 50..54 {
            change(
                &path,
                &mut writer,
                &mut map,
                &(0..PAGES).collect::<Vec<_>>(),
                value,
            );
            commit(&mut writer, &map, "after").unwrap();
            assert_eq!(
                content(&Version::open(&path).unwrap()),
                vec![value; PAGES as usize]
            );
        }
        if is_over {
            assert!(failing > 15, "{failing} steps");
            break;
        }
    }
}

#[test]
fn damage_is_told_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("object");
    create(&path);
    for name in ["version", "map.0"] {
        let file = path.join(name);
        let good = std::fs::read(&file).unwrap();
        let mut bad = good.clone();
        bad[17] ^= 1;
        for bytes in [&bad[..], &good[..good.len() - 1], &[]] {
            std::fs::write(&file, bytes).unwrap();
            let text = Version::open(&path).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("corrupt"), "{text}");
        }
        std::fs::write(&file, good).unwrap();
    }
    std::fs::remove_file(path.join("map.0")).unwrap();
    assert!(matches!(Version::open(&path), Err(Error::Missing { .. })));
}
