//! What happened during a run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

/// How a run went.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Trace(Arc<outcore::Trace>);

impl Trace {
    pub(crate) fn new(trace: Arc<outcore::Trace>) -> Trace {
        Trace(trace)
    }
}

#[pymethods]
impl Trace {
    /// Prediction, fact, sums and spans as JSON.
    fn json(&self, py: Python<'_>) -> String {
        py.detach(|| serde_json::to_string(&*self.0).expect("numbers and names have no way to fail"))
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
