//! A ring of ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use outcore_device::Locked;

use super::blocking::HeapSlot;
use super::{OneSided, OneSidedRing, Ring, RingRanks, RingShape, Slot, Words};
use crate::error::Result;
use crate::ranks::{Ranks, ThreadRanks};

/// Threads of one process that make rings.
pub struct ThreadTeam {
    ranks: ThreadRanks,
    made: AtomicU64,
    /// Ends of rings that others have made, by the number of the ring and the rank.
    rings: Arc<Mutex<Ends>>,
}

type Ends = HashMap<(u64, usize), OneSidedRing<ThreadRing>>;

/// As many slots as let a fast rank run ahead of a slow one.
const SLOTS: usize = 4;

impl ThreadTeam {
    /// One for each of `size` threads.
    ///
    /// ```
    /// use outcore_core::ring::{RingRanks, RingShape, ThreadTeam, see_all};
    ///
    /// let shape = RingShape { ranks: 2, rounds: 2, slots: 3, slot_bytes: 64 };
    /// let threads: Vec<_> = ThreadTeam::all(2)
    ///     .into_iter()
    ///     .map(|team| std::thread::spawn(move || see_all(&*team.ring(shape)?, &mut |_| (), &mut |_| ())))
    ///     .collect();
    /// for thread in threads {
    ///     thread.join().unwrap()?;
    /// }
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn all(size: usize) -> Vec<ThreadTeam> {
        let rings = Arc::<Mutex<Ends>>::default();
        let team = |ranks| ThreadTeam {
            ranks,
            made: AtomicU64::new(0),
            rings: Arc::clone(&rings),
        };
        ThreadRanks::new(size).into_iter().map(team).collect()
    }
}

impl Ranks for ThreadTeam {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.ranks.send(to, bytes)
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.ranks.receive(from, bytes)
    }
}

impl RingRanks for ThreadTeam {
    fn design(&self) -> &str {
        "threads"
    }

    fn slots(&self) -> usize {
        SLOTS
    }

    fn ring(&self, shape: RingShape) -> Result<Arc<dyn Ring>> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let mut rings = self.rings.locked();
        if !rings.contains_key(&(number, self.rank())) {
            let ends = ThreadRing::all(shape).into_iter().enumerate();
            rings.extend(ends.map(|(rank, end)| ((number, rank), end)));
        }
        let own = rings.remove(&(number, self.rank()));
        Ok(Arc::new(own.expect("the first made one for each")))
    }
}

/// What neighbours write into.
struct Shared {
    slots: Vec<Arc<HeapSlot>>,
    words: [AtomicU64; 3],
}

/// A rank's view of it.
pub struct ThreadRing {
    ranks: Arc<Vec<Shared>>,
    rank: usize,
    all: Arc<Barrier>,
}

impl ThreadRing {
    /// The ends of a ring, one for each rank.
    ///
    /// ```
    /// use outcore_core::ring::{RingShape, ThreadRing, see_all};
    ///
    /// let rings = ThreadRing::all(RingShape { ranks: 2, rounds: 4, slots: 3, slot_bytes: 64 });
    /// let threads: Vec<_> = rings
    ///     .into_iter()
    ///     .map(|ring| std::thread::spawn(move || see_all(&ring, &mut |_| (), &mut |_| ())))
    ///     .collect();
    /// for thread in threads {
    ///     thread.join().unwrap()?;
    /// }
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn all(shape: RingShape) -> Vec<OneSidedRing<ThreadRing>> {
        let shared = |_| Shared {
            slots: (0..shape.slots)
                .map(|_| Arc::new(HeapSlot::new(shape.slot_bytes)))
                .collect(),
            words: Default::default(),
        };
        let ranks = Arc::new((0..shape.ranks).map(shared).collect::<Vec<_>>());
        let all = Arc::new(Barrier::new(shape.ranks));
        (0..shape.ranks)
            .map(|rank| {
                let memory = ThreadRing {
                    ranks: Arc::clone(&ranks),
                    rank,
                    all: Arc::clone(&all),
                };
                OneSidedRing::new(shape, memory)
            })
            .collect()
    }

    fn neighbor(&self, distance: usize) -> &Shared {
        &self.ranks[(self.rank + distance) % self.ranks.len()]
    }
}

impl OneSided for ThreadRing {
    fn slot(&self, number: usize) -> Arc<dyn Slot> {
        let slot: &Arc<HeapSlot> = &self.ranks[self.rank].slots[number];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn put(&mut self, from: usize, to: usize, bytes: usize, arrived: u64) -> Result<()> {
        let right = self.neighbor(1);
        self.slot(from).read(&mut |source| {
            right.slots[to].write(&mut |into| into[..bytes].copy_from_slice(&source[..bytes]));
        });
        right.words[0].store(arrived, Ordering::Release);
        Ok(())
    }

    fn tell_left(&mut self, seen: u64, released: u64) -> Result<()> {
        let left = self.neighbor(self.ranks.len() - 1);
        left.words[1].store(seen, Ordering::Release);
        left.words[2].store(released, Ordering::Release);
        Ok(())
    }

    fn words(&mut self) -> Result<Words> {
        let [arrived, seen, released] =
            [0, 1, 2].map(|word: usize| self.ranks[self.rank].words[word].load(Ordering::Acquire));
        Ok(Words {
            arrived,
            seen,
            released,
        })
    }

    fn close(&mut self) -> Result<()> {
        self.all.wait();
        Ok(())
    }
}
