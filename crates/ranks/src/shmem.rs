//! The symmetric heap of OpenSHMEM, that neighbours put blocks and words into.
//!
//! ```text
//!   object of a rank, at the same place of each heap:  arrived | seen | released | 0 ...  64 bytes, then the slots
//! ```

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use outcore_core::ranks::barrier;
use outcore_core::ring::{OneSided, RingShape, Slot, Words};
use outcore_core::{Error, Result};

use crate::library::{Mpi, is_of_mpich};
use crate::memory::RawSlot;
use crate::world::MpiRanks;

/// Bytes of the heap that the library has for itself.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// Bytes before the slots.
const WORDS_BYTES: usize = 64;

static HEAP_BYTES: AtomicU64 = AtomicU64::new(0);

/// Says how large the heap is to be, before the library begins.
pub(crate) fn prepare(heap_bytes: u64) {
    if Shmem::opened().get().is_some() {
        return;
    }
    HEAP_BYTES.store(heap_bytes, Ordering::Relaxed);
    let heap = (heap_bytes + OVERHEAD_BYTES).to_string();
    // Open MPI 4.1 ends with a fault where its hooks of memory outlive the libraries that they call.
    let settings = [
        ("OMPI_MCA_memory", "^patcher"),
        ("SHMEM_SYMMETRIC_SIZE", &heap),
        ("SHMEM_SYMMETRIC_HEAP_SIZE", &heap),
        ("SMA_SYMMETRIC_SIZE", &heap),
    ];
    for (name, value) in settings {
        // The size is that which the last caller has asked for: what a ring takes of the heap follows from it.
        if value == heap || std::env::var_os(name).is_none() {
            // SAFETY: ranks are made before other threads ask for the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// An OpenSHMEM library that has begun.
pub(crate) struct Shmem {
    malloc: unsafe extern "C" fn(usize) -> *mut u8,
    free: unsafe extern "C" fn(*mut u8),
    ptr: unsafe extern "C" fn(*const c_void, c_int) -> *mut c_void,
    put_nbi: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int),
    long_p: unsafe extern "C" fn(*mut c_long, c_long, c_int),
    fence: unsafe extern "C" fn(),
    finalize: unsafe extern "C" fn(),
}

impl Shmem {
    fn opened() -> &'static OnceLock<std::result::Result<Shmem, String>> {
        static OPENED: OnceLock<std::result::Result<Shmem, String>> = OnceLock::new();
        &OPENED
    }

    /// The library that the loader finds, begun.
    ///
    /// # Errors
    /// Where there is none, or MPI began without it: Open MPI 4.1 exchanges the places of heaps too early then.
    pub(crate) fn get() -> Result<&'static Shmem> {
        if is_of_mpich() {
            return Err(Error::value(
                "OpenSHMEM is that of Open MPI, and the launcher is MPICH's: take design mpi_rma, mpi or mpi_o",
            ));
        }
        if Shmem::opened().get().is_none() && Mpi::has_begun() {
            return Err(Error::value(
                "OpenSHMEM has to begin before MPI, which has begun in this process: make ranks of design osh_oc first, or take design mpi_rma",
            ));
        }
        let opened = Shmem::opened().get_or_init(Shmem::open).as_ref();
        opened.map_err(|what| Error::Failed { what: what.clone() })
    }

    fn open() -> std::result::Result<Shmem, String> {
        // SAFETY: initialisers of the library have no conditions.
        let library = unsafe { Library::open(Some("liboshmem.so.40"), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| {
            format!("no OpenSHMEM library was found ({error}); take design mpi_rma, or install Open MPI from the system's packages")
        })?;
        if !shows_its_end(&library) && !is_mapped_alike() {
            return Err(
                "OpenSHMEM shares what lies before the symbol _end, which this program does not export: start it by `setarch -R`, or take design mpi_rma".into(),
            );
        }
        macro_rules! get {
            ($name:literal) => {
                // SAFETY: the types are those of the standard.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|_| concat!("the OpenSHMEM library has no ", $name).to_owned())?
            };
        }
        let init: unsafe extern "C" fn(c_int, *mut c_int) -> c_int = get!("shmem_init_thread");
        let shmem = Shmem {
            malloc: get!("shmem_malloc"),
            free: get!("shmem_free"),
            ptr: get!("shmem_ptr"),
            put_nbi: get!("shmem_putmem_nbi"),
            long_p: get!("shmem_long_p"),
            fence: get!("shmem_fence"),
            finalize: get!("shmem_finalize"),
        };
        const MULTIPLE: c_int = 3;
        let mut threads = 0;
        // SAFETY: it has not begun, since this is done once; a number is written.
        let code = unsafe { init(MULTIPLE, &mut threads) };
        if code != 0 || threads < 2 {
            return Err(format!(
                "OpenSHMEM does not begin with threads (code {code}, level {threads})"
            ));
        }
        std::mem::forget(library);
        Ok(shmem)
    }

    /// Bytes of the heap.
    pub(crate) fn memory_bytes(&self) -> u64 {
        HEAP_BYTES.load(Ordering::Relaxed)
    }
}

/// Whether the program exports where its memory ends. Open MPI takes all that is mapped before as objects that ranks
/// share; where it finds its own end instead, these are other libraries, in another order on each rank.
fn shows_its_end(library: &Library) -> bool {
    // SAFETY: only addresses are taken.
    let [own, of_library] = unsafe {
        [&Library::this(), library].map(|library| {
            library
                .get::<*const c_void>(b"_end\0")
                .ok()
                .map(|end| end.into_raw())
        })
    };
    own.is_some() && own != of_library
}

/// Whether addresses are not chosen at random, so that all ranks have the same.
fn is_mapped_alike() -> bool {
    const NO_RANDOM_ADDRESSES: u64 = 0x4_0000;
    let personality = std::fs::read_to_string("/proc/self/personality").unwrap_or_default();
    let personality = u64::from_str_radix(personality.trim(), 16).unwrap_or_default();
    personality & NO_RANDOM_ADDRESSES != 0
}

/// Ends OpenSHMEM, and MPI with it, if it has begun.
pub(crate) fn finalize() -> bool {
    let opened = Shmem::opened().get();
    let begun = opened.and_then(|opened| opened.as_ref().ok());
    if let Some(shmem) = begun {
        // SAFETY: it has begun, and is ended once.
        unsafe { (shmem.finalize)() };
    }
    begun.is_some()
}

/// This rank's object in the heap, and the way to those of its neighbours.
pub(crate) struct Heap {
    shmem: &'static Shmem,
    ranks: MpiRanks,
    shape: RingShape,
    base: *mut u8,
    slots: Vec<Arc<RawSlot>>,
    /// The objects of the neighbours, where they are memory of this node, and copies are wanted.
    mapped: [*mut u8; 2],
}

// SAFETY: the library takes calls from all threads, one at a time here; the memory is the process's.
unsafe impl Send for Heap {}

impl Heap {
    /// Every rank makes one.
    pub(crate) fn new(
        shmem: &'static Shmem,
        ranks: MpiRanks,
        shape: RingShape,
        copies: bool,
    ) -> Result<Heap> {
        let bytes = WORDS_BYTES + shape.slots * shape.slot_bytes;
        // SAFETY: all ranks call it with as many bytes.
        let base = unsafe { (shmem.malloc)(bytes) };
        if base.is_null() {
            return Err(Error::Failed {
                what: format!(
                    "the symmetric heap has no {bytes} bytes left: set SHMEM_SYMMETRIC_HEAP_SIZE"
                ),
            });
        }
        // SAFETY: the object has as many bytes, until it is freed after its slots are closed; neighbours' objects are
        // where the library says.
        let (slots, mapped) = unsafe {
            std::ptr::write_bytes(base, 0, WORDS_BYTES);
            let slots = RawSlot::several(base.add(WORDS_BYTES), shape.slots, shape.slot_bytes);
            let mapped = ranks.neighbors().map(|rank| match copies {
                true => (shmem.ptr)(base.cast(), rank).cast::<u8>(),
                false => std::ptr::null_mut(),
            });
            (slots, mapped)
        };
        let own = Heap {
            shmem,
            ranks,
            shape,
            base,
            slots,
            mapped,
        };
        barrier(&own.ranks)?;
        Ok(own)
    }

    /// Writes a word of a neighbour, after what was put there before.
    fn put_word(&self, side: usize, number: usize, value: u64) {
        // SAFETY: the words are at the beginning of the object, aligned, here and there.
        unsafe {
            match self.mapped[side].is_null() {
                true => (self.shmem.long_p)(
                    self.base.cast::<c_long>().add(number),
                    value as c_long,
                    self.ranks.neighbors()[side],
                ),
                false => (*self.mapped[side].cast::<AtomicI64>().add(number))
                    .store(value as i64, Ordering::Release),
            }
        }
    }

    fn word(&self, number: usize) -> u64 {
        // SAFETY: as above.
        unsafe { &*self.base.cast::<AtomicU64>().add(number) }.load(Ordering::Acquire)
    }
}

impl OneSided for Heap {
    fn slot(&self, number: usize) -> Arc<dyn Slot> {
        let slot: &Arc<RawSlot> = &self.slots[number];
        Arc::clone(slot) as Arc<dyn Slot>
    }

    fn put(&mut self, from: usize, to: usize, bytes: usize, arrived: u64) -> Result<()> {
        let place = WORDS_BYTES + to * self.shape.slot_bytes;
        let source = self.slots[from].start();
        // SAFETY: the slot keeps its block until the right neighbour has seen it; the place is a slot there that it
        // has released.
        unsafe {
            match self.mapped[1].is_null() {
                true => {
                    (self.shmem.put_nbi)(
                        self.base.add(place).cast(),
                        source.cast(),
                        bytes,
                        self.ranks.neighbors()[1],
                    );
                    (self.shmem.fence)();
                }
                false => std::ptr::copy_nonoverlapping(source, self.mapped[1].add(place), bytes),
            }
        }
        self.put_word(1, 0, arrived);
        Ok(())
    }

    fn tell_left(&mut self, seen: u64, released: u64) -> Result<()> {
        self.put_word(0, 1, seen);
        self.put_word(0, 2, released);
        Ok(())
    }

    /// Open MPI's libraries share what moves transfers, so that MPI is asked.
    fn words(&mut self) -> Result<Words> {
        self.ranks.progress()?;
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
        // SAFETY: all ranks call it, and none uses the object any more.
        unsafe { (self.shmem.free)(self.base) };
        Ok(())
    }
}
