//! Ranks whose messages Python carries: a team of them, and calls that all of them make.

use std::sync::{Arc, Mutex};

use outcore::device::Locked;
use outcore::{Error, Ranks};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::to_python;
use crate::job::{Job, apart};

/// Two functions of Python. The GIL is held for a call of one of them only.
struct Functions {
    rank: usize,
    size: usize,
    /// send(to, bytes)
    send: Py<PyAny>,
    /// receive(from, count) -> bytes
    receive: Py<PyAny>,
}

fn failed(error: PyErr) -> Error {
    Error::Failed {
        what: error.to_string(),
    }
}

impl Ranks for Functions {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, bytes: &[u8]) -> outcore::Result<()> {
        let send = |py: Python<'_>| self.send.call1(py, (to, PyBytes::new(py, bytes)));
        Python::attach(send).map(drop).map_err(failed)
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> outcore::Result<()> {
        let count = bytes.len();
        let what = Python::attach(|py| {
            let found = self.receive.call1(py, (from, count))?;
            let found = found.bind(py).cast::<PyBytes>()?.as_bytes();
            if found.len() == count {
                bytes.copy_from_slice(found);
                return Ok(None);
            }
            let len = found.len();
            Ok(Some(format!(
                "rank {from} sent {len} bytes where {count} were expected"
            )))
        });
        match what.map_err(|error: PyErr| failed(error))? {
            None => Ok(()),
            Some(what) => Err(Error::Failed { what }),
        }
    }
}

/// The ranks of one computation.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Team(outcore::Team);

impl Team {
    /// Plans what all ranks plan together, on a thread of its own. After Ctrl-C that is left alone,
    /// and tells the others.
    pub(crate) fn plan<T: Send + 'static>(
        &self,
        py: Python<'_>,
        plan: impl FnOnce(&outcore::Team) -> outcore::Result<outcore::Job<T>> + Send + 'static,
        made: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Job> {
        Job::new(self.together(py, plan)?, made)
    }

    fn together<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&outcore::Team) -> outcore::Result<T> + Send + 'static,
    ) -> PyResult<outcore::Result<T>> {
        let (team, busy) = (self.0.clone(), self.0.busy());
        // Whether one of both, the thread that works and the one that waits, has ended.
        let ended = Arc::new(Mutex::new(false));
        let other = Arc::clone(&ended);
        let found = apart(py, move || {
            let _busy = busy;
            let found = work(&team);
            if std::mem::replace(&mut *other.locked(), true) {
                return team.agree(found.and(Err(Error::Cancelled)));
            }
            found
        });
        if found.is_err() {
            *ended.locked() = true;
        }
        found
    }
}

#[pymethods]
impl Team {
    #[new]
    fn new(rank: usize, size: usize, send: Py<PyAny>, receive: Py<PyAny>) -> Team {
        Team(outcore::Team::new(Arc::new(Functions {
            rank,
            size,
            send,
            receive,
        })))
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// The bytes of all ranks, in their order.
    fn all_gather<'py>(&self, py: Python<'py>, own: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = self.together(py, move |team| team.all_gather(Ok(own)))?;
        let found = found.map_err(to_python)?;
        Ok(found.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// The bytes of rank 0.
    fn broadcast<'py>(&self, py: Python<'py>, own: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.together(py, move |team| team.broadcast(Ok(own)))?;
        Ok(PyBytes::new(py, &found.map_err(to_python)?))
    }

    /// Returns when no rank has failed.
    fn agree(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, |team| team.agree(Ok(())))?
            .map_err(to_python)
    }

    /// Tells the others, unless they know or a job is about to tell them. `waits` until they do.
    fn fail(&self, py: Python<'_>, what: String, waits: bool) -> PyResult<()> {
        if self.0.has_failed() || self.0.is_busy() {
            return Ok(());
        }
        let tell = |team: &outcore::Team| team.agree::<()>(Err(Error::Failed { what }));
        if waits {
            // The caller has its own error.
            _ = self.together(py, tell)?;
            return Ok(());
        }
        let (team, busy) = (self.0.clone(), self.0.busy());
        let told = move || {
            let _busy = busy;
            tell(&team)
        };
        std::thread::Builder::new().spawn(told)?;
        Ok(())
    }
}
