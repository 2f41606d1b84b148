//! How far a row is from a query, in f64.

use faer::MatRef;

use crate::view::row_slice;
use crate::{Error, Real};

/// Sums of a distance: their order is that of the result, whatever the processor has.
const LANES: usize = 16;

/// What is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// |q - x|; compared as its square.
    Euclidean,
    /// 1 - q.x / (|q| |x|); 1 where one of the two is zero.
    Cosine,
    /// -q.x: the largest product is nearest.
    InnerProduct,
}

impl Metric {
    /// What products are multiplied by.
    pub(super) fn factor<T: Real>(self) -> T {
        T::of(if self == Metric::Euclidean {
            -2.0
        } else {
            -1.0
        })
    }

    /// Scale and offset of the products of a row.
    pub(super) fn terms(self, square: f64) -> [f64; 2] {
        match self {
            Metric::Euclidean => [1.0, square],
            Metric::Cosine if square == 0.0 => [0.0, 0.0],
            Metric::Cosine => [1.0 / square.sqrt(), 0.0],
            Metric::InnerProduct => [1.0, 0.0],
        }
    }

    /// The distance in f64.
    pub(super) fn exact<T: Real>(
        self,
        (queries, query): (MatRef<'_, T>, usize),
        query_square: f64,
        (rows, row): (MatRef<'_, T>, usize),
        row_square: f64,
    ) -> f64 {
        let term = |q: T, x: T| match self {
            Metric::Euclidean => (q.f64() - x.f64()) * (q.f64() - x.f64()),
            _ => q.f64() * x.f64(),
        };
        let sum = match (row_slice(queries, query), row_slice(rows, row)) {
            (Some(q), Some(x)) => summed(q.len(), |j| term(q[j], x[j])),
            _ => summed(queries.ncols(), |j| {
                term(queries[(query, j)], rows[(row, j)])
            }),
        };
        self.of_sum(sum, query_square, row_square)
    }

    /// The distance, of the sum of its terms and the squares of both. Distances that are shown alike are equal.
    pub(super) fn of_sum(self, sum: f64, query_square: f64, row_square: f64) -> f64 {
        match self {
            Metric::Euclidean => largest_of_root(sum),
            // A sum without terms is the same zero as one of products.
            Metric::InnerProduct => 0.0 - sum,
            Metric::Cosine if query_square == 0.0 || row_square == 0.0 => 1.0,
            Metric::Cosine => {
                (1.0 - sum / (query_square.sqrt() * row_square.sqrt())).clamp(0.0, 2.0)
            }
        }
    }

    /// What users call the distance of a neighbour.
    pub fn shown(self, distance: f64) -> f64 {
        match self {
            Metric::Euclidean => distance.sqrt(),
            Metric::Cosine | Metric::InnerProduct => distance,
        }
    }
}

/// The largest number whose root is rounded as that of this one, which is not negative: at most four numbers have the
/// same. [`Bounds::limit`](super::bounds::Bounds::limit) allows for more than that.
fn largest_of_root(square: f64) -> f64 {
    let (root, mut largest) = (square.sqrt(), square);
    while largest.next_up().sqrt() == root {
        largest = largest.next_up();
    }
    largest
}

/// |x|^2 of each row, in the same order of sums wherever its elements lie.
///
/// # Errors
/// [`Error::Shape`] when the lengths differ.
pub fn squares_of_rows<T: Real>(out: &mut [f64], x: MatRef<'_, T>) -> Result<(), Error> {
    if out.len() != x.nrows() {
        return Err(Error::shape(
            "squares_of_rows",
            &[("x", &x.shape()), ("out", &out.len())],
        ));
    }
    for (row, out) in out.iter_mut().enumerate() {
        *out = match row_slice(x, row) {
            Some(x) => summed(x.len(), |j| x[j].f64() * x[j].f64()),
            None => summed(x.ncols(), |j| x[(row, j)].f64() * x[(row, j)].f64()),
        };
    }
    Ok(())
}

/// The sum of d terms, in sixteen sums that are added up in order.
#[inline(always)]
fn summed(d: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    for start in (0..d - d % LANES).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for (lane, j) in (d - d % LANES..d).enumerate() {
        sums[lane] += term(j);
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn squares_of_one_root_become_the_largest(root in prop_oneof![0.0..1e-150, 0.5..4.0, 1e100..1e150]) {
            let largest = largest_of_root(root * root);
            let expected = f64::sqrt(root * root);
            let has_root = |square: f64| square.sqrt() == expected;
            prop_assert!(has_root(largest) && !has_root(largest.next_up()));
            let all: Vec<f64> = std::iter::successors(Some(largest), |square| Some(square.next_down()))
                .take_while(|square| *square >= 0.0 && has_root(*square))
                .collect();
            prop_assert!(all.len() <= 4, "{all:?}");
            prop_assert!(all.iter().all(|square| largest_of_root(*square) == largest));
        }
    }
}
