//! The nearest two of several centres for each row of a matrix.
//!
//! |x - c|^2 = |x|^2 + |c|^2 - 2 x.c. On AVX-512 these products are summed in registers; elsewhere
//! a product of blocks is small enough for the second-level cache, followed by a running minimum
//! over sixteen centres at a time.

#[cfg(target_arch = "x86_64")]
mod avx512;

use faer::MatRef;

use crate::view::row_slice;
use crate::{Blas, Error, Real, gemm_flops, gemm_scratch_bytes, gemm_until, view, view_mut};

/// Rows and centres of one product: 512 x 128 f32 are 256 KiB.
const BLOCK_ROWS: usize = 512;
const BLOCK_CENTERS: usize = 128;
/// Centres compared at a time: a vector of f32, or two of f64, on the widest instruction set.
const LANES: usize = 16;

/// Centres in the form of [`nearest`], made once for all rows.
pub struct PackedCenters<T> {
    features: usize,
    clusters: usize,
    form: Form<T>,
}

enum Form<T> {
    /// d x k, row by row, and the squared lengths.
    Across(Vec<T>, Vec<T>),
    #[cfg(target_arch = "x86_64")]
    Slivers(avx512::Slivers<T>),
}

impl<T: Real> PackedCenters<T> {
    /// From k centres one after another, their squared lengths, and k.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there are k of equal length.
    pub fn new(centers: &[T], squares: &[T]) -> Result<PackedCenters<T>, Error> {
        let k = squares.len();
        if k == 0 || !centers.len().is_multiple_of(k) {
            return Err(Error::shape(
                "nearest",
                &[("centers", &centers.len()), ("squares", &k)],
            ));
        }
        let features = centers.len() / k;
        let form = match is_fused(features) {
            #[cfg(target_arch = "x86_64")]
            true => Form::Slivers(avx512::Slivers::of(centers, squares)),
            _ => Form::across(centers, squares),
        };
        Ok(PackedCenters {
            features,
            clusters: k,
            form,
        })
    }
}

impl<T: Real> Form<T> {
    fn across(centers: &[T], squares: &[T]) -> Form<T> {
        let (k, d) = (squares.len(), centers.len() / squares.len());
        Form::Across(
            (0..d * k).map(|at| centers[at % k * d + at / k]).collect(),
            squares.to_vec(),
        )
    }
}

/// The results for each row: the nearest centre, and |x - c|^2 - |x|^2 for it and for the second
/// nearest.
pub struct Nearest<'a, T> {
    /// Number of the nearest centre, the lowest of equals. Its previous value is used as a guess,
    /// which may save a search if it is right.
    pub label: &'a mut [u32],
    /// Of the nearest. If it is not finite, the label is meaningless.
    pub first: &'a mut [T],
    /// Of the second nearest; infinity with fewer than two centres.
    pub second: &'a mut [T],
    /// |x|^2, to the precision of the element type.
    pub squares: &'a mut [T],
}

/// Finds the nearest two centres of each row of x.
///
/// Shapes: x is n x d, any strides; `scratch` at least [`nearest_scratch`] elements; n results.
/// Cost: 2ndk flops. The squares of x are left out, because they change no order; the error is that
/// of a product of d + 1 terms. A row with an element that is not finite has a distance that is
/// not.
///
/// # Errors
/// [`Error::Shape`].
///
/// Determinism: that of [`gemm`](crate::gemm()); a row's bits may depend on its place in x.
pub fn nearest<T: Real>(
    into: Nearest<'_, T>,
    x: MatRef<'_, T>,
    centers: &PackedCenters<T>,
    scratch: &mut [T],
    blas: &Blas,
) -> Result<(), Error> {
    nearest_until(into, x, centers, scratch, blas, &|| false)
}

/// As [`nearest`], until `stop` returns true; it is called at least every 0.1 s or so. The results
/// are then unspecified.
///
/// # Errors
/// [`Error::Shape`].
pub fn nearest_until<T: Real>(
    into: Nearest<'_, T>,
    x: MatRef<'_, T>,
    centers: &PackedCenters<T>,
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let ((n, d), k) = (x.shape(), centers.clusters);
    let lengths = [
        into.label.len(),
        into.first.len(),
        into.second.len(),
        into.squares.len(),
    ];
    if d != centers.features || lengths != [n; 4] || scratch.len() < nearest_scratch::<T>(n, d, k) {
        return Err(Error::shape(
            "nearest",
            &[
                ("x", &x.shape()),
                ("centers", &(k, centers.features)),
                ("results", &lengths),
                ("scratch", &scratch.len()),
            ],
        ));
    }
    into.first.fill(T::of(f64::INFINITY));
    into.second.fill(T::of(f64::INFINITY));
    match &centers.form {
        Form::Across(across, squares) => {
            let centers = (view(across, k, d, 1, k)?, &squares[..]);
            by_products(into, x, centers, scratch, blas, stop)
        }
        #[cfg(target_arch = "x86_64")]
        Form::Slivers(slivers) => {
            avx512::nearest(into, x, slivers, scratch, stop);
            Ok(())
        }
    }
}

fn by_products<T: Real>(
    into: Nearest<'_, T>,
    x: MatRef<'_, T>,
    (centers, squares): (MatRef<'_, T>, &[T]),
    scratch: &mut [T],
    blas: &Blas,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (n, k) = (x.nrows(), squares.len());
    let mut exact = [0.0; BLOCK_ROWS];
    for top in (0..n).step_by(BLOCK_ROWS) {
        let rows = top..(top + BLOCK_ROWS).min(n);
        row_squares(&mut exact[..rows.len()], x.subrows(top, rows.len()))?;
        into.squares[rows.clone()]
            .iter_mut()
            .zip(&exact)
            .for_each(|(square, &exact)| *square = T::of(exact));
        for start in (0..k).step_by(BLOCK_CENTERS) {
            if stop() {
                return Ok(());
            }
            let count = BLOCK_CENTERS.min(k - start);
            let product = &mut scratch[..rows.len() * count];
            let out = view_mut(product, rows.len(), count, count, 1)?;
            gemm_until(
                out,
                T::of(-2.0),
                x.subrows(top, rows.len()),
                centers.subrows(start, count).transpose(),
                T::ZERO,
                blas,
                stop,
            )?;
            let known = Nearest {
                label: &mut into.label[rows.clone()],
                first: &mut into.first[rows.clone()],
                second: &mut into.second[rows.clone()],
                squares: &mut [],
            };
            let squares = &squares[start..start + count];
            if start == 0 && k > BLOCK_CENTERS {
                known.label.fill(u32::MAX);
            }
            // Values moved into the closure let the dispatch inline it; otherwise it would be
            // compiled for the plain instruction set.
            pulp::Arch::new().dispatch(
                #[inline(always)]
                move || fold(known, product, squares, start as u32),
            );
        }
    }
    Ok(())
}

/// Elements of scratch that [`nearest`] needs for n rows of d and k centres.
pub fn nearest_scratch<T: Real>(n: usize, d: usize, k: usize) -> usize {
    match (is_fused(d), n.min(BLOCK_ROWS) * k.min(BLOCK_CENTERS)) {
        #[cfg(target_arch = "x86_64")]
        (true, _) => avx512::scratch::<T>(n, d),
        (_, products) => products,
    }
}

/// Bytes that [`nearest`] holds beside its arguments.
pub fn nearest_held_bytes<T: Real>(n: usize, d: usize, k: usize, blas: &Blas) -> usize {
    if is_fused(d) {
        0
    } else {
        gemm_scratch_bytes::<T>(n.min(BLOCK_ROWS), k.min(BLOCK_CENTERS), d, blas)
    }
}

/// Whether this CPU has a kernel for rows of d.
fn is_fused(d: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::serves(d);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = d;
        false
    }
}

/// Flops of [`nearest`].
pub fn nearest_flops(n: usize, d: usize, k: usize) -> u64 {
    gemm_flops(n, k, d)
}

#[inline(always)]
fn fold<T: Real>(known: Nearest<'_, T>, product: &[T], squares: &[T], start: u32) {
    let Nearest {
        label,
        first,
        second,
        ..
    } = known;
    for (at, line) in product.chunks_exact(squares.len()).enumerate() {
        let known = (first[at], label[at], second[at]);
        (first[at], label[at], second[at]) = least(
            known,
            line,
            squares,
            start,
            #[inline(always)]
            |square, product| square + product,
        );
    }
}

/// Of one row, from its products with all centres and the squared lengths of these: the nearest
/// centre, and |x - c|^2 - |x|^2 for it and for the second nearest, in f64.
///
/// Shapes: both are of k elements. The label is the lowest of equals, and without meaning if its value
/// is not finite; a `guess` that is right may save a search for it. A value that is NaN is of no
/// centre. Determinism: the same bits on every CPU.
pub fn nearest_of_products<T: Real>(products: &[T], squares: &[T], guess: u32) -> (u32, f64, f64) {
    assert_eq!(products.len(), squares.len(), "a product for each centre");
    let infinity = f64::INFINITY;
    let (first, label, second) = pulp::Arch::new().dispatch(
        #[inline(always)]
        move || {
            least(
                (infinity, guess, infinity),
                products,
                squares,
                0,
                #[inline(always)]
                |square: T, product: T| square.f64() - 2.0 * product.f64(),
            )
        },
    );
    (label, first, second)
}

/// The smallest of the known value and what `of` makes of two lines, with its number, and the second
/// smallest. A known value of nothing yet is a guess.
#[inline(always)]
fn least<T: Real, V: Real>(
    known: (V, u32, V),
    line: &[T],
    squares_of: &[T],
    start: u32,
    of: impl Fn(T, T) -> V,
) -> (V, u32, V) {
    let infinity = V::of(f64::INFINITY);
    let (lines, line_rest) = line.as_chunks::<LANES>();
    let (groups, squares_rest) = squares_of.as_chunks::<LANES>();
    // Padding that is infinitely far from every row.
    let (mut last, mut last_squares) = ([T::ZERO; LANES], [T::of(f64::INFINITY); LANES]);
    last[..line_rest.len()].copy_from_slice(line_rest);
    last_squares[..line_rest.len()].copy_from_slice(squares_rest);
    let groups = || lines.iter().zip(groups).chain([(&last, &last_squares)]);
    let (mut first, mut second) = ([infinity; LANES], [infinity; LANES]);
    for (line, squares) in groups() {
        for lane in 0..LANES {
            let value = of(squares[lane], line[lane]);
            let loser = if value < first[lane] {
                first[lane]
            } else {
                value
            };
            second[lane] = if loser < second[lane] {
                loser
            } else {
                second[lane]
            };
            first[lane] = if value < first[lane] {
                value
            } else {
                first[lane]
            };
        }
    }
    let (first, second) = halve::<V, 16, 8>(first, second);
    let (first, second) = halve::<V, 8, 4>(first, second);
    let (first, second) = halve::<V, 4, 2>(first, second);
    let ([best], [next]) = halve::<V, 2, 1>(first, second);
    let ([best], [next]) = halve::<V, 2, 1>([known.0, best], [known.2, next]);
    if best >= known.0 || best.f64().is_nan() {
        return (known.0, known.1, next);
    }
    let guess = known.1.wrapping_sub(start) as usize;
    if next > best
        && line
            .get(guess)
            .is_some_and(|&product| of(squares_of[guess], product) == best)
    {
        return (best, known.1, next);
    }
    let mut number = [u32::MAX; LANES];
    for ((line, squares), at) in groups().zip((start..).step_by(LANES)) {
        for lane in 0..LANES {
            let found = if of(squares[lane], line[lane]) == best {
                at + lane as u32
            } else {
                u32::MAX
            };
            number[lane] = if found < number[lane] {
                found
            } else {
                number[lane]
            };
        }
    }
    (best, number.into_iter().fold(u32::MAX, u32::min), next)
}

/// The smallest two of each two lanes: all at once, since one after another each would wait for the
/// previous one.
#[inline(always)]
fn halve<T: Real, const N: usize, const HALF: usize>(
    first: [T; N],
    second: [T; N],
) -> ([T; HALF], [T; HALF]) {
    let low = |a: T, b: T| if a < b { a } else { b };
    let high = |a: T, b: T| if a < b { b } else { a };
    (
        std::array::from_fn(|lane| low(first[lane], first[lane + HALF])),
        std::array::from_fn(|lane| {
            low(
                high(first[lane], first[lane + HALF]),
                low(second[lane], second[lane + HALF]),
            )
        }),
    )
}

/// |x|^2 of each row, in f64.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn row_squares<T: Real>(out: &mut [f64], x: MatRef<'_, T>) -> Result<(), Error> {
    if out.len() != x.nrows() {
        return Err(Error::shape(
            "row_squares",
            &[("x", &x.shape()), ("out", &out.len())],
        ));
    }
    let out = Some(out);
    pulp::Arch::new().dispatch(
        #[inline(always)]
        move || {
            for (i, out) in out.into_iter().flatten().enumerate() {
                *out = match row_slice(x, i) {
                    Some(row) => sum_of_squares(row),
                    None => (0..x.ncols())
                        .map(|j| x[(i, j)].f64() * x[(i, j)].f64())
                        .sum(),
                };
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn sum_of_squares<T: Real>(row: &[T]) -> f64 {
    let (lines, rest) = row.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for line in lines {
        for lane in 0..LANES {
            sums[lane] += line[lane].f64() * line[lane].f64();
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x.f64() * x.f64();
    }
    sums.iter().sum()
}

/// The plain twin of [`nearest`], one row: label, first, second.
pub fn nearest_reference<T: Real>(row: &[T], centers: &[T]) -> (u32, f64, f64) {
    let mut found = (0, f64::INFINITY, f64::INFINITY);
    for (number, center) in centers.chunks_exact(row.len().max(1)).enumerate() {
        let value: f64 = row
            .iter()
            .zip(center)
            .map(|(x, c)| c.f64() * (c.f64() - 2.0 * x.f64()))
            .sum();
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

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn agrees_with_one_row_after_another() {
        for (n, d, k) in [
            (0, 3, 2),
            (1, 1, 1),
            (255, 7, 2),
            (513, 16, 129),
            (600, 3, 300),
            (33, 64, 100),
            (17, 5, 9),
            (8, 2, 11),
        ] {
            let (x, centers) = (numbers(n * d, 7), numbers(k * d, 11));
            let squares: Vec<f32> = centers
                .chunks(d)
                .map(|c| c.iter().map(|c| c * c).sum())
                .collect();
            let mut label: Vec<u32> = (0..n as u32).map(|row| row % 7).collect();
            let (mut first, mut second) = (vec![0.0; n], vec![0.0; n]);
            for packed in forms(&centers, &squares) {
                let mut scratch = vec![0.0; scratch_of_all(n, d, k)];
                let mut lengths = vec![0.0; n];
                let into = Nearest {
                    label: &mut label,
                    first: &mut first,
                    second: &mut second,
                    squares: &mut lengths,
                };
                nearest(
                    into,
                    view(&x, n, d, d, 1).unwrap(),
                    &packed,
                    &mut scratch,
                    &Blas::Builtin,
                )
                .unwrap();
                for i in 0..n {
                    let (want, best, next) = nearest_reference(&x[i * d..(i + 1) * d], &centers);
                    let close = |a: f32, b: f64| {
                        f64::from(a) == b || (f64::from(a) - b).abs() < 1e-5 * d as f64
                    };
                    assert!(
                        close(first[i], best) && close(second[i], next),
                        "row {i} of {n} x {d}, {k} centres"
                    );
                    assert!(label[i] == want || next - best < 1e-5 * d as f64);
                    let square: f64 = x[i * d..(i + 1) * d]
                        .iter()
                        .map(|&x| f64::from(x).powi(2))
                        .sum();
                    assert!(close(lengths[i], square));
                }
            }
        }
    }

    #[test]
    fn the_nearest_of_products_is_that_of_a_plain_loop() {
        for k in [1, 2, 15, 16, 17, 31, 100, 300] {
            for (seed, levels) in [(3, 1e9), (5, 4.0), (7, 1.0)] {
                // Few levels: equals.
                let few = |value: &f32| (value * levels).round() / levels;
                let products: Vec<f32> = numbers(k, seed).iter().map(few).collect();
                let squares: Vec<f32> = numbers(k, seed + 1).iter().map(few).collect();
                let mut want = (0, f64::INFINITY, f64::INFINITY);
                for (at, (product, square)) in products.iter().zip(&squares).enumerate() {
                    let value = f64::from(*square) - 2.0 * f64::from(*product);
                    if value < want.1 {
                        want = (at as u32, value, want.1);
                    } else {
                        want.2 = want.2.min(value);
                    }
                }
                for guess in [0, want.0, k as u32 - 1, u32::MAX] {
                    assert_eq!(nearest_of_products(&products, &squares, guess), want);
                }
            }
        }
        let nan = nearest_of_products(&[f32::NAN, 1.0, f32::NAN], &[1.0; 3], 2);
        assert_eq!(nan, (1, -1.0, f64::INFINITY));
        let none = nearest_of_products(&[f64::NAN; 2], &[1.0; 2], 0);
        assert_eq!(none.1, f64::INFINITY);
    }

    #[test]
    fn rows_in_double_precision_and_by_columns_are_found_too() {
        for (n, d, k) in [
            (1, 1, 1),
            (8, 3, 1),
            (9, 3, 9),
            (16, 2, 8),
            (17, 7, 30),
            (515, 4, 25),
        ] {
            let x: Vec<f64> = numbers(n * d, 3).into_iter().map(f64::from).collect();
            let centers: Vec<f64> = numbers(k * d, 5).into_iter().map(f64::from).collect();
            let squares: Vec<f64> = centers
                .chunks(d)
                .map(|c| c.iter().map(|c| c * c).sum())
                .collect();
            let by_columns: Vec<f64> = (0..n * d).map(|at| x[at % n * d + at / n]).collect();
            for packed in forms(&centers, &squares) {
                let (mut label, mut found) =
                    (vec![0; n], [vec![0.0; n], vec![0.0; n], vec![0.0; n]]);
                let [first, second, lengths] = &mut found;
                let into = Nearest {
                    label: &mut label,
                    first,
                    second,
                    squares: lengths,
                };
                let mut scratch =
                    vec![0.0; nearest_scratch::<f64>(n, d, k).max(n.min(BLOCK_ROWS) * k)];
                nearest(
                    into,
                    view(&by_columns, n, d, 1, n).unwrap(),
                    &packed,
                    &mut scratch,
                    &Blas::Builtin,
                )
                .unwrap();
                for i in 0..n {
                    let (want, best, next) = nearest_reference(&x[i * d..(i + 1) * d], &centers);
                    let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-12;
                    assert!(
                        label[i] == want && close(found[0][i], best) && close(found[1][i], next),
                        "row {i} of {n} x {d}, k = {k}"
                    );
                }
            }
        }
    }

    /// A part of 32 rows and a billion numbers of centres took two seconds without a question.
    #[test]
    fn a_search_looks_at_cancellation_among_the_centres() {
        let (n, d, k) = (32, 16, 1200);
        let (x, centers) = (numbers(n * d, 7), numbers(k * d, 11));
        for packed in forms(&centers, &vec![0.0; k]) {
            let asked_until = |stop_at: usize| {
                let asked = std::cell::Cell::new(0);
                let stop = || asked.replace(asked.get() + 1) >= stop_at;
                let (mut label, mut found) =
                    (vec![0; n], [vec![0.0; n], vec![0.0; n], vec![0.0; n]]);
                let [first, second, squares] = &mut found;
                let into = Nearest {
                    label: &mut label,
                    first,
                    second,
                    squares,
                };
                let x = view(&x, n, d, d, 1).unwrap();
                let scratch = &mut vec![0.0; scratch_of_all(n, d, k)];
                nearest_until(into, x, &packed, scratch, &Blas::Builtin, &stop).unwrap();
                asked.get()
            };
            assert!(asked_until(usize::MAX) >= k / BLOCK_CENTERS);
            // Each loop around the innermost one asks once more.
            assert!((4..8).contains(&asked_until(3)));
        }
    }

    #[test]
    fn the_first_of_equals_wins() {
        let (x, centers) = (vec![1.0f64, 2.0], [5.0, 5.0, 1.0, 2.0, 1.0, 2.0]);
        let squares = [50.0, 5.0, 5.0];
        for packed in forms(&centers, &squares) {
            // Also where the guess is the other one.
            let (mut label, mut first, mut second, mut scratch) =
                ([2], [0.0], [0.0], vec![0.0; scratch_of_all(1, 2, 3)]);
            let into = Nearest {
                label: &mut label,
                first: &mut first,
                second: &mut second,
                squares: &mut [0.0],
            };
            nearest(
                into,
                view(&x, 1, 2, 2, 1).unwrap(),
                &packed,
                &mut scratch,
                &Blas::Builtin,
            )
            .unwrap();
            assert_eq!((label[0], first[0], second[0]), (1, -5.0, -5.0));
        }
    }

    #[test]
    fn what_is_not_finite_has_no_finite_distance() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut x, centers) = (numbers(40 * 5, 3), numbers(3 * 5, 5));
            x[7 * 5 + 2] = bad;
            let squares: Vec<f32> = centers
                .chunks(5)
                .map(|c| c.iter().map(|c| c * c).sum())
                .collect();
            for packed in forms(&centers, &squares) {
                let (mut label, mut first, mut second) =
                    (vec![0; 40], vec![0.0; 40], vec![0.0; 40]);
                let into = Nearest {
                    label: &mut label,
                    first: &mut first,
                    second: &mut second,
                    squares: &mut [0.0; 40],
                };
                nearest(
                    into,
                    view(&x, 40, 5, 5, 1).unwrap(),
                    &packed,
                    &mut vec![0.0; scratch_of_all(40, 5, 3)],
                    &Blas::Builtin,
                )
                .unwrap();
                let finite: Vec<bool> = first.iter().map(|first| first.is_finite()).collect();
                assert_eq!(finite, (0..40).map(|row| row != 7).collect::<Vec<_>>());
            }
        }
    }

    /// The kernel of this CPU and that of every CPU.
    fn forms<T: Real>(centers: &[T], squares: &[T]) -> [PackedCenters<T>; 2] {
        let own = PackedCenters::new(centers, squares).unwrap();
        let across = PackedCenters {
            features: own.features,
            clusters: own.clusters,
            form: Form::across(centers, squares),
        };
        [own, across]
    }

    fn scratch_of_all(n: usize, d: usize, k: usize) -> usize {
        nearest_scratch::<f32>(n, d, k).max(n.min(BLOCK_ROWS) * k.min(BLOCK_CENTERS))
    }
}
