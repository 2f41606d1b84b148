//! CRC-32C (Castagnoli, as iSCSI has it) of several short pieces at once.
//!
//! Processors take in eight bytes a cycle, and give the result three cycles later: a piece by itself waits for two of three.
#![allow(unsafe_code)]

/// The checksums of three pieces, which are best of one length; none where this processor has no instruction for them.
pub fn crc32c_of_three(pieces: [&[u8]; 3]) -> Option<[u32; 3]> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has what it takes.
        return Some(unsafe { sse42(pieces) });
    }
    let _ = pieces;
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn sse42(pieces: [&[u8]; 3]) -> [u32; 3] {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let words = pieces.map(|piece| piece.as_chunks::<8>().0);
    let mut sums = [u64::from(!0u32); 3];
    let add = |sum: &mut u64, word: &[u8; 8]| *sum = _mm_crc32_u64(*sum, u64::from_le_bytes(*word));
    for ((one, two), three) in words[0].iter().zip(words[1]).zip(words[2]) {
        add(&mut sums[0], one);
        add(&mut sums[1], two);
        add(&mut sums[2], three);
    }
    let together = words.iter().map(|words| words.len()).min().unwrap_or(0);
    for ((sum, words), piece) in sums.iter_mut().zip(words).zip(pieces) {
        words[together..].iter().for_each(|word| add(sum, word));
        let rest = piece.as_chunks::<8>().1;
        *sum = rest.iter().fold(*sum, |sum, &byte| u64::from(_mm_crc32_u8(sum as u32, byte)));
    }
    sums.map(|sum| !(sum as u32))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit.
    fn plain(piece: &[u8]) -> u32 {
        let bit = |sum: u32, _| sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
        !piece.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), bit))
    }

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(plain(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn three_at_once_are_as_one_by_one(bytes in proptest::collection::vec(any::<u8>(), 0..200), ends in [0usize..200, 0usize..200, 0usize..200]) {
            let pieces = ends.map(|end| &bytes[..end.min(bytes.len())]);
            if let Some(sums) = crc32c_of_three(pieces) {
                prop_assert_eq!(sums, pieces.map(plain));
            }
        }
    }
}
