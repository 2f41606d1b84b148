//! Import and export of foreign sparse data.

use std::path::PathBuf;

use numpy::{PyReadonlyArray1, PyUntypedArray};
use outcore::export::{self, Labels};
use outcore::import::{self, Base, Columns, Documents, Imported, Libsvm, Options, Text};
use outcore::{Error, RealType};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::adopted::values_of;
use crate::error::to_python;
use crate::job::{Job, nothing};
use crate::names::real_of;
use crate::session::Session;
use crate::sparse::{self, SparseMatrix};

/// Imports foreign files into a new sparse matrix; `options` are those of the format.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what describes an import")]
pub(crate) fn import_sparse(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    sources: Vec<PathBuf>,
    kind: &str,
    options: &Bound<'_, PyDict>,
    dtype: &str,
    tiled: bool,
    resume: bool,
    checkpoint_bytes: u64,
    part: Option<[u64; 2]>,
) -> PyResult<Job> {
    let (session, dtype): (_, RealType) = (session.get()?, real_of(dtype)?);
    let format = imported(kind, options)?;
    let options = Options {
        format,
        dtype,
        tiled,
        resume,
        checkpoint_bytes,
        part,
    };
    let made = |py: Python<'_>, Imported { matrix, .. }: Imported| sparse::made(py, matrix);
    Job::plan(
        py,
        || import::import(session, path, &sources, options),
        made,
    )
}

fn imported(kind: &str, options: &Bound<'_, PyDict>) -> PyResult<import::Format> {
    Ok(match kind {
        "libsvm" => import::Format::Libsvm(Libsvm {
            many_labels: option(options, "many_labels")?,
            base: match option::<Option<bool>>(options, "zero_based")? {
                None => Base::Found,
                Some(true) => Base::Zero,
                Some(false) => Base::One,
            },
            features: option(options, "features")?,
        }),
        "xc" => import::Format::Xc,
        "mtx" => import::Format::MatrixMarket,
        "bow" => import::Format::BagOfWords {
            vocabulary: option(options, "vocabulary")?,
        },
        "npz" => import::Format::Npz,
        "parquet" => import::Format::Parquet(
            match option::<Option<Vec<String>>>(options, "columns")?.as_deref() {
                None => Columns::First,
                Some([row, column]) => Columns::Named {
                    row: row.clone(),
                    column: column.clone(),
                    value: None,
                },
                Some([row, column, value]) => Columns::Named {
                    row: row.clone(),
                    column: column.clone(),
                    value: Some(value.clone()),
                },
                Some(_) => return Err(argument("columns are two or three names")),
            },
        ),
        "text" => import::Format::Text(Text {
            documents: if option(options, "files")? {
                Documents::Files
            } else {
                Documents::Lines
            },
            minimum_length: option(options, "min_length")?,
            stop_words: option(options, "stop_words")?,
            ngrams: {
                let (least, most) = option::<(usize, usize)>(options, "ngram_range")?;
                least..=most
            },
            text_column: option(options, "text_column")?,
            label_column: option(options, "label_column")?,
            vocabulary: option(options, "vocabulary")?,
        }),
        other => return Err(argument(&format!("no format {other:?}"))),
    })
}

fn option<'py, T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>>(
    options: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<T> {
    let found = options.get_item(name)?;
    let found = found.unwrap_or_else(|| options.py().None().into_bound(options.py()));
    found.extract().map_err(Into::into)
}

fn argument(what: &str) -> PyErr {
    to_python(Error::Value {
        what: what.to_owned(),
    })
}

/// Exports a sparse matrix; `labels` are an array, a matrix or None, `queries` an array of int64 or
/// None.
#[pyfunction]
pub(crate) fn export_sparse(
    py: Python<'_>,
    session: &Session,
    a: &SparseMatrix,
    path: PathBuf,
    kind: &str,
    labels: Option<Bound<'_, PyAny>>,
    queries: Option<PyReadonlyArray1<'_, i64>>,
) -> PyResult<Job> {
    let whole = |query: &i64| {
        u64::try_from(*query).map_err(|_| argument(&format!("the query {query} is negative")))
    };
    let queries = queries
        .map(|queries| {
            queries
                .as_array()
                .iter()
                .map(whole)
                .collect::<PyResult<Vec<u64>>>()
        })
        .transpose()?;
    let (session, a) = (session.get()?, a.get()?);
    let labels = match &labels {
        None => Labels::None,
        Some(labels) => match labels.cast::<SparseMatrix>() {
            Ok(labels) => Labels::Many(labels.get().get()?.clone()),
            Err(_) => Labels::One(values_of(labels.cast::<PyUntypedArray>()?)?),
        },
    };
    let format = match (kind, labels) {
        ("libsvm", labels) => export::Format::Libsvm { labels, queries },
        ("mtx", _) => export::Format::MatrixMarket,
        ("bow", _) => export::Format::BagOfWords,
        ("xc", Labels::Many(labels)) => export::Format::Xc(labels),
        ("xc", _) => return Err(argument("XC text needs a matrix of labels")),
        ("npz", _) => export::Format::Npz,
        ("parquet", _) => export::Format::Parquet,
        (other, _) => return Err(argument(&format!("no format {other:?}"))),
    };
    Job::plan(py, || export::export(session, a, path, format), nothing)
}
