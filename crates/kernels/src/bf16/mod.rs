//! Products of rows that are rounded to bf16 first, with sums in f32: fewer digits than
//! [`gemm`](crate::gemm()) in a fraction of its time, for callers who know how far off they may be.
//!
//! ```text
//!   left: rows one after another            right: slivers of 16 rows, pair after pair
//!
//!   row      0  0  0  0 ...  1  1  1  1     row      0  0 |  1  1 | ... 15 15 |  0  0 | ...
//!   element  0  1  2  3      0  1  2  3     element  0  1 |  0  1 |      0  1 |  2  3 |
//! ```
//!
//! Rows are filled up with zeros to a multiple of 32 elements, and operands to a multiple of 32
//! rows: what two tiles of AMX take.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use faer::MatRef;

use crate::view::row_slice;
use crate::{Real, RealType};

/// The largest relative error of an element that is rounded.
pub(crate) const ROUNDING: f64 = 1.0 / 256.0;
/// The smallest number, and the smallest product, that is not taken for zero.
pub(crate) const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
/// Rows of a block of both operands.
pub(crate) const BLOCK: usize = 32;
/// Rows of a sliver, and pairs of a line.
const LANES: usize = 16;
/// Elements of a line.
const ELEMENTS: usize = 2 * LANES;

/// A cache line of pairs of elements, the first of each in the lower half.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u32; LANES]);

/// What makes the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Tiles of AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles,
    /// Vectors of AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    Vectors,
    /// The plain twin, slower than a product in f32.
    Plain,
}

impl Unit {
    /// The fastest that this CPU has. In tests every CPU has the plain one.
    pub(crate) fn new() -> Option<Unit> {
        static FASTEST: OnceLock<Option<Unit>> = OnceLock::new();
        let plain = cfg!(test).then_some(Unit::Plain);
        *FASTEST.get_or_init(|| Unit::all().chain(plain).next())
    }

    /// Those that this CPU has, the fastest first.
    #[cfg(target_arch = "x86_64")]
    fn all() -> impl Iterator<Item = Unit> {
        let tiles = (amx::serves() && Unit::Tiles.is_right()).then_some(Unit::Tiles);
        tiles
            .into_iter()
            .chain(avx512::serves().then_some(Unit::Vectors))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn all() -> impl Iterator<Item = Unit> {
        std::iter::empty()
    }

    /// Whether it multiplies small integers without an error. An emulator or hypervisor may
    /// announce what it does not carry out well.
    fn is_right(self) -> bool {
        let matrix = |salt: u32| -> Vec<f32> {
            let element = |at: u32| (at.wrapping_mul(salt) >> 7) % 17;
            (0..33 * 70).map(|at| element(at) as f32 - 8.0).collect()
        };
        let [a, b] = [2_654_435_761, 2_246_822_519].map(matrix);
        let [a, b] = [&a, &b].map(|x| MatRef::from_row_major_slice(x, 33, 70));
        let (left, right) = (Operand::left(a), Operand::right(b, 1.0));
        let [own, plain] = [self, Unit::Plain].map(|unit| {
            let mut products = vec![0.0; 64 * 64];
            let ready = unit.ready();
            ready.multiply(&mut products, 64, (&left, 0..2), (&right, 0..2));
            products
        });
        own == plain
    }

    /// Ready to multiply on this thread.
    ///
    /// # Panics
    /// A unit that this CPU does not have.
    pub(crate) fn ready(self) -> Ready {
        Ready {
            unit: self,
            #[cfg(target_arch = "x86_64")]
            tiles: (self == Unit::Tiles).then(amx::Tiles::configure),
        }
    }
}

/// A unit with what it holds while it multiplies.
pub(crate) struct Ready {
    unit: Unit,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<amx::Tiles>,
}

impl Ready {
    /// c = a b^T, for some blocks of the rows of operands made for that, in rows `stride` elements
    /// apart.
    ///
    /// # Panics
    /// Too little room for all rows of the blocks; operands of other lengths.
    pub(crate) fn multiply(
        &self,
        c: &mut [f32],
        stride: usize,
        (a, of_a): (&Operand, Range<usize>),
        (b, of_b): (&Operand, Range<usize>),
    ) {
        assert!(a.row_lines == b.row_lines && !a.is_right && b.is_right);
        assert!(of_b.len() * BLOCK <= stride);
        for (left, right) in (0..).step_by(BLOCK).zip(of_b) {
            for (top, row) in (0..).step_by(BLOCK).zip(of_a.clone()) {
                let (a, b) = (a.block(row), b.block(right));
                let c = &mut c[top * stride + left..];
                match self.unit {
                    #[cfg(target_arch = "x86_64")]
                    Unit::Tiles => {
                        let tiles = self.tiles.as_ref().expect("configured for this unit");
                        tiles.multiply(c, stride, a, b);
                    }
                    #[cfg(target_arch = "x86_64")]
                    Unit::Vectors => avx512::multiply(c, stride, a, b),
                    Unit::Plain => multiply(c, stride, a, b),
                }
            }
        }
    }
}

/// A block of [`BLOCK`] rows of each operand.
fn multiply(c: &mut [f32], stride: usize, a: &[Line], b: &[Line]) {
    let row_lines = a.len() / BLOCK;
    let halves = |pair: u32| [pair << 16, pair & 0xffff_0000].map(f32::from_bits);
    for (row, a) in a.chunks_exact(row_lines).enumerate() {
        for (sliver, b) in b.chunks_exact(row_lines * LANES).enumerate() {
            let c = &mut c[row * stride + sliver * LANES..][..LANES];
            c.fill(0.0);
            for (pair, b) in a.iter().flat_map(|line| line.0).zip(b) {
                let [even, odd] = halves(pair);
                for (c, b) in c.iter_mut().zip(b.0.map(halves)) {
                    *c += odd * b[1];
                    *c += even * b[0];
                }
            }
        }
    }
}

/// Rows of a matrix, rounded and packed.
#[derive(Default)]
pub(crate) struct Operand {
    lines: Vec<Line>,
    /// Lines of a row.
    row_lines: usize,
    is_right: bool,
}

impl Operand {
    /// Bytes of a row of d elements.
    pub(crate) fn row_bytes(d: usize) -> usize {
        row_lines(d) * size_of::<Line>()
    }

    fn left<T: Real>(x: MatRef<'_, T>) -> Operand {
        let mut operand = Operand::default();
        operand.pack_left(x);
        operand
    }

    fn right<T: Real>(x: MatRef<'_, T>, factor: f32) -> Operand {
        let mut operand = Operand::default();
        operand.pack_right(x, factor);
        operand
    }

    /// The left operand of these rows, in the memory it has.
    ///
    /// # Panics
    /// Elements that are not f32.
    pub(crate) fn pack_left<T: Real>(&mut self, x: MatRef<'_, T>) {
        self.reset(x.nrows(), x.ncols(), false);
        for (row, into) in self.lines.chunks_exact_mut(self.row_lines).enumerate() {
            match row < x.nrows() {
                true => round(into, x, row, 1.0),
                false => into.fill(Line::default()),
            }
        }
    }

    /// The right operand of these rows times a factor, a power of two; in the memory it has. It takes
    /// several times as long as the left one.
    ///
    /// # Panics
    /// Elements that are not f32.
    pub(crate) fn pack_right<T: Real>(&mut self, x: MatRef<'_, T>, factor: f32) {
        self.reset(x.nrows(), x.ncols(), true);
        let mut rows = vec![Line::default(); LANES * self.row_lines];
        let slivers = self.lines.chunks_exact_mut(LANES * self.row_lines);
        for (sliver, into) in slivers.enumerate() {
            for (lane, row) in rows.chunks_exact_mut(self.row_lines).enumerate() {
                match sliver * LANES + lane {
                    at if at < x.nrows() => round(row, x, at, factor),
                    _ => row.fill(Line::default()),
                }
            }
            for (at, square) in into.chunks_exact_mut(LANES).enumerate() {
                for (pair, line) in square.iter_mut().enumerate() {
                    *line = Line(std::array::from_fn(|lane| {
                        rows[lane * self.row_lines + at].0[pair]
                    }));
                }
            }
        }
    }

    fn reset(&mut self, rows: usize, d: usize, is_right: bool) {
        (self.row_lines, self.is_right) = (row_lines(d), is_right);
        let lines = rows.next_multiple_of(BLOCK) * self.row_lines;
        let more = lines.saturating_sub(self.lines.len());
        self.lines.reserve_exact(more);
        self.lines.resize(lines, Line::default());
    }

    /// A block of rows.
    fn block(&self, number: usize) -> &[Line] {
        let lines = BLOCK * self.row_lines;
        &self.lines[number * lines..][..lines]
    }
}

/// Lines of a row of d elements; one at least.
fn row_lines(d: usize) -> usize {
    d.div_ceil(ELEMENTS).max(1)
}

/// One row.
fn round<T: Real>(into: &mut [Line], x: MatRef<'_, T>, row: usize, factor: f32) {
    assert!(T::DTYPE == RealType::F32);
    match row_slice(x, row) {
        Some(x) => round_slice(into, bytemuck::cast_slice(x), factor),
        None => {
            let row: Vec<f32> = x.row(row).iter().map(|x| x.f64() as f32).collect();
            round_slice(into, &row, factor);
        }
    }
}

fn round_slice(into: &mut [Line], x: &[f32], factor: f32) {
    struct Round<'a>(&'a mut [Line], &'a [f32], f32);
    impl pulp::NullaryFnOnce for Round<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Round(into, x, factor) = self;
            let (whole, rest) = x.as_chunks::<ELEMENTS>();
            for (into, x) in into.iter_mut().zip(whole) {
                *into = line(x, factor);
            }
            // Of no elements, the line of zeros.
            if let Some(into) = into.get_mut(whole.len()) {
                let mut last = [0.0; ELEMENTS];
                last[..rest.len()].copy_from_slice(rest);
                *into = line(&last, factor);
            }
        }
    }
    pulp::Arch::new().dispatch(Round(into, x, factor));
}

/// As many elements as a line has.
#[inline(always)]
fn line(x: &[f32; ELEMENTS], factor: f32) -> Line {
    let mut line = Line::default();
    for at in 0..LANES {
        let [low, high] = [rounded(x[2 * at] * factor), rounded(x[2 * at + 1] * factor)];
        line.0[at] = low >> 16 | high & 0xffff_0000;
    }
    line
}

/// The nearest bf16, ties to even, in the upper half; the lower half is of no meaning.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if x.is_nan() { 0x7fc0_0000 } else { nearest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn units() -> Vec<Unit> {
        Unit::all().chain([Unit::Plain]).collect()
    }

    fn view(x: &[f32], rows: usize, d: usize, by_columns: bool) -> MatRef<'_, f32> {
        match by_columns {
            true => MatRef::from_column_major_slice(x, rows, d),
            false => MatRef::from_row_major_slice(x, rows, d),
        }
    }

    proptest! {
        /// Small integers are exact, whatever the order of sums.
        #[test]
        fn products_of_small_integers_are_exact(
            (m, n, d) in (1usize..80, 1usize..80, 1usize..150),
            seed in any::<u32>(),
            (is_left_by_columns, is_right_by_columns) in any::<(bool, bool)>(),
        ) {
            let element = |at: usize| ((at as u32 + 1).wrapping_mul(seed | 1) >> 9) % 9;
            let matrix = |count: usize, salt: usize| -> Vec<f32> {
                (0..count).map(|at| element(at + salt) as f32 - 4.0).collect()
            };
            let (a, b) = (matrix(m * d, 0), matrix(n * d, 7));
            let (a, b) = (view(&a, m, d, is_left_by_columns), view(&b, n, d, is_right_by_columns));
            let (left, right) = (Operand::left(a), Operand::right(b, -2.0));
            let blocks = [m, n].map(|rows| 0..rows.div_ceil(BLOCK));
            let stride = n.next_multiple_of(BLOCK);
            for unit in units() {
                let mut c = vec![f32::NAN; m.next_multiple_of(BLOCK) * stride];
                let [of_left, of_right] = blocks.clone();
                unit.ready().multiply(&mut c, stride, (&left, of_left), (&right, of_right));
                for i in 0..m {
                    for j in 0..n {
                        let expected: f32 = (0..d).map(|k| -2.0 * a[(i, k)] * b[(j, k)]).sum();
                        prop_assert_eq!(c[i * stride + j], expected, "{:?} {} {}", unit, i, j);
                    }
                }
            }
        }

        /// Any numbers are as near as the bound says.
        #[test]
        fn products_are_as_near_as_the_bound_says(
            d in 1usize..300,
            seed in any::<u64>(),
            exponents in (-20i32..20, -20i32..20),
        ) {
            let mut state = seed | 1;
            let mut next = |exponent: i32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 2f32.powi(exponent)
            };
            let a: Vec<f32> = (0..d).map(|_| next(exponents.0)).collect();
            let b: Vec<f32> = (0..d).map(|_| next(exponents.1)).collect();
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let length = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let most = (2.0 * ROUNDING + ROUNDING * ROUNDING + 1.01 * (d + 16) as f64 * f64::from(f32::EPSILON)) * length(&a) * length(&b);
            let left = Operand::left(MatRef::from_row_major_slice(&a, 1, d));
            let right = Operand::right(MatRef::from_row_major_slice(&b, 1, d), 1.0);
            for unit in units() {
                let mut c = vec![0.0; BLOCK * BLOCK];
                unit.ready().multiply(&mut c, BLOCK, (&left, 0..1), (&right, 0..1));
                let error = (f64::from(c[0]) - exact).abs();
                prop_assert!(error <= most, "{:?}: {} {} beyond {}", unit, c[0], exact, most);
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let row = [
            f32::from_bits(0x7fff_ffff),
            f32::from_bits(0xffff_ffff),
            f32::NAN,
        ];
        for x in row {
            assert!(f32::from_bits(rounded(x) & 0xffff_0000).is_nan());
        }
        assert_eq!(
            f32::from_bits(rounded(f32::MAX) & 0xffff_0000),
            f32::INFINITY
        );
        assert_eq!(
            f32::from_bits(rounded(-0.0) & 0xffff_0000).to_bits(),
            (-0.0f32).to_bits()
        );
    }
}
