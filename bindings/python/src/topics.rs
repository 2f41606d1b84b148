//! The passes of topic models.

use std::sync::Arc;

use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use outcore::topics::{self, Catchwords, Chosen, KeptWords, Ranks};
use pyo3::prelude::*;

use crate::job::{Job, numbers};
use crate::matrix::{self, output};
use crate::session::Session;
use crate::sparse::{SparseMatrix, made};

type Numbers<'py> = PyReadonlyArray1<'py, f64>;
type Labels<'py> = PyReadonlyArray1<'py, u32>;

fn vector<T: numpy::Element + Copy>(values: &PyReadonlyArray1<'_, T>) -> Vec<T> {
    values.as_array().iter().copied().collect()
}

fn whole<T: numpy::Element>(py: Python<'_>, values: Vec<T>) -> PyResult<Py<PyAny>> {
    Ok(PyArray1::from_vec(py, values).into_any().unbind())
}

/// How documents are scaled, in memory once for all passes.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct TopicScales(Arc<Vec<f64>>);

#[pymethods]
impl TopicScales {
    #[new]
    fn new(scales: Numbers<'_>) -> Self {
        TopicScales(Arc::new(vector(&scales)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// The threshold of each word.
#[pyfunction]
pub(crate) fn topic_thresholds(
    py: Python<'_>,
    session: &Session,
    words: &SparseMatrix,
    scales: &TopicScales,
    above: u64,
    equal: u64,
) -> PyResult<Job> {
    let (session, words, scales) = (session.get()?, words.get()?, Arc::clone(&scales.0));
    let plan = || topics::thresholds(session, words, scales, above, equal);
    Job::plan(py, plan, numbers)
}

/// Entries of each document that reach the thresholds, and the sums of these.
#[pyfunction]
pub(crate) fn topic_kept(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    scales: &TopicScales,
    thresholds: Numbers<'_>,
) -> PyResult<Job> {
    let (session, documents) = (session.get()?, documents.get()?);
    let (scales, thresholds) = (Arc::clone(&scales.0), vector(&thresholds));
    let plan = || topics::kept(session, documents, scales, thresholds);
    Job::plan(py, plan, |py, found| {
        let each = || found.iter();
        let entries = PyArray1::from_iter(py, each().map(|kept: &KeptWords| kept.entries));
        let weights = PyArray1::from_iter(py, each().map(|kept| kept.weight));
        Ok((entries, weights).into_pyobject(py)?.into_any().unbind())
    })
}

/// The matrix of what reaches the thresholds.
#[pyfunction]
pub(crate) fn topic_thresholded(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    scales: &TopicScales,
    thresholds: Numbers<'_>,
    entries: Labels<'_>,
) -> PyResult<Job> {
    let (session, documents) = (session.get()?, documents.get()?);
    let (scales, thresholds) = (Arc::clone(&scales.0), vector(&thresholds));
    let entries = vector(&entries);
    let plan = || topics::thresholded(session, documents, scales, thresholds, entries);
    Job::plan(py, plan, made)
}

/// The topic of which each word is a catchword.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what decides on catchwords")]
pub(crate) fn topic_catchwords(
    py: Python<'_>,
    session: &Session,
    words: &SparseMatrix,
    scales: &TopicScales,
    clusters: Labels<'_>,
    count: usize,
    rank: u64,
    factor: f64,
    compat: bool,
) -> PyResult<Job> {
    let (session, words) = (session.get()?, words.get()?);
    let (scales, clusters) = (Arc::clone(&scales.0), vector(&clusters));
    let ranks = Ranks {
        rank,
        factor,
        compat,
    };
    let plan = || topics::catchwords(session, words, scales, clusters, count, ranks);
    Job::plan(py, plan, whole)
}

fn catchwords(of_words: &Labels<'_>, count: usize, scales: &TopicScales) -> Catchwords {
    Catchwords {
        of_words: Arc::new(vector(of_words)),
        count,
        scales: Arc::clone(&scales.0),
    }
}

/// A digit of the sums of catchwords: how many documents have each, topic after topic.
#[pyfunction]
pub(crate) fn topic_sum_digits(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    scales: &TopicScales,
    of_words: Labels<'_>,
    digit: u32,
    prefixes: Labels<'_>,
) -> PyResult<Job> {
    let (session, documents) = (session.get()?, documents.get()?);
    let words = catchwords(&of_words, prefixes.len(), scales);
    let prefixes = vector(&prefixes);
    let plan = || topics::sum_digits(session, documents, words, digit, prefixes);
    Job::plan(py, plan, whole)
}

/// The sums of the documents of each topic, topic after topic; then, with `pairs`, how many documents
/// have each pair of topics.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what decides on documents")]
pub(crate) fn topic_sums(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    scales: &TopicScales,
    of_words: Labels<'_>,
    sums: PyReadonlyArray1<'_, f32>,
    above: bool,
    clusters: Labels<'_>,
    added: PyReadonlyArray1<'_, bool>,
    pairs: bool,
) -> PyResult<Job> {
    let (session, documents) = (session.get()?, documents.get()?);
    let words = catchwords(&of_words, sums.len(), scales);
    let added = added.as_array();
    let is_added = |topic: &u32| added.get(*topic as usize) == Some(&true);
    let clusters = clusters.as_array();
    let own = clusters.iter().map(|topic| {
        if is_added(topic) {
            *topic
        } else {
            topics::NONE
        }
    });
    let chosen = Chosen {
        sums: vector(&sums),
        above,
        clusters: own.collect(),
        pairs,
    };
    let plan = || topics::topic_sums(session, documents, words, chosen);
    Job::plan(py, plan, numbers)
}

/// The weights of topics in each document; `topics` is words x topics.
#[pyfunction]
pub(crate) fn topic_weights(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    topics: PyReadonlyArray2<'_, f64>,
    steps: u64,
    rate: f64,
    out: Option<Bound<'_, PyAny>>,
) -> PyResult<Job> {
    let (session, documents, out) = (session.get()?, documents.get()?, output(out)?);
    let count = topics.shape()[1];
    let flat: Vec<f64> = topics.as_array().iter().copied().collect();
    let plan = || topics::weights(session, documents, flat, count, steps, rate, out);
    Job::plan(py, plan, matrix::made)
}

/// In how many documents words of one list occur together, list after list.
#[pyfunction]
pub(crate) fn topic_co_occurrences(
    py: Python<'_>,
    session: &Session,
    documents: &SparseMatrix,
    lists: PyReadonlyArray2<'_, u32>,
) -> PyResult<Job> {
    let (session, documents, length) = (session.get()?, documents.get()?, lists.shape()[1]);
    let lists: Vec<u32> = lists.as_array().iter().copied().collect();
    let plan = || topics::co_occurrences(session, documents, &lists, length);
    Job::plan(py, plan, whole)
}
