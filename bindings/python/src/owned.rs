//! Values that own threads or rings, and therefore belong to the process that made them.
//!
//! After a fork the child has copies of these values but none of their threads: using or dropping
//! one would wait for ever. [`Owned`] remembers its process, refuses access from another, and is
//! leaked there.

use std::mem::ManuallyDrop;

use pyo3::PyResult;

use crate::error::to_python;

/// A value of one process.
pub(crate) struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned {
            value: ManuallyDrop::new(value),
            process: std::process::id(),
        }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match self.process == std::process::id() {
            true => Ok(&self.value),
            false => Err(to_python(outcore::Error::Closed)),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: `value` is taken here only, and never used again after `drop`.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
