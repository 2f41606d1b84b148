//! How often each row is looked up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::sample::mix;

/// Look-ups of every row, or of the rows of one part of them; 24 bytes a distinct row.
///
/// ```
/// use outcore_tables::reuse::ReuseCounts;
///
/// let mut counts = ReuseCounts::default();
/// [5, 7, 5].iter().for_each(|&row| counts.add(row));
/// assert_eq!((counts.lookups(), counts.distinct()), (3, 2));
/// assert_eq!(counts.hottest(1), [(5, 2)]);
/// assert_eq!(counts.histogram(), [(1, 1), (2, 1)]);
/// let mut halves = [0, 1].map(|part| ReuseCounts::of_part(part, 1));
/// halves.iter_mut().for_each(|half| (0..100).for_each(|row| half.add(row)));
/// assert_eq!(halves[0].distinct() + halves[1].distinct(), 100);
/// ```
#[derive(Default)]
pub struct ReuseCounts {
    counts: HashMap<u64, u64>,
    lookups: u64,
    part: u64,
    bits: u32,
}

impl ReuseCounts {
    /// Counts one of 2^`bits` parts of the rows, chosen by hash. Part p consists of parts 2 p and 2 p + 1 of those with a bit
    /// more.
    pub fn of_part(part: u64, bits: u32) -> ReuseCounts {
        ReuseCounts {
            part,
            bits,
            ..ReuseCounts::default()
        }
    }

    /// The next look-up of the trace; those of other parts do not count.
    pub fn add(&mut self, key: u64) {
        if self.bits > 0 && mix(key) >> (u64::BITS - self.bits) != self.part {
            return;
        }
        *self.counts.entry(key).or_default() += 1;
        self.lookups += 1;
    }

    /// How often rows occur, ascending, and how many rows occur so often.
    pub fn histogram(&self) -> Vec<(u64, u64)> {
        let mut rows = BTreeMap::new();
        for &count in self.counts.values() {
            *rows.entry(count).or_default() += 1;
        }
        rows.into_iter().collect()
    }

    /// Look-ups so far.
    pub fn lookups(&self) -> u64 {
        self.lookups
    }

    /// Different rows so far.
    pub fn distinct(&self) -> u64 {
        self.counts.len() as u64
    }

    /// The rows that occur most and their counts, at most `rows` of them, most frequent first; the
    /// lower number first where counts are equal.
    pub fn hottest(&self, rows: usize) -> Vec<(u64, u64)> {
        let mut hottest: Vec<(u64, u64)> = self
            .counts
            .iter()
            .map(|(&key, &count)| (key, count))
            .collect();
        let order = |&(key, count): &(u64, u64)| (Reverse(count), key);
        if rows < hottest.len() {
            hottest.select_nth_unstable_by_key(rows, order);
            hottest.truncate(rows);
        }
        hottest.sort_unstable_by_key(order);
        hottest
    }
}
