//! Stack distances: how many other rows are looked up between two look-ups of a row (Mattson et al.,
//! IBM Systems Journal 1970). An LRU cache holds a row at its next look-up exactly if it is larger
//! than that, so one pass gives the misses of every capacity.

use hashbrown::HashMap;

use super::curve::MissCurve;
use super::recency::Recency;
use super::sample::Sample;

/// Look-ups by stack distance. Each costs O(log n); memory, some 40 bytes a key, is bounded by the
/// distinct keys, or those of the sample.
///
/// ```
/// use outcore_tables::reuse::ReuseProfile;
///
/// let mut profiles = [
///     ReuseProfile::exact(),
///     ReuseProfile::sampled(0.1),
///     ReuseProfile::bounded(1 << 14, 1 << 12),
/// ];
/// for profile in &mut profiles {
///     (0..20_000).for_each(|number| profile.add(number % 1000));
///     assert_eq!(profile.lookups(), 20_000.0);
///     assert!(profile.miss_curve().misses(2000) < 2500.0);
///     profile.age(0.5);
///     assert_eq!(profile.lookups(), 10_000.0);
/// }
/// ```
pub struct ReuseProfile {
    sample: Sample,
    /// Keys that are followed: those whose last use is more recent than that of all others.
    keys_max: usize,
    positions: HashMap<u64, usize>,
    recency: Recency,
    /// Sampled look-ups by distance among the sampled keys.
    distances: Vec<f64>,
    /// Sampled look-ups of keys that are not followed (any more).
    unknown: f64,
    /// All of them, sampled or not.
    lookups: f64,
}

impl ReuseProfile {
    /// Follows every key.
    pub fn exact() -> ReuseProfile {
        ReuseProfile::sampled(1.0)
    }

    /// Follows this share of the keys: between 0 and 1. A few thousand sampled keys give miss ratios
    /// within one or two hundredths.
    pub fn sampled(rate: f64) -> ReuseProfile {
        ReuseProfile {
            sample: Sample::new(rate),
            keys_max: usize::MAX,
            positions: HashMap::new(),
            recency: Recency::new(),
            distances: Vec::new(),
            unknown: 0.0,
            lookups: 0.0,
        }
    }

    /// For caches of `rows_max` rows at most: follows `keys_max` keys of a sample that is as dense
    /// as that allows, and forgets those that such a cache would no longer hold. Memory is
    /// bounded by twice `keys_max`, however long it runs.
    pub fn bounded(rows_max: u64, keys_max: u64) -> ReuseProfile {
        let sample = Sample::of(keys_max, rows_max);
        ReuseProfile {
            keys_max: sample.part_of(rows_max).max(1) as usize,
            sample,
            ..ReuseProfile::exact()
        }
    }

    /// The next look-up of the trace.
    pub fn add(&mut self, key: u64) {
        self.lookups += 1.0;
        if !self.sample.takes(key) {
            return;
        }
        if self.recency.is_full() {
            self.compact();
        }
        let distance = match self.positions.get(&key) {
            Some(&position) => {
                let distance = self.recency.newer(position);
                self.recency.remove(position);
                distance
            }
            None => usize::MAX,
        };
        self.positions.insert(key, self.recency.push());
        if distance >= self.keys_max {
            self.unknown += 1.0;
            return;
        }
        if distance >= self.distances.len() {
            self.distances.resize(distance + 1, 0.0);
        }
        self.distances[distance] += 1.0;
    }

    /// What was counted so far counts by this factor from now on.
    pub fn age(&mut self, factor: f64) {
        self.distances.iter_mut().for_each(|count| *count *= factor);
        self.unknown *= factor;
        self.lookups *= factor;
    }

    /// Look-ups so far.
    pub fn lookups(&self) -> f64 {
        self.lookups
    }

    /// Misses of LRU caches. A sample whose look-ups are more or fewer than its share owes that to
    /// the hottest rows, which any cache holds; they are corrected there (SHARDS, section 3.4).
    pub fn miss_curve(&self) -> MissCurve {
        let scale = self.sample.scale();
        let mut misses = scale * (self.unknown + self.distances.iter().sum::<f64>());
        let mut points = Vec::new();
        for (distance, &count) in self.distances.iter().enumerate() {
            if count > 0.0 {
                points.push(((distance as f64 * scale) as u64, misses));
                misses = (misses - count * scale).max(0.0);
                points.push((((distance + 1) as f64 * scale) as u64, misses));
            }
        }
        MissCurve::new(self.lookups, points)
    }

    fn compact(&mut self) {
        let renumber = self.recency.compact(self.keys_max);
        self.positions
            .retain(|_, position| match renumber(*position) {
                Some(now) => {
                    *position = now;
                    true
                }
                None => false,
            });
    }
}
