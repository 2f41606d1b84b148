//! The compute threads: a queue of jobs that free threads take.

use std::thread::{Builder, JoinHandle};

use crossbeam_channel::Sender;

type Job = Box<dyn FnOnce(usize) + Send>;
type Spawn = dyn Fn(Builder, Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>;

/// Threads that are left to others if the system allows too few: one of a job, one for I/O, one of
/// the caller.
const SPARE: usize = 3;

thread_local! {
    static IN_TASK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether this is a compute thread: an activity that it waits for must not wait for it.
pub(crate) fn in_task() -> bool {
    IN_TASK.get()
}

/// The compute threads.
pub(crate) struct Workers {
    sender: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// `count` threads. If the system does not allow as many: at least one, and few enough that
    /// other code can start some.
    pub(crate) fn new(count: usize) -> std::io::Result<Workers> {
        Workers::spawned(count, &|builder, work| builder.spawn(work))
    }

    fn spawned(count: usize, spawn: &Spawn) -> std::io::Result<Workers> {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let receiver = receiver.clone();
            let work = move || {
                IN_TASK.set(true);
                receiver.iter().for_each(|job: Job| job(index));
            };
            match spawn(
                Builder::new().name(format!("outcore-core-{index}")),
                Box::new(work),
            ) {
                Ok(thread) => threads.push(thread),
                Err(error) if index == 0 => return Err(error),
                Err(error) => {
                    let fewer = index.saturating_sub(SPARE).max(1);
                    log::warn!(
                        "{fewer} compute threads in place of {count}: the system refused a further one: {error}"
                    );
                    drop(Workers {
                        sender: Some(sender),
                        threads,
                    });
                    return Workers::spawned(fewer, spawn);
                }
            }
        }
        Ok(Workers {
            sender: Some(sender),
            threads,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Runs a job on a free thread and passes it the index of the thread.
    pub(crate) fn run(&self, job: impl FnOnce(usize) + Send + 'static) {
        let sender = self.sender.as_ref().expect("open until dropped");
        let _ = sender.send(Box::new(job));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.sender = None;
        let this = std::thread::current().id();
        self.threads
            .drain(..)
            .filter(|thread| thread.thread().id() != this)
            .for_each(|thread| _ = thread.join());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Workers on a system that starts `most` threads at a time.
    fn on_a_system_with(most: usize) -> std::io::Result<Workers> {
        let living = Arc::new(AtomicUsize::new(0));
        Workers::spawned(8, &move |builder, work| {
            if living.fetch_add(1, Ordering::SeqCst) >= most {
                living.fetch_sub(1, Ordering::SeqCst);
                return Err(Error::from(ErrorKind::WouldBlock));
            }
            let living = Arc::clone(&living);
            builder.spawn(move || {
                work();
                living.fetch_sub(1, Ordering::SeqCst);
            })
        })
    }

    #[test]
    fn fewer_threads_do_all_the_work() {
        assert_eq!(on_a_system_with(8).unwrap().count(), 8);
        assert_eq!(on_a_system_with(2).unwrap().count(), 1);
        let workers = on_a_system_with(6).unwrap();
        assert_eq!(workers.count(), 3);
        let (sender, receiver) = crossbeam_channel::unbounded();
        for number in 0..20 {
            let sender = sender.clone();
            workers.run(move |_| sender.send(number).unwrap());
        }
        drop(sender);
        let mut done: Vec<i32> = receiver.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn without_any_thread_there_are_no_workers() {
        assert_eq!(
            on_a_system_with(0).err().map(|error| error.kind()),
            Some(ErrorKind::WouldBlock)
        );
    }
}
