//! Injected faults: every step of the store on the operating system passes through here first.
//!
//! A test names the step that fails, or a seed that chooses it; in production the hook is absent
//! and a step costs one branch. Faults of reads and writes are injected by the device crate; these
//! are the steps that only a store takes.

use std::fmt;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use outcore_device::Locked;

/// A step that the store takes on the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Open or create a file.
    Open,
    /// Take the lock of a writer.
    Lock,
    /// Query the free space.
    Space,
    /// Allocate the length of a new object.
    Allocate,
    /// Set the exact length.
    Truncate,
    /// Make a file's content durable.
    Sync,
    /// Rename an object to its name.
    Rename,
    /// Make the names in a folder durable.
    SyncFolder,
    /// Mark an object as being written, on the object itself.
    Mark,
    /// Mark it by a file beside it, if the file system has no extended attributes.
    MarkBeside,
    /// Clear the mark.
    Unmark,
    /// Remove a file.
    Remove,
    /// Hide a file of a new folder, or bring it back.
    SetAside,
}

type Hook = Box<dyn Fn(u64, Step) -> io::Result<()> + Send + Sync>;

/// The steps that fail, and a log of all steps.
#[derive(Default)]
pub struct Faults {
    hook: Option<Hook>,
    free_bytes: Option<u64>,
    taken: AtomicU64,
    log: Mutex<Vec<Step>>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Faults")
            .field("active", &self.hook.is_some())
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl Faults {
    /// No faults and no log: the default of every store.
    #[must_use]
    pub fn none() -> Faults {
        Faults::default()
    }

    /// Calls `hook` before every step, with its number from 0; an error makes the step fail.
    pub fn hook(hook: impl Fn(u64, Step) -> io::Result<()> + Send + Sync + 'static) -> Faults {
        Faults {
            hook: Some(Box::new(hook)),
            ..Faults::default()
        }
    }

    /// No fault, but a log of the steps.
    #[must_use]
    pub fn logged() -> Faults {
        Faults::hook(|_, _| Ok(()))
    }

    /// The step number `failing`, counted from 0, fails with `kind`; all others succeed.
    #[must_use]
    pub fn fail_nth(failing: u64, kind: io::ErrorKind) -> Faults {
        Faults::hook(move |step, _| match step == failing {
            true => Err(kind.into()),
            false => Ok(()),
        })
    }

    /// Each step fails with a probability of 1 / `one_in`, reproducible from the seed.
    #[must_use]
    pub fn seeded(seed: u64, one_in: u64) -> Faults {
        Faults::hook(move |step, _| {
            let draw = mix(seed ^ mix(step));
            match draw.is_multiple_of(one_in.max(1)) {
                true if draw & (1 << 40) == 0 => Err(io::ErrorKind::StorageFull.into()),
                true => Err(io::Error::other("seeded fault")),
                false => Ok(()),
            }
        })
    }

    /// The file system claims to have this many bytes free.
    #[must_use]
    pub fn with_free_bytes(mut self, free_bytes: u64) -> Faults {
        self.free_bytes = Some(free_bytes);
        self
    }

    /// The steps so far, including failed ones. Empty for [`Faults::none`].
    pub fn log(&self) -> Vec<Step> {
        self.log.locked().clone()
    }

    pub(crate) fn step(&self, step: Step) -> io::Result<()> {
        let Some(hook) = &self.hook else {
            return Ok(());
        };
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        self.log.locked().push(step);
        hook(number, step)
    }

    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.free_bytes
    }
}

/// The finalizer of splitmix64: all bits of the result depend on all bits of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(faults: &Faults) -> Vec<bool> {
        (0..200)
            .map(|_| faults.step(Step::Sync).is_ok())
            .collect::<Vec<_>>()
    }

    #[test]
    fn a_seed_replays_its_faults() {
        let first = outcomes(&Faults::seeded(7, 5));
        assert_eq!(first, outcomes(&Faults::seeded(7, 5)));
        assert_ne!(first, outcomes(&Faults::seeded(8, 5)));
        let failed = first.iter().filter(|ok| !**ok).count();
        assert!((10..90).contains(&failed), "{failed} of 200 failed");
    }

    #[test]
    fn exactly_the_nth_step_fails() {
        let faults = Faults::fail_nth(2, io::ErrorKind::StorageFull);
        let failed: Vec<usize> = outcomes(&faults)
            .iter()
            .enumerate()
            .filter_map(|(step, ok)| (!ok).then_some(step))
            .collect();
        assert_eq!(failed, [2]);
        assert_eq!(faults.log().len(), 200);
    }
}
