//! Where files grow that are to be one thing, a matrix or a dataset: in the new folder that it is
//! to be. Objects of a formatted store do not grow; what is to be there grows in scratch, and is
//! copied when it is whole.
//!
//! How far it is, for a process that goes on after a crash or an error, is told by
//! `checkpoint.json`: replaced by rename after everything that it counts is durable, gone before
//! anything that it counts is written over, and otherwise gone when the new object is certain.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outcore_engine::{Plan, Region, Task};
use outcore_store::{CHECKPOINT, Folder, NewFolder, NewObjects, Store, Unfinished, locate};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::format::FormatError;
use crate::job::Stage;
use crate::memory_split::MemorySplit;
use crate::panels::cut;
use crate::session::Session;

const COPIED_BYTES: u64 = 1 << 20;

/// The folder in which the files of a new object grow until they are complete and get its name: a
/// folder beside its place, or scratch where a store has its name.
pub struct StagingFolder {
    /// Where the files grow.
    pub folder: NewFolder,
    /// In a store, whose name it holds from the beginning.
    objects: Option<(Box<dyn NewObjects>, Arc<dyn Store>)>,
}

impl StagingFolder {
    /// What is at the path already may only have these parts.
    pub fn claim(session: &Session, path: &Path, parts: &[&str]) -> Result<StagingFolder> {
        let (store, name) = locate(path)?;
        let (around, name, objects) = match store.limits() {
            None => {
                let (around, name) = Folder::split(path)?;
                (around, name, None)
            }
            Some(_) => {
                let objects = store.create_together(&name, parts)?;
                (
                    session.lasting_scratch()?,
                    name_in_scratch(path),
                    Some((objects, store)),
                )
            }
        };
        Ok(StagingFolder {
            folder: around.create_folder(&name, Unfinished::Kept, parts)?,
            objects,
        })
    }

    /// In scratch, for files that get no name: they go with the folder, but for those that are open.
    pub fn unnamed(session: &Session, parts: &[&str]) -> Result<StagingFolder> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("unnamed-{}-{number}", std::process::id());
        let around = session.lasting_scratch()?;
        Ok(StagingFolder {
            folder: around.create_folder(&name, Unfinished::Removed, parts)?,
            objects: None,
        })
    }

    /// Whether `bytes` more fit where it grows, and where it is to be.
    ///
    /// # Errors
    /// [`Error::Store`] for what does not fit, which it calls by its path.
    pub fn check_space(&self, path: &Path, bytes: u64) -> Result<()> {
        self.folder
            .check_space("", bytes)
            .map_err(|error| named(error, path))?;
        if let Some((_, store)) = &self.objects {
            let (needed, free) = (bytes, store.free_bytes()?);
            if free < needed {
                return Err(outcore_store::Error::NoSpace {
                    object: path.display().to_string(),
                    needed,
                    free,
                }
                .into());
            }
        }
        Ok(())
    }

    /// Whether `needed` more bytes have room, there and where they grow.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn check_room(&self, path: &Path, needed: u64) -> Result<()> {
        let mut free = self.folder.free_bytes()?;
        if self.objects.is_some() {
            free = free.min(locate(path)?.0.free_bytes()?);
        }
        match needed > free {
            true => Err(outcore_store::Error::NoSpace {
                object: path.display().to_string(),
                needed,
                free,
            }
            .into()),
            false => Ok(()),
        }
    }

    /// Says how far it is, where everything that this counts is durable.
    pub fn save(&self, state: &impl Serialize) -> Result<()> {
        let folder = self.folder.path();
        let (new, path) = (folder.join("checkpoint.json.new"), folder.join(CHECKPOINT));
        let text = serde_json::to_vec(state).expect("numbers and names have no way to fail");
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path));
        if let Err(source) = written {
            let _ = std::fs::remove_file(&new);
            return Err(failed(&path, source));
        }
        sync_folder(folder)
    }

    /// How far an earlier writer has said that it is.
    ///
    /// # Errors
    /// [`Error::Format`] for what cannot be read.
    pub fn saved<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let path = self.folder.path().join(CHECKPOINT);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(&path, source)),
        };
        let found = serde_json::from_slice(&text).map_err(|error| {
            let (object, reason) = (path.display().to_string(), error.to_string());
            FormatError::Corrupt {
                object,
                offset: error.column() as u64,
                reason,
            }
        })?;
        Ok(Some(found))
    }

    /// Whether there is something to go on with.
    pub fn is_saved(&self) -> bool {
        self.folder.has_checkpoint()
    }

    /// Forgets how far it was, durably.
    pub fn forget(&self) -> Result<()> {
        forget(self.folder.path())
    }

    /// Puts all files but these under their names. Where that fails, what can be gone on with
    /// stays.
    pub fn commit(
        self,
        session: &Session,
        stage: &mut Stage,
        path: &Path,
        without: &[&str],
    ) -> Result<()> {
        let StagingFolder { folder, objects } = self;
        let Some((mut objects, _)) = objects else {
            return Ok(folder.commit_without(without)?);
        };
        copy(session, stage, &folder, &mut *objects, path, without)?;
        objects.commit()?;
        folder.discard();
        Ok(())
    }
}

fn copy(
    session: &Session,
    stage: &mut Stage,
    folder: &NewFolder,
    objects: &mut dyn NewObjects,
    path: &Path,
    without: &[&str],
) -> Result<()> {
    folder.seal()?;
    let files = Folder::new(folder.path())?;
    let mut plan = Plan::new(format!("copy {}", path.display()));
    for name in files
        .list()?
        .iter()
        .filter(|name| !without.contains(&name.as_str()) && !name.starts_with(CHECKPOINT))
    {
        let from = files.open(name)?;
        let to = session.device_file(
            path.join(name).display().to_string(),
            objects.create(name, from.len())?,
        );
        let from = session.device_file(from.name().to_owned(), from.device());
        let len = from.extent().len();
        let (from, to) = (plan.extent(from.extent()), plan.extent(to.extent()));
        for range in cut(0..len, MemorySplit::new(session).block_bytes(COPIED_BYTES)) {
            let region = |extent| Region::span(extent, range.start, range.end - range.start);
            plan.task(
                Task::new("copy")
                    .read(region(from))
                    .write(region(to))
                    .run(|cx| {
                        let (from, to) = cx.blocks.split_at_mut(1);
                        to[0].bytes_mut().copy_from_slice(from[0].bytes());
                        Ok(())
                    }),
            );
        }
    }
    stage.run(plan, 1.0).map(drop)
}

/// The same for the same place, whatever path led to it, so that an import can be gone on with.
fn name_in_scratch(path: &Path) -> String {
    let there = path
        .ancestors()
        .find_map(|around| Some((around, around.canonicalize().ok()?)));
    let place = there.map_or_else(
        || path.to_owned(),
        |(around, real)| match path.strip_prefix(around) {
            Ok(rest) => real.join(rest),
            Err(_) => PathBuf::from(path),
        },
    );
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    let last = path
        .file_name()
        .map(OsStr::to_string_lossy)
        .unwrap_or_default();
    format!(
        "{:016x}-{}",
        hasher.finish(),
        last.chars().take(30).collect::<String>()
    )
}

/// Removes a file that is not to be in the folder.
pub fn remove(folder: &NewFolder, name: &str) -> Result<()> {
    let path = folder.path().join(name);
    std::fs::remove_file(&path).map_err(|source| failed(&path, source))
}

fn forget(folder: &Path) -> Result<()> {
    let path = folder.join(CHECKPOINT);
    match std::fs::remove_file(&path) {
        Ok(()) => sync_folder(folder),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(&path, source)),
    }
}

/// Makes the entries of a folder durable.
///
/// # Errors
/// [`Error::Store`].
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|opened| opened.sync_all())
        .map_err(|source| failed(folder, source))
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::of_io(path.display().to_string(), source)
}

/// An error about a whole folder by the path that it is to have.
fn named(error: outcore_store::Error, path: &Path) -> Error {
    match error {
        outcore_store::Error::NoSpace { needed, free, .. } => outcore_store::Error::NoSpace {
            object: path.display().to_string(),
            needed,
            free,
        }
        .into(),
        other => other.into(),
    }
}
