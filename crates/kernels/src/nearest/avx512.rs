//! The nearest centres on AVX-512: sixteen rows of f32 in a vector, with distances in registers
//! only.
//!
//! A tile is two vectors of rows against eight to twelve centres, the number that divides k best:
//! its sums start as |c|^2 and gain x.(-2c) in each step of depth, as in [`gemm`](crate::gemm());
//! then each sum is compared with the two smallest so far, lane by lane. Only the results are
//! stored.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::RangeInclusive;

use faer::MatRef;

use super::Nearest;
use crate::gemm::avx512::{pack, tile_rows};
use crate::{Real, RealType};

/// Centres of a tile, limited by registers for two sums each; at least enough to hide the latency
/// of an addition.
const TILE_CENTERS: RangeInclusive<usize> = 8..=12;
/// Most rows packed at a time, whose tiles all use one sliver of centres: 128 KiB at 64 features of
/// f32, in the second-level cache. Callers with long rows pass fewer.
const BLOCK_ROWS: usize = 512;
/// A vector.
const ALIGNMENT: usize = 64;
/// Longer rows of a tile exceed the second-level cache.
const DEPTH_MAX: usize = 4096;

/// Whether [`nearest`] runs on this CPU, for rows of `features` elements.
pub(super) fn serves(features: usize) -> bool {
    features <= DEPTH_MAX
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
}

/// Centres in slivers of a tile: their squares, then -2 c, column by column, the elements of all
/// centres side by side.
pub(super) struct Slivers<T> {
    width: usize,
    numbers: Vec<T>,
}

impl<T: Real> Slivers<T> {
    pub(super) fn of(centers: &[T], squares: &[T]) -> Slivers<T> {
        let d = centers.len() / squares.len().max(1);
        let padded = |width: &usize| squares.len().next_multiple_of(*width);
        let width = TILE_CENTERS
            .rev()
            .min_by_key(padded)
            .expect("there are some widths");
        let mut numbers = Vec::with_capacity(padded(&width) * (d + 1));
        for first in (0..squares.len()).step_by(width) {
            let each = first..first + width;
            // Padding is infinitely far from every row.
            numbers.extend(
                each.clone()
                    .map(|center| squares.get(center).copied().unwrap_or(T::of(f64::INFINITY))),
            );
            for j in 0..d {
                numbers.extend(each.clone().map(|center| {
                    T::of(-2.0 * centers.get(center * d + j).map_or(0.0, |c| c.f64()))
                }));
            }
        }
        Slivers { width, numbers }
    }
}

/// Elements of scratch for n rows of d.
pub(super) fn scratch<T: Real>(n: usize, d: usize) -> usize {
    n.min(BLOCK_ROWS).next_multiple_of(tile_rows::<T>()) * d + ALIGNMENT / size_of::<T>()
}

/// As [`super::nearest_until`].
///
/// # Panics
/// A CPU without AVX-512, results of other lengths than x has rows, too little scratch.
pub(super) fn nearest<T: Real>(
    into: Nearest<'_, T>,
    x: MatRef<'_, T>,
    centers: &Slivers<T>,
    scratch: &mut [T],
    stop: &dyn Fn() -> bool,
) {
    let (n, d) = x.shape();
    assert!(
        serves(d)
            && [
                into.label.len(),
                into.first.len(),
                into.second.len(),
                into.squares.len()
            ] == [n; 4]
    );
    assert!(scratch.len() >= self::scratch::<T>(n, d));
    let packed = scratch.as_mut_ptr();
    let packed = packed.wrapping_add(packed.align_offset(ALIGNMENT));
    for top in (0..n).step_by(BLOCK_ROWS) {
        let rows = BLOCK_ROWS.min(n - top);
        // SAFETY: the CPU has the instructions (asserted); scratch holds `rows` rows beyond its
        // first boundary.
        unsafe { pack(packed, x.subrows(top, rows), tile_rows::<T>()) };
        for (group, squares) in into.squares[top..top + rows]
            .chunks_mut(tile_rows::<T>())
            .enumerate()
        {
            let x = packed.wrapping_add(group * tile_rows::<T>() * d);
            // SAFETY: the group has these rows packed.
            unsafe {
                match T::DTYPE {
                    RealType::F32 => {
                        single::squares(bytemuck::cast_slice_mut(squares), x.cast(), d)
                    }
                    RealType::F64 => {
                        double::squares(bytemuck::cast_slice_mut(squares), x.cast(), d)
                    }
                }
            }
        }
        for (number, sliver) in centers
            .numbers
            .chunks_exact(centers.width * (d + 1))
            .enumerate()
        {
            if stop() {
                return;
            }
            for group in (0..rows).step_by(tile_rows::<T>()) {
                let tile = Tile {
                    x: packed.wrapping_add(group * d),
                    sliver: sliver.as_ptr(),
                    depth: d,
                    start: (number * centers.width) as u32,
                    rows: tile_rows::<T>().min(rows - group),
                    label: into.label[top + group..].as_mut_ptr(),
                    first: into.first[top + group..].as_mut_ptr(),
                    second: into.second[top + group..].as_mut_ptr(),
                };
                // SAFETY: the group has these rows packed, the sliver `centers.width` centres, the
                // results one element a row.
                unsafe {
                    match T::DTYPE {
                        RealType::F32 => single::fold(tile.cast(), centers.width),
                        RealType::F64 => double::fold(tile.cast(), centers.width),
                    }
                }
            }
        }
    }
}

/// Arguments and results of one tile.
struct Tile<E> {
    x: *const E,
    sliver: *const E,
    depth: usize,
    /// Number of the first centre.
    start: u32,
    rows: usize,
    label: *mut u32,
    first: *mut E,
    second: *mut E,
}

impl<T> Tile<T> {
    fn cast<E>(self) -> Tile<E> {
        let Tile {
            x,
            sliver,
            depth,
            start,
            rows,
            label,
            first,
            second,
        } = self;
        Tile {
            x: x.cast(),
            sliver: sliver.cast(),
            depth,
            start,
            rows,
            label,
            first: first.cast(),
            second: second.cast(),
        }
    }
}

/// The functions that use vectors, for the module that defines the vector type.
macro_rules! vectors {
    () => {
        /// # Safety
        /// The CPU has AVX-512; x begins a group of packed rows of this depth, at least as many as
        /// there are squares to find.
        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn squares(out: &mut [Element], mut x: *const Element, depth: usize) {
            let mut sums = [all(0.0); 2];
            for _ in 0..depth {
                // SAFETY: the group holds `depth` times two vectors.
                let [top, bottom] = unsafe { [load(x), load(x.wrapping_add(LANES))] };
                sums = [fma(top, top, sums[0]), fma(bottom, bottom, sums[1])];
                x = x.wrapping_add(2 * LANES);
            }
            for (out, sum) in out.chunks_mut(LANES).zip(sums) {
                let mask = if out.len() >= LANES {
                    Mask::MAX
                } else {
                    (1 << out.len()) - 1
                };
                // SAFETY: only lanes of the slice are written.
                unsafe { masked_store(out.as_mut_ptr(), mask, sum) };
            }
        }

        /// # Safety
        /// x begins a group of packed rows of this depth, the sliver `width` centres; the results
        /// have as many rows as the group.
        pub(super) unsafe fn fold(tile: Tile<Element>, width: usize) {
            // SAFETY: the caller's promise.
            unsafe {
                match width {
                    8 => fold_of::<8>(tile),
                    9 => fold_of::<9>(tile),
                    10 => fold_of::<10>(tile),
                    11 => fold_of::<11>(tile),
                    12 => fold_of::<12>(tile),
                    _ => unreachable!("no tile is as wide"),
                }
            }
        }

        #[target_feature(enable = "avx512f,avx512vl")]
        unsafe fn fold_of<const N: usize>(tile: Tile<Element>) {
            let mut sums: [[Vector; 2]; N] = std::array::from_fn(|j| {
                // SAFETY: the sliver begins with N squares.
                [all(unsafe { *tile.sliver.wrapping_add(j) }); 2]
            });
            let (mut x, mut centers) = (tile.x, tile.sliver.wrapping_add(N));
            for _ in 0..tile.depth {
                // SAFETY: group and sliver hold `depth` times two vectors, and N elements.
                unsafe {
                    let (top, bottom) = (load(x), load(x.wrapping_add(LANES)));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let factor = all(*centers.wrapping_add(j));
                        *sum = [fma(top, factor, sum[0]), fma(bottom, factor, sum[1])];
                    }
                }
                x = x.wrapping_add(2 * LANES);
                centers = centers.wrapping_add(N);
            }
            for half in 0..2 {
                let (from, rows) = (half * LANES, tile.rows.saturating_sub(half * LANES));
                let mask = if rows >= LANES {
                    Mask::MAX
                } else {
                    (1 << rows) - 1
                };
                let (first_at, second_at) = (
                    tile.first.wrapping_add(from),
                    tile.second.wrapping_add(from),
                );
                let label_at = tile.label.wrapping_add(from).cast();
                // SAFETY: only lanes of the rows are read.
                let mut first = unsafe { masked_load(mask, first_at) };
                // SAFETY: as above.
                let mut second = unsafe { masked_load(mask, second_at) };
                // SAFETY: as above.
                let mut label = unsafe { masked_load_numbers(mask, label_at) };
                for (j, sum) in sums.iter().enumerate() {
                    let (value, number) = (sum[half], all_numbers((tile.start + j as u32) as i32));
                    // On equality the first wins; a NaN is never nearer.
                    let nearer = compare::<_CMP_LT_OQ>(value, first);
                    second = least(choose(nearer, value, first), second);
                    first = choose(nearer, first, value);
                    label = choose_numbers(label, nearer, number);
                }
                // SAFETY: only lanes of the rows are written.
                unsafe {
                    masked_store(first_at, mask, first);
                    masked_store(second_at, mask, second);
                    masked_store_numbers(label_at, mask, label);
                }
            }
        }
    };
}

mod single {
    use super::*;
    use std::arch::x86_64::{
        __m512 as Vector, __mmask16 as Mask, _mm512_cmp_ps_mask as compare, _mm512_fmadd_ps as fma,
        _mm512_load_ps as load, _mm512_mask_blend_ps as choose,
        _mm512_mask_mov_epi32 as choose_numbers, _mm512_mask_storeu_epi32 as masked_store_numbers,
        _mm512_mask_storeu_ps as masked_store, _mm512_maskz_loadu_epi32 as masked_load_numbers,
        _mm512_maskz_loadu_ps as masked_load, _mm512_min_ps as least,
        _mm512_set1_epi32 as all_numbers, _mm512_set1_ps as all,
    };

    type Element = f32;
    const LANES: usize = 16;
    vectors!();
}

mod double {
    use super::*;
    use std::arch::x86_64::{
        __m512d as Vector, __mmask8 as Mask, _mm256_mask_mov_epi32 as choose_numbers,
        _mm256_mask_storeu_epi32 as masked_store_numbers,
        _mm256_maskz_loadu_epi32 as masked_load_numbers, _mm256_set1_epi32 as all_numbers,
        _mm512_cmp_pd_mask as compare, _mm512_fmadd_pd as fma, _mm512_load_pd as load,
        _mm512_mask_blend_pd as choose, _mm512_mask_storeu_pd as masked_store,
        _mm512_maskz_loadu_pd as masked_load, _mm512_min_pd as least, _mm512_set1_pd as all,
    };

    type Element = f64;
    const LANES: usize = 8;
    vectors!();
}
