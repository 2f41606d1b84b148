//! Profiles and simulations against plain lists.

use outcore_engine::cache::PolicyKind;
use proptest::prelude::*;

use super::recency::Recency;
use super::traces::Zipf;
use super::*;

fn ids() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![0u64..6, 0u64..50], 0..500)
}

/// Hits of LRU on a list in order of use.
fn lru_hits(trace: &[u64], capacity: usize) -> u64 {
    let (mut order, mut hits) = (Vec::new(), 0);
    for &id in trace {
        match order.iter().position(|&other| other == id) {
            Some(place) => {
                order.remove(place);
                hits += 1;
            }
            None if order.len() >= capacity => _ = order.pop(),
            None => {}
        }
        order.insert(0, id);
        order.truncate(capacity);
    }
    hits
}

/// Hits when the row whose next look-up is farthest is evicted, found by a scan.
fn optimal_hits(trace: &[u64], capacity: usize) -> u64 {
    let (mut held, mut hits) = (Vec::new(), 0);
    for (time, id) in trace.iter().enumerate() {
        if held.contains(id) {
            hits += 1;
            continue;
        }
        if held.len() == capacity {
            let next = |held: &u64| trace[time..].iter().position(|other| other == held);
            let last = |place: &usize| next(&held[*place]).unwrap_or(usize::MAX);
            let Some(place) = (0..capacity).max_by_key(last) else {
                return 0;
            };
            held.swap_remove(place);
        }
        held.push(*id);
    }
    hits
}

fn profile_of(mut profile: ReuseProfile, trace: &[u64]) -> ReuseProfile {
    trace.iter().for_each(|&id| profile.add(id));
    profile
}

/// Mean difference of two curves at capacities up to `rows`, as a share of the look-ups.
fn difference(a: &MissCurve, b: &MissCurve, rows: u64) -> f64 {
    let ratio = |curve: &MissCurve, rows| curve.misses(rows) / curve.lookups();
    let at = (1..=200).map(|step| step * rows / 200);
    at.map(|rows| (ratio(a, rows) - ratio(b, rows)).abs())
        .sum::<f64>()
        / 200.0
}

proptest! {
    #[test]
    fn an_exact_profile_has_the_misses_of_every_lru_cache(trace in ids()) {
        let curve = profile_of(ReuseProfile::exact(), &trace).miss_curve();
        for capacity in 0..60 {
            let hits = lru_hits(&trace, capacity);
            prop_assert_eq!(curve.misses(capacity as u64), trace.len() as f64 - hits as f64);
            prop_assert_eq!(simulate(PolicyKind::Lru, capacity as u32, trace.iter().copied()), hits);
        }
    }

    /// What is forgotten is what a cache of that size would not hold.
    #[test]
    fn a_bounded_profile_is_exact_up_to_its_bound(trace in ids(), rows_max in 1u64..60) {
        let exact = profile_of(ReuseProfile::exact(), &trace).miss_curve();
        let bounded = profile_of(ReuseProfile::bounded(rows_max, 1000), &trace).miss_curve();
        for rows in 0..=rows_max {
            prop_assert_eq!(bounded.misses(rows), exact.misses(rows));
        }
    }

    #[test]
    fn belady_hits_what_a_scan_of_the_future_hits(trace in ids(), capacity in 0usize..40) {
        let hits = belady(&trace, capacity);
        prop_assert_eq!(hits, optimal_hits(&trace, capacity));
        for kind in PolicyKind::ALL {
            prop_assert!(simulate(kind, capacity as u32, trace.iter().copied()) <= hits);
        }
    }

    #[test]
    fn the_hottest_rows_are_those_of_a_sorted_count(trace in ids(), rows in 0usize..60) {
        let mut counts = ReuseCounts::default();
        trace.iter().for_each(|&id| counts.add(id));
        let of = |id| trace.iter().filter(|&&other| other == id).count() as u64;
        let mut plain: Vec<(u64, u64)> = (0..50).map(|id| (id, of(id))).filter(|row| row.1 > 0).collect();
        plain.sort_by_key(|&(id, count)| (u64::MAX - count, id));
        let histogram = counts.histogram();
        prop_assert!(histogram.is_sorted_by(|one, other| one.0 < other.0));
        prop_assert_eq!(histogram.iter().map(|(_, rows)| rows).sum::<u64>(), counts.distinct());
        for (count, rows) in histogram {
            prop_assert_eq!(plain.iter().filter(|row| row.1 == count).count() as u64, rows);
        }
        plain.truncate(rows);
        prop_assert_eq!(counts.hottest(rows), plain);
    }

    #[test]
    fn positions_are_counted_exactly_and_numbered_anew_in_their_order(
        picks in proptest::collection::vec(0usize..3000, 0..9000), keep in 1usize..4000,
    ) {
        let (mut recency, mut order): (Recency, Vec<(usize, usize)>) = (Recency::new(), Vec::new());
        for (number, pick) in picks.into_iter().enumerate() {
            if recency.is_full() {
                let renumber = recency.compact(keep);
                order.retain_mut(|(_, position)| match renumber(*position) {
                    Some(now) => { *position = now; true }
                    None => false,
                });
                prop_assert!(order.len() <= keep && order.iter().map(|key| key.1).eq(0..order.len()));
            }
            if pick < order.len() {
                prop_assert_eq!(recency.newer(order[pick].1), order.len() - 1 - pick);
                recency.remove(order.remove(pick).1);
            }
            order.push((number, recency.push()));
        }
    }

    #[test]
    fn a_convex_hull_is_convex_below_and_touches(points in proptest::collection::vec((1u64..100, 0f64..50.0), 0..20)) {
        let curve = MissCurve::new(50.0, points);
        let hull = curve.convex_hull();
        prop_assert!(hull.points().iter().all(|point| curve.points().contains(point)));
        for rows in 1..100 {
            prop_assert!(hull.misses(rows) <= curve.misses(rows) + 1e-9);
            prop_assert!(hull.misses(rows - 1) + hull.misses(rows + 1) >= 2.0 * hull.misses(rows) - 1e-9);
            prop_assert!(curve.misses(rows) <= curve.misses(rows - 1));
        }
    }
}

#[test]
fn a_sample_of_the_keys_shows_the_curve_of_all() {
    for (seed, skew) in [(1, 0.6), (2, 0.9), (3, 1.2)] {
        let trace: Vec<u64> = Zipf::new(100_000, skew, seed).take(1_000_000).collect();
        let exact = profile_of(ReuseProfile::exact(), &trace).miss_curve();
        let sampled = profile_of(ReuseProfile::sampled(0.05), &trace).miss_curve();
        let bounded = profile_of(ReuseProfile::bounded(50_000, 4000), &trace).miss_curve();
        let errors = [(sampled, 100_000), (bounded, 50_000)]
            .map(|(curve, rows)| difference(&curve, &exact, rows));
        println!("seed {seed}, skew {skew}: mean error of the miss ratio {errors:.4?}");
        assert!(errors.iter().all(|&error| error < 0.02));
    }
}

/// However many rows the largest cache may have.
#[test]
fn the_curve_of_a_small_working_set_is_exact() {
    let (seed, keys_max) = (6, 1000);
    println!("seed {seed}");
    let trace: Vec<u64> = Zipf::new(keys_max, 0.7, seed).take(50_000).collect();
    let exact = profile_of(ReuseProfile::exact(), &trace).miss_curve();
    let bounded = profile_of(ReuseProfile::bounded(1 << 24, keys_max), &trace);
    assert_eq!((bounded.miss_curve(), bounded.rate()), (exact, 1.0));
}

/// First a few rows, then more and more of them, until the sample is as thin as the largest cache asks for.
#[test]
fn a_sample_that_is_thinned_keeps_what_was_counted() {
    let (seed, rows_max, keys_max) = (7, 40_000, 2000);
    println!("seed {seed}");
    let traces = [(1000, 1), (10_000, 2), (100_000, 3)];
    let trace = traces.map(|(rows, part)| Zipf::new(rows, 0.8, seed + part).take(200_000));
    let trace: Vec<u64> = trace.into_iter().flatten().collect();
    let exact = profile_of(ReuseProfile::exact(), &trace).miss_curve();
    let bounded = profile_of(ReuseProfile::bounded(rows_max, keys_max), &trace);
    let least = keys_max as f64 / rows_max as f64;
    assert_eq!(bounded.rate(), least);
    let error = difference(&bounded.miss_curve(), &exact, rows_max);
    println!("bounded: mean error of the miss ratio {error:.4}");
    assert!(error < 0.02);
}

#[test]
fn miniature_caches_show_the_curve_of_their_policy() {
    let seed = 4;
    let trace: Vec<u64> = Zipf::new(50_000, 0.9, seed).take(400_000).collect();
    for kind in PolicyKind::ALL {
        let mut caches = Miniatures::bounded(kind, 40_000, 4000);
        trace.iter().for_each(|&id| caches.add(id));
        let curve = caches.miss_curve();
        for rows in [400, 4000, 20_000, 40_000] {
            let hits = simulate(kind, rows as u32, trace.iter().copied());
            let (estimate, exact) = (
                curve.misses(rows) / 400_000.0,
                1.0 - hits as f64 / 400_000.0,
            );
            println!("seed {seed}, {kind}, {rows} rows: {estimate:.4}, exactly {exact:.4}");
            assert!((estimate - exact).abs() < 0.025);
        }
    }
}

#[test]
fn a_running_curve_forgets_what_was_long_ago() {
    let seed = 5;
    println!("seed {seed}");
    for kind in PolicyKind::ALL {
        let mut running = RunningCurve::new(kind, 20_000, 2000);
        let add_all = |running: &mut RunningCurve, trace: &[u64]| {
            for part in trace.chunks(100_000) {
                part.iter().for_each(|&id| running.add(id));
                running.age(0.5);
            }
        };
        let long_ago: Vec<u64> = Zipf::new(1_000_000, 0.3, seed).take(500_000).collect();
        add_all(&mut running, &long_ago);
        assert!(running.miss_curve().misses(10_000) > 0.8 * running.miss_curve().lookups());
        let recent: Vec<u64> = Zipf::new(30_000, 1.0, seed + 1).take(800_000).collect();
        add_all(&mut running, &recent);
        let mut caches = Miniatures::new(kind, 1.0, &[500, 1000, 2000, 5000, 10_000, 20_000]);
        recent.iter().for_each(|&id| caches.add(id));
        let (running, exact) = (running.miss_curve(), caches.miss_curve());
        for &(rows, misses) in &exact.points()[1..] {
            let ratios = (
                running.misses(rows) / running.lookups(),
                misses / exact.lookups(),
            );
            println!("{kind}, {rows} rows: {ratios:.4?}");
            assert!((ratios.0 - ratios.1).abs() < 0.03);
        }
    }
}
