//! The order of an epoch: a function of seed, epoch and position, so that it takes no memory, any
//! position is found at once, and what comes next is known for ever. Pure.
//!
//! A *global* shuffle is a permutation of all samples: a Feistel network over the least even split
//! of bits that holds them, walked until it falls inside (Black and Rogaway, Ciphers with Arbitrary
//! Finite Domains, CT-RSA 2002).
//!
//! A *chunk* shuffle reads neighbours together (Zhu et al., DLFS, CLUSTER 2019; Xu et al.,
//! CorgiPile, SIGMOD 2022):
//!
//! ```text
//!   samples    0 1 2 3 | 4 5 6 7 | 8 9 ...        chunks of equally many neighbours
//!   chunks     7 0 4 | 2 9 5 | ...                permuted; the chunks of a window are in memory at once
//!   sequence   the samples of a window, permuted; window after window
//!   lanes      sections of equal length of the sequence; the epoch takes a sample of each in turn
//! ```
//!
//! Lanes are what ranks share: a rank that takes every n-th position of the epoch meets the windows
//! of its own lanes only, if their number is a multiple of n. Chunks end where samples end, so no
//! sample lies across two of them, as DLFS's edge samples do.

use std::ops::Range;

/// Four suffice for a pseudorandom permutation of a large domain (Luby and Rackoff, 1988); halves
/// of few bits want more.
const ROUNDS: usize = 6;

/// Below this, halves are so short that few of all permutations can come about; walking from here
/// costs little.
const BITS_MIN: u32 = 10;

/// One step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A permutation of the numbers below `len`.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    len: u64,
    /// Bits of the two halves; equal, or the left one has one more.
    left: u32,
    right: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation that belongs to a seed and an epoch.
    pub(crate) fn new(len: u64, seed: u64, epoch: u64) -> Permutation {
        let bits = (64 - len.saturating_sub(1).leading_zeros()).max(BITS_MIN);
        let mut state = mix(seed) ^ mix(!epoch);
        let keys = std::array::from_fn(|_| {
            state = mix(state);
            state
        });
        Permutation {
            len,
            left: bits.div_ceil(2),
            right: bits / 2,
            keys,
        }
    }

    /// Which number is at a position below `len`.
    pub(crate) fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} of {}", self.len);
        let mut number = position;
        loop {
            number = self.forth(number);
            if number < self.len {
                return number;
            }
        }
    }

    /// Where a number below `len` is.
    pub(crate) fn position_of(&self, number: u64) -> u64 {
        assert!(number < self.len, "sample {number} of {}", self.len);
        let mut position = number;
        loop {
            position = self.back(position);
            if position < self.len {
                return position;
            }
        }
    }

    fn forth(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number >> self.right, number & low(self.right));
        for keys in self.keys.chunks_exact(2) {
            left ^= scramble(right, keys[0]) & low(self.left);
            right ^= scramble(left, keys[1]) & low(self.right);
        }
        left << self.right | right
    }

    fn back(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number >> self.right, number & low(self.right));
        for keys in self.keys.rchunks_exact(2) {
            right ^= scramble(left, keys[1]) & low(self.right);
            left ^= scramble(right, keys[0]) & low(self.left);
        }
        left << self.right | right
    }
}

fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The high half of a product depends on all bits of its factors.
fn scramble(half: u64, key: u64) -> u64 {
    let product = u128::from(half ^ key) * u128::from(key | 1);
    (product >> 64) as u64 ^ product as u64 >> 29
}

/// How samples are shuffled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// Not at all: in the order of the dataset.
    No,
    /// Each sample may come anywhere in the epoch.
    Global,
    /// Chunks may come anywhere, and samples with those of other chunks that are in memory at the
    /// time.
    Chunks(Chunks),
}

/// The shape of a chunk shuffle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Samples of a chunk; the last one may have fewer.
    pub samples: u64,
    /// Chunks of a window.
    pub window: u64,
    /// Sections of the sequence that are taken from in turn.
    pub lanes: u64,
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Straight,
    Global(Permutation),
    Chunked(Chunked),
}

impl Order {
    pub(crate) fn new(samples: u64, shuffle: Shuffle, seed: u64, epoch: u64) -> Order {
        match shuffle {
            Shuffle::No => Order::Straight,
            Shuffle::Global => Order::Global(Permutation::new(samples, seed, epoch)),
            Shuffle::Chunks(shape) => Order::Chunked(Chunked::new(samples, shape, seed, epoch)),
        }
    }
}

/// Positions of a batch: some of an epoch's, evenly apart, and after its last its first.
#[derive(Clone, Copy)]
pub(crate) struct Positions {
    pub(crate) first: u64,
    pub(crate) apart: u64,
    pub(crate) count: u64,
    pub(crate) samples: u64,
    /// Position behind the batch of all ranks.
    pub(crate) end: u64,
}

impl Positions {
    pub(crate) fn at(&self, number: u64) -> u64 {
        let position = self.first + number * self.apart;
        // Few come again, and to divide takes long.
        if position < self.samples {
            position
        } else {
            position % self.samples
        }
    }

    pub(crate) fn are_different(&self) -> bool {
        self.first + (self.count - 1) * self.apart < self.samples
    }

    pub(crate) fn all(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |number| self.at(number))
    }
}

/// Positions of a batch that are in one lane, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    pub(crate) lane: u64,
    /// Of the first one: its position in the sequence, and its number in the batch; and how far the
    /// next ones are apart.
    pub(crate) at: u64,
    number: u64,
    at_apart: u64,
    number_apart: u64,
    count: u64,
}

impl Turns {
    /// Takes out those that are before a position of the sequence: theirs, and their numbers in the
    /// batch.
    pub(crate) fn before(&mut self, end: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Turns {
            at,
            number,
            at_apart,
            number_apart,
            count,
            ..
        } = *self;
        let taken = end.saturating_sub(at).div_ceil(at_apart).min(count);
        self.at = at.saturating_add(taken.saturating_mul(at_apart));
        (self.number, self.count) = (number + taken * number_apart, count - taken);
        (0..taken).map(move |turn| (at + turn * at_apart, number + turn * number_apart))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.count == 0
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        greatest_common_divisor(other, one % other)
    }
}

/// Bytes that a sample of a window takes in its order.
pub(crate) const ORDER_BYTES: u64 = size_of::<(u32, u32)>() as u64;

/// A window of an epoch: its number, and its samples in the order of the sequence.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pub(crate) number: u64,
    /// Of the sequence.
    pub(crate) positions: Range<u64>,
    /// First sample of each chunk, and how many it has.
    pub(crate) chunks: Vec<(u64, u64)>,
    /// Chunk, and number within it.
    pub(crate) order: Vec<(u32, u32)>,
}

impl Window {
    /// The sample at a position of the sequence, and its chunk; none outside the window.
    #[inline]
    pub(crate) fn sample(&self, at: u64) -> Option<(u32, u64)> {
        let &(chunk, within) = self.order.get((at - self.positions.start) as usize)?;
        Some((chunk, self.chunks[chunk as usize].0 + u64::from(within)))
    }
}

/// The order of a chunk shuffle.
#[derive(Clone, Debug)]
pub(crate) struct Chunked {
    samples: u64,
    shape: Chunks,
    order: Permutation,
    /// Where the last chunk, which may be short, comes.
    short_at: u64,
    /// Samples of a lane; each of the first `longer` has one more.
    lane_samples: u64,
    longer: u64,
    key: u64,
}

impl Chunked {
    fn new(samples: u64, shape: Chunks, seed: u64, epoch: u64) -> Chunked {
        let count = samples.div_ceil(shape.samples);
        let order = Permutation::new(count, seed, epoch);
        let short_at = if count == 0 {
            0
        } else {
            order.position_of(count - 1)
        };
        let (lane_samples, longer) = (samples / shape.lanes, samples % shape.lanes);
        Chunked {
            samples,
            shape,
            order,
            short_at,
            lane_samples,
            longer,
            key: mix(seed) ^ mix(epoch),
        }
    }

    pub(crate) fn lanes(&self) -> u64 {
        self.shape.lanes
    }

    fn chunk_count(&self) -> u64 {
        self.samples.div_ceil(self.shape.samples)
    }

    /// By how many samples the last chunk is short.
    fn missing(&self) -> u64 {
        self.chunk_count() * self.shape.samples - self.samples
    }

    fn window_samples(&self) -> u64 {
        self.shape.samples * self.shape.window
    }

    /// Where the samples of a window begin in the sequence.
    fn start_of(&self, window: u64) -> u64 {
        let missing = if window > self.short_at / self.shape.window {
            self.missing()
        } else {
            0
        };
        (window * self.window_samples() - missing).min(self.samples)
    }

    /// Which lane an epoch's position is in, and which position of the sequence it is.
    pub(crate) fn in_sequence(&self, position: u64) -> (u64, u64) {
        let (lane, within) = (position % self.shape.lanes, position / self.shape.lanes);
        (lane, self.begin_of(lane) + within)
    }

    /// The positions of a batch, lane by lane.
    pub(crate) fn by_lane(&self, positions: Positions) -> Vec<Turns> {
        let Positions {
            apart,
            count,
            samples,
            ..
        } = positions;
        let common = greatest_common_divisor(self.shape.lanes, apart);
        // After this many positions it is the first one's lane again.
        let round = self.shape.lanes / common;
        let (mut turns, mut begin) = (Vec::new(), 0);
        while begin < count {
            // Behind the epoch's last position comes its first, in another lane than its turn would
            // be.
            let end = count.min(begin + (samples - positions.at(begin)).div_ceil(apart));
            for number in begin..end.min(begin + round) {
                let (lane, at) = self.in_sequence(positions.at(number));
                let count = (end - number).div_ceil(round);
                turns.push(Turns {
                    lane,
                    at,
                    number,
                    at_apart: apart / common,
                    number_apart: round,
                    count,
                });
            }
            begin = end;
        }
        turns
    }

    /// Where a lane begins in the sequence.
    fn begin_of(&self, lane: u64) -> u64 {
        lane * self.lane_samples + lane.min(self.longer)
    }

    /// Whether a lane goes on behind a window.
    pub(crate) fn has_more(&self, lane: u64, window: u64) -> bool {
        self.start_of(window + 1) < self.begin_of(lane + 1)
    }

    /// The window that a position of the sequence is in.
    pub(crate) fn window_of(&self, position: u64) -> u64 {
        let guess = position / self.window_samples();
        // The short window may have ended before it.
        if position >= self.start_of(guess + 1) {
            guess + 1
        } else {
            guess
        }
    }

    /// Bytes that the order of a window takes.
    pub(crate) fn order_bytes(&self, window: u64) -> u64 {
        (self.start_of(window + 1) - self.start_of(window)) * ORDER_BYTES
    }

    /// The samples of a window, in order.
    pub(crate) fn window(&self, number: u64) -> Window {
        let first = number * self.shape.window;
        let mut places: Vec<u64> =
            (first..(first + self.shape.window).min(self.chunk_count())).collect();
        // The short one last: every other sample is where it would be without it.
        if let Some(short) = places.iter().position(|&place| place == self.short_at) {
            let last = places.len() - 1;
            places.swap(short, last);
        }
        let chunk = |&place: &u64| {
            let chunk = self.order.at(place);
            let first = chunk * self.shape.samples;
            (first, self.shape.samples.min(self.samples - first))
        };
        let chunks: Vec<(u64, u64)> = places.iter().map(chunk).collect();
        let mut order = Vec::with_capacity(chunks.iter().map(|&(_, count)| count as usize).sum());
        for (chunk, &(_, count)) in chunks.iter().enumerate() {
            order.extend((0..count as u32).map(|within| (chunk as u32, within)));
        }
        shuffle(&mut order, mix(self.key ^ mix(number)));
        Window {
            number,
            positions: self.start_of(number)..self.start_of(number + 1),
            chunks,
            order,
        }
    }
}

/// Fisher and Yates, with bounded numbers by multiplication (Lemire, 2019); lists are so short that
/// its bias is below 2^-32.
fn shuffle<T>(list: &mut [T], mut state: u64) {
    for last in (1..list.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let other = (u128::from(mix(state)) * (last as u128 + 1)) >> 64;
        list.swap(last, other as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn all(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|position| permutation.at(position)).collect()
    }

    fn is_permutation(mut numbers: Vec<u64>) -> bool {
        numbers.sort_unstable();
        numbers
            .iter()
            .enumerate()
            .all(|(index, &number)| index as u64 == number)
    }

    /// Whether counts that are to be equal are as equal as chance makes them: chi square, within
    /// five standard deviations.
    fn is_even(counts: impl IntoIterator<Item = u64>) -> bool {
        let counts: Vec<f64> = counts.into_iter().map(|count| count as f64).collect();
        let (cells, mean) = (
            counts.len() as f64,
            counts.iter().sum::<f64>() / counts.len() as f64,
        );
        let chi: f64 = counts
            .iter()
            .map(|count| (count - mean).powi(2) / mean)
            .sum();
        (chi - (cells - 1.0)).abs() < 5.0 * (2.0 * (cells - 1.0)).sqrt()
    }

    #[test]
    fn a_permutation_has_every_number_once_and_goes_back() {
        for len in [1, 2, 3, 5, 100, 65_535, 65_536, 65_537, 200_000] {
            let permutation = Permutation::new(len, 7, 1);
            assert!(is_permutation(all(len, 7, 1)), "{len}");
            assert!(
                (0..len)
                    .step_by(1 + len as usize / 1000)
                    .all(|number| permutation.at(permutation.position_of(number)) == number)
            );
        }
        let huge = Permutation::new(u64::MAX / 3, 7, 1);
        assert!((0..1000).all(|position| huge.position_of(huge.at(position)) == position));
    }

    #[test]
    fn all_permutations_of_a_few_come_equally_often() {
        let mut counts: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
        (0..24_000).for_each(|epoch| *counts.entry(all(4, 3, epoch)).or_default() += 1);
        assert!(counts.len() == 24 && is_even(counts.into_values()));
    }

    #[test]
    fn any_number_comes_anywhere_equally_often_and_neighbours_part() {
        let len = 1000;
        let (mut places, mut distances) = (vec![0; 100], vec![0; 99]);
        for epoch in 0..300 {
            let order = all(len, 11, epoch);
            order.iter().enumerate().for_each(|(position, number)| {
                places[10 * (position / 100) + (number / 100) as usize] += 1
            });
            for pair in order.windows(2) {
                let distance = (pair[1] + len - pair[0]) % len;
                // Of 999 distances, those of whole tens.
                distances
                    .get_mut((distance as usize - 1) / 10)
                    .into_iter()
                    .for_each(|count| *count += 1);
            }
        }
        assert!(is_even(distances));
        // Rows and columns have fixed sums, which takes a fifth of the freedom away.
        assert!(is_even(places));
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let same = |one: Vec<u64>, other: Vec<u64>| {
            one.iter()
                .zip(&other)
                .filter(|(one, other)| one == other)
                .count()
        };
        assert!(same(all(10_000, 0, 0), all(10_000, 0, 1)) < 20);
        assert!(same(all(10_000, 0, 0), all(10_000, 1, 0)) < 20);
        assert!(same(all(10_000, 0, 1), all(10_000, 1, 0)) < 20);
    }

    proptest! {
        #[test]
        fn a_chunk_shuffle_has_every_sample_once(
            samples in 0u64..3000, chunk in 1u64..70, window in 1u64..9, lanes in 1u64..7, seed: u64, epoch in 0u64..3,
        ) {
            let order = Chunked::new(samples, Chunks { samples: chunk, window, lanes }, seed, epoch);
            let mut seen = Vec::new();
            for position in 0..samples {
                let (lane, at) = order.in_sequence(position);
                prop_assert!(lane < lanes && at < samples);
                let number = order.window_of(at);
                let window = order.window(number);
                prop_assert!(window.positions.contains(&at), "{at} {:?}", window.positions);
                prop_assert_eq!(window.order.len() as u64, window.positions.end - window.positions.start);
                let (chunk, sample) = window.sample(at).unwrap();
                let (first, count) = window.chunks[chunk as usize];
                prop_assert!((first..first + count).contains(&sample));
                seen.push(sample);
                let lane_goes_on = order.begin_of(lane + 1) > window.positions.end;
                prop_assert_eq!(order.has_more(lane, number), lane_goes_on);
                if position > 400 {
                    break;
                }
            }
            if samples <= 400 {
                prop_assert!(is_permutation(seen));
            }
        }

        #[test]
        fn a_batch_by_lane_is_the_batch(
            samples in 1u64..300, lanes in 1u64..50, ranks in prop_oneof![1u64..9, Just(400), Just(u64::MAX)], first: u64, count in 1u64..200,
        ) {
            let order = Chunked::new(samples, Chunks { samples: 4, window: 2, lanes }, 7, 0);
            let count = if ranks > 9 { 1 } else { count };
            let positions = Positions { first: first % samples, apart: ranks, count, samples, end: samples };
            let mut found = vec![None; count as usize];
            for mut turns in order.by_lane(positions) {
                while !turns.is_over() {
                    let window = order.window(order.window_of(turns.at));
                    for (at, number) in turns.before(window.positions.end) {
                        prop_assert!(window.positions.contains(&at));
                        prop_assert_eq!(found[number as usize].replace((turns.lane, at)), None);
                    }
                }
            }
            for (number, found) in (0..).zip(found) {
                prop_assert_eq!(found, Some(order.in_sequence(positions.at(number))));
            }
        }
    }
}
