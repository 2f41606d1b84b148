//! `outcore.linalg`: each function plans and returns a job.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use outcore::linalg::{self, Axpby, Gemm, Reduction, Syrk};
use outcore::{ColumnStatistics, Error, Norm, Operand};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::adopted::{destination, element_type};
use crate::error::{argument, to_python};
use crate::job::{Job, nothing, number, numbers};
use crate::matrix::{self, Matrix, operand, output};
use crate::ranks::Team;
use crate::session::Session;

/// An operand from Python, transposed if requested.
fn turned(value: &Bound<'_, PyAny>, transpose: bool) -> PyResult<Operand> {
    let found = operand(value)?;
    Ok(if transpose { found.t() } else { found })
}

/// C = alpha A B + beta C; `out` is a path, a matrix, a fresh array, or None.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of the BLAS function"
)]
pub(crate) fn gemm(
    py: Python<'_>,
    session: &Session,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    trans_a: bool,
    trans_b: bool,
    alpha: f64,
    beta: f64,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, a, b) = (session.get()?, turned(a, trans_a)?, turned(b, trans_b)?);
    if let Some(array) = out
        .as_ref()
        .and_then(|out| out.cast::<PyUntypedArray>().ok())
    {
        let shape = [a.rows() as usize, b.cols() as usize];
        if array.shape() != shape {
            return Err(to_python(Error::Shape {
                what: format!(
                    "gemm: the result is {shape:?}, `out` is {:?}",
                    array.shape()
                ),
            }));
        }
        let found = element_type(array)?;
        let made = outcore::DType::from(a.real().map_err(to_python)?);
        if found != made {
            return Err(to_python(Error::DType {
                what: format!("gemm: the result is {made}, `out` is {found}"),
            }));
        }
        let into = destination(array)?;
        return Job::plan(
            py,
            || linalg::gemm_into(session, a, b, alpha, into),
            nothing,
        );
    }
    let out = output(out)?;
    Job::plan(
        py,
        || linalg::gemm(session, a, b, Gemm { alpha, beta, out }),
        matrix::made,
    )
}

/// C = alpha A A^T + beta C.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of the BLAS function"
)]
pub(crate) fn syrk(
    py: Python<'_>,
    session: &Session,
    a: &Bound<'_, PyAny>,
    trans: bool,
    alpha: f64,
    beta: f64,
    full: bool,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, a, out) = (session.get()?, turned(a, trans)?, output(out)?);
    Job::plan(
        py,
        || {
            linalg::syrk(
                session,
                a,
                Syrk {
                    alpha,
                    beta,
                    out,
                    full,
                },
            )
        },
        matrix::made,
    )
}

/// y = alpha x + beta y, in place.
#[pyfunction]
pub(crate) fn axpby(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    y: &Matrix,
    alpha: f64,
    beta: f64,
) -> PyResult<Job> {
    let (session, x, y) = (session.get()?, operand(x)?, y.array()?);
    Job::plan(
        py,
        || linalg::axpby(session, x, y, Axpby { alpha, beta }),
        matrix::made,
    )
}

/// x = alpha x, in place.
#[pyfunction]
pub(crate) fn scale(py: Python<'_>, session: &Session, x: &Matrix, alpha: f64) -> PyResult<Job> {
    let (session, x) = (session.get()?, x.array()?);
    Job::plan(py, || linalg::scale(session, x, alpha), matrix::made)
}

/// The norm of each row.
#[pyfunction]
pub(crate) fn row_norms(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    norm: &str,
) -> PyResult<Job> {
    let (session, x, norm) = (session.get()?, operand(x)?, norm_of(norm)?);
    Job::plan(py, || linalg::row_norms(session, x, norm), numbers)
}

/// The norm of each column.
#[pyfunction]
pub(crate) fn column_norms(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    norm: &str,
) -> PyResult<Job> {
    let (session, x, norm) = (session.get()?, operand(x)?, norm_of(norm)?);
    Job::plan(py, || linalg::column_norms(session, x, norm), numbers)
}

/// Count, mean, sum of squared deviations, least and greatest element of each column.
#[pyfunction]
pub(crate) fn column_statistics(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    team: Option<Bound<'_, Team>>,
) -> PyResult<Job> {
    let (session, x) = (session.get()?, operand(x)?);
    let Some(team) = team else {
        return Job::plan(py, || linalg::column_statistics(session, x), statistics);
    };
    let session = session.clone();
    let plan = move |team: &_| linalg::column_statistics_over(&session, x, team);
    team.get().plan(py, plan, statistics)
}

/// Reduces all elements to one number.
#[pyfunction]
pub(crate) fn reduce(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    how: &str,
) -> PyResult<Job> {
    let reduction = match how {
        "sum" => Reduction::Sum,
        "sum_of_squares" => Reduction::SumOfSquares,
        "min" => Reduction::Min,
        "max" => Reduction::Max,
        _ => {
            return Err(argument(format!(
                "how must be 'sum', 'sum_of_squares', 'min' or 'max', not {how:?}"
            )));
        }
    };
    let (session, x) = (session.get()?, operand(x)?);
    Job::plan(py, || linalg::reduce(session, x, reduction), number)
}

pub(crate) fn norm_of(name: &str) -> PyResult<Norm> {
    match name {
        "l1" => Ok(Norm::L1),
        "l2" => Ok(Norm::L2),
        "max" => Ok(Norm::Max),
        _ => Err(argument(format!(
            "norm must be 'l1', 'l2' or 'max', not {name:?}"
        ))),
    }
}

/// A dictionary of arrays.
pub(crate) fn statistics(py: Python<'_>, found: ColumnStatistics) -> PyResult<Py<PyAny>> {
    let columns = PyDict::new(py);
    columns.set_item("count", found.count)?;
    for (name, values) in [
        ("mean", found.mean),
        ("m2", found.m2),
        ("min", found.min),
        ("max", found.max),
    ] {
        columns.set_item(name, numpy::PyArray1::from_vec(py, values))?;
    }
    Ok(columns.into_any().unbind())
}
