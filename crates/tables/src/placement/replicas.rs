//! Pages that hold rows once more, and which pages a query takes where it has the choice.
//!
//! A row scores, for each query that has it, the pages that the query touches beside the row's own.
//! Each of the rows with the highest scores gets a page with the rows nearest to it of those that
//! are not on its page anyway.
//!
//! A query takes its rows by how many pages have them, fewest first, and for each that no page
//! taken so far has, the page that has most of the rows still missing; its rows' own pages, should
//! they be fewer. Finding the fewest pages is set cover, so greedy is what there is.
//!
//! After MaxEmbed (partition and client of its public code), but for neighbours by nearness instead
//! of counts, and for the last resort.
//! Invariant: no query touches more pages than without replicas.

use std::cmp::Reverse;

use outcore_core::{Error, Result};

use super::lists::{Lists, in_ranges};
use super::neighbours::Neighbours;
use super::{Placement, Queries};

/// Queries of a row that are looked at to fill its page (MaxEmbed).
const QUERIES_MOST: usize = 10_000;

/// The rows of pages after those that hold every row, and where each row's replicas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    /// The rows of each page.
    pages: Lists,
    /// The slots of each row's replicas; no lists at all without replicas.
    slots: Lists,
}

impl Replicas {
    pub(super) fn none() -> Replicas {
        Replicas {
            pages: Lists::new(),
            slots: Lists::new(),
        }
    }

    fn slots(&self, row: u32) -> &[u32] {
        if self.slots.len() == 0 {
            return &[];
        }
        self.slots.get(row as usize)
    }
}

impl Placement {
    /// Adds pages of replicas learned from a log, `ratio` times the pages that the rows take, in
    /// place of those there are; at most one for each row that queries touch beside other pages.
    ///
    /// ```
    /// use outcore_tables::placement::{Placement, Queries};
    ///
    /// let log = Queries::new(4, [vec![0, 1], vec![2, 3], vec![1, 2], vec![1, 2]])?;
    /// let placement = Placement::in_order(4, 2)?.with_replicas(&log, 0.5, 1)?;
    /// assert_eq!(placement.replicas().collect::<Vec<_>>(), [[1, 2]]);
    /// assert_eq!(placement.pages_touched(&log).a_query(), 1.0);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Value` for a log of another table, a ratio that is negative or no number, and more slots
    /// than 32 bits number.
    pub fn with_replicas(mut self, log: &Queries, ratio: f64, threads: usize) -> Result<Placement> {
        let row_count = self.slot_of_row.len();
        let wrong = |what: String| Err(Error::Value { what });
        if log.row_count() as usize != row_count {
            let other = log.row_count();
            return wrong(format!(
                "a log of {other} rows for a placement of {row_count}"
            ));
        }
        if !(ratio >= 0.0 && ratio.is_finite()) {
            return wrong(format!(
                "pages of replicas are 0 or more for each page, not {ratio}"
            ));
        }
        self.replicas = Replicas::none();
        let page_count = (ratio * row_count as f64 / f64::from(self.rows_a_page)).ceil();
        let page_count = page_count.min(row_count as f64) as usize;
        let slot_count = (u64::from(self.home_page_count()) + page_count as u64)
            .saturating_mul(u64::from(self.rows_a_page));
        if slot_count >= u64::from(u32::MAX) {
            return wrong(format!("{slot_count} slots with replicas are too many"));
        }
        let pages = self.replica_pages(log, page_count, threads);
        self.replicas = Replicas {
            slots: self.slots_of_replicas(&pages),
            pages,
        };
        Ok(self)
    }

    fn replica_pages(&self, log: &Queries, page_count: usize, threads: usize) -> Lists {
        let scores = self.scores(log, threads);
        let mut rows: Vec<u32> = (0..log.row_count())
            .filter(|&row| scores[row as usize] > 0)
            .collect();
        rows.sort_by_key(|&row| Reverse(scores[row as usize]));
        rows.truncate(page_count);
        let page = |row: u32| self.slot_of_row[row as usize] / self.rows_a_page;
        let nearest = Neighbours::new(&log.lists, self.slot_of_row.len()).of_each(
            &rows,
            self.rows_a_page as usize - 1,
            QUERIES_MOST,
            threads,
            |row, other| page(row) != page(other),
        );
        let with_row = |(&row, mut others): (&u32, Vec<u32>)| {
            others.insert(0, row);
            others
        };
        rows.iter().zip(nearest).map(with_row).collect()
    }

    /// Of each row, the pages that its queries touch beside its own.
    fn scores(&self, log: &Queries, threads: usize) -> Vec<u64> {
        let beside = in_ranges(log.len(), threads, |queries| {
            let mut slots = Vec::new();
            let mut beside = |query| {
                self.home_slots(log.get(query), &mut slots);
                self.page_count_of(&mut slots) - 1
            };
            queries.map(&mut beside).collect()
        });
        let mut scores = vec![0; self.slot_of_row.len()];
        for (rows, beside) in log.iter().zip(beside) {
            rows.iter().for_each(|&row| scores[row as usize] += beside);
        }
        scores
    }

    fn slots_of_replicas(&self, pages: &Lists) -> Lists {
        let mut slots: Vec<(u32, u32)> = Vec::with_capacity(pages.item_count());
        for (page, rows) in (self.home_page_count()..).zip(pages.iter()) {
            slots.extend(rows.iter().copied().zip(page * self.rows_a_page..));
        }
        slots.sort_unstable();
        let mut of_rows = Lists::new();
        let mut slots = slots.into_iter().peekable();
        for row in 0..self.slot_of_row.len() as u32 {
            let of_row = std::iter::from_fn(|| slots.next_if(|slot| slot.0 == row));
            of_rows.push(of_row.map(|slot| slot.1));
        }
        of_rows
    }

    /// The rows of each page of replicas, which come after the pages that hold every row.
    pub fn replicas(&self) -> impl Iterator<Item = &[u32]> {
        self.replicas.pages.iter()
    }

    /// Chooses pages for queries; has memory of its own that queries use again, so one a thread.
    pub fn chooser(&self) -> Chooser<'_> {
        Chooser {
            placement: self,
            copies: Vec::new(),
            missing: Vec::new(),
            by_replicas: Vec::new(),
        }
    }

    fn home_slots(&self, rows: &[u32], slots: &mut Vec<u32>) {
        slots.clear();
        slots.extend(rows.iter().map(|&row| self.slot_of_row[row as usize]));
    }
}

/// Chooses which of its slots each row of a query is read from, so that few pages are read.
///
/// ```
/// use outcore_tables::placement::{Placement, Queries};
///
/// let log = Queries::new(4, [vec![1, 2]])?;
/// let placement = Placement::in_order(4, 2)?.with_replicas(&log, 0.5, 1)?;
/// let mut slots = Vec::new();
/// placement.chooser().choose(&[2, 1], &mut slots);
/// assert_eq!(slots, [5, 4]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Chooser<'a> {
    placement: &'a Placement,
    /// Slots that rows of the query have, in order, with the row's position in the query.
    copies: Vec<(u32, u32)>,
    /// At the first copy of each page: how many rows that have no slot yet it has.
    missing: Vec<u32>,
    /// Positions in the query, those with fewest replicas first.
    by_replicas: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

impl Chooser<'_> {
    /// Puts a slot for each row into `slots`.
    ///
    /// # Panics
    ///
    /// If the placement does not have a row.
    pub fn choose(&mut self, rows: &[u32], slots: &mut Vec<u32>) {
        self.placement.home_slots(rows, slots);
        if rows
            .iter()
            .all(|&row| self.placement.replicas.slots(row).is_empty())
        {
            return;
        }
        let home_page_count = self.placement.page_count_of(slots);
        self.find_copies(rows);
        slots.fill(NO_SLOT);
        let mut page_count = 0;
        for index in 0..rows.len() {
            let position = self.by_replicas[index] as usize;
            if slots[position] == NO_SLOT {
                let first = self.fullest_page(rows[position]);
                self.take(first, rows, slots);
                page_count += 1;
            }
        }
        if page_count > home_page_count {
            self.placement.home_slots(rows, slots);
        }
    }

    fn find_copies(&mut self, rows: &[u32]) {
        let placement = self.placement;
        self.copies.clear();
        for (position, &row) in rows.iter().enumerate() {
            let copies = slots_of(placement, row);
            self.copies
                .extend(copies.map(|slot| (slot, position as u32)));
        }
        self.copies.sort_unstable();
        self.missing.clear();
        self.missing.resize(self.copies.len(), 0);
        let page = |copy: &(u32, u32)| copy.0 / placement.rows_a_page;
        let mut first = 0;
        for copies in self.copies.chunk_by(|a, b| page(a) == page(b)) {
            self.missing[first] = copies.len() as u32;
            first += copies.len();
        }
        self.by_replicas.clear();
        self.by_replicas.extend(0..rows.len() as u32);
        self.by_replicas
            .sort_by_key(|&position| placement.replicas.slots(rows[position as usize]).len());
    }

    /// Where the copies begin of the page that has most of the rows without a slot, among those
    /// that have this row; its own page, if it is one of them.
    fn fullest_page(&self, row: u32) -> usize {
        let pages = slots_of(self.placement, row).map(|slot| self.first_of_page(slot));
        pages
            .reduce(|best, page| {
                if self.missing[page] > self.missing[best] {
                    page
                } else {
                    best
                }
            })
            .expect("a row has a slot")
    }

    fn first_of_page(&self, slot: u32) -> usize {
        let begin = slot - slot % self.placement.rows_a_page;
        self.copies.partition_point(|copy| copy.0 < begin)
    }

    /// Gives the rows that a page has and that have no slot yet their slots there.
    fn take(&mut self, first: usize, rows: &[u32], slots: &mut [u32]) {
        let page = self.copies[first].0 / self.placement.rows_a_page;
        for index in first..self.copies.len() {
            let (slot, position) = self.copies[index];
            if slot / self.placement.rows_a_page != page {
                break;
            }
            if slots[position as usize] == NO_SLOT {
                slots[position as usize] = slot;
                for copy in slots_of(self.placement, rows[position as usize]) {
                    let of_page = self.first_of_page(copy);
                    self.missing[of_page] -= 1;
                }
            }
        }
    }
}

/// The slots that a row has, its own first.
fn slots_of(placement: &Placement, row: u32) -> impl Iterator<Item = u32> {
    let home = placement.slot_of_row[row as usize];
    std::iter::once(home).chain(placement.replicas.slots(row).iter().copied())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The row in each slot, as a reader of the pages finds it.
    fn rows_of_slots(placement: &Placement) -> Vec<Option<u32>> {
        let rows_a_page = placement.rows_a_page() as usize;
        let home = placement.home_page_count() as usize;
        let mut rows = vec![None; (home + placement.replicas().count()) * rows_a_page];
        for (row, &slot) in placement.slot_of_row().iter().enumerate() {
            assert_eq!(rows[slot as usize].replace(row as u32), None);
        }
        for (page, replicas) in (home..).zip(placement.replicas()) {
            assert!(replicas.len() <= rows_a_page);
            for (index, &row) in replicas.iter().enumerate() {
                rows[page * rows_a_page + index] = Some(row);
            }
        }
        rows
    }

    proptest! {
        #[test]
        fn every_row_is_where_it_is_said_to_be_and_replicas_add_no_page(
            log in prop::collection::vec(prop::collection::vec(0u64..50, 0..12), 0..40),
            held_out in prop::collection::vec(prop::collection::vec(0u64..50, 0..12), 1..20),
            rows_a_page in 1u32..9,
            ratio in 0.0f64..3.0,
        ) {
            let log = Queries::new(50, log).unwrap();
            let plain = Placement::by_frequency(&log, rows_a_page).unwrap();
            let placement = plain.clone().with_replicas(&log, ratio, 2).unwrap();
            let rows_of_slots = rows_of_slots(&placement);
            let mut chooser = placement.chooser();
            let mut slots = Vec::new();
            let held_out = Queries::new(50, held_out).unwrap();
            for query in held_out.iter().chain(log.iter()) {
                chooser.choose(query, &mut slots);
                let rows = slots.iter().map(|&slot| rows_of_slots[slot as usize]);
                prop_assert!(rows.eq(query.iter().map(|&row| Some(row))));
                let chosen = placement.page_count_of(&mut slots);
                plain.home_slots(query, &mut slots);
                prop_assert!(chosen <= plain.page_count_of(&mut slots));
            }
        }
    }

    #[test]
    fn rows_named_twice_and_in_any_order_get_their_slots() {
        let log = Queries::new(4, [vec![1, 2]]).unwrap();
        let placement = Placement::in_order(4, 2).unwrap();
        let placement = placement.with_replicas(&log, 0.5, 1).unwrap();
        let mut slots = Vec::new();
        let mut chooser = placement.chooser();
        chooser.choose(&[2, 1, 2, 2, 1], &mut slots);
        assert_eq!(slots, [5, 4, 5, 5, 4]);
        chooser.choose(&[3, 2, 3], &mut slots);
        assert_eq!(slots, [3, 2, 3]);
        chooser.choose(&[], &mut slots);
        assert!(slots.is_empty());
    }

    #[test]
    fn pages_of_replicas_are_taken_where_they_are_fewer() {
        // Rows 1 and 2 come together, but 0 with 1 and 2 with 3 more often.
        let pairs = [[0, 1], [2, 3]].into_iter().cycle().take(20);
        let log = Queries::new(8, pairs.chain([[1, 2]; 8])).unwrap();
        let placement = Placement::by_co_appearance(&log, 2, 1).unwrap();
        assert_eq!(placement.pages_touched(&log).pages, 28 + 8);
        let placement = placement.with_replicas(&log, 0.25, 1).unwrap();
        assert_eq!(placement.pages_touched(&log).pages, 28);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let log = Queries::new(8, [vec![1, 2]]).unwrap();
        let other = Queries::new(9, [vec![1, 2]]).unwrap();
        let placement = Placement::in_order(8, 2).unwrap();
        assert!(placement.clone().with_replicas(&other, 0.1, 1).is_err());
        for ratio in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(
                placement.clone().with_replicas(&log, ratio, 1).is_err(),
                "{ratio}"
            );
        }
        let wide = Placement::in_order(8, u32::MAX - 1).unwrap();
        assert!(wide.with_replicas(&log, 1.0, 1).is_err());
    }
}
