//! The bytes of `version` and of a map. Pure.
//!
//! ```text
//!   version   "outcore version\n" | number, u64 | bytes of a page, u64 | pages, u64 | places in the file, u64
//!             | length of the description, u64 | description | CRC-32C of all before it, u32
//! ```
//!
//! All numbers are little-endian. The description is its owner's.

use crate::error::Error;
use crate::formatted::checksum;

const MAGIC: &[u8; 16] = b"outcore version\n";
const FIXED_BYTES: usize = 16 + 5 * 8;
const SUM_BYTES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    pub(super) page_bytes: u64,
    pub(super) pages: u64,
    /// Beyond these the file has nothing that counts.
    pub(super) places: u64,
    pub(super) description: Vec<u8>,
}

pub(super) fn corrupt(object: &str, reason: &str) -> Error {
    Error::Corrupt {
        object: object.to_owned(),
        offset: 0,
        reason: reason.to_owned(),
    }
}

pub(super) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

/// What is before the checksum, where that is right.
pub(super) fn unsealed<'a>(object: &str, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    match bytes.split_last_chunk::<SUM_BYTES>() {
        Some((content, sum)) if checksum(content).to_le_bytes() == *sum => Ok(content),
        _ => Err(corrupt(object, "its checksum does not match")),
    }
}

impl Head {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let len = self.description.len() as u64;
        for number in [self.number, self.page_bytes, self.pages, self.places, len] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.description);
        sealed(bytes)
    }

    /// The checksum at its end.
    pub(super) fn sum(&self) -> u32 {
        let bytes = self.bytes();
        let sum = bytes.last_chunk::<SUM_BYTES>();
        u32::from_le_bytes(*sum.expect("it ends with a checksum"))
    }

    pub(super) fn parse(object: &str, bytes: &[u8]) -> Result<Head, Error> {
        if !bytes.starts_with(MAGIC) {
            return Err(corrupt(
                object,
                "it does not begin as the version of an object",
            ));
        }
        let content = unsealed(object, bytes)?;
        let (fixed, description) = content
            .split_at_checked(FIXED_BYTES)
            .ok_or_else(|| corrupt(object, "it is cut off"))?;
        let (numbers, _) = fixed[MAGIC.len()..].as_chunks::<8>();
        let [number, page_bytes, pages, places, len] =
            [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(numbers[at]));
        let is_possible = len == description.len() as u64
            && page_bytes.is_power_of_two() | page_bytes.is_multiple_of(4096)
            && page_bytes > 0
            && pages <= places
            && places < u64::from(u32::MAX);
        match is_possible {
            true => Ok(Head {
                number,
                page_bytes,
                pages,
                places,
                description: description.to_vec(),
            }),
            false => Err(corrupt(object, "its numbers contradict each other")),
        }
    }
}

pub(super) fn map_bytes(map: impl Iterator<Item = u32>) -> Vec<u8> {
    sealed(map.flat_map(u32::to_le_bytes).collect())
}

/// The places of all pages of a version.
pub(super) fn parse_map(object: &str, bytes: &[u8], head: &Head) -> Result<Vec<u32>, Error> {
    let content = unsealed(object, bytes)?;
    let (places, rest) = content.as_chunks::<4>();
    let map: Vec<u32> = places
        .iter()
        .map(|place| u32::from_le_bytes(*place))
        .collect();
    let mut seen = vec![false; head.places as usize];
    let is_injective = map.iter().all(|&place| {
        seen.get_mut(place as usize)
            .is_some_and(|seen| !std::mem::replace(seen, true))
    });
    match is_injective && rest.is_empty() && map.len() as u64 == head.pages {
        true => Ok(map),
        false => Err(corrupt(object, "it is not the map of its version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            number: 7,
            page_bytes: 4096,
            pages: 3,
            places: 5,
            description: b"rows".to_vec(),
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_other() {
        let bytes = head().bytes();
        assert_eq!(Head::parse("t", &bytes).unwrap(), head());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(Head::parse("t", &damaged).is_err(), "byte {at}");
            assert!(Head::parse("t", &bytes[..at]).is_err(), "{at} bytes");
        }
        for change in [
            |head: &mut Head| head.page_bytes = 0,
            |head: &mut Head| head.pages = 6,
            |head: &mut Head| head.places = u64::MAX,
        ] {
            let mut bad = head();
            change(&mut bad);
            assert!(Head::parse("t", &bad.bytes()).is_err());
        }
    }

    #[test]
    fn a_map_gives_each_page_a_place_of_its_own() {
        let parsed = |map: &[u32]| parse_map("t", &map_bytes(map.iter().copied()), &head());
        assert_eq!(parsed(&[4, 0, 2]).unwrap(), [4, 0, 2]);
        for bad in [&[0, 0, 1][..], &[0, 1, 5], &[0, 1], &[0, 1, 2, 3]] {
            assert!(parsed(bad).is_err());
        }
        let mut damaged = map_bytes([4, 0, 2].into_iter());
        damaged[0] = 1;
        assert!(parse_map("t", &damaged, &head()).is_err());
    }
}
