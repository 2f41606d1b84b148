//! A run of bytes on a device, under a name that errors and traces can use.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use outcore_device::{Device, Locked};

use crate::error::{Error, Result};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Changes that are kept one by one. An engine that has missed more forgets all that it remembers.
const CHANGES_MAX: usize = 1024;

/// The writer of a change: an engine, by way of an extent.
pub(crate) type Author = (u64, u64);

/// Which bytes of a file were written of late, and by whom. Extents of one file share it, so that
/// every engine forgets what another has overwritten, and nothing else.
#[derive(Default)]
pub struct Changes {
    /// Number of changes so far: one look at it says that there is nothing new.
    count: AtomicU64,
    recent: Mutex<VecDeque<(Author, Range<u64>)>>,
}

impl Changes {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn note(&self, author: Author, bytes: Range<u64>) {
        let mut recent = self.recent.locked();
        if recent.len() == CHANGES_MAX {
            recent.pop_front();
        }
        recent.push_back((author, bytes));
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// What others than `reader` have written since there were `seen` changes, and how many there
    /// are; `None` for bytes that are not known any more.
    fn since(&self, seen: u64, reader: Author) -> (u64, Option<Vec<Range<u64>>>) {
        let recent = self.recent.locked();
        let count = self.count();
        let missed = (count - seen) as usize;
        let of_others =
            |(author, bytes): &(Author, Range<u64>)| (*author != reader).then(|| bytes.clone());
        let first = recent.len().checked_sub(missed);
        let bytes = first.map(|first| recent.range(first..).filter_map(of_others).collect());
        (count, bytes)
    }
}

/// The bytes of a device. Clones are the same extent.
#[derive(Clone)]
pub struct Extent(Arc<Inner>);

struct Inner {
    id: u64,
    name: String,
    device: Arc<dyn Device>,
    len: u64,
    changes: Arc<Changes>,
    /// Where the extent begins in what `changes` counts.
    base: u64,
    life: Arc<()>,
}

impl Extent {
    /// All bytes of a device.
    pub fn new(name: impl Into<String>, device: Arc<dyn Device>) -> Extent {
        Extent::with_changes(name, device, Arc::default(), 0)
    }

    /// The same, of a file that others may write to: what an engine remembers of it counts only
    /// until `changes` says that it was written. The extent begins at byte `base` of the file.
    pub fn with_changes(
        name: impl Into<String>,
        device: Arc<dyn Device>,
        changes: Arc<Changes>,
        base: u64,
    ) -> Extent {
        let (id, len) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), device.len());
        Extent(Arc::new(Inner {
            id,
            name: name.into(),
            device,
            len,
            changes,
            base,
            life: Arc::default(),
        }))
    }

    /// The same bytes by way of another device: what writes through it and what reads through this
    /// one wait for each other.
    pub fn through(&self, device: Arc<dyn Device>) -> Extent {
        let Inner { id, len, base, .. } = *self.0;
        Extent(Arc::new(Inner {
            id,
            name: self.0.name.clone(),
            len,
            changes: Arc::clone(&self.0.changes),
            base,
            life: Arc::clone(&self.0.life),
            device,
        }))
    }

    /// Number of changes of the file so far.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.count()
    }

    /// Tells every engine that remembers these bytes that an engine has written them.
    pub(crate) fn has_written(&self, engine: u64, bytes: Range<u64>) {
        let base = self.0.base;
        let bytes = base + bytes.start..base + bytes.end;
        self.0.changes.note((engine, self.0.id), bytes);
    }

    /// Bytes of the extent that were written since there were `seen` changes, but for what `engine`
    /// itself has written here, and how many changes there are.
    pub(crate) fn changed_since(&self, engine: u64, seen: u64) -> (u64, Vec<Range<u64>>) {
        let (count, changed) = self.0.changes.since(seen, (engine, self.0.id));
        let inside = |bytes: Range<u64>| {
            let base = self.0.base;
            let bytes = bytes.start.saturating_sub(base)..bytes.end.saturating_sub(base);
            (!bytes.is_empty()).then_some(bytes)
        };
        let everything = || std::iter::once(0..u64::MAX).collect();
        let bytes = changed.map_or_else(everything, |all| {
            all.into_iter().filter_map(inside).collect()
        });
        (count, bytes)
    }

    /// Upgrades as long as a handle of this extent exists.
    pub(crate) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.0.life)
    }

    /// Unique in the process.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The name for people.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Refuses bytes that are not inside.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::OutOfRange {
                object: self.name().to_owned(),
                offset,
                len,
                object_len: self.len(),
            }),
        }
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// The unit of transfer, bytes.
    pub fn sector(&self) -> u32 {
        self.0.device.limits().sector
    }
}
