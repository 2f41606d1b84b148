//! Streams: data that is written once, in order, and read in order, any number of times.
//!
//! What a computation makes once and passes over again and again, such as the parsed and normalised
//! rows of a training set, need not stay in memory: read ahead of its use it is there when it is
//! wanted. A [`StreamStore`] keeps streams by name in a file or block device that was
//! [formatted](StreamStore::create); a [`StreamWriter`] is some blocks ahead of the device and a
//! [`StreamReader`] some blocks ahead of its caller, all of them within the memory budget of a
//! session.
//!
//! ```text
//!   write   the caller fills a block's own memory -> checksum -> device            (compressed: a chunk -> LZ4 or zstd -> block)
//!   read    device -> a block's memory -> checksum -> lent to the caller           (compressed: block -> chunk -> lent)
//! ```
//!
//! Bytes are neither copied nor looked at but for the checksum. A writer reserves one block of
//! memory, a reader two; what they have above that is elastic, so that one stream alone runs ahead,
//! and hundreds share a budget.
//!
//! A stream is bytes; where they are records, blocks also list where records end. A record may be
//! longer than a block.
//!
//! After Bae et al., SSDStreamer: Specializing I/O Stack for Large-Scale Machine Learning (IEEE
//! Micro 39(5), 2019), whose calls are create, open, read, write, close, destroy, and read and
//! destroy.
//!
//! ```
//! use outcore_core::{Session, Settings};
//! use outcore_streams::{StreamOptions, StreamStore};
//!
//! # fn main() -> outcore_core::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("cache.store");
//! let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
//! let store = StreamStore::create(&session, &path, Some(32 << 20))?;
//! let mut writer = store.write("words", StreamOptions::default())?;
//! for word in ["plan", "prefetch", "compute", "write back"] {
//!     writer.write_record(word.as_bytes())?;
//! }
//! writer.finish()?;
//!
//! let mut reader = store.read("words", StreamOptions::default())?;
//! let mut found = Vec::new();
//! while let Some(record) = reader.next_record()? {
//!     found.push(String::from_utf8_lossy(record).into_owned());
//! }
//! assert_eq!(found, ["plan", "prefetch", "compute", "write back"]);
//! # Ok(())
//! # }
//! ```

mod packed;
mod reader;
mod writer;

use std::path::Path;

use outcore_core::{Error, Result, Session};
use outcore_device::Buf;
use outcore_engine::{StreamOptions as Ahead, Supply};
use outcore_store::{Access, Formatted, Listed, STREAM_BLOCK_BYTES, State, Store};

pub use packed::Compression;
pub use reader::{Records, StreamBlock, StreamReader};
pub use writer::StreamWriter;

/// Bytes of a block, where nothing else is said: one transfer of this length keeps any SSD busy.
pub const BLOCK_BYTES: u32 = 4 << 20;

/// Streams by name. Clones are the same store; it may be used from any thread.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// let path = folder.path().join("streams.store");
/// let store = StreamStore::create(&session, &path, Some(32 << 20))?;
/// store.write("a", StreamOptions::default())?.finish()?;
/// store.rename("a", "b")?;
/// assert_eq!(store.info("b")?.bytes, 0);
/// assert_eq!(store.streams().len(), 1);
/// store.destroy("b")?;
/// println!("{} bytes free of {} of memory", store.free_bytes()?, store.session().memory_bytes());
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct StreamStore {
    session: Session,
    store: Formatted,
}

/// How a stream is written or read.
#[derive(Debug)]
pub struct StreamOptions {
    /// Blocks in memory at once, at most: with the device, waiting, or lent. A writer reserves one,
    /// a reader two.
    pub ahead: usize,
    /// Memory for them, instead of the session's: as many as are to be in memory at once, each as
    /// long as a block and at an address that is a multiple of 4096. The session's budget is
    /// charged for them. They are the stream's until it was dropped; what it has lent lies in them.
    pub frames: Vec<Buf>,
    /// Bytes of a block that is written: a multiple of 4096.
    pub block_bytes: u32,
    /// How what is written is compressed.
    pub compression: Compression,
    /// A stream that has the name keeps it until the new one is whole; else that is an error.
    pub replace: bool,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        let (block_bytes, compression) = (BLOCK_BYTES, Compression::None);
        StreamOptions {
            ahead: 4,
            frames: Vec::new(),
            block_bytes,
            compression,
            replace: false,
        }
    }
}

impl StreamOptions {
    /// The caller's frames, or elastic memory of which `least` blocks are reserved.
    fn supply(self, least: usize) -> Supply {
        if self.frames.is_empty() {
            Supply::Elastic(least)
        } else {
            Supply::Given(self.frames)
        }
    }

    fn ahead(&self, block_bytes: u32) -> Ahead {
        Ahead {
            block_bytes: block_bytes as usize,
            ahead: self.ahead,
        }
    }
}

/// What is known of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Whether it is whole, being written, or was left unfinished or found damaged.
    pub state: State,
    /// Bytes that were written to it; 0 unless it is whole.
    pub bytes: u64,
    /// Records that were written to it; 0 for a stream of bytes alone.
    pub records: u64,
    /// Bytes that it takes of the store.
    pub stored_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// How it is compressed.
    pub compression: Compression,
    /// What its writer said of it.
    pub about: Vec<u8>,
}

impl StreamInfo {
    fn of(listed: Listed) -> Option<StreamInfo> {
        let Listed { name, stat, stream } = listed;
        let (block_bytes, about) = stream?;
        let About {
            compression,
            bytes,
            records,
            about,
        } = About::decode(&about).unwrap_or_default();
        Some(StreamInfo {
            name,
            state: stat.state,
            bytes,
            records,
            stored_bytes: stat.len,
            block_bytes,
            compression,
            about,
        })
    }
}

/// What the catalog has of a stream besides: `docs/format.md` draws it.
#[derive(Default)]
struct About {
    compression: Compression,
    bytes: u64,
    records: u64,
    about: Vec<u8>,
}

impl About {
    fn encode(&self) -> Vec<u8> {
        let mut encoded = vec![self.compression as u8];
        encoded.extend(self.bytes.to_le_bytes());
        encoded.extend(self.records.to_le_bytes());
        encoded.extend(&self.about);
        encoded
    }

    fn decode(encoded: &[u8]) -> Option<About> {
        let (&compression, rest) = encoded.split_first()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (records, about) = rest.split_first_chunk()?;
        let compression = Compression::of(compression)?;
        let (bytes, records) = (u64::from_le_bytes(*bytes), u64::from_le_bytes(*records));
        Some(About {
            compression,
            bytes,
            records,
            about: about.to_vec(),
        })
    }
}

impl StreamStore {
    /// Formats a new file of `len` bytes, or, without a length, a file or block device that is
    /// there and loses what is on it, and opens it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn create(
        session: &Session,
        path: impl AsRef<Path>,
        len: Option<u64>,
    ) -> Result<StreamStore> {
        Formatted::format(&path, len)?;
        StreamStore::open(session, path, Access::Write)
    }

    /// Opens a file or block device that was formatted; one that this process has open already is
    /// shared.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// use outcore_store::Access;
    ///
    /// store.write("a", StreamOptions::default())?.finish()?;
    /// let again = StreamStore::open(&session, &path, Access::Write)?;
    /// assert_eq!(again.streams()[0].name, "a");
    /// let same = StreamStore::on(&session, again.store().clone());
    /// assert_eq!(same.streams().len(), 1);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`], also while another process has it open and one of the two writes.
    pub fn open(session: &Session, path: impl AsRef<Path>, access: Access) -> Result<StreamStore> {
        Ok(StreamStore::on(
            session,
            Formatted::open_shared(path, access)?,
        ))
    }

    /// Streams of a store that is open.
    #[must_use]
    pub fn on(session: &Session, store: Formatted) -> StreamStore {
        StreamStore {
            session: session.clone(),
            store,
        }
    }

    /// The session that its streams belong to.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The store below, which may have other objects too.
    #[must_use]
    pub fn store(&self) -> &Formatted {
        &self.store
    }

    /// Begins a stream.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let options = StreamOptions { compression: Compression::Lz4, ..StreamOptions::default() };
    /// let mut writer = store.write("zeros", options)?;
    /// writer.write(&[0; 100_000])?;
    /// writer.finish()?;
    /// let info = store.info("zeros")?;
    /// assert!(info.bytes == 100_000 && info.stored_bytes < info.bytes);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] when there is no memory for one block; [`Error::Store`] for a name
    /// that is taken or cannot be one.
    pub fn write(&self, name: &str, options: StreamOptions) -> Result<StreamWriter> {
        let is_right = STREAM_BLOCK_BYTES.contains(&options.block_bytes)
            && options.block_bytes.is_multiple_of(4096);
        if !is_right {
            let most = STREAM_BLOCK_BYTES.end - 1;
            let found = options.block_bytes;
            return Err(Error::value(format!(
                "a block must have a multiple of 4096 bytes, {most} at most, not {found}"
            )));
        }
        StreamWriter::begin(&self.session, &self.store, name, options)
    }

    /// Opens a stream to read it from its beginning.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let mut writer = store.write("bytes", options())?;
    /// writer.write(b"0123456789")?;
    /// writer.finish()?;
    /// let mut reader = store.read("bytes", options())?;
    /// assert_eq!(&*reader.next_block()?.unwrap(), b"0123456789");
    /// assert!(reader.next_block()?.is_none());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] when there is no memory for one block; [`Error::Store`], also for a
    /// stream that was not finished.
    pub fn read(&self, name: &str, options: StreamOptions) -> Result<StreamReader> {
        StreamReader::begin(&self.session, self.store.open_stream(name)?, options)
    }

    /// Opens a stream to read it for the last time: its blocks are free as soon as they are read,
    /// and no other reader can open it.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// let mut writer = store.write("bytes", options())?;
    /// writer.write(b"0123456789")?;
    /// writer.finish()?;
    /// let mut reader = store.read_and_destroy("bytes", options())?;
    /// while reader.next_block()?.is_some() {}
    /// drop(reader);
    /// assert!(store.info("bytes").is_err());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`read`](StreamStore::read), and then it stays; [`Error::Store`] while another reader has
    /// it open.
    pub fn read_and_destroy(&self, name: &str, options: StreamOptions) -> Result<StreamReader> {
        let mut reader = self.read(name, options)?;
        reader.take()?;
        Ok(reader)
    }

    /// Removes a stream, finished or not. Readers that have it open go on.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.info(name)?;
        Ok(self.store.remove(name)?)
    }

    /// Gives a stream another name, in one step also where that name was taken.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.info(from)?;
        Ok(self.store.rename(from, to)?)
    }

    /// What is known of a stream.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn info(&self, name: &str) -> Result<StreamInfo> {
        let listed = self.store.look_at(name)?;
        let object = || format!("{}/{name}", self.store.device().name());
        StreamInfo::of(listed)
            .ok_or_else(|| Error::Store(outcore_store::Error::NotAStream { object: object() }))
    }

    /// All streams, by name.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.store
            .listing()
            .into_iter()
            .filter_map(StreamInfo::of)
            .collect()
    }

    /// Bytes that may still be written.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn free_bytes(&self) -> Result<u64> {
        Ok(self.store.free_bytes()?)
    }
}
