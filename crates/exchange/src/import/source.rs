//! Foreign files through the engine: as text in order, or at any place. Nothing of them stays in
//! the page cache.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use outcore_core::bytes::Bytes;
use outcore_core::reader::FileReader;
use outcore_core::{Error, Result, Session, StoredFile};
use outcore_engine::{Plan, Region, StreamOptions, Task};
use outcore_formats::{Compression, ReadAt, Source};
use serde::{Deserialize, Serialize};

/// A foreign file, and how to tell whether it is still the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Seconds and nanoseconds since 1970; none where the file system does not tell.
    modified: Option<(u64, u32)>,
}

/// A foreign file. It is open only while it is read: there may be more of them than a process may
/// have open.
pub(super) struct Foreign {
    pub(super) identity: Identity,
    path: PathBuf,
    name: String,
    /// Bytes of it that are read.
    range: Range<u64>,
}

impl Foreign {
    /// Looks at a file, which has to be one.
    pub(super) fn open(session: &Session, path: &Path) -> Result<Foreign> {
        let file = session.file(path, false)?;
        let identity = identity_of(path, &file)?;
        Ok(Foreign {
            range: 0..identity.bytes,
            identity,
            path: path.to_owned(),
            name: file.extent().name().to_owned(),
        })
    }

    /// The lines of one of `parts` equal parts of a plain text: a line belongs to where it begins.
    pub(super) fn part(self, session: &Session, part: u64, parts: u64) -> Result<Foreign> {
        let whole = self.text(session, StreamOptions::default(), &Arc::default(), 0)?;
        if whole.compression() != Compression::Plain {
            return Err(Error::value(format!(
                "{} is compressed, and only plain text is read in parts",
                self.name
            )));
        }
        drop(whole);
        let reader = FileReader::open(session, &self.path)?;
        let place =
            |part: u64| (u128::from(reader.len()) * u128::from(part) / u128::from(parts)) as u64;
        let range = line_from(&reader, place(part))?..line_from(&reader, place(part + 1))?;
        Ok(Foreign {
            name: format!("{} from byte {}", self.name, range.start),
            range,
            ..self
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that are read of it.
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The file, opened.
    ///
    /// # Errors
    /// [`Error::Value`] for one that has changed since it was looked at.
    pub(super) fn file(&self, session: &Session) -> Result<Arc<StoredFile>> {
        let file = session.file(&self.path, false)?;
        match identity_of(&self.path, &file)? == self.identity {
            true => Ok(file),
            false => Err(Error::value(format!(
                "{} has changed since the import was begun",
                self.name
            ))),
        }
    }

    /// Its text from byte `at` on; in a compressed file, what is before is decompressed and
    /// dropped.
    pub(super) fn text(
        &self,
        session: &Session,
        options: StreamOptions,
        stop: &Arc<AtomicBool>,
        at: u64,
    ) -> Result<Source<Bytes>> {
        let file = self.file(session)?;
        let open = |from: u64| -> Result<Source<Bytes>> {
            let bytes = Bytes::of(session, file.extent(), from..self.range.end, options, stop)?;
            Ok(Source::open(self.name(), bytes)?)
        };
        let mut source = open(self.range.start)?;
        if at == 0 {
            return Ok(source);
        }
        if source.compression() == Compression::Plain && at <= self.range.end - self.range.start {
            drop(source);
            return open(self.range.start + at);
        }
        source.skip(at)?;
        Ok(source)
    }
}

/// Where the first line begins from a place on.
fn line_from(reader: &FileReader, place: u64) -> Result<u64> {
    const WINDOW: usize = 64 << 10;
    let mut at = place.saturating_sub(1);
    let mut window = vec![0; WINDOW];
    while place > 0 && at < reader.len() {
        let len = (reader.len() - at).min(WINDOW as u64) as usize;
        reader.read(&[at], len, &mut window[..len], || true)?;
        if let Some(end) = window[..len].iter().position(|byte| *byte == b'\n') {
            return Ok(at + end as u64 + 1);
        }
        at += len as u64;
    }
    Ok(if place == 0 { 0 } else { reader.len() })
}

fn identity_of(path: &Path, file: &StoredFile) -> Result<Identity> {
    let about = std::fs::metadata(path).map_err(|source| Error::Device {
        object: path.display().to_string(),
        source,
    })?;
    let since = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = since.map(|since| (since.as_secs(), since.subsec_nanos()));
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(Identity {
        path,
        bytes: file.extent().len(),
        modified,
    })
}

/// A file at any place: each read is a plan of one task, which waits for its memory as plans do.
pub(super) struct Anywhere {
    session: Session,
    file: Arc<StoredFile>,
    stop: Arc<AtomicBool>,
}

impl Anywhere {
    const MOST: usize = 1 << 20;

    pub(super) fn new(
        session: &Session,
        file: &Arc<StoredFile>,
        stop: &Arc<AtomicBool>,
    ) -> Arc<Anywhere> {
        Arc::new(Anywhere {
            session: session.clone(),
            file: Arc::clone(file),
            stop: Arc::clone(stop),
        })
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let mut plan = Plan::new(format!("read {}", self.file.extent().name()));
        let extent = plan.extent(self.file.extent());
        let (sender, receiver) = std::sync::mpsc::channel();
        plan.task(
            Task::new("read")
                .held(len)
                .read(Region::span(extent, offset, len as u64))
                .run(move |cx| {
                    _ = sender.send(cx.blocks[0].bytes().to_vec());
                    Ok(())
                }),
        );
        self.session.engine().run(plan)?.wait()?;
        receiver.recv().map_err(|_| Error::Closed)
    }
}

impl ReadAt for Anywhere {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.file.extent().len().saturating_sub(offset);
        let len = bytes
            .len()
            .min(Self::MOST)
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            bytes[..len].copy_from_slice(&self.read(offset, len).map_err(io::Error::other)?);
        }
        Ok(len)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.extent().len())
    }
}
