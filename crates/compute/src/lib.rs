//! What is computed from matrices on SSD.
//!
//! Most of it is a [`pass`] over the rows of a matrix, or an iteration on an [`operator`], whose
//! products are passes. Each algorithm has the same inside: what it is, shapes, cost and source at
//! the top; its plan; its run; a reference in its tests.

#![forbid(unsafe_code)]

pub mod kmeans;
mod krylov;
pub mod linalg;
pub mod operator;
pub mod pass;
pub mod pca;
