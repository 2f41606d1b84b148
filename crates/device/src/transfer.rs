//! Continuing a transfer that stopped short, and carrying out a whole request with blocking calls.
//!
//! Invariant: a request is complete when every byte up to `needed` was moved; the bytes of a read
//! behind that (past the end of the device) are zeroed. Each continuation starts at a multiple of
//! the sector and beyond the previous one, so a transfer ends or makes progress.

use crate::{Device, Op, OpKind, Request, Route};
use std::io;
use std::ops::Range;

/// The state of a transfer after `moved` more bytes from `position`: `Some(next)` to continue
/// there, or `None` when it is complete.
pub(crate) fn advance(
    kind: OpKind,
    position: usize,
    moved: usize,
    needed: usize,
    sector: u32,
) -> io::Result<Option<usize>> {
    let reached = position + moved;
    if reached >= needed {
        return Ok(None);
    }
    // A short transfer may end inside a sector; direct I/O can continue only from the start of the
    // sector.
    let next = reached & !(sector as usize - 1);
    if next > position {
        return Ok(Some(next));
    }
    Err(match kind {
        OpKind::Read => io::ErrorKind::UnexpectedEof.into(),
        _ => io::ErrorKind::WriteZero.into(),
    })
}

/// How many of the `len` bytes at `offset` a transfer must move: for a write all of them, for a
/// read those before the end of the device.
pub(crate) fn needed(kind: OpKind, device_len: u64, offset: u64, len: usize) -> usize {
    match kind {
        OpKind::Read => {
            usize::try_from(device_len.saturating_sub(offset)).map_or(len, |left| left.min(len))
        }
        _ => len,
    }
}

/// Carries out a checked request with calls that may block.
pub(crate) fn perform(request: &mut Request) -> io::Result<()> {
    let Request {
        device, offset, op, ..
    } = request;
    let (device, offset) = (&**device, *offset);
    match op {
        Op::Read(buf) => read_now(device, buf, offset),
        Op::Write(shared) => write_now(device, shared, offset),
        Op::Flush => flush_now(device),
        Op::Discard { len } => discard_now(device, offset, *len),
        Op::Offload {
            opcode,
            input,
            destination,
        } => {
            let written = match device.route() {
                Route::Blocking(blocking) => blocking.offload(*opcode, input, destination)?,
                Route::Descriptor(_) => return Err(io::ErrorKind::Unsupported.into()),
            };
            destination.split_off(written.min(destination.len()));
            Ok(())
        }
    }
}

fn move_all(
    device: &dyn Device,
    kind: OpKind,
    len: usize,
    needed: usize,
    mut once: impl FnMut(Range<usize>) -> io::Result<usize>,
) -> io::Result<()> {
    let limits = device.limits();
    let mut position = 0;
    while position < needed {
        let stop = len.min(position.saturating_add(limits.max_transfer));
        let moved = match once(position..stop) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            moved => moved?,
        };
        match advance(kind, position, moved, needed, limits.sector)? {
            Some(next) => position = next,
            None => break,
        }
    }
    Ok(())
}

/// Reads on this thread with blocking calls. Offset, length and address are multiples of the sector
/// of the device; bytes past its end read as zero.
///
/// # Errors
/// That of the device.
pub fn read_now(device: &dyn Device, destination: &mut [u8], offset: u64) -> io::Result<()> {
    let needed = needed(OpKind::Read, device.len(), offset, destination.len());
    let len = destination.len();
    move_all(device, OpKind::Read, len, needed, |part| {
        let at = offset + part.start as u64;
        read_once(device, &mut destination[part], at)
    })?;
    destination[needed..].fill(0);
    Ok(())
}

/// Writes on this thread with blocking calls, under the conditions of [`read_now`].
///
/// # Errors
/// That of the device.
pub fn write_now(device: &dyn Device, source: &[u8], offset: u64) -> io::Result<()> {
    move_all(device, OpKind::Write, source.len(), source.len(), |part| {
        let at = offset + part.start as u64;
        write_once(device, &source[part], at)
    })
}

/// One read by whatever route the device has; may be short.
pub(crate) fn read_once(
    device: &dyn Device,
    destination: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    match device.route() {
        Route::Descriptor(descriptor) => Ok(rustix::io::pread(descriptor, destination, offset)?),
        Route::Blocking(blocking) => blocking.read_at(destination, offset),
    }
}

/// One write by whatever route the device has; may be short.
pub(crate) fn write_once(device: &dyn Device, source: &[u8], offset: u64) -> io::Result<usize> {
    match device.route() {
        Route::Descriptor(descriptor) => Ok(rustix::io::pwrite(descriptor, source, offset)?),
        Route::Blocking(blocking) => blocking.write_at(source, offset),
    }
}

/// Makes every completed write durable, on this thread.
///
/// # Errors
/// That of the device.
pub fn flush_now(device: &dyn Device) -> io::Result<()> {
    match device.route() {
        Route::Descriptor(descriptor) => flush_descriptor(descriptor),
        Route::Blocking(blocking) => blocking.flush(),
    }
}

/// Deallocates a range on this thread; its bytes read as zero afterwards.
///
/// # Errors
/// That of the device.
pub fn discard_now(device: &dyn Device, offset: u64, len: u64) -> io::Result<()> {
    match device.route() {
        _ if len == 0 => Ok(()),
        Route::Descriptor(descriptor) => punch_hole(descriptor, offset, len),
        Route::Blocking(blocking) => blocking.discard(offset, len),
    }
}

/// Makes the written bytes of a file durable, with the metadata needed to find them.
pub(crate) fn flush_descriptor(descriptor: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(not(target_vendor = "apple"))]
    rustix::fs::fdatasync(descriptor)?;
    #[cfg(target_vendor = "apple")]
    rustix::fs::fcntl_fullfsync(descriptor)?;
    Ok(())
}

/// Frees a file's range; it reads as zero afterwards and the length stays.
#[cfg(target_os = "linux")]
pub(crate) fn punch_hole(
    descriptor: std::os::fd::BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    Ok(rustix::fs::fallocate(
        descriptor,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        offset,
        len,
    )?)
}

/// Frees a file's range; this system has no common call for it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn punch_hole(_: std::os::fd::BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_transfer_goes_on_from_the_last_whole_block() {
        assert_eq!(advance(OpKind::Read, 0, 4096, 4096, 512).unwrap(), None);
        assert_eq!(
            advance(OpKind::Read, 0, 1000, 4096, 512).unwrap(),
            Some(512)
        );
        assert_eq!(
            advance(OpKind::Read, 512, 1000, 4096, 1).unwrap(),
            Some(1512)
        );
        assert_eq!(advance(OpKind::Read, 0, 700, 700, 512).unwrap(), None);
    }

    #[test]
    fn no_progress_is_an_error() {
        let kind = |kind, moved| advance(kind, 512, moved, 4096, 512).unwrap_err().kind();
        assert_eq!(kind(OpKind::Read, 0), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(OpKind::Read, 511), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(OpKind::Write, 0), io::ErrorKind::WriteZero);
    }

    #[test]
    fn only_reads_may_end_early() {
        assert_eq!(needed(OpKind::Read, 1000, 512, 512), 488);
        assert_eq!(needed(OpKind::Read, 1000, 1024, 512), 0);
        assert_eq!(needed(OpKind::Write, 1000, 512, 512), 512);
    }
}
