//! Principal components: the pass that finds them, and affine maps of rows, which are `transform`
//! and its inverse.

use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use outcore::linalg::{self, Affine};
use outcore::pca::{self, Components, Pca};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::job::Job;
use crate::matrix::operand;
use crate::matrix::{self, output};
use crate::ranks::Team;
use crate::session::Session;
use crate::sparse::SparseMatrix;

/// The result of `pca_fit`; `components` is flat, row after row.
pub(crate) fn dictionary(py: Python<'_>, model: Pca) -> PyResult<Py<PyAny>> {
    let found = PyDict::new(py);
    found.set_item("samples", model.samples)?;
    found.set_item("features", model.features)?;
    found.set_item("mean", PyArray1::from_vec(py, model.mean))?;
    found.set_item("components", PyArray1::from_vec(py, model.components))?;
    found.set_item(
        "explained_variance",
        PyArray1::from_vec(py, model.explained_variance),
    )?;
    found.set_item("total_variance", model.total_variance)?;
    Ok(found.into_any().unbind())
}

/// Finds components: `count`, or those that explain a fraction of the variance, or all.
#[pyfunction]
pub(crate) fn pca_fit(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    count: Option<u64>,
    variance: Option<f64>,
    seed: u64,
    team: Option<Bound<'_, Team>>,
) -> PyResult<Job> {
    let components = wanted(count, variance);
    let (session, x) = (session.get()?, operand(x)?);
    let Some(team) = team else {
        return Job::plan(py, || pca::fit(session, x, components, seed), dictionary);
    };
    let session = session.clone();
    let plan = move |team: &_| pca::fit_over(&session, x, components, seed, team);
    team.get().plan(py, plan, dictionary)
}

fn wanted(count: Option<u64>, variance: Option<f64>) -> Components {
    match (count, variance) {
        (Some(count), _) => Components::Count(count),
        (None, Some(part)) => Components::Variance(part),
        (None, None) => Components::All,
    }
}

/// The same of sparse rows with this mean.
#[pyfunction]
#[expect(clippy::too_many_arguments)]
pub(crate) fn sparse_pca_fit(
    py: Python<'_>,
    session: &Session,
    x: &SparseMatrix,
    mean: PyReadonlyArray1<'_, f64>,
    nonzeros: PyReadonlyArray1<'_, u64>,
    count: Option<u64>,
    variance: Option<f64>,
    seed: u64,
    team: Option<Bound<'_, Team>>,
) -> PyResult<Job> {
    let (session, x) = (session.get()?, x.get()?);
    let (mean, nonzeros) = (mean.as_array().to_vec(), nonzeros.as_array().to_vec());
    let components = wanted(count, variance);
    let Some(team) = team else {
        let plan = || pca::fit_sparse(session, x, mean, &nonzeros, components, seed);
        return Job::plan(py, plan, dictionary);
    };
    let (session, x) = (session.clone(), x.clone());
    let plan =
        move |team: &_| pca::fit_sparse_over(&session, &x, mean, &nonzeros, components, seed, team);
    team.get().plan(py, plan, dictionary)
}

/// y = (x - before) matrix + after, for each row of x; empty `before` and `after` have no effect.
#[pyfunction]
pub(crate) fn affine(
    py: Python<'_>,
    session: &Session,
    x: &Bound<'_, PyAny>,
    before: PyReadonlyArray1<'_, f64>,
    matrix: PyReadonlyArray2<'_, f64>,
    after: PyReadonlyArray1<'_, f64>,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let columns = matrix.shape()[1] as u64;
    let flat: Vec<f64> = matrix.as_array().iter().copied().collect();
    let map = Affine {
        before: before.as_array().to_vec(),
        matrix: flat,
        columns,
        after: after.as_array().to_vec(),
    };
    let (session, x, out) = (session.get()?, operand(x)?, output(out)?);
    Job::plan(py, || linalg::affine(session, x, map, out), matrix::made)
}
