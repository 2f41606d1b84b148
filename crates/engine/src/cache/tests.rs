//! Each policy against a plain one that scans lists, on the same random calls.

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// A cache of keys: the part that policies leave to others.
struct Keys<P> {
    policy: P,
    index: HashMap<u64, u32>,
    slots: Vec<Option<u64>>,
    pinned: HashSet<u64>,
}

impl<P: Policy> Keys<P> {
    fn new(policy: P, slots: u32) -> Keys<P> {
        Keys {
            policy,
            index: HashMap::new(),
            slots: vec![None; slots as usize],
            pinned: HashSet::new(),
        }
    }

    /// Whether the key was there, and what was evicted for it.
    fn access(&mut self, key: u64) -> (bool, Option<u64>) {
        if let Some(&slot) = self.index.get(&key) {
            self.policy.used(slot);
            return (true, None);
        }
        let vacant = self.slots.iter().position(Option::is_none);
        let (slots, pinned) = (&self.slots, &self.pinned);
        let mut may_evict = |slot: u32| !pinned.contains(&slots[slot as usize].unwrap());
        let vacant = vacant.map(|slot| slot as u32);
        let Some(slot) = vacant.or_else(|| self.policy.evict(&mut may_evict)) else {
            return (false, None);
        };
        let evicted = self.slots[slot as usize].replace(key);
        if let Some(evicted) = evicted {
            assert!(!self.pinned.contains(&evicted));
            self.index.remove(&evicted);
        }
        self.index.insert(key, slot);
        self.policy.admitted(slot, key);
        (false, evicted)
    }

    fn remove(&mut self, key: u64) {
        if let Some(slot) = self.index.remove(&key) {
            self.slots[slot as usize] = None;
            self.policy.removed(slot);
        }
    }

    fn resize(&mut self, slots: u32) {
        self.slots.resize(slots as usize, None);
        self.index.retain(|_, slot| *slot < slots);
        self.policy.resize(slots);
    }
}

#[derive(Clone, Debug)]
enum Call {
    Access(u64),
    Pin(u64),
    Unpin(u64),
    Remove(u64),
    Resize(u32),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let key = || prop_oneof![0u64..8, 0u64..60];
    let call = prop_oneof![
        40 => key().prop_map(Call::Access),
        3 => key().prop_map(Call::Pin),
        3 => key().prop_map(Call::Unpin),
        1 => key().prop_map(Call::Remove),
        1 => (0u32..40).prop_map(Call::Resize),
    ];
    proptest::collection::vec(call, 0..600)
}

fn carry_out<P: Policy>(keys: &mut Keys<P>, call: &Call) -> (bool, Option<u64>) {
    match *call {
        Call::Access(key) => return keys.access(key),
        Call::Pin(key) => _ = keys.pinned.insert(key),
        Call::Unpin(key) => _ = keys.pinned.remove(&key),
        Call::Remove(key) => keys.remove(key),
        Call::Resize(slots) => keys.resize(slots),
    }
    (false, None)
}

/// Evicts from the front of a queue; what is pinned goes to its end.
fn evict_first(queue: &mut VecDeque<u32>, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
    let place = queue.iter().position(|&slot| may_evict(slot));
    queue.rotate_left(place.unwrap_or(0));
    place.and_then(|_| queue.pop_front())
}

#[derive(Default)]
struct PlainLru(VecDeque<u32>);

impl Policy for PlainLru {
    fn admitted(&mut self, slot: u32, _key: u64) {
        self.0.push_back(slot);
    }

    fn used(&mut self, slot: u32) {
        self.removed(slot);
        self.0.push_back(slot);
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        evict_first(&mut self.0, may_evict)
    }

    fn removed(&mut self, slot: u32) {
        self.0.retain(|&other| other != slot);
    }

    fn resize(&mut self, slots: u32) {
        self.0.retain(|&slot| slot < slots);
    }
}

/// The pseudocode of the paper, on one list a queue; without pins.
struct PlainS3Fifo {
    slots: u32,
    small: VecDeque<(u32, u64, u8)>,
    main: VecDeque<(u32, u64, u8)>,
    ghosts: VecDeque<Option<u64>>,
}

impl PlainS3Fifo {
    fn new(slots: u32) -> PlainS3Fifo {
        PlainS3Fifo {
            slots,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
        }
    }

    fn evict_main(&mut self) -> u32 {
        loop {
            let (slot, key, frequency) = self.main.pop_front().unwrap();
            if frequency == 0 {
                return slot;
            }
            self.main.push_back((slot, key, frequency - 1));
        }
    }
}

impl Policy for PlainS3Fifo {
    fn admitted(&mut self, slot: u32, key: u64) {
        match self.ghosts.iter().position(|&ghost| ghost == Some(key)) {
            Some(ghost) => {
                self.ghosts[ghost] = None;
                self.main.push_back((slot, key, 0));
            }
            None => self.small.push_back((slot, key, 0)),
        }
    }

    fn used(&mut self, slot: u32) {
        for entry in self.small.iter_mut().chain(&mut self.main) {
            if entry.0 == slot {
                entry.2 = 3.min(entry.2 + 1);
            }
        }
    }

    fn evict(&mut self, _may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        while self.small.len() * 10 >= self.slots as usize || self.main.is_empty() {
            let (slot, key, frequency) = self.small.pop_front()?;
            if frequency == 0 {
                self.ghosts.push_back(Some(key));
                if self.ghosts.len() > self.slots as usize {
                    self.ghosts.pop_front();
                }
                return Some(slot);
            }
            self.main.push_back((slot, key, 0));
        }
        Some(self.evict_main())
    }

    fn removed(&mut self, slot: u32) {
        self.small.retain(|entry| entry.0 != slot);
        self.main.retain(|entry| entry.0 != slot);
    }

    fn resize(&mut self, _slots: u32) {}
}

/// Looks through the whole future at each eviction.
#[derive(Default)]
struct PlainLookAhead {
    unknown: PlainLru,
    known: HashMap<u32, u64>,
    future: Vec<(u64, u64)>,
}

impl PlainLookAhead {
    fn will_use(&mut self, key: u64, slot: Option<u32>, time: u64) {
        if !self.future.contains(&(time, key)) {
            self.future.push((time, key));
        }
        if let Some(slot) = slot {
            self.unknown.removed(slot);
            self.known.insert(slot, key);
        }
    }

    fn passed(&mut self, time: u64) {
        let over: Vec<_> = self
            .future
            .extract_if(.., |(other, _)| *other <= time)
            .collect();
        for (place, &(_, key)) in over.iter().enumerate() {
            let again = over[place + 1..].iter().chain(&self.future);
            let slot = self.known.iter().find(|known| *known.1 == key);
            if let Some((&slot, _)) = slot
                && again.into_iter().all(|other| other.1 != key)
            {
                self.known.remove(&slot);
                self.unknown.admitted(slot, key);
            }
        }
    }

    fn next_use(&self, key: u64) -> Option<u64> {
        Some(self.future.iter().find(|other| other.1 == key)?.0)
    }
}

impl Policy for PlainLookAhead {
    fn admitted(&mut self, slot: u32, key: u64) {
        match self.next_use(key) {
            Some(_) => _ = self.known.insert(slot, key),
            None => self.unknown.admitted(slot, key),
        }
    }

    fn used(&mut self, slot: u32) {
        if !self.known.contains_key(&slot) {
            self.unknown.used(slot);
        }
    }

    fn evict(&mut self, may_evict: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        if let Some(slot) = self.unknown.evict(may_evict) {
            return Some(slot);
        }
        let candidates = self.known.iter().filter(|known| may_evict(*known.0));
        let last = candidates.max_by_key(|&(&slot, &key)| (self.next_use(key), slot));
        let slot = *last?.0;
        self.known.remove(&slot);
        Some(slot)
    }

    fn removed(&mut self, slot: u32) {
        if self.known.remove(&slot).is_none() {
            self.unknown.removed(slot);
        }
    }

    fn resize(&mut self, slots: u32) {
        self.known.retain(|&slot, _| slot < slots);
        self.unknown.resize(slots);
    }
}

/// Hits when whatever is used last is evicted.
fn optimal_hits(trace: &[u64], slots: usize) -> usize {
    let (mut held, mut hits) = (Vec::new(), 0);
    for (time, key) in trace.iter().enumerate() {
        if held.contains(key) {
            hits += 1;
            continue;
        }
        if held.len() == slots {
            let next_use = |held: &u64| trace[time..].iter().position(|other| other == held);
            let last = |place: &usize| next_use(&held[*place]).unwrap_or(usize::MAX);
            let place = (0..slots).max_by_key(last).unwrap();
            held.swap_remove(place);
        }
        held.push(*key);
    }
    hits
}

proptest! {
    #[test]
    fn lru_evicts_what_a_list_in_order_of_use_evicts(slots in 0u32..30, calls in calls()) {
        let mut keys = Keys::new(Lru::new(slots), slots);
        let mut plain = Keys::new(PlainLru::default(), slots);
        for call in &calls {
            prop_assert_eq!(carry_out(&mut keys, call), carry_out(&mut plain, call));
        }
    }

    #[test]
    fn s3_fifo_evicts_what_the_pseudocode_of_the_paper_evicts(slots in 1u32..60, calls in calls()) {
        let mut keys = Keys::new(S3Fifo::new(slots), slots);
        let mut plain = Keys::new(PlainS3Fifo::new(slots), slots);
        for call in calls.iter().filter(|call| matches!(call, Call::Access(_) | Call::Remove(_))) {
            prop_assert_eq!(carry_out(&mut keys, call), carry_out(&mut plain, call));
        }
    }

    /// One of them is found wherever there is one that may be evicted; a resized cache has no more
    /// than its slots.
    #[test]
    fn s3_fifo_passes_over_pinned_slots_and_loses_none(slots in 0u32..60, calls in calls()) {
        let mut keys = Keys::new(S3Fifo::new(slots), slots);
        for call in &calls {
            let (hit, evicted) = carry_out(&mut keys, call);
            if let Call::Access(key) = call && !hit && evicted.is_none() && !keys.index.contains_key(key) {
                prop_assert!(keys.index.keys().all(|key| keys.pinned.contains(key)));
                prop_assert_eq!(keys.index.len(), keys.slots.len());
            }
        }
        keys.pinned.clear();
        for _ in 0..keys.index.len() {
            prop_assert!(keys.policy.evict(&mut |_| true).is_some());
        }
        prop_assert_eq!(keys.policy.evict(&mut |_| true), None);
    }

    #[test]
    fn look_ahead_evicts_what_a_scan_of_the_future_finds(
        slots in 1u32..30, calls in calls(), ahead in 0usize..40, batch in 1u64..9, share in 1u64..4,
    ) {
        let mut keys = Keys::new(LookAhead::new(Lru::new(slots)), slots);
        let mut plain = Keys::new(PlainLookAhead::default(), slots);
        let key = |place: usize| match calls.get(place) {
            Some(&Call::Access(key)) if key % share == 0 => Some(key),
            _ => None,
        };
        for place in 0..ahead {
            let Some(key) = key(place) else { continue };
            keys.policy.will_use(key, None, place as u64 / batch);
            plain.policy.will_use(key, None, place as u64 / batch);
        }
        for (place, call) in calls.iter().enumerate() {
            if let Some(key) = key(place + ahead) {
                let (time, slot) = ((place + ahead) as u64 / batch, keys.index.get(&key).copied());
                keys.policy.will_use(key, slot, time);
                plain.policy.will_use(key, slot, time);
            }
            prop_assert_eq!(carry_out(&mut keys, call), carry_out(&mut plain, call));
            if (place as u64 + 1).is_multiple_of(batch) {
                keys.policy.passed(place as u64 / batch);
                plain.policy.passed(place as u64 / batch);
            }
        }
    }

    #[test]
    fn with_all_of_the_future_known_the_hits_are_optimal(
        trace in proptest::collection::vec(prop_oneof![0u64..5, 0u64..40], 0..400), slots in 1u32..20,
    ) {
        let mut keys = Keys::new(LookAhead::new(S3Fifo::new(slots)), slots);
        for (time, &key) in trace.iter().enumerate() {
            keys.policy.will_use(key, None, time as u64);
        }
        let mut hits = 0;
        for (time, &key) in trace.iter().enumerate() {
            hits += usize::from(keys.access(key).0);
            keys.policy.passed(time as u64);
        }
        prop_assert_eq!(hits, optimal_hits(&trace, slots as usize));
    }
}

#[test]
fn with_nothing_known_look_ahead_is_its_policy() {
    let mut keys = Keys::new(LookAhead::new(S3Fifo::new(50)), 50);
    let mut plain = Keys::new(S3Fifo::new(50), 50);
    for number in 0..5000u64 {
        let key = keys::mix(number) % (1 + number % 200);
        assert_eq!(keys.access(key), plain.access(key));
    }
}

#[test]
fn a_newcomer_that_is_used_after_all_others_is_not_admitted() {
    let mut policy = LookAhead::new(Lru::new(2));
    for (time, key) in [70, 71, 72].into_iter().enumerate() {
        policy.will_use(key, None, time as u64);
    }
    policy.admitted(0, 70);
    policy.admitted(1, 72);
    assert_eq!(policy.evict_for(73, &mut |_| true), None);
    assert_eq!(policy.evict_for(72, &mut |_| true), None);
    assert_eq!(policy.evict_for(71, &mut |_| true), Some(1));
    assert_eq!(
        policy.evict_for(71, &mut |_| true),
        None,
        "70 is used sooner"
    );
    assert_eq!(policy.evict(&mut |_| true), Some(0));
}

#[test]
fn a_newcomer_is_worth_its_use_after_the_one_that_goes_on() {
    let mut policy = LookAhead::new(Lru::new(2));
    for (time, key) in [(1, 70), (1, 71), (1, 72), (2, 70), (3, 71), (4, 72)] {
        policy.will_use(key, None, time);
    }
    policy.admitted(0, 70);
    policy.admitted(1, 72);
    assert_eq!(policy.evict_for(71, &mut |_| true), None, "all at once");
    policy.begin(1);
    policy.passed(0);
    assert_eq!(
        policy.evict_for(71, &mut |_| true),
        None,
        "their own use goes on"
    );
    policy.passed(1);
    assert_eq!(policy.evict_for(71, &mut |_| true), Some(1));
    policy.begin(3);
    assert_eq!(
        policy.evict_for(71, &mut |_| true),
        None,
        "is not used again"
    );
}

/// What is read ahead and used once came by one access, as in a cache that looks at nothing.
#[test]
fn what_was_read_ahead_and_used_once_does_not_enter_the_main_queue() {
    let mut keys = Keys::new(LookAhead::new(S3Fifo::new(100)), 100);
    for key in (0..50).chain(0..50) {
        keys.access(key);
    }
    for key in 1000..3000 {
        keys.policy.will_use(key, None, key);
        keys.access(key);
        keys.access(key);
        keys.policy.passed(key);
    }
    let left = (0..50).filter(|key| keys.index.contains_key(key)).count();
    assert_eq!(left, 50);
}

#[test]
fn policies_are_found_by_their_names() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "clock".parse::<PolicyKind>().unwrap_err();
    assert!(error.to_string().contains("\"clock\""), "{error}");
}
