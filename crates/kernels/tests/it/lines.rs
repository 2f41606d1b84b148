//! Element-wise work, reductions and statistics against their definitions, for every layout.
//!
//! Bound: sums of n numbers in f64 are held to c * eps * n * sum|x| with c = 4; element-wise
//! results to one rounding.

use outcore_kernels::*;
use proptest::prelude::*;

/// Layouts: 0 row-major, 1 column-major, 2 rows apart, 3 columns apart, 4 neither stride is one.
fn strides(rows: usize, cols: usize, layout: u8) -> (usize, usize) {
    match layout {
        0 => (cols.max(1), 1),
        1 => (1, rows.max(1)),
        2 => (cols + 3, 1),
        3 => (1, rows + 5),
        _ => (2 * cols + 1, 2),
    }
}

struct Strided<T> {
    data: Vec<T>,
    shape: (usize, usize),
    strides: (usize, usize),
}

impl<T: Real> Strided<T> {
    fn new(rows: usize, cols: usize, layout: u8, seed: u64) -> Self {
        let strides = strides(rows, cols, layout);
        let mut state = seed;
        let data = (0..rows * strides.0 + cols * strides.1 + 1)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                T::of((state >> 33) as f64 / (1u64 << 30) as f64 - 1.0)
            })
            .collect();
        Self {
            data,
            shape: (rows, cols),
            strides,
        }
    }
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

/// Elements of the buffer outside the matrix must be as `before`.
fn assert_gaps_kept<T: Real>(after: &Strided<T>, before: &[T]) {
    let mut inside = vec![false; before.len()];
    for i in 0..after.shape.0 {
        (0..after.shape.1).for_each(|j| inside[i * after.strides.0 + j * after.strides.1] = true);
    }
    for (at, inside) in inside.into_iter().enumerate() {
        assert!(
            inside || after.data[at] == before[at],
            "element {at} lies outside the matrix and was written"
        );
    }
}

fn check_elementwise<T: Real>(rows: usize, cols: usize, layouts: [u8; 2], alpha: f64, beta: f64) {
    let x = Strided::<T>::new(rows, cols, layouts[0], 1);
    let start = Strided::<T>::new(rows, cols, layouts[1], 2);
    let check = |what: &str, work: &dyn Fn(MatMut<'_, T>), expected: &dyn Fn(T, T, usize) -> T| {
        let mut y = Strided::<T>::new(rows, cols, layouts[1], 2);
        work(y.get_mut());
        assert_gaps_kept(&y, &start.data);
        for i in 0..rows {
            for j in 0..cols {
                let expected = expected(start.get()[(i, j)], x.get()[(i, j)], j);
                assert_eq!(y.get()[(i, j)], expected, "{what} at ({i}, {j})");
            }
        }
    };
    let (a, b) = (T::of(alpha), T::of(beta));
    let shift: Vec<f64> = (0..cols).map(|j| j as f64 * 0.3).collect();
    check(
        "axpby",
        &|y| axpby(y, a, x.get(), b).unwrap(),
        &|y, x, _| a * x + b * y,
    );
    check("scale", &|y| scale(y, a), &|y, _, _| a * y);
    check("fill", &|y| fill(y, a), &|_, _, _| a);
    check(
        "copy_into",
        &|y| copy_into(y, x.get()).unwrap(),
        &|_, x, _| x,
    );
    check(
        "center_into",
        &|y| center_into(y, x.get(), &shift).unwrap(),
        &|_, x, j| T::of(x.f64() - shift[j]),
    );

    let mut turned = Strided::<T>::new(cols, rows, layouts[1], 2);
    let before = turned.data.clone();
    transpose_into(turned.get_mut(), x.get()).unwrap();
    assert_gaps_kept(&turned, &before);
    let mut sum = Strided::<f64>::new(rows, cols, layouts[1], 4);
    let old = Strided::<f64>::new(rows, cols, layouts[1], 4);
    add_into_f64(sum.get_mut(), x.get()).unwrap();
    let mut narrow = Strided::<f32>::new(rows, cols, layouts[1], 4);
    convert_into(narrow.get_mut(), old.get()).unwrap();
    for i in 0..rows {
        for j in 0..cols {
            assert_eq!(turned.get()[(j, i)], x.get()[(i, j)]);
            assert_eq!(sum.get()[(i, j)], old.get()[(i, j)] + x.get()[(i, j)].f64());
            assert_eq!(narrow.get()[(i, j)], old.get()[(i, j)] as f32);
        }
    }
}

fn close(got: f64, expected: f64, scale: f64, n: usize) -> bool {
    got == expected || (got - expected).abs() <= 4.0 * f64::EPSILON * (n as f64 + 1.0) * scale
}

fn check_reductions<T: Real>(rows: usize, cols: usize, layouts: [u8; 2]) {
    let (x, y) = (
        Strided::<T>::new(rows, cols, layouts[0], 1),
        Strided::<T>::new(rows, cols, layouts[1], 2),
    );
    let (x, y) = (x.get(), y.get());
    let all: Vec<f64> = (0..rows)
        .flat_map(|i| (0..cols).map(move |j| x[(i, j)].f64()))
        .collect();
    let n = all.len();
    let squares = all.iter().map(|x| x * x).sum::<f64>();
    assert!(close(
        sum(x),
        all.iter().sum(),
        all.iter().map(|x| x.abs()).sum(),
        n
    ));
    assert!(close(sum_of_squares(x), squares, squares, n));
    assert_eq!(min(x), all.iter().copied().fold(f64::INFINITY, f64::min));
    assert_eq!(
        max(x),
        all.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    );
    let product = |i: usize, j: usize| x[(i, j)].f64() * y[(i, j)].f64();
    let products: f64 = (0..rows)
        .map(|i| (0..cols).map(|j| product(i, j)).sum::<f64>())
        .sum();
    assert!(close(dot(x, y).unwrap(), products, n as f64, n));
    assert_eq!(first_non_finite(x), None);

    for norm in [Norm::L1, Norm::L2, Norm::Max] {
        let (mut by_row, mut by_column) = (vec![7.0; rows], vec![7.0; cols]);
        row_norms(&mut by_row, x, norm).unwrap();
        column_norms(&mut by_column, x, norm).unwrap();
        for (i, &got) in by_row.iter().enumerate() {
            let expected = reference::norm((0..cols).map(|j| x[(i, j)].f64()), norm);
            assert!(
                close(got, expected, expected, cols),
                "{norm:?} of row {i}: {got}, not {expected}"
            );
        }
        for (j, &got) in by_column.iter().enumerate() {
            let expected = reference::norm((0..rows).map(|i| x[(i, j)].f64()), norm);
            assert!(
                close(got, expected, expected, rows),
                "{norm:?} of column {j}: {got}, not {expected}"
            );
        }
    }
    let mut sums = vec![0.5; cols];
    column_sums(&mut sums, x).unwrap();
    for (j, &got) in sums.iter().enumerate() {
        let expected = 0.5 + (0..rows).map(|i| x[(i, j)].f64()).sum::<f64>();
        assert!(close(got, expected, rows as f64 + 1.0, rows));
    }
}

fn check_statistics<T: Real>(rows: usize, cols: usize, split: usize, layout: u8, offset: f64) {
    let mut x = Strided::<T>::new(rows, cols, layout, 5);
    let shift = vec![-offset; cols];
    let original = Strided::<T>::new(rows, cols, layout, 5);
    center_into(x.get_mut(), original.get(), &shift).unwrap();
    let x = x.get();
    let split = split.min(rows);
    let mut statistics = ColumnStatistics::new(cols);
    statistics.update(x.subrows(0, split)).unwrap();
    let mut rest = ColumnStatistics::new(cols);
    rest.update(x.subrows(split, rows - split)).unwrap();
    statistics.merge(&rest).unwrap();
    assert_eq!(statistics.count, rows as u64);
    for (j, (mean, m2)) in reference::column_moments(x).into_iter().enumerate() {
        let column = || (0..rows).map(|i| x[(i, j)].f64());
        assert_eq!(statistics.min[j], column().fold(f64::INFINITY, f64::min));
        assert_eq!(
            statistics.max[j],
            column().fold(f64::NEG_INFINITY, f64::max)
        );
        if rows > 0 {
            assert!(
                close(statistics.mean[j], mean, offset + 1.0, rows),
                "mean {} {mean}",
                statistics.mean[j]
            );
            // The two means, each off by eps * offset, enter by the product of their distance (at
            // most 2) and that error.
            let scale = m2 + 2.0 * (offset + 1.0);
            assert!(
                close(statistics.m2[j], m2, scale, rows),
                "m2 {} {m2}",
                statistics.m2[j]
            );
        }
    }
    assert_eq!(statistics.variance(0, 1).is_nan(), rows < 2);
}

const FACTORS: [f64; 3] = [1.0, -1.0, 0.37];

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn element_wise_work_equals_its_definition(
        rows in 0usize..80, cols in 0usize..80, layouts in prop::array::uniform2(0u8..5), alpha in 0usize..3, beta in 0usize..3,
    ) {
        check_elementwise::<f32>(rows, cols, layouts, FACTORS[alpha], FACTORS[beta]);
        check_elementwise::<f64>(rows, cols, layouts, FACTORS[alpha], FACTORS[beta]);
    }

    #[test]
    fn reductions_equal_their_definitions(rows in 0usize..60, cols in 0usize..60, layouts in prop::array::uniform2(0u8..5)) {
        check_reductions::<f32>(rows, cols, layouts);
        check_reductions::<f64>(rows, cols, layouts);
    }

    #[test]
    fn statistics_equal_two_passes(
        rows in 0usize..200, cols in 1usize..20, split in 0usize..200, layout in 0u8..5, far: bool,
    ) {
        let offset = if far { 1000.0 } else { 0.0 };
        check_statistics::<f32>(rows, cols, split, layout, offset);
        check_statistics::<f64>(rows, cols, split, layout, offset);
    }

    #[test]
    fn the_first_bad_element_is_found(
        rows in 1usize..60, cols in 1usize..60, layout in 0u8..5, first in 0usize..3600, second in 0usize..3600, kind in 0usize..3,
    ) {
        let mut x = Strided::<f32>::new(rows, cols, layout, 1);
        let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind];
        let (first, second) = (first % (rows * cols), second % (rows * cols));
        for at in [first, second] {
            x.get_mut()[(at / cols, at % cols)] = bad;
        }
        let expected = first.min(second);
        prop_assert_eq!(first_non_finite(x.get()), Some((expected / cols, expected % cols)));
    }
}

#[test]
fn statistics_wider_than_a_block_equal_two_passes() {
    for layout in 0..5 {
        check_statistics::<f32>(70, 1100, 33, layout, 0.0);
    }
}

#[test]
fn nan_reaches_every_reduction_of_its_line_and_no_other() {
    for layout in 0..5 {
        let mut x = Strided::<f32>::new(37, 41, layout, 1);
        x.get_mut()[(5, 17)] = f32::NAN;
        let x = x.get();
        assert!(
            [
                sum(x),
                sum_of_squares(x),
                min(x),
                max(x),
                dot(x, x).unwrap()
            ]
            .iter()
            .all(|value| value.is_nan())
        );
        for norm in [Norm::L1, Norm::L2, Norm::Max] {
            let (mut rows, mut cols) = (vec![0.0; 37], vec![0.0; 41]);
            row_norms(&mut rows, x, norm).unwrap();
            column_norms(&mut cols, x, norm).unwrap();
            assert!(
                rows.iter()
                    .enumerate()
                    .all(|(i, value)| value.is_nan() == (i == 5))
            );
            assert!(
                cols.iter()
                    .enumerate()
                    .all(|(j, value)| value.is_nan() == (j == 17))
            );
        }
        let mut statistics = ColumnStatistics::new(41);
        statistics.update(x).unwrap();
        for values in [
            &statistics.mean,
            &statistics.m2,
            &statistics.min,
            &statistics.max,
        ] {
            assert!(
                values
                    .iter()
                    .enumerate()
                    .all(|(j, value)| value.is_nan() == (j == 17))
            );
        }
    }
}

#[test]
fn norms_are_found_where_squares_leave_the_range() {
    for layout in 0..5 {
        let mut x = Strided::<f64>::new(33, 21, layout, 1);
        let size = |at: usize| [1e150, 1.0, 1e-150, 0.0][at % 4];
        for i in 0..33 {
            for j in 0..21 {
                x.get_mut()[(i, j)] *= size(i) * size(j);
            }
        }
        let x = x.get();
        let expected = |values: Vec<f64>| {
            let most = values
                .iter()
                .fold(0.0, |most: f64, value| most.max(value.abs()));
            if most > 0.0 {
                values
                    .iter()
                    .map(|value| (value / most).powi(2))
                    .sum::<f64>()
                    .sqrt()
                    * most
            } else {
                0.0
            }
        };
        let (mut rows, mut cols) = (vec![0.0; 33], vec![0.0; 21]);
        row_norms(&mut rows, x, Norm::L2).unwrap();
        column_norms(&mut cols, x, Norm::L2).unwrap();
        for (i, &got) in rows.iter().enumerate() {
            let expected = expected((0..21).map(|j| x[(i, j)]).collect());
            assert!(
                close(got, expected, expected, 21),
                "row {i}: {got}, not {expected}"
            );
        }
        for (j, &got) in cols.iter().enumerate() {
            let expected = expected((0..33).map(|i| x[(i, j)]).collect());
            assert!(
                close(got, expected, expected, 33),
                "column {j}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn norms_of_what_is_infinite_are() {
    for layout in 0..5 {
        let mut x = Strided::<f64>::new(9, 7, layout, 1);
        (
            x.get_mut()[(3, 2)],
            x.get_mut()[(3, 5)],
            x.get_mut()[(4, 5)],
        ) = (f64::INFINITY, f64::NEG_INFINITY, f64::NAN);
        let (mut rows, mut cols) = (vec![0.0; 9], vec![0.0; 7]);
        row_norms(&mut rows, x.get(), Norm::L2).unwrap();
        column_norms(&mut cols, x.get(), Norm::L2).unwrap();
        assert!(rows[3] == f64::INFINITY && rows[4].is_nan() && rows[5].is_finite());
        assert!(cols[2] == f64::INFINITY && cols[5].is_nan() && cols[6].is_finite());
    }
}

#[test]
fn a_factor_of_zero_forgets_nan() {
    let mut y = vec![f32::NAN; 12];
    let x = vec![2.0; 12];
    axpby(
        view_mut(&mut y, 3, 4, 4, 1).unwrap(),
        3.0,
        view(&x, 3, 4, 1, 3).unwrap(),
        0.0,
    )
    .unwrap();
    assert_eq!(y, vec![6.0; 12]);
    y.fill(f32::NAN);
    scale(view_mut(&mut y, 3, 4, 4, 1).unwrap(), 0.0);
    assert_eq!(y, vec![0.0; 12]);
    let nan = vec![f32::NAN; 12];
    axpby(
        view_mut(&mut y, 3, 4, 4, 1).unwrap(),
        0.0,
        view(&nan, 3, 4, 1, 3).unwrap(),
        1.0,
    )
    .unwrap();
    assert_eq!(y, vec![0.0; 12]);
}

#[test]
fn slices_convert_both_ways() {
    let wide = [1.0, 1e300, -0.1, f64::NAN];
    let mut narrow = [0f32; 4];
    convert_from_f64(&mut narrow, &wide).unwrap();
    assert_eq!(&narrow[..3], &[1.0, f32::INFINITY, -0.1f32]);
    assert!(narrow[3].is_nan());
    let mut back = [0.0; 4];
    convert_to_f64(&mut back, &narrow).unwrap();
    assert_eq!(back[2], f64::from(-0.1f32));
    assert!(convert_to_f64(&mut back[..3], &narrow).is_err());
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let (x, mut y) = (vec![0f32; 12], vec![0f32; 12]);
    let x = view(&x, 3, 4, 4, 1).unwrap();
    assert!(axpby(view_mut(&mut y, 4, 3, 3, 1).unwrap(), 1.0, x, 1.0).is_err());
    assert!(transpose_into(view_mut(&mut y, 3, 4, 4, 1).unwrap(), x).is_err());
    assert!(center_into(view_mut(&mut y, 3, 4, 4, 1).unwrap(), x, &[0.0; 3]).is_err());
    assert!(dot(x, x.transpose()).is_err());
    assert!(row_norms(&mut [0.0; 4], x, Norm::L2).is_err());
    assert!(column_norms(&mut [0.0; 3], x, Norm::L2).is_err());
    assert!(column_sums(&mut [0.0; 3], x).is_err());
    assert!(ColumnStatistics::new(3).update(x).is_err());
    assert!(
        ColumnStatistics::new(3)
            .merge(&ColumnStatistics::new(4))
            .is_err()
    );
}
