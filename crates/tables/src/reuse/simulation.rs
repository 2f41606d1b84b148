//! Caches of ids alone: real policies, whose items have no bytes.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use outcore_engine::cache::{Policy, PolicyKind, SLOTS_MAX};

use super::curve::MissCurve;
use super::sample::Sample;

/// A cache of ids under a policy.
///
/// ```
/// use outcore_engine::cache::PolicyKind;
/// use outcore_tables::reuse::Simulation;
///
/// let mut cache = Simulation::new(PolicyKind::Lru, 2);
/// assert_eq!([1, 2, 1, 3, 2].map(|row| cache.access(row)), [false, false, true, false, false]);
/// ```
pub struct Simulation {
    policy: Box<dyn Policy>,
    slots: HashMap<u64, u32>,
    keys: Vec<u64>,
    capacity: usize,
}

impl Simulation {
    /// An empty cache of this many rows, [`SLOTS_MAX`] at most.
    pub fn new(kind: PolicyKind, capacity: u32) -> Simulation {
        let capacity = capacity.min(SLOTS_MAX);
        Simulation {
            policy: kind.policy(capacity),
            slots: HashMap::new(),
            keys: Vec::new(),
            capacity: capacity as usize,
        }
    }

    /// Looks a row up, and takes it in if it is not there: whether it was.
    pub fn access(&mut self, key: u64) -> bool {
        if let Some(&slot) = self.slots.get(&key) {
            self.policy.used(slot);
            return true;
        }
        if self.keys.len() < self.capacity {
            self.keys.push(key);
            self.admit(self.keys.len() as u32 - 1, key);
        } else if let Some(slot) = self.policy.evict(&mut |_| true) {
            let evicted = std::mem::replace(&mut self.keys[slot as usize], key);
            self.slots.remove(&evicted);
            self.admit(slot, key);
        }
        false
    }

    fn admit(&mut self, slot: u32, key: u64) {
        self.policy.admitted(slot, key);
        self.slots.insert(key, slot);
    }
}

/// Hits of a policy on a trace, from an empty cache on.
///
/// ```
/// use outcore_engine::cache::PolicyKind;
/// use outcore_tables::reuse::simulate;
///
/// assert_eq!(simulate(PolicyKind::Lru, 2, [1, 2, 1, 3, 2]), 1);
/// ```
pub fn simulate(kind: PolicyKind, capacity: u32, trace: impl IntoIterator<Item = u64>) -> u64 {
    let mut cache = Simulation::new(kind, capacity);
    trace
        .into_iter()
        .map(|key| u64::from(cache.access(key)))
        .sum()
}

/// Hits of the best policy that admits every row that misses (Belady, IBM Systems Journal 1966):
/// that which evicts the row whose next look-up is farthest. O(n log capacity).
///
/// ```
/// assert_eq!(outcore_tables::reuse::belady(&[1, 2, 1, 3, 2], 2), 2);
/// ```
pub fn belady(trace: &[u64], capacity: usize) -> u64 {
    let next_uses = next_uses(trace);
    // A cached row is known by its next look-up; those without one have numbers of their own.
    let (mut cached, mut hits) = (BTreeSet::new(), 0);
    for (time, &next_use) in next_uses.iter().enumerate() {
        if cached.remove(&time) {
            hits += 1;
        } else if cached.len() == capacity && cached.pop_last().is_none() {
            return 0;
        }
        cached.insert(next_use);
    }
    hits
}

/// Misses of Belady's policy, which are known only at the end: a share of the rows stands for all, and its look-ups are kept,
/// 8 bytes each.
///
/// ```
/// use outcore_tables::reuse::SampledBelady;
///
/// let mut lookups = SampledBelady::new(1.0);
/// [1, 2, 1, 3, 2].iter().for_each(|&row| lookups.add(row));
/// assert_eq!(lookups.misses(2), 3.0);
/// ```
pub struct SampledBelady {
    sample: Sample,
    kept: Vec<u64>,
    lookups: u64,
}

impl SampledBelady {
    /// Follows this share of the rows: between 0 and 1.
    pub fn new(rate: f64) -> SampledBelady {
        SampledBelady {
            sample: Sample::new(rate),
            kept: Vec::new(),
            lookups: 0,
        }
    }

    /// The next look-up of the trace.
    pub fn add(&mut self, key: u64) {
        self.lookups += 1;
        if self.sample.takes(key) {
            self.kept.push(key);
        }
    }

    /// Misses in a cache of this many rows, as if all rows had been followed.
    pub fn misses(&self, rows: u64) -> f64 {
        let rows = usize::try_from(self.sample.part_of(rows).max(1)).unwrap_or(usize::MAX);
        let missed = self.kept.len() - belady(&self.kept, rows) as usize;
        missed as f64 / self.kept.len().max(1) as f64 * self.lookups as f64
    }
}

/// For each look-up the place of the next one of its row; after the end where there is none.
fn next_uses(trace: &[u64]) -> Vec<usize> {
    let mut later = HashMap::new();
    let mut next_uses = vec![0; trace.len()];
    for (time, &key) in trace.iter().enumerate().rev() {
        next_uses[time] = match later.entry(key) {
            Entry::Occupied(mut next) => next.insert(time),
            Entry::Vacant(none) => {
                none.insert(time);
                trace.len() + time
            }
        };
    }
    next_uses
}

/// Caches of several capacities under one policy, each as small as a sample of the keys allows
/// (Waldspurger et al., USENIX ATC 2017): the miss curve of a policy that is no stack algorithm.
///
/// ```
/// use outcore_engine::cache::PolicyKind;
/// use outcore_tables::reuse::Miniatures;
///
/// let mut caches = Miniatures::new(PolicyKind::S3Fifo, 1.0, &[10, 100]);
/// (0..100).chain(0..100).for_each(|id| caches.add(id));
/// assert_eq!(caches.miss_curve().misses(100), 100.0);
/// caches.age(0.5);
/// assert_eq!(caches.miss_curve().misses(100), 50.0);
/// assert_eq!(Miniatures::bounded(PolicyKind::Lru, 1 << 10, 1 << 8).rate(), 0.25);
/// ```
pub struct Miniatures {
    sample: Sample,
    caches: Vec<Miniature>,
    lookups: f64,
}

struct Miniature {
    rows: u64,
    cache: Simulation,
    misses: f64,
}

impl Miniatures {
    /// Caches of these numbers of rows, on a share of the keys between 0 and 1.
    pub fn new(kind: PolicyKind, rate: f64, rows: &[u64]) -> Miniatures {
        let sample = Sample::new(rate);
        let slots = rows.iter().map(|&rows| sample.part_of(rows).max(1));
        Miniatures::with_slots(kind, sample, slots)
    }

    /// Caches of up to `rows_max` rows, each two thirds of the next; the largest has `keys_max` slots
    /// at most, all together three times as many, however long it runs.
    pub fn bounded(kind: PolicyKind, rows_max: u64, keys_max: u64) -> Miniatures {
        let sample = Sample::of(keys_max, rows_max);
        let most = sample.part_of(rows_max).min(u64::from(SLOTS_MAX));
        let slots = std::iter::successors(Some(most), |&slots| Some(slots * 2 / 3));
        Miniatures::with_slots(kind, sample, slots.take_while(|&slots| slots > 0))
    }

    fn with_slots(
        kind: PolicyKind,
        sample: Sample,
        slots: impl Iterator<Item = u64>,
    ) -> Miniatures {
        let caches = slots.map(|slots| {
            let slots = slots.min(u64::from(SLOTS_MAX));
            Miniature {
                rows: (slots as f64 * sample.scale()) as u64,
                cache: Simulation::new(kind, slots as u32),
                misses: 0.0,
            }
        });
        Miniatures {
            sample,
            caches: caches.collect(),
            lookups: 0.0,
        }
    }

    /// The share of the keys that is followed.
    pub fn rate(&self) -> f64 {
        self.sample.rate()
    }

    /// The next look-up of the trace.
    pub fn add(&mut self, key: u64) {
        self.lookups += 1.0;
        if self.sample.takes(key) {
            for miniature in &mut self.caches {
                miniature.misses += f64::from(u8::from(!miniature.cache.access(key)));
            }
        }
    }

    /// What was counted so far counts by this factor from now on.
    pub fn age(&mut self, factor: f64) {
        self.lookups *= factor;
        self.caches
            .iter_mut()
            .for_each(|miniature| miniature.misses *= factor);
    }

    /// Misses at the capacities, as if all keys had been followed.
    pub fn miss_curve(&self) -> MissCurve {
        let scale = self.sample.scale();
        let points = self
            .caches
            .iter()
            .map(|miniature| (miniature.rows, miniature.misses * scale));
        MissCurve::new(self.lookups, points)
    }
}
