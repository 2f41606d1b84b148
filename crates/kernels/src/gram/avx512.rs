//! Products of bytes on AVX512-VNNI, of which one instruction adds four to each of sixteen sums.
//!
//! The instruction multiplies bytes without sign by bytes with sign, so that each element is packed
//! as both: as u from 0 to 255, and as s = u - 128. With x = u - o (o is 0 for bytes without sign,
//! 128 for those with), the sum of x_i x_j over rows is that of s_i u_j, plus (128 - o) times that
//! of u_j, minus o times that of s_i.
//!
//! ```text
//!   u: slivers of 16 columns, s: slivers of 8, each for all rows of a block, four rows at a time
//!
//!   row      0  1  2  3 |  0  1  2  3 | ...
//!   column   0  0  0  0 |  1  1  1  1 | ...
//! ```
//!
//! A tile has 8 rows of the products, of which each step broadcasts four bytes of s, and at most 48
//! columns, three vectors of u: 24 sums, in registers for all rows of the block. They are added to
//! the i64 of the caller once for a block, for which i32 is enough: 2^10 rows of 2^16 at most.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};

use super::{Byte, Line};

/// Rows whose products one instruction adds up.
const GROUP: usize = 4;
/// Columns of a vector of u, and of its sliver.
const LANES: usize = 16;
/// Columns of s in a sliver: rows of a tile.
const TILE_ROWS: usize = 8;
/// Vectors of a tile.
const TILE_VECTORS: usize = 3;
/// Rows of a block: the three slivers of u of a tile are 48 KiB, that of s is 8 KiB.
const BLOCK_ROWS: usize = 1024;
/// Columns that are packed at a time: their slivers are written side by side.
const PACKED_COLUMNS: usize = 256;

/// Whether this CPU can run [`byte_gram`].
pub(super) fn serves() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Where the parts of a block of `groups` groups of rows are, in lines. Slivers are a line longer
/// than they need to be: at distances of a power of two, all would be in the same few sets of the
/// first-level cache while they are written.
#[derive(Clone, Copy)]
struct Layout {
    /// Slivers of u.
    vectors: usize,
    /// Pairs of slivers of s.
    pairs: usize,
    unsigned: usize,
    signed: usize,
}

impl Layout {
    fn of(n: usize, d: usize, w: usize) -> Layout {
        let groups = n.min(BLOCK_ROWS).div_ceil(GROUP);
        Layout {
            vectors: w.div_ceil(LANES),
            pairs: d.div_ceil(LANES),
            unsigned: groups + 1,
            signed: groups.div_ceil(2) + 1,
        }
    }

    fn lines(self) -> usize {
        self.vectors * self.unsigned + 2 * self.pairs * self.signed + self.pairs
    }
}

/// Lines of scratch for n rows of d columns, and w columns of products.
pub(super) fn scratch_lines(n: usize, d: usize, w: usize) -> usize {
    Layout::of(n, d, w).lines()
}

/// As [`super::byte_gram`].
///
/// # Panics
/// A CPU without AVX512-VNNI, other shapes, too little scratch.
pub(super) fn byte_gram(
    mut gram: MatMut<'_, i64>,
    sums: &mut [i64],
    x: MatRef<'_, u8>,
    byte: Byte,
    scratch: &mut [Line],
    stop: &dyn Fn() -> bool,
) {
    let ((n, d), w) = (x.shape(), sums.len());
    assert!(serves() && gram.shape() == (d, w) && w <= d);
    assert!((x.col_stride() == 1 || d == 1) && (gram.col_stride() == 1 || w == 1));
    let layout = Layout::of(n, d, w);
    let (unsigned, rest) = scratch[..layout.lines()].split_at_mut(layout.vectors * layout.unsigned);
    let (signed, totals) = rest.split_at_mut(2 * layout.pairs * layout.signed);
    let mut block = Block {
        layout,
        unsigned,
        signed,
        totals: bytemuck::cast_slice_mut(totals),
        rows: 0,
        byte,
    };
    for top in (0..n).step_by(BLOCK_ROWS) {
        if stop() {
            return;
        }
        block.rows = BLOCK_ROWS.min(n - top);
        // SAFETY: the CPU has the instructions (asserted); rows of x are contiguous (asserted), and
        // the block was made for as many rows and columns.
        unsafe { block.pack(x.subrows(top, block.rows)) };
        let offset = block.offset() * block.rows as i64;
        for (sum, &total) in sums.iter_mut().zip(&*block.totals) {
            *sum += i64::from(total) - offset;
        }
        block.multiply(gram.rb_mut());
    }
}

/// Packed rows.
struct Block<'a> {
    layout: Layout,
    unsigned: &'a mut [Line],
    signed: &'a mut [Line],
    /// Sums of u, of all columns.
    totals: &'a mut [i32],
    rows: usize,
    byte: Byte,
}

impl Block<'_> {
    /// What is subtracted from u.
    fn offset(&self) -> i64 {
        match self.byte {
            Byte::Unsigned => 0,
            Byte::Signed => 128,
        }
    }

    fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// Packs rows and sums their columns. Rows and columns that fill up groups and slivers have a u
    /// of 0 in the rows, anything in the columns.
    ///
    /// # Safety
    /// The CPU has AVX512-VNNI; rows of x are contiguous; the layout is for as many rows and
    /// columns, or more rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn pack(&mut self, x: MatRef<'_, u8>) {
        let d = x.ncols();
        self.totals.fill(0);
        for start in (0..d).step_by(PACKED_COLUMNS) {
            let pairs = start / LANES..d.min(start + PACKED_COLUMNS).div_ceil(LANES);
            for group in 0..self.groups() {
                let rows = GROUP.min(self.rows - group * GROUP);
                let row = |i: usize| x.subrows(group * GROUP + i.min(rows - 1), 1).as_ptr();
                let rows = (std::array::from_fn(row), rows);
                for pair in pairs.clone() {
                    // SAFETY: these rows have d columns, more than precede the pair; the slivers of
                    // the pair have such a group.
                    unsafe { self.pack_square(rows, d, pair, group) };
                }
            }
        }
    }

    /// Packs four rows of sixteen columns, where they exist.
    ///
    /// # Safety
    /// The CPU has AVX512-VNNI; the pointers begin as many rows of d columns as is said, and the
    /// others may be anything; the layout has the pair of slivers and the group.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn pack_square(
        &mut self,
        (rows, count): ([*const u8; GROUP], usize),
        d: usize,
        pair: usize,
        group: usize,
    ) {
        let start = pair * LANES;
        let columns = lanes(d - start);
        let row = |i: usize| {
            let mask = if i < count { columns } else { 0 };
            // SAFETY: only columns of the row are read, and nothing of a row that does not exist.
            unsafe { _mm_maskz_loadu_epi8(mask, rows[i].wrapping_add(start).cast()) }
        };
        let (first, second) = (
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(0)), row(1)),
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(2)), row(3)),
        );
        let square = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        let square = match self.byte {
            Byte::Unsigned => square,
            Byte::Signed => {
                let exist = u64::MAX >> (LANES * (GROUP - count));
                _mm512_xor_si512(square, _mm512_maskz_set1_epi8(exist, i8::MIN))
            }
        };
        // Four columns of each row to each quarter, then the rows of each column side by side.
        let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let quarters = _mm512_permutexvar_epi32(_mm512_cvtepi8_epi32(order), square);
        let unsigned = _mm512_shuffle_epi8(quarters, _mm512_broadcast_i32x4(order));
        let signed = _mm512_xor_si512(unsigned, _mm512_set1_epi8(i8::MIN));
        let Layout {
            unsigned: line,
            signed: half,
            vectors,
            ..
        } = self.layout;
        // SAFETY: the layout has a line for this group in each sliver of u, half a line in each of
        // s, and totals of sixteen columns for each pair; all of them are aligned.
        unsafe {
            if pair < vectors {
                let to = self.unsigned.as_mut_ptr().add(pair * line + group);
                _mm512_store_si512(to.cast(), unsigned);
            }
            let low = self
                .signed
                .as_mut_ptr()
                .add(2 * pair * half)
                .cast::<__m256i>();
            let high = self.signed.as_mut_ptr().add((2 * pair + 1) * half);
            _mm256_store_si256(low.add(group), _mm512_castsi512_si256(signed));
            _mm256_store_si256(
                high.cast::<__m256i>().add(group),
                _mm512_extracti64x4_epi64::<1>(signed),
            );
            let totals = self.totals.as_mut_ptr().add(start);
            let sums = _mm512_dpbusd_epi32(
                _mm512_load_si512(totals.cast()),
                unsigned,
                _mm512_set1_epi8(1),
            );
            _mm512_store_si512(totals.cast(), sums);
        }
    }

    /// Adds the products of the packed rows to `gram`, tile by tile.
    fn multiply(&self, mut gram: MatMut<'_, i64>) {
        let (d, w) = gram.shape();
        for first in (0..self.layout.vectors).step_by(TILE_VECTORS) {
            for top in (first * LANES..d).step_by(TILE_ROWS) {
                let last = (top + TILE_ROWS).min(d) - 1;
                let vectors = (last / LANES + 1).min(self.layout.vectors) - first;
                let width = w - first * LANES;
                let gram = gram
                    .rb_mut()
                    .submatrix_mut(top, first * LANES, last + 1 - top, width);
                // SAFETY: the CPU has the instructions, since the block is packed; it has these
                // vectors, and the sliver of these rows.
                unsafe {
                    match vectors {
                        1 => self.tile::<1>(gram, top, first),
                        2 => self.tile::<2>(gram, top, first),
                        _ => self.tile::<TILE_VECTORS>(gram, top, first),
                    }
                }
            }
        }
    }

    /// Adds a tile of N vectors to `gram`, which begins at element (top, 16 first) of the products,
    /// as far as it is there and on or below the diagonal.
    ///
    /// # Safety
    /// The CPU has AVX512-VNNI; there are N packed vectors from `first` on, and a sliver that
    /// begins at column `top`, a multiple of its width; `gram` has contiguous rows, at most those
    /// of a tile.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn tile<const N: usize>(&self, gram: MatMut<'_, i64>, top: usize, first: usize) {
        let (rows, width) = gram.shape();
        let (to, stride) = (gram.as_ptr_mut(), gram.row_stride());
        let line = |i: usize| to.wrapping_offset(i as isize * stride);
        for i in 0..rows {
            for at in (0..width.min(N * LANES)).step_by(8) {
                _mm_prefetch::<_MM_HINT_T0>(line(i).wrapping_add(at).cast());
            }
        }
        // SAFETY: the caller's promise.
        let sums = unsafe { self.sums::<N>(top, first) };
        for (i, sums) in sums.into_iter().enumerate().take(rows) {
            let held = (top + i + 1 - first * LANES).min(width);
            for (vector, sum) in sums.into_iter().enumerate() {
                let mask = lanes(held.saturating_sub(vector * LANES));
                let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sum));
                let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(sum));
                for (half, (mask, sum)) in [(mask as u8, low), ((mask >> 8) as u8, high)]
                    .into_iter()
                    .enumerate()
                {
                    let to = line(i).wrapping_add(vector * LANES + half * 8);
                    // SAFETY: only elements that `gram` has in this row are read and written.
                    unsafe {
                        let old = _mm512_maskz_loadu_epi64(mask, to);
                        _mm512_mask_storeu_epi64(to, mask, _mm512_add_epi64(old, sum));
                    }
                }
            }
        }
    }

    /// The products of eight columns from `top` on with N vectors of columns.
    ///
    /// # Safety
    /// As for [`tile`](Block::tile).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn sums<const N: usize>(&self, top: usize, first: usize) -> [[__m512i; N]; TILE_ROWS] {
        let offset = self.offset() as i32;
        let columns: [__m512i; N] = std::array::from_fn(|vector| {
            let totals = self.totals[(first + vector) * LANES..].as_ptr();
            // SAFETY: there are totals for each column of a sliver.
            let totals = unsafe { _mm512_load_si512(totals.cast()) };
            _mm512_mullo_epi32(totals, _mm512_set1_epi32(128 - offset))
        });
        let mut sums: [[__m512i; N]; TILE_ROWS] = std::array::from_fn(|i| {
            let signed = self.totals[top + i] - 128 * self.rows as i32;
            columns.map(|sum| _mm512_sub_epi32(sum, _mm512_set1_epi32(offset * signed)))
        });
        let sliver = self.layout.unsigned;
        let mut u = self.unsigned[first * sliver..].as_ptr().cast::<__m512i>();
        let s = self.signed[top / TILE_ROWS * self.layout.signed..].as_ptr();
        let mut s = s.cast::<[i32; TILE_ROWS]>();
        for _ in 0..self.groups() {
            // SAFETY: the slivers have as many groups.
            let (vectors, factors): ([__m512i; N], &[i32; TILE_ROWS]) = unsafe {
                (
                    std::array::from_fn(|vector| _mm512_load_si512(u.add(vector * sliver))),
                    &*s,
                )
            };
            for (sums, &factor) in sums.iter_mut().zip(factors) {
                let factor = _mm512_set1_epi32(factor);
                for (sum, &vector) in sums.iter_mut().zip(&vectors) {
                    *sum = _mm512_dpbusd_epi32(*sum, vector, factor);
                }
            }
            (u, s) = (u.wrapping_add(1), s.wrapping_add(1));
        }
        sums
    }
}

/// A mask of the first `count` lanes, at most all.
fn lanes(count: usize) -> __mmask16 {
    if count >= LANES {
        __mmask16::MAX
    } else {
        (1 << count) - 1
    }
}
