//! The miss curve of a table that is in use.

use outcore_engine::cache::PolicyKind;

use super::curve::MissCurve;
use super::profile::ReuseProfile;
use super::simulation::Miniatures;

/// Estimates the miss curve of a policy from the look-ups of the recent past, in bounded memory.
///
/// Most ids of large tables are not in the sample and cost a hash.
///
/// ```
/// use outcore_engine::cache::PolicyKind;
/// use outcore_tables::reuse::RunningCurve;
///
/// let mut running = RunningCurve::new(PolicyKind::Lru, 1 << 20, 8192);
/// (0..1 << 18).for_each(|number| running.add(number % 10_000));
/// let curve = running.miss_curve();
/// assert!(curve.misses(20_000) < 0.1 * curve.lookups());
/// assert!((0.5..0.8).contains(&running.rate()));
/// running.age(0.5);
/// assert_eq!(running.miss_curve().lookups(), 0.5 * curve.lookups());
/// ```
pub struct RunningCurve(Estimate);

enum Estimate {
    Lru(ReuseProfile),
    Other(Miniatures),
}

impl RunningCurve {
    /// For caches of `rows_max` rows at most, with `keys_max` sampled keys.
    pub fn new(kind: PolicyKind, rows_max: u64, keys_max: u64) -> RunningCurve {
        RunningCurve(match kind {
            PolicyKind::Lru => Estimate::Lru(ReuseProfile::bounded(rows_max, keys_max)),
            _ => Estimate::Other(Miniatures::bounded(kind, rows_max, keys_max)),
        })
    }

    /// The next look-up.
    pub fn add(&mut self, key: u64) {
        match &mut self.0 {
            Estimate::Lru(profile) => profile.add(key),
            Estimate::Other(miniatures) => miniatures.add(key),
        }
    }

    /// What was looked up so far counts by this factor from now on. Curves that are compared are aged together: then
    /// they are of the same period.
    pub fn age(&mut self, factor: f64) {
        match &mut self.0 {
            Estimate::Lru(profile) => profile.age(factor),
            Estimate::Other(miniatures) => miniatures.age(factor),
        }
    }

    /// The share of the rows that is in the sample.
    pub fn rate(&self) -> f64 {
        match &self.0 {
            Estimate::Lru(profile) => profile.rate(),
            Estimate::Other(miniatures) => miniatures.rate(),
        }
    }

    /// Misses by capacity, of the recent look-ups.
    pub fn miss_curve(&self) -> MissCurve {
        match &self.0 {
            Estimate::Lru(profile) => profile.miss_curve(),
            Estimate::Other(miniatures) => miniatures.miss_curve(),
        }
    }
}
