//! A window whose units are being read, by this look-up and by others that need them too.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use outcore_core::{Error, Result};
use outcore_engine::Arrivals;

use crate::in_flight::{Claims, Inbox, UnitKey};
use crate::readers::CHECK_EVERY;
use crate::served::{Served, Service};
use crate::table::{Table, Unit};
use crate::window::{Missing, Window};

/// A window whose units are being read.
pub(crate) struct Reading<'a> {
    set: &'a Service,
    tables: &'a [Served],
    read: Read,
    claims: Claims<'a>,
    inbox: Arc<Inbox>,
    theirs: Vec<u32>,
    has_landed: bool,
}

/// A window and its units, which are there, or known to be lost, once it was read.
pub(crate) struct Read {
    pub(crate) window: Window,
    arrivals: Option<Arrivals>,
    /// Number among the arrivals of each unit.
    mine: Vec<u32>,
    /// What did not come by the arrivals.
    others: HashMap<u32, Outcome>,
    /// Rows, by table and number, whose page of replicas is lost: what their own pages have of them.
    from_own_pages: HashMap<(u32, u64), Outcome>,
}

pub(crate) type Outcome = std::result::Result<Arc<[u8]>, Arc<Error>>;

const NOT_MINE: u32 = u32::MAX;

impl<'a> Reading<'a> {
    pub(crate) fn begin(
        set: &'a Service,
        tables: &'a [Served],
        mut window: Window,
    ) -> Result<Reading<'a>> {
        window.choose_pages(tables);
        let (inbox, mut theirs) = (Arc::<Inbox>::default(), Vec::new());
        let keys = window.units.iter().map(|(key, _)| *key);
        let claims = set.in_flight.claim(keys, &inbox, &mut theirs);
        let mut mine = vec![0; window.units.len()];
        theirs
            .iter()
            .for_each(|&unit| mine[unit as usize] = NOT_MINE);
        let own: Vec<&(UnitKey, Unit)> = window
            .units
            .iter()
            .zip(&mine)
            .filter(|(_, mine)| **mine != NOT_MINE)
            .map(|(unit, _)| unit)
            .collect();
        let arrivals = match own.is_empty() {
            true => None,
            false => Some(set.gather(tables, &own)?),
        };
        mine.iter_mut()
            .filter(|mine| **mine != NOT_MINE)
            .zip(0..)
            .for_each(|(mine, number)| *mine = number);
        let read = Read {
            window,
            arrivals,
            mine,
            others: HashMap::new(),
            from_own_pages: HashMap::new(),
        };
        Ok(Reading {
            set,
            tables,
            read,
            claims,
            inbox,
            theirs,
            has_landed: false,
        })
    }

    /// Reads what a window lacks into the caches, and empties it.
    pub(crate) fn load(
        set: &Service,
        tables: &[Served],
        window: &mut Window,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let window = std::mem::take(window);
        if window.units.is_empty() {
            return Ok(());
        }
        let _permit = set.readers.acquire(go_on)?;
        Reading::begin(set, tables, window)?.finish(go_on).map(drop)
    }

    /// Whether other look-ups read some of its units.
    pub(crate) fn needs_others(&self) -> bool {
        !self.theirs.is_empty()
    }

    /// Waits for the units that it reads itself, verifies them, takes their rows into the cache, and hands
    /// them to other look-ups.
    pub(crate) fn land(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        if std::mem::replace(&mut self.has_landed, true) {
            return Ok(());
        }
        let read = &mut self.read;
        if let Some(arrivals) = &mut read.arrivals {
            wait_for_all(arrivals, go_on)?;
        }
        // What ends here hands nothing over, and the others read it themselves.
        read.verify(self.set, self.tables, go_on)?;
        read.replace_replicas(self.set, self.tables, go_on)?;
        read.remember(self.tables);
        let numbers = OnceCell::new();
        self.claims.deliver(|key| {
            let numbers: &HashMap<UnitKey, u32> = numbers.get_or_init(|| {
                let units = read.window.units.iter().zip(0..);
                units.map(|((key, _), number)| (*key, number)).collect()
            });
            Some(read.unit(*numbers.get(&key)?).map(Arc::from))
        });
        Ok(())
    }

    /// Waits for the units that other look-ups read. They wait for those of this one perhaps, so all that
    /// the caller reads besides must have landed.
    pub(crate) fn finish(mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Read> {
        self.land(go_on)?;
        let Reading {
            set,
            tables,
            mut read,
            inbox,
            theirs,
            ..
        } = self;
        if theirs.is_empty() {
            return Ok(read);
        }
        for (number, delivery) in inbox.wait(theirs.len(), go_on).ok_or(Error::Cancelled)? {
            let (key, unit) = read.window.units[number as usize];
            let table = &tables[key.table as usize].table;
            let came = match delivery {
                Some(came) => came,
                None => set.read_again(table, &unit, go_on)?,
            };
            read.others.insert(number, came);
        }
        read.replace_replicas(set, tables, go_on)?;
        read.remember(tables);
        Ok(read)
    }
}

fn wait_for_all(arrivals: &mut Arrivals, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
    loop {
        while !arrivals.ready_within(CHECK_EVERY) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
        }
        match arrivals.next() {
            Some(arrived) => _ = arrived?,
            None => return Ok(()),
        }
    }
}

impl Read {
    /// The bytes of a unit.
    pub(crate) fn unit(&self, number: u32) -> std::result::Result<&[u8], Arc<Error>> {
        if let Some(came) = self.others.get(&number) {
            return came.as_deref().map_err(Arc::clone);
        }
        let arrived = self
            .arrivals
            .as_ref()
            .and_then(|arrivals| arrivals.get(self.mine[number as usize] as usize));
        Ok(arrived.expect("what failed is among the others"))
    }

    /// The bytes of a row that was missing, without its state.
    pub(crate) fn row(
        &self,
        tables: &[Served],
        missing: u32,
    ) -> std::result::Result<&[u8], Arc<Error>> {
        let missing = &self.window.missing[missing as usize];
        let table = &tables[missing.table as usize].table;
        Ok(&self.record(table, missing)?[..table.row_bytes()])
    }

    /// The bytes of a row that was missing, with its state.
    fn record(&self, table: &Table, missing: &Missing) -> std::result::Result<&[u8], Arc<Error>> {
        if let Some(came) = self.from_own_pages.get(&(missing.table, missing.row)) {
            return came.as_deref().map_err(Arc::clone);
        }
        Ok(&self.unit(missing.unit)?[missing.at..][..table.record_bytes()])
    }

    /// Whether a unit was read, or is known to be lost.
    fn has_come(&self, unit: u32) -> bool {
        self.mine[unit as usize] != NOT_MINE || self.others.contains_key(&unit)
    }

    /// Reads once more, by itself, what failed together with others or has another checksum than it should.
    fn verify(
        &mut self,
        set: &Service,
        tables: &[Served],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let Some(arrivals) = &self.arrivals else {
            return Ok(());
        };
        for (number, (key, unit)) in self.window.units.iter().enumerate() {
            let mine = self.mine[number];
            if mine == NOT_MINE {
                continue;
            }
            let table = &tables[key.table as usize].table;
            let is_sound = match arrivals.get(mine as usize) {
                Some(bytes) => table.verify(unit, bytes).is_ok(),
                None => false,
            };
            if !is_sound {
                let came = set.read_again(table, unit, go_on)?;
                self.others.insert(number as u32, came);
            }
        }
        Ok(())
    }

    /// Reads rows of lost pages of replicas from the pages that have every row. Of these pages, which may be many
    /// more, one is in memory at a time.
    fn replace_replicas(
        &mut self,
        set: &Service,
        tables: &[Served],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        if self.others.values().all(Outcome::is_ok) {
            return Ok(());
        }
        let mut lost: Vec<(u32, Unit, usize, u64)> = Vec::new();
        for missing in &self.window.missing {
            let (own, at) = tables[missing.table as usize].table.unit_of(missing.row);
            let is_replica = self.window.units[missing.unit as usize].1 != own;
            if is_replica && matches!(self.others.get(&missing.unit), Some(Err(_))) {
                lost.push((missing.table, own, at, missing.row));
            }
        }
        lost.retain(|&(table, .., row)| !self.from_own_pages.contains_key(&(table, row)));
        lost.sort_unstable_by_key(|&(table, own, ..)| (table, own.key));
        for of_page in lost.chunk_by(|one, next| (one.0, one.1.key) == (next.0, next.1.key)) {
            let (number, own, ..) = of_page[0];
            let Served {
                table, counters, ..
            } = &tables[number as usize];
            counters.units.fetch_add(1, Ordering::Relaxed);
            counters
                .replicas_lost
                .fetch_add(of_page.len() as u64, Ordering::Relaxed);
            let page = set.read_again(table, &own, go_on)?;
            for &(.., at, row) in of_page {
                let record = match &page {
                    Ok(page) => Ok(Arc::from(&page[at..][..table.record_bytes()])),
                    Err(error) => Err(Arc::clone(error)),
                };
                self.from_own_pages.insert((number, row), record);
            }
        }
        Ok(())
    }

    /// Takes rows into the cache; those whose units others read follow when they have come.
    fn remember(&self, tables: &[Served]) {
        if self.window.is_to_change {
            return;
        }
        for of_table in self
            .window
            .missing
            .chunk_by(|one, next| one.table == next.table)
        {
            let served = &tables[of_table[0].table as usize];
            let mut cache = served.cache.changed();
            if cache.slots() == 0 || !cache.is_of(served.id) {
                continue;
            }
            for missing in of_table {
                if self.has_come(missing.unit)
                    && let Ok(record) = self.record(&served.table, missing)
                {
                    cache.insert(missing.row, record);
                }
            }
        }
        for of_table in self.window.carried.chunk_by(|one, next| one.0 == next.0) {
            let served = &tables[of_table[0].0 as usize];
            let mut cache = served.cache.changed();
            if cache.is_of(served.id) {
                for &(_, row, at) in of_table {
                    cache.insert(row, &self.window.kept[at..][..served.table.record_bytes()]);
                }
            }
        }
        for used in &self.window.used {
            let cache = &tables[used.table as usize].cache;
            cache.changed().used(used.epoch, &used.slots);
        }
    }
}
