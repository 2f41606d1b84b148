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

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use outcore_core::{Error, MemorySplit, Result, Session};
use outcore_device::Locked;
use outcore_engine::Reservation;
use outcore_engine::cache::PolicyKind;

use crate::call::{BLOCK, Call, Failure, WINDOWS};
use crate::division::Division;
use crate::gate::Gate;
use crate::look_up::Feature;
use crate::pending::{Pending, Pool};
use crate::pool::{Out, Results};
use crate::readers::now_and_then;
use crate::reading::Reading;
use crate::row_cache::{NO_SLOT, RowCache};
use crate::served::{OPTIONS, Served, Service, bagged, served, shared};
use crate::table::Table;
use crate::window::Window;

/// Of a window: more would leave the processor's caches before they are added up.
const UNITS_MAX: usize = 4096;
/// Tables of a window for each unit: its place in lists and maps.
const UNIT_BESIDE_BYTES: u64 = 400;
/// What a reservation keeps of the part for reading, for as long as the set is.
const HELD_BYTES: u64 = 4096;

/// How tables are served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serving {
    /// Bytes for rows in memory, with their tables; `None` for an eighth of the session's budget, or what all
    /// rows take if that is less. Several tables divide them by what it saves, again and again.
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
    pub(crate) inner: Arc<Inner>,
    /// Not of the handles that submitted work has, which would keep its threads for ever.
    pool: Option<Arc<OnceLock<Pool>>>,
}

pub(crate) struct Inner {
    pub(crate) service: Service,
    division: Division,
    threads: usize,
    /// Shared by steps of training; alone, a commit begins.
    pub(crate) steps: Gate,
    time: AtomicU64,
    /// Memory of what is known of look-ups to come, by their times.
    announced: Mutex<VecDeque<(u64, Reservation)>>,
    /// Tables that were served, ever.
    pub(crate) ids: AtomicU32,
    _reading: Reservation,
    _cache: Reservation,
    _written: Written,
}

/// Tables that are written are in one set, and once in it: their changed rows are in its caches.
struct Written(Vec<Table>);

impl Written {
    fn of(tables: &[Table]) -> Result<Written> {
        let mut written = Written(Vec::new());
        for table in tables {
            let Some(versioned) = table.versioned().filter(|_| table.is_written()) else {
                continue;
            };
            if versioned.is_served.swap(true, Ordering::Relaxed) {
                let name = table.name();
                return Err(Error::value(format!(
                    "{name}: a table that is written is in one set only"
                )));
            }
            written.0.push(table.clone());
        }
        Ok(written)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let versioned = self.0.iter().filter_map(Table::versioned);
        versioned.for_each(|versioned| versioned.is_served.store(false, Ordering::Relaxed));
    }
}

impl Inner {
    /// What was known of look-ups up to this time is over.
    fn forget(&self, time: u64) {
        let mut announced = self.announced.locked();
        while announced.front().is_some_and(|(first, _)| *first <= time) {
            announced.pop_front();
        }
    }
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
    /// Rows that were read from their own pages because a page of replicas was damaged or could not be read.
    pub replicas_lost: u64,
    /// Rows that are in memory.
    pub cached_rows: u64,
    /// Rows that have room in memory.
    pub cache_rows: u64,
}

/// Threads of a set, at most.
const READERS_MOST: usize = 1 << 10;

/// Bytes beside those of rows, so that a cache of all of them has room for their tables, and a look-up for what it holds.
const SLACK_BYTES: u64 = 1 << 20;

impl TableSet {
    /// Serves tables with memory of the session, which is reserved now.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// let table = Table::open(&session, &[path], &Opening::default())?;
    /// let serving = Serving { cache_bytes: Some(1 << 20), ..Serving::default() };
    /// let set = TableSet::new(&session, vec![table], serving)?;
    /// assert_eq!((set.len(), set.is_empty(), set.table(0).rows()), (1, false, 3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`]; [`Error::Value`] for no readers.
    pub fn new(session: &Session, tables: Vec<Table>, serving: Serving) -> Result<TableSet> {
        let split = MemorySplit::new(session);
        // Small tables take no more than they have a use for, so that there may be many sets.
        let all_rows = tables.iter().fold(0u64, |all, table| {
            let cost = RowCache::row_cost(table.record_bytes(), serving.policy);
            let rows = table.rows().saturating_mul(cost) / 8 * 9;
            all.saturating_add(rows).saturating_add(SLACK_BYTES)
        });
        let cache_bytes = serving.cache_bytes;
        let cache_bytes = cache_bytes.unwrap_or(split.kept_rows_bytes().min(all_rows));
        let stored = tables.iter().fold(SLACK_BYTES, |all, table| {
            all.saturating_add(table.nbytes().saturating_mul(4))
        });
        let reading_bytes = serving.reading_bytes;
        let reading_bytes = reading_bytes.unwrap_or(split.looked_up_bytes(64 << 20).min(stored));
        let reading_bytes = reading_bytes.max(1 << 20);
        if !(1..=READERS_MOST).contains(&serving.readers) {
            return Err(Error::value(format!(
                "{} look-ups at a time: 1 to {READERS_MOST} are",
                serving.readers
            )));
        }
        let written = Written::of(&tables)?;
        let held = session
            .engine()
            .reserve("rows of tables in memory", cache_bytes)?;
        let part = session.part(reading_bytes)?;
        // As long as this is held, the part is the set's.
        let reading = part.engine().reserve("look-ups", 1)?;
        let longest = tables.iter().map(unit_bytes).max().unwrap_or(0) + UNIT_BESIDE_BYTES;
        let window_bytes = (reading_bytes - HELD_BYTES) / (serving.readers * WINDOWS) as u64;
        // Frames may be twice as long as what is read into them.
        let units_at_once = (window_bytes / 8 * 7 / 2 / longest) as usize;
        if units_at_once == 0 {
            let needed = 3 * longest * (serving.readers * WINDOWS) as u64 + HELD_BYTES;
            return Err(Error::OverBudget {
                what: "what is being read of tables".into(),
                needed,
                available: reading_bytes,
                budget: reading_bytes,
            });
        }
        let served: Vec<Served> = (0..)
            .zip(tables)
            .map(|(id, table)| {
                let cache = RowCache::new(table.record_bytes(), table.rows(), serving.policy, id);
                Served::new(id, table, cache)
            })
            .collect();
        let division = Division::new(&served, cache_bytes, serving.policy);
        let service = Service::new(
            [session.clone(), part],
            served,
            serving.readers,
            units_at_once.min(UNITS_MAX),
            (window_bytes / 8) as usize,
        );
        let inner = Inner {
            division,
            ids: AtomicU32::new(service.tables().len() as u32),
            service,
            threads: serving.readers,
            steps: Gate::default(),
            time: AtomicU64::new(0),
            announced: Mutex::default(),
            _reading: reading,
            _cache: held,
            _written: written,
        };
        Ok(TableSet {
            inner: Arc::new(inner),
            pool: Some(Arc::default()),
        })
    }

    /// Has a thread of the set carry out work on it, such as a [`look_up`](TableSet::look_up), while the
    /// caller goes on. There are as many threads as readers.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let pending = set.submit(|set, go_on| {
    ///     let mut stored = [0; 8];
    ///     set.read_stored(0, &[2, 0], &mut stored, go_on)?;
    ///     Ok(stored)
    /// })?;
    /// // The caller goes on meanwhile.
    /// let [four, one] = [4.0f32, 1.0].map(f32::to_le_bytes);
    /// assert_eq!(pending.wait()?, *[four, one].as_flattened());
    /// # Ok(())
    /// # }
    /// ```
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
        let set = self.handle();
        let pool = pool.get().expect("made above");
        Ok(pool.submit(move |go_on| work(&set, go_on)))
    }

    /// The same tables without the threads.
    pub(crate) fn handle(&self) -> TableSet {
        TableSet {
            inner: Arc::clone(&self.inner),
            pool: None,
        }
    }

    /// Number of tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.service.tables().len()
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
    pub fn table(&self, number: usize) -> Table {
        self.inner.service.tables()[number].table.clone()
    }

    /// What was done with a table.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let rows = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// let mut found = [0.0; 2];
    /// set.look_up(&[rows], &mut [Out::of_f32(&mut found, 2, 1)?], &mut || true)?;
    /// let known = set.statistics(0);
    /// assert_eq!((known.looked_up, known.hits, known.units_read), (2, 0, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Without such a one.
    #[must_use]
    pub fn statistics(&self, number: usize) -> Statistics {
        let tables = self.inner.service.tables();
        let Served {
            cache, counters, ..
        } = &tables[number];
        let cache = cache.seen();
        Statistics {
            looked_up: counters.looked_up.load(Ordering::Relaxed),
            hits: counters.hits.load(Ordering::Relaxed),
            units_read: counters.units.load(Ordering::Relaxed),
            replicas_lost: counters.replicas_lost.load(Ordering::Relaxed),
            cached_rows: u64::from(cache.len()),
            cache_rows: u64::from(cache.slots()),
        }
    }

    /// Looks features up: the rows of each one's bags go to its `out`, or those of all features, side by
    /// side, to the only one. All bags that can be had are; those that cannot are NaN there, and returned
    /// with the reason. `go_on` is asked every 50 ms or so.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let bags = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Fixed(2),
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// let mut sums = [0.0];
    /// let failed = set.look_up(&[bags], &mut [Out::of_f32(&mut sums, 1, 1)?], &mut || true)?;
    /// assert!(failed.is_empty() && sums == [5.0]);
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let rows = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// let time = set.announce(&[rows])?;
    /// let mut found = [0.0; 2];
    /// let out = Out::of_f32(&mut found, 2, 1)?;
    /// set.look_up_at(&[rows], &mut [out], Some(time), &mut || true)?;
    /// assert_eq!(found, [4.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
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
        let Inner {
            service, division, ..
        } = &*self.inner;
        let tables = service.tables();
        let _numbers = service.hold_numbers(features.iter().map(Feature::held_bytes).sum())?;
        let bagged = bagged(&tables, features)?;
        let results = Results::new(out, &tables, features, &bagged)?;
        let numbers = features.iter().map(|feature| feature.table);
        let _shared = shared(&tables, numbers, go_on)?;
        if let Some(time) = time {
            for feature in features {
                tables[feature.table].cache.changed().begin(time);
            }
        }
        let outcome = Call::new(service, &tables, features, &bagged, results).run(go_on);
        if let Some(time) = time {
            self.withdraw(time);
        }
        let failures = outcome?;
        division.note(&tables, features, &bagged);
        Ok(failures)
    }

    /// Rows that are going to be looked up: of the rows in memory those stay that are looked up next. The
    /// time at which they are, for [`look_up_at`](TableSet::look_up_at); times are to be used in this order.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let rows = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// assert_eq!(set.announce(&[rows])?, 1);
    /// assert_eq!(set.announce(&[rows])?, 2);
    /// // Neither will be looked up.
    /// set.withdraw(2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`]; as [`look_up`](TableSet::look_up) for ids that are no rows.
    pub fn announce(&self, features: &[Feature<'_>]) -> Result<u64> {
        let service = &self.inner.service;
        let tables = service.tables();
        let _numbers = service.hold_numbers(features.iter().map(Feature::held_bytes).sum())?;
        let bagged = bagged(&tables, features)?;
        let mut announced = self.inner.announced.locked();
        let held = service.hold_uses(bagged.iter().map(|one| one.rows.len()).sum())?;
        let time = self.inner.time.fetch_add(1, Ordering::Relaxed) + 1;
        announced.push_back((time, held));
        for (feature, bagged) in features.iter().zip(&bagged) {
            for rows in bagged.rows.chunks(BLOCK) {
                let mut cache = tables[feature.table].cache.changed();
                rows.iter().for_each(|&row| cache.will_use(row, time));
            }
        }
        Ok(time)
    }

    /// What was announced for this time and before will not be looked up, or is over.
    pub fn withdraw(&self, time: u64) {
        for served in self.inner.service.tables().iter() {
            served.cache.changed().passed(time);
        }
        self.inner.forget(time);
    }

    /// Reads rows that are going to be looked up into memory, where they stay until then if there is room;
    /// the time at which they are, for [`look_up_at`](TableSet::look_up_at). Times are to be used in this
    /// order. What cannot be read is left to the look-up.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let rows = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// let time = set.prefetch(&[rows], &mut || true)?;
    /// let mut found = [0.0; 2];
    /// let out = Out::of_f32(&mut found, 2, 1)?;
    /// set.look_up_at(&[rows], &mut [out], Some(time), &mut || true)?;
    /// assert_eq!(set.statistics(0).hits, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn prefetch(
        &self,
        features: &[Feature<'_>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let time = self.announce(features)?;
        self.load(features, go_on)
            .inspect_err(|_| self.withdraw(time))?;
        Ok(time)
    }

    /// Reads rows that may be looked up into memory, as far as the policy has room for them. For tables that
    /// are trained: their rows are looked up when those of the step before have changed.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let rows = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// set.load(&[rows], &mut || true)?;
    /// assert_eq!(set.statistics(0).cached_rows, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn load(&self, features: &[Feature<'_>], go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let service = &self.inner.service;
        let tables = service.tables();
        let _numbers = service.hold_numbers(features.iter().map(Feature::held_bytes).sum())?;
        let mut bagged = bagged(&tables, features)?;
        let numbers = features.iter().map(|feature| feature.table);
        let _shared = shared(&tables, numbers, go_on)?;
        let (mut window, mut missing) = (Window::default(), Vec::new());
        let go_on = &mut now_and_then(go_on);
        for (feature, bagged) in features.iter().zip(&mut bagged) {
            let served = &tables[feature.table];
            // In the order of pages, each of which is read once but for those of replicas.
            bagged
                .rows
                .sort_unstable_by_key(|&row| (served.table.unit_of(row).0.key, row));
            bagged.rows.dedup();
            for rows in bagged.rows.chunks(BLOCK) {
                if !go_on() {
                    return Err(Error::Cancelled);
                }
                let cache = served.cache.seen();
                let is_missing = |row: &u64| cache.slots() > 0 && cache.find(*row) == NO_SLOT;
                missing.extend(rows.iter().copied().filter(is_missing));
                drop(cache);
                for row in missing.drain(..) {
                    let number = feature.table as u32;
                    if service.is_full(&window) && window.begins_unit(number, served, row) {
                        Reading::load(service, &tables, &mut window, go_on)?;
                    }
                    window.miss(number, served, row);
                }
            }
        }
        Reading::load(service, &tables, &mut window, go_on)
    }

    /// Rows that are to stay in memory whatever comes, such as those that a profile found to be looked up
    /// most; how many of them have room.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// assert_eq!(set.keep(0, &[0, 2], &mut || true)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`look_up`](TableSet::look_up).
    pub fn keep(&self, table: usize, rows: &[u64], go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        let service = &self.inner.service;
        let tables = service.tables();
        let served = served(&tables, table)?;
        check_rows(&served.table, rows)?;
        let _shared = shared(&tables, std::iter::once(table), go_on)?;
        let (mut kept, go_on) = (0, &mut now_and_then(go_on));
        for rows in rows.chunks(service.units_at_once) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            let mut window = Window::default();
            let is_missing = |row: &&u64| served.cache.seen().find(**row) == NO_SLOT;
            for &row in rows.iter().filter(is_missing) {
                window.miss(table as u32, served, row);
            }
            Reading::load(service, &tables, &mut window, go_on)?;
            let mut cache = served.cache.changed();
            kept += rows.iter().filter(|row| cache.keep(**row)).count() as u64;
        }
        Ok(kept)
    }

    /// Reads rows as they are stored, one behind another.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # write_packed(&session, &path, 3, 1, RowEncoding::F32, [[1.0], [2.0], [4.0]])?;
    /// # let table = Table::open(&session, &[path], &Opening::default())?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let mut stored = [0; 8];
    /// set.read_stored(0, &[2, 0], &mut stored, &mut || true)?;
    /// assert_eq!(stored[..4], 4.0f32.to_le_bytes());
    /// # Ok(())
    /// # }
    /// ```
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
        let service = &self.inner.service;
        let tables = service.tables();
        let served = served(&tables, table)?;
        let row_bytes = served.table.row_bytes();
        if rows.len().checked_mul(row_bytes) != Some(into.len()) {
            let (count, have) = (rows.len(), into.len());
            return Err(Error::shape(format!(
                "{count} rows of {row_bytes} bytes for {have} bytes"
            )));
        }
        check_rows(&served.table, rows)?;
        let _shared = shared(&tables, std::iter::once(table), go_on)?;
        let _permit = service.readers.acquire(go_on)?;
        let parts = rows
            .chunks(service.units_at_once)
            .zip(into.chunks_mut(service.units_at_once * row_bytes));
        let go_on = &mut now_and_then(go_on);
        for (rows, into) in parts {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            let mut window = Window::default();
            let mut missing = Vec::with_capacity(rows.len());
            // Rows that a writer has changed are stored only once they are evicted.
            let cache = served.cache.seen();
            let has_rows = served.table.is_written() && cache.is_of(served.id);
            for (&row, into) in rows.iter().zip(into.chunks_exact_mut(row_bytes)) {
                match if has_rows { cache.find(row) } else { NO_SLOT } {
                    NO_SLOT => missing.push((window.miss(table as u32, served, row), row, into)),
                    slot => into.copy_from_slice(&cache.row(slot)[..row_bytes]),
                }
            }
            drop(cache);
            let read = Reading::begin(service, &tables, window)?.finish(go_on)?;
            for (missing, row, into) in missing {
                let stored = read.row(&tables, missing);
                let stored = stored
                    .map_err(|error| crate::error::of_row(served.table.name(), row, &error))?;
                into.copy_from_slice(stored);
            }
        }
        Ok(())
    }
}

/// What a unit takes of memory while it is read, at most: whole sectors, and the gap to the next one.
fn unit_bytes(table: &Table) -> u64 {
    let (len, block) = (table.unit_len() as u64, table.block_bytes());
    // Of a table that is written, also its copy that is changed.
    let copy = if table.is_written() { len } else { 0 };
    len.next_multiple_of(block) + block + OPTIONS.gap_bytes + copy
}

/// # Errors
/// [`Error::Value`] for a row that is not there.
pub(crate) fn check_rows(table: &Table, rows: &[u64]) -> Result<()> {
    match rows.iter().find(|row| **row >= table.rows()) {
        None => Ok(()),
        Some(row) => Err(Error::value(format!(
            "{} has {} rows, and no row {row}",
            table.name(),
            table.rows()
        ))),
    }
}
