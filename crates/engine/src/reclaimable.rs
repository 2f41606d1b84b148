//! Unused memory for caches: pieces of equal size, which are added while there is room and
//! reclaimed, the last one first, when a run, reader or gather needs theirs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outcore_device::{Buf, Locked};

use crate::engine::Engine;
use crate::error::Result;

/// Pieces that may come and go. Dropped, they are free at once.
pub struct ReclaimablePool {
    between: Arc<Between>,
    look: Box<dyn Fn() + Send + Sync>,
}

struct Between {
    piece_bytes: usize,
    /// What a piece takes besides, in tables of its owner.
    beside_bytes: u64,
    /// The number of pieces that would be of use.
    wanted: AtomicUsize,
    pieces: Mutex<Pieces>,
}

/// The pieces of a pool. None comes or goes while this is looked at.
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
    /// A pool without pieces. Each of them counts as `piece_bytes` and what its owner needs
    /// besides.
    ///
    /// # Errors
    /// Those of an engine that cannot start.
    pub fn reclaimable_pool(
        &self,
        piece_bytes: usize,
        beside_bytes: u64,
    ) -> Result<ReclaimablePool> {
        let between = Arc::new(Between {
            piece_bytes,
            beside_bytes,
            wanted: 0.into(),
            pieces: Mutex::default(),
        });
        let look = self.with_handle(|handle, _| {
            handle.add_pool(Arc::downgrade(&between))?;
            Ok(handle.poller())
        })?;
        Ok(ReclaimablePool {
            between,
            look: Box::new(look),
        })
    }
}

impl ReclaimablePool {
    /// The pieces. While the guard is held, the caller must not wait for anything.
    ///
    /// # Panics
    /// When a thread has panicked that held the guard.
    pub fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.between.pieces.locked()
    }

    /// Asks for `count` pieces in all; they are added as memory is free.
    pub fn want(&self, count: usize) {
        self.between.wanted.store(count, Ordering::Relaxed);
        (self.look)();
    }
}

impl Drop for ReclaimablePool {
    fn drop(&mut self) {
        self.between
            .pieces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bufs
            .clear();
        self.want(0);
    }
}

/// All pools, on the engine's thread.
#[derive(Default)]
pub(crate) struct ReclaimablePools(Vec<PoolHandle>);

/// A pool that was put up: until its owner has dropped it.
pub(crate) struct PoolHandle {
    between: Weak<Between>,
    bytes: u64,
}

impl From<Weak<Between>> for PoolHandle {
    fn from(between: Weak<Between>) -> PoolHandle {
        PoolHandle { between, bytes: 0 }
    }
}

impl ReclaimablePools {
    pub(crate) fn add_pool(&mut self, pool: PoolHandle) {
        self.0.push(pool);
    }

    /// Held on them, with what belongs to it.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|pool| pool.bytes).sum()
    }

    /// Forgets pools whose owners have dropped them.
    pub(crate) fn drop_dead(&mut self) {
        let is_wanted = |between: Arc<Between>| between.wanted.load(Ordering::Relaxed) > 0;
        self.0.retain(|pool| match pool.bytes {
            0 => pool.between.strong_count() > 0,
            _ => pool.between.upgrade().is_some_and(is_wanted),
        });
    }

    /// Adds the wanted pieces, within `room` bytes of unused memory.
    pub(crate) fn fill(&mut self, mut room: u64) {
        for pool in &mut self.0 {
            let Some(between) = pool.between.upgrade() else {
                continue;
            };
            let cost = between.cost();
            let wanted = between.wanted.load(Ordering::Relaxed);
            if pool.bytes >= wanted as u64 * cost || room < cost {
                continue;
            }
            let mut pieces = between
                .pieces
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            while pieces.bufs.len() < wanted && room >= cost {
                let Ok(piece) = Buf::anonymous(between.piece_bytes) else {
                    break;
                };
                pieces.bufs.push(piece);
                room -= cost;
            }
            pool.bytes = pieces.bufs.len() as u64 * cost;
        }
    }

    /// Takes a piece away; false where there is none.
    pub(crate) fn shrink(&mut self) -> bool {
        let Some(pool) = self
            .0
            .iter_mut()
            .max_by_key(|pool| pool.bytes)
            .filter(|pool| pool.bytes > 0)
        else {
            return false;
        };
        let Some(between) = pool.between.upgrade() else {
            pool.bytes = 0;
            return true;
        };
        let mut pieces = between
            .pieces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(pieces.bufs.pop());
        pieces.least = pieces.least.min(pieces.bufs.len());
        pool.bytes = pieces.bufs.len() as u64 * between.cost();
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
        let engine = Engine::new(Config {
            memory_bytes: 1 << 20,
            threads: 1,
            ..Config::default()
        });
        let pool = engine.reclaimable_pool(64 << 10, 1 << 10).unwrap();
        assert_eq!(pool.pieces().bufs.len(), 0);
        pool.want(100);
        assert!(until(|| pool.pieces().bufs.len() == (1 << 20) / (65 << 10)));
        let had = pool.pieces().bufs.len();
        pool.pieces().lost_from();
        let reserved = engine.reserve("test", 512 << 10).unwrap();
        assert!(until(
            || pool.pieces().bufs.len() <= (512 << 10) / (65 << 10)
        ));
        drop(reserved);
        pool.want(101);
        assert!(until(|| pool.pieces().bufs.len() == had));
        assert!(pool.pieces().lost_from() < had && pool.pieces().lost_from() == had);
        let other = engine.reclaimable_pool(64 << 10, 0).unwrap();
        other.want(1);
        drop(pool);
        assert!(until(|| other.pieces().bufs.len() == 1));
        assert!(
            engine.reserve("test", 1 << 20).is_ok() && until(|| other.pieces().bufs.is_empty())
        );
    }
}
