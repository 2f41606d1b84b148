//! Look-ups on threads of their own, while the caller computes.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use outcore_core::{Error, Result};
use outcore_device::{Locked, PANICKED};
use outcore_engine::Event;

type Work = Box<dyn FnOnce() + Send>;

/// Threads that carry out what is submitted, in the order in which it is. They end with the pool.
pub(crate) struct Pool(Sender<Work>);

impl Pool {
    /// # Errors
    /// [`Error::Failed`] where the system has no thread.
    pub(crate) fn new(threads: usize) -> Result<Pool> {
        let (sender, receiver) = channel::<Work>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver: Arc<Mutex<Receiver<Work>>> = Arc::clone(&receiver);
            let run = move || {
                loop {
                    let next = receiver.locked().recv();
                    let Ok(work) = next else { return };
                    work();
                }
            };
            std::thread::Builder::new()
                .name("outcore-tables".into())
                .spawn(run)
                .map_err(|source| Error::Failed {
                    what: format!("the system has no thread for look-ups: {source}"),
                })?;
        }
        Ok(Pool(sender))
    }

    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let state = Arc::new(State {
            result: Mutex::new(None),
            filled: Condvar::new(),
            cancelled: AtomicBool::new(false),
            event: OnceLock::new(),
        });
        let of_work = Arc::clone(&state);
        let run = move || {
            let mut go_on = || !of_work.cancelled.load(Ordering::Relaxed);
            let result = match go_on() {
                true => catch_unwind(AssertUnwindSafe(|| work(&mut go_on))).unwrap_or_else(|_| {
                    let what = "a look-up panicked".into();
                    Err(Error::Failed { what })
                }),
                false => Err(Error::Cancelled),
            };
            let mut filled = of_work.result.locked();
            *filled = Some(result);
            of_work.filled.notify_all();
            if let Some(Some(event)) = of_work.event.get() {
                event.set(true);
            }
        };
        // The threads live as long as the sender.
        let _ = self.0.send(Box::new(run));
        Pending(state)
    }
}

struct State<T> {
    result: Mutex<Option<Result<T>>>,
    filled: Condvar,
    cancelled: AtomicBool,
    /// Created on first request, under the lock of the result.
    event: OnceLock<Option<Event>>,
}

/// A look-up in progress. Dropping it cancels it.
///
/// ```
/// # use outcore_core::{Session, Settings};
/// # use outcore_tables::*;
/// # fn main() -> outcore_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
/// # let path = folder.path().join("table");
/// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
/// # let table = Table::open(&session, &[path], &Opening::default())?;
/// # let set = TableSet::new(&session, vec![table], Serving::default())?;
/// use std::time::Duration;
///
/// let pending = set.submit(|set, _| Ok(set.len()))?;
/// assert!(pending.fd().is_some());
/// while !pending.wait_timeout(Duration::from_millis(50)) {}
/// assert_eq!(pending.wait()?, 1);
/// set.submit(|_, _| Ok(()))?.cancel();
/// # Ok(())
/// # }
/// ```
pub struct Pending<T>(Arc<State<T>>);

impl<T> Pending<T> {
    /// Waits for at most `timeout`; true if the result is there.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let result = self.0.result.locked();
        let waited = self
            .0
            .filled
            .wait_timeout_while(result, timeout, |result| result.is_none());
        waited.expect(PANICKED).0.is_some()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Those of the look-up.
    pub fn wait(self) -> Result<T> {
        let result = self.0.result.locked();
        let mut result = self
            .0
            .filled
            .wait_while(result, |result| result.is_none())
            .expect(PANICKED);
        result.take().unwrap_or(Err(Error::Cancelled))
    }

    /// A descriptor that becomes readable when the result is there; `None` if the system refused one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let result = self.0.result.locked();
        let made = || {
            let event = Event::new().ok()?;
            event.set(result.is_some());
            Some(event)
        };
        self.0.event.get_or_init(made).as_ref().map(Event::fd)
    }

    /// Ends the look-up within some 50 ms, with [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.cancel();
    }
}
