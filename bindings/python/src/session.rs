//! Sessions.

use std::path::PathBuf;
use std::sync::Mutex;

use numpy::PyUntypedArray;
use outcore::device::Locked;
use outcore::sparse::Integers;
use outcore::{Blas, Choice, Error, Settings, Sparse};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::adopted::integers;
use crate::error::to_python;
use crate::job::{Job, nothing};
use crate::owned::Owned;
use crate::trace::Trace;

/// Budget, threads, scratch folder and open files.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Session(Owned<outcore::Session>);

impl Session {
    pub(crate) fn get(&self) -> PyResult<&outcore::Session> {
        self.0.get()
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (memory_bytes, scratch, allow_tmpfs_scratch, threads, driver, blas))]
    fn new(
        py: Python<'_>,
        memory_bytes: Option<u64>,
        scratch: Option<PathBuf>,
        allow_tmpfs_scratch: bool,
        threads: usize,
        driver: &str,
        blas: Option<PathBuf>,
    ) -> PyResult<Session> {
        let driver = choice(driver).map_err(to_python)?;
        let session = py.detach(|| {
            let blas = blas.map_or(Ok(Blas::default()), Blas::load)?;
            outcore::Session::new(Settings {
                memory_bytes,
                scratch,
                allow_tmpfs_scratch,
                threads,
                driver,
                blas,
                ..Settings::default()
            })
        });
        Ok(Session(Owned::new(session.map_err(to_python)?)))
    }

    /// The same for jobs that are only looked at.
    fn planner(&self) -> PyResult<Session> {
        Ok(Session(Owned::new(self.get()?.planner())))
    }

    /// The same for calls that may have a part of its budget.
    fn part(&self, memory_bytes: u64) -> PyResult<Session> {
        let part = self.get()?.part(memory_bytes).map_err(to_python)?;
        Ok(Session(Owned::new(part)))
    }

    /// The same session for calls beside which the rest of its budget is reserved.
    fn narrowed(&self, memory_bytes: u64) -> PyResult<Session> {
        let narrowed = self.get()?.narrowed(memory_bytes).map_err(to_python)?;
        Ok(Session(Owned::new(narrowed)))
    }

    /// Takes a file for whole that a writer in place has left half written.
    fn accept(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let session = self.get()?;
        py.detach(|| session.accept(&path)).map_err(to_python)
    }

    /// Whether a sparse matrix may lie at a path.
    fn is_sparse(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        let _session = self.get()?;
        Ok(py.detach(|| Sparse::is_at(&path)))
    }

    /// All bytes of a file or object.
    fn read_all<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let session = self.get()?;
        py.detach(|| session.read_all(&path))
            .map(|bytes| PyBytes::new(py, &bytes))
            .map_err(to_python)
    }

    /// How many whole numbers of 64 bits a file beside a matrix holds.
    fn count_integers(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let session = self.get()?;
        py.detach(|| Integers::open(session, path))
            .map(|found| found.len())
            .map_err(to_python)
    }

    /// Reads some of them, from number `first` on, into a fresh array of int64.
    fn read_integers(
        &self,
        py: Python<'_>,
        path: PathBuf,
        first: u64,
        into: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Job> {
        let (session, (_, into)) = (self.get()?, integers(into)?);
        let range = first..first.saturating_add(into.len() as u64 / 8);
        Job::plan(
            py,
            || Integers::open(session, path)?.read_into(range, into),
            nothing,
        )
    }

    /// Budget in bytes.
    #[getter]
    fn memory_bytes(&self) -> PyResult<u64> {
        Ok(self.get()?.memory_bytes())
    }

    /// Reserves bytes of the budget for memory of the caller: idle blocks are evicted if need be.
    fn reserve(&self, py: Python<'_>, what: &str, size: u64) -> PyResult<Reservation> {
        let session = self.get()?;
        let held = py.detach(|| session.engine().reserve(what, size));
        let held = held.map_err(|error| to_python(error.into()))?;
        Ok(Reservation(Owned::new(Mutex::new(Some(held)))))
    }

    /// Compute threads.
    #[getter]
    fn threads(&self) -> PyResult<usize> {
        Ok(self.get()?.threads())
    }

    /// What it runs on; starts the engine.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.get()?;
        let info = py.detach(|| session.info()).map_err(to_python)?;
        let found = PyDict::new(py);
        found.set_item("memory_bytes", info.memory_bytes)?;
        found.set_item("threads", info.threads)?;
        found.set_item("driver", info.driver)?;
        found.set_item("queue_depth", info.queue_depth)?;
        found.set_item("registered_bytes", info.registered_bytes)?;
        found.set_item("fallback", info.fallback)?;
        found.set_item("blas", info.blas)?;
        found.set_item("blas_version", info.blas_version)?;
        found.set_item("scratch", info.scratch)?;
        Ok(found)
    }

    /// How the last run went.
    fn last_trace(&self, py: Python<'_>) -> PyResult<Option<Trace>> {
        let session = self.get()?;
        Ok(py.detach(|| session.last_trace()).map(Trace::new))
    }
}

/// Bytes of a budget that the caller has.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Reservation(Owned<Mutex<Option<outcore::engine::Reservation>>>);

#[pymethods]
impl Reservation {
    fn release(&self) {
        if let Ok(held) = self.0.get() {
            drop(held.locked().take());
        }
    }
}

/// Bytes of memory that this process may use: the machine's, or less where a control group or a
/// resource limit says so.
#[pyfunction]
pub(crate) fn memory_allowed(py: Python<'_>) -> u64 {
    py.detach(outcore::memory_allowed)
}

fn choice(name: &str) -> Result<Choice, Error> {
    match name {
        "auto" => Ok(Choice::Auto),
        "io_uring" => Ok(Choice::Uring),
        "threads" => Ok(Choice::Threads),
        _ => Err(Error::Value {
            what: format!("driver must be 'auto', 'io_uring' or 'threads', not {name:?}"),
        }),
    }
}
