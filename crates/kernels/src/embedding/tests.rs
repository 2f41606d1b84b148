use super::pool::{GROUP, Group, Instructions};
use super::*;
use proptest::prelude::*;

const ALL: [RowEncoding; 10] = [
    RowEncoding::F32,
    RowEncoding::F16,
    RowEncoding::BF16,
    RowEncoding::F8E4M3,
    RowEncoding::F8E5M2,
    RowEncoding::I8(ScaleBias::First),
    RowEncoding::I8(ScaleBias::Last),
    RowEncoding::I8(ScaleBias::LastF32),
    RowEncoding::I4(ScaleBias::First),
    RowEncoding::I4(ScaleBias::Last),
];

fn fast() -> Vec<Instructions> {
    let mut all = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(x86::Avx2::new().map(Instructions::Avx2));
        all.extend(x86::Avx512::new().map(Instructions::Avx512));
    }
    all
}

/// Bits, which NaNs have in common.
fn bits(x: &[f32]) -> Vec<u32> {
    let canonical = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
    x.iter().map(|x| canonical(x).to_bits()).collect()
}

/// The value of `byte` as (-1)^s 2^(e - bias) (1 + m / 2^mantissa), or without the 1 where e is 0.
fn float8(byte: u8, mantissa: i32, bias: i32) -> f32 {
    let (exponent, fraction) = (
        i32::from(byte & 0x7f) >> mantissa,
        f64::from(byte & ((1 << mantissa) - 1)) / f64::from(1 << mantissa),
    );
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    (if byte > 0x7f { -magnitude } else { magnitude }) as f32
}

#[test]
fn every_short_float_is_decoded_as_the_formula_says() {
    for bits in 0..=u16::MAX {
        let (half, upper) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        let (found, found_upper) = (floats::f16(bits), floats::bf16(bits));
        assert!(
            found == half.to_f32() || found.is_nan() && half.is_nan(),
            "{bits:#x}"
        );
        assert!(found_upper == upper.to_f32() || found_upper.is_nan() && upper.is_nan());
    }
    for byte in 0..=u8::MAX {
        let found = floats::e4m3(byte);
        assert_eq!(found.is_nan(), byte & 0x7f == 0x7f, "{byte:#x}");
        assert!(
            found.is_nan() || found.to_bits() == float8(byte, 3, 7).to_bits(),
            "{byte:#x}"
        );
        let found = floats::e5m2(byte);
        assert_eq!(found.is_nan(), byte & 0x7f > 0x7c, "{byte:#x}");
        assert_eq!(found.is_infinite(), byte & 0x7f == 0x7c, "{byte:#x}");
        assert!(!found.is_finite() || found.to_bits() == float8(byte, 2, 15).to_bits());
    }
}

/// Every number of f16, what lies halfway to the next, and the f32 on both sides of each.
#[test]
fn numbers_are_rounded_to_the_nearest_half_ties_to_even() {
    for bits in (0..0x7c00).flat_map(|bits| [bits, bits | 0x8000]) {
        let (here, next) = (half::f16::from_bits(bits), half::f16::from_bits(bits + 1));
        let middle = ((here.to_f64() + next.to_f64().clamp(-65_536.0, 65_536.0)) / 2.0) as f32;
        for x in [here.to_f32(), middle]
            .into_iter()
            .flat_map(|x| [x.next_down(), x, x.next_up()])
        {
            assert_eq!(floats::f16_of(x), half::f16::from_f32(x).to_bits(), "{x:e}");
        }
    }
    for x in [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        -0.0,
    ] {
        assert_eq!(floats::f16_of(x), half::f16::from_f32(x).to_bits(), "{x:e}");
    }
    assert!(half::f16::from_bits(floats::f16_of(f32::NAN)).is_nan());
}

/// As above, for the values of a byte.
#[test]
fn numbers_are_rounded_to_the_nearest_byte_ties_to_even() {
    for (encoding, most, value) in [
        (RowEncoding::F8E4M3, 0x7e, floats::e4m3 as fn(u8) -> f32),
        (RowEncoding::F8E5M2, 0x7b, floats::e5m2),
    ] {
        let encoded = |x: f32| {
            let mut byte = [0];
            encoding.encode(&[x], &mut byte);
            byte[0]
        };
        for byte in 0..most {
            let (here, next) = (value(byte), value(byte + 1));
            let middle = (here + next) / 2.0;
            assert_eq!([encoded(here), encoded(-here)], [byte, byte | 0x80]);
            assert_eq!(encoded(middle.next_down()), byte, "{middle:e}");
            assert_eq!(encoded(middle), byte + byte % 2, "{middle:e}");
            assert_eq!(encoded(middle.next_up()), byte + 1, "{middle:e}");
        }
        let step = value(most) - value(most - 1);
        let beyond = most + u8::from(encoding == RowEncoding::F8E5M2);
        assert_eq!(encoded((value(most) + step / 2.0).next_down()), most);
        for x in [value(most) + step / 2.0, f32::MAX, f32::INFINITY] {
            assert_eq!(encoded(x), beyond, "{encoding} {x:e}");
        }
        assert!(value(encoded(f32::NAN)).is_nan());
    }
}

/// A row of bytes and what the definition says of it.
fn decoded(encoding: RowEncoding, row: &[u8], dim: usize) -> Vec<f32> {
    let at = |j: usize| u16::from_le_bytes([row[2 * j], row[2 * j + 1]]);
    let half = |at: usize| half::f16::from_le_bytes([row[at], row[at + 1]]).to_f32();
    let single = |at: usize| f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
    let scale_bias = |place, codes| match place {
        ScaleBias::First => (4, half(0), half(2)),
        ScaleBias::Last => (0, half(codes), half(codes + 2)),
        ScaleBias::LastF32 => (0, single(codes), single(codes + 4)),
    };
    let element = |j: usize| match encoding {
        RowEncoding::F32 => single(4 * j),
        RowEncoding::F16 => half(2 * j),
        RowEncoding::BF16 => half::bf16::from_bits(at(j)).to_f32(),
        RowEncoding::F8E4M3 => floats::e4m3(row[j]),
        RowEncoding::F8E5M2 => floats::e5m2(row[j]),
        RowEncoding::I8(place) => {
            let (first, scale, bias) = scale_bias(place, dim);
            f32::from(row[first + j]).mul_add(scale, bias)
        }
        RowEncoding::I4(place) => {
            let (first, scale, bias) = scale_bias(place, dim / 2);
            f32::from(row[first + j / 2] >> (4 * (j % 2)) & 15).mul_add(scale, bias)
        }
    };
    (0..dim).map(element).collect()
}

/// One operation by its definition.
fn reference(
    operation: Operation,
    encoding: RowEncoding,
    rows: &[&[u8]],
    weights: &[f32],
    out: &mut [f32],
) {
    for (row, &weight) in rows.iter().zip(weights) {
        let row = decoded(encoding, row, out.len());
        for (out, x) in out.iter_mut().zip(row) {
            *out = match operation {
                Operation::Copy => x,
                Operation::Add => *out + x,
                Operation::AddWeighted => weight.mul_add(x, *out),
                Operation::AddProduct => *out + weight * x,
                Operation::Max if x > *out => x,
                Operation::Max => *out,
            };
        }
    }
}

fn check(encoding: RowEncoding, dim: usize, rows: &[&[u8]], weights: &[f32], before: &[f32]) {
    for operation in [
        Operation::Copy,
        Operation::Add,
        Operation::AddWeighted,
        Operation::AddProduct,
        Operation::Max,
    ] {
        let mut expected = before[..dim].to_vec();
        reference(operation, encoding, rows, weights, &mut expected);
        for instructions in [vec![Instructions::Plain], fast()].concat() {
            let mut found = before[..dim].to_vec();
            let group = Group {
                encoding,
                operation,
                rows,
                weights,
            };
            group.run(instructions, &mut found);
            assert_eq!(
                bits(&found),
                bits(&expected),
                "{encoding} {operation:?} {instructions:?} {dim}"
            );
        }
    }
}

/// Any bytes are a row: NaNs, infinities and subnormal numbers are among them.
#[test]
fn every_processor_has_the_same_bits_for_all_shapes_and_addresses() {
    let bytes: Vec<u8> = (0..20_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let numbers: Vec<f32> = (0..300)
        .map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5)
        .collect();
    for encoding in ALL {
        for dim in (1..=70).chain([100, 127, 128, 129, 144, 255, 256, 260]) {
            let Some(row_bytes) = encoding.row_bytes(dim) else {
                continue;
            };
            for count in [1, 2, 5, GROUP] {
                // Rows overlap and begin at odd addresses.
                let rows: Vec<&[u8]> = (0..count)
                    .map(|i| &bytes[(i * 1049 + dim) % 18_000..][..row_bytes])
                    .collect();
                check(encoding, dim, &rows, &numbers[..count], &numbers);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_processor_has_the_same_bits_for_all_values(
        (encoding, dim, bytes) in (0..ALL.len(), 1usize..80).prop_flat_map(|(index, half)| {
            let (encoding, dim) = (ALL[index], 2 * half);
            let bytes = 3 * encoding.row_bytes(dim).unwrap();
            (Just(encoding), Just(dim), prop::collection::vec(any::<u8>(), bytes))
        }),
        weights in prop::array::uniform3(any::<f32>()),
        before in prop::collection::vec(any::<f32>(), 160),
    ) {
        let rows: Vec<&[u8]> = bytes.chunks(bytes.len() / 3).collect();
        check(encoding, dim, &rows, &weights, &before);
    }

    #[test]
    fn rows_come_back_within_half_a_step(
        row in prop::collection::vec(-100f32..100.0, 2..200),
        index in 0..ALL.len(),
    ) {
        let (encoding, row) = (ALL[index], &row[..row.len() / 2 * 2]);
        let mut encoded = vec![0; encoding.row_bytes(row.len()).unwrap()];
        encoding.encode(row, &mut encoded);
        let mut back = vec![0.0; row.len()];
        encoding.decode(&encoded, &mut back);
        let [least, most] = [f32::min as fn(f32, f32) -> f32, f32::max]
            .map(|f| row.iter().copied().reduce(f).unwrap());
        for (&x, &found) in row.iter().zip(&back) {
            let half_step = match encoding {
                RowEncoding::F32 => 0.0,
                RowEncoding::F16 => x.abs() / 2048.0 + 1e-7,
                RowEncoding::BF16 => x.abs() / 256.0,
                RowEncoding::F8E4M3 => x.abs() / 16.0 + 1e-3,
                RowEncoding::F8E5M2 => x.abs() / 8.0 + 1e-5,
                // Scale and bias are rounded to f16.
                RowEncoding::I8(_) => (most - least) / 509.0 + 0.2,
                RowEncoding::I4(_) => (most - least) / 29.9 + 0.2,
            };
            prop_assert!((x - found).abs() <= half_step, "{encoding} {x} {found} {least} {most}");
            prop_assert!(!encoding.is_lossless_f32() || x.to_bits() == found.to_bits());
        }
    }
}

#[test]
fn bags_are_their_rows_one_by_one() {
    let (count, dim) = (150, 36);
    for encoding in ALL {
        let row_bytes = encoding.row_bytes(dim).unwrap();
        let mut slots = vec![0; count * row_bytes];
        for (i, slot) in slots.chunks_mut(row_bytes).enumerate() {
            let row: Vec<f32> = (0..dim)
                .map(|j| ((i * dim + j) * 7919 % 1009) as f32 / 1009.0 - 0.5)
                .collect();
            encoding.encode(&row, slot);
        }
        let starts: Vec<usize> = (0..100).map(|i| i * i % count * row_bytes).collect();
        let row = |number: usize| &slots[starts[number]..][..row_bytes];
        let weights: Vec<f32> = (0..100).map(|i| i as f32 / 64.0 - 0.7).collect();
        let ends = [0, 1, 3, 3, 60, 97, 100, 100];
        let bags = || {
            [0].iter()
                .chain(&ends)
                .zip(&ends)
                .map(|(&start, &end)| start..end)
        };

        for (pooling, weights) in [
            (Pooling::Sum, Weights::Equal),
            (Pooling::Sum, Weights::Fused(&weights)),
            (Pooling::Sum, Weights::Rounded(&weights)),
            (Pooling::Mean, Weights::Equal),
            (Pooling::Max, Weights::Equal),
        ] {
            let mut pooled = vec![7.0; ends.len() * dim];
            encoding.pool_bags(pooling, row, &ends, weights, pooled.chunks_mut(dim));
            for (bag, found) in bags().zip(pooled.chunks(dim)) {
                let mut expected = vec![0.0; dim];
                for number in bag.clone() {
                    match (pooling, weights) {
                        (Pooling::Max, _) if number == bag.start => {
                            encoding.decode(row(number), &mut expected)
                        }
                        (Pooling::Max, _) => encoding.max(row(number), &mut expected),
                        (_, Weights::Equal) => encoding.add(row(number), &mut expected),
                        (_, Weights::Fused(weights)) => {
                            encoding.add_weighted(row(number), weights[number], &mut expected)
                        }
                        (_, Weights::Rounded(weights)) => {
                            let x = decoded(encoding, row(number), dim);
                            expected
                                .iter_mut()
                                .zip(x)
                                .for_each(|(sum, x)| *sum += weights[number] * x);
                        }
                    }
                }
                if pooling == Pooling::Mean {
                    expected
                        .iter_mut()
                        .for_each(|x| *x /= bag.len().max(1) as f32);
                }
                assert_eq!(
                    bits(found),
                    bits(&expected),
                    "{encoding} {pooling:?} {bag:?}"
                );
            }
        }

        let (mut sum, mut most) = (vec![0.5; dim], vec![-9.0; dim]);
        encoding.pool_sum(&slots, &starts, Weights::Fused(&weights), &mut sum);
        encoding.pool_max(&slots, &starts, &mut most);
        let (mut expected, mut greatest) = (vec![0.5; dim], vec![-9.0; dim]);
        for (number, &weight) in weights.iter().enumerate() {
            encoding.add_weighted(row(number), weight, &mut expected);
            encoding.max(row(number), &mut greatest);
        }
        assert_eq!([sum, most], [expected, greatest], "{encoding}");

        let mut rows = vec![0.0; 100 * dim];
        encoding.decode_rows(row, dim, &mut rows);
        for (number, found) in rows.chunks(dim).enumerate() {
            assert_eq!(
                found,
                decoded(encoding, row(number), dim),
                "{encoding} {number}"
            );
        }
    }
}

#[test]
fn no_rows_and_no_bags_change_nothing() {
    let mut sum = [1.0; 4];
    RowEncoding::F32.pool_sum(&[], &[], Weights::Equal, &mut sum);
    RowEncoding::F16.pool_max(&[], &[], &mut sum);
    assert_eq!(sum, [1.0; 4]);
    RowEncoding::BF16.pool_bags(
        Pooling::Max,
        |_| &[],
        &[],
        Weights::Equal,
        std::iter::empty(),
    );
    RowEncoding::BF16.decode_rows(|_| &[], 4, &mut []);
}

#[test]
fn what_no_row_can_be_has_no_bytes() {
    assert_eq!(RowEncoding::F32.row_bytes(32), Some(128));
    assert_eq!(RowEncoding::I8(ScaleBias::First).row_bytes(7), Some(11));
    assert_eq!(RowEncoding::I8(ScaleBias::LastF32).row_bytes(7), Some(15));
    assert_eq!(RowEncoding::I4(ScaleBias::Last).row_bytes(6), Some(7));
    assert_eq!(RowEncoding::I4(ScaleBias::Last).row_bytes(7), None);
    assert_eq!(RowEncoding::I4(ScaleBias::LastF32).row_bytes(8), None);
    assert_eq!(RowEncoding::F32.row_bytes(usize::MAX / 2), None);
    assert!(ALL.iter().all(|encoding| encoding.row_bytes(0).is_none()));
}

#[test]
fn names_are_read_back_and_others_are_told() {
    for encoding in ALL {
        assert_eq!(encoding.to_string().parse(), Ok(encoding));
    }
    assert_eq!("int4".parse(), Ok(RowEncoding::I4(ScaleBias::First)));
    let error = RowEncoding::from_str("int3").unwrap_err().to_string();
    assert!(
        error.contains("int3") && error.contains("float8_e4m3fn"),
        "{error}"
    );
}
