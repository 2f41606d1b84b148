//! Streams, and the memory that they lend.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayMethods};
use outcore::device::Locked;
use outcore::store::{Access, State};
use outcore::streams::{Records, StreamBlock};
use outcore::{Buf, Compression, Error, StreamInfo, StreamOptions};
use pyo3::exceptions::{PyBufferError, PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView};

use crate::adopted;
use crate::error::to_python;
use crate::job::{begin, carry_out};
use crate::owned::Owned;
use crate::session::Session;

/// Interval between checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Number of records taken from Python objects at once.
const AT_ONCE: usize = 1024;
const AT_ONCE_BYTES: usize = 1 << 20;

/// Streams by name.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct StreamStore(Owned<outcore::StreamStore>);

#[pymethods]
impl StreamStore {
    #[new]
    fn new(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        read_only: bool,
    ) -> PyResult<StreamStore> {
        let (session, own) = (session.get()?, session.get()?.clone());
        let access = if read_only {
            Access::Read
        } else {
            Access::Write
        };
        let open = move |_: &dyn Fn() -> bool| outcore::StreamStore::open(&own, path, access);
        let store = carry_out(py, session, open)?;
        Ok(StreamStore(Owned::new(store)))
    }

    /// Begins a stream.
    #[expect(clippy::too_many_arguments, reason = "what a stream may be like")]
    fn write(
        &self,
        py: Python<'_>,
        name: &str,
        ahead: usize,
        frames: Vec<Bound<'_, PyArray1<u8>>>,
        block_bytes: u32,
        compression: &str,
        replace: bool,
    ) -> PyResult<StreamWriter> {
        let store = self.0.get()?;
        let compression = match compression {
            "none" => Compression::None,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd,
            other => {
                return Err(argument(format!(
                    "compression must be None, 'lz4' or 'zstd', not {other:?}"
                )));
            }
        };
        let options = StreamOptions {
            ahead,
            frames: frames_of(&frames)?,
            block_bytes,
            compression,
            replace,
        };
        let writer = py
            .detach(|| store.write(name, options))
            .map_err(to_python)?;
        Ok(StreamWriter(Owned::new(Mutex::new(Writing {
            session: store.session().clone(),
            writer: Some(writer),
            ending: None,
            lent: Weak::new(),
        }))))
    }

    /// Opens a stream; with `destroy`, for its last reading.
    fn read(
        &self,
        py: Python<'_>,
        name: &str,
        ahead: usize,
        frames: Vec<Bound<'_, PyArray1<u8>>>,
        destroy: bool,
    ) -> PyResult<StreamReader> {
        let store = self.0.get()?;
        let options = StreamOptions {
            ahead,
            frames: frames_of(&frames)?,
            ..StreamOptions::default()
        };
        let open = || {
            if destroy {
                store.read_and_destroy(name, options)
            } else {
                store.read(name, options)
            }
        };
        Ok(StreamReader(Owned::new(Mutex::new(Some(
            py.detach(open).map_err(to_python)?,
        )))))
    }

    fn destroy(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let store = self.0.get()?;
        py.detach(|| store.destroy(name)).map_err(to_python)
    }

    fn rename(&self, py: Python<'_>, from: &str, to: &str) -> PyResult<()> {
        let store = self.0.get()?;
        py.detach(|| store.rename(from, to)).map_err(to_python)
    }

    fn info<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, self.0.get()?.info(name).map_err(to_python)?)
    }

    fn streams<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.0
            .get()?
            .streams()
            .into_iter()
            .map(|info| dictionary(py, info))
            .collect()
    }

    fn free_bytes(&self) -> PyResult<u64> {
        self.0.get()?.free_bytes().map_err(to_python)
    }
}

fn dictionary(py: Python<'_>, info: StreamInfo) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("name", info.name)?;
    found.set_item("state", state_name(info.state))?;
    found.set_item("nbytes", info.bytes)?;
    found.set_item("record_count", info.records)?;
    found.set_item("stored_bytes", info.stored_bytes)?;
    found.set_item("block_bytes", info.block_bytes)?;
    let compression = match info.compression {
        Compression::None => None,
        Compression::Lz4 => Some("lz4"),
        Compression::Zstd => Some("zstd"),
    };
    found.set_item("compression", compression)?;
    found.set_item("about", PyBytes::new(py, &info.about))?;
    Ok(found)
}

pub(crate) fn state_name(state: State) -> &'static str {
    match state {
        State::Whole => "whole",
        State::BeingWritten => "being written",
        State::Interrupted => "unfinished",
    }
}

fn frames_of(frames: &[Bound<'_, PyArray1<u8>>]) -> PyResult<Vec<Buf>> {
    let frames: Vec<Buf> = frames
        .iter()
        .map(|frame| match frame.try_readwrite() {
            Ok(_) => adopted::bytes(frame),
            Err(_) => Err(argument(
                "frames must be arrays that can be written, each another".into(),
            )),
        })
        .collect::<PyResult<_>>()?;
    let mut ranges: Vec<_> = frames.iter().map(|frame| frame.as_ptr_range()).collect();
    ranges.sort_by_key(|range| range.start);
    match ranges.windows(2).all(|pair| pair[0].end <= pair[1].start) {
        true => Ok(frames),
        false => Err(argument("frames must not overlap".into())),
    }
}

pub(crate) fn number(fd: Option<BorrowedFd<'_>>) -> PyResult<i32> {
    let refused = || PyOSError::new_err("the system gave no descriptor");
    fd.map(|fd| fd.as_raw_fd()).ok_or_else(refused)
}

fn argument(what: String) -> PyErr {
    to_python(Error::Value { what })
}

fn closed() -> PyErr {
    to_python(Error::Closed)
}

struct Writing {
    session: outcore::Session,
    writer: Option<outcore::StreamWriter>,
    /// The end of the stream on its way; a wait that was interrupted can be repeated.
    ending: Option<outcore::Running<()>>,
    /// Alive as long as Python holds memory of the stream.
    lent: Weak<()>,
}

/// The owner of arrays of lent memory: it keeps the writer, which owns the memory.
#[pyclass(frozen, module = "outcore._native")]
struct Loan {
    _writer: Py<StreamWriter>,
    _lent: Arc<()>,
}

impl Writing {
    /// The writer, if its lent memory has been returned.
    fn get(&mut self) -> PyResult<&mut outcore::StreamWriter> {
        if self.lent.strong_count() > 0 {
            let what = "the stream's memory is still in use: drop the buffer, and what was made of it, before going on";
            return Err(PyBufferError::new_err(what));
        }
        self.writer.as_mut().ok_or_else(closed)
    }
}

/// A stream that is being written.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct StreamWriter(Owned<Mutex<Writing>>);

impl StreamWriter {
    /// Runs steps, none of which waits for the device, until one reports that it was the last.
    fn steps(
        &self,
        py: Python<'_>,
        mut step: impl FnMut(&mut outcore::StreamWriter) -> outcore::Result<bool> + Send,
    ) -> PyResult<()> {
        let slot = self.0.get()?;
        loop {
            let over = {
                let mut writing = lock(py, slot);
                let (writer, step) = (writing.get()?, &mut step);
                py.detach(|| {
                    while writer.ready_within(LOOK_EVERY) {
                        if step(writer)? {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                })
            };
            if over.map_err(to_python)? {
                return Ok(());
            }
            // Without the lock, since a handler may close the stream.
            py.check_signals()?;
        }
    }
}

impl StreamWriter {
    /// Copies bytes, a block at a time.
    fn copy(&self, py: Python<'_>, bytes: &[u8], unit: usize) -> PyResult<()> {
        let mut from = 0;
        self.steps(py, |writer| {
            from += writer.write_some(&bytes[from..], unit)?;
            Ok(from == bytes.len())
        })
    }
}

/// Waits for the lock without the GIL, since the holder of the lock may wait for the GIL.
pub(crate) fn lock<'a, T: Send>(py: Python<'_>, slot: &'a Mutex<T>) -> MutexGuard<'a, T> {
    match slot.try_lock() {
        Ok(guard) => guard,
        Err(_) => {
            py.detach(|| drop(slot.locked()));
            lock(py, slot)
        }
    }
}

#[pymethods]
impl StreamWriter {
    /// Copies bytes, of which each `unit` is within one block.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, unit: usize) -> PyResult<()> {
        self.copy(py, Data::of(data)?.bytes(), unit)
    }

    /// The memory of the next bytes, at least `least` of them.
    fn buffer<'py>(slf: &Bound<'py, Self>, least: usize) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let py = slf.py();
        let this = slf.get();
        // Waits for whatever is needed.
        this.steps(py, |writer| writer.buffer_of(least).map(|_| true))?;
        let slot = this.0.get()?;
        let mut writing = lock(py, slot);
        let buffer = writing.get()?.buffer_of(least).map_err(to_python)?;
        let lent = Arc::new(());
        let loan = Bound::new(
            py,
            Loan {
                _writer: slf.clone().unbind(),
                _lent: Arc::clone(&lent),
            },
        )?;
        let view = ArrayView1::from(&*buffer);
        // SAFETY: the array is based on the loan, which keeps the writer. While the loan has
        // another holder, this memory is not used and the writer does not release it:
        // `Writing::get` checks that, and is the only way to the writer.
        let array = unsafe { PyArray1::borrow_from_array(&view, loan.into_any()) };
        writing.lent = Arc::downgrade(&lent);
        Ok(array)
    }

    /// Counts bytes of the memory as written.
    fn advance(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        self.steps(py, |writer| {
            let room = writer.buffer()?.len();
            if count > room {
                return Err(Error::Value {
                    what: format!("{count} bytes of a buffer of {room}"),
                });
            }
            writer.advance(count).map(|()| true)
        })
    }

    /// Keeps the next bytes in one block, if blocks are long enough and little of this one is left.
    fn keep_together(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        self.steps(py, |writer| writer.keep_together(count).map(|()| true))
    }

    fn end_record(&self, py: Python<'_>) -> PyResult<()> {
        self.steps(py, |writer| writer.end_record().map(|()| true))
    }

    fn end_block(&self, py: Python<'_>) -> PyResult<()> {
        self.steps(py, |writer| writer.end_block().map(|()| true))
    }

    /// Writes one record.
    fn write_record(&self, py: Python<'_>, record: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Data::of(record)?;
        if data.bytes().len() > AT_ONCE_BYTES {
            self.copy(py, data.bytes(), 1)?;
            return self.end_record(py);
        }
        if lock(py, self.0.get()?)
            .get()?
            .put_record(data.bytes())
            .map_err(to_python)?
        {
            return Ok(());
        }
        let mut records = std::iter::once(data.bytes());
        self.steps(py, |writer| {
            writer.write_records(&mut records).map(|more| !more)
        })
    }

    /// Writes each item of an iterable as a record.
    fn write_records(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut items = records.try_iter()?;
        loop {
            let (mut part, mut bytes): (Vec<Data<'_>>, _) = (Vec::new(), 0);
            while part.len() < AT_ONCE
                && bytes < AT_ONCE_BYTES
                && let Some(item) = items.next()
            {
                part.push(Data::of(&item?)?);
                bytes += part.last().map_or(0, |data| data.bytes().len());
            }
            let bytes: Vec<&[u8]> = part.iter().map(Data::bytes).collect();
            if bytes.is_empty() {
                return Ok(());
            }
            if bytes.iter().any(|bytes| bytes.len() > AT_ONCE_BYTES) {
                part.iter().try_for_each(|data| {
                    self.copy(py, data.bytes(), 1)?;
                    self.end_record(py)
                })?;
                continue;
            }
            let mut records = bytes.iter().copied();
            self.steps(py, |writer| {
                writer.write_records(&mut records).map(|more| !more)
            })?;
        }
    }

    /// Writes records of equal length, one after another.
    fn write_rows(&self, py: Python<'_>, data: &Bound<'_, PyAny>, length: usize) -> PyResult<()> {
        let data = Data::of(data)?;
        if length == 0 || !data.bytes().len().is_multiple_of(length) {
            return Err(argument(format!(
                "{} bytes are no records of {length} bytes",
                data.bytes().len()
            )));
        }
        let mut records = data.bytes().chunks_exact(length);
        self.steps(py, |writer| {
            writer.write_records(&mut records).map(|more| !more)
        })
    }

    /// Writes records that begin and end at `offsets`.
    fn write_slices(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyArray1<i64>>,
    ) -> PyResult<()> {
        let data = Data::of(data)?;
        let offsets = offsets.try_readonly()?;
        let offsets = offsets.as_slice()?;
        let len = data.bytes().len();
        let inside = |pair: &[i64]| 0 <= pair[0] && pair[0] <= pair[1] && pair[1] as usize <= len;
        if !offsets.windows(2).all(inside) {
            return Err(argument(format!(
                "offsets must go up within the {len} bytes"
            )));
        }
        let bytes = data.bytes();
        let mut records = offsets
            .windows(2)
            .map(|pair| &bytes[pair[0] as usize..pair[1] as usize]);
        self.steps(py, |writer| {
            writer.write_records(&mut records).map(|more| !more)
        })
    }

    /// Address of the next byte in memory, modulo 4096.
    fn alignment(&self, py: Python<'_>) -> PyResult<usize> {
        let mut found = 0;
        self.steps(py, |writer| {
            found = writer.alignment()?;
            Ok(true)
        })?;
        Ok(found)
    }

    /// A descriptor that is readable while the next bytes have room.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let writing = lock(py, self.0.get()?);
        let writer = writing.writer.as_ref().ok_or_else(closed)?;
        number(writer.fd())
    }

    fn set_about(&self, py: Python<'_>, about: &[u8]) -> PyResult<()> {
        lock(py, self.0.get()?).get()?.set_about(about);
        Ok(())
    }

    /// Name, bytes and records so far.
    fn so_far(&self, py: Python<'_>) -> PyResult<(String, u64, u64)> {
        let writing = lock(py, self.0.get()?);
        let writer = writing.writer.as_ref().ok_or_else(closed)?;
        Ok((writer.name().to_owned(), writer.bytes(), writer.records()))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.0.get()?;
        loop {
            let mut writing = lock(py, slot);
            if writing.ending.is_none() {
                writing.get()?;
                let writer = writing.writer.take().ok_or_else(closed)?;
                let finish = move |stop: &dyn Fn() -> bool| writer.finish_until(stop);
                writing.ending = Some(begin(py, &writing.session, finish)?);
            }
            let ending = &mut writing.ending;
            let ended = py.detach(|| match ending {
                Some(ending) => ending.wait_timeout(LOOK_EVERY),
                None => Err(Error::Closed),
            });
            if ended.map_err(to_python)?
                && let Some(ended) = writing.ending.take()
            {
                return py.detach(|| ended.wait()).map_err(to_python);
            }
            drop(writing);
            // Without the lock, since a handler may close the stream.
            py.check_signals()?;
        }
    }

    /// Discards the stream.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let mut writing = lock(py, self.0.get()?);
        if writing.writer.is_some() {
            writing.get()?;
        }
        let (writer, ending) = (writing.writer.take(), writing.ending.take());
        py.detach(|| {
            drop(writer);
            if let Some(ending) = ending {
                ending.cancel();
                _ = ending.wait();
            }
        });
        Ok(())
    }
}

/// Bytes of a Python object, valid while it is held: of bytes, or of a contiguous array of bytes.
pub(crate) enum Data<'py> {
    Bytes(Bound<'py, PyBytes>),
    Array(outcore::Shared),
}

impl<'py> Data<'py> {
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Data<'py>> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data::Bytes(bytes.clone()));
        }
        if let Ok(array) = object.cast::<PyArray1<u8>>() {
            return Ok(Data::Array(adopted::bytes(array)?.freeze()));
        }
        // Other objects with bytes provide a buffer.
        let view = PyMemoryView::from(object).map_err(|_| {
            PyTypeError::new_err(format!(
                "a record must be bytes or another buffer, not {}",
                object.get_type()
            ))
        })?;
        Ok(Data::Bytes(view.call_method0("tobytes")?.cast_into()?))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes.as_bytes(),
            Data::Array(bytes) => bytes,
        }
    }
}

/// The owner of the memory of a block's arrays.
#[pyclass(frozen, module = "outcore._native")]
struct Block(Owned<StreamBlock>);

#[pyclass(frozen, module = "outcore._native")]
struct RecordBlock(Owned<Records>);

/// Copies of records, which begin and end at `offsets`.
#[pyfunction]
pub(crate) fn split_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyArray1<u8>>,
    offsets: &Bound<'py, PyArray1<u32>>,
) -> PyResult<Bound<'py, PyList>> {
    let (data, offsets) = (data.try_readonly()?, offsets.try_readonly()?);
    let (data, offsets) = (data.as_slice()?, offsets.as_slice()?);
    let record = |pair: &[u32]| data.get(pair[0] as usize..pair[1] as usize);
    let records: Option<Vec<&[u8]>> = offsets.windows(2).map(record).collect();
    let records = records.ok_or_else(|| argument("records must lie within their bytes".into()))?;
    PyList::new(
        py,
        records.into_iter().map(|record| PyBytes::new(py, record)),
    )
}

/// A stream being read.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct StreamReader(Owned<Mutex<Option<outcore::StreamReader>>>);

impl StreamReader {
    fn next<T: Send>(
        &self,
        py: Python<'_>,
        take: impl Fn(&mut outcore::StreamReader) -> outcore::Result<T> + Sync,
    ) -> PyResult<T> {
        let (slot, take) = (self.0.get()?, &take);
        loop {
            let mut slot = lock(py, slot);
            let reader = slot.as_mut().ok_or_else(closed)?;
            let taken = py.detach(|| {
                if reader.ready_within(LOOK_EVERY) {
                    Some(take(reader))
                } else {
                    None
                }
            });
            drop(slot);
            match taken {
                Some(taken) => return taken.map_err(to_python),
                // Without the lock, since a handler may close the stream.
                None => py.check_signals()?,
            }
        }
    }
}

#[pymethods]
impl StreamReader {
    /// The next contiguous bytes, read-only; `None` at the end.
    fn next_block<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArray1<u8>>>> {
        let Some(block) = self.next(py, outcore::StreamReader::next_block)? else {
            return Ok(None);
        };
        let block = Bound::new(py, Block(Owned::new(block)))?;
        let bytes: &[u8] = block.get().0.get()?;
        // SAFETY: the array is based on the block, which keeps its bytes and never changes them;
        // the array is read-only.
        let array = unsafe {
            PyArray1::borrow_from_array(&ArrayView1::from(bytes), block.clone().into_any())
        };
        array.readwrite().make_nonwriteable();
        Ok(Some(array))
    }

    /// The next contiguous records: bytes, and begin and end of each record; `None` at the end.
    #[expect(clippy::type_complexity, reason = "two arrays")]
    fn next_records<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<u8>>)>> {
        let Some(records) = self.next(py, outcore::StreamReader::next_records)? else {
            return Ok(None);
        };
        let block = Bound::new(py, RecordBlock(Owned::new(records)))?;
        let records = block.get().0.get()?;
        let array = |bytes: &[u8]| {
            // SAFETY: as above.
            let array = unsafe {
                PyArray1::borrow_from_array(&ArrayView1::from(bytes), block.clone().into_any())
            };
            array.readwrite().make_nonwriteable();
            array
        };
        Ok(Some((array(records.bytes()), array(records.offsets()))))
    }

    /// A descriptor that is readable while something can be had without waiting.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let mut slot = lock(py, self.0.get()?);
        number(slot.as_mut().ok_or_else(closed)?.fd())
    }

    /// Name, bytes and records of the whole stream, and what its writer said of it.
    fn about<'py>(&self, py: Python<'py>) -> PyResult<(String, u64, u64, Bound<'py, PyBytes>)> {
        let slot = lock(py, self.0.get()?);
        let reader = slot.as_ref().ok_or_else(closed)?;
        Ok((
            reader.name().to_owned(),
            reader.bytes(),
            reader.records(),
            PyBytes::new(py, reader.about()),
        ))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let reader = lock(py, self.0.get()?).take();
        py.detach(|| drop(reader));
        Ok(())
    }
}
