use proptest::prelude::*;

use super::*;
use crate::reference;

/// One of the kernels, called with the scratch that it says it needs.
type Kernel = fn(MatMut<'_, i64>, &mut [i64], MatRef<'_, u8>, Byte);

/// Bytes around the scratch of a call.
const GUARD: usize = 4096;

/// The kernel of this CPU, and that of every CPU.
const KERNELS: [(&str, Kernel); 2] = [
    ("own", |gram, sums, x, byte| {
        let bytes = byte_gram_scratch_bytes(x.nrows(), x.ncols(), sums.len());
        // Not aligned, full of what a previous call left, and not to be left.
        let mut scratch = vec![0xa5; bytes + GUARD];
        byte_gram(gram, sums, x, byte, &mut scratch[1..][..bytes]).unwrap();
        assert!(scratch[0] == 0xa5 && scratch[1 + bytes..].iter().all(|&byte| byte == 0xa5));
    }),
    ("plain", |gram, sums, x, byte| {
        let count = float_lines(x.nrows(), x.ncols(), sums.len());
        let mut scratch = vec![Line([0xa5; 64]); count];
        by_floats(gram, sums, x, byte, &mut scratch, &|| false).unwrap();
    }),
];

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Compares both kernels with the plain twin, also in what they may not write.
fn check(x: MatRef<'_, u8>, byte: Byte, w: usize, gap: usize) {
    let (n, d) = x.shape();
    let start = |at: usize| (at as i64 * 7919) - (1 << 40);
    let of = |kernel: &dyn Fn(MatMut<'_, i64>, &mut [i64])| {
        let mut gram: Vec<i64> = (0..d * (w + gap)).map(start).collect();
        let mut sums: Vec<i64> = (0..w).map(start).collect();
        kernel(view_mut(&mut gram, d, w, w + gap, 1).unwrap(), &mut sums);
        (gram, sums)
    };
    let wanted = of(&|gram, sums| reference::byte_gram(gram, sums, x, byte));
    for (name, kernel) in KERNELS {
        let found = of(&|gram, sums| kernel(gram, sums, x, byte));
        assert!(
            found == wanted,
            "{name}: {n} x {d}, {w} columns, {gap} apart, {byte:?}"
        );
    }
}

fn check_random(n: usize, d: usize, pitch: usize, w: usize, gap: usize) {
    let stored = bytes(n * pitch, (n * d + pitch) as u64);
    let x = view(&stored, n, d, pitch, 1).unwrap();
    check(x, Byte::Unsigned, w, gap);
    check(x, Byte::Signed, w, gap);
}

#[test]
fn every_number_of_columns() {
    for d in 1..=200 {
        check_random(1 + d % 7, d, d, d, 0);
    }
}

#[test]
fn every_number_of_rows() {
    for n in 0..=70 {
        check_random(n, 21, 21, 21, 0);
    }
    for n in [255, 999, 1000, 1023, 1024, 1025, 1030, 2047, 2048, 3000] {
        check_random(n, 19, 24, 19, 3);
    }
}

#[test]
fn the_first_columns_of_the_products() {
    for (d, w) in [
        (1, 0),
        (40, 1),
        (40, 15),
        (40, 16),
        (65, 17),
        (130, 48),
        (130, 49),
        (300, 257),
    ] {
        check_random(13, d, d + 5, w, w % 3);
    }
}

#[test]
fn wide_rows() {
    check_random(9, 1037, 1040, 1037, 0);
    check_random(1027, 530, 530, 70, 1);
}

/// Rows that are one row again and again: exact sums are known, whatever their number.
#[test]
fn extremes_of_more_rows_than_i32_has_room_for() {
    for (byte, extremes) in [
        (Byte::Unsigned, [255, 0]),
        (Byte::Signed, [0x80, 0x7f]),
        (Byte::Signed, [0x80, 0x80]),
        (Byte::Unsigned, [255, 255]),
        (Byte::Unsigned, [1, 255]),
        (Byte::Signed, [0x81, 0x7f]),
    ] {
        let n = 70_001;
        let row: Vec<u8> = (0..53).map(|j| extremes[j % 2]).collect();
        let x = view(&row, n, row.len(), 0, 1).unwrap();
        let d = row.len();
        for (name, kernel) in KERNELS {
            let (mut gram, mut sums) = (vec![0; d * d], vec![0; d]);
            kernel(view_mut(&mut gram, d, d, d, 1).unwrap(), &mut sums, x, byte);
            for i in 0..d {
                let value = |j: usize| byte.value(row[j]);
                assert_eq!(sums[i], n as i64 * value(i), "{name} {byte:?}");
                for j in 0..=i {
                    let wanted = n as i64 * value(i) * value(j);
                    assert_eq!(gram[i * d + j], wanted, "{name} {byte:?} {i} {j}");
                }
            }
        }
    }
}

/// Columns of which each row has other extremes: partial sums of the block are as large as any.
#[test]
fn extremes_in_any_order() {
    let (n, d) = (2050, 33);
    for low in [0u8, 0x80] {
        let stored: Vec<u8> = bytes(n * d, 5)
            .iter()
            .map(|byte| {
                if byte & 1 == 1 {
                    low
                } else {
                    low.wrapping_sub(1)
                }
            })
            .collect();
        let x = view(&stored, n, d, d, 1).unwrap();
        check(x, Byte::Unsigned, d, 0);
        check(x, Byte::Signed, d, 0);
    }
}

#[test]
fn calls_add_up() {
    let (n, d) = (1500, 37);
    let stored = bytes(n * d, 3);
    let x = view(&stored, n, d, d, 1).unwrap();
    for (name, kernel) in KERNELS {
        let [whole, parts] = [vec![n], vec![1, 3, 1030, 0, 466]].map(|parts| {
            let (mut gram, mut sums, mut top) = (vec![0; d * d], vec![0; d], 0);
            for rows in parts {
                let gram = view_mut(&mut gram, d, d, d, 1).unwrap();
                kernel(gram, &mut sums, x.subrows(top, rows), Byte::Signed);
                top += rows;
            }
            (gram, sums)
        });
        assert!(whole == parts, "{name}");
    }
}

#[test]
fn other_shapes_are_refused() {
    let (stored, bytes) = ([0; 60], byte_gram_scratch_bytes(6, 5, 4));
    let refused = |x: MatRef<'_, u8>, (height, width, row, col), sums: usize, bytes: usize| {
        let mut gram = [0; 60];
        let gram = view_mut(&mut gram, height, width, row, col).unwrap();
        let mut sums = vec![0; sums];
        byte_gram(gram, &mut sums, x, Byte::Unsigned, &mut vec![0; bytes]).is_err()
    };
    let x = view(&stored, 6, 5, 5, 1).unwrap();
    assert!(!refused(x, (5, 4, 4, 1), 4, bytes));
    assert!(refused(x, (5, 4, 4, 1), 4, bytes - 1));
    assert!(refused(x, (5, 4, 4, 1), 3, bytes));
    assert!(refused(x, (4, 4, 4, 1), 4, bytes));
    assert!(refused(x, (5, 6, 6, 1), 6, 1 << 20));
    assert!(refused(x, (5, 4, 1, 5), 4, bytes));
    let by_columns = view(&stored, 6, 5, 1, 6).unwrap();
    assert!(refused(by_columns, (5, 4, 4, 1), 4, bytes));
    assert!(!refused(by_columns.subcols(0, 1), (1, 1, 1, 1), 1, bytes));
}

#[test]
fn it_stops_between_blocks_of_rows() {
    let stored = [1; 3 * 5000];
    let x = view(&stored, 5000, 3, 3, 1).unwrap();
    let calls = std::cell::Cell::new(0);
    let stop = || {
        calls.set(calls.get() + 1);
        calls.get() > 2
    };
    let (mut gram, mut sums) = ([0; 9], [0; 3]);
    let mut scratch = vec![0; byte_gram_scratch_bytes(5000, 3, 3)];
    let gram = view_mut(&mut gram, 3, 3, 3, 1).unwrap();
    byte_gram_until(gram, &mut sums, x, Byte::Signed, &mut scratch, &stop).unwrap();
    assert!((1..=2048).contains(&sums[0]), "{}", sums[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_shape(n in 0usize..1000, d in 1usize..80, pitch in 0usize..40, w in 0usize..80, gap in 0usize..5) {
        check_random(n, d, d + pitch, w.min(d), gap);
    }
}
