//! The free blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::BlockRange;

/// Free blocks as maximal ranges.
#[derive(Default)]
pub(super) struct Space {
    by_start: BTreeMap<u64, u64>,
    /// Length and start of each range.
    by_len: BTreeSet<(u64, u64)>,
    blocks: u64,
}

impl Space {
    /// All blocks of a range, free.
    pub(super) fn new(range: BlockRange) -> Space {
        let mut space = Space::default();
        space.give(range);
        space
    }

    /// Number of free blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes `blocks` blocks in as few ranges as possible, or nothing.
    pub(super) fn take(&mut self, blocks: u64) -> Option<Vec<BlockRange>> {
        if blocks > self.blocks {
            return None;
        }
        let (mut ranges, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let range = self.take_up_to(left);
            left -= range.blocks;
            ranges.push(range);
        }
        ranges.sort_unstable_by_key(|range| range.start);
        Some(ranges)
    }

    /// Takes `blocks` contiguous blocks, or nothing.
    pub(super) fn take_one(&mut self, blocks: u64) -> Option<BlockRange> {
        self.by_len.range((blocks, 0)..).next()?;
        Some(self.take_up_to(blocks))
    }

    /// Takes contiguous blocks: `blocks`, or fewer down to `least`; if there is no such range, all of
    /// the longest one.
    pub(super) fn take_some(&mut self, blocks: u64, least: u64) -> Option<BlockRange> {
        let &(longest, _) = self.by_len.last()?;
        // A multiple of the least size, if there is such a range.
        let most = if longest >= least {
            longest - longest % least
        } else {
            longest
        };
        Some(self.take_up_to(blocks.min(most)))
    }

    /// Takes from the shortest range of at least `blocks` blocks, or else all of the longest; there
    /// is one.
    fn take_up_to(&mut self, blocks: u64) -> BlockRange {
        let found = self
            .by_len
            .range((blocks, 0)..)
            .next()
            .or_else(|| self.by_len.last());
        let &(len, start) = found.expect("there are free blocks");
        let range = BlockRange {
            start,
            blocks: blocks.min(len),
        };
        assert!(self.claim(range), "it is free");
        range
    }

    /// Takes exactly these blocks; false, without any change, if not all of them are free.
    pub(super) fn claim(&mut self, range: BlockRange) -> bool {
        if range.blocks == 0 {
            return true;
        }
        let Some((&start, &blocks)) = self.by_start.range(..=range.start).next_back() else {
            return false;
        };
        if start + blocks < range.end() {
            return false;
        }
        self.remove(start, blocks);
        self.insert(start, range.start - start);
        self.insert(range.end(), start + blocks - range.end());
        true
    }

    /// Frees blocks.
    pub(super) fn give(&mut self, range: BlockRange) {
        if range.blocks == 0 {
            return;
        }
        let (mut start, mut blocks) = (range.start, range.blocks);
        if let Some((&before, &len)) = self.by_start.range(..start).next_back() {
            assert!(before + len <= start, "blocks are given back once");
            if before + len == start {
                self.remove(before, len);
                (start, blocks) = (before, len + blocks);
            }
        }
        if let Some((&next, &len)) = self.by_start.range(range.start..).next() {
            assert!(range.end() <= next, "blocks are given back once");
            if range.end() == next {
                self.remove(next, len);
                blocks += len;
            }
        }
        self.insert(start, blocks);
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        if blocks > 0 {
            self.by_start.insert(start, blocks);
            self.by_len.insert((blocks, start));
            self.blocks += blocks;
        }
    }

    fn remove(&mut self, start: u64, blocks: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(blocks, start));
        self.blocks -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_block_is_in_one_place(steps in prop::collection::vec((any::<bool>(), 0u64..40, any::<prop::sample::Index>()), 1..60)) {
            const BLOCKS: u64 = 100;
            let mut space = Space::new(BlockRange { start: 0, blocks: BLOCKS });
            let mut owned: Vec<Vec<BlockRange>> = Vec::new();
            for (gives, blocks, which) in steps {
                if gives && !owned.is_empty() {
                    owned.swap_remove(which.index(owned.len())).into_iter().for_each(|range| space.give(range));
                } else {
                    let free = space.blocks();
                    let taken = space.take(blocks);
                    prop_assert_eq!(taken.is_some(), blocks <= free);
                    owned.extend(taken);
                }
                let mut uses = [0; BLOCKS as usize];
                let free = space.by_start.iter().map(|(&start, &blocks)| BlockRange { start, blocks });
                owned.iter().flatten().copied().chain(free).for_each(|range| (range.start..range.end()).for_each(|block| uses[block as usize] += 1));
                prop_assert!(uses.iter().all(|&uses| uses == 1));
                prop_assert!(space.by_start.iter().zip(space.by_start.iter().skip(1)).all(|((&start, &blocks), (&next, _))| start + blocks < next));
            }
        }
    }

    #[test]
    fn what_is_taken_cannot_be_claimed() {
        let mut space = Space::new(BlockRange {
            start: 10,
            blocks: 10,
        });
        assert!(space.claim(BlockRange {
            start: 12,
            blocks: 3
        }));
        for (start, blocks) in [(12, 1), (11, 2), (14, 3), (9, 1), (19, 2), (0, 30)] {
            assert!(
                !space.claim(BlockRange { start, blocks }),
                "{blocks} at {start}"
            );
        }
        assert_eq!(space.take_one(6), None);
        assert_eq!(
            space.take_one(5),
            Some(BlockRange {
                start: 15,
                blocks: 5
            })
        );
        assert_eq!(space.blocks(), 2);
    }
}
