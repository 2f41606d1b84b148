//! Doubly linked lists of slots in one array.
//!
//! ```text
//! nodes: | ring of list 0 | .. | ring of list N-1 | slot 0 | slot 1 | ...
//! ```
//! Each list is a ring through a node of its own, so linking has no special cases; the node of a
//! slot in no list is a ring by itself.

use super::SLOTS_MAX;

#[derive(Clone, Copy)]
struct Node {
    previous: u32,
    next: u32,
}

/// `N` lists; a slot is in one of them at most.
pub(super) struct Lists<const N: usize> {
    nodes: Vec<Node>,
    lens: [u32; N],
}

impl<const N: usize> Lists<N> {
    pub(super) fn new(slots: u32) -> Lists<N> {
        let mut lists = Lists {
            nodes: Vec::new(),
            lens: [0; N],
        };
        lists.resize(slots);
        lists
    }

    /// Slots that go must be in no list.
    pub(super) fn resize(&mut self, slots: u32) {
        assert!(slots <= SLOTS_MAX, "{slots} slots");
        let (from, to) = (self.nodes.len() as u32, N as u32 + slots);
        self.nodes.truncate(to as usize);
        self.nodes.extend((from..to).map(|node| Node {
            previous: node,
            next: node,
        }));
    }

    pub(super) fn slots(&self) -> u32 {
        (self.nodes.len() - N) as u32
    }

    pub(super) fn len(&self, list: usize) -> u32 {
        self.lens[list]
    }

    pub(super) fn is_linked(&self, slot: u32) -> bool {
        self.nodes[N + slot as usize].next != N as u32 + slot
    }

    /// The slot that is in the list for the longest time.
    pub(super) fn first(&self, list: usize) -> Option<u32> {
        self.nodes[list].next.checked_sub(N as u32)
    }

    pub(super) fn push(&mut self, list: usize, slot: u32) {
        debug_assert!(!self.is_linked(slot), "slot {slot} is not vacant");
        self.link(list, N as u32 + slot);
        self.lens[list] += 1;
    }

    pub(super) fn unlink(&mut self, list: usize, slot: u32) {
        debug_assert!(self.is_linked(slot), "slot {slot} is vacant");
        let node = N as u32 + slot;
        self.cut(node);
        self.nodes[node as usize] = Node {
            previous: node,
            next: node,
        };
        self.lens[list] -= 1;
    }

    /// To the end of its list.
    pub(super) fn renew(&mut self, list: usize, slot: u32) {
        debug_assert!(self.is_linked(slot), "slot {slot} is vacant");
        self.cut(N as u32 + slot);
        self.link(list, N as u32 + slot);
    }

    fn cut(&mut self, node: u32) {
        let Node { previous, next } = self.nodes[node as usize];
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
    }

    fn link(&mut self, list: usize, node: u32) {
        let last = self.nodes[list].previous;
        self.nodes[node as usize] = Node {
            previous: last,
            next: list as u32,
        };
        self.nodes[last as usize].next = node;
        self.nodes[list].previous = node;
    }
}
