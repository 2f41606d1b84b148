//! Placement of the rows of a table on its pages, learned from queries.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use outcore::tables::placement::{Placement, Queries};
use pyo3::prelude::*;

use crate::error::to_python;
use crate::job::carry_out;
use crate::session::Session;

/// Queries, rows of each of them, and the pages that they touch.
type Touched = (u64, u64, u64);

/// The slot of each row, the rows of the pages of replicas, with -1 where a page has no more, and what the
/// queries from `learned` on touch: with rows in their given order, and in these slots.
type Placed<'py> = (
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray2<i64>>,
    Touched,
    Touched,
);

/// Of a look-up in the log, of its neighbours in the search for co-appearance, of a row, and of a replica.
const LOOK_UP_BYTES: u64 = 32;
const NEIGHBOURS_BYTES: u64 = 60;
const ROW_BYTES: u64 = 20;
const REPLICA_BYTES: u64 = 24;

/// Learns a placement, with pages of replicas for this part of the pages. Query `q` is
/// `ids[offsets[q]..offsets[q + 1]]`; what is learned from are those before `learned`.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "a log, and what is learned of it"
)]
pub(crate) fn place_rows<'py>(
    py: Python<'py>,
    session: &Session,
    ids: PyReadonlyArray1<'_, u64>,
    offsets: PyReadonlyArray1<'_, u64>,
    learned: usize,
    rows: u64,
    rows_a_page: u32,
    method: &str,
    replicas: f64,
) -> PyResult<Placed<'py>> {
    let (ids, offsets) = (ids.as_slice()?, offsets.as_slice()?);
    let (session, by_frequency) = (session.get()?, method == "frequency");
    let a_look_up = LOOK_UP_BYTES + if by_frequency { 0 } else { NEIGHBOURS_BYTES };
    let of_replicas = (replicas.max(0.0) * rows as f64 * REPLICA_BYTES as f64) as u64;
    let bytes = (ids.len() as u64 * a_look_up)
        .saturating_add(rows.saturating_mul(ROW_BYTES))
        .saturating_add(of_replicas);
    let held = py.detach(|| session.engine().reserve("a placement", bytes.max(1)));
    let held = held.map_err(|error| to_python(error.into()))?;
    let queries = |offsets: &[u64]| {
        let query = |ends: &[u64]| ids[ends[0] as usize..ends[1] as usize].iter().copied();
        Queries::new(rows, offsets.windows(2).map(query))
    };
    let log = py.detach(|| queries(&offsets[..=learned]));
    let held_out = py.detach(|| queries(&offsets[learned..]));
    let (log, held_out) = (log.map_err(to_python)?, held_out.map_err(to_python)?);
    let threads = session.threads();
    let place = move |_: &dyn Fn() -> bool| {
        // As long as this computes, also where its caller has gone.
        let _held = held;
        let placement = match by_frequency {
            true => Placement::by_frequency(&log, rows_a_page)?,
            false => Placement::by_co_appearance(&log, rows_a_page, threads)?,
        };
        let placement = placement.with_replicas(&log, replicas, threads)?;
        let given = Placement::in_order(log.row_count(), rows_a_page)?;
        let [given, placed] = [&given, &placement].map(|placement| {
            let touched = placement.pages_touched(&held_out);
            (touched.queries, touched.look_ups, touched.pages)
        });
        let mut replicas = Vec::new();
        for rows in placement.replicas() {
            replicas.extend(rows.iter().map(|&row| i64::from(row)));
            replicas.resize(replicas.len().next_multiple_of(rows_a_page as usize), -1);
        }
        Ok((placement.slot_of_row().to_vec(), replicas, given, placed))
    };
    let (slots, replicas, given, placed) = carry_out(py, session, place)?;
    let pages = replicas.len() / rows_a_page as usize;
    let replicas = PyArray1::from_vec(py, replicas).reshape([pages, rows_a_page as usize])?;
    Ok((PyArray1::from_vec(py, slots), replicas, given, placed))
}
