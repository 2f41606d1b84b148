//! Rows of a matrix in fewer bits: each column of a block as integer steps above its minimum.
//!
//! f32 takes 18 bits an element, f64 takes 32. The step is the smallest power of two, times 1, 5/4,
//! 3/2 or 7/4, of which 2^18 (2^32) cover the range of the column in that block: with so short a
//! significand its multiples are exact. In a block of integers it is a power of two, so that
//! integers up to 2^18, such as the bytes of an image, are unpacked unchanged.
//!
//! ```text
//! a row of d f32:  | u16 x d: upper 16 bits | u8 x q: lower 2 bits of elements j, j + q, j + 2q and j + 3q | to an even byte
//! a row of d f64:  | u32 x d |
//!
//! q = ceil(d / 4)
//! ```

#[cfg(target_arch = "x86_64")]
mod avx512;

use faer::MatRef;

use crate::elementwise::center_into;
use crate::view::{row_slice, view_mut};
use crate::{Error, Real, RealType};

/// Elements that share a byte of lower bits, and the number of bits of each.
const SHARERS: usize = 4;
const LOW_BITS: u32 = 2;
/// Rows that are compared at a time.
const ROWS_AT_ONCE: usize = 16;

/// Minimum and step of each column of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing<T> {
    least: Vec<T>,
    /// With three bits of significand; 0 for a column of equal elements.
    step: Vec<T>,
}

/// Bytes of a packed row of d elements.
pub fn packed_row_bytes<T: Real>(d: usize) -> usize {
    match T::DTYPE {
        RealType::F32 => (2 * d + d.div_ceil(SHARERS)).next_multiple_of(2),
        RealType::F64 => 4 * d,
    }
}

/// Bytes that [`Packing::error`] allocates.
pub fn packing_held_bytes<T: Real>(d: usize) -> usize {
    (2 * ROWS_AT_ONCE + 1) * d * size_of::<T>()
}

/// Whether this CPU has a kernel for these rows.
fn is_wide<T: Real>() -> bool {
    #[cfg(target_arch = "x86_64")]
    return T::DTYPE == RealType::F32 && avx512::serves();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

const fn bits(dtype: RealType) -> u32 {
    match dtype {
        RealType::F32 => 16 + LOW_BITS,
        RealType::F64 => 32,
    }
}

impl<T: Real> Packing<T> {
    /// Finds minima and steps of a block of finite elements. Keeps 2d elements.
    pub fn of(x: MatRef<'_, T>) -> Packing<T> {
        let d = x.ncols();
        let (mut least, mut most) = (
            vec![T::of(f64::INFINITY); d],
            vec![T::of(f64::NEG_INFINITY); d],
        );
        let ranges = Ranges {
            least: &mut least,
            most: &mut most,
        };
        pulp::Arch::new().dispatch(
            #[inline(always)]
            move || ranges.widen(x),
        );
        let levels = (2f64.powi(bits(T::DTYPE) as i32) - 1.0).recip();
        let parts = if are_whole(x) { 1.0 } else { 4.0 };
        let step = |(least, most): (&T, &T)| {
            let range = (most.f64() - least.f64()).max(0.0) * levels;
            let power = range.log2().floor().exp2();
            T::of(if range > 0.0 {
                (range / power * parts).ceil() / parts * power
            } else {
                0.0
            })
        };
        let step = least.iter().zip(&most).map(step).collect();
        Packing { least, step }
    }

    /// The largest distance between a row that was packed and the result of [`center_into`] for it.
    ///
    /// Shapes: x is n x d, `bytes` n times [`packed_row_bytes`], `shift` d.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn error(&self, bytes: &[u8], x: MatRef<'_, T>, shift: &[f64]) -> Result<f64, Error> {
        let (n, d) = x.shape();
        let (base, width) = (self.base(shift), packed_row_bytes::<T>(d));
        let (mut exact, mut back) = (
            vec![T::ZERO; ROWS_AT_ONCE * d],
            vec![T::ZERO; ROWS_AT_ONCE * d],
        );
        let mut most = 0.0;
        for start in (0..n).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(n - start);
            let (exact, back) = (&mut exact[..rows * d], &mut back[..rows * d]);
            center_into(
                view_mut(exact, rows, d, d, 1)?,
                x.subrows(start, rows),
                shift,
            )?;
            self.unpack(back, &bytes[start * width..(start + rows) * width], &base)?;
            let farthest = Farthest { exact, back, d };
            most = f64::max(
                most,
                pulp::Arch::new().dispatch(
                    #[inline(always)]
                    move || farthest.square(),
                ),
            );
        }
        Ok(most.sqrt() * (1.0 + d as f64 * f64::EPSILON))
    }

    /// The values that [`unpack`](Packing::unpack) adds to the steps to subtract a shift.
    pub fn base(&self, shift: &[f64]) -> Vec<T> {
        self.least
            .iter()
            .zip(shift)
            .map(|(least, shift)| T::of(least.f64() - shift))
            .collect()
    }

    /// Packs rows.
    ///
    /// Shapes: x is n x d, `out` n times [`packed_row_bytes`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn pack(&self, out: &mut [u8], x: MatRef<'_, T>) -> Result<(), Error> {
        let (n, d) = x.shape();
        let bytes = packed_row_bytes::<T>(d);
        if d != self.least.len() || out.len() != n * bytes {
            return Err(Error::shape(
                "pack",
                &[
                    ("x", &x.shape()),
                    ("columns", &self.least.len()),
                    ("out", &out.len()),
                ],
            ));
        }
        let per_step: Vec<T> = self
            .step
            .iter()
            .map(|step| {
                T::of(if step.f64() > 0.0 {
                    step.f64().recip()
                } else {
                    0.0
                })
            })
            .collect();
        let (mut row, wide) = (Vec::new(), is_wide::<T>());
        for (i, out) in out.chunks_exact_mut(bytes.max(1)).enumerate() {
            if let Some(line) = row_slice(x, i) {
                self.pack_row(out, line, &per_step, wide);
            } else {
                row.clear();
                row.extend((0..d).map(|j| x[(i, j)]));
                self.pack_row(out, &row, &per_step, wide);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn pack_row(&self, out: &mut [u8], row: &[T], per_step: &[T], wide: bool) {
        let d = row.len();
        #[cfg(not(target_arch = "x86_64"))]
        let _ = wide;
        #[cfg(target_arch = "x86_64")]
        if wide {
            let [row, least, per_step] = [row, &self.least, per_step].map(bytemuck::cast_slice);
            return avx512::pack_row(out, row, least, per_step);
        }
        match T::DTYPE {
            RealType::F32 => {
                let (row, least, per_step): (&[f32], &[f32], &[f32]) = (
                    bytemuck::cast_slice(row),
                    bytemuck::cast_slice(&self.least[..d]),
                    bytemuck::cast_slice(&per_step[..d]),
                );
                let (high, low) = out.split_at_mut(2 * d);
                let high = &mut high.as_chunks_mut::<2>().0[..d];
                // Added to 2^23, a smaller number is rounded to an integer, which is then the low
                // bits of the sum: conversions that check the range first are not vectorised. It
                // exceeds the range by at most the rounding.
                let steps = |x: f32, least: f32, per_step: f32| {
                    (((x - least) * per_step + 8_388_608.0).to_bits() & 0x7f_ffff)
                        .min((1 << bits(RealType::F32)) - 1)
                };
                for j in 0..d {
                    high[j] =
                        ((steps(row[j], least[j], per_step[j]) >> LOW_BITS) as u16).to_le_bytes();
                }
                low.fill(0);
                for (part, from) in sharers(d).enumerate() {
                    let (row, least, per_step) =
                        (&row[from.clone()], &least[from.clone()], &per_step[from]);
                    let low = &mut low[..row.len()];
                    for j in 0..row.len() {
                        let bits = steps(row[j], least[j], per_step[j]) & ((1 << LOW_BITS) - 1);
                        low[j] |= (bits << (LOW_BITS * part as u32)) as u8;
                    }
                }
            }
            RealType::F64 => {
                let out = &mut out.as_chunks_mut::<4>().0[..d];
                let (least, per_step) = (&self.least[..d], &per_step[..d]);
                for j in 0..d {
                    // As for f32, above 2^52.
                    let steps =
                        (row[j] - least[j]).f64() * per_step[j].f64() + 4_503_599_627_370_496.0;
                    out[j] = (steps.to_bits() as u32).to_le_bytes();
                }
            }
        }
    }

    /// Unpacks rows, minus the shift for which `base` was made.
    ///
    /// Shapes: `bytes` n times [`packed_row_bytes`], `out` n x d, rows one after another.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn unpack(&self, out: &mut [T], bytes: &[u8], base: &[T]) -> Result<(), Error> {
        let d = self.step.len();
        let row_bytes = packed_row_bytes::<T>(d);
        if base.len() != d
            || (d > 0 && (!out.len().is_multiple_of(d) || out.len() / d * row_bytes != bytes.len()))
        {
            return Err(Error::shape(
                "unpack",
                &[
                    ("columns", &d),
                    ("out", &out.len()),
                    ("bytes", &bytes.len()),
                ],
            ));
        }
        #[cfg(target_arch = "x86_64")]
        if is_wide::<T>() {
            let [step, base] = [&self.step, base].map(bytemuck::cast_slice);
            avx512::unpack(bytemuck::cast_slice_mut(out), bytes, row_bytes, step, base);
            return Ok(());
        }
        for (out, bytes) in out
            .chunks_exact_mut(d.max(1))
            .zip(bytes.chunks_exact(row_bytes.max(1)))
        {
            self.unpack_row(out, bytes, base);
        }
        Ok(())
    }

    #[inline(always)]
    fn unpack_row(&self, out: &mut [T], bytes: &[u8], base: &[T]) {
        let d = out.len();
        match T::DTYPE {
            RealType::F32 => {
                let out: &mut [f32] = bytemuck::cast_slice_mut(out);
                let (step, base): (&[f32], &[f32]) =
                    (bytemuck::cast_slice(&self.step), bytemuck::cast_slice(base));
                let (high, low) = bytes.split_at(2 * d);
                let high = high.as_chunks::<2>().0;
                for (part, from) in sharers(d).enumerate() {
                    let (high, low) = (&high[from.clone()], &low[..from.len()]);
                    spread(
                        &mut out[from.clone()],
                        high,
                        low,
                        &step[from.clone()],
                        &base[from],
                        LOW_BITS * part as u32,
                    );
                }
            }
            RealType::F64 => {
                let (bytes, step, base) =
                    (&bytes.as_chunks::<4>().0[..d], &self.step[..d], &base[..d]);
                for j in 0..d {
                    out[j] = base[j] + step[j] * T::of(f64::from(u32::from_le_bytes(bytes[j])));
                }
            }
        }
    }
}

/// Whether all elements are integers. Most other blocks fail in their first row.
fn are_whole<T: Real>(x: MatRef<'_, T>) -> bool {
    (0..x.nrows()).all(|i| (0..x.ncols()).all(|j| x[(i, j)].f64().fract() == 0.0))
}

/// Pairs of rows. Moved into the closure that a dispatch inlines.
struct Farthest<'a, T> {
    exact: &'a [T],
    back: &'a [T],
    d: usize,
}

impl<T: Real> Farthest<'_, T> {
    /// The square of the largest distance.
    #[inline(always)]
    fn square(self) -> f64 {
        let d = self.d.max(1);
        let mut most = 0.0;
        for (exact, back) in self.exact.chunks_exact(d).zip(self.back.chunks_exact(d)) {
            let mut sums = [0.0; 8];
            for (exact, back) in exact.chunks(8).zip(back.chunks(8)) {
                for (sum, (exact, back)) in sums.iter_mut().zip(exact.iter().zip(back)) {
                    *sum += (exact.f64() - back.f64()).powi(2);
                }
            }
            most = f64::max(most, sums.iter().sum());
        }
        most
    }
}

/// The elements whose lower bits come first, second and so on in their bytes.
fn sharers(d: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let shared = d.div_ceil(SHARERS);
    (0..SHARERS).map(move |part| (part * shared).min(d)..((part + 1) * shared).min(d))
}

/// Elements whose lower bits are those of `low` from bit `from` on.
#[inline(always)]
fn spread(out: &mut [f32], high: &[[u8; 2]], low: &[u8], step: &[f32], base: &[f32], from: u32) {
    let d = out.len();
    let (high, low, step, base) = (&high[..d], &low[..d], &step[..d], &base[..d]);
    for j in 0..d {
        let lower = (i32::from(low[j]) >> from) & ((1 << LOW_BITS) - 1);
        let steps = (i32::from(u16::from_le_bytes(high[j])) << LOW_BITS) | lower;
        out[j] = base[j] + step[j] * steps as f32;
    }
}

/// Minima and maxima of the columns so far. Moved into the closures that a dispatch inlines.
struct Ranges<'a, T> {
    least: &'a mut [T],
    most: &'a mut [T],
}

impl<T: Real> Ranges<'_, T> {
    #[inline(always)]
    fn widen(self, x: MatRef<'_, T>) {
        if x.row_stride() == 1 && x.col_stride() != 1 {
            for j in 0..x.ncols() {
                row_slice(x.transpose(), j)
                    .into_iter()
                    .flatten()
                    .for_each(|&x| widen(&mut self.least[j], &mut self.most[j], x));
            }
            return;
        }
        for row in (0..x.nrows()).filter_map(|i| row_slice(x, i)) {
            self.least
                .iter_mut()
                .zip(&mut *self.most)
                .zip(row)
                .for_each(|((least, most), &x)| widen(least, most, x));
        }
    }
}

#[inline(always)]
fn widen<T: Real>(least: &mut T, most: &mut T, x: T) {
    *least = if x < *least { x } else { *least };
    *most = if x > *most { x } else { *most };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view;
    use proptest::prelude::*;

    fn round_trip<T: Real>(x: &[T], d: usize, by_columns: bool) -> (Packing<T>, Vec<T>) {
        let n = x.len() / d;
        let (row, column) = if by_columns { (1, n) } else { (d, 1) };
        let view = view(x, n, d, row, column).unwrap();
        let packing = Packing::of(view);
        let mut bytes = vec![0; n * packed_row_bytes::<T>(d)];
        packing.pack(&mut bytes, view).unwrap();
        let mut back = vec![T::ZERO; x.len()];
        packing
            .unpack(&mut back, &bytes, &packing.base(&vec![0.0; d]))
            .unwrap();
        (packing, back)
    }

    #[test]
    fn whole_numbers_come_back_as_they_were() {
        for d in [1, 2, 3, 64] {
            let x: Vec<f32> = (0..d * 5)
                .map(|i| (i * 7919 % 256) as f32 - 100.0)
                .collect();
            assert_eq!(round_trip(&x, d, false).1, x);
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            assert_eq!(round_trip(&x, d, false).1, x);
        }
    }

    #[test]
    fn equal_elements_no_rows_and_no_columns_are_packed_too() {
        assert_eq!(round_trip(&[3.25f32; 6], 2, true).1, [3.25; 6]);
        assert_eq!(round_trip::<f64>(&[], 2, false).1, []);
        let packing = Packing::<f32>::of(view(&[], 4, 0, 0, 1).unwrap());
        packing.unpack(&mut [], &[], &[]).unwrap();
    }

    #[test]
    fn every_processor_packs_alike() {
        for d in [1, 2, 7, 15, 16, 31, 32, 33, 64, 101] {
            let x: Vec<f32> = (0..d * 9)
                .map(|i| (i * 7919 % 10_007) as f32 * 0.37 - 1000.0)
                .collect();
            let rows = view(&x, 9, d, d, 1).unwrap();
            let (packing, width) = (Packing::of(rows), packed_row_bytes::<f32>(d));
            let per_step: Vec<f32> = packing
                .step
                .iter()
                .map(|&step| if step > 0.0 { step.recip() } else { 0.0 })
                .collect();
            let base = packing.base(&vec![1.5; d]);
            let (mut packed, mut plain) = (vec![1; 9 * width], vec![2; 9 * width]);
            packing.pack(&mut packed, rows).unwrap();
            plain
                .chunks_mut(width)
                .zip(x.chunks(d))
                .for_each(|(out, row)| packing.pack_row(out, row, &per_step, false));
            assert_eq!(packed, plain, "{d}");
            let (mut back, mut plainly) = (vec![0.0; 9 * d], vec![1.0; 9 * d]);
            packing.unpack(&mut back, &packed, &base).unwrap();
            plainly
                .chunks_mut(d)
                .zip(packed.chunks(width))
                .for_each(|(out, bytes)| packing.unpack_row(out, bytes, &base));
            assert_eq!(back, plainly, "{d}");
        }
    }

    proptest! {
        #[test]
        fn rows_come_back_within_the_error(x in prop::collection::vec(-1e3f32..1e3, 5..200), d in 1usize..5, by_columns: bool) {
            let n = x.len() / d;
            let x = &x[..n * d];
            let (packing, back) = round_trip(x, d, by_columns);
            let (row, column) = if by_columns { (1, n) } else { (d, 1) };
            let view = view(x, n, d, row, column).unwrap();
            let mut bytes = vec![0; n * packed_row_bytes::<f32>(d)];
            packing.pack(&mut bytes, view).unwrap();
            let error = packing.error(&bytes, view, &vec![0.0; d]).unwrap();
            // Half a step of 2^-18 of the range, and an eighth for rounding while packing.
            prop_assert!(error < 6.8e-3 * (d as f64).sqrt());
            for i in 0..n {
                let at = |j| if by_columns { x[j * n + i] } else { x[i * d + j] };
                let off: f64 = (0..d).map(|j| (f64::from(at(j)) - f64::from(back[i * d + j])).powi(2)).sum();
                prop_assert!(off.sqrt() <= error);
            }
        }
    }
}
