//! Which products of a square of rows and queries may be of neighbours.
//!
//! ```text
//!                 queries, 64          what a product p says of a row x to the query q is
//!            p p p p p p p p p p         p * scale(x) + offset(x) <= limit(q)
//!   rows,    p p p p p p p p p p       where x may be a neighbour of q, and to the row, which may
//!   64       p p p p p p p p p p       look for q too,
//!            p p p p p p p p p p         p * scale(q) + offset(q) <= limit(x)
//! ```
//!
//! Few are. What is not a number may be anything.

use crate::Real;

/// Rows and queries of a square: products of f32 have 16 KiB, and stay in the first-level cache.
pub(super) const SIDE: usize = 64;

/// A bit for each row of a square, whether it may be a neighbour of one of its queries: as many rows
/// as there are scales, `stride` elements apart.
///
/// # Panics
/// More than [`SIDE`] rows; too few products.
pub(super) fn rows_for_queries<T: Real>(
    products: &[T],
    stride: usize,
    (scales, offsets): (&[T], &[T]),
    limits: &[T; SIDE],
) -> u64 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut marks = 0;
            for row in 0..scales.len() {
                let products: &[T; SIDE] = square_row(products, stride, row);
                let (scale, offset) = (scales[row], offsets[row]);
                let mut near = 0;
                for at in 0..SIDE {
                    near |= u32::from(!is_beyond(products[at], scale, offset, limits[at]));
                }
                marks |= u64::from(near) << row;
            }
            marks
        },
    )
}

/// A bit for each row of a square, whether one of its queries may be a neighbour of it.
///
/// # Panics
/// More than [`SIDE`] rows; too few products.
pub(super) fn rows_of_queries<T: Real>(
    products: &[T],
    stride: usize,
    (scales, offsets): (&[T; SIDE], &[T; SIDE]),
    limits: &[T],
) -> u64 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut marks = 0;
            for (row, limit) in limits.iter().enumerate() {
                let products: &[T; SIDE] = square_row(products, stride, row);
                let mut near = 0;
                for at in 0..SIDE {
                    near |= u32::from(!is_beyond(products[at], scales[at], offsets[at], *limit));
                }
                marks |= u64::from(near) << row;
            }
            marks
        },
    )
}

#[inline(always)]
fn square_row<T>(products: &[T], stride: usize, row: usize) -> &[T; SIDE] {
    let row = &products[row * stride..][..SIDE];
    row.first_chunk().expect("as long as a side")
}

/// Whether a row is beyond a limit, which it is not where its product is not a number.
#[inline(always)]
pub(super) fn is_beyond<T: Real>(product: T, scale: T, offset: T, limit: T) -> bool {
    product * scale + offset > limit
}

/// The numbers of the bits that are set.
pub(super) fn each(mut marks: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (marks != 0).then(|| marks.trailing_zeros() as usize);
        marks &= marks.wrapping_sub(1);
        first
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Of rows that are apart in memory.
        #[test]
        fn a_row_is_marked_where_one_of_its_products_is_within_a_limit(
            seed in any::<u64>(),
            (rows, beside) in (0usize..=SIDE, 0usize..20),
            (part, nan) in (0.0f32..1.0, any::<bool>()),
        ) {
            let stride = SIDE + beside;
            let drawn = crate::neighbors::tests::values(seed, SIDE * stride + 4 * SIDE, 0);
            let mut drawn: Vec<f32> = drawn.iter().map(|x| *x as f32).collect();
            if nan {
                drawn[seed as usize % (SIDE * stride)] = f32::NAN;
            }
            let (products, rest) = drawn.split_at(SIDE * stride);
            let [scales, offsets, limits, _]: [&[f32; SIDE]; 4] =
                std::array::from_fn(|at| rest[at * SIDE..].first_chunk().unwrap());
            // So that few or many are within.
            let limits = &limits.map(|x| x - 4.0 * part);
            let expected = |is_within: &dyn Fn(f32, usize, usize) -> bool| -> u64 {
                (0..rows)
                    .filter(|row| (0..SIDE).any(|at| is_within(products[row * stride + at], *row, at)))
                    .map(|row| 1 << row)
                    .sum()
            };
            let within = |x: f32, limit: f32| x <= limit || x.is_nan();
            prop_assert_eq!(
                rows_for_queries(products, stride, (&scales[..rows], &offsets[..rows]), limits),
                expected(&|p, row, at| within(p * scales[row] + offsets[row], limits[at]))
            );
            prop_assert_eq!(
                rows_of_queries(products, stride, (scales, offsets), &limits[..rows]),
                expected(&|p, row, at| within(p * scales[at] + offsets[at], limits[row]))
            );
        }
    }

    #[test]
    fn bits_have_numbers() {
        let marks = 1 | 1 << 7 | 1 << 63;
        assert_eq!(each(marks).collect::<Vec<_>>(), [0, 7, 63]);
        assert_eq!(each(0).count(), 0);
    }
}
