//! Embedding tables.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use numpy::{
    PyArrayDescrMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods,
};
use outcore::device::Locked;
use outcore::tables::placement::Placement;
use outcore::tables::{
    Bags, Failure, Feature, Gradient, Ids, JaggedBatch, Opening, Optimizer, Out, PolicyKind,
    Pooling, RowEncoding, Serving, Table, TableSet, TableWriter,
};
use outcore::{Buf, DType, Error};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::adopted::adopt;
use crate::error::to_python;
use crate::job::carry_out;
use crate::owned::Owned;
use crate::samples::interruptible;
use crate::session::Session;
use crate::stream::number;

fn wrong(what: impl Into<String>) -> PyErr {
    to_python(Error::value(what))
}

fn encoding_of(name: &str) -> PyResult<RowEncoding> {
    name.parse()
        .map_err(|error: outcore::kernels::embedding::UnknownEncoding| wrong(error.to_string()))
}

/// Paths of each table, and how it is opened.
fn openings(tables: Vec<Given>) -> PyResult<Vec<(Vec<PathBuf>, Opening)>> {
    let of = |(paths, tensor, encoding, for_writing): Given| -> PyResult<(Vec<PathBuf>, Opening)> {
        let opening = Opening {
            tensor,
            encoding: encoding.as_deref().map(encoding_of).transpose()?,
            for_writing,
        };
        Ok((paths, opening))
    };
    tables.into_iter().map(of).collect()
}

/// Tables that are looked up together.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct Tables(Owned<TableSet>);

/// Of a table: path, rows, elements of a row, bytes of a stored row, encoding, type of results, and whether
/// it is packed.
type Description = (String, u64, usize, usize, String, &'static str, bool);

/// What a table is opened from: paths, tensor and encoding; and whether it is written.
type Given = (Vec<PathBuf>, Option<String>, Option<String>, bool);

/// A feature: table, ids, how bags are given and what gives them, pooling, weights, padding.
type AskedFeature<'py> = (
    usize,
    Bound<'py, PyUntypedArray>,
    String,
    Option<Bound<'py, PyUntypedArray>>,
    usize,
    String,
    Option<Bound<'py, PyUntypedArray>>,
    Option<u64>,
);

/// Features of all samples: tables, ids, lengths, pooling, weights.
type AskedBatch<'py> = (
    Vec<usize>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyUntypedArray>,
    String,
    Option<Bound<'py, PyUntypedArray>>,
);

/// What a call asks.
#[derive(FromPyObject)]
enum Asked<'py> {
    Features(Vec<AskedFeature<'py>>),
    Batch(AskedBatch<'py>),
}

/// Memory of a result, its type, and, where it is that of several, which have equally many rows and lie one after
/// another, the elements of a row of each.
type Place<'py> = (Bound<'py, PyUntypedArray>, String, Option<Vec<usize>>);

/// A feature, the gradient of its result, and the order of its members.
type AskedGradient<'py> = (
    AskedFeature<'py>,
    Bound<'py, PyUntypedArray>,
    Option<PyReadonlyArray1<'py, i64>>,
);

/// A bag that could not be looked up: its feature, its number, and the exception.
type Failed = (usize, usize, Py<PyAny>);

#[pymethods]
impl Tables {
    /// Paths, tensor and encoding of each table, and whether it is written; bytes of the cache, its policy, bytes of what is being
    /// read, and how many look-ups read at a time.
    #[new]
    fn new(
        py: Python<'_>,
        session: &Session,
        tables: Vec<Given>,
        cache_bytes: Option<u64>,
        policy: &str,
        reading_bytes: Option<u64>,
        readers: usize,
    ) -> PyResult<Tables> {
        let policy: PolicyKind = policy
            .parse()
            .map_err(|error: outcore::engine::cache::UnknownPolicy| wrong(error.to_string()))?;
        let serving = Serving {
            cache_bytes,
            policy,
            reading_bytes,
            readers,
        };
        let opened = openings(tables)?;
        let (session, own) = (session.get()?, session.get()?.clone());
        let open = move |_: &dyn Fn() -> bool| {
            TableSet::new(&own, Table::open_all(&own, &opened)?, serving)
        };
        Ok(Tables(Owned::new(carry_out(py, session, open)?)))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.len())
    }

    fn describe(&self, table: usize) -> PyResult<Description> {
        let set = self.0.get()?;
        let table = set.table(table);
        Ok((
            table.name().to_owned(),
            table.rows(),
            table.dim(),
            table.row_bytes(),
            table.encoding().to_string(),
            table.dtype().name(),
            table.is_packed(),
        ))
    }

    /// Row numbers looked up, those found in memory, units read, rows whose replica was lost, rows in memory, rows
    /// that have room.
    fn statistics(&self, py: Python<'_>, table: usize) -> PyResult<(u64, u64, u64, u64, u64, u64)> {
        let set = self.0.get()?;
        let known = py.detach(|| set.statistics(table));
        Ok((
            known.looked_up,
            known.hits,
            known.units_read,
            known.replicas_lost,
            known.cached_rows,
            known.cache_rows,
        ))
    }

    /// Looks up; the bags that failed.
    fn look_up(
        &self,
        py: Python<'_>,
        asked: Asked<'_>,
        results: Vec<Place<'_>>,
        time: Option<u64>,
    ) -> PyResult<Vec<Failed>> {
        let set = self.0.get()?;
        let mut call = Call::of(&asked, &results)?;
        let failed = interruptible(py, |go_on| call.look_up(set, time, go_on))?;
        told(py, failed)
    }

    /// The same on a thread of the set.
    fn submit(
        &self,
        asked: Asked<'_>,
        results: Vec<Place<'_>>,
        time: Option<u64>,
    ) -> PyResult<PendingLookUp> {
        let mut call = Call::of(&asked, &results)?;
        let work =
            move |set: &TableSet, go_on: &mut dyn FnMut() -> bool| call.look_up(set, time, go_on);
        self.begin(work)
    }

    /// Rows that will be looked up; the time of their use.
    fn announce(&self, py: Python<'_>, asked: Asked<'_>) -> PyResult<u64> {
        let (set, own) = (self.0.get()?, Own::of(&asked)?);
        py.detach(|| set.announce(&own.features()?))
            .map_err(to_python)
    }

    /// What was announced for this time and before will not be looked up.
    fn withdraw(&self, py: Python<'_>, time: u64) -> PyResult<()> {
        let set = self.0.get()?;
        py.detach(|| set.withdraw(time));
        Ok(())
    }

    /// Reads rows ahead of their use, and returns when they are in memory; the time of their use.
    fn prefetch(&self, py: Python<'_>, asked: Asked<'_>) -> PyResult<u64> {
        let (set, own) = (self.0.get()?, Own::of(&asked)?);
        interruptible(py, |go_on| set.prefetch(&own.features()?, go_on))
    }

    /// Reads rows into memory on a thread of the set, as far as they have room.
    fn submit_load(&self, asked: Asked<'_>) -> PyResult<PendingLookUp> {
        let own = Own::of(&asked)?;
        let work = move |set: &TableSet, go_on: &mut dyn FnMut() -> bool| {
            set.load(&own.features()?, go_on).map(|()| Vec::new())
        };
        self.begin(work)
    }

    /// Begins a step of training.
    fn step(&self, py: Python<'_>) -> PyResult<TrainingStep> {
        let set = self.0.get()?;
        let step = interruptible(py, |go_on| set.step(go_on))?;
        Ok(TrainingStep(Owned::new(Mutex::new(Some(step)))))
    }

    /// Sets rows; false for a delta that has been applied.
    fn write_rows(
        &self,
        py: Python<'_>,
        table: usize,
        rows: PyReadonlyArray1<'_, u64>,
        elements: PyReadonlyArray2<'_, f32>,
        delta: Option<u64>,
    ) -> PyResult<bool> {
        let (set, rows, elements) = (self.0.get()?, rows.as_slice()?, elements.as_slice()?);
        interruptible(py, |go_on| {
            set.write_rows(table, rows, elements, delta, go_on)
        })
    }

    /// Makes the next versions of tables; their numbers.
    fn commit(&self, py: Python<'_>, tables: Vec<usize>) -> PyResult<Vec<u64>> {
        let set = self.0.get()?;
        interruptible(py, |go_on| set.commit(&tables, go_on))
    }

    /// The version of a table that changes.
    fn version(&self, py: Python<'_>, table: usize) -> PyResult<Option<u64>> {
        let set = self.0.get()?;
        // A step of training has the number locked, and asks Python whether to go on.
        Ok(py.detach(|| set.table(table).version()))
    }

    /// Other tables take the places of those with these numbers, all at once.
    fn replace(&self, py: Python<'_>, session: &Session, new: Vec<(usize, Given)>) -> PyResult<()> {
        let (numbers, given): (Vec<usize>, Vec<Given>) = new.into_iter().unzip();
        let opened = openings(given)?;
        let set = self.0.get()?.clone();
        let (session, own) = (session.get()?, session.get()?.clone());
        let replace = move |_: &dyn Fn() -> bool| {
            let tables = Table::open_all(&own, &opened)?;
            set.replace_all(numbers.into_iter().zip(tables).collect())
        };
        carry_out(py, session, replace)
    }

    /// Rows as they are stored, one behind another.
    fn read_stored<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        rows: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (set, rows) = (self.0.get()?, rows.as_slice()?);
        let mut stored = vec![0; rows.len() * set.table(table).row_bytes()];
        interruptible(py, |go_on| set.read_stored(table, rows, &mut stored, go_on))?;
        Ok(PyBytes::new(py, &stored))
    }

    /// Keeps rows of a table in memory; how many have room.
    fn keep(&self, py: Python<'_>, table: usize, rows: PyReadonlyArray1<'_, u64>) -> PyResult<u64> {
        let (set, rows) = (self.0.get()?, rows.as_slice()?);
        interruptible(py, |go_on| set.keep(table, rows, go_on))
    }
}

impl Tables {
    /// Work on a thread of the set.
    fn begin(
        &self,
        work: impl FnOnce(&TableSet, &mut dyn FnMut() -> bool) -> outcore::Result<Vec<Failure>>
        + Send
        + 'static,
    ) -> PyResult<PendingLookUp> {
        let pending = self.0.get()?.submit(work).map_err(to_python)?;
        let taken = Mutex::new(Some(pending));
        Ok(PendingLookUp(Owned::new(taken)))
    }
}

/// A step of training, which a commit has whole or not at all.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct TrainingStep(Owned<Mutex<Option<outcore::tables::TrainingStep>>>);

#[pymethods]
impl TrainingStep {
    /// Changes rows by an optimizer, with its learning rate, its decays, and what it adds to roots.
    #[allow(clippy::too_many_arguments, reason = "arguments of Python")]
    fn train(
        &self,
        py: Python<'_>,
        asked: Vec<AskedGradient<'_>>,
        optimizer: &str,
        rate: f64,
        betas: (f64, f64),
        eps: f64,
    ) -> PyResult<()> {
        let step = self.0.get()?.locked();
        let step = step.as_ref().ok_or_else(|| wrong("the step has ended"))?;
        let named: Optimizer = optimizer
            .parse()
            .map_err(|error: outcore::tables::UnknownOptimizer| wrong(error.to_string()))?;
        let optimizer = match named {
            Optimizer::Sgd => named,
            Optimizer::RowwiseAdagrad { .. } => Optimizer::RowwiseAdagrad { eps },
            Optimizer::Adam { .. } => Optimizer::Adam { betas, eps },
        };
        let own = asked
            .iter()
            .map(|(feature, gradient, _)| Ok((OwnFeature::of(feature)?, floats(gradient)?)))
            .collect::<PyResult<Vec<(OwnFeature, Buf)>>>()?;
        let gradients = own
            .iter()
            .zip(&asked)
            .map(|((own, of_bags), (_, _, order))| {
                Ok(Gradient {
                    feature: own.feature(),
                    of_bags: bytemuck::cast_slice(of_bags),
                    order: order.as_ref().map(|order| order.as_slice()).transpose()?,
                })
            })
            .collect::<PyResult<Vec<Gradient<'_>>>>()?;
        interruptible(py, |go_on| step.train(&gradients, &optimizer, rate, go_on))
    }

    fn __enter__(this: Py<TrainingStep>) -> Py<TrainingStep> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.0.get()?.locked().take();
        Ok(())
    }
}

/// A look-up in progress.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct PendingLookUp(Owned<Mutex<Option<outcore::tables::Pending<Vec<Failure>>>>>);

#[pymethods]
impl PendingLookUp {
    /// Waits for at most `seconds`; true if the result is there, or was taken.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let pending = self.0.get()?;
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(py.detach(|| {
            let pending = pending.lock().unwrap_or_else(|error| error.into_inner());
            pending
                .as_ref()
                .is_none_or(|pending| pending.wait_timeout(timeout))
        }))
    }

    /// A descriptor that becomes readable when the result is there.
    fn fileno(&self) -> PyResult<i32> {
        let pending = self.0.get()?;
        let pending = pending.lock().unwrap_or_else(|error| error.into_inner());
        let taken = || wrong("the result was taken already");
        number(pending.as_ref().ok_or_else(taken)?.fd())
    }

    /// The bags that failed; once.
    fn result(&self, py: Python<'_>) -> PyResult<Vec<Failed>> {
        let pending = self.0.get()?;
        let taken = py.detach(|| {
            pending
                .lock()
                .unwrap_or_else(|error| error.into_inner())
                .take()
        });
        let taken = taken.ok_or_else(|| wrong("the result was taken already"))?;
        let failed = py.detach(|| taken.wait()).map_err(to_python)?;
        told(py, failed)
    }
}

fn told(py: Python<'_>, failed: Vec<Failure>) -> PyResult<Vec<Failed>> {
    failed
        .into_iter()
        .map(|failure| {
            let error = to_python(failure.error).into_value(py);
            Ok((failure.feature, failure.bag, error.into_any()))
        })
        .collect()
}

fn mode_of(name: &str) -> PyResult<Pooling> {
    match name {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        "max" => Ok(Pooling::Max),
        name => Err(wrong(format!("mode '{name}', not 'sum', 'mean' or 'max'"))),
    }
}

/// What a call asks, in memory of the caller.
enum Own {
    Features(Vec<OwnFeature>),
    Batch(OwnBatch),
}

impl Own {
    fn of(asked: &Asked<'_>) -> PyResult<Own> {
        match asked {
            Asked::Features(features) => {
                let own = features.iter().map(OwnFeature::of);
                Ok(Own::Features(own.collect::<PyResult<Vec<OwnFeature>>>()?))
            }
            Asked::Batch((tables, ids, lengths, mode, weights)) => Ok(Own::Batch(OwnBatch {
                tables: tables.clone(),
                ids: Numbers::of(ids)?,
                lengths: Numbers::of(lengths)?,
                mode: mode_of(mode)?,
                weights: weights.as_ref().map(floats).transpose()?,
            })),
        }
    }

    fn features(&self) -> outcore::Result<Vec<Feature<'_>>> {
        match self {
            Own::Features(features) => Ok(features.iter().map(OwnFeature::feature).collect()),
            Own::Batch(batch) => batch.batch().features(),
        }
    }
}

struct OwnBatch {
    tables: Vec<usize>,
    ids: Numbers,
    lengths: Numbers,
    mode: Pooling,
    weights: Option<Buf>,
}

impl OwnBatch {
    fn batch(&self) -> JaggedBatch<'_> {
        JaggedBatch {
            tables: &self.tables,
            ids: self.ids.ids(),
            lengths: self.lengths.ids(),
            mode: self.mode,
            weights: self.weights.as_deref().map(bytemuck::cast_slice),
        }
    }
}

/// One feature, in memory of the caller.
struct OwnFeature {
    table: usize,
    ids: Numbers,
    kind: Kind,
    mode: Pooling,
    weights: Option<Buf>,
    padding: Option<u64>,
}

impl OwnFeature {
    fn of(asked: &AskedFeature<'_>) -> PyResult<OwnFeature> {
        let (table, ids, kind, bags, length, mode, weights, padding) = asked;
        let bags = bags.as_ref().map(Numbers::of).transpose()?;
        let kind = match (kind.as_str(), bags) {
            ("each", None) => Kind::Each,
            ("fixed", None) => Kind::Fixed(*length),
            ("offsets", Some(offsets)) => Kind::Offsets(offsets),
            ("offsets and end", Some(offsets)) => Kind::OffsetsAndEnd(offsets),
            ("lengths", Some(lengths)) => Kind::Lengths(lengths),
            (kind, _) => return Err(wrong(format!("bags by '{kind}'"))),
        };
        Ok(OwnFeature {
            table: *table,
            ids: Numbers::of(ids)?,
            kind,
            mode: mode_of(mode)?,
            weights: weights.as_ref().map(floats).transpose()?,
            padding: *padding,
        })
    }

    fn feature(&self) -> Feature<'_> {
        Feature {
            table: self.table,
            ids: self.ids.ids(),
            bags: match &self.kind {
                Kind::Each => Bags::Each,
                Kind::Fixed(length) => Bags::Fixed(*length),
                Kind::Offsets(offsets) => Bags::Offsets(offsets.ids()),
                Kind::OffsetsAndEnd(offsets) => Bags::OffsetsAndEnd(offsets.ids()),
                Kind::Lengths(lengths) => Bags::Lengths(lengths.ids()),
            },
            mode: self.mode,
            weights: self
                .weights
                .as_ref()
                .map(|bytes| bytemuck::cast_slice(bytes)),
            padding: self.padding,
        }
    }
}

enum Kind {
    Each,
    Fixed(usize),
    Offsets(Numbers),
    OffsetsAndEnd(Numbers),
    Lengths(Numbers),
}

/// Integers of an array.
struct Numbers {
    bytes: Buf,
    dtype: DType,
}

impl Numbers {
    fn of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Numbers> {
        let dtype = contiguous(array, &[DType::I32, DType::I64])?;
        let bytes = adopt(array, array.len() * dtype.bytes() as usize);
        Ok(Numbers { bytes, dtype })
    }

    fn ids(&self) -> Ids<'_> {
        Ids::of(self.dtype, &self.bytes).expect("an aligned array of such numbers")
    }
}

/// Elements of an array of float32.
fn floats(array: &Bound<'_, PyUntypedArray>) -> PyResult<Buf> {
    contiguous(array, &[DType::F32])?;
    Ok(adopt(array, array.len() * 4))
}

/// The type of an array without gaps.
fn contiguous(array: &Bound<'_, PyUntypedArray>, wanted: &[DType]) -> PyResult<DType> {
    let descr = array.dtype();
    // NumPy puts the name of a type together each time it is asked.
    let dtype = match (descr.kind(), descr.itemsize()) {
        (b'f', 4) => Some(DType::F32),
        (b'f', 2) => Some(DType::F16),
        (b'i', 8) => Some(DType::I64),
        (b'i', 4) => Some(DType::I32),
        (b'i', 2) => Some(DType::I16),
        (b'u', 2) => Some(DType::U16),
        _ => None,
    }
    .filter(|dtype| wanted.contains(dtype));
    let is_native = descr.is_native_byteorder() != Some(false);
    match dtype {
        Some(dtype) if array.is_c_contiguous() && array.is_aligned() && is_native => Ok(dtype),
        _ => Err(wrong(format!(
            "an array of {descr} that has gaps or is not of the type that is needed"
        ))),
    }
}

/// Results: rows without gaps, and one result behind another.
struct Target {
    bytes: Buf,
    dtype: DType,
    rows: usize,
    dims: Vec<usize>,
}

impl Target {
    fn of((out, dtype, dims): &Place<'_>) -> PyResult<Target> {
        let dtype = DType::parse(dtype).ok_or_else(|| wrong(format!("dtype '{dtype}'")))?;
        // bfloat16 comes as integers of 16 bits.
        let stored = contiguous(out, &[DType::F32, DType::F16, DType::I16, DType::U16])?;
        if stored.bytes() != dtype.bytes() {
            return Err(wrong(format!("{stored} has no room for {dtype}")));
        }
        let &[rows, dim] = out.shape() else {
            return Err(wrong("a result is a matrix"));
        };
        let dims = dims.clone().unwrap_or_else(|| vec![dim]);
        if dims.iter().sum::<usize>() != dim {
            return Err(wrong(format!(
                "results of {dims:?} elements in one of {dim}"
            )));
        }
        Ok(Target {
            bytes: adopt(out, out.len() * dtype.bytes() as usize),
            dtype,
            rows,
            dims,
        })
    }

    fn outs(&mut self) -> impl Iterator<Item = outcore::Result<Out<'_>>> {
        let (dtype, rows) = (self.dtype, self.rows);
        let mut rest = &mut self.bytes[..];
        self.dims.iter().map(move |&dim| {
            let pitch = dim * dtype.bytes() as usize;
            let (own, others) = std::mem::take(&mut rest).split_at_mut(rows * pitch);
            rest = others;
            Out::new(own, dtype, pitch, rows, dim)
        })
    }
}

struct Call {
    own: Own,
    results: Vec<Target>,
}

impl Call {
    fn of(asked: &Asked<'_>, results: &[Place<'_>]) -> PyResult<Call> {
        Ok(Call {
            own: Own::of(asked)?,
            results: results.iter().map(Target::of).collect::<PyResult<_>>()?,
        })
    }

    fn look_up(
        &mut self,
        set: &TableSet,
        time: Option<u64>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> outcore::Result<Vec<Failure>> {
        let features = self.own.features()?;
        let outs = self.results.iter_mut().flat_map(Target::outs);
        let mut outs = outs.collect::<outcore::Result<Vec<Out<'_>>>>()?;
        set.look_up_at(&features, &mut outs, time, go_on)
    }
}

/// Writes a table, row by row.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct RowWriter(Owned<Mutex<Option<TableWriter>>>);

#[pymethods]
impl RowWriter {
    /// Of a packed table, with the slot of each row, perhaps.
    #[new]
    fn new(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        rows: u64,
        dim: usize,
        encoding: &str,
        placement: Option<PyReadonlyArray1<'_, u32>>,
    ) -> PyResult<RowWriter> {
        let (session, encoding) = (session.get()?, encoding_of(encoding)?);
        let placement = placement
            .map(|slots| Ok::<_, PyErr>(slots.as_slice()?.to_vec()))
            .transpose()?;
        RowWriter::begin(py, || {
            TableWriter::create(session, &path, rows, dim, encoding, placement)
        })
    }

    /// Of a packed table with the slot of each row, and the rows of the pages of replicas, -1 behind the last
    /// of a page.
    #[staticmethod]
    fn placed(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        dim: usize,
        encoding: &str,
        slots: PyReadonlyArray1<'_, u32>,
        replicas: PyReadonlyArray2<'_, i64>,
    ) -> PyResult<RowWriter> {
        let (session, encoding) = (session.get()?, encoding_of(encoding)?);
        let rows_a_page = replicas.shape()[1];
        let (slots, replicas) = (slots.as_slice()?.to_vec(), replicas.as_slice()?);
        let rows_of = |page: &[i64]| -> Vec<u32> {
            let rows = page.iter().take_while(|row| **row >= 0);
            rows.map(|&row| u32::try_from(row).unwrap_or(u32::MAX))
                .collect()
        };
        let pages = replicas.chunks(rows_a_page.max(1)).map(rows_of);
        let pages: Vec<Vec<u32>> = pages.collect();
        RowWriter::begin(py, || {
            let rows_a_page = u32::try_from(rows_a_page).unwrap_or(u32::MAX);
            let placement = Placement::of_slots(rows_a_page, slots, pages)?;
            TableWriter::create_placed(session, &path, dim, encoding, placement)
        })
    }

    /// Of a table that changes, for an optimizer perhaps.
    #[staticmethod]
    fn versioned(
        py: Python<'_>,
        session: &Session,
        path: PathBuf,
        rows: u64,
        dim: usize,
        encoding: &str,
        optimizer: Option<&str>,
    ) -> PyResult<RowWriter> {
        let (session, encoding) = (session.get()?, encoding_of(encoding)?);
        let optimizer = optimizer
            .map(|name| {
                name.parse::<Optimizer>()
                    .map_err(|error| wrong(error.to_string()))
            })
            .transpose()?;
        RowWriter::begin(py, || {
            TableWriter::create_versioned(session, &path, rows, dim, encoding, optimizer.as_ref())
        })
    }

    /// Appends rows of numbers.
    fn write(&self, py: Python<'_>, rows: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        let (dim, rows) = (rows.shape()[1].max(1), rows.as_slice()?);
        self.with(py, |writer| {
            rows.chunks(dim).try_for_each(|row| writer.write(row))
        })
    }

    /// Appends rows as they are stored.
    fn write_stored(&self, py: Python<'_>, rows: &Bound<'_, PyBytes>) -> PyResult<()> {
        let rows = rows.as_bytes();
        self.with(py, |writer| writer.write_stored(rows))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self
            .0
            .get()?
            .lock()
            .unwrap_or_else(|error| error.into_inner())
            .take();
        let writer = taken.ok_or_else(|| to_python(Error::Closed))?;
        py.detach(|| writer.finish()).map_err(to_python)
    }

    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self
            .0
            .get()?
            .lock()
            .unwrap_or_else(|error| error.into_inner())
            .take();
        py.detach(|| drop(taken));
        Ok(())
    }
}

impl RowWriter {
    fn begin(
        py: Python<'_>,
        create: impl FnOnce() -> outcore::Result<TableWriter> + Send,
    ) -> PyResult<RowWriter> {
        let writer = py.detach(create).map_err(to_python)?;
        Ok(RowWriter(Owned::new(Mutex::new(Some(writer)))))
    }

    fn with(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut TableWriter) -> outcore::Result<()> + Send,
    ) -> PyResult<()> {
        let writer = self.0.get()?;
        py.detach(|| {
            let mut writer = writer.lock().unwrap_or_else(|error| error.into_inner());
            writer.as_mut().map_or(Err(Error::Closed), act)
        })
        .map_err(to_python)
    }
}
