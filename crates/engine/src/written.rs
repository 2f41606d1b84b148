//! Which bytes were written when, as far as anything older may be remembered.
//!
//! Time is the number of writes that this engine has been told of. What is read gets the time
//! before its first byte was asked for as its date, and is stale once any of its bytes were written
//! after that. So a write throws away what it touches and nothing else, and costs no search for it:
//! copies of stale bytes are found out when they are asked for.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::extent::Extent;

/// Spans of an extent that are told apart (40 bytes each in the tree). Beyond them what is stale is
/// searched for and dropped, and the count begins anew.
const SPANS_MAX: usize = 1 << 14;
/// Extents after which those that have gone are looked for.
const EXTENTS_MIN: usize = 64;

static NEXT_ENGINE: AtomicU64 = AtomicU64::new(1);

/// An extent at some time: its id and a date.
pub(crate) type Dated = (u64, u64);

pub(crate) struct Written {
    engine: u64,
    now: u64,
    extents: HashMap<u64, History>,
    look_at: usize,
}

/// The writes of one extent.
struct History {
    life: Weak<()>,
    /// Changes of its file that are known here.
    seen: u64,
    /// What is older counts as stale.
    known_from: u64,
    /// Ends and times of the latest writes by start; they do not overlap.
    spans: BTreeMap<u64, (u64, u64)>,
}

impl Written {
    pub(crate) fn new() -> Written {
        Written {
            engine: NEXT_ENGINE.fetch_add(1, Ordering::Relaxed),
            now: 0,
            extents: HashMap::new(),
            look_at: EXTENTS_MIN,
        }
    }

    /// Unique in the process.
    pub(crate) fn engine(&self) -> u64 {
        self.engine
    }

    /// The time.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Bytes of an extent that others have written since this was last asked. From the first time
    /// that an extent is asked for, it is watched.
    pub(crate) fn by_others(&mut self, extent: &Extent) -> Vec<Range<u64>> {
        let count = extent.changes();
        match self.extents.get_mut(&extent.id()) {
            Some(history) if history.seen == count => Vec::new(),
            Some(history) => {
                let (count, changed) = extent.changed_since(self.engine, history.seen);
                history.seen = count;
                changed
            }
            None => {
                self.watch(extent, count);
                Vec::new()
            }
        }
    }

    fn watch(&mut self, extent: &Extent, seen: u64) {
        if self.extents.len() >= self.look_at {
            self.extents
                .retain(|_, history| history.life.strong_count() > 0);
            self.look_at = EXTENTS_MIN.max(2 * self.extents.len());
        }
        let history = History {
            life: extent.life(),
            seen,
            known_from: 0,
            spans: BTreeMap::new(),
        };
        self.extents.insert(extent.id(), history);
    }

    /// A write begins: what is read from here on is newer than all that was read before.
    pub(crate) fn begin(&mut self) {
        self.now += 1;
    }

    /// Counts bytes as written now; nothing is remembered of an extent that is not watched. True
    /// when there are too many spans, so that what is stale should be dropped, and
    /// [`forget`](Written::forget) called.
    pub(crate) fn note(&mut self, extent: u64, bytes: Range<u64>) -> bool {
        let Some(history) = self.extents.get_mut(&extent) else {
            return false;
        };
        history.overlay(bytes, self.now);
        history.spans.len() > SPANS_MAX
    }

    /// Forgets the writes of an extent: what is dated from now on is not stale by any of them, what
    /// is older counts as stale.
    pub(crate) fn forget(&mut self, extent: u64) {
        if let Some(history) = self.extents.get_mut(&extent) {
            history.spans.clear();
            history.known_from = self.now;
        }
    }

    /// Whether any of these bytes were written after `date`.
    pub(crate) fn is_stale(&self, (extent, date): Dated, bytes: Range<u64>) -> bool {
        date < self.now
            && self
                .extents
                .get(&extent)
                .is_some_and(|history| history.is_stale(date, bytes))
    }
}

impl History {
    fn overlay(&mut self, bytes: Range<u64>, time: u64) {
        let Range { mut start, mut end } = bytes;
        if let Some((&before, &(before_end, before_time))) = self.spans.range(..start).next_back()
            && before_end >= start
        {
            if before_time == time {
                (start, end) = (before, end.max(before_end));
            } else {
                self.spans.insert(before, (start, before_time));
                if before_end > end {
                    self.spans.insert(end, (before_end, before_time));
                }
            }
        }
        let covered: Vec<u64> = self.spans.range(start..end).map(|(&at, _)| at).collect();
        let mut last = None;
        for at in covered {
            last = self.spans.remove(&at);
        }
        if let Some((last_end, last_time)) = last
            && last_end > end
        {
            self.spans.insert(end, (last_end, last_time));
        }
        self.spans.insert(start, (end, time));
    }

    fn is_stale(&self, date: u64, bytes: Range<u64>) -> bool {
        let before = self.spans.range(..bytes.start).next_back();
        let reaches_in = before.filter(|(_, (end, _))| *end > bytes.start);
        let mut near = self.spans.range(bytes).chain(reaches_in);
        date < self.known_from || near.any(|(_, &(_, time))| time > date)
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]
mod tests {
    use std::sync::Arc;

    use outcore_device::MemoryDevice;
    use proptest::prelude::*;

    use super::*;
    use crate::extent::Changes;

    const LEN: u64 = 64;

    fn extent() -> Extent {
        Extent::new("memory", Arc::new(MemoryDevice::new("memory", LEN)))
    }

    proptest! {
        #[test]
        fn bytes_are_stale_exactly_when_they_were_written_later(
            writes in proptest::collection::vec((0u64..LEN, 1u64..20, any::<bool>()), 0..30),
            asked in proptest::collection::vec((0u64..LEN, 1u64..20, 0u64..31), 1..40),
        ) {
            let (extent, mut written, mut model) = (extent(), Written::new(), [0; LEN as usize]);
            written.by_others(&extent);
            for (start, length, begins) in writes {
                if begins || written.now() == 0 {
                    written.begin();
                }
                let end = LEN.min(start + length);
                prop_assert!(!written.note(extent.id(), start..end));
                (start..end).for_each(|at| model[at as usize] = written.now());
            }
            for (start, length, date) in asked {
                let bytes = start..LEN.min(start + length);
                let stale = bytes.clone().any(|at| model[at as usize] > date);
                prop_assert_eq!(written.is_stale((extent.id(), date), bytes), stale);
            }
        }
    }

    #[test]
    fn what_is_forgotten_makes_older_bytes_stale_and_newer_ones_not() {
        let (extent, mut written) = (extent(), Written::new());
        written.by_others(&extent);
        written.begin();
        written.note(extent.id(), 0..4);
        written.forget(extent.id());
        assert!(written.is_stale((extent.id(), 0), 8..9));
        assert!(!written.is_stale((extent.id(), 1), 0..4));
    }

    #[test]
    fn too_many_spans_are_said() {
        let (extent, mut written) = (extent(), Written::new());
        written.by_others(&extent);
        written.begin();
        let last = (0..=SPANS_MAX as u64).map(|at| written.note(extent.id(), 2 * at..2 * at + 1));
        assert_eq!(last.filter(|&many| many).count(), 1);
    }

    #[test]
    fn writes_of_another_engine_are_found_where_the_extent_begins_elsewhere() {
        let changes: Arc<Changes> = Arc::default();
        let of = |base| {
            let device = Arc::new(MemoryDevice::new("memory", LEN));
            Extent::with_changes("memory", device, Arc::clone(&changes), base)
        };
        let (one, other) = (of(0), of(10));
        let (mut first, mut second) = (Written::new(), Written::new());
        assert!(first.by_others(&one).is_empty() && second.by_others(&other).is_empty());
        one.has_written(first.engine(), 12..20);
        one.has_written(first.engine(), 0..10);
        assert_eq!(first.by_others(&one), []);
        assert_eq!(second.by_others(&other), [2..10]);
        assert_eq!(second.by_others(&other), []);
        (0..5000).for_each(|_| one.has_written(first.engine(), 0..1));
        assert_eq!(second.by_others(&other), [0..u64::MAX]);
    }
}
