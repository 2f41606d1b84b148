//! Strided bytes on an extent: their overlap, and how they lie in a frame.
//!
//! A region is `rows` runs of `row_bytes` bytes, `stride` bytes apart:
//!
//! ```text
//!   offset            offset + stride      offset + 2 * stride
//!   |<- row_bytes ->|.....|<- row_bytes ->|.....|<- row_bytes ->|
//! ```
//!
//! In memory every byte keeps its address modulo the device's sector, so that any region, however
//! unaligned, is read straight into place: the sectors around a row land around it, and rows are
//! far enough apart that no two share a sector. The distance between rows is congruent to the
//! stride on the device, so kernels see one constant leading dimension.

use std::ops::Range;

use crate::decoder::Decoder;
use crate::frame_size::frame_bytes;

/// An extent of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentRef(pub(crate) u32);

/// Strided bytes of one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    /// The extent they belong to.
    pub extent: ExtentRef,
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes in a row.
    pub row_bytes: u64,
    /// Bytes from the start of one row to the start of the next; at least `row_bytes`.
    pub stride: u64,
    /// Number of rows.
    pub rows: u64,
}

impl Region {
    /// A contiguous region.
    pub fn span(extent: ExtentRef, offset: u64, bytes: u64) -> Region {
        Region {
            extent,
            offset,
            row_bytes: bytes,
            stride: bytes,
            rows: 1,
        }
    }

    /// Number of bytes, without gaps.
    pub fn bytes(&self) -> u64 {
        self.row_bytes * self.rows
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// One past the last byte.
    pub fn end(&self) -> u64 {
        if self.is_empty() {
            self.offset
        } else {
            self.offset + self.stride * (self.rows - 1) + self.row_bytes
        }
    }

    /// The byte range of each run on the extent; contiguous rows are one run.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let region = *self;
        (0..self.run_count()).map(move |index| region.run(index))
    }

    /// Number of runs.
    pub(crate) fn run_count(&self) -> u64 {
        match (self.is_empty(), self.is_contiguous()) {
            (true, _) => 0,
            (_, true) => 1,
            (_, false) => self.rows,
        }
    }

    /// One of the runs.
    pub(crate) fn run(&self, index: u64) -> Range<u64> {
        let start = self.offset + index * self.stride;
        start
            ..start
                + if self.is_contiguous() {
                    self.bytes()
                } else {
                    self.row_bytes
                }
    }

    fn is_contiguous(&self) -> bool {
        self.stride == self.row_bytes || self.rows == 1
    }

    /// Whether the regions have a byte in common. Exact; in constant time for equal strides, else
    /// proportional to the smaller number of runs.
    pub fn overlaps(&self, other: &Region) -> bool {
        if self.extent != other.extent || self.is_empty() || other.is_empty() {
            return false;
        }
        if self.end() <= other.offset || other.end() <= self.offset {
            return false;
        }
        let (few, many) = if self.run_count() <= other.run_count() {
            (self, other)
        } else {
            (other, self)
        };
        if few.run_count() > 1 && few.stride == many.stride {
            return few.overlaps_in_step(many);
        }
        few.runs().any(|run| many.touches(&run))
    }

    /// Number of bytes in common. Exact for equal strides and for up to a million runs, otherwise
    /// an upper bound.
    pub fn shared_bytes(&self, other: &Region) -> u64 {
        const RUNS_MAX: u64 = 1 << 20;
        let common =
            |a: &Range<u64>, b: &Range<u64>| a.end.min(b.end).saturating_sub(a.start.max(b.start));
        if !self.overlaps(other) {
            return 0;
        }
        if self.run_count() > 1 && other.run_count() > 1 && self.stride == other.stride {
            // As in `overlaps_in_step`: a row overlaps only the row in which it starts and, if it
            // extends beyond the stride, the one after it.
            let (early, late) = if self.offset <= other.offset {
                (self, other)
            } else {
                (other, self)
            };
            let (skipped, column) = (
                (late.offset - early.offset) / early.stride,
                (late.offset - early.offset) % early.stride,
            );
            let same = common(&(0..early.row_bytes), &(column..column + late.row_bytes));
            let next = common(
                &(early.stride..early.stride + early.row_bytes),
                &(column..column + late.row_bytes),
            );
            let rows = |skipped: u64| early.rows.saturating_sub(skipped).min(late.rows);
            return same * rows(skipped) + next * rows(skipped + 1);
        }
        if self.run_count() + other.run_count() > RUNS_MAX {
            return self.bytes().min(other.bytes());
        }
        let (mut ours, mut theirs) = (self.runs().peekable(), other.runs().peekable());
        let mut bytes = 0;
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            bytes += common(one, two);
            let ours_ends = one.end <= two.end;
            _ = if ours_ends {
                ours.next()
            } else {
                theirs.next()
            };
        }
        bytes
    }

    /// Whether the regions have a byte in common, for equal strides. If the later one starts
    /// `skipped` rows and `column` bytes behind the earlier, its rows overlap only the row in which
    /// they start and, if they extend beyond the stride, the one after it.
    fn overlaps_in_step(&self, other: &Region) -> bool {
        let (early, late) = if self.offset <= other.offset {
            (self, other)
        } else {
            (other, self)
        };
        let (skipped, column) = (
            (late.offset - early.offset) / early.stride,
            (late.offset - early.offset) % early.stride,
        );
        let same = column < early.row_bytes && skipped < early.rows;
        let next = column + late.row_bytes > early.stride && skipped + 1 < early.rows;
        same || next
    }

    /// Whether a byte range of the same extent overlaps the region.
    pub(crate) fn touches(&self, run: &Range<u64>) -> bool {
        let first_end = self.offset + self.row_bytes;
        let row = if run.start < first_end {
            0
        } else {
            (run.start - first_end) / self.stride + 1
        };
        row < self.rows && self.offset + row * self.stride < run.end
    }

    /// Layout of the region in a frame, for a device that transfers multiples of `sector_bytes` bytes.
    pub fn layout(&self, sector_bytes: u64) -> FrameLayout {
        let lead = self.offset % sector_bytes;
        let apart = self.pitch_apart(sector_bytes);
        let spanned = self.rows <= 1 || self.is_dense(apart);
        let pitch = if spanned { self.stride } else { apart };
        let reach = if self.is_empty() {
            0
        } else {
            lead + pitch * (self.rows - 1) + self.row_bytes
        };
        FrameLayout {
            lead: lead as usize,
            pitch: pitch as usize,
            bytes: reach.next_multiple_of(sector_bytes) as usize,
            spanned,
        }
    }

    /// Bytes of budget for holding the region in memory: its frame, with padding and the gaps that
    /// are read.
    pub fn frame_bytes(&self, sector_bytes: u64) -> u64 {
        frame_bytes(self.layout(sector_bytes).bytes)
    }

    /// As [`frame_bytes`](Region::frame_bytes), of a region that is decoded.
    pub fn decoded_frame_bytes(&self, sector_bytes: u64, decoder: &Decoder) -> u64 {
        let [loaded, _] = decoder.layouts(self, sector_bytes);
        frame_bytes(loaded.bytes)
    }

    /// Distance in a frame between rows that are read one by one: no two may share a sector.
    fn pitch_apart(&self, sector_bytes: u64) -> u64 {
        if (self.offset | self.stride | self.row_bytes).is_multiple_of(sector_bytes) {
            return self.row_bytes;
        }
        let least = self.row_bytes + 2 * (sector_bytes - 1);
        let residue = self.stride % sector_bytes;
        residue + least.saturating_sub(residue).next_multiple_of(sector_bytes)
    }

    /// Whether one request for the span costs less than one request a row with `apart` bytes of
    /// frame each.
    fn is_dense(&self, apart: u64) -> bool {
        let gap = self.stride - self.row_bytes;
        let near = gap <= REQUEST_COST_BYTES.min(self.row_bytes / 8);
        // Reading the gaps takes no more memory than the padding of separate rows. For long rows,
        // at most half of the transfer may be gaps.
        let padded =
            self.stride <= apart && (self.row_bytes < LONG_ROW_BYTES || gap <= self.row_bytes);
        // Rows so short that the number of requests dominates, as long as the frame is at most
        // twice as large as with padding.
        let short = self.row_bytes <= SHORT_ROW_BYTES
            && gap <= REQUEST_COST_BYTES
            && self.stride <= 2 * apart;
        near || (apart > self.row_bytes && (padded || short))
    }

    /// Layout of a region that is used in place, without a transfer.
    pub(crate) fn in_place(&self) -> FrameLayout {
        FrameLayout {
            lead: 0,
            pitch: self.stride as usize,
            bytes: (self.end() - self.offset) as usize,
            spanned: true,
        }
    }

    /// Device ranges, widened to whole blocks, and their positions in the frame.
    pub fn loads(
        &self,
        layout: &FrameLayout,
        sector_bytes: u64,
    ) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let runs: Box<dyn Iterator<Item = Range<u64>>> = match layout.spanned {
            true => Box::new(
                (!self.is_empty())
                    .then_some(self.offset..self.end())
                    .into_iter(),
            ),
            false => Box::new(self.runs()),
        };
        let layout = *layout;
        runs.enumerate().map(move |(row, run)| {
            let start = run.start / sector_bytes * sector_bytes;
            let length = (run.end.next_multiple_of(sector_bytes) - start) as usize;
            let place = layout.lead + row * layout.pitch - (run.start - start) as usize;
            (start, place..place + length)
        })
    }

    /// Bytes that a load moves from the device.
    pub fn load_bytes(&self, sector_bytes: u64) -> u64 {
        self.loads(&self.layout(sector_bytes), sector_bytes)
            .map(|(_, place)| place.len() as u64)
            .sum()
    }
}

/// Rows with longer gaps are never read as one run: at 1 GB/s and 100,000 operations a second, a
/// request costs as much as a transfer of 10 KB.
const REQUEST_COST_BYTES: u64 = 8192;
/// From this length on, the transfer of a row costs about as much as its request.
const LONG_ROW_BYTES: u64 = 4096;
/// Up to this length, the transfer of a row is cheap compared to its request.
const SHORT_ROW_BYTES: u64 = 1024;

/// Positions of the rows of a region in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Bytes before the first byte of the first row.
    pub lead: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Bytes of the frame.
    pub bytes: usize,
    /// Read as one run, gaps included.
    pub(crate) spanned: bool,
}

/// Longest single request: long enough for any device, short enough that reads overlap writes.
const REQUEST_BYTES: u64 = 1 << 20;

/// A range cut into requests: offsets and lengths.
pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let Range { start, end } = range;
    (start..end)
        .step_by(REQUEST_BYTES as usize)
        .map(move |offset| (offset, REQUEST_BYTES.min(end - offset)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region() -> impl Strategy<Value = Region> {
        (0u64..600, 1u64..90, 0u64..120, 1u64..9).prop_map(|(offset, row_bytes, gap, rows)| {
            Region {
                extent: ExtentRef(0),
                offset,
                row_bytes,
                stride: row_bytes + gap,
                rows,
            }
        })
    }

    fn bytes_of(region: &Region) -> std::collections::BTreeSet<u64> {
        region.runs().flatten().collect()
    }

    proptest! {
        /// Columns of one matrix were compared row by row.
        #[test]
        fn overlap_is_exact_for_equal_strides(a in region(), b in region(), rows in 1u64..9) {
            let b = Region { stride: a.stride, row_bytes: b.row_bytes.min(a.stride), rows, ..b };
            prop_assert_eq!(a.overlaps(&b), !bytes_of(&a).is_disjoint(&bytes_of(&b)));
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            prop_assert_eq!(a.shared_bytes(&b), bytes_of(&a).intersection(&bytes_of(&b)).count() as u64);
        }

        #[test]
        fn overlap_is_exact(a in region(), b in region()) {
            prop_assert_eq!(a.overlaps(&b), !bytes_of(&a).is_disjoint(&bytes_of(&b)));
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            prop_assert_eq!(a.shared_bytes(&b), bytes_of(&a).intersection(&bytes_of(&b)).count() as u64);
        }

        #[test]
        fn loads_put_every_byte_in_its_place(region in region(), power in 0u32..7) {
            let sector_bytes = 1u64 << power;
            let layout = region.layout(sector_bytes);
            let mut frame = vec![u64::MAX; layout.bytes];
            for (offset, place) in region.loads(&layout, sector_bytes) {
                prop_assert_eq!(offset % sector_bytes, 0);
                prop_assert_eq!(place.start as u64 % sector_bytes, 0);
                prop_assert_eq!(place.len() as u64 % sector_bytes, 0);
                for (index, cell) in frame[place].iter_mut().enumerate() {
                    prop_assert_eq!(*cell, u64::MAX, "two rows share a place");
                    *cell = offset + index as u64;
                }
            }
            for row in 0..region.rows {
                for column in 0..region.row_bytes {
                    let at = layout.lead + row as usize * layout.pitch + column as usize;
                    prop_assert_eq!(frame[at], region.offset + row * region.stride + column);
                }
            }
        }
    }

    /// Each unaligned row took two sectors of padding in its frame and a request, so that one
    /// column of a narrow matrix of 2,000,000 rows needed 2 GB and read each sector again for every
    /// row in it.
    #[test]
    fn short_rows_close_together_are_read_as_one() {
        let column = Region {
            extent: ExtentRef(0),
            offset: 4096,
            row_bytes: 4,
            stride: 40,
            rows: 2_000_000,
        };
        assert_eq!(column.loads(&column.layout(512), 512).count(), 1);
        assert!(
            column.frame_bytes(512) <= 80_004_096,
            "{}",
            column.frame_bytes(512)
        );
        assert!(column.load_bytes(512) <= 80_001_024);
        // Rows that are far apart are read one by one.
        let sparse = Region {
            stride: 40_000,
            ..column
        };
        assert_eq!(sparse.loads(&sparse.layout(512), 512).count(), 2_000_000);
    }

    proptest! {
        /// Callers size their panels by the bytes of a frame; neither these nor the traffic may
        /// exceed a small multiple of the rows.
        #[test]
        fn frames_and_traffic_stay_near_the_rows(
            offset in 0u64..9000, row_bytes in 1u64..20_000, gap in 0u64..20_000, rows in 2u64..9, power in 9u32..13,
        ) {
            let (sector_bytes, region) = (1 << power, Region { extent: ExtentRef(0), offset, row_bytes, stride: row_bytes + gap, rows });
            let layout = region.layout(sector_bytes);
            prop_assert_eq!(region.frame_bytes(sector_bytes), frame_bytes(layout.bytes));
            prop_assert!(layout.pitch as u64 <= 2 * (row_bytes + 3 * sector_bytes));
            if row_bytes >= 4096 {
                prop_assert!(region.load_bytes(sector_bytes) <= 2 * region.bytes() + rows * 2 * sector_bytes);
                prop_assert!(!layout.spanned || region.load_bytes(sector_bytes) <= 2 * region.bytes() + 2 * sector_bytes);
            }
        }
    }

    #[test]
    fn an_empty_region_overlaps_nothing() {
        let empty = Region {
            extent: ExtentRef(0),
            offset: 5,
            row_bytes: 0,
            stride: 4,
            rows: 3,
        };
        assert!(!empty.overlaps(&Region::span(ExtentRef(0), 0, 100)));
        assert_eq!(empty.load_bytes(512), 0);
    }
}
