//! Cache policies: which slot is emptied when a newcomer needs one.
//!
//! A policy knows slots by number and what they hold by a 64-bit key. It holds neither items nor an
//! index from key to slot, and it moves no bytes; those are the cache's. Its arrays are indexed by
//! slot, so that a hit costs no hashing. Invariant: a slot is either vacant or in exactly one queue
//! of its policy.
//!
//! ```
//! use outcore_engine::cache::{Policy, PolicyKind};
//!
//! let mut policy = "lru".parse::<PolicyKind>()?.policy(2);
//! policy.admitted(0, 70);
//! policy.admitted(1, 71);
//! policy.used(0);
//! assert_eq!(policy.evict(&mut |_| true), Some(1));
//! policy.admitted(1, 72);
//! assert_eq!(policy.evict(&mut |slot| slot != 0), Some(1), "slot 0 is pinned");
//! # Ok::<(), outcore_engine::cache::UnknownPolicy>(())
//! ```

mod ghosts;
mod keys;
mod kind;
mod lists;
mod look_ahead;
mod lru;
mod s3_fifo;
#[cfg(test)]
mod tests;

pub use kind::{PolicyKind, UnknownPolicy};
pub use look_ahead::LookAhead;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;

/// Slots that a policy can number.
pub const SLOTS_MAX: u32 = 1 << 31;

/// Decides which slot of a cache is emptied next.
///
/// The calls follow the life of a slot: [`admitted`](Policy::admitted), any number of
/// [`used`](Policy::used), then [`evict`](Policy::evict) or [`removed`](Policy::removed), after
/// which it is vacant.
pub trait Policy: Send {
    /// A vacant slot was filled with the item of this key.
    fn admitted(&mut self, slot: u32, key: u64);

    /// The item of a slot was wanted again.
    fn used(&mut self, slot: u32);

    /// Vacates the slot that is least worth keeping among those that may be evicted.
    ///
    /// One that may not is in use now, so it is passed over and counts as new in its queue; repeated
    /// calls therefore do not meet the same pinned slots. `None` costs a look at every slot: the
    /// caller tries again only after something was unpinned.
    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32>;

    /// A slot was vacated for a reason other than [`evict`](Policy::evict).
    fn removed(&mut self, slot: u32);

    /// The cache now has this many slots, [`SLOTS_MAX`] at most; those beyond are vacated, new ones are vacant.
    fn resize(&mut self, slots: u32);
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn admitted(&mut self, slot: u32, key: u64) {
        (**self).admitted(slot, key);
    }

    fn used(&mut self, slot: u32) {
        (**self).used(slot);
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        (**self).evict(may_evict)
    }

    fn removed(&mut self, slot: u32) {
        (**self).removed(slot);
    }

    fn resize(&mut self, slots: u32) {
        (**self).resize(slots);
    }
}
