//! `outcore.neighbors`: the nearest rows to each query.

use outcore::kernels::Metric;
use outcore::neighbors::{self, NeighborOptions, NeighborOutputs};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::argument;
use crate::job::Job;
use crate::matrix::{self, output};
use crate::ranks::Team;
use crate::session::Session;
use crate::sparse;

/// The k nearest of the rows to each query, or to each row but itself: distances and numbers.
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
    team: Option<&Team>,
) -> PyResult<Job> {
    let metric = match metric {
        "euclidean" => Metric::Euclidean,
        "cosine" => Metric::Cosine,
        "inner_product" => Metric::InnerProduct,
        other => return Err(argument(format!("there is no metric {other:?}"))),
    };
    let (session, rows) = (session.get()?, sparse::rows(rows)?);
    let queries = queries.as_ref().map(sparse::rows).transpose()?;
    let outputs = NeighborOutputs {
        distances: output(distances)?,
        rows: output(numbers)?,
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
    Job::plan(
        py,
        || neighbors::nearest_rows(session, rows, queries, options, outputs),
        |py, [distances, rows]| {
            let pair = (matrix::made(py, distances)?, matrix::made(py, rows)?);
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        },
    )
}
