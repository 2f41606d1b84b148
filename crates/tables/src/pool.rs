//! The rows of bags become rows of the result.

use std::ops::Range;

use half::{bf16, f16};
use outcore_core::{DType, Error, Result};
use outcore_kernels::embedding::{Pooling, RowEncoding, Weights};

use crate::look_up::{Bagged, Feature};
use crate::served::Served;

/// Where the rows of a feature's result go, or those of all features of a call side by side: memory of the
/// caller, of which a row begins every `pitch_bytes`.
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
    fn check(&self, name: &str, rows: usize, dim: usize) -> Result<()> {
        match (self.rows, self.dim) == (rows, dim) {
            true => Ok(()),
            false => Err(Error::shape(format!(
                "{name}: a result of {} x {} for {rows} bags of {dim} elements",
                self.rows, self.dim
            ))),
        }
    }

    fn columns(&mut self, columns: Range<usize>) -> Out<'_> {
        let first = columns.start * self.dtype.bytes() as usize;
        Out {
            // Without rows there may be no memory.
            bytes: self.bytes.get_mut(first..).unwrap_or_default(),
            dim: columns.len(),
            ..*self
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

    /// Whether its elements are of float32.
    pub(crate) fn is_f32(&self) -> bool {
        self.dtype == DType::F32
    }

    /// Its rows from this one on, if they are of float32.
    pub(crate) fn f32_rows(&mut self, first: usize) -> impl Iterator<Item = &mut [f32]> {
        let (pitch, row) = (self.pitch_bytes.max(1), 4 * self.dim);
        self.bytes[first * self.pitch_bytes..]
            .chunks_mut(pitch)
            .map(move |bytes| bytemuck::cast_slice_mut(&mut bytes[..row]))
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

/// The results of a call: one for each feature, or one for all of them.
pub(crate) struct Results<'c, 'o> {
    outs: &'c mut [Out<'o>],
    /// Where each feature's columns begin in the only one, and the end.
    columns: Option<Vec<usize>>,
}

impl<'c, 'o> Results<'c, 'o> {
    /// # Errors
    /// [`Error::Shape`] for results that do not fit the features.
    pub(crate) fn new(
        outs: &'c mut [Out<'o>],
        tables: &[Served],
        features: &[Feature<'_>],
        bagged: &[Bagged],
    ) -> Result<Results<'c, 'o>> {
        let table_of = |feature: &Feature<'_>| &tables[feature.table].table;
        let wanted = features.iter().zip(bagged);
        if let [out] = outs
            && features.len() > 1
        {
            let mut columns = vec![0];
            for (feature, bagged) in wanted {
                let (table, first) = (table_of(feature), columns[columns.len() - 1]);
                if bagged.bags() != out.rows {
                    let (name, bags, rows) = (table.name(), bagged.bags(), out.rows);
                    return Err(Error::shape(format!(
                        "{name}: {bags} bags, beside others in a result of {rows} rows"
                    )));
                }
                columns.push(first + table.dim());
            }
            let (dim, elements) = (out.dim, columns[features.len()]);
            if dim != elements {
                return Err(Error::shape(format!(
                    "a result of {dim} columns for features of {elements} elements together"
                )));
            }
            let columns = Some(columns);
            return Ok(Results { outs, columns });
        }
        if outs.len() != features.len() {
            let (features, outs) = (features.len(), outs.len());
            return Err(Error::shape(format!(
                "{outs} results for {features} features"
            )));
        }
        for ((feature, bagged), out) in wanted.zip(outs.iter()) {
            let table = table_of(feature);
            out.check(table.name(), bagged.bags(), table.dim())?;
        }
        Ok(Results {
            outs,
            columns: None,
        })
    }

    pub(crate) fn of(&mut self, feature: usize) -> Out<'_> {
        match &self.columns {
            None => {
                let dim = self.outs[feature].dim;
                self.outs[feature].columns(0..dim)
            }
            Some(columns) => self.outs[0].columns(columns[feature]..columns[feature + 1]),
        }
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
