//! The product on AVX-512: both operands packed into panels, tiles of C in registers.
//!
//! The loops have the order of Goto and van de Geijn: a packed panel of B in memory, a block of A
//! in the second-level cache, and for all its tiles one sliver of B in the first-level cache; a
//! tile of C is kept in 24 registers for the whole depth. There are about a hundred operations for
//! each byte from memory, so that slow memory does not slow a core down.
#![allow(unsafe_code)]

use crate::{Real, RealType};
use faer::reborrow::ReborrowMut;
use faer::{MatMut, MatRef};
use std::arch::x86_64::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns of a tile of C, and of a sliver of B.
const TILE_COLS: usize = 12;
/// Bytes of a column of a tile: two vectors.
const TILE_BYTES: usize = 128;
/// Bytes of a row of packed B, and of a column of packed A, over the whole depth: a sliver of B
/// takes 24 KiB.
const DEPTH_BYTES: usize = 2048;
/// Rows of the packed block of A: 768 KiB, below the second-level cache of every CPU with AVX-512.
const BLOCK_ROWS: usize = 384;
/// Columns of the packed panel of B: 2 MiB.
const PANEL_COLS: usize = 86 * TILE_COLS;
/// Steps of depth by which the block of A is fetched ahead.
const AHEAD: usize = 8;
const ALIGNMENT: usize = 64;

/// Whether this CPU can run [`gemm`].
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// Rows of a tile.
pub(crate) const fn tile_rows<T>() -> usize {
    TILE_BYTES / size_of::<T>()
}

const fn depth<T>() -> usize {
    DEPTH_BYTES / size_of::<T>()
}

/// Which elements of C are wanted: all, or those of a triangle. The others are neither read nor
/// written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Triangle {
    Whole,
    /// On and below the diagonal.
    Lower,
    /// On and above the diagonal.
    Upper,
}

impl Triangle {
    /// Whether element (i, j) belongs to it.
    fn holds(self, i: usize, j: usize) -> bool {
        match self {
            Self::Whole => true,
            Self::Lower => i >= j,
            Self::Upper => i <= j,
        }
    }

    /// Whether any and whether all elements of a block belong to it: decided by two opposite
    /// corners.
    fn holds_block(self, (row, rows): (usize, usize), (col, cols): (usize, usize)) -> (bool, bool) {
        let (left, right) = (
            self.holds(row + rows - 1, col),
            self.holds(row, col + cols - 1),
        );
        (left || right, left && right)
    }
}

/// c = alpha a b + beta c, with contiguous columns of c. `stop` is called before each block of
/// rows, 2^29 operations at most.
///
/// # Panics
/// Another layout of c, other shapes, a CPU without AVX-512.
pub(crate) fn gemm<T: Real>(
    mut c: MatMut<'_, T>,
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    beta: T,
    triangle: Triangle,
    stop: &dyn Fn() -> bool,
) {
    let (m, n, k) = (c.nrows(), c.ncols(), a.ncols());
    assert!(
        available() && c.row_stride() == 1 && a.nrows() == m && b.nrows() == k && b.ncols() == n
    );
    let cols = even(n, PANEL_COLS, TILE_COLS);
    let rows = even(m, BLOCK_ROWS, tile_rows::<T>());
    let depth = even(k, depth::<T>(), 1);
    let mut room = Room::new((cols + rows) * depth * size_of::<T>());
    // The block first: its tiles are read a whole vector at a time.
    let (block, panel) = room.split::<T>(rows * depth);
    for (col, cols) in steps(n, cols) {
        for (level, depth) in steps(k, depth) {
            let beta = if level == 0 { beta } else { T::ONE };
            // SAFETY: the CPU has the instructions (asserted); `panel` was made for the longest of
            // the steps.
            unsafe {
                pack(
                    panel,
                    b.submatrix(level, col, depth, cols).transpose(),
                    TILE_COLS,
                )
            };
            for (row, rows) in steps(m, rows) {
                if !triangle.holds_block((row, rows), (col, cols)).0 {
                    continue;
                }
                if stop() {
                    return;
                }
                // SAFETY: as above, with `block`.
                unsafe {
                    pack(
                        block,
                        a.submatrix(row, level, rows, depth),
                        tile_rows::<T>(),
                    )
                };
                let c = c.rb_mut().submatrix_mut(row, col, rows, cols);
                // SAFETY: both hold as many rows, columns and depth as are multiplied; columns of c
                // are contiguous (asserted).
                unsafe {
                    multiply(
                        c,
                        [alpha, beta],
                        [block, panel],
                        depth,
                        triangle,
                        [row, col],
                    )
                };
            }
        }
    }
}

/// The length of equal steps through `length`, at most `most`, as a multiple of `unit`.
fn even(length: usize, most: usize, unit: usize) -> usize {
    length
        .div_ceil(length.div_ceil(most).max(1))
        .next_multiple_of(unit)
}

fn steps(length: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length)
        .step_by(step.max(1))
        .map(move |start| (start, step.min(length - start)))
}

/// Most memory that all threads together keep for packed operands, bytes.
const KEPT_BYTES_MOST: usize = 16 << 20;
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static KEPT: Cell<Kept> = const { Cell::new(Kept(Vec::new())) };
}

/// Memory that is counted as kept.
#[derive(Default)]
struct Kept(Vec<u8>);

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT_BYTES.fetch_sub(self.0.capacity(), Ordering::Relaxed);
    }
}

/// Memory for packed operands, not written yet. A thread keeps it for its next product as long as
/// all threads together keep little: mapping it again takes the system as long as a small product.
struct Room(Vec<u8>);

impl Room {
    fn new(bytes: usize) -> Room {
        let mut kept = KEPT.try_with(Cell::take).unwrap_or_default();
        let memory = std::mem::take(&mut kept.0);
        KEPT_BYTES.fetch_sub(memory.capacity(), Ordering::Relaxed);
        if memory.capacity() >= bytes + ALIGNMENT {
            return Room(memory);
        }
        drop(memory);
        Room(Vec::with_capacity(bytes + ALIGNMENT))
    }

    /// Splits the room for two packed operands, the first, of `first` elements, at a cache line.
    fn split<T>(&mut self, first: usize) -> (*mut T, *mut T) {
        let start = self.0.as_mut_ptr();
        let start = start
            .wrapping_add(start.align_offset(ALIGNMENT))
            .cast::<T>();
        (start, start.wrapping_add(first))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let kept = Kept(std::mem::take(&mut self.0));
        let bytes = kept.0.capacity();
        if KEPT_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BYTES_MOST {
            let _ = KEPT.try_with(|own| own.set(kept));
        }
    }
}

/// Packs the rows of `a` in groups of `group`: for each group, for each column, its elements side
/// by side; the last group is filled up with zeros.
///
/// # Safety
/// The CPU has AVX-512; `to` has room for `a` with rows rounded up to a multiple of `group`, which
/// is 12 or a tile's rows.
pub(crate) unsafe fn pack<T: Real>(to: *mut T, a: MatRef<'_, T>, group: usize) {
    let depth = a.ncols();
    // SAFETY: rows and columns of `a` are readable with its strides; what is written lies in the
    // groups of `to`.
    unsafe {
        if a.row_stride() == 1 {
            // A few columns at a time for all groups: these cache lines of `a` are read once, and
            // those written fill up.
            for (level, levels) in steps(depth, AHEAD) {
                for (index, (row, rows)) in steps(a.nrows(), group).enumerate() {
                    let (from, to) = (
                        a.submatrix(row, level, rows, levels),
                        to.add((index * depth + level) * group),
                    );
                    match T::DTYPE {
                        RealType::F32 => single::copy(
                            to.cast(),
                            from.as_ptr().cast(),
                            from.col_stride(),
                            rows,
                            levels,
                            group,
                        ),
                        RealType::F64 => double::copy(
                            to.cast(),
                            from.as_ptr().cast(),
                            from.col_stride(),
                            rows,
                            levels,
                            group,
                        ),
                    }
                }
            }
            return;
        }
        for (index, (row, rows)) in steps(a.nrows(), group).enumerate() {
            let (from, to) = (a.subrows(row, rows), to.add(index * depth * group));
            match T::DTYPE {
                _ if a.col_stride() != 1 => gather(to, from, group),
                RealType::F32 => single::transpose(
                    to.cast(),
                    from.as_ptr().cast(),
                    from.row_stride(),
                    rows,
                    depth,
                    group,
                ),
                RealType::F64 => double::transpose(
                    to.cast(),
                    from.as_ptr().cast(),
                    from.row_stride(),
                    rows,
                    depth,
                    group,
                ),
            }
        }
    }
}

/// Packs one group whatever its strides.
///
/// # Safety
/// `to` has room for `group` elements a column of `a`.
unsafe fn gather<T: Real>(to: *mut T, a: MatRef<'_, T>, group: usize) {
    for level in 0..a.ncols() {
        for row in 0..group {
            let element = if row < a.nrows() {
                a[(row, level)]
            } else {
                T::ZERO
            };
            // SAFETY: `row` is below `group`, `level` a column of `a`.
            unsafe { to.add(level * group + row).write(element) };
        }
    }
}

/// c = alpha a b + beta c for a packed block and panel, in the elements of `triangle` when c begins
/// at element `at` of it.
///
/// # Safety
/// The CPU has AVX-512; `block` and `panel` hold the rows and columns of `c` at this depth; columns
/// of `c` are contiguous.
unsafe fn multiply<T: Real>(
    mut c: MatMut<'_, T>,
    [alpha, beta]: [T; 2],
    [block, panel]: [*mut T; 2],
    depth: usize,
    triangle: Triangle,
    at: [usize; 2],
) {
    let mut aside = [T::ZERO; TILE_COLS * TILE_BYTES / 4];
    for (sliver, (col, cols)) in steps(c.ncols(), TILE_COLS).enumerate() {
        let b = panel.wrapping_add(sliver * depth * TILE_COLS).cast_const();
        for (index, (row, rows)) in steps(c.nrows(), tile_rows::<T>()).enumerate() {
            let a = block
                .wrapping_add(index * depth * tile_rows::<T>())
                .cast_const();
            // The first tiles prefetch the next sliver, a part each.
            let next = b.wrapping_add(if index < TILE_COLS {
                (TILE_COLS + index) * depth
            } else {
                0
            });
            let held = triangle.holds_block((at[0] + row, rows), (at[1] + col, cols));
            let mut c = c.rb_mut().submatrix_mut(row, col, rows, cols);
            let stride = c.col_stride();
            // SAFETY: `c` begins a tile of these rows and columns, `aside` has room for one; `a`
            // and `b` begin groups of this depth.
            unsafe {
                match held {
                    (_, true) => tile(
                        c.as_ptr_mut(),
                        stride,
                        [rows, cols],
                        [alpha, beta],
                        [a, b, next],
                        depth,
                    ),
                    (false, false) => {}
                    (true, false) => {
                        let stride = tile_rows::<T>() as isize;
                        tile(
                            aside.as_mut_ptr(),
                            stride,
                            [rows, cols],
                            [alpha, T::ZERO],
                            [a, b, next],
                            depth,
                        );
                        for (j, sums) in aside.chunks_exact(tile_rows::<T>()).enumerate().take(cols)
                        {
                            for i in (0..rows)
                                .filter(|&i| triangle.holds(at[0] + row + i, at[1] + col + j))
                            {
                                c[(i, j)] = sums[i]
                                    + if beta == T::ZERO {
                                        T::ZERO
                                    } else {
                                        beta * c[(i, j)]
                                    };
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A tile of C from packed groups: `operands` are those of A and B, and the addresses to prefetch.
///
/// # Safety
/// The CPU has AVX-512; `c` has these rows and columns, at most a tile's, contiguous in columns;
/// the groups have this depth.
unsafe fn tile<T: Real>(
    c: *mut T,
    stride: isize,
    shape: [usize; 2],
    scalars: [T; 2],
    operands: [*const T; 3],
    depth: usize,
) {
    // SAFETY: the caller's promise; the casts name the type that T is.
    unsafe {
        match T::DTYPE {
            RealType::F32 => {
                let scalars = scalars.map(|x| x.f64() as f32);
                single::tile(
                    c.cast(),
                    stride,
                    shape,
                    scalars,
                    operands.map(<*const T>::cast),
                    depth,
                );
            }
            RealType::F64 => double::tile(
                c.cast(),
                stride,
                shape,
                scalars.map(T::f64),
                operands.map(<*const T>::cast),
                depth,
            ),
        }
    }
}

/// The three functions that use vectors, for the module that defines the vector type. `copy` and
/// `transpose` pack one group of `rows` (at most `group`) at `depth` columns of a matrix that is
/// column-major or row-major; `tile` multiplies one group of each operand.
macro_rules! vectors {
    () => {
        /// A mask of the first `count` lanes, at most all.
        fn lanes(count: usize) -> Mask {
            if count >= LANES {
                Mask::MAX
            } else {
                (1 << count) - 1
            }
        }

        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn copy(
            to: *mut Element,
            a: *const Element,
            stride: isize,
            rows: usize,
            depth: usize,
            group: usize,
        ) {
            for at in (0..group).step_by(LANES) {
                let (read, write) = (lanes(rows.saturating_sub(at)), lanes(group - at));
                for level in 0..depth {
                    let from = a.wrapping_offset(level as isize * stride).wrapping_add(at);
                    // SAFETY: only lanes of the rows are read, only those of the group written.
                    unsafe {
                        masked_store(to.add(level * group + at), write, masked_load(read, from))
                    };
                }
            }
        }

        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn transpose(
            to: *mut Element,
            a: *const Element,
            stride: isize,
            rows: usize,
            depth: usize,
            group: usize,
        ) {
            for level in (0..depth).step_by(LANES) {
                let read = lanes(depth - level);
                for at in (0..group).step_by(LANES) {
                    let write = lanes(group - at);
                    let mut square = [zero(); LANES];
                    for (i, line) in square.iter_mut().enumerate().take(rows.saturating_sub(at)) {
                        let from = a
                            .wrapping_offset((at + i) as isize * stride)
                            .wrapping_add(level);
                        // SAFETY: row `at + i` is one of the rows; only columns up to the depth are
                        // read.
                        *line = unsafe { masked_load(read, from) };
                    }
                    for (i, line) in turned(square).into_iter().enumerate().take(depth - level) {
                        // SAFETY: only lanes of the group are written, at columns below the depth.
                        unsafe { masked_store(to.add((level + i) * group + at), write, line) };
                    }
                }
            }
        }

        #[target_feature(enable = "avx512f")]
        pub(super) unsafe fn tile(
            c: *mut Element,
            stride: isize,
            [rows, cols]: [usize; 2],
            [alpha, beta]: [Element; 2],
            [mut a, mut b, mut next]: [*const Element; 3],
            depth: usize,
        ) {
            for j in 0..cols as isize {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_offset(j * stride).cast());
                _mm_prefetch::<_MM_HINT_T0>(
                    c.wrapping_offset(j * stride).wrapping_add(LANES).cast(),
                );
            }
            let mut sums = [[zero(); 2]; TILE_COLS];
            for _ in 0..depth {
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * 2 * LANES).cast());
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add((AHEAD * 2 + 1) * LANES).cast());
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                // SAFETY: the groups hold `depth` times two vectors, and twelve elements.
                unsafe {
                    let (top, bottom) = (load(a), load(a.add(LANES)));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let factor = all(*b.add(j));
                        *sum = [fma(top, factor, sum[0]), fma(bottom, factor, sum[1])];
                    }
                }
                a = a.wrapping_add(2 * LANES);
                b = b.wrapping_add(TILE_COLS);
                next = next.wrapping_add(1);
            }
            for (j, sum) in sums.into_iter().enumerate() {
                if j < cols {
                    for (half, sum) in sum.into_iter().enumerate() {
                        let mask = lanes(rows.saturating_sub(half * LANES));
                        let c = c
                            .wrapping_offset(j as isize * stride)
                            .wrapping_add(half * LANES);
                        let product = multiply(all(alpha), sum);
                        // SAFETY: only rows and columns of the tile are read and written.
                        unsafe {
                            let old = if beta == 0.0 {
                                product
                            } else {
                                fma(all(beta), masked_load(mask, c), product)
                            };
                            masked_store(c, mask, old);
                        }
                    }
                }
            }
        }
    };
}

mod single {
    use super::*;
    use std::arch::x86_64::{
        __mmask16 as Mask, _mm512_fmadd_ps as fma, _mm512_load_ps as load,
        _mm512_mask_storeu_ps as masked_store, _mm512_maskz_loadu_ps as masked_load,
        _mm512_mul_ps as multiply, _mm512_set1_ps as all, _mm512_setzero_ps as zero,
    };

    type Element = f32;
    const LANES: usize = 16;
    vectors!();

    /// The transpose of 16 x 16 elements.
    #[target_feature(enable = "avx512f")]
    fn turned(rows: [__m512; 16]) -> [__m512; 16] {
        let mut pairs = rows;
        for i in 0..8 {
            let (upper, lower) = (rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i] = _mm512_unpacklo_ps(upper, lower);
            pairs[2 * i + 1] = _mm512_unpackhi_ps(upper, lower);
        }
        // Lane l of fours[4 i + j] holds column 4 l + j of rows 4 i to 4 i + 3.
        let mut fours = rows;
        for i in 0..4 {
            for j in 0..2 {
                let (upper, lower) = (
                    _mm512_castps_pd(pairs[4 * i + j]),
                    _mm512_castps_pd(pairs[4 * i + 2 + j]),
                );
                fours[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(upper, lower));
                fours[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(upper, lower));
            }
        }
        let mut columns = rows;
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            let (even, odd) = (
                _mm512_shuffle_f32x4::<0x88>(a, b),
                _mm512_shuffle_f32x4::<0xdd>(a, b),
            );
            let (even_below, odd_below) = (
                _mm512_shuffle_f32x4::<0x88>(c, d),
                _mm512_shuffle_f32x4::<0xdd>(c, d),
            );
            columns[j] = _mm512_shuffle_f32x4::<0x88>(even, even_below);
            columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd_below);
            columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even_below);
            columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_below);
        }
        columns
    }
}

mod double {
    use super::*;
    use std::arch::x86_64::{
        __mmask8 as Mask, _mm512_fmadd_pd as fma, _mm512_load_pd as load,
        _mm512_mask_storeu_pd as masked_store, _mm512_maskz_loadu_pd as masked_load,
        _mm512_mul_pd as multiply, _mm512_set1_pd as all, _mm512_setzero_pd as zero,
    };

    type Element = f64;
    const LANES: usize = 8;
    vectors!();

    /// The transpose of 8 x 8 elements.
    #[target_feature(enable = "avx512f")]
    fn turned(rows: [__m512d; 8]) -> [__m512d; 8] {
        // Lane l of pairs[2 i + j] holds column 2 l + j of rows 2 i and 2 i + 1.
        let mut pairs = rows;
        for i in 0..4 {
            let (upper, lower) = (rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i] = _mm512_unpacklo_pd(upper, lower);
            pairs[2 * i + 1] = _mm512_unpackhi_pd(upper, lower);
        }
        let mut columns = rows;
        for j in 0..2 {
            let [a, b, c, d] = [pairs[j], pairs[2 + j], pairs[4 + j], pairs[6 + j]];
            let (even, odd) = (
                _mm512_shuffle_f64x2::<0x88>(a, b),
                _mm512_shuffle_f64x2::<0xdd>(a, b),
            );
            let (even_below, odd_below) = (
                _mm512_shuffle_f64x2::<0x88>(c, d),
                _mm512_shuffle_f64x2::<0xdd>(c, d),
            );
            columns[j] = _mm512_shuffle_f64x2::<0x88>(even, even_below);
            columns[2 + j] = _mm512_shuffle_f64x2::<0x88>(odd, odd_below);
            columns[4 + j] = _mm512_shuffle_f64x2::<0xdd>(even, even_below);
            columns[6 + j] = _mm512_shuffle_f64x2::<0xdd>(odd, odd_below);
        }
        columns
    }
}
