//! Rows that a look-up carries along: of pages that it has read, for bags that come later. So a page is read once
//! a call, also where the call takes many windows.

use hashbrown::HashMap;
use outcore_engine::Reservation;

use crate::reading::Read;
use crate::row_cache::NO_SLOT;
use crate::served::{Served, Service};
use crate::table::Table;

/// Of a row that is carried, beside its bytes.
const BESIDE_BYTES: usize = 64;

/// Rows of the feature that a call goes on with.
#[derive(Default)]
pub(crate) struct Carried {
    feature: Option<usize>,
    /// Rows of the feature by their pages, and where it has each of them last; none where the budget has no room.
    wanted: Vec<(u64, u64, usize)>,
    rows: HashMap<u64, Box<[u8]>>,
    bytes: usize,
    _held: Option<Reservation>,
}

impl Carried {
    fn of(set: &Service, table: &Table, feature: usize, rows: &[u64]) -> Carried {
        let bytes = size_of::<(u64, u64, usize)>() * rows.len() + set.listed_bytes;
        let Ok(held) = set.hold_numbers(bytes as u64) else {
            return Carried {
                feature: Some(feature),
                ..Carried::default()
            };
        };
        let mut wanted: Vec<_> = (rows.iter().zip(0..))
            .map(|(&row, position)| (table.unit_of(row).0.key, row, position))
            .collect();
        // The last of each row comes first, and stays.
        wanted.sort_unstable_by_key(|&(page, row, position)| (page, row, usize::MAX - position));
        wanted.dedup_by_key(|(_, row, _)| *row);
        Carried {
            feature: Some(feature),
            wanted,
            _held: held,
            ..Carried::default()
        }
    }

    /// Takes rows out of what was read that the feature has from this position on, as far as there is room.
    pub(crate) fn take(
        &mut self,
        set: &Service,
        served: &Served,
        (feature, position): (usize, usize),
        rows: &[u64],
        read: &Read,
    ) {
        let table = &served.table;
        let units = read.window.units.iter().zip(0..);
        let mut pages = units
            .filter(|((key, _), _)| key.served == served.id)
            .peekable();
        if !table.is_packed() || table.replicated().is_some() || pages.peek().is_none() {
            return;
        }
        if self.feature != Some(feature) {
            *self = Carried::default();
            *self = Carried::of(set, table, feature, rows);
        }
        let cache = served.cache.seen();
        for ((key, _), number) in pages {
            let first = self.wanted.partition_point(|(page, ..)| *page < key.unit);
            let of_page = self.wanted[first..].iter();
            for &(_, row, last) in of_page.take_while(|(page, ..)| *page == key.unit) {
                let is_wanted = last >= position && cache.find(row) == NO_SLOT;
                if !is_wanted || self.rows.contains_key(&row) {
                    continue;
                }
                self.bytes += table.record_bytes() + BESIDE_BYTES;
                if self.bytes > set.listed_bytes {
                    return;
                }
                if let Ok(bytes) = read.unit(number) {
                    let record = &bytes[table.unit_of(row).1..][..table.record_bytes()];
                    self.rows.insert(row, record.into());
                }
            }
        }
    }

    /// A row, with its state, if it is carried for this feature.
    pub(crate) fn row(&self, feature: usize, row: u64) -> Option<&[u8]> {
        let record = self.rows.get(&row)?;
        (self.feature == Some(feature)).then_some(record)
    }
}
