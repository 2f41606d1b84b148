//! Units that are being read, so that requests which need the same one read it once.
//!
//! The first request that misses a unit reads it; the others ask it for the bytes. A request that ends
//! without them says so, and those that asked read the unit themselves.

use std::sync::{Arc, Condvar, Mutex};

use hashbrown::HashMap;
use outcore_core::Error;
use outcore_device::Locked;

use crate::readers::wait_a_while;

/// What is read at once, among all that a set reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnitKey {
    /// Number of the table in its set.
    pub(crate) table: u32,
    /// Which of the tables that were served under this number.
    pub(crate) served: u32,
    /// Unique in the table.
    pub(crate) unit: u64,
}

/// What came of a unit: its bytes, why they cannot be had, or that its reader has given up.
pub(crate) type Delivery = Option<Result<Arc<[u8]>, Arc<Error>>>;

#[derive(Default)]
pub(crate) struct InFlight(Mutex<HashMap<UnitKey, Vec<Wish>>>);

/// Another request waits for the unit.
struct Wish {
    inbox: Arc<Inbox>,
    number: u32,
}

/// What a request gets from others.
#[derive(Default)]
pub(crate) struct Inbox {
    arrived: Mutex<Vec<(u32, Delivery)>>,
    changed: Condvar,
}

impl Inbox {
    fn put(&self, number: u32, delivery: Delivery) {
        self.arrived.locked().push((number, delivery));
        self.changed.notify_one();
    }

    /// Waits until `count` units have arrived; `go_on` is asked meanwhile, and its `false` ends it with
    /// `None`.
    pub(crate) fn wait(
        &self,
        count: usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Vec<(u32, Delivery)>> {
        let mut arrived = self.arrived.locked();
        while arrived.len() < count {
            arrived = wait_a_while(&self.changed, arrived, go_on).ok()?;
        }
        Some(std::mem::take(&mut arrived))
    }
}

/// Units that one request reads; those not delivered when it is dropped are given up.
pub(crate) struct Claims<'a> {
    in_flight: &'a InFlight,
    keys: Vec<UnitKey>,
}

impl InFlight {
    /// Of these units, those that no other request reads are the caller's from now on; `theirs` gets the
    /// numbers of the others, which come to the inbox.
    pub(crate) fn claim(
        &self,
        keys: impl Iterator<Item = UnitKey>,
        inbox: &Arc<Inbox>,
        theirs: &mut Vec<u32>,
    ) -> Claims<'_> {
        let mut in_flight = self.0.locked();
        let mut mine = Vec::new();
        for (number, key) in (0..).zip(keys) {
            match in_flight.get_mut(&key) {
                Some(wishes) => {
                    wishes.push(Wish {
                        inbox: Arc::clone(inbox),
                        number,
                    });
                    theirs.push(number);
                }
                None => {
                    in_flight.insert(key, Vec::new());
                    mine.push(key);
                }
            }
        }
        Claims {
            in_flight: self,
            keys: mine,
        }
    }
}

impl Claims<'_> {
    /// Nothing is being read any more; `outcome` says what came of each unit that was asked for.
    pub(crate) fn deliver(&mut self, mut outcome: impl FnMut(UnitKey) -> Delivery) {
        let mut asked = Vec::new();
        let mut in_flight = self.in_flight.0.locked();
        for key in self.keys.drain(..) {
            let wishes = in_flight.remove(&key).unwrap_or_default();
            asked.extend(wishes.into_iter().map(|wish| (key, wish)));
        }
        drop(in_flight);
        for (key, wish) in asked {
            wish.inbox.put(wish.number, outcome(key));
        }
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        self.deliver(|_| None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(units: [u64; 2]) -> impl Iterator<Item = UnitKey> {
        units.into_iter().map(|unit| UnitKey {
            table: 0,
            served: 0,
            unit,
        })
    }

    #[test]
    fn a_unit_is_read_by_the_first_that_asks() {
        let in_flight = InFlight::default();
        let (one, two) = (Arc::<Inbox>::default(), Arc::<Inbox>::default());
        let mut theirs = Vec::new();
        let mut first = in_flight.claim(keys([1, 2]), &one, &mut theirs);
        assert!(theirs.is_empty());
        let second = in_flight.claim(keys([3, 2]), &two, &mut theirs);
        assert_eq!(theirs, [1]);
        first.deliver(|key| Some(Ok(Arc::from([key.unit as u8]))));
        let found = two.wait(1, &mut || true).unwrap();
        assert!(matches!(&found[..], [(1, Some(Ok(bytes)))] if **bytes == [2]));
        theirs.clear();
        let third = in_flight.claim(keys([2, 3]), &one, &mut theirs);
        assert_eq!(theirs, [1]);
        drop(second);
        assert!(matches!(
            one.wait(1, &mut || true).unwrap()[..],
            [(1, None)]
        ));
        drop(third);
        assert!(in_flight.0.locked().is_empty());
        assert!(one.wait(1, &mut || false).is_none());
    }
}
