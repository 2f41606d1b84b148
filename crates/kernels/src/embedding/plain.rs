//! The plain form: one element after another, row by row.
#![forbid(unsafe_code)]

use super::pool::{Group, Operation};
use super::{RowEncoding, ScaleBias, floats};

/// As [`Group::run`].
pub(super) fn run(group: &Group<'_>, out: &mut [f32]) {
    let Group {
        encoding,
        operation,
        rows,
        weights,
    } = *group;
    let (dim, bytes) = (out.len(), group.row_bytes(out.len()));
    for (row, &weight) in rows.iter().zip(weights) {
        assert!(row.len() == bytes, "rows of {dim} elements");
        match encoding {
            RowEncoding::F32 => each(operation, row, weight, out, f32::from_le_bytes),
            RowEncoding::F16 => each(operation, row, weight, out, |x| {
                floats::f16(u16::from_le_bytes(x))
            }),
            RowEncoding::BF16 => each(operation, row, weight, out, |x| {
                floats::bf16(u16::from_le_bytes(x))
            }),
            RowEncoding::F8E4M3 => each(operation, row, weight, out, |[x]| floats::e4m3(x)),
            RowEncoding::F8E5M2 => each(operation, row, weight, out, |[x]| floats::e5m2(x)),
            RowEncoding::I8(place) => {
                let (codes, scale, bias) = split(row, place, dim);
                each(operation, codes, weight, out, |[q]| {
                    f32::from(q).mul_add(scale, bias)
                });
            }
            RowEncoding::I4(place) => {
                let (codes, scale, bias) = split(row, place, dim / 2);
                let value = |q| f32::from(q).mul_add(scale, bias);
                for (out, &pair) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *out = [
                        step(operation, out[0], value(pair & 15), weight),
                        step(operation, out[1], value(pair >> 4), weight),
                    ];
                }
            }
        }
    }
}

/// The codes of a row, its scale and its bias.
fn split(row: &[u8], place: ScaleBias, codes: usize) -> (&[u8], f32, f32) {
    let (codes, parameters) = match place {
        ScaleBias::First => (&row[4..], &row[..4]),
        ScaleBias::Last | ScaleBias::LastF32 => row.split_at(codes),
    };
    let half = |at: usize| floats::f16(u16::from_le_bytes([parameters[at], parameters[at + 1]]));
    let single = |at: usize| {
        f32::from_bits(u32::from_le_bytes(std::array::from_fn(|k| {
            parameters[at + k]
        })))
    };
    match place {
        ScaleBias::LastF32 => (codes, single(0), single(4)),
        ScaleBias::First | ScaleBias::Last => (codes, half(0), half(2)),
    }
}

#[inline(always)]
fn each<const N: usize>(
    operation: Operation,
    row: &[u8],
    weight: f32,
    out: &mut [f32],
    value: impl Fn([u8; N]) -> f32,
) {
    for (out, &bytes) in out.iter_mut().zip(row.as_chunks::<N>().0) {
        *out = step(operation, *out, value(bytes), weight);
    }
}

#[inline(always)]
fn step(operation: Operation, so_far: f32, x: f32, weight: f32) -> f32 {
    match operation {
        Operation::Copy => x,
        Operation::Add => so_far + x,
        Operation::AddWeighted => weight.mul_add(x, so_far),
        Operation::AddProduct => so_far + weight * x,
        Operation::Max => {
            if x > so_far {
                x
            } else {
                so_far
            }
        }
    }
}
