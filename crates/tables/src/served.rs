//! What all look-ups of a set share: its tables, what is being read, and the limits of reading.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outcore_core::{Error, Result, Session};
use outcore_device::Locked;
use outcore_engine::{Arrivals, GatherOptions, Item, Reservation};

use crate::gate::{Gate, Shared};
use crate::in_flight::{InFlight, UnitKey};
use crate::look_up::{Bagged, Feature};
use crate::readers::Readers;
use crate::reading::Outcome;
use crate::row_cache::{RowCache, SharedCache};
use crate::table::{Table, Unit};
use crate::window::{MISSING_BYTES, Source, Window};

pub(crate) const OPTIONS: GatherOptions = GatherOptions {
    gap_bytes: 4 << 10,
    request_bytes: 128 << 10,
    cache: false,
};

/// Of a call, what is not counted: as much as it takes for itself.
const UNCOUNTED_BYTES: u64 = 1 << 20;

/// Of a row that will be looked up: its time and number, and its entries in the tables of the policy.
const USE_BYTES: u64 = 96;

/// A table with its rows in memory.
#[derive(Clone)]
pub(crate) struct Served {
    /// Unique in the set, also among tables that were served before under the same number.
    pub(crate) id: u32,
    pub(crate) table: Table,
    pub(crate) cache: Arc<SharedCache>,
    pub(crate) counters: Arc<Counters>,
    /// Of a table that is written.
    pub(crate) gate: Option<Arc<Gate>>,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) looked_up: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) units: AtomicU64,
    pub(crate) replicas_lost: AtomicU64,
}

impl Served {
    pub(crate) fn new(id: u32, table: Table, cache: RowCache) -> Served {
        Served {
            id,
            gate: table.is_written().then(Arc::default),
            table,
            cache: Arc::new(SharedCache::new(cache)),
            counters: Arc::default(),
        }
    }
}

/// The tables of a set, as a call sees them from its beginning to its end.
pub(crate) type Tables = Arc<Vec<Served>>;

pub(crate) struct Service {
    /// Of the budget from which calls take what they hold for themselves.
    outer: Session,
    /// With the part of the budget for what is being read.
    pub(crate) session: Session,
    tables: Mutex<Tables>,
    pub(crate) in_flight: InFlight,
    pub(crate) readers: Readers,
    /// Units of a window, and bytes of what it lists: rows that are missing, and rows that are kept for bags that wait.
    pub(crate) units_at_once: usize,
    pub(crate) listed_bytes: usize,
}

impl Service {
    pub(crate) fn new(
        [outer, session]: [Session; 2],
        tables: Vec<Served>,
        readers: usize,
        units_at_once: usize,
        listed_bytes: usize,
    ) -> Service {
        Service {
            outer,
            session,
            tables: Mutex::new(Arc::new(tables)),
            in_flight: InFlight::default(),
            readers: Readers::new(readers),
            units_at_once,
            listed_bytes,
        }
    }

    pub(crate) fn tables(&self) -> Tables {
        Arc::clone(&self.tables.locked())
    }

    /// Calls that begin from now on see other tables under these numbers: all that are new, if each of them
    /// passes the check.
    pub(crate) fn replace(
        &self,
        new: Vec<(usize, Table)>,
        check: impl Fn(&Table, &Table) -> Result<()>,
        mut serve: impl FnMut(&Served, Table) -> Served,
    ) -> Result<()> {
        let mut tables = self.tables.locked();
        for (number, table) in &new {
            check(&served(&tables, *number)?.table, table)?;
        }
        let tables = Arc::make_mut(&mut tables);
        for (number, table) in new {
            tables[number] = serve(&tables[number], table);
        }
        Ok(())
    }

    /// Memory for the numbers of a call, in the form in which it is carried out.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub(crate) fn hold_numbers(&self, bytes: u64) -> Result<Option<Reservation>> {
        match bytes > UNCOUNTED_BYTES {
            true => Ok(Some(
                self.outer.engine().reserve("the ids of a call", bytes)?,
            )),
            false => Ok(None),
        }
    }

    /// Memory for what is known of uses to come.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub(crate) fn hold_uses(&self, uses: usize) -> Result<Reservation> {
        let bytes = uses as u64 * USE_BYTES;
        Ok(self
            .outer
            .engine()
            .reserve("rows that will be looked up", bytes.max(1))?)
    }

    pub(crate) fn is_full(&self, window: &Window) -> bool {
        let waiting = window.kept.len() + size_of::<Source>() * window.sources.len();
        let listed = waiting + MISSING_BYTES * window.missing.len();
        window.units.len() >= self.units_at_once || listed >= self.listed_bytes
    }

    pub(crate) fn gather(&self, tables: &[Served], units: &[&(UnitKey, Unit)]) -> Result<Arrivals> {
        let items: Vec<Item<'_>> = units
            .iter()
            .map(|(key, unit)| item_of(&tables[key.table as usize].table, unit))
            .collect();
        for (key, _) in units {
            let counters = &tables[key.table as usize].counters;
            counters.units.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.session.engine().gather_alone(&items, &OPTIONS)?)
    }

    /// Reads one unit by itself.
    pub(crate) fn read_again(
        &self,
        table: &Table,
        unit: &Unit,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        let mut bytes = vec![0; unit.len];
        let read = self.session.engine().gather_into(
            &[item_of(table, unit)],
            &mut bytes,
            &OPTIONS,
            &mut *go_on,
        );
        match read
            .map_err(Error::from)
            .and_then(|()| table.verify(unit, &bytes))
        {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            came => Ok(came.map(|()| bytes.into()).map_err(Arc::new)),
        }
    }
}

fn item_of<'a>(table: &'a Table, unit: &Unit) -> Item<'a> {
    Item {
        extent: table.extent(unit.file),
        offset: unit.offset,
        len: unit.len,
    }
}

/// One of the tables.
///
/// # Errors
/// [`Error::Value`].
pub(crate) fn served(tables: &[Served], number: usize) -> Result<&Served> {
    tables.get(number).ok_or_else(|| {
        let count = tables.len();
        Error::value(format!("table {number} of a set of {count}"))
    })
}

/// Keeps tables of these numbers from changing. Each lock is taken once.
///
/// # Errors
/// [`Error::Cancelled`].
pub(crate) fn shared<'t>(
    tables: &'t [Served],
    numbers: impl Iterator<Item = usize>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<Shared<'t>>> {
    let mut written: Vec<usize> = numbers
        .filter(|&number| tables[number].gate.is_some())
        .collect();
    written.sort_unstable();
    written.dedup();
    let gates = written
        .iter()
        .filter_map(|&number| tables[number].gate.as_ref());
    gates.map(|gate| gate.shared(go_on)).collect()
}

/// Features in the form in which they are carried out.
///
/// # Errors
/// [`Error::Value`] and [`Error::Shape`], for ids and offsets that do not fit.
pub(crate) fn bagged(tables: &[Served], features: &[Feature<'_>]) -> Result<Vec<Bagged>> {
    let of = |feature: &Feature<'_>| {
        let table = &served(tables, feature.table)?.table;
        Bagged::of(feature, table.name(), table.rows())
    };
    features.iter().map(of).collect()
}
