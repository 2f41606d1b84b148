//! What the rows of a lane add up to, in f64.
//!
//! ```text
//! | sums of the rows of each cluster, k x d | their weights, k | how many have a weight, k |
//! | sums of all columns, d | weighted squares | squares | labels changed | rows compared |
//! ```
//!
//! A round adds what changes: a row that leaves a cluster is taken off its sums. Weights and counts
//! of none are exactly zero.

use std::ops::Range;

use outcore_kernels::Real;

/// Clusters and features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) clusters: usize,
    pub(super) features: usize,
}

impl Shape {
    /// Numbers in totals.
    pub(super) fn len(self) -> usize {
        self.clusters * (self.features + 2) + self.features + 4
    }

    fn sums(self, cluster: usize) -> Range<usize> {
        cluster * self.features..(cluster + 1) * self.features
    }

    fn weight(self, cluster: usize) -> usize {
        self.clusters * self.features + cluster
    }

    fn count(self, cluster: usize) -> usize {
        self.clusters * (self.features + 1) + cluster
    }

    fn columns(self) -> Range<usize> {
        let start = self.clusters * (self.features + 2);
        start..start + self.features
    }

    fn last(self, at: usize) -> usize {
        self.len() - 4 + at
    }
}

/// Totals in borrowed memory.
pub(super) struct Totals<'a> {
    values: &'a mut [f64],
    shape: Shape,
}

impl<'a> Totals<'a> {
    pub(super) fn of(values: &'a mut [f64], shape: Shape) -> Totals<'a> {
        assert_eq!(values.len(), shape.len(), "totals of {shape:?}");
        Totals { values, shape }
    }

    /// A row goes from a cluster, or none, to another.
    pub(super) fn moved<T: Real>(&mut self, x: &[T], weight: f64, from: Option<u32>, to: u32) {
        self.change(weight, from, to, |sums, weight| {
            sums.iter_mut()
                .zip(x)
                .for_each(|(sum, x)| *sum += weight * x.f64());
        });
    }

    /// The same of a row whose entries [`entry_moved`](Totals::entry_moved) takes.
    pub(super) fn relabeled(&mut self, weight: f64, from: Option<u32>, to: u32) {
        self.change(weight, from, to, |_, _| ());
    }

    /// An entry of such a row, times its weight.
    pub(super) fn entry_moved(&mut self, place: usize, value: f64, from: Option<u32>, to: u32) {
        if let Some(from) = from {
            self.values[self.shape.sums(from as usize)][place] -= value;
        }
        self.values[self.shape.sums(to as usize)][place] += value;
    }

    /// `add` adds the row, times a weight, to the sums of a cluster.
    fn change(&mut self, weight: f64, from: Option<u32>, to: u32, add: impl Fn(&mut [f64], f64)) {
        let counts = f64::from(u8::from(weight != 0.0));
        for (cluster, sign) in from.map(|from| (from, -1.0)).into_iter().chain([(to, 1.0)]) {
            let (cluster, weight) = (cluster as usize, sign * weight);
            add(&mut self.values[self.shape.sums(cluster)], weight);
            self.values[self.shape.weight(cluster)] += weight;
            self.values[self.shape.count(cluster)] += sign * counts;
        }
        self.values[self.shape.last(2)] += 1.0;
    }

    /// An entry of a row that is seen for the first time.
    pub(super) fn entry_seen(&mut self, place: usize, value: f64) {
        self.values[self.shape.columns()][place] += value;
    }

    /// The squares of rows that are seen for the first time, weighted and not.
    pub(super) fn squares_seen(&mut self, squares: [f64; 2]) {
        for (at, square) in squares.into_iter().enumerate() {
            self.values[self.shape.last(at)] += square;
        }
    }

    /// A row is seen for the first time.
    pub(super) fn seen<T: Real>(&mut self, x: &[T], weight: f64, square: f64) {
        self.values[self.shape.columns()]
            .iter_mut()
            .zip(x)
            .for_each(|(sum, x)| *sum += x.f64());
        self.squares_seen([weight * square, square]);
    }

    pub(super) fn compared(&mut self, rows: usize) {
        self.values[self.shape.last(3)] += rows as f64;
    }
}

/// Totals of all rows.
pub(super) struct Sums {
    values: Vec<f64>,
    shape: Shape,
}

impl Sums {
    pub(super) fn new(shape: Shape) -> Sums {
        Sums {
            values: vec![0.0; shape.len()],
            shape,
        }
    }

    /// Adds the lanes of a round, in order. How many labels have changed, and how many rows were
    /// compared.
    pub(super) fn add<'a>(&mut self, lanes: impl Iterator<Item = &'a [f64]>) -> (u64, u64) {
        let (changed, compared) = (self.shape.last(2), self.shape.last(3));
        (self.values[changed], self.values[compared]) = (0.0, 0.0);
        lanes.for_each(|lane| {
            assert_eq!(lane.len(), self.values.len(), "totals of one shape");
            self.values
                .iter_mut()
                .zip(lane)
                .for_each(|(sum, lane)| *sum += lane)
        });
        (self.values[changed] as u64, self.values[compared] as u64)
    }

    /// What a round has changed, to be added to other sums: labels and comparisons among it.
    pub(super) fn into_lane(mut self, (changed, compared): (u64, u64)) -> Vec<f64> {
        let counts = [changed, compared].map(|count| count as f64);
        self.values[self.shape.last(2)..].copy_from_slice(&counts);
        self.values
    }

    /// Sums of clusters without rows are zero, whatever has been rounded off.
    pub(super) fn clear_empty(&mut self) {
        for cluster in 0..self.shape.clusters {
            if self.values[self.shape.count(cluster)] != 0.0 {
                continue;
            }
            self.values[self.shape.sums(cluster)].fill(0.0);
            self.values[self.shape.weight(cluster)] = 0.0;
        }
    }

    pub(super) fn cluster(&self, cluster: usize) -> &[f64] {
        &self.values[self.shape.sums(cluster)]
    }

    pub(super) fn weight(&self, cluster: usize) -> f64 {
        self.values[self.shape.weight(cluster)]
    }

    /// Mean of the variances of all columns, over `rows` rows.
    pub(super) fn variance(&self, rows: f64) -> f64 {
        let means: f64 = self.values[self.shape.columns()]
            .iter()
            .map(|sum| (sum / rows).powi(2))
            .sum();
        (self.values[self.shape.last(1)] / rows - means).max(0.0) / self.shape.features as f64
    }

    /// Weighted sum of squared distances of all rows to the centre of their cluster: |x|^2 - 2 x.c
    /// + |c|^2, summed by parts.
    pub(super) fn inertia<T: Real>(&self, centers: &[T]) -> f64 {
        let parts = centers
            .chunks(self.shape.features)
            .enumerate()
            .map(|(cluster, center)| {
                let weight = self.weight(cluster);
                center
                    .iter()
                    .zip(self.cluster(cluster))
                    .map(|(c, sum)| c.f64() * (weight * c.f64() - 2.0 * sum))
                    .sum::<f64>()
            });
        (self.values[self.shape.last(0)] + parts.sum::<f64>()).max(0.0)
    }
}
