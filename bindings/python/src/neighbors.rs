//! `outcore.neighbors`: the nearest rows to each query.

use std::path::PathBuf;

use numpy::PyReadonlyArray2;
use outcore::kernels::Metric;
use outcore::neighbors::{
    self, Checkpoint, GraphOutput, NeighborOptions, NeighborOutputs, RadiusOptions,
};
use outcore::pass::Rows;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{argument, to_python};
use crate::job::Job;
use crate::kmeans::flat;
use crate::matrix::{self, output};
use crate::ranks::Team;
use crate::session::Session;
use crate::sparse;

/// The k nearest of the rows to each query, or to each row but itself: distances and numbers. A
/// checkpoint is a folder, and what the rows and queries are. `centers`: what rows are in clusters about.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what to find, and two outputs"
)]
pub(crate) fn nearest_rows(
    py: Python<'_>,
    session: &Session,
    rows: &Bound<'_, PyAny>,
    queries: Option<Bound<'_, PyAny>>,
    k: u64,
    metric: &str,
    distances: Option<Bound<'_, PyAny>>,
    numbers: Option<Bound<'_, PyAny>>,
    checkpoint: Option<(PathBuf, String)>,
    centers: Option<PyReadonlyArray2<'_, f64>>,
    team: Option<&Team>,
) -> PyResult<Job> {
    let (session, metric) = (session.get()?, metric_of(metric)?);
    let (rows, queries) = sides(rows, queries)?;
    let outputs = NeighborOutputs {
        distances: output(distances)?,
        rows: output(numbers)?,
        checkpoint: checkpoint.map(|(path, search)| Checkpoint { path, search }),
    };
    let options = NeighborOptions { k, metric };
    if let Some(team) = team {
        let (session, rings) = (session.clone(), team.rings());
        let plan = move |team: &outcore::Team| {
            neighbors::nearest_rows_over_ranks(
                &session, team, rings, rows, queries, options, outputs,
            )
        };
        return team.plan(py, plan, |py, ([distances, rows], times)| {
            let facts = PyDict::new(py);
            facts.set_item("rounds", times.rounds)?;
            facts.set_item("bytes_sent", times.bytes_sent)?;
            facts.set_item("loading_s", times.loading_s)?;
            facts.set_item("waiting_s", times.waiting_s)?;
            facts.set_item("computing_s", times.computing_s)?;
            facts.set_item("exchanging_s", times.exchanging_s)?;
            let found = (matrix::made(py, distances)?, matrix::made(py, rows)?, facts);
            Ok(found.into_pyobject(py)?.into_any().unbind())
        });
    }
    let centers = centers.as_ref().map(flat);
    Job::plan(
        py,
        || match &centers {
            Some(centers) => neighbors::nearest_rows_by_centers(
                session, rows, queries, centers, options, outputs,
            ),
            None => neighbors::nearest_rows(session, rows, queries, options, outputs),
        },
        |py, [distances, rows]| {
            let pair = (matrix::made(py, distances)?, matrix::made(py, rows)?);
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        },
    )
}

/// Removes what a search has kept, of one process or of a rank.
#[pyfunction]
pub(crate) fn remove_checkpoint(
    py: Python<'_>,
    session: &Session,
    path: PathBuf,
    rank: Option<usize>,
) -> PyResult<()> {
    let session = session.get()?;
    let whole = Checkpoint {
        path,
        search: String::new(),
    };
    let remove = || match rank {
        Some(rank) => whole.of_rank(rank)?.remove(session),
        None => whole.remove(session),
    };
    py.detach(remove).map_err(to_python)
}

/// As a sparse matrix, the `reach` nearest rows where that is a whole number, else those within this
/// radius; `out` is a path, or None for scratch.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "two operands, what to find, and what to make of it"
)]
pub(crate) fn neighbors_graph(
    py: Python<'_>,
    session: &Session,
    rows: &Bound<'_, PyAny>,
    queries: Option<Bound<'_, PyAny>>,
    reach: Reach,
    metric: &str,
    has_distances: bool,
    out: Option<PathBuf>,
    checkpoint: Option<(PathBuf, String)>,
) -> PyResult<Job> {
    let (session, metric) = (session.get()?, metric_of(metric)?);
    let (rows, queries) = sides(rows, queries)?;
    let output = GraphOutput {
        has_distances,
        out,
        checkpoint: checkpoint.map(|(path, search)| Checkpoint { path, search }),
    };
    let plan = || match reach {
        Reach::Count(k) => {
            let options = NeighborOptions { k, metric };
            neighbors::nearest_rows_graph(session, rows, queries, options, output)
        }
        Reach::Radius(radius) => {
            let options = RadiusOptions { radius, metric };
            neighbors::rows_within(session, rows, queries, options, output)
        }
    };
    Job::plan(py, plan, sparse::made)
}

/// Which rows are neighbours.
#[derive(FromPyObject)]
pub(crate) enum Reach {
    Count(u64),
    Radius(f64),
}

fn metric_of(name: &str) -> PyResult<Metric> {
    match name {
        "euclidean" => Ok(Metric::Euclidean),
        "cosine" => Ok(Metric::Cosine),
        "inner_product" => Ok(Metric::InnerProduct),
        other => Err(argument(format!("there is no metric {other:?}"))),
    }
}

fn sides(
    rows: &Bound<'_, PyAny>,
    queries: Option<Bound<'_, PyAny>>,
) -> PyResult<(Rows, Option<Rows>)> {
    let queries = queries.as_ref().map(sparse::rows).transpose()?;
    Ok((sparse::rows(rows)?, queries))
}
