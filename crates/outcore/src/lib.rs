//! Machine learning on data and models bigger than memory.

#![forbid(unsafe_code)]

pub mod data;
