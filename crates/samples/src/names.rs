//! Which sample has a name: a perfect hash of all names, four bytes a sample or less. Pure.
//!
//! Names are hashed to 128 bits (XXH3). The first half says which part of the table a name belongs
//! to, and which bucket of it; each bucket has a pilot, found when the table was made, that sends
//! all its names to slots that no other name has (Pibiri and Trani, PTHash, SIGIR 2021). A slot
//! holds the number of a sample. Nothing of a name is in memory: a look-up is verified by
//! reading the name of the sample found.
//!
//! ```text
//!   name -> hash -> part | bucket -> pilot -> slot -> sample
//! ```

use twox_hash::XxHash3_128;

use super::order::mix;
use super::packed::take;

/// Names of a part, about: its slots lie in a cache while it is made.
const PART_NAMES: u64 = 4096;
/// Names of a bucket, on average. More need longer searches for their pilots, fewer need more
/// pilots.
const BUCKET_NAMES: u64 = 4;

/// A name's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hash {
    high: u64,
    low: u64,
}

impl Hash {
    pub(crate) fn of(name: &[u8], seed: u64) -> Hash {
        let hash = XxHash3_128::oneshot_with_seed(seed, name);
        Hash {
            high: (hash >> 64) as u64,
            low: hash as u64,
        }
    }

    /// Which of `parts` parts it belongs to.
    pub(crate) fn part(self, parts: u64) -> u64 {
        scale(self.high, parts)
    }

    fn bucket(self, buckets: u64) -> u64 {
        scale(self.low, buckets)
    }

    fn slot(self, pilot: u16, slots: u64) -> u64 {
        scale(
            mix(self.high ^ self.low.rotate_left(32) ^ mix(u64::from(pilot))),
            slots,
        )
    }
}

/// A number below `count` for each 64 bits.
fn scale(bits: u64, count: u64) -> u64 {
    ((u128::from(bits) * u128::from(count)) >> 64) as u64
}

/// Parts of a table of `names` names.
pub(crate) fn parts_of(names: u64) -> u64 {
    names.div_ceil(PART_NAMES)
}

/// Bits of a slot: the number of a sample, or all ones if it is empty.
fn bits_of(names: u64) -> u32 {
    64 - names.leading_zeros()
}

fn buckets_of(names: u64) -> u64 {
    names.div_ceil(BUCKET_NAMES)
}

/// A few more slots than names, so that the last buckets find free ones soon.
fn slots_of(names: u64) -> u64 {
    names + names / 32 + 1
}

/// Why no table was made; another seed may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// Two names cannot be told apart: the numbers of their samples.
    Twins(u64, u64),
    /// A bucket has too many names.
    Crowd,
}

/// The table, whose parts are filled in any order.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    seed: u64,
    bits: u32,
    /// Names before each part, and all of them.
    before: Vec<u64>,
    pilots: Vec<u16>,
    slots: Vec<u64>,
}

impl Lookup {
    /// A table for `counts` names in its parts, not yet filled.
    pub(crate) fn empty(seed: u64, counts: &[u64]) -> Lookup {
        let sum = |sum: &mut u64, &count: &u64| {
            *sum += count;
            Some(*sum)
        };
        let before: Vec<u64> = [0].into_iter().chain(counts.iter().scan(0, sum)).collect();
        let names = *before.last().expect("it begins with 0");
        let mut lookup = Lookup {
            seed,
            bits: bits_of(names),
            before,
            pilots: Vec::new(),
            slots: Vec::new(),
        };
        let (pilots, slots) = lookup.starts(counts.len());
        lookup.pilots = vec![0; pilots as usize];
        // All ones: empty.
        lookup.slots = vec![u64::MAX; (slots * u64::from(lookup.bits)).div_ceil(64) as usize];
        lookup
    }

    /// Bytes of a table for `counts` names in its parts.
    pub(crate) fn bytes_for(counts: &[u64]) -> u64 {
        let (names, parts) = (counts.iter().sum::<u64>(), counts.len() as u64);
        let (pilots, slots) = (names / BUCKET_NAMES + parts, names + names / 32 + 2 * parts);
        8 * (parts + 1) + 2 * pilots + 8 * (slots * u64::from(bits_of(names))).div_ceil(64)
    }

    /// Where a part's pilots and slots begin. Parts have a little more room than they need, so that
    /// nothing else says where they are.
    fn starts(&self, part: usize) -> (u64, u64) {
        let (before, part) = (self.before[part], part as u64);
        (
            before / BUCKET_NAMES + part,
            before + before / 32 + 2 * part,
        )
    }

    /// The part that a hash belongs to.
    fn part(&self, hash: Hash) -> usize {
        hash.part(self.before.len() as u64 - 1) as usize
    }

    /// Finds the pilots of a part, given the hashes of all its names with the numbers of their
    /// samples.
    pub(crate) fn fill(&mut self, part: usize, names: &mut [(Hash, u64)]) -> Result<(), Unplaced> {
        let (buckets, slots) = (buckets_of(names.len() as u64), slots_of(names.len() as u64));
        names.sort_unstable_by_key(|&(hash, sample)| (hash.bucket(buckets), hash, sample));
        if let Some(twins) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Unplaced::Twins(twins[0].1, twins[1].1));
        }
        let mut order: Vec<&[(Hash, u64)]> = names
            .chunk_by(|one, other| one.0.bucket(buckets) == other.0.bucket(buckets))
            .collect();
        order.sort_by_key(|bucket| std::cmp::Reverse(bucket.len()));
        let (first_pilot, first_slot) = self.starts(part);
        let mut taken = vec![false; slots as usize];
        for bucket in order {
            let pilot = (0..=u16::MAX)
                .find(|&pilot| fits(bucket, pilot, slots, &mut taken))
                .ok_or(Unplaced::Crowd)?;
            self.pilots[(first_pilot + bucket[0].0.bucket(buckets)) as usize] = pilot;
            for &(hash, sample) in bucket {
                let at = (first_slot + hash.slot(pilot, slots)) * u64::from(self.bits);
                set(&mut self.slots, at, self.bits, sample);
            }
        }
        Ok(())
    }

    /// The sample that has a name if any has.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u64> {
        let hash = Hash::of(name, self.seed);
        let names = *self.before.last()?;
        if names == 0 {
            return None;
        }
        let part = self.part(hash);
        let count = self.before[part + 1] - self.before[part];
        if count == 0 {
            return None;
        }
        let (first_pilot, first_slot) = self.starts(part);
        let pilot = self.pilots[(first_pilot + hash.bucket(buckets_of(count))) as usize];
        let slot = first_slot + hash.slot(pilot, slots_of(count));
        let sample = take(&self.slots, slot * u64::from(self.bits), self.bits);
        // A slot of a damaged table may say anything.
        (sample < names).then_some(sample)
    }

    /// Names that it has.
    pub(crate) fn len(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// As it lies in a file: seed, parts, names before each part and all of them, slots (8 bytes
    /// each, little-endian), pilots (2 each).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let head = [self.seed, self.before.len() as u64 - 1];
        let words = head
            .iter()
            .chain(&self.before)
            .chain(&self.slots)
            .flat_map(|word| word.to_le_bytes());
        words
            .chain(self.pilots.iter().flat_map(|pilot| pilot.to_le_bytes()))
            .collect()
    }

    /// The table in such a file; `None` where it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Lookup> {
        let word = |index: usize| {
            Some(u64::from_le_bytes(
                bytes.get(8 * index..8 * index + 8)?.try_into().ok()?,
            ))
        };
        let (seed, parts) = (word(0)?, usize::try_from(word(1)?).ok()?);
        if parts > bytes.len() / 8 {
            return None;
        }
        let before = (2..parts + 3).map(word).collect::<Option<Vec<u64>>>()?;
        let names = *before.last()?;
        if before[0] != 0 || !before.is_sorted() || names > 8 * bytes.len() as u64 {
            return None;
        }
        let mut lookup = Lookup {
            seed,
            bits: bits_of(names),
            before,
            pilots: Vec::new(),
            slots: Vec::new(),
        };
        let (pilots, slots) = lookup.starts(parts);
        let words = (slots * u64::from(lookup.bits)).div_ceil(64) as usize;
        lookup.slots = (parts + 3..parts + 3 + words)
            .map(word)
            .collect::<Option<Vec<u64>>>()?;
        let rest = bytes.get(8 * (parts + 3 + words)..)?;
        lookup.pilots = rest
            .chunks_exact(2)
            .map(|pilot| u16::from_le_bytes([pilot[0], pilot[1]]))
            .collect();
        (rest.len() as u64 == 2 * pilots).then_some(lookup)
    }
}

/// Whether all samples of a bucket go to free slots by a pilot; they are taken then.
fn fits(bucket: &[(Hash, u64)], pilot: u16, slots: u64, taken: &mut [bool]) -> bool {
    for (count, (hash, _)) in bucket.iter().enumerate() {
        let slot = &mut taken[hash.slot(pilot, slots) as usize];
        if std::mem::replace(slot, true) {
            bucket[..count]
                .iter()
                .for_each(|(hash, _)| taken[hash.slot(pilot, slots) as usize] = false);
            return false;
        }
    }
    true
}

/// Writes a number over all ones.
fn set(bits: &mut [u64], at: u64, width: u32, number: u64) {
    let (word, shift) = ((at / 64) as usize, (at % 64) as u32);
    let holes = !number & (u64::MAX >> (64 - width));
    bits[word] &= !(holes << shift);
    if shift + width > 64 {
        bits[word + 1] &= !(holes >> (64 - shift));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn table(names: &[Vec<u8>], seed: u64) -> Result<Lookup, Unplaced> {
        let mut parts = vec![Vec::new(); parts_of(names.len() as u64) as usize];
        let count = parts.len() as u64;
        for (sample, name) in names.iter().enumerate() {
            let hash = Hash::of(name, seed);
            parts[hash.part(count) as usize].push((hash, sample as u64));
        }
        let counts: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        let mut lookup = Lookup::empty(seed, &counts);
        parts
            .iter_mut()
            .enumerate()
            .try_for_each(|(part, names)| lookup.fill(part, names))?;
        Ok(lookup)
    }

    fn names(count: u64) -> Vec<Vec<u8>> {
        (0..count)
            .map(|number| {
                format!("train/{}/image-{number:08}.jpg", mix(number) % 1000).into_bytes()
            })
            .collect()
    }

    #[test]
    fn every_name_finds_its_sample() {
        for count in [0, 1, 2, 3, 4, 5, 31, 100, 4095, 4097, 100_000] {
            let names = names(count);
            let lookup = table(&names, count).unwrap();
            let lookup = Lookup::decode(&lookup.encode()).unwrap();
            for (sample, name) in names.iter().enumerate() {
                assert_eq!(lookup.find(name), Some(sample as u64));
            }
        }
    }

    #[test]
    fn it_takes_four_bytes_a_name() {
        let file = table(&names(100_000), 0).unwrap().encode();
        assert!(file.len() < 300_000, "{}", file.len());
        let counts: Vec<u64> = (0..25)
            .map(|part| if part < 24 { 4000 } else { 77 })
            .collect();
        assert_eq!(
            Lookup::bytes_for(&counts) + 16,
            Lookup::empty(0, &counts).encode().len() as u64
        );
    }

    #[test]
    fn other_names_find_some_sample_or_none() {
        let lookup = table(&names(1000), 0).unwrap();
        let found: HashSet<Option<u64>> = (0..2000u64)
            .map(|number| lookup.find(&number.to_le_bytes()))
            .collect();
        assert!(
            found.contains(&None)
                && found.len() > 500
                && found.iter().flatten().all(|&sample| sample < 1000)
        );
        assert_eq!(table(&[], 0).unwrap().find(b"x"), None);
    }

    #[test]
    fn a_name_that_comes_twice_is_told() {
        let mut names = names(5000);
        names.push(names[17].clone());
        assert_eq!(table(&names, 0).unwrap_err(), Unplaced::Twins(17, 5000));
    }

    #[test]
    fn any_bytes_and_the_empty_name_are_names() {
        let names: Vec<Vec<u8>> = [
            vec![],
            vec![0],
            vec![0, 0],
            b"\xff/\n".to_vec(),
            vec![7; 100_000],
        ]
        .to_vec();
        let lookup = table(&names, 9).unwrap();
        assert!(
            names
                .iter()
                .enumerate()
                .all(|(sample, name)| lookup.find(name) == Some(sample as u64))
        );
    }

    #[test]
    fn damaged_tables_are_refused_or_answer_without_panic() {
        let whole = table(&names(300), 0).unwrap().encode();
        for len in 0..whole.len() {
            assert!(Lookup::decode(&whole[..len]).is_none(), "{len}");
        }
        for bit in (0..8 * whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(lookup) = Lookup::decode(&bytes) {
                names(300).iter().for_each(|name| _ = lookup.find(name));
            }
        }
    }
}
