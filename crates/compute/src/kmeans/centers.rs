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
        let (mut gaps, mut span) = (
            vec![
                if shape.clusters == 1 {
                    f32::INFINITY
                } else {
                    0.0
                };
                shape.clusters
            ],
            2.0 * reach,
        );
        if (2..=GAP_CENTERS_MAX).contains(&shape.clusters) {
            span = 0.0;
            for (gap, one) in gaps.iter_mut().zip(values.chunks(d)) {
                if stop() {
                    break;
                }
                let others = values
                    .chunks(d)
                    .filter(|other| !std::ptr::eq(*other, one))
                    .map(|other| distance(one, other));
                let (least, most) = others.fold((f64::INFINITY, span), |(least, most), far| {
                    (far.min(least), far.max(most))
                });
                (*gap, span) = (below(0.5 * least * (1.0 - 1e-9)), most);
            }
            span *= 1.0 + 1e-9;
        }
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

pub(super) fn distance<T: Real>(one: &[T], other: &[T]) -> f64 {
    one.iter()
        .zip(other)
        .map(|(a, b)| (a.f64() - b.f64()).powi(2))
        .sum::<f64>()
        .sqrt()
}
