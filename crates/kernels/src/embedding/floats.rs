//! f32 to floats of fewer bits and back, without branches, so that a loop of them is vectorised.
#![forbid(unsafe_code)]

use super::RowEncoding;

/// Encodes a row.
#[inline(always)]
pub(super) fn encode(encoding: RowEncoding, row: &[f32], out: &mut [u8]) {
    match encoding {
        RowEncoding::F32 => each(row, out, f32::to_le_bytes),
        RowEncoding::F16 => each(row, out, |x| f16_of(x).to_le_bytes()),
        RowEncoding::BF16 => each(row, out, |x| bf16_of(x).to_le_bytes()),
        RowEncoding::F8E4M3 => each(row, out, |x| [e4m3_of(x)]),
        RowEncoding::F8E5M2 => each(row, out, |x| [e5m2_of(x)]),
        RowEncoding::I8(_) | RowEncoding::I4(_) => unreachable!("codes are not floats"),
    }
}

#[inline(always)]
fn each<const N: usize>(row: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(row) {
        *out = bytes(x);
    }
}

/// The bits of the nearest number with `EXPONENT` and `MANTISSA` bits, without its sign:
/// `most` where that exceeds it, `nan` for a NaN.
#[inline(always)]
fn narrow<const EXPONENT: u32, const MANTISSA: u32>(x: f32, most: u32, nan: u32) -> u32 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let (bias, dropped) = ((1 << (EXPONENT - 1)) - 1, 23 - MANTISSA);
    let odd = (magnitude >> dropped) & 1;
    let half = (1 << (dropped - 1)) - 1 + odd;
    let normal = (magnitude
        .wrapping_sub((127 - bias) << 23)
        .wrapping_add(half))
        >> dropped;
    // Below the least normal number: the last bit of a sum with this power of two is the step
    // there.
    let power = (127 + 1 - bias + dropped) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(power))
        .to_bits()
        .wrapping_sub(power);
    let rounded = if magnitude < (127 + 1 - bias) << 23 {
        subnormal
    } else {
        normal
    };
    let rounded = if rounded > most { most } else { rounded };
    if magnitude > 0x7f80_0000 {
        nan
    } else {
        rounded
    }
}

#[inline(always)]
fn sign(x: f32) -> u32 {
    x.to_bits() >> 31
}

/// A NaN keeps its upper bits and is quiet, as with the instruction.
#[inline(always)]
pub(super) fn f16_of(x: f32) -> u16 {
    let nan = 0x7e00 | (x.to_bits() >> 13 & 0x3ff);
    (sign(x) << 15 | narrow::<5, 10>(x, 0x7c00, nan)) as u16
}

#[inline(always)]
fn bf16_of(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        nan
    } else {
        rounded
    }) as u16
}

#[inline(always)]
fn e4m3_of(x: f32) -> u8 {
    (sign(x) << 7 | narrow::<4, 3>(x, 0x7e, 0x7f)) as u8
}

#[inline(always)]
fn e5m2_of(x: f32) -> u8 {
    (sign(x) << 7 | narrow::<5, 2>(x, 0x7c, 0x7f)) as u8
}

/// A NaN is made quiet, as by the instruction.
#[inline(always)]
pub(super) fn f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let shifted = (bits & 0x7fff) << 13;
    let normal = shifted + ((127 - 15) << 23);
    let (infinite, nan) = (normal + ((128 - 16) << 23), 0x40_0000);
    // 2^-14 is added to its significand and subtracted as a number.
    let power = (127 - 14) << 23;
    let subnormal = (f32::from_bits(shifted + power) - f32::from_bits(power)).to_bits();
    let magnitude = if shifted < 0x400 << 13 {
        subnormal
    } else if shifted < 0x7c00 << 13 {
        normal
    } else if shifted == 0x7c00 << 13 {
        infinite
    } else {
        infinite | nan
    };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

#[inline(always)]
pub(super) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// By way of f16, whose exponent is 8 less.
#[inline(always)]
pub(super) fn e4m3(byte: u8) -> f32 {
    let (sign, magnitude) = (u16::from(byte & 0x80) << 8, u16::from(byte & 0x7f));
    let nan = if magnitude == 0x7f { 0x4000 } else { 0 };
    f16(sign | magnitude << 7 | nan) * 256.0
}

#[inline(always)]
pub(super) fn e5m2(byte: u8) -> f32 {
    f16(u16::from(byte) << 8)
}
