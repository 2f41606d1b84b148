//! The one error of this crate: device, operation, offset, and the error of the system.

use std::fmt;
use std::io;

/// The operation in which a [`DeviceError`] arose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Opening or creating the device.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making written bytes durable.
    Flush,
    /// Deallocating a range of bytes.
    Discard,
    /// Work done near the data.
    Offload,
    /// Setting up a driver or waiting for it; no single device is at fault.
    Drive,
}

impl fmt::Display for OpKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            OpKind::Open => "open",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
            OpKind::Offload => "offload",
            OpKind::Drive => "drive",
        })
    }
}

/// An operation on a device failed.
///
/// The kind of `source` tells what a caller can do about it: `InvalidInput` is a request that
/// violates the limits of the device, `UnexpectedEof` and `WriteZero` a transfer that stopped
/// making progress, `StorageFull` a full medium.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", self.place())]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// The operation.
    pub op: OpKind,
    /// Where the operation began, in bytes from the device's start.
    pub offset: u64,
    /// Length of the operation in bytes.
    pub len: u64,
    /// The error of the system.
    pub source: io::Error,
}

impl DeviceError {
    /// An error of a driver itself rather than of one device.
    pub(crate) fn drive(driver: &str, source: io::Error) -> Self {
        DeviceError {
            device: driver.to_owned(),
            op: OpKind::Drive,
            offset: 0,
            len: 0,
            source,
        }
    }

    /// Operation, range and device, without the parts that have no meaning for the operation.
    fn place(&self) -> String {
        let DeviceError {
            device,
            op,
            offset,
            len,
            ..
        } = self;
        match op {
            OpKind::Open | OpKind::Flush => format!("{op} of {device}"),
            OpKind::Drive => format!("driver {device}"),
            _ => format!("{op} of {len} bytes at offset {offset} of {device}"),
        }
    }

    /// The kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}
