//! A part of a look-up: bags whose rows are read together.
//!
//! It is the request that an executor carries out: rows that are missing, and the places in the result that
//! each of them is for. `Reading` reads the units of the rows from local files and leaves adding up to the
//! caller; an executor where the data is could do both.
//!
//! Rows that are not in memory are listed once each, and so are the units that have them. Bags that need
//! one of them wait, with copies of their rows that are in memory: the cache may change meanwhile. Which
//! pages rows with replicas are read from is decided when the window is full, by all that it lacks.

use std::ops::Range;

use hashbrown::HashMap;

use crate::in_flight::UnitKey;
use crate::placement::Chooser;
use crate::served::Served;
use crate::table::Unit;

/// Where a row of a bag that waits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// At this byte of `kept`.
    Kept(usize),
    /// It is this row of `missing`.
    Missing(u32),
}

/// A row to read.
pub(crate) struct Missing {
    pub(crate) table: u32,
    pub(crate) row: u64,
    /// Number of its unit.
    pub(crate) unit: u32,
    /// Where it is in the unit.
    pub(crate) at: usize,
}

/// What a row to read takes at most: its place in a list that doubles, and in the map of rows, of which seven sixteenths
/// are filled when it has grown.
pub(crate) const MISSING_BYTES: usize =
    2 * size_of::<Missing>() + 16 * (size_of::<((u32, u64), u32)>() + 1) / 7;

/// Rows of one bag: all that are left of it, or the next ones.
pub(crate) struct Piece {
    pub(crate) feature: usize,
    pub(crate) bag: usize,
    /// Of the feature's rows.
    pub(crate) positions: Range<usize>,
    /// Index of the first in `sources`.
    pub(crate) first_source: usize,
}

/// Slots of one table's cache.
pub(crate) struct Used {
    pub(crate) table: u32,
    pub(crate) epoch: u64,
    pub(crate) slots: Vec<u32>,
}

#[derive(Default)]
pub(crate) struct Window {
    pub(crate) units: Vec<(UnitKey, Unit)>,
    pub(crate) missing: Vec<Missing>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) sources: Vec<Source>,
    pub(crate) kept: Vec<u8>,
    /// Rows of pages that were read before, which go to the cache with those that are missing: table, row, and byte of
    /// `kept`.
    pub(crate) carried: Vec<(u32, u64, usize)>,
    /// Slots that were used.
    pub(crate) used: Vec<Used>,
    /// Its rows are about to change, so they are not taken into the cache.
    pub(crate) is_to_change: bool,
    rows: HashMap<(u32, u64), u32>,
    unit_numbers: HashMap<UnitKey, u32>,
}

impl Window {
    /// For rows that are about to change.
    pub(crate) fn to_change() -> Window {
        Window {
            is_to_change: true,
            ..Window::default()
        }
    }

    /// A row of the table with this number that is not in memory; its number among those.
    pub(crate) fn miss(&mut self, number: u32, served: &Served, row: u64) -> u32 {
        let next = self.missing.len() as u32;
        let known = *self.rows.entry((number, row)).or_insert(next);
        if known == next {
            let (read, at) = served.table.unit_of(row);
            let key = UnitKey {
                table: number,
                served: served.id,
                unit: read.key,
            };
            let next_unit = self.units.len() as u32;
            let unit = match served.table.is_packed() {
                true => *self.unit_numbers.entry(key).or_insert(next_unit),
                // A unit a row.
                false => next_unit,
            };
            if unit == next_unit {
                self.units.push((key, read));
            }
            self.missing.push(Missing {
                table: number,
                row,
                unit,
                at,
            });
        }
        known
    }

    /// Whether the row's unit is another one than the last of the window.
    pub(crate) fn begins_unit(&self, number: u32, served: &Served, row: u64) -> bool {
        let unit = served.table.unit_of(row).0.key;
        (self.units.last()).is_none_or(|(key, _)| (key.table, key.unit) != (number, unit))
    }

    /// Has rows that lie in several pages read from those with which the pages are few.
    pub(crate) fn choose_pages(&mut self, tables: &[Served]) {
        let table_of = |missing: &Missing| &tables[missing.table as usize].table;
        let mut by_table: Vec<usize> = (0..self.missing.len())
            .filter(|&at| table_of(&self.missing[at]).replicated().is_some())
            .collect();
        if by_table.is_empty() {
            return;
        }
        // By row too, so that the choice does not depend on the order in which rows were asked for.
        by_table.sort_by_key(|&at| (self.missing[at].table, self.missing[at].row));
        let (mut chosen, mut slots) = (vec![None; self.missing.len()], Vec::new());
        for places in by_table.chunk_by(|&a, &b| self.missing[a].table == self.missing[b].table) {
            let table = table_of(&self.missing[places[0]]);
            let rows: Vec<u32> = places
                .iter()
                .map(|&at| self.missing[at].row as u32)
                .collect();
            let replicated = table.replicated().expect("filtered above");
            Chooser::new(replicated).choose(&rows, &mut slots);
            for (&at, &slot) in places.iter().zip(&slots) {
                chosen[at] = Some(table.unit_of_slot(slot));
            }
        }
        let before = std::mem::take(&mut self.units);
        self.unit_numbers.clear();
        for (missing, chosen) in self.missing.iter_mut().zip(chosen) {
            let (mut key, mut unit) = before[missing.unit as usize];
            if let Some((page, at)) = chosen {
                (key.unit, unit, missing.at) = (page.key, page, at);
            }
            let next = self.units.len() as u32;
            missing.unit = *self.unit_numbers.entry(key).or_insert(next);
            if missing.unit == next {
                self.units.push((key, unit));
            }
        }
    }

    /// A copy of a row that was carried here, with its state.
    pub(crate) fn carry(&mut self, number: u32, row: u64, record: &[u8]) -> Source {
        self.carried.push((number, row, self.kept.len()));
        self.keep(record)
    }

    /// A copy of a row that is in memory now.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Source {
        let at = self.kept.len();
        self.kept.extend_from_slice(bytes);
        Source::Kept(at)
    }
}
