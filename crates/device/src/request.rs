//! What a driver is asked to do, and what it answers.

use crate::{Buf, Device, DeviceError, OpKind, Shared};
use std::fmt;
use std::io;
use std::sync::Arc;

/// An operation with the buffers it needs; they come back in the [`Completion`].
#[derive(Debug)]
pub enum Op {
    /// Fill the buffer from the device.
    Read(Buf),
    /// Write the bytes to the device.
    Write(Shared),
    /// Make durable every write that was completed before this operation was submitted.
    Flush,
    /// Give up a range; its bytes read as zero afterwards.
    Discard {
        /// How many bytes.
        len: u64,
    },
    /// Work done near the data. On success `destination` is cut to the bytes that the device wrote.
    Offload {
        /// What to do, in the device's own numbering.
        opcode: u8,
        /// What the device is told.
        input: Shared,
        /// Where the answer goes.
        destination: Buf,
    },
}

impl Op {
    /// Which kind of operation this is.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Read(_) => OpKind::Read,
            Op::Write(_) => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard { .. } => OpKind::Discard,
            Op::Offload { .. } => OpKind::Offload,
        }
    }

    /// How many bytes it is about.
    pub fn len(&self) -> u64 {
        match self {
            Op::Read(buf) => buf.len() as u64,
            Op::Write(shared) => shared.len() as u64,
            Op::Flush => 0,
            Op::Discard { len } => *len,
            Op::Offload { destination, .. } => destination.len() as u64,
        }
    }

    /// Whether it is about no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One operation on one device.
pub struct Request {
    /// Comes back in the completion; drivers give it no meaning.
    pub tag: u64,
    /// Where to do it.
    pub device: Arc<dyn Device>,
    /// Where on the device, in bytes.
    pub offset: u64,
    /// What to do.
    pub op: Op,
}

impl fmt::Debug for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request {
            tag,
            device,
            offset,
            op,
        } = self;
        write!(
            formatter,
            "Request({tag}: {op:?} at {offset} of {})",
            device.name()
        )
    }
}

/// The answer to one [`Request`].
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's operation with its buffers. After an error the contents of a read buffer are
    /// unspecified.
    pub op: Op,
    /// Whether every byte was moved.
    pub result: Result<(), DeviceError>,
}

impl Request {
    /// Turns the request into its answer.
    pub(crate) fn complete(self, result: io::Result<()>) -> Completion {
        let Request {
            tag,
            device,
            offset,
            op,
        } = self;
        let result = result.map_err(|source| DeviceError {
            device: device.name().to_owned(),
            op: op.kind(),
            offset,
            len: op.len(),
            source,
        });
        Completion { tag, op, result }
    }

    /// Refuses what the device's limits do not allow, so that nothing ill-formed reaches the
    /// hardware.
    pub(crate) fn check(&self) -> io::Result<()> {
        let address = match &self.op {
            Op::Read(buf) => buf.as_ptr() as u64,
            Op::Write(shared) => shared.as_ptr() as u64,
            Op::Discard { .. } => 0,
            Op::Flush | Op::Offload { .. } => return Ok(()),
        };
        let len = self.op.len();
        let block = u64::from(self.device.limits().block);
        if len == 0 {
            return Ok(());
        }
        if (address | self.offset | len) & (block - 1) != 0 {
            return Err(invalid(format!(
                "address, offset and length must be multiples of {block}"
            )));
        }
        let end = self
            .offset
            .checked_add(len)
            .ok_or_else(|| invalid("offset overflows".to_owned()))?;
        let device_len = self.device.len();
        if end > device_len && end > device_len.next_multiple_of(block) {
            return Err(invalid(format!(
                "runs past the end, which is at {device_len}"
            )));
        }
        Ok(())
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
