//! Tables that are looked up together, within one part of the budget.
//!
//! A look-up goes through its bags in order, in *windows*. Bags whose rows are all in memory become rows of
//! the result at once. Those of others wait: what is missing is listed, read with all requests in flight,
//! and then added up in the order of the bag. While one window is added up the next is being read, so the
//! device has no pause. What of it is common to several look-ups at a time is read once.
//!
//! ```text
//!   ids -> bags -> rows in memory ----------------------------------------> result
//!                 \-> missing rows -> units, once each -> gather -> rows --/
//!                                     (or from the look-up that reads them)  \-> cache
//! ```
//!
//! Sums are of float32, in the order of the bag, whatever is in memory and however many look-ups go on:
//! the same bits each time.
//!
//! After Wilkening et al., RecSSD: Near Data Processing for Solid State Drive Based Recommendation
//! Inference (ASPLOS 2021), whose host side this is.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use outcore_core::{Error, Result, Session};
use outcore_device::Locked;
use outcore_engine::cache::PolicyKind;
use outcore_engine::{Arrivals, GatherOptions, Item, Reservation};

use crate::in_flight::{Claims, InFlight, Inbox, UnitKey};
use crate::look_up::{Bagged, Bags, Feature};
use crate::pending::{Pending, Pool};
use crate::pool::{self, Out};
use crate::row_cache::{NO_SLOT, RowCache, SharedCache};
use crate::shares::Shares;
use crate::table::{Table, Unit};
use crate::window::{Piece, Source, Used, Window};

/// Rows that are looked for in the cache at once.
const BLOCK: usize = 2048;
/// Of a window: more would leave the processor's caches before they are added up.
const UNITS_MAX: usize = 4096;
/// Windows of one look-up that are in memory: one is added up, one is being read.
const WINDOWS: usize = 2;
/// Tables of a window for each unit: its place in lists and maps.
const UNIT_BESIDE_BYTES: u64 = 400;
const CHECK_EVERY: Duration = Duration::from_millis(50);
const OPTIONS: GatherOptions = GatherOptions {
    gap_bytes: 4 << 10,
    request_bytes: 128 << 10,
    cache: false,
};

/// How tables are served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serving {
    /// Bytes for rows in memory, with their tables; `None` for an eighth of the session's budget. Several
    /// tables divide them by what it saves, again and again.
    pub cache_bytes: Option<u64>,
    /// Which rows stay.
    pub policy: PolicyKind,
    /// Bytes for what is being read; `None` for an eighth of the budget, of 64 MiB at most.
    pub reading_bytes: Option<u64>,
    /// Look-ups that read at a time; others wait for them.
    pub readers: usize,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving {
            cache_bytes: None,
            policy: PolicyKind::S3Fifo,
            reading_bytes: None,
            readers: 2,
        }
    }
}

/// Tables that are looked up together. Clones are the same set; it may be used from any thread.
#[derive(Clone)]
pub struct TableSet {
    inner: Arc<Inner>,
    /// Not of the handles that submitted work has, which would keep its threads for ever.
    pool: Option<Arc<OnceLock<Pool>>>,
}

pub(crate) struct Inner {
    /// With the part of the budget for what is being read.
    session: Session,
    pub(crate) served: Vec<Served>,
    shares: Shares,
    in_flight: InFlight,
    readers: Readers,
    threads: usize,
    /// Units of a window, and bytes of rows that are kept in it for bags that wait.
    units_at_once: usize,
    kept_bytes: usize,
    time: AtomicU64,
    _reading: Reservation,
    _cache: Reservation,
}

/// A table with its rows in memory.
pub(crate) struct Served {
    pub(crate) table: Table,
    pub(crate) cache: SharedCache,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    looked_up: AtomicU64,
    hits: AtomicU64,
    units: AtomicU64,
}

/// What was done with a table since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Row numbers that were looked up, duplicates counted.
    pub looked_up: u64,
    /// Of those, the rows that were in memory.
    pub hits: u64,
    /// Units that were read: rows, or pages of a packed table.
    pub units_read: u64,
    /// Rows that are in memory.
    pub cached_rows: u64,
    /// Rows that have room in memory.
    pub cache_rows: u64,
}

/// A bag that could not be looked up.
#[derive(Debug)]
pub struct Failure {
    /// Number of its feature in the call.
    pub feature: usize,
    /// Its number there.
    pub bag: usize,
    /// Why, with table, row and file.
    pub error: Error,
}

/// How many look-ups may read.
struct Readers {
    free: Mutex<usize>,
    changed: Condvar,
}

struct Turn<'a>(&'a Readers);

impl Readers {
    fn turn(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Turn<'_>> {
        let mut free = self.free.locked();
        while *free == 0 {
            let (again, late) = self
                .changed
                .wait_timeout(free, CHECK_EVERY)
                .expect("a holder of the lock panicked");
            free = again;
            if late.timed_out() && !go_on() {
                return Err(Error::Cancelled);
            }
        }
        *free -= 1;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.locked() += 1;
        self.0.changed.notify_one();
    }
}

impl TableSet {
    /// Serves tables with memory of the session, which is reserved now.
    ///
    /// # Errors
    /// [`Error::OverBudget`]; [`Error::Value`] for no readers.
    pub fn new(session: &Session, tables: Vec<Table>, serving: Serving) -> Result<TableSet> {
        let whole = session.memory_bytes();
        let cache_bytes = serving.cache_bytes.unwrap_or(whole / 8);
        let reading_bytes = serving
            .reading_bytes
            .unwrap_or((whole / 8).min(64 << 20))
            .max(1 << 20);
        if serving.readers == 0 {
            return Err(Error::value("0 look-ups at a time"));
        }
        let held = session
            .engine()
            .reserve("rows of tables in memory", cache_bytes)?;
        let part = session.part(reading_bytes)?;
        // As long as this is held, the part is the set's.
        let reading = part.engine().reserve("look-ups", 1)?;
        let longest = tables.iter().map(unit_bytes).max().unwrap_or(PAGE) + UNIT_BESIDE_BYTES;
        let window_bytes = (reading_bytes - PAGE) / (serving.readers * WINDOWS) as u64;
        // Frames may be twice as long as what is read into them.
        let units_at_once = (window_bytes / 8 * 7 / 2 / longest) as usize;
        if units_at_once == 0 {
            let (needed, budget) = (
                3 * longest * (serving.readers * WINDOWS) as u64 + PAGE,
                reading_bytes,
            );
            return Err(Error::OverBudget {
                what: "what is being read of tables".into(),
                needed,
                available: budget,
                budget,
            });
        }
        let served: Vec<Served> = tables
            .into_iter()
            .map(|table| Served {
                cache: SharedCache::new(RowCache::new(
                    table.row_bytes(),
                    table.rows(),
                    serving.policy,
                )),
                table,
                counters: Counters::default(),
            })
            .collect();
        let inner = Inner {
            session: part,
            shares: Shares::new(&served, cache_bytes, serving.policy),
            served,
            in_flight: InFlight::default(),
            readers: Readers {
                free: Mutex::new(serving.readers),
                changed: Condvar::new(),
            },
            threads: serving.readers,
            units_at_once: units_at_once.min(UNITS_MAX),
            kept_bytes: (window_bytes / 8) as usize,
            time: AtomicU64::new(0),
            _reading: reading,
            _cache: held,
        };
        Ok(TableSet {
            inner: Arc::new(inner),
            pool: Some(Arc::default()),
        })
    }

    /// Has a thread of the set carry out work on it, such as a [`look_up`](TableSet::look_up), while the
    /// caller goes on. There are as many threads as readers.
    ///
    /// # Errors
    /// [`Error::Failed`] where the system has no threads, and in submitted work itself.
    pub fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TableSet, &mut dyn FnMut() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<Pending<T>> {
        let Some(pool) = &self.pool else {
            let what = "submitted work submits work".into();
            return Err(Error::Failed { what });
        };
        if pool.get().is_none() {
            let _ = pool.set(Pool::new(self.inner.threads)?);
        }
        let set = TableSet {
            inner: Arc::clone(&self.inner),
            pool: None,
        };
        let pool = pool.get().expect("made above");
        Ok(pool.submit(move |go_on| work(&set, go_on)))
    }

    /// Number of tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.served.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of the tables.
    ///
    /// # Panics
    /// Without such a one.
    #[must_use]
    pub fn table(&self, number: usize) -> &Table {
        &self.inner.served[number].table
    }

    /// What was done with a table.
    ///
    /// # Panics
    /// Without such a one.
    #[must_use]
    pub fn statistics(&self, number: usize) -> Statistics {
        let Served {
            cache, counters, ..
        } = &self.inner.served[number];
        let cache = cache.seen();
        Statistics {
            looked_up: counters.looked_up.load(Ordering::Relaxed),
            hits: counters.hits.load(Ordering::Relaxed),
            units_read: counters.units.load(Ordering::Relaxed),
            cached_rows: u64::from(cache.len()),
            cache_rows: u64::from(cache.slots()),
        }
    }

    /// Looks features up: the rows of each one's bags go to its `out`. All bags that can be had are; those
    /// that cannot are NaN there, and returned with the reason. `go_on` is asked every 50 ms or so.
    ///
    /// # Errors
    /// [`Error::Value`] and [`Error::Shape`] for ids, offsets and results that do not fit, before anything
    /// is read; [`Error::Cancelled`]; those of the engine.
    pub fn look_up(
        &self,
        features: &[Feature<'_>],
        out: &mut [Out<'_>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Failure>> {
        self.look_up_at(features, out, None, go_on)
    }

    /// As [`look_up`](TableSet::look_up), of what was [announced](TableSet::prefetch) for this time.
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn look_up_at(
        &self,
        features: &[Feature<'_>],
        out: &mut [Out<'_>],
        time: Option<u64>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Failure>> {
        if features.len() != out.len() {
            let (features, out) = (features.len(), out.len());
            return Err(Error::shape(format!(
                "{out} results for {features} features"
            )));
        }
        let bagged = features
            .iter()
            .map(|feature| self.inner.bagged(feature))
            .collect::<Result<Vec<Bagged>>>()?;
        let mut call = Call {
            set: &self.inner,
            features,
            bagged: &bagged,
            out,
            at: (0, 0, 0),
            sums: HashMap::new(),
            waiting: None,
            failures: Vec::new(),
            slots: Vec::new(),
        };
        call.run(go_on)?;
        self.inner
            .shares
            .note(&self.inner.served, features, &bagged);
        if let Some(time) = time {
            self.inner.passed(features, time);
        }
        Ok(call.failures)
    }

    /// Reads rows that are going to be looked up into memory, where they stay until then if there is room;
    /// the time at which they are, for [`look_up_at`](TableSet::look_up_at). Times are to be used in this
    /// order. What cannot be read is left to the look-up.
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn prefetch(
        &self,
        features: &[Feature<'_>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let set = &self.inner;
        let bagged = features
            .iter()
            .map(|feature| set.bagged(feature))
            .collect::<Result<Vec<Bagged>>>()?;
        let time = set.time.fetch_add(1, Ordering::Relaxed) + 1;
        let mut window = Window::default();
        for (feature, bagged) in features.iter().zip(&bagged) {
            let served = &set.served[feature.table];
            for rows in bagged.rows.chunks(BLOCK) {
                let mut missing = Vec::new();
                let mut cache = served.cache.changed();
                for &row in rows {
                    cache.will_use(row, time);
                    if cache.slots() > 0 && cache.find(row) == NO_SLOT {
                        missing.push(row);
                    }
                }
                drop(cache);
                for row in missing {
                    window.miss(feature.table as u32, &served.table, row);
                    if window.units.len() == set.units_at_once {
                        set.load(&mut window, go_on)?;
                    }
                }
            }
        }
        set.load(&mut window, go_on)?;
        Ok(time)
    }

    /// Rows that are to stay in memory whatever comes, such as those that a profile found to be looked up
    /// most; how many of them have room.
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn keep(&self, table: usize, rows: &[u64], go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        let set = &self.inner;
        let served = &set.served[table];
        let ids: Vec<i64> = rows
            .iter()
            .map(|&row| row.try_into().unwrap_or(i64::MAX))
            .collect();
        let feature = Feature {
            table,
            ids: crate::Ids::I64(&ids),
            bags: Bags::Each,
            mode: crate::Pooling::Sum,
            weights: None,
            padding: None,
        };
        let mut kept = 0;
        for rows in set.bagged(&feature)?.rows.chunks(set.units_at_once) {
            let mut window = Window::default();
            let is_missing = |row: &&u64| served.cache.seen().find(**row) == NO_SLOT;
            for &row in rows.iter().filter(is_missing) {
                window.miss(table as u32, &served.table, row);
            }
            set.load(&mut window, go_on)?;
            let mut cache = served.cache.changed();
            kept += rows.iter().filter(|row| cache.keep(**row)).count() as u64;
        }
        Ok(kept)
    }

    /// Reads rows as they are stored, one behind another.
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up), but for the first row that cannot be had; [`Error::Shape`] where
    /// the rows do not make `into`.
    pub fn read_stored(
        &self,
        table: usize,
        rows: &[u64],
        into: &mut [u8],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let set = &self.inner;
        let served = &set.served[table];
        let row_bytes = served.table.row_bytes();
        if rows.len().checked_mul(row_bytes) != Some(into.len()) {
            let (count, have) = (rows.len(), into.len());
            return Err(Error::shape(format!(
                "{count} rows of {row_bytes} bytes for {have} bytes"
            )));
        }
        if let Some(row) = rows.iter().find(|row| **row >= served.table.rows()) {
            let name = served.table.name();
            return Err(Error::value(format!("{name} has no row {row}")));
        }
        let _turn = set.readers.turn(go_on)?;
        let parts = rows
            .chunks(set.units_at_once)
            .zip(into.chunks_mut(set.units_at_once * row_bytes));
        for (rows, into) in parts {
            let mut window = Window::default();
            let missing: Vec<u32> = rows
                .iter()
                .map(|&row| window.miss(table as u32, &served.table, row))
                .collect();
            let read = Reading::begin(set, window)?.finish(go_on)?;
            for ((missing, into), row) in missing
                .into_iter()
                .zip(into.chunks_exact_mut(row_bytes))
                .zip(rows)
            {
                let stored = read.row(set, missing);
                let stored = stored
                    .map_err(|error| crate::error::of_row(served.table.name(), *row, &error))?;
                into.copy_from_slice(stored);
            }
        }
        Ok(())
    }
}

const PAGE: u64 = 4096;

/// What a unit takes of memory while it is read, at most: whole sectors, and the gap to the next one.
fn unit_bytes(table: &Table) -> u64 {
    let (unit, _) = table.unit_of(0);
    let block = u64::from(table.extent(unit.file).block());
    (unit.len as u64).next_multiple_of(block) + block + OPTIONS.gap_bytes
}

impl Inner {
    fn bagged(&self, feature: &Feature<'_>) -> Result<Bagged> {
        let Some(served) = self.served.get(feature.table) else {
            let tables = self.served.len();
            return Err(Error::value(format!("table {} of {tables}", feature.table)));
        };
        Bagged::of(feature, served.table.name(), served.table.rows())
    }

    fn is_full(&self, window: &Window) -> bool {
        let waiting = window.kept.len() + size_of::<Source>() * window.sources.len();
        window.units.len() >= self.units_at_once || waiting >= self.kept_bytes
    }

    fn passed(&self, features: &[Feature<'_>], time: u64) {
        for feature in features {
            let mut cache = self.served[feature.table].cache.changed();
            cache.passed(time);
        }
    }

    /// Reads what a window lacks into the cache, and empties it.
    fn load(&self, window: &mut Window, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let window = std::mem::take(window);
        if window.units.is_empty() {
            return Ok(());
        }
        let _turn = self.readers.turn(go_on)?;
        Reading::begin(self, window)?.finish(go_on).map(drop)
    }

    fn gather(&self, units: &[&(UnitKey, Unit)]) -> Result<Arrivals> {
        let items: Vec<Item<'_>> = units
            .iter()
            .map(|(key, unit)| Item {
                extent: self.served[key.0 as usize].table.extent(unit.file),
                offset: unit.offset,
                len: unit.len,
            })
            .collect();
        for (key, _) in units {
            self.served[key.0 as usize]
                .counters
                .units
                .fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.session.engine().gather_alone(&items, &OPTIONS)?)
    }

    /// Reads one unit by itself.
    fn read_again(&self, key: UnitKey, unit: &Unit) -> Result<Arc<[u8]>> {
        let table = &self.served[key.0 as usize].table;
        let mut bytes = vec![0; unit.len];
        let item = Item {
            extent: table.extent(unit.file),
            offset: unit.offset,
            len: unit.len,
        };
        self.session
            .engine()
            .gather_into(&[item], &mut bytes, &OPTIONS, || true)?;
        table.verify(unit, &bytes)?;
        Ok(bytes.into())
    }
}

/// A window whose units are being read.
struct Reading<'a> {
    set: &'a Inner,
    read: Read,
    claims: Claims<'a>,
    inbox: Arc<Inbox>,
    theirs: Vec<u32>,
    has_landed: bool,
}

/// A window and its units, which are there, or known to be lost, once it was read.
struct Read {
    window: Window,
    arrivals: Option<Arrivals>,
    /// Number among the arrivals of each unit.
    mine: Vec<u32>,
    /// What did not come by the arrivals.
    others: HashMap<u32, std::result::Result<Arc<[u8]>, Arc<Error>>>,
}

const NOT_MINE: u32 = u32::MAX;

impl<'a> Reading<'a> {
    fn begin(set: &'a Inner, window: Window) -> Result<Reading<'a>> {
        let (inbox, mut theirs) = (Arc::<Inbox>::default(), Vec::new());
        let keys: Vec<UnitKey> = window.units.iter().map(|(key, _)| *key).collect();
        let claims = set.in_flight.claim(&keys, &inbox, &mut theirs);
        let mut mine = vec![0; keys.len()];
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
            false => Some(set.gather(&own)?),
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
        };
        Ok(Reading {
            set,
            read,
            claims,
            inbox,
            theirs,
            has_landed: false,
        })
    }

    /// Waits for the units that it reads itself, verifies them, takes their rows into the cache, and hands
    /// them to other look-ups.
    fn land(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        if std::mem::replace(&mut self.has_landed, true) {
            return Ok(());
        }
        let read = &mut self.read;
        if let Some(arrivals) = &mut read.arrivals {
            wait_for_all(arrivals, go_on)?;
        }
        read.verify(self.set);
        read.remember(self.set);
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

    /// Waits for the units that other look-ups read. They wait for those of this one perhaps, so whatever
    /// else the caller reads must have landed.
    fn finish(mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Read> {
        self.land(go_on)?;
        let Reading {
            set,
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
            let came = delivery.unwrap_or_else(|| set.read_again(key, &unit).map_err(Arc::new));
            read.others.insert(number, came);
        }
        read.remember(set);
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
    fn unit(&self, number: u32) -> std::result::Result<&[u8], Arc<Error>> {
        if let Some(came) = self.others.get(&number) {
            return came.as_deref().map_err(Arc::clone);
        }
        let arrived = self
            .arrivals
            .as_ref()
            .and_then(|arrivals| arrivals.get(self.mine[number as usize] as usize));
        Ok(arrived.expect("what failed is among the others"))
    }

    /// The bytes of a row that was missing.
    fn row(&self, set: &Inner, missing: u32) -> std::result::Result<&[u8], Arc<Error>> {
        let missing = &self.window.missing[missing as usize];
        let bytes = self.unit(missing.unit)?;
        Ok(&bytes[missing.at..][..set.served[missing.table as usize].table.row_bytes()])
    }

    /// Reads once more, by itself, what failed together with others or has another checksum than it should.
    fn verify(&mut self, set: &Inner) {
        let Some(arrivals) = &self.arrivals else {
            return;
        };
        for (number, (key, unit)) in self.window.units.iter().enumerate() {
            let mine = self.mine[number];
            if mine == NOT_MINE {
                continue;
            }
            let table = &set.served[key.0 as usize].table;
            let is_sound = match arrivals.get(mine as usize) {
                Some(bytes) => table.verify(unit, bytes).is_ok(),
                None => false,
            };
            if !is_sound {
                self.others
                    .insert(number as u32, set.read_again(*key, unit).map_err(Arc::new));
            }
        }
    }

    /// Takes rows into the cache; those whose units others read follow when they have come.
    fn remember(&self, set: &Inner) {
        for of_table in self
            .window
            .missing
            .chunk_by(|one, next| one.table == next.table)
        {
            let served = &set.served[of_table[0].table as usize];
            let row_bytes = served.table.row_bytes();
            let mut cache = served.cache.changed();
            if cache.slots() == 0 {
                continue;
            }
            for missing in of_table {
                let is_here = self.mine[missing.unit as usize] != NOT_MINE
                    || self.others.contains_key(&missing.unit);
                if is_here && let Ok(bytes) = self.unit(missing.unit) {
                    cache.insert(missing.row, &bytes[missing.at..][..row_bytes]);
                }
            }
        }
        for used in &self.window.used {
            let cache = &set.served[used.table as usize].cache;
            cache.changed().used(used.epoch, &used.slots);
        }
    }
}

/// One look-up.
struct Call<'c, 'f, 'o> {
    set: &'c Inner,
    features: &'c [Feature<'f>],
    bagged: &'c [Bagged],
    out: &'c mut [Out<'o>],
    /// Feature, bag, and position in the feature, that come next.
    at: (usize, usize, usize),
    /// Of bags that are in several windows.
    sums: HashMap<(usize, usize), Vec<f32>>,
    /// The last bag that has to wait.
    waiting: Option<(usize, usize)>,
    failures: Vec<Failure>,
    slots: Vec<u32>,
}

impl Call<'_, '_, '_> {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let set = self.set;
        let mut reading: VecDeque<Reading<'_>> = VecDeque::new();
        let mut turn = None;
        loop {
            while reading.len() < WINDOWS && self.at.0 < self.features.len() {
                let window = self.next_window();
                if window.units.is_empty() && window.pieces.is_empty() {
                    self.note(&window);
                    continue;
                }
                if turn.is_none() {
                    turn = Some(set.readers.turn(go_on)?);
                }
                reading.push_back(Reading::begin(set, window)?);
            }
            let Some(first) = reading.pop_front() else {
                return Ok(());
            };
            if !first.theirs.is_empty() {
                reading.iter_mut().try_for_each(|next| next.land(go_on))?;
            }
            let read = first.finish(go_on)?;
            self.add_up(&read);
        }
    }

    /// Notes what was used, unless others change the caches now.
    fn note(&self, window: &Window) {
        for used in &window.used {
            if let Some(mut cache) = self.set.served[used.table as usize].cache.changed_if_free() {
                cache.used(used.epoch, &used.slots);
            }
        }
    }

    /// Goes on until as many units are missing as are read at once, or everything was seen.
    fn next_window(&mut self) -> Window {
        let mut window = Window::default();
        while self.at.0 < self.features.len() && !self.set.is_full(&window) {
            self.next_block(&mut window);
        }
        window
    }

    /// Some rows of one feature.
    fn next_block(&mut self, window: &mut Window) {
        let (feature, mut bag, first) = self.at;
        let bagged = &self.bagged[feature];
        let number = self.features[feature].table;
        let served = &self.set.served[number];
        let end = (first + BLOCK).min(bagged.rows.len());
        let cache = served.cache.seen();
        let mut slots = std::mem::take(&mut self.slots);
        cache.find_all(&bagged.rows[first..end], &mut slots);
        let (mut at, mut hits) = (first, Vec::with_capacity(slots.len()));
        while bag < bagged.bags()
            && (at < end || bagged.starts[bag + 1] <= at)
            && !self.set.is_full(window)
        {
            let bags = self.bags_at_hand(feature, bag, at, &slots[at - first..]);
            if !bags.is_empty() {
                let reached = bagged.starts[bags.end];
                hits.extend_from_slice(&slots[at - first..reached - first]);
                self.add_bags(feature, bags.clone(), &cache, &slots[at - first..]);
                (bag, at) = (bags.end, reached);
                continue;
            }
            let positions = at..bagged.starts[bag + 1].min(end);
            let found = &slots[positions.start - first..positions.end - first];
            let waits = self.waiting == Some((feature, bag));
            at = match !waits && found.iter().all(|slot| *slot != NO_SLOT) {
                true => {
                    let rows: Vec<&[u8]> = found.iter().map(|&slot| cache.row(slot)).collect();
                    hits.extend_from_slice(found);
                    self.add_rows((feature, bag), positions.clone(), &rows);
                    positions.end
                }
                false => {
                    self.waiting = Some((feature, bag));
                    self.defer((feature, bag), positions, found, &cache, &mut hits, window)
                }
            };
            bag += usize::from(at == bagged.starts[bag + 1]);
        }
        let epoch = cache.epoch();
        drop(cache);
        self.slots = slots;
        let counters = &served.counters;
        counters
            .looked_up
            .fetch_add((at - first) as u64, Ordering::Relaxed);
        counters
            .hits
            .fetch_add(hits.len() as u64, Ordering::Relaxed);
        if !hits.is_empty() {
            let table = number as u32;
            window.used.push(Used {
                table,
                epoch,
                slots: hits,
            });
        }
        self.at = match bag == bagged.bags() {
            true => (feature + 1, 0, 0),
            false => (feature, bag, at),
        };
    }

    /// Whole bags from the next one on whose rows are all in memory.
    fn bags_at_hand(&self, feature: usize, bag: usize, at: usize, slots: &[u32]) -> Range<usize> {
        let starts = &self.bagged[feature].starts;
        let has_begun = starts[bag] != at || self.waiting == Some((feature, bag));
        if has_begun {
            return bag..bag;
        }
        let there = slots
            .iter()
            .position(|slot| *slot == NO_SLOT)
            .unwrap_or(slots.len());
        let whole = starts[bag + 1..]
            .iter()
            .take(BLOCK)
            .take_while(|end| **end <= at + there)
            .count();
        bag..bag + whole
    }

    /// Whole bags, by the slots of their rows.
    fn add_bags(&mut self, feature: usize, bags: Range<usize>, cache: &RowCache, slots: &[u32]) {
        let (bagged, asked) = (&self.bagged[feature], &self.features[feature]);
        let table = &self.set.served[asked.table].table;
        let (encoding, dim) = (table.encoding(), table.dim());
        let first = bagged.starts[bags.start];
        let (is_each, out) = (matches!(asked.bags, Bags::Each), &mut self.out[feature]);
        if is_each && out.is_stored_as(encoding) {
            return bags
                .zip(slots)
                .for_each(|(bag, &slot)| out.copy(bag, cache.row(slot), dim));
        }
        let ends: Vec<usize> = bagged.starts[bags.start + 1..=bags.end]
            .iter()
            .map(|end| end - first)
            .collect();
        let weights = bagged.weights(first..bagged.starts[bags.end]);
        let row = |number: usize| cache.row(slots[number]);
        match out.f32_rows(bags.clone(), dim) {
            Some(rows) => encoding.pool_bags(asked.mode, row, &ends, weights, rows),
            None => {
                let mut rows = vec![0.0; bags.len() * dim];
                encoding.pool_bags(asked.mode, row, &ends, weights, &mut rows);
                bags.zip(rows.chunks_exact(dim))
                    .for_each(|(bag, row)| out.put(bag, row));
            }
        }
    }

    /// Rows of a bag that has to wait for some of them, as far as there is room for what they need; the
    /// position behind the last.
    fn defer(
        &self,
        (feature, bag): (usize, usize),
        positions: Range<usize>,
        found: &[u32],
        cache: &RowCache,
        hits: &mut Vec<u32>,
        window: &mut Window,
    ) -> usize {
        let number = self.features[feature].table;
        let table = &self.set.served[number].table;
        let first_source = window.sources.len();
        let mut end = positions.start;
        for (&row, &slot) in self.bagged[feature].rows[positions.clone()]
            .iter()
            .zip(found)
        {
            if self.set.is_full(window) {
                break;
            }
            let source = match slot {
                NO_SLOT => Source::Missing(window.miss(number as u32, table, row)),
                slot => {
                    hits.push(slot);
                    window.keep(cache.row(slot))
                }
            };
            window.sources.push(source);
            end += 1;
        }
        window.pieces.push(Piece {
            feature,
            bag,
            positions: positions.start..end,
            first_source,
        });
        end
    }

    /// What has waited.
    fn add_up(&mut self, read: &Read) {
        let set = self.set;
        let mut rows: Vec<&[u8]> = Vec::new();
        for piece in &read.window.pieces {
            let row_bytes = set.served[self.features[piece.feature].table]
                .table
                .row_bytes();
            let sources = &read.window.sources[piece.first_source..][..piece.positions.len()];
            rows.clear();
            let mut lost = None;
            for source in sources {
                match *source {
                    Source::Kept(at) => rows.push(&read.window.kept[at..][..row_bytes]),
                    Source::Missing(missing) => match read.row(set, missing) {
                        Ok(row) => rows.push(row),
                        Err(error) => {
                            lost = Some((read.window.missing[missing as usize].row, error));
                            break;
                        }
                    },
                }
            }
            match lost {
                None => self.add_rows((piece.feature, piece.bag), piece.positions.clone(), &rows),
                Some((row, error)) => self.fail((piece.feature, piece.bag), row, &error),
            }
        }
    }

    fn fail(&mut self, (feature, bag): (usize, usize), row: u64, error: &Error) {
        if self
            .failures
            .iter()
            .any(|failure| (failure.feature, failure.bag) == (feature, bag))
        {
            return;
        }
        let table = &self.set.served[self.features[feature].table].table;
        self.out[feature].put(bag, &vec![f32::NAN; table.dim()]);
        self.failures.push(Failure {
            feature,
            bag,
            error: crate::error::of_row(table.name(), row, error),
        });
    }

    /// The next rows of a bag.
    fn add_rows(
        &mut self,
        (feature, bag): (usize, usize),
        positions: Range<usize>,
        rows: &[&[u8]],
    ) {
        let (bagged, asked) = (&self.bagged[feature], &self.features[feature]);
        let table = &self.set.served[asked.table].table;
        let (encoding, dim) = (table.encoding(), table.dim());
        let of_bag = bagged.starts[bag]..bagged.starts[bag + 1];
        let (is_first, is_last) = (positions.start == of_bag.start, positions.end == of_bag.end);
        let out = &mut self.out[feature];
        if matches!(asked.bags, Bags::Each) && out.is_stored_as(encoding) && !rows.is_empty() {
            // Also what is no number stays as it is stored.
            return out.copy(bag, rows[0], dim);
        }
        let mut sum = match is_first {
            true => vec![0.0; dim],
            false => match self.sums.remove(&(feature, bag)) {
                Some(sum) => sum,
                // An earlier part of it has failed.
                None => return,
            },
        };
        let weights = bagged.weights(positions);
        pool::add(asked.mode, encoding, rows, weights, is_first, &mut sum);
        match is_last {
            true => {
                pool::finish(asked.mode, of_bag.len(), &mut sum);
                out.put(bag, &sum);
            }
            false => _ = self.sums.insert((feature, bag), sum),
        }
    }
}
