//! Unused memory for caches: pieces of equal size, added while memory is free, and reclaimed, last
//! one first, when a run, reader or gather needs their memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outcore_device::{Buf, Locked};

use crate::error::Result;

/// A pool of pieces. Dropping it frees them at once.
pub struct ReclaimablePool {
    between: Arc<Between>,
    look: Box<dyn Fn() + Send + Sync>,
}

struct Between {
    piece_bytes: usize,
    /// Bytes that the owner's tables take for each piece.
    beside_bytes: u64,
    /// Number of pieces that the owner can use.
    wanted: AtomicUsize,
    pieces: Mutex<Pieces>,
}

/// The pieces of a pool. None is added or reclaimed while this guard is held.
#[derive(Default)]
pub struct Pieces {
    /// The memory of the pieces.
    pub bufs: Vec<Buf>,
    /// The lowest number of pieces since the owner last called `lost_from`.
    least: usize,
}

impl Pieces {
    /// Pieces from this index on have been reclaimed since the last call, and may have been
    /// replaced by others.
    pub fn lost_from(&mut self) -> usize {
        std::mem::replace(&mut self.least, self.bufs.len())
    }
}

impl ReclaimablePool {
    /// A pool without pieces; `add` adds it to those of the engine, and returns what makes the
    /// engine look at its pools.
    pub(crate) fn new<L: Fn() + Send + Sync + 'static>(
        piece_bytes: usize,
        beside_bytes: u64,
        add: impl FnOnce(PoolHandle) -> Result<L>,
    ) -> Result<ReclaimablePool> {
        let between = Arc::new(Between {
            piece_bytes,
            beside_bytes,
            wanted: 0.into(),
            pieces: Mutex::default(),
        });
        let look = add(Arc::downgrade(&between).into())?;
        Ok(ReclaimablePool {
            between,
            look: Box::new(look),
        })
    }

    /// The pieces. While the guard is held, the caller must not block.
    ///
    /// # Panics
    /// If a thread has panicked while it held the guard.
    pub fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.between.pieces.locked()
    }

    /// Requests `count` pieces in total; they are added as memory becomes free.
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

/// The engine's handle of a pool, valid until its owner has dropped the pool.
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

    /// Bytes held, including the owner's tables.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|pool| pool.bytes).sum()
    }

    /// Removes pools that their owners have dropped.
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
                let Ok(piece) = Buf::not_inherited(between.piece_bytes) else {
                    break;
                };
                pieces.bufs.push(piece);
                room -= cost;
            }
            pool.bytes = pieces.bufs.len() as u64 * cost;
        }
    }

    /// Reclaims a piece; false if there is none.
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

    use crate::engine::{Config, Engine};

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
