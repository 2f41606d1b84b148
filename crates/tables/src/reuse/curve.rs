//! Misses as a function of capacity.

/// Misses of a cache by its capacity in rows: points joined by straight lines, constant after the
/// last; more rows never miss more.
///
/// ```
/// use outcore_tables::reuse::MissCurve;
///
/// let curve = MissCurve::new(100.0, [(10, 90.0), (20, 20.0), (30, 19.0)]);
/// assert_eq!(curve.lookups(), 100.0);
/// assert_eq!([0, 5, 15, 40].map(|rows| curve.misses(rows)), [100.0, 95.0, 55.0, 19.0]);
/// assert_eq!(curve.convex_hull().points(), [(0, 100.0), (20, 20.0), (30, 19.0)]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MissCurve {
    points: Vec<(u64, f64)>,
}

impl MissCurve {
    /// From the misses at some capacities. Without a cache every look-up misses; a point that
    /// misses more than one with fewer rows counts as that one.
    pub fn new(lookups: f64, points: impl IntoIterator<Item = (u64, f64)>) -> MissCurve {
        let mut sorted: Vec<(u64, f64)> =
            points.into_iter().filter(|&(rows, _)| rows > 0).collect();
        sorted.sort_by_key(|&(rows, _)| rows);
        let lookups = if lookups.is_finite() {
            lookups.max(0.0)
        } else {
            0.0
        };
        let mut points = vec![(0, lookups)];
        for (rows, misses) in sorted {
            let (last_rows, least) = points[points.len() - 1];
            if rows == last_rows {
                points.pop();
            }
            points.push((rows, least.min(misses).max(0.0)));
        }
        MissCurve { points }
    }

    /// Capacity and misses, by capacity; the first is that of no cache.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Misses without a cache.
    pub fn lookups(&self) -> f64 {
        self.points[0].1
    }

    /// Misses at a capacity.
    pub fn misses(&self, rows: u64) -> f64 {
        let after = self.points.partition_point(|point| point.0 <= rows);
        let (from, misses) = self.points[after - 1];
        let Some(&(to, fewer)) = self.points.get(after) else {
            return misses;
        };
        misses + (fewer - misses) * ((rows - from) as f64 / (to - from) as f64)
    }

    /// The largest convex curve that is nowhere above this one.
    pub fn convex_hull(&self) -> MissCurve {
        self.hull_from(0)
    }

    /// The convex hull of what is right of a capacity, that point included.
    pub(crate) fn hull_from(&self, rows: u64) -> MissCurve {
        let right = self.points.iter().filter(|point| point.0 > rows);
        let mut hull = vec![(rows, self.misses(rows))];
        for &point in right {
            while let [.., before, last] = hull[..]
                && slope(before, last) >= slope(last, point)
            {
                hull.pop();
            }
            hull.push(point);
        }
        MissCurve { points: hull }
    }
}

fn slope((from, misses): (u64, f64), (to, fewer): (u64, f64)) -> f64 {
    (fewer - misses) / (to - from) as f64
}
