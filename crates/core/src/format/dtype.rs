//! The types of numbers in files.

use std::fmt;
use std::str::FromStr;

use outcore_kernels::RealType;
use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $descr:literal $bytes:literal,)*) => {
        /// The type of the elements of an array, little-endian in files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum DType {
            $($(#[$doc])* $variant,)*
        }

        impl DType {
            /// All of them.
            pub const ALL: [DType; [$($bytes),*].len()] = [$(DType::$variant),*];

            /// Bytes of one element.
            #[must_use]
            pub const fn bytes(self) -> u64 {
                match self {
                    $(DType::$variant => $bytes,)*
                }
            }

            /// NumPy's name; that of `ml_dtypes` for what NumPy does not have.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                }
            }

            /// As `.npy` headers have it. Types that NumPy does not have are void there, of their
            /// number of bytes.
            #[must_use]
            pub const fn descr(self) -> &'static str {
                match self {
                    $(DType::$variant => $descr,)*
                }
            }
        }
    };
}

dtypes! {
    /// False or true, 0 or 1.
    Bool "bool" "|b1" 1,
    /// 8 bits, signed.
    I8 "int8" "|i1" 1,
    /// 8 bits, unsigned.
    U8 "uint8" "|u1" 1,
    /// 16 bits, signed.
    I16 "int16" "<i2" 2,
    /// 16 bits, unsigned.
    U16 "uint16" "<u2" 2,
    /// 32 bits, signed.
    I32 "int32" "<i4" 4,
    /// 32 bits, unsigned.
    U32 "uint32" "<u4" 4,
    /// 64 bits, signed.
    I64 "int64" "<i8" 8,
    /// 64 bits, unsigned.
    U64 "uint64" "<u8" 8,
    /// IEEE 754 binary16.
    F16 "float16" "<f2" 2,
    /// The upper half of a binary32.
    BF16 "bfloat16" "|V2" 2,
    /// IEEE 754 binary32.
    F32 "float32" "<f4" 4,
    /// IEEE 754 binary64.
    F64 "float64" "<f8" 8,
    /// A real and an imaginary binary32.
    C64 "complex64" "<c8" 8,
    /// A real and an imaginary binary64.
    C128 "complex128" "<c16" 16,
    /// 8 bits, 3 of the exponent, 4 of the mantissa.
    F8E3M4 "float8_e3m4" "|V1" 1,
    /// 8 bits, 4 of the exponent, 3 of the mantissa.
    F8E4M3 "float8_e4m3" "|V1" 1,
    /// The same with a bias of 11, without infinities and negative zero.
    F8E4M3B11FNUZ "float8_e4m3b11fnuz" "|V1" 1,
    /// The same without infinities.
    F8E4M3FN "float8_e4m3fn" "|V1" 1,
    /// The same without infinities and negative zero.
    F8E4M3FNUZ "float8_e4m3fnuz" "|V1" 1,
    /// 8 bits, 5 of the exponent, 2 of the mantissa.
    F8E5M2 "float8_e5m2" "|V1" 1,
    /// The same without infinities and negative zero.
    F8E5M2FNUZ "float8_e5m2fnuz" "|V1" 1,
    /// 8 bits of the exponent, and nothing else.
    F8E8M0FNU "float8_e8m0fnu" "|V1" 1,
}

impl DType {
    /// The type that operations compute in with such elements: 32 bits where those hold every value
    /// of it, else 64. None where operations do not take them.
    #[must_use]
    pub fn real(self) -> Option<RealType> {
        match self {
            DType::F64 => Some(RealType::F64),
            DType::F32
            | DType::Bool
            | DType::U8
            | DType::I8
            | DType::U16
            | DType::I16
            | DType::F16
            | DType::BF16 => Some(RealType::F32),
            _ => None,
        }
    }

    /// How numbers of this type become such that operations take, as errors say it.
    ///
    /// ```
    /// use outcore_core::DType;
    ///
    /// assert!(DType::I64.conversion().contains("float64"));
    /// ```
    #[must_use]
    pub fn conversion(self) -> String {
        let to = match self {
            DType::C64 | DType::C128 => {
                return "take x.real or x.imag of parts in memory".to_owned();
            }
            // All that a float32 does not hold exactly.
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => "float64",
            _ => "float32",
        };
        format!("outcore.convert(x, path, dtype='{to}') makes a copy that is")
    }

    /// Whether files name it as void of some bytes, and elsewhere by its own name.
    pub(super) fn is_void(self) -> bool {
        self.descr().starts_with("|V")
    }

    /// The type that NumPy calls so, or writes so to files; `None` for any other, and for another
    /// byte order than that of the machine.
    ///
    /// ```
    /// use outcore_core::{DType, RealType};
    ///
    /// assert_eq!(DType::parse("float32"), Some(DType::F32));
    /// assert_eq!(DType::parse("<f4"), Some(DType::F32));
    /// assert_eq!(DType::F32.real(), Some(RealType::F32));
    /// assert_eq!((DType::F32.name(), DType::F32.descr(), DType::F32.bytes()), ("float32", "<f4", 4));
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<DType> {
        let native = native(text)?;
        let found = DType::ALL.into_iter().find(|dtype| {
            native == dtype.name() || !dtype.is_void() && native == &dtype.descr()[1..]
        });
        found.or(match native {
            "f" | "f32" => Some(DType::F32),
            "d" | "f64" => Some(DType::F64),
            "?" => Some(DType::Bool),
            _ => None,
        })
    }
}

/// The type without its byte order, where this is the machine's own or does not matter.
pub(super) fn native(descr: &str) -> Option<&str> {
    match descr.as_bytes().first() {
        Some(b'<' | b'=' | b'|') => Some(&descr[1..]),
        Some(b'>') => None,
        _ => Some(descr),
    }
}

impl From<RealType> for DType {
    fn from(real: RealType) -> DType {
        match real {
            RealType::F32 => DType::F32,
            RealType::F64 => DType::F64,
        }
    }
}

/// The type itself, if it is one that is computed with as it is.
impl TryFrom<DType> for RealType {
    type Error = String;

    fn try_from(dtype: DType) -> Result<RealType, String> {
        match dtype {
            DType::F32 => Ok(RealType::F32),
            DType::F64 => Ok(RealType::F64),
            _ => Err(format!(
                "dtype {dtype}, where float32 or float64 is needed; {}",
                dtype.conversion()
            )),
        }
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<DType, String> {
        DType::parse(text).ok_or_else(|| format!("dtype '{text}' is not supported"))
    }
}

impl TryFrom<String> for DType {
    type Error = String;

    fn try_from(text: String) -> Result<DType, String> {
        text.parse()
    }
}

impl From<DType> for String {
    fn from(dtype: DType) -> String {
        dtype.name().to_owned()
    }
}

/// NumPy's name.
impl fmt::Display for DType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Runs `$body` with `$T` standing for the Rust type of a [`RealType`].
#[macro_export]
#[doc(hidden)]
macro_rules! with_real {
    ($real:expr, $T:ident => $body:expr) => {
        match $real {
            $crate::RealType::F32 => {
                type $T = f32;
                $body
            }
            $crate::RealType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}
