//! Eight and sixteen f32 in a vector, and how they are decoded.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

/// A vector of f32. Every function needs a CPU with its instructions.
pub(super) trait Lanes: Copy {
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

#[derive(Clone, Copy)]
pub(super) struct Eight(__m256);

// SAFETY of the blocks: the CPU has the instructions, and the bytes that a number needs are there
// (the caller's).
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
            // The sign twice, exponent and mantissa: without the second sign, a half of 2^-8 times
            // the number. What carries to the uppermost bit of the exponent is a NaN.
            let upper = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(at.cast()));
            let half = _mm_and_si128(_mm_srai_epi16::<1>(upper), _mm_set1_epi16(!0x4000));
            let carry = _mm_add_epi16(half, _mm_set1_epi16(0x80));
            let nan = _mm_and_si128(carry, _mm_set1_epi16(0x4000));
            let numbers = _mm256_cvtph_ps(_mm_or_si128(half, nan));
            Eight(_mm256_mul_ps(numbers, _mm256_set1_ps(256.0)))
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
pub(super) struct Sixteen(__m512);

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
            // As above.
            let upper = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast())));
            let half = _mm256_and_si256(_mm256_srai_epi16::<1>(upper), _mm256_set1_epi16(!0x4000));
            let carry = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
            let nan = _mm256_and_si256(carry, _mm256_set1_epi16(0x4000));
            let numbers = _mm512_cvtph_ps(_mm256_or_si256(half, nan));
            Sixteen(_mm512_mul_ps(numbers, _mm512_set1_ps(256.0)))
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
