//! Whole stores: formatting, listing, checking, repairing.

use std::path::PathBuf;
use std::time::Instant;

use outcore::Error;
use outcore::store::{Access, Formatted, Store};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_python;
use crate::stream::{Data, state_name};

/// CRC-32C (Castagnoli) of bytes.
#[pyfunction]
pub(crate) fn crc32c(data: &Bound<'_, PyAny>) -> PyResult<u32> {
    Ok(outcore::store::checksum(Data::of(data)?.bytes()))
}

/// Formats a new file of `length` bytes, or, without a length, an existing file or block device.
#[pyfunction]
pub(crate) fn store_format(py: Python<'_>, path: PathBuf, length: Option<u64>) -> PyResult<()> {
    py.detach(|| Formatted::format(path, length))
        .map_err(|error| to_python(error.into()))
}

/// Whether a file or device was formatted.
#[pyfunction]
pub(crate) fn store_is_formatted(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
    match py.detach(|| Formatted::open_shared(path, Access::Read)) {
        Ok(_)
        | Err(outcore::store::Error::Corrupt { .. } | outcore::store::Error::Locked { .. }) => {
            Ok(true)
        }
        Err(outcore::store::Error::Unformatted { .. }) => Ok(false),
        Err(error) => Err(to_python(error.into())),
    }
}

/// All names, and the free bytes.
#[pyfunction]
pub(crate) fn store_list(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<Bound<'_, PyDict>>, u64)> {
    let fail = |error: outcore::store::Error| to_python(error.into());
    let store = py
        .detach(|| Formatted::open_shared(path, Access::Read))
        .map_err(fail)?;
    let listed = store.listing().into_iter().map(|listed| {
        let found = PyDict::new(py);
        found.set_item("name", listed.name)?;
        found.set_item(
            "kind",
            if listed.stream.is_some() {
                "stream"
            } else {
                "object"
            },
        )?;
        found.set_item("bytes", listed.stat.len)?;
        found.set_item("modified", listed.stat.modified)?;
        found.set_item("state", state_name(listed.stat.state))?;
        Ok(found)
    });
    Ok((
        listed.collect::<PyResult<_>>()?,
        store.free_bytes().map_err(fail)?,
    ))
}

/// A name, and the fault of its object.
type Fault = (String, String);

/// Reads a whole store; `progress` is called with the bytes done and the total. Returns objects,
/// bytes, and faults by name.
#[pyfunction]
pub(crate) fn store_check(
    py: Python<'_>,
    path: PathBuf,
    progress: Py<PyAny>,
) -> PyResult<(u64, u64, Vec<Fault>)> {
    let mut told = Told::new(progress);
    let found = py.detach(|| {
        Formatted::open_shared(path, Access::Read)?.check(|done, all| told.tell(done, all))
    });
    let found = told.outcome(found)?;
    let faults = found
        .faults
        .into_iter()
        .map(|fault| (fault.name, fault.reason))
        .collect();
    Ok((found.objects, found.bytes, faults))
}

/// Repairs a store as far as possible. Returns the faults by name.
#[pyfunction]
pub(crate) fn store_repair(
    py: Python<'_>,
    path: PathBuf,
    progress: Py<PyAny>,
) -> PyResult<Vec<Fault>> {
    let mut told = Told::new(progress);
    let found = py.detach(|| Formatted::repair(path, |done, all| told.tell(done, all)));
    Ok(told
        .outcome(found)?
        .into_iter()
        .map(|fault| (fault.name, fault.reason))
        .collect())
}

/// A Python function that is called with progress, periodically.
struct Told {
    progress: Py<PyAny>,
    last: Instant,
    raised: Option<PyErr>,
}

impl Told {
    fn new(progress: Py<PyAny>) -> Told {
        Told {
            progress,
            last: Instant::now(),
            raised: None,
        }
    }

    fn tell(&mut self, done: u64, all: u64) -> bool {
        if self.last.elapsed().as_millis() < 50 {
            return true;
        }
        self.last = Instant::now();
        let told = Python::attach(|py| {
            py.check_signals()?;
            self.progress.call1(py, (done, all)).map(drop)
        });
        self.raised = told.err();
        self.raised.is_none()
    }

    fn outcome<T>(self, found: Result<T, outcore::store::Error>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => found.map_err(|error| to_python(Error::from(error))),
        }
    }
}
