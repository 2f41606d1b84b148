//! Planned work and running work.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use outcore::learn::kmeans::{Assigned, KMeans};
use outcore::learn::linalg::SparseStatistics;
use outcore::learn::pca::Pca;
use outcore::{Array, ColumnStatistics, Error, Explanation};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_python;
use crate::kmeans;
use crate::matrix::Matrix;
use crate::owned::Owned;
use crate::pca;
use crate::sparse::SparseMatrix;

/// What a job ends with.
pub(crate) enum Done {
    Nothing,
    Matrix(Array),
    Sparse(outcore::Sparse),
    Number(f64),
    Numbers(Vec<f64>),
    Statistics(ColumnStatistics),
    SparseStatistics(SparseStatistics),
    Pca(Pca),
    KMeans(KMeans),
    Assigned(Assigned),
}

impl Done {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Done::Nothing => py.None(),
            Done::Matrix(array) => Matrix::new(array).into_pyobject(py)?.into_any().unbind(),
            Done::Sparse(sparse) => SparseMatrix::new(sparse).into_pyobject(py)?.into_any().unbind(),
            Done::Number(value) => value.into_pyobject(py)?.into_any().unbind(),
            Done::Numbers(values) => numpy::PyArray1::from_vec(py, values).into_any().unbind(),
            Done::Statistics(statistics) => dictionary(py, statistics)?.into_any().unbind(),
            Done::SparseStatistics(found) => {
                let columns = dictionary(py, found.columns)?;
                columns.set_item("nonzeros", numpy::PyArray1::from_vec(py, found.nonzeros))?;
                columns.into_any().unbind()
            }
            Done::Pca(model) => pca::dictionary(py, model)?,
            Done::KMeans(model) => kmeans::dictionary(py, model)?,
            Done::Assigned(found) => kmeans::assigned(py, found)?,
        })
    }
}

fn dictionary(py: Python<'_>, statistics: ColumnStatistics) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("count", statistics.count)?;
    for (name, values) in [("mean", statistics.mean), ("m2", statistics.m2), ("min", statistics.min), ("max", statistics.max)] {
        found.set_item(name, numpy::PyArray1::from_vec(py, values))?;
    }
    Ok(found)
}

/// Work that is planned; nothing has moved yet.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Job {
    job: Owned<Mutex<Option<outcore::Job<Done>>>>,
    explanations: Vec<Explanation>,
}

impl Job {
    pub(crate) fn new<T: Send + 'static>(
        job: outcore::Result<outcore::Job<T>>,
        done: impl FnOnce(T) -> Done + Send + 'static,
    ) -> PyResult<Job> {
        let job = job.map_err(to_python)?.map(|result| Ok(done(result)));
        let explanations = job.explain().to_vec();
        Ok(Job { job: Owned::new(Mutex::new(Some(job))), explanations })
    }
}

#[pymethods]
impl Job {
    /// What is going to happen, for people.
    fn text(&self) -> String {
        let texts: Vec<String> = self.explanations.iter().map(|one| one.to_string().trim_end().to_owned()).collect();
        texts.join("\n\n")
    }

    /// The same as JSON: a list with one object a plan.
    fn json(&self) -> String {
        serde_json::to_string(&self.explanations).expect("numbers and names have no way to fail")
    }

    /// Begins; a job begins once.
    fn start(&self, py: Python<'_>) -> PyResult<Running> {
        let job = self.job.get()?.lock().expect("no panic while held").take();
        let job = job.ok_or_else(|| to_python(Error::Closed))?;
        let running = py.detach(|| job.start()).map_err(to_python)?;
        Ok(Running(Owned::new(Mutex::new(Some(running)))))
    }
}

type Slot = Mutex<Option<outcore::Running<Done>>>;

/// Work under way. Dropping it cancels it.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Running(Owned<Slot>);

impl Running {
    fn slot(&self) -> PyResult<MutexGuard<'_, Option<outcore::Running<Done>>>> {
        Ok(self.0.get()?.lock().expect("no panic while held"))
    }
}

#[pymethods]
impl Running {
    /// Waits for at most `timeout_s` seconds; true when only `result` is left to call.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::from_secs_f64(timeout_s.clamp(0.0, 3600.0));
        let slot = self.0.get()?;
        py.detach(|| match slot.lock().expect("no panic while held").as_mut() {
            Some(running) => running.wait_timeout(timeout),
            None => Err(Error::Closed),
        })
        .map_err(to_python)
    }

    /// The result; waits for what is left.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let slot = self.0.get()?;
        let done = py.detach(|| slot.lock().expect("no panic while held").take().ok_or(Error::Closed)?.wait());
        done.map_err(to_python)?.into_python(py)
    }

    /// Asks it to stop.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.0.get()?;
        py.detach(|| {
            if let Some(running) = slot.lock().expect("no panic while held").as_ref() {
                running.cancel();
            }
        });
        Ok(())
    }

    /// How far it is, between 0 and 1.
    fn fraction(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| Ok(self.slot()?.as_ref().map_or(1.0, |running| running.progress().fraction)))
    }
}
