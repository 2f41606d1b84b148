//! What queries have found: the k nearest rows of each, or all rows within a radius.

use bytemuck::{Pod, Zeroable};

use super::{Metric, Neighbor};
use crate::Error;

/// Takes rows that may be near enough.
pub(super) trait Found {
    /// The distance, as compared, beyond which a query wants none.
    fn last(&self, query: usize) -> f64;

    /// Takes a row, whose distance is exact, if it is near enough; whether it is.
    fn take(&mut self, query: usize, neighbor: Neighbor) -> bool;
}

/// The k nearest rows of each query.
pub(super) struct Nearest<'a> {
    nearest: &'a mut [Neighbor],
    pub(super) k: usize,
}

impl<'a> Nearest<'a> {
    /// Of m queries, where the list has as many for each.
    pub(super) fn new(nearest: &'a mut [Neighbor], m: usize) -> Option<Nearest<'a>> {
        let k = nearest.len() / m.max(1);
        (k * m == nearest.len()).then_some(Nearest { nearest, k })
    }

    /// Of the queries and of the rows of an operation, the same k of both.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(super) fn mutual(
        operation: &'static str,
        [of_queries, of_rows]: [&'a mut [Neighbor]; 2],
        [m, n]: [usize; 2],
    ) -> Result<[Nearest<'a>; 2], Error> {
        let lengths = (of_queries.len(), of_rows.len());
        let lists = Nearest::new(of_queries, m).zip(Nearest::new(of_rows, n));
        match lists.filter(|(one, other)| one.k == other.k) {
            Some((found, found_back)) => Ok([found, found_back]),
            None => Err(Error::shape(
                operation,
                &[
                    ("queries", &m),
                    ("rows", &n),
                    ("nearest of queries", &lengths.0),
                    ("nearest of rows", &lengths.1),
                ],
            )),
        }
    }
}

impl Found for Nearest<'_> {
    fn last(&self, query: usize) -> f64 {
        self.nearest[query * self.k + self.k - 1].distance
    }

    fn take(&mut self, query: usize, neighbor: Neighbor) -> bool {
        neighbor.put_into(&mut self.nearest[query * self.k..][..self.k])
    }
}

/// What some of the queries find.
pub(super) struct OfSome<'a, F> {
    pub(super) found: &'a mut F,
    /// The numbers of these queries.
    pub(super) queries: &'a [usize],
}

impl<F: Found> Found for OfSome<'_, F> {
    fn last(&self, query: usize) -> f64 {
        self.found.last(self.queries[query])
    }

    fn take(&mut self, query: usize, neighbor: Neighbor) -> bool {
        self.found.take(self.queries[query], neighbor)
    }
}

/// A row that a query has found.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Pair {
    /// The query, from the first of a block.
    pub query: u64,
    /// The row, and how far it is.
    pub neighbor: Neighbor,
}

/// All rows within a radius of each query.
pub struct Within<'a> {
    /// What is small.
    pub metric: Metric,
    /// The largest distance, as [shown](Metric::shown).
    pub radius: f64,
    /// How many rows each query has found.
    pub counts: &'a mut [u64],
    /// How many all have found. What is beyond the room for pairs is counted only.
    pub found: &'a mut u64,
    /// The first that were found.
    pub pairs: &'a mut [Pair],
}

impl Found for Within<'_> {
    fn last(&self, _: usize) -> f64 {
        self.metric.compared(self.radius)
    }

    fn take(&mut self, query: usize, neighbor: Neighbor) -> bool {
        let is_within = self.metric.shown(neighbor.distance) <= self.radius;
        if is_within {
            if let Some(pair) = self.pairs.get_mut(*self.found as usize) {
                *pair = Pair {
                    query: query as u64,
                    neighbor,
                };
            }
            self.counts[query] += 1;
            *self.found += 1;
        }
        is_within
    }
}

impl Metric {
    /// No less than a distance, as compared, that is shown as this one.
    fn compared(self, shown: f64) -> f64 {
        let above = |x: f64| x + x.abs() * 4.0 * f64::EPSILON + f64::MIN_POSITIVE;
        match self {
            Metric::Euclidean => above(shown * shown),
            Metric::Cosine if shown >= 2.0 => f64::INFINITY,
            Metric::Cosine | Metric::InnerProduct => above(shown),
        }
    }
}
