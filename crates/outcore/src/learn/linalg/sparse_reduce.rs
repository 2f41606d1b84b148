//! Numbers about the rows and columns of a sparse matrix in one pass: norms and statistics.
//!
//! What lies along the lines of A is summed line by line. What lies across them has a sum for each place, in up to eight copies that are
//! merged in order at the end, so the bits do not depend on the number of threads, nor on who else has memory. Zeros that are not stored count. Two entries of one
//! place count as two.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_engine::{Plan, Region, Task};
use outcore_kernels::{ColumnStatistics, Lines, Norm, Real, Squares};

use crate::data::format::Compressed;
use crate::data::format::with_real;
use crate::data::sparse::{Sparse, with_lines};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::session::{PLAN_THREADS, Session};

/// The norm of each row, in f64. The columns' are the rows' of `a.t()`.
///
/// Cost: reads A; 24 bytes a row, eight times that where the lines of A are columns and memory allows.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn sparse_row_norms(session: &Session, a: &Sparse, norm: Norm) -> Result<Job<Vec<f64>>> {
    Ok(match norm {
        Norm::L1 => fold::<Sum>(session, "row norms", a, true)?.map(|all| Ok(all.iter().map(|sum| sum.0).collect())),
        Norm::L2 => fold::<Squares>(session, "row norms", a, true)?.map(|all| Ok(all.iter().map(Squares::root).collect())),
        Norm::Max => fold::<Largest>(session, "row norms", a, true)?.map(|all| Ok(all.iter().map(|most| most.0).collect())),
    })
}

/// Statistics of columns, and how many entries each has.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseStatistics {
    /// Of all elements, zeros included.
    pub columns: ColumnStatistics,
    /// Entries that are stored.
    pub nonzeros: Vec<u64>,
}

/// Count, mean, variance, least and greatest element of each column, in f64, and its entries. Cost: reads A; 40 bytes a column, eight
/// times that where the lines of A are rows and memory allows.
///
/// # Errors
/// [`Error::OverBudget`](crate::Error::OverBudget).
pub fn sparse_column_statistics(session: &Session, a: &Sparse) -> Result<Job<SparseStatistics>> {
    let rows = a.rows();
    Ok(fold::<Moments>(session, "column statistics", a, false)?.map(move |all| {
        let nonzeros = all.iter().map(|column| column.count).collect();
        let all: Vec<Moments> = all.into_iter().map(|column| column.with_zeros(rows)).collect();
        let part = |of: fn(&Moments) -> f64| all.iter().map(of).collect();
        let columns = ColumnStatistics {
            count: rows,
            mean: part(|column| column.mean),
            m2: part(|column| column.m2),
            min: part(|column| column.min),
            max: part(|column| column.max),
        };
        Ok(SparseStatistics { columns, nonzeros })
    }))
}

/// What entries come to.
trait Fold: Clone + Default + Send + 'static {
    fn add(&mut self, value: f64);
    fn merge(&mut self, other: &Self);
}

#[derive(Clone, Default)]
struct Sum(f64);

impl Fold for Sum {
    fn add(&mut self, value: f64) {
        self.0 += value.abs();
    }
    fn merge(&mut self, other: &Sum) {
        self.0 += other.0;
    }
}

#[derive(Clone, Default)]
struct Largest(f64);

impl Fold for Largest {
    fn add(&mut self, value: f64) {
        // NaN stays.
        self.0 = if value.is_nan() || self.0.is_nan() { f64::NAN } else { self.0.max(value.abs()) };
    }
    fn merge(&mut self, other: &Largest) {
        self.add(other.0);
    }
}

impl Fold for Squares {
    fn add(&mut self, value: f64) {
        Squares::add(self, value);
    }
    fn merge(&mut self, other: &Squares) {
        Squares::merge(self, other);
    }
}

/// Welford's, of the entries alone.
#[derive(Clone)]
struct Moments {
    count: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments { count: 0, mean: 0.0, m2: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Fold for Moments {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.m2 += delta * (value - self.mean);
        self.range(value, value);
    }

    /// Chan, Golub and LeVeque (1979).
    fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        let (here, there, all) = (self.count as f64, other.count as f64, (self.count + other.count) as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * (there / all);
        self.m2 += other.m2 + delta * delta * (here / all) * there;
        self.count += other.count;
        self.range(other.min, other.max);
    }
}

impl Moments {
    fn range(&mut self, min: f64, max: f64) {
        if min.is_nan() || max.is_nan() {
            (self.min, self.max) = (f64::NAN, f64::NAN);
        } else if !self.min.is_nan() {
            (self.min, self.max) = (self.min.min(min), self.max.max(max));
        }
    }

    /// Of `rows` elements, of which those that were not seen are zero.
    fn with_zeros(mut self, rows: u64) -> Moments {
        let zeros = rows.saturating_sub(self.count);
        if zeros > 0 {
            self.merge(&Moments { count: zeros, mean: 0.0, m2: 0.0, min: 0.0, max: 0.0 });
        }
        self
    }
}

/// One state for each row, or each column.
fn fold<F: Fold>(session: &Session, name: &'static str, a: &Sparse, of_rows: bool) -> Result<Job<Vec<F>>> {
    let along = of_rows == (a.format() == Compressed::Rows);
    with_real!(a.dtype(), T => if along { fold_lines::<T, F>(session, name, a) } else { fold_places::<T, F>(session, name, a) })
}

fn fold_lines<T: Real, F: Fold>(session: &Session, name: &'static str, a: &Sparse) -> Result<Job<Vec<F>>> {
    let bytes = a.lines() * size_of::<F>() as u64;
    let mut plan = Plan::new(name);
    plan.hold(bytes);
    plan.bound(a.stored_bytes());
    let turn = plan.serial();
    let (states, lines) = (Arc::new(Mutex::new(Vec::new())), a.lines() as usize);
    for piece in
        a.pieces(session.memory_bytes().saturating_sub(bytes) / (4 * (PLAN_THREADS + 1)), |lines| lines * size_of::<F>() as u64)
    {
        let (blocks, states) = (a.blocks(&piece), Arc::clone(&states));
        let task =
            Task::new(name).flops(2 * piece.entries()).held((piece.lines().end - piece.lines().start) as usize * size_of::<F>());
        let task = a.regions(&mut plan, &piece).into_iter().fold(task, Task::read);
        // The parts of a line are merged in order.
        let task = if piece.continues || piece.breaks_off { task.update(turn) } else { task };
        plan.task(task.run(move |cx| {
            let range = blocks.piece.lines();
            let mut part = vec![F::default(); (range.end - range.start) as usize];
            with_lines!(blocks, cx.blocks, T, a => a.each_line(|line, entries| entries.each(|_, value| part[line].add(value.f64()))));
            let mut states = states.locked();
            states.resize(lines, F::default());
            states[range.start as usize..range.end as usize].iter_mut().zip(&part).for_each(|(all, part)| all.merge(part));
            Ok(())
        }));
    }
    let job = Job::new(session, vec![plan], move |_| {
        let mut states = std::mem::take(&mut *states.locked());
        states.resize(lines, F::default());
        Ok(states)
    })?;
    Ok(job)
}

fn fold_places<T: Real, F: Fold>(session: &Session, name: &'static str, a: &Sparse) -> Result<Job<Vec<F>>> {
    let (bytes, memory) = (a.width() * size_of::<F>() as u64, session.memory_bytes());
    // Half of the budget has room for them, of which others may have the rest.
    let lanes = (memory / 4 / bytes.max(1)).clamp(1, PLAN_THREADS);
    let mut plan = Plan::new(name);
    plan.hold(bytes * lanes);
    plan.bound(a.stored_bytes());
    plan.note("copies", lanes);
    let turns = plan.volatile("turns", lanes);
    let states: Vec<Arc<Mutex<Vec<F>>>> = (0..lanes).map(|_| Arc::default()).collect();
    let width = usize::try_from(a.width()).map_err(|_| Error::shape(format!("{} places", a.width())))?;
    for (index, piece) in a.pieces(memory.saturating_sub(bytes * lanes) / (4 * (PLAN_THREADS + 1)), |_| 0).iter().enumerate() {
        let lane = index as u64 % lanes;
        let (blocks, states) = (a.blocks(piece), Arc::clone(&states[lane as usize]));
        let task = Task::new(name).flops(2 * piece.entries()).update(Region::span(turns, lane, 1));
        let task = a.regions(&mut plan, piece).into_iter().fold(task, Task::read);
        plan.task(task.run(move |cx| {
            let mut states = states.locked();
            states.resize(width, F::default());
            with_lines!(blocks, &cx.blocks[1..], T, a => {
                a.each_line(|_, entries| entries.each(|place, value| states[place].add(value.f64())));
            });
            Ok(())
        }));
    }
    Job::new(session, vec![plan], move |_| {
        let mut states = states.iter().map(|lane| std::mem::take(&mut *lane.locked()));
        let mut all = states.next().unwrap_or_default();
        all.resize(width, F::default());
        states.for_each(|lane| all.iter_mut().zip(&lane).for_each(|(all, part)| all.merge(part)));
        Ok(all)
    })
}
