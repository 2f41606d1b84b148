//! Sums of squares without overflow or underflow: a norm that f64 can represent is found even if
//! its square is out of range.
//!
//! Three sums: of plain squares, and of squares of numbers that were scaled into the range by a
//! power of two, from above and from below. There is no division, and scaling by a power of two is
//! exact. After Blue, "A Portable Fortran Program to Find the Euclidean Norm of a Vector" (1978),
//! as in LAPACK's `nrm2` since 3.10 (Anderson, "Safe Scaling in the Level 1 BLAS", 2017).
#![forbid(unsafe_code)]

/// 2^n, for a normal number.
const fn power(n: i64) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// Larger numbers are scaled down: 2^52 squares of the largest unscaled ones sum to less than
/// 2^1024.
const LARGE: f64 = power(486);
/// Smaller numbers are scaled up: their squares would have fewer than 53 bits.
const SMALL: f64 = power(-511);
/// With this factor, 2^176 squares of the largest numbers sum to less than 2^1024, and the square
/// of the smallest large one is above 2^-230.
const DOWN: f64 = power(-600);
/// With this factor, the square of the smallest positive number, 2^-1074, is 2^-948.
const UP: f64 = power(600);

/// A sum of squares whose root is found wherever f64 can represent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Squares {
    large: f64,
    middle: f64,
    small: f64,
}

impl Squares {
    /// Adds the square of a number. A NaN is kept.
    #[inline(always)]
    pub fn add(&mut self, value: f64) {
        let size = value.abs();
        if size > LARGE {
            self.large += (size * DOWN) * (size * DOWN);
        } else if size < SMALL {
            self.small += (size * UP) * (size * UP);
        } else {
            self.middle += size * size;
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Squares) {
        self.large += other.large;
        self.middle += other.middle;
        self.small += other.small;
    }

    /// The root of the sum, infinite only on overflow of the root or after an infinite number.
    #[must_use]
    pub fn root(&self) -> f64 {
        if self.middle.is_nan() {
            f64::NAN
        } else if self.large > 0.0 {
            (self.large + self.middle * DOWN * DOWN).sqrt() * UP
        } else if self.small > 0.0 {
            self.middle.sqrt().hypot(self.small.sqrt() * DOWN)
        } else {
            self.middle.sqrt()
        }
    }
}

impl FromIterator<f64> for Squares {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Squares {
        let mut sum = Squares::default();
        values.into_iter().for_each(|value| sum.add(value));
        sum
    }
}

/// Whether the root of a plain sum of `count` squares is accurate: no square overflowed, and those
/// that underflowed change it by half a unit in the last place at most. False for zero, which may
/// be the result of underflow. True for NaN.
#[inline(always)]
pub(crate) fn is_faithful(sum: f64, count: usize) -> bool {
    sum.is_nan() || (sum.is_finite() && sum >= count as f64 * f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(values: &[f64]) -> f64 {
        values.iter().copied().collect::<Squares>().root()
    }

    #[test]
    fn roots_are_those_of_numbers_whose_squares_leave_the_range() {
        for power in [
            power(1020),
            power(600),
            LARGE,
            1.0,
            SMALL,
            power(-600),
            power(-1022),
            power(-1022) * power(-30),
        ] {
            assert_eq!(root(&[3.0 * power, -4.0 * power]), 5.0 * power, "{power}");
        }
        // The smallest positive number, four times: the norm is twice that.
        assert_eq!(root(&[5e-324; 4]), 1e-323);
        assert_eq!(root(&[]), 0.0);
        assert_eq!(root(&[0.0, -0.0]), 0.0);
        assert_eq!(root(&[f64::MAX, f64::MAX]), f64::INFINITY);
    }

    #[test]
    fn numbers_of_every_size_meet_in_one_sum() {
        assert_eq!(root(&[1e-300, 3.0, 1e300]), 1e300);
        assert_eq!(root(&[1e-300, 3.0]), 3.0);
        // Just above one bound and just below the other side of it.
        for bound in [LARGE, SMALL] {
            let got = root(&[bound * 1.5, bound * 0.75]);
            let expected = bound * (1.5f64 * 1.5 + 0.75 * 0.75).sqrt();
            assert!(
                (got / expected - 1.0).abs() <= 2.0 * f64::EPSILON,
                "{got} {expected}"
            );
        }
    }

    #[test]
    fn infinity_stays_and_nan_more_so() {
        let infinite = f64::INFINITY;
        assert_eq!(root(&[infinite, 1.0, -infinite, 1e-300]), infinite);
        assert!(root(&[f64::NAN, infinite]).is_nan());
        assert!(root(&[1e300, f64::NAN]).is_nan());
        assert!(root(&[1e-300, f64::NAN]).is_nan());
    }

    #[test]
    fn sums_of_parts_are_sums_of_all() {
        let values = [1e-200, 2.0, 1e200, 3e-200, 4e200, 5.0];
        let (mut one, other) = (
            values[..3].iter().copied().collect::<Squares>(),
            values[3..].iter().copied().collect(),
        );
        one.merge(&other);
        assert_eq!(one.root(), root(&values));
    }
}
