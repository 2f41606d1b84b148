//! Rows on AVX2 and AVX-512: numbers are decoded in registers, and results stay there for all rows
//! of a call.
//!
//! One form for both, over vectors of [`Lanes`]. The columns are walked in tiles of up to eight
//! vectors, each over all rows. A number of columns that is no multiple of a vector ends with a
//! vector that overlaps the one before it: it starts from what was there before, so both find the
//! same results. What is shorter than a vector goes to shorter vectors, then to the plain form.
#![allow(unsafe_code)]

mod vectors;

use super::pool::{Group, Operation};
use super::{RowEncoding, ScaleBias, plain};
use vectors::{Eight, Lanes, Sixteen};

/// A CPU with AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Whether this is one.
    #[inline]
    pub(super) fn new() -> Option<Avx2> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Avx2(()))
    }

    /// As [`Group::run`].
    ///
    /// # Panics
    /// As there.
    pub(super) fn run(self, group: &Group<'_>, out: &mut [f32]) {
        if out.len() < Eight::COUNT {
            return plain::run(group, out);
        }
        let bytes = group.row_bytes(out.len());
        // SAFETY: the CPU has the instructions; the results fill a vector, and rows have
        // `bytes` bytes.
        unsafe { avx2(group, bytes, out) };
    }
}

/// A CPU that has the foundation of AVX-512 besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(Avx2);

impl Avx512 {
    /// Whether this is one.
    #[inline]
    pub(super) fn new() -> Option<Avx512> {
        let has = is_x86_feature_detected!("avx512f");
        Avx2::new().filter(|_| has).map(Avx512)
    }

    /// As [`Group::run`].
    ///
    /// # Panics
    /// As there.
    pub(super) fn run(self, group: &Group<'_>, out: &mut [f32]) {
        if out.len() < Sixteen::COUNT {
            return self.0.run(group, out);
        }
        let bytes = group.row_bytes(out.len());
        // SAFETY: the CPU has the instructions; the results fill a vector, and rows have
        // `bytes` bytes.
        unsafe { avx512(group, bytes, out) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(group: &Group<'_>, bytes: usize, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe { operate::<Eight>(group, bytes, out) };
}

#[target_feature(enable = "avx2,fma,f16c,avx512f")]
unsafe fn avx512(group: &Group<'_>, bytes: usize, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe { operate::<Sixteen>(group, bytes, out) };
}

/// The numbers of one encoding: `row` is at its first byte.
trait Numbers: Copy {
    /// What a row is decoded with.
    unsafe fn scale_bias<L: Lanes>(self, _row: *const u8, _dim: usize) -> (L, L) {
        // SAFETY: the caller's.
        unsafe { (L::splat(1.0), L::splat(0.0)) }
    }

    /// A vector of the numbers from `column` on, which are within the row.
    unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, scale_bias: (L, L)) -> L;
}

macro_rules! floats {
    ($($name:ident $of:ident $bytes:literal),*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl Numbers for $name {
            #[inline(always)]
            unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, _: (L, L)) -> L {
                // SAFETY: the caller's: the numbers are within the row.
                unsafe { L::$of(row.add($bytes * column)) }
            }
        }
    )*};
}
floats!(F32 f32 4, F16 f16 2, Bf16 bf16 2, E4m3 e4m3 1, E5m2 e5m2 1);

/// Codes of which `SHARERS` share a byte.
#[derive(Clone, Copy)]
struct Codes<const SHARERS: usize>(ScaleBias);

impl<const SHARERS: usize> Numbers for Codes<SHARERS> {
    #[inline(always)]
    unsafe fn scale_bias<L: Lanes>(self, row: *const u8, dim: usize) -> (L, L) {
        // SAFETY: the caller's: a row has its scale and bias there.
        unsafe {
            match self.0 {
                ScaleBias::First => L::two_f16(row),
                ScaleBias::Last => L::two_f16(row.add(dim / SHARERS)),
                ScaleBias::LastF32 => L::two_f32(row.add(dim / SHARERS)),
            }
        }
    }

    #[inline(always)]
    unsafe fn at<L: Lanes>(self, row: *const u8, column: usize, (scale, bias): (L, L)) -> L {
        let first = if self.0 == ScaleBias::First { 4 } else { 0 };
        // SAFETY: the caller's: the codes are within the row.
        unsafe {
            let at = row.add(first + column / SHARERS);
            let codes = if SHARERS == 2 { L::u4(at) } else { L::u8(at) };
            codes.times_plus(scale, bias)
        }
    }
}

// Operations as parameters of types: what one does is known where its loop is compiled.
const COPY: u8 = Operation::Copy as u8;
const ADD: u8 = Operation::Add as u8;
const ADD_WEIGHTED: u8 = Operation::AddWeighted as u8;
const ADD_PRODUCT: u8 = Operation::AddProduct as u8;
const MAX: u8 = Operation::Max as u8;

/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn operate<L: Lanes>(group: &Group<'_>, bytes: usize, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        match group.operation {
            Operation::Copy => decode::<L, COPY>(group, bytes, out),
            Operation::Add => decode::<L, ADD>(group, bytes, out),
            Operation::AddWeighted => decode::<L, ADD_WEIGHTED>(group, bytes, out),
            Operation::AddProduct => decode::<L, ADD_PRODUCT>(group, bytes, out),
            Operation::Max => decode::<L, MAX>(group, bytes, out),
        }
    }
}

/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn decode<L: Lanes, const OPERATION: u8>(group: &Group<'_>, bytes: usize, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        match group.encoding {
            RowEncoding::F32 => walk::<L, _, OPERATION>(F32, group, bytes, out),
            RowEncoding::F16 => walk::<L, _, OPERATION>(F16, group, bytes, out),
            RowEncoding::BF16 => walk::<L, _, OPERATION>(Bf16, group, bytes, out),
            RowEncoding::F8E4M3 => walk::<L, _, OPERATION>(E4m3, group, bytes, out),
            RowEncoding::F8E5M2 => walk::<L, _, OPERATION>(E5m2, group, bytes, out),
            RowEncoding::I8(place) => walk::<L, _, OPERATION>(Codes::<1>(place), group, bytes, out),
            RowEncoding::I4(place) => walk::<L, _, OPERATION>(Codes::<2>(place), group, bytes, out),
        }
    }
}

/// # Safety
/// The CPU has the instructions of `L`, `out` fills a vector, and `bytes` are those of a row with
/// as many elements.
#[inline(always)]
unsafe fn walk<L: Lanes, N: Numbers, const OPERATION: u8>(
    numbers: N,
    group: &Group<'_>,
    bytes: usize,
    out: &mut [f32],
) {
    let (dim, last) = (out.len(), out.len() - L::COUNT);
    // SAFETY: the caller's; tiles are within the columns.
    unsafe {
        let before = L::f32(out.as_ptr().add(last).cast());
        let mut column = 0;
        while column + 8 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 8>(numbers, group, bytes, out, column);
            column += 8 * L::COUNT;
        }
        if column + 4 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 4>(numbers, group, bytes, out, column);
            column += 4 * L::COUNT;
        }
        if column + 2 * L::COUNT <= dim {
            tile::<L, N, OPERATION, 2>(numbers, group, bytes, out, column);
            column += 2 * L::COUNT;
        }
        if column + L::COUNT <= dim {
            tile::<L, N, OPERATION, 1>(numbers, group, bytes, out, column);
            column += L::COUNT;
        }
        if column < dim {
            before.store(out.as_mut_ptr().add(last));
            tile::<L, N, OPERATION, 1>(numbers, group, bytes, out, last);
        }
    }
}

/// # Safety
/// As [`walk`], and `out` has `K` vectors from `column` on.
///
/// # Panics
/// A row has another length.
#[inline(always)]
unsafe fn tile<L: Lanes, N: Numbers, const OPERATION: u8, const K: usize>(
    numbers: N,
    group: &Group<'_>,
    bytes: usize,
    out: &mut [f32],
    column: usize,
) {
    let (dim, out) = (out.len(), out[column..].as_mut_ptr());
    // SAFETY: the caller's: the vectors are within `out`, the numbers within every row
    // (asserted).
    unsafe {
        let mut results = [L::splat(0.0); K];
        for (k, result) in results.iter_mut().enumerate() {
            *result = L::f32(out.add(k * L::COUNT).cast());
        }
        for (row, &weight) in group.rows.iter().zip(group.weights) {
            assert!(row.len() == bytes, "rows of {dim} elements");
            let row = row.as_ptr();
            let (scale_bias, weight) = (numbers.scale_bias::<L>(row, dim), L::splat(weight));
            for (k, result) in results.iter_mut().enumerate() {
                let x = numbers.at(row, column + k * L::COUNT, scale_bias);
                *result = match OPERATION {
                    COPY => x,
                    ADD => result.plus(x),
                    ADD_WEIGHTED => x.times_plus(weight, *result),
                    ADD_PRODUCT => result.plus(x.times(weight)),
                    MAX => result.or_greater(x),
                    _ => unreachable!(),
                };
            }
        }
        for (k, result) in results.iter().enumerate() {
            result.store(out.add(k * L::COUNT));
        }
    }
}
