//! An address space with limits, and the route by which a driver reaches it.

use std::io;
use std::os::fd::BorrowedFd;

/// Constraints on the requests to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Offsets, lengths and memory addresses must be multiples of this power of two. 1 means no
    /// constraint.
    pub sector: u32,
    /// The most bytes that one transfer moves. Drivers cut longer requests by themselves.
    pub max_transfer: usize,
}

/// An address space on some hardware.
pub trait Device: Send + Sync + 'static {
    /// The name of the device in errors; a path, for files.
    fn name(&self) -> &str;
    /// Constraints on requests. Constant for the life of the device.
    fn limits(&self) -> Limits;
    /// Length in bytes. Requests may run past the end by less than one sector: a read returns zeros
    /// there, and the owner of the device truncates what a write leaves there.
    fn len(&self) -> u64;
    /// Whether there is no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// How a driver reaches the bytes. Constant for the life of the device: a descriptor stays
    /// open, and the same, until the device is dropped.
    fn route(&self) -> Route<'_>;
}

/// How a driver reaches a device's bytes.
pub enum Route<'a> {
    /// By `pread`, `pwrite`, `fdatasync` and hole punching on a descriptor, or the same operations
    /// of a ring.
    Descriptor(BorrowedFd<'a>),
    /// By calls that may block; drivers make them on threads of their own.
    Blocking(&'a dyn Blocking),
}

/// A device reached by calls that may block. They are made from several threads at once.
///
/// Transfers may be short, as in POSIX: the driver continues them, at a multiple of the sector. A
/// transfer of 0 bytes means that nothing more can be moved.
pub trait Blocking: Send + Sync {
    /// Reads at `offset` into `destination` and returns the number of bytes read.
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes `source` at `offset` and returns the number of bytes written.
    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes durable every write that was completed before this call.
    fn flush(&self) -> io::Result<()>;
    /// Deallocates a range; its bytes read as zero afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Work done near the data: bytes in, bytes out. The owner of the device defines the opcodes.
    fn offload(&self, opcode: u8, input: &[u8], destination: &mut [u8]) -> io::Result<usize> {
        let _ = (opcode, input, destination);
        Err(io::ErrorKind::Unsupported.into())
    }
}
