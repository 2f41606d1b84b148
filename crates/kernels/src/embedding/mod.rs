//! Rows of embedding tables: their encodings, sums of encoded rows, and how they are trained.
//!
//! A row is `dim` numbers in [`RowEncoding::row_bytes`] bytes at any address, little-endian:
//!
//! ```text
//! F32                    | f32 x dim |
//! F16, BF16              | 16 bits x dim |
//! F8E4M3, F8E5M2         | 8 bits x dim |
//! I8(First),  I4(First)  | f16 scale | f16 bias | codes |   table-batched operators of FBGEMM
//! I8(Last),   I4(Last)   | codes | f16 scale | f16 bias |   CPU operators of FBGEMM
//! I8(LastF32)            | codes | f32 scale | f32 bias |   fused 8-bit rows of FBGEMM and PyTorch
//!
//! codes: a byte an element; of four bits, two elements a byte, the lower half first
//! ```
//!
//! A code q stands for `fma(q, scale, bias)`. Every other encoding is a subset of f32.
//!
//! A sum is `((0 + x1) + x2) + ...`, rounded to f32 each time, in the order of the rows; with
//! weights each step is `fma(w, x, sum)`, or `sum + w * x` rounded twice ([`Weights`]). A maximum
//! is replaced by what is greater, so a NaN that comes first stays and a later one is passed over.
//! These are the bits of `torch.nn.EmbeddingBag` on the CPU, of a table of f32 that holds the
//! decoded rows.
//!
//! ```
//! use outcore_kernels::embedding::{Pooling, RowEncoding, ScaleBias, Weights};
//!
//! let encoding: RowEncoding = "int8".parse()?;
//! assert_eq!(encoding, RowEncoding::I8(ScaleBias::First));
//! let (dim, table) = (4, [[0.0, 1.0, 2.0, 255.0], [-1.0, 0.0, 1.0, 254.0f32]]);
//! let bytes = encoding.row_bytes(dim).expect("any number of elements has a row");
//! let mut slots = vec![0; 2 * bytes];
//! for (row, slot) in table.iter().zip(slots.chunks_mut(bytes)) {
//!     encoding.encode(row, slot);
//! }
//!
//! // Two bags: rows 0, 1 and 1, and row 1.
//! let starts = [0, bytes, bytes, bytes];
//! let mut pooled = [0.0; 8];
//! let row = |number: usize| &slots[starts[number]..][..bytes];
//! encoding.pool_bags(Pooling::Sum, row, &[3, 4], Weights::Equal, pooled.chunks_mut(dim));
//! assert_eq!(pooled, [-2.0, 1.0, 4.0, 763.0, -1.0, 0.0, 1.0, 254.0]);
//! # Ok::<(), outcore_kernels::embedding::UnknownEncoding>(())
//! ```
//!
//! Instruction sets: AVX-512, AVX2 with FMA and F16C, and a plain form for every other processor;
//! all have the same bits, but for the sign and payload of a NaN.
//!
//! Sources: FBGEMM (`QuantUtils.cc`, `EmbeddingSpMDM.cc`), PyTorch
//! (`EmbeddingBag.cpp`, `Float8_e4m3fn.h`, `Float8_e5m2.h`).

mod floats;
mod plain;
mod pool;
mod quantize;
#[cfg(test)]
mod tests;
mod update;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::str::FromStr;

use pool::{Operation, one};
pub use pool::{Pooling, Weights};
pub use update::{RowUpdate, add_scaled};

/// How the numbers of a row are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowEncoding {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16. Beyond its range: infinity.
    F16,
    /// The upper half of an f32. Beyond its range: infinity.
    BF16,
    /// `float8_e4m3fn` of the OCP: no infinities. Beyond its range: 448, as in PyTorch
    /// 2.14 (NaN in earlier ones).
    F8E4M3,
    /// `float8_e5m2` of the OCP. Beyond its range, which ends at 57,344: infinity.
    F8E5M2,
    /// Codes of 8 bits, with scale and bias of the row.
    I8(ScaleBias),
    /// Codes of 4 bits, with scale and bias of the row; an even number of elements, and not with
    /// [`ScaleBias::LastF32`].
    I4(ScaleBias),
}

/// Where a row of codes has its scale and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleBias {
    /// Before the codes, in f16.
    First,
    /// Behind the codes, in f16.
    Last,
    /// Behind the codes, in f32.
    LastF32,
}

/// A name that no encoding has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown encoding of rows {0:?}: there are float32, float16, bfloat16, float8_e4m3fn, \
     float8_e5m2, int8 and int4, the last two with _scale_first (if nothing is said), _scale_last \
     or, int8 only, _scale_last_f32"
)]
pub struct UnknownEncoding(String);

/// Names as in PyTorch, and the place of the scale.
const NAMES: [(&str, RowEncoding); 10] = [
    ("float32", RowEncoding::F32),
    ("float16", RowEncoding::F16),
    ("bfloat16", RowEncoding::BF16),
    ("float8_e4m3fn", RowEncoding::F8E4M3),
    ("float8_e5m2", RowEncoding::F8E5M2),
    ("int8_scale_first", RowEncoding::I8(ScaleBias::First)),
    ("int8_scale_last", RowEncoding::I8(ScaleBias::Last)),
    ("int8_scale_last_f32", RowEncoding::I8(ScaleBias::LastF32)),
    ("int4_scale_first", RowEncoding::I4(ScaleBias::First)),
    ("int4_scale_last", RowEncoding::I4(ScaleBias::Last)),
];

impl fmt::Display for RowEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, encoding)| encoding == self);
        f.write_str(name.map_or("int4_scale_last_f32", |(name, _)| name))
    }
}

impl FromStr for RowEncoding {
    type Err = UnknownEncoding;

    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        let full = match name {
            "int8" => "int8_scale_first",
            "int4" => "int4_scale_first",
            _ => name,
        };
        let known = NAMES.iter().find(|(known, _)| *known == full);
        known
            .map(|&(_, encoding)| encoding)
            .ok_or_else(|| UnknownEncoding(name.to_owned()))
    }
}

impl RowEncoding {
    /// Bytes of a row; none of no elements, of an odd number of 4-bit codes, of 4-bit codes with
    /// [`ScaleBias::LastF32`], or where the bytes exceed a usize.
    pub fn row_bytes(self, dim: usize) -> Option<usize> {
        match self {
            _ if dim == 0 => None,
            RowEncoding::F32 => dim.checked_mul(4),
            RowEncoding::F16 | RowEncoding::BF16 => dim.checked_mul(2),
            RowEncoding::F8E4M3 | RowEncoding::F8E5M2 => Some(dim),
            RowEncoding::I8(ScaleBias::LastF32) => dim.checked_add(8),
            RowEncoding::I8(_) => dim.checked_add(4),
            RowEncoding::I4(ScaleBias::LastF32) => None,
            RowEncoding::I4(_) => dim.is_multiple_of(2).then(|| dim / 2 + 4),
        }
    }

    /// Whether every f32 is decoded as it was encoded.
    pub fn is_lossless_f32(self) -> bool {
        self == RowEncoding::F32
    }

    /// Encodes a row of `dim` numbers in [`row_bytes`](Self::row_bytes) bytes. Floats are rounded
    /// to the nearest, ties to even. Codes are FBGEMM's, byte for byte:
    /// `FloatOrHalfToFused8BitRowwiseQuantizedSBFloat` for [`ScaleBias::LastF32`],
    /// `FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf` for the others.
    ///
    /// Non-finite numbers have no code. A NaN gets code 0, and scale and bias are those of the
    /// other elements, unless it comes first: then scale and bias are NaN, and so is all of the row
    /// when decoded. With an infinity, or a range beyond that of the scale's type, all codes are 0,
    /// and scale or bias is infinite or NaN: the row is decoded to NaN. So in FBGEMM's reference
    /// forms, which its packages run; in its forms for AVX2 a NaN also hides elements before it.
    ///
    /// Cost: a fraction of a nanosecond a number; no scratch.
    ///
    /// # Panics
    /// No row has this number of elements, or `out` another length than a row.
    pub fn encode(self, row: &[f32], out: &mut [u8]) {
        assert_eq!(
            self.row_bytes(row.len()),
            Some(out.len()),
            "bytes of {self} of {} elements",
            row.len()
        );
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || match self {
                RowEncoding::I8(place) | RowEncoding::I4(place) => {
                    quantize::encode(self, place, row, out)
                }
                _ => floats::encode(self, row, out),
            },
        );
    }

    /// Decodes a row to `out.len()` numbers.
    ///
    /// # Panics
    /// The row has another length than one of `out.len()` elements.
    pub fn decode(self, row: &[u8], out: &mut [f32]) {
        one(self, Operation::Copy, row, 1.0, out);
    }

    /// sum += row.
    ///
    /// # Panics
    /// The row has another length than one of `sum.len()` elements.
    pub fn add(self, row: &[u8], sum: &mut [f32]) {
        one(self, Operation::Add, row, 1.0, sum);
    }

    /// sum = fma(weight, row, sum).
    ///
    /// # Panics
    /// The row has another length than one of `sum.len()` elements.
    pub fn add_weighted(self, row: &[u8], weight: f32, sum: &mut [f32]) {
        one(self, Operation::AddWeighted, row, weight, sum);
    }

    /// most = row where row > most.
    ///
    /// # Panics
    /// The row has another length than one of `most.len()` elements.
    pub fn max(self, row: &[u8], most: &mut [f32]) {
        one(self, Operation::Max, row, 1.0, most);
    }
}
