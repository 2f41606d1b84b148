//! Requests to a driver, and their completions.

use crate::{Buf, Device, DeviceError, OpKind, Shared};
use std::fmt;
use std::io;
use std::sync::Arc;

/// An operation with its buffers, which the [`Completion`] returns.
#[derive(Debug)]
pub enum Op {
    /// Fill the buffer from the device.
    Read(Buf),
    /// Write the bytes to the device.
    Write(Shared),
    /// Make durable every write that was completed before this operation was submitted.
    Flush,
    /// Deallocate a range; its bytes read as zero afterwards.
    Discard {
        /// Length in bytes.
        len: u64,
    },
    /// Work done near the data. On success `destination` is truncated to the bytes that the device
    /// wrote.
    Offload {
        /// The operation, in the numbering of the device.
        opcode: u8,
        /// Input of the operation.
        input: Shared,
        /// Output of the operation.
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

    /// Length of the operation in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Op::Read(buf) => buf.len() as u64,
            Op::Write(shared) => shared.len() as u64,
            Op::Flush => 0,
            Op::Discard { len } => *len,
            Op::Offload { destination, .. } => destination.len() as u64,
        }
    }

    /// Whether it moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One operation on one device.
pub struct Request {
    /// Returned in the completion; drivers do not interpret it.
    pub tag: u64,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// The operation.
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

/// The result of one [`Request`].
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's operation with its buffers. After an error the contents of a read buffer are
    /// unspecified.
    pub op: Op,
    /// Success if every byte was moved.
    pub result: Result<(), DeviceError>,
}

impl Request {
    /// Turns the request into its completion.
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

    /// Rejects a request that violates the limits of the device, so that no ill-formed request
    /// reaches the hardware.
    pub(crate) fn check(&self) -> io::Result<()> {
        let address = match &self.op {
            Op::Read(buf) => buf.as_ptr() as u64,
            Op::Write(shared) => shared.as_ptr() as u64,
            Op::Discard { .. } => 0,
            Op::Flush | Op::Offload { .. } => return Ok(()),
        };
        let len = self.op.len();
        let sector = u64::from(self.device.limits().sector);
        if len == 0 {
            return Ok(());
        }
        if (address | self.offset | len) & (sector - 1) != 0 {
            return Err(invalid(format!(
                "address, offset and length must be multiples of {sector}"
            )));
        }
        let end = self
            .offset
            .checked_add(len)
            .ok_or_else(|| invalid("offset overflows".to_owned()))?;
        let device_len = self.device.len();
        if end > device_len && end > device_len.next_multiple_of(sector) {
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
