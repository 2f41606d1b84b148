//! Products of sparse matrices against plain loops over a dense copy.
//!
//! Bound: an element of a product is a sum of at most k products, so |C - reference| <= c * eps * k
//! * max|a| * max|x|, with c = 4.

use outcore_kernels::{
    Converted, Csr, Error, Index, Lines, Picked, Real, Tile, Tiles, csr_gram, csrmm,
    csrmm_transposed, view, view_mut,
};
use proptest::prelude::*;

/// A sparse matrix, and the same matrix with its zeros.
struct Sparse<I, T> {
    cols: usize,
    offsets: Vec<i64>,
    indices: Vec<I>,
    values: Vec<T>,
    dense: Vec<f64>,
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        state >> 33
    }
}

fn numbers<T: Real>(count: usize, seed: u64) -> Vec<T> {
    let mut next = random(seed);
    (0..count)
        .map(|_| T::of(next() as f64 / (1u64 << 30) as f64 - 1.0))
        .collect()
}

/// Every fifth row is empty; columns may be in any order and repeated, in which case their entries
/// are added.
fn sparse<I: Index + TryFrom<usize>, T: Real>(
    rows: usize,
    cols: usize,
    ones: bool,
    seed: u64,
) -> Sparse<I, T> {
    let mut next = random(seed);
    // Offsets of a part start at any number.
    let (mut offsets, mut indices, mut values) = (vec![1000], Vec::new(), Vec::new());
    let mut dense = vec![0.0; rows * cols];
    for row in 0..rows {
        let entries = if row % 5 == 4 || cols == 0 {
            0
        } else {
            next() as usize % 9
        };
        for _ in 0..entries {
            let column = next() as usize % cols;
            let value = if ones {
                T::ONE
            } else {
                T::of(next() as f64 / (1u64 << 30) as f64 - 1.0)
            };
            dense[row * cols + column] += value.f64();
            indices.push(I::try_from(column).ok().expect("small"));
            values.push(value);
        }
        offsets.push(1000 + indices.len() as i64);
    }
    if ones {
        values.clear();
    }
    Sparse {
        cols,
        offsets,
        indices,
        values,
        dense,
    }
}

impl<I: Index, T: Real> Sparse<I, T> {
    fn get(&self) -> Csr<'_, I, T> {
        Csr::new(self.cols, &self.offsets, &self.indices, &self.values).unwrap()
    }
}

/// The product of plain numbers, m x n by n x d.
fn product<T: Real>(a: &[f64], x: &[T], [m, n, d]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * d];
    for i in 0..m {
        for k in 0..n {
            for j in 0..d {
                c[i * d + j] += a[i * n + k] * x[k * d + j].f64();
            }
        }
    }
    c
}

fn transposed(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..cols)
        .flat_map(|j| (0..rows).map(move |i| a[i * cols + j]))
        .collect()
}

fn assert_close<T: Real>(got: &[T], expected: &[f64], k: usize) {
    let bound = 4.0 * T::EPSILON.f64() * (k as f64 + 4.0);
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got.f64() - expected).abs() <= bound,
            "element {at}: {got} is not {expected}"
        );
    }
}

fn check<I: Index + TryFrom<usize>, T: Real>(m: usize, n: usize, d: usize, ones: bool, seed: u64) {
    let a = sparse::<I, T>(m, n, ones, seed);
    let (x, y) = (numbers::<T>(n * d, seed + 1), numbers::<T>(m * d, seed + 2));
    let (alpha, beta) = (T::of(0.5), T::of(-1.0));
    // Rows of the result have gaps behind them.
    let mut c = vec![T::of(2.0); m * (d + 3)];
    let across = |c: &[T], rows: usize| -> Vec<T> {
        (0..rows * d)
            .map(|at| c[at / d.max(1) * (d + 3) + at % d.max(1)])
            .collect()
    };
    let x_view = view(&x, n, d, d, 1).unwrap();
    csrmm(
        view_mut(&mut c, m, d, d + 3, 1).unwrap(),
        alpha,
        a.get(),
        x_view,
        0,
        beta,
    )
    .unwrap();
    let ax = product(&a.dense, &x, [m, n, d]);
    let expected: Vec<f64> = ax.iter().map(|ax| 0.5 * ax - 2.0).collect();
    assert_close(&across(&c, m), &expected, 9);
    c.fill(T::of(f64::NAN));
    csrmm(
        view_mut(&mut c, m, d, d + 3, 1).unwrap(),
        T::ONE,
        a.get(),
        x_view,
        0,
        T::ZERO,
    )
    .unwrap();
    assert_close(&across(&c, m), &ax, 9);

    let mut c = vec![T::of(2.0); n * d];
    csrmm_transposed(
        view_mut(&mut c, n, d, d, 1).unwrap(),
        alpha,
        a.get(),
        view(&y, m, d, d, 1).unwrap(),
        0,
    )
    .unwrap();
    let aty = product(&transposed(&a.dense, m, n), &y, [n, m, d]);
    let expected: Vec<f64> = aty.iter().map(|aty| 0.5 * aty + 2.0).collect();
    assert_close(&c, &expected, 9 * m);

    let mut c = vec![T::ZERO; n * d];
    csr_gram(
        view_mut(&mut c, n, d, d, 1).unwrap(),
        a.get(),
        x_view,
        &mut vec![T::ZERO; d],
    )
    .unwrap();
    let rounded: Vec<T> = ax.iter().map(|&ax| T::of(ax)).collect();
    assert_close(
        &c,
        &product(&transposed(&a.dense, m, n), &rounded, [n, m, d]),
        81 * m,
    );

    // In windows, first without the last third of the operand and then with only that third.
    let cut = n * 2 / 3;
    let (head, tail) = x_view.split_at_row(cut);
    let mut c = vec![T::of(2.0); m * d];
    csrmm(
        view_mut(&mut c, m, d, d, 1).unwrap(),
        alpha,
        a.get(),
        head,
        0,
        beta,
    )
    .unwrap();
    csrmm(
        view_mut(&mut c, m, d, d, 1).unwrap(),
        alpha,
        a.get(),
        tail,
        cut,
        T::ONE,
    )
    .unwrap();
    let expected: Vec<f64> = ax.iter().map(|ax| 0.5 * ax - 2.0).collect();
    assert_close(&c, &expected, 9);
    let mut c = vec![T::of(2.0); n * d];
    for window in [0..cut, cut..n] {
        let (first, rows) = (window.start, window.len());
        let part = view_mut(&mut c[first * d..], rows, d, d, 1).unwrap();
        csrmm_transposed(part, alpha, a.get(), view(&y, m, d, d, 1).unwrap(), first).unwrap();
    }
    let expected: Vec<f64> = aty.iter().map(|aty| 0.5 * aty + 2.0).collect();
    assert_close(&c, &expected, 9 * m);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_every_shape(m in 0usize..40, n in 0usize..60, d in prop_oneof![1 => Just(1), 9 => 0usize..300], ones in any::<bool>(), seed in 0u64..1000) {
        check::<i32, f32>(m, n, d, ones, seed);
        check::<i64, f64>(m, n, d, ones, seed);
        check::<u16, f32>(m, n, d, ones, seed);
    }
}

/// In all forms, and with columns that are whole vectors or not.
#[test]
fn products_of_parts_are_rows_of_products_of_the_whole() {
    fn check<T: Real>(a: impl Lines<T>, what: &str) {
        let (m, n) = (a.lines(), a.width());
        for d in [1, 15, 16, 100, 117, 300] {
            let x = numbers::<T>(n * d, 5);
            let x = view(&x, n, d, d, 1).unwrap();
            let product = |a: &dyn Fn(&mut [T]), rows: usize| {
                let mut c = vec![T::ZERO; rows * d];
                a(&mut c);
                c
            };
            let whole = product(
                &|c| csrmm(view_mut(c, m, d, d, 1).unwrap(), T::ONE, a, x, 0, T::ZERO).unwrap(),
                m,
            );
            for part in [0..m, 0..7, 7..m - 1, m - 1..m, 9..9] {
                let lines = a.part(part.clone());
                assert_eq!(lines.lines(), part.len());
                let rows = part.len();
                let found = product(
                    &|c| {
                        let c = view_mut(c, rows, d, d, 1).unwrap();
                        csrmm(c, T::ONE, lines, x, 0, T::ZERO).unwrap();
                    },
                    rows,
                );
                assert!(
                    found == whole[part.start * d..part.end * d],
                    "{what}, {part:?}, {d} columns"
                );
            }
        }
    }
    for ones in [false, true] {
        let made = sparse::<i32, f32>(40, 30, ones, 11);
        let csr = made.get();
        check(csr, "rows");
        let picked: Vec<bool> = (0..40).map(|line| line % 3 != 1).collect();
        check::<f32>(Picked::new(csr, &picked), "some rows");
        check::<f64>(Converted::<_, f32>::new(csr), "converted rows");
        let (mut lines, mut counts) = (Vec::new(), Vec::new());
        for (line, pair) in made.offsets.windows(2).enumerate() {
            if pair[1] > pair[0] {
                lines.push(line as u16);
                counts.push((pair[1] - pair[0] - 1) as u16);
            }
        }
        let places: Vec<u16> = made.indices.iter().map(|&index| index as u16).collect();
        let tile = Tile::new(3, 40, 0, 30, &lines, &counts, &places, &made.values).unwrap();
        check::<f32>(Tiles::new(&[tile], 3, 40, 30), "tiles");
    }
}

#[test]
fn numbers_that_reach_outside_are_refused_by_name() {
    let refused = |cols, offsets: &[i64], indices: &[i32], values: &[f32]| match Csr::new(
        cols, offsets, indices, values,
    ) {
        Err(Error::Sparse { part, at, .. }) => (part, at),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(3, &[], &[], &[]), ("offsets", 0));
    assert_eq!(refused(3, &[0, 2, 1, 3], &[0, 1, 2], &[]), ("offsets", 2));
    assert_eq!(refused(3, &[0, 2], &[0, 1, 2], &[]), ("offsets", 1));
    assert_eq!(refused(3, &[i64::MIN, i64::MAX], &[0], &[]), ("offsets", 1));
    assert_eq!(refused(3, &[0, 3], &[0, 1, 2], &[1.0]), ("values", 1));
    assert_eq!(refused(3, &[0, 3], &[0, 3, 4], &[]), ("indices", 1));
    assert_eq!(refused(3, &[0, 3], &[0, 1, -1], &[]), ("indices", 2));
    assert!(Csr::<i32, f32>::new(0, &[7], &[], &[]).is_ok());
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let a = sparse::<i32, f32>(4, 6, false, 1);
    let (x, mut c) = (vec![0.0f32; 60], vec![0.0f32; 60]);
    let by_columns = view(&x, 6, 3, 1, 6).unwrap();
    assert!(matches!(
        csrmm(
            view_mut(&mut c, 4, 3, 3, 1).unwrap(),
            1.0,
            a.get(),
            by_columns,
            0,
            0.0
        ),
        Err(Error::Shape { .. })
    ));
    let short = view(&x, 5, 3, 3, 1).unwrap();
    assert!(matches!(
        csrmm(
            view_mut(&mut c, 4, 3, 3, 1).unwrap(),
            1.0,
            a.get(),
            short,
            2,
            0.0
        ),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        csrmm_transposed(
            view_mut(&mut c, 6, 3, 3, 1).unwrap(),
            1.0,
            a.get(),
            short,
            0
        ),
        Err(Error::Shape { .. })
    ));
}
