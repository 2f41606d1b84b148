//! Numbers of few bits as f32, exactly. Bytes in, bytes out: little-endian, aligned for their types.
#![forbid(unsafe_code)]

use bytemuck::Pod;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Integers of 8 bits, also those that are truth values.
pub fn u8_to_f32(stored: &[u8], decoded: &mut [u8]) {
    widen(stored, decoded, |x: u8| f32::from(x));
}

/// Signed integers of 8 bits.
pub fn i8_to_f32(stored: &[u8], decoded: &mut [u8]) {
    widen(stored, decoded, |x: i8| f32::from(x));
}

/// Integers of 16 bits.
pub fn u16_to_f32(stored: &[u8], decoded: &mut [u8]) {
    widen(stored, decoded, |x: u16| f32::from(x));
}

/// Signed integers of 16 bits.
pub fn i16_to_f32(stored: &[u8], decoded: &mut [u8]) {
    widen(stored, decoded, |x: i16| f32::from(x));
}

/// The upper halves of f32s.
pub fn bf16_to_f32(stored: &[u8], decoded: &mut [u8]) {
    widen(stored, decoded, |x: u16| f32::from_bits(u32::from(x) << 16));
}

/// IEEE 754 binary16.
pub fn f16_to_f32(stored: &[u8], decoded: &mut [u8]) {
    let stored: &[u16] = bytemuck::cast_slice(stored);
    let stored: &[half::f16] = stored.reinterpret_cast();
    stored.convert_to_f32_slice(bytemuck::cast_slice_mut(decoded));
}

#[inline(always)]
fn widen<S: Pod>(stored: &[u8], decoded: &mut [u8], wide: impl Fn(S) -> f32) {
    let (stored, decoded) = (
        bytemuck::cast_slice::<u8, S>(stored),
        bytemuck::cast_slice_mut::<u8, f32>(decoded),
    );
    assert_eq!(stored.len(), decoded.len(), "one number for each");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (wider, &number) in decoded.iter_mut().zip(stored) {
                *wider = wide(number);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decode: fn(&[u8], &mut [u8]), stored: &[u8], count: usize) -> Vec<f32> {
        let mut decoded = vec![0f32; count];
        decode(stored, bytemuck::cast_slice_mut(&mut decoded));
        decoded
    }

    #[test]
    fn every_number_of_8_bits() {
        let stored: Vec<u8> = (0..=255).collect();
        let found = decoded(u8_to_f32, &stored, 256);
        assert!((0..256).all(|x| found[x] == x as f32));
        let found = decoded(i8_to_f32, &stored, 256);
        assert!((0..256).all(|x| found[x] == f32::from(stored[x] as i8)));
    }

    #[test]
    fn every_number_of_16_bits() {
        let stored: Vec<u16> = (0..=u16::MAX).collect();
        let bytes = bytemuck::cast_slice(&stored);
        let of = |decode| decoded(decode, bytes, stored.len());
        let bits = |found: &[f32]| found.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(
            of(u16_to_f32)
                .iter()
                .zip(&stored)
                .all(|(x, &y)| *x == f32::from(y))
        );
        assert!(
            of(i16_to_f32)
                .iter()
                .zip(&stored)
                .all(|(x, &y)| *x == f32::from(y as i16))
        );
        let upper: Vec<u32> = stored.iter().map(|&x| u32::from(x) << 16).collect();
        assert_eq!(bits(&of(bf16_to_f32)), upper);
        for (found, &half) in of(f16_to_f32).iter().zip(&stored) {
            let expected = half::f16::from_bits(half).to_f32();
            assert!(
                *found == expected || found.is_nan() && expected.is_nan(),
                "{half:#x}"
            );
        }
    }
}
