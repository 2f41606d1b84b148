//! Plain twins of the fast kernels: their definitions, in the fewest lines, for tests.
//!
//! Everything is computed in f64 from the definitions, without optimisation, and integers in i64.
//! They panic if shapes differ.
#![forbid(unsafe_code)]

use crate::{Byte, Norm, Real};
use faer::{Mat, MatMut, MatRef};

/// c = alpha a b + beta c.
pub fn gemm<T: Real>(mut c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, b: MatRef<'_, T>, beta: T) {
    assert!(a.nrows() == c.nrows() && a.ncols() == b.nrows() && b.ncols() == c.ncols());
    for i in 0..c.nrows() {
        for j in 0..c.ncols() {
            c[(i, j)] = entry(alpha, a, b, i, j, beta, c[(i, j)]);
        }
    }
}

/// Lower triangle of c = alpha a a^T + beta c.
pub fn syrk<T: Real>(mut c: MatMut<'_, T>, alpha: T, a: MatRef<'_, T>, beta: T) {
    assert!(a.nrows() == c.nrows() && c.ncols() == c.nrows());
    for i in 0..c.nrows() {
        for j in 0..=i {
            c[(i, j)] = entry(alpha, a, a.transpose(), i, j, beta, c[(i, j)]);
        }
    }
}

/// Adds x^T x on and below the diagonal, its first columns as many as there are sums, and the sums
/// of these columns of x.
pub fn byte_gram(mut gram: MatMut<'_, i64>, sums: &mut [i64], x: MatRef<'_, u8>, byte: Byte) {
    assert_eq!(gram.shape(), (x.ncols(), sums.len()));
    for (j, sum) in sums.iter_mut().enumerate() {
        let column = |j| (0..x.nrows()).map(move |row| byte.value(x[(row, j)]));
        *sum += column(j).sum::<i64>();
        for i in j..x.ncols() {
            gram[(i, j)] += column(i).zip(column(j)).map(|(a, b)| a * b).sum::<i64>();
        }
    }
}

fn entry<T: Real>(
    alpha: T,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    i: usize,
    j: usize,
    beta: T,
    old: T,
) -> T {
    let product = if alpha == T::ZERO {
        0.0
    } else {
        (0..a.ncols())
            .map(|p| a[(i, p)].f64() * b[(p, j)].f64())
            .sum()
    };
    let old = if beta == T::ZERO {
        0.0
    } else {
        beta.f64() * old.f64()
    };
    T::of(alpha.f64() * product + old)
}

/// The norm of a list of numbers.
pub fn norm(values: impl Iterator<Item = f64>, norm: Norm) -> f64 {
    match norm {
        Norm::L1 => values.map(f64::abs).sum(),
        Norm::L2 => values.map(|x| x * x).sum::<f64>().sqrt(),
        Norm::Max => values
            .map(f64::abs)
            .fold(0.0, |a, b| if a.is_nan() || a > b { a } else { b }),
    }
}

/// Mean and sum of squared deviations of each column.
pub fn column_moments<T: Real>(x: MatRef<'_, T>) -> Vec<(f64, f64)> {
    (0..x.ncols())
        .map(|j| {
            let column = (0..x.nrows()).map(|i| x[(i, j)].f64());
            let mean = column.clone().sum::<f64>() / x.nrows() as f64;
            (mean, column.map(|x| (x - mean) * (x - mean)).sum())
        })
        .collect()
}

/// Eigenvalues, largest first, and eigenvectors as columns of a symmetric matrix, by the cyclic
/// Jacobi method.
pub fn eigh(c: MatRef<'_, f64>) -> (Vec<f64>, Mat<f64>) {
    let n = c.nrows();
    assert_eq!(n, c.ncols());
    let (mut a, mut v) = (c.to_owned(), Mat::<f64>::identity(n, n));
    for _sweep in 0..64 {
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, p, q);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[(j, j)].total_cmp(&a[(i, i)]));
    let values = order.iter().map(|&j| a[(j, j)]).collect();
    (values, Mat::from_fn(n, n, |i, j| v[(i, order[j])]))
}

fn rotate(a: &mut Mat<f64>, v: &mut Mat<f64>, p: usize, q: usize) {
    if a[(p, q)] == 0.0 {
        return;
    }
    let theta = (a[(q, q)] - a[(p, p)]) / (2.0 * a[(p, q)]);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let t = if theta == 0.0 { 1.0 } else { t };
    let cosine = 1.0 / (t * t + 1.0).sqrt();
    let sine = t * cosine;
    for i in 0..a.nrows() {
        let (x, y) = (a[(i, p)], a[(i, q)]);
        (a[(i, p)], a[(i, q)]) = (cosine * x - sine * y, sine * x + cosine * y);
        let (x, y) = (v[(i, p)], v[(i, q)]);
        (v[(i, p)], v[(i, q)]) = (cosine * x - sine * y, sine * x + cosine * y);
    }
    for j in 0..a.ncols() {
        let (x, y) = (a[(p, j)], a[(q, j)]);
        (a[(p, j)], a[(q, j)]) = (cosine * x - sine * y, sine * x + cosine * y);
    }
}
