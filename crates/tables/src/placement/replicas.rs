//! Pages that hold rows once more.
//!
//! A row scores, for each query that has it, the pages that the query touches beside the row's own.
//! Each of the rows with the highest scores gets a page with the rows nearest to it of those that
//! are not on its page anyway.
//!
//! After MaxEmbed (the partition of its public code), but for neighbours by nearness instead of
//! counts.

use std::cmp::Reverse;

use outcore_core::{Error, Result};

use super::lists::{Lists, in_ranges};
use super::neighbours::Neighbours;
use super::{Chooser, Placement, Queries};

/// Queries of a row that are looked at to fill its page (MaxEmbed).
const QUERIES_MOST: usize = 10_000;

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
    pub fn with_replicas(self, log: &Queries, ratio: f64, threads: usize) -> Result<Placement> {
        let (row_count, rows_a_page) = (self.slot_of_row().len(), self.rows_a_page());
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
        let page_count = (ratio * row_count as f64 / f64::from(rows_a_page)).ceil();
        let page_count = page_count.min(row_count as f64) as usize;
        self.check_slots(page_count)?;
        let pages = match page_count {
            0 => Lists::new(),
            _ => self.replica_pages(log, page_count, threads),
        };
        Ok(self.with_pages(pages))
    }

    /// # Errors
    /// `Value` for more slots than 32 bits number.
    pub(super) fn check_slots(&self, replica_pages: usize) -> Result<()> {
        let slot_count = (u64::from(self.home_page_count()) + replica_pages as u64)
            .saturating_mul(u64::from(self.rows_a_page()));
        match slot_count < u64::from(u32::MAX) {
            true => Ok(()),
            false => Err(Error::Value {
                what: format!("{slot_count} slots with replicas are too many"),
            }),
        }
    }

    /// With replicas on these pages, in place of those there are.
    pub(super) fn with_pages(mut self, pages: Lists) -> Placement {
        let (first, rows_a_page) = (self.home_page_count(), self.rows_a_page());
        let slots = (first..)
            .zip(pages.iter())
            .flat_map(|(page, rows)| rows.iter().copied().zip(page * rows_a_page..));
        self.slots = self.slots.with_replicas(slots);
        self.replica_pages = pages;
        self
    }

    fn replica_pages(&self, log: &Queries, page_count: usize, threads: usize) -> Lists {
        let scores = self.scores(log, threads);
        let mut rows: Vec<u32> = (0..log.row_count())
            .filter(|&row| scores[row as usize] > 0)
            .collect();
        rows.sort_by_key(|&row| Reverse(scores[row as usize]));
        rows.truncate(page_count);
        let page = |row: u32| self.slot_of_row()[row as usize] / self.rows_a_page();
        let nearest = Neighbours::new(&log.lists, self.slot_of_row().len()).of_each(
            &rows,
            self.rows_a_page() as usize - 1,
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
                self.slots.homes(log.get(query), &mut slots);
                self.slots.page_count(&mut slots) - 1
            };
            queries.map(&mut beside).collect()
        });
        let mut scores = vec![0; self.slot_of_row().len()];
        for (rows, beside) in log.iter().zip(beside) {
            rows.iter().for_each(|&row| scores[row as usize] += beside);
        }
        scores
    }

    /// The rows of each page of replicas, which come after the pages that hold every row.
    pub fn replicas(&self) -> impl Iterator<Item = &[u32]> {
        self.replica_pages.iter()
    }

    /// Chooses pages for queries; has memory of its own that queries use again, so one a thread.
    ///
    /// ```
    /// let placement = outcore_tables::placement::Placement::in_order(4, 2)?;
    /// let mut slots = Vec::new();
    /// placement.chooser().choose(&[3, 0], &mut slots);
    /// assert_eq!(slots, [3, 0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn chooser(&self) -> Chooser<'_> {
        Chooser::new(&self.slots)
    }
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
                let chosen = placement.slots.page_count(&mut slots);
                plain.slots.homes(query, &mut slots);
                prop_assert!(chosen <= plain.slots.page_count(&mut slots));
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
        let of_slots = |slots: &[u32], pages: &[&[u32]]| {
            let pages = pages.iter().map(|page| page.to_vec());
            Placement::of_slots(2, slots.to_vec(), pages)
        };
        let good = of_slots(&[2, 0, 1], &[&[2, 0], &[1]]).unwrap();
        assert_eq!(good.replicas().collect::<Vec<_>>(), [&[2, 0][..], &[1]]);
        assert!(of_slots(&[2, 0, 2], &[]).is_err());
        for pages in [&[][..], &[3], &[0, 1, 2]] {
            assert!(of_slots(&[2, 0, 1], &[pages]).is_err(), "{pages:?}");
        }
    }
}
