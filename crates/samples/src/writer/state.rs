//! The files of a dataset that is being written, and the state that says how far they are: what a
//! writer that goes on finds, and checks.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use outcore_core::bytes::Bytes;
use outcore_core::growing::Growing;
use outcore_core::staging::StagingFolder;
use outcore_core::{Error, FormatError, MemorySplit, Result, Session};
use outcore_engine::{Extent, StreamOptions};
use outcore_store::checksum_on;
use serde::{Deserialize, Serialize};

use crate::clustering::Clustering;
use crate::manifest::{File, parts};
use crate::sample_storage::{ExternalFiles, SourcePlace};
use crate::schema::Field;

/// How far it is: all that is needed to go on, besides the files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) fields: Option<Vec<Field>>,
    pub(super) named: bool,
    pub(super) samples: u64,
    /// Bytes and checksum of each file.
    pub(super) files: [File; parts::GROWING.len()],
    /// Where the samples of the last, open group begin, and end.
    pub(super) group: Vec<(u64, u64)>,
    /// Of its names.
    pub(super) names_sum: u32,
    /// Files of others that samples are in, and where among them the last one ends.
    pub(super) elsewhere: Option<ExternalFiles>,
    pub(super) end: u64,
    /// Up to where files of others have been read.
    #[serde(default)]
    pub(super) place: Option<SourcePlace>,
    pub(super) clustering: Clustering,
    #[serde(default)]
    pub(super) classes: Option<Vec<String>>,
    /// What the caller noted for when it resumes.
    pub(super) note: String,
}

/// Holds what an earlier writer left of a file against what it said of it.
pub(super) fn compare(session: &Session, file: &Growing, told: File) -> Result<()> {
    let options = StreamOptions {
        block_bytes: block_bytes(session),
        ahead: 2,
    };
    let mut bytes = Bytes::of(
        session,
        file.extent(),
        0..told.bytes,
        options,
        &Arc::default(),
    )?;
    let (mut sum, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) if sum == told.crc32c => return Ok(()),
            Ok(0) => {
                let (object, reason) = (
                    file.extent().name().to_owned(),
                    "it is not what was written: its checksum differs".into(),
                );
                return Err(FormatError::Corrupt {
                    object,
                    offset: 0,
                    reason,
                }
                .into());
            }
            Ok(len) => sum = checksum_on(sum, &buffer[..len]),
            Err(error) => return Err(failed(file.extent(), error)),
        }
    }
}

/// An error of reading a file.
pub(super) fn failed(extent: &Extent, source: io::Error) -> Error {
    match source.downcast::<Error>() {
        Ok(own) => own,
        Err(source) => Error::of_io(extent.name(), source),
    }
}

/// Of the streams beside that of the samples, which is four times as long.
pub(super) fn block_bytes(session: &Session) -> usize {
    MemorySplit::new(session).side_block_bytes(16 << 10, 256 << 10) as usize
}

/// Opens the files where a writer of this state left them, or empty ones.
///
/// # Errors
/// [`Error::Store`]; [`Error::OverBudget`].
pub(super) fn open(
    session: &Session,
    home: &mut StagingFolder,
    path: &Path,
    state: &State,
) -> Result<Vec<Growing>> {
    let block = block_bytes(session);
    let mut files = Vec::new();
    for (part, name) in parts::GROWING.iter().enumerate() {
        let options = match part {
            parts::SAMPLES => StreamOptions {
                block_bytes: 4 * block,
                ahead: 4,
            },
            _ => StreamOptions {
                block_bytes: block,
                ahead: 2,
            },
        };
        let mut file = Growing::open(
            session,
            &mut home.folder,
            path,
            name,
            None,
            state.files[part].bytes,
            options,
        )?;
        file.prepare()?;
        files.push(file);
    }
    Ok(files)
}
