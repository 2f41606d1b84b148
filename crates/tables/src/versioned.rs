//! A table whose rows change: pages with checksums in a folder of [versions](outcore_store::versions).
//!
//! Rows lie in pages as in a [packed](crate::packed) table, each followed by its state for training, and
//! pages lie where the map of the version says. Readers have a version that stays as it is. The writer's
//! table changes with each of its steps; the next version is what it is at a step's end.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use outcore_core::format::corrupt;
use outcore_core::{Error, FormatError, Result, Session, StoredFile};
use outcore_device::{FileDevice, Locked, Mode};
use outcore_engine::Reservation;
use outcore_store::versions::{Version, VersionWriter};
use serde::{Deserialize, Serialize};

use crate::packed::{Header, TableLayout};
use crate::table::Unit;

/// What is said of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) header: Header,
    /// Name of the optimizer whose state is beside the rows, or nothing.
    pub(crate) optimizer: String,
    /// Steps of training so far.
    pub(crate) steps: u64,
    /// The last delta that was applied, as its owner numbers them.
    pub(crate) delta: u64,
}

impl Description {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names have no way to fail")
    }

    fn parse(object: &str, bytes: &[u8]) -> Result<Description> {
        serde_json::from_slice(bytes)
            .map_err(|error| corrupt(object, error.column(), error.to_string()).into())
    }
}

pub(crate) struct Versioned {
    pub(crate) file: Arc<StoredFile>,
    /// Of the file of pages, which all versions of a table share: device and inode.
    pub(crate) identity: (u64, u64),
    pub(crate) layout: TableLayout,
    /// Of the version that was opened.
    number: u64,
    pub(crate) description: Description,
    /// The place of each page.
    map: Vec<AtomicU32>,
    pub(crate) writer: Option<Mutex<Writer>>,
    /// Held while a version is committed.
    pub(crate) committing: Mutex<()>,
    /// Keeps the places of a reader.
    version: Option<Version>,
    /// A set has it, of a table that is written.
    pub(crate) is_served: AtomicBool,
    _held: Reservation,
}

/// What only the writer has.
pub(crate) struct Writer {
    pub(crate) versions: VersionWriter,
    pub(crate) description: Description,
}

/// Longest file of pages. A file that grows is given the room of an address space.
const MOST_BYTES: u64 = 1 << 47;

impl Versioned {
    pub(crate) fn open(session: &Session, path: &Path, for_writing: bool) -> Result<Versioned> {
        let object = path.display().to_string();
        // A link may be turned meanwhile; all files are of the folder that it leads to now.
        let path = &path
            .canonicalize()
            .map_err(|source| Error::of_io(object.clone(), source))?;
        let (map_bytes, beside) = Version::map_bytes(path)?;
        let what = format!("the map of {object}");
        let of_writer = match for_writing {
            true => map_bytes / size_of::<u32>() as u64 * VersionWriter::PAGE_STATE_BYTES,
            false => 0,
        };
        let held = session.engine().reserve(&what, map_bytes + of_writer)?;
        let _while_it_is_read = session.engine().reserve(&what, beside)?;
        let (mut versions, mut version) = match for_writing {
            true => {
                let (versions, version) = VersionWriter::open(path)?;
                (Some(versions), version)
            }
            false => (None, Version::open(path)?),
        };
        let description = Description::parse(&object, &version.description)?;
        let layout = TableLayout::of(&object, description.header.clone())?;
        let (number, pages) = (version.number, version.map.len() as u64);
        if pages != layout.pages() || version.page_bytes != layout.header.page_bytes as u64 {
            let reason = "its pages are not those of the table".to_owned();
            return Err(corrupt(&object, 0, reason).into());
        }
        let map = std::mem::take(&mut version.map);
        let mode = match for_writing {
            true => Mode::ReadWrite,
            false => Mode::Read,
        };
        let opened = FileDevice::open(&version.pages_path(), mode);
        let device = opened.map_err(|error| Error::of_io(object.clone(), error.source))?;
        let facts = device.file().metadata();
        let facts = facts.map_err(|error| Error::of_io(object.clone(), error))?;
        let places = map.iter().max().map_or(0, |place| u64::from(*place) + 1);
        let (expected, actual) = (places * version.page_bytes, facts.len());
        if actual < expected {
            let object = version.pages_path().display().to_string();
            return Err(FormatError::Truncated {
                object,
                expected,
                actual,
            }
            .into());
        }
        let device = match for_writing {
            true => device.sized(MOST_BYTES),
            false => device,
        };
        let writer = versions.take().map(|versions| {
            Mutex::new(Writer {
                versions,
                description: description.clone(),
            })
        });
        Ok(Versioned {
            identity: (facts.dev(), facts.ino()),
            file: Arc::new(session.device_file(object, Arc::new(device))),
            layout,
            number,
            description,
            map: map.into_iter().map(AtomicU32::new).collect(),
            // The writer itself sees to its places.
            version: writer.is_none().then_some(version),
            writer,
            committing: Mutex::default(),
            is_served: AtomicBool::new(false),
            _held: held,
        })
    }

    /// The version that was opened, or has been committed since.
    pub(crate) fn last_number(&self) -> u64 {
        match self.writer {
            Some(_) => self.writer().versions.number(),
            None => self.number,
        }
    }

    /// Whether no newer version has been committed.
    ///
    /// # Errors
    /// Those of reading what its last version is.
    pub(crate) fn is_last(&self) -> Result<bool> {
        Ok(self.version.as_ref().map_or(Ok(true), Version::is_last)?)
    }

    /// The page that has a row, and where the row is in it.
    pub(crate) fn unit_of(&self, row: u64) -> (Unit, usize) {
        let (page, at) = self.layout.find(row);
        let place = self.map[page as usize].load(Ordering::Relaxed);
        let unit = Unit {
            key: page,
            file: 0,
            offset: self.offset(place),
            len: self.layout.header.page_bytes,
        };
        (unit, at)
    }

    /// Where a place is in the file.
    pub(crate) fn offset(&self, place: u32) -> u64 {
        u64::from(place) * self.layout.header.page_bytes as u64
    }

    /// Places of all pages.
    pub(crate) fn map(&self) -> impl Iterator<Item = u32> {
        self.map.iter().map(|place| place.load(Ordering::Relaxed))
    }

    /// Pages lie in other places from now on.
    pub(crate) fn replace(&self, writer: &mut Writer, changes: &[(u64, u32)]) {
        for &(page, place) in changes {
            let before = self.map[page as usize].swap(place, Ordering::Relaxed);
            writer.versions.replaced(page, before);
        }
    }

    /// The writer's half.
    ///
    /// # Panics
    /// Of a table that was not opened for writing.
    pub(crate) fn writer(&self) -> std::sync::MutexGuard<'_, Writer> {
        self.writer
            .as_ref()
            .expect("a table that is written")
            .locked()
    }
}
