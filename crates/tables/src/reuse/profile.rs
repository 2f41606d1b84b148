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
///     assert!(profile.rate() == 1.0 || profile.rate() == 0.1);
///     profile.age(0.5);
///     assert_eq!(profile.lookups(), 10_000.0);
/// }
/// ```
pub struct ReuseProfile {
    sample: Sample,
    /// What the sample becomes part by part, whenever there are more than `keys_max` keys of it.
    least: Sample,
    keys_max: usize,
    /// Rows of the largest cache: of the sampled keys, as many are followed as it would hold.
    rows_max: u64,
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
        let sample = Sample::new(rate);
        ReuseProfile {
            sample,
            least: sample,
            keys_max: usize::MAX,
            rows_max: u64::MAX,
            positions: HashMap::new(),
            recency: Recency::new(),
            distances: Vec::new(),
            unknown: 0.0,
            lookups: 0.0,
        }
    }

    /// For caches of `rows_max` rows at most: follows every key while there are `keys_max` of them, then a
    /// share of the keys that is lowered as more come (SHARDS with a sample of fixed size), and forgets those that
    /// such a cache would no longer hold. Memory is bounded by twice `keys_max`, however long it runs.
    pub fn bounded(rows_max: u64, keys_max: u64) -> ReuseProfile {
        ReuseProfile {
            least: Sample::of(keys_max, rows_max),
            keys_max: keys_max.max(1) as usize,
            rows_max,
            ..ReuseProfile::exact()
        }
    }

    /// The share of the keys that is followed.
    pub fn rate(&self) -> f64 {
        self.sample.rate()
    }

    /// Of the sampled keys, those that are followed: the ones used last.
    fn followed_max(&self) -> usize {
        self.sample.part_of(self.rows_max).max(1) as usize
    }

    /// The next look-up of the trace.
    pub fn add(&mut self, key: u64) {
        self.lookups += 1.0;
        while self.rate() > self.least.rate()
            && self.sample.takes(key)
            && self.positions.len() >= self.keys_max
            && !self.positions.contains_key(&key)
        {
            self.thin();
        }
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
        if distance >= self.followed_max() {
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

    /// Goes on with fewer keys; what was counted stands for as many look-ups, at as many rows, as before.
    fn thin(&mut self) {
        let sample = self.sample.thinned(&self.least);
        let ratio = sample.rate() / self.sample.rate();
        self.sample = sample;
        self.positions.retain(|&key, &mut position| {
            let stays = sample.takes(key);
            if !stays {
                self.recency.remove(position);
            }
            stays
        });
        let before = std::mem::take(&mut self.distances);
        for (distance, count) in before.into_iter().enumerate() {
            let distance = (distance as f64 * ratio) as usize;
            self.distances
                .resize(self.distances.len().max(distance + 1), 0.0);
            self.distances[distance] += count * ratio;
        }
        self.unknown *= ratio;
    }

    fn compact(&mut self) {
        let renumber = self.recency.compact(self.followed_max());
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
