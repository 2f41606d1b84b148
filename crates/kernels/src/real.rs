//! The element types: f32 and f64, and nothing else.

#![allow(unsafe_code)]

use bytemuck::Pod;
use pulp::Simd;
use std::fmt::{Debug, Display};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The name of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RealType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl RealType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// NumPy's name.
impl Display for RealType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
        })
    }
}

/// f32 or f64. Sealed: the kernels dispatch on [`Real::DTYPE`].
pub trait Real:
    sealed::Sealed
    + Pod
    + Send
    + Sync
    + Default
    + Debug
    + Display
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::AddAssign
    + faer::traits::RealField
    + 'static
{
    /// Which of the two it is.
    const DTYPE: RealType;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The distance from 1 to the next larger number.
    const EPSILON: Self;
    /// Rounds to nearest; overflow becomes infinity.
    fn of(value: f64) -> Self;
    /// Exact.
    fn f64(self) -> f64;
    /// Neither NaN nor infinite.
    fn finite(self) -> bool;

    /// As many elements as a register of the processor holds.
    type Vector<S: Simd>: Copy;
    /// How many those are.
    fn lanes<S: Simd>() -> usize;
    /// All lanes equal.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// The first elements as `N` vectors; `from` has at least as many.
    fn vectors<S: Simd, const N: usize>(simd: S, from: &[Self]) -> &[Self::Vector<S>; N];
    /// As `vectors`, mutable.
    fn vectors_mut<S: Simd, const N: usize>(
        simd: S,
        into: &mut [Self],
    ) -> &mut [Self::Vector<S>; N];
    /// Fewer elements than a vector has, padded with zeros.
    fn load<S: Simd>(simd: S, from: &[Self]) -> Self::Vector<S>;
    /// The first elements of a vector, as many as fit into the slice.
    fn store<S: Simd>(simd: S, into: &mut [Self], value: Self::Vector<S>);
    /// a b.
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a b + c, rounded once if the processor supports it.
    fn fma<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

macro_rules! real {
    ($type:ident, $dtype:expr, $vector:ident, $lanes:ident, $splat:ident, $slice:ident, $slice_mut:ident, $mask:ident, $unsigned:ident, $load:ident, $store:ident, $mul:ident, $mul_add:ident) => {
        impl Real for $type {
            const DTYPE: RealType = $dtype;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const EPSILON: Self = $type::EPSILON;
            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn finite(self) -> bool {
                self.is_finite()
            }

            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }
            #[inline(always)]
            fn vectors<S: Simd, const N: usize>(_: S, from: &[Self]) -> &[S::$vector; N] {
                S::$slice(&from[..N * S::$lanes])
                    .0
                    .first_chunk()
                    .expect("N vectors were taken")
            }
            #[inline(always)]
            fn vectors_mut<S: Simd, const N: usize>(
                _: S,
                into: &mut [Self],
            ) -> &mut [S::$vector; N] {
                S::$slice_mut(&mut into[..N * S::$lanes])
                    .0
                    .first_chunk_mut()
                    .expect("N vectors were taken")
            }
            #[inline(always)]
            fn load<S: Simd>(simd: S, from: &[Self]) -> S::$vector {
                let mask = simd.$mask(0, from.len() as $unsigned).mask();
                // SAFETY: only lanes of the slice are read.
                unsafe { simd.$load(mask.into(), from.as_ptr()) }
            }
            #[inline(always)]
            fn store<S: Simd>(simd: S, into: &mut [Self], value: S::$vector) {
                let mask = simd.$mask(0, into.len() as $unsigned).mask();
                // SAFETY: only lanes of the slice are written.
                unsafe { simd.$store(mask.into(), into.as_mut_ptr(), value) }
            }
            #[inline(always)]
            fn times<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$mul(a, b)
            }
            #[inline(always)]
            fn fma<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }
        }
    };
}
real!(
    f32,
    RealType::F32,
    f32s,
    F32_LANES,
    splat_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    mask_between_m32s,
    u32,
    mask_load_ptr_f32s,
    mask_store_ptr_f32s,
    mul_f32s,
    mul_add_f32s
);
real!(
    f64,
    RealType::F64,
    f64s,
    F64_LANES,
    splat_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    mask_between_m64s,
    u64,
    mask_load_ptr_f64s,
    mask_store_ptr_f64s,
    mul_f64s,
    mul_add_f64s
);
