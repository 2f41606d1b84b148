//! Matrices on SSD and views of them.

use std::path::{Path, PathBuf};

use numpy::{PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use outcore::{Array, Error, Operand, Order, Output, RealType};
use pyo3::prelude::*;

use crate::adopted::{adopt, destination, element_type, real_type, source};
use crate::error::{argument, to_python};
use crate::job::{Job, carry_out, nothing};
use crate::names::{order_of, type_of};
use crate::owned::Owned;
use crate::session::Session;

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

    /// The same elements with other dimensions behind the first, a view.
    fn reshape(&self, shape: Vec<u64>) -> PyResult<Matrix> {
        self.array()?
            .reshaped(&shape)
            .map(Matrix::new)
            .map_err(to_python)
    }

    /// The type that operations compute in with its elements.
    #[getter]
    fn real(&self) -> PyResult<&'static str> {
        let real = self.array()?.real().map_err(to_python)?;
        Ok(outcore::DType::from(real).name())
    }

    /// Reads the whole matrix into a C-contiguous array of the same type without other references.
    fn read_into(&self, into: &Bound<'_, PyUntypedArray>) -> PyResult<Job> {
        let array = self.array()?;
        check_type(array, into)?;
        let memory = destination(into)?;
        Job::plan(into.py(), || array.read_into(memory), nothing)
    }

    /// Rows by their numbers as a new matrix; `out` is a path, a matrix or None.
    fn take(
        &self,
        session: &Session,
        rows: PyReadonlyArray1<'_, u64>,
        out: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Job> {
        let py = rows.py();
        let (array, rows, out) = (self.array()?, rows.as_slice()?, output(out)?);
        let session = session.get()?;
        Job::plan(py, || array.take_within(session, rows, out), made)
    }

    /// Reads rows by their numbers, and some columns, into a C-contiguous array of the same type
    /// without other references.
    fn gather_rows(
        &self,
        rows: PyReadonlyArray1<'_, u64>,
        cols: (u64, u64),
        into: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let array = self.array()?.clone();
        check_type(&array, into)?;
        let (rows, mut memory) = (rows.as_slice()?.to_vec(), destination(into)?);
        let session = array.session().clone();
        carry_out(into.py(), &session, move |stop| {
            array.gather_rows(&rows, cols.0..cols.1, &mut memory, || !stop())
        })
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
        Job::plan(values.py(), || array.write(memory), nothing)
    }
}

/// Opens a `.npy` file, or a raw one with its description beside it; `interrupted` also one left
/// half written.
#[pyfunction]
pub(crate) fn open_matrix(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    interrupted: bool,
) -> PyResult<Matrix> {
    let session = session.get()?;
    let open = || {
        if interrupted {
            Array::open_interrupted(session, &path)
        } else {
            Array::open(session, &path)
        }
    };
    py.detach(open).map(Matrix::new).map_err(to_python)
}

/// Opens a raw file.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the description of a raw file")]
pub(crate) fn open_raw(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    dtype: &str,
    shape: Vec<u64>,
    order: &str,
    offset: u64,
    leading_dimension: Option<u64>,
) -> PyResult<Matrix> {
    let (session, dtype, order) = (session.get()?, type_of(dtype)?, order_of(order)?);
    let open = || {
        Array::open_raw(
            session,
            &path,
            dtype,
            &shape,
            order,
            offset,
            leading_dimension,
        )
    };
    py.detach(open).map(Matrix::new).map_err(to_python)
}

/// A new `.npy` file of zeros; `replace` also one that has the name.
#[pyfunction]
pub(crate) fn create_matrix(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    dtype: &str,
    shape: Vec<u64>,
    order: &str,
    replace: bool,
) -> PyResult<Matrix> {
    let (within, dtype, order) = (session.get()?.clone(), type_of(dtype)?, order_of(order)?);
    let create = move |_: &dyn Fn() -> bool| match replace {
        true => Array::create(&within, &path, dtype, &shape, order),
        false => Array::create_new(&within, &path, dtype, &shape, order),
    };
    carry_out(py, session.get()?, create).map(Matrix::new)
}

/// A new `.npy` file of zeros that has its name when it is finished.
#[pyfunction]
pub(crate) fn draft_matrix(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    dtype: &str,
    shape: Vec<u64>,
    order: &str,
) -> PyResult<Matrix> {
    let (within, dtype, order) = (session.get()?.clone(), type_of(dtype)?, order_of(order)?);
    let draft = move |_: &dyn Fn() -> bool| Array::draft(&within, &path, dtype, &shape, order);
    carry_out(py, session.get()?, draft).map(Matrix::new)
}

/// A matrix of zeros without a name, in scratch.
#[pyfunction]
pub(crate) fn temporary_matrix(
    py: Python<'_>,
    session: &Session,
    dtype: &str,
    shape: Vec<u64>,
    order: &str,
) -> PyResult<Matrix> {
    let (within, dtype, order) = (session.get()?.clone(), type_of(dtype)?, order_of(order)?);
    let make = move |_: &dyn Fn() -> bool| Array::temporary(&within, dtype, &shape, order);
    carry_out(py, session.get()?, make).map(Matrix::new)
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
    let (session, dtype, order) = (session.get()?, type_of(dtype)?, order_of(order)?);
    let (x, out) = (operand(x)?, output(out)?);
    Job::plan(py, || outcore::convert(session, x, out, dtype, order), made)
}

fn check_type(array: &Array, memory: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    let found = element_type(memory)?;
    match found == array.dtype() {
        true => Ok(()),
        false => Err(to_python(Error::DType {
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

/// A matrix on SSD, or an array of one or two dimensions whose rows or columns are contiguous and
/// do not run backwards.
pub(crate) fn operand(value: &Bound<'_, PyAny>) -> PyResult<Operand> {
    if let Ok(matrix) = value.cast::<Matrix>() {
        return Ok(Operand::Stored(matrix.get().array()?.clone()));
    }
    let array = value.cast::<PyUntypedArray>()?;
    let dtype = real_type(array)?;
    let (rows, cols, row_step, col_step) = match (array.shape(), array.strides()) {
        (&[rows], &[step]) => (rows, 1, step, dtype.bytes() as isize),
        (&[rows, cols], &[row_step, col_step]) => (rows, cols, row_step, col_step),
        _ => return Err(argument("the array has neither one nor two dimensions")),
    };
    let (row_stride, col_stride) = strides(rows, cols, row_step, col_step, dtype)
        .filter(|_| array.is_aligned())
        .ok_or_else(|| argument("the array is not aligned, its rows and columns both have gaps, or they run backwards"))?;
    let elements = if rows == 0 || cols == 0 {
        0
    } else {
        (rows as u64 - 1) * row_stride + (cols as u64 - 1) * col_stride + 1
    };
    let bytes = adopt(array, elements as usize * dtype.bytes()).freeze();
    Ok(Operand::Memory {
        bytes,
        dtype,
        rows: rows as u64,
        cols: cols as u64,
        row_stride,
        col_stride,
    })
}

/// Strides in elements. NumPy gives a dimension of length 1 an arbitrary stride, so a fitting one
/// is chosen.
fn strides(
    rows: usize,
    cols: usize,
    row_step: isize,
    col_step: isize,
    dtype: RealType,
) -> Option<(u64, u64)> {
    if rows == 0 || cols == 0 {
        return Some((cols.max(1) as u64, 1));
    }
    let size = dtype.bytes() as isize;
    let elements = |step: isize| (step >= 0 && step % size == 0).then_some((step / size) as u64);
    let (row, col) = match (rows > 1, cols > 1) {
        (true, true) => (elements(row_step)?, elements(col_step)?),
        (true, false) => (elements(row_step)?, 1),
        (false, true) => match elements(col_step)? {
            1 => (cols as u64, 1),
            gap => (1, gap),
        },
        (false, false) => (1, 1),
    };
    let by_rows = col == 1 && row >= cols as u64;
    let by_columns = row == 1 && col >= rows as u64;
    (by_rows || by_columns).then_some((row, col))
}
