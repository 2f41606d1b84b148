//! Windows of MPI that neighbours put blocks and words into.
//!
//! ```text
//!   window of a rank:  arrived | seen | released | 0 ...  64 bytes, then the slots
//! ```

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outcore_core::Result;
use outcore_core::ranks::barrier;
use outcore_core::ring::{OneSided, RingShape, Slot, Words};

use crate::library::{Handle, Mpi};
use crate::memory::RawSlot;
use crate::world::MpiRanks;

/// Bytes before the slots.
pub(crate) const WORDS_BYTES: usize = 64;
/// Bytes of the words.
const WORD: isize = 8;

/// This rank's window, and the way to those of its neighbours.
pub(crate) struct Window {
    mpi: &'static Mpi,
    ranks: MpiRanks,
    shape: RingShape,
    window: Handle,
    base: *mut u8,
    slots: Vec<Arc<RawSlot>>,
    /// A block that is on its way, and what the word becomes then.
    putting: Option<(Handle, u64)>,
}

// SAFETY: the window is one of a library that takes calls from all threads; its memory is the process's.
unsafe impl Send for Window {}

impl Window {
    /// Every rank makes one.
    pub(crate) fn new(mpi: &'static Mpi, ranks: MpiRanks, shape: RingShape) -> Result<Window> {
        let bytes = WORDS_BYTES + shape.slots * shape.slot_bytes;
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
        let slots = unsafe {
            std::ptr::write_bytes(base, 0, WORDS_BYTES);
            RawSlot::several(base.add(WORDS_BYTES), shape.slots, shape.slot_bytes)
        };
        let own = Window {
            mpi,
            ranks,
            shape,
            window,
            base,
            slots,
            putting: None,
        };
        // SAFETY: the window is valid.
        mpi.check(unsafe { (mpi.call.MPI_Win_lock_all)(0, window) })?;
        // The words are zero everywhere before the first is put.
        barrier(&own.ranks)?;
        Ok(own)
    }

    fn word(&self, number: usize) -> u64 {
        // SAFETY: the words are at the beginning of the window, aligned.
        unsafe { &*self.base.cast::<AtomicU64>().add(number) }.load(Ordering::Acquire)
    }

    fn put_words(&self, to: c_int, first: isize, words: &[u64]) -> Result<()> {
        // SAFETY: the words are there until the flush returns; the window has them at this place.
        unsafe {
            let bytes = (words.len() * 8) as c_int;
            self.mpi.check((self.mpi.call.MPI_Put)(
                words.as_ptr().cast(),
                bytes,
                self.mpi.byte,
                to,
                first * WORD,
                bytes,
                self.mpi.byte,
                self.window,
            ))?;
            self.mpi
                .check((self.mpi.call.MPI_Win_flush)(to, self.window))
        }
    }
}

impl OneSided for Window {
    fn slot(&self, number: usize) -> Arc<dyn Slot> {
        let slot: &Arc<RawSlot> = &self.slots[number];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn put(&mut self, from: usize, to: usize, bytes: usize, arrived: u64) -> Result<()> {
        let mut request = 0;
        let place = WORDS_BYTES + to * self.shape.slot_bytes;
        // SAFETY: the slot keeps its block until the right neighbour has seen it; the place is a slot there.
        let code = unsafe {
            (self.mpi.call.MPI_Rput)(
                self.slots[from].start().cast(),
                bytes as c_int,
                self.mpi.byte,
                self.ranks.neighbors()[1],
                place as isize,
                bytes as c_int,
                self.mpi.byte,
                self.window,
                &mut request,
            )
        };
        self.mpi.check(code)?;
        self.putting = Some((request, arrived));
        Ok(())
    }

    fn tell_left(&mut self, seen: u64, released: u64) -> Result<()> {
        self.put_words(self.ranks.neighbors()[0], 1, &[seen, released])
    }

    fn words(&mut self) -> Result<Words> {
        self.ranks.progress()?;
        if let Some((request, arrived)) = &mut self.putting {
            let arrived = *arrived;
            if self.mpi.test(request)? {
                self.putting = None;
                // SAFETY: the window is valid.
                let code = unsafe {
                    (self.mpi.call.MPI_Win_flush)(self.ranks.neighbors()[1], self.window)
                };
                self.mpi.check(code)?;
                self.put_words(self.ranks.neighbors()[1], 0, &[arrived])?;
            }
        }
        // SAFETY: the window is valid.
        let code = unsafe { (self.mpi.call.MPI_Win_sync)(self.window) };
        self.mpi.check(code)?;
        Ok(Words {
            arrived: self.word(0),
            seen: self.word(1),
            released: self.word(2),
        })
    }

    fn close(&mut self) -> Result<()> {
        barrier(&self.ranks)?;
        for slot in &self.slots {
            slot.close();
        }
        // SAFETY: the window is valid, and is not used any more.
        unsafe {
            self.mpi
                .check((self.mpi.call.MPI_Win_unlock_all)(self.window))?;
            self.mpi
                .check((self.mpi.call.MPI_Win_free)(&mut self.window))
        }
    }
}
