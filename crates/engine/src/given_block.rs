//! Blocks of a plan that live in memory of the caller's: a tensor, a window, another program's
//! buffer.
//!
//! The memory takes the place of the block's frame, so it is where tasks find the bytes of the
//! region and where they stay when the run has ended. Rows lie there as the caller wants them:
//!
//! ```text
//!   device   offset            offset + stride      offset + 2 * stride
//!            |<- row_bytes ->|.....|<- row_bytes ->|.....|<- row_bytes ->|
//!   memory   0                pitch                2 * pitch
//!            |<- row_bytes ->|...|<- row_bytes ->|...|<- row_bytes ->|
//! ```
//!
//! Whole sectors of a row that lies in memory as it does on the device, address by address modulo
//! the sector, move straight. All else is copied by way of bounce buffers, which the plan reserves:
//! the ends of such rows, rows that lie otherwise, and short rows that are read together. Bytes
//! between the rows in memory are never touched. Pure, but for where the memory waits
//! for the run and, afterwards, for its owner.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use outcore_device::{Buf, Locked};

use crate::edges::split;
use crate::plan::Area;
use crate::region::{FrameLayout, Region, pieces};

/// Rows of at least this many sectors are read one by one where that avoids a copy: of their
/// transfer, the two sectors at the ends are a quarter at most.
const SECTORS_OF_LONG_ROW: u64 = 8;

/// Most bounce buffers of a run: enough to keep a device busy while one is copied.
const BOUNCE_BUFFERS_MAX: u64 = 16;

/// Memory that was given to a plan for a block: the way to get it back.
///
/// The memory is with this handle before the run begins and from its end on, whether the run was
/// carried out, failed, was cancelled or was never begun. While the run goes on, transfers in
/// flight included, it is the run's.
pub struct GivenBlock {
    given: Arc<Mutex<GivenMemory>>,
    direct_bytes: u64,
    copied_bytes: u64,
}

impl GivenBlock {
    /// The memory, unless a run has it or it was taken before. A run that begins after that fails.
    pub fn take(&self) -> Option<Buf> {
        let mut given = self.given.locked();
        match given.is_in_run {
            true => None,
            false => given.memory.take(),
        }
    }

    /// Bytes of the region that a load reads straight to their place.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes
    }

    /// Bytes of the region that a load copies there.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

impl fmt::Debug for GivenBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenBlock")
            .field("direct_bytes", &self.direct_bytes)
            .field("copied_bytes", &self.copied_bytes)
            .finish_non_exhaustive()
    }
}

struct GivenMemory {
    memory: Option<Buf>,
    is_in_run: bool,
}

/// Where the block of a region lives.
pub(crate) struct GivenLayout {
    pub(crate) geometry: Geometry,
    /// Bytes that a load moves from the device.
    pub(crate) load_bytes: u64,
    /// Longest transfer and number of transfers of a load that go by way of bounce buffers.
    longest_copy: u64,
    copies: u64,
    memory_bytes: u64,
    given: Arc<Mutex<GivenMemory>>,
}

impl GivenLayout {
    /// The memory for a residency; none while that of an earlier residency has it.
    pub(crate) fn borrow(&self) -> Option<Buf> {
        self.given.locked().memory.take()
    }

    pub(crate) fn put(&self, memory: Buf) {
        self.given.locked().memory = Some(memory);
    }
}

/// Buffers for the transfers that are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BounceBuffers {
    pub(crate) len: usize,
    pub(crate) count: usize,
}

impl BounceBuffers {
    pub(crate) fn bytes(self) -> u64 {
        self.len as u64 * self.count as u64
    }
}

/// The given memory of one plan.
#[derive(Clone, Default)]
pub(crate) struct GivenBlocks {
    by_region: HashMap<Region, Arc<GivenLayout>>,
    /// The first that cannot be used, and why.
    refused: Option<String>,
}

impl GivenBlocks {
    pub(crate) fn add(
        &mut self,
        areas: &[Area],
        region: Region,
        pitch: usize,
        memory: Buf,
    ) -> GivenBlock {
        let memory_bytes = memory.len() as u64;
        let geometry = match self.by_region.contains_key(&region) {
            true => Err("memory is given twice for one region".to_owned()),
            false => Geometry::new(areas, &region, pitch, &memory),
        };
        let given = Arc::new(Mutex::new(GivenMemory {
            memory: Some(memory),
            is_in_run: false,
        }));
        let mut handle = GivenBlock {
            given: Arc::clone(&given),
            direct_bytes: 0,
            copied_bytes: 0,
        };
        let geometry = match geometry {
            Ok(geometry) => geometry,
            Err(reason) => {
                self.refused.get_or_insert(reason);
                return handle;
            }
        };
        let (mut load_bytes, mut longest_copy, mut copies) = (0, 0, 0);
        for Move { bytes, is_direct } in geometry.loads() {
            let len = bytes.end - bytes.start;
            load_bytes += len;
            if is_direct {
                handle.direct_bytes += len;
            } else {
                (longest_copy, copies) = (len.max(longest_copy), copies + 1);
            }
        }
        handle.copied_bytes = region.bytes() - handle.direct_bytes;
        let place = GivenLayout {
            geometry,
            load_bytes,
            longest_copy,
            copies,
            memory_bytes,
            given,
        };
        self.by_region.insert(region, Arc::new(place));
        handle
    }

    /// Why the memory cannot be used, if it cannot.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    pub(crate) fn get(&self, region: &Region) -> Option<&Arc<GivenLayout>> {
        self.by_region.get(region)
    }

    /// Bytes of all memory, which the budget is charged for.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_region
            .values()
            .map(|place| place.memory_bytes)
            .sum()
    }

    /// Buffers for what is copied, of `wanted` bytes together within bounds; none if nothing is. A
    /// store copies no longer pieces than a load.
    pub(crate) fn bounce_buffers(&self, wanted: u64) -> BounceBuffers {
        let places = self.by_region.values();
        let longest = places.clone().map(|place| place.longest_copy).max();
        let copies: u64 = places.map(|place| place.copies).sum();
        let len = longest.unwrap_or(0).next_multiple_of(4096);
        let most = wanted.checked_div(len).unwrap_or(0);
        let count = most.clamp(1, BOUNCE_BUFFERS_MAX).min(copies);
        BounceBuffers {
            len: len as usize,
            count: count as usize,
        }
    }

    /// The run begins. False if some of the memory was taken back.
    pub(crate) fn begin(&self) -> bool {
        self.by_region.values().all(|place| {
            let mut given = place.given.locked();
            given.is_in_run = given.memory.is_some();
            given.is_in_run
        })
    }

    /// The run has ended: the memory is its owner's.
    pub(crate) fn end(&self) {
        self.by_region
            .values()
            .for_each(|place| place.given.locked().is_in_run = false);
    }
}

/// How the rows of a region lie on the device and in memory. Rows that follow each other in both
/// are one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    offset: u64,
    row_bytes: u64,
    stride: u64,
    rows: u64,
    pitch: u64,
    /// Sector of the device, bytes.
    unit: u64,
    /// Every byte has the same address modulo the sector in memory and on the device.
    is_alike: bool,
    /// Rows are read as one, gaps included.
    is_spanned: bool,
    layout: FrameLayout,
}

/// A transfer of a load, in whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) bytes: Range<u64>,
    /// Straight to its place.
    pub(crate) is_direct: bool,
}

impl Geometry {
    fn new(
        areas: &[Area],
        region: &Region,
        pitch: usize,
        memory: &Buf,
    ) -> Result<Geometry, String> {
        let Some(area) = areas.get(region.extent.0 as usize) else {
            return Err("memory is given for a region of another plan".into());
        };
        let name = &area.name;
        if !area.is_device() {
            return Err(format!("memory is given for {name}, which is in memory"));
        }
        if area.decoder.is_some() {
            return Err(format!("memory is given for {name}, which is decoded"));
        }
        let several = region.rows.saturating_sub(1);
        let reach = |distance: u64| several.checked_mul(distance)?.checked_add(region.row_bytes);
        let end = reach(region.stride).and_then(|reach| reach.checked_add(region.offset));
        if region.stride < region.row_bytes || end.is_none_or(|end| end > area.bytes) {
            return Err(format!(
                "memory is given for rows that overlap or are not inside the {} bytes of {name}",
                area.bytes
            ));
        }
        if several > 0 && (pitch as u64) < region.row_bytes {
            return Err(format!(
                "rows of {} bytes of {name} are given memory every {pitch} bytes",
                region.row_bytes
            ));
        }
        let needed = reach(pitch as u64).filter(|&needed| needed <= memory.len() as u64);
        let Some(needed) = needed else {
            return Err(format!(
                "{} rows of {} bytes of {name}, {pitch} bytes apart, are given {} bytes of memory",
                region.rows,
                region.row_bytes,
                memory.len()
            ));
        };
        let layout = FrameLayout {
            lead: 0,
            pitch,
            bytes: needed as usize,
            spanned: false,
        };
        Ok(Geometry::of(
            region,
            area.sector(),
            layout,
            memory.as_ptr() as u64,
        ))
    }

    fn of(region: &Region, unit: u64, layout: FrameLayout, address: u64) -> Geometry {
        let pitch = layout.pitch as u64;
        let is_one =
            region.rows == 1 || region.stride == region.row_bytes && pitch == region.stride;
        let (rows, row_bytes) = match (region.is_empty(), is_one) {
            (true, _) => (0, 0),
            (_, true) => (1, region.bytes()),
            (_, false) => (region.rows, region.row_bytes),
        };
        let is_alike = address % unit == region.offset % unit
            && (rows <= 1 || pitch % unit == region.stride % unit);
        let is_long = row_bytes >= SECTORS_OF_LONG_ROW * unit;
        Geometry {
            offset: region.offset,
            row_bytes,
            stride: region.stride.max(1),
            rows,
            pitch,
            unit,
            is_alike,
            is_spanned: rows > 1 && !(is_alike && is_long) && region.layout(unit).spanned,
            layout,
        }
    }

    /// How the block lies in memory.
    pub(crate) fn layout(&self) -> FrameLayout {
        self.layout
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The bytes of a row on the device.
    pub(crate) fn row(&self, index: u64) -> Range<u64> {
        let start = self.offset + index * self.stride;
        start..start + self.row_bytes
    }

    /// Position in memory of a byte of a row.
    pub(crate) fn place(&self, byte: u64) -> usize {
        // There may be one row that is longer than the stride: several that follow each other.
        let row = ((byte - self.offset) / self.stride).min(self.rows - 1);
        (row * self.pitch + (byte - self.row(row).start)) as usize
    }

    /// The parts of rows in a range of the device, and their positions in memory.
    pub(crate) fn parts(
        &self,
        bytes: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, usize)> + use<> {
        let (geometry, bytes) = (*self, bytes.clone());
        let first_end = self.offset + self.row_bytes;
        let first = match bytes.start < first_end {
            true => 0,
            false => (bytes.start - first_end) / self.stride + 1,
        };
        let rows = (first..self.rows).map(move |row| (row, geometry.row(row)));
        let inside = rows.take_while({
            let end = bytes.end;
            move |(_, row)| row.start < end
        });
        inside.map(move |(index, row)| {
            let part = row.start.max(bytes.start)..row.end.min(bytes.end);
            let place = index * geometry.pitch + (part.start - row.start);
            (part, place as usize)
        })
    }

    /// The transfers of a load, in order.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Move> + Send + use<> {
        let geometry = *self;
        let spans = if self.is_spanned { 1 } else { self.rows };
        (0..spans).flat_map(move |index| {
            let span = match geometry.is_spanned {
                true => geometry.offset..geometry.row(geometry.rows - 1).end,
                false => geometry.row(index),
            };
            geometry.cut(&span)
        })
    }

    fn cut(&self, span: &Range<u64>) -> impl Iterator<Item = Move> + Send + use<> {
        let unit = self.unit;
        let (start, end) = (span.start / unit * unit, span.end.next_multiple_of(unit));
        let (from, to) = (span.start.next_multiple_of(unit), span.end / unit * unit);
        let is_direct = self.is_alike && !self.is_spanned && from < to;
        let parts = match is_direct {
            true => [(start..from, false), (from..to, true), (to..end, false)],
            false => [(start..end, false), (end..end, false), (end..end, false)],
        };
        parts.into_iter().flat_map(|(bytes, is_direct)| {
            pieces(bytes).map(move |(offset, len)| Move {
                bytes: offset..offset + len,
                is_direct,
            })
        })
    }

    /// Of the whole sectors of a row that are stored, those that are written straight from memory.
    /// The sector at the end of an extent may reach beyond the memory.
    pub(crate) fn straight(&self, direct: Range<u64>, row: &Range<u64>) -> Range<u64> {
        let end = match self.is_alike {
            true => (row.end / self.unit * self.unit).clamp(direct.start, direct.end),
            false => direct.start,
        };
        direct.start..end
    }

    /// The transfers of a store that are copied, in order, but for the sectors that rows share.
    pub(crate) fn copied_stores(
        &self,
        extent_bytes: u64,
    ) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        let geometry = *self;
        (0..self.rows).flat_map(move |index| {
            let row = geometry.row(index);
            let direct = split(&row, geometry.unit, extent_bytes).direct;
            let end = direct.end;
            let copied = geometry.straight(direct, &row).end..end;
            pieces(copied).map(|(offset, len)| offset..offset + len)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::region::ExtentRef;

    proptest! {
        /// Every byte of the region comes to its place once, and what is moved straight is what a
        /// device can move.
        #[test]
        fn every_byte_has_one_way(
            offset in 0u64..600, row_bytes in 0u64..300, gap in 0u64..200, rows in 0u64..6,
            apart in 0u64..200, address in 0u64..200, alike: bool, behind in 0u64..2, power in 0u32..7,
        ) {
            let unit = 1u64 << power;
            let stride = row_bytes + gap;
            let (pitch, address) = match alike {
                true => (stride + apart / unit * unit, offset + address / unit * unit),
                false => (row_bytes + apart, address),
            };
            let region = Region { extent: ExtentRef(0), offset, row_bytes, stride, rows };
            let layout = FrameLayout { lead: 0, pitch: pitch as usize, bytes: 0, spanned: false };
            let geometry = Geometry::of(&region, unit, layout, address);
            let mut expected = vec![u64::MAX; (pitch * rows + row_bytes) as usize];
            if row_bytes > 0 {
                for at in 0..rows * row_bytes {
                    let (row, column) = (at / row_bytes, at % row_bytes);
                    expected[(row * pitch + column) as usize] = offset + row * stride + column;
                }
            }
            let is_direct = |bytes: &Range<u64>| {
                (bytes.start | bytes.end | (address + geometry.place(bytes.start) as u64)).is_multiple_of(unit)
            };
            let mut loaded = vec![u64::MAX; expected.len()];
            for Move { bytes, is_direct: direct } in geometry.loads() {
                prop_assert_eq!((bytes.start | bytes.end) % unit, 0);
                prop_assert!(!direct || is_direct(&bytes));
                let straight = [(bytes.clone(), if direct { geometry.place(bytes.start) } else { 0 })];
                let parts: Vec<_> = if direct { straight.to_vec() } else { geometry.parts(&bytes).collect() };
                for (part, place) in parts {
                    part.enumerate().for_each(|(index, byte)| loaded[place + index] = byte);
                }
            }
            prop_assert_eq!(&loaded, &expected);
            // A store moves each byte of the region once, and none else.
            let extent_bytes = region.end() + behind;
            let mut stored: Vec<u64> = Vec::new();
            for index in 0..geometry.rows() {
                let row = geometry.row(index);
                let split = split(&row, unit, extent_bytes);
                let straight = geometry.straight(split.direct, &row);
                prop_assert!(straight.is_empty() || is_direct(&straight));
                stored.extend(straight);
                split.edges.into_iter().flatten().for_each(|edge| stored.extend(edge.bytes));
            }
            for copied in geometry.copied_stores(extent_bytes) {
                prop_assert_eq!((copied.start | copied.end) % unit, 0);
                geometry.parts(&copied).for_each(|(part, _)| stored.extend(part));
            }
            stored.sort_unstable();
            let all: Vec<u64> = expected.into_iter().filter(|&byte| byte != u64::MAX).collect();
            prop_assert_eq!(stored, all);
        }
    }
}
