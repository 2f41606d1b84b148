//! Planned and running work.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use outcore::device::Locked;
use outcore::engine::plan_until;
use outcore::{Error, Explanation};
use pyo3::prelude::*;

use crate::error::to_python;
use crate::owned::Owned;

/// Interval between checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A conversion of a result for Python.
type Made = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// For jobs whose result is memory of the caller or a file.
pub(crate) fn nothing<T>(py: Python<'_>, _: T) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

pub(crate) fn number(py: Python<'_>, value: f64) -> PyResult<Py<PyAny>> {
    Ok(value.into_pyobject(py)?.into_any().unbind())
}

pub(crate) fn numbers(py: Python<'_>, values: Vec<f64>) -> PyResult<Py<PyAny>> {
    Ok(numpy::PyArray1::from_vec(py, values).into_any().unbind())
}

/// Planned work; no data has moved yet.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Job {
    job: Owned<Mutex<Option<outcore::Job<Made>>>>,
    explanations: Vec<Explanation>,
}

impl Job {
    /// What `plan` plans on this thread, which checks for signals meanwhile.
    pub(crate) fn plan<T: Send + 'static>(
        py: Python<'_>,
        plan: impl FnOnce() -> outcore::Result<outcore::Job<T>> + Send,
        made: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Job> {
        Job::new(watching(py, plan)?, made)
    }

    /// `made` converts the result for Python.
    pub(crate) fn new<T: Send + 'static>(
        job: outcore::Result<outcore::Job<T>>,
        made: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Job> {
        let job = job
            .map_err(to_python)?
            .map(|result| Ok(Box::new(|py: Python<'_>| made(py, result)) as Made));
        let explanations = job.explain().to_vec();
        Ok(Job {
            job: Owned::new(Mutex::new(Some(job))),
            explanations,
        })
    }
}

/// Plans on this thread, which checks for signals meanwhile: after one whose handler raises, planning
/// ends with what was raised.
fn watching<T: Send>(py: Python<'_>, plan: impl FnOnce() -> T + Send) -> PyResult<T> {
    let (planned, raised) = py.detach(|| {
        let raised = Rc::new(Cell::new(None));
        let into = Rc::clone(&raised);
        let stop = move || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                into.set(Some(error));
                true
            }
        };
        (plan_until(stop, plan), raised.take())
    });
    raised.map_or(Ok(planned), Err)
}

#[pymethods]
impl Job {
    /// The plan as text.
    fn text(&self) -> String {
        let texts: Vec<String> = self
            .explanations
            .iter()
            .map(|one| one.to_string().trim_end().to_owned())
            .collect();
        texts.join("\n\n")
    }

    /// The plan as JSON: a list with one object a plan.
    fn json(&self) -> String {
        serde_json::to_string(&self.explanations).expect("numbers and names have no way to fail")
    }

    /// Starts the job, once.
    fn start(&self, py: Python<'_>) -> PyResult<Running> {
        let job = self.job.get()?.locked().take();
        let job = job.ok_or_else(|| to_python(Error::Closed))?;
        let running = watching(py, || job.start())?.map_err(to_python)?;
        Ok(Running(Owned::new(Mutex::new(Some(running)))))
    }
}

type Slot = Mutex<Option<outcore::Running<Made>>>;

/// Work in progress. Dropping it cancels it.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Running(Owned<Slot>);

impl Running {
    fn slot(&self) -> PyResult<MutexGuard<'_, Option<outcore::Running<Made>>>> {
        Ok(self.0.get()?.locked())
    }
}

#[pymethods]
impl Running {
    /// Waits for at most `timeout_s` seconds; true when the result is available.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::from_secs_f64(timeout_s.clamp(0.0, 3600.0));
        let slot = self.0.get()?;
        py.detach(|| match slot.locked().as_mut() {
            Some(running) => running.wait_timeout(timeout),
            None => Err(Error::Closed),
        })
        .map_err(to_python)
    }

    /// The result; waits for it.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let slot = self.0.get()?;
        let done = py.detach(|| slot.locked().take().ok_or(Error::Closed)?.wait());
        done.map_err(to_python)?(py)
    }

    /// Cancels the job.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.0.get()?;
        py.detach(|| {
            if let Some(running) = slot.locked().as_ref() {
                running.cancel();
            }
        });
        Ok(())
    }

    /// Progress, between 0 and 1.
    fn fraction(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| {
            Ok(self
                .slot()?
                .as_ref()
                .map_or(1.0, |running| running.progress().fraction))
        })
    }
}

/// Begins a step that shows no progress, such as opening a dataset or making a stream durable, on a
/// thread of its own. The step may ask whether it is to end.
pub(crate) fn begin<T: Send + 'static>(
    py: Python<'_>,
    session: &outcore::Session,
    step: impl FnOnce(&dyn Fn() -> bool) -> outcore::Result<T> + Send + 'static,
) -> PyResult<outcore::Running<T>> {
    let job = outcore::Job::driven(session, Vec::new(), move |stage, _| {
        step(&|| stage.is_cancelled())
    });
    py.detach(|| job?.start()).map_err(to_python)
}

/// Carries out such a step while this thread checks for signals. After a signal whose handler raises,
/// the step is cancelled, and left alone if it does not end soon.
pub(crate) fn carry_out<T: Send + 'static>(
    py: Python<'_>,
    session: &outcore::Session,
    step: impl FnOnce(&dyn Fn() -> bool) -> outcore::Result<T> + Send + 'static,
) -> PyResult<T> {
    if session.plans_only() {
        return py.detach(|| step(&|| false)).map_err(to_python);
    }
    let mut running = begin(py, session, step)?;
    while !py
        .detach(|| running.wait_timeout(LOOK_EVERY))
        .map_err(to_python)?
    {
        if let Err(raised) = py.check_signals() {
            running.cancel();
            _ = py.detach(|| running.wait());
            return Err(raised);
        }
    }
    py.detach(|| running.wait()).map_err(to_python)
}

/// Computes on a thread of its own, which is left alone on Ctrl-C.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("outcore-apart".into())
        .spawn(move || _ = sender.send(work()))?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(LOOK_EVERY)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(to_python(outcore::Error::Failed {
                    what: "a thread that computes has panicked".into(),
                }));
            }
        }
    }
}
