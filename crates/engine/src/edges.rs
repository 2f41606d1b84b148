//! Sectors that two blocks share.
//!
//! Devices transfer whole sectors, while regions start and end anywhere. The ends of stored rows
//! that do not fill a sector wait here until the neighbouring blocks have supplied the rest of the
//! sector; bytes that no task supplies are read from the device. A sector in this table is written
//! through it only, so no byte is lost whatever the order. `Coverage` is the arithmetic, shared
//! with the prediction.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::region::{ExtentRef, Region};

/// Which bytes of which sectors are known.
#[derive(Default)]
pub(crate) struct Coverage {
    known: BTreeMap<(ExtentRef, u64), Sector>,
    /// Bytes of the sectors of each extent.
    sector_bytes: BTreeMap<ExtentRef, u64>,
    /// Number of sectors inspected to find those of a region.
    #[cfg(test)]
    pub(crate) looked_at: std::cell::Cell<u64>,
}

struct Sector {
    sector_bytes: u32,
    ranges: Vec<Range<u32>>,
}

impl Coverage {
    /// Adds a range of one sector; true if that completes the sector, which is then removed.
    pub(crate) fn add(
        &mut self,
        extent: ExtentRef,
        sector: u64,
        sector_bytes: u32,
        range: Range<u32>,
    ) -> bool {
        self.sector_bytes.insert(extent, u64::from(sector_bytes));
        let entry = self
            .known
            .entry((extent, sector))
            .or_insert_with(|| Sector {
                sector_bytes,
                ranges: Vec::new(),
            });
        insert(&mut entry.ranges, range);
        let whole = matches!(entry.ranges.as_slice(), [all] if *all == (0..sector_bytes));
        if whole {
            self.known.remove(&(extent, sector));
        }
        whole
    }

    /// Bytes that storing a region writes at once, including the sectors that it completes.
    pub(crate) fn store(&mut self, region: Region, sector_bytes: u64, extent_bytes: u64) -> u64 {
        region
            .runs()
            .map(|run| {
                let split = split(&run, sector_bytes, extent_bytes);
                let direct = split.direct.end - split.direct.start;
                let completed = split.edges.into_iter().flatten().filter(|edge| {
                    self.add(
                        region.extent,
                        edge.sector,
                        sector_bytes as u32,
                        edge.range.clone(),
                    )
                });
                direct + completed.count() as u64 * sector_bytes
            })
            .sum()
    }

    /// Bytes of the incomplete sectors.
    pub(crate) fn incomplete_bytes(&self) -> u64 {
        self.known
            .values()
            .map(|sector| u64::from(sector.sector_bytes))
            .sum()
    }

    /// The sectors with known bytes of a region, in order.
    pub(crate) fn touching(&self, region: &Region) -> Vec<(ExtentRef, u64)> {
        let Some(&sector_bytes) = self
            .sector_bytes
            .get(&region.extent)
            .filter(|_| !self.known.is_empty() && !region.is_empty())
        else {
            return Vec::new();
        };
        let spans: Vec<Range<u64>> = match region.run_count() <= self.known.len() as u64 {
            true => region.runs().collect(),
            false => std::iter::once(region.offset..region.end()).collect(),
        };
        let mut keys = Vec::new();
        for span in spans {
            let sectors = (region.extent, span.start / sector_bytes)
                ..=(region.extent, (span.end - 1) / sector_bytes);
            let near = self
                .known
                .range(sectors)
                .filter(|(key, sector)| self.has_bytes_of(key.1, sector, region));
            keys.extend(near.map(|(key, _)| *key));
        }
        // Two rows may end and start in one sector.
        keys.dedup();
        keys
    }

    fn has_bytes_of(&self, number: u64, sector: &Sector, region: &Region) -> bool {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
        let base = number * u64::from(sector.sector_bytes);
        sector.ranges.iter().any(|range| {
            region.touches(&(base + u64::from(range.start)..base + u64::from(range.end)))
        })
    }

    /// Removes the sectors with bytes of a region; returns the bytes moved by merging them with the
    /// device.
    pub(crate) fn merge(&mut self, region: &Region) -> u64 {
        let keys = self.touching(region);
        keys.iter()
            .filter_map(|key| self.known.remove(key))
            .map(|sector| u64::from(sector.sector_bytes))
            .sum()
    }

    /// Removes a sector and returns its known ranges.
    pub(crate) fn take(&mut self, extent: ExtentRef, sector: u64) -> Vec<Range<u32>> {
        self.known
            .remove(&(extent, sector))
            .map_or_else(Vec::new, |sector| sector.ranges)
    }
}

fn insert(ranges: &mut Vec<Range<u32>>, new: Range<u32>) {
    let from = ranges.partition_point(|old| old.end < new.start);
    let to = ranges.partition_point(|old| old.start <= new.end);
    let merged = ranges[from..to]
        .iter()
        .fold(new, |a, b| a.start.min(b.start)..a.end.max(b.end));
    ranges.splice(from..to, [merged]);
}

/// A run cut into whole sectors and the partial ones at its ends.
pub(crate) struct Split {
    pub(crate) direct: Range<u64>,
    pub(crate) edges: [Option<Edge>; 2],
}

/// A part of one sector. `source` is the position of these bytes in the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) sector: u64,
    pub(crate) range: Range<u32>,
    pub(crate) bytes: Range<u64>,
}

/// Cuts a run. Bytes behind the end of the extent belong to no sector, so the last sector counts as
/// covered to its end.
pub(crate) fn split(run: &Range<u64>, sector_bytes: u64, extent_bytes: u64) -> Split {
    let start = run.start.next_multiple_of(sector_bytes);
    let end = if run.end == extent_bytes {
        run.end.next_multiple_of(sector_bytes)
    } else {
        run.end / sector_bytes * sector_bytes
    };
    let edge = |bytes: Range<u64>| {
        let sector = bytes.start / sector_bytes;
        let base = sector * sector_bytes;
        let until = if bytes.end == extent_bytes {
            sector_bytes
        } else {
            bytes.end - base
        };
        (!bytes.is_empty()).then(|| Edge {
            sector,
            range: (bytes.start - base) as u32..until as u32,
            bytes,
        })
    };
    if start > end {
        return Split {
            direct: start..start,
            edges: [edge(run.clone()), None],
        };
    }
    let [head, tail] = [run.start..start.min(run.end), end.min(run.end)..run.end];
    Split {
        direct: start..end,
        edges: [edge(head), edge(tail)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_split_covers_its_run_once(start in 0u64..200, length in 0u64..200, behind in 0u64..3, power in 0u32..6) {
            let sector_bytes = 1u64 << power;
            let run = start..start + length;
            let split = split(&run, sector_bytes, run.end + behind);
            let direct: Vec<u64> = split.direct.clone().filter(|byte| run.contains(byte)).collect();
            let edges = split.edges.iter().flatten().flat_map(|edge| edge.bytes.clone());
            let mut all: Vec<u64> = direct.into_iter().chain(edges).collect();
            all.sort_unstable();
            prop_assert_eq!(all, run.clone().collect::<Vec<_>>());
            prop_assert_eq!(split.direct.start % sector_bytes, 0);
            prop_assert_eq!(split.direct.end % sector_bytes, 0);
            for edge in split.edges.iter().flatten() {
                prop_assert_eq!(edge.bytes.start, edge.sector * sector_bytes + u64::from(edge.range.start));
                prop_assert!(u64::from(edge.range.end) <= sector_bytes && edge.range.start < edge.range.end);
                let last = if behind == 0 && edge.bytes.end == run.end { sector_bytes } else { edge.bytes.end - edge.sector * sector_bytes };
                prop_assert_eq!(u64::from(edge.range.end), last);
            }
        }

        #[test]
        fn coverage_is_whole_exactly_when_every_byte_was_added(order in proptest::collection::vec((0u32..16, 1u32..9), 1..40)) {
            let (mut coverage, mut seen) = (Coverage::default(), [false; 16]);
            for (start, length) in order {
                let range = start..(start + length).min(16);
                range.clone().for_each(|byte| seen[byte as usize] = true);
                let whole = coverage.add(ExtentRef(0), 3, 16, range);
                prop_assert_eq!(whole, seen.iter().all(|&byte| byte));
                if whole {
                    seen = [false; 16];
                }
            }
        }
    }
}
