//! Planning that can be left.
//!
//! A plan of very many tasks takes longer to make and to schedule than a caller wants to wait for
//! Ctrl-C. It is made on the thread that asks for it, so that thread says, once for everything that
//! is planned on it, how to find out that the plan is no longer wanted.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Between two questions: they may take a lock of the caller's.
const ASK_EVERY: Duration = Duration::from_millis(50);

struct Planning {
    stop: Box<dyn Fn() -> bool>,
    ask_at: Instant,
    is_stopped: bool,
}

thread_local! {
    static PLANNING: RefCell<Option<Planning>> = const { RefCell::new(None) };
}

/// Puts back what was there before, after a panic too.
struct Restore(Option<Planning>);

impl Drop for Restore {
    fn drop(&mut self) {
        PLANNING.set(self.0.take());
    }
}

/// Does `plan` on this thread; once `stop`, which is asked some times a second, says so, what is
/// planned there ends with [`Error::Cancelled`].
///
/// ```
/// use outcore_engine::{Config, Engine, Error, Plan, Task, go_on, plan_until};
///
/// let engine = Engine::new(Config { memory_bytes: 1 << 20, ..Config::default() });
/// let endless = || {
///     let mut plan = Plan::new("endless");
///     loop {
///         go_on()?;
///         plan.task(Task::new("one more"));
///     }
/// };
/// let planned: Result<(), Error> = plan_until(|| true, endless);
/// assert!(matches!(planned, Err(Error::Cancelled)));
/// assert!(go_on().is_ok());
/// ```
pub fn plan_until<T>(stop: impl Fn() -> bool + 'static, plan: impl FnOnce() -> T) -> T {
    let planning = Planning {
        stop: Box::new(stop),
        ask_at: Instant::now() + ASK_EVERY,
        is_stopped: false,
    };
    let _outer = Restore(PLANNING.replace(Some(planning)));
    plan()
}

/// Asked before each task of a plan that may have very many.
///
/// # Errors
/// [`Error::Cancelled`] when the plan that this thread makes is no longer wanted.
pub fn go_on() -> Result<()> {
    let now = Instant::now();
    let is_due = |planning: &mut Planning| planning.is_stopped || now >= planning.ask_at;
    let Some(mut planning) = PLANNING.with_borrow_mut(|planning| planning.take_if(is_due)) else {
        return Ok(());
    };
    // What is asked may itself plan, as a signal handler of Python's may.
    planning.is_stopped = planning.is_stopped || (planning.stop)();
    planning.ask_at = Instant::now() + ASK_EVERY;
    let is_stopped = planning.is_stopped;
    PLANNING.set(Some(planning));
    match is_stopped {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planning_ends_once_it_is_no_longer_wanted() {
        let wait = || {
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                go_on()?;
            }
            Ok::<_, Error>(())
        };
        assert!(matches!(plan_until(|| true, wait), Err(Error::Cancelled)));
        assert!(go_on().is_ok(), "what comes after is another plan");
    }

    #[test]
    fn an_inner_question_takes_the_place_of_the_outer_one_for_its_time() {
        let inner = || plan_until(|| false, || std::thread::sleep(2 * ASK_EVERY));
        let outer = || {
            inner();
            go_on()
        };
        assert!(matches!(plan_until(|| true, outer), Err(Error::Cancelled)));
    }
}
