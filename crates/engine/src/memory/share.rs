//! What several budgets of one process may have together.
//!
//! The state is one word, process and pages, that is only ever replaced: a forked child has no
//! threads that could give a lock back which one of them held, and begins with nothing taken.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shares are whole pages of this size, so that they and a process number fit a word.
const PAGE: u64 = 4096;
/// Of the word, for pages: 4 PiB. Process numbers have 22 bits at most.
const PAGES_BITS: u32 = 40;
const PAGES_MAX: u64 = (1 << PAGES_BITS) - 1;

/// How many bytes the budgets of a process have taken together. How many they may take is said
/// each time, since it can change while the process runs.
#[derive(Debug, Default)]
pub struct Cap(AtomicU64);

impl Cap {
    /// Nothing is taken.
    pub const fn new() -> Cap {
        Cap(AtomicU64::new(0))
    }

    /// Bytes that are taken now, in this process.
    pub fn taken(&self) -> u64 {
        pages_of(self.0.load(Relaxed), std::process::id()) * PAGE
    }

    /// Takes a share, until the last clone of it is dropped: `choose` says how many bytes, of those
    /// that are taken already.
    ///
    /// # Errors
    /// What `choose` answers.
    pub fn take<E>(&'static self, choose: impl Fn(u64) -> Result<u64, E>) -> Result<Share, E> {
        let process = std::process::id();
        let mut word = self.0.load(Relaxed);
        loop {
            let taken = pages_of(word, process);
            let bytes = choose(taken * PAGE)?;
            let pages = bytes.div_ceil(PAGE).min(PAGES_MAX - taken);
            match self.swap(word, process, taken + pages) {
                Ok(()) => {
                    return Ok(Share(Arc::new(Held {
                        cap: self,
                        process,
                        bytes,
                        pages,
                    })));
                }
                Err(now) => word = now,
            }
        }
    }

    fn swap(&self, word: u64, process: u32, pages: u64) -> Result<(), u64> {
        let next = u64::from(process) << PAGES_BITS | pages;
        self.0
            .compare_exchange_weak(word, next, Relaxed, Relaxed)
            .map(drop)
    }

    fn give_back(&self, process: u32, pages: u64) {
        let mut word = self.0.load(Relaxed);
        // A child gives nothing back that its parent took.
        while word >> PAGES_BITS == u64::from(process) {
            let left = pages_of(word, process) - pages;
            match self.swap(word, process, left) {
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }
}

/// Pages that a process has taken; what a word says of another is not its own.
fn pages_of(word: u64, process: u32) -> u64 {
    match word >> PAGES_BITS == u64::from(process) {
        true => word & PAGES_MAX,
        false => 0,
    }
}

/// Bytes of a [`Cap`]; given back when the last clone is dropped.
#[derive(Clone)]
pub struct Share(Arc<Held>);

struct Held {
    cap: &'static Cap,
    process: u32,
    bytes: u64,
    pages: u64,
}

impl Share {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Share").field(&self.bytes()).finish()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.cap.give_back(self.process, self.pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use proptest::prelude::*;

    use super::*;

    fn cap() -> &'static Cap {
        Box::leak(Box::default())
    }

    /// As a session asks: for bytes that must be left of `most`.
    fn take(cap: &'static Cap, bytes: u64, most: u64) -> Result<Share, u64> {
        cap.take(|taken| match bytes <= most.saturating_sub(taken) {
            true => Ok(bytes),
            false => Err(taken),
        })
    }

    #[test]
    fn clones_are_one_share() {
        let cap = cap();
        let share = take(cap, 3 * PAGE, 4 * PAGE).unwrap();
        let clone = share.clone();
        drop(share);
        assert_eq!((clone.bytes(), cap.taken()), (3 * PAGE, 3 * PAGE));
        assert_eq!(take(cap, 2 * PAGE, 4 * PAGE).err(), Some(3 * PAGE));
        drop(clone);
        assert_eq!(cap.taken(), 0);
    }

    #[test]
    fn what_another_process_has_taken_is_not_counted_here() {
        let cap = cap();
        let other = u64::from(std::process::id() + 1) << PAGES_BITS | 7;
        cap.0.store(other, Relaxed);
        assert_eq!(cap.taken(), 0);
        let inherited = Share(Arc::new(Held {
            cap,
            process: std::process::id() + 1,
            bytes: 7 * PAGE,
            pages: 7,
        }));
        let own = take(cap, 2 * PAGE, 2 * PAGE).unwrap();
        drop(inherited);
        assert_eq!(cap.taken(), 2 * PAGE);
        drop(own);
        assert_eq!(cap.taken(), 0);
    }

    #[test]
    fn more_pages_than_a_word_counts_are_all_of_them() {
        let cap = cap();
        let all = take(cap, u64::MAX, u64::MAX).unwrap();
        let beyond = take(cap, PAGE, u64::MAX).unwrap();
        assert_eq!(cap.taken(), PAGES_MAX * PAGE);
        drop((all, beyond));
        assert_eq!(cap.taken(), 0);
    }

    #[test]
    fn threads_that_take_at_once_never_have_more_than_there_is() {
        const THREADS: u64 = 8;
        let (cap, barrier) = (cap(), Barrier::new(THREADS as usize));
        let most = 10 * PAGE;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let mut held = Vec::new();
                    for round in 0..2000 {
                        match take(cap, (1 + (thread + round) % 4) * PAGE, most) {
                            Ok(share) => held.push(share),
                            Err(taken) => assert!(taken <= most),
                        }
                        assert!(cap.taken() <= most);
                        if round % 3 == 0 {
                            held.clear();
                        }
                    }
                });
            }
        });
        assert_eq!(cap.taken(), 0);
    }

    proptest! {
        /// What is taken is the sum of the shares that there are, whatever order they go in.
        #[test]
        fn shares_are_taken_and_given_back(
            steps in proptest::collection::vec((1u64..100_000, any::<bool>(), any::<prop::sample::Index>()), 1..60),
        ) {
            const MOST: u64 = 300_000;
            let cap = cap();
            let mut held: Vec<Share> = Vec::new();
            for (bytes, gives_back, which) in steps {
                if gives_back && !held.is_empty() {
                    let at = which.index(held.len());
                    held.swap_remove(at);
                }
                let pages: u64 = held.iter().map(|share| share.bytes().div_ceil(PAGE)).sum();
                prop_assert_eq!(cap.taken(), pages * PAGE);
                match take(cap, bytes, MOST) {
                    Ok(share) => held.push(share),
                    Err(taken) => {
                        prop_assert_eq!(taken, pages * PAGE);
                        prop_assert!(taken + bytes > MOST);
                    }
                }
            }
        }
    }
}
