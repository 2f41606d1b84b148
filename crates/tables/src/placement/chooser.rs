//! Which of its slots each row of a query is read from, so that few pages are read.
//!
//! A query takes its rows by how many pages have them, fewest first, and for each that no page
//! taken so far has, the page that has most of the rows still missing; its rows' own pages, should
//! they be fewer. Finding the fewest pages is set cover, so greedy is what there is.
//!
//! After MaxEmbed (the client of its public code), but for the last resort.
//! Invariant: no query touches more pages than without replicas.

use std::ops::Range;

/// Where rows lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) rows_a_page: u32,
    /// The slot of each row.
    pub(crate) of_rows: Vec<u32>,
    /// Rows and the slots of their replicas, by row.
    of_replicas: Vec<(u32, u32)>,
}

impl Slots {
    /// Bytes of a replica here.
    pub(crate) const REPLICA_BYTES: u64 = size_of::<(u32, u32)>() as u64;

    pub(crate) fn new(rows_a_page: u32, of_rows: Vec<u32>) -> Slots {
        Slots {
            rows_a_page,
            of_rows,
            of_replicas: Vec::new(),
        }
    }

    /// With these replicas, rows and slots, in place of those there are.
    pub(crate) fn with_replicas(mut self, replicas: impl Iterator<Item = (u32, u32)>) -> Slots {
        // Their number is not known, but no more memory is taken than all slots need.
        self.of_replicas = Vec::with_capacity(replicas.size_hint().1.unwrap_or(0));
        self.of_replicas.extend(replicas);
        self.of_replicas.sort_unstable();
        self
    }

    pub(crate) fn has_replicas(&self) -> bool {
        !self.of_replicas.is_empty()
    }

    /// The slots of rows that are no replicas.
    pub(super) fn homes(&self, rows: &[u32], slots: &mut Vec<u32>) {
        slots.clear();
        slots.extend(rows.iter().map(|&row| self.of_rows[row as usize]));
    }

    /// Pages of some slots, which are sorted on the way.
    pub(super) fn page_count(&self, slots: &mut [u32]) -> u64 {
        slots.sort_unstable();
        slots
            .chunk_by(|a, b| a / self.rows_a_page == b / self.rows_a_page)
            .count() as u64
    }

    fn replicas_of(&self, row: u32) -> Range<usize> {
        let first = self.of_replicas.partition_point(|replica| replica.0 < row);
        let of_row = self.of_replicas[first..].iter();
        first..first + of_row.take_while(|replica| replica.0 == row).count()
    }

    /// The slots that a row has, its own first.
    fn all(&self, row: u32, replicas: Range<usize>) -> impl Iterator<Item = u32> {
        let replicas = self.of_replicas[replicas].iter().map(|replica| replica.1);
        std::iter::once(self.of_rows[row as usize]).chain(replicas)
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
    slots: &'a Slots,
    /// Of each row of the query.
    replicas: Vec<Range<usize>>,
    /// Slots that rows of the query have, in order, with the row's position in the query.
    copies: Vec<(u32, u32)>,
    /// At the first copy of each page: how many rows that have no slot yet it has.
    missing: Vec<u32>,
    /// Positions in the query, those with fewest replicas first.
    by_replicas: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

impl<'a> Chooser<'a> {
    pub(crate) fn new(slots: &'a Slots) -> Chooser<'a> {
        Chooser {
            slots,
            replicas: Vec::new(),
            copies: Vec::new(),
            missing: Vec::new(),
            by_replicas: Vec::new(),
        }
    }

    /// Puts a slot for each row into `slots`.
    ///
    /// # Panics
    ///
    /// If the placement does not have a row.
    pub fn choose(&mut self, rows: &[u32], slots: &mut Vec<u32>) {
        self.slots.homes(rows, slots);
        self.replicas.clear();
        self.replicas
            .extend(rows.iter().map(|&row| self.slots.replicas_of(row)));
        if self.replicas.iter().all(Range::is_empty) {
            return;
        }
        let home_page_count = self.slots.page_count(slots);
        self.find_copies(rows);
        slots.fill(NO_SLOT);
        let mut page_count = 0;
        for index in 0..rows.len() {
            let position = self.by_replicas[index] as usize;
            if slots[position] == NO_SLOT {
                let first = self.fullest_page(rows, position);
                self.take(first, rows, slots);
                page_count += 1;
            }
        }
        if page_count > home_page_count {
            self.slots.homes(rows, slots);
        }
    }

    /// The slots that a row of the query has, its own first.
    fn all_slots(&self, rows: &[u32], position: usize) -> impl Iterator<Item = u32> + use<'a> {
        self.slots
            .all(rows[position], self.replicas[position].clone())
    }

    fn find_copies(&mut self, rows: &[u32]) {
        self.copies.clear();
        for position in 0..rows.len() {
            let copies = self.all_slots(rows, position);
            self.copies
                .extend(copies.map(|slot| (slot, position as u32)));
        }
        self.copies.sort_unstable();
        self.missing.clear();
        self.missing.resize(self.copies.len(), 0);
        let page = |copy: &(u32, u32)| copy.0 / self.slots.rows_a_page;
        let mut first = 0;
        for copies in self.copies.chunk_by(|a, b| page(a) == page(b)) {
            self.missing[first] = copies.len() as u32;
            first += copies.len();
        }
        self.by_replicas.clear();
        self.by_replicas.extend(0..rows.len() as u32);
        self.by_replicas
            .sort_by_key(|&position| self.replicas[position as usize].len());
    }

    /// Where the copies begin of the page that has most of the rows without a slot, among those
    /// that have this row; its own page, if it is one of them.
    fn fullest_page(&self, rows: &[u32], position: usize) -> usize {
        let pages = self
            .all_slots(rows, position)
            .map(|slot| self.first_of_page(slot));
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
        let begin = slot - slot % self.slots.rows_a_page;
        self.copies.partition_point(|copy| copy.0 < begin)
    }

    /// Gives the rows that a page has and that have no slot yet their slots there.
    fn take(&mut self, first: usize, rows: &[u32], slots: &mut [u32]) {
        let rows_a_page = self.slots.rows_a_page;
        let page = self.copies[first].0 / rows_a_page;
        for index in first..self.copies.len() {
            let (slot, position) = self.copies[index];
            let position = position as usize;
            if slot / rows_a_page != page {
                break;
            }
            if slots[position] == NO_SLOT {
                slots[position] = slot;
                for copy in self.all_slots(rows, position) {
                    let of_page = self.first_of_page(copy);
                    self.missing[of_page] -= 1;
                }
            }
        }
    }
}
