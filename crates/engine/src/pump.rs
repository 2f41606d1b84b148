//! The engine's thread: it owns the driver, the frames and every activity, and waits in the driver.
//!
//! One loop: take messages, let activities act, submit, reap. Other threads send a message and wake
//! the driver; there is no other way in, so nothing here needs a lock.
//!
//! If the driver fails, the current activities end with its error; the engine goes on, and later
//! activities try the driver again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use outcore_device::{Completion, Device, Driver, DriverInfo, Locked, Op, Request, Waker};

use crate::error::{Error, Result};
use crate::extent_locks::ExtentLocks;
use crate::memory::{Budget, Memory};
use crate::reclaimable::PoolHandle;
use crate::workers::Workers;

/// A run, a stream or a gather in progress.
pub(crate) trait Activity: Send {
    /// Makes progress as far as possible without waiting. True when the activity has ended.
    fn advance(&mut self, core: &mut Core<'_>) -> bool;
    /// Handles the completion of one of its requests.
    fn complete(&mut self, core: &mut Core<'_>, token: u32, completion: Completion);
    /// A message from another thread.
    fn receive(&mut self, core: &mut Core<'_>, message: Box<dyn std::any::Any + Send>);
    /// Whether only a message can make it progress.
    fn is_asleep(&self) -> bool {
        false
    }
    /// The engine is closing: end with this error once no request is in flight.
    fn fail(&mut self, error: Error);
}

/// Resources of an activity while it acts.
pub(crate) struct Core<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) mailbox: &'a Mailbox,
    pub(crate) workers: &'a Workers,
    pub(crate) extent_locks: &'a mut ExtentLocks,
    requests: &'a mut Vec<Request>,
    withdrawn: &'a mut Vec<u32>,
}

impl Core<'_> {
    /// Cancels the requests of this activity that no device has started: they complete with an
    /// error.
    pub(crate) fn withdraw(&mut self) {
        self.withdrawn.push(self.mailbox.activity);
    }

    pub(crate) fn submit(&mut self, token: u32, device: &Arc<dyn Device>, offset: u64, op: Op) {
        let tag = u64::from(self.mailbox.activity) << 32 | u64::from(token);
        self.requests.push(Request {
            tag,
            device: Arc::clone(device),
            offset,
            op,
        });
    }
}

pub(crate) enum Message {
    Start(u32, Box<dyn Activity>),
    For(u32, Box<dyn std::any::Any + Send>),
    PoolHandle(PoolHandle),
    Poll,
    Close,
}

/// Address of one activity for messages from any thread.
#[derive(Clone)]
pub(crate) struct Mailbox {
    activity: u32,
    sender: Sender<Message>,
    waker: Waker,
}

impl Mailbox {
    /// Makes the pump advance every activity again, except the sleeping ones.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn send(&self, message: impl std::any::Any + Send) {
        if self
            .sender
            .send(Message::For(self.activity, Box::new(message)))
            .is_ok()
        {
            self.waker.wake();
        }
    }
}

/// The handle of the pump for other threads.
pub(crate) struct Handle {
    sender: Sender<Message>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    workers: Arc<Workers>,
    gauge: Arc<Gauge>,
    next: AtomicU32,
}

/// State of the engine's thread that other threads may read.
#[derive(Default)]
pub(crate) struct Gauge {
    activities: AtomicUsize,
    mapped_bytes: AtomicU64,
    registered_bytes: AtomicUsize,
    /// Set once it differs from that at the start.
    driver: Mutex<Option<DriverInfo>>,
}

impl Gauge {
    /// Description of the driver after it has fallen back to threads.
    pub(crate) fn driver(&self) -> Option<DriverInfo> {
        self.driver.locked().clone()
    }

    /// Whether an activity runs or waits to start. It is counted before it can fail to reserve
    /// memory.
    pub(crate) fn is_busy(&self) -> bool {
        self.activities.load(Ordering::SeqCst) > 0
    }

    /// Bytes of frames, used or not.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    /// Bytes registered with the driver.
    pub(crate) fn registered_bytes(&self) -> usize {
        self.registered_bytes.load(Ordering::Relaxed)
    }
}

impl Handle {
    pub(crate) fn new(driver: Box<dyn Driver>, budget: Budget, threads: usize) -> Result<Handle> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let waker = driver.waker();
        let mailbox = Mailbox {
            activity: 0,
            sender: sender.clone(),
            waker: waker.clone(),
        };
        let gauge = Arc::new(Gauge::default());
        // Started before the compute threads, since fewer of those suffice.
        let (hand_over, pump) = crossbeam_channel::bounded::<Pump>(1);
        let run = move || pump.iter().for_each(Pump::run);
        let refused = |source| Error::NoThread {
            what: "a thread for its engine".into(),
            source,
        };
        let thread = std::thread::Builder::new()
            .name("outcore-engine".into())
            .spawn(run)
            .map_err(refused)?;
        let compute = || {
            format!(
                "{threads} compute thread{}",
                if threads == 1 { "" } else { "s" }
            )
        };
        let workers = Arc::new(Workers::new(threads).map_err(|source| Error::NoThread {
            what: compute(),
            source,
        })?);
        let memory = Memory::new(budget);
        let pump = Pump {
            driver,
            extent_locks: ExtentLocks::new(memory.engine()),
            memory,
            workers: Arc::clone(&workers),
            gauge: Arc::clone(&gauge),
            receiver,
            mailbox,
            activities: BTreeMap::new(),
            asleep: BTreeMap::new(),
            closing: false,
            withdrawn: Vec::new(),
            has_fallen_back: false,
            trimmed: Instant::now(),
            is_resting: false,
        };
        let handed_over = hand_over.send(pump);
        assert!(handed_over.is_ok(), "the thread waits for it");
        Ok(Handle {
            sender,
            waker,
            thread: Some(thread),
            workers,
            gauge,
            next: 1.into(),
        })
    }

    /// The compute threads.
    pub(crate) fn workers(&self) -> Arc<Workers> {
        Arc::clone(&self.workers)
    }

    /// State of the engine's thread.
    pub(crate) fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    /// A mailbox for an activity that has yet to start.
    pub(crate) fn mailbox(&self) -> Mailbox {
        let activity = self.next.fetch_add(1, Ordering::Relaxed);
        Mailbox {
            activity,
            sender: self.sender.clone(),
            waker: self.waker.clone(),
        }
    }

    pub(crate) fn start(&self, mailbox: &Mailbox, activity: Box<dyn Activity>) -> Result<()> {
        self.sender
            .send(Message::Start(mailbox.activity, activity))
            .map_err(|_| Error::Closed)?;
        self.waker.wake();
        Ok(())
    }

    /// Adds a reclaimable pool.
    pub(crate) fn add_pool(&self, pool: PoolHandle) -> Result<()> {
        self.sender
            .send(Message::PoolHandle(pool))
            .map_err(|_| Error::Closed)
    }

    /// Makes the pump advance every activity again, except the sleeping ones.
    pub(crate) fn poller(&self) -> impl Fn() + Send + Sync + use<> {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        move || {
            let _ = sender.send(Message::Poll);
            waker.wake();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.sender.send(Message::Close);
        self.waker.wake();
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

type Activities = BTreeMap<u32, (Mailbox, Box<dyn Activity>)>;

struct Pump {
    driver: Box<dyn Driver>,
    memory: Memory,
    extent_locks: ExtentLocks,
    workers: Arc<Workers>,
    gauge: Arc<Gauge>,
    receiver: Receiver<Message>,
    mailbox: Mailbox,
    /// In the order in which they began, which is the order in which activities get memory or locks
    /// that several wait for.
    activities: Activities,
    /// Those that are not advanced until a message arrives.
    asleep: Activities,
    closing: bool,
    /// Activities whose requests are to be cancelled.
    withdrawn: Vec<u32>,
    has_fallen_back: bool,
    /// When freed heap memory was last returned to the system.
    trimmed: Instant,
    is_resting: bool,
}

/// After this time without work an engine is idle, and returns its unused memory to the system.
const REST: Duration = Duration::from_millis(600);
/// Least time between two returns of freed heap memory, while runs end one after another.
const TRIM: Duration = Duration::from_millis(200);

/// Pause after a failure of the driver, before it is used again.
const PAUSE: Duration = Duration::from_millis(10);

impl Pump {
    fn run(mut self) {
        let (mut requests, mut completions) = (Vec::new(), Vec::new());
        loop {
            while let Ok(message) = self.receiver.try_recv() {
                self.receive(message, &mut requests);
            }
            self.advance(&mut requests);
            // Memory may have been reserved outside the engine since.
            self.memory.make_room(0);
            self.memory.fill_pools();
            if self.memory.register(&mut *self.driver) {
                self.gauge
                    .registered_bytes
                    .store(self.driver.info().registered_bytes, Ordering::Relaxed);
            }
            self.gauge
                .mapped_bytes
                .store(self.memory.mapped_bytes(), Ordering::Relaxed);
            if !requests.is_empty() {
                self.driver.submit(&mut requests);
            }
            if !self.withdrawn.is_empty() {
                let withdrawn = std::mem::take(&mut self.withdrawn);
                self.driver
                    .cancel(&|tag| withdrawn.contains(&((tag >> 32) as u32)));
            }
            if self.closing && self.activities.is_empty() && self.driver.in_flight() == 0 {
                return;
            }
            let wait = match (self.receiver.is_empty(), self.is_resting) {
                (false, _) => Some(Duration::ZERO),
                (true, false) => Some(REST),
                (true, true) => None,
            };
            let since = Instant::now();
            if let Err(source) = self.driver.reap(wait, &mut completions) {
                log::error!("the driver failed: {source}");
                self.fail_all(&Error::Device {
                    object: "driver".into(),
                    source,
                });
                std::thread::sleep(PAUSE);
            }
            if !self.has_fallen_back && self.driver.has_fallen_back() {
                self.has_fallen_back = true;
                *self.gauge.driver.locked() = Some(self.driver.info());
            }
            let is_quiet = completions.is_empty() && self.receiver.is_empty();
            match is_quiet && !self.is_resting && since.elapsed() >= REST {
                true => self.rest(),
                false => self.is_resting &= is_quiet,
            }
            for completion in completions.drain(..) {
                self.complete(completion, &mut requests);
            }
        }
    }

    fn rest(&mut self) {
        self.is_resting = true;
        self.memory.rest();
        outcore_device::trim_heap();
    }

    fn receive(&mut self, message: Message, requests: &mut Vec<Request>) {
        match message {
            Message::Start(id, mut activity) => {
                if self.closing {
                    activity.fail(Error::Closed);
                }
                let mailbox = Mailbox {
                    activity: id,
                    ..self.mailbox.clone()
                };
                self.activities.insert(id, (mailbox, activity));
                self.tell_number();
            }
            Message::For(id, message) => {
                self.activities.extend(self.asleep.remove_entry(&id));
                self.with(id, requests, |activity, core| {
                    activity.receive(core, message)
                });
            }
            Message::PoolHandle(pool) => self.memory.add_pool(pool),
            Message::Poll => {}
            Message::Close => self.close(),
        }
    }

    fn close(&mut self) {
        self.closing = true;
        self.fail_all(&Error::Closed);
    }

    /// Ends all activities.
    fn fail_all(&mut self, error: &Error) {
        self.activities.append(&mut self.asleep);
        self.activities
            .values_mut()
            .for_each(|(_, activity)| activity.fail(error.again()));
        self.withdrawn.extend(self.activities.keys());
    }

    fn advance(&mut self, requests: &mut Vec<Request>) {
        // Memory or locks that one activity releases may let another proceed.
        loop {
            let ids: Vec<u32> = self.activities.keys().copied().collect();
            let (mut ended, mut asleep) = (Vec::new(), Vec::new());
            for id in ids {
                self.with(id, requests, |activity, core| {
                    if activity.advance(core) {
                        ended.push(id);
                    } else if activity.is_asleep() {
                        asleep.push(id);
                    }
                });
            }
            self.asleep.extend(
                asleep
                    .iter()
                    .filter_map(|id| self.activities.remove_entry(id)),
            );
            let released = std::mem::take(&mut self.memory.released)
                | std::mem::take(&mut self.extent_locks.released);
            if ended.is_empty() && !released {
                return;
            }
            ended.iter().for_each(|id| _ = self.activities.remove(id));
            self.tell_number();
            if self.trimmed.elapsed() >= TRIM {
                outcore_device::trim_heap();
                self.trimmed = Instant::now();
            }
        }
    }

    fn tell_number(&self) {
        self.gauge
            .activities
            .store(self.activities.len() + self.asleep.len(), Ordering::SeqCst);
    }

    fn complete(&mut self, completion: Completion, requests: &mut Vec<Request>) {
        let (id, token) = ((completion.tag >> 32) as u32, completion.tag as u32);
        self.with(id, requests, |activity, core| {
            activity.complete(core, token, completion)
        });
    }

    fn with(
        &mut self,
        id: u32,
        requests: &mut Vec<Request>,
        act: impl FnOnce(&mut dyn Activity, &mut Core<'_>),
    ) {
        let Some((mailbox, activity)) = self.activities.get_mut(&id) else {
            return;
        };
        let mut core = Core {
            memory: &mut self.memory,
            mailbox,
            workers: &self.workers,
            extent_locks: &mut self.extent_locks,
            requests,
            withdrawn: &mut self.withdrawn,
        };
        act(activity.as_mut(), &mut core);
    }
}
