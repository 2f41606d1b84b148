//! Matrices on SSD and views of them.

use std::path::{Path, PathBuf};

use numpy::PyUntypedArray;
use outcore::{Array, Order, Output};
use pyo3::prelude::*;

use crate::adopted::{destination, element_type, operand, source};
use crate::error::to_python;
use crate::job::{Job, carry_out, nothing};
use crate::owned::Owned;
use crate::session::{self, Session};

/// A matrix or vector on SSD, or a view of one.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Matrix(Owned<Array>);

impl Matrix {
    pub(crate) fn new(array: Array) -> Matrix {
        // What outlasts the call that made it belongs to the whole session.
        Matrix(Owned::new(array.with_whole_budget()))
    }

    pub(crate) fn array(&self) -> PyResult<&Array> {
        self.0.get()
    }
}

#[pymethods]
impl Matrix {
    #[getter]
    fn shape(&self) -> PyResult<Vec<u64>> {
        Ok(self.array()?.shape())
    }

    #[getter]
    fn dtype(&self) -> PyResult<String> {
        Ok(self.array()?.dtype().to_string())
    }

    /// `"C"` if the elements of a row are contiguous, else `"F"`.
    #[getter]
    fn order(&self) -> PyResult<&'static str> {
        Ok(match self.array()?.order() {
            Order::Row => "C",
            Order::Column => "F",
        })
    }

    #[getter]
    fn path(&self) -> PyResult<Option<&Path>> {
        Ok(self.array()?.path())
    }

    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.array()?.name().to_owned())
    }

    /// The transpose, a view.
    fn t(&self) -> PyResult<Matrix> {
        Ok(Matrix::new(self.array()?.t()))
    }

    /// A range of rows and columns, a view.
    fn slice(&self, rows: (u64, u64), cols: (u64, u64)) -> PyResult<Matrix> {
        self.array()?
            .slice(rows.0..rows.1, cols.0..cols.1)
            .map(Matrix::new)
            .map_err(to_python)
    }

    /// Reads the whole matrix into a C-contiguous array of the same type without other references.
    fn read_into(&self, into: &Bound<'_, PyUntypedArray>) -> PyResult<Job> {
        let array = self.array()?;
        check_type(array, into)?;
        let memory = destination(into)?;
        Job::new(into.py().detach(|| array.read_into(memory)), nothing)
    }

    /// Gives a draft its name and opens it.
    fn finish(&self, py: Python<'_>) -> PyResult<Matrix> {
        let array = self.array()?.clone();
        let session = array.session().clone();
        let finish = move |stop: &dyn Fn() -> bool| array.finish_until(stop);
        carry_out(py, &session, finish).map(Matrix::new)
    }

    /// Removes a draft.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let array = self.array()?;
        py.detach(|| array.discard());
        Ok(())
    }

    /// Writes the whole matrix, in place, from a C-contiguous array of the same type.
    fn write(&self, values: &Bound<'_, PyUntypedArray>) -> PyResult<Job> {
        let array = self.array()?;
        check_type(array, values)?;
        let memory = source(values)?;
        Job::new(values.py().detach(|| array.write(memory)), nothing)
    }
}

/// Converts a matrix for Python.
pub(crate) fn made(py: Python<'_>, array: Array) -> PyResult<Py<PyAny>> {
    Ok(Matrix::new(array).into_pyobject(py)?.into_any().unbind())
}

/// A copy with another type, order or path; of an array in memory, a file.
#[pyfunction]
pub(crate) fn convert(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    out: Option<Bound<'_, PyAny>>,
    dtype: &str,
    order: &str,
) -> PyResult<Job> {
    let (session, dtype, order) = (
        session.get()?,
        session::element_type(dtype)?,
        session::order_of(order)?,
    );
    let (x, out) = (operand(x)?, output(out)?);
    Job::new(
        py.detach(|| outcore::convert(session, x, out, dtype, order)),
        made,
    )
}

fn check_type(array: &Array, memory: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    let found = element_type(memory)?;
    match found == array.dtype() {
        true => Ok(()),
        false => Err(to_python(outcore::Error::DType {
            what: format!(
                "{} is {}, the array in memory {found}",
                array.name(),
                array.dtype()
            ),
        })),
    }
}

/// The destination of a result: scratch, a new file, or an existing matrix.
pub(crate) fn output(out: Option<Bound<'_, PyAny>>) -> PyResult<Output> {
    let Some(out) = out else {
        return Ok(Output::Scratch);
    };
    match out.cast::<Matrix>() {
        Ok(matrix) => Ok(Output::InPlace(matrix.get().array()?.clone())),
        Err(_) => Ok(Output::New(out.extract::<PathBuf>()?)),
    }
}
