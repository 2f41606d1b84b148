//! k-means: iterations, nearest centres, distances, and rows for initial centres.

use std::borrow::Cow;

use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use outcore::kmeans::{self, Assigned, Columns, KMeans, Options};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::job::{Job, numbers};
use crate::matrix::{self, output};
use crate::ranks::Team;
use crate::session::Session;
use crate::sparse::{SparseMatrix, rows};

/// The result of `kmeans_fit`; `centers` is flat, row after row.
pub(crate) fn dictionary(py: Python<'_>, model: KMeans) -> PyResult<Py<PyAny>> {
    let found = PyDict::new(py);
    found.set_item("centers", PyArray1::from_vec(py, model.centers))?;
    found.set_item("labels", labels(py, model.labels))?;
    found.set_item("inertia", model.inertia)?;
    found.set_item("rounds", model.rounds)?;
    found.set_item("interrupted", model.interrupted)?;
    found.set_item("compared", model.compared_fraction)?;
    Ok(found.into_any().unbind())
}

/// The result of `kmeans_assign`.
pub(crate) fn assigned(py: Python<'_>, assigned: Assigned) -> PyResult<Py<PyAny>> {
    let found = PyDict::new(py);
    found.set_item("labels", labels(py, assigned.labels))?;
    found.set_item("distances", PyArray1::from_vec(py, assigned.distances))?;
    found.set_item("inertia", assigned.inertia)?;
    Ok(found.into_any().unbind())
}

/// int32, as in scikit-learn.
fn labels(py: Python<'_>, labels: Vec<u32>) -> Bound<'_, PyArray1<i32>> {
    PyArray1::from_vec(py, labels.into_iter().map(|label| label as i32).collect())
}

/// Row after row, copied only where they lie otherwise.
pub(crate) fn flat<'a>(centers: &'a PyReadonlyArray2<'_, f64>) -> Cow<'a, [f64]> {
    match centers.as_slice() {
        Ok(flat) => Cow::Borrowed(flat),
        Err(_) => Cow::Owned(centers.as_array().iter().copied().collect()),
    }
}

fn vector(weights: Option<PyReadonlyArray1<'_, f64>>) -> Option<Vec<f64>> {
    weights.map(|weights| weights.as_array().to_vec())
}

/// Iterations of Lloyd's algorithm from these centres.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what a fit may be told")]
pub(crate) fn kmeans_fit(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    start: PyReadonlyArray2<'_, f64>,
    weights: Option<PyReadonlyArray1<'_, f64>>,
    max_iter: u64,
    tol: f64,
    team: Option<Bound<'_, Team>>,
) -> PyResult<Job> {
    let options = Options {
        max_iter,
        tol,
        weights: vector(weights),
    };
    let (session, start) = (session.get()?, flat(&start));
    let x = rows(x)?;
    let Some(team) = team else {
        return Job::plan(py, || kmeans::fit(session, x, &start, options), dictionary);
    };
    let (session, start) = (session.clone(), start.into_owned());
    let plan = move |team: &_| kmeans::fit_over(&session, x, &start, options, team);
    team.get().plan(py, plan, dictionary)
}

/// Iterations of rows with one value in each column, along some vectors or in full.
#[pyfunction]
#[pyo3(signature = (session, x, start, max_iter, values, along=None))]
pub(crate) fn kmeans_fit_columns(
    py: Python<'_>,
    session: &Session,
    x: &SparseMatrix,
    start: PyReadonlyArray2<'_, f64>,
    max_iter: u64,
    values: PyReadonlyArray1<'_, f64>,
    along: Option<PyReadonlyArray2<'_, f64>>,
) -> PyResult<Job> {
    let options = Options {
        max_iter,
        tol: 0.0,
        weights: None,
    };
    let columns = Columns {
        values: vector(Some(values)),
        along: along.map(|along| flat(&along).into_owned()),
    };
    let (session, x, start) = (session.get()?, x.get()?, flat(&start));
    Job::plan(
        py,
        || kmeans::fit_columns(session, x, &start, options, columns),
        dictionary,
    )
}

/// The nearest centre of each row.
#[pyfunction]
pub(crate) fn kmeans_assign(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    centers: PyReadonlyArray2<'_, f64>,
    weights: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<Job> {
    let (session, centers, weights) = (session.get()?, flat(&centers), vector(weights));
    let x = rows(x)?;
    Job::plan(
        py,
        || kmeans::assign(session, x, &centers, weights),
        assigned,
    )
}

/// The distance of each row to each centre.
#[pyfunction]
pub(crate) fn kmeans_distances(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    centers: PyReadonlyArray2<'_, f64>,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, centers, out) = (session.get()?, flat(&centers), output(out)?);
    let x = rows(x)?;
    Job::plan(
        py,
        || kmeans::distances(session, x, &centers, out),
        matrix::made,
    )
}

/// Rows by number, ascending, one after another.
#[pyfunction]
pub(crate) fn take_rows(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    wanted: PyReadonlyArray1<'_, u64>,
) -> PyResult<Job> {
    let (session, x, wanted) = (session.get()?, rows(x)?, wanted.as_array().to_vec());
    Job::plan(py, || kmeans::take_rows(session, &x, &wanted), numbers)
}
