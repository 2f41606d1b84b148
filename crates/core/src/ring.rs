//! A ring of ranks: blocks go round it, so that every rank sees the blocks of all.
//!
//! Of P ranks, the block of round t began at the rank that is h = t mod P places to the left. A rank puts a
//! block of its own into a slot where h = 0; else it finds there what its left neighbour sent on.
//!
//! ```text
//!   round        0      1      2      3      4      5          P = 3, two blocks a rank
//!   rank 0      a0     c0     b0     a1     c1     b1
//!   rank 1      b0     a0     c0     b1     a1     c1          a block goes on to the right
//!   rank 2      c0     b0     a0     c1     b1     a1          until all have seen it
//!   slot         0      1      2      0      1      2          of a ring with three slots
//! ```
//!
//! A slot is free again when its block has been computed with, and has gone on. How blocks go on is the
//! ring's design; what is computed is the caller's.

mod blocking;
mod flow;
mod one_sided;
mod threads;

use std::sync::Arc;

use crate::error::Result;
use crate::ranks::Ranks;

pub use blocking::{BlockingRing, HeapSlot, Messages};
pub use flow::Flow;
pub use one_sided::{OneSided, OneSidedRing, Words};
pub use threads::{ThreadRing, ThreadTeam};

/// Bytes at the beginning of a block: how many it has, these included.
pub const BLOCK_LENGTH_BYTES: usize = 8;

/// The memory of a slot. It is lent to one side at a time by the rounds that [`Ring`] tells of.
pub trait Slot: Send + Sync {
    /// Looks at it.
    fn read(&self, look: &mut dyn FnMut(&[u8]));
    /// Changes it.
    fn write(&self, change: &mut dyn FnMut(&mut [u8]));
}

/// What a ring has.
///
/// ```
/// use outcore_core::ring::RingShape;
///
/// let shape = RingShape { ranks: 3, rounds: 6, slots: 2, slot_bytes: 1 << 20 };
/// assert!(shape.is_own(3) && !shape.is_own(4));
/// assert!(shape.goes_on(4) && !shape.goes_on(5));
/// assert_eq!(shape.slot(5), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Ranks of the ring.
    pub ranks: usize,
    /// Rounds: as many for each block as there are ranks.
    pub rounds: u64,
    /// Blocks that a rank has room for, two at least.
    pub slots: usize,
    /// Bytes of a slot, a multiple of eight.
    pub slot_bytes: usize,
}

impl RingShape {
    /// Whether a rank's own block is seen first in this round.
    pub fn is_own(&self, round: u64) -> bool {
        round.is_multiple_of(self.ranks as u64)
    }

    /// Whether its block goes on to the right.
    pub fn goes_on(&self, round: u64) -> bool {
        !self.is_own(round + 1)
    }

    /// Where its block is.
    pub fn slot(&self, round: u64) -> usize {
        (round % self.slots as u64) as usize
    }
}

/// One rank's end of a ring. None of its calls but [`close`](Ring::close) waits for other ranks, except where a
/// design is to.
///
/// ```
/// use outcore_core::ranks::{Ranks, ThreadRanks};
/// use outcore_core::ring::{BlockingRing, RingShape, see_all};
///
/// // Each of three ranks has a block with its own number; all see all.
/// let threads: Vec<_> = ThreadRanks::new(3)
///     .into_iter()
///     .map(|ranks| std::thread::spawn(move || {
///         let own = ranks.rank() as u64;
///         let shape = RingShape { ranks: 3, rounds: 3, slots: 2, slot_bytes: 64 };
///         let ring = BlockingRing::new(std::sync::Arc::new(ranks), shape);
///         let mut seen = Vec::new();
///         see_all(&ring, &mut |block| block[8..16].copy_from_slice(&own.to_le_bytes()), &mut |block| seen.push(block[8]))
///             .map(|()| { seen.sort(); seen })
///     }))
///     .collect();
/// for thread in threads {
///     assert_eq!(thread.join().unwrap()?, [0, 1, 2]);
/// }
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub trait Ring: Send + Sync {
    /// What it has.
    fn shape(&self) -> RingShape;

    /// The memory of the slot of a round.
    fn slot(&self, round: u64) -> Arc<dyn Slot>;

    /// Whether the slot of an own block may be filled.
    fn is_free(&self, round: u64) -> Result<bool>;

    /// An own block is in its slot, its length first.
    fn filled(&self, round: u64) -> Result<()>;

    /// Whether the block of a round is here. Moves what can be moved, as does each of these calls.
    fn is_here(&self, round: u64) -> Result<bool>;

    /// Nothing is computed with the block of a round any more.
    fn finish(&self, round: u64) -> Result<()>;

    /// Whether all blocks have gone on.
    fn is_done(&self) -> Result<bool>;

    /// Waits for all ranks to be done. A ring that is dropped without is broken: no other can be made.
    fn close(&self) -> Result<()>;

    /// Bytes that this rank has sent on.
    fn bytes_sent(&self) -> u64;
}

/// Ranks that make rings. All ranks make the same ones, in the same order.
pub trait RingRanks: Ranks {
    /// The name of what moves blocks.
    fn design(&self) -> &str;

    /// Slots that a ring of this design should have.
    fn slots(&self) -> usize;

    /// Bytes that the slots of a ring may have together, where what moves them sets a limit.
    fn memory_bytes(&self) -> u64 {
        u64::MAX
    }

    /// A ring.
    fn ring(&self, shape: RingShape) -> Result<Arc<dyn Ring>>;
}

/// The length of the block in a slot.
///
/// ```
/// use outcore_core::ring::block_length;
///
/// let mut slot = [0; 64];
/// slot[0] = 24;
/// assert_eq!(block_length(&slot), 24);
/// ```
pub fn block_length(slot: &[u8]) -> usize {
    let mut length = [0; BLOCK_LENGTH_BYTES];
    length.copy_from_slice(&slot[..BLOCK_LENGTH_BYTES]);
    (u64::from_le_bytes(length) as usize).clamp(BLOCK_LENGTH_BYTES, slot.len())
}

/// Goes round a whole ring: `fill` fills a slot with the rank's own next block, `see` sees the block of each
/// round. Of the use for small things; a computation that overlaps calls the ring itself.
pub fn see_all(
    ring: &dyn Ring,
    fill: &mut dyn FnMut(&mut [u8]),
    see: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let shape = ring.shape();
    for round in 0..shape.rounds {
        if shape.is_own(round) {
            wait_until(|| ring.is_free(round))?;
            ring.slot(round).write(&mut |slot| {
                let length = slot.len() as u64;
                slot[..BLOCK_LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
                fill(slot);
            });
            ring.filled(round)?;
        }
        wait_until(|| ring.is_here(round))?;
        ring.slot(round)
            .read(&mut |slot| see(&slot[..block_length(slot)]));
        ring.finish(round)?;
    }
    wait_until(|| ring.is_done())?;
    ring.close()
}

/// Asks again and again, less often as time goes by.
///
/// ```
/// use outcore_core::ring::wait_until;
///
/// let mut asked = 0;
/// wait_until(|| {
///     asked += 1;
///     Ok(asked == 3)
/// })?;
/// assert_eq!(asked, 3);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub fn wait_until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut asked = 0_u32;
    while !is_so()? {
        asked += 1;
        match asked {
            0..200 => std::hint::spin_loop(),
            200..400 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ranks::ThreadRanks;

    /// Blocks that came to each rank, in order of the rounds, where `pause` says how slow a rank is.
    fn seen(
        rings: Vec<Arc<dyn Ring>>,
        pause: impl Fn(usize) -> Duration + Sync,
    ) -> Vec<Vec<[u64; 2]>> {
        let go_round = |rank: usize, ring: &dyn Ring| {
            let (mut own, mut seen) = (0, Vec::new());
            see_all(
                ring,
                &mut |slot| {
                    let words: &mut [u64] = bytemuck::cast_slice_mut(slot);
                    words[1..].fill(0);
                    (words[1], words[2]) = (rank as u64, own);
                    *words.last_mut().expect("it has eight") = rank as u64 + own;
                    own += 1;
                },
                &mut |block| {
                    std::thread::sleep(pause(rank));
                    let words: &[u64] = bytemuck::cast_slice(block);
                    assert_eq!(words.last(), Some(&(words[1] + words[2])));
                    seen.push([words[1], words[2]]);
                },
            )
            .expect("nothing fails");
            seen
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = rings
                .iter()
                .enumerate()
                .map(|(rank, ring)| scope.spawn(move || go_round(rank, &**ring)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|seen| seen.expect("it ended")).collect()
        })
    }

    fn every_shape(ring: impl Fn(RingShape) -> Vec<Arc<dyn Ring>>, slots: &[usize]) {
        for (ranks, blocks) in [(1, 3), (2, 1), (2, 3), (3, 2), (5, 4)] {
            for &slots in slots {
                let shape = RingShape {
                    ranks,
                    rounds: (ranks * blocks) as u64,
                    slots,
                    slot_bytes: 64,
                };
                for slow in [ranks, 0] {
                    let pause = |rank| Duration::from_millis(u64::from(rank == slow));
                    for (rank, seen) in seen(ring(shape), pause).into_iter().enumerate() {
                        let came = (0..shape.rounds).map(|round| {
                            let hop = (round % ranks as u64) as usize;
                            [((rank + ranks - hop) % ranks) as u64, round / ranks as u64]
                        });
                        assert!(seen.into_iter().eq(came), "{shape:?}, rank {rank}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_block_comes_to_every_rank_in_order() {
        let threads = |shape: RingShape| {
            let rings = ThreadRing::all(shape).into_iter();
            rings.map(|ring| Arc::new(ring) as Arc<dyn Ring>).collect()
        };
        every_shape(threads, &[2, 3, 4]);
        let messages = |shape: RingShape| {
            let ranks = ThreadRanks::new(shape.ranks).into_iter();
            let ring = |ranks| BlockingRing::new(Arc::new(ranks), shape);
            ranks
                .map(|ranks| Arc::new(ring(ranks)) as Arc<dyn Ring>)
                .collect()
        };
        every_shape(messages, &[2]);
    }
}
