//! Rows in the order of the centres that are nearest to them.

use std::sync::Arc;

use outcore_core::panels::cut;
use outcore_core::{DType, MemorySplit, Order, Result, Session, Stage};
use outcore_device::trim_heap;
use outcore_engine::{Plan, Task};
use outcore_kernels::RowCenters;
use outcore_matrix::{Array, Operand, Output, convert};

use crate::kmeans::assign;
use crate::neighbors::nearest::NAME;
use crate::pass::Rows;

/// Of a row, while it is put in order: its label and distance, and what finds them; then its place.
const ROW_BYTES: u64 = 20;
/// Rows between two looks at whether to go on.
const LOOK_ROWS: usize = 1 << 20;
/// Bytes of numbers that are written at a time.
const WRITTEN_BYTES: u64 = 1 << 20;

/// Rows in scratch.
#[derive(Clone)]
pub(super) struct Ordered {
    /// The rows.
    pub(super) rows: Array,
    /// The number that each had, int64.
    pub(super) numbers: Array,
    /// Where those of each centre begin, and where the last end.
    pub(super) starts: Vec<u64>,
}

impl Ordered {
    /// Memory that it takes to put as many rows in order.
    pub(super) fn held_bytes(rows: u64) -> u64 {
        ROW_BYTES * rows
    }

    pub(super) fn of(
        session: &Session,
        stage: &mut Stage,
        x: &Operand,
        centers: &RowCenters,
    ) -> Result<Ordered> {
        let n = x.rows();
        trim_heap();
        let _held = stage.reserve(NAME, 8 * n)?;
        let job = assign(session, Rows::Dense(x.clone()), centers.values(), None)?;
        let labels = stage.complete(job)?.labels;
        // In the memory that distances had, and as much again while labels are there.
        let of_order = stage.reserve(NAME, 4 * n)?;
        let (order, starts) = in_order_of(&labels, centers.count(), stage)?;
        drop((labels, of_order));
        // The allocator keeps what labels took, beside what moves rows.
        trim_heap();
        let by_rows = match x {
            Operand::Stored(array) if array.order() == Order::Row => array.clone(),
            _ => {
                let (x, dtype) = (x.clone(), x.dtype());
                stage.complete(convert(session, x, Output::Scratch, dtype, Order::Row)?)?
            }
        };
        let rows = stage.complete(by_rows.take_within(session, &order, Output::Scratch)?)?;
        trim_heap();
        Ok(Ordered {
            rows,
            numbers: stored(session, stage, order)?,
            starts,
        })
    }

    /// Where each row is, by its number.
    pub(super) fn places(&self, stage: &mut Stage) -> Result<Vec<u64>> {
        let bytes = stage.complete(self.numbers.read()?)?;
        let numbers: &[u64] = bytemuck::cast_slice(&bytes[..self.numbers.nbytes() as usize]);
        let mut places = vec![0; numbers.len()];
        for (place, number) in numbers.iter().enumerate() {
            places[*number as usize] = place as u64;
        }
        Ok(places)
    }
}

/// The numbers of the rows by their labels, those of one label in order; where each begins.
fn in_order_of(labels: &[u32], count: usize, stage: &Stage) -> Result<(Vec<u64>, Vec<u64>)> {
    let mut starts = vec![0_u64; count + 1];
    for some in labels.chunks(LOOK_ROWS) {
        stage.check()?;
        some.iter()
            .for_each(|label| starts[*label as usize + 1] += 1);
    }
    for center in 0..count {
        starts[center + 1] += starts[center];
    }
    let (mut next, mut order) = (starts.clone(), vec![0; labels.len()]);
    for (number, label) in labels.iter().enumerate() {
        if number.is_multiple_of(LOOK_ROWS) {
            stage.check()?;
        }
        let place = &mut next[*label as usize];
        order[*place as usize] = number as u64;
        *place += 1;
    }
    Ok((order, starts))
}

fn stored(session: &Session, stage: &mut Stage, numbers: Vec<u64>) -> Result<Array> {
    let count = numbers.len() as u64;
    let array = Array::temporary(session, DType::I64, &[count], Order::Row)?;
    let numbers = Arc::new(numbers);
    let mut plan = Plan::new(NAME);
    let extent = plan.extent(array.extent());
    let step = MemorySplit::new(session).block_bytes(WRITTEN_BYTES) / 8;
    for rows in cut(0..count, step) {
        let tile = array.layout().tile(extent, rows.clone(), 0..1);
        let numbers = Arc::clone(&numbers);
        plan.task(Task::new("number").write(tile.region).run(move |cx| {
            let numbers = &numbers[rows.start as usize..rows.end as usize];
            cx.blocks[0].slice_mut::<u64>().copy_from_slice(numbers);
            Ok(())
        }));
    }
    stage.run(plan, stage.fraction())?;
    Ok(array)
}
