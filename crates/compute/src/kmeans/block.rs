//! One block of rows: what is known of them between rounds, and what a round does with them.
//!
//! Of each row a label and two bounds are kept: `upper` is no less than the distance to the centre
//! of the label, `lower` no more than that to any other (Hamerly, "Making k-means even faster",
//! 2010). Centres that move relax them by as much. While `upper < max(lower, half the distance to
//! the next centre)` the label stays, and the row is neither compared nor read. Bounds are rounded
//! outwards and widened by the error of the distances that they come from, so that pruning changes
//! no label. Of rows that are clustered along some vectors the squares are kept that they have
//! there, from which their distances follow. A row that is read from the copy, and there so near to the border between two clusters
//! that it may lie on the other side in X, is left
//! *unsure*, for a look at X itself.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outcore_core::{Error, Result};
use outcore_device::Locked;
use outcore_engine::Context;
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Nearest, PackedCenters, Real, view};

use super::Weights;
use super::centers::{Centers, Moved, SLACK, above, below};
use super::piece::{BlockPiece, BlockRows, PackedBlock};
use super::totals::{Shape, Totals};

/// Rows that are compared together: they stay in the second-level cache, and where rows are long
/// they leave memory for others.
pub(super) fn part_rows<T>(features: usize) -> usize {
    ((256 << 10) / (features * size_of::<T>()).max(1)).clamp(32, 512)
}

/// Bytes of state a row: a label, two bounds, and a square.
pub(super) const LABEL_BYTES: u64 = 4;
pub(super) const BOUND_BYTES: u64 = 8;
pub(super) const SQUARE_BYTES: u64 = 4;
/// A block is packed where that moves no row by more than this part of the distance to its centre.
const PACKING_ERROR_MAX: f64 = 1.0 / (1 << 12) as f64;

/// What is known of the rows of a block.
pub(super) struct RowStates<T> {
    pub(super) labels: Vec<u32>,
    /// Empty where there is no memory for bounds.
    upper: Vec<f32>,
    lower: Vec<f32>,
    /// Of what rows are along the space of centres, beside bounds; empty where that is all of them.
    pub(super) squares: Vec<f32>,
    /// Rows that had to be compared when the bounds were last relaxed.
    active: usize,
    /// Rows for which the copy is too coarse in this round.
    pub(super) unsure: Vec<u32>,
    /// How the copy of the block is packed; `None` without one.
    pub(super) packing: Option<Arc<PackedBlock<T>>>,
}

impl<T: Real> RowStates<T> {
    /// Nothing yet: zeros, whose pages come into being when the first pass writes them.
    pub(super) fn new(rows: usize, bounds: bool, squares: bool) -> RowStates<T> {
        let bounds = if bounds { rows } else { 0 };
        RowStates {
            labels: vec![0; rows],
            upper: vec![0.0; bounds],
            lower: vec![0.0; bounds],
            squares: vec![0.0; if squares { bounds } else { 0 }],
            active: rows,
            unsure: Vec::new(),
            packing: None,
        }
    }

    pub(super) fn has_bounds(&self) -> bool {
        !self.upper.is_empty()
    }

    /// The distances to the centres of the labels, rounded up.
    pub(super) fn upper(&self) -> &[f32] {
        &self.upper
    }

    /// Relaxes the bounds by how far centres have moved, and counts the rows that have to be
    /// compared.
    pub(super) fn relax_bounds(&mut self, moved: &Moved) -> usize {
        if self.upper.is_empty() {
            return self.labels.len();
        }
        let mut active = 0;
        for ((upper, lower), &label) in self.upper.iter_mut().zip(&mut self.lower).zip(&self.labels)
        {
            let label = label as usize;
            let others = if label == moved.farthest {
                moved.second
            } else {
                moved.first
            };
            *upper = (*upper + moved.by[label]) * (1.0 + SLACK);
            *lower = (*lower - others) * (1.0 - SLACK);
            active += usize::from(!is_settled(*upper, *lower, moved.gaps[label]));
        }
        self.active = active;
        active
    }

    /// Whether most rows had to be compared when the bounds were last relaxed.
    pub(super) fn are_most_active(&self) -> bool {
        4 * self.active > 3 * self.labels.len()
    }

    /// Rows that have to be compared.
    pub(super) fn active(&self, gaps: &[f32]) -> Vec<u32> {
        let bounds = self.upper.iter().zip(&self.lower).zip(&self.labels);
        let active = bounds.zip(0..).filter(|(((upper, lower), label), _)| {
            !is_settled(**upper, **lower, gaps[**label as usize])
        });
        active.map(|(_, row)| row).collect()
    }

    /// Keeps what was found in squared distances with an error, of a row that was off by at most
    /// `off`.
    pub(super) fn keep(
        &mut self,
        row: usize,
        label: u32,
        nearest: f64,
        second: f64,
        error: f64,
        off: f64,
    ) {
        self.labels[row] = label;
        if let (Some(upper), Some(lower)) = (self.upper.get_mut(row), self.lower.get_mut(row)) {
            *upper = above((nearest.max(0.0) + error).sqrt() + off);
            *lower = below(((second - error).max(0.0).sqrt() - off).max(0.0));
        }
    }
}

fn is_settled(upper: f32, lower: f32, gap: f32) -> bool {
    upper < lower.max(gap)
}

/// A round, as the tasks of all blocks share it.
pub(super) struct Pass<T: Real> {
    pub(super) shape: Shape,
    pub(super) centers: Arc<Centers<T>>,
    pub(super) packed: PackedCenters<T>,
    /// Taken off all rows and centres.
    pub(super) shift: Arc<Vec<f64>>,
    pub(super) states: Arc<Vec<Mutex<RowStates<T>>>>,
    pub(super) weights: Weights,
    pub(super) blas: Blas,
    /// What errors call X.
    pub(super) object: String,
    /// What has become of the centres since the pass before; `None` while nothing is known of the
    /// rows.
    pub(super) moved: Option<Arc<Moved>>,
}

/// Rows of a block to look at.
pub(super) enum Wanted {
    These(Vec<u32>),
    /// Those that bounds do not settle.
    Active,
    /// The same, once the bounds have been relaxed.
    ActiveOnceRelaxed,
}

/// The memory of one part of a block.
struct PartMemory<'a, T> {
    x: &'a mut [T],
    scores: &'a mut [T],
    first: &'a mut [T],
    second: &'a mut [T],
    squares: &'a mut [T],
    labels: Vec<u32>,
    /// Squares in f64, where they are added up.
    exact: Vec<f64>,
}

impl<T: Real> Pass<T> {
    pub(super) fn is_first(&self) -> bool {
        self.moved.is_none()
    }

    /// Bytes of scratch of one task.
    pub(super) fn scratch_bytes(shape: Shape) -> usize {
        let rows = part_rows::<T>(shape.features);
        (rows * (shape.features + 3)
            + kernels::nearest_scratch::<T>(rows, shape.features, shape.clusters))
            * size_of::<T>()
    }

    /// Looks at rows of a block. The blocks of the context: one a piece, the copy where it is to be
    /// made, and the totals.
    pub(super) fn compare(
        &self,
        index: usize,
        first_row: u64,
        pieces: &[BlockPiece<T>],
        wanted: Wanted,
        cx: &mut Context<'_>,
    ) -> Result<()> {
        let (read, rest) = cx.blocks.split_at_mut(pieces.len());
        let Some((totals, copy)) = rest.split_last_mut() else {
            unreachable!("totals come last")
        };
        let totals = &mut Totals::of(totals.slice_mut(), self.shape);
        let rows: Vec<(usize, BlockRows<'_, T>)> = pieces
            .iter()
            .zip(&*read)
            .map(|(piece, block)| Ok((piece.rows.start, piece.of(block)?)))
            .collect::<Result<_>>()?;
        let states = &mut *self.states[index].locked();
        let count = states.labels.len();
        assert!(
            pieces.iter().all(|piece| piece.rows.end <= count),
            "pieces are of this block"
        );
        if let (Wanted::ActiveOnceRelaxed, Some(moved)) = (&wanted, &self.moved) {
            states.relax_bounds(moved);
        }
        let whole = pieces.len() == 1 && pieces[0].rows.len() == count;
        let part = &mut self.part(bytemuck::cast_slice_mut(cx.scratch));
        let d = self.shape.features;
        // Nearly all are compared in one go, which also tightens all bounds.
        let all = self.is_first() || !states.has_bounds() || (whole && states.are_most_active());
        let compared = match wanted {
            Wanted::These(rows) => rows,
            _ if all => (0..count as u32).collect(),
            _ => states.active(&self.centers.gaps),
        };
        let mut nearest = 0.0;
        let stop = || cx.cancelled.load(Ordering::Relaxed);
        for some in compared.chunks(part.labels.len()) {
            if stop() {
                return Err(Error::Cancelled);
            }
            let (from, to) = (some[0] as usize, some[some.len() - 1] as usize);
            if whole && to - from + 1 == some.len() {
                rows[0]
                    .1
                    .take(from..to + 1, &mut part.x[..some.len() * d], &self.shift)?;
            } else {
                for (row, out) in some.iter().zip(part.x.chunks_exact_mut(d)) {
                    let piece = rows.partition_point(|(start, _)| *start <= *row as usize) - 1;
                    let at = *row as usize - rows[piece].0;
                    rows[piece].1.take(at..at + 1, out, &self.shift)?;
                }
            }
            let off = rows[0].1.error();
            nearest += self
                .label(some, part, states, totals, (first_row, off), &stop)
                .map_err(|error| match &rows[0].1 {
                    BlockRows::Dense(x) => error.locate(*x, &self.object, first_row),
                    BlockRows::Packed(..) => error.into(),
                })?;
        }
        totals.compared(compared.len());
        if let ([copy], Some((_, BlockRows::Dense(x)))) = (copy, rows.first()) {
            let packed = PackedBlock::new(copy.bytes_mut(), *x, &self.shift)?;
            if packed.error <= PACKING_ERROR_MAX * (nearest / count as f64).sqrt() {
                states.packing = Some(Arc::new(packed));
            }
        }
        Ok(())
    }

    fn part<'a>(&self, memory: &'a mut [T]) -> PartMemory<'a, T> {
        let rows = part_rows::<T>(self.shape.features);
        let (x, rest) = memory.split_at_mut(rows * self.shape.features);
        let (first, rest) = rest.split_at_mut(rows);
        let (second, rest) = rest.split_at_mut(rows);
        let (squares, scores) = rest.split_at_mut(rows);
        let exact = vec![0.0; if self.is_first() { rows } else { 0 }];
        PartMemory {
            x,
            scores,
            first,
            second,
            squares,
            labels: vec![0; rows],
            exact,
        }
    }

    /// Finds the centres of some rows that have been taken, and adds those that have another one to
    /// the totals. The sum of the squared distances.
    fn label(
        &self,
        some: &[u32],
        part: &mut PartMemory<'_, T>,
        states: &mut RowStates<T>,
        totals: &mut Totals<'_>,
        (first_row, off): (u64, f64),
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<f64, NoDistance> {
        let (n, d) = (some.len(), self.shape.features);
        let x = view(&part.x[..n * d], n, d, d, 1)?;
        if self.is_first() {
            kernels::row_squares(&mut part.exact[..n], x)?;
        }
        some.iter()
            .zip(&mut part.labels)
            .for_each(|(&row, label)| *label = states.labels[row as usize]);
        let into = Nearest {
            label: &mut part.labels[..n],
            first: &mut part.first[..n],
            second: &mut part.second[..n],
            squares: &mut part.squares[..n],
        };
        kernels::nearest_until(into, x, &self.packed, part.scores, &self.blas, stop)?;
        if stop() {
            return Err(NoDistance::Other(Error::Cancelled));
        }
        // Of two sums of d products, which are different parts of (|x| + |c|)^2, and a few
        // roundings more.
        let relative = (d + 8) as f64 * T::EPSILON.f64();
        // A row that is off by e changes the difference of two squared distances by 2 e.(a - b);
        // what either rounds off, a row of X has as well.
        let doubt = 2.0 * off * self.centers.span;
        let mut sum = 0.0;
        for (at, &row) in some.iter().enumerate() {
            let square = part.squares[at].f64();
            let (nearest, second) = (
                square + part.first[at].f64(),
                square + part.second[at].f64(),
            );
            if !nearest.is_finite() {
                return Err(NoDistance::NotFinite);
            }
            if off > 0.0 && second - nearest <= doubt {
                states.unsure.push(row);
                continue;
            }
            let error = relative * (square.sqrt() + self.centers.reach).powi(2);
            let (row, label) = (row as usize, part.labels[at]);
            let before = states.labels[row];
            states.keep(row, label, nearest, second, error, off);
            sum += nearest.max(0.0);
            if before != label || self.is_first() {
                let weight = self.weights.of(first_row + row as u64);
                let x = &part.x[at * d..(at + 1) * d];
                totals.moved(x, weight, (!self.is_first()).then_some(before), label);
                if self.is_first() {
                    totals.seen(x, weight, part.exact[at]);
                }
            }
        }
        Ok(sum)
    }
}

/// Why a row has no nearest centre.
pub(super) enum NoDistance {
    NotFinite,
    Other(Error),
}

impl NoDistance {
    fn locate<T: Real>(self, x: kernels::MatRef<'_, T>, object: &str, first_row: u64) -> Error {
        match (self, kernels::first_non_finite(x)) {
            (NoDistance::NotFinite, Some((row, column))) => Error::NotFinite {
                object: object.to_owned(),
                row: first_row + row as u64,
                column: column as u64,
            },
            (other, _) => other.into(),
        }
    }
}

impl From<kernels::Error> for NoDistance {
    fn from(error: kernels::Error) -> NoDistance {
        NoDistance::Other(error.into())
    }
}

impl From<NoDistance> for Error {
    fn from(error: NoDistance) -> Error {
        match error {
            NoDistance::NotFinite => Error::Failed {
                what: "a squared distance overflows the element type".into(),
            },
            NoDistance::Other(error) => error,
        }
    }
}
