//! CRC-32C (Castagnoli, as in iSCSI) of several pieces at once.
//!
//! The instruction takes eight bytes a cycle and has a latency of three cycles: with one piece, the
//! processor waits for two of three.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod sse42;

/// The checksums of three pieces, preferably of equal length; `None` if this processor has no
/// instruction for them. Meanwhile the beginnings of the pieces in `coming` are prefetched, line by
/// line, since a processor stalls if too many lines are requested at once.
pub fn crc32c_of_three(pieces: [&[u8]; 3], coming: [&[u8]; 3]) -> Option<[u32; 3]> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has SSE4.2 (asked above).
        return Some(unsafe { sse42::three(pieces, coming) });
    }
    let _ = (pieces, coming);
    None
}

/// Appends bytes around the caches ([`append_past_caches`](crate::append_past_caches)), and returns
/// the checksum of the bytes so far, of which those before have the checksum `before`, in one pass.
/// Appends nothing if this processor has no instruction for it.
pub fn append_with_crc32c(list: &mut Vec<u8>, bytes: &[u8], before: u32) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has SSE4.2 (asked above).
        return Some(unsafe { sse42::append(list, bytes, before) });
    }
    let _ = (list, bytes, before);
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::sse42::{LANE, POLYNOMIAL};
    use super::*;

    /// Bit by bit.
    fn plain(piece: &[u8]) -> u32 {
        let bit = |sum: u32, _| sum >> 1 ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
        !piece
            .iter()
            .fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), bit))
    }

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(plain(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn three_at_once_are_as_one_by_one(bytes in proptest::collection::vec(any::<u8>(), 0..200), ends in [0usize..200, 0usize..200, 0usize..200]) {
            let pieces = ends.map(|end| &bytes[..end.min(bytes.len())]);
            if let Some(sums) = crc32c_of_three(pieces, pieces) {
                prop_assert_eq!(sums, pieces.map(plain));
            }
        }
    }

    #[test]
    fn what_is_appended_has_the_checksum_that_it_has_by_itself() {
        let bytes: Vec<u8> = (0..7 * LANE as u32)
            .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for (before, len) in [
            (0, 0),
            (1, 1),
            (5, 100),
            (64, 3 * LANE),
            (9, 3 * LANE + 200),
            (3, 7 * LANE - 10),
        ] {
            let (mut list, wanted) = (bytes[..before].to_vec(), &bytes[..before + len]);
            if let Some(sum) =
                append_with_crc32c(&mut list, &wanted[before..], plain(&wanted[..before]))
            {
                assert_eq!((sum, &list[..]), (plain(wanted), wanted), "{before} {len}");
            }
        }
    }
}
