//! What a product may say of a row that is near enough, all errors of rounding counted.

use super::Metric;
use crate::{Real, bf16};

/// How far off products may be.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) metric: Metric,
    /// Of a product, at most.
    pub(super) terms: usize,
    /// The largest |x|.
    pub(super) longest: f64,
    /// The largest scale, as products are scaled with it: it may be beyond their type.
    pub(super) steepest: f64,
    /// Products are of elements rounded to bf16.
    pub(super) is_rounded: bool,
}

impl Bounds {
    /// The most that a product can say of a row that is as near as `last`, all errors of rounding
    /// counted: a sum of d products is off by up to d roundings of |q| |x|, in whatever order it is
    /// added up, and by d of the smallest numbers. Where both factors were rounded before, it is off
    /// by two of their roundings besides, and what is smallest is taken for zero.
    pub(super) fn limit<T: Real>(&self, last: f64, square: f64) -> f64 {
        let (query, longest) = (square.sqrt(), self.longest);
        let (large, small) = match size_of::<T>() {
            4 => (1e37, 1e-44),
            _ => (1e300, 1e-323),
        };
        let lengths = query.max(1.0) * longest.max(1.0);
        if last == f64::INFINITY || 2.0 * lengths > large || longest * longest > large {
            return f64::INFINITY;
        }
        let roundings = (self.terms + 16) as f64;
        let of_products = roundings * T::EPSILON.f64();
        let exact = 2.0 * roundings * f64::EPSILON;
        let (of_factors, small) = match self.is_rounded {
            true => (
                (2.0 + bf16::ROUNDING) * bf16::ROUNDING + 0.01 * of_products,
                bf16::SMALLEST * (1.0 + query + longest),
            ),
            false => (0.0, small),
        };
        let limit = match self.metric {
            Metric::Euclidean => {
                let products = 2.0 * query * longest;
                let of_products = of_products * (products + longest * longest);
                last * (1.0 + exact) - square + of_factors * products + of_products + exact * square
            }
            Metric::Cosine => {
                (last - 1.0) * query + (of_factors + of_products + 2.0 * exact) * query
            }
            Metric::InnerProduct => last + (of_factors + of_products + exact) * query * longest,
        };
        limit + limit.abs() * T::EPSILON.f64() + 4.0 * roundings * small * self.steepest.max(1.0)
    }
}

/// How many of some rows may be as near as `least`.
pub(super) fn within<T: Real>(products: &[T], scales: &[T], offsets: &[T], least: T) -> usize {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let terms = scales.iter().zip(offsets);
            let beyond = |(product, (scale, offset)): (&T, (&T, &T))| {
                u32::from(*product * *scale + *offset > least)
            };
            let count: u32 = products.iter().zip(terms).map(beyond).sum();
            products.len() - count as usize
        },
    )
}
