//! `outcore.linalg.eigsh` and `svds`: of matrices, of graphs, and of functions of the caller's.

use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use outcore::kernels::{MatMut, MatRef};
use outcore::operator::{Degrees, Given, GraphForm, Laplacian, Matrix};
use outcore::spectra::{
    self, Method, SearchFacts, Spectrum, SpectrumOptions, Triplets, Vectors, Which,
};
use outcore::{DType, Error, Result, Rows};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{argument, to_python};
use crate::job::Job;
use crate::matrix;
use crate::session::Session;
use crate::sparse;

/// What both functions take.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    k: usize,
    which: String,
    tol: f64,
    method: String,
    block: Option<usize>,
    ncv: Option<usize>,
    maxiter: usize,
    seed: u64,
    #[pyo3(from_py_with = start_vector)]
    v0: Option<Vec<f64>>,
    check: bool,
    left: bool,
    checkpoint: Option<PathBuf>,
}

/// An array of float64, or None.
fn start_vector(given: &Bound<'_, PyAny>) -> PyResult<Option<Vec<f64>>> {
    let given: Option<numpy::PyReadonlyArray1<'_, f64>> = given.extract()?;
    Ok(given.map(|start| start.as_array().to_vec()))
}

impl Options {
    fn options(self) -> PyResult<SpectrumOptions> {
        Ok(SpectrumOptions {
            which: match self.which.as_str() {
                "LM" => Which::LargestMagnitude,
                "LA" => Which::Largest,
                "SA" => Which::Smallest,
                other => {
                    return Err(argument(format!(
                        "which must be 'LM', 'LA' or 'SA', not {other:?}"
                    )));
                }
            },
            method: match self.method.as_str() {
                "auto" => Method::Auto,
                "krylov" => Method::Krylov,
                "randomized" => Method::Randomized,
                other => {
                    return Err(argument(format!(
                        "method must be 'auto', 'krylov' or 'randomized', not {other:?}"
                    )));
                }
            },
            tolerance: self.tol,
            block: self.block,
            basis: self.ncv,
            restarts_max: self.maxiter,
            seed: self.seed,
            start: self.v0,
            check: self.check,
            left: self.left,
            checkpoint: self.checkpoint,
            ..SpectrumOptions::new(self.k)
        })
    }
}

type Products = dyn Fn(bool, MatRef<'_, f64>, MatMut<'_, f64>) -> Result<()> + Send;

/// Products that a function of Python makes: it is handed whether they are with the transpose, and
/// a matrix of columns, and returns another.
fn given(name: String, shape: [usize; 2], products: Py<PyAny>) -> Given<Box<Products>> {
    let apply = move |transposed: bool, x: MatRef<'_, f64>, mut y: MatMut<'_, f64>| {
        let call = |py: Python<'_>| -> PyResult<()> {
            let columns = PyArray2::<f64>::zeros(py, [x.nrows(), x.ncols()], true);
            {
                let mut into = columns.readwrite();
                let mut into = into.as_array_mut();
                (0..x.ncols()).for_each(|j| (0..x.nrows()).for_each(|i| into[[i, j]] = x[(i, j)]));
            }
            let found = products.call1(py, (transposed, columns))?;
            let found = found.bind(py).cast::<PyArray2<f64>>()?;
            if found.shape() != [y.nrows(), y.ncols()] {
                return Err(argument("the product has another shape"));
            }
            let from = found.readonly();
            let from = from.as_array();
            (0..y.ncols()).for_each(|j| (0..y.nrows()).for_each(|i| y[(i, j)] = from[[i, j]]));
            Ok(())
        };
        Python::attach(call).map_err(|error| Error::Failed {
            what: format!("a product of the caller's: {error}"),
        })
    };
    Given::new(name, shape, Box::new(apply))
}

/// Removes the checkpoint of a search whose results have been used.
#[pyfunction]
pub(crate) fn forget_checkpoint(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| outcore::spectra::forget_checkpoint(path))
        .map_err(to_python)
}

/// A graph's degrees and the weights of edges of nodes to themselves.
#[pyfunction]
pub(crate) fn graph_degrees(
    py: Python<'_>,
    session: &Session,
    graph: &Bound<'_, PyAny>,
) -> PyResult<Job> {
    let (session, graph) = (session.get()?, sparse::rows(graph)?);
    Job::plan(
        py,
        || Degrees::of(session, graph),
        |py, Degrees { others, own }| {
            let pair = (PyArray1::from_vec(py, others), PyArray1::from_vec(py, own));
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        },
    )
}

/// Eigenpairs of a matrix; with degrees, of a form of the graph that it is the adjacency matrix of.
#[pyfunction]
#[pyo3(signature = (session, a, options, degrees=None, form=None))]
pub(crate) fn eigsh(
    py: Python<'_>,
    session: &Session,
    a: &Bound<'_, PyAny>,
    options: Options,
    degrees: Option<[PyReadonlyArray1<'_, f64>; 2]>,
    form: Option<&str>,
) -> PyResult<Job> {
    let (session, rows, options) = (session.get()?, sparse::rows(a)?, options.options()?);
    let Some(degrees) = degrees else {
        return Job::plan(
            py,
            || spectra::eigsh_of_rows(session, rows, options),
            spectrum,
        );
    };
    let form = match form {
        Some("normalized") => GraphForm::NormalizedLaplacian,
        Some("adjacency") => GraphForm::NormalizedAdjacency,
        _ => GraphForm::Laplacian,
    };
    let [others, own] = degrees.map(|degrees| degrees.as_array().to_vec());
    let plan = || {
        let graph = Matrix::new(session, rows)?.in_f64();
        let graph = Laplacian::new(graph, Degrees { others, own }, form)?;
        spectra::eigsh(session, graph, DType::F64, options)
    };
    Job::plan(py, plan, spectrum)
}

/// The same of a function; see [`given`].
#[pyfunction]
pub(crate) fn eigsh_of_function(
    py: Python<'_>,
    session: &Session,
    name: String,
    shape: [usize; 2],
    products: Py<PyAny>,
    options: Options,
) -> PyResult<Job> {
    let (session, options) = (session.get()?, options.options()?);
    let operator = given(name, shape, products);
    Job::plan(
        py,
        || spectra::eigsh(session, operator, DType::F64, options),
        spectrum,
    )
}

/// Singular triplets of a matrix; with means, of the matrix less these. `known` are right vectors that
/// are near them, one after another; `columns` tell that all entries of a column are one number, and which.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what is known of a matrix")]
#[pyo3(signature = (session, a, options, mean=None, is_far=false, known=None, columns=None))]
pub(crate) fn svds(
    py: Python<'_>,
    session: &Session,
    a: &Bound<'_, PyAny>,
    options: Options,
    mean: Option<PyReadonlyArray1<'_, f64>>,
    is_far: bool,
    known: Option<PyReadonlyArray1<'_, f64>>,
    columns: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<Job> {
    let (session, rows) = (session.get()?, sparse::rows(a)?);
    let given = [mean, known, columns];
    let [mean, known, columns] = given.map(|given| Some(given?.as_array().to_vec()));
    let options = SpectrumOptions {
        known,
        ..options.options()?
    };
    let plan = || match (mean, columns, &rows) {
        (Some(mean), ..) => spectra::svds_of_centred_rows(session, rows, mean, is_far, options),
        (_, Some(columns), Rows::Sparse(a)) => {
            spectra::svds_of_equal_columns(session, a, columns, options)
        }
        _ => spectra::svds_of_rows(session, rows, options),
    };
    Job::plan(py, plan, triplets)
}

/// The same of a function; see [`given`].
#[pyfunction]
pub(crate) fn svds_of_function(
    py: Python<'_>,
    session: &Session,
    name: String,
    shape: [usize; 2],
    products: Py<PyAny>,
    options: Options,
) -> PyResult<Job> {
    let (session, options) = (session.get()?, options.options()?);
    let operator = given(name, shape, products);
    Job::plan(
        py,
        || spectra::svds(session, operator, DType::F64, options),
        triplets,
    )
}

fn spectrum(py: Python<'_>, found: Spectrum) -> PyResult<Py<PyAny>> {
    let Spectrum {
        values,
        vectors: right,
        residuals,
        facts,
    } = found;
    let made = dictionary(py, values, residuals, facts)?;
    made.set_item("vectors", vectors(py, right)?)?;
    Ok(made.into_any().unbind())
}

fn triplets(py: Python<'_>, found: Triplets) -> PyResult<Py<PyAny>> {
    let made = dictionary(py, found.values, found.residuals, found.facts)?;
    let left = found.left.map(|left| vectors(py, left));
    made.set_item("left", left.transpose()?)?;
    made.set_item("right", vectors(py, found.right)?)?;
    Ok(made.into_any().unbind())
}

fn dictionary(
    py: Python<'_>,
    values: Vec<f64>,
    residuals: Vec<f64>,
    facts: SearchFacts,
) -> PyResult<Bound<'_, PyDict>> {
    let made = PyDict::new(py);
    made.set_item("values", PyArray1::from_vec(py, values))?;
    made.set_item("residuals", PyArray1::from_vec(py, residuals))?;
    made.set_item("products", facts.products)?;
    made.set_item("restarts", facts.restarts)?;
    made.set_item("block", facts.block)?;
    made.set_item("basis", facts.basis)?;
    made.set_item("in_memory", facts.in_memory)?;
    made.set_item("has_converged", facts.has_converged)?;
    made.set_item("may_miss", facts.may_miss)?;
    made.set_item("missed_beyond", facts.missed_beyond)?;
    made.set_item("epsilon", facts.epsilon)?;
    made.set_item("largest", facts.largest)?;
    Ok(made)
}

/// Columns one after another in a flat array; a matrix where they are in scratch.
fn vectors(py: Python<'_>, vectors: Vectors) -> PyResult<Py<PyAny>> {
    match vectors {
        Vectors::Memory { values, .. } => Ok(PyArray1::from_vec(py, values).into_any().unbind()),
        Vectors::Scratch(array) => matrix::made(py, array),
    }
}
