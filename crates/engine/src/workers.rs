//! The compute threads: whoever has a job gives it to the next that is free.

use std::thread::JoinHandle;

use crossbeam_channel::Sender;

type Job = Box<dyn FnOnce(usize) + Send>;

thread_local! {
    static IN_TASK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether this is a compute thread: what it waits for must not wait for it.
pub(crate) fn in_task() -> bool {
    IN_TASK.get()
}

/// The compute threads.
pub(crate) struct Workers {
    sender: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn new(count: usize) -> std::io::Result<Workers> {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        let spawn = |index: usize| {
            let receiver = receiver.clone();
            let work = move || {
                IN_TASK.set(true);
                receiver.iter().for_each(|job| job(index));
            };
            std::thread::Builder::new().name(format!("outcore-core-{index}")).spawn(work)
        };
        let threads = (0..count).map(spawn).collect::<std::io::Result<_>>()?;
        Ok(Workers { sender: Some(sender), threads })
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Runs a job on a free thread; it learns the thread's index.
    pub(crate) fn run(&self, job: impl FnOnce(usize) + Send + 'static) {
        let sender = self.sender.as_ref().expect("open until dropped");
        let _ = sender.send(Box::new(job));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.sender = None;
        let this = std::thread::current().id();
        self.threads.drain(..).filter(|thread| thread.thread().id() != this).for_each(|thread| _ = thread.join());
    }
}
