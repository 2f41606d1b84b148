//! The miss curve of a table that is in use.

use outcore_engine::cache::PolicyKind;

use super::curve::MissCurve;
use super::profile::ReuseProfile;
use super::simulation::Miniatures;

/// Estimates the miss curve of a policy from the look-ups of the recent past, in bounded memory.
///
/// Most ids are not in the sample and cost a hash.
///
/// ```
/// use outcore_engine::cache::PolicyKind;
/// use outcore_tables::reuse::RunningCurve;
///
/// let mut running = RunningCurve::new(PolicyKind::Lru, 1 << 20, 8192, 1 << 20);
/// (0..1 << 18).for_each(|number| running.add(number % 10_000));
/// let curve = running.miss_curve();
/// assert!(curve.misses(20_000) < 0.1 * curve.lookups());
/// ```
pub struct RunningCurve {
    estimate: Estimate,
    half_life_lookups: u64,
    lookups: u64,
}

enum Estimate {
    Lru(ReuseProfile),
    Other(Miniatures),
}

impl RunningCurve {
    /// For caches of `rows_max` rows at most, with `keys_max` sampled keys; look-ups count half
    /// once there were `half_life_lookups` after them.
    pub fn new(
        kind: PolicyKind,
        rows_max: u64,
        keys_max: u64,
        half_life_lookups: u64,
    ) -> RunningCurve {
        let estimate = match kind {
            PolicyKind::Lru => Estimate::Lru(ReuseProfile::bounded(rows_max, keys_max)),
            _ => Estimate::Other(Miniatures::bounded(kind, rows_max, keys_max)),
        };
        RunningCurve {
            estimate,
            half_life_lookups,
            lookups: 0,
        }
    }

    /// The next look-up.
    pub fn add(&mut self, key: u64) {
        match &mut self.estimate {
            Estimate::Lru(profile) => profile.add(key),
            Estimate::Other(miniatures) => miniatures.add(key),
        }
        self.lookups += 1;
        if self.lookups >= self.half_life_lookups {
            self.lookups = 0;
            match &mut self.estimate {
                Estimate::Lru(profile) => profile.age(0.5),
                Estimate::Other(miniatures) => miniatures.age(0.5),
            }
        }
    }

    /// Misses by capacity, of the recent look-ups.
    pub fn miss_curve(&self) -> MissCurve {
        match &self.estimate {
            Estimate::Lru(profile) => profile.miss_curve(),
            Estimate::Other(miniatures) => miniatures.miss_curve(),
        }
    }
}
