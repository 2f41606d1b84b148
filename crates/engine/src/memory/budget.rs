//! The bytes that may be held, and their reservations.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;

use crate::error::{Error, Result};

/// The bytes that a session may hold, and their reservations.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    total: u64,
    reserved: Mutex<Reserved>,
}

#[derive(Default)]
struct Reserved {
    all: u64,
    /// The part reserved by runs, which release it by themselves.
    runs: u64,
    /// The part reserved for memory outside the engine.
    outside: u64,
}

impl Budget {
    /// A budget of `total` bytes.
    pub(crate) fn new(total: u64) -> Budget {
        Budget(Arc::new(Inner {
            total,
            reserved: Mutex::default(),
        }))
    }

    /// The whole budget, bytes.
    pub fn total(&self) -> u64 {
        self.0.total
    }

    /// Bytes that are not reserved.
    pub fn available(&self) -> u64 {
        self.0.total - self.0.reserved.locked().all
    }

    /// Bytes available to a run, if necessary after the current runs have ended.
    pub fn plannable(&self) -> u64 {
        let reserved = self.0.reserved.locked();
        self.0.total - (reserved.all - reserved.runs)
    }

    /// Whether a run will release memory.
    pub(crate) fn has_runs(&self) -> bool {
        self.0.reserved.locked().runs > 0
    }

    /// An empty reservation for a run.
    pub(crate) fn for_run(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
            owned: 0,
            holder: Holder::Run,
        }
    }

    /// Reserves bytes that are released by themselves, as those of a run are.
    pub(crate) fn reserve_for_run(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.for_run();
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }

    /// Reserves bytes for memory of the caller, all or nothing.
    ///
    /// # Errors
    /// [`Error::OverBudget`], naming `what` and the bytes.
    pub fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = Reservation {
            budget: self.clone(),
            bytes: 0,
            owned: 0,
            holder: Holder::Caller,
        };
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }

    /// Bytes available to the engine.
    pub(crate) fn inside(&self) -> u64 {
        self.0.total - self.0.reserved.locked().outside
    }

    /// Reserves bytes for frames, all or nothing.
    ///
    /// # Errors
    /// As [`reserve`](Budget::reserve).
    pub(crate) fn reserve_floor(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = Reservation {
            budget: self.clone(),
            bytes: 0,
            owned: 0,
            holder: Holder::Activity,
        };
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }
}

impl Reserved {
    /// The part of the budget that is counted separately.
    fn of(&mut self, holder: Holder) -> Option<&mut u64> {
        match holder {
            Holder::Activity => None,
            Holder::Run => Some(&mut self.runs),
            Holder::Caller => Some(&mut self.outside),
        }
    }
}

/// Owner of a reservation.
#[derive(Clone, Copy)]
enum Holder {
    /// Frames of an activity that its caller ends.
    Activity,
    /// Frames of an activity that ends by itself.
    Run,
    /// Memory outside the engine.
    Caller,
}

/// Reserved bytes; free again when dropped.
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    /// Bytes that return to the budget when this is dropped.
    owned: u64,
    holder: Holder,
}

impl Reservation {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps at most `bytes` bytes.
    pub fn shrink(&mut self, bytes: u64) {
        let mut reserved = self.budget.0.reserved.locked();
        let back = self.owned - self.owned.min(bytes);
        reserved.all -= back;
        reserved
            .of(self.holder)
            .into_iter()
            .for_each(|part| *part -= back);
        self.owned = self.owned.min(bytes);
        self.bytes = self.bytes.min(bytes);
    }

    /// Adds bytes, all or nothing.
    pub(crate) fn grow(&mut self, what: &str, bytes: u64) -> Result<()> {
        let (mut reserved, total) = (self.budget.0.reserved.locked(), self.budget.0.total);
        let available = total - reserved.all;
        if bytes > available {
            return Err(Error::OverBudget {
                what: what.to_owned(),
                needed: bytes,
                available,
                budget: total,
            });
        }
        reserved.all += bytes;
        reserved
            .of(self.holder)
            .into_iter()
            .for_each(|part| *part += bytes);
        self.owned += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Sets the size of the reservation that this is a [part](Reservation::part) of.
    pub(super) fn covers(&mut self, bytes: u64) {
        debug_assert!(self.owned == 0);
        self.bytes = bytes;
    }

    /// A floor of `bytes` for an activity of the owner of this reservation. It may outlive the
    /// reservation: memory that the activity then still holds delays others, and never exceeds the
    /// budget.
    pub(crate) fn part(&self, bytes: u64) -> Reservation {
        debug_assert!(bytes <= self.bytes);
        Reservation {
            budget: self.budget.clone(),
            bytes,
            owned: 0,
            holder: Holder::Activity,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(0);
    }
}
