//! Products on AVX512-BF16, of which one instruction adds a pair to each of sixteen sums.
//!
//! A tile has 8 rows of the left operand, of which each step broadcasts a pair, and two slivers of
//! the right one: 16 sums, in registers for the whole depth.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{BLOCK, LANES, Line};

/// Rows of the left operand whose sums are in registers.
const TILE_ROWS: usize = 8;
/// Slivers of the right one.
const SLIVERS: usize = BLOCK / LANES;

/// Whether this CPU can run [`multiply`].
pub(super) fn serves() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// The products of a block of each operand.
///
/// # Panics
/// Too little room, operands that are no blocks of equal depth, another CPU.
pub(super) fn multiply(c: &mut [f32], stride: usize, a: &[Line], b: &[Line]) {
    assert!(serves() && a.len() == b.len() && a.len().is_multiple_of(BLOCK));
    assert!(stride >= BLOCK && c.len() >= (BLOCK - 1) * stride + BLOCK);
    let pairs = a.len() / BLOCK * LANES;
    let (a, b): (&[u32], &[u32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    for row in (0..BLOCK).step_by(TILE_ROWS) {
        // SAFETY: the CPU has the instructions; the left operand has `pairs` for each of its rows,
        // the right one LANES times as many for each sliver, and c has the rows (all asserted).
        unsafe {
            tile(
                c.as_mut_ptr().add(row * stride),
                stride,
                a.as_ptr().add(row * pairs),
                b.as_ptr(),
                pairs,
            );
        }
    }
}

/// # Safety
/// The CPU has AVX512-BF16. `a` has `pairs` pairs in each of [`TILE_ROWS`] rows, `b` a sliver of as
/// many lines [`SLIVERS`] times, and `c` room for the rows, `stride` elements apart.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile(c: *mut f32, stride: usize, a: *const u32, b: *const u32, pairs: usize) {
    let mut sums = [[_mm512_setzero_ps(); SLIVERS]; TILE_ROWS];
    for pair in 0..pairs {
        // SAFETY: `pair` is below the number of pairs of each row and sliver; vectors and integers
        // have any bits.
        unsafe {
            let b: [__m512bh; SLIVERS] = std::array::from_fn(|sliver| {
                let line = b.add((sliver * pairs + pair) * LANES);
                std::mem::transmute(_mm512_loadu_si512(line.cast()))
            });
            for (row, sums) in sums.iter_mut().enumerate() {
                let of_row = _mm512_set1_epi32((*a.add(row * pairs + pair)).cast_signed());
                let of_row: __m512bh = std::mem::transmute(of_row);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_dpbf16_ps(*sum, of_row, b);
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (sliver, sum) in sums.iter().enumerate() {
            // SAFETY: c has the rows.
            unsafe { _mm512_storeu_ps(c.add(row * stride + sliver * LANES), *sum) };
        }
    }
}
