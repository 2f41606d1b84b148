//! Memory that nobody needs otherwise, for things that can be had again: pieces of equal size, which come while there is room and go, the
//! last one first, when anybody else needs theirs.

use outcore_device::Locked;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outcore_device::Buf;

use crate::engine::Engine;
use crate::error::Result;

/// Pieces that may come and go. Dropped, they are free at once.
pub struct Shelf {
    between: Arc<Between>,
    look: Box<dyn Fn() + Send + Sync>,
}

struct Between {
    piece_bytes: usize,
    /// What a piece takes besides, in tables of its owner.
    beside_bytes: u64,
    /// So many pieces would be of use.
    wanted: AtomicUsize,
    pieces: Mutex<Pieces>,
}

/// The pieces of a shelf. None comes or goes while this is looked at.
#[derive(Default)]
pub struct Pieces {
    /// Their bytes.
    pub bufs: Vec<Buf>,
    /// The fewest that there were since the owner looked.
    least: usize,
}

impl Pieces {
    /// The pieces from this one on have gone, and others may have come, since it was asked before.
    pub fn lost_from(&mut self) -> usize {
        std::mem::replace(&mut self.least, self.bufs.len())
    }
}

impl Engine {
    /// A shelf without pieces. Each of them counts as `piece_bytes` and what its owner needs besides.
    ///
    /// # Errors
    /// Those of an engine that cannot start.
    pub fn shelf(&self, piece_bytes: usize, beside_bytes: u64) -> Result<Shelf> {
        let between = Arc::new(Between { piece_bytes, beside_bytes, wanted: 0.into(), pieces: Mutex::default() });
        let look = self.with_handle(|handle, _| {
            handle.put_up(Arc::downgrade(&between))?;
            Ok(handle.looker())
        })?;
        Ok(Shelf { between, look: Box::new(look) })
    }
}

impl Shelf {
    /// The pieces. Whoever looks at them must not wait for anything.
    ///
    /// # Panics
    /// When somebody has panicked who looked at them.
    pub fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.between.pieces.locked()
    }

    /// Asks for pieces until there are so many; they come when they come.
    pub fn want(&self, count: usize) {
        self.between.wanted.store(count, Ordering::Relaxed);
        (self.look)();
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.between.pieces.lock().unwrap_or_else(PoisonError::into_inner).bufs.clear();
        self.want(0);
    }
}

/// All shelves, on the engine's thread.
#[derive(Default)]
pub(crate) struct Shelves(Vec<PutUp>);

/// A shelf that was put up: until its owner has dropped it.
pub(crate) struct PutUp {
    between: Weak<Between>,
    bytes: u64,
}

impl From<Weak<Between>> for PutUp {
    fn from(between: Weak<Between>) -> PutUp {
        PutUp { between, bytes: 0 }
    }
}

impl Shelves {
    pub(crate) fn put_up(&mut self, shelf: PutUp) {
        self.0.push(shelf);
    }

    /// Held on them, with what belongs to it.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|shelf| shelf.bytes).sum()
    }

    /// Forgets shelves that are nobody's any more.
    pub(crate) fn take_down(&mut self) {
        let is_wanted = |between: Arc<Between>| between.wanted.load(Ordering::Relaxed) > 0;
        self.0.retain(|shelf| match shelf.bytes {
            0 => shelf.between.strong_count() > 0,
            _ => shelf.between.upgrade().is_some_and(is_wanted),
        });
    }

    /// Puts up what is wanted, of the `room` bytes that nobody needs.
    pub(crate) fn fill(&mut self, mut room: u64) {
        for shelf in &mut self.0 {
            let Some(between) = shelf.between.upgrade() else { continue };
            let cost = between.cost();
            let wanted = between.wanted.load(Ordering::Relaxed);
            if shelf.bytes >= wanted as u64 * cost || room < cost {
                continue;
            }
            let mut pieces = between.pieces.lock().unwrap_or_else(PoisonError::into_inner);
            while pieces.bufs.len() < wanted && room >= cost {
                let Ok(piece) = Buf::anonymous(between.piece_bytes) else { break };
                pieces.bufs.push(piece);
                room -= cost;
            }
            shelf.bytes = pieces.bufs.len() as u64 * cost;
        }
    }

    /// Takes a piece away; false where there is none.
    pub(crate) fn shrink(&mut self) -> bool {
        let Some(shelf) = self.0.iter_mut().max_by_key(|shelf| shelf.bytes).filter(|shelf| shelf.bytes > 0) else { return false };
        let Some(between) = shelf.between.upgrade() else {
            shelf.bytes = 0;
            return true;
        };
        let mut pieces = between.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        drop(pieces.bufs.pop());
        pieces.least = pieces.least.min(pieces.bufs.len());
        shelf.bytes = pieces.bufs.len() as u64 * between.cost();
        true
    }
}

impl Between {
    fn cost(&self) -> u64 {
        self.piece_bytes as u64 + self.beside_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::Config;

    fn until(happens: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while !happens() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        happens()
    }

    #[test]
    fn pieces_come_while_there_is_room_and_go_when_others_need_theirs() {
        let engine = Engine::new(Config { memory_bytes: 1 << 20, threads: 1, ..Config::default() });
        let shelf = engine.shelf(64 << 10, 1 << 10).unwrap();
        assert_eq!(shelf.pieces().bufs.len(), 0);
        shelf.want(100);
        assert!(until(|| shelf.pieces().bufs.len() == (1 << 20) / (65 << 10)));
        let had = shelf.pieces().bufs.len();
        shelf.pieces().lost_from();
        let reserved = engine.reserve("test", 512 << 10).unwrap();
        assert!(until(|| shelf.pieces().bufs.len() <= (512 << 10) / (65 << 10)));
        drop(reserved);
        shelf.want(101);
        assert!(until(|| shelf.pieces().bufs.len() == had));
        assert!(shelf.pieces().lost_from() < had && shelf.pieces().lost_from() == had);
        let other = engine.shelf(64 << 10, 0).unwrap();
        other.want(1);
        drop(shelf);
        assert!(until(|| other.pieces().bufs.len() == 1));
        assert!(engine.reserve("test", 1 << 20).is_ok() && until(|| other.pieces().bufs.is_empty()));
    }
}
