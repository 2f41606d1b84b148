//! The space of some orthonormal vectors, in which centres stay: rows are then clustered as they are
//! along the vectors, which is never made of them.
//!
//! For c in the space of V, V^T x . V^T c = x . c, so that a row is compared as any other is. The
//! mean of V^T x is V^T of the mean of x.

use std::sync::Arc;

use outcore_core::{Error, Result, Session};
use outcore_kernels as kernels;
use outcore_kernels::{Blas, Mat, Real, view, view_mut};

/// Features of which centres are projected at a time, in f64.
const FEATURES: usize = 1024;

#[derive(Clone)]
pub(super) struct Along<T> {
    /// d x r.
    pub(super) vectors: Arc<Vec<T>>,
    pub(super) width: usize,
    features: usize,
    blas: Blas,
}

impl<T: Real> Along<T> {
    /// # Errors
    /// [`Error::Shape`] unless there are as many numbers as whole vectors of d elements have, one
    /// at least.
    pub(super) fn new(vectors: Vec<f64>, d: usize, session: &Session) -> Result<Along<T>> {
        if d == 0 || vectors.is_empty() || !vectors.len().is_multiple_of(d) {
            let found = vectors.len();
            return Err(Error::shape(format!(
                "{found} numbers of vectors of {d} elements"
            )));
        }
        Ok(Along {
            width: vectors.len() / d,
            vectors: Arc::new(vectors.into_iter().map(T::of).collect()),
            features: d,
            blas: session.blas().clone(),
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&self.vectors[..]) as u64
    }

    /// Centres, k x d, of their numbers along the vectors, k x r.
    pub(super) fn lifted(&self, numbers: &[T]) -> Result<Vec<T>> {
        let numbers: Vec<f64> = numbers.iter().map(|number| number.f64()).collect();
        let mut centers = vec![T::ZERO; numbers.len() / self.width * self.features];
        self.lift(&numbers, &mut centers)?;
        Ok(centers)
    }

    /// Puts each centre in the nearest point of the space.
    pub(super) fn project(&self, centers: &mut [T]) -> Result<()> {
        let (d, r, k) = (self.features, self.width, centers.len() / self.features);
        let mut numbers = vec![0.0; k * r];
        for first in (0..d).step_by(FEATURES) {
            let len = FEATURES.min(d - first);
            let some = Mat::from_fn(k, len, |row, at| centers[row * d + first + at].f64());
            let into = view_mut(&mut numbers, k, r, r, 1)?;
            let vectors = self.some(first, len);
            kernels::gemm(into, 1.0, some.as_ref(), vectors.as_ref(), 1.0, &self.blas)?;
        }
        self.lift(&numbers, centers)
    }

    fn lift(&self, numbers: &[f64], centers: &mut [T]) -> Result<()> {
        let (d, r, k) = (self.features, self.width, numbers.len() / self.width);
        let numbers = view(numbers, k, r, r, 1)?;
        for first in (0..d).step_by(FEATURES) {
            let len = FEATURES.min(d - first);
            let (vectors, mut some) = (self.some(first, len), Mat::zeros(k, len));
            let across = vectors.as_ref().transpose();
            kernels::gemm(some.as_mut(), 1.0, numbers, across, 0.0, &self.blas)?;
            for row in 0..k {
                (0..len).for_each(|at| centers[row * d + first + at] = T::of(some[(row, at)]));
            }
        }
        Ok(())
    }

    /// Rows of the vectors in f64.
    fn some(&self, first: usize, len: usize) -> Mat<f64> {
        let r = self.width;
        Mat::from_fn(len, r, |row, at| self.vectors[(first + row) * r + at].f64())
    }

    /// What a row of these entries is along the vectors.
    pub(super) fn numbers(&self, entries: impl IntoIterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut numbers = vec![0.0; self.width];
        for (place, value) in entries {
            let along = &self.vectors[place * self.width..][..self.width];
            (numbers.iter_mut().zip(along)).for_each(|(number, v)| *number += value * v.f64());
        }
        numbers
    }
}
