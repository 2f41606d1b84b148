//! Centres as a round uses them, and how far they move from one to the next.

use outcore_kernels::Real;

use super::totals::Shape;

/// A bit more than what one operation in f32 rounds off.
pub(super) const SLACK: f32 = 3e-7;

pub(super) fn above(value: f64) -> f32 {
    (value * (1.0 + f64::from(SLACK))) as f32 + f32::MIN_POSITIVE
}

pub(super) fn below(value: f64) -> f32 {
    (value * (1.0 - f64::from(SLACK))) as f32
}

/// How far centres have moved, and how far apart they are now.
pub(super) struct Moved {
    pub(super) by: Vec<f32>,
    /// Which has moved most, how far, and how far the one after it.
    pub(super) farthest: usize,
    pub(super) first: f32,
    pub(super) second: f32,
    /// Half the distance from each centre to the nearest other.
    pub(super) gaps: Vec<f32>,
}

/// Centres as a round uses them, less the shift.
pub(super) struct Centers<T> {
    pub(super) values: Vec<T>,
    pub(super) squares: Vec<T>,
    /// Length of the longest.
    pub(super) reach: f64,
    /// No two are farther apart.
    pub(super) span: f64,
    pub(super) gaps: Vec<f32>,
}

/// Beyond this many centres, k^2 d / 2 operations a round cost more than what the gaps save.
const GAP_CENTERS_MAX: usize = 2048;

impl<T: Real> Centers<T> {
    /// After `stop` has said so they have no gaps, and are of no use.
    pub(super) fn new(values: Vec<T>, shape: Shape, stop: &dyn Fn() -> bool) -> Centers<T> {
        let d = shape.features;
        let squares: Vec<f64> = values
            .chunks(d)
            .map(|center| center.iter().map(|x| x.f64() * x.f64()).sum())
            .collect();
        let reach = squares.iter().copied().fold(0.0, f64::max).sqrt();
        let is_few = shape.clusters <= GAP_CENTERS_MAX;
        let apart = is_few.then(|| apart(&values, d, stop)).flatten();
        let (gaps, span) = apart.unwrap_or_else(|| (vec![0.0; shape.clusters], 2.0 * reach));
        Centers {
            values,
            squares: squares.into_iter().map(T::of).collect(),
            reach,
            span,
            gaps,
        }
    }

    /// d x k, as products with sparse rows take them.
    pub(super) fn across(&self, shape: Shape) -> Vec<T> {
        (0..self.values.len())
            .map(|at| self.values[at % shape.clusters * shape.features + at / shape.clusters])
            .collect()
    }

    /// What these centres are to rows whose bounds were right for others.
    pub(super) fn moved_from(&self, before: &Centers<T>, shape: Shape) -> Moved {
        let pairs = self
            .values
            .chunks(shape.features)
            .zip(before.values.chunks(shape.features));
        let by: Vec<f32> = pairs.map(|(to, from)| above(distance(to, from))).collect();
        let farthest = (0..by.len()).fold(0, |most, at| if by[at] > by[most] { at } else { most });
        let second = by
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != farthest)
            .fold(0.0f32, |most, (_, &by)| most.max(by));
        Moved {
            farthest,
            first: by[farthest],
            second,
            by,
            gaps: self.gaps.clone(),
        }
    }
}

/// Half the distance of each centre from the nearest other one, and the largest distance of two; none after `stop` has said so.
fn apart<T: Real>(values: &[T], d: usize, stop: &dyn Fn() -> bool) -> Option<(Vec<f32>, f64)> {
    let centers: Vec<&[T]> = values.chunks(d).collect();
    let (mut nearest, mut span) = (vec![f64::INFINITY; centers.len()], 0.0f64);
    for (at, one) in centers.iter().enumerate() {
        if stop() {
            return None;
        }
        for (beside, other) in centers.iter().enumerate().skip(at + 1) {
            let far = distance(one, other);
            span = span.max(far);
            for center in [at, beside] {
                nearest[center] = nearest[center].min(far);
            }
        }
    }
    let half = |nearest: &f64| below(0.5 * nearest * (1.0 - 1e-9));
    Some((nearest.iter().map(half).collect(), span * (1.0 + 1e-9)))
}

/// As many sums as vector units add at once.
const SUMS: usize = 16;

pub(super) fn distance<T: Real>(one: &[T], other: &[T]) -> f64 {
    let square = |a: &T, b: &T| (a.f64() - b.f64()).powi(2);
    let (ones, others) = (one.chunks_exact(SUMS), other.chunks_exact(SUMS));
    let rest = ones.remainder().iter().zip(others.remainder());
    let rest: f64 = rest.map(|(a, b)| square(a, b)).sum();
    let mut sums = [0.0; SUMS];
    for (ones, others) in ones.zip(others) {
        for (sum, (a, b)) in sums.iter_mut().zip(ones.iter().zip(others)) {
            *sum += square(a, b);
        }
    }
    (sums.iter().sum::<f64>() + rest).sqrt()
}
