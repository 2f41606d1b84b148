//! How far a long iteration is, in a file: what the next process goes on from.
//!
//! A file is a line of JSON, which says what iteration it is of, and raw bytes. It is replaced by
//! rename when it is durable, so that there is always one that is whole.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::format::FormatError;
use crate::staging::sync_folder;

/// Where an iteration leaves how far it is.
///
/// ```
/// use outcore_core::checkpoint::CheckpointFile;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let file = CheckpointFile::new(folder.path().join("search"));
/// assert!(file.load::<u64, _>(|_, _| Ok(()))?.is_none());
/// file.save(&7u64, |into| Ok(into(&[1, 2, 3])?))?;
/// let found = file.load(|round: u64, from| {
///     let mut bytes = [0; 3];
///     from(&mut bytes)?;
///     Ok((round, bytes))
/// })?;
/// assert_eq!(found, Some((7, [1, 2, 3])));
/// file.forget()?;
/// assert!(!file.path().exists());
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct CheckpointFile {
    path: PathBuf,
}

impl CheckpointFile {
    /// One at this path; nothing is done yet.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointFile {
        CheckpointFile { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces it by a state and what `fill` writes after it.
    ///
    /// # Errors
    /// [`Error::Store`] for what cannot be written; those of `fill`.
    pub fn save(
        &self,
        state: &impl Serialize,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let new = self.unfinished();
        let failed = |source: io::Error| Error::of_io(self.path.display().to_string(), source);
        let text = serde_json::to_vec(state).expect("numbers and names have no way to fail");
        let write = || -> Result<()> {
            let mut file = BufWriter::new(File::create(&new).map_err(failed)?);
            file.write_all(&text).map_err(failed)?;
            file.write_all(b"\n").map_err(failed)?;
            fill(&mut |bytes| file.write_all(bytes).map_err(failed))?;
            let file = file
                .into_inner()
                .map_err(|error| failed(error.into_error()))?;
            file.sync_all().map_err(failed)?;
            std::fs::rename(&new, &self.path).map_err(failed)
        };
        if let Err(error) = write() {
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        let folder = self.path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        sync_folder(folder.unwrap_or(Path::new(".")))
    }

    /// What `read` makes of the state and the bytes after it; nothing where there is no file.
    ///
    /// # Errors
    /// [`Error::Format`] for a file that is not one of these, or too short; those of `read`;
    /// [`Error::Store`] where there is none and none can be made.
    pub fn load<S: DeserializeOwned, T>(
        &self,
        read: impl FnOnce(S, &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<T>,
    ) -> Result<Option<T>> {
        let object = self.path.display().to_string();
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // What cannot be written is told before hours of work.
                let new = self.unfinished();
                let made = File::create(&new).and_then(|_| std::fs::remove_file(&new));
                return match made {
                    Ok(()) => Ok(None),
                    Err(source) => Err(Error::of_io(object, source)),
                };
            }
            Err(source) => return Err(Error::of_io(object, source)),
        };
        let mut file = BufReader::new(file);
        let corrupt = |reason: String| {
            Error::from(FormatError::Corrupt {
                object: object.clone(),
                offset: 0,
                reason,
            })
        };
        let mut line = Vec::new();
        let limit = 1 << 20;
        (&mut file)
            .take(limit)
            .read_until(b'\n', &mut line)
            .map_err(|error| corrupt(error.to_string()))?;
        let state = serde_json::from_slice(&line)
            .map_err(|error| corrupt(format!("it is no checkpoint: {error}")))?;
        let found = read(state, &mut |into| {
            file.read_exact(into)
                .map_err(|error| corrupt(format!("it is too short: {error}")))
        })?;
        Ok(Some(found))
    }

    fn unfinished(&self) -> PathBuf {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        PathBuf::from(new)
    }

    /// Removes it.
    ///
    /// # Errors
    /// [`Error::Store`] for what cannot be removed.
    pub fn forget(&self) -> Result<()> {
        // What a writer that was killed has left.
        let _ = std::fs::remove_file(self.unfinished());
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::of_io(self.path.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }
}
