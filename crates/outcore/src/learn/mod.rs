//! What is computed from matrices on SSD.

pub mod kmeans;
pub mod linalg;
pub mod pca;
