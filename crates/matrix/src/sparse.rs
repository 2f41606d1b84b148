//! Sparse matrices on SSD, and views of them.
//!
//! A sparse matrix is compressed along its lines: rows (CSR) or columns (CSC). Its transpose is the
//! same lines under the other name, so a view costs nothing. Work on it goes in pieces: some lines
//! with all their entries, or, where a line alone is too long, a part of it. Where pieces may begin
//! is found in one look at the offsets, when the matrix is opened.

mod compress;
mod create;
pub mod format;
mod integers;
pub mod names;
mod opening;
mod pieces;
mod read;
mod spread;
mod take;
mod tiles;
mod vector;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outcore_core::{DType, Error, FormatError, RealType, Result, Session};

pub use format::Compressed;

pub use crate::{with_csr, with_lines};
pub use compress::{compress, compress_within};
pub use create::{NewArrays, NewSparse, SparseShape};
pub use integers::Integers;
use pieces::Cut;
pub use pieces::{Piece, PieceBlocks, each_piece, whole_lines};
pub use read::{SparseBufs, in_lines};
pub use take::SparseRows;
use tiles::Tiled;
use vector::{BackedVector, Backing};

/// Whether what goes on is to end early; asked some times a second.
type Stop<'a> = &'a dyn Fn() -> bool;

/// A sparse matrix on SSD or in memory, or a view of one: its transpose, or some of its lines.
/// Clones share the files.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // a = [[1, 0, 2], [0, 3, 0]]
/// assert_eq!((a.shape(), a.rows(), a.cols(), a.nonzeros()), ([2, 3], 2, 3, 3));
/// assert_eq!((a.dtype(), a.real(), a.index_element()), (DType::F32, RealType::F32, DType::I32));
/// assert_eq!((a.format(), a.lines(), a.width()), (Compressed::Rows, 2, 3));
/// assert!(a.has_values() && !a.is_tiled() && !a.is_stored());
/// println!("{}: {} bytes, {} of them on SSD", a.name(), a.nbytes(), a.stored_bytes());
/// assert_eq!((a.path(), a.session().memory_bytes()), (None, 16 << 20));
/// assert!(a.check_rows_together().is_ok() && a.t().check_rows_together().is_err());
/// assert_eq!(a.with_whole_budget().session().memory_bytes(), 16 << 20);
/// # Ok::<(), outcore_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Sparse {
    session: Session,
    parts: Arc<Parts>,
    lines: Range<u64>,
    /// Of `lines`.
    entries: Range<u64>,
    format: Compressed,
}

/// What a matrix is made of.
struct Parts {
    name: String,
    path: Option<PathBuf>,
    lines: u64,
    width: u64,
    entries: u64,
    real: RealType,
    form: Form,
    cuts: Vec<Cut>,
}

/// How entries lie.
enum Form {
    Arrays {
        offsets: BackedVector,
        indices: BackedVector,
        /// `None` where all are one.
        values: Option<BackedVector>,
    },
    Tiled(Tiled),
}

impl Sparse {
    /// The same matrix for calls that may have all of its session's budget, where a
    /// [part](Session::part) of it made the matrix.
    #[must_use]
    pub fn with_whole_budget(self) -> Sparse {
        let session = self.session.whole();
        Sparse { session, ..self }
    }

    /// The session that it belongs to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Rows and columns.
    pub fn shape(&self) -> [u64; 2] {
        self.format
            .lines_first([self.lines.end - self.lines.start, self.parts.width])
    }

    /// Rows.
    pub fn rows(&self) -> u64 {
        self.shape()[0]
    }

    /// Columns.
    pub fn cols(&self) -> u64 {
        self.shape()[1]
    }

    /// Entries that are stored.
    pub fn nonzeros(&self) -> u64 {
        self.entries.end - self.entries.start
    }

    /// Type of the values.
    pub fn dtype(&self) -> DType {
        self.real().into()
    }

    /// The type that operations compute in with its values: their own.
    pub fn real(&self) -> RealType {
        self.parts.real
    }

    /// Type of the column (or row) numbers; of tiles, that of arrays with the same numbers.
    pub fn index_element(&self) -> DType {
        match &self.parts.form {
            Form::Arrays { indices, .. } => indices.vector.element,
            Form::Tiled(_) => SparseShape::index_for(self.parts.width),
        }
    }

    /// Whether values are stored; else all entries are one.
    pub fn has_values(&self) -> bool {
        match &self.parts.form {
            Form::Arrays { values, .. } => values.is_some(),
            Form::Tiled(tiled) => tiled.has_values(),
        }
    }

    /// Whether entries lie in tiles.
    pub fn is_tiled(&self) -> bool {
        matches!(self.parts.form, Form::Tiled(_))
    }

    /// Whether the lines are rows or columns.
    pub fn format(&self) -> Compressed {
        self.format
    }

    /// Bytes of offsets, indices and values, or of tiles.
    pub fn nbytes(&self) -> u64 {
        match &self.parts.form {
            Form::Tiled(tiled) => tiled.bytes_of(&self.lines),
            Form::Arrays {
                offsets,
                indices,
                values,
            } => {
                let bytes = |part: &BackedVector| part.vector.element.bytes();
                let entry = bytes(indices) + values.as_ref().map_or(0, bytes);
                (self.lines.end - self.lines.start + 1) * bytes(offsets) + self.nonzeros() * entry
            }
        }
    }

    /// Its folder; `None` for an unnamed result and for one in memory.
    pub fn path(&self) -> Option<&Path> {
        self.parts.path.as_deref()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The transpose, a view.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// assert_eq!((a.t().shape(), a.t().format()), ([3, 2], Compressed::Columns));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Sparse {
        Sparse {
            format: self.format.turned(),
            ..self.clone()
        }
    }

    /// The same places with ones, a view whose values are not read; nothing of tiles.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let ones = a.pattern().expect("it lies in arrays");
    /// assert_eq!(bytemuck::cast_slice::<u8, f32>(&ones.read()?.run()?.values), [1.0; 3]);
    /// assert!(!ones.has_values() && ones.nbytes() < a.nbytes());
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    pub fn pattern(&self) -> Option<Sparse> {
        let Parts {
            name, path, cuts, ..
        } = &*self.parts;
        let Form::Arrays {
            offsets, indices, ..
        } = &self.parts.form
        else {
            return None;
        };
        let form = Form::Arrays {
            offsets: offsets.clone(),
            indices: indices.clone(),
            values: None,
        };
        let (name, path, cuts) = (name.clone(), path.clone(), cuts.clone());
        let parts = Parts {
            name,
            path,
            cuts,
            form,
            ..*self.parts
        };
        Some(Sparse {
            parts: Arc::new(parts),
            ..self.clone()
        })
    }

    /// Some rows, of a matrix whose lines are rows, as a view. Reads two offsets.
    ///
    /// ```
    #[doc = include_str!("setup.doctest")]
    /// // a = [[1, 0, 2], [0, 3, 0]]
    /// let last = a.slice(1..2)?;
    /// assert_eq!((last.shape(), last.nonzeros()), ([1, 3], 1));
    /// # Ok::<(), outcore_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] when they are not all there; [`Error::Value`] where the lines are columns.
    pub fn slice(&self, rows: Range<u64>) -> Result<Sparse> {
        self.check_rows_together()?;
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(Error::shape(format!(
                "rows {rows:?} are not all in {}, which has {}",
                self.name(),
                self.rows()
            )));
        }
        let lines = self.lines.start + rows.start..self.lines.start + rows.end;
        let at = |line| pieces::offset_of(&self.session, &self.parts, line);
        let entries = at(lines.start)?..at(lines.end)?;
        if entries.start > entries.end || entries.end > self.parts.entries {
            let (object, reason) = (
                self.name().to_owned(),
                format!("entries of lines {lines:?} are {entries:?}"),
            );
            return Err(FormatError::Corrupt {
                object,
                offset: 0,
                reason,
            }
            .into());
        }
        Ok(Sparse {
            lines,
            entries,
            ..self.clone()
        })
    }

    /// Refuses a matrix that is compressed by columns.
    pub fn check_rows_together(&self) -> Result<()> {
        match self.format {
            Compressed::Rows => Ok(()),
            Compressed::Columns => {
                let what = "is compressed by columns: its rows do not lie together; csrcsc makes a matrix whose rows do";
                Err(Error::value(format!("{} {what}", self.name())))
            }
        }
    }

    /// Lines, whatever they are.
    pub fn lines(&self) -> u64 {
        self.lines.end - self.lines.start
    }

    /// Minor indices in a line.
    pub fn width(&self) -> u64 {
        self.parts.width
    }

    /// Whether it is read from a device.
    pub fn is_stored(&self) -> bool {
        !matches!(&self.parts.form, Form::Arrays { indices, .. } if matches!(indices.backing, Backing::Memory(_)))
    }

    /// Bytes that a pass over it reads.
    pub fn stored_bytes(&self) -> u64 {
        if self.is_stored() { self.nbytes() } else { 0 }
    }
}

impl fmt::Debug for Sparse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape();
        write!(
            out,
            "Sparse({}: {} {rows} x {cols}, {} entries)",
            self.name(),
            self.format.name(),
            self.nonzeros()
        )
    }
}
