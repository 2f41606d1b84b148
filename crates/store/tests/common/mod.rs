//! Bytes through a device without a driver, and what must be true of a folder whatever happened.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::path::Path;

use outcore_device::{Buf, Device, Route};
use outcore_store::{Error, Folder, State, Store};

/// Direct I/O wants no more than this anywhere; writes past the end by less than it are the store's to cut.
pub(crate) const BLOCK: u64 = 4096;

/// Fills a device with one byte value, past its end up to a whole block.
pub(crate) fn fill(device: &dyn Device, len: u64, value: u8) {
    let whole = len.next_multiple_of(BLOCK);
    if whole == 0 {
        return;
    }
    let mut buffer = Buf::anonymous(usize::try_from(whole).unwrap()).unwrap();
    buffer.fill(value);
    let written = match device.route() {
        Route::Descriptor(file) => rustix::io::pwrite(file, &buffer, 0).unwrap(),
        Route::Blocking(device) => device.write_at(&buffer, 0).unwrap(),
    };
    assert_eq!(written as u64, whole);
}

/// A whole object of one byte value.
pub(crate) fn put(folder: &Folder, name: &str, len: u64, value: u8) -> Result<(), Error> {
    let new = folder.create(name, len)?;
    fill(&*new.device(), len, value);
    new.commit().map(drop)
}

/// The whole object changed in place to one byte value.
pub(crate) fn change(folder: &Folder, name: &str, value: u8) -> Result<(), Error> {
    let in_place = folder.open_in_place(name)?;
    fill(&*in_place.device(), in_place.len(), value);
    in_place.finish()
}

/// Whether the file is exactly `len` bytes of one value.
pub(crate) fn holds(path: &Path, len: u64, value: u8) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.len() as u64 == len && bytes.iter().all(|byte| *byte == value)
}

/// Files of the store's own that lie in a folder.
pub(crate) fn leftovers(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".outcore-"))
        .collect();
    names.sort();
    names
}

/// A mark tells the truth: without one, the object is wholly one value or the other.
pub(crate) fn assert_whole_or_marked(folder: &Folder, name: &str, len: u64, values: [u8; 2], context: &str) {
    match folder.stat(name).unwrap().state {
        State::Interrupted => assert!(matches!(folder.open(name), Err(Error::Interrupted { .. })), "{context}"),
        State::Whole => {
            let path = folder.path().join(name);
            let whole = values.iter().any(|value| holds(&path, len, *value));
            assert!(whole, "{context}: neither old nor new, and not marked");
        }
        State::BeingWritten => panic!("{context}: nobody writes any more"),
    }
}
