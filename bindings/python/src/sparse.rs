//! Sparse matrices, and their products.

use std::path::{Path, PathBuf};

use numpy::{PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use outcore::linalg::{self, Csrmm, Scaling, SparseStatistics};
use outcore::pass::Rows;
use outcore::{Compressed, Error, RealType, Sparse, SparseBufs};
use pyo3::prelude::*;

use crate::adopted::{destination, element_type, integers, real_type, source, values_of};
use crate::error::to_python;
use crate::job::{Job, carry_out, nothing, numbers};
use crate::linalg::{norm_of, statistics};
use crate::matrix::{self, operand, output};
use crate::names::real_of;
use crate::owned::Owned;
use crate::ranks::Team;
use crate::session::Session;

/// A sparse matrix on SSD or in memory, or a view of one.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct SparseMatrix(Owned<outcore::Sparse>);

impl SparseMatrix {
    pub(crate) fn new(sparse: outcore::Sparse) -> SparseMatrix {
        // What outlasts the call that made it belongs to the whole session.
        SparseMatrix(Owned::new(sparse.with_whole_budget()))
    }

    pub(crate) fn get(&self) -> PyResult<&outcore::Sparse> {
        self.0.get()
    }
}

#[pymethods]
impl SparseMatrix {
    #[getter]
    fn shape(&self) -> PyResult<(u64, u64)> {
        Ok(self.get()?.shape().into())
    }

    #[getter]
    fn dtype(&self) -> PyResult<String> {
        Ok(self.get()?.dtype().to_string())
    }

    #[getter]
    fn index_dtype(&self) -> PyResult<String> {
        Ok(self.get()?.index_element().to_string())
    }

    /// `"csr"` or `"csc"`.
    #[getter]
    fn format(&self) -> PyResult<&'static str> {
        Ok(self.get()?.format().name())
    }

    /// Whether entries are in tiles.
    #[getter]
    fn is_tiled(&self) -> PyResult<bool> {
        Ok(self.get()?.is_tiled())
    }

    /// Whether values are stored; else all entries are one.
    #[getter]
    fn has_values(&self) -> PyResult<bool> {
        Ok(self.get()?.has_values())
    }

    #[getter]
    fn nonzeros(&self) -> PyResult<u64> {
        Ok(self.get()?.nonzeros())
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.get()?.nbytes())
    }

    #[getter]
    fn path(&self) -> PyResult<Option<&Path>> {
        Ok(self.get()?.path())
    }

    /// The transpose, a view.
    fn t(&self) -> PyResult<SparseMatrix> {
        Ok(SparseMatrix::new(self.get()?.t()))
    }

    /// A range of rows of a matrix in CSR, a view.
    fn slice(&self, py: Python<'_>, rows: (u64, u64)) -> PyResult<SparseMatrix> {
        let sparse = self.get()?;
        py.detach(|| sparse.slice(rows.0..rows.1))
            .map(SparseMatrix::new)
            .map_err(to_python)
    }

    /// Looks up rows of a matrix in CSR, in arrays, by their numbers.
    fn pick_rows(&self, rows: PyReadonlyArray1<'_, u64>) -> PyResult<SparseRows> {
        let (sparse, numbers) = (self.get()?.clone(), rows.as_slice()?.to_vec());
        let session = sparse.session().clone();
        let pick = move |stop: &dyn Fn() -> bool| sparse.pick_rows(&numbers, stop);
        carry_out(rows.py(), &session, pick).map(|found| SparseRows(Owned::new(found)))
    }

    /// Reads the whole matrix into three fresh arrays: offsets (int64), indices and values of its
    /// types.
    fn read_into(
        &self,
        py: Python<'_>,
        offsets: &Bound<'_, PyUntypedArray>,
        indices: &Bound<'_, PyUntypedArray>,
        values: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Job> {
        let sparse = self.get()?;
        let into = SparseBufs {
            offsets: integers(offsets)?.1,
            indices: integers(indices)?.1,
            values: destination(values)?,
        };
        Job::plan(py, || sparse.read_into(into), nothing)
    }
}

/// Rows of a sparse matrix that have been looked up.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct SparseRows(Owned<outcore::SparseRows>);

#[pymethods]
impl SparseRows {
    #[getter]
    fn nonzeros(&self) -> PyResult<u64> {
        Ok(self.0.get()?.nonzeros())
    }

    /// Reads them into three fresh arrays, as `SparseMatrix.read_into` does.
    fn read_into(
        &self,
        py: Python<'_>,
        offsets: &Bound<'_, PyUntypedArray>,
        indices: &Bound<'_, PyUntypedArray>,
        values: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let rows = self.0.get()?.clone();
        let into = SparseBufs {
            offsets: integers(offsets)?.1,
            indices: integers(indices)?.1,
            values: destination(values)?,
        };
        let session = rows.session().clone();
        carry_out(py, &session, move |stop| {
            rows.read_into(into, stop).map(drop)
        })
    }

    /// A new matrix of them; `out` is a path or None.
    fn take(&self, py: Python<'_>, session: &Session, out: Option<PathBuf>) -> PyResult<Job> {
        let (rows, session) = (self.0.get()?, session.get()?);
        Job::plan(py, || rows.take(session, out), made)
    }
}

/// Bytes of offsets that are looked at in some 50 ms, where a thread would cost more than it saves.
const FEW_OFFSETS_BYTES: usize = 64 << 20;

/// Opens a sparse matrix, a folder.
#[pyfunction]
pub(crate) fn open_sparse(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
) -> PyResult<SparseMatrix> {
    let within = session.get()?.clone();
    let open = move |stop: &dyn Fn() -> bool| Sparse::open_until(&within, &path, stop);
    carry_out(py, session.get()?, open).map(SparseMatrix::new)
}

/// A SciPy matrix in memory; without values if all are one.
#[pyfunction]
pub(crate) fn sparse_in_memory(
    py: Python<'_>,
    session: &Session,
    compressed: &str,
    shape: (u64, u64),
    offsets: &Bound<'_, PyUntypedArray>,
    indices: &Bound<'_, PyUntypedArray>,
    values: Option<&Bound<'_, PyUntypedArray>>,
) -> PyResult<SparseMatrix> {
    let session = session.get()?;
    let format = lines_of(compressed)?;
    let part = |array| integers(array).map(|(element, buf)| (element, buf.freeze()));
    let values = values
        .map(|array| Ok::<_, PyErr>((real_type(array)?, source(array)?)))
        .transpose()?;
    let (offsets, indices) = (part(offsets)?, part(indices)?);
    let (own, is_short) = (session.clone(), offsets.1.len() <= FEW_OFFSETS_BYTES);
    let made = move |_: &dyn Fn() -> bool| {
        outcore::Sparse::in_memory(&own, format, shape.into(), offsets, indices, values)
    };
    let found = match is_short {
        true => py.detach(|| made(&|| false)).map_err(to_python),
        false => carry_out(py, session, made),
    };
    found.map(SparseMatrix::new)
}

fn lines_of(name: &str) -> PyResult<Compressed> {
    match name {
        "csr" => Ok(Compressed::Rows),
        "csc" => Ok(Compressed::Columns),
        _ => Err(to_python(Error::Value {
            what: format!("format must be 'csr' or 'csc', not {name:?}"),
        })),
    }
}

/// C = alpha A B + beta C; `out` is a path, a matrix, a fresh array, or None.
#[pyfunction]
pub(crate) fn csrmm(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    b: &Bound<'_, PyAny>,
    alpha: f64,
    beta: f64,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, a, b) = (session.get()?, a.get()?, operand(b)?);
    if let Some(array) = out
        .as_ref()
        .and_then(|out| out.cast::<PyUntypedArray>().ok())
    {
        let found = element_type(array)?;
        if array.len() as u64 != a.rows() * b.cols() || found != a.dtype() {
            let what = format!(
                "csrmm: the result is {} x {} {}",
                a.rows(),
                b.cols(),
                a.dtype()
            );
            return Err(to_python(Error::Shape { what }));
        }
        let into = destination(array)?;
        return Job::plan(
            py,
            || linalg::csrmm_into(session, a, b, alpha, into),
            nothing,
        );
    }
    let out = output(out)?;
    Job::plan(
        py,
        || linalg::csrmm(session, a, b, Csrmm { alpha, beta, out }),
        matrix::made,
    )
}

/// Y = A^T (A X).
#[pyfunction]
pub(crate) fn gram_product(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    x: &Bound<'_, PyAny>,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, a, x, out) = (session.get()?, a.get()?, operand(x)?, output(out)?);
    Job::plan(
        py,
        || linalg::gram_product(session, a, x, out),
        matrix::made,
    )
}

/// A copy with scaled values; `out` is a path or None.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the steps of a scaling")]
pub(crate) fn sparse_scaled(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    out: Option<PathBuf>,
    dtype: Option<&str>,
    rows: Option<&Bound<'_, PyUntypedArray>>,
    cols: Option<&Bound<'_, PyUntypedArray>>,
    logarithm: bool,
    unit_rows: bool,
) -> PyResult<Job> {
    let (session, a) = (session.get()?, a.get()?);
    let real: Option<RealType> = dtype.map(real_of).transpose()?;
    let (rows, cols) = (
        rows.map(values_of).transpose()?,
        cols.map(values_of).transpose()?,
    );
    let scaling = Scaling {
        logarithm,
        rows,
        cols,
        unit_rows,
        dtype: real,
    };
    Job::plan(py, || linalg::scaled(session, a, scaling, out), made)
}

/// The matrix in the other format; `out` is a path or None.
#[pyfunction]
pub(crate) fn csrcsc(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    out: Option<PathBuf>,
) -> PyResult<Job> {
    let (session, a) = (session.get()?, a.get()?);
    Job::plan(py, || linalg::csrcsc(session, a, out), made)
}

/// The norm of each row.
#[pyfunction]
pub(crate) fn sparse_row_norms(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    norm: &str,
) -> PyResult<Job> {
    let (session, a, norm) = (session.get()?, a.get()?, norm_of(norm)?);
    Job::plan(py, || linalg::sparse_row_norms(session, a, norm), numbers)
}

/// Statistics of columns, and the number of entries in each.
#[pyfunction]
pub(crate) fn sparse_column_statistics(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    team: Option<Bound<'_, Team>>,
) -> PyResult<Job> {
    let (session, a) = (session.get()?, a.get()?);
    let Some(team) = team else {
        let plan = || linalg::sparse_column_statistics(session, a);
        return Job::plan(py, plan, sparse_statistics);
    };
    let (session, a) = (session.clone(), a.clone());
    let plan = move |team: &_| linalg::sparse_column_statistics_over(&session, &a, team);
    team.get().plan(py, plan, sparse_statistics)
}

/// Converts a sparse matrix for Python.
pub(crate) fn made(py: Python<'_>, sparse: outcore::Sparse) -> PyResult<Py<PyAny>> {
    Ok(SparseMatrix::new(sparse)
        .into_pyobject(py)?
        .into_any()
        .unbind())
}

fn sparse_statistics(py: Python<'_>, found: SparseStatistics) -> PyResult<Py<PyAny>> {
    let columns = statistics(py, found.columns)?;
    columns
        .bind(py)
        .set_item("nonzeros", numpy::PyArray1::from_vec(py, found.nonzeros))?;
    Ok(columns)
}

/// Rows of a dense or sparse matrix.
pub(crate) fn rows(x: &Bound<'_, PyAny>) -> PyResult<Rows> {
    match x.cast::<SparseMatrix>() {
        Ok(x) => Ok(Rows::Sparse(x.get().get()?.clone())),
        Err(_) => Ok(Rows::Dense(operand(x)?)),
    }
}

/// Y = X R, for a sparse R in memory.
#[pyfunction]
pub(crate) fn project(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    r: &SparseMatrix,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, x, r, out) = (session.get()?, rows(x)?, r.get()?, output(out)?);
    Job::plan(py, || linalg::project(session, x, r, out), matrix::made)
}

/// The matrix in tiles, or None if they would not be smaller; `out` is a path or None.
#[pyfunction]
pub(crate) fn sparse_tiled(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    out: Option<PathBuf>,
) -> PyResult<Job> {
    let (session, a) = (session.get()?, a.get()?);
    let job = py.detach(|| outcore::sparse::compress(session, a, out));
    Job::new(job, |py, found| {
        found.map_or_else(|| Ok(py.None()), |found| made(py, found))
    })
}
