//! How the memory of a set's caches is divided between its tables, again and again while it is used.
//!
//! At first by the bytes of all their rows; then by the miss curves of what was looked up, of which some calls are
//! counted. Memory moves only where that is expected to save misses that are worth it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use outcore_engine::cache::PolicyKind;

use crate::cache_split::{CacheDemand, split_cache};
use crate::look_up::{Bagged, Feature};
use crate::reuse::RunningCurve;
use crate::row_cache::RowCache;
use crate::served::{Counters, Served};

/// One of this many features of calls is counted: the former where much is missed.
const COUNTED_PART: std::ops::RangeInclusive<f64> = 2.0..=64.0;
/// 2^64 over the golden ratio: its multiples are spread evenly. Which features of a table are counted goes by their
/// number there, so that tables asked together are counted together, and those asked in turn equally often.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Sampled row numbers that cost no more time, in all of the miniature caches, than a row that is not in memory.
const SAMPLED_A_MISS: f64 = 16.0;
/// Row numbers that are looked up between two divisions.
const PERIOD_LOOKUPS: u64 = 1 << 18;
/// What was counted before a division counts by this factor after it, of all tables alike.
const AGING: f64 = 0.7;
/// Memory of the curves, as a part of that of the caches, at most.
const CURVES_PART: u64 = 16;
/// What a sampled key takes in all of the miniature caches.
const KEY_BYTES: u64 = 400;
/// Fewer sampled keys tell too little, more cost more than they tell.
const KEYS: std::ops::RangeInclusive<u64> = 512..=8192;
/// Every table keeps this part of what it would have by its size.
const LEAST_PART: u64 = 16;
/// Misses that a new division has to save, as a part of those there are.
const WORTH_IT: f64 = 0.02;

pub(crate) struct Division {
    bytes: u64,
    policy: PolicyKind,
    /// None where one table has all, or curves would take too much.
    curves: Option<Mutex<Curves>>,
    /// Of each table, features that were looked up.
    features: Vec<AtomicU64>,
    /// One of this many is counted.
    counted_part: AtomicU64,
}

struct Curves {
    of_table: Vec<RunningCurve>,
    /// At the last call that was counted.
    counted: Known,
    /// At the last division.
    divided: Known,
}

/// Row numbers that were looked up in all tables, and how many of them were not in memory.
#[derive(Clone, Copy, Default)]
struct Known {
    looked_up: u64,
    missed: u64,
}

impl Known {
    fn of(served: &[Served]) -> Known {
        let sum = |count: fn(&Counters) -> &AtomicU64| -> u64 {
            let counts = served.iter().map(|served| count(&served.counters));
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let looked_up = sum(|counters| &counters.looked_up);
        Known {
            looked_up,
            missed: looked_up.saturating_sub(sum(|counters| &counters.hits)),
        }
    }

    fn since(&self, before: &Known) -> Known {
        Known {
            looked_up: self.looked_up.saturating_sub(before.looked_up),
            missed: self.missed.saturating_sub(before.missed),
        }
    }
}

impl Division {
    pub(crate) fn new(served: &[Served], bytes: u64, policy: PolicyKind) -> Division {
        let keys = (bytes / CURVES_PART / KEY_BYTES / served.len().max(1) as u64).min(*KEYS.end());
        let adapts = served.len() > 1 && KEYS.contains(&keys);
        let curve = |served: &Served| {
            let most = (bytes / cost(served, policy)).clamp(1, served.table.rows().max(1));
            RunningCurve::new(policy, most, keys)
        };
        let curves = adapts.then(|| {
            Mutex::new(Curves {
                of_table: served.iter().map(curve).collect(),
                counted: Known::default(),
                divided: Known::default(),
            })
        });
        let of_curves = keys * KEY_BYTES * served.len() as u64;
        let division = Division {
            bytes: bytes - if adapts { of_curves } else { 0 },
            policy,
            curves,
            features: served.iter().map(|_| AtomicU64::new(0)).collect(),
            counted_part: AtomicU64::new(*COUNTED_PART.start() as u64),
        };
        for (served, rows) in served.iter().zip(division.by_size(served)) {
            division.set_rows(served, rows);
        }
        division
    }

    fn set_rows(&self, served: &Served, rows: u64) {
        let bytes = rows.saturating_mul(cost(served, self.policy));
        served.cache.changed().set_bytes(bytes, served.table.rows());
    }

    /// Rows of each table by the bytes that all of its rows would take.
    fn by_size(&self, served: &[Served]) -> Vec<u64> {
        let whole = |served: &Served| {
            u128::from(cost(served, self.policy)) * u128::from(served.table.rows())
        };
        let all: u128 = served.iter().map(whole).sum::<u128>().max(1);
        let rows = |served: &Served| {
            let share =
                (u128::from(self.bytes) * whole(served) / all).min(u128::from(self.bytes)) as u64;
            (share / cost(served, self.policy)).min(served.table.rows())
        };
        served.iter().map(rows).collect()
    }

    /// Counts what a call has looked up, and now and then divides the memory anew.
    pub(crate) fn note(&self, served: &[Served], features: &[Feature<'_>], bagged: &[Bagged]) {
        let Some(curves) = &self.curves else { return };
        let part = self.counted_part.load(Ordering::Relaxed);
        let is_counted = |feature: &Feature<'_>| {
            let number = self.features[feature.table].fetch_add(1, Ordering::Relaxed);
            number.wrapping_mul(GOLDEN) <= u64::MAX / part
        };
        let chosen: Vec<_> = (features.iter().zip(bagged))
            .filter(|(feature, _)| is_counted(feature))
            .collect();
        if chosen.is_empty() {
            return;
        }
        // Another call counts now; this one is left out rather than made to wait.
        let Ok(mut curves) = curves.try_lock() else {
            return;
        };
        let (mut counted, mut sampled) = (0u64, 0.0);
        for (feature, bagged) in chosen {
            let curve = &mut curves.of_table[feature.table];
            bagged.rows.iter().for_each(|&row| curve.add(row));
            counted += bagged.rows.len() as u64;
            sampled += bagged.rows.len() as f64 * curve.rate();
        }
        let known = Known::of(served);
        let recent = known.since(&curves.counted);
        let missed_part = recent.missed.max(1) as f64 / recent.looked_up.max(1) as f64;
        let part = sampled / counted.max(1) as f64 / (SAMPLED_A_MISS * missed_part);
        let part = part.clamp(*COUNTED_PART.start(), *COUNTED_PART.end());
        self.counted_part.store(part as u64, Ordering::Relaxed);
        curves.counted = known;
        let is_due = known.since(&curves.divided).looked_up >= PERIOD_LOOKUPS;
        if is_due && self.divide(served, &curves.of_table) {
            curves.divided = known;
            curves
                .of_table
                .iter_mut()
                .for_each(|curve| curve.age(AGING));
        }
    }

    /// False, for another time, where a table is being changed.
    fn divide(&self, served: &[Served], curves: &[RunningCurve]) -> bool {
        // A step knows rows by their slots, which change; it is not waited for.
        let gates = served.iter().filter_map(|served| served.gate.as_ref());
        let Some(_shared) = gates
            .map(|gate| gate.shared_if_free())
            .collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let least = self.by_size(served);
        let demands: Vec<CacheDemand> = served
            .iter()
            .zip(curves)
            .zip(&least)
            .map(|((served, curve), least)| CacheDemand {
                curve: curve.miss_curve(),
                row_bytes: cost(served, self.policy),
                rows_min: (least / LEAST_PART).max(served.cache.seen().slots_min()),
            })
            .collect();
        let Ok(wanted) = split_cache(self.bytes, &demands) else {
            return true;
        };
        let now: Vec<u64> = served
            .iter()
            .map(|served| u64::from(served.cache.seen().slots()))
            .collect();
        let misses = |rows: &[u64]| -> f64 {
            demands
                .iter()
                .zip(rows)
                .map(|(demand, &rows)| demand.curve.misses(rows))
                .sum()
        };
        if misses(&now) - misses(&wanted) <= WORTH_IT * misses(&now) {
            return true;
        }
        // What some give up, others get.
        for grows in [false, true] {
            for ((served, &wanted), &now) in served.iter().zip(&wanted).zip(&now) {
                if (wanted > now) == grows {
                    self.set_rows(served, wanted);
                }
            }
        }
        true
    }
}

/// Bytes that a cached row of a table takes.
fn cost(served: &Served, policy: PolicyKind) -> u64 {
    RowCache::row_cost(served.table.record_bytes(), policy)
}
