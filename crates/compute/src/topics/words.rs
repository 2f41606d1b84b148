//! Passes over words, each with all its documents.

use std::sync::Arc;

use outcore_core::{Error, Job, Result, Session, with_real};
use outcore_kernels::{Lines, MatRef, Real};
use outcore_matrix::{Compressed, Sparse};

use super::{NONE, check};
use crate::pass::{Map, Rows, map};

/// Of a list of values that has room for up to twice as many.
const ENTRY_BYTES: usize = 16;

/// The threshold of each word: the least value from which on its documents count. `x` is in CSC.
///
/// Let z be the `above`-th largest of a word's values, rounded. It goes down from one value to the
/// next until fewer than `equal` documents have it; a word with fewer than `above` documents, or
/// where no value is that rare, has threshold 1.
///
/// Cost: reads X once; holds 8 bytes a document, and as much for each entry of the longest line.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::{linalg::csrcsc, topics::thresholds};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let words = csrcsc(&session, &a, None)?.run()?;
/// assert_eq!(thresholds(&session, &words, vec![1.0, 2.0], 1, 2)?.run()?, [1.0, 6.0, 2.0]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for scales that are not as many as documents; [`Error::Value`] for a matrix in
/// CSR; [`Error::OverBudget`].
pub fn thresholds(
    session: &Session,
    x: &Sparse,
    scales: impl Into<Arc<Vec<f64>>>,
    above: u64,
    equal: u64,
) -> Result<Job<Vec<f64>>> {
    let scales = scales.into();
    check(x, Compressed::Columns, Some(scales.len()), None)?;
    let (above, equal) = (above.max(1) as usize, equal.max(1) as usize);
    let words = Thresholds {
        scales,
        above,
        equal,
    };
    let rows = Rows::Sparse(x.t());
    with_real!(x.real(), T => map::<T, _>(session, "word thresholds", &rows, words))
}

struct Thresholds {
    scales: Arc<Vec<f64>>,
    above: usize,
    equal: usize,
}

impl Thresholds {
    /// Of values that are not 0.
    fn of(&self, values: &mut [f64]) -> f64 {
        if values.len() < self.above {
            return 1.0;
        }
        values.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut threshold = values[self.above - 1];
        loop {
            let first = values.partition_point(|value| *value > threshold);
            let end = values.partition_point(|value| *value >= threshold);
            if end - first < self.equal {
                return threshold;
            }
            match values.get(end) {
                Some(next) => threshold = *next,
                None => return 1.0,
            }
        }
    }
}

impl<T: Real> Map<T> for Thresholds {
    type Element = f64;

    fn held_bytes(&self) -> u64 {
        8 * self.scales.len() as u64
    }

    fn entry_bytes(&self) -> usize {
        ENTRY_BYTES
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn dense(&self, _into: &mut [f64], _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, into: &mut [f64], _first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut values = Vec::new();
        lines.each_line(|word, entries| {
            values.clear();
            entries.each(|document, value| {
                let value = (value.f64() * self.scales[document]).round();
                if value > 0.0 {
                    values.push(value);
                }
            });
            into[word] = self.of(&mut values);
        });
        Ok(())
    }

    fn merge(&self, into: &mut f64, other: &f64) {
        *into = *other;
    }
}

/// Which rank of a word's values in a cluster stands for the cluster, and how far it is to be above
/// all others.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// Counted from 1.
    pub rank: u64,
    /// A catchword's value is more than this times any other cluster's.
    pub factor: f64,
    /// As in the code of ISLE, where the value of a cluster is its `rank`-th only if more documents
    /// have the word; of a cluster of `rank` documents at most it is the least if all have it. Else
    /// of a cluster of fewer documents it is the least of all.
    pub compat: bool,
}

/// The topic of which each word is a catchword, or [`NONE`]. `x` is in CSC; `clusters` has the
/// cluster of each document, of `count`, or [`NONE`].
///
/// A word's value in a cluster is the `rank`-th largest of its values there, 0 if fewer documents
/// have it. It is a catchword of the cluster where that is largest, if it is more than `factor` times
/// that of any other cluster.
///
/// Cost: as of [`thresholds`], and 4 bytes a document.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::linalg::csrcsc;
/// use outcore_compute::topics::{NONE, Ranks, catchwords};
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let words = csrcsc(&session, &a, None)?.run()?;
/// let ranks = Ranks { rank: 1, factor: 1.1, compat: false };
/// let found = catchwords(&session, &words, vec![1.0; 2], vec![0, 1], 2, ranks)?.run()?;
/// assert_eq!(found, [0, 1, 0]);
/// let found = catchwords(&session, &words, vec![1.0; 2], vec![NONE, 1], 2, ranks)?.run()?;
/// assert_eq!(found, [NONE, 1, NONE]);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// As of [`thresholds`]; [`Error::Value`] for a cluster beyond `count`.
pub fn catchwords(
    session: &Session,
    x: &Sparse,
    scales: impl Into<Arc<Vec<f64>>>,
    clusters: Vec<u32>,
    count: usize,
    ranks: Ranks,
) -> Result<Job<Vec<u32>>> {
    let scales = scales.into();
    check(x, Compressed::Columns, Some(scales.len()), None)?;
    check(x, Compressed::Columns, Some(clusters.len()), None)?;
    let mut sizes = vec![0; count];
    for cluster in clusters.iter().filter(|cluster| **cluster != NONE) {
        let Some(size) = sizes.get_mut(*cluster as usize) else {
            let what = format!("a document is in cluster {cluster}, of {count}");
            return Err(Error::value(what));
        };
        *size += 1;
    }
    let words = Frequent {
        scales,
        clusters,
        sizes,
        ranks,
    };
    let rows = Rows::Sparse(x.t());
    with_real!(x.real(), T => map::<T, _>(session, "catchwords", &rows, words))
}

struct Frequent {
    scales: Arc<Vec<f64>>,
    clusters: Vec<u32>,
    /// Documents of each cluster.
    sizes: Vec<usize>,
    ranks: Ranks,
}

impl Frequent {
    /// What stands for a cluster of this size, in which these documents have the word.
    fn value(&self, values: &mut [f64], size: usize) -> f64 {
        let rank = (self.ranks.rank.max(1) as usize).min(if self.ranks.compat {
            usize::MAX
        } else {
            size
        });
        let needed = rank + usize::from(self.ranks.compat);
        if values.len() >= needed {
            let by_size = |a: &f64, b: &f64| b.total_cmp(a);
            return *values.select_nth_unstable_by(rank - 1, by_size).1;
        }
        if self.ranks.compat && rank >= size && values.len() == size {
            return values.iter().copied().fold(f64::INFINITY, f64::min);
        }
        0.0
    }
}

impl<T: Real> Map<T> for Frequent {
    type Element = u32;

    fn held_bytes(&self) -> u64 {
        8 * (self.scales.len() + self.sizes.len()) as u64 + 4 * self.clusters.len() as u64
    }

    fn task_bytes(&self, _rows: usize) -> usize {
        size_of::<Vec<f64>>() * self.sizes.len()
    }

    fn entry_bytes(&self) -> usize {
        ENTRY_BYTES
    }

    fn needs_whole_lines(&self) -> bool {
        true
    }

    fn start(&self) -> u32 {
        NONE
    }

    fn dense(&self, _into: &mut [u32], _rows: MatRef<'_, T>) -> Result<()> {
        Err(Error::value("this takes sparse lines"))
    }

    fn sparse(&self, into: &mut [u32], _first: u64, lines: impl Lines<T>) -> Result<()> {
        let mut values = vec![Vec::new(); self.sizes.len()];
        let mut seen = Vec::new();
        lines.each_line(|word, entries| {
            entries.each(|document, value| {
                let (cluster, value) =
                    (self.clusters[document], value.f64() * self.scales[document]);
                if let Some(values) = values.get_mut(cluster as usize)
                    && value > 0.0
                {
                    if values.is_empty() {
                        seen.push(cluster);
                    }
                    values.push(value);
                }
            });
            let (mut topic, mut first, mut second) = (NONE, 0.0, 0.0);
            for cluster in seen.drain(..) {
                let (values, size) = (&mut values[cluster as usize], self.sizes[cluster as usize]);
                let value = self.value(values, size);
                values.clear();
                if value > first {
                    (topic, first, second) = (cluster, value, first);
                } else if value > second {
                    second = value;
                }
            }
            if self.sizes.len() > 1 && first > self.ranks.factor * second {
                into[word] = topic;
            }
        });
        Ok(())
    }

    fn merge(&self, into: &mut u32, other: &u32) {
        *into = *other;
    }
}
