//! How often rows are looked up again, and what caches would save, of row numbers that come piece by piece.

use std::sync::Mutex;

use numpy::{PyArray1, PyReadonlyArray1};
use outcore::Error;
use outcore::device::Locked;
use outcore::engine::cache::{PolicyKind, UnknownPolicy};
use outcore::tables::reuse::{self, Miniatures, ReuseProfile, SampledBelady};
use pyo3::prelude::*;

use crate::error::to_python;

type Ids<'py> = PyReadonlyArray1<'py, u64>;
type Numbers<'py> = Bound<'py, PyArray1<u64>>;

fn columns(py: Python<'_>, pairs: Vec<(u64, u64)>) -> (Numbers<'_>, Numbers<'_>) {
    let (first, second) = pairs.into_iter().unzip();
    (
        PyArray1::from_vec(py, first),
        PyArray1::from_vec(py, second),
    )
}

/// Look-ups of the rows of one of 2^`bits` parts.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct ReuseCounts(Mutex<reuse::ReuseCounts>);

#[pymethods]
impl ReuseCounts {
    #[new]
    fn new(part: u64, bits: u32) -> Self {
        ReuseCounts(Mutex::new(reuse::ReuseCounts::of_part(part, bits.min(63))))
    }

    fn add(&self, py: Python<'_>, ids: Ids<'_>) -> PyResult<()> {
        let ids = ids.as_slice()?;
        py.detach(|| {
            let mut counts = self.0.locked();
            ids.iter().for_each(|&id| counts.add(id));
        });
        Ok(())
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.0.locked().distinct()
    }

    /// How often rows occur, ascending, and how many rows occur so often.
    fn histogram<'py>(&self, py: Python<'py>) -> (Numbers<'py>, Numbers<'py>) {
        columns(py, py.detach(|| self.0.locked().histogram()))
    }

    /// The rows that occur most, and how often.
    fn hottest<'py>(&self, py: Python<'py>, rows: usize) -> (Numbers<'py>, Numbers<'py>) {
        columns(py, py.detach(|| self.0.locked().hottest(rows)))
    }
}

enum Cache {
    Lru(ReuseProfile),
    Other(Miniatures),
    Belady(SampledBelady),
}

/// Misses of caches of some numbers of rows under a policy, `"lru"`, `"s3-fifo"` or `"belady"`, estimated from a share of
/// the rows.
#[pyclass(frozen, module = "outcore._native")]
pub(crate) struct CacheMisses {
    rows: Vec<u64>,
    cache: Mutex<Cache>,
}

#[pymethods]
impl CacheMisses {
    #[new]
    fn new(policy: &str, rows: Vec<u64>, rate: f64) -> PyResult<Self> {
        if !(rate > 0.0 && rate <= 1.0) {
            let what = format!("a share of {rate}, not above 0 and up to 1");
            return Err(to_python(Error::value(what)));
        }
        let cache = match policy {
            "belady" => Cache::Belady(SampledBelady::new(rate)),
            _ => match policy.parse() {
                Ok(PolicyKind::Lru) => Cache::Lru(ReuseProfile::sampled(rate)),
                Ok(kind) => Cache::Other(Miniatures::new(kind, rate, &rows)),
                Err(error) => {
                    let error: UnknownPolicy = error;
                    return Err(to_python(Error::value(error.to_string())));
                }
            },
        };
        Ok(CacheMisses {
            rows,
            cache: Mutex::new(cache),
        })
    }

    fn add(&self, py: Python<'_>, ids: Ids<'_>) -> PyResult<()> {
        let ids = ids.as_slice()?;
        py.detach(|| match &mut *self.cache.locked() {
            Cache::Lru(profile) => ids.iter().for_each(|&id| profile.add(id)),
            Cache::Other(caches) => ids.iter().for_each(|&id| caches.add(id)),
            Cache::Belady(lookups) => ids.iter().for_each(|&id| lookups.add(id)),
        });
        Ok(())
    }

    fn misses(&self, py: Python<'_>) -> Vec<f64> {
        let of_curve = |curve: reuse::MissCurve| -> Vec<f64> {
            self.rows.iter().map(|&rows| curve.misses(rows)).collect()
        };
        py.detach(|| match &*self.cache.locked() {
            Cache::Lru(profile) => of_curve(profile.miss_curve()),
            Cache::Other(caches) => of_curve(caches.miss_curve()),
            Cache::Belady(lookups) => self.rows.iter().map(|&rows| lookups.misses(rows)).collect(),
        })
    }
}
