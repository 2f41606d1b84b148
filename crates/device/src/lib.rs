//! Bytes to and from hardware.
//!
//! A [`Device`] is an address space with limits: a sector that offsets, lengths and addresses are
//! multiples of, and a largest transfer. A [`Driver`] carries requests to many devices at once. It
//! takes whole batches, never blocks when it takes them, and hands back one [`Completion`] for
//! each, in whatever order the hardware finishes.
//!
//! ```
//! use outcore_device::{Buf, Choice, Completion, MemoryDevice, Op, Request, driver};
//! use std::sync::Arc;
//!
//! let device = Arc::new(MemoryDevice::new("example", 8192));
//! let mut driver = driver(Choice::Auto)?;
//! let mut requests = vec![Request { tag: 7, device, offset: 0, op: Op::Read(Buf::anonymous(4096)?) }];
//! driver.submit(&mut requests);
//!
//! let mut done: Vec<Completion> = Vec::new();
//! while done.is_empty() {
//!     driver.reap(None, &mut done)?;
//! }
//! assert_eq!(done[0].tag, 7);
//! assert!(done[0].result.is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate knows descriptors, rings, alignment and queue depth. It knows nothing of names,
//! shapes, tasks or caches.
//!
//! Buffers move: a [`Request`] takes its [`Buf`] and the [`Completion`] returns it. Memory is freed
//! only when its last piece is dropped, and a driver waits for the requests in flight before it
//! drops its pieces; so no safe program can free memory under a running transfer.
//!
//! `unsafe` is in four files: `memory.rs` (pieces of memory), `heap.rs` (an allocator), `uring.rs`
//! (memory that the kernel uses) and `linux.rs` (system calls that no safe crate offers).

mod choice;
mod device;
mod driver;
mod error;
mod faulty;
mod file;
#[cfg(target_os = "linux")]
mod flights;
mod heap;
#[cfg(target_os = "linux")]
mod linux;
mod lock;
mod memory;
mod ram;
mod request;
mod threads;
mod transfer;
#[cfg(target_os = "linux")]
mod uring;

pub use choice::{Choice, driver, driver_with};
pub use device::{Blocking, Device, Limits, Route};
pub use driver::{Driver, DriverInfo, Options, Waker};
pub use error::{DeviceError, OpKind};
pub use faulty::{Event, Fault, Faults, Faulty};
pub use file::{FileDevice, Mode, open_file};
pub use heap::Heap;
pub use lock::{Locked, PANICKED};
pub use memory::{Anchor, Buf, Memory, Shared, Whole};
pub use ram::MemoryDevice;
pub use request::{Completion, Op, Request};
pub use transfer::{discard_now, flush_now, read_now, write_now};

/// Returns freed heap memory to the system where an allocator would keep it.
pub fn trim_heap() {
    #[cfg(target_os = "linux")]
    linux::trim_heap();
}
