//! A file of any format, read at any place through the engine, for callers that know the format.
//! Nothing of it stays in the page cache.

use std::path::Path;
use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{Extent, GatherOptions, Item, Reservation};

use crate::error::{Error, Result};
use crate::file::StoredFile;
use crate::session::Session;

/// Pieces that are asked of the engine by one call: what it keeps of each takes some hundred bytes.
const AT_ONCE: usize = 16 << 10;
/// Longer pieces, and neighbours, are cut to this, so that any budget has room for one.
const ITEM_BYTES: usize = 256 << 10;
/// Bytes are asked for once; what is kept of them would take the place of what is needed again.
const OPTIONS: GatherOptions = GatherOptions {
    gap_bytes: 8 << 10,
    request_bytes: 1 << 20,
    cache: false,
};

/// A file that is open to be read. May be used from any thread.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// use outcore_core::reader::FileReader;
///
/// let path = folder.path().join("x.bin");
/// std::fs::write(&path, b"0123456789").unwrap();
/// let reader = FileReader::open(&session, &path)?;
/// assert!(reader.len() == 10 && !reader.is_empty());
/// reader.hold(4)?;
/// let mut into = [0; 4];
/// reader.read(&[7, 2], 2, &mut into, || true)?;
/// assert_eq!(&into, b"7823");
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct FileReader {
    session: Session,
    file: Arc<StoredFile>,
    held: Mutex<Option<Reservation>>,
}

impl FileReader {
    /// Opens a regular file, or an object of a formatted store.
    ///
    /// # Errors
    /// [`Error::Store`] for what is not there, or is no file: it is refused before it is opened.
    pub fn open(session: &Session, path: impl AsRef<Path>) -> Result<FileReader> {
        let file = session.file(path.as_ref(), false)?;
        Ok(FileReader {
            session: session.clone(),
            file,
            held: Mutex::default(),
        })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file.extent().len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reserves bytes for what the caller reads into, until the reader is dropped; what was
    /// reserved before is let go.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub fn hold(&self, bytes: u64) -> Result<()> {
        let mut held = self.held.locked();
        *held = None;
        *held = Some(
            self.session
                .engine()
                .reserve(&format!("rows of {}", self.file.extent().name()), bytes)?,
        );
        Ok(())
    }

    /// Reads pieces of one length, which begin at these places, one behind another. `go_on` is
    /// asked now and then; its `false` ends the call.
    ///
    /// # Errors
    /// [`Error::Value`] where the pieces do not make the destination, those of the engine for one
    /// that is not inside the file, those of the device; [`Error::Cancelled`].
    pub fn read(
        &self,
        offsets: &[u64],
        bytes: usize,
        into: &mut [u8],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<()> {
        if offsets.len().checked_mul(bytes) != Some(into.len()) {
            let (count, have) = (offsets.len(), into.len());
            return Err(Error::value(format!(
                "{count} pieces of {bytes} bytes do not make {have} bytes"
            )));
        }
        let mut rest = into;
        for part in offsets.chunks(AT_ONCE) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            let (head, tail) = rest.split_at_mut(part.len() * bytes);
            self.session.engine().gather_into(
                &items(self.file.extent(), part, bytes),
                head,
                &OPTIONS,
                &mut go_on,
            )?;
            rest = tail;
        }
        Ok(())
    }
}

/// The pieces, neighbours as one, long ones in several.
fn items<'a>(extent: &'a Extent, offsets: &[u64], bytes: usize) -> Vec<Item<'a>> {
    let mut items: Vec<Item<'a>> = Vec::new();
    for &offset in offsets {
        let mut within = 0;
        while within < bytes {
            let at = offset.saturating_add(within as u64);
            let open = items
                .last_mut()
                .filter(|last| last.offset + last.len as u64 == at && last.len < ITEM_BYTES);
            let len = match open {
                Some(last) => {
                    let len = (bytes - within).min(ITEM_BYTES - last.len);
                    last.len += len;
                    len
                }
                None => {
                    let len = (bytes - within).min(ITEM_BYTES);
                    items.push(Item {
                        extent,
                        offset: at,
                        len,
                    });
                    len
                }
            };
            within += len;
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;

    fn session(folder: &Path) -> Session {
        let scratch = Some(folder.join("scratch"));
        let settings = Settings {
            memory_bytes: Some(4 << 20),
            scratch,
            threads: 1,
            allow_tmpfs_scratch: true,
            ..Settings::default()
        };
        Session::new(settings).unwrap()
    }

    #[test]
    fn pieces_come_in_the_order_in_which_they_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let data: Vec<u8> = (0..3_000_000u32)
            .map(|at| (at / 7 + at % 251) as u8)
            .collect();
        std::fs::write(&path, &data).unwrap();
        let reader = FileReader::open(&session(folder.path()), &path).unwrap();
        assert_eq!(reader.len(), data.len() as u64);
        let cases: [(&[u64], usize); 6] = [
            (&[0], 3_000_000),
            (&[5, 6, 7, 2_999_999, 5], 1),
            (&[4096, 0, 8192, 4096 + 700], 700),
            (&[1, 300_001, 600_001, 17], 300_000),
            (&[3_000_000], 0),
            (&[], 10),
        ];
        for (offsets, bytes) in cases {
            let mut found = vec![0; offsets.len() * bytes];
            reader.read(offsets, bytes, &mut found, || true).unwrap();
            let expected: Vec<u8> = offsets
                .iter()
                .flat_map(|&at| data[at as usize..at as usize + bytes].to_vec())
                .collect();
            assert!(found == expected, "{offsets:?} {bytes}");
        }
        let wrong = reader.read(&[0, 1], 3, &mut [0; 5], || true);
        assert!(matches!(wrong, Err(Error::Value { .. })));
        assert!(reader.read(&[2_999_999], 2, &mut [0; 2], || true).is_err());
        assert!(matches!(
            reader.read(&[0], 3_000_000, &mut vec![0; 3_000_000], || false),
            Err(Error::Cancelled)
        ));
    }

    #[test]
    fn neighbours_are_one_item_and_long_pieces_several() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let reader = FileReader::open(&session(folder.path()), &path).unwrap();
        let cut = |offsets: &[u64], bytes| -> Vec<(u64, usize)> {
            items(reader.file.extent(), offsets, bytes)
                .iter()
                .map(|item| (item.offset, item.len))
                .collect()
        };
        assert_eq!(cut(&[0, 10, 20, 40], 10), [(0, 30), (40, 10)]);
        assert_eq!(cut(&[10, 0], 10), [(10, 10), (0, 10)]);
        assert_eq!(
            cut(&[8], 600 << 10),
            [
                (8, ITEM_BYTES),
                (8 + (256 << 10), ITEM_BYTES),
                (8 + (512 << 10), 88 << 10)
            ]
        );
        let rows: Vec<u64> = (0..1000).map(|row| 700 * row).collect();
        assert_eq!(cut(&rows, 700).len(), 3);
    }

    #[test]
    fn what_is_held_counts_against_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 10]).unwrap();
        let session = session(folder.path());
        let reader = FileReader::open(&session, &path).unwrap();
        let free = session.memory_free();
        reader.hold(1 << 20).unwrap();
        reader.hold(2 << 20).unwrap();
        assert_eq!(session.memory_free(), free - (2 << 20));
        assert!(matches!(
            reader.hold(64 << 20),
            Err(Error::OverBudget { .. })
        ));
        drop(reader);
        assert_eq!(session.memory_free(), free);
        assert!(matches!(
            FileReader::open(&session, folder.path()),
            Err(Error::Store(_))
        ));
    }
}
