//! Bytes through a device without a driver, and checks of a folder's invariants.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::path::Path;

use outcore_device::{Buf, Device, read_now, write_now};
use outcore_store::{
    Error, Folder, Formatted, NewStream, Object, State, Store, TRAILER_BYTES, Trailer, blocks_of,
};

/// The largest alignment of direct I/O; the store truncates writes past the end by less than it.
pub(crate) const BLOCK: u64 = 4096;

/// Fills a device with one byte value, past its end up to a whole block.
pub(crate) fn fill(device: &dyn Device, len: u64, value: u8) {
    let whole = len.next_multiple_of(BLOCK);
    if whole == 0 {
        return;
    }
    let mut buffer = Buf::anonymous(usize::try_from(whole).unwrap()).unwrap();
    buffer.fill(value);
    write_now(device, &buffer, 0).unwrap();
}

/// A whole object of one byte value.
pub(crate) fn put(store: &dyn Store, name: &str, len: u64, value: u8) -> Result<(), Error> {
    let new = store.create(name, len)?;
    fill(&*new.device(), len, value);
    new.commit().map(drop)
}

/// The whole object changed in place to one byte value.
pub(crate) fn change(store: &dyn Store, name: &str, value: u8) -> Result<(), Error> {
    let in_place = store.open_in_place(name)?;
    fill(&*in_place.device(), in_place.len(), value);
    in_place.finish()
}

/// The bytes of an object, by way of its device.
pub(crate) fn bytes_of(object: &Object) -> std::io::Result<Vec<u8>> {
    let len = usize::try_from(object.len()).unwrap();
    let mut buffer = Buf::anonymous(len.next_multiple_of(BLOCK as usize))?;
    read_now(&*object.device(), &mut buffer, 0)?;
    Ok(buffer[..len].to_vec())
}

/// Whether an object is exactly `len` bytes of one value.
pub(crate) fn is_all(store: &dyn Store, name: &str, len: u64, value: u8) -> bool {
    bytes_of(&store.open(name).unwrap()).unwrap() == vec![value; usize::try_from(len).unwrap()]
}

/// Whether the file is exactly `len` bytes of one value.
pub(crate) fn holds(path: &Path, len: u64, value: u8) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.len() as u64 == len && bytes.iter().all(|byte| *byte == value)
}

/// Files of the store itself in a folder.
pub(crate) fn leftovers(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".outcore-"))
        .collect();
    names.sort();
    names
}

/// Checks that an object without a mark is wholly one value or the other.
pub(crate) fn assert_whole_or_marked(
    folder: &Folder,
    name: &str,
    len: u64,
    values: [u8; 2],
    context: &str,
) {
    match folder.stat(name).unwrap().state {
        State::Interrupted => assert!(
            matches!(folder.open(name), Err(Error::Interrupted { .. })),
            "{context}"
        ),
        State::Whole => {
            let path = folder.path().join(name);
            let whole = values.iter().any(|value| holds(&path, len, *value));
            assert!(whole, "{context}: neither old nor new, and not marked");
        }
        State::BeingWritten => panic!("{context}: its writer has ended"),
    }
}

/// Writes a stream of `blocks` blocks of 8192 bytes, the last half as long, filled with one byte
/// value.
pub(crate) fn write_stream(new: NewStream, blocks: u64, value: u8) -> Result<(), Error> {
    const LEN: usize = 8192;
    let mut new = new;
    let (mut space, mut buffer) = (0..0, Buf::anonymous(LEN).unwrap());
    let (stream, mark) = new.marks();
    for number in 0..blocks {
        if space.is_empty() {
            space = new.extend()?;
        }
        let is_last = number + 1 == blocks;
        let len = if is_last {
            LEN / 2
        } else {
            LEN.min((space.end - space.start) as usize)
        };
        let place = space.start;
        space.start += len as u64;
        if space.is_empty() && !is_last {
            space = new.extend()?;
        }
        let data_bytes = len - TRAILER_BYTES;
        buffer[..data_bytes].fill(value);
        let next = (!is_last).then_some(space.start);
        let trailer = Trailer {
            stream,
            number,
            data_bytes: data_bytes as u32,
            ends: 0,
            next,
            mark,
        };
        let sum = Trailer::sum(0, &buffer[..data_bytes]);
        trailer.seal(&mut buffer[..len], &[], sum);
        write_now(&*new.device(), &buffer[..len], place).unwrap();
    }
    new.commit(space.start, &[value])
}

/// The byte value that fills all blocks of a stream, each verified.
pub(crate) fn value_of_stream(store: &Formatted, name: &str) -> Result<u8, Error> {
    let stream = store.open_stream(name)?;
    let places: Vec<_> = blocks_of(stream.ranges(), stream.block_bytes()).collect();
    for (number, place) in places.iter().enumerate() {
        let mut buffer = Buf::anonymous((place.end - place.start) as usize).unwrap();
        read_now(&*stream.device(), &mut buffer, place.start).unwrap();
        let next = places.get(number + 1).map(|next| next.start);
        let trailer = stream.expected(number as u64, place, next).check(&buffer)?;
        assert!(
            buffer[..trailer.data_bytes as usize]
                .iter()
                .all(|byte| [*byte] == *stream.about())
        );
    }
    Ok(stream.about()[0])
}
