//! Eigenproblems: residuals, orthonormality and values against the plain twin.
//!
//! Bound: |C v - lambda v|, |V^T V - I| and the error of a value are held to c * eps * n * |C| with
//! c = 8.

use faer::Mat;
use outcore_kernels::*;
use proptest::prelude::*;

fn random(rows: usize, cols: usize, seed: u64) -> Mat<f64> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    Mat::from_fn(rows, cols, |_, _| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    })
}

/// A matrix with the given eigenvalues.
fn with_values(values: &[f64], seed: u64) -> Mat<f64> {
    let n = values.len();
    let q = orthonormalize(random(n, n, seed).as_ref()).unwrap();
    let scaled = Mat::from_fn(n, n, |i, j| q[(i, j)] * values[j]);
    let c = &scaled * q.transpose();
    Mat::from_fn(n, n, |i, j| 0.5 * (c[(i, j)] + c[(j, i)]))
}

fn as_type<T: Real>(c: &Mat<f64>) -> Mat<T> {
    Mat::from_fn(c.nrows(), c.ncols(), |i, j| T::of(c[(i, j)]))
}

fn check<T: Real>(c: &Mat<T>, found: &Eigen<T>, tolerance: f64) {
    let (n, k) = (c.nrows(), found.values.len());
    assert_eq!(found.vectors.shape(), (n, k));
    assert!(found.values.windows(2).all(|pair| pair[0] >= pair[1]));
    let (c, v): (Mat<f64>, Mat<f64>) = (widen(c), widen(&found.vectors));
    let size = found
        .values
        .iter()
        .map(|x| x.f64().abs())
        .fold(0.0, f64::max)
        .max(c.norm_max());
    let bound = (8.0 * T::EPSILON.f64() * (n as f64 + 1.0) + tolerance) * size;
    let image = &c * &v;
    let gram = v.transpose() * &v;
    for j in 0..k {
        let value = found.values[j].f64();
        let residual = (0..n)
            .map(|i| (image[(i, j)] - value * v[(i, j)]).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!(
            residual <= bound,
            "pair {j}: residual {residual:e} > {bound:e}"
        );
        for i in 0..k {
            let expected = if i == j { 1.0 } else { 0.0 };
            assert!(
                (gram[(i, j)] - expected).abs() <= 8.0 * T::EPSILON.f64() * (n as f64 + 1.0),
                "V^T V ({i}, {j})"
            );
        }
    }
}

fn widen<T: Real>(a: &Mat<T>) -> Mat<f64> {
    Mat::from_fn(a.nrows(), a.ncols(), |i, j| a[(i, j)].f64())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn eigh_equals_its_twin(n in 0usize..40, seed: u64, k in 0usize..40) {
        let k = k.min(n);
        let c = random(n, n, seed);
        let c = Mat::from_fn(n, n, |i, j| c[(i.max(j), i.min(j))]);
        let (values, _) = reference::eigh(c.as_ref());
        // Only the lower triangle is read.
        let lower = Mat::from_fn(n, n, |i, j| if j > i { f64::NAN } else { c[(i, j)] });
        let found = eigh(lower.as_ref(), Some(k)).unwrap();
        check(&c, &found, 0.0);
        for (got, expected) in found.values.iter().zip(&values) {
            prop_assert!((got - expected).abs() <= 8.0 * f64::EPSILON * (n * n) as f64, "{got} {expected}");
        }
        let narrow = as_type::<f32>(&c);
        check(&narrow, &eigh(narrow.as_ref(), Some(k)).unwrap(), 0.0);
    }

    #[test]
    fn bases_are_orthonormal_even_of_dependent_columns(rows in 1usize..40, cols in 0usize..40, rank in 0usize..40, seed: u64) {
        let cols = cols.min(rows);
        let a = &random(rows, rank, seed) * &random(rank, cols, seed ^ 1);
        let q = orthonormalize(a.as_ref()).unwrap();
        let gram = q.transpose() * &q;
        for i in 0..cols {
            for j in 0..cols {
                let expected = if i == j { 1.0 } else { 0.0 };
                prop_assert!((gram[(i, j)] - expected).abs() <= 8.0 * f64::EPSILON * (rows + 1) as f64);
            }
        }
        // The span is unchanged.
        let back = &q * (q.transpose() * &a);
        prop_assert!((&back - &a).norm_max() <= 64.0 * f64::EPSILON * (rows + 1) as f64 * (a.norm_max() + 1.0));
    }
}

/// Spectra of covariances, and spectra that are hard for Krylov methods.
fn spectra(n: usize) -> Vec<(&'static str, Vec<f64>)> {
    let by = |f: &dyn Fn(f64) -> f64| (0..n).map(|i| f(i as f64)).collect::<Vec<f64>>();
    vec![
        ("falls slowly", by(&|i| 1.0 / (1.0 + i))),
        ("falls fast", by(&|i| 0.7f64.powf(i))),
        ("rank 7", by(&|i| if i < 7.0 { 7.0 - i } else { 0.0 })),
        (
            "clusters",
            by(&|i| {
                if i < 30.0 {
                    3.0
                } else {
                    1.0 + 1e-3 * (n as f64 - i) / n as f64
                }
            }),
        ),
        ("zero", by(&|_| 0.0)),
        ("identity", by(&|_| 1.0)),
        ("indefinite", by(&|i| 5.0 - i * 12.0 / n as f64)),
    ]
}

#[test]
fn the_top_pairs_are_found_whatever_the_spectrum() {
    let n = 300;
    for (name, values) in spectra(n) {
        for k in [0, 1, 5, 20] {
            println!("{name}, {k} pairs");
            let c = with_values(&values, 3);
            let found = eigh_top(c.as_ref(), k, &TopOptions::default(), &Blas::Builtin).unwrap();
            check(&c, &found, 1e-10);
            let expected = eigh(c.as_ref(), Some(k)).unwrap();
            for (got, expected) in found.values.iter().zip(&expected.values) {
                assert!(
                    (got - expected).abs() <= 1e-9,
                    "{name}: {got} is not {expected}"
                );
            }
            let narrow = as_type::<f32>(&c);
            check(
                &narrow,
                &eigh_top(narrow.as_ref(), k, &TopOptions::default(), &Blas::Builtin).unwrap(),
                1e-5,
            );
        }
    }
}

#[test]
fn the_krylov_search_itself_converges() {
    let n = 400;
    for (name, values) in spectra(n) {
        let c = with_values(&values, 9);
        let apply = |v: MatRef<'_, f64>, cv: MatMut<'_, f64>| {
            gemm(cv, 1.0, c.as_ref(), v, 0.0, &Blas::Builtin)
        };
        let mut options = TopOptions::default();
        for (block, basis) in [(16, None), (8, None), (8, Some(50)), (4, Some(0))] {
            (options.block, options.basis, options.products_max) = (block, basis, 600 * 16 / block);
            let found = eigh_top_with(n, 10, apply, &options, &Blas::Builtin);
            check(
                &c,
                &found.unwrap_or_else(|error| panic!("{name}, blocks of {block}: {error}")),
                1e-10,
            );
        }
    }
}

#[test]
fn small_problems_use_the_whole_space() {
    for n in [1, 2, 3, 17, 40] {
        let c = with_values(&(0..n).map(|i| i as f64).collect::<Vec<_>>(), 1);
        let apply = |v: MatRef<'_, f64>, cv: MatMut<'_, f64>| {
            gemm(cv, 1.0, c.as_ref(), v, 0.0, &Blas::Builtin)
        };
        for k in [1, n] {
            let found = eigh_top_with(n, k, apply, &TopOptions::default(), &Blas::Builtin).unwrap();
            assert_eq!(found.values.len(), k);
            check(&c, &found, 1e-10);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let c = with_values(
        &(0..300)
            .map(|i| 1.0 / (1.0 + f64::from(i)))
            .collect::<Vec<_>>(),
        3,
    );
    let run = |seed| {
        let mut options = TopOptions::default();
        options.seed = seed;
        eigh_top(c.as_ref(), 5, &options, &Blas::Builtin).unwrap()
    };
    assert_eq!(run(7).vectors, run(7).vectors);
    assert_ne!(run(7).vectors, run(8).vectors);
}

#[test]
fn bad_input_is_an_error() {
    let mut c = Mat::<f64>::identity(6, 6);
    c[(4, 2)] = f64::NAN;
    let error = eigh(c.as_ref(), None).unwrap_err().to_string();
    assert_eq!(error, "eigh did not converge: element (4, 2) is NaN");
    assert!(eigh(c.as_ref().subrows(0, 5), None).is_err());
    assert!(eigh(c.as_ref(), Some(7)).is_err());
    assert!(orthonormalize(c.as_ref().subrows(0, 5)).is_err());
    let mut large = Mat::<f64>::identity(300, 300);
    large[(200, 100)] = f64::INFINITY;
    large[(100, 200)] = f64::INFINITY;
    assert!(eigh_top(large.as_ref(), 3, &TopOptions::default(), &Blas::Builtin).is_err());
}

#[test]
fn an_error_of_the_product_ends_the_search() {
    let mut calls = 0;
    let apply = |_: MatRef<'_, f64>, _: MatMut<'_, f64>| {
        calls += 1;
        Err(Error::NotConverged {
            operation: "test",
            why: "cancelled".into(),
        })
    };
    let error = eigh_top_with(300, 3, apply, &TopOptions::default(), &Blas::Builtin).unwrap_err();
    assert_eq!(
        (calls, error.to_string().as_str()),
        (1, "test did not converge: cancelled")
    );
}

#[test]
fn eigenvectors_do_not_depend_on_the_unit_of_the_matrix() {
    let n = 300;
    let half = random(n, n, 3);
    let c = &half * half.transpose();
    for exponent in [-400i32, -40, -20, 0, 20, 40, 400] {
        let scaled = Mat::from_fn(n, n, |i, j| c[(i, j)] * f64::from(exponent).exp2());
        check(&scaled, &eigh(scaled.as_ref(), None).unwrap(), 0.0);
        if exponent.abs() < 100 {
            let narrow = as_type::<f32>(&scaled);
            check(&narrow, &eigh(narrow.as_ref(), None).unwrap(), 0.0);
        }
    }
    let none = Mat::<f64>::zeros(n, n);
    check(&none, &eigh(none.as_ref(), None).unwrap(), 0.0);
}

#[test]
fn singular_values_and_vectors_make_the_matrix() {
    fn check<T: Real>(n: usize, rank: usize, seed: u64) {
        let [left, right] =
            [1, 2].map(|side| orthonormalize(random(n, n, 2 * seed + side).as_ref()).unwrap());
        let a: Mat<T> = as_type(&(left.subcols(0, rank) * right.subcols(0, rank).transpose()));
        let found = svd(a.as_ref()).unwrap();
        let bound = 16.0 * T::EPSILON.f64() * n as f64;
        for (at, value) in found.values.iter().enumerate() {
            let expected = if at < rank { 1.0 } else { 0.0 };
            assert!(
                (value.f64() - expected).abs() <= bound,
                "{n}, {seed}: {value}"
            );
        }
        let [left, right] = [&found.left, &found.right].map(widen);
        for vectors in [&left, &right] {
            let off = vectors.transpose() * vectors - Mat::<f64>::identity(n, n);
            assert!(off.norm_max() <= bound);
        }
        let scaled = Mat::from_fn(n, n, |i, j| left[(i, j)] * found.values[j].f64());
        assert!((scaled * right.transpose() - widen(&a)).norm_max() <= bound);
    }
    for seed in 0..40 {
        let n = 176 + 4 * seed as usize % 120;
        check::<f64>(n, 2 * n / 3, seed);
        check::<f32>(n, 2 * n / 3, seed);
    }
    check::<f64>(1, 1, 0);
    check::<f64>(150, 0, 0);
    let tiny = Mat::from_fn(3, 3, |i, j| if i == j { 1e-310 } else { 0.0 });
    let values = svd(tiny.as_ref()).unwrap().values;
    assert!(
        values
            .iter()
            .all(|value| (value - 1e-310f64).abs() < f64::MIN_POSITIVE)
    );
    assert!(svd(Mat::<f64>::zeros(2, 3).as_ref()).is_err());
    assert!(svd(Mat::<f64>::full(2, 2, f64::NAN).as_ref()).is_err());
}
