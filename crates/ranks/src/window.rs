//! Windows of MPI that neighbours get blocks out of.
//!
//! A message tells the right neighbour of a block. That one gets it into a slot of its own, and learns from its own
//! request when all of it is there. A put would have to be flushed before its target is told of it, and a flush does
//! not return before the target, which computes, has moved what there is to move.
//!
//! ```text
//!   to the right:  slot that has the block | slot for it | its bytes | rounds that have arrived with it
//!   to the left:   rounds seen | rounds released | 0 | 0
//!   at the end, to both: END | 0 | 0 | 0
//! ```

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use outcore_core::Result;
use outcore_core::ranks::barrier;
use outcore_core::ring::{OneSided, RingShape, Slot, Words, wait_until};

use crate::library::{Handle, LEFT_TAG, Mpi, RIGHT_TAG};
use crate::memory::RawSlot;
use crate::world::MpiRanks;

/// Words of a message.
type Note = [u64; 4];

/// The first word of the last message.
const END: u64 = u64::MAX;

/// This rank's window, and the way to those of its neighbours.
pub(crate) struct Window {
    mpi: &'static Mpi,
    ranks: MpiRanks,
    shape: RingShape,
    window: Handle,
    slots: Vec<Arc<RawSlot>>,
    /// Messages of the left neighbour, and of the right one.
    incoming: [Incoming; 2],
    /// Messages that are on their way.
    sent: Vec<(Handle, Box<Note>)>,
    /// A block that is on its way here, and the rounds that have arrived with it.
    getting: Option<(Handle, u64)>,
    words: Words,
}

/// The next message of a neighbour.
struct Incoming {
    from: c_int,
    tag: c_int,
    note: Box<Note>,
    /// None behind the last.
    request: Option<Handle>,
}

// SAFETY: the window is one of a library that takes calls from all threads; its memory is the process's.
unsafe impl Send for Window {}

impl Window {
    /// Every rank makes one.
    pub(crate) fn new(mpi: &'static Mpi, ranks: MpiRanks, shape: RingShape) -> Result<Window> {
        let bytes = shape.slots * shape.slot_bytes;
        let (mut base, mut window) = (std::ptr::null_mut::<u8>(), 0);
        // SAFETY: all ranks call it with as many bytes; a pointer and a handle are written.
        let code = unsafe {
            (mpi.call.MPI_Win_allocate)(
                bytes as isize,
                1,
                mpi.info_null,
                ranks.communicator(),
                &mut base,
                &mut window,
            )
        };
        mpi.check(code)?;
        // SAFETY: the window has as many bytes, until it is freed after its slots are closed.
        let slots = unsafe { RawSlot::several(base, shape.slots, shape.slot_bytes) };
        let [left, right] = ranks.neighbors();
        let incoming = [(left, RIGHT_TAG), (right, LEFT_TAG)].map(|(from, tag)| Incoming {
            from,
            tag,
            note: Box::default(),
            request: None,
        });
        let mut own = Window {
            mpi,
            ranks,
            shape,
            window,
            slots,
            incoming,
            sent: Vec::new(),
            getting: None,
            words: Words::default(),
        };
        // SAFETY: the window is valid.
        mpi.check(unsafe { (mpi.call.MPI_Win_lock_all)(0, window) })?;
        own.await_next(0)?;
        own.await_next(1)?;
        Ok(own)
    }

    fn send(&mut self, to: usize, tag: c_int, note: Note) -> Result<()> {
        let (mut request, note) = (0, Box::new(note));
        // SAFETY: the words stay where they are until the request has ended.
        let code = unsafe {
            (self.mpi.call.MPI_Isend)(
                note.as_ptr().cast(),
                size_of::<Note>() as c_int,
                self.mpi.byte,
                self.ranks.neighbors()[to],
                tag,
                self.ranks.communicator(),
                &mut request,
            )
        };
        self.mpi.check(code)?;
        self.sent.push((request, note));
        Ok(())
    }

    fn await_next(&mut self, side: usize) -> Result<()> {
        let (incoming, mut request) = (&mut self.incoming[side], 0);
        // SAFETY: the words stay where they are, and are not looked at, until the request has ended.
        let code = unsafe {
            (self.mpi.call.MPI_Irecv)(
                incoming.note.as_mut_ptr().cast(),
                size_of::<Note>() as c_int,
                self.mpi.byte,
                incoming.from,
                incoming.tag,
                self.ranks.communicator(),
                &mut request,
            )
        };
        self.mpi.check(code)?;
        incoming.request = Some(request);
        Ok(())
    }

    /// A message that is there; the next is awaited, unless it was the last.
    fn received(&mut self, side: usize) -> Result<Option<Note>> {
        let incoming = &mut self.incoming[side];
        let is_there = match &mut incoming.request {
            Some(request) => self.mpi.test(request)?,
            None => false,
        };
        if !is_there {
            return Ok(None);
        }
        incoming.request = None;
        let note = *incoming.note;
        if note[0] == END {
            return Ok(None);
        }
        self.await_next(side)?;
        Ok(Some(note))
    }

    fn get(&mut self, [from, to, bytes, arrived]: Note) -> Result<()> {
        let mut request = 0;
        // SAFETY: the slot is free here, and nothing touches it before the block is there; the left neighbour keeps
        // the block until it was seen.
        let code = unsafe {
            (self.mpi.call.MPI_Rget)(
                self.slots[to as usize].start().cast(),
                bytes as c_int,
                self.mpi.byte,
                self.ranks.neighbors()[0],
                from as isize * self.shape.slot_bytes as isize,
                bytes as c_int,
                self.mpi.byte,
                self.window,
                &mut request,
            )
        };
        self.mpi.check(code)?;
        self.getting = Some((request, arrived));
        Ok(())
    }

    /// Moves what can be moved.
    fn advance(&mut self) -> Result<()> {
        let mut sent = std::mem::take(&mut self.sent);
        for (mut request, note) in sent.drain(..) {
            if !self.mpi.test(&mut request)? {
                self.sent.push((request, note));
            }
        }
        if let Some((request, arrived)) = &mut self.getting
            && self.mpi.test(request)?
        {
            self.words.arrived = *arrived;
            self.getting = None;
        }
        if self.getting.is_none()
            && let Some(note) = self.received(0)?
        {
            self.get(note)?;
        }
        while let Some([seen, released, ..]) = self.received(1)? {
            (self.words.seen, self.words.released) = (seen, released);
        }
        Ok(())
    }
}

impl OneSided for Window {
    fn slot(&self, number: usize) -> Arc<dyn Slot> {
        let slot: &Arc<RawSlot> = &self.slots[number];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn put(&mut self, from: usize, to: usize, bytes: usize, arrived: u64) -> Result<()> {
        // What the process wrote is what others get: a window has one copy where caches are coherent (MPI 4.0, 12.4).
        // MPI_Win_sync would wait for a get that is on its way here in Open MPI 5, and two ranks for each other.
        fence(Ordering::SeqCst);
        self.send(
            1,
            RIGHT_TAG,
            [from as u64, to as u64, bytes as u64, arrived],
        )
    }

    fn tell_left(&mut self, seen: u64, released: u64) -> Result<()> {
        self.send(0, LEFT_TAG, [seen, released, 0, 0])
    }

    fn words(&mut self) -> Result<Words> {
        self.advance()?;
        Ok(self.words)
    }

    fn close(&mut self) -> Result<()> {
        self.send(1, RIGHT_TAG, [END, 0, 0, 0])?;
        self.send(0, LEFT_TAG, [END, 0, 0, 0])?;
        wait_until(|| {
            self.advance()?;
            let waits = self.incoming.iter().any(|side| side.request.is_some());
            Ok(!waits && self.sent.is_empty() && self.getting.is_none())
        })?;
        barrier(&self.ranks)?;
        for slot in &self.slots {
            slot.close();
        }
        // SAFETY: the window is valid.
        let unlocked = unsafe { (self.mpi.call.MPI_Win_unlock_all)(self.window) };
        self.mpi.check(unlocked)?;
        // To free it while another rank still flushes is a deadlock with UCX over TCP.
        barrier(&self.ranks)?;
        // SAFETY: the window is valid, and is not used any more.
        let freed = unsafe { (self.mpi.call.MPI_Win_free)(&mut self.window) };
        self.mpi.check(freed)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Messages that go on have their memory; it is left to them.
        for incoming in &mut self.incoming {
            if incoming.request.is_some() {
                std::mem::forget(std::mem::take(&mut incoming.note));
            }
        }
        std::mem::forget(std::mem::take(&mut self.sent));
    }
}
