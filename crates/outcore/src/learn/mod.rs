//! What is computed from matrices on SSD.

pub mod linalg;
pub mod pca;
