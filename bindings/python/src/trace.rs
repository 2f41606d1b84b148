//! The trace of a run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

/// The trace of a run.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Trace(Arc<outcore::Trace>);

impl Trace {
    pub(crate) fn new(trace: Arc<outcore::Trace>) -> Trace {
        Trace(trace)
    }
}

/// The trace of several runs, each with the second at which it began, on `threads` threads.
#[pyfunction]
pub(crate) fn merge_traces(py: Python<'_>, parts: Vec<(Py<Trace>, f64)>, threads: usize) -> Trace {
    let parts: Vec<(Arc<outcore::Trace>, f64)> = parts
        .iter()
        .map(|(part, start)| (Arc::clone(&part.get().0), *start))
        .collect();
    py.detach(|| {
        let first = parts
            .iter()
            .map(|part| part.1)
            .fold(f64::INFINITY, f64::min);
        let mut all = outcore::Trace::default();
        parts
            .iter()
            .for_each(|(part, start)| all.append(part, start - first, threads));
        Trace(Arc::new(all))
    })
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
