//! X^T X and column sums of integers of 8 bits, exactly, in i64.
//!
//! With AVX512-VNNI products of bytes are summed in i32. On other CPUs bytes become f32, and
//! [`syrk`](crate::syrk()) gives exact sums: integers from -128 to 127 have products of at most
//! 2^14, 1024 of which have a sum of at most 2^24, and f32 has every integer up to there, so that
//! no order of summation rounds. Integers without sign are moved into that range: with x = s + 128,
//! the sum of x_i x_j is that of s_i s_j + 128 (s_i + s_j) + 128^2.

#[cfg(target_arch = "x86_64")]
mod avx512;

use bytemuck::{Pod, Zeroable};
use faer::{MatMut, MatRef};

use crate::view::{row_slice, row_slice_mut};
use crate::{Blas, Error, gemm_scratch_bytes, gemm_until, syrk_until, view, view_mut};

/// Rows whose products have sums that f32 has: 2^24 / 2^14.
const EXACT_ROWS: usize = 1024;

/// How the bytes of a matrix are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// From 0 to 255 (u8), also truth values.
    Unsigned,
    /// From -128 to 127 (i8), in two's complement.
    Signed,
}

impl Byte {
    /// The integer that a byte is.
    pub fn value(self, byte: u8) -> i64 {
        match self {
            Self::Unsigned => i64::from(byte),
            Self::Signed => i64::from(byte.cast_signed()),
        }
    }
}

/// Adds the products x^T x to `gram` and the sums of columns to `sums`: exact integers.
///
/// Of x with d columns, `gram` has the d rows and the first w columns of the products, and `sums`
/// the first w sums; w is d for all of them. The part of `gram` above its diagonal is neither read
/// nor written.
///
/// Shapes: x is n x d with contiguous rows any distance apart, gram d x w with contiguous rows, w
/// <= d, sums w; `scratch` at least [`byte_gram_scratch_bytes`], of any alignment and content.
///
/// Cost: the operations of [`syrk`](crate::syrk()) and of the product below the square, in a
/// quarter of the time of f32 with AVX512-VNNI, and in the same time without; reads x once, reads
/// and writes `gram` once for 1024 rows. i64 is enough for 10^14 rows.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: the same on every CPU, in every order of rows.
///
/// ```
/// use outcore_kernels::{Byte, byte_gram, byte_gram_scratch_bytes, view, view_mut};
///
/// // Rows of two columns, three bytes apart.
/// let x = [1, 200, 0, 3, 255];
/// let (mut gram, mut sums) = ([0; 4], [0; 2]);
/// let mut scratch = vec![0; byte_gram_scratch_bytes(2, 2, 2)];
/// byte_gram(
///     view_mut(&mut gram, 2, 2, 2, 1)?,
///     &mut sums,
///     view(&x, 2, 2, 3, 1)?,
///     Byte::Unsigned,
///     &mut scratch,
/// )?;
/// assert_eq!(sums, [4, 455]);
/// assert_eq!(gram, [10, 0, 965, 105_025]);
/// # Ok::<(), outcore_kernels::Error>(())
/// ```
pub fn byte_gram(
    gram: MatMut<'_, i64>,
    sums: &mut [i64],
    x: MatRef<'_, u8>,
    byte: Byte,
    scratch: &mut [u8],
) -> Result<(), Error> {
    byte_gram_until(gram, sums, x, byte, scratch, &|| false)
}

/// As [`byte_gram`], until `stop` returns true; it is called every 1024 rows at least. The content
/// of `gram` and `sums` is then unspecified.
///
/// # Errors
/// [`Error::Shape`].
pub fn byte_gram_until(
    gram: MatMut<'_, i64>,
    sums: &mut [i64],
    x: MatRef<'_, u8>,
    byte: Byte,
    scratch: &mut [u8],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let ((n, d), w) = (x.shape(), sums.len());
    let contiguous =
        (x.col_stride() == 1 || d <= 1) && (gram.col_stride() == 1 || gram.ncols() <= 1);
    let needed = byte_gram_scratch_bytes(n, d, w);
    if gram.shape() != (d, w) || w > d || !contiguous || scratch.len() < needed {
        return Err(Error::shape(
            "byte_gram",
            &[
                ("x", &x.shape()),
                ("gram", &gram.shape()),
                ("sums", &w),
                ("whether rows are contiguous", &contiguous),
                ("scratch", &scratch.len()),
            ],
        ));
    }
    if n == 0 || w == 0 {
        return Ok(());
    }
    let scratch = lines(scratch);
    #[cfg(target_arch = "x86_64")]
    if avx512::serves() {
        avx512::byte_gram(gram, sums, x, byte, scratch, stop);
        return Ok(());
    }
    by_floats(gram, sums, x, byte, scratch, stop)
}

/// Bytes of scratch that [`byte_gram`] needs for n rows of d columns and w columns of products, or
/// fewer rows.
pub fn byte_gram_scratch_bytes(n: usize, d: usize, w: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if avx512::serves() {
        return (avx512::scratch_lines(n, d, w) + 1) * size_of::<Line>();
    }
    (float_lines(n, d, w) + 1) * size_of::<Line>()
}

/// Bytes that [`byte_gram`] holds beside its arguments: none with AVX512-VNNI.
pub fn byte_gram_held_bytes(n: usize, d: usize, w: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if avx512::serves() {
        return 0;
    }
    gemm_scratch_bytes::<f32>(d, w, n.min(EXACT_ROWS), &Blas::Builtin)
}

/// A cache line, in which scratch is divided.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The whole lines of a slice.
fn lines(scratch: &mut [u8]) -> &mut [Line] {
    bytemuck::pod_align_to_mut(scratch).1
}

/// Lines that hold a number of elements of four bytes.
const fn lines_of(elements: usize) -> usize {
    elements.div_ceil(16)
}

fn float_lines(n: usize, d: usize, w: usize) -> usize {
    lines_of(n.min(EXACT_ROWS) * d) + lines_of(d * w) + lines_of(d)
}

/// [`byte_gram`] on every CPU.
fn by_floats(
    mut gram: MatMut<'_, i64>,
    sums: &mut [i64],
    x: MatRef<'_, u8>,
    byte: Byte,
    scratch: &mut [Line],
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let ((n, d), w) = (x.shape(), sums.len());
    let (wide, rest) = scratch.split_at_mut(lines_of(n.min(EXACT_ROWS) * d));
    let (products, rest) = rest.split_at_mut(lines_of(d * w));
    let wide: &mut [f32] = bytemuck::cast_slice_mut(wide);
    let products = &mut bytemuck::cast_slice_mut(products)[..d * w];
    let totals = &mut bytemuck::cast_slice_mut::<_, i32>(rest)[..d];
    let offset = match byte {
        Byte::Unsigned => 128,
        Byte::Signed => 0,
    };
    for top in (0..n).step_by(EXACT_ROWS) {
        if stop() {
            return Ok(());
        }
        let rows = EXACT_ROWS.min(n - top);
        let wide = &mut wide[..rows * d];
        totals.fill(0);
        centered(wide, totals, x.subrows(top, rows), byte);
        let wide = view(wide, rows, d, d, 1)?.transpose();
        let (square, below) = view_mut(products, d, w, w, 1)?.split_at_row_mut(w);
        let (left, rest) = wide.split_at_row(w);
        syrk_until(square, 1.0, left, 0.0, &Blas::Builtin, stop)?;
        let across = left.transpose();
        gemm_until(below, 1.0, rest, across, 0.0, &Blas::Builtin, stop)?;
        for (sum, &total) in sums.iter_mut().zip(&*totals) {
            *sum += i64::from(total) + offset * rows as i64;
        }
        for (i, products) in products.chunks_exact(w.max(1)).enumerate() {
            let least = i64::from(totals[i]) * offset + offset * offset * rows as i64;
            let line = row_slice_mut(&mut gram, i).expect("rows are contiguous");
            for ((sum, &product), &total) in line.iter_mut().zip(products).zip(&*totals).take(i + 1)
            {
                *sum += product as i64 + least + i64::from(total) * offset;
            }
        }
    }
    Ok(())
}

/// Bytes as f32 from -128 to 127, row by row, and the sums of their columns.
fn centered(wide: &mut [f32], totals: &mut [i32], x: MatRef<'_, u8>, byte: Byte) {
    let flipped = match byte {
        Byte::Unsigned => 0x80,
        Byte::Signed => 0,
    };
    pulp::Arch::new().dispatch(
        #[inline(always)]
        move || {
            for (i, wide) in wide.chunks_exact_mut(totals.len().max(1)).enumerate() {
                let row = row_slice(x, i).expect("rows are contiguous");
                for ((wide, total), &byte) in wide.iter_mut().zip(&mut *totals).zip(row) {
                    let value = (byte ^ flipped).cast_signed();
                    *wide = f32::from(value);
                    *total += i32::from(value);
                }
            }
        },
    );
}

#[cfg(test)]
mod tests;
