//! Which topics documents have.

use std::sync::atomic::Ordering;

use outcore_core::{Error, Job, Result, Session, with_real};
use outcore_kernels::{Lines, MatMut, MatRef, Real};
use outcore_matrix::{Array, Compressed, Output, Sparse};

use super::check;
use crate::pass::{Cost, RowMap, Rows, TaskContext, map_into};

/// The weights of topics in each document, n x k, rows that add up to 1: those under which the
/// document is most likely, by some steps of multiplicative weights. `topics` is d x k, the
/// probability of each word in each topic. `x` is in CSR.
///
/// Step t multiplies the weight of a topic by e^(g / `rate` sqrt(2 ln k / t)), g the derivative of
/// the mean log-likelihood of the words. All weights are 1/k at first, and stay so for a document
/// without a word of any topic.
///
/// Cost: reads X once, writes the result; holds 8 k d bytes; 4 k flops an entry and step.
///
/// ```
#[doc = include_str!("../setup.doctest")]
/// use outcore_compute::topics::weights;
///
/// // a = [[1, 0, 2], [0, 3, 0]]
/// let topics = vec![0.5, 0.0, 0.0, 1.0, 0.5, 0.0];
/// let found = weights(&session, &a, topics, 2, 15, 10.0, Output::Scratch)?.run()?.to_vec::<f32>()?;
/// assert!(found[0] > 0.7 && found[3] > 0.7 && (found[0] + found[1] - 1.0).abs() < 1e-6);
/// # Ok::<(), outcore_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for topics of other words; [`Error::Value`] for a matrix in CSC, for no topics,
/// and for topics that are not finite; [`Error::OverBudget`]; what keeps the output from being made.
pub fn weights(
    session: &Session,
    x: &Sparse,
    topics: Vec<f64>,
    count: usize,
    steps: u64,
    rate: f64,
    out: Output,
) -> Result<Job<Array>> {
    if count == 0 || !topics.len().is_multiple_of(count) {
        let len = topics.len();
        return Err(Error::value(format!(
            "{len} probabilities of {count} topics"
        )));
    }
    check(x, Compressed::Rows, None, Some(topics.len() / count))?;
    let is_fine = |number: &f64| number.is_finite() && *number >= 0.0;
    if !topics.iter().all(is_fine) || !is_fine(&rate) || rate == 0.0 {
        return Err(Error::value(
            "probabilities must be finite and not negative, and the rate above 0",
        ));
    }
    let map = Inference {
        name: x.name().to_owned(),
        topics,
        count,
        steps,
        rate,
    };
    let rows = Rows::Sparse(x.clone());
    with_real!(x.real(), T => map_into::<T, _>(session, "topics of documents", &rows, map, out))
}

struct Inference {
    /// What errors call the corpus.
    name: String,
    /// By words.
    topics: Vec<f64>,
    count: usize,
    steps: u64,
    rate: f64,
}

/// A word of a document: its topics, and its part of the document.
type Word<'a> = (&'a [f64], f64);

impl Inference {
    /// Moves the weights to where the words are more likely.
    fn step(&self, step: u64, weights: &mut [f64], slopes: &mut [f64], words: &[Word<'_>]) {
        slopes.fill(0.0);
        for (topics, part) in words {
            let likely: f64 = topics.iter().zip(&*weights).map(|(p, w)| p * w).sum();
            // Weights that are next to nothing may leave a word without any.
            if likely > 0.0 {
                let by = part / likely;
                slopes
                    .iter_mut()
                    .zip(*topics)
                    .for_each(|(slope, p)| *slope += by * p);
            }
        }
        let eta = (2.0 * (self.count as f64).ln() / (step + 1) as f64).sqrt() / self.rate;
        // Slopes less the largest: the same weights once they add up to 1, and no overflow.
        let largest = slopes.iter().copied().fold(0.0, f64::max);
        for (weight, slope) in weights.iter_mut().zip(&*slopes) {
            *weight *= (eta * (slope - largest)).exp();
        }
        let sum: f64 = weights.iter().sum();
        if sum > 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= sum);
        } else {
            weights.fill(1.0 / self.count as f64);
        }
    }
}

impl<T: Real> RowMap<T> for Inference {
    type Element = T;

    fn width(&self) -> u64 {
        self.count as u64
    }

    fn held_bytes(&self) -> u64 {
        8 * self.topics.len() as u64
    }

    fn cost(&self, _rows: usize, entries: usize, _by_rows: bool) -> Cost {
        Cost {
            flops: 4 * (entries * self.count) as u64 * self.steps,
            scratch: 0,
            held: 16 * self.count + 2 * size_of::<Word<'_>>() * entries,
        }
    }

    fn dense(&self, _y: MatMut<'_, T>, _x: MatRef<'_, T>, _work: TaskContext<'_>) -> Result<()> {
        Err(Error::value("this takes sparse rows"))
    }

    fn joins_rows(&self) -> bool {
        true
    }

    fn sparse(
        &self,
        mut y: MatMut<'_, T>,
        _numbers: &mut [f64],
        lines: impl Lines<T>,
        work: TaskContext<'_>,
    ) -> Result<()> {
        let stop = || work.cancelled.load(Ordering::Relaxed);
        let (mut weights, mut slopes) = (vec![0.0; self.count], vec![0.0; self.count]);
        let mut words: Vec<Word<'_>> = Vec::new();
        let mut is_fine = true;
        lines.each_line(|line, entries| {
            words.clear();
            let mut sum = 0.0;
            entries.each(|_, value| is_fine &= value.f64() >= 0.0 && value.f64().is_finite());
            entries.each(|word, value| {
                let topics = &self.topics[word * self.count..][..self.count];
                sum += value.f64();
                if value.f64() > 0.0 && topics.iter().any(|p| *p > 0.0) {
                    words.push((topics, value.f64()));
                }
            });
            words.iter_mut().for_each(|(_, part)| *part /= sum);
            weights.fill(1.0 / self.count as f64);
            let steps = if words.is_empty() { 0 } else { self.steps };
            for step in (0..steps).take_while(|_| !stop()) {
                self.step(step, &mut weights, &mut slopes, &words);
            }
            for (topic, weight) in weights.iter().enumerate() {
                y[(line, topic)] = T::of(*weight);
            }
        });
        if stop() {
            return Err(Error::Cancelled);
        }
        if !is_fine {
            let what = "a document has a value that is negative or not finite";
            return Err(Error::value(format!("{}: {what}", self.name)));
        }
        Ok(())
    }
}
