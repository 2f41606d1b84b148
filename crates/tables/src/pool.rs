//! The rows of bags become rows of the result.

use std::ops::Range;

use half::{bf16, f16};
use outcore_core::{DType, Error, Result};
use outcore_kernels::embedding::{Pooling, RowEncoding, Weights};

/// Where the rows of a feature's result go: memory of the caller, of which a row begins every
/// `pitch_bytes`.
///
/// ```
/// use outcore_core::DType;
/// use outcore_tables::Out;
///
/// let mut sums = [0.0; 6];
/// Out::of_f32(&mut sums, 3, 2)?;
/// // The left halves of two rows of four numbers.
/// Out::new(bytemuck::cast_slice_mut(&mut [0.0f32; 8]), DType::F32, 16, 2, 2)?;
/// assert!(Out::of_f32(&mut sums, 4, 2).is_err());
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub struct Out<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
    pitch_bytes: usize,
    rows: usize,
    dim: usize,
}

impl<'a> Out<'a> {
    /// Memory for rows of `dim` elements of float32, float16 or bfloat16, aligned for them. The last row
    /// may end with the memory.
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Shape`].
    pub fn new(
        bytes: &'a mut [u8],
        dtype: DType,
        pitch_bytes: usize,
        rows: usize,
        dim: usize,
    ) -> Result<Out<'a>> {
        let element = dtype.bytes() as usize;
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::DType {
                what: format!("results are of float32, float16 or bfloat16, not of {dtype}"),
            });
        }
        let needed = match rows {
            0 => 0,
            _ => (rows - 1)
                .saturating_mul(pitch_bytes)
                .saturating_add(dim * element),
        };
        let is_aligned = (bytes.as_ptr() as usize | pitch_bytes).is_multiple_of(element);
        match bytes.len() >= needed && pitch_bytes >= dim * element && is_aligned {
            true => Ok(Out {
                bytes,
                dtype,
                pitch_bytes,
                rows,
                dim,
            }),
            false => Err(Error::shape(format!(
                "{} bytes, a row every {pitch_bytes}, do not hold {rows} rows of {dim} x {dtype}",
                bytes.len()
            ))),
        }
    }

    /// Rows of float32 without gaps between them.
    ///
    /// # Errors
    /// As [`new`](Out::new).
    pub fn of_f32(numbers: &'a mut [f32], rows: usize, dim: usize) -> Result<Out<'a>> {
        Out::new(
            bytemuck::cast_slice_mut(numbers),
            DType::F32,
            4 * dim,
            rows,
            dim,
        )
    }

    /// Whether it is for the rows of a feature.
    ///
    /// # Errors
    /// [`Error::Shape`], naming the table.
    pub(crate) fn check(&self, name: &str, rows: usize, dim: usize) -> Result<()> {
        match (self.rows, self.dim) == (rows, dim) {
            true => Ok(()),
            false => Err(Error::shape(format!(
                "{name}: a result of {} x {} for {rows} bags of {dim} elements",
                self.rows, self.dim
            ))),
        }
    }

    fn row(&mut self, row: usize) -> &mut [u8] {
        &mut self.bytes[row * self.pitch_bytes..][..self.dim * self.dtype.bytes() as usize]
    }

    /// Writes a row, rounded to the nearest number of its type.
    pub(crate) fn put(&mut self, row: usize, numbers: &[f32]) {
        let dtype = self.dtype;
        let into = self.row(row);
        match dtype {
            DType::F16 => {
                for (into, &x) in bytemuck::cast_slice_mut::<u8, u16>(into)
                    .iter_mut()
                    .zip(numbers)
                {
                    *into = f16::from_f32(x).to_bits();
                }
            }
            DType::BF16 => {
                for (into, &x) in bytemuck::cast_slice_mut::<u8, u16>(into)
                    .iter_mut()
                    .zip(numbers)
                {
                    *into = bf16::from_f32(x).to_bits();
                }
            }
            _ => into.copy_from_slice(bytemuck::cast_slice(numbers)),
        }
    }

    /// Rows of float32 without gaps between them, if it has such.
    pub(crate) fn f32_rows(&mut self, rows: Range<usize>) -> Option<&mut [f32]> {
        let is_dense = self.dtype == DType::F32 && self.pitch_bytes == 4 * self.dim;
        is_dense.then(|| {
            let bytes = &mut self.bytes[rows.start * self.pitch_bytes..rows.end * self.pitch_bytes];
            bytemuck::cast_slice_mut(bytes)
        })
    }

    /// Copies a row that is stored as the result is.
    pub(crate) fn copy(&mut self, row: usize, stored: &[u8]) {
        self.row(row).copy_from_slice(stored);
    }

    /// Whether rows of this encoding are copied as they are.
    pub(crate) fn is_stored_as(&self, encoding: RowEncoding) -> bool {
        matches!(
            (encoding, self.dtype),
            (RowEncoding::F32, DType::F32)
                | (RowEncoding::F16, DType::F16)
                | (RowEncoding::BF16, DType::BF16)
        )
    }
}

/// Begins a bag, or goes on with one, in the order of its rows.
pub(crate) fn add(
    mode: Pooling,
    encoding: RowEncoding,
    rows: &[&[u8]],
    weights: Weights<'_>,
    is_first: bool,
    sum: &mut [f32],
) {
    let mut rows = rows;
    if is_first {
        sum.fill(0.0);
        if mode == Pooling::Max
            && let Some((first, others)) = rows.split_first()
        {
            encoding.decode(first, sum);
            rows = others;
        }
    }
    encoding.pool_more(mode, |number| rows[number], rows.len(), weights, sum);
}

/// What is left to do when all rows of a bag of `count` are added.
pub(crate) fn finish(mode: Pooling, count: usize, sum: &mut [f32]) {
    if mode == Pooling::Mean && count > 0 {
        let count = count as f32;
        sum.iter_mut().for_each(|x| *x /= count);
    }
}
