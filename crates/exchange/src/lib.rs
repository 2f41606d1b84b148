//! Import and export of foreign formats of sparse matrices.

#![forbid(unsafe_code)]

pub mod export;
pub mod import;
