//! Products of rows that are rounded to bf16.

use std::ops::Range;

use faer::MatRef;

use super::marks::SIDE;
use crate::bf16::{BLOCK, Operand, Ready, Unit};
use crate::{Real, RealType};

/// Shorter rows, and fewer queries, are filled up with too many zeros.
const LEAST_COLUMNS: usize = 24;
const LEAST_QUERIES: usize = 16;
/// How many more queries products may tell too little of than enough, at first and at most, before no
/// more are made.
const PATIENCE: [usize; 2] = [512, 4096];

/// Products of tiles, as long as they pay.
pub(super) struct Rounded {
    unit: Unit,
    queries: Packed,
    rows: Packed,
    patience: usize,
}

/// An operand of the rows from this one on.
#[derive(Default)]
struct Packed {
    operand: Operand,
    first: Option<usize>,
}

impl Packed {
    /// Makes these rows the next ones; whether they are others.
    fn becomes(&mut self, first: usize) -> bool {
        self.first.replace(first) != Some(first)
    }
}

impl Rounded {
    /// Whether such products may be faster.
    pub(super) fn suits<T: Real>(m: usize, d: usize) -> bool {
        T::DTYPE == RealType::F32 && d >= LEAST_COLUMNS && m >= LEAST_QUERIES
    }

    /// Of m queries and rows of d elements, where this CPU makes such products faster.
    pub(super) fn new<T: Real>(m: usize, d: usize) -> Option<Rounded> {
        let unit = Unit::new().filter(|_| Rounded::suits::<T>(m, d))?;
        Some(Rounded {
            unit,
            queries: Packed::default(),
            rows: Packed::default(),
            patience: PATIENCE[0],
        })
    }

    /// Takes the queries of a tile, times a power of two, and its rows; each of them with the number
    /// of the first.
    pub(super) fn take<T: Real>(
        &mut self,
        (first_query, queries): (usize, MatRef<'_, T>),
        factor: T,
        (first_row, rows): (usize, MatRef<'_, T>),
    ) {
        if self.queries.becomes(first_query) {
            let factor = factor.f64() as f32;
            self.queries.operand.pack_right(queries, factor);
        }
        if self.rows.becomes(first_row) {
            self.rows.operand.pack_left(rows);
        }
    }

    /// Makes products of some queries of the tile, from a multiple of [`SIDE`] on.
    pub(super) fn products(&self, queries: Range<usize>) -> Products<'_> {
        Products {
            rounded: self,
            ready: self.unit.ready(),
            queries: queries.start / BLOCK..queries.end.div_ceil(BLOCK),
        }
    }

    /// Takes note of products that told enough of some queries, or too little.
    pub(super) fn has_told(&mut self, enough: bool, queries: usize) {
        self.patience = match enough {
            true => (self.patience + queries).min(PATIENCE[1]),
            false => self.patience.saturating_sub(queries),
        };
    }

    /// Whether to make more.
    pub(super) fn pays(&self) -> bool {
        self.patience > 0
    }
}

/// Products of some queries with rows.
pub(super) struct Products<'a> {
    rounded: &'a Rounded,
    ready: Ready,
    queries: Range<usize>,
}

impl Products<'_> {
    /// Those of some rows of the tile, from a multiple of [`SIDE`] on, in rows of [`SIDE`] products.
    pub(super) fn of<T: Real>(&self, products: &mut [T], rows: Range<usize>) {
        let rows = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
        let [of_rows, of_queries] = [&self.rounded.rows, &self.rounded.queries];
        self.ready.multiply(
            bytemuck::cast_slice_mut(products),
            SIDE,
            (&of_rows.operand, rows),
            (&of_queries.operand, self.queries.clone()),
        );
    }
}
