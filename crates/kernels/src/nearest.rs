//! The nearest two of some centres for each row of a matrix.
//!
//! |x - c|^2 = |x|^2 + |c|^2 - 2 x.c: a product of blocks small enough that it stays in the second-level cache, and a running
//! minimum over it. The product is made transposed, one centre a line, so that the minimum runs over all rows of a block at once.
#![forbid(unsafe_code)]

use faer::MatRef;

use crate::{Blas, Error, Real, gemm, gemm_flops, gemm_scratch_bytes, view_mut};

/// Rows and centres of one product: 256 x 128 f32 are 128 KiB.
const BLOCK_ROWS: usize = 256;
const BLOCK_CENTERS: usize = 128;

/// What is found for each row: which centre is nearest, and |x - c|^2 - |x|^2 for it and for the second nearest.
pub struct Nearest<'a, T> {
    /// Number of the nearest centre, the lowest among equals.
    pub label: &'a mut [u32],
    /// Of the nearest; infinity without centres.
    pub first: &'a mut [T],
    /// Of the second nearest; infinity with fewer than two centres.
    pub second: &'a mut [T],
}

/// Finds the nearest two centres of each row of x.
///
/// Shapes: x is n x d, centers k x d, any strides; `squares` their squared lengths, k; `scratch` at least
/// [`nearest_scratch`] elements; n results. Cost: 2ndk flops, and as much memory as [`gemm`](crate::gemm()) for 128 x 256 x d. The
/// squares of x are left out, because they change no order; the error is that of the product.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: that of [`gemm`](crate::gemm()); a row's bits may depend on its place in x.
pub fn nearest<T: Real>(
    into: Nearest<'_, T>,
    x: MatRef<'_, T>,
    centers: MatRef<'_, T>,
    squares: &[T],
    scratch: &mut [T],
    blas: &Blas,
) -> Result<(), Error> {
    let (n, k) = (x.nrows(), centers.nrows());
    let fits = into.label.len() == n && into.first.len() == n && into.second.len() == n && scratch.len() >= nearest_scratch(n, k);
    if squares.len() != k || centers.ncols() != x.ncols() || !fits {
        let lengths = (into.label.len(), into.first.len(), into.second.len());
        return Err(Error::shape(
            "nearest",
            &[("x", &x.shape()), ("centers", &centers.shape()), ("squares", &squares.len()), ("results", &lengths)],
        ));
    }
    into.label.fill(0);
    into.first.fill(T::of(f64::INFINITY));
    into.second.fill(T::of(f64::INFINITY));
    for top in (0..n).step_by(BLOCK_ROWS) {
        let rows = top..(top + BLOCK_ROWS).min(n);
        let across = x.subrows(top, rows.len()).transpose();
        for start in (0..k).step_by(BLOCK_CENTERS) {
            let count = BLOCK_CENTERS.min(k - start);
            let product = &mut scratch[..count * rows.len()];
            let out = view_mut(product, count, rows.len(), rows.len(), 1)?;
            gemm(out, T::of(-2.0), centers.subrows(start, count), across, T::ZERO, blas)?;
            let (label, first) = (&mut into.label[rows.clone()], &mut into.first[rows.clone()]);
            let second = &mut into.second[rows.clone()];
            pulp::Arch::new().dispatch(
                #[inline(always)]
                || fold(label, first, second, product, &squares[start..start + count], start as u32),
            );
        }
    }
    Ok(())
}

/// Elements of scratch that [`nearest`] needs for n rows and k centres.
pub fn nearest_scratch(n: usize, k: usize) -> usize {
    n.min(BLOCK_ROWS) * k.min(BLOCK_CENTERS)
}

/// Bytes that [`nearest`] holds beside its arguments.
pub fn nearest_held_bytes<T: Real>(n: usize, d: usize, k: usize, blas: &Blas) -> usize {
    gemm_scratch_bytes::<T>(k.min(BLOCK_CENTERS), n.min(BLOCK_ROWS), d, blas)
}

/// Flops of [`nearest`].
pub fn nearest_flops(n: usize, d: usize, k: usize) -> u64 {
    gemm_flops(n, k, d)
}

#[inline(always)]
fn fold<T: Real>(label: &mut [u32], first: &mut [T], second: &mut [T], product: &[T], squares: &[T], start: u32) {
    let rows = label.len();
    let (first, second) = (&mut first[..rows], &mut second[..rows]);
    for ((number, &square), line) in (start..).zip(squares).zip(product.chunks_exact(rows)) {
        let line = &line[..rows];
        for i in 0..rows {
            let value = square + line[i];
            let nearer = value < first[i];
            let loser = if nearer { first[i] } else { value };
            second[i] = if loser < second[i] { loser } else { second[i] };
            first[i] = if nearer { value } else { first[i] };
            label[i] = if nearer { number } else { label[i] };
        }
    }
}

/// |x|^2 of each row, in f64.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn row_squares<T: Real>(out: &mut [f64], x: MatRef<'_, T>) -> Result<(), Error> {
    crate::row_norms(out, x, crate::Norm::L2)?;
    out.iter_mut().for_each(|norm| *norm *= *norm);
    Ok(())
}

/// The plain twin of [`nearest`], one row: label, first, second.
pub fn nearest_reference<T: Real>(row: &[T], centers: &[T]) -> (u32, f64, f64) {
    let mut found = (0, f64::INFINITY, f64::INFINITY);
    for (number, center) in centers.chunks_exact(row.len().max(1)).enumerate() {
        let value: f64 = row.iter().zip(center).map(|(x, c)| c.f64() * (c.f64() - 2.0 * x.f64())).sum();
        if value < found.1 {
            found = (number as u32, value, found.1);
        } else {
            found.2 = found.2.min(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn agrees_with_one_row_after_another() {
        for (n, d, k) in [(0, 3, 2), (1, 1, 1), (255, 7, 2), (257, 16, 129), (600, 3, 300), (5, 4, 0)] {
            let (x, centers) = (numbers(n * d, 7), numbers(k * d, 11));
            let squares: Vec<f32> = centers.chunks(d).map(|c| c.iter().map(|c| c * c).sum()).collect();
            let (mut label, mut first, mut second) = (vec![9; n], vec![0.0; n], vec![0.0; n]);
            let mut scratch = vec![0.0; nearest_scratch(n, k)];
            let into = Nearest { label: &mut label, first: &mut first, second: &mut second };
            let (x_view, c_view) = (view(&x, n, d, d, 1).unwrap(), view(&centers, k, d, d, 1).unwrap());
            nearest(into, x_view, c_view, &squares, &mut scratch, &Blas::Builtin).unwrap();
            for i in 0..n {
                let (want, best, next) = nearest_reference(&x[i * d..(i + 1) * d], &centers);
                let close = |a: f32, b: f64| f64::from(a) == b || (f64::from(a) - b).abs() < 1e-5 * d as f64;
                assert!(close(first[i], best) && close(second[i], next), "row {i} of {n} x {d}, {k} centres");
                assert!(label[i] == want || next - best < 1e-5 * d as f64);
            }
        }
    }

    #[test]
    fn the_first_of_equals_wins() {
        let (x, centers) = (vec![1.0f64, 2.0], [5.0, 5.0, 1.0, 2.0, 1.0, 2.0]);
        let squares = [50.0, 5.0, 5.0];
        let (mut label, mut first, mut second, mut scratch) = ([7], [0.0], [0.0], vec![0.0; nearest_scratch(1, 3)]);
        let into = Nearest { label: &mut label, first: &mut first, second: &mut second };
        let (x, centers) = (view(&x, 1, 2, 2, 1).unwrap(), view(&centers, 3, 2, 2, 1).unwrap());
        nearest(into, x, centers, &squares, &mut scratch, &Blas::Builtin).unwrap();
        assert_eq!((label[0], first[0], second[0]), (1, -5.0, -5.0));
    }
}
