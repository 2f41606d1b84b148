//! Rings of two-sided messages, which move while computing goes on, or are waited for when it is over.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use outcore_core::Result;
use outcore_core::ring::{Flow, Ring, RingShape, Slot, block_length, wait_until};
use outcore_device::Locked;

use crate::library::{BLOCK_TAG, Handle, Mpi};
use crate::memory::RawSlot;

/// A ring of two-sided messages, each of which is begun as soon as its block and its slot allow, or, where it waits,
/// when both neighbours have computed.
pub(crate) struct OverlappedRing {
    shape: RingShape,
    waits: bool,
    slots: Vec<Arc<RawSlot>>,
    state: Mutex<State>,
    /// What the slots are in.
    _memory: Box<[u64]>,
}

struct State {
    mpi: &'static Mpi,
    communicator: Handle,
    neighbors: [c_int; 2],
    flow: Flow,
    /// Blocks of rounds from here on stay, and those of rounds after do not come.
    limit: u64,
    sending: Option<Handle>,
    /// With the round whose block comes.
    receiving: Option<(u64, Handle)>,
    bytes_sent: u64,
}

impl OverlappedRing {
    pub(crate) fn new(
        mpi: &'static Mpi,
        communicator: Handle,
        neighbors: [c_int; 2],
        shape: RingShape,
        waits: bool,
    ) -> OverlappedRing {
        let mut memory = vec![0_u64; shape.slots * shape.slot_bytes / 8].into_boxed_slice();
        OverlappedRing {
            shape,
            waits,
            // SAFETY: the memory stays where it is as long as the ring, which closes its slots before.
            slots: unsafe {
                RawSlot::several(memory.as_mut_ptr().cast(), shape.slots, shape.slot_bytes)
            },
            _memory: memory,
            state: Mutex::new(State {
                mpi,
                communicator,
                neighbors,
                flow: Flow::new(shape),
                limit: if waits { 0 } else { u64::MAX },
                sending: None,
                receiving: None,
                bytes_sent: 0,
            }),
        }
    }

    fn advanced(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        let mut state = self.state.locked();
        state.advance(&self.slots)?;
        Ok(state)
    }
}

impl State {
    fn advance(&mut self, slots: &[Arc<RawSlot>]) -> Result<()> {
        let (mpi, shape) = (self.mpi, self.flow.shape());
        if let Some((round, request)) = &mut self.receiving
            && mpi.test(request)?
        {
            let round = *round;
            self.receiving = None;
            self.flow.arrive(round + 1);
        }
        if let Some(request) = &mut self.sending
            && mpi.test(request)?
        {
            self.sending = None;
            self.flow.send();
        }
        let next = self
            .flow
            .next_to_arrive()
            .filter(|round| *round <= self.limit);
        if let (None, Some(round)) = (&self.receiving, next) {
            let mut request = 0;
            // SAFETY: the slot is free, and nothing touches it before the message is there.
            let code = unsafe {
                (mpi.call.MPI_Irecv)(
                    slots[shape.slot(round)].start().cast(),
                    shape.slot_bytes as c_int,
                    mpi.byte,
                    self.neighbors[0],
                    BLOCK_TAG,
                    self.communicator,
                    &mut request,
                )
            };
            mpi.check(code)?;
            self.receiving = Some((round, request));
        }
        let next = self.flow.next_to_send().filter(|round| *round < self.limit);
        if let (None, Some(round)) = (&self.sending, next) {
            let (mut request, mut bytes) = (0, 0);
            let slot = &slots[shape.slot(round)];
            slot.read(&mut |slot| bytes = block_length(slot));
            // SAFETY: the slot is not free before its block has gone.
            let code = unsafe {
                (mpi.call.MPI_Isend)(
                    slot.start().cast(),
                    bytes as c_int,
                    mpi.byte,
                    self.neighbors[1],
                    BLOCK_TAG,
                    self.communicator,
                    &mut request,
                )
            };
            mpi.check(code)?;
            self.sending = Some(request);
            self.bytes_sent += bytes as u64;
        }
        Ok(())
    }
}

impl Ring for OverlappedRing {
    fn shape(&self) -> RingShape {
        self.shape
    }

    fn slot(&self, round: u64) -> Arc<dyn Slot> {
        let slot: &Arc<RawSlot> = &self.slots[self.shape.slot(round)];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn is_free(&self, round: u64) -> Result<bool> {
        Ok(self.advanced()?.flow.is_free(round))
    }

    fn filled(&self, _: u64) -> Result<()> {
        self.state.locked().flow.fill();
        self.advanced().map(|_| ())
    }

    fn is_here(&self, round: u64) -> Result<bool> {
        Ok(self.advanced()?.flow.is_here(round))
    }

    fn finish(&self, round: u64) -> Result<()> {
        self.state.locked().flow.compute(round + 1);
        if !self.waits || !self.shape.goes_on(round) {
            return self.advanced().map(|_| ());
        }
        self.state.locked().limit = round + 1;
        wait_until(|| {
            let state = self.advanced()?;
            Ok(state.flow.released() > round && state.flow.is_here(round + 1))
        })
    }

    fn is_done(&self) -> Result<bool> {
        Ok(self.advanced()?.flow.is_done())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        self.state.locked().bytes_sent
    }
}

impl Drop for OverlappedRing {
    fn drop(&mut self) {
        for slot in &self.slots {
            slot.close();
        }
        let state = self.state.locked();
        if state.sending.is_some() || state.receiving.is_some() {
            // A transfer that goes on has the memory; it is left to it.
            std::mem::forget(std::mem::take(&mut self._memory));
        }
    }
}
