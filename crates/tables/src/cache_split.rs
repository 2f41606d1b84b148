//! How a budget for cached rows is divided between tables: by what each further byte saves.
//!
//! Where all miss curves are convex, the best split gives every byte to the table whose misses it
//! saves most of (Stone, Turek and Wolf, IEEE Transactions on Computers 1992). So each table gets what
//! it must have, then the edges of the convex hulls are taken in the order of what they save. Where an
//! edge no longer fits, its table gets a part of it, or others go on: whichever misses less by the
//! curves themselves.

use outcore_core::Error;

use crate::reuse::MissCurve;

/// What a table asks of the budget.
#[derive(Clone, Debug)]
pub struct CacheDemand {
    /// Misses by rows cached. Curves of all tables are of the same period.
    pub curve: MissCurve,
    /// Memory that a cached row takes, its part of the index included.
    pub row_bytes: u64,
    /// What the table gets in any case.
    pub rows_min: u64,
}

/// Rows of each table's cache, so that all tables together miss as little as they can.
///
/// Bytes that save nothing are not given to any table. Off the best split by less than what one edge
/// of a hull saves, so by little where curves are near convex. O(points log points + tables^2).
///
/// ```
/// use outcore_tables::cache_split::{CacheDemand, split_cache};
/// use outcore_tables::reuse::MissCurve;
///
/// let demand = |lookups, points: &[(u64, f64)]| CacheDemand {
///     curve: MissCurve::new(lookups, points.iter().copied()),
///     row_bytes: 64,
///     rows_min: 0,
/// };
/// let hot = demand(1000.0, &[(10, 100.0), (20, 90.0)]);
/// let cold = demand(100.0, &[(10, 60.0), (20, 20.0)]);
/// assert_eq!(split_cache(64 * 25, &[hot, cold])?, [10, 15]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub fn split_cache(budget_bytes: u64, tables: &[CacheDemand]) -> Result<Vec<u64>, Error> {
    let mut rows: Vec<u64> = tables.iter().map(|table| table.rows_min).collect();
    let mut left = left_after_minimum(budget_bytes, tables)?;
    let mut is_open = vec![true; tables.len()];
    let mut best = (f64::INFINITY, Vec::new());
    for edge in edges(tables) {
        let (table, row_bytes) = (edge.table, tables[edge.table].row_bytes);
        let more = edge.rows.saturating_sub(rows[table]);
        if !is_open[table] {
            continue;
        }
        if more.saturating_mul(row_bytes) <= left {
            rows[table] += more;
            left -= more * row_bytes;
        } else {
            is_open[table] = false;
            let mut with_part = rows.clone();
            with_part[table] += left / row_bytes;
            spend(left % row_bytes, tables, with_part, &mut best);
        }
    }
    spend(left, tables, rows, &mut best);
    Ok(best.1)
}

/// Gives what is left to the tables that it saves most, and keeps the split if it is better than the
/// best so far.
fn spend(mut left: u64, tables: &[CacheDemand], mut rows: Vec<u64>, best: &mut (f64, Vec<u64>)) {
    while let Some((table, more)) = best_use(left, tables, &rows) {
        rows[table] += more;
        left -= more * tables[table].row_bytes;
    }
    let misses = misses(tables, &rows);
    if misses < best.0 {
        *best = (misses, rows);
    }
}

/// Misses of all tables, where the cache of table `i` holds `rows[i]` rows.
fn misses(tables: &[CacheDemand], rows: &[u64]) -> f64 {
    let each = tables.iter().zip(rows);
    each.map(|(table, &rows)| table.curve.misses(rows)).sum()
}

fn left_after_minimum(budget_bytes: u64, tables: &[CacheDemand]) -> Result<u64, Error> {
    if tables.iter().any(|table| table.row_bytes == 0) {
        return Err(Error::Value {
            what: "a cached row takes a byte at least".into(),
        });
    }
    let bytes = |table: &CacheDemand| table.rows_min.saturating_mul(table.row_bytes);
    let needed = tables.iter().map(bytes).fold(0, u64::saturating_add);
    budget_bytes.checked_sub(needed).ok_or(Error::OverBudget {
        what: format!("the least that {} tables cache", tables.len()),
        needed,
        available: budget_bytes,
        budget: budget_bytes,
    })
}

/// From one corner of the convex hull of a table's curve to the next.
struct Edge {
    table: usize,
    /// Where it ends.
    rows: u64,
    saved_per_byte: f64,
}

/// Those that save most first; those of one table in their order.
fn edges(tables: &[CacheDemand]) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (table, demand) in tables.iter().enumerate() {
        let hull = demand.curve.hull_from(demand.rows_min);
        for corners in hull.points().windows(2) {
            let [(from, misses), (to, fewer)] = [corners[0], corners[1]];
            let bytes = (to - from) as f64 * demand.row_bytes as f64;
            edges.push(Edge {
                table,
                rows: to,
                saved_per_byte: (misses - fewer) / bytes,
            });
        }
    }
    edges.retain(|edge| edge.saved_per_byte > 0.0);
    edges.sort_by(|a, b| b.saved_per_byte.total_cmp(&a.saved_per_byte));
    edges
}

/// The table that saves most with all that is left, or as much of it as it can use, and its rows.
fn best_use(left: u64, tables: &[CacheDemand], rows: &[u64]) -> Option<(usize, u64)> {
    let uses = tables.iter().enumerate().map(|(table, demand)| {
        let end = demand.curve.points().last().map_or(0, |point| point.0);
        let more = (left / demand.row_bytes).min(end.saturating_sub(rows[table]));
        let saved = demand.curve.misses(rows[table]) - demand.curve.misses(rows[table] + more);
        (table, more, saved)
    });
    let useful = uses.filter(|&(_, more, saved)| more > 0 && saved > 0.0);
    let best = useful.max_by(|a, b| a.2.total_cmp(&b.2));
    best.map(|(table, more, _)| (table, more))
}

#[cfg(test)]
mod tests {
    use outcore_engine::cache::PolicyKind;
    use proptest::prelude::*;

    use super::*;
    use crate::reuse::traces::{Zipf, interleaved};
    use crate::reuse::{Miniatures, ReuseProfile, RunningCurve, simulate};

    fn bytes(tables: &[CacheDemand], rows: &[u64]) -> u64 {
        let each = tables.iter().zip(rows);
        each.map(|(table, &rows)| table.row_bytes * rows).sum()
    }

    /// The fewest misses of any split, in units of a part of the budget: every number of units for
    /// every table, by dynamic programming.
    fn fewest_misses(budget_bytes: u64, units: u64, tables: &[CacheDemand]) -> f64 {
        let unit = budget_bytes / units;
        let mut best = vec![0.0; units as usize + 1];
        for table in tables {
            let of_table = |taken: usize| table.curve.misses(taken as u64 * unit / table.row_bytes);
            let least = |total: usize| {
                (0..=total)
                    .map(|taken| best[total - taken] + of_table(taken))
                    .fold(f64::INFINITY, f64::min)
            };
            best = (0..=units as usize).map(least).collect();
        }
        best[units as usize]
    }

    /// Tables of different sizes, skews, row lengths and shares of the look-ups.
    fn traces(seed: u64) -> Vec<(Vec<u64>, u64)> {
        [
            (20_000, 0.6, 64, 60_000),
            (5_000, 1.1, 128, 120_000),
            (40_000, 0.9, 256, 90_000),
            (300, 0.2, 64, 30_000),
        ]
        .iter()
        .enumerate()
        .map(|(table, &(rows, skew, row_bytes, lookups))| {
            let ids = Zipf::new(rows, skew, seed + table as u64).take(lookups);
            (ids.collect(), row_bytes)
        })
        .collect()
    }

    fn demands(
        traces: &[(Vec<u64>, u64)],
        curve: impl Fn(&[u64]) -> MissCurve,
    ) -> Vec<CacheDemand> {
        let demand = |(trace, row_bytes): &(Vec<u64>, u64)| CacheDemand {
            curve: curve(trace),
            row_bytes: *row_bytes,
            rows_min: 0,
        };
        traces.iter().map(demand).collect()
    }

    fn exact_curve(trace: &[u64]) -> MissCurve {
        let mut profile = ReuseProfile::exact();
        trace.iter().for_each(|&id| profile.add(id));
        profile.miss_curve()
    }

    /// Misses of real caches under a split.
    fn simulated(kind: PolicyKind, traces: &[(Vec<u64>, u64)], rows: &[u64]) -> f64 {
        let each = traces.iter().zip(rows);
        each.map(|((trace, _), &rows)| {
            (trace.len() as u64 - simulate(kind, rows as u32, trace.iter().copied())) as f64
        })
        .sum()
    }

    #[test]
    fn a_split_misses_within_a_twentieth_of_the_best_of_all_splits() {
        for (seed, budget_bytes) in [(1, 100_000), (2, 500_000), (3, 2_000_000), (4, 8_000_000)] {
            println!("seed {seed}, {budget_bytes} bytes");
            let tables = demands(&traces(seed), exact_curve);
            let rows = split_cache(budget_bytes, &tables).unwrap();
            assert!(bytes(&tables, &rows) <= budget_bytes);
            let (ours, best) = (
                misses(&tables, &rows),
                fewest_misses(budget_bytes, 400, &tables),
            );
            println!("{rows:?}: {ours} misses, {best} at best");
            assert!(ours <= 1.005 * best);
        }
    }

    /// A curve of LRU does not show what S3-FIFO makes of the same memory.
    #[test]
    fn a_split_by_miniature_caches_is_within_a_twentieth_of_the_best_of_their_policy() {
        let (seed, budget_bytes, units) = (5, 500_000, 50);
        println!("seed {seed}");
        let traces = traces(seed);
        let exact = demands(&traces, |trace| {
            let capacities: Vec<u64> = (1..=units)
                .map(|unit| unit * budget_bytes / units / 64)
                .collect();
            let mut caches = Miniatures::new(PolicyKind::S3Fifo, 1.0, &capacities);
            trace.iter().for_each(|&id| caches.add(id));
            caches.miss_curve()
        });
        let best = fewest_misses(budget_bytes, units, &exact);
        let estimated = demands(&traces, |trace| {
            let mut caches = Miniatures::bounded(PolicyKind::S3Fifo, budget_bytes / 64, 2000);
            trace.iter().for_each(|&id| caches.add(id));
            caches.miss_curve()
        });
        let rows = split_cache(budget_bytes, &estimated).unwrap();
        let ours = simulated(PolicyKind::S3Fifo, &traces, &rows);
        println!("{rows:?}: {ours} misses, {best} at best");
        assert!(ours <= 1.05 * best);
    }

    /// Half way, two tables change roles; the curves of what is recent show it.
    #[test]
    fn a_split_made_while_running_follows_the_look_ups() {
        let (seed, budget_bytes, row_bytes) = (6, 640_000, 64);
        println!("seed {seed}");
        let wide = |seed| {
            Zipf::new(50_000, 0.8, seed)
                .take(150_000)
                .collect::<Vec<u64>>()
        };
        let narrow = |seed| {
            Zipf::new(50_000, 1.4, seed)
                .take(150_000)
                .collect::<Vec<u64>>()
        };
        let capacities: Vec<u64> = (1..=12)
            .map(|part| part * budget_bytes / row_bytes / 12)
            .collect();
        let curve_of = |kind, trace: &Vec<u64>| {
            let mut caches = Miniatures::new(kind, 1.0, &capacities);
            trace.iter().for_each(|&id| caches.add(id));
            caches.miss_curve()
        };
        let halves = [
            [wide(seed), narrow(seed + 1)],
            [narrow(seed + 2), wide(seed + 3)],
        ];
        for kind in PolicyKind::ALL {
            let mut running =
                [0, 1].map(|_| RunningCurve::new(kind, budget_bytes / row_bytes, 1000));
            for half in &halves {
                for (number, (table, id)) in interleaved(half).enumerate() {
                    running[table].add(id);
                    if number % 80_000 == 79_999 {
                        running.iter_mut().for_each(|running| running.age(0.5));
                    }
                }
                let estimated = running.each_ref().map(|running| CacheDemand {
                    curve: running.miss_curve(),
                    row_bytes,
                    rows_min: 0,
                });
                let rows = split_cache(budget_bytes, &estimated).unwrap();
                let exact = half.each_ref().map(|trace| CacheDemand {
                    curve: curve_of(kind, trace),
                    row_bytes,
                    rows_min: 0,
                });
                let (ours, best) = (
                    misses(&exact, &rows),
                    fewest_misses(budget_bytes, 400, &exact),
                );
                println!("{kind} {rows:?}: {ours} misses, {best} at best");
                assert!(ours <= 1.05 * best);
            }
        }
    }

    proptest! {
        /// Also where curves have cliffs: off by less than the edge of a hull that did not fit.
        #[test]
        fn any_curves_are_split_within_the_budget_and_to_some_use(
            points in proptest::collection::vec((proptest::collection::vec((1u64..200, 0f64..1000.0), 0..8), 1u64..9, 0u64..20), 1..5),
            budget_bytes in 0u64..4000,
        ) {
            let tables: Vec<CacheDemand> = points.into_iter().map(|(points, row_bytes, rows_min)| {
                CacheDemand { curve: MissCurve::new(1000.0, points), row_bytes, rows_min }
            }).collect();
            let needed: u64 = tables.iter().map(|table| table.rows_min * table.row_bytes).sum();
            let Ok(rows) = split_cache(budget_bytes, &tables) else {
                prop_assert!(needed > budget_bytes);
                return Ok(());
            };
            prop_assert!(bytes(&tables, &rows) <= budget_bytes);
            prop_assert!(rows.iter().zip(&tables).all(|(&rows, table)| rows >= table.rows_min));
            let edge = |table: &CacheDemand| {
                let hull = table.curve.hull_from(table.rows_min);
                hull.points().windows(2).map(|edge| edge[0].1 - edge[1].1).fold(0.0, f64::max)
            };
            let free: Vec<CacheDemand> = tables.iter().filter(|table| table.rows_min == 0).cloned().collect();
            if free.len() == tables.len() {
                let best = fewest_misses(budget_bytes, budget_bytes.max(1), &tables);
                prop_assert!(misses(&tables, &rows) <= best + tables.iter().map(edge).fold(0.0, f64::max) + 1e-6);
            }
        }
    }

    #[test]
    fn a_budget_below_the_minimum_is_refused_with_what_is_needed() {
        let table = CacheDemand {
            curve: MissCurve::new(1.0, []),
            row_bytes: 10,
            rows_min: 3,
        };
        let error = split_cache(29, std::slice::from_ref(&table)).unwrap_err();
        assert!(
            matches!(error, Error::OverBudget { needed: 30, .. }),
            "{error}"
        );
        assert_eq!(
            split_cache(1000, &[table]).unwrap(),
            [3],
            "more would save nothing"
        );
        assert!(split_cache(1000, &[]).unwrap().is_empty());
    }
}
