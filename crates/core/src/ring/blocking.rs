//! The ring of messages that are waited for: computing is over before blocks go on, and begins when they are there.

use std::sync::{Arc, Mutex, RwLock};

use outcore_device::Locked;

use super::{Flow, Ring, RingRanks, RingShape, Slot, block_length};
use crate::error::Result;
use crate::ranks::Ranks;

/// A slot in memory of this process.
///
/// ```
/// use outcore_core::ring::{HeapSlot, Slot};
///
/// let slot = HeapSlot::new(16);
/// slot.write(&mut |bytes| bytes[3] = 7);
/// assert_eq!(slot.with(|bytes| (bytes.len(), bytes[3])), (16, 7));
/// ```
pub struct HeapSlot(RwLock<Box<[u64]>>);

impl HeapSlot {
    /// A multiple of eight bytes, all zero.
    pub fn new(bytes: usize) -> HeapSlot {
        HeapSlot(RwLock::new(vec![0; bytes / 8].into_boxed_slice()))
    }

    /// What `look` makes of the bytes.
    pub fn with<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        look(bytemuck::cast_slice(
            &self.0.read().unwrap_or_else(|lock| lock.into_inner()),
        ))
    }
}

impl Slot for HeapSlot {
    fn read(&self, look: &mut dyn FnMut(&[u8])) {
        self.with(look);
    }

    fn write(&self, change: &mut dyn FnMut(&mut [u8])) {
        change(bytemuck::cast_slice_mut(
            &mut self.0.write().unwrap_or_else(|lock| lock.into_inner()),
        ));
    }
}

/// Any ranks as a ring, by their messages.
///
/// ```
/// use std::sync::Arc;
/// use outcore_core::ranks::ThreadRanks;
/// use outcore_core::ring::{Messages, RingRanks};
///
/// let alone = Messages(Arc::new(ThreadRanks::new(1).remove(0)));
/// assert_eq!((alone.design(), alone.slots()), ("messages", 2));
/// ```
pub struct Messages(pub Arc<dyn Ranks>);

impl Ranks for Messages {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.0.send(to, bytes)
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.receive(from, bytes)
    }
}

impl RingRanks for Messages {
    fn design(&self) -> &str {
        "messages"
    }

    fn slots(&self) -> usize {
        2
    }

    fn ring(&self, shape: RingShape) -> Result<Arc<dyn Ring>> {
        Ok(Arc::new(BlockingRing::new(Arc::clone(&self.0), shape)))
    }
}

/// A ring of any ranks, by their messages.
pub struct BlockingRing {
    ranks: Arc<dyn Ranks>,
    slots: Vec<Arc<HeapSlot>>,
    flow: Mutex<(Flow, u64)>,
}

impl BlockingRing {
    /// Before the first round.
    pub fn new(ranks: Arc<dyn Ranks>, shape: RingShape) -> BlockingRing {
        let slots = (0..shape.slots).map(|_| Arc::new(HeapSlot::new(shape.slot_bytes)));
        BlockingRing {
            ranks,
            slots: slots.collect(),
            flow: Mutex::new((Flow::new(shape), 0)),
        }
    }

    fn send(&self, round: u64) -> Result<()> {
        let right = (self.ranks.rank() + 1) % self.ranks.size();
        let (mut sent, mut bytes) = (Ok(()), 0);
        let shape = self.shape();
        self.slots[shape.slot(round)].read(&mut |slot| {
            bytes = block_length(slot);
            sent = self
                .ranks
                .send(right, &(bytes as u64).to_le_bytes())
                .and_then(|()| self.ranks.send(right, &slot[..bytes]));
        });
        let mut flow = self.flow.locked();
        flow.0.send();
        flow.1 += bytes as u64;
        sent
    }

    fn receive(&self, round: u64) -> Result<()> {
        let size = self.ranks.size();
        let left = (self.ranks.rank() + size - 1) % size;
        let mut received = Ok(());
        let shape = self.shape();
        self.slots[shape.slot(round)].write(&mut |slot| {
            let mut length = [0; 8];
            received = self.ranks.receive(left, &mut length).and_then(|()| {
                let bytes = (u64::from_le_bytes(length) as usize).min(slot.len());
                self.ranks.receive(left, &mut slot[..bytes])
            });
        });
        self.flow.locked().0.arrive(round + 1);
        received
    }
}

impl Ring for BlockingRing {
    fn shape(&self) -> RingShape {
        self.flow.locked().0.shape()
    }

    fn slot(&self, round: u64) -> Arc<dyn Slot> {
        let slot: &Arc<HeapSlot> = &self.slots[self.shape().slot(round)];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn is_free(&self, round: u64) -> Result<bool> {
        Ok(self.flow.locked().0.is_free(round))
    }

    fn filled(&self, _: u64) -> Result<()> {
        self.flow.locked().0.fill();
        Ok(())
    }

    fn is_here(&self, round: u64) -> Result<bool> {
        Ok(self.flow.locked().0.is_here(round))
    }

    /// Exchanges blocks with the neighbours. Every second rank receives first, so that not all wait to be received.
    fn finish(&self, round: u64) -> Result<()> {
        let shape = self.shape();
        self.flow.locked().0.compute(round + 1);
        if !shape.goes_on(round) || round + 1 >= shape.rounds {
            return Ok(());
        }
        match self.ranks.rank().is_multiple_of(2) {
            true => self.send(round).and_then(|()| self.receive(round + 1)),
            false => self.receive(round + 1).and_then(|()| self.send(round)),
        }
    }

    fn is_done(&self) -> Result<bool> {
        Ok(self.flow.locked().0.is_done())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.flow.locked().1
    }
}
