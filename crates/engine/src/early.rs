//! Work that a compute thread does beforehand, if one has nothing else to do, and else whoever wants what comes of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};

use crate::engine::Engine;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

enum State<T> {
    Waiting(Work<T>),
    Begun,
    Done(Result<T, Box<dyn Any + Send>>),
}

struct Between<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

/// What comes of work that may have been done already. Dropped, it waits for a thread that is at it, and for nobody else.
pub struct Early<T>(Option<Arc<Between<T>>>);

impl Engine {
    /// Has work done soon. It must not wait for anything.
    pub fn early<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Early<T> {
        let between = Arc::new(Between { state: Mutex::new(State::Waiting(Box::new(work))), done: Condvar::new() });
        if let Ok(workers) = self.with_handle(|handle, _| Ok(handle.workers())) {
            let between = Arc::clone(&between);
            workers.run(move |_| {
                if let Some(work) = between.take() {
                    let result = catch_unwind(AssertUnwindSafe(work));
                    *between.state.lock().expect("no panic while held") = State::Done(result);
                    between.done.notify_all();
                }
            });
        }
        Early(Some(between))
    }
}

impl<T> Between<T> {
    /// The work, for whoever comes first.
    fn take(&self) -> Option<Work<T>> {
        let mut state = self.state.lock().expect("no panic while held");
        match std::mem::replace(&mut *state, State::Begun) {
            State::Waiting(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }

    /// What came of work that was begun.
    fn wait(&self) -> Result<T, Box<dyn Any + Send>> {
        let state = self.state.lock().expect("no panic while held");
        let mut state = self.done.wait_while(state, |state| matches!(state, State::Begun)).expect("no panic while held");
        match std::mem::replace(&mut *state, State::Begun) {
            State::Done(result) => result,
            State::Waiting(_) | State::Begun => unreachable!("taken once, and waited for"),
        }
    }
}

impl<T> Early<T> {
    /// What comes of it. Waits for a thread that is at it, or does it now.
    pub fn get(mut self) -> T {
        let between = self.0.take().expect("taken once");
        match between.take() {
            Some(work) => work(),
            None => between.wait().unwrap_or_else(|panic| resume_unwind(panic)),
        }
    }
}

impl<T> Drop for Early<T> {
    fn drop(&mut self) {
        if let Some(between) = self.0.take()
            && between.take().is_none()
        {
            let _ = between.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Config;

    #[test]
    fn it_is_done_once_whoever_does_it() {
        let engine = Engine::new(Config { threads: 1, ..Config::default() });
        let (held, keep) = (Arc::new(()), Arc::new(Mutex::new(())));
        let all: Vec<Early<usize>> = (0..100).map(|number| engine.early(move || number)).collect();
        let busy = keep.lock().unwrap();
        let blocker = engine.early({
            let keep = Arc::clone(&keep);
            move || drop(keep.lock())
        });
        let given_up = engine.early({
            let held = Arc::clone(&held);
            move || drop(held)
        });
        assert!(all.into_iter().enumerate().all(|(number, early)| early.get() == number));
        drop(given_up);
        assert_eq!(Arc::strong_count(&held), 1);
        drop(busy);
        blocker.get();
    }

    #[test]
    fn a_panic_is_of_whoever_wants_it() {
        let engine = Engine::new(Config::default());
        let early: Early<()> = engine.early(|| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(|| early.get())).is_err());
        assert_eq!(engine.early(|| 7).get(), 7);
    }
}
