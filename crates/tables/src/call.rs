//! One look-up: from bags to rows of the result, window by window.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use hashbrown::{HashMap, HashSet};
use outcore_core::{Error, Result};

use crate::carried::Carried;
use crate::look_up::{Bagged, Bags, Feature};
use crate::pool::{self, Results};
use crate::readers::now_and_then;
use crate::reading::{Read, Reading};
use crate::row_cache::{NO_SLOT, RowCache};
use crate::served::{Served, Service};
use crate::window::{Piece, Source, Used, Window};

/// Rows that are looked for in the cache at once.
pub(crate) const BLOCK: usize = 2048;
/// Pieces that are added up between two looks at the clock.
const CHECKED: usize = 64;
/// Windows of one look-up that are in memory: one is added up, one is being read.
pub(crate) const WINDOWS: usize = 2;

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

pub(crate) struct Call<'c, 'f, 'o> {
    set: &'c Service,
    tables: &'c [Served],
    features: &'c [Feature<'f>],
    bagged: &'c [Bagged],
    results: Results<'c, 'o>,
    /// Feature, bag, and position in the feature, that come next.
    at: (usize, usize, usize),
    /// Of bags that are in several windows.
    sums: HashMap<(usize, usize), Vec<f32>>,
    /// The last bag that has to wait.
    waiting: Option<(usize, usize)>,
    failures: Vec<Failure>,
    failed: HashSet<(usize, usize)>,
    carried: Carried,
    /// Memory that is used again: slots of a block, and a row.
    slots: Vec<u32>,
    row: Vec<f32>,
}

impl<'c, 'f, 'o> Call<'c, 'f, 'o> {
    pub(crate) fn new(
        set: &'c Service,
        tables: &'c [Served],
        features: &'c [Feature<'f>],
        bagged: &'c [Bagged],
        results: Results<'c, 'o>,
    ) -> Call<'c, 'f, 'o> {
        Call {
            set,
            tables,
            features,
            bagged,
            results,
            at: (0, 0, 0),
            sums: HashMap::new(),
            waiting: None,
            failures: Vec::new(),
            failed: HashSet::new(),
            carried: Carried::default(),
            slots: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Looks everything up; the bags that failed.
    pub(crate) fn run(mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<Failure>> {
        let (set, tables, go_on) = (self.set, self.tables, &mut now_and_then(go_on));
        let mut reading: VecDeque<Reading<'_>> = VecDeque::new();
        let mut permit = None;
        loop {
            while reading.len() < WINDOWS && self.at.0 < self.features.len() {
                let window = self.next_window(go_on)?;
                if window.units.is_empty() && window.pieces.is_empty() {
                    self.note(&window);
                    continue;
                }
                if permit.is_none() {
                    permit = Some(set.readers.acquire(go_on)?);
                }
                reading.push_back(Reading::begin(set, tables, window)?);
            }
            let Some(first) = reading.pop_front() else {
                return Ok(self.failures);
            };
            if first.needs_others() {
                reading.iter_mut().try_for_each(|next| next.land(go_on))?;
            }
            let read = first.finish(go_on)?;
            self.carry(&read);
            self.add_up(&read, go_on)?;
        }
    }

    /// Keeps rows of a window for bags that come later.
    fn carry(&mut self, read: &Read) {
        let (feature, _, position) = self.at;
        if let Some(asked) = self.features.get(feature) {
            let (served, rows) = (&self.tables[asked.table], &self.bagged[feature].rows);
            self.carried
                .take(self.set, served, (feature, position), rows, read);
        }
    }

    /// Notes what was used, unless others change the caches now.
    fn note(&self, window: &Window) {
        for used in &window.used {
            if let Some(mut cache) = self.tables[used.table as usize].cache.changed_if_free() {
                cache.used(used.epoch, &used.slots);
            }
        }
    }

    /// Goes on until as many units are missing as are read at once, or everything was seen.
    fn next_window(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Window> {
        let mut window = Window::default();
        while self.at.0 < self.features.len() && !self.set.is_full(&window) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            self.next_block(&mut window);
        }
        Ok(window)
    }

    /// Some rows of one feature.
    fn next_block(&mut self, window: &mut Window) {
        let (feature, mut bag, first) = self.at;
        let bagged = &self.bagged[feature];
        let number = self.features[feature].table;
        let served = &self.tables[number];
        let row_bytes = served.table.row_bytes();
        let end = (first + BLOCK).min(bagged.rows.len());
        let cache = served.cache.seen();
        let mut slots = std::mem::take(&mut self.slots);
        cache.find_all(served.id, &bagged.rows[first..end], &mut slots);
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
                    let rows: Vec<&[u8]> = found
                        .iter()
                        .map(|&slot| &cache.row(slot)[..row_bytes])
                        .collect();
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
        let table = &self.tables[asked.table].table;
        let (encoding, dim, row_bytes) = (table.encoding(), table.dim(), table.row_bytes());
        let first = bagged.starts[bags.start];
        let is_copied = matches!(asked.bags, Bags::Each) && bagged.weights.is_none();
        let mut out = self.results.of(feature);
        if is_copied && out.is_stored_as(encoding) {
            return bags
                .zip(slots)
                .for_each(|(bag, &slot)| out.copy(bag, &cache.row(slot)[..row_bytes]));
        }
        let ends: Vec<usize> = bagged.starts[bags.start + 1..=bags.end]
            .iter()
            .map(|end| end - first)
            .collect();
        let weights = bagged.weights(first..bagged.starts[bags.end]);
        let row = |number: usize| &cache.row(slots[number])[..row_bytes];
        if out.is_f32() {
            let rows = out.f32_rows(bags.start);
            return encoding.pool_bags(asked.mode, row, &ends, weights, rows);
        }
        let mut rows = vec![0.0; bags.len() * dim];
        encoding.pool_bags(asked.mode, row, &ends, weights, rows.chunks_mut(dim));
        bags.zip(rows.chunks_exact(dim))
            .for_each(|(bag, row)| out.put(bag, row));
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
        let served = &self.tables[number];
        let row_bytes = served.table.row_bytes();
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
                NO_SLOT => match self.carried.row(feature, row) {
                    Some(record) => window.carry(number as u32, row, record),
                    None => Source::Missing(window.miss(number as u32, served, row)),
                },
                slot => {
                    hits.push(slot);
                    window.keep(&cache.row(slot)[..row_bytes])
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
    fn add_up(&mut self, read: &Read, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let tables = self.tables;
        let mut rows: Vec<&[u8]> = Vec::new();
        for (number, piece) in read.window.pieces.iter().enumerate() {
            if number.is_multiple_of(CHECKED) && !go_on() {
                return Err(Error::Cancelled);
            }
            let row_bytes = tables[self.features[piece.feature].table].table.row_bytes();
            let sources = &read.window.sources[piece.first_source..][..piece.positions.len()];
            rows.clear();
            let mut lost = None;
            for source in sources {
                match *source {
                    Source::Kept(at) => rows.push(&read.window.kept[at..][..row_bytes]),
                    Source::Missing(missing) => match read.row(tables, missing) {
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
        Ok(())
    }

    fn fail(&mut self, (feature, bag): (usize, usize), row: u64, error: &Error) {
        if !self.failed.insert((feature, bag)) {
            return;
        }
        // Rows of the bag that come after those which are lost do not make a sum of it.
        self.sums.remove(&(feature, bag));
        let table = &self.tables[self.features[feature].table].table;
        let lost = vec![f32::NAN; table.dim()];
        self.results.of(feature).put(bag, &lost);
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
        let table = &self.tables[asked.table].table;
        let (encoding, dim) = (table.encoding(), table.dim());
        let of_bag = bagged.starts[bag]..bagged.starts[bag + 1];
        let (is_first, is_last) = (positions.start == of_bag.start, positions.end == of_bag.end);
        let mut out = self.results.of(feature);
        let is_copied = matches!(asked.bags, Bags::Each) && bagged.weights.is_none();
        if is_copied && out.is_stored_as(encoding) && !rows.is_empty() {
            // Also what is no number stays as it is stored.
            return out.copy(bag, rows[0]);
        }
        // A bag that is whole here needs no sum of its own.
        let mut sum = match (is_first, is_last) {
            (true, true) => std::mem::take(&mut self.row),
            (true, false) => Vec::new(),
            (false, _) => match self.sums.remove(&(feature, bag)) {
                Some(sum) => sum,
                // An earlier part of it has failed.
                None => return,
            },
        };
        sum.resize(dim, 0.0);
        let weights = bagged.weights(positions);
        pool::add(asked.mode, encoding, rows, weights, is_first, &mut sum);
        match is_last {
            true => {
                pool::finish(asked.mode, of_bag.len(), &mut sum);
                out.put(bag, &sum);
                self.row = sum;
            }
            false => _ = self.sums.insert((feature, bag), sum),
        }
    }
}
