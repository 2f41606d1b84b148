//! The library that multiplies: the built-in kernel, or a BLAS that the user loads at run time.
//!
//! A library is opened with the dynamic loader and searched for the C interface (`cblas_sgemm` and
//! others) under the names that MKL, OpenBLAS, BLIS and the wheels of numpy and scipy give it, with
//! 32- or 64-bit integers. It is set to one thread, since the engine runs one call a core, and must
//! compute a small product correctly before it is accepted.
#![allow(unsafe_code)]

use crate::{Error, Real, RealType};
use faer::{MatMut, MatRef};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The library behind [`gemm`](crate::gemm()) and [`syrk`](crate::syrk()). Cloning is cheap.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Blas {
    /// The kernel that is compiled in.
    #[default]
    Builtin,
    /// A library of the user, made by [`Blas::load`].
    Loaded(Arc<Loaded>),
}

impl Blas {
    /// Opens a BLAS by path, or by a name that the dynamic loader finds (`libmkl_rt.so.2`,
    /// `libopenblas.so.0`).
    ///
    /// The library is set to one thread for the whole process, which affects other users of the
    /// same file (numpy, if its own copy is named). It stays loaded until the process ends.
    ///
    /// # Errors
    /// [`Error::BlasLoad`] if the loader refuses it, [`Error::BlasUnusable`] if a function is
    /// missing or its result is wrong.
    pub fn load(library: impl AsRef<Path>) -> Result<Self, Error> {
        Loaded::open(library.as_ref()).map(|loaded| Self::Loaded(Arc::new(loaded)))
    }

    /// A short name: `builtin`, `mkl`, `openblas`, `blis`, or the file's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Builtin => "builtin",
            Self::Loaded(loaded) => &loaded.name,
        }
    }

    /// The version that the library reports.
    pub fn version(&self) -> &str {
        match self {
            Self::Builtin => concat!("outcore ", env!("CARGO_PKG_VERSION")),
            Self::Loaded(loaded) => &loaded.version,
        }
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blas({}, {})", self.name(), self.version())
    }
}

/// Width of the library's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Integers {
    Bits32,
    Bits64,
}

/// A BLAS opened at run time.
pub struct Loaded {
    name: String,
    version: String,
    integers: Integers,
    sgemm: *const c_void,
    dgemm: *const c_void,
    ssyrk: *const c_void,
    dsyrk: *const c_void,
}

// SAFETY: the pointers are addresses of functions in a library that is never unloaded; calling BLAS
// from several threads is what the supported libraries are made for.
unsafe impl Send for Loaded {}
// SAFETY: as above; nothing in it changes after `open`.
unsafe impl Sync for Loaded {}

const ROW_MAJOR: c_int = 101;
const NO_TRANSPOSE: c_int = 111;
const TRANSPOSE: c_int = 112;
const LOWER: c_int = 122;

type Gemm<I, T> =
    unsafe extern "C" fn(c_int, c_int, c_int, I, I, I, T, *const T, I, *const T, I, T, *mut T, I);
type Syrk<I, T> = unsafe extern "C" fn(c_int, c_int, c_int, I, I, T, *const T, I, T, *mut T, I);

/// Names of the C interface: prefix and suffix of `sgemm`, and the integers that the name implies
/// (None: ask the library). Names with 64 come first, because MKL has both and the plain one
/// depends on an environment variable.
const SPELLINGS: [(&str, &str, Option<Integers>); 7] = [
    ("cblas_", "_64", Some(Integers::Bits64)),
    ("cblas_", "64_", Some(Integers::Bits64)),
    ("scipy_cblas_", "64_", Some(Integers::Bits64)),
    ("cblas_", "64", Some(Integers::Bits64)),
    ("scipy_cblas_", "", Some(Integers::Bits32)),
    ("flexiblas_cblas_", "", Some(Integers::Bits32)),
    ("cblas_", "", None),
];

impl Loaded {
    fn open(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        // SAFETY: the caller names a BLAS; its initialisers run as those of any library of this
        // process.
        let library = unsafe { Library::new(path) }.map_err(|source| Error::BlasLoad {
            library: shown.clone(),
            source,
        })?;
        // Libraries with threads of their own do not survive being unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        let unusable = |why: String| Error::BlasUnusable {
            library: shown.clone(),
            why,
        };
        let address = |name: &str| symbol(library, name);

        let (prefix, suffix, integers) = SPELLINGS
            .into_iter()
            .find(|(prefix, suffix, _)| address(&format!("{prefix}sgemm{suffix}")).is_some())
            .ok_or_else(|| {
                unusable("it has no cblas_sgemm, under any of the known spellings".into())
            })?;
        let product = |name: &str| {
            let full = format!("{prefix}{name}{suffix}");
            address(&full).ok_or_else(|| unusable(format!("it has no {full}")))
        };
        let config = openblas_config(library);
        let loaded = Self {
            name: name_of(library, path),
            version: version_of(library, config.as_deref()),
            integers: integers.unwrap_or_else(|| integers_of(library, config.as_deref())),
            sgemm: product("sgemm")?,
            dgemm: product("dgemm")?,
            ssyrk: product("ssyrk")?,
            dsyrk: product("dsyrk")?,
        };
        one_thread(library);
        loaded
            .probe::<f32>()
            .and_then(|()| loaded.probe::<f64>())
            .map_err(unusable)?;
        Ok(loaded)
    }

    /// A product with a known result, so that a library with other integers or other semantics is
    /// refused here.
    fn probe<T: Real>(&self) -> Result<(), String> {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(T::of);
        let mut c = [f64::NAN; 4].map(T::of);
        let a = crate::view(&a, 2, 3, 3, 1).map_err(|e| e.to_string())?;
        let out = crate::view_mut(&mut c, 2, 2, 2, 1).map_err(|e| e.to_string())?;
        let call = self
            .plan_gemm(out.as_ref(), a, a.transpose())
            .ok_or("a plain product could not be expressed")?;
        call.run(out, T::ONE, a, a.transpose(), T::ZERO);
        if c == [14.0, 32.0, 32.0, 77.0].map(T::of) {
            Ok(())
        } else {
            Err(format!("a 2 x 2 product gave {c:?}"))
        }
    }

    /// Memory that calls may hold a thread. OpenBLAS and MKL pack panels of a few MiB into buffers
    /// that they keep, and neither reports the size: this is the resident memory observed with
    /// both, rounded up; for small calls it is bounded by the operands.
    pub(crate) fn scratch_bytes(&self, m: usize, n: usize, k: usize, element: usize) -> usize {
        const LEAST: usize = 2 << 20;
        const MOST: usize = 24 << 20;
        let packed = m
            .saturating_add(n)
            .saturating_mul(k)
            .saturating_mul(element);
        (packed / 4 * 3).saturating_add(LEAST).min(MOST)
    }

    /// The call that computes C = A B, if BLAS can express the strides.
    pub(crate) fn plan_gemm<T: Real>(
        &self,
        c: MatRef<'_, T>,
        a: MatRef<'_, T>,
        b: MatRef<'_, T>,
    ) -> Option<GemmCall<'_>> {
        // C must have rows next to each other; a column-major C is the transposed product.
        let swap = operand(c)?.transposed;
        let (c, a, b) = if swap {
            (c.transpose(), b.transpose(), a.transpose())
        } else {
            (c, a, b)
        };
        let (c, a, b) = (operand(c)?, operand(a)?, operand(b)?);
        let fits = [c, a, b].iter().all(|operand| self.takes(operand.leading));
        fits.then_some(GemmCall {
            library: self,
            swap,
            c: c.leading,
            a,
            b,
        })
    }

    /// Lower triangle of C = A A^T; both may be row- or column-major.
    pub(crate) fn plan_syrk<T: Real>(
        &self,
        c: MatRef<'_, T>,
        a: MatRef<'_, T>,
    ) -> Option<SyrkCall<'_>> {
        let (c, a) = (operand(c)?, operand(a)?);
        let fits = self.takes(c.leading) && self.takes(a.leading);
        fits.then_some(SyrkCall {
            library: self,
            c,
            a,
        })
    }

    fn takes(&self, number: usize) -> bool {
        self.integers == Integers::Bits64 || number <= i32::MAX as usize
    }
}

/// An operand as row-major BLAS sees it.
#[derive(Clone, Copy)]
struct Operand {
    transposed: bool,
    leading: usize,
}

impl Operand {
    fn flag(self) -> c_int {
        if self.transposed {
            TRANSPOSE
        } else {
            NO_TRANSPOSE
        }
    }
}

fn operand<T: Real>(a: MatRef<'_, T>) -> Option<Operand> {
    let (rows, cols) = a.shape();
    // The stride of a dimension with one element is arbitrary; BLAS still requires a leading
    // dimension of at least the length of a line.
    let leading = |lines: usize, stride: isize, length: usize| -> Option<usize> {
        if lines <= 1 {
            return Some(length.max(1));
        }
        usize::try_from(stride)
            .ok()
            .filter(|&stride| stride >= length.max(1))
    };
    if (a.col_stride() == 1 || cols <= 1)
        && let Some(leading) = leading(rows, a.row_stride(), cols)
    {
        return Some(Operand {
            transposed: false,
            leading,
        });
    }
    if (a.row_stride() == 1 || rows <= 1)
        && let Some(leading) = leading(cols, a.col_stride(), rows)
    {
        return Some(Operand {
            transposed: true,
            leading,
        });
    }
    None
}

/// A product whose strides BLAS can express.
pub(crate) struct GemmCall<'a> {
    library: &'a Loaded,
    swap: bool,
    c: usize,
    a: Operand,
    b: Operand,
}

impl GemmCall<'_> {
    /// The views must be those that the call was planned for.
    pub(crate) fn run<T: Real>(
        &self,
        c: MatMut<'_, T>,
        alpha: T,
        a: MatRef<'_, T>,
        b: MatRef<'_, T>,
        beta: T,
    ) {
        let (c, a, b) = if self.swap {
            (c.transpose_mut(), b.transpose(), a.transpose())
        } else {
            (c, a, b)
        };
        let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
        assert!(a.nrows() == m && b.nrows() == k && b.ncols() == n);
        assert!(
            [m, n, k].into_iter().all(|size| self.library.takes(size)),
            "sizes fit the library's integers"
        );
        let function = match T::DTYPE {
            RealType::F32 => self.library.sgemm,
            RealType::F64 => self.library.dgemm,
        };
        let (ta, tb) = (self.a.flag(), self.b.flag());
        let (pa, pb, pc) = (a.as_ptr(), b.as_ptr(), c.as_ptr_mut());
        macro_rules! call {
            ($int:ty) => {{
                // SAFETY: the symbol's name and the probe at loading say that it is this product
                // for T and these integers; the shapes agree (asserted) and `plan_gemm` derived the
                // leading dimensions from these views, so the library stays inside them. C is
                // borrowed mutably.
                unsafe {
                    let gemm: Gemm<$int, T> = std::mem::transmute(function);
                    let int = |x: usize| x as $int;
                    let (lda, ldb, ldc) = (int(self.a.leading), int(self.b.leading), int(self.c));
                    gemm(
                        ROW_MAJOR,
                        ta,
                        tb,
                        int(m),
                        int(n),
                        int(k),
                        alpha,
                        pa,
                        lda,
                        pb,
                        ldb,
                        beta,
                        pc,
                        ldc,
                    );
                }
            }};
        }
        match self.library.integers {
            Integers::Bits32 => call!(i32),
            Integers::Bits64 => call!(i64),
        }
    }
}

/// A symmetric product whose strides BLAS can express.
pub(crate) struct SyrkCall<'a> {
    library: &'a Loaded,
    c: Operand,
    a: Operand,
}

impl SyrkCall<'_> {
    /// The views must be those that the call was planned for. Writes the lower triangle only.
    pub(crate) fn run<T: Real>(&self, c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, beta: T) {
        let (n, k) = a.shape();
        assert!(c.nrows() == n && c.ncols() == n && self.library.takes(n) && self.library.takes(k));
        let function = match T::DTYPE {
            RealType::F32 => self.library.ssyrk,
            RealType::F64 => self.library.dsyrk,
        };
        // The lower triangle of a column-major C is the upper one (121) of the row-major matrix in
        // the same place.
        let triangle = if self.c.transposed { LOWER - 1 } else { LOWER };
        let (pa, pc) = (a.as_ptr(), c.as_ptr_mut());
        macro_rules! call {
            ($int:ty) => {{
                // SAFETY: as in `GemmCall::run`.
                unsafe {
                    let syrk: Syrk<$int, T> = std::mem::transmute(function);
                    let int = |x: usize| x as $int;
                    let (lda, ldc) = (int(self.a.leading), int(self.c.leading));
                    syrk(
                        ROW_MAJOR,
                        triangle,
                        self.a.flag(),
                        int(n),
                        int(k),
                        alpha,
                        pa,
                        lda,
                        beta,
                        pc,
                        ldc,
                    );
                }
            }};
        }
        match self.library.integers {
            Integers::Bits32 => call!(i32),
            Integers::Bits64 => call!(i64),
        }
    }
}

fn symbol(library: &'static Library, name: &str) -> Option<*const c_void> {
    // SAFETY: only the address is taken; nothing is called here.
    let found = unsafe { library.get::<*const c_void>(name.as_bytes()) }.ok()?;
    // SAFETY: a symbol's address is what the loader returned; it is not read through.
    unsafe { found.into_raw() }
        .as_raw_ptr()
        .cast_const()
        .cast::<c_void>()
        .into()
}

/// The address of the first of several names that exists.
fn first(library: &'static Library, names: &[&str]) -> Option<*const c_void> {
    names.iter().find_map(|name| symbol(library, name))
}

const OPENBLAS_CONFIG: [&str; 3] = [
    "openblas_get_config",
    "openblas_get_config64_",
    "scipy_openblas_get_config64_",
];
const OPENBLAS_THREADS: [&str; 3] = [
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads64_",
];

fn openblas_config(library: &'static Library) -> Option<String> {
    let function = first(library, &OPENBLAS_CONFIG)
        .or_else(|| symbol(library, "scipy_openblas_get_config"))?;
    // SAFETY: OpenBLAS documents `char *openblas_get_config(void)`, a static string.
    unsafe {
        let get: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(function);
        Some(CStr::from_ptr(get()).to_string_lossy().into_owned())
    }
}

fn name_of(library: &'static Library, path: &Path) -> String {
    let file = || {
        path.file_name().map_or_else(
            || path.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    let known = [
        ("MKL_Get_Version_String", "mkl"),
        ("bli_info_get_version_str", "blis"),
    ];
    let known = known
        .into_iter()
        .chain(OPENBLAS_CONFIG.map(|name| (name, "openblas")));
    let mut known = known.chain([("scipy_openblas_get_config", "openblas")]);
    known
        .find(|(name, _)| symbol(library, name).is_some())
        .map_or_else(file, |(_, name)| name.to_owned())
}

fn version_of(library: &'static Library, config: Option<&str>) -> String {
    if let Some(config) = config {
        return config.trim().to_owned();
    }
    if let Some(function) = symbol(library, "bli_info_get_version_str") {
        // SAFETY: BLIS documents `const char *bli_info_get_version_str(void)`, a static string.
        return unsafe {
            let get: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(function);
            CStr::from_ptr(get()).to_string_lossy().into_owned()
        };
    }
    if let Some(function) = symbol(library, "MKL_Get_Version_String") {
        let mut text = [0u8; 256];
        // SAFETY: MKL documents `void mkl_get_version_string(char *buffer, int length)`, which it
        // spells so in C; it writes at most `length` bytes.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_char, c_int) = std::mem::transmute(function);
            get(text.as_mut_ptr().cast(), text.len() as c_int - 1);
        }
        return String::from_utf8_lossy(&text)
            .trim_end_matches(['\0', ' '])
            .trim()
            .to_owned();
    }
    "unknown".to_owned()
}

/// The integers of a `cblas_sgemm` whose name does not imply them.
fn integers_of(library: &'static Library, config: Option<&str>) -> Integers {
    if config.is_some_and(|config| config.contains("USE64BITINT")) {
        return Integers::Bits64;
    }
    if let Some(function) = symbol(library, "bli_info_get_blas_int_type_size") {
        // SAFETY: BLIS documents `gint_t bli_info_get_blas_int_type_size(void)`; a gint_t has 32 or
        // 64 bits and the number (32 or 64) is in the low ones.
        let bits = unsafe {
            let get: unsafe extern "C" fn() -> c_int = std::mem::transmute(function);
            get()
        };
        return if bits == 64 {
            Integers::Bits64
        } else {
            Integers::Bits32
        };
    }
    Integers::Bits32
}

/// Sets one thread a call, by the setter that the library has; a library without one is
/// single-threaded or not configurable.
fn one_thread(library: &'static Library) {
    // MKL's threaded layer wants an OpenMP runtime beside it and ends the process without one; the
    // sequential layer needs nothing. The choice only counts before MKL's first call, and is
    // harmless later.
    const MKL_SEQUENTIAL: c_int = 1;
    let mkl = [
        ("MKL_Set_Threading_Layer", MKL_SEQUENTIAL),
        ("MKL_Set_Num_Threads", 1),
    ];
    let others = OPENBLAS_THREADS
        .into_iter()
        .chain(["scipy_openblas_set_num_threads"])
        .map(|name| (name, 1));
    for (name, value) in mkl.into_iter().chain(others) {
        if let Some(function) = symbol(library, name) {
            // SAFETY: each is documented as a C function that takes one int; a returned int is
            // ignored.
            unsafe {
                let set: unsafe extern "C" fn(c_int) = std::mem::transmute(function);
                set(value);
            }
        }
    }
    if let Some(function) = symbol(library, "bli_thread_set_num_threads") {
        // SAFETY: BLIS documents `void bli_thread_set_num_threads(dim_t)`; dim_t has 64 bits in its
        // default build, and in a 32-bit one the low half of the register is read.
        unsafe {
            let set: unsafe extern "C" fn(i64) = std::mem::transmute(function);
            set(1);
        }
    }
}
