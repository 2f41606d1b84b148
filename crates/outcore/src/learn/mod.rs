//! What is computed from matrices on SSD.

pub mod linalg;

