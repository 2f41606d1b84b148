//! Rows are encoded, decoded and pooled as by FBGEMM and PyTorch (`golden/make_embedding.py`).

use outcore_kernels::embedding::{Pooling, RowEncoding, ScaleBias, Weights};

const GOLDEN: &[u8] = include_bytes!("../golden/embedding.bin");

struct Reader(&'static [u8]);

impl Reader {
    fn bytes(&mut self, count: usize) -> &'static [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn count(&mut self) -> usize {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap()) as usize
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        let bytes = self.bytes(4 * count).as_chunks::<4>().0;
        bytes
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect()
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    let canonical = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
    x.iter().map(|x| canonical(x).to_bits()).collect()
}

fn encoded(encoding: RowEncoding, row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; encoding.row_bytes(row.len()).unwrap()];
    encoding.encode(row, &mut bytes);
    bytes
}

fn decoded(encoding: RowEncoding, row: &[u8], dim: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; dim];
    encoding.decode(row, &mut numbers);
    numbers
}

#[test]
fn rows_and_bags_are_those_of_fbgemm_and_torch() {
    let mut golden = Reader(GOLDEN);
    let (finite, special) = (golden.count(), golden.count());
    for number in 0..finite + special {
        let dim = golden.count();
        let row = golden.floats(dim);
        let codes = [
            RowEncoding::I8(ScaleBias::Last),
            RowEncoding::I4(ScaleBias::Last),
            RowEncoding::I8(ScaleBias::LastF32),
        ];
        let bytes = codes.map(|encoding| golden.bytes(encoding.row_bytes(dim).unwrap()));
        for (encoding, bytes) in codes.into_iter().zip(bytes) {
            assert_eq!(
                encoded(encoding, &row),
                bytes,
                "{encoding} {number} {row:?}"
            );
        }
        for encoding in [
            RowEncoding::F16,
            RowEncoding::BF16,
            RowEncoding::F8E4M3,
            RowEncoding::F8E5M2,
        ] {
            let expected = golden.bytes(encoding.row_bytes(dim).unwrap());
            let found = encoded(encoding, &row);
            let [expected_numbers, found_numbers] =
                [expected, &found].map(|bytes| decoded(encoding, bytes, dim));
            assert_eq!(
                bits(&found_numbers),
                bits(&expected_numbers),
                "{encoding} {number} {row:?}"
            );
            assert!(
                row.iter().any(|x| x.is_nan()) || found == expected,
                "{encoding} {number} {row:?}"
            );
        }
        if number < finite {
            for (encoding, bytes) in codes.into_iter().zip(bytes) {
                assert_eq!(
                    decoded(encoding, bytes, dim),
                    golden.floats(dim),
                    "{encoding} {number}"
                );
            }
        }
    }
    table_batched(&mut golden);
    bags(&mut golden);
    assert!(golden.0.is_empty());
}

/// FBGEMM adds the bias of a row before its scaled codes: its sums are rounded otherwise.
fn table_batched(golden: &mut Reader) {
    for encoding in [
        RowEncoding::I8(ScaleBias::First),
        RowEncoding::I4(ScaleBias::First),
    ] {
        let (count, dim) = (4, 36);
        let bytes = encoding.row_bytes(dim).unwrap();
        let (slots, expected) = (golden.bytes(count * bytes), golden.floats(dim));
        let starts: Vec<usize> = (0..count).map(|row| row * bytes).collect();
        let mut sum = vec![0.0; dim];
        encoding.pool_sum(slots, &starts, Weights::Equal, &mut sum);
        for (found, expected) in sum.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 16.0 * f32::EPSILON,
                "{encoding} {found} {expected}"
            );
        }
    }
}

fn hashed(count: usize) -> Vec<f32> {
    let number = |i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    (0..count).map(number).collect()
}

fn bags(golden: &mut Reader) {
    for dim in [7, 32, 100] {
        let numbers = hashed(5 * dim + 20);
        let (table, weights) = numbers.split_at(5 * dim);
        let mut with_nan = table.to_vec();
        with_nan[..dim]
            .iter_mut()
            .step_by(2)
            .for_each(|x| *x = f32::NAN);
        with_nan[dim..2 * dim]
            .iter_mut()
            .step_by(3)
            .for_each(|x| *x = f32::NAN);
        for (table, pooling, weights) in [
            (table, Pooling::Sum, Weights::Equal),
            (table, Pooling::Mean, Weights::Equal),
            (table, Pooling::Sum, Weights::Fused(weights)),
            (table, Pooling::Sum, Weights::Rounded(weights)),
            (&with_nan, Pooling::Max, Weights::Equal),
        ] {
            let encoding = RowEncoding::F32;
            let rows: Vec<Vec<u8>> = table
                .chunks(dim)
                .map(|row| encoded(encoding, row))
                .collect();
            let mut pooled = vec![0.0; dim];
            encoding.pool_bags(
                pooling,
                |number| &rows[number * number % 5],
                &[20],
                weights,
                std::iter::once(&mut pooled[..]),
            );
            assert_eq!(
                bits(&pooled),
                bits(&golden.floats(dim)),
                "{pooling:?} {dim} {weights:?}"
            );
        }
    }
}
