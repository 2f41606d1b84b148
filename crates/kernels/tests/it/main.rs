//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod eigen;
mod embedding;
mod gemm;
mod lines;
mod sparse;
