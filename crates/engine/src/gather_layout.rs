//! The requests that read a batch of items, and the positions of items in memory. Pure.
//!
//! Items are sorted by position on their device; neighbours within a small gap become one request;
//! requests are packed into frames one after another, none across the end of a frame. An item's
//! address has the alignment of its offset, up to [`ALIGN`] bytes.
//!
//! ```text
//! items      |--a--|   |b|     |c|     duplicates and overlaps fall together
//! requests  [==========][==]  [==]     whole sectors
//! frame     [==========][==][==]
//! ```

use std::collections::HashMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::frame_size::frame_bytes;

/// A range of bytes of an extent, delivered contiguously.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// The extent.
    pub extent: &'a Extent,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
}

/// A cache line: numbers of any size at aligned offsets are aligned in memory too.
const ALIGN: u64 = 64;

/// A frame holds many requests, so that a batch needs few frames; 1 MiB is 256 pages of 4 KiB.
const FRAME_BYTES: usize = 1 << 20;

/// Stands for the request of an item without bytes.
const NO_READ: u32 = u32::MAX;

/// One request.
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Position in its frame.
    pub(crate) at: usize,
    pub(crate) extent: u32,
    /// Index of its first item in `order`.
    first: u32,
}

/// Position of an item.
#[derive(Clone, Copy)]
struct ItemSpan {
    start: usize,
    len: usize,
    read: u32,
}

/// One piece of memory and the requests into it.
pub(crate) struct Frame {
    pub(crate) bytes: usize,
    pub(crate) reads: Range<usize>,
}

pub(crate) struct GatherLayout {
    pub(crate) extents: Vec<Extent>,
    pub(crate) reads: Vec<Read>,
    pub(crate) frames: Vec<Frame>,
    /// Indices of items with bytes, grouped by request.
    order: Vec<u32>,
    /// Position of each item.
    places: Vec<ItemSpan>,
}

/// Parameters for combining items into requests.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Longest gap that is read to avoid another request.
    pub(crate) gap: u64,
    /// Longest request made of several items.
    pub(crate) request_bytes: u64,
    /// Longest frame, unless one item needs a longer one.
    pub(crate) frame_bytes: usize,
}

impl Shape {
    pub(crate) fn new(gap: u64, request_bytes: u64) -> Shape {
        Shape {
            gap,
            request_bytes: request_bytes.min(FRAME_BYTES as u64),
            frame_bytes: FRAME_BYTES,
        }
    }
}

struct Key {
    offset: u64,
    extent: u32,
    item: u32,
}

impl GatherLayout {
    /// # Errors
    /// [`Error::OutOfRange`] for an item that is not inside its extent.
    pub(crate) fn new(items: &[Item<'_>], shape: Shape) -> Result<GatherLayout> {
        let (extents, keys) = sorted(items)?;
        let nowhere = ItemSpan {
            start: 0,
            len: 0,
            read: NO_READ,
        };
        let mut layout = GatherLayout {
            extents,
            reads: Vec::new(),
            frames: Vec::new(),
            order: Vec::with_capacity(keys.len()),
            places: vec![nowhere; items.len()],
        };
        for key in keys {
            layout.place(&key, items[key.item as usize].len as u64, shape);
        }
        layout.pack(shape.frame_bytes);
        Ok(layout)
    }

    /// Upper bound of the bytes of bookkeeping for `items` items: this type, a gather of it, and
    /// the keys of the sort.
    pub(crate) fn overhead_bytes(items: usize) -> u64 {
        let each = size_of::<Read>()
            + size_of::<ItemSpan>()
            + size_of::<Key>()
            + size_of::<u32>()
            + size_of::<outcore_device::Buf>();
        items as u64 * each as u64
    }

    pub(crate) fn frames_bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.bytes as u64).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Request of an item, and its range there; `None` for an empty item.
    pub(crate) fn find(&self, item: usize) -> Option<(usize, Range<usize>)> {
        let ItemSpan { start, len, read } = self.places[item];
        (read != NO_READ).then_some((read as usize, start..start + len))
    }

    /// Items of a request.
    pub(crate) fn items_of(&self, read: usize) -> &[u32] {
        let end = self
            .reads
            .get(read + 1)
            .map_or(self.order.len(), |next| next.first as usize);
        &self.order[self.reads[read].first as usize..end]
    }

    /// Empty items, which belong to no request.
    pub(crate) fn empty_items(&self) -> impl Iterator<Item = usize> + '_ {
        self.places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.read == NO_READ)
            .map(|(item, _)| item)
    }

    fn place(&mut self, key: &Key, len: u64, shape: Shape) {
        if len == 0 {
            return;
        }
        let extent = &self.extents[key.extent as usize];
        let unit = unit(extent);
        let from = key.offset / unit * unit;
        let readable = extent.len().next_multiple_of(u64::from(extent.sector()));
        let to = (key.offset + len).next_multiple_of(unit).min(readable);
        let joins = self.reads.last().is_some_and(|read| {
            let end = read.offset + read.len as u64;
            let fits = to <= end || to - read.offset <= shape.request_bytes;
            read.extent == key.extent && from <= end.saturating_add(shape.gap) && fits
        });
        if !joins {
            self.reads.push(Read {
                offset: from,
                len: 0,
                at: 0,
                extent: key.extent,
                first: self.order.len() as u32,
            });
        }
        let read = self.reads.last_mut().expect("pushed above");
        read.len = read.len.max((to - read.offset) as usize);
        let start = (key.offset - read.offset) as usize;
        self.places[key.item as usize] = ItemSpan {
            start,
            len: len as usize,
            read: self.reads.len() as u32 - 1,
        };
        self.order.push(key.item);
    }

    fn pack(&mut self, most: usize) {
        let (mut first, mut at) = (0, 0usize);
        for index in 0..self.reads.len() {
            let unit = unit(&self.extents[self.reads[index].extent as usize]) as usize;
            let len = self.reads[index].len;
            let mut start = at.next_multiple_of(unit);
            if start > 0 && start + len > most {
                self.frames.push(Frame {
                    bytes: at.max(most),
                    reads: first..index,
                });
                (first, start) = (index, 0);
            }
            self.reads[index].at = start;
            at = start + len;
        }
        if at > 0 {
            // Few different sizes, so that the next batch can reuse frames.
            let bytes = if at <= most {
                at.next_power_of_two().clamp(frame_bytes(1) as usize, most)
            } else {
                at
            };
            self.frames.push(Frame {
                bytes,
                reads: first..self.reads.len(),
            });
        }
        self.frames
            .iter_mut()
            .for_each(|frame| frame.bytes = frame_bytes(frame.bytes) as usize);
    }
}

fn unit(extent: &Extent) -> u64 {
    u64::from(extent.sector()).max(ALIGN)
}

fn sorted(items: &[Item<'_>]) -> Result<(Vec<Extent>, Vec<Key>)> {
    if items.len() >= NO_READ as usize {
        return Err(Error::Plan {
            plan: "gather".into(),
            reason: format!("{} items are too many for one call", items.len()),
        });
    }
    let (mut extents, mut numbers): (Vec<Extent>, HashMap<u64, u32>) = Default::default();
    let mut keys = Vec::with_capacity(items.len());
    let mut last = (0, 0);
    for (
        item,
        &Item {
            extent,
            offset,
            len,
        },
    ) in items.iter().enumerate()
    {
        extent.check(offset, len as u64)?;
        if last.0 != extent.id() {
            let number = *numbers.entry(extent.id()).or_insert_with(|| {
                extents.push(extent.clone());
                extents.len() as u32 - 1
            });
            last = (extent.id(), number);
        }
        keys.push(Key {
            offset,
            extent: last.1,
            item: item as u32,
        });
    }
    keys.sort_unstable_by_key(|key| (key.extent, key.offset, key.item));
    Ok((extents, keys))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outcore_device::MemoryDevice;
    use proptest::prelude::*;

    use super::*;

    fn extents(lengths: &[u64], sector: u32) -> Vec<Extent> {
        let extent = |&len: &u64| {
            Extent::new(
                "memory",
                Arc::new(MemoryDevice::with_sector("memory", len, sector)),
            )
        };
        lengths.iter().map(extent).collect()
    }

    proptest! {
        #[test]
        fn every_item_lies_inside_its_request_and_requests_lie_apart(
            wanted in proptest::collection::vec((0usize..2, 0u64..5000, 0usize..700), 0..60),
            power in 0u32..10, gap in 0u64..300, request_bytes in 1u64..2000, most in 12u32..14,
        ) {
            let extents = extents(&[5701, 6000], 1 << power);
            let items: Vec<Item<'_>> = wanted.iter().map(|&(extent, offset, len)| Item { extent: &extents[extent], offset, len }).collect();
            let layout = GatherLayout::new(&items, Shape { gap, request_bytes, frame_bytes: 1 << most }).unwrap();
            let mut seen = vec![false; items.len()];
            for (index, read) in layout.reads.iter().enumerate() {
                prop_assert_eq!((read.offset | read.len as u64 | read.at as u64) % (1 << power), 0);
                prop_assert!(read.offset + read.len as u64 <= layout.extents[read.extent as usize].len().next_multiple_of(1 << power));
                for &item in layout.items_of(index) {
                    let (found, range) = layout.find(item as usize).unwrap();
                    let item_wanted = &items[item as usize];
                    prop_assert_eq!(found, index);
                    prop_assert!(!std::mem::replace(&mut seen[item as usize], true));
                    prop_assert_eq!(read.offset + range.start as u64, item_wanted.offset);
                    prop_assert!(range.end <= read.len && range.len() == item_wanted.len);
                    prop_assert_eq!((read.at + range.start) as u64 % ALIGN, item_wanted.offset % ALIGN);
                    prop_assert_eq!(layout.extents[read.extent as usize].id(), item_wanted.extent.id());
                }
            }
            layout.empty_items().for_each(|item| seen[item] = true);
            prop_assert!(seen.into_iter().all(|seen| seen));
            let mut next = 0;
            for frame in &layout.frames {
                let mut end = 0;
                for read in &layout.reads[frame.reads.clone()] {
                    prop_assert!(read.at >= end);
                    end = read.at + read.len;
                }
                prop_assert!(frame.reads.start == next && end <= frame.bytes);
                next = frame.reads.end;
            }
            prop_assert_eq!(next, layout.reads.len());
        }
    }

    #[test]
    fn neighbours_become_one_request_and_duplicates_cost_nothing() {
        let extents = extents(&[1 << 20], 512);
        let at = |offset| Item {
            extent: &extents[0],
            offset,
            len: 512,
        };
        let layout = GatherLayout::new(
            &[at(4096), at(0), at(512), at(4096), at(1536)],
            Shape {
                gap: 512,
                request_bytes: 4096,
                frame_bytes: 1 << 20,
            },
        )
        .unwrap();
        let reads: Vec<_> = layout
            .reads
            .iter()
            .map(|read| (read.offset, read.len))
            .collect();
        assert_eq!(reads, [(0, 2048), (4096, 512)]);
        assert_eq!(layout.items_of(1), [0, 3]);
    }

    #[test]
    fn items_outside_are_named() {
        let extents = extents(&[1000], 512);
        let error = GatherLayout::new(
            &[Item {
                extent: &extents[0],
                offset: 990,
                len: 11,
            }],
            Shape::new(0, 1),
        )
        .err()
        .unwrap();
        assert_eq!(
            error.to_string(),
            "memory: 11 bytes at offset 990 are not inside its 1000 bytes"
        );
        assert!(
            GatherLayout::new(
                &[Item {
                    extent: &extents[0],
                    offset: u64::MAX,
                    len: 11
                }],
                Shape::new(0, 1)
            )
            .is_err()
        );
    }
}
