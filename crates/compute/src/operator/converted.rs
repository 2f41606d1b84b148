//! Passes that compute in another type than the rows have: rows are converted a block at a time.

use std::marker::PhantomData;

use outcore_core::Result;
use outcore_kernels as kernels;
use outcore_kernels::{Lines, Mat, MatMut, MatRef, Real};

use crate::pass::{Cost, Fold, Map, RowMap, TaskContext};

/// A pass over rows of U that is made for rows of T.
pub(super) struct Converted<P, T> {
    pass: P,
    width: usize,
    to: PhantomData<T>,
}

impl<P, T: Real> Converted<P, T> {
    /// `width` is the number of elements of a row.
    pub(super) fn new(pass: P, width: u64) -> Self {
        Converted {
            pass,
            width: width as usize,
            to: PhantomData,
        }
    }

    fn bytes(&self, rows: usize) -> usize {
        rows * self.width * size_of::<T>()
    }

    fn rows<U: Real>(rows: MatRef<'_, U>) -> Result<Mat<T>> {
        let mut converted = Mat::zeros(rows.nrows(), rows.ncols());
        kernels::convert_into(converted.as_mut(), rows)?;
        Ok(converted)
    }
}

impl<T: Real, U: Real, P: Map<T>> Map<U> for Converted<P, T> {
    type Element = P::Element;

    fn width(&self) -> usize {
        self.pass.width()
    }

    fn held_bytes(&self) -> u64 {
        self.pass.held_bytes()
    }

    fn task_bytes(&self, rows: usize) -> usize {
        self.pass.task_bytes(rows) + self.bytes(rows)
    }

    fn start(&self) -> P::Element {
        self.pass.start()
    }

    fn dense(&self, into: &mut [P::Element], rows: MatRef<'_, U>) -> Result<()> {
        self.pass.dense(into, Self::rows(rows)?.as_ref())
    }

    fn sparse(&self, into: &mut [P::Element], first: u64, lines: impl Lines<U>) -> Result<()> {
        self.pass
            .sparse(into, first, kernels::Converted::new(lines))
    }

    fn merge(&self, into: &mut P::Element, other: &P::Element) {
        self.pass.merge(into, other);
    }
}

impl<T: Real, U: Real, P: Fold<T>> Fold<U> for Converted<P, T> {
    type Element = P::Element;

    fn elements(&self) -> usize {
        self.pass.elements()
    }

    fn held_bytes(&self) -> u64 {
        self.pass.held_bytes()
    }

    fn task_bytes(&self, rows: usize) -> usize {
        self.pass.task_bytes(rows) + self.bytes(rows)
    }

    fn start(&self, state: &mut [P::Element]) {
        self.pass.start(state);
    }

    fn dense(&self, state: &mut [P::Element], first: u64, rows: MatRef<'_, U>) -> Result<()> {
        self.pass.dense(state, first, Self::rows(rows)?.as_ref())
    }

    fn sparse(&self, state: &mut [P::Element], first: u64, lines: impl Lines<U>) -> Result<()> {
        self.pass
            .sparse(state, first, kernels::Converted::new(lines))
    }

    fn merge(&self, into: &mut [P::Element], other: &[P::Element]) {
        self.pass.merge(into, other);
    }
}

impl<T: Real, U: Real, P: RowMap<T, Element = T>> RowMap<U> for Converted<P, T> {
    type Element = T;

    fn width(&self) -> u64 {
        self.pass.width()
    }

    fn held_bytes(&self) -> u64 {
        self.pass.held_bytes()
    }

    fn cost(&self, rows: usize, entries: usize, by_rows: bool) -> Cost {
        let cost = self.pass.cost(rows, entries, by_rows);
        Cost {
            held: cost.held + self.bytes(rows),
            ..cost
        }
    }

    fn dense(&self, y: MatMut<'_, T>, x: MatRef<'_, U>, work: TaskContext<'_>) -> Result<()> {
        self.pass.dense(y, Self::rows(x)?.as_ref(), work)
    }

    fn sparse_bytes_max(&self) -> u64 {
        self.pass.sparse_bytes_max()
    }

    fn sparse(
        &self,
        y: MatMut<'_, T>,
        numbers: &mut [f64],
        lines: impl Lines<U>,
        work: TaskContext<'_>,
    ) -> Result<()> {
        let lines = kernels::Converted::new(lines);
        self.pass.sparse(y, numbers, lines, work)
    }
}
