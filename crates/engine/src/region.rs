//! Strided bytes on an extent: their overlap, and how they lie in a frame.
//!
//! A region is `rows` runs of `row_bytes` bytes, `stride` bytes apart:
//!
//! ```text
//!   offset            offset + stride      offset + 2 * stride
//!   |<- row_bytes ->|.....|<- row_bytes ->|.....|<- row_bytes ->|
//! ```
//!
//! In memory every byte keeps its address modulo the device's block, so that any region, however
//! unaligned, is read straight into place: the sectors around a row land around it, and rows are
//! far enough apart that no two share a sector. The distance between rows is congruent to the
//! stride on the device, so kernels still see one constant leading dimension.

use std::ops::Range;

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
        Region { extent, offset, row_bytes: bytes, stride: bytes, rows: 1 }
    }

    /// Number of bytes, gaps left out.
    pub fn bytes(&self) -> u64 {
        self.row_bytes * self.rows
    }

    /// True when there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// One past the last byte.
    pub fn end(&self) -> u64 {
        if self.is_empty() { self.offset } else { self.offset + self.stride * (self.rows - 1) + self.row_bytes }
    }

    /// The byte range of each run on the extent; contiguous rows are one run.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (count, length) = match (self.is_empty(), self.stride == self.row_bytes || self.rows == 1) {
            (true, _) => (0, 0),
            (_, true) => (1, self.bytes()),
            (_, false) => (self.rows, self.row_bytes),
        };
        let Region { offset, stride, .. } = *self;
        (0..count).map(move |row| offset + row * stride..offset + row * stride + length)
    }

    /// Whether any byte belongs to both. Exact, in time proportional to the smaller row count.
    pub fn overlaps(&self, other: &Region) -> bool {
        if self.extent != other.extent || self.is_empty() || other.is_empty() {
            return false;
        }
        if self.end() <= other.offset || other.end() <= self.offset {
            return false;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        few.runs().any(|run| many.touches(&run))
    }

    /// Whether a byte range of the same extent has a byte of the region.
    pub(crate) fn touches(&self, run: &Range<u64>) -> bool {
        let first_end = self.offset + self.row_bytes;
        let row = if run.start < first_end { 0 } else { (run.start - first_end) / self.stride + 1 };
        row < self.rows && self.offset + row * self.stride < run.end
    }

    /// How the region lies in a frame, for a device that transfers multiples of `block` bytes.
    pub fn layout(&self, block: u64) -> Layout {
        let lead = self.offset % block;
        let gap = self.stride - self.row_bytes;
        let spanned = self.rows <= 1 || gap <= SPANNED_GAP_BYTES.min(self.row_bytes / 8);
        let aligned = (self.offset | self.stride | self.row_bytes).is_multiple_of(block);
        let pitch = match (spanned, aligned) {
            (true, _) => self.stride,
            (false, true) => self.row_bytes,
            (false, false) => {
                let least = self.row_bytes + 2 * (block - 1);
                let residue = self.stride % block;
                residue + least.saturating_sub(residue).next_multiple_of(block)
            }
        };
        let reach = if self.is_empty() { 0 } else { lead + pitch * (self.rows - 1) + self.row_bytes };
        Layout { lead: lead as usize, pitch: pitch as usize, bytes: reach.next_multiple_of(block) as usize, spanned }
    }

    /// How the region lies in memory that is not read from a device: as it is.
    pub(crate) fn in_place(&self) -> Layout {
        Layout { lead: 0, pitch: self.stride as usize, bytes: (self.end() - self.offset) as usize, spanned: true }
    }

    /// Device ranges, widened to whole blocks, and where each lands in the frame.
    pub fn loads(&self, layout: &Layout, block: u64) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let runs: Box<dyn Iterator<Item = Range<u64>>> = match layout.spanned {
            true => Box::new((!self.is_empty()).then_some(self.offset..self.end()).into_iter()),
            false => Box::new(self.runs()),
        };
        let layout = *layout;
        runs.enumerate().map(move |(row, run)| {
            let start = run.start / block * block;
            let length = (run.end.next_multiple_of(block) - start) as usize;
            let place = layout.lead + row * layout.pitch - (run.start - start) as usize;
            (start, place..place + length)
        })
    }

    /// Bytes that a load moves from the device.
    pub fn load_bytes(&self, block: u64) -> u64 {
        self.loads(&self.layout(block), block).map(|(_, place)| place.len() as u64).sum()
    }
}

/// Rows with at most this gap (and an eighth of a row) between them are read as one run: at
/// 1 GB/s and 100,000 operations a second, a request costs what 10 KB of transfer cost.
const SPANNED_GAP_BYTES: u64 = 8192;

/// Where the rows of a region are in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before the first byte of the first row.
    pub lead: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Bytes of the frame.
    pub bytes: usize,
    /// Read as one run, gaps included.
    pub(crate) spanned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region() -> impl Strategy<Value = Region> {
        (0u64..600, 1u64..90, 0u64..120, 1u64..9).prop_map(|(offset, row_bytes, gap, rows)| Region {
            extent: ExtentRef(0),
            offset,
            row_bytes,
            stride: row_bytes + gap,
            rows,
        })
    }

    fn bytes_of(region: &Region) -> std::collections::BTreeSet<u64> {
        region.runs().flatten().collect()
    }

    proptest! {
        #[test]
        fn overlap_is_exact(a in region(), b in region()) {
            prop_assert_eq!(a.overlaps(&b), !bytes_of(&a).is_disjoint(&bytes_of(&b)));
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
        }

        #[test]
        fn loads_put_every_byte_in_its_place(region in region(), power in 0u32..7) {
            let block = 1u64 << power;
            let layout = region.layout(block);
            let mut frame = vec![u64::MAX; layout.bytes];
            for (offset, place) in region.loads(&layout, block) {
                prop_assert_eq!(offset % block, 0);
                prop_assert_eq!(place.start as u64 % block, 0);
                prop_assert_eq!(place.len() as u64 % block, 0);
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

    #[test]
    fn an_empty_region_overlaps_nothing() {
        let empty = Region { extent: ExtentRef(0), offset: 5, row_bytes: 0, stride: 4, rows: 3 };
        assert!(!empty.overlaps(&Region::span(ExtentRef(0), 0, 100)));
        assert_eq!(empty.load_bytes(512), 0);
    }
}
