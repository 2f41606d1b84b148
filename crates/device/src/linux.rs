//! System calls of Linux that no safe crate offers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns pages of freed heap memory to the system: the allocator of the C library keeps freed
/// memory in an arena for each thread.
pub(crate) fn trim_heap() {
    // SAFETY: it touches free memory only, and takes no argument that could be wrong.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Writes a file's dirty pages in a range to the medium and waits for them. This makes the pages
/// clean, so that they can be dropped from the page cache; it does not make them durable.
pub(crate) fn write_out_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open for the duration of the borrow, and the call takes no memory
    // of ours.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
