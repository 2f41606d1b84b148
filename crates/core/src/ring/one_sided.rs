//! Rings in which a rank writes into the memory of its neighbours: blocks into the slots of the right one,
//! which takes no part in it, and words into both.
//!
//! To the right goes how many rounds have arrived there, after the blocks themselves. To the left goes how many
//! of them have been seen, so that the left's slot is free to be used, and how many are over, so that the left
//! may write into slots that were theirs. No round has a barrier: with more than two slots a rank that is fast runs
//! ahead of one that is slow.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;

use super::{Flow, Ring, RingShape, Slot, block_length};
use crate::error::Result;

/// What neighbours have written into a rank's memory: counts of rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// By the left: blocks before this round have been put here.
    pub arrived: u64,
    /// By the right: blocks before this round were seen there.
    pub seen: u64,
    /// By the right: rounds that are over there.
    pub released: u64,
}

/// Memory that neighbours write into.
pub trait OneSided: Send {
    /// A slot of this rank's.
    fn slot(&self, number: usize) -> Arc<dyn Slot>;

    /// Begins to copy the first bytes of a slot to a slot of the right neighbour. Once they are there, its word
    /// `arrived` becomes so much.
    fn put(&mut self, from: usize, to: usize, bytes: usize, arrived: u64) -> Result<()>;

    /// Writes the words of the left neighbour.
    fn tell_left(&mut self, seen: u64, released: u64) -> Result<()>;

    /// What the neighbours have written. Moves what can be moved.
    fn words(&mut self) -> Result<Words>;

    /// Waits for all ranks, then gives the memory back.
    fn close(&mut self) -> Result<()>;
}

/// A ring over such memory.
///
/// ```
/// use std::sync::Arc;
/// use outcore_core::Result;
/// use outcore_core::ring::{OneSided, OneSidedRing, Ring, RingShape, Slot, Words};
///
/// /// Of a rank that is alone, whose neighbours are itself.
/// struct Alone;
///
/// impl OneSided for Alone {
///     fn slot(&self, _: usize) -> Arc<dyn Slot> {
///         unreachable!("no block goes on")
///     }
///     fn put(&mut self, _: usize, _: usize, _: usize, _: u64) -> Result<()> {
///         unreachable!("no block goes on")
///     }
///     fn tell_left(&mut self, _: u64, _: u64) -> Result<()> {
///         Ok(())
///     }
///     fn words(&mut self) -> Result<Words> {
///         Ok(Words::default())
///     }
///     fn close(&mut self) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let ring = OneSidedRing::new(RingShape { ranks: 1, rounds: 1, slots: 2, slot_bytes: 64 }, Alone);
/// ring.filled(0)?;
/// assert!(ring.is_here(0)?);
/// ring.finish(0)?;
/// assert!(ring.is_done()?);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct OneSidedRing<M>(Mutex<State<M>>);

struct State<M> {
    flow: Flow,
    memory: M,
    is_sending: bool,
    told: [u64; 2],
    bytes_sent: u64,
}

impl<M: OneSided> OneSidedRing<M> {
    /// Before the first round.
    pub fn new(shape: RingShape, memory: M) -> OneSidedRing<M> {
        OneSidedRing(Mutex::new(State {
            flow: Flow::new(shape),
            memory,
            is_sending: false,
            told: [0, 0],
            bytes_sent: 0,
        }))
    }
}

impl<M: OneSided> State<M> {
    fn advance(&mut self) -> Result<()> {
        let words = self.memory.words()?;
        self.flow.arrive(words.arrived);
        let shape = self.flow.shape();
        while let Some(round) = self.flow.next_to_send() {
            let at_right = round + 1;
            if self.is_sending && words.seen <= at_right {
                break;
            }
            if self.is_sending {
                self.is_sending = false;
                self.flow.send();
                continue;
            }
            if at_right >= words.released + shape.slots as u64 {
                break;
            }
            let (from, to) = (shape.slot(round), shape.slot(at_right));
            let mut bytes = 0;
            self.memory
                .slot(from)
                .read(&mut |slot| bytes = block_length(slot));
            self.memory.put(from, to, bytes, at_right + 1)?;
            self.bytes_sent += bytes as u64;
            self.is_sending = true;
        }
        let told = [self.flow.arrived(), self.flow.released()];
        if told != self.told {
            self.memory.tell_left(told[0], told[1])?;
            self.told = told;
        }
        Ok(())
    }
}

impl<M: OneSided> Ring for OneSidedRing<M> {
    fn shape(&self) -> RingShape {
        self.0.locked().flow.shape()
    }

    fn slot(&self, round: u64) -> Arc<dyn Slot> {
        let state = self.0.locked();
        state.memory.slot(state.flow.shape().slot(round))
    }

    fn is_free(&self, round: u64) -> Result<bool> {
        let mut state = self.0.locked();
        state.advance()?;
        Ok(state.flow.is_free(round))
    }

    fn filled(&self, _: u64) -> Result<()> {
        let mut state = self.0.locked();
        state.flow.fill();
        state.advance()
    }

    fn is_here(&self, round: u64) -> Result<bool> {
        let mut state = self.0.locked();
        state.advance()?;
        Ok(state.flow.is_here(round))
    }

    fn finish(&self, round: u64) -> Result<()> {
        let mut state = self.0.locked();
        state.flow.compute(round + 1);
        state.advance()
    }

    fn is_done(&self) -> Result<bool> {
        let mut state = self.0.locked();
        state.advance()?;
        Ok(state.flow.is_done())
    }

    fn close(&self) -> Result<()> {
        self.0.locked().memory.close()
    }

    fn bytes_sent(&self) -> u64 {
        self.0.locked().bytes_sent
    }
}
