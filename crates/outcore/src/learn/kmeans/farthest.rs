//! The rows farthest from the centres of their clusters: where centres go that have lost their last row.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;
use outcore_kernels::Real;

use super::Lloyd;
use super::block::Known;
use super::centers::{Centers, distance};
use super::source::Rows;
use crate::error::Result;
use crate::job::Stage;

/// A row, less the shift, and how far it is from its centre.
pub(super) struct Far {
    pub(super) row: u64,
    pub(super) label: u32,
    pub(super) x: Vec<f64>,
    pub(super) distance: f64,
}

/// The farthest so far, by descending distance, then by row.
pub(super) type Found = Mutex<Vec<Far>>;

impl<T: Real> Lloyd<T> {
    /// The `count` rows farthest from their centres, fewer where others lie in theirs: one pass over all rows.
    pub(super) fn look_for_farthest(
        &self,
        stage: &mut Stage,
        known: &Arc<Vec<Mutex<Known<T>>>>,
        centers: &Arc<Centers<T>>,
        count: usize,
    ) -> Result<Vec<Far>> {
        let found: Arc<Found> = Arc::default();
        let mut plan = self.empty_plan(false);
        plan.hold((count * self.shape.features * 8) as u64);
        let x = self.x.extent(&mut plan);
        for (block, rows) in self.blocks.iter().enumerate() {
            let first_row = rows.start;
            let piece = self.dense_piece(x, block, 0..(rows.end - rows.start) as usize);
            let (known, centers, found, shift) =
                (Arc::clone(known), Arc::clone(centers), Arc::clone(&found), Arc::clone(&self.shift));
            let task = self.task(piece.rows.len()).read(piece.region());
            plan.task(task.run(move |cx| {
                let known = known[block].locked();
                Ok(look(&piece.of(&cx.blocks[0])?, &known.labels, first_row, &centers, &shift, count, &found)?)
            }));
        }
        let reached = stage.fraction();
        stage.run(plan, reached)?;
        Ok(std::mem::take(&mut *found.locked()))
    }
}

/// Keeps a row if it is among the farthest.
pub(super) fn offer(found: &Found, count: usize, row: u64, label: u32, distance: f64, x: impl FnOnce() -> Vec<f64>) {
    let mut found = found.locked();
    let place = found.partition_point(|far| far.distance > distance || (far.distance == distance && far.row < row));
    if distance > 0.0 && place < count {
        found.truncate(count - 1);
        found.insert(place, Far { row, label, x: x(), distance });
    }
}

fn look<T: Real>(
    rows: &Rows<'_, T>,
    labels: &[u32],
    first_row: u64,
    centers: &Centers<T>,
    shift: &[f64],
    count: usize,
    found: &Found,
) -> Result<()> {
    let d = shift.len();
    let mut x = vec![T::ZERO; d];
    for (at, &label) in labels.iter().enumerate() {
        rows.take(at..at + 1, &mut x, shift)?;
        let row = first_row + at as u64;
        let distance = distance(&x, &centers.values[label as usize * d..][..d]);
        offer(found, count, row, label, distance, || x.iter().map(|x| x.f64()).collect());
    }
    Ok(())
}
