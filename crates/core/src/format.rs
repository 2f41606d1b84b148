//! Dense matrices in files: how the bytes of a `.npy` or raw file make a matrix, and the headers of
//! new ones.
//!
//! Pure: bytes in, a description out, no I/O. Foreign bytes never panic; each error names the
//! object and the reason. A raw file has no header: it is described by its opener, or by a small
//! JSON file beside it, `x.bin.json` for `x.bin`:
//!
//! ```text
//!   {"dtype": "float32", "shape": [3, 4], "order": "row", "offset": 0, "leading_dimension": 4}
//! ```
//!
//! of which the last three may be missing: rows without gaps from the first byte on. A sparse
//! matrix is a folder; see `sparse`.

mod dtype;
pub mod gguf;
mod npy;
pub mod safetensors;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use dtype::DType;
pub use npy::{
    HEAD_BYTES, Vector, is_npy, npy, npy_head_bytes, parse_npy, parse_npy_array, parse_npy_vector,
};

/// Why a file is no matrix for us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes do not follow the format.
    #[error("{object}: corrupt at byte {offset}: {reason}")]
    Corrupt {
        /// The file.
        object: String,
        /// Where in the file.
        offset: u64,
        /// What was expected there.
        reason: String,
    },
    /// The file is sound, but not a dense matrix of a kind that we compute with.
    #[error("{object}: not supported: {reason}")]
    Unsupported {
        /// The file.
        object: String,
        /// Which property.
        reason: String,
    },
    /// The file is shorter than its header says.
    #[error("{object}: truncated: {expected} bytes are needed, the file has {actual}")]
    Truncated {
        /// The file.
        object: String,
        /// Bytes from the file's start to the end of the last element.
        expected: u64,
        /// Bytes in the file.
        actual: u64,
    },
}

/// Which elements lie next to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// Those of a row.
    #[default]
    #[serde(rename = "row", alias = "C")]
    Row,
    /// Those of a column.
    #[serde(rename = "column", alias = "F")]
    Column,
}

/// Where in a file the elements of a matrix are. Made by this module only, so that no sum of its
/// numbers overflows. An array of more dimensions is the matrix of its first against all others.
///
/// ```
/// use outcore_core::format::{self, DType, Order, sidecar_path};
///
/// let dense = format::raw("x.bin", DType::F32, &[3, 4], Order::Row, 16, Some(5))?;
/// assert_eq!((dense.element_bytes(), dense.file_bytes()), (48, 16 + 4 * (5 + 5 + 4)));
/// assert!(dense.shift() == 0 && !dense.is_compact());
/// dense.check_len("x.bin", 100)?;
/// assert_eq!(sidecar_path("x.bin".as_ref()).to_str(), Some("x.bin.json"));
/// let text = format::sidecar(&dense);
/// assert_eq!(format::parse_sidecar("x.bin", text.as_bytes(), 100)?, dense);
/// # Ok::<(), format::FormatError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dense {
    /// The type of the elements.
    pub dtype: DType,
    /// Rows; of a vector, its elements.
    pub rows: u64,
    /// Columns; of a vector, 1.
    pub cols: u64,
    /// One number for a vector, two for a matrix.
    pub shape: Vec<u64>,
    /// Which elements lie next to each other; rows, for a vector without gaps of its own.
    pub order: Order,
    /// Bytes before the first element.
    pub data_offset: u64,
    /// Elements from the start of one row (`Order::Row`) or column (`Order::Column`) to the next;
    /// no less than it has.
    pub leading_dimension: u64,
}

impl Dense {
    /// Bytes of the elements alone.
    #[must_use]
    pub fn element_bytes(&self) -> u64 {
        self.rows * self.cols * self.dtype.bytes()
    }

    /// Bytes from the file's start to the end of the last element.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let (lines, line) = self.lines();
        match lines == 0 || line == 0 {
            true => self.data_offset,
            false => {
                let elements = (lines - 1) * self.leading_dimension + line;
                self.data_offset + elements * self.dtype.bytes()
            }
        }
    }

    /// Bytes that are to be left out at the file's beginning so that every element begins at a
    /// multiple of its size: 0 nearly always.
    #[must_use]
    pub fn shift(&self) -> u64 {
        self.data_offset % self.dtype.bytes()
    }

    /// Whether the elements follow each other without gaps.
    #[must_use]
    pub fn is_compact(&self) -> bool {
        let (lines, line) = self.lines();
        lines <= 1 || self.leading_dimension == line
    }

    /// Whether a file of `file_len` bytes holds all elements. A longer one is fine.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn check_len(&self, object: &str, file_len: u64) -> Result<(), FormatError> {
        match file_len < self.file_bytes() {
            true => Err(FormatError::Truncated {
                object: object.to_owned(),
                expected: self.file_bytes(),
                actual: file_len,
            }),
            false => Ok(()),
        }
    }

    /// How many rows or columns follow each other in the file, and the elements of one.
    fn lines(&self) -> (u64, u64) {
        match self.order {
            Order::Row => (self.rows, self.cols),
            Order::Column => (self.cols, self.rows),
        }
    }

    /// The one place where a description is made, and so where its numbers are checked. The reason
    /// is the error.
    fn checked(
        dtype: DType,
        shape: &[u64],
        order: Order,
        data_offset: u64,
        leading_dimension: Option<u64>,
    ) -> Result<Dense, String> {
        let too_large = || format!("a shape of {shape:?} is larger than any file");
        let Some((&rows, row)) = shape.split_first() else {
            return Err("0 dimensions, where 1 or more are possible".to_owned());
        };
        if row.len() > 1 && order == Order::Column {
            return Err(format!(
                "{} dimensions by columns (fortran_order), where those by rows are possible; numpy.ascontiguousarray makes them so",
                shape.len()
            ));
        }
        let product = row
            .iter()
            .try_fold(1, |product: u64, n| product.checked_mul(*n));
        let cols = match row.contains(&0) {
            true => 0,
            false => product.ok_or_else(too_large)?,
        };
        let mut dense = Dense {
            dtype,
            rows,
            cols,
            shape: shape.to_vec(),
            // A vector is one run of elements either way; as rows of one element it may have a
            // leading dimension.
            order: if row.is_empty() { Order::Row } else { order },
            data_offset,
            leading_dimension: 0,
        };
        let line = dense.lines().1;
        dense.leading_dimension = leading_dimension.unwrap_or(line);
        if dense.leading_dimension < line {
            let given = dense.leading_dimension;
            return Err(format!(
                "a leading dimension of {given} is less than {line}"
            ));
        }
        match dense.fits_a_file() {
            true => Ok(dense),
            false => Err(too_large()),
        }
    }

    /// Whether all sizes stay below the longest file of any file system, 2^63 - 1 bytes, also with
    /// every gap.
    fn fits_a_file(&self) -> bool {
        let (lines, line) = self.lines();
        let bytes = |elements: Option<u64>| {
            elements?
                .checked_mul(self.dtype.bytes())?
                .checked_add(self.data_offset)
        };
        let spanned = bytes(lines.checked_mul(self.leading_dimension.max(1)));
        let held = bytes(lines.checked_mul(line));
        let fits = |bytes: Option<u64>| bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok());
        // An empty matrix may have one dimension of any length that a number can have.
        fits(spanned) && fits(held) && fits(bytes(Some(line)))
    }
}

/// What a raw file's JSON sidecar says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sidecar {
    dtype: DType,
    shape: Vec<u64>,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leading_dimension: Option<u64>,
}

/// Where the description of a raw file lies: beside it, its name followed by `.json`.
#[must_use]
pub fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

/// A raw file, described: `offset` bytes before the first element, any number of them, and
/// `leading_dimension` elements from one row or column to the next, without gaps if `None`.
///
/// # Errors
/// [`FormatError::Unsupported`] for a description that contradicts itself, or is no vector or
/// matrix.
pub fn raw(
    object: &str,
    dtype: DType,
    shape: &[u64],
    order: Order,
    offset: u64,
    leading_dimension: Option<u64>,
) -> Result<Dense, FormatError> {
    Dense::checked(dtype, shape, order, offset, leading_dimension)
        .map_err(|reason| unsupported(object, reason))
}

/// The description of the raw file `object` from the text of its sidecar, and the raw file's
/// length.
///
/// # Errors
/// [`FormatError::Corrupt`] for what is not such a description, else as [`raw`] and
/// [`Dense::check_len`].
pub fn parse_sidecar(object: &str, json: &[u8], file_len: u64) -> Result<Dense, FormatError> {
    let sidecar: Sidecar = serde_json::from_slice(json).map_err(|error| {
        let offset = line_offset(json, error.line()) + error.column().saturating_sub(1);
        corrupt(&format!("{object}.json"), offset, error.to_string())
    })?;
    let dense = raw(
        object,
        sidecar.dtype,
        &sidecar.shape,
        sidecar.order,
        sidecar.offset,
        sidecar.leading_dimension,
    )?;
    dense.check_len(object, file_len)?;
    Ok(dense)
}

/// The text of a raw file's sidecar.
#[must_use]
pub fn sidecar(dense: &Dense) -> String {
    let sidecar = Sidecar {
        dtype: dense.dtype,
        shape: dense.shape.clone(),
        order: dense.order,
        offset: dense.data_offset,
        leading_dimension: Some(dense.leading_dimension),
    };
    serde_json::to_string(&sidecar).expect("numbers and names have no way to fail") + "\n"
}

/// A file whose bytes do not follow the format.
///
/// ```
/// use outcore_core::format::{corrupt, line_offset, unsupported};
///
/// let text = b"rows 3\ncols x\n";
/// let error = corrupt("x.json", line_offset(text, 2), "not a number".into());
/// assert_eq!(error.to_string(), "x.json: corrupt at byte 7: not a number");
/// println!("{}", unsupported("x.json", "5 dimensions".into()));
/// ```
pub fn corrupt(object: &str, offset: usize, reason: String) -> FormatError {
    FormatError::Corrupt {
        object: object.to_owned(),
        offset: offset as u64,
        reason,
    }
}

/// A sound file of a kind that is not used.
pub fn unsupported(object: &str, reason: String) -> FormatError {
    FormatError::Unsupported {
        object: object.to_owned(),
        reason,
    }
}

/// Bytes before a line of a text; lines count from 1.
pub fn line_offset(text: &[u8], line: usize) -> usize {
    let lines = text.split_inclusive(|c| *c == b'\n');
    lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum()
}

#[cfg(test)]
mod tests;
