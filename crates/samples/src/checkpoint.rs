//! Checkpoints of a dataset that is being written, made beside its writer: a file system may take
//! seconds to make files durable, and nothing can stop it meanwhile.
//!
//! Samples go on being written while a thread makes those before them durable: whatever is behind
//! what a checkpoint counts is written over by the writer that goes on there. A writer that is
//! dropped leaves the thread alone, which then has the folder to itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outcore_core::staging::StagingFolder;
use outcore_core::{Error, Result};
use outcore_device::Locked;
use serde::Serialize;

/// Between two questions whether to go on waiting.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The folder where a dataset grows, and the checkpoint that is being made in it.
pub(super) struct Checkpoints {
    home: Arc<Mutex<StagingFolder>>,
    /// Samples that the last complete checkpoint counts.
    durable: Arc<AtomicU64>,
    is_discarded: Arc<AtomicBool>,
    /// What becomes of the checkpoint that is being made.
    ending: Option<Receiver<Result<()>>>,
}

impl Checkpoints {
    /// Of a folder whose checkpoint counts this many samples.
    pub(super) fn new(home: StagingFolder, durable: u64) -> Checkpoints {
        Checkpoints {
            home: Arc::new(Mutex::new(home)),
            durable: Arc::new(durable.into()),
            is_discarded: Arc::default(),
            ending: None,
        }
    }

    /// The folder, once no checkpoint is being made in it.
    pub(super) fn home(&self) -> MutexGuard<'_, StagingFolder> {
        self.home.locked()
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// Begins one that counts `samples`, all of which have been handed to the file system. None is
    /// being made.
    pub(super) fn begin(&mut self, samples: u64, state: impl Serialize + Send + 'static) {
        assert!(self.ending.is_none(), "one checkpoint at a time");
        let (sender, ending) = std::sync::mpsc::channel();
        let (home, durable) = (Arc::clone(&self.home), Arc::clone(&self.durable));
        let is_discarded = Arc::clone(&self.is_discarded);
        let save = move || {
            let saved = save(&home.locked(), &state);
            if saved.is_ok() {
                durable.store(samples, Ordering::Relaxed);
            }
            // Before the writer hears of it, which may want the folder for itself.
            let_go(home, &is_discarded);
            _ = sender.send(saved);
        };
        self.ending = Some(ending);
        let save = Arc::new(Mutex::new(Some(save)));
        let theirs = Arc::clone(&save);
        let spawned = std::thread::Builder::new()
            .name("outcore-checkpoint".into())
            .spawn(move || once(&theirs));
        if spawned.is_err() {
            // No thread can be had: this one does it.
            once(&save);
        }
    }

    /// Whether none is being made, after `wait` at most.
    ///
    /// # Errors
    /// Those of the one that has ended.
    pub(super) fn have_ended(&mut self, wait: Duration) -> Result<bool> {
        let Some(ending) = &self.ending else {
            return Ok(true);
        };
        let ended = match ending.recv_timeout(wait) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Closed),
        };
        self.ending = None;
        ended.map(|()| true)
    }

    /// Waits until none is being made; `go_on` is asked every 20 ms.
    ///
    /// # Errors
    /// Those of the checkpoint; [`Error::Cancelled`] when `go_on` says no: it is still completed.
    pub(super) fn wait(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        while !self.have_ended(ASK_EVERY)? {
            if !go_on() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// The folder, once no checkpoint is being made in it.
    pub(super) fn into_home(mut self) -> StagingFolder {
        // An error of the checkpoint is that of its files, which whatever is done next meets too.
        let _ = self.wait(&mut || true);
        let home = Arc::into_inner(self.home).expect("only a checkpoint that is being made has it");
        home.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the folder and what is in it, at the end of a checkpoint that is being made.
    pub(super) fn discard(self) {
        self.is_discarded.store(true, Ordering::Relaxed);
        let_go(self.home, &self.is_discarded);
    }
}

fn save(home: &StagingFolder, state: &impl Serialize) -> Result<()> {
    home.folder.sync()?;
    home.save(state)
}

/// Whatever lets go of the folder last discards it, if it is to be discarded.
fn let_go(home: Arc<Mutex<StagingFolder>>, is_discarded: &AtomicBool) {
    if let Some(home) = Arc::into_inner(home)
        && is_discarded.load(Ordering::Relaxed)
    {
        let home = home.into_inner().unwrap_or_else(PoisonError::into_inner);
        home.folder.discard();
    }
}

fn once(act: &Mutex<Option<impl FnOnce()>>) {
    let act = act.locked().take();
    if let Some(act) = act {
        act();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use outcore_core::{Session, Settings};
    use serde::Serializer;

    use super::*;

    /// As long as a file system that takes its time.
    const SLOW: Duration = Duration::from_millis(700);

    struct Slow;

    impl Serialize for Slow {
        fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            std::thread::sleep(SLOW);
            serializer.serialize_u64(5)
        }
    }

    fn begun(folder: &Path) -> (Session, Checkpoints) {
        let session = Session::new(Settings {
            memory_bytes: Some(1 << 20),
            scratch: Some(folder.to_owned()),
            allow_tmpfs_scratch: true,
            ..Settings::default()
        })
        .expect("a budget is all it takes");
        let home = StagingFolder::claim(&session, &folder.join("data"), &["samples"]);
        let mut checkpoints = Checkpoints::new(home.expect("nothing is there"), 0);
        checkpoints.begin(5, Slow);
        (session, checkpoints)
    }

    /// What the next writer finds, once this one has let go of the folder.
    fn found_by_the_next(session: &Session, folder: &Path) -> Option<u64> {
        let until = Instant::now() + 20 * SLOW;
        loop {
            match StagingFolder::claim(session, &folder.join("data"), &["samples"]) {
                Ok(home) => return home.saved().expect("it can be read"),
                Err(_) if Instant::now() < until => std::thread::sleep(ASK_EVERY),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A writer waited for the file system, whatever its caller wanted meanwhile.
    #[test]
    fn a_wait_for_a_checkpoint_can_be_left_and_the_checkpoint_is_completed() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (session, mut checkpoints) = begun(folder.path());
        let begin = Instant::now();
        assert!(!checkpoints.have_ended(Duration::ZERO).unwrap());
        let left = checkpoints.wait(&mut || false);
        assert!(matches!(left, Err(Error::Cancelled)));
        drop(checkpoints);
        assert!(begin.elapsed() < SLOW, "nothing waits for the file system");
        assert_eq!(found_by_the_next(&session, folder.path()), Some(5));
    }

    #[test]
    fn what_was_made_counts_once_it_is_durable() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (_session, mut checkpoints) = begun(folder.path());
        assert_eq!(checkpoints.durable(), 0);
        checkpoints.wait(&mut || true).unwrap();
        assert_eq!(checkpoints.durable(), 5);
        assert!(checkpoints.into_home().is_saved());
    }

    #[test]
    fn what_is_discarded_meanwhile_is_gone_when_the_checkpoint_has_ended() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (session, checkpoints) = begun(folder.path());
        checkpoints.discard();
        assert_eq!(found_by_the_next(&session, folder.path()), None);
    }
}
