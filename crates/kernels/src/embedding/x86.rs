//! Rows on AVX2 and AVX-512: numbers are decoded in registers, and results stay there for all rows of a
//! call.
//!
//! One form for both, over vectors of [`Lanes`]. The columns are walked in tiles of up to eight
//! vectors, each over all rows. A number of columns that is no multiple of a vector ends with a vector that
//! overlaps the one before it: it starts from what was there before, so both find the same
//! results. What is shorter than a vector goes to shorter vectors, then to the plain form.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::pool::{Group, Operation};
use super::{RowEncoding, ScaleBias, plain};

/// Whether this CPU can run [`run_avx2`].
pub(super) fn serves_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Whether this CPU can run [`run_avx512`].
pub(super) fn serves_avx512() -> bool {
    serves_avx2() && is_x86_feature_detected!("avx512f")
}

/// As [`Group::run`].
///
/// # Panics
/// A CPU without the instructions, rows of another length.
pub(super) fn run_avx2(group: Group<'_>, out: &mut [f32]) {
    if out.len() < Eight::COUNT {
        return plain::run(group, out);
    }
    assert!(serves_avx2() && fits(group, out));
    // SAFETY: the CPU has the instructions, the results fill a vector and fit the rows (asserted).
    unsafe { avx2(group, out) };
}

/// As [`Group::run`].
///
/// # Panics
/// A CPU without the instructions, rows of another length.
pub(super) fn run_avx512(group: Group<'_>, out: &mut [f32]) {
    if out.len() < Sixteen::COUNT {
        return run_avx2(group, out);
    }
    assert!(serves_avx512() && fits(group, out));
    // SAFETY: the CPU has the instructions, the results fill a vector and fit the rows (asserted).
    unsafe { avx512(group, out) };
}

/// Whether every row has as many elements as the results, and a weight.
fn fits(group: Group<'_>, out: &[f32]) -> bool {
    let bytes = group.encoding.row_bytes(out.len());
    group.weights.len() == group.rows.len() && group.rows.iter().all(|row| Some(row.len()) == bytes)
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(group: Group<'_>, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe { operate::<Eight>(group, out) };
}

#[target_feature(enable = "avx2,fma,f16c,avx512f")]
unsafe fn avx512(group: Group<'_>, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe { operate::<Sixteen>(group, out) };
}

/// A vector of f32. Every function needs a CPU with its instructions.
trait Lanes: Copy {
    const COUNT: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn store(self, at: *mut f32);
    unsafe fn plus(self, x: Self) -> Self;
    unsafe fn times(self, x: Self) -> Self;
    unsafe fn times_plus(self, x: Self, y: Self) -> Self;
    /// x where x > self.
    unsafe fn or_greater(self, x: Self) -> Self;

    // The next numbers at any address, of whose bytes only theirs are read.
    unsafe fn f32(at: *const u8) -> Self;
    unsafe fn f16(at: *const u8) -> Self;
    unsafe fn bf16(at: *const u8) -> Self;
    unsafe fn e4m3(at: *const u8) -> Self;
    unsafe fn e5m2(at: *const u8) -> Self;
    unsafe fn u8(at: *const u8) -> Self;
    unsafe fn u4(at: *const u8) -> Self;

    /// Two f16 in all lanes each.
    unsafe fn two_f16(at: *const u8) -> (Self, Self);
    /// Two f32 in all lanes each.
    unsafe fn two_f32(at: *const u8) -> (Self, Self);
}

/// The numbers of one encoding: `row` is at its first byte.
trait Numbers: Copy {
    /// What a row is decoded with.
    unsafe fn scale_bias<L: Lanes>(self, _row: *const u8, _dim: usize) -> (L, L) {
        // SAFETY: the caller's.
        unsafe { (L::splat(1.0), L::splat(0.0)) }
    }

    /// A vector of the numbers from `column` on, which are within the row.
    unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, scale_bias: (L, L)) -> L;
}

macro_rules! floats {
    ($($name:ident $of:ident $bytes:literal),*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl Numbers for $name {
            #[inline(always)]
            unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, _: (L, L)) -> L {
                // SAFETY: the caller's: the numbers are within the row.
                unsafe { L::$of(row.add($bytes * column)) }
            }
        }
    )*};
}
floats!(F32 f32 4, F16 f16 2, Bf16 bf16 2, E4m3 e4m3 1, E5m2 e5m2 1);

/// Codes of which so many share a byte.
#[derive(Clone, Copy)]
struct Codes<const SHARERS: usize>(ScaleBias);

impl<const SHARERS: usize> Numbers for Codes<SHARERS> {
    #[inline(always)]
    unsafe fn scale_bias<L: Lanes>(self, row: *const u8, dim: usize) -> (L, L) {
        // SAFETY: the caller's: a row has its scale and bias there.
        unsafe {
            match self.0 {
                ScaleBias::First => L::two_f16(row),
                ScaleBias::Last => L::two_f16(row.add(dim / SHARERS)),
                ScaleBias::LastF32 => L::two_f32(row.add(dim / SHARERS)),
            }
        }
    }

    #[inline(always)]
    unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, (scale, bias): (L, L)) -> L {
        let first = if self.0 == ScaleBias::First { 4 } else { 0 };
        // SAFETY: the caller's: the codes are within the row.
        unsafe {
            let at = row.add(first + column / SHARERS);
            let codes = if SHARERS == 2 { L::u4(at) } else { L::u8(at) };
            codes.times_plus(scale, bias)
        }
    }
}

// Operations as parameters of types: what one does is known where its loop is compiled.
const COPY: u8 = Operation::Copy as u8;
const ADD: u8 = Operation::Add as u8;
const ADD_WEIGHTED: u8 = Operation::AddWeighted as u8;
const ADD_PRODUCT: u8 = Operation::AddProduct as u8;
const MAX: u8 = Operation::Max as u8;

/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn operate<L: Lanes>(group: Group<'_>, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        match group.operation {
            Operation::Copy => decode::<L, COPY>(group, out),
            Operation::Add => decode::<L, ADD>(group, out),
            Operation::AddWeighted => decode::<L, ADD_WEIGHTED>(group, out),
            Operation::AddProduct => decode::<L, ADD_PRODUCT>(group, out),
            Operation::Max => decode::<L, MAX>(group, out),
        }
    }
}

/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn decode<L: Lanes, const OPERATION: u8>(group: Group<'_>, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        match group.encoding {
            RowEncoding::F32 => walk::<L, _, OPERATION>(F32, group, out),
            RowEncoding::F16 => walk::<L, _, OPERATION>(F16, group, out),
            RowEncoding::BF16 => walk::<L, _, OPERATION>(Bf16, group, out),
            RowEncoding::F8E4M3 => walk::<L, _, OPERATION>(E4m3, group, out),
            RowEncoding::F8E5M2 => walk::<L, _, OPERATION>(E5m2, group, out),
            RowEncoding::I8(place) => walk::<L, _, OPERATION>(Codes::<1>(place), group, out),
            RowEncoding::I4(place) => walk::<L, _, OPERATION>(Codes::<2>(place), group, out),
        }
    }
}

/// # Safety
/// The CPU has the instructions of `L`; `out` fills a vector and [`fits`] the rows.
#[inline(always)]
unsafe fn walk<L: Lanes, N: Numbers, const OPERATION: u8>(
    numbers: N,
    group: Group<'_>,
    out: &mut [f32],
) {
    let (dim, last) = (out.len(), out.len() - L::COUNT);
    // SAFETY: the caller's; tiles are within the columns.
    unsafe {
        let before = L::f32(out.as_ptr().add(last).cast());
        let mut column = 0;
        while column + 8 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 8>(numbers, group, out, column);
            column += 8 * L::COUNT;
        }
        if column + 4 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 4>(numbers, group, out, column);
            column += 4 * L::COUNT;
        }
        if column + 2 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 2>(numbers, group, out, column);
            column += 2 * L::COUNT;
        }
        if column + L::COUNT <= dim {
            tile::<L, N, OPERATION, 1>(numbers, group, out, column);
            column += L::COUNT;
        }
        if column < dim {
            before.store(out.as_mut_ptr().add(last));
            tile::<L, N, OPERATION, 1>(numbers, group, out, last);
        }
    }
}

/// # Safety
/// As [`walk`], and `out` has `K` vectors from `column` on.
#[inline(always)]
unsafe fn tile<L: Lanes, N: Numbers, const OPERATION: u8, const K: usize>(
    numbers: N,
    group: Group<'_>,
    out: &mut [f32],
    column: usize,
) {
    let (dim, out) = (out.len(), out[column..].as_mut_ptr());
    // SAFETY: the caller's: the vectors are within `out`, the numbers within every row.
    unsafe {
        let mut results = [L::splat(0.0); K];
        for (k, result) in results.iter_mut().enumerate() {
            *result = L::f32(out.add(k * L::COUNT).cast());
        }
        for (row, &weight) in group.rows.iter().zip(group.weights) {
            let row = row.as_ptr();
            let (scale_bias, weight) = (numbers.scale_bias::<L>(row, dim), L::splat(weight));
            for (k, result) in results.iter_mut().enumerate() {
                let x = numbers.at(row, column + k * L::COUNT, scale_bias);
                *result = match OPERATION {
                    COPY => x,
                    ADD => result.plus(x),
                    ADD_WEIGHTED => x.times_plus(weight, *result),
                    ADD_PRODUCT => result.plus(x.times(weight)),
                    MAX => result.or_greater(x),
                    _ => unreachable!(),
                };
            }
        }
        for (k, result) in results.iter().enumerate() {
            result.store(out.add(k * L::COUNT));
        }
    }
}

#[derive(Clone, Copy)]
struct Eight(__m256);

// SAFETY of the blocks: the CPU has the instructions, and the bytes that a number needs are there (the caller's).
impl Lanes for Eight {
    const COUNT: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: above.
        unsafe { _mm256_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, x: Self) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_add_ps(self.0, x.0)) }
    }

    #[inline(always)]
    unsafe fn times(self, x: Self) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_mul_ps(self.0, x.0)) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, x: Self, y: Self) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_fmadd_ps(self.0, x.0, y.0)) }
    }

    #[inline(always)]
    unsafe fn or_greater(self, x: Self) -> Self {
        // The second operand where the first is not greater.
        // SAFETY: above.
        unsafe { Eight(_mm256_max_ps(x.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn f32(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_loadu_ps(at.cast())) }
    }

    #[inline(always)]
    unsafe fn f16(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe { Eight(_mm256_cvtph_ps(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn bf16(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            Eight(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper)))
        }
    }

    #[inline(always)]
    unsafe fn e4m3(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            let bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(at.cast()));
            let magnitude = _mm_and_si128(bytes, _mm_set1_epi16(0x7f));
            let sign = _mm_slli_epi16::<8>(_mm_and_si128(bytes, _mm_set1_epi16(0x80)));
            let nan = _mm_and_si128(
                _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)),
                _mm_set1_epi16(0x4000),
            );
            let half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16::<7>(magnitude));
            Eight(_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0)))
        }
    }

    #[inline(always)]
    unsafe fn e5m2(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            Eight(_mm256_cvtph_ps(_mm_unpacklo_epi8(
                _mm_setzero_si128(),
                _mm_loadl_epi64(at.cast()),
            )))
        }
    }

    #[inline(always)]
    unsafe fn u8(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            Eight(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(
                at.cast(),
            ))))
        }
    }

    #[inline(always)]
    unsafe fn u4(at: *const u8) -> Self {
        // SAFETY: above; four bytes are eight codes.
        unsafe {
            let all = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
            let codes = _mm256_srlv_epi32(all, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            Eight(_mm256_cvtepi32_ps(_mm256_and_si256(
                codes,
                _mm256_set1_epi32(15),
            )))
        }
    }

    #[inline(always)]
    unsafe fn two_f16(at: *const u8) -> (Self, Self) {
        // SAFETY: above.
        unsafe {
            let two = _mm_cvtph_ps(_mm_cvtsi32_si128(at.cast::<i32>().read_unaligned()));
            (
                Eight(_mm256_broadcastss_ps(two)),
                Eight(_mm256_broadcastss_ps(_mm_movehdup_ps(two))),
            )
        }
    }

    #[inline(always)]
    unsafe fn two_f32(at: *const u8) -> (Self, Self) {
        // SAFETY: above.
        unsafe {
            let at = at.cast::<f32>();
            (
                Self::splat(at.read_unaligned()),
                Self::splat(at.add(1).read_unaligned()),
            )
        }
    }
}

#[derive(Clone, Copy)]
struct Sixteen(__m512);

// SAFETY of the blocks: as for `Eight`.
impl Lanes for Sixteen {
    const COUNT: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: above.
        unsafe { _mm512_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, x: Self) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_add_ps(self.0, x.0)) }
    }

    #[inline(always)]
    unsafe fn times(self, x: Self) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_mul_ps(self.0, x.0)) }
    }

    #[inline(always)]
    unsafe fn times_plus(self, x: Self, y: Self) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_fmadd_ps(self.0, x.0, y.0)) }
    }

    #[inline(always)]
    unsafe fn or_greater(self, x: Self) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_max_ps(x.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn f32(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_loadu_ps(at.cast())) }
    }

    #[inline(always)]
    unsafe fn f16(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe { Sixteen(_mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn bf16(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            Sixteen(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper)))
        }
    }

    #[inline(always)]
    unsafe fn e4m3(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
            let magnitude = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(bytes, _mm256_set1_epi16(0x80)));
            let nan = _mm256_and_si256(
                _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)),
                _mm256_set1_epi16(0x4000),
            );
            let half = _mm256_or_si256(
                _mm256_or_si256(sign, nan),
                _mm256_slli_epi16::<7>(magnitude),
            );
            Sixteen(_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0)))
        }
    }

    #[inline(always)]
    unsafe fn e5m2(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast()));
            Sixteen(_mm512_cvtph_ps(_mm256_slli_epi16::<8>(bytes)))
        }
    }

    #[inline(always)]
    unsafe fn u8(at: *const u8) -> Self {
        // SAFETY: above.
        unsafe {
            Sixteen(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(
                at.cast(),
            ))))
        }
    }

    #[inline(always)]
    unsafe fn u4(at: *const u8) -> Self {
        // SAFETY: above; eight bytes are sixteen codes.
        unsafe {
            // Each four bytes in eight lanes.
            let all = _mm512_set1_epi64(at.cast::<i64>().read_unaligned());
            let all = _mm512_permutexvar_epi32(
                _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                all,
            );
            let shifts =
                _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
            let codes = _mm512_and_si512(_mm512_srlv_epi32(all, shifts), _mm512_set1_epi32(15));
            Sixteen(_mm512_cvtepi32_ps(codes))
        }
    }

    #[inline(always)]
    unsafe fn two_f16(at: *const u8) -> (Self, Self) {
        // SAFETY: above.
        unsafe {
            let two = _mm_cvtph_ps(_mm_cvtsi32_si128(at.cast::<i32>().read_unaligned()));
            (
                Sixteen(_mm512_broadcastss_ps(two)),
                Sixteen(_mm512_broadcastss_ps(_mm_movehdup_ps(two))),
            )
        }
    }

    #[inline(always)]
    unsafe fn two_f32(at: *const u8) -> (Self, Self) {
        // SAFETY: above.
        unsafe {
            let at = at.cast::<f32>();
            (
                Self::splat(at.read_unaligned()),
                Self::splat(at.add(1).read_unaligned()),
            )
        }
    }
}
