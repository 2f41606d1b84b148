//! The bytes that may be held, and their reservations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use outcore_device::Locked;

use super::share::Share;
use crate::error::{Error, Result};

/// A number of bytes that a session may hold, or a part of it that one call may, and what is
/// reserved of it.
///
/// A part is taken from the budget around it, whole, with the first reservation in it, and given
/// back with the last: between the runs of a call nothing is held that others would wait for.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    total: u64,
    /// The budget that this one is a part of.
    around: Option<Budget>,
    reserved: Mutex<Reserved>,
    /// What activities hold above their floors, bytes. Only the engine's thread writes it.
    above_floors: AtomicU64,
    /// Held as long as anything may be reserved.
    _share: Option<Share>,
}

#[derive(Clone, Copy, Default)]
struct Reserved {
    all: u64,
    /// The part of it that runs have, and give back by themselves.
    runs: u64,
    /// The part reserved for memory outside the engine.
    outside: u64,
}

impl Budget {
    /// A budget of `total` bytes; `share` is what it has of a cap that several divide.
    pub(crate) fn new(total: u64, share: Option<Share>) -> Budget {
        Budget(Arc::new(Inner {
            total,
            around: None,
            reserved: Mutex::default(),
            above_floors: AtomicU64::new(0),
            _share: share,
        }))
    }

    /// A budget of `total` bytes that are a part of this one.
    ///
    /// # Errors
    /// [`Error::OverBudget`] for more than this one has, whatever is reserved now.
    pub(crate) fn part(&self, what: &str, total: u64) -> Result<Budget> {
        if total > self.0.total {
            return Err(Error::OverBudget {
                what: what.to_owned(),
                needed: total,
                available: self.0.total,
                budget: self.0.total,
            });
        }
        Ok(Budget(Arc::new(Inner {
            total,
            around: Some(self.clone()),
            reserved: Mutex::default(),
            above_floors: AtomicU64::new(0),
            _share: None,
        })))
    }

    /// All of it, bytes.
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

    /// Refuses a run in a part that the budget around it cannot give, even after the runs that go
    /// on now.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub(crate) fn check_around(&self, what: &str) -> Result<()> {
        let Some(around) = &self.0.around else {
            return Ok(());
        };
        let has_it = self.0.reserved.locked().all > 0;
        let available = around.plannable();
        if !has_it && self.0.total > available {
            return Err(around.refusal(what, self.0.total, available));
        }
        around.check_around(what)
    }

    /// Whether bytes can be reserved once the runs that go on now have ended.
    pub fn will_have(&self, bytes: u64) -> bool {
        bytes <= self.plannable() && self.check_around("").is_ok()
    }

    /// Whether a run goes on that will give memory back.
    pub(crate) fn has_runs(&self) -> bool {
        self.0.reserved.locked().runs > 0 || self.0.around.as_ref().is_some_and(Budget::has_runs)
    }

    /// What activities may take above their floors, bytes: what is not reserved, of a part that has
    /// been taken.
    pub(super) fn elastic(&self) -> u64 {
        let reserved = self.0.reserved.locked();
        match self.0.around.is_some() && reserved.all == 0 {
            true => 0,
            false => self.0.total - reserved.all,
        }
    }

    /// What activities hold above their floors, bytes.
    pub(super) fn above_floors(&self) -> u64 {
        self.0.above_floors.load(Relaxed)
    }

    /// Counts what an activity holds above its floor, which was `before` and is `after`.
    pub(super) fn count_above_floor(&self, before: u64, after: u64) {
        let sum = self.above_floors() - before + after;
        self.0.above_floors.store(sum, Relaxed);
    }

    /// Whether activities hold more above their floors, here or in the budget around, than is left
    /// for that.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.above_floors() > self.elastic()
            || self.0.around.as_ref().is_some_and(Budget::is_overdrawn)
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

impl Budget {
    /// Replaces what a reservation has, all or nothing.
    fn replace(&self, what: &str, before: Reserved, after: Reserved) -> Result<()> {
        let mut reserved = self.0.reserved.locked();
        let next = reserved.with(before, after);
        if next.all > self.0.total {
            return Err(self.refusal(what, after.all - before.all, self.0.total - reserved.all));
        }
        if let Some(around) = &self.0.around {
            around.replace(what, self.taken(*reserved), self.taken(next))?;
        }
        *reserved = next;
        Ok(())
    }

    /// What a part has of the budget around it while this is reserved of it: all its bytes, if any;
    /// they come back by themselves where it has nothing but runs.
    fn taken(&self, reserved: Reserved) -> Reserved {
        let if_so = |condition| if condition { self.0.total } else { 0 };
        Reserved {
            all: if_so(reserved.all > 0),
            runs: if_so(reserved.all > 0 && reserved.runs == reserved.all),
            outside: reserved.outside,
        }
    }

    fn refusal(&self, what: &str, needed: u64, available: u64) -> Error {
        Error::OverBudget {
            what: what.to_owned(),
            needed,
            available,
            budget: self.0.total,
        }
    }
}

impl Reserved {
    fn of(holder: Holder, bytes: u64) -> Reserved {
        Reserved {
            all: bytes,
            runs: if let Holder::Run = holder { bytes } else { 0 },
            outside: if let Holder::Caller = holder {
                bytes
            } else {
                0
            },
        }
    }

    /// With `after` where `before` was.
    fn with(self, before: Reserved, after: Reserved) -> Reserved {
        Reserved {
            all: (self.all - before.all).saturating_add(after.all),
            runs: (self.runs - before.runs).saturating_add(after.runs),
            outside: (self.outside - before.outside).saturating_add(after.outside),
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
    /// The budget that it is of.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps at most `bytes` bytes.
    pub fn shrink(&mut self, bytes: u64) {
        let back = self.owned - self.owned.min(bytes);
        let back = Reserved::of(self.holder, back);
        self.budget
            .replace("", back, Reserved::default())
            .expect("to give back never needs memory");
        self.owned = self.owned.min(bytes);
        self.bytes = self.bytes.min(bytes);
    }

    /// Adds bytes, all or nothing.
    pub(crate) fn grow(&mut self, what: &str, bytes: u64) -> Result<()> {
        self.budget
            .replace(what, Reserved::default(), Reserved::of(self.holder, bytes))?;
        self.owned += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Sets the size of the reservation that this is a [part](Reservation::part) of.
    pub(super) fn covers(&mut self, bytes: u64) {
        assert!(self.owned == 0, "a part owns nothing of its own");
        self.bytes = bytes;
    }

    /// A floor of `bytes` for an activity of the owner of this reservation. It may outlive the
    /// reservation: memory that the activity then still holds delays others, and never exceeds the
    /// budget.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(error: Error) -> (u64, u64, u64) {
        match error {
            Error::OverBudget {
                needed,
                available,
                budget,
                ..
            } => (needed, available, budget),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_part_is_taken_whole_while_anything_of_it_is_reserved() {
        let whole = Budget::new(100, None);
        let part = whole.part("part", 60).unwrap();
        assert_eq!((whole.available(), part.available()), (100, 60));
        let (first, second) = (
            part.reserve_floor("first", 10).unwrap(),
            part.reserve_floor("second", 50).unwrap(),
        );
        assert_eq!((whole.available(), part.available()), (40, 0));
        drop(first);
        assert_eq!((whole.available(), part.available()), (40, 10));
        drop(second);
        assert_eq!((whole.available(), part.available()), (100, 60));
    }

    #[test]
    fn more_than_the_whole_is_refused_with_both_numbers() {
        let whole = Budget::new(100, None);
        assert_eq!(
            numbers(whole.part("part", 101).err().unwrap()),
            (101, 100, 100)
        );
    }

    #[test]
    fn a_part_that_others_leave_no_room_for_is_refused_and_nothing_is_reserved() {
        let whole = Budget::new(100, None);
        let part = whole.part("part", 60).unwrap();
        let held = whole.reserve("held", 50).unwrap();
        assert_eq!(
            numbers(part.reserve_floor("floor", 1).err().unwrap()),
            (60, 50, 100)
        );
        assert_eq!(
            numbers(part.check_around("run").unwrap_err()),
            (60, 50, 100)
        );
        assert!(!part.will_have(1));
        assert_eq!((whole.available(), part.available()), (50, 60));
        drop(held);
        assert!(part.reserve_floor("floor", 1).is_ok() && part.will_have(60));
    }

    #[test]
    fn a_part_with_nothing_but_runs_comes_back_by_itself() {
        let whole = Budget::new(100, None);
        let part = whole.part("part", 60).unwrap();
        let run = part.reserve_for_run("run", 5).unwrap();
        assert_eq!((whole.plannable(), whole.has_runs()), (100, true));
        let floor = part.reserve_floor("reader", 5).unwrap();
        assert_eq!((whole.plannable(), whole.has_runs()), (40, false));
        drop(floor);
        assert_eq!((whole.plannable(), whole.has_runs()), (100, true));
        drop(run);
        assert_eq!((whole.plannable(), whole.has_runs()), (100, false));
    }

    #[test]
    fn memory_outside_of_a_part_is_outside_of_the_whole() {
        let whole = Budget::new(100, None);
        let part = whole.part("part", 60).unwrap();
        let mut outside = part.reserve("outside", 30).unwrap();
        assert_eq!((whole.inside(), part.inside()), (70, 30));
        outside.shrink(10);
        assert_eq!(
            (whole.inside(), part.inside(), whole.available()),
            (90, 50, 40)
        );
        drop(outside);
        assert_eq!((whole.inside(), part.inside()), (100, 60));
    }

    /// Reserves in one of the budgets, or lets go of a reservation.
    fn step() -> impl Strategy<Value = (usize, u8, u64, bool, prop::sample::Index)> {
        (
            0usize..4,
            0u8..3,
            1u64..70,
            any::<bool>(),
            any::<prop::sample::Index>(),
        )
    }

    proptest! {
        /// A whole, two parts of it, and a part of a part, beside sums made by hand.
        #[test]
        fn what_is_reserved_is_what_the_parts_have(steps in proptest::collection::vec(step(), 1..80)) {
            let whole = Budget::new(100, None);
            let (left, right) = (whole.part("left", 60).unwrap(), whole.part("right", 70).unwrap());
            let inner = left.part("inner", 20).unwrap();
            let budgets = [&whole, &left, &right, &inner];
            let mut held: Vec<(usize, Reservation)> = Vec::new();
            for (at, holder, bytes, lets_go, which) in steps {
                if lets_go && !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                } else {
                    let made = match holder {
                        0 => budgets[at].reserve_for_run("run", bytes),
                        1 => budgets[at].reserve_floor("floor", bytes),
                        _ => budgets[at].reserve("outside", bytes),
                    };
                    held.extend(made.ok().map(|made| (at, made)));
                }
                let own = |at| held.iter().filter(|(of, _)| *of == at).map(|(_, made)| made.bytes()).sum::<u64>();
                let taken = |sum, total| if sum > 0 { total } else { 0 };
                let in_left = own(1) + taken(own(3), 20);
                let in_whole = own(0) + taken(in_left, 60) + taken(own(2), 70);
                let available = budgets.map(Budget::available);
                prop_assert_eq!(available, [100 - in_whole, 60 - in_left, 70 - own(2), 20 - own(3)]);
                prop_assert!(budgets.iter().all(|budget| budget.plannable() >= budget.available()));
            }
            held.clear();
            prop_assert_eq!(budgets.map(|budget| (budget.available(), budget.plannable(), budget.inside())),
                [(100, 100, 100), (60, 60, 60), (70, 70, 70), (20, 20, 20)]);
        }
    }
}
