//! What is computed from matrices on SSD.

pub mod kmeans;
pub(crate) mod krylov;
pub mod linalg;
pub mod pca;
