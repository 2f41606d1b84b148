//! Tests by way of the public interface. One binary, since each is linked with the whole library.

mod bits;
mod faults;
mod format;
mod import;
mod in_place;
mod kmeans;
mod linalg;
mod neighbors;
mod operator;
mod pass;
mod pca;
mod ranks;
mod rows;
mod samples;
mod shards;
mod sparse;
mod stored;
mod stream;
