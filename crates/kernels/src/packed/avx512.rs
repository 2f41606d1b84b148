//! Rows of f32 to 18 bits and back on AVX-512, sixteen elements of each quarter at a time; the same
//! bits as on every CPU.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LOW_BITS, SHARERS, bits};
use crate::RealType;
use crate::caches::fetch;

const LANES: usize = 16;
/// Added to a smaller number, it leaves that number rounded to an integer in the low bits.
const ROUNDING: f32 = 8_388_608.0;

/// Prefetch distance in bytes: the data comes from the device, not from a cache.
const FETCHED_BYTES: usize = 2048;

/// Whether this CPU can run them.
pub(super) fn serves() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

fn lanes(count: usize) -> __mmask16 {
    if count >= LANES {
        __mmask16::MAX
    } else {
        (1 << count) - 1
    }
}

/// As [`Packing::unpack`](super::Packing::unpack), of whole rows.
///
/// # Panics
/// A CPU without the instructions, slices of other lengths.
pub(super) fn unpack(out: &mut [f32], bytes: &[u8], row_bytes: usize, step: &[f32], base: &[f32]) {
    let d = step.len();
    assert!(serves() && base.len() == d && row_bytes >= 2 * d + d.div_ceil(SHARERS));
    for (out, bytes) in out
        .chunks_exact_mut(d.max(1))
        .zip(bytes.chunks_exact(row_bytes.max(1)))
    {
        // SAFETY: the CPU has the instructions; a row has d elements, and its bytes the upper and
        // lower bits of as many (asserted).
        unsafe {
            unpack_row(
                out.as_mut_ptr(),
                bytes.as_ptr(),
                step.as_ptr(),
                base.as_ptr(),
                d,
            )
        };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn unpack_row(
    out: *mut f32,
    bytes: *const u8,
    step: *const f32,
    base: *const f32,
    d: usize,
) {
    let shared = d.div_ceil(SHARERS);
    let low = bytes.wrapping_add(2 * d);
    for line in (0..2 * d + shared).step_by(64) {
        fetch(bytes.wrapping_add(FETCHED_BYTES + line));
    }
    for at in (0..shared).step_by(LANES) {
        // SAFETY: only bytes of lower bits are read.
        let mut lower = unsafe {
            _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(
                lanes(shared - at),
                low.wrapping_add(at).cast(),
            ))
        };
        for part in 0..SHARERS {
            let (from, mask) = (
                part * shared + at,
                lanes(in_part(d, part).saturating_sub(at)),
            );
            // SAFETY: only elements of this part are read and written.
            unsafe {
                let high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                    mask,
                    bytes.wrapping_add(2 * from).cast(),
                ));
                let low = _mm512_and_si512(lower, _mm512_set1_epi32((1 << LOW_BITS) - 1));
                let steps =
                    _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_slli_epi32::<LOW_BITS>(high), low));
                let step = _mm512_maskz_loadu_ps(mask, step.wrapping_add(from));
                let base = _mm512_maskz_loadu_ps(mask, base.wrapping_add(from));
                // A step has three bits: the product is exact.
                _mm512_mask_storeu_ps(
                    out.wrapping_add(from),
                    mask,
                    _mm512_fmadd_ps(step, steps, base),
                );
            }
            lower = _mm512_srli_epi32::<LOW_BITS>(lower);
        }
    }
}

/// Number of elements whose lower bits are at this position in their bytes.
fn in_part(d: usize, part: usize) -> usize {
    let shared = d.div_ceil(SHARERS);
    d.saturating_sub(part * shared).min(shared)
}

/// Packs one row.
///
/// # Panics
/// A CPU without the instructions, slices of other lengths.
pub(super) fn pack_row(out: &mut [u8], row: &[f32], least: &[f32], per_step: &[f32]) {
    let (d, shared) = (row.len(), row.len().div_ceil(SHARERS));
    assert!(serves() && least.len() >= d && per_step.len() >= d && out.len() >= 2 * d + shared);
    out[2 * d + shared..].fill(0);
    // SAFETY: the CPU has the instructions, the slices are as long (asserted).
    unsafe {
        pack_elements(
            out.as_mut_ptr(),
            row.as_ptr(),
            least.as_ptr(),
            per_step.as_ptr(),
            d,
        )
    };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_elements(
    out: *mut u8,
    row: *const f32,
    least: *const f32,
    per_step: *const f32,
    d: usize,
) {
    let shared = d.div_ceil(SHARERS);
    let most = _mm512_set1_epi32((1 << bits(RealType::F32)) - 1);
    for at in (0..shared).step_by(LANES) {
        let mut low = _mm512_setzero_si512();
        for part in (0..SHARERS).rev() {
            let (from, mask) = (
                part * shared + at,
                lanes(in_part(d, part).saturating_sub(at)),
            );
            // SAFETY: only elements of this part are read and written.
            let steps = unsafe {
                let x = _mm512_maskz_loadu_ps(mask, row.wrapping_add(from));
                let above = _mm512_sub_ps(x, _mm512_maskz_loadu_ps(mask, least.wrapping_add(from)));
                let per_step = _mm512_maskz_loadu_ps(mask, per_step.wrapping_add(from));
                _mm512_add_ps(_mm512_mul_ps(above, per_step), _mm512_set1_ps(ROUNDING))
            };
            let steps = _mm512_min_epu32(
                _mm512_and_si512(_mm512_castps_si512(steps), _mm512_set1_epi32(0x7f_ffff)),
                most,
            );
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<LOW_BITS>(steps));
            // SAFETY: as above.
            unsafe { _mm256_mask_storeu_epi16(out.wrapping_add(2 * from).cast(), mask, high) };
            let bits = _mm512_maskz_and_epi32(mask, steps, _mm512_set1_epi32((1 << LOW_BITS) - 1));
            low = _mm512_or_si512(_mm512_slli_epi32::<LOW_BITS>(low), bits);
        }
        let low = _mm512_cvtepi32_epi8(low);
        // SAFETY: as many lower bits as the first part has elements.
        unsafe {
            _mm_mask_storeu_epi8(out.wrapping_add(2 * d + at).cast(), lanes(shared - at), low)
        };
    }
}
