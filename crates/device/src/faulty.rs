//! A device that injects faults, reproducible from a seed.
//!
//! It wraps any device. The fault of an operation depends on the seed, the operation, its range and
//! how often that range was requested before, not on the order in which threads arrive; so a run
//! with the same operations meets the same faults. Only `fail_nth`, `crash_after_writes` and
//! `space_bytes` count operations in order of arrival.

use crate::transfer::{discard_now, flush_now, read_once, write_once};
use crate::{Blocking, Device, Limits, OpKind, Route};
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Media tear writes at sectors, even if the device has no sector of its own.
const SECTOR_BYTES: usize = 512;

/// Longest time for which an operation is held back to let others pass.
const HOLD_BACK: Duration = Duration::from_millis(3);

/// The faults to inject. The default is none. Probabilities lie between 0 and 1.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Seed of all random choices.
    pub seed: u64,
    /// Probability that a read fails with EIO.
    pub read_error: f64,
    /// Probability that a write fails with EIO and leaves the medium as it was.
    pub write_error: f64,
    /// Probability that a write fails with EIO after a prefix of its sectors reached the medium.
    pub torn: f64,
    /// Probability that a read or write moves fewer bytes than requested.
    pub short: f64,
    /// Probability that an operation is held back until a later one has finished.
    pub reorder: f64,
    /// Additional time of each operation.
    pub latency: Option<Range<Duration>>,
    /// Bytes that can be written until the medium is full (ENOSPC).
    pub space_bytes: Option<u64>,
    /// Exactly this operation of any kind fails with EIO, counted from 0 in order of arrival.
    pub fail_nth: Option<u64>,
    /// After this many writes no bytes reach the medium, and every operation fails.
    pub crash_after_writes: Option<u64>,
}

/// The fault of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// EIO; nothing was moved.
    Error,
    /// The transfer stopped after this many bytes.
    Short(usize),
    /// EIO after this many bytes reached the medium.
    Torn(usize),
    /// ENOSPC; nothing was moved.
    Full,
    /// The operation was held back until a later one had finished.
    HeldBack,
    /// The device is gone.
    Crashed,
}

/// One operation that reached the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The number of the operation, counted from 0 in order of arrival.
    pub sequence: u64,
    /// The requested operation.
    pub op: OpKind,
    /// Its offset.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// The injected fault, if any.
    pub fault: Option<Fault>,
}

/// A device that passes operations on to another one and injects faults.
pub struct Faulty {
    inner: Arc<dyn Device>,
    faults: Faults,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    log: Vec<Event>,
    seen: HashMap<(OpKind, u64, u64), u64>,
    writes: u64,
    written_bytes: u64,
    finished: u64,
    crashed: bool,
}

impl Faulty {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Device>, faults: Faults) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            faults,
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// Every operation so far, in the order of arrival.
    pub fn log(&self) -> Vec<Event> {
        self.state().log.clone()
    }

    /// Number of operations so far: a run without faults gives the range for `fail_nth`.
    pub fn operations(&self) -> u64 {
        self.state().log.len() as u64
    }

    /// Whether the injected crash has happened.
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs an operation, chooses its fault, and waits for its injected latency.
    fn begin(&self, op: OpKind, offset: u64, len: u64) -> Option<Fault> {
        let mut state = self.state();
        let count = state.seen.entry((op, offset, len)).or_default();
        let mut chance = Chance::new((self.faults.seed, op, offset, len, *count));
        *count += 1;
        let fault = self.choose(&mut state, &mut chance, op, len);
        let sequence = state.log.len() as u64;
        state.log.push(Event {
            sequence,
            op,
            offset,
            len,
            fault,
        });
        let finished = state.finished;
        drop(state);
        if let Some(latency) = &self.faults.latency {
            let spread = latency.end.saturating_sub(latency.start);
            std::thread::sleep(latency.start + spread.mul_f64(chance.unit()));
        }
        if fault == Some(Fault::HeldBack) {
            let others = |state: &mut State| state.finished == finished;
            drop(
                self.finished
                    .wait_timeout_while(self.state(), HOLD_BACK, others),
            );
        }
        fault
    }

    fn choose(
        &self,
        state: &mut State,
        chance: &mut Chance,
        op: OpKind,
        len: u64,
    ) -> Option<Fault> {
        let faults = &self.faults;
        let len = len as usize;
        if op == OpKind::Write {
            state.crashed |= faults
                .crash_after_writes
                .is_some_and(|limit| state.writes >= limit);
            state.writes += 1;
        }
        if state.crashed {
            return Some(Fault::Crashed);
        }
        if faults.fail_nth == Some(state.log.len() as u64) {
            return Some(Fault::Error);
        }
        let unit = self.inner.limits().sector as usize;
        let fault = match op {
            OpKind::Read if chance.falls(faults.read_error) => Some(Fault::Error),
            OpKind::Write if chance.falls(faults.write_error) => Some(Fault::Error),
            OpKind::Write if chance.falls(faults.torn) => {
                let sector = unit.max(SECTOR_BYTES);
                Some(Fault::Torn(chance.below(len / sector + 1) * sector))
            }
            // At least one sector moves and at least one does not.
            OpKind::Read | OpKind::Write if len > unit && chance.falls(faults.short) => {
                Some(Fault::Short((1 + chance.below(len / unit - 1)) * unit))
            }
            _ if chance.falls(faults.reorder) => Some(Fault::HeldBack),
            _ => None,
        };
        if op == OpKind::Write {
            self.charge(state, fault, len, unit)
        } else {
            fault
        }
    }

    /// Charges a write to the space of the medium.
    fn charge(
        &self,
        state: &mut State,
        fault: Option<Fault>,
        len: usize,
        unit: usize,
    ) -> Option<Fault> {
        let wanted = match fault {
            Some(Fault::Error | Fault::Crashed | Fault::Full) => return fault,
            Some(Fault::Short(moved) | Fault::Torn(moved)) => moved.min(len),
            Some(Fault::HeldBack) | None => len,
        };
        let left = self
            .faults
            .space_bytes
            .map_or(u64::MAX, |space| space.saturating_sub(state.written_bytes));
        if wanted as u64 <= left {
            state.written_bytes += wanted as u64;
            return fault;
        }
        let fits = left as usize / unit * unit;
        state.written_bytes += fits as u64;
        Some(if fits == 0 {
            Fault::Full
        } else {
            Fault::Short(fits)
        })
    }

    fn end<T>(&self, result: io::Result<T>) -> io::Result<T> {
        self.state().finished += 1;
        self.finished.notify_all();
        result
    }

    /// For operations that are atomic.
    fn whole<T>(
        &self,
        op: OpKind,
        offset: u64,
        len: u64,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let result = match self.begin(op, offset, len) {
            Some(Fault::Error | Fault::Crashed) => Err(Errno::IO.into()),
            _ => act(),
        };
        self.end(result)
    }
}

impl Device for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn route(&self) -> Route<'_> {
        Route::Blocking(self)
    }
}

impl Blocking for Faulty {
    fn read_at(&self, destination: &mut [u8], offset: u64) -> io::Result<usize> {
        let result = match self.begin(OpKind::Read, offset, destination.len() as u64) {
            Some(Fault::Error | Fault::Crashed) => Err(Errno::IO.into()),
            Some(Fault::Short(moved)) => {
                let len = moved.min(destination.len());
                read_once(&*self.inner, &mut destination[..len], offset)
            }
            _ => read_once(&*self.inner, destination, offset),
        };
        self.end(result)
    }

    fn write_at(&self, source: &[u8], offset: u64) -> io::Result<usize> {
        let result = match self.begin(OpKind::Write, offset, source.len() as u64) {
            Some(Fault::Error | Fault::Crashed) => Err(Errno::IO.into()),
            Some(Fault::Full) => Err(Errno::NOSPC.into()),
            Some(Fault::Short(moved)) => {
                write_once(&*self.inner, &source[..moved.min(source.len())], offset)
            }
            Some(Fault::Torn(moved)) => {
                let prefix = &source[..moved.min(source.len())];
                write_once(&*self.inner, prefix, offset).and(Err(Errno::IO.into()))
            }
            _ => write_once(&*self.inner, source, offset),
        };
        self.end(result)
    }

    fn flush(&self) -> io::Result<()> {
        self.whole(OpKind::Flush, 0, 0, || flush_now(&*self.inner))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.whole(OpKind::Discard, offset, len, || {
            discard_now(&*self.inner, offset, len)
        })
    }

    fn offload(&self, opcode: u8, input: &[u8], destination: &mut [u8]) -> io::Result<usize> {
        self.whole(
            OpKind::Offload,
            0,
            destination.len() as u64,
            || match self.inner.route() {
                Route::Blocking(inner) => inner.offload(opcode, input, destination),
                Route::Descriptor(_) => Err(io::ErrorKind::Unsupported.into()),
            },
        )
    }
}

/// Splitmix64, seeded by the fields that identify an operation.
struct Chance(u64);

impl Chance {
    fn new(key: impl Hash) -> Chance {
        // Its keys are fixed, unlike those of the hasher of a `HashMap`.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Chance(hasher.finish())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between 0 and 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn falls(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn device(faults: Faults) -> (Arc<MemoryDevice>, Arc<Faulty>) {
        let inner = Arc::new(MemoryDevice::with_sector("medium", 1 << 20, 512));
        (Arc::clone(&inner), Faulty::new(inner, faults))
    }

    #[test]
    fn exactly_the_nth_operation_fails() {
        let (_, device) = device(Faults {
            fail_nth: Some(2),
            ..Faults::default()
        });
        device.write_at(&[1; 512], 0).unwrap();
        device.flush().unwrap();
        let error = device.read_at(&mut [0; 512], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(device.read_at(&mut [0; 512], 0).unwrap(), 512);
        assert_eq!(device.operations(), 4);
        assert_eq!(device.log()[2].fault, Some(Fault::Error));
    }

    #[test]
    fn a_torn_write_leaves_a_prefix_of_sectors() {
        let (medium, device) = device(Faults {
            torn: 1.0,
            seed: 3,
            ..Faults::default()
        });
        let mut lens = Vec::new();
        for offset in (0..16 * 4096).step_by(4096) {
            device.write_at(&[7; 4096], offset as u64).unwrap_err();
            let bytes = &medium.to_bytes()[offset..offset + 4096];
            let reached = bytes.iter().take_while(|&&byte| byte == 7).count();
            assert_eq!(reached % SECTOR_BYTES, 0);
            assert!(bytes[reached..].iter().all(|&byte| byte == 0));
            lens.push(reached);
        }
        lens.sort_unstable();
        lens.dedup();
        assert!(lens.len() > 3, "{lens:?}");
    }

    #[test]
    fn a_full_medium_takes_what_fits_and_then_nothing() {
        let (medium, device) = device(Faults {
            space_bytes: Some(3000),
            ..Faults::default()
        });
        assert_eq!(device.write_at(&[1; 2048], 0).unwrap(), 2048);
        assert_eq!(device.write_at(&[2; 2048], 2048).unwrap(), 512);
        let error = device.write_at(&[2; 1536], 2560).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(medium.to_bytes()[2560..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn nothing_reaches_the_medium_after_the_crash() {
        let (medium, device) = device(Faults {
            crash_after_writes: Some(1),
            ..Faults::default()
        });
        device.write_at(&[1; 512], 0).unwrap();
        assert!(!device.crashed());
        device.write_at(&[2; 512], 512).unwrap_err();
        assert!(device.crashed());
        device.read_at(&mut [0; 512], 0).unwrap_err();
        device.flush().unwrap_err();
        assert!(medium.to_bytes()[512..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn one_seed_means_one_fate() {
        let faults = |seed| Faults {
            seed,
            read_error: 0.3,
            short: 0.3,
            reorder: 0.1,
            ..Faults::default()
        };
        let fates = |seed, order: &[u64]| {
            let (_, device) = device(faults(seed));
            for &offset in order {
                let _ = device.read_at(&mut [0; 8192], offset * 8192);
            }
            let mut log: Vec<_> = device
                .log()
                .iter()
                .map(|event| (event.offset, event.fault))
                .collect();
            log.sort_by_key(|&(offset, _)| offset);
            log
        };
        let forward: Vec<u64> = (0..64).collect();
        let backward: Vec<u64> = (0..64).rev().collect();
        assert_eq!(fates(1, &forward), fates(1, &backward));
        assert_ne!(fates(1, &forward), fates(2, &forward));
    }
}
