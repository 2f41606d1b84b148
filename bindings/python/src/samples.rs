//! Datasets of samples: written, read, loaded.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use outcore::Error;
use outcore::format::FormatError;
use outcore::samples::{
    Batch, Bytes, Channels, Column, Decode, End, ExternalFiles, Field, Form, Kind, LoaderOptions,
    LoaderState, ShardOptions, Shuffle, WriterOptions,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::error::to_python;
use crate::job::{Job, carry_out, nothing};
use crate::owned::Owned;
use crate::session::Session;
use crate::stream::{Data, lock};

/// Interval between checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A field: name, kind, type and shape of its numbers.
type Told = (String, String, String, Vec<Option<u64>>);

/// A field to decode: its name, channels, height and width.
type Picture = (String, u8, Option<(u32, u32)>);

fn told(field: &Field) -> Told {
    let (kind, dtype, shape) = match &field.kind {
        Kind::Bytes => ("bytes", String::new(), Vec::new()),
        Kind::Text => ("text", String::new(), Vec::new()),
        Kind::Array { dtype, shape } => ("array", dtype.clone(), shape.clone()),
    };
    (field.name.clone(), kind.into(), dtype, shape)
}

fn field((name, kind, dtype, shape): Told) -> Field {
    let kind = match kind.as_str() {
        "bytes" => Kind::Bytes,
        "text" => Kind::Text,
        _ => Kind::Array { dtype, shape },
    };
    Field { name, kind }
}

fn unknown(what: &str, word: &str) -> PyErr {
    to_python(Error::Value {
        what: format!("{word:?} is no {what}"),
    })
}

/// Runs a function that polls whether to continue: not after a signal for which Python has a
/// handler that raises.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    act: impl FnOnce(&mut (dyn FnMut() -> bool + Send)) -> outcore::Result<T> + Send,
) -> PyResult<T> {
    let mut interrupted = Ok(());
    let mut go_on = || {
        if interrupted.is_ok() {
            interrupted = Python::attach(|py| py.check_signals());
        }
        interrupted.is_ok()
    };
    let done = py.detach(|| act(&mut go_on));
    interrupted?;
    done.map_err(to_python)
}

fn form_of(name: &str) -> PyResult<Form> {
    Form::called(name).ok_or_else(|| unknown("form", name))
}

/// The kind of a file by its first bytes, if that is certain.
#[pyfunction]
pub(crate) fn shard_form(py: Python<'_>, path: PathBuf) -> PyResult<Option<&'static str>> {
    let form = py.detach(|| Form::of_file(&path)).map_err(to_python)?;
    Ok(form.map(Form::name))
}

/// External files, whose samples come one after the other.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Shards(Owned<Mutex<outcore::samples::Shards>>);

impl Shards {
    /// Runs a function on a separate thread, while this one checks for signals.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut outcore::samples::Shards) -> outcore::Result<T> + Send,
    ) -> PyResult<T> {
        let mut guard = lock(py, self.0.get()?);
        let stop = guard.stop();
        let shards = &mut *guard;
        interruptible(py, |go_on| {
            std::thread::scope(|scope| {
                let (sender, receiver) = std::sync::mpsc::channel();
                std::thread::Builder::new()
                    .name("outcore-shards".into())
                    .spawn_scoped(scope, move || sender.send(act(shards)))
                    .map_err(|error| Error::Failed {
                        what: format!("no thread to read shards: {error}"),
                    })?;
                loop {
                    match receiver.recv_timeout(LOOK_EVERY) {
                        Ok(done) => return done,
                        Err(RecvTimeoutError::Timeout) if go_on() => {}
                        Err(RecvTimeoutError::Timeout) => stop.store(true, Ordering::Relaxed),
                        Err(RecvTimeoutError::Disconnected) => return Err(Error::Closed),
                    }
                }
            })
        })
    }
}

#[pymethods]
impl Shards {
    /// Only those fields are looked at, if they are told.
    #[new]
    fn new(
        session: &Session,
        form: &str,
        files: Vec<PathBuf>,
        in_place: bool,
        fields: Option<Vec<String>>,
    ) -> PyResult<Shards> {
        let options = ShardOptions { in_place, fields };
        let shards = outcore::samples::Shards::new(session.get()?, form_of(form)?, files, options);
        Ok(Shards(Owned::new(Mutex::new(shards.map_err(to_python)?))))
    }

    /// What the first sample is made of.
    fn fields(&self, py: Python<'_>) -> PyResult<Vec<Told>> {
        self.with(py, |shards| Ok(shards.fields()?.iter().map(told).collect()))
    }

    /// Progress, between 0 and 1.
    fn fraction(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(lock(py, self.0.get()?).fraction())
    }
}

fn closed() -> PyErr {
    to_python(Error::Closed)
}

/// A dataset that is being written.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct DatasetWriter(Owned<Mutex<Option<outcore::samples::DatasetWriter>>>);

impl DatasetWriter {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut outcore::samples::DatasetWriter) -> outcore::Result<T> + Send,
    ) -> PyResult<T> {
        let mut writer = lock(py, self.0.get()?);
        let writer = writer.as_mut().ok_or_else(closed)?;
        py.detach(|| act(writer)).map_err(to_python)
    }

    fn taken(&self, py: Python<'_>) -> PyResult<outcore::samples::DatasetWriter> {
        lock(py, self.0.get()?).take().ok_or_else(closed)
    }
}

#[pymethods]
impl DatasetWriter {
    #[new]
    fn new(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        resume: bool,
    ) -> PyResult<DatasetWriter> {
        let session = session.get()?;
        let options = WriterOptions {
            resume,
            ..WriterOptions::default()
        };
        let own = session.clone();
        let create = move || outcore::samples::DatasetWriter::create(&own, path, options);
        let writer = match resume {
            // What an earlier writer left is read again.
            true => carry_out(py, session, |_: &dyn Fn() -> bool| create())?,
            false => py.detach(create).map_err(to_python)?,
        };
        Ok(DatasetWriter(Owned::new(Mutex::new(Some(writer)))))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |writer| Ok(writer.len() as usize))
    }

    fn fields(&self, py: Python<'_>) -> PyResult<Option<Vec<Told>>> {
        self.with(py, |writer| {
            Ok(writer
                .fields()
                .map(|fields| fields.iter().map(told).collect()))
        })
    }

    fn set_fields(&self, py: Python<'_>, fields: Vec<Told>) -> PyResult<()> {
        self.with(py, |writer| {
            writer.set_fields(fields.into_iter().map(field).collect())
        })
    }

    fn classes(&self, py: Python<'_>) -> PyResult<Option<Vec<String>>> {
        self.with(py, |writer| Ok(writer.classes().map(<[String]>::to_vec)))
    }

    fn set_classes(&self, py: Python<'_>, classes: Vec<String>) -> PyResult<()> {
        self.with(py, |writer| writer.set_classes(classes))
    }

    /// Appends a sample: the bytes of its fields.
    fn write(
        &self,
        py: Python<'_>,
        name: Option<&[u8]>,
        fields: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let data: Vec<Data<'_>> = fields.iter().map(Data::of).collect::<PyResult<_>>()?;
        let fields: Vec<&[u8]> = data.iter().map(Data::bytes).collect();
        self.with(py, |writer| writer.write(name, &fields))
    }

    /// Appends samples of another dataset.
    fn copy(
        &self,
        py: Python<'_>,
        from: &Dataset,
        samples: PyReadonlyArray1<'_, u64>,
        named: bool,
    ) -> PyResult<()> {
        let (from, samples) = (from.0.get()?, samples.as_slice()?);
        let mut writer = lock(py, self.0.get()?);
        let writer = writer.as_mut().ok_or_else(closed)?;
        interruptible(py, |go_on| writer.copy(from, samples, named, go_on))
    }

    /// Sets the external files of the samples, with their lengths.
    fn set_elsewhere(
        &self,
        py: Python<'_>,
        path: PathBuf,
        form: &str,
        files: Vec<(PathBuf, u64)>,
    ) -> PyResult<()> {
        let form = form_of(form)?;
        self.with(py, |writer| {
            writer.set_elsewhere(ExternalFiles::of(&path, form, files))
        })
    }

    /// Takes samples of shards, `most` at most, for a short time; false when there are no more.
    fn take(&self, py: Python<'_>, shards: &Shards, named: bool, most: u64) -> PyResult<bool> {
        let mut writer = lock(py, self.0.get()?);
        let writer = writer.as_mut().ok_or_else(closed)?;
        shards.with(py, |shards| shards.take(writer, named, most))
    }

    fn note(&self, py: Python<'_>, note: String) -> PyResult<()> {
        self.with(py, |writer| {
            writer.note(note);
            Ok(())
        })
    }

    fn noted(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |writer| Ok(writer.noted().to_owned()))
    }

    fn save(&self, py: Python<'_>) -> PyResult<()> {
        let mut writer = lock(py, self.0.get()?);
        let writer = writer.as_mut().ok_or_else(closed)?;
        interruptible(py, |go_on| writer.save_until(go_on))
    }

    /// Number of samples that a resuming writer could continue after.
    fn durable(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |writer| Ok(writer.durable()))
    }

    /// Fails if `bytes` more bytes of samples do not fit.
    fn expect(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.with(py, |writer| writer.expect(bytes))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<Job> {
        Job::new(self.taken(py)?.finish(), nothing)
    }

    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        self.taken(py)?.discard();
        Ok(())
    }

    /// Leaves the durable part for a writer that resumes.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let writer = self.taken(py)?;
        py.detach(|| drop(writer));
        Ok(())
    }
}

/// An open dataset.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Dataset(Owned<outcore::samples::Dataset>);

#[pymethods]
impl Dataset {
    /// For the fields to decode: channels, and height and width if all images have the same; and
    /// whether images are rotated.
    #[new]
    fn new(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        decode: Vec<Picture>,
        turned: bool,
    ) -> PyResult<Dataset> {
        let (session, own) = (session.get()?, session.get()?.clone());
        let decode = decode.into_iter().map(|(field, channels, size)| {
            let channels = match channels {
                1 => Channels::Gray,
                4 => Channels::Rgba,
                _ => Channels::Rgb,
            };
            Decode {
                field,
                channels,
                size,
                turned,
            }
        });
        let decode: Vec<Decode> = decode.collect();
        let open = move |stop: &dyn Fn() -> bool| {
            outcore::samples::Dataset::open_until(&own, path, stop)?.decoding(decode)
        };
        Ok(Dataset(Owned::new(carry_out(py, session, open)?)))
    }

    /// Length of each of some samples.
    fn sizes<'py>(
        &self,
        py: Python<'py>,
        samples: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let dataset = self.0.get()?;
        let sizes: outcore::Result<Vec<u64>> = samples
            .as_slice()?
            .iter()
            .map(|&sample| dataset.bytes_of(sample))
            .collect();
        Ok(PyArray1::from_vec(py, sizes.map_err(to_python)?))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len() as usize)
    }

    fn fields(&self) -> PyResult<Vec<Told>> {
        Ok(self.0.get()?.fields().iter().map(told).collect())
    }

    /// Whether samples are in external files.
    fn is_in_place(&self) -> PyResult<bool> {
        Ok(self.0.get()?.form().is_some())
    }

    /// A number that distinguishes datasets.
    fn digest(&self) -> PyResult<u64> {
        Ok(self.0.get()?.digest())
    }

    fn is_named(&self) -> PyResult<bool> {
        Ok(self.0.get()?.is_named())
    }

    /// Bytes of all samples, and of the directory in memory.
    fn nbytes(&self) -> PyResult<(u64, u64)> {
        let dataset = self.0.get()?;
        Ok((dataset.bytes(), dataset.directory_bytes()))
    }

    fn clustering(&self) -> PyResult<Vec<(String, f64)>> {
        Ok(self.0.get()?.clustering().to_vec())
    }

    /// The names of the numbers of `label`.
    fn classes(&self) -> PyResult<Option<Vec<String>>> {
        Ok(self.0.get()?.classes().map(<[String]>::to_vec))
    }

    fn find(&self, py: Python<'_>, name: &[u8]) -> PyResult<Option<u64>> {
        let dataset = self.0.get()?;
        py.detach(|| dataset.find(name)).map_err(to_python)
    }

    fn name<'py>(&self, py: Python<'py>, sample: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let dataset = self.0.get()?;
        let name = py.detach(|| dataset.name(sample)).map_err(to_python)?;
        Ok(name.map(|name| PyBytes::new(py, &name)))
    }

    /// The names of some groups of 64.
    fn names<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        end: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let dataset = self.0.get()?;
        let names = py.detach(|| dataset.names(first..end)).map_err(to_python)?;
        Ok(names
            .iter()
            .flatten()
            .map(|name| PyBytes::new(py, name))
            .collect())
    }

    /// Reads the sample of a name, field by field.
    fn read_named<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let dataset = self.0.get()?;
        let batch = interruptible(py, |go_on| dataset.load_named(name, go_on))?;
        batch.map(|batch| columns(py, dataset, batch)).transpose()
    }

    /// Faults of some samples: number, kind and reason of each.
    fn faults(
        &self,
        py: Python<'_>,
        first: u64,
        end: u64,
    ) -> PyResult<Vec<(u64, &'static str, String)>> {
        let dataset = self.0.get()?;
        let faults = interruptible(py, |go_on| dataset.faults(first..end, go_on))?;
        let kind = |error: &Error| match error {
            Error::Format(FormatError::Unsupported { .. }) => "unsupported",
            Error::OverBudget { .. } | Error::NoMemory { .. } => "too large",
            _ => "damaged",
        };
        Ok(faults
            .into_iter()
            .map(|(sample, error)| (sample, kind(&error), error.to_string()))
            .collect())
    }

    /// Samples, field by field.
    fn read<'py>(
        &self,
        py: Python<'py>,
        samples: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (dataset, samples) = (self.0.get()?, samples.as_slice()?);
        let batch = interruptible(py, |go_on| dataset.load(samples, go_on))?;
        columns(py, dataset, batch)
    }

    /// Samples, field by field into the bytes of arrays.
    fn read_into<'py>(
        &self,
        py: Python<'py>,
        samples: PyReadonlyArray1<'py, u64>,
        mut out: Vec<PyReadwriteArray1<'py, u8>>,
    ) -> PyResult<()> {
        let (dataset, samples) = (self.0.get()?, samples.as_slice()?);
        let mut columns = out
            .iter_mut()
            .map(|array| Ok(array.as_slice_mut()?))
            .collect::<PyResult<Vec<&mut [u8]>>>()?;
        interruptible(py, |go_on| dataset.load_into(samples, &mut columns, go_on))
    }
}

/// The owner of the memory of a column's array.
#[pyclass(frozen, module = "outcore._native")]
struct Memory(Bytes);

/// The columns of a batch: fixed fields as an array of bytes; variable arrays with the end of each;
/// lists of bytes and of text.
fn columns<'py>(
    py: Python<'py>,
    dataset: &outcore::samples::Dataset,
    batch: Batch,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let count = batch.len();
    let list = |column: &Column, field: &Field| -> PyResult<Bound<'py, PyAny>> {
        let bytes = (0..count).map(|index| column.get(index));
        match field.kind {
            Kind::Text => Ok(PyList::new(
                py,
                bytes
                    .map(|text| PyString::from_bytes(py, text))
                    .collect::<PyResult<Vec<_>>>()?,
            )?
            .into_any()),
            _ => Ok(PyList::new(
                py,
                bytes
                    .map(|bytes| PyBytes::new(py, bytes))
                    .collect::<Vec<_>>(),
            )?
            .into_any()),
        }
    };
    let array = |bytes: Bytes| -> PyResult<Bound<'py, PyAny>> {
        let memory = Bound::new(py, Memory(bytes))?;
        let bytes: &[u8] = &memory.get().0;
        // SAFETY: the array is based on the memory, which has no other owner and is not read again.
        Ok(unsafe {
            PyArray1::borrow_from_array(&ArrayView1::from(bytes), memory.clone().into_any())
        }
        .into_any())
    };
    let of = |(number, (column, field)): (usize, (Column, &Field))| match column {
        Column::Fixed { bytes, .. } => array(bytes),
        Column::Varying { bytes, ends } if dataset.is_array(number) => {
            Ok((array(bytes)?, ends).into_pyobject(py)?.into_any())
        }
        Column::Varying { .. } => list(&column, field),
    };
    batch
        .into_columns()
        .into_iter()
        .zip(dataset.fields())
        .enumerate()
        .map(of)
        .collect()
}

/// Number of samples, and their fields.
type Counted<'py> = (usize, Vec<Bound<'py, PyAny>>);

/// Batches of a dataset.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Loader {
    inner: Owned<Mutex<outcore::samples::Loader>>,
    /// Epoch and position behind the last batch, for a forked child, which cannot use the loader.
    place: [AtomicU64; 2],
}

impl Loader {
    fn with<T>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut outcore::samples::Loader) -> T,
    ) -> PyResult<T> {
        let mut loader = lock(py, self.inner.get()?);
        let done = act(&mut loader);
        self.tell(&loader);
        Ok(done)
    }

    fn tell(&self, loader: &outcore::samples::Loader) {
        let LoaderState {
            epoch, position, ..
        } = loader.state();
        self.place
            .iter()
            .zip([epoch, position])
            .for_each(|(place, now)| place.store(now, Ordering::Relaxed));
    }
}

#[pymethods]
impl Loader {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "how a dataset may be loaded")]
    fn new(
        dataset: &Dataset,
        batch: u64,
        shuffle: &str,
        chunks: Option<u64>,
        seed: u64,
        rank: u64,
        ranks: u64,
        end: &str,
        drop_last: bool,
        ahead: Option<usize>,
        skip_damaged: bool,
    ) -> PyResult<Loader> {
        let dataset = dataset.0.get()?;
        let shuffle = match shuffle {
            "chunk" => dataset.chunk_shuffle(chunks),
            "global" => Shuffle::Global,
            "no" => Shuffle::No,
            _ => return Err(unknown("shuffle", shuffle)),
        };
        let end = match end {
            "drop" => End::Drop,
            "uneven" => End::Uneven,
            "pad" => End::Pad,
            _ => return Err(unknown("end", end)),
        };
        let options = LoaderOptions {
            batch,
            shuffle,
            seed,
            rank,
            ranks,
            end,
            drop_last,
            ahead,
            skip_damaged,
        };
        let loader = outcore::samples::Loader::new(dataset, options).map_err(to_python)?;
        Ok(Loader {
            inner: Owned::new(Mutex::new(loader)),
            place: Default::default(),
        })
    }

    /// Number of samples of the next batch, and their fields; `None` at the end of an epoch.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Counted<'py>>> {
        let slot = self.inner.get()?;
        loop {
            let mut guard = lock(py, slot);
            let loader = &mut *guard;
            if py
                .detach(|| loader.ready_within(LOOK_EVERY))
                .map_err(to_python)?
            {
                let batch = interruptible(py, |go_on| loader.next_batch(go_on))?;
                self.tell(loader);
                let Some(batch) = batch else { return Ok(None) };
                let (count, dataset) = (batch.len(), loader.dataset().clone());
                drop(guard);
                return Ok(Some((count, columns(py, &dataset, batch)?)));
            }
            drop(guard);
            py.check_signals()?;
        }
    }

    /// Batches of an epoch, and those left of it.
    fn lengths(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |loader| (loader.len(), loader.left()))
    }

    fn set_batch(&self, py: Python<'_>, batch: u64) -> PyResult<()> {
        self.with(py, |loader| loader.set_batch(batch))?
            .map_err(to_python)
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| loader.set_epoch(epoch))
    }

    /// Epoch, and samples of it that all ranks together have read; also in a forked child.
    fn place(&self) -> (u64, u64) {
        let [epoch, position] = self
            .place
            .each_ref()
            .map(|place| place.load(Ordering::Relaxed));
        (epoch, position)
    }

    /// The state as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.with(py, |loader| loader.state())?;
        Ok(serde_json::to_string(&state).expect("numbers and names have no way to fail"))
    }

    fn restore(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let state: LoaderState = serde_json::from_str(state).map_err(|error| {
            to_python(Error::Value {
                what: format!("not the state of a loader: {error}"),
            })
        })?;
        self.with(py, |loader| loader.restore(&state))?
            .map_err(to_python)
    }

    /// Number of skipped samples, and the fault of the first.
    fn skipped(&self, py: Python<'_>) -> PyResult<(u64, Option<String>)> {
        self.with(py, |loader| {
            let (count, first) = loader.skipped();
            (count, first.map(ToString::to_string))
        })
    }
}
