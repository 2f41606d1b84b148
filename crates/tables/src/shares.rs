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
use crate::served::Served;

/// One of this many calls is counted.
const COUNTED_CALLS: u64 = 2;
/// Row numbers that are counted between two divisions, and that count half after as many.
const PERIOD_LOOKUPS: u64 = 1 << 17;
/// Memory of the curves, as a part of that of the caches.
const CURVES_PART: u64 = 16;
/// What a sampled key takes in all of the miniature caches.
const KEY_BYTES: u64 = 400;
/// Fewer sampled keys tell too little, more cost more than they tell.
const KEYS: std::ops::RangeInclusive<u64> = 512..=8192;
/// Every table keeps this part of what it would have by its size.
const LEAST_PART: u64 = 16;
/// Misses that a new division has to save, as a part of those there are.
const WORTH_IT: f64 = 0.02;

pub(crate) struct Shares {
    bytes: u64,
    policy: PolicyKind,
    /// None where one table has all, or curves would take too much.
    curves: Option<Mutex<Curves>>,
    calls: AtomicU64,
}

struct Curves {
    of_table: Vec<RunningCurve>,
    counted: u64,
}

impl Shares {
    pub(crate) fn new(served: &[Served], bytes: u64, policy: PolicyKind) -> Shares {
        let keys = (bytes / CURVES_PART / KEY_BYTES / served.len().max(1) as u64).min(*KEYS.end());
        // Changed rows have to stay where they are, so caches of tables that are written do not shrink.
        let is_written = served.iter().any(|served| served.table.is_written());
        let adapts = served.len() > 1 && KEYS.contains(&keys) && !is_written;
        let curve = |served: &Served| {
            let most = (bytes / cost(served, policy)).clamp(1, served.table.rows().max(1));
            RunningCurve::new(policy, most, keys, PERIOD_LOOKUPS)
        };
        let curves = adapts.then(|| {
            Mutex::new(Curves {
                of_table: served.iter().map(curve).collect(),
                counted: 0,
            })
        });
        let shares = Shares {
            bytes: bytes - if adapts { bytes / CURVES_PART } else { 0 },
            policy,
            curves,
            calls: AtomicU64::new(0),
        };
        for (served, rows) in served.iter().zip(shares.by_size(served)) {
            shares.set_rows(served, rows);
        }
        shares
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
        if !self
            .calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(COUNTED_CALLS)
        {
            return;
        }
        // Another call counts now; this one is left out rather than made to wait.
        let Ok(mut curves) = curves.try_lock() else {
            return;
        };
        for (feature, bagged) in features.iter().zip(bagged) {
            let curve = &mut curves.of_table[feature.table];
            bagged.rows.iter().for_each(|&row| curve.add(row));
            curves.counted += bagged.rows.len() as u64;
        }
        if curves.counted >= PERIOD_LOOKUPS {
            curves.counted = 0;
            self.divide(served, &curves.of_table);
        }
    }

    fn divide(&self, served: &[Served], curves: &[RunningCurve]) {
        let least = self.by_size(served);
        let demands: Vec<CacheDemand> = served
            .iter()
            .zip(curves)
            .zip(&least)
            .map(|((served, curve), least)| CacheDemand {
                curve: curve.miss_curve(),
                row_bytes: cost(served, self.policy),
                rows_min: least / LEAST_PART,
            })
            .collect();
        let Ok(wanted) = split_cache(self.bytes, &demands) else {
            return;
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
            return;
        }
        // What some give up, others get.
        for grows in [false, true] {
            for ((served, &wanted), &now) in served.iter().zip(&wanted).zip(&now) {
                if (wanted > now) == grows {
                    self.set_rows(served, wanted);
                }
            }
        }
    }
}

/// Bytes that a cached row of a table takes.
fn cost(served: &Served, policy: PolicyKind) -> u64 {
    RowCache::row_cost(served.table.record_bytes(), policy)
}
