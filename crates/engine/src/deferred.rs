//! Tasks that an idle compute thread starts ahead of time. A task that no worker has started runs
//! on the thread that asks for its result.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outcore_device::{Locked, PANICKED};

use crate::engine::Engine;

enum State<I, T> {
    Waiting(I),
    Begun,
    Done(Result<T, Box<dyn Any + Send>>),
}

struct Between<I, T> {
    state: Mutex<State<I, T>>,
    done: Condvar,
}

/// A task that a worker may have started. Drop waits only if one has.
pub struct Deferred<I, T>(Option<Arc<Between<I, T>>>);

impl Engine {
    /// Queues a task. It must not block.
    pub fn defer<I: Send + 'static, T: Send + 'static>(
        &self,
        input: I,
        work: impl FnOnce(I) -> T + Send + 'static,
    ) -> Deferred<I, T> {
        let between = Arc::new(Between {
            state: Mutex::new(State::Waiting(input)),
            done: Condvar::new(),
        });
        if let Ok(workers) = self.with_handle(|handle, _| Ok(handle.workers())) {
            let between = Arc::clone(&between);
            workers.run(move |_| {
                if let Some(input) = between.take() {
                    let result = catch_unwind(AssertUnwindSafe(|| work(input)));
                    *between.state.locked() = State::Done(result);
                    between.done.notify_all();
                }
            });
        }
        Deferred(Some(between))
    }
}

impl<I, T> Between<I, T> {
    /// Takes the input; only the thread that starts the task gets it.
    fn take(&self) -> Option<I> {
        let mut state = self.state.locked();
        match std::mem::replace(&mut *state, State::Begun) {
            State::Waiting(input) => Some(input),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Waits for the result of a task that has been started.
    fn wait(&self) -> Result<T, Box<dyn Any + Send>> {
        let state = self.state.locked();
        let mut state = self
            .done
            .wait_while(state, |state| matches!(state, State::Begun))
            .expect(PANICKED);
        match std::mem::replace(&mut *state, State::Begun) {
            State::Done(result) => result,
            State::Waiting(_) | State::Begun => unreachable!("taken once, and waited for"),
        }
    }
}

impl<I, T> Deferred<I, T> {
    /// Waits for at most `timeout` for the worker that runs the task; true if none does.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let Some(between) = &self.0 else { return true };
        let state = between.state.locked();
        let is_begun = |state: &mut State<I, T>| matches!(state, State::Begun);
        !between
            .done
            .wait_timeout_while(state, timeout, is_begun)
            .expect(PANICKED)
            .1
            .timed_out()
    }

    /// The result, after waiting for the worker that runs it.
    ///
    /// # Errors
    /// The input, if no worker has started it.
    pub fn get(mut self) -> Result<T, I> {
        let between = self.0.take().expect("taken once");
        match between.take() {
            Some(input) => Err(input),
            None => Ok(between.wait().unwrap_or_else(|panic| resume_unwind(panic))),
        }
    }
}

impl<I, T> Drop for Deferred<I, T> {
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
    fn it_is_done_once_by_a_worker_or_the_caller() {
        let engine = Engine::new(Config {
            threads: 1,
            ..Config::default()
        });
        let (held, keep) = (Arc::new(()), Arc::new(Mutex::new(())));
        let all: Vec<Deferred<usize, usize>> = (0..100)
            .map(|number| engine.defer(number, |number| number))
            .collect();
        let busy = keep.lock().unwrap();
        let blocker = engine.defer(Arc::clone(&keep), |keep| drop(keep.lock()));
        let given_up = engine.defer(Arc::clone(&held), drop);
        assert!(
            all.into_iter()
                .enumerate()
                .all(|(number, early)| early.get().unwrap_or_else(|input| input) == number)
        );
        drop(given_up);
        assert_eq!(Arc::strong_count(&held), 1);
        drop(busy);
        let _ = blocker.get();
    }

    #[test]
    fn a_wait_for_the_result_has_a_timeout() {
        let engine = Engine::new(Config {
            threads: 1,
            ..Config::default()
        });
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        let early = engine.defer((), move |()| {
            begin.send(()).unwrap();
            ended.recv().unwrap();
            7
        });
        begun.recv().unwrap();
        assert!(!early.wait_timeout(Duration::from_millis(1)));
        end.send(()).unwrap();
        while !early.wait_timeout(Duration::from_secs(1)) {}
        assert_eq!(early.get(), Ok(7));
    }

    #[test]
    fn a_panic_is_raised_where_the_result_is_taken() {
        let engine = Engine::new(Config {
            threads: 1,
            ..Config::default()
        });
        let (begin, begun) = std::sync::mpsc::channel();
        let early: Deferred<(), ()> = engine.defer((), move |()| {
            begin.send(()).unwrap();
            panic!("on purpose")
        });
        begun.recv().unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| early.get())).is_err());
        assert_eq!(
            engine
                .defer(7, |number| number)
                .get()
                .unwrap_or_else(|input| input),
            7
        );
    }
}
