//! How far an import is, in a small file beside what it has written: `checkpoint.json`, replaced by rename after everything that it
//! counts is durable, and gone before anything that it counts is written over.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::matrix::State;
use super::source::Identity;
use crate::data::format::FormatError;
use crate::error::{Error, Result};

const NAME: &str = "checkpoint.json";
const VERSION: u32 = 1;

/// All that is needed to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) version: u32,
    pub(super) sources: Vec<Identity>,
    /// Format and options, as they were asked for.
    pub(super) options: String,
    /// Which source is read, the byte of its text from where to go on, and that line's number. Of a binary source its entries, or
    /// compressed lines, instead of bytes.
    pub(super) part: usize,
    pub(super) byte: u64,
    pub(super) line: u64,
    pub(super) state: State,
}

impl Checkpoint {
    pub(super) fn new(sources: Vec<Identity>, options: String) -> Checkpoint {
        Checkpoint { version: VERSION, sources, options, part: 0, byte: 0, line: 1, state: State::default() }
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let (new, path) = (folder.join("checkpoint.json.new"), folder.join(NAME));
        let text = serde_json::to_vec(self).expect("numbers and names have no way to fail");
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|source| failed(&path, source))?;
        sync_folder(folder)
    }

    /// What an earlier import has left, if it is the same import.
    ///
    /// # Errors
    /// [`Error::Value`] for one of other sources or options; [`Error::Format`] for one that cannot be read.
    pub(super) fn read(folder: &Path, wanted: &Checkpoint) -> Result<Option<Checkpoint>> {
        let path = folder.join(NAME);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(&path, source)),
        };
        let found: Checkpoint = serde_json::from_slice(&text).map_err(|error| {
            let (object, reason) = (path.display().to_string(), error.to_string());
            FormatError::Corrupt { object, offset: error.column() as u64, reason }
        })?;
        let refuse = |what: String| Err(Error::value(format!("{what}; without resume it begins anew")));
        if found.version != wanted.version {
            return refuse(format!("{} is of another version of outcore", path.display()));
        }
        if found.options != wanted.options {
            return refuse(format!("the import was begun with other options: {}, now {}", found.options, wanted.options));
        }
        if found.sources.len() != wanted.sources.len() {
            return refuse(format!("the import was begun with {} sources, now {}", found.sources.len(), wanted.sources.len()));
        }
        for (before, now) in found.sources.iter().zip(&wanted.sources) {
            if before.path != now.path {
                return refuse(format!("the import was begun with {}, now {}", before.path.display(), now.path.display()));
            }
            if before != now {
                return refuse(format!("{} has changed since the import was begun", now.path.display()));
            }
        }
        Ok(Some(found))
    }
}

/// Forgets how far it was, durably.
pub(super) fn remove(folder: &Path) -> Result<()> {
    let path = folder.join(NAME);
    match std::fs::remove_file(&path) {
        Ok(()) => sync_folder(folder),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(&path, source)),
    }
}

pub(super) fn exists(folder: &Path) -> bool {
    folder.join(NAME).exists()
}

pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|opened| opened.sync_all()).map_err(|source| failed(folder, source))
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Device { object: path.display().to_string(), source }
}
