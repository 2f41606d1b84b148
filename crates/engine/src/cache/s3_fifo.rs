//! S3-FIFO (Yang et al., SOSP 2023).
//!
//! A newcomer enters a small queue, a tenth of the slots, and is dropped from its end unless it was
//! wanted again; who was, or who returns soon after it was dropped (a ghost), enters the main
//! queue. One scan therefore displaces a tenth at most.

use super::Policy;
use super::ghosts::Ghosts;
use super::lists::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Slots of the small queue: a tenth of all, as in the paper.
const SMALL_SHARE: u64 = 10;
/// Wanted more often than this counts as this often: two bits.
const FREQUENCY_MAX: u8 = 3;
/// Beside the frequency: the slot is in the main queue.
const IN_MAIN: u8 = 4;

/// Three first-in first-out queues: small, main, and ghosts of what the small one dropped.
pub struct S3Fifo {
    queues: Lists<2>,
    /// Frequency and queue of each slot. A hit touches this byte and nothing else.
    states: Vec<u8>,
    /// What the ghost of a slot would be.
    tags: Vec<u32>,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For this many slots, all vacant.
    pub fn new(slots: u32) -> S3Fifo {
        let mut policy = S3Fifo {
            queues: Lists::new(0),
            states: Vec::new(),
            tags: Vec::new(),
            ghosts: Ghosts::default(),
        };
        policy.resize(slots);
        policy
    }

    /// The queue to evict from, if one has slots that were not passed over since it last changed.
    fn queue(&self, passed_over: [u32; 2]) -> Option<usize> {
        let [small, main] = [SMALL, MAIN].map(|queue| self.queues.len(queue));
        let small_is_full = u64::from(small) * SMALL_SHARE >= u64::from(self.queues.slots());
        match (passed_over[SMALL] < small, passed_over[MAIN] < main) {
            (true, main_is_open) if small_is_full || !main_is_open => Some(SMALL),
            (_, true) => Some(MAIN),
            _ => None,
        }
    }
}

impl Policy for S3Fifo {
    fn admitted(&mut self, slot: u32, key: u64) {
        let tag = Ghosts::tag(key);
        self.tags[slot as usize] = tag;
        let returns = self.ghosts.take(tag);
        self.states[slot as usize] = if returns { IN_MAIN } else { 0 };
        self.queues.push(if returns { MAIN } else { SMALL }, slot);
    }

    fn used(&mut self, slot: u32) {
        let state = &mut self.states[slot as usize];
        if *state & FREQUENCY_MAX < FREQUENCY_MAX {
            *state += 1;
        }
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut passed_over = [0; 2];
        loop {
            let queue = self.queue(passed_over)?;
            let slot = self.queues.first(queue)?;
            let state = &mut self.states[slot as usize];
            if *state & FREQUENCY_MAX > 0 {
                *state = if queue == MAIN { *state - 1 } else { IN_MAIN };
                self.queues.unlink(queue, slot);
                self.queues.push(MAIN, slot);
                passed_over[MAIN] = 0;
            } else if may_evict(slot) {
                if queue == SMALL {
                    self.ghosts.add(self.tags[slot as usize]);
                }
                self.queues.unlink(queue, slot);
                return Some(slot);
            } else {
                self.queues.renew(queue, slot);
                passed_over[queue] += 1;
            }
        }
    }

    fn removed(&mut self, slot: u32) {
        let queue = if self.states[slot as usize] & IN_MAIN == 0 {
            SMALL
        } else {
            MAIN
        };
        self.queues.unlink(queue, slot);
    }

    fn resize(&mut self, slots: u32) {
        for slot in slots..self.queues.slots() {
            if self.queues.is_linked(slot) {
                self.removed(slot);
            }
        }
        self.queues.resize(slots);
        self.states.resize(slots as usize, 0);
        self.tags.resize(slots as usize, 0);
        self.ghosts.resize(slots);
    }
}
