//! The native half of the Python package `outcore`.

use pyo3::prelude::*;

/// The native half of `outcore`; use the package, not this module.
#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
