//! Writes the archives of `scipy.sparse.load_npz`.

use std::io::Write;

use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, ZipWriter};

use super::Layout;
use crate::{Error, Precision, Result};

/// Deflate at this level takes a third of the time of the default 6, and compresses sparse matrices
/// nearly as well.
const LEVEL: i64 = 3;

#[derive(Clone, Copy, PartialEq)]
enum Array {
    Offsets,
    Indices,
    Values,
}

impl Array {
    fn name(self) -> &'static str {
        match self {
            Array::Offsets => "indptr",
            Array::Indices => "indices",
            Array::Values => "data",
        }
    }
}

/// Writes a matrix in compressed rows (CSR) or columns (CSC), one array after the other in any
/// order, each in any number of pieces: [`offsets`](Self::offsets), [`indices`](Self::indices) and
/// [`values`](Self::values). Holds about 300 KiB.
///
/// Indices are int32 if they fit, as in SciPy, else int64; values are float32 or float64 according
/// to `precision`.
pub struct Writer<W: Write> {
    object: String,
    zip: ZipWriter<StreamWriter<W>>,
    lines: u64,
    entries: u64,
    wide: bool,
    precision: Precision,
    current: Option<Array>,
    /// Numbers still missing from the current array.
    left: u64,
    done: Vec<Array>,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// A matrix of `rows` by `columns` with `entries` entries.
    pub fn new(
        object: &str,
        sink: W,
        layout: Layout,
        rows: u64,
        columns: u64,
        entries: u64,
        precision: Precision,
    ) -> Result<Writer<W>> {
        let (lines, format) = match layout {
            Layout::Csr => (rows, "csr"),
            Layout::Csc => (columns, "csc"),
            Layout::Coo => {
                return Err(Error::unsupported(
                    object,
                    "rows or columns in compressed form are written, not coo",
                ));
            }
        };
        let wide = rows.max(columns).max(entries) > i32::MAX as u64;
        let zip = ZipWriter::new_stream(sink);
        let (object, done, buffer) = (object.to_string(), Vec::new(), Vec::new());
        let mut writer = Writer {
            object,
            zip,
            lines,
            entries,
            wide,
            precision,
            current: None,
            left: 0,
            done,
            buffer,
        };
        writer.start("format", "|S3", "()")?;
        writer.write(format.as_bytes())?;
        writer.start("shape", "<i8", "(2,)")?;
        writer.write(&[rows.to_le_bytes(), columns.to_le_bytes()].concat())?;
        Ok(writer)
    }

    /// The next offsets of first entries of rows, and finally the number of entries: rows + 1
    /// numbers in all (columns + 1 for CSC).
    pub fn offsets(&mut self, offsets: &[u64]) -> Result<()> {
        self.array(Array::Offsets, offsets.len())?;
        self.write_indices(offsets)
    }

    /// The next columns (of CSC, rows).
    pub fn indices(&mut self, indices: &[u64]) -> Result<()> {
        self.array(Array::Indices, indices.len())?;
        self.write_indices(indices)
    }

    /// The next values.
    pub fn values(&mut self, values: &[f64]) -> Result<()> {
        if self.precision == Precision::Single
            && let Some(large) = values.iter().find(|&&value| (value as f32).is_infinite())
        {
            return Err(Error::unsupported(
                &self.object,
                format!("the value {large} is too large for float32"),
            ));
        }
        self.array(Array::Values, values.len())?;
        self.buffer.clear();
        match self.precision {
            Precision::Single => self.buffer.extend(
                values
                    .iter()
                    .flat_map(|&value| (value as f32).to_le_bytes()),
            ),
            Precision::Double => self
                .buffer
                .extend(values.iter().flat_map(|value| value.to_le_bytes())),
        }
        self.write_buffer()
    }

    /// Writes the end of the archive, and returns the sink. All numbers must have been written.
    pub fn finish(mut self) -> Result<W> {
        for array in [Array::Offsets, Array::Indices, Array::Values] {
            if !self.done.contains(&array) {
                self.array(array, 0)?;
            }
        }
        self.end_array()?;
        let Writer { object, zip, .. } = self;
        Ok(zip
            .finish()
            .map_err(|error| Error::Io {
                object,
                source: error.into(),
            })?
            .into_inner())
    }

    fn array(&mut self, array: Array, count: usize) -> Result<()> {
        if self.current != Some(array) {
            self.end_array()?;
            if self.done.contains(&array) {
                return Err(Error::unsupported(
                    &self.object,
                    format!(
                        "{} in two parts with another array between them",
                        array.name()
                    ),
                ));
            }
            self.done.push(array);
            self.current = Some(array);
            self.left = if array == Array::Offsets {
                self.lines + 1
            } else {
                self.entries
            };
            let descr = match (array, self.wide, self.precision) {
                (Array::Values, _, Precision::Single) => "<f4",
                (Array::Values, _, Precision::Double) => "<f8",
                (_, true, _) => "<i8",
                (_, false, _) => "<i4",
            };
            self.start(array.name(), descr, &format!("({},)", self.left))?;
        }
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            Error::unsupported(
                &self.object,
                format!(
                    "more numbers for {} than a matrix of {} entries has",
                    array.name(),
                    self.entries
                ),
            )
        })?;
        Ok(())
    }

    fn end_array(&self) -> Result<()> {
        match self.current {
            Some(array) if self.left > 0 => Err(Error::unsupported(
                &self.object,
                format!("{} numbers of {} are missing", self.left, array.name()),
            )),
            _ => Ok(()),
        }
    }

    fn start(&mut self, name: &str, descr: &str, shape: &str) -> Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(LEVEL))
            .large_file(true);
        let started = self.zip.start_file(format!("{name}.npy"), options);
        started.map_err(|error| Error::Io {
            object: self.object.clone(),
            source: error.into(),
        })?;
        let mut header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        // Ten bytes before it and the line end after it: the numbers begin at a multiple of 64.
        header.extend(std::iter::repeat_n(
            ' ',
            (64 - (10 + header.len() + 1) % 64) % 64,
        ));
        header.push('\n');
        self.write(b"\x93NUMPY\x01\x00")?;
        self.write(&(header.len() as u16).to_le_bytes())?;
        self.write(header.as_bytes())
    }

    fn write_indices(&mut self, indices: &[u64]) -> Result<()> {
        self.buffer.clear();
        match self.wide {
            true => self
                .buffer
                .extend(indices.iter().flat_map(|index| index.to_le_bytes())),
            false => self.buffer.extend(
                indices
                    .iter()
                    .flat_map(|&index| (index as u32).to_le_bytes()),
            ),
        }
        self.write_buffer()
    }

    fn write_buffer(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.write(&buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.zip.write_all(bytes).map_err(Error::io(&self.object))
    }
}
