//! Keys in the order of their last use, by position in a set of bits that is counted by a Fenwick
//! tree (Bennett and Kruskal, IBM Journal 1975; Fenwick, 1994).
//!
//! ```text
//! bits: | word 0 | word 1 | ...   a bit for each position; set where a key's last use is
//! tree: counts of the words, as sums over 1, 2, 4, ... of them
//! ```
//! When the positions are used up, those that are set are numbered anew.

const WORD_BITS: usize = 64;
const POSITIONS_MIN: usize = 1024;

pub(super) struct Recency {
    words: Vec<u64>,
    tree: Vec<u64>,
    next: usize,
    held: usize,
}

impl Recency {
    pub(super) fn new() -> Recency {
        Recency::with_held(0)
    }

    /// The first positions are taken, and there are as many others.
    fn with_held(held: usize) -> Recency {
        let words = held.max(POSITIONS_MIN).div_ceil(WORD_BITS) * 2;
        let mut recency = Recency {
            words: vec![0; words],
            tree: vec![0; words + 1],
            next: held,
            held,
        };
        for (word, bits) in recency.words.iter_mut().enumerate() {
            let count = held.saturating_sub(word * WORD_BITS).min(WORD_BITS);
            *bits = u64::MAX
                .checked_shr((WORD_BITS - count) as u32)
                .unwrap_or(0);
            recency.tree[word + 1] = count as u64;
        }
        for node in 1..=words {
            let parent = node + (node & node.wrapping_neg());
            if parent <= words {
                recency.tree[parent] += recency.tree[node];
            }
        }
        recency
    }

    pub(super) fn is_full(&self) -> bool {
        self.next == self.words.len() * WORD_BITS
    }

    /// The position of a key that is used now.
    pub(super) fn push(&mut self) -> usize {
        let position = self.next;
        self.next += 1;
        self.held += 1;
        self.words[position / WORD_BITS] |= 1 << (position % WORD_BITS);
        self.count(position, 1);
        position
    }

    pub(super) fn remove(&mut self, position: usize) {
        self.held -= 1;
        self.words[position / WORD_BITS] &= !(1 << (position % WORD_BITS));
        self.count(position, 1u64.wrapping_neg());
    }

    /// Keys whose last use is after that at a position, where there is one.
    pub(super) fn newer(&self, position: usize) -> usize {
        let (mut node, mut older) = (position / WORD_BITS, 0);
        while node > 0 {
            older += self.tree[node];
            node &= node - 1;
        }
        let below = (1u64 << (position % WORD_BITS)) - 1;
        let within = (self.words[position / WORD_BITS] & below).count_ones();
        self.held - 1 - older as usize - within as usize
    }

    /// Numbers the newest keys anew, `keep` of them at most: a function from positions before to
    /// positions now, or none where a key is dropped.
    pub(super) fn compact(&mut self, keep: usize) -> impl Fn(usize) -> Option<usize> + use<> {
        let kept = keep.min(self.held);
        let before = std::mem::replace(self, Recency::with_held(kept));
        move |position| kept.checked_sub(1 + before.newer(position))
    }

    fn count(&mut self, position: usize, by: u64) {
        let mut node = position / WORD_BITS + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(by);
            node += node & node.wrapping_neg();
        }
    }
}
