//! Products of every layout against the plain twin.
//!
//! Bound: each element of C is a sum of k products, so |C - reference| <= c * eps * k * max|a| *
//! max|b|, with c = 4.

use outcore_kernels::{
    Blas, MatMut, MatRef, Real, gemm, mirror_lower, reference, syrk, view, view_mut,
};
use proptest::prelude::*;

/// A buffer that contains a matrix of numbers in [-1, 1).
struct Strided<T> {
    data: Vec<T>,
    shape: (usize, usize),
    strides: (usize, usize),
}

/// Layouts: 0 row-major, 1 column-major, 2 rows apart, 3 columns apart, 4 neither stride is one.
fn strided<T: Real>(rows: usize, cols: usize, layout: u8, seed: u64) -> Strided<T> {
    let strides = match layout {
        0 => (cols.max(1), 1),
        1 => (1, rows.max(1)),
        2 => (cols + 3, 1),
        3 => (1, rows + 5),
        _ => (2 * cols + 1, 2),
    };
    let len = rows * strides.0 + cols * strides.1 + 1;
    let mut state = seed;
    let data = (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            T::of((state >> 33) as f64 / (1u64 << 30) as f64 - 1.0)
        })
        .collect();
    Strided {
        data,
        shape: (rows, cols),
        strides,
    }
}

impl<T: Real> Strided<T> {
    fn get(&self) -> MatRef<'_, T> {
        view(
            &self.data,
            self.shape.0,
            self.shape.1,
            self.strides.0,
            self.strides.1,
        )
        .unwrap()
    }
    fn get_mut(&mut self) -> MatMut<'_, T> {
        view_mut(
            &mut self.data,
            self.shape.0,
            self.shape.1,
            self.strides.0,
            self.strides.1,
        )
        .unwrap()
    }
}

fn assert_close<T: Real>(got: &[T], expected: &[T], k: usize) {
    let bound = 4.0 * T::EPSILON.f64() * (k as f64 + 2.0);
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got == expected || (got.f64().is_nan() && expected.f64().is_nan());
        assert!(
            same || (got.f64() - expected.f64()).abs() <= bound,
            "element {i}: {got} is not {expected}"
        );
    }
}

fn check_gemm<T: Real>(
    m: usize,
    n: usize,
    k: usize,
    layouts: [u8; 3],
    alpha: f64,
    beta: f64,
    blas: &Blas,
) {
    let (a, b) = (
        strided::<T>(m, k, layouts[0], 1),
        strided::<T>(k, n, layouts[1], 2),
    );
    let mut c = strided::<T>(m, n, layouts[2], 3);
    if beta == 0.0 {
        c.get_mut().fill(T::of(f64::NAN));
    }
    let mut expected = strided::<T>(m, n, layouts[2], 3);
    expected.data.copy_from_slice(&c.data);
    let (alpha, beta) = (T::of(alpha), T::of(beta));
    gemm(c.get_mut(), alpha, a.get(), b.get(), beta, blas).unwrap();
    reference::gemm(expected.get_mut(), alpha, a.get(), b.get(), beta);
    // The whole buffer: memory between the elements of C must be unchanged.
    assert_close(&c.data, &expected.data, k);
}

fn check_syrk<T: Real>(n: usize, k: usize, layouts: [u8; 2], alpha: f64, beta: f64, blas: &Blas) {
    let a = strided::<T>(n, k, layouts[0], 1);
    let mut c = strided::<T>(n, n, layouts[1], 3);
    if beta == 0.0 {
        c.get_mut().fill(T::of(f64::NAN));
    }
    let mut expected = strided::<T>(n, n, layouts[1], 3);
    expected.data.copy_from_slice(&c.data);
    let (alpha, beta) = (T::of(alpha), T::of(beta));
    syrk(c.get_mut(), alpha, a.get(), beta, blas).unwrap();
    reference::syrk(expected.get_mut(), alpha, a.get(), beta);
    assert_close(&c.data, &expected.data, k);
    mirror_lower(c.get_mut()).unwrap();
    let c = c.get();
    for i in 0..n {
        (0..i).for_each(|j| assert_eq!(c[(i, j)], c[(j, i)]));
    }
}

const FACTORS: [f64; 4] = [0.0, 1.0, -1.0, 0.37];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gemm_equals_its_twin(
        m in 0usize..70, n in 0usize..70, k in 0usize..70,
        layouts in prop::array::uniform3(0u8..5), alpha in 0usize..4, beta in 0usize..4,
    ) {
        check_gemm::<f32>(m, n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
        check_gemm::<f64>(m, n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
    }

    #[test]
    fn packed_products_equal_their_twin(
        m in 64usize..450, n in 64usize..150, k in 1usize..40, swap: bool,
        layouts in prop::array::uniform3(0u8..5), alpha in 1usize..4, beta in 0usize..4,
    ) {
        let (m, n) = if swap { (n, m) } else { (m, n) };
        check_gemm::<f32>(m, n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
        check_gemm::<f64>(m, n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
    }

    #[test]
    fn narrow_products_equal_their_twin(
        m in 0usize..1200, n in 0usize..5, k in 0usize..1200, swap: bool,
        layouts in prop::array::uniform3(0u8..5), beta in 0usize..4,
    ) {
        let (m, n) = if swap { (n, m) } else { (m, n) };
        check_gemm::<f32>(m, n, k, layouts, 1.0, FACTORS[beta], &Blas::Builtin);
        check_gemm::<f64>(m, n, k, layouts, 1.0, FACTORS[beta], &Blas::Builtin);
    }

    #[test]
    fn syrk_equals_its_twin(
        n in 0usize..300, k in 0usize..40, layouts in prop::array::uniform2(0u8..5), alpha in 0usize..4, beta in 0usize..4,
    ) {
        check_syrk::<f32>(n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
        check_syrk::<f64>(n, k, layouts, FACTORS[alpha], FACTORS[beta], &Blas::Builtin);
    }
}

#[test]
fn products_larger_than_a_panel_equal_their_twin() {
    for layouts in [[0, 0, 0], [1, 0, 1], [0, 1, 3], [2, 4, 0]] {
        check_gemm::<f32>(67, 1100, 530, layouts, 1.5, -0.5, &Blas::Builtin);
        check_gemm::<f64>(1030, 40, 1030, layouts, 1.5, 0.0, &Blas::Builtin);
        check_gemm::<f32>(401, 1045, 75, layouts, 1.5, -0.5, &Blas::Builtin);
        check_gemm::<f64>(1045, 401, 270, layouts, 1.5, 0.0, &Blas::Builtin);
    }
}

#[test]
fn nan_and_infinity_reach_the_result() {
    for (index, bad) in [f64::NAN, f64::INFINITY].into_iter().enumerate() {
        let mut a = strided::<f32>(33, 40, 0, 1);
        a.get_mut()[(7, 9)] = f32::of(bad);
        let b = strided::<f32>(40, 21, 0, 2);
        let mut c = strided::<f32>(33, 21, 0, 3);
        gemm(c.get_mut(), 1.0, a.get(), b.get(), 0.0, &Blas::Builtin).unwrap();
        let c = c.get();
        assert!((0..21).all(|j| !c[(7, j)].is_finite()), "case {index}");
        assert!(
            (0..33)
                .filter(|&i| i != 7)
                .all(|i| (0..21).all(|j| c[(i, j)].is_finite()))
        );
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let (a, b) = (strided::<f32>(3, 4, 0, 1), strided::<f32>(5, 6, 0, 2));
    let mut c = strided::<f32>(3, 6, 0, 3);
    let error = gemm(c.get_mut(), 1.0, a.get(), b.get(), 0.0, &Blas::Builtin).unwrap_err();
    assert_eq!(
        error.to_string(),
        "gemm: shapes do not fit: c is (3, 6), a is (3, 4), b is (5, 6)"
    );
    assert!(syrk(c.get_mut(), 1.0, a.get(), 0.0, &Blas::Builtin).is_err());
}

#[test]
fn what_is_not_a_blas_is_refused_with_its_name() {
    let error = Blas::load("/nonexistent/libblas.so")
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent/libblas.so"), "{error}");
    // The C library has no cblas_sgemm.
    if let Err(error) = Blas::load("libc.so.6") {
        assert!(
            error.to_string().contains("cblas_sgemm") || error.to_string().contains("load"),
            "{error}"
        );
    }
}

/// Runs on the BLAS libraries named in the environment (paths separated by `:`), if any.
#[test]
fn brought_libraries_equal_the_twin() {
    for path in std::env::var("OUTCORE_TEST_BLAS")
        .unwrap_or_default()
        .split(':')
        .filter(|path| !path.is_empty())
    {
        let blas = Blas::load(path).unwrap();
        for layouts in 0..125u8 {
            let layouts = [layouts % 5, layouts / 5 % 5, layouts / 25];
            for (m, n, k) in [
                (0, 3, 2),
                (1, 1, 1),
                (5, 1, 7),
                (1, 9, 3),
                (40, 33, 0),
                (40, 33, 70),
            ] {
                check_gemm::<f32>(m, n, k, layouts, 0.37, 0.0, &blas);
                check_gemm::<f64>(m, n, k, layouts, -1.0, 0.37, &blas);
            }
            check_syrk::<f32>(45, 33, [layouts[0], layouts[1]], 0.37, 0.0, &blas);
            check_syrk::<f64>(45, 1, [layouts[0], layouts[1]], 1.0, 0.37, &blas);
        }
    }
}
