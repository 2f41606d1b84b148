//! What has happened to the blocks of a ring, as seen by one rank; what may happen next.

use super::RingShape;

/// Counters of rounds: each says that it is so of all rounds before.
///
/// ```
/// use outcore_core::ring::{Flow, RingShape};
///
/// let mut flow = Flow::new(RingShape { ranks: 2, rounds: 4, slots: 2, slot_bytes: 64 });
/// flow.fill();
/// assert_eq!((flow.is_here(0), flow.next_to_send(), flow.next_to_arrive()), (true, Some(0), Some(1)));
/// flow.send();
/// flow.compute(1);
/// flow.arrive(2);
/// assert_eq!((flow.released(), flow.is_free(2), flow.arrived(), flow.next_to_send()), (1, true, 2, None));
/// assert!(flow.is_here(1) && !flow.is_done());
/// # assert_eq!(flow.shape().slots, 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    shape: RingShape,
    /// Own blocks that were filled.
    filled: u64,
    /// Rounds whose blocks came from the left.
    arrived: u64,
    /// Rounds whose blocks went on, or need not.
    sent: u64,
    /// Rounds that were computed with.
    computed: u64,
}

impl Flow {
    /// Before all rounds.
    pub fn new(shape: RingShape) -> Flow {
        assert!(
            shape.slots >= 2,
            "a block is computed with while another comes"
        );
        let mut flow = Flow {
            shape,
            filled: 0,
            arrived: 0,
            sent: 0,
            computed: 0,
        };
        flow.pass_what_stays();
        flow
    }

    /// Whose flow it is.
    pub fn shape(&self) -> RingShape {
        self.shape
    }

    /// Rounds that are over: their slots are free.
    pub fn released(&self) -> u64 {
        self.computed.min(self.sent)
    }

    /// Rounds that came from the left so far.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Whether the block of a round is in its slot.
    pub fn is_here(&self, round: u64) -> bool {
        match self.shape.is_own(round) {
            true => round / (self.shape.ranks as u64) < self.filled,
            false => round < self.arrived,
        }
    }

    /// Whether the slot of a round has been left by the block that was there before.
    pub fn is_free(&self, round: u64) -> bool {
        round < self.released() + self.shape.slots as u64
    }

    /// The round whose block is the next to go on, if it is here.
    pub fn next_to_send(&self) -> Option<u64> {
        (self.sent < self.shape.rounds && self.is_here(self.sent)).then_some(self.sent)
    }

    /// The next round whose block comes from the left, if its slot is free.
    pub fn next_to_arrive(&self) -> Option<u64> {
        let next = self.arrived + u64::from(self.shape.is_own(self.arrived));
        (next < self.shape.rounds && !self.shape.is_own(next) && self.is_free(next)).then_some(next)
    }

    /// An own block has been filled.
    pub fn fill(&mut self) {
        self.filled += 1;
    }

    /// All blocks before this round that come from the left are here.
    pub fn arrive(&mut self, rounds: u64) {
        self.arrived = self.arrived.max(rounds);
    }

    /// The block that was next to go on has gone.
    pub fn send(&mut self) {
        self.sent += 1;
        self.pass_what_stays();
    }

    /// All rounds before this one have been computed with.
    pub fn compute(&mut self, rounds: u64) {
        self.computed = rounds;
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.released() == self.shape.rounds
    }

    fn pass_what_stays(&mut self) {
        while self.sent < self.shape.rounds && !self.shape.goes_on(self.sent) {
            self.sent += 1;
        }
    }
}
