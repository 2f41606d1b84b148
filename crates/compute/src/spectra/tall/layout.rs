//! How rows of a tall matrix are cut, and the memory that follows from it.

use std::ops::Range;

use outcore_core::{MemorySplit, RealType};
use outcore_kernels as kernels;
use outcore_kernels::Blas;

/// Sums that are added to at once.
pub(super) const LANES: usize = 4;

/// Matrices of the shape of a sum: those of lanes, what they come to, and what that is added to.
pub(in super::super) const SUMS: usize = LANES + 4;

/// Bytes of a chunk: all columns of it are in the cache of a core.
const CHUNK_BYTES: usize = 256 << 10;

/// Rows of a chunk: products with fewer are slow, and what more of them pack grows no further.
const CHUNK_ROWS: [usize; 2] = [64, 4096];

/// Bytes of a panel in memory.
const PANEL_BYTES: usize = 1 << 20;

/// The largest sector of a device.
const SECTOR_BYTES: usize = 4096;

/// Rows of lanes, and of panels in scratch, are whole sectors.
pub(super) const fn sector_rows(real: RealType) -> usize {
    SECTOR_BYTES / real.bytes()
}

/// How rows are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) rows: usize,
    /// Rows of a chunk, a power of two.
    pub(super) chunk: usize,
    /// Rows of a panel, whole chunks.
    pub(super) panel: usize,
    /// Rows of a lane.
    pub(super) lane: usize,
}

impl Cut {
    /// `panel` rows a panel, but whole chunks and one of them at least.
    fn new(real: RealType, rows: usize, capacity: usize, panel: usize) -> Cut {
        let chunk = Cut::chunk(capacity);
        let lane = rows.div_ceil(LANES).max(1);
        Cut {
            rows,
            chunk,
            panel: (panel / chunk).max(1) * chunk,
            lane: lane.next_multiple_of(chunk.max(sector_rows(real))),
        }
    }

    fn chunk(capacity: usize) -> usize {
        let [least, most] = CHUNK_ROWS;
        let rows = CHUNK_BYTES / (8 * capacity.max(1));
        1 << rows.clamp(least, most).ilog2()
    }

    pub(super) fn lanes(&self) -> usize {
        self.rows.div_ceil(self.lane)
    }

    /// In order.
    pub(super) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Cut {
            rows, panel, lane, ..
        } = *self;
        cut(0..rows, lane).flat_map(move |lane| cut(lane, panel))
    }

    /// The chunks of a panel, counted from its first row.
    pub(super) fn chunks(
        &self,
        panel: &Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        cut(0..panel.len(), self.chunk)
    }

    pub(super) fn lane_of(&self, panel: &Range<usize>) -> usize {
        panel.start / self.lane
    }
}

fn cut(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(step)
        .map(move |first| first..end.min(first + step))
}

/// Where a tall matrix is, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct TallLayout {
    pub(in super::super) rows: usize,
    pub(in super::super) capacity: usize,
    pub(in super::super) in_memory: bool,
    /// Of what is stored.
    pub(in super::super) real: RealType,
    pub(super) cut: Cut,
}

impl TallLayout {
    pub(in super::super) fn in_memory(real: RealType, rows: usize, capacity: usize) -> TallLayout {
        TallLayout {
            rows,
            capacity,
            in_memory: true,
            real,
            cut: Cut::new(real, rows, capacity, PANEL_BYTES / (8 * capacity.max(1))),
        }
    }

    /// With the smallest panels.
    pub(in super::super) fn in_scratch(real: RealType, rows: usize, capacity: usize) -> TallLayout {
        let panel = Cut::chunk(capacity).max(sector_rows(real));
        TallLayout {
            rows,
            capacity,
            in_memory: false,
            real,
            cut: Cut::new(real, rows, capacity, panel),
        }
    }

    /// The same with panels as large as this division of memory has them, if it lies in scratch.
    pub(in super::super) fn widened(self, split: &MemorySplit) -> TallLayout {
        if self.in_memory {
            return self;
        }
        let unit = self.cut.panel;
        let rows = split.panel_bytes() as usize / (self.real.bytes() * self.capacity.max(1));
        let panel = (rows / unit).max(1) * unit;
        TallLayout {
            cut: Cut {
                panel: panel.min(self.cut.lane.next_multiple_of(unit)),
                ..self.cut
            },
            ..self
        }
    }

    /// What is held all the time where it has `columns` columns.
    pub(in super::super) fn held_bytes(&self, columns: usize) -> u64 {
        match self.in_memory {
            true => (self.real.bytes() * self.rows * columns) as u64,
            false => 0,
        }
    }

    /// What an operation on it and `width` columns beside it takes, with one task at a time.
    pub(in super::super) fn passing_bytes(&self, width: usize) -> u64 {
        let (cut, capacity) = (&self.cut, self.capacity);
        let panel = self.real.bytes() * cut.panel * capacity;
        // The largest product is a rotation, which reads a panel and writes one.
        let task = task_bytes(cut, capacity, capacity.max(width), &Blas::Builtin)
            + copied_bytes(self.real, cut, capacity);
        match self.in_memory {
            true => task as u64,
            false => task as u64 + 2 * frame_bytes(panel),
        }
    }

    /// What [`Tall::finish`] takes: the vectors once more, or a panel of them in another file, whose
    /// columns begin anywhere in a sector.
    pub(in super::super) fn finish_bytes(&self, columns: usize, budget_bytes: u64) -> u64 {
        let rows = self.cut.panel.min(self.rows);
        let column = 8 * rows;
        match self.in_memory {
            true => 8 * (self.rows * columns) as u64,
            false => {
                let written = 2 * (column + 3 * SECTOR_BYTES) * columns;
                let shared = (budget_bytes / 16).clamp(128 << 10, 32 << 20);
                let made = 16 * (self.cut.chunk * columns) as u64;
                frame_bytes(column * columns) + frame_bytes(written) + made + shared
            }
        }
    }

    /// What is read by an operation on all columns.
    pub(in super::super) fn pass_bytes(&self) -> u64 {
        match self.in_memory {
            true => 0,
            false => (self.real.bytes() * self.rows * self.capacity) as u64,
        }
    }
}

/// What a task holds that multiplies chunks of `used` columns, with `width` columns beside them:
/// packed operands, and a chunk as it becomes.
pub(super) fn task_bytes(cut: &Cut, used: usize, width: usize, blas: &Blas) -> usize {
    let shapes = [
        (used, width, cut.chunk),
        (cut.chunk, width, used),
        (width, width, cut.chunk),
    ];
    let packed = shapes.map(|(m, n, k)| kernels::gemm_scratch_bytes::<f64>(m, n, k, blas));
    packed.into_iter().fold(0, usize::max) + 8 * cut.chunk * width
}

/// A chunk as f64, where it is stored in f32.
pub(super) fn copied_bytes(real: RealType, cut: &Cut, capacity: usize) -> usize {
    match real {
        RealType::F32 => 8 * cut.chunk * capacity,
        RealType::F64 => 0,
    }
}

/// Frames are up to an eighth larger than their content, which may have gaps of an eighth.
fn frame_bytes(bytes: usize) -> u64 {
    (bytes + bytes / 3 + 2 * SECTOR_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_by_their_number_alone() {
        let shapes = [(1, 1), (1000, 3), (70_000, 40), (1_000_000, 4112)];
        for (rows, capacity, real) in shapes.into_iter().flat_map(|(rows, capacity)| {
            [RealType::F32, RealType::F64].map(|real| (rows, capacity, real))
        }) {
            let small = TallLayout::in_scratch(real, rows, capacity);
            let budgets = [1 << 20, 1 << 30, 1 << 40].map(MemorySplit::of);
            for layout in budgets.map(|split| small.widened(&split)) {
                let (cut, same) = (layout.cut, TallLayout::in_memory(real, rows, capacity).cut);
                assert_eq!((cut.chunk, cut.lane), (same.chunk, same.lane));
                assert!(cut.panel.is_multiple_of(sector_rows(real).max(cut.chunk)));
                let mut end = 0;
                for panel in cut.panels() {
                    assert_eq!(panel.start, end);
                    assert_eq!(cut.lane_of(&panel), (panel.end - 1) / cut.lane);
                    end = panel.end;
                }
                assert_eq!(end, rows);
                assert!((1..=LANES).contains(&cut.lanes()));
            }
        }
    }
}
