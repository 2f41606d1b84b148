//! The trace of a run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use outcore::device::Locked;
use pyo3::prelude::*;

/// The trace of a run.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Trace(Arc<outcore::Trace>);

impl Trace {
    pub(crate) fn new(trace: Arc<outcore::Trace>) -> Trace {
        Trace(trace)
    }
}

/// Of several runs, added up as they end: what all of them did would take as much memory as each.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Traces {
    all: Mutex<outcore::Trace>,
    threads: usize,
}

#[pymethods]
impl Traces {
    /// Of runs on `threads` threads.
    #[new]
    fn new(threads: usize) -> Traces {
        Traces {
            all: Mutex::default(),
            threads,
        }
    }

    /// Adds a run that began `start_s` seconds after the first one.
    fn add(&self, py: Python<'_>, run: &Trace, start_s: f64) {
        py.detach(|| self.all.locked().append(&run.0, start_s, self.threads));
    }

    /// One trace of all of them.
    fn merged(&self, py: Python<'_>) -> Trace {
        Trace(py.detach(|| Arc::new(self.all.locked().clone())))
    }
}

#[pymethods]
impl Trace {
    /// Prediction, measurement, sums and spans as JSON.
    fn json(&self, py: Python<'_>) -> String {
        py.detach(|| {
            serde_json::to_string(&*self.0).expect("numbers and names have no way to fail")
        })
    }

    /// Writes the timeline as a file for a trace viewer.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| {
            let mut out = BufWriter::new(File::create(path)?);
            self.0.write_chrome(&mut out)?;
            out.flush()
        })?;
        Ok(())
    }
}
