//! Foreign files, read in pieces.

use std::path::PathBuf;

use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use crate::error::to_python;
use crate::job::carry_out;
use crate::owned::Owned;
use crate::samples::interruptible;
use crate::session::Session;

/// A file opened for reading.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct FileReader(Owned<outcore::reader::FileReader>);

#[pymethods]
impl FileReader {
    #[new]
    fn new(py: Python<'_>, session: &Session, path: PathBuf) -> PyResult<FileReader> {
        let (session, own) = (session.get()?, session.get()?.clone());
        let open = move |_: &dyn Fn() -> bool| outcore::reader::FileReader::open(&own, path);
        Ok(FileReader(Owned::new(carry_out(py, session, open)?)))
    }

    /// Length of the file.
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.0.get()?.len())
    }

    /// Reserves `count` bytes for memory of the caller, until this is dropped.
    fn hold(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        let reader = self.0.get()?;
        py.detach(|| reader.hold(count)).map_err(to_python)
    }

    /// Pieces of one length, one behind another into `out`.
    fn read(
        &self,
        py: Python<'_>,
        offsets: PyReadonlyArray1<'_, u64>,
        length: usize,
        mut out: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<()> {
        let (reader, offsets, out) = (self.0.get()?, offsets.as_slice()?, out.as_slice_mut()?);
        interruptible(py, |go_on| reader.read(offsets, length, out, go_on))
    }
}
