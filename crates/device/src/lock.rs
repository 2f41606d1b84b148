//! Mutexes whose holders do not panic.

use std::sync::{Mutex, MutexGuard};

/// Why waiting for what a lock protects fails.
pub const PANICKED: &str = "a holder of the lock panicked";

/// A mutex that is locked without handling poison.
pub trait Locked<T: ?Sized> {
    /// Waits for the lock.
    ///
    /// # Panics
    /// When a thread has panicked while it held the lock: what it protects may then be in any
    /// state, and that is a bug of its holder.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T: ?Sized> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().expect(PANICKED)
    }
}
