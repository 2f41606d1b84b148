//! Rows to codes with a scale and a bias, by the arithmetic of FBGEMM's reference forms.
#![forbid(unsafe_code)]

use super::{RowEncoding, ScaleBias, floats};

/// Numbers that are compared at a time.
const LANES: usize = 8;
/// What FBGEMM stores for a scale that is no number.
const NAN_SCALE: u16 = 0x7fff;

/// Encodes a row.
#[inline(always)]
pub(super) fn encode(encoding: RowEncoding, place: ScaleBias, row: &[f32], out: &mut [u8]) {
    let (codes, parameters) = match place {
        ScaleBias::First => {
            let (parameters, codes) = out.split_at_mut(4);
            (codes, parameters)
        }
        ScaleBias::Last => out.split_at_mut(out.len() - 4),
        ScaleBias::LastF32 => out.split_at_mut(out.len() - 8),
    };
    if place == ScaleBias::LastF32 {
        let (scale, bias) = single(row, codes);
        parameters[..4].copy_from_slice(&scale.to_le_bytes());
        parameters[4..].copy_from_slice(&bias.to_le_bytes());
        return;
    }
    let steps = match encoding {
        RowEncoding::I4(_) => 15,
        _ => 255,
    };
    let (scale, bias, inverse) = half(row, steps);
    parameters[..2].copy_from_slice(&scale.to_le_bytes());
    parameters[2..].copy_from_slice(&bias.to_le_bytes());
    let bias = floats::f16(bias);
    let code = |x: f32| (((x - bias) * inverse).round_ties_even() as i32).clamp(0, steps);
    if steps == 255 {
        for (out, &x) in codes.iter_mut().zip(row) {
            *out = code(x) as u8;
        }
    } else {
        for (out, x) in codes.iter_mut().zip(row.as_chunks::<2>().0) {
            *out = (code(x[0]) | code(x[1]) << 4) as u8;
        }
    }
}

/// Scale and bias in f16, and the inverse of the scale, for codes from 0 to `steps`.
#[inline(always)]
fn half(row: &[f32], steps: i32) -> (u16, u16, f32) {
    let (least, most) = extremes(row);
    let bias = floats::f16_of(least);
    let range = most - floats::f16(bias);
    let scale = if range == 0.0 {
        1.0
    } else {
        range / steps as f32
    };
    let scale = match floats::f16(floats::f16_of(scale)) {
        0.0 => 1.0,
        scale => scale,
    };
    let stored = if scale.is_nan() {
        NAN_SCALE
    } else {
        floats::f16_of(scale)
    };
    (stored, bias, 1.0 / scale)
}

/// Codes, scale and bias in f32.
#[inline(always)]
fn single(row: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (bias, most) = extremes(row);
    let range = match most - bias {
        // The NaN of x86 for the difference of infinities.
        range if range.is_nan() && !bias.is_nan() => f32::from_bits(0xffc0_0000),
        range => range,
    };
    let inverse = 255.0 / (range + 1e-8);
    for (code, &x) in codes.iter_mut().zip(row) {
        *code = ((x - bias) * inverse).round_ties_even() as u8;
    }
    (range / 255.0, bias)
}

/// The least and the greatest number, the first of equal ones: 0 and -0 are equal. NaNs are passed
/// over, but for one that comes first.
#[inline(always)]
fn extremes(row: &[f32]) -> (f32, f32) {
    let less = |least, x| if x < least { x } else { least };
    let more = |most, x| if most < x { x } else { most };
    let (mut least, mut most) = ([row[0]; LANES], [row[0]; LANES]);
    let (vectors, rest) = row.as_chunks::<LANES>();
    for vector in vectors {
        for k in 0..LANES {
            least[k] = less(least[k], vector[k]);
            most[k] = more(most[k], vector[k]);
        }
    }
    let least = least.iter().chain(rest).copied().fold(row[0], less);
    let most = most.iter().chain(rest).copied().fold(row[0], more);
    let first = |of: f32| row.iter().copied().find(|&x| x == of);
    let zero = |x: f32| if x == 0.0 { first(x) } else { None };
    (zero(least).unwrap_or(least), zero(most).unwrap_or(most))
}
