//! Ranks and rings over MPI and OpenSHMEM. Neither is needed to build or to run without: the libraries are opened at
//! run time, when ranks are asked for.
//!
//! | design | blocks go on by | slots |
//! |---|---|---|
//! | `mpi` | messages, exchanged when computing is over | 2 |
//! | `mpi_o` | messages, while computing goes on | 2 |
//! | `mpi_rma` | gets out of windows, with messages of what is there and what is free | 4 |
//! | `osh_ow` | puts into the symmetric heap, with words of what has come and what is free | 2 |
//! | `osh_om` | copies of memory within a node, puts between nodes | 2 |
//! | `osh_oc` | as `osh_om`, in a circular buffer that fast ranks run ahead in | 4 |
//!
//! Two-sided transfers move only inside calls of the library, so a ring is to be asked now and then how far it is.
//! Source: Lin et al., "Accelerating k-NN algorithm with hybrid MPI and OpenSHMEM", OpenSHMEM 2015; `mpi_rma` is ours.
#![allow(unsafe_code)]

mod library;
mod memory;
mod overlapped;
mod shmem;
mod window;
mod world;

pub use world::{Design, MpiRanks, finalize};
