//! The order of rows that puts those together that appear together: recursive bisection of a
//! hypergraph, whose vertices are rows and whose edges are the queries that have them.
//!
//! A bisection begins with the halves of the rows in the order in which they come. In each round
//! all gains of moving a row to the other side are found (by several threads), both sides are
//! sorted by gain, and the best of the left and of the right change places. Each pair is evaluated
//! once more before, since those before it have changed what it gains: so the cost never grows,
//! which moving all pairs at once does not ensure. Queries are then cut in two, and a query
//! with one row on a side has no effect on that side any more.
//!
//! The cost of a side of `t` pages for a query with `n` rows there is the number of pages that it
//! touches if its rows fall on them at random and each is asked for with probability p,
//! `t (1 - (1 - p / t)^n)`. It is concave in `n`, so one more row costs the less the more there are.
//! With p below 1 the order is not fitted as closely to the very queries of the log.
//!
//! After Kabiljo et al., Social Hash Partitioner (VLDB 2017), sections 3 and 5.
//! Invariant: the result depends on rows, edges and their order only, not on the threads.

use super::lists::{Lists, in_ranges};

/// Rounds of a bisection, at most; few take more.
const ROUNDS_MOST: usize = 20;
/// Rounds end when fewer rows than one in this many change places.
const SWAPS_LEAST: usize = 1000;
/// That a row of a query of the log is asked for again (SHP, section 5.2: 0.5 is best overall).
const ASKED_AGAIN: f64 = 0.5;
/// Gains below this are rounding.
pub(super) const GAIN_LEAST: f64 = 1e-9;

/// What one more row of a query costs, for each number of its rows that a side already has.
pub(super) fn costs_of_next(pages: usize, rows_most: usize) -> Vec<f64> {
    let kept = 1.0 - ASKED_AGAIN / pages as f64;
    std::iter::successors(Some(ASKED_AGAIN), |cost| Some(cost * kept))
        .take(rows_most + 1)
        .collect()
}

/// Some rows, and the queries that have two of them or more.
pub(super) struct Part {
    /// What the rows are called outside; inside they are numbered in this order.
    rows: Vec<u32>,
    edges: Lists,
    /// The edges that a row is in.
    incident: Lists,
}

/// Two sides of a part: where each row is, and how many rows of each edge are on each side.
struct Sides<'a> {
    part: &'a Part,
    right: &'a mut [bool],
    counts: Vec<[u32; 2]>,
    costs: [Vec<f64>; 2],
}

impl Part {
    pub(super) fn new(rows: Vec<u32>, edges: Lists) -> Part {
        let incident = edges.transposed(rows.len());
        Part {
            rows,
            edges,
            incident,
        }
    }

    /// Writes the rows to `ordered`, page after page. All pages but the last are full.
    pub(super) fn order(self, rows_a_page: usize, threads: usize, ordered: &mut [u32]) {
        let count = self.rows.len();
        if count <= rows_a_page || self.edges.len() == 0 {
            ordered.copy_from_slice(&self.rows);
            return;
        }
        let pages = count.div_ceil(rows_a_page);
        let pages_left = pages.div_ceil(2);
        let left = pages_left * rows_a_page;
        let mut right: Vec<bool> = (0..count).map(|row| row >= left).collect();
        self.improve(&mut right, [pages_left, pages - pages_left], threads);
        let [first, second] = self.split(&right);
        let (ordered_first, ordered_second) = ordered.split_at_mut(left);
        if threads < 2 {
            first.order(rows_a_page, 1, ordered_first);
            second.order(rows_a_page, 1, ordered_second);
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| first.order(rows_a_page, threads / 2, ordered_first));
            second.order(rows_a_page, threads.div_ceil(2), ordered_second);
        });
    }

    /// Swaps rows between the sides, of `pages[0]` and `pages[1]` pages, while that lowers the cost;
    /// by how much it falls.
    pub(super) fn improve(&self, right: &mut [bool], pages: [usize; 2], threads: usize) -> f64 {
        let rows_most = self.edges.iter().map(<[u32]>::len).max().unwrap_or(0);
        let counts = self.edges.iter().map(|rows| {
            let right_count = rows.iter().filter(|&&row| right[row as usize]).count();
            [(rows.len() - right_count) as u32, right_count as u32]
        });
        let mut sides = Sides {
            part: self,
            counts: counts.collect(),
            right,
            costs: pages.map(|pages| costs_of_next(pages, rows_most)),
        };
        let mut gained = 0.0;
        for _ in 0..ROUNDS_MOST {
            let (swaps, gain) = sides.round(threads);
            gained += gain;
            if swaps * SWAPS_LEAST <= self.rows.len() {
                break;
            }
        }
        gained
    }

    fn split(self, right: &[bool]) -> [Part; 2] {
        let mut rows = [Vec::new(), Vec::new()];
        let mut numbers = Vec::with_capacity(right.len());
        for (&row, &right) in self.rows.iter().zip(right) {
            let side = &mut rows[usize::from(right)];
            numbers.push(side.len() as u32);
            side.push(row);
        }
        let edges = [false, true].map(|side| {
            let mut edges = Lists::new();
            for edge in self.edges.iter() {
                let of_side = edge.iter().filter(|&&row| right[row as usize] == side);
                edges.push_if_several(of_side.map(|&row| numbers[row as usize]));
            }
            edges
        });
        drop(self);
        let ([first_rows, second_rows], [first, second]) = (rows, edges);
        [Part::new(first_rows, first), Part::new(second_rows, second)]
    }
}

impl Sides<'_> {
    /// Pairs that changed places, and what was gained.
    fn round(&mut self, threads: usize) -> (usize, f64) {
        let count = self.right.len();
        let gains = in_ranges(count, threads, |rows| {
            rows.map(|row| self.gain(row)).collect()
        });
        let mut sorted = [false, true].map(|side| {
            let mut rows: Vec<usize> = (0..count).filter(|&row| self.right[row] == side).collect();
            rows.sort_by(|&a, &b| gains[b].total_cmp(&gains[a]));
            rows.into_iter().peekable()
        });
        let (mut swaps, mut gained) = (0, 0.0);
        let [left, right] = &mut sorted;
        while let (Some(&from_left), Some(&from_right)) = (left.peek(), right.peek()) {
            if gains[from_left] + gains[from_right] <= GAIN_LEAST {
                break;
            }
            let gain_left = self.gain(from_left);
            self.shift(from_left);
            let gain_right = self.gain(from_right);
            if gain_left + gain_right > GAIN_LEAST {
                self.shift(from_right);
                swaps += 1;
                gained += gain_left + gain_right;
                left.next();
                right.next();
                continue;
            }
            self.shift(from_left);
            // The one that lost more by the swaps before is what this pair fails by.
            let lost_left = gains[from_left] - gain_left;
            let lost_right = gains[from_right] - gain_right;
            if lost_left >= lost_right {
                left.next();
            } else {
                right.next();
            }
        }
        (swaps, gained)
    }

    /// By how much the cost falls when a row goes to the other side.
    fn gain(&self, row: usize) -> f64 {
        let here = usize::from(self.right[row]);
        let there = 1 - here;
        let gains = self.part.incident.get(row).iter().map(|&edge| {
            let counts = self.counts[edge as usize];
            self.costs[here][counts[here] as usize - 1] - self.costs[there][counts[there] as usize]
        });
        gains.sum()
    }

    fn shift(&mut self, row: usize) {
        let here = usize::from(self.right[row]);
        for &edge in self.part.incident.get(row) {
            let counts = &mut self.counts[edge as usize];
            counts[here] -= 1;
            counts[1 - here] += 1;
        }
        self.right[row] = here == 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(part: &Part, right: &[bool], pages: [usize; 2]) -> f64 {
        let of_side = |edge: &[u32], side: usize| {
            let rows = edge
                .iter()
                .filter(|&&row| usize::from(right[row as usize]) == side);
            let pages = pages[side] as f64;
            pages * (1.0 - (1.0 - ASKED_AGAIN / pages).powi(rows.count() as i32))
        };
        part.edges
            .iter()
            .map(|edge| of_side(edge, 0) + of_side(edge, 1))
            .sum()
    }

    proptest! {
        #[test]
        fn what_is_gained_is_what_the_cost_falls_by(
            edges in prop::collection::vec(prop::collection::btree_set(0u32..40, 2..9), 0..60),
            left in 1usize..39,
            pages in prop::array::uniform2(1usize..9),
        ) {
            let edges = edges.into_iter().map(|edge| edge.into_iter().collect()).collect();
            let part = Part::new((0..40).collect(), edges);
            let mut right: Vec<bool> = (0..40).map(|row| row >= left).collect();
            let before = cost(&part, &right, pages);
            let gained = part.improve(&mut right, pages, 1);
            prop_assert!(gained >= 0.0);
            prop_assert!((before - cost(&part, &right, pages) - gained).abs() < 1e-9);
            prop_assert_eq!(right.iter().filter(|&&right| !right).count(), left);
        }
    }
}
