//! A file in order, read ahead through the engine. Nothing of it stays in the page cache.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outcore_engine::{Extent, Lent, ReadStream, StreamOptions};

use crate::error::{Error, Result};
use crate::session::Session;

/// How often a waiting read polls `stop`.
const LOOK: Duration = Duration::from_millis(20);

/// A file in order.
pub struct Bytes {
    stream: ReadStream,
    block: Option<Lent>,
    at: usize,
    stop: Arc<AtomicBool>,
}

impl Bytes {
    /// A range of any file's bytes.
    pub fn of(
        session: &Session,
        extent: &Extent,
        range: Range<u64>,
        options: StreamOptions,
        stop: &Arc<AtomicBool>,
    ) -> Result<Bytes> {
        let stream = session.engine().read_stream(extent, range, options)?;
        Ok(Bytes {
            stream,
            block: None,
            at: 0,
            stop: Arc::clone(stop),
        })
    }
}

impl Read for Bytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(block) = &self.block {
                let len = into.len().min(block.len() - self.at);
                into[..len].copy_from_slice(&block[self.at..self.at + len]);
                self.at += len;
                if self.at == block.len() {
                    self.block = None;
                }
                return Ok(len);
            }
            while !self.stream.ready_within(LOOK) {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(io::Error::other(Error::Cancelled));
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other(Error::Cancelled));
            }
            match self.stream.next() {
                Some(block) => {
                    (self.block, self.at) = (
                        Some(block.map_err(|error| io::Error::other(Error::from(error)))?),
                        0,
                    )
                }
                None => return Ok(0),
            }
            if into.is_empty() {
                return Ok(0);
            }
        }
    }
}
