//! The ranks of an MPI communicator.

use std::ffi::c_int;
use std::sync::Arc;

use outcore_core::ranks::Ranks;
use outcore_core::ring::{OneSidedRing, Ring, RingRanks, RingShape, wait_until};
use outcore_core::{Error, Result};

use crate::library::{Handle, MESSAGE_TAG, Mpi};
use crate::overlapped::OverlappedRing;
use crate::shmem::{Heap, Shmem};
use crate::window::Window;

/// How blocks go round; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Messages, exchanged when computing is over.
    Mpi,
    /// Messages, while computing goes on.
    MpiOverlapped,
    /// Gets out of windows.
    MpiRma,
    /// Puts into the symmetric heap.
    OshOneWay,
    /// Copies of memory within a node, puts between nodes.
    OshMemcpy,
    /// The same, in a circular buffer.
    OshCircular,
}

impl Design {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Design); 6] = [
        ("mpi", Design::Mpi),
        ("mpi_o", Design::MpiOverlapped),
        ("mpi_rma", Design::MpiRma),
        ("osh_ow", Design::OshOneWay),
        ("osh_om", Design::OshMemcpy),
        ("osh_oc", Design::OshCircular),
    ];

    /// By its name.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn named(name: &str) -> Result<Design> {
        let found = Design::ALL.iter().find(|(own, _)| *own == name);
        found.map(|(_, design)| *design).ok_or_else(|| {
            let names = Design::ALL.map(|(name, _)| name).join(", ");
            Error::value(format!("there is no design {name:?}, but {names}"))
        })
    }

    fn name(self) -> &'static str {
        Design::ALL
            .iter()
            .find(|(_, own)| *own == self)
            .map_or("", |(name, _)| name)
    }

    fn slots(self) -> usize {
        match self {
            Design::MpiRma | Design::OshCircular => 4,
            _ => 2,
        }
    }

    fn takes_shmem(self) -> bool {
        matches!(
            self,
            Design::OshOneWay | Design::OshMemcpy | Design::OshCircular
        )
    }
}

/// The ranks of a communicator.
#[derive(Clone)]
pub struct MpiRanks {
    mpi: &'static Mpi,
    communicator: Handle,
    rank: usize,
    size: usize,
    design: Design,
    shmem: Option<&'static Shmem>,
}

impl MpiRanks {
    /// All processes that the launcher has started. `heap_bytes` is for the symmetric heap, where the design has one,
    /// and is to be the same on all ranks.
    ///
    /// # Errors
    /// [`Error::Failed`] where there is no library, or one of another binary interface; [`Error::Value`] where it was
    /// begun without threads.
    pub fn world(design: Design, heap_bytes: u64) -> Result<MpiRanks> {
        crate::shmem::prepare(heap_bytes);
        if design.takes_shmem() {
            // It begins MPI too.
            Shmem::get()?;
        }
        let mpi = Mpi::get()?;
        MpiRanks::new(mpi, mpi.world, design)
    }

    /// Those of a communicator, by its Fortran handle. OpenSHMEM has all processes of the launcher, so its designs
    /// need a communicator of these.
    ///
    /// # Errors
    /// As of [`world`](MpiRanks::world).
    pub fn of_communicator(fortran: i32, design: Design, heap_bytes: u64) -> Result<MpiRanks> {
        crate::shmem::prepare(heap_bytes);
        let mpi = Mpi::get()?;
        MpiRanks::new(mpi, mpi.communicator(fortran), design)
    }

    fn new(mpi: &'static Mpi, communicator: Handle, design: Design) -> Result<MpiRanks> {
        let communicator = mpi.duplicate(communicator)?;
        let (mut rank, mut size, mut compared) = (0, 0, 0);
        // SAFETY: the communicators are valid, and each writes one number.
        unsafe {
            mpi.check((mpi.call.MPI_Comm_rank)(communicator, &mut rank))?;
            mpi.check((mpi.call.MPI_Comm_size)(communicator, &mut size))?;
            mpi.check((mpi.call.MPI_Comm_compare)(
                communicator,
                mpi.world,
                &mut compared,
            ))?;
        }
        const CONGRUENT: c_int = 1;
        if design.takes_shmem() && compared > CONGRUENT {
            return Err(Error::value(format!(
                "design {:?} needs a communicator of all processes: OpenSHMEM knows no parts of them; take mpi_rma",
                design.name()
            )));
        }
        Ok(MpiRanks {
            shmem: design.takes_shmem().then(Shmem::get).transpose()?,
            mpi,
            communicator,
            rank: rank as usize,
            size: size as usize,
            design,
        })
    }

    /// Ends all processes, since this one cannot go on.
    pub fn abort(&self) {
        // SAFETY: the communicator is valid; the call does not return.
        unsafe { (self.mpi.call.MPI_Abort)(self.communicator, 1) };
    }

    pub(crate) fn communicator(&self) -> Handle {
        self.communicator
    }

    /// The ranks to the left and to the right in a ring.
    pub(crate) fn neighbors(&self) -> [c_int; 2] {
        let (rank, size) = (self.rank, self.size);
        [(rank + size - 1) % size, (rank + 1) % size].map(|rank| rank as c_int)
    }

    /// Has the library move what it can.
    pub(crate) fn progress(&self) -> Result<()> {
        self.mpi.progress(self.communicator)
    }

    fn wait(&self, mut request: Handle) -> Result<()> {
        wait_until(|| self.mpi.test(&mut request))
    }

    fn checked(&self, rank: usize) -> Result<c_int> {
        match rank < self.size {
            true => Ok(rank as c_int),
            false => Err(Error::value(format!(
                "there is no rank {rank} among {}",
                self.size
            ))),
        }
    }
}

/// Bytes of a message, at most: counts are of 32 bits.
const MESSAGE_BYTES: usize = 1 << 30;

impl Ranks for MpiRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let to = self.checked(to)?;
        for part in bytes.chunks(MESSAGE_BYTES) {
            let mut request = 0;
            // SAFETY: the bytes are there until the request has ended, which is waited for.
            let code = unsafe {
                (self.mpi.call.MPI_Isend)(
                    part.as_ptr().cast(),
                    part.len() as c_int,
                    self.mpi.byte,
                    to,
                    MESSAGE_TAG,
                    self.communicator,
                    &mut request,
                )
            };
            self.mpi.check(code)?;
            self.wait(request)?;
        }
        Ok(())
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let from = self.checked(from)?;
        for part in bytes.chunks_mut(MESSAGE_BYTES) {
            let mut request = 0;
            // SAFETY: the bytes are there, and no other has them, until the request has ended, which is waited for.
            let code = unsafe {
                (self.mpi.call.MPI_Irecv)(
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    self.mpi.byte,
                    from,
                    MESSAGE_TAG,
                    self.communicator,
                    &mut request,
                )
            };
            self.mpi.check(code)?;
            self.wait(request)?;
        }
        Ok(())
    }
}

impl RingRanks for MpiRanks {
    fn design(&self) -> &str {
        self.design.name()
    }

    fn slots(&self) -> usize {
        self.design.slots()
    }

    fn memory_bytes(&self) -> u64 {
        self.shmem.map_or(u64::MAX, Shmem::memory_bytes)
    }

    fn ring(&self, shape: RingShape) -> Result<Arc<dyn Ring>> {
        let (mpi, communicator) = (self.mpi, self.communicator);
        Ok(match self.design {
            Design::Mpi | Design::MpiOverlapped => {
                let waits = self.design == Design::Mpi;
                Arc::new(OverlappedRing::new(
                    mpi,
                    communicator,
                    self.neighbors(),
                    shape,
                    waits,
                ))
            }
            Design::MpiRma => {
                let window = Window::new(mpi, self.clone(), shape)?;
                Arc::new(OneSidedRing::new(shape, window))
            }
            Design::OshOneWay | Design::OshMemcpy | Design::OshCircular => {
                let Some(shmem) = self.shmem else {
                    unreachable!("it was opened for the design")
                };
                let copies = self.design != Design::OshOneWay;
                let heap = Heap::new(shmem, self.clone(), shape, copies)?;
                Arc::new(OneSidedRing::new(shape, heap))
            }
        })
    }
}

/// Ends what [`MpiRanks`] has begun; to be called before the process ends, where all ranks come to it.
///
/// # Errors
/// What the library says.
pub fn finalize() -> Result<()> {
    let Ok(mpi) = Mpi::get() else {
        return Ok(());
    };
    let is_ours = mpi.take_ours();
    // OpenSHMEM ends MPI too.
    if !crate::shmem::finalize() && is_ours {
        // SAFETY: it has begun, and this process ends it once.
        mpi.check(unsafe { (mpi.call.MPI_Finalize)() })?;
    }
    Ok(())
}
