//! Products of rows that are rounded to bf16.

use faer::MatRef;

use crate::bf16::{Operand, Unit};
use crate::{Real, RealType};

/// Shorter rows, and fewer queries, are filled up with too many zeros.
const LEAST_COLUMNS: usize = 24;
const LEAST_QUERIES: usize = 16;
/// Products in a row that tell too little before no more are made, at first and at most.
const PATIENCE: [u32; 2] = [2, 8];

/// Products of tiles, as long as they pay.
pub(super) struct Rounded {
    unit: Unit,
    queries: Operand,
    rows: Operand,
    patience: u32,
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
            queries: Operand::default(),
            rows: Operand::default(),
            patience: PATIENCE[0],
        })
    }

    pub(super) fn take_rows<T: Real>(&mut self, rows: MatRef<'_, T>) {
        self.rows.pack_right(rows);
    }

    /// The products of queries, times a power of two, with the rows, in rows `stride` elements apart;
    /// both counts rounded up to a block.
    pub(super) fn multiply<T: Real>(
        &mut self,
        products: &mut [T],
        stride: usize,
        queries: MatRef<'_, T>,
        factor: T,
    ) {
        self.queries.pack_left(queries, factor.f64() as f32);
        let products = bytemuck::cast_slice_mut(products);
        (self.unit).multiply(products, stride, &self.queries, &self.rows);
    }

    /// Whether to go on after products that told enough, or too little.
    pub(super) fn pays_after(&mut self, told: bool) -> bool {
        self.patience = match told {
            true => (self.patience + 1).min(PATIENCE[1]),
            false => self.patience - 1,
        };
        self.patience > 0
    }
}
