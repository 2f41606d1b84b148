//! The element types: f32 and f64, and nothing else.

use bytemuck::Pod;
use std::fmt::{Debug, Display};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The name of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
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
    const DTYPE: Dtype;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The distance from 1 to the next larger number.
    const EPSILON: Self;
    /// Rounds to nearest; too large becomes infinity.
    fn of(value: f64) -> Self;
    /// Exact.
    fn f64(self) -> f64;
    /// Neither NaN nor infinite.
    fn finite(self) -> bool;
}

macro_rules! real {
    ($type:ident, $dtype:expr) => {
        impl Real for $type {
            const DTYPE: Dtype = $dtype;
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
        }
    };
}
real!(f32, Dtype::F32);
real!(f64, Dtype::F64);
