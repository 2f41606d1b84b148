//! Rows that change: steps of training, updates of rows, and versions of the result.
//!
//! Each row of a step changes once, by the sum of its gradients. A row in the cache changes there, and is
//! written when too many have changed, or with the next version. For the others, pages are read, changed,
//! and written to free places while the next ones are being read. Nothing of a step counts before all of
//! its pages are written: a step that fails leaves the table as it was.

use std::collections::BTreeMap;
use std::ops::Range;

use outcore_core::{Error, Result};
use outcore_device::Locked;
use outcore_kernels::embedding::{Pooling, add_scaled};
use outcore_store::versions;

use crate::gate::Alone;
use crate::look_up::{Bagged, Bags, Feature};
use crate::optimizer::Optimizer;
use crate::packed::is_permutation;
use crate::rewriting::{MOVED_BYTES, rewrite};
use crate::row_cache::NO_SLOT;
use crate::served::{Tables, served};
use crate::set::TableSet;
use crate::table::Table;
use crate::versioned::{Versioned, Writer};

/// Of the slots of a cache, rows that wait to be written: at most one in this many.
const CHANGED_PART: u32 = 2;

/// Bytes that a step holds for each member of a bag: where its gradient is, its row, and the members of
/// that.
const MEMBER_BYTES: u64 = (size_of::<(u64, u32, u32)>() + size_of::<(u64, Range<usize>)>()) as u64;

/// Bytes of a row that is changed: its slot, its place among those that are not in memory, and where its page goes.
const CHANGED_BYTES: u64 = (size_of::<u32>() + size_of::<usize>()) as u64 + MOVED_BYTES;

/// What a loss says of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// What was looked up: a sum, a mean, or each row by itself.
    pub feature: Feature<'a>,
    /// Gradient of its result: a row for each bag.
    pub of_bags: &'a [f32],
    /// The order in which members of bags, counted without padding, are added up to the gradient of their
    /// row; by position if there is none. PyTorch takes the order of its sort.
    pub order: Option<&'a [i64]>,
}

/// Gradients of one table, by row.
struct Gradients<'a> {
    /// Row, feature, and member of a bag; by row, then in the order in which they are added up.
    members: Vec<(u64, u32, u32)>,
    features: Vec<(Gradient<'a>, Bagged)>,
}

impl<'a> Gradients<'a> {
    fn add(&mut self, gradient: Gradient<'a>, table: &Table) -> Result<()> {
        let (feature, name) = (&gradient.feature, table.name());
        let bagged = Bagged::of(feature, name, table.rows())?;
        if feature.mode == Pooling::Max {
            return Err(Error::value(format!("{name}: no gradients of a maximum")));
        }
        let (have, bags) = (gradient.of_bags.len(), bagged.bags());
        if have != bags * table.dim() {
            return Err(Error::shape(format!(
                "{name}: {have} elements of gradients for {bags} bags of {}",
                table.dim()
            )));
        }
        let number = self.features.len() as u32;
        let padding = feature
            .padding
            .filter(|_| matches!(feature.bags, Bags::Each));
        let mut put = |member: u32| {
            let row = bagged.rows[member as usize];
            if Some(row) != padding {
                self.members.push((row, number, member));
            }
        };
        match gradient.order {
            None => (0..bagged.rows.len() as u32).for_each(put),
            // What is negative becomes larger than any number of members.
            Some(order)
                if is_permutation(order.iter().map(|&member| member as u64), bagged.rows.len()) =>
            {
                order.iter().for_each(|&member| put(member as u32));
            }
            Some(order) => {
                return Err(Error::shape(format!(
                    "{name}: an order of {} is none of {} members",
                    order.len(),
                    bagged.rows.len()
                )));
            }
        }
        self.features.push((gradient, bagged));
        Ok(())
    }

    /// Rows in ascending order, and the members of each.
    fn rows(&mut self) -> (Vec<u64>, Vec<Range<usize>>) {
        self.members.sort_by_key(|(row, _, _)| *row);
        let mut end = 0;
        self.members
            .chunk_by(|one, next| one.0 == next.0)
            .map(|members| {
                let start = end;
                end += members.len();
                (members[0].0, start..end)
            })
            .unzip()
    }

    /// The gradient of a row: the sum over features, each of which is summed by itself, as PyTorch adds up the gradients
    /// of several calls.
    fn sum(&self, members: Range<usize>, sum: &mut [f32]) {
        sum.fill(0.0);
        let mut features = self.members[members].chunk_by(|one, next| one.1 == next.1);
        if let Some(first) = features.next() {
            self.add_members(first, sum);
        }
        for members in features {
            let mut of_feature = vec![0.0; sum.len()];
            self.add_members(members, &mut of_feature);
            add_scaled(sum, 1.0, &of_feature);
        }
    }

    fn add_members(&self, members: &[(u64, u32, u32)], sum: &mut [f32]) {
        for &(_, feature, member) in members {
            let (gradient, bagged) = &self.features[feature as usize];
            let bag = bagged.bag_of(member as usize);
            let of_bag = &gradient.of_bags[bag * sum.len()..][..sum.len()];
            let factor = match (&bagged.weights, gradient.feature.mode) {
                (Some(weights), _) => weights[member as usize],
                (None, Pooling::Mean) => 1.0 / (bagged.starts[bag + 1] - bagged.starts[bag]) as f32,
                _ => 1.0,
            };
            add_scaled(sum, factor, of_bag);
        }
    }
}

impl TableSet {
    /// One step of an optimizer: rows with gradients change, and those only. A step that fails leaves the
    /// table at which it fails as it was, and those with higher numbers.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # let mut writer =
    /// #     TableWriter::create_versioned(&session, &path, 3, 1, RowEncoding::F32, Some(&Optimizer::Sgd))?;
    /// # (0..3).try_for_each(|_| writer.write(&[0.0]))?;
    /// # writer.finish()?;
    /// # let opening = Opening { for_writing: true, ..Opening::default() };
    /// # let table = Table::open(&session, &[path.clone()], &opening)?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// let feature = Feature {
    ///     table: 0,
    ///     ids: Ids::I32(&[2, 0]),
    ///     bags: Bags::Each,
    ///     mode: Pooling::Sum,
    ///     weights: None,
    ///     padding: None,
    /// };
    /// let gradient = Gradient { feature, of_bags: &[10.0, -20.0], order: None };
    /// set.train(&[gradient], &Optimizer::Sgd, 0.1, &mut || true)?;
    /// let mut rows = [0.0; 2];
    /// set.look_up(&[feature], &mut [Out::of_f32(&mut rows, 2, 1)?], &mut || true)?;
    /// assert_eq!(rows, [-1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for tables that were not opened for writing or were made for another optimizer,
    /// and for a maximum; [`Error::Shape`]; [`Error::OverBudget`]; [`Error::Cancelled`]; those of the
    /// device, such as a full disk.
    pub fn train(
        &self,
        gradients: &[Gradient<'_>],
        optimizer: &Optimizer,
        rate: f64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        self.step(go_on)?.train(gradients, optimizer, rate, go_on)
    }

    /// Begins a step that takes several calls: a [`commit`](TableSet::commit) has all of them or none. On the
    /// thread that has one, neither commit nor begin another.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn step(&self, go_on: &mut dyn FnMut() -> bool) -> Result<TrainingStep> {
        self.inner.steps.shared(go_on)?.keep();
        Ok(TrainingStep(self.handle()))
    }

    /// Sets rows to these elements; their state for training stays. `delta` numbers updates that may come
    /// again, from 1 on: one whose number is not above that of the last one changes nothing, and the answer is
    /// false.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::*;
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// # let path = folder.path().join("table");
    /// # let mut writer =
    /// #     TableWriter::create_versioned(&session, &path, 3, 1, RowEncoding::F32, Some(&Optimizer::Sgd))?;
    /// # (0..3).try_for_each(|_| writer.write(&[0.0]))?;
    /// # writer.finish()?;
    /// # let opening = Opening { for_writing: true, ..Opening::default() };
    /// # let table = Table::open(&session, &[path.clone()], &opening)?;
    /// # let set = TableSet::new(&session, vec![table], Serving::default())?;
    /// assert!(set.write_rows(0, &[2, 0], &[5.0, 6.0], Some(1), &mut || true)?);
    /// // It came again.
    /// assert!(!set.write_rows(0, &[2, 0], &[5.0, 6.0], Some(1), &mut || true)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`train`](TableSet::train).
    pub fn write_rows(
        &self,
        table: usize,
        rows: &[u64],
        elements: &[f32],
        delta: Option<u64>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let tables = self.inner.service.tables();
        let of = &served(&tables, table)?.table;
        written(of)?;
        crate::set::check_rows(of, rows)?;
        let (dim, row_bytes, encoding) = (of.dim(), of.row_bytes(), of.encoding());
        if rows.len().checked_mul(dim) != Some(elements.len()) {
            return Err(Error::shape(format!(
                "{}: {} elements for {} rows of {dim}",
                of.name(),
                elements.len(),
                rows.len()
            )));
        }
        let each = 2 * size_of::<(u64, usize)>() as u64 + CHANGED_BYTES;
        let _numbers = (self.inner.service).hold_numbers(each * rows.len() as u64)?;
        // Of a row that comes twice, the last one counts.
        let mut last: Vec<(u64, usize)> = rows.iter().copied().zip(0..).collect();
        last.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(&one.1)));
        last.dedup_by_key(|(row, _)| *row);
        let (rows, places): (Vec<u64>, Vec<usize>) = last.into_iter().unzip();
        if delta == Some(0) {
            return Err(Error::value(format!(
                "{}: updates are numbered from 1 on",
                of.name()
            )));
        }
        let mut step = Step::begin(self, &tables, table, go_on)?;
        if delta.is_some_and(|delta| delta <= step.writer.description.delta) {
            return Ok(false);
        }
        step.change(&rows, go_on, &mut |number, record| {
            let row = &elements[places[number] * dim..][..dim];
            encoding.encode(row, &mut record[..row_bytes]);
        })?;
        if let Some(delta) = delta {
            step.writer.description.delta = delta;
        }
        Ok(true)
    }

    /// Makes what these tables are now, at the same moment, their next versions: durable, and what is opened
    /// from then on. All of them become that at once: whenever the process dies, either all tables are left
    /// with these versions or none. Steps go on while the versions are made durable. The numbers of the
    /// versions.
    ///
    /// ```
    /// # use outcore_core::{Session, Settings};
    /// # use outcore_tables::{Opening, RowEncoding, Serving, Table, TableSet, TableWriter};
    /// # fn main() -> outcore_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
    /// let opening = Opening { for_writing: true, ..Opening::default() };
    /// let mut tables = Vec::new();
    /// for name in ["items", "users"] {
    ///     let path = folder.path().join(name);
    ///     let encoding = RowEncoding::F32;
    ///     let mut writer = TableWriter::create_versioned(&session, &path, 1, 2, encoding, None)?;
    ///     writer.write(&[0.0, 0.0])?;
    ///     writer.finish()?;
    ///     tables.push(Table::open(&session, &[path], &opening)?);
    /// }
    /// let set = TableSet::new(&session, tables, Serving::default())?;
    /// set.write_rows(0, &[0], &[1.0, 2.0], None, &mut || true)?;
    /// set.write_rows(1, &[0], &[3.0, 4.0], None, &mut || true)?;
    /// assert_eq!(set.commit(&[0, 1], &mut || true)?, [1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`train`](TableSet::train). The last versions of all tables stay then. After an error at the very
    /// end it is known only when the tables are opened again whether they have, and until then nothing
    /// changes them.
    pub fn commit(&self, numbers: &[usize], go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u64>> {
        let tables = self.inner.service.tables();
        // In one order, each once: what takes several locks takes them so.
        let mut ordered = numbers.to_vec();
        ordered.sort_unstable();
        ordered.dedup();
        let of = |&number: &usize| written(&served(&tables, number)?.table);
        let versioned = ordered
            .iter()
            .map(of)
            .collect::<Result<Vec<&Versioned>>>()?;
        let _committing: Vec<_> = versioned
            .iter()
            .map(|versioned| versioned.committing.locked())
            .collect();
        let between_steps = self.inner.steps.alone(go_on)?;
        let mut steps = Vec::with_capacity(ordered.len());
        for &number in &ordered {
            let mut step = Step::begin(self, &tables, number, go_on)?;
            step.write_changed(usize::MAX, go_on)?;
            steps.push(step);
        }
        let next: Vec<_> = steps
            .iter_mut()
            .map(|step| {
                let description = step.writer.description.bytes();
                step.writer.versions.next(step.versioned.map(), description)
            })
            .collect();
        drop((steps, between_steps));
        let outcome = versions::commit(&next);
        let mut committed = BTreeMap::new();
        for ((next, versioned), &number) in next.into_iter().zip(versioned).zip(&ordered) {
            committed.insert(number, next.number());
            versioned.writer().versions.settle(next, &outcome);
        }
        outcome?;
        Ok(numbers.iter().map(|number| committed[number]).collect())
    }
}

/// A step of training, until it is dropped.
///
/// ```
/// # use outcore_core::{Session, Settings};
/// # use outcore_tables::*;
/// # fn main() -> outcore_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let session = Session::new(Settings { memory_bytes: Some(64 << 20), ..Settings::default() })?;
/// # let path = folder.path().join("table");
/// # let mut writer =
/// #     TableWriter::create_versioned(&session, &path, 2, 1, RowEncoding::F32, Some(&Optimizer::Sgd))?;
/// # (0..2).try_for_each(|_| writer.write(&[0.0]))?;
/// # writer.finish()?;
/// # let opening = Opening { for_writing: true, ..Opening::default() };
/// # let table = Table::open(&session, &[path], &opening)?;
/// # let set = TableSet::new(&session, vec![table], Serving::default())?;
/// # let feature = Feature {
/// #     table: 0, ids: Ids::I32(&[1]), bags: Bags::Each, mode: Pooling::Sum, weights: None, padding: None,
/// # };
/// let gradient = Gradient { feature, of_bags: &[2.0], order: None };
/// let step = set.step(&mut || true)?;
/// step.train(&[gradient], &Optimizer::Sgd, 0.1, &mut || true)?;
/// step.train(&[gradient], &Optimizer::Sgd, 0.2, &mut || true)?;
/// drop(step);
/// set.commit(&[0], &mut || true)?;
/// # Ok(())
/// # }
/// ```
pub struct TrainingStep(TableSet);

impl TrainingStep {
    /// A part of the step, as [`TableSet::train`].
    ///
    /// # Errors
    /// As [`TableSet::train`].
    pub fn train(
        &self,
        gradients: &[Gradient<'_>],
        optimizer: &Optimizer,
        rate: f64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let tables = self.0.inner.service.tables();
        let held = |gradient: &Gradient<'_>| {
            let members = gradient.feature.ids.len() as u64;
            gradient.feature.held_bytes() + (MEMBER_BYTES + CHANGED_BYTES) * members
        };
        let _numbers = (self.0.inner.service).hold_numbers(gradients.iter().map(held).sum())?;
        let mut of_tables: BTreeMap<usize, Gradients<'_>> = BTreeMap::new();
        for gradient in gradients {
            let number = gradient.feature.table;
            let table = &served(&tables, number)?.table;
            let (versioned, name) = (written(table)?, table.name());
            if versioned.description.optimizer != optimizer.name() {
                let own = &versioned.description.optimizer;
                return Err(Error::value(format!(
                    "{name} was made to be trained by '{own}', not by '{}'",
                    optimizer.name()
                )));
            }
            let of_table = of_tables.entry(number).or_insert_with(|| Gradients {
                members: Vec::new(),
                features: Vec::new(),
            });
            of_table.add(*gradient, table)?;
        }
        for (number, mut gradients) in of_tables {
            let dim = tables[number].table.dim();
            let (rows, members) = gradients.rows();
            let mut sum = vec![0.0; dim];
            let mut step = Step::begin(&self.0, &tables, number, go_on)?;
            let update = optimizer.update(rate, step.writer.description.steps + 1);
            step.change(&rows, go_on, &mut |number, record| {
                gradients.sum(members[number].clone(), &mut sum);
                let record: &mut [f32] = bytemuck::cast_slice_mut(record);
                let (row, state) = record.split_at_mut(dim);
                update.apply(row, state, &sum);
            })?;
            step.writer.description.steps += 1;
        }
        Ok(())
    }
}

impl Drop for TrainingStep {
    fn drop(&mut self) {
        self.0.inner.steps.leave();
    }
}

fn written(table: &Table) -> Result<&Versioned> {
    let versioned = table
        .versioned()
        .filter(|versioned| versioned.writer.is_some());
    versioned.ok_or_else(|| Error::value(format!("{} was not opened for writing", table.name())))
}

/// A table that nothing else reads or writes meanwhile.
struct Step<'a> {
    set: &'a TableSet,
    tables: &'a Tables,
    number: usize,
    versioned: &'a Versioned,
    writer: std::sync::MutexGuard<'a, Writer>,
    _alone: Alone<'a>,
}

impl<'a> Step<'a> {
    fn begin(
        set: &'a TableSet,
        tables: &'a Tables,
        number: usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Step<'a>> {
        let served = &tables[number];
        let versioned = written(&served.table)?;
        let gate = served
            .gate
            .as_ref()
            .expect("a table that is written has one");
        let alone = gate.alone(go_on)?;
        let writer = versioned.writer();
        writer.versions.check()?;
        Ok(Step {
            set,
            tables,
            number,
            versioned,
            writer,
            _alone: alone,
        })
    }

    /// Changes rows, in ascending order, each by its number here.
    fn change(
        &mut self,
        rows: &[u64],
        go_on: &mut dyn FnMut() -> bool,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        self.make_room(go_on)?;
        let served = &self.tables[self.number];
        let mut slots = Vec::new();
        served.cache.seen().find_all(served.id, rows, &mut slots);
        let missing: Vec<usize> = (0..rows.len()).filter(|&at| slots[at] == NO_SLOT).collect();
        let numbers = missing.iter().map(|&at| rows[at]);
        self.rewrite(numbers, go_on, &mut |at, record| {
            change(missing[at], record)
        })?;
        let mut cache = served.cache.changed();
        let now = (self.writer.description.steps as u32).saturating_add(1);
        for (at, &slot) in slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| **slot != NO_SLOT)
        {
            change(at, cache.change(slot, now));
        }
        slots.retain(|&slot| slot != NO_SLOT);
        let epoch = cache.epoch();
        cache.used(epoch, &slots);
        Ok(())
    }

    /// Rows that have changed must not take all of the cache.
    fn make_room(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let cache = self.tables[self.number].cache.seen();
        let (changed, most) = (cache.changed(), cache.slots() / CHANGED_PART);
        drop(cache);
        match changed > most {
            true => self.write_changed((changed - most / 2) as usize, go_on),
            false => Ok(()),
        }
    }

    /// Writes rows that have changed in the cache, those first that changed longest ago.
    fn write_changed(&mut self, count: usize, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let (service, served) = (&self.set.inner.service, &self.tables[self.number]);
        let mut left = (served.cache.seen().changed() as usize).min(count);
        while left > 0 {
            // Where the list of all has no room, some at a time: a page may be written again for rows that follow.
            let mut part = left;
            let _numbers = loop {
                match service.hold_numbers(MOVED_BYTES * part as u64) {
                    Err(Error::OverBudget { .. }) => part /= 2,
                    held => break held?,
                }
            };
            let cache = served.cache.seen();
            let slots = cache.changed_first(part);
            let rows = slots.iter().map(|&slot| cache.number(slot));
            self.rewrite(rows, go_on, &mut |at, record| {
                record.copy_from_slice(cache.row(slots[at]));
            })?;
            drop(cache);
            let mut cache = served.cache.changed();
            slots.iter().for_each(|&slot| cache.written(slot));
            left -= part;
        }
        Ok(())
    }

    fn rewrite(
        &mut self,
        rows: impl Iterator<Item = u64>,
        go_on: &mut dyn FnMut() -> bool,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let service = &self.set.inner.service;
        let changes = rewrite(
            service,
            self.tables,
            self.number,
            &mut self.writer,
            rows,
            go_on,
            change,
        )?;
        self.versioned.replace(&mut self.writer, &changes);
        Ok(())
    }
}
