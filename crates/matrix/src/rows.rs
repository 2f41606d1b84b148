//! Rows of a matrix, wherever they are.

use outcore_core::{RealType, Result};

use crate::array::Array;
use crate::operand::Operand;
use crate::sparse::Sparse;

/// Rows to pass over.
///
/// ```
#[doc = include_str!("setup.doctest")]
/// // x = [[1, 2], [3, 4], [5, 6]], a = [[1, 0, 2], [0, 3, 0]]
/// let dense = Rows::from(&x);
/// let sparse = Rows::from(&a);
/// assert_eq!((dense.count(), dense.width(), dense.real()?), (3, 2, RealType::F32));
/// assert_eq!((sparse.count(), sparse.width(), sparse.stored_bytes()), (2, 3, 0));
/// assert!(sparse.check_rows_together().is_ok());
/// println!("{}: {} bytes", dense.name(), dense.stored_bytes());
/// # Ok::<(), outcore_core::Error>(())
/// ```
pub enum Rows {
    /// Lines of a sparse matrix: its rows in CSR, its columns in CSC.
    Sparse(Sparse),
    /// On SSD or in memory.
    Dense(Operand),
}

impl Rows {
    /// Rows; lines, of a sparse matrix.
    pub fn count(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.lines(),
            Rows::Dense(x) => x.rows(),
        }
    }

    /// Elements of a row, zeros among them.
    pub fn width(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.width(),
            Rows::Dense(x) => x.cols(),
        }
    }

    /// The type that operations compute in with its elements.
    ///
    /// # Errors
    /// As of [`Array::real`].
    pub fn real(&self) -> Result<RealType> {
        match self {
            Rows::Sparse(a) => Ok(a.real()),
            Rows::Dense(x) => x.real(),
        }
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        match self {
            Rows::Sparse(a) => a.name(),
            Rows::Dense(x) => x.name(),
        }
    }

    /// Refuses a matrix that is compressed by columns.
    pub fn check_rows_together(&self) -> Result<()> {
        match self {
            Rows::Sparse(a) => a.check_rows_together(),
            Rows::Dense(_) => Ok(()),
        }
    }

    /// Bytes of it on SSD.
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Rows::Sparse(a) => a.stored_bytes(),
            Rows::Dense(x) => x.stored_bytes(),
        }
    }
}

impl From<Operand> for Rows {
    fn from(x: Operand) -> Rows {
        Rows::Dense(x)
    }
}

impl From<Array> for Rows {
    fn from(x: Array) -> Rows {
        Rows::Dense(x.into())
    }
}

impl From<&Array> for Rows {
    fn from(x: &Array) -> Rows {
        Rows::Dense(x.into())
    }
}

impl From<&Sparse> for Rows {
    fn from(a: &Sparse) -> Rows {
        Rows::Sparse(a.clone())
    }
}

impl From<Sparse> for Rows {
    fn from(a: Sparse) -> Rows {
        Rows::Sparse(a)
    }
}
