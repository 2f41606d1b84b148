//! A semaphore: how many look-ups of a set may read at a time.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outcore_core::{Error, Result};
use outcore_device::{Locked, PANICKED};

/// Of a set: permits that are free.
pub(crate) struct Readers {
    free: Mutex<usize>,
    changed: Condvar,
}

/// Gives the permit back when it is dropped.
pub(crate) struct Permit<'a>(&'a Readers);

impl Readers {
    pub(crate) fn new(permits: usize) -> Readers {
        Readers {
            free: Mutex::new(permits),
            changed: Condvar::new(),
        }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) fn acquire(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Permit<'_>> {
        let mut free = self.free.locked();
        while *free == 0 {
            free = wait_a_while(&self.changed, free, go_on)?;
        }
        *free -= 1;
        Ok(Permit(self))
    }
}

/// How often a caller that waits is asked whether to go on.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Waits until something has changed, or for a while, after which the caller is asked.
///
/// # Errors
/// [`Error::Cancelled`].
pub(crate) fn wait_a_while<'a, T>(
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<MutexGuard<'a, T>> {
    let (held, late) = changed.wait_timeout(held, CHECK_EVERY).expect(PANICKED);
    match late.timed_out() && !go_on() {
        true => Err(Error::Cancelled),
        false => Ok(held),
    }
}

/// The same question, which may be asked at every step: it is passed on that often.
pub(crate) fn now_and_then(go_on: &mut dyn FnMut() -> bool) -> impl FnMut() -> bool {
    let mut asked = Instant::now();
    move || {
        if asked.elapsed() < CHECK_EVERY {
            return true;
        }
        asked = Instant::now();
        go_on()
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.locked() += 1;
        self.0.changed.notify_one();
    }
}
