//! Keys that were dropped not long ago, by 32 bits of their hashes.
//!
//! ```text
//! buckets: | 8 x (tag, number of the drop) | ...    a cache line each, chosen by the tag
//! ```
//! A ghost is a hint, so it need not be exact (S3-FIFO, section 4.2): one newcomer in 2^32 / n is
//! mistaken for one of n ghosts. Twice as many fit as are remembered, so that less than one in a
//! hundred is forgotten before its time because its bucket is full.

use super::keys::mix;

const BUCKET_LEN: usize = 8;
/// 2 KiB: few keys fall into few buckets unevenly.
const BUCKETS_MIN: usize = 32;
/// In drops, of no ghost: more than are ever remembered, and as far as can be from new again.
const AGE_OF_NONE: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Ghost {
    tag: u32,
    drop: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket([Ghost; BUCKET_LEN]);

#[derive(Default)]
pub(super) struct Ghosts {
    buckets: Vec<Bucket>,
    /// Drops that are remembered: the last ones.
    limit: u32,
    /// Number of the next drop. It wraps around: what is left over from so long ago looks new again,
    /// but has the tag of hardly any newcomer.
    next: u32,
}

impl Ghosts {
    pub(super) fn tag(key: u64) -> u32 {
        (mix(key) >> 32) as u32
    }

    /// Remembers this many drops from now on.
    pub(super) fn resize(&mut self, limit: u32) {
        self.limit = limit;
        let buckets = self.buckets.len();
        let least = (limit as usize * 2 / BUCKET_LEN).max(BUCKETS_MIN);
        if least > buckets {
            self.rebuild(least.max(buckets * 3 / 2));
        } else if least < buckets / 4 {
            self.rebuild(least);
        }
    }

    pub(super) fn add(&mut self, tag: u32) {
        let ghost = Ghost {
            tag,
            drop: self.next,
        };
        self.next = self.next.wrapping_add(1);
        self.put(ghost);
    }

    /// Forgets a key; whether it was known.
    pub(super) fn take(&mut self, tag: u32) -> bool {
        let (next, limit) = (self.next, self.limit);
        let is_it = |ghost: &&mut Ghost| ghost.tag == tag && age(ghost, next) < limit;
        let found = self.bucket(tag).iter_mut().find(is_it);
        found
            .map(|ghost| ghost.drop = next.wrapping_sub(AGE_OF_NONE))
            .is_some()
    }

    fn bucket(&mut self, tag: u32) -> &mut [Ghost; BUCKET_LEN] {
        let number = (u64::from(tag) * self.buckets.len() as u64) >> 32;
        &mut self.buckets[number as usize].0
    }

    /// In the place of the oldest of its bucket.
    fn put(&mut self, ghost: Ghost) {
        let next = self.next;
        let oldest = self
            .bucket(ghost.tag)
            .iter_mut()
            .max_by_key(|ghost| age(ghost, next));
        if let Some(oldest) = oldest {
            *oldest = ghost;
        }
    }

    fn rebuild(&mut self, buckets: usize) {
        let old = std::mem::take(&mut self.buckets);
        let none = Ghost {
            tag: 0,
            drop: self.next.wrapping_sub(AGE_OF_NONE),
        };
        self.buckets.resize(buckets, Bucket([none; BUCKET_LEN]));
        let ghosts = old.iter().flat_map(|bucket| bucket.0);
        let mut known: Vec<Ghost> = ghosts
            .filter(|ghost| age(ghost, self.next) < self.limit)
            .collect();
        known.sort_unstable_by_key(|ghost| std::cmp::Reverse(age(ghost, self.next)));
        known.into_iter().for_each(|ghost| self.put(ghost));
    }
}

/// Drops since this one.
fn age(ghost: &Ghost, next: u32) -> u32 {
    next.wrapping_sub(ghost.drop).wrapping_sub(1)
}
