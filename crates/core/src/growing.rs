//! Files that grow until their writer ends: numbers behind the header of a `.npy` file, or other
//! bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_engine::{Extent, StreamOptions, WriteStream};
use outcore_store::NewFolder;

use crate::error::{Error, Result};
use crate::file::StoredFile;
use crate::format::{DType, HEAD_BYTES, Vector};
use crate::job::Stage;
use crate::session::Session;

/// One file, written behind the caller.
pub struct Growing {
    /// In the folder.
    pub name: String,
    /// The folder where it grows.
    at: PathBuf,
    file: Arc<StoredFile>,
    session: Session,
    options: StreamOptions,
    /// What its numbers are; none for other bytes.
    element: Option<DType>,
    /// Bytes behind the header.
    len: u64,
    stream: Option<WriteStream>,
}

impl Growing {
    /// The file, `len` bytes of which (behind the header) are there already.
    pub fn open(
        session: &Session,
        folder: &mut NewFolder,
        path: &Path,
        name: &str,
        element: Option<DType>,
        len: u64,
        options: StreamOptions,
    ) -> Result<Growing> {
        let device = folder.create_growing(name)?;
        let file = Arc::new(session.device_file(path.join(name).display().to_string(), device));
        let at = folder.path().to_owned();
        Ok(Growing {
            name: name.into(),
            at,
            file,
            session: session.clone(),
            options,
            element,
            len,
            stream: None,
        })
    }

    fn start(&self) -> u64 {
        if self.element.is_some() {
            HEAD_BYTES as u64
        } else {
            0
        }
    }

    /// Its bytes as the engine sees them.
    pub fn extent(&self) -> &Extent {
        self.file.extent()
    }

    /// Bytes behind the header.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins again, or where an earlier writer stopped.
    pub fn restart(&mut self, len: u64) -> Result<()> {
        self.pause()?;
        self.len = len;
        Ok(())
    }

    fn stream(&mut self) -> Result<&mut WriteStream> {
        if self.stream.is_none() {
            let offset = self.start() + self.len;
            let stream =
                self.session
                    .engine()
                    .write_stream(self.file.extent(), offset, self.options);
            self.stream = Some(stream.map_err(|error| self.failure(error))?);
        }
        Ok(self.stream.as_mut().expect("begun above"))
    }

    /// Reserves the memory of the stream now, so that a later write does not fail for want of it.
    pub fn prepare(&mut self) -> Result<()> {
        self.stream().map(drop)
    }

    fn failure(&self, error: outcore_engine::Error) -> Error {
        out_of_room(error, &self.at)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Those of the device, for bytes of an earlier call too.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.stream()?.write(bytes);
        written.map_err(|error| self.failure(error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Appends numbers, encoded on their way into the stream.
    pub fn extend<T: Copy, const N: usize>(
        &mut self,
        numbers: &[T],
        encode: impl Fn(T) -> [u8; N],
    ) -> Result<()> {
        let mut rest = numbers;
        while !rest.is_empty() {
            let stream = self.stream()?;
            let buffer = match stream.buffer() {
                Ok(buffer) => buffer,
                Err(error) => return Err(self.failure(error)),
            };
            let count = (buffer.len() / N).min(rest.len());
            if count == 0 {
                // A number across the end of a block.
                self.write(&encode(rest[0]))?;
                rest = &rest[1..];
                continue;
            }
            let (now, later) = rest.split_at(count);
            for (into, &number) in buffer[..count * N].chunks_exact_mut(N).zip(now) {
                into.copy_from_slice(&encode(number));
            }
            let sent = stream.advance(count * N);
            sent.map_err(|error| self.failure(error))?;
            self.len += (count * N) as u64;
            rest = later;
        }
        Ok(())
    }

    /// The vector that it is, once it is finished.
    pub fn vector(&self) -> Option<(Vector, Arc<StoredFile>)> {
        self.element.map(|element| {
            (
                Vector::new(element, self.len / element.bytes()),
                Arc::clone(&self.file),
            )
        })
    }

    /// Waits until all is with the device.
    pub fn pause(&mut self) -> Result<()> {
        match self.stream.take() {
            Some(stream) => stream.finish().map_err(|error| self.failure(error)),
            None => Ok(()),
        }
    }

    /// All is written: adds the header, and says where the file ends.
    pub fn finish(&mut self, stage: &Stage, folder: &mut NewFolder) -> Result<()> {
        stage.check()?;
        self.pause()?;
        if let Some(element) = self.element {
            let vector = Vector::new(element, self.len / element.bytes());
            write_at(
                &self.session,
                self.file.extent(),
                &vector.header(),
                &self.at,
            )?;
        }
        folder.cut(&self.name, self.start() + self.len);
        Ok(())
    }
}

/// Writes the first bytes of a file that lies in the folder `at`.
pub fn write_at(session: &Session, extent: &Extent, bytes: &[u8], at: &Path) -> Result<()> {
    let write = || {
        let mut stream = session.engine().write_stream(
            extent,
            0,
            StreamOptions {
                block_bytes: 4096,
                ahead: 1,
            },
        )?;
        stream.write(bytes)?;
        stream.finish()
    };
    write().map_err(|error| out_of_room(error, at))
}

/// A file that grows is as long as it may become: beyond its end is no more room in the folder
/// `at`.
pub fn out_of_room(error: outcore_engine::Error, at: &Path) -> Error {
    match error {
        outcore_engine::Error::OutOfRange {
            object,
            offset,
            len,
            ..
        } => outcore_store::Error::no_room(&object, at, offset.saturating_add(len)).into(),
        other => other.into(),
    }
}
