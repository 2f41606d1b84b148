//! Ranks whose messages Python carries: a team of them, and calls that all of them make.

use std::sync::{Arc, Mutex};

use outcore::device::Locked;
use outcore::mpi::{self, Design};
use outcore::ring::{Messages, RingRanks};
use outcore::{Error, Ranks};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::to_python;
use crate::job::{Job, apart};

/// Bytes that go to Python at a time: they are copied on their way, which no budget counts.
const PIECE_BYTES: usize = 4 << 20;

/// Two functions of Python. The GIL is held for a call of one of them only.
struct Functions {
    rank: usize,
    size: usize,
    /// send(to, bytes)
    send: Py<PyAny>,
    /// receive(from, count) -> bytes
    receive: Py<PyAny>,
}

fn failed(rank: usize, error: &PyErr) -> Error {
    Error::Failed {
        what: format!("rank {rank}: {error}"),
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
        bytes.chunks(PIECE_BYTES).try_for_each(|piece| {
            let send = |py: Python<'_>| self.send.call1(py, (to, PyBytes::new(py, piece)));
            Python::attach(send)
                .map(drop)
                .map_err(|error| failed(to, &error))
        })
    }

    fn receive(&self, from: usize, bytes: &mut [u8]) -> outcore::Result<()> {
        let mut pieces = bytes.chunks_mut(PIECE_BYTES);
        pieces.try_for_each(|piece| self.receive_piece(from, piece))
    }
}

impl Functions {
    fn receive_piece(&self, from: usize, bytes: &mut [u8]) -> outcore::Result<()> {
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
        match what.map_err(|error: PyErr| failed(from, &error))? {
            None => Ok(()),
            Some(what) => Err(Error::Failed { what }),
        }
    }
}

/// The ranks of one computation.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Team(outcore::Team, Arc<dyn RingRanks>);

impl Team {
    /// What makes rings.
    pub(crate) fn rings(&self) -> Arc<dyn RingRanks> {
        Arc::clone(&self.1)
    }

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
        let functions: Arc<dyn Ranks> = Arc::new(Functions {
            rank,
            size,
            send,
            receive,
        });
        Team(
            outcore::Team::new(Arc::clone(&functions)),
            Arc::new(Messages(functions)),
        )
    }

    /// Whose messages are not carried by Python.
    #[staticmethod]
    fn of_mpi(ranks: &MpiRanks) -> Team {
        let own = Arc::clone(&ranks.0);
        Team(outcore::Team::new(own.clone()), own)
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

/// The ranks of an MPI communicator.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct MpiRanks(Arc<mpi::MpiRanks>);

#[pymethods]
impl MpiRanks {
    /// All processes that the launcher has started.
    #[staticmethod]
    fn world(py: Python<'_>, design: &str, heap_bytes: u64) -> PyResult<MpiRanks> {
        let made = py.detach(|| mpi::MpiRanks::world(Design::named(design)?, heap_bytes));
        Ok(MpiRanks(Arc::new(made.map_err(to_python)?)))
    }

    #[staticmethod]
    fn of_communicator(
        py: Python<'_>,
        fortran: i32,
        design: &str,
        heap_bytes: u64,
    ) -> PyResult<MpiRanks> {
        let made = py
            .detach(|| mpi::MpiRanks::of_communicator(fortran, Design::named(design)?, heap_bytes));
        Ok(MpiRanks(Arc::new(made.map_err(to_python)?)))
    }

    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    #[getter]
    fn design(&self) -> String {
        self.0.design().to_owned()
    }

    fn send(&self, py: Python<'_>, to: usize, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.send(to, data)).map_err(to_python)
    }

    fn receive<'py>(
        &self,
        py: Python<'py>,
        source: usize,
        count: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut data = vec![0; count];
        py.detach(|| self.0.receive(source, &mut data))
            .map_err(to_python)?;
        Ok(PyBytes::new(py, &data))
    }

    /// Ends all processes.
    fn abort(&self) {
        self.0.abort();
    }
}

/// Ends what ranks of the launcher's have begun.
#[pyfunction]
pub(crate) fn mpi_finalize(py: Python<'_>) -> PyResult<()> {
    py.detach(mpi::finalize).map_err(to_python)
}
