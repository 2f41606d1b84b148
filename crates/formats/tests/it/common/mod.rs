//! Helpers of the tests: files beside them, and all chunks of a text.
#![allow(dead_code)] // Every test file takes what it needs.

use std::path::PathBuf;

use outcore_formats::{Chunk, Lines, Position, Result, Source};

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Small chunks, so that every test has several.
pub(crate) fn lines(text: &[u8]) -> Lines<&[u8]> {
    Lines::new(
        Source::open("x", text).unwrap(),
        Position::START,
        64,
        1 << 16,
    )
}

pub(crate) fn for_each_chunk(
    lines: &mut Lines<&[u8]>,
    mut parse: impl FnMut(&Chunk) -> Result<()>,
) -> Result<()> {
    let mut chunk = Chunk::default();
    while lines.next(&mut chunk)? {
        parse(&chunk)?;
    }
    Ok(())
}
