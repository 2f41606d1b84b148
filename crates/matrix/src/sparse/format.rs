//! The description of a sparse matrix, which is a folder of arrays.
//!
//! ```text
//!   x/matrix.json    {"format": "csr", "shape": [3, 4], "nonzeros": 5, "dtype": "float32"}
//!   x/indptr.npy     int64 (or int32), lines + 1: where the entries of each line begin; 0 first, the number of entries last
//!   x/indices.npy    int32 or int64, nonzeros: the column (of "csr") or row (of "csc") of each entry
//!   x/data.npy       float32 or float64, nonzeros: the values; not there where all of them are one
//! ```
//!
//! Importers put beside it, in the same folder:
//!
//! ```text
//!   x/labels.npy        float64, rows: the label of each row
//!   x/queries.npy       int64, rows: the query that each row belongs to
//!   x/labels/           or, of data with many labels a row, a matrix like this one: a row a row, a column a label, all entries one
//!   x/vocabulary.txt    UTF-8, a line a column: its word
//!   x/classes.txt       UTF-8, a line a class: where labels are numbers of these lines, from 0
//! ```
//!
//! The tiled form of the same takes two to six bytes an entry. Minor indices are cut into bands of
//! 65,536, lines into blocks; a tile is the entries of a block in a band, minor indices and lines
//! counted in 16 bits:
//!
//! ```text
//!   x/matrix.json    as above, and "layout": "tiled"
//!   x/tiles.npy      int64, tiles x 7, blocks in order, of each the bands that have entries in order:
//!                    first line | lines of the block | band | offset in tiles.bin | lines with entries | entries | 1 with values, else 0
//!   x/tiles.bin      of each tile, from its offset (a multiple of 64) on:
//!                    lines, u16, from the block's first | entries of each line less one, u16 | minor indices, u16, from the band's first
//!                    | up to 6 bytes, so that values begin at a multiple of 8 | values, float32 or float64, unless all are one
//! ```
//!
//! It is a semi-external matrix format after SEM-SpMM (Zheng et al., TPDS 2017). Every minor index
//! has one entry at most, in order within a line.
//!
//! Lines are rows in "csr" and columns in "csc". `nonzeros` and `dtype` may be missing where the
//! arrays tell them. Entries of a line may come in any order; two of one minor index count as their
//! sum in products.

use outcore_core::format::{corrupt, line_offset, unsupported};
use outcore_core::{DType, FormatError};
use serde::{Deserialize, Serialize};

/// What the lines of a sparse matrix are.
///
/// ```
/// use outcore_matrix::Compressed;
///
/// assert_eq!((Compressed::Rows.name(), Compressed::Rows.turned()), ("csr", Compressed::Columns));
/// assert_eq!(Compressed::Columns.lines_first([2, 3]), [3, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Compressed {
    /// Rows (CSR).
    #[serde(rename = "csr")]
    Rows,
    /// Columns (CSC).
    #[serde(rename = "csc")]
    Columns,
}

impl Compressed {
    /// That of the transpose.
    #[must_use]
    pub fn turned(self) -> Compressed {
        match self {
            Compressed::Rows => Compressed::Columns,
            Compressed::Columns => Compressed::Rows,
        }
    }

    /// (lines, width) of a shape in rows and columns, and back.
    #[must_use]
    pub fn lines_first(self, [rows, cols]: [u64; 2]) -> [u64; 2] {
        match self {
            Compressed::Rows => [rows, cols],
            Compressed::Columns => [cols, rows],
        }
    }

    /// SciPy's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Compressed::Rows => "csr",
            Compressed::Columns => "csc",
        }
    }
}

/// What `matrix.json` says.
///
/// ```
/// use outcore_matrix::sparse::format::parse_description;
///
/// let json = r#"{"format": "csr", "shape": [2, 3], "nonzeros": 3}"#;
/// let description = parse_description("a/matrix.json", json.as_bytes())?;
/// assert_eq!((description.shape, description.nonzeros), ([2, 3], Some(3)));
/// assert_eq!(parse_description("a/matrix.json", description.text().as_bytes())?, description);
/// # Ok::<(), outcore_core::FormatError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// What the lines are.
    pub format: Compressed,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// Entries, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonzeros: Option<u64>,
    /// Type of the values, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// How the entries lie.
    #[serde(default, skip_serializing_if = "Entries::are_arrays")]
    pub layout: Entries,
}

/// How the entries of a sparse matrix lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entries {
    /// In arrays of offsets, indices and values.
    #[default]
    #[serde(rename = "arrays")]
    Arrays,
    /// In tiles.
    #[serde(rename = "tiled")]
    Tiled,
}

impl Entries {
    fn are_arrays(&self) -> bool {
        *self == Entries::Arrays
    }
}

impl Description {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names have no way to fail") + "\n"
    }
}

/// The description in the text of a `matrix.json`.
///
/// # Errors
/// [`FormatError::Corrupt`], [`FormatError::Unsupported`] for sides of 2^63 or more.
pub fn parse_description(object: &str, json: &[u8]) -> Result<Description, FormatError> {
    let found: Description = serde_json::from_slice(json).map_err(|error| {
        let offset = line_offset(json, error.line()) + error.column().saturating_sub(1);
        corrupt(object, offset, error.to_string())
    })?;
    match found
        .shape
        .iter()
        .all(|&side| i64::try_from(side).is_ok_and(|side| side < i64::MAX))
    {
        true => Ok(found),
        false => Err(unsupported(object, format!("a shape of {:?}", found.shape))),
    }
}
