//! How many bytes may be held, and who has reserved what of them.

use std::sync::{Arc, Mutex};

use outcore_device::Locked;

use crate::error::{Error, Result};

/// A number of bytes that a session may hold, and who has reserved what of it.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    total: u64,
    reserved: Mutex<Reserved>,
}

#[derive(Default)]
struct Reserved {
    all: u64,
    /// The part of it that runs have, and give back without anybody's doing.
    runs: u64,
    /// The part of it that is for memory which the engine knows nothing of.
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

    /// All of it, bytes.
    pub fn total(&self) -> u64 {
        self.0.total
    }

    /// Bytes that are not reserved.
    pub fn available(&self) -> u64 {
        self.0.total - self.0.reserved.locked().all
    }

    /// What a run may have, if need be after those that go on now, bytes.
    pub fn plannable(&self) -> u64 {
        let reserved = self.0.reserved.locked();
        self.0.total - (reserved.all - reserved.runs)
    }

    /// Whether a run goes on that will give memory back.
    pub(crate) fn has_runs(&self) -> bool {
        self.0.reserved.locked().runs > 0
    }

    /// Nothing yet, for a run.
    pub(crate) fn for_run(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
            owned: 0,
            holder: Holder::Run,
        }
    }

    /// Reserves bytes that come back without anybody's doing, as those of a run do.
    pub(crate) fn reserve_for_run(&self, what: &str, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.for_run();
        reservation.grow(what, bytes)?;
        Ok(reservation)
    }

    /// Reserves bytes for memory of the caller's own, all or nothing.
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

    /// What is left to the engine, bytes.
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
    /// The part of it that is counted apart.
    fn of(&mut self, holder: Holder) -> Option<&mut u64> {
        match holder {
            Holder::Activity => None,
            Holder::Run => Some(&mut self.runs),
            Holder::Caller => Some(&mut self.outside),
        }
    }
}

/// Whose memory it is.
#[derive(Clone, Copy)]
enum Holder {
    /// Frames of an activity that its caller ends.
    Activity,
    /// Of one that ends by itself.
    Run,
    /// Not the engine's.
    Caller,
}

/// Reserved bytes; free again when dropped.
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    /// What of it goes back to the budget from here.
    owned: u64,
    holder: Holder,
}

impl Reservation {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps at most `bytes` of them.
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

    /// Says of a [part](Reservation::part) how much the whole is now.
    pub(super) fn covers(&mut self, bytes: u64) {
        assert!(self.owned == 0, "a part owns nothing of its own");
        self.bytes = bytes;
    }

    /// A floor of `bytes` for an activity of the owner of this reservation. It may outlast it: what
    /// the activity then still holds keeps others waiting, not above the budget.
    pub(crate) fn part(&self, bytes: u64) -> Reservation {
        assert!(
            bytes <= self.bytes,
            "a part of a reservation is no more than it"
        );
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
