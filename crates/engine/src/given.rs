//! A gather whose destination is memory of the caller's: a tensor, a window, another program's
//! buffer.
//!
//! What lies in the destination as it does on the device, address by address modulo the device's
//! block, is read straight into it, whole sectors at a time; neighbours that stay neighbours are
//! one read. The rest, and the ends of what is read so, goes by way of frames and is copied; how
//! much that is, is known before. The budget is charged for the destination while the gather goes
//! on.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outcore_device::{Buf, Completion, Op};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::extent_locks::{Claim, ExtentLock};
use crate::gather::{GatherOptions, check_destination, total_len};
use crate::gather_layout::Item;
use crate::pump::{Activity, Core};
use crate::ticket::{self, Ticket};

/// Longest single request, as in a run.
const REQUEST_BYTES: usize = 1 << 20;

/// How long the caller waits before it asks whether to go on.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The caller's memory again, filled from its beginning.
#[derive(Debug)]
pub struct Given {
    /// The items, one after another.
    pub memory: Buf,
    /// Bytes that were read straight to their place.
    pub direct_bytes: u64,
    /// Bytes that were copied there.
    pub copied_bytes: u64,
}

/// Bytes of an extent and where they go.
#[derive(Clone, Copy)]
struct PlacedItem<'a> {
    item: Item<'a>,
    at: usize,
}

/// What is read straight to its place, and what is copied there; both in the order of places.
#[derive(Default)]
struct Placement<'a> {
    direct: Vec<PlacedItem<'a>>,
    copied: Vec<PlacedItem<'a>>,
}

impl<'a> Placement<'a> {
    /// For items one after another from an address on. Pure.
    fn new(items: &[Item<'a>], address: usize) -> Placement<'a> {
        let mut at = 0;
        let mut parts: Vec<PlacedItem<'a>> = Vec::with_capacity(items.len());
        for &item in items.iter().filter(|item| item.len > 0) {
            match parts.last_mut() {
                Some(last) if follows(last, &item) => last.item.len += item.len,
                _ => parts.push(PlacedItem { item, at }),
            }
            at += item.len;
        }
        let mut placement = Placement::default();
        for part in parts {
            placement.place(part, address);
        }
        placement
    }

    fn place(&mut self, part: PlacedItem<'a>, address: usize) {
        let PlacedItem { item, at } = part;
        let unit = u64::from(item.extent.sector());
        let end = item.offset + item.len as u64;
        let (from, to) = (item.offset.next_multiple_of(unit), end / unit * unit);
        let is_alike = (address + at) as u64 % unit == item.offset % unit;
        if !is_alike || from >= to {
            return self.copied.push(part);
        }
        let cut = |from: u64, to: u64| PlacedItem {
            item: Item {
                offset: from,
                len: (to - from) as usize,
                ..item
            },
            at: at + (from - item.offset) as usize,
        };
        self.direct.push(cut(from, to));
        let ends = [cut(item.offset, from), cut(to, end)];
        self.copied
            .extend(ends.into_iter().filter(|part| part.item.len > 0));
    }
}

fn follows(last: &PlacedItem<'_>, item: &Item<'_>) -> bool {
    last.item.extent.id() == item.extent.id()
        && last.item.offset + last.item.len as u64 == item.offset
}

/// What a gather of `items` items holds besides the destination, at most: parts of each, of which
/// one is read and two are copied, with their pieces.
fn table_bytes(items: usize) -> u64 {
    let each = 4 * size_of::<PlacedItem<'_>>() + 2 * size_of::<Item<'_>>() + 4 * size_of::<Buf>();
    items as u64 * each as u64
}

fn bytes(parts: &[PlacedItem<'_>]) -> u64 {
    parts.iter().map(|part| part.item.len as u64).sum()
}

impl Engine {
    /// How many bytes a gather to memory at `address` would read straight to their place, and how
    /// many it would copy. No I/O.
    pub fn plan_gather_given(&self, items: &[Item<'_>], address: usize) -> (u64, u64) {
        let placement = Placement::new(items, address);
        (bytes(&placement.direct), bytes(&placement.copied))
    }

    /// Reads items, one after another, to memory of the caller's, which comes back with them. What
    /// lies there as it does on the device is not copied; it is neither looked for among cached
    /// items nor added to them.
    ///
    /// `go_on` is asked every 50 ms or so; its `false` ends the call with [`Error::Cancelled`].
    /// After an error the memory is let go of once nothing is moved to it any more.
    ///
    /// # Errors
    /// Before any I/O: [`Error::OutOfRange`] for an item that is not inside its extent or a
    /// destination that is too short, [`Error::OverBudget`] when the budget has no room for the
    /// destination, naming its bytes, or for the longest item that is copied. [`Error::Device`].
    pub fn gather_given(
        &self,
        items: &[Item<'_>],
        destination: Buf,
        options: &GatherOptions,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Given> {
        items
            .iter()
            .try_for_each(|item| item.extent.check(item.offset, item.len as u64))?;
        check_destination(total_len(items), &destination)?;
        let held = destination.len() as u64 + table_bytes(items.len());
        let _given = self.reserve("a gather to given memory", held)?;
        let Placement { direct, copied } = Placement::new(items, destination.as_ptr() as usize);
        let (whole, rest) = destination.lend();
        let (reads, mut places) = cut(&direct, &copied, rest);
        let ticket = self.start_direct(&direct, reads)?;
        let wanted: Vec<Item<'_>> = copied.iter().map(|part| part.item).collect();
        self.gather_parts(&wanted, options, &mut go_on, |item, bytes| {
            places[item].copy_from_slice(bytes);
        })?;
        drop(places);
        while !ticket.wait_timeout(CHECK_EVERY) {
            if !go_on() {
                return Err(Error::Cancelled);
            }
        }
        ticket.wait()?;
        let memory = whole
            .reclaim()
            .unwrap_or_else(|_| unreachable!("nothing is under way, and every piece was dropped"));
        Ok(Given {
            memory,
            direct_bytes: bytes(&direct),
            copied_bytes: bytes(&copied),
        })
    }

    fn start_direct(&self, direct: &[PlacedItem<'_>], reads: Vec<Buf>) -> Result<Ticket<()>> {
        let shared = ticket::Shared::new();
        let ranges = direct.iter().map(|PlacedItem { item, .. }| {
            let end = item.offset + item.len as u64;
            (item.extent, item.offset..end)
        });
        let reads = direct.iter().zip(reads);
        let activity = Direct {
            extent_lock: ExtentLock::new(Claim::of_ranges(ranges)),
            reads: reads
                .map(|(part, piece)| (part.item.extent.clone(), part.item.offset, piece))
                .collect(),
            extents: Vec::new(),
            ticket: Arc::clone(&shared),
            in_flight: 0,
            error: None,
            has_withdrawn: false,
        };
        self.with_handle(|handle, _| {
            handle.start(&handle.mailbox(), Box::new(activity))?;
            Ok(Ticket::new(shared, handle.poller()))
        })
    }
}

/// The pieces of the destination: those that are read to, and those that are copied to.
fn cut(
    direct: &[PlacedItem<'_>],
    copied: &[PlacedItem<'_>],
    mut rest: Buf,
) -> (Vec<Buf>, Vec<Buf>) {
    let (mut reads, mut copies) = (Vec::new(), Vec::new());
    let (mut direct, mut copied) = (direct.iter().peekable(), copied.iter().peekable());
    loop {
        let is_read = match (direct.peek(), copied.peek()) {
            (Some(one), Some(other)) => one.at < other.at,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return (reads, copies),
        };
        // Together they are all of the items, so each begins where the last one ends.
        let (parts, pieces) = match is_read {
            true => (&mut direct, &mut reads),
            false => (&mut copied, &mut copies),
        };
        let len = parts.next().expect("looked at above").item.len;
        pieces.push(rest.split_to(len));
    }
}

/// Reads under way, on the engine's thread.
struct Direct {
    extent_lock: ExtentLock,
    reads: Vec<(Extent, u64, Buf)>,
    /// By token.
    extents: Vec<Extent>,
    ticket: Arc<ticket::Shared<()>>,
    in_flight: usize,
    error: Option<Error>,
    has_withdrawn: bool,
}

impl Direct {
    fn submit(&mut self, core: &mut Core<'_>) {
        for (extent, mut offset, mut rest) in self.reads.drain(..) {
            let token = self.extents.len() as u32;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(REQUEST_BYTES));
                let len = piece.len() as u64;
                core.submit(token, extent.device(), offset, Op::Read(piece));
                (offset, self.in_flight) = (offset + len, self.in_flight + 1);
            }
            self.extents.push(extent);
        }
    }
}

impl Activity for Direct {
    fn advance(&mut self, core: &mut Core<'_>) -> bool {
        if self.ticket.cancelled.load(Ordering::Acquire) {
            self.error.get_or_insert(Error::Cancelled);
        }
        if self.error.is_none() && !self.reads.is_empty() {
            if !core.extent_locks.acquire(&mut self.extent_lock) {
                return false;
            }
            self.submit(core);
        }
        if self.error.is_some() && self.in_flight > 0 && !self.has_withdrawn {
            self.has_withdrawn = true;
            core.withdraw();
        }
        if self.in_flight > 0 {
            return false;
        }
        core.extent_locks.release(&mut self.extent_lock);
        core.extent_locks.leave_line(&mut self.extent_lock);
        self.reads.clear();
        self.ticket.fill(self.error.take().map_or(Ok(()), Err));
        true
    }

    fn complete(&mut self, _: &mut Core<'_>, token: u32, completion: Completion) {
        self.in_flight -= 1;
        let Completion { op, result, .. } = completion;
        drop(op);
        if let Err(source) = result {
            let object = self.extents[token as usize].name().to_owned();
            self.error.get_or_insert(Error::Device { object, source });
        }
    }

    fn receive(&mut self, _: &mut Core<'_>, _: Box<dyn Any + Send>) {}

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// A waiting caller learns that the engine is gone, also when its thread panicked.
impl Drop for Direct {
    fn drop(&mut self) {
        self.ticket.fill(Err(Error::Closed));
    }
}

#[cfg(test)]
mod tests {
    use outcore_device::MemoryDevice;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Direct and copied parts are all of the items, each byte once and in its place, and what
        /// is direct is what a device can move.
        #[test]
        fn every_byte_has_one_way(
            wanted in proptest::collection::vec((0u64..5000, 0usize..3000, any::<bool>()), 0..20),
            power in 0u32..10, address in 0usize..2000,
        ) {
            let block = 1 << power;
            let device = Arc::new(MemoryDevice::with_sector("memory", 100_000, block));
            let extent = Extent::new("memory", device);
            let mut items: Vec<Item<'_>> = Vec::new();
            for (offset, len, follows) in wanted {
                let end = items.last().map(|last| last.offset + last.len as u64);
                let offset = end.filter(|_| follows).unwrap_or(offset);
                items.push(Item { extent: &extent, offset, len });
            }
            let mut expected = Vec::new();
            items.iter().for_each(|item| expected.extend(item.offset..item.offset + item.len as u64));
            let Placement { direct, copied } = Placement::new(&items, address);
            let mut found = vec![u64::MAX; expected.len()];
            for part in direct.iter().chain(&copied) {
                for index in 0..part.item.len {
                    let cell = &mut found[part.at + index];
                    prop_assert_eq!(std::mem::replace(cell, part.item.offset + index as u64), u64::MAX);
                }
            }
            prop_assert_eq!(found, expected);
            for part in &direct {
                let all = part.item.offset | part.item.len as u64 | (address + part.at) as u64;
                prop_assert_eq!(all % u64::from(block), 0);
            }
        }
    }
}
