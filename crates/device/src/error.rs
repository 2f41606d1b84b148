//! The one error of this crate: which device, which operation, where, and what the system said.

use std::fmt;
use std::io;

/// What was being done when a [`DeviceError`] arose.
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
    /// Giving up a range of bytes.
    Discard,
    /// Work done near the data.
    Offload,
    /// Setting up a driver or waiting for it; no single device is to blame.
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
/// breaks the device's limits, `UnexpectedEof` and `WriteZero` a transfer that stopped making
/// progress, `StorageFull` a full medium.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", self.place())]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// What was being done.
    pub op: OpKind,
    /// Where the operation began, in bytes from the device's start.
    pub offset: u64,
    /// How many bytes the operation was about.
    pub len: u64,
    /// What the system said.
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

    /// What was being done where, as far as it means anything.
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
