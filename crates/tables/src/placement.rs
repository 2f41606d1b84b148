//! Which rows of a table share a page: orders of rows in which a query touches few pages, learned
//! from a log of queries. Pure: no I/O; what is found does not depend on the number of threads.
//!
//! ```text
//!   slot    0 1 2 3 | 4 5 6 7 | 8 9 . . | 12 13 14 15 | 16 17 18 19      4 rows a page
//!   row     7 1 0 4 | 5 8 2 6 | 3 9     |  1  8  5  0 |  7  3  2  9
//!           every row once              | replicas: rows once more, beside others
//! ```
//!
//! - *By frequency*: rows that are asked for often share pages, so few pages take most look-ups.
//! - *By co-appearance*: rows that are asked for together share pages (bisection.rs), as Bandana
//!   (Eisenman et al., MLSys 2019) has it. To the queries of the log come lists of a row and its
//!   nearest neighbours (neighbours.rs), since a short log has more evidence of those than of groups
//!   of a page's size; then pairs of pages are improved (refinement.rs).
//! - *With replicas*: more pages, for rows that belong to more than one group (replicas.rs), and the
//!   choice of pages for a query among them (chooser.rs), after MaxEmbed.

mod bisection;
mod chooser;
mod lists;
mod neighbours;
mod queries;
mod refinement;
mod replicas;

use std::cmp::Reverse;

use outcore_core::{Error, Result};

use self::bisection::Part;
use self::lists::Lists;
use self::neighbours::Neighbours;
use crate::packed::is_permutation;

pub use self::chooser::Chooser;
pub(crate) use self::chooser::Slots;
pub use self::queries::Queries;

/// Neighbours of a row that become one more list, for each row of a page.
const NEIGHBOURS_A_PAGE_ROW: usize = 2;
/// Items of those lists, for each look-up of the log: what bounds memory and time.
const NEIGHBOURS_A_LOOK_UP: usize = 2;
/// Queries of a row that are looked at to find its neighbours.
const NEIGHBOUR_QUERIES_MOST: usize = 1000;

/// Where each row is, in pages of equally many rows.
///
/// ```
/// use outcore_tables::placement::{Placement, Queries};
///
/// let log = Queries::new(6, [vec![0, 3], vec![1, 4], vec![0, 3, 5], vec![1, 4, 2]])?;
/// let given = Placement::in_order(log.row_count(), 3)?;
/// let learned = Placement::by_co_appearance(&log, 3, 2)?;
/// assert_eq!(given.pages_touched(&log).a_query(), 2.0);
/// assert_eq!(learned.pages_touched(&log).a_query(), 1.0);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    slots: Slots,
    /// The rows of each page of replicas.
    replica_pages: Lists,
}

/// Pages that queries touch.
///
/// ```
/// use outcore_tables::placement::{Placement, Queries};
///
/// let log = Queries::new(4, [vec![0, 1], vec![1, 2, 3]])?;
/// let touched = Placement::in_order(4, 2)?.pages_touched(&log);
/// assert_eq!((touched.a_query(), touched.a_look_up()), (1.5, 0.6));
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesTouched {
    /// Of all queries, each counted for itself.
    pub pages: u64,
    /// How many queries.
    pub queries: u64,
    /// Rows of all queries, each counted once a query.
    pub look_ups: u64,
}

impl PagesTouched {
    /// Pages a query, on average; 0 without queries.
    pub fn a_query(&self) -> f64 {
        self.pages as f64 / self.queries.max(1) as f64
    }

    /// Pages a look-up of a row, on average; 1 where each row takes a page of its own.
    pub fn a_look_up(&self) -> f64 {
        self.pages as f64 / self.look_ups.max(1) as f64
    }
}

impl Placement {
    /// Rows in their given order.
    ///
    /// ```
    /// let placement = outcore_tables::placement::Placement::in_order(3, 2)?;
    /// assert_eq!(placement.slot_of_row(), [0, 1, 2]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Value` for pages of no rows.
    pub fn in_order(row_count: u32, rows_a_page: u32) -> Result<Placement> {
        Placement::of_order((0..row_count).collect(), rows_a_page)
    }

    /// Rows by how many queries they are in, most first; equal ones by number.
    ///
    /// ```
    /// use outcore_tables::placement::{Placement, Queries};
    ///
    /// let log = Queries::new(3, [vec![2], vec![2, 1]])?;
    /// assert_eq!(Placement::by_frequency(&log, 2)?.slot_of_row(), [2, 1, 0]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Value` for pages of no rows.
    pub fn by_frequency(log: &Queries, rows_a_page: u32) -> Result<Placement> {
        let counts = log.counts();
        let mut order: Vec<u32> = (0..log.row_count()).collect();
        order.sort_by_key(|&row| Reverse(counts[row as usize]));
        Placement::of_order(order, rows_a_page)
    }

    /// Rows that appear together share a page; those in no query come last, by number. If rows by
    /// frequency, or in their given order, touch fewer pages in the log, these are taken.
    ///
    /// Memory: some 60 bytes a look-up of the log and 20 a row. Time: some twenty rounds over the
    /// look-ups for each halving of the pages; the square of the length of a query up to 1000 rows.
    ///
    /// ```
    /// use outcore_tables::placement::{Placement, Queries};
    ///
    /// let log = Queries::new(4, [vec![0, 2], vec![1, 3]])?;
    /// let placement = Placement::by_co_appearance(&log, 2, 1)?;
    /// assert_eq!(placement.pages_touched(&log).pages, 2);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Value` for pages of no rows.
    pub fn by_co_appearance(log: &Queries, rows_a_page: u32, threads: usize) -> Result<Placement> {
        let mut best = Placement::in_order(log.row_count(), rows_a_page)?;
        let learned = Placement::of_order(co_appearance(log, rows_a_page, threads), rows_a_page)?;
        for other in [Placement::by_frequency(log, rows_a_page)?, learned] {
            if other.pages_touched(log).pages < best.pages_touched(log).pages {
                best = other;
            }
        }
        Ok(best)
    }

    fn of_order(order: Vec<u32>, rows_a_page: u32) -> Result<Placement> {
        if rows_a_page == 0 {
            return Err(Error::Value {
                what: "a page holds at least one row, not 0".to_owned(),
            });
        }
        let mut slot_of_row = vec![0; order.len()];
        for (slot, row) in order.into_iter().enumerate() {
            slot_of_row[row as usize] = slot as u32;
        }
        Ok(Placement {
            slots: Slots::new(rows_a_page, slot_of_row),
            replica_pages: Lists::new(),
        })
    }

    /// Rows in these slots, and the rows of each page of replicas after their pages, such as those of
    /// a placement that was kept.
    ///
    /// ```
    /// use outcore_tables::placement::Placement;
    ///
    /// let placement = Placement::of_slots(2, vec![3, 0, 2, 1], [vec![0, 1]])?;
    /// assert_eq!((placement.rows_a_page(), placement.home_page_count()), (2, 2));
    /// assert_eq!(placement.slot_of_row(), [3, 0, 2, 1]);
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Value` for slots that are no permutation, pages of no rows or too many, rows that there are
    /// not, and more slots than 32 bits number.
    pub fn of_slots(
        rows_a_page: u32,
        slot_of_row: Vec<u32>,
        replicas: impl IntoIterator<Item = Vec<u32>>,
    ) -> Result<Placement> {
        let rows = slot_of_row.len();
        let wrong = |what: String| Err(Error::Value { what });
        if !is_permutation(slot_of_row.iter().map(|&slot| u64::from(slot)), rows) {
            return wrong(format!(
                "a placement gives each of {rows} rows a slot of its own"
            ));
        }
        let pages: Lists = replicas.into_iter().collect();
        for (page, replicas) in pages.iter().enumerate() {
            if replicas.is_empty() || replicas.len() > rows_a_page as usize {
                let count = replicas.len();
                return wrong(format!(
                    "page {page} of replicas has {count} rows, not 1 to {rows_a_page}"
                ));
            }
            if let Some(row) = replicas.iter().find(|row| **row as usize >= rows) {
                return wrong(format!("page {page} of replicas has row {row} of {rows}"));
            }
        }
        let mut placement = Placement::in_order(0, rows_a_page)?;
        placement.slots.of_rows = slot_of_row;
        placement.check_slots(pages.len())?;
        Ok(placement.with_pages(pages))
    }

    /// Rows a page.
    pub fn rows_a_page(&self) -> u32 {
        self.slots.rows_a_page
    }

    /// The slot of each row: a permutation. Slot `s` is in page `s / rows_a_page`.
    pub fn slot_of_row(&self) -> &[u32] {
        &self.slots.of_rows
    }

    pub(crate) fn into_slot_of_row(self) -> Vec<u32> {
        self.slots.of_rows
    }

    /// Pages that hold every row once; replicas are in the pages after them.
    pub fn home_page_count(&self) -> u32 {
        (self.slot_of_row().len() as u32).div_ceil(self.rows_a_page())
    }

    /// Pages that queries touch, where each takes the pages that a [`Chooser`] chooses.
    ///
    /// # Panics
    ///
    /// If the queries are of a table of more rows.
    pub fn pages_touched(&self, queries: &Queries) -> PagesTouched {
        let mut chooser = self.chooser();
        let mut slots = Vec::new();
        let pages = queries.iter().map(|rows| {
            chooser.choose(rows, &mut slots);
            self.slots.page_count(&mut slots)
        });
        PagesTouched {
            pages: pages.sum(),
            queries: queries.len() as u64,
            look_ups: queries.look_ups() as u64,
        }
    }
}

/// All rows, in an order in which those that appear together are near each other.
fn co_appearance(log: &Queries, rows_a_page: u32, threads: usize) -> Vec<u32> {
    let counts = log.counts();
    let (mut order, absent): (Vec<u32>, Vec<u32>) =
        (0..log.row_count()).partition(|&row| counts[row as usize] > 0);
    let mut numbers = vec![0; counts.len()];
    for (number, &row) in order.iter().enumerate() {
        numbers[row as usize] = number as u32;
    }
    let mut edges = Lists::new();
    for rows in log.iter() {
        edges.push_if_several(rows.iter().map(|&row| numbers[row as usize]));
    }
    let rows_a_page = (rows_a_page as usize).min(order.len().max(1));
    let neighbour_count = (rows_a_page * NEIGHBOURS_A_PAGE_ROW)
        .min(log.look_ups() * NEIGHBOURS_A_LOOK_UP / order.len().max(1));
    add_neighbours(&mut edges, order.len(), neighbour_count, threads);

    let mut by_number = vec![0; order.len()];
    let all = (0..order.len() as u32).collect();
    Part::new(all, edges.clone()).order(rows_a_page, threads, &mut by_number);
    refinement::refine(&edges, &mut by_number, rows_a_page, threads);
    order = by_number
        .iter()
        .map(|&number| order[number as usize])
        .collect();
    order.extend(absent);
    order
}

/// Adds a list of each row and its nearest neighbours.
fn add_neighbours(edges: &mut Lists, row_count: usize, neighbour_count: usize, threads: usize) {
    let rows: Vec<u32> = (0..row_count as u32).collect();
    let nearest = Neighbours::new(edges, row_count).of_each(
        &rows,
        neighbour_count,
        NEIGHBOUR_QUERIES_MOST,
        threads,
        |_, _| true,
    );
    for (row, mut list) in nearest.into_iter().enumerate() {
        list.push(row as u32);
        edges.push_if_several(list);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One step of splitmix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Queries of six rows of one of `groups` groups of eight, whose rows are far apart, and now
    /// and then a row of any group.
    fn planted(groups: u64, queries: usize, seed: u64) -> Queries {
        let mut state = seed;
        let rows = groups * 8;
        let query = |_| {
            let group = random(&mut state) % groups;
            let mut query: Vec<u64> = (0..6)
                .map(|_| random(&mut state) % 8 * groups + group)
                .collect();
            if random(&mut state).is_multiple_of(20) {
                query.push(random(&mut state) % rows);
            }
            query
        };
        Queries::new(rows, (0..queries).map(query)).unwrap()
    }

    #[test]
    fn planted_groups_are_found() {
        for seed in 0..4 {
            let log = planted(300, 9000, seed);
            let held_out = planted(300, 1000, seed + 100);
            let pages = |placement: &Placement| placement.pages_touched(&held_out).a_query();
            let given = pages(&Placement::in_order(2400, 8).unwrap());
            let learned = pages(&Placement::by_co_appearance(&log, 8, 2).unwrap());
            // One page, and another for one row in twenty.
            assert!(
                learned < 1.06,
                "{learned} pages, {given} as given, seed {seed}"
            );
            assert!(given > 4.0, "{given} pages as given, seed {seed}");
        }
    }

    #[test]
    fn any_number_of_threads_finds_the_same() {
        for seed in 0..2 {
            let log = planted(600, 5000, seed);
            let learned = |threads| {
                let placement = Placement::by_co_appearance(&log, 5, threads).unwrap();
                placement.with_replicas(&log, 0.3, threads).unwrap()
            };
            let one = learned(1);
            for threads in [0, 2, 3, 8] {
                assert!(learned(threads) == one, "{threads} threads, seed {seed}");
            }
        }
    }

    #[test]
    fn frequent_rows_come_first_and_absent_ones_last() {
        let log = Queries::new(6, [vec![4, 2], vec![4], vec![2, 4], vec![0, 5]]).unwrap();
        let by_frequency = Placement::by_frequency(&log, 2).unwrap();
        assert_eq!(by_frequency.slot_of_row(), [2, 4, 1, 5, 0, 3]);
        let learned = Placement::by_co_appearance(&log, 2, 1).unwrap();
        assert_eq!(learned.slot_of_row()[1], 4);
        assert_eq!(learned.slot_of_row()[3], 5);
        assert_eq!(learned.pages_touched(&log).pages, 4);
    }

    #[test]
    fn tables_of_few_rows_and_logs_of_no_query_are_placed() {
        for rows in [0, 1, 2, 7] {
            let log = Queries::new(rows, [(0..rows).collect::<Vec<_>>()]).unwrap();
            let empty = Queries::new(rows, [vec![]]).unwrap();
            for rows_a_page in [1, 2, 7, u32::MAX] {
                for log in [&log, &empty] {
                    let placement = Placement::by_co_appearance(log, rows_a_page, 2).unwrap();
                    let pages = placement.pages_touched(log).pages;
                    let bound = rows.div_ceil(u64::from(rows_a_page)) * log.len() as u64;
                    assert_eq!(pages, bound, "{rows} rows, {rows_a_page} a page");
                }
            }
            assert!(Placement::by_frequency(&log, 0).is_err());
        }
    }

    proptest! {
        #[test]
        fn rows_have_a_slot_each_and_no_order_is_worse_than_the_given_one(
            log in prop::collection::vec(prop::collection::vec(0u64..90, 0..12), 0..80),
            rows in 90u64..120,
            rows_a_page in 1u32..20,
        ) {
            let log = Queries::new(rows, log).unwrap();
            let learned = Placement::by_co_appearance(&log, rows_a_page, 2).unwrap();
            let by_frequency = Placement::by_frequency(&log, rows_a_page).unwrap();
            let given = Placement::in_order(log.row_count(), rows_a_page).unwrap();
            for placement in [&learned, &by_frequency] {
                let mut slots = placement.slot_of_row().to_vec();
                slots.sort_unstable();
                prop_assert!(slots.into_iter().eq(0..log.row_count()));
            }
            let pages = |placement: &Placement| placement.pages_touched(&log).pages;
            prop_assert!(pages(&learned) <= pages(&given).min(pages(&by_frequency)));
        }
    }
}
