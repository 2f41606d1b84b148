//! CRC-32C by the instruction of SSE 4.2.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use crate::caches::{
    FETCHED_BYTES, LINE, Line, append_past_caches, fetch_from, lines, store, stored,
};

/// The polynomial, lowest power first.
pub(super) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Long input is cut into blocks of three lanes of this length: two pages and a third. Processors
/// compare only the low twelve bits of addresses at first, so a store in one lane would delay a
/// load at the same page offset in another.
pub(super) const LANE: usize = 149 * 64;

/// Factor of the checksum of bytes that are followed by a lane.
const BEHIND_A_LANE: u32 = power(8 * LANE);

#[target_feature(enable = "sse4.2")]
pub(super) fn three(pieces: [&[u8]; 3], coming: [&[u8]; 3]) -> [u32; 3] {
    let coming = coming.map(|piece| &piece[..piece.len().min(FETCHED_BYTES)]);
    let lines = pieces.map(|piece| piece.as_chunks::<LINE>().0);
    let mut sums = [!0; 3];
    for (number, ((one, two), three)) in lines[0].iter().zip(lines[1]).zip(lines[2]).enumerate() {
        coming
            .iter()
            .for_each(|piece| fetch_from(piece, number * LINE));
        for ((one, two), three) in words(one).iter().zip(words(two)).zip(words(three)) {
            sums = [add(sums[0], one), add(sums[1], two), add(sums[2], three)];
        }
    }
    let together = lines.iter().map(|lines| lines.len()).min().unwrap_or(0);
    for number in together..FETCHED_BYTES / LINE {
        coming
            .iter()
            .for_each(|piece| fetch_from(piece, number * LINE));
    }
    for (sum, piece) in sums.iter_mut().zip(pieces) {
        *sum = !add_all(*sum, &piece[LINE * together..]);
    }
    sums
}

fn words(line: &Line) -> &[[u8; 8]] {
    line.as_chunks().0
}

#[target_feature(enable = "sse4.2")]
pub(super) fn append(list: &mut Vec<u8>, bytes: &[u8], before: u32) -> u32 {
    let (head, lines, _) = lines(list, bytes);
    list.extend_from_slice(head);
    let mut sum = add_all(!before, head);
    const LINES: usize = LANE / LINE;
    let blocks = lines.as_chunks::<LINES>().0.as_chunks::<3>().0;
    let rooms = list
        .spare_capacity_mut()
        .as_chunks_mut::<LINE>()
        .0
        .as_chunks_mut::<LINES>()
        .0
        .as_chunks_mut::<3>()
        .0;
    for (block, room) in blocks.iter().zip(rooms) {
        let mut sums = [sum, 0, 0];
        for line in 0..LINES {
            for lane in 0..3 {
                let bytes: &Line = &block[lane][line];
                // SAFETY: lines of the list begin behind `head`.
                unsafe { store(bytes, &mut room[lane][line]) };
                sums[lane] = words(bytes)
                    .iter()
                    .fold(sums[lane], |sum, word| add(sum, word));
            }
        }
        sum = multiply(multiply(sums[0], BEHIND_A_LANE) ^ sums[1], BEHIND_A_LANE) ^ sums[2];
    }
    // SAFETY: all blocks have been written, into room that `lines` reserved.
    unsafe { stored(list, 3 * LINES * blocks.len()) };
    let rest = &bytes[head.len() + 3 * LANE * blocks.len()..];
    append_past_caches(list, rest);
    !add_all(sum, rest)
}

#[target_feature(enable = "sse4.2")]
fn add(sum: u32, word: &[u8; 8]) -> u32 {
    _mm_crc32_u64(u64::from(sum), u64::from_le_bytes(*word)) as u32
}

#[target_feature(enable = "sse4.2")]
fn add_all(sum: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(sum, |sum, word| add(sum, word));
    rest.iter().fold(sum, |sum, &byte| _mm_crc32_u8(sum, byte))
}

/// The product of two polynomials, modulo that of the checksum.
const fn multiply(one: u32, mut other: u32) -> u32 {
    let (mut product, mut bit) = (0, 1u32 << 31);
    while bit != 0 {
        if one & bit != 0 {
            product ^= other;
        }
        other = other >> 1 ^ if other & 1 == 1 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    product
}

/// x to the power of `exponent`.
const fn power(mut exponent: usize) -> u32 {
    let (mut power, mut square) = (1 << 31, 1 << 30);
    while exponent > 0 {
        if exponent % 2 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        exponent /= 2;
    }
    power
}
