//! A lock of a table that is written: many look-ups share it, a step has it alone. And one of a set:
//! steps of several tables share it, and a commit has it alone while it takes what the tables are.
//!
//! Unlike `std::sync::RwLock` it asks a caller that waits whether to go on, since a step may take as long
//! as the device needs. A step that waits keeps look-ups that come later waiting, so that it has its turn.

use std::sync::{Condvar, Mutex};

use outcore_core::Result;
use outcore_device::Locked;

use crate::readers::wait_a_while;

#[derive(Default)]
pub(crate) struct Gate {
    holders: Mutex<Holders>,
    changed: Condvar,
}

#[derive(Default)]
struct Holders {
    shared: usize,
    alone: bool,
    /// That wait to have it alone.
    waiting: usize,
}

/// Gives the lock back when it is dropped.
pub(crate) struct Shared<'a>(&'a Gate);

/// Gives the lock back when it is dropped.
pub(crate) struct Alone<'a>(&'a Gate);

impl Gate {
    /// Waits until no step has it, or waits for it.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) fn shared(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Shared<'_>> {
        let is_held = |holders: &Holders| holders.alone || holders.waiting > 0;
        self.enter(is_held, |holders| holders.shared += 1, go_on)?;
        Ok(Shared(self))
    }

    /// The same, unless a step has it now. A step that waits does not matter: it may be for a share that the caller has.
    pub(crate) fn shared_if_free(&self) -> Option<Shared<'_>> {
        let mut holders = self.holders.locked();
        holders.shared += usize::from(!holders.alone);
        (!holders.alone).then(|| Shared(self))
    }

    /// Waits until nothing else has it.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) fn alone(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Alone<'_>> {
        self.holders.locked().waiting += 1;
        let is_held = |holders: &Holders| holders.alone || holders.shared > 0;
        let entered = self.enter(is_held, |holders| holders.alone = true, go_on);
        self.holders.locked().waiting -= 1;
        // Look-ups may have waited for this one, which has given up.
        entered.inspect_err(|_| self.changed.notify_all())?;
        Ok(Alone(self))
    }

    fn enter(
        &self,
        is_held: impl Fn(&Holders) -> bool,
        hold: impl FnOnce(&mut Holders),
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let mut holders = self.holders.locked();
        while is_held(&holders) {
            holders = wait_a_while(&self.changed, holders, go_on)?;
        }
        hold(&mut holders);
        Ok(())
    }
}

impl Gate {
    /// Gives a share back that was [kept](Shared::keep).
    pub(crate) fn leave(&self) {
        self.holders.locked().shared -= 1;
        self.changed.notify_all();
    }
}

impl Shared<'_> {
    /// Keeps the share until [`Gate::leave`].
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.holders.locked().alone = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use outcore_core::Error;

    use super::*;

    #[test]
    fn look_ups_share_it_and_a_step_has_it_alone() {
        let (gate, inside) = (Gate::default(), AtomicUsize::new(0));
        let (gate, inside) = (&gate, &inside);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        if thread == 0 {
                            let _alone = gate.alone(&mut || true).unwrap();
                            assert_eq!(inside.swap(1000, Ordering::SeqCst), 0);
                            inside.store(0, Ordering::SeqCst);
                        } else {
                            let _shared = gate.shared(&mut || true).unwrap();
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let holders = gate.holders.locked();
        assert_eq!(
            (holders.shared, holders.alone, holders.waiting),
            (0, false, 0)
        );
    }

    #[test]
    fn a_caller_that_waits_can_give_up_and_keeps_none_waiting() {
        let gate = Gate::default();
        let cancelled = |outcome: Result<()>| matches!(outcome, Err(Error::Cancelled));
        let shared = gate.shared(&mut || false).unwrap();
        assert!(gate.shared_if_free().is_some());
        assert!(cancelled(gate.alone(&mut || false).map(drop)));
        // The step that gave up keeps no look-up waiting.
        drop(gate.shared(&mut || false).unwrap());
        drop(shared);
        let alone = gate.alone(&mut || false).unwrap();
        assert!(gate.shared_if_free().is_none());
        assert!(cancelled(gate.shared(&mut || false).map(drop)));
        drop(alone);
        drop(gate.shared(&mut || false).unwrap());
    }
}
