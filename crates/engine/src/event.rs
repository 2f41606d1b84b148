//! A descriptor that is readable while something can be had: for callers that wait for many things
//! at once, by poll or an event loop. Made on first request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a descriptor tells of, readable or not.
pub struct Event {
    readable: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    writable: OwnedFd,
    /// Changed under the lock of what it tells of.
    is_set: AtomicBool,
}

impl Event {
    /// Not set.
    ///
    /// # Errors
    /// Those of the system, which may have no more descriptors.
    pub fn new() -> io::Result<Event> {
        #[cfg(target_os = "linux")]
        {
            use rustix::event::{EventfdFlags, eventfd};
            Ok(Event {
                readable: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                is_set: AtomicBool::new(false),
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let (readable, writable) = rustix::pipe::pipe()?;
            for end in [&readable, &writable] {
                rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
            }
            Ok(Event {
                readable,
                writable,
                is_set: AtomicBool::new(false),
            })
        }
    }

    /// Makes it readable or not. It holds one number or byte at most, so neither call waits.
    pub fn set(&self, readable: bool) {
        if self.is_set.swap(readable, Ordering::Relaxed) == readable {
            return;
        }
        // Neither can fail on a descriptor of our own that has room.
        let mut number = 1u64.to_ne_bytes();
        #[cfg(target_os = "linux")]
        let _ = match readable {
            true => rustix::io::write(&self.readable, &number),
            false => rustix::io::read(&self.readable, &mut number),
        };
        #[cfg(not(target_os = "linux"))]
        let _ = match readable {
            true => rustix::io::write(&self.writable, &[1]),
            false => rustix::io::read(&self.readable, &mut number[..1]),
        };
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
